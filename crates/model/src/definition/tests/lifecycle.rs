//! Event classes bound to the life of subscriptions, and delays of rules.

use std::time::Duration;

use expect_test::{Expect, expect};

use super::*;
use crate::{
    application::{CancelKey, RuleDelay},
    lifecycle::{Lifecycle, LifecycleChange, lifecycle_fields},
};

fn definition(events: &str, rule: &str) -> String {
    format!(
        r#"
application: club
events:
  placed: {{ fields: {{ order: integer }} }}
  paid: {{ fields: {{ id: integer }} }}
  {events}
subscriptions: {{ news: {{}}, jobs: {{}} }}
notifications: {{ hello: {{ content: {{ templates: {{ base: {{ subject: x }} }} }} }} }}
rules:
  one: {{ {rule}, subscription: news, notify: hello }}
channels: {{ log: {{ protocol: file, options: {{ path: log }} }} }}
"#
    )
}

fn read(events: &str, rule: &str) -> Result<Application, Vec<Problem>> {
    super::super::read(&definition(events, rule), &|_| None)
}

fn check(events: &str, rule: &str, expected: Expect) {
    let problems = read(events, rule).map(|application| format!("{:?}", application.rules)).expect_err("problems");
    let show = |problem: &Problem| {
        format!("{}: {}\n  {}", problem.path, problem.message, problem.hint.as_deref().unwrap_or_default())
    };
    let shown: Vec<String> = problems.iter().map(show).collect();
    expected.assert_eq(&shown.join("\n"));
}

fn name(text: &str) -> crate::id::Name {
    text.parse().expect("a name")
}

#[test]
fn a_bound_class_has_the_built_in_fields() {
    let application =
        read("joined: { on: subscription.confirmed, of: [news, jobs] }", "on: joined").expect("a definition");
    let class = &application.events["joined"];
    let expected = Lifecycle { change: LifecycleChange::Confirmed, of: vec![name("news"), name("jobs")] };
    assert_eq!((class.lifecycle.as_ref(), &class.fields), (Some(&expected), &lifecycle_fields()));
    assert!(!application.may_submit(&name("api"), &name("joined")));
    assert!(application.may_submit(&name("api"), &name("placed")));
}

#[test]
fn a_delay_has_its_key_and_cancelling_classes() {
    let rule = "on: placed, after: 2h, key: event.order, cancel_on: { paid: event.id }";
    let application = read("", rule).expect("a definition");
    let cancel_on = [(name("paid"), CancelKey::Expression("event.id".to_owned()))].into();
    let after = Duration::from_secs(7_200);
    let expected = RuleDelay { after, key: Some("event.order".to_owned()), cancel_on };
    assert_eq!(application.rules["one"].delay, Some(expected));
    assert!(application.events.contains_key("due"), "due times are events");

    let application = read("left: { on: subscription.ended }", "on: placed, after: 3d, cancel_on: subscription.ended");
    let delay = application.expect("a definition").rules["one"].delay.clone().expect("a delay");
    assert_eq!(delay.cancel_on, [(name("left"), CancelKey::Subscription)].into());
}

#[test]
fn problems_say_what_to_do() {
    check(
        "bad: { description: none }",
        "on: placed",
        expect![[r#"
        events.bad.fields: is missing
          list the fields of an event, such as `fields: { price: number }`"#]],
    );
    check(
        "bad: { on: subscription.ended, fields: { a: string } }",
        "on: placed",
        expect![[r#"
        events.bad.fields: is given beside `on`
          leave it out: the class has built-in fields, such as `subscriber_id` and `changed_at`"#]],
    );
    check(
        "bad: { on: subscription.ended, of: newz }",
        "on: placed",
        expect![[r#"
        events.bad.of: names the subscription class `newz`, which does not exist
          did you mean `news`?"#]],
    );
    check(
        "joined: { on: subscription.confirmed, of: jobs }",
        "on: joined",
        expect![[r#"
        rules.one.subscription: is `news`, and `joined` has events of other classes
          name one of `jobs`"#]],
    );
    check(
        "joined: { on: subscription.confirmed }",
        "on: joined, cooldown: 1h",
        expect![[r#"
        rules.one.cooldown: is not allowed for a rule on the life of subscriptions
          leave it out: such a rule is evaluated once for the subscription of each event"#]],
    );
    check(
        "",
        "on: placed, cancel_on: paid",
        expect![[r#"
        rules.one.cancel_on: has no effect: the rule sends its notifications at once
          leave it out"#]],
    );
    check(
        "",
        "on: placed, after: 1h, cancel_on: paid",
        expect![[r#"
        rules.one.cancel_on: names `paid`, and the rule has no `key` by which its events are compared
          give `key`, such as `key: event.order`"#]],
    );
    check(
        "",
        "on: placed, after: 1h, key: event.order, cancel_on: payed",
        expect![[r#"
        rules.one.cancel_on: names the event class `payed`, which does not exist
          did you mean `paid`?"#]],
    );
    check(
        "",
        "on: placed, after: 1h, cancel_on: subscription.ended",
        expect![[r#"
        rules.one.cancel_on: names `subscription.ended`, to which no event class is bound
          add an event class, such as `ended: { on: subscription.ended }`"#]],
    );
    check(
        "",
        "on: placed, after: 1h, key: event.order",
        expect![[r#"
        rules.one.key: has no effect: no event class of `cancel_on` is compared with it
          leave it out"#]],
    );
    check(
        "",
        "on: placed, after: 1h, every: 2h",
        expect![[r#"
        rules.one.after: is given beside `every`
          keep one: a scheduled rule notifies at its due times"#]],
    );
    check(
        "",
        "on: placed, after: 1h, sql: 'SELECT 1'",
        expect![[r#"
        rules.one.after: is given beside `sql`
          write `when`: a delayed rule is evaluated again for one subscription when it is due"#]],
    );
}
