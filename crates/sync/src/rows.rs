//! Rows for the API: read, list, write, and revert of lost conflicts.

use std::sync::Arc;

use serde_json::{Map, Value as Json};
use tocsin_model::{
    collection::Stamp,
    field::Fields,
    id::Name,
    problem::{Code, Problem},
    time::Timestamp,
    value::Value,
};
use tocsin_store::{
    collections::{CollectionCounts, Conflict, StoredRow},
    error::StoreError,
    sqlite::collections::RowTransaction,
};

use crate::{
    catalogue::{Collections, Ready},
    error::{SyncError, no_collection},
    reconcile::{Write, check_row_id, read, remove_row, write_row},
    replicas::Replicas,
    row_sharing,
};

/// Maximum rows written by one request.
pub const ROWS_AT_ONCE_MAX: usize = 10_000;
/// Maximum problems reported for an all-or-nothing write.
const PROBLEMS_MAX: usize = 100;

/// A row as the API returns it.
#[derive(Debug, Clone, PartialEq)]
pub struct RowView {
    /// Id.
    pub id: String,
    /// Version: time of the last change.
    pub version: Stamp,
    /// Body, a JSON object.
    pub body: Box<str>,
}

/// Change of a row.
#[derive(Debug, Clone, PartialEq)]
pub enum RowChange {
    /// Replaces the row; missing fields get their defaults.
    Put(Map<String, Json>),
    /// Sets these fields; `null` clears one.
    Patch(Map<String, Json>),
    /// Restores a former body. Fields that no longer fit are ignored.
    Restore(Map<String, Json>),
    /// Removes the row.
    Remove,
}

/// Atomicity of a write of many rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteMode {
    /// All or nothing.
    All,
    /// Stores the valid rows.
    Those,
}

/// A rejected row of a write of many.
#[derive(Debug, Clone, PartialEq)]
pub struct RefusedRow {
    /// Index among the rows, from 0.
    pub at: usize,
    /// Id.
    pub id: String,
    /// Problems.
    pub problems: Vec<Problem>,
}

/// A conflict as the API returns it.
#[derive(Debug, Clone, PartialEq)]
pub struct ConflictView {
    /// Collection.
    pub collection: Name,
    /// Id of the device, if it still exists.
    pub device: Option<String>,
    /// The logged conflict.
    pub conflict: Conflict,
}

impl Replicas {
    /// Row counts.
    pub fn counts(&self) -> CollectionCounts {
        self.store.counts()
    }

    /// Time of a version.
    pub fn written_at(version: Stamp) -> Timestamp {
        version.time()
    }

    /// Reads a row.
    ///
    /// # Errors
    /// `Missing` if there is none.
    pub async fn row(&self, application: &Name, collection: &str, id: &str) -> Result<RowView, SyncError> {
        let (collections, number) = self.find(application, collection).await?;
        let row = self.store.row(number, id).await?;
        let shown = row.map(|row| shown(&collections, row)).transpose()?;
        shown.flatten().ok_or_else(|| no_row(collection, id))
    }

    /// Lists rows of a collection by id, after a given one.
    ///
    /// # Errors
    /// `Missing` if there is no such collection.
    pub async fn rows(
        &self,
        application: &Name,
        collection: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<RowView>, SyncError> {
        let (collections, number) = self.find(application, collection).await?;
        let rows = self.store.rows(number, after.unwrap_or_default(), limit).await?;
        let shown = rows.into_iter().filter_map(|row| shown(&collections, row).transpose());
        Ok(shown.collect::<Result<_, _>>()?)
    }

    /// Changes a row. With `expect`, the row must have that version (optimistic concurrency); 0: it must not exist.
    /// Returns the new row; `None`: it is removed. Removing a missing row changes nothing.
    ///
    /// # Errors
    /// The row is invalid; `Changed`; `Missing` for a patch of a missing row.
    pub async fn change_row(
        &self,
        application: &Name,
        collection: &str,
        id: &str,
        change: RowChange,
        expect: Option<Stamp>,
    ) -> Result<Option<RowView>, SyncError> {
        let (collections, _) = self.find_writable(application, collection).await?;
        let (application, name, id) = (application.clone(), collection.to_owned(), id.to_owned());
        let job = move |ledger: &mut RowTransaction<'_>| {
            let ready = collections.get(&name).expect("it was found");
            let found = ledger.row(ready.number, &id)?;
            let present = found.as_ref().filter(|row| row.body.is_some());
            if expect.is_some_and(|expect| present.map_or(Stamp(0), |row| row.version) != expect) {
                return Ok(Err(SyncError::Changed(format!("the row `{id}`"))));
            }
            let changed = change_one(ledger, &application, &collections, ready, &id, change)?;
            if let Err(error) = changed {
                return Ok(Err(error));
            }
            let row = ledger.row(ready.number, &id)?;
            Ok(Ok(row.map(|row| shown(&collections, row)).transpose()?.flatten()))
        };
        self.store.write(self.now(), job).await?
    }

