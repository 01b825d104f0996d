//! Section 7.2: filters of subscriptions on the data of a notification, and of notifications on that of subscriptions.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::target::{Caller::*, Target, id, logged, shared, sorted};

/// Data that the filters of the tables are tested with.
fn data() -> Value {
    json!({
        "title": "Vancouver Island", "n": 42, "zero": 0, "day": "2024-05-01", "tags": ["a", "b"], "list": [1, 2],
        "nested": [[1], {"a": 1}], "obj": {"a": {"b": 1}}, "empty": "", "flag": true, "none": null,
        "items": [{"v": 2, "name": "two"}, {"v": 1, "name": "one"}],
    })
}

/// Stores one subscription for each filter, sends one broadcast, and compares the reached ones.
async fn check(target: &Target, service: &str, cases: &[(&str, bool)]) {
    let mut filters = BTreeMap::new();
    for (filter, _) in cases {
        let more = json!({"broadcastPushNotificationFilter": filter});
        filters.insert(id(&target.subscribe(service, "filters@example.org", more).await), *filter);
    }
    let sent = target.broadcast(service, json!({"data": data()})).await;
    let reached: Vec<&str> = sorted(&sent["dispatch"]["successful"]).iter().map(|id| filters[id]).collect();
    for (filter, expected) in cases {
        assert_eq!(reached.contains(filter), *expected, "{filter}");
    }
    assert_eq!(sorted(&sent["dispatch"]["candidates"]).len(), cases.len());
}

#[tokio::test]
async fn s7_2_comparisons_are_those_of_javascript() {
    let cases = [
        ("title == 'Vancouver Island'", true),
        ("title != 'x'", true),
        ("n == `42`", true),
        ("n == '42'", false),
        ("title > 'C'", true),
        ("title < 'C'", false),
        ("'2024-01-01' < day", true),
        ("missing <= `1`", true),
        ("none <= `1`", true),
        ("missing > `1`", false),
        ("missing >= `0`", true),
        ("flag >= `1`", true),
        ("flag > zero", true),
        ("'5' < n", true),
        ("'50' < n", false),
        ("title < `1`", false),
        ("title >= `1`", false),
        ("empty < `1`", true),
        ("obj == `{\"a\": {\"b\": 1}}`", true),
        ("list == `[1, 2]`", true),
        ("list == `[2, 1]`", false),
    ];
    check(shared().await, "s7.2.compare", &cases).await;
}

#[tokio::test]
async fn s7_2_functions_and_their_peculiarities() {
    let cases = [
        ("contains(tags, 'a')", true),
        ("contains(tags, 'c')", false),
        ("contains(list, `1`)", true),
        ("contains(nested, `[1]`)", false),
        ("contains(nested, `{\"a\": 1}`)", false),
        ("contains(title, 'couver')", true),
        ("contains(title, '')", true),
        ("starts_with(title, 'Van')", true),
        ("starts_with(title, '')", false),
        ("ends_with(title, '')", true),
        ("unknown_function(title)", false),
        ("length(n)", false),
        ("length()", false),
        ("length(tags) == `2`", true),
        ("sum(list) == `3`", true),
        ("max(list) == `2`", true),
        ("join(',', tags) == 'a,b'", true),
        ("sort_by(items, &v)[0].name == 'one'", true),
        ("max_by(items, &v).name == 'two'", true),
        ("keys(obj)[0] == 'a'", true),
        ("not_null(missing, title) == title", true),
        ("type(n) == 'number'", true),
        ("to_number('5') == `5`", true),
        ("title == 'x' || unknown_function(title)", false),
    ];
    check(shared().await, "s7.2.functions", &cases).await;
}

#[tokio::test]
async fn s7_2_truth_and_expressions() {
    let cases = [
        ("zero", true),
        ("empty", false),
        ("none", false),
        ("missing", false),
        ("obj", true),
        ("tags", true),
        ("`[]`", false),
        ("`{}`", false),
        ("`false`", false),
        ("!missing", true),
        ("!obj.zzz", false),
        ("!(obj.zzz)", true),
        ("obj.a.b == `1`", true),
        ("tags[0] == 'a'", true),
        ("tags[-1] == 'b'", true),
        ("tags[?@ == 'b']", true),
        ("tags[?@ == 'z']", false),
        ("tags[::-1] | [0] == 'b'", true),
        ("items[*].v | [0] == `2`", true),
        ("[title, n][1] == `42`", true),
        ("{x: n}.x == `42`", true),
        ("n == `42` && title == 'x'", false),
        ("n == `42` || title == 'x'", true),
    ];
    check(shared().await, "s7.2.truth", &cases).await;
}

#[tokio::test]
async fn s7_2_contains_ci_is_built_in() {
    let cases = [
        ("contains_ci(title, 'vancouver')", true),
        ("contains_ci(title, 'VICTORIA') || contains_ci(title, 'ISLAND')", true),
        ("contains_ci(title, 'victoria')", false),
        ("contains_ci(title, '')", false),
        ("contains_ci(empty, 'a')", false),
        ("contains_ci(missing, 'a')", false),
        ("contains_ci(n, '4')", false),
        ("!contains_ci(n, '4')", false),
    ];
    check(shared().await, "s7.2.ci", &cases).await;
}

