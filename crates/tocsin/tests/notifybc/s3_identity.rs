//! Section 3: identities and permissions.

use std::sync::LazyLock;

use axum::{Json, Router, routing::get};
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, IsCa, KeyPair};
use reqwest::Method;
use ring::{rand::SystemRandom, signature};
use rsa::{RsaPrivateKey, pkcs8::EncodePrivateKey, rand_core::OsRng};
use serde_json::{Value, json};

use crate::{
    server::{NotifybcServer, Reply, Role, client_from},
    support::until,
};

/// The key of the provider.
static KEY: LazyLock<signature::RsaKeyPair> = LazyLock::new(|| {
    let key = RsaPrivateKey::new(&mut OsRng, 2_048).expect("a key").to_pkcs8_der().expect("encoded");
    signature::RsaKeyPair::from_pkcs8(key.as_bytes()).expect("an RSA key")
});

fn is_identity(found: &Value, id: &str, strategy: &str, role: &str) {
    assert_eq!(*found, json!({ "securityId": id, "authnStrategy": strategy, "role": role }));
}

#[tokio::test]
async fn s3_2_an_access_token_is_an_admin_until_it_expires() {
    let server = NotifybcServer::start(json!({})).await;
    let body = json!({ "email": "Bob@example.org", "password": "1aA@aaaaaa" });
    let id = server.post(Role::SuperAdmin, "/administrators", &body).await.id();
    let tokens = format!("/administrators/{id}/access-tokens");
    let token = server.post(Role::SuperAdmin, &tokens, &json!({ "name": "a", "ttl": 3600 })).await.id();
    assert_eq!(token.len(), 64);
    let with = |token: &str| {
        server.request(Role::Anonymous, Method::GET, "/administrators/whoami").header("Authorization", token)
    };
    is_identity(&server.whoami(with(&token)).await, &id, "accessToken", "Admin");
    let by_query =
        server.request(Role::Anonymous, Method::GET, &format!("/administrators/whoami?access_token={token}"));
    is_identity(&server.whoami(by_query).await, &id, "accessToken", "Admin");
    is_identity(&server.whoami(with("unknown")).await, "127.0.0.1", "ip", "Anonymous");
    let dead = server.post(Role::SuperAdmin, &tokens, &json!({ "ttl": 0 })).await.id();
    is_identity(&server.whoami(with(&dead)).await, "127.0.0.1", "ip", "Anonymous");
    let long_ago = json!({ "ttl": 60, "created": "2020-01-01" });
    let old = server.post(Role::SuperAdmin, &tokens, &long_ago).await.id();
    is_identity(&server.whoami(with(&old)).await, "127.0.0.1", "ip", "Anonymous");
}

#[tokio::test]
async fn s3_4_siteminder_headers_count_from_their_proxies_only() {
    let server = NotifybcServer::start_without_admin(json!({ "siteMinderReverseProxyIps": ["127.0.0.3/32"] })).await;
    let from = |address: [u8; 4]| client_from(address).get(format!("{}/administrators/whoami", server.url));
    let proxied = from([127, 0, 0, 3]).header("smgov_userdisplayname", "display");
    is_identity(&server.whoami(proxied).await, "display", "siteMinder", "AuthenticatedUser");
    let several = from([127, 0, 0, 3]).header("sm_user", "second").header("SM_UNIVERSALID", "first");
    is_identity(&server.whoami(several).await, "first", "siteMinder", "AuthenticatedUser");
    let other = from([127, 0, 0, 1]).header("sm_user", "ann");
    is_identity(&server.whoami(other).await, "127.0.0.1", "ip", "Anonymous");
}

