//! The aggregate of one key of a chronicle.

use std::cmp::Ordering;

use tocsin_model::{
    chronicle::Statistic,
    pack::{Damaged, Reader, write_bytes, write_signed, write_varint},
    time::Timestamp,
    value::Value,
};

use crate::chronicle_span::Span;

/// The state of a key. Without parts, it is empty.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Entry {
    /// Change number of the last update; the lowest is the least recently used (LRU).
    pub touched: u64,
    /// The two newest events by their time; of those at the same time the one accepted later is newer.
    last: Option<LatestEvent>,
    previous: Option<LatestEvent>,
    /// In the order of the window's parts.
    parts: Vec<WindowPart>,
}

/// An event in an aggregate.
#[derive(Debug, Clone, PartialEq)]
struct LatestEvent {
    at: i64,
    part: i64,
    value: Value,
}

/// The aggregate of one part of the window.
#[derive(Debug, Clone, PartialEq)]
struct WindowPart {
    number: i64,
    count: u64,
    first_at: i64,
    first: Value,
    low: Value,
    high: Value,
    sum: Sum,
}

/// An exact sum: integers may exceed 64 bits temporarily.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Sum {
    None,
    Integer(i128),
    Number(f64),
}

impl Sum {
    fn of(value: &Value) -> Sum {
        match value {
            Value::Integer(value) => Sum::Integer(i128::from(*value)),
            Value::Number(value) => Sum::Number(*value),
            _ => Sum::None,
        }
    }

    fn with(self, other: Sum) -> Sum {
        match (self, other) {
            (Sum::Integer(left), Sum::Integer(right)) => Sum::Integer(left.saturating_add(right)),
            (Sum::Number(left), Sum::Number(right)) => Sum::Number(left + right),
            (Sum::None, other) => other,
            (sum, _) => sum,
        }
    }

    /// Null if it exceeds the type.
    fn value(self) -> Value {
        match self {
            Sum::None => Value::Null,
            Sum::Integer(sum) => i64::try_from(sum).map_or(Value::Null, Value::Integer),
            Sum::Number(sum) => Value::from(sum),
        }
    }
}

impl Entry {
    /// The current part at an event of this part: time does not go back.
    pub fn present(&self, part: i64) -> i64 {
        self.last.as_ref().map_or(part, |last| last.part.max(part))
    }

    /// The time of the newest event.
    pub fn last_at(&self) -> Option<i64> {
        self.last.as_ref().map(|last| last.at)
    }

    /// Whether all its parts have left the window.
    pub fn has_expired(&self, span: &Span, part: i64) -> bool {
        self.last.as_ref().is_none_or(|last| last.part < span.first(part))
    }

    /// The oldest part in the window, if there is one.
    pub fn oldest(&self, span: &Span, present: i64) -> Option<i64> {
        let first = span.first(present);
        let taken = [&self.last, &self.previous].into_iter().flatten().map(|taken| taken.part);
        self.parts.iter().map(|part| part.number).chain(taken).filter(|part| *part >= first).min()
    }

    /// The value of a statistic, with `present` as the current part.
    pub fn get(&self, span: &Span, present: i64, statistic: Statistic) -> Value {
        let first = span.first(present);
        let live = || self.parts.iter().filter(|part| part.number >= first);
        let of = |taken: &Option<LatestEvent>, give: &dyn Fn(&LatestEvent) -> Value| {
            taken.as_ref().filter(|taken| taken.part >= first).map_or(Value::Null, give)
        };
        let best = |side: fn(&WindowPart) -> &Value, requested: Ordering| {
            let better = |best: &'_ Value, other: &'_ Value| order(other, best) == Some(requested);
            let found = live().map(side).reduce(|best, other| if better(best, other) { other } else { best });
            found.cloned().unwrap_or_default()
        };
        match statistic {
            Statistic::Last => of(&self.last, &|last| last.value.clone()),
            Statistic::Previous => of(&self.previous, &|previous| previous.value.clone()),
            Statistic::LastAt => of(&self.last, &|last| Value::Timestamp(Timestamp(last.at))),
            Statistic::First => live().next().map_or(Value::Null, |part| part.first.clone()),
            Statistic::Low => best(|part| &part.low, Ordering::Less),
            Statistic::High => best(|part| &part.high, Ordering::Greater),
            Statistic::Count => Value::Integer(count(live())),
            Statistic::Sum => sum(live()).value(),
            Statistic::Mean => match (sum(live()), count(live())) {
                (_, 0) | (Sum::None, _) => Value::Null,
                (Sum::Integer(sum), count) => Value::from(sum as f64 / count as f64),
                (Sum::Number(sum), count) => Value::from(sum / count as f64),
            },
        }
    }

    /// Adds an event. Returns false if it is older than the window; then it is skipped.
    pub fn take(&mut self, span: &Span, at: i64, part: i64, value: Value) -> bool {
        let first = span.first(self.present(part));
        if part < first {
            return false;
        }
        self.parts.retain(|part| part.number >= first);
        match self.parts.binary_search_by_key(&part, |part| part.number) {
            Ok(place) => self.parts[place].take(at, &value),
            Err(place) => self.parts.insert(place, WindowPart::of(part, at, &value)),
        }
        let taken = LatestEvent { at, part, value };
        if self.last.as_ref().is_none_or(|last| last.at <= at) {
            self.previous = self.last.replace(taken);
        } else if self.previous.as_ref().is_none_or(|previous| previous.at <= at) {
            self.previous = Some(taken);
        }
        true
    }

