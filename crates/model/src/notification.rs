//! Notification batches: notifications of one rule firing through one channel, packed in columns.

use std::ops::Range;

use crate::{
    field::{Damaged, FieldType},
    id::{EventBatchId, EventId, Name, SubscriptionId},
    pack::{Reader, write_signed, write_varint},
    time::Timestamp,
    value::Value,
};

/// Values that all notifications of a batch share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotificationHead {
    /// The application.
    pub application: Name,
    /// The version of the definition whose rule fired and whose formats apply.
    pub version: u32,
    /// The rule that fired.
    pub rule: Name,
    /// The notification class.
    pub class: Name,
    /// The event class of the events referred to.
    pub event_class: Name,
    /// The channel through which they leave.
    pub channel: Name,
    /// When the batch was made.
    pub matched_at: Timestamp,
    /// When the oldest of its events was accepted.
    pub accepted_at: Timestamp,
    /// Expired notifications are not sent.
    pub expires_at: Option<Timestamp>,
}

/// Consecutive notifications of a batch about the same event (run-length encoding).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventRun {
    /// The event.
    pub event: EventId,
    /// Number of notifications.
    pub count: u32,
}

/// One captured field for every notification of a batch.
#[derive(Debug, Clone, PartialEq)]
pub enum Column {
    /// Integers, all present.
    Integers(Vec<i64>),
    /// Numbers, all present.
    Numbers(Vec<f64>),
    /// Anything, null included.
    Values(FieldType, Vec<Value>),
}

impl Column {
    /// The value of one notification.
    pub fn value(&self, ordinal: usize) -> Option<Value> {
        match self {
            Column::Integers(values) => values.get(ordinal).map(|value| Value::Integer(*value)),
            Column::Numbers(values) => values.get(ordinal).map(|value| Value::Number(*value)),
            Column::Values(_, values) => values.get(ordinal).cloned(),
        }
    }

    /// Type of the values.
    pub fn kind(&self) -> FieldType {
        match self {
            Column::Integers(_) => FieldType::Integer,
            Column::Numbers(_) => FieldType::Number,
            Column::Values(kind, _) => *kind,
        }
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        match self {
            Column::Integers(values) => values.len(),
            Column::Numbers(values) => values.len(),
            Column::Values(_, values) => values.len(),
        }
    }

    /// Whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Removes all values.
    pub fn clear(&mut self) {
        match self {
            Column::Integers(values) => values.clear(),
            Column::Numbers(values) => values.clear(),
            Column::Values(_, values) => values.clear(),
        }
    }

    /// Appends some values of another column of the same field.
    pub fn append(&mut self, other: &Column, range: Range<usize>) {
        match (&mut *self, other) {
            (Column::Integers(values), Column::Integers(more)) => values.extend_from_slice(&more[range]),
            (Column::Numbers(values), Column::Numbers(more)) => values.extend_from_slice(&more[range]),
            (Column::Values(_, values), more) => values.extend(range.filter_map(|ordinal| more.value(ordinal))),
            (_, more) => {
                // Only one of them contains a null.
                let kind = match more {
                    Column::Values(kind, _) => *kind,
                    _ => self.kind(),
                };
                let values = (0..self.len()).filter_map(|ordinal| self.value(ordinal));
                let values = values.chain(range.filter_map(|ordinal| more.value(ordinal)));
                *self = Column::Values(kind, values.collect());
            }
        }
    }
}

/// The notifications of a batch, in columns. `events` cover them in order; `subscriptions` and each captured column
/// have one value for each.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Notifications {
    /// Events of the notifications, as runs.
    pub events: Vec<EventRun>,
    /// Subscription of each notification.
    pub subscriptions: Vec<SubscriptionId>,
    /// Fields that depend on the subscription and were therefore computed at the match, by name.
    pub captured: Vec<(Name, Column)>,
}

impl Notifications {
    /// Number of notifications.
    pub fn count(&self) -> usize {
        self.subscriptions.len()
    }

    /// Selects some of them by their ordinals, ascending.
    pub fn only(&self, ordinals: &[u32]) -> Notifications {
        let mut events: Vec<EventRun> = Vec::new();
        let mut of_each = self.event_of_each().enumerate();
        for ordinal in ordinals {
            let Some((_, event)) = of_each.find(|(at, _)| *at == *ordinal as usize) else { break };
            match events.last_mut().filter(|run| run.event == event) {
                Some(run) => run.count += 1,
                None => events.push(EventRun { event, count: 1 }),
            }
        }
        let subscriptions = ordinals.iter().map(|ordinal| self.subscriptions[*ordinal as usize]).collect();
        let captured = self.captured.iter().map(|(name, column)| {
            let mut kept = column.clone();
            kept.clear();
            ordinals.iter().for_each(|ordinal| kept.append(column, *ordinal as usize..*ordinal as usize + 1));
            (name.clone(), kept)
        });
        Notifications { events, subscriptions, captured: captured.collect() }
    }

