//! Rules that read the subscriber: allowed expressions, evaluation by the index, and agreement with the oracle.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use fastrand::Rng;
use tocsin_matching::{
    eval_value::EvalError,
    oracle::{self, SubscriptionView},
    rule::{Memberships, RuleNumber, RuleSet},
    shard::{MatchOptions, MatchSink, Run, Shard, Subject},
    subscriber::SubscriberView,
};
use tocsin_model::{
    definition,
    filter::{Dialect, Filter},
    id::{EventBatchId, EventId, Name, SubscriberId, SubscriberNumber, SubscriptionId},
    subscriber::Profile,
    time::Timestamp,
    value::Value,
};

/// An application whose rules have these predicates, and optional re-arm conditions.
fn compile(rules: &[(&str, Option<&str>)]) -> Result<RuleSet, Vec<String>> {
    compile_class(rules, "{ fields: { s: string, n: number } }")
}

/// The same, with a subscription class.
fn compile_class(rules: &[(&str, Option<&str>)], class: &str) -> Result<RuleSet, Vec<String>> {
    let rules = rules.iter().enumerate().map(|(at, (when, rearm))| {
        let rearm = rearm.map_or_else(String::new, |rearm| format!("rearm: {rearm:?}, per: event.s, "));
        format!("r{at}: {{ on: thing, subscription: interest, notify: alert, {rearm}when: {when:?} }}\n  ")
    });
    let text = format!(
        "
application: directory
events: {{ thing: {{ fields: {{ s: string, n: number, i: integer, at: timestamp, tags: list }} }} }}
attributes:
  region: string
  limit: {{ type: number, default: 3 }}
  age: integer
  since: timestamp
  tags: list
  address: map
subscriptions: {{ interest: {class} }}
notifications:
  alert: {{ fields: {{ s: string }}, content: {{ templates: {{ base: {{ text: 'x' }} }} }} }}
rules:
  {}
channels: {{ log: {{ protocol: file, options: {{ path: log }} }} }}
",
        rules.collect::<String>()
    );
    let application = definition::read(&text, &|_| None).expect("a definition");
    RuleSet::compile(&application).map_err(|found| {
        let shown = |problem: tocsin_model::problem::Problem| {
            let (line, column) = (problem.line.unwrap_or_default(), problem.column.unwrap_or_default());
            format!("{line}:{column} {} ({})", problem.message, problem.hint.unwrap_or_default())
        };
        found.into_iter().map(shown).collect()
    })
}

fn profile(attributes: &[(&str, Value)]) -> Profile {
    let attributes = attributes.iter().map(|(name, value)| ((*name).to_owned(), value.clone()));
    Profile { locale: Some("de-AT".to_owned()), attributes: attributes.collect(), ..Profile::default() }
}

fn view(set: &RuleSet, id: &str, profile: &Profile) -> SubscriberView {
    let id: SubscriberId = id.parse().expect("an id");
    let columns = set.subscriber_columns().map(|columns| columns.row(&id, profile)).unwrap_or_default();
    SubscriberView { memberships: Memberships::default(), columns }
}

#[derive(Default)]
struct MatchCollector(BTreeSet<(u32, RuleNumber, SubscriptionId)>);

impl MatchSink for MatchCollector {
    fn run(&mut self, run: Run<'_>) {
        self.0.extend(run.slots.iter().map(|slot| (run.event_ordinal, run.rule, run.id(*slot))));
    }
    fn rule_failed(&mut self, _: RuleNumber, _: EventId, error: EvalError) {
        panic!("{error}");
    }
    fn subscriptions_failed(&mut self, _: RuleNumber, _: EventId, error: EvalError, _: u32) {
        panic!("{error}");
    }
}

fn found(shard: &mut Shard, batch: u64, events: &[Vec<Value>]) -> MatchCollector {
    let mut found = MatchCollector::default();
    let class: Name = "thing".parse().expect("a name");
    shard.match_rows(
        (EventBatchId(batch), Timestamp(batch as i64)),
        &class,
        events,
        MatchOptions::default(),
        &mut found,
    );
    found
}

