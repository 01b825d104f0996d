//! Logins through an OpenID provider: from the redirect to the cookie of the session.

use std::{collections::HashMap, sync::Arc};

use axum::{Json, Router, extract::State, routing};
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use parking_lot::Mutex;
use reqwest::{Client, Response, redirect::Policy};
use ring::{
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair},
};
use serde_json::{Value, json};
use tocsin_face_http::{HttpOptions, OpenidOptions};
use tocsin_openid::{Provider, ProviderOptions};
use tocsin_store::journal::JournalOptions;

use crate::platform::{Platform, answer};

/// A provider that logs in the user of its next claims.
struct Issuer {
    address: String,
    key: EcdsaKeyPair,
    claims: Mutex<Value>,
}

impl Issuer {
    async fn start() -> Arc<Issuer> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = format!("http://{}", listener.local_addr().expect("an address"));
        let random = SystemRandom::new();
        let key = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).expect("a key");
        let key = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, key.as_ref(), &random).expect("a key");
        let issuer = Arc::new(Issuer { address, key, claims: Mutex::default() });
        let router = Router::new()
            .route("/.well-known/openid-configuration", routing::get(document))
            .route("/keys", routing::get(keys))
            .route("/token", routing::post(token))
            .with_state(issuer.clone());
        tokio::spawn(async move { axum::serve(listener, router).await.expect("it serves") });
        issuer
    }
}

async fn document(State(issuer): State<Arc<Issuer>>) -> Json<Value> {
    let address = &issuer.address;
    Json(json!({
        "issuer": address, "authorization_endpoint": format!("{address}/authorize"),
        "jwks_uri": format!("{address}/keys"), "token_endpoint": format!("{address}/token"), "end_session_endpoint": format!("{address}/logout"),
    }))
}

async fn keys(State(issuer): State<Arc<Issuer>>) -> Json<Value> {
    let point = issuer.key.public_key().as_ref();
    let text = |bytes: &[u8]| BASE64_URL_SAFE_NO_PAD.encode(bytes);
    Json(json!({"keys": [{"kty": "EC", "crv": "P-256", "x": text(&point[1..33]), "y": text(&point[33..])}]}))
}

async fn token(State(issuer): State<Arc<Issuer>>) -> Json<Value> {
    let encode = |value: &Value| BASE64_URL_SAFE_NO_PAD.encode(value.to_string());
    let signed = format!("{}.{}", encode(&json!({"alg": "ES256"})), encode(&issuer.claims.lock()));
    let signature = issuer.key.sign(&SystemRandom::new(), signed.as_bytes()).expect("signed");
    Json(json!({"id_token": format!("{signed}.{}", BASE64_URL_SAFE_NO_PAD.encode(signature))}))
}

/// A platform whose users log in through a provider.
async fn platform(only: bool, roles: &[(&str, &str)]) -> (Platform, Arc<Issuer>) {
    let issuer = Issuer::start().await;
    let provider = Provider::new(ProviderOptions {
        issuer: issuer.address.parse().expect("a URL"),
        client_id: "console".to_owned(),
        client_secret: None,
        scopes: Vec::new(),
        roles_claim: "groups".to_owned(),
        roles: roles.iter().map(|(value, role)| ((*value).to_owned(), (*role).to_owned())).collect(),
    });
    let openid = OpenidOptions { provider: Arc::new(provider.expect("a provider")), name: "Staff".to_owned(), only };
    let public_url = Some("https://tocsin.example".to_owned());
    let options = HttpOptions { openid: Some(openid), public_url, ..HttpOptions::default() };
    (Platform::with(options, JournalOptions::default()).await, issuer)
}

/// A browser that follows no redirect by itself.
async fn get(platform: &Platform, path: &str, cookies: &str) -> Response {
    let client = Client::builder().redirect(Policy::none()).build().expect("a client");
    let request = client.get(format!("{}{path}", platform.address)).header("host", "tocsin.example");
    request.header("cookie", cookies).send().await.expect("an answer")
}

fn location(response: &Response) -> String {
    assert_eq!(response.status(), 303);
    response.headers()["location"].to_str().expect("text").to_owned()
}

