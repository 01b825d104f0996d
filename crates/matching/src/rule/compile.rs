//! Compiles one rule of a definition: typed expressions, branches, and the source of each field of its notification.

use tocsin_model::{
    application::{Application, Rule},
    field::{Field, FieldType},
    id::Name,
    problem::{Code, Problem},
};

use super::{BatchUnit, CompiledRule, FieldSource, RuleSet, branches::branches};
use crate::{
    check::{Scope, Subject, compile, compile_predicate},
    expression::{Expression, Kind, Type},
    state::compile::compile_state,
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
    let notification =
        application.notifications.get(&rule.notify).ok_or_else(|| missing("notification", &rule.notify, "notify"))?;
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
            fields.push((field.clone(), FieldSource::Queried(column)));
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
        unit: match (&notification.delivery_policy.digest, notification.delivery_policy.multicast) {
            (Some(_), _) => BatchUnit::Subscriber,
            (None, Some(limit)) => BatchUnit::Event(limit.max(1) as usize),
            (None, None) => BatchUnit::Notification,
        },
        expires_after: notification.expires_after,
        // A scheduled rule does not fire on events; a firing compiles it without its schedule.
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
