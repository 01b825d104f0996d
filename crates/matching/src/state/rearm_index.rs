//! The disarmed subscriptions of one rule, indexed by the re-arm condition. So the cost of an event grows with the
//! subscriptions that it re-arms.

use std::collections::HashMap;

use tocsin_model::{
    id::{EventId, SubscriberNumber, SubscriptionId},
    value::Value,
};

use crate::{
    eval_value::EvalError,
    index::table::Table,
    matches::{MatchSink, Run},
    rule::rule_set::{Rearm, RuleNumber},
    rule_evaluation::{MatchScratch, match_event},
    subject::Subject,
    subscriber::Memberships,
    subscription_index::SubscriptionIndex,
};

/// A subscription and the digest of its `per` key; 0 if the rule has no `per`.
pub type StateKey = (SubscriptionId, u64);

/// The index of disarmed subscriptions.
pub struct RearmIndex {
    index: SubscriptionIndex,
    scratch: MatchScratch,
    /// With `per` a subscription may be disarmed for several keys, so entries have numbers of their own.
    numbers: HashMap<StateKey, u64>,
    state_keys: HashMap<u64, StateKey>,
    last: u64,
    keyed: bool,
    event: Vec<Value>,
}

impl RearmIndex {
    pub fn new(rearm: &Rearm, keyed: bool) -> RearmIndex {
        let (index, scratch) = (SubscriptionIndex::new(rearm.rules.clone()), MatchScratch::default());
        let (numbers, state_keys) = (HashMap::new(), HashMap::new());
        RearmIndex { index, scratch, numbers, state_keys, last: 0, keyed, event: Vec::new() }
    }

    /// Adds an entry with the values of its subscription, or replaces its values.
    pub fn put(&mut self, rearm: &Rearm, state_key: StateKey, mut row: Vec<Value>) {
        let mut number = state_key.0;
        if self.keyed {
            row.insert(rearm.key_at.min(row.len()), Value::Integer(state_key.1 as i64));
            number = SubscriptionId(*self.numbers.entry(state_key).or_insert_with(|| {
                self.last += 1;
                self.state_keys.insert(self.last, state_key);
                self.last
            }));
        }
        // A full index (2^32 subscriptions of a class) has rejected the subscription itself before.
        let subject = Subject {
            id: number,
            subscriber: SubscriberNumber(0),
            class: &rearm.class,
            values: "",
            channel: None,
            filter: None,
        };
        let _ = self.index.put(subject, row, Memberships::default());
    }

    /// Removes an entry.
    pub fn remove(&mut self, state_key: StateKey) {
        if !self.keyed {
            return self.index.remove(state_key.0);
        }
        if let Some(number) = self.numbers.remove(&state_key) {
            self.state_keys.remove(&number);
            self.index.remove(SubscriptionId(number));
        }
    }

    /// The entries that an event re-arms. `key` is the digest of the event's key.
    ///
    /// # Errors
    /// `Cost`: the condition exceeded the step limit.
    pub fn answer(&mut self, rearm: &Rearm, event: &[Value], key: u64) -> Result<Vec<StateKey>, EvalError> {
        if self.index.len() == 0 {
            return Ok(Vec::new());
        }
        let mut found = RearmSink::default();
        let RearmIndex { index, scratch, event: row, .. } = self;
        row.clear();
        row.extend_from_slice(&event[..rearm.width.min(event.len())]);
        if self.keyed {
            row.push(Value::Integer(key as i64));
        }
        row.extend(rearm.columns.iter().map(|at| event.get(*at).cloned().unwrap_or_default()));
        match_event(index, &rearm.on, row, scratch, &mut found);
        let state_key = |id: SubscriptionId| match self.keyed {
            true => self.state_keys.get(&id.0).copied(),
            false => Some((id, 0)),
        };
        match found.error {
            Some(error) => Err(error),
            None => Ok(found.ids.into_iter().filter_map(state_key).collect()),
        }
    }

    pub fn memory_bytes(&self) -> usize {
        self.index.memory_bytes() + self.numbers.capacity() * 32 + self.state_keys.capacity() * 32
    }
}

/// The columns that a re-arm condition reads, in a row of the class; the others are null.
pub fn row_of(rearm: &Rearm, width: usize, table: &Table, slot: u32) -> Vec<Value> {
    let mut row = vec![Value::Null; width];
    for field in &rearm.fields {
        row[*field] = table.parameter(*field, slot).to_value();
    }
    row
}

#[derive(Default)]
struct RearmSink {
    ids: Vec<SubscriptionId>,
    error: Option<EvalError>,
}

impl MatchSink for RearmSink {
    fn run(&mut self, run: Run<'_>) {
        self.ids.extend(run.slots.iter().map(|slot| run.id(*slot)));
    }

    fn rule_failed(&mut self, _: RuleNumber, _: EventId, error: EvalError) {
        self.error = Some(error);
    }

    fn subscriptions_failed(&mut self, _: RuleNumber, _: EventId, _: EvalError, _: u32) {}
}
