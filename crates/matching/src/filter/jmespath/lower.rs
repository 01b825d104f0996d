//! Lowers JMESPath filters to conditions: tests of the event, one by one.
//!
//! An expression is true, false or an error, and any error is no match. So each part is lowered to three conditions:
//! when it is true, when it is false, and when it has a value at all. `!` exchanges the first two. Of the operands of
//! `&&` and `||`, a later one is evaluated only where the earlier ones have values.

use tocsin_model::{
    field::{FieldType, Fields},
    time::Timestamp,
    value::Value,
};

use super::{
    check::shape,
    functions::{Function, Parameter, Shape},
    javascript::SAFE_INTEGER_MAX,
    parse::literal,
    syntax::{Comparison, Kind, Mode, Node},
};
use crate::{
    expression::{Type, UserFunction},
    filter::{
        cel::{VariableBinding, lower_call},
        condition::{Case, Condition, Limit, Path, Range, Reach, ValueTest},
    },
};

/// A necessary condition, and whether it is sufficient as well.
type Lowered = (Condition, bool);

/// Most tests in a condition that a part has a value. Larger conditions are replaced by unknown.
const VALUE_TESTS_MAX: usize = 32;
/// Most tests that the earlier operands of one `&&` or `||` have values. Beyond, they are left out, so that no
/// condition is much larger than its filter.
const EARLIER_TESTS_MAX: usize = 64;

/// The condition for an expression to be true.
pub(super) fn lower(node: &Node, event: &Fields, mode: Mode) -> Lowered {
    Lowering { event, mode }.truth_conditions(node).yes
}

/// When a part is true, when it is false, and when it has a value.
struct TruthConditions {
    yes: Lowered,
    no: Lowered,
    value: Lowered,
}

const ALWAYS: Lowered = (Condition::Always, true);

impl TruthConditions {
    /// For a part that always has a value.
    fn total(yes: Lowered, no: Lowered) -> TruthConditions {
        TruthConditions { yes, no, value: ALWAYS }
    }

    fn constant(truth: bool) -> TruthConditions {
        let (yes, no) = (ALWAYS, (Condition::never(), true));
        if truth { TruthConditions::total(yes, no) } else { TruthConditions::total(no, yes) }
    }

    /// For a part whose truth only evaluation decides.
    fn unknown(value: Lowered) -> TruthConditions {
        let side = match &value.0 {
            Condition::Always => (Condition::Unknown, false),
            condition => (condition.clone(), false),
        };
        TruthConditions { yes: side.clone(), no: side, value }
    }

    fn mirrored(self) -> TruthConditions {
        TruthConditions { yes: self.no, no: self.yes, value: self.value }
    }
}

/// `&&` of parts. `||` is the same with true and false exchanged.
fn all(parts: Vec<TruthConditions>) -> TruthConditions {
    let mut value = ALWAYS;
    for part in parts.iter().rev() {
        if value == ALWAYS || value == part.value {
            value = part.value.clone();
            continue;
        }
        // Later operands are not evaluated where this one is false.
        let later = Condition::Any(vec![part.no.0.clone(), value.0]);
        let exact = part.value.1 && part.no.1 && value.1;
        value = (Condition::All(vec![part.value.0.clone(), later]), exact);
        if tests(&value.0) > VALUE_TESTS_MAX {
            value = (Condition::Always, false);
        }
    }
    let mut no = (Vec::with_capacity(parts.len()), true);
    let (mut yes, mut yes_exact) = (Vec::with_capacity(parts.len()), true);
    // The condition that the earlier operands have values; and whether it is exact.
    let (mut earlier, mut earlier_exact): (Vec<Condition>, bool) = (Vec::new(), true);
    let mut said = 0;
    for TruthConditions { yes: part_yes, no: part_no, value } in parts {
        let mut needed: Vec<Condition> = earlier.iter().filter(|asked| !implies(&part_no.0, asked)).cloned().collect();
        said += needed.iter().map(tests).sum::<usize>();
        if said > EARLIER_TESTS_MAX {
            needed = Vec::new();
            (earlier, earlier_exact) = (Vec::new(), false);
        }
        needed.push(part_no.0);
        no.0.push(if needed.len() == 1 { needed.remove(0) } else { Condition::All(needed) });
        no.1 &= part_no.1 && earlier_exact;
        yes.push(part_yes.0);
        yes_exact &= part_yes.1;
        earlier_exact &= value.1;
        if value.0 != Condition::Always && said <= EARLIER_TESTS_MAX && !earlier.contains(&value.0) {
            earlier.push(value.0);
            if earlier.iter().map(tests).sum::<usize>() > VALUE_TESTS_MAX {
                (earlier, earlier_exact) = (Vec::new(), false);
            }
        }
    }
    TruthConditions { yes: (Condition::All(yes), yes_exact), no: (Condition::Any(no.0), no.1), value }
}

