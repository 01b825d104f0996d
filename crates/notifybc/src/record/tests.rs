//! Statements of sections 1 and 4.1 of the specification.

use serde_json::{Value, json};
use tocsin_model::time::Timestamp;

use super::*;

const NOW: &str = "2026-11-29T08:00:00.000Z";

fn now() -> Timestamp {
    parse_date(NOW).expect("a date")
}

fn document(value: Value) -> Document {
    value.as_object().expect("an object").clone()
}

fn created(collection: Collection, body: Value) -> Value {
    let record = create(collection, "5f2b6d6c8e7a4a0011c0ffee", document(body), now(), None);
    Value::Object(record.expect("it is valid"))
}

fn refused(collection: Collection, body: Value) -> String {
    create(collection, "5f2b6d6c8e7a4a0011c0ffee", document(body), now(), None).expect_err("it is invalid").to_string()
}

#[test]
fn s4_1_missing_properties_are_all_reported() {
    let texts = [
        (
            Collection::Subscription,
            "Subscription validation failed: userChannelId: Path `userChannelId` is required., serviceName: Path \
             `serviceName` is required.",
        ),
        (
            Collection::Configuration,
            "Configuration validation failed: value: Path `value` is required., name: Path `name` is required.",
        ),
        (
            Collection::Bounce,
            "Bounce validation failed: userChannelId: Path `userChannelId` is required., channel: Path `channel` is \
             required.",
        ),
        (Collection::Administrator, "Administrator validation failed: email: Path `email` is required."),
        (Collection::Notification, "Notification validation failed: serviceName: Path `serviceName` is required."),
    ];
    for (collection, expected) in texts {
        assert_eq!(refused(collection, json!({})), expected);
    }
    assert_eq!(
        refused(Collection::Notification, json!({"serviceName": "a", "validTill": "soon", "isBroadcast": "perhaps"})),
        "Notification validation failed: validTill: Cast to date failed for value \"soon\" (type string) at path \
         \"validTill\", isBroadcast: Cast to Boolean failed for value \"perhaps\" (type string) at path \"isBroadcast\""
    );
}

#[test]
fn s4_1_ids_have_24_hexadecimal_digits() {
    let id = RecordId::new(now(), 0x0123_4567_89ab_cdef);
    assert!(id.to_string().len() == 24 && id.to_string().ends_with("0123456789abcdef"), "{id}");
    assert_eq!(id.time(), now());
    assert_eq!(id.to_string().parse(), Ok(id));
    assert_eq!(
        "5F2B6D6C8E7A4A0011C0FFEE".parse::<RecordId>().map(|id| id.to_string()),
        Ok("5f2b6d6c8e7a4a0011c0ffee".into())
    );
    let error = RecordId::parse("abc", Collection::Subscription).expect_err("no id").to_string();
    assert!(error.starts_with("Cast to ObjectId failed for value \"abc\" (type string) at path \"_id\""), "{error}");
    assert!("zz2b6d6c8e7a4a0011c0ffee".parse::<RecordId>().is_err());
}

#[test]
fn s4_1_created_and_updated_are_those_of_the_body_or_now() {
    let record =
        created(Collection::Subscription, json!({"serviceName": "a", "userChannelId": "x@y.ca", "id": "mine"}));
    assert_eq!((&record["created"], &record["updated"]), (&json!(NOW), &json!(NOW)));
    assert_eq!(
        (&record["id"], &record["channel"], &record["state"]),
        (&json!("5f2b6d6c8e7a4a0011c0ffee"), &json!("email"), &json!("unconfirmed"))
    );
    let record = created(
        Collection::Subscription,
        json!({"serviceName": "a", "userChannelId": 5, "created": "2017-01-01",
            "updated": "2018-05-06T07:08:09-07:00"}),
    );
    assert_eq!(
        (&record["created"], &record["updated"]),
        (&json!("2017-01-01T00:00:00.000Z"), &json!("2018-05-06T14:08:09.000Z"))
    );
    assert_eq!(record["userChannelId"], "5");
}

#[test]
fn s4_1_dates_in_any_iso_form() {
    let check = |text: &str, expected: &str| {
        assert_eq!(parse_date(text).map(date_text).as_deref(), Some(expected), "{text}");
    };
    check("2020", "2020-01-01T00:00:00.000Z");
    check("2020-03", "2020-03-01T00:00:00.000Z");
    check("2020-03-04", "2020-03-04T00:00:00.000Z");
    check("2020-03-04T05:06Z", "2020-03-04T05:06:00.000Z");
    check("2020-03-04T05:06:07", "2020-03-04T05:06:07.000Z");
    check("2020-03-04 05:06:07.5Z", "2020-03-04T05:06:07.500Z");
    check("2020-03-04T05:06:07.123456+02:00", "2020-03-04T03:06:07.123Z");
    check("1583298367000", "2020-03-04T05:06:07.000Z");
    check("Wed, 04 Mar 2020 05:06:07 GMT", "2020-03-04T05:06:07.000Z");
    for text in ["", "soon", "2020-13-01", "2020-3", "20-01-01"] {
        assert_eq!(parse_date(text), None, "{text}");
    }
    assert_eq!(date_text(Timestamp::from_millis(-1)), "1969-12-31T23:59:59.999Z");
}

