//! Exactly-once intake of events raised by row changes (transactional outbox).
//!
//! An event is stored in the transaction of its change. The intake stores the checkpoint in the transaction of the
//! accepted events, so after a crash of either side it continues exactly there. Accepted events are kept for a while: a
//! backup captures the journal first, and later events are taken again from the checkpoint.

use std::{collections::HashMap, error::Error, future::Future, time::Duration};

use serde_json::{Map, Value as Json};
use tocsin_model::{collection::Stamp, id::Name};
use tocsin_store::{collections::RaisedEvent, error::StoreError, sqlite::collections::RowTransaction};

use crate::{error::SyncError, replicas::Replicas};

/// Maximum events of one intake batch.
pub const EVENTS_AT_ONCE_MAX: usize = 1_000;
/// Approximate bytes of one intake batch.
pub const BYTES_AT_ONCE: usize = 1 << 20;
/// Retention of accepted events: longer than a backup needs from one database to the next.
pub const ACCEPTED_EVENT_RETENTION: Duration = Duration::from_secs(3_600);

/// Body of an event.
pub type Event = Map<String, Json>;

/// Accepts events and their checkpoint in one transaction.
pub trait Intake: Sync {
    /// Checkpoint of an application; `None` if there is none.
    fn place(&self, application: &Name) -> impl Future<Output = Result<Option<Stamp>, IntakeError>> + Send;
    /// Stores a checkpoint without events.
    fn set_place(&self, application: &Name, upto: Stamp) -> impl Future<Output = Result<(), IntakeError>> + Send;
    /// Accepts events of one class with their checkpoint. Returns how many no longer fit the class.
    fn take(
        &self,
        application: &Name,
        class: &Name,
        events: Vec<Event>,
        upto: Stamp,
    ) -> impl Future<Output = Result<u64, IntakeError>> + Send;
}

/// Why events cannot be accepted now. They wait.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct IntakeError(#[source] pub Box<dyn Error + Send + Sync>);

/// Result of a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Round {
    /// All events were accepted.
    Done,
    /// Some events wait and are retried.
    Held,
}

impl Replicas {
    /// Waits until rows raised events since the last return. For a single waiter.
    pub async fn wait_raised(&self) {
        self.store.wait_raised().await;
    }

    /// Passes all waiting events to `intake`, in order of their changes. Applications do not block each other.
    ///
    /// # Errors
    /// The store fails.
    pub async fn raise_events(&self, intake: &impl Intake) -> Result<Round, SyncError> {
        let mut places = self.raising.0.lock().await;
        let mut round = Round::Done;
        for application in self.store.raisers().await? {
            if matches!(self.collections_of(&application).await, Err(SyncError::Missing(_))) {
                // The application is gone.
                places.remove(&application);
                let gone = application.clone();
                self.store.write(self.now(), move |ledger: &mut RowTransaction<'_>| ledger.drop_raised(&gone)).await?;
                continue;
            }
            match self.raise_events_of(&application, &mut places, intake).await {
                Ok(()) => {}
                Err(HoldReason::Later(error)) => {
                    tracing::debug!(%application, %error, "events of rows wait");
                    places.remove(&application);
                    round = Round::Held;
                }
                Err(HoldReason::Failed(error)) => return Err(error),
            }
        }
        Ok(round)
    }

    async fn raise_events_of(
        &self,
        application: &Name,
        places: &mut HashMap<Name, Stamp>,
        intake: &impl Intake,
    ) -> Result<(), HoldReason> {
        let mut place = match places.get(application) {
            Some(place) => *place,
            None => self.find_place(application, intake).await?,
        };
        loop {
            places.insert(application.clone(), place);
            let events = self.store.raised(application, place, EVENTS_AT_ONCE_MAX, BYTES_AT_ONCE).await?;
            let Some(first) = events.first() else { return Ok(()) };
            // The order spans classes, so a batch ends where the class changes.
            let class = first.class.clone();
            let run: Vec<RaisedEvent> = events.into_iter().take_while(|event| event.class == class).collect();
            let (count, upto) = (run.len() as u64, run.last().map_or(place, |event| event.stamp));
            let events: Vec<Event> = run.iter().filter_map(|event| serde_json::from_str(&event.event).ok()).collect();
            // An unreadable event is left out: an empty one would be accepted by a class without required fields.
            let unreadable = count - events.len() as u64;
            if unreadable > 0 {
                tracing::error!(%application, %class, unreadable, "stored events of rows are damaged and left out");
            }
            let unfit = match events.is_empty() {
                true => intake.set_place(application, upto).await.map(|()| unreadable)?,
                false => unreadable + intake.take(application, &class, events, upto).await?,
            };
            if unfit > 0 {
                tracing::warn!(%application, %class, unfit, "events that rows raised do not fit their class any more");
            }
            metrics::counter!("tocsin_sync_events_total", "outcome" => "accepted").increment(count - unfit.min(count));
            metrics::counter!("tocsin_sync_events_total", "outcome" => "unfit").increment(unfit);
            place = upto;
            self.record_position(application, place).await?;
        }
    }

    /// Finds the checkpoint. The intake's is authoritative, since it is stored with the events. If it has none, or the
    /// application was removed and created again, earlier events are skipped.
    async fn find_place(&self, application: &Name, intake: &impl Intake) -> Result<Stamp, HoldReason> {
        let place = match intake.place(application).await? {
            Some(place) => place,
            None => {
                let place = self.store.raised_upto(application).await?.unwrap_or_default();
                intake.set_place(application, place).await?;
                place
            }
        };
        self.record_position(application, place).await?;
        Ok(place)
    }

    async fn record_position(&self, application: &Name, upto: Stamp) -> Result<(), StoreError> {
        let application = application.clone();
        self.store
            .write(self.now(), move |ledger: &mut RowTransaction<'_>| ledger.set_raised_upto(&application, upto))
            .await
    }

    /// Deletes accepted events after their retention, in small steps.
    pub(crate) async fn delete_accepted_events(&self) -> Result<(), SyncError> {
        let now = self.now();
        let before = Stamp::at(now - ACCEPTED_EVENT_RETENTION);
        let step = move |ledger: &mut RowTransaction<'_>| ledger.prune_raised(before, EVENTS_AT_ONCE_MAX);
        while self.store.write(now, step).await? == EVENTS_AT_ONCE_MAX {
            tokio::task::yield_now().await;
        }
        Ok(())
    }
}

/// Why the events of an application wait.
enum HoldReason {
    Later(IntakeError),
    Failed(SyncError),
}

impl From<IntakeError> for HoldReason {
    fn from(error: IntakeError) -> Self {
        HoldReason::Later(error)
    }
}

impl From<StoreError> for HoldReason {
    fn from(error: StoreError) -> Self {
        HoldReason::Failed(error.into())
    }
}
