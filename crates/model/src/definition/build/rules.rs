//! Rules: their conditions, state clauses and schedules.

use std::{collections::BTreeMap, time::Duration};

use crate::{
    application::{
        Application, EventClass, Missed, Presence, Recurs, Rule, RuleSchedule, RuleState, due_class, due_fields,
    },
    definition::{
        build::{
            builder::{Builder, missing_expression},
            nodes::{boolean, duration, integer, name, part, text},
        },
        document::{Entry, Node, join},
    },
    field::Field,
    id::Name,
    problem::{Code, Problem},
    schedule::Schedule,
    time::Timestamp,
};

impl<'a> Builder<'a> {
    /// Rejects `ordered` on an event class that only feeds digests: a digest cannot keep the order.
    pub(super) fn check_order(&mut self, application: &Application, rules: &BTreeMap<Name, Rule>) {
        let is_digest = |rule: &Rule| {
            application.notifications.get(&rule.notify).is_some_and(|class| class.delivery_policy.digest.is_some())
        };
        for (name, _) in application.events.iter().filter(|(_, class)| class.ordered.is_some()) {
            let mut notifying = rules.values().filter(|rule| rule.on == *name).peekable();
            if notifying.peek().is_some() && notifying.all(is_digest) {
                let text = "has no effect: all notifications of these events are sent in digests";
                let hint = "a digest lists its events in order and has no order among other messages; leave `ordered` out, or `digest`";
                self.problems.push(Problem::new(Code::NoEffect, format!("events.{name}.ordered"), text).hint(hint));
            }
        }
    }

    /// Adds the class of due times, if a rule is scheduled.
    pub(super) fn add_due_class(&mut self, application: &mut Application) {
        let rules = self.root.get("rules").map_or(&[][..], Node::entries);
        if !rules.iter().any(|rule| is_scheduled(&rule.value) || rule.value.get("after").is_some()) {
            return;
        }
        let class = due_class();
        if let Some(own) = self.root.get("events").and_then(|events| events.entry(class.as_str())) {
            let problem =
                Problem::new(Code::ReservedName, "events.due", "is the class of the due times of scheduled rules");
            self.problems.push(problem.hint("choose another name").position(own.line, own.column));
        }
        let description = Some("A scheduled or delayed rule is due.".to_owned());
        let throttle = application.limits.schedule_throttle;
        let due = EventClass { fields: due_fields(), description, throttle, ..EventClass::default() };
        application.events.insert(class, due);
    }

    pub(super) fn rules(&mut self, application: &Application) -> BTreeMap<Name, Rule> {
        let rules = self.root.get("rules").map_or(&[][..], Node::entries);
        let named = rules.iter().filter_map(|entry| Some((entry.key.parse::<Name>().ok()?, entry)));
        named
            .filter_map(|(name, entry)| Some((name, self.rule(&entry.value, &join("rules", &entry.key), application)?)))
            .collect()
    }

    pub(super) fn rule(&mut self, node: &Node, path: &str, application: &Application) -> Option<Rule> {
        let mut named = |key: &str, section: &str, noun: &str| {
            node.get(key).and_then(|given| self.existing(section, noun, given, &join(path, key)))
        };
        let on = match node.get("on").is_none() && is_scheduled(node) {
            true => Some(due_class()),
            false => named("on", "events", "event class"),
        };
        let subscription = named("subscription", "subscriptions", "subscription class");
        let notify = named("notify", "notifications", "notification class");
        let with: Vec<(&Entry, Name)> = node
            .get("with")
            .map_or(&[][..], Node::entries)
            .iter()
            .filter_map(|entry| Some((entry, entry.key.parse().ok()?)))
            .collect();
        let sql = node.get("sql").and_then(|given| self.text_or_file(given, &join(path, "sql")));
        if let (Some(entry), Some(_)) = (node.entry("sql"), node.get("when")) {
            let problem = Problem::new(Code::ConflictingMembers, join(path, "sql"), "is given beside `when`");
            let problem = problem.hint("keep one: a query says itself what matches");
            self.problems.push(problem.position(entry.line, entry.column));
        }
        if let (Some(entry), true) = (node.entry("sql"), is_scheduled(node)) {
            let problem =
                Problem::new(Code::ConflictingMembers, join(path, "sql"), "is given to a rule with a schedule");
            let problem = problem.hint("a query is run over each event batch; write a scheduled rule with `when`");
            self.problems.push(problem.position(entry.line, entry.column));
        }
        if let Some((notify, class)) =
            notify.as_ref().and_then(|name| Some((name, application.notifications.get(name)?)))
        {
            self.unknown_expressions(node, path, &class.fields);
            // The fields of a query are known only after it is prepared.
            if sql.is_none()
                && let Some((on, event)) = on.as_ref().and_then(|name| Some((name, application.events.get(name)?)))
            {
                let given = |field: &Field| with.iter().any(|(_, name)| *name == field.name);
                for field in class.fields.iter().filter(|field| !given(field)) {
                    if let Some(problem) = missing_expression(node, path, field, notify, on, event) {
                        self.problems.push(problem);
                    }
                }
            }
        }
        if on.is_none() && node.get("on").is_none() {
            let hint = "name an event class; only a rule with `every` or `schedule` can do without";
            self.problems.push(node.problem(Code::Required, &join(path, "on"), "is missing").hint(hint));
        }
        let schedule = self.schedule(node, path);
        if let Some(RuleSchedule { recurs: Recurs::Subscription, .. }) = schedule
            && let Some((name, class)) =
                subscription.as_ref().and_then(|name| Some((name, application.subscriptions.get(name)?)))
            && class.schedule == Presence::Forbidden
            && let Some(given) = node.get("schedule")
        {
            let message = format!("follows the schedules of subscriptions, and `{name}` takes none");
            let hint = format!("give `subscriptions.{name}` a `schedule: optional` or `required`");
            self.problems.push(given.problem(Code::MissingCounterpart, &join(path, "schedule"), message).hint(hint));
        }
        let delay = self.delay(node, path, on.as_ref(), application);
        Some(Rule {
            on: on?,
            subscription: subscription?,
            audience: name(node, "audience"),
            when: text(node, "when"),
            sql,
            notify: notify?,
            with: with.into_iter().filter_map(|(entry, name)| Some((name, entry.value.text()?.to_owned()))).collect(),
            description: text(node, "description"),
            enabled: boolean(node, "enabled").unwrap_or(true),
            timeout: duration(node, "timeout").unwrap_or(RULE_TIMEOUT),
            stop_after: integer(node, "stop_after").unwrap_or(STOP_AFTER),
            schedule,
            state: self.rule_state(node, path),
            delay,
        })
    }

