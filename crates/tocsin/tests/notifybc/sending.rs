//! Sections 7.1 and 7.4 to 7.6: recipients, mails, the record of a broadcast, SMS.

use std::{collections::BTreeSet, time::Duration};

use serde_json::{Value, json};
use tocsin_test_peers::{reserved_port, until};

use crate::{
    support::{Platform, mails::Mails},
    target::{Caller::*, INBOUND_DOMAIN, SWIFT_ACCOUNT, Target, id, lean, logged, shared, sorted, text},
};

// 7.1 candidates

#[tokio::test]
async fn s7_1_candidates_are_the_confirmed_ones_of_service_and_channel() {
    let target = shared().await;
    let (service, address) = ("s7.1", "s7.1@example.org");
    let mut expected = Vec::new();
    for _ in 0..3 {
        expected.push(id(&target.subscribe(service, address, json!({})).await));
    }
    expected.sort();
    target.subscribe(service, address, json!({"state": "unconfirmed"})).await;
    target.subscribe(service, "12505550110", json!({"channel": "sms"})).await;
    target.subscribe("s7.1.other", address, json!({})).await;
    let gone = target.subscribe(service, "s7.1.gone@example.org", json!({})).await;
    target.call(Admin, "DELETE", &format!("/subscriptions/{}", id(&gone)), None).await.expect(200);
    let sent = target.broadcast(service, json!({})).await;
    assert_eq!(sorted(&sent["dispatch"]["candidates"]), expected);
    assert_eq!(sorted(&sent["dispatch"]["successful"]), expected);
    assert_eq!(target.mails_to(address).len(), 3);
    // Each is merged with its own subscription.
    let links: BTreeSet<String> = target.mails_to(address).iter().map(|mail| mail.header("list-unsubscribe")).collect();
    assert_eq!(links.len(), 3);
}

// 7.4 the mail

/// Sends a broadcast with a message to one new subscription; returns its record and the mail.
async fn mail(target: &Target, service: &str, message: Value) -> (Value, crate::target::Received) {
    let address = format!("{service}@example.org").replace(' ', "_");
    let record = target.subscribe(service, &address, json!({})).await;
    target.broadcast(service, json!({"message": message})).await;
    let mail = target.mail_to(&address);
    (record, mail)
}

#[tokio::test]
async fn s7_4_the_type_follows_the_bodies() {
    let target = shared().await;
    let from = "\"Zoë Ünal\" <zoe@example.org>";
    let message = json!({"from": from, "subject": "Grüße €", "textBody": "Größe", "htmlBody": null});
    let (_, text) = mail(target, "s7.4.text", message).await;
    assert!(text.header("content-type").to_lowercase().starts_with("text/plain; charset=\"utf-8\""), "{text:?}");
    assert_eq!((text.subject().as_str(), text.text().as_deref()), ("Grüße €", Some("Größe")));
    assert!(text.header("from").contains("<zoe@example.org>"), "{}", text.header("from"));
    assert!(text.header("from").len() > "<zoe@example.org>".len());
    assert!(text.header("to").contains("s7.4.text@example.org"));
    for name in ["message-id", "date"] {
        assert_ne!(text.header(name), "", "{name}");
    }
    assert_eq!(text.header("mime-version"), "1.0");
    let message = json!({"from": from, "subject": "s", "htmlBody": "<p>ä</p>", "textBody": null});
    let (_, html) = mail(target, "s7.4.html", message).await;
    assert!(html.header("content-type").starts_with("text/html"), "{html:?}");
    assert_eq!(html.html().as_deref(), Some("<p>ä</p>"));
    let message = json!({"from": from, "subject": "s", "textBody": "plain", "htmlBody": "<p>rich</p>"});
    let (_, both) = mail(target, "s7.4.both", message).await;
    assert!(both.header("content-type").starts_with("multipart/alternative"), "{both:?}");
    let body = both.0.body();
    assert!(body.find("text/plain") < body.find("text/html"), "{body}");
}

