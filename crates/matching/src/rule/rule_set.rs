//! Compiled rules: the plans of event classes, subscription classes and rules, and their state clauses.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tocsin_model::{
    event::EventBatch,
    field::{Damaged, Field, FieldType, Fields, Row, unpack_row},
    filter::Filter,
    id::Name,
    problem::{Code, Problem},
    value::Value,
};

use crate::{
    chronicle_columns::Packed,
    chronicle_names::spelling,
    compiled_chronicle::{Column, CompiledChronicle},
    events::Events,
    expression::{Expression, Kind, UserFunctions},
    filter::{
        compile::compile_for,
        compiled::{CompiledFilter, FilterScope},
        index::{FilterPlacement, ScanReason},
    },
    index::key::Measure,
    rows::Layout,
    rule::branches::{Branch, Range},
    sql_names::chronicle_fields,
    subject::Subject,
    subscriber::SubscriberColumns,
};

/// The index of a rule in its [`RuleSet`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuleNumber(pub u32);

/// All compiled rules of one version of an application. Immutable; shared between shards.
#[derive(Debug)]
pub struct RuleSet {
    pub(crate) application: Name,
    pub(crate) rules: Vec<CompiledRule>,
    pub(crate) classes: Vec<ClassPlan>,
    pub(crate) events: BTreeMap<Name, EventPlan>,
    pub(crate) branches: usize,
    /// One for each pair of a class with filters and an event class of its enabled rules.
    pub(crate) filters: Vec<FilterPlan>,
    /// The segments that rules use as audiences.
    pub(crate) audiences: Vec<Name>,
    /// The subscriber columns that rules can read.
    pub(crate) subscriber: SubscriberColumns,
    /// Whether any enabled rule reads them, or filters may.
    pub(crate) reads_subscriber: bool,
    /// The user-defined functions.
    pub(crate) functions: UserFunctions,
    /// The highest of the branches' `asks`.
    pub(crate) asks: usize,
}

/// The filters of the subscriptions of a class, for the events of a class.
#[derive(Debug)]
pub(crate) struct FilterPlan {
    pub class: usize,
    pub event: Name,
    pub scope: FilterScope,
}

#[derive(Debug)]
pub(crate) struct EventPlan {
    pub fields: Fields,
    pub rules: Vec<RuleNumber>,
    pub chronicles: Vec<CompiledChronicle>,
    /// The chronicle columns that rules read. Rows have these columns behind the fields.
    pub read: Vec<Column>,
    /// The same as fields.
    pub columns: Fields,
}

impl EventPlan {
    /// The layout of rows: the fields, followed by the chronicle columns.
    pub fn row(&self) -> Fields {
        Fields::new(self.fields.iter().chain(self.columns.iter()).cloned().collect())
    }

    /// The spelling of a row's column in expressions.
    pub fn spelling(&self, at: usize) -> Option<String> {
        match at.checked_sub(self.fields.len()) {
            None => Some(format!("event.{}", self.fields[at].name)),
            Some(at) => self.columns.iter().nth(at).map(|column| spelling(column.name.as_str())),
        }
    }
}

/// A subscription class: the fields that are kept in columns, and the branches that index its subscriptions.
#[derive(Debug)]
pub(crate) struct ClassPlan {
    pub name: Name,
    pub fields: Fields,
    /// Whether the table keeps each column: the fields, then the columns of the subscriber, then its memberships.
    pub used_columns: Vec<bool>,
    pub rules: Vec<RuleNumber>,
    /// Whether its subscriptions can have filters.
    pub takes_filters: bool,
    /// The indexes of its filter plans in the rule set.
    pub filters: Vec<usize>,
    /// Whether the table keeps the subscriber of each subscription, because a rule makes digests.
    pub keeps_subscribers: bool,
}

impl ClassPlan {
    /// The number of columns of a row, including those of the subscriber.
    pub fn width(&self) -> usize {
        self.used_columns.len()
    }

    /// The column of the subscriber's memberships. Only rules with a query read it; other rules use memberships when a
    /// subscription is indexed.
    pub fn memberships_at(&self) -> usize {
        self.used_columns.len() - 1
    }
}

