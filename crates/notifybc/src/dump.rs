//! Collections of a dump, and their documents as records.
//!
//! A dump is a folder with one file for each collection: `subscription.bson` of `mongodump`, `subscription.json` of
//! `mongoexport`. The document of a file becomes a record: `_id` is its `id`, and fields of MongoDB's drivers are left
//! out. Its properties, dates, codes and hashes stay.

use std::{fmt, io};

use serde_json::Value;

use crate::record::{Collection, Document};

/// The collections in the order in which they are imported: what others refer to comes first.
pub const IMPORT_ORDER: [Collection; 8] = [
    Collection::Configuration,
    Collection::Administrator,
    Collection::UserCredential,
    Collection::AccessToken,
    Collection::Subscription,
    Collection::Bounce,
    Collection::Notification,
    Collection::Rss,
];

/// The collection of this name, without regard to letter case: file systems and tools differ.
pub fn collection_of(name: &str) -> Option<Collection> {
    IMPORT_ORDER.into_iter().find(|collection| collection.name().eq_ignore_ascii_case(name))
}

/// The record of a document of a dump.
///
/// # Errors
/// It has no id.
pub fn record(mut document: Document) -> Result<Document, DumpErrorKind> {
    let id = match document.remove("_id").or_else(|| document.remove("id")) {
        Some(Value::String(id)) if !id.is_empty() => id,
        _ => return Err(DumpErrorKind::Malformed("the document has no id")),
    };
    document.remove("__v");
    if let Some(Value::Array(messages)) = document.get_mut("bounceMessages") {
        for message in messages.iter_mut().filter_map(Value::as_object_mut) {
            message.remove("_id");
        }
    }
    let mut record = Document::new();
    record.insert("id".to_owned(), Value::from(id));
    record.append(&mut document);
    Ok(record)
}

/// Position of a document in its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Position {
    /// Line, from 1.
    Line(u64),
    /// Offset in bytes.
    Offset(u64),
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Position::Line(line) => write!(f, "in line {line}"),
            Position::Offset(offset) => write!(f, "at byte {offset}"),
        }
    }
}

/// A document of a dump that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{position}: {kind}")]
pub struct DumpError {
    /// The start of the document.
    pub position: Position,
    /// The reason.
    pub kind: DumpErrorKind,
}

/// The reason why a document cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum DumpErrorKind {
    /// The file is not of its format.
    #[error("{0}")]
    Malformed(&'static str),
    /// The document is not JSON.
    #[error("the document is not JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// The document is too large.
    #[error("the document is larger than {limit} bytes")]
    TooLarge {
        /// Limit in bytes.
        limit: usize,
    },
    /// The document is nested too deeply.
    #[error("the document is nested more than {limit} deep")]
    TooDeep {
        /// Limit in levels.
        limit: usize,
    },
    /// A value has a type that records do not have.
    #[error("`{property}` is a {kind}, which no record has")]
    Unsupported {
        /// The type.
        kind: &'static str,
        /// The property.
        property: String,
    },
    /// The value of a wrapper of extended JSON is wrong.
    #[error("the `{wrapper}` of `{property}` cannot be read")]
    Wrapper {
        /// The wrapper, such as `$date`.
        wrapper: String,
        /// The property.
        property: String,
    },
    /// The file cannot be read.
    #[error("the file cannot be read: {0}")]
    Io(#[from] io::Error),
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn s14_every_collection_of_a_dump_has_its_name() {
        let names = IMPORT_ORDER.map(Collection::name);
        let expected = "configuration administrator UserCredential AccessToken subscription bounce notification rss";
        assert_eq!(names.join(" "), expected);
        for collection in Collection::ALL {
            assert_eq!(collection_of(collection.name()), Some(collection));
        }
        assert_eq!(collection_of("accesstoken"), Some(Collection::AccessToken));
        assert_eq!(collection_of("agendaJobs"), None);
    }

    #[test]
    fn s14_a_record_has_its_id_and_no_fields_of_drivers() {
        let document = json!({
            "_id": "650a00000000000000000001", "serviceName": "s", "__v": 3, "data": {"_id": 1},
            "bounceMessages": [{"_id": "x", "message": "m"}],
        });
        let found = record(document.as_object().expect("an object").clone()).expect("a record");
        let expected = json!({
            "id": "650a00000000000000000001", "serviceName": "s", "data": {"_id": 1},
            "bounceMessages": [{"message": "m"}],
        });
        assert_eq!(Value::Object(found), expected);
        assert!(record(Document::new()).is_err());
    }
}
