//! Two subscribers become one: somebody who was known by an address only turns out to have an account.

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize};
use tocsin_model::{
    id::{Name, SubscriberId, SubscriberNumber},
    mailbox,
    preferences::Preferences,
    subscriber::{Device, Profile, Subscriber},
    time::Timestamp,
};

/// How long it is kept what became of somebody. Claims, by which one is asked for, last a week at most.
pub const MERGES_KEPT: Duration = Duration::from_secs(365 * 86_400);
/// Merges that are forgotten in the commit of another, so that there never are many more than those of a year.
pub(crate) const MERGES_FORGOTTEN_AT_ONCE: usize = 8;

/// What became of one that was merged into another. It is kept for [`MERGES_KEPT`], so that whoever asks again is told the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Merge {
    /// The number that is free now.
    pub from_number: SubscriberNumber,
    /// The number of the account.
    pub into_number: SubscriberNumber,
    /// When.
    pub at: Timestamp,
    /// The rest.
    pub report: MergeReport,
}

/// What of a merge is told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MergeReport {
    /// Who is gone.
    pub from: SubscriberId,
    /// Whose it is now.
    pub into: SubscriberId,
    /// Subscriptions that are the account's now, under the numbers that they had.
    pub subscriptions: u64,
    /// Subscriptions that it had already; they are gone.
    pub double_subscriptions: u64,
    /// Devices that are the account's now, by the names that they had, with those that they have.
    pub devices: BTreeMap<Name, Name>,
    /// Devices whose address it had already, likewise; they are gone.
    pub double_devices: BTreeMap<Name, Name>,
    /// Attributes that the account had not.
    pub attributes: Vec<String>,
}

/// Why two do not become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotMerged {
    /// Both are the same.
    Itself,
    /// Whoever has a password is an account.
    HasPassword,
    /// It was placed in a container, and the account stands in another.
    OtherContainer,
}

/// What the account is afterwards.
#[derive(Debug, Clone)]
pub struct United {
    /// What is said of it.
    pub profile: Profile,
    /// Its devices.
    pub devices: BTreeMap<Name, Device>,
    /// What it wants.
    pub preferences: Preferences,
    /// Devices that came to it, by the names that they had.
    pub moved: BTreeMap<Name, Name>,
    /// Devices whose address it had, by the names of the others.
    pub doubles: BTreeMap<Name, Name>,
    /// Attributes that came to it.
    pub attributes: Vec<String>,
}

impl United {
    /// What the account says counts; where it says nothing, what the other said does.
    pub fn of(from: &Subscriber, into: &Subscriber) -> United {
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
        United { profile, devices, preferences, moved, doubles, attributes }
    }

    /// The name that a device has now.
    pub(crate) fn device(&self, name: &Name) -> Option<&Name> {
        self.moved.get(name).or_else(|| self.doubles.get(name))
    }

    /// What is told of it.
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

/// The name itself, or the first with a number behind it that no device has.
fn free_name(name: &Name, devices: &BTreeMap<Name, Device>) -> Name {
    if !devices.contains_key(name) {
        return name.clone();
    }
    let numbered = |number: u32| {
        let number = number.to_string();
        // Names are short; what does not fit is left out before the number.
        let room = 63 - number.len() - 1;
        let kept: String = name.as_str().chars().take(room).collect();
        format!("{kept}_{number}").parse::<Name>().ok()
    };
    (2..).find_map(|number| numbered(number).filter(|free| !devices.contains_key(free))).expect("numbers do not end")
}
