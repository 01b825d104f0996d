//! Receivers of webhooks: the provider behind a channel reports bounces, complaints, receipts and replies.
//!
//! A channel with the option `feedback` has a receiver. Nothing but its verification authorizes a webhook. A mail event
//! counts only if it names a notification of the receiver's application: by the signed reference that the mail
//! carried, or by our `Message-ID`. A receipt of an SMS names the message id. Keywords of replies suppress or release
//! the address on this channel only.

mod seen_keys; // replay protection
mod sns; // certificates and confirmations of Amazon SNS

use std::{collections::HashMap, sync::Arc, time::Duration};

pub use tocsin_delivery::feedback_options::FeedbackProvider;
use tocsin_delivery::feedback_options::{FeedbackOptions, Verifier, receiver_path};
pub use tocsin_feedback::provider::{ProviderError, sms::Keyword};
use tocsin_feedback::{
    Class, Limits,
    policy::Evidence,
    provider::{
        ProviderEvent, Request, VerifiedPayload,
        ses::SnsMessage,
        sms::{Callback, SmsEvent, SmsReceipt, SmsReply, VerifiedCallback},
    },
    return_address::Reference,
};
use tocsin_model::{
    feedback::{FeedbackEntry, Stage},
    id::{Name, NotificationBatchId, NotificationId},
    suppression::{Cause, Target, bound, reply_address},
    time::Timestamp,
};
use tocsin_store::{
    error::StoreError,
    records::{FeedbackChange, FeedbackState},
};

pub use self::sns::Fetch;
use self::{
    seen_keys::{ReservationError, SeenKeys},
    sns::Certificates,
};
use crate::{
    Service, ServiceError,
    feedback::{Effect, FeedbackItem, is_delay},
};

/// Largest body of a webhook, in bytes.
pub const BODY_BYTES_MAX: usize = 1 << 20;
/// Shortest part of our installation's id that a shortened message id must keep.
const INSTALLATION_CHARS_MIN: usize = 8;

/// Retention of a reply that lifts a suppression. A signature of Twilio has no time, so its age is unknown.
const START_KEPT: Duration = Duration::from_secs(365 * 86_400);
/// Attempts to store a reply whose address another writer changed.
const START_ATTEMPTS_MAX: u32 = 8;

/// The receivers of all channels.
pub struct Receivers {
    service: Arc<Service>,
    fetch: Arc<dyn Fetch>,
    /// The URL of this installation, without a slash at the end. Providers sign the URL that they call.
    public_url: Option<String>,
    seen: SeenKeys,
    certificates: Certificates,
}

/// A webhook as it arrived.
#[derive(Debug, Clone, Copy)]
pub struct Webhook<'a> {
    /// Whether the method is GET, not POST.
    pub is_get: bool,
    /// The query of the URL.
    pub query: Option<&'a str>,
    /// Header fields.
    pub headers: &'a [(&'a str, &'a str)],
    /// The body.
    pub body: &'a [u8],
}

/// Result of a webhook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Received {
    /// The provider, which decides the form of the response.
    pub provider: FeedbackProvider,
    /// Whether it was accepted before, so that it had no effect now.
    pub is_repeated: bool,
    /// Events that were applied.
    pub applied: usize,
    /// Events that name no notification of the application, or whose target is unknown. They have no effect.
    pub ignored: usize,
    /// Keyword of a reply.
    pub keyword: Option<Keyword>,
    /// Text that answers the reply.
    pub answer: Option<String>,
}

