//! Rule tests: evaluates a rule, applied or not, on given or stored events. Shows the matching subscriptions or, for
//! one subscription, why it does not match.
//!
//! A test has its own index, filled from the records, so that it is independent of the matcher.

mod test_index; // temporary index of a rule test
mod measure; // what a rule costs, beside one that matches nothing

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use serde_json::value::RawValue;
use tocsin_matching::{
    chronicle::tables::EntryChange,
    oracle::SubscriptionView,
    rule::{Memberships, RuleNumber, RuleSet},
    shard::Shard,
    subscriber::SubscriberView,
};
use tocsin_model::{
    application::{Application, ContentTemplates, NotificationClass, Rule, RuleState},
    delivery_policy::DeliveryPolicy,
    event::EventBatch,
    field::{Fields, Row},
    id::{ChangeSequence, EventId, Name, SubscriberNumber, SubscriptionId},
    problem::{Code, Problem, closest},
};
use tocsin_pipeline::{
    Compiled, apply_chronicle_change,
    compile::{check_queries, compile_rules},
    subject, view_subscribers,
};
use tocsin_store::queries::{QuerySet, QueryTables};

pub use measure::Cost;
/// Evaluation of a rule for one event and subscription.
pub use tocsin_matching::trial::{Condition, FilterTrial, Junction, Trial, Verdict};

use self::{
    measure::{baseline, measure},
    test_index::{TestIndex, try_query, who_matches},
};
use crate::{
    Service,
    applications::RuleExplanation,
    error::{ServiceError, row_error},
    keys::{Caller, Scope},
    subscriptions::{self, FilterDraft},
};

/// Maximum number of events per test.
pub const EVENTS_MAX: usize = 1_000;
/// Maximum number of subscriptions tested.
pub const SUBSCRIPTIONS_MAX: usize = 1_000_000;
/// Default number of subscriptions tested.
const SUBSCRIPTIONS_USUAL: usize = 100_000;
/// Maximum number of matching subscriptions listed per event.
pub const SHOWN_MAX: usize = 100;
/// Default number of matching subscriptions listed per event.
const SHOWN_DEFAULT: usize = 10;
/// Maximum number of concurrent tests: each holds its own index.
pub const CONCURRENT_MAX: usize = 2;
/// Subscriptions read from the records at a time.
const PAGE: usize = 5_000;
/// Event batches searched for the last events of a class.
const BATCHES_MAX: usize = 10_000;

/// Input of a rule test.
#[derive(Debug, Default)]
pub struct TestDraft {
    /// The tested rule.
    pub rule: Option<RuleChoice>,
    /// Events to test, each an object with the class's fields; at most 1,000.
    pub events: Vec<Box<RawValue>>,
    /// Number of newest stored events of the class to use instead of `events`; at most 1,000.
    pub last: Option<usize>,
    /// Explain for this subscription only, condition by condition.
    pub subscription: Option<SubjectChoice>,
    /// Number of stored subscriptions of the class to test, by number; 1 to 1,000,000, default 100,000.
    pub subscriptions: Option<usize>,
    /// Number of matching subscriptions listed per event; 0 to 100, default 10.
    pub show: Option<usize>,
    /// Whether to measure the rule as well, against a baseline: a rule on the same event class that matches nothing.
    /// Takes two seconds.
    pub measure: bool,
}

/// A rule to test.
#[derive(Debug)]
pub enum RuleChoice {
    /// A rule of the running version, by its name.
    Named(String),
    /// An inline rule.
    Inline(RuleDraft),
}

/// An inline rule of a test.
#[derive(Debug)]
pub struct RuleDraft {
    /// The event class.
    pub on: Name,
    /// The subscription class.
    pub subscription: Name,
    /// The predicate over `event` and `sub`, in CEL; without one every pair matches.
    pub when: Option<String>,
}

/// A subscription on which a rule is tested.
#[derive(Debug)]
pub enum SubjectChoice {
    /// A stored subscription.
    Stored(SubscriptionId),
    /// An inline subscription.
    Inline(SubjectDraft),
}

/// An inline subscription.
#[derive(Debug)]
pub struct SubjectDraft {
    /// The fields of its class.
    pub values: Option<serde_json::Value>,
    /// Own filter over the event.
    pub filter: Option<FilterDraft>,
}

