//! Event patterns: the JSON filter language of Amazon EventBridge and SNS. Each field lists the accepted values.
//!
//! Semantics are those of EventBridge, with the differences that the guide lists. All fields must match, and a field
//! matches if one of its values does. Values are compared with the leaves of the event: values other than lists and
//! objects, reached through lists of any depth. Fields below one list of objects must match in the same object.

mod json; // JSON parser that records positions
mod parsed; // a parsed pattern
mod search; // the evaluator: a backtracking search over leaves
#[cfg(test)]
mod tests;

use std::{fmt::Write, sync::Arc};

use tocsin_model::{
    field::{FieldType, Fields},
    filter::Dialect,
    problem::{Code, Problem, closest},
    value::Value,
};

use crate::{
    dialect::Span,
    filter::{
        compiled::CompiledFilter,
        condition::{Case, Condition, Limit, Path, Range, Reach, ValueTest},
        pattern::{
            json::{Entry, Node, NodeKind},
            parsed::{Pattern, shared},
        },
    },
    text::{Network, Wildcard},
};

/// Longest pattern, in bytes.
const PATTERN_BYTES_MAX: usize = 64 * 1024;
/// Most fields in a pattern, over all alternatives. The search is as deep as there are fields.
const FIELDS_MAX: usize = 256;

/// The keys of tests.
const TESTS: [&str; 8] =
    ["prefix", "suffix", "equals-ignore-case", "wildcard", "anything-but", "numeric", "exists", "cidr"];

/// The tests that `anything-but` accepts.
const BUT_TESTS: [&str; 4] = ["prefix", "suffix", "equals-ignore-case", "wildcard"];

/// Compiles an event pattern.
pub(super) fn compile(text: &str, event: &Fields) -> Result<CompiledFilter, Vec<Problem>> {
    if text.len() > PATTERN_BYTES_MAX {
        let message = format!("the pattern has {} bytes, at most {PATTERN_BYTES_MAX} are allowed", text.len());
        return Err(vec![
            Problem::new(Code::TooLong, "", message)
                .param("given", text.len())
                .param("limit", PATTERN_BYTES_MAX)
                .param("unit", "bytes"),
        ]);
    }
    let root = json::read(text).map_err(|problem| vec![problem])?;
    if let Some(span) = beyond(&root, &mut 0) {
        let problem = span
            .problem(Code::TooMany, text, format!("the pattern asks for more than {FIELDS_MAX} fields"))
            .param("limit", FIELDS_MAX);
        return Err(vec![problem.hint("make several subscriptions of it")]);
    }
    let mut reader = Reader { text, event, problems: Vec::new() };
    let pattern = reader.object(&root, None);
    if !reader.problems.is_empty() {
        return Err(reader.problems);
    }
    let mut places = Vec::new();
    let (condition, exact) = lower(&pattern, event, &mut places);
    let mut canonical = String::new();
    if !exact {
        print(&root, &mut canonical);
    }
    Ok(CompiledFilter::new(Dialect::EventPattern, condition, exact, &canonical, Arc::new(pattern)))
}

/// The first key beyond the limit.
fn beyond(node: &Node, keys: &mut usize) -> Option<Span> {
    match &node.kind {
        NodeKind::Object(entries) => entries.iter().find_map(|entry| {
            // Keys of tests are not counted: they are inside lists of values.
            *keys += usize::from(entry.key != "$or");
            if *keys > FIELDS_MAX { Some(entry.span) } else { beyond_value(entry, keys) }
        }),
        _ => None,
    }
}

fn beyond_value(entry: &Entry, keys: &mut usize) -> Option<Span> {
    match &entry.value.kind {
        NodeKind::Object(_) => beyond(&entry.value, keys),
        NodeKind::List(items) if entry.key == "$or" => items.iter().find_map(|item| beyond(item, keys)),
        _ => None,
    }
}

/// Parses a pattern; collects every problem.
struct Reader<'a> {
    text: &'a str,
    event: &'a Fields,
    problems: Vec<Problem>,
}

