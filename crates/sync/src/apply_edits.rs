//! Applies the edits of an uploaded block in order, each once.

use std::collections::{HashMap, hash_map::Entry};

use tocsin_model::{
    problem::{Code, Problem},
    replica::{BATCH_CHARS_MAX, Met, Refused, SentEdit, Uploaded},
};
use tocsin_store::{
    collections::{AuthorNumber, DeviceNumber, KeyNumber, ReplicaDevice},
    error::StoreError,
    sqlite::collections::RowTransaction,
};

use crate::{
    catalogue::{Collections, usable},
    error::SyncError,
    programs::PendingConflicts,
    reconcile::{EditOutcome, Editor},
    sessions::Lineage,
};

/// Maximum edit number: larger ones fit neither into a signed column nor, by far, into a replica.
const EDIT_NUMBER_MAX: u64 = i64::MAX.cast_unsigned();

pub(crate) fn check_batches(edits: &[SentEdit]) -> Result<(), SyncError> {
    if let Some(bad) = edits.iter().map(SentEdit::n).find(|n| !(1..=EDIT_NUMBER_MAX).contains(n)) {
        return Err(SyncError::from(
            Problem::new(Code::OutOfRange, "n", format!("is {bad}; edits are counted from 1 to {EDIT_NUMBER_MAX}"))
                .param("least", 1)
                .param("most", EDIT_NUMBER_MAX),
        ));
    }
    edits.iter().filter_map(SentEdit::batch).try_for_each(|batch| check_batch("batch", batch))
}

pub(crate) fn check_batch(path: &str, batch: &str) -> Result<(), SyncError> {
    let fits = (1..=BATCH_CHARS_MAX).contains(&batch.len())
        && batch.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'));
    if fits {
        return Ok(());
    }
    let message = format!("must be 1 to {BATCH_CHARS_MAX} letters, digits, `-` and `_`; use a random id");
    Err(SyncError::from(Problem::new(Code::InvalidFormat, path, message).param("format", "batch_id")))
}

/// The batch of edits being applied.
struct OpenBatch<'a> {
    id: &'a str,
    author: AuthorNumber,
    /// Last applied edit; `None`: the batch is new.
    upto: Option<u64>,
    is_changed: bool,
}

impl<'a> OpenBatch<'a> {
    /// Finds a batch. A new batch belongs to the author whose last batch it continues. If that is unknown or already
    /// continued by another batch, the replica is a copy with an author of its own.
    fn open(
        ledger: &mut RowTransaction<'_>,
        device: DeviceNumber,
        id: &'a str,
        before: Option<&str>,
        lineage: &Lineage,
    ) -> Result<OpenBatch<'a>, StoreError> {
        if let Some(known) = ledger.batch(device, id)? {
            return Ok(OpenBatch { id, author: known.author, upto: Some(known.upto), is_changed: false });
        }
        let continued =
            before.into_iter().chain(lineage.batches.iter().map(String::as_str)).filter(|known| *known != id);
        let mut author = None;
        for known in continued {
            if let Some(known) = ledger.batch(device, known)? {
                author = Some(known).filter(|known| known.is_last).map(|known| known.author);
                let author = match author {
                    Some(author) => author,
                    None => ledger.make_author(device)?,
                };
                return Ok(OpenBatch { id, author, upto: None, is_changed: false });
            }
        }
        if author.is_none() && !ledger.has_batches(device)? {
            author = Some(device);
        }
        let author = match author {
            Some(author) => author,
            None => ledger.make_author(device)?,
        };
        Ok(OpenBatch { id, author, upto: None, is_changed: false })
    }

    fn close(self, ledger: &mut RowTransaction<'_>, device: DeviceNumber) -> Result<(), StoreError> {
        match self.upto {
            Some(upto) if self.is_changed => ledger.put_batch(device, self.id, self.author, upto),
            _ => Ok(()),
        }
    }
}