#[tokio::test]
async fn s3_5_an_admin_address_overrides_and_s3_6_is_anonymous_beats_everything() {
    let server = NotifybcServer::start_without_admin(json!({ "trustedReverseProxyIps": ["127.0.0.4"] })).await;
    let who = |role| server.request(role, Method::GET, "/administrators/whoami");
    is_identity(&server.whoami(who(Role::SuperAdmin)).await, "127.0.0.2", "ip", "SuperAdmin");
    let with_user = who(Role::SuperAdmin).header("sm_user", "ann");
    is_identity(&server.whoami(with_user).await, "127.0.0.2", "ip", "SuperAdmin");
    let anonymous = who(Role::SuperAdmin).header("is_anonymous", "false");
    is_identity(&server.whoami(anonymous).await, "127.0.0.2", "ip", "Anonymous");
    let empty = who(Role::SuperAdmin).header("is_anonymous", "");
    is_identity(&server.whoami(empty).await, "127.0.0.2", "ip", "SuperAdmin");
    let url = format!("{}/administrators/whoami", server.url);
    let forwarded = client_from([127, 0, 0, 4]).get(&url).header("X-Forwarded-For", "10.0.0.1, 127.0.0.2, 127.0.0.4");
    is_identity(&server.whoami(forwarded).await, "127.0.0.2", "ip", "SuperAdmin");
    let untrusted = client_from([127, 0, 0, 1]).get(&url).header("X-Forwarded-For", "127.0.0.2");
    is_identity(&server.whoami(untrusted).await, "127.0.0.1", "ip", "Anonymous");
}

/// A token of the test key.
fn token(header: Value, claims: Value) -> String {
    let part = |value: &Value| BASE64_URL_SAFE_NO_PAD.encode(value.to_string());
    let signed = format!("{}.{}", part(&header), part(&claims));
    let mut bytes = vec![0; KEY.public().modulus_len()];
    let random = SystemRandom::new();
    KEY.sign(&signature::RSA_PKCS1_SHA256, &random, signed.as_bytes(), &mut bytes).expect("signed");
    format!("{signed}.{}", BASE64_URL_SAFE_NO_PAD.encode(bytes))
}

/// Serves a discovery document and the public part of the test key. Returns the URL of the former.
async fn provider() -> String {
    let components = signature::RsaPublicKeyComponents::<Vec<u8>>::from(KEY.public());
    let text = |bytes: &[u8]| BASE64_URL_SAFE_NO_PAD.encode(bytes);
    let own = json!({ "kid": "own", "kty": "RSA", "n": text(&components.n), "e": text(&components.e) });
    let keys = json!({ "keys": [{ "kid": "other" }, own] });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let discovery = json!({ "jwks_uri": format!("{url}/keys"), "authorization_endpoint": format!("{url}/auth") });
    let router = Router::new()
        .route("/discovery", get(async move || Json(discovery)))
        .route("/keys", get(async move || Json(keys)));
    tokio::spawn(async move { axum::serve(listener, router).await });
    format!("{url}/discovery")
}

#[tokio::test]
async fn s3_3_a_signed_token_is_a_user_or_an_admin() {
    let oidc = json!({ "discoveryUrl": provider().await, "jwtVerifyOptions": { "audience": "notifybc" } });
    let server = NotifybcServer::start_without_admin(json!({ "oidc": oidc })).await;
    let header = || json!({ "alg": "RS256", "kid": "own" });
    let claims = |more: Value| {
        let mut claims = json!({ "aud": "notifybc", "email": "ann@example.org", "exp": 4_000_000_000_u64 });
        let more = more.as_object().expect("an object").clone();
        claims.as_object_mut().expect("an object").extend(more);
        claims
    };
    let whoami = async |token: String| {
        let request = server.request(Role::Anonymous, Method::GET, "/administrators/whoami");
        server.whoami(request.header("Authorization", format!("Bearer {token}"))).await
    };
    let user = token(header(), claims(json!({})));
    is_identity(&whoami(user.clone()).await, "ann@example.org", "oidc", "AuthenticatedUser");
    let admin = token(header(), claims(json!({ "roles": ["notifybc-admin"] })));
    is_identity(&whoami(admin).await, "ann@example.org", "oidc", "Admin");
    let named = token(header(), claims(json!({ "email": null, "preferred_username": "ann" })));
    is_identity(&whoami(named).await, "ann", "oidc", "AuthenticatedUser");
    let none = ("127.0.0.1", "ip", "Anonymous");
    for (what, bad) in [
        ("refused", token(header(), claims(json!({ "blocked": true })))),
        ("expired", token(header(), claims(json!({ "exp": 1 })))),
        ("early", token(header(), claims(json!({ "nbf": 4_000_000_000_u64 })))),
        ("audience", token(header(), claims(json!({ "aud": "other" })))),
        ("key", token(json!({ "alg": "RS256", "kid": "unknown" }), claims(json!({})))),
        ("none", token(json!({ "alg": "none", "kid": "own" }), claims(json!({})))),
        ("signature", format!("{}AAAA", &user[..user.len() - 4])),
    ] {
        let found = whoami(bad).await;
        assert_eq!(found["role"], none.2, "{what}: {found}");
        is_identity(&found, none.0, none.1, none.2);
    }
}

