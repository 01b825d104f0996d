//! Random operations on the memory and the SQLite journal: after each operation the results must be equal. The memory
//! journal recomputes its counters each time, so they are the reference for the counters that SQLite updates.

use std::{sync::Arc, time::Duration};

use tocsin_model::{
    delivery_policy::Priority,
    event::EventBatch,
    id::{ChangeSequence, EventBatchId, EventId, Name, NotificationBatchId, SubscriptionId, WorkItemId},
    receipt::Outcome,
    state::StatePage,
    time::Timestamp,
};
use tocsin_store::journal::{
    ActivityLog, CancelDelayed, Claim, ClaimEvents, Component, Correlation, Cutoffs, DelayedFilter, DueDelays,
    EventRange, Except, FiringFilter, FiringStatus, Journal, Mark, NewDelayed, NewFiring, NewQuantum, NewResend,
    NotificationLog, OpenWork, QuantumInput, QuantumQuery, RefiredBatch, ReopenedNotifications, ResendProgress,
    Resolution, Retry, Role, RuleStop, ScheduleKey, ScheduleRun, Step, Suspension, SuspensionFilter, Switch,
    SwitchState, Window, WorkItem, WorkState,
};

use crate::support::*;

/// The same claim in both journals.
type Both<Id> = (Claim<Id>, Claim<Id>);

struct DifferentialTest {
    fixture: JournalFixture,
    memory: Arc<dyn Journal>,
    sqlite: Option<Arc<dyn Journal>>,
    random: fastrand::Rng,
    now: Timestamp,
    events: Vec<Both<EventBatchId>>,
    work: Vec<(WorkItem, WorkItem)>,
}

#[test]
fn memory_and_sqlite_agree() {
    let seeds: Vec<u64> = match std::env::var("TOCSIN_SEED").ok().and_then(|seed| seed.parse().ok()) {
        Some(seed) => vec![seed],
        None => (0..6).map(|_| fastrand::u64(..)).collect(),
    };
    for seed in seeds {
        println!("TOCSIN_SEED={seed}");
        run(DifferentialTest::run(seed));
    }
}

impl DifferentialTest {
    async fn run(seed: u64) {
        let fixture = JournalFixture::sqlite();
        let sqlite = Some(fixture.open().await);
        let memory = Arc::new(tocsin_store::memory::journal::MemoryJournal::new(options()));
        let random = fastrand::Rng::with_seed(seed);
        let mut test =
            DifferentialTest { fixture, memory, sqlite, random, now: at(0), events: Vec::new(), work: Vec::new() };
        for _ in 0..300 {
            test.run_operation().await;
            test.compare_counters();
            if test.random.u32(..20) == 0 {
                test.compare_everything().await;
            }
        }
        test.compare_everything().await;
    }

    fn sqlite(&self) -> Arc<dyn Journal> {
        self.sqlite.clone().expect("open")
    }

    async fn run_operation(&mut self) {
        match self.random.u32(..100) {
            0..20 => self.accept().await,
            20..32 => self.claim_events().await,
            32..45 => self.match_events().await,
            45..58 => self.claim_work().await,
            58..80 => self.deliver().await,
            80..84 => self.release_work().await,
            84..87 => self.resolve().await,
            87..88 => self.resend().await,
            88..90 => self.rematch().await,
            90..92 => self.prune().await,
            92..94 => self.reopen().await,
            94..96 => self.change_rules().await,
            96 => self.switch().await,
            97 if self.random.bool() => self.run_schedules().await,
            97 => self.run_delays().await,
            _ => self.now = self.now + Duration::from_secs(self.random.u64(1..40)),
        }
    }

    async fn accept(&mut self) {
        let mut new = match self.random.bool() {
            true => events(self.random.u32(1..30), self.now),
            false => {
                let until = self.now + Duration::from_secs(50);
                keyed(self.random.u8(..4), self.random.u8(..2), until, self.now)
            }
        };
        if self.random.u8(..5) == 0 {
            new.application = name("quakes");
        }
        // Mostly rising, but sometimes a batch that was received earlier is accepted later.
        new.snapshot_sequence = ChangeSequence(self.random.u64(..20) + new.accepted_at.0.unsigned_abs() / 1_000_000);
        if self.random.bool() {
            let part = format!("part {}", self.random.u8(..5));
            new.marks = match self.random.u8(..4) {
                0 => vec![Mark::delete(part)],
                value => vec![Mark::set(part, vec![value])],
            };
        }
        let answers = (self.memory.accept(new.clone()).await, self.sqlite().accept(new).await);
        assert_eq!(answers.0.expect("accepted"), answers.1.expect("accepted"));
    }

