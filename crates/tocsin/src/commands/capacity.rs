//! Command `capacity`: sizes an installation from a load profile and measured costs, without a server; derives a profile
//! from the activity of a server.

use std::{
    fs,
    path::{Path, PathBuf},
};

use clap::{Subcommand, ValueEnum};
use serde_json::json;
use tocsin_capacity::{
    page::{self, clock, plan_page, role_row, sweep_row},
    papers::{PAPERS, Paper, Statement},
    plan::{Plan, plan},
    plot::short,
    profile::{Profile, Roles},
    read_profile, read_vectors,
    vectors::Vectors,
    what_if::{Sensitivity, SweepResult, assumptions, parse_sweep, sensitivities, sweep},
};
use tocsin_model::problem::Problem;

use crate::{
    client::Client,
    failure::{Failure, Outcome},
    problems::compiler_format,
    terminal::{Colour, Terminal},
};

/// Maximum size of a profile or vectors file in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Number of assumptions in the text output; HTML and JSON have all.
const SENSITIVITIES_SHOWN: usize = 8;

/// Arguments of `tocsin capacity`.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Args {
    #[command(subcommand)]
    what: Option<Action>,
    /// Load profile, a YAML file
    #[arg(required_unless_present_any = ["paper", "papers"])]
    profile: Option<PathBuf>,
    /// Measured costs per operation, a YAML or JSON file
    #[arg(long, value_name = "FILE", required_unless_present_any = ["paper", "papers"])]
    vectors: Option<PathBuf>,
    /// Published example, with the costs published with it
    #[arg(long, value_name = "NAME", conflicts_with_all = ["profile", "vectors"])]
    paper: Option<String>,
    /// List the published examples
    #[arg(long, conflicts_with_all = ["profile", "vectors", "paper"])]
    papers: bool,
    /// Print the profile and costs of the example, as a template for your own
    #[arg(long, requires = "paper")]
    show: bool,
    /// Other values of an assumption: `events.quotes.rate=2x,4x`, `channels.mail.answer=5ms,50ms`, `nodes=1,2,3`
    #[arg(long, value_name = "NAME=VALUE,...")]
    what_if: Vec<String>,
    /// Output format
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
    /// Output file; default is standard output
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Derive a load profile from the activity of a server
    #[command(after_help = "The key needs the scope operations:read. Hours of the day are in UTC.")]
    Profile {
        /// Start, such as 2026-11-22T00:00:00Z; default is seven days before the end
        #[arg(long, value_name = "TIME")]
        from: Option<String>,
        /// End; default is now
        #[arg(long, value_name = "TIME")]
        to: Option<String>,
        /// Name of the profile
        #[arg(long, default_value = "recorded")]
        name: String,
        /// Output file; default is standard output
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
        /// Print JSON
        #[arg(long, conflicts_with = "out")]
        json: bool,
    },
}

