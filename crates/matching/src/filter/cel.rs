//! CEL as conditions: what a typed expression asks of the event, test by test.
//!
//! An expression that is not true, because it is false or because it has an error, does not match. So a condition is
//! exact where it holds if and only if the expression is true; `&&` and `||`, which absorb errors, keep that.

use std::{fmt::Write, sync::Arc};

use tocsin_model::{
    field::{FieldType, Fields, Row},
    filter::Dialect,
    problem::Problem,
    time::Timestamp,
    value::Value,
};

use super::{Case, CompiledFilter, Condition, Evaluate, FilterScope, How, Limit, Path, Range, Reach};
use crate::{
    check::{Scope, compile_predicate},
    datum::{Datum, Trouble},
    defined::Defined,
    dialect::Operator,
    evaluate::{Parameters, Scene, holds, value},
    expression::{Constant, Expression, Function, Kind, Macro, Type},
};

/// Reads a filter in CEL. What it asks of its subscriber is a value in it from here on.
pub(super) fn compile(
    text: &str,
    filters: &FilterScope,
    subscriber: Option<&[Value]>,
) -> Result<CompiledFilter, Vec<Problem>> {
    let FilterScope { subject, event, chronicled, columns, subscriber: of_subscriber, functions } = filters.clone();
    let scope = Scope { subject, event, chronicled, subscriber: of_subscriber, functions, ..Scope::default() };
    let alone = |problem| alone(problem, scope.subscriber.is_some());
    let mut expression =
        compile_predicate(text, &scope).map_err(|problems| problems.into_iter().map(alone).collect::<Vec<_>>())?;
    let asks_subscriber = expression.dependence().subscription;
    if asks_subscriber {
        let anybody = || scope.subscriber.iter().flat_map(|columns| columns.kinds()).map(any_value).collect::<Row>();
        match subscriber {
            Some(subscriber) => expression.bind(subscriber),
            None => expression.bind(&anybody()),
        }
    }
    Ok(CompiledFilter { asks_subscriber, ..of_bound(expression, &columns, asks_subscriber) })
}

/// Some value of a type.
fn any_value(kind: FieldType) -> Value {
    match kind {
        FieldType::Boolean => Value::Boolean(true),
        FieldType::Integer => Value::Integer(1),
        FieldType::Number => Value::Number(1.5),
        FieldType::String => Value::from("something"),
        FieldType::Timestamp => Value::Timestamp(Timestamp(0)),
        FieldType::List => Value::List([Value::from("something")].into()),
        FieldType::Map => Value::Map([].into()),
    }
}

/// A filter that is a typed expression over the event's fields alone; of rules too.
pub fn of_expression(expression: Expression, event: &Fields) -> CompiledFilter {
    of_bound(expression, event, false)
}

/// `bound`: values were put into it, so that parts of it may be decided.
fn of_bound(expression: Expression, event: &Fields, bound: bool) -> CompiledFilter {
    let (condition, exact) = Lowering { event, bound, variables: Vec::new() }.lower(&expression, false);
    let mut canonical = String::new();
    if !exact {
        print(&expression, &mut canonical);
    }
    CompiledFilter::new(Dialect::Cel, condition, exact, &canonical, Arc::new(CelFilter(expression)))
}

/// A filter knows no subscription, so nothing should hint at one.
fn alone(mut problem: Problem, knows_subscriber: bool) -> Problem {
    if problem.message.starts_with("the subscription class has no field") {
        problem.message = "a filter knows no fields of its subscription".to_owned();
        problem.hint = Some("write a value in place of a field of the subscription".to_owned());
    } else if problem.hint.as_deref() == Some("an expression speaks of `event` and `sub`") {
        let hint = match knows_subscriber {
            true => "a filter speaks of `event`, `chronicle` and `subscriber`",
            false if problem.message.starts_with("`subscriber` ") => {
                "filters may ask who the subscriber is where the application declares `attributes`"
            }
            false => "a filter speaks of `event`, and of `chronicle` where its class has any",
        };
        problem.hint = Some(hint.to_owned());
    }
    problem
}

#[derive(Debug)]
struct CelFilter(Expression);

impl Evaluate for CelFilter {
    fn holds(&self, event: &[Value]) -> Result<bool, Trouble> {
        holds(&self.0, Scene { event, parameters: Parameters::None })
    }

    fn memory_bytes(&self) -> usize {
        let mut bytes = 0;
        self.0.visit(&mut |part| {
            bytes += size_of::<Expression>();
            bytes += match &part.kind {
                Kind::Constant(Constant::Value(Value::Text(text))) => text.len(),
                Kind::Constant(Constant::Value(Value::List(items))) => items.len() * 2 * size_of::<Value>(),
                // What a compiled regular expression of the largest size may hold is far more; this is the usual.
                Kind::Matches(..) => 4096,
                _ => 0,
            }
        });
        bytes
    }
}

