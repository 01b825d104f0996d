//! The subscriptions of one class in a shard, in columns by slot. Only parameters that residual checks and captures
//! read are stored.

use std::hash::BuildHasher;

use hashbrown::HashTable;
use tocsin_model::{
    field::FieldType,
    id::{SubscriberNumber, SubscriptionId},
    time::Timestamp,
    value::Value,
};

use super::ids::Ids;
use crate::{eval_value::EvalValue, index::hasher::Hasher};

/// A bit set by slot.
#[derive(Debug, Default)]
pub struct Bits(Vec<u64>);

impl Bits {
    /// Whether a bit is set.
    #[inline]
    pub fn has(&self, at: u32) -> bool {
        self.0.get(at as usize / 64).is_some_and(|word| word & (1 << (at % 64)) != 0)
    }

    /// Sets a bit. Returns whether it was clear before.
    pub fn set(&mut self, at: u32) -> bool {
        let word = at as usize / 64;
        if word >= self.0.len() {
            self.0.resize(word + 1, 0);
        }
        let before = self.0[word];
        self.0[word] |= 1 << (at % 64);
        before != self.0[word]
    }

    /// Clears it.
    pub fn clear(&mut self, at: u32) {
        if let Some(word) = self.0.get_mut(at as usize / 64) {
            *word &= !(1 << (at % 64));
        }
    }

    fn memory_bytes(&self) -> usize {
        self.0.capacity() * 8
    }
}

/// The column of a stored parameter.
#[derive(Debug)]
enum Parameter {
    Numbers(Vec<f64>), // NaN is null: no field can hold NaN
    Integers(Vec<i64>, Bits),
    Timestamps(Vec<i64>, Bits),
    Values(Vec<Value>),
}

impl Parameter {
    fn new(kind: FieldType) -> Self {
        match kind {
            FieldType::Number => Parameter::Numbers(Vec::new()),
            FieldType::Integer => Parameter::Integers(Vec::new(), Bits::default()),
            FieldType::Timestamp => Parameter::Timestamps(Vec::new(), Bits::default()),
            _ => Parameter::Values(Vec::new()),
        }
    }

    fn put(&mut self, slot: u32, value: &Value) {
        let at = slot as usize;
        match (self, value) {
            (Parameter::Numbers(numbers), value) => {
                let number = if let Value::Number(number) = value { *number } else { f64::NAN };
                place(numbers, at, number, f64::NAN);
            }
            (Parameter::Integers(integers, present), value) => {
                let integer = if let Value::Integer(integer) = value { Some(*integer) } else { None };
                place_present(integers, present, slot, integer);
            }
            (Parameter::Timestamps(times, present), value) => {
                let time = if let Value::Timestamp(time) = value { Some(time.0) } else { None };
                place_present(times, present, slot, time);
            }
            (Parameter::Values(values), value) => place(values, at, value.clone(), Value::Null),
        }
    }

    fn memory_bytes(&self) -> usize {
        match self {
            Parameter::Numbers(numbers) => numbers.capacity() * 8,
            Parameter::Integers(values, present) | Parameter::Timestamps(values, present) => {
                values.capacity() * 8 + present.memory_bytes()
            }
            Parameter::Values(values) => {
                let inner = |value: &Value| if let Value::Text(text) = value { text.len() + 16 } else { 0 };
                values.capacity() * size_of::<Value>() + values.iter().map(inner).sum::<usize>()
            }
        }
    }
}

/// Slots are assigned in order, so a column grows by at most one element at a time; capacity grows by a quarter.
fn place<T: Clone>(column: &mut Vec<T>, at: usize, value: T, empty: T) {
    if at >= column.len() {
        grow(column);
        column.resize(at + 1, empty);
    }
    column[at] = value;
}

fn grow<T>(column: &mut Vec<T>) {
    if column.len() == column.capacity() {
        column.reserve_exact(column.len() / 4 + 16);
    }
}

fn place_present(column: &mut Vec<i64>, present: &mut Bits, slot: u32, value: Option<i64>) {
    place(column, slot as usize, value.unwrap_or(0), 0);
    match value {
        Some(_) => {
            present.set(slot);
        }
        None => present.clear(slot),
    }
}

