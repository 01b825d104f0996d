//! OTLP 1.9 in Protocol Buffers: encoder of the few messages in a trace request.

use tocsin_pipeline::{Attribute, Span};

use super::otlp::{Resource, number_of};

/// Message under construction: fields in the order they are added.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    fn tag(&mut self, field: u64, kind: u64) {
        self.varint(field << 3 | kind);
    }

    fn number(mut self, field: u64, number: u64) -> Message {
        self.tag(field, 0);
        self.varint(number);
        self
    }

    fn fixed64(mut self, field: u64, number: u64) -> Message {
        self.tag(field, 1);
        self.0.extend_from_slice(&number.to_le_bytes());
        self
    }

    fn fixed32(mut self, field: u64, number: u32) -> Message {
        self.tag(field, 5);
        self.0.extend_from_slice(&number.to_le_bytes());
        self
    }

    fn bytes(mut self, field: u64, bytes: &[u8]) -> Message {
        self.tag(field, 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
        self
    }

    fn message(self, field: u64, message: &Message) -> Message {
        self.bytes(field, &message.0)
    }

    /// Adds an attribute: field 9 of a span, field 1 of a resource.
    fn attribute(self, field: u64, name: &str, value: &Message) -> Message {
        self.message(field, &Message::default().bytes(1, name.as_bytes()).message(2, value))
    }
}

fn text(text: &str) -> Message {
    Message::default().bytes(1, text.as_bytes())
}

impl Resource {
    /// Encodes a request body.
    pub fn protobuf(&self, spans: &[Span]) -> Vec<u8> {
        let resource =
            self.0.iter().fold(Message::default(), |encoded, (name, value)| encoded.attribute(1, name, &text(value)));
        let scope = Message::default().bytes(1, b"tocsin").bytes(2, env!("CARGO_PKG_VERSION").as_bytes());
        let scoped =
            spans.iter().fold(Message::default().message(1, &scope), |encoded, one| encoded.message(2, &span(one)));
        let spans = Message::default().message(1, &resource).message(2, &scoped);
        Message::default().message(1, &spans).0
    }
}

fn span(span: &Span) -> Message {
    let nanoseconds = |at: i64| u64::try_from(at.max(0)).unwrap_or(0).saturating_mul(1_000);
    let mut encoded = Message::default().bytes(1, &span.context.trace).bytes(2, &span.context.span);
    if !span.context.state.is_empty() {
        encoded = encoded.bytes(3, span.context.state.as_bytes());
    }
    if let Some(parent) = &span.parent {
        encoded = encoded.bytes(4, parent);
    }
    encoded = encoded
        .bytes(5, span.name.as_bytes())
        .number(6, number_of(span.kind))
        .fixed64(7, nanoseconds(span.start.0))
        // The wall clock can go back; a span cannot end before its start.
        .fixed64(8, nanoseconds(span.end.max(span.start).0));
    for (name, value) in &span.attributes {
        let value = match value {
            Attribute::Text(value) => text(value),
            Attribute::Number(number) => Message::default().number(3, *number as u64),
        };
        encoded = encoded.attribute(9, name, &value);
    }
    if let Some(why) = &span.failed {
        encoded = encoded.message(15, &Message::default().bytes(2, why.as_bytes()).number(3, 2));
    }
    encoded.fixed32(16, u32::from(span.context.flags))
}

#[cfg(test)]
mod tests {
    use tocsin_model::{time::Timestamp, trace_context::TraceContext};
    use tocsin_pipeline::SpanKind;

    use super::*;

    #[test]
    fn a_span_is_encoded_as_specified() {
        let context = TraceContext::read("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", Some("a=b"));
        let context = context.expect("a context");
        let span = Span {
            parent: context.parent(),
            context: context.at([1, 2, 3, 4, 5, 6, 7, 8]),
            name: "deliver mail".to_owned(),
            kind: SpanKind::Producer,
            start: Timestamp(1_700_000_000_000_001),
            end: Timestamp(1_700_000_000_000_000),
            attributes: vec![("n", Attribute::Number(300)), ("t", Attribute::Text("x".to_owned()))],
            failed: Some("no".to_owned()),
        };
        let encoded = super::span(&span);
        // As shown by `protoc --decode_raw`: 1: trace, 2: span, 3: state, 4: parent, 5: name, 6: kind, 7 and 8: times,
        // 9: attributes, 15: status, 16: flags.
        let expected = [
            &b"\x0a\x10\x4b\xf9\x2f\x35\x77\xb3\x4d\xa6\xa3\xce\x92\x9d\x0e\x0e\x47\x36"[..],
            b"\x12\x08\x01\x02\x03\x04\x05\x06\x07\x08\x1a\x03a=b\x22\x08\x00\xf0\x67\xaa\x0b\xa9\x02\xb7",
            b"\x2a\x0cdeliver mail\x30\x04",
            b"\x39",
            &1_700_000_000_000_001_000_u64.to_le_bytes(),
            b"\x41",
            &1_700_000_000_000_001_000_u64.to_le_bytes(),
            b"\x4a\x08\x0a\x01n\x12\x03\x18\xac\x02\x4a\x08\x0a\x01t\x12\x03\x0a\x01x",
            b"\x7a\x06\x12\x02no\x18\x02\x85\x01\x01\0\0\0",
        ];
        assert_eq!(encoded.0, expected.concat());
        // A request wraps the span in four envelopes.
        let body = Resource::new("tocsin", "abc", Vec::new()).protobuf(&[span]);
        assert!(body[0] == 0x0a && body.ends_with(&encoded.0));
    }
}