    /// Writes many rows in one transaction: all, or the valid ones. Returns the rejected ones.
    ///
    /// # Errors
    /// For all-or-nothing: the problems; nothing was stored.
    pub async fn put_rows(
        &self,
        application: &Name,
        collection: &str,
        rows: Vec<(String, Map<String, Json>)>,
        together: WriteMode,
    ) -> Result<Vec<RefusedRow>, SyncError> {
        if rows.len() > ROWS_AT_ONCE_MAX {
            return Err(SyncError::from(
                Problem::new(Code::TooMany, "", format!("has {} rows; the maximum is {ROWS_AT_ONCE_MAX}", rows.len()))
                    .param("given", rows.len())
                    .param("limit", ROWS_AT_ONCE_MAX),
            ));
        }
        let (collections, _) = self.find_writable(application, collection).await?;
        let (application, name) = (application.clone(), collection.to_owned());
        let failed = Arc::new(parking_lot::Mutex::new(Vec::new()));
        let noted = failed.clone();
        let job = move |ledger: &mut RowTransaction<'_>| {
            let ready = collections.get(&name).expect("it was found");
            let mut refused = Vec::new();
            for (at, (id, values)) in rows.into_iter().enumerate() {
                match change_one(ledger, &application, &collections, ready, &id, RowChange::Put(values))? {
                    Ok(()) => {}
                    Err(SyncError::Invalid(problems)) => refused.push(RefusedRow { at, id, problems }),
                    Err(error) => return Ok(Err(error)),
                }
            }
            if together == WriteMode::All && !refused.is_empty() {
                *noted.lock() = refused;
                // The job must fail, so that its transaction is rolled back.
                return Err(StoreError::Changed("a row".to_owned()));
            }
            Ok(Ok(refused))
        };
        let written = self.store.write(self.now(), job).await;
        let failed = std::mem::take(&mut *failed.lock());
        if failed.is_empty() { written? } else { Err(SyncError::Invalid(problems_of(failed))) }
    }

    /// Conflicts of an application or one of its collections, newest first.
    ///
    /// # Errors
    /// `Missing` if there is no such collection.
    pub async fn conflicts(
        &self,
        application: &Name,
        collection: Option<&str>,
        before: Option<u64>,
        limit: usize,
    ) -> Result<Vec<ConflictView>, SyncError> {
        let collections = self.collections_of(application).await?;
        let numbers = match collection {
            Some(name) => vec![collections.get(name).ok_or_else(|| no_collection(application, name))?.number],
            None => collections.iter().map(|ready| ready.number).collect(),
        };
        let found = self.store.conflicts(numbers, before, limit).await?;
        let shown = found.into_iter().filter_map(|conflict| {
            let collection = collections.of_number(conflict.collection)?.name.clone();
            let device = self.devices.of_number(conflict.device).map(|device| device.id.to_string());
            Some(ConflictView { collection, device, conflict })
        });
        Ok(shown.collect())
    }

    /// Applies the losing side of a conflict as a new write: the fields of the losing edit, or the removal.
    ///
    /// # Errors
    /// `Missing` if there is no such conflict; the row would be invalid now.
    pub async fn revert_conflict(&self, application: &Name, number: u64) -> Result<(), SyncError> {
        let collections = self.collections_of(application).await?;
        let application = application.clone();
        let job = move |ledger: &mut RowTransaction<'_>| {
            let missing = || SyncError::Missing(format!("the conflict {number}"));
            let Some(conflict) = ledger.conflict(number)? else { return Ok(Err(missing())) };
            let Some(ready) = collections.of_number(conflict.collection) else { return Ok(Err(missing())) };
            let present = ledger.row(ready.number, &conflict.row)?.is_some_and(|row| row.body.is_some());
            let change = loser(&conflict, present, &ready.definition.fields)?;
            let done = change_one(ledger, &application, &collections, ready, &conflict.row, change)?;
            if done.is_ok() {
                ledger.revert_conflict(number)?;
            }
            Ok(done)
        };
        self.store.write(self.now(), job).await?
    }

    /// Finds a collection that the API may write.
    async fn find_writable(&self, application: &Name, collection: &str) -> Result<(Arc<Collections>, u32), SyncError> {
        let found = self.find(application, collection).await?;
        match found.0.get(collection).is_some_and(|ready| ready.definition.built_in.is_some()) {
            true => Err(SyncError::invalid(
                Code::ReadOnly,
                "collection",
                "is built in and read-only: change the subscriber instead",
            )),
            false => Ok(found),
        }
    }

    async fn find(&self, application: &Name, collection: &str) -> Result<(Arc<Collections>, u32), SyncError> {
        let collections = self.collections_of(application).await?;
        let number = collections.get(collection).ok_or_else(|| no_collection(application, collection))?.number;
        Ok((collections, number))
    }
}

