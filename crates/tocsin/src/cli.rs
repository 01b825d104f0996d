//! Command line: the commands, their groups, and the dispatch to `commands/`.

use std::{process::ExitCode, time::Duration};

use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::{
    client::ConnectionArgs,
    commands::*,
    configuration::{self, ConfigurationArgs},
    failure::{Failure, Outcome},
    terminal::Terminal,
};

/// Self-hosted notification platform: accepts events, matches them, delivers notifications.
///
/// Applications define event classes, rules and subscriptions. The server stores events durably, matches them against
/// the subscriptions, formats notifications and delivers them by mail, HTTP, push, file or inbox.
#[derive(Debug, Parser)]
#[command(name = "tocsin", version, max_term_width = 110, disable_help_subcommand = true)]
pub struct Cli {
    /// The command to run.
    #[command(subcommand)]
    pub command: Command,
    /// Sources of the configuration.
    #[command(flatten)]
    pub configuration: ConfigurationArgs,
    /// Address and key of the server.
    #[command(flatten)]
    pub connection: ConnectionArgs,
    /// Whether the command has the option `--json`: then failures are JSON too.
    #[arg(skip)]
    pub json: bool,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the server
    Serve(serve::Args),
    /// Create the data folder, configuration file and first key
    Init(init::Args),
    /// Check a definition without a server
    Check(check::Args),
    /// Show the changes of a definition and apply it
    Apply(apply::Args),
    /// List, show and remove applications
    Applications(applications::Args),
    /// Explain, test, stop and resume rules
    Rule(rule::Args),
    /// Render a notification without sending it
    Preview(Box<preview::Args>),
    /// Send one test notification and show the response
    SendTest(Box<send_test::Args>),
    /// Send one message to an address
    Send(send::Args),
    /// Submit events
    Publish(publish::Args),
    /// Show accepted events
    Events(events::Args),
    /// Import subscribers, subscriptions or suppressions
    Import(import::Args),
    /// Import the records of a NotifyBC installation
    Notifybc(notifybc::Args),
    /// Export definitions, subscribers or subscriptions
    Export(export::Args),
    /// Check, apply and manage exchanges
    Exchange(exchange::Args),
    /// Send, list, show, resume and end exchange messages
    Messages(messages::Args),
    /// Import and export the directory as LDIF
    Directory(directory::Args),
    /// Manage segments and count their members
    Segments(segments::Args),
    /// Count, test, send, pause and cancel broadcasts
    Broadcast(broadcast::Args),
    /// Read, mark and follow the inbox of a subscriber
    Inbox(inbox::Args),
    /// Manage sync devices; show sessions and conflicts
    Sync(sync::Args),
    /// Keep, edit and synchronize a replica on this machine
    Replica(replica::Args),
    /// Show the state of the server
    Status(status::Args),
    /// List problems that need an operator now
    Attention(attention::Args),
    /// Find objects by id, name or address
    Search(search::Args),
    /// Print a report of activity or current state
    Report(Box<report::Args>),
    /// Print time series of activity and queues
    Series(Box<series::Args>),
    /// Search notifications by recipient, outcome and time
    Notifications(Box<notifications::Args>),
    /// Trace an event, batch, notification or subscriber
    Trace(trace::Args),
    /// Explain why a notification was sent, or was not
    Explain(Box<explain::Args>),
    /// Manage subscribers and devices; merge subscribers
    Subscribers(subscribers::Args),
    /// Manage subscriptions
    Subscriptions(subscriptions::Args),
    /// Show, request, confirm and withdraw consents
    Consent(consent::Args),
    /// Manage suppressed addresses
    Suppressions(suppressions::Args),
    /// End the subscriptions of many addresses, or undo it
    Unsubscribe(unsubscribe::Args),
    /// List bounces and complaints; take a mail from a pipe
    Feedback(feedback::Args),
    /// List, resume or end suspended notifications
    Suspended(suspended::Args),
    /// Resend failed notifications
    Resend(resend::Args),
    /// Resend failed notifications of one device
    Recover(resend::Recover),
    /// List missed rule firings and run them again
    Firings(firings::Args),
    /// List delayed notifications that wait, or cancel them
    Delayed(delayed::Args),
    /// Pause, disable and enable parts of the server
    Switch(switch::Args),
    /// Close the intake and wait until due work is delivered
    Drain(drain::Args),
    /// Delete expired data now
    Retention(switch::Retention),
    /// Show destinations and their circuit breakers
    Destinations(destinations::Args),
    /// Show failing and disabled device endpoints
    Endpoints(endpoints::Args),
    /// Show sources and their state
    Sources(sources::Args),
    /// Show schedules, due times and progress
    Schedules(schedules::Args),
    /// Show chronicles (aggregates of events by key)
    Chronicles(chronicles::Args),
    /// List, create and revoke API keys
    Keys(keys::Args),
    /// List the changes that callers made
    Audit(Box<audit::Args>),
    /// Manage the users of the web console
    Users(users::Args),
    /// Print a one-time login link for the web console
    Console(console::Args),
    /// Create a VAPID key pair for web push
    VapidKey(vapid_key::Args),
    /// Check the machine, the data folder and the server
    Doctor(doctor::Args),
    /// Back up the data folder while the server runs
    Backup(backup::Args),
    /// Restore a backup into the data folder
    Restore(backup::Restore),
    /// Print the effective configuration and its sources
    Config(config::Args),
    /// Run the demo: a week of earthquakes, by mail
    Demo(demo::Args),
    /// Write the generated files of an example
    Example(example::Args),
    /// Generate load and measure costs for capacity plans
    #[cfg(feature = "bench")]
    Bench(bench::Args),
    /// Plan capacity from a load profile and measured costs
    Capacity(Box<capacity::Args>),
    /// Receive mail and show it on a web page
    Mailbox(mailbox::Args),
    /// Print a completion script for a shell
    Completions(help::Completions),
    /// Print the manual page of a command
    Man(help::Man),
    /// Show the help of a command
    Help(help::Args),
    /// Print the version
    Version(help::Version),
    /// Print a generated reference page as Markdown
    #[command(hide = true)]
    Reference(reference::Args),
}