    /// Replaces captured values by null where `is_erased` says so. Returns whether any was replaced.
    pub fn erase_captured(&mut self, is_erased: impl Fn(SubscriptionId, &Value) -> bool) -> bool {
        let mut has_any = false;
        for (_, column) in &mut self.captured {
            let mut values: Vec<Value> = (0..column.len()).filter_map(|ordinal| column.value(ordinal)).collect();
            let mut is_changed = false;
            for (value, subscription) in values.iter_mut().zip(&self.subscriptions) {
                if !value.is_null() && is_erased(*subscription, value) {
                    *value = Value::Null;
                    is_changed = true;
                }
            }
            if is_changed {
                *column = Column::Values(column.kind(), values);
                has_any = true;
            }
        }
        has_any
    }

    /// The event of each notification, in order.
    pub fn event_of_each(&self) -> impl Iterator<Item = EventId> {
        self.events.iter().flat_map(|run| std::iter::repeat_n(run.event, run.count as usize))
    }

    /// The packed form, read by `unpack`. Not yet compressed.
    pub fn pack(&self) -> Vec<u8> {
        let count = self.subscriptions.len();
        let mut out = Vec::with_capacity(16 + self.events.len() * 4 + count * 4 * (1 + self.captured.len()));
        write_varint(&mut out, count as u64);
        write_varint(&mut out, self.events.len() as u64);
        let mut batch = 0;
        for run in &self.events {
            write_signed(&mut out, (run.event.batch.0 as i64).wrapping_sub(batch));
            batch = run.event.batch.0 as i64;
            write_varint(&mut out, u64::from(run.event.ordinal));
            write_varint(&mut out, u64::from(run.count));
        }
        // Fixed width by the largest value: faster than varints to write and read, and compresses well with zstd.
        let wide = self.subscriptions.iter().any(|subscription| subscription.0 > u64::from(u32::MAX));
        out.push(if wide { 8 } else { 4 });
        if wide {
            out.extend(self.subscriptions.iter().flat_map(|subscription| subscription.0.to_le_bytes()));
        } else {
            out.extend(self.subscriptions.iter().flat_map(|subscription| (subscription.0 as u32).to_le_bytes()));
        }
        write_varint(&mut out, self.captured.len() as u64);
        for (name, column) in &self.captured {
            crate::pack::write_bytes(&mut out, name.as_str().as_bytes());
            match column {
                Column::Integers(values) => {
                    out.push(0);
                    out.extend(values.iter().flat_map(|value| value.to_le_bytes()));
                }
                Column::Numbers(values) => {
                    out.push(1);
                    out.extend(values.iter().flat_map(|value| value.to_le_bytes()));
                }
                Column::Values(kind, values) => {
                    out.push(2 + *kind as u8);
                    let fields = one_field(name, *kind);
                    let mut row = Vec::new();
                    for value in values {
                        row.clear();
                        crate::field::pack_row(&fields, std::slice::from_ref(value), &mut row);
                        crate::pack::write_bytes(&mut out, &row);
                    }
                }
            }
        }
        out
    }

    /// The event batches of a packed form, ascending, without duplicates. Reads no further than their list.
    ///
    /// # Errors
    /// The bytes are damaged.
    pub fn event_batches(packed: &[u8]) -> Result<Vec<EventBatchId>, Damaged> {
        let mut reader = Reader::new(packed);
        reader.varint()?;
        let runs = reader.count()?;
        let mut batch = 0i64;
        let mut batches = Vec::new();
        for _ in 0..runs {
            batch = batch.wrapping_add(reader.signed()?);
            reader.varint()?;
            reader.varint()?;
            let id = EventBatchId(batch as u64);
            if batches.last() != Some(&id) {
                batches.push(id);
            }
        }
        batches.sort_unstable();
        batches.dedup();
        Ok(batches)
    }

