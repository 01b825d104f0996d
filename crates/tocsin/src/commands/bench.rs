//! Measures this binary, beside others that do the same work.

mod compare; // two runs beside each other
mod report; // a run beside what was published
mod users; // people who come and go, as a profile says
mod vectors; // what operations cost

use std::{path::PathBuf, time::Instant};

use crate::{
    bench::{Bench, Context, Given, Report, Settings, choose, figures::ALL, results::Run, workloads},
    commands::serve::Signals,
    failure::{Failure, Outcome},
    terminal::{Terminal, duration},
};

/// Arguments of `tocsin bench`.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    below: Option<Below>,
    /// Measure these figures only; published workloads have names as well, such as WNS-17; `all` is every figure, also those that are measured only when they are named
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// The same as a list
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    only: Vec<String>,
    /// Small sizes and one repeat: shows that everything works, and is nothing to quote
    #[arg(long, visible_alias = "short")]
    quick: bool,
    /// Go on with a run that was interrupted: what the file has of this version, machine and settings is not measured again,
    /// unless it was measured less often
    #[arg(long, requires = "out")]
    resume: bool,
    /// How often each is measured [default: 5, with --quick 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=100))]
    repeats: Option<u16>,
    /// Write the lines to this file as well; with --only, lines of other figures stay in it
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Name the figures and measure nothing
    #[arg(long)]
    list: bool,
    /// Where the servers' data lie while they are measured, since the disk matters [default: in the peers' work folder]
    #[arg(long, value_name = "FOLDER")]
    folder: Option<PathBuf>,
    /// The sources of the peers
    #[arg(long, value_name = "FOLDER", default_value = "bench/peers")]
    peers: PathBuf,
    #[command(flatten)]
    given: Given,
}

#[derive(Debug, clap::Subcommand)]
enum Below {
    /// Shows results beside what papers published, as a page or a table
    Report(report::Args),
    /// Says whether one run was faster than another, or only luckier
    Compare(compare::Args),
    /// Plays the people of a capacity profile: they come, think, ask and leave
    Users(users::Args),
    /// Measures what operations cost, for `tocsin capacity`
    Vectors(vectors::Args),
}

impl Args {
    /// Measures one figure after the other. What was started is killed at the end, also when a signal ends it.
    ///
    /// # Errors
    /// A name is unknown, a far end that was given has no use or does not answer, or a figure could not be measured; the
    /// others were.
    pub async fn run(self, terminal: &Terminal) -> Outcome {
        match self.below {
            Some(Below::Report(args)) => return args.run(terminal),
            Some(Below::Compare(args)) => return args.run(terminal),
            Some(Below::Users(args)) => return args.run(terminal).await,
            Some(Below::Vectors(args)) => return args.run(terminal).await,
            None => {}
        }
        let names = [self.names, self.only].concat();
        let chosen = choose(&names)?;
        if self.list {
            return list(terminal, if names.is_empty() { &ALL } else { &chosen });
        }
        self.given.must_fit(&chosen)?;
        let report = Report::new(self.out, self.resume || !names.is_empty())?;
        let settings = if self.quick { "quick" } else { "full" };
        let settings = match &self.folder {
            Some(folder) => format!("{settings}, data in {}", folder.display()),
            None => settings.to_owned(),
        };
        let repeats = self.repeats.map(usize::from);
        let Args { quick, folder, peers, given, .. } = self;
        let context = Context::new(Settings { quick, repeats, folder, peers, given })?.shown_on(terminal);
        let run = Run { repeats: Some(context.repeats()), ..Run::now(settings) };
        let mut signals = Signals::new()?;
        let outcome = tokio::select! {
            outcome = measure(terminal, &context, &chosen, report, &run, self.resume) => outcome,
            // Whatever the measurement holds ends with it: servers, peers, folders.
            name = signals.next() => Err(Failure::failed(format!("interrupted by {name}; what was started has been stopped"))),
        };
        context.progress.end();
        outcome
    }
}

