//! Whether one run was faster than another, or only luckier.

use serde::Serialize;

use super::results::{Measured, Results, gibibytes};

/// Differences below it are not worth a word, however sure.
const LEAST_CHANGE: f64 = 0.02;
/// By how much medians must differ if there are too few runs for a test.
const FEW_RUNS_CHANGE: f64 = 0.05;
/// How likely chance alone may explain a difference that is called one.
const CHANCE_MAX: f64 = 0.05;
/// Up to so many orders all are looked at; beyond, the normal approximation holds.
const ORDERS_MAX: f64 = 200_000.0;

/// What is said of two runs of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The second is better, and chance is unlikely to explain it.
    Better,
    /// The second is worse, and chance is unlikely to explain it.
    Worse,
    /// Every run of one is better than every run of the other, but there are too few to be sure.
    PerhapsBetter,
    /// The same for worse.
    PerhapsWorse,
    /// No difference that is more than noise.
    Same,
    /// One of them shows only that everything works, or the machines differ and no peer ran beside.
    Quick,
}

impl Verdict {
    /// In a word or two.
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

/// A figure that both runs have.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// Its name.
    pub name: String,
    /// Of its medians.
    pub unit: String,
    /// The median before.
    pub before: f64,
    /// The median after.
    pub after: f64,
    /// After divided by before.
    pub change: f64,
    /// How likely chance alone explains it; `None` with too few runs.
    pub chance: Option<f64>,
    /// What is compared: `value`, or the `ratio` to the peer if the machines differ.
    pub compared: &'static str,
    /// What comes of it.
    pub verdict: Verdict,
}

/// Compares what both runs have, in the order of the names.
pub fn compare(before: &Results, after: &Results) -> Vec<Comparison> {
    before.values().filter_map(|before| Some(compare_one(before, after.get(&before.name)?))).collect()
}

fn compare_one(before: &Measured, after: &Measured) -> Comparison {
    let by_ratio = before.run.is_some() && machine(before) != machine(after);
    let ratios = before.ratio.zip(after.ratio).filter(|_| by_ratio);
    let (left, right, compared) = match ratios {
        Some((left, right)) => (vec![left], vec![right], "ratio"),
        None => (before.runs(), after.runs(), "value"),
    };
    let (from, to) = (median(&left), median(&right));
    let change = to / from;
    let chance = chance_of(&left, &right);
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
        None if are_apart(&left, &right) && (change - 1.0).abs() > FEW_RUNS_CHANGE => {
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

/// The machine, with its memory in GiB, as lines of older versions have kB, which differ from one start to the next.
fn machine(measured: &Measured) -> Option<String> {
    let machine = &measured.run.as_ref()?.machine;
    let rounded = |part: &str| match part.strip_suffix(" kB of memory").and_then(|kilobytes| kilobytes.parse().ok()) {
        Some(kilobytes) => format!("{} of memory", gibibytes(kilobytes)),
        None => part.to_owned(),
    };
    Some(machine.split(", ").map(rounded).collect::<Vec<_>>().join(", "))
}

/// Times, sizes and errors are better when they are small, rates when they are large; and so are their ratios to a peer's.
fn is_smaller_better(unit: &str) -> bool {
    matches!(unit, "ms" | "s" | "us" | "bytes" | "MB" | "%") || unit.starts_with("of the measured")
}

fn median(runs: &[f64]) -> f64 {
    runs.iter().copied().collect::<super::figure::Samples>().median()
}

fn are_apart(left: &[f64], right: &[f64]) -> bool {
    let least = |runs: &[f64]| runs.iter().copied().fold(f64::INFINITY, f64::min);
    let most = |runs: &[f64]| runs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    most(left) < least(right) || most(right) < least(left)
}

/// How likely runs of the same thing are ordered at least as unevenly (Mann and Whitney, two-sided); `None` if so few runs
/// could not tell anything.
fn chance_of(left: &[f64], right: &[f64]) -> Option<f64> {
    let orders = choose(left.len() + right.len(), left.len());
    if 2.0 / orders >= CHANCE_MAX {
        return None;
    }
    let wins = wins(left, right);
    let even = left.len() as f64 * right.len() as f64 / 2.0;
    let uneven = (wins - even).abs();
    Some(if orders <= ORDERS_MAX { exact(left, right, uneven) } else { approximate(left.len(), right.len(), uneven) })
}

/// How often a run of the left is above one of the right; a tie is half.
fn wins(left: &[f64], right: &[f64]) -> f64 {
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

/// Deals all runs out anew in every way.
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
        as_uneven += u32::from((wins(&pick(ours), &pick(theirs)) - even).abs() >= uneven - 1e-9);
        // The next choice in lexicographic order.
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
    2.0 * above((uneven - 0.5).max(0.0) / deviation)
}

/// The upper tail of the normal distribution (Abramowitz and Stegun, 26.2.17).
fn above(deviations: f64) -> f64 {
    let t = 1.0 / (1.0 + 0.231_641_9 * deviations);
    let series =
        t * (0.319_381_530 + t * (-0.356_563_782 + t * (1.781_477_937 + t * (-1.821_255_978 + t * 1.330_274_429))));
    (-deviations * deviations / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt() * series
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(unit: &str, samples: &[f64]) -> Measured {
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
    fn a_difference_is_one_only_beyond_the_noise() {
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
    fn chance_is_that_of_the_tables() {
        // Five against five, all above: 2 of 252 ways.
        let chance = chance_of(&[1.0, 2.0, 3.0, 4.0, 5.0], &[6.0, 7.0, 8.0, 9.0, 10.0]).expect("enough");
        assert!((chance - 2.0 / 252.0).abs() < 1e-12, "{chance}");
        assert_eq!(chance_of(&[1.0, 2.0, 3.0], &[4.0, 5.0, 6.0]), None);
        let many = |from: f64| (0..20).map(|at| from + f64::from(at)).collect::<Vec<f64>>();
        let chance = chance_of(&many(0.0), &many(7.0)).expect("enough");
        assert!((0.0005..0.01).contains(&chance), "{chance}");
        assert!((above(1.96) - 0.025).abs() < 1e-4);
    }

    #[test]
    fn machines_that_differ_are_compared_by_the_peer_beside_them() {
        let with = |machine: &str, unit: &str, value: f64, ratio: Option<f64>| {
            let run = serde_json::json!({"version": "1", "machine": machine, "settings": "full", "at": "now"});
            let line = serde_json::json!({
                "name": "a", "unit": unit, "value": value, "low": value, "high": value, "repeats": 1, "ratio": ratio, "run": run,
            });
            serde_json::from_value::<Measured>(line).expect("a result")
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
