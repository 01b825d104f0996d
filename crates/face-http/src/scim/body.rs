//! Parses a resource: attribute names as in the schema, values of their types, without read-only attributes.

use serde_json::{Map, Value as Json};

use super::{
    error::ScimError,
    schema::{Attribute, Kind, Mutability, ResourceType},
};

pub(super) type Resource = Map<String, Json>;

/// Most values of one attribute, in one body.
const VALUES_MAX: usize = 10_000;

/// Reads a whole resource.
///
/// # Errors
/// It is not an object; an attribute is unknown, its value has another type, or a required attribute is missing.
pub(super) fn resource(body: &Json, kind: &ResourceType) -> Result<Resource, ScimError> {
    let body = body.as_object().ok_or_else(|| ScimError::bad("invalidSyntax", "the body is no JSON object"))?;
    let named = body.iter().find(|(name, _)| name.eq_ignore_ascii_case("schemas")).map(|(_, value)| value);
    let named = named.and_then(Json::as_array).is_some_and(|schemas| {
        schemas.iter().filter_map(Json::as_str).any(|schema| schema.eq_ignore_ascii_case(kind.schema))
    });
    if !named {
        return Err(ScimError::bad("invalidSyntax", format!("`schemas` does not name {}", kind.schema)));
    }
    once(body)?;
    let mut read = Resource::new();
    for (name, value) in body {
        set(&mut read, name, value, kind)?;
    }
    complete(&read, kind)?;
    Ok(read)
}

/// Refuses an object that names an attribute twice in different letter case, which is ambiguous.
pub(super) fn once(object: &Resource) -> Result<(), ScimError> {
    let mut seen = std::collections::HashSet::new();
    match object.keys().find(|name| !seen.insert(name.to_ascii_lowercase())) {
        Some(twice) => {
            Err(ScimError::bad("invalidSyntax", format!("`{twice}` is given twice; names have no letter case")))
        }
        None => Ok(()),
    }
}

/// Rejects a resource without a required attribute.
pub(super) fn complete(resource: &Resource, kind: &ResourceType) -> Result<(), ScimError> {
    match kind.attributes.iter().find(|attribute| attribute.required && !resource.contains_key(attribute.name)) {
        Some(missing) => Err(ScimError::bad("invalidValue", format!("`{}` is required", missing.name))),
        None => Ok(()),
    }
}

fn set(read: &mut Resource, name: &str, value: &Json, kind: &ResourceType) -> Result<(), ScimError> {
    if let Some(extension) = kind.extension.filter(|extension| extension.schema.eq_ignore_ascii_case(name)) {
        if let Some(parts) = parts(value, extension.attributes, extension.schema)? {
            // Its attributes may already be present without the schema URN.
            let known = read.entry(extension.schema).or_insert_with(|| Json::Object(Map::new()));
            known.as_object_mut().expect("an extension is an object").extend(parts);
        }
        return Ok(());
    }
    if kind.is_foreign(name) {
        return Ok(());
    }
    let path = kind.resolve(name).filter(|path| path.part.is_none());
    let Some(path) = path else {
        return Err(ScimError::bad("invalidSyntax", format!("a {} has no attribute `{name}`", kind.name)));
    };
    if path.attribute.mutability == Mutability::ReadOnly {
        return Ok(());
    }
    // A list of members that is empty is not one that is left out.
    let is_empty_list = path.attribute.name == "members" && !value.is_null();
    if let Some(value) = typed(value, path.attribute)?.or_else(|| is_empty_list.then(|| Json::Array(Vec::new()))) {
        let holder = match path.extension {
            Some(schema) => read.entry(schema).or_insert_with(|| Json::Object(Map::new())).as_object_mut(),
            None => Some(read),
        };
        holder.expect("an extension is an object").insert(path.attribute.name.to_owned(), value);
    }
    Ok(())
}

