//! Parses a query document of MongoDB into a condition, within bounds.

use regex::RegexBuilder;
use serde_json::Value;

use super::{
    error::{
        CONDITIONS_MAX, DEPTH_MAX, PATH_STEPS_MAX, QUERY_BYTES_MAX, QueryError, REGEX_BYTES_MAX, REGEX_MEMORY_MAX,
        REGEXES_MAX,
    },
    path::Path,
    search::Search,
    tree::{Comparison, Test, Where},
};
use crate::record::{CastError, Collection, Document, Kind, kind_of, truthy};

/// The condition of a query document.
pub(super) fn condition(collection: Collection, value: &Value) -> Result<Where, QueryError> {
    let mut parser = Parser { collection, conditions: 0, regexes: 0, bytes: 0 };
    match value {
        Value::Null => Ok(Where::default()),
        Value::Object(document) => parser.document(document, "", 0),
        _ => Err(QueryError::Operand("where must be an object".to_owned())),
    }
}

/// A number of records.
pub(super) fn count(name: &str, value: &Value) -> Result<Option<u64>, QueryError> {
    let failed = || QueryError::Cast(CastError::of("Number", value, name));
    let number = match value {
        Value::Null => return Ok(None),
        Value::Number(number) => number.as_f64().ok_or_else(failed)?,
        Value::String(text) if text.trim().is_empty() => return Ok(None),
        Value::String(text) => text.trim().parse::<f64>().map_err(|_| failed())?,
        _ => return Err(failed()),
    };
    // A negative limit is the same number of records, in one answer.
    let number = if name == "limit" { number.abs() } else { number };
    if !number.is_finite() || number < 0.0 || number.fract() != 0.0 {
        return Err(failed());
    }
    Ok(Some(number as u64))
}

struct Parser {
    collection: Collection,
    conditions: usize,
    regexes: usize,
    bytes: usize,
}

impl Parser {
    /// Counts a condition or value.
    fn count(&mut self, depth: usize) -> Result<(), QueryError> {
        if depth > DEPTH_MAX {
            return Err(QueryError::TooLarge { limit: DEPTH_MAX, unit: "levels" });
        }
        self.conditions += 1;
        match self.conditions > CONDITIONS_MAX {
            true => Err(QueryError::TooLarge { limit: CONDITIONS_MAX, unit: "conditions" }),
            false => Ok(()),
        }
    }

    /// A query document. `parent` is the path of the list within `$elemMatch`, with a point at its end.
    fn document(&mut self, document: &Document, parent: &str, depth: usize) -> Result<Where, QueryError> {
        self.count(depth)?;
        let mut parts = Vec::with_capacity(document.len());
        for (name, value) in document {
            self.count(depth)?;
            parts.push(match name.as_str() {
                "$and" => Where::All(self.documents(name, value, parent, depth)?),
                "$or" => Where::Any(self.documents(name, value, parent, depth)?),
                "$nor" => Where::Nor(self.documents(name, value, parent, depth)?),
                "$text" if parent.is_empty() => Where::Text(Search::parse(value)?),
                "$comment" => continue,
                name if name.starts_with('$') => return Err(QueryError::Operator(name.to_owned())),
                name => self.property(name, value, parent, depth)?,
            });
        }
        Ok(match parts.len() {
            1 => parts.pop().unwrap_or_default(),
            _ => Where::All(parts),
        })
    }

    fn documents(
        &mut self,
        operator: &str,
        value: &Value,
        parent: &str,
        depth: usize,
    ) -> Result<Vec<Where>, QueryError> {
        let items = list(operator, value)?;
        if items.is_empty() {
            return Err(QueryError::Operand(format!("{operator} must be a nonempty array")));
        }
        let item = |item: &Value| match item {
            Value::Object(document) => self.document(document, parent, depth + 1),
            _ => Err(QueryError::Operand(format!("{operator} entries need to be full objects"))),
        };
        items.iter().map(item).collect()
    }

