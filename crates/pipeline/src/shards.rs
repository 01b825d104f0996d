//! The match index of an application, split over owner threads that share nothing.
//!
//! All subscriptions of a subscriber are on one shard. Each owner takes its turns in the order in which they were given:
//! first the changes of a turn, then its event batches. So what was changed before a batch is what the batch sees, on
//! every shard, without a lock and however the threads run.

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
    figures::Figures,
    filter::index::Counts,
    join::join,
    rule::{RuleNumber, RuleSet},
    shard::{Shard, Subject, Watch},
    state::{Suppression, remembered::Remembered},
    subscriber::SubscriberView,
};
use tocsin_model::{
    field::Row,
    id::{EventBatchId, Name, SubscriberNumber, SubscriptionId},
    problem::Problem,
    state::StatePage,
    time::Timestamp,
};
use tocsin_store::{queries::QueryFiring, records::IndexedSubscription};

use crate::{guard::Strikes, run_queries};

/// Most shards of an application.
pub(crate) const SHARDS_MAX: usize = 64;
/// Most shards that are taken without being asked for.
const SHARDS_UNASKED_MAX: usize = 8;
/// Changes of a shard that are held until they are given to its owner together.
const CHANGES_HELD_MAX: usize = 1_000;
/// Firings that take no longer are not told of one by one.
pub(crate) const TIMED_MIN: Duration = Duration::from_millis(1);
/// Turns that may wait for an owner; whoever gives one more waits for it.
const TURNS_WAITING_MAX: usize = 8;

/// How many shards these are: as asked, or one for each core.
pub(crate) fn shard_count(asked: usize) -> usize {
    match asked {
        0 => thread::available_parallelism().map_or(1, usize::from).min(SHARDS_UNASKED_MAX),
        asked => asked.min(SHARDS_MAX),
    }
}

/// An event batch that is ready to be matched, unpacked once for all shards.
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
    pub left_out: Vec<RuleNumber>,
    /// Whether it was matched before, by all rules or by others.
    pub again: bool,
    /// What the queries of rules in SQL found.
    pub told: Vec<QueryFiring>,
    /// After how many failures in a row since the last cut rules are left out of further batches.
    pub strikes: Strikes,
}

/// What the shards made of the batches since the last cut.
#[derive(Debug, Default)]
pub(crate) struct Cut {
    /// The notifications, in the same order whatever the threads did.
    pub batches: Vec<CutBatch>,
    /// Rules that could not be decided.
    pub failures: Vec<RuleFailure>,
    /// Batches that made a shard panic, and the rule that was at work. What they matched before it is in `batches`, so
    /// nothing of these may be used; the index is still whole.
    pub panicked: Vec<(EventBatchId, Option<RuleNumber>)>,
    /// Rules that were left out of a batch on some shard, since they had failed there too often.
    pub stopped: BTreeSet<(EventBatchId, RuleNumber)>,
    /// What rules remember otherwise since the last cut.
    pub states: Vec<StatePage>,
    /// Matches that were not told, by the place of the reason in [`Suppression::ALL`].
    pub suppressed: [u64; Suppression::ALL.len()],
    /// What was done with filters since the last cut, on all shards.
    pub filtered: Counts,
    /// How long rules took for batches, on the shard where that was longest, where it is [`TIMED_MIN`] or more.
    pub times: BTreeMap<(EventBatchId, RuleNumber), Duration>,
    /// What the index holds.
    pub report: IndexReport,
}

/// What is done with what rules remember, on every shard.
#[derive(Clone)]
pub(crate) enum Memory {
    /// What changes from here on can be undone together. Such beginnings stack.
    Begin,
    /// What changed since the oldest beginning is stored for good.
    Confirm,
    /// What changed since the newest beginning is undone.
    Undo,
    /// Everything is forgotten, and what the journal remembers of the shard's subscriptions is taken from this.
    Restore(Arc<Mutex<Remembered>>),
    /// The next commit corrects those of these pages that are the shard's.
    TakeOver(Arc<[StatePage]>),
}

/// What the index of an application holds.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct IndexReport {
    /// Shards.
    pub shards: usize,
    /// Subscriptions.
    pub subscriptions: u64,
    /// Bytes.
    pub bytes: u64,
    /// Subscriptions that cannot be matched, and so are not in the index.
    pub unusable: u64,
    /// What they are filed in, and what their filters cost.
    pub figures: Arc<Figures>,
}