#[derive(Debug)]
pub(crate) struct CompiledRule {
    pub name: Name,
    pub source: Option<String>,
    pub on: Name,
    pub class: usize,
    pub notify: Name,
    pub batch_size: usize,
    /// The notifications that must stay in one batch, as they become one message.
    pub unit: BatchUnit,
    pub expires_after: Option<Duration>,
    pub enabled: bool,
    /// The index of its audience in the rule set, if the rule is limited to a segment.
    pub audience: Option<usize>,
    /// A query finds its matches, outside the index; it has no branches.
    pub queried: bool,
    /// Time limit for one event batch.
    pub timeout: Duration,
    /// The index of the filter plan for its subscriptions, if they can have filters.
    pub filters: Option<usize>,
    pub predicate: Option<Expression>,
    pub state: Option<CompiledState>,
    pub branches: Vec<Branch>,
    /// The index of its first branch in the rule set.
    pub first_branch: usize,
    /// The notification's fields, and the source of each.
    pub fields: Vec<(Field, FieldSource)>,
}

impl CompiledRule {
    /// The subscription's field whose values are the keys that the index returns with its matches.
    pub fn key_field(&self) -> Option<usize> {
        let [branch] = self.branches.as_slice() else { return None };
        match &branch.range {
            // The keys of candidates that are checked one by one are not returned.
            Range::One(_) if !branch.residual.is_empty() || self.filters.is_some() => None,
            Range::One(only) if only.measure == Measure::Integer => match only.subscription.kind {
                Kind::Subscription(field) => Some(field),
                _ => None,
            },
            _ => None,
        }
    }
}

/// Notifications that must stay in one notification batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BatchUnit {
    /// Each notification is a message of its own.
    Notification,
    /// Notifications of a subscriber can become one digest.
    Subscriber,
    /// Notifications of an event can become one message to up to this number of recipients.
    Event(usize),
}

/// The source of a notification's field.
#[derive(Debug)]
pub(crate) enum FieldSource {
    /// From the event alone, at delivery.
    Event(Expression),
    /// Captured at the match, since the subscription may have changed by the time of delivery.
    Captured(Expression),
    /// Captured at the match, from this column of the rule's query.
    Queried(usize),
    /// The field's default.
    Default,
}

/// Whether the captured values of a field of this type are the keys of the index.
pub(crate) fn is_key(captured: &Expression, kind: FieldType, key_field: Option<usize>) -> bool {
    kind == FieldType::Integer && matches!(captured.kind, Kind::Subscription(field) if Some(field) == key_field)
}

/// The compiled state clauses of a rule.
#[derive(Debug)]
pub(crate) struct CompiledState {
    pub per: Option<Expression>,
    pub changed: Option<Expression>,
    /// In microseconds.
    pub cooldown: Option<i64>,
    pub rearm: Option<Rearm>,
    pub shape: Shape,
    /// The clauses as text.
    pub explained: Vec<String>,
}

/// The re-arm condition: a rule set with one rule, which finds the subscriptions that an event re-arms among the
/// disarmed ones.
#[derive(Debug)]
pub(crate) struct Rearm {
    pub rules: Arc<RuleSet>,
    /// The event class, and the subscription class.
    pub on: Name,
    pub class: Name,
    /// The subscription columns that it reads.
    pub fields: Vec<usize>,
    /// The column of the key in the re-arm index: behind the fields of the class.
    pub key_at: usize,
    /// The number of fields of the event class, and the positions of the chronicle columns that it reads in rows of the
    /// rule's set.
    pub width: usize,
    pub columns: Vec<usize>,
}

impl RuleSet {
    /// The application whose rules these are.
    pub fn application(&self) -> &Name {
        &self.application
    }

    /// Whether any of its rules has suppression state.
    pub fn has_state(&self) -> bool {
        self.rules.iter().any(|rule| rule.enabled && rule.state.is_some())
    }

    /// The segments that rules use as audiences; at most [`AUDIENCES_MAX`](crate::subscriber::AUDIENCES_MAX).
    pub fn audiences(&self) -> &[Name] {
        &self.audiences
    }

    /// The subscriber columns that its rules read, without audiences; `None` if there are none.
    pub fn subscriber_columns(&self) -> Option<&SubscriberColumns> {
        self.reads_subscriber.then_some(&self.subscriber)
    }

    /// Whether its rules depend on subscribers.
    pub fn depends_on_subscribers(&self) -> bool {
        self.reads_subscriber || !self.audiences.is_empty()
    }