    async fn claim_events(&mut self) {
        let (batches, bytes) = (self.random.usize(..4), self.random.usize(..2_000));
        let mut except = Except::default();
        match self.random.u32(..8) {
            0 => drop(except.applications.insert(app())),
            1 => drop(except.classes.insert((app(), name("trade")))),
            2 => drop(except.applications.insert(name("nobody"))),
            _ => {}
        }
        let claimed = self
            .memory
            .claim_events(ClaimEvents { batches, bytes, except: &except, lease: LEASE, now: self.now })
            .await
            .expect("claimed");
        let sqlite_claims = self
            .sqlite()
            .claim_events(ClaimEvents { batches, bytes, except: &except, lease: LEASE, now: self.now })
            .await
            .expect("claimed");
        assert_eq!(
            claimed.iter().map(|claimed| &claimed.batch).collect::<Vec<_>>(),
            sqlite_claims.iter().map(|claimed| &claimed.batch).collect::<Vec<_>>()
        );
        self.events.extend(claimed.iter().zip(sqlite_claims).map(|(one, two)| (one.claim, two.claim)));
    }

    /// Takes some of the earlier claims, whether they are still valid or not.
    fn pick<T>(random: &mut fastrand::Rng, from: &mut Vec<T>) -> Vec<T> {
        random.shuffle(from);
        let count = random.usize(..=from.len().min(3));
        from.drain(..count).collect()
    }

    async fn commit(&mut self, one: Step, two: Step) {
        let answers = (self.memory.commit(one).await, self.sqlite().commit(two).await);
        match answers {
            (Ok(one), Ok(two)) => assert_eq!(one.len(), two.len()),
            (Err(one), Err(two)) => assert_eq!(one.to_string(), two.to_string()),
            (one, two) => panic!("memory: {one:?}, SQLite: {two:?}"),
        }
    }

    async fn match_events(&mut self) {
        let picked = Self::pick(&mut self.random, &mut self.events);
        let mut one = Step::default();
        let mut two = Step::default();
        for (claim, sqlite_one) in &picked {
            if self.random.u8(..6) == 0 {
                one.failed.push((*claim, "no".to_owned()));
                two.failed.push((*sqlite_one, "no".to_owned()));
            } else {
                one.matched.push(*claim);
                two.matched.push(*sqlite_one);
            }
        }
        let ids: Vec<EventBatchId> = one.matched.iter().map(|claim| claim.id).collect();
        if !ids.is_empty() {
            for _ in 0..self.random.u32(..4) {
                let mut new = notifications(&ids, self.random.u32(..40), self.now);
                new.suspended = (self.random.u8(..6) == 0).then(|| "switched off".to_owned());
                one.batches.push(new.clone());
                two.batches.push(new);
            }
        }
        if let Some(last) = ids.last() {
            for _ in 0..self.random.u32(..4) {
                let event = EventId { batch: ids[self.random.usize(..ids.len())], ordinal: self.random.u32(..3) };
                one.delayed.push(NewDelayed {
                    application: app(),
                    rule: name(if self.random.bool() { "near" } else { "far" }),
                    event,
                    subscription: SubscriptionId(self.random.u64(..4)),
                    due_at: self.now + Duration::from_secs(self.random.u64(..60)),
                    key: self.random.bool().then(|| format!("k{}", self.random.u8(..3)).into()),
                });
            }
            for _ in 0..self.random.u32(..2) {
                let correlation = match self.random.bool() {
                    true => Correlation::Key(format!("k{}", self.random.u8(..3)).into()),
                    false => Correlation::Subscription(SubscriptionId(self.random.u64(..4))),
                };
                let by = EventId { batch: *last, ordinal: self.random.u32(..3) };
                one.cancelled.push(CancelDelayed { application: app(), rule: name("near"), by, correlation });
            }
            if self.random.u8(..3) == 0 {
                one.released.push(*last);
            }
            (two.delayed, two.cancelled) = (one.delayed.clone(), one.cancelled.clone());
            two.released = one.released.clone();
        }
        if self.random.u8(..8) == 0 {
            one.continued.push(events(self.random.u32(1..4), self.now));
            two.continued = one.continued.clone();
        }
        if let Some(batch) = ids.first() {
            self.add_firings(&mut one, *batch);
            (two.firings, two.refired, two.stops) = (one.firings.clone(), one.refired.clone(), one.stops.clone());
            for _ in 0..self.random.u32(..3) {
                let name = if self.random.bool() { "rules.near" } else { "chronicles.day" }.into();
                let number = if self.random.bool() { self.random.u64(..4) } else { u64::MAX - self.random.u64(..4) };
                let body = vec![7; self.random.usize(..3)].into();
                one.states.push((app(), StatePage { name, number, body }));
            }
            two.states = one.states.clone();
        }
        one.quantum = self.quantum_of(&picked).await;
        two.quantum = one.quantum.clone();
        self.commit(one, two).await;
    }

