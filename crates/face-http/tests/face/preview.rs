//! Tests of previews and test messages.

use serde_json::json;

use crate::platform::{Platform, QUAKES, answer};

const JSON: &str = "application/json";
const PREVIEW: &str = "/v1/applications/quakes/preview";
const TEST: &str = "/v1/applications/quakes/send-test";

#[tokio::test]
async fn a_notification_is_shown_before_anybody_is_told() {
    let platform = Platform::with_quakes().await;
    let asked = json!({"event": {"place": "Kobe", "magnitude": 6.4}, "channel": "mail", "locale": "de-AT"});
    let (status, found) = platform.post(PREVIEW, JSON, &asked.to_string()).await;
    assert_eq!(status, 200, "{found}");
    assert_eq!(found["parts"], json!([{"part": "text", "template": "base", "content": "A quake at Kobe"}]), "{found}");
    assert_eq!(found["looked_for"], json!(["de-AT/mail", "de/mail", "de-AT", "de", "mail", "base"]));
    assert_eq!((&found["class"], &found["fields"]), (&json!("shaken"), &json!({"place": "Kobe"})));

    // A stored event and subscriber, with a definition that is not applied.
    let event = r#"{"place":"Lima","magnitude":7}"#;
    let (_, body) = platform.post("/v1/applications/quakes/events/quake", JSON, event).await;
    let id = body["batch"].as_str().expect("a batch").replace("eb-", "e-") + "-0";
    let definition = QUAKES.replace(
        "{text: 'A quake at {{ place }}'}",
        "{subject: '{{ subscriber.id }}', html: '<p>{{ place|upper }}</p>', sms: '{{ oops.x }}'}",
    );
    let asked =
        json!({"event": id, "subscriber": "alice", "definition": definition.replace("oops.x", "event.place + 1")});
    let (status, found) = platform.post(PREVIEW, JSON, &asked.to_string()).await;
    assert_eq!(status, 200, "{found}");
    let parts = found["parts"].as_array().expect("parts");
    let of = |part: &str| parts.iter().find(|found| found["part"] == part).cloned().unwrap_or_default();
    assert_eq!(of("subject")["content"], "alice", "{found}");
    assert_eq!((&of("text")["content"], &of("text")["template"]), (&json!("LIMA\n"), &json!(null)), "{found}");
    assert!(of("sms")["error"].as_str().is_some_and(|error| error.contains("line 1")), "{found}");
    let asked = json!({"event": id, "definition": definition});
    let (status, found) = platform.post(PREVIEW, JSON, &asked.to_string()).await;
    assert_eq!(status, 422, "{found}");
    assert!(found["problems"][0]["message"].as_str().is_some_and(|message| message.contains("oops")), "{found}");
    platform.stop().await;
}

#[tokio::test]
async fn what_cannot_be_shown_says_why() {
    let platform = Platform::with_quakes().await;
    for (asked, status, words) in [
        (json!({}), 422, "is missing"),
        (json!({"event": "e-999-0"}), 404, "e-999-0"),
        (json!({"event": "quake"}), 422, "no id of an event"),
        (json!({"event": {"place": 5}}), 422, "event"),
        (json!({"event": {"place": "a", "magnitude": 1}, "rule": "strong_enuf"}), 422, "strong_enough"),
        (json!({"event": {"place": "a", "magnitude": 1}, "channel": "fax"}), 422, "mail"),
        (json!({"event": {"place": "a", "magnitude": 1}, "subscriber": "nobody"}), 404, "nobody"),
        (json!({"event": {"place": "a", "magnitude": 1}, "subscription": "s-999"}), 404, "s-999"),
        (json!({"event": {"place": "a", "magnitude": 1}, "subscription": {"magnitud": 1}}), 422, "magnitud"),
        (json!({"event": {"place": "a", "magnitude": 1}, "subscriber": {"language": "de"}}), 422, "language"),
        (json!({"event": {"place": "a", "magnitude": 1}, "locale": "de_AT"}), 422, "not a language tag"),
        (
            json!({"event": {"place": "a", "magnitude": 1}, "subscriber": {"time_zone": "Mars/Olympus"}}),
            422,
            "not a time zone",
        ),
        (json!({"events": []}), 422, "events"),
    ] {
        let (found, body) = platform.post(PREVIEW, JSON, &asked.to_string()).await;
        assert!(found == status || found == 400, "{asked}: {found} {body}");
        assert!(body.to_string().contains(words), "{asked}: {body}");
    }
    let (status, body) = platform.post("/v1/applications/none/preview", JSON, r#"{"event":{}}"#).await;
    assert_eq!(status, 404, "{body}");
    let (status, body) = platform.post(TEST, JSON, r#"{"event":{"place":"a","magnitude":1},"channel":"mail"}"#).await;
    assert_eq!(status, 422, "{body}");
    assert!(body.to_string().contains("address"), "{body}");
    platform.stop().await;
}

#[tokio::test]
async fn a_test_goes_past_the_flow() {
    let platform = Platform::with_quakes().await;
    let asked = json!({"event": {"place": "Kobe", "magnitude": 6.4}, "channel": "mail", "address": "me@example.org"});
    let (status, sent) = platform.post(TEST, JSON, &asked.to_string()).await;
    assert_eq!(status, 200, "{sent}");
    assert_eq!((&sent["outcome"], &sent["address"]), (&json!("delivered"), &json!("me@example.org")), "{sent}");
    let (_, found) = platform.get("/v1/notification-batches").await;
    assert_eq!(found["items"], json!([]), "{found}");
    platform.stop().await;
}

#[tokio::test]
async fn who_may_not_apply_learns_nothing_of_the_environment() {
    let platform = Platform::with_quakes().await;
    let definition = QUAKES.replace("{path: out.ndjson}", "{path: '${SECRET}'}");
    let asked = json!({"event": {"place": "Kobe", "magnitude": 6.4}, "definition": definition}).to_string();
    // An unset variable is reported to callers that may apply definitions.
    let (status, found) = platform.post(PREVIEW, JSON, &asked).await;
    assert_eq!(status, 422, "{found}");
    assert!(found.to_string().contains("`SECRET`, which is not set"), "{found}");
    let (_, made) = platform.post("/v1/keys", JSON, &json!({"scopes": ["operations:read"]}).to_string()).await;
    let request = platform.client.post(format!("{}{PREVIEW}", platform.address));
    let request = request.bearer_auth(made["key"].as_str().expect("a key")).header("content-type", JSON);
    let (status, found) = answer(request.body(asked)).await;
    assert_eq!(status, 200, "{found}");
    platform.stop().await;
}
