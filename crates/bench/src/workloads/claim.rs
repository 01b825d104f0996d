//! Testable claim of a paper, and its answer by results.

use tocsin_capacity::{
    papers::{Paper, Verdict},
    plan,
};

use crate::results::Results;

/// Relative difference below which values count as equal.
const MARGIN: f64 = 0.02;

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

/// Claim of a family.
pub const fn claim(said: &'static str, test: Test) -> Claim {
    Claim { said, test }
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
    use crate::results::{FigureResult, line_of as line};

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
}