/// Result of a rule test.
#[derive(Debug, Clone)]
pub struct RuleTest {
    /// Execution plan of the rule.
    pub explanation: RuleExplanation,
    /// Number of subscriptions tested; 0 if one was named.
    pub tried: Option<usize>,
    /// Whether these were all of the class.
    pub all: bool,
    /// Number of subscriptions that cannot be matched by this version of the rule: their filter or values do not fit.
    pub unusable: usize,
    /// Result for each event, in order.
    pub events: Vec<TestedEvent>,
    /// Cost per event, if measured.
    pub cost: Option<Cost>,
}

/// Result for one event.
#[derive(Debug, Clone, Default)]
pub struct TestedEvent {
    /// Its id, if it is stored.
    pub event: Option<EventId>,
    /// Number of matching subscriptions.
    pub matches: u64,
    /// Some of them.
    pub subscriptions: Vec<SubscriptionId>,
    /// Evaluation for the named subscription.
    pub trial: Option<Trial>,
    /// Reasons why the rule could not be evaluated, for all or some subscriptions.
    pub failures: Vec<String>,
}

/// A test event, a row of its class.
#[derive(Clone)]
struct Sample {
    id: Option<EventId>,
    row: Row,
}

/// The tested rule, alone in a rule set.
pub(crate) struct Tested {
    application: Name,
    pub(crate) rules: Arc<RuleSet>,
    /// Its query, if it has one.
    queries: Arc<QuerySet>,
    rule: RuleNumber,
    pub(crate) on: Name,
    class: Name,
    fields: Fields,
    time: Duration,
    /// Whether its events are lifecycle events, each of which concerns one subscription.
    is_lifecycle: bool,
}

impl Service {
    /// Tests a rule on events: the matching subscriptions, or the evaluation for one. Nothing is stored or sent.
    ///
    /// # Errors
    /// The scope `operations:read` is missing; the application is not running; `Invalid` with all problems of the
    /// rule, the events or the subscription; `TooMany` if [`CONCURRENT_MAX`] tests are running.
    pub async fn test_rule(
        &self,
        caller: &Caller,
        application: &Name,
        draft: TestDraft,
    ) -> Result<RuleTest, ServiceError> {
        caller.needs(Scope::OperationsRead)?;
        let compiled = self.running(application)?;
        let _permit = self.rule_tests.try_acquire().map_err(|_| ServiceError::TooMany {
            reason: format!("{CONCURRENT_MAX} tests of rules run already"),
            retry_after: Duration::from_secs(2),
        })?;
        let tested = tested(&compiled, draft.rule.as_ref())?;
        let mut samples = self.samples(&tested, &draft).await?;
        let entries = self.chronicle_samples(&tested, &mut samples).await?;
        let explanation = tested.rules.explain().into_iter().next();
        let mut explanation = explanation.ok_or_else(|| ServiceError::Missing("the rule".to_owned()))?;
        let kept = compiled.rules.chronicle_columns(&tested.on);
        let not_kept = tested.rules.chronicle_columns(&tested.on).into_iter().filter(|column| !kept.contains(column));
        explanation.warnings.extend(not_kept.filter(|_| draft.last.is_some()).map(|column| {
            format!("no rule of the running version reads `{column}`, so stored events have no value of it: it is null")
        }));
        if let Some((plan, warnings)) = tested.queries.plan(&explanation.rule) {
            explanation.query = plan.to_vec();
            explanation.warnings.extend_from_slice(warnings);
        }
        let Some(subject) = draft.subscription else {
            let limit = bounded("subscriptions", draft.subscriptions, SUBSCRIPTIONS_USUAL, 1, SUBSCRIPTIONS_MAX)?;
            let shown = bounded("show", draft.show, SHOWN_DEFAULT, 0, SHOWN_MAX)?;
            let (index, unusable, all) = self.test_index(&tested, limit, &entries).await?;
            let tried = Some(index.shard.len());
            let now = self.clock.now();
            let baseline = draft.measure.then(|| baseline(&compiled, &tested)).transpose()?;
            let find = move || {
                let (mut index, copies) = (index, samples.clone());
                let events = who_matches(&mut index, &tested, samples, shown, now);
                let cost = baseline.filter(|_| !events.is_empty());
                let cost = cost.map(|baseline| measure(index, &tested, &baseline, copies, now)).transpose();
                cost.map(|cost| (events, cost))
            };
            let found = tokio::task::spawn_blocking(find).await;
            let (events, cost) = found.map_err(|error| ServiceError::Unavailable(error.into()))??;
            return Ok(RuleTest { explanation, tried, all, unusable, events, cost });
        };
        if draft.measure {
            let problem = Problem::new(
                Code::ConflictingMembers,
                "measure",
                "stands beside `subscription`: one subscription is tried, not measured",
            );
            return Err(ServiceError::Invalid(vec![problem.hint("leave one of them out")]));
        }
        let subscription_view = self.subscription_view(&compiled, &tested, subject).await?;
        if !tested.queries.is_empty() {
            let (index, unusable, all) = self.test_index(&tested, SUBSCRIPTIONS_USUAL, &entries).await?;
            let now = self.clock.now();
            let find = move || try_query(index, &tested, samples, &subscription_view, now);
            let events = tokio::task::spawn_blocking(find).await;
            let events = events.map_err(|error| ServiceError::Unavailable(error.into()))?;
            return Ok(RuleTest { explanation, tried: None, all, unusable, events, cost: None });
        }
        let events = samples.into_iter().map(|sample| {
            let trial = tested.rules.try_rule(tested.rule, &sample.row, &subscription_view);
            TestedEvent {
                event: sample.id,
                matches: u64::from(trial.matches),
                trial: Some(trial),
                ..TestedEvent::default()
            }
        });
        Ok(RuleTest { explanation, tried: None, all: false, unusable: 0, events: events.collect(), cost: None })
    }

