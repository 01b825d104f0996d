//! Error recovery after YAML syntax errors: the section with the error is left out, so that the others are checked.

use crate::{
    definition::document::{self, Node},
    problem::{Code, Problem},
};

/// Sections that are left out at most.
const SECTIONS_MAX: usize = 8;

/// A document without the sections that are not YAML.
pub struct Recovered {
    /// The root.
    pub root: Node,
    /// Names of the sections that were left out.
    pub left_out: Vec<String>,
}

/// Parses a text. After a syntax error, the section of the top level in which it is found is left out, or the one
/// before it, as a bracket that is not closed is found later. The positions of all other nodes are those in the text.
/// `None` if the text has other errors, or nothing remains.
pub fn parse(text: &str, problems: &mut Vec<Problem>) -> Option<Recovered> {
    let (mut rest, mut left_out) = (text.to_owned(), Vec::new());
    loop {
        let mut found = Vec::new();
        let root = document::parse(&rest, &mut found);
        let error = syntax_error(&found);
        problems.extend(found);
        if let Some(root) = root {
            return Some(Recovered { root, left_out });
        }
        if left_out.len() == SECTIONS_MAX {
            return None;
        }
        let at = section_at(&rest, error?)?;
        let before = at.checked_sub(1).and_then(|above| section_at(&rest, above as u32 + 1));
        let candidates = std::iter::once(at).chain(before).filter_map(|start| without_section(&rest, start));
        // The first of those without which the text can be read the furthest.
        let best = candidates.map(|(name, rest)| (readable_lines(&rest), name, rest));
        let best = best.reduce(|best, other| if other.0 > best.0 { other } else { best });
        let (_, name, blanked) = best?;
        left_out.push(name);
        rest = blanked;
    }
}

/// The line of a syntax error.
fn syntax_error(found: &[Problem]) -> Option<u32> {
    found.iter().find(|problem| problem.code == Code::InvalidSyntax).and_then(|problem| problem.line)
}

/// The number of lines before the first syntax error.
fn readable_lines(text: &str) -> u32 {
    let mut found = Vec::new();
    match document::parse(text, &mut found) {
        Some(_) => u32::MAX,
        None => syntax_error(&found).unwrap_or(0),
    }
}

/// The index of the line on which the section of a line begins.
fn section_at(text: &str, line: u32) -> Option<usize> {
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let last = (line as usize).min(lines.len()).checked_sub(1)?;
    (0..=last).rev().find(|at| section(lines[*at]).is_some())
}

/// The text with a section replaced by blanks, and the name of the section.
fn without_section(text: &str, start: usize) -> Option<(String, String)> {
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let name = section(lines.get(start)?)?.to_owned();
    // Without its name, nothing can be said about an application.
    if name == "application" {
        return None;
    }
    let end = (start + 1..lines.len()).find(|at| section(lines[*at]).is_some()).unwrap_or(lines.len());
    let blank = |line: &str| line.chars().map(|c| if c == '\n' || c == '\r' { c } else { ' ' }).collect::<String>();
    let rest = lines.iter().enumerate().map(|(at, line)| match (start..end).contains(&at) {
        true => blank(line),
        false => (*line).to_owned(),
    });
    Some((name, rest.collect()))
}

/// The name of the section that begins on a line.
fn section(line: &str) -> Option<&str> {
    let (name, _) = line.split_once(':')?;
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    (!name.is_empty() && name.chars().all(is_name)).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, left_out: &[&str], lines: &[u32]) {
        let mut problems = Vec::new();
        let recovered = parse(text, &mut problems).unwrap_or_else(|| panic!("{problems:?}"));
        assert_eq!(recovered.left_out, left_out, "{problems:?}");
        let found: Vec<u32> = problems.iter().filter_map(|problem| problem.line).collect();
        assert_eq!(found, lines, "{problems:?}");
    }

    #[test]
    fn the_section_of_a_syntax_error_is_left_out() {
        check("application: a\nevents: { b: 1 }\n", &[], &[]);
        check("application: a\nevents:\n  b: 1\n c: 2\nrules: { d: 1 }\n", &["events"], &[4]);
        let both = "application: a\nevents:\n  b: 1\n c: 2\nchannels: { c: 1 }\nrules:\n  d: 'x' y\n";
        check(both, &["events", "rules"], &[4, 7]);
        let mut problems = Vec::new();
        let open = "application: a\nevents: { b: { c: 1 }\nchannels: { c: 1 }\nrules: { d: 1 }\n";
        let found = parse(open, &mut problems).expect("recovered");
        assert_eq!((found.left_out, problems.len()), (vec!["events".to_owned()], 1), "{problems:?}");
    }

    #[test]
    fn the_positions_of_the_rest_are_kept() {
        let text = "application: ä\nevents:\n  b: 1\n c: ü\nrules: { d: 1 }\n";
        let root = parse(text, &mut Vec::new()).expect("recovered").root;
        let rules = root.get("rules").expect("kept");
        assert_eq!(rules.line, 5);
        let written: String = text.chars().skip(rules.start).take(rules.end - rules.start).collect();
        assert!(written.starts_with("{ d: 1 }"), "{written}");
    }

    #[test]
    fn a_text_without_a_name_is_not_recovered() {
        for text in ["application: [\n", "application: a\n---\nb: 1\n", "", "- a\n- [\n"] {
            let mut problems = Vec::new();
            assert!(parse(text, &mut problems).is_none(), "{text}");
            assert!(!problems.is_empty(), "{text}");
        }
    }
}
