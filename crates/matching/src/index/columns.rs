//! Sorted keys and their slots, in one allocation: an answer reads a few keys and then adjacent slots. A key takes four
//! bytes, as its distance from the first key, as long as all distances fit; else eight.

/// Sorted keys, each with a slot; or slots alone.
///
/// The first and last key are stored inline, since they are read for every event.
#[derive(Debug, Default)]
pub struct Columns {
    /// All keys, then all slots.
    cells: Vec<u32>,
    /// The number of entries.
    len: u32,
    first: i64,
    last: i64,
    width: Width,
}

/// The encoding of keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Width {
    /// There are no keys.
    #[default]
    None,
    /// Distance from the first key.
    Narrow,
    /// Low half and its high half.
    Wide,
}

impl Width {
    #[inline]
    fn words(self) -> usize {
        match self {
            Width::None => 0,
            Width::Narrow => 1,
            Width::Wide => 2,
        }
    }
}

/// A slice of the keys of columns.
#[derive(Debug, Clone, Copy, Default)]
pub enum KeySlice<'a> {
    /// There are none.
    #[default]
    None,
    /// The base, and the distance of each key from it.
    Narrow(i64, &'a [u32]),
    /// Low and high halves of the keys.
    Wide(&'a [[u32; 2]]),
    /// The keys as they are.
    Plain(&'a [i64]),
}

impl<'a> KeySlice<'a> {
    /// The number of keys.
    pub fn len(self) -> usize {
        match self {
            KeySlice::None => 0,
            KeySlice::Narrow(_, distances) => distances.len(),
            KeySlice::Wide(halves) => halves.len(),
            KeySlice::Plain(keys) => keys.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// One key.
    ///
    /// # Panics
    /// The index is out of bounds.
    pub fn at(self, at: usize) -> i64 {
        match self {
            KeySlice::None => panic!("there are no keys"),
            KeySlice::Narrow(first, distances) => first + i64::from(distances[at]),
            KeySlice::Wide(halves) => joined(halves[at]),
            KeySlice::Plain(keys) => keys[at],
        }
    }

    /// The keys of a range of positions, or none if there are no keys at all.
    #[must_use]
    #[inline]
    pub fn slice(self, from: usize, to: usize) -> KeySlice<'a> {
        match self {
            KeySlice::None => KeySlice::None,
            KeySlice::Narrow(first, distances) => KeySlice::Narrow(first, &distances[from..to]),
            KeySlice::Wide(halves) => KeySlice::Wide(&halves[from..to]),
            KeySlice::Plain(keys) => KeySlice::Plain(&keys[from..to]),
        }
    }

    /// Appends all of them.
    #[inline]
    pub fn append_to(self, out: &mut Vec<i64>) {
        match self {
            KeySlice::None => {}
            KeySlice::Narrow(first, distances) => {
                out.extend(distances.iter().map(|distance| first + i64::from(*distance)));
            }
            KeySlice::Wide(halves) => out.extend(halves.iter().map(|halves| joined(*halves))),
            KeySlice::Plain(keys) => out.extend_from_slice(keys),
        }
    }
}

#[inline]
fn joined([low, high]: [u32; 2]) -> i64 {
    (u64::from(high) << 32 | u64::from(low)) as i64
}

pub(crate) fn halves(key: i64) -> [u32; 2] {
    [key as u32, (key as u64 >> 32) as u32]
}

/// The distance of a key above another, if it fits.
#[inline]
fn distance(first: i64, key: i64) -> Option<u32> {
    u32::try_from(key.checked_sub(first)?).ok()
}

impl Columns {
    /// The number of entries.
    #[inline]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }

    /// The smallest key; 0 if there are no keys.
    #[inline]
    pub fn first(&self) -> i64 {
        self.first
    }

    /// The largest key; 0 if there are no keys.
    #[inline]
    pub fn last(&self) -> i64 {
        self.last
    }

    /// The keys in order.
    #[inline]
    pub fn keys(&self) -> KeySlice<'_> {
        match self.width {
            Width::None => KeySlice::None,
            Width::Narrow => KeySlice::Narrow(self.first, &self.cells[..self.len()]),
            Width::Wide => KeySlice::Wide(self.cells[..self.len() * 2].as_chunks().0),
        }
    }

    /// The slots in the order of their keys.
    #[inline]
    pub fn slots(&self) -> &[u32] {
        &self.cells[self.len() * self.width.words()..]
    }

    /// Appends a slot without a key.
    pub fn push(&mut self, slot: u32) {
        self.reserve(1);
        self.cells.push(slot);
        self.len += 1;
    }

    /// Inserts a slot after those whose keys are at most its own. Returns the position.
    pub fn insert(&mut self, key: i64, slot: u32) -> usize {
        if self.cells.is_empty() {
            *self = Columns { first: key, last: key, width: Width::Narrow, ..Columns::default() };
        }
        let (first, last) = (self.first.min(key), self.last.max(key));
        let at = self.up_to(key);
        if self.width == Width::Narrow {
            match distance(first, last) {
                None => self.widen(),
                Some(_) if first < self.first => {
                    let further = distance(first, self.first).unwrap_or_default();
                    let length = self.len();
                    self.cells[..length].iter_mut().for_each(|distance| *distance += further);
                }
                Some(_) => {}
            }
        }
        (self.first, self.last) = (first, last);
        match self.width {
            Width::Wide => self.place(at, halves(key), slot),
            _ => self.place(at, [distance(first, key).unwrap_or_default()], slot),
        }
        at
    }

    /// Moves the slots by one key, those from the position on by one slot more, and the keys from there on by one.
    fn place<const WORDS: usize>(&mut self, at: usize, key: [u32; WORDS], slot: u32) {
        let (length, cells) = (self.len(), self.cells.len());
        self.reserve(WORDS + 1);
        self.cells.resize(cells + WORDS + 1, 0);
        let slots = length * WORDS;
        self.cells.copy_within(slots + at..cells, slots + at + WORDS + 1);
        self.cells.copy_within(at * WORDS..slots + at, (at + 1) * WORDS);
        self.cells[slots + WORDS + at] = slot;
        self.len += 1;
        self.cells[at * WORDS..][..WORDS].copy_from_slice(&key);
    }

    /// Doubling would waste a third of the memory on average; an eighth at a time costs little more.
    fn reserve(&mut self, words: usize) {
        if self.cells.len() + words > self.cells.capacity() {
            self.cells.reserve_exact(self.cells.len() / 8 + 2 * words);
        }
    }

    fn widen(&mut self) {
        let (keys, slots) = (self.keys(), self.slots());
        let mut cells = Vec::with_capacity(self.len() * 3 + 16);
        cells.extend((0..keys.len()).flat_map(|at| halves(keys.at(at))));
        cells.extend_from_slice(slots);
        (self.cells, self.width) = (cells, Width::Wide);
    }

    /// Splits off the entries from a position on.
    pub fn split_off(&mut self, at: usize) -> Columns {
        let upper = self.some(at..self.len());
        *self = self.some(0..at);
        upper
    }

    /// Keeps the entries whose positions are wanted.
    pub fn retain(&mut self, requested: impl Fn(usize) -> bool) {
        *self = self.some((0..self.len()).filter(|at| requested(*at)));
    }

    /// A copy of some entries, without spare capacity.
    fn some(&self, places: impl Iterator<Item = usize> + Clone) -> Columns {
        let (keys, slots) = (self.keys(), self.slots());
        let count = places.clone().count();
        let ends = places.clone().next().zip(places.clone().last());
        let (first, last) = match ends {
            Some((first, last)) if !keys.is_empty() => (keys.at(first), keys.at(last)),
            _ => (0, 0),
        };
        let width = match self.width {
            _ if count == 0 => Width::None,
            Width::Wide if distance(first, last).is_some() => Width::Narrow,
            width => width,
        };
        let mut cells = Vec::with_capacity(count * (width.words() + 1));
        match width {
            Width::None => {}
            Width::Narrow => {
                cells.extend(places.clone().map(|at| distance(first, keys.at(at)).unwrap_or_default()));
            }
            Width::Wide => cells.extend(places.clone().flat_map(|at| halves(keys.at(at)))),
        }
        cells.extend(places.map(|at| slots[at]));
        Columns { cells, len: count as u32, first, last, width }
    }

    /// The number of keys that are at most `bound`.
    pub fn up_to(&self, bound: i64) -> usize {
        if self.width == Width::None { 0 } else { self.up_to_near(bound, self.hint(bound)) }
    }

    /// Predicts the position of a bound. Without a branch, so that several predictions run in parallel.
    #[inline]
    pub fn hint(&self, bound: i64) -> SearchHint {
        let first = self.first as f64;
        // If all keys are equal, the quotient is NaN or infinite, which the cast turns into 0 or the maximum.
        let share = (bound as f64 - first) / (self.last as f64 - first);
        let guess = ((share * f64::from(self.len)) as i32).clamp(0, self.len as i32) as u32;
        // Twice the deviation of evenly spread keys: a power of two near the square root.
        let reach = 1 << (u32::BITS - self.len.leading_zeros()).div_ceil(2);
        SearchHint { low: guess.saturating_sub(reach), high: (guess + reach).min(self.len) }
    }

    /// The number of keys that are at most `bound`, with the search starting at the hint.
    #[inline]
    pub fn up_to_near(&self, bound: i64, hint: SearchHint) -> usize {
        match self.keys() {
            KeySlice::Narrow(first, distances) => match distance(first, bound) {
                Some(bound) => {
                    interpolation_search(
                        distances,
                        hint,
                        |distance| *distance <= bound,
                        |distances| {
                            // A linear count uses SIMD, which is faster than bisection here.
                            distances.iter().map(|distance| u32::from(*distance <= bound)).sum::<u32>() as usize
                        },
                    )
                }
                None if bound < first => 0,
                None => distances.len(),
            },
            KeySlice::Wide(keys) => interpolation_search(
                keys,
                hint,
                |key| joined(*key) <= bound,
                |keys| keys.partition_point(|key| joined(*key) <= bound),
            ),
            _ => 0,
        }
    }

    /// Prefetches the memory that an answer reads; the result is meaningless.
    #[inline]
    pub fn touch(&self, hint: SearchHint) -> u32 {
        let words = self.width.words();
        let at = |place: usize| self.cells.get(place).copied().unwrap_or_default();
        let (low, high) = (hint.low as usize, hint.high as usize);
        at(low * words) ^ at(high * words) ^ at(self.len() * words + low.midpoint(high))
    }

    /// Bytes held beside the value itself.
    pub fn memory_bytes(&self) -> usize {
        self.cells.capacity() * 4
    }
}

/// The predicted position of a bound among sorted keys (interpolation search).
///
/// Bisection touches one cache line after the other. So the position is predicted as if the keys were spread evenly,
/// and searched near it; if the prediction is wrong, bisection continues in the rest.
#[derive(Debug, Clone, Copy, Default)]
pub struct SearchHint {
    low: u32,
    high: u32,
}

/// Most keys that are counted linearly.
const COUNTED_MAX: usize = 160;

#[inline]
fn interpolation_search<T>(
    keys: &[T],
    hint: SearchHint,
    within: impl Fn(&T) -> bool,
    count: impl Fn(&[T]) -> usize,
) -> usize {
    let (low, high) = (hint.low as usize, hint.high as usize);
    match (low == 0 || within(&keys[low - 1]), high == keys.len() || !within(&keys[high])) {
        (true, true) if high - low <= COUNTED_MAX => low + count(&keys[low..high]),
        (true, true) => low + keys[low..high].partition_point(within),
        (true, false) => high + keys[high..].partition_point(within),
        (false, _) => keys[..low].partition_point(within),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn columns(keys: &[i64]) -> Columns {
        let mut columns = Columns::default();
        for (slot, key) in keys.iter().enumerate() {
            columns.insert(*key, slot as u32);
        }
        columns
    }

    fn read(columns: &Columns) -> Vec<(i64, u32)> {
        columns.slots().iter().enumerate().map(|(at, slot)| (columns.keys().at(at), *slot)).collect()
    }

    #[test]
    fn predictions_agree_with_bisection() {
        for seed in 0..200u64 {
            let mut random = fastrand::Rng::with_seed(seed);
            // Evenly spread, clustered at one end, far apart, and at the limits.
            let spread = [10, 1_000, 1 << 31, 1 << 40, i64::MAX][seed as usize % 5];
            let power = random.i32(1..12);
            let mut keys: Vec<i64> = (0..random.usize(0..2000))
                .map(|_| (random.f64().powi(power) * spread as f64) as i64 - spread / 2)
                .collect();
            keys.extend([i64::MIN, i64::MAX].into_iter().filter(|_| random.u8(0..4) == 0));
            let columns = columns(&keys);
            let mut expected: Vec<(i64, u32)> = keys.iter().copied().zip(0..).collect();
            expected.sort_unstable();
            assert_eq!(read(&columns), expected, "seed {seed}");
            keys.sort_unstable();
            let near = keys.iter().flat_map(|key| [key.saturating_sub(1), *key, key.saturating_add(1)]);
            for bound in near.chain([i64::MIN, -1, 0, i64::MAX]) {
                assert_eq!(columns.up_to(bound), keys.partition_point(|key| *key <= bound), "seed {seed}, {bound}");
            }
        }
    }

    #[test]
    fn keys_are_narrow_while_they_fit() {
        let check = |keys: &[i64], width: Width| {
            let mut columns = columns(keys);
            assert_eq!(columns.width, width, "{keys:?}");
            let mut expected: Vec<(i64, u32)> = keys.iter().copied().zip(0..).collect();
            expected.sort_unstable();
            assert_eq!(read(&columns), expected);
            let mut copied = Vec::new();
            columns.keys().append_to(&mut copied);
            assert_eq!(copied, expected.iter().map(|(key, _)| *key).collect::<Vec<_>>());
            let upper = columns.split_off(keys.len() / 2);
            assert_eq!([read(&columns), read(&upper)].concat(), expected);
        };
        check(&[], Width::None);
        check(&[7, -5, 0], Width::Narrow);
        check(&[0, i64::from(u32::MAX)], Width::Narrow);
        check(&[0, i64::from(u32::MAX) + 1], Width::Wide);
        check(&[1_700_003_600_000_000, 1_700_000_000_000_000], Width::Narrow);
        check(&[i64::MAX, i64::MIN, 0, i64::MIN], Width::Wide);
    }

    #[test]
    fn keys_become_narrow_again() {
        let mut columns = columns(&[1, 2, 1 << 40]);
        assert_eq!(columns.width, Width::Wide);
        columns.retain(|at| at < 2);
        assert_eq!((columns.width, read(&columns)), (Width::Narrow, vec![(1, 0), (2, 1)]));
        columns.retain(|_| false);
        assert!(columns.is_empty() && columns.up_to(i64::MAX) == 0);
        columns.insert(9, 9);
        assert_eq!(read(&columns), [(9, 9)]);
    }
}
