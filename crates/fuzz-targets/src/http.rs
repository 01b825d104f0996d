//! Input over HTTP: bodies, CloudEvents, header fields, SCIM, blocks of edits, cursors and tokens.

use bytes::Bytes;
use tocsin_delivery::TokenSigner;
use tocsin_face_http::fuzzing::{read_filter, read_patch};
use tocsin_model::{
    exact_json::{self, Exact},
    field::{FieldType, Fields},
    http_date, json, media_type,
    replica::read_edits,
    time::Timestamp,
    trace_context::TraceContext,
};
use tocsin_service::{events::read_cloud_events, page};
use tocsin_sync::fuzzing as sync;

fn fields() -> Fields {
    crate::fields(&[
        ("a", FieldType::String),
        ("b", FieldType::Number),
        ("c", FieldType::Integer),
        ("d", FieldType::Map),
        ("e", FieldType::List),
        ("f", FieldType::Timestamp),
        ("g", FieldType::Boolean),
    ])
}

/// JSON bodies: of an event class, and with exact numbers.
pub(crate) fn body(input: &[u8]) {
    let fields = fields();
    if let Ok(row) = fields.row_from_json(input) {
        let text = fields.to_json(&row);
        let again = fields.row_from_json(text.as_bytes()).unwrap_or_else(|problems| panic!("{text}: {problems:?}"));
        assert_eq!(fields.to_json(&again), text);
    }
    if let Ok(values) = json::check(input, json::VALUES_MAX) {
        assert!(values <= json::VALUES_MAX);
    }
    if let Ok(exact) = Exact::read(input) {
        let mut text = String::new();
        exact.write(&mut text);
        assert_eq!(Exact::read(text.as_bytes()).expect("what was written is JSON"), exact);
        // A JSON library reads the same members and numbers.
        let (one, other): (serde_json::Result<serde_json::Value>, _) =
            (serde_json::from_slice(input), serde_json::from_str(&text));
        assert_eq!(one.ok(), other.ok());
        let source = std::str::from_utf8(input).expect("JSON that was read is UTF-8");
        assert_eq!(exact_json::compact(source), text);
        let _ = exact_json::has_inexact_numbers(input);
    }
}

/// CloudEvents, single and in batches.
pub(crate) fn cloud_events(input: &[u8]) {
    let body = Bytes::copy_from_slice(input);
    for is_batch in [false, true] {
        if let Ok(events) = read_cloud_events(&body, is_batch) {
            assert!(is_batch || events.len() == 1);
        }
    }
}

/// Media types, dates, trace contexts.
pub(crate) fn header_fields(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let normal = media_type::normal(text);
    assert_eq!(media_type::normal(&normal), normal, "a normal form is its own normal form");
    assert_eq!(media_type::essence(&normal), media_type::essence(text));
    let _ = (media_type::is_json(text), media_type::is_xml(text), media_type::parameter(text, "charset"));
    let now = Timestamp::from_millis(1_795_000_000_000);
    let _ = http_date::parse(text, now);
    let (parent, state) = text.split_once('\n').map_or((text, None), |(parent, state)| (parent, Some(state)));
    if let Some(context) = TraceContext::read(parent, state) {
        let written = context.parent_text();
        assert_eq!(TraceContext::read(&written, None).map(|context| context.parent_text()), Some(written));
    }
}

/// Filters and changes of SCIM (RFC 7644).
pub(crate) fn scim(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let _ = read_filter(text);
    if let Ok(body) = serde_json::from_str(text) {
        let _ = read_patch(&body);
    }
}

/// Blocks of a device's edits: each non-empty line is one edit, or the block is refused.
pub(crate) fn edits(input: &[u8]) {
    if let Ok(edits) = read_edits(input) {
        let lines = input.split(|byte| *byte == b'\n').filter(|line| !line.trim_ascii().is_empty()).count();
        assert_eq!(edits.len(), lines);
    }
}

/// Cursors, links and return addresses: only what was signed is accepted.
pub(crate) fn cursors(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let _ = page::key_of::<String>(Some(text));
    let _ = page::key_of::<u64>(Some(text));
    assert!(text == sync::cursor() || !sync::is_accepted(text), "a cursor was forged: {text:?}");
    let token_signer = TokenSigner::new(&[7; 32]);
    if let Some(subscription) = token_signer.subscription(text) {
        assert_eq!(token_signer.token(subscription), text, "a token has one spelling");
    }
    assert!(token_signer.verify_inbox_pass(text).is_none(), "an inbox pass was forged: {text:?}");
    let now = Timestamp::from_millis(1_796_119_206_000);
    assert!(token_signer.verify_reference(text, now).is_err(), "a reference was forged: {text:?}");
}
