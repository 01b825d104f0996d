//! Explanation of one pair of event and subscription: why a notification was sent, or was not. Each gate from the
//! acceptance of the event to the response of the remote server, with its verdict.
//!
//! The conditions of rules, the state and the checks before an attempt are evaluated by the code of the matcher and of
//! delivery. The results of a stored event are read from the journal where it has them.

mod gate; // a gate, with its verdict and values
mod match_gates; // gates from the rule to the notification
mod delivery_gates; // gates from the recipient to the response
mod recorded; // records of the journal about an event

use std::{collections::BTreeMap, sync::Arc};

use serde_json::value::RawValue;
use tocsin_matching::rule::RuleSet;
use tocsin_model::{
    event::EventBatch,
    field::{Fields, Row},
    id::{ChangeSequence, EventId, Name, NotificationId, SubscriberId, SubscriptionId},
    problem::{Code, Problem},
    reason_code::ReasonCode,
    receipt::Outcome,
    subscription::Subscription,
    time::Timestamp,
};
use tocsin_pipeline::Compiled;
use tocsin_store::{
    error::StoreError,
    journal::EventBatchState,
    records::{IndexedSubscription, SubscriptionFilter},
};

pub use gate::{AsOf, Gate, GateKind, GateObject, GateVerdict};

use crate::{
    Service,
    error::{ServiceError, row_error},
    keys::{Caller, Scope},
};

use self::recorded::Recorded;

/// Maximum number of subscriptions of a subscriber that are explained.
pub const SUBSCRIPTIONS_MAX: usize = 50;
/// Maximum number of pairs of rule and subscription that are explained.
pub const PATHS_MAX: usize = 100;

/// Input of an explanation.
#[derive(Debug, Default)]
pub struct ExplainDraft {
    /// Id of a stored event.
    pub event: Option<EventId>,
    /// For an event that is not stored: its application.
    pub application: Option<Name>,
    /// For an event that is not stored: its class.
    pub class: Option<Name>,
    /// For an event that is not stored: its fields, as a JSON object.
    pub fields: Option<Box<RawValue>>,
    /// For an event that is not stored: its time of acceptance; default: now.
    pub time: Option<Timestamp>,
    /// The subscription.
    pub subscription: Option<SubscriptionId>,
    /// The subscriber: all its subscriptions of the application.
    pub subscriber: Option<SubscriberId>,
    /// Only this rule.
    pub rule: Option<Name>,
}

/// State of the explained event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventState {
    /// Stored, and not matched yet.
    Accepted,
    /// Matched.
    Matched,
    /// Its batch could not be matched.
    Failed,
    /// Not stored.
    Given,
}

impl EventState {
    /// Its name.
    pub fn word(self) -> &'static str {
        match self {
            EventState::Accepted => "accepted",
            EventState::Matched => "matched",
            EventState::Failed => "failed",
            EventState::Given => "given",
        }
    }
}

/// An explanation.
#[derive(Debug, Clone)]
pub struct Explanation {
    /// The application.
    pub application: Name,
    /// The event class.
    pub class: Name,
    /// Id of the event, if it is stored.
    pub event: Option<EventId>,
    /// Acceptance time of the event.
    pub time: Timestamp,
    /// State of the event.
    pub state: EventState,
    /// Version of the definition by which the gates are evaluated.
    pub version: u32,
    /// Fields of the event, as JSON.
    pub fields: String,
    /// The subscriber, if known.
    pub subscriber: Option<SubscriberId>,
    /// Whether subscriptions and subscribers are read as of the event. Otherwise they are read as of now.
    pub is_snapshot: bool,
    /// Whether subscriptions, paths or notification batches were left out.
    pub truncated: bool,
    /// Gates before a rule and a subscription.
    pub gates: Vec<Gate>,
    /// Each pair of rule and subscription.
    pub paths: Vec<Path>,
}

