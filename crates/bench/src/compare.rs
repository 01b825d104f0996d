//! Significance test between two benchmark runs: is a difference more than noise?

use serde::Serialize;

use super::{
    results::{FigureResult, Results},
    run::gibibytes,
};

/// Smallest relative difference that is reported, however significant.
const LEAST_CHANGE: f64 = 0.02;
/// Relative difference of medians that is reported if there are too few runs for a test.
const FEW_RUNS_CHANGE: f64 = 0.05;
/// Significance level: maximum p-value of a reported difference.
const CHANCE_MAX: f64 = 0.05;
/// Largest number of orderings that are enumerated; above it the normal approximation is used.
const ORDERS_MAX: f64 = 200_000.0;

/// Result of comparing two runs of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Second run significantly better.
    Better,
    /// Second run significantly worse.
    Worse,
    /// Every run of the second is better, but there are too few runs for a test.
    PerhapsBetter,
    /// Every run of the second is worse, but there are too few runs for a test.
    PerhapsWorse,
    /// No significant difference.
    Same,
    /// Not comparable: one is a quick run, or the machines differ and no peer ran.
    Quick,
}

impl Verdict {
    /// Short text of the verdict for tables.
    pub fn word(self) -> &'static str {
        match self {
            Verdict::Better => "better",
            Verdict::Worse => "worse",
            Verdict::PerhapsBetter => "perhaps better",
            Verdict::PerhapsWorse => "perhaps worse",
            Verdict::Same => "no difference",
            Verdict::Quick => "nothing to compare",
        }
    }
}

/// Comparison of one figure in both runs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// Name of the figure.
    pub name: String,
    /// Unit of the medians.
    pub unit: String,
    /// Median before.
    pub before: f64,
    /// Median after.
    pub after: f64,
    /// `after` divided by `before`.
    pub change: f64,
    /// Two-sided p-value; `None` with too few runs.
    pub chance: Option<f64>,
    /// Compared quantity: `value`, or the `ratio` to the peer if the machines differ.
    pub compared: &'static str,
    /// Verdict.
    pub verdict: Verdict,
}

/// Compares the figures that both runs have, ordered by name.
pub fn compare(before: &Results, after: &Results) -> Vec<Comparison> {
    before.values().filter_map(|before| Some(compare_one(before, after.get(&before.name)?))).collect()
}

fn compare_one(before: &FigureResult, after: &FigureResult) -> Comparison {
    let by_ratio = before.run.is_some() && machine(before) != machine(after);
    let ratios = before.ratio.zip(after.ratio).filter(|_| by_ratio);
    let (left, right, compared) = match ratios {
        Some((left, right)) => (vec![left], vec![right], "ratio"),
        None => (before.runs(), after.runs(), "value"),
    };
    let (from, to) = (median(&left), median(&right));
    let change = to / from;
    let chance = p_value(&left, &right);
    let better = if is_smaller_better(&before.unit) { change < 1.0 } else { change > 1.0 };
    let verdict = match chance {
        _ if before.is_quick() || after.is_quick() || (by_ratio && ratios.is_none()) => Verdict::Quick,
        _ if !change.is_finite() || (change - 1.0).abs() < LEAST_CHANGE => Verdict::Same,
        Some(chance) if chance < CHANCE_MAX => {
            if better {
                Verdict::Better
            } else {
                Verdict::Worse
            }
        }
        Some(_) => Verdict::Same,
        None if are_disjoint(&left, &right) && (change - 1.0).abs() > FEW_RUNS_CHANGE => {
            if better {
                Verdict::PerhapsBetter
            } else {
                Verdict::PerhapsWorse
            }
        }
        None => Verdict::Same,
    };
    Comparison {
        name: before.name.clone(),
        unit: before.unit.clone(),
        before: from,
        after: to,
        change,
        chance,
        compared,
        verdict,
    }
}

