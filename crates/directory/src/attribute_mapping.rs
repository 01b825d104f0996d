//! Mapping of entry attributes to the stored fields of objects and subscribers.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use tocsin_model::{
    id::{Name, SubscriberId},
    mailbox,
    problem::Problem,
    subscriber::{DEVICES_MAX, Device, DeviceState, Profile, Subscriber, check_attributes, check_profile},
    value::Value,
};
use tocsin_store::{entries::Placement, records::NewSubscriber};

use crate::{
    entry::{Attribute, LOCALE, Shape, is_own_attribute, state_word},
    ldap_error::{Code, LdapError},
    schema::AttributeType,
    syntax::Syntax,
};

/// The stored attributes of an object. Untouched attributes keep their stored form.
pub(crate) fn object_attributes(
    old: &BTreeMap<String, Value>,
    before: &[Attribute],
    now: &[Attribute],
) -> BTreeMap<String, Value> {
    merged(old, before, now, |_| true)
}

/// The stored attributes of a new object.
pub(crate) fn new_object_attributes(attributes: &[Attribute]) -> BTreeMap<String, Value> {
    object_attributes(&BTreeMap::new(), &[], attributes)
}

/// The subscriber of these attributes; `old`: the stored subscriber, and the attributes that represent it.
///
/// # Errors
/// A value is invalid for its field.
pub(crate) fn subscriber_of(
    id: SubscriberId,
    old: Option<(&Subscriber, &[Attribute])>,
    now: &[Attribute],
    placement: Option<&Placement>,
    shape: &Shape,
) -> Result<NewSubscriber, LdapError> {
    let empty = BTreeMap::new();
    let (attributes, before, devices) = match old {
        Some((old, before)) => (&old.profile.attributes, before, old.devices.clone()),
        None => (&empty, &[][..], BTreeMap::new()),
    };
    let one = |key: &str| {
        let found = now.iter().find(|attribute| &*attribute.kind.key == key)?;
        String::from_utf8(found.values[0].to_vec()).ok()
    };
    let profile = Profile {
        enabled: one("tocsinenabled").is_none_or(|text| !text.eq_ignore_ascii_case("false")),
        locale: one(LOCALE),
        time_zone: one("tocsintimezone"),
        attributes: merged(attributes, before, now, |name| is_own_attribute(name, placement.is_some(), shape)),
    };
    if let Some(problem) = check_profile(&profile).first() {
        return Err(LdapError::new(Code::InvalidAttributeSyntax, message_of(problem)));
    }
    if let Some(problem) = check_attributes(&profile.attributes).first() {
        return Err(LdapError::new(
            Code::AdminLimitExceeded,
            format!("the subscriber's attributes: {}", message_of(problem)),
        ));
    }
    let devices = devices_of(devices, before, now, shape)?;
    Ok(NewSubscriber {
        kept: Default::default(),
        id,
        profile,
        devices: Some(devices.into_iter().collect()),
        preferences: None,
    })
}

/// Formats a problem as one sentence.
fn message_of(problem: &Problem) -> String {
    let hint = problem.hint.as_ref().map(|hint| format!("; {hint}")).unwrap_or_default();
    format!("{}{hint}", problem.message)
}

fn find<'a>(attributes: &'a [Attribute], key: &str) -> Option<&'a Attribute> {
    attributes.iter().find(|found| &*found.kind.key == key)
}

/// Change of one stored attribute.
pub(crate) struct StoredChange {
    pub(crate) name: String,
    /// `None`: it did not exist.
    pub(crate) before: Option<Value>,
    /// `None`: it is removed.
    pub(crate) after: Option<Value>,
}

/// The change of the stored attribute of a type, to these values. `known`: its stored name and value. An existing name
/// keeps its spelling and a list stays a list; otherwise a single value is stored as a scalar.
pub(crate) fn stored_change(
    kind: &AttributeType,
    now: Option<&Attribute>,
    known: Option<(&str, Value)>,
) -> StoredChange {
    let (name, before) = match known {
        Some((name, value)) => (name.to_owned(), Some(value)),
        None => (kind.name().to_owned(), None),
    };
    let after = now.map(|attribute| value_of(attribute, matches!(before, Some(Value::List(_)))));
    StoredChange { name, before, after }
}

