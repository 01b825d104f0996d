//! PATCH operations (RFC 7644, 3.5.2).

use serde_json::{Map, Value as Json};

use super::{
    body::{self, Resource, typed},
    error::ScimError,
    filter::{self, Filter, Target, Work},
    schema::{Attribute, Mutability, Path, ResourceType},
};

/// Most operations of one request.
const OPERATIONS_MAX: usize = 1_000;

/// One operation.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Operation {
    pub(super) act: PatchOp,
    pub(super) target: Target,
    /// The value of its type; nothing for what is removed.
    pub(super) value: Option<Json>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PatchOp {
    Add,
    Replace,
    Remove,
}

/// Parses the operations of a body. An operation without a path becomes one operation for each attribute in its value.
///
/// # Errors
/// It is not a `PatchOp`; an operation, a path or a value cannot be parsed; it names a read-only attribute.
pub(super) fn read(given: &Json, kind: &'static ResourceType) -> Result<Vec<Operation>, ScimError> {
    let member = |object: &Json, name: &str| {
        let object = object.as_object()?;
        object.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.clone())
    };
    let syntax = |what: &str| ScimError::bad("invalidSyntax", what);
    let Some(Json::Array(list)) = member(given, "Operations") else {
        return Err(syntax("`Operations` is missing: a list of {op, path, value}"));
    };
    if list.is_empty() || list.len() > OPERATIONS_MAX {
        return Err(syntax(&format!("`Operations` has 1 to {OPERATIONS_MAX} operations")));
    }
    let mut operations = Vec::new();
    for each in &list {
        let act = match member(each, "op").as_ref().and_then(Json::as_str).map(str::to_ascii_lowercase).as_deref() {
            Some("add") => PatchOp::Add,
            Some("replace") => PatchOp::Replace,
            Some("remove") => PatchOp::Remove,
            _ => return Err(syntax("`op` is one of add, replace and remove")),
        };
        let value = member(each, "value");
        match (member(each, "path"), act, value) {
            (Some(Json::String(path)), act, value) if !path.trim().is_empty() => {
                operations.extend(of_path(&path, act, value, kind)?);
            }
            (Some(Json::String(_) | Json::Null) | None, act, value) => {
                operations.extend(without_path(act, value, kind)?);
            }
            (Some(_), ..) => return Err(ScimError::bad("invalidPath", "`path` is no text")),
        }
    }
    Ok(operations)
}

/// An operation without a path has an object of attributes, whose names may be paths. Only the server writes some of them, such as the
/// `id` that clients send along: these are passed over, as in a whole resource.
fn without_path(act: PatchOp, value: Option<Json>, kind: &'static ResourceType) -> Result<Vec<Operation>, ScimError> {
    match (act, value) {
        (PatchOp::Remove, _) => Err(ScimError::bad("noTarget", "`path` is missing: a removal names what it removes")),
        (act, Some(Json::Object(values))) => {
            body::once(&values)?;
            let mut operations = Vec::new();
            for (name, value) in values {
                let is_read_only =
                    kind.resolve(&name).is_some_and(|path| path.attribute.mutability == Mutability::ReadOnly);
                if !is_read_only {
                    operations.extend(of_path(&name, act, Some(value), kind)?);
                }
            }
            Ok(operations)
        }
        _ => Err(ScimError::bad("invalidSyntax", "without a path, `value` is an object of attributes")),
    }
}

