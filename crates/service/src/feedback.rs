//! Feedback to sent messages: mails that came back, webhooks of providers, and the log of both.
//!
//! A report changes state only through its [`Evidence`]. Its target is resolved to the address of a device, a
//! subscription, or a given target; then the policy of the installation is applied.

use std::sync::atomic::{AtomicU64, Ordering};

use tocsin_feedback::{
    Action, Class, Feedback, Limits, Report,
    policy::Evidence,
    return_address::{DeviceTag, Target as ReturnTarget, VerifiedOrigin, VerifyError},
};
use tocsin_model::{
    consent::ConsentMethod,
    feedback::FeedbackEntry,
    id::{Name, NotificationBatchId, NotificationId, SubscriberId},
    subscriber::Device,
    suppression::{Target, bound},
    time::Timestamp,
};
pub use tocsin_pipeline::feedback::Effect;
use tocsin_pipeline::feedback::FeedbackReport;
use tocsin_store::{error::StoreError, records::FeedbackFilter};

use crate::{
    Service,
    error::ServiceError,
    keys::{Caller, Scope},
    page::{Page, key_of},
    suppressions::device_of,
};

/// Origin of feedback by mail.
pub const MAIL: &str = "mail";
/// Protocol of mail addresses.
const SMTP: &str = "smtp";
/// Recipients of a multicast that are searched for the recipient of a report.
const RECIPIENTS_MAX: usize = 20_000;
/// Recipients that are read at a time.
const RECIPIENTS_AT_ONCE: usize = 500;

/// A report with proven origin.
#[derive(Debug, Clone)]
pub struct FeedbackItem {
    /// The evidence.
    pub evidence: Evidence,
    /// Protocol of the address: `smtp`, `http`.
    pub protocol: Name,
    /// The address that the reporter names, if the evidence names no target and no recipient.
    pub address: Option<String>,
    /// Application and channel of the receiver. Evidence about a notification of another application has no effect.
    pub channel: Option<(Name, Name)>,
    /// The notification, if the evidence does not name it.
    pub notification: Option<NotificationId>,
    /// A given target.
    pub target: Option<Target>,
    /// The origin: `mail`, the name of a provider.
    pub origin: String,
    /// The diagnostic text.
    pub detail: String,
    /// The enhanced status code (RFC 3463), or a provider's code.
    pub status: Option<String>,
    /// Whether the mailbox provider of the recipient delays mail, or refuses the sender.
    pub is_delay: bool,
}

/// Result of a report.
#[derive(Debug, Clone, PartialEq)]
pub struct FeedbackResult {
    /// Its class.
    pub class: Class,
    /// Its effect.
    pub effect: Effect,
    /// Its target, if known.
    pub target: Option<Target>,
}

/// A resolved target: an address or a device, with the device that has it.
struct Resolved {
    target: Target,
    device: Option<(SubscriberId, Name)>,
    /// The notification of a recipient of a multicast.
    notification: Option<NotificationId>,
}

impl Service {
    /// Takes reports in order. They are durable when this returns; repeating them changes nothing.
    ///
    /// # Errors
    /// The records or the journal are unavailable. Some reports may be applied; report all of them again.
    pub async fn take_feedback(&self, items: Vec<FeedbackItem>) -> Result<Vec<FeedbackResult>, ServiceError> {
        let mut results = Vec::with_capacity(items.len());
        let (mut reports, mut places) = (Vec::new(), Vec::new());
        let mut delays = Vec::new();
        for (at, item) in items.into_iter().enumerate() {
            let class = item.evidence.class();
            let mut result = FeedbackResult { class, effect: Effect::UnknownTarget, target: None };
            if let Some(ReturnTarget::Subscription(id)) = item.evidence.target() {
                result.effect = match class {
                    Class::Unsubscribe => {
                        match self.end_subscriptions(&[id], ConsentMethod::Mail, self.clock.now()).await? {
                            ended if ended.is_empty() => Effect::Repeated,
                            _ => Effect::Unsubscribed,
                        }
                    }
                    _ => Effect::NotCounted,
                };
                self.pipeline.count_feedback(class, &item.origin, result.effect);
                tracing::info!(subscription = %id, effect = result.effect.word(), "a mail to unsubscribe arrived");
            } else if let Some(resolved) = self.resolved(&item).await? {
                result.target = Some(resolved.target.clone());
                places.push(at);
                if let (true, Target::Address { address, .. }) = (item.is_delay, &resolved.target) {
                    delays.push((address.clone(), item.channel.clone(), item.detail.clone()));
                }
                reports.push(report_of(item, resolved));
            } else {
                self.pipeline.count_feedback(class, &item.origin, result.effect);
            }
            results.push(result);
        }
        let effects = self.pipeline.apply_feedback(&reports).await?;
        for (at, effect) in places.into_iter().zip(effects) {
            results[at].effect = effect;
        }
        // The address of the device, not the one that the report names: its text is not signed, and could name another
        // provider.
        for (address, channel, said) in delays {
            let (application, channel) = channel.as_ref().map(|(application, channel)| (application, channel)).unzip();
            self.pipeline.note_delay(application, channel, &address, &said);
        }
        Ok(results)
    }

