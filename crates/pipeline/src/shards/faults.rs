//! Fault injection for tests: panics, lost shards and slow matches. No definition is known to cause them.

use std::collections::{BTreeMap, BTreeSet};

use parking_lot::{Condvar, Mutex};
use tocsin_matching::{
    eval_value::EvalError,
    rule::RuleNumber,
    shard::{MatchSink, Run},
};
use tocsin_model::id::{EventBatchId, EventId, Name};

/// By application, the batch and the rule whose first match panics.
static PLANNED: Mutex<BTreeMap<Name, (EventBatchId, RuleNumber)>> = Mutex::new(BTreeMap::new());

/// Plans a panic for the matches of a batch by a rule, or cancels it.
pub fn plan(application: &Name, fault: Option<(EventBatchId, RuleNumber)>) {
    let mut planned = PLANNED.lock();
    match fault {
        Some(fault) => planned.insert(application.clone(), fault),
        None => planned.remove(application),
    };
}

/// Batches at which the owner of a shard ends.
static ENDS: Mutex<BTreeSet<(Name, EventBatchId)>> = Mutex::new(BTreeSet::new());

/// The first owner that reaches the batch ends there, and its shard is lost.
pub fn plan_end(application: &Name, batch: EventBatchId) {
    ENDS.lock().insert((application.clone(), batch));
}

/// Whether an owner ends at this batch. Only the first call returns true.
pub fn ends(application: &Name, batch: EventBatchId) -> bool {
    ENDS.lock().remove(&(application.clone(), batch))
}

/// State of planned slow matches, by application and batch.
static WAITS: Mutex<BTreeMap<(Name, EventBatchId), Wait>> = Mutex::new(BTreeMap::new());
static CHANGED: Condvar = Condvar::new();

#[derive(PartialEq)]
enum Wait {
    Planned,
    Begun,
    Over,
}

/// Makes the match of a batch block until `release`.
pub fn plan_wait(application: &Name, batch: EventBatchId) {
    WAITS.lock().insert((application.clone(), batch), Wait::Planned);
}

/// Blocks until the planned slow match of a batch has begun.
pub fn wait_until_begun(application: &Name, batch: EventBatchId) {
    let key = (application.clone(), batch);
    let mut waits = WAITS.lock();
    CHANGED.wait_while(&mut waits, |waits| waits.get(&key) == Some(&Wait::Planned));
}

/// Lets the match of a batch continue.
pub fn release(application: &Name, batch: EventBatchId) {
    WAITS.lock().insert((application.clone(), batch), Wait::Over);
    CHANGED.notify_all();
}

/// Blocks if that was planned.
pub fn wait(application: &Name, batch: EventBatchId) {
    let key = (application.clone(), batch);
    let mut waits = WAITS.lock();
    if let Some(wait) = waits.get_mut(&key).filter(|wait| **wait == Wait::Planned) {
        *wait = Wait::Begun;
        CHANGED.notify_all();
    }
    CHANGED.wait_while(&mut waits, |waits| waits.get(&key) == Some(&Wait::Begun));
}

/// A sink that panics as planned, and otherwise forwards.
pub struct Faulty<'a, S> {
    pub application: &'a Name,
    pub sink: &'a mut S,
}

impl<S: MatchSink> MatchSink for Faulty<'_, S> {
    fn run(&mut self, run: Run<'_>) {
        let planned = PLANNED.lock().get(self.application).copied();
        self.sink.run(run);
        assert_ne!(planned, Some((run.batch, run.rule)), "planned by a test");
    }

    fn rule_failed(&mut self, rule: RuleNumber, event: EventId, error: EvalError) {
        self.sink.rule_failed(rule, event, error);
    }

    fn subscriptions_failed(&mut self, rule: RuleNumber, event: EventId, error: EvalError, count: u32) {
        self.sink.subscriptions_failed(rule, event, error, count);
    }
}
