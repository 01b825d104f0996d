//! The log's level and form.

use tracing_subscriber::EnvFilter;

use crate::{
    configuration::{Log, LogFormat},
    failure::{Failure, Outcome},
};

/// Starts the log of this process, on standard error. The second call of a process changes nothing.
///
/// # Errors
/// The level is not a filter.
pub fn start(options: &Log) -> Outcome {
    let filter = EnvFilter::try_new(&options.level).map_err(|error| {
        Failure::usage(format!(
            "log.level `{}` is not a filter such as `info` or `info,tocsin_delivery=debug`",
            options.level
        ))
        .because(&error)
    })?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // An error means that a log runs already, as in a second test of one process.
    let _ = match options.format {
        LogFormat::Text => builder.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
    Ok(())
}
