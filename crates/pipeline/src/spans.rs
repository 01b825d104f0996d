//! What the steps tell of events that stand in a trace, for whoever follows them through many systems.
//!
//! The id of a span follows from its trace and from what it is about. So a step that a crash repeats tells the same span
//! again, and nothing has to be remembered from one step to the next but the place where the event came in. Nobody waits
//! for those who listen: what they have no room for is counted and gone.

use std::sync::Arc;

use tocsin_delivery::{Answer, Place};
use tocsin_model::{
    event::{EventBatch, PackedEvents},
    id::{EventBatchId, Name},
    receipt::Disposition,
    time::Timestamp,
    trace_context::{TraceContext, Traces},
};
use tokio::sync::mpsc;

use crate::{load_work::Loaded, redact, render::Member};

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
    /// Spans for one listener who has room for so many. `sample_ratio` of the events that came without a trace begin one.
    pub fn new(room: usize, sample_ratio: f64) -> (Spans, mpsc::Receiver<Span>) {
        let (sender, receiver) = mpsc::channel(room.max(1));
        (Spans(Some(Arc::new(Sink { sender, sample_ratio }))), receiver)
    }

    /// Whether anybody wants them.
    pub(crate) fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Begins a trace for events that came without one, if they are among those that are sampled; `luck` decides, from 0
    /// up to 1.
    pub(crate) fn begin(&self, events: PackedEvents, luck: f64) -> PackedEvents {
        match &self.0 {
            Some(sink) if events.traces().is_empty() && luck < sink.sample_ratio => {
                let trace = [fastrand::u64(1..), fastrand::u64(..)].map(u64::to_be_bytes).concat();
                let trace = trace.try_into().expect("two numbers of eight bytes");
                events.with_traces(Traces::of_all(TraceContext::begin(trace)))
            }
            _ => events,
        }
    }

    /// Events were accepted.
    pub(crate) fn accepted(&self, batch: &Accepted<'_>) {
        self.of_batch(Step::Accept, batch, |context, _| context.parent(), batch.received_at, batch.accepted_at);
    }

    /// Events were matched.
    pub(crate) fn matched(&self, batch: &EventBatch, at: Timestamp) {
        let (id, from) = (batch.id, batch.accepted_at);
        let parent = |context: &TraceContext, first| Some(span_id(context, Step::Accept, id.0, first, 0));
        self.of_batch(Step::Match, &Accepted::from(batch), parent, from, at);
    }

    fn of_batch(
        &self,
        step: Step,
        batch: &Accepted<'_>,
        parent: impl Fn(&TraceContext, u32) -> Option<[u8; 8]>,
        start: Timestamp,
        end: Timestamp,
    ) {
        if !self.is_on() {
            return;
        }
        for (first, context) in batch.events.traces().iter().filter(|(_, context)| context.is_sampled()) {
            self.tell(Span {
                context: context.at(span_id(context, step, batch.id.0, first, 0)),
                parent: parent(context, first),
                name: format!("{} {}", step.word(), batch.class),
                kind: if matches!(step, Step::Accept) { SpanKind::Consumer } else { SpanKind::Internal },
                start,
                end,
                attributes: vec![
                    ("tocsin.application", Attribute::Text(batch.application.to_string())),
                    ("tocsin.event_class", Attribute::Text(batch.class.to_string())),
                    ("tocsin.source", Attribute::Text(batch.source.to_string())),
                    ("tocsin.event_batch", Attribute::Text(batch.id.to_string())),
                    ("tocsin.events", Attribute::Number(i64::from(batch.events.count()))),
                ],
                failed: None,
            });
        }
    }

    /// Where a message stands that tells of these: in the trace of their events, if that is one.
    pub(crate) fn place(&self, members: &[Member<'_>]) -> Option<Place> {
        let Member { loaded, ordinal } = members[0];
        let (event, first, context) = loaded.trace(ordinal)?;
        let is_same = |member: &Member<'_>| {
            member.loaded.trace(member.ordinal).is_some_and(|(_, _, other)| other.trace == context.trace)
        };
        if !members.iter().all(is_same) {
            return None;
        }
        let of = loaded.id(ordinal);
        if !self.is_on() || !context.is_sampled() {
            // Who tells no spans passes on what it got (W3C, 3.4), and names no span that nobody knows.
            return context.parent().map(|_| Place { context: context.clone(), parent: None, of, attempt: 0 });
        }
        let attempt = loaded.attempts + 1;
        let span = span_id(context, Step::Deliver, of.batch.0, of.ordinal, attempt);
        let parent = span_id(context, Step::Match, event.0, first, 0);
        Some(Place { context: context.at(span), parent: Some(parent), of, attempt })
    }

    /// A far side has answered.
    pub(crate) fn delivered(&self, application: &Name, answer: &Answer) {
        let Some(Place { context, parent: Some(parent), of, attempt }) = &answer.place else { return };
        // A message to several has one span, however many answers.
        if !self.is_on() || answer.id != *of {
            return;
        }
        let (outcome, failed) = match &answer.disposition {
            Disposition::Delivered { .. } => ("delivered", None),
            Disposition::Deferred { reason, .. } => ("deferred", Some(redact::text(&reason.text))),
            Disposition::Refused { reason } => ("refused", Some(redact::text(&reason.text))),
        };
        self.tell(Span {
            context: context.clone(),
            parent: Some(*parent),
            name: format!("{} {}", Step::Deliver.word(), answer.channel),
            kind: SpanKind::Producer,
            start: answer.sent_at,
            end: answer.answered_at,
            attributes: vec![
                ("tocsin.application", Attribute::Text(application.to_string())),
                ("tocsin.notification", Attribute::Text(answer.id.to_string())),
                ("tocsin.channel", Attribute::Text(answer.channel.to_string())),
                ("tocsin.attempt", Attribute::Number(i64::from(*attempt))),
                ("tocsin.outcome", Attribute::Text(outcome.to_owned())),
            ],
            failed,
        });
    }

    fn tell(&self, span: Span) {
        if let Some(sink) = &self.0
            && sink.sender.try_send(span).is_err()
        {
            metrics::counter!("telemetry_spans_total", "result" => "dropped").increment(1);
        }
    }
}

