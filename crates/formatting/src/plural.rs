//! Plural rules of CLDR (UTS 35, part 3, section 5): select the plural category of a number.

use std::collections::BTreeMap;

use serde::Deserialize;

/// The rules of a language, cardinal or ordinal.
#[derive(Debug, Deserialize)]
#[serde(try_from = "BTreeMap<String, String>")]
pub struct Rules(Vec<(String, Condition)>);

/// A disjunction of conjunctions.
type Condition = Vec<Vec<Relation>>;

/// `i mod 10 in 2..4,7`.
#[derive(Debug)]
struct Relation {
    operand: u8,
    modulus: Option<u64>,
    negated: bool,
    ranges: Vec<(u64, u64)>,
}

/// The operands of plural rules: `n` is the number in digits, `i` its integer part, `v` and `w` the number of fraction
/// digits with and without trailing zeros, `f` and `t` those digits. Compact numbers do not occur, so `e` is 0.
struct Operands {
    is_whole: bool,
    i: u64,
    v: u64,
    w: u64,
    f: u64,
    t: u64,
}

/// The category that every language has.
const OTHER: &str = "other";
/// All categories.
pub const CATEGORIES: [&str; 6] = ["zero", "one", "two", "few", "many", OTHER];

impl Rules {
    /// The category of a number, given as digits such as `-1234.5`.
    pub fn category(&self, plain: &str) -> &str {
        let operands = Operands::of(plain);
        let holds = |condition: &Condition| condition.iter().any(|all| all.iter().all(|one| one.holds(&operands)));
        self.0.iter().find(|(_, condition)| holds(condition)).map_or(OTHER, |(category, _)| category)
    }
}

impl TryFrom<BTreeMap<String, String>> for Rules {
    type Error = String;

    fn try_from(texts: BTreeMap<String, String>) -> Result<Rules, String> {
        let read = |text: &str| text.split(" or ").map(|all| all.split(" and ").map(relation).collect()).collect();
        let rules = texts.into_iter().map(|(category, text)| match read(&text) {
            Some(condition) => Ok((category, condition)),
            None => Err(format!("`{text}` is not a plural rule")),
        });
        rules.collect::<Result<_, _>>().map(Rules)
    }
}

fn relation(text: &str) -> Option<Relation> {
    let mut words = text.split_whitespace();
    let operand = *words.next()?.as_bytes().first()?;
    let (mut modulus, mut negated) = (None, false);
    loop {
        match words.next()? {
            "mod" => modulus = Some(words.next()?.parse().ok()?),
            "not" => negated = true,
            "in" => break,
            _ => return None,
        }
    }
    let range = |text: &str| match text.split_once("..") {
        Some((least, most)) => Some((least.parse().ok()?, most.parse().ok()?)),
        None => text.parse().ok().map(|only| (only, only)),
    };
    let ranges = words.next()?.split(',').map(range).collect::<Option<_>>()?;
    words.next().is_none().then_some(Relation { operand, modulus, negated, ranges })
}

impl Relation {
    fn holds(&self, operands: &Operands) -> bool {
        let (value, is_whole) = match self.operand {
            b'n' => (operands.i, operands.is_whole),
            b'i' => (operands.i, true),
            b'v' => (operands.v, true),
            b'w' => (operands.w, true),
            b'f' => (operands.f, true),
            b't' => (operands.t, true),
            _ => (0, true),
        };
        let value = self.modulus.map_or(value, |modulus| value % modulus.max(1));
        // A number with a fraction is in no range.
        let within = is_whole && self.ranges.iter().any(|(least, most)| (*least..=*most).contains(&value));
        within != self.negated
    }
}

impl Operands {
    fn of(plain: &str) -> Operands {
        let digits = plain.trim_start_matches('-');
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        let short = fraction.trim_end_matches('0');
        // For a number too long for an integer, the last digits decide: it is plural in any language.
        let last = |digits: &str| digits[digits.len().saturating_sub(18)..].parse().unwrap_or(0);
        Operands {
            is_whole: short.is_empty(),
            i: last(whole),
            v: fraction.len() as u64,
            w: short.len() as u64,
            f: last(fraction),
            t: last(short),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::locale_data::LocaleData;

    #[test]
    fn languages_have_their_plurals() {
        for (locale, numbers) in [
            ("en", "0 other, 1 one, 2 other, 1.0 other, 1.5 other"),
            ("fr", "0 one, 1 one, 1.5 one, 2 other, 1000000 many"),
            ("pl", "1 one, 2 few, 5 many, 12 many, 22 few, 25 many, 1.5 other"),
            ("ru", "1 one, 3 few, 5 many, 11 many, 21 one, 111 many, 1.5 other"),
            ("ar", "0 zero, 1 one, 2 two, 3 few, 11 many, 100 other, 103 few"),
            ("sl", "1 one, 2 two, 3 few, 5 other, 101 one"),
            ("cs", "1 one, 2 few, 5 other, 1.5 many"),
            ("ja", "0 other, 1 other"),
            ("lv", "0 zero, 1 one, 2 other, 21 one"),
        ] {
            let found: Vec<String> = numbers
                .split(", ")
                .map(|case| {
                    let number = case.split(' ').next().unwrap_or_default();
                    format!("{number} {}", LocaleData::of(Some(locale)).plural(number))
                })
                .collect();
            assert_eq!(found.join(", "), numbers, "{locale}");
        }
        let places: Vec<&str> =
            ["1", "2", "3", "4", "11", "21", "112"].map(|n| LocaleData::of(Some("en")).ordinal(n)).to_vec();
        assert_eq!(places, ["one", "two", "few", "other", "other", "one", "other"]);
    }
}