fn subject<'a>(id: u64, class: &'a Name, values: &'a str) -> Subject<'a> {
    Subject { id: SubscriptionId(id), subscriber: SubscriberNumber(id), class, values, channel: None, filter: None }
}

fn event(s: &str, n: f64) -> Vec<Value> {
    vec![s.into(), n.into(), Value::Null, Value::Null, Value::List([Value::from("a")].into())]
}

/// Whether the event `{s: "Vienna", n: 4, tags: ["a"]}` matches a subscriber with these attributes, by the index and by
/// the oracle.
fn check(when: &str, attributes: &[(&str, Value)], expected: bool) {
    let set = Arc::new(compile(&[(when, None)]).expect("a rule"));
    let class: Name = "interest".parse().expect("a name");
    let mut shard = Shard::new(set.clone());
    let view = view(&set, "ann", &profile(attributes));
    shard.put_of(subject(1, &class, "{}"), view.clone()).expect("a subscription");
    let event = event("Vienna", 4.0);
    let by_index = !found(&mut shard, 1, std::slice::from_ref(&event)).0.is_empty();
    let subscription_view =
        SubscriptionView::read(&set, SubscriptionId(1), &class, "{}", None).expect("a subscription").of(&set, view);
    let by_oracle = !oracle::matches(&set, &"thing".parse().expect("a name"), &event, &subscription_view).is_empty();
    assert_eq!((by_index, by_oracle), (expected, expected), "{when} with {attributes:?}");
}

#[test]
fn attributes_are_read_with_the_types_that_are_declared() {
    let region = "event.s == subscriber.attributes.region";
    check(region, &[("region", "Vienna".into())], true);
    check(region, &[("region", "Graz".into())], false);
    // Another type, or nothing: as if there were no value, and null equals no text.
    check(region, &[("region", Value::Integer(1))], false);
    check(region, &[], false);
    check("!has(subscriber.attributes.region) && event.s != 'x'", &[("region", Value::Integer(1))], true);
    check("subscriber.attributes.region == null", &[], true);
    // A default replaces a value that is missing or of another type.
    let limit = "event.n >= subscriber.attributes.limit";
    check(limit, &[], true);
    check(limit, &[("limit", "high".into())], true);
    check(limit, &[("limit", Value::Integer(5))], false);
    check(limit, &[("limit", Value::Number(4.0))], true);
    // An ordered column of integers is compared with a number.
    check("event.n > subscriber.attributes.age", &[("age", Value::Integer(3))], true);
    check("event.n >= subscriber.attributes.age", &[("age", Value::Integer(4))], true);
    check("event.n > subscriber.attributes.age", &[("age", Value::Integer(4))], false);
    // An error is no match, in every evaluation.
    check("subscriber.attributes.age >= 18", &[], false);
    check("!(subscriber.attributes.age >= 18)", &[], false);
    check("subscriber.attributes.age >= 18", &[("age", Value::Integer(18))], true);
    check("event.s in subscriber.attributes.tags", &[("tags", Value::List([Value::from("Vienna")].into()))], true);
    check("event.s in subscriber.attributes.tags", &[("tags", "Vienna".into())], false);
    check(
        "event.tags.exists(tag, tag in subscriber.attributes.tags)",
        &[("tags", Value::List(["a".into()].into()))],
        true,
    );
    let address = Value::Map([("city".into(), Value::from("Vienna"))].into());
    check("event.s == subscriber.attributes.address.city", &[("address", address.clone())], true);
    check("has(subscriber.attributes.address.city)", &[("address", address)], true);
    check("event.s == subscriber.attributes['region']", &[("region", "Vienna".into())], true);
    check("subscriber.id == 'ann' && subscriber.locale.startsWith('de')", &[], true);
    check("subscriber.time_zone == null && event.n > 3.0", &[], true);
}

