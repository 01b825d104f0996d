//! Rules compiled: a predicate becomes branches, each with guards, a key, at most one ordered test or range, and a
//! residual.
//!
//! Only *is true* counts for a match. Under that reading `&&` and `||` distribute over each other and `!` may move
//! inwards, errors included, so taking a predicate apart never changes what matches.

use std::{collections::BTreeMap, time::Duration};

use tocsin_model::{
    application::{Application, Rule},
    event::EventBatch,
    field::{Damaged, Field, FieldType, Fields, Row, unpack_row},
    filter::Filter,
    id::Name,
    problem::Problem,
    value::Value,
};

use crate::{
    check::{Scope, compile, compile_predicate},
    defined::Functions,
    dialect::Operator,
    events::Events,
    expression::{Constant, Expression, Kind, Type},
    filter::{
        self, CompiledFilter,
        index::{Scanned, Standing},
    },
    index::{chunks::Arrangement, key::Measure},
    residual::Check,
    shard::{Layout, Subject},
    state::compile::{CompiledState, compile_state},
    subscriber::SubscriberColumns,
};

/// Most branches of a rule; a predicate with more alternatives is a residual instead.
pub const BRANCHES_MAX: usize = 16;

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
    /// Whether any enabled rule does.
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
    pub fields: Fields,
}

#[derive(Debug)]
pub(crate) struct EventPlan {
    pub fields: Fields,
    pub rules: Vec<RuleNumber>,
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
}

#[derive(Debug)]
pub(crate) struct CompiledRule {
    pub name: Name,
    pub source: Option<String>,
    pub on: Name,
    pub class: usize,
    pub notify: Name,
    pub batch_size: usize,
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

/// One way for a rule to match.
#[derive(Debug, Clone)]
pub(crate) struct Branch {
    pub event_guards: Vec<Expression>,
    pub subscription_guards: Vec<Expression>,
    pub keys: Vec<KeyPart>,
    /// Equal for branches of the same event class whose keys ask the event for the same.
    pub asks: usize,
    pub range: Range,
    pub residual: Vec<Check>,
}

#[derive(Debug, Clone)]
pub(crate) struct KeyPart {
    pub event: Expression,
    pub subscription: Expression,
    /// The subscription holds a list, and is filed under each of its values.
    pub any_of: bool,
}

/// `subscription operator event`.
#[derive(Debug, Clone)]
pub(crate) struct Ordered {
    pub subscription: Expression,
    pub measure: Measure,
    pub operator: Operator,
    pub event: Expression,
    source: Expression,
}

#[derive(Debug, Clone)]
pub(crate) enum Range {
    None,
    One(Box<Ordered>),
    /// The low end, the high end; both tests are of the same event expression.
    Two(Box<[Ordered; 2]>),
}

impl Branch {
    pub fn arrangement(&self) -> Arrangement {
        match self.range {
            Range::None => Arrangement::Plain,
            Range::One(_) => Arrangement::Sorted,
            Range::Two(_) => Arrangement::Ranges,
        }
    }

    pub fn is_indexed(&self) -> bool {
        !self.keys.is_empty() || !matches!(self.range, Range::None)
    }
}

/// How a rule is answered, for people.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct RuleExplanation {
    /// The rule.
    pub rule: Name,
    /// The segment to which a subscriber must belong to be told, if to any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audience: Option<Name>,
    /// Its alternatives; a subscription that several of them find is matched once.
    pub branches: Vec<BranchExplanation>,
    /// What it remembers, and so which matches are not told.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remembers: Vec<String>,
    /// How its query is run, in the words of the store, if it has one.
    #[serde(default)]
    pub query: Vec<String>,
    /// What its author should know.
    pub warnings: Vec<String>,
}

/// How one alternative is answered.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct BranchExplanation {
    /// Tested once per event.
    pub event_guards: Vec<String>,
    /// Tested once when a subscription is put.
    pub subscription_guards: Vec<String>,
    /// Answered by the hash.
    pub keys: Vec<String>,
    /// Answered by the sorted column.
    pub range: Vec<String>,
    /// Whether the subscriptions may have filters of their own. Where no index answers, the candidates are those whose
    /// filter matches and those without one; else a candidate's filter must match.
    pub filters: bool,
    /// Checked for each candidate that the index gives.
    pub residual: Vec<String>,
}

