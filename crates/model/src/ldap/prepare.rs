//! String preparation for comparisons: RFC 4518, with the space handling of its section 2.6.

use std::borrow::Cow;

use icu_normalizer::{ComposingNormalizerBorrowed, DecomposingNormalizerBorrowed};

/// Preparation of a string, by matching rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Form {
    /// Ignores case.
    CaseIgnore,
    /// Lines separated by `$`; ignores case. A substring lies within one line.
    CaseIgnoreList,
    /// Respects case.
    CaseExact,
    /// Ignores spaces.
    Numeric,
    /// Ignores case, spaces and hyphens.
    Telephone,
    /// No preparation.
    Octets,
}

/// The parts of a substring assertion, at least one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parts {
    /// Prefix of the string.
    pub first: Option<String>,
    /// Inner parts, in order.
    pub middle: Vec<String>,
    /// Suffix of the string.
    pub last: Option<String>,
}

impl Parts {
    /// From the texts between asterisks; one more than there are asterisks. The first and the last may be empty.
    pub fn between_stars(mut parts: Vec<String>) -> Parts {
        let given = |text: Option<String>| text.filter(|text| !text.is_empty());
        let last = given(parts.pop());
        let mut parts = parts.into_iter();
        Parts { first: given(parts.next()), middle: parts.collect(), last }
    }

    /// The same, prepared.
    pub fn prepared(&self, form: Form) -> Parts {
        Parts {
            first: self.first.as_ref().map(|text| part(text, form, SubstringPosition::First)),
            middle: self.middle.iter().map(|text| part(text, form, SubstringPosition::Middle)).collect(),
            last: self.last.as_ref().map(|text| part(text, form, SubstringPosition::Last)),
        }
    }

    /// Whether a prepared string contains them in this order, without overlap.
    pub fn fit(&self, text: &str) -> bool {
        let Some(rest) = text.strip_prefix(self.first.as_deref().unwrap_or_default()) else { return false };
        let Some(mut rest) = rest.strip_suffix(self.last.as_deref().unwrap_or_default()) else { return false };
        for part in &self.middle {
            let Some(at) = rest.find(&**part) else { return false };
            rest = &rest[at + part.len()..];
        }
        true
    }
}

/// Position of a substring within the string.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SubstringPosition {
    First,
    Middle,
    Last,
}

/// Prepares a value or a non-substring assertion: one space at both ends, two for each inner run.
pub fn whole(text: &str, form: Form) -> String {
    match form {
        Form::Octets => text.to_owned(),
        Form::Numeric | Form::Telephone => bare(text, form),
        // Prepared texts have no line ends, so that no substring goes over the end of a line.
        Form::CaseIgnoreList => {
            let lines = text.split('$').map(|line| whole(&postal_line(line), Form::CaseIgnore));
            lines.collect::<Vec<_>>().join("\n")
        }
        Form::CaseIgnore | Form::CaseExact => {
            let mapped = mapped(text, form);
            let mut out = String::with_capacity(mapped.len() + 2);
            let mut words = mapped.split(' ').filter(|word| !word.is_empty());
            out.push(' ');
            if let Some(word) = words.next() {
                out.push_str(word);
            }
            for word in words {
                out.push_str("  ");
                out.push_str(word);
            }
            out.push(' ');
            out
        }
    }
}

/// Prepares a substring: a space at an end of the whole string, and one for a run at another end.
fn part(text: &str, form: Form, place: SubstringPosition) -> String {
    match form {
        Form::Octets => text.to_owned(),
        Form::Numeric | Form::Telephone => bare(text, form),
        Form::CaseIgnoreList => part(text, Form::CaseIgnore, place),
        Form::CaseIgnore | Form::CaseExact => {
            let mapped = mapped(text, form);
            let inner = mapped.trim_matches(' ');
            if inner.is_empty() {
                return " ".to_owned();
            }
            let mut out = String::with_capacity(mapped.len() + 2);
            if place == SubstringPosition::First || mapped.starts_with(' ') {
                out.push(' ');
            }
            out.push_str(&inner.split(' ').filter(|word| !word.is_empty()).collect::<Vec<_>>().join("  "));
            if place == SubstringPosition::Last || mapped.ends_with(' ') {
                out.push(' ');
            }
            out
        }
    }
}

/// A line of a postal address, in which `\24` stands for a dollar sign and `\5C` for a backslash: RFC 4517, 3.3.28.
pub fn postal_line(line: &str) -> Cow<'_, str> {
    if !line.contains('\\') {
        return Cow::Borrowed(line);
    }
    let mut out = String::with_capacity(line.len());
    let mut rest = line;
    while let Some((before, after)) = rest.split_once('\\') {
        out.push_str(before);
        let (sign, length) = match after.get(..2) {
            Some("24") => ('$', 2),
            Some(code) if code.eq_ignore_ascii_case("5c") => ('\\', 2),
            // A backslash that is not part of an escape stands for itself.
            _ => ('\\', 0),
        };
        out.push(sign);
        rest = &after[length..];
    }
    out.push_str(rest);
    Cow::Owned(out)
}

