//! Splits a predicate into branches: each alternative has guards, a hash key, at most one ordered test or range, and a
//! residual.
//!
//! Only the value true is a match. So `&&` and `||` distribute over each other, and `!` can be moved inwards, even in
//! the presence of errors: the split never changes the matches.

use tocsin_model::{field::FieldType, value::Value};

use crate::{
    check::scope::Scope,
    dialect::Operator,
    expression::{Constant, Expression, Kind, Type},
    index::{chunks::Arrangement, key::Measure},
    residual::Check,
    subscriber::SubscriberColumns,
};

/// Most branches of a rule; a predicate with more alternatives becomes a residual.
pub const BRANCHES_MAX: usize = 16;

/// One alternative of a predicate.
#[derive(Debug, Clone)]
pub(crate) struct Branch {
    pub event_guards: Vec<Expression>,
    pub subscription_guards: Vec<Expression>,
    pub keys: Vec<KeyPart>,
    /// The same number for branches of an event class with the same key expression over the event.
    pub asks: usize,
    pub range: Range,
    pub residual: Vec<Check>,
}

#[derive(Debug, Clone)]
pub(crate) struct KeyPart {
    pub event: Expression,
    pub subscription: Expression,
    /// The subscription has a list, and is indexed under each of its values.
    pub any_of: bool,
}

/// `subscription operator event`.
#[derive(Debug, Clone)]
pub(crate) struct Ordered {
    pub subscription: Expression,
    pub measure: Measure,
    pub operator: Operator,
    pub event: Expression,
    pub(super) source: Expression,
}

#[derive(Debug, Clone)]
pub(crate) enum Range {
    None,
    One(Box<Ordered>),
    /// The low end and the high end, of the same event expression.
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

/// Splits a predicate. Without a predicate, there is one branch that matches everything.
pub(super) fn branches(predicate: Option<&Expression>, scope: &Scope) -> Vec<Branch> {
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

/// The disjunctive normal form, if it has few enough alternatives. A condition on one side only is not split: it
/// becomes a guard.
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
                // The common case; without it, a chain of thousands of operands would be copied thousands of times.
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
    // Cheap checks first: each reduces the candidates of the next.
    branch.residual.sort_by_key(Check::weight);
    branch
}

/// `event == subscription` in either orientation, or `event in subscription`.
fn key_part(conjunct: &Expression) -> Option<KeyPart> {
    let Kind::Binary(operator, parts) = &conjunct.kind else { return None };
    let [left, right] = &**parts;
    let (of_event, of_subscription) = operands_by_side(left, right)?;
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
    let (of_event, of_subscription) = operands_by_side(left, right)?;
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

/// The operand of the event and the operand of the subscription, if each depends on one side only.
fn operands_by_side<'a>(left: &'a Expression, right: &'a Expression) -> Option<(&'a Expression, &'a Expression)> {
    let (l, r) = (left.dependence(), right.dependence());
    if l.event && !l.subscription && r.subscription && !r.event {
        Some((left, right))
    } else if r.event && !r.subscription && l.subscription && !l.event {
        Some((right, left))
    } else {
        None
    }
}

/// Whether the static type is the type at run time. A conditional between an integer and a number has the static type
/// number, but can be an integer at run time, which a column of numbers cannot represent exactly.
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
