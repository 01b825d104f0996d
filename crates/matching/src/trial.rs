//! One rule tried on one event and one subscription, for people: what each condition said of them, and with which
//! values.

use serde::Serialize;
use tocsin_model::{field::Fields, id::Name, value::Value};

use crate::{
    datum::Datum,
    evaluate::{Parameters, Scene, value},
    expression::{Expression, Kind},
    filter::{self, CompiledFilter, show::show},
    oracle::Witness,
    rule::{CompiledRule, EventPlan, RuleNumber, RuleSet},
};

/// Most characters of a value that are shown.
const SHOWN_MAX: usize = 120;

/// What a rule says of an event and a subscription.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Trial {
    /// Whether it matches: whether every condition holds.
    pub matches: bool,
    /// The audience, if the rule has one; then the conditions that the predicate joins by `&&`, in the order in which they
    /// are written. None: it always holds.
    pub conditions: Vec<Condition>,
    /// What the subscription's own filter says, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filter: Option<FilterTrial>,
}

/// What a subscription's own filter says of an event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FilterTrial {
    /// What it says as a whole, by its own dialect.
    pub verdict: Verdict,
    /// What it asks of the event, one by one, in words. Where it asks for more than single tests can say, the verdict
    /// may be another than theirs.
    pub conditions: Vec<Condition>,
}

/// One condition of a predicate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Condition {
    /// As it is written.
    pub text: String,
    /// What it said.
    pub verdict: Verdict,
    /// Why it has no value, if it is an error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// The fields that it reads, with their values as they stand in JSON, cut at 120 characters.
    pub values: Vec<(String, String)>,
}

/// What a condition said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It holds.
    Holds,
    /// It does not hold.
    Fails,
    /// It has no value, and so it does not hold.
    Error,
}

impl RuleSet {
    /// Tries a rule, enabled or not. The event is a row of the rule set's version.
    pub fn try_rule(&self, rule: RuleNumber, event: &[Value], subscription: &Witness) -> Trial {
        let unknown = "a query is run over a whole event batch and all subscriptions, not tried on one of each";
        self.try_queried(rule, event, subscription, Err(unknown.to_owned()))
    }

    /// As [`RuleSet::try_rule`], for a rule whose query was run: whether it gave this event and subscription, or why it
    /// failed.
    pub fn try_queried(
        &self,
        rule: RuleNumber,
        event: &[Value],
        subscription: &Witness,
        given: Result<bool, String>,
    ) -> Trial {
        let rule = self.rule(rule);
        let mut conditions = Vec::new();
        if let Some(audience) = rule.audience {
            let belongs = subscription.memberships.meet(rule.audience);
            conditions.push(Condition {
                text: format!("audience: {}", self.audiences[audience]),
                verdict: if belongs { Verdict::Holds } else { Verdict::Fails },
                trouble: None,
                values: Vec::new(),
            });
        }
        if rule.queried {
            let (verdict, trouble) = match given {
                Ok(true) => (Verdict::Holds, None),
                Ok(false) => (Verdict::Fails, None),
                Err(reason) => (Verdict::Error, Some(reason)),
            };
            let text = rule.source.clone().unwrap_or_default();
            conditions.push(Condition { text, verdict, trouble, values: Vec::new() });
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
        let conditions = parts.iter().map(|part| {
            let mut values = Vec::new();
            part.visit(&mut |test| {
                let name = plan.and_then(|plan| plan.spelling(test.path.field)).unwrap_or_else(|| "event".to_owned());
                if values.iter().all(|(known, _)| *known != name) {
                    values.push((name, shown(event.get(test.path.field).unwrap_or(&Value::Null))));
                }
            });
            Condition { text: show(part, &fields), verdict: verdict(part.holds(event)), trouble: None, values }
        });
        let conditions = conditions.collect();
        let verdict = filter.holds(event).map_or(Verdict::Error, verdict);
        FilterTrial { verdict, conditions }
    }

    fn conditions(
        &self,
        rule: &CompiledRule,
        expression: &Expression,
        event: &[Value],
        subscription: &Witness,
        out: &mut Vec<Condition>,
    ) {
        if let Kind::And(parts) = &expression.kind {
            return parts.iter().for_each(|part| self.conditions(rule, part, event, subscription, out));
        }
        let scene = Scene { event, parameters: Parameters::Row(&subscription.row) };
        let (verdict, trouble) = match value(expression, scene) {
            Ok(Datum::Boolean(true)) => (Verdict::Holds, None),
            Ok(Datum::Boolean(false)) => (Verdict::Fails, None),
            Ok(other) => (Verdict::Error, Some(format!("it gives {}, not a boolean", other.type_name()))),
            Err(trouble) => (Verdict::Error, Some(trouble.to_string())),
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
        out.push(Condition { text, verdict, trouble, values });
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