/// The subscriptions of one class.
#[derive(Debug)]
pub struct Table {
    ids: Ids,
    slots: u32,
    channels: Vec<u16>,
    /// The subscriber of each slot, if a rule of the class makes digests.
    subscribers: Option<Vec<SubscriberNumber>>,
    /// For each field of the class, the index of its column, if it is stored.
    places: Vec<Option<usize>>,
    parameters: Vec<Parameter>,
    by_id: HashTable<u32>,
    hasher: Hasher,
    dead: Bits,
    dead_count: usize,
    /// Slots removed since the current sweep began.
    removed: Vec<u32>,
    /// Slots that the current sweep frees.
    to_free: Vec<u32>,
    free: Vec<u32>,
    channel_uses: Vec<u32>,
    sole_channel: Option<u16>,
}

impl Table {
    /// An empty table that stores the fields in `kept`, and the subscriber of each subscription if requested.
    pub fn new(kinds: &[FieldType], kept: &[bool], keeps_subscribers: bool, hasher: Hasher) -> Self {
        let mut parameters = Vec::new();
        let places = kinds.iter().zip(kept).map(|(kind, kept)| {
            kept.then(|| {
                parameters.push(Parameter::new(*kind));
                parameters.len() - 1
            })
        });
        let places = places.collect();
        Table {
            ids: Ids::default(),
            slots: 0,
            channels: Vec::new(),
            subscribers: keeps_subscribers.then(Vec::new),
            places,
            parameters,
            by_id: HashTable::new(),
            hasher,
            dead: Bits::default(),
            dead_count: 0,
            removed: Vec::new(),
            to_free: Vec::new(),
            free: Vec::new(),
            channel_uses: Vec::new(),
            sole_channel: None,
        }
    }