/// Letters and digits only, without case and accents.
pub fn approximate(text: &str) -> String {
    let folded = fold(text);
    let decomposed = DecomposingNormalizerBorrowed::new_nfkd().normalize(&folded);
    decomposed.chars().filter(|c| c.is_alphanumeric()).collect()
}

/// The words of a string, prepared without case.
pub fn words(text: &str) -> Vec<String> {
    let mapped = mapped(text, Form::CaseIgnore);
    mapped.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

fn bare(text: &str, form: Form) -> String {
    let is_hyphen = |c| matches!(c, '-' | '\u{58a}' | '\u{2010}' | '\u{2011}' | '\u{2212}' | '\u{fe63}' | '\u{ff0d}');
    let falls = |c: &char| *c == ' ' || form == Form::Telephone && is_hyphen(*c);
    mapped(text, form).chars().filter(|c| !falls(c)).collect()
}

/// RFC 4518, 2.2 and 2.3: drops invisible characters, unifies spaces, folds case, and normalizes.
fn mapped(text: &str, form: Form) -> Cow<'_, str> {
    let folds = matches!(form, Form::CaseIgnore | Form::CaseIgnoreList | Form::Telephone);
    if text.is_ascii() {
        let plain = |byte: u8| (b' '..0x7f).contains(&byte) && !(folds && byte.is_ascii_uppercase());
        if text.bytes().all(plain) {
            return Cow::Borrowed(text);
        }
        let mapped = text.chars().filter_map(map);
        return Cow::Owned(if folds { mapped.map(|c| c.to_ascii_lowercase()).collect() } else { mapped.collect() });
    }
    let normalizer = ComposingNormalizerBorrowed::new_nfkc();
    let mapped: String = text.chars().filter_map(map).collect();
    let mut normal = normalizer.normalize(&if folds { fold(&mapped) } else { mapped }).into_owned();
    if folds {
        // Normalization may reveal letters of either case.
        normal = normalizer.normalize(&fold(&normal)).into_owned();
    }
    Cow::Owned(normal)
}

/// Upper case first, so that `ß` is `ss` and both forms of sigma are one.
fn fold(text: &str) -> String {
    text.chars().flat_map(char::to_uppercase).flat_map(char::to_lowercase).collect()
}

fn map(c: char) -> Option<char> {
    match c {
        '\t'..='\r' | '\u{85}' => Some(' '),
        '\u{a0}'
        | '\u{1680}'
        | '\u{2000}'..='\u{200a}'
        | '\u{2028}'
        | '\u{2029}'
        | '\u{202f}'
        | '\u{205f}'
        | '\u{3000}' => Some(' '),
        '\0'..='\u{1f}' | '\u{7f}'..='\u{9f}' => None,
        '\u{ad}' | '\u{34f}' | '\u{6dd}' | '\u{70f}' | '\u{1806}' | '\u{180b}'..='\u{180e}' => None,
        '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2063}' | '\u{206a}'..='\u{206f}' => None,
        '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{fff9}'..='\u{fffc}' => None,
        '\u{1d173}'..='\u{1d17a}' | '\u{e0001}' | '\u{e0020}'..='\u{e007f}' => None,
        c => Some(c),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spaces_count_as_rfc_4518_says() {
        for (text, expected) in [("foo bar  ", " foo  bar "), ("", "  "), ("   ", "  "), ("a\t\u{a0}b", " a  b ")] {
            assert_eq!(whole(text, Form::CaseIgnore), expected, "{text:?}");
        }
        let check = |place, expected: &str| assert_eq!(part("foo bar  ", Form::CaseIgnore, place), expected);
        check(SubstringPosition::First, " foo  bar ");
        check(SubstringPosition::Middle, "foo  bar ");
        check(SubstringPosition::Last, "foo  bar ");
        assert_eq!(part("  ", Form::CaseExact, SubstringPosition::Middle), " ");
    }

    #[test]
    fn letters_are_one_in_all_their_forms() {
        let same = |one: &str, other: &str| {
            assert_eq!(whole(one, Form::CaseIgnore), whole(other, Form::CaseIgnore), "{one} {other}");
        };
        same("STRASSE", "straße");
        same("ΣΊΣΥΦΟΣ", "σίσυφος");
        same("cafe\u{301}", "CAFÉ");
        same("ﬁle", "FILE");
        same("K", "\u{212a}");
        same("soft\u{ad}hyphen", "softhyphen");
        assert_ne!(whole("a", Form::CaseExact), whole("A", Form::CaseExact));
        assert_eq!(whole("+43 1-234", Form::Telephone), "+431234");
        assert_eq!(whole("12 34", Form::Numeric), "1234");
        assert_eq!(approximate("Zoë O'Brien-Müller"), "zoeobrienmuller");
        assert_eq!(words("Fire & Rescue: night-shift"), ["fire", "rescue", "night", "shift"]);
    }
}
