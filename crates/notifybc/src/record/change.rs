//! Changes of records: creation, PATCH and PUT.
//!
//! `created`, `createdBy` and `id` are set once. Each later change sets `updated` and `updatedBy`.

use serde_json::Value;
use tocsin_model::time::Timestamp;

use super::{
    CastError, Collection, Document, ValidationError, date_text,
    schema::{cast_all, insert_defaults, validate, without_empty_objects},
};

/// Most levels of a dotted path in a PATCH.
const DEPTH_MAX: usize = 32;

/// A change that is refused. The text is that of the answer, which has status 400.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// A value is not of the type of its property.
    #[error(transparent)]
    Cast(#[from] CastError),
    /// The record would not satisfy its schema.
    #[error(transparent)]
    Validation(#[from] ValidationError),
    /// An update operator, or a path that is too long.
    #[error("unknown modifier: {0}")]
    Modifier(String),
}

/// Inserts the defaults of missing properties, for decisions that precede [`create`].
pub fn with_defaults(collection: Collection, mut body: Document) -> Document {
    insert_defaults(collection, &mut body);
    body
}

/// The record of a new body. The body's own id is ignored; its `created` and `updated` are kept if present.
pub fn create(
    collection: Collection,
    id: &str,
    mut body: Document,
    now: Timestamp,
    author: Option<&Value>,
) -> Result<Document, ValidationError> {
    remove_keys(&mut body, &["_id", "__v", "id"]);
    let mut record = Document::new();
    record.insert("id".to_owned(), Value::from(id));
    for name in ["created", "updated"] {
        if body.get(name).is_none_or(|value| value.is_null() || value == "") {
            body.insert(name.to_owned(), Value::from(date_text(now)));
        }
    }
    if let Some(author) = author {
        body.insert("createdBy".to_owned(), author.clone());
    }
    record.append(&mut body);
    validate(collection, record)
}

/// The record after a PATCH: each property of the changes replaces that of the record; a dotted name is a path into it.
/// `null` is stored; an empty object removes the property.
pub fn patch(
    collection: Collection,
    record: &Document,
    mut changes: Document,
    now: Timestamp,
    author: Option<&Value>,
) -> Result<Document, ChangeError> {
    remove_keys(&mut changes, &["_id", "__v", "id", "created", "createdBy"]);
    if let Some(name) = changes.keys().find(|name| name.starts_with('$') || name.split('.').count() > DEPTH_MAX) {
        return Err(ChangeError::Modifier(name.clone()));
    }
    cast_all(collection, &mut changes).map_err(|errors| first(collection, errors))?;
    let mut record = record.clone();
    for (name, value) in changes {
        match name.contains('.') {
            true => set_path(&mut record, &name, value),
            false => {
                record.insert(name, value);
            }
        }
    }
    stamp(&mut record, now, author);
    match collection {
        // The value of a configuration may be empty, and may contain empty parts.
        Collection::Configuration => {}
        _ => without_empty_objects(&mut record),
    }
    Ok(record)
}

/// The record after a PUT: the body, with the id, `created` and `createdBy` of the record.
pub fn replace(
    collection: Collection,
    record: &Document,
    mut body: Document,
    now: Timestamp,
    author: Option<&Value>,
) -> Result<Document, ChangeError> {
    remove_keys(&mut body, &["_id", "__v", "id", "created", "createdBy", "updatedBy"]);
    let mut replacement = Document::new();
    for name in ["id", "created", "createdBy"] {
        if let Some(value) = record.get(name) {
            replacement.insert(name.to_owned(), value.clone());
        }
    }
    replacement.append(&mut body);
    stamp(&mut replacement, now, author);
    Ok(validate(collection, replacement)?)
}

/// Sets the time and the author of a change.
pub(crate) fn stamp(record: &mut Document, now: Timestamp, author: Option<&Value>) {
    record.insert("updated".to_owned(), Value::from(date_text(now)));
    if let Some(author) = author {
        record.insert("updatedBy".to_owned(), author.clone());
    }
}

fn remove_keys(document: &mut Document, names: &[&str]) {
    for name in names {
        document.shift_remove(*name);
    }
}

fn first(collection: Collection, errors: Vec<CastError>) -> ChangeError {
    let first = errors.into_iter().next().expect("a failed cast has an error");
    ChangeError::Cast(first.in_model(collection))
}

/// Sets the value at a dotted path. Objects on the way are made; a position sets the element of a list.
fn set_path(record: &mut Document, path: &str, value: Value) {
    let (first, rest) = path.split_once('.').unwrap_or((path, ""));
    let place = record.entry(first).or_insert(Value::Null);
    set_below(place, rest, value);
}

fn set_below(place: &mut Value, path: &str, value: Value) {
    if path.is_empty() {
        *place = value;
        return;
    }
    let (step, rest) = path.split_once('.').unwrap_or((path, ""));
    if let Value::Array(items) = place
        && let Some(item) = step.parse::<usize>().ok().and_then(|position| items.get_mut(position))
    {
        return set_below(item, rest, value);
    }
    if !place.is_object() {
        *place = Value::Object(Document::new());
    }
    if let Value::Object(members) = place {
        set_below(members.entry(step).or_insert(Value::Null), rest, value);
    }
}
