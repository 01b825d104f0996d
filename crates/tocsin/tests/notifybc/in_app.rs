//! Section 6.1: rules of notifications, and the states of in-app ones for each user.

use serde_json::{Value, json};

use crate::target::{Caller::*, Target, id, shared, sorted, text};

/// Stores an in-app notification with more members.
async fn store(target: &Target, service: &str, more: Value) -> Value {
    let mut body = json!({"serviceName": service, "message": {"title": "t", "any": [1]}});
    body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    target.post("/notifications", body).await
}

/// A user's list of a service.
async fn list(target: &Target, user: &str, service: &str) -> Vec<Value> {
    let filter = format!("/notifications?filter={{\"where\":{{\"serviceName\":\"{service}\"}}}}");
    let found = target.call(User(user), "GET", &filter, None).await.ok();
    found.as_array().expect("a list").clone()
}

fn ids(records: &[Value]) -> Vec<String> {
    sorted(&Value::Array(records.iter().map(|record| record["id"].clone()).collect()))
}

#[tokio::test]
async fn s6_1_in_app_is_the_default_and_only_stored() {
    let target = shared().await;
    let record = store(target, "s6.1.default", json!({"userId": "s6.1.ann"})).await;
    assert_eq!((&record["channel"], &record["state"]), (&json!("inApp"), &json!("new")));
    assert_eq!(record["message"], json!({"title": "t", "any": [1]}));
    let record = store(target, "s6.1.default", json!({"isBroadcast": true, "message": "a text"})).await;
    assert_eq!((&record["state"], &record["message"]), (&json!("new"), &json!("a text")));
    // Without a message it is stored, too; a service is required.
    let body = json!({"isBroadcast": true, "message": "m"});
    let answer = target.call(Admin, "POST", "/notifications", Some(body)).await;
    let message = text(&answer.expect(400).json(), "/message");
    assert_eq!(message, "Notification validation failed: serviceName: Path `serviceName` is required.");
    for caller in [Anonymous, User("s6.1.ann")] {
        let body = json!({"serviceName": "s6.1.default", "isBroadcast": true, "message": "m"});
        target.call(caller, "POST", "/notifications", Some(body)).await.expect(403);
    }
}

#[tokio::test]
async fn s6_1_the_view_of_a_user() {
    let target = shared().await;
    let service = "s6.1.view";
    let seen = [
        store(target, service, json!({"isBroadcast": true})).await,
        store(target, service, json!({"userId": "s6.1.ann"})).await,
        store(target, service, json!({"userChannelId": "s6.1.ann"})).await,
        store(target, service, json!({"userId": "s6.1.ann", "validTill": "2999-01-01"})).await,
        store(target, service, json!({"userId": "s6.1.ann", "invalidBefore": "2001-01-01"})).await,
    ];
    let hidden = [
        store(target, service, json!({"userId": "s6.1.bob"})).await,
        store(target, service, json!({"userId": "s6.1.ann", "validTill": "2001-01-01"})).await,
        store(target, service, json!({"isBroadcast": true, "invalidBefore": "2999-01-01"})).await,
        target.broadcast(service, json!({})).await,
    ];
    let found = list(target, "s6.1.ann", service).await;
    assert_eq!(ids(&found), ids(&seen));
    for record in &found {
        for name in ["createdBy", "updatedBy", "readBy", "deletedBy"] {
            assert!(record.get(name).is_none(), "{name}: {record}");
        }
    }
    let path = format!("/notifications/count?where={{\"serviceName\":\"{service}\"}}");
    let count = target.call(User("s6.1.ann"), "GET", &path, None).await.ok();
    assert_eq!(count, json!({"count": seen.len()}));
    assert_eq!(target.get(&path).await, json!({"count": seen.len() + hidden.len()}));
    let path = format!("/notifications/{}", id(&seen[1]));
    assert_eq!(target.call(User("s6.1.ann"), "GET", &path, None).await.ok()["id"], seen[1]["id"]);
    for path in [format!("/notifications/{}", id(&hidden[0])), "/notifications/000000000000000000000000".to_owned()] {
        target.call(User("s6.1.ann"), "GET", &path, None).await.expect_text(200, "");
    }
    target.call(Anonymous, "GET", "/notifications", None).await.expect(403);
}

#[tokio::test]
async fn s6_1_states_of_broadcasts_are_by_user() {
    let target = shared().await;
    let service = "s6.1.states";
    let record = store(target, service, json!({"isBroadcast": true})).await;
    let path = format!("/notifications/{}", id(&record));
    let change = |state: &str| Some(json!({"state": state, "message": "changed", "serviceName": "other"}));
    for _ in 0..2 {
        target.call(User("s6.1.ann"), "PATCH", &path, change("read")).await.expect(204);
    }
    assert_eq!(list(target, "s6.1.ann", service).await[0]["state"], "read");
    assert_eq!(list(target, "s6.1.bob", service).await[0]["state"], "new");
    let stored = target.notification(&id(&record)).await;
    assert_eq!((&stored["state"], &stored["readBy"]), (&json!("new"), &json!(["s6.1.ann"])));
    assert_eq!((&stored["message"], &stored["serviceName"]), (&record["message"], &json!(service)));
    target.call(User("s6.1.ann"), "DELETE", &path, None).await.expect(204);
    assert_eq!(list(target, "s6.1.ann", service).await.len(), 0);
    assert_eq!(list(target, "s6.1.bob", service).await.len(), 1);
    let stored = target.notification(&id(&record)).await;
    assert_eq!((&stored["state"], &stored["deletedBy"]), (&json!("new"), &json!(["s6.1.ann"])));
    target.call(User("s6.1.ann"), "DELETE", &path, None).await.expect(404);
}

