//! Edits of suspended messages by an operator. The original version is kept.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value as Json;
use tocsin_model::{
    charset::{self, Syntax},
    exact_json::Exact,
    id::{MessageId, Name},
    media_type,
    merge_patch::TooDeep,
    value::Value,
};
use tocsin_store::{
    error::StoreError,
    spool::{EditedMessage, Head, LegState, MessageEdit, MessageStatus, NewLeg, OriginalMessage, StoredMessage},
};

use crate::{
    error::OperateError,
    message::PipelineMessage,
    operate::{MessageSelection, Operations},
    promote,
    running::RunningExchange,
};

/// The number of messages for which the reason for not editing is returned.
const REASONS_MAX: usize = 100;

/// Reason why a message with a waiting leg is not edited.
const STILL_WAITS: &str = "it still waits to be sent to another port as it was";

/// Maximum nesting of a patch, equal to that of a JSON request.
const PATCH_DEPTH_MAX: usize = 128;

/// Changes to apply to messages.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Edit {
    /// Replacement body.
    pub body: Option<Bytes>,
    /// A merge patch (RFC 7396) for a JSON body. Members that it does not name keep their exact text, including the
    /// digits of numbers.
    pub patch: Option<Exact>,
    /// Replacement media type.
    pub content_type: Option<String>,
    /// Property values that override the promoted ones; null removes a property.
    pub properties: Vec<(Name, Json)>,
}

/// Result of an edit.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EditSummary {
    /// Messages that were edited.
    pub messages: Vec<MessageId>,
    /// Messages that were not edited, with the reason; the first hundred.
    pub unchanged: Vec<(MessageId, String)>,
}

impl Operations {
    /// Changes suspended messages. They stay suspended until they are resumed.
    ///
    /// # Errors
    /// The store is unavailable; earlier changes remain.
    pub async fn edit(&self, selection: &MessageSelection, edit: &Edit, by: &str) -> Result<EditSummary, OperateError> {
        let mut edited = EditSummary::default();
        let mut before = None;
        while let Some((found, last)) = self.step(selection, MessageStatus::Suspended, before).await? {
            before = Some(last);
            for stored in found {
                match self.edit_one(&stored, edit, by).await? {
                    Ok(()) => edited.messages.push(stored.id),
                    Err(why) if edited.unchanged.len() < REASONS_MAX => edited.unchanged.push((stored.id, why)),
                    Err(_) => {}
                }
            }
        }
        Ok(edited)
    }

    /// Checks an edit of suspended messages, and changes nothing. Returns the messages that would be edited.
    ///
    /// # Errors
    /// The store is unavailable.
    pub async fn check_edit(&self, selection: &MessageSelection, edit: &Edit) -> Result<EditSummary, OperateError> {
        let mut checked = EditSummary::default();
        let mut before = None;
        while let Some((found, last)) = self.step(selection, MessageStatus::Suspended, before).await? {
            before = Some(last);
            for stored in found {
                let checked_edit = match stored.legs.iter().any(|leg| leg.state == LegState::Waiting) {
                    true => Err(STILL_WAITS.to_owned()),
                    false => self.edited(&stored, edit, "").await?.map(|_| ()),
                };
                match checked_edit {
                    Ok(()) => checked.messages.push(stored.id),
                    Err(why) if checked.unchanged.len() < REASONS_MAX => checked.unchanged.push((stored.id, why)),
                    Err(_) => {}
                }
            }
        }
        Ok(checked)
    }

    async fn edit_one(&self, stored: &StoredMessage, edit: &Edit, by: &str) -> Result<Result<(), String>, StoreError> {
        let (running, edited) = match self.edited(stored, edit, by).await? {
            Ok(edited) => edited,
            Err(why) => return Ok(Err(why)),
        };
        self.core.index_properties(&running, stored.id, &edited.head, stored.accepted_at);
        Ok(match self.core.parts.spool.edit(stored.id, edited).await? {
            MessageEdit::Done => Ok(()),
            MessageEdit::NotSuspended => Err("it is not suspended any more".to_owned()),
            MessageEdit::Waits => Err(STILL_WAITS.to_owned()),
        })
    }

