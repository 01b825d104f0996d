//! Executes a due time at the position of its event in the log: its rule is evaluated for the due subscriptions, over
//! the events between it and the previous due time.
//!
//! The due subscriptions are put into a temporary index. So the cost of a run depends on its own subscriptions,
//! events and matches only. A long run is executed in parts, each one commit; other events are matched in between.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Instant,
};

use bytes::Bytes;
use tocsin_matching::{rule::RuleSet, subscriber::SubscriberView};
use tocsin_model::{
    application::{Recurs, due_class, due_fields},
    event::{EventBatch, EventPacker},
    field::Row,
    id::{ChangeSequence, EventBatchId, Name, SubscriberNumber, SubscriptionId},
    time::Timestamp,
    value::Value,
};
use tocsin_store::{
    error::StoreError,
    journal::{EventRange, NewEventBatch, NewNotificationBatch, ScheduleKey, ScheduleRun, Step},
    records::{IndexedSubscription, ScheduleMembers, ScheduledSubscription},
};

use crate::{
    Flow,
    class_counters::Labels,
    compile::Compiled,
    keep_busy,
    match_events::{new_batches, report_failures},
    temporary_index::TemporaryIndex,
    view_subscribers::view_subscribers,
};

/// Subscriptions read at a time.
const PAGE: usize = 5_000;
/// Later than all events.
const NEVER: Timestamp = Timestamp(i64::MAX);
/// Packed bytes of events read at a time.
const EVENT_BYTES: usize = 4 << 20;
/// Packed bytes of events read at a time under a throttle, which is checked after each read.
const EVENT_BYTES_THROTTLED: usize = 64 << 10;
/// Bytes of events after which a step is full; the rest is for the next step.
const BYTES_AT_ONCE: usize = 64 << 20;
/// The same for a class with a digest: a step that is full splits the digests of its subscribers.
const BYTES_OF_DIGESTS: usize = 1 << 30;

/// A due schedule, or a part of its run: an event of the class `due`.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Due {
    pub rule: Name,
    pub schedule: Box<str>,
    pub due_at: Timestamp,
    pub last_run: Timestamp,
    pub skipped: u64,
    /// Batch of the last run: events come after it, except for new subscriptions.
    pub after: EventBatchId,
    /// Batch after which this part continues; `None`: the first part.
    pub from: Option<EventBatchId>,
    /// Batch before which its events end; `None`: its own batch.
    pub before: Option<EventBatchId>,
    /// Snapshot sequences of the last run and of this one. Subscriptions created between them are new.
    pub seen: ChangeSequence,
    pub snapshot_sequence: ChangeSequence,
    /// Its subscriptions come after this one.
    pub subscriptions_after: SubscriptionId,
    /// Its last subscription; `None`: no limit.
    pub subscriptions_through: Option<SubscriptionId>,
}

impl Due {
    pub fn new((rule, schedule): &ScheduleKey, due_at: Timestamp, last_run: Timestamp, skipped: u64) -> Due {
        Due {
            rule: rule.clone(),
            schedule: schedule.clone(),
            due_at,
            last_run,
            skipped,
            after: EventBatchId(0),
            from: None,
            before: None,
            seen: ChangeSequence(0),
            snapshot_sequence: ChangeSequence(0),
            subscriptions_after: SubscriptionId(0),
            subscriptions_through: None,
        }
    }

    /// The run that follows a known last run.
    pub fn continuing(&self, last: &ScheduleRun, snapshot_sequence: ChangeSequence) -> Due {
        Due { after: last.after, seen: last.seen, snapshot_sequence, ..self.clone() }
    }

