//! Lowers CEL filters to conditions: tests of the event, one by one.
//!
//! An expression that is false or has an error does not match. So a condition is exact if it holds exactly when the
//! expression is true; `&&` and `||`, which absorb errors, preserve that.

use std::{fmt::Write, sync::Arc};

use tocsin_model::{
    field::{FieldType, Fields, Row},
    filter::Dialect,
    problem::Problem,
    time::Timestamp,
    value::Value,
};

use crate::{
    check::{compile_predicate, scope::Scope},
    dialect::Operator,
    eval_value::{EvalError, EvalValue},
    evaluate::{EvalContext, Parameters, holds, value},
    expression::{Constant, Expression, Function, Kind, Macro, Type, UserFunction},
    filter::{
        compiled::{CompiledFilter, Evaluate, FilterScope},
        condition::{Case, Condition, Limit, Path, Range, Reach, ValueTest},
    },
};

/// Compiles a CEL filter. Columns of its subscriber become constants.
pub(super) fn compile(
    text: &str,
    filters: &FilterScope,
    subscriber: Option<&[Value]>,
) -> Result<CompiledFilter, Vec<Problem>> {
    let FilterScope { subject, event, chronicled, columns, subscriber: of_subscriber, functions } = filters.clone();
    let scope = Scope { subject, event, chronicled, subscriber: of_subscriber, functions, ..Scope::default() };
    let without_subscription_hints = |problem| without_subscription_hints(problem, scope.subscriber.is_some());
    let mut expression = compile_predicate(text, &scope)
        .map_err(|problems| problems.into_iter().map(without_subscription_hints).collect::<Vec<_>>())?;
    let depends_on_subscriber = expression.dependence().subscription;
    if depends_on_subscriber {
        let anybody = || scope.subscriber.iter().flat_map(|columns| columns.kinds()).map(any_value).collect::<Row>();
        match subscriber {
            Some(subscriber) => expression.bind(subscriber),
            None => expression.bind(&anybody()),
        }
    }
    Ok(CompiledFilter { depends_on_subscriber, ..of_bound(expression, &columns, depends_on_subscriber) })
}

/// An arbitrary value of a type.
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

/// A filter from a typed expression over the event's fields; also used for rules.
pub fn of_expression(expression: Expression, event: &Fields) -> CompiledFilter {
    of_bound(expression, event, false)
}

/// `bound`: constants were substituted, so that parts of it may be constant.
fn of_bound(expression: Expression, event: &Fields, bound: bool) -> CompiledFilter {
    let (condition, exact) = Lowering { event, bound, variables: Vec::new() }.lower(&expression, false);
    let mut canonical = String::new();
    if !exact {
        print(&expression, &mut canonical);
    }
    CompiledFilter::new(Dialect::Cel, condition, exact, &canonical, Arc::new(CelFilter(expression)))
}

/// A filter has no subscription, so hints must not mention one.
fn without_subscription_hints(mut problem: Problem, knows_subscriber: bool) -> Problem {
    if problem.message.starts_with("the subscription class has no field") {
        problem.message = "a filter cannot read fields of its subscription".to_owned();
        problem.hint = Some("write a value in place of a field of the subscription".to_owned());
    } else if problem.hint.as_deref() == Some("an expression can read `event` and `sub`") {
        let hint = match knows_subscriber {
            true => "a filter can read `event`, `chronicle` and `subscriber`",
            false if problem.message.starts_with("`subscriber` ") => {
                "a filter can read `subscriber` if the application declares `attributes`"
            }
            false => "a filter can read `event`, and `chronicle` if its class declares chronicles",
        };
        problem.hint = Some(hint.to_owned());
    }
    problem
}

#[derive(Debug)]
struct CelFilter(Expression);

impl Evaluate for CelFilter {
    fn holds(&self, event: &[Value]) -> Result<bool, EvalError> {
        holds(&self.0, EvalContext { event, parameters: Parameters::None })
    }

    fn memory_bytes(&self) -> usize {
        let mut bytes = 0;
        self.0.visit(&mut |part| {
            bytes += size_of::<Expression>();
            bytes += match &part.kind {
                Kind::Constant(Constant::Value(Value::Text(text))) => text.len(),
                Kind::Constant(Constant::Value(Value::List(items))) => items.len() * 2 * size_of::<Value>(),
                // The typical size; the largest possible one is far more.
                Kind::Matches(..) => 4096,
                _ => 0,
            }
        });
        bytes
    }
}

