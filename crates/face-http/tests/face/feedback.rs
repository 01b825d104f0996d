//! Feedback by mail: what a mail at a return address does, and the log of it.

use std::time::Duration;

use serde_json::{Value as Json, json};
use tocsin_feedback::return_address::{DeviceTag, Origin, Position, Purpose, Reference, ReturnAddresses, Target};
use tocsin_model::id::{NotificationBatchId, NotificationId, SubscriberNumber, SubscriptionId};

use crate::platform::{Platform, RETURN_DOMAIN, answer};

const MAIL: &str = "message/rfc822";
const ALICE: &str = "alice@example.org";

fn bounce(recipient: &str, text: &str) -> String {
    format!(
        "From: MAILER-DAEMON@mx.example\r\nSubject: Undelivered Mail Returned to Sender\r\n\r\n\
         This message could not be delivered.\r\n\r\n<{recipient}>: {text}\r\n"
    )
}

/// A return address of the platform.
fn return_address(platform: &Platform, origin: Origin) -> String {
    let days = Duration::from_secs(30 * 86_400);
    let base = format!("any@{RETURN_DOMAIN}");
    let addresses = ReturnAddresses::new(&base, Position::WholeLocalPart, &[platform.secret], days);
    addresses.expect("a configuration").issue(&origin, platform.service.now()).expect("an address")
}

fn notification(batch: u64) -> Reference {
    Reference::Notification(NotificationId { batch: NotificationBatchId(batch), ordinal: 0 })
}

fn to_device(reference: Reference, address: &str) -> Origin {
    let target = Target::Device(SubscriberNumber(1), DeviceTag::of(address));
    Origin { purpose: Purpose::Bounce, reference, target }
}

/// Passes a mail to the server: its results as `class effect target`.
async fn pass(platform: &Platform, origin: Origin, mail: &str) -> Vec<String> {
    let path = format!("/v1/feedback-mails?recipient={}", return_address(platform, origin));
    let (status, body) = platform.post(&path, MAIL, mail).await;
    assert_eq!(status, 200, "{body}");
    let show = |item: &Json| {
        let text = |name: &str| item[name].as_str().unwrap_or("-").to_owned();
        format!("{} {} {}", text("class"), text("effect"), text("target"))
    };
    body["items"].as_array().expect("a list").iter().map(show).collect()
}

async fn suppressed(platform: &Platform, address: &str) -> bool {
    let (status, body) = platform.get(&format!("/v1/suppressions/addresses/smtp/{address}")).await;
    status == 200 && body["in_force"] == true
}

async fn subscribe(platform: &Platform) -> u64 {
    let interest = r#"{"application": "quakes", "class": "strong", "subscriber": "alice", "values": {"magnitude": 5}}"#;
    let (status, body) = platform.post("/v1/subscriptions", "application/json", interest).await;
    assert_eq!(status, 201, "{body}");
    body["id"].as_str().and_then(|id| id.trim_start_matches("s-").parse().ok()).expect("an id")
}

#[tokio::test]
async fn a_bounce_at_a_signed_address_suppresses_its_device_and_is_logged_once() {
    let platform = Platform::with_quakes().await;
    let mail = bounce(ALICE, "550 5.1.1 User unknown (in reply to RCPT TO command)");
    let origin = to_device(notification(7), ALICE);
    let target = "address/smtp/alice@example.org";
    assert_eq!(pass(&platform, origin, &mail).await, [format!("hard suppressed {target}")]);
    assert_eq!(pass(&platform, origin, &mail).await, [format!("hard repeated {target}")]);
    assert!(suppressed(&platform, ALICE).await);
    let (status, log) = platform.get("/v1/feedback?class=hard").await;
    assert_eq!(status, 200, "{log}");
    let items = log["items"].as_array().expect("a list");
    assert_eq!(items.len(), 1, "{log}");
    let mut item = items[0].clone();
    item.as_object_mut().expect("an object").remove("at");
    let expected = json!({"class": "hard", "target": target, "stage": "report", "counts": true, "effect": "suppressed",
        "origin": "mail", "detail": "<alice@example.org>: 550 5.1.1 User unknown (in reply to RCPT TO command)", "status": "5.1.1",
        "notification": "n-7-0", "subscriber": "alice", "device": "mail"});
    assert_eq!(item, expected);
    let (_, none) = platform.get("/v1/feedback?class=hard&target=address/smtp/bob@example.org").await;
    assert_eq!(none["items"], json!([]));

    // Lifted by an operator: the same bounce is known, and counts no more.
    let path = format!("/v1/suppressions/addresses/smtp/{ALICE}");
    assert_eq!(answer(platform.request("DELETE", &path)).await.0, 204);
    assert_eq!(pass(&platform, origin, &mail).await, [format!("hard repeated {target}")]);
    assert!(!suppressed(&platform, ALICE).await);
    let next = to_device(notification(8), ALICE);
    assert_eq!(pass(&platform, next, &mail).await, [format!("hard suppressed {target}")]);
    platform.stop().await;
}