/// A condition, and whether it is exact.
type Lowered = (Condition, bool);

fn exact(path: Path, how: How) -> Lowered {
    (Condition::test(path, how), true)
}

const UNKNOWN: Lowered = (Condition::Unknown, false);

struct Lowering<'a> {
    event: &'a Fields,
    /// Whether parts that ask nothing of the event are decided at once.
    bound: bool,
    /// What the variables around stand for, outermost first.
    variables: Vec<Standing>,
}

/// What a variable stands for.
#[derive(Debug, Clone)]
pub(super) enum Standing {
    /// A place of the event; the items of a list, where a macro goes over it.
    Place(Path),
    /// A value.
    Value(Value),
    /// Something else.
    Other,
}

/// What must hold for a call of a function of the application to be true; with `negated`, to be false. Exact only where
/// every argument is sure to have a value.
pub(super) fn lower_call(function: &Defined, given: Vec<Standing>, event: &Fields, negated: bool) -> (Condition, bool) {
    if given.iter().any(|given| matches!(given, Standing::Place(path) if path.reach != Reach::One)) {
        return UNKNOWN;
    }
    let sure = given.iter().all(|given| match given {
        Standing::Place(path) => path.keys.is_empty(),
        Standing::Value(_) => true,
        Standing::Other => false,
    });
    let (condition, exact) = Lowering { event, bound: false, variables: given }.lower(function.body(), negated);
    (condition, exact && sure)
}

/// What an expression says that asks nothing of the event: nothing, where it is an error.
fn decided(expression: &Expression) -> Option<Option<bool>> {
    let mut asks = false;
    expression.visit(&mut |part| asks |= matches!(part.kind, Kind::Event(_) | Kind::Variable(_)));
    if asks {
        return None;
    }
    match value(expression, Scene::default()) {
        Ok(Datum::Boolean(decided)) => Some(Some(decided)),
        Err(Trouble::Cost) => None,
        _ => Some(None),
    }
}

