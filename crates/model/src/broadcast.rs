//! Broadcasts: messages of people to an audience. A broadcast is one event with a rule of its own.
//!
//! [`BroadcastDraft::application`] makes the application under which the broadcast is matched and formatted: one event
//! class, one rule, one notification class, and the channels, partials and functions of the application.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json, json};

use crate::{
    application::{Application, EventClass, NotificationClass, Rule, TemplateEngine},
    definition,
    field::{Field, FieldType, Fields, Row},
    filter::Filter,
    id::{BroadcastId, Name, SubscriptionId},
    problem::{Code, Problem},
    time::Timestamp,
    value::Value,
};

/// Largest draft, in bytes of JSON.
pub const DRAFT_BYTES_MAX: usize = 512 << 10;

/// The reserved event class of broadcasts. An application may have a class of its own of this name; the events of
/// broadcasts come from [`broadcast_source`].
pub fn broadcast_class() -> Name {
    "broadcast".parse().expect("`broadcast` is a name")
}

/// The source of the events of broadcasts. The name is reserved.
pub fn broadcast_source() -> Name {
    "broadcasts".parse().expect("`broadcasts` is a name")
}

/// The fields of an event of a broadcast as stored: one part of its audience.
pub fn broadcast_fields() -> Fields {
    let field = |name: &str, about: &str| Field {
        description: Some(about.to_owned()),
        required: true,
        ..Field::new(name.parse().expect("a field's name"), FieldType::Integer)
    };
    Fields::new(vec![
        field("broadcast", "The number of the broadcast."),
        field("subscriptions_after", "The subscription after which this part of the audience begins."),
    ])
}

/// A part of a broadcast's audience: the content of its event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BroadcastPart {
    /// The broadcast.
    pub id: BroadcastId,
    /// Number of the subscription after which the part begins.
    pub after: u64,
}

impl BroadcastPart {
    /// A row of [`broadcast_fields`].
    pub fn row(self) -> Row {
        vec![Value::Integer(self.id.0 as i64), Value::Integer(self.after as i64)]
    }

    /// Reads a row of [`broadcast_fields`].
    pub fn read(row: &[Value]) -> Option<BroadcastPart> {
        let number = |at: usize| match row.get(at) {
            Some(Value::Integer(number)) => u64::try_from(*number).ok(),
            _ => None,
        };
        Some(BroadcastPart { id: BroadcastId(number(0)?), after: number(1)? })
    }
}

/// Recipients of a broadcast who have several matching subscriptions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Per {
    /// One message for each subscriber, by the first of its subscriptions that match.
    #[default]
    Subscriber,
    /// One message for each subscription.
    Subscription,
}

/// A broadcast as written by its sender.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BroadcastDraft {
    /// The application.
    pub application: Name,
    /// Name for readers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// Subscription class of the audience. Optional if the application has only one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subscription: Option<Name>,
    /// Segment of the audience; `None`: all subscribers of the class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub segment: Option<Name>,
    /// The only subscriptions of the audience, at most [`LISTED_MAX`]; `None`: all of the class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subscriptions: Option<BTreeSet<SubscriptionId>>,
    /// The sender's filter: a CEL predicate over `sub`, `subscriber` and `event`, as in a rule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when: Option<String>,
    /// The sender's filter over the parameters of subscriptions, in the dialect `jmespath` or `notifybc`; `when` must
    /// hold too. `notifybc` reads the parameter `data`, and is not applied to a subscription without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subscription_filter: Option<Filter>,
    /// Whether subscribers with several subscriptions receive one message or several.
    #[serde(default)]
    pub per: Per,
    /// Event class whose fields `data` has. `None`: the types follow from the values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_class: Option<Name>,
    /// Data of the message: merge fields, and the event that the filters of subscriptions are evaluated for. Without
    /// data and `event_class` these filters do not apply.
    #[serde(default)]
    pub data: Map<String, Json>,
    /// Notification class with the delivery policy. `None`: the class `broadcast` of the application, or else the
    /// default policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<Name>,
    /// Content by channel and locale, as in a definition. `None`: that of the class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<Json>,
    /// Start; `None`: at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub starts_at: Option<Timestamp>,
    /// After this time nothing is sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
}

/// Maximum number of subscriptions that a draft lists.
pub const LISTED_MAX: usize = 10_000;

/// The application of a broadcast.
#[derive(Debug, Clone, PartialEq)]
pub struct BroadcastApplication {
    /// One event class, one rule, one notification class.
    pub application: Application,
    /// The event, a row of the event class.
    pub event: Row,
    /// Whether the filters of subscriptions apply.
    pub takes_filters: bool,
}

