//! Users, sessions, first setup, one-time links, cookies, and protection against forged requests.

use reqwest::{RequestBuilder, Response, StatusCode};
use serde_json::{Value, json};
use tocsin_face_http::HttpOptions;
use tocsin_store::journal::JournalOptions;

use crate::platform::{Platform, answer};

const PASSWORD: &str = "correct horse battery staple";
const OTHER_PASSWORD: &str = "vKq3-9fLw-72Pd-xx";

/// A browser: its cookie and the text against forged requests.
#[derive(Clone, Debug)]
struct Browser {
    cookie: String,
    csrf: String,
}

impl Browser {
    async fn of(response: Response) -> (Browser, Value) {
        let set = response.headers()["set-cookie"].to_str().expect("text").to_owned();
        let cookie = set.split(';').next().expect("a cookie").to_owned();
        let body: Value = response.json().await.expect("JSON");
        let csrf = body["csrf"].as_str().expect("a text").to_owned();
        (Browser { cookie, csrf }, body)
    }

    /// A request as a page of the server sends it.
    fn request(&self, platform: &Platform, method: &str, path: &str) -> RequestBuilder {
        let request = plain(platform, method, path).header("cookie", &self.cookie);
        request.header("sec-fetch-site", "same-origin").header("x-tocsin-csrf", &self.csrf)
    }

    async fn send(&self, platform: &Platform, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let request = self.request(platform, method, path);
        let request = if body.is_null() { request } else { request.json(body) };
        let (status, body) = answer(request).await;
        (status.as_u16(), body)
    }

    async fn get(&self, platform: &Platform, path: &str) -> (u16, Value) {
        self.send(platform, "GET", path, &Value::Null).await
    }
}

/// A request without credentials.
fn plain(platform: &Platform, method: &str, path: &str) -> RequestBuilder {
    platform.client.request(method.parse().expect("a method"), format!("{}{path}", platform.address))
}

async fn log_in(platform: &Platform, name: &str, password: &str) -> Response {
    let body = json!({"name": name, "password": password});
    plain(platform, "POST", "/v1/session").json(&body).send().await.expect("an answer")
}

async fn browser(platform: &Platform, name: &str) -> Browser {
    let response = log_in(platform, name, PASSWORD).await;
    assert_eq!(response.status(), 200);
    Browser::of(response).await.0
}

async fn create(platform: &Platform, name: &str, roles: &[&str]) {
    let user = json!({"name": name, "roles": roles, "password": PASSWORD}).to_string();
    let (status, body) = platform.post("/v1/users", "application/json", &user).await;
    assert_eq!(status, 201, "{body}");
}

fn code(body: &Value) -> &str {
    body["code"].as_str().unwrap_or_default()
}

#[tokio::test]
async fn the_first_user_is_created_by_the_setup_link_once() {
    let platform = Platform::start().await;
    let options = answer(plain(&platform, "GET", "/v1/session/options")).await.1;
    assert_eq!(options, json!({"setup_required": true, "password": true, "oidc": null}));
    let (status, link) = platform.post("/v1/login-links", "application/json", "{}").await;
    assert_eq!((status.as_u16(), link["kind"].as_str()), (201, Some("setup")), "{link}");
    let token = link["path"].as_str().and_then(|path| path.strip_prefix("/console/setup#")).expect("a token");
    let setup = |token: &str, password: &str| {
        let body =
            json!({"token": token, "name": "Ada", "display_name": "Ada L.", "password": password, "language": "de"});
        plain(&platform, "POST", "/v1/setup").json(&body)
    };
    let (status, problem) = answer(setup("wrong", PASSWORD)).await;
    assert_eq!((status.as_u16(), code(&problem)), (401, "login_failed"));
    let (status, problem) = answer(setup(token, "password1234")).await;
    assert_eq!(status, 422, "{problem}");
    assert_eq!(problem["problems"][0]["code"], "weak_password", "{problem}");
    let response = setup(token, PASSWORD).send().await.expect("an answer");
    assert_eq!(response.status(), 201);
    let (ada, session) = Browser::of(response).await;
    assert_eq!((&session["name"], &session["roles"]), (&json!("ada"), &json!(["admin"])));
    assert_eq!(session["language"], "de");
    let (status, problem) = answer(setup(token, PASSWORD)).await;
    assert_eq!((status.as_u16(), code(&problem)), (409, "already_exists"));
    let (_, read) = ada.get(&platform, "/v1/session").await;
    assert_eq!((&read["kind"], &read["scopes"], &read["csrf"]), (&json!("user"), &json!(["admin"]), &json!(ada.csrf)));
    let options = answer(plain(&platform, "GET", "/v1/session/options")).await.1;
    assert_eq!(options["setup_required"], false);
    platform.stop().await;
}

