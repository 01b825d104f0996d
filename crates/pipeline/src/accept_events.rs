//! Step 1: a submission becomes an event batch.

use tocsin_model::{event::PackedEvents, id::Name, time::Timestamp};
use tocsin_store::{
    error::StoreError,
    journal::{EventAcceptance, Idempotency, Mark, NewEventBatch},
};

use crate::{Flow, spans};

/// Events of one class, accepted together, packed by the running version of their class.
#[derive(Debug, Clone)]
pub struct Submission {
    /// The application.
    pub application: Name,
    /// The version that packed them.
    pub version: u32,
    /// Their class.
    pub class: Name,
    /// The source.
    pub source: Name,
    /// When the first byte was read.
    pub received_at: Timestamp,
    /// The events.
    pub events: PackedEvents,
    /// Idempotency key of the submission.
    pub idempotency: Option<Idempotency>,
    /// Checkpoints of the source after this batch.
    pub marks: Vec<Mark>,
}

/// Reason why a submission was not accepted.
#[derive(Debug, thiserror::Error)]
pub enum AcceptError {
    /// The application is not running.
    #[error("the application `{0}` does not run")]
    NoApplication(Name),
    /// A limit is reached; try again later.
    #[error("{0}")]
    Full(String),
    /// The store failed.
    #[error(transparent)]
    Store(StoreError),
}

/// Stores a submission, unless its event class is switched off. When it returns, the events are durable, now or since
/// an earlier submission with the same key.
pub(crate) async fn accept(flow: &Flow, submission: Submission) -> Result<EventAcceptance, AcceptError> {
    if let Some(reason) = flow.switches.refuse(&submission.application, &submission.class) {
        return Err(AcceptError::Full(reason));
    }
    let Submission { application, version, class, source, received_at, events, idempotency, marks } = submission;
    let count = u64::from(events.count());
    let labels = flow.classes.labels(&application, &class);
    let accepted_at = flow.clock.now().max(received_at);
    let stamp = flow.snapshots.stamp();
    let snapshot_sequence = stamp.place;
    let events = flow.spans.begin(events, if flow.spans.is_on() { flow.jitter() } else { 0.0 });
    let traced = flow.spans.is_on().then(|| (application.clone(), class.clone(), source.clone(), events.clone()));
    let batch = NewEventBatch {
        application,
        version,
        class,
        source,
        received_at,
        accepted_at,
        snapshot_sequence,
        events,
        idempotency,
        marks,
    };
    let accepted = flow.event_log.accept(batch).await.map_err(|error| match error {
        StoreError::Full(room) => AcceptError::Full(room),
        error => AcceptError::Store(error),
    });
    match &accepted {
        Ok(EventAcceptance::New(id)) => {
            if let Some((application, class, source, events)) = &traced {
                let id = *id;
                flow.spans.accepted(&spans::Accepted {
                    id,
                    application,
                    class,
                    source,
                    events,
                    received_at,
                    accepted_at,
                });
            }
            metrics::counter!("tocsin_accept_batches_total", &labels).increment(1);
            metrics::counter!("tocsin_accept_events_total", &labels).increment(count);
            flow.latencies.accept.record(flow.clock.now().since(received_at));
        }
        Ok(EventAcceptance::Duplicate(_) | EventAcceptance::KeyReused(_)) => {
            metrics::counter!("tocsin_accept_duplicates_total", &labels).increment(1)
        }
        Err(AcceptError::Full(_)) => metrics::counter!("tocsin_accept_refused_total", &labels).increment(1),
        Err(_) => {}
    }
    accepted
}
