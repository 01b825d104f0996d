//! Builds the collections of an application: their partitions and conflict resolution.

use std::{collections::BTreeMap, time::Duration};

use super::super::{
    document::{Kind, Node, join},
    shape::shown,
};
use crate::{
    collection::{
        BuiltIn, Collection, Combine, Conflicts, Direction, FIELDS_MAX, Identity, Process, Resolver, Share, Track,
    },
    definition::build::{
        builder::Builder,
        nodes::{boolean, duration, name, text},
    },
    field::{FieldType, Fields},
    id::Name,
    problem::{Code, Problem, closest},
    value::Value,
};

/// Default timeout of a conflict resolver.
const PROCESS_TIMEOUT: Duration = Duration::from_secs(5);

impl<'a> Builder<'a> {
    pub(super) fn collection(&mut self, node: &'a Node, path: &str) -> Collection {
        let word = text(node, "built_in");
        if let Some((_, built_in)) = BuiltIn::ALL.into_iter().find(|(known, _)| word.as_deref() == Some(*known)) {
            return self.built_in(node, path, built_in);
        }
        for key in ["fields", "partition"].into_iter().filter(|key| node.get(key).is_none()) {
            let problem = node.problem(Code::Required, &join(path, key), "is required");
            self.problems.push(problem.hint("only a `built_in` collection has none"));
        }
        let fields = self.fields(node, path);
        if fields.len() > FIELDS_MAX {
            let message = format!("has {} fields; at most {FIELDS_MAX} fit", fields.len());
            self.problems.push(node.problem(Code::TooMany, &join(path, "fields"), message).param("limit", FIELDS_MAX));
        }
        if let Some(at) = fields.position("id") {
            let path = join(&join(path, "fields"), fields[at].name.as_str());
            let problem = node.problem(Code::ReservedName, &path, "every row has an id of its own");
            self.problems.push(problem.hint("leave it out, or choose another name"));
        }
        Collection {
            description: text(node, "description"),
            built_in: None,
            schema: node.get("schema").map(Node::json),
            direction: direction(node).unwrap_or_default(),
            partition: self.partition(node, path, &fields),
            may_leave: boolean(node, "may_leave").unwrap_or(false),
            conflicts: self.conflicts(node, path, &fields),
            raises: self.raises(node, path, &fields),
            fields,
        }
    }

    /// A built-in collection.
    fn built_in(&mut self, node: &'a Node, path: &str, built_in: BuiltIn) -> Collection {
        for key in ["fields", "schema", "partition", "may_leave", "conflicts", "raise"] {
            if let Some(given) = node.get(key) {
                let problem =
                    given.problem(Code::ConflictingMembers, &join(path, key), "follows from what is built in");
                self.problems.push(problem.hint("leave it out"));
            }
        }
        let direction = direction(node).unwrap_or(built_in.direction());
        if !direction.is_down() {
            let problem = node.problem(
                Code::NotApplicable,
                &join(path, "direction"),
                "is not possible for a built-in collection",
            );
            self.problems.push(problem.hint("its rows go `down`, or `both` ways"));
        }
        Collection {
            description: text(node, "description"),
            built_in: Some(built_in),
            fields: built_in.fields(),
            schema: None,
            direction,
            partition: BuiltIn::partition(),
            may_leave: false,
            conflicts: Conflicts::default(),
            raises: Vec::new(),
        }
    }

    fn partition(&mut self, node: &'a Node, path: &str, fields: &Fields) -> Vec<Share> {
        let path = join(path, "partition");
        match node.get("partition").map(|partition| &partition.kind) {
            Some(Kind::List(shares)) => {
                let shares = shares.iter().enumerate();
                shares.filter_map(|(at, share)| self.share(share, &format!("{path}[{at}]"), fields)).collect()
            }
            _ => vec![Share::Identity { fields: BTreeMap::new(), rows: BTreeMap::new(), audience: None }],
        }
    }