impl Action {
    async fn run(self, terminal: &Terminal, client: &Client) -> Outcome {
        let Action::Profile { from, to, name, out, json } = self;
        let mut query = vec![("name", name)];
        query.extend(from.map(|from| ("from", from)));
        query.extend(to.map(|to| ("to", to)));
        let query: Vec<(&str, &str)> = query.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let recorded = client.get("/v1/capacity/profile", &query).await?;
        if json {
            return Ok(terminal.json(&recorded)?);
        }
        let notes = recorded["notes"].as_array().into_iter().flatten().filter_map(serde_json::Value::as_str);
        let notes: String = notes.map(|note| format!("# {note}\n")).collect();
        let text = format!("{notes}{}", recorded["profile"].as_str().unwrap_or_default());
        match out {
            None => Ok(terminal.line(text.trim_end())?),
            Some(file) => {
                fs::write(&file, text).map_err(|error| Failure::file("write", &file, &error))?;
                Ok(terminal.line(file.display())?)
            }
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Text for a terminal
    Text,
    /// JSON for programs
    Json,
    /// Self-contained HTML page with plots
    Html,
}

/// Plan of a profile, with its sensitivities.
struct PlanReport {
    plan: Plan,
    sensitivities: Vec<Sensitivity>,
    tried: Vec<SweepResult>,
    statements: Vec<Statement>,
    /// Assumptions that can be varied, with their values.
    assumptions: Vec<(String, f64)>,
}

impl Args {
    /// Reads the profile, plans and prints.
    ///
    /// # Errors
    /// If a file cannot be read or is invalid, or an assumption is unknown; for a derived profile if the server does not
    /// respond.
    pub async fn run(mut self, terminal: &Terminal, client: impl FnOnce() -> Outcome<Client>) -> Outcome {
        match self.what.take() {
            Some(action) => action.run(terminal, &client()?).await,
            None => self.plan(terminal),
        }
    }

    fn plan(self, terminal: &Terminal) -> Outcome {
        if self.papers {
            let rows: Vec<Vec<String>> =
                PAPERS.iter().map(|paper| vec![paper.name.to_owned(), paper.about.to_owned()]).collect();
            return Ok(terminal.table(&["example", "question"], &rows)?);
        }
        let paper = self.paper.as_deref().map(find).transpose()?;
        if let Some(paper) = paper.filter(|_| self.show) {
            return Ok(terminal.line(format_args!("{}---\n{}", paper.profile, paper.vectors.trim_end()))?);
        }
        let answer = self.answer(paper, terminal)?;
        let written = match self.format {
            Format::Json => serde_json::to_string_pretty(&json!({
                "plan": answer.plan,
                "sensitivities": answer.sensitivities,
                "what_if": answer.tried,
                "statements": answer.statements,
                "assumptions": answer.assumptions.iter().map(|(name, value)| json!({"name": name, "value": value})).collect::<Vec<_>>(),
            }))
            .expect("a plan is serializable"),
            Format::Html => plan_page(&answer.plan, &answer.sensitivities, &answer.tried, &answer.statements),
            Format::Text if self.out.is_none() => return answer.print(terminal),
            Format::Text => {
                let (into, captured) = Terminal::captured();
                answer.print(&into)?;
                captured.text()
            }
        };
        match &self.out {
            None => Ok(terminal.line(written.trim_end())?),
            Some(file) => {
                fs::write(file, written).map_err(|error| Failure::file("write", file, &error))?;
                Ok(terminal.line(file.display())?)
            }
        }
    }

    fn answer(&self, paper: Option<&'static Paper>, terminal: &Terminal) -> Outcome<PlanReport> {
        let file = self.profile.clone().unwrap_or_default();
        let (profile, vectors) = match paper {
            Some(paper) => paper.read(),
            None => {
                let vectors = self.vectors.clone().unwrap_or_default();
                (read(&file, read_profile, terminal)?, read(&vectors, read_vectors, terminal)?)
            }
        };
        let refuse = |problems| refused(&file, problems, terminal);
        let plan = plan(&profile, &vectors).map_err(refuse)?;
        let tried = self.tried(&profile, &vectors, &file, terminal)?;
        Ok(PlanReport {
            sensitivities: sensitivities(&profile, &vectors).map_err(refuse)?,
            tried,
            statements: paper.map(|paper| (paper.statements)(&plan)).unwrap_or_default(),
            assumptions: assumptions(&profile),
            plan,
        })
    }

    fn tried(
        &self,
        profile: &Profile,
        vectors: &Vectors,
        file: &Path,
        terminal: &Terminal,
    ) -> Outcome<Vec<SweepResult>> {
        let mut tried = Vec::new();
        for text in &self.what_if {
            let asked = parse_sweep(profile, text).map_err(|problem| Failure::usage(problem.to_string()))?;
            tried.extend(sweep(profile, vectors, &asked).map_err(|problems| refused(file, problems, terminal))?);
        }
        Ok(tried)
    }
}

fn find(name: &str) -> Outcome<&'static Paper> {
    Paper::find(name).ok_or_else(|| {
        let names: Vec<&str> = PAPERS.iter().map(|paper| paper.name).collect();
        Failure::usage(format!("unknown example `{name}`; expected one of {}", names.join(", ")))
    })
}

/// Reads a profile or vectors file; prints its problems in compiler format.
///
/// # Errors
/// If the file is too long, cannot be read, or is invalid.
pub fn read<T>(file: &Path, read: impl Fn(&str) -> Result<T, Vec<Problem>>, terminal: &Terminal) -> Outcome<T> {
    let length = fs::metadata(file).map_err(|error| Failure::file("read", file, &error))?.len();
    if length > FILE_BYTES_MAX {
        return Err(Failure::failed(format!("{} has {length} bytes; the maximum is {FILE_BYTES_MAX}", file.display())));
    }
    let text = fs::read_to_string(file).map_err(|error| Failure::file("read", file, &error))?;
    read(&text).map_err(|problems| refused(file, problems, terminal))
}

/// Prints the problems in compiler format.
fn refused(file: &Path, problems: Vec<Problem>, terminal: &Terminal) -> Failure {
    for problem in &problems {
        if let Err(error) = terminal.line(terminal.paint(Colour::Red, compiler_format(file, problem))) {
            return error.into();
        }
    }
    Failure::failed(if problems.len() == 1 { "1 problem".to_owned() } else { format!("{} problems", problems.len()) })
}

impl PlanReport {
    fn print(&self, terminal: &Terminal) -> Outcome {
        let plan = &self.plan;
        let nodes = if plan.nodes == 1 { "1 node".to_owned() } else { format!("{} nodes", plan.nodes) };
        terminal.line(terminal.paint(Colour::Bold, format_args!("{}: {nodes}", plan.profile)))?;
        terminal.line(format_args!("by the costs of `{}`", plan.vectors))?;
        self.print_statements(terminal)?;
        self.print_bottlenecks(terminal)?;
        self.print_roles(terminal)?;
        self.print_uses(terminal)?;
        self.print_day(terminal)?;
        self.print_assumptions(terminal)?;
        for note in &plan.notes {
            terminal.line(terminal.paint(Colour::Yellow, format_args!("note: {note}")))?;
        }
        Ok(())
    }