    /// Verifies a return address.
    ///
    /// # Errors
    /// The address is foreign, forged or expired.
    pub fn verify_return_address(&self, address: &str) -> Result<VerifiedOrigin, VerifyError> {
        self.pipeline.verify_return_address(address, self.clock.now())
    }

    /// Takes a mail that arrived at these return addresses. Other recipients have no effect.
    ///
    /// # Errors
    /// As [`Service::take_feedback`].
    pub async fn take_feedback_mail(
        &self,
        recipients: &[String],
        mail: Vec<u8>,
    ) -> Result<Vec<FeedbackResult>, ServiceError> {
        let origins = recipients.iter().filter_map(|address| self.verify_return_address(address).ok());
        let origins: Vec<VerifiedOrigin> = origins.collect();
        if origins.is_empty() {
            return Ok(Vec::new());
        }
        let feedback = parsed(mail).await?;
        let mut items = Vec::new();
        for origin in &origins {
            let evidence = Evidence::of_mail(origin, &feedback);
            if evidence.is_empty() {
                self.pipeline.count_feedback(feedback.class(), MAIL, Effect::NotCounted);
            }
            items.extend(evidence.into_iter().map(|evidence| item_of_mail(evidence, &feedback)));
        }
        self.take_feedback(items).await
    }

    /// Takes a complaint that arrived at another address, from the feedback loop of a provider. It concerns the device
    /// of the first valid return address that the reported mail has.
    ///
    /// # Errors
    /// As [`Service::take_feedback`].
    pub async fn take_complaint_mail(&self, mail: Vec<u8>) -> Result<Vec<FeedbackResult>, ServiceError> {
        let feedback = parsed(mail).await?;
        let mut senders = feedback.senders.iter();
        let origin = senders.find_map(|sender| self.verify_return_address(&sender.canonical()).ok());
        match origin.and_then(|origin| Evidence::of_complaint(&origin, &feedback)) {
            Some(evidence) => self.take_feedback(vec![item_of_mail(evidence, &feedback)]).await,
            None => {
                self.pipeline.count_feedback(feedback.class(), MAIL, Effect::UnknownTarget);
                Ok(Vec::new())
            }
        }
    }

