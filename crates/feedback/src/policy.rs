//! Suppression by feedback: counts for each device and class, thresholds and windows.
//!
//! Pure: the caller stores the [`DeviceHistory`] of a device and passes the time. Only [`Evidence`] changes a history,
//! and only a verified return address, a verified payload of a provider, a reply in a session of this process or an
//! authorized caller gives evidence.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tocsin_model::{
    feedback::Stage,
    id::NotificationId,
    mailbox::Mailbox,
    suppression::{Policy, SOFT_BOUNCES_MAX},
    time::Timestamp,
};

use crate::{
    feedback::{Class, Feedback, Format, Report},
    provider::{
        ProviderEvent,
        sms::{SmsReceipt, SmsReply},
    },
    return_address::{Purpose, Reference, Target, VerifiedOrigin},
};

/// Most counted reports of a device; beyond it the oldest one is dropped.
pub const COUNTED_MAX: usize = 100;

/// Feedback whose origin is proven.
///
/// ```compile_fail
/// use tocsin_feedback::{Class, policy::Evidence};
/// let (class, stage, key) = (Class::Hard, Default::default(), String::new());
/// let forged = Evidence { class, stage, key, target: None, recipient: None };
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Evidence {
    class: Class,
    stage: Stage,
    key: String,
    target: Option<Target>,
    recipient: Option<Mailbox>,
}

impl Evidence {
    /// The evidence of a mail that arrived at a verified return address: one for each target.
    ///
    /// A mail to one recipient has one target, whichever address the report names: the recipient may have forwarded
    /// it. A mail to several recipients has those that a bounce names. All of them know its return address, and one
    /// could forge a bounce of another: hard bounces count as soft ones there, and nothing but bounces counts.
    pub fn of_mail(origin: &VerifiedOrigin, feedback: &Feedback) -> Vec<Evidence> {
        let key = match origin.origin().reference {
            Reference::Notification(id) => id.to_string(),
            Reference::Multicast(batch) => batch.to_string(),
            Reference::Message(id) => id.to_string(),
        };
        let target = origin.origin().target;
        match (origin.origin().purpose, target) {
            (Purpose::Confirm, _) => Vec::new(),
            (Purpose::Unsubscribe, _) => {
                // A program that answers a mail does not withdraw a subscription.
                let is_person = feedback.format == Format::Mail;
                let (class, stage) = (Class::Unsubscribe, Stage::Report);
                is_person
                    .then_some(Evidence { class, stage, key, target: Some(target), recipient: None })
                    .into_iter()
                    .collect()
            }
            (Purpose::Bounce, Target::Reported) => {
                let is_bounce = matches!(feedback.format, Format::DeliveryStatus | Format::Text);
                let reports = feedback.reports.iter().filter(|report| is_bounce && report.recipient.is_some());
                let evidence = |report: &Report| Evidence {
                    class: if report.class == Class::Hard { Class::Soft } else { report.class },
                    stage: Stage::Report,
                    key: key.clone(),
                    target: None,
                    recipient: report.recipient.clone(),
                };
                reports.map(evidence).collect()
            }
            (Purpose::Bounce, _) if feedback.reports.is_empty() => Vec::new(),
            (Purpose::Bounce, _) => {
                let (class, stage) = (feedback.class(), Stage::Report);
                vec![Evidence { class, stage, key, target: Some(target), recipient: None }]
            }
        }
    }

    /// The evidence of a complaint that arrived at another address than a return address, by a return address of the
    /// reported mail: see [`Feedback::senders`]. `None` for other feedback, and for a mail to several recipients.
    pub fn of_complaint(origin: &VerifiedOrigin, feedback: &Feedback) -> Option<Evidence> {
        let (class, stage) = (feedback.class(), Stage::Report);
        let is_complaint = feedback.format == Format::FeedbackReport && class == Class::Complaint;
        let Reference::Notification(id) = origin.origin().reference else { return None };
        let target = match (origin.origin().purpose, origin.origin().target) {
            (Purpose::Bounce, target @ Target::Device(..)) => target,
            _ => Target::OnlyRecipient,
        };
        is_complaint.then(|| Evidence { class, stage, key: id.to_string(), target: Some(target), recipient: None })
    }