/// The number of tests in a condition.
fn tests(condition: &Condition) -> usize {
    match condition {
        Condition::All(parts) | Condition::Any(parts) => parts.iter().map(tests).sum(),
        _ => 1,
    }
}

/// Whether one condition implies the other. May give a false negative.
fn implies(one: &Condition, other: &Condition) -> bool {
    if one == other {
        return true;
    }
    match (one, other) {
        (Condition::Any(parts), _) => parts.iter().all(|part| implies(part, other)),
        (Condition::All(parts), _) => parts.iter().any(|part| implies(part, other)),
        (_, Condition::All(parts)) => parts.iter().all(|part| implies(one, part)),
        (Condition::Test(test), Condition::Test(asked)) if asked.value_test == ValueTest::Exists => {
            let asks_value = match &test.value_test {
                ValueTest::Missing | ValueTest::But(_) => false,
                ValueTest::In(values) => !values.iter().any(Value::is_null),
                _ => true,
            };
            asks_value && test.path == asked.path && test.path.reach == Reach::One
        }
        _ => false,
    }
}

struct Lowering<'a> {
    event: &'a Fields,
    mode: Mode,
}

impl Lowering<'_> {
    fn truth_conditions(&self, node: &Node) -> TruthConditions {
        match &node.kind {
            Kind::Literal(value) => TruthConditions::constant(is_true(value)),
            Kind::And(parts) => all(parts.iter().map(|part| self.truth_conditions(part)).collect()),
            Kind::Or(parts) => {
                all(parts.iter().map(|part| self.truth_conditions(part).mirrored()).collect()).mirrored()
            }
            Kind::Not(inner) => self.truth_conditions(inner).mirrored(),
            Kind::Compare(comparison, parts) => self.compare(*comparison, &parts[0], &parts[1]),
            Kind::Call(function, given) => self.call(*function, given, node),
            Kind::Filter(parts) => self.filter(parts, node),
            Kind::Failing => {
                let never = || (Condition::never(), true);
                TruthConditions { yes: never(), no: never(), value: never() }
            }
            Kind::UserFunction(function, given) => self.defined(function, given),
            _ => match self.path(node) {
                Some(path) => self.truth(path),
                None => TruthConditions::unknown(self.value(node)),
            },
        }
    }

    /// Whether the value at a path counts as true.
    fn truth(&self, path: Path) -> TruthConditions {
        let test = |value_test: ValueTest| (Condition::test(path.clone(), value_test), true);
        let empty = Value::from("");
        match self.kind(&path) {
            Some(FieldType::Boolean) => TruthConditions::total(
                test(ValueTest::equals(true)),
                test(ValueTest::In(vec![Value::Null, false.into()])),
            ),
            Some(FieldType::Integer | FieldType::Number | FieldType::Timestamp) => {
                TruthConditions::total(test(ValueTest::Exists), test(ValueTest::Missing))
            }
            Some(FieldType::String) => TruthConditions::total(
                test(ValueTest::anything_but(vec![Value::Null, empty.clone()])),
                test(ValueTest::In(vec![Value::Null, empty])),
            ),
            Some(FieldType::List) => {
                let items = |value_test: ValueTest| {
                    (Condition::test(Path { reach: Reach::Items, ..path.clone() }, value_test), true)
                };
                TruthConditions::total(items(ValueTest::Exists), items(ValueTest::Missing))
            }
            // No test detects an empty object.
            Some(FieldType::Map) => TruthConditions::total((Condition::test(path, ValueTest::Exists), false), UNKNOWN),
            None => {
                let yes = ValueTest::anything_but(vec![Value::Null, false.into(), empty]);
                TruthConditions::total((Condition::test(path, yes), false), UNKNOWN)
            }
        }
    }

    fn is_notifybc(&self) -> bool {
        self.mode == Mode::Notifybc
    }

    fn compare(&self, comparison: Comparison, left: &Node, right: &Node) -> TruthConditions {
        // No test orders values of different types, or rounds large integers, as JavaScript does.
        let is_exact = |node: &Node| literal(node).is_none_or(equals_itself_only);
        if self.is_notifybc() && (comparison.is_ordered() || !is_exact(left) || !is_exact(right)) {
            return TruthConditions::unknown(both(self.value(left), self.value(right)));
        }
        if let (Some(left), Some(right)) = (literal(left), literal(right)) {
            return match comparison {
                Comparison::Equal if scalar(left) && scalar(right) => TruthConditions::constant(equal(left, right)),
                Comparison::NotEqual if scalar(left) && scalar(right) => TruthConditions::constant(!equal(left, right)),
                _ => TruthConditions::total(UNKNOWN, UNKNOWN),
            };
        }
        let (path, value, comparison) = match (self.path(left), literal(right), self.path(right), literal(left)) {
            (Some(path), Some(value), ..) => (path, value, comparison),
            (_, _, Some(path), Some(value)) => (path, value, comparison.mirrored()),
            _ => {
                let (left, right) = (self.value(left), self.value(right));
                return TruthConditions::unknown(both(left, right));
            }
        };
        match comparison {
            Comparison::Equal => self.equals(path, value),
            Comparison::NotEqual => self.equals(path, value).mirrored(),
            _ if !matches!(value, Value::Integer(_) | Value::Number(_)) => TruthConditions::constant(false),
            _ => self.ordered(path, value, comparison),
        }
    }

    fn equals(&self, path: Path, value: &Value) -> TruthConditions {
        let kind = self.kind(&path);
        let exact = |value_test: ValueTest| (Condition::test(path.clone(), value_test), true);
        if value.is_null() {
            return TruthConditions::total(exact(ValueTest::Missing), exact(ValueTest::Exists));
        }
        if !scalar(value) {
            return match kind {
                None | Some(FieldType::List | FieldType::Map) => {
                    TruthConditions::total((Condition::test(path, ValueTest::Exists), false), UNKNOWN)
                }
                Some(_) => TruthConditions::constant(false),
            };
        }
        match stored(kind, value) {
            Some(value) => {
                let yes = exact(ValueTest::equals(value.clone()));
                TruthConditions::total(yes, (self.absent_or(path, ValueTest::anything_but(vec![value])), true))
            }
            None => TruthConditions::constant(false),
        }
    }

    fn ordered(&self, path: Path, value: &Value, comparison: Comparison) -> TruthConditions {
        let range = |comparison: Comparison| {
            let inclusive = matches!(comparison, Comparison::LessOrEqual | Comparison::GreaterOrEqual);
            let limit = Some(Limit { value: value.clone(), inclusive });
            match comparison {
                Comparison::Less | Comparison::LessOrEqual => Range::within(None, limit),
                _ => Range::within(limit, None),
            }
        };
        let yes = (Condition::test(path.clone(), range(comparison)), true);
        let no = match self.kind(&path) {
            Some(FieldType::Integer | FieldType::Number) => {
                let opposite = match comparison {
                    Comparison::Less => Comparison::GreaterOrEqual,
                    Comparison::LessOrEqual => Comparison::Greater,
                    Comparison::Greater => Comparison::LessOrEqual,
                    _ => Comparison::Less,
                };
                Condition::Any(vec![
                    Condition::test(path.clone(), ValueTest::Missing),
                    Condition::test(path, range(opposite)),
                ])
            }
            _ => self.absent_or(path, ValueTest::But(Box::new(range(comparison)))),
        };
        TruthConditions::total(yes, (no, true))
    }

    /// There is no value, or one that passes a negated test.
    fn absent_or(&self, path: Path, value_test: ValueTest) -> Condition {
        if path.keys.is_empty() {
            // A field of the class always has a value, possibly null.
            return Condition::test(path, value_test);
        }
        Condition::Any(vec![Condition::test(path.clone(), ValueTest::Missing), Condition::test(path, value_test)])
    }

    fn call(&self, function: Function, given: &[Node], node: &Node) -> TruthConditions {
        let value = self.value(node);
        let (Some(first), Some(second)) = (given.first(), given.get(1)) else { return TruthConditions::unknown(value) };
        if let (Some(path), Some(requested)) = (self.path(first), literal(second)) {
            return match function {
                Function::Contains => self.contains(path, requested, value),
                Function::ContainsCi | Function::StartsWith if self.is_notifybc() => {
                    self.text_in_notifybc(path, function, requested, value)
                }
                Function::ContainsCi | Function::StartsWith | Function::EndsWith => match requested.as_text() {
                    Some(part) => self.text(path, text_test(function, part), value),
                    None => TruthConditions::unknown(value),
                },
                _ => TruthConditions::unknown(value),
            };
        }
        match (function, literal(first), self.path(second)) {
            (Function::Contains, Some(Value::List(items)), Some(_))
                if self.is_notifybc() && !items.iter().all(equals_itself_only) =>
            {
                TruthConditions::unknown(value)
            }
            (Function::Contains, Some(Value::List(items)), Some(path)) => self.one_of(path, items),
            _ => TruthConditions::unknown(value),
        }
    }

    /// A user-defined function. True in CEL is true here; any other result may be false or an error.
    fn defined(&self, function: &UserFunction, given: &[Node]) -> TruthConditions {
        let value = (Condition::Always, false);
        let argument = |part: &Node| match (&part.kind, literal(part)) {
            // Below a field, a missing key is null here and an error in CEL.
            (Kind::Event(at), _) => VariableBinding::Place(Path::field(*at)),
            (_, Some(value)) if scalar(value) => VariableBinding::Value(value.clone()),
            _ => VariableBinding::Other,
        };
        if *function.result_type() != Type::Boolean {
            return TruthConditions::unknown(value);
        }
        let (yes, exact) = lower_call(function, given.iter().map(argument).collect(), self.event, false);
        // Another argument may have its own error.
        let total = given.iter().all(|part| self.value(part) == ALWAYS);
        TruthConditions { yes: (yes, exact && total), no: UNKNOWN, value }
    }

    /// A text test that is an error where there is no text. `how` is `Err` for a test that no text, or every text,
    /// passes.
    fn text(&self, path: Path, value_test: Result<ValueTest, bool>, value: Lowered) -> TruthConditions {
        match value_test {
            Err(true) => TruthConditions { yes: value.clone(), no: (Condition::never(), true), value },
            Err(false) => TruthConditions { yes: (Condition::never(), true), no: value.clone(), value },
            // A timestamp is text here and not in the index.
            Ok(_) if self.kind(&path) == Some(FieldType::Timestamp) => TruthConditions::unknown(value),
            Ok(value_test) => {
                let but = Condition::test(path.clone(), ValueTest::But(Box::new(value_test.clone())));
                let no = (Condition::All(vec![value.0.clone(), but]), value.1);
                TruthConditions { yes: (Condition::test(path, value_test), true), no, value }
            }
        }
    }

    /// `contains_ci`, which is false without a text, and `starts_with`, of which the prefix is only necessary.
    fn text_in_notifybc(&self, path: Path, function: Function, requested: &Value, value: Lowered) -> TruthConditions {
        let Some(part) = requested.as_text() else { return TruthConditions::unknown(value) };
        let exact = function == Function::ContainsCi;
        match text_test(function, part) {
            Ok(value_test) if self.kind(&path) != Some(FieldType::Timestamp) => {
                let no = if exact { UNKNOWN } else { (value.0.clone(), false) };
                TruthConditions { yes: (Condition::test(path, value_test), exact), no, value }
            }
            Err(false) => TruthConditions { yes: (Condition::never(), true), no: UNKNOWN, value },
            _ => TruthConditions::unknown(value),
        }
    }

    fn contains(&self, path: Path, requested: &Value, value: Lowered) -> TruthConditions {
        // A value other than text is converted to text, in which it is searched.
        if self.is_notifybc() && requested.as_text().is_none() {
            return TruthConditions::unknown(value);
        }
        let kind = self.kind(&path).map(shape);
        let item = |exact: bool| {
            let items = Path { reach: Reach::Items, ..path.clone() };
            match scalar(requested) {
                true => (Condition::test(items, ValueTest::equals(requested.clone())), exact),
                false => (Condition::test(items, ValueTest::Exists), false),
            }
        };
        match (kind, requested.as_text()) {
            (Some(Shape::Text), Some(part)) => self.text(path, text_test(Function::Contains, part), value),
            (Some(Shape::Text), None) => self.text(path, Err(false), value),
            // No test says that no item is equal.
            (Some(Shape::List), _) => TruthConditions { yes: item(true), no: (value.0.clone(), false), value },
            (_, None) => TruthConditions { yes: item(true), no: (value.0.clone(), false), value },
            (_, Some(part)) => {
                let text = match text_test(Function::Contains, part) {
                    Ok(value_test) => (Condition::test(path.clone(), value_test), true),
                    Err(_) => (value.0.clone(), false),
                };
                let (item, _) = item(true);
                TruthConditions {
                    yes: (Condition::Any(vec![text.0, item]), text.1),
                    no: (value.0.clone(), false),
                    value,
                }
            }
        }
    }

    /// `contains([...], path)`.
    fn one_of(&self, path: Path, items: &[Value]) -> TruthConditions {
        let kind = self.kind(&path);
        let is_scalar = kind.is_some_and(|kind| !matches!(kind, FieldType::List | FieldType::Map));
        if !is_scalar && !items.iter().all(scalar) {
            return TruthConditions::total(UNKNOWN, UNKNOWN);
        }
        let values: Vec<Value> =
            items.iter().filter(|item| scalar(item)).filter_map(|item| stored(kind, item)).collect();
        let with_null = values.iter().any(Value::is_null);
        if values.is_empty() {
            return TruthConditions::constant(false);
        }
        let yes = Condition::test(path.clone(), ValueTest::In(values.clone()));
        let but = ValueTest::anything_but(values);
        let (yes, no) = match (with_null, path.keys.is_empty()) {
            // A missing value is null.
            (true, false) => {
                let missing = Condition::test(path.clone(), ValueTest::Missing);
                (Condition::Any(vec![missing, yes]), Condition::test(path, but))
            }
            (true, true) => (yes, Condition::test(path, but)),
            (false, _) => (yes, self.absent_or(path, but)),
        };
        TruthConditions::total((yes, true), (no, true))
    }

    /// `list[?condition]`, of whose items one must pass.
    fn filter(&self, parts: &[Node; 3], node: &Node) -> TruthConditions {
        let value = self.value(node);
        let [list, right, condition] = parts;
        let list = self.path(list).filter(|_| matches!(right.kind, Kind::Current));
        let found = list.and_then(|list| item_condition(condition, &Path { reach: Reach::Items, ..list }, self.mode));
        match found {
            Some(yes) => TruthConditions { yes, no: UNKNOWN, value },
            None => TruthConditions::unknown(value),
        }
    }

    /// When a part has a value.
    fn value(&self, node: &Node) -> Lowered {
        let mut fails = false;
        node.visit(&mut |part| {
            fails |= match part.kind {
                Kind::Call(function, _) => can_fail(function),
                Kind::UserFunction(..) | Kind::Failing | Kind::Reference(_) => true,
                Kind::Slice(slice) => slice.step == 0,
                _ => false,
            }
        });
        if !fails {
            return ALWAYS;
        }
        match &node.kind {
            Kind::Compare(_, parts) => both(self.value(&parts[0]), self.value(&parts[1])),
            // Null is no error.
            Kind::Call(Function::ContainsCi, _) if self.is_notifybc() => (Condition::Always, false),
            Kind::Call(function, given) => {
                let mut value = ALWAYS;
                for (at, part) in given.iter().enumerate() {
                    let parameter = function.signature().parameter(at);
                    let plain = parameter.is_some_and(|parameter| parameter.is_plain());
                    value = both(value, self.value(part));
                    let is_unchecked = self.is_notifybc() && at >= function.signature().takes.len();
                    if !can_fail(*function) || is_unchecked || parameter == Some(Parameter::Anything) {
                        continue;
                    }
                    let asked = match (self.path(part), literal(part)) {
                        (Some(path), _) => {
                            let fits = self
                                .kind(&path)
                                .is_some_and(|kind| parameter.is_some_and(|parameter| parameter.takes(shape(kind))));
                            (Condition::test(path, ValueTest::Exists), fits && plain)
                        }
                        // Types were checked at compile time, except for null.
                        (_, Some(given)) => (Condition::Always, plain && !given.is_null()),
                        _ => (Condition::Always, false),
                    };
                    value = both(value, asked);
                }
                value
            }
            _ => (Condition::Always, false),
        }
    }

    /// The path in the event that a node reads, if it is a plain path.
    fn path(&self, node: &Node) -> Option<Path> {
        match &node.kind {
            Kind::Event(at) => Some(Path::field(*at)),
            Kind::Sub(parts) => match &parts[1].kind {
                Kind::Field(key) => {
                    let mut path = self.path(&parts[0])?;
                    path.keys.push(key.clone());
                    Some(path)
                }
                _ => None,
            },
            _ => None,
        }
    }

    /// The type of the field at a path; `None` for values below a field.
    fn kind(&self, path: &Path) -> Option<FieldType> {
        path.keys.is_empty().then(|| self.event[path.field].kind)
    }
}

