//! Recall of formatted messages by any commit that changes their recipient
//! (decision 0050).

use std::sync::Arc;

use tocsin_delivery::Recalls;
use tocsin_store::records::{RecipientChange, RecipientWatcher};

/// Commit hook of the records.
pub(crate) struct RecallWatcher(pub Arc<Recalls>);

impl RecipientWatcher for RecallWatcher {
    fn recipients_changed(&self, change: &RecipientChange) {
        if !change.subscribers.is_empty() {
            self.0.recall_subscribers(change.subscribers.iter().copied());
        }
        let mut addresses = change.addresses.iter().filter_map(|target| target.text_address()).peekable();
        if addresses.peek().is_some() {
            self.0.recall_addresses(addresses);
        }
    }
}