#[tokio::test]
async fn s3_1_a_client_certificate_of_the_own_authority_is_a_super_admin() {
    let authority = |name: &str| {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("an authority")
    };
    let (own, foreign) = (authority("own"), authority("foreign"));
    let signed = |by: &CertifiedIssuer<'static, KeyPair>, name: &str| {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).expect("parameters");
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        (params.signed_by(&key, by).expect("a certificate").pem(), key.serialize_pem())
    };
    let (cert, key) = signed(&own, "localhost");
    let tls = json!({ "enabled": true, "clientCertificateEnabled": true, "key": key, "cert": cert, "ca": own.pem() });
    let server = NotifybcServer::start_without_admin(json!({ "tls": tls })).await;
    let url = format!("{}/administrators/whoami", server.url.replace("http://127.0.0.1", "https://localhost"));
    let root = reqwest::Certificate::from_pem(own.pem().as_bytes()).expect("a certificate");
    let whoami = async |identity: Option<(String, String)>| {
        let builder = reqwest::Client::builder().tls_certs_only([root.clone()]).no_proxy();
        let builder = match identity {
            Some((cert, key)) => {
                builder.identity(reqwest::Identity::from_pem((cert + &key).as_bytes()).expect("an identity"))
            }
            None => builder,
        };
        let client = builder.build().expect("a client");
        Reply::of(client.get(&url).send().await.expect("an answer")).await.ok()
    };
    is_identity(&whoami(Some(signed(&own, "ann"))).await, "ann", "clientCertificate", "SuperAdmin");
    for identity in [None, Some(signed(&foreign, "mallory"))] {
        let found = whoami(identity).await;
        assert_eq!((&found["authnStrategy"], &found["role"]), (&json!("ip"), &json!("Anonymous")), "{found}");
    }
}

