//! Command line of `tocsin-bench`: measures a server binary and its peers.

mod compare; // comparison of two runs
mod report; // results with published numbers

use std::{env, path::PathBuf, time::Instant};

use tocsin_command_line::signals::Signals;

use crate::{
    failure::{Failure, Outcome},
    terminal::{Terminal, duration},
    {
        bench::Bench,
        context::{Context, Settings},
        external_targets::ExternalTargets,
        figures::{ALL, choose},
        report::Report,
        run::Run,
        workloads,
    },
};

/// Arguments of `tocsin-bench`.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    below: Option<BenchCommand>,
    /// Figures to measure; names of published workloads such as WNS-17 are accepted; `all` includes figures that are
    /// measured on request only
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Figures to measure, as a list
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    only: Vec<String>,
    /// Small sizes and one repeat: a smoke test, not quotable
    #[arg(long, visible_alias = "short")]
    quick: bool,
    /// Resume an interrupted run: skip figures that the file has from this version, machine and settings with as many
    /// repeats
    #[arg(long, requires = "out")]
    resume: bool,
    /// Repeats of each figure [default: 5, with --quick 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=100))]
    repeats: Option<u16>,
    /// Output file for the result lines; with --only, other lines of the file stay
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// List the figures without measuring
    #[arg(long)]
    list: bool,
    /// Folder for the servers' data, on the disk to measure [default: the peers' work folder]
    #[arg(long, value_name = "FOLDER")]
    folder: Option<PathBuf>,
    /// Server to measure [default: `tocsin` beside this program]
    #[arg(long, value_name = "FILE")]
    server: Option<PathBuf>,
    /// Folder of the peers' sources
    #[arg(long, value_name = "FOLDER", default_value = "bench/peers")]
    peers: PathBuf,
    #[command(flatten)]
    targets: ExternalTargets,
}

#[derive(Debug, clap::Subcommand)]
enum BenchCommand {
    /// Show results beside published figures
    Report(report::Args),
    /// Compare two runs with a significance test
    Compare(compare::Args),
}

impl Args {
    /// Measures the figures in sequence. Started processes are killed at the end, also on a signal.
    ///
    /// # Errors
    /// If a name is unknown, an external target is unused or unreachable, or a figure fails; the other figures are
    /// still measured.
    pub async fn run(self, terminal: &Terminal) -> Outcome {
        match self.below {
            Some(BenchCommand::Report(args)) => return args.run(terminal),
            Some(BenchCommand::Compare(args)) => return args.run(terminal),
            None => {}
        }
        let names = [self.names, self.only].concat();
        let chosen = choose(&names)?;
        if self.list {
            return list(terminal, if names.is_empty() { &ALL } else { &chosen });
        }
        let figures: Vec<&str> = chosen.iter().map(|bench| bench.name).collect();
        self.targets.check_figures(&figures)?;
        let report = Report::new(self.out, self.resume || !names.is_empty())?;
        let settings = if self.quick { "quick" } else { "full" };
        let settings = match &self.folder {
            Some(folder) => format!("{settings}, data in {}", folder.display()),
            None => settings.to_owned(),
        };
        let repeats = self.repeats.map(usize::from);
        let program = match self.server {
            Some(program) => program,
            None => server_beside_this_program()?,
        };
        let Args { quick, folder, peers, targets, .. } = self;
        let context = Context::new(Settings { quick, repeats, folder, peers, targets, program: Some(program) })?
            .with_display(terminal);
        let run = Run { repeats: Some(context.repeats()), ..Run::now(settings) };
        let mut signals = Signals::new()?;
        let outcome = tokio::select! {
            outcome = measure(terminal, &context, &chosen, report, &run, self.resume) => outcome,
            // Dropping the measurement stops its servers and peers and removes its folders.
            name = signals.next() => Err(Failure::failed(format!("interrupted by {name}; started processes were stopped"))),
        };
        context.progress.end();
        outcome
    }
}

/// The program `tocsin` in the folder of this program, where cargo puts both.
fn server_beside_this_program() -> Outcome<PathBuf> {
    let this = env::current_exe()
        .map_err(|error| Failure::failed("cannot find the path of this executable").because(&error))?;
    // Programs of tests are one folder deeper.
    let found = this.ancestors().skip(1).take(2).map(|folder| folder.join("tocsin")).find(|file| file.is_file());
    found.ok_or_else(|| {
        Failure::failed("there is no program `tocsin` beside this one: build it with `cargo build --release -p tocsin`, or name it with --server FILE")
    })
}