/// Converts a value to its type; `None`: unassigned.
///
/// # Errors
/// The value has another type.
pub(super) fn typed(value: &Json, attribute: &'static Attribute) -> Result<Option<Json>, ScimError> {
    if !attribute.many {
        return match value {
            Json::Array(values) if values.is_empty() => Ok(None),
            // Some clients write lists of one. `active: [false]` is more likely a mistake.
            Json::Array(values) if values.len() == 1 && attribute.kind != Kind::Boolean => {
                single(&values[0], attribute)
            }
            value => single(value, attribute),
        };
    }
    let values = match value {
        Json::Null => return Ok(None),
        Json::Array(values) => values.as_slice(),
        one => std::slice::from_ref(one),
    };
    if values.len() > VALUES_MAX {
        return Err(ScimError::bad("tooMany", format!("`{}` has more than {VALUES_MAX} values", attribute.name)));
    }
    if values.iter().any(|value| names_no_value(value, attribute)) {
        let what = format!("a value of `{}` says nothing; leave it out, or give its `value`", attribute.name);
        return Err(ScimError::bad("invalidValue", what));
    }
    let read = values.iter().filter_map(|value| single(value, attribute).transpose()).collect::<Result<Vec<_>, _>>()?;
    let preferred = read.iter().filter(|value| value.get("primary") == Some(&Json::Bool(true))).count();
    if preferred > 1 {
        return Err(ScimError::bad("invalidValue", format!("`{}` has more than one primary value", attribute.name)));
    }
    Ok((!read.is_empty()).then_some(Json::Array(read)))
}

/// Whether an item of a list names no value; such an item must not be treated like an empty list. An empty string names
/// a value to remove, except for references such as members, which are named by `value` or `$ref`.
pub(super) fn names_no_value(item: &Json, attribute: &Attribute) -> bool {
    let is_reference = attribute.part("value").is_some_and(|part| part.mutability == Mutability::Immutable);
    let is_empty = |value: &Json| value.is_null() || value.as_str().is_some_and(str::is_empty);
    let names_one = |(name, value): (&String, &Json)| {
        (name.eq_ignore_ascii_case("value") || name.eq_ignore_ascii_case("$ref")) && !is_empty(value)
    };
    match item {
        Json::Object(parts) => parts.is_empty() || is_reference && !parts.iter().any(names_one),
        item => is_reference && is_empty(item),
    }
}

fn single(value: &Json, attribute: &'static Attribute) -> Result<Option<Json>, ScimError> {
    let wrong = |what: &str| {
        Err(ScimError::bad("invalidValue", format!("`{}` is {value}, but should be {what}", attribute.name)))
    };
    match (attribute.kind, value) {
        (_, Json::Null) => Ok(None),
        (Kind::Complex(known), Json::Object(_)) => Ok(parts(value, known, attribute.name)?.map(Json::Object)),
        (Kind::Complex(_), Json::String(text)) if text.is_empty() => Ok(None),
        // A plain value is short for an object with only `value`.
        (Kind::Complex(_), Json::String(_)) if attribute.part("value").is_some() => {
            Ok(Some(serde_json::json!({"value": value})))
        }
        (Kind::Complex(_), _) => wrong("an object"),
        (Kind::Boolean, Json::Bool(_)) => Ok(Some(value.clone())),
        (Kind::Boolean, Json::String(text)) if text.eq_ignore_ascii_case("true") => Ok(Some(Json::Bool(true))),
        (Kind::Boolean, Json::String(text)) if text.eq_ignore_ascii_case("false") => Ok(Some(Json::Bool(false))),
        (Kind::Boolean, _) => wrong("true or false"),
        // LDAP has no empty texts: what is empty is not there.
        (_, Json::String(text)) if text.is_empty() => Ok(None),
        (_, Json::String(_)) => Ok(Some(value.clone())),
        (_, _) => wrong("text"),
    }
}

fn parts(value: &Json, known: &'static [Attribute], of: &str) -> Result<Option<Resource>, ScimError> {
    let Some(given) = value.as_object() else {
        return if value.is_null() {
            Ok(None)
        } else {
            Err(ScimError::bad("invalidValue", format!("`{of}` is no object")))
        };
    };
    once(given)?;
    let mut read = Resource::new();
    for (name, value) in given {
        let Some(attribute) = super::schema::find(known, name) else {
            return Err(ScimError::bad("invalidSyntax", format!("`{of}` has no attribute `{name}`")));
        };
        if attribute.mutability != Mutability::ReadOnly
            && let Some(value) = typed(value, attribute)?
        {
            read.insert(attribute.name.to_owned(), value);
        }
    }
    // A reference without an id names the resource by its address, which ends with the id.
    if let (Some(_), Some(_), false) =
        (super::schema::find(known, "value"), super::schema::find(known, "$ref"), read.contains_key("value"))
        && let Some(address) = read.get("$ref").and_then(Json::as_str)
        && let Some(id) = address.trim_end_matches('/').rsplit('/').next().filter(|id| !id.is_empty())
    {
        read.insert("value".to_owned(), id.into());
    }
    Ok((!read.is_empty()).then_some(read))
}
