//! Cuts matches into notification batches: those of one rule through one channel, at most so many as the notification
//! class allows.

use tocsin_model::{
    field::FieldType,
    id::{EventBatchId, EventId, Name, SubscriberNumber},
    notification::{Column, EventRun, Notifications},
    value::Value,
};

use crate::{
    datum::Trouble,
    evaluate::{Parameters, Scene, value},
    expression::{Expression, Kind},
    index::chunks::{KeySlice, Stretch},
    rule::{CompiledRule, Fill, RuleNumber, RuleSet, Unit, is_key},
    shard::{MatchSink, Run},
};

/// Most notifications for which room is made ahead.
const ROOM_MAX: usize = 4096;

/// A notification batch, ready but for its head.
#[derive(Debug, Clone, PartialEq)]
pub struct CutBatch {
    /// The rule that fired.
    pub rule: RuleNumber,
    /// The notification class.
    pub class: Name,
    /// The channel through which they leave. `None`: these subscriptions have no usable device now.
    pub channel: Option<Name>,
    /// The notifications, in the order of their events.
    pub notifications: Notifications,
    /// The subscriber of each, where a class has a digest and [`join`](crate::join::join) has not cut it yet.
    pub subscribers: Vec<SubscriberNumber>,
}

/// A batch that grows.
#[derive(Debug, Default)]
struct Open {
    notifications: Notifications,
    /// The subscriber of each notification, if the class has a digest.
    subscribers: Vec<SubscriberNumber>,
}

/// A rule that could not be decided for some event of the batches seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RuleFailure {
    /// The rule.
    pub rule: RuleNumber,
    /// The first event of its batch for which it could not.
    pub event: EventId,
    /// Whether the rule failed for the event as a whole, or for some subscriptions or filters only.
    pub whole: bool,
    /// Why.
    pub trouble: Trouble,
    /// How many events, or how many subscriptions and filters.
    pub count: u64,
}

/// Collects matches of one or more batches and cuts them.
#[derive(Debug, Default)]
pub struct NotificationCutter {
    /// What is not full yet, by rule and channel number.
    open: Vec<Vec<Option<Open>>>,
    done: Vec<CutBatch>,
    failures: Vec<RuleFailure>,
    by_channel: Vec<(Vec<u32>, Vec<i64>)>,
    names: Vec<Name>,
}

impl NotificationCutter {
    /// Nothing collected yet.
    pub fn new() -> Self {
        NotificationCutter::default()
    }

    /// The batches cut since the last call, full ones first, and the failures. The cutter can be used again.
    ///
    /// Of classes with a digest or multicast, all of a rule and channel is one batch: [`join`](crate::join::join) cuts it,
    /// as it needs the shares of all shards.
    pub fn finish(&mut self, rules: &RuleSet) -> (Vec<CutBatch>, Vec<RuleFailure>) {
        for (rule, channels) in self.open.iter_mut().enumerate() {
            let rule = RuleNumber(rule as u32);
            for (channel, open) in channels.iter_mut().enumerate() {
                let whole = open.take().filter(|open| open.notifications.count() > 0);
                if let Some(Open { notifications, subscribers }) = whole {
                    let channel = channel.checked_sub(1).map(|at| self.names[at].clone());
                    let class = rules.notification_class(rule).clone();
                    self.done.push(CutBatch { rule, class, channel, notifications, subscribers });
                }
            }
        }
        (std::mem::take(&mut self.done), std::mem::take(&mut self.failures))
    }

    /// The rules that failed for a batch as a whole since the last call of `finish`.
    pub fn failed_rules(&self, batch: EventBatchId) -> impl Iterator<Item = RuleNumber> {
        self.failures
            .iter()
            .filter(move |failure| failure.whole && failure.event.batch == batch)
            .map(|found| found.rule)
    }

    /// One entry for each rule, batch and kind of failure.
    fn note(&mut self, new: RuleFailure) {
        let same = |failure: &&mut RuleFailure| {
            failure.rule == new.rule
                && failure.event.batch == new.event.batch
                && failure.whole == new.whole
                && failure.trouble == new.trouble
        };
        match self.failures.iter_mut().find(same) {
            Some(failure) => failure.count += new.count,
            None => self.failures.push(new),
        }
    }

    fn append(&mut self, run: &Run<'_>, channel: u16, mut found: Stretch<'_>) {
        let rule = run.rules.rule(run.rule);
        let (at, number) = (run.rule.0 as usize, usize::from(channel));
        if self.open.len() <= at {
            self.open.resize_with(at + 1, Vec::new);
        }
        if self.open[at].len() <= number {
            self.open[at].resize_with(number + 1, || None);
        }
        while self.names.len() < number {
            let Some(name) = run.channel_name(self.names.len() as u16 + 1) else { break };
            self.names.push(name.clone());
        }
        while !found.slots.is_empty() {
            let Open { notifications: open, subscribers } = self.open[at][number].get_or_insert_with(|| {
                let subscriptions = Vec::with_capacity(rule.batch_size.min(ROOM_MAX));
                Open { notifications: Notifications { subscriptions, ..Notifications::default() }, ..Open::default() }
            });
            let room = match rule.unit {
                Unit::Notification => rule.batch_size - open.count(),
                // Which of them belong together is known when all are there.
                Unit::Subscriber | Unit::Event(_) => usize::MAX,
            };
            let (now, later) = found.split_at(room.min(found.slots.len()));
            let count = now.slots.len();
            let event = EventId { batch: run.batch, ordinal: run.event_ordinal };
            match open.events.last_mut() {
                Some(last) if last.event == event => last.count += count as u32,
                _ => open.events.push(EventRun { event, count: count as u32 }),
            }
            run.table.append_ids(now.slots, &mut open.subscriptions);
            if rule.unit == Unit::Subscriber {
                run.table.append_subscribers(now.slots, subscribers);
            }
            capture(run, now, rule, &mut open.captured);
            if count == room
                && let Some(Open { notifications, subscribers }) = self.open[at][number].take()
            {
                let channel = run.channel_name(channel).cloned();
                self.done.push(CutBatch {
                    rule: run.rule,
                    class: rule.notify.clone(),
                    channel,
                    notifications,
                    subscribers,
                });
            }
            found = later;
        }
    }
}

