//! Trace spans of the steps, for events with a W3C trace context.
//!
//! A span id is derived from step, batch, ordinal and attempt. So the trace context of an event determines the span
//! ids of all earlier steps, without storing them.

use tocsin_connect::spans::{Attribute, Span, SpanKind, Spans, span_id};
use tocsin_delivery::{Answer, TracePosition, redact};
use tocsin_model::{
    event::{EventBatch, PackedEvents},
    id::{EventBatchId, Name, NotificationId},
    receipt::Disposition,
    time::Timestamp,
    trace_context::{TraceContext, Traces},
};

/// A notification whose event has a trace context.
pub(crate) struct TracedNotification<'a> {
    pub id: NotificationId,
    /// Batch of its event.
    pub event: EventBatchId,
    /// First event of the batch that shares the context.
    pub first: u32,
    pub context: &'a TraceContext,
    /// Number of the attempt.
    pub attempt: u32,
}

/// Emits spans of the steps.
pub(crate) struct StepSpans(pub Spans);

impl StepSpans {
    /// Whether spans are exported.
    pub fn is_on(&self) -> bool {
        self.0.is_on()
    }

    /// Starts a trace for events without one, if they are sampled; `jitter` is a random number from 0 up to 1 that
    /// decides.
    pub fn begin(&self, events: PackedEvents, jitter: f64) -> PackedEvents {
        if !events.traces().is_empty() {
            return events;
        }
        match self.0.begin(jitter) {
            Some(context) => events.with_traces(Traces::of_all(context)),
            None => events,
        }
    }

    /// Emits the spans of acceptance.
    pub fn accepted(&self, batch: &Accepted<'_>) {
        self.of_batch(Step::Accept, batch, |context, _| context.parent(), batch.received_at, batch.accepted_at);
    }

    /// Emits the spans of matching.
    pub fn matched(&self, batch: &EventBatch, at: Timestamp) {
        let (id, from) = (batch.id, batch.accepted_at);
        let parent = |context: &TraceContext, first| Some(span_of(context, Step::Accept, id.0, first, 0));
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
            self.0.report(Span {
                context: context.at(span_of(context, step, batch.id.0, first, 0)),
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

    /// Trace position of a message about these notifications, if their events share a trace.
    pub fn place<'a>(
        &self,
        mut members: impl Iterator<Item = Option<TracedNotification<'a>>>,
    ) -> Option<TracePosition> {
        let TracedNotification { id, event, first, context, attempt } = members.next()??;
        if !members.all(|member| member.is_some_and(|other| other.context.trace == context.trace)) {
            return None;
        }
        if !self.0.is_sampled(context) {
            // Without span export, the incoming context is propagated unchanged (W3C Trace Context, 3.4).
            let position = TracePosition { context: context.clone(), parent: None, of: id, attempt: 0 };
            return context.parent().map(|_| position);
        }
        let span = span_of(context, Step::Deliver, id.batch.0, id.ordinal, attempt);
        let parent = span_of(context, Step::Match, event.0, first, 0);
        Some(TracePosition { context: context.at(span), parent: Some(parent), of: id, attempt })
    }

    /// Emits the span of an attempt.
    pub fn delivered(&self, application: &Name, answer: &Answer) {
        let Some(TracePosition { context, parent: Some(parent), of, attempt }) = &answer.place else { return };
        // A message to several recipients has one span.
        if !self.is_on() || !answer.tickets().any(|(id, _)| id == *of) {
            return;
        }
        let (outcome, failed) = match &answer.disposition {
            Disposition::Delivered { .. } => ("delivered", None),
            Disposition::Deferred { reason, .. } => ("deferred", Some(redact::text(&reason.text))),
            Disposition::Refused { reason } => ("refused", Some(redact::text(&reason.text))),
        };
        self.0.report(Span {
            context: context.clone(),
            parent: Some(*parent),
            name: format!("{} {}", Step::Deliver.word(), answer.channel),
            kind: SpanKind::Producer,
            start: answer.sent_at,
            end: answer.answered_at,
            attributes: vec![
                ("tocsin.application", Attribute::Text(application.to_string())),
                ("tocsin.notification", Attribute::Text(of.to_string())),
                ("tocsin.channel", Attribute::Text(answer.channel.to_string())),
                ("tocsin.attempt", Attribute::Number(i64::from(*attempt))),
                ("tocsin.outcome", Attribute::Text(outcome.to_owned())),
            ],
            failed,
        });
    }
}

/// Data of an accepted batch.
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

/// Id of the span of a step.
fn span_of(context: &TraceContext, step: Step, batch: u64, ordinal: u32, attempt: u32) -> [u8; 8] {
    span_id(context, [step as u64, batch, ordinal.into(), attempt.into()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_queue_drops_spans_without_blocking() {
        let (spans, mut listener) = Spans::new(2, 1.0);
        let spans = StepSpans(spans);
        let batch = |id| {
            let events = spans.begin(PackedEvents::from_parts(1, Default::default()), 0.5);
            let name: Name = "x".parse().expect("a name");
            let (received_at, accepted_at) = (Timestamp(1), Timestamp(2));
            let (application, class, source) = (&name, &name, &name);
            let id = EventBatchId(id);
            spans.accepted(&Accepted { id, application, class, source, events: &events, received_at, accepted_at });
        };
        (1..=5).for_each(batch);
        let spans: Vec<Span> = std::iter::from_fn(|| listener.try_recv().ok()).collect();
        assert_eq!(spans.iter().map(|span| span.name.as_str()).collect::<Vec<_>>(), ["accept x"; 2]);
        assert!(spans.iter().all(|span| span.parent.is_none()));
        let none = StepSpans(Spans::default()).begin(PackedEvents::from_parts(1, Default::default()), 0.0);
        assert!(none.traces().is_empty());
        assert!(StepSpans(Spans::new(1, 0.25).0).begin(none, 0.25).traces().is_empty());
    }
}