/// Reason why a webhook is not accepted.
#[derive(Debug, thiserror::Error)]
pub enum ReceiverError {
    /// There is no such application or channel, or it has no receiver.
    #[error("there is no receiver of webhooks here")]
    Missing,
    /// The provider sends no GET.
    #[error("the provider of this channel sends webhooks as POST")]
    Method,
    /// A webhook with the same key is processed.
    #[error("a webhook with the same id is processed at the moment")]
    InProgress,
    /// The provider signs the URL, and the installation does not know its own.
    #[error("the signature covers the URL: set `http.public_url`")]
    NoPublicUrl,
    /// The webhook was refused.
    #[error(transparent)]
    Refused(#[from] ProviderError),
    /// A request to the provider failed.
    #[error("the provider cannot be reached: {0}")]
    Unreachable(String),
    /// The effect could not be stored.
    #[error(transparent)]
    Failed(#[from] ServiceError),
}

impl ReceiverError {
    /// Its name in metrics.
    fn word(&self) -> &'static str {
        match self {
            ReceiverError::Missing => "missing",
            ReceiverError::Method => "method",
            ReceiverError::InProgress => "in_progress",
            ReceiverError::NoPublicUrl => "no_public_url",
            ReceiverError::Refused(error) => match error {
                ProviderError::TooLarge(_) => "too_large",
                ProviderError::Format(_) => "malformed",
                ProviderError::Unsigned(_) => "unsigned",
                ProviderError::Signature => "signature",
                ProviderError::Stale => "stale",
                ProviderError::Certificate(_) => "certificate",
                ProviderError::Topic => "topic",
            },
            ReceiverError::Unreachable(_) => "unreachable",
            ReceiverError::Failed(_) => "failed",
        }
    }
}

/// The receiver of a channel.
struct Receiver {
    application: Name,
    channel: Name,
    /// Protocol of the channel.
    protocol: Name,
    provider: FeedbackProvider,
    options: FeedbackOptions,
    verifier: Verifier,
    now: Timestamp,
}

impl Receiver {
    fn key(&self) -> String {
        format!("{}/{}", self.application, self.channel)
    }

    fn item(&self, evidence: Evidence, detail: &str, status: Option<String>) -> FeedbackItem {
        FeedbackItem {
            evidence,
            protocol: self.protocol.clone(),
            address: None,
            channel: Some((self.application.clone(), self.channel.clone())),
            notification: None,
            target: None,
            origin: self.provider.word().to_owned(),
            detail: detail.to_owned(),
            status,
            is_delay: false,
        }
    }

    fn received(&self) -> Received {
        let provider = self.provider;
        Received { provider, is_repeated: false, applied: 0, ignored: 0, keyword: None, answer: None }
    }
}

/// A webhook whose proof is valid.
enum Verified {
    Mail(VerifiedPayload),
    Sms(VerifiedCallback),
    /// The topic asks whether it may send; the key and the URL that confirms it.
    Confirmation(String, String),
    /// Nothing to do.
    Nothing,
}

impl Receivers {
    /// With the service, the client for requests to providers and the public URL.
    pub fn new(service: Arc<Service>, fetch: Arc<dyn Fetch>, public_url: Option<String>) -> Receivers {
        let public_url = public_url.map(|url| url.trim_end_matches('/').to_owned()).filter(|url| !url.is_empty());
        let (seen, certificates) = (SeenKeys::default(), Certificates::default());
        Receivers { service, fetch, public_url, seen, certificates }
    }

    /// Verifies a webhook and applies its events. Its effects are durable when it returns. A webhook that was accepted
    /// before has none.
    ///
    /// # Errors
    /// It is not accepted.
    pub async fn receive(
        &self,
        application: &str,
        channel: &str,
        webhook: &Webhook<'_>,
    ) -> Result<Received, ReceiverError> {
        let receiver = self.receiver(application, channel).ok_or(ReceiverError::Missing)?;
        let result = self.process(&receiver, webhook).await;
        let word = match &result {
            Ok(received) if received.is_repeated => "repeated",
            Ok(received) if received.applied == 0 && received.ignored > 0 => "ignored",
            Ok(_) => "accepted",
            Err(error) => error.word(),
        };
        metrics::counter!(
            "tocsin_feedback_webhooks_total",
            "application" => receiver.application.to_string(),
            "channel" => receiver.channel.to_string(),
            "provider" => receiver.provider.word(),
            "result" => word,
        )
        .increment(1);
        if let Err(error) = &result {
            let (receiver, provider) = (receiver.key(), receiver.provider.word());
            tracing::warn!(receiver, provider, %error, "refused a webhook");
        }
        result
    }