impl BroadcastDraft {
    /// The application under which the broadcast is matched and formatted. The rule is named after its id.
    ///
    /// # Errors
    /// Every problem, with its path in the draft. Expressions and templates are compiled later.
    pub fn application(
        &self,
        application: &Application,
        id: BroadcastId,
    ) -> Result<BroadcastApplication, Vec<Problem>> {
        let mut problems = Vec::new();
        let subscription = self.subscription_class(application, &mut problems);
        let listed = self.subscriptions.as_ref().map_or(0, BTreeSet::len);
        if listed > LISTED_MAX {
            let problem = Problem::new(Code::TooMany, "subscriptions", format!("has {listed}, at most {LISTED_MAX}"))
                .param("given", listed.to_string())
                .param("limit", LISTED_MAX.to_string());
            problems.push(problem.hint("use a filter, or several broadcasts"));
        }
        let fields = self.event_fields(application, &mut problems);
        let notify = self.class.clone().unwrap_or_else(broadcast_class);
        let known = application.notifications.get(&notify).cloned();
        if let (Some(class), None) = (&self.class, &known) {
            problems.push(unknown("class", "notification class", class, application.notifications.keys()));
        }
        let class = match (&self.content, known) {
            (None, Some(class)) => Some(class),
            (None, None) if self.class.is_none() => {
                let problem = Problem::new(Code::Required, "content", "is missing");
                problems.push(problem.hint("give the content, or a notification `class` that has templates"));
                None
            }
            (None, None) => None,
            (Some(content), known) => match self.class_of(application, &fields, content) {
                Ok(parsed) => Some(match known {
                    Some(known) => NotificationClass {
                        // Tokens of NotifyBC read the event, so its values need not be fields of each message.
                        fields: match parsed.content.engine {
                            TemplateEngine::Notifybc => known.fields.clone(),
                            _ => parsed.fields,
                        },
                        content: parsed.content,
                        computed: BTreeMap::new(),
                        ..known
                    },
                    None => parsed,
                }),
                Err(found) => {
                    problems.extend(found);
                    None
                }
            },
        };
        let data = serde_json::to_vec(&self.data).expect("a map is JSON");
        let event = fields.row_from_json(&data).map_err(|found| {
            problems.extend(found.into_iter().map(|problem| {
                let path = if problem.path.is_empty() { "data".to_owned() } else { format!("data.{}", problem.path) };
                Problem { path, line: None, column: None, ..problem }
            }));
        });
        let (Some(subscription), Some(class), Ok(event)) = (subscription, class, event) else { return Err(problems) };
        if !problems.is_empty() {
            return Err(problems);
        }
        let takes_filters = self.event_class.is_some() || !self.data.is_empty();
        let rule_name: Name = id.to_string().parse().expect("the id of a broadcast is a name");
        let mut alone = Application::new(application.name.clone());
        alone.description = application.description.clone();
        alone.attributes = application.attributes.clone();
        alone.partials = application.partials.clone();
        alone.functions = application.functions.clone();
        alone.channels = application.channels.clone();
        alone.pages = application.pages.clone();
        alone.retention = application.retention;
        alone.limits = application.limits;
        alone.events.insert(broadcast_class(), EventClass { fields, ..EventClass::default() });
        let mut subscribed = application.subscriptions[&subscription].clone();
        if !takes_filters {
            subscribed.filter.clear();
        }
        alone.subscriptions.insert(subscription.clone(), subscribed);
        let rule = Rule {
            audience: self.segment.clone(),
            when: self.when.clone(),
            ..Rule::new(broadcast_class(), subscription, notify.clone())
        };
        alone.notifications.insert(notify, class);
        alone.rules.insert(rule_name, rule);
        Ok(BroadcastApplication { application: alone, event, takes_filters })
    }

    fn subscription_class(&self, application: &Application, problems: &mut Vec<Problem>) -> Option<Name> {
        let classes = &application.subscriptions;
        match &self.subscription {
            Some(name) if classes.contains_key(name) => Some(name.clone()),
            Some(name) => {
                problems.push(unknown("subscription", "subscription class", name, classes.keys()));
                None
            }
            None if classes.len() == 1 => classes.keys().next().cloned(),
            None => {
                let names: Vec<String> = classes.keys().map(|name| format!("`{name}`")).collect();
                let problem = Problem::new(Code::Required, "subscription", "is missing");
                problems.push(problem.hint(match names.is_empty() {
                    true => "the application has no subscription class".to_owned(),
                    false => format!("give one of {}", names.join(", ")),
                }));
                None
            }
        }
    }

