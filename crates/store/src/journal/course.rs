//! Where some work stands on its way.

use std::sync::Arc;

use tocsin_model::{conduct::Priority, time::Timestamp};

/// Where some work stands on its way, beside how many attempts it has had.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Course {
    /// Which goes first.
    pub priority: Priority,
    /// When the window of the digest closes for which it waits or of which it is. What has the same is told together.
    pub window: Option<Timestamp>,
    /// How many channels of its chain have failed.
    pub fallback: u8,
    /// Since when its present channel was to deliver it; `None`: since it was first due.
    pub since: Option<Timestamp>,
    /// What an operator put in place of what was to be sent, as JSON.
    pub edit: Option<Arc<str>>,
}

/// A priority as backends store it.
pub(crate) fn priority_number(priority: Priority) -> u8 {
    priority as u8
}

/// Reads what [`priority_number`] gave.
pub(crate) fn priority_of(number: u8) -> Priority {
    Priority::ALL.get(usize::from(number)).copied().unwrap_or_default()
}
