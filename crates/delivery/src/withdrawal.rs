//! Withdrawal of messages that wait in a channel.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

/// Flag by which a sender withdraws messages, shared by all of them. A channel does not begin an attempt of a withdrawn
/// message: it returns the message untried. An attempt in progress is finished.
#[derive(Debug, Clone, Default)]
pub struct Withdrawal(Arc<AtomicBool>);

impl Withdrawal {
    /// Withdraws the messages, or ends the withdrawal.
    pub fn set(&self, is_withdrawn: bool) {
        self.0.store(is_withdrawn, Ordering::Release);
    }

    /// Whether the messages are withdrawn.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

impl PartialEq for Withdrawal {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}
