//! Drafts of subscriptions, as their creators write them.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;
use tocsin_model::{
    filter::{Dialect, Filter},
    problem::{Code, Problem},
    schedule::Schedule,
    time::Timestamp,
};

use crate::{
    consent_actor::ConsentDraft,
    text_or_object::{self, TextOrObject},
};

/// A subscription as its creator writes it.
#[derive(Debug, Default)]
pub struct Draft<'a> {
    /// Its application.
    pub application: Option<Cow<'a, str>>,
    /// Its subscription class.
    pub class: Option<Cow<'a, str>>,
    /// Its subscriber.
    pub subscriber: Option<Cow<'a, str>>,
    /// Its creator's own key: a subscription of the same subscriber, class and key is replaced.
    pub key: Option<String>,
    /// Device to notify; default: the subscriber's first usable one.
    pub device: Option<Cow<'a, str>>,
    /// Whether it is matched. If absent, the stored state is kept, with its snooze; a new subscription is enabled.
    pub enabled: Option<bool>,
    /// The fields of its class.
    pub values: Option<&'a RawValue>,
    /// Its own predicate over the event, if its class allows filters.
    pub filter: Option<FilterDraft>,
    /// When its scheduled rules are evaluated, if its class allows schedules.
    pub schedule: Option<ScheduleDraft>,
    /// It is not matched before this time, and is again from then on. A time that has passed, and null, mean not at all.
    pub snoozed_until: Option<Timestamp>,
    /// State of its consent, with its proof.
    pub consent: Option<ConsentDraft>,
}

/// Reads the end of a snooze. `null` ends it, as a time in the past does; an absent one keeps the stored snooze.
///
/// # Errors
/// It is no time.
pub fn read_snooze<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Timestamp>, D::Error> {
    const PAST: Timestamp = Timestamp(0);
    Ok(Some(Option::deserialize(deserializer)?.unwrap_or(PAST)))
}

/// A filter as its creator writes it.
#[derive(Debug, Clone)]
pub enum FilterDraft {
    /// The text, in the first dialect that the class allows; or `dialect:text`.
    Text(String),
    /// The text in a dialect.
    Whole(WholeFilterDraft),
}

impl<'de> Deserialize<'de> for FilterDraft {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match text_or_object::read(deserializer, "a filter, or an object with `text`")? {
            TextOrObject::Text(text) => FilterDraft::Text(text),
            TextOrObject::Object(whole) => FilterDraft::Whole(whole),
        })
    }
}

impl FilterDraft {
    /// The filter as it is written. `first` is the dialect of a text that names none.
    pub(super) fn written(self, first: Option<Dialect>) -> Result<Filter, Problem> {
        let dialect_missing =
            || Problem::new(Code::Required, "filter.dialect", "is required: the class takes no filters");
        match self {
            FilterDraft::Text(text) => match (text.parse(), first) {
                (Ok(filter), _) => Ok(filter),
                (Err(_), Some(dialect)) => Ok(Filter { dialect, text }),
                (Err(_), None) => Err(dialect_missing()),
            },
            FilterDraft::Whole(WholeFilterDraft { dialect, text }) => {
                let dialect = match dialect.as_deref().map(str::parse::<Dialect>) {
                    None => first.ok_or_else(dialect_missing)?,
                    Some(Ok(dialect)) => dialect,
                    Some(Err(error)) => {
                        return Err(Problem::new(Code::UnknownValue, "filter.dialect", error.to_string()));
                    }
                };
                let text = match text {
                    serde_json::Value::String(text) => text,
                    pattern @ serde_json::Value::Object(_) if dialect == Dialect::EventPattern => pattern.to_string(),
                    _ => return Err(Problem::new(Code::WrongType, "filter.text", "should be a string")),
                };
                Ok(Filter { dialect, text })
            }
        }
    }

    /// Whether it is written as a stored one is shown.
    pub(super) fn is(&self, stored: &Filter) -> bool {
        self.clone().written(None).is_ok_and(|written| written == *stored)
    }
}

/// A filter with its dialect.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WholeFilterDraft {
    /// `cel`, `jmespath`, `event_pattern` or `notifybc`; the first that the class allows if not given.
    #[serde(default)]
    pub dialect: Option<String>,
    /// The text. An event pattern may also stand here as the JSON object that it is.
    pub text: serde_json::Value,
}

/// A schedule as its creator writes it.
#[derive(Debug, Clone)]
pub enum ScheduleDraft {
    /// Content lines of RFC 5545: `DTSTART`, and optionally `RRULE`, `RDATE`, `EXDATE`. A start without a zone is on the
    /// clock of the subscriber.
    Text(String),
    /// The same in fields.
    Fields(ScheduleFields),
}

impl<'de> Deserialize<'de> for ScheduleDraft {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match text_or_object::read(deserializer, "lines of RFC 5545, or an object with `start`")? {
            TextOrObject::Text(text) => ScheduleDraft::Text(text),
            TextOrObject::Object(fields) => ScheduleDraft::Fields(fields),
        })
    }
}

impl ScheduleDraft {
    /// The schedule that it describes; the zone may be open.
    pub(crate) fn read(&self) -> Result<Schedule, Vec<Problem>> {
        match self {
            ScheduleDraft::Text(text) => Schedule::parse_floating(text),
            ScheduleDraft::Fields(fields) => match &fields.time_zone {
                Some(zone) => Schedule::new(&fields.start, zone, fields.rule.as_deref()),
                None => Schedule::floating(&fields.start, fields.rule.as_deref()),
            },
        }
    }

    /// Path of a problem in the creator's input: a property of RFC 5545, or the corresponding field.
    pub(crate) fn place<'p>(&self, property: &'p str) -> &'p str {
        match (self, property.split('.').next()) {
            (ScheduleDraft::Fields(_), Some("DTSTART")) => "start",
            (ScheduleDraft::Fields(_), Some("TZID")) => "time_zone",
            (ScheduleDraft::Fields(_), Some("RRULE")) => "rule",
            _ => property,
        }
    }

    /// Whether it is the stored one.
    pub(super) fn is(&self, stored: &str) -> bool {
        let same_text = matches!(self, ScheduleDraft::Text(text) if text == stored);
        same_text || self.read().is_ok_and(|schedule| schedule.to_string() == stored)
    }
}

/// A schedule in fields.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScheduleFields {
    /// Such as `2027-01-04T08:00`: the first time, and what the rule leaves open.
    pub start: String,
    /// The IANA name of a time zone, such as `Europe/Vienna`; the subscriber's own if not given, and UTC if there is none.
    #[serde(default)]
    pub time_zone: Option<String>,
    /// A rule of RFC 5545, such as `FREQ=DAILY;BYDAY=MO,TU,WE,TH,FR`; once only if not given.
    #[serde(default)]
    pub rule: Option<String>,
}
