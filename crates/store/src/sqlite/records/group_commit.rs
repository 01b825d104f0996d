//! Group commit: one job of the writer for all changes of a kind that wait.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::{
    error::StoreError,
    records::{DocumentVersion, Written},
    sqlite::{
        audit,
        records::{
            notifybc_documents::{self, DocumentPuts},
            prepared::PreparedChange,
            published_state::PublishedState,
            transaction::RecordsTransaction,
            waiting_queue::{Answer, WaitingChange, WaitingQueue},
        },
    },
};

/// Change that is written in groups. An error fails the whole group, so a refused change is a value.
pub(super) trait GroupedChange: Send + Sized + 'static {
    /// Result of one change.
    type Result: Send + 'static;

    /// Queue of these changes.
    fn queue(published: &PublishedState) -> &WaitingQueue<Self, Self::Result>;

    /// Writes the change; a second time after a rollback.
    fn write(&self, tx: &mut RecordsTransaction<'_>) -> Result<Self::Result, StoreError>;
}

impl GroupedChange for PreparedChange {
    type Result = bool;

    fn queue(published: &PublishedState) -> &WaitingQueue<Self, bool> {
        &published.waiting
    }

    fn write(&self, tx: &mut RecordsTransaction<'_>) -> Result<bool, StoreError> {
        PreparedChange::write(self, tx)
    }
}

impl GroupedChange for DocumentPuts {
    type Result = Vec<Written<DocumentVersion>>;

    fn queue(published: &PublishedState) -> &WaitingQueue<Self, Self::Result> {
        &published.waiting_documents
    }

    fn write(&self, tx: &mut RecordsTransaction<'_>) -> Result<Self::Result, StoreError> {
        notifybc_documents::put_many(tx, &self.puts, self.now)
    }
}

/// Writer job of a group commit, and the callers waiting for it.
pub(super) struct GroupCommit<C: GroupedChange> {
    pub(super) published: Arc<PublishedState>,
    pub(super) stage: Mutex<Stage<C>>,
}

pub(super) enum Stage<C: GroupedChange> {
    /// The writer has not started the job.
    Submitted,
    /// Changes taken by the first run; a retry after a rollback applies the same ones.
    Started(Vec<WaitingChange<C>>, Vec<Answer<C::Result>>),
    Answered,
}

impl<C: GroupedChange> GroupCommit<C> {
    pub(super) fn write(&self, tx: &mut RecordsTransaction<'_>) -> Result<Vec<C::Result>, StoreError> {
        let mut stage = self.stage.lock();
        if let Stage::Submitted = &*stage {
            let (changes, answers) = C::queue(&self.published).take();
            *stage = Stage::Started(changes, answers);
        }
        let Stage::Started(changes, _) = &*stage else { return Ok(Vec::new()) };
        let mut written = Vec::with_capacity(changes.len());
        for WaitingChange { change, context } in changes {
            let (result, entries) = audit::audited(tx.connection, context.as_ref(), || change.write(tx))?;
            tx.audit_entries += entries;
            written.push(result);
        }
        Ok(written)
    }

    pub(super) fn answer(&self, result: Result<Vec<C::Result>, StoreError>) {
        let stage = std::mem::replace(&mut *self.stage.lock(), Stage::Answered);
        let answers = match stage {
            Stage::Submitted => C::queue(&self.published).take().1,
            Stage::Started(_, answers) => answers,
            Stage::Answered => return,
        };
        // A caller that stopped waiting has its change applied nevertheless.
        match result {
            Ok(written) => answers.into_iter().zip(written).for_each(|(answer, written)| {
                let _ = answer.send(Ok(written));
            }),
            Err(error) => answers.into_iter().for_each(|answer| {
                let _ = answer.send(Err(copy_error(&error)));
            }),
        }
    }
}

impl<C: GroupedChange> Drop for GroupCommit<C> {
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
