//! How a language writes numbers, money, dates and times, and which plural a number takes. The data is that of the
//! Unicode CLDR (`data/README.md`); its dates in digits always have the whole year.

use std::{
    collections::{BTreeMap, HashMap},
    fmt::Write,
    sync::LazyLock,
};

use jiff::civil::{Date, Time, Weekday};
use serde::Deserialize;

use crate::plural::Rules;

/// The customs of one language, and of its region where that matters.
#[derive(Debug, Deserialize)]
pub struct Customs {
    /// Between whole and fraction.
    decimal: char,
    /// Between groups of digits.
    group: char,
    /// Digits of the first group, of the others, and how many digits must stand before the first group.
    groups: [usize; 3],
    minus: String,
    /// Patterns in which `#,##0` and `#,##0.00` stand for the number and `¤` for the currency.
    percent: String,
    money: String,
    /// What readers call a currency, by its code; others go by the code.
    currencies: BTreeMap<String, String>,
    months: [String; 12],
    months_short: [String; 12],
    /// From Monday.
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
    /// `minute.past` to the sentence of each plural.
    relative: BTreeMap<String, BTreeMap<String, String>>,
    plural: Rules,
    ordinal: Rules,
}

/// By the tag in lower case; `""` is for readers whose language we do not know.
static LANGUAGES: LazyLock<HashMap<String, Customs>> = LazyLock::new(|| {
    let read: HashMap<String, Customs> = serde_json::from_str(include_str!("../data/cldr.json"))
        .expect("the file of languages was written by its script");
    let mut languages: HashMap<String, Customs> =
        read.into_iter().map(|(tag, customs)| (tag.to_ascii_lowercase(), customs)).collect();
    languages.insert(String::new(), Customs::unknown());
    languages
});

