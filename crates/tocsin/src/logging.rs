//! Log level and format, and the newest lines in memory.

use std::{fmt, sync::LazyLock};

use tocsin_service::server_log::{LogLevel, ServerLog};
use tracing::{
    Event, Level, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{
    EnvFilter, Layer,
    layer::{Context, SubscriberExt},
    util::SubscriberInitExt,
};

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
    let layer = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let output = match options.format {
        LogFormat::Text => layer.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).boxed(),
        LogFormat::Json => layer.json().flatten_event(true).boxed(),
    };
    // An error means that a log is already running, as in a second test of one process.
    let _ = tracing_subscriber::registry().with(filter).with(RingLayer).with(output).try_init();
    Ok(())
}

/// The newest lines of the log of this process.
pub fn server_log() -> &'static ServerLog {
    static LINES: LazyLock<ServerLog> = LazyLock::new(ServerLog::default);
    &LINES
}

/// Writes each event to [`server_log`].
struct RingLayer;

impl<S: Subscriber> Layer<S> for RingLayer {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let level = match *event.metadata().level() {
            Level::ERROR => LogLevel::Error,
            Level::WARN => LogLevel::Warn,
            Level::INFO => LogLevel::Info,
            Level::DEBUG => LogLevel::Debug,
            Level::TRACE => LogLevel::Trace,
        };
        server_log().push(crate::local_change::now(), level, event.metadata().target(), &fields.message, fields.others);
    }
}

/// Message and fields of an event, as text.
#[derive(Default)]
struct Fields {
    message: String,
    others: Vec<(String, String)>,
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => value.clone_into(&mut self.message),
            name => self.others.push((name.to_owned(), value.to_owned())),
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}

#[cfg(test)]
mod tests {
    use tocsin_service::server_log::LogQuery;

    use super::*;

    #[test]
    fn events_are_kept_with_their_fields_and_without_secrets() {
        let subscriber = tracing_subscriber::registry().with(RingLayer);
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!(attempts = 3, password = "hunter2", "ring test: used {}", "Bearer abc");
        });
        let query = LogQuery { contains: Some("ring test".to_owned()), limit: 10, ..LogQuery::default() };
        let line = server_log().page(&query).lines.pop().expect("a line");
        assert_eq!((line.level, line.message.as_str()), (LogLevel::Warn, "ring test: used Bearer ********"));
        assert_eq!((line.fields["attempts"].as_str(), line.fields["password"].as_str()), ("3", "********"));
        assert!(line.target.starts_with("tocsin"));
    }

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
