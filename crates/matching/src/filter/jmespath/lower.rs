//! JMESPath as conditions: what an expression asks of the event, test by test.
//!
//! An expression is true, false or an error, and an error anywhere on the way is no match. So each part is lowered to
//! three conditions: when it is true, when it is false, and when it has a value at all. `!` exchanges the first two;
//! of what is joined by `&&` and `||`, a later part is only asked where the earlier ones have values.

use tocsin_model::{
    field::{FieldType, Fields},
    time::Timestamp,
    value::Value,
};

use super::{
    check::shape,
    functions::{Function, Shape},
    parse::literal,
    syntax::{Comparison, Kind, Node},
};
use crate::{
    defined::Defined,
    expression::Type,
    filter::{
        Case, Condition, How, Limit, Path, Range, Reach,
        cel::{Standing, lower_call},
    },
};

/// A condition that is necessary, and whether it is sufficient as well.
type Lowered = (Condition, bool);

/// Most tests of one condition that says when a part has a value. Beyond, it is not said.
const VALUE_TESTS_MAX: usize = 32;

/// Most tests that say, of the parts of one `&&` or `||`, that earlier ones have values. Beyond, it is not said, so that
/// no condition is much larger than its filter.
const EARLIER_TESTS_MAX: usize = 64;

/// What must hold for an expression to be true.
pub(super) fn lower(node: &Node, event: &Fields) -> Lowered {
    Lowering { event }.sides(node).yes
}

/// When a part is true, when it is false, and when it has a value.
struct Sides {
    yes: Lowered,
    no: Lowered,
    value: Lowered,
}

const ALWAYS: Lowered = (Condition::Always, true);

impl Sides {
    /// Of what always has a value.
    fn total(yes: Lowered, no: Lowered) -> Sides {
        Sides { yes, no, value: ALWAYS }
    }

    fn constant(truth: bool) -> Sides {
        let (yes, no) = (ALWAYS, (Condition::never(), true));
        if truth { Sides::total(yes, no) } else { Sides::total(no, yes) }
    }

    /// Of what only evaluation can tell, beyond when it has a value.
    fn unknown(value: Lowered) -> Sides {
        let side = match &value.0 {
            Condition::Always => (Condition::Unknown, false),
            condition => (condition.clone(), false),
        };
        Sides { yes: side.clone(), no: side, value }
    }

    fn turned(self) -> Sides {
        Sides { yes: self.no, no: self.yes, value: self.value }
    }
}

/// `&&` of parts. `||` is the same with all sides exchanged.
fn all(parts: Vec<Sides>) -> Sides {
    let mut value = ALWAYS;
    for part in parts.iter().rev() {
        if value == ALWAYS || value == part.value {
            value = part.value.clone();
            continue;
        }
        // The later ones are not asked where this one is false.
        let later = Condition::Any(vec![part.no.0.clone(), value.0]);
        let exact = part.value.1 && part.no.1 && value.1;
        value = (Condition::All(vec![part.value.0.clone(), later]), exact);
        if tests(&value.0) > VALUE_TESTS_MAX {
            value = (Condition::Always, false);
        }
    }
    let mut no = (Vec::with_capacity(parts.len()), true);
    let (mut yes, mut yes_exact) = (Vec::with_capacity(parts.len()), true);
    // That the earlier ones have values; and whether that is all it takes.
    let (mut earlier, mut earlier_exact): (Vec<Condition>, bool) = (Vec::new(), true);
    let mut said = 0;
    for Sides { yes: part_yes, no: part_no, value } in parts {
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
    Sides { yes: (Condition::All(yes), yes_exact), no: (Condition::Any(no.0), no.1), value }
}

/// How many tests a condition has.
fn tests(condition: &Condition) -> usize {
    match condition {
        Condition::All(parts) | Condition::Any(parts) => parts.iter().map(tests).sum(),
        _ => 1,
    }
}

/// Whether one condition never holds without the other. May miss it.
fn implies(one: &Condition, other: &Condition) -> bool {
    if one == other {
        return true;
    }
    match (one, other) {
        (Condition::Any(parts), _) => parts.iter().all(|part| implies(part, other)),
        (Condition::All(parts), _) => parts.iter().any(|part| implies(part, other)),
        (_, Condition::All(parts)) => parts.iter().all(|part| implies(one, part)),
        (Condition::Test(test), Condition::Test(asked)) if asked.how == How::Exists => {
            let asks_value = match &test.how {
                How::Missing | How::But(_) => false,
                How::In(values) => !values.iter().any(Value::is_null),
                _ => true,
            };
            asks_value && test.path == asked.path && test.path.reach == Reach::One
        }
        _ => false,
    }
}

struct Lowering<'a> {
    event: &'a Fields,
}

