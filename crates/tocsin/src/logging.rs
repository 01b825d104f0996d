//! Log level and format.

use tracing_subscriber::EnvFilter;

use crate::{
    configuration::{Log, LogFormat},
    failure::{Failure, Outcome},
};

const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// Checks a log filter. `EnvFilter` alone treats an unknown level as a module name, and logs nothing.
///
/// # Errors
/// If a part of the filter is neither a level nor `MODULE=LEVEL`; the text names the part.
pub fn check_level(filter: &str) -> Result<(), String> {
    let is_level = |word: &str| LEVELS.iter().any(|level| level.eq_ignore_ascii_case(word.trim()));
    for part in filter.split(',').map(str::trim) {
        let fits = match part.rsplit_once('=') {
            Some((module, level)) => !module.trim().is_empty() && is_level(level),
            None => is_level(part),
        };
        if !fits {
            return Err(format!(
                "`{part}` is not a level: expected {}, or levels by module, such as `info,tocsin_delivery=debug`",
                LEVELS.join(", ")
            ));
        }
    }
    EnvFilter::try_new(filter).map(|_| ()).map_err(|error| format!("`{filter}` is not a valid filter: {error}"))
}

/// Starts the log of this process on standard error. A second call has no effect.
///
/// # Errors
/// If the level is not a filter.
pub fn start(options: &Log) -> Outcome {
    let filter = EnvFilter::try_new(&options.level).map_err(|error| {
        Failure::usage(format!(
            "log.level `{}` is not a valid filter such as `info` or `info,tocsin_delivery=debug`",
            options.level
        ))
        .because(&error)
    })?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // An error means that a log is already running, as in a second test of one process.
    let _ = match options.format {
        LogFormat::Text => builder.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b31_a_level_that_does_not_exist_is_refused() {
        for right in ["info", "WARN", "off", "info,tocsin_delivery=debug", "warn,tocsin_store=trace"] {
            assert_eq!(check_level(right), Ok(()), "{right}");
        }
        for wrong in [
            "",
            "verbose",
            "info,loud",
            "tocsin_delivery",
            "=debug",
            "tocsin_delivery=loud",
            "info,,debug",
            "warn, tocsin_store=trace",
            "7",
        ] {
            assert!(check_level(wrong).is_err(), "{wrong}");
        }
    }
}
