//! State of the intake: whether receive ports accept messages and receive locations take them.

use tocsin_model::time::Timestamp;

/// Reasons why nothing is received; `None`: it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IntakeState {
    /// Receive ports refuse messages for this reason.
    pub refusal: Option<String>,
    /// Receive locations are held for this reason.
    pub hold: Option<String>,
}

/// Deliveries to send ports that are not finished.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WaitingMessages {
    /// Due messages, including those in progress.
    pub due: u64,
    /// Messages due later: retries, and send ports whose service window is closed.
    pub later: u64,
    /// Messages of send ports that are on hold, switched off or removed.
    pub held: u64,
    /// The first time at which one of `later` is due.
    pub next: Option<Timestamp>,
}