/// Roles with access to each route, in the order of [`ROLES`]: `S`, `A`, `U`, `-`.
const PERMISSIONS: &[(&str, &str, &str)] = &[
    ("GET", "/subscriptions", "SAU"),
    ("GET", "/subscriptions/count", "SAU"),
    ("GET", "/subscriptions/services", "SAU"),
    ("PATCH", "/subscriptions/{id}", "SAU"),
    ("PUT", "/subscriptions/{id}", "SA"),
    ("POST", "/subscriptions", "SAU-"),
    ("DELETE", "/subscriptions/{id}", "SAU-"),
    ("GET", "/subscriptions/{id}/verify", "SAU-"),
    ("GET", "/subscriptions/{id}/unsubscribe", "SAU-"),
    ("GET", "/subscriptions/{id}/unsubscribe/undo", "SAU-"),
    ("GET", "/notifications", "SAU"),
    ("GET", "/notifications/count", "SAU"),
    ("GET", "/notifications/{id}", "SAU"),
    ("PATCH", "/notifications/{id}", "SAU"),
    ("DELETE", "/notifications/{id}", "SAU"),
    ("POST", "/notifications", "SA"),
    ("PUT", "/notifications/{id}", "SA"),
    ("GET", "/configurations", "S"),
    ("POST", "/configurations", "S"),
    ("PATCH", "/configurations", "S"),
    ("GET", "/configurations/count", "S"),
    ("GET", "/configurations/{id}", "S"),
    ("PATCH", "/configurations/{id}", "S"),
    ("PUT", "/configurations/{id}", "S"),
    ("DELETE", "/configurations/{id}", "S"),
    ("GET", "/bounces", "S"),
    ("POST", "/bounces", "S"),
    ("PATCH", "/bounces", "S"),
    ("GET", "/bounces/count", "S"),
    ("GET", "/bounces/{id}", "S"),
    ("PATCH", "/bounces/{id}", "S"),
    ("PUT", "/bounces/{id}", "S"),
    ("DELETE", "/bounces/{id}", "S"),
    ("GET", "/memory", "S"),
    ("POST", "/administrators", "S"),
    ("GET", "/administrators", "SA"),
    ("GET", "/administrators/count", "SA"),
    ("GET", "/administrators/{id}", "SA"),
    ("PATCH", "/administrators/{id}", "SA"),
    ("PUT", "/administrators/{id}", "SA"),
    ("DELETE", "/administrators/{id}", "SA"),
    ("POST", "/administrators/{id}/user-credential", "SA"),
    ("GET", "/administrators/{id}/access-tokens", "SA"),
    ("POST", "/administrators/{id}/access-tokens", "SA"),
    ("PATCH", "/administrators/{id}/access-tokens", "SA"),
    ("DELETE", "/administrators/{id}/access-tokens", "SA"),
    ("POST", "/administrators/login", "SAU-"),
    ("GET", "/administrators/whoami", "SAU-"),
    ("GET", "/health", "SAU-"),
    ("GET", "/explorer", "SAU-"),
    ("GET", "/explorer-json", "SAU-"),
];
const ROLES: [(char, Role); 4] =
    [('S', Role::SuperAdmin), ('A', Role::Admin), ('U', Role::User), ('-', Role::Anonymous)];

#[tokio::test]
async fn s3_permissions_hold_before_the_id_and_the_body_are_read() {
    let server = NotifybcServer::start(json!({})).await;
    let forbidden = r#"{"message":"Forbidden resource","error":"Forbidden","statusCode":403}"#;
    for (method, path, permitted) in PERMISSIONS {
        for (letter, role) in ROLES {
            let method: Method = method.parse().expect("a method");
            // The id and the fields of the body are wrong.
            let request = server.request(role, method.clone(), &path.replace("{id}", "wrong"));
            let body = if method == Method::GET { request } else { request.json(&json!({ "state": { "$x": 1 } })) };
            let reply = server.send(body).await;
            let is_refused = reply.status == 403 && reply.text == forbidden;
            assert_eq!(is_refused, !permitted.contains(letter), "{method} {path} {role:?}: {reply:?}");
        }
    }
}

#[tokio::test]
async fn s12_wrong_codes_of_a_record_are_limited() {
    let server = NotifybcServer::start(json!({})).await;
    let body = json!({
        "serviceName": "a", "channel": "email", "userChannelId": "ann@example.org", "state": "confirmed",
        "unsubscriptionCode": "12345", "confirmationRequest": { "sendRequest": false },
    });
    let id = server.post(Role::SuperAdmin, "/subscriptions", &body).await.id();
    let attempt = async |code: u32| {
        server.delete(Role::Anonymous, &format!("/subscriptions/{id}?unsubscriptionCode={code}")).await.status
    };
    let mut code = 20_000;
    until("attempts are refused", async || {
        code += 1;
        let status = attempt(code).await;
        assert!(matches!(status, 403 | 429), "{status}");
        status == 429
    })
    .await;
    assert!(code <= 20_020, "{code}");
    assert_eq!(attempt(12_345).await, 429, "also the right code is refused then");
}
