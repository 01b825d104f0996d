//! Difference of two definitions: the effects of applying the new one.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::duration::write_duration;
use crate::{
    application::{
        Application, Channel, ContentTemplates, EventClass, Flow, Limits, NotificationClass, Ordered, Pace, Rate,
        RetrySchedule, Rule, RuleState, Source, Throttle, due_class,
    },
    chronicle::Chronicle,
    delivery_policy::{DeliveryPolicy, Digest, Fallback},
    field::{Field, FieldType, Fields},
    hours::Hours,
    id::Name,
};

/// One effect of an apply.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// Kind of the change.
    pub kind: DifferenceKind,
    /// Its dotted path in the definition.
    pub path: String,
    /// The effect: one sentence, lower case, no full stop.
    pub sentence: String,
    /// The path by which the loss of stored data must be allowed: `subscriptions.nearby.radius_km`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drops: Option<String>,
}

/// Kind of a difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DifferenceKind {
    /// The part is new.
    Added,
    /// The part changes.
    Changed,
    /// The part is removed.
    Removed,
}

/// Effects of applying `new` where `old` runs, in the order of the definition. Empty if nothing changes.
///
/// Stored data is lost if a subscription class, an event class or a chronicle is removed, if a chronicle starts anew,
/// or if a field of a subscription is removed or gets a type that its stored values do not fit. Options of channels
/// may hold secrets, so only their names are shown.
pub fn difference(old: &Application, new: &Application) -> Vec<Difference> {
    let mut found = Differences(Vec::new());
    if old.description != new.description {
        found.changed("description", "the description changes");
    }
    // A rule that became scheduled is reported at the rule.
    let given = |of: &Application| {
        let due = due_class();
        let events = of.events.iter().filter(|(name, _)| **name != due || !of.has_schedules());
        events.map(|(name, class)| (name.clone(), class.clone())).collect::<BTreeMap<_, _>>()
    };
    found.section("events", "event class", &given(old), &given(new), |found, path, old, new| {
        found.description(path, &old.description, &new.description);
        if old.lifecycle != new.lifecycle {
            found.changed(format!("{path}.on"), "the changes of subscriptions that are its events change, from now on");
        }
        found.fields(path, &old.fields, &new.fields, FieldsOf::Events);
        found.chronicles(path, old, new);
        found.retention(path, old.retention, new.retention);
        found.throttle(&format!("{path}.throttle"), old.throttle, new.throttle);
        if old.ordered != new.ordered {
            let shown = |ordered: &Option<Ordered>| match ordered {
                None => "in any order".to_owned(),
                Some(Ordered { by }) if by.is_empty() => "in their order".to_owned(),
                Some(Ordered { by }) => {
                    format!("in their order by {}", by.iter().map(Name::as_str).collect::<Vec<_>>().join(", "))
                }
            };
            let sentence =
                format!("notifications of its events are sent {} (was {})", shown(&new.ordered), shown(&old.ordered));
            found.changed(format!("{path}.ordered"), sentence);
        }
    });
    found.fields("attributes", &old.attributes, &new.attributes, FieldsOf::Attributes);
    found.section(
        "subscriptions",
        "subscription class",
        &old.subscriptions,
        &new.subscriptions,
        |found, path, old, new| {
            found.description(path, &old.description, &new.description);
            found.fields(path, &old.fields, &new.fields, FieldsOf::Subscriptions);
            if old.filter != new.filter {
                let sentence = "the dialects of filters change; existing filters stay";
                found.changed(format!("{path}.filter"), sentence);
            }
            if old.schedule != new.schedule {
                found.changed(format!("{path}.schedule"), "whether subscriptions have a schedule changes");
            }
            let sentence = match (&old.consent, &new.consent) {
                (None, Some(_)) => Some("new subscriptions need a consent; existing ones stay as they are"),
                (Some(_), None) => Some("new subscriptions need no consent; pending ones still do"),
                (old, new) if old != new => Some("the double opt-in changes, for new requests"),
                _ => None,
            };
            if let Some(sentence) = sentence {
                found.changed(format!("{path}.consent"), sentence);
            }
        },
    );
    found.section(
        "notifications",
        "notification class",
        &old.notifications,
        &new.notifications,
        Differences::notification,
    );
    found.section("partials", "partial", &old.partials, &new.partials, |found, path, old, new| {
        if old != new {
            found.changed(path, "the partial changes, and so do the templates that use it");
        }
    });
    found.section("functions", "function", &old.functions, &new.functions, |found, path, old, new| {
        found.description(path, &old.description, &new.description);
        if old.parameters != new.parameters {
            let listed = |parameters: &[Name]| match parameters {
                [] => "nothing".to_owned(),
                names => names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", "),
            };
            let sentence = format!("it takes {} (was {})", listed(&new.parameters), listed(&old.parameters));
            found.changed(format!("{path}.parameters"), sentence);
        }
        if old.expression != new.expression {
            found.changed(format!("{path}.expression"), "its expression changes");
        }
    });
    found.section("rules", "rule", &old.rules, &new.rules, Differences::rule);
    found.section("channels", "channel", &old.channels, &new.channels, Differences::channel);
    found.section("sources", "source", &old.sources, &new.sources, Differences::source);
    found.section("collections", "collection", &old.collections, &new.collections, |found, path, old, new| {
        found.description(path, &old.description, &new.description);
        found.fields(path, &old.fields, &new.fields, FieldsOf::Events);
        if old.built_in != new.built_in {
            found.changed(format!("{path}.built_in"), "its built-in content changes");
        }
        if old.schema != new.schema {
            let sentence = "the schema of its rows changes; existing rows stay as they are";
            found.changed(format!("{path}.schema"), sentence);
        }
        if old.raises != new.raises {
            found.changed(format!("{path}.raise"), "the events raised by changes of its rows change, from now on");
        }
        if old.partition != new.partition {
            found.changed(
                format!("{path}.partition"),
                "the partition of its rows changes; it is computed again for all of them",
            );
        }
        if (old.direction, old.may_leave, &old.conflicts) != (new.direction, new.may_leave, &new.conflicts) {
            found.changed(path, "the replication settings change");
        }
    });
    if old.retention != new.retention {
        let (was, is) = (old.retention, new.retention);
        let sentence = format!(
            "finished work is kept for {} (was {}), answers for {} (was {})",
            write_duration(is.finished),
            write_duration(was.finished),
            write_duration(is.idempotency),
            write_duration(was.idempotency)
        );
        found.changed("retention", sentence);
    }
    found.limits(&old.limits, &new.limits);
    found.0
}

