//! Attributes and values of a change, checked against the schema.

use std::{collections::HashSet, sync::Arc};

use crate::{
    dn::Rdn,
    entry::Attribute,
    ldap_error::{Code, LdapError},
    schema::{AttributeType, FINDING, PASSWORD, Schema},
    url::LdapUrlSearch,
};

/// Name and values of an attribute, as a client sends them.
pub type RawAttribute = (String, Vec<Vec<u8>>);

/// Maximum values of one attribute.
const VALUES_MAX: usize = 100_000;

/// Looks up an attribute by name, and rejects one that clients must not change.
pub(super) fn changeable(name: &str, schema: &Schema) -> Result<Arc<AttributeType>, LdapError> {
    let kind = schema.attribute(name)?;
    if kind.changeable {
        return Ok(kind.clone());
    }
    Err(LdapError::new(Code::ConstraintViolation, format!("{}: no user modification allowed", kind.name())))
}

/// Validates values against the attribute type and rejects duplicates.
pub(super) fn checked(kind: &AttributeType, values: &[Vec<u8>], schema: &Schema) -> Result<Vec<Box<[u8]>>, LdapError> {
    let valid = valid(kind, values, schema)?;
    if valid.len() < 2 {
        return Ok(valid);
    }
    let mut seen = HashSet::new();
    match values.iter().position(|value| !seen.insert(normal(kind, value, schema))) {
        Some(at) => Err(LdapError::new(
            Code::AttributeOrValueExists,
            format!("{}: value #{at} provided more than once", kind.name()),
        )),
        None => Ok(valid),
    }
}

/// Validates values against the attribute type.
pub(super) fn valid(kind: &AttributeType, values: &[Vec<u8>], schema: &Schema) -> Result<Vec<Box<[u8]>>, LdapError> {
    if values.len() > VALUES_MAX {
        return Err(LdapError::new(
            Code::AdminLimitExceeded,
            format!("{}: an attribute has at most {VALUES_MAX} values", kind.name()),
        ));
    }
    let wrong = |what: String| LdapError::new(Code::InvalidAttributeSyntax, format!("{}: value {what}", kind.name()));
    for (at, value) in values.iter().enumerate() {
        if !kind.syntax.allows(value, schema) {
            return Err(wrong(format!("#{at} invalid per syntax")));
        }
        if &*kind.key == FINDING {
            LdapUrlSearch::read(&String::from_utf8_lossy(value)).map_err(|why| wrong(format!("#{at} {why}")))?;
        }
    }
    Ok(values.iter().map(|value| value.as_slice().into()).collect())
}

/// Normal form of a value, under the attribute's equality rule.
pub(super) fn normal(kind: &AttributeType, value: &[u8], schema: &Schema) -> Vec<u8> {
    kind.equality.and_then(|rule| rule.normal(value, schema)).unwrap_or_else(|| value.to_vec())
}

/// Names of the object classes among the attributes.
pub(super) fn classes_of(attributes: &[Attribute]) -> Vec<&str> {
    let classes = attributes.iter().filter(|attribute| &*attribute.kind.key == "objectclass");
    classes.flat_map(|found| &*found.values).filter_map(|value| std::str::from_utf8(value).ok()).collect()
}

/// Rejects several values of a single-valued attribute. With `touched`, only these attributes are checked, since the
/// schema may have changed after others were stored.
pub(super) fn single_valued(attributes: &[Attribute], touched: Option<&[Arc<AttributeType>]>) -> Result<(), LdapError> {
    let is_asked = |kind: &AttributeType| touched.is_none_or(|touched| touched.iter().any(|one| one.key == kind.key));
    let is_wrong = |found: &&Attribute| found.kind.single && found.values.len() > 1 && is_asked(&found.kind);
    match attributes.iter().find(is_wrong) {
        Some(attribute) => {
            let what = format!("{}: multiple values provided", attribute.kind.name());
            Err(LdapError::new(Code::ConstraintViolation, what))
        }
        None => Ok(()),
    }
}