#[tokio::test]
async fn s7_4_list_fields_and_envelope() {
    let target = shared().await;
    let message = json!({"from": "Sender <sender@example.org>", "subject": "s", "textBody": "t"});
    let (record, mail) = mail(target, "s7.4 list/é", message).await;
    let (id, code) = (id(&record), text(&record, "/unsubscriptionCode"));
    assert_eq!(mail.header("list-id"), format!("<http://{}/s7.4%20list%2F%C3%A9>", target.host));
    let link = format!("http://{}/api/subscriptions/{id}/unsubscribe?unsubscriptionCode={code}", target.host);
    assert_eq!(mail.header("list-unsubscribe"), format!("<mailto:un-{id}-{code}@{INBOUND_DOMAIN}>, <{link}>"));
    assert_eq!(mail.header("list-unsubscribe-post"), "List-Unsubscribe=One-Click");
    assert_eq!(mail.0.from, format!("bn-{id}-{code}@{INBOUND_DOMAIN}"));
    // The sender's header is not the envelope.
    assert!(mail.header("from").contains("sender@example.org"));
}

#[tokio::test]
async fn s7_4_without_inbound_mail_only_the_link_and_the_senders_address() {
    let message = json!({"from": "Sender <sender@example.org>", "subject": "s", "textBody": "t"});
    let (_, without) = mail(lean().await, "s7.4.lean", message.clone()).await;
    assert_eq!(without.0.from, "sender@example.org");
    assert!(without.header("list-unsubscribe").starts_with("<http://"), "{}", without.header("list-unsubscribe"));
    // By configuration, with a domain.
    let (record, logged) = mail(logged().await, "s7.4.logged", message).await;
    let link = format!(
        "<https://notify.example.ca/api/subscriptions/{}/unsubscribe?unsubscriptionCode={}>",
        id(&record),
        text(&record, "/unsubscriptionCode"),
    );
    assert_eq!(logged.header("list-unsubscribe"), link);
    assert_eq!(logged.header("list-id"), "<https://notify.example.ca/s7.4.logged>");
    assert!(logged.0.from.starts_with("bn-"), "{}", logged.0.from);
}

#[tokio::test]
async fn s7_4_a_subject_with_line_breaks_makes_no_header() {
    let target = shared().await;
    target.subscribe("s7.4.lines", "s7.4.lines@example.org", json!({})).await;
    let more = json!({
        "message": {"from": "a@example.org", "subject": "{title}", "textBody": "t"},
        "data": {"title": "first\r\nX-Injected: yes\r\n\r\nbody"},
    });
    assert_eq!(target.broadcast("s7.4.lines", more).await["state"], "sent");
    let mail = target.mail_to("s7.4.lines@example.org");
    assert_eq!(mail.header("x-injected"), "");
    assert!(mail.subject().starts_with("first"), "{}", mail.subject());
    assert_eq!(mail.text().as_deref(), Some("t"));
}

// 7.5 the record

#[tokio::test]
async fn s7_5_the_record_of_a_synchronous_broadcast() {
    let target = shared().await;
    let service = "s7.5";
    target.mails.set_refused("s7.5.refused@example.org", true);
    let good = target.subscribe(service, "s7.5.good@example.org", json!({})).await;
    let bad = target.subscribe(service, "s7.5.refused@example.org", json!({})).await;
    let sent = target.broadcast(service, json!({"extra": [1]})).await;
    assert_eq!((&sent["state"], &sent["extra"]), (&json!("sent"), &json!([1])));
    assert_eq!(sent["dispatch"]["successful"], json!([good["id"]]));
    assert_eq!(sent["dispatch"].get("skipped"), None);
    let failed = &sent["dispatch"]["failed"];
    assert_eq!(failed.as_array().map(Vec::len), Some(1), "{sent}");
    assert_eq!(failed[0]["subscriptionId"], bad["id"]);
    assert_eq!(failed[0]["userChannelId"], "s7.5.refused@example.org");
    let error = &failed[0]["error"];
    assert_eq!(error["responseCode"], 550, "{error}");
    assert!(text(error, "/response").starts_with("550 5.1.1"), "{error}");
    assert_eq!(target.notification(&id(&sent)).await, sent);
    let found = target.get(&format!("/notifications?filter={{\"where\":{{\"id\":\"{}\"}}}}", id(&sent))).await;
    assert_eq!(found, json!([sent]));
}

