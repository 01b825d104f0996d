//! Whom to tell: subscribers, and the devices at which they are told.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    id::{Name, SubscriberId, SubscriberNumber},
    preferences::Preferences,
    time::Timestamp,
    value::Value,
};

/// Someone, or something, to tell.
#[derive(Debug, Clone, PartialEq)]
pub struct Subscriber {
    /// The records' own number.
    pub number: SubscriberNumber,
    /// The name its creator chose.
    pub id: SubscriberId,
    /// What its creator says of it.
    pub profile: Profile,
    /// Its devices by name.
    pub devices: BTreeMap<Name, Device>,
    /// What it wants to be told, and when not.
    pub preferences: Preferences,
    /// When it was made, and when it or one of its devices last changed.
    pub created_at: Timestamp,
    /// See `created_at`.
    pub updated_at: Timestamp,
    /// Grows with each change; the basis of its ETag.
    pub revision: u64,
}

/// The part of a subscriber that its creator sets.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Profile {
    /// Whether it is told anything at all.
    pub enabled: bool,
    /// BCP 47 language tag, such as `de-AT`.
    pub locale: Option<String>,
    /// IANA time zone, such as `Europe/Vienna`.
    pub time_zone: Option<String>,
    /// Typed attributes, free in name.
    pub attributes: BTreeMap<String, Value>,
}

impl Default for Profile {
    fn default() -> Self {
        Profile { enabled: true, locale: None, time_zone: None, attributes: BTreeMap::new() }
    }
}

/// One address of a subscriber.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Device {
    /// The channel of an application by which it is reached.
    pub channel: Name,
    /// The address there: a mailbox, a URL, ...
    pub address: String,
    /// Whether it may be used.
    #[serde(default)]
    pub state: DeviceState,
}

/// Whether a device may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceState {
    /// It is used.
    #[default]
    Active,
    /// Its owner switched it off.
    Disabled,
    /// The far side said that the address does not exist.
    Bounced,
    /// The far side has failed for days.
    Failed,
}

/// What is wrong with a locale or time zone, if anything.
pub fn check_profile(profile: &Profile) -> Vec<crate::problem::Problem> {
    use crate::problem::Problem;
    let mut problems = Vec::new();
    if let Some(locale) = &profile.locale
        && !is_language_tag(locale)
    {
        problems.push(
            Problem::at("locale", format!("`{locale}` is not a language tag"))
                .hint("give BCP 47, such as `de` or `pt-BR`"),
        );
    }
    if let Some(zone) = &profile.time_zone
        && jiff::tz::TimeZone::get(zone).is_err()
    {
        problems.push(
            Problem::at("time_zone", format!("`{zone}` is not a time zone"))
                .hint("give an IANA name, such as `Europe/Vienna`"),
        );
    }
    problems
}

/// Whether a text has the shape of a language tag of BCP 47: a primary subtag of 2 to 8 letters, then subtags of 1 to 8
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
