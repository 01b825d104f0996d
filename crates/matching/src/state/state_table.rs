//! Suppression state of the rules of one shard, with undo: changes can be undone until their commit is confirmed.

use std::{
    collections::{BTreeSet, VecDeque},
    fmt,
    sync::Arc,
};

use bytes::Bytes;
use hashbrown::HashMap;
use tocsin_model::{
    id::{EventId, SubscriptionId},
    state::StatePage,
    time::Timestamp,
    value::Value,
};

use crate::{
    digest::digest_of,
    eval_value::EvalError,
    evaluate::{EvalContext, Parameters, value},
    expression::Expression,
    index::{
        columns::{KeySlice, halves},
        table::Table,
    },
    matches::{MatchSink, Run},
    rule::rule_set::{CompiledRule, CompiledState, RuleNumber, RuleSet},
    state::{
        page::{PART_BITS, Page, Pair, SubscriptionState, WIDTH},
        rearm_index::{RearmIndex, StateKey, row_of},
        restored::RestoredStates,
    },
};

/// Pages checked for expired state at each commit.
const SWEPT: usize = 64;
/// Tolerance for a clock that is set back, in microseconds, before an expired cooldown is removed.
const LATENESS: i64 = 3_600_000_000;

/// The reason why a match was suppressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Suppression {
    /// The last notification was too recently.
    Cooldown,
    /// The subscription is disarmed: no event has re-armed it since the last notification.
    Unarmed,
    /// The values equal those of the last notification.
    Unchanged,
}

impl Suppression {
    /// All reasons.
    pub const ALL: [Suppression; 3] = [Suppression::Cooldown, Suppression::Unarmed, Suppression::Unchanged];

    /// Name in metrics and transcripts.
    pub fn name(self) -> &'static str {
        match self {
            Suppression::Cooldown => "cooldown",
            Suppression::Unarmed => "unarmed",
            Suppression::Unchanged => "unchanged",
        }
    }
}

/// The suppression state of all rules of a shard.
#[derive(Default)]
pub(crate) struct StateTable {
    /// By the rule's number; none for rules without state.
    rules: Vec<Option<RuleStates>>,
    undo_log: UndoLog,
    /// The partition in the high bits of its page numbers, so that no two shards write the same page; and the number of
    /// partitions.
    part: u64,
    parts: u64,
}

/// The state of one rule.
struct RuleStates {
    name: Box<str>,
    rules: Arc<RuleSet>,
    number: RuleNumber,
    pages: HashMap<u64, Page>,
    waiting: Option<RearmIndex>,
    suppressed: [u64; Suppression::ALL.len()],
    /// Pages that the sweep has yet to check.
    to_sweep: Vec<u64>,
    /// The latest time of any event of the rule.
    latest: i64,
}

/// The undo log.
#[derive(Default)]
struct UndoLog {
    /// The oldest first; each is based on those before it.
    layers: VecDeque<UndoLayer>,
    /// Pages that differ from the journal for a reason that is not undone.
    dirty: BTreeSet<(usize, u64)>,
    /// Pages of rules that no longer exist, to be removed.
    dead: Vec<StatePage>,
}

#[derive(Default)]
struct UndoLayer {
    /// Previous versions of changed pages; `None` if the page did not exist.
    before: HashMap<(usize, u64), Option<Page>>,
    /// Entries of `dirty` and `dead` that were committed with this layer.
    also: BTreeSet<(usize, u64)>,
    dead: Vec<StatePage>,
}

/// An event as input of a rule's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StateEvent {
    at: i64,
    /// Digests of the values of `per` and `changed`; 0 if they are not declared.
    pub(super) key: u64,
    value: u64,
}

impl fmt::Debug for StateTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StateTable").field("states", &self.len()).finish_non_exhaustive()
    }
}