fn of_path(
    path: &str,
    act: PatchOp,
    value: Option<Json>,
    kind: &'static ResourceType,
) -> Result<Vec<Operation>, ScimError> {
    // A schema URN as path addresses each attribute of the extension.
    if let Some(extension) = kind.extension.filter(|extension| extension.schema.eq_ignore_ascii_case(path.trim())) {
        let inner = |name: &str, value| of_path(&format!("{}:{name}", extension.schema), act, value, kind);
        let each: Vec<Vec<Operation>> = match value {
            Some(Json::Object(values)) => {
                let named = values.into_iter().filter(|(name, _)| !name.eq_ignore_ascii_case("schemas"));
                named.map(|(name, value)| inner(&name, Some(value))).collect::<Result<_, _>>()?
            }
            None if act == PatchOp::Remove => {
                extension.attributes.iter().map(|attribute| inner(attribute.name, None)).collect::<Result<_, _>>()?
            }
            _ => return Err(ScimError::bad("invalidValue", "the value of an extension is an object")),
        };
        return Ok(each.into_iter().flatten().collect());
    }
    if path.eq_ignore_ascii_case("schemas") || kind.is_foreign(path.trim()) {
        // The attributes of a resource say which schemas it has.
        return Ok(Vec::new());
    }
    if path.trim().eq_ignore_ascii_case(kind.schema) {
        return without_path(act, value, kind);
    }
    let target = filter::target(path, kind)?;
    let meant = target.part.unwrap_or(target.path.attribute);
    if target.path.attribute.mutability == Mutability::ReadOnly || meant.mutability == Mutability::ReadOnly {
        return Err(ScimError::bad("mutability", format!("only the server writes `{}`", meant.name)));
    }
    let value = match (act, value) {
        (PatchOp::Remove, None) => None,
        (PatchOp::Remove, Some(_)) if target.filter.is_some() || target.part.is_some() => None,
        (PatchOp::Remove, Some(_)) if !target.path.attribute.many => None,
        (PatchOp::Remove, Some(value)) => match named_values(&value, target.path.attribute)? {
            Some(value) => Some(value),
            None => return Ok(Vec::new()),
        },
        (_, None) => return Err(ScimError::bad("invalidValue", format!("`value` is missing for `{path}`"))),
        (_, Some(value)) => match (target.part, &target.filter) {
            (Some(part), _) => typed(&value, part)?,
            (None, Some(_)) => one_of(&value, target.path.attribute)?,
            (None, None) => typed(&value, target.path.attribute)?,
        },
    };
    Ok(vec![Operation { act, target, value }])
}

/// The values that a removal names; `None`: none, so nothing is removed.
///
/// # Errors
/// It has a `value` that names nothing: that must not remove all.
fn named_values(value: &Json, attribute: &'static Attribute) -> Result<Option<Json>, ScimError> {
    let items = match value {
        Json::Array(items) => items.as_slice(),
        one => std::slice::from_ref(one),
    };
    if items.iter().any(|item| item.is_null() || super::body::names_no_value(item, attribute)) {
        let what = format!("`value` names no value of `{}`; leave it out to remove all of them", attribute.name);
        return Err(ScimError::bad("invalidValue", what));
    }
    match (typed(value, attribute)?, items.is_empty()) {
        (Some(value), _) => Ok(Some(value)),
        (None, true) => Ok(None),
        (None, false) => {
            let what = format!("`value` names no value of `{}`; leave it out to remove all of them", attribute.name);
            Err(ScimError::bad("invalidValue", what))
        }
    }
}

/// One value of an attribute that has several.
fn one_of(value: &Json, attribute: &'static Attribute) -> Result<Option<Json>, ScimError> {
    Ok(match typed(value, attribute)? {
        Some(Json::Array(mut values)) if values.len() == 1 => values.pop(),
        None => None,
        Some(_) => return Err(ScimError::bad("invalidValue", format!("give one value of `{}`", attribute.name))),
    })
}

/// Does all operations, in their order.
///
/// # Errors
/// A filter finds nothing to replace; what is required would go.
pub(super) fn apply(resource: &mut Resource, operations: &[Operation], kind: &ResourceType) -> Result<(), ScimError> {
    let work = Work::default();
    for operation in operations {
        operation.apply(resource, &work)?;
        work.check()?;
    }
    body::complete(resource, kind).map_err(|error| ScimError::bad("mutability", error.detail))
}

impl Operation {
    fn apply(&self, resource: &mut Resource, work: &Work) -> Result<(), ScimError> {
        let Path { extension, attribute, .. } = self.target.path;
        let holder = match extension {
            Some(schema) => {
                let holder = resource.entry(schema).or_insert_with(|| Json::Object(Map::new()));
                holder.as_object_mut().expect("an extension is an object")
            }
            None => &mut *resource,
        };
        if attribute.many {
            self.apply_to_many(holder, work)?
        } else {
            self.apply_to_one(holder)
        }
        if let Some(schema) = extension
            && resource.get(schema).and_then(Json::as_object).is_some_and(Map::is_empty)
        {
            resource.remove(schema);
        }
        Ok(())
    }