#[tokio::test]
async fn a_session_has_the_rights_of_its_roles_and_ends_with_the_logout() {
    let platform = Platform::with_quakes().await;
    create(&platform, "ada", &["reader"]).await;
    let response = log_in(&platform, " ADA ", PASSWORD).await;
    let set = response.headers()["set-cookie"].to_str().expect("text").to_owned();
    assert!(set.starts_with("tocsin=") && set.ends_with("; Path=/; HttpOnly; SameSite=Lax"), "{set}");
    assert_eq!(response.headers()["cache-control"], "no-store");
    let (ada, body) = Browser::of(response).await;
    assert!(ada.cookie.len() > 40, "{}", ada.cookie);
    assert!(!body.to_string().contains(ada.cookie.trim_start_matches("tocsin=")), "the body does not reveal it");
    assert_eq!(ada.get(&platform, "/v1/applications").await.0, 200);
    let (status, problem) = ada.send(&platform, "DELETE", "/v1/applications/quakes", &Value::Null).await;
    assert_eq!((status, problem["scope"].as_str()), (403, Some("applications:write")), "{problem}");
    // A user reads and changes itself without a scope, and nothing that gives rights.
    assert_eq!(ada.get(&platform, "/v1/users/ada").await.0, 200);
    let (status, changed) = ada.send(&platform, "PATCH", "/v1/users/ada", &json!({"language": "fr"})).await;
    assert_eq!((status, &changed["language"]), (200, &json!("fr")), "{changed}");
    for change in [json!({"roles": ["admin"]}), json!({"email": "a@example.org"}), json!({"disabled": false})] {
        let (status, problem) = ada.send(&platform, "PATCH", "/v1/users/ada", &change).await;
        assert_eq!((status, problem["scope"].as_str()), (403, Some("users:write")), "{change}: {problem}");
    }
    assert_eq!(ada.get(&platform, "/v1/users").await.0, 403);
    let response = ada.request(&platform, "DELETE", "/v1/session").send().await.expect("an answer");
    assert_eq!(response.status(), 204);
    assert_eq!(response.headers()["set-cookie"], "tocsin=; Path=/; HttpOnly; SameSite=Lax; Max-Age=0");
    let (status, problem) = ada.get(&platform, "/v1/session").await;
    assert_eq!((status, code(&problem)), (401, "credentials_unknown"));
    // A key has no session to end, and says who it is.
    let (status, who) = platform.get("/v1/session").await;
    assert_eq!((status.as_u16(), &who["kind"], &who["csrf"]), (200, &json!("key"), &Value::Null));
    assert_eq!(answer(platform.request("DELETE", "/v1/session")).await.0, 401);
    platform.stop().await;
}

#[tokio::test]
async fn a_failed_login_has_one_answer_and_ten_lock_the_name() {
    let platform = Platform::start().await;
    create(&platform, "ada", &["admin"]).await;
    create(&platform, "off", &["reader"]).await;
    let (status, _) = answer(platform.request("PATCH", "/v1/users/off").json(&json!({"disabled": true}))).await;
    assert_eq!(status, 200);
    let mut answers = Vec::new();
    for (name, password) in [("ada", "wrong"), ("missing", PASSWORD), ("off", PASSWORD), ("", ""), ("ada", "")] {
        let response = log_in(&platform, name, password).await;
        assert_eq!(response.status(), 401);
        assert!(response.headers().get("set-cookie").is_none());
        answers.push(response.json::<Value>().await.expect("JSON"));
    }
    assert!(answers.windows(2).all(|pair| pair[0] == pair[1]), "{answers:?}");
    assert_eq!(code(&answers[0]), "login_failed");
    for name in ["ada", "unknown"] {
        let mut last = StatusCode::OK;
        for _ in 0..10 {
            last = log_in(&platform, name, "wrong").await.status();
        }
        assert!(last == 401 || last == 429, "{last}");
        let response = log_in(&platform, name, PASSWORD).await;
        assert_eq!(response.status(), 429, "also the right password is refused");
        assert!(response.headers().contains_key("retry-after"));
        assert_eq!(code(&response.json().await.expect("JSON")), "login_locked");
    }
    platform.clock.advance(15 * 60 + 1);
    assert_eq!(log_in(&platform, "ada", PASSWORD).await.status(), 200);
    platform.stop().await;
}