    /// Parses the packed form.
    ///
    /// # Errors
    /// The bytes are damaged.
    pub fn unpack(bytes: &[u8]) -> Result<Notifications, Damaged> {
        let mut reader = Reader::new(bytes);
        let count = reader.count()?;
        let mut events = Vec::with_capacity(reader.count()?);
        let (mut batch, mut covered) = (0i64, 0u64);
        for _ in 0..events.capacity() {
            batch = batch.wrapping_add(reader.signed()?);
            let ordinal = u32::try_from(reader.varint()?).map_err(|_| Damaged)?;
            let run = u32::try_from(reader.varint()?).map_err(|_| Damaged)?;
            covered += u64::from(run);
            events.push(EventRun { event: EventId { batch: EventBatchId(batch as u64), ordinal }, count: run });
        }
        if covered != count as u64 {
            return Err(Damaged);
        }
        let width = usize::from(reader.byte()?);
        if width != 4 && width != 8 {
            return Err(Damaged);
        }
        let ids = reader.take(count.checked_mul(width).ok_or(Damaged)?)?;
        let subscriptions = ids.chunks_exact(width).map(|id| SubscriptionId(little_endian(id))).collect();
        let columns = reader.count()?;
        let mut captured = Vec::with_capacity(columns);
        for _ in 0..columns {
            let name: Name = reader.text()?.parse().map_err(|_| Damaged)?;
            let column = match reader.byte()? {
                0 => {
                    let bytes = reader.take(count.checked_mul(8).ok_or(Damaged)?)?;
                    Column::Integers(bytes.chunks_exact(8).map(|bytes| little_endian(bytes) as i64).collect())
                }
                1 => {
                    let bytes = reader.take(count.checked_mul(8).ok_or(Damaged)?)?;
                    Column::Numbers(bytes.chunks_exact(8).map(|bytes| f64::from_bits(little_endian(bytes))).collect())
                }
                tag => {
                    let kind = KINDS.into_iter().find(|kind| 2 + *kind as u8 == tag).ok_or(Damaged)?;
                    let fields = one_field(&name, kind);
                    let mut values = Vec::with_capacity(count);
                    for _ in 0..count {
                        values.push(crate::field::unpack_row(&fields, reader.bytes()?)?.swap_remove(0));
                    }
                    Column::Values(kind, values)
                }
            };
            captured.push((name, column));
        }
        if reader.is_empty() { Ok(Notifications { events, subscriptions, captured }) } else { Err(Damaged) }
    }
}

const KINDS: [FieldType; 7] = [
    FieldType::Boolean,
    FieldType::Integer,
    FieldType::Number,
    FieldType::String,
    FieldType::Timestamp,
    FieldType::List,
    FieldType::Map,
];

fn one_field(name: &Name, kind: FieldType) -> crate::field::Fields {
    crate::field::Fields::new(vec![crate::field::Field::new(name.clone(), kind)])
}

fn little_endian(bytes: &[u8]) -> u64 {
    let mut wide = [0; 8];
    wide[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(wide)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn column(count: usize, seed: u64) -> Vec<(Name, Column)> {
        let name = |text: &str| text.parse().expect("a name");
        let values = (0..count as u64).map(|at| (at ^ seed) as i64);
        vec![
            (name("trigger"), Column::Integers(values.clone().collect())),
            (name("distance"), Column::Numbers(values.clone().map(|value| value as f64 / 3.0).collect())),
            (
                name("note"),
                Column::Values(
                    FieldType::String,
                    values
                        .map(|value| if value % 3 == 0 { Value::Null } else { Value::from(&*value.to_string()) })
                        .collect(),
                ),
            ),
        ]
    }

    proptest! {
        #[test]
        fn packs_and_unpacks(runs in proptest::collection::vec((0u64..1_000_000, 0u32..1_000, 1u32..40), 0..20), wide: bool, seed: u64) {
            let count: u32 = runs.iter().map(|run| run.2).sum();
            let base = if wide { 1u64 << 40 } else { 1 };
            let notifications = Notifications {
                events: runs
                    .iter()
                    .map(|(batch, ordinal, count)| EventRun {
                        event: EventId { batch: EventBatchId(*batch), ordinal: *ordinal },
                        count: *count,
                    })
                    .collect(),
                subscriptions: (0..u64::from(count)).map(|at| SubscriptionId(base + at)).collect(),
                captured: column(count as usize, seed % 1000),
            };
            let packed = notifications.pack();
            let batches: std::collections::BTreeSet<_> = runs.iter().map(|run| EventBatchId(run.0)).collect();
            prop_assert_eq!(Notifications::event_batches(&packed), Ok(batches.into_iter().collect()));
            let some: Vec<u32> = (0..count).filter(|ordinal| ordinal % 3 == 1).collect();
            let only = notifications.only(&some);
            let events: Vec<EventId> = notifications.event_of_each().collect();
            prop_assert_eq!(only.event_of_each().collect::<Vec<_>>(), some.iter().map(|at| events[*at as usize]).collect::<Vec<_>>());
            for (place, at) in some.iter().enumerate() {
                prop_assert_eq!(only.subscriptions[place], notifications.subscriptions[*at as usize]);
                for ((_, kept), (_, column)) in only.captured.iter().zip(&notifications.captured) {
                    prop_assert_eq!(kept.value(place), column.value(*at as usize));
                }
            }
            prop_assert_eq!(Notifications::unpack(&packed), Ok(notifications));
            for end in (0..packed.len()).step_by(1 + packed.len() / 20) {
                prop_assert!(Notifications::unpack(&packed[..end]).is_err());
            }
        }
    }
}
