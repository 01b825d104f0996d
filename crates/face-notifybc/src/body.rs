//! Request bodies: JSON, and forms with names in brackets.

use axum::{
    body::Body,
    http::{HeaderMap, header},
};
use futures_util::StreamExt;
use serde_json::Value;
use tocsin_notifybc::{query, record::Document};
use tocsin_service::notifybc::NotifybcError;

use crate::answer::ErrorAnswer;

/// Most bytes of a body.
pub(crate) const BODY_BYTES_MAX: usize = 1 << 20;
/// Most bytes of a body beyond the limit that are read before the answer.
const DISCARDED_BYTES_MAX: usize = 16 << 20;

/// Reads a body. One of another type than JSON or form counts as empty.
pub(crate) async fn read(headers: &HeaderMap, body: Body) -> Result<Document, ErrorAnswer> {
    if let Some(coding) = headers.get(header::CONTENT_ENCODING).filter(|coding| *coding != "identity") {
        return Err(ErrorAnswer::Encoding(String::from_utf8_lossy(coding.as_bytes()).to_lowercase()));
    }
    let bytes = collect(headers, body).await?;
    parse(headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default(), &bytes)
}

async fn collect(headers: &HeaderMap, body: Body) -> Result<Vec<u8>, ErrorAnswer> {
    let length = headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    let length = length.unwrap_or_default();
    let mut is_too_large = length > BODY_BYTES_MAX;
    let mut bytes = Vec::with_capacity(if is_too_large { 0 } else { length });
    let mut received = 0;
    let mut chunks = body.into_data_stream();
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(|error| ErrorAnswer::Syntax(format!("the body ended early: {error}")))?;
        received += chunk.len();
        is_too_large |= received > BODY_BYTES_MAX;
        match is_too_large {
            // A client that still sends would not read the answer.
            true if received > DISCARDED_BYTES_MAX => break,
            true => {}
            false => bytes.extend_from_slice(&chunk),
        }
    }
    if is_too_large { Err(ErrorAnswer::TooLarge) } else { Ok(bytes) }
}

fn parse(kind: &str, bytes: &[u8]) -> Result<Document, ErrorAnswer> {
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    match kind.as_str() {
        "application/x-www-form-urlencoded" => Ok(query::form_body(bytes)?),
        "application/json" => {
            if bytes.is_empty() {
                return Ok(Document::new());
            }
            match serde_json::from_slice(bytes) {
                Ok(Value::Object(document)) => Ok(document),
                Ok(Value::Array(_)) => {
                    Err(ErrorAnswer::Failed(NotifybcError::Invalid("the body must be an object".to_owned())))
                }
                Ok(other) => Err(ErrorAnswer::Syntax(format!("Unexpected token, {other} is not an object"))),
                Err(error) => Err(ErrorAnswer::Syntax(error.to_string())),
            }
        }
        _ => Ok(Document::new()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(kind: &str, body: &str) -> Option<Value> {
        parse(kind, body.as_bytes()).ok().map(Value::Object)
    }

    #[test]
    fn s4_1_bodies_are_json_or_forms() {
        let json = r#"{"a":{"b":[1]}}"#;
        assert_eq!(check("application/json; charset=utf-8", json), Some(json!({ "a": { "b": [1] } })));
        let form = "serviceName=a&data[b]=1&data[c][]=x";
        let expected = json!({ "serviceName": "a", "data": { "b": "1", "c": ["x"] } });
        assert_eq!(check("Application/x-www-form-urlencoded", form), Some(expected));
        assert_eq!(check("application/json", ""), Some(json!({})));
        assert_eq!(check("text/plain", "x"), Some(json!({})));
        for broken in ["{", "1", "nothing", "[1]"] {
            assert_eq!(check("application/json", broken), None, "{broken}");
        }
    }

    #[tokio::test]
    async fn s4_1_a_body_of_100_kb_is_read_and_one_beyond_the_limit_is_not() {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
        let of = |bytes: usize| Body::from(json!({ "a": "x".repeat(bytes) }).to_string());
        assert!(read(&headers, of(102_400)).await.is_ok());
        assert!(matches!(read(&headers, of(BODY_BYTES_MAX)).await, Err(ErrorAnswer::TooLarge)));
    }
}