#[tokio::test]
async fn s12_a_deferral_is_retried_before_it_counts_as_failed() {
    let target = shared().await;
    target.mails.set_deferred("s12.once@example.org", 1);
    target.mails.set_deferred("s12.always@example.org", usize::MAX);
    let once = target.subscribe("s12.deferrals", "s12.once@example.org", json!({})).await;
    let always = target.subscribe("s12.deferrals", "s12.always@example.org", json!({})).await;
    let sent = target.broadcast("s12.deferrals", json!({})).await;
    assert_eq!((&sent["state"], &sent["dispatch"]["successful"]), (&json!("sent"), &json!([once["id"]])), "{sent}");
    let failed = &sent["dispatch"]["failed"];
    assert_eq!((failed.as_array().map(Vec::len), &failed[0]["subscriptionId"]), (Some(1), &always["id"]), "{sent}");
    let error = &failed[0]["error"];
    assert_eq!((&error["responseCode"], &error["response"]), (&json!(451), &json!("451 4.3.0 try again later")));
}

#[tokio::test]
async fn s7_5_a_deleted_broadcast_is_cancelled() {
    let target = lean().await;
    let service = "s7.5.cancel";
    for index in 0..8 {
        target.subscribe(service, &format!("s7.5.cancel{index}@example.org"), json!({})).await;
    }
    // The rate leaves two seconds until the last mail.
    let asked = target.broadcast(service, json!({"asyncBroadcastPushNotification": true})).await;
    target.call(Admin, "DELETE", &format!("/notifications/{}", id(&asked)), None).await.expect(204);
    until("the native broadcast is cancelled", async || {
        let found = target.platform.get("/v1/broadcasts?application=notifybc&limit=100").await;
        found["items"].as_array().into_iter().flatten().any(|item| {
            item["broadcast"]["data"]["id"] == asked["id"] && item["state"] == "cancelled" && item["waiting"] == 0
        })
    })
    .await;
    assert_eq!(target.notification(&id(&asked)).await["state"], "deleted");
    let reached = target.mails.all().iter().filter(|mail| mail.to[0].starts_with(service)).count();
    assert!(reached < 8, "{reached} mails");
}

#[tokio::test]
async fn s7_5_without_candidates() {
    let sent = shared().await.broadcast("s7.5.empty", json!({})).await;
    assert_eq!((&sent["state"], &sent["dispatch"]), (&json!("sent"), &json!({"candidates": []})));
}

#[tokio::test]
async fn s7_5_without_guarantee_and_bounces_only_failures_are_recorded() {
    let target = lean().await;
    target.mails.set_refused("s7.5.lean.bad@example.org", true);
    target.subscribe("s7.5.lean", "s7.5.lean@example.org", json!({})).await;
    target.subscribe("s7.5.lean", "s7.5.lean.bad@example.org", json!({})).await;
    let filtered = json!({"broadcastPushNotificationFilter": "a == 'b'"});
    target.subscribe("s7.5.lean", "s7.5.lean.skip@example.org", filtered).await;
    let sent = target.broadcast("s7.5.lean", json!({"data": {"a": "c"}})).await;
    let names: BTreeSet<&str> = sent["dispatch"].as_object().expect("an object").keys().map(String::as_str).collect();
    assert_eq!(names, BTreeSet::from(["candidates", "failed"]), "{sent}");
}

