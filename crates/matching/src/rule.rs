//! All rules of an application, compiled together: what each event and subscription class needs, and which columns of
//! subscriptions are kept for it.

mod compile; // one rule becomes expressions and branches
mod branches; // a predicate is taken apart
mod explain; // how a rule is answered, in words

use std::{collections::BTreeMap, time::Duration};

use tocsin_model::{
    application::Application,
    event::EventBatch,
    field::{Damaged, Field, FieldType, Fields, Row, unpack_row},
    filter::{Dialect, Filter},
    id::Name,
    problem::Problem,
    value::Value,
};

use crate::{
    chronicle::{
        columns::Packed,
        compile::{Column, CompiledChronicle, column_fields, columns_read, compile_chronicles, spelling},
    },
    defined::Functions,
    events::Events,
    expression::{Expression, Kind},
    filter::{
        self, CompiledFilter, FilterScope,
        index::{Scanned, Standing},
    },
    index::key::Measure,
    residual::Check,
    shard::{Layout, Subject},
    sql::{QueriesRead, chronicle_fields},
    state::compile::CompiledState,
    subscriber::SubscriberColumns,
};

pub use branches::BRANCHES_MAX;
pub(crate) use branches::{Branch, Ordered, Range};
pub use explain::{BranchExplanation, RuleExplanation};

use compile::compile_rule;

/// The place of a rule in its [`RuleSet`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuleNumber(pub u32);

/// All rules of one version of an application, compiled. Immutable; share it between shards.
#[derive(Debug)]
pub struct RuleSet {
    pub(crate) application: Name,
    pub(crate) rules: Vec<CompiledRule>,
    pub(crate) classes: Vec<ClassPlan>,
    pub(crate) events: BTreeMap<Name, EventPlan>,
    pub(crate) branches: usize,
    /// One for each class that takes filters and each event class of its enabled rules.
    pub(crate) filters: Vec<FilterPlan>,
    /// The segments that the rules ask for.
    pub(crate) audiences: Vec<Name>,
    /// What the rules may read of subscribers.
    pub(crate) subscriber: SubscriberColumns,
    /// Whether any enabled rule does, or filters may.
    pub(crate) reads_subscriber: bool,
    /// What expressions of the application may call.
    pub(crate) functions: Functions,
    /// The highest of the branches' `asks`.
    pub(crate) asks: usize,
}

/// The own filters of the subscriptions of a class, for the events of a class.
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
    /// What rules read of them. Rows have these columns behind the fields.
    pub read: Vec<Column>,
    /// The same as fields.
    pub columns: Fields,
}

impl EventPlan {
    /// What rows hold: the fields, and behind them the columns of chronicles.
    pub fn row(&self) -> Fields {
        Fields::new(self.fields.iter().chain(self.columns.iter()).cloned().collect())
    }

    /// How expressions spell what stands at a place of a row.
    pub fn spelling(&self, at: usize) -> Option<String> {
        match at.checked_sub(self.fields.len()) {
            None => Some(format!("event.{}", self.fields[at].name)),
            Some(at) => self.columns.iter().nth(at).map(|column| spelling(column.name.as_str())),
        }
    }
}

/// A subscription class: which of its fields are kept in columns, and the branches that its subscriptions are filed in.
#[derive(Debug)]
pub(crate) struct ClassPlan {
    pub name: Name,
    pub fields: Fields,
    /// For each field, behind them each column of the subscriber, and behind these its memberships, whether the table keeps
    /// it.
    pub kept: Vec<bool>,
    pub rules: Vec<RuleNumber>,
    /// Whether its subscriptions may have filters of their own.
    pub takes_filters: bool,
    /// Those of the rule set's filter plans that are of this class.
    pub filters: Vec<usize>,
    /// Whether the table keeps the subscriber of each subscription: a rule makes digests.
    pub keeps_subscribers: bool,
}