/// Merges the changes between two attribute lists into the stored attributes.
fn merged(
    old: &BTreeMap<String, Value>,
    before: &[Attribute],
    now: &[Attribute],
    is_selected: impl Fn(&str) -> bool,
) -> BTreeMap<String, Value> {
    let mut merged = old.clone();
    let mut kinds: Vec<Arc<AttributeType>> = Vec::new();
    // Most attributes keep their position and values.
    let moved = |one: &[Attribute], other: &[Attribute]| {
        let is_moved = |(at, attribute): &(usize, &Attribute)| other.get(*at) != Some(*attribute);
        one.iter().enumerate().filter(is_moved).map(|(_, attribute)| attribute.kind.clone()).collect::<Vec<_>>()
    };
    for kind in [moved(before, now), moved(now, before)].concat() {
        if is_selected(&kind.key) && !kinds.iter().any(|known| known.key == kind.key) {
            kinds.push(kind);
        }
    }
    for kind in kinds {
        let (was, is) = (find(before, &kind.key), find(now, &kind.key));
        if was == is {
            continue;
        }
        let is_spelled = |name: &&String| kind.names.iter().any(|known| known.eq_ignore_ascii_case(name));
        let known = old.keys().find(is_spelled).and_then(|name| Some((name.as_str(), old.get(name)?.clone())));
        let StoredChange { name, after, .. } = stored_change(&kind, is, known);
        match after {
            None => drop(merged.remove(&name)),
            Some(value) => drop(merged.insert(name, value)),
        }
    }
    merged
}

/// The stored form of an attribute's values. `was_list`: a list replaces a list, even of one value.
fn value_of(attribute: &Attribute, was_list: bool) -> Value {
    let mut values: Vec<Value> = attribute.values.iter().map(|value| stored(value, attribute.kind.syntax)).collect();
    if values.len() == 1 && !was_list { values.remove(0) } else { Value::List(values.into()) }
}

/// The stored form of a value, in the type that rules expect.
fn stored(value: &[u8], syntax: Syntax) -> Value {
    let Ok(text) = std::str::from_utf8(value) else { return Value::from(&*base64(value)) };
    match syntax {
        Syntax::Octets => Value::from(&*base64(value)),
        Syntax::Integer => text.parse::<i64>().map_or_else(|_| Value::from(text), Value::Integer),
        Syntax::Number => match text.parse::<i64>() {
            Ok(whole) => Value::Integer(whole),
            Err(_) => text.parse::<f64>().map_or_else(|_| Value::from(text), Value::from),
        },
        Syntax::Boolean => Value::Boolean(text.eq_ignore_ascii_case("true")),
        _ => Value::from(text),
    }
}

fn base64(value: &[u8]) -> String {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.encode(value)
}

fn texts(attributes: &[Attribute], key: &str) -> Vec<String> {
    let found =
        attributes.iter().filter(|attribute| &*attribute.kind.key == key).flat_map(|attribute| &*attribute.values);
    found.map(|value| String::from_utf8_lossy(value).into_owned()).collect()
}

