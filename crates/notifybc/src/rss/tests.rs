//! Statements of sections 6.2 and 9.2 of the specification.

use serde_json::{Value, json};

use super::*;

fn document(value: Value) -> Document {
    value.as_object().expect("an object").clone()
}

fn feed(more: Value) -> FeedConfiguration {
    let mut record = json!({"name": "notification", "serviceName": "news", "value": {"rss": {"url": "http://f",
        "timeSpec": "* * * * *"},
        "httpHost": "http://n.ca", "messageTemplates": {"email": {"subject": "{title}"},
            "sms": {"textBody": "{title}"}}}});
    crate::configuration::merge(&mut record, &json!({"value": {"rss": more}}));
    FeedConfiguration::parse(&document(record)).expect("a feed")
}

fn item(guid: &str, date: &str) -> Document {
    document(json!({"guid": guid, "pubDate": date, "title": guid}))
}

fn guids(items: &[Document]) -> Vec<&str> {
    items.iter().filter_map(|item| text(item, "guid")).collect()
}

#[test]
fn s9_2_new_items_and_history() {
    let feed = feed(json!({}));
    assert_eq!((feed.key_field.as_str(), feed.retention, feed.includes_updated), ("guid", 1, false));
    let first = feed.poll(&[], vec![item("a", "1"), item("b", "1")]);
    assert_eq!(guids(&first.new), ["a", "b"], "at the first poll all");
    let second = feed.poll(&first.history, vec![item("b", "2"), item("c", "1")]);
    assert_eq!(guids(&second.new), ["c"]);
    assert_eq!(guids(&second.history), ["b", "c"], "one generation");
    let third = feed.poll(&second.history, vec![item("a", "1")]);
    assert_eq!(guids(&third.new), ["a"]);
}

#[test]
fn s9_2_absent_items_are_kept_for_generations() {
    let feed = feed(json!({"outdatedItemRetentionGenerations": 3}));
    let mut history = feed.poll(&[], vec![item("a", "1")]).history;
    for _ in 0..2 {
        history = feed.poll(&history, vec![]).history;
        assert_eq!(guids(&history), ["a"]);
    }
    assert_eq!(guids(&feed.poll(&history, vec![item("a", "1")]).new), Vec::<&str>::new());
    assert_eq!(guids(&feed.poll(&history, vec![]).history), Vec::<&str>::new());
}

#[test]
fn s9_2_updated_items() {
    let feed = feed(json!({"includeUpdatedItems": true}));
    let history = feed.poll(&[], vec![item("a", "1"), item("b", "1"), document(json!({"guid": "c"}))]).history;
    let poll = feed.poll(&history, vec![item("a", "2"), item("b", "1"), item("c", "1")]);
    assert_eq!(guids(&poll.new), ["a"], "the field must be present in both");
    let by_title =
        self::feed(json!({"includeUpdatedItems": true, "fieldsToCheckForUpdate": ["title"], "itemKeyField": "link"}));
    let old = document(json!({"link": "l", "title": "x"}));
    let new = document(json!({"link": "l", "title": "y"}));
    assert_eq!(by_title.poll(&[old], vec![new]).new.len(), 1);
}

#[test]
fn s9_2_one_broadcast_for_each_template() {
    let notifications = feed(json!({})).notifications(&item("a", "1"));
    assert_eq!(notifications.len(), 2);
    let expected = json!({"serviceName": "news", "channel": "email", "isBroadcast": true,
        "message": {"subject": "{title}"},
        "data": {"guid": "a", "pubDate": "1", "title": "a"}, "httpHost": "http://n.ca",
            "asyncBroadcastPushNotification": true,
        "state": "new", "skipSubscriptionConfirmationCheck": false});
    assert_eq!(Value::Object(notifications[0].clone()), expected);
    assert_eq!(notifications[1]["channel"], "sms");
}

#[test]
fn s9_2_fields_of_items() {
    let found = super::item(&document(
        json!({"id": "g", "title": "t", "summary": "s", "link": "l", "published": "2017-07-20T16:18:04Z",
        "categories": ["x"]}),
    ));
    let expected = json!({"title": "t", "description": "s", "summary": "s", "link": "l", "guid": "g",
        "pubDate": "2017-07-20T16:18:04.000Z",
        "date": "2017-07-20T16:18:04.000Z", "categories": ["x"]});
    assert_eq!(Value::Object(found), expected);
}

#[test]
fn s6_2_the_http_host_of_a_feed_is_that_of_the_request() {
    let body = |more: Value| {
        let mut body = json!({"name": "notification", "value": {"rss": {"url": "u"}}});
        crate::configuration::merge(&mut body, &more);
        document(body)
    };
    let of = |body: Document, configured| {
        with_http_host(body, configured, "http://r:3000")["value"].get("httpHost").cloned()
    };
    assert_eq!(of(body(json!({})), None), Some(json!("http://r:3000")));
    assert_eq!(of(body(json!({"value": {"httpHost": "own"}})), None), Some(json!("own")));
    assert_eq!(of(body(json!({})), Some("http://c")), None);
    assert_eq!(of(body(json!({"name": "other"})), None), None);
    assert_eq!(of(body(json!({"value": {"rss": null}})), None), None);
    assert_eq!(FeedConfiguration::parse(&document(json!({"name": "notification", "value": {}}))), None);
}
