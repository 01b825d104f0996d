//! Compiles a definition into rules, queries and formatters.

use std::{collections::BTreeMap, sync::Arc};

use tocsin_formatting::{Formatter, KnownVariables, Part, lint};
use tocsin_matching::{
    contains_ci, distance_km,
    event_key::DelayKeys,
    notify::NotifyFields,
    rule::{RuleExplanation, RuleSet},
    sql::{ChronicleTable, as_queries_see, chronicle_tables, read_undeclared},
};
use tocsin_model::{
    application::{Application, EventClass, Recurs, RuleDelay, RuleState, due_class},
    definition::write_duration,
    id::Name,
    problem::{Code, Problem},
    time::Timestamp,
    value::Value,
};
use tocsin_store::queries::{HostFunction, QuerySet, StateTable};

/// A compiled version of an application.
pub struct Compiled {
    /// The definition.
    pub application: Application,
    /// Its version.
    pub version: u32,
    /// Its rules, compiled together.
    pub rules: Arc<RuleSet>,
    /// Its rules in SQL, checked together.
    pub queries: Arc<QuerySet>,
    /// The enabled rules that are evaluated by a schedule, each compiled by itself.
    pub scheduled: BTreeMap<Name, Arc<RuleSet>>,
    /// The enabled rules that are evaluated for one subscription of an event, each compiled by itself: delayed rules and
    /// rules on lifecycle events.
    pub targeted: BTreeMap<Name, Arc<RuleSet>>,
    /// Correlation keys of the enabled delayed rules.
    pub delays: BTreeMap<Name, DelayKeys>,
    /// Field expressions of each rule's notifications.
    pub notify: BTreeMap<Name, NotifyFields>,
    /// Templates of each notification class.
    pub formatters: BTreeMap<Name, Formatter>,
}

impl Compiled {
    /// Compiles rules and templates.
    ///
    /// # Errors
    /// All problems found, with their paths in the definition.
    pub fn new(application: Application, version: u32) -> Result<Compiled, Vec<Problem>> {
        let mut problems = Vec::new();
        let mut formatters = BTreeMap::new();
        for (name, class) in &application.notifications {
            let known = KnownVariables::of(&application, name);
            match Formatter::compile(&format!("notifications.{name}"), &class.content, &known) {
                Ok(formatter) => {
                    if class.delivery_policy.multicast.is_some() {
                        problems.extend(formatter.personal().into_iter().map(|(key, part, word)| {
                            let path = format!("notifications.{name}.content.templates.{key}.{}", part.name());
                            let message = format!("reads `{word}`, but one message goes to several subscribers");
                            Problem::new(Code::ConflictingMembers, path, message)
                                .hint("leave it out, or leave out `multicast`")
                        }));
                    }
                    metrics::counter!("tocsin_format_compiled_total").increment(1);
                    formatters.insert(name.clone(), formatter);
                }
                Err(found) => problems.extend(found),
            }
        }
        let (queries, found) = check_queries(&application);
        problems.extend(found);
        match compile_rules(&application, &queries) {
            Ok(rules) if problems.is_empty() => {
                let rules = Arc::new(rules);
                let of = |name: &Name| rules.number(name.as_str()).map(|rule| NotifyFields::of(&rules, rule));
                let notify = application.rules.keys().filter_map(|name| Some((name.clone(), of(name)?))).collect();
                let (scheduled, queries) = (scheduled(&application)?, Arc::new(queries));
                let (targeted, delays) = (targeted(&application)?, delay_keys(&application)?);
                Ok(Compiled { application, version, rules, queries, scheduled, targeted, delays, notify, formatters })
            }
            Ok(_) => Err(problems),
            Err(found) => {
                problems.extend(found);
                Err(problems)
            }
        }
    }

    /// Returns an event class by name.
    pub fn event_class(&self, name: &Name) -> Option<&EventClass> {
        self.application.events.get(name)
    }

    /// Warnings about valid but costly definitions, such as a rule that scans.
    pub fn warnings(&self) -> Vec<Problem> {
        let of_rule = |found: RuleExplanation| {
            let path = format!("rules.{}", found.rule);
            found.warnings.into_iter().map(move |warning| Problem::new(Code::Inefficient, path.clone(), warning))
        };
        let mut warnings: Vec<Problem> = self.explain().into_iter().flat_map(of_rule).collect();
        warnings.extend(self.application.rules.keys().filter_map(|name| self.retention_warning(name)));
        warnings.extend(self.formatters.values().flat_map(|formatter| formatter.warnings().iter().cloned()));
        warnings.extend(lint::application(&self.application, &parts_needed));
        warnings
    }