impl StateTable {
    pub fn new(rules: &Arc<RuleSet>) -> StateTable {
        let rule_states = |(at, rule): (usize, &CompiledRule)| {
            let state = rule.state.as_ref().filter(|_| rule.enabled)?;
            let waiting = state.rearm.as_ref().map(|rearm| RearmIndex::new(rearm, state.per.is_some()));
            Some(RuleStates {
                name: format!("rules.{}", rule.name).into(),
                rules: rules.clone(),
                number: RuleNumber(at as u32),
                pages: HashMap::new(),
                waiting,
                suppressed: [0; Suppression::ALL.len()],
                to_sweep: Vec::new(),
                latest: i64::MIN,
            })
        };
        StateTable { rules: rules.rules.iter().enumerate().map(rule_states).collect(), ..StateTable::default() }
    }

    /// Sets which of `parts` partitions this is.
    pub fn set_part(&mut self, part: u16, parts: u16) {
        (self.part, self.parts) = (u64::from(part) << PART_BITS, u64::from(parts));
    }

    /// An empty table of the same partition.
    pub fn empty(&self, rules: &Arc<RuleSet>) -> StateTable {
        StateTable { part: self.part, parts: self.parts, ..StateTable::new(rules) }
    }

    /// The number of state entries.
    pub fn len(&self) -> usize {
        self.rules.iter().flatten().flat_map(|rule_states| rule_states.pages.values()).map(Page::len).sum()
    }

    pub fn memory_bytes(&self) -> usize {
        let of = |rule_states: &RuleStates| {
            rule_states.pages.values().map(|page| page.memory_bytes() + 16).sum::<usize>()
                + rule_states.waiting.as_ref().map_or(0, RearmIndex::memory_bytes)
        };
        self.rules.iter().flatten().map(of).sum()
    }

    /// Evaluates `per` and `changed` for an event; `None` if one has no value, so that nothing matches.
    pub fn state_event(state: &CompiledState, event: &[Value], at: Timestamp) -> Result<Option<StateEvent>, EvalError> {
        let mut buffer = Vec::new();
        let mut digest = |expression: &Option<Expression>| {
            let Some(expression) = expression else { return Ok(Some(0)) };
            let context = EvalContext { event, parameters: Parameters::None };
            match value(expression, context) {
                Ok(found) => Ok(digest_of(&found, &mut buffer)),
                Err(EvalError::Cost) => Err(EvalError::Cost),
                Err(_) => Ok(None),
            }
        };
        let (key, value) = (digest(&state.per)?, digest(&state.changed)?);
        Ok(key.zip(value).map(|(key, value)| StateEvent { at: at.0, key, value }))
    }

    /// The subscriptions that an event re-arms, among those that were disarmed before it.
    ///
    /// # Errors
    /// `Cost`: the condition exceeded the step limit.
    pub fn rearmed(
        &mut self,
        number: RuleNumber,
        state: &CompiledState,
        state_event: StateEvent,
        event: &[Value],
    ) -> Result<Vec<StateKey>, EvalError> {
        let rule_states = self.rules[number.0 as usize].as_mut();
        match (rule_states.and_then(|rule_states| rule_states.waiting.as_mut()), &state.rearm) {
            (Some(waiting), Some(rearm)) => waiting.answer(rearm, event, state_event.key),
            _ => Ok(Vec::new()),
        }
    }

    /// Applies the re-arming of an event to a rule that does not fire.
    pub fn only_rearm(&mut self, number: RuleNumber, state: &CompiledState, event: &[Value], at: Timestamp) {
        // An error re-arms no subscription, and is reported where the rule fires.
        if let Ok(Some(state_event)) = Self::state_event(state, event, at)
            && let Ok(rearmed) = self.rearmed(number, state, state_event, event)
        {
            self.arm(number, state, state_event, &rearmed);
        }
    }

