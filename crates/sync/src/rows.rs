//! The same rows for everybody else: written over the API, listed, and put back where an edit had lost.

use std::sync::Arc;

use serde_json::{Map, Value as Json};
use tocsin_model::{collection::Stamp, field::Fields, id::Name, problem::Problem, time::Timestamp, value::Value};
use tocsin_store::{
    collections::{CollectionCounts, Conflict, StoredRow},
    error::StoreError,
    sqlite::collections::Ledger,
};

use crate::{
    Replicas, SyncError,
    catalogue::{Collections, Ready},
    no_collection,
    reconcile::{Write, objection_to_id, read, remove_row, write_row},
    spread,
};

/// Rows that are written by one request, at most.
pub const ROWS_AT_ONCE_MAX: usize = 10_000;
/// Problems that are told of rows of which all or none are written, at most.
const PROBLEMS_MAX: usize = 100;

/// A row as everybody else sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct RowShown {
    /// Its id.
    pub id: String,
    /// When what it says last changed.
    pub version: Stamp,
    /// What it says, as a JSON object.
    pub body: Box<str>,
}

/// What is done to a row.
#[derive(Debug, Clone, PartialEq)]
pub enum RowChange {
    /// It says this; fields that are not given take their default.
    Put(Map<String, Json>),
    /// These fields say this; `null` empties one.
    Patch(Map<String, Json>),
    /// It says what it said before. What does not fit the fields any more is passed over.
    Restore(Map<String, Json>),
    /// It goes.
    Remove,
}

/// Whether some of many rows may stay behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Together {
    /// All are stored, or none.
    All,
    /// What cannot be stored does not stop the others.
    Those,
}

/// One of many rows that cannot be stored.
#[derive(Debug, Clone, PartialEq)]
pub struct RefusedRow {
    /// Its place among them, from 0.
    pub at: usize,
    /// Its id.
    pub id: String,
    /// Why.
    pub problems: Vec<Problem>,
}

/// A conflict as everybody else sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct ConflictShown {
    /// Its collection.
    pub collection: Name,
    /// The device's id, if it is still there.
    pub device: Option<String>,
    /// The act.
    pub conflict: Conflict,
}

impl Replicas {
    /// How many rows there are.
    pub fn counts(&self) -> CollectionCounts {
        self.store.counts()
    }

    /// When a row was written, by its version.
    pub fn written_at(version: Stamp) -> Timestamp {
        version.time()
    }

    /// A row.
    ///
    /// # Errors
    /// `Missing` if there is none.
    pub async fn row(&self, application: &Name, collection: &str, id: &str) -> Result<RowShown, SyncError> {
        let (collections, number) = self.find(application, collection).await?;
        let row = self.store.row(number, id).await?;
        let shown = row.map(|row| shown(&collections, row)).transpose()?;
        shown.flatten().ok_or_else(|| no_row(collection, id))
    }