#[tokio::test]
async fn s7_5_recorded_ids_are_not_sent_to_again() {
    let target = shared().await;
    let service = "s7.5.again";
    let mut ids = Vec::new();
    for index in 0..4 {
        ids.push(id(&target.subscribe(service, &format!("s7.5.again{index}@example.org"), json!({})).await));
    }
    let failed = json!([{"subscriptionId": ids[1], "userChannelId": "s7.5.again1@example.org", "error": {}}]);
    let dispatch = json!({
        "candidates": [ids[0], ids[1], ids[2]], "successful": [ids[0]], "failed": failed,
    });
    let sent = target.broadcast(service, json!({"dispatch": dispatch})).await;
    assert_eq!(sent["state"], "sent");
    let counts: Vec<usize> =
        (0..4).map(|index| target.mails_to(&format!("s7.5.again{index}@example.org")).len()).collect();
    assert_eq!(counts, [0, 0, 1, 0], "{sent}");
    assert_eq!(sorted(&sent["dispatch"]["candidates"]), {
        let mut expected = ids[..3].to_vec();
        expected.sort();
        expected
    });
    let mut successful = vec![ids[0].clone(), ids[2].clone()];
    successful.sort();
    assert_eq!(sorted(&sent["dispatch"]["successful"]), successful);
    assert_eq!(sent["dispatch"]["failed"], failed);
}

#[tokio::test]
async fn s7_5_a_record_without_candidates_gets_them() {
    let target = shared().await;
    let service = "s7.5.given";
    let first = id(&target.subscribe(service, "s7.5.given0@example.org", json!({})).await);
    let second = id(&target.subscribe(service, "s7.5.given1@example.org", json!({})).await);
    let dispatch = json!({"successful": [first], "failed": [{"subscriptionId": second}]});
    let sent = target.broadcast(service, json!({"dispatch": dispatch})).await;
    let mut both = vec![first, second];
    both.sort();
    assert_eq!(sorted(&sent["dispatch"]["candidates"]), both);
    assert_eq!(sent["dispatch"]["successful"], dispatch["successful"]);
    assert_eq!(sent["dispatch"]["failed"], dispatch["failed"]);
    for index in 0..2 {
        assert_eq!(target.mails_to(&format!("s7.5.given{index}@example.org")).len(), 0);
    }
}

#[tokio::test]
async fn s7_5_addresses_are_any_text() {
    let target = shared().await;
    for (index, (channel, address)) in [
        ("email", "bar2@invalid"),
        ("email", "no address"),
        ("email", "ünï@exämple.org"),
        ("sms", "12345"),
        ("sms", "(250) 555-0170"),
        ("sms", "none"),
    ]
    .into_iter()
    .enumerate()
    {
        let service = format!("s7.5.odd{index}");
        let record = target.subscribe(&service, address, json!({"channel": channel})).await;
        assert_eq!(record["userChannelId"], address);
        let sent = target.broadcast(&service, json!({"channel": channel})).await;
        assert_eq!((&sent["state"], sorted(&sent["dispatch"]["candidates"])), (&json!("sent"), vec![id(&record)]));
        let lists = ["successful", "failed"].map(|list| sent["dispatch"].get(list).is_some());
        assert!(lists[0] != lists[1], "{address}: {sent}");
        assert_eq!(lists[0], address != "no address", "{address}: {sent}");
    }
}

#[tokio::test]
async fn s7_5_a_failed_unicast_has_state_error() {
    let target = shared().await;
    target.mails.set_refused("s7.5.unicast@example.org", true);
    let asked = json!({
        "serviceName": "s7.5.unicast", "channel": "email", "userChannelId": "s7.5.unicast@example.org",
        "skipSubscriptionConfirmationCheck": true,
        "message": {"from": "a@example.org", "subject": "s", "textBody": "t"},
    });
    let sent = target.post("/notifications", asked.clone()).await;
    assert_eq!(sent["state"], "error", "{sent}");
    target.mails.set_refused("s7.5.unicast@example.org", false);
    assert_eq!(target.post("/notifications", asked).await["state"], "sent");
}

#[tokio::test]
async fn s7_5_an_asynchronous_broadcast_answers_at_once() {
    let target = shared().await;
    let record = target.subscribe("s7.5.async", "s7.5.async@example.org", json!({})).await;
    let asked = target.broadcast("s7.5.async", json!({"asyncBroadcastPushNotification": true})).await;
    assert!(["new", "sending"].contains(&text(&asked, "/state").as_str()), "{asked}");
    until("it is sent", async || target.notification(&id(&asked)).await["state"] == "sent").await;
    let sent = target.notification(&id(&asked)).await;
    assert_eq!(sent["dispatch"]["successful"], json!([record["id"]]));
    assert_eq!(target.mails_to("s7.5.async@example.org").len(), 1);
    let synchronous = target.broadcast("s7.5.async", json!({"asyncBroadcastPushNotification": false})).await;
    assert_eq!(synchronous["state"], "sent");
}

