//! Selection of returned attributes (RFC 7644, 3.9).

use serde_json::Value as Json;

use super::{
    body::Resource,
    error::ScimError,
    schema::{Path, RESOURCES, ResourceType},
};

/// The selection of attributes.
#[derive(Debug, Default)]
pub(super) struct Selection {
    only: Option<Vec<Path>>,
    without: Vec<Path>,
}

impl Selection {
    /// Reads both lists; names are separated by commas.
    ///
    /// # Errors
    /// A name is not that of an attribute; both lists are given.
    pub(super) fn read(
        only: Option<&str>,
        without: Option<&str>,
        kind: &'static ResourceType,
    ) -> Result<Selection, ScimError> {
        let unknown = |name: &str| ScimError::bad("invalidPath", format!("a {} has no attribute `{name}`", kind.name));
        Selection::read_by(only, without, &|name| paths(kind, name).ok_or_else(|| unknown(name)))
    }

    /// Reads both lists for resources of all kinds: a name of another kind selects nothing of this one.
    ///
    /// # Errors
    /// As `read`.
    pub(super) fn read_in_all(
        only: Option<&str>,
        without: Option<&str>,
        kind: &'static ResourceType,
    ) -> Result<Selection, ScimError> {
        let unknown = |name: &str| ScimError::bad("invalidPath", format!("no resource has an attribute `{name}`"));
        let is_known = |name: &str| RESOURCES.iter().any(|other| paths(other, name).is_some());
        Selection::read_by(only, without, &|name| match paths(kind, name) {
            Some(paths) => Ok(paths),
            None if is_known(name) => Ok(Vec::new()),
            None => Err(unknown(name)),
        })
    }

    fn read_by(
        only: Option<&str>,
        without: Option<&str>,
        named: &dyn Fn(&str) -> Result<Vec<Path>, ScimError>,
    ) -> Result<Selection, ScimError> {
        let paths = |text: &str| {
            let names = text.split(',').map(str::trim).filter(|name| !name.is_empty());
            let found = names.map(named).collect::<Result<Vec<_>, _>>()?;
            Ok::<_, ScimError>(found.into_iter().flatten().collect::<Vec<_>>())
        };
        if only.is_some() && without.is_some() {
            return Err(ScimError::bad("invalidValue", "give `attributes` or `excludedAttributes`, not both"));
        }
        Ok(Selection {
            only: only.map(paths).transpose()?,
            without: without.map(paths).transpose()?.unwrap_or_default(),
        })
    }

    /// Whether anything of an attribute is wanted.
    pub(super) fn wants(&self, name: &str) -> bool {
        let is_named = |path: &Path| path.attribute.name == name;
        let is_out = self.without.iter().any(|path| is_named(path) && path.part.is_none());
        self.only.as_ref().is_none_or(|only| only.iter().any(is_named)) && !is_out
    }

    /// Takes away what is not wanted; the id and the schemas stay.
    pub(super) fn apply(&self, resource: &mut Resource) {
        if let Some(only) = &self.only {
            let mut kept = Resource::new();
            for name in ["schemas", "id"] {
                kept.extend(resource.get(name).map(|value| (name.to_owned(), value.clone())));
            }
            only.iter().for_each(|path| copy_path(resource, &mut kept, *path));
            *resource = kept;
        }
        for path in self.without.iter().filter(|path| !matches!(path.attribute.name, "id" | "schemas")) {
            let holder = match path.extension {
                Some(schema) => resource.get_mut(schema).and_then(Json::as_object_mut),
                None => Some(&mut *resource),
            };
            match (holder, path.part) {
                (Some(holder), None) => drop(holder.remove(path.attribute.name)),
                (Some(holder), Some(part)) => {
                    let each = match holder.get_mut(path.attribute.name) {
                        Some(Json::Array(values)) => values.iter_mut().collect(),
                        other => other.into_iter().collect::<Vec<_>>(),
                    };
                    each.into_iter().filter_map(Json::as_object_mut).for_each(|value| drop(value.remove(part.name)));
                }
                (None, _) => {}
            }
        }
    }
}