/// One line, such as `near: looks at every subscription; checks distance_km(...) <= sub.distance_km for each`.
impl std::fmt::Display for RuleExplanation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: ", self.rule)?;
        if !self.query.is_empty() {
            let steps: Vec<&str> = self.query.iter().map(|line| line.trim_start()).collect();
            write!(f, "runs its query for each event batch: {}", steps.join("; "))?;
            if let Some(audience) = &self.audience {
                write!(f, "; passes over who is no subscriber of `{audience}`")?;
            }
            return self.remembers.iter().try_for_each(|memory| write!(f, "; {memory}"));
        }
        for (at, branch) in self.branches.iter().enumerate() {
            if at > 0 {
                f.write_str("; or ")?;
            }
            write!(f, "{branch}")?;
        }
        if self.branches.is_empty() {
            f.write_str("never matches")?;
        }
        self.remembers.iter().try_for_each(|memory| write!(f, "; {memory}"))
    }
}

impl std::fmt::Display for BranchExplanation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let and = |parts: &[String]| parts.join(" && ");
        let mut said = Vec::new();
        if !self.event_guards.is_empty() {
            said.push(format!("only if {}", and(&self.event_guards)));
        }
        if !self.subscription_guards.is_empty() {
            said.push(format!("of subscriptions with {}", and(&self.subscription_guards)));
        }
        if !self.keys.is_empty() {
            said.push(format!("looks up {}", and(&self.keys)));
        }
        if !self.range.is_empty() {
            said.push(format!("takes the slice {}", and(&self.range)));
        }
        match (self.keys.is_empty() && self.range.is_empty(), self.filters) {
            (true, true) => said.push("takes the subscriptions whose own filter matches, or that have none".to_owned()),
            (true, false) => said.push("looks at every subscription".to_owned()),
            (false, true) => said.push("takes those whose own filter matches, or that have none".to_owned()),
            (false, false) => {}
        }
        if !self.residual.is_empty() {
            said.push(format!("checks {} for each", and(&self.residual)));
        }
        f.write_str(&said.join("; "))
    }
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
        RuleSet::compile_with_queries(application, &|_| None)
    }

    /// As [`RuleSet::compile`], with the fields of the notification that the query of a rule gives, in the order of
    /// [`Told::given`](crate::shard::Told::given). For a rule of which nothing is known, every field is taken to be given.
    ///
    /// # Errors
    /// As [`RuleSet::compile`].
    pub fn compile_with_queries(
        application: &Application,
        columns: &dyn Fn(&Name) -> Option<Vec<Name>>,
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
        });
        let events = application
            .events
            .iter()
            .map(|(name, class)| (name.clone(), EventPlan { fields: class.fields.clone(), rules: Vec::new() }));
        let mut set = RuleSet {
            application: application.name.clone(),
            rules: Vec::with_capacity(application.rules.len()),
            classes: classes.collect(),
            events: events.collect(),
            branches: 0,
            filters: Vec::new(),
            audiences: Vec::new(),
            subscriber,
            reads_subscriber: false,
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
            if class.takes_filters
                && let Some(event) = self.events.get(&rule.on)
            {
                let known = self.filters.iter().position(|plan| plan.class == rule.class && plan.event == rule.on);
                rule.filters = Some(known.unwrap_or_else(|| {
                    let plan = FilterPlan { class: rule.class, event: rule.on.clone(), fields: event.fields.clone() };
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
        let compiled = self.compile_filter(class, filter)?;
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
        self.compile_filter(&class.name, filter).map(|_| ()).map_err(|problems| {
            let first = problems.into_iter().next();
            let first = first.unwrap_or_else(|| Problem::at("", "the filter cannot be compiled"));
            Problem { path: "filter".to_owned(), ..first }
        })
    }

    /// A filter of a subscription of a class, compiled for each event class to which it is put.
    pub(crate) fn compile_filter(
        &self,
        class: &Name,
        filter: &Filter,
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
            match filter::compile_with(filter, &plan.fields, &self.functions) {
                Ok(compiled) => Ok((&plan.event, compiled)),
                Err(problems) => Err(problems.into_iter().map(several).collect()),
            }
        };
        class.filters.iter().map(compile).collect()
    }

    /// The events of a batch, as rows of their class in this version: `event_fields` are the fields with which the batch
    /// was packed; they are mapped by name, and what is missing is null.
    ///
    /// # Errors
    /// The batch is damaged.
    pub fn rows(&self, batch: &EventBatch, event_fields: &Fields) -> Result<Vec<Row>, Damaged> {
        let Some(plan) = self.events.get(&batch.class) else { return Ok(Vec::new()) };
        let layout = Layout::between(event_fields, &plan.fields);
        let row = |packed: Result<&[u8], Damaged>| Ok(layout.apply(unpack_row(event_fields, packed?)?));
        batch.events.rows().map(row).collect()
    }

    /// The same events, for matching: rows are only made of them where somebody asks for rows.
    ///
    /// # Errors
    /// The batch is damaged.
    pub fn events(&self, batch: &EventBatch, event_fields: &Fields) -> Result<Events<'static>, Damaged> {
        match self.events.get(&batch.class) {
            Some(plan) => Events::of_batch(batch, event_fields, &plan.fields),
            None => Ok(Events::none()),
        }
    }

    /// How each rule is answered, with warnings where a rule would scan.
    pub fn explain(&self) -> Vec<RuleExplanation> {
        self.rules.iter().map(|rule| rule.explain(&self.audiences)).collect()
    }
}

impl CompiledRule {
    fn scans(&self) -> bool {
        self.branches.iter().any(|branch| !branch.is_indexed() && !branch.residual.is_empty())
    }

    fn explain(&self, audiences: &[Name]) -> RuleExplanation {
        let source = self.source.as_deref().unwrap_or_default();
        let text = |expression: &Expression| expression.span.text(source).to_owned();
        let texts = |expressions: &[Expression]| expressions.iter().map(text).collect::<Vec<String>>();
        let branches: Vec<BranchExplanation> = self
            .branches
            .iter()
            .map(|branch| BranchExplanation {
                event_guards: texts(&branch.event_guards),
                subscription_guards: {
                    let audience = self.audience.map(|audience| format!("a subscriber of `{}`", audiences[audience]));
                    audience.into_iter().chain(texts(&branch.subscription_guards)).collect()
                },
                keys: branch
                    .keys
                    .iter()
                    .map(|key| {
                        format!(
                            "{} {} {}",
                            text(&key.event),
                            if key.any_of { "in" } else { "==" },
                            text(&key.subscription)
                        )
                    })
                    .collect(),
                range: match &branch.range {
                    Range::None => Vec::new(),
                    Range::One(only) => vec![text(&only.source)],
                    Range::Two(ends) => ends.iter().map(|end| text(&end.source)).collect(),
                },
                filters: self.filters.is_some(),
                residual: branch.residual.iter().map(|check| text(check.source())).collect(),
            })
            .collect();
        let mut warnings = Vec::new();
        if !self.enabled {
            warnings.push("the rule is disabled".to_owned());
        }
        if self.filters.is_none() && self.scans() {
            warnings.push(
                "no index answers: each event is checked against every subscription; compare a field of the event with a \
                 field of the subscription by `==` or an order"
                    .to_owned(),
            );
        }
        let rearm = self.state.as_ref().and_then(|state| state.rearm.as_ref());
        if rearm.is_some_and(|rearm| rearm.rules.rules.iter().any(CompiledRule::scans)) {
            warnings.push(
                "no index answers `rearm`: each event is checked against every subscription that waits to be re-armed"
                    .to_owned(),
            );
        }
        let remembers = self.state.as_ref().map(|state| state.explained.clone()).unwrap_or_default();
        let audience = self.audience.map(|audience| audiences[audience].clone());
        RuleExplanation { rule: self.name.clone(), audience, branches, remembers, query: Vec::new(), warnings }
    }
}

/// Whether what is captured for a field of this type are the keys of the index.
pub(crate) fn is_key(captured: &Expression, kind: FieldType, key_field: Option<usize>) -> bool {
    kind == FieldType::Integer && matches!(captured.kind, Kind::Subscription(field) if Some(field) == key_field)
}

fn compile_rule(
    application: &Application,
    name: &Name,
    rule: &Rule,
    set: &RuleSet,
    columns: &dyn Fn(&Name) -> Option<Vec<Name>>,
) -> Result<CompiledRule, Vec<Problem>> {
    let missing = |what: &str, class: &Name, field: &str| {
        vec![Problem::at(format!("rules.{name}.{field}"), format!("there is no {what} class `{class}`"))]
    };
    let event = application.events.get(&rule.on).ok_or_else(|| missing("event", &rule.on, "on"))?;
    let class = set.classes.iter().position(|class| class.name == rule.subscription);
    let class = class.ok_or_else(|| missing("subscription", &rule.subscription, "subscription"))?;
    let notification =
        application.notifications.get(&rule.notify).ok_or_else(|| missing("notification", &rule.notify, "notify"))?;
    let scope = Scope {
        event: event.fields.clone(),
        subscription: set.classes[class].fields.clone(),
        subscriber: Some(set.subscriber.clone()),
        functions: set.functions.clone(),
        variables: Vec::new(),
    };
    let mut problems = Vec::new();
    let mut at = |path: String, found: Vec<Problem>| {
        problems.extend(found.into_iter().map(|problem| Problem { path: path.clone(), ..problem }));
    };
    let mut predicate = None;
    if let Some(source) = &rule.when {
        match compile_predicate(source, &scope) {
            Ok(expression) => predicate = Some(expression),
            Err(found) => at(format!("rules.{name}.when"), found),
        }
    }
    for field in rule.with.keys() {
        if notification.fields.position(field.as_str()).is_none() {
            at(format!("rules.{name}.with.{field}"), vec![notification.fields.unknown(field.as_str())]);
        }
    }
    let mut fields = Vec::with_capacity(notification.fields.len());
    let queried = rule.sql.is_some();
    let columns = queried.then(|| columns(name)).flatten();
    for (place, field) in notification.fields.iter().enumerate() {
        let column = match &columns {
            Some(columns) => columns.iter().position(|column| *column == field.name),
            None if queried && !rule.with.contains_key(&field.name) => Some(place),
            None => None,
        };
        if let Some(column) = column {
            fields.push((field.clone(), Fill::Queried(column)));
            continue;
        }
        let path = format!("rules.{name}.with.{}", field.name);
        match fill(field, rule.with.get(&field.name).map(String::as_str), &scope) {
            Ok(fill) => fields.push((field.clone(), fill)),
            Err(found) => at(path, found),
        }
    }
    let state = match compile_state(application, name, rule, &scope) {
        Ok(state) => state,
        Err(found) => {
            problems.extend(found);
            None
        }
    };
    if !problems.is_empty() {
        return Err(problems);
    }
    Ok(CompiledRule {
        name: name.clone(),
        source: rule.sql.as_ref().or(rule.when.as_ref()).cloned(),
        on: rule.on.clone(),
        class,
        notify: rule.notify.clone(),
        batch_size: notification.batch_size.max(1) as usize,
        expires_after: notification.expires_after,
        // At events a scheduled rule does not fire; where it is due it is compiled without its schedule.
        enabled: rule.enabled && rule.schedule.is_none(),
        audience: None,
        timeout: rule.timeout,
        filters: None,
        queried,
        branches: if queried { Vec::new() } else { branches(predicate.as_ref(), &scope) },
        predicate,
        state,
        first_branch: 0,
        fields,
    })
}

fn fill(field: &Field, source: Option<&str>, scope: &Scope) -> Result<Fill, Vec<Problem>> {
    let Some(source) = source else {
        let Some(at) = scope.event.position(field.name.as_str()) else {
            if field.required && field.default.is_null() {
                let problem = Problem::at("", "nothing fills this field of the notification, and it is required");
                return Err(vec![
                    problem.hint("give an expression for it, or a field of this name to the event class"),
                ]);
            }
            return Ok(Fill::Default);
        };
        let given = scope.event[at].kind;
        if !fits(field.kind, &given.into()) {
            let message = format!(
                "the event's field of this name is {}, and the notification's is {}",
                Type::from(given),
                Type::from(field.kind)
            );
            return Err(vec![Problem::at("", message).hint("convert it with an expression")]);
        }
        return Ok(Fill::Event(Expression {
            kind: Kind::Event(at),
            kind_of_value: given.into(),
            span: Default::default(),
        }));
    };
    let expression = compile(source, scope)?;
    if !fits(field.kind, &expression.kind_of_value) {
        let message =
            format!("the expression gives {}, and the field is {}", expression.kind_of_value, Type::from(field.kind));
        let problem = expression.span.problem(source, message);
        return Err(vec![match field.kind {
            FieldType::Integer => problem.hint("convert it with `int(...)`"),
            FieldType::Number => problem.hint("convert it with `double(...)`"),
            FieldType::String => problem.hint("convert it with `string(...)`"),
            FieldType::Timestamp => problem.hint("convert it with `timestamp(...)`"),
            _ => problem,
        }]);
    }
    Ok(if expression.dependence().subscription { Fill::Captured(expression) } else { Fill::Event(expression) })
}

/// Whether a field can take what an expression gives.
fn fits(field: FieldType, given: &Type) -> bool {
    match (field, given) {
        (_, Type::Dynamic | Type::Null) => true,
        (FieldType::Number, given) => given.is_numeric(),
        (FieldType::List, Type::List(_)) => true,
        (field, given) => Type::from(field) == *given,
    }
}

/// Takes a predicate apart. No predicate is one branch that matches everything.
fn branches(predicate: Option<&Expression>, scope: &Scope) -> Vec<Branch> {
    let Some(predicate) = predicate else { return vec![branch(Vec::new(), scope)] };
    let predicate = normalise(predicate.clone(), false);
    if let Some(alternatives) = alternatives(&predicate)
        && alternatives.len() > 1
    {
        let branches: Vec<Branch> = alternatives.into_iter().map(|conjuncts| branch(conjuncts, scope)).collect();
        if branches.iter().all(|branch| branch.is_indexed() || branch.residual.is_empty()) {
            return branches;
        }
    }
    let mut conjuncts = Vec::new();
    flatten(predicate, &mut conjuncts);
    vec![branch(conjuncts, scope)]
}

/// Moves `!` inwards over `&&`, `||` and `==`.
fn normalise(expression: Expression, negated: bool) -> Expression {
    let Expression { kind, kind_of_value, span } = expression;
    let kind = match kind {
        Kind::Not(inner) => return normalise(*inner, !negated),
        Kind::And(parts) | Kind::Or(parts) if parts.is_empty() => {
            Kind::Constant(Constant::Value(Value::Boolean(!negated)))
        }
        Kind::And(parts) => {
            let parts = parts.into_iter().map(|part| normalise(part, negated)).collect();
            if negated { Kind::Or(parts) } else { Kind::And(parts) }
        }
        Kind::Or(parts) => {
            let parts = parts.into_iter().map(|part| normalise(part, negated)).collect();
            if negated { Kind::And(parts) } else { Kind::Or(parts) }
        }
        Kind::Binary(Operator::Equal, parts) if negated => Kind::Binary(Operator::NotEqual, parts),
        Kind::Binary(Operator::NotEqual, parts) if negated => Kind::Binary(Operator::Equal, parts),
        kind if negated => {
            let inner = Expression { kind, kind_of_value: kind_of_value.clone(), span };
            Kind::Not(Box::new(inner))
        }
        kind => kind,
    };
    Expression { kind, kind_of_value, span }
}

fn flatten(expression: Expression, conjuncts: &mut Vec<Expression>) {
    match expression.kind {
        Kind::And(parts) => parts.into_iter().for_each(|part| flatten(part, conjuncts)),
        _ => conjuncts.push(expression),
    }
}

/// The disjunctive normal form, if it has few enough alternatives. What speaks of one side alone stays whole: it is a
/// guard anyway.
fn alternatives(expression: &Expression) -> Option<Vec<Vec<Expression>>> {
    let dependence = expression.dependence();
    let mixed = dependence.event && dependence.subscription;
    let list = match &expression.kind {
        Kind::Or(parts) if mixed => {
            let mut list = Vec::new();
            for part in parts {
                list.extend(alternatives(part)?);
                if list.len() > BRANCHES_MAX {
                    return None;
                }
            }
            list
        }
        Kind::And(parts) => {
            let mut list = vec![Vec::new()];
            for part in parts {
                let more = alternatives(part)?;
                if list.len() * more.len() > BRANCHES_MAX {
                    return None;
                }
                // The usual case, and without it a chain of thousands would be copied thousands of times.
                if let [only] = more.as_slice() {
                    list.iter_mut().for_each(|left| left.extend_from_slice(only));
                    continue;
                }
                list = list
                    .iter()
                    .flat_map(|left: &Vec<Expression>| more.iter().map(move |right| [left.as_slice(), right].concat()))
                    .collect();
            }
            list
        }
        _ => vec![vec![expression.clone()]],
    };
    Some(list)
}

fn branch(conjuncts: Vec<Expression>, scope: &Scope) -> Branch {
    let mut branch = Branch {
        event_guards: Vec::new(),
        subscription_guards: Vec::new(),
        keys: Vec::new(),
        asks: 0,
        range: Range::None,
        residual: Vec::new(),
    };
    let (mut ordered, mut left) = (Vec::new(), Vec::new());
    for conjunct in conjuncts {
        let dependence = conjunct.dependence();
        if !dependence.subscription {
            branch.event_guards.push(conjunct);
        } else if !dependence.event {
            branch.subscription_guards.push(conjunct);
        } else if let Some(key) = key_part(&conjunct)
            && !(key.any_of && branch.keys.iter().any(|key| key.any_of))
        {
            branch.keys.push(key);
        } else if let Some(test) = ordered_test(&conjunct) {
            ordered.push(test);
        } else {
            left.push(conjunct);
        }
    }
    let is_low = |test: &Ordered| matches!(test.operator, Operator::Less | Operator::LessOrEqual);
    let pair = ordered.iter().enumerate().find_map(|(low, test)| {
        let same = |other: &Ordered| !is_low(other) && other.event == test.event;
        if is_low(test) { Some((low, ordered.iter().position(same)?)) } else { None }
    });
    branch.range = match pair {
        Some((low, high)) => {
            let (low, high) = (ordered[low].clone(), ordered[high].clone());
            ordered.retain(|test| test.source.span != low.source.span && test.source.span != high.source.span);
            Range::Two(Box::new([low, high]))
        }
        None if ordered.is_empty() => Range::None,
        None => Range::One(Box::new(ordered.remove(0))),
    };
    let left = left.into_iter().chain(ordered.into_iter().map(|test| test.source));
    let columns = scope.subscriber.iter().flat_map(SubscriberColumns::kinds);
    let kinds: Vec<FieldType> = scope.subscription.iter().map(|field| field.kind).chain(columns).collect();
    branch.residual = left.map(|conjunct| Check::new(conjunct, &kinds)).collect();
    // Cheap checks first: each one thins out what the next must look at.
    branch.residual.sort_by_key(Check::weight);
    branch
}

/// `event == subscription` in either orientation, or `event in subscription`.
fn key_part(conjunct: &Expression) -> Option<KeyPart> {
    let Kind::Binary(operator, parts) = &conjunct.kind else { return None };
    let [left, right] = &**parts;
    let (of_event, of_subscription) = sides(left, right)?;
    match operator {
        Operator::Equal => {
            Some(KeyPart { event: of_event.clone(), subscription: of_subscription.clone(), any_of: false })
        }
        Operator::In if std::ptr::eq(of_event, left) && matches!(right.kind_of_value, Type::List(_)) => {
            Some(KeyPart { event: of_event.clone(), subscription: of_subscription.clone(), any_of: true })
        }
        _ => None,
    }
}

fn ordered_test(conjunct: &Expression) -> Option<Ordered> {
    let Kind::Binary(operator, parts) = &conjunct.kind else { return None };
    let [left, right] = &**parts;
    let (of_event, of_subscription) = sides(left, right)?;
    let operator = match (operator, std::ptr::eq(of_subscription, left)) {
        (Operator::Less | Operator::LessOrEqual | Operator::Greater | Operator::GreaterOrEqual, true) => *operator,
        (Operator::Less, false) => Operator::Greater,
        (Operator::LessOrEqual, false) => Operator::GreaterOrEqual,
        (Operator::Greater, false) => Operator::Less,
        (Operator::GreaterOrEqual, false) => Operator::LessOrEqual,
        _ => return None,
    };
    let measure = Measure::of(&of_subscription.kind_of_value).filter(|_| is_settled(of_subscription))?;
    Some(Ordered {
        subscription: of_subscription.clone(),
        measure,
        operator,
        event: of_event.clone(),
        source: conjunct.clone(),
    })
}

/// The side of the event and the side of the subscription, where each stands alone.
fn sides<'a>(left: &'a Expression, right: &'a Expression) -> Option<(&'a Expression, &'a Expression)> {
    let (l, r) = (left.dependence(), right.dependence());
    if l.event && !l.subscription && r.subscription && !r.event {
        Some((left, right))
    } else if r.event && !r.subscription && l.subscription && !l.event {
        Some((right, left))
    } else {
        None
    }
}

/// Whether the type known now is the type at run time. A choice between an integer and a number is a number to the
/// checker, but may be an integer at run time, which a column of numbers could not hold exactly.
fn is_settled(expression: &Expression) -> bool {
    let mut settled = true;
    expression.visit(&mut |part| {
        settled &= matches!(
            part.kind,
            Kind::Constant(_) | Kind::Subscription(_) | Kind::Binary(..) | Kind::Negate(_) | Kind::Call(..)
        );
    });
    settled
}
