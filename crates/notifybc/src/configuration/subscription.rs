//! The subscription configuration of a service: texts and rules of the workflow.

use serde_json::Value;

use super::reader::Reader;
use crate::record::Document;

/// The merged subscription configuration of a service.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SubscriptionConfiguration {
    /// Whether a duplicate gets other texts than a confirmation request.
    pub detects_duplicates: bool,
    /// Confirmation requests by channel, with all their keys, as they are stored in a record.
    confirmation_requests: Document,
    /// Texts for duplicates by channel.
    duplicates: Vec<(String, MessageTemplate)>,
    /// The answer of a confirmation. `None`: a bare `OK`.
    pub confirmation_acknowledgements: Option<Acknowledgement>,
    /// Whether an unsubscription code is made.
    pub code_required: bool,
    /// The regular expression of unsubscription codes.
    pub code_regex: Option<String>,
    /// The answer of an unsubscription.
    pub unsubscription_on_screen: Acknowledgement,
    /// Acknowledgement messages of an unsubscription by channel.
    unsubscription_messages: Vec<(String, MessageTemplate)>,
    /// The answer of an undone unsubscription.
    pub undo: Acknowledgement,
    /// Whether a GET of the unsubscription link shows a page instead (`anonymousUnsubscription.confirmOnGet`).
    pub confirms_get: bool,
}

/// An answer: a redirect, or texts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Acknowledgement {
    /// `redirectUrl`
    pub redirect_url: Option<String>,
    /// `successMessage`
    pub success_message: Option<String>,
    /// `failureMessage`
    pub failure_message: Option<String>,
}

/// The texts of a message.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MessageTemplate {
    /// The sender.
    pub from: Option<String>,
    /// The subject.
    pub subject: Option<String>,
    /// The plain text.
    pub text_body: Option<String>,
    /// The HTML text.
    pub html_body: Option<String>,
}

impl SubscriptionConfiguration {
    /// The configuration of a merged document.
    pub fn parse(value: &Value) -> SubscriptionConfiguration {
        let root = Reader::new(value);
        let unsubscription = root.at("anonymousUnsubscription");
        let acknowledgements = unsubscription.at("acknowledgements");
        let requests = root.at("confirmationRequest").value().and_then(Value::as_object);
        SubscriptionConfiguration {
            detects_duplicates: root.flag("detectDuplicatedSubscription"),
            confirmation_requests: requests.cloned().unwrap_or_default(),
            duplicates: templates(&root.at("duplicatedSubscriptionNotification")),
            confirmation_acknowledgements: Acknowledgement::parse(&root.at("confirmationAcknowledgements")),
            code_required: unsubscription.at("code").flag("required"),
            code_regex: unsubscription.at("code").text("regex"),
            unsubscription_on_screen: Acknowledgement::parse(&acknowledgements.at("onScreen")).unwrap_or_default(),
            unsubscription_messages: templates(&acknowledgements.at("notification")),
            undo: Acknowledgement::parse(&root.at("anonymousUndoUnsubscription")).unwrap_or_default(),
            confirms_get: unsubscription.flag("confirmOnGet"),
        }
    }

    /// The confirmation request of a channel, as it is stored in a record, without a code.
    pub fn confirmation_request(&self, channel: &str) -> Option<Document> {
        let mut request = self.confirmation_requests.get(channel)?.as_object()?.clone();
        request.shift_remove("confirmationCode");
        Some(request)
    }

    /// The texts for a duplicate: those of the channel, with subject and HTML text of `email`.
    pub fn duplicate_message(&self, channel: &str) -> Option<MessageTemplate> {
        let of = |channel: &str| self.duplicates.iter().find(|(name, _)| name == channel).map(|(_, texts)| texts);
        let own = of(channel)?;
        let email = of("email").cloned().unwrap_or_default();
        Some(MessageTemplate { subject: email.subject, html_body: email.html_body, ..own.clone() })
    }

    /// The acknowledgement message of an unsubscription. `None`: none is sent.
    pub fn unsubscription_message(&self, channel: &str) -> Option<&MessageTemplate> {
        self.unsubscription_messages.iter().find(|(name, _)| name == channel).map(|(_, texts)| texts)
    }
}

impl Acknowledgement {
    fn parse(part: &Reader<'_>) -> Option<Acknowledgement> {
        part.value().filter(|value| value.is_object())?;
        Some(Acknowledgement {
            redirect_url: part.text("redirectUrl"),
            success_message: part.text("successMessage"),
            failure_message: part.text("failureMessage"),
        })
    }
}

impl MessageTemplate {
    /// The texts of a message object, such as `message` of a notification.
    pub fn of(message: &Document) -> MessageTemplate {
        let text = |name: &str| crate::record::text(message, name).map(str::to_owned);
        MessageTemplate {
            from: text("from"),
            subject: text("subject"),
            text_body: text("textBody"),
            html_body: text("htmlBody"),
        }
    }
}

/// The texts of each channel.
fn templates(part: &Reader<'_>) -> Vec<(String, MessageTemplate)> {
    let channels = part.value().and_then(Value::as_object).into_iter().flatten();
    let of = |(name, value): (&String, &Value)| Some((name.clone(), MessageTemplate::of(value.as_object()?)));
    channels.filter_map(of).collect()
}
