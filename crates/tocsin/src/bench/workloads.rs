//! The workloads that papers published, what they reported, and which of our figures is the same work.

mod directory; // WSS
mod exchange; // WBT
mod notifications; // WNS and the runs of NotifyBC
mod sync; // WMR

use tocsin_capacity::{
    papers::{Paper, Verdict},
    plan,
};

use super::results::{Measured, Results};

/// Differences below it are noise.
const MARGIN: f64 = 0.02;

/// A workload that was published.
pub struct Workload {
    /// Its name.
    pub name: &'static str,
    /// What is done.
    pub about: &'static str,
    /// What was reported, row by row.
    pub rows: &'static [Row],
    /// What differs between the published work and ours, if anything does.
    pub differs: &'static str,
}

/// Something reported, and our figure of the same.
pub struct Row {
    /// Of what.
    pub what: &'static str,
    /// In the paper's words; empty if there is only a graph.
    pub reported: &'static str,
    /// The number in it, in the unit of our figure, where there is one.
    pub value: Option<f64>,
    /// The name of our figure; empty if there is none yet.
    pub figure: &'static str,
    /// Whether the row is what ran beside that figure.
    pub beside: bool,
}

/// A row with a number.
const fn row(what: &'static str, reported: &'static str, value: f64, figure: &'static str) -> Row {
    Row { what, reported, value: Some(value), figure, beside: false }
}

/// A row of which there is only a graph, or words.
const fn graph(what: &'static str, reported: &'static str, figure: &'static str) -> Row {
    Row { what, reported, value: None, figure, beside: false }
}

/// A row of which there is only a graph, or words, and which is what ran beside our figure: the same work without what it
/// measures.
const fn beside(what: &'static str, reported: &'static str, figure: &'static str) -> Row {
    Row { what, reported, value: None, figure, beside: true }
}

/// A group of workloads, of one paper.
pub struct Family {
    /// What it is about.
    pub title: &'static str,
    /// On what it was measured.
    pub machine: &'static str,
    /// Its workloads.
    pub workloads: &'static [Workload],
    /// What it claims.
    pub claims: &'static [Claim],
}

/// A sentence that can be tested.
pub struct Claim {
    /// The sentence.
    pub said: &'static str,
    /// How it is answered.
    pub test: Test,
}

