//! What the rules of one shard remember for its subscriptions, and the way back: until a commit is known to be stored,
//! what it changed can be undone.

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

use super::{
    compile::{CompiledState, digest_of},
    page::{Memory, Page, Pair, WIDTH},
    remembered::Remembered,
    waiting::{Waiter, Waiting, row_of},
};
use crate::{
    datum::Trouble,
    evaluate::{Parameters, Scene, value},
    expression::Expression,
    index::{chunks::KeySlice, columns::halves, table::Table},
    rule::{CompiledRule, RuleNumber, RuleSet},
    shard::{MatchSink, Run},
};

/// The number of a page is that of its subscriptions; above so many bits stands the part whose shard wrote it.
pub(super) const PART_BITS: u32 = 48;
/// Pages that each taking of changes looks through for what is over.
const SWEPT: usize = 64;

/// How far a clock may be set back, in microseconds, before a cooldown that was over in the time before is taken as over.
const LATENESS: i64 = 3_600_000_000;

/// Why a match was not told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Suppression {
    /// The subscription was told too short a time ago.
    Cooldown,
    /// It was told and nothing has re-armed it since.
    Unarmed,
    /// What it would be told is what it was told last.
    Unchanged,
}

impl Suppression {
    /// Each of them.
    pub const ALL: [Suppression; 3] = [Suppression::Cooldown, Suppression::Unarmed, Suppression::Unchanged];

    /// Its name, as metrics and transcripts have it.
    pub fn name(self) -> &'static str {
        match self {
            Suppression::Cooldown => "cooldown",
            Suppression::Unarmed => "unarmed",
            Suppression::Unchanged => "unchanged",
        }
    }
}

/// What the rules of a shard remember.
#[derive(Default)]
pub(crate) struct StateBook {
    /// By the rule's number; none for rules that remember nothing.
    rules: Vec<Option<RuleBook>>,
    trail: Trail,
    /// The high bits of the numbers of its pages, so that no two shards write the same page; and how many there are.
    part: u64,
    parts: u64,
}

/// What one rule remembers.
struct RuleBook {
    name: Box<str>,
    rules: Arc<RuleSet>,
    number: RuleNumber,
    pages: HashMap<u64, Page>,
    waiting: Option<Waiting>,
    suppressed: [u64; Suppression::ALL.len()],
    /// Pages that the sweep has still to look at.
    to_sweep: Vec<u64>,
    /// The latest time of an event it was asked about.
    latest: i64,
}

/// What was changed since when.
#[derive(Default)]
struct Trail {
    /// The oldest first. What one of them changed, those after it built upon.
    layers: VecDeque<Layer>,
    /// Pages that differ from those in the journal for a reason that is not undone.
    dirty: BTreeSet<(usize, u64)>,
    /// Pages of rules that are no more.
    dead: Vec<StatePage>,
}

#[derive(Default)]
struct Layer {
    /// Pages as they were before it; none where there was no page.
    before: HashMap<(usize, u64), Option<Page>>,
    /// Those of `dirty` and `dead` that were given out with it.
    also: BTreeSet<(usize, u64)>,
    dead: Vec<StatePage>,
}

/// An event as the state of a rule sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Moment {
    at: i64,
    /// Digests of what `per` and `changed` give; 0 where they are not given.
    key: u64,
    value: u64,
}

impl fmt::Debug for StateBook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StateBook").field("memories", &self.len()).finish_non_exhaustive()
    }
}

