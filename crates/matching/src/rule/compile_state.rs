//! Compiles the state clauses of a rule: expressions, and the re-arm condition as a rule set of its own.

use std::sync::Arc;

use tocsin_model::{
    application::{Application, Rule, RuleState},
    field::{Field, FieldType, Fields},
    id::Name,
    problem::{Code, Problem},
};

use crate::{
    check::{compile, compile_predicate, scope::Scope},
    digest::digest,
    rule::rule_set::{CompiledState, Rearm, RuleSet, Shape},
};

/// Compiles the rules of an application.
pub(crate) type CompileRules<'a> = &'a dyn Fn(&Application) -> Result<RuleSet, Vec<Problem>>;

/// Compiles the state clauses of a rule, in the scope of its predicate. `compile_rules` compiles the re-arm condition,
/// which becomes the one rule of an application.
///
/// # Errors
/// Every problem, with its path.
pub(crate) fn compile_state(
    application: &Application,
    name: &Name,
    rule: &Rule,
    scope: &Scope,
    compile_rules: CompileRules<'_>,
) -> Result<Option<CompiledState>, Vec<Problem>> {
    let RuleState { per, cooldown, rearm, changed } = &rule.state;
    let mut problems = Vec::new();
    let mut of_event = |key: &str, source: &Option<String>| {
        let source = source.as_deref()?;
        let compiled = compile(source, scope).and_then(|expression| match expression.dependence().subscription {
            false => Ok(expression),
            true => {
                let problem =
                    expression.span.problem(Code::InvalidExpression, source, format!("`{key}` reads the subscription"));
                Err(vec![problem.hint("name fields of `event` only; each subscription has its own state anyway")])
            }
        });
        compiled.map_err(|found| problems.extend(placed(name, key, found))).ok()
    };
    let per_expression = of_event("per", per);
    let changed_expression = of_event("changed", changed);
    let rearm = match rearm
        .as_deref()
        .map(|source| compile_rearm(application, name, rule, source, scope, compile_rules))
        .transpose()
    {
        Ok(rearm) => rearm,
        Err(found) => {
            problems.extend(placed(name, "rearm", found));
            None
        }
    };
    if !problems.is_empty() {
        return Err(problems);
    }
    if !rule.state.is_kept() {
        return Ok(None);
    }
    let mut explained = Vec::new();
    let each = per.as_ref().map_or(String::new(), |per| format!(" and {per}"));
    if let Some(cooldown) = cooldown {
        let time = tocsin_model::definition::write_duration(*cooldown);
        explained.push(format!("notifies a subscription{each} at most once in {time}"));
    }
    if let Some(source) = &rule.state.rearm {
        explained.push(format!("notifies a subscription{each} once until {source}"));
    }
    if let Some(changed) = changed {
        explained
            .push(format!("notifies a subscription{each} only if {changed} has changed since its last notification"));
    }
    Ok(Some(CompiledState {
        per: per_expression,
        changed: changed_expression,
        cooldown: cooldown.map(|cooldown| i64::try_from(cooldown.as_micros()).unwrap_or(i64::MAX)),
        rearm,
        shape: Shape { per: per.as_ref().map_or(0, |per| digest(per.as_bytes())), valued: changed.is_some() },
        explained,
    }))
}

fn placed(rule: &Name, key: &str, problems: Vec<Problem>) -> impl Iterator<Item = Problem> {
    let path = format!("rules.{rule}.{key}");
    problems.into_iter().map(move |problem| Problem { path: path.clone(), ..problem })
}

/// The condition is indexed like a rule over the disarmed subscriptions. With `per`, the key is an additional field of
/// both event and subscription.
fn compile_rearm(
    application: &Application,
    name: &Name,
    rule: &Rule,
    source: &str,
    scope: &Scope,
    compile_rules: CompileRules<'_>,
) -> Result<Rearm, Vec<Problem>> {
    let mut fields = compile_predicate(source, scope)?.subscription_fields();
    fields.sort_unstable();
    fields.dedup();
    let mut derived = application.clone();
    let mut when = source.to_owned();
    if rule.state.per.is_some() {
        let taken = |name: &str| scope.event.position(name).is_some() || scope.subscription.position(name).is_some();
        let mut key = "state_key".to_owned();
        while taken(&key) {
            key.push('_');
        }
        if let Some(class) = derived.events.get_mut(&rule.on) {
            // In rows, the key follows the fields, before the chronicle columns.
            class.fields = with_key(&class.fields, &key);
        }
        if let Some(class) = derived.subscriptions.get_mut(&rule.subscription) {
            class.fields = with_key(&class.fields, &key);
        }
        when = format!("event.{key} == sub.{key} && ({source})");
    }
    let mut only = Rule::new(rule.on.clone(), rule.subscription.clone(), rule.notify.clone());
    only.when = Some(when);
    derived.rules = [(name.clone(), only)].into();
    if let Some(class) = derived.subscriptions.get_mut(&rule.subscription) {
        // Disarmed subscriptions have matched before; their own filters do not restrict re-arming.
        class.filter.clear();
    }
    if let Some(class) = derived.notifications.get_mut(&rule.notify) {
        class.fields = Fields::default();
    }
    let rules = Arc::new(compile_rules(&derived)?);
    let key_at = scope.subscription.len();
    let width = scope.event.len();
    let read = rules.events.get(&rule.on).map(|plan| plan.columns.clone()).unwrap_or_default();
    let place = |column: &Field| Some(width + scope.chronicled.position(column.name.as_str())?);
    let columns = read.iter().filter_map(place).collect();
    Ok(Rearm { rules, on: rule.on.clone(), class: rule.subscription.clone(), fields, key_at, width, columns })
}

fn with_key(fields: &Fields, name: &str) -> Fields {
    let key = Field::new(name.parse().expect("it is made of letters"), FieldType::Integer);
    Fields::new(fields.iter().cloned().chain([key]).collect())
}