const UNKNOWN: Lowered = (Condition::Unknown, false);

/// Conjunction of both.
fn both(left: Lowered, right: Lowered) -> Lowered {
    let exact = left.1 && right.1;
    match (left.0, right.0) {
        (Condition::Always, condition) | (condition, Condition::Always) => (condition, exact),
        (left, right) if left == right => (left, exact),
        (left, right) => (Condition::All(vec![left, right]), exact),
    }
}

/// The condition on one item of a list for a filter to keep it; `None` if no test expresses it.
fn item_condition(node: &Node, items: &Path, mode: Mode) -> Option<Lowered> {
    let current = |node: &Node| matches!(node.kind, Kind::Current);
    match &node.kind {
        Kind::Or(parts) => {
            let parts: Vec<Lowered> =
                parts.iter().map(|part| item_condition(part, items, mode)).collect::<Option<_>>()?;
            let exact = parts.iter().all(|(_, exact)| *exact);
            Some((Condition::Any(parts.into_iter().map(|(condition, _)| condition).collect()), exact))
        }
        Kind::Compare(comparison, parts) => {
            let (value, comparison) = match (literal(&parts[0]), literal(&parts[1])) {
                (None, Some(value)) if current(&parts[0]) => (value, *comparison),
                (Some(value), None) if current(&parts[1]) => (value, comparison.mirrored()),
                _ => return None,
            };
            // A null item is left out, whatever the condition says.
            if !scalar(value) || value.is_null() {
                return None;
            }
            if mode == Mode::Notifybc && (comparison.is_ordered() || !equals_itself_only(value)) {
                return None;
            }
            let numeric = matches!(value, Value::Integer(_) | Value::Number(_));
            let limit = |inclusive: bool| Some(Limit { value: value.clone(), inclusive });
            let value_test = match comparison {
                Comparison::Equal => ValueTest::equals(value.clone()),
                Comparison::NotEqual => return None,
                _ if !numeric => return Some((Condition::never(), true)),
                Comparison::Less | Comparison::LessOrEqual => {
                    Range::within(None, limit(comparison == Comparison::LessOrEqual))
                }
                _ => Range::within(limit(comparison == Comparison::GreaterOrEqual), None),
            };
            Some((Condition::test(items.clone(), value_test), true))
        }
        // An error if another item is not text.
        Kind::Call(function, given) => match given.as_slice() {
            [first, second] if current(first) => {
                let part = literal(second)?.as_text()?;
                match function {
                    Function::ContainsCi | Function::StartsWith | Function::EndsWith => {
                        Some((Condition::test(items.clone(), text_test(*function, part).ok()?), false))
                    }
                    _ => None,
                }
            }
            _ => None,
        },
        _ => None,
    }
}

