//! 1. A submission becomes an event batch.

use tocsin_model::{event::PackedEvents, id::Name, time::Timestamp};
use tocsin_store::{
    error::StoreError,
    journal::{Accepted, Idempotency, Mark, NewEventBatch},
};

use crate::{Flow, spans};

/// Events of one class that ask to be accepted together, already packed by the running version of their class.
#[derive(Debug, Clone)]
pub struct Submission {
    /// The application.
    pub application: Name,
    /// The version that packed them.
    pub version: u32,
    /// Their class.
    pub class: Name,
    /// Who submits them.
    pub source: Name,
    /// When the first byte was read.
    pub received_at: Timestamp,
    /// The events.
    pub events: PackedEvents,
    /// Makes a repeated submission the same submission.
    pub idempotency: Option<Idempotency>,
    /// What its source remembers from now on.
    pub marks: Vec<Mark>,
}

/// Why a submission was not accepted.
#[derive(Debug, thiserror::Error)]
pub enum AcceptError {
    /// The application does not run.
    #[error("the application `{0}` does not run")]
    NoApplication(Name),
    /// There is no room; try again later.
    #[error("{0}")]
    Full(String),
    /// The store failed.
    #[error(transparent)]
    Store(StoreError),
}

/// Stores a submission, unless its events are switched off. When it returns, the events are durable or were before.
pub(crate) async fn accept(flow: &Flow, submission: Submission) -> Result<Accepted, AcceptError> {
    if let Some(reason) = flow.switches.refuse(&submission.application, &submission.class) {
        return Err(AcceptError::Full(reason));
    }
    let Submission { application, version, class, source, received_at, events, idempotency, marks } = submission;
    let count = u64::from(events.count());
    let labels = flow.classes.labels(&application, &class);
    let accepted_at = flow.clock.now().max(received_at);
    let stamp = flow.places.stamp();
    let sees = stamp.place;
    let events = flow.spans.begin(events, if flow.spans.is_on() { flow.luck() } else { 0.0 });
    let told = flow.spans.is_on().then(|| (application.clone(), class.clone(), source.clone(), events.clone()));
    let batch = NewEventBatch {
        application,
        version,
        class,
        source,
        received_at,
        accepted_at,
        sees,
        events,
        idempotency,
        marks,
    };
    let accepted = flow.journal.accept(batch).await.map_err(|error| match error {
        StoreError::Full(room) => AcceptError::Full(room),
        error => AcceptError::Store(error),
    });
    match &accepted {
        Ok(Accepted::New(id)) => {
            if let Some((application, class, source, events)) = &told {
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
            metrics::counter!("accept_batches_total", &labels).increment(1);
            metrics::counter!("accept_events_total", &labels).increment(count);
            flow.latencies.accept.record(flow.clock.now().since(received_at));
        }
        Ok(Accepted::Duplicate(_) | Accepted::KeyReused(_)) => {
            metrics::counter!("accept_duplicates_total", &labels).increment(1)
        }
        Err(AcceptError::Full(_)) => metrics::counter!("accept_refused_total", &labels).increment(1),
        Err(_) => {}
    }
    accepted
}
