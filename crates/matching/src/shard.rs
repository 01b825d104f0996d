//! One part of the subscribers with its index. One owner, no locks: what was put or removed before a batch is what the
//! batch sees.

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::Arc,
    time::Duration,
};

use tocsin_model::{
    event::EventBatch,
    field::{Damaged, FieldType, Fields, Row},
    filter::Filter,
    id::{EventBatchId, EventId, Name, SubscriberNumber, SubscriptionId},
    state::StatePage,
    time::Timestamp,
    value::Value,
};

use crate::{
    datum::Trouble,
    events::Events,
    figures::{Figures, FilterFigures},
    filter::book::FilterBook,
    index::{Hasher, chunks::KeySlice, groups::Groups, numbers::KeyBook, table::Table},
    occasion::{Desk, Occasion, WINDOW},
    residual::Until,
    rule::{RuleNumber, RuleSet},
    state::{Suppression, book::StateBook, remembered::Remembered},
};

mod change; // subscriptions come and go
mod rows; // parameters as rows
mod told; // matches that were found by a query

pub(crate) use rows::Layout;
pub use told::Told;

use change::Sweep;

/// A subscription as the index needs it.
#[derive(Debug, Clone, Copy)]
pub struct Subject<'a> {
    /// Its id.
    pub id: SubscriptionId,
    /// The subscriber: what is for one in a digest stays in one notification batch.
    pub subscriber: SubscriberNumber,
    /// Its class.
    pub class: &'a Name,
    /// Its parameters, a JSON object as `Subscription::values` holds it.
    pub values: &'a str,
    /// The channel by which it is told now, if there is a usable one.
    pub channel: Option<&'a Name>,
    /// Its own filter, if its class takes one: it matches only where a rule and this hold.
    pub filter: Option<&'a Filter>,
}

/// What to leave out of a match, and how time passes.
#[derive(Clone, Copy, Default)]
pub struct Watch<'a> {
    /// Rules that do not fire.
    pub left_out: &'a [RuleNumber],
    /// The time since any fixed moment. With it, a rule that takes longer for the batch than its `timeout` fails with
    /// [`Trouble::Time`]; without it, no rule does.
    pub clock: Option<&'a dyn Fn() -> Duration>,
    /// Whether the batch was matched before, so that its events have re-armed what they re-arm. Without it, also the
    /// rules that are left out see what re-arms.
    pub again: bool,
}

impl fmt::Debug for Watch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").field("left_out", &self.left_out).field("timed", &self.clock.is_some()).finish()
    }
}

/// Receives matches in runs.
pub trait MatchSink {
    /// Some subscriptions match an event by a rule. Each subscription comes once for a rule and event; a rule and event
    /// may come in several runs, one right after the other.
    fn run(&mut self, run: Run<'_>);

    /// A rule could not be decided for an event. What else matches is still given; after [`Trouble::Time`] nothing more
    /// of this rule is given for the batch.
    fn rule_failed(&mut self, rule: RuleNumber, event: EventId, trouble: Trouble);

    /// A rule or the filters of its subscriptions could not be decided for an event and some of the subscriptions,
    /// which therefore do not match; the others are given. `count` is of filters or subscriptions.
    fn subscriptions_failed(&mut self, rule: RuleNumber, event: EventId, trouble: Trouble, count: u32);
}

/// Subscriptions that match one event by one rule.
#[derive(Clone, Copy)]
pub struct Run<'a> {
    /// The rule.
    pub rule: RuleNumber,
    /// The event's batch.
    pub batch: EventBatchId,
    /// The event's place in its batch.
    pub event_ordinal: u32,
    /// The subscriptions, by slot.
    pub slots: &'a [u32],
    /// The keys by which the subscriptions were found, as many, if the rule has the index keep what it captures.
    pub(crate) keys: KeySlice<'a>,
    pub(crate) events: &'a Events<'a>,
    /// The event's place in `events`.
    pub(crate) at: usize,
    /// What the rule's query gave, if it has one; then there is one slot.
    pub(crate) given: &'a [Value],
    pub(crate) rules: &'a RuleSet,
    pub(crate) table: &'a Table,
    pub(crate) channels: &'a [Name],
}

