//! Measures the worst-case cost of filters and segments: the time until they are rejected or stopped.
//!
//! `cargo run --release -p tocsin-matching --example worst_cases`
//!
//! Exits with an error if one of them takes 100 ms or more.

use std::{
    process::ExitCode,
    sync::LazyLock,
    time::{Duration, Instant},
};

use tocsin_matching::worst_cases::{LONGEST, WorstCaseResult, ordinary_filter, run_all};

fn main() -> ExitCode {
    let mut blasts = run_all(&now);
    blasts.push(ordinary_filter(100, &now));
    for WorstCaseResult { name, reading, evaluating, answer } in &blasts {
        println!("{name:56} read {:>9} asked {:>9}  {answer}", millis(*reading), millis(*evaluating));
    }
    let longest = blasts.iter().map(WorstCaseResult::longest).max().unwrap_or_default();
    println!("\nthe longest took {}", millis(longest));
    if longest < LONGEST { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Processor time of this thread, so that other load costs nothing; on systems without it, wall-clock time.
fn now() -> Duration {
    static BEGINNING: LazyLock<Instant> = LazyLock::new(Instant::now);
    let schedstat = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let nanos =
        schedstat.as_deref().and_then(|schedstat| schedstat.split(' ').next()).and_then(|nanos| nanos.parse().ok());
    nanos.map_or_else(|| BEGINNING.elapsed(), Duration::from_nanos)
}

fn millis(time: Duration) -> String {
    format!("{:.2} ms", time.as_secs_f64() * 1_000.0)
}