struct Differences(Vec<Difference>);

#[derive(Clone, Copy, PartialEq, Eq)]
enum FieldsOf {
    Events,
    Attributes,
    Subscriptions,
    Notifications,
}

impl FieldsOf {
    fn noun(self) -> &'static str {
        if self == FieldsOf::Attributes { "attribute" } else { "field" }
    }
}

impl Differences {
    fn report(&mut self, kind: DifferenceKind, path: impl Into<String>, sentence: impl Into<String>, drops: bool) {
        let path = path.into();
        let drops = drops.then(|| path.clone());
        self.0.push(Difference { kind, path, sentence: sentence.into(), drops });
    }

    fn changed(&mut self, path: impl Into<String>, sentence: impl Into<String>) {
        self.report(DifferenceKind::Changed, path, sentence, false);
    }

    /// Added, kept and removed entries of a section. `compare` compares those that are kept.
    fn section<T: PartialEq>(
        &mut self,
        section: &str,
        noun: &str,
        old: &BTreeMap<Name, T>,
        new: &BTreeMap<Name, T>,
        compare: impl Fn(&mut Self, &str, &T, &T),
    ) {
        let names: std::collections::BTreeSet<&Name> = old.keys().chain(new.keys()).collect();
        for name in names {
            let path = format!("{section}.{name}");
            match (old.get(name), new.get(name)) {
                (None, _) => self.report(DifferenceKind::Added, path, format!("the {noun} `{name}` is added"), false),
                (Some(_), None) => {
                    let (drops, after) = match section {
                        "subscriptions" => (true, ", and all its subscriptions with it"),
                        "events" => (true, ", and its events that wait to be matched with it"),
                        "functions" => (false, "; filters that call it no longer match"),
                        "channels" => (false, "; devices that use it can no longer be reached"),
                        "sources" => (false, "; it delivers no more events"),
                        "collections" => (false, "; its rows are kept but unreachable, and replicas drop theirs"),
                        _ => (false, ""),
                    };
                    self.report(DifferenceKind::Removed, path, format!("the {noun} `{name}` is removed{after}"), drops);
                }
                (Some(old), Some(new)) if old != new => compare(self, &path, old, new),
                _ => {}
            }
        }
    }