    fn print_statements(&self, terminal: &Terminal) -> Outcome {
        if self.statements.is_empty() {
            return Ok(());
        }
        terminal.line("\nPublished statements:")?;
        for statement in &self.statements {
            terminal.line(format_args!("  {}", statement.said))?;
            terminal.line(format_args!("    {}: {}", statement.verdict.word(), statement.computed))?;
        }
        Ok(())
    }

    fn print_bottlenecks(&self, terminal: &Terminal) -> Outcome {
        terminal.line("\nFirst bottlenecks:")?;
        let rows: Vec<Vec<String>> = self
            .plan
            .bottlenecks
            .iter()
            .map(|found| vec![found.what.clone(), format!("{:.1} %", found.utilisation * 100.0), short(found.grows_by)])
            .collect();
        terminal.table(&["resource", "in use", "load may grow by"], &rows)?;
        if let Some(users) = &self.plan.users {
            terminal.line(format_args!(
                "a node carries {:.0} users, all nodes {:.0}; the profile has {:.0}",
                users.each_node, users.at_most, users.asked
            ))?;
        }
        Ok(())
    }

    fn print_roles(&self, terminal: &Terminal) -> Outcome {
        if self.plan.roles == Roles::Together {
            return Ok(());
        }
        terminal.line("\nRoles on separate nodes:")?;
        let heads = page::ROLE_COLUMNS.map(|column| column.title());
        let rows: Vec<Vec<String>> = self.plan.stations.iter().map(role_row).collect();
        Ok(terminal.table(&heads, &rows)?)
    }