#[tokio::test]
async fn a_change_with_a_cookie_comes_from_a_page_of_the_server_and_has_the_csrf_text() {
    let platform = Platform::start().await;
    create(&platform, "ada", &["admin"]).await;
    let ada = browser(&platform, "ada").await;
    let other = browser(&platform, "ada").await;
    let host = platform.address.trim_start_matches("http://").to_owned();
    let (own, same_site) = (format!("http://{host}"), format!("http://evil.{host}"));
    let csrf = Some(ada.csrf.as_str());
    // Expected code, and the headers `X-Tocsin-CSRF`, `Sec-Fetch-Site` and `Origin`.
    type Case<'c> = (&'c str, Option<&'c str>, Option<&'c str>, Option<&'c str>);
    let cases: [Case<'_>; 11] = [
        ("", csrf, Some("same-origin"), None),
        ("", csrf, None, Some(&own)),
        ("", csrf, Some("same-origin"), Some(&own)),
        ("csrf_token", None, Some("same-origin"), None),
        ("csrf_token", Some("00"), Some("same-origin"), None),
        ("csrf_token", Some(&other.csrf), Some("same-origin"), None),
        ("cross_origin", csrf, None, None),
        ("cross_origin", csrf, Some("cross-site"), Some(&own)),
        ("cross_origin", csrf, Some("same-site"), Some(&same_site)),
        ("cross_origin", csrf, None, Some("null")),
        ("cross_origin", csrf, None, Some("https://evil.example")),
    ];
    for (expected, csrf, site, origin) in cases {
        // One route of the console, and one that is older than it.
        for (method, path, body) in [
            ("PUT", "/v1/segments/vienna", json!({"filter": "(region=Vienna)"})),
            ("PATCH", "/v1/users/ada", json!({"language": "de"})),
        ] {
            let mut request = plain(&platform, method, path).header("cookie", &ada.cookie).json(&body);
            for (name, value) in [("x-tocsin-csrf", csrf), ("sec-fetch-site", site), ("origin", origin)] {
                if let Some(value) = value {
                    request = request.header(name, value);
                }
            }
            let (status, answered) = answer(request).await;
            assert_eq!(code(&answered), expected, "{path} {csrf:?} {site:?} {origin:?}: {answered}");
            assert_eq!(status == 403, !expected.is_empty(), "{answered}");
        }
    }
    // Reads have no effect and need neither.
    let read = plain(&platform, "GET", "/v1/users").header("cookie", &ada.cookie);
    assert_eq!(answer(read).await.0, 200);
    // A page of another site cannot log a browser in.
    let body = json!({"name": "ada", "password": PASSWORD});
    for (site, origin) in [(Some("cross-site"), None), (None, Some("https://evil.example"))] {
        let mut request = plain(&platform, "POST", "/v1/session").json(&body);
        for (name, value) in [("sec-fetch-site", site), ("origin", origin)] {
            if let Some(value) = value {
                request = request.header(name, value);
            }
        }
        let (status, problem) = answer(request).await;
        assert_eq!((status.as_u16(), code(&problem)), (403, "cross_origin"));
    }
    platform.stop().await;
}