    /// The receiver of a running application's channel.
    fn receiver(&self, application: &str, channel: &str) -> Option<Receiver> {
        let (application, channel): (Name, Name) = (application.parse().ok()?, channel.parse().ok()?);
        let compiled = self.service.pipeline.application(&application)?;
        let found = compiled.application.channels.get(&channel)?;
        let options = FeedbackOptions::of(found)?;
        let (provider, verifier) = (options.provider?, options.verifier().ok()?);
        let (protocol, now) = (found.protocol.clone(), self.service.now());
        Some(Receiver { application, channel, protocol, provider, options, verifier, now })
    }

    async fn process(&self, receiver: &Receiver, webhook: &Webhook<'_>) -> Result<Received, ReceiverError> {
        if webhook.is_get && !receiver.provider.uses_get() {
            return Err(ReceiverError::Method);
        }
        let limits = Limits { payload_bytes_max: BODY_BYTES_MAX, ..Limits::default() };
        let verified = self.verified(receiver, webhook, &limits).await?;
        let key = match &verified {
            Verified::Mail(payload) => payload.replay_key(),
            Verified::Sms(callback) => &callback.replay_key,
            Verified::Confirmation(key, _) => key,
            Verified::Nothing => return Ok(receiver.received()),
        };
        // A provider can be ahead by the permitted clock skew, so a key is kept for longer than the window.
        let kept = receiver.options.window() + Duration::from_secs(600);
        let reservation = match self.seen.reserve(&receiver.key(), key, kept, receiver.now) {
            Ok(reservation) => reservation,
            Err(ReservationError::InProgress) => return Err(ReceiverError::InProgress),
            Err(ReservationError::Accepted) => return Ok(Received { is_repeated: true, ..receiver.received() }),
        };
        let received = match verified {
            Verified::Mail(payload) => self.apply_mail(receiver, &payload).await?,
            Verified::Sms(callback) => match callback.event {
                SmsEvent::Receipt(receipt) => self.apply_receipt(receiver, &receipt).await?,
                SmsEvent::Reply(reply) => self.apply_reply(receiver, &reply).await?,
                SmsEvent::Progress => receiver.received(),
            },
            Verified::Confirmation(_, url) => {
                self.fetch.fetch(&url).await.map_err(ReceiverError::Unreachable)?;
                tracing::info!(receiver = receiver.key(), "confirmed the subscription of a topic of Amazon SNS");
                Received { applied: 1, ..receiver.received() }
            }
            Verified::Nothing => receiver.received(),
        };
        reservation.keep();
        Ok(received)
    }

