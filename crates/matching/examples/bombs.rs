//! Measures what the worst filters and segments cost: how long until they are refused, or until they are stopped.
//!
//! `cargo run --release -p tocsin-matching --example bombs`
//!
//! Ends with an error if one of them takes 100 ms or more.

use std::{
    process::ExitCode,
    sync::LazyLock,
    time::{Duration, Instant},
};

use tocsin_matching::bombs::{Blast, LONGEST, no_bomb, set_off};

fn main() -> ExitCode {
    let mut blasts = set_off(&now);
    blasts.push(no_bomb(100, &now));
    for Blast { name, reading, asking, answer } in &blasts {
        println!("{name:56} read {:>9} asked {:>9}  {answer}", millis(*reading), millis(*asking));
    }
    let longest = blasts.iter().map(Blast::longest).max().unwrap_or_default();
    println!("\nthe longest took {}", millis(longest));
    if longest < LONGEST { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The time that this thread had on a processor, so that others cost nothing; where the system does not tell, that of a
/// clock.
fn now() -> Duration {
    static BEGINNING: LazyLock<Instant> = LazyLock::new(Instant::now);
    let told = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let nanos = told.as_deref().and_then(|told| told.split(' ').next()).and_then(|nanos| nanos.parse().ok());
    nanos.map_or_else(|| BEGINNING.elapsed(), Duration::from_nanos)
}

fn millis(time: Duration) -> String {
    format!("{:.2} ms", time.as_secs_f64() * 1_000.0)
}
