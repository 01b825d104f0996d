//! Suppressed addresses: set, reported, listed, exported.

use serde_json::{Value as Json, json};

use crate::platform::{Platform, answer};

const JSON: &str = "application/json";
const NDJSON: &str = "application/x-ndjson";

/// Without times.
fn plain(mut body: Json) -> Json {
    for name in ["since", "updated_at", "origin", "origin_name"] {
        body.as_object_mut().expect("an object").remove(name);
    }
    body
}

/// Sends a notification to alice; returns its id after it was delivered or rejected.
async fn notify(platform: &Platform, event_batch: usize) -> (String, Json) {
    let event = r#"{"place": "Kobe", "magnitude": 6.1}"#;
    let (status, body) = platform.post("/v1/applications/quakes/events/quake", JSON, event).await;
    assert_eq!(status, 202, "{body}");
    let id = format!("n-{event_batch}-0");
    loop {
        let (status, found) = platform.get(&format!("/v1/notifications/{id}")).await;
        if status == 200 && found["attempts"].as_array().is_some_and(|attempts| !attempts.is_empty()) {
            return (id, found);
        }
        tokio::task::yield_now().await;
    }
}

async fn subscribe_alice(platform: &Platform) {
    let interest = r#"{"application": "quakes", "class": "strong", "subscriber": "alice", "values": {"magnitude": 5}}"#;
    let (status, body) = platform.post("/v1/subscriptions", JSON, interest).await;
    assert_eq!(status, 201, "{body}");
}

#[tokio::test]
async fn a_bounce_of_a_notification_suppresses_its_address() {
    let platform = Platform::with_quakes().await;
    subscribe_alice(&platform).await;
    let (id, _) = notify(&platform, 1).await;
    let report = json!({"reports": [
        {"kind": "bounce", "notification": id, "status": "5.1.1", "detail": "550 5.1.1 no such user", "origin": "postmark"},
        {"kind": "bounce", "notification": "n-99-0", "permanent": true},
        {"kind": "sneeze", "protocol": "file", "address": "x"},
    ]});
    let (status, body) = platform.post("/v1/suppressions/reports", JSON, &report.to_string()).await;
    assert_eq!(status, 200, "{body}");
    assert_eq!(
        plain(body["items"][0]["suppression"].clone()),
        json!({"protocol": "file", "address": "alice@example.org", "cause": "hard_bounce", "in_force": true, "bounces": 0,
            "detail": "550 5.1.1 no such user", "notification": id})
    );
    assert_eq!(body["items"][1]["problems"][0]["path"], "notification");
    assert_eq!(body["items"][2]["problems"][0]["path"], "kind");

    let (_, refused) = notify(&platform, 2).await;
    assert_eq!(refused["state"], "refused");
    assert_eq!(refused["attempts"][0]["reply"], "the address is suppressed: a message came back for good");
    let (status, _) = answer(platform.request("DELETE", "/v1/suppressions/addresses/file/alice%40example.org")).await;
    assert_eq!(status, 204);
    let (_, delivered) = notify(&platform, 3).await;
    assert_eq!(delivered["state"], "delivered");
    platform.stop().await;
}

