//! The match index of an application, partitioned by subscriber over owner threads that share nothing.
//!
//! All subscriptions of a subscriber are on one shard. Each owner thread processes its turns in order: first the
//! changes of a turn, then its event batches. So a batch sees exactly the changes made before it, on every shard,
//! without a lock and whatever the thread scheduling.

use std::{
    collections::{BTreeMap, BTreeSet},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        mpsc::{Receiver, Sender, SyncSender, channel, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tocsin_matching::{
    cut::{CutBatch, NotificationCutter, RuleFailure},
    filter::index::Counts,
    index_stats::IndexStats,
    join::join,
    rule::{RuleNumber, RuleSet},
    shard::{MatchOptions, Shard, Subject},
    state::{Suppression, restored::RestoredStates},
    subscriber::SubscriberView,
};
use tocsin_model::{
    field::Row,
    id::{EventBatchId, Name, SubscriberNumber, SubscriptionId},
    problem::{Code, Problem},
    state::StatePage,
    time::Timestamp,
};
use tocsin_store::{queries::QueryFiring, records::IndexedSubscription};

use crate::{rule_breaker::RuleFailureCounts, run_queries};

/// Maximum number of shards of an application.
pub(crate) const SHARDS_MAX: usize = 64;
/// Maximum number of shards chosen by default.
const SHARDS_UNASKED_MAX: usize = 8;
/// Changes of a shard that are buffered before they are sent to its owner together.
const CHANGES_HELD_MAX: usize = 1_000;
/// Firings that take less are not reported individually.
pub(crate) const TIMED_MIN: Duration = Duration::from_millis(1);
/// Turns that may wait for an owner (backpressure): a caller with one more waits.
const TURNS_WAITING_MAX: usize = 8;

/// Number of shards: as configured, or one per core.
pub(crate) fn shard_count(asked: usize) -> usize {
    match asked {
        0 => thread::available_parallelism().map_or(1, usize::from).min(SHARDS_UNASKED_MAX),
        asked => asked.min(SHARDS_MAX),
    }
}

/// An event batch ready to be matched, unpacked once for all shards.
#[derive(Debug, Clone)]
pub(crate) struct UnpackedBatch {
    /// Its number.
    pub id: EventBatchId,
    /// When it was accepted.
    pub accepted_at: Timestamp,
    /// Its class.
    pub class: Name,
    /// Its events, as rows of the rule set's version.
    pub rows: Arc<[Row]>,
    /// Rules that do not fire for it.
    pub excluded_rules: Vec<RuleNumber>,
    /// Whether the batch was matched before, by all rules or by others.
    pub again: bool,
    /// Matches of rules in SQL.
    pub query_matches: Vec<QueryFiring>,
    /// Failures in a row since the last cut after which a rule is left out of further batches.
    pub failure_counts: RuleFailureCounts,
}

/// Results of the shards for the batches since the last cut.
#[derive(Debug, Default)]
pub(crate) struct Cut {
    /// Notifications, in an order that does not depend on thread scheduling.
    pub batches: Vec<CutBatch>,
    /// Rules that could not be evaluated.
    pub failures: Vec<RuleFailure>,
    /// Batches that made a shard panic, with the rule that was running. `batches` holds their matches up to the
    /// panic, so none of these may be used. The index is intact.
    pub panicked: Vec<(EventBatchId, Option<RuleNumber>)>,
    /// Rules left out of a batch on some shard because they had failed there too often.
    pub stopped: BTreeSet<(EventBatchId, RuleNumber)>,
    /// Changes of rule state since the last cut.
    pub states: Vec<StatePage>,
    /// Suppressed matches, by the index of the reason in [`Suppression::ALL`].
    pub suppressed: [u64; Suppression::ALL.len()],
    /// Filter counters since the last cut, summed over the shards.
    pub filtered: Counts,
    /// Time each rule took for a batch, on the slowest shard, if it is [`TIMED_MIN`] or more.
    pub times: BTreeMap<(EventBatchId, RuleNumber), Duration>,
    /// Figures of the index.
    pub report: IndexReport,
}

/// A command about rule state, carried out on every shard.
#[derive(Clone)]
pub(crate) enum RuleStateCommand {
    /// Opens a savepoint. Savepoints nest.
    Begin,
    /// Releases the oldest savepoint: its changes are stored durably.
    Confirm,
    /// Rolls back to the newest savepoint.
    Undo,
    /// Drops all state, and loads the state of the shard's subscriptions from this.
    Restore(Arc<Mutex<RestoredStates>>),
    /// The next commit writes corrections for those of these pages that belong to the shard.
    TakeOver(Arc<[StatePage]>),
}

/// Figures of an application's index.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct IndexReport {
    /// Shards.
    pub shards: usize,
    /// Subscriptions.
    pub subscriptions: u64,
    /// Bytes.
    pub bytes: u64,
    /// Subscriptions that cannot be matched and are not in the index.
    pub unusable: u64,
    /// Structure of the index, and cost of its filters.
    pub figures: Arc<IndexStats>,
}

/// An owner thread ended and its shard is lost: the index must be rebuilt.
#[derive(Debug, thiserror::Error)]
#[error("a shard of the match index is gone")]
pub(crate) struct ShardLost;

/// The shards of an application. Their owners end when it is dropped.
pub(crate) struct Shards {
    rules: Arc<RuleSet>,
    owners: Vec<Owner>,
}

/// Handle of an owner thread.
struct Owner {
    turns: SyncSender<Turn>,
    held: Vec<Change>,
}

/// A change of a shard.
enum Change {
    Put(IndexedSubscription, SubscriberView),
    Remove(SubscriptionId),
}

/// A unit of work of an owner.
struct Turn {
    changes: Vec<Change>,
    memory: Option<RuleStateCommand>,
    batches: Arc<[UnpackedBatch]>,
    /// Receiver of the results since the last cut, if they are wanted.
    cut: Option<Sender<Cut>>,
}

impl Shards {
    /// Starts empty shards of a rule set, each with its owner thread.
    ///
    /// # Errors
    /// The system has no more threads.
    pub fn start(application: &Name, rules: &Arc<RuleSet>, count: usize) -> std::io::Result<Shards> {
        let count = count.clamp(1, SHARDS_MAX);
        let owners = (0..count).map(|number| {
            let (turns, to_take) = sync_channel(TURNS_WAITING_MAX);
            let mut keeper = Keeper::new(application.clone(), rules.clone());
            keeper.shard.set_part(number as u16, count as u16);
            thread::Builder::new().name(format!("match-{number}")).spawn(move || keeper.run(&to_take))?;
            Ok(Owner { turns, held: Vec::new() })
        });
        Ok(Shards { rules: rules.clone(), owners: owners.collect::<std::io::Result<_>>()? })
    }

    /// Rule set of the shards.
    pub fn rules(&self) -> &RuleSet {
        &self.rules
    }

    /// Puts a subscription on its shard, replacing the one of the same number. Subscriptions that cannot be matched
    /// are logged and left out. Blocks while the owner's queue is full.
    pub fn put(&mut self, subscription: IndexedSubscription, subscriber: SubscriberView) -> Result<(), ShardLost> {
        let shard = place(subscription.subscriber, self.owners.len());
        self.owners[shard].hold(Change::Put(subscription, subscriber))
    }

    /// Removes a subscription from its shard.
    pub fn remove(&mut self, id: SubscriptionId) -> Result<(), ShardLost> {
        self.owners.iter_mut().try_for_each(|owner| owner.hold(Change::Remove(id)))
    }

    /// Matches batches against the index with all changes so far. The results come with the next cut.
    pub fn match_batches(&mut self, batches: &Arc<[UnpackedBatch]>) -> Result<(), ShardLost> {
        self.owners.iter_mut().try_for_each(|owner| owner.turn(batches.clone(), None))
    }

    /// Matches batches and waits for the results of all batches since the last cut. Blocks.
    pub fn match_and_cut(&mut self, batches: Arc<[UnpackedBatch]>) -> Result<Cut, ShardLost> {
        let mut answers = Vec::with_capacity(self.owners.len());
        for owner in &mut self.owners {
            let (answer, answered) = channel();
            owner.turn(batches.clone(), Some(answer))?;
            answers.push(answered);
        }
        let shares = answers.into_iter().map(|answered| answered.recv().map_err(|_| ShardLost));
        Ok(self.join(shares.collect::<Result<_, ShardLost>>()?))
    }

    /// Carries out a command about rule state, after the changes so far.
    pub fn apply_state_command(&mut self, memory: &RuleStateCommand) -> Result<(), ShardLost> {
        let turn = |owner: &mut Owner| owner.give(Some(memory.clone()), Arc::default(), None);
        self.owners.iter_mut().try_for_each(turn)
    }

    fn join(&self, shares: Vec<Cut>) -> Cut {
        let mut whole = Cut::default();
        let mut cut = Vec::with_capacity(shares.len());
        for share in shares {
            cut.push(share.batches);
            for failure in share.failures {
                add_failure(&mut whole.failures, failure);
            }
            whole.panicked.extend(share.panicked);
            whole.stopped.extend(share.stopped);
            whole.states.extend(share.states);
            whole.suppressed.iter_mut().zip(share.suppressed).for_each(|(all, more)| *all += more);
            whole.report.shards += 1;
            whole.report.subscriptions += share.report.subscriptions;
            whole.report.bytes += share.report.bytes;
            whole.report.unusable += share.report.unusable;
            *Arc::make_mut(&mut whole.report.figures) += &share.report.figures;
            whole.filtered += share.filtered;
            for (firing, took) in share.times {
                let longest = whole.times.entry(firing).or_default();
                *longest = took.max(*longest);
            }
        }
        whole.batches = join(&self.rules, cut);
        whole
    }
}

/// Shard of a subscriber. The mapping is stable across machines and versions.
fn place(subscriber: SubscriberNumber, shards: usize) -> usize {
    // Fibonacci hashing: adjacent numbers, often imported together, go to different shards.
    let hash = subscriber.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
    (hash as usize * shards) >> 32
}

/// Adds a failure. A rule that fails for an event as a whole fails on every shard, which counts once; failures of
/// single subscriptions add up.
fn add_failure(failures: &mut Vec<RuleFailure>, new: RuleFailure) {
    let same = |known: &&mut RuleFailure| {
        (known.rule, known.event.batch, known.whole, known.error) == (new.rule, new.event.batch, new.whole, new.error)
    };
    match failures.iter_mut().find(same) {
        Some(known) => {
            known.event = known.event.min(new.event);
            known.count = if new.whole { known.count.max(new.count) } else { known.count + new.count };
        }
        None => failures.push(new),
    }
}

impl Owner {
    fn hold(&mut self, change: Change) -> Result<(), ShardLost> {
        self.held.push(change);
        if self.held.len() < CHANGES_HELD_MAX { Ok(()) } else { self.turn(Arc::default(), None) }
    }

    /// Sends the buffered changes, then these batches.
    fn turn(&mut self, batches: Arc<[UnpackedBatch]>, cut: Option<Sender<Cut>>) -> Result<(), ShardLost> {
        self.give(None, batches, cut)
    }

    fn give(
        &mut self,
        memory: Option<RuleStateCommand>,
        batches: Arc<[UnpackedBatch]>,
        cut: Option<Sender<Cut>>,
    ) -> Result<(), ShardLost> {
        let changes = std::mem::take(&mut self.held);
        self.turns.send(Turn { changes, memory, batches, cut }).map_err(|_| ShardLost)
    }
}

/// The owner thread, which alone accesses its shard.
struct Keeper {
    application: Name,
    shard: Shard,
    cutter: NotificationCutter,
    panicked: Vec<(EventBatchId, Option<RuleNumber>)>,
    /// Failures in a row since the last cut.
    failures: BTreeMap<RuleNumber, u32>,
    stopped: BTreeSet<(EventBatchId, RuleNumber)>,
    /// Subscriptions that were put and could not be matched.
    unusable: BTreeSet<SubscriptionId>,
    /// Filter counters at the last cut.
    filtered: Counts,
    times: BTreeMap<(EventBatchId, RuleNumber), Duration>,
    /// Bytes at the last count, and the work done since.
    bytes: u64,
    since: usize,
}

/// Counting bytes visits everything, so it is done only after this many cuts, or when one part in sixteen has
/// changed.
const CUTS_MAX: usize = 256;

impl Keeper {
    fn new(application: Name, rules: Arc<RuleSet>) -> Keeper {
        Keeper {
            application,
            shard: Shard::new(rules),
            cutter: NotificationCutter::new(),
            panicked: Vec::new(),
            failures: BTreeMap::new(),
            stopped: BTreeSet::new(),
            unusable: BTreeSet::new(),
            filtered: Counts::default(),
            times: BTreeMap::new(),
            bytes: 0,
            since: 0,
        }
    }

    /// Processes turns until all senders are gone.
    fn run(mut self, turns: &Receiver<Turn>) {
        while let Ok(Turn { changes, memory, batches, cut }) = turns.recv() {
            self.since += changes.len();
            for change in changes {
                self.change(change);
            }
            match memory {
                None => {}
                Some(RuleStateCommand::Begin) => self.shard.begin_states(),
                Some(RuleStateCommand::Confirm) => self.shard.confirm_states(),
                Some(RuleStateCommand::Undo) => self.shard.undo_states(),
                Some(RuleStateCommand::Restore(remembered)) => {
                    self.shard.forget_states();
                    self.shard.restore_states(&mut remembered.lock());
                }
                Some(RuleStateCommand::TakeOver(pages)) => self.shard.take_over_states(&pages),
            }
            for batch in batches.iter() {
                #[cfg(test)]
                if faults::ends(&self.application, batch.id) {
                    return;
                }
                self.match_batch(batch);
            }
            if let Some(cut) = cut {
                // The receiver may have stopped waiting.
                let _ = cut.send(self.cut());
            }
        }
    }

    fn change(&mut self, change: Change) {
        let (subscription, subscriber) = match change {
            Change::Put(subscription, subscriber) => (subscription, subscriber),
            Change::Remove(id) => {
                self.unusable.remove(&id);
                return self.shard.remove(id);
            }
        };
        let id = subscription.id;
        let put = catch_unwind(AssertUnwindSafe(|| put(&mut self.shard, &subscription, subscriber)));
        let put = put.unwrap_or_else(|_| {
            self.shard.remove(id);
            Err(Problem::new(Code::Internal, "", "it made the index panic"))
        });
        self.unusable.remove(&id);
        if let Err(problem) = put {
            self.unusable.insert(id);
            metrics::counter!("tocsin_match_unusable_subscriptions_total").increment(1);
            tracing::warn!(application = %self.application, subscription = %id, %problem, "a subscription cannot be matched");
        }
    }

    fn match_batch(&mut self, batch: &UnpackedBatch) {
        let began = Instant::now();
        let clock = || began.elapsed();
        let excluded_rules = self.excluded_rules(batch);
        let watch = MatchOptions { excluded_rules: &excluded_rules, clock: Some(&clock), again: batch.again };
        #[cfg(test)]
        faults::wait(&self.application, batch.id);
        let sink = &mut self.cutter;
        #[cfg(test)]
        let sink = &mut faults::Faulty { application: &self.application, sink };
        let matched = catch_unwind(AssertUnwindSafe(|| {
            self.shard.match_rows((batch.id, batch.accepted_at), &batch.class, &batch.rows, watch, sink);
            run_queries::emit_query_matches(&mut self.shard, batch, sink);
        }));
        if matched.is_err() {
            return self.panicked.push((batch.id, self.shard.failing_rule()));
        }
        self.count_failures(batch, &excluded_rules);
        let long = self.shard.rule_times().iter().filter(|(_, took)| *took >= TIMED_MIN);
        self.times.extend(long.map(|(rule, took)| ((batch.id, *rule), *took)));
    }

    /// Rules that do not fire for a batch, including those that failed too often since the last cut.
    fn excluded_rules(&mut self, batch: &UnpackedBatch) -> Vec<RuleNumber> {
        let mut excluded_rules = batch.excluded_rules.clone();
        for (rule, failures) in &self.failures {
            let is_stopped = batch.failure_counts.get(rule).is_some_and(|failure_counts| failures >= failure_counts);
            if is_stopped && *self.shard.rules().event_class(*rule) == batch.class && !excluded_rules.contains(rule) {
                excluded_rules.push(*rule);
                self.stopped.insert((batch.id, *rule));
            }
        }
        excluded_rules
    }

    fn count_failures(&mut self, batch: &UnpackedBatch, excluded_rules: &[RuleNumber]) {
        let failed: BTreeSet<RuleNumber> = self.cutter.failed_rules(batch.id).collect();
        let rules = self.shard.rules().clone();
        self.failures.retain(|rule, _| {
            failed.contains(rule) || excluded_rules.contains(rule) || *rules.event_class(*rule) != batch.class
        });
        for rule in failed {
            *self.failures.entry(rule).or_default() += 1;
        }
    }

    fn cut(&mut self) -> Cut {
        let (batches, failures) = self.cutter.finish(self.shard.rules());
        let subscriptions = self.shard.len();
        if self.bytes == 0 || self.since >= subscriptions / 16 {
            (self.bytes, self.since) = (self.shard.memory_bytes() as u64, 0);
        }
        // Rule state grows without changes of subscriptions.
        self.since += (subscriptions / 16 / CUTS_MAX).max(1);
        let figures = self.shard.index_stats();
        let done = figures.filters().counts;
        let filtered = done.since(std::mem::replace(&mut self.filtered, done));
        let report = IndexReport {
            shards: 1,
            subscriptions: subscriptions as u64,
            bytes: self.bytes,
            unusable: self.unusable.len() as u64,
            figures: figures.into(),
        };
        let mut suppressed = [0; Suppression::ALL.len()];
        for (_, reason, count) in self.shard.take_suppressed() {
            suppressed[reason as usize] += count;
        }
        let (states, panicked) = (self.shard.take_states(), std::mem::take(&mut self.panicked));
        let times = std::mem::take(&mut self.times);
        self.failures.clear();
        let stopped = std::mem::take(&mut self.stopped);
        Cut { batches, failures, panicked, stopped, states, suppressed, filtered, times, report }
    }
}

/// Converts a subscription of the records for the index.
pub fn subject(subscription: &IndexedSubscription) -> Subject<'_> {
    Subject {
        id: subscription.id,
        subscriber: subscription.subscriber,
        class: &subscription.class,
        values: &subscription.values,
        channel: subscription.channel.as_ref(),
        filter: subscription.terms.filter.as_ref(),
    }
}