#[derive(Debug)]
pub(crate) struct CompiledRule {
    pub name: Name,
    pub source: Option<String>,
    pub on: Name,
    pub class: usize,
    pub notify: Name,
    pub batch_size: usize,
    /// Notifications that are never cut in two, as they become one message.
    pub unit: Unit,
    pub expires_after: Option<Duration>,
    pub enabled: bool,
    /// Its place among the rule set's audiences, if only those are told who belong to a segment.
    pub audience: Option<usize>,
    /// A query finds its matches, elsewhere; it has no branches.
    pub queried: bool,
    /// How long it may take for one event batch.
    pub timeout: Duration,
    /// Which filter plan holds the filters of its subscriptions, if they may have any.
    pub filters: Option<usize>,
    pub predicate: Option<Expression>,
    pub state: Option<CompiledState>,
    pub branches: Vec<Branch>,
    /// The number of its first branch among those of the rule set.
    pub first_branch: usize,
    /// The notification's fields, each with how it is filled.
    pub fields: Vec<(Field, Fill)>,
}

impl ClassPlan {
    /// How many columns a row of it has, those of the subscriber among them.
    pub fn width(&self) -> usize {
        self.kept.len()
    }

    /// The place of the subscriber's memberships. Only rules with a query look there: others have filed the subscription
    /// by them.
    pub fn memberships_at(&self) -> usize {
        self.kept.len() - 1
    }
}

impl CompiledRule {
    /// The subscription's field whose values are the very keys of the index that hand over its matches.
    pub fn key_field(&self) -> Option<usize> {
        let [branch] = self.branches.as_slice() else { return None };
        match &branch.range {
            // Candidates that are checked one by one leave their keys behind.
            Range::One(_) if !branch.residual.is_empty() || self.filters.is_some() => None,
            Range::One(only) if only.measure == Measure::Integer => match only.subscription.kind {
                Kind::Subscription(field) => Some(field),
                _ => None,
            },
            _ => None,
        }
    }
}

/// Notifications that stay in one notification batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Each is a message of its own.
    Notification,
    /// Notifications of a subscriber may become one digest.
    Subscriber,
    /// Notifications of an event may become one message to so many recipients.
    Event(usize),
}

/// How a field of a notification is filled.
#[derive(Debug)]
pub(crate) enum Fill {
    /// From the event alone, at delivery.
    Event(Expression),
    /// At the match, since the subscription may have changed by the time of delivery.
    Captured(Expression),
    /// At the match, by the column at this place of the rule's query.
    Queried(usize),
    /// There is nothing to fill it with.
    Default,
}

/// Most segments that the rules of an application ask for.
pub const AUDIENCES_MAX: usize = 64;

/// To which of a rule set's audiences a subscriber belongs: a bit for each, the first the lowest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Memberships(pub u64);

impl Memberships {
    /// All audiences: of somebody who is told whatever the audience.
    pub const ALL: Memberships = Memberships(u64::MAX);

    /// Whether it is among those that a rule tells.
    pub(crate) fn meet(self, audience: Option<usize>) -> bool {
        audience.is_none_or(|audience| self.0 >> audience & 1 == 1)
    }
}

impl RuleSet {
    /// Compiles the rules of an application.
    ///
    /// # Errors
    /// Every problem in every expression, with the path of the rule and the position in the expression.
    pub fn compile(application: &Application) -> Result<RuleSet, Vec<Problem>> {
        RuleSet::compile_with_queries(application, &|_| None, &QueriesRead::default())
    }