    /// The declared fields of the data, or those that follow from its values.
    fn event_fields(&self, application: &Application, problems: &mut Vec<Problem>) -> Fields {
        if let Some(name) = &self.event_class {
            return match application.events.get(name) {
                Some(class) => class.fields.clone(),
                None => {
                    problems.push(unknown("event_class", "event class", name, application.events.keys()));
                    Fields::default()
                }
            };
        }
        let mut fields = Vec::new();
        for (name, value) in &self.data {
            let kind = match value {
                Json::Null | Json::String(_) => FieldType::String,
                Json::Bool(_) => FieldType::Boolean,
                Json::Number(number) if number.is_i64() => FieldType::Integer,
                Json::Number(_) => FieldType::Number,
                Json::Array(_) => FieldType::List,
                Json::Object(_) => FieldType::Map,
            };
            match name.parse::<Name>() {
                Ok(name) => fields.push(Field::new(name, kind)),
                Err(error) => {
                    let path = format!("data.{name}");
                    problems.push(
                        Problem::not(Code::InvalidFormat, path, error.expected)
                            .param("format", "name")
                            .param("value", name.clone()),
                    );
                }
            }
        }
        Fields::new(fields)
    }

    /// A notification class with these fields and this content, checked as a part of a definition.
    fn class_of(
        &self,
        application: &Application,
        fields: &Fields,
        content: &Json,
    ) -> Result<NotificationClass, Vec<Problem>> {
        let class = broadcast_class();
        let fields: Map<String, Json> =
            fields.iter().map(|field| (field.name.to_string(), json!(field.kind.name()))).collect();
        // Templates are keyed by channel.
        let channel = json!({"protocol": "file", "options": {"path": "unused"}});
        let channels: Map<String, Json> =
            application.channels.keys().map(|name| (name.to_string(), channel.clone())).collect();
        let text = json!({
            "application": application.name,
            "channels": channels,
            "notifications": {class.as_str(): {"fields": fields, "content": content}},
        });
        let parsed = definition::read(&text.to_string(), &|_| None);
        let mut parsed = parsed.map_err(|problems| problems.into_iter().map(in_draft).collect::<Vec<Problem>>())?;
        Ok(parsed.notifications.remove(&class).expect("the class was given"))
    }
}

/// A problem of the application of a broadcast, with its path in the draft.
pub fn in_draft(problem: Problem) -> Problem {
    let below = |path: &str| {
        let (section, rest) = path.split_once('.')?;
        let (_, rest) = rest.split_once('.').unwrap_or((rest, ""));
        match section {
            "notifications" => Some(match rest.strip_prefix("fields.") {
                Some(field) => format!("data.{field}"),
                None if rest.starts_with("content") => rest.to_owned(),
                None => format!("class.{rest}").trim_end_matches('.').to_owned(),
            }),
            "rules" if rest == "audience" => Some("segment".to_owned()),
            "rules" => Some(rest.to_owned()),
            "events" => Some(rest.strip_prefix("fields.").map_or("data".to_owned(), |field| format!("data.{field}"))),
            _ => None,
        }
    };
    let path = below(&problem.path).unwrap_or_else(|| problem.path.clone());
    // A position is one in the text that was made from the draft, unless it is in an expression or a template.
    let is_within = path.starts_with("when") || path.starts_with("content.templates");
    let (line, column) = if is_within { (problem.line, problem.column) } else { (None, None) };
    Problem { path, line, column, ..problem }
}

