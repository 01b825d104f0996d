//! 2. Event batches meet the index: matches, cut into notification batches.
//!
//! One matcher takes the batches in the order of their acceptance, a quantum at a time: whatever waits, within bounds;
//! nobody waits for a clock. While one quantum is on its way to disk the next is matched, and they are committed in
//! order.

use std::{
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tocsin_matching::{
    cut::{CutBatch, NotificationCutter, RuleFailure},
    rule::RuleSet,
    shard::Shard,
};
use tocsin_model::{
    event::EventBatch,
    field::Fields,
    id::{EventBatchId, Name},
    notification::NotificationHead,
    time::Timestamp,
};
use tocsin_store::{
    error::StoreError,
    journal::{Arrivals, ClaimedEvents, NewNotificationBatch, Step},
    queries::QueryTables,
};
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinHandle,
};
use tokio_util::sync::CancellationToken;

use crate::{
    Flow,
    compile::Compiled,
    follow_changes::{self, FollowedShard},
    keep_busy,
    run_queries::{self, Queried},
    schedules,
};

/// A matcher that dies with its batches claimed loses them after this time.
const LEASE: Duration = Duration::from_secs(300);
/// How long to wait after the store failed.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_millis(500);

/// The channel of notifications whose subscriber had no usable device when they were made.
pub fn unassigned_channel() -> Name {
    "unassigned".parse().expect("`unassigned` is a name")
}

/// What the matcher is told between two quanta.
pub(crate) enum Command {
    /// Match with this version and index from now on.
    Install(Arc<Compiled>, Box<FollowedShard>, oneshot::Sender<()>),
    /// Stop matching this application.
    Remove(Name, oneshot::Sender<()>),
}

/// An application that is being matched.
struct Matched {
    compiled: Arc<Compiled>,
    followed: FollowedShard,
}

/// A quantum that is being committed.
struct Committing {
    claimed: Vec<ClaimedEvents>,
    commit: JoinHandle<Result<(), StoreError>>,
}

/// Owns the index and matches until it is stopped.
pub(crate) struct Matcher {
    flow: Arc<Flow>,
    applications: BTreeMap<Name, Matched>,
    commands: mpsc::Receiver<Command>,
    arrivals: Arrivals,
}

impl Matcher {
    pub fn new(flow: Arc<Flow>, commands: mpsc::Receiver<Command>) -> Self {
        let arrivals = flow.journal.arrivals();
        Matcher { flow, applications: BTreeMap::new(), commands, arrivals }
    }