/// Headings of `tocsin --help`, each with its commands.
const GROUPS: [(&str, &[&str]); 6] = [
    ("Run", &["serve", "init", "demo", "mailbox", "doctor", "drain"]),
    ("Build", &["check", "apply", "applications", "rule", "preview", "send-test", "example"]),
    (
        "Data",
        &[
            "send",
            "publish",
            "events",
            "subscribers",
            "subscriptions",
            "segments",
            "broadcast",
            "consent",
            "suppressions",
            "unsubscribe",
            "feedback",
            "import",
            "notifybc",
            "export",
            "directory",
            "inbox",
            "sync",
            "replica",
            "exchange",
            "messages",
        ],
    ),
    (
        "Inspect",
        &[
            "status",
            "attention",
            "search",
            "report",
            "series",
            "notifications",
            "trace",
            "explain",
            "destinations",
            "endpoints",
            "sources",
            "schedules",
            "chronicles",
        ],
    ),
    ("Operate", &["suspended", "resend", "recover", "firings", "delayed", "switch", "retention", "backup", "restore"]),
    (
        "Administer",
        &[
            "keys",
            "users",
            "audit",
            "console",
            "vapid-key",
            "config",
            "capacity",
            "bench",
            "completions",
            "man",
            "help",
            "version",
        ],
    ),
];

/// The command line with its commands listed by group.
pub fn command() -> clap::Command {
    use std::fmt::Write;
    let command = Cli::command();
    let mut list = String::new();
    for (heading, names) in GROUPS {
        let _ = writeln!(list, "{heading}:");
        // A build without the feature `bench` lacks that command.
        for (name, found) in names.iter().filter_map(|name| Some((name, command.find_subcommand(name)?))) {
            let about = found.get_about().map(ToString::to_string).unwrap_or_default();
            let _ = writeln!(list, "  {name:<14} {about}");
        }
        list.push('\n');
    }
    command.help_template(format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{list}Options:\n{{options}}\n\n\
         `tocsin help COMMAND` shows the options of a command."
    ))
}

