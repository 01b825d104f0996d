//! Published workloads: reported numbers, and the figures that measure the same work.

mod directory; // membership service on LDAP (WSS)
mod exchange; // messaging server (WBT)
mod notifications; // notification service (WNS) and the runs of NotifyBC
mod sync; // merge replication (WMR)

pub mod claim; // testable claim of a paper, and its answer by results
pub mod workload; // published workload: rows of reported values

use self::workload::{Family, Workload};

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

#[cfg(test)]
mod tests {
    use tocsin_capacity::{papers::Paper, plan};

    use super::{
        claim::{Answer, Test},
        *,
    };
    use crate::{figures::ALL, results::Results};

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
