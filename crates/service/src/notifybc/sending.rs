//! Messages to one address: confirmation requests, acknowledgements, notifications of one recipient. They are sent
//! through the channels of the application `notifybc`, and their answer is awaited.

use std::time::Duration;

use serde_json::{Map, Value, json};
use tocsin_model::{
    content::{Content, MailField},
    delivery_policy::Priority,
    notifybc::{APPLICATION, name, subscriber_id},
    receipt::{Disposition, Reason, ReasonKind},
};
use tocsin_notifybc::{
    configuration::{MessageTemplate, SmsProvider},
    merge::{Context, Template, uri_component},
    record::text,
};
use tocsin_pipeline::{DirectError, DirectMessage};

use super::{
    Notifybc,
    definition::{CALLBACK, EMAIL, MESSAGE_CLASS, RETRY_SECONDS, SENDER_DEFAULT, SMS},
};

/// Time after which an answer is no longer awaited. A message can wait for the rate of its channel.
const TIMEOUT: Duration = Duration::from_secs(300);
/// Time for the answer of a callback.
const CALLBACK_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest wait that a receiver can ask for between two attempts.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(10);

/// Kind of a message to one address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageKind {
    /// A confirmation request, or the message for a duplicate.
    Confirmation,
    /// The acknowledgement of an unsubscription.
    Acknowledgement,
    /// A notification. Its mail has the fields of a list.
    Notification,
}

impl MessageKind {
    fn priority(self) -> Priority {
        match self {
            MessageKind::Confirmation => Priority::Urgent,
            MessageKind::Acknowledgement => Priority::Normal,
            MessageKind::Notification => Priority::Low,
        }
    }
}

/// A message that was not sent: the reply of the receiver, or the reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{response}")]
pub struct Undelivered {
    /// The reply, or the reason.
    pub response: String,
    /// The code of the reply.
    pub response_code: Option<u16>,
}

impl Undelivered {
    /// The reason of a disposition, or the reply of an attempt. After the last attempt, it is the reply to that one.
    pub(super) fn of(reply: &str) -> Undelivered {
        let last = reply.strip_prefix("all ").and_then(|rest| rest.split_once("the last with: "));
        let reply = last.map_or(reply, |(_, reply)| reply);
        let code = reply.get(..3).filter(|_| matches!(reply.as_bytes().get(3), None | Some(b' ' | b'-' | b':')));
        let response_code = code.and_then(|code| code.parse().ok()).filter(|code| (200..600).contains(code));
        Undelivered { response: reply.to_owned(), response_code }
    }

    /// The object `error` of a dispatch record.
    pub fn to_value(&self) -> Value {
        let mut error = Map::new();
        let code = if self.response_code.is_some() { "EENVELOPE" } else { "ECONNECTION" };
        error.insert("code".to_owned(), code.into());
        error.insert("response".to_owned(), self.response.as_str().into());
        if let Some(code) = self.response_code {
            error.insert("responseCode".to_owned(), code.into());
        }
        Value::Object(error)
    }
}

impl Notifybc {
    /// Merges the texts of a message, and sends it to one address. An answer that defers it is followed by further
    /// attempts, within this call.
    ///
    /// # Errors
    /// The receiver refuses it, or all attempts are deferred.
    pub async fn send_message(
        &self,
        kind: MessageKind,
        channel: &str,
        address: &str,
        texts: &MessageTemplate,
        context: &Context<'_>,
    ) -> Result<(), Undelivered> {
        let merged = |text: &Option<String>| text.as_ref().map(|text| Template::parse(text).render(context));
        let reference = context.subscription.and_then(|subscription| text(subscription, "id"));
        let mut content = Content {
            subject: merged(&texts.subject).map(|subject| one_line(&subject)),
            text: merged(&texts.text_body),
            html: merged(&texts.html_body),
            ..Content::default()
        };
        match channel {
            SMS => {
                let body = content.text.take().unwrap_or_default();
                content.json = Some(self.sms_body(&body, reference));
                content.sms = Some(body);
            }
            _ => {
                let from = texts.from.as_deref().unwrap_or(SENDER_DEFAULT);
                let mut fields = vec![(MailField::From, one_line(from))];
                if kind == MessageKind::Notification {
                    fields.extend(self.list_fields(context));
                }
                content.mail = fields;
            }
        }
        let priority = kind.priority();
        self.send_content(channel, address, reference, content, priority, TIMEOUT).await
    }