    fn apply_to_one(&self, holder: &mut Resource) {
        let name = self.target.path.attribute.name;
        match (self.target.part, &self.value) {
            (None, Some(Json::Object(parts))) if self.act != PatchOp::Remove => {
                let known = holder.entry(name).or_insert_with(|| Json::Object(Map::new()));
                let known = known.as_object_mut().expect("it has parts");
                known.extend(parts.clone());
            }
            (None, Some(value)) if self.act != PatchOp::Remove => drop(holder.insert(name.to_owned(), value.clone())),
            (None, _) => drop(holder.remove(name)),
            (Some(part), value) => {
                let known = holder.entry(name).or_insert_with(|| Json::Object(Map::new()));
                let known = known.as_object_mut().expect("it has parts");
                match value {
                    Some(value) if self.act != PatchOp::Remove => {
                        drop(known.insert(part.name.to_owned(), value.clone()))
                    }
                    _ => drop(known.remove(part.name)),
                }
                if known.is_empty() {
                    holder.remove(name);
                }
            }
        }
    }

    fn apply_to_many(&self, holder: &mut Resource, work: &Work) -> Result<(), ScimError> {
        let name = self.target.path.attribute.name;
        let mut values = match holder.remove(name) {
            Some(Json::Array(values)) => values,
            _ => Vec::new(),
        };
        let primaries_before = primaries(&values);
        let given = || match &self.value {
            Some(Json::Array(values)) => values.clone(),
            Some(one) => vec![one.clone()],
            None => Vec::new(),
        };
        match (self.act, &self.target.filter, self.target.part) {
            (PatchOp::Remove, filter, part) => self.remove(&mut values, filter.as_ref(), part, &given(), work),
            (PatchOp::Replace, None, None) => values = given(),
            (PatchOp::Add, None, None) => {
                given().into_iter().for_each(|value| add(&mut values, value, self.target.path.attribute))
            }
            // A sub-attribute of every value.
            (_, None, Some(part)) if !values.is_empty() => {
                values.iter_mut().for_each(|value| put(value, part, self.value.as_ref()));
            }
            (_, None, Some(part)) => {
                let mut made = Json::Object(Map::new());
                put(&mut made, part, self.value.as_ref());
                values.push(made);
            }
            (act, Some(filter), part) => self.change_some(&mut values, act, filter, part, work)?,
        }
        if primaries(&values) > primaries_before.max(1) {
            // At most one value is the primary one (RFC 7643, 2.4).
            return Err(ScimError::bad("invalidValue", format!("`{name}` would have more than one primary value")));
        }
        if !values.is_empty() {
            holder.insert(name.to_owned(), Json::Array(values));
        }
        Ok(())
    }

    fn remove(
        &self,
        values: &mut Vec<Json>,
        filter: Option<&Filter>,
        part: Option<&'static Attribute>,
        given: &[Json],
        work: &Work,
    ) {
        let is_selected = |value: &Json| filter.is_none_or(|filter| filter.is_met_by_value(value, work));
        match part {
            Some(part) => {
                let meant = values.iter_mut().filter(|value| is_selected(value));
                meant.filter_map(Json::as_object_mut).for_each(|value| drop(value.remove(part.name)));
                values.retain(|value| value.as_object().is_none_or(|value| !value.is_empty()));
            }
            // Some clients name the values that go.
            None if filter.is_none() && !given.is_empty() => {
                let attribute = self.target.path.attribute;
                values.retain(|value| !given.iter().any(|gone| is_same(value, gone, attribute)));
            }
            None => values.retain(|value| !is_selected(value)),
        }
    }

