//! What can be typed.

use std::{process::ExitCode, time::Duration};

use clap::{Parser, Subcommand};

use crate::{
    client::ConnectionArgs,
    commands::*,
    configuration::{self, ConfigurationArgs},
    failure::{Exit, Failure, Outcome},
    terminal::Terminal,
};

/// Tocsin tells whoever cares what happened.
///
/// A self-hosted notification platform: applications define events, subscriptions and rules; events are accepted
/// durably, matched with the subscriptions, formatted and delivered by mail, HTTP or file.
#[derive(Debug, Parser)]
#[command(name = "tocsin", version, max_term_width = 110, disable_help_subcommand = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// Where the configuration comes from.
    #[command(flatten)]
    pub configuration: ConfigurationArgs,
    /// How to reach a server.
    #[command(flatten)]
    pub connection: ConnectionArgs,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Runs the server
    Serve(serve::Args),
    /// Makes the data folder, a commented configuration file and the first key
    Init(init::Args),
    /// Checks a definition without a server
    Check(check::Args),
    /// Shows what a definition would change in the server, and applies it
    Apply(apply::Args),
    /// Shows how rules are answered, and tries one on events
    Rule(rule::Args),
    /// Shows how a notification would read, and which template serves each part
    Preview(Box<preview::Args>),
    /// Sends one notification as a test, and says what the far side made of it
    SendTest(Box<send_test::Args>),
    /// Submits events
    Publish(publish::Args),
    /// Stores subscribers, subscriptions or suppressions from NDJSON or CSV
    Import(import::Args),
    /// Writes subscribers, subscriptions or suppressions as NDJSON or CSV
    Export(export::Args),
    /// Checks, applies, lists and removes exchanges; sets the state of their send ports
    Exchange(exchange::Args),
    /// Sends messages through exchanges; lists, shows, resumes and ends them
    Messages(messages::Args),
    /// Reads and writes the directory as LDIF, without a server
    Directory(directory::Args),
    /// Lists, stores and removes segments of the subscribers; counts who belongs to them
    Segments(segments::Args),
    /// Reads, marks and follows what subscribers find in their inbox
    Inbox(inbox::Args),
    /// Lets devices keep replicas of rows, and shows their sessions and conflicts
    Devices(devices::Args),
    /// Keeps a replica of rows on this machine, edits it, and synchronises it
    Replica(replica::Args),
    /// Shows how the server is doing: live in a terminal, plain when piped
    Status(status::Args),
    /// Says what needs attention now, why, and what to do
    Digest(digest::Args),
    /// Makes a report: what happened by quantum, batch, class, channel and time, or what the state is now
    Report(Box<report::Args>),
    /// Tells the story of an event, batch, notification or subscriber
    Trace(trace::Args),
    /// Makes claims for devices, and subscribers who are known by their addresses only parts of others
    Subscribers(subscribers::Args),
    /// Lists, sets and lifts suppressions: where nothing is sent after bounces and complaints
    Suppressions(suppressions::Args),
    /// Lists, resumes or ends notifications that wait for an operator
    Suspended(suspended::Args),
    /// Sends again what had failed, after counting it
    Resend(resend::Args),
    /// Sends again what had failed for one device
    Recover(resend::Recover),
    /// Lists rules that did not fire, and fires them again
    Firings(firings::Args),
    /// Switches roles, applications, event classes, sources and channels off and on
    Switch(switch::Args),
    /// Closes the intake, and waits until what is due has left
    Drain(drain::Args),
    /// Removes what is past its retention now
    Retention(switch::Retention),
    /// Shows where messages go, and how each destination does
    Destinations(destinations::Args),
    /// Shows endpoints of devices that have only failed of late, and those switched off for it
    Endpoints(endpoints::Args),
    /// Shows where events come from by themselves, and how each source does
    Sources(sources::Args),
    /// Shows when schedules are due, and how far they have come
    Schedules(schedules::Args),
    /// Shows what is kept of events, key by key
    Chronicles(chronicles::Args),
    /// Lists, makes and revokes API keys
    Keys(keys::Args),
    /// Makes the key pair with which messages to browsers are signed
    VapidKey(vapid_key::Args),
    /// Examines the machine, the data folder and the server
    Doctor(doctor::Args),
    /// Copies the data folder as of one moment, while the server goes on
    Backup(backup::Args),
    /// Puts a backup into the data folder
    Restore(backup::Restore),
    /// Prints the effective configuration with the source of each value
    Config(config::Args),
    /// Plays a week of earthquakes to ten thousand people, by mail
    Demo(demo::Args),
    /// Writes the generated files of an example
    Example(example::Args),
    /// Measures this binary, beside others that do the same work
    Bench(bench::Args),
    /// Says how large an installation must be, from a profile and measured costs
    Capacity(Box<capacity::Args>),
    /// Receives mail and shows it on a page
    #[command(hide = true)]
    Mailbox(mailbox::Args),
    /// Prints the reference of these commands, or of the configuration, as Markdown
    #[command(hide = true)]
    Reference(reference::Args),
}

