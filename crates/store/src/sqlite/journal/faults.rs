//! Fault injection: a journal that acknowledges before it stores. Shows that the crash tests detect this. Not in
//! release builds.

use std::sync::OnceLock;

use parking_lot::Mutex;
use rusqlite::Connection;
use tocsin_model::id::EventBatchId;

use super::counters::Last;
use crate::{
    error::StoreError,
    journal::EventAcceptance,
    sqlite::{
        journal::context::JournalContext,
        writer::{AfterCommit, Database},
    },
};

/// Number of submissions acknowledged before the first of them is stored, from `TOCSIN_FAULT_EARLY_ANSWERS`; 0
/// disables it.
fn early_answers() -> usize {
    static COUNT: OnceLock<usize> = OnceLock::new();
    *COUNT.get_or_init(|| {
        std::env::var("TOCSIN_FAULT_EARLY_ANSWERS").ok().and_then(|count| count.parse().ok()).unwrap_or(0)
    })
}

type DelayedStore = Box<dyn FnOnce(&Connection, &mut AfterCommit) -> Result<(), StoreError> + Send>;

/// Acknowledges at once, and stores once enough submissions were acknowledged. Returns the row if the fault is
/// disabled.
pub async fn answer_early<Row: Send + 'static>(
    database: &Database,
    shared: &JournalContext,
    row: Row,
    store: fn(&Connection, &mut AfterCommit, &JournalContext, Row, u64) -> Result<EventAcceptance, StoreError>,
) -> Result<Result<EventAcceptance, StoreError>, Row> {
    static HELD: Mutex<Vec<DelayedStore>> = Mutex::new(Vec::new());
    if early_answers() == 0 {
        return Err(row);
    }
    let id = Last::next(&shared.counters.last.event_batch);
    let shared = shared.clone();
    let ready = {
        let mut held = HELD.lock();
        held.push(Box::new(move |connection, after| store(connection, after, &shared, row, id).map(|_| ())));
        if held.len() < early_answers() { Vec::new() } else { std::mem::take(&mut *held) }
    };
    for job in ready {
        let _ = database.write(job).await;
    }
    Ok(Ok(EventAcceptance::New(EventBatchId(id))))
}
