//! Drafts of subscribers and devices, and their checks.

use std::collections::BTreeMap;

use tocsin_model::{
    id::{Name, SubscriberId},
    mailbox::MailChannels,
    preferences::Preferences,
    problem::{Code, Problem},
    subscriber::{self, DEVICES_MAX, Device, DeviceState, Profile, check_attributes, check_profile},
    value::Value,
};
use tocsin_store::records::{KeptState, NewSubscriber, is_same_address};

use super::lines::DeviceDraft;

/// Input of a subscriber.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Draft {
    /// Its id: 1 to 255 characters without control characters or `/`.
    pub id: Option<String>,
    /// Whether the subscriber receives notifications. If absent, the stored state is kept; a new one is enabled.
    pub enabled: Option<bool>,
    /// BCP 47 language tag, such as `de-AT`.
    pub locale: Option<String>,
    /// IANA time zone, such as `Europe/Vienna`.
    pub time_zone: Option<String>,
    /// Any JSON values by name.
    pub attributes: Option<BTreeMap<String, Value>>,
    /// Devices by name. If absent, stored devices are kept.
    pub devices: Option<BTreeMap<String, DeviceDraft>>,
    /// Preferences: `quiet_hours`, such as `["22:00-07:00"]`, and `notifications`, by
    /// `<application>/<class>`, `<application>` or `*`, each with `enabled`, `channels` and `prefer`. When left out, what
    /// it said stays.
    pub preferences: Option<Preferences>,
}

/// Checks a draft and returns all problems. `stored`: the devices that the subscriber already has.
///
/// # Errors
/// Every problem found.
pub fn check(
    draft: Draft,
    id: Option<&SubscriberId>,
    stored: &BTreeMap<Name, Device>,
    mail: &MailChannels,
) -> Result<NewSubscriber, Vec<Problem>> {
    let mut problems = Vec::new();
    let id = match (&draft.id, id) {
        (Some(written), Some(id)) if written != id.as_str() => {
            problems.push(Problem::address_mismatch("id", written, id));
            None
        }
        (_, Some(id)) => Some(id.clone()),
        (Some(written), None) => match written.parse::<SubscriberId>() {
            Ok(id) => Some(id),
            Err(error) => {
                problems.push(Problem::not(Code::InvalidFormat, "id", error.expected).param("format", "id"));
                None
            }
        },
        (None, None) => {
            problems.push(Problem::new(Code::Required, "id", "is required: give a string"));
            None
        }
    };
    let profile = Profile {
        enabled: draft.enabled.unwrap_or(true),
        locale: draft.locale,
        time_zone: draft.time_zone,
        attributes: draft.attributes.unwrap_or_default(),
    };
    let mut kept = KeptState { enabled: draft.enabled.is_none(), ..KeptState::default() };
    problems.extend(check_profile(&profile));
    problems.extend(check_attributes(&profile.attributes));
    problems.extend(draft.preferences.iter().flat_map(Preferences::check));
    let devices = draft.devices.map(|devices| {
        if devices.len() > DEVICES_MAX {
            problems.push(Problem::too_many("devices", devices.len(), DEVICES_MAX));
        }
        let checked = devices.into_iter().filter_map(|(name, device)| {
            let path = format!("devices.{name}");
            let parsed = name.parse::<Name>().map_err(|error| {
                problems.push(Problem::not(Code::InvalidFormat, &path, error.expected).param("format", "name"))
            });
            let parsed = parsed.ok();
            let stored = parsed.as_ref().and_then(|name| stored.get(name));
            if device.state.is_none() {
                kept.devices.extend(parsed.clone());
            }
            let device = check_device(device, stored, mail, &path, &mut problems);
            Some((parsed?, device?))
        });
        checked.collect::<Vec<_>>()
    });
    match id {
        Some(id) if problems.is_empty() => {
            Ok(NewSubscriber { kept, id, profile, devices, preferences: draft.preferences })
        }
        _ => Err(problems),
    }
}

/// Checks a line of an export. An address that its channel rejects now is stored with a warning: it was valid in an
/// earlier version of the application.
///
/// # Errors
/// Every other problem found.
pub(crate) fn check_export(draft: Draft, mail: &MailChannels) -> Result<(NewSubscriber, Vec<Problem>), Vec<Problem>> {
    let problems = match check(draft.clone(), None, &BTreeMap::new(), mail) {
        Ok(new) => return Ok((new, Vec::new())),
        Err(problems) => problems,
    };
    let as_exported = |(name, device): (&String, &DeviceDraft)| {
        subscriber::check_address(&device.address).ok()?;
        let channel = device.channel.parse().ok()?;
        Some((
            name.parse().ok()?,
            Device { channel, address: device.address.clone(), state: device.state.unwrap_or_default() },
        ))
    };
    let stored = draft.devices.iter().flatten().filter_map(as_exported).collect();
    Ok((check(draft, None, &stored, mail)?, problems))
}

