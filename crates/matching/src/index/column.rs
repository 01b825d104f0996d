//! A sorted column of keys: in four bytes each, as distances from a base, as long as they fit; else in eight.

/// Sorted keys.
#[derive(Debug)]
pub enum KeyColumn {
    /// `base + offset`.
    Narrow {
        /// What is added to each.
        base: i64,
        /// The distances.
        offsets: Vec<i32>,
    },
    /// The keys themselves.
    Wide(Vec<i64>),
}

/// Some of the keys of a column.
#[derive(Debug, Clone, Copy)]
pub enum KeySlice<'a> {
    /// `base + offset`.
    Narrow(i64, &'a [i32]),
    /// The keys themselves.
    Wide(&'a [i64]),
}

impl Default for KeySlice<'_> {
    fn default() -> Self {
        KeySlice::Wide(&[])
    }
}

impl<'a> KeySlice<'a> {
    /// How many there are.
    pub fn len(self) -> usize {
        match self {
            KeySlice::Narrow(_, offsets) => offsets.len(),
            KeySlice::Wide(keys) => keys.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// One of them.
    ///
    /// # Panics
    /// There are not so many.
    pub fn at(self, at: usize) -> i64 {
        match self {
            KeySlice::Narrow(base, offsets) => base + i64::from(offsets[at]),
            KeySlice::Wide(keys) => keys[at],
        }
    }

    /// Those of a range of places, or none if there are no keys at all.
    #[must_use]
    pub fn slice(self, from: usize, to: usize) -> KeySlice<'a> {
        match self {
            KeySlice::Narrow(base, offsets) if !offsets.is_empty() => KeySlice::Narrow(base, &offsets[from..to]),
            KeySlice::Wide(keys) if !keys.is_empty() => KeySlice::Wide(&keys[from..to]),
            none => none,
        }
    }

    /// Appends all of them.
    #[inline]
    pub fn append_to(self, out: &mut Vec<i64>) {
        match self {
            KeySlice::Narrow(base, offsets) => out.extend(offsets.iter().map(|offset| base + i64::from(*offset))),
            KeySlice::Wide(keys) => out.extend_from_slice(keys),
        }
    }
}

impl Default for KeyColumn {
    fn default() -> Self {
        KeyColumn::Narrow { base: 0, offsets: Vec::new() }
    }
}

impl KeyColumn {
    /// The smallest.
    #[inline]
    pub fn first(&self) -> Option<i64> {
        match self {
            KeyColumn::Narrow { base, offsets } => offsets.first().map(|offset| base + i64::from(*offset)),
            KeyColumn::Wide(keys) => keys.first().copied(),
        }
    }

    /// The largest.
    #[inline]
    pub fn last(&self) -> Option<i64> {
        match self {
            KeyColumn::Narrow { base, offsets } => offsets.last().map(|offset| base + i64::from(*offset)),
            KeyColumn::Wide(keys) => keys.last().copied(),
        }
    }

    /// Puts a key at its place, making room for `more` where there is none.
    pub fn insert(&mut self, at: usize, key: i64, more: usize) {
        if let KeyColumn::Narrow { base, offsets } = self {
            if offsets.is_empty() {
                *base = base_for(key);
            }
            if let Some(offset) = offset(*base, key) {
                if offsets.len() == offsets.capacity() {
                    offsets.reserve_exact(more);
                }
                return offsets.insert(at, offset);
            }
            let mut keys = Vec::with_capacity(offsets.len() + more);
            self.as_slice().append_to(&mut keys);
            *self = KeyColumn::Wide(keys);
        }
        let KeyColumn::Wide(keys) = self else { return };
        if keys.len() == keys.capacity() {
            keys.reserve_exact(more);
        }
        keys.insert(at, key);
    }

    /// Cuts the keys from a place on off.
    pub fn split_off(&mut self, at: usize) -> KeyColumn {
        match self {
            KeyColumn::Narrow { base, offsets } => KeyColumn::Narrow { base: *base, offsets: offsets.split_off(at) },
            KeyColumn::Wide(keys) => {
                let mut upper = KeyColumn::Wide(keys.split_off(at));
                upper.shrink();
                upper
            }
        }
    }