#[test]
fn s4_1_typed_properties_take_texts() {
    let record = created(
        Collection::Bounce,
        json!({"channel": "email", "userChannelId": "x", "hardBounceCount": "7",
        "bounceMessages": [{"date": "2020-01-02", "message": 5}]}),
    );
    assert_eq!(record["hardBounceCount"], 7);
    assert_eq!(record["bounceMessages"], json!([{"date": "2020-01-02T00:00:00.000Z", "message": "5"}]));
    assert_eq!((&record["state"], &record["latestNotificationStarted"]), (&json!("active"), &Value::Null));
    let record = created(Collection::Notification, json!({"serviceName": "a", "isBroadcast": "true"}));
    assert_eq!((&record["isBroadcast"], &record["skipSubscriptionConfirmationCheck"]), (&json!(true), &json!(false)));
    let token =
        created(Collection::AccessToken, json!({"userId": "5f2b6d6c8e7a4a0011c0ffee", "ttl": "60", "other": 1}));
    assert_eq!((&token["ttl"], token.get("other")), (&json!(60), None));
}

#[test]
fn s1_empty_objects_count_as_absent() {
    let record = created(
        Collection::Subscription,
        json!({"serviceName": "a", "userChannelId": "x", "data": {}, "own": {"a": {}, "b": 1}, "list": [{}]}),
    );
    assert_eq!((record.get("data"), &record["own"], &record["list"]), (None, &json!({"b": 1}), &json!([{}])));
    let record = created(Collection::Configuration, json!({"name": "a", "value": {}}));
    assert_eq!(record["value"], json!({}));
}

#[test]
fn s4_1_unknown_properties_keep_their_json_types() {
    let body =
        json!({"serviceName": "a", "userChannelId": "x", "index": 0, "deep": {"list": [1, 2.5, null, {"t": true}]}});
    let record = created(Collection::Subscription, body.clone());
    assert_eq!((&record["index"], &record["deep"]), (&body["index"], &body["deep"]));
    let record = created(Collection::Administrator, json!({"email": "a@b.ca", "other": 1}));
    assert_eq!(record.get("other"), None);
}

#[test]
fn s4_1_changes_keep_the_creation() {
    let author = json!({"securityId": "127.0.0.1", "authnStrategy": "ip", "role": "SuperAdmin"});
    let body =
        document(json!({"serviceName": "a", "userChannelId": "x", "created": "2020-01-01", "a": {"b": 1, "c": 2}}));
    let record = create(Collection::Subscription, "1", body, now(), Some(&author)).expect("valid");
    let later = parse_date("2027-01-01").expect("a date");
    let changes = document(json!({"created": "2021-01-01", "createdBy": 1, "id": "2", "a.b": 5, "state": "confirmed"}));
    let changed = patch(Collection::Subscription, &record, changes, later, Some(&author)).expect("valid");
    assert_eq!(changed["created"], "2020-01-01T00:00:00.000Z");
    assert_eq!((&changed["createdBy"], &changed["updatedBy"]), (&author, &author));
    assert_eq!(
        (&changed["id"], &changed["a"], &changed["state"]),
        (&json!("1"), &json!({"b": 5, "c": 2}), &json!("confirmed"))
    );
    assert_eq!(changed["updated"], "2027-01-01T00:00:00.000Z");
    let body = document(json!({"serviceName": "b", "userChannelId": "y", "created": "2022-01-01"}));
    let replaced = replace(Collection::Subscription, &changed, body, later, None).expect("valid");
    assert_eq!((&replaced["id"], &replaced["created"]), (&json!("1"), &json!("2020-01-01T00:00:00.000Z")));
    assert_eq!((replaced.get("a"), &replaced["createdBy"], &replaced["state"]), (None, &author, &json!("unconfirmed")));
    let refused = patch(Collection::Subscription, &record, document(json!({"$where": "1"})), later, None);
    assert_eq!(refused, Err(ChangeError::Modifier("$where".into())));
    let refused = patch(Collection::Bounce, &record, document(json!({"hardBounceCount": "x"})), later, None);
    assert!(refused.expect_err("no number").to_string().starts_with("Cast to Number failed for value \"x\""));
}

#[test]
fn s5_four_properties_of_subscriptions_are_hidden_from_users() {
    let record = document(json!({"id": "1", "confirmationRequest": {}, "unsubscriptionCode": "1", "createdBy": 1,
        "updatedBy": 1, "state": "confirmed"}));
    assert_eq!(Value::Object(subscription_for_user(record)), json!({"id": "1", "state": "confirmed"}));
}

#[test]
fn s6_1_view_of_users_on_notifications() {
    let record = |more: Value| {
        let mut record = document(json!({"channel": "inApp", "state": "new", "isBroadcast": true}));
        record.extend(document(more));
        record
    };
    let check = |more: Value, expected: bool| {
        assert_eq!(is_user_notification(&record(more.clone()), "ann", NOW), expected, "{more}");
    };
    check(json!({}), true);
    check(json!({"channel": "email"}), false);
    check(json!({"isBroadcast": false}), false);
    check(json!({"isBroadcast": false, "userId": "ann"}), true);
    check(json!({"isBroadcast": false, "userChannelId": "ann"}), true);
    check(json!({"isBroadcast": false, "userChannelId": "bob"}), false);
    check(json!({"validTill": "2026-11-29T07:59:59.999Z"}), false);
    check(json!({"validTill": "2026-11-29T08:00:00.001Z"}), true);
    check(json!({"invalidBefore": "2026-11-29T08:00:00.001Z"}), false);
    check(json!({"invalidBefore": "2026-11-29T07:00:00.000Z"}), true);
    check(json!({"deletedBy": ["bob", "ann"]}), false);
    check(json!({"deletedBy": ["bob"]}), true);
    let shown = notification_for_user(record(json!({"readBy": ["ann"], "deletedBy": [], "createdBy": 1})), "ann");
    assert_eq!(Value::Object(shown), json!({"channel": "inApp", "state": "read", "isBroadcast": true}));
}
