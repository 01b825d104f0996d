//! Whether a notification goes out now, later or not at all, and to which device: expiry, switches, preferences, quiet
//! hours and send hours, in this order. Looked at before every attempt.

use tocsin_model::{
    conduct::Conduct,
    hours::{next_open, zone_of},
    id::Name,
    receipt::{Outcome, Reason, ReasonKind},
    subscriber::{Device, DeviceState},
    time::Timestamp,
};
use tocsin_store::records::Recipient;

use crate::load_work::Loaded;

/// Why a notification was not even sent.
pub(crate) struct Unsent {
    pub outcome: Outcome,
    pub reason: Reason,
}

impl Unsent {
    /// It is closed.
    pub fn closed(outcome: Outcome, kind: ReasonKind, text: &str) -> Self {
        Unsent { outcome, reason: Reason::new(kind, text) }
    }

    /// It waits for an operator.
    pub fn suspended(kind: ReasonKind, text: impl Into<String>) -> Self {
        Unsent { outcome: Outcome::Suspended, reason: Reason::new(kind, text) }
    }
}

impl From<Reason> for Unsent {
    fn from(reason: Reason) -> Self {
        Unsent { outcome: Outcome::Suspended, reason }
    }
}

/// The first time, no earlier than `now`, at which it may be sent.
pub(crate) fn time_to_send(conduct: &Conduct, recipient: &Recipient, now: Timestamp) -> Result<Timestamp, Unsent> {
    let quiet = if conduct.critical { &[][..] } else { &recipient.preferences.quiet_hours[..] };
    if quiet.is_empty() && conduct.send_hours.is_none() {
        return Ok(now);
    }
    let zone = zone_of(recipient.profile.time_zone.as_deref());
    next_open(&zone, conduct.send_hours.as_ref(), quiet, now).ok_or_else(|| {
        let text = "the send hours of its class and the quiet hours of its subscriber leave no time to send it";
        Unsent::suspended(ReasonKind::Unreachable, text)
    })
}

/// The device to which it goes: one whose channel is preferred, else the one that is told if nothing is wanted, else any
/// that is active and not unwanted. After others have failed it is one of the present `channel`; `None`: there is none.
pub(crate) fn choose_device<'r>(
    loaded: &Loaded,
    recipient: &'r Recipient,
    channel: &Name,
) -> Result<Option<&'r Name>, Unsent> {
    let (head, conduct) = (&loaded.batch.head, &loaded.conduct);
    let choice = recipient.preferences.of(&head.application, &head.class);
    if !conduct.critical && !choice.is_enabled() {
        let text = "the subscriber does not want notifications of this class";
        return Err(Unsent::closed(Outcome::Refused, ReasonKind::Unreachable, text));
    }
    let channels = &loaded.compiled.application.channels;
    let wanted = |device: &Device| conduct.critical || choice.allows(&device.channel);
    let usable = || {
        let active = recipient.devices.iter().filter(|(_, device)| device.state == DeviceState::Active);
        active.filter(|(_, device)| wanted(device) && channels.contains_key(&device.channel))
    };
    if loaded.course.fallback > 0 {
        return Ok(usable().find(|(_, device)| device.channel == *channel).map(|(name, _)| name));
    }
    let none = || Unsent::suspended(ReasonKind::Unreachable, "the subscriber has no active device");
    let standard = recipient.device().ok_or_else(none)?;
    let preferred =
        choice.preferred().iter().find_map(|channel| usable().find(|(_, device)| device.channel == *channel));
    let chosen = preferred.or_else(|| wanted(standard.1).then_some(standard)).or_else(|| usable().next());
    chosen.map(|(name, _)| Some(name)).ok_or_else(|| {
        let text = "the subscriber has switched off the channels of all its devices";
        Unsent::closed(Outcome::Refused, ReasonKind::Unreachable, text)
    })
}
