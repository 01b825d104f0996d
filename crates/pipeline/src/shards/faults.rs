//! Panics and losses that a test plans: nothing that can be written in a definition brings them about, as far as we know.

use std::collections::{BTreeMap, BTreeSet};

use parking_lot::{Condvar, Mutex};
use tocsin_matching::{
    datum::Trouble,
    rule::RuleNumber,
    shard::{MatchSink, Run},
};
use tocsin_model::id::{EventBatchId, EventId, Name};

/// For an application, the batch and the rule whose first match panics.
static PLANNED: Mutex<BTreeMap<Name, (EventBatchId, RuleNumber)>> = Mutex::new(BTreeMap::new());

/// From now on the matches of a batch by a rule panic; or none does any more.
pub fn plan(application: &Name, fault: Option<(EventBatchId, RuleNumber)>) {
    let mut planned = PLANNED.lock();
    match fault {
        Some(fault) => planned.insert(application.clone(), fault),
        None => planned.remove(application),
    };
}

/// For an application, the batch at which the owner of a shard ends.
static ENDS: Mutex<BTreeSet<(Name, EventBatchId)>> = Mutex::new(BTreeSet::new());

/// The first owner that comes to a batch ends there, and its shard with it.
pub fn plan_end(application: &Name, batch: EventBatchId) {
    ENDS.lock().insert((application.clone(), batch));
}

/// Whether an owner ends at a batch. Nobody else does after it.
pub fn ends(application: &Name, batch: EventBatchId) -> bool {
    ENDS.lock().remove(&(application.clone(), batch))
}

/// For an application and a batch, how far it is with a match that waits.
static WAITS: Mutex<BTreeMap<(Name, EventBatchId), Wait>> = Mutex::new(BTreeMap::new());
static CHANGED: Condvar = Condvar::new();

#[derive(PartialEq)]
enum Wait {
    Planned,
    Begun,
    Over,
}

/// The match of a batch takes until `release`, as a rule does that takes long.
pub fn plan_wait(application: &Name, batch: EventBatchId) {
    WAITS.lock().insert((application.clone(), batch), Wait::Planned);
}

/// Blocks until the match of a batch has begun that was planned to wait.
pub fn wait_until_begun(application: &Name, batch: EventBatchId) {
    let key = (application.clone(), batch);
    let mut waits = WAITS.lock();
    CHANGED.wait_while(&mut waits, |waits| waits.get(&key) == Some(&Wait::Planned));
}

/// The match of a batch goes on.
pub fn release(application: &Name, batch: EventBatchId) {
    WAITS.lock().insert((application.clone(), batch), Wait::Over);
    CHANGED.notify_all();
}

/// Waits where that was planned.
pub fn wait(application: &Name, batch: EventBatchId) {
    let key = (application.clone(), batch);
    let mut waits = WAITS.lock();
    if let Some(wait) = waits.get_mut(&key).filter(|wait| **wait == Wait::Planned) {
        *wait = Wait::Begun;
        CHANGED.notify_all();
    }
    CHANGED.wait_while(&mut waits, |waits| waits.get(&key) == Some(&Wait::Begun));
}

/// Panics as planned, and else hands on.
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

    fn rule_failed(&mut self, rule: RuleNumber, event: EventId, trouble: Trouble) {
        self.sink.rule_failed(rule, event, trouble);
    }

    fn subscriptions_failed(&mut self, rule: RuleNumber, event: EventId, trouble: Trouble, count: u32) {
        self.sink.subscriptions_failed(rule, event, trouble, count);
    }
}
