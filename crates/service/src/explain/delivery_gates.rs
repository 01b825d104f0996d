//! Gates of delivery: recipient, preferences, device, suppression, hours, digest, limits and dispatch.

use tocsin_model::{
    id::{EventBatchId, EventId, Name},
    reason_code::ReasonCode,
    receipt::{Attempt, Outcome},
    suppression::Cause,
};
use tocsin_pipeline::{DeliveryCheck, DeliveryFinding, DeliverySubject, NewNotification};
use tocsin_store::journal::{SuspensionFilter, WorkState};

use super::{AsOf, EventState, Gate, GateKind, Interest, Subject, recorded::RecordedNotification};
use crate::{Service, error::ServiceError};

impl Service {
    /// The gates from the recipient to the response, and the outcome of the last attempt.
    pub(super) async fn delivery_gates(
        &self,
        subject: &Subject,
        rule: &Name,
        interest: &Interest,
        recorded: Option<&RecordedNotification>,
    ) -> Result<(Vec<Gate>, Option<Outcome>), ServiceError> {
        let Some(found) = recorded else {
            let none = EventId { batch: EventBatchId(0), ordinal: 0 };
            let new = NewNotification {
                rule: rule.clone(),
                event: subject.stored.as_ref().map_or(none, |(id, ..)| *id),
                accepted_at: subject.at,
                subscription: interest.id,
            };
            let findings = self.findings(DeliverySubject::New(subject.compiled.clone(), new)).await?;
            let mut gates = gates_of(findings, interest, AsOf::Now);
            if subject.state != EventState::Given {
                let text = "no notification was made, so none was sent";
                gates.push(Gate::unknown(GateKind::Dispatch, AsOf::Recorded, ReasonCode::NotEvaluated, text));
            }
            return Ok((gates, None));
        };
        let mut attempts = self.notification_log.attempts(found.id.batch).await?;
        attempts.retain(|attempt| attempt.ordinal == found.id.ordinal);
        let last = attempts.last();
        let outcome = last.map(|attempt| attempt.outcome);
        let mut gates = match last {
            Some(last) if last.outcome.closes() => recorded_gates(last, interest),
            _ => {
                let (channel, work_state) = self.open_state(found).await?;
                let findings = self.findings(DeliverySubject::Stored(found.id, channel, work_state)).await?;
                gates_of(findings, interest, AsOf::Now)
            }
        };
        gates.push(self.dispatch_gate(found, &attempts).await?);
        Ok((gates, outcome))
    }

    async fn findings(&self, subject: DeliverySubject) -> Result<Vec<DeliveryFinding>, ServiceError> {
        Ok(self.pipeline.explain_delivery(subject).await?.unwrap_or_default())
    }

    /// Channel and state of the open work of a notification.
    async fn open_state(&self, found: &RecordedNotification) -> Result<(Name, WorkState), ServiceError> {
        let has = |ordinals: &Vec<u32>| ordinals.binary_search(&found.id.ordinal).is_ok();
        let filter = SuspensionFilter { batch: Some(found.id.batch), ..SuspensionFilter::default() };
        let suspended = self.operator_actions.suspensions(&filter, 0, 100).await?;
        if let Some(stored) = suspended.into_iter().find(|stored| has(&stored.suspension.ordinals)) {
            return Ok((stored.suspension.channel, stored.suspension.work_state));
        }
        let open = self.open_work.open_work(found.id.batch).await?;
        let item = open.into_iter().find(|item| item.ordinals.as_ref().is_none_or(has));
        Ok((found.head.channel.clone(), item.map(|item| item.work_state).unwrap_or_default()))
    }

    async fn dispatch_gate(&self, found: &RecordedNotification, attempts: &[Attempt]) -> Result<Gate, ServiceError> {
        let (kind, as_of) = (GateKind::Dispatch, AsOf::Recorded);
        let due_at = async || {
            let open = self.open_work.open_work(found.id.batch).await?;
            let has = |ordinals: &Vec<u32>| ordinals.binary_search(&found.id.ordinal).is_ok();
            let item = open.into_iter().find(|item| item.ordinals.as_ref().is_none_or(has));
            Ok::<_, ServiceError>(item.map(|item| item.due_at))
        };
        let gate = match attempts.last() {
            None => {
                let gate = Gate::blocked(kind, as_of, ReasonCode::NotSentYet, "no attempt was made yet");
                gate.until(due_at().await?)
            }
            Some(last) if last.outcome == Outcome::Delivered => Gate::passed(kind, as_of, last.reply.as_str()),
            Some(last) if last.outcome == Outcome::Deferred => {
                let gate = Gate::blocked(kind, as_of, ReasonCode::RetryWaiting, last.reply.as_str());
                gate.until(due_at().await?)
            }
            Some(last) => match (ReasonCode::of(&last.reply), last.outcome) {
                ((ReasonCode::Other, _), Outcome::Refused | Outcome::Suspended) => {
                    Gate::blocked(kind, as_of, ReasonCode::AttemptFailed, last.reply.as_str())
                }
                ((code, _), _) => Gate::blocked(kind, as_of, code, last.reply.as_str()),
            },
        };
        let gate = match attempts.last() {
            Some(last) => gate.value("outcome", last.outcome.word()).value("answered_at", last.answered_at),
            None => gate,
        };
        Ok(gate.value("attempts", attempts.len()).object("notification", found.id))
    }
}

