//! Compiles the collections of all applications again when an application changes.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use tocsin_matching::{filter::CompiledFilter, resolver, schema::Schema};
use tocsin_model::{
    collection::{Collection, Resolver},
    definition,
    field::Fields,
    id::{ChangeSequence, Name},
    problem::Problem,
    time::Timestamp,
};
use tocsin_store::{
    error::StoreError,
    records::ChangeKind,
    sqlite::collections::{RowTransaction, SqliteCollections},
};

use crate::{
    catalogue::{Collections, Ready, pending_partition},
    error::SyncError,
    replicas::Replicas,
    row_sharing,
};

/// Rows whose keys are recomputed in one commit.
const REKEYED_AT_ONCE: usize = 500;

impl Replicas {
    /// The current collections of an application.
    ///
    /// # Errors
    /// `Missing` if there is no such application; `Unavailable` if its definition cannot be read.
    pub async fn collections_of(&self, application: &Name) -> Result<Arc<Collections>, SyncError> {
        self.collections().await?;
        let found = self.catalogue.read.read().1.get(application).cloned();
        let found = found.ok_or_else(|| SyncError::Missing(format!("the application `{application}`")))?;
        found.ok_or_else(|| {
            let message = format!("the definition of `{application}` cannot be read; apply it again");
            SyncError::Store(StoreError::unavailable(message))
        })
    }

    /// Reads the applications again if they changed.
    pub(crate) async fn collections(&self) -> Result<(), SyncError> {
        let newest = *self.change_log.newest_change().borrow();
        if self.catalogue.read.read().0 == Some(newest) {
            return Ok(());
        }
        let _one_at_a_time = self.catalogue.reading.lock().await;
        let read = self.catalogue.read.read().0;
        if read == Some(newest) || !self.applications_changed(read, newest).await? {
            let mut kept = self.catalogue.read.write();
            kept.0 = kept.0.max(Some(newest));
            return Ok(());
        }
        let mut applications = HashMap::new();
        for stored in self.application_store.applications().await? {
            let collections = match definition::read(&stored.text, &*self.catalogue.environment) {
                Ok(application) => {
                    let classes = application.subscriptions.into_iter();
                    let classes = classes.map(|(name, class)| (name, class.fields)).collect();
                    Some(self.ready(&application.name, application.collections, classes).await?)
                }
                Err(problems) => {
                    tracing::warn!(application = %stored.name, problem = ?problems.first(), "an application cannot be read");
                    None
                }
            };
            applications.insert(stored.name, collections);
        }
        *self.catalogue.read.write() = (Some(newest), applications);
        Ok(())
    }

    async fn applications_changed(
        &self,
        read: Option<ChangeSequence>,
        newest: ChangeSequence,
    ) -> Result<bool, SyncError> {
        let Some(mut after) = read else { return Ok(true) };
        while after < newest {
            let changes = match self.change_log.changes(after, 1_000).await {
                Err(StoreError::Missing(_)) => return Ok(true),
                changes => changes?,
            };
            if changes.iter().any(|change| matches!(change.what, ChangeKind::Application(_))) {
                return Ok(true);
            }
            match changes.last() {
                Some(last) => after = last.sequence,
                None => break,
            }
        }
        Ok(false)
    }

    async fn ready(
        &self,
        application: &Name,
        defined: BTreeMap<Name, Collection>,
        classes: BTreeMap<Name, Fields>,
    ) -> Result<Arc<Collections>, SyncError> {
        let names: Vec<Name> = defined.keys().cloned().collect();
        if names.is_empty() {
            return Ok(Arc::default());
        }
        let numbers = self.store.collection_numbers(application.clone(), names).await?;
        let mut collections = Collections { classes, ..Collections::default() };
        for (number, (name, definition)) in numbers.into_iter().zip(defined) {
            let predicate = match &definition.conflicts.resolver {
                Resolver::Predicate(text) => compile(text, application, &name),
                _ => None,
            };
            let schema = definition.schema.as_ref().and_then(|schema| compile_schema(schema, application, &name));
            collections.by_number.insert(number, name.clone());
            let partition = serde_json::to_string(&definition.partition).expect("names and values are JSON");
            let ready = Ready { number, name: name.clone(), definition, partition, predicate, schema };
            collections.by_name.insert(name, ready);
        }
        let collections = Arc::new(collections);
        let mut changing = Vec::new();
        for ready in collections.iter() {
            if begin_sharing(&self.store, self.now(), ready).await? {
                changing.push(ready);
            }
        }
        for ready in changing {
            rekey_collection(&self.store, self.now(), application, &collections, ready).await?;
        }
        Ok(collections)
    }
}

/// Compiles the resolver; without one, the server wins.
fn compile(text: &str, application: &Name, name: &Name) -> Option<CompiledFilter> {
    let problem = |problems: Vec<Problem>| {
        tracing::warn!(%application, collection = %name, problem = ?problems.first(), "the resolver cannot be read; the server wins");
    };
    resolver::compile(text).map_err(problem).ok()
}

/// Definitions are checked when applied; a schema stored by an earlier version that is invalid now is ignored.
fn compile_schema(schema: &serde_json::Value, application: &Name, name: &Name) -> Option<Schema> {
    let problem = |problem: Problem| {
        tracing::warn!(%application, collection = %name, %problem, "the schema cannot be read; rows are not compared with it");
    };
    Schema::compile(schema).map_err(problem).ok()
}

/// Records that the partition of a collection is about to change, and returns whether it does. From now on writers with
/// the old partition are rejected, since their rows would keep the old keys.
async fn begin_sharing(store: &SqliteCollections, now: Timestamp, ready: &Ready) -> Result<bool, SyncError> {
    let (number, text) = (ready.number, ready.partition.clone());
    let job = move |ledger: &mut RowTransaction<'_>| {
        let is_other = ledger.partition_of(number)? != text;
        if is_other {
            ledger.set_partition(number, &pending_partition(&text))?;
        }
        Ok(is_other)
    };
    Ok(store.write(now, job).await?)
}

/// Recomputes the keys of all rows of a collection, in steps.
async fn rekey_collection(
    store: &SqliteCollections,
    now: Timestamp,
    application: &Name,
    collections: &Arc<Collections>,
    ready: &Ready,
) -> Result<(), SyncError> {
    let (number, text, mut after) = (ready.number, ready.partition.clone(), 0);
    loop {
        let (application, collections) = (application.clone(), collections.clone());
        let step = move |ledger: &mut RowTransaction<'_>| {
            let rows = ledger.rows_after(number, after, REKEYED_AT_ONCE)?;
            for row in &rows {
                row_sharing::rekey(ledger, &application, &collections, row)?;
            }
            Ok(rows.last().map(|row| row.number))
        };
        match store.write(now, step).await? {
            Some(last) => after = last,
            None => break,
        }
    }
    store.write(now, move |ledger: &mut RowTransaction<'_>| ledger.set_partition(number, &text)).await?;
    Ok(())
}
