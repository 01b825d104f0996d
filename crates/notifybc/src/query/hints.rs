//! Necessary conditions of a query that an index can answer.

use serde_json::Value;

use super::tree::{Comparison, Test, Where};

/// Values that a matching record has. `None` is no condition; an empty list matches no record.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Hints {
    /// Ids.
    pub id: Option<Vec<String>>,
    /// `serviceName`
    pub service_name: Option<Vec<String>>,
    /// `channel`
    pub channel: Option<Vec<String>>,
    /// `userChannelId`
    pub user_channel_id: Option<Vec<String>>,
    /// `state`
    pub state: Option<Vec<String>>,
    /// `userId`
    pub user_id: Option<Vec<String>>,
    /// `id`, both ends included.
    pub ids: Range,
    /// `created`, as texts of dates, both ends included.
    pub created: Range,
}

/// A range of texts, both ends included.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Range {
    /// The smallest.
    pub from: Option<String>,
    /// The largest.
    pub to: Option<String>,
}

impl Hints {
    fn list(&mut self, path: &str) -> Option<&mut Option<Vec<String>>> {
        Some(match path {
            "id" => &mut self.id,
            "serviceName" => &mut self.service_name,
            "channel" => &mut self.channel,
            "userChannelId" => &mut self.user_channel_id,
            "state" => &mut self.state,
            "userId" => &mut self.user_id,
            _ => return None,
        })
    }
}

impl Range {
    fn narrow(&mut self, comparison: Comparison, text: &str) {
        match comparison {
            Comparison::Greater | Comparison::GreaterOrEqual => {
                if self.from.as_deref().is_none_or(|from| from < text) {
                    self.from = Some(text.to_owned());
                }
            }
            Comparison::Less | Comparison::LessOrEqual => {
                if self.to.as_deref().is_none_or(|to| to > text) {
                    self.to = Some(text.to_owned());
                }
            }
        }
    }
}

/// The conditions that hold for every record that matches.
pub(super) fn hints(condition: &Where) -> Hints {
    let mut hints = Hints::default();
    collect(condition, &mut hints);
    hints
}

fn collect(condition: &Where, hints: &mut Hints) {
    match condition {
        Where::All(parts) => parts.iter().for_each(|part| collect(part, hints)),
        Where::Any(parts) if parts.len() == 1 => collect(&parts[0], hints),
        Where::Property(path, tests) => tests.iter().for_each(|test| collect_test(path.as_str(), test, hints)),
        Where::Without(_, condition) => collect(condition, hints),
        Where::Any(_) | Where::Nor(_) | Where::Text(_) => {}
    }
}

fn collect_test(path: &str, test: &Test, hints: &mut Hints) {
    match test {
        Test::Compare(comparison, Value::String(text)) if path == "id" => hints.ids.narrow(*comparison, text),
        Test::Compare(comparison, Value::String(text)) if path == "created" => {
            hints.created.narrow(*comparison, text);
        }
        Test::Equal(Value::String(text)) if path == "created" => {
            hints.created.narrow(Comparison::GreaterOrEqual, text);
            hints.created.narrow(Comparison::LessOrEqual, text);
        }
        Test::Equal(value) => restrict(path, std::slice::from_ref(value), hints),
        Test::In(values) => restrict(path, values, hints),
        _ => {}
    }
}

/// A list of texts restricts a property that is a text. `null` would also match absent ones, so it restricts nothing.
fn restrict(path: &str, values: &[Value], hints: &mut Hints) {
    let Some(list) = hints.list(path) else { return };
    let Some(texts) = values.iter().map(|value| value.as_str().map(str::to_owned)).collect::<Option<Vec<_>>>() else {
        return;
    };
    match list {
        Some(list) => list.retain(|text| texts.contains(text)),
        None => *list = Some(texts),
    }
}