#[tokio::test]
async fn a_request_has_one_credential() {
    let platform = Platform::with_quakes().await;
    create(&platform, "ada", &["admin"]).await;
    let ada = browser(&platform, "ada").await;
    let routes = ["/v1/session", "/v1/applications", "/v1/subscribers/alice/inbox", "/v1/users/ada", "/scim/v2/Users"];
    for path in routes {
        for (name, value) in
            [("authorization", format!("Bearer {}", platform.key)), ("x-api-key", platform.key.clone())]
        {
            let (status, problem) = answer(ada.request(&platform, "GET", path).header(name, value)).await;
            assert_eq!(status, 400, "{path}: {problem}");
        }
        let (status, body) = ada.get(&platform, path).await;
        assert_eq!(status, 200, "{path}: {body}");
    }
    // A token in the query counts, and not the session beside it.
    let (status, _) = ada.get(&platform, "/v1/subscribers/alice/inbox?token=none").await;
    assert_eq!(status, 401);
    platform.stop().await;
}

#[tokio::test]
async fn the_cookie_depends_on_the_transport() {
    let options = HttpOptions { public_url: Some("https://tocsin.example".to_owned()), ..HttpOptions::default() };
    let platform = Platform::with(options, JournalOptions::default()).await;
    create(&platform, "ada", &["reader"]).await;
    let secure = "; Path=/; Secure; HttpOnly; SameSite=Lax";
    let loopback = "; Path=/; HttpOnly; SameSite=Lax";
    for (host, origin, expected) in [
        ("tocsin.example", Some("https://tocsin.example"), Some(("__Host-tocsin=", secure))),
        ("tocsin.example", None, Some(("__Host-tocsin=", secure))),
        // A proxy that passes its own name on.
        ("backend:8480", Some("https://tocsin.example"), Some(("__Host-tocsin=", secure))),
        ("127.0.0.1:8480", Some("http://127.0.0.1:8480"), Some(("tocsin=", loopback))),
        ("localhost:8480", None, Some(("tocsin=", loopback))),
        ("[::1]:8480", Some("http://[::1]:8480"), Some(("tocsin=", loopback))),
        ("192.0.2.1:8480", Some("http://192.0.2.1:8480"), None),
        ("tocsin.example", Some("http://tocsin.example"), None),
    ] {
        let body = json!({"name": "ada", "password": PASSWORD});
        let mut request = plain(&platform, "POST", "/v1/session").header("host", host).json(&body);
        if let Some(origin) = origin {
            request = request.header("origin", origin);
        }
        let response = request.send().await.expect("an answer");
        let Some((start, end)) = expected else {
            assert_eq!(response.status(), 403, "{host} {origin:?}");
            assert!(response.headers().get("set-cookie").is_none());
            assert_eq!(code(&response.json().await.expect("JSON")), "insecure_transport");
            continue;
        };
        assert_eq!(response.status(), 200, "{host} {origin:?}");
        let set = response.headers()["set-cookie"].to_str().expect("text").to_owned();
        assert!(set.starts_with(start) && set.ends_with(end), "{host} {origin:?}: {set}");
        let cookie = set.split(';').next().expect("a cookie");
        let read = plain(&platform, "GET", "/v1/session").header("host", host).header("cookie", cookie);
        assert_eq!(answer(read).await.0, 200, "{host}");
    }
    // The cookie of plain HTTP is no credential elsewhere.
    let ada = browser(&platform, "ada").await;
    let read = plain(&platform, "GET", "/v1/session").header("host", "tocsin.example").header("cookie", &ada.cookie);
    assert_eq!(answer(read).await.0, 401);
    platform.stop().await;
}

#[tokio::test]
async fn a_login_makes_a_new_token_whatever_cookie_the_browser_has() {
    let platform = Platform::start().await;
    create(&platform, "ada", &["admin"]).await;
    let planted = "tocsin=AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
    let body = json!({"name": "ada", "password": PASSWORD});
    let request = plain(&platform, "POST", "/v1/session").header("cookie", planted).json(&body);
    let (ada, _) = Browser::of(request.send().await.expect("an answer")).await;
    assert_ne!(ada.cookie, planted);
    let read = plain(&platform, "GET", "/v1/session").header("cookie", planted);
    assert_eq!(answer(read).await.0, 401, "the planted token is no session");
    // A proof of identity replaces the token too; the former one ends.
    let proof = json!({"password": PASSWORD});
    let request = ada.request(&platform, "POST", "/v1/session/reauthenticate").json(&proof);
    let (renewed, body) = Browser::of(request.send().await.expect("an answer")).await;
    assert_ne!(renewed.cookie, ada.cookie);
    assert_eq!(ada.get(&platform, "/v1/session").await.0, 401);
    let (_, read) = renewed.get(&platform, "/v1/session").await;
    assert_eq!(read["session_id"], body["session_id"], "it is the same session");
    platform.stop().await;
}