    /// Warns about a rule whose due times are further apart than the retention of events.
    fn retention_warning(&self, name: &Name) -> Option<Problem> {
        let rule = &self.application.rules[name];
        let Recurs::Fixed(schedule) = &rule.schedule.as_ref()?.recurs else { return None };
        let first = schedule.next_after(Timestamp(0))?;
        let interval = schedule.next_after(first.at)?.at.since(first.at);
        let kept = self.application.events_kept(&rule.on);
        (rule.on != due_class() && interval > kept).then(|| {
            let message = format!(
                "runs every {}, and events are kept for {}: the rule does not see older events",
                write_duration(interval),
                write_duration(kept)
            );
            Problem::new(Code::OutsideRetention, format!("rules.{name}.schedule"), message)
                .hint(format!("raise `events.{}.retention`", rule.on))
        })
    }

    /// Whether a rule is on lifecycle events.
    pub fn is_lifecycle(&self, rule: &Name) -> bool {
        self.application.rules.get(rule).is_some_and(|rule| self.application.is_lifecycle(&rule.on))
    }

    /// Explains how each rule is evaluated.
    pub fn explain(&self) -> Vec<RuleExplanation> {
        let mut found = self.rules.explain();
        for explanation in &mut found {
            let alone = self.scheduled.get(&explanation.rule);
            let alone =
                alone.or_else(|| self.targeted.get(&explanation.rule).filter(|_| self.is_lifecycle(&explanation.rule)));
            if let Some(rules) = alone {
                *explanation = rules.explain().swap_remove(0);
            }
            if self.is_lifecycle(&explanation.rule) {
                // It is evaluated for one subscription of each event, so it needs no index.
                explanation.warnings.clear();
                explanation.suppression.push("is evaluated for the subscription of the event only".to_owned());
            }
            if let Some(delay) = self.application.rules.get(&explanation.rule).and_then(|rule| rule.delay.as_ref()) {
                explanation.suppression.push(delay_explained(delay));
            }
            if let Some((plan, warnings)) = self.queries.plan(&explanation.rule) {
                explanation.query = plan.to_vec();
                explanation.warnings.extend_from_slice(warnings);
            }
        }
        found
    }
}

/// A delay as text.
fn delay_explained(delay: &RuleDelay) -> String {
    let after = write_duration(delay.after);
    let classes: Vec<String> = delay.cancel_on.keys().map(|class| format!("`{class}`")).collect();
    match classes.as_slice() {
        [] => format!("notifies {after} after the event, by an evaluation at that time"),
        classes => format!(
            "notifies {after} after the event, by an evaluation at that time, unless cancelled by {}",
            classes.join(" or ")
        ),
    }
}

/// Content parts of which a message of a protocol needs at least one. Other protocols carry the fields as well.
fn parts_needed(protocol: &Name) -> &'static [Part] {
    match protocol.as_str() {
        "smtp" => &[Part::Text, Part::Html],
        _ => &[],
    }
}

/// Checks the SQL rules of an application, which also see its subscribers and chronicles; see [`QuerySet::check`].
pub fn check_queries(application: &Application) -> (QuerySet, Vec<Problem>) {
    let table = |ChronicleTable { name, key, statistics }| StateTable { name, key, says: statistics };
    let states: Vec<StateTable> = chronicle_tables(application).into_iter().map(table).collect();
    QuerySet::check(&as_queries_see(application), &states, QUERY_FUNCTIONS)
}

/// Compiles the rules of an application together with its queries.
///
/// # Errors
/// As [`RuleSet::compile`].
pub fn compile_rules(application: &Application, queries: &QuerySet) -> Result<RuleSet, Vec<Problem>> {
    let (events, subscriptions) = (queries.reads_of_events(), queries.reads_of_subscriptions());
    let read = read_undeclared(application, events, subscriptions, queries.reads_of_states());
    RuleSet::compile_with_queries(application, &|rule| queries.columns(rule), &read)
}

