//! Delivery decision: whether a notification is sent now, later or not at all, and to which device. Checks expiry,
//! switches, preferences, suppressions, quiet hours and send hours, in this order, before every attempt.

use tocsin_model::{
    delivery_policy::{DeliveryPolicy, Digest, DigestWindow},
    hours::{next_open, zone_of},
    id::Name,
    reason_code::ReasonCode,
    receipt::{Outcome, Reason, ReasonKind},
    subscriber::Device,
    suppression::Cause,
    time::Timestamp,
};
use tocsin_store::records::Recipient;

use crate::{
    broadcasts::Hold,
    load_work::Loaded,
    suppress::{Destination, Suppressions},
    targeted_run,
};

/// Outcome of a notification that was not sent.
#[derive(Clone)]
pub(crate) struct Unsent {
    pub outcome: Outcome,
    pub reason: Reason,
}

impl Unsent {
    /// The notification is closed.
    pub fn closed(outcome: Outcome, kind: ReasonKind, text: &str) -> Self {
        Unsent { outcome, reason: Reason::new(kind, text) }
    }

    /// The notification waits for an operator.
    pub fn suspended(kind: ReasonKind, text: impl Into<String>) -> Self {
        Unsent { outcome: Outcome::Suspended, reason: Reason::new(kind, text) }
    }
}

impl From<Reason> for Unsent {
    fn from(reason: Reason) -> Self {
        Unsent { outcome: Outcome::Suspended, reason }
    }
}

/// Returns the first time, no earlier than `now`, at which a notification may be sent.
pub(crate) fn time_to_send(
    delivery_policy: &DeliveryPolicy,
    recipient: &Recipient,
    now: Timestamp,
) -> Result<Timestamp, Unsent> {
    let quiet = if delivery_policy.critical { &[][..] } else { &recipient.preferences.quiet_hours[..] };
    if quiet.is_empty() && delivery_policy.send_hours.is_none() {
        return Ok(now);
    }
    let zone = zone_of(recipient.profile.time_zone.as_deref());
    next_open(&zone, delivery_policy.send_hours.as_ref(), quiet, now)
        .ok_or_else(|| Unsent::suspended(ReasonKind::Unreachable, ReasonCode::NoSendTime.text()))
}

/// Checks that a notification may be sent to a subscriber at all: it is not expired, and its subscription is active.
pub(crate) fn may_notify(loaded: &Loaded, recipient: Option<Recipient>, now: Timestamp) -> Result<Recipient, Unsent> {
    if loaded.batch.head.expires_at.is_some_and(|end| end <= now) {
        return Err(Unsent::closed(Outcome::Expired, ReasonKind::Expired, ReasonCode::Expired.text()));
    }
    let refused = |code: ReasonCode| Unsent::closed(Outcome::Refused, ReasonKind::Unreachable, code.text());
    if loaded.hold() == Hold::Cancelled {
        return Err(cancelled());
    }
    let recipient = recipient.ok_or_else(|| refused(ReasonCode::SubscriptionRemoved))?;
    if targeted_run::admits(&recipient, loaded.lifecycle_change()).is_err() {
        return Err(refused(ReasonCode::SubscriptionDisabled));
    }
    Ok(recipient)
}

/// Closing decision about a notification of a cancelled broadcast.
pub(crate) fn cancelled() -> Unsent {
    Unsent::closed(Outcome::Ended, ReasonKind::Expired, ReasonCode::BroadcastCancelled.text())
}

/// The digest for whose window a single notification waits, with the window: that of the subscriber, if it prefers
/// one, else that of the class.
pub(crate) fn waits_for_others<'l>(loaded: &'l Loaded, recipient: &Recipient) -> Option<(&'l Digest, DigestWindow)> {
    let digest = loaded.delivery_policy.digest.as_ref().filter(|_| loaded.work_state.window.is_none())?;
    let window = preferred_window(loaded, recipient).unwrap_or(digest.window);
    (window != DigestWindow::Batch).then_some((digest, window))
}

/// The digest window that the subscriber prefers to that of the class. Critical notifications have none.
pub(crate) fn preferred_window(loaded: &Loaded, recipient: &Recipient) -> Option<DigestWindow> {
    let head = &loaded.batch.head;
    if loaded.delivery_policy.critical {
        return None;
    }
    recipient.preferences.of(&head.application, &head.class).digest()
}

/// The end of a digest window that begins now, moved to a permitted hour.
pub(crate) fn window_end(
    loaded: &Loaded,
    window: DigestWindow,
    recipient: &Recipient,
    now: Timestamp,
) -> Result<Timestamp, Unsent> {
    let end = window.end(recipient.profile.time_zone.as_deref(), now).unwrap_or(now);
    time_to_send(&loaded.delivery_policy, recipient, end)
}