#[tokio::test]
async fn s7_2_without_data_nothing_is_filtered() {
    let target = shared().await;
    let filtered = json!({"broadcastPushNotificationFilter": "a == 'b'"});
    let record = target.subscribe("s7.2.none", "s7.2.none@example.org", filtered).await;
    for data in [json!({}), json!(null)] {
        let sent = target.broadcast("s7.2.none", json!({"data": data})).await;
        assert_eq!(sent["dispatch"]["successful"], json!([record["id"]]), "{data}");
    }
    let sent = target.broadcast("s7.2.none", json!({"data": {"a": "c"}})).await;
    assert!(sent["dispatch"].get("successful").is_none(), "{sent}");
    assert_eq!(sent["state"], "sent");
}

#[tokio::test]
async fn s7_2_the_senders_filter_tests_data_of_subscriptions() {
    let target = shared().await;
    let (service, address) = ("s7.2.sender", "s7.2.sender@example.org");
    let old = target.subscribe(service, address, json!({"data": {"age": 70, "city": "Victoria"}})).await;
    let young = target.subscribe(service, address, json!({"data": {"age": 7, "city": "Nanaimo"}})).await;
    let without = target.subscribe(service, address, json!({"data": {}})).await;
    for (filter, expected) in [
        ("age > `18`", vec![&old, &without]),
        ("contains_ci(city, 'nana')", vec![&young, &without]),
        ("unknown_function(age)", vec![&without]),
        ("missing <= `0`", vec![&old, &young, &without]),
    ] {
        let sent = target.broadcast(service, json!({"broadcastPushNotificationSubscriptionFilter": filter})).await;
        let mut expected: Vec<String> = expected.into_iter().map(id).collect();
        expected.sort();
        assert_eq!(sorted(&sent["dispatch"]["successful"]), expected, "{filter}");
    }
}

#[tokio::test]
async fn s7_2_both_filters_must_match() {
    let target = shared().await;
    let more = json!({"broadcastPushNotificationFilter": "kind == 'flood'", "data": {"region": "north"}});
    target.subscribe("s7.2.both", "s7.2.both@example.org", more).await;
    for (kind, region, expected) in
        [("flood", "north", 1), ("flood", "south", 0), ("fire", "north", 0), ("fire", "south", 0)]
    {
        let filter = format!("region == '{region}'");
        let more = json!({"data": {"kind": kind}, "broadcastPushNotificationSubscriptionFilter": filter});
        let sent = target.broadcast("s7.2.both", more).await;
        assert_eq!(sorted(&sent["dispatch"]["successful"]).len(), expected, "{kind} {region}");
    }
}

#[tokio::test]
async fn s7_2_unicast_is_not_filtered() {
    let target = shared().await;
    let filtered = json!({"broadcastPushNotificationFilter": "a == 'b'"});
    target.subscribe("s7.2.unicast", "s7.2.unicast@example.org", filtered).await;
    let asked = json!({
        "serviceName": "s7.2.unicast", "channel": "email", "userChannelId": "s7.2.unicast@example.org",
        "data": {"a": "c"}, "message": {"from": "a@example.org", "subject": "s", "textBody": "t"},
    });
    assert_eq!(target.post("/notifications", asked).await["state"], "sent");
    assert_eq!(target.mail_to("s7.2.unicast@example.org").text().as_deref(), Some("t"));
}

#[tokio::test]
async fn s7_2_skipped_ones_are_recorded_on_request() {
    let target = logged().await;
    let filter = json!({"broadcastPushNotificationFilter": "a == 'b'"});
    let mut skipped = Vec::new();
    for index in 0..3 {
        skipped
            .push(id(&target.subscribe("s7.2.skip", &format!("s7.2.skip{index}@example.org"), filter.clone()).await));
    }
    let reached = target.subscribe("s7.2.skip", "s7.2.reached@example.org", json!({})).await;
    let sent = target.broadcast("s7.2.skip", json!({"data": {"a": "c"}})).await;
    skipped.sort();
    assert_eq!(sorted(&sent["dispatch"]["skipped"]), skipped);
    assert_eq!(sent["dispatch"]["successful"], json!([reached["id"]]));
    assert_eq!(sorted(&sent["dispatch"]["candidates"]).len(), 4);
}

#[tokio::test]
async fn s7_2_an_invalid_senders_filter_is_400() {
    let asked = json!({
        "serviceName": "s7.2.invalid", "channel": "email", "isBroadcast": true, "message": {"textBody": "t"},
        "broadcastPushNotificationSubscriptionFilter": "a ==",
    });
    let answer = shared().await.call(Admin, "POST", "/notifications", Some(asked)).await;
    let expected = json!({"statusCode": 400, "message": "invalid broadcastPushNotificationFilter"});
    assert_eq!(answer.expect(400).json(), expected);
}