/// Checks whether subscribers with these attributes match the event `{s: "Vienna", n: 4, tags: ["a"]}` by a filter of
/// their own, in the index and in the oracle; and the number of filters in the index.
fn check_filter(filter: &str, people: &[(&[(&str, Value)], bool)], distinct: u64) {
    let set = Arc::new(compile_class(&[("true", None)], "{ filter: cel }").expect("a rule"));
    let class: Name = "interest".parse().expect("a name");
    let filter = Filter::new(Dialect::Cel, filter);
    set.check_filter(&class, &filter).unwrap_or_else(|problems| panic!("{problems:?}"));
    let mut shard = Shard::new(set.clone());
    let event = event("Vienna", 4.0);
    let mut expected = Vec::new();
    for (at, (attributes, alert)) in people.iter().enumerate() {
        let id = SubscriptionId(at as u64);
        let view = view(&set, &format!("p{at}"), &profile(attributes));
        let subject = Subject { filter: Some(&filter), ..subject(id.0, &class, "{}") };
        shard.put_of(subject, view.clone()).expect("a subscription");
        let subscription_view =
            SubscriptionView::read(&set, id, &class, "{}", Some(&filter)).expect("a subscription").of(&set, view);
        let by_oracle =
            !oracle::matches(&set, &"thing".parse().expect("a name"), &event, &subscription_view).is_empty();
        assert_eq!(by_oracle, *alert, "{filter:?} with {attributes:?}");
        expected.extend(alert.then_some(id));
    }
    let by_index: Vec<SubscriptionId> = found(&mut shard, 1, &[event]).0.into_iter().map(|(.., id)| id).collect();
    assert_eq!(by_index, expected, "{filter:?}");
    assert_eq!(shard.index_stats().filters().distinct, distinct, "{filter:?}");
}

#[test]
fn filters_read_the_attributes_of_their_subscriber() {
    let vienna: &[(&str, Value)] = &[("region", "Vienna".into()), ("limit", Value::Number(4.5))];
    let graz: &[(&str, Value)] = &[("region", "Graz".into()), ("tags", Value::List(["a".into()].into()))];
    // Subscribers with equal attributes share a filter.
    let people: &[(&[(&str, Value)], bool)] = &[(vienna, true), (graz, false), (&[], false), (vienna, true)];
    check_filter("event.s == subscriber.attributes.region", people, 3);
    check_filter("event.n < subscriber.attributes.limit", &[(vienna, true), (graz, false), (&[], false)], 2);
    check_filter("event.tags.exists(tag, tag in subscriber.attributes.tags)", &[(vienna, false), (graz, true)], 2);
    check_filter("event.s == 'Vienna' && subscriber.id == 'p1'", &[(vienna, false), (graz, true)], 2);
    check_filter("size(event.s) > 3 && subscriber.locale.startsWith('de')", &[(vienna, true), (graz, true)], 1);
    check_filter("event.n > 3.0", &[(vienna, true), (graz, true)], 1);
}

#[test]
fn a_filter_is_checked_without_its_subscriber() {
    let class: Name = "interest".parse().expect("a name");
    let set = compile_class(&[("true", None)], "{ filter: cel }").expect("a rule");
    let check = |text: &str| set.check_filter(&class, &Filter::new(Dialect::Cel, text));
    let wrong = |text: &str| check(text).expect_err("a wrong filter")[0].to_string();
    assert_eq!(check("event.s == subscriber.attributes.region"), Ok(None), "an index answers it");
    assert!(check("size(event.s) > subscriber.attributes.age").expect("a filter").is_some(), "none does");
    assert!(wrong("event.s == subscriber.attributes.regoin").contains("did you mean `subscriber.attributes.region`?"));
    assert!(wrong("event.n == sub.n").contains("a filter cannot read fields of its subscription"));
    assert!(wrong("region == 'x'").contains("did you mean `subscriber.attributes.region`?"));
}

