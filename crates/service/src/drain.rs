//! Drains the platform: nothing comes in any more, and what is due leaves.

use tocsin_model::time::Timestamp;
use tocsin_store::journal::{Component, Role, SwitchState};

use crate::{
    Service,
    error::ServiceError,
    keys::{Caller, Scope},
};

/// What is switched off for it, and how. Schedules go on: what they are due for is told, and they need no intake.
const INTAKE: [(Role, SwitchState); 2] = [(Role::Accept, SwitchState::Disabled), (Role::Sources, SwitchState::Paused)];

/// How far a drain has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drain {
    /// Whether nothing comes in: neither submissions nor what sources take.
    pub closed: bool,
    /// Whether what a source or a submission had begun is still being finished.
    pub closing: bool,
    /// Event batches that wait to be matched.
    pub event_batches: u64,
    /// Work items that are due, those on their way among them.
    pub due: u64,
    /// Work items that wait for a time to come: retries, quiet hours, digests.
    pub later: u64,
    /// The first of those times.
    pub next_due_at: Option<Timestamp>,
    /// Notifications that wait for an operator.
    pub suspended: u64,
    /// Event batches that could not be matched and were set aside.
    pub failed_batches: u64,
    /// What is switched off besides, so that what waits for it does not leave.
    pub held: Vec<String>,
}

impl Drain {
    /// Whether nothing comes in and all that is due has left.
    pub fn is_drained(&self) -> bool {
        self.closed && !self.closing && self.event_batches == 0 && self.due == 0
    }
}

impl Service {
    /// Closes the intake, over restarts, until it is opened again. Gives how far it has come; see [`Service::drain`].
    ///
    /// # Errors
    /// The scope `operations:write` is missing, the reason is too long, or the store failed.
    pub async fn close_intake(&self, caller: &Caller, reason: &str) -> Result<Drain, ServiceError> {
        for (role, state) in INTAKE {
            self.switch_off(caller, Component::Role(role), state, reason).await?;
        }
        self.drained().await
    }

    /// Opens the intake again. Gives whether any of it was closed.
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

    /// How far a drain has come.
    ///
    /// # Errors
    /// The scope `operations:read` is missing, or the journal does not answer.
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
        // Work is counted after the batches: what a batch becomes in between is found as the one or the other.
        let backlog = self.journal.backlog();
        let ahead = self.journal.work_ahead(self.clock.now()).await?;
        let held = switches.iter().filter(|found| !is_of_intake(&found.switch.component));
        Ok(Drain {
            closed: intake.iter().all(is_closed),
            closing: switches.iter().any(|found| found.pending && is_of_intake(&found.switch.component)),
            event_batches: backlog.event_batches,
            due: ahead.due,
            later: ahead.later,
            next_due_at: ahead.next,
            suspended: backlog.suspended,
            failed_batches: backlog.failed_batches,
            held: held.map(|found| found.switch.component.to_string()).collect(),
        })
    }
}
