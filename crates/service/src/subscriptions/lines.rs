//! Lines of exports and imports of subscriptions.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tocsin_model::{consent::ConsentState, field::Fields, filter::Filter, subscription::Subscription, time::Timestamp};

use super::drafts::{Draft, FilterDraft, ScheduleDraft, read_snooze};
use crate::consent_actor::ConsentDraft;

/// A line of an import. What an export adds is ignored.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SubscriptionLine<'a> {
    /// Its application.
    #[serde(default, borrow)]
    application: Option<Cow<'a, str>>,
    /// Its subscription class.
    #[serde(default, borrow)]
    class: Option<Cow<'a, str>>,
    /// Its subscriber.
    #[serde(default, borrow)]
    subscriber: Option<Cow<'a, str>>,
    /// Its creator's own key: a subscription of the same subscriber, class and key is replaced.
    #[serde(default)]
    key: Option<String>,
    /// Device to notify; default: the subscriber's first usable one.
    #[serde(default, borrow)]
    device: Option<Cow<'a, str>>,
    /// Whether it is matched. If absent, the stored state is kept, with its snooze; a new subscription is enabled.
    #[serde(default)]
    enabled: Option<bool>,
    /// The fields of its class.
    #[serde(default, borrow)]
    values: Option<&'a RawValue>,
    /// Its own predicate over the event, if its class allows filters.
    #[serde(default)]
    filter: Option<FilterDraft>,
    /// When its scheduled rules are evaluated, if its class allows schedules.
    #[serde(default)]
    schedule: Option<ScheduleDraft>,
    /// It is not matched before this time, and is again from then on. A time that has passed, and null, mean not at all.
    #[serde(default, deserialize_with = "read_snooze")]
    snoozed_until: Option<Timestamp>,
    /// State of its consent, with its proof.
    #[serde(default)]
    consent: Option<ConsentDraft>,
    #[serde(default, rename = "id")]
    _id: serde::de::IgnoredAny,
    #[serde(default, rename = "created_at")]
    _created_at: serde::de::IgnoredAny,
    #[serde(default, rename = "updated_at")]
    _updated_at: serde::de::IgnoredAny,
    /// Marks a line of an export.
    #[serde(default)]
    revision: Option<serde::de::IgnoredAny>,
    #[serde(default, rename = "warnings")]
    _warnings: serde::de::IgnoredAny,
}

impl SubscriptionLine<'_> {
    /// Whether an export wrote it.
    pub(crate) fn is_exported(&self) -> bool {
        self.revision.is_some()
    }
}

impl<'a> From<SubscriptionLine<'a>> for Draft<'a> {
    fn from(line: SubscriptionLine<'a>) -> Self {
        Draft {
            application: line.application,
            class: line.class,
            subscriber: line.subscriber,
            key: line.key,
            device: line.device,
            enabled: line.enabled,
            values: line.values,
            filter: line.filter,
            schedule: line.schedule,
            snoozed_until: line.snoozed_until,
            consent: line.consent,
        }
    }
}

/// Consent of a subscription as the platform shows it with the subscription.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct ConsentSummary {
    /// Its state.
    pub state: ConsentState,
}

/// A subscription as the platform shows it, also in the lines of exports. A [`SubscriptionLine`] reads it.
#[derive(Debug, Clone, Serialize)]
pub struct Document {
    /// Its id, such as `s-15`.
    pub id: String,
    /// Its application.
    pub application: String,
    /// Its subscription class.
    pub class: String,
    /// Its subscriber.
    pub subscriber: String,
    /// Its creator's own key.
    pub key: Option<String>,
    /// Device to notify.
    pub device: Option<String>,
    /// Whether it is matched; while it is snoozed, whether it will be.
    pub enabled: bool,
    /// The fields of its class.
    pub values: Box<RawValue>,
    /// Its own predicate over the event.
    pub filter: Option<Filter>,
    /// When its scheduled rules are evaluated: content lines of RFC 5545.
    pub schedule: Option<Box<str>>,
    /// When it is matched again, if it is snoozed.
    pub snoozed_until: Option<Timestamp>,
    /// State of its consent, if it needs one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consent: Option<ConsentSummary>,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
    /// Grows with each change.
    pub revision: u64,
    /// Why it will not be sent as it is now, in the answer to a request that stored it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

impl Document {
    /// A subscription as the running version of its class shows it; as it is stored where there is none.
    pub(crate) fn of(subscription: Subscription, fields: Option<&Fields>) -> Self {
        let damaged = || RawValue::from_string("null".into()).expect("`null` is JSON");
        let enabled = subscription.is_active_or_snoozed();
        let values = match fields.map(|fields| fields.stored_as_json(&subscription.values)) {
            Some(Ok(values)) => values,
            Some(Err(_)) | None => subscription.values.into(),
        };
        Document {
            id: subscription.id.to_string(),
            application: subscription.application.to_string(),
            class: subscription.class.to_string(),
            subscriber: subscription.subscriber.to_string(),
            key: subscription.key,
            device: subscription.device.map(|device| device.to_string()),
            enabled,
            values: RawValue::from_string(values).unwrap_or_else(|_| damaged()),
            filter: subscription.terms.filter,
            schedule: subscription.terms.schedule,
            snoozed_until: subscription.terms.snoozed_until,
            consent: subscription.consent.map(|state| ConsentSummary { state }),
            created_at: subscription.created_at,
            updated_at: subscription.updated_at,
            revision: subscription.revision,
            warnings: Vec::new(),
        }
    }
}