/// The gate of a check.
fn kind(check: DeliveryCheck) -> GateKind {
    match check {
        DeliveryCheck::Recipient => GateKind::Recipient,
        DeliveryCheck::Preferences => GateKind::Preferences,
        DeliveryCheck::Device => GateKind::Device,
        DeliveryCheck::Suppression => GateKind::Suppression,
        DeliveryCheck::Hours => GateKind::Hours,
        DeliveryCheck::Digest => GateKind::Digest,
        DeliveryCheck::Limits => GateKind::Limits,
    }
}

fn passed_text(check: DeliveryCheck) -> &'static str {
    match check {
        DeliveryCheck::Recipient => "the subscription is active and the notification has not expired",
        DeliveryCheck::Preferences => "the preferences of the subscriber allow it",
        DeliveryCheck::Device => "the subscriber has a device for it",
        DeliveryCheck::Suppression => "the address is not suppressed",
        DeliveryCheck::Hours => "the hours permit it",
        DeliveryCheck::Digest => "it waits for no digest window",
        DeliveryCheck::Limits => "the channel and the destination accept messages",
    }
}

fn about(gate: Gate, check: DeliveryCheck, interest: &Interest) -> Gate {
    match (check, &interest.now) {
        (DeliveryCheck::Recipient, _) => gate.object("subscription", interest.id),
        (DeliveryCheck::Limits | DeliveryCheck::Digest, _) | (_, None) => gate,
        (_, Some(now)) => gate.object("subscriber", &now.subscriber),
    }
}

/// The gates of checks as of now. Checks that could not be run are unknown.
fn gates_of(findings: Vec<DeliveryFinding>, interest: &Interest, as_of: AsOf) -> Vec<Gate> {
    let gate = |check: DeliveryCheck| {
        let Some(found) = findings.iter().find(|found| found.check == check) else {
            let text = "not evaluated, because an earlier gate blocks";
            return Gate::unknown(kind(check), as_of, ReasonCode::NotEvaluated, text);
        };
        let mut gate = match &found.blocked {
            None => Gate::passed(kind(check), as_of, passed_text(check)),
            Some((code, text)) => Gate::blocked(kind(check), as_of, *code, text.as_str()).until(found.until),
        };
        for (name, value) in &found.values {
            gate = gate.value(name, value);
        }
        match found.values.iter().find(|(name, _)| *name == "channel") {
            Some((_, channel)) if check == DeliveryCheck::Limits => gate.object("channel", channel),
            _ => about(gate, check, interest),
        }
    };
    DeliveryCheck::ALL.into_iter().map(gate).collect()
}

/// The gates of a closed notification, as its last attempt proves them.
fn recorded_gates(last: &Attempt, interest: &Interest) -> Vec<Gate> {
    let (code, value) = ReasonCode::of(&last.reply);
    let blocking = blocking_check(code).filter(|_| last.outcome != Outcome::Delivered && !last.was_sent());
    let gate = |check: DeliveryCheck| {
        let order = |check| DeliveryCheck::ALL.iter().position(|known| *known == check);
        let gate = match blocking {
            Some(blocking) if blocking == check => {
                let gate = Gate::blocked(kind(check), AsOf::Recorded, code, last.reply.as_str());
                match (code.param(), value) {
                    (Some("cause"), Some(phrase)) => {
                        let cause = Cause::ALL.into_iter().find(|cause| cause.phrase() == phrase);
                        gate.value("cause", cause.map_or(phrase, |cause| cause.word()))
                    }
                    (Some(name), Some(value)) => gate.value(name, value),
                    _ => gate,
                }
            }
            Some(blocking) if order(check) > order(blocking) => {
                let text = "not evaluated, because an earlier gate blocks";
                Gate::unknown(kind(check), AsOf::Recorded, ReasonCode::NotEvaluated, text)
            }
            _ => Gate::passed(kind(check), AsOf::Recorded, "passed before the last attempt"),
        };
        about(gate, check, interest)
    };
    DeliveryCheck::ALL.into_iter().map(gate).collect()
}

/// The check that closes a notification with this code.
fn blocking_check(code: ReasonCode) -> Option<DeliveryCheck> {
    match code {
        ReasonCode::Expired
        | ReasonCode::BroadcastCancelled
        | ReasonCode::SubscriptionRemoved
        | ReasonCode::SubscriptionDisabled => Some(DeliveryCheck::Recipient),
        ReasonCode::NotificationsPaused | ReasonCode::OnlyCritical | ReasonCode::ClassOff => {
            Some(DeliveryCheck::Preferences)
        }
        ReasonCode::ChannelsOff
        | ReasonCode::NamedDeviceInactive
        | ReasonCode::NoActiveDevice
        | ReasonCode::NoDeviceOnChannel
        | ReasonCode::DeviceRemoved => Some(DeliveryCheck::Device),
        ReasonCode::AddressSuppressed => Some(DeliveryCheck::Suppression),
        ReasonCode::NoSendTime => Some(DeliveryCheck::Hours),
        ReasonCode::UndefinedChannel => Some(DeliveryCheck::Limits),
        _ => None,
    }
}
