//! Statements of sections 6.1 and 7.5 of the specification.

use serde_json::{Value, json};

use super::*;
use crate::identity::{Role, Strategy};

fn document(value: Value) -> Document {
    value.as_object().expect("an object").clone()
}

fn now() -> Timestamp {
    parse_date("2026-11-29T08:00:00Z").expect("a date")
}

fn identity(role: Role) -> Identity {
    Identity { security_id: "ann".into(), strategy: Strategy::Oidc, role }
}

#[test]
fn s6_1_checks_of_a_new_notification() {
    let of = |value: Value| check(&document(value));
    assert_eq!(of(json!({"channel": "inApp"})), Ok(Check::None));
    assert_eq!(of(json!({"channel": "email"})), Err(NotificationError::InvalidUser));
    assert_eq!(
        of(json!({"channel": "email", "skipSubscriptionConfirmationCheck": true})),
        Err(NotificationError::InvalidUser)
    );
    let skipped = json!({"channel": "email", "skipSubscriptionConfirmationCheck": true, "userChannelId": "x"});
    assert_eq!(of(skipped), Ok(Check::None));
    assert_eq!(of(json!({"channel": "email", "isBroadcast": true})), Ok(Check::None));
    let filter = "broadcastPushNotificationSubscriptionFilter";
    assert_eq!(of(json!({"channel": "email", "isBroadcast": true, filter: "a"})), Ok(Check::Filter("a".into())));
    assert_eq!(of(json!({"channel": "email", "isBroadcast": true, filter: 5})), Err(NotificationError::InvalidFilter));
    assert_eq!(NotificationError::InvalidFilter.to_string(), "invalid broadcastPushNotificationFilter");
    assert_eq!(NotificationError::InvalidUser.to_string(), "invalid user");
    let Ok(Check::Recipient(recipient)) =
        of(json!({"serviceName": "a", "channel": "email", "userChannelId": "A@x.ca", "userId": "u"}))
    else {
        panic!("a recipient is checked")
    };
    let subscription = |more: Value| {
        let mut record =
            document(json!({"serviceName": "a", "channel": "email", "state": "confirmed", "userChannelId": "a@X.ca",
                "userId": "u"}));
        record.extend(document(more));
        record
    };
    assert!(recipient.matches(&subscription(json!({}))) && recipient.candidates().matches(&subscription(json!({}))));
    for more in [
        json!({"userChannelId": "ba@x.ca"}),
        json!({"userId": "v"}),
        json!({"state": "unconfirmed"}),
        json!({"serviceName": "b"}),
    ] {
        assert!(!recipient.matches(&subscription(more.clone())), "{more}");
    }
}

#[test]
fn s6_1_next_step() {
    let of = |value: Value| sending(&document(value), now());
    assert_eq!(of(json!({"channel": "inApp"})), Sending::Later);
    assert_eq!(of(json!({"channel": "email"})), Sending::Unicast);
    assert_eq!(of(json!({"channel": "sms", "isBroadcast": true})), Sending::Broadcast);
    assert_eq!(
        of(json!({"channel": "sms", "isBroadcast": true, "asyncBroadcastPushNotification": false})),
        Sending::Broadcast
    );
    for value in [json!(true), json!("http://c")] {
        assert_eq!(
            of(json!({"channel": "email", "isBroadcast": true, "asyncBroadcastPushNotification": value})),
            Sending::BroadcastLater
        );
    }
    assert_eq!(of(json!({"channel": "email", "invalidBefore": "2026-11-29T08:00:01.000Z"})), Sending::Later);
    assert_eq!(of(json!({"channel": "email", "invalidBefore": "2026-11-29T08:00:00.000Z"})), Sending::Unicast);
    assert_eq!(callback_url(&document(json!({"asyncBroadcastPushNotification": "http://c"}))), Some("http://c"));
    assert_eq!(callback_url(&document(json!({"asyncBroadcastPushNotification": true}))), None);
}