    /// The envelope sender and the list fields of a notification's mail to one recipient.
    fn list_fields(&self, context: &Context<'_>) -> Vec<(MailField, String)> {
        let service = context.notification.and_then(|notification| text(notification, "serviceName"));
        let mut fields = vec![(MailField::ListId, list_id(context.http_host, service.unwrap_or_default()))];
        if context.subscription.is_some() {
            for (field, source) in self.recipient_fields() {
                fields.push((field, Template::parse(&source).render(context)));
            }
        }
        fields
    }

    /// Fields of a notification's mail that differ between recipients, with tokens.
    pub(super) fn recipient_fields(&self) -> Vec<(MailField, String)> {
        let email = &self.configuration.email;
        let domain = email.inbound.domains.first();
        let address =
            |prefix: &str, domain: &str| format!("{prefix}-{{subscription_id}}-{{unsubscription_code}}@{domain}");
        let mut fields = Vec::new();
        if let Some(domain) = domain.filter(|_| email.bounce.is_enabled) {
            fields.push((MailField::ReturnPath, address("bn", domain)));
        }
        let by_mail = domain.filter(|_| email.list_unsubscribe_by_email);
        let by_mail = by_mail.map(|domain| format!("<mailto:{}>, ", address("un", domain)));
        let unsubscribe = format!("{}<{{unsubscription_url}}>", by_mail.unwrap_or_default());
        fields.push((MailField::ListUnsubscribe, unsubscribe));
        fields
    }

    /// The JSON body of a short message, for the provider `swift`.
    fn sms_body(&self, text: &str, reference: Option<&str>) -> String {
        let mut body = json!({"MessageBody": text});
        if let Some(reference) = reference {
            body["Reference"] = reference.into();
        }
        body.to_string()
    }

    /// The templates of a notification's content, for a native broadcast.
    pub(super) fn broadcast_content(
        &self,
        channel: &str,
        texts: &MessageTemplate,
        http_host: &str,
        service: &str,
    ) -> Value {
        let mut base = Map::new();
        let mut put = |part: &str, text: &Option<String>| {
            if let Some(text) = text {
                base.insert(part.to_owned(), text.as_str().into());
            }
        };
        match channel {
            SMS => {
                let body = texts.text_body.clone().unwrap_or_default();
                put("sms", &Some(body.clone()));
                if matches!(self.configuration.sms.provider, SmsProvider::Swift { .. }) {
                    let json = json!({"MessageBody": body, "Reference": "{subscription_id}"});
                    put("json", &Some(json.to_string()));
                }
            }
            _ => {
                put("subject", &texts.subject);
                put("html", &texts.html_body);
                let is_empty = texts.text_body.is_none() && texts.html_body.is_none();
                put("text", &texts.text_body.clone().or_else(|| is_empty.then(String::new)));
                let from = texts.from.as_deref().unwrap_or(SENDER_DEFAULT);
                let own =
                    [(MailField::From, escaped(from)), (MailField::ListId, escaped(&list_id(http_host, service)))];
                let fields = own.into_iter().chain(self.recipient_fields());
                let fields: Map<String, Value> =
                    fields.map(|(field, text)| (field.name().to_owned(), text.into())).collect();
                base.insert("mail".to_owned(), fields.into());
            }
        }
        json!({"engine": "notifybc", "templates": {"base": base}})
    }

    /// Posts JSON to the URL of a notification. A failure is repeated with the same body.
    ///
    /// # Errors
    /// No attempt succeeded.
    pub(super) async fn call_back(&self, url: &str, body: &Value) -> Result<(), Undelivered> {
        let content = Content { json: Some(body.to_string()), ..Content::default() };
        self.send_content(CALLBACK, url, None, content, Priority::Normal, CALLBACK_TIMEOUT).await
    }

