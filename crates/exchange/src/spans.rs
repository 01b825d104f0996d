//! Trace spans of messages (W3C Trace Context).
//!
//! A message stores its trace context: the span of its receipt, or of the attempt that it replies to. Messages that are
//! made from it inherit the context. If no spans are exported, the received context is forwarded unchanged.

use tocsin_connect::spans::{Attribute, Span, SpanKind, Spans, span_id};
use tocsin_delivery::redact;
use tocsin_model::{id::MessageId, time::Timestamp, trace_context::TraceContext};
use tocsin_store::spool::{LegOutcome, LegTransition, NewMessage, WaitingLeg};

/// Exports the spans of messages.
pub(crate) struct MessageSpans(pub Spans);

/// Number of each kind of span; the lower numbers belong to notifications.
enum Step {
    Receive = 11,
    Send = 12,
}

impl MessageSpans {
    /// Trace context of a message with these headers, whose names are in lower case. Without a received trace, a
    /// sampled share of messages begins one.
    pub fn trace_of_received(&self, headers: &[(String, String)], id: MessageId) -> Option<Box<TraceContext>> {
        let begin = || self.0.is_on().then(|| self.0.begin(fastrand::f64())).flatten();
        let received = received_context(headers).or_else(begin)?;
        let context = if self.0.is_sampled(&received) {
            received.at(span_id(&received, [Step::Receive as u64, id.0]))
        } else {
            received
        };
        Some(Box::new(context))
    }

    /// Exports the receive span of a stored message.
    pub fn received(&self, message: &NewMessage, headers: &[(String, String)], since: Timestamp, now: Timestamp) {
        let Some(context) = message.head.trace.as_deref().filter(|context| self.0.is_sampled(context)) else { return };
        self.0.report(Span {
            context: context.clone(),
            parent: received_context(headers).and_then(|received| received.parent()),
            name: format!("receive {}", message.port),
            kind: SpanKind::Consumer,
            start: since,
            end: now,
            attributes: vec![
                ("tocsin.exchange", Attribute::Text(message.exchange.to_string())),
                ("tocsin.port", Attribute::Text(message.port.to_string())),
                ("tocsin.message", Attribute::Text(message.id.to_string())),
            ],
            failed: message.suspended.as_deref().map(redact::text),
        });
    }

    /// Trace context of an attempt. The due time distinguishes attempts, including those that an operator starts.
    pub fn trace_of_attempt(&self, leg: &WaitingLeg) -> Option<Box<TraceContext>> {
        let context = leg.head.trace.as_deref()?;
        if !self.0.is_sampled(context) {
            return Some(Box::new(context.clone()));
        }
        let number = u64::from(leg.leg.number);
        let attempt = [u64::from(leg.leg.attempts), leg.leg.due_at.0.cast_unsigned()];
        let thing = [Step::Send as u64, leg.message.0, number, attempt[0], attempt[1]];
        Some(Box::new(context.at(span_id(context, thing))))
    }

    /// Exports the send span of an attempt, whatever its outcome.
    pub fn sent(&self, leg: &WaitingLeg, place: Option<&TraceContext>, since: Timestamp, outcome: &LegOutcome) {
        let Some(place) = place.filter(|place| self.0.is_sampled(place)) else { return };
        let (word, failed) = match &outcome.then {
            LegTransition::Done(_) => ("done", None),
            LegTransition::Await(_) => ("awaiting", None),
            LegTransition::Retry(_) => ("retry", Some(redact::text(&outcome.said))),
            LegTransition::Suspend(_) => ("suspended", Some(redact::text(&outcome.said))),
        };
        self.0.report(Span {
            context: place.clone(),
            parent: leg.head.trace.as_ref().and_then(|context| context.parent()),
            name: format!("send {}", leg.leg.port),
            kind: SpanKind::Producer,
            start: since,
            end: outcome.tried_at,
            attributes: vec![
                ("tocsin.exchange", Attribute::Text(outcome.exchange.to_string())),
                ("tocsin.port", Attribute::Text(leg.leg.port.to_string())),
                ("tocsin.message", Attribute::Text(leg.message.to_string())),
                ("tocsin.attempt", Attribute::Number(i64::from(leg.leg.attempts) + 1)),
                ("tocsin.outcome", Attribute::Text(word.to_owned())),
            ],
            failed,
        });
    }
}

fn received_context(headers: &[(String, String)]) -> Option<TraceContext> {
    TraceContext::of_headers(headers.iter().map(|(name, value)| (name.as_str(), value.as_str())))
}