    fn description(&mut self, path: &str, old: &Option<String>, new: &Option<String>) {
        if old != new {
            self.changed(format!("{path}.description"), "the description changes");
        }
    }

    fn fields(&mut self, path: &str, old: &Fields, new: &Fields, of: FieldsOf) {
        let stored = of == FieldsOf::Subscriptions;
        for was in old.iter() {
            let name = &was.name;
            let path = format!("{path}.{name}");
            match new.position(name.as_str()).map(|at| &new[at]) {
                None => {
                    let after = if stored { ", and its value in every subscription with it" } else { "" };
                    self.report(
                        DifferenceKind::Removed,
                        path,
                        format!("the {} `{name}` is removed{after}", of.noun()),
                        stored,
                    );
                }
                Some(is) if is != was => self.field(path, was, is, of),
                Some(_) => {}
            }
        }
        for is in new.iter().filter(|is| old.position(is.name.as_str()).is_none()) {
            let after = match (stored, is.required, is.default.is_null()) {
                (true, true, true) => "; existing subscriptions have no value for it",
                (true, _, false) => "; existing subscriptions take its default",
                _ => "",
            };
            let sentence = format!("the {} `{}` is added{after}", of.noun(), is.name);
            self.report(DifferenceKind::Added, format!("{path}.{}", is.name), sentence, false);
        }
    }

    /// A chronicle cannot be recomputed from removed events, so its loss must be allowed.
    fn chronicles(&mut self, path: &str, old: &EventClass, new: &EventClass) {
        let names: std::collections::BTreeSet<&Name> = old.chronicles.keys().chain(new.chronicles.keys()).collect();
        for name in names {
            let path = format!("{path}.chronicles.{name}");
            let kind_of = |class: &EventClass, field: &Name| {
                class.fields.position(field.as_str()).map(|at| class.fields[at].kind)
            };
            match (old.chronicles.get(name), new.chronicles.get(name)) {
                (None, _) => {
                    let sentence = format!("the chronicle `{name}` is added, and begins with the next event");
                    self.report(DifferenceKind::Added, path, sentence, false);
                }
                (Some(_), None) => {
                    let sentence = format!("the chronicle `{name}` is removed, and all that it holds with it");
                    self.report(DifferenceKind::Removed, path, sentence, true);
                }
                (Some(was), Some(is)) => {
                    let same_keys = was.by.iter().all(|field| kind_of(old, field) == kind_of(new, field));
                    let (described, keys) = (was.description.clone(), was.keys);
                    if !same_keys || *was != (Chronicle { description: described, keys, ..is.clone() }) {
                        let sentence = format!("the chronicle `{name}` starts anew, and its contents are lost");
                        self.report(DifferenceKind::Changed, path, sentence, true);
                        continue;
                    }
                    self.description(&path, &was.description, &is.description);
                    if was.keys != is.keys {
                        let sentence = format!("it keeps {} keys at most (was {})", is.keys, was.keys);
                        self.changed(format!("{path}.keys"), sentence);
                    }
                }
            }
        }
    }