    fn share(&mut self, node: &'a Node, path: &str, fields: &Fields) -> Option<Share> {
        if let Some(through) = node.get("through") {
            return self.through(node, through, &join(path, "through"), fields);
        }
        let Some(matched) = node.get("match") else {
            let problem = node.problem(Code::Required, path, "says neither `match` nor `through`");
            self.problems.push(problem.hint("`match: { FIELD: subscriber.id }`, or `through: { FIELD: COLLECTION }`"));
            return None;
        };
        let mut identities = BTreeMap::new();
        for entry in matched.entries() {
            let path = join(&join(path, "match"), &entry.key);
            let Some(field) = self.row_field(&entry.value, &path, &entry.key, fields) else { continue };
            match entry.value.text().and_then(identity) {
                Some(identity) => drop(identities.insert(field, identity)),
                None => {
                    let given = shown(entry.value.text().unwrap_or_default());
                    let problem = entry.value.problem(
                        Code::UnknownValue,
                        &path,
                        format!("{given} is not a property of a subscriber"),
                    );
                    self.problems.push(problem.hint("`subscriber.id`, or `attributes.` and the name of an attribute"));
                }
            }
        }
        let rows = node.get("rows").map_or(&[][..], Node::entries).iter().filter_map(|entry| {
            let path = join(&join(path, "rows"), &entry.key);
            let field = self.row_field(&entry.value, &path, &entry.key, fields)?;
            let kind = fields[fields.position(field.as_str())?].kind;
            Some((field, self.accepted_values(&entry.value, &path, kind)))
        });
        let rows = rows.collect();
        Some(Share::Identity { fields: identities, rows, audience: name(node, "audience") })
    }

    fn accepted_values(&mut self, node: &Node, path: &str, kind: FieldType) -> Vec<Value> {
        let given = match &node.kind {
            Kind::List(items) => items.iter().collect(),
            _ => vec![node],
        };
        let values = given.into_iter().filter_map(|node| match kind.accept(node.value()) {
            Ok(value) => Some(value),
            Err(message) => {
                self.problems.push(node.problem(Code::WrongType, path, message));
                None
            }
        });
        values.collect()
    }

    fn through(&mut self, share: &Node, node: &'a Node, path: &str, fields: &Fields) -> Option<Share> {
        if share.get("match").is_some() {
            let problem = share.problem(Code::MissingCounterpart, path, "goes without `match`");
            self.problems.push(problem.hint("write two entries: a row belongs to subscribers selected by any of them"));
        }
        let [entry] = node.entries() else {
            let problem =
                node.problem(Code::Required, path, "should name one field and the collection whose ids it holds");
            self.problems.push(problem.hint("for example `through: { customer: customers }`"));
            return None;
        };
        let path = join(path, &entry.key);
        let field = self.row_field(&entry.value, &path, &entry.key, fields)?;
        let collection: Name = entry.value.text()?.parse().ok()?;
        Some(Share::Through { field, collection })
    }

    /// A field that can be part of a condition on rows.
    fn row_field(&mut self, node: &Node, path: &str, key: &str, fields: &Fields) -> Option<Name> {
        match fields.position(key).map(|at| &fields[at]) {
            Some(field) if matches!(field.kind, FieldType::List | FieldType::Map) => {
                let problem = node.problem(
                    Code::WrongType,
                    path,
                    format!("is a {}; rows cannot be shared by it", field.kind.name()),
                );
                self.problems.push(problem.hint("name a field that holds one value"));
                None
            }
            Some(field) => Some(field.name.clone()),
            None => {
                let problem = node
                    .problem(Code::UnknownReference, path, "is not a field of this collection")
                    .param("kind", "field");
                self.problems.push(match fields.unknown(key).hint {
                    Some(hint) => problem.hint(hint),
                    None => problem,
                });
                None
            }
        }
    }

    fn conflicts(&mut self, node: &'a Node, path: &str, fields: &Fields) -> Conflicts {
        let Some(node) = node.get("conflicts") else { return Conflicts::default() };
        let path = join(path, "conflicts");
        let track = if text(node, "track").as_deref() == Some("row") { Track::Row } else { Track::Column };
        let mut combined = BTreeMap::new();
        for entry in node.get("fields").map_or(&[][..], Node::entries) {
            let path = join(&join(&path, "fields"), &entry.key);
            let Some(at) = fields.position(&entry.key) else {
                let problem = entry
                    .value
                    .problem(Code::UnknownReference, &path, "is not a field of this collection")
                    .param("kind", "field");
                self.problems.push(match fields.unknown(&entry.key).hint {
                    Some(hint) => problem.hint(hint),
                    None => problem,
                });
                continue;
            };
            let (field, Some(combine)) = (&fields[at], entry.value.text().and_then(combine)) else { continue };
            let fits = match combine {
                Combine::Sum => matches!(field.kind, FieldType::Integer | FieldType::Number),
                Combine::Merge => field.kind == FieldType::String,
                Combine::Max | Combine::Min => !matches!(field.kind, FieldType::List | FieldType::Map),
            };
            if fits {
                combined.insert(field.name.clone(), combine);
            } else {
                let message = format!("holds a value of the type {}, which is not put together so", field.kind.name());
                self.problems.push(entry.value.problem(Code::NotApplicable, &path, message));
            }
        }
        let resolver = node.get("resolver").map(|given| self.resolver(given, &join(&path, "resolver")));
        Conflicts { track, resolver: resolver.unwrap_or_default(), fields: combined }
    }

