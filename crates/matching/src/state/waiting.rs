//! The subscriptions of one rule that were told and wait to be re-armed, indexed by what re-arms them. So an event costs
//! what it re-arms.

use std::collections::HashMap;

use tocsin_model::{
    id::{EventBatchId, EventId, SubscriberNumber, SubscriptionId},
    time::Timestamp,
    value::Value,
};

use super::compile::Rearm;
use crate::{
    datum::Trouble,
    index::table::Table,
    rule::{Memberships, RuleNumber},
    shard::{MatchSink, Run, Shard, Subject, Watch},
};

/// The subscription and the digest of the key for which it waits; 0 where the rule has no `per`.
pub type Waiter = (SubscriptionId, u64);

/// Those who wait.
pub struct Waiting {
    shard: Box<Shard>,
    /// With `per` a subscription may wait several times, so waiters have numbers of their own.
    numbers: HashMap<Waiter, u64>,
    waiters: HashMap<u64, Waiter>,
    last: u64,
    keyed: bool,
    event: Vec<Value>,
}

impl Waiting {
    pub fn new(rearm: &Rearm, keyed: bool) -> Waiting {
        let shard = Box::new(Shard::new(rearm.rules.clone()));
        let (numbers, waiters) = (HashMap::new(), HashMap::new());
        Waiting { shard, numbers, waiters, last: 0, keyed, event: Vec::new() }
    }

    /// Lets a subscription wait, with these values of its fields, or with these instead of those it had.
    pub fn put(&mut self, rearm: &Rearm, waiter: Waiter, mut row: Vec<Value>) {
        let mut number = waiter.0;
        if self.keyed {
            row.insert(rearm.key_at.min(row.len()), Value::Integer(waiter.1 as i64));
            number = SubscriptionId(*self.numbers.entry(waiter).or_insert_with(|| {
                self.last += 1;
                self.waiters.insert(self.last, waiter);
                self.last
            }));
        }
        // A shard that is full (2^32 subscriptions of a class) had no room for the subscription itself either.
        let subject = Subject {
            id: number,
            subscriber: SubscriberNumber(0),
            class: &rearm.class,
            values: "",
            channel: None,
            filter: None,
        };
        let _ = self.shard.put_row(subject, row, Memberships::default());
    }

    /// It waits no more.
    pub fn remove(&mut self, waiter: Waiter) {
        if !self.keyed {
            return self.shard.remove(waiter.0);
        }
        if let Some(number) = self.numbers.remove(&waiter) {
            self.waiters.remove(&number);
            self.shard.remove(SubscriptionId(number));
        }
    }

    /// Those whom an event re-arms. `key` is the digest of the event's key.
    ///
    /// # Errors
    /// `Cost`: the condition could not be decided.
    pub fn answer(&mut self, rearm: &Rearm, event: &[Value], key: u64) -> Result<Vec<Waiter>, Trouble> {
        if self.shard.is_empty() {
            return Ok(Vec::new());
        }
        let mut found = Found::default();
        let Waiting { shard, event: row, .. } = self;
        row.clear();
        row.extend_from_slice(&event[..rearm.width.min(event.len())]);
        if self.keyed {
            row.push(Value::Integer(key as i64));
        }
        row.extend(rearm.columns.iter().map(|at| event.get(*at).cloned().unwrap_or_default()));
        let now = (EventBatchId(0), Timestamp(0));
        shard.match_rows(now, &rearm.on, std::slice::from_ref(row), Watch::default(), &mut found);
        let waiter = |id: SubscriptionId| match self.keyed {
            true => self.waiters.get(&id.0).copied(),
            false => Some((id, 0)),
        };
        match found.trouble {
            Some(trouble) => Err(trouble),
            None => Ok(found.ids.into_iter().filter_map(waiter).collect()),
        }
    }

    pub fn memory_bytes(&self) -> usize {
        self.shard.memory_bytes() + self.numbers.capacity() * 32 + self.waiters.capacity() * 32
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
struct Found {
    ids: Vec<SubscriptionId>,
    trouble: Option<Trouble>,
}

impl MatchSink for Found {
    fn run(&mut self, run: Run<'_>) {
        self.ids.extend(run.slots.iter().map(|slot| run.id(*slot)));
    }

    fn rule_failed(&mut self, _: RuleNumber, _: EventId, trouble: Trouble) {
        self.trouble = Some(trouble);
    }

    fn subscriptions_failed(&mut self, _: RuleNumber, _: EventId, _: Trouble, _: u32) {}
}