    fn field(&mut self, path: String, was: &Field, is: &Field, of: FieldsOf) {
        let stored = of == FieldsOf::Subscriptions;
        let mut changes = Vec::new();
        let fits = was.kind == is.kind
            || matches!(
                (was.kind, is.kind),
                (FieldType::Integer, FieldType::Number) | (FieldType::Timestamp, FieldType::String)
            );
        if was.kind != is.kind {
            changes.push(format!("is of type {} (was {})", is.kind.name(), was.kind.name()));
        }
        if was.required != is.required {
            changes.push(if is.required { "becomes required" } else { "becomes optional" }.to_owned());
        }
        if was.default != is.default {
            let shown = |value| serde_json::to_string(value).expect("a value is always JSON");
            changes.push(format!("has the default {} (was {})", shown(&is.default), shown(&was.default)));
        }
        if was.description != is.description {
            changes.push("has another description".to_owned());
        }
        let drops = stored && !fits;
        let after = if drops { "; its values in existing subscriptions are lost" } else { "" };
        self.report(
            DifferenceKind::Changed,
            path,
            format!("the {} `{}` {}{after}", of.noun(), is.name, changes.join(", ")),
            drops,
        );
    }

    fn notification(&mut self, path: &str, old: &NotificationClass, new: &NotificationClass) {
        self.description(path, &old.description, &new.description);
        self.fields(path, &old.fields, &new.fields, FieldsOf::Notifications);
        if old.batch_size != new.batch_size {
            self.changed(
                format!("{path}.batch_size"),
                format!("a batch holds up to {} notifications (was {})", new.batch_size, old.batch_size),
            );
        }
        if old.expires_after != new.expires_after {
            let shown = |expiry: Option<_>| expiry.map_or("never".to_owned(), write_duration);
            let sentence = format!("expiry is {} (was {})", shown(new.expires_after), shown(old.expires_after));
            self.changed(format!("{path}.expires_after"), sentence);
        }
        self.retention(path, old.retention, new.retention);
        self.delivery_policy(path, &old.delivery_policy, &new.delivery_policy);
        let names: std::collections::BTreeSet<&Name> = old.computed.keys().chain(new.computed.keys()).collect();
        for name in names {
            let (path, was, is) = (format!("{path}.computed.{name}"), old.computed.get(name), new.computed.get(name));
            match (was, is) {
                (None, _) => self.report(DifferenceKind::Added, path, format!("`{name}` is computed"), false),
                (_, None) => {
                    self.report(DifferenceKind::Removed, path, format!("`{name}` is no longer computed"), false)
                }
                _ if was != is => self.changed(path, format!("`{name}` is computed differently")),
                _ => {}
            }
        }
        self.content(&format!("{path}.content.templates"), &old.content, &new.content);
    }

    fn retention(&mut self, path: &str, old: Option<Duration>, new: Option<Duration>) {
        if old != new {
            let shown =
                |kept: Option<Duration>| kept.map_or("as long as the application says".to_owned(), write_duration);
            let sentence = format!("finished batches are kept {} (was {})", shown(new), shown(old));
            self.changed(format!("{path}.retention"), sentence);
        }
    }

    fn delivery_policy(&mut self, path: &str, old: &DeliveryPolicy, new: &DeliveryPolicy) {
        if old.critical != new.critical {
            let sentence = match new.critical {
                true => "it is sent in quiet hours and against preferences as well",
                false => "quiet hours and preferences apply to it",
            };
            self.changed(format!("{path}.critical"), sentence);
        }
        if old.send_hours != new.send_hours {
            let shown = |hours: Option<Hours>| hours.map_or("at any hour".to_owned(), |hours| format!("at {hours}"));
            let sentence = format!("it is sent {} (was {})", shown(new.send_hours), shown(old.send_hours));
            self.changed(format!("{path}.send_hours"), sentence);
        }
        if old.digest != new.digest {
            let shown = |digest: &Option<Digest>| match digest {
                Some(Digest { by, window, items_max }) => {
                    let by: String = by.iter().map(|field| format!(" by `{field}`")).collect();
                    format!("together{by} ({window}, up to {items_max} shown)")
                }
                None => "each by itself".to_owned(),
            };
            let sentence = format!("they are sent {} (was {})", shown(&new.digest), shown(&old.digest));
            self.changed(format!("{path}.digest"), sentence);
        }
        if old.multicast != new.multicast {
            let shown = |most: Option<u32>| most.map_or("one".to_owned(), |most| format!("up to {most}"));
            let sentence = format!("a message has {} recipients (was {})", shown(new.multicast), shown(old.multicast));
            self.changed(format!("{path}.multicast"), sentence);
        }
        if old.priority != new.priority {
            let sentence = format!("the priority is {} (was {})", new.priority.word(), old.priority.word());
            self.changed(format!("{path}.priority"), sentence);
        }
        if old.fallback != new.fallback {
            let shown = |chain: &[Fallback]| match chain {
                [] => "none".to_owned(),
                chain => chain.iter().map(|step| format!("`{}`", step.channel)).collect::<Vec<_>>().join(", "),
            };
            let sentence = format!("the fallback is {} (was {})", shown(&new.fallback), shown(&old.fallback));
            self.changed(format!("{path}.fallback"), sentence);
        }
    }

