//! Dumps of NotifyBC: files of `mongodump` and `mongoexport`.

use tocsin_notifybc::{
    bson::BsonDocuments,
    dump::{DumpError, record},
    extended_json::JsonDocuments,
    record::Document,
};

/// Each document is finite and can be written, and becomes a record if it has an id.
fn check(documents: impl Iterator<Item = Result<Document, DumpError>>, bytes: usize) {
    // Each document and each error takes at least one byte.
    for (at, found) in documents.enumerate() {
        assert!(at <= bytes, "more documents than bytes");
        match found {
            Ok(document) => {
                serde_json::to_string(&document).expect("a document is JSON");
                if let Ok(record) = record(document) {
                    assert!(record["id"].is_string());
                }
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
}

/// A file of `mongodump`.
pub(crate) fn mongodump(input: &[u8]) {
    check(BsonDocuments::new(input), input.len());
}

/// A file of `mongoexport`.
pub(crate) fn mongoexport(input: &[u8]) {
    check(JsonDocuments::new(input), input.len());
}