/// The devices: first those of `tocsinDevice`, then those whose addresses are attributes. A replaced address keeps the
/// device name, so that subscriptions naming it continue to work.
fn devices_of(
    mut devices: BTreeMap<Name, Device>,
    before: &[Attribute],
    now: &[Attribute],
    shape: &Shape,
) -> Result<BTreeMap<Name, Device>, LdapError> {
    if texts(before, "tocsindevice") != texts(now, "tocsindevice") {
        devices = texts(now, "tocsindevice").iter().map(|text| device(text, shape)).collect::<Result<_, _>>()?;
    }
    for (key, channel) in &shape.devices {
        let (was, is) = (texts(before, key), texts(now, key));
        if was == is {
            continue;
        }
        // Unchanged addresses are kept, also if an earlier version stored one that is invalid now.
        let normal = |address: &String| match was.contains(address) {
            true => Ok(address.clone()),
            false => check_address(channel, address, shape),
        };
        let is: Vec<String> = is.iter().map(normal).collect::<Result<_, _>>()?;
        let gone: Vec<&String> = was.iter().filter(|address| !is.contains(address)).collect();
        let mut free: Vec<Name> = devices
            .iter()
            .filter(|(_, device)| device.channel == *channel && gone.contains(&&device.address))
            .map(|(name, _)| name.clone())
            .collect();
        free.reverse();
        let mut others = Vec::new();
        for address in &is {
            if devices.values().any(|device| device.channel == *channel && device.address == *address) {
                continue;
            }
            // Another spelling of the same mailbox is the same device, with its name and state.
            let is_same = |(_, device): &(&Name, &mut Device)| {
                device.channel == *channel && mailbox::is_same(&device.address, address)
            };
            match devices.iter_mut().find(is_same) {
                Some((name, device)) => {
                    if let Some(at) = free.iter().position(|gone| gone == name) {
                        free.remove(at);
                        device.address.clone_from(address);
                    }
                }
                None => others.push(address),
            }
        }
        let has = |devices: &BTreeMap<Name, Device>, address: &str| {
            devices.values().any(|device| device.channel == *channel && mailbox::is_same(&device.address, address))
        };
        for address in others {
            if has(&devices, address) {
                continue;
            }
            let name = free.pop().map_or_else(|| free_name(&devices, channel), Ok)?;
            devices.insert(
                name,
                Device { channel: channel.clone(), address: address.clone(), state: DeviceState::Active },
            );
        }
        for name in free {
            devices.remove(&name);
        }
    }
    if devices.len() > DEVICES_MAX {
        return Err(LdapError::new(
            Code::AdminLimitExceeded,
            format!("a subscriber has at most {DEVICES_MAX} devices"),
        ));
    }
    Ok(devices)
}

/// A free device name: `mail`, or `mail-2` if that is in use.
fn free_name(devices: &BTreeMap<Name, Device>, channel: &Name) -> Result<Name, LdapError> {
    let taken: BTreeSet<&str> = devices.keys().map(Name::as_str).collect();
    let mut names = std::iter::once(channel.to_string()).chain((2..).map(|count| format!("{channel}-{count}")));
    let free = names.find(|name| !taken.contains(name.as_str())).unwrap_or_default();
    free.parse().map_err(|_| {
        LdapError::new(Code::ConstraintViolation, format!("the name of the channel `{channel}` is too long"))
    })
}

fn check_address(channel: &Name, address: &str, shape: &Shape) -> Result<String, LdapError> {
    shape.check_address.normalize(channel, address).map_err(|problem| {
        LdapError::new(Code::ConstraintViolation, format!("the address of a device {}", message_of(&problem)))
    })
}

/// Parses `name channel state address`.
fn device(text: &str, shape: &Shape) -> Result<(Name, Device), LdapError> {
    let wrong = || {
        let what = format!(
            "`{text}` is not a device; give its name, channel, state and address, such as `home mail active a@example.org`"
        );
        LdapError::new(Code::InvalidAttributeSyntax, what)
    };
    let mut words = text.splitn(4, ' ');
    let mut next = || words.next().ok_or_else(wrong);
    let (name, channel, state, address) = (next()?, next()?, next()?, next()?);
    let states = [DeviceState::Active, DeviceState::Disabled, DeviceState::Bounced, DeviceState::Failed];
    let state = states.into_iter().find(|known| state_word(*known) == state).ok_or_else(wrong)?;
    let channel: Name = channel.parse().map_err(|_| wrong())?;
    let address = check_address(&channel, address, shape)?;
    Ok((name.parse().map_err(|_| wrong())?, Device { channel, address, state }))
}