#[test]
fn comparisons_of_events_with_attributes_use_the_index() {
    let set = compile(&[
        ("event.s == subscriber.attributes.region && event.n >= subscriber.attributes.limit", None),
        ("event.i == subscriber.attributes.age + 1 && subscriber.locale == 'de'", None),
    ]);
    let explained: Vec<String> = set.expect("rules").explain().iter().map(ToString::to_string).collect();
    assert_eq!(
        explained,
        [
            "r0: looks up event.s == subscriber.attributes.region; takes the slice event.n >= subscriber.attributes.limit",
            "r1: of subscriptions with subscriber.locale == 'de'; looks up event.i == subscriber.attributes.age + 1",
        ]
    );
    assert!(compile(&[("event.s == sub.s", None)]).expect("a rule").subscriber_columns().is_none());
}

#[test]
fn unknown_names_are_rejected_with_a_hint() {
    let wrong = |when: &str| compile(&[(when, None)]).expect_err("a wrong rule").join("; ");
    assert_eq!(
        wrong("event.s == subscriber.attributes.regoin"),
        "1:12 the application declares no attribute `regoin` (did you mean `subscriber.attributes.region`?)"
    );
    assert_eq!(
        wrong("event.s == subscriber.attributes.shoe_size"),
        "1:12 the application declares no attribute `shoe_size` (say what it holds at the top of the definition: \
         `attributes: { shoe_size: string }`)"
    );
    assert_eq!(
        wrong("event.s == subscriber.region"),
        "1:12 a subscriber has no field `region` (did you mean `subscriber.attributes.region`?)"
    );
    assert_eq!(
        wrong("event.s == subscriber.name"),
        "1:12 a subscriber has no field `name` (it has `id`, `locale`, `time_zone` and `attributes`)"
    );
    assert_eq!(
        wrong("subscriber.attributes == null"),
        "1:1 `subscriber.attributes` names a group, not a value (name one of them, such as \
         `subscriber.attributes.region`)"
    );
    assert_eq!(
        wrong("region == event.s"),
        "1:1 `region` is not known here (did you mean `subscriber.attributes.region`?)"
    );
    assert!(wrong("event.n >= subscriber.attributes.region").contains("they cannot be compared"));
    assert!(wrong("subscriber == null").contains("names a group"));
}

#[test]
fn rearming_uses_the_present_attributes() {
    let set = Arc::new(
        compile(&[("event.n >= subscriber.attributes.limit", Some("event.n < subscriber.attributes.limit"))])
            .expect("a rule"),
    );
    let class: Name = "interest".parse().expect("a name");
    let mut shard = Shard::new(set.clone());
    let limited = |limit: f64| view(&set, "ann", &profile(&[("limit", Value::Number(limit))]));
    shard.put_of(subject(1, &class, "{}"), limited(5.0)).expect("a subscription");
    let alert = |shard: &mut Shard, batch: u64, n: f64| found(shard, batch, &[event("x", n)]).0.len();
    assert_eq!(alert(&mut shard, 1, 6.0), 1);
    assert_eq!(alert(&mut shard, 2, 7.0), 0, "it waits");
    assert_eq!(alert(&mut shard, 3, 5.5), 0, "5.5 is not below 5");
    shard.put_of(subject(1, &class, "{}"), limited(6.0)).expect("a subscription");
    assert_eq!(alert(&mut shard, 4, 5.5), 0, "but it is below 6, and arms it again");
    assert_eq!(alert(&mut shard, 5, 6.5), 1);
}

