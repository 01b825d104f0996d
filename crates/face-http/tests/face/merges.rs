//! Merges of an address-only subscriber into an account.

use serde_json::{Value as Json, json};

use crate::platform::Platform;

const JSON: &str = "application/json";

async fn merge(platform: &Platform, into: &str, body: Json) -> (u16, Json) {
    let (status, body) = platform.post(&format!("/v1/subscribers/{into}/merge"), JSON, &body.to_string()).await;
    (status.as_u16(), body)
}

#[tokio::test]
async fn a_verification_token_that_is_returned_permits_a_merge() {
    let platform = Platform::with_quakes().await;
    let anonymous =
        r#"{"attributes": {"city": "Wien"}, "devices": {"main": {"channel": "mail", "address": "a@example.org"}}}"#;
    assert_eq!(platform.put("/v1/subscribers/cookie-81", JSON, anonymous).await.0, 201);
    let interest =
        r#"{"application": "quakes", "class": "strong", "subscriber": "cookie-81", "values": {"magnitude": 5}}"#;
    let (status, made) = platform.post("/v1/subscriptions", JSON, interest).await;
    assert_eq!(status, 201, "{made}");
    let path = format!("/v1/subscriptions/{}", made["id"].as_str().expect("an id"));

    let verify = async |subscriber: &str, body: &str| {
        let (status, body) =
            platform.post(&format!("/v1/subscribers/{subscriber}/verification-token"), JSON, body).await;
        (status.as_u16(), body)
    };
    assert_eq!(verify("nobody", r#"{"device": "main"}"#).await.0, 404);
    assert_eq!(verify("cookie-81", r#"{"device": "other"}"#).await.0, 404);
    let (status, malformed) = verify("cookie-81", r#"{"device": "a/b"}"#).await;
    let code = |problem: &Json| problem["problems"][0]["code"].clone();
    assert_eq!((status, code(&malformed)), (422, json!("invalid_format")), "{malformed}");
    assert_eq!(verify("cookie-81", r#"{"device": "main", "expires_in": 0}"#).await.0, 422);
    assert_eq!(verify("cookie-81", r#"{"device": "main", "expires_in": 604801}"#).await.0, 422);
    let (status, good) = verify("cookie-81", r#"{"device": "main"}"#).await;
    assert_eq!(status, 201, "{good}");
    let (_, of_another) = verify("alice", r#"{"device": "mail"}"#).await;

    for (into, body, status, path) in [
        ("alice", json!({"from": "cookie-81"}), 422, "verification_token"),
        ("alice", json!({"from": "cookie-81", "verification_token": "claim.1.2.3"}), 422, "verification_token"),
        (
            "alice",
            json!({"from": "cookie-81", "verification_token": of_another["verification_token"]}),
            422,
            "verification_token",
        ),
        (
            "alice",
            json!({"from": "cookie-81", "verification_token": good["verification_token"], "unverified": true}),
            422,
            "unverified",
        ),
        ("cookie-81", json!({"from": "cookie-81", "verification_token": good["verification_token"]}), 422, "from"),
        ("nobody", json!({"from": "cookie-81", "verification_token": good["verification_token"]}), 404, ""),
        ("alice", json!({"from": "nobody", "verification_token": good["verification_token"]}), 404, ""),
        ("alice", json!({"from": "a/b", "unverified": true}), 422, "from"),
    ] {
        let (got, problem) = merge(&platform, into, body.clone()).await;
        assert_eq!(got, status, "{body}: {problem}");
        assert!(path.is_empty() || problem["problems"][0]["path"] == path, "{body}: {problem}");
        let is_missing = path == "verification_token" && body.get(path).is_none();
        assert_eq!(code(&problem) == "required", is_missing, "{body}: {problem}");
    }

    let request = json!({"from": "cookie-81", "verification_token": good["verification_token"]});
    let (status, merged) = merge(&platform, "alice", request.clone()).await;
    assert_eq!(status, 200, "{merged}");
    assert_eq!((&merged["subscriptions"], &merged["again"]), (&json!(1), &json!(false)), "{merged}");
    assert_eq!(merged["devices"], json!({"main": "main"}));
    assert_eq!(merged["attributes"], json!(["city"]));
    assert_eq!(platform.get("/v1/subscribers/cookie-81").await.0, 404);
    let (_, alice) = platform.get("/v1/subscribers/alice").await;
    assert_eq!(alice["devices"]["main"]["address"], "a@example.org");
    assert_eq!(platform.get(&path).await.1["subscriber"], "alice", "under the same number");

    let (status, again) = merge(&platform, "alice", request.clone()).await;
    assert_eq!((status, &again["again"], &again["at"]), (200, &json!(true), &merged["at"]), "{again}");
    assert_eq!(platform.put("/v1/subscribers/bob", JSON, "{}").await.0, 201);
    let (status, problem) = merge(&platform, "bob", request).await;
    assert_eq!((status, problem["problems"][0]["path"].as_str()), (422, Some("from")), "{problem}");
    platform.stop().await;
}