    /// The quantum of a step.
    async fn quantum_of(&mut self, picked: &[Both<EventBatchId>]) -> Option<NewQuantum> {
        let mut batches = Vec::new();
        for (claim, _) in picked {
            let (batch, _) = self.memory.event_batch(claim.id).await.expect("read")?;
            let EventBatch { id, application, class, source, accepted_at, events, .. } = batch;
            batches.push(QuantumInput { id, application, class, source, accepted_at, events: events.count() });
        }
        let started_at = self.now;
        let ended_at = self.now + Duration::from_millis(self.random.u64(..5_000));
        Some(NewQuantum { started_at, ended_at, batches, scheduled_notifications: self.random.u64(..3) })
    }

    async fn claim_work(&mut self) {
        let (limit, least) = (self.random.usize(..5), Priority::ALL[self.random.usize(1..4)]);
        let items = claim_with_priority(&*self.memory, least, limit, self.now).await;
        let sqlite_claims = claim_with_priority(&*self.sqlite(), least, limit, self.now).await;
        self.work.extend(items.into_iter().zip(sqlite_claims));
        for (one, two) in &self.work {
            assert_eq!(without_token(one.clone()), without_token(two.clone()));
        }
    }

    async fn deliver(&mut self) {
        let picked = Self::pick(&mut self.random, &mut self.work);
        let mut one = Step::default();
        let mut kept = Vec::new();
        for (item, sqlite_one) in picked {
            let finishes = self.random.u8(..3) > 0;
            self.end_claim(&item, finishes, &mut one).await;
            if finishes {
                one.finished.push(item.claim);
            }
            kept.push((item, sqlite_one));
        }
        // The same step with the tokens of SQLite.
        let mut two = one.clone();
        // An item may have been claimed twice, so both the id and the token must be equal.
        let sqlite_claim =
            |claim: Claim<WorkItemId>| kept.iter().find(|(item, _)| item.claim == claim).expect("picked").1.claim;
        for claim in two.finished.iter_mut().chain(&mut two.held) {
            *claim = sqlite_claim(*claim);
        }
        let finished: Vec<WorkItemId> = one.finished.iter().map(|claim| claim.id).collect();
        self.commit(one, two).await;
        kept.retain(|(item, _)| !finished.contains(&item.claim.id));
        self.work.extend(kept);
    }

    /// Settles some or all notifications of an item in a random way.
    async fn end_claim(&mut self, item: &WorkItem, finishes: bool, step: &mut Step) {
        let all = match &item.ordinals {
            Some(ordinals) => ordinals.clone(),
            None => {
                // A pruned batch has no open work, but an invalid claim may refer to it.
                let Some(batch) = self.memory.notification_batch(item.batch).await.expect("read") else { return };
                (0..batch.notifications.count() as u32).collect()
            }
        };
        if !finishes {
            step.held.push(item.claim);
        }
        let some: Vec<u32> = all.into_iter().filter(|_| finishes || self.random.bool()).collect();
        if some.is_empty() {
            return;
        }
        let outcome = Outcome::ALL[self.random.usize(..5)];
        let number = item.attempts + 1;
        step.receipts.push(chunk(item.batch, attempts(some.clone(), number, outcome, self.now)));
        let (application, channel) = (app(), mail());
        match outcome {
            Outcome::Deferred => step.retries.push(Retry {
                batch: item.batch,
                application,
                channel,
                ordinals: some,
                attempts: number,
                due_at: self.now + Duration::from_secs(self.random.u64(..90)),
                work_state: WorkState::default(),
            }),
            Outcome::Suspended => step.suspensions.push(Suspension {
                batch: item.batch,
                application,
                channel,
                ordinals: some,
                attempts: number,
                reason: "exhausted".to_owned(),
                since: self.now,
                work_state: WorkState::default(),
            }),
            _ => {}
        }
    }