#[tokio::test]
async fn s6_1_states_of_unicasts_are_stored() {
    let target = shared().await;
    let record = store(target, "s6.1.unicast", json!({"userId": "s6.1.ann"})).await;
    let path = format!("/notifications/{}", id(&record));
    target.call(User("s6.1.bob"), "PATCH", &path, Some(json!({"state": "read"}))).await.expect(403);
    target.call(User("s6.1.bob"), "DELETE", &path, None).await.expect(404);
    target.call(User("s6.1.ann"), "PATCH", &path, Some(json!({"message": "x"}))).await.expect(404);
    target.call(User("s6.1.ann"), "PATCH", &path, Some(json!({"state": "read"}))).await.expect(204);
    assert_eq!(target.notification(&id(&record)).await["state"], "read");
    target.call(User("s6.1.ann"), "DELETE", &path, None).await.expect(204);
    assert_eq!(target.notification(&id(&record)).await["state"], "deleted");
}

#[tokio::test]
async fn s6_1_administrators_change_any_field() {
    let target = shared().await;
    let record = store(target, "s6.1.admin", json!({"userId": "s6.1.ann"})).await;
    let path = format!("/notifications/{}", id(&record));
    let change = json!({"message": "new text", "userId": "s6.1.bob", "extra": {"a": 1}});
    target.call(Admin, "PATCH", &path, Some(change)).await.expect(204);
    let stored = target.notification(&id(&record)).await;
    assert_eq!((&stored["message"], &stored["userId"]), (&json!("new text"), &json!("s6.1.bob")));
    assert_eq!((&stored["extra"], &stored["created"]), (&json!({"a": 1}), &record["created"]));
    target.call(Admin, "DELETE", &path, None).await.expect(204);
    assert_eq!(target.notification(&id(&record)).await["state"], "deleted");
}

/// Body of an e-mail notification.
fn mail(service: &str, more: Value) -> Value {
    let message = json!({"from": "a@example.org", "subject": "s", "textBody": "t"});
    let mut body = json!({"serviceName": service, "channel": "email", "message": message});
    body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    body
}

#[tokio::test]
async fn s6_1_recipients_of_unicasts() {
    let target = shared().await;
    let service = "s6.1.push";
    target.subscribe(service, "S6.1.push@Example.org", json!({"userId": "s6.1.pushed"})).await;
    target.subscribe(service, "s6.1.unconfirmed@example.org", json!({"state": "unconfirmed"})).await;
    for more in [
        json!({}),
        json!({"skipSubscriptionConfirmationCheck": true}),
        json!({"skipSubscriptionConfirmationCheck": true, "userId": "s6.1.pushed"}),
        json!({"userChannelId": "stranger@example.org"}),
        json!({"userChannelId": "s6.1.unconfirmed@example.org"}),
        json!({"userId": "s6.1.stranger"}),
        json!({"userChannelId": "s6.1.push@example.org", "userId": "s6.1.stranger"}),
    ] {
        let answer = target.call(Admin, "POST", "/notifications", Some(mail(service, more.clone()))).await;
        assert_eq!(answer.status, 403, "{more}: {answer:?}");
        assert_eq!(answer.json(), json!({"statusCode": 403, "message": "invalid user"}), "{more}");
    }
    for more in [
        json!({"userChannelId": "s6.1.push@example.org"}),
        json!({"userId": "s6.1.pushed"}),
        json!({"userChannelId": "s6.1.push@example.org", "userId": "s6.1.pushed"}),
    ] {
        let sent = target.post("/notifications", mail(service, more.clone())).await;
        assert_eq!(sent["state"], "sent", "{more}");
        assert_eq!(sent["userChannelId"], "S6.1.push@Example.org", "{more}");
    }
    assert_eq!(target.mails_to("S6.1.push@Example.org").len(), 3);
}

#[tokio::test]
async fn s6_1_future_notifications_are_stored_only() {
    let target = shared().await;
    target.subscribe("s6.1.future", "s6.1.future@example.org", json!({})).await;
    let sent = target
        .post(
            "/notifications",
            mail(
                "s6.1.future",
                json!({
                    "isBroadcast": true, "invalidBefore": "2999-01-01",
                }),
            ),
        )
        .await;
    assert_eq!((&sent["state"], &sent["invalidBefore"]), (&json!("new"), &json!("2999-01-01T00:00:00.000Z")));
    assert!(sent.get("dispatch").is_none(), "{sent}");
    assert_eq!(target.mails_to("s6.1.future@example.org").len(), 0);
}
