//! How a language writes numbers and dates. German and English in full; for others the separators and a numeric date.

use jiff::civil::{Date, Time};

/// The customs of one language, and of its region where that matters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Customs {
    /// Between whole and fraction.
    pub decimal: char,
    /// Between groups of three digits.
    pub group: char,
    order: Order,
    separator: char,
    months: Option<&'static [&'static str; 12]>,
    /// The mark after the day where the month is a word: `21. November`.
    day_mark: &'static str,
    /// Hours from 1 to 12 with AM and PM.
    half_days: bool,
}

/// What a date in digits begins with.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Order {
    Day,
    Month,
    Year,
}

const ENGLISH: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const GERMAN: [&str; 12] = [
    "Januar",
    "Februar",
    "März",
    "April",
    "Mai",
    "Juni",
    "Juli",
    "August",
    "September",
    "Oktober",
    "November",
    "Dezember",
];
/// In Austria the year begins with Jänner.
const AUSTRIAN: [&str; 12] = [
    "Jänner",
    "Februar",
    "März",
    "April",
    "Mai",
    "Juni",
    "Juli",
    "August",
    "September",
    "Oktober",
    "November",
    "Dezember",
];

/// A narrow space that does not break.
const THIN: char = '\u{202f}';

impl Customs {
    /// The customs of a language tag of BCP 47. Without one, or for a language we do not know: English words with dates
    /// of ISO 8601 where no word is asked for.
    pub fn of(locale: Option<&str>) -> Customs {
        let tag = locale.unwrap_or_default().to_ascii_lowercase();
        let mut subtags = tag.split('-');
        let language = subtags.next().unwrap_or_default();
        // A region is two letters or three digits; scripts and variants are longer.
        let region =
            subtags.find(|subtag| subtag.len() == 2 || subtag.len() == 3 && subtag.as_bytes()[0].is_ascii_digit());
        let base = Customs {
            decimal: '.',
            group: ',',
            order: Order::Year,
            separator: '-',
            months: None,
            day_mark: "",
            half_days: false,
        };
        let day_first = |decimal, group, separator| Customs { decimal, group, order: Order::Day, separator, ..base };
        match (language, region) {
            ("en", None | Some("us")) => {
                Customs { order: Order::Month, separator: '/', months: Some(&ENGLISH), half_days: true, ..base }
            }
            ("en", Some("ca")) => Customs { months: Some(&ENGLISH), half_days: true, ..base },
            ("en", Some("za")) => Customs { months: Some(&ENGLISH), separator: '/', ..base },
            ("en", Some("au" | "nz" | "in" | "ph" | "pk")) => {
                Customs { months: Some(&ENGLISH), half_days: true, ..day_first('.', ',', '/') }
            }
            ("en", _) => Customs { months: Some(&ENGLISH), ..day_first('.', ',', '/') },
            ("de", Some("at")) => Customs { months: Some(&AUSTRIAN), day_mark: ".", ..day_first(',', '\u{a0}', '.') },
            ("de", Some("ch" | "li")) => Customs { months: Some(&GERMAN), day_mark: ".", ..day_first('.', '’', '.') },
            ("de", _) => Customs { months: Some(&GERMAN), day_mark: ".", ..day_first(',', '.', '.') },
            ("fr", _) => day_first(',', THIN, '/'),
            ("es", Some("mx" | "us" | "419")) => day_first('.', ',', '/'),
            ("es" | "it" | "pt" | "id" | "vi" | "el", _) => day_first(',', '.', '/'),
            ("nl", _) => day_first(',', '.', '-'),
            ("da" | "tr" | "sl" | "hr" | "ro", _) => day_first(',', '.', '.'),
            ("pl" | "cs" | "sk" | "fi" | "nb" | "no" | "nn" | "ru" | "uk" | "bg", _) => day_first(',', '\u{a0}', '.'),
            ("sv", _) => Customs { decimal: ',', group: '\u{a0}', ..base },
            ("hu" | "lt", _) => Customs { decimal: ',', group: '\u{a0}', ..base },
            ("ja" | "zh", _) => Customs { separator: '/', ..base },
            _ => base,
        }
    }

    /// A date in digits.
    pub fn short_date(&self, date: Date) -> String {
        let (year, month, day, mark) = (date.year(), date.month(), date.day(), self.separator);
        match self.order {
            Order::Year => format!("{year:04}{mark}{month:02}{mark}{day:02}"),
            Order::Day => format!("{day:02}{mark}{month:02}{mark}{year:04}"),
            Order::Month => format!("{month}{mark}{day}{mark}{year:04}"),
        }
    }

    /// A date with the month as a word, or in digits for a language whose words we do not know.
    pub fn long_date(&self, date: Date) -> String {
        let Some(months) = self.months else { return self.short_date(date) };
        let (year, month, day) = (date.year(), months[date.month().unsigned_abs() as usize - 1], date.day());
        match self.order {
            Order::Month => format!("{month} {day}, {year}"),
            _ => format!("{day}{} {month} {year}", self.day_mark),
        }
    }

    /// Hours and minutes.
    pub fn time(&self, time: Time) -> String {
        let (hour, minute) = (time.hour(), time.minute());
        if self.half_days {
            let half = if hour < 12 { "AM" } else { "PM" };
            format!("{}:{minute:02} {half}", (hour + 11) % 12 + 1)
        } else {
            format!("{hour:02}:{minute:02}")
        }
    }

    /// A number whose digits are given as `-1234.5`, with this language's separators.
    pub fn number(&self, plain: &str) -> String {
        let (sign, digits) = plain.strip_prefix('-').map_or(("", plain), |digits| ("-", digits));
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        let mut out = String::from(sign);
        for (at, digit) in whole.chars().enumerate() {
            if at > 0 && (whole.len() - at).is_multiple_of(3) {
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
}