/// Functions that queries may call beside those of the store, with the same meaning as in CEL.
const QUERY_FUNCTIONS: &[HostFunction] = &[
    HostFunction {
        name: "contains_ci",
        arguments: 2,
        call: |arguments| match arguments {
            [Value::Text(text), Value::Text(needle)] => Ok(Value::Boolean(contains_ci(text, needle))),
            _ => Err("takes two texts".to_owned()),
        },
    },
    HostFunction {
        name: "distance_km",
        arguments: 4,
        call: |arguments| {
            let degrees = |at: usize| match arguments.get(at) {
                Some(Value::Number(degrees)) => Ok(*degrees),
                Some(Value::Integer(degrees)) => Ok(*degrees as f64),
                _ => Err("takes four numbers: latitude, longitude, latitude, longitude".to_owned()),
            };
            let distance = distance_km(degrees(0)?, degrees(1)?, degrees(2)?, degrees(3)?);
            distance.map(Value::Number).map_err(|error| error.to_string())
        },
    },
];

/// Compiles each scheduled rule as an unscheduled rule, by which its runs match the events they read.
fn scheduled(application: &Application) -> Result<BTreeMap<Name, Arc<RuleSet>>, Vec<Problem>> {
    let mut sets = BTreeMap::new();
    for (name, rule) in application.rules.iter().filter(|(_, rule)| rule.enabled && rule.schedule.is_some()) {
        let mut alone = application.clone();
        alone.rules.retain(|other, _| other == name);
        if let Some(rule) = alone.rules.get_mut(name) {
            rule.schedule = None;
        }
        if rule.on == due_class()
            && let Some(class) = alone.subscriptions.get_mut(&rule.subscription)
        {
            // The rule is evaluated at due times without events, so the event filters of subscriptions do not apply.
            class.filter.clear();
        }
        sets.insert(name.clone(), Arc::new(RuleSet::compile(&alone)?));
    }
    Ok(sets)
}

/// Compiles each delayed rule, and each rule on lifecycle events, as a rule without delay and state.
fn targeted(application: &Application) -> Result<BTreeMap<Name, Arc<RuleSet>>, Vec<Problem>> {
    let mut sets = BTreeMap::new();
    for (name, rule) in application.rules.iter().filter(|(_, rule)| rule.enabled && rule.schedule.is_none()) {
        let is_lifecycle = application.is_lifecycle(&rule.on);
        if rule.delay.is_none() && !is_lifecycle {
            continue;
        }
        let mut alone = application.clone();
        alone.rules.retain(|other, _| other == name);
        if let Some(rule) = alone.rules.get_mut(name) {
            (rule.delay, rule.state) = (None, RuleState::default());
        }
        if is_lifecycle {
            if let Some(class) = alone.events.get_mut(&rule.on) {
                class.lifecycle = None;
            }
            if let Some(class) = alone.subscriptions.get_mut(&rule.subscription) {
                // Filters of subscriptions are over the events of their class.
                class.filter.clear();
            }
        }
        sets.insert(name.clone(), Arc::new(RuleSet::compile(&alone)?));
    }
    Ok(sets)
}

/// Compiles the correlation keys of the delayed rules.
fn delay_keys(application: &Application) -> Result<BTreeMap<Name, DelayKeys>, Vec<Problem>> {
    let delayed = application.rules.iter().filter(|(_, rule)| rule.enabled && rule.delay.is_some());
    delayed.map(|(name, _)| Ok((name.clone(), DelayKeys::compile(application, name)?))).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_schedule_interval_longer_than_the_retention_of_events_gives_a_warning() {
        const DEFINITION: &str = r#"
            application: notes
            events: { note: { fields: { number: integer } RETENTION } }
            subscriptions: { above: { fields: { number: integer } } }
            notifications: { alert: { content: { templates: { base: { text: x } } } } }
            rules: { weekly: { on: note, subscription: above, notify: alert, when: event.number == sub.number, every: 168h } }
            channels: { log: { protocol: file, options: { path: log } } }
            retention: { finished: 24h }
        "#;
        for (retention, expected) in [
            ("", Some("runs every 7d, and events are kept for 1d: the rule does not see older events")),
            (", retention: 48h", Some("runs every 7d, and events are kept for 2d: the rule does not see older events")),
            (", retention: 168h", None),
        ] {
            let definition = DEFINITION.replace("RETENTION", retention);
            let compiled = crate::compile_text(&definition, 1, &|_| None).expect("it compiles");
            let warnings = compiled.warnings();
            let found = warnings.iter().find(|warning| warning.path == "rules.weekly.schedule");
            assert_eq!(found.map(|warning| warning.message.as_str()), expected, "{retention}");
            assert!(found.is_none_or(|warning| warning.hint.as_deref() == Some("raise `events.note.retention`")));
        }
    }
}