    fn property(&mut self, name: &str, value: &Value, parent: &str, depth: usize) -> Result<Where, QueryError> {
        let path = Path::parse(name);
        if path.len() > PATH_STEPS_MAX {
            return Err(QueryError::TooLarge { limit: PATH_STEPS_MAX, unit: "levels" });
        }
        let place =
            Property { kind: kind_of(self.collection, &format!("{parent}{name}")), path: format!("{parent}{name}") };
        let tests = match operators(value)? {
            Some(operators) => self.tests(operators, &place, depth + 1)?,
            None => vec![Test::Equal(self.operand(value, &place, depth)?)],
        };
        Ok(Where::Property(path, tests))
    }

    fn tests(&mut self, operators: &Document, place: &Property, depth: usize) -> Result<Vec<Test>, QueryError> {
        let mut tests = Vec::with_capacity(operators.len());
        for (operator, value) in operators {
            self.count(depth)?;
            tests.push(match operator.as_str() {
                "$eq" => Test::Equal(self.operand(value, place, depth)?),
                "$ne" => Test::Not(vec![Test::Equal(self.operand(value, place, depth)?)]),
                "$gt" => Test::Compare(Comparison::Greater, self.operand(value, place, depth)?),
                "$gte" => Test::Compare(Comparison::GreaterOrEqual, self.operand(value, place, depth)?),
                "$lt" => Test::Compare(Comparison::Less, self.operand(value, place, depth)?),
                "$lte" => Test::Compare(Comparison::LessOrEqual, self.operand(value, place, depth)?),
                "$in" => Test::In(self.operands(operator, value, place, depth)?),
                "$nin" => Test::Not(vec![Test::In(self.operands(operator, value, place, depth)?)]),
                "$exists" => Test::Exists(!matches!(value.as_str(), Some("false" | "0" | "no")) && truthy(value)),
                "$regex" => self.regex(value, operators.get("$options"))?,
                "$options" if operators.contains_key("$regex") => continue,
                "$options" => return Err(QueryError::Operand("$options needs a $regex".to_owned())),
                "$size" => match count("$size", value)? {
                    Some(size) => Test::Size(size),
                    None => return Err(QueryError::Operand("$size needs a number".to_owned())),
                },
                "$all" => self.all(value, place, depth)?,
                "$elemMatch" => self.element(value, place, depth)?,
                "$not" => self.not(value, place, depth)?,
                other => return Err(QueryError::Operator(other.to_owned())),
            });
        }
        Ok(tests)
    }

    fn not(&mut self, value: &Value, place: &Property, depth: usize) -> Result<Test, QueryError> {
        match operators(value)? {
            Some(operators) => Ok(Test::Not(self.tests(operators, place, depth + 1)?)),
            None => Err(QueryError::Operand("$not needs a regex or a document".to_owned())),
        }
    }

    fn all(&mut self, value: &Value, place: &Property, depth: usize) -> Result<Test, QueryError> {
        let mut tests = Vec::new();
        for item in list_or_one(value) {
            tests.push(match item.get("$elemMatch") {
                Some(element) => self.element(element, place, depth + 1)?,
                None => Test::Equal(self.operand(item, place, depth)?),
            });
        }
        match tests.is_empty() {
            // Nothing has all of nothing.
            true => Ok(Test::In(Vec::new())),
            false => Ok(Test::All(tests)),
        }
    }

    fn element(&mut self, value: &Value, place: &Property, depth: usize) -> Result<Test, QueryError> {
        let Value::Object(document) = value else {
            return Err(QueryError::Operand("$elemMatch needs an Object".to_owned()));
        };
        let is_logical = |name: &String| matches!(name.as_str(), "$and" | "$or" | "$nor");
        match document.keys().next() {
            Some(name) if name.starts_with('$') && !is_logical(name) => {
                Ok(Test::ElementTests(self.tests(document, place, depth + 1)?))
            }
            _ => Ok(Test::Element(Box::new(self.document(document, &format!("{}.", place.path), depth + 1)?))),
        }
    }

