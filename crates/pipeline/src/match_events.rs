//! 2. Event batches meet the index: matches, cut into notification batches.
//!
//! One matcher takes the batches in the order of their acceptance, a quantum at a time: whatever waits, within bounds;
//! nobody waits for a clock. The index is brought to the place of each batch among the changes of the records before the
//! batch is matched, and changes that come after a batch never hold it up. While one quantum is on its way to disk the
//! next is matched, and they are committed in order.

use std::{
    collections::{BTreeMap, BTreeSet},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use parking_lot::Mutex;
use tocsin_matching::{
    chronicle::book::{ChronicleBook, PREFIX},
    cut::{CutBatch, RuleFailure},
    filter::index::Counts,
    rule::{RuleNumber, RuleSet},
    state::{Suppression, remembered::Remembered},
};
use tocsin_model::{
    conduct::Priority,
    event::EventBatch,
    field::{Fields, Row},
    id::{ChangeSequence, EventBatchId, Name},
    notification::NotificationHead,
    state::StatePage,
    time::Timestamp,
};
use tocsin_store::{
    error::StoreError,
    journal::{
        Arrivals, ClaimedEvents, Firing, FiringStatus, NewNotificationBatch, NewQuantum, Refired, Step, TakenUp,
    },
    queries::Beside,
};
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::JoinHandle,
};
use tokio_util::sync::CancellationToken;

use crate::{
    Flow, RefireError,
    compile::Compiled,
    follow_changes::{Followed, Lost},
    guard::{Guard, LeftOut, cap},
    keep_busy, run_queries, schedules,
    shards::{Cut, IndexReport, Memory, UnpackedBatch, shard_count},
};

/// A matcher that dies with its batches claimed loses them after this time.
const LEASE: Duration = Duration::from_secs(300);
/// How long to wait after the store failed.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_millis(500);
/// How often an index that was lost is built anew for one quantum.
const REBUILDS_MAX: usize = 3;

/// The channel of notifications whose subscriber had no usable device when they were made.
pub fn unassigned_channel() -> Name {
    "unassigned".parse().expect("`unassigned` is a name")
}

/// Pages of what rules remember, read from the journal at a time.
const STATE_PAGES: usize = 1_000;

/// What the matcher is told between two quanta.
pub(crate) enum Command {
    /// Match with this version and index from now on.
    Install(Arc<Compiled>, Box<Followed>, oneshot::Sender<()>),
    /// Stop matching this application.
    Remove(Name, oneshot::Sender<()>),
    /// Fire a rule for batches for which it did not fire.
    Refire(Box<Firing>, oneshot::Sender<Result<u64, RefireError>>),
}

/// An application that is being matched.
struct Matched {
    compiled: Arc<Compiled>,
    followed: Followed,
    report: IndexReport,
    guard: Guard,
    /// What is kept of its events. Computed here, before any shard matches.
    chronicles: ChronicleBook,
    /// Whether the shards and the chronicles remember what the journal does. If not, it is read from there before the
    /// next match.
    remembers: bool,
}

/// What the index of an application holds, and where it stands.
#[derive(Debug, Clone)]
pub(crate) struct IndexStatus {
    /// The version by which it matches.
    pub version: u32,
    /// What it holds.
    pub report: IndexReport,
    /// Every change up to here is in it.
    pub place: ChangeSequence,
}

/// A quantum that is being committed.
struct Committing {
    claimed: Vec<ClaimedEvents>,
    /// The applications whose rules remember something by it.
    changed: Vec<Name>,
    commit: JoinHandle<Result<(), StoreError>>,
}

/// Owns the index and matches until it is stopped.
pub(crate) struct Matcher {
    flow: Arc<Flow>,
    applications: BTreeMap<Name, Matched>,
    commands: mpsc::Receiver<Command>,
    arrivals: Arrivals,
    changes: watch::Receiver<ChangeSequence>,
    switched: watch::Receiver<u64>,
}

impl Matcher {
    pub fn new(flow: Arc<Flow>, commands: mpsc::Receiver<Command>) -> Self {
        let (arrivals, changes) = (flow.journal.arrivals(), flow.records.newest_change());
        let switched = flow.switches.changes();
        Matcher { flow, applications: BTreeMap::new(), commands, arrivals, changes, switched }
    }

