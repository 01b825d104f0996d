//! Architecture test of the ports: their facets stay small, and their methods take few parameters.

use std::{collections::BTreeMap, fs, path::Path};

/// Maximum number of methods of a facet.
const METHODS_MAX: usize = 18;
/// Maximum number of parameters of a method, apart from `self`; beyond it a method takes a struct with named fields.
const PARAMETERS_MAX: usize = 3;

/// Facets of a port by name; each with its methods, and each of these with its parameters.
type Facets = BTreeMap<String, Vec<(String, usize)>>;

/// Public traits in the folder of a port, read from the source.
fn facets(port: &str) -> Facets {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(port);
    let mut files = vec![source.with_extension("rs")];
    let folder = fs::read_dir(&source).expect("a folder");
    files.extend(folder.map(|entry| entry.expect("an entry").path()).filter(|path| path.extension().is_some()));
    files.iter().flat_map(|file| traits(&fs::read_to_string(file).expect("a source file"))).collect()
}

/// Public traits of a formatted source file: they begin with `pub trait` and end with `}` in the first column.
fn traits(source: &str) -> Facets {
    let mut found = Facets::new();
    for part in source.split("\npub trait ").skip(1) {
        let name: String = part.chars().take_while(|letter| letter.is_alphanumeric()).collect();
        let body = part.split("\n}").next().unwrap_or_default();
        let starts = body.match_indices("fn ").map(|(at, _)| body.split_at(at));
        let methods = starts.filter(|(before, _)| before.ends_with("\n    ") || before.ends_with("\n    async "));
        let methods = methods.map(|(_, method)| {
            let from = method.find('(').expect("parameters");
            (method["fn ".len()..from].to_owned(), parameters(&method[from..]))
        });
        found.insert(name, methods.collect());
    }
    found
}

/// Number of parameters of a signature that begins with `(`, without `self`.
fn parameters(signature: &str) -> usize {
    let (mut depth, mut count, mut is_empty) = (0, 0, true);
    for letter in signature.chars() {
        match letter {
            '(' | '<' | '[' => depth += 1,
            ')' | '>' | ']' => depth -= 1,
            ',' if depth == 1 => (count, is_empty) = (count + usize::from(!is_empty), true),
            letter if !letter.is_whitespace() => is_empty = false,
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    count + usize::from(!is_empty) - 1
}

fn check(port: &str, name: &str, facets_expected: usize) {
    let mut facets = facets(port);
    assert_eq!(facets.remove(name), Some(Vec::new()), "{name} adds no method to its facets");
    assert_eq!(facets.len(), facets_expected, "{:?}", facets.keys());
    for (facet, methods) in facets {
        assert!(!methods.is_empty(), "{facet} has no methods");
        assert!(methods.len() <= METHODS_MAX, "{facet} has {} methods", methods.len());
        for (method, parameters) in methods {
            assert!(parameters <= PARAMETERS_MAX, "{facet}::{method} has {parameters} parameters");
        }
    }
}

#[test]
fn facets_of_the_journal_are_small() {
    check("journal", "Journal", 14);
}

#[test]
fn facets_of_the_records_are_small() {
    check("records", "Records", 18);
}

#[test]
fn methods_and_parameters_are_counted() {
    let source = "
pub trait One: Send {
    /// Text (with, commas).
    fn none(&self) -> u64;
    async fn two(&self, first: Result<(u8, u8), u8>, second: &[u8; 32]) -> u8;
    async fn three(
        &self,
        first: u8,
        second: Option<&str>,
        third: u8,
    ) -> u8 {
        two(1, 2, 3)
    }
}

pub trait Two:
    One
    + Send
{
}
";
    let methods = ["none", "two", "three"].into_iter().map(str::to_owned).zip([0, 2, 3]).collect();
    assert_eq!(traits(source), Facets::from([("One".to_owned(), methods), ("Two".to_owned(), Vec::new())]));
}
