//! Command `serve`: runs the server until a signal arrives.

use std::time::Duration;

use crate::{
    commands::init::show_first_key,
    configuration::{self, ConfigurationArgs},
    failure::Outcome,
    host::Host,
    logging, platform,
    signals::Signals,
    terminal::Terminal,
};

/// Arguments of `tocsin serve`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Listening address and port; same as --set http.listen=ADDRESS
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// Log level; same as --set log.level=LEVEL
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<String>,
    /// Log format, `text` or `json`; same as --set log.format=FORMAT
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<String>,
}

impl Args {
    /// Runs until SIGTERM, SIGINT or SIGHUP; then stops the intake, finishes work in flight and ends. A second signal
    /// ends the
    /// process immediately without loss: unfinished work is repeated after the next start.
    ///
    /// # Errors
    /// If the server cannot start, or a store fails.
    pub async fn run(self, terminal: &Terminal, args: &ConfigurationArgs) -> Outcome {
        let named = [
            ("--listen", "http.listen", self.listen),
            ("--log-level", "log.level", self.log_level),
            ("--log-format", "log.format", self.log_format),
        ];
        let flags: Vec<_> = named.into_iter().filter_map(|(flag, key, value)| Some((flag, key, value?))).collect();
        let layered = configuration::load(args, &flags)?;
        logging::start(&layered.configuration.log)?;
        for warning in &layered.warnings {
            tracing::warn!("{warning}");
        }
        let patience = layered.configuration.pipeline.drain_patience.0;
        let mut stop = Signals::new()?;
        let running = platform::start_hosted(layered.configuration.clone(), Host::shared(layered)).await?;
        // The output may be closed.
        if let Some(key) = &running.first_key {
            let _ = show_first_key(terminal, &running.data_folder, key);
        }
        let _ = terminal.line(format_args!("Tocsin listens at http://{}", running.address));
        if let Some(link) = running.setup_link()? {
            let _ = show_setup_link(terminal, &link);
        }
        tracing::info!(address = %running.address, data = %running.data_folder.display(), version = env!("CARGO_PKG_VERSION"), "started");
        let outcome = tokio::select! {
            name = stop.next() => {
                tracing::info!(signal = name, patience_seconds = patience.as_secs(), "stopping: the intake is closed and work in flight is finished; a second signal stops immediately");
                Ok(())
            }
            failure = running.failed() => Err(failure),
        };
        let drained = tokio::select! {
            drained = tokio::time::timeout(patience + Duration::from_secs(5), running.stop(patience)) => drained.unwrap_or(false),
            name = stop.next() => {
                tracing::warn!(signal = name, "stopped by a second signal; work in flight is repeated after the next start");
                std::process::exit(0);
            }
        };
        if !drained {
            tracing::warn!("some work was not finished in time; it is repeated after the next start");
        }
        tracing::info!("stopped");
        outcome
    }
}

/// Prints the setup link on a terminal; otherwise only the command that prints one, because pipes end in logs.
fn show_setup_link(terminal: &Terminal, link: &str) -> std::io::Result<()> {
    match terminal.is_interactive() {
        true => terminal.line(format_args!("no user yet: create the first one within an hour at\n\n    {link}\n")),
        false => terminal.line("no user yet: `tocsin console open` prints a link that creates the first one"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_setup_link_is_not_printed_into_a_pipe() {
        let (terminal, printed) = Terminal::captured();
        show_setup_link(&terminal, "http://127.0.0.1:8480/console/setup#token").expect("printed");
        let printed = printed.text();
        assert!(printed.contains("tocsin console open") && !printed.contains("token"), "{printed}");
    }
}