/// The change that the losing side wanted. A removed row is restored as a whole.
fn loser(conflict: &Conflict, is_present: bool, fields: &Fields) -> Result<RowChange, StoreError> {
    let object = |text: &str| {
        let read = serde_json::from_str::<Option<Map<String, Json>>>(text);
        read.map_err(|_| StoreError::Damaged(format!("the conflict {}", conflict.number)))
    };
    let (client, server) = (object(&conflict.client)?, object(&conflict.server)?);
    if &*conflict.winner != "server" {
        return Ok(server.map_or(RowChange::Remove, RowChange::Restore));
    }
    Ok(match client {
        None => RowChange::Remove,
        Some(mut edited) if is_present => {
            // The fields may have changed since.
            edited.retain(|name, value| {
                let kind = fields.position(name).map(|at| fields[at].kind);
                kind.is_some_and(|kind| kind.accept(Value::from(value.clone())).is_ok())
            });
            RowChange::Patch(edited)
        }
        Some(edited) => {
            let mut whole = object(&conflict.base)?.unwrap_or_default();
            whole.extend(edited);
            RowChange::Restore(whole)
        }
    })
}

/// A row under the current fields of its collection; `None`: it is removed.
fn shown(collections: &Collections, row: StoredRow) -> Result<Option<RowView>, StoreError> {
    let Some(ready) = collections.of_number(row.collection) else { return Ok(None) };
    if row.body.is_none() {
        return Ok(None);
    }
    let fields = &ready.definition.fields;
    let body = fields.to_json(&read(fields, &row)?).into();
    Ok(Some(RowView { id: row.id.into(), version: row.version, body }))
}

fn no_row(collection: &str, id: &str) -> SyncError {
    SyncError::Missing(format!("the row `{id}` of `{collection}`"))
}

/// Problems of several rows, limited in number, each with its row index.
fn problems_of(refused: Vec<RefusedRow>) -> Vec<Problem> {
    let problems = refused.into_iter().flat_map(|RefusedRow { at, problems, .. }| {
        problems.into_iter().map(move |problem| {
            let path = format!("[{at}].{}", problem.path).trim_end_matches('.').to_owned();
            Problem { path, ..problem }
        })
    });
    problems.take(PROBLEMS_MAX).collect()
}

pub(crate) fn change_one(
    ledger: &mut RowTransaction<'_>,
    application: &Name,
    collections: &Collections,
    ready: &Ready,
    id: &str,
    change: RowChange,
) -> Result<Result<(), SyncError>, StoreError> {
    if let Some(problem) = check_row_id(id) {
        return Ok(Err(SyncError::Invalid(vec![problem])));
    }
    let fields = &ready.definition.fields;
    let found = ledger.row(ready.number, id)?;
    let present = found.as_ref().filter(|row| row.body.is_some());
    // The API counts as knowing the latest state.
    let seen = ledger.next_stamp();
    let before = present.map(|row| read(fields, row)).transpose()?;
    let after = match (change, present) {
        (RowChange::Remove, Some(row)) => {
            remove_row(ledger, application, collections, row, (0, seen))?;
            return Ok(Ok(()));
        }
        (RowChange::Remove, None) => return Ok(Ok(())),
        (RowChange::Patch(_), None) => return Ok(Err(no_row(ready.name.as_str(), id))),
        (RowChange::Put(values), None) => {
            fields.row(values.into_iter().map(|(name, value)| (name, Value::from(value))))
        }
        (RowChange::Put(values), Some(_)) => {
            fields.row_over_stored(Json::Object(values).to_string().as_bytes(), before.as_deref().unwrap_or_default())
        }
        (RowChange::Restore(values), _) => {
            fields.row_from_export(Json::Object(values).to_string().as_bytes()).map(|(row, _)| row)
        }
        (RowChange::Patch(values), Some(_)) => patched(ready, before.clone().unwrap_or_default(), values),
    };
    let row = match after {
        Ok(row) => row,
        Err(problems) => return Ok(Err(SyncError::Invalid(problems))),
    };
    let changed: Vec<usize> = match &before {
        Some(before) => (0..row.len()).filter(|at| row[*at] != before[*at]).collect(),
        None => (0..row.len()).collect(),
    };
    if changed.is_empty() && before.is_some() {
        return Ok(Ok(()));
    }
    let sharing = row_sharing::compute_sharing(ledger, application, collections, ready, &row)?;
    let write = Write { id, change: &row, fields: &changed, author: 0, seen };
    let written = write_row(ledger, application, collections, ready, found.as_ref(), write, sharing)?;
    Ok(written.map(drop).map_err(SyncError::Invalid))
}

fn patched(ready: &Ready, stored: Vec<Value>, values: Map<String, Json>) -> Result<Vec<Value>, Vec<Problem>> {
    let fields = &ready.definition.fields;
    let (mut row, mut problems) = (stored.clone(), Vec::new());
    for (name, value) in values {
        let Some(at) = fields.position(&name) else {
            problems.push(fields.unknown(&name));
            continue;
        };
        match fields[at].kind.accept(Value::from(value)) {
            Ok(value) => row[at] = value,
            Err(message) => problems.push(Problem::new(Code::WrongType, name, message)),
        }
    }
    problems.extend(fields.taken_away(&row, &stored));
    if problems.is_empty() { Ok(row) } else { Err(problems) }
}
