//! Messages on their way: as submitted, and between the steps of a pipeline.

use std::{borrow::Cow, time::Duration};

use bytes::Bytes;
use tocsin_model::{
    charset::{self, Syntax},
    id::Name,
    trace_context::TraceContext,
    value::Value,
};

/// Maximum total bytes that a message may become at any step.
pub(crate) const BYTES_MAX: usize = 128 << 20;

/// Header that names the compression of the body.
pub(crate) const CONTENT_ENCODING: &str = "content-encoding";

/// A message as submitted.
#[derive(Debug, Clone, Default)]
pub struct IncomingMessage {
    /// The media type of the body; empty if unknown.
    pub content_type: String,
    /// Headers, names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Bytes,
    /// The idempotency key, by which a repetition is recognized.
    pub key: Option<String>,
    /// The API key of the sender, the only one that may read the reply; empty for other ways of receipt.
    pub sender: Box<str>,
    /// Maximum time for which the caller waits for the reply.
    pub wait: Option<Duration>,
}

/// A message between pipeline steps.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct PipelineMessage {
    pub content_type: String,
    /// Headers, names in lower case.
    pub headers: Vec<(String, String)>,
    /// Properties that steps have promoted.
    pub properties: Vec<(Name, Value)>,
    pub body: Bytes,
    /// The time of the signature, in seconds since 1970, and the signature of the body.
    pub signed: Option<(i64, String)>,
    /// Its trace context, which no step changes.
    pub trace: Option<Box<TraceContext>>,
}

/// Decodes the body as text, by its media type, its declaration or its byte-order mark.
pub(crate) fn decoded_body(message: &PipelineMessage, syntax: Syntax) -> Result<Cow<'_, str>, String> {
    let charset = charset::of_media_type(&message.content_type);
    let text =
        charset::decode(&message.body, syntax, charset.as_deref()).map_err(|error| format!("the body {error}"))?;
    match charset::first_invalid_xml_char(&text).filter(|_| matches!(syntax, Syntax::Xml)) {
        None => Ok(text),
        Some((_, character)) => Err(format!(
            "the body is not XML: it has the character U+{:04X}, which XML 1.0 does not allow",
            u32::from(character)
        )),
    }
}
