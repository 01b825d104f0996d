//! Queue of changes for a writer job that has been submitted but has not started.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::{
    audit::{self, ChangeContext},
    error::StoreError,
    sqlite::writer::WAITING_WRITES_MAX,
};

pub(super) type Answer<T> = oneshot::Sender<Result<T, StoreError>>;

/// A change with the context of its audit entry.
pub(super) struct WaitingChange<C> {
    pub(super) change: C,
    pub(super) context: Option<Arc<ChangeContext>>,
}

/// Queue of changes, each with its caller.
pub(super) struct WaitingQueue<C, T>(Mutex<Vec<(WaitingChange<C>, Answer<T>)>>);

impl<C, T> Default for WaitingQueue<C, T> {
    fn default() -> Self {
        WaitingQueue(Mutex::default())
    }
}

impl<C, T> WaitingQueue<C, T> {
    /// Queues a change. Returns whether a writer job must be submitted.
    pub(super) fn put(&self, change: C, answer: Answer<T>) -> Result<bool, StoreError> {
        let mut waiting = self.0.lock();
        if waiting.len() >= WAITING_WRITES_MAX {
            return Err(StoreError::Full(format!("{WAITING_WRITES_MAX} writes are already waiting")));
        }
        waiting.push((WaitingChange { change, context: audit::current() }, answer));
        Ok(waiting.len() == 1)
    }

    pub(super) fn take(&self) -> (Vec<WaitingChange<C>>, Vec<Answer<T>>) {
        std::mem::take(&mut *self.0.lock()).into_iter().unzip()
    }
}