/// The most severe cause why the address of a device is suppressed for a notification.
pub(crate) fn suppression(
    suppressions: &Suppressions,
    loaded: &Loaded,
    recipient: &Recipient,
    (name, device): (&Name, &Device),
    now: Timestamp,
) -> Option<Cause> {
    if suppressions.is_empty() {
        return None;
    }
    let channel = loaded.compiled.application.channels.get(&device.channel)?;
    let edited = loaded.edit.as_ref().and_then(|edit| edit.address.as_deref());
    let to = Destination {
        protocol: &channel.protocol,
        application: &loaded.batch.head.application,
        channel: &device.channel,
        address: edited.unwrap_or(&device.address),
        subscriber: &recipient.id,
        device: name,
    };
    suppressions.cause(&to, loaded.delivery_policy.critical, now)
}

/// Checks that the preferences of the subscriber allow a notification now.
pub(crate) fn check_preferences(loaded: &Loaded, recipient: &Recipient, now: Timestamp) -> Result<(), Unsent> {
    let (head, preferences) = (&loaded.batch.head, &recipient.preferences);
    if loaded.delivery_policy.critical {
        return Ok(());
    }
    let code = if preferences.is_paused(now) {
        ReasonCode::NotificationsPaused
    } else if preferences.only_critical {
        ReasonCode::OnlyCritical
    } else if !preferences.of(&head.application, &head.class).is_enabled() {
        ReasonCode::ClassOff
    } else {
        return Ok(());
    };
    Err(Unsent::closed(Outcome::Refused, ReasonKind::Unreachable, code.text()))
}

/// Result of choosing a device.
pub(crate) enum Chosen<'r> {
    /// This one.
    Device(&'r Name),
    /// The present channel reaches no device, after others have failed.
    NoDevice,
    /// The address of the chosen device is suppressed.
    Suppressed(Cause),
}

/// Chooses the device: one on a preferred channel, else the default one, else any active one that is not excluded.
/// After other channels failed, only a device of the present `channel`.
///
/// If its address is suppressed (`suppressed` returns the cause), another device of the same rank is used: the next
/// preferred one, or one of the same channel unless the subscription names its device. A change of channel is left to
/// the fallback chain.
pub(crate) fn choose_device<'r>(
    loaded: &Loaded,
    recipient: &'r Recipient,
    channel: &Name,
    suppressed: impl Fn(&Name, &Device) -> Option<Cause>,
) -> Result<Chosen<'r>, Unsent> {
    let (head, delivery_policy) = (&loaded.batch.head, &loaded.delivery_policy);
    let change = loaded.lifecycle_change();
    let states = targeted_run::device_states(recipient, change);
    let choice = recipient.preferences.of(&head.application, &head.class);
    let channels = &loaded.compiled.application.channels;
    let requested = |device: &Device| delivery_policy.critical || choice.allows(&device.channel);
    let usable = || {
        let active = recipient.devices.iter().filter(|(_, device)| states.contains(&device.state));
        active.filter(|(_, device)| requested(device) && channels.contains_key(&device.channel))
    };
    let of = |channel: &Name| {
        let channel = channel.clone();
        usable().filter(move |(_, device)| device.channel == channel)
    };
    let none = || {
        let text = match &recipient.interest.device {
            Some(named) => ReasonCode::NamedDeviceInactive.with(named),
            None => ReasonCode::NoActiveDevice.text().to_owned(),
        };
        Unsent::suspended(ReasonKind::Unreachable, text)
    };
    // Fast path: most subscribers have no preferences and no suppressions.
    if loaded.work_state.fallback == 0 && choice.preferred().is_empty() {
        let (name, device) = targeted_run::device(recipient, change).ok_or_else(none)?;
        if requested(device) && suppressed(name, device).is_none() {
            return Ok(Chosen::Device(name));
        }
    }
    // The first device that is not suppressed, or the cause for the first device.
    let first = |candidates: &mut dyn Iterator<Item = (&'r Name, &'r Device)>| {
        let mut cause = None;
        for (name, device) in candidates {
            match suppressed(name, device) {
                None => return Some(Chosen::Device(name)),
                found => cause = cause.or(found),
            }
        }
        cause.map(Chosen::Suppressed)
    };
    if loaded.work_state.fallback > 0 {
        return Ok(first(&mut of(channel)).unwrap_or(Chosen::NoDevice));
    }
    let standard = targeted_run::device(recipient, change).ok_or_else(none)?;
    let preferred = first(&mut choice.preferred().iter().flat_map(of));
    if let Some(Chosen::Device(name)) = preferred {
        return Ok(Chosen::Device(name));
    }
    let others = recipient.interest.device.is_none();
    let chosen = match requested(standard.1) {
        true => first(&mut std::iter::once(standard).chain(of(&standard.1.channel).filter(|_| others))),
        false => first(&mut usable()),
    };
    chosen
        .or(preferred)
        .ok_or_else(|| Unsent::closed(Outcome::Refused, ReasonKind::Unreachable, ReasonCode::ChannelsOff.text()))
}