    async fn release_work(&mut self) {
        let later = self.random.bool().then(|| self.now + Duration::from_secs(self.random.u64(..90)));
        for (one, two) in Self::pick(&mut self.random, &mut self.work) {
            let answers = match self.random.bool() {
                true => (self.memory.release(one.claim, later).await, self.sqlite().release(two.claim, later).await),
                false => (
                    self.memory.extend(one.claim, LEASE, self.now).await,
                    self.sqlite().extend(two.claim, LEASE, self.now).await,
                ),
            };
            assert_eq!(format!("{:?}", answers.0), format!("{:?}", answers.1));
        }
        for (one, two) in Self::pick(&mut self.random, &mut self.events) {
            let answers = (self.memory.release_events(one).await, self.sqlite().release_events(two).await);
            assert_eq!(format!("{:?}", answers.0), format!("{:?}", answers.1));
        }
    }

    /// Reopens the failed notifications of the next batch of a resend request.
    async fn resend(&mut self) {
        let key = self.random.u32(..10).to_string();
        let new = NewResend { key, request: "{}".to_owned(), by: "op".to_owned(), asked_at: self.now };
        let begun = self.memory.begin_resend(new.clone()).await.expect("stored");
        assert_eq!(self.sqlite().begin_resend(new).await.expect("stored"), begun);
        let open = self.memory.resends(true, 0, 9).await.expect("listed");
        assert_eq!(self.sqlite().resends(true, 0, 9).await.expect("listed"), open);
        let Some(request) = open.first() else { return };
        let mut step = Step::default();
        let mut resent = ResendProgress {
            id: request.id,
            from: request.reached,
            reached: request.last,
            done_at: Some(self.now),
            reopened: Vec::new(),
            resumed: Vec::new(),
            now: self.now,
        };
        let next = self.memory.notification_batches_after(request.reached, 1).await.expect("listed");
        if let Some((id, head, count)) = next.into_iter().next().filter(|(id, ..)| *id <= request.last) {
            let mut last = vec![None; count as usize];
            for attempt in self.memory.attempts(id).await.expect("read") {
                last[attempt.ordinal as usize] = Some(attempt.outcome);
            }
            let of = |outcomes: &[Outcome]| -> Vec<u32> {
                let meant = |at: &u32| last[*at as usize].is_some_and(|outcome| outcomes.contains(&outcome));
                (0..count).filter(meant).collect()
            };
            let closed = of(&[Outcome::Refused, Outcome::Ended, Outcome::Expired]);
            (resent.reached, resent.done_at) = (id, None);
            resent.resumed.push((id, of(&[Outcome::Suspended])));
            if !closed.is_empty() {
                step.receipts.push(chunk(id, attempts(closed.iter().copied(), 1, Outcome::Deferred, self.now)));
                step.retries.push(Retry {
                    batch: id,
                    application: head.application,
                    channel: head.channel,
                    ordinals: closed.clone(),
                    attempts: 0,
                    due_at: self.now,
                    work_state: WorkState::default(),
                });
                let failed = of(&[Outcome::Refused, Outcome::Expired]).len() as u32;
                resent.reopened.push(ReopenedNotifications { batch: id, ordinals: closed, failed });
            }
        }
        step.resent = Some(resent);
        let (one, two) = (self.memory.commit(step.clone()).await, self.sqlite().commit(step).await);
        assert_eq!(one.is_ok(), two.is_ok(), "memory: {one:?}, SQLite: {two:?}");
    }

    async fn resolve(&mut self) {
        let resolution = if self.random.bool() { Resolution::Resume } else { Resolution::End };
        let id = self.random.bool().then(|| self.random.u64(..20));
        let filter = SuspensionFilter { id, ..SuspensionFilter::default() };
        let touched = self.memory.resolve(&filter, resolution, self.now).await.expect("resolved");
        assert_eq!(touched, self.sqlite().resolve(&filter, resolution, self.now).await.expect("resolved"));
    }

    async fn rematch(&mut self) {
        let count = self.memory.rematch(&app()).await.expect("answered");
        assert_eq!(count, self.sqlite().rematch(&app()).await.expect("answered"));
    }

