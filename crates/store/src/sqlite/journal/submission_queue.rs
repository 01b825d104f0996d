//! Submissions that wait for the writer (group commit).

use parking_lot::Mutex;
use tocsin_model::{id::ChangeSequence, time::Timestamp};
use tokio::sync::oneshot;

use crate::{
    error::StoreError,
    journal::{EventAcceptance, Idempotency, Mark},
    sqlite::{journal::packing::Body, writer::WAITING_WRITES_MAX},
};

/// Submission, prepared as a table row.
pub struct NewRow {
    pub(super) application: i64,
    pub(super) version: u32,
    pub(super) class: i64,
    pub(super) source: i64,
    pub(super) received_at: Timestamp,
    pub(super) accepted_at: Timestamp,
    pub(super) snapshot_sequence: ChangeSequence,
    pub(super) events: u32,
    pub(super) body: Body,
    /// Packed trace contexts; empty if there are none.
    pub(super) traces: Vec<u8>,
    pub(super) idempotency: Option<Idempotency>,
    pub(super) marks: Vec<Mark>,
}

/// Submissions waiting for the writer (group commit). Those that queue during a commit are stored by one job, which
/// updates the counters once.
#[derive(Default)]
pub struct SubmissionQueue(Mutex<Vec<QueuedSubmission>>);

type QueuedSubmission = (NewRow, Answer);

pub(super) type Answer = oneshot::Sender<Result<EventAcceptance, StoreError>>;

impl SubmissionQueue {
    /// Queues a submission. Returns whether it is the first, so the caller must submit the writer job.
    pub(super) fn join(&self, row: NewRow, answer: Answer) -> Result<bool, StoreError> {
        let mut waiting = self.0.lock();
        if waiting.len() >= WAITING_WRITES_MAX {
            return Err(StoreError::Full(format!("{WAITING_WRITES_MAX} submissions are already waiting")));
        }
        waiting.push((row, answer));
        Ok(waiting.len() == 1)
    }

    pub(super) fn take(&self) -> (Vec<NewRow>, Vec<Answer>) {
        std::mem::take(&mut *self.0.lock()).into_iter().unzip()
    }
}