#[tokio::test]
async fn keys_users_and_removals_demand_a_recent_proof_of_identity() {
    let platform = Platform::with_quakes().await;
    create(&platform, "ada", &["admin"]).await;
    let ada = browser(&platform, "ada").await;
    let (status, _) = ada.send(&platform, "POST", "/v1/keys", &json!({"scopes": ["events:write"]})).await;
    assert_eq!(status, 201, "a login is a proof");
    platform.clock.advance(10 * 60 + 1);
    let user = json!({"name": "ben", "roles": ["reader"]});
    let cases = [
        ("POST", "/v1/keys", json!({"scopes": ["events:write"]})),
        ("POST", "/v1/users", user.clone()),
        ("PATCH", "/v1/users/ada", json!({"email": "ada@example.org"})),
        ("DELETE", "/v1/users/ada", Value::Null),
        ("POST", "/v1/login-links", json!({"user": "ada"})),
        ("DELETE", "/v1/applications/quakes?confirm=quakes", Value::Null),
    ];
    for (method, path, body) in &cases {
        let (status, problem) = ada.send(&platform, method, path, body).await;
        assert_eq!((status, code(&problem)), (403, "reauthentication_required"), "{method} {path}: {problem}");
    }
    assert_eq!(ada.get(&platform, "/v1/users").await.0, 200, "reads do not");
    let wrong = ada.send(&platform, "POST", "/v1/session/reauthenticate", &json!({"password": "wrong"})).await;
    assert_eq!((wrong.0, code(&wrong.1)), (401, "login_failed"));
    assert_eq!(ada.get(&platform, "/v1/session").await.0, 200, "the session goes on");
    let proof = json!({"password": PASSWORD});
    let request = ada.request(&platform, "POST", "/v1/session/reauthenticate").json(&proof);
    let (ada, _) = Browser::of(request.send().await.expect("an answer")).await;
    assert_eq!(ada.send(&platform, "POST", "/v1/users", &user).await.0, 201);
    // A login link is a proof as well, for its own user only.
    platform.clock.advance(10 * 60 + 1);
    for (name, expected) in [("ben", 401), ("ada", 200)] {
        let asked = json!({ "user": name }).to_string();
        let (_, link) = platform.post("/v1/login-links", "application/json", &asked).await;
        let token = link["path"].as_str().and_then(|path| path.split_once('#')).expect("a token").1;
        let proof = json!({ "token": token });
        let (status, body) = ada.send(&platform, "POST", "/v1/session/reauthenticate", &proof).await;
        assert_eq!(status, expected, "{name}: {body}");
    }
    platform.stop().await;
}

#[tokio::test]
async fn a_session_expires_without_use_and_after_a_week() {
    let platform = Platform::start().await;
    create(&platform, "ada", &["reader"]).await;
    let (idle, used) = (browser(&platform, "ada").await, browser(&platform, "ada").await);
    let hour = 60 * 60;
    for _ in 0..15 {
        platform.clock.advance(11 * hour);
        assert_eq!(used.get(&platform, "/v1/session").await.0, 200);
    }
    let (status, problem) = idle.get(&platform, "/v1/session").await;
    assert_eq!((status, code(&problem)), (401, "credentials_expired"));
    let (_, sessions) = used.get(&platform, "/v1/sessions").await;
    assert_eq!(sessions["items"].as_array().map(Vec::len), Some(1), "{sessions}");
    platform.clock.advance(11 * hour);
    let (status, problem) = used.get(&platform, "/v1/session").await;
    assert_eq!((status, code(&problem)), (401, "credentials_expired"), "the week is over, although it was used");
    platform.stop().await;
}