/// The problem of a block with a gap in its numbers. It is found before anything of the block is applied.
fn find_gap(
    ledger: &mut RowTransaction<'_>,
    device: &ReplicaDevice,
    edits: &[SentEdit],
    lineage: &Lineage,
) -> Result<Option<SyncError>, StoreError> {
    let counted_before = ledger.uploaded(device.number)?;
    let mut counted = counted_before;
    let mut batches: HashMap<&str, Option<u64>> = HashMap::new();
    for sent in edits {
        let n = sent.n();
        let expected = match sent.batch() {
            None if n <= counted => continue,
            None => {
                let expected = Some(counted + 1).filter(|_| !lineage.may_skip || counted != counted_before);
                counted = n;
                expected
            }
            Some(id) => {
                let upto = match batches.entry(id) {
                    Entry::Occupied(known) => known.into_mut(),
                    Entry::Vacant(new) => new.insert(ledger.batch(device.number, id)?.map(|known| known.upto)),
                };
                if upto.is_some_and(|upto| n <= upto) {
                    continue;
                }
                upto.replace(n).map(|upto| upto + 1)
            }
        };
        if let Some(expected) = expected.filter(|expected| *expected != n) {
            let message = format!("is {n} where {expected} was expected; send edits in order, without gaps");
            return Ok(Some(SyncError::invalid(Code::Conflict, "n", message)));
        }
    }
    Ok(None)
}

/// Applies edits to rows in order, and records the last one. `decided`: outcomes of edits of built-in rows. The inner
/// result holds the problem of the whole block.
#[expect(clippy::too_many_arguments, reason = "the one call is next to it, and a struct would name each of them twice")]
pub(crate) fn take_in(
    ledger: &mut RowTransaction<'_>,
    device: &ReplicaDevice,
    collections: &Collections,
    held: &[KeyNumber],
    edits: &[SentEdit],
    mut decided: HashMap<(Option<String>, u64), EditOutcome>,
    conflicts: &PendingConflicts,
    lineage: &Lineage,
) -> Result<Result<Uploaded, SyncError>, StoreError> {
    let counted_before = ledger.uploaded(device.number)?;
    let mut counted = counted_before;
    let mut taken = Uploaded { uploaded: counted, ..Uploaded::default() };
    let mut batch: Option<OpenBatch<'_>> = None;
    if let Some(gap) = find_gap(ledger, device, edits, lineage)? {
        return Ok(Err(gap));
    }
    for sent in edits {
        let n = sent.n();
        match sent.batch() {
            None if n <= counted => continue,
            None => {}
            Some(id) => {
                if batch.as_ref().is_none_or(|batch| batch.id != id) {
                    let before = batch.as_ref().map(|batch| batch.id);
                    if let Some(batch) = batch.take() {
                        batch.close(ledger, device.number)?;
                    }
                    batch = Some(OpenBatch::open(ledger, device.number, id, before, lineage)?);
                }
                if batch.as_ref().and_then(|batch| batch.upto).is_some_and(|upto| n <= upto) {
                    taken.uploaded = n;
                    continue;
                }
            }
        }
        let author = match &mut batch {
            Some(batch) if sent.batch().is_some() => {
                (batch.upto, batch.is_changed) = (Some(n), true);
                batch.author
            }
            _ => {
                if n > counted + 1 {
                    tracing::warn!(device = %device.id, from = counted + 1, to = n - 1, "the server was restored, and these edits were lost");
                }
                counted = n;
                device.number
            }
        };
        taken.uploaded = n;
        let editor =
            Editor { application: &device.application, collections, device: device.number, author, held, conflicts };
        let (outcome, fields) = match sent {
            SentEdit::Unreadable(bad) => (EditOutcome::Refused(vec![bad.problem.clone()]), Vec::new()),
            SentEdit::Edit(edit) => match usable(device, collections).find(|ready| ready.name == edit.collection) {
                Some(ready) if ready.definition.direction.is_up() && ready.definition.built_in.is_some() => {
                    let outcome = decided.remove(&(edit.batch.clone(), n));
                    (outcome.expect("each edit after the last accepted one has an outcome"), Vec::new())
                }
                Some(ready) if ready.definition.direction.is_up() => editor.apply(ledger, ready, edit)?,
                Some(_) => {
                    (EditOutcome::Refused(vec![Problem::new(Code::ReadOnly, "collection", "is read-only")]), Vec::new())
                }
                None => (
                    EditOutcome::Refused(vec![Problem::new(
                        Code::NotPermitted,
                        "collection",
                        "is not available to this device",
                    )]),
                    Vec::new(),
                ),
            },
        };
        let problems = match outcome {
            EditOutcome::Applied => {
                taken.applied += 1;
                fields
            }
            EditOutcome::Conflicted(winner) => {
                taken.conflicts.push(Met { n, winner });
                fields
            }
            EditOutcome::Refused(problems) => problems,
        };
        if !problems.is_empty() {
            taken.refused.push(Refused { n, problems });
        }
    }
    if let Some(batch) = batch {
        batch.close(ledger, device.number)?;
    }
    if counted != counted_before {
        ledger.set_uploaded(device.number, counted)?;
    }
    Ok(Ok(taken))
}