#[test]
fn s9_1_notifications_become_due() {
    let record = |more: Value| {
        let mut record = document(json!({"channel": "email", "state": "new", "isBroadcast": true,
                "invalidBefore": "2026-11-29T07:00:00.000Z"}));
        record.extend(document(more));
        due(record, now())
    };
    assert_eq!(record(json!({})).expect("due")["asyncBroadcastPushNotification"], true);
    assert_eq!(
        record(json!({"asyncBroadcastPushNotification": "http://c"})).expect("due")["asyncBroadcastPushNotification"],
        "http://c"
    );
    for more in [
        json!({"state": "sent"}),
        json!({"channel": "inApp"}),
        json!({"invalidBefore": "2026-11-29T09:00:00.000Z"}),
        json!({"invalidBefore": null}),
    ] {
        assert_eq!(record(more.clone()), None, "{more}");
    }
}

#[test]
fn s6_1_changes_by_users() {
    let unicast = document(json!({"channel": "inApp", "userId": "ann", "state": "new"}));
    let broadcast = document(json!({"channel": "inApp", "isBroadcast": true, "state": "new", "readBy": ["bob"]}));
    let user = identity(Role::AuthenticatedUser);
    let by = |record: Option<&Document>, body: Value| change(record, document(body), &user, now());
    assert_eq!(
        by(Some(&unicast), json!({"state": "read", "serviceName": "x"})),
        Change::Set(document(json!({"state": "read"})))
    );
    assert_eq!(
        by(Some(&broadcast), json!({"state": "read"})),
        Change::Set(document(json!({"readBy": ["bob", "ann"]})))
    );
    assert_eq!(by(Some(&broadcast), json!({"state": "deleted"})), Change::Set(document(json!({"deletedBy": ["ann"]}))));
    assert_eq!(by(Some(&broadcast), json!({"state": "other"})), Change::Nothing);
    assert_eq!(by(Some(&unicast), json!({"data": 1})), Change::Missing);
    assert_eq!(by(None, json!({"state": "read"})), Change::Refused);
    assert_eq!(by(Some(&document(json!({"channel": "email"}))), json!({"state": "read"})), Change::Refused);
    let read = document(json!({"channel": "inApp", "isBroadcast": true, "readBy": ["ann"]}));
    assert_eq!(by(Some(&read), json!({"state": "read"})), Change::Nothing, "added once");
    assert_eq!(deletion(Some(&unicast), &user, now()), Change::Set(document(json!({"state": "deleted"}))));
    assert_eq!(deletion(None, &user, now()), Change::Missing);
    let foreign = document(json!({"channel": "inApp", "userId": "bob"}));
    assert_eq!(deletion(Some(&foreign), &user, now()), Change::Missing);
    let admin = identity(Role::Admin);
    assert_eq!(
        change(Some(&unicast), document(json!({"data": 1})), &admin, now()),
        Change::Set(document(json!({"data": 1})))
    );
    assert_eq!(change(None, document(json!({"data": 1})), &admin, now()), Change::Missing);
    assert_eq!(
        change(Some(&unicast), document(json!({"state": "read"})), &identity(Role::Anonymous), now()),
        Change::Refused
    );
}

#[test]
fn s7_5_dispatch_lists() {
    let dispatch = Dispatch { candidates: vec![], successful: vec![], failed: vec![], skipped: vec![] };
    assert_eq!(dispatch.to_value(true, true), json!({"candidates": []}));
    let failed =
        json!({"subscriptionId": "2", "userChannelId": "b@x", "error": {"response": "550 5.1.1 no such mailbox"}});
    let dispatch = Dispatch {
        candidates: vec!["1".into(), "2".into(), "3".into()],
        successful: vec!["1".into()],
        failed: vec![failed],
        skipped: vec!["3".into()],
    };
    let all = dispatch.to_value(true, true);
    assert_eq!(
        all["failed"],
        json!([{"subscriptionId": "2", "userChannelId": "b@x", "error": {"response": "550 5.1.1 no such mailbox"}}])
    );
    assert_eq!((&all["successful"], &all["skipped"]), (&json!(["1"]), &json!(["3"])));
    let less = dispatch.to_value(false, false);
    assert_eq!((less.get("successful"), less.get("skipped")), (None, None));
    let read = Dispatch::of(&document(json!({"dispatch": all})));
    assert_eq!(read, dispatch);
    assert_eq!(read.done().len(), 3);
}
