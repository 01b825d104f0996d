//! Answers of the subscription workflow: texts, redirects, or a bare status.

use crate::{
    configuration::{Acknowledgement, SubscriptionConfiguration},
    merge::uri_component,
    record::{Document, text},
};

/// The text of a failure in a redirect.
const ERROR: &str = "Forbidden";

/// An answer of the workflow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// A text, `text/plain`.
    Text {
        /// 200 or 403.
        status: u16,
        /// The text.
        text: String,
    },
    /// A redirect with status 302.
    Redirect(String),
    /// The JSON `{"statusCode":403}`.
    Refused,
}

/// The answer of a verification. Without acknowledgements it is a bare `OK`.
pub fn verification_answer(configuration: &SubscriptionConfiguration, record: &Document, is_permitted: bool) -> Answer {
    match (&configuration.confirmation_acknowledgements, is_permitted) {
        (Some(acknowledgement), _) => answer(acknowledgement, record, is_permitted),
        (None, true) => Answer::Text { status: 200, text: "OK".to_owned() },
        (None, false) => Answer::Refused,
    }
}

/// The answer of an unsubscription.
pub fn unsubscription_answer(
    configuration: &SubscriptionConfiguration,
    record: &Document,
    is_permitted: bool,
) -> Answer {
    let on_screen = &configuration.unsubscription_on_screen;
    match (&on_screen.redirect_url, &on_screen.failure_message, is_permitted) {
        (None, None, false) => Answer::Refused,
        _ => answer(on_screen, record, is_permitted),
    }
}

/// The answer of an undone unsubscription.
pub fn undo_answer(configuration: &SubscriptionConfiguration, record: &Document, is_permitted: bool) -> Answer {
    answer(&configuration.undo, record, is_permitted)
}

fn answer(acknowledgement: &Acknowledgement, record: &Document, is_permitted: bool) -> Answer {
    if let Some(url) = &acknowledgement.redirect_url {
        let channel = uri_component(text(record, "channel").unwrap_or_default());
        let error = if is_permitted { String::new() } else { format!("&err={}", uri_component(ERROR)) };
        return Answer::Redirect(format!("{url}?channel={channel}{error}"));
    }
    let (status, text) = match is_permitted {
        true => (200, &acknowledgement.success_message),
        false => (403, &acknowledgement.failure_message),
    };
    Answer::Text { status, text: text.clone().unwrap_or_default() }
}