#[tokio::test]
async fn one_is_set_read_listed_and_lifted() {
    let platform = Platform::with_quakes().await;
    let path = "/v1/suppressions/addresses/smtp/Bob%2Bnews%40example.org";
    assert_eq!(platform.get(path).await.0, 404);
    let (status, body) = platform.put(path, JSON, r#"{"detail": "asked by phone"}"#).await;
    assert_eq!(status, 201, "{body}");
    let expected = json!({"protocol": "smtp", "address": "bob+news@example.org", "cause": "manual", "in_force": true,
        "bounces": 0, "detail": "asked by phone"});
    assert_eq!(plain(body), expected);
    let (status, body) =
        platform.put(path, JSON, r#"{"cause": "complaint", "expires_at": "2999-01-01T00:00:00Z"}"#).await;
    assert_eq!(
        (status.as_u16(), &body["cause"], &body["expires_at"]),
        (200, &json!("complaint"), &json!("2999-01-01T00:00:00Z"))
    );
    let (status, body) = platform.put(path, JSON, r#"{"cause": "manual"}"#).await;
    assert_eq!((status.as_u16(), &body["cause"]), (200, &json!("complaint")), "a weaker cause replaces no stronger");
    let device = "/v1/suppressions/devices/alice/mail";
    let (status, body) = platform.put(device, JSON, r#"{"address": "Alice@example.org"}"#).await;
    assert_eq!((status.as_u16(), &body["address"]), (201, &json!("alice@example.org")));
    assert_eq!(platform.put("/v1/suppressions/devices/alice/phone", JSON, "{}").await.0, 404);

    let list = async |query: &str| {
        let (status, body) = platform.get(&format!("/v1/suppressions{query}")).await;
        assert_eq!(status, 200, "{body}");
        let whose = |item: &Json| item["subscriber"].as_str().or(item["address"].as_str()).expect("whose").to_owned();
        body["items"].as_array().expect("a list").iter().map(whose).collect::<Vec<_>>()
    };
    assert_eq!(list("").await, ["bob+news@example.org", "alice"]);
    assert_eq!(list("?protocol=smtp").await, ["bob+news@example.org"]);
    assert_eq!(list("?subscriber=alice").await, ["alice"]);
    assert_eq!(list("?cause=complaint&contains=NEWS").await, ["bob+news@example.org"]);
    assert_eq!(list("?in_force=false").await, Vec::<String>::new());
    let (_, page) = platform.get("/v1/suppressions?limit=1").await;
    let next = page["next"].as_str().expect("a next page");
    assert_eq!(list(&format!("?limit=1&after={next}")).await, ["alice"]);
    assert_eq!(answer(platform.request("DELETE", device)).await.0, 204);
    assert_eq!(answer(platform.request("DELETE", device)).await.0, 404);
    platform.stop().await;
}

#[tokio::test]
async fn bad_input_is_told_completely() {
    let platform = Platform::with_quakes().await;
    let problems = |body: &Json| {
        let answered = body["problems"].as_array().map(Vec::as_slice).unwrap_or_default();
        answered.iter().map(|problem| problem["path"].as_str().unwrap_or_default().to_owned()).collect::<Vec<_>>()
    };
    let (status, body) = platform.put("/v1/suppressions/addresses/smpt/a%40b", JSON, "{}").await;
    assert_eq!((status.as_u16(), problems(&body)), (422, vec!["protocol".to_owned()]));
    let wrong = r#"{"cause": "mood", "origin": "", "expires_at": "2020-01-01T00:00:00Z", "address": "c@d"}"#;
    let (status, body) = platform.put("/v1/suppressions/addresses/smtp/a%40b", JSON, wrong).await;
    assert_eq!(
        (status.as_u16(), problems(&body)),
        (422, ["address", "cause", "origin", "expires_at"].map(str::to_owned).to_vec())
    );
    let (status, body) = platform.get("/v1/suppressions?cause=mood&protocol=smpt").await;
    assert_eq!((status.as_u16(), problems(&body).len()), (422, 2));
    for (report, path) in [
        (json!({"kind": "bounce", "protocol": "smtp", "address": "a@b"}), "reports[0].permanent"),
        (json!({"kind": "bounce", "status": "2.0.0", "protocol": "smtp", "address": "a@b"}), "reports[0].status"),
        (json!({"kind": "complaint", "status": "5.1.1", "protocol": "smtp", "address": "a@b"}), "reports[0].status"),
        (json!({"kind": "complaint"}), "reports[0]"),
        (json!({"kind": "complaint", "address": "a@b"}), "reports[0].protocol"),
        (json!({"kind": "complaint", "subscriber": "alice", "device": "phone"}), "reports[0].device"),
        (json!({"kind": "complaint", "notification": "n-1"}), "reports[0].notification"),
        (
            json!({"kind": "complaint", "protocol": "smtp", "address": "a@b", "only_device": true}),
            "reports[0].only_device",
        ),
    ] {
        let (status, body) =
            platform.post("/v1/suppressions/reports", JSON, &json!({"reports": [report]}).to_string()).await;
        assert_eq!((status.as_u16(), problems(&body)), (422, vec![path.to_owned()]), "{body}");
    }
    let (status, _) = platform.post("/v1/suppressions/reports", JSON, r#"{"reports": []}"#).await;
    assert_eq!(status, 422);

    let key = json!({"description": "postmark", "scopes": ["bounces:write"]});
    let (_, made) = platform.post("/v1/keys", JSON, &key.to_string()).await;
    let key = made["key"].as_str().expect("a key").to_owned();
    let provider = platform.client.get(format!("{}/v1/suppressions", platform.address)).bearer_auth(&key);
    assert_eq!(answer(provider).await.0, 403);
    let report = r#"{"reports": [{"kind": "complaint", "protocol": "smtp", "address": "a@b"}]}"#;
    let post = platform.client.post(format!("{}/v1/suppressions/reports", platform.address)).bearer_auth(&key);
    let (status, body) = answer(post.header("content-type", JSON).body(report)).await;
    assert_eq!((status.as_u16(), &body["items"][0]["suppression"]["cause"]), (200, &json!("complaint")), "{body}");
    platform.stop().await;
}

#[tokio::test]
async fn what_goes_out_comes_in_again() {
    let (from, to) = (Platform::with_quakes().await, Platform::with_quakes().await);
    let given = [
        r#"{"protocol": "smtp", "address": "=a@example.org", "cause": "hard_bounce", "since": "2026-01-02T03:04:05Z", "origin": "old", "detail": "550, \"no\""}"#,
        r#"{"protocol": "http", "address": "https://example.org/Hook/1", "expires_at": "2999-01-01T00:00:00Z"}"#,
        r#"{"subscriber": "alice", "device": "mail", "address": "alice@example.org", "cause": "unsubscribed"}"#,
        r#"{"subscriber": "alice"}"#,
    ];
    let import = async |platform: &Platform, kind: &str, body: String| {
        let request = platform.request("POST", "/v1/import/suppressions").header("content-type", kind).body(body);
        request.send().await.expect("an answer").text().await.expect("a body")
    };
    let answer = import(&from, NDJSON, given.join("\n")).await;
    assert!(answer.ends_with("{\"lines\":4,\"stored\":3,\"failed\":1}\n"), "{answer}");
    for (format, kind) in [("ndjson", NDJSON), ("csv", "text/csv")] {
        let export = async |platform: &Platform, format: &str| {
            let path = format!("/v1/export/suppressions?format={format}");
            platform.request("GET", &path).send().await.expect("an answer").text().await.expect("a body")
        };
        let out = export(&from, format).await;
        let answer = import(&to, kind, out.clone()).await;
        assert_eq!(answer, "{\"lines\":3,\"stored\":3,\"failed\":0}\n", "{out}");
        let content = |text: String| -> Vec<Json> {
            let read = |line: &str| {
                let mut line: Json = serde_json::from_str(line).expect("JSON");
                line.as_object_mut().expect("an object").remove("updated_at");
                line
            };
            text.lines().map(read).collect()
        };
        assert_eq!(content(export(&to, "ndjson").await), content(export(&from, "ndjson").await), "{format}");
    }
    from.stop().await;
    to.stop().await;
}
