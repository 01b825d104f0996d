//! Command `bench users`: simulates the populations of a capacity profile against a server of this binary.

use std::{path::PathBuf, time::Duration};

use tocsin_capacity::read_profile;

use tocsin_bench::{
    Context, Report, Settings,
    figure::rounded,
    population_load::{PopulationLoad, PopulationResult, play},
    run::Run,
};

use crate::{
    commands::capacity,
    failure::{Failure, Outcome},
    signals::Signals,
    terminal::Terminal,
};

/// Arguments of `tocsin bench users`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Capacity profile, as read by `tocsin capacity`; its populations are simulated
    profile: PathBuf,
    /// Total number of users, distributed as in the profile [default: the profile's number]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    users: Option<u32>,
    /// Divisor of the think times, so that few users cause the load of many
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = factor)]
    faster: f64,
    /// Seconds over which the users arrive
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0, value_parser = seconds)]
    ramp: f64,
    /// Seconds of measurement after the ramp
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0, value_parser = seconds)]
    lasts: f64,
    /// Number of directory entries
    #[arg(long, value_name = "N", default_value_t = 50_000, value_parser = clap::value_parser!(u64).range(100..=10_000_000))]
    entries: u64,
    /// Output file for the result lines
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Folder for the server's data, on the disk to measure
    #[arg(long, value_name = "FOLDER")]
    folder: Option<PathBuf>,
}

fn factor(text: &str) -> Result<f64, String> {
    let factor: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if (0.001..=1e6).contains(&factor) { Ok(factor) } else { Err("expected 0.001 to 1000000".to_owned()) }
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    if (0.0..=86_400.0).contains(&seconds) { Ok(seconds) } else { Err("expected 0 to 86400".to_owned()) }
}

impl Args {
    /// Runs the load and prints a table.
    ///
    /// # Errors
    /// If the profile is invalid, or an operation fails.
    pub async fn run(self, terminal: &Terminal) -> Outcome {
        let profile = capacity::read(&self.profile, read_profile, terminal)?;
        if self.lasts <= 0.0 {
            return Err(Failure::failed("--lasts must be greater than 0 seconds"));
        }
        let context =
            Context::new(Settings { folder: self.folder.clone(), ..Settings::default() })?.with_display(terminal);
        context.progress.begin("preparing users", 1, 1);
        if cfg!(debug_assertions) {
            context.log("this is a debug build: its figures are meaningless");
        }
        if !profile.events.is_empty() || !profile.operations.is_empty() {
            context.log("only populations are simulated, not the events and operations of the profile");
        }
        let settings = PopulationLoad {
            users: self.users.map(|users| users as usize),
            faster: self.faster,
            ramp: Duration::from_secs_f64(self.ramp),
            lasts: Duration::from_secs_f64(self.lasts),
            people: self.entries,
        };
        let mut signals = Signals::new()?;
        let played = tokio::select! {
            played = play(&context, &profile, &settings) => played,
            name = signals.next() => Err(Failure::failed(format!("interrupted by {name}; started processes were stopped"))),
        };
        context.progress.end();
        self.print(terminal, &played?, &settings)
    }

    fn print(&self, terminal: &Terminal, played: &[PopulationResult], settings: &PopulationLoad) -> Outcome {
        let mut report = Report::new(self.out.clone(), true)?;
        let mut rows = Vec::new();
        for played in played {
            let ms = |fraction: f64| rounded(played.times.quantile(fraction), 3).to_string();
            rows.push(vec![
                played.population.clone(),
                played.operation.clone(),
                rounded(played.offered, 4).to_string(),
                rounded(played.reached, 4).to_string() + if played.reached_rate() { "" } else { " NOT REACHED" },
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