    /// Converts it to a row of `due_fields`.
    pub fn row(&self) -> Row {
        let number = |number: u64| Value::Integer(number as i64);
        vec![
            Value::from(self.rule.as_str()),
            Value::from(&*self.schedule),
            Value::Timestamp(self.due_at),
            Value::Timestamp(self.last_run),
            number(self.skipped),
            number(self.after.0),
            self.from.map_or(Value::Null, |from| number(from.0)),
            self.before.map_or(Value::Null, |before| number(before.0)),
            number(self.seen.0),
            number(self.snapshot_sequence.0),
            number(self.subscriptions_after.0),
            self.subscriptions_through.map_or(Value::Null, |through| number(through.0)),
        ]
    }

    fn read(row: &Row) -> Option<Due> {
        let text = |at: usize| match &row[at] {
            Value::Text(text) => Some(text.as_ref()),
            _ => None,
        };
        let number = |at: usize| match &row[at] {
            Value::Integer(number) => u64::try_from(*number).ok(),
            _ => None,
        };
        let time = |at: usize| match &row[at] {
            Value::Timestamp(time) => Some(*time),
            _ => None,
        };
        Some(Due {
            rule: text(0)?.parse().ok()?,
            schedule: text(1)?.into(),
            due_at: time(2)?,
            last_run: time(3)?,
            skipped: number(4)?,
            after: EventBatchId(number(5)?),
            from: number(6).map(EventBatchId),
            before: number(7).map(EventBatchId),
            seen: ChangeSequence(number(8)?),
            snapshot_sequence: ChangeSequence(number(9)?),
            subscriptions_after: SubscriptionId(number(10)?),
            subscriptions_through: number(11).map(SubscriptionId),
        })
    }
}

/// Whether an event batch is one of due times.
pub(crate) fn is_due(compiled: &Compiled, batch: &EventBatch) -> bool {
    batch.class == due_class()
        && batch.source == super::source()
        && compiled.application.events.contains_key(&batch.class)
}

/// Runs the due times of a batch, and adds the result and the remaining parts to the step, up to about `most`
/// notifications. The inner error says why it could not be run; then nothing was added.
pub(crate) async fn run_due(
    flow: &Flow,
    compiled: &Arc<Compiled>,
    batch: &EventBatch,
    most: Option<usize>,
    step: &mut Step,
) -> Result<Result<(), String>, StoreError> {
    let started = Instant::now();
    let fields = match flow.versions.event_fields(batch).await? {
        Ok(fields) => fields,
        Err(reason) => return Ok(Err(reason)),
    };
    let rows = match compiled.rules.rows(batch, &fields) {
        Ok(rows) => rows,
        Err(damaged) => return Ok(Err(damaged.to_string())),
    };
    // The chronicle entries of this step are not in the journal yet.
    let chronicled: BTreeMap<EventBatchId, Bytes> = step.chronicled.iter().cloned().collect();
    let mut part = Part { flow, compiled, batch, chronicled, most, made: Vec::new(), notifications: 0, bytes: 0 };
    let mut queue: VecDeque<(usize, Row)> = rows.into_iter().enumerate().collect();
    let (mut left, mut labels) = (Vec::new(), None);
    while let Some((ordinal, row)) = queue.pop_front() {
        let Some(due) = Due::read(&row) else { return Ok(Err("the event of a due time cannot be read".to_owned())) };
        // All due times of a batch are of one rule.
        labels = labels.or_else(|| part.labels(&due.rule));
        if part.is_full() {
            left.push(due);
            continue;
        }
        match part.run(ordinal, &row, due).await? {
            Ok(rest) => rest.into_iter().rev().for_each(|due| queue.push_front((ordinal, due.row()))),
            Err(reason) => return Ok(Err(reason)),
        }
    }
    step.batches.append(&mut part.made);
    if !left.is_empty() {
        step.continued.push(rest_of(compiled, batch, &left, flow.clock.now()));
    }
    if let Some(labels) = labels {
        metrics::histogram!("tocsin_schedule_run_duration_seconds", &labels).record(started.elapsed());
    }
    Ok(Ok(()))
}