impl Lowering<'_> {
    /// What must hold for the expression to be true; with `negated`, to be false.
    fn lower(&mut self, expression: &Expression, negated: bool) -> Lowered {
        if self.bound
            && let Some(decided) = decided(expression)
        {
            // An error is not true, whether it is negated or not.
            let holds = decided.is_some_and(|decided| decided != negated);
            return (if holds { Condition::Always } else { Condition::never() }, true);
        }
        match &expression.kind {
            Kind::Constant(Constant::Value(Value::Boolean(value))) => {
                (if *value != negated { Condition::Always } else { Condition::never() }, true)
            }
            Kind::Not(inner) => self.lower(inner, !negated),
            Kind::And(parts) => self.parts(parts, negated, !negated),
            Kind::Or(parts) => self.parts(parts, negated, negated),
            Kind::Conditional(parts) => {
                let [condition, yes, no] = &**parts;
                let (is, one) = self.lower(condition, false);
                let (is_not, two) = self.lower(condition, true);
                let ((yes, three), (no, four)) = (self.lower(yes, negated), self.lower(no, negated));
                let branches = vec![Condition::All(vec![is, yes]), Condition::All(vec![is_not, no])];
                (Condition::Any(branches), one && two && three && four)
            }
            Kind::Has(inner) => match self.path(inner) {
                Some(path) => exact(path, if negated { How::Missing } else { How::Exists }),
                None => UNKNOWN,
            },
            Kind::HasKey(inner, key) => match self.path(inner) {
                // A key with the value null is there, which no test of the index says; so these find more.
                Some(path) if path.reach == Reach::One && !negated => (Condition::test(path, How::Exists), false),
                Some(mut path) if path.reach == Reach::One => {
                    path.keys.push(key.clone());
                    (Condition::test(path, How::Missing), false)
                }
                _ => UNKNOWN,
            },
            Kind::Binary(operator, parts) => self.binary(*operator, &parts[0], &parts[1], negated),
            Kind::Matches(subject, pattern) => self.text(subject, How::Matches(pattern.clone()), negated),
            Kind::Call(function, given) => {
                let [subject, given] = given.as_slice() else { return UNKNOWN };
                let Some(Value::Text(part)) = &self.scalar(given) else { return UNKNOWN };
                if let Kind::Call(Function::LowerAscii | Function::UpperAscii, inner) = &subject.kind
                    && let (false, [inner], true) = (negated, inner.as_slice(), part.is_ascii())
                    && let Some(path) = self.path(inner)
                {
                    let how = match function {
                        Function::StartsWith => How::prefix(part, Case::Folded),
                        Function::EndsWith => How::suffix(part, Case::Folded),
                        Function::Contains | Function::ContainsCi => How::contains(part, Case::Folded),
                        _ => return UNKNOWN,
                    };
                    return (Condition::test(path, how), false);
                }
                let how = match function {
                    Function::StartsWith => How::prefix(part, Case::Kept),
                    Function::EndsWith => How::suffix(part, Case::Kept),
                    Function::Contains => How::contains(part, Case::Kept),
                    Function::ContainsCi => How::contains(part, Case::Folded),
                    _ => return UNKNOWN,
                };
                self.text(subject, how, negated)
            }
            Kind::Macro(Macro::Exists, parts) => {
                let list = self.path(&parts.range).filter(|path| {
                    let is_list = path.keys.is_empty() && matches!(parts.range.kind_of_value, Type::List(_));
                    is_list && path.reach == Reach::One && !parts.paired && !negated && !self.is_within_items()
                });
                let (Some(mut path), Some(condition)) = (list, &parts.condition) else { return UNKNOWN };
                path.reach = Reach::Items;
                self.variables.push(Standing::Place(path));
                let (condition, exact) = self.lower(condition, false);
                self.variables.pop();
                // One item must pass every test, and tests of items do not know of each other.
                let alone = match &condition {
                    Condition::Test(test) => test.path.reach == Reach::Items,
                    Condition::Any(parts) => parts
                        .iter()
                        .all(|part| matches!(part, Condition::Test(test) if test.path.reach == Reach::Items)),
                    _ => false,
                };
                (condition, exact && alone)
            }
            Kind::Defined(function, given) => {
                let standing = |given: &Expression| match (self.path(given), self.scalar(given)) {
                    (Some(path), _) => Standing::Place(path),
                    (None, Some(value)) => Standing::Value(value),
                    (None, None) => Standing::Other,
                };
                lower_call(function, given.iter().map(standing).collect(), self.event, negated)
            }
            _ => match self.path(expression) {
                Some(path) => exact(path, How::equals(!negated)),
                None => UNKNOWN,
            },
        }
    }

    fn parts(&mut self, parts: &[Expression], negated: bool, all: bool) -> Lowered {
        let mut lowered: Vec<Lowered> = parts.iter().map(|part| self.lower(part, negated)).collect();
        if all && !negated {
            self.drop_implied(parts, &mut lowered);
        }
        let exact = lowered.iter().all(|(_, exact)| *exact);
        let conditions = lowered.into_iter().map(|(condition, _)| condition).collect();
        (if all { Condition::All(conditions) } else { Condition::Any(conditions) }, exact)
    }

    /// `has(m.a) && m.a == 1`: the second part alone finds the same events.
    fn drop_implied(&self, parts: &[Expression], lowered: &mut [Lowered]) {
        for (at, part) in parts.iter().enumerate() {
            let Kind::HasKey(inner, key) = &part.kind else { continue };
            let Some(mut path) = self.path(inner).filter(|path| path.reach == Reach::One) else { continue };
            path.keys.push(key.clone());
            let is_implied = lowered.iter().any(|(condition, exact)| match condition {
                Condition::Test(test) => {
                    let needs_value =
                        !matches!(test.how, How::Exists | How::Missing) && !test.how.accepts(&Value::Null);
                    *exact && needs_value && test.path == path
                }
                _ => false,
            });
            if is_implied {
                lowered[at] = (Condition::Always, true);
            }
        }
    }

    /// A test of text. Of what is no text, the expression is an error, negated or not.
    fn text(&self, subject: &Expression, how: How, negated: bool) -> Lowered {
        let Some(path) = self.path(subject) else { return UNKNOWN };
        if !negated {
            return exact(path, how);
        }
        let is_field_of_text = path.keys.is_empty() && self.event[path.field].kind == FieldType::String;
        let is_text = subject.kind_of_value == Type::Text || is_field_of_text;
        let there = Condition::test(path.clone(), How::Exists);
        let but = Condition::test(path.clone(), How::But(Box::new(how)));
        // An item that is null and another that passes are two items.
        (Condition::All(vec![there, but]), is_text && path.reach == Reach::One)
    }

    fn binary(&self, operator: Operator, left: &Expression, right: &Expression, negated: bool) -> Lowered {
        if operator == Operator::In {
            return self.within(left, right, negated);
        }
        let (path, value, operator) = match (self.path(left), self.scalar(right), self.path(right), self.scalar(left)) {
            (Some(path), Some(value), ..) => (path, value, operator),
            (_, _, Some(path), Some(value)) => (path, value, turned(operator)),
            _ => return self.lowered(operator, left, right, negated),
        };
        let equal = match operator {
            Operator::Equal => !negated,
            Operator::NotEqual => negated,
            Operator::Less | Operator::LessOrEqual | Operator::Greater | Operator::GreaterOrEqual => {
                if value.is_null() {
                    return UNKNOWN;
                }
                let inclusive = matches!(operator, Operator::LessOrEqual | Operator::GreaterOrEqual) != negated;
                let high = matches!(operator, Operator::Less | Operator::LessOrEqual) != negated;
                let limit = Some(Limit { value, inclusive });
                return exact(path, if high { Range::within(None, limit) } else { Range::within(limit, None) });
            }
            _ => return UNKNOWN,
        };
        exact(path, if equal { How::equals(value) } else { How::anything_but(vec![value]) })
    }

    /// `lowerAscii(text) == "..."`: a necessary condition.
    fn lowered(&self, operator: Operator, left: &Expression, right: &Expression, negated: bool) -> Lowered {
        if (operator, negated) != (Operator::Equal, false) && (operator, negated) != (Operator::NotEqual, true) {
            return UNKNOWN;
        }
        for (one, other) in [(left, right), (right, left)] {
            if let Kind::Call(Function::LowerAscii | Function::UpperAscii, inner) = &one.kind
                && let (Some(Value::Text(text)), [inner]) = (self.scalar(other), inner.as_slice())
                && let (Some(path), true) = (self.path(inner), text.is_ascii())
            {
                return (Condition::test(path, How::equals_ignore_case(&text)), false);
            }
        }
        UNKNOWN
    }

    fn within(&self, left: &Expression, right: &Expression, negated: bool) -> Lowered {
        if let (Some(path), Kind::Constant(Constant::Value(Value::List(items)))) = (self.path(left), &right.kind) {
            let is_scalar = |value: &Value| match value {
                Value::List(_) | Value::Map(_) => false,
                Value::Number(number) => !number.is_nan(),
                _ => true,
            };
            if !items.iter().all(is_scalar) {
                return UNKNOWN;
            }
            let how = How::In(items.to_vec());
            return exact(path, if negated { How::But(Box::new(how)) } else { how });
        }
        let (Some(value), Some(path), false) = (self.scalar(left), self.path(right), negated) else { return UNKNOWN };
        if path.reach != Reach::One {
            return UNKNOWN;
        }
        let mut any = Vec::new();
        if let (Value::Text(key), Type::Map | Type::Dynamic) = (&value, &right.kind_of_value) {
            // A key counts as there even where its value is null.
            let mut below = path.clone();
            below.keys.push(key.clone());
            any.push(Condition::test(below.clone(), How::Exists));
            any.push(Condition::test(below, How::equals(Value::Null)));
        }
        if right.kind_of_value != Type::Map {
            any.push(Condition::test(Path { reach: Reach::Items, ..path }, How::equals(value)));
        }
        (Condition::Any(any), true)
    }

    /// The place of the event that an expression is, if it is one.
    fn path(&self, expression: &Expression) -> Option<Path> {
        match &expression.kind {
            Kind::Event(at) if *at < self.event.len() => Some(Path::field(*at)),
            Kind::Variable(at) => match self.variables.get(*at) {
                Some(Standing::Place(path)) => Some(path.clone()),
                _ => None,
            },
            Kind::Select(inner, key) => self.below(inner, key),
            Kind::Index(parts) => match &parts[1].kind {
                Kind::Constant(Constant::Value(Value::Text(key))) => self.below(&parts[0], key),
                _ => None,
            },
            _ => None,
        }
    }

    /// A constant that a value of an event can equal or be ordered with.
    fn scalar(&self, expression: &Expression) -> Option<Value> {
        match &expression.kind {
            Kind::Variable(at) => match self.variables.get(*at) {
                Some(Standing::Value(value)) => Some(value.clone()),
                _ => None,
            },
            _ => scalar(expression),
        }
    }

    fn is_within_items(&self) -> bool {
        self.variables.iter().any(|standing| matches!(standing, Standing::Place(path) if path.reach == Reach::Items))
    }

    fn below(&self, inner: &Expression, key: &Arc<str>) -> Option<Path> {
        let mut path = self.path(inner).filter(|path| path.reach == Reach::One)?;
        path.keys.push(key.clone());
        Some(path)
    }
}

