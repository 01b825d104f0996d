//! Group commit of prepared changes: one job of the writer for all that wait.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::{
    error::StoreError,
    sqlite::records::{
        prepared::{Answer, PreparedChange},
        published_state::PublishedState,
        transaction::RecordsTransaction,
    },
};

/// Writer job of a group commit, and the callers waiting for it.
pub(super) struct GroupCommit {
    pub(crate) published: Arc<PublishedState>,
    pub(super) stage: Mutex<Stage>,
}

pub(super) enum Stage {
    /// The writer has not started the job.
    Submitted,
    /// Changes taken by the first run; a retry after a rollback applies the same ones.
    Started(Vec<PreparedChange>, Vec<Answer>),
    Answered,
}

impl GroupCommit {
    pub(super) fn write(&self, tx: &mut RecordsTransaction<'_>) -> Result<Vec<bool>, StoreError> {
        let mut stage = self.stage.lock();
        if let Stage::Submitted = &*stage {
            let (changes, answers) = self.published.waiting.take();
            *stage = Stage::Started(changes, answers);
        }
        let Stage::Started(changes, _) = &*stage else { return Ok(Vec::new()) };
        changes.iter().map(|change| change.write(tx)).collect()
    }

    pub(super) fn answer(&self, result: Result<Vec<bool>, StoreError>) {
        let stage = std::mem::replace(&mut *self.stage.lock(), Stage::Answered);
        let answers = match stage {
            Stage::Submitted => self.published.waiting.take().1,
            Stage::Started(_, answers) => answers,
            Stage::Answered => return,
        };
        // A caller that stopped waiting has its change applied nevertheless.
        match result {
            Ok(written) => answers.into_iter().zip(written).for_each(|(answer, is_written)| {
                let _ = answer.send(Ok(is_written));
            }),
            Err(error) => answers.into_iter().for_each(|answer| {
                let _ = answer.send(Err(copy_error(&error)));
            }),
        }
    }
}

impl Drop for GroupCommit {
    fn drop(&mut self) {
        // A writer that ended drops queued jobs; without this, the next caller would believe that a job is submitted.
        self.answer(Err(StoreError::unavailable("the writer has ended")));
    }
}

/// Copy of an error for each caller that shared it.
fn copy_error(error: &StoreError) -> StoreError {
    match error {
        StoreError::Full(why) => StoreError::Full(why.clone()),
        StoreError::Damaged(why) => StoreError::Damaged(why.clone()),
        other => StoreError::unavailable(other.to_string()),
    }
}