    /// Matches until `stop`; what is claimed then is finished first.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut committing: Option<Committing> = None;
        loop {
            while let Ok(command) = self.commands.try_recv() {
                self.obey(command);
            }
            let claimed = if stop.is_cancelled() { Ok(Vec::new()) } else { self.claim().await };
            match claimed {
                Ok(claimed) if !claimed.is_empty() => {
                    let matched = self.match_quantum(&claimed).await;
                    let before = self.settle(committing.take()).await;
                    match matched.and_then(|step| before.map(|()| step)) {
                        Ok(step) => committing = Some(self.commit(claimed, step)),
                        Err(error) => self.give_back(claimed, &error).await,
                    }
                }
                Ok(_) => {
                    // A failed commit has given its batches back, so they will be claimed again.
                    let _ = self.settle(committing.take()).await;
                    if stop.is_cancelled() {
                        return;
                    }
                    tokio::select! {
                        () = stop.cancelled() => {}
                        Some(command) = self.commands.recv() => self.obey(command),
                        Ok(()) = self.arrivals.events.changed() => {}
                        () = tokio::time::sleep(LEASE) => {}
                    }
                }
                Err(error) => {
                    tracing::error!(%error, "event batches cannot be claimed");
                    tokio::time::sleep(PAUSE_AFTER_FAILURE).await;
                }
            }
            self.report();
        }
    }

    /// Matches an application by this version and index from now on.
    pub fn install(&mut self, compiled: Arc<Compiled>, followed: FollowedShard) {
        self.applications.insert(compiled.application.name.clone(), Matched { compiled, followed });
        self.report();
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Install(compiled, followed, done) => {
                self.install(compiled, *followed);
                let _ = done.send(());
            }
            Command::Remove(name, done) => {
                self.applications.remove(&name);
                let _ = done.send(());
            }
        }
        self.report();
    }

    async fn claim(&mut self) -> Result<Vec<ClaimedEvents>, StoreError> {
        self.arrivals.events.mark_unchanged();
        let options = &self.flow.options;
        let now = self.flow.clock.now();
        self.flow.journal.claim_events(options.quantum_batches, options.quantum_bytes, &[], LEASE, now).await
    }

    /// Matches a quantum; each application's index is first brought up to the newest change.
    async fn match_quantum(&mut self, claimed: &[ClaimedEvents]) -> Result<Step, StoreError> {
        let started = std::time::Instant::now();
        let mut step = Step::default();
        let mut by_application: BTreeMap<&Name, Vec<&ClaimedEvents>> = BTreeMap::new();
        let mut due = Vec::new();
        for events in claimed {
            let matched = self.applications.get(&events.batch.application);
            if let Some(matched) = matched.filter(|matched| schedules::is_due(&matched.compiled, &events.batch)) {
                due.push((events, matched.compiled.clone()));
                continue;
            }
            by_application.entry(&events.batch.application).or_default().push(events);
        }
        for (name, batches) in by_application {
            let Some(matched) = self.applications.get_mut(name) else {
                let reason = format!("the application `{name}` does not run");
                step.failed.extend(batches.iter().map(|events| (events.claim, reason.clone())));
                continue;
            };
            catch_up(&self.flow, name, matched).await?;
            let now = self.flow.clock.now();
            let mut oldest = now;
            let mut readable = Vec::with_capacity(batches.len());
            for events in batches {
                match event_fields(&self.flow, &events.batch).await? {
                    Ok(fields) => readable.push((events, fields)),
                    Err(reason) => step.failed.push((events.claim, reason)),
                }
            }
            let Matched { compiled, followed } = matched;
            let (queried, (cut, unmatched)) = keep_busy(|| {
                let queried = run_queries::run(followed, &readable);
                let matched = match_all(&mut followed.shard, &readable, &queried);
                (queried, matched)
            });
            for (events, _) in &readable {
                match unmatched.get(&events.batch.id) {
                    Some(reason) => step.failed.push((events.claim, reason.clone())),
                    None => {
                        oldest = oldest.min(events.batch.accepted_at);
                        step.matched.push(events.claim);
                    }
                }
            }
            let (cut, failures) = cut;
            let told = queried.iter().filter(|(batch, _)| !unmatched.contains_key(*batch));
            step.firings.extend(told.flat_map(|(batch, firings)| run_queries::failed(compiled, *batch, firings, now)));
            step.batches.extend(cut.into_iter().map(|cut| new_batch(compiled, &compiled.rules, cut, oldest, now)));
            report_failures(compiled, &compiled.rules, &failures);
        }
        // Due schedules come after event rules.
        for (events, compiled) in due {
            match schedules::run_due(&self.flow, &compiled, &events.batch, &mut step).await? {
                Ok(()) => step.matched.push(events.claim),
                Err(reason) => step.failed.push((events.claim, reason)),
            }
        }
        let notifications: u64 = step.batches.iter().map(|batch| u64::from(batch.count)).sum();
        metrics::histogram!("match_duration_seconds").record(started.elapsed());
        metrics::counter!("match_quanta_total").increment(1);
        metrics::counter!("match_event_batches_total").increment(step.matched.len() as u64);
        metrics::counter!("match_notification_batches_total").increment(step.batches.len() as u64);
        metrics::counter!("match_notifications_total").increment(notifications);
        metrics::counter!("match_failed_batches_total").increment(step.failed.len() as u64);
        for (claim, reason) in &step.failed {
            tracing::error!(batch = %claim.id, reason, "an event batch cannot be matched and is set aside");
        }
        Ok(step)
    }

    fn commit(&self, claimed: Vec<ClaimedEvents>, step: Step) -> Committing {
        let flow = self.flow.clone();
        let accepted: Vec<Timestamp> = claimed.iter().map(|events| events.batch.accepted_at).collect();
        let commit = tokio::spawn(async move {
            flow.journal.commit(step).await?;
            let now = flow.clock.now();
            for accepted_at in accepted {
                flow.latencies.matching.record(now.since(accepted_at));
            }
            Ok(())
        });
        Committing { claimed, commit }
    }

    /// Waits for a commit. If it failed, its batches are given back to be matched again.
    async fn settle(&self, committing: Option<Committing>) -> Result<(), StoreError> {
        let Some(Committing { claimed, commit }) = committing else {
            return Ok(());
        };
        let done = commit.await.unwrap_or_else(|panic| Err(StoreError::unavailable(panic)));
        if let Err(error) = &done {
            self.give_back(claimed, error).await;
        }
        done
    }

    async fn give_back(&self, claimed: Vec<ClaimedEvents>, error: &StoreError) {
        tracing::error!(%error, batches = claimed.len(), "event batches could not be matched and will be tried again");
        for events in claimed {
            // A claim that is lost already needs no giving back.
            let _ = self.flow.journal.release_events(events.claim).await;
        }
        tokio::time::sleep(PAUSE_AFTER_FAILURE).await;
    }

    /// Publishes what the index holds.
    fn report(&self) {
        let bytes = |followed: &FollowedShard| {
            followed.shard.memory_bytes() as u64 + followed.queries.as_ref().map_or(0, |queries| queries.lock().bytes())
        };
        let mut indexes = self.flow.indexes.lock();
        indexes.clear();
        for (name, matched) in &self.applications {
            let shard = &matched.followed.shard;
            indexes.insert(name.clone(), (matched.compiled.version, shard.len() as u64, bytes(&matched.followed)));
        }
    }
}