    fn regex(&mut self, pattern: &Value, options: Option<&Value>) -> Result<Test, QueryError> {
        let Value::String(pattern) = pattern else {
            return Err(QueryError::Operand("$regex has to be a string".to_owned()));
        };
        let options = match options {
            None => "",
            Some(Value::String(options)) => options,
            Some(_) => return Err(QueryError::Operand("$options has to be a string".to_owned())),
        };
        self.regexes += 1;
        if self.regexes > REGEXES_MAX {
            return Err(QueryError::TooLarge { limit: REGEXES_MAX, unit: "regular expressions" });
        }
        if pattern.len() > REGEX_BYTES_MAX {
            return Err(QueryError::TooLarge { limit: REGEX_BYTES_MAX, unit: "bytes of a regular expression" });
        }
        let mut builder = RegexBuilder::new(pattern);
        builder.size_limit(REGEX_MEMORY_MAX).dfa_size_limit(REGEX_MEMORY_MAX);
        for option in options.chars() {
            match option {
                'i' => builder.case_insensitive(true),
                'm' => builder.multi_line(true),
                's' => builder.dot_matches_new_line(true),
                'x' => builder.ignore_whitespace(true),
                'u' => &mut builder,
                _ => return Err(QueryError::Operand(format!("invalid flag in regex options: {option}"))),
            };
        }
        let regex = builder.build();
        regex.map(Test::Regex).map_err(|error| QueryError::Operand(format!("Regular expression is invalid: {error}")))
    }

    fn operands(
        &mut self,
        operator: &str,
        value: &Value,
        place: &Property,
        depth: usize,
    ) -> Result<Vec<Value>, QueryError> {
        // A single value in bracket form is a list of one.
        let items = match value {
            Value::Object(_) => return Err(QueryError::Operand(format!("{operator} needs an array"))),
            value => list_or_one(value),
        };
        items.iter().map(|item| self.operand(item, place, depth)).collect()
    }

    /// A value, cast by the type of its property.
    fn operand(&mut self, value: &Value, place: &Property, depth: usize) -> Result<Value, QueryError> {
        self.count(depth)?;
        self.weigh(value, depth)?;
        let Some(kind) = place.kind else { return Ok(value.clone()) };
        match (kind, value) {
            // A list or object is compared as a whole with properties of any type.
            (Kind::Mixed | Kind::BounceMessages, value) => Ok(value.clone()),
            (_, Value::Array(items)) => items
                .iter()
                .map(|item| self.operand(item, place, depth + 1))
                .collect::<Result<_, _>>()
                .map(Value::Array),
            (kind, value) => {
                let name = if place.path == "id" { "_id" } else { &place.path };
                let cast = crate::record::cast_property(kind, value.clone(), name);
                cast.map_err(|error| QueryError::Cast(error.in_model(self.collection)))
            }
        }
    }

    /// Bounds the levels and bytes of a value.
    fn weigh(&mut self, value: &Value, depth: usize) -> Result<(), QueryError> {
        self.count(depth)?;
        match value {
            Value::String(text) => self.bytes += text.len(),
            Value::Array(items) => items.iter().try_for_each(|item| self.weigh(item, depth + 1))?,
            Value::Object(members) => {
                for (name, member) in members {
                    self.bytes += name.len();
                    self.weigh(member, depth + 1)?;
                }
            }
            _ => {}
        }
        match self.bytes > QUERY_BYTES_MAX {
            true => Err(QueryError::TooLarge { limit: QUERY_BYTES_MAX, unit: "bytes" }),
            false => Ok(()),
        }
    }
}

/// A property: its path from the record, and its type.
struct Property {
    kind: Option<Kind>,
    path: String,
}

/// The operators of a value, unless it is a value to compare with.
fn operators(value: &Value) -> Result<Option<&Document>, QueryError> {
    let Value::Object(document) = value else { return Ok(None) };
    match document.keys().next() {
        Some(name) if name.starts_with('$') => Ok(Some(document)),
        _ => Ok(None),
    }
}

fn list<'v>(operator: &str, value: &'v Value) -> Result<&'v [Value], QueryError> {
    match value {
        Value::Array(items) => Ok(items),
        _ => Err(QueryError::Operand(format!("{operator} must be an array"))),
    }
}

fn list_or_one(value: &Value) -> &[Value] {
    match value {
        Value::Array(items) => items,
        value => std::slice::from_ref(value),
    }
}
