//! Holds the language of the repository to the word list in `testdata/prose/words.txt`.
//!
//! The list has the number of lines that may still contain a phrase. A higher count fails, and so does a lower one, so
//! that
//! the list follows.

mod support;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

/// Places shown for one phrase.
const SHOWN_MAX: usize = 10;

/// A phrase of the word list.
struct Rule {
    kind: Kind,
    phrase: Vec<String>,
    lines_max: usize,
    replacement: String,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Word,
    Opening,
    Type,
}

fn rules() -> Vec<Rule> {
    let text = fs::read_to_string(support::repository("testdata/prose/words.txt")).expect("the word list");
    let rule = |line: &str| {
        let fields: Vec<&str> = line.split('\t').collect();
        let [kind, phrase, lines_max, replacement] = fields[..] else {
            panic!("four fields separated by tabs: {line}")
        };
        let kind = match kind {
            "word" => Kind::Word,
            "opening" => Kind::Opening,
            "type" => Kind::Type,
            other => panic!("`{other}` is not a kind: {line}"),
        };
        let phrase = match kind {
            Kind::Word => phrase.split(' ').map(str::to_lowercase).collect(),
            Kind::Opening | Kind::Type => vec![phrase.to_owned()],
        };
        let lines_max = lines_max.parse().unwrap_or_else(|_| panic!("`{lines_max}` is not a number: {line}"));
        Rule { kind, phrase, lines_max, replacement: replacement.to_owned() }
    };
    text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).map(rule).collect()
}

/// Source files and documents, without generated and downloaded ones.
fn files() -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders: Vec<PathBuf> =
        ["crates", "clients", "docs", "examples", "fuzz", "scripts"].map(support::repository).into();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
            let path = entry.expect("an entry").path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if path.is_dir() {
                if !matches!(&*name, "node_modules" | "target" | "dist" | "corpus" | "suites" | "samples") {
                    folders.push(path);
                }
            } else if matches!(path.extension().and_then(|end| end.to_str()), Some("rs" | "ts" | "md" | "yml" | "yaml"))
            {
                files.push(path);
            }
        }
    }
    files.extend(["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md"].map(support::repository));
    files.sort();
    files
}

/// The words of a line, in lower case.
fn words(line: &str) -> Vec<String> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    line.split(|c| !is_part(c)).filter(|word| !word.is_empty()).map(str::to_lowercase).collect()
}

/// The first word of a documentation comment that begins on this line.
fn opening<'a>(line: &'a str, before: &str) -> Option<&'a str> {
    let comment = |line: &'a str| {
        let line = line.trim_start();
        line.strip_prefix("///").or_else(|| line.strip_prefix("//!"))
    };
    let is_inside = before.trim_start().starts_with("///") || before.trim_start().starts_with("//!");
    comment(line).filter(|_| !is_inside)?.split_whitespace().next()
}

/// The name of the type that a line defines.
fn type_name(line: &str) -> Option<&str> {
    let mut words = line.split(|c: char| !(c.is_alphanumeric() || c == '_')).filter(|word| !word.is_empty());
    words.find(|word| matches!(*word, "struct" | "enum" | "trait" | "type"))?;
    words.next()
}

fn has(rule: &Rule, line: &str, before: &str, words: &[String]) -> bool {
    match rule.kind {
        Kind::Word => words.windows(rule.phrase.len()).any(|part| part == rule.phrase),
        Kind::Opening => opening(line, before) == Some(&rule.phrase[0]),
        Kind::Type => type_name(line) == Some(&rule.phrase[0]),
    }
}

#[test]
fn the_word_list_is_followed() {
    let rules = rules();
    let mut found: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    let root = support::repository("");
    for path in files() {
        let Ok(text) = fs::read_to_string(&path) else { continue };
        let shown = path.strip_prefix(&root).unwrap_or(Path::new(&path)).display().to_string();
        let mut before = "";
        for (number, line) in text.lines().enumerate() {
            let words = words(line);
            for (at, rule) in rules.iter().enumerate() {
                if has(rule, line, before, &words) {
                    found.entry(at).or_default().push(format!("{shown}:{}: {}", number + 1, line.trim()));
                }
            }
            before = line;
        }
    }
    let mut failures = String::new();
    for (at, rule) in rules.iter().enumerate() {
        let places = found.remove(&at).unwrap_or_default();
        if places.len() != rule.lines_max {
            let phrase = rule.phrase.join(" ");
            failures += &format!(
                "`{phrase}`: {} lines, the list allows {}; write instead: {}\n",
                places.len(),
                rule.lines_max,
                rule.replacement
            );
            if places.len() > rule.lines_max {
                places.iter().take(SHOWN_MAX).for_each(|place| failures += &format!("  {place}\n"));
            }
        }
    }
    assert!(failures.is_empty(), "{failures}the list is testdata/prose/words.txt");
}

#[test]
fn each_kind_is_recognised() {
    let rule = |kind, phrase: &[&str]| Rule {
        kind,
        phrase: phrase.iter().map(|word| (*word).to_owned()).collect(),
        lines_max: 0,
        replacement: String::new(),
    };
    let check = |rule: &Rule, line: &str, before: &str| has(rule, line, before, &words(line));
    let phrase = rule(Kind::Word, &["quick", "fox"]);
    assert!(check(&phrase, "// The quick fox.", "") && !check(&phrase, "// A quick brown fox, quickfox", ""));
    let first = rule(Kind::Opening, &["Fox"]);
    assert!(
        check(&first, "    /// Fox first.", "")
            && !check(&first, "    /// Fox second.", "    /// The")
            && !check(&first, "// Fox", "")
    );
    let name = rule(Kind::Type, &["Fox"]);
    assert!(
        check(&name, "pub struct Fox {", "")
            && !check(&name, "pub struct Foxes;", "")
            && !check(&name, "let x: Fox = 1;", "")
    );
}