fn case(seed: u64) {
    const CONJUNCTS: [&str; 14] = [
        "event.s == subscriber.attributes.region",
        "event.s in subscriber.attributes.tags",
        "event.n >= subscriber.attributes.limit",
        "event.n < subscriber.attributes.limit * 2.0",
        "subscriber.attributes.limit >= sub.n",
        "event.i == subscriber.attributes.age",
        "event.i <= subscriber.attributes.age",
        "event.at > subscriber.attributes.since",
        "subscriber.attributes.region != null",
        "subscriber.attributes.region == sub.s",
        "event.s == subscriber.id",
        "event.n >= sub.n",
        "event.s + sub.s == subscriber.attributes.region",
        "subscriber.locale == 'a'",
    ];
    let mut random = Rng::with_seed(seed);
    let rules: Vec<String> = (0..random.usize(1..4))
        .map(|_| {
            let mut when = CONJUNCTS[random.usize(0..CONJUNCTS.len())].to_owned();
            for _ in 0..random.usize(0..4) {
                let not = if random.u8(0..5) == 0 { "!" } else { "" };
                let joined = if random.u8(0..3) == 0 { "||" } else { "&&" };
                when = format!("({when}) {joined} {not}({})", CONJUNCTS[random.usize(0..CONJUNCTS.len())]);
            }
            when
        })
        .collect();
    let whens: Vec<(&str, Option<&str>)> = rules.iter().map(|when| (when.as_str(), None)).collect();
    let set = Arc::new(compile(&whens).unwrap_or_else(|problems| panic!("seed {seed}: {problems:?}")));
    let (class, events): (Name, Name) = ("interest".parse().expect("a name"), "thing".parse().expect("a name"));
    let mut shard = Shard::new(set.clone());
    let mut subscription_views = BTreeMap::new();
    let text = |random: &mut Rng| ["a", "b", "ab"][random.usize(0..3)];
    let value = |random: &mut Rng| match random.u8(0..8) {
        0 | 1 => Value::from(text(random)),
        2 => Value::Null,
        3 => Value::Integer(random.i64(-2..5)),
        4 => Value::Number(random.i32(-4..9) as f64 / 2.0),
        5 => Value::Timestamp(Timestamp(random.i64(0..5))),
        6 => Value::List([Value::from(text(random)), Value::Integer(1)].into()),
        _ => Value::Boolean(true),
    };
    for round in 0..5 {
        for _ in 0..random.usize(1..60) {
            let id = SubscriptionId(random.u64(1..60));
            if random.u8(0..4) == 0 {
                shard.remove(id);
                subscription_views.remove(&id);
                continue;
            }
            let attributes = ["region", "limit", "age", "since", "tags"].map(|name| (name, value(&mut random)));
            let locale = random.bool().then(|| text(&mut random).to_owned());
            let view = view(&set, text(&mut random), &Profile { locale, ..profile(&attributes) });
            let values = format!(r#"{{"s":"{}","n":{}}}"#, text(&mut random), random.i32(-2..4));
            shard.put_of(subject(id.0, &class, &values), view.clone()).expect("a subscription");
            let subscription_view = SubscriptionView::read(&set, id, &class, &values, None).expect("a subscription");
            subscription_views.insert(id, subscription_view.of(&set, view));
        }
        let rows: Vec<Vec<Value>> = (0..random.usize(1..8))
            .map(|_| {
                let number = Value::Number(random.i32(-4..9) as f64 / 2.0);
                let time = Value::Timestamp(Timestamp(random.i64(0..5)));
                vec![text(&mut random).into(), number, Value::Integer(random.i64(-2..5)), time, Value::Null]
            })
            .collect();
        let mut expected = BTreeSet::new();
        for (ordinal, row) in (0..).zip(&rows) {
            for subscription_view in subscription_views.values() {
                let matching = oracle::matches(&set, &events, row, subscription_view);
                expected.extend(matching.into_iter().map(|rule| (ordinal, rule, subscription_view.id)));
            }
        }
        let by_index = found(&mut shard, round + 1, &rows).0;
        let wrong = by_index.symmetric_difference(&expected).next();
        assert!(wrong.is_none(), "seed {seed}, round {round}: {wrong:?} of {rules:?}");
    }
}

#[test]
fn the_index_agrees_with_the_oracle() {
    let number = |variable: &str| std::env::var(variable).ok().and_then(|text| text.parse::<u64>().ok());
    if let Some(seed) = number("TOCSIN_SEED") {
        return case(seed);
    }
    for seed in 0..number("TOCSIN_CASES").unwrap_or(60) {
        case(seed);
    }
}
