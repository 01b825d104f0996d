//! Import of the records of a NotifyBC installation. Their ids, codes, hashes and dates stay.
//!
//! An import can be repeated: a record that is present with the same or a later `updated` is left alone, an earlier one
//! is replaced. So an interrupted import is resumed by starting it again, and a second run brings the changes since.

use std::{collections::HashMap, sync::Arc};

use tocsin_matching::filter::jmespath::NotifybcFilter;
use tocsin_model::time::Timestamp;
use tocsin_notifybc::{
    dump,
    record::{Collection, Document, RecordId, text, validate},
};
use tocsin_store::{
    error::StoreError,
    records::{NotifybcStore, Precondition, PutDocument, StoredDocument, Written},
};

use super::documents::prepared;

/// Configurations of an installation, of which the imported one replaces the own one.
const INSTALLATION: [&str; 2] = ["rsa", "dbSchemaVersion"];

/// Record of a dump, ready to be stored.
#[derive(Debug, Clone, PartialEq)]
pub struct ImportRecord {
    put: PutDocument,
    /// Whether it belongs to the installation and replaces the own one.
    is_installation: bool,
    /// Whether the record says when it was changed.
    is_dated: bool,
    /// Remark on the record, which is imported nevertheless.
    pub remark: Option<&'static str>,
}

impl ImportRecord {
    /// Its id.
    pub fn id(&self) -> &str {
        &self.put.id
    }

    /// Size of its body in bytes.
    pub fn bytes(&self) -> usize {
        self.put.body.len()
    }
}

/// Result of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Imported {
    /// Stored as a new record.
    Stored,
    /// An earlier version was replaced.
    Replaced,
    /// The same or a later version is present.
    Present,
    /// Not stored, for this reason.
    Refused(String),
}

/// Reads a document of a dump as a record of a collection.
///
/// # Errors
/// The reason why the record cannot be imported, without its values: equal reasons are counted.
pub fn import_record(collection: Collection, document: Document, now: Timestamp) -> Result<ImportRecord, String> {
    let record = dump::record(document).map_err(|error| error.to_string())?;
    let record = validate(collection, record).map_err(|error| error.to_string())?;
    let mut put = prepared(collection, &record, Precondition::Absent, now).map_err(|error| error.to_string())?;
    // An id has the time of its creation.
    let created_at = match text(&record, "created") {
        Some(_) => put.created_at,
        None => put.id.parse().map_or(now, |id: RecordId| id.time()),
    };
    let is_dated = text(&record, "updated").is_some();
    put.created_at = created_at;
    if !is_dated {
        put.updated_at = created_at;
    }
    let is_installation = collection == Collection::Configuration
        && text(&record, "name").is_some_and(|name| INSTALLATION.contains(&name));
    let filter_matches = |name: &str| text(&record, name).is_none_or(|filter| NotifybcFilter::compile(filter).is_ok());
    let remark = match collection {
        Collection::Subscription if !filter_matches("broadcastPushNotificationFilter") => {
            Some("its filter is not valid, so it matches no notification with data, as in NotifyBC")
        }
        Collection::Notification if text(&record, "state") == Some("sending") => {
            Some("it was being sent; end it in NotifyBC before the move")
        }
        _ => None,
    };
    Ok(ImportRecord { put, is_installation, is_dated, remark })
}

/// Stores records in one commit, and returns the result of each.
///
/// # Errors
/// The store is unavailable.
pub async fn store_records(
    store: &Arc<dyn NotifybcStore>,
    collection: Collection,
    records: Vec<ImportRecord>,
    now: Timestamp,
) -> Result<Vec<Imported>, StoreError> {
    let puts = records.iter().map(|record| record.put.clone()).collect();
    let written = store.put_documents(puts, now).await?;
    let mut results: Vec<Imported> = written.into_iter().map(result_of).collect();
    // Present records are compared, and replaced in a second commit.
    let refused: Vec<usize> = (0..results.len()).filter(|at| matches!(results[*at], Imported::Refused(_))).collect();
    if refused.is_empty() {
        return Ok(results);
    }
    let ids: Vec<String> = refused.iter().map(|at| records[*at].put.id.clone()).collect();
    let present: HashMap<String, StoredDocument> = store
        .documents_of(collection, &ids)
        .await?
        .into_iter()
        .flatten()
        .map(|found| (found.id.clone(), found))
        .collect();
    let (mut again, mut places) = (Vec::new(), Vec::new());
    for at in refused {
        let ImportRecord { put, is_installation, is_dated, .. } = &records[at];
        match present.get(&put.id) {
            Some(found) if !is_dated || found.updated_at >= put.updated_at => results[at] = Imported::Present,
            Some(found) => {
                again.push(PutDocument { expect: Precondition::Revision(found.revision), ..put.clone() });
                places.push(at);
            }
            None if *is_installation => {
                if let Some(unique) = &put.keys.unique
                    && let Some(own) = store.document_by_unique(collection, unique).await?
                {
                    store.remove_documents(collection, vec![own.id], now).await?;
                    again.push(put.clone());
                    places.push(at);
                }
            }
            None => {}
        }
    }
    if !again.is_empty() {
        for (at, written) in places.into_iter().zip(store.put_documents(again, now).await?) {
            results[at] = match result_of(written) {
                Imported::Stored => Imported::Replaced,
                other => other,
            };
        }
    }
    Ok(results)
}