/// Follows the change feed, and builds the index anew where the feed no longer reaches back far enough.
async fn catch_up(flow: &Flow, name: &Name, matched: &mut Matched) -> Result<(), StoreError> {
    match follow_changes::catch_up(&*flow.records, name, &mut matched.followed).await {
        Err(StoreError::Missing(what)) => {
            tracing::warn!(application = %name, what, "the index fell behind the change feed and is built anew");
            matched.followed = build_shard(flow, &matched.compiled).await?;
            follow_changes::catch_up(&*flow.records, name, &mut matched.followed).await
        }
        result => result,
    }
}

/// Builds a shard from the records.
pub(crate) async fn build_shard(flow: &Flow, compiled: &Compiled) -> Result<FollowedShard, StoreError> {
    let empty = FollowedShard {
        followed: *flow.records.newest_change().borrow(),
        shard: Shard::new(compiled.rules.clone()),
        queries: QueryTables::open(compiled.queries.clone())?.map(Mutex::new),
    };
    follow_changes::build(&*flow.records, &compiled.application.name, empty).await
}

/// The fields that a batch was packed with; the inner error says why nobody can know.
pub(crate) async fn event_fields(flow: &Flow, batch: &EventBatch) -> Result<Result<Fields, String>, StoreError> {
    let Some(compiled) = flow.versions.get(&batch.application, batch.version).await? else {
        return Ok(Err(format!("version {} of the application `{}` is gone", batch.version, batch.application)));
    };
    Ok(match compiled.application.events.get(&batch.class) {
        Some(class) => Ok(class.fields.clone()),
        None => Err(format!("version {} has no event class `{}`", batch.version, batch.class)),
    })
}

/// What a quantum gave: notification batches, and rules that could not be decided.
type Cut = (Vec<CutBatch>, Vec<RuleFailure>);

/// Matches batches, and says which of them could not be and why. Nothing of those is cut: what they matched before the
/// trouble would be told again when they are matched again. So the others are then matched anew.
fn match_all(
    shard: &mut Shard,
    batches: &[(&ClaimedEvents, Fields)],
    queried: &Queried,
) -> (Cut, BTreeMap<EventBatchId, String>) {
    let mut unmatched = BTreeMap::new();
    'anew: loop {
        let mut cutter = NotificationCutter::new();
        for (events, fields) in batches {
            let batch = &events.batch;
            if unmatched.contains_key(&batch.id) {
                continue;
            }
            let matched = catch_unwind(AssertUnwindSafe(|| {
                shard.match_batch(batch, fields, &mut cutter)?;
                match queried.get(&batch.id) {
                    Some(firings) => run_queries::tell(shard, batch, fields, firings, &mut cutter),
                    None => Ok(()),
                }
            }));
            let reason = match matched {
                Ok(Ok(())) => continue,
                Ok(Err(damaged)) => damaged.to_string(),
                Err(_) => "matching it made the matcher panic".to_owned(),
            };
            unmatched.insert(batch.id, reason);
            continue 'anew;
        }
        return (cutter.finish(shard.rules()), unmatched);
    }
}

