//! Section 6: configurations, bounce records, administrators and the other routes.

use serde_json::{Value, json};

use crate::server::{NotifybcServer, Role, query};

const PASSWORD: &str = "1aA@aaaaaa";

#[tokio::test]
async fn s6_2_a_feed_configuration_gets_the_host_of_the_request() {
    let server = NotifybcServer::start_without_admin(json!({})).await;
    let body = |more: Value| {
        let mut body = json!({ "name": "notification", "serviceName": "a", "value": { "rss": { "url": "http://x" } } });
        body["value"].as_object_mut().expect("an object").extend(more.as_object().cloned().unwrap_or_default());
        body
    };
    let created = server.post(Role::SuperAdmin, "/configurations", &body(json!({}))).await.ok();
    let base = server.url.strip_suffix("/api").expect("the root");
    assert_eq!(created["value"]["httpHost"], base);
    let path = format!("/configurations/{}", created["id"].as_str().expect("an id"));
    let own = body(json!({ "httpHost": "https://own.example.org" }));
    assert_eq!(server.put(Role::SuperAdmin, &path, &own).await.status, 204);
    let found = server.get(Role::SuperAdmin, &path).await.ok();
    assert_eq!(found["value"]["httpHost"], "https://own.example.org");
    for (body, missing) in [(json!({ "name": "x" }), "value"), (json!({ "value": { "a": 1 } }), "name")] {
        let reply = server.post(Role::SuperAdmin, "/configurations", &body).await;
        assert!(reply.status == 400 && reply.text.contains(&format!("Path `{missing}` is required")), "{reply:?}");
    }
}

#[tokio::test]
async fn s2_3_a_dynamic_configuration_has_effect_at_once() {
    let server = NotifybcServer::start_without_admin(json!({})).await;
    let subscription = json!({
        "serviceName": "a", "channel": "email", "userChannelId": "ann@example.org", "state": "unconfirmed",
        "confirmationRequest": { "sendRequest": false, "confirmationCode": "7" },
    });
    let id = server.post(Role::SuperAdmin, "/subscriptions", &subscription).await.id();
    let verify = format!("/subscriptions/{id}/verify?confirmationCode=7");
    let reply = server.get(Role::Anonymous, &verify).await;
    assert_eq!((reply.status, reply.text.as_str()), (200, "You have been subscribed."));
    assert!(reply.kind.starts_with("text/plain"), "{reply:?}");
    let texts = json!({ "confirmationAcknowledgements": { "successMessage": "Welcome" } });
    let body = json!({ "name": "subscription", "serviceName": "a", "value": texts });
    let path = format!("/configurations/{}", server.post(Role::SuperAdmin, "/configurations", &body).await.id());
    assert_eq!(server.get(Role::Anonymous, &verify).await.text, "Welcome");
    let off = json!({ "value": { "confirmationAcknowledgements": null } });
    assert_eq!(server.patch(Role::SuperAdmin, &path, &off).await.status, 204);
    assert_eq!(server.get(Role::Anonymous, &verify).await.text, "OK");
    let redirect = json!({ "value": { "confirmationAcknowledgements": { "redirectUrl": "https://x.example/" } } });
    assert_eq!(server.patch(Role::SuperAdmin, &path, &redirect).await.status, 204);
    let reply = server.get(Role::Anonymous, &verify).await;
    assert_eq!((reply.status, reply.location.as_str()), (302, "https://x.example/?channel=email"));
}

#[tokio::test]
async fn s6_3_bounce_records_have_defaults() {
    let server = NotifybcServer::start_without_admin(json!({})).await;
    let body = json!({ "channel": "email", "userChannelId": "a@example.org", "hardBounceCount": "2" });
    let created = server.post(Role::SuperAdmin, "/bounces", &body).await.ok();
    assert_eq!((&created["hardBounceCount"], &created["state"]), (&json!(2), &json!("active")));
    assert_eq!(created.get("latestNotificationStarted"), Some(&Value::Null));
    let other = json!({ "channel": "email", "userChannelId": "b@example.org" });
    server.post(Role::SuperAdmin, "/bounces", &other).await.ok();
    let many = format!("/bounces{}", query("where", json!({ "hardBounceCount": { "$gt": 1 } })));
    assert_eq!(server.patch(Role::SuperAdmin, &many, &json!({ "state": "deleted" })).await.ok(), json!({ "count": 1 }));
    let deleted = query("where", json!({ "state": "deleted" }));
    assert_eq!(server.get(Role::SuperAdmin, &format!("/bounces/count{deleted}")).await.ok(), json!({ "count": 1 }));
}

