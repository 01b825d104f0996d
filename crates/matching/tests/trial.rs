//! Evaluation of a rule for display: the tree of its conditions, and its state.

use std::sync::Arc;

use tocsin_matching::{
    eval_value::EvalError,
    oracle::SubscriptionView,
    rule::{RuleNumber, RuleSet},
    shard::{MatchOptions, MatchSink, Run, Shard, Subject},
    state::Suppression,
    trial::{Condition, Junction, Verdict},
};
use tocsin_model::{
    id::{EventBatchId, EventId, Name, SubscriberNumber, SubscriptionId},
    state::StatePage,
    time::Timestamp,
    value::Value,
};

const DEFINITION: &str = r#"
    application: quakes
    events: { quake: { fields: { place: string, magnitude: number, tags: map } } }
    subscriptions: { near: { fields: { place: string, magnitude: number } } }
    notifications: { shaken: { content: { templates: { base: { text: x } } } } }
    rules:
      shaken:
        on: quake
        subscription: near
        notify: shaken
        when: event.magnitude >= sub.magnitude && (event.place == sub.place || !(event.magnitude < 7.0))
      tagged: { on: quake, subscription: near, notify: shaken, when: event.tags.depth > 3 }
      limited: { on: quake, subscription: near, notify: shaken, cooldown: 1h }
    channels: { log: { protocol: file, options: { path: log } } }
"#;

fn rules() -> RuleSet {
    let application = tocsin_model::definition::read(DEFINITION, &|_| None).expect("a definition");
    RuleSet::compile(&application).expect("it compiles")
}

fn view(rules: &RuleSet) -> SubscriptionView {
    let class = "near".parse().expect("a name");
    let values = r#"{"place": "Kobe", "magnitude": 5}"#;
    SubscriptionView::read(rules, SubscriptionId(7), &class, values, None).expect("a subscription")
}

/// The verdicts of a tree, the deciding leaves marked: `all(holds any(fails* fails*))`.
fn shape(condition: &Condition) -> String {
    let mark = if condition.decides { "*" } else { "" };
    match condition.operator {
        None => format!("{}{mark}", condition.verdict.word()),
        Some(operator) => {
            let parts: Vec<String> = condition.parts.iter().map(shape).collect();
            format!("{}:{}({})", operator.word(), condition.verdict.word(), parts.join(" "))
        }
    }
}

#[test]
fn a_condition_shows_its_tree_with_the_deciding_leaves() {
    let rules = rules();
    let number = rules.number("shaken").expect("a rule");
    for (place, magnitude, expected) in [
        ("Kobe", 6.0, ["holds", "any:holds(holds not:fails(holds))"]),
        ("Lima", 6.0, ["holds", "any:fails(fails* not:fails(holds*))"]),
        ("Lima", 8.0, ["holds", "any:holds(fails not:holds(fails))"]),
        ("Kobe", 4.0, ["fails*", "any:holds(holds not:fails(holds))"]),
    ] {
        let event = [Value::from(place), Value::Number(magnitude), Value::Null];
        let trial = rules.try_rule(number, &event, &view(&rules));
        let found: Vec<String> = trial.conditions.iter().map(shape).collect();
        assert_eq!(found, expected, "{place} {magnitude}");
        let matches = trial.conditions.iter().all(|condition| condition.verdict == Verdict::Holds);
        assert_eq!(trial.matches, matches, "{place} {magnitude}");
        let any = &trial.conditions[1];
        assert_eq!(any.operator, Some(Junction::Any));
        assert_eq!(any.text, "event.place == sub.place || !(event.magnitude < 7.0)");
        assert_eq!(any.parts[1].text, "!(event.magnitude < 7.0)");
        assert_eq!(any.parts[0].text, "event.place == sub.place");
        assert_eq!(any.parts[0].values[1], ("sub.place".to_owned(), "\"Kobe\"".to_owned()));
    }
}

#[test]
fn a_condition_without_a_value_decides_as_an_error() {
    let rules = rules();
    let number = rules.number("tagged").expect("a rule");
    let event = [Value::Null, Value::Null, Value::Null];
    let trial = rules.try_rule(number, &event, &view(&rules));
    assert_eq!(shape(&trial.conditions[0]), "error*");
    assert!(trial.conditions[0].error.is_some() && !trial.matches);
}

#[test]
fn the_state_of_a_subscription_is_found_in_its_page_of_any_partition() {
    let rules = Arc::new(rules());
    let number = rules.number("limited").expect("a rule");
    let owner = rules.state_owner(number).expect("it keeps state");
    assert_eq!(rules.state_owner(rules.number("shaken").expect("a rule")), None);
    let event = vec![Value::from("Kobe"), Value::Number(6.0), Value::Null];
    let (near, quake): (Name, Name) = ("near".parse().expect("a name"), "quake".parse().expect("a name"));
    for id in [SubscriptionId(7), SubscriptionId(300)] {
        let mut shard = Shard::new(rules.clone());
        shard.set_part(3, 4);
        let values = r#"{"place": "Kobe", "magnitude": 5}"#;
        let subscriber = SubscriberNumber(1);
        shard.put(Subject { id, subscriber, class: &near, values, channel: None, filter: None }).expect("put");
        shard.begin_states();
        let batch = (EventBatchId(1), Timestamp::from_millis(1_000));
        shard.match_rows(batch, &quake, std::slice::from_ref(&event), MatchOptions::default(), &mut Ignored);
        let mut pages = shard.take_states();
        let other = |name: &str| StatePage { name: name.into(), number: 1, body: Default::default() };
        pages.extend([other("rules.a"), other("rules.limite"), other("rules.limitec"), other("rules.z")]);
        pages.sort();
        // As the journal returns them.
        let (mut found, mut last, mut reads) = (Vec::new(), None::<StatePage>, 0);
        while let Some(cursor) = RuleSet::next_state_cursor(&owner, id, last.as_ref()) {
            let after = |page: &&StatePage| (&page.name, page.number) > (&cursor.name, cursor.number);
            let Some(page) = pages.iter().find(after) else { break };
            found.extend((page.name == owner).then(|| page.clone()));
            last = Some(page.clone());
            reads += 1;
            assert!(reads < 9, "it ends");
        }
        for (at, expected) in [(1_000 + 60_000, Some(Suppression::Cooldown)), (1_000 + 3_600_000, None)] {
            let trial = rules.try_state(number, &event, Timestamp::from_millis(at), id, found.clone());
            let trial = trial.expect("within the step limit").expect("state");
            assert_eq!(trial.notified_at, Some(Timestamp::from_millis(1_000)), "{id}");
            assert_eq!(trial.verdict, Ok(expected), "{id} {at}");
        }
        let other = rules.try_state(number, &event, Timestamp(0), SubscriptionId(id.0 + 1), found);
        assert_eq!(other.expect("evaluated").expect("state").notified_at, None);
    }
}

struct Ignored;

impl MatchSink for Ignored {
    fn run(&mut self, _: Run<'_>) {}
    fn rule_failed(&mut self, _: RuleNumber, _: EventId, _: EvalError) {}
    fn subscriptions_failed(&mut self, _: RuleNumber, _: EventId, _: EvalError, _: u32) {}
}