#[tokio::test]
async fn sessions_are_listed_and_ended() {
    let platform = Platform::start().await;
    create(&platform, "ada", &["reader"]).await;
    create(&platform, "ben", &["reader"]).await;
    let (first, second, ben) =
        (browser(&platform, "ada").await, browser(&platform, "ada").await, browser(&platform, "ben").await);
    let (_, listed) = second.get(&platform, "/v1/sessions").await;
    let items = listed["items"].as_array().expect("sessions");
    assert_eq!(items.len(), 2, "{listed}");
    assert_eq!([&items[0]["is_current"], &items[1]["is_current"]], [false, true]);
    assert_eq!((&items[0]["user"], &items[0]["address"]), (&json!("ada"), &json!("127.0.0.1")));
    let path = |item: &Value| format!("/v1/sessions/{}", item["id"].as_str().expect("an id"));
    let (status, problem) = ben.send(&platform, "DELETE", &path(&items[0]), &Value::Null).await;
    assert_eq!((status, problem["scope"].as_str()), (403, Some("users:write")), "{problem}");
    assert_eq!(ben.get(&platform, "/v1/sessions?user=ada").await.0, 403);
    assert_eq!(second.send(&platform, "DELETE", &path(&items[0]), &Value::Null).await.0, 204);
    assert_eq!(first.get(&platform, "/v1/session").await.0, 401);
    assert_eq!(second.get(&platform, "/v1/session").await.0, 200);
    let (_, all) = platform.get("/v1/sessions").await;
    assert_eq!(all["items"].as_array().map(Vec::len), Some(2), "{all}");
    assert_eq!(answer(platform.request("DELETE", &path(&items[1]))).await.0, 204);
    assert_eq!(second.get(&platform, "/v1/session").await.0, 401);
    assert_eq!(answer(platform.request("DELETE", "/v1/sessions/none")).await.0, 404);
    platform.stop().await;
}

#[tokio::test]
async fn a_change_of_the_user_applies_to_its_sessions_at_once() {
    let platform = Platform::with_quakes().await;
    create(&platform, "ada", &["reader"]).await;
    let ada = browser(&platform, "ada").await;
    let change = async |body: Value| answer(platform.request("PATCH", "/v1/users/ada").json(&body)).await.0;
    assert_eq!(ada.get(&platform, "/v1/keys").await.0, 403);
    assert_eq!(change(json!({"roles": ["key_admin"]})).await, 200);
    assert_eq!(ada.get(&platform, "/v1/keys").await.0, 200);
    assert_eq!(ada.get(&platform, "/v1/applications").await.0, 403);
    // The session gets another token; the former one is accepted for requests that are on their way.
    assert_eq!(change(json!({"roles": ["key_admin", "reader"]})).await, 200);
    let response = ada.request(&platform, "GET", "/v1/keys").send().await.expect("an answer");
    let renewed =
        response.headers()["set-cookie"].to_str().expect("text").split(';').next().expect("a cookie").to_owned();
    assert_ne!(renewed, ada.cookie);
    assert_eq!(ada.get(&platform, "/v1/keys").await.0, 200);
    let former = ada.clone();
    let ada = Browser { cookie: renewed, ..ada };
    let response = ada.request(&platform, "PUT", "/v1/segments/x").send().await.expect("an answer");
    assert!(response.headers().get("set-cookie").is_none(), "one token for each change of the roles");
    assert_eq!(response.json::<Value>().await.expect("JSON")["code"], "insufficient_scope", "its csrf is the same");
    platform.clock.advance(61);
    assert_eq!(former.get(&platform, "/v1/keys").await.0, 401);
    assert_eq!(ada.get(&platform, "/v1/keys").await.0, 200);
    assert_eq!(change(json!({"disabled": true})).await, 200);
    assert_eq!(ada.get(&platform, "/v1/keys").await.0, 401);
    assert_eq!(change(json!({"disabled": false})).await, 200);
    assert_eq!(ada.get(&platform, "/v1/keys").await.0, 401, "its sessions ended");
    // A stream ends with its session, for each reason.
    for way in ["roles", "disabled", "logout", "removed"] {
        assert_eq!(change(json!({"roles": ["reader", "app_server"], "disabled": false})).await, 200);
        let ada = browser(&platform, "ada").await;
        let request = ada.request(&platform, "GET", "/v1/subscribers/alice/inbox/stream");
        let stream = request.send().await.expect("an answer");
        assert_eq!(stream.status(), 200, "{way}");
        match way {
            "roles" => assert_eq!(change(json!({"roles": ["reader"]})).await, 200),
            "disabled" => assert_eq!(change(json!({"disabled": true})).await, 200),
            "logout" => assert_eq!(ada.send(&platform, "DELETE", "/v1/session", &Value::Null).await.0, 204),
            _ => assert_eq!(answer(platform.request("DELETE", "/v1/users/ada")).await.0, 204),
        }
        let ended = tokio::time::timeout(tocsin_test_peers::wait_timeout(), stream.text()).await;
        ended.expect("the stream ends").expect("it ends well");
    }
    platform.stop().await;
}