    fn change_some(
        &self,
        values: &mut Vec<Json>,
        act: PatchOp,
        filter: &Filter,
        part: Option<&'static Attribute>,
        work: &Work,
    ) -> Result<(), ScimError> {
        let met: Vec<bool> = values.iter().map(|value| filter.is_met_by_value(value, work)).collect();
        let is_found = met.contains(&true);
        let becomes_primary = match (part, &self.value) {
            (Some(part), Some(value)) => part.name == "primary" && *value == Json::Bool(true),
            (None, Some(value)) => value.get("primary") == Some(&Json::Bool(true)),
            _ => false,
        };
        if is_found && becomes_primary {
            demote(values);
        }
        for (value, _) in values.iter_mut().zip(&met).filter(|(_, is_met)| **is_met) {
            match (part, &self.value) {
                (Some(part), new) => put(value, part, new.as_ref()),
                (None, Some(Json::Object(parts))) if act == PatchOp::Add => {
                    value.as_object_mut().expect("a filter was met").extend(parts.clone());
                }
                (None, Some(new)) => *value = new.clone(),
                (None, None) => {}
            }
        }
        if is_found {
            return Ok(());
        }
        let name = self.target.path.attribute.name;
        let conditions = filter.conditions();
        if act == PatchOp::Replace || conditions.is_empty() {
            return Err(ScimError::bad("noTarget", format!("no value of `{name}` meets the filter")));
        }
        // No value matches yet: a new one is created from the conditions of the filter.
        let mut made =
            Json::Object(conditions.into_iter().map(|(name, value)| (name.to_owned(), value.clone())).collect());
        match (part, &self.value) {
            (Some(part), new) => put(&mut made, part, new.as_ref()),
            (None, Some(Json::Object(parts))) => made.as_object_mut().expect("made above").extend(parts.clone()),
            (None, _) => {}
        }
        add(values, made, self.target.path.attribute);
        Ok(())
    }
}

fn put(value: &mut Json, part: &Attribute, new: Option<&Json>) {
    let Some(parts) = value.as_object_mut() else { return };
    match new {
        Some(new) => drop(parts.insert(part.name.to_owned(), new.clone())),
        None => drop(parts.remove(part.name)),
    }
}

/// Adds a value that is not there yet. Only one is the primary one: the newest.
fn add(values: &mut Vec<Json>, new: Json, attribute: &Attribute) {
    let is_primary = new.get("primary") == Some(&Json::Bool(true));
    let text = |value: &Json, part: &str| {
        let text = value.get(part).and_then(Json::as_str)?;
        let is_exact = attribute.part(part).is_some_and(|part| part.exact);
        Some(if is_exact { text.to_owned() } else { text.to_lowercase() })
    };
    let is_known = |known: &Json| {
        *known == new
            || text(&new, "value").is_some_and(|value| text(known, "value") == Some(value))
                && text(&new, "type").is_none_or(|kind| text(known, "type") == Some(kind))
    };
    let place = values.iter().position(is_known);
    if is_primary && place.is_none_or(|place| values[place].get("primary") != Some(&Json::Bool(true))) {
        demote(values);
    }
    match (place.map(|place| &mut values[place]), new) {
        // An existing value is extended by the new sub-attributes.
        (Some(Json::Object(known)), Json::Object(parts)) => {
            let value = known.get("value").cloned();
            known.extend(parts);
            if let Some(value) = value {
                known.insert("value".to_owned(), value);
            }
        }
        (Some(_), _) => {}
        (None, new) => values.push(new),
    }
}

/// Makes none of the values the primary one.
fn demote(values: &mut [Json]) {
    for value in values.iter_mut().filter_map(Json::as_object_mut) {
        if let Some(primary) = value.get_mut("primary") {
            *primary = Json::Bool(false);
        }
    }
}

/// Whether a value matches a given one, of which only `value` may be present. Values compare as in filters; the type
/// must be equal if both have one.
fn is_same(value: &Json, meant: &Json, attribute: &Attribute) -> bool {
    let part = |of: &Json, name: &str| of.get(name).and_then(Json::as_str).map(str::to_lowercase);
    let is_same_type = match (part(value, "type"), part(meant, "type")) {
        (Some(one), Some(other)) => one == other,
        _ => true,
    };
    let is_exact = attribute.part("value").is_none_or(|part| part.exact);
    match (value.get("value"), meant.get("value")) {
        (Some(one), Some(other)) if is_exact => one == other && is_same_type,
        (Some(_), Some(_)) => part(value, "value") == part(meant, "value") && is_same_type,
        _ => value == meant,
    }
}

