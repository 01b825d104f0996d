//! What is told of messages that stand in a trace which runs through many systems.
//!
//! A message keeps the place that leads to it: behind the span of its receipt, or that of the attempt which it answers. What
//! is made of it has the same place. Where nobody wants spans, what came in goes out unchanged.

use tocsin_delivery::{
    redact,
    spans::{Attribute, Span, SpanKind, Spans, span_id},
};
use tocsin_model::{id::MessageId, time::Timestamp, trace_context::TraceContext};
use tocsin_store::spool::{LegOutcome, NewMessage, Then, WaitingLeg};

/// Tells of messages.
pub(crate) struct MessageSpans(pub Spans);

/// What spans are about; the first numbers are those of notifications.
enum Step {
    Receive = 11,
    Send = 12,
}

impl MessageSpans {
    /// Where a message stands that came with these headers, whose names are in lower case. Of those without a trace some
    /// begin one.
    pub fn enter(&self, headers: &[(String, String)], id: MessageId) -> Option<Box<TraceContext>> {
        let begin = || self.0.is_on().then(|| self.0.begin(fastrand::f64())).flatten();
        let came = came_with(headers).or_else(begin)?;
        let stands = if self.0.tells_of(&came) { came.at(span_id(&came, [Step::Receive as u64, id.0])) } else { came };
        Some(Box::new(stands))
    }

    /// A message is stored that came with these headers.
    pub fn received(&self, message: &NewMessage, headers: &[(String, String)], since: Timestamp, now: Timestamp) {
        let Some(stands) = message.head.trace.as_deref().filter(|stands| self.0.tells_of(stands)) else { return };
        self.0.tell(Span {
            context: stands.clone(),
            parent: came_with(headers).and_then(|came| came.parent()),
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

    /// Where what is sent now stands. When it is due makes one attempt differ from the others, whoever asks for them.
    pub fn leave(&self, leg: &WaitingLeg) -> Option<Box<TraceContext>> {
        let stands = leg.head.trace.as_deref()?;
        if !self.0.tells_of(stands) {
            return Some(Box::new(stands.clone()));
        }
        let number = u64::from(leg.leg.number);
        let attempt = [u64::from(leg.leg.attempts), leg.leg.due_at.0.cast_unsigned()];
        let thing = [Step::Send as u64, leg.message.0, number, attempt[0], attempt[1]];
        Some(Box::new(stands.at(span_id(stands, thing))))
    }

    /// A far side has answered what left from there, or has not, or nothing left.
    pub fn sent(&self, leg: &WaitingLeg, place: Option<&TraceContext>, since: Timestamp, outcome: &LegOutcome) {
        let Some(place) = place.filter(|place| self.0.tells_of(place)) else { return };
        let (word, failed) = match &outcome.then {
            Then::Done(_) => ("done", None),
            Then::Await(_) => ("awaiting", None),
            Then::Retry(_) => ("retry", Some(redact::text(&outcome.said))),
            Then::Suspend(_) => ("suspended", Some(redact::text(&outcome.said))),
        };
        self.0.tell(Span {
            context: place.clone(),
            parent: leg.head.trace.as_ref().and_then(|stands| stands.parent()),
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

fn came_with(headers: &[(String, String)]) -> Option<TraceContext> {
    TraceContext::of_headers(headers.iter().map(|(name, value)| (name.as_str(), value.as_str())))
}
