//! One part of the subscribers with its index. One owner, no locks: what was put or removed before a batch is what the
//! batch sees.

use std::{
    borrow::Cow,
    fmt,
    hash::{BuildHasher, RandomState},
    sync::Arc,
};

use serde::{
    Deserializer,
    de::{DeserializeSeed, IgnoredAny, MapAccess, Visitor},
};
use tocsin_model::{
    event::EventBatch,
    field::{Damaged, FieldType, Fields, Row, unpack_row},
    id::{EventBatchId, Name, SubscriptionId},
    problem::Problem,
    value::Value,
};

use crate::{
    datum::{Datum, Trouble, write_key},
    evaluate::{Parameters, Scene, holds, value},
    index::{
        chunks::{Entry, Query},
        groups::{Broom, Groups},
        key::Bound,
        table::{Bits, Table},
    },
    rule::{Branch, CompiledRule, Range, RuleNumber, RuleSet},
};

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
}

/// A match that a rule's query found.
#[derive(Debug, Clone, Copy)]
pub struct Told<'a> {
    /// The rule.
    pub rule: RuleNumber,
    /// The event's batch.
    pub batch: EventBatchId,
    /// The event's place in its batch.
    pub event_ordinal: u32,
    /// The event, as [`RuleSet::rows`] gives it.
    pub event: &'a [Value],
    /// Whom to tell.
    pub subscription: SubscriptionId,
    /// The fields of the notification that the query gave, in the order of its columns.
    pub given: &'a [Value],
}

/// Receives matches in runs.
pub trait MatchSink {
    /// Some subscriptions match an event by a rule. Each subscription comes once for a rule and event; a rule and event
    /// may come in several runs, one right after the other.
    fn run(&mut self, run: Run<'_>);

    /// A rule could not be decided for an event, for all subscriptions or for some. To be counted; what else matches
    /// is still given.
    fn rule_failed(&mut self, rule: RuleNumber, event_ordinal: u32, trouble: Trouble);
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
    /// The event, as a row of its class in the rule set's version.
    pub event: &'a [Value],
    /// What the rule's query gave, if it has one; then there is one slot.
    pub(crate) given: &'a [Value],
    pub(crate) rules: &'a RuleSet,
    pub(crate) table: &'a Table,
    channels: &'a [Name],
}

impl<'a> Run<'a> {
    /// The subscription of a slot.
    pub fn id(&self, slot: u32) -> SubscriptionId {
        self.table.id(slot)
    }

    /// The number of a slot's channel, which [`Run::channel_name`] knows. 0 is none.
    pub fn channel(&self, slot: u32) -> u16 {
        self.table.channel(slot)
    }

    /// The one channel number that all subscriptions of the class use, if that is so.
    pub fn sole_channel(&self) -> Option<u16> {
        self.table.sole_channel()
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
    indexes: Vec<Groups>,
    channels: Vec<Name>,
    hasher: RandomState,
    desk: Desk,
}

/// A sweep of one class's index: the branch it is in, counted over the rules of the class, and the place there.
#[derive(Debug, Clone, Copy, Default)]
struct Sweep {
    branch: usize,
    broom: Broom,
}

/// Memory that is used again and again.
#[derive(Default)]
struct Desk {
    key: Vec<u8>,
    /// Which question `key` and `hash` answer for the event at hand; 0 for none.
    asked: usize,
    hash: u64,
    slots: Vec<u32>,
    union: Vec<u32>,
    seen: Bits,
}

impl fmt::Debug for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shard").field("subscriptions", &self.len()).finish_non_exhaustive()
    }
}

impl Shard {
    /// An empty shard of these rules.
    pub fn new(rules: Arc<RuleSet>) -> Shard {
        let hasher = RandomState::new();
        let tables = rules.classes.iter().map(|class| {
            let kinds: Vec<FieldType> = class.fields.iter().map(|field| field.kind).collect();
            Table::new(&kinds, &class.kept, hasher.clone())
        });
        let enabled = rules.rules.iter().filter(|rule| rule.enabled);
        let indexes = enabled.flat_map(|rule| &rule.branches).map(|branch| Groups::new(branch.arrangement()));
        Shard {
            tables: tables.collect(),
            sweeps: vec![None; rules.classes.len()],
            indexes: indexes.collect(),
            channels: Vec::new(),
            hasher,
            desk: Desk::default(),
            rules,
        }
    }

    /// The rules it was made for.
    pub fn rules(&self) -> &Arc<RuleSet> {
        &self.rules
    }

