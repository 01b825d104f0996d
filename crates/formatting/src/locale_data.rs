//! Locale data: formats of numbers, money, dates and times. The source is the Unicode CLDR
//! (`data/README.md`); numeric dates always have the full year.

use std::{
    collections::{BTreeMap, HashMap},
    fmt::Write,
    sync::LazyLock,
};

use icu_locale_core::{Locale, locale};
use icu_plurals::PluralRuleType;
use jiff::civil::{Date, Time, Weekday};
use serde::Deserialize;

use crate::plural;

/// The data of one language, and of its region where that matters.
#[derive(Debug, Deserialize)]
pub struct LocaleData {
    /// The decimal separator.
    decimal: char,
    /// The grouping separator.
    group: char,
    /// Digits of the first group, of the others, and the least number of digits before the first group.
    groups: [usize; 3],
    minus: String,
    /// Patterns in which `#,##0` and `#,##0.00` stand for the number and `¤` for the currency.
    percent: String,
    money: String,
    /// The symbols of currencies, by their codes; others use the code.
    currencies: BTreeMap<String, String>,
    months: [String; 12],
    months_short: [String; 12],
    /// Starting on Monday.
    days: [String; 7],
    days_short: [String; 7],
    /// Before and after noon.
    halves: [String; 2],
    date_short: String,
    date_medium: String,
    date_long: String,
    date_full: String,
    time_short: String,
    time_medium: String,
    /// From `minute.past` to the pattern of each plural category.
    relative: BTreeMap<String, BTreeMap<String, String>>,
    /// The language of the plural rules.
    #[serde(skip, default = "fallback_locale")]
    locale: Locale,
}

/// By the tag in lower case; `""` is the fallback.
static LANGUAGES: LazyLock<HashMap<String, LocaleData>> = LazyLock::new(|| {
    let read: HashMap<String, LocaleData> = serde_json::from_str(include_str!("../data/cldr.json"))
        .expect("the file of languages was written by its script");
    let mut languages: HashMap<String, LocaleData> =
        read.into_iter().map(|(tag, data)| (tag.to_ascii_lowercase(), data.with_locale(&tag))).collect();
    languages.insert(String::new(), LocaleData::unknown());
    languages
});