/// A rule and a subscription.
#[derive(Debug, Clone)]
pub struct Path {
    /// The rule.
    pub rule: Name,
    /// Its notification class.
    pub class: Name,
    /// The subscription.
    pub subscription: SubscriptionId,
    /// The result.
    pub decision: Decision,
    /// The gate from which the result follows.
    pub deciding: Option<GateKind>,
    /// The stored notification.
    pub notification: Option<NotificationId>,
    /// The outcome of its last attempt.
    pub outcome: Option<Outcome>,
    /// All gates in order.
    pub gates: Vec<Gate>,
}

/// Result of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// The notification was delivered.
    Sent,
    /// It was not, and will not be.
    NotSent,
    /// It waits: for the match, a time, a retry or an operator.
    Waiting,
    /// A notification for an event that is not stored would be sent now.
    WouldSend,
    /// Not known.
    Unknown,
}

impl Decision {
    /// Its name.
    pub fn word(self) -> &'static str {
        match self {
            Decision::Sent => "sent",
            Decision::NotSent => "not_sent",
            Decision::Waiting => "waiting",
            Decision::WouldSend => "would_send",
            Decision::Unknown => "unknown",
        }
    }
}

/// The explained event.
struct Subject {
    compiled: Arc<Compiled>,
    class: Name,
    at: Timestamp,
    state: EventState,
    /// Reason why its batch failed.
    failure: Option<String>,
    /// When it was matched.
    matched_at: Option<Timestamp>,
    stored: Option<(EventId, EventBatch, Fields)>,
    /// Its fields, as a row of its class.
    given: Row,
    snapshot: Option<ChangeSequence>,
    recorded: Recorded,
}

/// A subscription as of the event and as of now.
struct Interest {
    id: SubscriptionId,
    /// As of the event, if it could be matched then.
    then: Option<IndexedSubscription>,
    /// As of now.
    now: Option<Subscription>,
    class: Name,
}

impl Service {
    /// Explains why a notification about an event was sent to a subscriber, or was not. Changes nothing.
    ///
    /// # Errors
    /// The scope `operations:read` or `subscribers:read` is missing; the event, subscription or subscriber does not
    /// exist; `Invalid` with the problems of the draft.
    pub async fn explain(&self, caller: &Caller, draft: ExplainDraft) -> Result<Explanation, ServiceError> {
        caller.needs(Scope::OperationsRead)?;
        // A subscriber belongs to no application.
        caller.needs_everywhere(Scope::SubscribersRead)?;
        check_draft(&draft)?;
        let mut subject = self.explained_event(caller, &draft).await?;
        let application = subject.compiled.application.name.clone();
        let mut truncated = subject.recorded.truncated;
        let (ids, subscriber) = self.explained_subscriptions(&subject, &draft).await?;
        truncated |= ids.len() > SUBSCRIPTIONS_MAX;
        let mut interests = Vec::new();
        for id in ids.into_iter().take(SUBSCRIPTIONS_MAX) {
            interests.extend(self.interest(&mut subject, id, draft.subscription.is_some()).await?);
        }
        let rules = subject.compiled.application.rules.iter();
        let on_class = rules.filter(|(_, rule)| rule.on == subject.class);
        let wanted = on_class.filter(|(name, _)| draft.rule.as_ref().is_none_or(|rule| rule == *name));
        let wanted: Vec<(Name, Name)> = wanted.map(|(name, rule)| (name.clone(), rule.subscription.clone())).collect();
        if let Some(rule) = draft.rule.as_ref().filter(|_| wanted.is_empty()) {
            let message = format!("`{rule}` is not a rule on `{}` of `{application}`", subject.class);
            return Err(Problem::new(Code::UnknownReference, "rule", message).param("kind", "rule").into());
        }
        let (mut paths, mut rows) = (Vec::new(), BTreeMap::new());
        for interest in &interests {
            for (rule, _) in wanted.iter().filter(|(_, class)| *class == interest.class) {
                if paths.len() == PATHS_MAX {
                    truncated = true;
                    break;
                }
                let is_requested = draft.rule.is_some();
                paths.push(self.explain_path(&subject, rule, interest, is_requested, &mut rows).await?);
            }
        }
        let mut gates = vec![match_gates::event_gate(&subject)];
        if paths.is_empty() {
            gates.push(no_subscription(&subject, subscriber.as_ref()));
        }
        let fields = &subject.compiled.application.events[&subject.class].fields;
        Ok(Explanation {
            application,
            class: subject.class.clone(),
            event: subject.stored.as_ref().map(|(id, ..)| *id),
            time: subject.at,
            state: subject.state,
            version: subject.compiled.version,
            fields: fields.to_json(&subject.given),
            subscriber,
            is_snapshot: subject.snapshot.is_some(),
            truncated,
            gates,
            paths,
        })
    }

