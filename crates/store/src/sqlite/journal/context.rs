//! The shared state of the journal: counters, claims, names, and the channels that report new work.

use std::sync::Arc;

use rusqlite::Connection;
use tokio::sync::watch;

use crate::{
    error::StoreError,
    sqlite::{
        journal::{counters::Counters, leases::Claims, names::Names, submission_queue},
        writer::store_error,
    },
};

/// State shared between callers, the writer thread and the readers.
#[derive(Clone)]
pub(super) struct JournalContext {
    pub(super) names: Arc<Names>,
    pub(super) claims: Arc<Claims>,
    pub(super) counters: Arc<Counters>,
    pub(super) arrivals: Arc<Senders>,
    pub(super) submissions: Arc<submission_queue::SubmissionQueue>,
}

/// Wake-up signals for waiting workers.
pub(super) struct Senders {
    pub(super) events: watch::Sender<u64>,
    pub(super) work: watch::Sender<u64>,
}

impl Senders {
    pub(super) fn events(&self) {
        self.events.send_modify(|count| *count += 1);
    }

    pub(super) fn work(&self) {
        self.work.send_modify(|count| *count += 1);
    }
}

impl JournalContext {
    /// Loads the in-memory state of a newly opened file.
    pub(super) fn load(connection: &Connection) -> Result<JournalContext, StoreError> {
        let epoch = connection
            .query_row("UPDATE epoch SET number = number + 1 RETURNING number", (), |row| row.get(0))
            .map_err(store_error)?;
        Ok(JournalContext {
            names: Arc::new(Names::load(connection)?),
            claims: Arc::new(Claims::new(epoch)),
            counters: Arc::new(Counters::load(connection)?),
            arrivals: Arc::new(Senders { events: watch::Sender::new(0), work: watch::Sender::new(0) }),
            submissions: Arc::default(),
        })
    }
}

/// Runs CPU-bound work inline for few bytes, on a blocking thread for many.
pub(crate) async fn off_the_runtime<T: Send + 'static>(
    bytes: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, StoreError> {
    if bytes <= INLINE_BYTES_MAX {
        return Ok(work());
    }
    tokio::task::spawn_blocking(work).await.map_err(StoreError::unavailable)
}

/// Packing more bytes than this would block an async worker thread for too long.
const INLINE_BYTES_MAX: usize = 256 << 10;
