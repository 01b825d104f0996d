//! Ranges of numbers, instants and text, sorted by one end, so that a value finds those around it.
//!
//! Ends of numbers and instants become integers that keep their order. A double stands for the numbers: an integer that
//! no double equals lies between two of them, so it is asked for by both; a limit that no double equals is left to be
//! tested one by one. Ends of text are the texts.

use std::{cmp::Ordering, sync::Arc};

use tocsin_model::value::Value;

use crate::{
    datum::compare_exact,
    filter::{Limit, Range},
    index::key::ordered_bits,
};

/// Most entries of a chunk; a full one is split in half.
const CHUNK_MAX: usize = 512;

/// Entries whose highest high end is kept together.
const BLOCK: usize = 64;

/// What is measured.
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
    /// There is none.
    Open,
    /// The limit itself is within.
    With,
    /// The limit itself is not within.
    Without,
}

/// The kind of a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Span {
    /// What it measures.
    pub measure: Measure,
    /// Its low end.
    pub low: End,
    /// Its high end.
    pub high: End,
}

/// What ranges are sorted by.
pub trait Key: Ord + Clone {
    /// The same as it is looked for.
    type Seen<'a>: Copy;

    /// How it stands to what is looked for.
    fn order(&self, seen: Self::Seen<'_>) -> Ordering;

    /// Bytes held beside the value itself.
    fn memory_bytes(&self) -> usize;
}

impl Key for i64 {
    type Seen<'a> = i64;

    #[inline]
    fn order(&self, seen: i64) -> Ordering {
        self.cmp(&seen)
    }

    fn memory_bytes(&self) -> usize {
        0
    }
}

impl Key for Arc<str> {
    type Seen<'a> = &'a str;

    fn order(&self, seen: &str) -> Ordering {
        (**self).cmp(seen)
    }

    fn memory_bytes(&self) -> usize {
        self.len() + 16
    }
}

/// A range: its kind and the keys of its ends; that of an open one says nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Interval<K = i64> {
    /// Its kind.
    pub span: Span,
    /// Its low end.
    pub low: K,
    /// Its high end.
    pub high: K,
}

/// A range as it is sorted.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Ends {
    /// Of numbers or instants.
    Number(Interval),
    /// Of text.
    Text(Interval<Arc<str>>),
}

/// Where a value lies: at a key, or between two that follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spot<S = i64> {
    measure: Measure,
    floor: S,
    ceiling: S,
}

impl<'a> Spot<&'a str> {
    /// Where a text lies; `None` where ranges of text never hold.
    pub fn of_text(value: &'a Value) -> Option<Spot<&'a str>> {
        value.as_text().map(|text| Spot { measure: Measure::Text, floor: text, ceiling: text })
    }
}

impl Spot {
    /// Where a value lies; `None` where ranges of numbers or instants never hold.
    pub fn of(value: &Value) -> Option<Spot> {
        let at = |measure, key| Some(Spot { measure, floor: key, ceiling: key });
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
                Some(Spot { measure: Measure::Number, floor, ceiling })
            }
            _ => None,
        }
    }
}

impl Ends {
    /// The range as keys; `None` where only a test of each value can tell.
    pub fn of(range: &Range) -> Option<Ends> {
        Interval::of(range).map(Ends::Number).or_else(|| Interval::of_text(range).map(Ends::Text))
    }

    /// Whether it has two ends.
    pub fn is_closed(&self) -> bool {
        match self {
            Ends::Number(interval) => interval.span.is_closed(),
            Ends::Text(interval) => interval.span.is_closed(),
        }
    }

    /// Whether a value lies within.
    pub fn holds(&self, value: &Value) -> bool {
        match self {
            Ends::Number(interval) => Spot::of(value).is_some_and(|spot| interval.holds(spot)),
            Ends::Text(interval) => Spot::of_text(value).is_some_and(|spot| interval.holds(spot)),
        }
    }