    pub(super) fn rule_state(&mut self, rule: &Node, path: &str) -> RuleState {
        let state = RuleState {
            per: text(rule, "per"),
            cooldown: duration(rule, "cooldown"),
            rearm: text(rule, "rearm"),
            changed: text(rule, "changed"),
        };
        if let Some(per) = rule.get("per").filter(|_| !state.is_kept()) {
            let problem = per.problem(Code::NoEffect, &join(path, "per"), "has no effect: the rule has no state");
            self.problems.push(problem.hint("give `cooldown`, `rearm` or `changed` too, or leave it out"));
        }
        if rule.get("every").or(rule.get("schedule")).is_some() {
            for key in ["cooldown", "rearm", "changed"] {
                if let Some(given) = rule.get(key) {
                    let problem =
                        given.problem(Code::ConflictingMembers, &join(path, key), "is not allowed with a schedule");
                    self.problems
                        .push(problem.hint("the schedule decides how often notifications are sent; leave it out"));
                }
            }
        }
        state
    }

    /// The schedule of a rule.
    pub(super) fn schedule(&mut self, node: &Node, path: &str) -> Option<RuleSchedule> {
        let (every, given) = (node.get("every"), node.get("schedule"));
        if let (Some(_), Some(given)) = (every, given) {
            let problem =
                given.problem(Code::ConflictingMembers, &join(path, "schedule"), "is not allowed with `every`");
            self.problems.push(problem.hint("keep one of them"));
        }
        for key in ["missed", "skip_older_than"] {
            if let (None, Some(entry)) = (every.or(given), node.entry(key)) {
                let problem = Problem::new(Code::NoEffect, join(path, key), "has no effect: the rule has no schedule");
                let problem = problem.hint("give `every` or `schedule`, or leave it out");
                self.problems.push(problem.position(entry.line, entry.column));
            }
        }
        let recurs = match given {
            None => Recurs::Fixed(Schedule::every(duration(node, "every")?)),
            Some(given) if given.text() == Some("subscription") => Recurs::Subscription,
            Some(given) => Recurs::Fixed(self.recurrence(given, &join(path, "schedule"))?),
        };
        let missed = match node.get("missed").and_then(Node::text) {
            Some("skip") => Missed::Skip,
            Some("all") => Missed::All,
            _ => Missed::Once,
        };
        Some(RuleSchedule { recurs, missed, skip_older_than: duration(node, "skip_older_than") })
    }

    /// A schedule by its text or its fields; it must have at least one due time.
    pub(super) fn recurrence(&mut self, node: &Node, path: &str) -> Option<Schedule> {
        let field = |key: &str| node.get(key).and_then(Node::text);
        let schedule = match node.text() {
            Some(text) => Schedule::parse(text),
            None => Schedule::new(field("start")?, field("time_zone")?, field("rule")),
        };
        match schedule {
            Ok(schedule) if schedule.next_after(Timestamp(i64::MIN)).is_none() => {
                let problem = node.problem(Code::NeverDue, path, "is never due: the rule has no occurrences");
                self.problems.push(problem.hint("look for dates that do not exist, such as 30 February"));
                None
            }
            Ok(schedule) => Some(schedule),
            Err(problems) => {
                let problem = problems.into_iter().next()?;
                let at = node.problem(problem.code, path, format!("{}{}", part(&problem.path), problem.message));
                self.problems.push(match problem.hint {
                    Some(hint) => at.hint(hint),
                    None => at.hint("or `subscription` for each subscription's own schedule"),
                });
                None
            }
        }
    }
}

/// Whether a rule is evaluated at due times.
pub(super) fn is_scheduled(rule: &Node) -> bool {
    rule.get("schedule").is_some() || rule.get("every").is_some()
}

pub(super) const RULE_TIMEOUT: Duration = Duration::from_secs(10);
pub(super) const STOP_AFTER: u32 = 10;