    fn content(&mut self, path: &str, old: &ContentTemplates, new: &ContentTemplates) {
        let keys: std::collections::BTreeSet<&String> = old.templates.keys().chain(new.templates.keys()).collect();
        for key in keys {
            let shown = if key.is_empty() { "base" } else { key };
            let path = format!("{path}.{shown}");
            match (old.templates.get(key), new.templates.get(key)) {
                (None, _) => {
                    self.report(DifferenceKind::Added, path, format!("the template `{shown}` is added"), false)
                }
                (Some(_), None) => {
                    self.report(DifferenceKind::Removed, path, format!("the template `{shown}` is removed"), false)
                }
                (Some(old), Some(new)) => {
                    let parts = [
                        ("subject", old.subject != new.subject),
                        ("text", old.text != new.text),
                        ("html", old.html != new.html),
                        ("json", old.json != new.json),
                        ("sms", old.sms != new.sms),
                        ("headers", old.headers != new.headers),
                        ("mail", old.mail != new.mail),
                    ];
                    for (part, _) in parts.into_iter().filter(|(_, changed)| *changed) {
                        self.changed(format!("{path}.{part}"), format!("the {part} of template `{shown}` changes"));
                    }
                }
            }
        }
    }

    fn rule(&mut self, path: &str, old: &Rule, new: &Rule) {
        self.description(path, &old.description, &new.description);
        let names = [
            ("on", &old.on, &new.on),
            ("subscription", &old.subscription, &new.subscription),
            ("notify", &old.notify, &new.notify),
        ];
        for (key, old, new) in names.into_iter().filter(|(_, old, new)| old != new) {
            self.changed(format!("{path}.{key}"), format!("`{key}` is `{new}` (was `{old}`)"));
        }
        if old.audience != new.audience {
            let shown = |audience: &Option<Name>| match audience {
                Some(segment) => format!("the segment `{segment}`"),
                None => "anybody".to_owned(),
            };
            let sentence = format!("it notifies {} (was {})", shown(&new.audience), shown(&old.audience));
            self.changed(format!("{path}.audience"), sentence);
        }
        if old.when != new.when {
            self.changed(format!("{path}.when"), "the predicate changes");
        }
        if old.sql != new.sql {
            self.changed(format!("{path}.sql"), "the query changes");
        }
        if old.schedule != new.schedule {
            let sentence = match (&old.schedule, &new.schedule) {
                (_, None) => "it is evaluated at each event",
                (None, _) => "it is evaluated by a schedule, over the events since its last run",
                _ => "its schedule changes",
            };
            self.changed(format!("{path}.schedule"), sentence);
        }
        if old.delay != new.delay {
            let sentence = match (&old.delay, &new.delay) {
                (_, None) => {
                    "its notifications are sent at once; those that wait are dropped when they are due".to_owned()
                }
                (None, Some(new)) => format!("its notifications are sent after {}", write_duration(new.after)),
                (Some(old), Some(new)) if old.after != new.after => format!(
                    "its notifications are sent after {} (was {}); those that wait keep their due time",
                    write_duration(new.after),
                    write_duration(old.after)
                ),
                _ => "the events that cancel its notifications change, from now on".to_owned(),
            };
            self.changed(format!("{path}.after"), sentence);
        }
        if old.timeout != new.timeout {
            let sentence =
                format!("a firing may take {} (was {})", write_duration(new.timeout), write_duration(old.timeout));
            self.changed(format!("{path}.timeout"), sentence);
        }
        if old.stop_after != new.stop_after {
            let sentence = format!("it is stopped after {} failures (was {})", new.stop_after, old.stop_after);
            self.changed(format!("{path}.stop_after"), sentence);
        }
        self.rule_state(path, &old.state, &new.state);
        let fields: std::collections::BTreeSet<&Name> = old.with.keys().chain(new.with.keys()).collect();
        for field in fields.into_iter().filter(|field| old.with.get(*field) != new.with.get(*field)) {
            self.changed(format!("{path}.with.{field}"), format!("`{field}` is computed differently"));
        }
        if old.enabled != new.enabled {
            self.changed(
                format!("{path}.enabled"),
                if new.enabled { "the rule is enabled" } else { "the rule is disabled" },
            );
        }
    }

