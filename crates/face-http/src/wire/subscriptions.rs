//! Subscriptions, with their filters and schedules.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tocsin_model::{filter::Filter, time::Timestamp};
use tocsin_service::{
    ConsentDraft,
    subscriptions::{Document, Draft, FilterDraft, ScheduleDraft, ScheduleFields, WholeFilterDraft, read_snooze},
    text_or_object::{self, TextOrObject},
};
use utoipa::ToSchema;

use super::consent::{ConsentDraftBody, ConsentSummaryBody};

/// A subscription as its creator writes it. What the platform adds (`id`, `created_at`, `updated_at`, `revision`) may
/// stand there, as in an export, and is ignored.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = SubscriptionDraft)]
pub(crate) struct SubscriptionDraft<'a> {
    /// Its application.
    #[serde(default, borrow)]
    #[schema(value_type = Option<String>)]
    application: Option<Cow<'a, str>>,
    /// Its subscription class.
    #[serde(default, borrow)]
    #[schema(value_type = Option<String>)]
    class: Option<Cow<'a, str>>,
    /// Its subscriber.
    #[serde(default, borrow)]
    #[schema(value_type = Option<String>)]
    subscriber: Option<Cow<'a, str>>,
    /// Its creator's own key: a subscription of the same subscriber, class and key is replaced.
    #[serde(default)]
    key: Option<String>,
    /// Device to notify; default: the subscriber's first usable one.
    #[serde(default, borrow)]
    #[schema(value_type = Option<String>)]
    device: Option<Cow<'a, str>>,
    /// Whether it is matched. If absent, the stored state is kept, with its snooze; a new subscription is enabled.
    #[serde(default)]
    enabled: Option<bool>,
    /// The fields of its class.
    #[serde(default, borrow)]
    #[schema(value_type = Option<std::collections::BTreeMap<String, serde_json::Value>>)]
    values: Option<&'a RawValue>,
    /// Its own predicate over the event, if its class allows filters.
    #[serde(default)]
    filter: Option<FilterDraftBody>,
    /// When its scheduled rules are evaluated, if its class allows schedules.
    #[serde(default)]
    schedule: Option<ScheduleDraftBody>,
    /// It is not matched before this time, and is again from then on. A time that has passed, and null, mean not at all.
    #[serde(default, deserialize_with = "read_snooze")]
    #[schema(value_type = Option<String>, format = DateTime)]
    snoozed_until: Option<Timestamp>,
    /// Its consent, for a class that asks for one; a request if not given.
    #[serde(default)]
    consent: Option<ConsentDraftBody>,
    #[serde(default, rename = "id")]
    #[schema(ignore)]
    _id: serde::de::IgnoredAny,
    #[serde(default, rename = "created_at")]
    #[schema(ignore)]
    _created_at: serde::de::IgnoredAny,
    #[serde(default, rename = "updated_at")]
    #[schema(ignore)]
    _updated_at: serde::de::IgnoredAny,
    #[serde(default, rename = "revision")]
    #[schema(ignore)]
    _revision: serde::de::IgnoredAny,
    #[serde(default, rename = "warnings")]
    #[schema(ignore)]
    _warnings: serde::de::IgnoredAny,
}

/// A filter as its creator writes it.
// `Serialize` has the attribute that the OpenAPI document is made from.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(untagged)]
#[schema(as = FilterDraft)]
pub(crate) enum FilterDraftBody {
    /// The text, in the first dialect that the class allows; or `dialect:text`.
    Text(String),
    /// The text in a dialect.
    Whole(WholeFilterDraftBody),
}

impl<'de> Deserialize<'de> for FilterDraftBody {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match text_or_object::read(deserializer, "a filter, or an object with `text`")? {
            TextOrObject::Text(text) => FilterDraftBody::Text(text),
            TextOrObject::Object(whole) => FilterDraftBody::Whole(whole),
        })
    }
}

/// A filter with its dialect.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = WholeFilterDraft)]
pub(crate) struct WholeFilterDraftBody {
    /// `cel`, `jmespath`, `event_pattern` or `notifybc`; the first that the class allows if not given.
    #[serde(default)]
    dialect: Option<String>,
    /// The text. An event pattern may also stand here as the JSON object that it is.
    #[schema(value_type = serde_json::Value)]
    text: serde_json::Value,
}

/// A schedule as its creator writes it.
// `Serialize` has the attribute that the OpenAPI document is made from.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(untagged)]
#[schema(as = ScheduleDraft)]
pub(crate) enum ScheduleDraftBody {
    /// Content lines of RFC 5545: `DTSTART`, and optionally `RRULE`, `RDATE`, `EXDATE`. A start without a zone is on the
    /// clock of the subscriber.
    Text(String),
    /// The same in fields.
    Fields(ScheduleFieldsBody),
}

