//! 2. Event batches meet the index: matches, cut into notification batches.
//!
//! A dispatcher claims event batches and gives each application its own: what waits, within bounds, as one quantum. A
//! matcher for each application takes its batches in the order of their acceptance; a slow one delays no other. The index
//! is brought to the place of each batch among the changes of the records before the batch is matched, and changes that
//! come after a batch never hold it up. While one quantum of an application is on its way to disk the next is matched, and
//! they are committed in order.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tocsin_matching::chronicle::book::ChronicleBook;
use tocsin_model::{
    event::EventBatch,
    field::Fields,
    id::{ChangeSequence, Name},
    state::StatePage,
};
use tocsin_store::{
    error::StoreError,
    journal::{ClaimedEvents, Firing, Step, TakenUp},
};
use tokio::sync::oneshot;

use crate::{
    Flow, RefireError,
    compile::Compiled,
    follow_changes::{Followed, Lost},
    guard::Guard,
    keep_busy,
    shards::{IndexReport, shard_count},
};

mod dispatch; // each application gets its batches
mod matcher; // the task that matches an application
mod matched; // a quantum meets an application's index
mod refire; // a rule is fired again
mod make_batches; // what was cut becomes notification batches
mod permits; // how many applications are matched at the same time
mod report; // what was done is counted

pub(crate) use dispatch::Dispatcher;
pub(crate) use make_batches::new_batches;
pub(crate) use permits::Permits;
pub(crate) use report::report_failures;

/// A matcher that dies with its batches claimed loses them after this time.
const LEASE: Duration = Duration::from_secs(300);
/// How long to wait after the store failed.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_millis(500);

/// The channel of notifications whose subscriber had no usable device when they were made.
pub fn unassigned_channel() -> Name {
    "unassigned".parse().expect("`unassigned` is a name")
}

/// Pages of what rules remember, read from the journal at a time.
const STATE_PAGES: usize = 1_000;

/// An order for the dispatcher.
pub(crate) enum Command {
    /// Match with this version and index from now on.
    Install(Arc<Compiled>, Box<Followed>, oneshot::Sender<()>),
    /// Stop matching this application. What is under way is finished first.
    Remove(Name, oneshot::Sender<()>),
    /// Fire a rule for batches for which it did not fire.
    Refire(Box<Firing>, oneshot::Sender<Result<u64, RefireError>>),
}

/// An application that is being matched.
struct Matched {
    compiled: Arc<Compiled>,
    followed: Followed,
    report: IndexReport,
    guard: Guard,
    /// What is kept of its events. Computed here, before any shard matches.
    chronicles: ChronicleBook,
    /// Whether the shards and the chronicles remember what the journal does. If not, it is read from there before the
    /// next match.
    remembers: bool,
}

impl Matched {
    /// Blocks until the owners of the index have taken in what was given to them.
    fn new(compiled: Arc<Compiled>, mut followed: Followed, guard: Guard) -> Matched {
        // If a shard is gone already, matching will find that out.
        let report = keep_busy(|| followed.settle()).unwrap_or_default();
        let chronicles = ChronicleBook::new(compiled.rules.clone());
        Matched { compiled, followed, report, guard, chronicles, remembers: false }
    }

    /// Publishes what the index holds and where it stands.
    fn publish(&self, flow: &Flow) {
        let status = IndexStatus {
            version: self.compiled.version,
            report: self.report.clone(),
            place: self.followed.place(),
            chronicle_keys: self.chronicles.keys(),
        };
        flow.publish(&self.compiled.application.name, Some(status));
    }
}

/// What the index of an application holds, and where it stands.
#[derive(Debug, Clone)]
pub(crate) struct IndexStatus {
    /// The version by which it matches.
    pub version: u32,
    /// What it holds.
    pub report: IndexReport,
    /// Every change up to here is in it.
    pub place: ChangeSequence,
    /// Keys of its chronicles.
    pub chronicle_keys: usize,
}

impl Flow {
    /// Notes what an index holds, or that it is gone, and asks the records to keep the changes that indexes have not
    /// followed yet, and those that events wait for which a throttle holds.
    fn publish(&self, application: &Name, status: Option<IndexStatus>) {
        let mut indexes = self.indexes.lock();
        match status {
            Some(status) => drop(indexes.insert(application.clone(), status)),
            None => drop(indexes.remove(application)),
        }
        metrics::gauge!("match_chronicle_keys")
            .set(indexes.values().map(|status| status.chronicle_keys).sum::<usize>() as f64);
        let pins = self.pins.lock();
        let needed = indexes.values().map(|status| status.place).chain(pins.values().copied()).min();
        // Within the lock, so that an older answer never comes after a newer one.
        self.records.keep_changes_after(needed.unwrap_or(ChangeSequence(u64::MAX)));
    }
}

/// Builds the index of a version as of a place.
pub(crate) async fn build(flow: &Flow, compiled: &Compiled, place: ChangeSequence) -> Result<Followed, StoreError> {
    let built = Followed::build(&*flow.records, compiled, shard_count(flow.options.match_shards), place).await;
    built.map_err(|lost| match lost {
        Lost::Store(error) => error,
        lost => StoreError::unavailable(lost),
    })
}

/// The place at which an index is wanted next: that of the oldest batch that waits, else the present.
pub(crate) async fn place_wanted(flow: &Flow) -> Result<ChangeSequence, StoreError> {
    let settled = flow.places.settled();
    Ok(flow.journal.oldest_place().await?.map_or(settled, |oldest| oldest.min(settled)))
}

/// The fields that a batch was packed with; the inner error says why nobody can know.
pub(crate) async fn event_fields(flow: &Flow, batch: &EventBatch) -> Result<Result<Fields, String>, StoreError> {
    let Some(compiled) = flow.versions.get(&batch.application, batch.version).await? else {
        return Ok(Err(format!("version {} of the application `{}` is gone", batch.version, batch.application)));
    };
    Ok(match compiled.application.events.get(&batch.class) {
        Some(class) => Ok(class.fields.clone()),
        None => Err(format!("version {} has no event class `{}`", batch.version, batch.class)),
    })
}

/// Removes what the rules of an application that is no more remembered.
pub(crate) async fn forget(flow: &Flow, name: &Name) -> Result<(), StoreError> {
    loop {
        let pages = flow.journal.state_pages(name, None, STATE_PAGES).await?;
        if pages.is_empty() {
            return Ok(());
        }
        let none = |page: StatePage| (name.clone(), StatePage { body: Bytes::new(), ..page });
        flow.journal.commit(Step { states: pages.into_iter().map(none).collect(), ..Step::default() }).await?;
    }
}

/// What is told of an event batch in the quantum that takes it up.
fn taken_up(events: &ClaimedEvents) -> TakenUp {
    let EventBatch { id, application, class, source, accepted_at, events, .. } = &events.batch;
    TakenUp {
        id: *id,
        application: application.clone(),
        class: class.clone(),
        source: source.clone(),
        accepted_at: *accepted_at,
        events: events.count(),
    }
}