    /// As [`RuleSet::compile`], with the fields of the notification that the query of a rule gives, in the order of
    /// [`Told::given`](crate::shard::Told::given). For a rule of which nothing is known, every field is taken to be given.
    /// `read` is what queries read of subscribers and chronicles.
    ///
    /// # Errors
    /// As [`RuleSet::compile`].
    pub fn compile_with_queries(
        application: &Application,
        columns: &dyn Fn(&Name) -> Option<Vec<Name>>,
        queries: &QueriesRead,
    ) -> Result<RuleSet, Vec<Problem>> {
        let mut problems = Vec::new();
        let functions = Functions::compile(&application.functions).unwrap_or_else(|found| {
            problems.extend(found);
            Functions::default()
        });
        // Where there are problems with functions, that rules miss them is none.
        let is_missing = |problem: &Problem| {
            let defined = |name: &Name| problem.message == format!("there is no function `{name}`");
            application.functions.keys().any(defined)
        };
        let subscriber = SubscriberColumns::new(application.attributes.clone());
        let classes = application.subscriptions.iter().map(|(name, class)| ClassPlan {
            name: name.clone(),
            fields: class.fields.clone(),
            kept: vec![false; class.fields.len() + subscriber.len() + 1],
            rules: Vec::new(),
            takes_filters: !class.filter.is_empty(),
            filters: Vec::new(),
            keeps_subscribers: false,
        });
        let mut events = BTreeMap::new();
        for (name, class) in &application.events {
            let mut chronicles = compile_chronicles(name, class, &functions).unwrap_or_else(|found| {
                problems.extend(found.into_iter().filter(|problem| !is_missing(problem)));
                Vec::new()
            });
            for chronicle in &mut chronicles {
                chronicle.tabled = queries.tables.contains(&(name.clone(), chronicle.name.clone()));
            }
            let read = columns_read(application, name, &chronicles, &functions, queries);
            let columns = column_fields(&chronicles, &read);
            let plan = EventPlan { fields: class.fields.clone(), rules: Vec::new(), chronicles, read, columns };
            events.insert(name.clone(), plan);
        }
        let mut set = RuleSet {
            application: application.name.clone(),
            rules: Vec::with_capacity(application.rules.len()),
            classes: classes.collect(),
            events,
            branches: 0,
            filters: Vec::new(),
            audiences: Vec::new(),
            subscriber,
            reads_subscriber: queries.subscribers
                || !application.attributes.is_empty() && takes_filters_in_cel(application),
            functions,
            asks: 0,
        };
        for (name, rule) in &application.rules {
            let audience = rule.audience.as_ref().map(|segment| set.audience_number(segment)).transpose();
            let compiled = match audience {
                Ok(audience) => {
                    compile_rule(application, name, rule, &set, columns).map(|rule| CompiledRule { audience, ..rule })
                }
                Err(problem) => Err(vec![Problem { path: format!("rules.{name}.audience"), ..problem }]),
            };
            match compiled {
                Ok(rule) => set.add(rule),
                Err(found) => problems.extend(found.into_iter().filter(|problem| !is_missing(problem))),
            }
        }
        if problems.is_empty() { Ok(set) } else { Err(problems) }
    }

    /// The place of a segment among the audiences.
    fn audience_number(&mut self, segment: &Name) -> Result<usize, Problem> {
        if let Some(known) = self.audiences.iter().position(|known| known == segment) {
            return Ok(known);
        }
        if self.audiences.len() == AUDIENCES_MAX {
            let problem = Problem::at(
                "",
                format!("is one segment too many: the rules of an application ask for {AUDIENCES_MAX} at most"),
            );
            return Err(problem.hint("join segments by `|` in one filter"));
        }
        self.audiences.push(segment.clone());
        Ok(self.audiences.len() - 1)
    }

