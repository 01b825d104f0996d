//! Explains the decision before an attempt: each of its checks with its result, for a stored notification or one that
//! would be made. Uses the checks of the dispatch loop. Nothing is sent or stored.

use std::sync::Arc;

use tocsin_model::{
    delivery_policy::DigestWindow,
    id::{EventId, Name, NotificationBatchId, NotificationId, SubscriptionId, WorkItemId},
    lifecycle::LifecycleChange,
    notification::{EventRun, NotificationHead, Notifications},
    reason_code::ReasonCode,
    subscriber::Device,
    time::Timestamp,
};
use tocsin_store::{
    error::StoreError,
    journal::{Claim, StoredNotificationBatch, WorkItem, WorkState},
    records::Recipient,
};

use crate::{
    Pipeline,
    compile::Compiled,
    decide::{
        Chosen, Unsent, check_preferences, choose_device, may_notify, suppression, time_to_send, waits_for_others,
        window_end,
    },
    load_work::{Loaded, Unreadable},
    targeted_run,
};

/// The notification whose delivery is explained.
pub enum DeliverySubject {
    /// A stored notification, waiting for this channel in this state.
    Stored(NotificationId, Name, WorkState),
    /// A notification that a rule of this version would make.
    New(Arc<Compiled>, NewNotification),
}

/// A notification that would be made.
#[derive(Debug, Clone)]
pub struct NewNotification {
    /// The rule.
    pub rule: Name,
    /// The event; any id for an event that is not stored.
    pub event: EventId,
    /// When the event was accepted.
    pub accepted_at: Timestamp,
    /// The subscription.
    pub subscription: SubscriptionId,
}

/// A check before an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeliveryCheck {
    /// The notification has not expired and its subscription is active.
    Recipient,
    /// Preferences of the subscriber.
    Preferences,
    /// Choice of the device.
    Device,
    /// Suppressed addresses.
    Suppression,
    /// Quiet hours and send hours.
    Hours,
    /// Digest window.
    Digest,
    /// Switches, circuit breaker of the channel and pause of the destination.
    Limits,
}

impl DeliveryCheck {
    /// All checks, in their order.
    pub const ALL: [DeliveryCheck; 7] = [
        DeliveryCheck::Recipient,
        DeliveryCheck::Preferences,
        DeliveryCheck::Device,
        DeliveryCheck::Suppression,
        DeliveryCheck::Hours,
        DeliveryCheck::Digest,
        DeliveryCheck::Limits,
    ];
}

/// The result of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeliveryFinding {
    /// The check.
    pub check: DeliveryCheck,
    /// Why the notification is not sent now, if it is not: code and text.
    pub blocked: Option<(ReasonCode, String)>,
    /// The time until which it waits.
    pub until: Option<Timestamp>,
    /// Values that the check read: name, and value as text.
    pub values: Vec<(&'static str, String)>,
}