    /// Re-arms subscriptions.
    pub fn arm(&mut self, number: RuleNumber, state: &CompiledState, state_event: StateEvent, rearmed: &[StateKey]) {
        for state_key in rearmed {
            let (page, pair) = self.place(*state_key);
            let Some(rule_states) = self.rules[number.0 as usize].as_mut() else { return };
            self.undo_log.save(number.0 as usize, page, rule_states.pages.get(&page));
            if let Some(waiting) = &mut rule_states.waiting {
                waiting.remove(*state_key);
            }
            let Some(held) = rule_states.pages.get_mut(&page) else { continue };
            let Some(memory) = held.get(pair) else { continue };
            let memory = SubscriptionState { armed: true, ..memory };
            if is_expired(state, memory, state_event.at) {
                held.remove(pair);
                if held.is_empty() {
                    rule_states.pages.remove(&page);
                }
            } else {
                held.put(pair, memory, state.shape);
            }
        }
    }

    /// A sink that suppresses matches by state, and records the others as notified.
    pub fn suppressing_sink<'a, S: MatchSink>(
        &'a mut self,
        number: RuleNumber,
        state: &'a CompiledState,
        state_event: StateEvent,
        out: &'a mut S,
    ) -> SuppressingSink<'a, S> {
        if let Some(rule_states) = &mut self.rules[number.0 as usize] {
            rule_states.latest = rule_states.latest.max(state_event.at);
        }
        SuppressingSink { states: self, number, state, state_event, out, notified: Vec::new(), keys: Vec::new() }
    }

    /// The page of a subscription, and its position there.
    fn place(&self, (id, key): StateKey) -> (u64, Pair) {
        (self.part | (id.0 / WIDTH), ((id.0 % WIDTH) as u8, key))
    }

    fn state_key(page: u64, (place, key): Pair) -> StateKey {
        (SubscriptionId((page & ((1 << PART_BITS) - 1)) * WIDTH + u64::from(place)), key)
    }

    /// Checks whether a match is suppressed. If not, it is recorded as notified.
    fn notify(
        &mut self,
        number: RuleNumber,
        state: &CompiledState,
        state_event: StateEvent,
        table: &Table,
        slot: u32,
    ) -> Result<(), Suppression> {
        let state_key = (table.id(slot), state_event.key);
        let (page, pair) = self.place(state_key);
        let at = number.0 as usize;
        let Some(rule_states) = self.rules[at].as_mut() else { return Ok(()) };
        let held = rule_states.pages.get(&page);
        if let Some(memory) = held.and_then(|held| held.get(pair)) {
            check(state, memory, state_event)?;
        }
        self.undo_log.save(at, page, held);
        let memory =
            SubscriptionState { notified_at: state_event.at, value: state_event.value, armed: state.rearm.is_none() };
        let forgotten = rule_states.pages.entry(page).or_default().put(pair, memory, state.shape);
        if let (Some(waiting), Some(rearm)) = (&mut rule_states.waiting, &state.rearm) {
            let width = rule_states.rules.classes[rule_states.rules.rule(number).class].width();
            waiting.put(rearm, state_key, row_of(rearm, width, table, slot));
            if let Some(pair) = forgotten {
                waiting.remove(Self::state_key(page, pair));
            }
        }
        Ok(())
    }

    /// Updates the re-arm index with the present values of a changed subscription.
    pub fn refresh(&mut self, rules: &RuleSet, class: usize, id: SubscriptionId, row: &[Value]) {
        for number in &rules.classes[class].rules {
            let (page, (place, _)) = self.place((id, 0));
            let Some(rule_states) = self.rules[number.0 as usize].as_mut() else { continue };
            let rearm = rules.rule(*number).state.as_ref().and_then(|state| state.rearm.as_ref());
            let (Some(waiting), Some(rearm), Some(held)) =
                (&mut rule_states.waiting, rearm, rule_states.pages.get(&page))
            else {
                continue;
            };
            for (pair, memory) in held.of(place) {
                if !memory.armed {
                    waiting.put(rearm, (id, pair.1), row.to_vec());
                }
            }
        }
    }

    /// Removes the state of a deleted subscription. This is not undone.
    pub fn remove(&mut self, rules: &RuleSet, class: usize, id: SubscriptionId) {
        for number in &rules.classes[class].rules {
            let at = number.0 as usize;
            let (page, (place, _)) = self.place((id, 0));
            let Some(rule_states) = self.rules[at].as_mut() else { continue };
            let mut found = false;
            let mut thin = |held: &mut Page| {
                found |= held.of(place).next().is_some();
                held.retain(|(other, _), _| other != place);
            };
            for layer in &mut self.undo_log.layers {
                if let Some(Some(held)) = layer.before.get_mut(&(at, page)) {
                    thin(held);
                }
            }
            if let Some(held) = rule_states.pages.get_mut(&page) {
                if let Some(waiting) = &mut rule_states.waiting {
                    held.of(place).for_each(|((_, key), _)| waiting.remove((id, key)));
                }
                thin(held);
                if held.is_empty() {
                    rule_states.pages.remove(&page);
                }
            }
            if found {
                self.undo_log.dirty.insert((at, page));
            }
        }
    }

    /// Starts an undo layer.
    pub fn begin(&mut self) {
        self.undo_log.layers.push_back(UndoLayer::default());
    }

    /// Confirms the oldest undo layer: its changes are stored durably.
    pub fn confirm(&mut self) {
        self.undo_log.layers.pop_front();
    }

    /// Undoes the changes of the newest layer.
    pub fn undo(&mut self, rules: &RuleSet, tables: &[Table]) {
        let Some(layer) = self.undo_log.layers.pop_back() else { return };
        self.undo_log.dirty.extend(layer.also);
        self.undo_log.dead.extend(layer.dead);
        for ((at, page), before) in layer.before {
            let Some(rule_states) = self.rules[at].as_mut() else { continue };
            let before = before.filter(|page| !page.is_empty());
            if let Some(waiting) = &mut rule_states.waiting {
                let rule = rules.rule(rule_states.number);
                let (table, width) = (&tables[rule.class], rules.classes[rule.class].width());
                let Some(rearm) = rule.state.as_ref().and_then(|state| state.rearm.as_ref()) else { continue };
                let after = rule_states.pages.get(&page);
                let was = |pair| before.as_ref().and_then(|page| page.get(pair)).is_some_and(|memory| !memory.armed);
                let is = |pair| after.and_then(|page| page.get(pair)).is_some_and(|memory| !memory.armed);
                for (pair, _) in after.into_iter().flat_map(Page::iter).filter(|(pair, _)| is(*pair) && !was(*pair)) {
                    waiting.remove(Self::state_key(page, pair));
                }
                for (pair, _) in before.iter().flat_map(Page::iter).filter(|(pair, _)| was(*pair) && !is(*pair)) {
                    let state_key = Self::state_key(page, pair);
                    if let Some(slot) = table.find(state_key.0) {
                        waiting.put(rearm, state_key, row_of(rearm, width, table, slot));
                    }
                }
            }
            match before {
                Some(before) => rule_states.pages.insert(page, before),
                None => rule_states.pages.remove(&page),
            };
            rule_states.suppressed = Default::default();
        }
    }

    /// The pages that changed since the last `begin`, and those that changed for other reasons since the last call.
    /// The caller stores them in the commit of the matches.
    pub fn take_changes(&mut self, rules: &RuleSet) -> Vec<StatePage> {
        self.sweep(rules);
        let StateTable { rules: all_states, undo_log, .. } = self;
        let (dirty, dead) = (std::mem::take(&mut undo_log.dirty), std::mem::take(&mut undo_log.dead));
        let mut changed = dirty.clone();
        if let Some(layer) = undo_log.layers.back_mut() {
            changed.extend(layer.before.keys());
            layer.also.extend(dirty);
            layer.dead.extend(dead.iter().cloned());
        }
        let pack = |(at, page): (usize, u64)| {
            let rule_states = all_states[at].as_ref()?;
            let shape = rules.rule(rule_states.number).state.as_ref()?.shape;
            let body = rule_states.pages.get(&page).map(|page| page.pack(shape)).unwrap_or_default();
            Some(StatePage { name: rule_states.name.clone(), number: page, body: body.into() })
        };
        changed.into_iter().filter_map(pack).chain(dead).collect()
    }

    /// All pages, as the journal has them after the last `take_changes`.
    pub fn pages(&self, rules: &RuleSet) -> Vec<StatePage> {
        let pack = |rule_states: &RuleStates| {
            let shape = rules.rule(rule_states.number).state.as_ref().map(|state| state.shape);
            let page = |(number, page): (&u64, &Page)| {
                Some(StatePage { name: rule_states.name.clone(), number: *number, body: page.pack(shape?).into() })
            };
            rule_states.pages.iter().filter_map(page).collect::<Vec<_>>()
        };
        self.rules.iter().flatten().flat_map(pack).collect()
    }

    /// Marks outdated pages, so that the next commit corrects them. Each page belongs to the shard that would write it,
    /// or to the first if there is no such shard any more.
    pub fn take_over(&mut self, pages: &[StatePage]) {
        let own = |page: &&StatePage| {
            let part = page.number >> PART_BITS;
            part == self.part >> PART_BITS || (self.part == 0 && part >= self.parts.max(1))
        };
        let own: Vec<&StatePage> = pages.iter().filter(own).collect();
        for page in own {
            match self
                .rules
                .iter()
                .position(|rule_states| rule_states.as_ref().is_some_and(|rule_states| rule_states.name == page.name))
            {
                Some(at) => {
                    self.undo_log.dirty.insert((at, page.number));
                }
                None => self.undo_log.dead.push(StatePage { body: Bytes::new(), ..page.clone() }),
            }
        }
    }

    /// Takes the restored state of the subscriptions in the tables.
    pub fn restore(&mut self, rules: &RuleSet, tables: &[Table], remembered: &mut RestoredStates) {
        for at in 0..self.rules.len() {
            let Some(mine) = remembered.rules.get_mut(at) else { continue };
            let rule = rules.rule(RuleNumber(at as u32));
            let (table, width) = (&tables[rule.class], rules.classes[rule.class].width());
            let Some(state) = &rule.state else { continue };
            let part = self.part;
            mine.retain(|(id, key), (source, memory)| {
                let (Some(slot), Some(rule_states)) = (table.find(*id), self.rules[at].as_mut()) else { return true };
                let (page, pair) = (part | (id.0 / WIDTH), ((id.0 % WIDTH) as u8, *key));
                rule_states.pages.entry(page).or_default().put(pair, *memory, state.shape);
                if let (Some(waiting), Some(rearm), false) = (&mut rule_states.waiting, &state.rearm, memory.armed) {
                    waiting.put(rearm, (*id, *key), row_of(rearm, width, table, slot));
                }
                if *source != page {
                    self.undo_log.dirty.insert((at, page));
                    remembered.gone.insert((at, *source));
                }
                false
            });
        }
    }

    /// The number of suppressed matches since the last call, by rule and reason.
    pub fn take_suppressed(&mut self) -> Vec<(RuleNumber, Suppression, u64)> {
        let take = |rule_states: &mut RuleStates| {
            let counts = std::mem::take(&mut rule_states.suppressed);
            let number = rule_states.number;
            Suppression::ALL.into_iter().zip(counts).map(move |(reason, count)| (number, reason, count))
        };
        self.rules.iter_mut().flatten().flat_map(take).filter(|(_, _, count)| *count > 0).collect()
    }

    /// Removes expired state from some pages.
    fn sweep(&mut self, rules: &RuleSet) {
        for (at, rule_states) in self.rules.iter_mut().enumerate() {
            let Some(rule_states) = rule_states else { continue };
            let Some(state) = &rules.rule(rule_states.number).state else { continue };
            if rule_states.to_sweep.is_empty() {
                rule_states.to_sweep.extend(rule_states.pages.keys());
            }
            for _ in 0..SWEPT {
                let Some(page) = rule_states.to_sweep.pop() else { break };
                let Some(held) = rule_states.pages.get_mut(&page) else { continue };
                if !held.iter().any(|(_, memory)| is_expired(state, memory, rule_states.latest)) {
                    continue;
                }
                self.undo_log.save(at, page, Some(held));
                held.retain(|_, memory| !is_expired(state, memory, rule_states.latest));
                if held.is_empty() {
                    rule_states.pages.remove(&page);
                }
            }
        }
    }
}

