//! Evaluates one rule on one event and one subscription, for display: the verdict of each condition, with the values it
//! read.

use serde::Serialize;
use tocsin_model::{field::Fields, id::Name, value::Value};

use crate::{
    dialect::Span,
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
    /// Whether the result of the rule or filter follows from it. Of a tree, the leaves decide.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub decides: bool,
    /// The operator that joins `parts`; none for a leaf.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operator: Option<Junction>,
    /// Its operands, in source order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<Condition>,
}

/// The operator of a condition with parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Junction {
    /// `&&`.
    All,
    /// `||`.
    Any,
    /// `!`.
    Not,
}

impl Junction {
    /// Its name.
    pub fn word(self) -> &'static str {
        match self {
            Junction::All => "all",
            Junction::Any => "any",
            Junction::Not => "not",
        }
    }
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
    /// Not evaluated.
    Unknown,
}

impl Verdict {
    /// Its name.
    pub fn word(self) -> &'static str {
        match self {
            Verdict::Holds => "holds",
            Verdict::Fails => "fails",
            Verdict::Error => "error",
            Verdict::Unknown => "unknown",
        }
    }

    fn of(holds: bool) -> Verdict {
        if holds { Verdict::Holds } else { Verdict::Fails }
    }
}

impl Condition {
    /// A condition without parts and values.
    fn leaf(text: String, verdict: Verdict, error: Option<String>) -> Condition {
        Condition { text, verdict, error, values: Vec::new(), decides: false, operator: None, parts: Vec::new() }
    }

    /// Marks the leaves from which its verdict follows.
    fn mark(&mut self) {
        match self.operator {
            None => self.decides = true,
            Some(Junction::Not) => self.parts.iter_mut().for_each(Condition::mark),
            Some(junction) => mark(&mut self.parts, junction, self.verdict),
        }
    }
}

/// Marks the leaves of operands from which the verdict of the whole follows.
fn mark(parts: &mut [Condition], junction: Junction, verdict: Verdict) {
    // One operand decides a conjunction that fails and a disjunction that holds; otherwise all do.
    let one_decides = match junction {
        Junction::All => verdict != Verdict::Holds,
        Junction::Any => verdict != Verdict::Fails,
        Junction::Not => false,
    };
    parts.iter_mut().filter(|part| !one_decides || part.verdict == verdict).for_each(Condition::mark);
}

/// The verdict of a conjunction, as the interpreter gives it: an operand that fails decides.
fn conjunction(verdicts: impl Iterator<Item = Verdict>) -> Verdict {
    let rank = |verdict: &Verdict| match verdict {
        Verdict::Holds => 0,
        Verdict::Unknown => 1,
        Verdict::Error => 2,
        Verdict::Fails => 3,
    };
    verdicts.max_by_key(rank).unwrap_or(Verdict::Holds)
}

impl RuleSet {
    /// Evaluates a rule, enabled or not. The event is a row of the rule set's version.
    pub fn try_rule(&self, rule: RuleNumber, event: &[Value], subscription: &SubscriptionView) -> Trial {
        let unknown = "a query is run over a whole event batch and all subscriptions, not tried on one of each";
        self.try_with(rule, event, subscription, (Verdict::Unknown, Some(unknown.to_owned())))
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
        let given = match given {
            Ok(found) => (Verdict::of(found), None),
            Err(reason) => (Verdict::Error, Some(reason)),
        };
        self.try_with(rule, event, subscription, given)
    }

    /// Evaluates a rule. `queried` is the verdict of its query, with the error.
    fn try_with(
        &self,
        rule: RuleNumber,
        event: &[Value],
        subscription: &SubscriptionView,
        queried: (Verdict, Option<String>),
    ) -> Trial {
        let rule = self.rule(rule);
        let mut conditions = Vec::new();
        if let Some(audience) = rule.audience {
            let belongs = subscription.memberships.includes(rule.audience);
            let text = format!("audience: {}", self.audiences[audience]);
            conditions.push(Condition::leaf(text, Verdict::of(belongs), None));
        }
        if rule.queried {
            let (verdict, error) = queried;
            conditions.push(Condition::leaf(rule.source.clone().unwrap_or_default(), verdict, error));
        }
        if let Some(predicate) = &rule.predicate {
            self.conditions(rule, predicate, event, subscription, &mut conditions);
        }
        let verdict = conjunction(conditions.iter().map(|condition| condition.verdict));
        if verdict != Verdict::Holds {
            mark(&mut conditions, Junction::All, verdict);
        }
        let own = subscription.filter.iter().find(|(class, _)| *class == rule.on);
        let filter = own.map(|(_, filter)| self.try_filter(&rule.on, filter, event));
        let own_holds = filter.as_ref().is_none_or(|filter| filter.verdict == Verdict::Holds);
        let fits = self.classes[rule.class].name == subscription.class;
        Trial { matches: fits && verdict == Verdict::Holds && own_holds, conditions, filter }
    }