/// The remaining parts of a run, as a new batch behind the events that arrived meanwhile.
fn rest_of(compiled: &Compiled, batch: &EventBatch, left: &[Due], now: Timestamp) -> NewEventBatch {
    let mut packer = EventPacker::new(due_fields());
    for due in left {
        packer.push(&Due { before: due.before.or(Some(batch.id)), ..due.clone() }.row());
    }
    NewEventBatch {
        application: batch.application.clone(),
        version: compiled.version,
        class: batch.class.clone(),
        source: batch.source.clone(),
        received_at: batch.received_at,
        accepted_at: now,
        snapshot_sequence: batch.snapshot_sequence.unwrap_or_default(),
        events: packer.finish(),
        idempotency: None,
        marks: Vec::new(),
    }
}

/// Execution of one step of runs.
struct Part<'a> {
    flow: &'a Flow,
    compiled: &'a Arc<Compiled>,
    batch: &'a EventBatch,
    chronicled: BTreeMap<EventBatchId, Bytes>,
    /// Notifications that a throttle allows.
    most: Option<usize>,
    made: Vec<NewNotificationBatch>,
    notifications: usize,
    bytes: usize,
}

/// Progress of the subscriptions of a run through its events.
enum RunProgress {
    /// All events were read.
    Finished,
    /// The step is full: continue after this batch.
    StepFull(EventBatchId),
    /// Too many notifications for one step, and digests must not be split: retry with half of the subscriptions.
    /// Nothing was added.
    TooMany,
}

/// A subscription of a run.
struct Member {
    subscription: IndexedSubscription,
    /// Its subscriber at the time of the run.
    subscriber: SubscriberView,
    /// Events count from this time on.
    since: Timestamp,
    /// Whether this is its first run, so that events before the last run may count.
    is_new: bool,
}

