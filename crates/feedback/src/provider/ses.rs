//! Amazon SES: events by Amazon SNS over HTTPS, signed with RSA.
//! Formats: <https://docs.aws.amazon.com/sns/latest/dg/sns-verify-signature-of-message.html> and
//! <https://docs.aws.amazon.com/ses/latest/dg/notification-contents.html>.
//!
//! The caller fetches the certificate from [`certificate_url`], which is at Amazon only, by HTTPS with the usual
//! checks, and can cache it by its URL. Every account of Amazon can have messages signed with it, so the topic must be
//! the configured one.

use std::time::Duration;

use base64::{Engine, prelude::BASE64_STANDARD};
use ring::signature::{
    RSA_PKCS1_2048_8192_SHA1_FOR_LEGACY_USE_ONLY, RSA_PKCS1_2048_8192_SHA256, RsaParameters, UnparsedPublicKey,
};
use serde::Deserialize;
use tocsin_model::time::Timestamp;
use x509_cert::{Certificate, der::Decode};

use super::{
    EventParts, ProviderError, ProviderEvent, REFERENCE, Request, VerifiedPayload, bounded, fresh, json, loose_text,
    permanent, temporary,
};
use crate::{feedback::Class, limits::Limits};

/// Verifies the messages of a topic.
#[derive(Debug)]
pub struct Ses {
    topic: String,
    window: Duration,
}

/// A verified message of SNS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SnsMessage {
    /// Events of SES.
    Events(VerifiedPayload),
    /// The confirmation of a new subscription: a GET of the URL accepts it.
    SubscriptionConfirmation {
        /// The URL, at Amazon.
        subscribe_url: String,
        /// The key by which a repeated message is recognized.
        replay_key: String,
    },
    /// The end of the subscription.
    UnsubscribeConfirmation,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Envelope {
    #[serde(rename = "Type")]
    kind: String,
    message_id: String,
    #[serde(default)]
    token: Option<String>,
    topic_arn: String,
    #[serde(default)]
    subject: Option<String>,
    message: String,
    timestamp: String,
    signature_version: String,
    signature: String,
    #[serde(rename = "SigningCertURL", alias = "SigningCertUrl")]
    certificate_url: String,
    #[serde(default, rename = "SubscribeURL")]
    subscribe_url: Option<String>,
}

impl Envelope {
    fn parse(request: &Request<'_>, limits: &Limits) -> Result<Envelope, ProviderError> {
        json(bounded(request, limits)?)
    }

    /// The text that is signed: names and values of these members, each on a line.
    fn signed(&self) -> Result<String, ProviderError> {
        let text = |name, value| Some((name, value));
        let subject = self.subject.as_deref().map(|subject| ("Subject", subject));
        let members = match self.kind.as_str() {
            "Notification" => [
                text("Message", self.message.as_str()),
                text("MessageId", &self.message_id),
                subject,
                text("Timestamp", &self.timestamp),
                text("TopicArn", &self.topic_arn),
                text("Type", &self.kind),
                None,
            ],
            "SubscriptionConfirmation" | "UnsubscribeConfirmation" => [
                text("Message", self.message.as_str()),
                text("MessageId", &self.message_id),
                self.subscribe_url.as_deref().map(|url| ("SubscribeURL", url)),
                text("Timestamp", &self.timestamp),
                self.token.as_deref().map(|token| ("Token", token)),
                text("TopicArn", &self.topic_arn),
                text("Type", &self.kind),
            ],
            kind => return Err(ProviderError::Format(format!("the type `{kind}`"))),
        };
        Ok(members.iter().flatten().map(|(name, value)| format!("{name}\n{value}\n")).collect())
    }
}

