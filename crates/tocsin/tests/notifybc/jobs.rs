//! Section 9: jobs that run by a schedule, and feeds.

use std::sync::Arc;

use axum::{
    Router,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use jiff::{Timestamp, ToSpan};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tocsin_test_peers::until;

use crate::target::{Caller::*, RUNTIME, Target, id, text, with_jobs};

/// The time this number of hours ago, as records have it.
fn hours_ago(hours: i64) -> String {
    format!("{:.3}", Timestamp::now() - hours.hours())
}

fn days_ago(days: i64) -> String {
    hours_ago(24 * days)
}

async fn exists(target: &Target, collection: &str, id: &str) -> bool {
    target.get(&format!("/{collection}/count?where={{\"id\":\"{id}\"}}")).await["count"] == 1
}

/// Waits until the first records are purged, and checks that the others are not.
async fn check_purge(target: &Target, collection: &str, gone: &[String], kept: &[String]) {
    for id in gone {
        until(&format!("{collection} {id} is purged"), async || !exists(target, collection, id).await).await;
    }
    for id in kept {
        assert!(exists(target, collection, id).await, "{collection} {id} is kept");
    }
}

/// Stores a push notification that is not sent, in a state.
async fn stored(target: &Target, created: &str, state: &str) -> String {
    let body = json!({
        "serviceName": "s9.1.stored", "channel": "email", "isBroadcast": true, "message": {"textBody": "t"},
        "created": created, "invalidBefore": "2999-01-01",
    });
    let id = id(&target.post("/notifications", body).await);
    let path = format!("/notifications/{id}");
    target.call(Admin, "PATCH", &path, Some(json!({"state": state}))).await.expect(204);
    id
}

#[tokio::test]
async fn s9_1_purge_of_push_notifications() {
    let target = with_jobs().await;
    let gone = [stored(target, &days_ago(31), "sent").await, stored(target, &days_ago(31), "error").await];
    // A broadcast of the past, as a client stores it.
    let old = target.broadcast("s9.1.old", json!({"created": "2010-01-01", "state": "sent"})).await;
    let gone = [gone, [id(&old), stored(target, &days_ago(31), "sent").await]].concat();
    let kept = [
        stored(target, &days_ago(31), "new").await,
        stored(target, &days_ago(31), "sending").await,
        stored(target, &days_ago(29), "sent").await,
    ];
    check_purge(target, "notifications", &gone, &kept).await;
}

#[tokio::test]
async fn s9_1_purge_of_in_app_notifications() {
    let target = with_jobs().await;
    let store = async |more: Value| {
        let mut body = json!({"serviceName": "s9.1.inapp", "channel": "inApp", "isBroadcast": true, "message": "m"});
        body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        id(&target.post("/notifications", body).await)
    };
    let kept = [
        store(json!({"validTill": days_ago(29)})).await,
        store(json!({"created": days_ago(100)})).await,
        store(json!({"state": "read", "validTill": "2999-01-01"})).await,
    ];
    let gone = [store(json!({"validTill": days_ago(31)})).await, store(json!({"state": "deleted"})).await];
    check_purge(target, "notifications", &gone, &kept).await;
}

#[tokio::test]
async fn s9_1_purge_of_subscriptions() {
    let target = with_jobs().await;
    let store = async |state: &str, days: i64| {
        let more = json!({"state": state, "created": days_ago(100), "updated": days_ago(days)});
        id(&target.subscribe("s9.1.purge", "s9.1.purge@example.org", more).await)
    };
    let kept = [store("confirmed", 90).await, store("unconfirmed", 29).await, store("deleted", 29).await];
    let gone = [store("unconfirmed", 31).await, store("deleted", 31).await];
    check_purge(target, "subscriptions", &gone, &kept).await;
}

#[tokio::test]
async fn s9_1_purge_of_bounces() {
    let target = with_jobs().await;
    let store = async |state: &str, days: i64| {
        let body = json!({
            "channel": "email", "userChannelId": "s9.1.bounce@example.org", "state": state, "hardBounceCount": 1,
            "updated": days_ago(days), "created": days_ago(100),
        });
        id(&target.post("/bounces", body).await)
    };
    let kept = [store("active", 90).await, store("deleted", 29).await];
    let gone = [store("deleted", 31).await];
    check_purge(target, "bounces", &gone, &kept).await;
}

#[tokio::test]
async fn s9_1_purge_of_expired_tokens() {
    let target = with_jobs().await;
    let body = json!({"email": "s9.1@example.org", "password": "Abcdef_1234"});
    let path = format!("/administrators/{}/access-tokens", id(&target.post("/administrators", body).await));
    for (name, more) in [
        ("no limit", json!({"created": days_ago(100)})),
        ("valid", json!({"ttl": 100 * 86_400, "created": days_ago(40)})),
        ("just expired", json!({"ttl": 60, "created": days_ago(20)})),
        ("long expired", json!({"ttl": 60, "created": days_ago(40)})),
    ] {
        let mut body = more;
        body["name"] = json!(name);
        target.post(&path, body).await;
    }
    let names = async || {
        let tokens = target.get(&path).await;
        let mut names: Vec<String> =
            tokens.as_array().expect("a list").iter().map(|token| text(token, "/name")).collect();
        names.sort();
        names
    };
    until("the token is purged", async || !names().await.contains(&"long expired".to_owned())).await;
    assert_eq!(names().await, ["just expired", "no limit", "valid"]);
}

#[tokio::test]
async fn s9_1_future_notifications_are_sent_once() {
    let target = with_jobs().await;
    let address = "s9.1.live@example.org";
    target.subscribe("s9.1.live", address, json!({})).await;
    let soon = format!("{:.3}", Timestamp::now() + 1.seconds());
    let sent = target.broadcast("s9.1.live", json!({"invalidBefore": soon})).await;
    assert_eq!(sent["state"], "new");
    // Candidates are those at the time of sending.
    target.subscribe("s9.1.live", "s9.1.late@example.org", json!({})).await;
    let late = target.broadcast("s9.1.live", json!({"invalidBefore": "2999-01-01"})).await;
    let unicast = json!({"isBroadcast": false, "userChannelId": address, "invalidBefore": soon});
    let unicast = target.broadcast("s9.1.live", unicast).await;
    for record in [&sent, &unicast] {
        until("it is sent", async || target.notification(&id(record)).await["state"] == "sent").await;
    }
    let record = target.notification(&id(&sent)).await;
    assert_eq!(record["asyncBroadcastPushNotification"], true);
    assert_eq!(record["dispatch"]["successful"].as_array().map(Vec::len), Some(2), "{record}");
    assert_eq!(target.mails_to(address).len(), 2);
    assert_eq!(target.mails_to("s9.1.late@example.org").len(), 1);
    assert_eq!(target.notification(&id(&late)).await["state"], "new");
}

#[tokio::test]
async fn s9_1_bounce_records_end_after_a_success() {
    let target = with_jobs().await;
    let store = async |ended: Value, message: String| {
        let body = json!({
            "channel": "email", "userChannelId": "s9.1.clear@example.org", "hardBounceCount": 1,
            "bounceMessages": [{"date": message, "message": "new"}, {"date": hours_ago(99), "message": "old"}],
            "latestNotificationStarted": hours_ago(3), "latestNotificationEnded": ended,
        });
        id(&target.post("/bounces", body).await)
    };
    let kept = [
        store(json!(hours_ago(2)), hours_ago(1)).await,
        store(json!(hours_ago(0)), hours_ago(5)).await,
        store(Value::Null, hours_ago(5)).await,
    ];
    let ended = store(json!(hours_ago(2)), hours_ago(5)).await;
    let state = async |id: &str| target.get(&format!("/bounces/{id}")).await["state"].clone();
    until("it is deleted", async || state(&ended).await == "deleted").await;
    for id in kept {
        assert_eq!(state(&id).await, "active");
    }
}

/// A feed that tests change.
#[derive(Clone)]
struct Feed {
    port: u16,
    content: Arc<Mutex<Content>>,
}

#[derive(Default)]
struct Content {
    text: String,
    status: StatusCode,
    requests: usize,
}

async fn answer(State(feed): State<Feed>) -> Response {
    let mut content = feed.content.lock();
    content.requests += 1;
    (content.status, [("content-type", "application/xml")], content.text.clone()).into_response()
}

impl Feed {
    async fn start(items: &[(&str, &str)]) -> Feed {
        let socket = RUNTIME.spawn(tokio::net::TcpListener::bind("127.0.0.1:0")).await.expect("joined").expect("bound");
        let feed = Feed { port: socket.local_addr().expect("an address").port(), content: Arc::default() };
        feed.set(items);
        let router = Router::new().fallback(answer).with_state(feed.clone());
        RUNTIME.spawn(async move { axum::serve(socket, router).await });
        feed
    }

    /// Replaces the items: key and time of publication.
    fn set(&self, items: &[(&str, &str)]) {
        let item = |(guid, date): &(&str, &str)| {
            format!(
                "<item><title>title {guid}</title><link>http://feed.example/{guid}</link><guid>{guid}</guid>\
                 <description>about {guid}</description><pubDate>{date}</pubDate></item>"
            )
        };
        let items: String = items.iter().map(item).collect();
        let head = "<title>Feed</title><link>http://feed.example/</link><description>d</description>";
        self.set_text(&format!("<?xml version=\"1.0\"?><rss version=\"2.0\"><channel>{head}{items}</channel></rss>"));
    }

    fn set_text(&self, text: &str) {
        self.content.lock().text = text.to_owned();
    }

    /// Waits for two further requests: the second one is made after the result of the first is complete.
    async fn polled(&self) {
        let start = self.content.lock().requests;
        until("the feed is polled", async || self.content.lock().requests >= start + 2).await;
    }
}

/// Configures the feed of a service with one subscription.
async fn follow(target: &Target, service: &str, feed: &Feed, rss: Value) -> String {
    let address = format!("{service}@example.org");
    target.subscribe(service, &address, json!({})).await;
    let mut options = json!({
        "url": format!("http://127.0.0.1:{}/feed", feed.port), "timeSpec": "* * * * * *", "itemKeyField": "guid",
        "outdatedItemRetentionGenerations": 1, "includeUpdatedItems": false, "fieldsToCheckForUpdate": ["pubDate"],
    });
    options.as_object_mut().expect("an object").extend(rss.as_object().expect("an object").clone());
    let message = json!({
        "from": "feed@example.org", "subject": "{title}", "textBody": "{description} {link}",
        "htmlBody": "<a href='{link}'>{guid}</a>",
    });
    let value = json!({"rss": options, "httpHost": "http://feed.host.example", "messageTemplates": {"email": message}});
    target.post("/configurations", json!({"name": "notification", "serviceName": service, "value": value})).await;
    address
}

fn subjects(target: &Target, address: &str) -> Vec<String> {
    let mut subjects: Vec<String> = target.mails_to(address).iter().map(|mail| mail.subject()).collect();
    subjects.sort();
    subjects
}

const MONDAY: &str = "Mon, 02 Nov 2026 10:00:00 GMT";
const TUESDAY: &str = "Tue, 03 Nov 2026 10:00:00 GMT";

#[tokio::test]
async fn s9_2_new_items_are_broadcast_once() {
    let target = with_jobs().await;
    let feed = Feed::start(&[("a", MONDAY), ("b", MONDAY)]).await;
    let address = follow(target, "s9.2.new", &feed, json!({})).await;
    let mails = target.wait_for_mails(&address, 2).await;
    let mail = mails.iter().find(|mail| mail.subject() == "title a").expect("the first item");
    assert_eq!(mail.text().as_deref(), Some("about a http://feed.example/a"));
    assert!(mail.header("list-unsubscribe").contains("http://feed.host.example/api/"), "{mail:?}");
    // A changed item is not new; a failed poll is passed over.
    feed.content.lock().status = StatusCode::INTERNAL_SERVER_ERROR;
    feed.polled().await;
    feed.content.lock().status = StatusCode::OK;
    feed.set(&[("a", TUESDAY), ("b", MONDAY), ("c", MONDAY)]);
    target.wait_for_mails(&address, 3).await;
    feed.polled().await;
    assert_eq!(subjects(target, &address), ["title a", "title b", "title c"]);
    let path = "/notifications?filter={\"where\":{\"serviceName\":\"s9.2.new\",\"data.guid\":\"a\"}}";
    let records = target.get(path).await;
    assert_eq!(records.as_array().map(Vec::len), Some(1), "{records}");
    let record = &records[0];
    assert_eq!((&record["isBroadcast"], &record["asyncBroadcastPushNotification"]), (&json!(true), &json!(true)));
    assert_eq!((&record["httpHost"], &record["channel"]), (&json!("http://feed.host.example"), &json!("email")));
    for (name, value) in [("title", "title a"), ("link", "http://feed.example/a"), ("description", "about a")] {
        assert_eq!(record["data"][name], value, "{name}: {record}");
    }
}

#[tokio::test]
async fn s9_2_updated_items_on_request() {
    let target = with_jobs().await;
    let feed = Feed::start(&[("a", MONDAY), ("b", MONDAY)]).await;
    let address = follow(target, "s9.2.updated", &feed, json!({"includeUpdatedItems": true})).await;
    target.wait_for_mails(&address, 2).await;
    feed.set(&[("a", TUESDAY), ("b", MONDAY)]);
    target.wait_for_mails(&address, 3).await;
    feed.polled().await;
    assert_eq!(subjects(target, &address), ["title a", "title a", "title b"]);
}

#[tokio::test]
async fn s9_2_absent_items_are_forgotten_after_their_generations() {
    let target = with_jobs().await;
    let (short, long) = (Feed::start(&[("a", MONDAY)]).await, Feed::start(&[("a", MONDAY)]).await);
    let forgets = follow(target, "s9.2.forgets", &short, json!({"outdatedItemRetentionGenerations": 1})).await;
    let keeps = follow(target, "s9.2.keeps", &long, json!({"outdatedItemRetentionGenerations": 1000})).await;
    let check = async |feed: &Feed, address: &str, expected: usize| {
        target.wait_for_mails(address, 1).await;
        feed.set(&[]);
        feed.polled().await;
        feed.set(&[("a", MONDAY)]);
        target.wait_for_mails(address, expected).await;
        feed.polled().await;
        assert_eq!(target.mails_to(address).len(), expected, "{address}");
    };
    tokio::join!(check(&short, &forgets, 2), check(&long, &keeps, 1));
}

#[tokio::test]
async fn s9_2_a_changed_configuration_is_followed() {
    let target = with_jobs().await;
    let (first, second) = (Feed::start(&[("a", MONDAY)]).await, Feed::start(&[("z", MONDAY)]).await);
    let address = follow(target, "s9.2.change", &first, json!({})).await;
    target.wait_for_mails(&address, 1).await;
    let path = "/configurations?filter={\"where\":{\"name\":\"notification\",\"serviceName\":\"s9.2.change\"}}";
    let mut record = target.get(path).await[0].clone();
    record["value"]["rss"]["url"] = json!(format!("http://127.0.0.1:{}/feed", second.port));
    let path = format!("/configurations/{}", id(&record));
    target.call(Admin, "PUT", &path, Some(record)).await.expect(204);
    target.wait_for_mails(&address, 2).await;
    assert_eq!(subjects(target, &address), ["title a", "title z"]);
    target.call(Admin, "DELETE", &path, None).await.expect(204);
    // A poll that had begun may end; then there is none.
    let other = Feed::start(&[("x", MONDAY)]).await;
    follow(target, "s9.2.clock", &other, json!({})).await;
    other.polled().await;
    let count = second.content.lock().requests;
    other.polled().await;
    assert_eq!(second.content.lock().requests, count);
}

#[tokio::test]
async fn s9_2_atom() {
    let target = with_jobs().await;
    let feed = Feed::start(&[]).await;
    feed.set_text(
        "<feed xmlns=\"http://www.w3.org/2005/Atom\"><title>F</title><id>f</id><updated>2026-11-02T10:00:00Z</updated>\
         <entry><title>title e</title><id>e</id><updated>2026-11-02T10:00:00Z</updated>\
         <link href=\"http://feed.example/e\"/><summary>about e</summary></entry></feed>",
    );
    let address = follow(target, "s9.2.atom", &feed, json!({})).await;
    let mails = target.wait_for_mails(&address, 1).await;
    assert_eq!(mails[0].subject(), "title e");
    assert!(mails[0].html().is_some_and(|html| html.contains("http://feed.example/e")), "{mails:?}");
}
