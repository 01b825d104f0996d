//! Fits cost functions to measurements: a linear model, and the rate up to which it is valid.

use crate::vectors::Linear;

/// A measured cost per item, for an item size and a batch size.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    /// Bytes of an item.
    pub bytes: f64,
    /// Items per batch.
    pub batch: f64,
    /// Cost per item.
    pub each: f64,
}

/// A fitted cost function.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fit {
    /// The function.
    pub cost: Linear,
    /// The largest relative error over the samples.
    pub error: f64,
}

/// Samples below this fraction of the largest are ignored as clock noise.
const NOISE: f64 = 1e-3;
/// The cost increase at which the linear model becomes invalid.
const KNEE: f64 = 1.15;

/// Least-squares fit of relative errors, with non-negative coefficients. Coefficients that the samples do not vary are
/// left out: with a single size, the whole cost is the item's.
pub fn fit(samples: &[Sample]) -> Fit {
    let largest = samples.iter().map(|sample| sample.each).fold(0.0, f64::max);
    if largest <= 0.0 {
        return Fit { cost: Linear::default(), error: 0.0 };
    }
    let varies = |value: fn(&Sample) -> f64| samples.iter().any(|sample| value(sample) != value(&samples[0]));
    let may = [varies(|sample| sample.batch), true, varies(|sample| sample.bytes)];
    let mut best = (f64::INFINITY, Linear::default());
    for chosen in 1..8_u8 {
        let parts: Vec<usize> = (0..3).filter(|part| chosen & (1 << part) != 0 && may[*part]).collect();
        let Some(found) = solve(samples, &parts, largest) else { continue };
        let missed: f64 = samples.iter().map(|sample| part_missed(sample, &found, largest).powi(2)).sum();
        if missed < best.0 {
            best = (missed, found);
        }
    }
    let error = samples.iter().map(|sample| part_missed(sample, &best.1, largest).abs()).fold(0.0, f64::max);
    Fit { cost: best.1, error }
}

fn row(sample: &Sample) -> [f64; 3] {
    [1.0 / sample.batch.max(1.0), 1.0, sample.bytes / 1e3]
}

fn part_missed(sample: &Sample, cost: &Linear, largest: f64) -> f64 {
    let [batch, item, kilobyte] = row(sample);
    let expected = cost.batch * batch + cost.item * item + cost.kilobyte * kilobyte;
    (expected - sample.each) / sample.each.max(largest * NOISE)
}

/// The least-squares solution for these coefficients; `None` if it is singular or has a negative one.
fn solve(samples: &[Sample], parts: &[usize], largest: f64) -> Option<Linear> {
    let size = parts.len();
    let mut system = [[0.0_f64; 4]; 3];
    for sample in samples {
        let weight = sample.each.max(largest * NOISE).powi(-2);
        let row = row(sample);
        for (at, left) in parts.iter().enumerate() {
            for (to, right) in parts.iter().enumerate() {
                system[at][to] += weight * row[*left] * row[*right];
            }
            system[at][3] += weight * row[*left] * sample.each;
        }
    }
    // Gauss-Jordan elimination with partial pivoting.
    for column in 0..size {
        let pivot = (column..size)
            .max_by(|left, right| system[*left][column].abs().total_cmp(&system[*right][column].abs()))?;
        system.swap(column, pivot);
        let lead = system[column][column];
        if lead.abs() < 1e-12 * system[0][0].abs().max(1e-300) {
            return None;
        }
        let leading = system[column].map(|value| value / lead);
        system[column] = leading;
        for (_, row) in system.iter_mut().enumerate().take(size).filter(|(at, _)| *at != column) {
            let factor = row[column];
            for (value, lead) in row.iter_mut().zip(leading) {
                *value -= factor * lead;
            }
        }
    }
    let mut found = [0.0; 3];
    for (at, part) in parts.iter().enumerate() {
        found[*part] = system[at][3];
    }
    let is_fine = found.iter().all(|value| *value >= 0.0 && value.is_finite());
    is_fine.then_some(Linear { batch: found[0], item: found[1], kilobyte: found[2] })
}

/// The knee: the highest rate of these steps (rate, cost per item) before the cost rises clearly above that at lower
/// rates. `None` if it never does: the model is valid over the whole range.
pub fn knee(steps: &[(f64, f64)]) -> Option<f64> {
    let mut steps = steps.to_vec();
    steps.sort_by(|left, right| left.0.total_cmp(&right.0));
    let mut least = f64::INFINITY;
    let mut before = None;
    for (rate, each) in steps {
        if each > least * KNEE {
            return before;
        }
        least = least.min(each);
        before = Some(rate);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(cost: Linear, noise: impl Fn(usize) -> f64) -> Vec<Sample> {
        let sizes = [25.0, 250.0, 1_000.0, 2_000.0];
        let batches = [1.0, 10.0, 100.0, 1_000.0];
        let each = sizes.iter().flat_map(|bytes| batches.iter().map(move |batch| (*bytes, *batch)));
        each.enumerate()
            .map(|(at, (bytes, batch))| {
                let each = cost.batch / batch + cost.item + cost.kilobyte * bytes / 1e3;
                Sample { bytes, batch, each: each * noise(at) }
            })
            .collect()
    }

    #[test]
    fn a_line_is_recovered() {
        for cost in [
            Linear { batch: 120.0, item: 2.0, kilobyte: 3.0 },
            Linear { batch: 0.0, item: 7.0, kilobyte: 0.0 },
            Linear { batch: 50.0, item: 0.0, kilobyte: 1.0 },
        ] {
            let found = fit(&samples(cost, |_| 1.0));
            assert!(found.error < 1e-6, "{found:?}");
            let noisy = fit(&samples(cost, |at| if at % 2 == 0 { 1.04 } else { 0.96 }));
            assert!(noisy.error < 0.12, "{noisy:?}");
        }
    }

    #[test]
    fn coefficients_are_not_negative_and_one_size_gives_one_coefficient() {
        let falling = |bytes: f64, each: f64| Sample { bytes, batch: 1.0, each };
        let found = fit(&[falling(100.0, 10.0), falling(1_000.0, 8.0)]);
        assert_eq!((found.cost.batch, found.cost.kilobyte), (0.0, 0.0));
        let one = fit(&[falling(500.0, 10.0), falling(500.0, 10.0)]).cost;
        assert_eq!((one.batch, one.kilobyte), (0.0, 0.0));
        assert!((one.item - 10.0).abs() < 1e-9, "{one:?}");
        assert_eq!(fit(&[]).cost, Linear::default());
    }

    #[test]
    fn the_knee_is_where_the_cost_rises() {
        assert_eq!(knee(&[(100.0, 10.0), (200.0, 9.0), (400.0, 9.5), (450.0, 14.0)]), Some(400.0));
        assert_eq!(knee(&[(100.0, 10.0), (200.0, 9.0)]), None);
        assert_eq!(knee(&[]), None);
    }
}