impl LocaleData {
    /// The data of a BCP 47 language tag. Without one, or for an unknown language: English words with ISO 8601 dates.
    pub fn of(locale: Option<&str>) -> &'static LocaleData {
        static UNKNOWN: LazyLock<&LocaleData> = LazyLock::new(|| &LANGUAGES[""]);
        let Some(locale) = locale else { return &UNKNOWN };
        let tag = locale.to_ascii_lowercase();
        crate::locale::truncations(&tag)
            .find_map(|tag| LANGUAGES.get(cldr_parent(tag)).or_else(|| LANGUAGES.get(tag)))
            .unwrap_or(&UNKNOWN)
    }

    fn unknown() -> LocaleData {
        let english = FALLBACK_LANGUAGE;
        let mut read: HashMap<String, LocaleData> =
            serde_json::from_str(include_str!("../data/cldr.json")).expect("as above");
        let mut locale_data = read.remove(english).expect("English is one of the languages");
        let iso = || "y-MM-dd".to_owned();
        locale_data.date_short = iso();
        locale_data.date_medium = iso();
        locale_data.date_long = iso();
        locale_data.date_full = "EEEE, y-MM-dd".to_owned();
        locale_data.time_short = "HH:mm".to_owned();
        locale_data.time_medium = "HH:mm:ss".to_owned();
        locale_data
    }

    fn with_locale(self, tag: &str) -> LocaleData {
        LocaleData { locale: Locale::try_from_str(tag).expect("a tag of the CLDR"), ..self }
    }

    /// Formats a date. `form` is `short`, `medium`, `long` or `full`; `None` for any other.
    pub fn date(&self, date: Date, form: &str) -> Option<String> {
        let pattern = match form {
            "short" => &self.date_short,
            "medium" => &self.date_medium,
            "long" => &self.date_long,
            "full" => &self.date_full,
            _ => return None,
        };
        Some(self.by_pattern(pattern, date, Time::midnight()))
    }

    /// Formats hours and minutes, and seconds if requested.
    pub fn time(&self, time: Time, seconds: bool) -> String {
        let pattern = if seconds { &self.time_medium } else { &self.time_short };
        self.by_pattern(pattern, Date::constant(2000, 1, 1), time)
    }

    /// Formats by a CLDR pattern (UTS 35, part 4); only the letters of our data are supported.
    fn by_pattern(&self, pattern: &str, date: Date, time: Time) -> String {
        let mut out = String::with_capacity(24);
        let mut letters = pattern.chars().peekable();
        while let Some(letter) = letters.next() {
            if letter == '\'' {
                out.extend(letters.by_ref().take_while(|next| *next != '\''));
                continue;
            }
            let mut width = 1;
            while letters.next_if_eq(&letter).is_some() {
                width += 1;
            }
            let month = date.month().unsigned_abs() as usize - 1;
            let day = match date.weekday() {
                Weekday::Sunday => 6,
                day => day.to_monday_zero_offset() as usize,
            };
            let half_day = (time.hour() + 11) % 12 + 1;
            let _ = match (letter, width) {
                ('y', 2) => write!(out, "{:02}", date.year().rem_euclid(100)),
                ('y', _) => write!(out, "{}", date.year()),
                // The era: of the languages of our data, only Thai writes it.
                ('G', _) => out.write_str(if date.year() > 0 { "ค.ศ." } else { "ก่อน ค.ศ." }),
                ('M' | 'L', 1) => write!(out, "{}", month + 1),
                ('M' | 'L', 2) => write!(out, "{:02}", month + 1),
                ('M' | 'L', 3) => write!(out, "{}", self.months_short[month]),
                ('M' | 'L', _) => write!(out, "{}", self.months[month]),
                ('d', 1) => write!(out, "{}", date.day()),
                ('d', _) => write!(out, "{:02}", date.day()),
                ('E', 1..=3) => write!(out, "{}", self.days_short[day]),
                ('E', _) => write!(out, "{}", self.days[day]),
                ('H', 1) => write!(out, "{}", time.hour()),
                ('H', _) => write!(out, "{:02}", time.hour()),
                ('h', 1) => write!(out, "{half_day}"),
                ('h', _) => write!(out, "{half_day:02}"),
                ('m', _) => write!(out, "{:02}", time.minute()),
                ('s', _) => write!(out, "{:02}", time.second()),
                ('a' | 'b' | 'B', _) => write!(out, "{}", self.halves[usize::from(time.hour() >= 12)]),
                _ => {
                    out.extend(std::iter::repeat_n(letter, width));
                    Ok(())
                }
            };
        }
        out
    }

    /// Formats a number, given as digits such as `-1234.5`, with this language's separators.
    pub fn number(&self, plain: String) -> String {
        let whole = plain.find('.').unwrap_or(plain.len());
        if whole < self.groups[0] + self.groups[2]
            && (whole == plain.len() || self.decimal == '.')
            && !plain.starts_with('-')
        {
            return plain;
        }
        self.insert_separators(&plain)
    }

    fn insert_separators(&self, plain: &str) -> String {
        let (sign, digits) = plain.strip_prefix('-').map_or(("", plain), |digits| (self.minus.as_str(), digits));
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        let [first, others, least] = self.groups;
        let grouped = whole.len() >= first + least;
        let mut out = String::with_capacity(plain.len() + plain.len() / 2);
        out.push_str(sign);
        for (at, digit) in whole.chars().enumerate() {
            let left = whole.len() - at;
            if grouped && at > 0 && (left == first || left > first && (left - first).is_multiple_of(others)) {
                out.push(self.group);
            }
            out.push(digit);
        }
        if !fraction.is_empty() {
            out.push(self.decimal);
            out.push_str(fraction);
        }
        out
    }

    /// Formats a percentage, given in digits.
    pub fn percent(&self, plain: &str) -> String {
        self.fill_pattern(&self.percent, plain, "")
    }

    /// Formats an amount of a currency, given by its ISO 4217 code in capitals.
    pub fn money(&self, plain: &str, code: &str) -> String {
        let symbol = self.currencies.get(code).map_or(code, String::as_str);
        // A code that touches the digits would read as one word.
        let apart = symbol.ends_with(|c: char| c.is_alphabetic()) && self.money.starts_with("¤#");
        let symbol = if apart { format!("{symbol}\u{a0}") } else { symbol.to_owned() };
        self.fill_pattern(&self.money, plain, &symbol)
    }

    /// Fills a pattern with number and currency; the sign comes first.
    fn fill_pattern(&self, pattern: &str, plain: &str, symbol: &str) -> String {
        let is_number = |c: char| matches!(c, '#' | '0' | ',' | '.');
        let start = pattern.find(is_number).unwrap_or(pattern.len());
        let end = pattern.rfind(is_number).map_or(pattern.len(), |at| at + 1);
        let (sign, digits) = plain.strip_prefix('-').map_or(("", plain), |digits| (self.minus.as_str(), digits));
        let (before, after) = (&pattern[..start], &pattern[end..]);
        let put = |text: &str| text.replace('¤', symbol);
        format!("{sign}{}{}{}", put(before), self.insert_separators(digits), put(after))
    }

    /// The cardinal plural category of a number, given as digits such as `-1234.5`: `one`, `few`, `other`.
    pub fn plural(&self, plain: &str) -> &'static str {
        plural::category(&self.locale, PluralRuleType::Cardinal, plain)
    }

    /// The ordinal plural category: first, second, third.
    pub fn ordinal(&self, plain: &str) -> &'static str {
        plural::category(&self.locale, PluralRuleType::Ordinal, plain)
    }

    /// Formats a time difference in seconds (negative: in the future): `5 minutes ago`, `in 2 days`.
    pub fn relative(&self, seconds: i64) -> String {
        const UNITS: [(&str, i64); 7] = [
            ("year", 31_556_952),
            ("month", 2_629_746),
            ("week", 604_800),
            ("day", 86_400),
            ("hour", 3_600),
            ("minute", 60),
            ("second", 1),
        ];
        let size = seconds.unsigned_abs() as i64;
        // Below two weeks, days are more precise.
        let fits = |(unit, length): &&(&str, i64)| size >= *length && !(*unit == "week" && size < 2 * 604_800);
        let (unit, length) = UNITS.iter().find(fits).unwrap_or(&("second", 1));
        let count = (size / length).to_string();
        let way = if seconds < 0 { "past" } else { "future" };
        let sentences = &self.relative[&format!("{unit}.{way}")];
        let sentence = sentences.get(self.plural(&count)).or_else(|| sentences.get("other"));
        sentence.map(|sentence| sentence.replace("{0}", &self.insert_separators(&count))).unwrap_or_default()
    }
}