    async fn prune(&mut self) {
        let ago = |random: &mut fastrand::Rng, now: Timestamp| now - Duration::from_secs(random.u64(..100));
        let mut cutoffs = Cutoffs::all(ago(&mut self.random, self.now));
        if self.random.bool() {
            cutoffs.events.insert((app(), name("trade")), ago(&mut self.random, self.now));
            cutoffs.notifications.insert((app(), name("alert")), ago(&mut self.random, self.now));
        }
        let limit = self.random.usize(..10);
        let over = self.memory.prunable(&cutoffs, limit).await.expect("counted");
        assert_eq!(over, self.sqlite().prunable(&cutoffs, limit).await.expect("counted"));
        let count = self.memory.prune(&cutoffs, self.now, limit).await.expect("pruned");
        assert_eq!(count, self.sqlite().prune(&cutoffs, self.now, limit).await.expect("pruned"));
        assert_eq!(count, over, "all counted batches are pruned");
    }

    /// Switches a component off or on.
    async fn switch(&mut self) {
        let component = match self.random.u8(..3) {
            0 => Component::Role(Role::ALL[self.random.usize(..4)]),
            1 => Component::Application(app()),
            _ => Component::Channel(app(), mail()),
        };
        for journal in [self.memory.clone(), self.sqlite()] {
            let random = &mut self.random.clone();
            if random.bool() {
                let state = if random.bool() { SwitchState::Paused } else { SwitchState::Disabled };
                let (by, reason) = ("ann".to_owned(), "maintenance".to_owned());
                let switch = Switch { component: component.clone(), state, by, reason, since: self.now };
                journal.set_switch(switch).await.expect("switched off");
            } else {
                journal.remove_switch(&component).await.expect("switched on");
            }
        }
        self.random.bool();
    }

    /// Records or removes runs of schedules.
    async fn run_delays(&mut self) {
        let rule = name(if self.random.bool() { "near" } else { "far" });
        if self.random.u8(..4) == 0 {
            let filter = DelayedFilter { rule: Some(rule), ..DelayedFilter::default() };
            let limit = self.random.usize(..4);
            let one = self.memory.cancel_delayed(&filter, self.now, limit).await.expect("cancelled");
            return assert_eq!(one, self.sqlite().cancel_delayed(&filter, self.now, limit).await.expect("cancelled"));
        }
        let due = DueDelays { batch: events(1, self.now), rule, now: self.now, limit: self.random.usize(1..4) };
        let one = self.memory.assign_due(due.clone()).await.expect("assigned");
        assert_eq!(one, self.sqlite().assign_due(due).await.expect("assigned"));
    }

    async fn run_schedules(&mut self) {
        let schedule = |random: &mut fastrand::Rng| -> ScheduleKey {
            (name(if random.bool() { "near" } else { "far" }), format!("DTSTART:{}", random.u8(..3)).into())
        };
        if self.random.u8(..4) == 0 {
            let key = schedule(&mut self.random);
            self.memory.delete_schedule(&app(), &key).await.expect("forgotten");
            return self.sqlite().delete_schedule(&app(), &key).await.expect("forgotten");
        }
        let run = |random: &mut fastrand::Rng| {
            let (rule, schedule) = schedule(random);
            let (after, skipped) = (EventBatchId(random.u64(..9)), random.u64(..3));
            let skipped_at = (skipped > 0).then_some(self.now);
            ScheduleRun {
                application: app(),
                rule,
                schedule,
                due_at: self.now,
                after,
                seen: ChangeSequence(random.u64(..9)),
                skipped,
                skipped_at,
            }
        };
        let runs: Vec<ScheduleRun> = (0..self.random.u8(1..4)).map(|_| run(&mut self.random)).collect();
        let due = self.random.bool().then(|| events(self.random.u32(1..4), self.now));
        let one = self.memory.record_runs(due.clone(), runs.clone()).await.expect("recorded");
        assert_eq!(one, self.sqlite().record_runs(due, runs).await.expect("recorded"));
    }