    /// Puts a subscription, in place of the one of the same id if there is one. About a microsecond for each rule of
    /// its class.
    ///
    /// # Errors
    /// The class is unknown, the parameters are not a JSON object, or the shard is full (2^32 subscriptions of a
    /// class, 65,535 channels). The subscription of this id, if there was one, is then gone.
    pub fn put(&mut self, subject: Subject<'_>) -> Result<(), Problem> {
        self.remove(subject.id);
        let rules = Arc::clone(&self.rules);
        let Some(class) = rules.classes.iter().position(|class| class.name == *subject.class) else {
            return Err(Problem::at("", format!("there is no subscription class `{}`", subject.class)));
        };
        let row = stored_row(&rules.classes[class].fields, subject.values)
            .map_err(|_| Problem::at("", "the stored parameters are not a JSON object"))?;
        let channel = self.channel(subject.channel)?;
        let full = || Problem::at("", "the shard is full");
        let slot = self.tables[class].insert(subject.id, channel, &row).ok_or_else(full)?;
        let scene = Scene { event: &[], parameters: Parameters::Row(&row) };
        for rule in &rules.classes[class].rules {
            let rule = rules.rule(*rule);
            for (at, branch) in rule.branches.iter().enumerate() {
                file(branch, scene, slot, &mut self.indexes[rule.first_branch + at], &self.hasher, &mut self.desk.key);
            }
        }
        Ok(())
    }

