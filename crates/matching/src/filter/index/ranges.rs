//! Ranges of numbers, timestamps and text, sorted by one end, so that a value finds the ranges around it.
//!
//! Ends of numbers and timestamps become order-preserving integers. Numbers are represented by doubles: an integer
//! without an exact double lies between two of them, so both are looked up; a limit without an exact double is left as
//! a residual test. Ends of text are the texts.

use std::{cmp::Ordering, sync::Arc};

use tocsin_model::value::Value;

use crate::{
    eval_value::compare_exact,
    filter::condition::{Limit, Range},
    index::key::ordered_bits,
};

/// Most entries of a chunk; a full one is split in half.
const CHUNK_MAX: usize = 512;
/// Entries per block; the highest end of each block is stored.
const BLOCK: usize = 64;

/// The type of the values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Measure {
    /// Integers and numbers.
    Number,
    /// Instants.
    Time,
    /// Text, by its code points.
    Text,
}

/// An end of a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum End {
    /// Unbounded.
    Open,
    /// Inclusive.
    With,
    /// Exclusive.
    Without,
}

/// The kind of a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Span {
    /// The type of its values.
    pub measure: Measure,
    /// Low end.
    pub low: End,
    /// High end.
    pub high: End,
}

/// The sort key of ranges.
pub trait Key: Ord + Clone {
    /// The borrowed form used for lookups.
    type Borrowed<'a>: Copy;

    /// The order of the key and a looked-up value.
    fn order(&self, borrowed: Self::Borrowed<'_>) -> Ordering;

    /// Bytes held beside the value itself.
    fn memory_bytes(&self) -> usize;
}

impl Key for i64 {
    type Borrowed<'a> = i64;

    #[inline]
    fn order(&self, borrowed: i64) -> Ordering {
        self.cmp(&borrowed)
    }

    fn memory_bytes(&self) -> usize {
        0
    }
}

impl Key for Arc<str> {
    type Borrowed<'a> = &'a str;

    fn order(&self, borrowed: &str) -> Ordering {
        (**self).cmp(borrowed)
    }

    fn memory_bytes(&self) -> usize {
        self.len() + 16
    }
}

/// A range: its kind and the keys of its ends; the key of an unbounded end is meaningless.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Interval<K = i64> {
    /// The kind of the keys, and which ends are bounded.
    pub span: Span,
    /// Low end.
    pub low: K,
    /// High end.
    pub high: K,
}

/// A range as sort keys.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RangeKeys {
    /// Numbers or timestamps.
    Number(Interval),
    /// Text.
    Text(Interval<Arc<str>>),
}

/// The position of a value: at a key, or between two adjacent keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyPosition<S = i64> {
    measure: Measure,
    floor: S,
    ceiling: S,
}

impl<'a> KeyPosition<&'a str> {
    /// The position of a text; `None` for other values, which no text range contains.
    pub fn of_text(value: &'a Value) -> Option<KeyPosition<&'a str>> {
        value.as_text().map(|text| KeyPosition { measure: Measure::Text, floor: text, ceiling: text })
    }
}

impl KeyPosition {
    /// The position of a value; `None` if no range of numbers or timestamps contains it.
    pub fn of(value: &Value) -> Option<KeyPosition> {
        let at = |measure, key| Some(KeyPosition { measure, floor: key, ceiling: key });
        match value {
            Value::Number(number) if !number.is_nan() => at(Measure::Number, ordered_bits(*number)),
            Value::Timestamp(time) => at(Measure::Time, time.0),
            Value::Integer(integer) => {
                let near = *integer as f64;
                let key = ordered_bits(near);
                let (floor, ceiling) = match compare_exact(*integer, near)? {
                    Ordering::Equal => (key, key),
                    Ordering::Greater => (key, key + 1),
                    Ordering::Less => (key - 1, key),
                };
                Some(KeyPosition { measure: Measure::Number, floor, ceiling })
            }
            _ => None,
        }
    }
}

impl RangeKeys {
    /// The range as keys; `None` if only a test of each value decides.
    pub fn of(range: &Range) -> Option<RangeKeys> {
        Interval::of(range).map(RangeKeys::Number).or_else(|| Interval::of_text(range).map(RangeKeys::Text))
    }

