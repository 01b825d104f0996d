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

/// What becomes of a notification.
pub(crate) enum Decision {
    /// It is sent now, to the device of this name.
    Send(Name),
    /// It waits until then.
    Later(Timestamp),
    /// It is not sent.
    Unsent(Unsent),
}

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

/// Decides. Without a recipient the subscription is gone.
pub(crate) fn decide(loaded: &Loaded, recipient: Option<&Recipient>, now: Timestamp) -> Decision {
    match decide_or_say(loaded, recipient, now) {
        Ok(decision) => decision,
        Err(unsent) => Decision::Unsent(unsent),
    }
}

fn decide_or_say(loaded: &Loaded, recipient: Option<&Recipient>, now: Timestamp) -> Result<Decision, Unsent> {
    let head = &loaded.batch.head;
    if head.expires_at.is_some_and(|end| end <= now) {
        return Err(Unsent::closed(Outcome::Expired, ReasonKind::Expired, "its time was over before it was sent"));
    }
    let Some(recipient) = recipient else {
        return Err(Unsent::closed(Outcome::Refused, ReasonKind::Unreachable, "the subscription is gone"));
    };
    if !recipient.profile.enabled || !recipient.subscription.enabled {
        return Err(Unsent::closed(Outcome::Refused, ReasonKind::Unreachable, "the subscription was switched off"));
    }
    let nothing = Conduct::default();
    let conduct = loaded.class().map_or(&nothing, |class| &class.conduct);
    let device = choose_device(loaded, conduct, recipient)?.clone();
    let zone = recipient.profile.time_zone.as_deref();
    let quiet = if conduct.critical { &[][..] } else { &recipient.preferences.quiet_hours[..] };
    if quiet.is_empty() && conduct.send_hours.is_none() {
        return Ok(Decision::Send(device));
    }
    match next_open(&zone_of(zone), conduct.send_hours.as_ref(), quiet, now) {
        Some(time) if time <= now => Ok(Decision::Send(device)),
        Some(time) => Ok(Decision::Later(time)),
        None => {
            let text = "the send hours of its class and the quiet hours of its subscriber leave no time to send it";
            Err(Unsent::suspended(ReasonKind::Unreachable, text))
        }
    }
}

/// The device to which it goes: one whose channel is preferred, else the one that is told if nothing is wanted, else any
/// that is active and not unwanted.
fn choose_device<'r>(loaded: &Loaded, conduct: &Conduct, recipient: &'r Recipient) -> Result<&'r Name, Unsent> {
    let head = &loaded.batch.head;
    let choice = recipient.preferences.of(&head.application, &head.class);
    if !conduct.critical && !choice.is_enabled() {
        let text = "the subscriber does not want notifications of this class";
        return Err(Unsent::closed(Outcome::Refused, ReasonKind::Unreachable, text));
    }
    let standard = recipient
        .device()
        .ok_or_else(|| Unsent::suspended(ReasonKind::Unreachable, "the subscriber has no active device"))?;
    let channels = &loaded.compiled.application.channels;
    let wanted = |device: &Device| conduct.critical || choice.allows(&device.channel);
    let usable = || {
        let active = recipient.devices.iter().filter(|(_, device)| device.state == DeviceState::Active);
        active.filter(|(_, device)| wanted(device) && channels.contains_key(&device.channel))
    };
    let preferred =
        choice.preferred().iter().find_map(|channel| usable().find(|(_, device)| device.channel == *channel));
    let chosen = preferred.or_else(|| wanted(standard.1).then_some(standard)).or_else(|| usable().next());
    chosen.map(|(name, _)| name).ok_or_else(|| {
        let text = "the subscriber has switched off the channels of all its devices";
        Unsent::closed(Outcome::Refused, ReasonKind::Unreachable, text)
    })
}