/// The value of a cookie that a response sets.
fn cookie(response: &Response, name: &str) -> Option<String> {
    let set = response.headers().get_all("set-cookie").into_iter().map(|value| value.to_str().expect("text"));
    let mut pairs = set.filter_map(|text| text.split(';').next());
    pairs.find(|pair| pair.split_once('=').is_some_and(|(found, _)| found == name)).map(str::to_owned)
}

/// Logs in as the user of these claims. Returns the address of the last redirect, and the cookie of the session.
async fn log_in(
    platform: &Platform,
    issuer: &Issuer,
    claims: Value,
    start: &str,
    session: &str,
) -> (String, Option<String>) {
    let started = get(platform, start, session).await;
    let url: url::Url = location(&started).parse().expect("a URL");
    let query: HashMap<String, String> = url.query_pairs().into_owned().collect();
    assert_eq!(query["redirect_uri"], "https://tocsin.example/v1/session/oidc/callback");
    let seconds = platform.service.now().as_millis() / 1_000;
    let mut all = json!({
        "iss": issuer.address, "aud": "console", "exp": seconds + 300, "iat": seconds, "auth_time": seconds,
        "nonce": query["nonce"],
    });
    all.as_object_mut().expect("an object").extend(claims.as_object().expect("an object").clone());
    *issuer.claims.lock() = all;
    let state = cookie(&started, "__Host-tocsin-oidc").expect("the state");
    let callback = format!("/v1/session/oidc/callback?code=x&state={}&session_state=y", query["state"]);
    let ended = get(platform, &callback, &format!("{session}; {state}")).await;
    assert_eq!(cookie(&ended, "__Host-tocsin-oidc").as_deref(), Some("__Host-tocsin-oidc="), "it is removed");
    (location(&ended), cookie(&ended, "__Host-tocsin"))
}

#[tokio::test]
async fn a_login_maps_claims_to_roles_each_time() {
    let (platform, issuer) = platform(true, &[("ops", "operator"), ("staff", "reader")]).await;
    let options = answer(platform.client.get(format!("{}/v1/session/options", platform.address))).await.1;
    let oidc = json!({"name": "Staff", "start_url": "/v1/session/oidc"});
    assert_eq!(options, json!({"setup_required": false, "password": false, "oidc": oidc}));
    let body = json!({"name": "ada", "password": "correct horse battery staple"});
    let (status, problem) = answer(platform.client.post(format!("{}/v1/session", platform.address)).json(&body)).await;
    assert_eq!((status.as_u16(), problem["code"].as_str()), (403, Some("passwords_disabled")));

    let ada = json!({"sub": "1", "preferred_username": "Ada", "email": "ada@example.org", "groups": ["staff"]});
    let start = "/v1/session/oidc?return_to=/console/events?x=1";
    let (page, session) = log_in(&platform, &issuer, ada.clone(), start, "").await;
    let session = session.expect("a session");
    assert_eq!(page, "/console/events?x=1");
    let read = async |session: &str| get(&platform, "/v1/session", session).await.json::<Value>().await.expect("JSON");
    let found = read(&session).await;
    assert_eq!((&found["name"], &found["roles"]), (&json!("ada"), &json!(["reader"])), "{found}");
    assert_eq!(found["has_password"], false);
    assert!(found["logout_url"].as_str().is_some_and(|url| url.starts_with(&format!("{}/logout?", issuer.address))));
    // The next login of the same subject has the present claims.
    let changed = json!({"sub": "1", "preferred_username": "renamed", "groups": ["ops"]});
    let (page, again) = log_in(&platform, &issuer, changed, "/v1/session/oidc", "").await;
    assert_eq!(page, "/console/");
    let found = read(&again.expect("a session")).await;
    assert_eq!((&found["name"], &found["roles"]), (&json!("ada"), &json!(["operator"])), "{found}");
    // Another subject with the same login name is another user.
    let other = json!({"sub": "2", "preferred_username": "ada", "groups": ["staff"]});
    let (_, session) = log_in(&platform, &issuer, other, "/v1/session/oidc", "").await;
    let found = read(&session.expect("a session")).await;
    assert!(found["name"].as_str().is_some_and(|name| name.starts_with("oidc-")), "{found}");
    platform.stop().await;
}