impl Reader<'_> {
    fn wrong(&mut self, code: Code, span: Span, message: impl Into<String>) {
        self.problems.push(span.problem(code, self.text, message));
    }

    fn wrong_hint(&mut self, code: Code, span: Span, message: impl Into<String>, hint: impl Into<String>) {
        self.problems.push(span.problem(code, self.text, message).hint(hint));
    }

    /// An object of fields: of the event, or below a path.
    fn object(&mut self, node: &Node, above: Option<&Path>) -> Pattern {
        let NodeKind::Object(entries) = &node.kind else {
            self.wrong_hint(
                Code::InvalidExpression,
                node.span,
                format!("a pattern is an object, not {}", node.describe()),
                r#"write {"field": ["value"]}"#,
            );
            return Pattern::All(Vec::new());
        };
        if entries.is_empty() {
            match above {
                None => self.wrong_hint(
                    Code::InvalidExpression,
                    node.span,
                    "the pattern is empty",
                    "leave the filter out to receive every event",
                ),
                Some(_) => self.wrong_hint(
                    Code::InvalidExpression,
                    node.span,
                    "the object is empty",
                    "name a field of it, or leave it out",
                ),
            }
        }
        Pattern::All(entries.iter().filter_map(|entry| self.field(entry, above)).collect())
    }

    fn field(&mut self, entry: &Entry, above: Option<&Path>) -> Option<Pattern> {
        if entry.key == "$or" {
            return self.alternatives(entry, above);
        }
        let path = match above {
            Some(above) => {
                let mut path = above.clone();
                path.keys.push(entry.key.as_str().into());
                path
            }
            None => self.class_field(entry)?,
        };
        match &entry.value.kind {
            NodeKind::List(items) if items.is_empty() => {
                self.wrong_hint(
                    Code::InvalidExpression,
                    entry.value.span,
                    "the list of values is empty, so nothing would fit",
                    "write at least one value",
                );
                None
            }
            NodeKind::List(items) => {
                if let Some(FieldType::Map) = self.sole_kind(&path) {
                    self.wrong_hint(
                        Code::InvalidExpression,
                        entry.value.span,
                        format!("`{}` holds an object, which is no value", entry.key),
                        r#"name a field of it: {"field": ["value"]}"#,
                    );
                    return None;
                }
                Some(Pattern::Any(items.iter().filter_map(|item| self.value(item, &path)).collect()))
            }
            NodeKind::Object(_) => {
                if let Some(kind) = self.sole_kind(&path).filter(|kind| *kind != FieldType::Map) {
                    let hint = match &entry.value.kind {
                        NodeKind::Object(inner) if inner.iter().any(|inner| TESTS.contains(&inner.key.as_str())) => {
                            "put the test in a list: [{...}]"
                        }
                        _ => "write a list of values",
                    };
                    self.wrong_hint(
                        Code::InvalidExpression,
                        entry.value.span,
                        format!("`{}` is {} and has no fields", entry.key, named(kind)),
                        hint,
                    );
                    return None;
                }
                Some(self.object(&entry.value, Some(&path)))
            }
            NodeKind::Scalar(_) => {
                let value = entry.value.span.text(self.text).to_owned();
                self.wrong_hint(
                    Code::TypeMismatch,
                    entry.value.span,
                    "values stand in a list",
                    format!("write [{value}]"),
                );
                None
            }
        }
    }

    /// The path of a field of the class. A field with a single value is tested directly.
    fn class_field(&mut self, entry: &Entry) -> Option<Path> {
        let Some(field) = self.event.position(&entry.key) else {
            let names = self.event.iter().map(|field| field.name.as_str());
            let hint = match closest(&entry.key, names.clone()) {
                Some(meant) => format!("did you mean `{meant}`?"),
                None => format!("its fields are {}", names.collect::<Vec<_>>().join(", ")),
            };
            self.wrong_hint(
                Code::UnknownName,
                entry.span,
                format!("the event class has no field `{}`", entry.key),
                hint,
            );
            return None;
        };
        let reach = match self.event.iter().nth(field).map(|field| field.kind) {
            Some(FieldType::List | FieldType::Map) | None => Reach::Leaves,
            Some(_) => Reach::One,
        };
        Some(Path { field, keys: Vec::new(), reach })
    }

    /// The type of the value at a path, if it is fixed: a field of the class that is not a list.
    fn sole_kind(&self, path: &Path) -> Option<FieldType> {
        let kind = self.event.iter().nth(path.field)?.kind;
        (path.keys.is_empty() && kind != FieldType::List).then_some(kind)
    }

    fn alternatives(&mut self, entry: &Entry, above: Option<&Path>) -> Option<Pattern> {
        match &entry.value.kind {
            NodeKind::List(items) if items.len() >= 2 => {
                Some(Pattern::Any(items.iter().map(|item| self.object(item, above)).collect()))
            }
            _ => {
                let hint = r#"write "$or": [{"field": ["value"]}, {"other": ["value"]}]"#;
                self.wrong_hint(
                    Code::TypeMismatch,
                    entry.value.span,
                    "`$or` takes a list of at least two objects",
                    hint,
                );
                None
            }
        }
    }

    /// One of the accepted values of a field.
    fn value(&mut self, node: &Node, path: &Path) -> Option<Pattern> {
        let entry = match &node.kind {
            NodeKind::Scalar(value) => {
                let value = self.literal(node, value, path)?;
                return Some(Pattern::Leaf(path.clone(), vec![ValueTest::In(vec![value])]));
            }
            NodeKind::List(_) => {
                self.wrong(Code::InvalidExpression, node.span, "a list within the list of values would fit nothing");
                return None;
            }
            NodeKind::Object(entries) => match entries.as_slice() {
                [entry] => entry,
                _ => {
                    self.wrong_hint(
                        Code::InvalidExpression,
                        node.span,
                        "a test has exactly one key",
                        "write one object for each test: [{...}, {...}]",
                    );
                    return None;
                }
            },
        };
        let leaf = |value_test: ValueTest| Some(Pattern::Leaf(path.clone(), vec![value_test]));
        match entry.key.as_str() {
            "exists" => match entry.value.kind {
                NodeKind::Scalar(Value::Boolean(true)) => Some(Pattern::Exists(path.clone())),
                NodeKind::Scalar(Value::Boolean(false)) => Some(Pattern::Missing(path.clone())),
                _ => {
                    self.wrong(Code::TypeMismatch, entry.value.span, "`exists` takes true or false");
                    None
                }
            },
            "anything-but" => self.anything_but(&entry.value, path),
            "numeric" => {
                self.can_hold(entry, path, &[FieldType::Integer, FieldType::Number], "numbers")?;
                leaf(self.numeric(&entry.value)?)
            }
            "cidr" => {
                self.can_hold(entry, path, &[FieldType::String], "text")?;
                let text = self.text_of(&entry.value, "cidr")?;
                match Network::read(&text) {
                    Ok(network) => leaf(ValueTest::Cidr(network)),
                    Err(message) => {
                        self.wrong_hint(
                            Code::InvalidExpression,
                            entry.value.span,
                            message,
                            "write a network such as 10.0.0.0/8",
                        );
                        None
                    }
                }
            }
            "equals-ignore-case" | "wildcard" => {
                self.can_hold(entry, path, &[FieldType::String], "text")?;
                leaf(self.text_test(&entry.key, &entry.value)?)
            }
            "prefix" | "suffix" => {
                self.can_hold(entry, path, &[FieldType::String], "text")?;
                let value_test = match &entry.value.kind {
                    NodeKind::Object(inner) if inner.len() == 1 && inner[0].key == "equals-ignore-case" => {
                        let text = self.text_of(&inner[0].value, "equals-ignore-case")?;
                        let is_prefix = entry.key == "prefix";
                        if is_prefix {
                            ValueTest::prefix(&text, Case::Folded)
                        } else {
                            ValueTest::suffix(&text, Case::Folded)
                        }
                    }
                    _ => self.text_test(&entry.key, &entry.value)?,
                };
                leaf(value_test)
            }
            other => {
                let hint = match closest(other, TESTS) {
                    Some(meant) => format!("did you mean `{meant}`?"),
                    None => format!("tests are {}", TESTS.join(", ")),
                };
                self.wrong_hint(Code::UnknownName, entry.span, format!("`{other}` is no test"), hint);
                None
            }
        }
    }

    /// Whether a test can hold for a field of its type; values below a map or a list can have any type.
    fn can_hold(&mut self, entry: &Entry, path: &Path, kinds: &[FieldType], what: &str) -> Option<()> {
        match self.sole_kind(path) {
            Some(kind) if !kinds.contains(&kind) => {
                let name = self.event.iter().nth(path.field).map_or("", |field| field.name.as_str());
                let message = format!("`{}` is a test of {what}, and `{name}` is {}", entry.key, named(kind));
                match kind {
                    FieldType::Timestamp => {
                        self.wrong_hint(
                            Code::InvalidExpression,
                            entry.span,
                            message,
                            "write the instant itself, or a filter in CEL for a range",
                        );
                    }
                    _ => self.wrong(Code::TypeMismatch, entry.span, message),
                }
                None
            }
            _ => Some(()),
        }
    }

    /// A value as its field stores it.
    fn literal(&mut self, node: &Node, value: &Value, path: &Path) -> Option<Value> {
        let Some(kind) = self.sole_kind(path) else { return Some(value.clone()) };
        let name = self.event.iter().nth(path.field).map_or("", |field| field.name.as_str());
        let text = node.span.text(self.text).to_owned();
        match (kind, value) {
            (_, Value::Null) => {
                let message = format!("a field of the class that is null counts as missing, so `{name}` is never null");
                self.wrong_hint(Code::InvalidExpression, node.span, message, r#"write {"exists": false}"#);
                None
            }
            (FieldType::String, Value::Text(_))
            | (FieldType::Boolean, Value::Boolean(_))
            | (FieldType::Integer | FieldType::Number, Value::Integer(_) | Value::Number(_)) => Some(value.clone()),
            (FieldType::Timestamp, Value::Text(instant)) => match kind.accept(Value::Text(Arc::clone(instant))) {
                Ok(value) => Some(value),
                Err(message) => {
                    self.wrong_hint(
                        Code::TypeMismatch,
                        node.span,
                        message,
                        "write an instant such as 2026-03-01T12:00:00Z",
                    );
                    None
                }
            },
            _ => {
                let message = format!("`{name}` is {}, never {}", named(kind), node.describe());
                match (kind, value) {
                    (FieldType::Integer | FieldType::Number, Value::Text(inner)) if inner.parse::<f64>().is_ok() => {
                        self.wrong_hint(
                            Code::TypeMismatch,
                            node.span,
                            message,
                            format!("write {inner} without quotes"),
                        );
                    }
                    (FieldType::String, _) => {
                        self.wrong_hint(Code::TypeMismatch, node.span, message, format!("write \"{text}\""))
                    }
                    _ => self.wrong(Code::TypeMismatch, node.span, message),
                }
                None
            }
        }
    }

    fn text_of(&mut self, node: &Node, test: &str) -> Option<String> {
        match &node.kind {
            NodeKind::Scalar(Value::Text(text)) if !text.is_empty() => Some(text.to_string()),
            NodeKind::Scalar(Value::Text(_)) => {
                self.wrong(Code::TypeMismatch, node.span, format!("`{test}` takes a text that is not empty"));
                None
            }
            _ => {
                self.wrong(Code::TypeMismatch, node.span, format!("`{test}` takes text, not {}", node.describe()));
                None
            }
        }
    }

    fn text_test(&mut self, test: &str, node: &Node) -> Option<ValueTest> {
        if test == "equals-ignore-case" {
            // The empty text has no case, so it is tested by equality.
            if let NodeKind::Scalar(Value::Text(text)) = &node.kind {
                return Some(ValueTest::equals_ignore_case(text));
            }
        }
        let text = self.text_of(node, test)?;
        Some(match test {
            "prefix" => ValueTest::prefix(&text, Case::Sensitive),
            "suffix" => ValueTest::suffix(&text, Case::Sensitive),
            "wildcard" => return self.wildcard(node.span, &text),
            _ => ValueTest::equals_ignore_case(&text),
        })
    }

    fn wildcard(&mut self, span: Span, text: &str) -> Option<ValueTest> {
        let mut parts = vec![String::new()];
        let mut letters = text.chars().peekable();
        let mut last_is_star = false;
        while let Some(letter) = letters.next() {
            match letter {
                '*' if last_is_star => {
                    self.wrong_hint(
                        Code::InvalidExpression,
                        span,
                        "two `*` in a row say no more than one",
                        "write one; `\\\\*` is a star itself",
                    );
                    return None;
                }
                '*' => parts.push(String::new()),
                '\\' => match letters.next() {
                    Some(literal @ ('*' | '\\')) => parts.last_mut()?.push(literal),
                    _ => {
                        let hint = "write `\\\\*` for a star and `\\\\\\\\` for a backslash";
                        self.wrong_hint(
                            Code::InvalidExpression,
                            span,
                            "a backslash stands before `*` or another backslash only",
                            hint,
                        );
                        return None;
                    }
                },
                letter => parts.last_mut()?.push(letter),
            }
            last_is_star = letter == '*';
        }
        if parts.len() == 1 {
            return Some(ValueTest::equals(parts[0].as_str()));
        }
        Some(ValueTest::Wildcard(Wildcard::new(parts.into_iter().map(Arc::from).collect())))
    }

    fn anything_but(&mut self, node: &Node, path: &Path) -> Option<Pattern> {
        let leaf = |value_tests: Vec<ValueTest>| Some(Pattern::Leaf(path.clone(), value_tests));
        let many = |node: &Node| match &node.kind {
            NodeKind::List(items) => items.clone(),
            _ => vec![node.clone()],
        };
        if let NodeKind::Object(entries) = &node.kind {
            let [entry] = entries.as_slice() else {
                self.wrong(Code::TypeMismatch, node.span, "a test has exactly one key");
                return None;
            };
            if !BUT_TESTS.contains(&entry.key.as_str()) {
                let message = format!("`anything-but` takes values, or one of {}", BUT_TESTS.join(", "));
                self.wrong(Code::InvalidExpression, entry.span, message);
                return None;
            }
            self.can_hold(entry, path, &[FieldType::String], "text")?;
            let list = many(&entry.value);
            let value_tests: Vec<ValueTest> = list
                .iter()
                .filter_map(|item| self.text_test(&entry.key, item))
                .map(|value_test| ValueTest::But(Box::new(value_test)))
                .collect();
            // An empty list, or one with problems.
            if value_tests.is_empty() && list.is_empty() {
                self.wrong(Code::InvalidExpression, entry.value.span, "the list is empty, so everything would fit");
            }
            return leaf(value_tests).filter(|_| !list.is_empty());
        }
        let list = many(node);
        if list.is_empty() {
            self.wrong_hint(
                Code::InvalidExpression,
                node.span,
                "the list is empty, so everything would fit",
                r#"write {"exists": true}"#,
            );
            return None;
        }
        let mut values = Vec::with_capacity(list.len());
        for item in &list {
            match &item.kind {
                NodeKind::Scalar(value) if !value.is_null() => values.extend(self.literal(item, value, path)),
                _ => self.wrong(
                    Code::TypeMismatch,
                    item.span,
                    format!("`anything-but` takes text and numbers, not {}", item.describe()),
                ),
            }
        }
        leaf(vec![ValueTest::anything_but(values)])
    }

    fn numeric(&mut self, node: &Node) -> Option<ValueTest> {
        let hint = r#"write [">", 0, "<=", 5]"#;
        let items = match &node.kind {
            NodeKind::List(items) if !items.is_empty() && items.len() % 2 == 0 => items,
            _ => {
                self.wrong_hint(
                    Code::TypeMismatch,
                    node.span,
                    "`numeric` takes a list of comparisons and numbers",
                    hint,
                );
                return None;
            }
        };
        let (mut low, mut high): (Option<Limit>, Option<Limit>) = (None, None);
        for pair in items.chunks(2) {
            let [sign, number] = pair else { continue };
            let value = match &number.kind {
                NodeKind::Scalar(value @ (Value::Integer(_) | Value::Number(_))) => value.clone(),
                _ => {
                    self.wrong_hint(
                        Code::InvalidExpression,
                        number.span,
                        format!("a number should stand here, not {}", number.describe()),
                        hint,
                    );
                    return None;
                }
            };
            let text = match &sign.kind {
                NodeKind::Scalar(Value::Text(text)) => &**text,
                _ => "",
            };
            let limit = |inclusive| Some(Limit { value: value.clone(), inclusive });
            let (side, limit) = match text {
                "=" if items.len() == 2 => return Some(ValueTest::In(vec![value])),
                ">" | ">=" => (&mut low, limit(text == ">=")),
                "<" | "<=" => (&mut high, limit(text == "<=")),
                "=" => {
                    self.wrong(Code::InvalidExpression, sign.span, "`=` stands alone");
                    return None;
                }
                _ => {
                    self.wrong_hint(
                        Code::InvalidExpression,
                        sign.span,
                        "a comparison should stand here",
                        "write \"=\", \"<\", \"<=\", \">\" or \">=\"",
                    );
                    return None;
                }
            };
            if side.is_some() {
                self.wrong(Code::InvalidExpression, sign.span, "this end of the range is given twice");
                return None;
            }
            *side = limit;
        }
        if let (Some(low), Some(high)) = (&low, &high) {
            let ValueTest::Range(lowest) = Range::within(None, Some(high.clone())) else { return None };
            if !lowest.accepts(&low.value) || low.value == high.value && !low.inclusive {
                self.wrong(Code::InvalidExpression, node.span, "no number is in this range");
                return None;
            }
        }
        Some(Range::within(low, high))
    }
}