impl Customs {
    /// The customs of a language tag of BCP 47. Without one, or for a language we do not know: English words with dates
    /// of ISO 8601.
    pub fn of(locale: Option<&str>) -> &'static Customs {
        static UNKNOWN: LazyLock<&Customs> = LazyLock::new(|| &LANGUAGES[""]);
        let Some(locale) = locale else { return &UNKNOWN };
        let tag = locale.to_ascii_lowercase();
        crate::locale::truncations(&tag)
            .find_map(|tag| LANGUAGES.get(relative_of(tag)).or_else(|| LANGUAGES.get(tag)))
            .unwrap_or(&UNKNOWN)
    }

    fn unknown() -> Customs {
        let english = LANGUAGE_OF_LAST_RESORT;
        let mut read: HashMap<String, Customs> =
            serde_json::from_str(include_str!("../data/cldr.json")).expect("as above");
        let mut customs = read.remove(english).expect("English is one of the languages");
        let iso = || "y-MM-dd".to_owned();
        customs.date_short = iso();
        customs.date_medium = iso();
        customs.date_long = iso();
        customs.date_full = "EEEE, y-MM-dd".to_owned();
        customs.time_short = "HH:mm".to_owned();
        customs.time_medium = "HH:mm:ss".to_owned();
        customs
    }

    /// A date. `form` is `short`, `medium`, `long` or `full`; `None` for any other.
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

    /// Hours and minutes, and seconds if they are wanted.
    pub fn time(&self, time: Time, seconds: bool) -> String {
        let pattern = if seconds { &self.time_medium } else { &self.time_short };
        self.by_pattern(pattern, Date::constant(2000, 1, 1), time)
    }

    /// Writes by a pattern of CLDR (UTS 35, part 4), of which only the letters of our data are known.
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

    /// A number whose digits are given as `-1234.5`, with this language's separators.
    pub fn number(&self, plain: String) -> String {
        let whole = plain.find('.').unwrap_or(plain.len());
        if whole < self.groups[0] + self.groups[2]
            && (whole == plain.len() || self.decimal == '.')
            && !plain.starts_with('-')
        {
            return plain;
        }
        self.separated(&plain)
    }

    fn separated(&self, plain: &str) -> String {
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

    /// A share as a percentage; the digits are those of the percentage.
    pub fn percent(&self, plain: &str) -> String {
        self.filled(&self.percent, plain, "")
    }

    /// An amount of a currency, by its code of ISO 4217 in capitals.
    pub fn money(&self, plain: &str, code: &str) -> String {
        let symbol = self.currencies.get(code).map_or(code, String::as_str);
        // A code that touches the digits would read as one word.
        let apart = symbol.ends_with(|c: char| c.is_alphabetic()) && self.money.starts_with("¤#");
        let symbol = if apart { format!("{symbol}\u{a0}") } else { symbol.to_owned() };
        self.filled(&self.money, plain, &symbol)
    }

    /// A pattern with its number and its currency; the sign comes first.
    fn filled(&self, pattern: &str, plain: &str, symbol: &str) -> String {
        let is_number = |c: char| matches!(c, '#' | '0' | ',' | '.');
        let start = pattern.find(is_number).unwrap_or(pattern.len());
        let end = pattern.rfind(is_number).map_or(pattern.len(), |at| at + 1);
        let (sign, digits) = plain.strip_prefix('-').map_or(("", plain), |digits| (self.minus.as_str(), digits));
        let (before, after) = (&pattern[..start], &pattern[end..]);
        let put = |text: &str| text.replace('¤', symbol);
        format!("{sign}{}{}{}", put(before), self.separated(digits), put(after))
    }

    /// The plural category of a number whose digits are given as `-1234.5`: `one`, `few`, `other`.
    pub fn plural<'a>(&'a self, plain: &str) -> &'a str {
        self.plural.category(plain)
    }

    /// The category of a place in a row: first, second, third.
    pub fn ordinal<'a>(&'a self, plain: &str) -> &'a str {
        self.ordinal.category(plain)
    }

    /// A time as seen from another, so many seconds later (negative: earlier): `5 minutes ago`, `in 2 days`.
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
        // Days say more than weeks do until there are two of them.
        let fits = |(unit, length): &&(&str, i64)| size >= *length && !(*unit == "week" && size < 2 * 604_800);
        let (unit, length) = UNITS.iter().find(fits).unwrap_or(&("second", 1));
        let count = (size / length).to_string();
        let way = if seconds < 0 { "past" } else { "future" };
        let sentences = &self.relative[&format!("{unit}.{way}")];
        let sentence = sentences.get(self.plural(&count)).or_else(|| sentences.get("other"));
        sentence.map(|sentence| sentence.replace("{0}", &self.separated(&count))).unwrap_or_default()
    }
}

const LANGUAGE_OF_LAST_RESORT: &str = "en";

/// Tags whose customs are those of another that is no truncation of theirs (the parent locales of CLDR).
fn relative_of(tag: &str) -> &str {
    let region = |rest: &'_ str| rest.split('-').next().map_or(0, str::len);
    match tag.split_once('-').map(|(language, rest)| (language, &rest[..region(rest)])) {
        Some(("en", region)) if !matches!(region, "us" | "as" | "gu" | "mh" | "mp" | "pr" | "um" | "vi" | "ph") => {
            if LANGUAGES_OF_ENGLISH.contains(&tag) {
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

const LANGUAGES_OF_ENGLISH: [&str; 7] = ["en-au", "en-ca", "en-gb", "en-ie", "en-in", "en-nz", "en-za"];

/// How many digits a currency has after the mark (ISO 4217).
pub fn fraction_digits(code: &str) -> usize {
    match code {
        "BIF" | "CLP" | "DJF" | "GNF" | "ISK" | "JPY" | "KMF" | "KRW" | "PYG" | "RWF" | "UGX" | "UYI" | "VND"
        | "VUV" | "XAF" | "XOF" | "XPF" => 0,
        "BHD" | "IQD" | "JOD" | "KWD" | "LYD" | "OMR" | "TND" => 3,
        "CLF" | "UYW" => 4,
        _ => 2,
    }
}