impl Cli {
    /// Runs the command and says how the process ends.
    pub fn main(self) -> ExitCode {
        // The first TLS connection would panic without a provider; a second installation is harmless.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let terminal = Terminal::standard();
        match self.run(&terminal) {
            Ok(()) => ExitCode::SUCCESS,
            Err(failure) => {
                if failure.exit != Exit::NobodyReads && !failure.message.is_empty() {
                    use std::io::Write;
                    // Standard error may be closed as well; then there is nobody to tell.
                    let _ = writeln!(std::io::stderr(), "tocsin: {failure}");
                }
                ExitCode::from(failure.exit as u8)
            }
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
            Command::Bench(_) => std::thread::available_parallelism().map_or(2, usize::from).max(2),
            _ => 1,
        };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(threads)
            .max_blocking_threads(16)
            // A blocking thread never ends. With none of them, and no new one from the system, blocking work would wait
            // without end: tokio leaves it to the threads of the runtime, which do not take it.
            .thread_keep_alive(Duration::from_secs(10 * 365 * 86_400))
            .thread_stack_size(1 << 20)
            .thread_name("tocsin")
            .enable_all()
            .build()
            .map_err(|error| Failure::failed("cannot start the threads of the process").because(&error))?;
        drop(runtime.spawn_blocking(|| ()));
        let result = runtime.block_on(self.execute(terminal));
        // A thread that waits for a line of standard input would never end.
        runtime.shutdown_background();
        result
    }

    async fn execute(self, terminal: &Terminal) -> Outcome {
        let Cli { command, configuration, connection } = self;
        let client = || connection.client(&configuration);
        match command {
            Command::Serve(args) => args.run(terminal, &configuration).await,
            Command::Init(args) => args.run(terminal, &configuration).await,
            Command::Check(args) => args.run(terminal, &configuration),
            Command::Apply(args) => args.run(terminal, &client()?).await,
            Command::Rule(args) => args.run(terminal, &client()?).await,
            Command::Preview(args) => args.run(terminal, &client()?).await,
            Command::SendTest(args) => args.run(terminal, &client()?).await,
            Command::Publish(args) => args.run(terminal, &client()?).await,
            Command::Import(args) => args.run(terminal, &client()?).await,
            Command::Export(args) => args.run(terminal, &client()?).await,
            Command::Exchange(args) => args.run(terminal, &client()?).await,
            Command::Messages(args) => args.run(terminal, &client()?).await,
            Command::Directory(args) => args.run(terminal, &configuration).await,
            Command::Segments(args) => args.run(terminal, &client()?).await,
            Command::Inbox(args) => args.run(terminal, &client()?).await,
            Command::Devices(args) => args.run(terminal, &client()?).await,
            Command::Replica(args) => args.run(terminal, client).await,
            Command::Status(args) => args.run(terminal, &client()?).await,
            Command::Digest(args) => args.run(terminal, &client()?).await,
            Command::Report(args) => args.run(terminal, &client()?).await,
            Command::Trace(args) => args.run(terminal, &client()?).await,
            Command::Subscribers(args) => args.run(terminal, &client()?).await,
            Command::Suppressions(args) => args.run(terminal, &client()?).await,
            Command::Suspended(args) => args.run(terminal, &client()?).await,
            Command::Resend(args) => args.run(terminal, &client()?).await,
            Command::Recover(args) => args.run(terminal, &client()?).await,
            Command::Firings(args) => args.run(terminal, &client()?).await,
            Command::Switch(args) => args.run(terminal, &client()?).await,
            Command::Drain(args) => args.run(terminal, &client()?).await,
            Command::Retention(args) => args.run(terminal, &client()?).await,
            Command::Destinations(args) => args.run(terminal, &client()?).await,
            Command::Endpoints(args) => args.run(terminal, &client()?).await,
            Command::Sources(args) => args.run(terminal, &client()?).await,
            Command::Schedules(args) => args.run(terminal, client).await,
            Command::Chronicles(args) => args.run(terminal, client).await,
            Command::Keys(args) => args.run(terminal, &client()?).await,
            Command::VapidKey(args) => args.run(terminal),
            Command::Doctor(args) => args.run(terminal, &configuration, &connection).await,
            Command::Backup(args) => args.run(terminal, &configuration, client).await,
            Command::Restore(args) => args.run(terminal, &configuration).await,
            Command::Config(args) => args.run(terminal, &configuration),
            Command::Demo(args) => args.run(terminal, &configuration).await,
            Command::Example(args) => args.run(terminal),
            Command::Bench(args) => args.run(terminal).await,
            Command::Capacity(args) => args.run(terminal),
            Command::Mailbox(args) => args.run(terminal).await,
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
        std::fs::create_dir_all(&folder).expect("the folder can be made");
        std::fs::write(&path, generated).expect("the page can be written");
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == generated,
        "docs/reference/{name} is not what the code says; run `UPDATE=1 cargo test -p tocsin`"
    );
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_commands_are_consistent() {
        Cli::command().debug_assert();
    }

    /// An argument of a command with the name of one that all commands take would be read as that.
    #[test]
    fn no_command_hides_what_all_commands_take() {
        fn check(command: &clap::Command, of_all: &[&str], path: &str) {
            for argument in command.get_arguments().filter(|argument| !argument.is_global_set()) {
                let name = argument.get_id().as_str();
                assert!(!of_all.contains(&name), "`{path}` has a `{name}` of its own");
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

    #[test]
    fn the_committed_page_is_the_generated_one() {
        compare_reference("commands.md", &reference::commands_page());
    }
}