/// The attributes that a name selects: an attribute, a sub-attribute or a whole schema. Unknown extensions select
/// nothing.
fn paths(kind: &'static ResourceType, name: &str) -> Option<Vec<Path>> {
    if let Some(path) = kind.resolve(name) {
        return Some(vec![path]);
    }
    kind.attributes_of(name).or_else(|| kind.is_foreign(name).then(Vec::new))
}

/// Copies what is at a path.
fn copy_path(from: &Resource, kept: &mut Resource, path: Path) {
    let source = match path.extension {
        Some(schema) => from.get(schema).and_then(Json::as_object),
        None => Some(from),
    };
    let Some(value) = source.and_then(|source| source.get(path.attribute.name)) else { return };
    let target = match path.extension {
        Some(schema) => kept.entry(schema).or_insert_with(|| Json::Object(Resource::new())),
        None => return merge(kept, path, value),
    };
    if let Some(target) = target.as_object_mut() {
        merge(target, path, value);
    }
}

fn merge(kept: &mut Resource, path: Path, value: &Json) {
    let name = path.attribute.name;
    let Some(part) = path.part else { return drop(kept.insert(name.to_owned(), value.clone())) };
    let of = |value: &Json| {
        Json::Object(value.get(part.name).map(|found| (part.name.to_owned(), found.clone())).into_iter().collect())
    };
    let new = match value {
        Json::Array(values) => Json::Array(values.iter().map(of).collect()),
        one => of(one),
    };
    match (kept.get_mut(name), new) {
        (Some(Json::Array(known)), Json::Array(new)) => {
            for (known, new) in known.iter_mut().zip(new) {
                if let (Json::Object(known), Json::Object(new)) = (known, new) {
                    known.extend(new);
                }
            }
        }
        (Some(Json::Object(known)), Json::Object(new)) => known.extend(new),
        (_, new) => drop(kept.insert(name.to_owned(), new)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{super::schema::USER, *};

    #[test]
    fn only_selected_attributes_are_returned() {
        let check = |only: Option<&str>, without: Option<&str>, expected: Json| {
            let mut vera = json!({
                "schemas": [], "id": "7", "userName": "vera", "name": {"givenName": "V", "familyName": "M"},
                "emails": [{"value": "a", "type": "work"}, {"value": "b"}],
                super::super::schema::ENTERPRISE: {"department": "Legal", "costCenter": "1"},
            });
            let selection = Selection::read(only, without, &USER).expect("a selection");
            selection.apply(vera.as_object_mut().expect("an object"));
            assert_eq!(vera, expected, "{only:?} {without:?}");
        };
        check(Some("username"), None, json!({"schemas": [], "id": "7", "userName": "vera"}));
        check(
            Some("name.givenName, emails.value,emails.type"),
            None,
            json!({"schemas": [], "id": "7", "name": {"givenName": "V"}, "emails": [{"value": "a", "type": "work"}, {"value": "b"}]}),
        );
        let department = format!("{}:department", super::super::schema::ENTERPRISE);
        check(
            Some(&department),
            None,
            json!({"schemas": [], "id": "7", super::super::schema::ENTERPRISE: {"department": "Legal"}}),
        );
        check(
            None,
            Some(&format!("id,emails,name.givenName,{department}")),
            json!({"schemas": [], "id": "7", "userName": "vera", "name": {"familyName": "M"}, super::super::schema::ENTERPRISE: {"costCenter": "1"}}),
        );
        check(
            Some(super::super::schema::ENTERPRISE),
            None,
            json!({"schemas": [], "id": "7", super::super::schema::ENTERPRISE: {"department": "Legal", "costCenter": "1"}}),
        );
        check(Some("userName,urn:okta:custom:1.0:user"), None, json!({"schemas": [], "id": "7", "userName": "vera"}));
        let group_members = Selection::read_in_all(Some("members,userName"), None, &USER).expect("a selection");
        assert!(group_members.wants("userName") && !group_members.wants("emails"));
        assert!(Selection::read_in_all(Some("shoeSize"), None, &USER).is_err());
        assert!(Selection::read(Some("members"), None, &USER).is_err());
        assert!(Selection::read(Some("shoeSize"), None, &USER).is_err());
        assert!(Selection::read(Some("id"), Some("id"), &USER).is_err());
    }
}