    /// Dismisses firings, and stops or resumes rules.
    async fn change_rules(&mut self) {
        let rule: Name = if self.random.bool() { "near" } else { "far" }.parse().expect("a name");
        let filter = FiringFilter {
            id: self.random.bool().then(|| self.random.u64(..20)),
            application: self.random.bool().then(app),
            rule: self.random.bool().then(|| rule.clone()),
            status: self.random.bool().then_some(FiringStatus::Skipped),
        };
        let stop = RuleStop {
            application: app(),
            rule: rule.clone(),
            by: "ann".to_owned(),
            reason: format!("{}", self.random.u8(..)),
            since: self.now,
        };
        let mut answers = Vec::new();
        let which = self.random.u32(..3);
        for journal in [self.memory.clone(), self.sqlite()] {
            answers.push(match which {
                0 => format!("{:?}", journal.dismiss_firings(&filter).await),
                1 => format!("{:?}", journal.stop_rule(stop.clone()).await),
                _ => format!("{:?}", journal.resume_rule(&app(), &rule).await),
            });
        }
        assert_eq!(answers[0], answers[1]);
    }

    /// Adds firings and rule stops to a step.
    fn add_firings(&mut self, step: &mut Step, batch: EventBatchId) {
        let rule: Name = if self.random.bool() { "near" } else { "far" }.parse().expect("a name");
        match self.random.u32(..6) {
            0 => step.firings.push(NewFiring {
                application: app(),
                rule,
                batch,
                status: if self.random.bool() { FiringStatus::Failed } else { FiringStatus::Skipped },
                reason: "it failed".to_owned(),
                run: self.random.bool().then(|| EventBatchId(self.random.u64(..4))),
                at: self.now,
            }),
            1 => step
                .refired
                .push(RefiredBatch { id: self.random.u64(..20), batch: EventBatchId(self.random.u64(..40)) }),
            2 => step.stops.push(RuleStop {
                application: app(),
                rule,
                by: "tocsin".to_owned(),
                reason: "it fails".to_owned(),
                since: self.now,
            }),
            _ => {}
        }
    }

    /// A restart invalidates all claims. The memory journal has no restart, so its leases must expire.
    async fn reopen(&mut self) {
        self.events.clear();
        self.work.clear();
        self.now = self.now + LEASE * 2;
        // The last reference is dropped before the file is opened again, since only one process can use it.
        self.sqlite = None;
        self.sqlite = Some(self.fixture.open().await);
    }

    fn compare_counters(&self) {
        assert_eq!(self.memory.backlog(), self.sqlite().backlog());
        assert_eq!(self.memory.totals(), self.sqlite().totals());
    }