    async fn verified(
        &self,
        receiver: &Receiver,
        webhook: &Webhook<'_>,
        limits: &Limits,
    ) -> Result<Verified, ReceiverError> {
        let request = Request { headers: webhook.headers, body: webhook.body };
        let now = receiver.now;
        let url = || {
            let base = self.public_url.as_deref().ok_or(ReceiverError::NoPublicUrl)?;
            let query = webhook.query.map(|query| format!("?{query}")).unwrap_or_default();
            Ok::<_, ReceiverError>(format!("{base}{}{query}", receiver_path(&receiver.application, &receiver.channel)))
        };
        let sms = |verified: Result<VerifiedCallback, ProviderError>| Ok(Verified::Sms(verified?));
        match &receiver.verifier {
            Verifier::Ses(ses) => {
                let url = ses.certificate_url(&request, limits)?;
                let certificate = self.certificates.at(&url, &*self.fetch, now).await;
                let certificate = certificate.map_err(ReceiverError::Unreachable)?;
                match ses.verify(&request, &certificate, now, limits) {
                    Ok(SnsMessage::Events(payload)) => Ok(Verified::Mail(payload)),
                    Ok(SnsMessage::SubscriptionConfirmation { subscribe_url, replay_key }) => {
                        Ok(Verified::Confirmation(replay_key, subscribe_url))
                    }
                    Ok(SnsMessage::UnsubscribeConfirmation) => {
                        tracing::warn!(receiver = receiver.key(), "a topic of Amazon SNS sends no further messages");
                        Ok(Verified::Nothing)
                    }
                    Err(error) => {
                        if matches!(error, ProviderError::Certificate(_)) {
                            self.certificates.forget(&url);
                        }
                        Err(error.into())
                    }
                }
            }
            Verifier::SendGrid(sendgrid) => Ok(Verified::Mail(sendgrid.verify(&request, now, limits)?)),
            Verifier::Mailgun(mailgun) => Ok(Verified::Mail(mailgun.verify(&request, now, limits)?)),
            Verifier::Postmark(postmark) => Ok(Verified::Mail(postmark.verify(&request, now, limits)?)),
            Verifier::Brevo(brevo) => Ok(Verified::Mail(brevo.verify(&request, now, limits)?)),
            Verifier::Twilio(twilio) => sms(twilio.verify(&Callback { url: &url()?, request }, limits)),
            Verifier::Vonage(vonage) => {
                // The hash covers the body only, so nothing is read from the URL.
                sms(vonage.verify(&Callback { url: "", request }, now, limits))
            }
            Verifier::MessageBird(messagebird) => {
                sms(messagebird.verify(&Callback { url: &url()?, request }, now, limits))
            }
            Verifier::Sinch(sinch) => sms(sinch.verify(&Callback { url: "", request }, now, limits)),
            Verifier::StandardWebhooks(webhooks) => sms(webhooks.verify(&Callback { url: "", request }, now, limits)),
        }
    }

    async fn apply_mail(&self, receiver: &Receiver, payload: &VerifiedPayload) -> Result<Received, ReceiverError> {
        let mut batches = Batches { service: &self.service, known: HashMap::new() };
        let (mut items, mut ignored) = (Vec::new(), 0);
        for event in payload.events() {
            match self.mail_item(receiver, event, &mut batches).await? {
                Some(item) => items.push(item),
                None => ignored += 1,
            }
        }
        let mut received = self.take(receiver, items).await?;
        received.ignored += ignored;
        Ok(received)
    }

    /// The report of an event, if it is about a notification of the application.
    async fn mail_item(
        &self,
        receiver: &Receiver,
        event: &ProviderEvent,
        batches: &mut Batches<'_>,
    ) -> Result<Option<FeedbackItem>, ReceiverError> {
        let report = event.report();
        let status = report.status.map(|status| status.to_string());
        let is_delay = is_delay(report);
        let origin = event.reference();
        let origin = origin.and_then(|text| self.service.token_signer.verify_reference(text, receiver.now).ok());
        if let Some(origin) = &origin {
            let (batch, notification) = match origin.origin().reference {
                Reference::Notification(id) => (id.batch, Some(id)),
                Reference::Multicast(batch) => (batch, None),
                Reference::Message(_) => return Ok(None),
            };
            // A batch that retention has deleted belongs to no application any more; the signature remains.
            if batches.application(batch).await?.is_some_and(|application| application != receiver.application) {
                return Ok(None);
            }
            let Some(evidence) = Evidence::of_event(event, Some(origin)) else { return Ok(None) };
            let item = receiver.item(evidence, &report.diagnostic, status);
            return Ok(Some(FeedbackItem { notification, is_delay, ..item }));
        }
        // The provider returned no reference: our Message-ID names the notification, and the recipient must be its.
        let Some(id) = event.feedback().message_id.as_deref().and_then(|id| self.notification_of(id)) else {
            return Ok(None);
        };
        if batches.application(id.batch).await?.as_ref() != Some(&receiver.application) {
            return Ok(None);
        }
        let (Some(recipient), Some(evidence)) = (&report.recipient, Evidence::of_event(event, None)) else {
            return Ok(None);
        };
        let address = self.device_address(receiver, id, |address| bound(address) == recipient.canonical()).await?;
        let item = receiver.item(evidence, &report.diagnostic, status);
        Ok(address.map(|address| FeedbackItem { address: Some(address), notification: Some(id), is_delay, ..item }))
    }

