//! Whole rules: how they are compiled, the problems of invalid ones, and the content of their notifications.

use std::{collections::BTreeMap, sync::Arc};

use expect_test::{Expect, expect};
use tocsin_matching::{
    cut::NotificationCutter,
    eval_value::EvalError,
    index_stats::IndexStats,
    notify::NotifyFields,
    oracle::SubscriptionView,
    rule::{RuleNumber, RuleSet},
    shard::{Shard, Subject},
};
use tocsin_model::{
    application::{
        Application, ContentTemplates, EventClass, Function, NotificationClass, Rule, RuleState, SubscriptionClass,
    },
    event::{EventBatch, EventPacker},
    field::{Field, FieldType, Fields},
    filter::{Dialect, Filter},
    id::{EventBatchId, Name, SubscriberNumber, SubscriptionId},
    problem::Problem,
    time::Timestamp,
    value::Value,
};

fn name(text: &str) -> Name {
    text.parse().expect("a name")
}

fn fields(list: &[(&str, FieldType, bool)]) -> Fields {
    let field = |(text, kind, required): &(&str, FieldType, bool)| Field {
        name: name(text),
        kind: *kind,
        required: *required,
        default: Value::Null,
        description: None,
    };
    Fields::new(list.iter().map(field).collect())
}

fn application(when: &str, with: &[(&str, &str)]) -> Application {
    use FieldType::*;
    let rule = Rule {
        when: Some(when.to_owned()),
        with: with.iter().map(|(field, source)| (name(field), (*source).to_owned())).collect(),
        ..Rule::new(name("quake"), name("nearby"), name("shaking"))
    };
    let event = fields(&[
        ("place", String, false),
        ("magnitude", Number, false),
        ("lat", Number, false),
        ("lon", Number, false),
    ]);
    let subscription = fields(&[
        ("place", String, false),
        ("magnitude", Number, false),
        ("most", Integer, false),
        ("lat", Number, false),
        ("lon", Number, false),
        ("radius", Number, false),
    ]);
    Application {
        partials: BTreeMap::new(),
        events: [(name("quake"), EventClass { fields: event, ..EventClass::default() })].into(),
        subscriptions: [(name("nearby"), SubscriptionClass { fields: subscription, ..Default::default() })].into(),
        notifications: [(
            name("shaking"),
            NotificationClass {
                fields: fields(&[("place", String, true), ("above", Number, false), ("most", Integer, false)]),
                description: None,
                batch_size: 2,
                expires_after: None,
                delivery_policy: Default::default(),
                computed: BTreeMap::new(),
                retention: None,
                content: ContentTemplates::default(),
            },
        )]
        .into(),
        functions: BTreeMap::new(),
        rules: [(name("near"), rule)].into(),
        ..Application::new(name("quakes"))
    }
}

fn compiled(when: &str, with: &[(&str, &str)]) -> Arc<RuleSet> {
    Arc::new(RuleSet::compile(&application(when, with)).unwrap_or_else(|problems| panic!("{problems:?}")))
}

fn check_explanation(when: &str, expected: Expect) {
    let explained = compiled(when, &[]).explain();
    let mut text = String::new();
    for branch in &explained[0].branches {
        let parts = [
            ("event", &branch.event_guards),
            ("subscription", &branch.subscription_guards),
            ("key", &branch.keys),
            ("range", &branch.range),
            ("residual", &branch.residual),
        ];
        let parts: Vec<String> = parts
            .into_iter()
            .filter(|(_, list)| !list.is_empty())
            .map(|(what, list)| format!("{what}: {}", list.join(", ")))
            .collect();
        text += &format!("{}\n", parts.join("; "));
    }
    text.extend(explained[0].warnings.iter().map(|warning| format!("warning: {warning}\n")));
    expected.assert_eq(&text);
}

