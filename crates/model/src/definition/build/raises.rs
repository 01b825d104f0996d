//! Checks the events raised by row changes: the class exists, and each event fits it.

use std::collections::{BTreeMap, BTreeSet};

use super::super::{
    document::{Kind, Node, join},
    shape::shown,
};
use crate::{
    application::{Application, due_class, row_source},
    collection::{ChangeKind, Collection, Raise, RaisedFieldSource},
    definition::build::{builder::Builder, nodes::name},
    field::{FieldType, Fields},
    id::Name,
    problem::{Code, Problem, closest},
};

impl<'a> Builder<'a> {
    pub(super) fn raises(&mut self, collection: &'a Node, path: &str, fields: &Fields) -> Vec<Raise> {
        let path = join(path, "raise");
        let Some(Kind::List(items)) = collection.get("raise").map(|given| &given.kind) else { return Vec::new() };
        let mut named = BTreeSet::new();
        let mut raises = Vec::new();
        for (at, node) in items.iter().enumerate() {
            let path = format!("{path}[{at}]");
            let on = kinds(node.get("on"));
            for kind in on.iter().filter(|kind| !named.insert(**kind)) {
                let problem =
                    node.problem(Code::Duplicate, &join(&path, "on"), format!("names `{}` twice", kind.word()));
                self.problems.push(problem.hint("a change raises one event; rules can make more of it"));
            }
            let of = match node.get("of").map(|of| (of, &of.kind)) {
                Some((_, Kind::List(of))) => of.iter().filter_map(|of| self.raising_field(of, &path, fields)).collect(),
                Some((of, _)) => self.raising_field(of, &path, fields).into_iter().collect(),
                None => Vec::new(),
            };
            let mut sources = BTreeMap::new();
            for entry in node.get("fields").map_or(&[][..], Node::entries) {
                let path = join(&join(&path, "fields"), &entry.key);
                let text = entry.value.text().unwrap_or_default();
                let known = RaisedFieldSource::parse(text).filter(|source| match source {
                    RaisedFieldSource::Row(field) | RaisedFieldSource::Before(field) => {
                        fields.position(field.as_str()).is_some()
                    }
                    _ => true,
                });
                match (known, entry.key.parse()) {
                    (Some(known), Ok(field)) => drop(sources.insert(field, known)),
                    _ => {
                        let problem = entry.value.problem(
                            Code::UnknownValue,
                            &path,
                            format!("`{}` is not a value of a row change", shown(text)),
                        );
                        let hint = "`id`, `change`, `at`, or `row.` or `before.` and a field of the collection";
                        self.problems.push(problem.hint(hint));
                    }
                }
            }
            let Some(event) = name(node, "event") else { continue };
            raises.push(Raise { on, of, event, fields: sources });
        }
        raises
    }

    fn raising_field(&mut self, node: &Node, path: &str, fields: &Fields) -> Option<Name> {
        let text = node.text()?;
        match fields.position(text) {
            Some(at) => Some(fields[at].name.clone()),
            None => {
                let problem = node
                    .problem(Code::UnknownReference, &join(path, "of"), "is not a field of this collection")
                    .param("kind", "field");
                let meant = fields.unknown(text).hint;
                self.problems.push(meant.into_iter().fold(problem, Problem::hint));
                None
            }
        }
    }

    /// Checks that the classes of raised events exist and that the events fit them.
    pub(super) fn check_raises(&mut self, application: &Application) {
        let mut is_any = false;
        for (name, collection) in &application.collections {
            for (at, raise) in collection.raises.iter().enumerate() {
                is_any = true;
                let path = format!("collections.{name}.raise[{at}]");
                self.check_raise(application, collection, raise, &path);
            }
        }
        if is_any {
            self.check_source(application, &row_source(), "is the source of the events that rows raise");
        }
    }

    fn check_raise(&mut self, application: &Application, collection: &Collection, raise: &Raise, path: &str) {
        let event = &raise.event;
        if *event == due_class() && application.has_schedules() {
            self.problems.push(Problem::new(Code::ReservedName, join(path, "event"), "is raised by schedules alone"));
            return;
        }
        let Some(class) = application.events.get(event) else {
            let problem =
                Problem::new(Code::UnknownReference, join(path, "event"), format!("`{event}` is not an event class"))
                    .param("kind", "event_class")
                    .param("value", event.to_string());
            let meant = closest(event.as_str(), application.events.keys().map(Name::as_str));
            self.problems.push(match meant {
                Some(meant) => problem.hint(format!("did you mean `{meant}`?")),
                None => problem,
            });
            return;
        };
        let fields = join(path, "fields");
        for (name, source) in &raise.fields {
            let path = join(&fields, name.as_str());
            let Some(at) = class.fields.position(name.as_str()) else {
                let problem = Problem::new(Code::UnknownReference, path, format!("is not a field of `{event}`"))
                    .param("kind", "field");
                self.problems.push(class.fields.unknown(name.as_str()).hint.into_iter().fold(problem, Problem::hint));
                continue;
            };
            let of = match source {
                RaisedFieldSource::Row(field) | RaisedFieldSource::Before(field) => {
                    collection.fields.position(field.as_str()).map(|at| collection.fields[at].kind)
                }
                _ => source.kind(),
            };
            let (Some(given), requested) = (of, class.fields[at].kind) else { continue };
            let fits = given == requested || (given, requested) == (FieldType::Integer, FieldType::Number);
            if !fits {
                let message = format!("is a {}, and `{source}` a {}", requested.name(), given.name());
                self.problems.push(Problem::new(Code::WrongType, path, message).hint("name a field of the same type"));
            }
        }
        for field in class.fields.iter().filter(|field| field.required && field.default.is_null()) {
            let surely = raise.fields.get(&field.name).is_some_and(|source| match source {
                RaisedFieldSource::Id | RaisedFieldSource::Change | RaisedFieldSource::At => true,
                RaisedFieldSource::Row(name) => is_required(&collection.fields, name),
                RaisedFieldSource::Before(name) => {
                    is_required(&collection.fields, name) && !raise.on.contains(&ChangeKind::Insert)
                }
            });
            if !surely {
                let path = join(&fields, field.name.as_str());
                let problem =
                    Problem::new(Code::Required, path, format!("is required by `{event}`, and may be empty here"));
                self.problems.push(problem.hint("name a required field of the row, or do not require it of the event"));
            }
        }
    }
}

fn is_required(fields: &Fields, name: &Name) -> bool {
    fields.position(name.as_str()).is_some_and(|at| fields[at].required || !fields[at].default.is_null())
}

/// The named kinds of changes; all if none is named.
fn kinds(node: Option<&Node>) -> Vec<ChangeKind> {
    let words: Vec<&str> = match node.map(|node| (node, &node.kind)) {
        None => return ChangeKind::ALL.to_vec(),
        Some((_, Kind::List(items))) => items.iter().filter_map(Node::text).collect(),
        Some((node, _)) => node.text().into_iter().collect(),
    };
    let known = words.into_iter().filter_map(|word| ChangeKind::ALL.into_iter().find(|kind| kind.word() == word));
    known.collect()
}