#[tokio::test]
async fn a_new_password_ends_the_other_sessions() {
    let platform = Platform::start().await;
    create(&platform, "ada", &["reader"]).await;
    let (own, other) = (browser(&platform, "ada").await, browser(&platform, "ada").await);
    let path = "/v1/users/ada/password";
    let (status, problem) = own.send(&platform, "POST", path, &json!({"password": OTHER_PASSWORD})).await;
    assert_eq!((status, problem["problems"][0]["path"].as_str()), (422, Some("current_password")), "{problem}");
    let wrong = json!({"password": OTHER_PASSWORD, "current_password": "wrong"});
    assert_eq!(own.send(&platform, "POST", path, &wrong).await.0, 401);
    let weak = json!({"password": "ada-ada-ada-ada", "current_password": PASSWORD});
    let (status, problem) = own.send(&platform, "POST", path, &weak).await;
    assert_eq!((status, problem["problems"][0]["code"].as_str()), (422, Some("weak_password")), "{problem}");
    let right = json!({"password": OTHER_PASSWORD, "current_password": PASSWORD});
    assert_eq!(own.send(&platform, "POST", path, &right).await.0, 204);
    assert_eq!(own.get(&platform, "/v1/session").await.0, 200);
    assert_eq!(other.get(&platform, "/v1/session").await.0, 401);
    assert_eq!(log_in(&platform, "ada", PASSWORD).await.status(), 401);
    // An administrator sets it without the present one, and ends all sessions.
    let set = json!({ "password": PASSWORD }).to_string();
    assert_eq!(platform.post(path, "application/json", &set).await.0, 204);
    assert_eq!(own.get(&platform, "/v1/session").await.0, 401);
    assert_eq!(log_in(&platform, "ada", PASSWORD).await.status(), 200);
    platform.stop().await;
}

#[tokio::test]
async fn a_caller_gives_no_rights_that_it_lacks_and_one_administrator_stays() {
    let platform = Platform::start().await;
    create(&platform, "root", &["admin"]).await;
    create(&platform, "keeper", &["user_admin"]).await;
    let keeper = browser(&platform, "keeper").await;
    let attempts = [
        ("POST", "/v1/users", json!({"name": "eve", "roles": ["admin"]})),
        ("POST", "/v1/users", json!({"name": "eve", "roles": ["operator"]})),
        ("PATCH", "/v1/users/keeper", json!({"roles": ["admin"]})),
        ("PATCH", "/v1/users/root", json!({"disabled": true})),
        ("DELETE", "/v1/users/root", Value::Null),
        ("POST", "/v1/users/root/password", json!({"password": OTHER_PASSWORD})),
        ("POST", "/v1/login-links", json!({"user": "root"})),
    ];
    for (method, path, body) in &attempts {
        let (status, problem) = keeper.send(&platform, method, path, body).await;
        assert_eq!((status, code(&problem)), (403, "insufficient_scope"), "{method} {path} {body}: {problem}");
    }
    let peer = json!({"name": "peer", "roles": ["user_admin"], "email": "peer@example.org"});
    assert_eq!(keeper.send(&platform, "POST", "/v1/users", &peer).await.0, 201);
    assert_eq!(keeper.send(&platform, "POST", "/v1/users", &peer).await.0, 409);
    for (method, body) in
        [("DELETE", Value::Null), ("PATCH", json!({"disabled": true})), ("PATCH", json!({"roles": ["reader"]}))]
    {
        let request = platform.request(method, "/v1/users/root");
        let request = if body.is_null() { request } else { request.json(&body) };
        let (status, problem) = answer(request).await;
        assert_eq!((status.as_u16(), code(&problem)), (409, "last_admin_user"), "{problem}");
    }
    create(&platform, "second", &["admin"]).await;
    assert_eq!(answer(platform.request("DELETE", "/v1/users/root")).await.0, 204);
    let (_, users) = platform.get("/v1/users?limit=2").await;
    let names: Vec<_> = users["items"].as_array().expect("users").iter().map(|user| user["name"].clone()).collect();
    assert_eq!((json!(names), &users["next"]), (json!(["keeper", "peer"]), &json!("peer")));
    assert!(!users.to_string().contains("argon2"), "no hash leaves the server");
    platform.stop().await;
}