    /// The log of feedback, newest first.
    ///
    /// # Errors
    /// The scope `subscribers:read` is missing, or `after` is no cursor.
    pub async fn feedback_log(
        &self,
        caller: &Caller,
        filter: &FeedbackFilter,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page<FeedbackEntry>, ServiceError> {
        caller.needs(Scope::SubscribersRead)?;
        let before: Option<u64> = key_of(after)?;
        let found = self.feedback_store.scan_feedback(filter, before, limit).await?;
        Ok(Page::of(found).map(|(_, entry)| entry))
    }

    /// The entries about a notification batch or one of its notifications, oldest first.
    pub(crate) async fn feedback_of(
        &self,
        batch: NotificationBatchId,
        ordinal: Option<u32>,
    ) -> Result<Vec<FeedbackEntry>, ServiceError> {
        let filter = FeedbackFilter { batch: Some(batch), ..FeedbackFilter::default() };
        let found = self.feedback_store.scan_feedback(&filter, None, FEEDBACK_TRACED_MAX).await?;
        let is_its = |entry: &FeedbackEntry| {
            ordinal.is_none_or(|ordinal| entry.notification.is_some_and(|id| id.ordinal == ordinal))
        };
        let mut entries: Vec<FeedbackEntry> = found.items.into_iter().map(|(_, entry)| entry).filter(is_its).collect();
        entries.reverse();
        Ok(entries)
    }

    /// Reports of a class since a time, counted up to [`FEEDBACK_COUNTED_MAX`], and the text of the newest.
    pub(crate) async fn recent_feedback(&self, class: Class, since: Timestamp) -> Result<(u64, String), ServiceError> {
        let filter = FeedbackFilter { class: Some(class), ..FeedbackFilter::default() };
        let found = self.feedback_store.scan_feedback(&filter, None, FEEDBACK_COUNTED_MAX).await?;
        let recent = found.items.iter().filter(|(_, entry)| entry.at >= since);
        let text = found.items.first().map(|(_, entry)| entry.detail.clone()).unwrap_or_default();
        Ok((recent.count() as u64, text))
    }

    async fn resolved(&self, item: &FeedbackItem) -> Result<Option<Resolved>, ServiceError> {
        let notification = notification_of(item);
        if let (Some((application, _)), Some(id)) = (&item.channel, notification)
            && let Some(stored) = self.notification_log.notification_batch(id.batch).await?
            && stored.head.application != *application
        {
            return Ok(None);
        }
        if let Some(target) = item.target.clone() {
            return Ok(Some(Resolved { target, device: None, notification: None }));
        }
        let address = |address: &str| Target::address(&item.protocol, address);
        match item.evidence.target() {
            Some(ReturnTarget::Device(number, tag)) => {
                let Some(found) = self.feedback_store.subscriber_by_number(number).await? else { return Ok(None) };
                // A device with another address has another tag: a late bounce of the former one does not concern it.
                let is_it = |(_, device): &(&Name, &Device)| DeviceTag::of(&device.address) == tag;
                Ok(found.devices.iter().find(is_it).map(|(name, device)| Resolved {
                    target: address(&device.address),
                    device: Some((found.id.clone(), name.clone())),
                    notification: None,
                }))
            }
            Some(ReturnTarget::OnlyRecipient) => {
                let Some(id) = notification else { return Ok(None) };
                self.only_recipient(id, &item.protocol).await
            }
            Some(ReturnTarget::Subscription(_) | ReturnTarget::Reported) | None => {
                let Some(named) = item.evidence.recipient().map(|mailbox| mailbox.canonical()) else {
                    let given = item.address.as_deref().map(address);
                    return Ok(given.map(|target| Resolved { target, device: None, notification: None }));
                };
                match item.evidence.key().parse::<NotificationBatchId>() {
                    Ok(batch) => self.recipient_of(batch, &named, &item.protocol).await,
                    Err(_) => Ok(Some(Resolved { target: address(&named), device: None, notification: None })),
                }
            }
        }
    }

    /// The recipient of a notification, by the log of notifications.
    async fn only_recipient(&self, id: NotificationId, protocol: &Name) -> Result<Option<Resolved>, ServiceError> {
        let found = match self.find_notification(id).await {
            Ok(found) => found,
            Err(ServiceError::Missing(_)) => return Ok(None),
            Err(error) => return Err(error),
        };
        let Some(recipient) = &found.recipient else { return Ok(None) };
        let device = device_of(recipient, |device| device.channel == found.head.channel);
        Ok(device.map(|(name, device)| Resolved {
            target: Target::address(protocol, &device.address),
            device: Some((recipient.id.clone(), name.clone())),
            notification: None,
        }))
    }

    /// The recipient of a batch with this address. All recipients of a multicast know its return address, and could
    /// name any address.
    async fn recipient_of(
        &self,
        batch: NotificationBatchId,
        address: &str,
        protocol: &Name,
    ) -> Result<Option<Resolved>, ServiceError> {
        let Some(stored) = self.notification_log.notification_batch(batch).await? else { return Ok(None) };
        let subscriptions = &stored.notifications.subscriptions;
        let mut ordinals = 0..;
        for some in subscriptions[..subscriptions.len().min(RECIPIENTS_MAX)].chunks(RECIPIENTS_AT_ONCE) {
            for (recipient, ordinal) in self.recipient_store.recipients(some).await?.into_iter().zip(&mut ordinals) {
                let Some(recipient) = recipient else { continue };
                let device = recipient.devices.iter().find(|(_, device)| bound(&device.address) == address);
                if let Some((name, device)) = device {
                    return Ok(Some(Resolved {
                        target: Target::address(protocol, &device.address),
                        device: Some((recipient.id.clone(), name.clone())),
                        notification: Some(NotificationId { batch, ordinal }),
                    }));
                }
            }
        }
        Ok(None)
    }
}

/// Most entries of a trace.
const FEEDBACK_TRACED_MAX: usize = 500;
/// Most entries that are counted for the attention list.
pub(crate) const FEEDBACK_COUNTED_MAX: usize = 1_000;

/// Parses a mail beside other tasks.
async fn parsed(mail: Vec<u8>) -> Result<Feedback, StoreError> {
    let parsing = tokio::task::spawn_blocking(move || tocsin_feedback::parse(&mail, &Limits::default()));
    parsing.await.map_err(StoreError::unavailable)
}

/// The notification that a report is about, if known.
fn notification_of(item: &FeedbackItem) -> Option<NotificationId> {
    item.notification.or_else(|| item.evidence.key().parse().ok())
}

fn report_of(item: FeedbackItem, resolved: Resolved) -> FeedbackReport {
    FeedbackReport {
        notification: notification_of(&item).or(resolved.notification),
        evidence: item.evidence,
        target: resolved.target,
        address: None,
        device: resolved.device,
        origin: item.origin,
        detail: item.detail,
        status: item.status,
    }
}

/// Whether a report says that the mailbox provider delays mail, or refuses the sender. A delay because of the mailbox,
/// such as a full one, is none of the provider.
pub(crate) fn is_delay(report: &Report) -> bool {
    let is_of_mailbox = report.status.is_some_and(|status| matches!(status.subject, 1 | 2));
    report.action == Some(Action::Delayed) && !is_of_mailbox || report.class == Class::Blocked
}

fn item_of_mail(evidence: Evidence, feedback: &Feedback) -> FeedbackItem {
    let is_its = |report: &&Report| match evidence.recipient() {
        Some(recipient) => report.recipient.as_ref() == Some(recipient),
        None => report.class == evidence.class(),
    };
    let report = feedback.reports.iter().find(is_its);
    FeedbackItem {
        protocol: SMTP.parse().expect("a name"),
        address: None,
        channel: None,
        notification: None,
        target: None,
        origin: MAIL.to_owned(),
        detail: report.map(|report| report.diagnostic.clone()).unwrap_or_default(),
        status: report.and_then(|report| report.status).map(|status| status.to_string()),
        is_delay: report.is_some_and(is_delay),
        evidence,
    }
}

/// A key for a report that names no notification: each counts.
pub(crate) fn fresh_key(now: Timestamp) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("report-{}-{}", now.0, NEXT.fetch_add(1, Ordering::Relaxed))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tocsin_feedback::return_address::{Origin, Position, Purpose, Reference, ReturnAddresses};