/// The URL of the certificate that a message names.
///
/// # Errors
/// The message has another form, or the URL is not at `https://sns.<region>.amazonaws.com`.
pub fn certificate_url(request: &Request<'_>, limits: &Limits) -> Result<String, ProviderError> {
    let envelope = Envelope::parse(request, limits)?;
    let is_certificate = is_sns_url(&envelope.certificate_url, |path| {
        path.ends_with(".pem") && path.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte))
    });
    match is_certificate && !envelope.certificate_url.contains("..") {
        true => Ok(envelope.certificate_url),
        false => Err(ProviderError::Certificate("its URL is not at https://sns.<region>.amazonaws.com")),
    }
}

/// Whether a URL is at SNS, with the default port and without user information.
fn is_sns_url(url: &str, is_path: impl Fn(&str) -> bool) -> bool {
    let Some((host, path)) = url.strip_prefix("https://").and_then(|rest| rest.split_once('/')) else { return false };
    let host = host.strip_suffix(".amazonaws.com").or(host.strip_suffix(".amazonaws.com.cn"));
    let region = host.and_then(|host| host.strip_prefix("sns."));
    let is_region = |region: &str| {
        !region.is_empty()
            && region.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
    };
    region.is_some_and(is_region) && is_path(path)
}

impl Ses {
    /// With the ARN of the topic and the replay window. SNS repeats a message for an hour by default.
    pub fn new(topic: &str, window: Duration) -> Ses {
        Ses { topic: topic.to_owned(), window }
    }

    /// The URL of the certificate of a message of this topic, as [`certificate_url`]. A message of another topic is
    /// refused before anything is requested for it.
    ///
    /// # Errors
    /// The message has another form or topic, or the URL is not at Amazon.
    pub fn certificate_url(&self, request: &Request<'_>, limits: &Limits) -> Result<String, ProviderError> {
        let url = certificate_url(request, limits)?;
        match Envelope::parse(request, limits)?.topic_arn == self.topic {
            true => Ok(url),
            false => Err(ProviderError::Topic),
        }
    }

    /// Verifies and parses a message, with the certificate of [`certificate_url`] in PEM or DER.
    ///
    /// # Errors
    /// It is refused.
    pub fn verify(
        &self,
        request: &Request<'_>,
        certificate: &[u8],
        now: Timestamp,
        limits: &Limits,
    ) -> Result<SnsMessage, ProviderError> {
        certificate_url(request, limits)?;
        let envelope = Envelope::parse(request, limits)?;
        let algorithm: &RsaParameters = match envelope.signature_version.as_str() {
            "1" => &RSA_PKCS1_2048_8192_SHA1_FOR_LEGACY_USE_ONLY,
            "2" => &RSA_PKCS1_2048_8192_SHA256,
            version => return Err(ProviderError::Format(format!("the signature version `{version}`"))),
        };
        let key = public_key(certificate, now)?;
        let signature = BASE64_STANDARD.decode(&envelope.signature).map_err(|_| ProviderError::Signature)?;
        let signed = envelope.signed()?;
        let key = UnparsedPublicKey::new(algorithm, key);
        key.verify(signed.as_bytes(), &signature).map_err(|_| ProviderError::Signature)?;
        if envelope.topic_arn != self.topic {
            return Err(ProviderError::Topic);
        }
        let at: Timestamp = envelope.timestamp.parse().map_err(|_| ProviderError::Stale)?;
        fresh(at, now, self.window)?;
        let replay_key = format!("sns/{}", envelope.message_id);
        match envelope.kind.as_str() {
            "Notification" => {
                Ok(SnsMessage::Events(VerifiedPayload { events: events(&envelope.message, limits)?, replay_key }))
            }
            "SubscriptionConfirmation" => {
                let subscribe_url = envelope.subscribe_url.unwrap_or_default();
                match is_sns_url(&subscribe_url, |_| true) {
                    true => Ok(SnsMessage::SubscriptionConfirmation { subscribe_url, replay_key }),
                    false => Err(ProviderError::Format("SubscribeURL is not at Amazon".to_owned())),
                }
            }
            _ => Ok(SnsMessage::UnsubscribeConfirmation),
        }
    }
}

