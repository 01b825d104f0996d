//! Subscriptions, checked against the running version of their class.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tocsin_matching::{filter::index::ScanReason, rule::RuleSet};
use tocsin_model::{
    application::{Limits, Presence},
    field::{Fields, Row},
    filter::{Dialect, Filter},
    id::{Name, SubscriberId, SubscriptionId},
    problem::{Code, Problem},
    schedule::Schedule,
    subscription::{Subscription, SubscriptionParams},
    time::Timestamp,
};
use tocsin_pipeline::{Compiled, Pipeline};
use tocsin_store::{
    error::StoreError,
    records::{
        NewSubscription, Precondition, SubscriptionChange, SubscriptionFilter, SubscriptionStore, UpdateSubscription,
    },
};
use utoipa::ToSchema;

use crate::{
    Service,
    error::{ServiceError, json_error},
    keys::{Caller, Scope},
    known::Part,
    page::{Page, key_of},
    schedules::{over, too_frequent},
    subscribers::merge,
    text_or_object::{self, TextOrObject},
};

/// Maximum number of bytes of a subscription's values as JSON.
pub const VALUE_BYTES_MAX: usize = 64 * 1024;
/// Longest key, in characters.
pub const KEY_MAX: usize = 255;

/// A subscription as its creator writes it. What the platform adds (`id`, `created_at`, `updated_at`, `revision`) may
/// stand there, as in an export, and is ignored.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = SubscriptionDraft)]
pub struct Draft<'a> {
    /// Its application.
    #[serde(default, borrow)]
    #[schema(value_type = Option<String>)]
    pub application: Option<std::borrow::Cow<'a, str>>,
    /// Its subscription class.
    #[serde(default, borrow)]
    #[schema(value_type = Option<String>)]
    pub class: Option<std::borrow::Cow<'a, str>>,
    /// Its subscriber.
    #[serde(default, borrow)]
    #[schema(value_type = Option<String>)]
    pub subscriber: Option<std::borrow::Cow<'a, str>>,
    /// Its creator's own key: a subscription of the same subscriber, class and key is replaced.
    #[serde(default)]
    pub key: Option<String>,
    /// Device to notify; default: the subscriber's first usable one.
    #[serde(default, borrow)]
    #[schema(value_type = Option<String>)]
    pub device: Option<std::borrow::Cow<'a, str>>,
    /// Whether it is matched; default true.
    #[serde(default)]
    pub enabled: Option<bool>,
    /// The fields of its class.
    #[serde(default, borrow)]
    #[schema(value_type = Option<std::collections::BTreeMap<String, serde_json::Value>>)]
    pub values: Option<&'a RawValue>,
    /// Its own predicate over the event, if its class allows filters.
    #[serde(default)]
    pub filter: Option<FilterDraft>,
    /// When its scheduled rules are evaluated, if its class allows schedules.
    #[serde(default)]
    pub schedule: Option<ScheduleDraft>,
    /// It is not matched before this time, and is again from then on. A time that has passed, and null, mean not at all.
    #[serde(default)]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub snoozed_until: Option<Timestamp>,
    #[serde(default, rename = "id")]
    #[schema(ignore)]
    _id: serde::de::IgnoredAny,
    #[serde(default, rename = "created_at")]
    #[schema(ignore)]
    _created_at: serde::de::IgnoredAny,
    #[serde(default, rename = "updated_at")]
    #[schema(ignore)]
    _updated_at: serde::de::IgnoredAny,
    /// Marks a line of an export.
    #[serde(default)]
    #[schema(ignore)]
    pub(crate) revision: Option<serde::de::IgnoredAny>,
    #[serde(default, rename = "warnings")]
    #[schema(ignore)]
    _warnings: serde::de::IgnoredAny,
}

/// A filter as its creator writes it.
// `Serialize` has the attribute that the OpenAPI document is made from.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(untagged)]
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

/// A filter with its dialect.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WholeFilterDraft {
    /// `cel`, `jmespath` or `event_pattern`; the first that the class allows if not given.
    #[serde(default)]
    pub dialect: Option<String>,
    /// The text. An event pattern may also stand here as the JSON object that it is.
    #[schema(value_type = serde_json::Value)]
    pub text: serde_json::Value,
}

/// A schedule as its creator writes it.
// `Serialize` has the attribute that the OpenAPI document is made from.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(untagged)]
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
    /// Path of a problem in the creator's input: a property of RFC 5545, or the corresponding field.
    pub(crate) fn place<'p>(&self, property: &'p str) -> &'p str {
        match (self, property.split('.').next()) {
            (ScheduleDraft::Fields(_), Some("DTSTART")) => "start",
            (ScheduleDraft::Fields(_), Some("TZID")) => "time_zone",
            (ScheduleDraft::Fields(_), Some("RRULE")) => "rule",
            _ => property,
        }
    }
}

/// A schedule in fields.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
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