/// A constant that a value of an event can equal or be ordered with.
fn scalar(expression: &Expression) -> Option<Value> {
    match &expression.kind {
        Kind::Constant(Constant::Value(Value::List(_) | Value::Map(_))) => None,
        Kind::Constant(Constant::Value(Value::Number(number))) if number.is_nan() => None,
        Kind::Constant(Constant::Value(value)) => Some(value.clone()),
        Kind::Constant(Constant::Unsigned(value)) => i64::try_from(*value).ok().map(Value::Integer),
        _ => None,
    }
}

/// The operator with its sides exchanged.
fn turned(operator: Operator) -> Operator {
    match operator {
        Operator::Less => Operator::Greater,
        Operator::LessOrEqual => Operator::GreaterOrEqual,
        Operator::Greater => Operator::Less,
        Operator::GreaterOrEqual => Operator::LessOrEqual,
        operator => operator,
    }
}

/// Appends a text that is equal for expressions that differ only in spelling: white space, parentheses, the order of
/// what `&&`, `||`, `==` and `!=` join, the side on which the smaller stands, names of variables.
fn print(expression: &Expression, out: &mut String) {
    let list = |name: &str, parts: &mut dyn Iterator<Item = &Expression>, out: &mut String| {
        let _ = write!(out, "({name}");
        for part in parts {
            out.push(' ');
            print(part, out);
        }
        out.push(')');
    };
    let sorted = |name: &str, parts: &[Expression], out: &mut String| {
        let mut printed: Vec<String> = parts
            .iter()
            .map(|part| {
                let mut text = String::new();
                print(part, &mut text);
                text
            })
            .collect();
        printed.sort_unstable();
        printed.dedup();
        let _ = write!(out, "({name} {})", printed.join(" "));
    };
    // What is written is never an error: it goes to a string. Texts are quoted, so that none can pass for syntax.
    match &expression.kind {
        Kind::Constant(constant) => {
            let _ = write!(out, "{constant:?}");
        }
        Kind::Event(at) => {
            let _ = write!(out, "e{at}");
        }
        Kind::Subscription(at) => {
            let _ = write!(out, "s{at}");
        }
        Kind::Variable(at) => {
            let _ = write!(out, "v{at}");
        }
        Kind::Has(inner) => list("has", &mut [&**inner].into_iter(), out),
        Kind::HasKey(inner, key) => list(&format!("has {key:?}"), &mut [&**inner].into_iter(), out),
        Kind::Select(inner, key) => list(&format!(". {key:?}"), &mut [&**inner].into_iter(), out),
        Kind::Index(parts) => list("[]", &mut parts.iter(), out),
        Kind::Not(inner) => list("!", &mut [&**inner].into_iter(), out),
        Kind::Negate(inner) => list("-", &mut [&**inner].into_iter(), out),
        Kind::IfPresent(inner) => list("?", &mut [&**inner].into_iter(), out),
        Kind::And(parts) => sorted("&&", parts, out),
        Kind::Or(parts) => sorted("||", parts, out),
        Kind::Binary(operator @ (Operator::Equal | Operator::NotEqual), parts) => {
            // Not kept once: `x == x` asks for more than `x`.
            let mut printed = [String::new(), String::new()];
            parts.iter().zip(&mut printed).for_each(|(part, text)| print(part, text));
            printed.sort_unstable();
            let _ = write!(out, "({} {})", operator.symbol(), printed.join(" "));
        }
        Kind::Binary(operator @ (Operator::Greater | Operator::GreaterOrEqual), parts) => {
            list(turned(*operator).symbol(), &mut parts.iter().rev(), out);
        }
        Kind::Binary(operator, parts) => list(operator.symbol(), &mut parts.iter(), out),
        Kind::Conditional(parts) => list("?:", &mut parts.iter(), out),
        Kind::List(parts) => list("list", &mut parts.iter(), out),
        Kind::Map(entries) => list("map", &mut entries.iter().flat_map(|(key, value)| [key, value]), out),
        Kind::Bind(values, body) => list("bind", &mut values.iter().chain([&**body]), out),
        Kind::Call(function, given) => list(&format!("{function:?}"), &mut given.iter(), out),
        Kind::Defined(function, given) => list(&format!("{function:?}"), &mut given.iter(), out),
        Kind::Matches(inner, pattern) => {
            list(&format!("matches {:?}", pattern.as_str()), &mut [&**inner].into_iter(), out);
        }
        Kind::Macro(which, parts) => {
            let name = format!("{which:?} {} {}", parts.paired, parts.condition.is_some());
            list(&name, &mut [&parts.range].into_iter().chain(&parts.condition).chain(&parts.result), out);
        }
    }
}