    /// Evaluates a rule in SQL for one event and subscription, by its query over the subscriptions of now.
    pub(crate) async fn try_query_rule(
        &self,
        compiled: &Compiled,
        rule: &Name,
        event: &Row,
        stored: Option<(EventId, &EventBatch, &Fields)>,
        subscription: &SubscriptionView,
    ) -> Result<Trial, ServiceError> {
        let _permit = self.rule_tests.try_acquire().map_err(|_| ServiceError::TooMany {
            reason: format!("{CONCURRENT_MAX} tests of rules run already"),
            retry_after: Duration::from_secs(2),
        })?;
        let tested = tested(compiled, Some(&RuleChoice::Named(rule.to_string())))?;
        let stored = match stored {
            Some((id, batch, packed)) => {
                let rows = tested.rules.rows(batch, packed).unwrap_or_default();
                rows.into_iter().nth(id.ordinal as usize).map(|row| Sample { id: Some(id), row })
            }
            None => None,
        };
        let given = || Sample { id: None, row: event.iter().take(tested.fields.len()).cloned().collect() };
        let mut samples = vec![stored.unwrap_or_else(given)];
        let entries = self.chronicle_samples(&tested, &mut samples).await?;
        let (index, ..) = self.test_index(&tested, SUBSCRIPTIONS_USUAL, &entries).await?;
        let (now, subscription) = (self.clock.now(), subscription.clone());
        let find = move || try_query(index, &tested, samples, &subscription, now);
        let found = tokio::task::spawn_blocking(find).await;
        let found = found.map_err(|error| ServiceError::Unavailable(error.into()))?;
        let trial = found.into_iter().next().and_then(|event| event.trial);
        trial.ok_or_else(|| ServiceError::Missing("the rule".to_owned()))
    }

    async fn samples(&self, tested: &Tested, draft: &TestDraft) -> Result<Vec<Sample>, ServiceError> {
        match (draft.events.as_slice(), draft.last) {
            ([], None) => {
                let problem = Problem::new(Code::Required, "events", "there is no event to try the rule on");
                Err(ServiceError::Invalid(vec![problem.hint("give `events`, or `last` for the last stored ones")]))
            }
            ([], Some(last)) => {
                let last = bounded("last", Some(last), 1, 1, EVENTS_MAX)?;
                self.last_events(tested, last).await
            }
            (_, Some(_)) => Err(ServiceError::from(
                Problem::new(Code::ConflictingMembers, "last", "stands beside `events`; give one of them")
                    .param("with", "events"),
            )),
            (events, None) if events.len() > EVENTS_MAX => {
                let message = format!("holds {} events; at most {EVENTS_MAX} are tried", events.len());
                Err(ServiceError::from(
                    Problem::new(Code::TooMany, "events", message)
                        .param("given", events.len())
                        .param("limit", EVENTS_MAX),
                ))
            }
            (events, None) => {
                let (mut samples, mut problems) = (Vec::new(), Vec::new());
                for (at, event) in events.iter().enumerate() {
                    match tested.fields.row_from_json(event.get().as_bytes()).map_err(row_error) {
                        Ok(row) => samples.push(Sample { id: None, row }),
                        Err(ServiceError::Invalid(found)) => problems.extend(found.into_iter().map(|problem| {
                            Problem { path: prefix_path(&format!("events[{at}]"), &problem.path), ..problem }
                        })),
                        Err(error) => return Err(error),
                    }
                }
                if !problems.is_empty() {
                    return Err(ServiceError::Invalid(problems));
                }
                Ok(samples)
            }
        }
    }