impl<'a> Run<'a> {
    /// The event, as a row of its class in the rule set's version.
    pub fn event(&self) -> &'a [Value] {
        self.events.row(self.at)
    }

    /// The subscription of a slot.
    pub fn id(&self, slot: u32) -> SubscriptionId {
        self.table.id(slot)
    }

    /// Appends the ids of all subscriptions, in order. Much faster than one by one.
    #[inline]
    pub fn append_ids(&self, out: &mut Vec<SubscriptionId>) {
        self.table.append_ids(self.slots, out);
    }

    /// The number of a slot's channel, which [`Run::channel_name`] knows. 0 is none.
    pub fn channel(&self, slot: u32) -> u16 {
        self.table.channel(slot)
    }

    /// The one channel number that all subscriptions of the class use, if that is so.
    pub fn sole_channel(&self) -> Option<u16> {
        self.table.sole_channel()
    }

    /// The same run of some of its subscriptions, with their keys.
    pub(crate) fn of<'b>(self, slots: &'b [u32], keys: KeySlice<'b>) -> Run<'b>
    where
        'a: 'b,
    {
        Run { slots, keys, ..self }
    }

    /// The name of a channel by its number; `None` for 0.
    pub fn channel_name(&self, channel: u16) -> Option<&'a Name> {
        self.channels.get(usize::from(channel).checked_sub(1)?)
    }
}

/// Some of the subscribers' subscriptions, and the index over them.
pub struct Shard {
    rules: Arc<RuleSet>,
    tables: Vec<Table>,
    sweeps: Vec<Option<Sweep>>,
    /// One for each branch of each enabled rule.
    pub(crate) indexes: Vec<Groups>,
    /// The keys of the branches that ask events for the same, by [`Branch::asks`](crate::rule::Branch::asks).
    pub(crate) keys: Vec<KeyBook>,
    /// One for each filter plan of the rule set.
    pub(crate) books: Vec<FilterBook>,
    states: StateBook,
    channels: Vec<Name>,
    desk: Desk,
    /// The rule that is being matched.
    at_work: Option<RuleNumber>,
    times: Vec<(RuleNumber, Duration)>,
}

impl fmt::Debug for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shard").field("subscriptions", &self.len()).finish_non_exhaustive()
    }
}
impl Shard {
    /// An empty shard of these rules.
    pub fn new(rules: Arc<RuleSet>) -> Shard {
        let hasher = Hasher::default();
        let tables = rules.classes.iter().map(|class| {
            let kinds = class.fields.iter().map(|field| field.kind).chain(rules.subscriber.kinds());
            let kinds: Vec<FieldType> = kinds.chain([FieldType::Integer]).collect();
            Table::new(&kinds, &class.kept, class.keeps_subscribers, hasher.clone())
        });
        let enabled = rules.rules.iter().filter(|rule| rule.enabled);
        let indexes = enabled.flat_map(|rule| &rule.branches).map(|branch| Groups::new(branch.arrangement()));
        Shard {
            tables: tables.collect(),
            sweeps: vec![None; rules.classes.len()],
            indexes: indexes.collect(),
            books: rules.filters.iter().map(|_| FilterBook::new()).collect(),
            states: StateBook::new(&rules),
            keys: (0..=rules.asks).map(|_| KeyBook::new(hasher.clone())).collect(),
            channels: Vec::new(),
            desk: Desk::default(),
            at_work: None,
            times: Vec::new(),
            rules,
        }
    }

    /// The rules it was made for.
    pub fn rules(&self) -> &Arc<RuleSet> {
        &self.rules
    }

    /// Gives every match of a batch to the sink, as [`Shard::match_events`] does. `event_fields` are the
    /// fields with which the batch was packed; see [`RuleSet::events`].
    ///
    /// # Errors
    /// The batch is damaged; nothing was given.
    pub fn match_batch(
        &mut self,
        batch: &EventBatch,
        event_fields: &Fields,
        out: &mut impl MatchSink,
    ) -> Result<(), Damaged> {
        let events = self.rules.events(batch, event_fields)?;
        self.match_events((batch.id, batch.accepted_at), &batch.class, &events, Watch::default(), out);
        Ok(())
    }