    fn add(&mut self, mut rule: CompiledRule) {
        let number = RuleNumber(u32::try_from(self.rules.len()).expect("an application has fewer than 2^32 rules"));
        rule.first_branch = self.branches;
        if rule.enabled {
            for branch in &mut rule.branches {
                branch.keys.sort_by_key(|key| key.any_of);
                let same = |other: &&Branch| {
                    other.keys.len() == branch.keys.len()
                        && other.keys.iter().zip(&branch.keys).all(|(other, key)| other.event == key.event)
                };
                let others = self.rules.iter().filter(|other| other.on == rule.on).flat_map(|other| &other.branches);
                branch.asks =
                    others.filter(|other| other.asks > 0).find(same).map_or(self.asks + 1, |other| other.asks);
                self.asks = self.asks.max(branch.asks);
            }
            self.branches += rule.branches.len();
            let class = &mut self.classes[rule.class];
            class.rules.push(number);
            class.keeps_subscribers |= rule.unit == Unit::Subscriber;
            if class.takes_filters
                && let Some(event) = self.events.get(&rule.on)
            {
                let known = self.filters.iter().position(|plan| plan.class == rule.class && plan.event == rule.on);
                rule.filters = Some(known.unwrap_or_else(|| {
                    let scope = FilterScope::new(event.fields.clone(), self.functions.clone());
                    let subscriber = (!self.subscriber.attributes().is_empty()).then(|| self.subscriber.clone());
                    let scope = scope.with(event.columns.clone(), subscriber);
                    let plan = FilterPlan { class: rule.class, event: rule.on.clone(), scope };
                    class.filters.push(self.filters.len());
                    self.filters.push(plan);
                    self.filters.len() - 1
                }));
            }
            let residual =
                rule.branches.iter().flat_map(|branch| &branch.residual).flat_map(Check::subscription_fields);
            // What is captured as it stands in the index's keys is taken from there.
            let key_field = rule.key_field();
            let captured = rule.fields.iter().flat_map(|(field, fill)| match fill {
                Fill::Captured(expression) if is_key(expression, field.kind, key_field) => Vec::new(),
                Fill::Captured(expression) => expression.subscription_fields(),
                _ => Vec::new(),
            });
            let rearm = rule.state.as_ref().and_then(|state| state.rearm.as_ref());
            let rearm = rearm.into_iter().flat_map(|rearm| rearm.fields.iter().copied());
            let rearm_reads: Vec<usize> = rearm.clone().collect();
            for field in residual.chain(captured).chain(rearm) {
                class.kept[field] = true;
            }
            if rule.queried && rule.audience.is_some() {
                let memberships = class.memberships_at();
                class.kept[memberships] = true;
            }
            let filled = rule.fields.iter().filter_map(|(_, fill)| match fill {
                Fill::Captured(expression) => Some(expression),
                _ => None,
            });
            let read = rule.predicate.iter().chain(filled).flat_map(Expression::subscription_fields).chain(rearm_reads);
            self.reads_subscriber |= read.into_iter().any(|field| field >= class.fields.len());
            if let Some(event) = self.events.get_mut(&rule.on) {
                event.rules.push(number);
            }
        }
        self.rules.push(rule);
    }

    /// The application whose rules these are.
    pub fn application(&self) -> &Name {
        &self.application
    }

    /// Whether any of its rules remembers whom it told.
    pub fn remembers(&self) -> bool {
        self.rules.iter().any(|rule| rule.enabled && rule.state.is_some())
    }

    /// The segments that the rules ask for as audiences; at most [`AUDIENCES_MAX`].
    pub fn audiences(&self) -> &[Name] {
        &self.audiences
    }

    /// What its rules read of subscribers beside their audiences; `None` if nothing.
    pub fn subscriber_columns(&self) -> Option<&SubscriberColumns> {
        self.reads_subscriber.then_some(&self.subscriber)
    }