/// Whether the attributes contain the values of the relative name.
pub(super) fn has_rdn(attributes: &[Attribute], rdn: &Rdn, schema: &Schema) -> Result<bool, LdapError> {
    for (name, value) in &rdn.assertions {
        let kind = schema.attribute(name)?;
        let requested = normal(kind, value, schema);
        let found =
            attributes.iter().filter(|attribute| attribute.kind.key == kind.key).flat_map(|found| &*found.values);
        if !found.into_iter().any(|value| normal(kind, value, schema) == requested) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Adds the values of the relative name to the attributes if they are missing.
pub(super) fn add_rdn(attributes: &mut Vec<Attribute>, rdn: &Rdn, schema: &Schema) -> Result<(), LdapError> {
    for (name, value) in &rdn.assertions {
        let kind = schema.attribute(name)?.clone();
        can_name(&kind)?;
        if !kind.syntax.allows(value, schema) {
            return Err(LdapError::new(
                Code::InvalidAttributeSyntax,
                format!("{}: the name's value is invalid per syntax", kind.name()),
            ));
        }
        let requested = normal(&kind, value, schema);
        match attributes.iter_mut().find(|attribute| attribute.kind.key == kind.key) {
            Some(found) if found.values.iter().any(|known| normal(&kind, known, schema) == requested) => {}
            Some(found) => Arc::make_mut(&mut found.values).push(value.as_slice().into()),
            None => attributes.push(Attribute::of(&kind, value)),
        }
    }
    Ok(())
}

/// Rejects attributes that cannot name an entry (X.501, 9.3; RFC 4512, 2.3.1): operational ones, since only the server
/// writes them; passwords, since names are readable; those without an equality rule.
fn can_name(kind: &AttributeType) -> Result<(), LdapError> {
    let why = match () {
        () if !kind.changeable || kind.operational => "it is operational",
        () if &*kind.key == PASSWORD || kind.kinds.iter().any(|of| &**of == PASSWORD) => "it is a password",
        () if kind.equality.is_none() => "it has no equality matching rule",
        () => return Ok(()),
    };
    let name = kind.name();
    let what = format!("`{name}` cannot name an entry: {why}; name it by another attribute, such as `cn` or `uid`");
    Err(LdapError::new(Code::NamingViolation, what))
}

/// Types of the values in relative names.
pub(super) fn named_by(rdns: &[&Rdn], schema: &Schema) -> Result<Vec<Arc<AttributeType>>, LdapError> {
    let names = rdns.iter().flat_map(|rdn| &rdn.assertions);
    names.map(|(name, _)| schema.attribute(name).cloned()).collect()
}

/// Checks a changed entry against its classes.
pub(super) fn check_classes(
    old: &[&str],
    attributes: &[Attribute],
    touched: &[Arc<AttributeType>],
    has_password: bool,
    schema: &Schema,
) -> Result<(), LdapError> {
    single_valued(attributes, Some(touched))?;
    let new = classes_of(attributes);
    if new.is_empty() {
        return Err(LdapError::new(Code::ObjectClassViolation, "no objectClass attribute"));
    }
    if old != new {
        check_class_change(old, &new, schema)?;
    }
    let password = schema.attribute("userPassword")?;
    let has: Vec<_> = attributes.iter().map(|found| &found.kind).chain(has_password.then_some(password)).collect();
    // If the classes change, all attributes are checked.
    schema.check(&new, &has, (old == new).then_some(touched))
}

/// Rejects a change of classes that would change the nature of the entry.
fn check_class_change(old: &[&str], new: &[&str], schema: &Schema) -> Result<(), LdapError> {
    if schema.structural(old)?.oid != schema.structural(new)?.oid {
        let what = "the structural object class of an entry cannot change";
        return Err(LdapError::new(Code::ObjectClassModsProhibited, what));
    }
    if schema.is_subscriber(old) != schema.is_subscriber(new) {
        let what = "an entry cannot become a subscriber or stop being one; delete it and add it again";
        return Err(LdapError::new(Code::ObjectClassModsProhibited, what));
    }
    if schema.is_dynamic(old) != schema.is_dynamic(new) {
        let what = "an entry cannot become dynamic or stop being dynamic; delete it and add it again";
        return Err(LdapError::new(Code::ObjectClassModsProhibited, what));
    }
    Ok(())
}
