//! Logarithmic buckets of durations, from which percentiles are computed. The numbers of buckets are stored.

/// Buckets per doubling: each is about 4 % wide, which is the error of a percentile.
pub const STEPS: u16 = 16;

/// The bucket of a duration in microseconds. Values below [`STEPS`] have a bucket each; above, each doubling has
/// [`STEPS`] buckets.
pub fn bucket_of(micros: u64) -> u16 {
    let steps = u64::from(STEPS);
    if micros < steps {
        return micros as u16;
    }
    let doubling = u64::from(micros.ilog2()) - u64::from(steps.ilog2());
    ((doubling + 1) * steps + (micros >> doubling) - steps) as u16
}

/// The longest duration of a bucket, in microseconds.
pub fn upper_end(bucket: u16) -> u64 {
    let (bucket, steps) = (u64::from(bucket), u64::from(STEPS));
    if bucket < steps {
        return bucket;
    }
    let doubling = bucket / steps - 1;
    // No duration has such a bucket; a damaged row may.
    if doubling >= u64::from(u64::BITS) {
        return u64::MAX;
    }
    ((u128::from(steps + bucket % steps + 1) << doubling) - 1).try_into().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_follow_each_other() {
        let mut last = 0;
        for micros in 0..200_000u64 {
            let bucket = bucket_of(micros);
            assert!(bucket == last || bucket == last + 1, "{micros}");
            assert!(upper_end(bucket) >= micros && upper_end(bucket) as f64 <= micros as f64 * 1.07 + 1.0, "{micros}");
            last = bucket;
        }
        assert_eq!((upper_end(bucket_of(u64::MAX)), upper_end(u16::MAX)), (u64::MAX, u64::MAX));
    }
}
