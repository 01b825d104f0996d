//! OTLP 1.9 in JSON: `ExportTraceServiceRequest`, ids as hexadecimal digits, 64-bit numbers as text.

use serde_json::{Value, json};
use tocsin_model::time::Timestamp;
use tocsin_pipeline::{Attribute, Span, SpanKind};

/// Resource: the attributes of the process that exports the spans.
pub struct Resource(pub(super) Vec<(String, String)>);

impl Resource {
    /// Attributes of this program and installation, followed by configured ones. A configured `service.name` replaces
    /// the default service name.
    pub fn new(service_name: &str, installation: &str, more: Vec<(String, String)>) -> Resource {
        let named = more.iter().any(|(name, _)| name == "service.name") && service_name == "tocsin";
        let own = [
            ("service.name", service_name),
            ("service.version", env!("CARGO_PKG_VERSION")),
            ("service.instance.id", installation),
        ];
        let own = own.into_iter().filter(|(name, _)| *name != "service.name" || !named);
        let mut all: Vec<(String, String)> = own.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        for (name, value) in more {
            if !all.iter().any(|(known, _)| *known == name) {
                all.push((name, value));
            }
        }
        Resource(all)
    }

    /// Encodes a request body.
    pub fn body(&self, spans: &[Span]) -> String {
        let attributes: Vec<Value> = self.0.iter().map(|(name, value)| text(name, value)).collect();
        let spans: Vec<Value> = spans.iter().map(span).collect();
        let scope = json!({"name": "tocsin", "version": env!("CARGO_PKG_VERSION")});
        let resource = json!({"attributes": attributes});
        json!({"resourceSpans": [{"resource": resource, "scopeSpans": [{"scope": scope, "spans": spans}]}]}).to_string()
    }
}

fn span(span: &Span) -> Value {
    let attributes: Vec<Value> = span.attributes.iter().map(|(name, value)| attribute(name, value)).collect();
    let mut encoded = json!({
        "traceId": hex::encode(span.context.trace),
        "spanId": hex::encode(span.context.span),
        "flags": span.context.flags,
        "name": span.name,
        "kind": number_of(span.kind),
        "startTimeUnixNano": nanoseconds(span.start),
        // The wall clock can go back; a span cannot end before its start.
        "endTimeUnixNano": nanoseconds(span.end.max(span.start)),
        "attributes": attributes,
    });
    if let Some(parent) = &span.parent {
        encoded["parentSpanId"] = hex::encode(parent).into();
    }
    if !span.context.state.is_empty() {
        encoded["traceState"] = (*span.context.state).into();
    }
    if let Some(why) = &span.failed {
        encoded["status"] = json!({"code": 2, "message": why});
    }
    encoded
}

/// Number of a span kind in the protocol.
pub(super) fn number_of(kind: SpanKind) -> u64 {
    match kind {
        SpanKind::Internal => 1,
        SpanKind::Producer => 4,
        SpanKind::Consumer => 5,
    }
}

fn nanoseconds(at: Timestamp) -> String {
    (i128::from(at.0) * 1_000).max(0).to_string()
}

fn attribute(name: &str, value: &Attribute) -> Value {
    match value {
        Attribute::Text(value) => text(name, value),
        Attribute::Number(number) => json!({"key": name, "value": {"intValue": number.to_string()}}),
    }
}

fn text(name: &str, value: &str) -> Value {
    json!({"key": name, "value": {"stringValue": value}})
}

#[cfg(test)]
mod tests {
    use tocsin_model::trace_context::TraceContext;

    use super::*;

    #[test]
    fn a_span_is_encoded_as_specified() {
        let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let context = TraceContext::read(parent, Some("a=b")).expect("a context");
        let span = Span {
            parent: context.parent(),
            context: context.at([1, 2, 3, 4, 5, 6, 7, 8]),
            name: "deliver mail".to_owned(),
            kind: SpanKind::Producer,
            start: Timestamp(1_700_000_000_000_001),
            end: Timestamp(1_700_000_000_000_000),
            attributes: vec![("tocsin.attempt", Attribute::Number(2))],
            failed: Some("no".to_owned()),
        };
        let body: Value =
            serde_json::from_str(&Resource::new("tocsin", "abc", Vec::new()).body(&[span])).expect("JSON");
        let resource = &body["resourceSpans"][0];
        assert_eq!(
            resource["resource"]["attributes"][0],
            json!({"key": "service.name", "value": {"stringValue": "tocsin"}})
        );
        assert_eq!(
            resource["scopeSpans"][0]["spans"][0],
            json!({
                "traceId": "4bf92f3577b34da6a3ce929d0e0e4736",
                "spanId": "0102030405060708",
                "parentSpanId": "00f067aa0ba902b7",
                "traceState": "a=b",
                "flags": 1,
                "name": "deliver mail",
                "kind": 4,
                "startTimeUnixNano": "1700000000000001000",
                "endTimeUnixNano": "1700000000000001000",
                "attributes": [{"key": "tocsin.attempt", "value": {"intValue": "2"}}],
                "status": {"code": 2, "message": "no"},
            })
        );
    }

    #[test]
    fn configured_attributes_are_part_of_the_resource() {
        let shown = |name: &str, more: &[(&str, &str)]| {
            let more = more.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
            let attributes = Resource::new(name, "abc", more).0;
            attributes.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
        };
        let version = env!("CARGO_PKG_VERSION");
        let rest = format!("service.version={version} service.instance.id=abc");
        assert_eq!(shown("tocsin", &[("a", "1")]), format!("service.name=tocsin {rest} a=1"));
        assert_eq!(shown("tocsin", &[("service.name", "bells")]), format!("{rest} service.name=bells"));
        assert_eq!(shown("mine", &[("service.name", "bells")]), format!("service.name=mine {rest}"));
    }
}
