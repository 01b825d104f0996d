//! One part of the subscribers with its index. One owner, no locks: what was put or removed before a batch is what the
//! batch sees.

use std::{
    borrow::Cow,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::Arc,
    time::Duration,
};

use serde::{
    Deserializer,
    de::{DeserializeSeed, IgnoredAny, MapAccess, Visitor},
};
use tocsin_model::{
    event::EventBatch,
    field::{Damaged, FieldType, Fields, Row},
    filter::Filter,
    id::{EventBatchId, EventId, Name, SubscriptionId},
    problem::Problem,
    state::StatePage,
    time::Timestamp,
    value::Value,
};

use crate::{
    datum::{Datum, Trouble, write_key},
    evaluate::{Parameters, Scene, holds, value},
    events::Events,
    figures::{Figures, FilterFigures},
    filter::book::{FilterBook, FilterNumber},
    index::{
        Hasher,
        chunks::{Entry, KeySlice},
        groups::{Broom, Groups},
        numbers::KeyBook,
        table::Table,
    },
    occasion::{Desk, Occasion, WINDOW},
    residual::Until,
    rule::{Branch, Memberships, Range, RuleNumber, RuleSet},
    state::{Suppression, book::StateBook, remembered::Remembered},
    subscriber::SubscriberView,
};

mod told; // matches that were found by a query

pub use told::Told;

/// Looks into the index that each change pays for the sweep that takes removed subscriptions out.
const LOOKS_PER_CHANGE: usize = 128;

/// A subscription as the index needs it.
#[derive(Debug, Clone, Copy)]
pub struct Subject<'a> {
    /// Its id.
    pub id: SubscriptionId,
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
    /// The keys of the branches that ask events for the same, by [`Branch::asks`].
    pub(crate) keys: Vec<KeyBook>,
    /// One for each filter plan of the rule set.
    pub(crate) books: Vec<FilterBook>,
    states: StateBook,
    channels: Vec<Name>,
    desk: Desk,
    /// The rule that is being matched.
    at_work: Option<RuleNumber>,
}

