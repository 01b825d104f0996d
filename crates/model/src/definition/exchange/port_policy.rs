//! Schedule and message priority of a port.

use std::time::Duration;

use jiff::tz::TimeZone;

use super::{
    super::{
        build::{boolean, did_you_mean, duration, name, text},
        document::{Kind, Node, join},
        language::{DAY, optional, required, seconds},
        shape::Shape,
    },
    Builder, NAMES,
};
use crate::{
    exchange::{Property, SendOrder, ServiceWindow},
    field::FieldType,
    hours::Hours,
    id::Name,
    problem::Code,
};

const AGEING: Duration = seconds(60);

pub(super) static WINDOW: Shape = Shape::Object(&[
    required("hours", &HOURS, "Hours of the day, such as `08:00-18:00 mo-fr`, or a list of them."),
    optional("time_zone", &Shape::Text, "The time zone of these hours; `UTC` if not given."),
]);
static HOURS: Shape = Shape::Either(&[&Shape::Text, &HOURS_LIST]);
static HOURS_LIST: Shape = Shape::List { of: &Shape::Text, most: 50 };
pub(super) static ORDERED: Shape = Shape::Object(&[
    required("by", &NAMES_OR_ONE, "The property, or properties, of the ordering key; `[]`: all messages have one key."),
    optional(
        "stop_on_failure",
        &Shape::Boolean,
        "Whether a suspended message blocks later ones of its key until it is resumed or ended; false if not given.",
    ),
]);
pub(super) static NAMES_OR_ONE: Shape = Shape::Either(&[&Shape::Name, &NAMES]);
pub(super) static PRIORITY: Shape = Shape::Object(&[
    required("by", &Shape::Name, "The property with the priority, 0 to 9; a message without it has 0."),
    optional(
        "ageing",
        &Shape::Duration { least: seconds(1), most: seconds(DAY) },
        "Waiting time that raises the priority by one, so that no message starves; 1m if not given.",
    ),
]);

impl Builder<'_> {
    pub(super) fn window(&mut self, port: &Node, path: &str) -> Option<ServiceWindow> {
        let (node, path) = (port.get("service_window")?, join(path, "service_window"));
        let given = node.get("hours")?;
        let items = match &given.kind {
            Kind::List(items) => items.iter().collect(),
            _ => vec![given],
        };
        let mut hours: Vec<Hours> = Vec::new();
        for item in items {
            match item.text().map(str::parse::<Hours>) {
                Some(Ok(found)) => hours.push(found),
                Some(Err(error)) => {
                    let problem = item
                        .problem(Code::InvalidFormat, &join(&path, "hours"), error.to_string())
                        .param("format", "hours");
                    self.problems.push(problem.hint("give them as `09:00-18:00` or `09:00-18:00 mo-fr`"));
                }
                None => {}
            }
        }
        if let Kind::List(items) = &given.kind
            && items.is_empty()
        {
            let problem = given.problem(Code::Empty, &join(&path, "hours"), "are empty: the port would never work");
            self.problems.push(problem.hint("give hours, or leave the window out"));
        }
        let zone_name = text(node, "time_zone").unwrap_or_else(|| "UTC".to_owned());
        let zone = TimeZone::get(&zone_name);
        if zone.is_err() {
            let place = node.get("time_zone").unwrap_or(node);
            let problem = place
                .problem(Code::InvalidFormat, &join(&path, "time_zone"), format!("`{zone_name}` is not a time zone"))
                .param("format", "time_zone")
                .param("value", zone_name.to_string());
            self.problems.push(problem.hint("give a name of the IANA database, such as `Europe/Vienna`"));
        }
        (!hours.is_empty()).then_some(ServiceWindow { hours, zone: zone.ok()? })
    }

    pub(super) fn order(&mut self, port: &Node, path: &str, properties: &[Property]) -> SendOrder {
        let known: Vec<&str> = properties.iter().map(|property| property.name.as_str()).collect();
        match (port.get("ordered"), port.get("priority")) {
            (None, None) => SendOrder::Due,
            (Some(node), None) => SendOrder::Keyed {
                by: self.names(node, &join(path, "ordered"), "by", &known, "properties"),
                stops: boolean(node, "stop_on_failure").unwrap_or(false),
            },
            (None, Some(node)) => self.priority(node, &join(path, "priority"), properties).unwrap_or_default(),
            (Some(_), Some(node)) => {
                let problem = node.problem(
                    Code::ConflictingMembers,
                    &join(path, "priority"),
                    "cannot be given together with `ordered`",
                );
                self.problems.push(problem.hint("ordered messages have no priority; leave one out"));
                SendOrder::Due
            }
        }
    }

    fn priority(&mut self, node: &Node, path: &str, properties: &[Property]) -> Option<SendOrder> {
        let by: Name = name(node, "by")?;
        let path = join(path, "by");
        match properties.iter().find(|property| property.name == by) {
            None => {
                let known: Vec<&str> = properties.iter().map(|property| property.name.as_str()).collect();
                let problem = node
                    .problem(Code::UnknownReference, &path, format!("`{by}` is not among the properties"))
                    .param("kind", "property")
                    .param("value", by.to_string());
                self.problems.push(problem.hint(did_you_mean(by.as_str(), &known, "properties")));
            }
            Some(property) if property.kind != FieldType::Integer => {
                let problem = node
                    .problem(Code::WrongType, &path, format!("`{by}` is not an integer"))
                    .param("value", by.to_string());
                self.problems.push(problem.hint(format!("declare it as `{by}: {{ type: integer, ... }}`")));
            }
            Some(_) => {}
        }
        Some(SendOrder::Priority { by, ageing: duration(node, "ageing").unwrap_or(AGEING) })
    }
}