    /// Bytes held beside the value itself.
    pub fn memory_bytes(&self) -> usize {
        match self {
            Ends::Number(_) => 0,
            Ends::Text(interval) => interval.low.memory_bytes() + interval.high.memory_bytes(),
        }
    }
}

impl Interval {
    /// The range of numbers or instants as keys; `None` where only a test of each value can tell.
    pub fn of(range: &Range) -> Option<Interval> {
        let end = |limit: &Option<Limit>| match limit {
            None => Some((End::Open, None)),
            Some(limit) => {
                let Spot { measure, floor, ceiling } = Spot::of(&limit.value)?;
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
    /// The range of text; `None` if it is one of something else.
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
    /// Whether a value lies within.
    pub fn holds(&self, spot: Spot<K::Seen<'_>>) -> bool {
        self.span.measure == spot.measure
            && (self.span.low == End::Open || self.span.low_fits(&self.low, spot))
            && (self.span.high == End::Open || self.span.high_fits(&self.high, spot))
    }

    /// The end it is sorted by.
    fn key(&self) -> &K {
        if self.span.low == End::Open { &self.high } else { &self.low }
    }
}

impl Span {
    /// Whether a value is within as far as a low end says. Where it lies between two keys, the upper one is beyond it.
    #[inline]
    fn low_fits<K: Key>(self, key: &K, spot: Spot<K::Seen<'_>>) -> bool {
        if self.low == End::Without { key.order(spot.ceiling).is_lt() } else { key.order(spot.floor).is_le() }
    }

    /// Whether a value is within as far as a high end says.
    #[inline]
    fn high_fits<K: Key>(self, key: &K, spot: Spot<K::Seen<'_>>) -> bool {
        if self.high == End::Without { key.order(spot.floor).is_gt() } else { key.order(spot.ceiling).is_ge() }
    }

    /// Whether it has two ends.
    pub fn is_closed(self) -> bool {
        self.low != End::Open && self.high != End::Open
    }
}

/// What is filed under a range, and whether it is plain: nothing is left to ask.
pub trait Filed: Copy + PartialEq {
    /// Whether nothing is left to ask.
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
    /// Of ranges with two ends.
    highs: Vec<K>,
    /// The highest of each block of `highs`.
    tops: Vec<K>,
    filed: Vec<T>,
    /// How many are not plain.
    knotty: usize,
}

impl<K: Key, T: Filed> Column<K, T> {
    /// For ranges of a kind, none yet.
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

    /// How many there are.
    pub fn len(&self) -> usize {
        self.chunks.iter().map(|chunk| chunk.keys.len()).sum()
    }

    /// Files something under a range of this kind. O(log n), and at most a chunk is moved.
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
        chunk.knotty += usize::from(!filed.is_plain());
        if self.span.is_closed() {
            chunk.highs.insert(place, interval.high.clone());
            chunk.note_tops(place);
        }
    }

    /// Takes out what was filed so. Answers whether it was there.
    pub fn remove(&mut self, interval: &Interval<K>, filed: T) -> bool {
        let key = interval.key();
        // The key may begin at the end of the chunk before.
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
                chunk.knotty -= usize::from(!filed.is_plain());
                if self.span.is_closed() {
                    chunk.highs.remove(place);
                    chunk.note_tops(place);
                }
                if chunk.keys.is_empty() {
                    self.chunks.remove(at);
                }
                return true;
            }
        }
        false
    }