/// Number of primary values.
fn primaries(values: &[Json]) -> usize {
    values.iter().filter(|value| value.get("primary") == Some(&Json::Bool(true))).count()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{super::schema::USER, *};

    fn check(operations: Json, expected: Result<Json, &str>) {
        let mut vera = json!({
            "userName": "vera", "name": {"givenName": "Vera", "familyName": "Muster"},
            "emails": [{"value": "w@x.example", "type": "work", "primary": true}, {"value": "h@x.example", "type": "home"}],
        });
        let before = vera.as_object().expect("an object").clone();
        let resource = vera.as_object_mut().expect("an object");
        let done =
            read(&json!({"Operations": operations}), &USER).and_then(|operations| apply(resource, &operations, &USER));
        match (done, expected) {
            (Ok(()), Ok(mut expected)) => {
                // Attributes that the expectation does not name are unchanged.
                for (name, value) in before {
                    expected.as_object_mut().expect("an object").entry(name).or_insert(value);
                }
                expected.as_object_mut().expect("an object").retain(|_, value| !value.is_null());
                assert_eq!(vera, expected, "{operations}");
            }
            (Err(error), Err(why)) => {
                let body = error.body().to_string();
                assert!(body.contains(why), "{operations}: {body}");
            }
            (done, expected) => panic!("{operations}: {done:?}, not {expected:?}: {vera}"),
        }
    }

    #[test]
    fn parts_change_as_the_rfc_says() {
        let work = json!({"value": "w@x.example", "type": "work", "primary": true});
        let home = json!({"value": "h@x.example", "type": "home"});
        check(json!([{"op": "add", "path": "title", "value": "Dr"}]), Ok(json!({"title": "Dr"})));
        check(
            json!([{"op": "Replace", "path": "name.givenName", "value": "V"}]),
            Ok(json!({"name": {"givenName": "V", "familyName": "Muster"}})),
        );
        check(
            json!([{"op": "replace", "value": {"name.givenName": "V", "active": "False"}}]),
            Ok(json!({"name": {"givenName": "V", "familyName": "Muster"}, "active": false})),
        );
        check(
            json!([{"op": "add", "value": {"name": {"middleName": "M"}}}]),
            Ok(json!({"name": {"givenName": "Vera", "familyName": "Muster", "middleName": "M"}})),
        );
        check(json!([{"op": "remove", "path": "name"}]), Ok(json!({"name": null})));
        check(json!([{"op": "add", "path": "emails", "value": [home]}]), Ok(json!({})));
        check(
            json!([{"op": "add", "path": "emails", "value": {"value": "n@x.example", "primary": true}}]),
            Ok(
                json!({"emails": [{"value": "w@x.example", "type": "work", "primary": false}, home, {"value": "n@x.example", "primary": true}]}),
            ),
        );
        check(json!([{"op": "replace", "path": "emails", "value": [home]}]), Ok(json!({"emails": [home]})));
        check(json!([{"op": "remove", "path": "emails[type eq \"home\"]"}]), Ok(json!({"emails": [work]})));
        check(
            json!([{"op": "remove", "path": "emails", "value": [{"value": "w@x.example"}]}]),
            Ok(json!({"emails": [home]})),
        );
        check(json!([{"op": "remove", "path": "emails"}]), Ok(json!({"emails": null})));
        check(
            json!([{"op": "replace", "path": "emails[type eq \"home\"].value", "value": "z@x.example"}]),
            Ok(json!({"emails": [work, {"value": "z@x.example", "type": "home"}]})),
        );
        check(
            json!([{"op": "add", "path": "phoneNumbers[type eq \"mobile\"].value", "value": "+43 1"}]),
            Ok(json!({"phoneNumbers": [{"type": "mobile", "value": "+43 1"}]})),
        );
        let enterprise = "urn:ietf:params:scim:schemas:extension:enterprise:2.0:User";
        check(
            json!([{"op": "add", "path": format!("{enterprise}:department"), "value": "Legal"}]),
            Ok(json!({enterprise: {"department": "Legal"}})),
        );
        check(
            json!([{"op": "add", "value": {enterprise: {"department": "Legal"}}}, {"op": "remove", "path": enterprise}]),
            Ok(json!({})),
        );
    }

    #[test]
    fn scim_changes_come_as_provisioning_services_send_them() {
        let enterprise = "urn:ietf:params:scim:schemas:extension:enterprise:2.0:User";
        let core = "urn:ietf:params:scim:schemas:core:2.0:User";
        let work = json!({"value": "w@x.example", "type": "work", "primary": true});
        let home = json!({"value": "h@x.example", "type": "home"});
        // A rename brings the id, which only the server writes; extensions that are not known are ignored.
        check(
            json!([{"op": "replace", "value": {"id": "7", "schemas": [core], "userName": "veronika", "meta": {}, "groups": []}}]),
            Ok(json!({"userName": "veronika"})),
        );
        check(
            json!([{"op": "Add", "value": {"urn:okta:custom:1.0:user": {"shoe": 44}, "title": "Dr"}},
                {"op": "Replace", "path": "urn:ietf:params:scim:schemas:extension:CustomExtension:2.0:User:tag", "value": "x"},
                {"op": "remove", "path": "urn:okta:custom:1.0:user"}]),
            Ok(json!({"title": "Dr"})),
        );
        check(json!([{"op": "replace", "value": {core: {"title": "Dr"}}}]), Ok(json!({"title": "Dr"})));
        check(json!([{"op": "replace", "path": format!("{core}:title"), "value": "Dr"}]), Ok(json!({"title": "Dr"})));
        check(json!([{"op": "replace", "path": null, "value": {"title": "Dr"}}]), Ok(json!({"title": "Dr"})));
        check(json!([{"op": "replace", "path": "", "value": {"title": "Dr"}}]), Ok(json!({"title": "Dr"})));
        // The manager with and without its schema, as text, and by its address.
        for (path, value) in [
            ("manager".to_owned(), json!("m-7")),
            ("manager".to_owned(), json!({"value": "m-7"})),
            ("Manager.Value".to_owned(), json!("m-7")),
            (format!("{enterprise}:manager"), json!("m-7")),
            (format!("{enterprise}:manager.value"), json!("m-7")),
            (format!("{enterprise}:manager"), json!([{"value": "m-7"}])),
        ] {
            check(
                json!([{"op": "Add", "path": path, "value": value}]),
                Ok(json!({enterprise: {"manager": {"value": "m-7"}}})),
            );
            check(
                json!([{"op": "Add", "path": path, "value": value}, {"op": "Remove", "path": "manager"}]),
                Ok(json!({})),
            );
        }
        check(
            json!([{"op": "Replace", "value": {"manager": {"$ref": "../Users/m-7"}}}]),
            Ok(json!({enterprise: {"manager": {"value": "m-7", "$ref": "../Users/m-7"}}})),
        );
        check(
            json!([{"op": "add", "path": "manager", "value": "m-7"}, {"op": "replace", "path": "manager", "value": ""}]),
            Ok(json!({})),
        );
        check(
            json!([{"op": "add", "value": {format!("{enterprise}:department"): "Legal", "name.givenName": "V"}}]),
            Ok(json!({enterprise: {"department": "Legal"}, "name": {"givenName": "V", "familyName": "Muster"}})),
        );
        // Booleans as text, in paths too.
        let roles = json!([{"primary": true, "value": "admin"}]);
        check(
            json!([{"op": "Add", "path": "roles[primary eq \"True\"].value", "value": "admin"}]),
            Ok(json!({"roles": roles})),
        );
        check(
            json!([{"op": "add", "path": "roles", "value": [{"value": "user", "primary": "True"}]},
                {"op": "replace", "path": "roles[primary eq \"True\"].value", "value": "admin"}]),
            Ok(json!({"roles": roles})),
        );
        check(
            json!([{"op": "add", "value": {"emails[type eq \"other\"].value": "o@x.example"}}]),
            Ok(json!({"emails": [work, home, {"type": "other", "value": "o@x.example"}]})),
        );
        // An existing value is not added again; only one value is primary.
        check(
            json!([{"op": "add", "path": "emails", "value": [{"value": "W@X.example", "type": "work"}, {"value": "h@x.example"}]}]),
            Ok(json!({})),
        );
        check(
            json!([{"op": "add", "path": "emails", "value": {"value": "h@x.example", "display": "Home", "primary": true}}]),
            Ok(json!({"emails": [
                {"value": "w@x.example", "type": "work", "primary": false},
                {"value": "h@x.example", "type": "home", "display": "Home", "primary": true},
            ]})),
        );
        check(
            json!([{"op": "replace", "path": "emails[type eq \"home\"].primary", "value": "True"}]),
            Ok(json!({"emails": [
                {"value": "w@x.example", "type": "work", "primary": false},
                {"value": "h@x.example", "type": "home", "primary": true},
            ]})),
        );
    }

    #[test]
    fn scim_a_removal_that_names_nothing_removes_nothing() {
        for value in
            [json!({}), json!([{}]), json!(null), json!([null]), json!(""), json!([{"value": "w@x.example"}, {}])]
        {
            check(json!([{"op": "remove", "path": "emails", "value": value}]), Err("leave it out to remove all"));
        }
        check(json!([{"op": "remove", "path": "emails", "value": []}]), Ok(json!({})));
        check(json!([{"op": "remove", "path": "emails", "value": [{"value": "none@x.example"}]}]), Ok(json!({})));
        check(json!([{"op": "remove", "path": "emails[type eq \"none\"]"}]), Ok(json!({})));
        check(json!([{"op": "remove", "path": "emails[type eq \"none\"].value"}]), Ok(json!({})));
        check(json!([{"op": "remove", "path": "emails[type eq \"none\"]", "value": [{}]}]), Ok(json!({})));
        check(json!([{"op": "replace", "path": "emails", "value": [{}]}]), Err("says nothing"));
        check(json!([{"op": "remove", "path": "title", "value": null}]), Ok(json!({})));
    }

    #[test]
    fn a_change_makes_one_value_the_primary_one() {
        let several = "`emails` would have more than one primary value";
        check(json!([{"op": "replace", "path": "emails.primary", "value": true}]), Err(several));
        check(
            json!([{"op": "replace", "path": "emails[type eq \"work\" or type eq \"home\"].primary", "value": true}]),
            Err(several),
        );
        check(json!([{"op": "add", "path": "emails[value pr]", "value": {"primary": "True"}}]), Err(several));
        check(
            json!([{"op": "replace", "path": "emails.primary", "value": false}]),
            Ok(json!({"emails": [
                {"value": "w@x.example", "type": "work", "primary": false},
                {"value": "h@x.example", "type": "home", "primary": false},
            ]})),
        );
    }

    #[test]
    fn a_removal_finds_values_as_filters_do() {
        let work = json!({"value": "w@x.example", "type": "work", "primary": true});
        let home = json!({"value": "h@x.example", "type": "home"});
        let removal = |value: Json| json!([{"op": "remove", "path": "emails", "value": [value]}]);
        check(removal(json!({"value": "W@X.example"})), Ok(json!({"emails": [home]})));
        check(removal(json!({"value": "w@x.example", "type": "Work"})), Ok(json!({"emails": [home]})));
        check(removal(json!({"value": "h@x.example", "type": "work"})), Ok(json!({})));
        check(removal(json!({"value": "H@x.example"})), Ok(json!({"emails": [work]})));
        let certificates = json!([
            {"op": "add", "path": "x509Certificates", "value": [{"value": "AAAA"}, {"value": "aaaa"}]},
            {"op": "remove", "path": "x509Certificates", "value": [{"value": "aaaa"}]},
        ]);
        check(certificates, Ok(json!({"x509Certificates": [{"value": "AAAA"}]})));
    }

    #[test]
    fn what_cannot_be_changed_is_told() {
        check(json!([]), Err("1 to 1000 operations"));
        check(json!([{"op": "shuffle", "path": "title"}]), Err("add, replace and remove"));
        check(json!([{"op": "remove"}]), Err("noTarget"));
        check(json!([{"op": "remove", "path": "userName"}]), Err("mutability"));
        check(json!([{"op": "replace", "path": "id", "value": "x"}]), Err("mutability"));
        check(json!([{"op": "add", "path": "groups", "value": [{"value": "x"}]}]), Err("mutability"));
        check(json!([{"op": "add", "path": "shoeSize", "value": "44"}]), Err("invalidPath"));
        check(json!([{"op": "add", "path": "name[familyName eq \"x\"].givenName", "value": "y"}]), Err("invalidPath"));
        check(json!([{"op": "add", "path": "emails[type eq", "value": "44"}]), Err("invalidPath"));
        check(json!([{"op": "add", "path": "title"}]), Err("`value` is missing"));
        check(json!([{"op": "replace", "path": "active", "value": "maybe"}]), Err("invalidValue"));
        check(json!([{"op": "replace", "path": "active", "value": [false]}]), Err("invalidValue"));
        check(json!([{"op": "replace", "value": {"active": [false]}}]), Err("invalidValue"));
        check(json!([{"op": "replace", "path": "emails[type eq \"other\"].value", "value": "x"}]), Err("noTarget"));
        check(json!([{"op": "add", "value": "x"}]), Err("an object of attributes"));
    }
}