    async fn explained_event(&self, caller: &Caller, draft: &ExplainDraft) -> Result<Subject, ServiceError> {
        let Some(id) = draft.event else { return self.given_event(caller, draft).await };
        let missing = || ServiceError::Missing(format!("the event {id}"));
        let (batch, state) = self.event_log.event_batch(id.batch).await?.ok_or_else(missing)?;
        caller.check_application(Some(&batch.application))?;
        let packed = self.fields_of(&batch).await?;
        let row = batch.events.row(&packed, id.ordinal).map_err(|_| missing())?;
        let recorded = self.recorded(&batch.application, id).await?;
        let (state, matched_at, failure) = match state {
            EventBatchState::Accepted => (EventState::Accepted, None, None),
            EventBatchState::Matched(at) => (EventState::Matched, Some(at), None),
            EventBatchState::Failed(reason) => (EventState::Failed, None, Some(reason)),
        };
        let compiled = self.version_at(&batch.application, matched_at, &recorded).await?;
        let Some(class) = compiled.application.events.get(&batch.class) else {
            let message = format!("is of the class `{}`, which has no rules of the definition", batch.class);
            return Err(ServiceError::invalid(Code::NotApplicable, "event", message));
        };
        // Missing fields of another version are null.
        let given = class.fields.row_from_stored(&packed.to_json(&row)).map_err(|_| missing())?;
        Ok(Subject {
            class: batch.class.clone(),
            at: batch.accepted_at,
            state,
            failure,
            matched_at,
            given,
            snapshot: batch.snapshot_sequence,
            stored: Some((id, batch, packed)),
            recorded,
            compiled,
        })
    }

    async fn given_event(&self, caller: &Caller, draft: &ExplainDraft) -> Result<Subject, ServiceError> {
        let application = draft.application.as_ref().ok_or_else(|| Problem::required("application"))?;
        caller.check_application(Some(application))?;
        let compiled = self.running(application)?;
        let class = draft.class.clone().ok_or_else(|| Problem::required("class"))?;
        let Some(event) = compiled.application.events.get(&class) else {
            let message = format!("`{class}` is not an event class of `{application}`");
            return Err(Problem::new(Code::UnknownReference, "class", message).param("kind", "event_class").into());
        };
        let json = draft.fields.as_deref().map_or("{}", RawValue::get);
        let given = event.fields.row_from_json(json.as_bytes()).map_err(row_error).map_err(|error| match error {
            ServiceError::Invalid(problems) => ServiceError::Invalid(problems.into_iter().map(below_fields).collect()),
            other => other,
        })?;
        Ok(Subject {
            class,
            at: draft.time.unwrap_or_else(|| self.clock.now()),
            state: EventState::Given,
            failure: None,
            matched_at: None,
            given,
            snapshot: None,
            stored: None,
            recorded: Recorded::default(),
            compiled,
        })
    }

    /// The version that matched an event: that of its notifications, or the one in force at that time, or else the
    /// running one.
    async fn version_at(
        &self,
        application: &Name,
        matched_at: Option<Timestamp>,
        recorded: &Recorded,
    ) -> Result<Arc<Compiled>, ServiceError> {
        let version = match (recorded.version, matched_at) {
            (Some(version), _) => Some(version),
            (None, Some(at)) => {
                let history = self.application_store.application_history(application).await?;
                history.into_iter().find(|version| version.applied_at <= at).map(|version| version.version)
            }
            (None, None) => None,
        };
        if let Some(version) = version
            && let Some(compiled) = self.pipeline.version(application, version).await?
        {
            return Ok(compiled);
        }
        self.running(application)
    }