/// How a claim is answered.
pub enum Test {
    /// The first figure is larger than the second by this factor.
    Larger(&'static str, &'static str, f64),
    /// Each figure is larger than the next.
    Falls(&'static [&'static str]),
    /// The figure is larger than what ran beside it.
    LargerThanPeer(&'static str),
    /// The figure is no larger than what ran beside it.
    NotLargerThanPeer(&'static str),
    /// The figure is at least this part of what ran beside it.
    AtLeastOfPeer(&'static str, f64),
    /// The figure is this part of what ran beside it.
    PartOfPeer(&'static str, f64),
    /// The paper's own figures exclude each other.
    Contradictory(&'static str),
    /// These statements of an example, which `tocsin capacity --paper` checks.
    Arithmetic(&'static str, &'static [&'static str]),
    /// Not measured, for this reason.
    Open(&'static str),
}

/// How a claim is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// It does.
    Holds,
    /// It does, on a condition that the paper does not name.
    HoldsIf,
    /// It does not, here and now.
    NoLongerHolds,
    /// What it says differs does so by too little to tell.
    NoDifference,
    /// The paper's own figures exclude each other.
    Contradictory,
    /// Nobody has measured it here.
    NotMeasured,
}

impl Answer {
    /// In words.
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

/// All of them.
pub static FAMILIES: [Family; 4] = [notifications::FAMILY, exchange::FAMILY, sync::FAMILY, directory::FAMILY];

/// The workload of this name, in any case.
pub fn find(name: &str) -> Option<&'static Workload> {
    workloads().find(|workload| workload.name.eq_ignore_ascii_case(name))
}

/// Every workload, in the order of the papers.
pub fn workloads() -> impl Iterator<Item = &'static Workload> {
    FAMILIES.iter().flat_map(|family| family.workloads)
}

impl Workload {
    /// The names of our figures, each once.
    pub fn figures(&self) -> Vec<&'static str> {
        let mut figures: Vec<&str> =
            self.rows.iter().map(|row| row.figure).filter(|figure| !figure.is_empty()).collect();
        figures.sort_unstable();
        figures.dedup();
        figures
    }
}

impl Row {
    /// What we measured of it.
    pub fn measured(&self, results: &Results) -> Option<Measured> {
        let measured = results.get(self.figure)?.clone();
        if !self.beside {
            return Some(measured);
        }
        let value = measured.peer_value?;
        Some(Measured { value, low: value, high: value, ..measured })
    }
}

impl Claim {
    /// What figures say of it, and in which words. Figures of a quick run say nothing.
    pub fn answer(&self, results: &Results) -> (Answer, String) {
        let line = |name: &str| results.get(name).filter(|measured| !measured.is_quick());
        let of = |name: &str| line(name).map(|measured| measured.value);
        let beside =
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
                    let told: Vec<String> =
                        names.iter().zip(&values).map(|(name, value)| format!("`{name}` {value:.0}")).collect();
                    (falls(&values), told.join(", "))
                }
                None => (Answer::NotMeasured, format!("needs {}", names.join(", "))),
            },
            Test::LargerThanPeer(name) => beside(name, &larger),
            Test::NotLargerThanPeer(name) => beside(name, &|ratio| at_least(1.0 / ratio)),
            Test::AtLeastOfPeer(name, part) => beside(name, &|ratio| at_least(ratio / part)),
            Test::PartOfPeer(name, part) => beside(name, &|ratio| {
                if (ratio - part).abs() <= MARGIN { Answer::Holds } else { Answer::NoLongerHolds }
            }),
            Test::Contradictory(why) => (Answer::Contradictory, (*why).to_owned()),
            Test::Arithmetic(paper, said) => arithmetic(paper, said),
            Test::Open(why) => (Answer::NotMeasured, (*why).to_owned()),
        }
    }
}

/// Of a ratio that should be above 1.
fn larger(ratio: f64) -> Answer {
    if ratio >= 1.0 + MARGIN {
        Answer::Holds
    } else if ratio > 1.0 - MARGIN {
        Answer::NoDifference
    } else {
        Answer::NoLongerHolds
    }
}

/// Of a ratio that should not be below 1.
fn at_least(ratio: f64) -> Answer {
    if ratio >= 1.0 - MARGIN { Answer::Holds } else { Answer::NoLongerHolds }
}

/// One step up is enough to contradict; else one without a difference leaves it open.
fn falls(values: &[f64]) -> Answer {
    let steps: Vec<Answer> = values.windows(2).map(|pair| larger(pair[0] / pair[1])).collect();
    let first = |wanted: Answer| steps.contains(&wanted).then_some(wanted);
    first(Answer::NoLongerHolds).or_else(|| first(Answer::NoDifference)).unwrap_or(Answer::Holds)
}

/// What comes out of these statements of an example.
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
    use crate::bench::figures::ALL;

    #[test]
    fn every_workload_stands_once_and_names_figures_that_there_are() {
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
        assert!(unknown.is_empty(), "there are no figures {unknown:?}");
    }

    fn line(name: &str, value: f64, conditions: &str) -> (String, Measured) {
        let line = serde_json::json!({
            "name": name, "unit": "x/s", "value": value, "low": value, "high": value, "conditions": conditions,
            "peer": "another", "peer_value": 100.0, "ratio": value / 100.0,
        });
        (name.to_owned(), serde_json::from_value(line).expect("a result"))
    }

    fn answer(test: Test, lines: impl IntoIterator<Item = (String, Measured)>) -> Answer {
        Claim { said: "", test }.answer(&lines.into_iter().collect()).0
    }

    #[test]
    fn claims_are_answered_by_figures_that_may_be_quoted() {
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
        assert_eq!(falls(&[3.0, 2.99, 1.0, 1.5]), Answer::NoLongerHolds);
    }

    #[test]
    fn a_row_of_what_ran_beside_has_its_value() {
        let results: Results = [line("a", 90.0, "")].into_iter().collect();
        let value = |row: Row| row.measured(&results).map(|measured| measured.value);
        assert_eq!((value(graph("", "", "a")), value(beside("", "", "a"))), (Some(90.0), Some(100.0)));
    }

    #[test]
    fn arithmetic_is_that_of_the_examples() {
        for claim in FAMILIES.iter().flat_map(|family| family.claims) {
            let Test::Arithmetic(name, said) = claim.test else { continue };
            let paper = Paper::find(name).unwrap_or_else(|| panic!("there is no example {name}"));
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