/// Whether a command or one of its subcommands has the switch `--json`. Other options of this name have values.
fn has_json(matches: &ArgMatches) -> bool {
    let own = matches.try_get_one::<bool>("json").ok().flatten().copied().unwrap_or_default();
    own || matches.subcommand().is_some_and(|(_, matches)| has_json(matches))
}

/// The failure of invalid arguments, if the command has the switch `--json` and it is given. Help is no failure.
fn usage_failure(words: &[String], error: &clap::Error) -> Option<Failure> {
    let mut command = command();
    let mut is_json = false;
    for word in words.iter().skip(1).take_while(|word| *word != "--") {
        if let Some(below) = command.find_subcommand(word) {
            command = below.clone();
        }
        is_json |= word == "--json";
    }
    let mut switches = command.get_arguments().filter(|argument| !argument.get_action().takes_values());
    if !error.use_stderr() || !is_json || !switches.any(|argument| argument.get_long() == Some("json")) {
        return None;
    }
    let text = error.render().to_string();
    let mut paragraphs = text.split("\n\n").map(|part| part.split_whitespace().collect::<Vec<_>>().join(" "));
    let message = paragraphs.next().unwrap_or_default();
    let message = message.strip_prefix("error: ").unwrap_or(&message);
    let details = paragraphs.filter(|part| !part.is_empty());
    Some(details.fold(Failure::usage(message), Failure::detail))
}

impl Cli {
    /// Reads the arguments of the process; on `--help` or an error it prints and exits.
    pub fn from_process() -> Self {
        let matches = command().try_get_matches().unwrap_or_else(|error| {
            match usage_failure(&std::env::args().collect::<Vec<_>>(), &error) {
                Some(failure) => {
                    failure.report_json();
                    std::process::exit(error.exit_code())
                }
                None => error.exit(),
            }
        });
        let json = has_json(&matches);
        let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
        Cli { json, ..cli }
    }

    /// Runs the command and returns the exit code of the process.
    pub fn main(self) -> ExitCode {
        // The first TLS connection would panic without a provider; a second installation is harmless.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let terminal = Terminal::standard();
        let json = self.json;
        match self.run(&terminal) {
            Ok(()) => ExitCode::SUCCESS,
            Err(failure) if json => failure.report_json(),
            Err(failure) => failure.report("tocsin"),
        }
    }

    fn run(self, terminal: &Terminal) -> Outcome {
        let threads = match &self.command {
            Command::Serve(_) | Command::Demo(_) => {
                let layered = configuration::load(&self.configuration, &[])?;
                match layered.configuration.runtime.threads {
                    0 => std::thread::available_parallelism().map_or(2, usize::from).max(2),
                    threads => threads as usize,
                }
            }
            // The load shares the cores with the server either way.
            #[cfg(feature = "bench")]
            Command::Bench(_) => std::thread::available_parallelism().map_or(2, usize::from).max(2),
            _ => 1,
        };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(threads)
            .max_blocking_threads(16)
            // Keep blocking threads: if the system allows no new thread and none is left, blocking work would wait
            // forever, because tokio's runtime threads do not take it.
            .thread_keep_alive(Duration::from_secs(10 * 365 * 86_400))
            .thread_stack_size(1 << 20)
            .thread_name("tocsin")
            .enable_all()
            .build()
            .map_err(|error| Failure::failed("cannot start the threads of the process").because(&error))?;
        drop(runtime.spawn_blocking(|| ()));
        let result = runtime.block_on(self.execute(terminal));
        // A thread that reads a line of standard input would block the shutdown.
        runtime.shutdown_background();
        result
    }

