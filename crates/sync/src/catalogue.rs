//! Compiled collections of all applications.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use parking_lot::RwLock;
use tocsin_matching::{filter::CompiledFilter, schema::Schema};
use tocsin_model::{
    collection::Collection,
    definition::Environment,
    field::Fields,
    id::{ChangeSequence, Name},
    problem::{Code, Problem},
    replica::ROW_BYTES_MAX,
};
use tocsin_store::{
    collections::{CollectionNumber, ReplicaDevice},
    error::StoreError,
    sqlite::collections::RowTransaction,
};

/// A compiled collection.
pub struct Ready {
    /// Number in the store.
    pub number: CollectionNumber,
    /// Name.
    pub name: Name,
    /// Definition.
    pub definition: Collection,
    /// Partition as text; the store compares it to detect a changed partition.
    pub(crate) partition: String,
    /// Predicate of the conflict resolver.
    pub(crate) predicate: Option<CompiledFilter>,
    /// JSON Schema of the rows.
    pub(crate) schema: Option<Schema>,
}

impl Ready {
    /// Problems of a row as JSON: its length and its schema.
    pub(crate) fn edit_problems(&self, body: &str) -> Vec<Problem> {
        if body.len() > ROW_BYTES_MAX {
            return vec![
                Problem::new(Code::TooLong, "", format!("has {} bytes; the maximum is {ROW_BYTES_MAX}", body.len()))
                    .param("given", body.len())
                    .param("limit", ROW_BYTES_MAX)
                    .param("unit", "bytes"),
            ];
        }
        let Some(schema) = &self.schema else { return Vec::new() };
        let row: serde_json::Value = serde_json::from_str(body).expect("a row is JSON");
        let differences = schema.check(&row).err().into_iter().flatten();
        // Paths of problems are dotted everywhere else.
        let dotted = |place: &str| place.trim_start_matches('/').replace('/', ".");
        differences.map(|problem| Problem { path: dotted(&problem.path), ..problem }).collect()
    }

    /// Checks that the partition is still the one of this version of the application.
    ///
    /// # Errors
    /// `Unavailable` if another version of the application is active, or is being activated.
    pub(crate) fn check_current(&self, ledger: &RowTransaction<'_>) -> Result<(), StoreError> {
        let kept = ledger.partition_of(self.number)?;
        if kept == self.partition || kept == pending_partition(&self.partition) {
            return Ok(());
        }
        Err(StoreError::unavailable(format!("the partition of `{}` is changing", self.name)))
    }
}

/// Collections of an application.
#[derive(Default)]
pub struct Collections {
    pub(crate) by_name: BTreeMap<Name, Ready>,
    pub(crate) by_number: HashMap<CollectionNumber, Name>,
    /// Fields of the application's subscription classes, by name.
    pub(crate) classes: BTreeMap<Name, Fields>,
}

impl Collections {
    /// Finds a collection by name.
    pub fn get(&self, name: &str) -> Option<&Ready> {
        self.by_name.get(name)
    }

    /// Finds a collection by number.
    pub fn of_number(&self, number: CollectionNumber) -> Option<&Ready> {
        self.by_name.get(self.by_number.get(&number)?)
    }

    /// Fields of a subscription class of the application.
    pub(crate) fn class_fields(&self, class: &Name) -> Option<&Fields> {
        self.classes.get(class)
    }

    /// All collections, by name.
    pub fn iter(&self) -> impl Iterator<Item = &Ready> {
        self.by_name.values()
    }
}

/// Collections that a device may use.
pub(crate) fn usable<'a>(device: &ReplicaDevice, collections: &'a Collections) -> impl Iterator<Item = &'a Ready> {
    let only = device.collections.clone();
    collections.iter().filter(move |ready| only.as_ref().is_none_or(|only| only.contains(&ready.name)))
}

/// Collections of all applications, as of a change sequence.
pub(crate) struct Catalogue {
    pub(crate) environment: Environment,
    pub(crate) read: RwLock<CatalogueContents>,
    pub(crate) reading: tokio::sync::Mutex<()>,
}

/// Contents and their change sequence; `None` before the first read. For an application that cannot be read the
/// collections are unknown: its devices wait, since a device without collections would drop its data.
pub(crate) type CatalogueContents = (Option<ChangeSequence>, HashMap<Name, Option<Arc<Collections>>>);

impl Catalogue {
    pub(crate) fn new(environment: Environment) -> Catalogue {
        Catalogue { environment, read: RwLock::default(), reading: tokio::sync::Mutex::default() }
    }
}

/// Marker stored as partition until all rows have their new keys. After a crash, the change starts again.
pub(crate) fn pending_partition(partition: &str) -> String {
    format!("underway: {partition}")
}