/// Machine description with memory in GiB. Older lines have kB, which differ between boots of the same machine.
fn machine(measured: &FigureResult) -> Option<String> {
    let machine = &measured.run.as_ref()?.machine;
    let rounded = |part: &str| match part.strip_suffix(" kB of memory").and_then(|kilobytes| kilobytes.parse().ok()) {
        Some(kilobytes) => format!("{} of memory", gibibytes(kilobytes)),
        None => part.to_owned(),
    };
    Some(machine.split(", ").map(rounded).collect::<Vec<_>>().join(", "))
}

/// Whether smaller values are better: times, sizes and errors. Rates and their ratios to a peer are better when larger.
fn is_smaller_better(unit: &str) -> bool {
    matches!(unit, "ms" | "s" | "us" | "bytes" | "MB" | "%") || unit.starts_with("of the measured")
}

fn median(runs: &[f64]) -> f64 {
    runs.iter().copied().collect::<super::figure::Samples>().median()
}

fn are_disjoint(left: &[f64], right: &[f64]) -> bool {
    let least = |runs: &[f64]| runs.iter().copied().fold(f64::INFINITY, f64::min);
    let most = |runs: &[f64]| runs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    most(left) < least(right) || most(right) < least(left)
}

/// Two-sided p-value of the Mann-Whitney U test; `None` if the runs are too few to reach significance.
fn p_value(left: &[f64], right: &[f64]) -> Option<f64> {
    let orders = choose(left.len() + right.len(), left.len());
    if 2.0 / orders >= CHANCE_MAX {
        return None;
    }
    let u_statistic = u_statistic(left, right);
    let even = left.len() as f64 * right.len() as f64 / 2.0;
    let uneven = (u_statistic - even).abs();
    Some(if orders <= ORDERS_MAX { exact(left, right, uneven) } else { approximate(left.len(), right.len(), uneven) })
}

/// Mann-Whitney U: pairs in which the left run is above the right one; a tie counts half.
fn u_statistic(left: &[f64], right: &[f64]) -> f64 {
    let score = |left: f64, right: f64| {
        if left > right {
            1.0
        } else if left == right {
            0.5
        } else {
            0.0
        }
    };
    left.iter().flat_map(|left| right.iter().map(move |right| score(*left, *right))).sum()
}

fn choose(of: usize, some: usize) -> f64 {
    (1..=some).map(|at| (of - some + at) as f64 / at as f64).product()
}

/// Exact p-value by enumeration of all assignments.
fn exact(left: &[f64], right: &[f64], uneven: f64) -> f64 {
    let all: Vec<f64> = left.iter().chain(right).copied().collect();
    let even = left.len() as f64 * right.len() as f64 / 2.0;
    let (mut as_uneven, mut ways) = (0_u32, 0_u32);
    let mut dealt: Vec<usize> = (0..left.len()).collect();
    loop {
        let is_dealt = |at: &usize| dealt.binary_search(at).is_ok();
        let (ours, theirs): (Vec<usize>, Vec<usize>) = (0..all.len()).partition(is_dealt);
        let pick = |places: Vec<usize>| places.into_iter().map(|at| all[at]).collect::<Vec<f64>>();
        ways += 1;
        as_uneven += u32::from((u_statistic(&pick(ours), &pick(theirs)) - even).abs() >= uneven - 1e-9);
        // The next combination in lexicographic order.
        let Some(at) = (0..dealt.len()).rev().find(|at| dealt[*at] < all.len() - dealt.len() + at) else { break };
        dealt[at] += 1;
        for next in at + 1..dealt.len() {
            dealt[next] = dealt[next - 1] + 1;
        }
    }
    f64::from(as_uneven) / f64::from(ways)
}

fn approximate(left: usize, right: usize, uneven: f64) -> f64 {
    let (left, right) = (left as f64, right as f64);
    let deviation = (left * right * (left + right + 1.0) / 12.0).sqrt();
    2.0 * normal_tail((uneven - 0.5).max(0.0) / deviation)
}