/// The Base64 text of a certificate in PEM (RFC 7468).
fn der_of_pem(certificate: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(certificate).ok()?;
    let (_, rest) = text.split_once("-----BEGIN CERTIFICATE-----")?;
    let (text, _) = rest.split_once("-----END CERTIFICATE-----")?;
    Some(text.split_ascii_whitespace().collect())
}

/// The RSA public key of a certificate that is valid now.
fn public_key(certificate: &[u8], now: Timestamp) -> Result<Vec<u8>, ProviderError> {
    let wrong = ProviderError::Certificate("it is neither PEM nor DER");
    let der = match der_of_pem(certificate) {
        Some(text) => BASE64_STANDARD.decode(text).map_err(|_| wrong.clone())?,
        None => certificate.to_vec(),
    };
    let parsed = Certificate::from_der(&der).map_err(|_| wrong)?;
    let validity = &parsed.tbs_certificate.validity;
    let seconds = u64::try_from(now.as_millis().div_euclid(1_000)).unwrap_or(0);
    let is_valid = validity.not_before.to_unix_duration().as_secs() <= seconds
        && seconds <= validity.not_after.to_unix_duration().as_secs();
    if !is_valid {
        return Err(ProviderError::Certificate("it has expired or is not valid yet"));
    }
    let key = &parsed.tbs_certificate.subject_public_key_info.subject_public_key;
    key.as_bytes().map(<[u8]>::to_vec).ok_or(ProviderError::Certificate("it has no RSA key"))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Notification {
    #[serde(alias = "eventType")]
    notification_type: String,
    #[serde(default)]
    bounce: Option<Bounce>,
    #[serde(default)]
    complaint: Option<Complaint>,
    #[serde(default)]
    delivery: Option<Delivery>,
    #[serde(default)]
    mail: SentMail,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
struct Bounce {
    bounce_type: String,
    bounce_sub_type: String,
    bounced_recipients: Vec<Recipient>,
    timestamp: String,
    feedback_id: String,
    #[serde(rename = "reportingMTA")]
    reporting_mta: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
struct Recipient {
    email_address: String,
    #[serde(deserialize_with = "loose_text")]
    status: String,
    #[serde(deserialize_with = "loose_text")]
    diagnostic_code: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
struct Complaint {
    complained_recipients: Vec<Recipient>,
    timestamp: String,
    feedback_id: String,
    #[serde(deserialize_with = "loose_text")]
    complaint_feedback_type: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
struct Delivery {
    recipients: Vec<String>,
    timestamp: String,
    #[serde(deserialize_with = "loose_text")]
    smtp_response: String,
    #[serde(rename = "reportingMTA", deserialize_with = "loose_text")]
    reporting_mta: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
struct SentMail {
    message_id: String,
    common_headers: CommonHeaders,
    tags: serde_json::Map<String, serde_json::Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
struct CommonHeaders {
    #[serde(deserialize_with = "loose_text")]
    message_id: String,
}

/// The events of a mail that SNS sends to a subscribed mail address: the message, or the whole notification, and a text
/// behind it. Nothing is verified.
pub(crate) fn events_of_mail<'a>(
    mut texts: impl Iterator<Item = &'a str>,
    limits: &Limits,
) -> Option<Vec<ProviderEvent>> {
    let text = texts.next().map(str::trim_start).filter(|text| text.starts_with('{'))?;
    // Servers on the way break long lines, also within strings. JSON has no line breaks there.
    let text = text.replace(['\r', '\n'], "");
    let mut values = serde_json::Deserializer::from_str(&text).into_iter::<serde_json::Value>();
    let value = values.next()?.ok()?;
    let message = match value.get("Message") {
        Some(message) => message.as_str()?.to_owned(),
        None => value.to_string(),
    };
    events(&message, limits).ok().filter(|events| !events.is_empty())
}

fn events(message: &str, limits: &Limits) -> Result<Vec<ProviderEvent>, ProviderError> {
    // SES sends this text when the topic is connected.
    if message.starts_with("Successfully validated SNS topic") {
        return Ok(Vec::new());
    }
    let Notification { notification_type, bounce, complaint, delivery, mail } = json(message.as_bytes())?;
    let count = bounce.as_ref().map_or(0, |bounce| bounce.bounced_recipients.len())
        + complaint.as_ref().map_or(0, |complaint| complaint.complained_recipients.len())
        + delivery.as_ref().map_or(0, |delivery| delivery.recipients.len());
    if count > limits.events_max {
        return Err(ProviderError::TooLarge("events_max"));
    }
    let message_id = match mail.common_headers.message_id.is_empty() {
        true => &mail.message_id,
        false => &mail.common_headers.message_id,
    };
    let reference = mail.tags.get(REFERENCE).and_then(|values| values.get(0)).and_then(serde_json::Value::as_str);
    let parts = |key: &str, recipient: &str| EventParts {
        message_id: Some(message_id),
        reference,
        key: format!("ses/{notification_type}/{key}/{recipient}"),
        ..EventParts::default()
    };
    let mut events = Vec::with_capacity(count);
    if let Some(bounce) = bounce.filter(|_| notification_type == "Bounce") {
        for recipient in &bounce.bounced_recipients {
            let (address, status, diagnostic) =
                (&recipient.email_address, recipient.status.as_str(), recipient.diagnostic_code.as_str());
            let parts = EventParts {
                class: Some(class(&bounce, status, diagnostic, limits)),
                recipient: address,
                status,
                diagnostic: if diagnostic.is_empty() { &bounce.bounce_sub_type } else { diagnostic },
                reporting_mta: Some(bounce.reporting_mta.trim_start_matches("dns;").trim()),
                at: bounce.timestamp.parse().ok(),
                ..parts(&bounce.feedback_id, address)
            };
            events.push(parts.event(limits));
        }
    }
    if let Some(complaint) = complaint.filter(|_| notification_type == "Complaint") {
        for recipient in &complaint.complained_recipients {
            let kind = complaint.complaint_feedback_type.as_str();
            let class = match kind {
                "not-spam" | "auth-failure" => (Class::Unknown, "report.other"),
                _ => (Class::Complaint, "provider.complaint"),
            };
            let parts = EventParts {
                class: Some(class),
                recipient: &recipient.email_address,
                diagnostic: kind,
                feedback_type: Some(kind),
                at: complaint.timestamp.parse().ok(),
                ..parts(&complaint.feedback_id, &recipient.email_address)
            };
            events.push(parts.event(limits));
        }
    }
    if let Some(delivery) = delivery.filter(|_| notification_type == "Delivery") {
        for recipient in &delivery.recipients {
            let parts = EventParts {
                class: Some((Class::Delivered, "provider.delivered")),
                recipient,
                diagnostic: &delivery.smtp_response,
                reporting_mta: Some(&delivery.reporting_mta),
                at: delivery.timestamp.parse().ok(),
                ..parts(&mail.message_id, recipient)
            };
            events.push(parts.event(limits));
        }
    }
    Ok(events)
}

/// The class of a bounce by its type and subtype.
fn class(bounce: &Bounce, status: &str, diagnostic: &str, limits: &Limits) -> (Class, &'static str) {
    match (bounce.bounce_type.as_str(), bounce.bounce_sub_type.as_str()) {
        (_, "ContentRejected" | "AttachmentRejected") => (Class::Blocked, "provider.blocked"),
        ("Permanent", "Suppressed" | "OnAccountSuppressionList") => (Class::Hard, "provider.suppressed"),
        ("Permanent", "NoEmail") => (Class::Hard, "provider.permanent"),
        ("Permanent", "UnsubscribedRecipient") => (Class::Unsubscribe, "provider.suppressed"),
        ("Permanent", _) => permanent(diagnostic, status, limits),
        _ => temporary(diagnostic, status, limits),
    }
}