impl MatchSink for NotificationCutter {
    fn run(&mut self, run: Run<'_>) {
        if let Some(channel) = run.sole_channel() {
            return self.append(&run, channel, Stretch { slots: run.slots, keys: run.keys });
        }
        let mut by_channel = std::mem::take(&mut self.by_channel);
        for (at, slot) in run.slots.iter().enumerate() {
            let channel = usize::from(run.channel(*slot));
            if by_channel.len() <= channel {
                by_channel.resize_with(channel + 1, Default::default);
            }
            let (slots, keys) = &mut by_channel[channel];
            slots.push(*slot);
            if !run.keys.is_empty() {
                keys.push(run.keys.at(at));
            }
        }
        for (channel, (slots, keys)) in by_channel.iter_mut().enumerate() {
            if !slots.is_empty() {
                self.append(
                    &run,
                    channel as u16,
                    Stretch { slots, keys: if keys.is_empty() { KeySlice::None } else { KeySlice::Plain(keys) } },
                );
                slots.clear();
                keys.clear();
            }
        }
        self.by_channel = by_channel;
    }

    fn rule_failed(&mut self, rule: RuleNumber, event: EventId, trouble: Trouble) {
        self.note(RuleFailure { rule, event, whole: true, trouble, count: 1 });
    }

    fn subscriptions_failed(&mut self, rule: RuleNumber, event: EventId, trouble: Trouble, count: u32) {
        self.note(RuleFailure { rule, event, whole: false, trouble, count: count.into() });
    }
}

/// Appends the captured fields of some matches.
fn capture(run: &Run<'_>, found: Stretch<'_>, rule: &CompiledRule, columns: &mut Vec<(Name, Column)>) {
    let key_field = rule.key_field();
    let mut at = 0;
    for (field, fill) in &rule.fields {
        if matches!(fill, Fill::Event(_) | Fill::Default) {
            continue;
        }
        if columns.len() <= at {
            let room = rule.batch_size.min(ROOM_MAX);
            let column = match field.kind {
                FieldType::Integer => Column::Integers(Vec::with_capacity(room)),
                FieldType::Number => Column::Numbers(Vec::with_capacity(room)),
                kind => Column::Values(kind, Vec::new()),
            };
            columns.push((field.name.clone(), column));
        }
        match (fill, &mut columns[at].1) {
            (Fill::Captured(expression), Column::Integers(integers)) if is_key(expression, field.kind, key_field) => {
                found.keys.append_to(integers);
            }
            (Fill::Captured(expression), column) => append_column(run, found.slots, expression, field.kind, column),
            (Fill::Queried(place), column) => {
                let given = run.given.get(*place).cloned().unwrap_or_default();
                found.slots.iter().for_each(|_| push(column, given.clone()));
            }
            (Fill::Event(_) | Fill::Default, _) => {}
        }
        at += 1;
    }
}

fn append_column(run: &Run<'_>, slots: &[u32], expression: &Expression, kind: FieldType, column: &mut Column) {
    if let Kind::Subscription(field) = expression.kind {
        // A plain parameter is copied from its column, as long as none is null.
        match column {
            Column::Numbers(numbers) => {
                if let Some(parameters) = run.table.numbers(field)
                    && slots.iter().all(|slot| !parameters[*slot as usize].is_nan())
                {
                    return numbers.extend(slots.iter().map(|slot| parameters[*slot as usize]));
                }
            }
            Column::Integers(integers) => {
                if let Some(parameters) = run.table.integers(field, slots) {
                    return integers.extend(slots.iter().map(|slot| parameters[*slot as usize]));
                }
            }
            Column::Values(..) => {}
        }
    }
    for slot in slots {
        let scene = Scene { event: run.event(), parameters: Parameters::Slot(run.table, *slot) };
        let found = value(expression, scene).map_or(Value::Null, |datum| datum.to_value());
        push(column, kind.accept(found).unwrap_or_default());
    }
}

/// Appends a value; the first null turns a column of integers or numbers into one of any values.
fn push(column: &mut Column, value: Value) {
    match (&mut *column, value) {
        (Column::Integers(integers), Value::Integer(value)) => integers.push(value),
        (Column::Numbers(numbers), Value::Number(value)) => numbers.push(value),
        (Column::Values(_, values), value) => values.push(value),
        (Column::Integers(integers), value) => {
            let values = integers.drain(..).map(Value::Integer).chain([value]).collect();
            *column = Column::Values(FieldType::Integer, values);
        }
        (Column::Numbers(numbers), value) => {
            let values = numbers.drain(..).map(Value::Number).chain([value]).collect();
            *column = Column::Values(FieldType::Number, values);
        }
    }
}