    /// The number of a rule.
    pub fn number(&self, name: &str) -> Option<RuleNumber> {
        self.rules.iter().position(|rule| rule.name.as_str() == name).map(|at| RuleNumber(at as u32))
    }

    /// The name of a rule.
    pub fn name(&self, rule: RuleNumber) -> &Name {
        &self.rule(rule).name
    }

    /// The fields of a subscription class.
    pub fn class_fields(&self, class: &Name) -> Option<&Fields> {
        self.classes.iter().find(|plan| plan.name == *class).map(|plan| &plan.fields)
    }

    /// The notification class of a rule.
    pub fn notification_class(&self, rule: RuleNumber) -> &Name {
        &self.rule(rule).notify
    }

    /// The event class of a rule.
    pub fn event_class(&self, rule: RuleNumber) -> &Name {
        &self.rule(rule).on
    }

    /// The time after which a notification of the rule expires.
    pub fn expires_after(&self, rule: RuleNumber) -> Option<Duration> {
        self.rule(rule).expires_after
    }

    /// The enabled rules on events of a class, including those with a query, by name.
    pub fn rules_on(&self, class: &Name) -> Vec<RuleNumber> {
        let fires = |(_, rule): &(u32, &CompiledRule)| rule.enabled && rule.on == *class;
        (0..).zip(&self.rules).filter(fires).map(|(number, _)| RuleNumber(number)).collect()
    }

    /// The parameters of a subscription, followed by the columns of its subscriber if rules read any.
    pub(crate) fn full_row(&self, class: &Name, mut row: Row, columns: Row) -> Row {
        if self.reads_subscriber
            && let Some(class) = self.classes.iter().find(|plan| plan.name == *class)
        {
            row.resize(class.fields.len(), Value::Null);
            row.extend(columns);
            row.resize(class.width(), Value::Null);
        }
        row
    }

    pub(crate) fn rule(&self, rule: RuleNumber) -> &CompiledRule {
        &self.rules[rule.0 as usize]
    }

    /// Checks a filter for the subscriptions of a class against the event class of every enabled rule. If the index
    /// cannot narrow it down for one of them, so that it is a candidate for every event, returns the reason.
    ///
    /// # Errors
    /// Every problem found, with line and column in the filter's text.
    pub fn check_filter(&self, class: &Name, filter: &Filter) -> Result<Option<ScanReason>, Vec<Problem>> {
        let compiled = self.compile_filter(class, filter, None)?;
        Ok(compiled.iter().find_map(|(_, filter)| match FilterPlacement::of(filter) {
            FilterPlacement::Scanned(why) => Some(why),
            FilterPlacement::Never | FilterPlacement::Always | FilterPlacement::Indexed => None,
        }))
    }

    /// Whether an index of these rules accepts a subscription; if not, [`Shard::put_of`] rejects it for the same
    /// reason.
    ///
    /// # Errors
    /// The class is unknown, its parameters are not a JSON object, or its filter cannot be compiled for every event
    /// class of the class's rules.
    ///
    /// [`Shard::put_of`]: crate::shard::Shard::put_of
    pub fn check_subject(&self, subject: Subject<'_>) -> Result<(), Problem> {
        let Some(class) = self.classes.iter().find(|plan| plan.name == *subject.class) else {
            return Err(Problem::new(
                Code::UnknownReference,
                "",
                format!("there is no subscription class `{}`", subject.class),
            )
            .param("kind", "subscription_class"));
        };
        if class.fields.row_from_stored(subject.values).is_err() {
            return Err(Problem::new(Code::DamagedData, "", "the stored parameters are not a JSON object"));
        }
        let Some(filter) = subject.filter else { return Ok(()) };
        if !class.takes_filters {
            return Err(Problem::new(Code::NotApplicable, "filter", "its class does not accept filters"));
        }
        self.compile_filter(&class.name, filter, None).map(|_| ()).map_err(|problems| {
            let first = problems.into_iter().next();
            let first =
                first.unwrap_or_else(|| Problem::new(Code::InvalidExpression, "", "the filter cannot be compiled"));
            Problem { path: "filter".to_owned(), ..first }
        })
    }

