//! Content of an inbox item. Links are taken from the data: `link`, and `actions` with a label and a link each. A
//! value that is not a link of the web or of the application stays plain data, because a page would follow it.

use serde_json::{Map, Value};
use tocsin_model::{
    id::Name,
    inbox::{ACTIONS_MAX, Action, InboxContent, Wording, is_link},
};

use crate::channel::Message;

/// Content of the item for this message. Its data are the JSON object made by its template, else the fields of the
/// notification.
pub(super) fn content(message: &Message, channel: &Name) -> InboxContent {
    let made = message.content.json.as_deref().and_then(|json| serde_json::from_str(json).ok());
    let mut data: Map<String, Value> = made.unwrap_or_else(|| (**message.facts.fields).clone());
    let link = data.get("link").and_then(Value::as_str).filter(|text| is_link(text)).map(str::to_owned);
    if link.is_some() {
        data.shift_remove("link");
    }
    let actions: Option<Vec<Action>> =
        data.get("actions").and_then(|actions| serde_json::from_value(actions.clone()).ok());
    let actions = actions.filter(|actions| actions.len() <= ACTIONS_MAX && actions.iter().all(Action::is_fair));
    if actions.is_some() {
        data.shift_remove("actions");
    }
    let content = &message.content;
    InboxContent {
        application: message.facts.application.clone(),
        class: message.facts.class.clone(),
        channel: Some(channel.clone()),
        event: message.facts.event,
        wording: Wording {
            subject: content.subject.clone(),
            text: content.text.clone(),
            html: content.html.clone(),
            data,
            link,
            actions: actions.unwrap_or_default(),
        },
        translations: Default::default(),
    }
}
