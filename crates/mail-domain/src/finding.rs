use serde::Serialize;
use tocsin_connect::dns::LookupError;

/// Severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// Good.
    Ok,
    /// Optional, or not known.
    Info,
    /// Mail is accepted today, but with less protection or by some receivers only.
    Warn,
    /// Receivers reject mail or mark it as spam, or bounces do not arrive; or the lookup failed.
    Fail,
}

/// A DNS record to publish.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Record {
    /// Absolute name, with a final dot.
    pub name: String,
    /// Type, such as `TXT`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// Data in the form of zone files (RFC 1035, section 5.1). A text longer than 255 bytes is several strings.
    pub value: String,
}

/// Result of a check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Severity.
    pub level: Level,
    /// The check: `sender`, `spf`, `dkim`, `dmarc`, `alignment`, `reverse_dns`, `mx`, `mta_sts` or `tls_rpt`.
    pub check: &'static str,
    /// Name or address that was checked.
    pub subject: String,
    /// Observation.
    pub text: String,
    /// Source of the requirement.
    pub source: &'static str,
    /// Advice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
    /// Records to publish, in place of those of the same name and type that the text names.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub publish: Vec<Record>,
}

/// Makes the findings of one check about one subject.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Check<'a> {
    pub name: &'static str,
    pub subject: &'a str,
}

impl Check<'_> {
    fn finding(self, level: Level, source: &'static str, text: impl Into<String>) -> Finding {
        let (text, subject) = (text.into(), self.subject.to_owned());
        Finding { level, check: self.name, subject, text, source, advice: None, publish: Vec::new() }
    }

    pub fn ok(self, source: &'static str, text: impl Into<String>) -> Finding {
        self.finding(Level::Ok, source, text)
    }

    pub fn info(self, source: &'static str, text: impl Into<String>) -> Finding {
        self.finding(Level::Info, source, text)
    }

    pub fn warn(self, source: &'static str, text: impl Into<String>) -> Finding {
        self.finding(Level::Warn, source, text)
    }

    pub fn fail(self, source: &'static str, text: impl Into<String>) -> Finding {
        self.finding(Level::Fail, source, text)
    }

    /// A lookup failed, so the record is unknown.
    pub fn unknown(self, source: &'static str, what: &str, error: &LookupError) -> Finding {
        self.fail(source, format!("{what} is unknown: {error}"))
            .advice("check the name servers of the zone, then repeat the examination; the record itself may be right")
    }
}

impl Finding {
    pub(crate) fn advice(mut self, advice: impl Into<String>) -> Self {
        self.advice = Some(advice.into());
        self
    }

    pub(crate) fn publish(mut self, record: Record) -> Self {
        self.publish.push(record);
        self
    }
}

impl Record {
    /// A TXT record.
    pub(crate) fn txt(name: &str, text: &str) -> Self {
        let escaped = |part: &[u8]| String::from_utf8_lossy(part).replace('\\', "\\\\").replace('"', "\\\"");
        let parts = text.as_bytes().chunks(255).map(|part| format!("\"{}\"", escaped(part)));
        Record { name: format!("{name}."), kind: "TXT", value: parts.collect::<Vec<_>>().join(" ") }
    }

    /// A record of another type, with its data.
    pub(crate) fn of(name: &str, kind: &'static str, value: String) -> Self {
        Record { name: format!("{name}."), kind, value }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_several_strings() {
        let record = Record::txt("a.example.org", &"x".repeat(300));
        assert_eq!(record.name, "a.example.org.");
        assert_eq!(record.value, format!("\"{}\" \"{}\"", "x".repeat(255), "x".repeat(45)));
        assert_eq!(Record::txt("a", r#"say "a\b""#).value, r#""say \"a\\b\"""#);
    }
}
