//! Compiles the state clauses of a rule: expressions, and the re-arm condition as a rule set of its own.

use std::sync::Arc;

use tocsin_model::{
    application::{Application, Rule, RuleState},
    field::{Field, FieldType, Fields},
    id::Name,
    problem::{Code, Problem},
};

use super::page::Shape;
use crate::{
    check::{Scope, compile, compile_predicate},
    eval_value::EvalValue,
    eval_value::write_key,
    expression::Expression,
    rule::RuleSet,
};

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

/// Compiles the state clauses of a rule, in the scope of its predicate.
///
/// # Errors
/// Every problem, with its path.
pub(crate) fn compile_state(
    application: &Application,
    name: &Name,
    rule: &Rule,
    scope: &Scope,
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
    let rearm = match rearm.as_deref().map(|source| compile_rearm(application, name, rule, source, scope)).transpose() {
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
    let rules = Arc::new(RuleSet::compile(&derived)?);
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

/// A digest of a value, the same in every process and never 0; `None` for a value that equals nothing, such as NaN.
pub(crate) fn digest_of(value: &EvalValue<'_>, buffer: &mut Vec<u8>) -> Option<u64> {
    buffer.clear();
    write_key(value, buffer).ok()?;
    Some(digest(buffer))
}

/// A digest of bytes, the same in every process and never 0. It is stored, so it must never change.
pub(crate) fn digest(bytes: &[u8]) -> u64 {
    // Folded multiplication, as in wyhash: every bit of a word influences every bit of the digest.
    let fold = |left: u64, right: u64| {
        let product = u128::from(left) * u128::from(right);
        (product as u64) ^ (product >> 64) as u64
    };
    let mut state = fold(bytes.len() as u64 ^ 0xa076_1d64_78bd_642f, 0xe703_7ed1_a0b4_28db);
    for word in bytes.chunks(8) {
        let mut padded = [0; 8];
        padded[..word.len()].copy_from_slice(word);
        state = fold(state ^ u64::from_le_bytes(padded), 0x8ebc_6af0_9c88_c6e3) ^ state.rotate_left(23);
    }
    fold(state ^ 0x5899_65cc_7537_4cc3, 0x1d8e_4e27_c47d_124f).max(1)
}