    /// Values of the chronicles if these events came now, one after the other, on top of the journal; stored events
    /// are already included.
    async fn chronicle_samples(
        &self,
        tested: &Tested,
        samples: &mut [Sample],
    ) -> Result<Vec<EntryChange>, ServiceError> {
        let mut entries = Vec::new();
        let are_stored = samples.iter().any(|sample| sample.id.is_some());
        let are_read = tested.rules.has_chronicle_tables() || !are_stored && tested.rules.reads_chronicles(&tested.on);
        let book = match are_read {
            true => Some(self.chronicle_book(&tested.application, &tested.rules).await?),
            false => None,
        };
        let now = self.clock.now();
        let mut rows: Vec<Row> = samples.iter_mut().map(|sample| std::mem::take(&mut sample.row)).collect();
        if !are_stored {
            rows.iter_mut().for_each(|row| *row = tested.rules.bare_row(&tested.on, std::mem::take(row)));
        }
        if let Some(mut book) = book {
            if !are_stored {
                book.take(&tested.on, &mut rows, now);
            }
            book.publish_tables(now, &mut |change| entries.push(change));
        }
        for (sample, row) in samples.iter_mut().zip(rows) {
            sample.row = row;
        }
        Ok(entries)
    }

    /// The newest stored events of the class, oldest first.
    async fn last_events(&self, tested: &Tested, last: usize) -> Result<Vec<Sample>, ServiceError> {
        let mut found: Vec<Sample> = Vec::new();
        let (mut before, mut looked_at) = (None, 0);
        while found.len() < last && looked_at < BATCHES_MAX {
            let page = self.event_log.event_batches(before, 100).await?;
            let Some((oldest, _)) = page.last() else { break };
            before = Some(oldest.id);
            looked_at += page.len();
            for (head, _) in page {
                if head.application != tested.application || head.class != tested.on || found.len() >= last {
                    continue;
                }
                let Some((batch, _)) = self.event_log.event_batch(head.id).await? else { continue };
                // What was packed by a version that cannot be read any more is ignored.
                let Ok(fields) = self.fields_of(&batch).await else { continue };
                let Ok(rows) = tested.rules.rows(&batch, &fields) else { continue };
                let id = |ordinal| EventId { batch: batch.id, ordinal };
                let newest_first = (0u32..).zip(rows).map(|(ordinal, row)| Sample { id: Some(id(ordinal)), row });
                let newest_first: Vec<Sample> = newest_first.collect();
                found.extend(newest_first.into_iter().rev().take(last - found.len()));
            }
        }
        found.reverse();
        Ok(found)
    }

    /// Builds an index of the enabled subscriptions of the class, up to `limit`. Returns it with the number of
    /// rejected ones, and whether these were all.
    pub(crate) async fn test_index(
        &self,
        tested: &Tested,
        limit: usize,
        entries: &[EntryChange],
    ) -> Result<(TestIndex, usize, bool), ServiceError> {
        let mut shard = Shard::new(tested.rules.clone());
        let mut tables = QueryTables::open(tested.queries.clone())?.map(Mutex::new);
        if let Some(tables) = &mut tables {
            entries.iter().for_each(|change| apply_chronicle_change(tables.get_mut(), change));
        }
        let (mut after, mut unusable) = (None, 0);
        loop {
            let page = self.match_store.indexed_subscriptions(&tested.application, after, PAGE).await?;
            let full = page.len() == PAGE;
            after = page.last().map(|subscription| subscription.id);
            let subscribers: Vec<_> = page.iter().map(|subscription| subscription.subscriber).collect();
            let views = self.views(tested, &subscribers).await?;
            for (subscription, view) in page.iter().zip(views) {
                let columns = if tables.is_some() { view.columns.clone() } else { Row::new() };
                if subscription.class == tested.class && shard.len() + unusable >= limit {
                    return Ok((TestIndex { shard, tables }, unusable, false));
                }
                let is_tested = subscription.class == tested.class;
                let fits = if is_tested {
                    shard.put_of(subject(subscription), view).is_ok()
                } else {
                    tables.is_some() && tested.rules.check_subject(subject(subscription)).is_ok()
                };
                unusable += usize::from(is_tested && !fits);
                // A query may look at other classes as well.
                if let (Some(tables), true) = (&mut tables, fits) {
                    tables.get_mut().put(subscription, &columns);
                }
            }
            if !full {
                return Ok((TestIndex { shard, tables }, unusable, true));
            }
            tokio::task::yield_now().await;
        }
    }