/// What is told of a batch when it is accepted.
pub(crate) struct Accepted<'b> {
    pub id: EventBatchId,
    pub application: &'b Name,
    pub class: &'b Name,
    pub source: &'b Name,
    pub events: &'b PackedEvents,
    pub received_at: Timestamp,
    pub accepted_at: Timestamp,
}

impl<'b> From<&'b EventBatch> for Accepted<'b> {
    fn from(batch: &'b EventBatch) -> Self {
        let EventBatch { id, application, class, source, events, received_at, accepted_at, .. } = batch;
        let (id, received_at, accepted_at) = (*id, *received_at, *accepted_at);
        Accepted { id, application, class, source, events, received_at, accepted_at }
    }
}

#[derive(Clone, Copy)]
enum Step {
    Accept = 1,
    Match = 2,
    Deliver = 3,
}

impl Step {
    fn word(self) -> &'static str {
        match self {
            Step::Accept => "accept",
            Step::Match => "match",
            Step::Deliver => "deliver",
        }
    }
}

/// The span of a step in a trace: the same each time for the same thing, and never zero.
fn span_id(context: &TraceContext, step: Step, batch: u64, ordinal: u32, attempt: u32) -> [u8; 8] {
    let halves = context.trace.as_chunks::<8>().0.iter().map(|half| u64::from_be_bytes(*half));
    let parts = halves.chain([u64::from_be_bytes(context.span), step as u64, batch, ordinal.into(), attempt.into()]);
    // SplitMix64 over each: what differs in one bit differs in half of them.
    let mixed = parts.fold(0u64, |hash, part| {
        let mut hash = (hash ^ part).wrapping_add(0x9e37_79b9_7f4a_7c15);
        hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        hash ^ (hash >> 31)
    });
    mixed.max(1).to_be_bytes()
}

impl Loaded {
    /// The trace of the event that a notification tells of: its batch, the first event of it that shares the place, and the
    /// place.
    fn trace(&self, ordinal: u32) -> Option<(EventBatchId, u32, &TraceContext)> {
        let (first, context) = self.event(ordinal).ok()?.trace.as_ref()?;
        Some((self.event_of[ordinal as usize].batch, *first, context))
    }
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
            for step in [Step::Accept, Step::Match, Step::Deliver] {
                for (batch, ordinal, attempt) in [(1, 0, 0), (2, 0, 0), (1, 1, 0), (1, 0, 1), (1, 1, 1)] {
                    let id = span_id(context, step, batch, ordinal, attempt);
                    assert_eq!(id, span_id(context, step, batch, ordinal, attempt));
                    assert!(seen.insert(id));
                }
            }
        }
    }

    #[test]
    fn who_has_no_room_loses_spans_and_waits_for_nobody() {
        let (spans, mut listener) = Spans::new(2, 1.0);
        let batch = |id| {
            let events = spans.begin(PackedEvents::from_parts(1, Default::default()), 0.5);
            let name: Name = "x".parse().expect("a name");
            let (received_at, accepted_at) = (Timestamp(1), Timestamp(2));
            let (application, class, source) = (&name, &name, &name);
            let id = EventBatchId(id);
            spans.accepted(&Accepted { id, application, class, source, events: &events, received_at, accepted_at });
        };
        (1..=5).for_each(batch);
        let told: Vec<Span> = std::iter::from_fn(|| listener.try_recv().ok()).collect();
        assert_eq!(told.iter().map(|span| span.name.as_str()).collect::<Vec<_>>(), ["accept x"; 2]);
        assert!(told.iter().all(|span| span.parent.is_none()));
        let none = Spans::default().begin(PackedEvents::from_parts(1, Default::default()), 0.0);
        assert!(none.traces().is_empty());
        assert!(Spans::new(1, 0.25).0.begin(none, 0.25).traces().is_empty());
    }
}