/// A subscription as the platform shows it. A [`Draft`] reads it.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = Subscription)]
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
    #[schema(value_type = std::collections::BTreeMap<String, serde_json::Value>)]
    pub values: Box<RawValue>,
    /// Its own predicate over the event.
    #[schema(value_type = Option<WholeFilterDraft>)]
    pub filter: Option<Filter>,
    /// When its scheduled rules are evaluated: content lines of RFC 5545.
    #[schema(value_type = Option<String>)]
    pub schedule: Option<Box<str>>,
    /// When it is matched again, if it is snoozed.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub snoozed_until: Option<Timestamp>,
    /// When it was made.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// When it last changed.
    #[schema(value_type = String, format = DateTime)]
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
            created_at: subscription.created_at,
            updated_at: subscription.updated_at,
            revision: subscription.revision,
            warnings: Vec::new(),
        }
    }
}

/// The fields of a class in the running version of its application.
pub(crate) fn class_fields(pipeline: &Pipeline, application: &Name, class: &Name) -> Option<Fields> {
    Some(pipeline.application(application)?.application.subscriptions.get(class)?.fields.clone())
}

/// The basis on which a draft is checked. A stored subscription may be of another version of the class: the rule is in
/// `tocsin_model::field`.
pub(crate) enum Basis<'a> {
    /// Nothing: all of it is new.
    New,
    /// A stored subscription, and its values in this version of the class. What stays as it was is not checked again.
    Stored(&'a Subscription, Row),
    /// A line of an export: what does not fit the class any more is a warning.
    Export,
}

impl<'a> Basis<'a> {
    fn of(stored: &'a Subscription, fields: &Fields) -> Result<Basis<'a>, ServiceError> {
        let row = fields.row_from_stored(&stored.values);
        let row = row.map_err(|damaged| ServiceError::Unavailable(format!("{}: {damaged}", stored.id).into()))?;
        Ok(Basis::Stored(stored, row))
    }

    fn stored(&self) -> Option<&'a Subscription> {
        match self {
            Basis::Stored(stored, _) => Some(stored),
            Basis::New | Basis::Export => None,
        }
    }
}

/// A class that subscriptions are checked against.
#[derive(Clone)]
pub(crate) struct Class {
    pub(crate) application: Name,
    pub(crate) name: Name,
    pub(crate) fields: Fields,
    filter: Vec<Dialect>,
    schedule: Presence,
    /// Cost over all rules, since a filter is evaluated for the events of each.
    rules: Vec<Arc<RuleSet>>,
    limits: Limits,
    /// Limits of the application.
    used: Option<Used>,
}

/// Usage of an application's limits, from its index.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Used {
    subscriptions: u64,
    filters: u64,
    scanned_filters: u64,
}

impl Used {
    /// That of the running version of an application.
    pub(crate) fn of(pipeline: &Pipeline, application: &Name) -> Option<Used> {
        let status = pipeline.status().into_iter().find(|(name, _)| name == application)?.1;
        Some(Used { subscriptions: status.indexed, filters: status.filters, scanned_filters: status.scanned_filters })
    }
}

impl Class {
    /// The class with what its application has: a subscription beyond the limits is refused.
    pub(crate) fn within(self, used: Option<Used>) -> Class {
        Class { used, ..self }
    }

    /// One more subscription, if there is room.
    fn check_room(&self) -> Result<(), Problem> {
        let most = self.limits.subscriptions;
        if self.used.is_none_or(|used| used.subscriptions < most) {
            return Ok(());
        }
        let problem = Problem::new(
            Code::LimitReached,
            "",
            format!("`{}` has {most} subscriptions, the most that it may", self.application),
        )
        .param("limit", most);
        Err(problem.hint("raise `limits.subscriptions` in its definition, or remove some"))
    }