impl DeliveryFinding {
    fn passed(check: DeliveryCheck, values: Vec<(&'static str, String)>) -> Self {
        DeliveryFinding { check, blocked: None, until: None, values }
    }

    fn blocked(check: DeliveryCheck, unsent: Unsent) -> Self {
        let text = unsent.reason.text;
        DeliveryFinding { check, blocked: Some((ReasonCode::of(&text).0, text)), until: None, values: Vec::new() }
    }

    fn waits(check: DeliveryCheck, code: ReasonCode, text: impl Into<String>, until: Option<Timestamp>) -> Self {
        DeliveryFinding { check, blocked: Some((code, text.into())), until, values: Vec::new() }
    }
}

impl Pipeline {
    /// Runs the checks before an attempt, as of now. The list ends where a check cannot be run because of an earlier
    /// one. The inner error says why the notification cannot be read.
    ///
    /// # Errors
    /// The store is unavailable, or its data is damaged.
    pub async fn explain_delivery(
        &self,
        subject: DeliverySubject,
    ) -> Result<Result<Vec<DeliveryFinding>, String>, StoreError> {
        let (loaded, ordinal, channel) = match subject {
            DeliverySubject::Stored(id, channel, work_state) => {
                let claim = Claim { id: WorkItemId(0), token: 0 };
                let due_at = self.flow.clock.now();
                let ordinals = Some(vec![id.ordinal]);
                let item = WorkItem { claim, batch: id.batch, ordinals, attempts: 0, due_at, work_state };
                match Loaded::read(&self.flow, &item).await {
                    Ok(loaded) => (loaded, id.ordinal, channel),
                    Err(Unreadable::Temporary(error)) => return Err(error),
                    Err(Unreadable::Permanent(what)) => return Ok(Err(what)),
                }
            }
            DeliverySubject::New(compiled, new) => match new.batch(&compiled, self.flow.clock.now()) {
                Some(batch) => {
                    let channel = batch.head.channel.clone();
                    (Loaded::unstored(&self.flow, compiled, batch), 0, channel)
                }
                None => return Ok(Err(format!("the version has no rule `{}`", new.rule))),
            },
        };
        let subscription = loaded.notifications().subscriptions[ordinal as usize];
        let change = loaded.lifecycle_change().filter(|change| *change == LifecycleChange::Ended);
        let recipient = targeted_run::recipients(&self.flow, &[subscription], change).await?.pop().flatten();
        self.flow.suppressions.refresh(&*self.flow.suppression_store).await?;
        Ok(Ok(self.findings(&loaded, recipient, &channel)))
    }

    fn findings(&self, loaded: &Loaded, recipient: Option<Recipient>, channel: &Name) -> Vec<DeliveryFinding> {
        let (now, mut found) = (self.flow.clock.now(), Vec::new());
        let recipient = match may_notify(loaded, recipient, now) {
            Ok(recipient) => recipient,
            Err(unsent) => {
                found.push(DeliveryFinding::blocked(DeliveryCheck::Recipient, unsent));
                return found;
            }
        };
        found.push(DeliveryFinding::passed(DeliveryCheck::Recipient, Vec::new()));
        let critical = ("critical", loaded.delivery_policy.critical.to_string());
        found.push(match check_preferences(loaded, &recipient, now) {
            Ok(()) => DeliveryFinding::passed(DeliveryCheck::Preferences, vec![critical]),
            Err(unsent) => DeliveryFinding::blocked(DeliveryCheck::Preferences, unsent),
        });
        let no_device = || {
            let text = ReasonCode::NoDeviceOnChannel.with(channel);
            DeliveryFinding::waits(DeliveryCheck::Device, ReasonCode::NoDeviceOnChannel, text, None)
        };
        // First without suppressions, so that both checks have a result of their own.
        let device = match choose_device(loaded, &recipient, channel, |_, _| None) {
            Ok(Chosen::Device(device)) => device,
            Ok(Chosen::NoDevice | Chosen::Suppressed(_)) => {
                found.push(no_device());
                return found;
            }
            Err(unsent) => {
                found.push(DeliveryFinding::blocked(DeliveryCheck::Device, unsent));
                return found;
            }
        };
        let used =
            |name: &Name, device: &Device| vec![("device", name.to_string()), ("channel", device.channel.to_string())];
        found.push(DeliveryFinding::passed(DeliveryCheck::Device, used(device, &recipient.devices[device])));
        let suppressed = |name: &Name, device: &Device| {
            suppression(&self.flow.suppressions, loaded, &recipient, (name, device), now)
        };
        let (finding, device) = match choose_device(loaded, &recipient, channel, suppressed) {
            Ok(Chosen::Device(device)) => {
                let values = used(device, &recipient.devices[device]);
                (DeliveryFinding::passed(DeliveryCheck::Suppression, values), device)
            }
            Ok(Chosen::Suppressed(cause)) => {
                let text = ReasonCode::AddressSuppressed.with(cause.phrase());
                let check = DeliveryCheck::Suppression;
                let mut finding = DeliveryFinding::waits(check, ReasonCode::AddressSuppressed, text, None);
                finding.values.push(("cause", cause.word().to_owned()));
                (finding, device)
            }
            Ok(Chosen::NoDevice) => (no_device(), device),
            Err(unsent) => (DeliveryFinding::blocked(DeliveryCheck::Suppression, unsent), device),
        };
        found.push(finding);
        found.push(hours(loaded, &recipient, now));
        found.push(digest(loaded, &recipient, now));
        found.push(self.limits(loaded, &recipient.devices[device]));
        found
    }

