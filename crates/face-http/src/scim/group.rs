//! Groups. The directory stores members by DN; SCIM shows them by id.

use serde_json::Value as Json;
use tocsin_directory::{Modification, ModifyType, dn::Dn, entry::Entry, schema::Schema};

use super::{
    body::Resource,
    error::ScimError,
    filter::Filter,
    patch::{self, Operation},
};

/// The classes of a group that is made here: one that may be empty.
pub(super) const CLASSES: &[&str] = &["top", "groupOfEntries", "scimResource"];
/// Object classes of groups.
pub(super) const KINDS: &[&str] = &["groupOfNames", "groupOfUniqueNames", "groupOfEntries", "groupOfURLs"];

/// An entry as a group, without its members.
pub(super) fn shown(entry: &Entry) -> Resource {
    let text = |key: &str| {
        let value = entry.attribute(key)?.values.first()?;
        Some(Json::from(String::from_utf8_lossy(value).into_owned()))
    };
    let name = text("displayname").or_else(|| text("cn"));
    let pairs = [("displayName", name), ("externalId", text("scimexternalid"))];
    pairs.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
}

pub(super) fn is_of_class(entry: &Entry, class: &str) -> bool {
    entry.classes().iter().any(|known| known.eq_ignore_ascii_case(class))
}

/// The attribute that holds the members.
pub(super) fn member_attribute(entry: &Entry) -> &'static str {
    if is_of_class(entry, "groupOfUniqueNames") { "uniqueMember" } else { "member" }
}

/// The names of the members.
pub(super) fn member_names(entry: &Entry) -> Vec<String> {
    let found = entry.attribute(&member_attribute(entry).to_ascii_lowercase());
    let values = found.map(|found| found.values.as_slice()).unwrap_or_default();
    values.iter().map(|value| String::from_utf8_lossy(value).into_owned()).collect()
}

/// Changes of the members.
#[derive(Debug, PartialEq)]
pub(super) enum Change {
    /// These ids come.
    Add(Vec<String>),
    /// These go.
    Remove(Vec<String>),
    /// Removes members that match a filter.
    RemoveSome(Filter),
    /// They are these, and no others.
    Become(Vec<String>),
}

/// The ids of a list of members.
///
/// # Errors
/// One has none.
pub(super) fn ids(value: Option<&Json>) -> Result<Vec<String>, ScimError> {
    let list = value.and_then(Json::as_array).map(Vec::as_slice).unwrap_or_default();
    let id = |member: &Json| member.get("value").and_then(Json::as_str).map(str::to_owned);
    let all = list.iter().map(id).collect::<Option<Vec<_>>>();
    all.ok_or_else(|| ScimError::bad("invalidValue", "a member needs a `value`: the id of a user or a group"))
}

/// Takes what changes members out of the operations of a request.
///
/// # Errors
/// A member cannot be changed, only come and go.
pub(super) fn changes(operations: Vec<Operation>) -> Result<(Vec<Operation>, Vec<Change>), ScimError> {
    let (members, rest): (Vec<_>, Vec<_>) =
        operations.into_iter().partition(|operation| operation.target.path.attribute.name == "members");
    let changes = members.into_iter().map(|Operation { act, target, value }| {
        if target.part.is_some() {
            return Err(ScimError::bad(
                "mutability",
                "members can be added and removed, but their attributes are read-only",
            ));
        }
        Ok(match (act, target.filter) {
            (patch::PatchOp::Add, None) => Change::Add(ids(value.as_ref())?),
            (patch::PatchOp::Replace, None) => Change::Become(ids(value.as_ref())?),
            (patch::PatchOp::Remove, None) if value.is_some() => Change::Remove(ids(value.as_ref())?),
            (patch::PatchOp::Remove, None) => Change::Become(Vec::new()),
            (patch::PatchOp::Remove, Some(filter)) => match filter.exact_values("value") {
                Some(ids) => Change::Remove(ids.into_iter().map(str::to_owned).collect()),
                None => Change::RemoveSome(filter),
            },
            (_, Some(_)) => {
                return Err(ScimError::bad("mutability", "members come and go; a filter chooses those that go"));
            }
        })
    });
    Ok((rest, changes.collect::<Result<_, _>>()?))
}

/// The modifications that make the members of a group those of `requested`, given by their names.
pub(super) fn modifications(entry: &Entry, requested: &[String], schema: &Schema) -> Vec<Modification> {
    let key = |name: &str| Dn::parse(name).map_or_else(|_| name.to_owned(), |dn| schema.normal_dn(&dn));
    let present = member_names(entry);
    let keys = |names: &[String]| names.iter().map(|name| key(name)).collect::<std::collections::HashSet<_>>();
    let (is, will_be) = (keys(&present), keys(requested));
    let of = |act: ModifyType, names: &[String], known: &std::collections::HashSet<String>| {
        let mut seen = known.clone();
        let new = names.iter().filter(|name| seen.insert(key(name)));
        let values: Vec<_> = new.map(|name| name.clone().into_bytes()).collect();
        let attribute = member_attribute(entry).to_owned();
        (!values.is_empty()).then_some(Modification { act, attribute, values })
    };
    [of(ModifyType::Add, requested, &is), of(ModifyType::Delete, &present, &will_be)].into_iter().flatten().collect()
}