    fn print_uses(&self, terminal: &Terminal) -> Outcome {
        let plan = &self.plan;
        terminal.line("\nResource use at the peak:")?;
        let rows: Vec<Vec<String>> = plan
            .each_role
            .iter()
            .flat_map(|station| {
                station.uses.iter().map(|used| {
                    vec![
                        station.name.clone(),
                        used.resource.word().to_owned(),
                        short(used.peak),
                        used.node_has.map_or_else(|| "unknown".to_owned(), short),
                        used.nodes_busy.map_or_else(String::new, short),
                    ]
                })
            })
            .collect();
        terminal.table(&["role", "resource", "per second", "per node", "nodes busy"], &rows)?;
        for channel in &plan.channels {
            let most = channel.rate_max.map_or_else(String::new, |most| format!(" of at most {}", short(most)));
            let needed =
                channel.connections_needed.map_or_else(String::new, |needed| format!(", {needed} connections"));
            terminal.line(format_args!(
                "channel {}: {} per second{most}{needed}",
                channel.name,
                short(channel.peak)
            ))?;
        }
        Ok(terminal.line(format_args!(
            "memory {} MB, of which {} MB base; disk {} MB per day, {} MB stored",
            short(plan.memory.base_mb + plan.memory.stored_mb),
            short(plan.memory.base_mb),
            short(plan.disk.written_mb_per_day),
            short(plan.disk.kept_mb)
        ))?)
    }

    fn print_day(&self, terminal: &Terminal) -> Outcome {
        let day = &self.plan.day;
        terminal.line(format_args!(
            "\nThe day: p50 {} s, p95 {} s, p99 {} s end to end",
            short(day.p50),
            short(day.p95),
            short(day.p99)
        ))?;
        for path in day.paths.iter().filter(|_| day.paths.len() > 1) {
            let [p50, p95, p99] = [path.p50, path.p95, path.p99].map(short);
            terminal.line(format_args!("  {}: p50 {p50} s, p95 {p95} s, p99 {p99} s", path.name))?;
        }
        for goal in &day.goals {
            let word =
                if goal.met { terminal.paint(Colour::Green, "met") } else { terminal.paint(Colour::Red, "missed") };
            terminal.line(format_args!("  {} at most {} s: {word}", goal.name, short(goal.wanted)))?;
        }
        for station in day.stations.iter().filter(|station| station.backlog_peak > 0.0) {
            let done = match station.drained_at {
                Some(at) => format!("the queue is empty from {}", clock(at)),
                None => format!("{} are queued at midnight", short(station.left_at_midnight)),
            };
            terminal.line(format_args!(
                "  {}: {} `{}` wait at {}, the last for {} s; {done}",
                station.name,
                short(station.backlog_peak),
                station.item,
                clock(station.backlog_peak_at),
                short(station.backlog_peak_seconds)
            ))?;
        }
        Ok(())
    }