fn result_of<T>(written: Written<T>) -> Imported {
    match written {
        Ok(_) => Imported::Stored,
        Err(StoreError::Taken(_)) => Imported::Refused("another record has its unique key".to_owned()),
        Err(error) => Imported::Refused(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tocsin_store::memory::records::MemoryRecords;

    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(1_700_000_000_000);

    fn document(value: Value) -> Document {
        value.as_object().expect("an object").clone()
    }

    fn subscription(number: u32, updated: &str) -> Value {
        json!({
            "_id": format!("650a000000000000{number:08x}"), "serviceName": "news", "channel": "email",
            "userChannelId": format!("Person{number}@example.org"), "state": "confirmed", "unsubscriptionCode": "12345",
            "updated": updated, "data": {"a": 1}, "own": true,
        })
    }

    async fn import(store: &Arc<dyn NotifybcStore>, collection: Collection, values: &[Value]) -> Vec<Imported> {
        let records = values.iter().map(|value| import_record(collection, document(value.clone()), NOW));
        let records = records.collect::<Result<_, _>>().expect("records");
        store_records(store, collection, records, NOW).await.expect("stored")
    }

    #[tokio::test]
    async fn s14_an_import_can_be_repeated_and_brings_later_changes() {
        let store: Arc<dyn NotifybcStore> = Arc::new(MemoryRecords::new().expect("records"));
        let collection = Collection::Subscription;
        let first: Vec<Value> = (0..3).map(|number| subscription(number, "2024-01-01T00:00:00Z")).collect();
        assert_eq!(import(&store, collection, &first[..2]).await, [Imported::Stored, Imported::Stored]);
        // As after an interruption.
        assert_eq!(import(&store, collection, &first).await, [Imported::Present, Imported::Present, Imported::Stored]);
        let mut later = subscription(1, "2024-02-01");
        later["state"] = json!("deleted");
        assert_eq!(
            import(&store, collection, &[subscription(0, "2023-01-01"), later]).await,
            [Imported::Present, Imported::Replaced]
        );
        let found = store.document(collection, "650a00000000000000000001").await.expect("read").expect("present");
        assert_eq!(found.keys.state.as_deref(), Some("deleted"));
        assert_eq!(found.keys.address.as_deref(), Some("person1@example.org"));
        let body: Value = serde_json::from_str(&found.body).expect("JSON");
        assert_eq!((&body["unsubscriptionCode"], &body["own"]), (&json!("12345"), &json!(true)));
    }

    #[tokio::test]
    async fn s14_the_key_pair_of_the_installation_is_replaced_and_other_unique_keys_are_not() {
        let store: Arc<dyn NotifybcStore> = Arc::new(MemoryRecords::new().expect("records"));
        let pair = |id: &str, key: &str| json!({"_id": id, "name": "rsa", "value": {"private": key, "public": key}});
        let collection = Collection::Configuration;
        assert_eq!(import(&store, collection, &[pair("650a00000000000000000001", "own")]).await, [Imported::Stored]);
        assert_eq!(
            import(&store, collection, &[pair("650a00000000000000000002", "moved")]).await,
            [Imported::Replaced]
        );
        assert_eq!(store.count_documents(collection, &Default::default()).await.expect("counted"), 1);
        let person = |id: &str| json!({"_id": id, "email": "Ann@example.org"});
        let collection = Collection::Administrator;
        assert_eq!(import(&store, collection, &[person("650a00000000000000000001")]).await, [Imported::Stored]);
        let refused = Imported::Refused("another record has its unique key".to_owned());
        assert_eq!(import(&store, collection, &[person("650a00000000000000000002")]).await, [refused]);
    }

    #[test]
    fn s14_records_that_cannot_be_imported_have_a_reason() {
        let reason =
            |value: Value| import_record(Collection::Subscription, document(value), NOW).map(|record| record.remark);
        assert_eq!(reason(json!({"serviceName": "s"})), Err("the document has no id".to_owned()));
        let incomplete = reason(json!({"_id": "650a00000000000000000001", "serviceName": "s"}));
        assert!(incomplete.is_err_and(|reason| reason.contains("Path `userChannelId` is required.")));
        let mut filtered = subscription(1, "2024-01-01");
        filtered["broadcastPushNotificationFilter"] = json!("title ==");
        assert!(reason(filtered.clone()).is_ok_and(|remark| remark.is_some()));
        filtered["broadcastPushNotificationFilter"] = json!("unknown(title)");
        assert_eq!(reason(filtered), Ok(None));
    }
}