    /// Gives memory back, also by becoming narrow again.
    pub fn shrink(&mut self) {
        match self {
            KeyColumn::Narrow { offsets, .. } => offsets.shrink_to_fit(),
            KeyColumn::Wide(keys) => {
                let Some(base) = keys.first().map(|first| base_for(*first)) else {
                    *self = KeyColumn::default();
                    return;
                };
                let offsets: Option<Vec<i32>> = keys.iter().map(|key| offset(base, *key)).collect();
                match offsets {
                    Some(mut offsets) => {
                        offsets.shrink_to_fit();
                        *self = KeyColumn::Narrow { base, offsets };
                    }
                    None => keys.shrink_to_fit(),
                }
            }
        }
    }

    /// Moves a key to an earlier place.
    pub fn copy_within(&mut self, from: usize, to: usize) {
        match self {
            KeyColumn::Narrow { offsets, .. } if !offsets.is_empty() => offsets[to] = offsets[from],
            KeyColumn::Wide(keys) if !keys.is_empty() => keys[to] = keys[from],
            _ => {}
        }
    }

    /// Keeps so many.
    pub fn truncate(&mut self, length: usize) {
        match self {
            KeyColumn::Narrow { offsets, .. } => offsets.truncate(length),
            KeyColumn::Wide(keys) => keys.truncate(length),
        }
    }

    /// All of them.
    #[inline]
    pub fn as_slice(&self) -> KeySlice<'_> {
        match self {
            KeyColumn::Narrow { base, offsets } => KeySlice::Narrow(*base, offsets),
            KeyColumn::Wide(keys) => KeySlice::Wide(keys),
        }
    }

    /// Those of a range of places, or none if there are no keys at all.
    #[inline]
    pub fn slice(&self, from: usize, to: usize) -> KeySlice<'_> {
        self.as_slice().slice(from, to)
    }

    /// How many are at most a bound.
    #[inline]
    pub fn up_to(&self, bound: i64) -> usize {
        match self {
            KeyColumn::Narrow { base, offsets } => match offset(*base, bound) {
                Some(bound) => narrow_up_to(offsets, bound),
                // Farther away than any distance that fits.
                None if bound < *base => 0,
                None => offsets.len(),
            },
            KeyColumn::Wide(keys) => wide_up_to(keys, bound),
        }
    }

    /// Bytes held beside the value itself.
    pub fn memory_bytes(&self) -> usize {
        match self {
            KeyColumn::Narrow { offsets, .. } => offsets.capacity() * 4,
            KeyColumn::Wide(keys) => keys.capacity() * 8,
        }
    }
}

/// Zero where that will do, so that most columns hold the keys themselves.
fn base_for(key: i64) -> i64 {
    if i32::try_from(key).is_ok() { 0 } else { key }
}

#[inline]
fn offset(base: i64, key: i64) -> Option<i32> {
    i32::try_from(key.checked_sub(base)?).ok()
}

/// So many keys are counted one by one, several in a step: that is faster than to bisect them.
const COUNTED_MAX: usize = 160;

/// How many keys of a sorted column are at most a bound.
///
/// Bisection walks through as many cache lines as it takes steps, one after the other. So the place is guessed as if the
/// keys were spread evenly, and looked for near it; where the guess is wrong, bisection finds it in what is left.
#[inline]
fn narrow_up_to(keys: &[i32], bound: i32) -> usize {
    let count = |keys: &[i32]| keys.iter().map(|key| u32::from(*key <= bound)).sum::<u32>() as usize;
    if keys.len() <= 32 {
        return count(keys);
    }
    let (first, last) = (keys[0], keys[keys.len() - 1]);
    if bound < first {
        return 0;
    }
    if bound >= last {
        return keys.len();
    }
    let share = (f64::from(bound) - f64::from(first)) / (f64::from(last) - f64::from(first));
    let (low, high) = near(share, keys.len());
    match (low == 0 || keys[low - 1] <= bound, high == keys.len() || keys[high] > bound) {
        (true, true) if high - low <= COUNTED_MAX => low + count(&keys[low..high]),
        (true, true) => low + keys[low..high].partition_point(|key| *key <= bound),
        (true, false) => high + keys[high..].partition_point(|key| *key <= bound),
        (false, _) => keys[..low].partition_point(|key| *key <= bound),
    }
}

