//! Published workloads: reported numbers, and the figures that measure the same work.

mod directory; // membership service on LDAP (WSS)
mod exchange; // messaging server (WBT)
mod notifications; // notification service (WNS) and the runs of NotifyBC
mod sync; // merge replication (WMR)

use tocsin_capacity::{
    papers::{Paper, Verdict},
    plan,
};

use super::results::{FigureResult, Results};

/// Relative difference below which values count as equal.
const MARGIN: f64 = 0.02;

/// Published workload.
pub struct Workload {
    /// Name.
    pub name: &'static str,
    /// Description of the work.
    pub about: &'static str,
    /// Reported values, row by row.
    pub rows: &'static [Row],
    /// Differences between the published work and the figure; empty if there are none.
    pub differs: &'static str,
}

/// Reported value, and the figure of the same work.
pub struct Row {
    /// Reported quantity.
    pub what: &'static str,
    /// Value in the paper's words; empty if there is only a graph.
    pub reported: &'static str,
    /// Numeric value in the unit of the figure, if there is one.
    pub value: Option<f64>,
    /// Name of the figure; empty if there is none yet.
    pub figure: &'static str,
    /// Whether the row corresponds to the figure's peer.
    pub is_peer: bool,
}

/// Row with a number.
const fn row(what: &'static str, reported: &'static str, value: f64, figure: &'static str) -> Row {
    Row { what, reported, value: Some(value), figure, is_peer: false }
}

/// Row without a number: only a graph or words.
const fn graph(what: &'static str, reported: &'static str, figure: &'static str) -> Row {
    Row { what, reported, value: None, figure, is_peer: false }
}

/// Row without a number that corresponds to the figure's peer: the same work without the measured feature.
const fn peer_row(what: &'static str, reported: &'static str, figure: &'static str) -> Row {
    Row { what, reported, value: None, figure, is_peer: true }
}

/// Workloads of one paper.
pub struct Family {
    /// Title.
    pub title: &'static str,
    /// Machine of the paper's measurements.
    pub machine: &'static str,
    /// Workloads.
    pub workloads: &'static [Workload],
    /// Claims of the paper.
    pub claims: &'static [Claim],
}

/// Testable claim of a paper.
pub struct Claim {
    /// The claim as a sentence.
    pub said: &'static str,
    /// Test of the claim.
    pub test: Test,
}