    fn rule_state(&mut self, path: &str, old: &RuleState, new: &RuleState) {
        if old.cooldown != new.cooldown {
            let shown = |time: Option<_>| time.map_or("none".to_owned(), write_duration);
            let sentence = format!("the cooldown is {} (was {})", shown(new.cooldown), shown(old.cooldown));
            self.changed(format!("{path}.cooldown"), sentence);
        }
        if old.rearm != new.rearm {
            let sentence = match (&old.rearm, &new.rearm) {
                (_, None) => "matches notify without being re-armed",
                (None, _) => "a match notifies once until it is re-armed",
                _ => "the condition that re-arms changes",
            };
            self.changed(format!("{path}.rearm"), sentence);
        }
        if old.changed != new.changed {
            self.changed(format!("{path}.changed"), "the change condition changes");
        }
        if old.per != new.per {
            self.changed(format!("{path}.per"), "the state key changes, and the rule's state is lost");
        }
    }

    fn throttle(&mut self, path: &str, old: Option<Throttle>, new: Option<Throttle>) {
        if old != new {
            let shown = |throttle: Option<Throttle>| match throttle {
                Some(Throttle { notifications, per }) => format!("{notifications} in {}", write_duration(per)),
                None => "none".to_owned(),
            };
            self.changed(path, format!("the throttle is {} (was {})", shown(new), shown(old)));
        }
    }

    fn limits(&mut self, old: &Limits, new: &Limits) {
        let numbers = [
            ("subscriptions", "subscriptions", old.subscriptions, new.subscriptions),
            ("distinct_filters", "distinct filters", old.distinct_filters, new.distinct_filters),
            ("unindexed_filters", "filters without an index", old.unindexed_filters, new.unindexed_filters),
            (
                "notifications_per_event",
                "notifications of one event",
                old.notifications_per_event,
                new.notifications_per_event,
            ),
            (
                "delayed_notifications",
                "delayed notifications that wait",
                old.delayed_notifications,
                new.delayed_notifications,
            ),
        ];
        for (key, what, old, new) in numbers.into_iter().filter(|(_, _, old, new)| old != new) {
            self.changed(format!("limits.{key}"), format!("at most {new} {what} (was {old})"));
        }
        self.throttle("limits.throttle", old.throttle, new.throttle);
        self.throttle("limits.schedule_throttle", old.schedule_throttle, new.schedule_throttle);
        if old.skip_older_than != new.skip_older_than {
            let shown = |age: Option<_>| age.map_or("never".to_owned(), |age| format!("after {}", write_duration(age)));
            let (is, was) = (shown(new.skip_older_than), shown(old.skip_older_than));
            self.changed("limits.skip_older_than", format!("events that waited are skipped {is} (was {was})"));
        }
        if old.schedule_interval != new.schedule_interval {
            let (is, was) = (write_duration(new.schedule_interval), write_duration(old.schedule_interval));
            let sentence = format!("new schedules of subscriptions are due {is} apart or more (was {was})");
            self.changed("limits.schedule_interval", sentence);
        }
    }