/// The text test of a function; or an error that says whether every text passes, or none.
fn text_test(function: Function, part: &str) -> Result<ValueTest, bool> {
    match function {
        Function::ContainsCi if part.is_empty() => Err(false),
        _ if part.is_empty() => Err(true),
        Function::ContainsCi => Ok(ValueTest::contains(part, Case::Folded)),
        Function::StartsWith => Ok(ValueTest::prefix(part, Case::Sensitive)),
        Function::EndsWith => Ok(ValueTest::suffix(part, Case::Sensitive)),
        _ => Ok(ValueTest::contains(part, Case::Sensitive)),
    }
}

/// Whether a function can fail for an argument of the wrong type.
fn can_fail(function: Function) -> bool {
    !matches!(function, Function::NotNull | Function::ToArray | Function::ToNumber | Function::ToText | Function::Type)
}

/// Whether the value equals no other one if numbers are rounded to doubles.
fn equals_itself_only(value: &Value) -> bool {
    match value {
        Value::Integer(value) => value.unsigned_abs() <= SAFE_INTEGER_MAX,
        Value::Number(value) => value.abs() <= SAFE_INTEGER_MAX as f64,
        Value::List(items) => items.iter().all(equals_itself_only),
        Value::Map(entries) => entries.iter().all(|(_, value)| equals_itself_only(value)),
        _ => true,
    }
}

fn scalar(value: &Value) -> bool {
    !matches!(value, Value::List(_) | Value::Map(_))
}

fn equal(left: &Value, right: &Value) -> bool {
    crate::eval_value::equal(&crate::eval_value::EvalValue::of(left), &crate::eval_value::EvalValue::of(right))
}

fn is_true(value: &Value) -> bool {
    super::json_types::is_true(&crate::eval_value::EvalValue::of(value))
}

/// The stored value of a field that JMESPath sees as this one; `None` if there is none.
fn stored(kind: Option<FieldType>, value: &Value) -> Option<Value> {
    match (kind, value) {
        (Some(FieldType::Timestamp), Value::Text(text)) => {
            let time: Timestamp = text.parse().ok()?;
            // Only the canonical notation is equal.
            (time.to_string() == **text).then_some(Value::Timestamp(time))
        }
        (_, value) => Some(value.clone()),
    }
}