    /// Rows of a collection by their ids, behind one.
    ///
    /// # Errors
    /// `Missing` if there is no such collection.
    pub async fn rows(
        &self,
        application: &Name,
        collection: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<RowShown>, SyncError> {
        let (collections, number) = self.find(application, collection).await?;
        let rows = self.store.rows(number, after.unwrap_or_default(), limit).await?;
        let shown = rows.into_iter().filter_map(|row| shown(&collections, row).transpose());
        Ok(shown.collect::<Result<_, _>>()?)
    }

    /// Changes a row, if it is as the caller saw it where `expect` says how; 0: it must not be there. Gives it as it is then;
    /// `None`: it is gone. Removing what is not there changes nothing.
    ///
    /// # Errors
    /// What is wrong with it; `Changed`; `Missing` for a patch of what is not there.
    pub async fn change_row(
        &self,
        application: &Name,
        collection: &str,
        id: &str,
        change: RowChange,
        expect: Option<Stamp>,
    ) -> Result<Option<RowShown>, SyncError> {
        let (collections, _) = self.find_writable(application, collection).await?;
        let (application, name, id) = (application.clone(), collection.to_owned(), id.to_owned());
        let job = move |ledger: &mut Ledger<'_>| {
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

    /// Puts many rows, all in one commit, or those of them that can be stored. Gives those that cannot be.
    ///
    /// # Errors
    /// Where all have to be stored: what is wrong with those that cannot be; nothing was stored.
    pub async fn put_rows(
        &self,
        application: &Name,
        collection: &str,
        rows: Vec<(String, Map<String, Json>)>,
        together: Together,
    ) -> Result<Vec<RefusedRow>, SyncError> {
        if rows.len() > ROWS_AT_ONCE_MAX {
            return Err(SyncError::invalid("", format!("has {} rows; at most {ROWS_AT_ONCE_MAX} fit", rows.len())));
        }
        let (collections, _) = self.find_writable(application, collection).await?;
        let (application, name) = (application.clone(), collection.to_owned());
        let failed = Arc::new(parking_lot::Mutex::new(Vec::new()));
        let noted = failed.clone();
        let job = move |ledger: &mut Ledger<'_>| {
            let ready = collections.get(&name).expect("it was found");
            let mut refused = Vec::new();
            for (at, (id, values)) in rows.into_iter().enumerate() {
                match change_one(ledger, &application, &collections, ready, &id, RowChange::Put(values))? {
                    Ok(()) => {}
                    Err(SyncError::Invalid(problems)) => refused.push(RefusedRow { at, id, problems }),
                    Err(error) => return Ok(Err(error)),
                }
            }
            if together == Together::All && !refused.is_empty() {
                *noted.lock() = refused;
                // The job has to fail, so that nothing of it stays.
                return Err(StoreError::Changed("a row".to_owned()));
            }
            Ok(Ok(refused))
        };
        let written = self.store.write(self.now(), job).await;
        let failed = std::mem::take(&mut *failed.lock());
        if failed.is_empty() { written? } else { Err(SyncError::Invalid(told(failed))) }
    }

    /// The conflicts of an application, or of one of its collections, newest first.
    ///
    /// # Errors
    /// `Missing` if there is no such collection.
    pub async fn conflicts(
        &self,
        application: &Name,
        collection: Option<&str>,
        before: Option<u64>,
        limit: usize,
    ) -> Result<Vec<ConflictShown>, SyncError> {
        let collections = self.collections_of(application).await?;
        let numbers = match collection {
            Some(name) => vec![collections.get(name).ok_or_else(|| no_collection(application, name))?.number],
            None => collections.iter().map(|ready| ready.number).collect(),
        };
        let found = self.store.conflicts(numbers, before, limit).await?;
        let shown = found.into_iter().filter_map(|conflict| {
            let collection = collections.of_number(conflict.collection)?.name.clone();
            let device = self.devices.of_number(conflict.device).map(|device| device.id.to_string());
            Some(ConflictShown { collection, device, conflict })
        });
        Ok(shown.collect())
    }

    /// Puts in place what had lost in a conflict, as a write of now: the fields of the edit that did not stay, or the removal.
    ///
    /// # Errors
    /// `Missing` if there is no such conflict; what is wrong with the row now.
    pub async fn revert_conflict(&self, application: &Name, number: u64) -> Result<(), SyncError> {
        let collections = self.collections_of(application).await?;
        let application = application.clone();
        let job = move |ledger: &mut Ledger<'_>| {
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

    /// A collection whose rows others may write.
    async fn find_writable(&self, application: &Name, collection: &str) -> Result<(Arc<Collections>, u32), SyncError> {
        let found = self.find(application, collection).await?;
        match found.0.get(collection).is_some_and(|ready| ready.definition.built_in.is_some()) {
            true => Err(SyncError::invalid("collection", "is built in: change what it tells of, and its rows follow")),
            false => Ok(found),
        }
    }

    async fn find(&self, application: &Name, collection: &str) -> Result<(Arc<Collections>, u32), SyncError> {
        let collections = self.collections_of(application).await?;
        let number = collections.get(collection).ok_or_else(|| no_collection(application, collection))?.number;
        Ok((collections, number))
    }
}

/// What would be so if the other side had won. A row that is gone comes back as a whole.
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

/// A row as the fields of its collection are now; `None`: it is gone.
fn shown(collections: &Collections, row: StoredRow) -> Result<Option<RowShown>, StoreError> {
    let Some(ready) = collections.of_number(row.collection) else { return Ok(None) };
    if row.body.is_none() {
        return Ok(None);
    }
    let fields = &ready.definition.fields;
    let body = fields.to_json(&read(fields, &row)?).into();
    Ok(Some(RowShown { id: row.id.into(), version: row.version, body }))
}

fn no_row(collection: &str, id: &str) -> SyncError {
    SyncError::Missing(format!("the row `{id}` of `{collection}`"))
}

/// What is wrong with several rows, the first of it, each with its place among them.
fn told(refused: Vec<RefusedRow>) -> Vec<Problem> {
    let problems = refused.into_iter().flat_map(|RefusedRow { at, problems, .. }| {
        problems.into_iter().map(move |problem| {
            let path = format!("[{at}].{}", problem.path).trim_end_matches('.').to_owned();
            Problem { path, ..problem }
        })
    });
    problems.take(PROBLEMS_MAX).collect()
}

pub(crate) fn change_one(
    ledger: &mut Ledger<'_>,
    application: &Name,
    collections: &Collections,
    ready: &Ready,
    id: &str,
    change: RowChange,
) -> Result<Result<(), SyncError>, StoreError> {
    if let Some(problem) = objection_to_id(id) {
        return Ok(Err(SyncError::Invalid(vec![problem])));
    }
    let fields = &ready.definition.fields;
    let found = ledger.row(ready.number, id)?;
    let present = found.as_ref().filter(|row| row.body.is_some());
    // Whoever writes over the API knows all that there is.
    let seen = ledger.coming();
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
    let belonging = spread::belonging(ledger, application, collections, ready, &row)?;
    let write = Write { id, change: &row, fields: &changed, author: 0, seen };
    let written = write_row(ledger, application, collections, ready, found.as_ref(), write, belonging)?;
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
            Err(message) => problems.push(Problem::at(name, message)),
        }
    }
    problems.extend(fields.taken_away(&row, &stored));
    if problems.is_empty() { Ok(row) } else { Err(problems) }
}