    /// The evidence of an event in a verified payload. The recipient is the address that the provider names.
    ///
    /// `origin` is the verified reference that the mail carried. That of a mail to one recipient names the device and
    /// the notification, which counts once for a class, however it is reported. Without an event's recipient and
    /// without a device there is no evidence.
    pub fn of_event(event: &ProviderEvent, origin: Option<&VerifiedOrigin>) -> Option<Evidence> {
        let report = event.report();
        let (class, stage, recipient) = (report.class, Stage::Report, report.recipient.clone());
        let origin = origin.map(VerifiedOrigin::origin).filter(|origin| origin.purpose == Purpose::Bounce);
        match origin.map(|origin| (origin.reference, origin.target)) {
            Some((Reference::Notification(id), target @ Target::Device(..))) => {
                Some(Evidence { class, stage, key: id.to_string(), target: Some(target), recipient })
            }
            _ => {
                Some(Evidence { class, stage, key: event.key().to_owned(), target: None, recipient: Some(recipient?) })
            }
        }
    }

    /// The evidence of a delivery receipt of an SMS provider. The caller knows the device by the reference.
    pub fn of_receipt(receipt: &SmsReceipt) -> Evidence {
        let (class, stage, key) = (receipt.class(), Stage::Report, receipt.key().to_owned());
        Evidence { class, stage, key, target: None, recipient: None }
    }

    /// The evidence of a keyword in a reply: the recipient withdraws.
    pub fn of_stop(reply: &SmsReply) -> Evidence {
        let (class, stage, key) = (Class::Unsubscribe, Stage::Report, reply.id().to_owned());
        Evidence { class, stage, key, target: None, recipient: None }
    }

    /// The evidence of a reply to a notification, in a session that this process opened.
    pub fn of_session(id: NotificationId, class: Class) -> Evidence {
        Evidence { class, stage: Stage::Session, key: id.to_string(), target: None, recipient: None }
    }

    /// The evidence of a caller whom the API authorized to report. The key makes a repeated report count once.
    pub fn of_caller(class: Class, key: String) -> Evidence {
        Evidence { class, stage: Stage::Report, key, target: None, recipient: None }
    }

    /// The class.
    pub fn class(&self) -> Class {
        self.class
    }

    /// The stage.
    pub fn stage(&self) -> Stage {
        self.stage
    }

    /// The notification, message or event, which counts once for a class.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The target of the return address.
    pub fn target(&self) -> Option<Target> {
        self.target
    }

    /// The recipient that the report names, if no target is known.
    pub fn recipient(&self) -> Option<&Mailbox> {
        self.recipient.as_ref()
    }
}

/// Number of reports of a class that suppress.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Threshold {
    /// The number; from 1 to [`COUNTED_MAX`].
    pub count: u32,
    /// Only reports within this time count.
    pub window: Duration,
    /// Duration of the suppression. `None`: until it is lifted.
    pub lasts: Option<Duration>,
}

/// Thresholds of the classes that can suppress. [`Class::Blocked`] concerns the sender, so it has none; the caller
/// counts it for the provider.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FeedbackPolicy {
    /// Hard bounces.
    pub hard: Option<Threshold>,
    /// Soft bounces.
    pub soft: Option<Threshold>,
    /// Challenges.
    pub challenge: Option<Threshold>,
    /// Complaints.
    pub complaint: Option<Threshold>,
    /// Unsubscriptions.
    pub unsubscribe: Option<Threshold>,
}

impl Default for FeedbackPolicy {
    fn default() -> FeedbackPolicy {
        let days = |days: u64| Duration::from_secs(days * 86_400);
        let once = Some(Threshold { count: 1, window: days(1), lasts: None });
        FeedbackPolicy {
            hard: once,
            soft: Some(Threshold { count: 5, window: days(7), lasts: Some(days(30)) }),
            challenge: None,
            complaint: once,
            unsubscribe: once,
        }
    }
}

/// A counted report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CountedReport {
    /// The class.
    pub class: Class,
    /// The notification, message or event, each of which counts once for a class.
    pub key: String,
    /// Time of the report.
    pub at: Timestamp,
    /// The stage.
    #[serde(default)]
    pub stage: Stage,
}

/// The counted reports of a device, oldest first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceHistory {
    /// The reports.
    pub counted: Vec<CountedReport>,
}

/// Cause of a decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// The class has no threshold.
    NotCounted,
    /// The same report was counted before.
    Repeated,
    /// The number of reports, and the number that suppresses.
    Counted(u32, u32),
    /// A positive report cleared the soft counts.
    Cleared,
}

