//! Last use and rotation of API keys.

use serde_json::{Value as Json, json};

use crate::platform::{Platform, answer};

async fn listed(platform: &Platform, id: &str) -> Json {
    let (status, list) = platform.get("/v1/keys").await;
    assert_eq!(status, 200, "{list}");
    let items = list["items"].as_array().expect("items");
    items.iter().find(|key| key["id"] == id).cloned().unwrap_or_default()
}

#[tokio::test]
async fn the_last_use_of_a_key_is_listed_with_the_address() {
    let platform = Platform::start().await;
    let (id, secret) = platform.make_key(&["operations:read"]).await;
    assert!(listed(&platform, &id).await["last_used_at"].is_null());
    let request = platform.client.get(format!("{}/v1/status", platform.address)).bearer_auth(&secret);
    assert_eq!(answer(request).await.0, 200);
    let key = listed(&platform, &id).await;
    assert!(key["last_used_at"].is_string(), "{key}");
    assert_eq!(key["last_used_from"], "127.0.0.1");
    platform.stop().await;
}

#[tokio::test]
async fn a_rotated_key_has_the_same_rights_and_the_old_one_expires() {
    let platform = Platform::start().await;
    let (id, secret) = platform.make_key(&["operations:read"]).await;
    let status = async |key: &str| {
        answer(platform.client.get(format!("{}/v1/status", platform.address)).bearer_auth(key)).await.0.as_u16()
    };
    let rotate = |id: &str, body: Json| answer(platform.request("POST", &format!("/v1/keys/{id}/rotate")).json(&body));
    let (code, made) = rotate(&id, json!({})).await;
    assert_eq!((code.as_u16(), &made["replaces"]), (201, &json!(id)), "{made}");
    assert_eq!(made["scopes"], json!(["operations:read"]));
    let new = made["key"].as_str().expect("a key").to_owned();
    assert_eq!((status(&secret).await, status(&new).await), (200, 200), "both are valid");
    assert_eq!(listed(&platform, &id).await["expires_at"], made["replaced_expires_at"]);

    let new_id = made["id"].as_str().expect("an id");
    let (code, made) = rotate(new_id, json!({"overlap": "0s"})).await;
    assert_eq!((code.as_u16(), &made["replaced_expires_at"]), (201, &Json::Null), "{made}");
    assert_eq!((status(&new).await, status(made["key"].as_str().expect("a key")).await), (401, 200));
    assert_eq!(rotate("none", json!({})).await.0, 404);
    assert_eq!(rotate(&id, json!({"overlap": "31d"})).await.0, 422);
    assert_eq!(rotate(&id, json!({"overlap": "soon"})).await.0, 422);
    platform.stop().await;
}