    /// [`Shard::match_events`] for events that are rows of their class.
    pub fn match_rows(
        &mut self,
        batch: (EventBatchId, Timestamp),
        class: &Name,
        rows: &[Row],
        watch: Watch<'_>,
        out: &mut impl MatchSink,
    ) {
        self.match_events(batch, class, &Events::of_rows(rows), watch, out);
    }

    /// Gives every match of a batch's events, as [`RuleSet::events`] gives them, to the sink, in windows of at most 64
    /// events: rules by name within each, event by event within a rule. So each rule gives its matches in the order of the
    /// events. Deterministic but for the order of subscriptions within a rule and event. The time at which the batch
    /// was accepted is that of what rules remember.
    pub fn match_events(
        &mut self,
        (batch, accepted_at): (EventBatchId, Timestamp),
        class: &Name,
        events: &Events<'_>,
        watch: Watch<'_>,
        out: &mut impl MatchSink,
    ) {
        self.times.clear();
        let rules = Arc::clone(&self.rules);
        let Some(plan) = rules.events.get(class).filter(|plan| !plan.rules.is_empty()) else { return };
        // What each rule may still take for the batch; nothing of those that are out of it.
        let allowed = |rule: &RuleNumber| (!watch.left_out.contains(rule)).then(|| rules.rule(*rule).timeout);
        let mut left: Vec<Option<Duration>> = plan.rules.iter().map(allowed).collect();
        // Filters and state are looked at event by event.
        let is_narrow = |rule: &RuleNumber| rules.rule(*rule).filters.is_some() || rules.rule(*rule).state.is_some();
        let width = if plan.rules.iter().any(is_narrow) { 1 } else { WINDOW };
        let mut desk = std::mem::take(&mut self.desk);
        for first in (0..events.len()).step_by(width) {
            let count = width.min(events.len() - first);
            desk.begin(self.keys.len(), self.books.len(), count);
            for (number, left) in plan.rules.iter().zip(&mut left) {
                let rule = rules.rule(*number);
                // A rule with a query sees the events where its query does.
                let state = rule.state.as_ref().filter(|_| !rule.queried);
                let Some(time) = *left else {
                    if let (Some(state), false) = (state, watch.again) {
                        let rows = (first..first + count).map(|at| events.row(at));
                        rows.for_each(|event| self.states.only_rearm(*number, state, event, accepted_at));
                    }
                    continue;
                };
                self.at_work = Some(*number);
                let states = state.map(|_| std::mem::take(&mut self.states));
                let until = watch.clock.map(|clock| Until { clock, at: clock() + time });
                let occasion = Occasion {
                    shard: self,
                    rules: &rules,
                    number: *number,
                    rule,
                    table: &self.tables[rule.class],
                    batch,
                    first,
                    count,
                    events,
                    channels: &self.channels,
                    until,
                };
                let answered = match state.zip(states) {
                    None => occasion.answer(&mut desk, out),
                    Some((state, mut states)) => {
                        let moment = (accepted_at, watch.again);
                        let answer = || occasion.answer_once(state, moment, &mut states, &mut desk, out);
                        let answered = catch_unwind(AssertUnwindSafe(answer));
                        // What is remembered outlives a panic: it is undone, not lost.
                        self.states = states;
                        answered.unwrap_or_else(|panic| resume_unwind(panic))
                    }
                };
                match answered {
                    Ok(()) => *left = Some(until.map_or(time, Until::left)),
                    Err(event) => {
                        *left = None;
                        out.rule_failed(*number, event, Trouble::Time);
                    }
                }
            }
        }
        self.at_work = None;
        self.desk = desk;
        if watch.clock.is_some() {
            let took = |(rule, left): (&RuleNumber, Option<Duration>)| {
                let timeout = rules.rule(*rule).timeout;
                (*rule, left.map_or(timeout, |left| timeout.saturating_sub(left)))
            };
            let fired = plan.rules.iter().zip(left).filter(|(rule, _)| !watch.left_out.contains(rule));
            self.times.extend(fired.map(took));
        }
    }