/// An owner is gone, and its part of the index with it: it must be built anew.
#[derive(Debug, thiserror::Error)]
#[error("a shard of the match index is gone")]
pub(crate) struct Gone;

/// The shards of an application. Its owners end when it is dropped.
pub(crate) struct Shards {
    rules: Arc<RuleSet>,
    owners: Vec<Owner>,
}

/// The near end of an owner.
struct Owner {
    turns: SyncSender<Turn>,
    held: Vec<Change>,
}

/// One change of a shard.
enum Change {
    Put(IndexedSubscription, SubscriberView),
    Remove(SubscriptionId),
}

/// What an owner does in one go.
struct Turn {
    changes: Vec<Change>,
    memory: Option<Memory>,
    batches: Arc<[UnpackedBatch]>,
    /// Whether, and where, it gives what it has made since the last cut.
    cut: Option<Sender<Cut>>,
}

impl Shards {
    /// Empty shards of these rules, each with its owner.
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

    /// The rules that it answers.
    pub fn rules(&self) -> &RuleSet {
        &self.rules
    }

    /// Puts a subscription on its shard, in place of the one of the same number. Those that cannot be matched are logged
    /// and left out. Blocks while the owner has too much to do.
    pub fn put(&mut self, subscription: IndexedSubscription, subscriber: SubscriberView) -> Result<(), Gone> {
        let shard = place(subscription.subscriber, self.owners.len());
        self.owners[shard].hold(Change::Put(subscription, subscriber))
    }

    /// Removes a subscription, wherever it is.
    pub fn remove(&mut self, id: SubscriptionId) -> Result<(), Gone> {
        self.owners.iter_mut().try_for_each(|owner| owner.hold(Change::Remove(id)))
    }

    /// Has batches matched by the index as the changes so far have made it. What they give comes with the next cut.
    pub fn match_batches(&mut self, batches: &Arc<[UnpackedBatch]>) -> Result<(), Gone> {
        self.owners.iter_mut().try_for_each(|owner| owner.turn(batches.clone(), None))
    }

    /// The same, and waits for what all batches since the last cut have given. Blocks.
    pub fn match_and_cut(&mut self, batches: Arc<[UnpackedBatch]>) -> Result<Cut, Gone> {
        let mut answers = Vec::with_capacity(self.owners.len());
        for owner in &mut self.owners {
            let (answer, answered) = channel();
            owner.turn(batches.clone(), Some(answer))?;
            answers.push(answered);
        }
        let shares = answers.into_iter().map(|answered| answered.recv().map_err(|_| Gone));
        Ok(self.join(shares.collect::<Result<_, Gone>>()?))
    }

    /// Does something with what rules remember, after the changes so far.
    pub fn remember(&mut self, memory: &Memory) -> Result<(), Gone> {
        let turn = |owner: &mut Owner| owner.give(Some(memory.clone()), Arc::default(), None);
        self.owners.iter_mut().try_for_each(turn)
    }

