//! Plural categories of numbers, by the rules of the CLDR (UTS 35, part 3, section 5) as `icu_plurals` has them.

use fixed_decimal::Decimal;
use icu_locale_core::Locale;
use icu_plurals::{PluralCategory, PluralRuleType, PluralRules, PluralRulesOptions};

/// All categories.
pub const CATEGORIES: [&str; 6] = ["zero", "one", "two", "few", "many", "other"];

/// The category of a number in a language. The number is given as digits such as `-1234.5`.
pub fn category(locale: &Locale, kind: PluralRuleType, plain: &str) -> &'static str {
    let options = PluralRulesOptions::default().with_type(kind);
    let rules = PluralRules::try_new(locale.into(), options).expect("the rules of all languages are compiled in");
    // A text that is not a number is in no range.
    let category = Decimal::try_from_str(plain).map_or(PluralCategory::Other, |number| rules.category_for(&number));
    match category {
        PluralCategory::Zero => "zero",
        PluralCategory::One => "one",
        PluralCategory::Two => "two",
        PluralCategory::Few => "few",
        PluralCategory::Many => "many",
        PluralCategory::Other => "other",
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
            ("ar", "0 zero, 1 one, 2 two, 3 few, 11 many, 100 other, 103 few, 1000000000000000000000 other"),
            ("sl", "1 one, 2 two, 3 few, 5 other, 101 one"),
            ("cs", "1 one, 2 few, 5 other, 1.5 many"),
            ("ja", "0 other, 1 other"),
            ("lv", "0 zero, 1 one, 2 other, 21 one"),
            ("de-AT", "-1 one, -2 other"),
            // Without data of its own: as in English.
            ("tlh", "1 one, 2 other, x other"),
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
        let places = |locale| ["1", "2", "3", "4", "11", "21", "112"].map(|n| LocaleData::of(Some(locale)).ordinal(n));
        assert_eq!(places("en"), ["one", "two", "few", "other", "other", "one", "other"]);
        assert_eq!(places("bg"), ["one", "two", "few", "few", "other", "one", "other"]);
    }
}