    fn print_assumptions(&self, terminal: &Terminal) -> Outcome {
        if !self.tried.is_empty() {
            terminal.line("\nOther assumptions:")?;
            let heads = page::SWEEP_COLUMNS.map(|column| column.title());
            let rows: Vec<Vec<String>> = self.tried.iter().map(sweep_row).collect();
            terminal.table(&heads, &rows)?;
        }
        terminal.line("\nSensitivity to assumptions:")?;
        let rows: Vec<Vec<String>> = self
            .sensitivities
            .iter()
            .take(SENSITIVITIES_SHOWN)
            .map(|found| vec![found.name.clone(), short(found.value), format!("{:+.2} %", found.elasticity)])
            .collect();
        Ok(terminal.table(&["assumption", "value", "more load per 1 % increase"], &rows)?)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::commands::fake_server::FakeServer;

    #[test]
    fn the_committed_schemas_are_up_to_date() {
        let schemas = [
            ("profile.schema.json", tocsin_capacity::profile_json_schema()),
            ("vectors.schema.json", tocsin_capacity::vectors_json_schema()),
        ];
        for (name, schema) in schemas {
            let text = serde_json::to_string_pretty(&schema).expect("JSON") + "\n";
            crate::cli::compare_reference(name, &text);
        }
    }

    const PROFILE: &str = "profile: shop
target: { p95: 2s }
populations:
  people: { users: 1000, operations_per_visit: 10, visit: 20m, shares: { search: 90, buy: 10 }, stored_each: { basket: 1 } }
events:
  orders: { rate: { count: 100, per: 1s }, batch: 10, matches: 5, channels: { mail: 100 } }
channels: { mail: { connections: 10, answer: 10ms } }
stored: { basket: 1000 }
day: { peaks: [{ at: \"18:00\", lasts: 1h, times: 3 }] }
";
    const VECTORS: &str = r#"{"vectors": "test", "machine": {"cores": 2, "memory_mb": 1000, "syncs_per_second": 1000},
        "base_memory_mb": 40, "stored": {"basket": {"memory_bytes": 100, "disk_bytes": 1000}},
        "operations": {
            "search": {"roles": {"directory": {"processor_us": {"item": 50}}}},
            "buy": {"roles": {"directory": {"processor_us": {"item": 200}, "syncs": {"item": 1}, "disk_bytes": {"item": 4096}}}},
            "accept": {"roles": {"accept": {"processor_us": {"batch": 50, "item": 2, "kilobyte": 1}, "syncs": {"batch": 1}}}},
            "deliver.mail": {"roles": {"deliver": {"processor_us": {"item": 80}}}}}}"#;

    #[derive(Parser)]
    struct TestCli {
        #[command(flatten)]
        args: Args,
    }

    /// Output for a profile and vectors with additional arguments.
    fn output_of(profile: &str, vectors: &str, words: &[&str]) -> String {
        let folder = tempfile::tempdir().expect("a folder");
        let name = |name: &str, text: &str| {
            let file = folder.path().join(name);
            fs::write(&file, text).expect("written");
            file.to_string_lossy().into_owned()
        };
        let (profile, vectors) = (name("shop.yaml", profile), name("vectors.json", vectors));
        let all = ["x", &profile, "--vectors", &vectors].into_iter().chain(words.iter().copied());
        output(all).replace(&*folder.path().to_string_lossy(), "")
    }

    fn output<'a>(words: impl Iterator<Item = &'a str>) -> String {
        let (terminal, captured) = Terminal::captured();
        let end = TestCli::parse_from(words).args.plan(&terminal);
        let end = end.map_or_else(|failure| format!("failed: {}\n", failure.message), |()| String::new());
        captured.text() + &end
    }

    #[test]
    fn a_profile_is_planned_and_printed() {
        let text =
            output_of(PROFILE, VECTORS, &["--what-if", "channels.mail.connections=2x,40", "--what-if", "nodes=3"]);
        for piece in [
            "shop: 1 node",
            "channel `mail`",
            "1500 per second of at most 1000, 22 connections",
            "`deliver.mail` wait at 19:00",
            "p95 at most 2 s: missed",
            "channels.mail.connections",
            "note: the vectors do not contain `match`",
        ] {
            assert!(text.contains(piece), "{piece}: {text}");
        }
    }

    #[tokio::test]
    async fn a_profile_is_derived_from_the_activity_of_a_server() {
        let recorded = json!({"profile": "profile: recorded\n", "notes": ["no event was recorded"], "events": 0});
        let server = FakeServer::start(vec![(200, recorded)]).await;
        let (terminal, captured) = Terminal::captured();
        let args = TestCli::parse_from(["x", "profile", "--from", "2026-11-01T00:00:00Z"]).args;
        args.run(&terminal, || Ok(server.client())).await.expect("derived");
        assert_eq!(captured.text(), "# no event was recorded\nprofile: recorded\n");
        let requests = server.requests().join("\n");
        assert!(requests.contains("GET /v1/capacity/profile?name=recorded&from=2026-11-01T00"), "{requests}");
    }

    #[test]
    fn separate_roles_have_a_row_each() {
        let vectors = VECTORS.replace("\"cores\": 2,", "\"cores\": 2, \"disk_mb_per_second\": 1,");
        // At the peak 30 event commits per second, 1,500 mails, and 25 directory operations, of which 2.5 write 10 KB.
        let apart = PROFILE.replace("target:", "roles: apart\ntarget:");
        let text = output_of(&apart, &vectors, &[]);
        for piece in [
            "Roles on separate nodes:",
            "role       nodes  % in use  load can grow by  bottleneck  next",
            "accept     1      3.0       23.3              syncs       processor at 0.1 %",
            "deliver    1      6.0       11.7              processor",
            "directory  1      1.0       68.4              disk        syncs at 0.",
            "  events: p50 ",
            "  directory: p50 ",
        ] {
            assert!(text.contains(piece), "{piece}: {text}");
        }
        assert!(!output_of(PROFILE, &vectors, &[]).contains("Roles on"), "the roles share nodes");
        let json: serde_json::Value =
            serde_json::from_str(&output_of(&apart, &vectors, &["--format", "json"])).expect("JSON");
        let first = json["plan"]["stations"].as_array().expect("stations").iter().map(|station| {
            let first = &station["bottlenecks"][0];
            (station["name"].as_str().expect("a name"), first["what"].as_str().expect("a resource"))
        });
        let first: Vec<_> = first.collect();
        assert_eq!(first, [("accept", "syncs"), ("deliver", "processor"), ("directory", "disk")]);
        assert!(output_of(&apart, &vectors, &["--format", "html"]).contains("Roles on separate nodes"));
    }

    #[test]
    fn a_plan_is_json_or_a_page() {
        let json: serde_json::Value =
            serde_json::from_str(&output_of(PROFILE, VECTORS, &["--format", "json"])).expect("JSON");
        assert_eq!(json["plan"]["nodes"], 1);
        assert_eq!(json["plan"]["memory"]["stored_mb"], 0.2);
        assert_eq!(json["plan"]["bottlenecks"][0]["what"], "channel `mail`");
        let page = output_of(PROFILE, VECTORS, &["--format", "html", "--what-if", "events.orders.rate=x1,x2,x4"]);
        assert!(page.starts_with("<!doctype html>") && page.trim_end().ends_with("</html>"), "{page}");
        for piece in ["<svg", "Sensitivity", "Other assumptions", "events.orders.rate"] {
            assert!(page.contains(piece), "{piece}");
        }
        assert!(
            !page.contains("<script") && !page.contains("http://") && !page.contains("NaN"),
            "the page is not self-contained"
        );
    }

    #[test]
    fn problems_are_printed_with_file_and_line() {
        let wrong = output_of("profile: a\nevents:\n  b: { rate: { count: 1, per: 1s }, matchs: 4 }\n", VECTORS, &[]);
        let expected =
            "/shop.yaml:3:37: events.b.matchs: is not known here; did you mean `matches`?\nfailed: 1 problem\n";
        assert_eq!(wrong, expected);
        let wrong = output_of(&PROFILE.replace("search: 90", "serch: 90"), VECTORS, &[]);
        assert!(
            wrong.contains("populations.people: uses `serch`") && wrong.contains("did you mean `search`?"),
            "{wrong}"
        );
        let wrong = output_of(PROFILE, VECTORS, &["--what-if", "events.orders.rat=2x"]);
        assert!(wrong.contains("did you mean `events.orders.rate`?"), "{wrong}");
        let wrong = output_of(PROFILE, VECTORS, &["--what-if", "events.orders.rate=much"]);
        assert!(wrong.contains("cannot be `much`; give a number"), "{wrong}");
        assert!(output(["x", "--paper", "moon"].into_iter()).contains("unknown example `moon`; expected one of peak"));
    }

    #[test]
    fn published_examples_are_listed_shown_and_checked() {
        assert!(output(["x", "--papers"].into_iter()).contains("site-server  users of"));
        let shown = output(["x", "--paper", "peak", "--show"].into_iter());
        assert!(shown.contains("profile: peak") && shown.contains("vectors: distributor"), "{shown}");
        let output = output(["x", "--paper", "site-server"].into_iter());
        assert!(output.contains("contradicts: these are 90 %"), "{output}");
    }
}