    fn try_filter(&self, class: &Name, filter: &CompiledFilter, event: &[Value]) -> FilterTrial {
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
            Condition { values, ..Condition::leaf(show(part, &fields), Verdict::of(part.holds(event)), None) }
        });
        let mut conditions: Vec<Condition> = conditions.collect();
        let (verdict, error) = match filter.holds(event) {
            Ok(holds) => (Verdict::of(holds), None),
            Err(error) => (Verdict::Error, Some(error.to_string())),
        };
        let all_hold = conditions.iter().all(|condition| condition.verdict == Verdict::Holds);
        if !is_exact || all_hold != (verdict == Verdict::Holds) {
            // The tests only say which events it can match; this one decides.
            let text = "the filter as a whole".to_owned();
            conditions.push(Condition::leaf(text, verdict, error));
        }
        if verdict != Verdict::Holds {
            mark(&mut conditions, Junction::All, verdict);
        }
        FilterTrial { verdict, conditions }
    }

    /// Adds the operands of the top-level `&&`, or the expression itself.
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
        out.push(self.condition(rule, expression, event, subscription));
    }

    /// An expression as a tree of its `&&`, `||` and `!`. Each node is evaluated by the interpreter.
    fn condition(
        &self,
        rule: &CompiledRule,
        expression: &Expression,
        event: &[Value],
        subscription: &SubscriptionView,
    ) -> Condition {
        let (operator, operands) = match &expression.kind {
            Kind::And(parts) => (Some(Junction::All), parts.as_slice()),
            Kind::Or(parts) => (Some(Junction::Any), parts.as_slice()),
            Kind::Not(part) => (Some(Junction::Not), std::slice::from_ref(&**part)),
            _ => (None, &[][..]),
        };
        let context = EvalContext { event, parameters: Parameters::Row(&subscription.row) };
        let (verdict, error) = match value(expression, context) {
            Ok(EvalValue::Boolean(holds)) => (Verdict::of(holds), None),
            Ok(other) => (Verdict::Error, Some(format!("it gives {}, not a boolean", other.type_name()))),
            Err(error) => (Verdict::Error, Some(error.to_string())),
        };
        let text = closed(expression.span, rule.source.as_deref().unwrap_or_default()).to_owned();
        let values = self.values_read(rule, expression, event, subscription);
        let parts = operands.iter().map(|part| self.condition(rule, part, event, subscription)).collect();
        Condition { values, operator, parts, ..Condition::leaf(text, verdict, error) }
    }

    /// The fields that an expression reads, with their values.
    fn values_read(
        &self,
        rule: &CompiledRule,
        expression: &Expression,
        event: &[Value],
        subscription: &SubscriptionView,
    ) -> Vec<(String, String)> {
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
        values
    }
}

/// The text of an expression with its closing parentheses: a span ends with its last operand, before them.
fn closed(span: Span, source: &str) -> &str {
    let (start, mut end) = (span.start as usize, span.end as usize);
    let (mut open, mut quote) = (0, None);
    for c in span.text(source).chars() {
        match (quote, c) {
            (Some(closing), c) if c == closing => quote = None,
            (None, '\'' | '"') => quote = Some(c),
            (None, '(') => open += 1,
            (None, ')') => open -= 1,
            _ => {}
        }
    }
    while open > 0 {
        let rest = source.get(end..).unwrap_or_default();
        let blanks = rest.len() - rest.trim_start().len();
        if !rest[blanks..].starts_with(')') {
            break;
        }
        end += blanks + 1;
        open -= 1;
    }
    source.get(start..end).unwrap_or_default()
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