#[tokio::test]
async fn s6_4_an_administrator_and_its_password_are_created_together_or_not_at_all() {
    let server = NotifybcServer::start_without_admin(json!({})).await;
    let body = |email: &str, password: &str| json!({ "email": email, "password": password, "username": "Ann", "x": 1 });
    let created = server.post(Role::SuperAdmin, "/administrators", &body("Ann@example.org", PASSWORD)).await.ok();
    assert_eq!((&created["email"], &created["username"]), (&json!("Ann@example.org"), &json!("Ann")));
    assert!(created.get("password").is_none() && created.get("x").is_none(), "only the own fields are kept");
    for (email, password, reason) in [
        ("bob@example.org", "Too_sh0rt", "must match pattern"),
        ("bob@example.org", "No__number_", "must match pattern"),
        ("ann@EXAMPLE.org", PASSWORD, "duplicate key"),
    ] {
        let reply = server.post(Role::SuperAdmin, "/administrators", &body(email, password)).await;
        assert!(reply.status == 400 && reply.text.contains(reason), "{reply:?}");
    }
    assert_eq!(server.get(Role::SuperAdmin, "/administrators/count").await.ok(), json!({ "count": 1 }));
    let login =
        |password: &str| json!({ "email": "ANN@example.org", "password": password, "tokenName": "t", "ttl": 60 });
    for wrong in [login("wrong"), json!({ "email": "none@example.org", "password": PASSWORD }), json!({})] {
        let reply = server.post(Role::Anonymous, "/administrators/login", &wrong).await;
        let expected = json!({ "statusCode": 401, "message": "Invalid email or password." });
        assert_eq!((reply.status, reply.json()), (401, expected));
    }
    for role in [Role::Anonymous, Role::User, Role::SuperAdmin] {
        let found = server.post(role, "/administrators/login", &login(PASSWORD)).await.ok();
        assert_eq!(found["token"].as_str().map(str::len), Some(64), "{role:?}");
    }
    let id = created["id"].as_str().expect("an id");
    let tokens = server.get(Role::SuperAdmin, &format!("/administrators/{id}/access-tokens")).await.ok();
    assert_eq!(tokens.as_array().map(Vec::len), Some(3));
    assert_eq!((&tokens[0]["name"], &tokens[0]["ttl"], &tokens[0]["userId"]), (&json!("t"), &json!(60), &json!(id)));
}

#[tokio::test]
async fn s6_4_an_admin_has_access_to_the_own_record_only() {
    let server = NotifybcServer::start(json!({})).await;
    let me = server.get(Role::Admin, "/administrators/whoami").await.ok()["securityId"].clone();
    let me = me.as_str().expect("an id");
    let body = json!({ "email": "other@example.org", "password": PASSWORD });
    let other = server.post(Role::SuperAdmin, "/administrators", &body).await.id();
    let refused = r#"{"statusCode":403}"#;
    let (own, foreign) = (format!("/administrators/{me}"), format!("/administrators/{other}"));
    assert_eq!(server.get(Role::Admin, "/administrators").await.ok().as_array().map(Vec::len), Some(1));
    assert_eq!(server.get(Role::Admin, "/administrators/count").await.ok(), json!({ "count": 1 }));
    assert_eq!(server.get(Role::Admin, &own).await.id(), me);
    for reply in [
        server.get(Role::Admin, &foreign).await,
        server.get(Role::Admin, "/administrators/1").await,
        server.patch(Role::Admin, &foreign, &json!({ "username": "x" })).await,
        server.put(Role::Admin, &foreign, &body).await,
        server.delete(Role::Admin, &foreign).await,
        server.post(Role::Admin, &format!("{foreign}/user-credential"), &json!({ "password": PASSWORD })).await,
        server.post(Role::Admin, &format!("{foreign}/access-tokens"), &json!({})).await,
        server.get(Role::Admin, &format!("{foreign}/access-tokens")).await,
        server.patch(Role::Admin, &format!("{foreign}/access-tokens"), &json!({ "ttl": 0 })).await,
        server.delete(Role::Admin, &format!("{foreign}/access-tokens")).await,
    ] {
        assert_eq!((reply.status, reply.text.as_str()), (403, refused));
    }
    assert_eq!(server.patch(Role::Admin, &own, &json!({ "username": "Me" })).await.status, 204);
    assert_eq!(server.get(Role::SuperAdmin, &own).await.ok()["username"], "Me");
}