    async fn execute(self, terminal: &Terminal) -> Outcome {
        let Cli { command, configuration, connection, json: _ } = self;
        let client = || connection.client(&configuration);
        match command {
            Command::Serve(args) => args.run(terminal, &configuration).await,
            Command::Init(args) => args.run(terminal, &configuration).await,
            Command::Check(args) => args.run(terminal, &configuration),
            Command::Apply(args) => args.run(terminal, &client()?).await,
            Command::Applications(args) => args.run(terminal, &client()?).await,
            Command::Rule(args) => args.run(terminal, &client()?).await,
            Command::Preview(args) => args.run(terminal, &client()?).await,
            Command::SendTest(args) => args.run(terminal, &client()?).await,
            Command::Send(args) => args.run(terminal, &client()?).await,
            Command::Publish(args) => args.run(terminal, &client()?).await,
            Command::Events(args) => args.run(terminal, &client()?).await,
            Command::Import(args) => args.run(terminal, &client()?).await,
            Command::Notifybc(args) => args.run(terminal, &configuration).await,
            Command::Export(args) => args.run(terminal, &client()?).await,
            Command::Exchange(args) => args.run(terminal, &client()?).await,
            Command::Messages(args) => args.run(terminal, &client()?).await,
            Command::Directory(args) => args.run(terminal, &configuration, client).await,
            Command::Segments(args) => args.run(terminal, &client()?).await,
            Command::Broadcast(args) => args.run(terminal, &client()?).await,
            Command::Inbox(args) => args.run(terminal, &client()?).await,
            Command::Sync(args) => args.run(terminal, &client()?).await,
            Command::Replica(args) => args.run(terminal, client).await,
            Command::Status(args) => args.run(terminal, &client()?).await,
            Command::Attention(args) => args.run(terminal, &client()?).await,
            Command::Report(args) => args.run(terminal, &client()?).await,
            Command::Trace(args) => args.run(terminal, &client()?).await,
            Command::Explain(args) => args.run(terminal, &client()?).await,
            Command::Subscribers(args) => args.run(terminal, &client()?).await,
            Command::Subscriptions(args) => args.run(terminal, &client()?).await,
            Command::Consent(args) => args.run(terminal, &client()?).await,
            Command::Suppressions(args) => args.run(terminal, &client()?).await,
            Command::Unsubscribe(args) => args.run(terminal, &client()?).await,
            Command::Feedback(args) => args.run(terminal, &client()?).await,
            Command::Series(args) => args.run(terminal, &client()?).await,
            Command::Notifications(args) => args.run(terminal, &client()?).await,
            Command::Suspended(args) => args.run(terminal, &client()?).await,
            Command::Audit(args) => args.run(terminal, &client()?).await,
            Command::Search(args) => args.run(terminal, &client()?).await,
            Command::Resend(args) => args.run(terminal, &client()?).await,
            Command::Recover(args) => args.run(terminal, &client()?).await,
            Command::Firings(args) => args.run(terminal, &client()?).await,
            Command::Delayed(args) => args.run(terminal, &client()?).await,
            Command::Switch(args) => args.run(terminal, &client()?).await,
            Command::Drain(args) => args.run(terminal, &client()?).await,
            Command::Retention(args) => args.run(terminal, &client()?).await,
            Command::Destinations(args) => args.run(terminal, &client()?).await,
            Command::Endpoints(args) => args.run(terminal, &client()?).await,
            Command::Sources(args) => args.run(terminal, &client()?).await,
            Command::Schedules(args) => args.run(terminal, client).await,
            Command::Chronicles(args) => args.run(terminal, client).await,
            Command::Keys(args) => args.run(terminal, &client()?).await,
            Command::Users(args) => args.run(terminal, &client()?).await,
            Command::Console(args) => args.run(terminal, &client()?).await,
            Command::VapidKey(args) => args.run(terminal),
            Command::Doctor(args) => args.run(terminal, &configuration, &connection).await,
            Command::Backup(args) => args.run(terminal, &configuration, client).await,
            Command::Restore(args) => args.run(terminal, &configuration).await,
            Command::Config(args) => args.run(terminal, &configuration),
            Command::Demo(args) => args.run(terminal, &configuration).await,
            Command::Example(args) => args.run(terminal),
            #[cfg(feature = "bench")]
            Command::Bench(args) => args.run(terminal).await,
            Command::Capacity(args) => args.run(terminal, client).await,
            Command::Mailbox(args) => args.run(terminal).await,
            Command::Completions(args) => args.run(terminal),
            Command::Man(args) => args.run(terminal),
            Command::Help(args) => args.run(terminal),
            Command::Version(args) => args.run(terminal),
            Command::Reference(args) => args.run(terminal),
        }
    }
}