    /// The values that it holds.
    pub fn values(&self) -> impl Iterator<Item = &Value> {
        let taken = [&self.last, &self.previous].into_iter().flatten().map(|taken| &taken.value);
        taken.chain(self.parts.iter().flat_map(|part| [&part.first, &part.low, &part.high]))
    }

    pub fn memory_bytes(&self) -> usize {
        size_of::<Entry>() + self.parts.capacity() * size_of::<WindowPart>()
    }

    /// Appends the encoding.
    pub fn pack(&self, out: &mut Vec<u8>) {
        write_varint(out, self.touched);
        for taken in [&self.last, &self.previous] {
            out.push(u8::from(taken.is_some()));
            if let Some(LatestEvent { at, part, value }) = taken {
                write_signed(out, *at);
                write_signed(out, *part);
                pack_value(value, out);
            }
        }
        write_varint(out, self.parts.len() as u64);
        for WindowPart { number, count, first_at, first, low, high, sum } in &self.parts {
            write_signed(out, *number);
            write_varint(out, *count);
            write_signed(out, *first_at);
            [first, low, high].into_iter().for_each(|value| pack_value(value, out));
            match sum {
                Sum::None => out.push(0),
                Sum::Integer(sum) => {
                    out.push(1);
                    out.extend_from_slice(&sum.to_le_bytes());
                }
                Sum::Number(sum) => {
                    out.push(2);
                    out.extend_from_slice(&sum.to_le_bytes());
                }
            }
        }
    }

    /// Decodes what [`Entry::pack`] wrote.
    ///
    /// # Errors
    /// The bytes are damaged.
    pub fn unpack(reader: &mut Reader<'_>) -> Result<Entry, Damaged> {
        let touched = reader.varint()?;
        let mut taken = || {
            Ok(match reader.byte()? {
                0 => None,
                1 => Some(LatestEvent { at: reader.signed()?, part: reader.signed()?, value: unpack_value(reader)? }),
                _ => return Err(Damaged),
            })
        };
        let (last, previous) = (taken()?, taken()?);
        let count = reader.count()?;
        let mut parts = Vec::with_capacity(count);
        for _ in 0..count {
            parts.push(WindowPart {
                number: reader.signed()?,
                count: reader.varint()?,
                first_at: reader.signed()?,
                first: unpack_value(reader)?,
                low: unpack_value(reader)?,
                high: unpack_value(reader)?,
                sum: match reader.byte()? {
                    0 => Sum::None,
                    1 => Sum::Integer(i128::from_le_bytes(reader.take(16)?.try_into().expect("sixteen were taken"))),
                    2 => Sum::Number(reader.float()?),
                    _ => return Err(Damaged),
                },
            });
        }
        Ok(Entry { touched, last, previous, parts })
    }
}

impl WindowPart {
    fn of(number: i64, at: i64, value: &Value) -> WindowPart {
        let [first, low, high] = [(); 3].map(|()| value.clone());
        WindowPart { number, count: 1, first_at: at, first, low, high, sum: Sum::of(value) }
    }

    fn take(&mut self, at: i64, value: &Value) {
        self.count += 1;
        if at < self.first_at {
            (self.first_at, self.first) = (at, value.clone());
        }
        if order(value, &self.low) == Some(Ordering::Less) {
            self.low = value.clone();
        }
        if order(value, &self.high) == Some(Ordering::Greater) {
            self.high = value.clone();
        }
        self.sum = self.sum.with(Sum::of(value));
    }
}

fn count<'a>(parts: impl Iterator<Item = &'a WindowPart>) -> i64 {
    i64::try_from(parts.map(|part| part.count).sum::<u64>()).unwrap_or(i64::MAX)
}

fn sum<'a>(parts: impl Iterator<Item = &'a WindowPart>) -> Sum {
    parts.fold(Sum::None, |sum, part| sum.with(part.sum))
}

/// The order of two values of one type, where it has one.
fn order(left: &Value, right: &Value) -> Option<Ordering> {
    match (left, right) {
        (Value::Integer(left), Value::Integer(right)) => Some(left.cmp(right)),
        (Value::Number(left), Value::Number(right)) => left.partial_cmp(right),
        (Value::Text(left), Value::Text(right)) => Some(left.cmp(right)),
        (Value::Timestamp(left), Value::Timestamp(right)) => Some(left.cmp(right)),
        _ => None,
    }
}

fn pack_value(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Boolean(value) => out.push(1 + u8::from(*value)),
        Value::Integer(value) => {
            out.push(3);
            write_signed(out, *value);
        }
        Value::Number(value) => {
            out.push(4);
            out.extend_from_slice(&value.to_le_bytes());
        }
        Value::Text(text) => {
            out.push(5);
            write_bytes(out, text.as_bytes());
        }
        Value::Timestamp(time) => {
            out.push(6);
            write_signed(out, time.0);
        }
        // Chronicles have no list and map values.
        Value::Null | Value::List(_) | Value::Map(_) => out.push(0),
    }
}

fn unpack_value(reader: &mut Reader<'_>) -> Result<Value, Damaged> {
    Ok(match reader.byte()? {
        0 => Value::Null,
        tag @ (1 | 2) => Value::Boolean(tag == 2),
        3 => Value::Integer(reader.signed()?),
        4 => Value::Number(reader.float()?),
        5 => Value::from(reader.text()?),
        6 => Value::Timestamp(Timestamp(reader.signed()?)),
        _ => return Err(Damaged),
    })
}
