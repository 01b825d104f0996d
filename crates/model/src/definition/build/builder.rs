//! The builder: sections of named parts, fields, and values that must be parsed.

use std::collections::BTreeMap;

use crate::{
    application::EventClass,
    definition::{
        build::nodes::{boolean, did_you_mean, field_type, text},
        document::{Entry, Kind, Node, join},
        shape::shown,
    },
    field::{Field, FieldType, Fields},
    id::Name,
    problem::{Code, Problem},
    value::Value,
};

impl<'a> Builder<'a> {
    /// The entries of a section by name.
    pub(super) fn section<T>(
        &mut self,
        section: &str,
        build: impl Fn(&Name, &str, &'a Node, &mut Self) -> T,
    ) -> BTreeMap<Name, T> {
        let entries: &'a [Entry] = self.root.get(section).map_or(&[], Node::entries);
        let named = entries.iter().filter_map(|entry| Some((entry.key.parse::<Name>().ok()?, entry)));
        named
            .map(|(name, entry)| (name.clone(), build(&name, &join(section, &entry.key), &entry.value, self)))
            .collect()
    }

    pub(super) fn fields(&mut self, class: &Node, path: &str) -> Fields {
        self.named_fields(class, "fields", &join(path, "fields"))
    }

    pub(super) fn named_fields(&mut self, node: &Node, key: &str, path: &str) -> Fields {
        let entries = node.get(key).map_or(&[][..], Node::entries);
        Fields::new(entries.iter().filter_map(|entry| self.field(entry, &join(path, &entry.key))).collect())
    }

    pub(super) fn field(&mut self, entry: &Entry, path: &str) -> Option<Field> {
        let node = &entry.value;
        let kind = field_type(node.text().or_else(|| node.get("type")?.text())?)?;
        let mut default = Value::Null;
        if let Some(given) = node.get("default") {
            match kind.accept(given.value()) {
                Ok(value) => default = value,
                Err(message) => {
                    let problem = given.problem(Code::WrongType, &join(path, "default"), message);
                    let quotes = kind == FieldType::String
                        && matches!(given.kind, Kind::Boolean(_) | Kind::Integer(_) | Kind::Number(_));
                    self.problems.push(if quotes { problem.hint("put it in quotes") } else { problem });
                }
            }
        }
        Some(Field {
            name: entry.key.parse().ok()?,
            kind,
            required: boolean(node, "required").unwrap_or(false),
            default,
            description: text(node, "description"),
        })
    }

    /// Parses a text with its own syntax.
    pub(super) fn parsed<T: std::str::FromStr<Err: std::fmt::Display>>(
        &mut self,
        node: &Node,
        key: &str,
        path: &str,
        hint: &str,
    ) -> Option<T> {
        let given = node.get(key)?;
        match given.text()?.parse() {
            Ok(value) => Some(value),
            Err(error) => {
                self.problems
                    .push(given.problem(Code::InvalidFormat, &join(path, key), T::Err::to_string(&error)).hint(hint));
                None
            }
        }
    }

    /// The name in a node; reported if the section has no such entry.
    pub(super) fn existing(&mut self, section: &str, noun: &str, node: &Node, path: &str) -> Option<Name> {
        let name: Name = node.text()?.parse().ok()?;
        let known: Vec<&str> =
            self.root.get(section).map_or(&[][..], Node::entries).iter().map(|entry| entry.key.as_str()).collect();
        if !known.contains(&name.as_str()) {
            let problem = node
                .problem(Code::UnknownReference, path, format!("names the {noun} `{name}`, which does not exist"))
                .param("kind", noun)
                .param("value", name.as_str());
            self.problems.push(problem.hint(did_you_mean(name.as_str(), &known, section)));
        }
        Some(name)
    }

    /// Reports expressions for fields that the notification class does not have.
    pub(super) fn unknown_expressions(&mut self, rule: &Node, path: &str, fields: &Fields) {
        for entry in rule.get("with").map_or(&[][..], Node::entries) {
            if fields.position(&entry.key).is_none() {
                let mut problem = fields.unknown(&shown(&entry.key));
                problem.path = join(&join(path, "with"), &problem.path);
                problem.message = "is not a field of the notification class".to_owned();
                self.problems.push(problem.position(entry.line, entry.column));
            }
        }
    }
}

pub(super) struct Builder<'a> {
    pub(super) root: &'a Node,
    pub(super) problems: &'a mut Vec<Problem>,
}

/// The problem of a field without an expression, which takes the event's field of its name.
pub(super) fn missing_expression(
    rule: &Node,
    path: &str,
    field: &Field,
    notify: &Name,
    on: &Name,
    event: &EventClass,
) -> Option<Problem> {
    let name = &field.name;
    let message = match event.fields.position(name.as_str()).map(|at| event.fields[at].kind) {
        Some(kind) if kind == field.kind => return None,
        Some(kind) => format!(
            "has no expression, and the event's field of its name is of type {}, not {}",
            kind.name(),
            field.kind.name()
        ),
        None if !field.required || !field.default.is_null() => return None,
        None => format!("is required by `{notify}` and has no expression, and `{on}` has no field of its name"),
    };
    let at = rule.entry("with").map_or((rule.line, rule.column), |entry| (entry.line, entry.column));
    let problem = Problem::new(Code::WrongType, join(&join(path, "with"), name.as_str()), message);
    Some(problem.hint(format!("say how it is computed: `{name}: \"...\"`")).position(at.0, at.1))
}