const FALLBACK_LANGUAGE: &str = "en";

fn fallback_locale() -> Locale {
    locale!("en")
}

/// The parent of a tag that is not its truncation (CLDR parent locales).
fn cldr_parent(tag: &str) -> &str {
    let region = |rest: &'_ str| rest.split('-').next().map_or(0, str::len);
    match tag.split_once('-').map(|(language, rest)| (language, &rest[..region(rest)])) {
        Some(("en", region)) if !matches!(region, "us" | "as" | "gu" | "mh" | "mp" | "pr" | "um" | "vi" | "ph") => {
            if ENGLISH_TAGS_OF_CLDR.contains(&tag) {
                tag
            } else {
                "en-001"
            }
        }
        Some((
            "es",
            "ar" | "bo" | "br" | "bz" | "cl" | "co" | "cr" | "cu" | "do" | "ec" | "gt" | "hn" | "ni" | "pa" | "pe"
            | "pr" | "py" | "sv" | "us" | "uy" | "ve",
        )) => "es-419",
        Some(("pt", region)) if region != "br" => "pt-pt",
        Some(("zh", "tw" | "hk" | "mo")) => "zh-hant",
        Some(("no", _)) => "nb",
        None if tag == "no" => "nb",
        _ => tag,
    }
}

const ENGLISH_TAGS_OF_CLDR: [&str; 7] = ["en-au", "en-ca", "en-gb", "en-ie", "en-in", "en-nz", "en-za"];

/// The number of fraction digits of a currency (ISO 4217).
pub fn fraction_digits(code: &str) -> usize {
    match code {
        "BIF" | "CLP" | "DJF" | "GNF" | "ISK" | "JPY" | "KMF" | "KRW" | "PYG" | "RWF" | "UGX" | "UYI" | "VND"
        | "VUV" | "XAF" | "XOF" | "XPF" => 0,
        "BHD" | "IQD" | "JOD" | "KWD" | "LYD" | "OMR" | "TND" => 3,
        "CLF" | "UYW" => 4,
        _ => 2,
    }
}