    fn limits(&self, loaded: &Loaded, device: &Device) -> DeliveryFinding {
        let (check, application) = (DeliveryCheck::Limits, &loaded.batch.head.application);
        let running = self.running.lock().get(application).cloned();
        let open = running.as_ref().and_then(|running| running.active.channel(&device.channel));
        let Some(open) = open else {
            let text = ReasonCode::UndefinedChannel.with(&device.channel);
            return DeliveryFinding::waits(check, ReasonCode::UndefinedChannel, text, None);
        };
        if self.flow.switches.pauses_delivery(application, &device.channel) {
            let text = format!("delivery through `{}` is switched off", device.channel);
            return DeliveryFinding::waits(check, ReasonCode::DeliveryOff, text, None);
        }
        if let Some(reason) = open.down() {
            let text = format!("the channel `{}` fails: {}", device.channel, reason.text);
            return DeliveryFinding::waits(check, ReasonCode::ChannelDown, text, None);
        }
        let edited = loaded.edit.as_ref().and_then(|edit| edit.address.as_deref());
        match open.hold(edited.unwrap_or(&device.address), loaded.delivery_policy.priority) {
            Some(wait) => {
                let until = Some(self.flow.clock.now() + wait);
                let text = "the destination is paused after failures";
                DeliveryFinding::waits(check, ReasonCode::DestinationPaused, text, until)
            }
            None => DeliveryFinding::passed(check, vec![("channel", device.channel.to_string())]),
        }
    }
}

fn hours(loaded: &Loaded, recipient: &Recipient, now: Timestamp) -> DeliveryFinding {
    let check = DeliveryCheck::Hours;
    let zone = recipient.profile.time_zone.clone().unwrap_or_else(|| "UTC".to_owned());
    match time_to_send(&loaded.delivery_policy, recipient, now) {
        Ok(time) if time > now => {
            let text = "quiet hours of the subscriber or send hours of the class delay it";
            let mut finding = DeliveryFinding::waits(check, ReasonCode::OutsideHours, text, Some(time));
            finding.values.push(("time_zone", zone));
            finding
        }
        Ok(_) => DeliveryFinding::passed(check, vec![("time_zone", zone)]),
        Err(unsent) => DeliveryFinding::blocked(check, unsent),
    }
}

fn digest(loaded: &Loaded, recipient: &Recipient, now: Timestamp) -> DeliveryFinding {
    let check = DeliveryCheck::Digest;
    let Some((_, window)) = waits_for_others(loaded, recipient) else {
        return DeliveryFinding::passed(check, Vec::new());
    };
    let until = match window {
        // It may have begun with an earlier notification.
        DigestWindow::After(_) => None,
        _ => window_end(loaded, window, recipient, now).ok(),
    };
    DeliveryFinding::waits(check, ReasonCode::DigestWindow, "it waits for the end of its digest window", until)
}

impl NewNotification {
    fn batch(&self, compiled: &Compiled, now: Timestamp) -> Option<StoredNotificationBatch> {
        let rule = compiled.application.rules.get(&self.rule)?;
        let expires_after = compiled.rules.expires_after(compiled.rules.number(self.rule.as_str())?);
        Some(StoredNotificationBatch {
            id: NotificationBatchId(0),
            head: NotificationHead {
                application: compiled.application.name.clone(),
                version: compiled.version,
                rule: self.rule.clone(),
                class: rule.notify.clone(),
                event_class: rule.on.clone(),
                channel: crate::match_events::unassigned_channel(),
                matched_at: now,
                accepted_at: self.accepted_at,
                expires_at: expires_after.map(|after| now + after),
            },
            notifications: Notifications {
                events: vec![EventRun { event: self.event, count: 1 }],
                subscriptions: vec![self.subscription],
                captured: Vec::new(),
            },
        })
    }
}
