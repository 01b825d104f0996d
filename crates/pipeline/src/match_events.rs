//! Step 2: event batches meet the match index; the matches are cut into notification batches.
//!
//! A dispatcher claims event batches and hands each application its waiting batches, within limits, as one quantum (a
//! matcher batch). One matcher per application takes its batches in order of acceptance, so a slow application delays
//! no other. Before a batch is matched, the index is brought to the snapshot sequence of the batch; later changes
//! never delay it. While one quantum of an application is committed, the next is matched (pipelining); commits stay
//! in order.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tocsin_matching::chronicle::store::ChronicleStore;
use tocsin_model::{
    event::EventBatch,
    field::Fields,
    id::{ChangeSequence, Name},
    state::StatePage,
};
use tocsin_store::{
    error::StoreError,
    journal::{ClaimedEvents, Firing, QuantumInput, Step},
};
use tokio::sync::oneshot;

use crate::{
    Flow, RefireError,
    compile::Compiled,
    follow_changes::{FollowError, Followed},
    keep_busy,
    rule_breaker::RuleBreaker,
    shards::{IndexReport, shard_count},
};

mod dispatch; // claims event batches and distributes them to the matchers
mod matcher; // the task that matches one application
mod matched; // matching of one quantum against the index of an application
mod refire; // fires a rule again for listed batches
mod make_batches; // cut matches become notification batches
mod permits; // concurrency limit of the matchers
mod report; // counters and log lines of matching

pub(crate) use dispatch::Dispatcher;
pub(crate) use make_batches::new_batches;
pub(crate) use permits::Permits;
pub(crate) use report::report_failures;

/// Lease of claimed batches: a matcher that dies loses them after this time.
const LEASE: Duration = Duration::from_secs(300);
/// Delay after the store failed.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_millis(500);

/// Channel of notifications whose subscriber had no usable device when they were made.
pub fn unassigned_channel() -> Name {
    "unassigned".parse().expect("`unassigned` is a name")
}

/// Pages of rule state read from the journal at a time.
const STATE_PAGES: usize = 1_000;

/// A command for the dispatcher.
pub(crate) enum Command {
    /// Match with this version and index from now on.
    Install(Arc<Compiled>, Box<Followed>, oneshot::Sender<()>),
    /// Stop matching this application. Work in progress is finished first.
    Remove(Name, oneshot::Sender<()>),
    /// Fire a rule for batches for which it did not fire.
    Refire(Box<Firing>, oneshot::Sender<Result<u64, RefireError>>),
}

/// An application with its index and state.
struct Matched {
    compiled: Arc<Compiled>,
    followed: Followed,
    report: IndexReport,
    breaker: RuleBreaker,
    /// Per-key aggregates of its events, computed here before any shard matches.
    chronicles: ChronicleStore,
    /// Whether shards and chronicles hold the state of the journal. If not, it is read before the next match.
    remembers: bool,
}

impl Matched {
    /// Blocks until the owners of the index have applied all changes sent to them.
    fn new(compiled: Arc<Compiled>, mut followed: Followed, breaker: RuleBreaker) -> Matched {
        // If a shard is already lost, matching will find out.
        let report = keep_busy(|| followed.wait_until_applied()).unwrap_or_default();
        let chronicles = ChronicleStore::new(compiled.rules.clone());
        Matched { compiled, followed, report, breaker, chronicles, remembers: false }
    }

    /// Publishes the status of the index.
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

/// Status of an application's index.
#[derive(Debug, Clone)]
pub(crate) struct IndexStatus {
    /// Version used for matching.
    pub version: u32,
    /// Figures of the index.
    pub report: IndexReport,
    /// All changes up to this one are in the index.
    pub place: ChangeSequence,
    /// Keys of its chronicles.
    pub chronicle_keys: usize,
}

impl Flow {
    /// Records the status of an index, or its removal. Asks the records to retain the changes that indexes have not
    /// applied yet, and those that throttled events need.
    fn publish(&self, application: &Name, status: Option<IndexStatus>) {
        let mut indexes = self.indexes.lock();
        match status {
            Some(status) => drop(indexes.insert(application.clone(), status)),
            None => drop(indexes.remove(application)),
        }
        metrics::gauge!("tocsin_match_chronicle_keys")
            .set(indexes.values().map(|status| status.chronicle_keys).sum::<usize>() as f64);
        let pins = self.pins.lock();
        let needed = indexes.values().map(|status| status.place).chain(pins.values().copied()).min();
        // Under the lock, so that an older value never replaces a newer one.
        self.change_log.keep_changes_after(needed.unwrap_or(ChangeSequence(u64::MAX)));
    }
}

/// Builds the index of a version at a snapshot sequence.
pub(crate) async fn build(flow: &Flow, compiled: &Compiled, place: ChangeSequence) -> Result<Followed, StoreError> {
    let built = Followed::build(&*flow.match_store, compiled, shard_count(flow.options.match_shards), place).await;
    built.map_err(|lost| match lost {
        FollowError::Store(error) => error,
        lost => StoreError::unavailable(lost),
    })
}

/// Snapshot sequence of the next batch: that of the oldest waiting batch, else the newest.
pub(crate) async fn next_snapshot_sequence(flow: &Flow) -> Result<ChangeSequence, StoreError> {
    let settled = flow.snapshots.lower_bound();
    Ok(flow.event_log.oldest_waiting_sequence().await?.map_or(settled, |oldest| oldest.min(settled)))
}

/// Fields that a batch was packed with. The inner error says why they are unknown.
pub(crate) async fn event_fields(flow: &Flow, batch: &EventBatch) -> Result<Result<Fields, String>, StoreError> {
    let Some(compiled) = flow.versions.get(&batch.application, batch.version).await? else {
        return Ok(Err(format!("version {} of the application `{}` is gone", batch.version, batch.application)));
    };
    Ok(match compiled.application.events.get(&batch.class) {
        Some(class) => Ok(class.fields.clone()),
        None => Err(format!("version {} has no event class `{}`", batch.version, batch.class)),
    })
}

/// Removes the stored rule state of a removed application.
pub(crate) async fn remove_rule_state(flow: &Flow, name: &Name) -> Result<(), StoreError> {
    loop {
        let pages = flow.rule_store.state_pages(name, None, STATE_PAGES).await?;
        if pages.is_empty() {
            return Ok(());
        }
        let none = |page: StatePage| (name.clone(), StatePage { body: Bytes::new(), ..page });
        flow.work_queue.commit(Step { states: pages.into_iter().map(none).collect(), ..Step::default() }).await?;
    }
}

/// Input of a quantum: an event batch as it is taken up.
fn taken_up(events: &ClaimedEvents) -> QuantumInput {
    let EventBatch { id, application, class, source, accepted_at, events, .. } = &events.batch;
    QuantumInput {
        id: *id,
        application: application.clone(),
        class: class.clone(),
        source: source.clone(),
        accepted_at: *accepted_at,
        events: events.count(),
    }
}