fn unknown<'a>(path: &str, noun: &str, name: &Name, known: impl Iterator<Item = &'a Name>) -> Problem {
    let known: Vec<String> = known.map(|name| format!("`{name}`")).collect();
    let problem = Problem::new(Code::UnknownReference, path, format!("there is no {noun} `{name}`"))
        .param("kind", noun)
        .param("value", name.to_string());
    match known.is_empty() {
        true => problem,
        false => problem.hint(format!("there are {}", known.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEFINITION: &str = "
        application: shop
        events: { release: { fields: { title: string, price: number } } }
        subscriptions: { news: { fields: { region: string }, filter: cel } }
        notifications:
          offer:
            fields: { title: string }
            priority: high
            content: { templates: { base: { text: '{{ title }}' } } }
        rules: { offer: { on: release, subscription: news, notify: offer } }
        channels:
          email: { protocol: file, options: { path: mails } }
          sms: { protocol: file, options: { path: texts } }
    ";

    fn check(draft: Json, expected: Result<&[&str], &[&str]>) -> Option<BroadcastApplication> {
        let application = definition::read(DEFINITION, &|_| None).expect("a definition");
        let draft: BroadcastDraft = serde_json::from_value(draft).expect("a draft");
        let made = draft.application(&application, BroadcastId(7));
        let shown = match &made {
            Ok(made) => Ok(made.event.iter().map(|value| format!("{value:?}")).collect::<Vec<_>>()),
            Err(problems) => Err(problems.iter().map(|problem| problem.path.clone()).collect::<Vec<_>>()),
        };
        let expected = expected.map_err(|paths| paths.iter().map(|path| (*path).to_owned()).collect::<Vec<_>>());
        let expected = expected.map(|row| row.iter().map(|value| (*value).to_owned()).collect::<Vec<_>>());
        assert_eq!(shown, expected);
        made.ok()
    }

    #[test]
    fn a_broadcast_is_one_rule_for_one_event() {
        let content = json!({"templates": {
            "base": {"subject": "New: {{ title }}", "text": "It costs {{ price }}."},
            "de": {"text": "Es kostet {{ price }}."},
            "sms": {"text": "{{ title }}"},
            "de/sms": {"text": "{{ title }}!"},
        }});
        let draft = json!({
            "application": "shop", "when": "sub.region == 'east'", "content": content,
            "data": {"title": "Ada's life", "price": 9.5, "tags": ["new"]},
        });
        let made = check(draft, Ok(&["Text(\"Ada's life\")", "Number(9.5)", "List([Text(\"new\")])"]));
        let made = made.expect("an application");
        assert!(made.takes_filters);
        let rule = &made.application.rules[&"bc-7".parse::<Name>().expect("a name")];
        assert_eq!((rule.subscription.as_str(), rule.notify.as_str()), ("news", "broadcast"));
        let class = &made.application.notifications[&broadcast_class()];
        let keys: Vec<&str> = class.content.templates.keys().map(String::as_str).collect();
        assert_eq!(keys, ["", "de", "de/sms", "sms"]);
        assert_eq!(class.fields.len(), 3);
    }

    #[test]
    fn a_class_gives_the_policy_and_an_event_class_the_types() {
        let draft = json!({
            "application": "shop", "class": "offer", "event_class": "release", "data": {"title": "A", "price": 9},
        });
        let made = check(draft, Ok(&["Text(\"A\")", "Number(9.0)"])).expect("an application");
        let class = &made.application.notifications[&"offer".parse::<Name>().expect("a name")];
        assert_eq!(class.delivery_policy.priority, crate::delivery_policy::Priority::High);
        let content = json!({"templates": {"base": {"text": "Closed on Sunday."}}});
        let made = check(json!({"application": "shop", "class": "offer", "content": content}), Ok(&[]));
        let made = made.expect("an application");
        assert!(!made.takes_filters, "a message without data passes every filter");
        let class = &made.application.notifications[&"offer".parse::<Name>().expect("a name")];
        assert_eq!(class.delivery_policy.priority, crate::delivery_policy::Priority::High);
        assert!(class.fields.is_empty());
    }

    #[test]
    fn names_of_broadcasts_are_reserved_in_definitions() {
        let text = DEFINITION.replace("rules: { offer:", "rules: { bc-7:")
            + "  \n        sources: { broadcasts: { kind: http, events: [release] } }";
        let problems = definition::read(&text, &|_| None).expect_err("reserved names");
        let shown: Vec<_> = problems.iter().map(|problem| (problem.code, problem.path.as_str())).collect();
        assert_eq!(shown, [(Code::ReservedName, "rules.bc-7"), (Code::ReservedName, "sources.broadcasts")]);
    }

    #[test]
    fn problems_have_their_path_in_the_draft() {
        check(
            json!({"application": "shop", "subscription": "x", "class": "y", "event_class": "z", "data": {"a b": 1}}),
            Err(&["subscription", "event_class", "class", "data.a b"]),
        );
        check(json!({"application": "shop"}), Err(&["content"]));
        let content = json!({"templates": {"base": {"txt": "x"}}});
        check(
            json!({"application": "shop", "content": content, "data": {"event": 1}}),
            Err(&["data.event", "content.templates.base.txt"]),
        );
        let content = json!({"templates": {"de/fax": {"text": "x"}}});
        check(json!({"application": "shop", "content": content}), Err(&["content.templates.de/fax"]));
    }
}
