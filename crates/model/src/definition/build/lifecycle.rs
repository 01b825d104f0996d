//! Event classes bound to the life of subscriptions, subscribers and devices, and delays of rules.

use std::collections::BTreeMap;

use crate::{
    application::{Application, CancelKey, Rule, RuleDelay, lifecycle_source},
    definition::{
        build::{
            builder::Builder,
            nodes::{did_you_mean, duration, text},
        },
        document::{Kind, Node, join},
    },
    field::Fields,
    id::Name,
    lifecycle::{Lifecycle, LifecycleChange, LifecycleSubject, fields_of},
    problem::{Code, Problem},
};

impl<'a> Builder<'a> {
    /// The binding of an event class, and its fields: the built-in ones with a binding, else its own.
    pub(super) fn bound_fields(&mut self, node: &Node, path: &str) -> (Option<Lifecycle>, Fields) {
        let change = node.get("on").and_then(Node::text).and_then(LifecycleChange::parse);
        let Some(change) = change else {
            if node.get("on").is_none() {
                if node.get("fields").is_none() {
                    let hint = "list the fields of an event, such as `fields: { price: number }`";
                    self.problems.push(node.problem(Code::Required, &join(path, "fields"), "is missing").hint(hint));
                }
                self.no_effect(node, path, "of", "has no effect without `on`");
            }
            return (None, self.fields(node, path));
        };
        if let Some(entry) = node.entry("fields") {
            let problem = Problem::new(Code::ConflictingMembers, join(path, "fields"), "is given beside `on`");
            let hint = "leave it out: the class has built-in fields, such as `subscriber_id` and `changed_at`";
            self.problems.push(problem.hint(hint).position(entry.line, entry.column));
        }
        if change.subject() != LifecycleSubject::Subscription {
            self.no_effect(node, path, "of", "has no effect: subscribers and devices have no subscription class");
            return (Some(Lifecycle { change, of: Vec::new() }), fields_of(change));
        }
        let of = match node.get("of").map(|of| (of, &of.kind)) {
            Some((_, Kind::List(items))) => items.iter().collect(),
            Some((of, _)) => vec![of],
            None => Vec::new(),
        };
        let path = join(path, "of");
        let existing = |class| self.existing("subscriptions", "subscription class", class, &path);
        let of = of.into_iter().filter_map(existing).collect();
        (Some(Lifecycle { change, of }), fields_of(change))
    }

    fn no_effect(&mut self, node: &Node, path: &str, key: &str, message: &str) {
        if let Some(entry) = node.entry(key) {
            let problem = Problem::new(Code::NoEffect, join(path, key), message).hint("leave it out");
            self.problems.push(problem.position(entry.line, entry.column));
        }
    }

    /// The delay of a rule.
    pub(super) fn delay(
        &mut self,
        rule: &Node,
        path: &str,
        on: Option<&Name>,
        application: &Application,
    ) -> Option<RuleDelay> {
        let Some(after) = rule.get("after") else {
            for key in ["key", "cancel_on"] {
                self.no_effect(rule, path, key, "has no effect: the rule sends its notifications at once");
            }
            return None;
        };
        for key in ["every", "schedule"] {
            if rule.get(key).is_some() {
                let problem =
                    after.problem(Code::ConflictingMembers, &join(path, "after"), format!("is given beside `{key}`"));
                self.problems.push(problem.hint("keep one: a scheduled rule notifies at its due times"));
            }
        }
        if rule.get("sql").is_some() {
            let problem = after.problem(Code::ConflictingMembers, &join(path, "after"), "is given beside `sql`");
            let hint = "write `when`: a delayed rule is evaluated again for one subscription when it is due";
            self.problems.push(problem.hint(hint));
        }
        let key = text(rule, "key");
        let cancel_on = self.cancel_on(rule, path, on, key.as_ref(), application);
        let is_compared = cancel_on.values().any(|correlation| *correlation != CancelKey::Subscription);
        // Without a class that could be read, a problem was reported already.
        if !is_compared && (rule.get("cancel_on").is_none() || !cancel_on.is_empty()) {
            self.no_effect(rule, path, "key", "has no effect: no event class of `cancel_on` is compared with it");
        }
        Some(RuleDelay { after: duration(rule, "after")?, key, cancel_on })
    }