/// A condition, and whether it is exact.
type Lowered = (Condition, bool);

fn exact(path: Path, value_test: ValueTest) -> Lowered {
    (Condition::test(path, value_test), true)
}

const UNKNOWN: Lowered = (Condition::Unknown, false);

struct Lowering<'a> {
    event: &'a Fields,
    /// Whether parts that do not read the event are evaluated at once.
    bound: bool,
    /// The bindings of the enclosing variables, outermost first.
    variables: Vec<VariableBinding>,
}

/// The binding of a variable.
#[derive(Debug, Clone)]
pub(super) enum VariableBinding {
    /// A path in the event; the items of a list, where a macro iterates over it.
    Place(Path),
    /// A value.
    Value(Value),
    /// Anything else.
    Other,
}

/// The condition for a call of a user-defined function to be true; with `negated`, to be false. Exact only if every
/// argument is sure to have a value.
pub(super) fn lower_call(
    function: &UserFunction,
    given: Vec<VariableBinding>,
    event: &Fields,
    negated: bool,
) -> (Condition, bool) {
    if given.iter().any(|given| matches!(given, VariableBinding::Place(path) if path.reach != Reach::One)) {
        return UNKNOWN;
    }
    let sure = given.iter().all(|given| match given {
        VariableBinding::Place(path) => path.keys.is_empty(),
        VariableBinding::Value(_) => true,
        VariableBinding::Other => false,
    });
    let (condition, exact) = Lowering { event, bound: false, variables: given }.lower(function.body(), negated);
    (condition, exact && sure)
}

/// The constant value of an expression that does not read the event; `Some(None)` if it is an error.
fn decided(expression: &Expression) -> Option<Option<bool>> {
    let mut asks = false;
    expression.visit(&mut |part| asks |= matches!(part.kind, Kind::Event(_) | Kind::Variable(_)));
    if asks {
        return None;
    }
    match value(expression, EvalContext::default()) {
        Ok(EvalValue::Boolean(decided)) => Some(Some(decided)),
        Err(EvalError::Cost) => None,
        _ => Some(None),
    }
}