impl<'de> Deserialize<'de> for ScheduleDraftBody {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match text_or_object::read(deserializer, "lines of RFC 5545, or an object with `start`")? {
            TextOrObject::Text(text) => ScheduleDraftBody::Text(text),
            TextOrObject::Object(fields) => ScheduleDraftBody::Fields(fields),
        })
    }
}

/// A schedule in fields.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ScheduleFields)]
pub(crate) struct ScheduleFieldsBody {
    /// Such as `2027-01-04T08:00`: the first time, and what the rule leaves open.
    start: String,
    /// The IANA name of a time zone, such as `Europe/Vienna`; the subscriber's own if not given, and UTC if there is none.
    #[serde(default)]
    time_zone: Option<String>,
    /// A rule of RFC 5545, such as `FREQ=DAILY;BYDAY=MO,TU,WE,TH,FR`; once only if not given.
    #[serde(default)]
    rule: Option<String>,
}

/// A subscription as the platform shows it. A [`SubscriptionDraft`] reads it.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = Subscription, description = "A subscription as the platform shows it. A [`Draft`] reads it.")]
pub(crate) struct SubscriptionBody {
    /// Its id, such as `s-15`.
    id: String,
    /// Its application.
    application: String,
    /// Its subscription class.
    class: String,
    /// Its subscriber.
    subscriber: String,
    /// Its creator's own key.
    key: Option<String>,
    /// Device to notify.
    device: Option<String>,
    /// Whether it is matched; while it is snoozed, whether it will be.
    enabled: bool,
    /// The fields of its class.
    #[schema(value_type = std::collections::BTreeMap<String, serde_json::Value>)]
    values: Box<RawValue>,
    /// Its own predicate over the event.
    #[schema(value_type = Option<WholeFilterDraftBody>)]
    filter: Option<Filter>,
    /// When its scheduled rules are evaluated: content lines of RFC 5545.
    #[schema(value_type = Option<String>)]
    schedule: Option<Box<str>>,
    /// When it is matched again, if it is snoozed.
    #[schema(value_type = Option<String>, format = DateTime)]
    snoozed_until: Option<Timestamp>,
    /// Its consent, if it needs one.
    #[serde(skip_serializing_if = "Option::is_none")]
    consent: Option<ConsentSummaryBody>,
    /// When it was made.
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    /// When it last changed.
    #[schema(value_type = String, format = DateTime)]
    updated_at: Timestamp,
    /// Grows with each change.
    revision: u64,
    /// Why it will not be sent as it is now, in the answer to a request that stored it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

impl<'a> From<SubscriptionDraft<'a>> for Draft<'a> {
    fn from(draft: SubscriptionDraft<'a>) -> Self {
        Draft {
            application: draft.application,
            class: draft.class,
            subscriber: draft.subscriber,
            key: draft.key,
            device: draft.device,
            enabled: draft.enabled,
            values: draft.values,
            filter: draft.filter.map(FilterDraft::from),
            schedule: draft.schedule.map(ScheduleDraft::from),
            snoozed_until: draft.snoozed_until,
            consent: draft.consent.map(ConsentDraft::from),
        }
    }
}

impl From<FilterDraftBody> for FilterDraft {
    fn from(draft: FilterDraftBody) -> Self {
        match draft {
            FilterDraftBody::Text(text) => FilterDraft::Text(text),
            FilterDraftBody::Whole(WholeFilterDraftBody { dialect, text }) => {
                FilterDraft::Whole(WholeFilterDraft { dialect, text })
            }
        }
    }
}

impl From<ScheduleDraftBody> for ScheduleDraft {
    fn from(draft: ScheduleDraftBody) -> Self {
        match draft {
            ScheduleDraftBody::Text(text) => ScheduleDraft::Text(text),
            ScheduleDraftBody::Fields(ScheduleFieldsBody { start, time_zone, rule }) => {
                ScheduleDraft::Fields(ScheduleFields { start, time_zone, rule })
            }
        }
    }
}

impl From<Document> for SubscriptionBody {
    fn from(found: Document) -> Self {
        SubscriptionBody {
            id: found.id,
            application: found.application,
            class: found.class,
            subscriber: found.subscriber,
            key: found.key,
            device: found.device,
            enabled: found.enabled,
            values: found.values,
            filter: found.filter,
            schedule: found.schedule,
            snoozed_until: found.snoozed_until,
            consent: found.consent.map(|consent| ConsentSummaryBody { state: consent.state }),
            created_at: found.created_at,
            updated_at: found.updated_at,
            revision: found.revision,
            warnings: found.warnings,
        }
    }
}
