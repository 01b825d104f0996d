//! Drains the platform: the intake is closed, and due work is delivered.

use tocsin_exchange::intake::WaitingMessages;
use tocsin_model::time::Timestamp;
use tocsin_store::journal::{Component, Role, SwitchState};

use crate::{
    Service,
    error::ServiceError,
    keys::{Caller, Scope},
};

/// Components that a drain switches off. Schedules continue: their due work is delivered, and they need no intake.
const INTAKE: [(Role, SwitchState); 2] = [(Role::Accept, SwitchState::Disabled), (Role::Sources, SwitchState::Paused)];

/// Progress of a drain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drain {
    /// Whether the intake is closed, for submissions and sources.
    pub closed: bool,
    /// Whether a source or submission in progress is still being finished.
    pub closing: bool,
    /// Event batches waiting to be matched.
    pub event_batches: u64,
    /// Due work items, including those in flight.
    pub due: u64,
    /// Work items that wait for a time: retries, quiet hours, digests.
    pub later: u64,
    /// Earliest of those times.
    pub next_due_at: Option<Timestamp>,
    /// Notifications waiting for an operator.
    pub suspended: u64,
    /// Event batches that could not be matched and were set aside.
    pub failed_batches: u64,
    /// Due deliveries of exchange messages, including those in progress.
    pub messages_due: u64,
    /// Deliveries of exchange messages that are due later: retries, closed service windows.
    pub messages_later: u64,
    /// Deliveries of exchange messages through send ports on hold or off.
    pub messages_held: u64,
    /// Other switched-off components; the work that waits for them is not delivered.
    pub held: Vec<String>,
}

impl Drain {
    /// Whether the intake is closed and all due work is delivered.
    pub fn is_drained(&self) -> bool {
        self.closed && !self.closing && self.event_batches == 0 && self.due == 0 && self.messages_due == 0
    }
}

impl Service {
    /// Closes the intake, across restarts, until it is reopened. Returns the progress; see [`Service::drain`].
    ///
    /// # Errors
    /// The scope `operations:write` is missing, the reason is too long, or the store failed.
    pub async fn close_intake(&self, caller: &Caller, reason: &str) -> Result<Drain, ServiceError> {
        for (role, state) in INTAKE {
            self.switch_off(caller, Component::Role(role), state, reason).await?;
        }
        self.drained().await
    }

    /// Reopens the intake. Returns whether any of it was closed.
    ///
    /// # Errors
    /// The scope `operations:write` is missing, or the store failed.
    pub async fn open_intake(&self, caller: &Caller) -> Result<bool, ServiceError> {
        let mut was_closed = false;
        for (role, _) in INTAKE {
            was_closed |= self.switch_on(caller, &Component::Role(role)).await?;
        }
        Ok(was_closed)
    }

    /// Returns the progress of a drain.
    ///
    /// # Errors
    /// The scope `operations:read` is missing, or the journal is unavailable.
    pub async fn drain(&self, caller: &Caller) -> Result<Drain, ServiceError> {
        caller.needs(Scope::OperationsRead)?;
        self.drained().await
    }

    async fn drained(&self) -> Result<Drain, ServiceError> {
        let switches = self.pipeline.switches();
        let intake = INTAKE.map(|(role, state)| (Component::Role(role), state));
        let is_closed = |(component, state): &(Component, SwitchState)| {
            switches.iter().any(|found| found.switch.component == *component && found.switch.state == *state)
        };
        let is_of_intake = |component: &Component| intake.iter().any(|(role, _)| role == component);
        // Work items are counted after the batches: a batch that is matched in between is counted once, as one or the
        // other.
        let backlog = self.open_work.backlog();
        let now = self.clock.now();
        let ahead = self.open_work.work_counts(now).await?;
        let messages = match &self.exchanges {
            Some(exchanges) => exchanges.operations.waiting_messages(now).await?,
            None => WaitingMessages::default(),
        };
        let held = switches.iter().filter(|found| !is_of_intake(&found.switch.component));
        Ok(Drain {
            closed: intake.iter().all(is_closed),
            closing: switches.iter().any(|found| found.pending && is_of_intake(&found.switch.component)),
            event_batches: backlog.event_batches,
            due: ahead.due,
            later: ahead.later,
            next_due_at: ahead.next.into_iter().chain(messages.next).min(),
            suspended: backlog.suspended,
            failed_batches: backlog.failed_batches,
            messages_due: messages.due,
            messages_later: messages.later,
            messages_held: messages.held,
            held: held.map(|found| found.switch.component.to_string()).collect(),
        })
    }
}