/// A rule that cannot be decided for an event is no match; that it happened must not stay unseen.
pub(crate) fn report_failures(compiled: &Compiled, rules: &RuleSet, failures: &[RuleFailure]) {
    for failure in failures {
        let (application, rule) = (&compiled.application.name, rules.name(failure.rule));
        metrics::counter!("match_rule_failures_total").increment(failure.count);
        tracing::warn!(%application, %rule, count = failure.count, trouble = %failure.trouble, "a rule could not be decided");
    }
}

/// A cut batch with its head. The rules are those by which it was cut.
pub(crate) fn new_batch(
    compiled: &Compiled,
    rules: &RuleSet,
    cut: CutBatch,
    accepted_at: Timestamp,
    now: Timestamp,
) -> NewNotificationBatch {
    let suspended = cut.channel.is_none().then(|| "the subscriber has no active device".to_owned());
    NewNotificationBatch {
        head: NotificationHead {
            application: compiled.application.name.clone(),
            version: compiled.version,
            class: cut.class,
            event_class: rules.event_class(cut.rule).clone(),
            rule: rules.name(cut.rule).clone(),
            channel: cut.channel.unwrap_or_else(unassigned_channel),
            matched_at: now,
            accepted_at,
            expires_at: rules.expires_after(cut.rule).map(|age| now + age),
        },
        count: cut.notifications.count() as u32,
        packed: cut.notifications.pack().into(),
        suspended,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tocsin_matching::shard::Subject;
    use tocsin_model::{
        application::api_source,
        event::{EventPacker, PackedEvents},
        id::SubscriptionId,
        value::Value,
    };
    use tocsin_store::journal::Claim;

    const DEFINITION: &str = r#"
        application: notes
        events: { note: { fields: { number: integer } } }
        subscriptions: { any: { fields: {} } }
        notifications: { told: { fields: { number: integer }, content: { templates: { base: { text: "{{ number }}" } } } } }
        rules: { always: { on: note, subscription: any, notify: told } }
        channels: { log: { protocol: file, options: { path: log } } }
    "#;

    fn batch(id: u64, events: PackedEvents) -> ClaimedEvents {
        let name = |text: &str| text.parse().expect("a name");
        ClaimedEvents {
            claim: Claim { id: EventBatchId(id), token: 1 },
            batch: EventBatch {
                id: EventBatchId(id),
                application: name("notes"),
                version: 1,
                class: name("note"),
                source: api_source(),
                received_at: Timestamp(0),
                accepted_at: Timestamp(0),
                events,
            },
        }
    }

    #[test]
    fn nothing_of_a_damaged_batch_is_told_and_all_of_the_others() {
        let compiled = crate::compile_text(DEFINITION, 1, &|_| None).expect("it compiles");
        let mut shard = Shard::new(compiled.rules.clone());
        let channel = "log".parse().expect("a name");
        let class = "any".parse().expect("a name");
        let subject =
            Subject { id: SubscriptionId(1), class: &class, values: "{}", channel: Some(&channel), filter: None };
        shard.put(subject).expect("it can be put");
        let fields = compiled.application.events["note"].fields.clone();
        let mut packer = EventPacker::new(fields.clone());
        packer.push(&[Value::Integer(1)]);
        packer.push(&[Value::Integer(2)]);
        let whole = packer.finish();
        let cut_short = PackedEvents::from_parts(2, whole.bytes().slice(..whole.bytes().len() - 1));
        let batches = [batch(1, whole.clone()), batch(2, cut_short), batch(3, whole)];
        let batches: Vec<_> = batches.iter().map(|events| (events, fields.clone())).collect();

        let ((cut, failures), unmatched) = match_all(&mut shard, &batches, &Queried::new());
        assert_eq!(unmatched.into_keys().collect::<Vec<_>>(), [EventBatchId(2)]);
        assert!(failures.is_empty());
        let told: Vec<u64> =
            cut.iter().flat_map(|cut| cut.notifications.event_of_each().map(|event| event.batch.0)).collect();
        assert_eq!(told, [1, 1, 3, 3]);
    }
}
