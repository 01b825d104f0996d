//! What changes of rows raise is taken in as events, once.
//!
//! An event is stored with the change that raises it. Whoever takes events in stores with them how far it has come, in the same
//! commit; so after a crash of either side it goes on exactly there. Events stay for a while after they were taken in: a backup
//! pins the journal first, and what came between is taken in again from its place.

use std::{collections::HashMap, error::Error, future::Future, time::Duration};

use serde_json::{Map, Value as Json};
use tocsin_model::{
    collection::{Changed, Stamp},
    id::Name,
};
use tocsin_store::{
    collections::{RaisedEvent, StoredRow},
    error::StoreError,
    sqlite::collections::Ledger,
};

use crate::{Replicas, SyncError, catalogue::Ready};

/// Events that are taken in together, at most.
pub const EVENTS_AT_ONCE_MAX: usize = 1_000;
/// Events are taken in by about so many bytes.
pub const BYTES_AT_ONCE: usize = 1 << 20;
/// How long events stay that were taken in: longer than a backup needs from one database to the next.
pub const TAKEN_KEPT: Duration = Duration::from_secs(3_600);

/// What an event says.
pub type Event = Map<String, Json>;

/// Takes events in, with how far it has come, in one commit.
pub trait Intake: Sync {
    /// How far it has come with the events of an application; `None` if it never began, or forgot.
    fn place(&self, application: &Name) -> impl Future<Output = Result<Option<Stamp>, IntakeError>> + Send;
    /// Stores how far it has come where no events come with it.
    fn set_place(&self, application: &Name, upto: Stamp) -> impl Future<Output = Result<(), IntakeError>> + Send;
    /// Takes in events of one class, with how far it has come by them. Gives how many do not fit their class any more.
    fn take(
        &self,
        application: &Name,
        class: &Name,
        events: Vec<Event>,
        upto: Stamp,
    ) -> impl Future<Output = Result<u64, IntakeError>> + Send;
}

/// Why events are not taken in now. They wait.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct IntakeError(#[source] pub Box<dyn Error + Send + Sync>);

/// Whether all was taken in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Round {
    /// What there was.
    Done,
    /// Something waits, and comes again.
    Held,
}

/// How far the events of each application were taken in.
#[derive(Default)]
pub(crate) struct Raising(tokio::sync::Mutex<HashMap<Name, Stamp>>);

impl Replicas {
    /// Returns when rows have raised events since it returned last; for one who waits.
    pub async fn wait_raised(&self) {
        self.store.wait_raised().await;
    }

    /// Gives all events that wait to `intake`, in the order of their changes. One application does not hold up another.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn raise_events(&self, intake: &impl Intake) -> Result<Round, SyncError> {
        let mut places = self.raising.0.lock().await;
        let mut round = Round::Done;
        for application in self.store.raisers().await? {
            if matches!(self.collections_of(&application).await, Err(SyncError::Missing(_))) {
                // Nobody is left to whom they mean something.
                places.remove(&application);
                let gone = application.clone();
                self.store.write(self.now(), move |ledger: &mut Ledger<'_>| ledger.drop_raised(&gone)).await?;
                continue;
            }
            match self.raise_events_of(&application, &mut places, intake).await {
                Ok(()) => {}
                Err(Held::Later(error)) => {
                    tracing::debug!(%application, %error, "events of rows wait");
                    places.remove(&application);
                    round = Round::Held;
                }
                Err(Held::Failed(error)) => return Err(error),
            }
        }
        Ok(round)
    }

    async fn raise_events_of(
        &self,
        application: &Name,
        places: &mut HashMap<Name, Stamp>,
        intake: &impl Intake,
    ) -> Result<(), Held> {
        let mut place = match places.get(application) {
            Some(place) => *place,
            None => self.find_place(application, intake).await?,
        };
        loop {
            places.insert(application.clone(), place);
            let events = self.store.raised(application, place, EVENTS_AT_ONCE_MAX, BYTES_AT_ONCE).await?;
            let Some(first) = events.first() else { return Ok(()) };
            // The order is kept over classes, so a batch ends where another class begins.
            let class = first.class.clone();
            let run: Vec<RaisedEvent> = events.into_iter().take_while(|event| event.class == class).collect();
            let (count, upto) = (run.len() as u64, run.last().map_or(place, |event| event.stamp));
            let read = |event: &RaisedEvent| serde_json::from_str(&event.event).unwrap_or_default();
            let unfit = intake.take(application, &class, run.iter().map(read).collect(), upto).await?;
            if unfit > 0 {
                tracing::warn!(%application, %class, unfit, "events that rows raised do not fit their class any more");
            }
            metrics::counter!("sync_events_total", "outcome" => "accepted").increment(count - unfit.min(count));
            metrics::counter!("sync_events_total", "outcome" => "unfit").increment(unfit);
            place = upto;
            self.note_place(application, place).await?;
        }
    }

    /// What the intake says counts: its place is in one commit with the events. Where it never began, or the application was
    /// removed and made again, nothing is raised that was before.
    async fn find_place(&self, application: &Name, intake: &impl Intake) -> Result<Stamp, Held> {
        let place = match intake.place(application).await? {
            Some(place) => place,
            None => {
                let place = self.store.raised_upto(application).await?.unwrap_or_default();
                intake.set_place(application, place).await?;
                place
            }
        };
        self.note_place(application, place).await?;
        Ok(place)
    }

    async fn note_place(&self, application: &Name, upto: Stamp) -> Result<(), StoreError> {
        let application = application.clone();
        self.store.write(self.now(), move |ledger: &mut Ledger<'_>| ledger.set_raised_upto(&application, upto)).await
    }

    /// Forgets events that were taken in long enough ago, in small steps.
    pub(crate) async fn forget_raised(&self) -> Result<(), SyncError> {
        let now = self.now();
        let before = Stamp::at(now - TAKEN_KEPT);
        let step = move |ledger: &mut Ledger<'_>| ledger.prune_raised(before, EVENTS_AT_ONCE_MAX);
        while self.store.write(now, step).await? == EVENTS_AT_ONCE_MAX {
            tokio::task::yield_now().await;
        }
        Ok(())
    }
}

/// Why the events of an application stay.
enum Held {
    Later(IntakeError),
    Failed(SyncError),
}

impl From<IntakeError> for Held {
    fn from(error: IntakeError) -> Self {
        Held::Later(error)
    }
}

impl From<StoreError> for Held {
    fn from(error: StoreError) -> Self {
        Held::Failed(error.into())
    }
}

/// Keeps the event that a change of a row raises, if it does: what the row said and says, and its id.
pub(crate) fn note(
    ledger: &mut Ledger<'_>,
    application: &Name,
    ready: &Ready,
    version: Stamp,
    (old, new, id): (Option<&StoredRow>, Option<&str>, &str),
) -> Result<(), StoreError> {
    if ready.definition.raises.is_empty() {
        return Ok(());
    }
    let fields = &ready.definition.fields;
    let read = |body: &str| {
        let shown = fields.stored_as_json(body).ok();
        serde_json::from_str::<Event>(shown.as_deref().unwrap_or(body)).expect("a row is JSON")
    };
    let before = old.and_then(|old| old.body.as_deref()).map(read);
    let after = new.map(read);
    let changed = Changed { id, before: before.as_ref(), after: after.as_ref(), at: ledger.now() };
    for raise in &ready.definition.raises {
        if let Some(event) = raise.event(&changed) {
            let event = Json::Object(event).to_string().into();
            ledger.raise(application, &RaisedEvent { stamp: version, class: raise.event.clone(), event })?;
        }
    }
    Ok(())
}