#[test]
fn a_predicate_is_split_into_branches() {
    check_explanation(
        "event.place == sub.place && sub.most > 3 && event.magnitude >= sub.magnitude && event.lat > 0.0",
        expect![[r#"
            event: event.lat > 0.0; subscription: sub.most > 3; key: event.place == sub.place; range: event.magnitude >= sub.magnitude
        "#]],
    );
    check_explanation(
        "sub.lat <= event.lat && event.lat < sub.radius && event.magnitude >= sub.magnitude",
        expect![[r#"
            range: sub.lat <= event.lat, event.lat < sub.radius; residual: event.magnitude >= sub.magnitude
        "#]],
    );
    check_explanation(
        "event.magnitude >= sub.magnitude && distance_km(event.lat, event.lon, sub.lat, sub.lon) <= sub.radius",
        expect![[r#"
            range: event.magnitude >= sub.magnitude; residual: distance_km(event.lat, event.lon, sub.lat, sub.lon) <= sub.radius
        "#]],
    );
    check_explanation(
        "!(event.place != sub.place && event.lat != sub.lat) && sub.most == 1",
        expect![[r#"
            subscription: sub.most == 1; key: event.place == sub.place
            subscription: sub.most == 1; key: event.lat == sub.lat
        "#]],
    );
    check_explanation(
        "event.place != sub.place",
        expect![[r#"
            residual: event.place != sub.place
            warning: no index answers: each event is checked against every subscription of `nearby`, some hundredths of a second for a million; compare a field of the event with a field of the subscription by `==` or an order
        "#]],
    );
}

#[test]
fn every_problem_of_every_expression_is_reported() {
    let mut application =
        application("event.mag > 1", &[("above", "sub.place"), ("most", "event.magnitude"), ("abve", "1.0")]);
    application.rules.get_mut("near").expect("the rule").with.remove("nothing");
    let problems = RuleSet::compile(&application).expect_err("problems");
    let text: Vec<String> = problems.iter().map(Problem::to_string).collect();
    expect![[r#"
        1:1: rules.near.when: the event class has no field `mag`; its fields are place, magnitude, lat, lon
        rules.near.with.abve: is not a field of this class; did you mean `above`?
        1:1: rules.near.with.above: the expression gives a string, and the field is a number; convert it with `double(...)`
        1:1: rules.near.with.most: the expression gives a number, and the field is an integer; convert it with `int(...)`"#]]
    .assert_eq(&text.join("\n"));
}

#[test]
fn rules_call_functions_of_the_application() {
    let function = |parameters: &[&str], expression: &str| Function {
        description: None,
        parameters: parameters.iter().map(|text| name(text)).collect(),
        expression: expression.to_owned(),
    };
    let with = [("above", "above(event.magnitude, sub.magnitude)")];
    let mut application = application("strong(event) && event.place == sub.place", &with);
    application.functions = [
        (name("strong"), function(&["magnitude"], "magnitude >= 5.0")),
        (name("above"), function(&["one", "other"], "double(one - other)")),
    ]
    .into();
    let explain = |application: &Application| RuleSet::compile(application).expect("rules").explain()[0].to_string();
    let problems = |application: &Application| {
        let problems = RuleSet::compile(application).expect_err("problems");
        problems.iter().map(Problem::to_string).collect::<Vec<_>>().join("\n")
    };
    expect!["1:8: rules.near.when: `event` names a group, not a value; name one of its fields, such as `event.place`"]
        .assert_eq(&problems(&application));
    let rule = application.rules.get_mut("near").expect("the rule");
    rule.when = Some("strong(event.magnitude) && event.place == sub.place".to_owned());
    expect!["near: only if strong(event.magnitude); looks up event.place == sub.place"]
        .assert_eq(&explain(&application));
    let strong = application.functions.get_mut("strong").expect("the function");
    strong.expression = "magnitude >= five".to_owned();
    expect!["1:14: functions.strong.expression: `five` is not known here; its parameters are magnitude"]
        .assert_eq(&problems(&application));
}

fn batch(fields: &Fields, rows: &[&str]) -> EventBatch {
    let mut packer = EventPacker::new(fields.clone());
    for row in rows {
        packer.push(&fields.row_from_json(row.as_bytes()).expect("an event"));
    }
    EventBatch {
        id: EventBatchId(4),
        application: name("quakes"),
        version: 1,
        class: name("quake"),
        source: name("api"),
        received_at: Timestamp(0),
        accepted_at: Timestamp(0),
        snapshot_sequence: None,
        events: packer.finish(),
        chronicled: Default::default(),
    }
}

fn put(shard: &mut Shard, id: u64, values: &str, channel: Option<&str>) {
    let (class, channel) = (name("nearby"), channel.map(name));
    let subject = Subject {
        id: SubscriptionId(id),
        subscriber: SubscriberNumber(id),
        class: &class,
        values,
        channel: channel.as_ref(),
        filter: None,
    };
    shard.put(subject).expect("a subscription");
}

#[test]
fn notifications_are_cut_by_channel_and_size_and_filled_at_delivery() {
    let rules = compiled(
        "event.magnitude >= sub.magnitude",
        &[("place", "event.place.upperAscii()"), ("above", "event.magnitude - sub.magnitude"), ("most", "sub.most")],
    );
    let mut shard = Shard::new(Arc::clone(&rules));
    for id in 1..=3 {
        put(&mut shard, id, r#"{"magnitude": 5, "most": 7}"#, Some("mail"));
    }
    put(&mut shard, 4, r#"{"magnitude": 5.5}"#, Some("web"));
    put(&mut shard, 5, r#"{"magnitude": 2}"#, None);
    put(&mut shard, 6, r#"{"magnitude": 9}"#, Some("mail"));
    // The batch was packed by an older version, whose class had another order and another field.
    let old = fields(&[
        ("depth", FieldType::Integer, false),
        ("magnitude", FieldType::Number, false),
        ("place", FieldType::String, false),
    ]);
    let batch = batch(&old, &[r#"{"depth": 3, "magnitude": 6, "place": "Kobe"}"#, r#"{"place": "Lima"}"#]);
    let mut cutter = NotificationCutter::new();
    shard.match_batch(&batch, &old, &mut cutter).expect("a batch");
    let (batches, failures) = cutter.finish(&rules);
    assert_eq!(failures, []);
    let fill = NotifyFields::of(&rules, batches[0].rule);
    let mut text = String::new();
    for cut in &batches {
        let channel = cut.channel.as_ref().map_or("no channel", Name::as_str);
        for (at, event) in cut.notifications.event_of_each().enumerate() {
            let reader = fill.reader(&batch, &old).expect("whole");
            let row = batch.events.row(&old, event.ordinal).expect("the event");
            let row = reader.row(event.ordinal, row).expect("whole");
            let captured = |field: &Name| {
                let column = cut.notifications.captured.iter().find(|(name, _)| name == field);
                column.and_then(|(_, column)| column.value(at))
            };
            let row = fill.row(&row, captured).expect("all required fields");
            text += &format!(
                "{channel} {event} {}: {}\n",
                cut.notifications.subscriptions[at],
                fill.fields().to_json(&row)
            );
        }
        text += "\n";
    }
    expect![[r#"
        mail e-4-0 s-1: {"place":"KOBE","above":1.0,"most":7}
        mail e-4-0 s-2: {"place":"KOBE","above":1.0,"most":7}

        no channel e-4-0 s-5: {"place":"KOBE","above":4.0}

        mail e-4-0 s-3: {"place":"KOBE","above":1.0,"most":7}

        web e-4-0 s-4: {"place":"KOBE","above":0.5}

    "#]]
    .assert_eq(&text);
    assert!(fill.row(&[], |_| None).is_err(), "a required field has no value");
}

#[test]
fn an_exponential_predicate_fails_its_rule_and_no_other_candidate() {
    let list = format!("[{}]", vec!["1"; 100].join(","));
    let bomb = format!(
        "sub.most == 1 ? {list}.all(a, {list}.all(b, {list}.all(c, a + b + c + sub.most > 0))) : event.magnitude > 1.0"
    );
    let rules = compiled(&bomb, &[]);
    let mut shard = Shard::new(Arc::clone(&rules));
    put(&mut shard, 1, r#"{"most": 1}"#, None);
    put(&mut shard, 2, r#"{"most": 2}"#, None);
    let fields = application("true", &[]).events["quake"].fields.clone();
    let mut cutter = NotificationCutter::new();
    shard.match_batch(&batch(&fields, &[r#"{"magnitude": 6}"#]), &fields, &mut cutter).expect("a batch");
    let (batches, failures) = cutter.finish(&rules);
    assert_eq!(batches[0].notifications.subscriptions, [SubscriptionId(2)]);
    assert_eq!((failures.len(), failures[0].error, failures[0].count), (1, EvalError::Cost, 1));
}

#[test]
fn statistics_show_the_cost_of_an_event() {
    let mut application = application("event.place == sub.place", &[]);
    let class = application.subscriptions.get_mut("nearby").expect("a class");
    class.filter = vec![Dialect::Cel];
    let rules = Arc::new(RuleSet::compile(&application).expect("it compiles"));
    let fields = application.events["quake"].fields.clone();
    let mut index_stats = IndexStats::default();
    // Two shards, each with three subscriptions in two groups.
    for part in 0..2 {
        let mut shard = Shard::new(Arc::clone(&rules));
        let filters = ["event.magnitude > 5.0", "event.magnitude != 7.0", "event.magnitude > 8.0"];
        for (id, (place, filter)) in ["Kobe", "Kobe", "Lima"].into_iter().zip(filters).enumerate() {
            let (class, values) = (name("nearby"), format!(r#"{{"place":"{place}"}}"#));
            let filter = Filter::new(Dialect::Cel, filter);
            let id = SubscriptionId(id as u64 * 2 + part);
            let subject = Subject {
                id,
                subscriber: SubscriberNumber(id.0),
                class: &class,
                values: &values,
                channel: None,
                filter: Some(&filter),
            };
            shard.put(subject).expect("a subscription");
        }
        let batch = batch(&fields, &[r#"{"place":"Kobe","magnitude":6}"#, r#"{"place":"Oslo"}"#]);
        shard.match_batch(&batch, &fields, &mut NotificationCutter::new()).expect("a batch");
        index_stats += &shard.index_stats();
    }
    let mut explained = rules.explain();
    assert_eq!((explained[0].branches[0].candidates, explained[0].filters), (None, None), "nothing runs yet");
    index_stats.explain(&rules, &mut explained);
    assert_eq!(explained[0].branches[0].candidates, Some(3), "one and a half on each shard");
    let filters = explained[0].filters.expect("the class takes filters");
    assert_eq!((filters.distinct, filters.unindexed, filters.groups), (6, 2, 2));
    let counts = filters.counts;
    // No subscription is for Oslo, so no filter is evaluated.
    assert_eq!((counts.events, counts.evaluated, counts.matched), (1, 0, 4));
    assert!((4..=6).contains(&counts.candidates), "{counts:?}");
}

#[test]
fn invalid_subscriptions_are_rejected() {
    let rules = compiled("event.place == sub.place", &[]);
    let mut shard = Shard::new(Arc::clone(&rules));
    let class = name("elsewhere");
    let subject = Subject {
        id: SubscriptionId(1),
        subscriber: SubscriberNumber(1),
        class: &class,
        values: "{}",
        channel: None,
        filter: None,
    };
    assert!(shard.put(subject).expect_err("no such class").message.contains("elsewhere"));
    let class = name("nearby");
    assert!(shard.put(Subject { class: &class, values: "[", ..subject }).is_err());
    assert!(shard.is_empty());
    put(&mut shard, 1, r#"{"place": "Kobe", "gone": [1, {"x": 2}], "magnitude": "not a number"}"#, None);
    assert_eq!(shard.len(), 1);
    shard.remove(SubscriptionId(1));
    assert!(shard.is_empty());
}

#[test]
fn a_trial_reports_each_condition() {
    let rules = compiled("event.place == sub.place && (event.magnitude > sub.magnitude) && event.lat / 0 > 1", &[]);
    let fields = application("true", &[]).events["quake"].fields.clone();
    let subscription_view = |values: &str| {
        SubscriptionView::read(&rules, SubscriptionId(1), &name("nearby"), values, None)
            .expect("the parameters can be read")
    };
    let event = fields.row_from_json(br#"{"place": "Kobe", "magnitude": 4.5}"#).expect("an event");
    let trial = rules.try_rule(RuleNumber(0), &event, &subscription_view(r#"{"place": "Kobe", "magnitude": 5}"#));
    expect![[r#"
        {
          "matches": false,
          "conditions": [
            {
              "text": "event.place == sub.place",
              "verdict": "holds",
              "values": [
                [
                  "event.place",
                  "\"Kobe\""
                ],
                [
                  "sub.place",
                  "\"Kobe\""
                ]
              ]
            },
            {
              "text": "event.magnitude > sub.magnitude",
              "verdict": "fails",
              "values": [
                [
                  "event.magnitude",
                  "4.5"
                ],
                [
                  "sub.magnitude",
                  "5.0"
                ]
              ],
              "decides": true
            },
            {
              "text": "event.lat / 0 > 1",
              "verdict": "error",
              "trouble": "a value is missing",
              "values": [
                [
                  "event.lat",
                  "null"
                ]
              ]
            }
          ]
        }"#]]
    .assert_eq(&serde_json::to_string_pretty(&trial).expect("JSON"));
}

/// State clauses are checked like predicates: each problem has a position and a hint.
#[test]
fn invalid_state_clauses_have_a_position_and_a_hint() {
    let found = |state: RuleState| {
        let mut application = application("event.magnitude >= sub.magnitude", &[]);
        let rule = application.rules.get_mut("near").expect("the rule");
        rule.state = RuleState { cooldown: Some(std::time::Duration::from_secs(60)), ..state };
        let problems = RuleSet::compile(&application).expect_err("a wrong state");
        let shown = |problem: &Problem| {
            let at = |number: Option<u32>| number.map_or("?".to_owned(), |number| number.to_string());
            let hint = problem.hint.as_deref().unwrap_or("no hint");
            format!("{} {}:{} {} ({hint})", problem.path, at(problem.line), at(problem.column), problem.message)
        };
        problems.iter().map(shown).collect::<Vec<_>>().join("\n")
    };
    let text = |text: &str| Some(text.to_owned());
    let state = RuleState::default;
    let reported = [
        found(RuleState { per: text("event.plaec"), ..state() }),
        found(RuleState { per: text("event.place + sub.place"), ..state() }),
        found(RuleState { per: text("event.place ="), ..state() }),
        found(RuleState { changed: text("event.magnitude > 'a'"), ..state() }),
        found(RuleState { changed: text("sub.magnitude"), ..state() }),
        found(RuleState { changed: text("subscriber.locale"), ..state() }),
        found(RuleState { rearm: text("event.magnitude"), ..state() }),
        found(RuleState { rearm: text("event.magnitude < sub.magnitud"), ..state() }),
        found(RuleState { rearm: text("event.magnitude < sub.magnitude &&"), per: text("event.place"), ..state() }),
        found(RuleState { rearm: text("frist(event.place)"), per: text("event.nothing"), ..state() }),
    ];
    expect![[r#"
        rules.near.per 1:1 the event class has no field `plaec` (did you mean `place`?)
        rules.near.per 1:1 `per` reads the subscription (name fields of `event` only; each subscription has its own state anyway)
        rules.near.per 1:13 `=` is not part of the language (write `==` to compare)
        rules.near.changed 1:1 `event.magnitude` is a number and `'a'` is a string; they cannot be compared (write the number without quotes)
        rules.near.changed 1:1 `changed` reads the subscription (name fields of `event` only; each subscription has its own state anyway)
        rules.near.changed 1:1 `changed` reads the subscription (name fields of `event` only; each subscription has its own state anyway)
        rules.near.rearm 1:1 the expression gives a number, not a boolean (compare it with something)
        rules.near.rearm 1:19 the subscription class has no field `magnitud` (did you mean `magnitude`?)
        rules.near.rearm 1:35 a value is expected here, not the end (no hint)
        rules.near.per 1:1 the event class has no field `nothing` (its fields are place, magnitude, lat, lon)
        rules.near.rearm 1:1 there is no function `frist` (no hint)"#]].assert_eq(&reported.join("\n"));
}