#[tokio::test]
async fn nothing_follows_from_an_address_that_is_not_ours_or_concerns_another() {
    let platform = Platform::with_quakes().await;
    let mail = bounce(ALICE, "550 5.1.1 User unknown (in reply to RCPT TO command)");
    let own = return_address(&platform, to_device(notification(7), ALICE));
    let mut forged = own.clone().into_bytes();
    forged[3] = if forged[3] == b'a' { b'b' } else { b'a' };
    let forged = String::from_utf8(forged).expect("letters");
    for recipient in [forged.as_str(), ALICE, "x@bounces.example", ""] {
        let (status, body) = platform.post(&format!("/v1/feedback-mails?recipient={recipient}"), MAIL, &mail).await;
        assert_eq!(status, 422, "{body}");
        assert_eq!(body["problems"][0]["path"], "recipient", "{body}");
    }
    // The device has another address now; the subscriber is another one.
    let former = to_device(notification(7), "former@example.org");
    assert_eq!(pass(&platform, former, &mail).await, ["hard unknown_target -"]);
    let target = Target::Device(SubscriberNumber(99), DeviceTag::of(ALICE));
    let other = Origin { target, ..to_device(notification(7), ALICE) };
    assert_eq!(pass(&platform, other, &mail).await, ["hard unknown_target -"]);
    // All recipients of a multicast know its address: only its own recipients count, and softly.
    let many = Reference::Multicast(NotificationBatchId(7));
    let many = Origin { purpose: Purpose::Bounce, reference: many, target: Target::Reported };
    assert_eq!(pass(&platform, many, &mail).await, ["soft unknown_target -"], "the batch is unknown");
    assert!(!suppressed(&platform, ALICE).await);
    let (_, key) = platform.make_key(&["events:write"]).await;
    let request = platform.client.post(format!("{}/v1/feedback-mails?recipient={own}", platform.address));
    let request = request.bearer_auth(key).header("content-type", MAIL).body(mail.clone());
    assert_eq!(answer(request).await.0, 403);
    let (status, _) = platform.post(&format!("/v1/feedback-mails?recipient={own}"), "text/plain", &mail).await;
    assert_eq!(status, 415);
    platform.stop().await;
}

#[tokio::test]
async fn the_recipient_of_a_multicast_is_one_of_its_batch() {
    let platform = Platform::with_quakes().await;
    subscribe(&platform).await;
    let event = r#"{"place": "Kobe", "magnitude": 6.1}"#;
    let (status, body) = platform.post("/v1/applications/quakes/events/quake", "application/json", event).await;
    assert_eq!(status, 202, "{body}");
    while platform.get("/v1/notifications/n-1-0").await.0 != 200 {
        tokio::task::yield_now().await;
    }
    let reference = Reference::Multicast(NotificationBatchId(1));
    let origin = Origin { purpose: Purpose::Bounce, reference, target: Target::Reported };
    let text = "550 5.1.1 User unknown (in reply to RCPT TO command)";
    let expected = ["soft counted address/smtp/alice@example.org"];
    assert_eq!(pass(&platform, origin, &bounce("Alice@EXAMPLE.org", text)).await, expected);
    assert_eq!(pass(&platform, origin, &bounce("victim@example.org", text)).await, ["soft unknown_target -"]);
    let (_, trace) = platform.get("/v1/trace/nb-1").await;
    let points = trace["timeline"].as_array().expect("points");
    assert!(points.iter().any(|point| point["what"] == "feedback"), "{trace}");
    platform.stop().await;
}

