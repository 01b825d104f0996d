//! Intake: whether receive ports accept messages and receive locations take them, and the messages that are still to leave.

use tocsin_model::{exchange::PortState, time::Timestamp};
use tocsin_store::{error::StoreError, spool::WaitingLegs};

use crate::{Exchanges, receive::ReceiveError};

/// Reasons why nothing comes in; `None`: it does.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Intake {
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

impl Exchanges {
    /// Closes or opens the intake of all exchanges.
    pub fn set_intake(&self, intake: Intake) {
        self.intake.send_if_modified(|known| {
            let is_changed = *known != intake;
            *known = intake;
            is_changed
        });
    }

    /// Checks whether receive ports accept messages.
    pub(crate) fn check_intake(&self) -> Result<(), ReceiveError> {
        match &self.intake.borrow().refusal {
            None => Ok(()),
            Some(reason) => {
                metrics::counter!("tocsin_exchange_refused_total", "reason" => "operator").increment(1);
                Err(ReceiveError::IntakeClosed(reason.clone()))
            }
        }
    }

    /// Counts the deliveries to send ports that are not finished. Suspended messages and awaited replies do not count.
    ///
    /// # Errors
    /// The spool does not answer.
    pub async fn waiting_messages(&self, now: Timestamp) -> Result<WaitingMessages, StoreError> {
        let mut waiting = WaitingMessages::default();
        for WaitingLegs { exchange, port, due, later, next } in self.parts.spool.waiting_legs(now).await? {
            let running = self.find(&exchange);
            let queue = running.as_ref().and_then(|running| running.send_queues.get(&port));
            let Some(queue) = queue.filter(|queue| queue.state() == PortState::Active) else {
                waiting.held += due + later;
                continue;
            };
            waiting.later += later;
            waiting.next = waiting.next.into_iter().chain(next).min();
            match queue.opens_at(now) {
                None => waiting.due += due,
                Some(opens_at) => {
                    waiting.later += due;
                    waiting.next = waiting.next.into_iter().chain((due > 0).then_some(opens_at)).min();
                }
            }
        }
        Ok(waiting)
    }
}