impl Part<'_> {
    /// Metric labels of a rule's notification class; `None` if the rule was removed.
    fn labels(&self, rule: &Name) -> Option<Labels> {
        let rule = self.compiled.application.rules.get(rule)?;
        Some(self.flow.classes.labels(&self.batch.application, &rule.notify))
    }

    /// Whether a rule makes digests.
    fn has_digests(&self, rule: &Name) -> bool {
        let class = self.compiled.application.rules.get(rule).map(|rule| &rule.notify);
        let class = class.and_then(|class| self.compiled.application.notifications.get(class));
        class.is_some_and(|class| class.delivery_policy.digest.is_some())
    }

    fn is_full(&self) -> bool {
        self.notifications >= self.notifications_max() || self.bytes >= BYTES_AT_ONCE
    }

    fn notifications_max(&self) -> usize {
        self.flow.options.run_notifications.min(self.most.unwrap_or(usize::MAX))
    }

    /// Runs some subscriptions of one due time. Returns the remaining parts.
    async fn run(&mut self, ordinal: usize, row: &Row, due: Due) -> Result<Result<Vec<Due>, String>, StoreError> {
        let Some(rules) = self.compiled.scheduled.get(&due.rule).cloned() else { return Ok(Ok(Vec::new())) };
        let (members, last, more) = self.members(&rules, &due).await?;
        let Some(last) = last else { return Ok(Ok(Vec::new())) };
        let mut rest = Vec::new();
        let mut ids: Vec<SubscriptionId> = members.iter().map(|member| member.subscription.id).collect();
        if self.compiled.application.rules[&due.rule].on == due_class() {
            let of_now = members.into_iter().filter(|member| member.since <= due.due_at);
            let mut table = TemporaryIndex::new(rules, false);
            of_now.for_each(|member| self.put(&mut table, member));
            if let Err(reason) = table.match_event(self.batch.id, ordinal as u32, &due_class(), row) {
                return Ok(Err(reason));
            }
            self.take(table);
        } else {
            match self.run_events(rules, members, &due).await? {
                Ok(RunProgress::Finished) => {}
                // The remaining events for these subscriptions, then the other subscriptions.
                Ok(RunProgress::StepFull(from)) => {
                    rest.push(Due { from: Some(from), subscriptions_through: Some(last), ..due.clone() });
                }
                Ok(RunProgress::TooMany) => {
                    ids.sort_unstable();
                    let half = ids[ids.len() / 2 - 1];
                    rest.push(Due { subscriptions_through: Some(half), ..due.clone() });
                    rest.push(Due { subscriptions_after: half, subscriptions_through: Some(last), ..due.clone() });
                }
                Err(reason) => return Ok(Err(reason)),
            }
        }
        if more {
            rest.push(Due { from: None, subscriptions_after: last, ..due });
        }
        Ok(Ok(rest))
    }

    /// Some subscriptions of a run, the last one examined, and whether there are more.
    async fn members(
        &self,
        rules: &RuleSet,
        due: &Due,
    ) -> Result<(Vec<Member>, Option<SubscriptionId>, bool), StoreError> {
        let rule = &self.compiled.application.rules[&due.rule];
        let own = rule.schedule.as_ref().is_some_and(|schedule| schedule.recurs == Recurs::Subscription);
        let (application, class) = (&self.batch.application, &rule.subscription);
        let records = &self.flow.match_store;
        let mut most = self.flow.options.run_subscriptions.max(1);
        if rule.on == due_class() {
            // Each makes at most one notification.
            most = most.min(self.notifications_max().saturating_sub(self.notifications).max(1));
        }
        let (page_size, mut members) = (most.min(PAGE), Vec::new());
        let through = due.subscriptions_through.unwrap_or(SubscriptionId(u64::MAX));
        let (mut after, mut last) = (due.subscriptions_after, None);
        loop {
            let page: Vec<Member> = if own {
                let page = self.flow.schedule_store.scheduled_subscriptions(ScheduleMembers {
                    application,
                    class,
                    schedule: &due.schedule,
                    after: Some(after),
                    limit: page_size,
                });
                // Subscriptions created after the due time was accepted are for the next run.
                let (seen, snapshot_sequence) = (due.seen, due.snapshot_sequence);
                let member = |ScheduledSubscription { subscription, since, joined }| {
                    // Its subscriber may have been enabled later.
                    let since = if joined > snapshot_sequence { NEVER } else { since.max(subscription.since()) };
                    Member { subscription, subscriber: SubscriberView::default(), since, is_new: joined > seen }
                };
                page.await?.into_iter().map(member).collect()
            } else {
                let page = records.indexed_subscriptions(application, Some(after), page_size).await?;
                let member = |found: IndexedSubscription| {
                    let since = if found.since() > self.batch.received_at { NEVER } else { found.since() };
                    Member { subscription: found, subscriber: SubscriberView::default(), since, is_new: false }
                };
                page.into_iter().map(member).collect()
            };
            let full = page.len() == page_size;
            if let Some(end) = page.last().map(|member| member.subscription.id) {
                (after, last) = (end, Some(end.min(through)));
            }
            let of_run = |member: &Member| {
                let found = &member.subscription;
                found.class == *class && found.id <= through && member.since < NEVER
            };
            let mut page: Vec<Member> = page.into_iter().filter(of_run).collect();
            let subscribers: Vec<SubscriberNumber> = page.iter().map(|member| member.subscription.subscriber).collect();
            let views = view_subscribers(&**records, rules, &subscribers, ChangeSequence(u64::MAX)).await?;
            page.iter_mut().zip(views).for_each(|(member, view)| member.subscriber = view);
            members.append(&mut page);
            let over = !full || after >= through;
            if over || members.len() >= most {
                return Ok((members, last, !over));
            }
        }
    }

    /// Matches the events of a run.
    async fn run_events(
        &mut self,
        rules: Arc<RuleSet>,
        members: Vec<Member>,
        due: &Due,
    ) -> Result<Result<RunProgress, String>, StoreError> {
        let on = self.compiled.application.rules[&due.rule].on.clone();
        let before = due.before.unwrap_or(self.batch.id);
        let (has_digests, is_one) = (self.has_digests(&due.rule), members.len() < 2);
        let bytes_max = if has_digests { BYTES_OF_DIGESTS } else { BYTES_AT_ONCE };
        // Digests stay whole also under a throttle.
        let most = if has_digests { self.flow.options.run_notifications } else { self.notifications_max() };
        let page = if self.most.is_some() { EVENT_BYTES_THROTTLED } else { EVENT_BYTES };
        let (mut new, mut known): (Vec<Member>, Vec<Member>) = members.into_iter().partition(|member| member.is_new);
        // Each subscription joins when the events reach its time; the next to join is last.
        let latest_first = |member: &Member| std::cmp::Reverse((member.since, member.subscription.id));
        new.sort_by_key(latest_first);
        known.sort_by_key(latest_first);
        let begin = match new.last() {
            Some(first) => {
                let place = self.flow.event_log.position_at(first.since).await?;
                if known.is_empty() { place } else { place.min(due.after) }
            }
            None => due.after,
        };
        let mut after = due.from.unwrap_or(begin);
        let mut table = TemporaryIndex::new(rules, true);
        loop {
            let page = self
                .flow
                .event_log
                .events_between(EventRange {
                    application: &self.batch.application,
                    class: &on,
                    after,
                    before,
                    bytes: page,
                })
                .await?;
            for id in &page.damaged {
                tracing::error!(batch = %id, rule = %due.rule, "an event batch cannot be read and is left out of a run");
                if let Some(labels) = self.labels(&due.rule) {
                    metrics::counter!("tocsin_schedule_unreadable_batches_total", &labels).increment(1);
                }
            }
            for mut batch in page.batches {
                if let Some(packed) = self.chronicled.get(&batch.id) {
                    batch.chronicled = packed.clone();
                }
                let is_theirs = |member: &mut Member| member.since <= batch.accepted_at;
                while let Some(member) = new.pop_if(is_theirs) {
                    self.put(&mut table, member);
                }
                while batch.id > due.after
                    && let Some(member) = known.pop_if(is_theirs)
                {
                    self.put(&mut table, member);
                }
                self.bytes += batch.events.bytes().len();
                let fields = match self.flow.versions.event_fields(&batch).await? {
                    Ok(fields) => fields,
                    Err(reason) => {
                        tracing::error!(batch = %batch.id, rule = %due.rule, reason, "an event batch is left out of a run");
                        continue;
                    }
                };
                if let Err(reason) = keep_busy(|| table.match_batch(&batch, &fields)) {
                    return Ok(Err(reason));
                }
            }
            let Some(next) = page.next else { break };
            after = next;
            let is_much = self.notifications + table.emitted >= most;
            if is_much && has_digests && !is_one {
                return Ok(Ok(RunProgress::TooMany));
            }
            if is_much || self.bytes >= bytes_max {
                self.take(table);
                return Ok(Ok(RunProgress::StepFull(after)));
            }
            tokio::task::yield_now().await;
        }
        self.take(table);
        Ok(Ok(RunProgress::Finished))
    }

    fn put(&self, table: &mut TemporaryIndex, Member { subscription, subscriber, .. }: Member) {
        if let Err(problem) = table.put(&subscription, subscriber) {
            let application = &self.compiled.application.name;
            metrics::counter!("tocsin_match_unusable_subscriptions_total").increment(1);
            tracing::warn!(%application, subscription = %subscription.id, %problem, "a subscription cannot be matched");
        }
    }

    /// Cuts the matches of a table into notification batches.
    fn take(&mut self, mut table: TemporaryIndex) {
        let rules = table.rules().clone();
        let (cut, failures) = table.finish();
        report_failures(self.compiled, &rules, &failures);
        let now = self.flow.clock.now();
        self.notifications += cut.iter().map(|cut| cut.notifications.count()).sum::<usize>();
        let made = new_batches(self.compiled, &rules, cut, self.batch.accepted_at, now);
        self.made.extend(made.into_iter().map(|made| NewNotificationBatch { run: Some(self.batch.id), ..made }));
    }
}