#[tokio::test]
async fn a_person_ends_a_subscription_by_mail_and_a_program_does_not() {
    let platform = Platform::with_quakes().await;
    let subscription = subscribe(&platform).await;
    let target = Target::Subscription(SubscriptionId(subscription));
    let origin = Origin { purpose: Purpose::Unsubscribe, reference: notification(7), target };
    let enabled = async || platform.get(&format!("/v1/subscriptions/s-{subscription}")).await.1["enabled"].clone();
    let away = "From: alice@example.org\r\nSubject: Out of office\r\nAuto-Submitted: auto-replied\r\n\r\nAway.\r\n";
    assert_eq!(pass(&platform, origin, away).await, [""; 0]);
    assert_eq!(enabled().await, true);
    let goodbye = "From: alice@example.org\r\nSubject: unsubscribe\r\n\r\n";
    assert_eq!(pass(&platform, origin, goodbye).await, ["unsubscribe unsubscribed -"]);
    assert_eq!(enabled().await, false);
    assert_eq!(pass(&platform, origin, goodbye).await, ["unsubscribe repeated -"]);
    platform.stop().await;
}

#[tokio::test]
async fn a_complaint_from_a_feedback_loop_concerns_the_return_address_of_the_reported_mail() {
    let platform = Platform::with_quakes().await;
    let sender = return_address(&platform, to_device(notification(7), ALICE));
    let complaint = |report: &str, original: &str| {
        format!(
            "From: fbl@provider.example\r\nSubject: FW\r\nMIME-Version: 1.0\r\n\
             Content-Type: multipart/report; report-type=feedback-report; boundary=b\r\n\r\n\
             --b\r\nContent-Type: message/feedback-report\r\n\r\nFeedback-Type: abuse\r\nVersion: 1\r\n{report}\r\n\
             --b\r\nContent-Type: message/rfc822\r\n\r\n{original}From: news@news.example\r\n\
             Message-ID: <a@news.example>\r\n\r\nNews\r\n--b--\r\n"
        )
    };
    let pass = async |mail: String| {
        let (status, body) = platform.post("/v1/feedback-mails", MAIL, &mail).await;
        assert_eq!(status, 200, "{body}");
        let lifted = platform.request("DELETE", &format!("/v1/suppressions/addresses/smtp/{ALICE}"));
        (body["items"][0]["effect"].clone(), answer(lifted).await.0 == 204)
    };
    let mut forged = sender.clone().into_bytes();
    forged[3] = if forged[3] == b'a' { b'b' } else { b'a' };
    let forged = String::from_utf8(forged).expect("letters");
    for path in [&forged, "someone@example.org"] {
        let mail = complaint(&format!("Original-Mail-From: <{path}>\r\n"), "");
        assert_eq!(pass(mail).await, (Json::Null, false), "{path}");
    }
    let mail = complaint(&format!("Original-Mail-From: <{sender}>\r\n"), "");
    assert_eq!(pass(mail).await, (json!("suppressed"), true));
    // The copy has it too; the notification was reported before.
    let mail = complaint("", &format!("Return-Path: <{sender}>\r\n"));
    assert_eq!(pass(mail).await, (json!("repeated"), false));
    let next = return_address(&platform, to_device(notification(8), ALICE));
    let mail = complaint("", &format!("List-Unsubscribe: <https://t.example/u>,\r\n <mailto:{next}?subject=u>\r\n"));
    assert_eq!(pass(mail).await, (json!("suppressed"), true));
    platform.stop().await;
}

#[tokio::test]
async fn the_log_rejects_filters_that_cannot_be_meant() {
    let platform = Platform::start().await;
    for (query, path) in [("class=sneeze", "class"), ("limit=0", "limit"), ("after=x", "after")] {
        let (status, body) = platform.get(&format!("/v1/feedback?{query}")).await;
        assert_eq!((status.as_u16(), &body["problems"][0]["path"]), (422, &json!(path)), "{query}: {body}");
    }
    assert_eq!(platform.get("/v1/feedback?target=nothing").await.0, 422);
    platform.stop().await;
}
