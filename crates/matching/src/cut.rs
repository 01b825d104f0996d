//! Cuts matches into notification batches: the matches of one rule through one channel, up to the batch size of the
//! notification class.

use tocsin_model::{
    field::FieldType,
    id::{EventBatchId, EventId, Name, SubscriberNumber},
    notification::{Column, EventRun, Notifications},
    value::Value,
};

use crate::{
    eval_value::EvalError,
    evaluate::{EvalContext, Parameters, value},
    expression::{Expression, Kind},
    index::chunks::{EntrySlice, KeySlice},
    matches::{MatchSink, Run},
    rule::rule_set::{BatchUnit, CompiledRule, FieldSource, RuleNumber, RuleSet, is_key},
};

/// Most notifications for which memory is reserved in advance.
const ROOM_MAX: usize = 4096;

/// A notification batch without its header.
#[derive(Debug, Clone, PartialEq)]
pub struct CutBatch {
    /// The rule that fired.
    pub rule: RuleNumber,
    /// The notification class.
    pub class: Name,
    /// The channel to deliver through. `None`: these subscriptions have no usable device now.
    pub channel: Option<Name>,
    /// The notifications, in the order of their events.
    pub notifications: Notifications,
    /// The subscriber of each notification, where a class has a digest and [`join`](crate::join::join) has not cut it
    /// yet.
    pub subscribers: Vec<SubscriberNumber>,
}

/// A batch that is still being filled.
#[derive(Debug, Default)]
struct OpenBatch {
    notifications: Notifications,
    /// The subscriber of each notification, if the class has a digest.
    subscribers: Vec<SubscriberNumber>,
}

/// A rule that could not be evaluated for some events of the batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RuleFailure {
    /// The rule.
    pub rule: RuleNumber,
    /// The first event of its batch that failed.
    pub event: EventId,
    /// Whether the rule failed for the event as a whole, or for some subscriptions or filters only.
    pub whole: bool,
    /// The evaluation error.
    pub error: EvalError,
    /// The number of events, or of subscriptions and filters.
    pub count: u64,
}

/// Collects matches of one or more batches and cuts them into notification batches.
#[derive(Debug, Default)]
pub struct NotificationCutter {
    /// Batches that are not full yet, by rule and channel number.
    open: Vec<Vec<Option<OpenBatch>>>,
    done: Vec<CutBatch>,
    failures: Vec<RuleFailure>,
    by_channel: Vec<(Vec<u32>, Vec<i64>)>,
    names: Vec<Name>,
}

impl NotificationCutter {
    /// An empty cutter.
    pub fn new() -> Self {
        NotificationCutter::default()
    }

    /// The batches cut since the last call, full ones first, and the failures. The cutter can be used again.
    ///
    /// For a class with a digest or multicast, all matches of a rule and channel form one batch;
    /// [`join`](crate::join::join) cuts it, as it needs the results of all shards.
    pub fn finish(&mut self, rules: &RuleSet) -> (Vec<CutBatch>, Vec<RuleFailure>) {
        for (rule, channels) in self.open.iter_mut().enumerate() {
            let rule = RuleNumber(rule as u32);
            for (channel, open) in channels.iter_mut().enumerate() {
                let whole = open.take().filter(|open| open.notifications.count() > 0);
                if let Some(OpenBatch { notifications, subscribers }) = whole {
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

    /// Records a failure: one entry for each rule, batch and kind of failure.
    fn record(&mut self, new: RuleFailure) {
        let same = |failure: &&mut RuleFailure| {
            failure.rule == new.rule
                && failure.event.batch == new.event.batch
                && failure.whole == new.whole
                && failure.error == new.error
        };
        match self.failures.iter_mut().find(same) {
            Some(failure) => failure.count += new.count,
            None => self.failures.push(new),
        }
    }

    fn append(&mut self, run: &Run<'_>, channel: u16, mut found: EntrySlice<'_>) {
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
            let OpenBatch { notifications: open, subscribers } = self.open[at][number].get_or_insert_with(|| {
                let subscriptions = Vec::with_capacity(rule.batch_size.min(ROOM_MAX));
                OpenBatch {
                    notifications: Notifications { subscriptions, ..Notifications::default() },
                    ..OpenBatch::default()
                }
            });
            let room = match rule.unit {
                BatchUnit::Notification => rule.batch_size - open.count(),
                // The grouping is known only when all matches are present.
                BatchUnit::Subscriber | BatchUnit::Event(_) => usize::MAX,
            };
            let (now, later) = found.split_at(room.min(found.slots.len()));
            let count = now.slots.len();
            let event = EventId { batch: run.batch, ordinal: run.event_ordinal };
            match open.events.last_mut() {
                Some(last) if last.event == event => last.count += count as u32,
                _ => open.events.push(EventRun { event, count: count as u32 }),
            }
            run.table.append_ids(now.slots, &mut open.subscriptions);
            if rule.unit == BatchUnit::Subscriber {
                run.table.append_subscribers(now.slots, subscribers);
            }
            capture(run, now, rule, &mut open.captured);
            if count == room
                && let Some(OpenBatch { notifications, subscribers }) = self.open[at][number].take()
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
            return self.append(&run, channel, EntrySlice { slots: run.slots, keys: run.keys });
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
                    EntrySlice { slots, keys: if keys.is_empty() { KeySlice::None } else { KeySlice::Plain(keys) } },
                );
                slots.clear();
                keys.clear();
            }
        }
        self.by_channel = by_channel;
    }

    fn rule_failed(&mut self, rule: RuleNumber, event: EventId, error: EvalError) {
        self.record(RuleFailure { rule, event, whole: true, error, count: 1 });
    }

    fn subscriptions_failed(&mut self, rule: RuleNumber, event: EventId, error: EvalError, count: u32) {
        self.record(RuleFailure { rule, event, whole: false, error, count: count.into() });
    }
}

/// Appends the captured fields of some matches.
fn capture(run: &Run<'_>, found: EntrySlice<'_>, rule: &CompiledRule, columns: &mut Vec<(Name, Column)>) {
    let key_field = rule.key_field();
    let mut at = 0;
    for (field, fill) in &rule.fields {
        if matches!(fill, FieldSource::Event(_) | FieldSource::Default) {
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
            (FieldSource::Captured(expression), Column::Integers(integers))
                if is_key(expression, field.kind, key_field) =>
            {
                found.keys.append_to(integers);
            }
            (FieldSource::Captured(expression), column) => {
                append_column(run, found.slots, expression, field.kind, column)
            }
            (FieldSource::Queried(place), column) => {
                let given = run.given.get(*place).cloned().unwrap_or_default();
                found.slots.iter().for_each(|_| push(column, given.clone()));
            }
            (FieldSource::Event(_) | FieldSource::Default, _) => {}
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
        let context = EvalContext { event: run.event(), parameters: Parameters::Slot(run.table, *slot) };
        let found = value(expression, context).map_or(Value::Null, |eval_value| eval_value.to_value());
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