fn put(shard: &mut Shard, subscription: &IndexedSubscription, subscriber: SubscriberView) -> Result<(), Problem> {
    // It was checked when it was stored; a later change of its class may still make it unusable.
    shard.put_of(subject(subscription), subscriber).inspect_err(|_| shard.remove(subscription.id))
}

#[cfg(test)]
pub(crate) mod faults; // fault injection for tests

#[cfg(test)]
mod tests {
    use super::*;
    use tocsin_model::{id::EventId, subscription::SubscriptionParams, value::Value};

    const DEFINITION: &str = r#"
        application: notes
        events: { note: { fields: { number: integer } } }
        subscriptions: { above: { fields: { number: integer } } }
        notifications: { alert: { fields: { number: integer }, content: { templates: { base: { text: "{{ number }}" } } } } }
        rules: { higher: { on: note, subscription: above, notify: alert, when: event.number > sub.number } }
        channels: { log: { protocol: file, options: { path: log } } }
    "#;

    fn name(text: &str) -> Name {
        text.parse().expect("a name")
    }

    fn above(id: u64, number: i64) -> IndexedSubscription {
        IndexedSubscription {
            id: SubscriptionId(id),
            subscriber: SubscriberNumber(id),
            class: name("above"),
            values: format!(r#"{{"number":{number}}}"#).into(),
            terms: SubscriptionParams::default(),
            created_at: Timestamp(0),
            enabled_at: None,
            channel: Some(name("log")),
        }
    }

    fn note_batch(id: u64, number: i64) -> Arc<[UnpackedBatch]> {
        let rows = [vec![Value::Integer(number)]].into();
        let (excluded_rules, query_matches) = (Vec::new(), Vec::new());
        let (id, accepted_at) = (EventBatchId(id), Timestamp(0));
        [UnpackedBatch {
            id,
            accepted_at,
            class: name("note"),
            rows,
            excluded_rules,
            again: false,
            query_matches,
            failure_counts: RuleFailureCounts::default(),
        }]
        .into()
    }

    fn matched(cut: &Cut) -> Vec<(EventId, u64)> {
        let each = cut.batches.iter().flat_map(|cut| {
            let events = cut.notifications.event_of_each();
            events.zip(cut.notifications.subscriptions.iter().map(|id| id.0)).collect::<Vec<_>>()
        });
        let mut matched: Vec<(EventId, u64)> = each.collect();
        matched.sort_unstable();
        matched
    }

    #[test]
    fn a_batch_sees_the_changes_before_it_and_none_after_it_on_every_shard() {
        let compiled = crate::compile_text(DEFINITION, 1, &|_| None).expect("it compiles");
        for count in [1, 2, 4] {
            let mut shards = Shards::start(&name("notes"), &compiled.rules, count).expect("threads");
            (1..=100).for_each(|id| shards.put(above(id, 0), SubscriberView::default()).expect("its owner lives"));
            shards.match_batches(&note_batch(1, 5)).expect("its owner lives");
            (1..=50).for_each(|id| shards.remove(SubscriptionId(id)).expect("its owner lives"));
            shards.match_batches(&note_batch(2, 5)).expect("its owner lives");
            (51..=100).for_each(|id| shards.put(above(id, 9), SubscriberView::default()).expect("its owner lives"));
            shards.match_batches(&note_batch(3, 5)).expect("its owner lives");
            (1..=10).for_each(|id| shards.put(above(id, 1), SubscriberView::default()).expect("its owner lives"));
            let cut = shards.match_and_cut(note_batch(4, 5)).expect("its owner lives");
            let of = |batch: u64| EventId { batch: EventBatchId(batch), ordinal: 0 };
            let expected = (1..=100).map(|id| (of(1), id));
            let expected = expected.chain((51..=100).map(|id| (of(2), id))).chain((1..=10).map(|id| (of(4), id)));
            assert_eq!(matched(&cut), expected.collect::<Vec<_>>(), "{count} shards");
            assert_eq!((cut.report.shards, cut.report.subscriptions), (count, 60));
            assert_eq!(cut.batches.len(), 1, "what the shards cut is joined");
            assert!(shards.match_and_cut(Vec::new().into()).expect("its owner lives").batches.is_empty());
        }
    }

    #[test]
    fn a_subscription_that_cannot_be_matched_is_left_out() {
        let compiled = crate::compile_text(DEFINITION, 1, &|_| None).expect("it compiles");
        let mut shards = Shards::start(&name("notes"), &compiled.rules, 2).expect("threads");
        shards.put(above(1, 0), SubscriberView::default()).expect("its owner lives");
        shards.put(above(2, 0), SubscriberView::default()).expect("its owner lives");
        shards
            .put(IndexedSubscription { class: name("gone"), ..above(1, 0) }, SubscriberView::default())
            .expect("its owner lives");
        assert_eq!(matched(&shards.match_and_cut(note_batch(1, 5)).expect("its owner lives")).len(), 1);
    }

    #[test]
    fn subscribers_are_spread_evenly_and_deterministically() {
        for shards in [1, 2, 3, 8, SHARDS_MAX] {
            let mut counts = vec![0_usize; shards];
            (1..=64_000).for_each(|number| counts[place(SubscriberNumber(number), shards)] += 1);
            let even = 64_000 / shards;
            assert!(counts.iter().all(|count| count.abs_diff(even) < even / 10), "{counts:?}");
        }
        let places: Vec<usize> = (1..=10).map(|number| place(SubscriberNumber(number), 8)).collect();
        assert_eq!(places, [4, 1, 6, 3, 0, 5, 2, 7, 4, 1]);
    }
}