/// Checks whether the state of a subscription permits a notification.
pub(super) fn check(
    state: &CompiledState,
    memory: SubscriptionState,
    state_event: StateEvent,
) -> Result<(), Suppression> {
    if !memory.armed && state.rearm.is_some() {
        return Err(Suppression::Unarmed);
    }
    // If the clock was set back, no time has passed.
    if state.cooldown.is_some_and(|cooldown| state_event.at.saturating_sub(memory.notified_at) < cooldown) {
        return Err(Suppression::Cooldown);
    }
    if state.changed.is_some() && memory.value == state_event.value {
        return Err(Suppression::Unchanged);
    }
    Ok(())
}

/// Whether state has expired, even for an event that is a little older than the newest.
fn is_expired(state: &CompiledState, memory: SubscriptionState, now: i64) -> bool {
    let age = now.saturating_sub(memory.notified_at).saturating_sub(LATENESS);
    let is_cool = state.cooldown.is_none_or(|cooldown| age >= cooldown);
    is_cool && (memory.armed || state.rearm.is_none()) && state.changed.is_none()
}

impl UndoLog {
    /// Saves a page before it is changed.
    fn save(&mut self, rule: usize, page: u64, held: Option<&Page>) {
        match self.layers.back_mut() {
            Some(layer) => {
                layer.before.entry((rule, page)).or_insert_with(|| held.cloned());
            }
            None => {
                self.dirty.insert((rule, page));
            }
        }
    }
}