    /// Whether it has two ends.
    pub fn is_closed(&self) -> bool {
        match self {
            RangeKeys::Number(interval) => interval.span.is_closed(),
            RangeKeys::Text(interval) => interval.span.is_closed(),
        }
    }

    /// Whether a value is in the range.
    pub fn holds(&self, value: &Value) -> bool {
        match self {
            RangeKeys::Number(interval) => KeyPosition::of(value).is_some_and(|position| interval.holds(position)),
            RangeKeys::Text(interval) => KeyPosition::of_text(value).is_some_and(|position| interval.holds(position)),
        }
    }

    /// Bytes held beside the value itself.
    pub fn memory_bytes(&self) -> usize {
        match self {
            RangeKeys::Number(_) => 0,
            RangeKeys::Text(interval) => interval.low.memory_bytes() + interval.high.memory_bytes(),
        }
    }
}

impl Interval {
    /// The range of numbers or timestamps as keys; `None` if only a test of each value decides.
    pub fn of(range: &Range) -> Option<Interval> {
        let end = |limit: &Option<Limit>| match limit {
            None => Some((End::Open, None)),
            Some(limit) => {
                let KeyPosition { measure, floor, ceiling } = KeyPosition::of(&limit.value)?;
                (floor == ceiling).then_some((End::of(limit), Some((measure, floor))))
            }
        };
        let ((low, low_key), (high, high_key)) = (end(&range.low)?, end(&range.high)?);
        let measure = match (low_key, high_key) {
            (Some((low, _)), Some((high, _))) => (low == high).then_some(low)?,
            (Some((measure, _)), None) | (None, Some((measure, _))) => measure,
            (None, None) => return None,
        };
        let key = |key: Option<(Measure, i64)>| key.map_or(0, |(_, key)| key);
        Some(Interval { span: Span { measure, low, high }, low: key(low_key), high: key(high_key) })
    }
}

impl Interval<Arc<str>> {
    /// The range of text; `None` for other types.
    fn of_text(range: &Range) -> Option<Interval<Arc<str>>> {
        let end = |limit: &Option<Limit>| match limit {
            None => Some((End::Open, Arc::from(""))),
            Some(limit) => match &limit.value {
                Value::Text(text) => Some((End::of(limit), Arc::clone(text))),
                _ => None,
            },
        };
        let ((low, low_key), (high, high_key)) = (end(&range.low)?, end(&range.high)?);
        let is_some = (low, high) != (End::Open, End::Open);
        is_some.then_some(Interval { span: Span { measure: Measure::Text, low, high }, low: low_key, high: high_key })
    }
}

impl End {
    fn of(limit: &Limit) -> End {
        if limit.inclusive { End::With } else { End::Without }
    }
}

impl<K: Key> Interval<K> {
    /// Whether a position is in the range.
    pub fn holds(&self, position: KeyPosition<K::Borrowed<'_>>) -> bool {
        self.span.measure == position.measure
            && (self.span.low == End::Open || self.span.low_fits(&self.low, position))
            && (self.span.high == End::Open || self.span.high_fits(&self.high, position))
    }

    /// The end it is sorted by.
    fn key(&self) -> &K {
        if self.span.low == End::Open { &self.high } else { &self.low }
    }
}

impl Span {
    /// Whether a value satisfies a low end. A value between two keys is below the upper one.
    #[inline]
    fn low_fits<K: Key>(self, key: &K, position: KeyPosition<K::Borrowed<'_>>) -> bool {
        if self.low == End::Without { key.order(position.ceiling).is_lt() } else { key.order(position.floor).is_le() }
    }

    /// Whether a value satisfies a high end.
    #[inline]
    fn high_fits<K: Key>(self, key: &K, position: KeyPosition<K::Borrowed<'_>>) -> bool {
        if self.high == End::Without { key.order(position.floor).is_gt() } else { key.order(position.ceiling).is_ge() }
    }