    use super::*;

    /// A delay of one recipient of a multicast and a failure of another one say nothing about each other's provider.
    #[test]
    fn only_the_recipient_of_a_delayed_report_is_delayed() {
        let lifetime = Duration::from_secs(30 * 86_400);
        let addresses = ReturnAddresses::new("any@bounces.example", Position::WholeLocalPart, &[[7; 32]], lifetime);
        let addresses = addresses.expect("an address");
        let (purpose, reference) = (Purpose::Bounce, Reference::Multicast(NotificationBatchId(3)));
        let origin = Origin { purpose, reference, target: ReturnTarget::Reported };
        let now = Timestamp::from_millis(1_800_000_000_000);
        let origin = addresses.verify(&addresses.issue(&origin, now).expect("an address"), now).expect("ours");
        let report = |recipient: &str, action: &str, status: &str| {
            format!("Final-Recipient: rfc822; {recipient}\nAction: {action}\nStatus: {status}\n\n")
        };
        let reports = report("slow@gmail.com", "delayed", "4.4.1")
            + &report("gone@outlook.com", "failed", "5.1.1")
            + &report("full@yahoo.com", "delayed", "4.2.2");
        let mail = format!(
            "From: MAILER-DAEMON@mta.example\nMIME-Version: 1.0\n\
             Content-Type: multipart/report; report-type=delivery-status; boundary=b\n\n--b\n\
             Content-Type: message/delivery-status\n\nReporting-MTA: dns; mta.example\n\n{reports}--b--\n"
        );
        let feedback = tocsin_feedback::parse(mail.as_bytes(), &Limits::default());
        let evidence = Evidence::of_mail(&origin, &feedback);
        let delays = evidence.into_iter().map(|evidence| {
            let recipient = evidence.recipient().map(|recipient| recipient.canonical());
            (recipient.unwrap_or_default(), item_of_mail(evidence, &feedback).is_delay)
        });
        let expected = [("slow@gmail.com", true), ("gone@outlook.com", false), ("full@yahoo.com", false)];
        assert_eq!(delays.collect::<Vec<_>>(), expected.map(|(address, is_delay)| (address.to_owned(), is_delay)));
    }
}
