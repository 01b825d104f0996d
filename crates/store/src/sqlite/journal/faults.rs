//! A broken journal, on purpose: shows that the crash tests bite. Not part of a release build.

use std::sync::OnceLock;

use parking_lot::Mutex;
use rusqlite::Connection;
use tocsin_model::id::EventBatchId;

use super::{Shared, tally::Last};
use crate::{
    error::StoreError,
    journal::Accepted,
    sqlite::writer::{AfterCommit, Database},
};

/// How many submissions are answered before the first of them is stored, from `TOCSIN_FAULT_EARLY_ANSWERS`; 0 is none.
fn early_answers() -> usize {
    static COUNT: OnceLock<usize> = OnceLock::new();
    *COUNT.get_or_init(|| {
        std::env::var("TOCSIN_FAULT_EARLY_ANSWERS").ok().and_then(|count| count.parse().ok()).unwrap_or(0)
    })
}

type Held = Box<dyn FnOnce(&Connection, &mut AfterCommit) -> Result<(), StoreError> + Send>;

/// Answers at once, and stores only when enough submissions have been answered. Gives the row back if it is off.
pub async fn answer_early<Row: Send + 'static>(
    database: &Database,
    shared: &Shared,
    row: Row,
    store: fn(&Connection, &mut AfterCommit, &Shared, Row, u64) -> Result<Accepted, StoreError>,
) -> Result<Result<Accepted, StoreError>, Row> {
    static HELD: Mutex<Vec<Held>> = Mutex::new(Vec::new());
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
    Ok(Ok(Accepted::New(EventBatchId(id))))
}