    /// Whether it has two ends.
    pub fn is_closed(self) -> bool {
        self.low != End::Open && self.high != End::Open
    }
}

/// An entry stored under a range, and whether it is plain: it has no residual.
pub trait IndexEntry: Copy + PartialEq {
    /// Whether it has no residual.
    fn is_plain(&self) -> bool;
}

/// Ranges of one kind.
#[derive(Debug)]
pub struct Column<K, T> {
    span: Span,
    chunks: Vec<Chunk<K, T>>,
}

#[derive(Debug)]
struct Chunk<K, T> {
    keys: Vec<K>,
    /// High ends of ranges with two ends.
    highs: Vec<K>,
    /// The highest end of each block of `highs`.
    tops: Vec<K>,
    filed: Vec<T>,
    /// The number of entries that are not plain.
    not_plain_count: usize,
}

impl<K: Key, T: IndexEntry> Column<K, T> {
    /// An empty column for ranges of a kind.
    pub fn new(span: Span) -> Self {
        Column { span, chunks: Vec::new() }
    }

    /// The kind of its ranges.
    pub fn span(&self) -> Span {
        self.span
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.chunks.iter().map(|chunk| chunk.keys.len()).sum()
    }

    /// Adds an entry under a range of this kind. O(log n), and at most a chunk is moved.
    pub fn insert(&mut self, interval: &Interval<K>, filed: T) {
        let key = interval.key();
        let after = self.chunks.partition_point(|chunk| chunk.keys[0] <= *key);
        let mut at = after.saturating_sub(1);
        if self.chunks.is_empty() {
            self.chunks.push(Chunk::default());
        } else if self.chunks[at].keys.len() >= CHUNK_MAX {
            let upper = self.chunks[at].split();
            let goes_up = upper.keys[0] <= *key;
            self.chunks.insert(at + 1, upper);
            at += usize::from(goes_up);
        }
        let chunk = &mut self.chunks[at];
        let place = chunk.keys.partition_point(|other| other <= key);
        chunk.keys.insert(place, key.clone());
        chunk.filed.insert(place, filed);
        chunk.not_plain_count += usize::from(!filed.is_plain());
        if self.span.is_closed() {
            chunk.highs.insert(place, interval.high.clone());
            chunk.update_tops(place);
        }
    }

    /// Removes an entry. Returns whether it was present.
    pub fn remove(&mut self, interval: &Interval<K>, filed: T) -> bool {
        let key = interval.key();
        // Equal keys may begin at the end of the previous chunk.
        let start = self.chunks.partition_point(|chunk| chunk.keys[0] < *key).saturating_sub(1);
        for at in start..self.chunks.len() {
            let chunk = &mut self.chunks[at];
            if chunk.keys[0] > *key {
                break;
            }
            let first = chunk.keys.partition_point(|other| other < key);
            let found = (first..chunk.keys.len()).take_while(|place| chunk.keys[*place] == *key).find(|place| {
                chunk.filed[*place] == filed && (!self.span.is_closed() || chunk.highs[*place] == interval.high)
            });
            if let Some(place) = found {
                chunk.keys.remove(place);
                chunk.filed.remove(place);
                chunk.not_plain_count -= usize::from(!filed.is_plain());
                if self.span.is_closed() {
                    chunk.highs.remove(place);
                    chunk.update_tops(place);
                }
                if chunk.keys.is_empty() {
                    self.chunks.remove(at);
                }
                return true;
            }
        }
        false
    }

