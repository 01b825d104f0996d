//! The workloads that papers published, what they reported, and which of our figures is the same work.

mod directory; // WSS
mod exchange; // WBT
mod notifications; // WNS and the runs of NotifyBC
mod sync; // WMR

use super::results::Results;

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
}

/// A row with a number.
const fn row(what: &'static str, reported: &'static str, value: f64, figure: &'static str) -> Row {
    Row { what, reported, value: Some(value), figure }
}

/// A row of which there is only a graph, or words.
const fn graph(what: &'static str, reported: &'static str, figure: &'static str) -> Row {
    Row { what, reported, value: None, figure }
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
    /// The paper's own figures exclude each other.
    Contradictory(&'static str),
    /// Arithmetic, which `tocsin capacity --paper` checks.
    Arithmetic(&'static str),
    /// Not measured yet.
    Open,
}

/// How a claim is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// It does.
    Holds,
    /// It does not, here and now.
    NoLongerHolds,
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
            Answer::NoLongerHolds => "no longer holds",
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

impl Claim {
    /// What figures say of it, and in which words. Figures of a quick run say nothing.
    pub fn answer(&self, results: &Results) -> (Answer, String) {
        let of = |name: &str| results.get(name).filter(|measured| !measured.is_quick()).map(|measured| measured.value);
        match &self.test {
            Test::Larger(first, second, factor) => match of(first).zip(of(second)) {
                Some((left, right)) => {
                    (judged(left > right * factor), format!("`{first}` is {:.3} times `{second}`", left / right))
                }
                None => (Answer::NotMeasured, format!("needs `{first}` and `{second}`")),
            },
            Test::Falls(names) => match names.iter().map(|name| of(name)).collect::<Option<Vec<f64>>>() {
                Some(values) => {
                    let told: Vec<String> =
                        names.iter().zip(&values).map(|(name, value)| format!("`{name}` {value:.0}")).collect();
                    (judged(values.is_sorted_by(|left, right| left > right)), told.join(", "))
                }
                None => (Answer::NotMeasured, format!("needs {}", names.join(", "))),
            },
            Test::Contradictory(why) => (Answer::Contradictory, (*why).to_owned()),
            Test::Arithmetic(why) => (Answer::Holds, (*why).to_owned()),
            Test::Open => (Answer::NotMeasured, String::new()),
        }
    }
}

fn judged(is_so: bool) -> Answer {
    if is_so { Answer::Holds } else { Answer::NoLongerHolds }
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
            _ => Vec::new(),
        });
        let used = workloads().flat_map(Workload::figures).chain(claims);
        let unknown: Vec<_> = used.filter(|figure| !ALL.iter().any(|bench| bench.name == *figure)).collect();
        assert!(unknown.is_empty(), "there are no figures {unknown:?}");
    }

    #[test]
    fn claims_are_answered_by_figures_that_may_be_quoted() {
        let line = |name: &str, value: f64, conditions: &str| {
            let line = serde_json::json!({"name": name, "unit": "x/s", "value": value, "low": value, "high": value, "conditions": conditions});
            (name.to_owned(), serde_json::from_value(line).expect("a result"))
        };
        let check = |lines: Vec<_>, expected: Answer| {
            let claim = Claim { said: "", test: Test::Falls(&["a", "b"]) };
            let results: Results = lines.into_iter().collect();
            assert_eq!(claim.answer(&results).0, expected);
        };
        check(vec![line("a", 2.0, ""), line("b", 1.0, "")], Answer::Holds);
        check(vec![line("a", 1.0, ""), line("b", 2.0, "")], Answer::NoLongerHolds);
        check(vec![line("a", 2.0, "")], Answer::NotMeasured);
        check(vec![line("a", 2.0, "quick: nothing to quote"), line("b", 1.0, "")], Answer::NotMeasured);
    }
}
