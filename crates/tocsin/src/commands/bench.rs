//! Measures this binary, beside others that do the same work.

use std::{path::PathBuf, time::Instant};

use crate::{
    bench::{Bench, Context, Report, Settings, choose, figures::ALL},
    commands::serve::Signals,
    failure::{Failure, Outcome},
    terminal::{Terminal, duration},
};

/// Arguments of `tocsin bench`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Measure these figures only
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    only: Vec<String>,
    /// Small sizes and one repeat: shows that everything works, and is nothing to quote
    #[arg(long)]
    quick: bool,
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
}

impl Args {
    /// Measures one figure after the other. What was started is killed at the end, also when a signal ends it.
    ///
    /// # Errors
    /// A name is unknown, or a figure could not be measured; the others were.
    pub async fn run(self, terminal: &Terminal) -> Outcome {
        let chosen = choose(&self.only)?;
        if self.list {
            return list(terminal, if self.only.is_empty() { &ALL } else { &chosen });
        }
        let report = Report::new(self.out, !self.only.is_empty())?;
        let repeats = self.repeats.map(usize::from);
        let context = Context::new(Settings { quick: self.quick, repeats, folder: self.folder, peers: self.peers })?;
        let mut signals = Signals::new()?;
        tokio::select! {
            outcome = measure(terminal, &context, &chosen, report) => outcome,
            // Whatever the measurement holds ends with it: servers, peers, folders.
            name = signals.next() => Err(Failure::failed(format!("interrupted by {name}; what was started has been stopped"))),
        }
    }
}

fn list(terminal: &Terminal, benches: &[Bench]) -> Outcome {
    let rows: Vec<Vec<String>> =
        benches.iter().map(|bench| vec![bench.name.to_owned(), bench.about.to_owned()]).collect();
    terminal.table(&["figure", "what is measured"], &rows)?;
    Ok(())
}

async fn measure(terminal: &Terminal, context: &Context, benches: &[Bench], mut report: Report) -> Outcome {
    if cfg!(debug_assertions) {
        context.tell("this is a debug build: its figures mean nothing");
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut missed = Vec::new();
    for (at, bench) in benches.iter().enumerate() {
        context.tell(format_args!("== {} ({} of {}): {}", bench.name, at + 1, benches.len(), bench.about));
        let started = Instant::now();
        match (bench.run)(context).await {
            Ok(figure) => {
                let figure = figure.under(format!("{cores} cores"));
                let figure = if context.quick { figure.under("quick: nothing to quote") } else { figure };
                let line = figure.line(bench.name);
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
        assert_eq!(names, ALL.map(|bench| bench.name));
        assert!(listed.contains("match.memory.10m"), "{listed}");
        let some = check(&["--list", "--only", "case.stock,deliver.smtp"]).await.expect("a list");
        assert_eq!(some.lines().count(), 3, "{some}");
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
        assert_eq!(keys, ["name", "unit", "value", "low", "high", "repeats", "conditions"]);
        assert_eq!((&line["name"], &line["unit"]), (&"binary.size".into(), &"MB".into()));
        assert!(line["conditions"].as_str().is_some_and(|text| text.contains("quick: nothing to quote")), "{line}");
    }
}