/// A sweep of one class's index: the branch it is in, counted over the rules of the class, and the place there.
#[derive(Debug, Clone, Copy, Default)]
struct Sweep {
    branch: usize,
    broom: Broom,
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
            Table::new(&kinds, &class.kept, hasher.clone())
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
            rules,
        }
    }

    /// The rules it was made for.
    pub fn rules(&self) -> &Arc<RuleSet> {
        &self.rules
    }

    /// Puts a subscription of a subscriber of whom nothing is known, in place of the one of the same id if there is one.
    /// About a microsecond for each rule of its class.
    ///
    /// # Errors
    /// The class is unknown, the parameters are not a JSON object, the filter cannot be compiled for every event class
    /// of the class's rules, or the shard is full (2^32 subscriptions of a class, 65,535 channels). The subscription of
    /// this id, if there was one, is then gone.
    pub fn put(&mut self, subject: Subject<'_>) -> Result<(), Problem> {
        self.put_of(subject, SubscriberView::default())
    }

    /// Puts a subscription of a subscriber as rules see it; those with another audience are not for it.
    ///
    /// # Errors
    /// As [`Shard::put`].
    pub fn put_of(&mut self, subject: Subject<'_>, subscriber: SubscriberView) -> Result<(), Problem> {
        let class = self.rules.classes.iter().find(|class| class.name == *subject.class);
        let row = class.map(|class| stored_row(&class.fields, subject.values)).transpose();
        let result = match row.map(Option::unwrap_or_default) {
            Ok(row) => self.put_row(
                subject,
                self.rules.full_row(subject.class, row, subscriber.columns),
                subscriber.memberships,
            ),
            Err(_) => Err(Problem::at("", "the stored parameters are not a JSON object")),
        };
        if result.is_err() {
            self.remove(subject.id);
        }
        result
    }

    /// Like `put_of`, with the parameters and what is read of the subscriber as a row.
    pub(crate) fn put_row(
        &mut self,
        subject: Subject<'_>,
        mut row: Row,
        memberships: Memberships,
    ) -> Result<(), Problem> {
        // What is remembered for it stays.
        self.take_out(subject.id);
        let rules = Arc::clone(&self.rules);
        let Some(class) = rules.classes.iter().position(|class| class.name == *subject.class) else {
            return Err(Problem::at("", format!("there is no subscription class `{}`", subject.class)));
        };
        let plan = &rules.classes[class];
        if plan.kept[plan.memberships_at()] {
            row.resize(plan.width(), Value::Null);
            row[plan.memberships_at()] = Value::Integer(memberships.0.cast_signed());
        }
        let channel = self.channel(subject.channel)?;
        let of_subscriber = row.get(plan.fields.len()..).unwrap_or_default();
        let filters = self.take_filters(class, subject.filter, of_subscriber)?;
        let Some(slot) = self.tables[class].insert(subject.id, channel, &row) else {
            filters.iter().for_each(|(book, number)| self.books[*book].give_back(*number));
            return Err(Problem::at("", "the shard is full"));
        };
        for (book, number) in filters {
            self.books[book].file(slot, Some(number));
        }
        let scene = Scene { event: &[], parameters: Parameters::Row(&row) };
        for rule in &rules.classes[class].rules {
            let rule = rules.rule(*rule);
            if !memberships.meet(rule.audience) {
                continue;
            }
            let filter = rule.filters.and_then(|book| self.books[book].of(slot));
            for (at, branch) in rule.branches.iter().enumerate() {
                let index = &mut self.indexes[rule.first_branch + at];
                let book = &mut self.keys[branch.asks];
                file(branch, scene, slot, filter, index, book, &mut self.desk.key);
            }
        }
        self.states.refresh(&rules, class, subject.id, &row);
        Ok(())
    }

    /// The numbers of a filter in each book of a class.
    fn take_filters(
        &mut self,
        class: usize,
        filter: Option<&Filter>,
        subscriber: &[Value],
    ) -> Result<Vec<(usize, FilterNumber)>, Problem> {
        let rules = Arc::clone(&self.rules);
        let Some(filter) = filter else { return Ok(Vec::new()) };
        if !rules.classes[class].takes_filters {
            return Err(Problem::at("filter", "its class takes no filters"));
        }
        let mut taken = Vec::new();
        for book in &rules.classes[class].filters {
            match self.books[*book].take(filter, &rules.filters[*book].scope, subscriber) {
                Ok(number) => taken.push((*book, number)),
                Err(problems) => {
                    taken
                        .iter()
                        .for_each(|(book, number): &(usize, FilterNumber)| self.books[*book].give_back(*number));
                    let first = problems.into_iter().next();
                    let first = first.unwrap_or_else(|| Problem::at("", "the filter cannot be compiled"));
                    return Err(Problem { path: "filter".to_owned(), ..first });
                }
            }
        }
        Ok(taken)
    }

    /// Removes a subscription, if it is there, and forgets what rules remember for it.
    pub fn remove(&mut self, id: SubscriptionId) {
        let rules = Arc::clone(&self.rules);
        for class in 0..self.tables.len() {
            self.states.forget(&rules, class, id);
        }
        self.take_out(id);
    }

    fn take_out(&mut self, id: SubscriptionId) {
        for class in 0..self.tables.len() {
            if let Some(slot) = self.tables[class].remove(id) {
                for book in &self.rules.classes[class].filters {
                    self.books[*book].forget(slot);
                }
                self.sweep(class);
                return;
            }
            if self.sweeps[class].is_some() {
                self.sweep(class);
            }
        }
    }

    fn channel(&mut self, channel: Option<&Name>) -> Result<u16, Problem> {
        let Some(channel) = channel else { return Ok(0) };
        let at = match self.channels.iter().position(|known| known == channel) {
            Some(at) => at,
            None => {
                self.channels.push(channel.clone());
                self.channels.len() - 1
            }
        };
        u16::try_from(at + 1).map_err(|_| Problem::at("", "there are more than 65,535 channels"))
    }

    /// Takes entries of removed subscriptions out of the index, a little at each change, so that no change waits.
    fn sweep(&mut self, class: usize) {
        let table = &mut self.tables[class];
        if self.sweeps[class].is_none() {
            if !table.begin_sweep() {
                return;
            }
            self.sweeps[class] = Some(Sweep::default());
        }
        let rules = Arc::clone(&self.rules);
        let branches = rules.classes[class].rules.iter().flat_map(|rule| {
            let rule = rules.rule(*rule);
            rule.branches.iter().zip(rule.first_branch..)
        });
        let mut looks = LOOKS_PER_CHANGE;
        let mut sweep = self.sweeps[class].take().unwrap_or_default();
        for (branch, at) in branches.skip(sweep.branch) {
            let (index, book) = (&mut self.indexes[at], &mut self.keys[branch.asks]);
            match index.sweep(book, sweep.broom, &mut looks, &|slot| !table.is_dead(slot)) {
                Some(broom) => {
                    sweep.broom = broom;
                    self.sweeps[class] = Some(sweep);
                    return;
                }
                None => sweep = Sweep { branch: sweep.branch + 1, broom: Broom::default() },
            }
        }
        table.end_sweep();
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

/// Files a subscription in a branch, unless its guards or values say that it can never match there.
fn file(
    branch: &Branch,
    scene: Scene<'_>,
    slot: u32,
    filter: Option<FilterNumber>,
    index: &mut Groups,
    book: &mut KeyBook,
    key: &mut Vec<u8>,
) {
    let holds = |guard| holds(guard, scene).unwrap_or(false);
    if !branch.subscription_guards.iter().all(holds) {
        return;
    }
    let end = |ordered: &crate::rule::Ordered| ordered.measure.key(&value(&ordered.subscription, scene).ok()?);
    let ends = match &branch.range {
        Range::None => Some((0, 0)),
        Range::One(only) => end(only).map(|key| (key, 0)),
        Range::Two(ends) => end(&ends[0]).zip(end(&ends[1])),
    };
    let Some((low, high)) = ends else { return };
    let entry = Entry { key: low, high, slot };
    key.clear();
    if let (Some(filter), false) = (filter, branch.is_indexed()) {
        key.extend_from_slice(&filter.to_le_bytes());
        let number = book.number(key);
        return index.insert(book, number, entry);
    }
    // The part that holds a list stands last, since it is the one that varies.
    for part in branch.keys.iter().filter(|part| !part.any_of) {
        match value(&part.subscription, scene).and_then(|datum| write_key(&datum, key)) {
            Ok(()) => {}
            Err(_) => return,
        }
    }
    let Some(list) = branch.keys.iter().find(|part| part.any_of) else {
        let number = book.number(key);
        return index.insert(book, number, entry);
    };
    let Ok(Datum::List(items)) = value(&list.subscription, scene) else { return };
    let start = key.len();
    let mut filed: Vec<Vec<u8>> = Vec::with_capacity(items.len());
    for item in items.iter() {
        key.truncate(start);
        if write_key(&item, key).is_ok() {
            filed.push(key.clone());
        }
    }
    filed.sort_unstable();
    filed.dedup();
    for key in filed {
        let number = book.number(&key);
        index.insert(book, number, entry);
    }
}

/// How rows of one version of a class become rows of another.
pub(crate) enum Layout {
    Same,
    /// For each field, the place it had, if it was there with a type that can be taken.
    Mapped(Vec<Option<usize>>, Fields),
}

impl Layout {
    pub fn between(from: &Fields, to: &Fields) -> Layout {
        let same = from.len() == to.len()
            && from.iter().zip(to.iter()).all(|(from, to)| from.name == to.name && from.kind == to.kind);
        if same {
            return Layout::Same;
        }
        Layout::Mapped(to.iter().map(|field| from.position(field.name.as_str())).collect(), to.clone())
    }

    pub fn apply(&self, mut row: Row) -> Row {
        match self {
            Layout::Same => row,
            Layout::Mapped(places, fields) => {
                let take = |(place, at): (&Option<usize>, usize)| {
                    let given = place.and_then(|place| row.get_mut(place)).map(std::mem::take).unwrap_or_default();
                    fields[at].kind.accept(given).unwrap_or_default()
                };
                places.iter().zip(0..).map(take).collect()
            }
        }
    }
}

/// Reads stored parameters as `Fields::row_from_stored` does, without a map in between.
fn stored_row(fields: &Fields, json: &str) -> Result<Row, serde_json::Error> {
    let mut reader = serde_json::Deserializer::from_str(json);
    let row = StoredRow(fields).deserialize(&mut reader)?;
    reader.end()?;
    Ok(row)
}

struct StoredRow<'a>(&'a Fields);

impl<'de> DeserializeSeed<'de> for StoredRow<'_> {
    type Value = Row;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Row, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for StoredRow<'_> {
    type Value = Row;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of parameters")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Row, A::Error> {
        let mut row: Row = self.0.iter().map(|field| field.default.clone()).collect();
        while let Some(name) = entries.next_key_seed(FieldName)? {
            match self.0.position(&name) {
                None => {
                    entries.next_value::<IgnoredAny>()?;
                }
                Some(at) => {
                    if let Ok(value) = self.0[at].kind.accept(entries.next_value()?)
                        && !value.is_null()
                    {
                        row[at] = value;
                    }
                }
            }
        }
        Ok(row)
    }
}

/// Reads a key, borrowed where the JSON allows it.
struct FieldName;

impl<'de> DeserializeSeed<'de> for FieldName {
    type Value = Cow<'de, str>;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for FieldName {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a field")
    }

    fn visit_borrowed_str<E>(self, name: &'de str) -> Result<Self::Value, E> {
        Ok(Cow::Borrowed(name))
    }

    fn visit_str<E>(self, name: &str) -> Result<Self::Value, E> {
        Ok(Cow::Owned(name.to_owned()))
    }
}
