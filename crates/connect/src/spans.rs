//! Trace spans, for distributed tracing.
//!
//! A span's id is derived from its trace and its subject. A step that is repeated after a crash reports the same span
//! again, and steps only pass on the trace position. Reporting never waits: spans that exceed the listener's buffer
//! are counted and dropped.

use std::sync::Arc;

use tocsin_model::{time::Timestamp, trace_context::TraceContext};
use tokio::sync::mpsc;

/// A timed operation within a trace.
#[derive(Debug, Clone, PartialEq)]
pub struct Span {
    /// The trace, and the id of this span in it.
    pub context: TraceContext,
    /// The parent span; none for the root.
    pub parent: Option<[u8; 8]>,
    /// Name of the operation.
    pub name: String,
    /// Relation to other systems.
    pub kind: SpanKind,
    /// Start time.
    pub start: Timestamp,
    /// End time.
    pub end: Timestamp,
    /// Attributes of the operation.
    pub attributes: Vec<(&'static str, Attribute)>,
    /// The error, if it failed.
    pub failed: Option<String>,
}

/// Relation of a span to other systems.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpanKind {
    /// Inside this system.
    Internal,
    /// Received from another system.
    Consumer,
    /// Sent to another system.
    Producer,
}

/// Value of a span's attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Attribute {
    /// A text.
    Text(String),
    /// A number.
    Number(i64),
}

/// Collector of spans. By default it discards them.
#[derive(Clone, Default)]
pub struct Spans(Option<Arc<Sink>>);

struct Sink {
    sender: mpsc::Sender<Span>,
    sample_ratio: f64,
}

impl Spans {
    /// A collector and its receiver with a buffer of `room` spans. `sample_ratio` of the work without a trace begins
    /// one.
    pub fn new(room: usize, sample_ratio: f64) -> (Spans, mpsc::Receiver<Span>) {
        let (sender, receiver) = mpsc::channel(room.max(1));
        (Spans(Some(Arc::new(Sink { sender, sample_ratio }))), receiver)
    }

    /// Whether spans are collected.
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Whether spans of this trace are collected.
    pub fn is_sampled(&self, context: &TraceContext) -> bool {
        self.is_on() && context.is_sampled()
    }

    /// Begins a trace for work without one, if sampled; `sample`, from 0 up to 1, decides.
    pub fn begin(&self, sample: f64) -> Option<TraceContext> {
        self.0.as_ref().filter(|sink| sample < sink.sample_ratio)?;
        let trace = [fastrand::u64(1..), fastrand::u64(..)].map(u64::to_be_bytes).concat();
        Some(TraceContext::begin(trace.try_into().expect("two numbers of eight bytes")))
    }

    /// Reports a span, unless the buffer is full.
    pub fn report(&self, span: Span) {
        if let Some(sink) = &self.0
            && sink.sender.try_send(span).is_err()
        {
            metrics::counter!("tocsin_telemetry_spans_total", "result" => "dropped").increment(1);
        }
    }
}

/// Id of a span, derived from its trace and subject: the same each time for the same subject, and never zero.
pub fn span_id<const N: usize>(context: &TraceContext, thing: [u64; N]) -> [u8; 8] {
    let halves = context.trace.as_chunks::<8>().0.iter().map(|half| u64::from_be_bytes(*half));
    let parts = halves.chain([u64::from_be_bytes(context.span)]).chain(thing);
    // SplitMix64 over each: a difference in one bit changes half of the bits.
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