    /// Passes on the entries of ranges around a value: in slices, and whether all of one are plain.
    pub fn answer(&self, position: KeyPosition<K::Borrowed<'_>>, give: &mut impl FnMut(&[T], bool)) {
        let span = self.span;
        if span.measure != position.measure {
            return;
        }
        if span.low == End::Open {
            let is_below = |key: &K| !span.high_fits(key, position);
            // The last key of a chunk is its highest.
            let from = self.chunks.partition_point(|chunk| chunk.keys.last().is_some_and(is_below));
            for (at, chunk) in self.chunks[from..].iter().enumerate() {
                let first = if at == 0 { chunk.keys.partition_point(is_below) } else { 0 };
                give(&chunk.filed[first..], chunk.not_plain_count == 0);
            }
            return;
        }
        let fits = |key: &K| span.low_fits(key, position);
        for chunk in &self.chunks {
            if !fits(&chunk.keys[0]) {
                break;
            }
            let is_whole = chunk.keys.last().is_some_and(fits);
            let end = if is_whole { chunk.keys.len() } else { chunk.keys.partition_point(fits) };
            if span.high == End::Open {
                give(&chunk.filed[..end], chunk.not_plain_count == 0);
                continue;
            }
            for (block, top) in chunk.tops[..end.div_ceil(BLOCK)].iter().enumerate() {
                if !span.high_fits(top, position) {
                    continue;
                }
                let (from, to) = (block * BLOCK, ((block + 1) * BLOCK).min(end));
                for (high, filed) in chunk.highs[from..to].iter().zip(&chunk.filed[from..to]) {
                    if span.high_fits(high, position) {
                        give(std::slice::from_ref(filed), chunk.not_plain_count == 0);
                    }
                }
            }
        }
    }

    /// Bytes held.
    pub fn memory_bytes(&self) -> usize {
        let of_chunk = |chunk: &Chunk<K, T>| {
            let keys = chunk.keys.iter().chain(&chunk.highs).map(Key::memory_bytes).sum::<usize>();
            (chunk.keys.capacity() + chunk.highs.capacity() + chunk.tops.capacity()) * size_of::<K>()
                + keys
                + chunk.filed.capacity() * size_of::<T>()
        };
        self.chunks.capacity() * size_of::<Chunk<K, T>>() + self.chunks.iter().map(of_chunk).sum::<usize>()
    }
}

impl<K, T> Default for Chunk<K, T> {
    fn default() -> Self {
        Chunk { keys: Vec::new(), highs: Vec::new(), tops: Vec::new(), filed: Vec::new(), not_plain_count: 0 }
    }
}

impl<K: Key, T: IndexEntry> Chunk<K, T> {
    /// Keeps the lower half, returns the upper.
    fn split(&mut self) -> Chunk<K, T> {
        let at = self.keys.len() / 2;
        let filed = self.filed.split_off(at);
        let not_plain_count = filed.iter().filter(|filed| !filed.is_plain()).count();
        self.not_plain_count -= not_plain_count;
        let highs = if self.highs.is_empty() { Vec::new() } else { self.highs.split_off(at) };
        let mut upper = Chunk { keys: self.keys.split_off(at), highs, tops: Vec::new(), filed, not_plain_count };
        if !self.highs.is_empty() {
            self.update_tops(0);
            upper.update_tops(0);
        }
        upper
    }