    fn join(&self, shares: Vec<Cut>) -> Cut {
        let mut whole = Cut::default();
        let mut cut = Vec::with_capacity(shares.len());
        for share in shares {
            cut.push(share.batches);
            for failure in share.failures {
                note(&mut whole.failures, failure);
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

/// The shard of a subscriber. The same on every machine and in every version.
fn place(subscriber: SubscriberNumber, shards: usize) -> usize {
    // Fibonacci hashing: neighbours, who were often imported together, go to different shards.
    let hash = subscriber.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
    (hash as usize * shards) >> 32
}

/// A rule that fails for an event as a whole does so on every shard: that is one failure. Those of some subscriptions
/// add up.
fn note(failures: &mut Vec<RuleFailure>, new: RuleFailure) {
    let same = |known: &&mut RuleFailure| {
        (known.rule, known.event.batch, known.whole, known.trouble)
            == (new.rule, new.event.batch, new.whole, new.trouble)
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
    fn hold(&mut self, change: Change) -> Result<(), Gone> {
        self.held.push(change);
        if self.held.len() < CHANGES_HELD_MAX { Ok(()) } else { self.turn(Arc::default(), None) }
    }

    /// Gives the changes that are held, and then these batches.
    fn turn(&mut self, batches: Arc<[UnpackedBatch]>, cut: Option<Sender<Cut>>) -> Result<(), Gone> {
        self.give(None, batches, cut)
    }

    fn give(
        &mut self,
        memory: Option<Memory>,
        batches: Arc<[UnpackedBatch]>,
        cut: Option<Sender<Cut>>,
    ) -> Result<(), Gone> {
        let changes = std::mem::take(&mut self.held);
        self.turns.send(Turn { changes, memory, batches, cut }).map_err(|_| Gone)
    }
}

/// The far end of an owner: the thread that alone touches a shard.
struct Keeper {
    application: Name,
    shard: Shard,
    cutter: NotificationCutter,
    panicked: Vec<(EventBatchId, Option<RuleNumber>)>,
    /// Failures in a row since the last cut.
    failures: BTreeMap<RuleNumber, u32>,
    stopped: BTreeSet<(EventBatchId, RuleNumber)>,
    /// Those that were put and could not be matched.
    unusable: BTreeSet<SubscriptionId>,
    /// What was done with filters up to the last cut.
    filtered: Counts,
    times: BTreeMap<(EventBatchId, RuleNumber), Duration>,
    /// The bytes that it held when they were counted last, and how much was done since.
    bytes: u64,
    since: usize,
}

/// Counting bytes looks at everything, so it is done only after so many cuts, or when a part in sixteen has changed.
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

    /// Takes turns until nobody can give one any more.
    fn run(mut self, turns: &Receiver<Turn>) {
        while let Ok(Turn { changes, memory, batches, cut }) = turns.recv() {
            self.since += changes.len();
            for change in changes {
                self.change(change);
            }
            match memory {
                None => {}
                Some(Memory::Begin) => self.shard.begin_states(),
                Some(Memory::Confirm) => self.shard.confirm_states(),
                Some(Memory::Undo) => self.shard.undo_states(),
                Some(Memory::Restore(remembered)) => {
                    self.shard.forget_states();
                    self.shard.restore_states(&mut remembered.lock());
                }
                Some(Memory::TakeOver(pages)) => self.shard.take_over_states(&pages),
            }
            for batch in batches.iter() {
                #[cfg(test)]
                if faults::ends(&self.application, batch.id) {
                    return;
                }
                self.match_batch(batch);
            }
            if let Some(cut) = cut {
                // Whoever asked may have stopped waiting.
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
            Err(Problem::at("", "it made the index panic"))
        });
        self.unusable.remove(&id);
        if let Err(problem) = put {
            self.unusable.insert(id);
            metrics::counter!("match_unusable_subscriptions_total").increment(1);
            tracing::warn!(application = %self.application, subscription = %id, %problem, "a subscription cannot be matched");
        }
    }

    fn match_batch(&mut self, batch: &UnpackedBatch) {
        let began = Instant::now();
        let clock = || began.elapsed();
        let left_out = self.left_out(batch);
        let watch = Watch { left_out: &left_out, clock: Some(&clock), again: batch.again };
        #[cfg(test)]
        faults::wait(&self.application, batch.id);
        let sink = &mut self.cutter;
        #[cfg(test)]
        let sink = &mut faults::Faulty { application: &self.application, sink };
        let matched = catch_unwind(AssertUnwindSafe(|| {
            self.shard.match_rows((batch.id, batch.accepted_at), &batch.class, &batch.rows, watch, sink);
            run_queries::tell(&mut self.shard, batch, sink);
        }));
        if matched.is_err() {
            return self.panicked.push((batch.id, self.shard.culprit()));
        }
        self.count_failures(batch, &left_out);
        let long = self.shard.rule_times().iter().filter(|(_, took)| *took >= TIMED_MIN);
        self.times.extend(long.map(|(rule, took)| ((batch.id, *rule), *took)));
    }

    /// The rules that do not fire for a batch: also those that have failed too often since the last cut.
    fn left_out(&mut self, batch: &UnpackedBatch) -> Vec<RuleNumber> {
        let mut left_out = batch.left_out.clone();
        for (rule, failures) in &self.failures {
            let is_stopped = batch.strikes.get(rule).is_some_and(|strikes| failures >= strikes);
            if is_stopped && *self.shard.rules().event_class(*rule) == batch.class && !left_out.contains(rule) {
                left_out.push(*rule);
                self.stopped.insert((batch.id, *rule));
            }
        }
        left_out
    }

    fn count_failures(&mut self, batch: &UnpackedBatch, left_out: &[RuleNumber]) {
        let failed: BTreeSet<RuleNumber> = self.cutter.failed_rules(batch.id).collect();
        let rules = self.shard.rules().clone();
        self.failures.retain(|rule, _| {
            failed.contains(rule) || left_out.contains(rule) || *rules.event_class(*rule) != batch.class
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
        // What rules remember grows without changes.
        self.since += (subscriptions / 16 / CUTS_MAX).max(1);
        let figures = self.shard.figures();
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

/// A subscription of the records as the index takes it.
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
    // It was checked when it was stored; a class that changed since may still make it unusable.
    shard.put_of(subject(subscription), subscriber).inspect_err(|_| shard.remove(subscription.id))
}

#[cfg(test)]
pub(crate) mod faults; // what a test lets go wrong on a shard

#[cfg(test)]
mod tests {
    use super::*;
    use tocsin_model::{id::EventId, subscription::Terms, value::Value};

    const DEFINITION: &str = r#"
        application: notes
        events: { note: { fields: { number: integer } } }
        subscriptions: { above: { fields: { number: integer } } }
        notifications: { told: { fields: { number: integer }, content: { templates: { base: { text: "{{ number }}" } } } } }
        rules: { higher: { on: note, subscription: above, notify: told, when: event.number > sub.number } }
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
            terms: Terms::default(),
            created_at: Timestamp(0),
            channel: Some(name("log")),
        }
    }

    fn note(id: u64, number: i64) -> Arc<[UnpackedBatch]> {
        let rows = [vec![Value::Integer(number)]].into();
        let (left_out, told) = (Vec::new(), Vec::new());
        let (id, accepted_at) = (EventBatchId(id), Timestamp(0));
        [UnpackedBatch {
            id,
            accepted_at,
            class: name("note"),
            rows,
            left_out,
            again: false,
            told,
            strikes: Strikes::default(),
        }]
        .into()
    }

    fn told(cut: &Cut) -> Vec<(EventId, u64)> {
        let each = cut.batches.iter().flat_map(|cut| {
            let events = cut.notifications.event_of_each();
            events.zip(cut.notifications.subscriptions.iter().map(|id| id.0)).collect::<Vec<_>>()
        });
        let mut told: Vec<(EventId, u64)> = each.collect();
        told.sort_unstable();
        told
    }

    #[test]
    fn a_batch_sees_the_changes_before_it_and_none_after_it_on_every_shard() {
        let compiled = crate::compile_text(DEFINITION, 1, &|_| None).expect("it compiles");
        for count in [1, 2, 4] {
            let mut shards = Shards::start(&name("notes"), &compiled.rules, count).expect("threads");
            (1..=100).for_each(|id| shards.put(above(id, 0), SubscriberView::default()).expect("its owner lives"));
            shards.match_batches(&note(1, 5)).expect("its owner lives");
            (1..=50).for_each(|id| shards.remove(SubscriptionId(id)).expect("its owner lives"));
            shards.match_batches(&note(2, 5)).expect("its owner lives");
            (51..=100).for_each(|id| shards.put(above(id, 9), SubscriberView::default()).expect("its owner lives"));
            shards.match_batches(&note(3, 5)).expect("its owner lives");
            (1..=10).for_each(|id| shards.put(above(id, 1), SubscriberView::default()).expect("its owner lives"));
            let cut = shards.match_and_cut(note(4, 5)).expect("its owner lives");
            let of = |batch: u64| EventId { batch: EventBatchId(batch), ordinal: 0 };
            let expected = (1..=100).map(|id| (of(1), id));
            let expected = expected.chain((51..=100).map(|id| (of(2), id))).chain((1..=10).map(|id| (of(4), id)));
            assert_eq!(told(&cut), expected.collect::<Vec<_>>(), "{count} shards");
            assert_eq!((cut.report.shards, cut.report.subscriptions), (count, 60));
            assert_eq!(cut.batches.len(), 1, "what the shards cut is joined");
            assert!(shards.match_and_cut(Vec::new().into()).expect("its owner lives").batches.is_empty());
        }
    }

    #[test]
    fn what_cannot_be_matched_is_left_out() {
        let compiled = crate::compile_text(DEFINITION, 1, &|_| None).expect("it compiles");
        let mut shards = Shards::start(&name("notes"), &compiled.rules, 2).expect("threads");
        shards.put(above(1, 0), SubscriberView::default()).expect("its owner lives");
        shards.put(above(2, 0), SubscriberView::default()).expect("its owner lives");
        shards
            .put(IndexedSubscription { class: name("gone"), ..above(1, 0) }, SubscriberView::default())
            .expect("its owner lives");
        assert_eq!(told(&shards.match_and_cut(note(1, 5)).expect("its owner lives")).len(), 1);
    }

    #[test]
    fn subscribers_are_spread_evenly_and_always_alike() {
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