/// Problem of a device address, if any.
///
/// # Errors
/// It is no valid address, or no push subscription where one is required.
pub fn check_address(mail: &MailChannels, channel: &Name, address: &str) -> Result<String, Problem> {
    let address = mail.normalize(channel, address)?;
    subscriber::check_address(&address)?;
    // No other kind of address begins like this.
    if address.starts_with('{') {
        tocsin_delivery::webpush::check_subscription(&address).map_err(|wrong| {
            Problem::new(Code::InvalidFormat, "address", wrong)
                .param("format", "push_subscription")
                .hint("give what the browser's `JSON.stringify(subscription)` writes")
        })?;
    }
    Ok(address)
}

/// Checks a device. An unchanged stored device is accepted, even if an earlier version accepted what is now rejected.
pub(crate) fn check_device(
    device: DeviceDraft,
    stored: Option<&Device>,
    mail: &MailChannels,
    path: &str,
    problems: &mut Vec<Problem>,
) -> Option<Device> {
    let DeviceDraft { channel, address, state } = device;
    if let Some(stored) = stored
        && (stored.channel.as_str(), &stored.address) == (channel.as_str(), &address)
    {
        return Some(Device { state: state_of(state, Some(stored.state)), ..stored.clone() });
    }
    let channel = channel.parse::<Name>();
    if let Err(error) = &channel {
        problems
            .push(Problem::not(Code::InvalidFormat, format!("{path}.channel"), error.expected).param("format", "name"));
    }
    // Without a channel, the address can still be checked in part.
    let address = match &channel {
        Ok(channel) => check_address(mail, channel, &address),
        Err(_) => subscriber::check_address(&address).map(|()| address),
    };
    let address = address.map_err(|problem| {
        problems.push(Problem { path: format!("{path}.address"), ..problem });
    });
    let device = Device { channel: channel.ok()?, address: address.ok()?, state: DeviceState::default() };
    // A state belongs to an address, in any spelling.
    let kept = stored.filter(|stored| is_same_address(stored, &device)).map(|stored| stored.state);
    Some(Device { state: state_of(state, kept), ..device })
}

/// State of a device: the given one, or else the stored one. A pending device becomes active by a confirmation only.
fn state_of(given: Option<DeviceState>, stored: Option<DeviceState>) -> DeviceState {
    match (given, stored) {
        (_, Some(DeviceState::Pending)) => DeviceState::Pending,
        (given, stored) => given.or(stored).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subscribers::lines::SubscriberLine;

    #[test]
    fn a_pending_device_is_activated_by_a_confirmation_only() {
        let pending = Device {
            channel: "mail".parse().expect("a name"),
            address: "a@b.c".to_owned(),
            state: DeviceState::Pending,
        };
        let after = |address: &str, state: Option<DeviceState>| {
            let draft = DeviceDraft { channel: "mail".to_owned(), address: address.to_owned(), state };
            let mut problems = Vec::new();
            check_device(draft, Some(&pending), &MailChannels::default(), "", &mut problems).map(|device| device.state)
        };
        assert_eq!(after("a@b.c", Some(DeviceState::Active)), Some(DeviceState::Pending));
        assert_eq!(after("a@b.c", None), Some(DeviceState::Pending));
        assert_eq!(after("A@B.c", Some(DeviceState::Active)), Some(DeviceState::Pending), "another spelling");
        assert_eq!(after("a@b.c", Some(DeviceState::Disabled)), Some(DeviceState::Pending), "receives nothing either");
        assert_eq!(after("x@b.c", None), Some(DeviceState::Active), "another address");
    }

    #[test]
    fn every_problem_of_a_draft_is_reported() {
        let line: SubscriberLine = serde_json::from_str(
            r#"{"id": "a/b", "locale": "!", "time_zone": "Mars", "attributes": {"": 1},
                "devices": {"1": {"channel": "mail", "address": "a"}, "mail": {"channel": "a b", "address": "x\r\ny"}}}"#,
        )
        .expect("a line");
        let found: Vec<String> = check(line.into(), None, &BTreeMap::new(), &MailChannels::default())
            .expect_err("problems")
            .into_iter()
            .map(|problem| problem.path)
            .collect();
        assert_eq!(
            found,
            ["id", "locale", "time_zone", "attributes", "devices.1", "devices.mail.channel", "devices.mail.address"]
        );
    }
}
