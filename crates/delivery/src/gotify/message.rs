use serde::Serialize;
use serde_json::{Map, Value, json};
use tocsin_model::delivery_policy::Priority;

use super::options::GotifyOptions;
use crate::channel::Message;

/// Name of the extra with the id and the class of a notification.
const OWN_EXTRA: &str = "tocsin::message";

/// The body of a request, as the API documents it.
#[derive(Serialize)]
struct Body<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    title: Option<&'a str>,
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    priority: Option<u8>,
    extras: Map<String, Value>,
}

/// The JSON of a message; the error says why there is none.
pub(super) fn body(message: &Message, options: &GotifyOptions) -> Result<Vec<u8>, String> {
    let content = &message.content;
    let is_given = |part: &&str| !part.trim().is_empty();
    let title = content.subject.as_deref().filter(is_given);
    let text = content.text.as_deref().filter(is_given).or(title).ok_or("the content has no text")?;
    let priority = match message.priority {
        Priority::Urgent => Some(10),
        Priority::High => Some(8),
        Priority::Normal => options.priority,
        Priority::Low => Some(2),
    };
    let mut extras = Map::new();
    if options.markdown {
        extras.insert("client::display".into(), json!({ "contentType": "text/markdown" }));
    }
    extras.extend(options.extras.clone());
    if let Some(made) = &content.json {
        let made: Map<String, Value> =
            serde_json::from_str(made).map_err(|error| format!("the JSON is not an object with extras: {error}"))?;
        extras.extend(made);
    }
    let own = json!({ "id": message.message_id, "type": message.facts.class.as_str() });
    extras.insert(OWN_EXTRA.into(), own);
    Ok(serde_json::to_vec(&Body { title, message: text, priority, extras }).expect("a message becomes JSON in memory"))
}
