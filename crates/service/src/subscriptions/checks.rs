//! Checks of drafts against the running version of their class.

use std::sync::Arc;

use serde_json::value::RawValue;
use tocsin_matching::{filter::index::ScanReason, rule::RuleSet};
use tocsin_model::{
    application::{Limits, Presence},
    consent::ConsentPolicy,
    field::{Fields, Row},
    filter::{Dialect, Filter},
    id::{Name, SubscriberId},
    problem::{Code, Problem},
    schedule::Schedule,
    subscription::{Subscription, SubscriptionParams},
    time::Timestamp,
};
use tocsin_pipeline::{Compiled, Pipeline};
use tocsin_store::{
    error::StoreError,
    records::{NewSubscription, SubscriptionChange, SubscriptionFilter, SubscriptionStore},
};

use super::drafts::{Draft, FilterDraft, ScheduleDraft};
use crate::{
    consent_actor::ConsentDraft,
    error::ServiceError,
    schedules::{over, too_frequent},
};

/// Maximum number of bytes of a subscription's values as JSON.
pub const VALUE_BYTES_MAX: usize = 64 * 1024;
/// Longest key, in characters.
pub const KEY_MAX: usize = 255;

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
    pub(super) fn of(stored: &'a Subscription, fields: &Fields) -> Result<Basis<'a>, ServiceError> {
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
    /// Double opt-in, if its subscriptions need a consent.
    pub(crate) consent: Option<Arc<ConsentPolicy>>,
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
    pub(super) fn check_room(&self) -> Result<(), Problem> {
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
                consent: class.consent.clone().map(Arc::new),
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
    /// Policy of the class, if it needs a consent.
    policy: Option<Arc<ConsentPolicy>>,
    /// Consent of the draft.
    consent: Option<ConsentDraft>,
    /// Parts of an export that do not fit its class any more.
    pub(crate) warnings: Vec<Problem>,
}

impl Checked {
    /// Policy of the class, if it needs a consent, and the consent of the draft.
    pub(crate) fn consent(&self) -> (Option<Arc<ConsentPolicy>>, Option<ConsentDraft>) {
        (self.policy.clone(), self.consent.clone())
    }

    /// Warning that its schedule has ended.
    pub(crate) fn ended_warning(&self, now: Timestamp) -> Option<Problem> {
        let schedule = Schedule::parse_floating(self.new.terms.schedule.as_deref()?).ok()?;
        over(&schedule, now).map(|found| Problem::new(Code::NeverDue, "schedule", found))
    }

    /// The subscription, if the limits leave room for its filter.
    pub(crate) fn within_limits(self, stored: Option<&Subscription>) -> Result<NewSubscription, Problem> {
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

pub(super) async fn of_key(
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
pub(crate) async fn check_off_thread(
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
    let consent = match (draft.consent, &class.consent, basis) {
        (Some(_), None, Basis::New | Basis::Stored(..)) => {
            let message = format!("the class `{}` asks for no consent", class.name);
            let problem = Problem::new(Code::NotApplicable, "consent", message);
            problems.push(problem.hint("leave it out, or give the class a `consent` in the definition"));
            None
        }
        (given, ..) => given,
    };
    match subscriber {
        Some(subscriber) if problems.is_empty() => {
            let new = NewSubscription {
                application: class.application.clone(),
                class: class.name.clone(),
                subscriber,
                key: draft.key,
                device,
                enabled: draft.enabled,
                values,
                terms: SubscriptionParams { filter, schedule, snoozed_until: draft.snoozed_until },
            };
            Ok(Checked { new, over_limit, policy: class.consent.clone(), consent, warnings })
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
pub(super) fn check_without_class(
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
        enabled: draft.enabled,
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

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::{super::lines::SubscriptionLine, *};

    #[test]
    fn a_filter_of_a_request_is_compiled_on_a_blocking_thread() {
        let text = "application: shop\nevents: { quake: { fields: { place: string } } }\n\
                    subscriptions: { near: { filter: cel } }\n\
                    notifications: { note: { content: { templates: { base: { text: hello } } } } }\n\
                    rules: { r: { on: quake, subscription: near, when: event.place != '', notify: note } }\n";
        let compiled = tocsin_pipeline::compile_text(text, 1, &|_: &str| None).expect("a definition");
        let class = Class::of(&compiled, "near").expect("a class");
        let draft = r#"{"subscriber": "ann", "filter": "event.place.matches('^a+b')"}"#;
        let line: SubscriptionLine<'_> = serde_json::from_str(draft).expect("a draft");
        let runtime = tokio::runtime::Builder::new_current_thread().max_blocking_threads(1).build();
        runtime.expect("a runtime").block_on(async {
            let (release, released) = std::sync::mpsc::channel::<()>();
            let busy = tokio::task::spawn_blocking(move || released.recv());
            let mut checking = std::pin::pin!(check_off_thread(line.into(), &class, &Basis::New));
            assert!(checking.as_mut().now_or_never().is_none(), "it waits for the blocking thread");
            release.send(()).expect("sent");
            busy.await.expect("joined").expect("received");
            let checked = checking.await.expect("checked");
            assert!(checked.is_ok_and(|checked| checked.new.terms.filter.is_some()));
        });
    }
}