    /// A filter, if there is room for one more; `scanned` says why no index answers it.
    fn check_filter_room(&self, scanned: Option<ScanReason>) -> Result<(), Problem> {
        let Some(used) = self.used else { return Ok(()) };
        let (distinct, unindexed) = (self.limits.distinct_filters, self.limits.unindexed_filters);
        if used.filters >= distinct {
            let message = format!("`{}` has {distinct} distinct filters, the most that it may", self.application);
            return Err(Problem::new(Code::LimitReached, "filter", message)
                .param("limit", distinct)
                .hint("raise `limits.distinct_filters` in its definition"));
        }
        match scanned {
            Some(why) if used.scanned_filters >= unindexed => {
                let message = format!(
                    "no index answers it: {why}; and `{}` may have at most {unindexed} such filters",
                    self.application
                );
                let hint = "ask for a value that the event must have, or raise `limits.unindexed_filters`";
                Err(Problem::new(Code::LimitReached, "filter", message).param("limit", unindexed).hint(hint))
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn of(compiled: &Compiled, class: &str) -> Result<Class, Problem> {
        let application = &compiled.application;
        match application.subscriptions.get_key_value(class) {
            Some((name, class)) => Ok(Class {
                application: application.name.clone(),
                name: name.clone(),
                fields: class.fields.clone(),
                filter: class.filter.clone(),
                schedule: class.schedule,
                limits: application.limits,
                used: None,
                rules: std::iter::once(&compiled.rules).chain(compiled.scheduled.values()).cloned().collect(),
            }),
            None => {
                let problem = Problem::new(
                    Code::UnknownReference,
                    "class",
                    format!("`{class}` is not a subscription class of `{}`", application.name),
                )
                .param("kind", "subscription_class")
                .param("value", class.to_string());
                let known = || application.subscriptions.keys().map(Name::as_str);
                Err(match tocsin_model::problem::closest(class, known()) {
                    Some(meant) => problem.hint(format!("did you mean `{meant}`?")),
                    None => problem.hint(format!("its classes are {}", known().collect::<Vec<_>>().join(", "))),
                })
            }
        }
    }
}

/// A draft that is right.
pub(crate) struct Checked {
    new: NewSubscription,
    /// Why there is no room for its filter, unless that is stored with it already.
    over_limit: Option<Problem>,
    /// Parts of an export that do not fit its class any more.
    pub(crate) warnings: Vec<Problem>,
}

impl Checked {
    /// Warning that its schedule has ended.
    pub(crate) fn ended_warning(&self, now: Timestamp) -> Option<Problem> {
        let schedule = Schedule::parse_floating(self.new.terms.schedule.as_deref()?).ok()?;
        over(&schedule, now).map(|found| Problem::new(Code::NeverDue, "schedule", found))
    }

    /// The subscription, if the limits leave room for its filter.
    fn within_limits(self, stored: Option<&Subscription>) -> Result<NewSubscription, Problem> {
        match self.over_limit {
            Some(problem) if stored.is_none_or(|stored| stored.terms.filter != self.new.terms.filter) => Err(problem),
            _ => Ok(self.new),
        }
    }

    /// The same beside the records, which are asked only where there is no room.
    pub(crate) async fn within(
        self,
        records: &dyn SubscriptionStore,
    ) -> Result<Result<NewSubscription, Problem>, StoreError> {
        let stored = match &self.over_limit {
            Some(_) => stored_as(records, &self.new).await?,
            None => None,
        };
        Ok(self.within_limits(stored.as_ref()))
    }
}

/// The subscription that another of its key takes the place of.
async fn stored_as(records: &dyn SubscriptionStore, new: &NewSubscription) -> Result<Option<Subscription>, StoreError> {
    let Some(key) = &new.key else { return Ok(None) };
    of_key(records, (&new.application, &new.class), &new.subscriber, key).await
}

async fn of_key(
    records: &dyn SubscriptionStore,
    (application, class): (&Name, &Name),
    subscriber: &SubscriberId,
    key: &str,
) -> Result<Option<Subscription>, StoreError> {
    let same = SubscriptionFilter {
        application: Some(application.clone()),
        class: Some(class.clone()),
        subscriber: Some(subscriber.clone()),
        key: Some(key.to_owned()),
        enabled: None,
    };
    Ok(records.subscriptions(&same, None, 1).await?.pop())
}

/// A filter as it is checked, with the reason why there is no room for it.
type CheckedFilter = Result<(Filter, Result<(), Problem>), Vec<Problem>>;

/// Checks a draft against its class.
pub(crate) fn check(mut draft: Draft<'_>, class: &Class, basis: &Basis<'_>) -> Result<Checked, Vec<Problem>> {
    let mut warnings = Vec::new();
    let filter = draft.filter.take().map(|filter| check_filter_on(filter, class, basis, &mut warnings));
    check_with(draft, filter, class, basis, warnings)
}

/// The same for a request: its filter is compiled on a blocking thread.
async fn check_off_thread(
    mut draft: Draft<'_>,
    class: &Class,
    basis: &Basis<'_>,
) -> Result<Result<Checked, Vec<Problem>>, ServiceError> {
    let is_stored = |filter: &FilterDraft| {
        let stored = basis.stored().and_then(|stored| stored.terms.filter.as_ref());
        stored.is_some_and(|stored| filter.is(stored))
    };
    if draft.filter.as_ref().is_none_or(is_stored) {
        return Ok(check(draft, class, basis));
    }
    let filter = match draft.filter.take() {
        Some(filter) => {
            let class = class.clone();
            let checking = tokio::task::spawn_blocking(move || check_filter(filter, &class));
            Some(checking.await.map_err(|error| ServiceError::Unavailable(error.into()))?)
        }
        None => None,
    };
    Ok(check_with(draft, filter, class, basis, Vec::new()))
}

/// Checks a draft whose filter is checked already.
fn check_with(
    draft: Draft<'_>,
    filter: Option<CheckedFilter>,
    class: &Class,
    basis: &Basis<'_>,
    mut warnings: Vec<Problem>,
) -> Result<Checked, Vec<Problem>> {
    let mut problems = Vec::new();
    let subscriber = match draft.subscriber.as_deref().map(str::parse::<SubscriberId>) {
        Some(Ok(id)) => Some(id),
        Some(Err(error)) => {
            problems.push(Problem::not(Code::InvalidFormat, "subscriber", error.expected).param("format", "id"));
            None
        }
        None => {
            problems.push(Problem::new(Code::Required, "subscriber", "is required: give a string"));
            None
        }
    };
    let device = checked_device(draft.device.as_deref()).map_err(|problem| problems.push(problem)).unwrap_or_default();
    if let Some(key) = &draft.key
        && (key.is_empty() || key.chars().count() > KEY_MAX || key.chars().any(char::is_control))
    {
        problems.push(
            Problem::new(
                Code::TooLong,
                "key",
                format!("should be 1 to {KEY_MAX} characters without control characters"),
            )
            .param("limit", KEY_MAX)
            .param("unit", "characters"),
        );
    }
    let raw = draft.values.map_or("{}", RawValue::get);
    let values = check_values(raw, &class.fields, basis, &mut warnings);
    let values = values.map_err(|found| problems.extend(found)).unwrap_or_default();
    let filter = filter.transpose().map_err(|found| problems.extend(found)).unwrap_or_default();
    let (filter, over_limit) = filter.map_or((None, None), |(filter, room)| (Some(filter), room.err()));
    let schedule = check_schedule(draft.schedule, class, basis, &mut warnings);
    let schedule = schedule.map_err(|found| problems.extend(found)).unwrap_or_default();
    match subscriber {
        Some(subscriber) if problems.is_empty() => {
            let new = NewSubscription {
                application: class.application.clone(),
                class: class.name.clone(),
                subscriber,
                key: draft.key,
                device,
                enabled: draft.enabled.unwrap_or(true),
                values,
                terms: SubscriptionParams { filter, schedule, snoozed_until: draft.snoozed_until },
            };
            Ok(Checked { new, over_limit, warnings })
        }
        _ => Err(problems),
    }
}

fn checked_device(device: Option<&str>) -> Result<Option<Name>, Problem> {
    let wrong = |error: tocsin_model::id::IdError| {
        Problem::not(Code::InvalidFormat, "device", error.expected).param("format", "name")
    };
    device.map(|device| device.parse().map_err(wrong)).transpose()
}

/// A change of a subscription whose class the running version does not have: values, filter and schedule stay as they are.
fn check_without_class(
    draft: Draft<'_>,
    present: &Subscription,
    gone: Problem,
) -> Result<SubscriptionChange, Vec<Problem>> {
    let json = |text: &str| serde_json::from_str::<serde_json::Value>(text).ok();
    let raw = draft.values.map_or("{}", RawValue::get);
    let same_filter = match (&draft.filter, &present.terms.filter) {
        (Some(draft), Some(stored)) => draft.is(stored),
        (draft, stored) => draft.is_none() && stored.is_none(),
    };
    let same_schedule = match (&draft.schedule, &present.terms.schedule) {
        (Some(draft), Some(stored)) => draft.is(stored),
        (draft, stored) => draft.is_none() && stored.is_none(),
    };
    if json(raw) != json(&present.values) || !same_filter || !same_schedule {
        return Err(vec![gone]);
    }
    Ok(SubscriptionChange {
        device: checked_device(draft.device.as_deref()).map_err(|problem| vec![problem])?,
        enabled: draft.enabled.unwrap_or(true),
        values: present.values.clone(),
        terms: SubscriptionParams { snoozed_until: draft.snoozed_until, ..present.terms.clone() },
    })
}

/// Values and filter of a subscription that need not be stored.
pub(crate) fn check_subject(
    values: &str,
    filter: Option<FilterDraft>,
    class: &Class,
) -> Result<(Box<str>, Option<Filter>), Vec<Problem>> {
    let mut problems = Vec::new();
    let values = check_values(values, &class.fields, &Basis::New, &mut Vec::new());
    let values = values.map_err(|found| problems.extend(found)).unwrap_or_default();
    let filter = filter.map(|filter| check_filter(filter, class)).transpose();
    let filter = filter.map_err(|found| problems.extend(found)).unwrap_or_default().map(|(filter, _)| filter);
    if problems.is_empty() { Ok((values, filter)) } else { Err(problems) }
}

/// Maximum number of bytes of a filter in a line of an export that the class does not take any more.
const FILTER_BYTES_MAX: usize = 64 * 1024;

impl FilterDraft {
    /// The filter as it is written. `first` is the dialect of a text that names none.
    fn written(self, first: Option<Dialect>) -> Result<Filter, Problem> {
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
    fn is(&self, stored: &Filter) -> bool {
        self.clone().written(None).is_ok_and(|written| written == *stored)
    }
}

impl ScheduleDraft {
    /// Whether it is the stored one.
    fn is(&self, stored: &str) -> bool {
        let same_text = matches!(self, ScheduleDraft::Text(text) if text == stored);
        same_text || self.read().is_ok_and(|schedule| schedule.to_string() == stored)
    }
}

/// The filter, if its dialect is one of the class's.
fn read_filter(draft: FilterDraft, class: &Class) -> Result<Filter, Vec<Problem>> {
    let Some(first) = class.filter.first() else {
        let problem =
            Problem::new(Code::NotApplicable, "filter", format!("the class `{}` takes no filters", class.name));
        return Err(vec![problem.hint("allow them in the definition: `filter: cel` under the subscription class")]);
    };
    let allowed = || class.filter.iter().map(|dialect| dialect.name()).collect::<Vec<_>>().join(", ");
    let filter = draft.written(Some(*first)).map_err(|problem| match problem.path.as_str() {
        "filter.dialect" => vec![problem.hint(format!("the class allows {}", allowed()))],
        _ => vec![problem],
    })?;
    if !class.filter.contains(&filter.dialect) {
        let message = format!("the class `{}` takes no filters in {}", class.name, filter.dialect);
        return Err(vec![Problem::new(Code::NotApplicable, "filter", message).hint(format!("it takes {}", allowed()))]);
    }
    Ok(filter)
}

/// The same as [`check_filter`], for a filter that may already be stored.
fn check_filter_on(
    draft: FilterDraft,
    class: &Class,
    basis: &Basis<'_>,
    warnings: &mut Vec<Problem>,
) -> Result<(Filter, Result<(), Problem>), Vec<Problem>> {
    if let Some(stored) = basis.stored().and_then(|stored| stored.terms.filter.as_ref())
        && draft.is(stored)
    {
        return Ok((stored.clone(), Ok(())));
    }
    let written = match basis {
        Basis::Export => draft.clone().written(class.filter.first().copied()).ok(),
        Basis::New | Basis::Stored(..) => None,
    };
    match (check_filter(draft, class), written) {
        // The records keep it as they kept the one that was exported.
        (Err(problems), Some(written)) if written.text.len() <= FILTER_BYTES_MAX => {
            warnings.extend(problems);
            Ok((written, Ok(())))
        }
        (checked, _) => checked,
    }
}

/// The filter, if the rules of the class can evaluate it, and whether there is room for one more.
fn check_filter(draft: FilterDraft, class: &Class) -> Result<(Filter, Result<(), Problem>), Vec<Problem>> {
    let filter = read_filter(draft, class)?;
    let below = |problem: Problem| Problem { path: "filter".to_owned(), ..problem };
    let mut scanned = None;
    for rules in &class.rules {
        let checked = rules.check_filter(&class.name, &filter);
        let checked = checked.map_err(|problems| problems.into_iter().map(below).collect::<Vec<_>>())?;
        scanned = scanned.or(checked);
    }
    Ok((filter, class.check_filter_room(scanned)))
}

/// The canonical text of the schedule, if the class takes one and it will ever be due.
fn check_schedule(
    draft: Option<ScheduleDraft>,
    class: &Class,
    basis: &Basis<'_>,
    warnings: &mut Vec<Problem>,
) -> Result<Option<Box<str>>, Vec<Problem>> {
    if let Some(stored) = basis.stored() {
        match (&draft, &stored.terms.schedule) {
            (None, None) => return Ok(None),
            (Some(draft), Some(stored)) if draft.is(stored) => return Ok(Some(stored.clone())),
            _ => {}
        }
    }
    let is_export = matches!(basis, Basis::Export);
    let draft = match (draft, class.schedule) {
        (None, Presence::Required) if is_export => {
            warnings.push(Problem::new(
                Code::Required,
                "schedule",
                format!("the class `{}` requires a schedule", class.name),
            ));
            return Ok(None);
        }
        (Some(draft), Presence::Forbidden) if is_export => {
            warnings.push(Problem::new(
                Code::NotApplicable,
                "schedule",
                format!("the class `{}` takes no schedules", class.name),
            ));
            draft
        }
        (None, Presence::Required) => {
            let problem =
                Problem::new(Code::Required, "schedule", format!("the class `{}` requires a schedule", class.name));
            let hint = "give `start`, `time_zone` and `rule`, such as FREQ=DAILY;BYDAY=MO,TU,WE,TH,FR";
            return Err(vec![problem.hint(hint)]);
        }
        (None, _) => return Ok(None),
        (Some(_), Presence::Forbidden) => {
            let problem =
                Problem::new(Code::NotApplicable, "schedule", format!("the class `{}` takes no schedules", class.name));
            let hint = "allow them in the definition: `schedule: optional` under the subscription class";
            return Err(vec![problem.hint(hint)]);
        }
        (Some(draft), _) => draft,
    };
    let schedule = draft.read();
    let below = |problem: Problem| {
        let path = draft.place(&problem.path);
        Problem { path: if path.is_empty() { "schedule".to_owned() } else { format!("schedule.{path}") }, ..problem }
    };
    let schedule = schedule.map_err(|problems| problems.into_iter().map(below).collect::<Vec<_>>())?;
    if schedule.next_after(Timestamp(i64::MIN)).is_none() {
        let problem = Problem::new(Code::NeverDue, "schedule", "is never due: the rule has no occurrences");
        return Err(vec![problem.hint("look for dates that do not exist, such as 30 February")]);
    }
    if let Some(found) = too_frequent(&schedule, class.limits.schedule_interval) {
        let problem = Problem::new(Code::TooFrequent, "schedule", found)
            .hint("make its intervals longer, or lower `limits.schedule_interval` in the definition");
        match is_export {
            true => warnings.push(problem),
            false => return Err(vec![problem]),
        }
    }
    Ok(Some(schedule.to_string().into()))
}

fn check_values(
    raw: &str,
    fields: &Fields,
    basis: &Basis<'_>,
    warnings: &mut Vec<Problem>,
) -> Result<Box<str>, Vec<Problem>> {
    if raw.len() > VALUE_BYTES_MAX {
        let message = format!("takes {} bytes; at most {VALUE_BYTES_MAX} fit", raw.len());
        return Err(vec![
            Problem::new(Code::TooLong, "values", message)
                .param("given", raw.len())
                .param("limit", VALUE_BYTES_MAX)
                .param("unit", "bytes"),
        ]);
    }
    let below = |problem: Problem| {
        let path = if problem.path.is_empty() { "values".to_owned() } else { format!("values.{}", problem.path) };
        // A position within the values would mislead: it is not one of the whole text.
        Problem { path, line: None, column: None, ..problem }
    };
    let row = match basis {
        Basis::New => fields.row_from_json(raw.as_bytes()),
        Basis::Stored(_, stored) => fields.row_over_stored(raw.as_bytes(), stored),
        Basis::Export => fields.row_from_export(raw.as_bytes()).map(|(row, found)| {
            warnings.extend(found.into_iter().map(below));
            row
        }),
    };
    let row = row.map_err(|problems| problems.into_iter().map(below).collect::<Vec<_>>())?;
    Ok(fields.to_json(&row).into())
}

impl Service {
    /// Some subscriptions in the order of their numbers.
    ///
    /// # Errors
    /// The scope `subscribers:read` is missing, or `after` is no cursor.
    pub async fn subscriptions(
        &self,
        caller: &Caller,
        filter: &SubscriptionFilter,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page<Document>, ServiceError> {
        caller.needs(Scope::SubscribersRead)?;
        let after: Option<SubscriptionId> = key_of(after)?;
        let found = self.subscription_store.scan_subscriptions(filter, after, limit).await?;
        if found.items.is_empty() && after.is_none() {
            self.check_known_class(filter).await?;
        }
        Ok(Page::of(found).map(|found| self.shown(found)))
    }

    pub(crate) async fn check_known_class(&self, filter: &SubscriptionFilter) -> Result<(), ServiceError> {
        self.check_known(filter.application.as_ref(), &[(Part::SubscriptionClass, filter.class.as_ref())]).await
    }

    /// A subscription as the running version of its class shows it.
    pub(crate) fn shown(&self, subscription: Subscription) -> Document {
        let fields = class_fields(&self.pipeline, &subscription.application, &subscription.class);
        Document::of(subscription, fields.as_ref())
    }

    /// One subscription.
    ///
    /// # Errors
    /// It does not exist.
    pub async fn subscription(&self, caller: &Caller, id: SubscriptionId) -> Result<Document, ServiceError> {
        caller.needs(Scope::SubscribersRead)?;
        Ok(self.shown(self.find_subscription(id).await?))
    }

    /// Makes a subscription, or replaces the one of its key. The answer says whether it is new.
    ///
    /// # Errors
    /// `Invalid` with every problem, an unknown subscriber among them.
    pub async fn add_subscription(&self, caller: &Caller, draft: Draft<'_>) -> Result<(Document, bool), ServiceError> {
        caller.needs(Scope::SubscribersWrite)?;
        let named = draft.application.as_deref().and_then(|name| name.parse().ok());
        caller.check_application(named.as_ref())?;
        self.make_subscription(draft).await
    }

    pub(crate) async fn make_subscription(&self, draft: Draft<'_>) -> Result<(Document, bool), ServiceError> {
        let class = self.class_of(&draft)?;
        let one = |problem| ServiceError::Invalid(vec![problem]);
        let replaced = match (draft.subscriber.as_deref().map(str::parse), &draft.key) {
            (Some(Ok(subscriber)), Some(key)) => {
                of_key(&*self.subscription_store, (&class.application, &class.name), &subscriber, key).await?
            }
            _ => None,
        };
        let basis = match &replaced {
            Some(stored) => Basis::of(stored, &class.fields)?,
            None => Basis::New,
        };
        let checked = check_off_thread(draft, &class, &basis).await?.map_err(ServiceError::Invalid)?;
        let new = checked.within_limits(replaced.as_ref()).map_err(one)?;
        let is_new = replaced.is_none();
        if is_new {
            class.check_room().map_err(one)?;
        }
        let now = self.clock.now();
        let stored = self.subscription_store.put_subscription(new, now).await.map_err(|error| match error {
            StoreError::Missing(what) => {
                ServiceError::invalid(Code::UnknownReference, "subscriber", format!("{what} does not exist"))
            }
            error => error.into(),
        })?;
        // Of several requests of one key at the same time, one made the subscription.
        let is_new = is_new && stored.created_at == now;
        Ok((self.subscription_stored(stored).await?, is_new))
    }

    /// A subscription as it was just stored, with what keeps its notifications from being sent.
    async fn subscription_stored(&self, stored: Subscription) -> Result<Document, ServiceError> {
        let mut document = self.shown(stored.clone());
        if let Some(device) = &stored.device {
            let subscriber = self.subscriber_store.subscriber(&stored.subscriber).await?;
            if subscriber.is_some_and(|subscriber| !subscriber.devices.contains_key(device)) {
                document.warnings.push(format!(
                    "the subscriber `{}` has no device `{device}`: what it would get is suspended until it has one",
                    stored.subscriber
                ));
            }
        }
        if let Some((schedule, since)) = self.schedule_store.schedule_of(stored.id).await? {
            let now = self.clock.now();
            let schedule = Schedule::parse(&schedule).map_err(ServiceError::Invalid)?;
            document.warnings.extend(over(&schedule, now.max(since)).map(|found| format!("its schedule {found}")));
        }
        Ok(document)
    }

    /// Replaces device, enabled flag, values, filter, schedule and snooze of a subscription. Its application, class, subscriber and key stay:
    /// where the draft names them, they must be the same.
    ///
    /// # Errors
    /// There is none; the draft is not valid; it has another revision than expected.
    pub async fn replace_subscription(
        &self,
        caller: &Caller,
        id: SubscriptionId,
        draft: Draft<'_>,
        revision: Option<u64>,
    ) -> Result<Document, ServiceError> {
        caller.needs(Scope::SubscribersWrite)?;
        let present = self.find_subscription(id).await?;
        let expect = revision.map_or(Precondition::Present, Precondition::Revision);
        self.subscription_stored(self.update_subscription(&present, draft, expect).await?).await
    }

    /// Changes a subscription by a merge patch (RFC 7396).
    ///
    /// # Errors
    /// There is none; the result is not valid; it has another revision than expected.
    pub async fn patch_subscription(
        &self,
        caller: &Caller,
        id: SubscriptionId,
        patch: &serde_json::Value,
        revision: Option<u64>,
    ) -> Result<Document, ServiceError> {
        caller.needs(Scope::SubscribersWrite)?;
        let mut turn = self.turns.take(&id).await;
        loop {
            let present = self.find_subscription(id).await?;
            if revision.is_some_and(|requested| requested != present.revision) {
                return Err(ServiceError::Changed(format!("the subscription `{id}`")));
            }
            let mut merged = serde_json::to_value(self.shown(present.clone())).expect("a document is always JSON");
            merge(&mut merged, patch)?;
            let text = merged.to_string();
            let draft: Draft<'_> = serde_json::from_str(&text).map_err(|error| json_error(&error))?;
            match self.update_subscription(&present, draft, Precondition::Revision(present.revision)).await {
                Err(ServiceError::Changed(_)) if revision.is_none() => {
                    turn.repeat(format_args!("the subscription `{id}`"))?
                }
                updated => return self.subscription_stored(updated?).await,
            }
        }
    }

    /// Removes a subscription.
    ///
    /// # Errors
    /// There is none, or it has another revision than expected.
    pub async fn remove_subscription(
        &self,
        caller: &Caller,
        id: SubscriptionId,
        revision: Option<u64>,
    ) -> Result<(), ServiceError> {
        caller.needs(Scope::SubscribersWrite)?;
        let expect = revision.map_or(Precondition::Present, Precondition::Revision);
        Ok(self.subscription_store.remove_subscription(id, expect, self.clock.now()).await?)
    }

    pub(crate) async fn update_subscription(
        &self,
        present: &Subscription,
        draft: Draft<'_>,
        expect: Precondition,
    ) -> Result<Subscription, ServiceError> {
        let fixed = [
            ("application", draft.application.as_deref(), present.application.as_str()),
            ("class", draft.class.as_deref(), present.class.as_str()),
            ("subscriber", draft.subscriber.as_deref(), present.subscriber.as_str()),
        ];
        let mut problems: Vec<Problem> = fixed
            .iter()
            .filter(|(_, written, is)| written.is_some_and(|written| written != *is))
            .map(|(path, _, is)| {
                Problem::new(Code::ReadOnly, *path, "cannot change")
                    .hint(format!("it is `{is}`; make another subscription"))
            })
            .collect();
        if draft.key.is_some() && draft.key != present.key {
            problems.push(Problem::new(Code::ReadOnly, "key", "cannot change").hint("make another subscription"));
        }
        if !problems.is_empty() {
            return Err(ServiceError::Invalid(problems));
        }
        let compiled = self.running(&present.application)?;
        let now = self.clock.now();
        let class = match Class::of(&compiled, present.class.as_str()) {
            Ok(class) => class.within(Used::of(&self.pipeline, &present.application)),
            Err(gone) => {
                let change = check_without_class(draft, present, gone).map_err(ServiceError::Invalid)?;
                return Ok(self
                    .subscription_store
                    .update_subscription(UpdateSubscription { id: present.id, change, expect, now })
                    .await?);
            }
        };
        let draft = Draft { subscriber: Some(present.subscriber.as_str().to_owned().into()), key: None, ..draft };
        let basis = Basis::of(present, &class.fields)?;
        let checked = check_off_thread(draft, &class, &basis).await?.map_err(ServiceError::Invalid)?;
        // What it has counts already; only another filter needs room.
        let new = checked.within_limits(Some(present)).map_err(|problem| ServiceError::Invalid(vec![problem]))?;
        let change =
            SubscriptionChange { device: new.device, enabled: new.enabled, values: new.values, terms: new.terms };
        Ok(self
            .subscription_store
            .update_subscription(UpdateSubscription { id: present.id, change, expect, now })
            .await?)
    }

    fn class_of(&self, draft: &Draft<'_>) -> Result<Class, ServiceError> {
        let mut problems = Vec::new();
        let mut required = |path: &str, given: &Option<std::borrow::Cow<'_, str>>| match given {
            Some(given) => given.to_string(),
            None => {
                problems.push(Problem::new(Code::Required, path, "is required: give a string"));
                String::new()
            }
        };
        let application = required("application", &draft.application);
        let class = required("class", &draft.class);
        if !problems.is_empty() {
            return Err(ServiceError::Invalid(problems));
        }
        self.named_class(&application, &class)
    }

    /// The class of an application, both given in the body or query of a request.
    pub(crate) fn named_class(&self, application: &str, class: &str) -> Result<Class, ServiceError> {
        let compiled = application.parse::<Name>().ok().and_then(|name| self.pipeline.application(&name));
        let Some(compiled) = compiled else {
            return Err(ServiceError::from(
                Problem::new(Code::UnknownReference, "application", format!("`{application}` does not run here"))
                    .param("kind", "application")
                    .param("value", application.to_string()),
            ));
        };
        let used = Used::of(&self.pipeline, &compiled.application.name);
        let class = Class::of(&compiled, class).map_err(|problem| ServiceError::Invalid(vec![problem]))?;
        Ok(class.within(used))
    }

    /// Returns the revision of a subscription, for a conditional change.
    ///
    /// # Errors
    /// The subscription does not exist.
    pub async fn subscription_revision(&self, caller: &Caller, id: SubscriptionId) -> Result<u64, ServiceError> {
        caller.needs(Scope::SubscribersWrite)?;
        Ok(self.find_subscription(id).await?.revision)
    }

    pub(crate) async fn find_subscription(&self, id: SubscriptionId) -> Result<Subscription, ServiceError> {
        self.subscription_store
            .subscription(id)
            .await?
            .ok_or_else(|| ServiceError::Missing(format!("the subscription `{id}`")))
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn a_filter_of_a_request_is_compiled_on_a_blocking_thread() {
        let text = "application: shop\nevents: { quake: { fields: { place: string } } }\n\
                    subscriptions: { near: { filter: cel } }\n\
                    notifications: { note: { content: { templates: { base: { text: hello } } } } }\n\
                    rules: { r: { on: quake, subscription: near, when: event.place != '', notify: note } }\n";
        let compiled = tocsin_pipeline::compile_text(text, 1, &|_: &str| None).expect("a definition");
        let class = Class::of(&compiled, "near").expect("a class");
        let draft = r#"{"subscriber": "ann", "filter": "event.place.matches('^a+b')"}"#;
        let draft: Draft<'_> = serde_json::from_str(draft).expect("a draft");
        let runtime = tokio::runtime::Builder::new_current_thread().max_blocking_threads(1).build();
        runtime.expect("a runtime").block_on(async {
            let (release, released) = std::sync::mpsc::channel::<()>();
            let busy = tokio::task::spawn_blocking(move || released.recv());
            let mut checking = std::pin::pin!(check_off_thread(draft, &class, &Basis::New));
            assert!(checking.as_mut().now_or_never().is_none(), "it waits for the blocking thread");
            release.send(()).expect("sent");
            busy.await.expect("joined").expect("received");
            let checked = checking.await.expect("checked");
            assert!(checked.is_ok_and(|checked| checked.new.terms.filter.is_some()));
        });
    }
}
