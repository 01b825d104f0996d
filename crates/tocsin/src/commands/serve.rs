//! Runs the server until it is told to stop.

use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};

use crate::{
    commands::init::show_first_key,
    configuration::{self, ConfigurationArgs},
    failure::{Failure, Outcome},
    logging, platform,
    terminal::Terminal,
};

/// Arguments of `tocsin serve`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Address and port to listen at; the same as --set http.listen=ADDRESS
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// What is logged; the same as --set log.level=LEVEL
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<String>,
    /// `text` or `json`; the same as --set log.format=FORMAT
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<String>,
}

impl Args {
    /// Runs until SIGTERM or SIGINT; then takes nothing new, finishes what is in flight and ends. A second signal ends
    /// the process at once, which loses nothing either: what was not finished is done again after the next start.
    ///
    /// # Errors
    /// The server cannot start, or stops because a store failed.
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
        let running = platform::start(layered.configuration).await?;
        // Nobody has to read what a server prints: its output may be closed.
        if let Some(key) = &running.first_key {
            let _ = show_first_key(terminal, &running.data_folder, key);
        }
        let _ = terminal.line(format_args!("Tocsin answers at http://{}", running.address));
        tracing::info!(address = %running.address, data = %running.data_folder.display(), version = env!("CARGO_PKG_VERSION"), "started");
        let outcome = tokio::select! {
            name = stop.next() => {
                tracing::info!(signal = name, patience_seconds = patience.as_secs(), "stopping: intake ends, what is in flight is finished; a second signal ends at once");
                Ok(())
            }
            failure = running.failed() => Err(failure),
        };
        let drained = tokio::select! {
            drained = tokio::time::timeout(patience + Duration::from_secs(5), running.stop(patience)) => drained.unwrap_or(false),
            name = stop.next() => {
                tracing::warn!(signal = name, "ended by a second signal; what was in flight is done again after the next start");
                std::process::exit(0);
            }
        };
        if !drained {
            tracing::warn!("not everything could be finished in time; it is done again after the next start");
        }
        tracing::info!("stopped");
        outcome
    }
}

/// SIGTERM and SIGINT.
pub struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

impl Signals {
    /// Listens from now on.
    ///
    /// # Errors
    /// The system does not let us.
    pub fn new() -> Outcome<Self> {
        let listen = |kind| signal(kind).map_err(|error| Failure::failed("cannot listen to signals").because(&error));
        Ok(Signals { terminate: listen(SignalKind::terminate())?, interrupt: listen(SignalKind::interrupt())? })
    }

    /// Waits for the next one and gives its name.
    pub async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}