    fn channel(&mut self, path: &str, old: &Channel, new: &Channel) {
        if old.protocol != new.protocol {
            self.changed(
                format!("{path}.protocol"),
                format!("the protocol is `{}` (was `{}`)", new.protocol, old.protocol),
            );
        }
        self.options(path, &old.options, &new.options);
        if old.retry != new.retry {
            self.changed(
                format!("{path}.retry"),
                format!("retries after {} (was {})", schedule(&new.retry), schedule(&old.retry)),
            );
        }
        if old.concurrency != new.concurrency {
            let sentence = format!("at most {} at the same time (was {})", new.concurrency, old.concurrency);
            self.changed(format!("{path}.concurrency"), sentence);
        }
        if old.flow != new.flow {
            self.changed(format!("{path}.flow"), format!("{} (was {})", flow(&new.flow), flow(&old.flow)));
        }
        if old.log != new.log {
            self.changed(format!("{path}.log"), "the delivery log changes");
        }
        if old.lease != new.lease {
            let sentence = format!("a lease is {} (was {})", write_duration(new.lease), write_duration(old.lease));
            self.changed(format!("{path}.lease"), sentence);
        }
        if old.disable_after != new.disable_after {
            let shown = |after: Option<Duration>| match after {
                None => "the usual time".to_owned(),
                Some(Duration::ZERO) => "no time".to_owned(),
                Some(after) => write_duration(after),
            };
            let (now, before) = (shown(new.disable_after), shown(old.disable_after));
            let sentence = format!("devices are disabled after {now} of failures (was {before})");
            self.changed(format!("{path}.disable_after"), sentence);
        }
        if old.endpoint_event != new.endpoint_event {
            let sentence = match &new.endpoint_event {
                Some(event) => format!("events of `{event}` report failing endpoints"),
                None => "no event reports failing endpoints".to_owned(),
            };
            self.changed(format!("{path}.endpoint_event"), sentence);
        }
    }

    fn options(&mut self, path: &str, old: &Options, new: &Options) {
        let options: std::collections::BTreeSet<&String> = old.keys().chain(new.keys()).collect();
        for option in options.into_iter().filter(|option| old.get(*option) != new.get(*option)) {
            self.changed(format!("{path}.options.{option}"), format!("the option `{option}` changes"));
        }
    }

    fn source(&mut self, path: &str, old: &Source, new: &Source) {
        if old.kind != new.kind {
            self.changed(format!("{path}.kind"), format!("the kind is `{}` (was `{}`)", new.kind, old.kind));
        }
        self.options(path, &old.options, &new.options);
        if old.events != new.events {
            let listed = |events: &[Name]| match events {
                [] => "all classes".to_owned(),
                events => events.iter().map(|event| format!("`{event}`")).collect::<Vec<_>>().join(", "),
            };
            let sentence = format!("may submit {} (was {})", listed(&new.events), listed(&old.events));
            self.changed(format!("{path}.events"), sentence);
        }
    }
}

type Options = serde_json::Map<String, serde_json::Value>;

fn flow(flow: &Flow) -> String {
    let rate = |rate: Option<Rate>| {
        rate.map_or("any".to_owned(), |rate| format!("{} in {}", rate.messages, write_duration(rate.per)))
    };
    let most = if flow.pace == Pace::Fixed { "always" } else { "at most" };
    let (whole, each) = (rate(flow.rate), rate(flow.rate_per_destination));
    let pause = match flow.failures_before_pause {
        0 => "no pause".to_owned(),
        failures => format!("a pause after {failures} failures"),
    };
    format!("{most} {} to one destination, rate {whole}, rate to one destination {each}, {pause}", flow.per_destination)
}

fn schedule(retry: &RetrySchedule) -> String {
    if retry.delays.is_empty() {
        return "nothing".to_owned();
    }
    let delays: Vec<String> = retry.delays.iter().map(|delay| write_duration(*delay)).collect();
    format!("{} ± {}%", delays.join(", "), retry.jitter_percent)
}