/// Decorator of a sink: passes on the matches of one rule and event that are not suppressed.
pub(crate) struct SuppressingSink<'a, S> {
    states: &'a mut StateTable,
    number: RuleNumber,
    state: &'a CompiledState,
    state_event: StateEvent,
    out: &'a mut S,
    notified: Vec<u32>,
    keys: Vec<[u32; 2]>,
}

impl<S: MatchSink> MatchSink for SuppressingSink<'_, S> {
    fn run(&mut self, run: Run<'_>) {
        let SuppressingSink { states, number, state, state_event, notified, keys, .. } = self;
        let mut suppressed = [0; Suppression::ALL.len()];
        notified.clear();
        keys.clear();
        for (at, slot) in run.slots.iter().enumerate() {
            match states.notify(*number, state, *state_event, run.table, *slot) {
                Ok(()) => {
                    notified.push(*slot);
                    if !run.keys.is_empty() {
                        keys.push(halves(run.keys.at(at)));
                    }
                }
                Err(reason) => suppressed[reason as usize] += 1,
            }
        }
        if let Some(rule_states) = &mut states.rules[number.0 as usize] {
            rule_states.suppressed.iter_mut().zip(suppressed).for_each(|(all, more)| *all += more);
        }
        if !notified.is_empty() {
            let keys = if run.keys.is_empty() { KeySlice::None } else { KeySlice::Wide(&self.keys) };
            self.out.run(run.of(&self.notified, keys));
        }
    }

    fn rule_failed(&mut self, rule: RuleNumber, event: EventId, error: EvalError) {
        self.out.rule_failed(rule, event, error);
    }

    fn subscriptions_failed(&mut self, rule: RuleNumber, event: EventId, error: EvalError, count: u32) {
        self.out.subscriptions_failed(rule, event, error, count);
    }
}