    async fn compare_everything(&self) {
        let (memory, sqlite) = (&self.memory, self.sqlite());
        assert_eq!(
            memory.oldest_waiting_sequence().await.expect("read"),
            sqlite.oldest_waiting_sequence().await.expect("read")
        );
        let batches = memory.event_batches(None, usize::MAX).await.expect("read");
        assert!(batches.is_sorted_by_key(|(batch, _)| std::cmp::Reverse(batch.snapshot_sequence)));
        assert_eq!(batches, sqlite.event_batches(None, usize::MAX).await.expect("read"));
        for (EventBatch { id, .. }, _) in batches {
            assert_eq!(memory.event_batch(id).await.expect("read"), sqlite.event_batch(id).await.expect("read"));
            let linked = memory.notification_batches_of(id, NotificationBatchId(0), usize::MAX).await.expect("read");
            assert_eq!(
                linked,
                sqlite.notification_batches_of(id, NotificationBatchId(0), usize::MAX).await.expect("read")
            );
        }
        let all = DelayedFilter::default();
        let delayed = memory.delayed(&all, 0, usize::MAX).await.expect("read");
        assert_eq!(delayed, sqlite.delayed(&all, 0, usize::MAX).await.expect("read"));
        assert_eq!(sqlite.delayed_count(&app()).await.expect("read"), delayed.len() as u64);
        let except = [name("far")];
        assert_eq!(
            memory.next_delayed(&app(), &except).await.expect("read"),
            sqlite.next_delayed(&app(), &except).await.expect("read")
        );
        let source = (app(), events(1, self.now).source);
        let marks = memory.marks(&source, None, usize::MAX).await.expect("read");
        assert_eq!(marks, sqlite.marks(&source, None, usize::MAX).await.expect("read"));
        let batches = memory.notification_batches(None, usize::MAX).await.expect("read");
        assert_eq!(batches, sqlite.notification_batches(None, usize::MAX).await.expect("read"));
        for (id, _, _) in batches {
            assert_eq!(memory.attempts(id).await.expect("read"), sqlite.attempts(id).await.expect("read"));
            let open = memory.open_work(id).await.expect("read").into_iter().map(without_token).collect::<Vec<_>>();
            let sqlite_one =
                sqlite.open_work(id).await.expect("read").into_iter().map(without_token).collect::<Vec<_>>();
            assert_eq!(open, sqlite_one);
        }
        let failed = memory.failed_batches(None, 5).await.expect("read");
        assert_eq!(failed, sqlite.failed_batches(None, 5).await.expect("read"));
        let ids: Vec<_> = (0..60).map(NotificationBatchId).collect();
        assert_eq!(memory.progress(&ids).await.expect("read"), sqlite.progress(&ids).await.expect("read"));
        for (seconds, application) in [(60, None), (300, Some(app()))] {
            let window = Window { from: at(0), to: at(100_000), interval: Duration::from_secs(seconds) };
            let rows = memory.activity(&window, application.as_ref()).await.expect("read");
            assert_eq!(rows, sqlite.activity(&window, application.as_ref()).await.expect("read"));
            let rows = memory.latest_activity(application.as_ref()).await.expect("read");
            assert_eq!(rows, sqlite.latest_activity(application.as_ref()).await.expect("read"));
        }
        let quanta =
            memory.quanta(QuantumQuery { from: at(0), to: at(100_000), before: None, limit: 40 }).await.expect("read");
        assert_eq!(
            quanta,
            sqlite.quanta(QuantumQuery { from: at(0), to: at(100_000), before: None, limit: 40 }).await.expect("read")
        );
        if let Some(quantum) = quanta.last() {
            let earlier = memory
                .quanta(QuantumQuery { from: at(0), to: at(100_000), before: Some(quantum.id), limit: 40 })
                .await
                .expect("read");
            assert_eq!(
                earlier,
                sqlite
                    .quanta(QuantumQuery { from: at(0), to: at(100_000), before: Some(quantum.id), limit: 40 })
                    .await
                    .expect("read")
            );
            assert_eq!(sqlite.quantum(quantum.id).await.expect("read").as_ref(), Some(quantum));
        }
        assert_eq!(memory.switches().await.expect("read"), sqlite.switches().await.expect("read"));
        let all = SuspensionFilter::default();
        let suspensions = memory.suspensions(&all, 0, usize::MAX).await.expect("read");
        assert_eq!(suspensions, sqlite.suspensions(&all, 0, usize::MAX).await.expect("read"));
        let all = FiringFilter::default();
        let firings = memory.firings(&all, 0, usize::MAX).await.expect("read");
        assert_eq!(firings, sqlite.firings(&all, 0, usize::MAX).await.expect("read"));
        let mut remembered = Vec::new();
        for journal in [memory, &sqlite] {
            let mut pages = Vec::new();
            loop {
                let more = journal.state_pages(&app(), pages.last(), 3).await.expect("read");
                if more.is_empty() {
                    break;
                }
                pages.extend(more);
            }
            pages.sort();
            remembered.push(pages);
        }
        assert_eq!(remembered[0], remembered[1]);
        assert_eq!(memory.rule_stops().await.expect("read"), sqlite.rule_stops().await.expect("read"));
        let runs = memory.schedule_runs(&app(), None, usize::MAX).await.expect("read");
        assert_eq!(runs, sqlite.schedule_runs(&app(), None, usize::MAX).await.expect("read"));
        for seconds in [0, 100, 1_000, 1_000_000] {
            let position = memory.position_at(at(seconds)).await.expect("read");
            assert_eq!(position, sqlite.position_at(at(seconds)).await.expect("read"));
        }
        for bytes in [1, 2_000, usize::MAX] {
            let (class, last) = (name("trade"), EventBatchId(u64::MAX));
            let page = memory
                .events_between(EventRange {
                    application: &app(),
                    class: &class,
                    after: EventBatchId(3),
                    before: last,
                    bytes,
                })
                .await
                .expect("read");
            let sqlite_one = sqlite
                .events_between(EventRange {
                    application: &app(),
                    class: &class,
                    after: EventBatchId(3),
                    before: last,
                    bytes,
                })
                .await
                .expect("read");
            assert_eq!(page, sqlite_one);
        }
        let ahead = memory.work_counts(self.now).await.expect("read");
        assert_eq!(ahead, sqlite.work_counts(self.now).await.expect("read"));
        let due = memory.next_due(&app(), &mail(), self.now).await.expect("read");
        assert_eq!(due, sqlite.next_due(&app(), &mail(), self.now).await.expect("read"));
    }
}