    async fn apply_receipt(&self, receiver: &Receiver, receipt: &SmsReceipt) -> Result<Received, ReceiverError> {
        let ignored = Received { ignored: 1, ..receiver.received() };
        let Some(id) = receipt.reference().and_then(|reference| self.notification_of(reference)) else {
            return Ok(ignored);
        };
        let mut batches = Batches { service: &self.service, known: HashMap::new() };
        if batches.application(id.batch).await?.as_ref() != Some(&receiver.application) {
            return Ok(ignored);
        }
        let number = reply_address(receipt.recipient());
        let Some(address) = self.device_address(receiver, id, |address| reply_address(address) == number).await? else {
            return Ok(ignored);
        };
        let code = receipt.code().map(str::to_owned);
        let item = receiver.item(Evidence::of_receipt(receipt), receipt.diagnostic(), code);
        // The provider has a reply STOP that did not reach this receiver: it concerns this channel.
        let target = (receipt.class() == Class::Unsubscribe)
            .then(|| Target::channel(&receiver.application, &receiver.channel, &address));
        self.take(receiver, vec![FeedbackItem { address: Some(address), notification: Some(id), target, ..item }]).await
    }

    async fn apply_reply(&self, receiver: &Receiver, reply: &SmsReply) -> Result<Received, ReceiverError> {
        let keyword = reply.keyword().or_else(|| receiver.options.keywords().find(reply.text()));
        let Some(keyword) = keyword else { return Ok(receiver.received()) };
        metrics::counter!(
            "tocsin_feedback_keywords_total",
            "application" => receiver.application.to_string(),
            "channel" => receiver.channel.to_string(),
            "keyword" => keyword.word(),
        )
        .increment(1);
        let target = Target::channel(&receiver.application, &receiver.channel, reply.from());
        let options = &receiver.options;
        let (mut received, answer) = match keyword {
            Keyword::Stop => {
                let detail = format!("replied `{}` to {}", shown(reply.text()), reply.to());
                let item = receiver.item(Evidence::of_stop(reply), &detail, None);
                let item = FeedbackItem { address: Some(reply.from().to_owned()), target: Some(target), ..item };
                (self.take(receiver, vec![item]).await?, &options.stop_answer)
            }
            Keyword::Start => (self.release(receiver, &target, reply).await?, &options.start_answer),
            Keyword::Help => (receiver.received(), &options.help_answer),
        };
        received.keyword = Some(keyword);
        // A provider that recognized the keyword has answered it.
        let is_answered = reply.keyword().is_some() || answer.is_empty() || !receiver.provider.takes_answers();
        received.answer = (!is_answered).then(|| answer.clone());
        Ok(received)
    }