    /// Matches until `stop`; what is claimed then is finished first.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut committing: Option<Committing> = None;
        loop {
            while let Ok(command) = self.commands.try_recv() {
                // What a commit changes belongs to the index that is there now.
                let _ = self.settle(committing.take()).await;
                self.obey(command).await;
            }
            self.changes.mark_unchanged();
            // Before the claim: what is claimed later sees at least this.
            let settled = self.flow.places.settled();
            let (mut waiting, wait) = self.throttled();
            self.switched.mark_unchanged();
            waiting.extend(self.flow.switches.held());
            let taken_up_at = self.flow.clock.now();
            let rests = stop.is_cancelled() || self.flow.switches.holds_matching();
            let claimed = if rests { Ok(Vec::new()) } else { self.claim(&waiting).await };
            match claimed {
                Ok(claimed) if !claimed.is_empty() => {
                    let before = committing.iter().flat_map(|before: &Committing| &before.claimed);
                    let under_way = claimed.iter().chain(before).map(|events| events.batch.application.clone());
                    self.flow.switches.now_matching(under_way);
                    let mut changed = Vec::new();
                    let matched = self.match_quantum(&claimed, taken_up_at, &mut changed, &mut committing).await;
                    let before = self.settle(committing.take()).await;
                    match matched.and_then(|step| before.map(|()| step)) {
                        Ok(step) => committing = Some(self.commit(claimed, changed, step)),
                        Err(error) => {
                            self.distrust(&changed);
                            self.give_back(claimed, &error).await;
                        }
                    }
                }
                Ok(_) => {
                    // A failed commit has given its batches back, so they will be claimed again.
                    let _ = self.settle(committing.take()).await;
                    self.flow.switches.now_matching(std::iter::empty());
                    if stop.is_cancelled() {
                        return;
                    }
                    if !self.flow.switches.holds_matching() && !self.follow(settled).await {
                        continue;
                    }
                    tokio::select! {
                        () = stop.cancelled() => {}
                        Some(command) = self.commands.recv() => self.obey(command).await,
                        Ok(()) = self.arrivals.events.changed() => {}
                        Ok(()) = self.changes.changed() => {}
                        Ok(()) = self.switched.changed() => {}
                        () = tokio::time::sleep(wait) => {}
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
    pub fn install(&mut self, compiled: Arc<Compiled>, mut followed: Followed) {
        // If a shard is gone already, matching will find that out.
        let report = keep_busy(|| followed.settle()).unwrap_or_default();
        let name = compiled.application.name.clone();
        // What its rules did under the version before still counts.
        let guard = self.applications.remove(&name).map(|before| before.guard).unwrap_or_default();
        let chronicles = ChronicleBook::new(compiled.rules.clone());
        self.applications.insert(name, Matched { compiled, followed, report, guard, chronicles, remembers: false });
        self.report();
    }

    async fn obey(&mut self, command: Command) {
        match command {
            Command::Install(compiled, followed, done) => {
                self.install(compiled, *followed);
                let _ = done.send(());
            }
            Command::Remove(name, done) => {
                self.applications.remove(&name);
                let _ = done.send(());
            }
            Command::Refire(firing, done) => {
                let _ = done.send(self.refire(&firing).await);
            }
        }
        self.report();
    }

    /// The applications that make too much and wait, and how long to wait for the next that may go on.
    fn throttled(&mut self) -> (Vec<Name>, Duration) {
        let now = self.flow.clock.now();
        let (mut throttled, mut soonest) = (Vec::new(), LEASE);
        for (name, matched) in &mut self.applications {
            if let Some(wait) = matched.guard.wait(matched.compiled.application.limits.throttle, now) {
                throttled.push(name.clone());
                soonest = soonest.min(wait);
            }
        }
        metrics::gauge!("match_throttled_applications").set(throttled.len() as f64);
        (throttled, soonest)
    }

    /// Fires a rule for the batches of a listed firing, some at a time, by the subscriptions as they are now. Gives how
    /// many batches these were; those for which it fails again stay on the list.
    async fn refire(&mut self, firing: &Firing) -> Result<u64, RefireError> {
        let Some(matched) = self.applications.get_mut(&firing.application) else {
            return Err(RefireError::NotRunning(firing.application.clone()));
        };
        matched.refire(&self.flow, firing).await
    }

    async fn claim(&mut self, except: &[Name]) -> Result<Vec<ClaimedEvents>, StoreError> {
        self.arrivals.events.mark_unchanged();
        let options = &self.flow.options;
        let now = self.flow.clock.now();
        self.flow.journal.claim_events(options.quantum_batches, options.quantum_bytes, except, LEASE, now).await
    }

    /// Takes the next step to a place, with every application's index that is not there yet. Gives whether all are.
    async fn follow(&mut self, place: ChangeSequence) -> bool {
        let mut is_there = true;
        // What waits for an application that is held was accepted before: its index waits as well, and the records keep
        // what it has not followed.
        let held = self.flow.switches.held();
        for (name, matched) in &mut self.applications {
            if matched.followed.place() >= place || held.contains(name) {
                continue;
            }
            match matched.follow(&self.flow, name, place).await {
                Ok(arrived) => is_there &= arrived,
                Err(error) => {
                    tracing::error!(application = %name, %error, "the index cannot follow the changes");
                    tokio::time::sleep(PAUSE_AFTER_FAILURE).await;
                }
            }
        }
        is_there
    }

    /// Matches a quantum, each batch by the index as of its place. Those in `changed` remember what is true only once the
    /// step is stored.
    async fn match_quantum(
        &mut self,
        claimed: &[ClaimedEvents],
        started_at: Timestamp,
        changed: &mut Vec<Name>,
        committing: &mut Option<Committing>,
    ) -> Result<Step, StoreError> {
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
            if self.applications.get(name).is_some_and(|matched| !matched.remembers) {
                // The journal must have what is on its way there.
                self.settle(committing.take()).await?;
            }
            match self.applications.get_mut(name) {
                Some(matched) => {
                    matched.remember(&self.flow, name, batches[0].batch.sees).await?;
                    matched.match_batches(&self.flow, name, &batches, &mut step).await?;
                    changed.push(name.clone());
                }
                None => {
                    let reason = format!("the application `{name}` does not run");
                    step.failed.extend(batches.iter().map(|events| (events.claim, reason.clone())));
                }
            }
        }
        // Due schedules come after event rules.
        let of_events = notifications_of(&step);
        for (events, compiled) in due {
            let before = notifications_of(&step);
            if compiled.rules.has_chronicles() {
                // What the events of the last quantum saw of them is read from the journal.
                self.settle(committing.take()).await?;
            }
            match schedules::run_due(&self.flow, &compiled, &events.batch, &mut step).await? {
                Ok(()) => step.matched.push(events.claim),
                Err(reason) => step.failed.push((events.claim, reason)),
            }
            // What a run makes counts like anything else: it is told, and what comes behind it waits.
            if let Some(matched) = self.applications.get_mut(&events.batch.application) {
                let (throttle, now) = (compiled.application.limits.throttle, self.flow.clock.now());
                matched.guard.spend(throttle, notifications_of(&step) - before, now);
            }
        }
        let notifications = notifications_of(&step);
        step.quantum = Some(NewQuantum {
            started_at,
            ended_at: self.flow.clock.now(),
            batches: claimed.iter().map(taken_up).collect(),
            scheduled_notifications: notifications - of_events,
        });
        metrics::histogram!("match_duration_seconds").record(started.elapsed());
        metrics::counter!("match_quanta_total").increment(1);
        metrics::counter!("match_event_batches_total").increment(step.matched.len() as u64);
        metrics::counter!("match_notification_batches_total").increment(step.batches.len() as u64);
        metrics::counter!("match_notifications_total").increment(notifications);
        metrics::counter!("match_failed_batches_total").increment(step.failed.len() as u64);
        for status in [FiringStatus::Failed, FiringStatus::Skipped] {
            let count = step.firings.iter().filter(|firing| firing.status == status).count();
            metrics::counter!("match_firings_missed_total", "status" => status.name()).increment(count as u64);
        }
        for (claim, reason) in &step.failed {
            tracing::error!(batch = %claim.id, reason, "an event batch cannot be matched and is set aside");
        }
        Ok(step)
    }

    fn commit(&self, claimed: Vec<ClaimedEvents>, changed: Vec<Name>, step: Step) -> Committing {
        let flow = self.flow.clone();
        let accepted: Vec<Timestamp> = claimed.iter().map(|events| events.batch.accepted_at).collect();
        let commit = tokio::spawn(async move {
            let stops = step.stops.clone();
            flow.journal.commit(step).await?;
            for stop in stops {
                flow.stop(stop);
            }
            let now = flow.clock.now();
            for accepted_at in accepted {
                flow.latencies.matching.record(now.since(accepted_at));
            }
            Ok(())
        });
        Committing { claimed, changed, commit }
    }

    /// Waits for a commit. If it failed, its batches are given back to be matched again.
    async fn settle(&mut self, committing: Option<Committing>) -> Result<(), StoreError> {
        let Some(Committing { claimed, changed, commit }) = committing else {
            return Ok(());
        };
        let done = commit.await.unwrap_or_else(|panic| Err(StoreError::unavailable(panic)));
        match &done {
            Ok(()) => {
                for name in &changed {
                    if let Some(matched) = self.applications.get_mut(name) {
                        // If a shard is gone, matching will find that out.
                        let _ = keep_busy(|| matched.followed.shards().remember(&Memory::Confirm));
                    }
                }
            }
            Err(error) => {
                self.distrust(&changed);
                self.give_back(claimed, error).await;
            }
        }
        done
    }

    /// What was remembered is not stored, or nobody knows whether it is; only the journal does.
    fn distrust(&mut self, changed: &[Name]) {
        for name in changed {
            if let Some(matched) = self.applications.get_mut(name) {
                matched.remembers = false;
            }
        }
    }

    async fn give_back(&self, claimed: Vec<ClaimedEvents>, error: &StoreError) {
        tracing::error!(%error, batches = claimed.len(), "event batches could not be matched and will be tried again");
        for events in claimed {
            // A claim that is lost already needs no giving back.
            let _ = self.flow.journal.release_events(events.claim).await;
        }
        tokio::time::sleep(PAUSE_AFTER_FAILURE).await;
    }

    /// Publishes what the indexes hold, and asks the records to keep the changes that they have not followed yet.
    fn report(&self) {
        let mut indexes = self.flow.indexes.lock();
        indexes.clear();
        for (name, Matched { compiled, followed, report, .. }) in &self.applications {
            let status = IndexStatus { version: compiled.version, report: report.clone(), place: followed.place() };
            indexes.insert(name.clone(), status);
        }
        let needed = indexes.values().map(|status| status.place).min();
        drop(indexes);
        let chronicles = || self.applications.values().map(|matched| &matched.chronicles);
        metrics::gauge!("match_chronicle_keys").set(chronicles().map(ChronicleBook::keys).sum::<usize>() as f64);
        self.flow.records.keep_changes_after(needed.unwrap_or(ChangeSequence(u64::MAX)));
    }
}

impl Matched {
    /// Takes the next step to a place. Gives whether the index is there, and whole again if it was lost.
    async fn follow(&mut self, flow: &Flow, name: &Name, place: ChangeSequence) -> Result<bool, StoreError> {
        let arrived = match self.followed.step_to(&*flow.records, place).await {
            Ok(true) => keep_busy(|| self.followed.settle()).map(|report| self.report = report).map(|()| true),
            Ok(false) => Ok(false),
            Err(Lost::Store(error)) => return Err(error),
            Err(lost) => {
                self.rebuild(flow, name, place, &lost).await?;
                return Ok(true);
            }
        };
        match arrived {
            Ok(arrived) => Ok(arrived),
            Err(gone) => self.rebuild(flow, name, place, &gone.into()).await.map(|()| true),
        }
    }

    /// Matches batches in their order, and adds to the step what they give. Nothing is told of one that cannot be
    /// matched: what it matched before the trouble would be told again when it is matched again.
    async fn match_batches(
        &mut self,
        flow: &Flow,
        name: &Name,
        batches: &[&ClaimedEvents],
        step: &mut Step,
    ) -> Result<(), StoreError> {
        let now = flow.clock.now();
        let mut failed: BTreeMap<EventBatchId, String> = BTreeMap::new();
        let mut fields = Vec::with_capacity(batches.len());
        for events in batches {
            match event_fields(flow, &events.batch).await? {
                Ok(found) => fields.push((&events.batch, found)),
                Err(reason) => {
                    failed.insert(events.batch.id, reason);
                }
            }
        }
        let compiled = self.compiled.clone();
        let rules = compiled.rules.clone();
        let stops = flow.stops.lock().clone();
        let mut left_out = LeftOut::default();
        let guard = &mut self.guard;
        let unpack = |(batch, fields): (&EventBatch, Fields)| match rules.rows(batch, &fields) {
            Ok(rows) => {
                guard.before(&compiled, &stops, batch, now, &mut left_out);
                let left_out = left_out.of(batch.id);
                let batch = EventBatch { chronicled: Bytes::new(), ..batch.clone() };
                Some(Readable { batch, fields, rows: rows.into(), left_out, again: false })
            }
            Err(damaged) => {
                failed.insert(batch.id, damaged.to_string());
                None
            }
        };
        let mut readable: Vec<Readable> = keep_busy(|| fields.into_iter().filter_map(unpack).collect());
        let cut = loop {
            keep_busy(|| self.take_events(&mut readable, &mut failed));
            let (cut, queries) = self.cut(flow, name, &readable).await?;
            self.report = self.followed.with_queries(cut.report.clone());
            // Nothing was told by them, so nothing is to be taken back.
            for (batch, rule, reason) in queries {
                left_out.fail(&compiled, batch, rule, reason, now);
            }
            let mut is_done = true;
            // A rule may panic on several shards, but once it is left out on none.
            let mut isolated: BTreeSet<(EventBatchId, RuleNumber)> = BTreeSet::new();
            for (id, rule) in &cut.panicked {
                is_done = false;
                let mut isolate = |rule: RuleNumber| {
                    let reason = "it made the matcher panic".to_owned();
                    isolated.contains(&(*id, rule))
                        || left_out.fail(&compiled, *id, rule, reason, now) && isolated.insert((*id, rule))
                };
                if !rule.is_some_and(&mut isolate) {
                    failed.insert(*id, "matching it made the matcher panic".to_owned());
                }
            }
            for failure in cut.failures.iter().filter(|failure| failure.whole) {
                let reason = format!("{} (event {})", failure.trouble, failure.event);
                is_done &= !left_out.fail(&compiled, failure.event.batch, failure.rule, reason, now);
            }
            if is_done {
                break cut;
            }
            // The others are matched anew, as if those had not been there: all of a firing is told, or nothing.
            // If a shard is gone, the next cut finds that out.
            let _ = keep_busy(|| self.followed.shards().remember(&Memory::Undo));
            readable.retain(|readable| !failed.contains_key(&readable.batch.id));
            for readable in &mut readable {
                readable.left_out = left_out.of(readable.batch.id);
            }
        };
        let mut oldest = now;
        for events in batches {
            match failed.remove(&events.batch.id) {
                Some(reason) => step.failed.push((events.claim, reason)),
                None => {
                    oldest = oldest.min(events.batch.accepted_at);
                    self.guard.after(&compiled, &events.batch, &left_out, now, &mut step.stops);
                    step.matched.push(events.claim);
                }
            }
        }
        for Readable { batch, .. } in readable.iter().filter(|readable| !readable.batch.chronicled.is_empty()) {
            step.chronicled.push((batch.id, batch.chronicled.clone()));
        }
        let pages = self.chronicles.take_changes();
        step.states.extend(pages.into_iter().map(|page| (name.clone(), page)));
        self.report_incidents(name);
        // Of a batch that is set aside nothing else is listed: all its rules fire when it is matched again.
        let matched: BTreeSet<EventBatchId> = step.matched.iter().map(|claim| claim.id).collect();
        step.firings.extend(left_out.firings.into_iter().filter(|firing| matched.contains(&firing.batch)));
        report_failures(&compiled, &compiled.rules, &cut.failures);
        report_suppressed(&cut.suppressed);
        report_filtered(cut.filtered);
        step.states.extend(cut.states.into_iter().map(|page| (name.clone(), page)));
        let limits = &compiled.application.limits;
        let notifications: u64 = cut.batches.iter().map(|cut| cut.notifications.count() as u64).sum();
        self.guard.spend(limits.throttle, notifications, now);
        step.batches.extend(keep_busy(|| new_batches(&compiled, &compiled.rules, cut.batches, oldest, now)));
        Ok(())
    }

    /// Has the chronicles take the events of batches in their order, anew if they took some of them before. One that makes
    /// them panic is set aside.
    fn take_events(&mut self, readable: &mut Vec<Readable>, failed: &mut BTreeMap<EventBatchId, String>) {
        if !self.chronicles.is_kept() {
            return;
        }
        let chronicles = &mut self.chronicles;
        loop {
            chronicles.undo();
            chronicles.begin();
            let culprit = readable.iter_mut().position(|Readable { batch, rows, .. }| {
                let take = || chronicles.take(&batch.class, Arc::make_mut(rows), batch.accepted_at);
                let taken = catch_unwind(AssertUnwindSafe(take));
                taken.map(|packed| batch.chronicled = packed).is_err()
            });
            let Some(culprit) = culprit else { return };
            let reason = "its chronicles made the matcher panic".to_owned();
            failed.insert(readable.remove(culprit).batch.id, reason);
        }
    }

    /// Counts what chronicles did not take, and whom they forgot.
    fn report_incidents(&mut self, application: &Name) {
        for ((class, chronicle), incidents) in self.chronicles.take_incidents() {
            metrics::counter!("match_chronicle_evictions_total").increment(incidents.evicted);
            for (reason, count) in incidents.not_taken {
                metrics::counter!("match_chronicle_not_taken_total", "reason" => reason.name()).increment(count);
            }
            if let Some(trouble) = incidents.trouble {
                tracing::warn!(%application, %class, %chronicle, %trouble, "a chronicle could not take an event");
            }
        }
    }

    /// See [`Matcher::refire`].
    async fn refire(&mut self, flow: &Flow, firing: &Firing) -> Result<u64, RefireError> {
        let compiled = self.compiled.clone();
        let rules = &compiled.rules;
        let now = flow.clock.now();
        let number = rules.number(firing.rule.as_str());
        let on = number.map(|number| rules.event_class(number).clone());
        let others = |number: RuleNumber| -> Vec<RuleNumber> {
            let on = rules.rules_on(rules.event_class(number));
            on.into_iter().filter(|other| *other != number).collect()
        };
        let mut done = 0;
        self.remember(flow, &firing.application, None).await?;
        for id in firing.first.0..=firing.last.0 {
            let refired = Refired { id: firing.id, batch: EventBatchId(id) };
            let mut step = Step { refired: vec![refired], ..Step::default() };
            let is_last = id == firing.last.0;
            let found = flow.journal.event_batch(EventBatchId(id)).await?;
            // What retention has removed, or a rule that is gone, cannot be fired any more.
            let batch = found.map(|(batch, _)| batch);
            let batch =
                batch.filter(|batch| batch.application == firing.application && Some(&batch.class) == on.as_ref());
            match (batch, number) {
                (Some(batch), Some(number)) => {
                    let Ok(fields) = event_fields(flow, &batch).await? else { continue };
                    let Ok(rows) = rules.rows(&batch, &fields) else { continue };
                    let mut batch = batch;
                    // By the subscriptions as they are now.
                    batch.sees = Some(self.followed.place());
                    let readable = Readable {
                        batch: batch.clone(),
                        fields,
                        rows: rows.into(),
                        left_out: others(number),
                        again: true,
                    };
                    let (cut, queries) = self.cut(flow, &firing.application, &[readable]).await?;
                    // Unless it is committed, what was remembered by it does not count.
                    self.remembers = false;
                    if let Some((batch, _, reason)) = queries.into_iter().next() {
                        return Err(RefireError::Failed { batch, reason });
                    }
                    if let Some(failure) = cut.failures.iter().find(|failure| failure.whole) {
                        let reason = format!("{} (event {})", failure.trouble, failure.event);
                        return Err(RefireError::Failed { batch: batch.id, reason });
                    }
                    if !cut.panicked.is_empty() {
                        let reason = "it made the matcher panic".to_owned();
                        return Err(RefireError::Failed { batch: batch.id, reason });
                    }
                    step.batches = new_batches(&compiled, &compiled.rules, cut.batches, batch.accepted_at, now);
                    report_suppressed(&cut.suppressed);
                    step.states = cut.states.into_iter().map(|page| (firing.application.clone(), page)).collect();
                    done += 1;
                }
                _ if !is_last => continue,
                _ => {}
            }
            flow.journal.commit(step).await?;
            if !self.remembers {
                let confirmed = keep_busy(|| self.followed.shards().remember(&Memory::Confirm));
                self.remembers = confirmed.is_ok();
            }
        }
        Ok(done)
    }

    /// Has the shards match batches, each as of its place, and gives what they made of all, with the queries that failed.
    /// An index that is lost on the way is built anew, and all are matched by that.
    async fn cut(
        &mut self,
        flow: &Flow,
        name: &Name,
        batches: &[Readable],
    ) -> Result<(Cut, Vec<FailedQuery>), StoreError> {
        let mut rebuilds = 0;
        loop {
            match self.try_cut(flow, name, batches).await {
                Ok(cut) => return Ok(cut),
                Err(Lost::Store(error)) => {
                    self.remembers = false;
                    // What the shards have made so far is of no use to the next quantum.
                    let _ = keep_busy(|| self.followed.settle());
                    return Err(error);
                }
                Err(lost) if rebuilds < REBUILDS_MAX => {
                    rebuilds += 1;
                    let first = batches.first().and_then(|readable| readable.batch.sees);
                    self.rebuild(flow, name, first.unwrap_or_else(|| flow.places.newest()), &lost).await?;
                    if self.compiled.rules.remembers() {
                        // What they remember is read again first, when nothing is on its way to the journal.
                        return Err(StoreError::unavailable(lost));
                    }
                }
                Err(lost) => return Err(StoreError::unavailable(lost)),
            }
        }
    }

    async fn try_cut(
        &mut self,
        flow: &Flow,
        name: &Name,
        batches: &[Readable],
    ) -> Result<(Cut, Vec<FailedQuery>), Lost> {
        keep_busy(|| self.followed.shards().remember(&Memory::Begin))?;
        let mut failed = Vec::new();
        let mut runs = batches.chunk_by(|one, next| one.batch.sees == next.batch.sees).peekable();
        while let Some(run) = runs.next() {
            self.go_to(flow, name, run[0].batch.sees).await?;
            let unpacked: Arc<[UnpackedBatch]> =
                keep_busy(|| run.iter().map(|readable| self.query(readable, &mut failed)).collect());
            if runs.peek().is_some() {
                keep_busy(|| self.followed.shards().match_batches(&unpacked))?;
            } else {
                return Ok((keep_busy(|| self.followed.shards().match_and_cut(unpacked))?, failed));
            }
        }
        Ok((Cut::default(), failed))
    }

    /// Runs the queries that a batch fires by the tables as they stand, and gives the batch for the shards.
    fn query(&mut self, readable: &Readable, failed: &mut Vec<FailedQuery>) -> UnpackedBatch {
        let Readable { batch, fields, rows, left_out, again } = readable;
        let rules = &self.compiled.rules;
        let fires = |rule: &Name| rules.number(rule.as_str()).is_none_or(|number| !left_out.contains(&number));
        let told = self.followed.queries().map_or_else(Vec::new, |queries| {
            let (first, columns) = rules.columns_of_queries(&batch.class);
            let beside = Beside { columns: &columns, first, rows };
            run_queries::run(queries, batch, fields, &beside, &fires)
        });
        for firing in &told {
            if let (Err(reason), Some(number)) = (&firing.outcome, rules.number(firing.rule.as_str())) {
                failed.push((batch.id, number, reason.clone()));
            }
        }
        UnpackedBatch {
            id: batch.id,
            accepted_at: batch.accepted_at,
            class: batch.class.clone(),
            rows: rows.clone(),
            left_out: left_out.clone(),
            again: *again,
            told,
        }
    }

    /// Brings the index to a place; where the records do not remember it any more, the index stays where it stands.
    async fn go_to(&mut self, flow: &Flow, name: &Name, sees: Option<ChangeSequence>) -> Result<(), Lost> {
        match self.followed.go_to(&*flow.records, sees.unwrap_or_else(|| flow.places.newest())).await {
            Err(Lost::Place(place)) => {
                let stands = self.followed.place();
                metrics::counter!("match_displaced_batches_total").increment(1);
                tracing::warn!(
                    application = %name,
                    sees = place.0,
                    matched_at = stands.0,
                    "the records no longer know what event batches should see; they are matched by what is known"
                );
                Ok(())
            }
            done => done,
        }
    }

    /// Makes the shards remember what the journal does, and nothing else, if they do not; for the subscriptions as of a
    /// place, or as they are.
    async fn remember(&mut self, flow: &Flow, name: &Name, sees: Option<ChangeSequence>) -> Result<(), StoreError> {
        if self.remembers {
            return Ok(());
        }
        let mut pages: Vec<StatePage> = Vec::new();
        loop {
            let more = flow.journal.state_pages(name, pages.last(), STATE_PAGES).await?;
            let is_last = more.len() < STATE_PAGES;
            pages.extend(more);
            if is_last {
                break;
            }
        }
        if let (Some(_), Err(lost)) = (sees, self.go_to(flow, name, sees).await) {
            self.rebuild(flow, name, sees.unwrap_or_else(|| flow.places.newest()), &lost).await?;
        }
        let rules = self.compiled.rules.clone();
        let (chronicled, pages): (Vec<_>, Vec<_>) = pages.into_iter().partition(|page| page.name.starts_with(PREFIX));
        let damaged = keep_busy(|| self.chronicles.restore(chronicled));
        let remembered = Remembered::read(&rules, pages);
        if remembered.damaged + damaged > 0 {
            let pages = remembered.damaged + damaged;
            tracing::error!(application = %name, pages, "what rules remember is damaged in part and begins anew there");
        }
        let remembered = Arc::new(Mutex::new(remembered));
        let restored = keep_busy(|| {
            self.followed.shards().remember(&Memory::Restore(remembered.clone()))?;
            // Each shard has taken its own when all have answered.
            self.followed.settle()?;
            let rest = std::mem::take(&mut *remembered.lock()).rest(&rules);
            self.followed.shards().remember(&Memory::TakeOver(rest.into()))
        });
        restored.map_err(StoreError::unavailable)?;
        self.remembers = true;
        Ok(())
    }

    async fn rebuild(
        &mut self,
        flow: &Flow,
        name: &Name,
        place: ChangeSequence,
        lost: &Lost,
    ) -> Result<(), StoreError> {
        tracing::warn!(application = %name, reason = %lost, "the match index is built anew");
        metrics::counter!("match_index_rebuilds_total").increment(1);
        self.remembers = false;
        self.followed = build(flow, &self.compiled, place).await?;
        self.report = keep_busy(|| self.followed.settle()).map_err(StoreError::unavailable)?;
        Ok(())
    }
}

/// Builds the index of a version as of a place.
pub(crate) async fn build(flow: &Flow, compiled: &Compiled, place: ChangeSequence) -> Result<Followed, StoreError> {
    let built = Followed::build(&*flow.records, compiled, shard_count(flow.options.match_shards), place).await;
    built.map_err(|lost| match lost {
        Lost::Store(error) => error,
        lost => StoreError::unavailable(lost),
    })
}

/// The place at which an index is wanted next: that of the oldest batch that waits, else the present.
pub(crate) async fn place_wanted(flow: &Flow) -> Result<ChangeSequence, StoreError> {
    let settled = flow.places.settled();
    Ok(flow.journal.oldest_place().await?.map_or(settled, |oldest| oldest.min(settled)))
}

/// A batch that could be unpacked. Once its chronicles have taken it, it holds what rules read of them.
struct Readable {
    batch: EventBatch,
    /// Those that it was packed with.
    fields: Fields,
    rows: Arc<[Row]>,
    /// Rules that do not fire for it.
    left_out: Vec<RuleNumber>,
    /// Whether it was matched before, by all rules or by others.
    again: bool,
}

/// A query that failed for a batch, and why.
type FailedQuery = (EventBatchId, RuleNumber, String);

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

/// Counts the matches that were not told.
fn report_suppressed(suppressed: &[u64; Suppression::ALL.len()]) {
    for (reason, count) in Suppression::ALL.into_iter().zip(suppressed) {
        metrics::counter!("match_suppressed_total", "reason" => reason.name()).increment(*count);
    }
}

/// Counts what was done with the subscriptions' own filters.
fn report_filtered(counts: Counts) {
    metrics::counter!("match_filter_candidates_total").increment(counts.candidates);
    metrics::counter!("match_filter_evaluations_total").increment(counts.evaluated);
    metrics::counter!("match_filter_matches_total").increment(counts.matched);
}

/// Removes what the rules of an application that is no more remembered.
pub(crate) async fn forget(flow: &Flow, name: &Name) -> Result<(), StoreError> {
    loop {
        let pages = flow.journal.state_pages(name, None, STATE_PAGES).await?;
        if pages.is_empty() {
            return Ok(());
        }
        let none = |page: StatePage| (name.clone(), StatePage { body: Bytes::new(), ..page });
        flow.journal.commit(Step { states: pages.into_iter().map(none).collect(), ..Step::default() }).await?;
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

/// What is told of an event batch in the quantum that takes it up.
fn taken_up(events: &ClaimedEvents) -> TakenUp {
    let EventBatch { id, application, class, source, accepted_at, events, .. } = &events.batch;
    TakenUp {
        id: *id,
        application: application.clone(),
        class: class.clone(),
        source: source.clone(),
        accepted_at: *accepted_at,
        events: events.count(),
    }
}

/// How many notifications a step makes.
fn notifications_of(step: &Step) -> u64 {
    step.batches.iter().map(|batch| u64::from(batch.count)).sum()
}

/// Cut batches with their heads. The rules are those by which they were cut.
pub(crate) fn new_batches(
    compiled: &Compiled,
    rules: &RuleSet,
    cut: Vec<CutBatch>,
    accepted_at: Timestamp,
    now: Timestamp,
) -> Vec<NewNotificationBatch> {
    let capped = cap(cut, compiled.application.limits.notifications_per_event);
    capped.into_iter().map(|(cut, beyond)| new_batch(compiled, rules, cut, beyond, accepted_at, now)).collect()
}

fn new_batch(
    compiled: &Compiled,
    rules: &RuleSet,
    cut: CutBatch,
    beyond: Option<String>,
    accepted_at: Timestamp,
    now: Timestamp,
) -> NewNotificationBatch {
    let without_device = || cut.channel.is_none().then(|| "the subscriber has no active device".to_owned());
    let suspended = beyond.or_else(without_device);
    let class = compiled.application.notifications.get(&cut.class);
    NewNotificationBatch {
        priority: class.map_or(Priority::Normal, |class| class.conduct.priority),
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