    fn resolver(&mut self, node: &Node, path: &str) -> Resolver {
        match (node.text(), text(node, "predicate"), node.get("process")) {
            (Some("server"), ..) => Resolver::Server,
            (Some("client"), ..) => Resolver::Client,
            (Some("first"), ..) => Resolver::First,
            (Some(_), ..) => Resolver::Last,
            (None, Some(predicate), None) => Resolver::Predicate(predicate),
            (None, None, Some(process)) => {
                let Kind::List(words) = &process.kind else { return Resolver::Last };
                let command: Vec<String> = words.iter().filter_map(Node::text).map(str::to_owned).collect();
                if !command.first().is_some_and(|program| program.starts_with('/')) {
                    let problem = process
                        .problem(
                            Code::InvalidFormat,
                            &join(path, "process"),
                            "does not begin with the absolute path of a program",
                        )
                        .param("format", "path");
                    self.problems.push(problem.hint("give its whole path, such as `[/usr/local/bin/settle, --fast]`"));
                }
                let timeout = duration(node, "timeout").unwrap_or(PROCESS_TIMEOUT);
                Resolver::Process(Process { command, timeout })
            }
            (None, ..) => {
                let problem = node.problem(Code::Required, path, "should say either `predicate` or `process`");
                self.problems.push(problem.hint("or one of `server`, `client`, `first`, `last` in its place"));
                Resolver::Last
            }
        }
    }

    /// Checks that named collections exist and that none is shared through itself.
    pub(super) fn check_collections(&mut self, collections: &BTreeMap<Name, Collection>) {
        let through = |name: &Name| -> Vec<Name> {
            let shares = collections.get(name).map_or(&[][..], |collection| &collection.partition);
            let named = shares.iter().filter_map(|share| match share {
                Share::Through { collection, .. } => Some(collection.clone()),
                Share::Identity { .. } => None,
            });
            named.collect()
        };
        for name in collections.keys() {
            let path = format!("collections.{name}.partition");
            let (mut reached, mut next): (Vec<Name>, Vec<Name>) = (Vec::new(), through(name));
            for other in next.iter().filter(|other| !collections.contains_key(*other)) {
                let problem = Problem::new(
                    Code::UnknownReference,
                    &path,
                    format!("`{other}` is not a collection of this application"),
                )
                .param("kind", "collection")
                .param("value", other.to_string());
                let meant = closest(other.as_str(), collections.keys().map(Name::as_str));
                self.problems.push(match meant {
                    Some(meant) => problem.hint(format!("did you mean `{meant}`?")),
                    None => problem,
                });
            }
            while let Some(other) = next.pop() {
                if other == *name {
                    let problem = Problem::new(Code::Cyclic, &path, "the collection is shared through itself");
                    self.problems.push(problem.hint("one collection of the circle must be shared by `match` alone"));
                    break;
                }
                if !reached.contains(&other) {
                    next.extend(through(&other));
                    reached.push(other);
                }
            }
        }
    }
}

fn direction(node: &Node) -> Option<Direction> {
    match text(node, "direction").as_deref() {
        Some("down") => Some(Direction::Down),
        Some("up") => Some(Direction::Up),
        Some("both") => Some(Direction::Both),
        _ => None,
    }
}

fn identity(text: &str) -> Option<Identity> {
    match text.split_once('.') {
        Some(("subscriber", "id")) => Some(Identity::Id),
        Some(("attributes", attribute)) => attribute.parse().ok().map(Identity::Attribute),
        _ => None,
    }
}

fn combine(word: &str) -> Option<Combine> {
    Some(match word {
        "max" => Combine::Max,
        "min" => Combine::Min,
        "sum" => Combine::Sum,
        "merge" => Combine::Merge,
        _ => return None,
    })
}