    /// The number of subscriptions.
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// Assigns a slot to a new subscription.
    pub fn insert(
        &mut self,
        id: SubscriptionId,
        subscriber: SubscriberNumber,
        channel: u16,
        row: &[Value],
    ) -> Option<u32> {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                self.slots = self.slots.checked_add(1)?;
                self.slots - 1
            }
        };
        self.ids.put(slot, id);
        place(&mut self.channels, slot as usize, channel, 0);
        if let Some(subscribers) = &mut self.subscribers {
            place(subscribers, slot as usize, subscriber, SubscriberNumber(0));
        }
        for (field, place) in self.places.iter().enumerate() {
            if let Some(place) = place {
                self.parameters[*place].put(slot, &row[field]);
            }
        }
        let hash = self.hasher.hash_one(id.0);
        self.by_id.insert_unique(hash, slot, |slot| self.hasher.hash_one(self.ids.get(*slot).0));
        self.use_channel(channel, true);
        Some(slot)
    }

    /// Removes a subscription and returns its slot. The slot stays in use until a sweep has visited the whole index.
    pub fn remove(&mut self, id: SubscriptionId) -> Option<u32> {
        let hash = self.hasher.hash_one(id.0);
        let Ok(found) = self.by_id.find_entry(hash, |slot| self.ids.get(*slot) == id) else { return None };
        let (slot, _) = found.remove();
        self.dead.set(slot);
        self.dead_count += 1;
        self.removed.push(slot);
        for parameter in &mut self.parameters {
            parameter.put(slot, &Value::Null);
        }
        self.use_channel(self.channels[slot as usize], false);
        Some(slot)
    }

    fn use_channel(&mut self, channel: u16, more: bool) {
        let at = usize::from(channel);
        if at >= self.channel_uses.len() {
            self.channel_uses.resize(at + 1, 0);
        }
        let before = self.channel_uses[at];
        self.channel_uses[at] = if more { before + 1 } else { before - 1 };
        if before == 0 || self.channel_uses[at] == 0 {
            let mut used = self.channel_uses.iter().enumerate().filter(|(_, uses)| **uses > 0);
            self.sole_channel = match (used.next(), used.next()) {
                (Some((channel, _)), None) => Some(channel as u16),
                _ => None,
            };
        }
    }

    /// The slot of a subscription, if it is present.
    pub fn find(&self, id: SubscriptionId) -> Option<u32> {
        self.by_id.find(self.hasher.hash_one(id.0), |slot| self.ids.get(*slot) == id).copied()
    }

    /// Whether the index may contain entries of removed subscriptions.
    pub fn has_dead(&self) -> bool {
        self.dead_count > 0
    }

    /// Whether the slot's subscription was removed.
    pub fn is_dead(&self, slot: u32) -> bool {
        self.dead.has(slot)
    }

    /// Starts a sweep if enough subscriptions have been removed. Returns whether it did.
    pub fn begin_sweep(&mut self) -> bool {
        if !self.to_free.is_empty() || self.removed.len() < 64 + self.len() / 8 {
            return false;
        }
        self.to_free = std::mem::take(&mut self.removed);
        true
    }

    /// Ends a sweep of the whole index: its slots can be reused.
    pub fn end_sweep(&mut self) {
        for slot in &self.to_free {
            self.dead.clear(*slot);
        }
        self.dead_count -= self.to_free.len();
        self.free.append(&mut self.to_free);
    }

    /// The subscription of a slot.
    #[inline]
    pub fn id(&self, slot: u32) -> SubscriptionId {
        self.ids.get(slot)
    }

    /// Appends the subscriptions of some slots.
    #[inline]
    pub fn append_ids(&self, slots: &[u32], out: &mut Vec<SubscriptionId>) {
        self.ids.append(slots, out);
    }

    /// Appends the subscribers of some slots, if the table stores them.
    pub fn append_subscribers(&self, slots: &[u32], out: &mut Vec<SubscriberNumber>) {
        if let Some(subscribers) = &self.subscribers {
            out.extend(slots.iter().map(|slot| subscribers[*slot as usize]));
        }
    }

    /// The number of its channel.
    pub fn channel(&self, slot: u32) -> u16 {
        self.channels[slot as usize]
    }

    /// The channel, if all subscriptions use the same one.
    pub fn sole_channel(&self) -> Option<u16> {
        self.sole_channel
    }

    /// A stored parameter by the index of its field; null if it is not stored.
    pub fn parameter(&self, field: usize, slot: u32) -> EvalValue<'_> {
        let Some(Some(place)) = self.places.get(field) else { return EvalValue::Null };
        let at = slot as usize;
        match &self.parameters[*place] {
            Parameter::Numbers(numbers) if numbers[at].is_nan() => EvalValue::Null,
            Parameter::Numbers(numbers) => EvalValue::Number(numbers[at]),
            Parameter::Integers(integers, present) if present.has(slot) => EvalValue::Integer(integers[at]),
            Parameter::Timestamps(times, present) if present.has(slot) => EvalValue::Timestamp(Timestamp(times[at])),
            Parameter::Values(values) => EvalValue::of(&values[at]),
            _ => EvalValue::Null,
        }
    }

    /// A stored column of numbers by the index of its field; NaN is null.
    pub fn numbers(&self, field: usize) -> Option<&[f64]> {
        match &self.parameters[(*self.places.get(field)?)?] {
            Parameter::Numbers(numbers) => Some(numbers),
            _ => None,
        }
    }

    /// A stored column of integers, if none of these slots is null there.
    pub fn integers(&self, field: usize, slots: &[u32]) -> Option<&[i64]> {
        match &self.parameters[(*self.places.get(field)?)?] {
            Parameter::Integers(integers, present) if slots.iter().all(|slot| present.has(*slot)) => Some(integers),
            _ => None,
        }
    }

    /// Bytes held.
    pub fn memory_bytes(&self) -> usize {
        self.ids.memory_bytes()
            + self.channels.capacity() * 2
            + self.subscribers.as_ref().map_or(0, |subscribers| subscribers.capacity() * size_of::<SubscriberNumber>())
            + self.by_id.allocation_size()
            + self.dead.memory_bytes()
            + (self.removed.capacity() + self.to_free.capacity() + self.free.capacity()) * 4
            + self.parameters.iter().map(Parameter::memory_bytes).sum::<usize>()
    }
}