    /// Removes a subscription, if it is there.
    pub fn remove(&mut self, id: SubscriptionId) {
        for class in 0..self.tables.len() {
            if self.tables[class].remove(id) {
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
            rule.first_branch..rule.first_branch + rule.branches.len()
        });
        let mut looks = LOOKS_PER_CHANGE;
        let mut sweep = self.sweeps[class].take().unwrap_or_default();
        for branch in branches.skip(sweep.branch) {
            match self.indexes[branch].sweep(sweep.broom, &mut looks, &|slot| !table.is_dead(slot)) {
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

    /// Gives every match of a batch to the sink: event by event, rules by name within each. `event_fields` are the
    /// fields with which the batch was packed; they are mapped by name to those of the rule set, and what is missing
    /// is null. Deterministic but for the order of subscriptions within a rule and event.
    ///
    /// # Errors
    /// The batch is damaged; matches of the events before the damage were given.
    pub fn match_batch(
        &mut self,
        batch: &EventBatch,
        event_fields: &Fields,
        out: &mut impl MatchSink,
    ) -> Result<(), Damaged> {
        let rules = Arc::clone(&self.rules);
        let Some(plan) = rules.events.get(&batch.class).filter(|plan| !plan.rules.is_empty()) else { return Ok(()) };
        let layout = Layout::between(event_fields, &plan.fields);
        let mut desk = std::mem::take(&mut self.desk);
        let mut result = Ok(());
        for (ordinal, packed) in batch.events.rows().enumerate() {
            let event = match packed.and_then(|packed| unpack_row(event_fields, packed)) {
                Ok(row) => layout.apply(row),
                Err(damaged) => {
                    result = Err(damaged);
                    break;
                }
            };
            desk.asked = 0;
            for number in &plan.rules {
                let rule = rules.rule(*number);
                let occasion = Occasion {
                    shard: self,
                    rules: &rules,
                    number: *number,
                    rule,
                    table: &self.tables[rule.class],
                    batch: batch.id,
                    ordinal: ordinal as u32,
                    event: &event,
                };
                occasion.answer(&mut desk, out);
            }
        }
        self.desk = desk;
        result
    }

    /// Gives a match that was found elsewhere to the sink. False if the subscription is not here, or not of the rule's
    /// class.
    pub fn tell(&self, told: Told<'_>, out: &mut impl MatchSink) -> bool {
        let table = &self.tables[self.rules.rule(told.rule).class];
        let Some(slot) = table.find(told.subscription) else { return false };
        out.run(Run {
            rule: told.rule,
            batch: told.batch,
            event_ordinal: told.event_ordinal,
            slots: &[slot],
            event: told.event,
            given: told.given,
            rules: &self.rules,
            table,
            channels: &self.channels,
        });
        true
    }

    /// How many subscriptions there are.
    pub fn len(&self) -> usize {
        self.tables.iter().map(Table::len).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes held, as far as they grow with the subscriptions.
    pub fn memory_bytes(&self) -> usize {
        self.tables.iter().map(Table::memory_bytes).sum::<usize>()
            + self.indexes.iter().map(Groups::memory_bytes).sum::<usize>()
    }
}

/// Files a subscription in a branch, unless its guards or values say that it can never match there.
fn file(branch: &Branch, scene: Scene<'_>, slot: u32, index: &mut Groups, hasher: &RandomState, key: &mut Vec<u8>) {
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
    // The part that holds a list stands last, since it is the one that varies.
    for part in branch.keys.iter().filter(|part| !part.any_of) {
        match value(&part.subscription, scene).and_then(|datum| write_key(&datum, key)) {
            Ok(()) => {}
            Err(_) => return,
        }
    }
    let Some(list) = branch.keys.iter().find(|part| part.any_of) else {
        return index.insert(hasher.hash_one(&key[..]), key, entry);
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
        index.insert(hasher.hash_one(&key[..]), &key, entry);
    }
}

/// One rule meets one event.
struct Occasion<'a> {
    shard: &'a Shard,
    rules: &'a RuleSet,
    number: RuleNumber,
    rule: &'a CompiledRule,
    table: &'a Table,
    batch: EventBatchId,
    ordinal: u32,
    event: &'a [Value],
}

impl<'a> Occasion<'a> {
    fn answer(&self, desk: &mut Desk, out: &mut impl MatchSink) {
        let single = self.rule.branches.len() == 1;
        desk.union.clear();
        for (at, branch) in self.rule.branches.iter().enumerate() {
            let index = &self.shard.indexes[self.rule.first_branch + at];
            if let Err(trouble) = self.answer_branch(branch, index, single, desk, out) {
                out.rule_failed(self.number, self.ordinal, trouble);
            }
        }
        if !single {
            for slot in &desk.union {
                desk.seen.clear(*slot);
            }
            self.give(&desk.union, out);
        }
    }

    fn answer_branch(
        &self,
        branch: &Branch,
        index: &Groups,
        single: bool,
        desk: &mut Desk,
        out: &mut impl MatchSink,
    ) -> Result<(), Trouble> {
        let scene = Scene { event: self.event, parameters: Parameters::None };
        for guard in &branch.event_guards {
            if !holds(guard, scene)? {
                return Ok(());
            }
        }
        let Some(query) = self.query(branch, scene)? else { return Ok(()) };
        if desk.asked != branch.asks {
            desk.asked = 0;
            if !self.write_keys(branch, scene, &mut desk.key)? {
                return Ok(());
            }
            desk.hash = self.shard.hasher.hash_one(&desk.key[..]);
            desk.asked = branch.asks;
        }
        let Some(group) = index.find(desk.hash, &desk.key) else { return Ok(()) };
        let whole = !self.table.has_dead() && branch.residual.is_empty();
        if whole && single {
            group.answer(index.arrangement(), query, &mut |slots| self.give(slots, out));
            return Ok(());
        }
        let Desk { slots, union, seen, .. } = desk;
        slots.clear();
        if self.table.has_dead() {
            let live = |slot: &u32| !self.table.is_dead(*slot);
            group.answer(index.arrangement(), query, &mut |found| slots.extend(found.iter().copied().filter(live)));
        } else {
            group.answer(index.arrangement(), query, &mut |found| slots.extend_from_slice(found));
        }
        for check in &branch.residual {
            if slots.is_empty() {
                return Ok(());
            }
            if check.retain(slots, scene, self.table)? > 0 {
                out.rule_failed(self.number, self.ordinal, Trouble::Cost);
            }
        }
        if single {
            self.give(slots, out);
        } else {
            union.extend(slots.iter().copied().filter(|slot| seen.set(*slot)));
        }
        Ok(())
    }

    /// What to ask of a group; `None` where the event's value has no order, so that nothing can match.
    fn query(&self, branch: &'a Branch, scene: Scene<'a>) -> Result<Option<Query>, Trouble> {
        let at = |ordered: &'a crate::rule::Ordered| match value(&ordered.event, scene) {
            Ok(datum) => Ok(Some(datum)),
            Err(Trouble::Cost) => Err(Trouble::Cost),
            Err(_) => Ok(None),
        };
        Ok(match &branch.range {
            Range::None => Some(Query::All),
            Range::One(only) => at(only)?.and_then(|datum| only.measure.bound(only.operator, &datum)).map(Query::Keys),
            Range::Two(ends) => at(&ends[0])?.and_then(|datum| {
                let low = ends[0].measure.bound(ends[0].operator, &datum)?;
                let high = ends[1].measure.bound(ends[1].operator, &datum)?;
                match (low, high) {
                    (Bound::UpTo(low), Bound::From(high)) => Some(Query::Around(low, high)),
                    _ => None,
                }
            }),
        })
    }

    /// Writes the event's key. False where a part has no value, so that nothing can match.
    fn write_keys(&self, branch: &Branch, scene: Scene<'_>, key: &mut Vec<u8>) -> Result<bool, Trouble> {
        key.clear();
        for part in &branch.keys {
            match value(&part.event, scene).and_then(|datum| write_key(&datum, key)) {
                Ok(()) => {}
                Err(Trouble::Cost) => return Err(Trouble::Cost),
                Err(_) => return Ok(false),
            }
        }
        Ok(true)
    }

    fn give(&self, slots: &[u32], out: &mut impl MatchSink) {
        if !slots.is_empty() {
            out.run(Run {
                rule: self.number,
                batch: self.batch,
                event_ordinal: self.ordinal,
                slots,
                event: self.event,
                given: &[],
                rules: self.rules,
                table: self.table,
                channels: &self.shard.channels,
            });
        }
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
