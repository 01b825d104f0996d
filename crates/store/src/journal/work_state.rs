//! Scheduling state of a work item.

use std::sync::Arc;

use tocsin_model::{delivery_policy::Priority, time::Timestamp};

/// Scheduling state of a work item, besides its number of attempts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WorkState {
    /// Priority.
    pub priority: Priority,
    /// Closing time of the item's digest window. Items with the same window are sent as one digest.
    pub window: Option<Timestamp>,
    /// Number of channels of the fallback chain that have failed.
    pub fallback: u8,
    /// When delivery through the present channel was first due; `None`: the item's own due time.
    pub since: Option<Timestamp>,
    /// Operator's edit: content sent in place of the original, as JSON.
    pub edit: Option<Arc<str>>,
}

/// Number of a priority in the backends.
pub(crate) fn priority_number(priority: Priority) -> u8 {
    priority as u8
}

/// Inverse of [`priority_number`].
pub(crate) fn priority_of(number: u8) -> Priority {
    Priority::ALL.get(usize::from(number)).copied().unwrap_or_default()
}