#[tokio::test]
async fn s6_4_credentials_and_tokens_of_an_administrator() {
    let server = NotifybcServer::start(json!({})).await;
    let body = json!({ "email": "ann@example.org", "password": PASSWORD });
    let id = server.post(Role::SuperAdmin, "/administrators", &body).await.id();
    let path = format!("/administrators/{id}");
    let credential = format!("{path}/user-credential");
    let weak = server.post(Role::SuperAdmin, &credential, &json!({ "password": "weak" })).await;
    assert_eq!((weak.status, weak.json()["message"].clone()), (400, json!("must match pattern")));
    let stored = server.post(Role::SuperAdmin, &credential, &json!({ "password": "2bB@bbbbbb" })).await.ok();
    assert!(stored["password"].as_str().is_some_and(|hash| hash.starts_with("$2")), "{stored}");
    assert_eq!(stored["userId"], json!(id));
    let login = async |password: &str| {
        let body = json!({ "email": "ann@example.org", "password": password });
        server.post(Role::Anonymous, "/administrators/login", &body).await.status
    };
    assert_eq!((login(PASSWORD).await, login("2bB@bbbbbb").await), (401, 200));
    let replaced = json!({ "email": "ann@example.org", "username": "Ann", "password": "3cC@cccccc" });
    assert_eq!(server.put(Role::SuperAdmin, &path, &replaced).await.status, 204);
    assert_eq!((login("2bB@bbbbbb").await, login("3cC@cccccc").await), (401, 200));
    let taken = json!({ "email": "ADMIN@example.org" });
    assert_eq!(server.put(Role::SuperAdmin, &path, &taken).await.status, 400);

    let tokens = format!("{path}/access-tokens");
    for name in ["a", "b"] {
        let token = server.post(Role::SuperAdmin, &tokens, &json!({ "name": name, "ttl": "60" })).await.ok();
        assert_eq!((token["id"].as_str().map(str::len), &token["ttl"]), (Some(64), &json!(60)));
    }
    let own = query("where", json!({ "name": "a" }));
    let patched = server.patch(Role::SuperAdmin, &format!("{tokens}{own}"), &json!({ "ttl": 0 })).await;
    assert_eq!(patched.ok(), json!({ "count": 1 }));
    let moved = server.patch(Role::SuperAdmin, &tokens, &json!({ "userId": id })).await;
    assert_eq!((moved.status, moved.json()["message"].clone()), (403, json!("Updating userId is not allowed.")));
    assert_eq!(server.delete(Role::SuperAdmin, &format!("{tokens}{own}")).await.ok(), json!({ "count": 1 }));
    assert_eq!(server.delete(Role::SuperAdmin, &path).await.status, 204);
    assert_eq!(login("3cC@cccccc").await, 401);
    assert_eq!(server.get(Role::SuperAdmin, &tokens).await.ok(), json!([]), "its tokens are gone too");
}

#[tokio::test]
async fn s6_5_health_explorer_and_memory() {
    let server = NotifybcServer::start_without_admin(json!({ "restApiRoot": "/root" })).await;
    let health = server.healthy().await;
    let up =
        json!({ "MongoDB": { "status": "up" }, "config": { "status": "up", "count": 2 }, "redis": { "status": "up" } });
    assert_eq!(health, json!({ "status": "ok", "info": up, "error": {}, "details": up }));
    let rsa = query("filter", json!({ "where": { "name": "rsa" } }));
    let rsa = server.get(Role::SuperAdmin, &format!("/configurations{rsa}")).await.ok();
    let key = |name: &str| rsa[0]["value"][name].as_str().unwrap_or_default().to_owned();
    assert!(key("private").starts_with("-----BEGIN PRIVATE KEY-----"));
    assert!(key("public").starts_with("-----BEGIN PUBLIC KEY-----"));
    let page = server.get(Role::Anonymous, "/explorer/").await;
    assert!(
        page.status == 200 && page.kind.starts_with("text/html") && page.text.contains("<title>Swagger UI</title>")
    );
    let document = server.get(Role::Anonymous, "/explorer-json").await.ok();
    assert!(document["openapi"].as_str().is_some_and(|version| version.starts_with("3.")));
    assert!(document["paths"]["/root/subscriptions/{id}"]["delete"].is_object());
    assert_eq!(server.get(Role::SuperAdmin, "/memory").await.status, 501);
}