    /// Sends a content to one address, in several attempts if the receiver defers it.
    async fn send_content(
        &self,
        channel: &str,
        address: &str,
        reference: Option<&str>,
        content: Content,
        priority: Priority,
        timeout: Duration,
    ) -> Result<(), Undelivered> {
        let internal = |text: String| Undelivered { response: text, response_code: None };
        let subscriber = subscriber_id(reference.unwrap_or("none")).map_err(|error| internal(error.to_string()))?;
        let message = DirectMessage {
            application: name(APPLICATION),
            channel: channel.parse().map_err(|error| internal(format!("channel `{channel}`: {error}")))?,
            address: address.to_owned(),
            subscriber,
            device: None,
            content,
            class: name(MESSAGE_CLASS),
            fields: Map::new(),
            event: None,
            priority,
            id_prefix: "direct",
            timeout,
        };
        let mut delays = RETRY_SECONDS.into_iter().map(Duration::from_secs);
        loop {
            let answer = self.service.pipeline.send_direct(message.clone()).await;
            let (reason, retry_after) = match answer.map(|answer| answer.disposition) {
                Ok(Disposition::Delivered { .. }) => return Ok(()),
                Ok(Disposition::Refused { reason }) => return Err(Undelivered::of(&reason.text)),
                Ok(Disposition::Deferred { reason, retry_after }) => (reason, retry_after),
                Err(error @ (DirectError::Suppressed(_) | DirectError::Silent(_))) => {
                    return Err(internal(error.to_string()));
                }
                Err(error) => (Reason::new(ReasonKind::Internal, error.to_string()), None),
            };
            // An unreachable receiver was awaited by the channel already.
            let is_worthwhile = matches!(reason.kind, ReasonKind::Answer | ReasonKind::Untried) || channel == CALLBACK;
            match delays.next().filter(|_| is_worthwhile) {
                Some(delay) => {
                    tokio::time::sleep(delay.max(retry_after.unwrap_or_default().min(RETRY_AFTER_MAX))).await;
                }
                None => return Err(Undelivered::of(&reason.text)),
            }
        }
    }
}

/// Whether messages leave through this channel.
pub(super) fn is_push(channel: &str) -> bool {
    matches!(channel, EMAIL | SMS)
}

/// The value of `List-ID`.
fn list_id(http_host: &str, service: &str) -> String {
    format!("<{http_host}/{}>", uri_component(service))
}

/// A text without tokens.
fn escaped(text: &str) -> String {
    text.replace('{', "\\{").replace('}', "\\}")
}

/// A text in one line, so that it cannot begin another header field.
fn one_line(text: &str) -> String {
    text.split(['\r', '\n', '\u{2028}', '\u{2029}']).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s7_5_errors_have_the_reply_and_its_code() {
        let error = Undelivered::of("550 5.1.1 no such mailbox");
        let expected = json!({"code": "EENVELOPE", "response": "550 5.1.1 no such mailbox", "responseCode": 550});
        assert_eq!(error.to_value(), expected);
        let last = Undelivered::of("all 4 attempts failed, the last with: 450 4.2.1 later");
        assert_eq!((last.response.as_str(), last.response_code), ("450 4.2.1 later", Some(450)));
        for reply in ["no connection to relay", "5500 x", "", "99 x", "é50"] {
            assert_eq!(Undelivered::of(reply).response_code, None, "{reply}");
        }
    }

    #[test]
    fn s7_4_lines_and_tokens_of_senders() {
        assert_eq!(one_line("a\r\nBcc: x@y.example\n"), "a Bcc: x@y.example");
        assert_eq!(escaped("{a} b"), "\\{a\\} b");
        assert_eq!(list_id("http://n.example:3000", "fires east/west"), "<http://n.example:3000/fires%20east%2Fwest>");
    }
}