/// Action for a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SuppressionAction {
    /// No change.
    None,
    /// Suppress until a time.
    SuppressUntil(Timestamp),
    /// Suppress until it is lifted.
    Suppress,
}

/// Result of the policy: the action, its cause and the new history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// The action.
    pub action: SuppressionAction,
    /// The class of the report.
    pub class: Class,
    /// The cause.
    pub reason: Reason,
    /// The history to store.
    pub history: DeviceHistory,
}

impl From<&Policy> for FeedbackPolicy {
    /// The thresholds of the suppression policy.
    fn from(policy: &Policy) -> FeedbackPolicy {
        let threshold = |count: u32, window, lasts| (count > 0).then_some(Threshold { count, window, lasts });
        FeedbackPolicy {
            hard: threshold(policy.hard_bounces, policy.hard_bounce_window, policy.hard_bounce_lasts),
            soft: threshold(
                policy.soft_bounces.clamp(1, SOFT_BOUNCES_MAX),
                policy.soft_bounce_window,
                policy.soft_bounce_lasts,
            ),
            challenge: threshold(policy.challenges, policy.challenge_window, policy.challenge_lasts),
            complaint: threshold(policy.complaints, policy.complaint_window, None),
            unsubscribe: threshold(1, Duration::from_secs(86_400), None),
        }
    }
}

impl FeedbackPolicy {
    /// The threshold of a class.
    pub fn threshold(&self, class: Class) -> Option<Threshold> {
        match class {
            Class::Hard => self.hard,
            Class::Soft => self.soft,
            Class::Challenge => self.challenge,
            Class::Complaint => self.complaint,
            Class::Unsubscribe => self.unsubscribe,
            Class::Blocked | Class::OutOfOffice | Class::Delivered | Class::Unknown => None,
        }
    }

    /// The decision about a device after a report.
    ///
    /// Each notification counts once for a class, however often it is reported. Reports older than the window of their
    /// class, and those with a time in the future, are removed.
    pub fn decide(&self, history: &DeviceHistory, evidence: &Evidence, now: Timestamp) -> Decision {
        let class = evidence.class;
        let mut history = self.current(history, now);
        let decision = |action, reason, history| Decision { action, class, reason, history };
        if class == Class::Delivered {
            let cleared = self.after_success(&history, evidence.stage, now);
            return decision(SuppressionAction::None, Reason::Cleared, cleared);
        }
        let Some(threshold) = self.threshold(class) else {
            return decision(SuppressionAction::None, Reason::NotCounted, history);
        };
        if history.counted.iter().any(|counted| counted.class == class && counted.key == evidence.key) {
            return decision(SuppressionAction::None, Reason::Repeated, history);
        }
        history.counted.push(CountedReport { class, key: evidence.key.clone(), at: now, stage: evidence.stage });
        let excess = history.counted.len().saturating_sub(COUNTED_MAX);
        history.counted.drain(..excess);
        let count = history.counted.iter().filter(|counted| counted.class == class).count() as u32;
        let limit = threshold.count.clamp(1, COUNTED_MAX as u32);
        let action = match (count >= limit, threshold.lasts) {
            (false, _) => SuppressionAction::None,
            (true, Some(lasts)) => SuppressionAction::SuppressUntil(now + lasts),
            (true, None) => SuppressionAction::Suppress,
        };
        decision(action, Reason::Counted(count, limit), history)
    }

    /// The history after a success of a stage at `at`: soft bounces and challenges before it, of this stage or an
    /// earlier one, no longer count. A relay that accepts a mail proves nothing about the mailbox behind it.
    pub fn after_success(&self, history: &DeviceHistory, stage: Stage, at: Timestamp) -> DeviceHistory {
        let is_cleared = |counted: &CountedReport| {
            matches!(counted.class, Class::Soft | Class::Challenge) && counted.stage <= stage && counted.at <= at
        };
        DeviceHistory { counted: history.counted.iter().filter(|counted| !is_cleared(counted)).cloned().collect() }
    }

    /// The reports within their windows.
    fn current(&self, history: &DeviceHistory, now: Timestamp) -> DeviceHistory {
        let is_current = |counted: &&CountedReport| {
            let threshold = self.threshold(counted.class);
            threshold.is_some_and(|threshold| counted.at <= now && now.since(counted.at) < threshold.window)
        };
        DeviceHistory { counted: history.counted.iter().filter(is_current).cloned().collect() }
    }
}
