//! Required literals of a regular expression: it is only run on texts that contain one of them.

use regex_syntax::hir::{Class, Hir, HirKind};

use crate::{filter::condition::Case, text::fold};

/// Longest literal.
const BYTES_MAX: usize = 64;

/// Required literals, not empty: every text with a match contains one of them; at most so many. `Folded` ones are
/// lower-cased, and so must be the text. `None` if there are none.
pub fn required(expression: &Hir, most: usize) -> Option<(Case, Vec<String>)> {
    let kept = needed(expression, most, Case::Sensitive);
    let folded = needed(expression, most, Case::Folded);
    let least =
        |texts: &Option<Vec<String>>| texts.as_ref().and_then(|texts| texts.iter().map(String::len).min()).unwrap_or(0);
    // Folding has a cost, so it must give longer literals.
    if least(&folded) > least(&kept) {
        folded.map(|texts| (Case::Folded, texts))
    } else {
        kept.map(|texts| (Case::Sensitive, texts))
    }
}

fn needed(expression: &Hir, most: usize, case: Case) -> Option<Vec<String>> {
    match expression.kind() {
        HirKind::Capture(capture) => needed(&capture.sub, most, case),
        HirKind::Repetition(repetition) if repetition.min > 0 => needed(&repetition.sub, most, case),
        HirKind::Alternation(branches) => {
            let mut all = Vec::new();
            for branch in branches {
                all.extend(needed(branch, most, case)?);
            }
            all.sort_unstable();
            all.dedup();
            (all.len() <= most).then_some(all)
        }
        HirKind::Concat(parts) => {
            let (mut best, mut run) = (None, String::new());
            let mut consider = |texts: Vec<String>| {
                let worth = |texts: &Vec<String>| (texts.iter().map(String::len).min(), usize::MAX - texts.len());
                if best.as_ref().is_none_or(|best| worth(&texts) > worth(best)) {
                    best = Some(texts);
                }
            };
            for part in parts {
                match exactly(part, case) {
                    Some(text) => run.push_str(&text),
                    None => {
                        if !run.is_empty() {
                            consider(vec![std::mem::take(&mut run)]);
                        }
                        needed(part, most, case).into_iter().for_each(&mut consider);
                    }
                }
            }
            if !run.is_empty() {
                consider(vec![run]);
            }
            best.map(|texts| texts.into_iter().map(shortened).collect())
        }
        _ => exactly(expression, case).filter(|text| !text.is_empty()).map(|text| vec![shortened(text)]),
    }
}

/// The only text that an expression matches; with `Folded`, after lower-casing.
fn exactly(expression: &Hir, case: Case) -> Option<String> {
    match (expression.kind(), case) {
        (HirKind::Literal(literal), _) => {
            let text = std::str::from_utf8(&literal.0).ok()?;
            Some(match case {
                Case::Sensitive => text.to_owned(),
                Case::Folded => fold(text).into_owned(),
            })
        }
        (HirKind::Class(Class::Unicode(class)), Case::Folded) => {
            // A letter in either case: a class whose members all lower-case to the same.
            let letters = class.iter().map(|range| (range.end() as u32 - range.start() as u32) as usize + 1);
            if letters.sum::<usize>() > 4 {
                return None;
            }
            let mut lowered = class
                .iter()
                .flat_map(|range| range.start()..=range.end())
                .map(|letter| fold(letter.encode_utf8(&mut [0; 4])).into_owned());
            let first = lowered.next()?;
            lowered.all(|other| other == first).then_some(first)
        }
        (HirKind::Capture(capture), _) => exactly(&capture.sub, case),
        _ => None,
    }
}

fn shortened(mut text: String) -> String {
    while text.len() > BYTES_MAX {
        text.pop();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(expression: &str, expected: Option<(Case, &[&str])>) {
        let hir = regex_syntax::parse(expression).expect("an expression");
        let found = required(&hir, 4);
        let expected = expected.map(|(case, texts)| (case, texts.iter().map(|text| (*text).to_owned()).collect()));
        assert_eq!(found, expected, "{expression}");
    }

    #[test]
    fn expressions_have_required_literals() {
        check("closure", Some((Case::Sensitive, &["closure"])));
        check("^road (closure|repair)s?$", Some((Case::Sensitive, &["closure", "repair"])));
        check("(fire|flood) in [0-9]+", Some((Case::Sensitive, &[" in "])));
        check("(wildfire|flooding) in [0-9]+", Some((Case::Sensitive, &["flooding", "wildfire"])));
        check("(?i)vancouver", Some((Case::Folded, &["vancouver"])));
        check("(?i)Åland", Some((Case::Folded, &["åland"])));
        check("(?i)closure", Some((Case::Folded, &["clo"])));
        check("(ab)+c", Some((Case::Sensitive, &["ab"])));
        check("a{2,5}", Some((Case::Sensitive, &["a"])));
        check("(abc)*", None);
        check("[a-z]+", None);
        check("(a|b|c|d|e)x", Some((Case::Sensitive, &["x"])));
        check("foo|.*", None);
        check("", None);
        check("foo|", None);
    }

    #[test]
    fn every_match_contains_a_required_literal() {
        let expressions =
            ["(?i)kiel", "(?i)straße|gasse", "(?i)ΣΑΣ", "(?i:a)B(?i:c)", "x(ab|cd)+y", "é{2}|è", "(?i)ſtein"];
        let texts = [
            "Kiel",
            "\u{212a}iel",
            "STRASSE",
            "STRAẞE",
            "straße",
            "GAſſE",
            "gasse",
            "σας",
            "ΣΑΣ",
            "σασ",
            "aBC",
            "abc",
            "xabcdy",
            "éé",
            "è",
            "stein",
            "ſtein",
            "STEIN",
        ];
        for expression in expressions {
            let regex = regex::Regex::new(expression).expect("an expression");
            let hir = regex_syntax::parse(expression).expect("an expression");
            let Some((case, needles)) = required(&hir, 8) else { continue };
            for text in texts.iter().filter(|text| regex.is_match(text)) {
                let seen = if case == Case::Folded { fold(text).into_owned() } else { (*text).to_owned() };
                assert!(needles.iter().any(|needle| seen.contains(needle)), "{expression} {text} {needles:?}");
            }
        }
    }
}
