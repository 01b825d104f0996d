//! Builds the chronicles of an event class.

use std::collections::BTreeMap;

use super::super::{
    document::{Kind, Node, join},
    shape::shown,
};
use crate::{
    chronicle::{Calendar, Chronicle, Period, Window},
    definition::build::{
        builder::Builder,
        nodes::{duration, integer, text},
    },
    field::{FieldType, Fields},
    id::Name,
    problem::Code,
};

const KEYS: u32 = 100_000;

impl Builder<'_> {
    pub(super) fn chronicles(&mut self, class: &Node, path: &str, fields: &Fields) -> BTreeMap<Name, Chronicle> {
        let path = join(path, "chronicles");
        let entries = class.get("chronicles").map_or(&[][..], Node::entries);
        let named = entries.iter().filter_map(|entry| Some((entry.key.parse::<Name>().ok()?, entry)));
        let built = named.map(|(name, entry)| {
            let path = join(&path, &entry.key);
            (name, self.chronicle(&entry.value, &path, fields))
        });
        built.collect()
    }

    fn chronicle(&mut self, node: &Node, path: &str, fields: &Fields) -> Chronicle {
        Chronicle {
            description: text(node, "description"),
            by: self.key(node, path, fields),
            of: text(node, "of"),
            when: text(node, "when"),
            time: text(node, "time"),
            window: self.window(node, &join(path, "window")),
            reset: text(node, "reset"),
            keys: integer(node, "keys").unwrap_or(KEYS),
        }
    }

    /// The fields that `by` names.
    pub(super) fn key(&mut self, node: &Node, path: &str, fields: &Fields) -> Vec<Name> {
        let path = join(path, "by");
        let given: Vec<(&Node, String)> = match node.get("by").map(|by| (&by.kind, by)) {
            None => Vec::new(),
            Some((Kind::List(items), _)) => {
                items.iter().enumerate().map(|(at, item)| (item, format!("{path}[{at}]"))).collect()
            }
            Some((_, one)) => vec![(one, path)],
        };
        let mut key: Vec<Name> = Vec::new();
        for (node, path) in given {
            let Some(name) = node.text().and_then(|text| text.parse::<Name>().ok()) else { continue };
            match fields.position(name.as_str()).map(|at| fields[at].kind) {
                None => {
                    let unknown = fields.unknown(name.as_str());
                    let problem = node
                        .problem(Code::UnknownReference, &path, format!("`{name}` is not a field of the event class"))
                        .param("kind", "field")
                        .param("value", name.to_string());
                    self.problems.push(match unknown.hint {
                        Some(hint) => problem.hint(hint),
                        None => problem,
                    });
                }
                Some(kind @ (FieldType::List | FieldType::Map)) => {
                    let problem = node
                        .problem(Code::WrongType, &path, format!("`{name}` is a {}; it cannot be a key", kind.name()))
                        .param("value", name.to_string());
                    self.problems.push(problem.hint("name fields that hold one value"));
                }
                Some(_) if key.contains(&name) => {
                    let problem = node
                        .problem(Code::Duplicate, &path, format!("`{name}` is given twice"))
                        .param("value", name.to_string());
                    self.problems.push(problem.hint("name each field once"));
                }
                Some(_) => key.push(name),
            }
        }
        key
    }

    fn window(&mut self, chronicle: &Node, path: &str) -> Window {
        let Some(node) = chronicle.get("window") else { return Window::Always };
        if let Some(sliding) = duration(chronicle, "window") {
            return Window::Sliding(sliding);
        }
        let Some(every) = node.get("every").and_then(Node::text).and_then(Period::named) else { return Window::Always };
        let time_zone = text(node, "time_zone").unwrap_or_else(|| "UTC".to_owned());
        let mut starts = 0;
        if let Some(given) = node.get("starts") {
            let path = join(path, "starts");
            match given.text().and_then(minutes) {
                Some(_) if every == Period::Hour => {
                    let problem = given.problem(Code::NoEffect, &path, "has no effect: the window is an hour");
                    self.problems.push(problem.hint("leave it out"));
                }
                Some(minutes) => starts = minutes,
                None => {
                    let written = shown(given.text().unwrap_or_default());
                    let problem = given
                        .problem(Code::InvalidFormat, &path, format!("`{written}` is not a time of the day"))
                        .param("format", "time_of_day")
                        .param("value", written.to_string());
                    self.problems.push(problem.hint("give hours and minutes in quotes, `\"00:00\"` to `\"23:59\"`"));
                }
            }
        }
        let calendar = Calendar { every, time_zone, starts };
        if let (None, Some(given)) = (calendar.zone(), node.get("time_zone")) {
            let message = format!("`{}` is not a time zone", shown(&calendar.time_zone));
            let problem =
                given.problem(Code::InvalidFormat, &join(path, "time_zone"), message).param("format", "time_zone");
            self.problems.push(problem.hint("give a name of the IANA database, such as `Europe/Vienna`"));
        }
        Window::Calendar(calendar)
    }
}

/// Minutes after midnight of `09:30`.
fn minutes(text: &str) -> Option<u16> {
    let (hours, minutes) = text.split_once(':')?;
    let part = |text: &str, most: u16| {
        let is_digits = text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
        is_digits.then(|| text.parse::<u16>().ok()).flatten().filter(|number| *number <= most)
    };
    Some(part(hours, 23)? * 60 + part(minutes, 59)?)
}
