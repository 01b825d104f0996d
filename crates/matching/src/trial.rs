//! Evaluates one rule on one event and one subscription, for display: the verdict of each condition, with the values it
//! read.

use serde::Serialize;
use tocsin_model::{field::Fields, id::Name, value::Value};

use crate::{
    eval_value::EvalValue,
    evaluate::{EvalContext, Parameters, value},
    expression::{Expression, Kind},
    filter::{self, compiled::CompiledFilter, show::show},
    oracle::SubscriptionView,
    rule::rule_set::{CompiledRule, EventPlan, RuleNumber, RuleSet},
};

/// Most characters of a value that are shown.
const SHOWN_MAX: usize = 120;

/// The result of a rule for an event and a subscription.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Trial {
    /// Whether every condition holds.
    pub matches: bool,
    /// The audience, if the rule has one; then the operands of the predicate's top-level `&&`, in source order. Empty:
    /// it always holds.
    pub conditions: Vec<Condition>,
    /// The result of the subscription's own filter, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filter: Option<FilterTrial>,
}

/// The result of a subscription's own filter for an event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FilterTrial {
    /// The verdict of the filter's own evaluator.
    pub verdict: Verdict,
    /// The tests of the filter's condition, as text. If they do not decide it, the evaluation of the whole stands last.
    pub conditions: Vec<Condition>,
}

/// One condition of a predicate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Condition {
    /// The source text.
    pub text: String,
    /// The verdict.
    pub verdict: Verdict,
    /// The error, if it has no value.
    #[serde(rename = "trouble", skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The fields that it reads, with their values as JSON, cut at 120 characters.
    pub values: Vec<(String, String)>,
}

/// The verdict of a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// True.
    Holds,
    /// Not true.
    Fails,
    /// Evaluation error, which counts as not true.
    Error,
}

impl RuleSet {
    /// Evaluates a rule, enabled or not. The event is a row of the rule set's version.
    pub fn try_rule(&self, rule: RuleNumber, event: &[Value], subscription: &SubscriptionView) -> Trial {
        let unknown = "a query is run over a whole event batch and all subscriptions, not tried on one of each";
        self.try_queried(rule, event, subscription, Err(unknown.to_owned()))
    }

    /// As [`RuleSet::try_rule`], for a rule with a query: `found` is whether the query returned this event and
    /// subscription, or why it failed.
    pub fn try_queried(
        &self,
        rule: RuleNumber,
        event: &[Value],
        subscription: &SubscriptionView,
        given: Result<bool, String>,
    ) -> Trial {
        let rule = self.rule(rule);
        let mut conditions = Vec::new();
        if let Some(audience) = rule.audience {
            let belongs = subscription.memberships.includes(rule.audience);
            conditions.push(Condition {
                text: format!("audience: {}", self.audiences[audience]),
                verdict: if belongs { Verdict::Holds } else { Verdict::Fails },
                error: None,
                values: Vec::new(),
            });
        }
        if rule.queried {
            let (verdict, error) = match given {
                Ok(true) => (Verdict::Holds, None),
                Ok(false) => (Verdict::Fails, None),
                Err(reason) => (Verdict::Error, Some(reason)),
            };
            let text = rule.source.clone().unwrap_or_default();
            conditions.push(Condition { text, verdict, error, values: Vec::new() });
        }
        if let Some(predicate) = &rule.predicate {
            self.conditions(rule, predicate, event, subscription, &mut conditions);
        }
        let own = subscription.filter.iter().find(|(class, _)| *class == rule.on);
        let filter = own.map(|(_, filter)| self.try_filter(&rule.on, filter, event));
        let own_verdict = filter.as_ref().map(|filter| filter.verdict);
        let verdicts = conditions.iter().map(|condition| condition.verdict).chain(own_verdict);
        let matches = self.classes[rule.class].name == subscription.class
            && verdicts.into_iter().all(|verdict| verdict == Verdict::Holds);
        Trial { matches, conditions, filter }
    }

