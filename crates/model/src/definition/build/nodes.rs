//! Values of nodes.

use std::time::Duration;

use crate::{
    application::{Presence, RetrySchedule, Throttle},
    definition::{
        document::{Kind, Node},
        duration::parse_duration,
        shape::{listed, percent},
    },
    field::FieldType,
    id::Name,
    problem::closest,
};

/// The part of a schedule that a problem is about.
pub(super) fn part(path: &str) -> String {
    if path.is_empty() { String::new() } else { format!("{path}: ") }
}

pub(crate) fn options(node: &Node) -> serde_json::Map<String, serde_json::Value> {
    match node.get("options").map(Node::json) {
        Some(serde_json::Value::Object(options)) => options,
        _ => serde_json::Map::new(),
    }
}

pub(crate) fn retry(node: Option<&Node>) -> RetrySchedule {
    let list = node.and_then(|node| if let Kind::List(items) = &node.kind { Some(items) } else { None });
    let inner = node.and_then(|node| node.get("delays"));
    let inner = inner.and_then(|node| if let Kind::List(items) = &node.kind { Some(items) } else { None });
    let delays = match list.or(inner) {
        Some(items) => items.iter().filter_map(|item| parse_duration(item.text()?).ok()).collect(),
        None => RETRY_SECONDS.map(Duration::from_secs).to_vec(),
    };
    let jitter_percent = node.and_then(|node| node.get("jitter")).and_then(percent).unwrap_or(JITTER_PERCENT);
    RetrySchedule { delays, jitter_percent }
}

pub(super) fn presence(node: &Node, key: &str) -> Presence {
    match node.get(key).and_then(Node::text) {
        Some("optional") => Presence::Optional,
        Some("required") => Presence::Required,
        _ => Presence::Forbidden,
    }
}

pub(super) fn throttle(node: &Node, key: &str) -> Option<Throttle> {
    let throttle = node.get(key)?;
    let notifications = integer(throttle, "notifications").map(u64::from)?;
    Some(Throttle { notifications, per: duration(throttle, "per")? })
}

pub(crate) fn field_type(word: &str) -> Option<FieldType> {
    serde_json::from_value(word.into()).ok()
}

pub(crate) fn did_you_mean(wrong: &str, known: &[&str], section: &str) -> String {
    match closest(wrong, known.iter().copied()) {
        Some(meant) => format!("did you mean `{meant}`?"),
        None if known.is_empty() => format!("there are no {section}"),
        None => format!("give {}", listed(&known[..known.len().min(12)])),
    }
}

pub(crate) fn text(node: &Node, key: &str) -> Option<String> {
    node.get(key)?.text().map(str::to_owned)
}

pub(crate) fn name(node: &Node, key: &str) -> Option<Name> {
    node.get(key)?.text()?.parse().ok()
}

pub(crate) fn boolean(node: &Node, key: &str) -> Option<bool> {
    if let Kind::Boolean(value) = node.get(key)?.kind { Some(value) } else { None }
}

pub(crate) fn integer(node: &Node, key: &str) -> Option<u32> {
    if let Kind::Integer(value) = node.get(key)?.kind { u32::try_from(value).ok() } else { None }
}

pub(crate) fn duration(node: &Node, key: &str) -> Option<Duration> {
    parse_duration(node.get(key)?.text()?).ok()
}

pub(super) const CONCURRENCY: u32 = 10;
pub(super) const RETRY_SECONDS: [u64; 5] = [60, 300, 1_800, 7_200, 43_200];
pub(super) const JITTER_PERCENT: u8 = 10;