    /// Compiles a filter of a subscription of a class for each event class of its rules. `subscriber` has the columns
    /// of its subscriber.
    pub(crate) fn compile_filter(
        &self,
        class: &Name,
        filter: &Filter,
        subscriber: Option<&[Value]>,
    ) -> Result<Vec<(&Name, CompiledFilter)>, Vec<Problem>> {
        let Some(class) = self.classes.iter().find(|plan| plan.name == *class) else { return Ok(Vec::new()) };
        let compile = |plan: &usize| {
            let plan = &self.filters[*plan];
            let several = |problem: Problem| match problem.hint {
                None if class.filters.len() > 1 => {
                    problem.hint(format!("it also applies to events of the class `{}`", plan.event))
                }
                _ => problem,
            };
            match compile_for(filter, &plan.scope, subscriber) {
                Ok(compiled) => Ok((&plan.event, compiled)),
                Err(problems) => Err(problems.into_iter().map(several).collect()),
            }
        };
        class.filters.iter().map(compile).collect()
    }

    /// The events of a batch, as rows of their class in this version. `event_fields` are the fields with which the
    /// batch was packed; they are mapped by name, and missing fields are null. The fields are followed by the chronicle
    /// columns, as stored with the batch; null if they are not stored.
    ///
    /// # Errors
    /// The batch is damaged.
    pub fn rows(&self, batch: &EventBatch, event_fields: &Fields) -> Result<Vec<Row>, Damaged> {
        let Some(plan) = self.events.get(&batch.class) else { return Ok(Vec::new()) };
        let layout = Layout::between(event_fields, &plan.fields);
        let chronicled = Packed::read(&batch.chronicled, &plan.columns)?;
        let row = |(ordinal, packed): (usize, Result<&[u8], Damaged>)| {
            let mut row = layout.apply(unpack_row(event_fields, packed?)?);
            chronicled.append(ordinal, &mut row)?;
            Ok(row)
        };
        batch.events.rows().enumerate().map(row).collect()
    }

    /// An event as a row of its class, with null chronicle columns. Unchanged if there is no such class.
    pub fn bare_row(&self, class: &Name, mut fields: Row) -> Row {
        if let Some(plan) = self.events.get(class) {
            fields.extend(plan.columns.iter().map(|_| Value::Null));
        }
        fields
    }

    /// The chronicle columns in rows of a class: the number of fields before them, and their names in SQL queries.
    pub fn columns_of_queries(&self, class: &Name) -> (usize, Fields) {
        self.events
            .get(class)
            .map_or_else(Default::default, |plan| (plan.fields.len(), chronicle_fields(&plan.columns)))
    }

    /// Whether rules read chronicles of a class.
    pub fn reads_chronicles(&self, class: &Name) -> bool {
        self.events.get(class).is_some_and(|plan| !plan.columns.is_empty())
    }

    /// The chronicle columns of a class that rules read, as spelled in expressions.
    pub fn chronicle_columns(&self, class: &Name) -> Vec<String> {
        let columns = self.events.get(class).into_iter().flat_map(|plan| plan.columns.iter());
        columns.map(|column| spelling(column.name.as_str())).collect()
    }

    /// Whether queries read chronicles as tables.
    pub fn has_chronicle_tables(&self) -> bool {
        self.events.values().flat_map(|plan| &plan.chronicles).any(|chronicle| chronicle.tabled)
    }

    /// Whether events of any class have chronicles.
    pub fn has_chronicles(&self) -> bool {
        self.events.values().any(|plan| !plan.chronicles.is_empty())
    }

    /// The events of a batch, for matching; rows are built on demand.
    ///
    /// # Errors
    /// The batch is damaged.
    pub fn events(&self, batch: &EventBatch, event_fields: &Fields) -> Result<Events<'static>, Damaged> {
        match self.events.get(&batch.class) {
            Some(plan) if plan.columns.is_empty() => Events::of_batch(batch, event_fields, &plan.fields),
            // Chronicle columns are not in the cells of the batch.
            Some(_) => Ok(Events::of_owned_rows(self.rows(batch, event_fields)?)),
            None => Ok(Events::none()),
        }
    }
}

/// The columns of a page, and the meaning of its keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// A digest of the source of `per`; 0 if it is not declared.
    pub per: u64,
    /// Whether values are stored.
    pub valued: bool,
}
