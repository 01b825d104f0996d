//! Signals that end a command.

use tokio::signal::unix::{SignalKind, signal};

use crate::failure::{Failure, Outcome};

/// SIGTERM, SIGINT, and SIGHUP, which a terminal sends when it closes.
pub struct Signals {
    terminate: tokio::signal::unix::Signal,
    hang_up: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

impl Signals {
    /// Installs the signal handlers.
    ///
    /// # Errors
    /// If the system refuses to install them.
    pub fn new() -> Outcome<Self> {
        let listen = |kind| signal(kind).map_err(|error| Failure::failed("cannot listen to signals").because(&error));
        Ok(Signals {
            terminate: listen(SignalKind::terminate())?,
            hang_up: listen(SignalKind::hangup())?,
            interrupt: listen(SignalKind::interrupt())?,
        })
    }

    /// Waits for the next signal and returns its name.
    pub async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.hang_up.recv() => "SIGHUP",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}
