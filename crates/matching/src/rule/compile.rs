//! Compiles one rule of a definition: typed expressions, branches, and the source of each field of its notification.

use std::collections::BTreeMap;

use tocsin_model::{
    application::{Application, Rule},
    field::{Field, FieldType},
    filter::Dialect,
    id::Name,
    problem::{Code, Problem},
};

use super::branches::Branch;
use crate::{
    check::{
        compile, compile_predicate,
        scope::{Scope, Subject},
    },
    compiled_chronicle::{column_fields, columns_read, compile_chronicles},
    expression::{Expression, Kind, Type, UserFunctions},
    filter::compiled::FilterScope,
    residual::Check,
    rule::{
        branches::branches,
        compile_state::compile_state,
        rule_set::{
            BatchUnit, ClassPlan, CompiledRule, EventPlan, FieldSource, FilterPlan, RuleNumber, RuleSet, is_key,
        },
    },
    sql_names::QueriesRead,
    subscriber::{AUDIENCES_MAX, SubscriberColumns},
    user_functions::compile_functions,
};

pub(super) fn compile_rule(
    application: &Application,
    name: &Name,
    rule: &Rule,
    set: &RuleSet,
    columns: &dyn Fn(&Name) -> Option<Vec<Name>>,
) -> Result<CompiledRule, Vec<Problem>> {
    let missing = |what: &str, class: &Name, field: &str| {
        vec![
            Problem::new(
                Code::UnknownReference,
                format!("rules.{name}.{field}"),
                format!("there is no {what} class `{class}`"),
            )
            .param("value", class.to_string())
            .param("kind", "class"),
        ]
    };
    let event = application.events.get(&rule.on).ok_or_else(|| missing("event", &rule.on, "on"))?;
    let class = set.classes.iter().position(|class| class.name == rule.subscription);
    let class = class.ok_or_else(|| missing("subscription", &rule.subscription, "subscription"))?;
    let scope = Scope {
        subject: Subject::Event,
        event: event.fields.clone(),
        chronicled: set.events.get(&rule.on).map(|plan| plan.columns.clone()).unwrap_or_default(),
        subscription: set.classes[class].fields.clone(),
        subscriber: Some(set.subscriber.clone()),
        functions: set.functions.clone(),
        variables: Vec::new(),
    };
    let mut problems = Vec::new();
    let notification = application.notifications.get(&rule.notify);
    if notification.is_none() {
        problems.extend(missing("notification", &rule.notify, "notify"));
    }
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
    let outputs = notification.map(|class| class.fields.clone()).unwrap_or_default();
    for field in rule.with.keys().filter(|_| notification.is_some()) {
        if outputs.position(field.as_str()).is_none() {
            at(format!("rules.{name}.with.{field}"), vec![outputs.unknown(field.as_str())]);
        }
    }
    let mut fields = Vec::with_capacity(outputs.len());
    let queried = rule.sql.is_some();
    let columns = queried.then(|| columns(name)).flatten();
    for (place, field) in outputs.iter().enumerate() {
        let column = match &columns {
            Some(columns) => columns.iter().position(|column| *column == field.name),
            None if queried && !rule.with.contains_key(&field.name) => Some(place),
            None => None,
        };
        if let Some(column) = column {
            fields.push((field.clone(), FieldSource::Queried(column)));
            continue;
        }
        let path = format!("rules.{name}.with.{}", field.name);
        match fill(field, rule.with.get(&field.name).map(String::as_str), &scope) {
            Ok(fill) => fields.push((field.clone(), fill)),
            Err(found) => at(path, found),
        }
    }
    let state = match compile_state(application, name, rule, &scope, &RuleSet::compile) {
        Ok(state) => state,
        Err(found) => {
            problems.extend(found);
            None
        }
    };
    let Some(notification) = notification.filter(|_| problems.is_empty()) else { return Err(problems) };
    Ok(CompiledRule {
        name: name.clone(),
        source: rule.sql.as_ref().or(rule.when.as_ref()).cloned(),
        on: rule.on.clone(),
        class,
        notify: rule.notify.clone(),
        batch_size: notification.batch_size.max(1) as usize,
        unit: match (&notification.delivery_policy.digest, notification.delivery_policy.multicast) {
            (Some(_), _) => BatchUnit::Subscriber,
            (None, Some(limit)) => BatchUnit::Event(limit.max(1) as usize),
            (None, None) => BatchUnit::Notification,
        },
        expires_after: notification.expires_after,
        // A scheduled rule does not fire on events, and a rule on lifecycle events is not evaluated by the index; a firing
        // compiles it without its schedule or binding.
        enabled: rule.enabled && rule.schedule.is_none() && !event.is_targeted(),
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

fn fill(field: &Field, source: Option<&str>, scope: &Scope) -> Result<FieldSource, Vec<Problem>> {
    let Some(source) = source else {
        let Some(at) = scope.event.position(field.name.as_str()) else {
            if field.required && field.default.is_null() {
                let problem =
                    Problem::new(Code::Required, "", "this field of the notification is required and has no source");
                return Err(vec![
                    problem.hint("give an expression for it, or a field of this name to the event class"),
                ]);
            }
            return Ok(FieldSource::Default);
        };
        let given = scope.event[at].kind;
        if !fits(field.kind, &given.into()) {
            let message = format!(
                "the event's field of this name is {}, and the notification's is {}",
                Type::from(given),
                Type::from(field.kind)
            );
            return Err(vec![Problem::new(Code::WrongType, "", message).hint("convert it with an expression")]);
        }
        return Ok(FieldSource::Event(Expression {
            kind: Kind::Event(at),
            kind_of_value: given.into(),
            span: Default::default(),
        }));
    };
    let expression = compile(source, scope)?;
    if !fits(field.kind, &expression.kind_of_value) {
        let message =
            format!("the expression gives {}, and the field is {}", expression.kind_of_value, Type::from(field.kind));
        let problem = expression.span.problem(Code::TypeMismatch, source, message);
        return Err(vec![match field.kind {
            FieldType::Integer => problem.hint("convert it with `int(...)`"),
            FieldType::Number => problem.hint("convert it with `double(...)`"),
            FieldType::String => problem.hint("convert it with `string(...)`"),
            FieldType::Timestamp => problem.hint("convert it with `timestamp(...)`"),
            _ => problem,
        }]);
    }
    Ok(if expression.dependence().subscription {
        FieldSource::Captured(expression)
    } else {
        FieldSource::Event(expression)
    })
}

/// Whether a field can store the value of an expression.
fn fits(field: FieldType, given: &Type) -> bool {
    match (field, given) {
        (_, Type::Dynamic | Type::Null) => true,
        (FieldType::Number, given) => given.is_numeric(),
        (FieldType::List, Type::List(_)) => true,
        (field, given) => Type::from(field) == *given,
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

    /// As [`RuleSet::compile`], with the notification fields that the query of each rule provides, in the order of
    /// [`ExternalMatch::given`](crate::shard::ExternalMatch::given). A rule without an entry is assumed to provide
    /// every field. `read` is the set of subscriber and chronicle columns that queries read.
    ///
    /// # Errors
    /// As [`RuleSet::compile`].
    pub fn compile_with_queries(
        application: &Application,
        columns: &dyn Fn(&Name) -> Option<Vec<Name>>,
        queries: &QueriesRead,
    ) -> Result<RuleSet, Vec<Problem>> {
        let mut problems = Vec::new();
        let functions = compile_functions(&application.functions).unwrap_or_else(|found| {
            problems.extend(found);
            UserFunctions::default()
        });
        // If the functions have problems, unknown functions in rules are not reported as well.
        let is_missing = |problem: &Problem| {
            let defined = |name: &Name| problem.message == format!("there is no function `{name}`");
            application.functions.keys().any(defined)
        };
        let subscriber = SubscriberColumns::new(application.attributes.clone());
        let classes = application.subscriptions.iter().map(|(name, class)| ClassPlan {
            name: name.clone(),
            fields: class.fields.clone(),
            used_columns: vec![false; class.fields.len() + subscriber.len() + 1],
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

    /// The index of a segment among the audiences.
    fn audience_number(&mut self, segment: &Name) -> Result<usize, Problem> {
        if let Some(known) = self.audiences.iter().position(|known| known == segment) {
            return Ok(known);
        }
        if self.audiences.len() == AUDIENCES_MAX {
            let problem = Problem::new(
                Code::TooMany,
                "",
                format!("is one segment too many: the rules of an application ask for {AUDIENCES_MAX} at most"),
            )
            .param("limit", AUDIENCES_MAX);
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
            class.keeps_subscribers |= rule.unit == BatchUnit::Subscriber;
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
            // Captured fields that equal the index keys are copied from the keys.
            let key_field = rule.key_field();
            let captured = rule.fields.iter().flat_map(|(field, fill)| match fill {
                FieldSource::Captured(expression) if is_key(expression, field.kind, key_field) => Vec::new(),
                FieldSource::Captured(expression) => expression.subscription_fields(),
                _ => Vec::new(),
            });
            let rearm = rule.state.as_ref().and_then(|state| state.rearm.as_ref());
            let rearm = rearm.into_iter().flat_map(|rearm| rearm.fields.iter().copied());
            let rearm_reads: Vec<usize> = rearm.clone().collect();
            for field in residual.chain(captured).chain(rearm) {
                class.used_columns[field] = true;
            }
            if rule.queried && rule.audience.is_some() {
                let memberships = class.memberships_at();
                class.used_columns[memberships] = true;
            }
            let filled = rule.fields.iter().filter_map(|(_, fill)| match fill {
                FieldSource::Captured(expression) => Some(expression),
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
}

/// Whether subscriptions of any class can have filters in CEL.
fn takes_filters_in_cel(application: &Application) -> bool {
    application.subscriptions.values().any(|class| class.filter.contains(&Dialect::Cel))
}