fn list(terminal: &Terminal, benches: &[Bench]) -> Outcome {
    let rows: Vec<Vec<String>> =
        benches.iter().map(|bench| vec![bench.name.to_owned(), bench.about.to_owned()]).collect();
    terminal.table(&["figure", "what is measured"], &rows)?;
    let of =
        |bench: &&Bench| workloads::workloads().filter(|workload| workload.figures().contains(&bench.name)).count();
    let published = benches.iter().filter(|bench| of(bench) > 0).count();
    terminal.line(format_args!(
        "{published} of them are the work of published workloads, by whose names they can be asked for"
    ))?;
    Ok(())
}

async fn measure(
    terminal: &Terminal,
    context: &Context,
    benches: &[Bench],
    mut report: Report,
    run: &Run,
    resume: bool,
) -> Outcome {
    if cfg!(debug_assertions) {
        context.tell("this is a debug build: its figures mean nothing");
    }
    context.given.must_answer().await?;
    for far in context.given.all() {
        context.tell(far.warning());
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut missed = Vec::new();
    for (at, bench) in benches.iter().enumerate() {
        context.progress.begin(bench.name, at + 1, benches.len());
        context.tell(format_args!("== {} ({} of {}): {}", bench.name, at + 1, benches.len(), bench.about));
        let far = context.given.of(bench.name);
        let run = match &far {
            Some(far) => Run { settings: format!("{}, {far}", run.settings), ..run.clone() },
            None => run.clone(),
        };
        match report.repeats(bench.name, &run).filter(|_| resume) {
            Some(repeats) if repeats >= context.repeats() => {
                context.tell("   is there already");
                continue;
            }
            Some(repeats) => context.tell(format_args!("   is there for {repeats} repeats only, and is measured anew")),
            None => {}
        }
        let started = Instant::now();
        match (bench.run)(context).await {
            Ok(figure) => {
                let figure = far.iter().fold(figure, |figure, far| figure.under(far.condition()));
                let figure = figure.under(format!("{cores} cores"));
                let figure = if context.quick { figure.under("quick: nothing to quote") } else { figure };
                let mut line = figure.line(bench.name);
                line.run = Some(run);
                let ratio = line.ratio.as_ref().map(|ratio| format!(", {ratio} times the peer's")).unwrap_or_default();
                context.tell(format_args!("   {} {}{ratio}: {}", line.value, line.unit, line.conditions));
                context.tell(format_args!("   took {}", duration(started.elapsed())));
                report.add(line)?;
            }
            Err(failure) => {
                context.tell(format_args!("   not measured: {failure}"));
                missed.push(bench.name);
            }
        }
    }
    context.progress.end();
    report.print(terminal)?;
    if let Some(file) = report.file() {
        context.tell(format_args!("the lines are in {}", file.display()));
    }
    if missed.is_empty() {
        return Ok(());
    }
    Err(Failure::failed(format!("not measured: {}; the reasons are above", missed.join(", "))))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Typed {
        #[command(flatten)]
        args: Args,
    }

    async fn check(arguments: &[&str]) -> Result<String, String> {
        let (terminal, captured) = Terminal::captured();
        let typed = Typed::parse_from(std::iter::once("x").chain(arguments.iter().copied()));
        typed.args.run(&terminal).await.map(|()| captured.text()).map_err(|failure| failure.message)
    }

    #[tokio::test]
    async fn the_list_names_every_figure_and_measures_none() {
        let listed = check(&["--list"]).await.expect("a list");
        let names: Vec<&str> = listed.lines().skip(1).filter_map(|line| line.split_whitespace().next()).collect();
        assert_eq!(names[..ALL.len()], ALL.iter().map(|bench| bench.name).collect::<Vec<_>>());
        assert!(listed.contains("match.memory.10m"), "{listed}");
        let some = check(&["--list", "--only", "case.stock,deliver.smtp"]).await.expect("a list");
        assert_eq!(some.lines().count(), 4, "{some}");
    }

    #[tokio::test]
    async fn an_unknown_name_is_refused_before_anything_is_measured() {
        let refused = check(&["--only", "deliver.smpt"]).await.expect_err("unknown");
        assert_eq!(refused, "there is no figure `deliver.smpt`; did you mean `deliver.smtp`?");
    }

    #[tokio::test]
    async fn a_line_of_the_file_has_the_form_on_record() {
        let folder = tempfile::tempdir().expect("a folder");
        let (file, work) = (folder.path().join("latest.ndjson"), folder.path().join("work"));
        let (file_name, work_name) = (file.to_string_lossy().into_owned(), work.to_string_lossy().into_owned());
        check(&["--only", "binary.size", "--quick", "--out", &file_name, "--folder", &work_name])
            .await
            .expect("measured");
        let text = std::fs::read_to_string(&file).expect("written");
        let line: serde_json::Value = serde_json::from_str(text.trim_end()).expect("one line of JSON");
        let keys: Vec<&str> = line.as_object().expect("an object").keys().map(String::as_str).collect();
        assert_eq!(keys, ["name", "unit", "value", "low", "high", "repeats", "conditions", "samples", "run"]);
        assert_eq!((&line["name"], &line["unit"]), (&"binary.size".into(), &"MB".into()));
        assert!(line["conditions"].as_str().is_some_and(|text| text.contains("quick: nothing to quote")), "{line}");
        assert_eq!(line["run"]["version"], env!("CARGO_PKG_VERSION"));

        let told = check(&["report", &file_name]).await.expect("a report");
        assert!(told.contains("WNS-17") && told.contains("not measured"), "{told}");
        let told = check(&["report", &file_name, "--format", "html"]).await.expect("a report");
        assert!(told.starts_with("<!doctype html>") && told.contains("binary.size"), "{told}");
        let told = check(&["compare", &file_name, &file_name]).await.expect("a comparison");
        assert!(told.contains("binary.size") && told.contains("nothing to compare"), "{told}");
    }

    #[tokio::test]
    async fn a_resumed_run_measures_what_is_missing_or_was_measured_less_often() {
        let folder = tempfile::tempdir().expect("a folder");
        let (file, work) = (folder.path().join("latest.ndjson"), folder.path().join("work"));
        let (file_name, work_name) = (file.to_string_lossy().into_owned(), work.to_string_lossy().into_owned());
        let run = async |repeats: &str| {
            let words = ["binary.size", "--quick", "--resume", "--repeats", repeats, "--out", &file_name];
            let printed = check(&[&words[..], &["--folder", &work_name]].concat()).await.expect("resumed");
            // The table has a head, and a row for what was measured.
            let measured = printed.lines().count() - 1;
            let text = std::fs::read_to_string(&file).expect("written");
            let line: serde_json::Value = serde_json::from_str(text.trim_end()).expect("one line of JSON");
            // However often it is to be measured, a size has one sample.
            assert_eq!(line["repeats"], 1, "{line}");
            (measured, line["run"]["repeats"].as_u64().expect("a number"))
        };
        assert_eq!(run("2").await, (1, 2), "there was nothing");
        assert_eq!(run("2").await, (0, 2));
        assert_eq!(run("1").await, (0, 2), "fewer are wanted now");
        assert_eq!(run("3").await, (1, 3), "more are wanted now");
    }

    #[tokio::test]
    async fn a_given_far_end_without_use_is_refused_before_anything_is_measured() {
        let refused = check(&["deliver.file", "--smtp", "mail.test:25"]).await.expect_err("no use");
        assert!(refused.starts_with("--smtp is for deliver.smtp, "), "{refused}");
        let refused = check(&["--http", "http://far.test/hook"]).await.expect_err("a whole run");
        assert!(refused.contains("more cannot use a given far end"), "{refused}");
        // Somebody listens there who hangs up on everybody.
        let far = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let server = far.local_addr().expect("an address").to_string();
        let hanging_up = tokio::spawn(async move { while far.accept().await.is_ok() {} });
        let folder = tempfile::tempdir().expect("a folder");
        let work = folder.path().to_string_lossy().into_owned();
        let refused = check(&["deliver.smtp", "--smtp", &server, "--folder", &work]).await.expect_err("silent");
        assert_eq!(refused, format!("no mail server answers at {server}: start it, or give another by --smtp"));
        hanging_up.abort();
    }
}