    /// Lifts what a keyword has suppressed. Suppressions of the address everywhere, by bounces or operators, stay.
    ///
    /// The reply is an entry of the log, so that it lifts no later suppression if it is repeated after a restart.
    async fn release(&self, receiver: &Receiver, target: &Target, reply: &SmsReply) -> Result<Received, ReceiverError> {
        let feedback = &self.service.feedback_store;
        let targets = std::slice::from_ref(target);
        let state = async || Ok(feedback.feedback_states(targets).await?.pop());
        let key = format!("start/{}", reply.id());
        let is_known = |state: &FeedbackState| state.entries.iter().any(|entry| entry.key == key);
        let found = state().await.map_err(|error: StoreError| ServiceError::from(error))?;
        if found.as_ref().is_some_and(is_known) {
            return Ok(Received { is_repeated: true, ..receiver.received() });
        }
        let found = found.and_then(|state| state.suppression);
        let is_lifted = found.is_some_and(|found| found.in_force && found.cause == Cause::Unsubscribed);
        if is_lifted {
            match self.service.suppression_store.remove_suppression(target).await {
                Ok(()) | Err(StoreError::Missing(_)) => {}
                Err(error) => return Err(ServiceError::from(error).into()),
            }
            tracing::info!(receiver = receiver.key(), reply = reply.id(), "a keyword lifted a suppression");
        }
        let entry = FeedbackEntry {
            target: target.clone(),
            class: Class::Unsubscribe,
            key: key.clone(),
            at: receiver.now,
            stage: Stage::Report,
            counts: false,
            effect: if is_lifted { "lifted" } else { "nothing to lift" }.to_owned(),
            origin: receiver.provider.word().to_owned(),
            detail: format!("replied `{}` to {}", shown(reply.text()), reply.to()),
            status: None,
            notification: None,
            device: None,
            expires_at: receiver.now + START_KEPT,
        };
        let mut attempts = 0;
        loop {
            attempts += 1;
            let before = state().await.map_err(|error: StoreError| ServiceError::from(error))?;
            let Some(before) = before.filter(|before| !is_known(before)) else { break };
            let (target, added, cleared) = (target.clone(), vec![entry.clone()], Vec::new());
            let change = FeedbackChange { target, before, added, cleared, suppression: None };
            match feedback.change_feedback(vec![change]).await {
                Ok(()) => break,
                // Another reply of the same address came first.
                Err(StoreError::Changed(_)) if attempts < START_ATTEMPTS_MAX => {}
                Err(error) => return Err(ServiceError::from(error).into()),
            }
        }
        Ok(Received { applied: usize::from(is_lifted), ..receiver.received() })
    }

    /// Passes reports to the policy, and counts their effects.
    async fn take(&self, receiver: &Receiver, items: Vec<FeedbackItem>) -> Result<Received, ReceiverError> {
        let mut received = receiver.received();
        if items.is_empty() {
            return Ok(received);
        }
        for result in self.service.take_feedback(items).await? {
            metrics::counter!(
                "tocsin_feedback_events_total",
                "application" => receiver.application.to_string(),
                "channel" => receiver.channel.to_string(),
                "class" => result.class.word(),
            )
            .increment(1);
            match result.effect {
                Effect::UnknownTarget => received.ignored += 1,
                _ => received.applied += 1,
            }
        }
        Ok(received)
    }

    /// The notification of a message id of this installation, which a service may have shortened.
    fn notification_of(&self, message_id: &str) -> Option<NotificationId> {
        let (id, rest) = message_id.split_once('.')?;
        let given = rest.split('@').next().unwrap_or_default().trim_end_matches('…');
        let ours = self.service.installation.installation();
        let is_ours = given == ours || given.len() >= INSTALLATION_CHARS_MIN && ours.starts_with(given);
        id.parse().ok().filter(|_| is_ours)
    }

    /// The address of the notification's recipient on the channel that `fits`.
    async fn device_address(
        &self,
        receiver: &Receiver,
        id: NotificationId,
        fits: impl Fn(&str) -> bool,
    ) -> Result<Option<String>, ReceiverError> {
        let found = match self.service.find_notification(id).await {
            Ok(found) => found,
            Err(ServiceError::Missing(_)) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let devices = found.recipient.iter().flat_map(|recipient| recipient.devices.iter());
        let mut addresses =
            devices.filter(|(_, device)| device.channel == receiver.channel).map(|(_, device)| &device.address);
        Ok(addresses.find(|address| fits(address)).cloned())
    }
}

/// A text of a reply, in one line.
fn shown(text: &str) -> String {
    let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    text.trim().to_owned()
}

/// Applications of notification batches, read once for a payload.
struct Batches<'a> {
    service: &'a Service,
    known: HashMap<NotificationBatchId, Option<Name>>,
}

impl Batches<'_> {
    /// The application of a batch, if it is stored.
    async fn application(&mut self, id: NotificationBatchId) -> Result<Option<Name>, ServiceError> {
        if let Some(known) = self.known.get(&id) {
            return Ok(known.clone());
        }
        let application = match self.service.find_notification_batch(id).await {
            Ok(stored) => Some(stored.head.application),
            Err(ServiceError::Missing(_)) => None,
            Err(error) => return Err(error),
        };
        self.known.insert(id, application.clone());
        Ok(application)
    }
}
