//! Unique values: login names in the directory, and device addresses that a subscriber gives itself.

use std::collections::{BTreeMap, BTreeSet};

use tocsin_model::{mailbox, value::Value};
use tocsin_store::entries::{EntryNumber, EntryReader, LoginNames};

use super::values::normal;
use crate::{
    access::AuthzId,
    attribute_mapping::new_object_attributes,
    entry::{self, Attribute},
    ldap_error::{Code, LdapError},
    plan,
    schema::{AttributeType, Schema},
    syntax::Syntax,
    tree::Inner,
};

/// Index of login names, which are unique in the directory.
pub(crate) const LOGIN: &str = "uid";

impl Inner {
    /// Whether an entry other than `own` has this normalized value.
    pub(super) fn is_used_by_another(
        &self,
        branches: &dyn EntryReader,
        kind: &AttributeType,
        requested: &[u8],
        own: Option<EntryNumber>,
        schema: &Schema,
    ) -> Result<bool, LdapError> {
        // If too many entries share the key for the index to list them, at least one of them is another entry.
        let Some(found) = plan::equal(branches, &kind.key, requested)? else { return Ok(true) };
        for number in found.into_iter().filter(|number| Some(*number) != own) {
            let Some(node) = branches.node(number)? else { continue };
            let attributes = entry::attributes(&node, schema, &self.shape);
            let same = attributes.iter().filter(|other| other.kind.key == kind.key).flat_map(|other| &*other.values);
            if same.into_iter().any(|value| normal(kind, value, schema) == requested) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl Inner {
    /// Finds a login name that another entry uses already. Names that the entry had before the change are not checked
    /// again.
    pub(crate) fn find_login_conflict(
        &self,
        branches: &dyn EntryReader,
        entry: Option<EntryNumber>,
        names: LoginNames<'_>,
    ) -> Result<Option<String>, LdapError> {
        let schema = self.schema.load();
        let kind = schema.attribute(LOGIN)?;
        let of = |attributes: &BTreeMap<String, Value>| {
            let is_login = |name: &&String| kind.names.iter().any(|known| known.eq_ignore_ascii_case(name));
            let named = attributes.keys().filter(is_login).filter_map(|name| attributes.get(name));
            named.flat_map(|value| entry::values(value, kind.syntax)).collect::<Vec<_>>()
        };
        let (before, now) = match names {
            LoginNames::Id(id) => (Vec::new(), vec![id.as_str().as_bytes().into()]),
            LoginNames::Attributes { before, now } => (before.map(of).unwrap_or_default(), of(now)),
        };
        let before: Vec<_> = before.iter().map(|value| normal(kind, value, &schema)).collect();
        for name in now {
            let requested = normal(kind, &name, &schema);
            if !before.contains(&requested) && self.is_used_by_another(branches, kind, &requested, entry, &schema)? {
                return Ok(Some(String::from_utf8_lossy(&name).into_owned()));
            }
        }
        Ok(None)
    }

    /// Rejects attributes with a login name that another entry uses already.
    pub(super) fn check_login(
        &self,
        branches: &dyn EntryReader,
        entry: Option<EntryNumber>,
        (before, now): (&[Attribute], &[Attribute]),
    ) -> Result<(), LdapError> {
        let of = |attributes: &[Attribute]| {
            let login: Vec<_> = attributes.iter().filter(|found| &*found.kind.key == LOGIN).cloned().collect();
            new_object_attributes(&login)
        };
        let (before, now) = (of(before), of(now));
        if before == now {
            return Ok(());
        }
        match self.find_login_conflict(branches, entry, LoginNames::Attributes { before: Some(&before), now: &now })? {
            Some(name) => {
                let what = format!("another entry has the login name `{name}` (uid); give another one");
                Err(LdapError::new(Code::ConstraintViolation, what))
            }
            None => Ok(()),
        }
    }
}

/// A telephone number without separators, scheme and extension (E.123, RFC 3966): `+` and digits, or digits only. The
/// international prefix `00` is read as `+`.
fn plain_number(text: &str) -> Option<String> {
    let text = text.trim();
    let number = match text.get(..4) {
        Some(scheme) if scheme.eq_ignore_ascii_case("tel:") => &text[4..],
        _ => text,
    };
    let number = number.split(|char: char| char.is_alphabetic() || matches!(char, ',' | ';')).next()?;
    let mut digits: String = number.chars().filter(char::is_ascii_digit).collect();
    if number.contains('+') {
        digits.insert(0, '+');
    } else if let Some(international) = digits.strip_prefix("00") {
        digits = format!("+{international}");
    }
    (!digits.is_empty()).then_some(digits)
}

impl Inner {
    /// Rejects a subscriber's own change that gives it the device address of another subscriber. Other writers are
    /// trusted.
    pub(super) fn check_addresses(
        &self,
        branches: &dyn EntryReader,
        requester: &AuthzId,
        own: EntryNumber,
        (before, now): (&[Attribute], &[Attribute]),
        schema: &Schema,
    ) -> Result<(), LdapError> {
        if requester.manages || requester.number != Some(own) {
            return Ok(());
        }
        let of = |attributes: &[Attribute], key: &str| {
            let meant = attributes.iter().filter(|found| &*found.kind.key == key);
            meant.flat_map(|found| found.values.to_vec()).collect::<Vec<_>>()
        };
        let (devices, known) = (of(now, "tocsindevice"), of(before, "tocsindevice"));
        for (key, channel) in &self.shape.devices {
            let kind = schema.attribute(key)?;
            // `name channel state address`.
            let address = |text: &[u8]| {
                let mut words = text.splitn(4, |byte| *byte == b' ').skip(1);
                let is_selected = words.next() == Some(channel.as_str().as_bytes());
                words.nth(1).filter(|_| is_selected).map(Box::from)
            };
            let named = devices.iter().filter(|device| !known.contains(device)).filter_map(|device| address(device));
            let known = of(before, key);
            for given in of(now, key).into_iter().chain(named).filter(|given| !known.contains(given)) {
                // The stored form of the address.
                let text = std::str::from_utf8(&given).ok();
                let stored = text.and_then(|text| self.shape.check_address.normalize(channel, text).ok());
                // All forms of the same mailbox: without display name, quotes and brackets; the domain in ASCII and in
                // Unicode. Telephone numbers without their separators.
                let bare = text.map(mailbox::comparable);
                let unicode = bare.as_deref().and_then(mailbox::unicode_form);
                let plain = text.filter(|_| kind.syntax == Syntax::Telephone).and_then(plain_number);
                let forms = [stored.as_deref(), bare.as_deref(), unicode.as_deref(), plain.as_deref()];
                let forms = forms.into_iter().flatten();
                let requested: BTreeSet<_> = match text {
                    Some(_) => forms.map(|form| normal(kind, form.as_bytes(), schema)).collect(),
                    None => [normal(kind, &given, schema)].into(),
                };
                for requested in &requested {
                    if self.is_used_by_another(branches, kind, requested, Some(own), schema)? {
                        let what = format!(
                            "{}: another subscriber has this address; only an operator may assign it",
                            kind.name()
                        );
                        return Err(LdapError::new(Code::ConstraintViolation, what));
                    }
                }
            }
        }
        Ok(())
    }
}