#[tokio::test]
async fn each_failed_login_opens_the_login_page_with_its_code() {
    let (platform, issuer) = platform(false, &[("ops", "operator")]).await;
    let seconds = platform.service.now().as_millis() / 1_000;
    for (claims, code) in [
        (json!({"sub": "1", "groups": ["x"]}), "no_role"),
        (json!({"sub": "1"}), "no_role"),
        (json!({"sub": "1", "groups": ["ops"], "nonce": "other"}), "openid_invalid"),
        (json!({"sub": "1", "groups": ["ops"], "exp": seconds - 3_600}), "openid_invalid"),
    ] {
        let (page, session) = log_in(&platform, &issuer, claims.clone(), "/v1/session/oidc", "").await;
        assert_eq!((page, session), (format!("/console/login?error={code}"), None), "{claims}");
    }
    // A callback in a browser that did not start the login, and a rejection of the provider.
    let started = get(&platform, "/v1/session/oidc?return_to=//evil.example", "").await;
    let state = cookie(&started, "__Host-tocsin-oidc").expect("the state");
    let value = state.split_once('=').expect("a value").1.to_owned();
    for (query, cookies, code) in [
        (format!("code=x&state={value}"), "", "openid_invalid"),
        (format!("code=x&state={value}"), "__Host-tocsin-oidc=other", "openid_invalid"),
        ("code=x".to_owned(), "", "openid_invalid"),
        (format!("error=access_denied&state={value}"), state.as_str(), "openid_rejected"),
        (format!("code=x&state={value}"), state.as_str(), "openid_invalid"),
    ] {
        let ended = get(&platform, &format!("/v1/session/oidc/callback?{query}"), cookies).await;
        assert_eq!(location(&ended), format!("/console/login?error={code}"), "{query}");
        assert_eq!(cookie(&ended, "__Host-tocsin"), None);
    }
    let without = Platform::start().await;
    let (status, _) = answer(without.client.get(format!("{}/v1/session/oidc", without.address))).await;
    assert_eq!(status, 404);
    without.stop().await;
    platform.stop().await;
}

#[tokio::test]
async fn the_provider_proves_the_identity_again() {
    let (platform, issuer) = platform(false, &[]).await;
    // Without a mapping, roles are given here.
    let user = json!({"name": "ada", "roles": ["admin"], "oidc_subject": "1"}).to_string();
    assert_eq!(platform.post("/v1/users", "application/json", &user).await.0, 201);
    let (_, session) = log_in(&platform, &issuer, json!({"sub": "1"}), "/v1/session/oidc", "").await;
    let session = session.expect("a session");
    let (page, none) = log_in(&platform, &issuer, json!({"sub": "2"}), "/v1/session/oidc", "").await;
    assert_eq!((page.as_str(), none), ("/console/login?error=no_role", None));
    platform.clock.advance(11 * 60);
    let again = "/v1/session/oidc?reauthenticate=true&return_to=/console/admin";
    let (page, none) = log_in(&platform, &issuer, json!({"sub": "2"}), again, &session).await;
    assert_eq!((page.as_str(), none), ("/console/login?error=login_failed", None));
    let old = json!({"sub": "1", "auth_time": platform.service.now().as_millis() / 1_000 - 600});
    let (page, _) = log_in(&platform, &issuer, old, again, &session).await;
    assert_eq!(page, "/console/login?error=openid_invalid");
    let (page, renewed) = log_in(&platform, &issuer, json!({"sub": "1"}), again, &session).await;
    assert_eq!(page, "/console/admin");
    let found: Value = get(&platform, "/v1/session", &renewed.expect("a session")).await.json().await.expect("JSON");
    let until = found["reauthenticated_until"].as_str().expect("a time");
    assert!(until > platform.service.now().to_string().as_str(), "{until}");
    platform.stop().await;
}