impl Lowering<'_> {
    /// The condition for the expression to be true; with `negated`, to be false.
    fn lower(&mut self, expression: &Expression, negated: bool) -> Lowered {
        if self.bound
            && let Some(decided) = decided(expression)
        {
            // An error is not true, negated or not.
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
                Some(path) => exact(path, if negated { ValueTest::Missing } else { ValueTest::Exists }),
                None => UNKNOWN,
            },
            Kind::HasKey(inner, key) => match self.path(inner) {
                // A key with a null value is present, which no test of the index detects; so these are only necessary
                // conditions.
                Some(path) if path.reach == Reach::One && !negated => (Condition::test(path, ValueTest::Exists), false),
                Some(mut path) if path.reach == Reach::One => {
                    path.keys.push(key.clone());
                    (Condition::test(path, ValueTest::Missing), false)
                }
                _ => UNKNOWN,
            },
            Kind::Binary(operator, parts) => self.binary(*operator, &parts[0], &parts[1], negated),
            Kind::Matches(subject, pattern) => self.text(subject, ValueTest::Matches(pattern.clone()), negated),
            Kind::Call(function, given) => {
                let [subject, given] = given.as_slice() else { return UNKNOWN };
                let Some(Value::Text(part)) = &self.scalar(given) else { return UNKNOWN };
                if let Kind::Call(Function::LowerAscii | Function::UpperAscii, inner) = &subject.kind
                    && let (false, [inner], true) = (negated, inner.as_slice(), part.is_ascii())
                    && let Some(path) = self.path(inner)
                {
                    let value_test = match function {
                        Function::StartsWith => ValueTest::prefix(part, Case::Folded),
                        Function::EndsWith => ValueTest::suffix(part, Case::Folded),
                        Function::Contains | Function::ContainsCi => ValueTest::contains(part, Case::Folded),
                        _ => return UNKNOWN,
                    };
                    return (Condition::test(path, value_test), false);
                }
                let value_test = match function {
                    Function::StartsWith => ValueTest::prefix(part, Case::Sensitive),
                    Function::EndsWith => ValueTest::suffix(part, Case::Sensitive),
                    Function::Contains => ValueTest::contains(part, Case::Sensitive),
                    Function::ContainsCi => ValueTest::contains(part, Case::Folded),
                    _ => return UNKNOWN,
                };
                self.text(subject, value_test, negated)
            }
            Kind::Macro(Macro::Exists, parts) => {
                let list = self.path(&parts.range).filter(|path| {
                    let is_list = path.keys.is_empty() && matches!(parts.range.kind_of_value, Type::List(_));
                    is_list && path.reach == Reach::One && !parts.paired && !negated && !self.is_within_items()
                });
                let (Some(mut path), Some(condition)) = (list, &parts.condition) else { return UNKNOWN };
                path.reach = Reach::Items;
                self.variables.push(VariableBinding::Place(path));
                let (condition, exact) = self.lower(condition, false);
                self.variables.pop();
                // One item must pass every test, but tests of items are independent of each other.
                let single = match &condition {
                    Condition::Test(test) => test.path.reach == Reach::Items,
                    Condition::Any(parts) => parts
                        .iter()
                        .all(|part| matches!(part, Condition::Test(test) if test.path.reach == Reach::Items)),
                    _ => false,
                };
                (condition, exact && single)
            }
            Kind::UserFunction(function, given) => {
                let argument = |given: &Expression| match (self.path(given), self.scalar(given)) {
                    (Some(path), _) => VariableBinding::Place(path),
                    (None, Some(value)) => VariableBinding::Value(value),
                    (None, None) => VariableBinding::Other,
                };
                lower_call(function, given.iter().map(argument).collect(), self.event, negated)
            }
            _ => match self.path(expression) {
                Some(path) => exact(path, ValueTest::equals(!negated)),
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

    /// `has(m.a) && m.a == 1`: the second part finds the same events without the first.
    fn drop_implied(&self, parts: &[Expression], lowered: &mut [Lowered]) {
        for (at, part) in parts.iter().enumerate() {
            let Kind::HasKey(inner, key) = &part.kind else { continue };
            let Some(mut path) = self.path(inner).filter(|path| path.reach == Reach::One) else { continue };
            path.keys.push(key.clone());
            let is_implied = lowered.iter().any(|(condition, exact)| match condition {
                Condition::Test(test) => {
                    let needs_value = !matches!(test.value_test, ValueTest::Exists | ValueTest::Missing)
                        && !test.value_test.accepts(&Value::Null);
                    *exact && needs_value && test.path == path
                }
                _ => false,
            });
            if is_implied {
                lowered[at] = (Condition::Always, true);
            }
        }
    }

    /// A text test. On a value that is not text the expression is an error, negated or not.
    fn text(&self, subject: &Expression, value_test: ValueTest, negated: bool) -> Lowered {
        let Some(path) = self.path(subject) else { return UNKNOWN };
        if !negated {
            return exact(path, value_test);
        }
        let is_field_of_text = path.keys.is_empty() && self.event[path.field].kind == FieldType::String;
        let is_text = subject.kind_of_value == Type::Text || is_field_of_text;
        let there = Condition::test(path.clone(), ValueTest::Exists);
        let but = Condition::test(path.clone(), ValueTest::But(Box::new(value_test)));
        // An item that is null and another that passes are two items.
        (Condition::All(vec![there, but]), is_text && path.reach == Reach::One)
    }

    fn binary(&self, operator: Operator, left: &Expression, right: &Expression, negated: bool) -> Lowered {
        if operator == Operator::In {
            return self.within(left, right, negated);
        }
        let (path, value, operator) = match (self.path(left), self.scalar(right), self.path(right), self.scalar(left)) {
            (Some(path), Some(value), ..) => (path, value, operator),
            (_, _, Some(path), Some(value)) => (path, value, mirrored(operator)),
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
        exact(path, if equal { ValueTest::equals(value) } else { ValueTest::anything_but(vec![value]) })
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
                return (Condition::test(path, ValueTest::equals_ignore_case(&text)), false);
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
            let value_test = ValueTest::In(items.to_vec());
            return exact(path, if negated { ValueTest::But(Box::new(value_test)) } else { value_test });
        }
        let (Some(value), Some(path), false) = (self.scalar(left), self.path(right), negated) else { return UNKNOWN };
        if path.reach != Reach::One {
            return UNKNOWN;
        }
        let mut any = Vec::new();
        if let (Value::Text(key), Type::Map | Type::Dynamic) = (&value, &right.kind_of_value) {
            // A key is present even if its value is null.
            let mut below = path.clone();
            below.keys.push(key.clone());
            any.push(Condition::test(below.clone(), ValueTest::Exists));
            any.push(Condition::test(below, ValueTest::equals(Value::Null)));
        }
        if right.kind_of_value != Type::Map {
            any.push(Condition::test(Path { reach: Reach::Items, ..path }, ValueTest::equals(value)));
        }
        (Condition::Any(any), true)
    }

    /// The path in the event that an expression reads, if it is a plain path.
    fn path(&self, expression: &Expression) -> Option<Path> {
        match &expression.kind {
            Kind::Event(at) if *at < self.event.len() => Some(Path::field(*at)),
            Kind::Variable(at) => match self.variables.get(*at) {
                Some(VariableBinding::Place(path)) => Some(path.clone()),
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

    /// A constant that can be compared with a value of an event.
    fn scalar(&self, expression: &Expression) -> Option<Value> {
        match &expression.kind {
            Kind::Variable(at) => match self.variables.get(*at) {
                Some(VariableBinding::Value(value)) => Some(value.clone()),
                _ => None,
            },
            _ => scalar(expression),
        }
    }

    fn is_within_items(&self) -> bool {
        self.variables
            .iter()
            .any(|binding| matches!(binding, VariableBinding::Place(path) if path.reach == Reach::Items))
    }

    fn below(&self, inner: &Expression, key: &Arc<str>) -> Option<Path> {
        let mut path = self.path(inner).filter(|path| path.reach == Reach::One)?;
        path.keys.push(key.clone());
        Some(path)
    }
}

/// A constant that can be compared with a value of an event.
fn scalar(expression: &Expression) -> Option<Value> {
    match &expression.kind {
        Kind::Constant(Constant::Value(Value::List(_) | Value::Map(_))) => None,
        Kind::Constant(Constant::Value(Value::Number(number))) if number.is_nan() => None,
        Kind::Constant(Constant::Value(value)) => Some(value.clone()),
        Kind::Constant(Constant::Unsigned(value)) => i64::try_from(*value).ok().map(Value::Integer),
        _ => None,
    }
}

/// The operator with its operands exchanged.
fn mirrored(operator: Operator) -> Operator {
    match operator {
        Operator::Less => Operator::Greater,
        Operator::LessOrEqual => Operator::GreaterOrEqual,
        Operator::Greater => Operator::Less,
        Operator::GreaterOrEqual => Operator::LessOrEqual,
        operator => operator,
    }
}

/// Appends the canonical text: equal for expressions that differ only in white space, parentheses, operand order of
/// `&&`, `||`, `==` and `!=`, direction of comparisons, and names of variables.
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
    // Writing to a string cannot fail. Texts are quoted, so they cannot be confused with syntax.
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
            // Not de-duplicated: `x == x` means more than `x`.
            let mut printed = [String::new(), String::new()];
            parts.iter().zip(&mut printed).for_each(|(part, text)| print(part, text));
            printed.sort_unstable();
            let _ = write!(out, "({} {})", operator.symbol(), printed.join(" "));
        }
        Kind::Binary(operator @ (Operator::Greater | Operator::GreaterOrEqual), parts) => {
            list(mirrored(*operator).symbol(), &mut parts.iter().rev(), out);
        }
        Kind::Binary(operator, parts) => list(operator.symbol(), &mut parts.iter(), out),
        Kind::Conditional(parts) => list("?:", &mut parts.iter(), out),
        Kind::List(parts) => list("list", &mut parts.iter(), out),
        Kind::Map(entries) => list("map", &mut entries.iter().flat_map(|(key, value)| [key, value]), out),
        Kind::Bind(values, body) => list("bind", &mut values.iter().chain([&**body]), out),
        Kind::Call(function, given) => list(&format!("{function:?}"), &mut given.iter(), out),
        Kind::UserFunction(function, given) => list(&format!("{function:?}"), &mut given.iter(), out),
        Kind::Matches(inner, pattern) => {
            list(&format!("matches {:?}", pattern.as_str()), &mut [&**inner].into_iter(), out);
        }
        Kind::Macro(which, parts) => {
            let name = format!("{which:?} {} {}", parts.paired, parts.condition.is_some());
            list(&name, &mut [&parts.range].into_iter().chain(&parts.condition).chain(&parts.result), out);
        }
    }
}