    fn try_filter(&self, class: &Name, filter: &CompiledFilter, event: &[Value]) -> FilterTrial {
        let verdict = |holds| if holds { Verdict::Holds } else { Verdict::Fails };
        let plan = self.events.get(class);
        let fields = plan.map(EventPlan::row).unwrap_or_default();
        let parts = match filter.condition() {
            filter::Condition::All(parts) => parts.as_slice(),
            one => std::slice::from_ref(one),
        };
        let is_exact = filter.is_exact();
        let known = parts.iter().filter(|part| is_exact || **part != filter::Condition::Unknown);
        let conditions = known.map(|part| {
            let mut values = Vec::new();
            part.visit(&mut |test| {
                let name = plan.and_then(|plan| plan.spelling(test.path.field)).unwrap_or_else(|| "event".to_owned());
                if values.iter().all(|(known, _)| *known != name) {
                    values.push((name, shown(event.get(test.path.field).unwrap_or(&Value::Null))));
                }
            });
            Condition { text: show(part, &fields), verdict: verdict(part.holds(event)), error: None, values }
        });
        let mut conditions: Vec<Condition> = conditions.collect();
        let (verdict, error) = match filter.holds(event) {
            Ok(holds) => (verdict(holds), None),
            Err(error) => (Verdict::Error, Some(error.to_string())),
        };
        let all_hold = conditions.iter().all(|condition| condition.verdict == Verdict::Holds);
        if !is_exact || all_hold != (verdict == Verdict::Holds) {
            // The tests only say which events it can match; this one decides.
            let text = "the filter as a whole".to_owned();
            conditions.push(Condition { text, verdict, error, values: Vec::new() });
        }
        FilterTrial { verdict, conditions }
    }

    fn conditions(
        &self,
        rule: &CompiledRule,
        expression: &Expression,
        event: &[Value],
        subscription: &SubscriptionView,
        out: &mut Vec<Condition>,
    ) {
        if let Kind::And(parts) = &expression.kind {
            return parts.iter().for_each(|part| self.conditions(rule, part, event, subscription, out));
        }
        let context = EvalContext { event, parameters: Parameters::Row(&subscription.row) };
        let (verdict, error) = match value(expression, context) {
            Ok(EvalValue::Boolean(true)) => (Verdict::Holds, None),
            Ok(EvalValue::Boolean(false)) => (Verdict::Fails, None),
            Ok(other) => (Verdict::Error, Some(format!("it gives {}, not a boolean", other.type_name()))),
            Err(error) => (Verdict::Error, Some(error.to_string())),
        };
        let plan = self.events.get(&rule.on);
        let mut values: Vec<(String, String)> = Vec::new();
        expression.visit(&mut |part| {
            let (name, value) = match part.kind {
                Kind::Event(at) => {
                    (plan.and_then(|plan| plan.spelling(at)).unwrap_or_else(|| "event".to_owned()), event.get(at))
                }
                Kind::Subscription(at) => {
                    let fields = &self.classes[rule.class].fields;
                    let name = match at.checked_sub(fields.len()) {
                        Some(column) => self.subscriber.name(column),
                        None => named("sub", fields, at),
                    };
                    (name, subscription.row.get(at))
                }
                _ => return,
            };
            if values.iter().all(|(known, _)| *known != name) {
                values.push((name, shown(value.unwrap_or(&Value::Null))));
            }
        });
        let text = expression.span.text(rule.source.as_deref().unwrap_or_default()).to_owned();
        out.push(Condition { text, verdict, error, values });
    }
}

fn named(side: &str, fields: &Fields, at: usize) -> String {
    fields.iter().nth(at).map_or_else(|| side.to_owned(), |field| format!("{side}.{}", field.name))
}

fn shown(value: &Value) -> String {
    let text = serde_json::to_string(value).unwrap_or_default();
    match text.char_indices().nth(SHOWN_MAX) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}