    /// Computes the tops again from a position on.
    fn update_tops(&mut self, place: usize) {
        let first = place / BLOCK;
        self.tops.truncate(first);
        let tops = self.highs.chunks(BLOCK).skip(first);
        self.tops.extend(tops.filter_map(|block| block.iter().max().cloned()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tocsin_model::time::Timestamp;

    impl IndexEntry for u32 {
        fn is_plain(&self) -> bool {
            !self.is_multiple_of(7)
        }
    }

    fn random_number(random: &mut fastrand::Rng) -> Value {
        match random.u8(0..10) {
            0 => Value::Integer(9_007_199_254_740_992 + random.i64(-4..5)),
            1 => Value::Integer(if random.bool() { i64::MAX - random.i64(0..3) } else { i64::MIN + random.i64(0..3) }),
            2 => Value::Number(9_007_199_254_740_992.0 + random.i32(-3..4) as f64 * 2.0),
            3 => Value::Number(
                [9_223_372_036_854_775_808.0, -9_223_372_036_854_775_808.0, 1e300, -0.0][random.usize(0..4)],
            ),
            4 | 5 => Value::Number(random.i32(-60..60) as f64 / 2.0),
            6 => Value::Timestamp(Timestamp(random.i64(-5..5))),
            _ => Value::Integer(random.i64(-30..30)),
        }
    }

    fn random_range(random: &mut fastrand::Rng, value: &dyn Fn(&mut fastrand::Rng) -> Value) -> Range {
        let limit = |random: &mut fastrand::Rng| Some(Limit { value: value(random), inclusive: random.bool() });
        let (low, high) = match random.u8(0..3) {
            0 => (limit(random), None),
            1 => (None, limit(random)),
            _ => (limit(random), limit(random)),
        };
        Range { low, high }
    }

    fn random_text(random: &mut fastrand::Rng) -> Value {
        Value::from((0..random.usize(0..4)).map(|_| ["a", "b", "é"][random.usize(0..3)]).collect::<String>().as_str())
    }

    #[test]
    fn columns_agree_with_individual_tests() {
        agree(&random_number, &Interval::of, &|value| KeyPosition::of(value));
        agree(&random_text, &Interval::of_text, &|value| KeyPosition::of_text(value));
    }

    fn agree<K: Key + std::fmt::Debug + 'static>(
        random_value: &dyn Fn(&mut fastrand::Rng) -> Value,
        interval_of: &dyn Fn(&Range) -> Option<Interval<K>>,
        position_of: &dyn for<'v> Fn(&'v Value) -> Option<KeyPosition<K::Borrowed<'v>>>,
    ) {
        let mut random = fastrand::Rng::with_seed(11);
        let mut columns: Vec<Column<K, u32>> = Vec::new();
        let mut filed: Vec<(Range, Interval<K>, u32)> = Vec::new();
        for number in 0..20_000 {
            if number % 3 == 2 && number > 6_000 {
                let (_, interval, old) = filed.swap_remove(random.usize(0..filed.len()));
                let column = columns.iter_mut().find(|column| column.span() == interval.span).expect("a column");
                assert!(column.remove(&interval, old));
                assert!(!column.remove(&interval, old));
                columns.retain(|column| !column.is_empty());
                continue;
            }
            let range = random_range(&mut random, random_value);
            let Some(interval) = interval_of(&range) else { continue };
            let column = match columns.iter().position(|column| column.span() == interval.span) {
                Some(at) => &mut columns[at],
                None => {
                    columns.push(Column::new(interval.span));
                    columns.last_mut().expect("one was pushed")
                }
            };
            column.insert(&interval, number);
            filed.push((range, interval, number));
        }
        for _ in 0..100 {
            let value = random_value(&mut random);
            let mut expected: Vec<u32> =
                filed.iter().filter(|(range, ..)| range.accepts(&value)).map(|(.., number)| *number).collect();
            let mut found = Vec::new();
            let position = position_of(&value).expect("a value of this kind");
            for column in &columns {
                column.answer(position, &mut |filed, plain| {
                    assert!(!plain || filed.iter().all(IndexEntry::is_plain));
                    found.extend_from_slice(filed);
                });
            }
            expected.sort_unstable();
            found.sort_unstable();
            assert_eq!(found, expected, "{value:?}");
            for (range, interval, _) in &filed[..500] {
                assert_eq!(interval.holds(position), range.accepts(&value), "{range:?} {value:?}");
            }
        }
    }

    #[test]
    fn limits_without_an_exact_double_are_left_as_residuals() {
        let limit = |value: i64| Some(Limit { value: Value::Integer(value), inclusive: true });
        assert!(Interval::of(&Range { low: limit(9_007_199_254_740_992), high: None }).is_some());
        assert!(Interval::of(&Range { low: limit(9_007_199_254_740_993), high: None }).is_none());
        let (text, number) = (Some(Limit { value: Value::from("a"), inclusive: true }), limit(1));
        assert!(Interval::of(&Range { low: text.clone(), high: None }).is_none());
        assert!(RangeKeys::of(&Range { low: text.clone(), high: text.clone() }).is_some());
        assert!(RangeKeys::of(&Range { low: text, high: number }).is_none());
    }
}