    /// A message with its changes, or why it cannot be changed.
    async fn edited(
        &self,
        stored: &StoredMessage,
        edit: &Edit,
        by: &str,
    ) -> Result<Result<(Arc<RunningExchange>, EditedMessage), String>, StoreError> {
        let Some(running) = self.core.find(&stored.exchange) else {
            return Ok(Err(format!("the exchange `{}` does not run", stored.exchange)));
        };
        if stored.head.raw && !edit.properties.is_empty() {
            let why = "its properties are read anew when it is resumed, since the steps of its port did not get to their end; \
                       edit its body instead";
            return Ok(Err(why.to_owned()));
        }
        if let Some(kind) = edit.content_type.as_ref().filter(|kind| !media_type::is_valid(kind)) {
            return Ok(Err(format!("`{}` is not a media type, such as `application/json`", kind.escape_debug())));
        }
        let Some(before) = self.core.parts.spool.body(stored.id).await? else {
            return Ok(Err("it is gone".to_owned()));
        };
        let content_type = edit.content_type.as_ref().unwrap_or(&stored.head.content_type);
        let body = match changed(&before, content_type, edit) {
            Ok(body) => body,
            Err(why) => return Ok(Err(why)),
        };
        // A property can change an address, a header or a step, so it counts as another version.
        let is_other = body != before
            || !edit.properties.is_empty()
            || edit.content_type.as_ref().is_some_and(|new| *new != stored.head.content_type);
        let message = PipelineMessage {
            content_type: match edit.patch {
                Some(_) => in_utf8(content_type),
                None => content_type.clone(),
            },
            headers: stored.head.headers.clone(),
            body,
            trace: stored.head.trace.clone(),
            ..PipelineMessage::default()
        };
        let old = PipelineMessage { content_type: stored.head.content_type.clone(), body: before, ..message.clone() };
        let head = promote::head(&running.compiled.schema, &message);
        let properties = match stored.head.raw {
            true => head.properties.clone(),
            false => promote::promote_again(&running.compiled.schema, &stored.port, (&stored.head, &old), &message),
        };
        let head = Head { properties, ..head };
        let head = match with_properties(&running.compiled.definition.properties, head, &stored.head, edit) {
            Ok(head) => Head { edits: stored.head.edits + u32::from(is_other), ..head },
            Err(why) => return Ok(Err(why)),
        };
        let legs = match suspended_legs(&running, stored, &head) {
            Ok(legs) => legs,
            Err(why) => return Ok(Err(why)),
        };
        let (by, at, change) = (by.to_owned(), self.core.now(), described(edit));
        Ok(Ok((running, EditedMessage { head, body: message.body, legs, is_other, change, by, at })))
    }

    /// The original of an edited message; `None` if it was not edited.
    ///
    /// # Errors
    /// The store is unavailable.
    pub async fn original(&self, id: MessageId) -> Result<Option<OriginalMessage>, StoreError> {
        self.core.parts.spool.original(id).await
    }
}

/// The media type of a patched body, which is UTF-8.
fn in_utf8(content_type: &str) -> String {
    match charset::of_media_type(content_type) {
        Some(named) if !named.eq_ignore_ascii_case("utf-8") => charset::with_charset(content_type, "utf-8"),
        _ => content_type.to_owned(),
    }
}

fn changed(body: &Bytes, content_type: &str, edit: &Edit) -> Result<Bytes, String> {
    let body = edit.body.as_ref().unwrap_or(body);
    let Some(patch) = &edit.patch else { return Ok(body.clone()) };
    let named = charset::of_media_type(content_type);
    let text = charset::decode(body, Syntax::Json, named.as_deref()).map_err(|error| format!("its body {error}"))?;
    let mut json = Exact::read(text.as_bytes()).map_err(|error| format!("its body is not JSON: {error}"))?;
    json.merge(patch, PATCH_DEPTH_MAX).map_err(|TooDeep| "the patch is nested too deeply")?;
    Ok(json.to_string().into())
}

/// The changes of an edit, for the history of the message.
fn described(edit: &Edit) -> String {
    let Edit { body, patch, content_type, properties } = edit;
    let mut parts: Vec<String> = Vec::new();
    parts.extend(body.as_ref().map(|_| "another body".to_owned()));
    parts.extend(patch.as_ref().map(|_| "a merge patch".to_owned()));
    parts.extend(content_type.as_ref().map(|kind| format!("media type `{kind}`")));
    parts.extend(properties.iter().map(|(name, _)| format!("property `{name}`")));
    parts.join(", ")
}

/// The suspended legs of a message with keys that are derived from its new properties: the ordering lane and the
/// correlation key. A leg keeps its send port; only a message without legs is routed again.
fn suspended_legs(
    running: &RunningExchange,
    stored: &StoredMessage,
    head: &Head,
) -> Result<Vec<(u32, NewLeg)>, String> {
    let suspended = stored.legs.iter().filter(|leg| leg.state == LegState::Suspended);
    let ports = suspended.filter_map(|leg| Some((leg.number, running.send_ports.get(&leg.port)?)));
    ports.map(|(number, port)| Ok((number, port.new_leg(head)?))).collect()
}

/// Applies the properties that the operator sets.
fn with_properties(
    declared: &[tocsin_model::exchange::Property],
    mut head: Head,
    before: &Head,
    edit: &Edit,
) -> Result<Head, String> {
    for (name, value) in &edit.properties {
        let property = declared.iter().find(|property| property.name == *name);
        let property = property.ok_or_else(|| format!("its exchange has no property `{name}`"))?;
        head.properties.retain(|(known, _)| known != name);
        if !value.is_null() {
            let accepted = property.kind.accept(Value::from(value.clone()));
            head.properties.push((name.clone(), accepted.map_err(|why| format!("the property `{name}` {why}"))?));
        }
    }
    Ok(Head { hops: before.hops, raw: before.raw, ..head })
}