    fn cancel_on(
        &mut self,
        rule: &Node,
        path: &str,
        on: Option<&Name>,
        key: Option<&String>,
        application: &Application,
    ) -> BTreeMap<Name, CancelKey> {
        let path = join(path, "cancel_on");
        let Some(given) = rule.get("cancel_on") else { return BTreeMap::new() };
        let named: Vec<(&Node, String, Option<String>)> = match &given.kind {
            Kind::List(items) => items.iter().filter_map(|item| Some((item, item.text()?.to_owned(), None))).collect(),
            _ => match given.text() {
                Some(class) => vec![(given, class.to_owned(), None)],
                None => given
                    .entries()
                    .iter()
                    .map(|entry| (&entry.value, entry.key.clone(), entry.value.text().map(str::to_owned)))
                    .collect(),
            },
        };
        let mut classes = BTreeMap::new();
        for (node, class, expression) in named {
            let Some(name) = self.cancelling_class(node, &path, &class, application) else { continue };
            let is_lifecycle = application.is_lifecycle(&name);
            if Some(&name) == on && is_lifecycle && expression.is_none() {
                let message = format!("names `{name}`, the class of the rule itself");
                let problem = node.problem(Code::ConflictingMembers, &path, message);
                self.problems.push(problem.hint("name the event after which the notification is not needed"));
                continue;
            }
            let correlation = match (expression, key) {
                (None, _) if is_lifecycle => CancelKey::Subscription,
                (Some(_), None) | (None, None) => {
                    let message = format!("names `{name}`, and the rule has no `key` by which its events are compared");
                    let hint = "give `key`, such as `key: event.order`";
                    self.problems.push(node.problem(Code::MissingCounterpart, &path, message).hint(hint));
                    continue;
                }
                (Some(expression), Some(_)) => CancelKey::Expression(expression),
                (None, Some(key)) => CancelKey::Expression(key.clone()),
            };
            classes.insert(name, correlation);
        }
        classes
    }

    /// An event class by its name, or by the lifecycle change to which it is bound.
    fn cancelling_class(&mut self, node: &Node, path: &str, class: &str, application: &Application) -> Option<Name> {
        if let Some(change) = LifecycleChange::parse(class) {
            let bound = |(_, class): &(&Name, &crate::application::EventClass)| {
                class.lifecycle.as_ref().is_some_and(|bound| bound.change == change)
            };
            let found = application.events.iter().find(bound).map(|(name, _)| name.clone());
            if found.is_none() {
                let message = format!("names `{class}`, to which no event class is bound");
                let hint = format!("add an event class, such as `{}: {{ on: {class} }}`", change.word());
                self.problems.push(node.problem(Code::MissingCounterpart, path, message).hint(hint));
            }
            return found;
        }
        let known: Vec<&str> = application.events.keys().map(Name::as_str).collect();
        let found = application.events.keys().find(|name| name.as_str() == class).cloned();
        if found.is_none() {
            let problem = node
                .problem(Code::UnknownReference, path, format!("names the event class `{class}`, which does not exist"))
                .param("kind", "event class")
                .param("value", class);
            self.problems.push(problem.hint(did_you_mean(class, &known, "events")));
        }
        found
    }

    /// Checks that rules on lifecycle events have no clause that needs the index, and that nothing else makes events
    /// of these classes.
    pub(super) fn check_lifecycle(&mut self, application: &Application, rules: &BTreeMap<Name, Rule>) {
        if application.events.values().any(|class| class.lifecycle.is_some()) {
            self.check_source(application, &lifecycle_source(), "is the source of lifecycle events");
        }
        let bound = |class: &Name| application.events.get(class).and_then(|class| class.lifecycle.as_ref());
        for (name, rule) in rules {
            let Some(lifecycle) = bound(&rule.on).filter(|bound| bound.is_targeted()) else { continue };
            let path = format!("rules.{name}");
            if !lifecycle.of.is_empty() && !lifecycle.of.contains(&rule.subscription) {
                let message = format!("is `{}`, and `{}` has events of other classes", rule.subscription, rule.on);
                let hint = format!("name one of {}", named(&lifecycle.of));
                let problem = Problem::new(Code::Mismatch, join(&path, "subscription"), message).hint(hint);
                self.problems.push(problem);
            }
            let node = self.root.get("rules").and_then(|rules| rules.get(name.as_str()));
            for key in ["sql", "every", "schedule", "cooldown", "rearm", "changed"] {
                let Some(entry) = node.and_then(|node| node.entry(key)) else { continue };
                let message = "is not allowed for a rule on the life of subscriptions";
                let problem = Problem::new(Code::NotApplicable, join(&path, key), message);
                let hint = "leave it out: such a rule is evaluated once for the subscription of each event";
                self.problems.push(problem.hint(hint).position(entry.line, entry.column));
            }
        }
        let mut made_elsewhere = |class: &Name, path: String| {
            if bound(class).is_some() {
                let message = format!("names `{class}`, whose events are made by the changes that it is bound to");
                self.problems.push(Problem::new(Code::ReservedName, path, message).hint("name another event class"));
            }
        };
        for (name, collection) in &application.collections {
            for (at, raise) in collection.raises.iter().enumerate() {
                made_elsewhere(&raise.event, format!("collections.{name}.raise[{at}].event"));
            }
        }
        for (name, channel) in &application.channels {
            channel
                .endpoint_event
                .iter()
                .for_each(|event| made_elsewhere(event, format!("channels.{name}.endpoint_event")));
        }
        for (name, source) in &application.sources {
            source.events.iter().for_each(|event| made_elsewhere(event, format!("sources.{name}.events")));
        }
    }
}

fn named(classes: &[Name]) -> String {
    classes.iter().map(|class| format!("`{class}`")).collect::<Vec<_>>().join(", ")
}