impl Lowering<'_> {
    fn sides(&self, node: &Node) -> Sides {
        match &node.kind {
            Kind::Literal(value) => Sides::constant(is_true(value)),
            Kind::And(parts) => all(parts.iter().map(|part| self.sides(part)).collect()),
            Kind::Or(parts) => all(parts.iter().map(|part| self.sides(part).turned()).collect()).turned(),
            Kind::Not(inner) => self.sides(inner).turned(),
            Kind::Compare(comparison, parts) => self.compare(*comparison, &parts[0], &parts[1]),
            Kind::Call(function, given) => self.call(*function, given, node),
            Kind::Filter(parts) => self.filter(parts, node),
            Kind::Defined(function, given) => self.defined(function, given),
            _ => match self.path(node) {
                Some(path) => self.truth(path),
                None => Sides::unknown(self.value(node)),
            },
        }
    }

    /// Whether the value at a place counts as true.
    fn truth(&self, path: Path) -> Sides {
        let test = |how: How| (Condition::test(path.clone(), how), true);
        let empty = Value::from("");
        match self.kind(&path) {
            Some(FieldType::Boolean) => {
                Sides::total(test(How::equals(true)), test(How::In(vec![Value::Null, false.into()])))
            }
            Some(FieldType::Integer | FieldType::Number | FieldType::Timestamp) => {
                Sides::total(test(How::Exists), test(How::Missing))
            }
            Some(FieldType::String) => Sides::total(
                test(How::anything_but(vec![Value::Null, empty.clone()])),
                test(How::In(vec![Value::Null, empty])),
            ),
            Some(FieldType::List) => {
                let items = |how: How| (Condition::test(Path { reach: Reach::Items, ..path.clone() }, how), true);
                Sides::total(items(How::Exists), items(How::Missing))
            }
            // No test asks whether an object is empty.
            Some(FieldType::Map) => Sides::total((Condition::test(path, How::Exists), false), UNKNOWN),
            None => {
                let yes = How::anything_but(vec![Value::Null, false.into(), empty]);
                Sides::total((Condition::test(path, yes), false), UNKNOWN)
            }
        }
    }

    fn compare(&self, comparison: Comparison, left: &Node, right: &Node) -> Sides {
        if let (Some(left), Some(right)) = (literal(left), literal(right)) {
            return match comparison {
                Comparison::Equal if scalar(left) && scalar(right) => Sides::constant(equal(left, right)),
                Comparison::NotEqual if scalar(left) && scalar(right) => Sides::constant(!equal(left, right)),
                _ => Sides::total(UNKNOWN, UNKNOWN),
            };
        }
        let (path, value, comparison) = match (self.path(left), literal(right), self.path(right), literal(left)) {
            (Some(path), Some(value), ..) => (path, value, comparison),
            (_, _, Some(path), Some(value)) => (path, value, comparison.turned()),
            _ => {
                let (left, right) = (self.value(left), self.value(right));
                return Sides::unknown(both(left, right));
            }
        };
        match comparison {
            Comparison::Equal => self.equals(path, value),
            Comparison::NotEqual => self.equals(path, value).turned(),
            _ if !matches!(value, Value::Integer(_) | Value::Number(_)) => Sides::constant(false),
            _ => self.ordered(path, value, comparison),
        }
    }

    fn equals(&self, path: Path, value: &Value) -> Sides {
        let kind = self.kind(&path);
        let exact = |how: How| (Condition::test(path.clone(), how), true);
        if value.is_null() {
            return Sides::total(exact(How::Missing), exact(How::Exists));
        }
        if !scalar(value) {
            return match kind {
                None | Some(FieldType::List | FieldType::Map) => {
                    Sides::total((Condition::test(path, How::Exists), false), UNKNOWN)
                }
                Some(_) => Sides::constant(false),
            };
        }
        match stored(kind, value) {
            Some(value) => {
                let yes = exact(How::equals(value.clone()));
                Sides::total(yes, (self.absent_or(path, How::anything_but(vec![value])), true))
            }
            None => Sides::constant(false),
        }
    }

    fn ordered(&self, path: Path, value: &Value, comparison: Comparison) -> Sides {
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
                    Condition::test(path.clone(), How::Missing),
                    Condition::test(path, range(opposite)),
                ])
            }
            _ => self.absent_or(path, How::But(Box::new(range(comparison)))),
        };
        Sides::total(yes, (no, true))
    }

    /// That there is no value, or one that passes a negated test.
    fn absent_or(&self, path: Path, how: How) -> Condition {
        if path.keys.is_empty() {
            // A field of the class has a value, null at least.
            return Condition::test(path, how);
        }
        Condition::Any(vec![Condition::test(path.clone(), How::Missing), Condition::test(path, how)])
    }

    fn call(&self, function: Function, given: &[Node], node: &Node) -> Sides {
        let value = self.value(node);
        let (Some(first), Some(second)) = (given.first(), given.get(1)) else { return Sides::unknown(value) };
        if let (Some(path), Some(wanted)) = (self.path(first), literal(second)) {
            return match function {
                Function::Contains => self.contains(path, wanted, value),
                Function::ContainsCi | Function::StartsWith | Function::EndsWith => match wanted.as_text() {
                    Some(part) => self.text(path, text_test(function, part), value),
                    None => Sides::unknown(value),
                },
                _ => Sides::unknown(value),
            };
        }
        match (function, literal(first), self.path(second)) {
            (Function::Contains, Some(Value::List(items)), Some(path)) => self.one_of(path, items),
            _ => Sides::unknown(value),
        }
    }

    /// A function of the application. What is true in CEL is true here; what is not may be false or an error.
    fn defined(&self, function: &Defined, given: &[Node]) -> Sides {
        let value = (Condition::Always, false);
        let standing = |part: &Node| match (&part.kind, literal(part)) {
            // Below a field, what is missing is null here and an error there.
            (Kind::Event(at), _) => Standing::Place(Path::field(*at)),
            (_, Some(value)) if scalar(value) => Standing::Value(value.clone()),
            _ => Standing::Other,
        };
        if *function.gives() != Type::Boolean {
            return Sides::unknown(value);
        }
        let (yes, exact) = lower_call(function, given.iter().map(standing).collect(), self.event, false);
        // Another argument may be an error of its own.
        let total = given.iter().all(|part| self.value(part) == ALWAYS);
        Sides { yes: (yes, exact && total), no: UNKNOWN, value }
    }

    /// A test of text that is an error where there is none. `how` is `None` for one that no text, or every text, passes.
    fn text(&self, path: Path, how: Result<How, bool>, value: Lowered) -> Sides {
        match how {
            Err(true) => Sides { yes: value.clone(), no: (Condition::never(), true), value },
            Err(false) => Sides { yes: (Condition::never(), true), no: value.clone(), value },
            // An instant is text here and not in the index.
            Ok(_) if self.kind(&path) == Some(FieldType::Timestamp) => Sides::unknown(value),
            Ok(how) => {
                let but = Condition::test(path.clone(), How::But(Box::new(how.clone())));
                let no = (Condition::All(vec![value.0.clone(), but]), value.1);
                Sides { yes: (Condition::test(path, how), true), no, value }
            }
        }
    }

    fn contains(&self, path: Path, wanted: &Value, value: Lowered) -> Sides {
        let kind = self.kind(&path).map(shape);
        let item = |exact: bool| {
            let items = Path { reach: Reach::Items, ..path.clone() };
            match scalar(wanted) {
                true => (Condition::test(items, How::equals(wanted.clone())), exact),
                false => (Condition::test(items, How::Exists), false),
            }
        };
        match (kind, wanted.as_text()) {
            (Some(Shape::Text), Some(part)) => self.text(path, text_test(Function::Contains, part), value),
            (Some(Shape::Text), None) => self.text(path, Err(false), value),
            // No test asks that no item is equal.
            (Some(Shape::List), _) => Sides { yes: item(true), no: (value.0.clone(), false), value },
            (_, None) => Sides { yes: item(true), no: (value.0.clone(), false), value },
            (_, Some(part)) => {
                let text = match text_test(Function::Contains, part) {
                    Ok(how) => (Condition::test(path.clone(), how), true),
                    Err(_) => (value.0.clone(), false),
                };
                let (item, _) = item(true);
                Sides { yes: (Condition::Any(vec![text.0, item]), text.1), no: (value.0.clone(), false), value }
            }
        }
    }

    /// `contains([...], place)`.
    fn one_of(&self, path: Path, items: &[Value]) -> Sides {
        let kind = self.kind(&path);
        let is_scalar = kind.is_some_and(|kind| !matches!(kind, FieldType::List | FieldType::Map));
        if !is_scalar && !items.iter().all(scalar) {
            return Sides::total(UNKNOWN, UNKNOWN);
        }
        let values: Vec<Value> =
            items.iter().filter(|item| scalar(item)).filter_map(|item| stored(kind, item)).collect();
        let with_null = values.iter().any(Value::is_null);
        if values.is_empty() {
            return Sides::constant(false);
        }
        let yes = Condition::test(path.clone(), How::In(values.clone()));
        let but = How::anything_but(values);
        let (yes, no) = match (with_null, path.keys.is_empty()) {
            // What is missing is null.
            (true, false) => {
                let missing = Condition::test(path.clone(), How::Missing);
                (Condition::Any(vec![missing, yes]), Condition::test(path, but))
            }
            (true, true) => (yes, Condition::test(path, but)),
            (false, _) => (yes, self.absent_or(path, but)),
        };
        Sides::total((yes, true), (no, true))
    }

    /// `list[?condition]`, of whose items one must pass.
    fn filter(&self, parts: &[Node; 3], node: &Node) -> Sides {
        let value = self.value(node);
        let [list, right, condition] = parts;
        let list = self.path(list).filter(|_| matches!(right.kind, Kind::Current));
        let found = list.and_then(|list| item_condition(condition, &Path { reach: Reach::Items, ..list }));
        match found {
            Some(yes) => Sides { yes, no: UNKNOWN, value },
            None => Sides::unknown(value),
        }
    }

    /// When a part has a value.
    fn value(&self, node: &Node) -> Lowered {
        let mut fails = false;
        node.visit(&mut |part| {
            fails |= match part.kind {
                Kind::Call(function, _) => can_fail(function),
                Kind::Defined(..) => true,
                _ => false,
            }
        });
        if !fails {
            return ALWAYS;
        }
        match &node.kind {
            Kind::Compare(_, parts) => both(self.value(&parts[0]), self.value(&parts[1])),
            Kind::Call(function, given) => {
                let mut value = ALWAYS;
                for (at, part) in given.iter().enumerate() {
                    let parameter = function.signature().parameter(at);
                    let plain = parameter.is_some_and(|parameter| parameter.is_plain());
                    value = both(value, self.value(part));
                    if !can_fail(*function) || parameter == Some(super::functions::Parameter::Anything) {
                        continue;
                    }
                    let asked = match (self.path(part), literal(part)) {
                        (Some(path), _) => {
                            let fits = self
                                .kind(&path)
                                .is_some_and(|kind| parameter.is_some_and(|parameter| parameter.takes(shape(kind))));
                            (Condition::test(path, How::Exists), fits && plain)
                        }
                        // Checked on entry, but for null.
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

    /// The place of the event that a node is, if it is one.
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

    /// What the field at a place holds; `None` for what lies below one.
    fn kind(&self, path: &Path) -> Option<FieldType> {
        path.keys.is_empty().then(|| self.event[path.field].kind)
    }
}

const UNKNOWN: Lowered = (Condition::Unknown, false);

/// Both of them.
fn both(left: Lowered, right: Lowered) -> Lowered {
    let exact = left.1 && right.1;
    match (left.0, right.0) {
        (Condition::Always, condition) | (condition, Condition::Always) => (condition, exact),
        (left, right) if left == right => (left, exact),
        (left, right) => (Condition::All(vec![left, right]), exact),
    }
}

/// What one item of a list must pass for a filter to keep it; `None` if no test says it.
fn item_condition(node: &Node, items: &Path) -> Option<Lowered> {
    let current = |node: &Node| matches!(node.kind, Kind::Current);
    match &node.kind {
        Kind::Or(parts) => {
            let parts: Vec<Lowered> = parts.iter().map(|part| item_condition(part, items)).collect::<Option<_>>()?;
            let exact = parts.iter().all(|(_, exact)| *exact);
            Some((Condition::Any(parts.into_iter().map(|(condition, _)| condition).collect()), exact))
        }
        Kind::Compare(comparison, parts) => {
            let (value, comparison) = match (literal(&parts[0]), literal(&parts[1])) {
                (None, Some(value)) if current(&parts[0]) => (value, *comparison),
                (Some(value), None) if current(&parts[1]) => (value, comparison.turned()),
                _ => return None,
            };
            // An item that is null is left out, whatever the condition says.
            if !scalar(value) || value.is_null() {
                return None;
            }
            let numeric = matches!(value, Value::Integer(_) | Value::Number(_));
            let limit = |inclusive: bool| Some(Limit { value: value.clone(), inclusive });
            let how = match comparison {
                Comparison::Equal => How::equals(value.clone()),
                Comparison::NotEqual => return None,
                _ if !numeric => return Some((Condition::never(), true)),
                Comparison::Less | Comparison::LessOrEqual => {
                    Range::within(None, limit(comparison == Comparison::LessOrEqual))
                }
                _ => Range::within(limit(comparison == Comparison::GreaterOrEqual), None),
            };
            Some((Condition::test(items.clone(), how), true))
        }
        // An error where another item is no text.
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

/// What a function asks of text; or an error that says whether every text passes, or none.
fn text_test(function: Function, part: &str) -> Result<How, bool> {
    match function {
        Function::ContainsCi if part.is_empty() => Err(false),
        _ if part.is_empty() => Err(true),
        Function::ContainsCi => Ok(How::contains(part, Case::Folded)),
        Function::StartsWith => Ok(How::prefix(part, Case::Kept)),
        Function::EndsWith => Ok(How::suffix(part, Case::Kept)),
        _ => Ok(How::contains(part, Case::Kept)),
    }
}

/// Whether a function can be given what it does not take.
fn can_fail(function: Function) -> bool {
    !matches!(function, Function::NotNull | Function::ToArray | Function::ToNumber | Function::ToText | Function::Type)
}

fn scalar(value: &Value) -> bool {
    !matches!(value, Value::List(_) | Value::Map(_))
}

fn equal(left: &Value, right: &Value) -> bool {
    crate::datum::equal(&crate::datum::Datum::of(left), &crate::datum::Datum::of(right))
}

fn is_true(value: &Value) -> bool {
    super::evaluate::is_true(&crate::datum::Datum::of(value))
}

/// The value that a field holds where JMESPath sees this one; `None` if it never does.
fn stored(kind: Option<FieldType>, value: &Value) -> Option<Value> {
    match (kind, value) {
        (Some(FieldType::Timestamp), Value::Text(text)) => {
            let time: Timestamp = text.parse().ok()?;
            // Only the way in which we write it is equal to it.
            (time.to_string() == **text).then_some(Value::Timestamp(time))
        }
        (_, value) => Some(value.clone()),
    }
}
