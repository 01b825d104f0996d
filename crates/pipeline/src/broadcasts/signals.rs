//! Paused and cancelled broadcasts. In memory for all steps; the journal has them across restarts.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
};

use parking_lot::Mutex;
use tocsin_delivery::Withdrawal;
use tocsin_model::id::BroadcastId;
use tocsin_store::{
    error::StoreError,
    journal::{BroadcastFilter, BroadcastState, Broadcasts},
};

/// Broadcasts read at a time.
const PAGE: usize = 1_000;

/// Hold of a broadcast: the reason why its notifications are not sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hold {
    /// They are sent.
    None,
    /// It is paused.
    Paused,
    /// It is cancelled.
    Cancelled,
}

/// State of a broadcast, as its work items see it.
#[derive(Default)]
pub(crate) struct BroadcastSignal {
    hold: AtomicU8,
    withdrawal: Withdrawal,
}

impl BroadcastSignal {
    /// The reason why its notifications are not sent.
    pub fn hold(&self) -> Hold {
        match self.hold.load(Ordering::Acquire) {
            0 => Hold::None,
            1 => Hold::Paused,
            _ => Hold::Cancelled,
        }
    }

    /// Flag that returns its messages from the queues of channels while it is held.
    pub fn withdrawal(&self) -> Withdrawal {
        self.withdrawal.clone()
    }

    fn set(&self, hold: Hold) {
        // First the decision, then the return: a returned message must not be sent again.
        self.hold.store(hold as u8, Ordering::Release);
        self.withdrawal.set(hold != Hold::None);
    }
}

/// Signals of all broadcasts that are held or have work in progress.
#[derive(Default)]
pub(crate) struct Signals(Mutex<BTreeMap<BroadcastId, Arc<BroadcastSignal>>>);

impl Signals {
    /// Reads the paused and cancelled broadcasts.
    pub async fn load(&self, store: &dyn Broadcasts) -> Result<(), StoreError> {
        for (state, hold) in [(BroadcastState::Paused, Hold::Paused), (BroadcastState::Cancelled, Hold::Cancelled)] {
            let filter = BroadcastFilter { state: Some(state), ..BroadcastFilter::default() };
            let mut before = None;
            loop {
                let page = store.broadcasts(&filter, before, PAGE).await?;
                page.iter().for_each(|broadcast| self.set(broadcast.id, hold));
                before = page.last().map(|broadcast| broadcast.id);
                if page.len() < PAGE {
                    break;
                }
            }
        }
        Ok(())
    }

    /// The signal of a broadcast.
    pub fn of(&self, id: BroadcastId) -> Arc<BroadcastSignal> {
        let mut signals = self.0.lock();
        // Drop the signals without work and without a hold.
        signals.retain(|_, signal| Arc::strong_count(signal) > 1 || signal.hold() != Hold::None);
        signals.entry(id).or_default().clone()
    }

    /// Sets what holds a broadcast. Effective when this returns, except for attempts in progress.
    pub fn set(&self, id: BroadcastId, hold: Hold) {
        self.of(id).set(hold);
    }
}