#[tokio::test]
async fn s7_5_a_callback_gets_the_final_record_once() {
    let target = shared().await;
    let record = target.subscribe("s7.5.callback", "s7.5.callback@example.org", json!({})).await;
    let url = format!("http://127.0.0.1:{}/callback/s7.5", target.hooks.port);
    let asked = target.broadcast("s7.5.callback", json!({"asyncBroadcastPushNotification": url})).await;
    until("the callback", async || !target.hooks_at("/callback/s7.5").is_empty()).await;
    let calls = target.hooks_at("/callback/s7.5");
    assert_eq!(calls.len(), 1);
    let (headers, body) = &calls[0];
    assert!(headers["content-type"].to_str().expect("a text").starts_with("application/json"), "{headers:?}");
    assert_eq!((&body["id"], &body["state"]), (&asked["id"], &json!("sent")));
    assert_eq!(body["dispatch"]["successful"], json!([record["id"]]));
    assert_eq!(target.notification(&id(&asked)).await["state"], "sent");
    // A receiver that is unreachable changes nothing.
    let url = format!("http://127.0.0.1:{}/", reserved_port());
    let asked = target.broadcast("s7.5.callback", json!({"asyncBroadcastPushNotification": url})).await;
    until("it is sent", async || target.notification(&id(&asked)).await["state"] == "sent").await;
}

#[tokio::test]
async fn s7_5_bounce_records_of_reached_addresses_get_the_times() {
    let target = shared().await;
    let service = "s7.5.bounces";
    target.mails.set_refused("s7.5.b.bad@example.org", true);
    let mut bounces = Vec::new();
    for (address, state) in [("good", "active"), ("bad", "active"), ("gone", "deleted"), ("later", "active")] {
        let address = format!("s7.5.b.{address}@example.org");
        target.subscribe(service, &address, json!({})).await;
        let mut bounce = json!({"channel": "email", "userChannelId": address, "state": state, "hardBounceCount": 1});
        if address.contains("later") {
            bounce["latestNotificationStarted"] = json!("2999-01-01T00:00:00.000Z");
            bounce["latestNotificationEnded"] = json!("2999-01-01T00:00:01.000Z");
        }
        bounces.push(target.post("/bounces", bounce).await);
    }
    let sent = target.broadcast(service, json!({})).await;
    let at = async |index: usize| target.get(&format!("/bounces/{}", id(&bounces[index]))).await;
    let good = at(0).await;
    assert!(text(&good, "/latestNotificationStarted") <= text(&good, "/latestNotificationEnded"), "{good}");
    assert!(text(&good, "/latestNotificationStarted") >= text(&sent, "/created"), "{good}");
    for index in [1, 2] {
        assert_eq!(at(index).await["latestNotificationStarted"], Value::Null);
    }
    assert_eq!(at(3).await["latestNotificationStarted"], "2999-01-01T00:00:00.000Z");
}

#[tokio::test]
async fn s7_5_a_put_sends_again() {
    let target = shared().await;
    target.subscribe("s7.5.put", "s7.5.put@example.org", json!({})).await;
    let mut sent = target.broadcast("s7.5.put", json!({})).await;
    let path = format!("/notifications/{}", id(&sent));
    sent["state"] = json!("new");
    target.call(Admin, "PUT", &path, Some(sent.clone())).await.expect(204);
    assert_eq!(target.mails_to("s7.5.put@example.org").len(), 1, "it is in `successful`");
    sent.as_object_mut().expect("an object").shift_remove("dispatch");
    target.call(Admin, "PUT", &path, Some(sent)).await.expect(204);
    assert_eq!(target.mails_to("s7.5.put@example.org").len(), 2);
}