fn list(terminal: &Terminal, benches: &[Bench]) -> Outcome {
    let rows: Vec<Vec<String>> =
        benches.iter().map(|bench| vec![bench.name.to_owned(), bench.about.to_owned()]).collect();
    terminal.table(&["figure", "measurement"], &rows)?;
    let of =
        |bench: &&Bench| workloads::workloads().filter(|workload| workload.figures().contains(&bench.name)).count();
    let published = benches.iter().filter(|bench| of(bench) > 0).count();
    terminal
        .line(format_args!("{published} of them measure published workloads and can be selected by their names"))?;
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
        context.log("this is a debug build: its figures are meaningless");
    }
    context.targets.check_reachable().await?;
    for target in context.targets.all() {
        context.log(target.warning());
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut missed = Vec::new();
    for (at, bench) in benches.iter().enumerate() {
        context.progress.begin(bench.name, at + 1, benches.len());
        context.log(format_args!("== {} ({} of {}): {}", bench.name, at + 1, benches.len(), bench.about));
        let target = context.targets.of(bench.name);
        let run = match &target {
            Some(target) => Run { settings: format!("{}, {target}", run.settings), ..run.clone() },
            None => run.clone(),
        };
        match report.repeats(bench.name, &run).filter(|_| resume) {
            Some(repeats) if repeats >= context.repeats() => {
                context.log("   skipped: measured already");
                continue;
            }
            Some(repeats) => context.log(format_args!("   measured again: the file has only {repeats} repeats")),
            None => {}
        }
        let started = Instant::now();
        match (bench.run)(context).await {
            Ok(figure) => {
                let figure = target.iter().fold(figure, |figure, target| figure.with_condition(target.condition()));
                let figure = figure.with_condition(format!("{cores} cores"));
                let figure = if context.quick { figure.with_condition("quick: nothing to quote") } else { figure };
                let mut line = figure.line(bench.name);
                line.run = Some(run);
                let ratio = line.ratio.as_ref().map(|ratio| format!(", {ratio} times the peer's")).unwrap_or_default();
                context.log(format_args!("   {} {}{ratio}: {}", line.value, line.unit, line.conditions));
                context.log(format_args!("   took {}", duration(started.elapsed())));
                report.add(line)?;
            }
            Err(failure) => {
                context.log(format_args!("   not measured: {failure}"));
                missed.push(bench.name);
            }
        }
    }
    context.progress.end();
    report.print(terminal)?;
    if let Some(file) = report.file() {
        context.log(format_args!("results written to {}", file.display()));
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
    struct TestCli {
        #[command(flatten)]
        args: Args,
    }

    async fn check(arguments: &[&str]) -> Result<String, String> {
        let (terminal, captured) = Terminal::captured();
        let typed = TestCli::parse_from(std::iter::once("x").chain(arguments.iter().copied()));
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
    async fn an_unknown_name_is_refused_before_measuring() {
        let refused = check(&["--only", "deliver.smpt"]).await.expect_err("unknown");
        assert_eq!(refused, "unknown figure `deliver.smpt`; did you mean `deliver.smtp`?");
    }

    #[tokio::test]
    async fn a_result_line_has_the_stable_format() {
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

        let output = check(&["report", &file_name]).await.expect("a report");
        assert!(output.contains("WNS-17") && output.contains("not measured"), "{output}");
        let output = check(&["report", &file_name, "--format", "html"]).await.expect("a report");
        assert!(output.starts_with("<!doctype html>") && output.contains("binary.size"), "{output}");
        let output = check(&["compare", &file_name, &file_name]).await.expect("a comparison");
        assert!(output.contains("binary.size") && output.contains("nothing to compare"), "{output}");
    }

    #[tokio::test]
    async fn a_resumed_run_measures_missing_figures_and_those_with_fewer_repeats() {
        let folder = tempfile::tempdir().expect("a folder");
        let (file, work) = (folder.path().join("latest.ndjson"), folder.path().join("work"));
        let (file_name, work_name) = (file.to_string_lossy().into_owned(), work.to_string_lossy().into_owned());
        let run = async |repeats: &str| {
            let words = ["binary.size", "--quick", "--resume", "--repeats", repeats, "--out", &file_name];
            let printed = check(&[&words[..], &["--folder", &work_name]].concat()).await.expect("resumed");
            // The table has a header and a row per figure.
            let measured = printed.lines().count() - 1;
            let text = std::fs::read_to_string(&file).expect("written");
            let line: serde_json::Value = serde_json::from_str(text.trim_end()).expect("one line of JSON");
            // A size has one sample, whatever the repeats.
            assert_eq!(line["repeats"], 1, "{line}");
            (measured, line["run"]["repeats"].as_u64().expect("a number"))
        };
        assert_eq!(run("2").await, (1, 2), "the file was empty");
        assert_eq!(run("2").await, (0, 2));
        assert_eq!(run("1").await, (0, 2), "fewer repeats are requested");
        assert_eq!(run("3").await, (1, 3), "more repeats are requested");
    }

    #[tokio::test]
    async fn an_unused_or_unreachable_target_is_refused_before_measuring() {
        let refused = check(&["deliver.file", "--smtp", "mail.test:25"]).await.expect_err("no use");
        assert!(refused.starts_with("--smtp is for deliver.smtp, "), "{refused}");
        let refused = check(&["--http", "http://target.test/hook"]).await.expect_err("a whole run");
        assert!(refused.contains("more cannot use an external target"), "{refused}");
        // A server that closes every connection.
        let target = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let server = target.local_addr().expect("an address").to_string();
        let hanging_up = tokio::spawn(async move { while target.accept().await.is_ok() {} });
        let folder = tempfile::tempdir().expect("a folder");
        let work = folder.path().to_string_lossy().into_owned();
        let refused = check(&["deliver.smtp", "--smtp", &server, "--folder", &work]).await.expect_err("silent");
        assert_eq!(refused, format!("no mail server answers at {server}: start it, or give another by --smtp"));
        hanging_up.abort();
    }
}