    async fn subscription_view(
        &self,
        compiled: &Compiled,
        tested: &Tested,
        subject: SubjectChoice,
    ) -> Result<SubscriptionView, ServiceError> {
        let unreadable =
            |_| ServiceError::invalid(Code::Conflict, "subscription", "does not fit this version of its class");
        let read = |id, values: &str, filter: Option<&_>| {
            SubscriptionView::read(&tested.rules, id, &tested.class, values, filter).map_err(unreadable)
        };
        let draft = match subject {
            SubjectChoice::Stored(id) => {
                let stored = self.subscription_store.subscription(id).await?;
                let stored = stored.ok_or_else(|| ServiceError::Missing(format!("the subscription {id}")))?;
                if (&stored.application, &stored.class) != (&tested.application, &tested.class) {
                    let message = format!(
                        "{id} is of the class `{}` of `{}`, and the rule looks through `{}` of `{}`",
                        stored.class, stored.application, tested.class, tested.application
                    );
                    return Err(ServiceError::invalid(Code::Mismatch, "subscription", message));
                }
                let subscription_view = read(id, &stored.values, stored.terms.filter.as_ref())?;
                let view = self.views(tested, &[stored.subscriber_number]).await?.pop().unwrap_or_default();
                return Ok(subscription_view.of(&tested.rules, view));
            }
            SubjectChoice::Inline(draft) => draft,
        };
        let class = subscriptions::Class::of(compiled, tested.class.as_str())
            .map_err(|problem| ServiceError::Invalid(vec![problem]))?;
        let values = draft.values.map_or_else(|| "{}".to_owned(), |values| values.to_string());
        let (values, filter) = subscriptions::check_subject(&values, draft.filter, &class).map_err(|problems| {
            let below = |problem: Problem| Problem { path: prefix_path("subscription", &problem.path), ..problem };
            ServiceError::Invalid(problems.into_iter().map(below).collect())
        })?;
        // An inline subscription has no subscriber, so no attributes can exclude it.
        let anybody = SubscriberView::member(Memberships::ALL);
        Ok(read(SubscriptionId(0), &values, filter.as_ref())?.of(&tested.rules, anybody))
    }

    /// Subscribers as the tested rule sees them now.
    async fn views(
        &self,
        tested: &Tested,
        subscribers: &[SubscriberNumber],
    ) -> Result<Vec<SubscriberView>, ServiceError> {
        let now = ChangeSequence(u64::MAX);
        Ok(view_subscribers(&*self.match_store, &tested.rules, subscribers, now).await?)
    }
}

/// Compiles the tested rule alone.
fn tested(compiled: &Compiled, rule: Option<&RuleChoice>) -> Result<Tested, ServiceError> {
    match rule {
        Some(RuleChoice::Named(name)) => {
            let rule = rule_named(compiled, name)?;
            let name: Name = name.parse()?;
            alone(compiled, &name, Rule { enabled: true, ..rule }, None, "")
        }
        Some(RuleChoice::Inline(draft)) => {
            let (name, class) = nothing();
            let rule = Rule::new(draft.on.clone(), draft.subscription.clone(), name.clone());
            let rule = Rule { when: draft.when.clone(), ..rule };
            alone(compiled, &name, rule, Some(class), "rule")
        }
        None => {
            let problem = Problem::new(Code::Required, "rule", "is missing");
            Err(ServiceError::Invalid(vec![problem.hint("give a rule's name, or `on`, `subscription` and `when`")]))
        }
    }
}

/// A rule of a version, by its name.
pub(crate) fn rule_named(compiled: &Compiled, name: &str) -> Result<Rule, ServiceError> {
    let running = &compiled.application;
    running.rules.get(name).cloned().ok_or_else(|| {
        let known: Vec<&str> = running.rules.keys().map(Name::as_str).collect();
        let hint = match closest(name, known.iter().copied()) {
            Some(meant) => format!("did you mean `{meant}`?"),
            None => format!("its rules are {}", known.join(", ")),
        };
        let message = format!("`{name}` is not a rule of `{}`", running.name);
        let problem = Problem::new(Code::UnknownReference, "rule", message).param("kind", "rule");
        ServiceError::Invalid(vec![problem.param("value", name).hint(hint)])
    })
}