/// A type with its article.
fn named(kind: FieldType) -> String {
    format!("{} {}", if kind == FieldType::Integer { "an" } else { "a" }, kind.name())
}

/// The condition, and whether it is exact; appends the paths below the class's fields that it tests.
fn lower(pattern: &Pattern, event: &Fields, places: &mut Vec<Path>) -> (Condition, bool) {
    match pattern {
        Pattern::All(parts) => {
            let (mut conditions, mut exact) = (Vec::with_capacity(parts.len()), true);
            let before = places.len();
            for part in parts {
                let mut of_part = Vec::new();
                let (condition, sure) = lower(part, event, &mut of_part);
                conditions.push(condition);
                // Tests below one list must hold in one item, but tests are independent of each other.
                let met =
                    places[before..].iter().any(|one| of_part.iter().any(|other| share_a_list(one, other, event)));
                exact &= sure && !met;
                places.append(&mut of_part);
            }
            (Condition::All(conditions), exact)
        }
        Pattern::Any(parts) => {
            let lowered: Vec<_> = parts.iter().map(|part| lower(part, event, places)).collect();
            let exact = lowered.iter().all(|(_, exact)| *exact);
            (Condition::Any(lowered.into_iter().map(|(condition, _)| condition).collect()), exact)
        }
        Pattern::Leaf(path, value_tests) => {
            let mut tests: Vec<_> =
                value_tests.iter().map(|value_test| Condition::test(path.clone(), value_test.clone())).collect();
            if path.reach == Reach::One {
                // Null is not a leaf, but not a different value either.
                if value_tests.iter().any(|value_test| matches!(value_test, ValueTest::But(_))) {
                    tests.push(Condition::test(path.clone(), ValueTest::Exists));
                }
                return (Condition::All(tests), true);
            }
            places.push(path.clone());
            (Condition::All(tests), value_tests.len() == 1)
        }
        Pattern::Exists(path) => {
            places.push(path.clone());
            (Condition::test(path.clone(), ValueTest::Exists), true)
        }
        // A missing path is in no item.
        Pattern::Missing(path) => (Condition::test(path.clone(), ValueTest::Missing), true),
    }
}

/// Whether two paths can be below one list of objects.
fn share_a_list(one: &Path, other: &Path, event: &Fields) -> bool {
    let is_list = event.iter().nth(one.field).is_some_and(|field| field.kind == FieldType::List);
    one.field == other.field && (is_list || shared(one, other) > 0)
}

/// Appends the canonical text: equal for patterns that differ only in white space, the order of keys and the escaping
/// of texts.
fn print(node: &Node, out: &mut String) {
    // Writing to a string cannot fail.
    match &node.kind {
        NodeKind::Scalar(value) => {
            let _ = write!(out, "{value:?}");
        }
        NodeKind::List(items) => {
            out.push('[');
            items.iter().for_each(|item| {
                print(item, out);
                out.push(',');
            });
            out.push(']');
        }
        NodeKind::Object(entries) => {
            let mut sorted: Vec<&Entry> = entries.iter().collect();
            sorted.sort_unstable_by_key(|entry| &entry.key);
            out.push('{');
            sorted.into_iter().for_each(|entry| {
                let _ = write!(out, "{:?}:", entry.key);
                print(&entry.value, out);
                out.push(',');
            });
            out.push('}');
        }
    }
}
