//! What is told of things that stand in a trace, for whoever follows them through many systems.
//!
//! The id of a span follows from its trace and from what it is about. So a step that a crash repeats tells the same span
//! again, and nothing has to be remembered from one step to the next but a place in the trace. Nobody waits for those who
//! listen: what they have no room for is counted and gone.

use std::sync::Arc;

use tocsin_model::{time::Timestamp, trace_context::TraceContext};
use tokio::sync::mpsc;

/// Something that took a time, as a part of a trace.
#[derive(Debug, Clone, PartialEq)]
pub struct Span {
    /// The trace, and the id of this span in it.
    pub context: TraceContext,
    /// The span that led to it; none where the trace begins.
    pub parent: Option<[u8; 8]>,
    /// What was done to what.
    pub name: String,
    /// Who else had a part in it.
    pub kind: SpanKind,
    /// When it began.
    pub start: Timestamp,
    /// When it was over.
    pub end: Timestamp,
    /// What is to be known of it.
    pub attributes: Vec<(&'static str, Attribute)>,
    /// Why it failed, if it did.
    pub failed: Option<String>,
}

/// Who else had a part in a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpanKind {
    /// Nobody.
    Internal,
    /// It came from outside.
    Consumer,
    /// It went outside.
    Producer,
}

/// Something to know of a span.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Attribute {
    /// A text.
    Text(String),
    /// A number.
    Number(i64),
}

/// Takes the spans of all steps. By default there is nobody who wants them.
#[derive(Clone, Default)]
pub struct Spans(Option<Arc<Sink>>);

struct Sink {
    sender: mpsc::Sender<Span>,
    sample_ratio: f64,
}

impl Spans {
    /// Spans for one listener who has room for so many. `sample_ratio` of what comes without a trace begins one.
    pub fn new(room: usize, sample_ratio: f64) -> (Spans, mpsc::Receiver<Span>) {
        let (sender, receiver) = mpsc::channel(room.max(1));
        (Spans(Some(Arc::new(Sink { sender, sample_ratio }))), receiver)
    }

    /// Whether anybody wants them.
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Whether spans are told of what stands there.
    pub fn tells_of(&self, context: &TraceContext) -> bool {
        self.is_on() && context.is_sampled()
    }

    /// Begins a trace for what came without one, if it is among what is sampled; `luck` decides, from 0 up to 1.
    pub fn begin(&self, luck: f64) -> Option<TraceContext> {
        self.0.as_ref().filter(|sink| luck < sink.sample_ratio)?;
        let trace = [fastrand::u64(1..), fastrand::u64(..)].map(u64::to_be_bytes).concat();
        Some(TraceContext::begin(trace.try_into().expect("two numbers of eight bytes")))
    }

    /// Tells of one, unless the listener has no room.
    pub fn tell(&self, span: Span) {
        if let Some(sink) = &self.0
            && sink.sender.try_send(span).is_err()
        {
            metrics::counter!("telemetry_spans_total", "result" => "dropped").increment(1);
        }
    }
}

/// The span of a thing in a trace, behind that from which it comes: the same each time for the same thing, and never zero.
pub fn span_id<const N: usize>(context: &TraceContext, thing: [u64; N]) -> [u8; 8] {
    let halves = context.trace.as_chunks::<8>().0.iter().map(|half| u64::from_be_bytes(*half));
    let parts = halves.chain([u64::from_be_bytes(context.span)]).chain(thing);
    // SplitMix64 over each: what differs in one bit differs in half of them.
    let mixed = parts.fold(0u64, |hash, part| {
        let mut hash = (hash ^ part).wrapping_add(0x9e37_79b9_7f4a_7c15);
        hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        hash ^ (hash >> 31)
    });
    mixed.max(1).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn spans_of_different_things_differ_and_those_of_the_same_do_not() {
        let one = TraceContext::begin([3; 16]);
        let other = TraceContext::begin([4; 16]);
        let mut seen = HashSet::new();
        for context in [&one, &other, &one.at([1; 8])] {
            for step in [1, 2, 3] {
                for (batch, ordinal, attempt) in [(1, 0, 0), (2, 0, 0), (1, 1, 0), (1, 0, 1), (1, 1, 1)] {
                    let id = span_id(context, [step, batch, ordinal, attempt]);
                    assert_eq!(id, span_id(context, [step, batch, ordinal, attempt]));
                    assert!(seen.insert(id));
                }
            }
        }
    }
}