    /// How long each rule took for the last batch, as far as there was a clock.
    pub fn rule_times(&self) -> &[(RuleNumber, Duration)] {
        &self.times
    }

    /// The rule that was being matched when the last match panicked, if it did.
    pub fn culprit(&self) -> Option<RuleNumber> {
        self.at_work
    }

    /// Says which of so many parts of the subscribers it has, so that no two shards write the same pages. The first of
    /// one if nobody says.
    pub fn set_part(&mut self, part: u16, parts: u16) {
        self.states.set_part(part, parts);
    }

    /// From here on, what rules remember anew can be undone together. Such beginnings stack.
    pub fn begin_states(&mut self) {
        self.states.begin();
    }

    /// What changed since the oldest beginning is stored for good.
    pub fn confirm_states(&mut self) {
        self.states.confirm();
    }

    /// Undoes what rules remember since the newest beginning.
    pub fn undo_states(&mut self) {
        self.states.undo(&self.rules, &self.tables);
    }

    /// What changed in what rules remember, to be committed with the matches since the newest beginning.
    pub fn take_states(&mut self) -> Vec<StatePage> {
        self.states.take_changes(&self.rules)
    }

    /// Everything that rules remember.
    pub fn states(&self) -> Vec<StatePage> {
        self.states.pages(&self.rules)
    }

    /// How many things rules remember.
    pub fn memories(&self) -> usize {
        self.states.len()
    }

    /// Forgets everything that rules remember, and that it did: what the journal has stays there.
    pub fn forget_states(&mut self) {
        self.states = self.states.empty(&self.rules);
    }

    /// Takes what was remembered for its subscriptions.
    pub fn restore_states(&mut self, remembered: &mut Remembered) {
        self.states.restore(&self.rules, &self.tables, remembered);
    }

    /// Sees to it that those of the pages that are out of date and its own to write are corrected by the next commit.
    pub fn take_over_states(&mut self, pages: &[StatePage]) {
        self.states.take_over(pages);
    }

    /// How many matches were not told since this was last asked, by rule and reason.
    pub fn take_suppressed(&mut self) -> Vec<(RuleNumber, Suppression, u64)> {
        self.states.take_suppressed()
    }

    /// How many subscriptions there are.
    pub fn len(&self) -> usize {
        self.tables.iter().map(Table::len).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What it holds and what it costs. Cheap: nothing is counted anew.
    pub fn figures(&self) -> Figures {
        let enabled = self.rules.rules.iter().filter(|rule| rule.enabled);
        let class_of_each = enabled.flat_map(|rule| rule.branches.iter().map(|_| rule.class));
        let together =
            |(class, groups): (usize, &Groups)| self.tables[class].len() as f64 / groups.count().max(1) as f64;
        let filters = |(number, book): (usize, &FilterBook)| FilterFigures {
            distinct: book.distinct() as u64,
            unindexed: book.scanned() as u64,
            groups: book.groups() as u64,
            counts: self.desk.filter_counts(number),
        };
        Figures {
            branches: class_of_each.zip(&self.indexes).map(together).collect(),
            filters: self.books.iter().enumerate().map(filters).collect(),
        }
    }

    /// How many distinct filters its subscriptions have; one that is put to several event classes counts for each.
    pub fn distinct_filters(&self) -> usize {
        self.books.iter().map(FilterBook::distinct).sum()
    }

    /// How many of the distinct filters are candidates for every event.
    pub fn scanned_filters(&self) -> usize {
        self.books.iter().map(FilterBook::scanned).sum()
    }

    /// Bytes held, as far as they grow with the subscriptions.
    pub fn memory_bytes(&self) -> usize {
        self.tables.iter().map(Table::memory_bytes).sum::<usize>()
            + self.indexes.iter().map(Groups::memory_bytes).sum::<usize>()
            + self.books.iter().map(FilterBook::memory_bytes).sum::<usize>()
            + self.states.memory_bytes()
            + self.keys.iter().map(KeyBook::memory_bytes).sum::<usize>()
    }
}