/// The same for keys of eight bytes.
fn wide_up_to(keys: &[i64], bound: i64) -> usize {
    let (Some(first), Some(last)) = (keys.first(), keys.last()) else { return 0 };
    if bound < *first {
        return 0;
    }
    if bound >= *last {
        return keys.len();
    }
    // The last key is greater than the first. Where both are one double, so is the bound, and the guess is 0.
    let share = (bound as f64 - *first as f64) / (*last as f64 - *first as f64);
    let (low, high) = near(share, keys.len());
    // Before `start` all keys are within the bound, from `end` on none.
    let (start, end) = match (low == 0 || keys[low - 1] <= bound, high == keys.len() || keys[high] > bound) {
        (true, true) => (low, high),
        (true, false) => (high, keys.len()),
        (false, _) => (0, low),
    };
    start + keys[start..end].partition_point(|key| *key <= bound)
}

/// Where to look first: around the share of the length, as far as evenly spread keys deviate, twice.
#[inline]
fn near(share: f64, length: usize) -> (usize, usize) {
    let guess = (share * length as f64) as usize;
    // A power of two near the square root.
    let reach = 1usize << (usize::BITS - length.leading_zeros()).div_ceil(2);
    (guess.saturating_sub(reach), (guess + reach).min(length))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(keys: &[i64]) -> KeyColumn {
        let mut column = KeyColumn::default();
        for (at, key) in keys.iter().enumerate() {
            column.insert(at, *key, 8);
        }
        column
    }

    #[test]
    fn guessing_finds_what_bisection_finds() {
        for seed in 0..200u64 {
            let mut random = fastrand::Rng::with_seed(seed);
            // Evenly spread, crowded at one end, far apart, and at the limits.
            let spread = [10, 1_000, 1 << 31, 1 << 40, i64::MAX][seed as usize % 5];
            let power = random.i32(1..12);
            let mut keys: Vec<i64> = (0..random.usize(0..3000))
                .map(|_| (random.f64().powi(power) * spread as f64) as i64 - spread / 2)
                .collect();
            keys.extend([i64::MIN, i64::MAX].into_iter().filter(|_| random.u8(0..4) == 0));
            keys.sort_unstable();
            let column = column(&keys);
            let near = keys.iter().flat_map(|key| [key.saturating_sub(1), *key, key.saturating_add(1)]);
            for bound in near.chain([i64::MIN, -1, 0, i64::MAX]) {
                assert_eq!(column.up_to(bound), keys.partition_point(|key| *key <= bound), "seed {seed}, {bound}");
            }
        }
    }

    #[test]
    fn keys_are_narrow_while_they_fit() {
        let check = |keys: &[i64], narrow: bool| {
            let mut column = column(keys);
            assert_eq!(matches!(column, KeyColumn::Narrow { .. }), narrow, "{keys:?}");
            let read = |column: &KeyColumn| {
                (0..column.as_slice().len()).map(|at| column.as_slice().at(at)).collect::<Vec<_>>()
            };
            assert_eq!(read(&column), keys);
            assert_eq!((column.first(), column.last()), (keys.first().copied(), keys.last().copied()));
            let upper = column.split_off(keys.len() / 2);
            column.shrink();
            assert_eq!([read(&column), read(&upper)].concat(), keys);
            let mut copied = Vec::new();
            column.as_slice().append_to(&mut copied);
            upper.as_slice().append_to(&mut copied);
            assert_eq!(copied, keys);
        };
        check(&[], true);
        check(&[-5, 0, 7], true);
        check(&[i64::from(i32::MIN), i64::from(i32::MAX)], true);
        check(&[-1, 1 << 31], false);
        check(&[1_700_000_000_000_000, 1_700_000_900_000_000], true);
        check(&[1_700_000_000_000_000, 1_700_003_600_000_000], false);
        check(&[i64::MIN, i64::MAX], false);
    }

    #[test]
    fn a_column_becomes_narrow_again() {
        let mut column = column(&[1, 2, 1 << 40]);
        column.truncate(2);
        column.shrink();
        assert!(matches!(column, KeyColumn::Narrow { .. }), "{column:?}");
        assert_eq!((column.first(), column.last()), (Some(1), Some(2)));
    }
}