/// Test of a claim against figures.
pub enum Test {
    /// The first figure is larger than the second by this factor.
    Larger(&'static str, &'static str, f64),
    /// Each figure is larger than the next.
    Falls(&'static [&'static str]),
    /// The figure is larger than its peer.
    LargerThanPeer(&'static str),
    /// The figure is not larger than its peer.
    NotLargerThanPeer(&'static str),
    /// The figure is at least this part of its peer.
    AtLeastOfPeer(&'static str, f64),
    /// The figure is this part of its peer.
    PartOfPeer(&'static str, f64),
    /// The paper contradicts itself, for this reason.
    Contradictory(&'static str),
    /// The statements of an example that `tocsin capacity --paper` checks.
    Arithmetic(&'static str, &'static [&'static str]),
    /// Not measured, for this reason.
    Open(&'static str),
}

/// Result of testing a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// The claim holds.
    Holds,
    /// The claim holds on a condition that the paper does not name.
    HoldsIf,
    /// The claim does not hold for these results.
    NoLongerHolds,
    /// The difference is below the margin.
    NoDifference,
    /// The paper contradicts itself.
    Contradictory,
    /// Not measured here.
    NotMeasured,
}

impl Answer {
    /// Text of the answer.
    pub fn word(self) -> &'static str {
        match self {
            Answer::Holds => "holds",
            Answer::HoldsIf => "holds if",
            Answer::NoLongerHolds => "no longer holds",
            Answer::NoDifference => "no clear difference",
            Answer::Contradictory => "contradictory in the paper",
            Answer::NotMeasured => "not measured",
        }
    }
}

/// All families.
pub static FAMILIES: [Family; 4] = [notifications::FAMILY, exchange::FAMILY, sync::FAMILY, directory::FAMILY];

/// Finds a workload by name, case-insensitively.
pub fn find(name: &str) -> Option<&'static Workload> {
    workloads().find(|workload| workload.name.eq_ignore_ascii_case(name))
}

/// All workloads, in the order of the papers.
pub fn workloads() -> impl Iterator<Item = &'static Workload> {
    FAMILIES.iter().flat_map(|family| family.workloads)
}

impl Workload {
    /// Names of the figures, without duplicates.
    pub fn figures(&self) -> Vec<&'static str> {
        let mut figures: Vec<&str> =
            self.rows.iter().map(|row| row.figure).filter(|figure| !figure.is_empty()).collect();
        figures.sort_unstable();
        figures.dedup();
        figures
    }
}

impl Row {
    /// Result for this row.
    pub fn measured(&self, results: &Results) -> Option<FigureResult> {
        let measured = results.get(self.figure)?.clone();
        if !self.is_peer {
            return Some(measured);
        }
        let value = measured.peer_value?;
        Some(FigureResult { value, low: value, high: value, ..measured })
    }
}

impl Claim {
    /// Tests the claim against results; returns the answer and its reason. Quick runs do not count.
    pub fn answer(&self, results: &Results) -> (Answer, String) {
        let line = |name: &str| results.get(name).filter(|measured| !measured.is_quick());
        let of = |name: &str| line(name).map(|measured| measured.value);
        let compare_with_peer =
            |name: &str, judged: &dyn Fn(f64) -> Answer| match line(name).and_then(|line| Some((line, line.ratio?))) {
                Some((line, ratio)) => {
                    let peer = line.peer.as_deref().unwrap_or("the peer");
                    (judged(ratio), format!("`{name}` is {ratio:.3} times {peer}"))
                }
                None => (Answer::NotMeasured, format!("needs `{name}` and its peer")),
            };
        match &self.test {
            Test::Larger(first, second, factor) => match of(first).zip(of(second)) {
                Some((left, right)) => {
                    (larger(left / right / factor), format!("`{first}` is {:.3} times `{second}`", left / right))
                }
                None => (Answer::NotMeasured, format!("needs `{first}` and `{second}`")),
            },
            Test::Falls(names) => match names.iter().map(|name| of(name)).collect::<Option<Vec<f64>>>() {
                Some(values) => {
                    let values_text: Vec<String> =
                        names.iter().zip(&values).map(|(name, value)| format!("`{name}` {value:.0}")).collect();
                    (falling(&values), values_text.join(", "))
                }
                None => (Answer::NotMeasured, format!("needs {}", names.join(", "))),
            },
            Test::LargerThanPeer(name) => compare_with_peer(name, &larger),
            Test::NotLargerThanPeer(name) => compare_with_peer(name, &|ratio| at_least(1.0 / ratio)),
            Test::AtLeastOfPeer(name, part) => compare_with_peer(name, &|ratio| at_least(ratio / part)),
            Test::PartOfPeer(name, part) => compare_with_peer(name, &|ratio| {
                if (ratio - part).abs() <= MARGIN { Answer::Holds } else { Answer::NoLongerHolds }
            }),
            Test::Contradictory(why) => (Answer::Contradictory, (*why).to_owned()),
            Test::Arithmetic(paper, said) => arithmetic(paper, said),
            Test::Open(why) => (Answer::NotMeasured, (*why).to_owned()),
        }
    }
}

/// Answer for a ratio that must be above 1.
fn larger(ratio: f64) -> Answer {
    if ratio >= 1.0 + MARGIN {
        Answer::Holds
    } else if ratio > 1.0 - MARGIN {
        Answer::NoDifference
    } else {
        Answer::NoLongerHolds
    }
}

/// Answer for a ratio that must not be below 1.
fn at_least(ratio: f64) -> Answer {
    if ratio >= 1.0 - MARGIN { Answer::Holds } else { Answer::NoLongerHolds }
}

/// Answer for a falling series. One increase contradicts; otherwise one pair within the margin leaves it open.
fn falling(values: &[f64]) -> Answer {
    let steps: Vec<Answer> = values.windows(2).map(|pair| larger(pair[0] / pair[1])).collect();
    let first = |wanted: Answer| steps.contains(&wanted).then_some(wanted);
    first(Answer::NoLongerHolds).or_else(|| first(Answer::NoDifference)).unwrap_or(Answer::Holds)
}

/// Evaluates these statements of an example.
fn arithmetic(paper: &str, said: &[&str]) -> (Answer, String) {
    let paper = Paper::find(paper).expect("claims name examples, as a test says");
    let (profile, vectors) = paper.read();
    let plan = plan(&profile, &vectors).expect("every example is planned, as a test says");
    let mut found = (paper.statements)(&plan);
    found.retain(|statement| said.contains(&statement.said));
    let is_any = |verdict: Verdict| found.iter().any(|statement| statement.verdict == verdict);
    let answer = if is_any(Verdict::Contradicts) {
        Answer::Contradictory
    } else if is_any(Verdict::HoldsIf) {
        Answer::HoldsIf
    } else {
        Answer::Holds
    };
    let computed: Vec<String> = found.into_iter().map(|statement| statement.computed).collect();
    (answer, format!("by `tocsin capacity --paper {}`: {}", paper.name, computed.join("; ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::ALL;

    #[test]
    fn every_workload_is_unique_and_its_figures_exist() {
        let mut names: Vec<&str> = workloads().map(|workload| workload.name).collect();
        let expected: Vec<String> = [("WNS", 22), ("NBC", 5), ("WBT", 9), ("WMR", 5), ("WSS", 9)]
            .iter()
            .flat_map(|(family, count)| (1..=*count).map(move |number| format!("{family}-{number:02}")))
            .collect();
        assert_eq!(names, expected);
        names.dedup();
        assert_eq!(names.len(), expected.len());
        let claims = FAMILIES.iter().flat_map(|family| family.claims).flat_map(|claim| match &claim.test {
            Test::Larger(first, second, _) => vec![*first, *second],
            Test::Falls(names) => names.to_vec(),
            Test::LargerThanPeer(name)
            | Test::NotLargerThanPeer(name)
            | Test::AtLeastOfPeer(name, _)
            | Test::PartOfPeer(name, _) => vec![*name],
            Test::Contradictory(_) | Test::Arithmetic(..) | Test::Open(_) => Vec::new(),
        });
        let used = workloads().flat_map(Workload::figures).chain(claims);
        let unknown: Vec<_> = used.filter(|figure| !ALL.iter().any(|bench| bench.name == *figure)).collect();
        assert!(unknown.is_empty(), "unknown figures: {unknown:?}");
    }

    fn line(name: &str, value: f64, conditions: &str) -> (String, FigureResult) {
        let line = serde_json::json!({
            "name": name, "unit": "x/s", "value": value, "low": value, "high": value, "conditions": conditions,
            "peer": "another", "peer_value": 100.0, "ratio": value / 100.0,
        });
        (name.to_owned(), serde_json::from_value(line).expect("a result"))
    }

    fn answer(test: Test, lines: impl IntoIterator<Item = (String, FigureResult)>) -> Answer {
        Claim { said: "", test }.answer(&lines.into_iter().collect()).0
    }

    #[test]
    fn claims_are_answered_by_quotable_figures() {
        let check = |lines: Vec<_>, expected: Answer| {
            assert_eq!(answer(Test::Falls(&["a", "b"]), lines), expected);
        };
        check(vec![line("a", 1.01, ""), line("b", 1.0, "")], Answer::NoDifference);
        check(vec![line("a", 1.0, ""), line("b", 1.01, "")], Answer::NoDifference);
        check(vec![line("a", 2.0, ""), line("b", 1.0, "")], Answer::Holds);
        check(vec![line("a", 1.0, ""), line("b", 2.0, "")], Answer::NoLongerHolds);
        check(vec![line("a", 2.0, "")], Answer::NotMeasured);
        check(vec![line("a", 2.0, "quick: nothing to quote"), line("b", 1.0, "")], Answer::NotMeasured);
    }

    #[test]
    fn a_claim_needs_a_difference_beyond_the_noise() {
        let check = |test: Test, value: f64, expected: Answer| {
            assert_eq!(answer(test, [line("a", value, ""), line("b", 100.0, "")]), expected, "{value}");
        };
        check(Test::Larger("a", "b", 1.5), 160.0, Answer::Holds);
        check(Test::Larger("a", "b", 1.5), 151.0, Answer::NoDifference);
        check(Test::Larger("a", "b", 1.5), 140.0, Answer::NoLongerHolds);
        check(Test::LargerThanPeer("a"), 110.0, Answer::Holds);
        check(Test::LargerThanPeer("a"), 99.0, Answer::NoDifference);
        check(Test::NotLargerThanPeer("a"), 101.0, Answer::Holds);
        check(Test::NotLargerThanPeer("a"), 110.0, Answer::NoLongerHolds);
        check(Test::AtLeastOfPeer("a", 0.76), 75.0, Answer::Holds);
        check(Test::AtLeastOfPeer("a", 0.76), 70.0, Answer::NoLongerHolds);
        check(Test::PartOfPeer("a", 0.86), 87.0, Answer::Holds);
        check(Test::PartOfPeer("a", 0.86), 100.0, Answer::NoLongerHolds);
        assert_eq!(falling(&[3.0, 2.99, 1.0, 1.5]), Answer::NoLongerHolds);
    }

    #[test]
    fn a_peer_row_has_the_value_of_the_peer() {
        let results: Results = [line("a", 90.0, "")].into_iter().collect();
        let value = |row: Row| row.measured(&results).map(|measured| measured.value);
        assert_eq!((value(graph("", "", "a")), value(peer_row("", "", "a"))), (Some(90.0), Some(100.0)));
    }

    #[test]
    fn arithmetic_claims_agree_with_the_examples() {
        for claim in FAMILIES.iter().flat_map(|family| family.claims) {
            let Test::Arithmetic(name, said) = claim.test else { continue };
            let paper = Paper::find(name).unwrap_or_else(|| panic!("unknown example {name}"));
            let (profile, vectors) = paper.read();
            let found = (paper.statements)(&plan(&profile, &vectors).expect("a plan"));
            for said in said {
                assert!(found.iter().any(|statement| statement.said == *said), "{name}: {said}");
            }
            let (answer, why) = claim.answer(&Results::new());
            let expected = if name == "peak" { Answer::HoldsIf } else { Answer::Holds };
            assert_eq!(answer, expected, "{why}");
        }
    }
}