    /// The subscriptions to explain, and their subscriber.
    async fn explained_subscriptions(
        &self,
        subject: &Subject,
        draft: &ExplainDraft,
    ) -> Result<(Vec<SubscriptionId>, Option<SubscriberId>), ServiceError> {
        if let Some(id) = draft.subscription {
            let stored = self.subscription_store.subscription(id).await?;
            return Ok((vec![id], stored.map(|stored| stored.subscriber)));
        }
        let id = draft.subscriber.clone().ok_or_else(|| Problem::required("subscriber"))?;
        let stored = self.subscriber_store.subscriber(&id).await?;
        let stored = stored.ok_or_else(|| ServiceError::Missing(format!("the subscriber `{id}`")))?;
        let application = &subject.compiled.application.name;
        if let Some(sequence) = subject.snapshot {
            match self.match_store.subscriptions_of(&[stored.number], sequence).await {
                Ok(found) => return Ok((found, Some(id))),
                Err(StoreError::Missing(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let filter = SubscriptionFilter {
            application: Some(application.clone()),
            subscriber: Some(id.clone()),
            ..SubscriptionFilter::default()
        };
        let found = self.subscription_store.subscriptions(&filter, None, SUBSCRIPTIONS_MAX + 1).await?;
        Ok((found.into_iter().map(|found| found.id).collect(), Some(id)))
    }

    /// Reads a subscription; `None` if it is of another application. If the changes since the event are no longer
    /// logged, everything is read as of now.
    async fn interest(
        &self,
        subject: &mut Subject,
        id: SubscriptionId,
        is_requested: bool,
    ) -> Result<Option<Interest>, ServiceError> {
        let application = subject.compiled.application.name.clone();
        let now = self.subscription_store.subscription(id).await?;
        let at = subject.snapshot.unwrap_or(ChangeSequence(u64::MAX));
        let then = match self.match_store.indexed_at(&application, &[id..=id], at).await {
            Ok(found) => found.into_iter().next(),
            Err(StoreError::Missing(_)) => {
                subject.snapshot = None;
                let now = ChangeSequence(u64::MAX);
                self.match_store.indexed_at(&application, &[id..=id], now).await?.into_iter().next()
            }
            Err(error) => return Err(error.into()),
        };
        let is_elsewhere = now.as_ref().is_some_and(|now| now.application != application);
        match then.as_ref().map(|then| then.class.clone()).or_else(|| now.as_ref().map(|now| now.class.clone())) {
            _ if is_elsewhere && is_requested => {
                let message = format!("{id} is of another application than the event");
                Err(ServiceError::invalid(Code::Mismatch, "subscription", message))
            }
            _ if is_elsewhere => Ok(None),
            Some(class) => Ok(Some(Interest { id, then, now, class })),
            None if is_requested => Err(ServiceError::Missing(format!("the subscription {id}"))),
            None => Ok(None),
        }
    }

    async fn explain_path(
        &self,
        subject: &Subject,
        rule: &Name,
        interest: &Interest,
        is_requested: bool,
        rows: &mut BTreeMap<Name, Row>,
    ) -> Result<Path, ServiceError> {
        let recorded = subject.recorded.of(rule, interest.id);
        let mut gates = vec![match_gates::event_gate(subject)];
        gates.extend(self.match_gates(subject, rule, interest, is_requested, rows).await?);
        let (delivery, outcome) = self.delivery_gates(subject, rule, interest, recorded).await?;
        gates.extend(delivery);
        let decision = decision(subject, &gates, recorded.is_some(), outcome);
        let deciding = match decision {
            Decision::Sent | Decision::WouldSend => None,
            Decision::Unknown => gates.iter().position(|gate| gate.verdict != GateVerdict::Passed),
            Decision::NotSent | Decision::Waiting => gates.iter().position(|gate| gate.verdict == GateVerdict::Blocked),
        };
        if let Some(deciding) = deciding {
            gates[deciding].deciding = true;
        }
        Ok(Path {
            rule: rule.clone(),
            class: subject.compiled.application.rules[rule].notify.clone(),
            subscription: interest.id,
            decision,
            deciding: deciding.map(|at| gates[at].kind),
            notification: recorded.map(|found| found.id),
            outcome,
            gates,
        })
    }
}

/// The result that follows from the gates.
fn decision(subject: &Subject, gates: &[Gate], is_recorded: bool, outcome: Option<Outcome>) -> Decision {
    let blocked = gates.iter().find(|gate| gate.verdict == GateVerdict::Blocked);
    if is_recorded {
        return match outcome {
            Some(Outcome::Delivered) => Decision::Sent,
            Some(Outcome::Refused | Outcome::Expired | Outcome::Ended) => Decision::NotSent,
            Some(Outcome::Deferred | Outcome::Suspended) | None => Decision::Waiting,
        };
    }
    // A notification that was not made cannot pass later gates.
    let unknown = gates.iter().any(|gate| gate.verdict == GateVerdict::Unknown && gate.kind < GateKind::Recipient);
    match blocked.map(|gate| (gate.kind, gate.code)) {
        Some((GateKind::Event, Some(ReasonCode::EventWaiting)) | (GateKind::Delay, _)) => Decision::Waiting,
        Some((kind, _)) if unknown && kind > GateKind::Notification => Decision::Unknown,
        Some((GateKind::Hours | GateKind::Digest | GateKind::Limits, Some(code))) if code != ReasonCode::NoSendTime => {
            Decision::Waiting
        }
        Some(_) => Decision::NotSent,
        None if unknown || subject.state != EventState::Given => Decision::Unknown,
        None => Decision::WouldSend,
    }
}

fn no_subscription(subject: &Subject, subscriber: Option<&SubscriberId>) -> Gate {
    let text = format!("no subscription of a class of a rule on `{}`", subject.class);
    let gate = Gate::blocked(GateKind::Subscription, AsOf::of(subject.snapshot), ReasonCode::NoSubscription, text);
    let gate = Gate { deciding: true, ..gate };
    match subscriber {
        Some(id) => gate.object("subscriber", id),
        None => gate,
    }
}

fn below_fields(problem: Problem) -> Problem {
    let path = if problem.path.is_empty() { "fields".to_owned() } else { format!("fields.{}", problem.path) };
    Problem { path, ..problem }
}

/// Checks that exactly one event and one recipient are given.
fn check_draft(draft: &ExplainDraft) -> Result<(), ServiceError> {
    let mut problems = Vec::new();
    let conflict = |path: &str, with: &str| {
        let message = format!("stands beside `{with}`; give one of them");
        Problem::new(Code::ConflictingMembers, path, message).param("with", with.to_owned())
    };
    match (&draft.event, &draft.class) {
        (None, None) => {
            let problem = Problem::new(Code::Required, "event", "is missing");
            problems.push(problem.hint("give the id of a stored event, or `application`, `class` and `fields`"));
        }
        (Some(_), _) => {
            let others = [
                ("application", draft.application.is_some()),
                ("class", draft.class.is_some()),
                ("fields", draft.fields.is_some()),
                ("time", draft.time.is_some()),
            ];
            problems.extend(others.into_iter().filter(|(_, given)| *given).map(|(path, _)| conflict(path, "event")));
        }
        (None, Some(_)) => {}
    }
    match (&draft.subscription, &draft.subscriber) {
        (None, None) => {
            let problem = Problem::new(Code::Required, "subscriber", "is missing");
            problems.push(problem.hint("give `subscriber`, or `subscription`"));
        }
        (Some(_), Some(_)) => problems.push(conflict("subscriber", "subscription")),
        _ => {}
    }
    if problems.is_empty() { Ok(()) } else { Err(ServiceError::Invalid(problems)) }
}

/// The rule set by which the pipeline evaluates a rule.
fn rules_of<'a>(compiled: &'a Compiled, rule: &Name) -> &'a Arc<RuleSet> {
    let lifecycle = compiled.targeted.get(rule).filter(|_| compiled.is_lifecycle(rule));
    compiled.scheduled.get(rule).or(lifecycle).unwrap_or(&compiled.rules)
}