/// Upper tail of the normal distribution (Abramowitz and Stegun, 26.2.17).
fn normal_tail(deviations: f64) -> f64 {
    let t = 1.0 / (1.0 + 0.231_641_9 * deviations);
    let series =
        t * (0.319_381_530 + t * (-0.356_563_782 + t * (1.781_477_937 + t * (-1.821_255_978 + t * 1.330_274_429))));
    (-deviations * deviations / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt() * series
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(unit: &str, samples: &[f64]) -> FigureResult {
        let line = serde_json::json!({
            "name": "a", "unit": unit, "value": median(samples), "low": 0, "high": 0, "repeats": samples.len(), "samples": samples,
        });
        serde_json::from_value(line).expect("a result")
    }

    fn check(unit: &str, before: &[f64], after: &[f64], expected: Verdict) {
        let compared = compare_one(&measured(unit, before), &measured(unit, after));
        assert_eq!(compared.verdict, expected, "{compared:?}");
    }

    #[test]
    fn differences_within_noise_are_not_reported() {
        let steady = [100.0, 101.0, 99.0, 100.5, 99.5];
        check("rows/s", &steady, &steady.map(|run| run * 1.2), Verdict::Better);
        check("rows/s", &steady, &steady.map(|run| run * 0.8), Verdict::Worse);
        check("ms", &steady, &steady.map(|run| run * 1.2), Verdict::Worse);
        check("of the measured throughput", &steady, &steady.map(|run| run * 1.2), Verdict::Worse);
        check("rows/s", &steady, &steady.map(|run| run * 1.01), Verdict::Same);
        check("rows/s", &[100.0, 150.0, 60.0, 90.0, 120.0], &[110.0, 140.0, 70.0, 100.0, 130.0], Verdict::Same);
        check("rows/s", &[100.0, 101.0, 102.0], &[120.0, 121.0, 122.0], Verdict::PerhapsBetter);
        check("rows/s", &[100.0], &[103.0], Verdict::Same);
    }

    #[test]
    fn p_values_match_published_tables() {
        // Five against five, all above: 2 of 252 combinations.
        let chance = p_value(&[1.0, 2.0, 3.0, 4.0, 5.0], &[6.0, 7.0, 8.0, 9.0, 10.0]).expect("enough");
        assert!((chance - 2.0 / 252.0).abs() < 1e-12, "{chance}");
        assert_eq!(p_value(&[1.0, 2.0, 3.0], &[4.0, 5.0, 6.0]), None);
        let many = |from: f64| (0..20).map(|at| from + f64::from(at)).collect::<Vec<f64>>();
        let chance = p_value(&many(0.0), &many(7.0)).expect("enough");
        assert!((0.0005..0.01).contains(&chance), "{chance}");
        assert!((normal_tail(1.96) - 0.025).abs() < 1e-4);
    }

    #[test]
    fn results_of_different_machines_are_compared_by_the_ratio_to_the_peer() {
        let with = |machine: &str, unit: &str, value: f64, ratio: Option<f64>| {
            let run = serde_json::json!({"version": "1", "machine": machine, "settings": "full", "at": "now"});
            let line = serde_json::json!({
                "name": "a", "unit": unit, "value": value, "low": value, "high": value, "repeats": 1, "ratio": ratio, "run": run,
            });
            serde_json::from_value::<FigureResult>(line).expect("a result")
        };
        let check = |unit: &str, before: Option<f64>, after: Option<f64>, expected: (&str, Verdict)| {
            let compared = compare_one(&with("old", unit, 100.0, before), &with("new", unit, 500.0, after));
            assert_eq!((compared.compared, compared.verdict), expected);
        };
        check("rows/s", Some(2.0), Some(2.0), ("ratio", Verdict::Same));
        check("rows/s", Some(2.0), Some(4.0), ("ratio", Verdict::PerhapsBetter));
        check("ms", Some(2.0), Some(4.0), ("ratio", Verdict::PerhapsWorse));
        check("rows/s", None, None, ("value", Verdict::Quick));
        let (older, newer) = ("x, 2 cores, 8130000 kB of memory, linux", "x, 2 cores, 8 GiB of memory, linux");
        let compared = compare_one(&with(older, "rows/s", 100.0, None), &with(newer, "rows/s", 500.0, None));
        assert_eq!((compared.compared, compared.verdict), ("value", Verdict::PerhapsBetter));
    }
}