/// Compares a generated page with the committed one; with `UPDATE=1` writes it.
#[cfg(test)]
pub(crate) fn compare_reference(name: &str, generated: &str) {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference");
    let path = folder.join(name);
    if std::env::var_os("UPDATE").is_some() {
        std::fs::create_dir_all(&folder).expect("the folder can be created");
        std::fs::write(&path, generated).expect("the page can be written");
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(committed == generated, "docs/reference/{name} is out of date; run `UPDATE=1 cargo test -p tocsin`");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commands_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn failures_are_json_where_the_output_is() {
        let json = |words: &[&str]| has_json(&command().get_matches_from(words));
        assert!(json(&["tocsin", "check", "app.yaml", "--json"]));
        assert!(json(&["tocsin", "applications", "list", "--json"]));
        assert!(!json(&["tocsin", "check", "app.yaml"]));
    }

    #[test]
    fn b5_invalid_arguments_are_json_where_the_output_is() {
        let failure = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            let error = command().try_get_matches_from(&words).expect_err("an error");
            usage_failure(&words, &error).map(|failure| failure.to_json())
        };
        let json = failure(&["tocsin", "applications", "list", "--json", "--nonsense"]).expect("JSON");
        assert_eq!(json["code"], "invalid_usage", "{json}");
        assert_eq!(json["message"], "unexpected argument '--nonsense' found", "{json}");
        assert!(json["details"].as_array().is_some_and(|details| !details.is_empty()), "{json}");
        assert!(failure(&["tocsin", "check", "--json"]).is_some(), "an argument is missing");
        for words in [
            ["tocsin", "applications", "list", "--nonsense"],
            ["tocsin", "applications", "list", "--help"],
            ["tocsin", "nonsense", "--json", "x"],
        ] {
            assert_eq!(failure(&words), None, "{words:?}");
        }
    }

    /// A flag of a command with the name of a global flag would be read as the global one.
    #[test]
    fn no_command_redefines_a_global_flag() {
        fn check(command: &clap::Command, of_all: &[&str], path: &str) {
            for argument in command.get_arguments().filter(|argument| !argument.is_global_set()) {
                let name = argument.get_id().as_str();
                assert!(!of_all.contains(&name), "`{path}` redefines the global flag `{name}`");
            }
            for below in command.get_subcommands() {
                check(below, of_all, &format!("{path} {}", below.get_name()));
            }
        }
        let command = Cli::command();
        let of_all = command.get_arguments().filter(|argument| argument.is_global_set());
        let of_all: Vec<&str> = of_all.map(|argument| argument.get_id().as_str()).collect();
        assert!(of_all.contains(&"server"), "{of_all:?}");
        for below in command.get_subcommands() {
            check(below, &of_all, below.get_name());
        }
    }

    /// Every visible command is in one group, and its summary is an imperative of at most 60 characters.
    #[test]
    fn each_command_has_a_group_and_a_short_summary() {
        let root = Cli::command();
        let mut grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        let mut visible: Vec<&str> =
            root.get_subcommands().filter(|command| !command.is_hide_set()).map(clap::Command::get_name).collect();
        grouped.sort_unstable();
        visible.sort_unstable();
        assert_eq!(grouped, visible);
        fn check(command: &clap::Command, path: &str) {
            for below in command.get_subcommands() {
                let path = format!("{path} {}", below.get_name());
                let about = below.get_about().map(ToString::to_string).unwrap_or_default();
                assert!(!about.is_empty() && about.chars().count() <= 60, "`{path}`: {about}");
                for argument in below.get_arguments().filter(|argument| argument.get_action().takes_values()) {
                    let names = argument.get_value_names().unwrap_or_default();
                    let is_flag_name = |name: &&clap::builder::Str| name.as_str().contains('_');
                    assert_eq!(names.iter().find(is_flag_name), None, "`{path}`: name the kind of value");
                }
                let first = about.split(' ').next().unwrap_or_default();
                let is_third_person = first.ends_with('s') && !first.ends_with("ss");
                assert!(!is_third_person, "`{path}` begins with `{first}`: write an imperative");
                check(below, &path);
            }
        }
        check(&root, "tocsin");
    }

    #[test]
    fn the_committed_page_is_up_to_date() {
        compare_reference("commands.md", &reference::commands_page());
    }
}