/// A rule with its state clauses, alone in a set; its delay is left out. It must be evaluated event by event.
///
/// # Errors
/// Every problem of the rule, by its path in the definition.
pub(crate) fn with_state(compiled: &Compiled, name: &Name, rule: Rule) -> Result<Tested, Vec<Problem>> {
    let (on, class, timeout) = (rule.on.clone(), rule.subscription.clone(), rule.timeout);
    let mut application = Application { rules: BTreeMap::new(), ..compiled.application.clone() };
    application.rules.insert(name.clone(), Rule { enabled: true, delay: None, ..rule });
    let (queries, _) = check_queries(&application);
    let rules = compile_rules(&application, &queries)?;
    let number = rules.number(name.as_str()).ok_or_else(Vec::new)?;
    let fields = application.events.get(&on).map(|event| event.fields.clone()).unwrap_or_default();
    Ok(Tested {
        application: application.name,
        rules: Arc::new(rules),
        queries: Arc::new(queries),
        rule: number,
        on,
        class,
        fields,
        time: timeout,
        is_lifecycle: false,
    })
}

/// Placeholder names of rule and notification class, so that the notification has no fields.
fn nothing() -> (Name, NotificationClass) {
    let class = NotificationClass {
        fields: Fields::new(Vec::new()),
        description: None,
        batch_size: 1,
        expires_after: None,
        delivery_policy: DeliveryPolicy::default(),
        computed: BTreeMap::new(),
        retention: None,
        content: ContentTemplates::default(),
    };
    ("tested".parse().expect("`tested` is a name"), class)
}

/// A rule alone in a set, with its notification class if it exists. Problems have paths below `path`.
fn alone(
    compiled: &Compiled,
    name: &Name,
    mut rule: Rule,
    makes: Option<NotificationClass>,
    path: &str,
) -> Result<Tested, ServiceError> {
    let mut application = Application { rules: BTreeMap::new(), ..compiled.application.clone() };
    application.notifications.extend(makes.map(|class| (name.clone(), class)));
    let (on, class, time) = (rule.on.clone(), rule.subscription.clone(), rule.timeout);
    // A test ignores rule state: earlier matches do not suppress new ones. It does not wait for a delay.
    (rule.state, rule.delay) = (RuleState::default(), None);
    let is_lifecycle = application.is_lifecycle(&on);
    if let Some(event) = application.events.get_mut(&on) {
        event.lifecycle = None;
    }
    application.rules.insert(name.clone(), rule);
    let (queries, _) = check_queries(&application);
    let rules = compile_rules(&application, &queries).map_err(|problems| {
        let prefix = format!("rules.{name}.");
        let relative = |problem: Problem| Problem {
            path: prefix_path(path, problem.path.strip_prefix(&prefix).unwrap_or(&problem.path)),
            ..problem
        };
        ServiceError::Invalid(problems.into_iter().map(relative).collect())
    })?;
    let rule = rules.number(name.as_str()).ok_or_else(|| ServiceError::Missing(format!("the rule `{name}`")))?;
    let fields = application.events[&on].fields.clone();
    let (rules, queries) = (Arc::new(rules), Arc::new(queries));
    Ok(Tested { application: application.name, rules, queries, rule, on, class, fields, time, is_lifecycle })
}

pub(crate) fn bounded(
    path: &str,
    requested: Option<usize>,
    usual: usize,
    least: usize,
    most: usize,
) -> Result<usize, ServiceError> {
    match requested.unwrap_or(usual) {
        number if (least..=most).contains(&number) => Ok(number),
        number => Err(ServiceError::from(
            Problem::new(Code::OutOfRange, path, format!("is {number}; it can be {least} to {most}"))
                .param("value", number)
                .param("least", least)
                .param("most", most),
        )),
    }
}

fn prefix_path(path: &str, rest: &str) -> String {
    match (path.is_empty(), rest.is_empty()) {
        (true, _) => rest.to_owned(),
        (_, true) => path.to_owned(),
        _ if rest.starts_with('[') => format!("{path}{rest}"),
        _ => format!("{path}.{rest}"),
    }
}