#[tokio::test]
async fn an_invalid_user_is_rejected_with_every_problem() {
    let platform = Platform::start().await;
    for (body, path) in [
        (json!({"name": "", "roles": ["reader"]}), "name"),
        (json!({"name": "a b", "roles": ["reader"]}), "name"),
        (json!({"name": "-a", "roles": ["reader"]}), "name"),
        (json!({"name": "x".repeat(65), "roles": []}), "name"),
        (json!({"name": "a", "display_name": "x\ny"}), "display_name"),
        (json!({"name": "a", "email": "none"}), "email"),
        (json!({"name": "a", "roles": ["king"]}), "roles[0]"),
        (json!({"name": "a", "roles": ["reader", "reader"]}), "roles[1]"),
        (json!({"name": "a", "language": "klingon-"}), "language"),
        (json!({"name": "a", "time_zone": "Europe/Atlantis"}), "time_zone"),
        (json!({"name": "a", "password": "short"}), "password"),
    ] {
        let (status, problem) = platform.post("/v1/users", "application/json", &body.to_string()).await;
        assert_eq!((status.as_u16(), problem["problems"][0]["path"].as_str()), (422, Some(path)), "{body}: {problem}");
    }
    let (_, users) = platform.get("/v1/users").await;
    assert_eq!(users["items"], json!([]));
    platform.stop().await;
}

#[tokio::test]
async fn a_login_link_works_once_within_five_minutes() {
    let platform = Platform::start().await;
    create(&platform, "ada", &["admin"]).await;
    let token = async || {
        let (status, link) = platform.post("/v1/login-links", "application/json", "{}").await;
        assert_eq!((status.as_u16(), link["user"].as_str()), (201, Some("ada")), "{link}");
        link["path"].as_str().and_then(|path| path.strip_prefix("/console/login#")).expect("a token").to_owned()
    };
    let redeem = async |token: &str| {
        let request = plain(&platform, "POST", "/v1/session/token").json(&json!({ "token": token }));
        request.send().await.expect("an answer")
    };
    let first = token().await;
    let (ada, body) = Browser::of(redeem(&first).await).await;
    assert_eq!(body["name"], "ada");
    assert_eq!(ada.get(&platform, "/v1/session").await.0, 200);
    assert_eq!(redeem(&first).await.status(), 401, "it works once");
    let late = token().await;
    platform.clock.advance(5 * 60 + 1);
    assert_eq!(redeem(&late).await.status(), 401, "it has expired");
    let (replaced, last) = (token().await, token().await);
    assert_eq!(redeem(&replaced).await.status(), 401, "the next one replaced it");
    assert_eq!(redeem(&last).await.status(), 200);
    // With several administrators the user is named.
    create(&platform, "ben", &["admin"]).await;
    let (status, problem) = platform.post("/v1/login-links", "application/json", "{}").await;
    assert_eq!((status.as_u16(), problem["problems"][0]["path"].as_str()), (422, Some("user")), "{problem}");
    platform.stop().await;
}
