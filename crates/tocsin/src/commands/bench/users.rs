//! Plays the people of a capacity profile against a server of this binary.

use std::{path::PathBuf, time::Duration};

use tocsin_capacity::read_profile;

use crate::{
    bench::{
        Context, Report, Settings,
        figure::rounded,
        results::Run,
        visits::{Play, Played, play},
    },
    commands::{capacity, serve::Signals},
    failure::{Failure, Outcome},
    terminal::Terminal,
};

/// Arguments of `tocsin bench users`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The profile, as `tocsin capacity` reads it; its populations are played
    profile: PathBuf,
    /// How many users in all, shared as in the profile [default: as many as it says]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    users: Option<u32>,
    /// Let them think this many times as fast, so that few users ask for as much as many
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = factor)]
    faster: f64,
    /// Seconds over which they come
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0, value_parser = seconds)]
    ramp: f64,
    /// Seconds for which they are watched then
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0, value_parser = seconds)]
    lasts: f64,
    /// Entries of the directory that they ask
    #[arg(long, value_name = "N", default_value_t = 50_000, value_parser = clap::value_parser!(u64).range(100..=10_000_000))]
    entries: u64,
    /// Write the lines to this file as well
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Where the server's data lie, since the disk matters
    #[arg(long, value_name = "FOLDER")]
    folder: Option<PathBuf>,
}

fn factor(text: &str) -> Result<f64, String> {
    let factor: f64 = text.parse().map_err(|_| "is not a number".to_owned())?;
    if (0.001..=1e6).contains(&factor) { Ok(factor) } else { Err("should be from 0.001 to 1000000".to_owned()) }
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "is not a number of seconds".to_owned())?;
    if (0.0..=86_400.0).contains(&seconds) { Ok(seconds) } else { Err("should be from 0 to 86400".to_owned()) }
}

impl Args {
    /// Plays it, and shows a table.
    ///
    /// # Errors
    /// The profile cannot be read or played, or an operation failed.
    pub async fn run(self, terminal: &Terminal) -> Outcome {
        let profile = capacity::read(&self.profile, read_profile, terminal)?;
        if self.lasts <= 0.0 {
            return Err(Failure::failed("--lasts should be more than 0 seconds"));
        }
        let context = Context::new(Settings { folder: self.folder.clone(), ..Settings::default() })?.shown_on(terminal);
        context.progress.begin("users get ready", 1, 1);
        if cfg!(debug_assertions) {
            context.tell("this is a debug build: its figures mean nothing");
        }
        if !profile.events.is_empty() || !profile.operations.is_empty() {
            context.tell("only populations are played; events and operations of the profile are not");
        }
        let settings = Play {
            users: self.users.map(|users| users as usize),
            faster: self.faster,
            ramp: Duration::from_secs_f64(self.ramp),
            lasts: Duration::from_secs_f64(self.lasts),
            people: self.entries,
        };
        let mut signals = Signals::new()?;
        let played = tokio::select! {
            played = play(&context, &profile, &settings) => played,
            name = signals.next() => Err(Failure::failed(format!("interrupted by {name}; what was started has been stopped"))),
        };
        context.progress.end();
        self.told(terminal, &played?, &settings)
    }

    fn told(&self, terminal: &Terminal, played: &[Played], settings: &Play) -> Outcome {
        let mut report = Report::new(self.out.clone(), true)?;
        let mut rows = Vec::new();
        for played in played {
            let ms = |fraction: f64| rounded(played.times.quantile(fraction), 3).to_string();
            rows.push(vec![
                played.population.clone(),
                played.operation.clone(),
                rounded(played.offered, 4).to_string(),
                rounded(played.reached, 4).to_string() + if played.kept_its_rate() { "" } else { " NOT REACHED" },
                ms(0.5),
                ms(0.95),
                ms(0.99),
            ]);
            let mut line = played.figure(settings).line(&format!("users.{}.{}", played.population, played.operation));
            line.run = Some(Run::now("full".to_owned()));
            report.add(line)?;
        }
        let heads = ["population", "operation", "offered/s", "reached/s", "p50 ms", "p95 ms", "p99 ms"];
        Ok(terminal.table(&heads, &rows)?)
    }
}