    /// Hands over what is filed under ranges around a value: in slices, and whether all of one are plain.
    pub fn answer(&self, spot: Spot<K::Seen<'_>>, give: &mut impl FnMut(&[T], bool)) {
        let span = self.span;
        if span.measure != spot.measure {
            return;
        }
        if span.low == End::Open {
            let is_below = |key: &K| !span.high_fits(key, spot);
            // The last key of a chunk is its highest.
            let from = self.chunks.partition_point(|chunk| chunk.keys.last().is_some_and(is_below));
            for (at, chunk) in self.chunks[from..].iter().enumerate() {
                let first = if at == 0 { chunk.keys.partition_point(is_below) } else { 0 };
                give(&chunk.filed[first..], chunk.knotty == 0);
            }
            return;
        }
        let fits = |key: &K| span.low_fits(key, spot);
        for chunk in &self.chunks {
            if !fits(&chunk.keys[0]) {
                break;
            }
            let is_whole = chunk.keys.last().is_some_and(fits);
            let end = if is_whole { chunk.keys.len() } else { chunk.keys.partition_point(fits) };
            if span.high == End::Open {
                give(&chunk.filed[..end], chunk.knotty == 0);
                continue;
            }
            for (block, top) in chunk.tops[..end.div_ceil(BLOCK)].iter().enumerate() {
                if !span.high_fits(top, spot) {
                    continue;
                }
                let (from, to) = (block * BLOCK, ((block + 1) * BLOCK).min(end));
                for (high, filed) in chunk.highs[from..to].iter().zip(&chunk.filed[from..to]) {
                    if span.high_fits(high, spot) {
                        give(std::slice::from_ref(filed), chunk.knotty == 0);
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
        Chunk { keys: Vec::new(), highs: Vec::new(), tops: Vec::new(), filed: Vec::new(), knotty: 0 }
    }
}

impl<K: Key, T: Filed> Chunk<K, T> {
    /// Keeps the lower half, answers the upper.
    fn split(&mut self) -> Chunk<K, T> {
        let at = self.keys.len() / 2;
        let filed = self.filed.split_off(at);
        let knotty = filed.iter().filter(|filed| !filed.is_plain()).count();
        self.knotty -= knotty;
        let highs = if self.highs.is_empty() { Vec::new() } else { self.highs.split_off(at) };
        let mut upper = Chunk { keys: self.keys.split_off(at), highs, tops: Vec::new(), filed, knotty };
        if !self.highs.is_empty() {
            self.note_tops(0);
            upper.note_tops(0);
        }
        upper
    }

    /// Computes the tops anew from a place on.
    fn note_tops(&mut self, place: usize) {
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

    impl Filed for u32 {
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
    fn columns_agree_with_tests_one_by_one() {
        agree(&random_number, &Interval::of, &|value| Spot::of(value));
        agree(&random_text, &Interval::of_text, &|value| Spot::of_text(value));
    }

    fn agree<K: Key + std::fmt::Debug + 'static>(
        random_value: &dyn Fn(&mut fastrand::Rng) -> Value,
        interval_of: &dyn Fn(&Range) -> Option<Interval<K>>,
        spot_of: &dyn for<'v> Fn(&'v Value) -> Option<Spot<K::Seen<'v>>>,
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
            let spot = spot_of(&value).expect("a value of this kind");
            for column in &columns {
                column.answer(spot, &mut |filed, plain| {
                    assert!(!plain || filed.iter().all(Filed::is_plain));
                    found.extend_from_slice(filed);
                });
            }
            expected.sort_unstable();
            found.sort_unstable();
            assert_eq!(found, expected, "{value:?}");
            for (range, interval, _) in &filed[..500] {
                assert_eq!(interval.holds(spot), range.accepts(&value), "{range:?} {value:?}");
            }
        }
    }

    #[test]
    fn what_no_double_equals_is_left() {
        let limit = |value: i64| Some(Limit { value: Value::Integer(value), inclusive: true });
        assert!(Interval::of(&Range { low: limit(9_007_199_254_740_992), high: None }).is_some());
        assert!(Interval::of(&Range { low: limit(9_007_199_254_740_993), high: None }).is_none());
        let (text, number) = (Some(Limit { value: Value::from("a"), inclusive: true }), limit(1));
        assert!(Interval::of(&Range { low: text.clone(), high: None }).is_none());
        assert!(Ends::of(&Range { low: text.clone(), high: text.clone() }).is_some());
        assert!(Ends::of(&Range { low: text, high: number }).is_none());
    }
}
