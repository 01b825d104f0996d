//! Merges of two subscribers, typically an address-only subscriber into an account.

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize};
use tocsin_model::{
    id::{Name, SubscriberId, SubscriberNumber},
    mailbox,
    preferences::Preferences,
    subscriber::{Device, Profile, Subscriber},
    time::Timestamp,
};

/// Retention of merge records. Claims, which look merges up, last a week at most.
pub const MERGES_KEPT: Duration = Duration::from_secs(365 * 86_400);
/// Maximum number of expired merges deleted by the commit of a new one, so that the table holds little more than a
/// year's.
pub(crate) const EXPIRED_MERGES_MAX: usize = 8;

/// Record of a merge. Kept for [`MERGES_KEPT`], so that a repeated request returns the same result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Merge {
    /// Number of the removed subscriber.
    pub from_number: SubscriberNumber,
    /// Number of the account.
    pub into_number: SubscriberNumber,
    /// Time of the merge.
    pub at: Timestamp,
    /// Details.
    pub report: MergeReport,
}

/// Details of a merge, as reported to callers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MergeReport {
    /// Id of the removed subscriber.
    pub from: SubscriberId,
    /// Id of the account.
    pub into: SubscriberId,
    /// Number of subscriptions moved to the account; they keep their numbers.
    pub subscriptions: u64,
    /// Number of subscriptions removed because the account had them already.
    pub double_subscriptions: u64,
    /// Devices moved to the account, by their former names, with their present names.
    pub devices: BTreeMap<Name, Name>,
    /// Devices removed because the account has their address, likewise.
    pub double_devices: BTreeMap<Name, Name>,
    /// Attributes copied to the account.
    pub attributes: Vec<String>,
}

/// Reason why two subscribers cannot be merged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MergeRefusal {
    /// Both ids name the same subscriber.
    Itself,
    /// The subscriber has a password, so it is an account itself.
    HasPassword,
    /// The two are in different containers of the directory tree.
    OtherContainer,
}

/// Merged state of the account.
#[derive(Debug, Clone)]
pub struct MergedSubscriber {
    /// Merged profile.
    pub profile: Profile,
    /// Merged devices.
    pub devices: BTreeMap<Name, Device>,
    /// Merged preferences.
    pub preferences: Preferences,
    /// Devices added, by their former names.
    pub moved: BTreeMap<Name, Name>,
    /// Devices whose address the account has already, by their former names.
    pub doubles: BTreeMap<Name, Name>,
    /// Names of the attributes added.
    pub attributes: Vec<String>,
}

impl MergedSubscriber {
    /// Merges two subscribers. Values of the account take precedence.
    pub fn of(from: &Subscriber, into: &Subscriber) -> MergedSubscriber {
        let mut profile = into.profile.clone();
        profile.locale = profile.locale.or_else(|| from.profile.locale.clone());
        profile.time_zone = profile.time_zone.or_else(|| from.profile.time_zone.clone());
        let mut attributes = Vec::new();
        for (name, value) in &from.profile.attributes {
            profile.attributes.entry(name.clone()).or_insert_with(|| {
                attributes.push(name.clone());
                value.clone()
            });
        }
        let mut preferences = into.preferences.clone();
        if preferences.quiet_hours.is_empty() {
            preferences.quiet_hours.clone_from(&from.preferences.quiet_hours);
        }
        preferences.only_critical |= from.preferences.only_critical;
        preferences.paused_until = preferences.paused_until.max(from.preferences.paused_until);
        for (about, preference) in &from.preferences.notifications {
            preferences.notifications.entry(about.clone()).or_insert_with(|| preference.clone());
        }
        let mut devices = into.devices.clone();
        let (mut moved, mut doubles) = (BTreeMap::new(), BTreeMap::new());
        for (name, device) in &from.devices {
            let is_same =
                |known: &Device| known.channel == device.channel && mailbox::is_same(&known.address, &device.address);
            if let Some((known, _)) = devices.iter().find(|(_, known)| is_same(known)) {
                doubles.insert(name.clone(), known.clone());
                continue;
            }
            let free = free_name(name, &devices);
            devices.insert(free.clone(), device.clone());
            moved.insert(name.clone(), free);
        }
        MergedSubscriber { profile, devices, preferences, moved, doubles, attributes }
    }

    /// Present name of a former device.
    pub(crate) fn device(&self, name: &Name) -> Option<&Name> {
        self.moved.get(name).or_else(|| self.doubles.get(name))
    }

    /// Report of the merge.
    pub(crate) fn report(self, from: SubscriberId, into: SubscriberId, moved: u64, doubles: u64) -> MergeReport {
        MergeReport {
            from,
            into,
            subscriptions: moved,
            double_subscriptions: doubles,
            devices: self.moved,
            double_devices: self.doubles,
            attributes: self.attributes,
        }
    }
}

/// The name itself, or the first free one with a number appended.
fn free_name(name: &Name, devices: &BTreeMap<Name, Device>) -> Name {
    if !devices.contains_key(name) {
        return name.clone();
    }
    let numbered = |number: u32| {
        let number = number.to_string();
        // Names have at most 63 characters; the rest is cut off before the number.
        let room = 63 - number.len() - 1;
        let kept: String = name.as_str().chars().take(room).collect();
        format!("{kept}_{number}").parse::<Name>().ok()
    };
    (2..).find_map(|number| numbered(number).filter(|free| !devices.contains_key(free))).expect("numbers do not end")
}