/// Number of recipients of the interrupted broadcast.
const RECIPIENTS: usize = 60;

#[tokio::test]
async fn s7_5_a_broadcast_resumes_after_a_kill() {
    let mails = crate::target::RUNTIME.spawn(Mails::start()).await.expect("a receiver");
    let port = reserved_port();
    let folder = tempfile::tempdir().expect("a folder");
    let document = json!({
        "host": "127.0.0.1", "port": port, "notification": {"broadcastSubscriberChunkSize": 10},
        "email": {
            "smtp": {"host": "127.0.0.1", "port": mails.port, "secure": false},
            "throttle": {"enabled": true, "max": 20, "duration": 1000},
        },
    });
    let file = folder.path().join("notifybc.json");
    std::fs::write(&file, document.to_string()).expect("written");
    let file = file.to_str().expect("a text");
    let environment = [("TOCSIN_NOTIFYBC_CONFIG", file), ("TOCSIN_DELIVERY_ALLOW_NETWORKS", "127.0.0.0/8")];
    let mut platform = Platform::start_in(&folder.path().join("data"), &environment).await;
    let url = format!("http://127.0.0.1:{port}/api");
    let post = async |path: &str, body: Value| -> Value {
        let answer = platform.client.post(format!("{url}{path}")).json(&body).send().await.expect("an answer");
        assert_eq!(answer.status(), 200);
        answer.json().await.expect("JSON")
    };
    for index in 0..RECIPIENTS {
        let address = format!("kill{index}@example.org");
        post("/subscriptions", json!({"serviceName": "kill", "userChannelId": address, "state": "confirmed"})).await;
    }
    let asked = json!({
        "serviceName": "kill", "channel": "email", "isBroadcast": true, "asyncBroadcastPushNotification": true,
        "message": {"from": "a@example.org", "subject": "s", "textBody": "t"},
    });
    let path = format!("{url}/notifications/{}", id(&post("/notifications", asked).await));
    assert!(mails.wait_until(|| mails.count() >= 10).await);
    platform.kill();
    assert!(mails.count() < RECIPIENTS, "the broadcast ended before the kill");
    platform.restart().await;
    let mut record = Value::Null;
    tocsin_test_peers::until_within(Duration::from_secs(60), "the broadcast is sent", async || {
        if let Ok(answer) = platform.client.get(&path).send().await {
            record = answer.json().await.unwrap_or_default();
        }
        record["state"] == "sent"
    })
    .await;
    assert_eq!(sorted(&record["dispatch"]["successful"]).len(), RECIPIENTS, "{record}");
    let reached: BTreeSet<String> = mails.all().into_iter().flat_map(|mail| mail.to).collect();
    assert_eq!(reached.len(), RECIPIENTS);
    // Only mails whose answers were not stored at the kill are repeated.
    assert!(mails.count() < RECIPIENTS + 20, "{} mails", mails.count());
}

#[tokio::test]
async fn s7_5_the_throttle_limits_the_starts_of_each_window() {
    let target = lean().await;
    let service = "s7.5.throttle";
    for index in 0..9 {
        target.subscribe(service, &format!("s7.5.throttle{index}@example.org"), json!({})).await;
    }
    assert_eq!(target.broadcast(service, json!({})).await["state"], "sent");
    let mails = target.mails.all();
    let mut times: Vec<_> = mails
        .iter()
        .filter(|mail| mail.to.iter().any(|to| to.starts_with("s7.5.throttle")))
        .map(|mail| mail.received)
        .collect();
    times.sort();
    assert_eq!(times.len(), 9);
    // Nine starts need three windows.
    assert!(times[8] - times[0] >= Duration::from_millis(1_500), "{:?}", times[8] - times[0]);
}

// 7.6 SMS

/// Body of an SMS notification.
fn sms(service: &str, more: Value) -> Value {
    let mut body = json!({"serviceName": service, "channel": "sms", "message": {"textBody": "Hi {name} & co"}});
    body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    body
}