impl StateBook {
    pub fn new(rules: &Arc<RuleSet>) -> StateBook {
        let book = |(at, rule): (usize, &CompiledRule)| {
            let state = rule.state.as_ref().filter(|_| rule.enabled)?;
            let waiting = state.rearm.as_ref().map(|rearm| Waiting::new(rearm, state.per.is_some()));
            Some(RuleBook {
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
        StateBook { rules: rules.rules.iter().enumerate().map(book).collect(), ..StateBook::default() }
    }

    /// Says which of so many parts of the subscribers this is.
    pub fn set_part(&mut self, part: u16, parts: u16) {
        (self.part, self.parts) = (u64::from(part) << PART_BITS, u64::from(parts));
    }

    /// A book of the same part in which nothing stands.
    pub fn empty(&self, rules: &Arc<RuleSet>) -> StateBook {
        StateBook { part: self.part, parts: self.parts, ..StateBook::new(rules) }
    }

    /// How many things are remembered.
    pub fn len(&self) -> usize {
        self.rules.iter().flatten().flat_map(|book| book.pages.values()).map(Page::len).sum()
    }

    pub fn memory_bytes(&self) -> usize {
        let of = |book: &RuleBook| {
            book.pages.values().map(|page| page.memory_bytes() + 16).sum::<usize>()
                + book.waiting.as_ref().map_or(0, Waiting::memory_bytes)
        };
        self.rules.iter().flatten().map(of).sum()
    }

    /// How the state of a rule sees an event; `None` if `per` or `changed` has no value, so that nothing matches.
    pub fn moment(state: &CompiledState, event: &[Value], at: Timestamp) -> Result<Option<Moment>, Trouble> {
        let mut buffer = Vec::new();
        let mut digest = |expression: &Option<Expression>| {
            let Some(expression) = expression else { return Ok(Some(0)) };
            let scene = Scene { event, parameters: Parameters::None };
            match value(expression, scene) {
                Ok(found) => Ok(digest_of(&found, &mut buffer)),
                Err(Trouble::Cost) => Err(Trouble::Cost),
                Err(_) => Ok(None),
            }
        };
        let (key, value) = (digest(&state.per)?, digest(&state.changed)?);
        Ok(key.zip(value).map(|(key, value)| Moment { at: at.0, key, value }))
    }

    /// The subscriptions that an event re-arms, among those that waited for it before.
    ///
    /// # Errors
    /// `Cost`: the condition could not be decided.
    pub fn rearmed(
        &mut self,
        number: RuleNumber,
        state: &CompiledState,
        moment: Moment,
        event: &[Value],
    ) -> Result<Vec<Waiter>, Trouble> {
        let book = self.rules[number.0 as usize].as_mut();
        match (book.and_then(|book| book.waiting.as_mut()), &state.rearm) {
            (Some(waiting), Some(rearm)) => waiting.answer(rearm, event, moment.key),
            _ => Ok(Vec::new()),
        }
    }

    /// What an event does to the state of a rule that does not fire for it.
    pub fn only_rearm(&mut self, number: RuleNumber, state: &CompiledState, event: &[Value], at: Timestamp) {
        // An error re-arms nobody, and is reported where the rule fires.
        if let Ok(Some(moment)) = Self::moment(state, event, at)
            && let Ok(rearmed) = self.rearmed(number, state, moment, event)
        {
            self.arm(number, state, moment, &rearmed);
        }
    }

    /// Arms them.
    pub fn arm(&mut self, number: RuleNumber, state: &CompiledState, moment: Moment, rearmed: &[Waiter]) {
        for waiter in rearmed {
            let (page, pair) = self.place(*waiter);
            let Some(book) = self.rules[number.0 as usize].as_mut() else { return };
            self.trail.save(number.0 as usize, page, book.pages.get(&page));
            if let Some(waiting) = &mut book.waiting {
                waiting.remove(*waiter);
            }
            let Some(held) = book.pages.get_mut(&page) else { continue };
            let Some(memory) = held.get(pair) else { continue };
            let memory = Memory { armed: true, ..memory };
            if is_over(state, memory, moment.at) {
                held.remove(pair);
                if held.is_empty() {
                    book.pages.remove(&page);
                }
            } else {
                held.put(pair, memory, state.shape);
            }
        }
    }

    /// A sink that passes on what may be told, and remembers that it was.
    pub fn gate<'a, S: MatchSink>(
        &'a mut self,
        number: RuleNumber,
        state: &'a CompiledState,
        moment: Moment,
        out: &'a mut S,
    ) -> Gate<'a, S> {
        if let Some(book) = &mut self.rules[number.0 as usize] {
            book.latest = book.latest.max(moment.at);
        }
        Gate { states: self, number, state, moment, out, told: Vec::new(), keys: Vec::new() }
    }

    /// The page of a subscription, and its place there.
    fn place(&self, (id, key): Waiter) -> (u64, Pair) {
        (self.part | (id.0 / WIDTH), ((id.0 % WIDTH) as u8, key))
    }

    fn waiter(page: u64, (place, key): Pair) -> Waiter {
        (SubscriptionId((page & ((1 << PART_BITS) - 1)) * WIDTH + u64::from(place)), key)
    }

    /// Whether a match may be told. If so, it is remembered as told.
    fn tell(
        &mut self,
        number: RuleNumber,
        state: &CompiledState,
        moment: Moment,
        table: &Table,
        slot: u32,
    ) -> Result<(), Suppression> {
        let waiter = (table.id(slot), moment.key);
        let (page, pair) = self.place(waiter);
        let at = number.0 as usize;
        let Some(book) = self.rules[at].as_mut() else { return Ok(()) };
        let held = book.pages.get(&page);
        if let Some(memory) = held.and_then(|held| held.get(pair)) {
            if !memory.armed && state.rearm.is_some() {
                return Err(Suppression::Unarmed);
            }
            // A clock that was set back makes no time pass.
            if state.cooldown.is_some_and(|cooldown| moment.at.saturating_sub(memory.told_at) < cooldown) {
                return Err(Suppression::Cooldown);
            }
            if state.changed.is_some() && memory.value == moment.value {
                return Err(Suppression::Unchanged);
            }
        }
        self.trail.save(at, page, held);
        let memory = Memory { told_at: moment.at, value: moment.value, armed: state.rearm.is_none() };
        let forgotten = book.pages.entry(page).or_default().put(pair, memory, state.shape);
        if let (Some(waiting), Some(rearm)) = (&mut book.waiting, &state.rearm) {
            let width = book.rules.classes[book.rules.rule(number).class].width();
            waiting.put(rearm, waiter, row_of(rearm, width, table, slot));
            if let Some(pair) = forgotten {
                waiting.remove(Self::waiter(page, pair));
            }
        }
        Ok(())
    }

    /// A subscription was put anew: where it waits, it waits with its present values.
    pub fn refresh(&mut self, rules: &RuleSet, class: usize, id: SubscriptionId, row: &[Value]) {
        for number in &rules.classes[class].rules {
            let (page, (place, _)) = self.place((id, 0));
            let Some(book) = self.rules[number.0 as usize].as_mut() else { continue };
            let rearm = rules.rule(*number).state.as_ref().and_then(|state| state.rearm.as_ref());
            let (Some(waiting), Some(rearm), Some(held)) = (&mut book.waiting, rearm, book.pages.get(&page)) else {
                continue;
            };
            for (pair, memory) in held.of(place) {
                if !memory.armed {
                    waiting.put(rearm, (id, pair.1), row.to_vec());
                }
            }
        }
    }

    /// A subscription is gone, and what was remembered for it too. It is not undone.
    pub fn forget(&mut self, rules: &RuleSet, class: usize, id: SubscriptionId) {
        for number in &rules.classes[class].rules {
            let at = number.0 as usize;
            let (page, (place, _)) = self.place((id, 0));
            let Some(book) = self.rules[at].as_mut() else { continue };
            let mut found = false;
            let mut thin = |held: &mut Page| {
                found |= held.of(place).next().is_some();
                held.retain(|(other, _), _| other != place);
            };
            for layer in &mut self.trail.layers {
                if let Some(Some(held)) = layer.before.get_mut(&(at, page)) {
                    thin(held);
                }
            }
            if let Some(held) = book.pages.get_mut(&page) {
                if let Some(waiting) = &mut book.waiting {
                    held.of(place).for_each(|((_, key), _)| waiting.remove((id, key)));
                }
                thin(held);
                if held.is_empty() {
                    book.pages.remove(&page);
                }
            }
            if found {
                self.trail.dirty.insert((at, page));
            }
        }
    }

    /// From here on, what changes can be undone together.
    pub fn begin(&mut self) {
        self.trail.layers.push_back(Layer::default());
    }

    /// The oldest of what could be undone is stored for good.
    pub fn confirm(&mut self) {
        self.trail.layers.pop_front();
    }

    /// Undoes what changed since the last `begin`.
    pub fn undo(&mut self, rules: &RuleSet, tables: &[Table]) {
        let Some(layer) = self.trail.layers.pop_back() else { return };
        self.trail.dirty.extend(layer.also);
        self.trail.dead.extend(layer.dead);
        for ((at, page), before) in layer.before {
            let Some(book) = self.rules[at].as_mut() else { continue };
            let before = before.filter(|page| !page.is_empty());
            if let Some(waiting) = &mut book.waiting {
                let rule = rules.rule(book.number);
                let (table, width) = (&tables[rule.class], rules.classes[rule.class].width());
                let Some(rearm) = rule.state.as_ref().and_then(|state| state.rearm.as_ref()) else { continue };
                let after = book.pages.get(&page);
                let was = |pair| before.as_ref().and_then(|page| page.get(pair)).is_some_and(|memory| !memory.armed);
                let is = |pair| after.and_then(|page| page.get(pair)).is_some_and(|memory| !memory.armed);
                for (pair, _) in after.into_iter().flat_map(Page::iter).filter(|(pair, _)| is(*pair) && !was(*pair)) {
                    waiting.remove(Self::waiter(page, pair));
                }
                for (pair, _) in before.iter().flat_map(Page::iter).filter(|(pair, _)| was(*pair) && !is(*pair)) {
                    let waiter = Self::waiter(page, pair);
                    if let Some(slot) = table.find(waiter.0) {
                        waiting.put(rearm, waiter, row_of(rearm, width, table, slot));
                    }
                }
            }
            match before {
                Some(before) => book.pages.insert(page, before),
                None => book.pages.remove(&page),
            };
            book.suppressed = Default::default();
        }
    }

    /// The pages that changed since the last `begin`, as they are now, and those that changed for other reasons and were
    /// not given out yet. They belong into the commit of the matches.
    pub fn take_changes(&mut self, rules: &RuleSet) -> Vec<StatePage> {
        self.sweep(rules);
        let StateBook { rules: books, trail, .. } = self;
        let (dirty, dead) = (std::mem::take(&mut trail.dirty), std::mem::take(&mut trail.dead));
        let mut changed = dirty.clone();
        if let Some(layer) = trail.layers.back_mut() {
            changed.extend(layer.before.keys());
            layer.also.extend(dirty);
            layer.dead.extend(dead.iter().cloned());
        }
        let pack = |(at, page): (usize, u64)| {
            let book = books[at].as_ref()?;
            let shape = rules.rule(book.number).state.as_ref()?.shape;
            let body = book.pages.get(&page).map(|page| page.pack(shape)).unwrap_or_default();
            Some(StatePage { name: book.name.clone(), number: page, body: body.into() })
        };
        changed.into_iter().filter_map(pack).chain(dead).collect()
    }

    /// Everything, as the journal would have it after the last `take_changes`.
    pub fn pages(&self, rules: &RuleSet) -> Vec<StatePage> {
        let pack = |book: &RuleBook| {
            let shape = rules.rule(book.number).state.as_ref().map(|state| state.shape);
            let page = |(number, page): (&u64, &Page)| {
                Some(StatePage { name: book.name.clone(), number: *number, body: page.pack(shape?).into() })
            };
            book.pages.iter().filter_map(page).collect::<Vec<_>>()
        };
        self.rules.iter().flatten().flat_map(pack).collect()
    }

    /// Sees to it that pages that are out of date are corrected by the next commit. Each belongs to the shard that would
    /// write it, and to the first where there is no such shard any more.
    pub fn take_over(&mut self, pages: &[StatePage]) {
        let own = |page: &&StatePage| {
            let part = page.number >> PART_BITS;
            part == self.part >> PART_BITS || (self.part == 0 && part >= self.parts.max(1))
        };
        let own: Vec<&StatePage> = pages.iter().filter(own).collect();
        for page in own {
            match self.rules.iter().position(|book| book.as_ref().is_some_and(|book| book.name == page.name)) {
                Some(at) => {
                    self.trail.dirty.insert((at, page.number));
                }
                None => self.trail.dead.push(StatePage { body: Bytes::new(), ..page.clone() }),
            }
        }
    }

    /// Takes what is remembered for the subscriptions that it has.
    pub fn restore(&mut self, rules: &RuleSet, tables: &[Table], remembered: &mut Remembered) {
        for at in 0..self.rules.len() {
            let Some(mine) = remembered.rules.get_mut(at) else { continue };
            let rule = rules.rule(RuleNumber(at as u32));
            let (table, width) = (&tables[rule.class], rules.classes[rule.class].width());
            let Some(state) = &rule.state else { continue };
            let part = self.part;
            mine.retain(|(id, key), (source, memory)| {
                let (Some(slot), Some(book)) = (table.find(*id), self.rules[at].as_mut()) else { return true };
                let (page, pair) = (part | (id.0 / WIDTH), ((id.0 % WIDTH) as u8, *key));
                book.pages.entry(page).or_default().put(pair, *memory, state.shape);
                if let (Some(waiting), Some(rearm), false) = (&mut book.waiting, &state.rearm, memory.armed) {
                    waiting.put(rearm, (*id, *key), row_of(rearm, width, table, slot));
                }
                if *source != page {
                    self.trail.dirty.insert((at, page));
                    remembered.gone.insert((at, *source));
                }
                false
            });
        }
    }

    /// How many matches of each rule were not told since this was last asked, by reason.
    pub fn take_suppressed(&mut self) -> Vec<(RuleNumber, Suppression, u64)> {
        let take = |book: &mut RuleBook| {
            let counts = std::mem::take(&mut book.suppressed);
            let number = book.number;
            Suppression::ALL.into_iter().zip(counts).map(move |(reason, count)| (number, reason, count))
        };
        self.rules.iter_mut().flatten().flat_map(take).filter(|(_, _, count)| *count > 0).collect()
    }

    /// Looks through some pages for what says nothing any more.
    fn sweep(&mut self, rules: &RuleSet) {
        for (at, book) in self.rules.iter_mut().enumerate() {
            let Some(book) = book else { continue };
            let Some(state) = &rules.rule(book.number).state else { continue };
            if book.to_sweep.is_empty() {
                book.to_sweep.extend(book.pages.keys());
            }
            for _ in 0..SWEPT {
                let Some(page) = book.to_sweep.pop() else { break };
                let Some(held) = book.pages.get_mut(&page) else { continue };
                if !held.iter().any(|(_, memory)| is_over(state, memory, book.latest)) {
                    continue;
                }
                self.trail.save(at, page, Some(held));
                held.retain(|_, memory| !is_over(state, memory, book.latest));
                if held.is_empty() {
                    book.pages.remove(&page);
                }
            }
        }
    }
}

/// Whether a memory says nothing any more, not even to an event that is a little older than the newest.
fn is_over(state: &CompiledState, memory: Memory, now: i64) -> bool {
    let age = now.saturating_sub(memory.told_at).saturating_sub(LATENESS);
    let is_cool = state.cooldown.is_none_or(|cooldown| age >= cooldown);
    is_cool && (memory.armed || state.rearm.is_none()) && state.changed.is_none()
}

impl Trail {
    /// Keeps a page as it is, before it is changed.
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

/// Passes on the matches of one rule and event that may be told.
pub(crate) struct Gate<'a, S> {
    states: &'a mut StateBook,
    number: RuleNumber,
    state: &'a CompiledState,
    moment: Moment,
    out: &'a mut S,
    told: Vec<u32>,
    keys: Vec<[u32; 2]>,
}

impl<S: MatchSink> MatchSink for Gate<'_, S> {
    fn run(&mut self, run: Run<'_>) {
        let Gate { states, number, state, moment, told, keys, .. } = self;
        let mut suppressed = [0; Suppression::ALL.len()];
        told.clear();
        keys.clear();
        for (at, slot) in run.slots.iter().enumerate() {
            match states.tell(*number, state, *moment, run.table, *slot) {
                Ok(()) => {
                    told.push(*slot);
                    if !run.keys.is_empty() {
                        keys.push(halves(run.keys.at(at)));
                    }
                }
                Err(reason) => suppressed[reason as usize] += 1,
            }
        }
        if let Some(book) = &mut states.rules[number.0 as usize] {
            book.suppressed.iter_mut().zip(suppressed).for_each(|(all, more)| *all += more);
        }
        if !told.is_empty() {
            let keys = if run.keys.is_empty() { KeySlice::None } else { KeySlice::Wide(&self.keys) };
            self.out.run(run.of(&self.told, keys));
        }
    }

    fn rule_failed(&mut self, rule: RuleNumber, event: EventId, trouble: Trouble) {
        self.out.rule_failed(rule, event, trouble);
    }

    fn subscriptions_failed(&mut self, rule: RuleNumber, event: EventId, trouble: Trouble, count: u32) {
        self.out.subscriptions_failed(rule, event, trouble, count);
    }
}
