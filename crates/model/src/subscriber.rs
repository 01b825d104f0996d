//! Subscribers and their devices.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    id::{Name, SubscriberId, SubscriberNumber},
    preferences::Preferences,
    problem::{Code, Problem},
    time::Timestamp,
    value::Value,
};

/// Most attributes of a subscriber.
pub const ATTRIBUTES_MAX: usize = 100;
/// Most bytes of a subscriber's attributes as JSON.
pub const ATTRIBUTE_BYTES_MAX: usize = 64 * 1024;
/// Longest name of an attribute, in characters.
pub const ATTRIBUTE_NAME_MAX: usize = 64;
/// Most devices of a subscriber.
pub const DEVICES_MAX: usize = 32;
/// Longest address of a device, in bytes.
pub const ADDRESS_BYTES_MAX: usize = 2_048;

/// A subscriber: a person or a machine that receives notifications.
#[derive(Debug, Clone, PartialEq)]
pub struct Subscriber {
    /// Internal number of the records.
    pub number: SubscriberNumber,
    /// External id, chosen by its creator.
    pub id: SubscriberId,
    /// Its profile.
    pub profile: Profile,
    /// Its devices by name.
    pub devices: BTreeMap<Name, Device>,
    /// Its preferences.
    pub preferences: Preferences,
    /// Creation time.
    pub created_at: Timestamp,
    /// Time of the last change of it or one of its devices.
    pub updated_at: Timestamp,
    /// Grows with each change; the basis of its ETag.
    pub revision: u64,
}

/// The part of a subscriber that its creator sets.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Profile {
    /// Whether it receives notifications.
    pub enabled: bool,
    /// BCP 47 language tag, such as `de-AT`.
    pub locale: Option<String>,
    /// IANA time zone, such as `Europe/Vienna`.
    pub time_zone: Option<String>,
    /// Attributes with free names.
    pub attributes: BTreeMap<String, Value>,
}

impl Profile {
    /// Whether two profiles differ at most in `enabled`.
    pub fn has_same_content(&self, other: &Profile) -> bool {
        let Profile { enabled: _, locale, time_zone, attributes } = self;
        *locale == other.locale && *time_zone == other.time_zone && *attributes == other.attributes
    }
}

impl Default for Profile {
    fn default() -> Self {
        Profile { enabled: true, locale: None, time_zone: None, attributes: BTreeMap::new() }
    }
}

/// A device: one address of a subscriber.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Device {
    /// The channel of an application that sends to it.
    pub channel: Name,
    /// The address for this channel: a mailbox, a URL, ...
    pub address: String,
    /// Its state.
    #[serde(default)]
    pub state: DeviceState,
}

/// State of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceState {
    /// It is in use.
    #[default]
    Active,
    /// Disabled by its owner.
    Disabled,
    /// The receiver said that the address does not exist.
    Bounced,
    /// The receiver has failed for days.
    Failed,
    /// The owner of the address has not confirmed it.
    Pending,
}

/// Problems of a locale or time zone.
pub fn check_profile(profile: &Profile) -> Vec<Problem> {
    let mut problems = Vec::new();
    if let Some(locale) = &profile.locale
        && !is_language_tag(locale)
    {
        problems.push(
            Problem::new(Code::InvalidFormat, "locale", format!("`{locale}` is not a language tag"))
                .param("format", "language_tag")
                .param("value", locale.to_string())
                .hint("give BCP 47, such as `de` or `pt-BR`"),
        );
    }
    if let Some(zone) = &profile.time_zone
        && jiff::tz::TimeZone::get(zone).is_err()
    {
        problems.push(Problem::unknown_time_zone("time_zone", zone).hint("give an IANA name, such as `Europe/Vienna`"));
    }
    problems
}

/// Problems of the attributes of a subscriber.
pub fn check_attributes(attributes: &BTreeMap<String, Value>) -> Vec<Problem> {
    let mut problems = Vec::new();
    if attributes.is_empty() {
        return problems;
    }
    let wrong =
        |message: String| Problem::new(Code::InvalidFormat, "attributes", message).param("format", "attribute_name");
    if attributes.len() > ATTRIBUTES_MAX {
        problems.push(Problem::too_many("attributes", attributes.len(), ATTRIBUTES_MAX));
    }
    let fits = |name: &str| {
        (1..=ATTRIBUTE_NAME_MAX).contains(&name.chars().count()) && !name.chars().any(|c| c.is_control() || c == ':')
    };
    for name in attributes.keys().filter(|name| !fits(name)) {
        let hint = format!("give 1 to {ATTRIBUTE_NAME_MAX} characters without control characters or `:`");
        problems.push(wrong(format!("`{name}` is not the name of an attribute")).hint(hint));
    }
    let bytes = serde_json::to_vec(attributes).map_or(0, |json| json.len());
    if bytes > ATTRIBUTE_BYTES_MAX {
        problems.push(Problem::too_long("attributes", bytes, ATTRIBUTE_BYTES_MAX));
    }
    problems
}

/// Checks the address of a device, for any channel.
///
/// # Errors
/// It is empty, too long, or invalid.
pub fn check_address(address: &str) -> Result<(), Problem> {
    match address.len() {
        _ if address.trim().is_empty() => Err(Problem::new(Code::Empty, "address", "is empty")),
        bytes if bytes > ADDRESS_BYTES_MAX => Err(Problem::too_long("address", bytes, ADDRESS_BYTES_MAX)),
        _ if address.chars().any(char::is_control) => {
            Err(Problem::new(Code::InvalidCharacters, "address", "holds control characters"))
        }
        _ => Ok(()),
    }
}

/// Whether a text has the form of a BCP 47 language tag: a primary subtag of 2 to 8 letters, then subtags of 1 to 8
/// letters and digits.
pub fn is_language_tag(tag: &str) -> bool {
    let mut subtags = tag.split('-');
    let primary = subtags.next().unwrap_or_default();
    let fits = |part: &str, least: usize| (least..=8).contains(&part.len());
    tag.len() <= 64
        && fits(primary, 2)
        && primary.bytes().all(|byte| byte.is_ascii_alphabetic())
        && subtags.all(|part| fits(part, 1) && part.bytes().all(|byte| byte.is_ascii_alphanumeric()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locales_and_zones_are_checked() {
        let check = |locale: &str, zone: &str| {
            check_profile(&Profile { locale: Some(locale.into()), time_zone: Some(zone.into()), ..Profile::default() })
                .len()
        };
        assert_eq!(check("de-AT", "Europe/Vienna"), 0);
        assert_eq!(check("zh-Hant-TW", "Asia/Taipei"), 0);
        assert_eq!(check("d", "Mars/Olympus"), 2);
        assert_eq!(check("de_AT", "UTC"), 1);
    }
}