#[tokio::test]
async fn s7_6_swift() {
    let target = shared().await;
    let more = json!({"channel": "sms", "data": {"name": "Ann"}});
    let record = target.subscribe("s7.6.swift", "+1 250-555-0160", more).await;
    let sent = target.post("/notifications", sms("s7.6.swift", json!({"isBroadcast": true}))).await;
    assert_eq!(sent["dispatch"]["successful"], json!([record["id"]]), "{sent}");
    let path = format!("/swift/{SWIFT_ACCOUNT}/%2B1%20250-555-0160");
    let calls = target.hooks_at(&path);
    assert_eq!(calls.len(), 1, "{:?}", target.hooks.all());
    assert_eq!(calls[0].1, json!({"MessageBody": "Hi Ann & co", "Reference": record["id"]}));
    let unicast = json!({"userChannelId": "12505550161", "skipSubscriptionConfirmationCheck": true});
    assert_eq!(target.post("/notifications", sms("s7.6.swift", unicast)).await["state"], "sent");
    let calls = target.hooks_at(&format!("/swift/{SWIFT_ACCOUNT}/12505550161"));
    assert_eq!(calls[0].1, json!({"MessageBody": "Hi {name} & co"}));
}

#[tokio::test]
async fn s7_6_a_refused_sms_is_recorded() {
    let target = shared().await;
    target.hooks.set_refused("2505550165");
    let record = target.subscribe("s7.6.refused", "2505550165", json!({"channel": "sms"})).await;
    let sent = target.post("/notifications", sms("s7.6.refused", json!({"isBroadcast": true}))).await;
    let failed = &sent["dispatch"]["failed"][0];
    assert_eq!((&sent["state"], &failed["subscriptionId"]), (&json!("sent"), &record["id"]), "{sent}");
    assert!(text(&failed["error"], "/response").contains("400"), "{sent}");
    let unicast = json!({"userChannelId": "2505550165"});
    assert_eq!(target.post("/notifications", sms("s7.6.refused", unicast)).await["state"], "error");
}

/// Bodies of the requests to a path, as they are.
fn bodies(target: &Target, path: &str) -> Vec<(String, String)> {
    let at = target.hooks.all().into_iter().filter(|(uri, ..)| uri == path);
    at.map(|(_, headers, body)| {
        let authorization = headers.get("authorization").map_or("", |value| value.to_str().unwrap_or_default());
        (authorization.to_owned(), String::from_utf8_lossy(&body).into_owned())
    })
    .collect()
}

#[tokio::test]
async fn s7_6_twilio() {
    let target = logged().await;
    let more = json!({"channel": "sms", "data": {"name": "Ann"}});
    let record = target.subscribe("s7.6.twilio", "+12505550162", more).await;
    let sent = target.post("/notifications", sms("s7.6.twilio", json!({"isBroadcast": true}))).await;
    assert_eq!(sent["dispatch"]["successful"], json!([record["id"]]), "{sent}");
    let calls = bodies(target, "/2010-04-01/Accounts/AC1/Messages.json");
    assert_eq!(calls.len(), 1, "{:?}", target.hooks.all());
    assert_eq!(calls[0].0, "Basic QUMxOnNlY3JldA==");
    for part in ["To=%2B12505550162", "From=%2B12505550100", "Body=Hi"] {
        assert!(calls[0].1.split('&').any(|found| found.starts_with(part)), "{part}: {}", calls[0].1);
    }
}

#[tokio::test]
async fn s7_6_vonage() {
    let target = lean().await;
    let more = json!({"channel": "sms", "data": {"name": "Ann"}});
    target.subscribe("s7.6.vonage", "12505550163", more).await;
    let sent = target.post("/notifications", sms("s7.6.vonage", json!({"isBroadcast": true}))).await;
    assert_eq!(sent["state"], "sent");
    assert!(sent["dispatch"].get("failed").is_none(), "{sent}");
    let calls = bodies(target, "/sms/json");
    assert_eq!(calls.len(), 1, "{:?}", target.hooks.all());
    for value in ["key", "secret", "12505550100", "12505550163", "Ann"] {
        assert!(calls[0].1.contains(value), "{value}: {}", calls[0].1);
    }
}