    /// Whether it matters to its rules who a subscriber is.
    pub fn asks_of_subscribers(&self) -> bool {
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

    /// The notification class that a rule makes.
    pub fn notification_class(&self, rule: RuleNumber) -> &Name {
        &self.rule(rule).notify
    }

    /// The event class that fires a rule.
    pub fn event_class(&self, rule: RuleNumber) -> &Name {
        &self.rule(rule).on
    }

    /// How long what a rule makes is worth sending.
    pub fn expires_after(&self, rule: RuleNumber) -> Option<Duration> {
        self.rule(rule).expires_after
    }

    /// The enabled rules that events of a class fire, queries too, by name.
    pub fn rules_on(&self, class: &Name) -> Vec<RuleNumber> {
        let fires = |(_, rule): &(u32, &CompiledRule)| rule.enabled && rule.on == *class;
        (0..).zip(&self.rules).filter(fires).map(|(number, _)| RuleNumber(number)).collect()
    }

    /// The parameters of a subscription with the columns of its subscriber behind them, if rules read any.
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

    /// Checks a filter for the subscriptions of a class: it is put to the events of every enabled rule of the class.
    /// Gives why it is a candidate for every event of one of them, if it is.
    ///
    /// # Errors
    /// Every problem found, with line and column in the filter's text.
    pub fn check_filter(&self, class: &Name, filter: &Filter) -> Result<Option<Scanned>, Vec<Problem>> {
        let compiled = self.compile_filter(class, filter, None)?;
        Ok(compiled.iter().find_map(|(_, filter)| match Standing::of(filter) {
            Standing::Scanned(why) => Some(why),
            Standing::Never | Standing::Always | Standing::Indexed => None,
        }))
    }

    /// Whether an index of these rules takes a subscription. Where it does not, [`Shard::put_of`] refuses it for this reason.
    ///
    /// # Errors
    /// Its class is not known, its parameters are not a JSON object, or its filter cannot be compiled for every event class
    /// of the class's rules.
    ///
    /// [`Shard::put_of`]: crate::shard::Shard::put_of
    pub fn check_subject(&self, subject: Subject<'_>) -> Result<(), Problem> {
        let Some(class) = self.classes.iter().find(|plan| plan.name == *subject.class) else {
            return Err(Problem::at("", format!("there is no subscription class `{}`", subject.class)));
        };
        if class.fields.row_from_stored(subject.values).is_err() {
            return Err(Problem::at("", "the stored parameters are not a JSON object"));
        }
        let Some(filter) = subject.filter else { return Ok(()) };
        if !class.takes_filters {
            return Err(Problem::at("filter", "its class takes no filters"));
        }
        self.compile_filter(&class.name, filter, None).map(|_| ()).map_err(|problems| {
            let first = problems.into_iter().next();
            let first = first.unwrap_or_else(|| Problem::at("", "the filter cannot be compiled"));
            Problem { path: "filter".to_owned(), ..first }
        })
    }

    /// A filter of a subscription of a class, compiled for each event class to which it is put. `subscriber` has the
    /// columns of the one whose it is.
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
                    problem.hint(format!("it is put to events of the class `{}` too", plan.event))
                }
                _ => problem,
            };
            match filter::compile_for(filter, &plan.scope, subscriber) {
                Ok(compiled) => Ok((&plan.event, compiled)),
                Err(problems) => Err(problems.into_iter().map(several).collect()),
            }
        };
        class.filters.iter().map(compile).collect()
    }

    /// The events of a batch, as rows of their class in this version: `event_fields` are the fields with which the batch
    /// was packed; they are mapped by name, and what is missing is null. Behind the fields stands what rules read of
    /// chronicles, as it is kept with the batch; null where it is not.
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

    /// An event as a row of its class, of which nothing is known but its fields. Nothing, if there is no such class.
    pub fn bare_row(&self, class: &Name, mut fields: Row) -> Row {
        if let Some(plan) = self.events.get(class) {
            fields.extend(plan.columns.iter().map(|_| Value::Null));
        }
        fields
    }

    /// What rows of a class hold of chronicles: behind how many fields, and the names that queries in SQL have for them.
    pub fn columns_of_queries(&self, class: &Name) -> (usize, Fields) {
        self.events
            .get(class)
            .map_or_else(Default::default, |plan| (plan.fields.len(), chronicle_fields(&plan.columns)))
    }

    /// Whether rules read chronicles of a class.
    pub fn reads_chronicles(&self, class: &Name) -> bool {
        self.events.get(class).is_some_and(|plan| !plan.columns.is_empty())
    }

    /// What rules read of the chronicles of a class, as expressions spell it.
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

    /// The same events, for matching: rows are only made of them where somebody asks for rows.
    ///
    /// # Errors
    /// The batch is damaged.
    pub fn events(&self, batch: &EventBatch, event_fields: &Fields) -> Result<Events<'static>, Damaged> {
        match self.events.get(&batch.class) {
            Some(plan) if plan.columns.is_empty() => Events::of_batch(batch, event_fields, &plan.fields),
            // What rules read of chronicles does not lie in the batch.
            Some(_) => Ok(Events::of_made(self.rows(batch, event_fields)?)),
            None => Ok(Events::none()),
        }
    }

    /// How each rule is answered, with warnings where a rule would scan.
    pub fn explain(&self) -> Vec<RuleExplanation> {
        self.rules.iter().map(|rule| rule.explain(&self.audiences, &self.classes[rule.class].name)).collect()
    }
}

/// Whether subscriptions of any class may have filters in CEL.
fn takes_filters_in_cel(application: &Application) -> bool {
    application.subscriptions.values().any(|class| class.filter.contains(&Dialect::Cel))
}

/// Whether what is captured for a field of this type are the keys of the index.
pub(crate) fn is_key(captured: &Expression, kind: FieldType, key_field: Option<usize>) -> bool {
    kind == FieldType::Integer && matches!(captured.kind, Kind::Subscription(field) if Some(field) == key_field)
}
