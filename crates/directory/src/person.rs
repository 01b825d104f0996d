//! The way back: attributes of an entry become what is stored.

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
    refusal::{Code, Refusal},
    schema::AttributeType,
    syntax::Syntax,
};

/// The attributes of an object as they are stored. What was not touched stays as it was.
pub(crate) fn object_attributes(
    old: &BTreeMap<String, Value>,
    before: &[Attribute],
    now: &[Attribute],
) -> BTreeMap<String, Value> {
    merged(old, before, now, |_| true)
}

/// A subscriber of these attributes; `old`: what is stored of it, and the attributes that show it.
///
/// # Errors
/// A value cannot be what it stands for.
pub(crate) fn subscriber_of(
    id: SubscriberId,
    old: Option<(&Subscriber, &[Attribute])>,
    now: &[Attribute],
    placement: Option<&Placement>,
    shape: &Shape,
) -> Result<NewSubscriber, Refusal> {
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
        return Err(Refusal::new(Code::InvalidAttributeSyntax, told(problem)));
    }
    if let Some(problem) = check_attributes(&profile.attributes).first() {
        return Err(Refusal::new(Code::AdminLimitExceeded, format!("the subscriber's attributes: {}", told(problem))));
    }
    let devices = devices_of(devices, before, now, shape)?;
    Ok(NewSubscriber { id, profile, devices: Some(devices.into_iter().collect()), preferences: None })
}

/// A problem in one sentence.
fn told(problem: &Problem) -> String {
    let hint = problem.hint.as_ref().map(|hint| format!("; {hint}")).unwrap_or_default();
    format!("{}{hint}", problem.message)
}

fn find<'a>(attributes: &'a [Attribute], key: &str) -> Option<&'a Attribute> {
    attributes.iter().find(|found| &*found.kind.key == key)
}

/// The stored attributes with what changed between two views. A name that is there already is kept as it is spelled, and a
/// list stays a list; otherwise one value stands for itself.
fn merged(
    old: &BTreeMap<String, Value>,
    before: &[Attribute],
    now: &[Attribute],
    is_meant: impl Fn(&str) -> bool,
) -> BTreeMap<String, Value> {
    let mut merged = old.clone();
    let mut kinds: Vec<Arc<AttributeType>> = Vec::new();
    // Nearly all stand where they stood, as they were.
    let moved = |one: &[Attribute], other: &[Attribute]| {
        let is_moved = |(at, attribute): &(usize, &Attribute)| other.get(*at) != Some(*attribute);
        one.iter().enumerate().filter(is_moved).map(|(_, attribute)| attribute.kind.clone()).collect::<Vec<_>>()
    };
    for kind in [moved(before, now), moved(now, before)].concat() {
        if is_meant(&kind.key) && !kinds.iter().any(|known| known.key == kind.key) {
            kinds.push(kind);
        }
    }
    for kind in kinds {
        let (was, is) = (find(before, &kind.key), find(now, &kind.key));
        if was == is {
            continue;
        }
        let names = |name: &&String| kind.names.iter().any(|known| known.eq_ignore_ascii_case(name));
        let spelled = old.keys().find(names).cloned();
        let was_list = spelled.as_ref().is_some_and(|name| matches!(old.get(name), Some(Value::List(_))));
        let name = spelled.unwrap_or_else(|| kind.name().to_owned());
        match is {
            None => drop(merged.remove(&name)),
            Some(attribute) => {
                merged.insert(name, value_of(attribute, was_list));
            }
        }
    }
    merged
}

/// The values of an attribute as they are stored in place of a list, or of anything else.
pub(crate) fn value_of(attribute: &Attribute, was_list: bool) -> Value {
    let mut values: Vec<Value> = attribute.values.iter().map(|value| stored(value, attribute.kind.syntax)).collect();
    if values.len() == 1 && !was_list { values.remove(0) } else { Value::List(values.into()) }
}

/// A value as it is stored: of the type that rules know.
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

/// The devices, as `tocsinDevice` says first, and then those whose addresses are attributes. An address that takes the place
/// of another keeps the name of the device, so that subscriptions which name it go on.
fn devices_of(
    mut devices: BTreeMap<Name, Device>,
    before: &[Attribute],
    now: &[Attribute],
    shape: &Shape,
) -> Result<BTreeMap<Name, Device>, Refusal> {
    if texts(before, "tocsindevice") != texts(now, "tocsindevice") {
        devices = texts(now, "tocsindevice").iter().map(|text| device(text, shape)).collect::<Result<_, _>>()?;
    }
    for (key, channel) in &shape.devices {
        let (was, is) = (texts(before, key), texts(now, key));
        if was == is {
            continue;
        }
        // What was stored stays as it is, also where a version before stored what is refused now.
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
        let has = |devices: &BTreeMap<Name, Device>, address: &str| {
            devices.values().any(|device| device.channel == *channel && mailbox::is_same(&device.address, address))
        };
        for address in &is {
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
        return Err(Refusal::new(Code::AdminLimitExceeded, format!("a subscriber has at most {DEVICES_MAX} devices")));
    }
    Ok(devices)
}

/// `mail`, or `mail-2` where that is taken.
fn free_name(devices: &BTreeMap<Name, Device>, channel: &Name) -> Result<Name, Refusal> {
    let taken: BTreeSet<&str> = devices.keys().map(Name::as_str).collect();
    let mut names = std::iter::once(channel.to_string()).chain((2..).map(|count| format!("{channel}-{count}")));
    let free = names.find(|name| !taken.contains(name.as_str())).unwrap_or_default();
    free.parse().map_err(|_| {
        Refusal::new(Code::ConstraintViolation, format!("the name of the channel `{channel}` is too long"))
    })
}

fn check_address(channel: &Name, address: &str, shape: &Shape) -> Result<String, Refusal> {
    shape.check_address.normalize(channel, address).map_err(|problem| {
        Refusal::new(Code::ConstraintViolation, format!("the address of a device {}", told(&problem)))
    })
}

/// `name channel state address`.
fn device(text: &str, shape: &Shape) -> Result<(Name, Device), Refusal> {
    let wrong = || {
        let what = format!(
            "`{text}` is no device; write its name, channel, state and address, such as `home mail active a@example.org`"
        );
        Refusal::new(Code::InvalidAttributeSyntax, what)
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
