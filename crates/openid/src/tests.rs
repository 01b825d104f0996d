//! Logins against a provider on a socket, which signs with keys of its own and can misbehave.

use std::{collections::HashMap, sync::Arc};

use axum::{Json, Router, extract::State, http::HeaderMap, routing};
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use parking_lot::Mutex;
use ring::{
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair},
};
use serde_json::{Value, json};
use tocsin_model::time::Timestamp;

use crate::{LoginRequest, OpenidError, Provider, ProviderOptions, pending::challenge};

const NOW: Timestamp = Timestamp(1_795_000_000_000_000);

/// The provider of the tests.
#[derive(Default)]
struct Issuer {
    address: String,
    /// PKCS #8 of the key in use, with its id.
    key: Vec<u8>,
    key_id: String,
    /// Claims of the next token, over the usual ones; null removes one.
    claims: Value,
    /// Members of the header of the next token.
    header: Value,
    /// Issuer of the discovery document, if another.
    issuer: Option<String>,
    /// Nonce and code challenge of the last authorization.
    nonce: String,
    challenge: String,
    /// Requests of keys.
    key_requests: usize,
    /// Authorization and form of the last token request.
    authorization: Option<String>,
    form: HashMap<String, String>,
}

type Shared = Arc<Mutex<Issuer>>;

impl Issuer {
    async fn start() -> (Shared, Provider) {
        Issuer::start_with(Some("s3cret:&".to_owned())).await
    }

    async fn start_with(client_secret: Option<String>) -> (Shared, Provider) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = format!("http://{}", listener.local_addr().expect("an address"));
        let shared: Shared = Arc::new(Mutex::new(Issuer { address: address.clone(), ..Issuer::default() }));
        shared.lock().rotate("first");
        let router = Router::new()
            .route("/.well-known/openid-configuration", routing::get(document))
            .route("/keys", routing::get(keys))
            .route("/token", routing::post(token))
            .with_state(shared.clone());
        tokio::spawn(async move { axum::serve(listener, router).await.expect("it serves") });
        let options = ProviderOptions {
            issuer: address.parse().expect("a URL"),
            client_id: "tocsin console".to_owned(),
            client_secret,
            scopes: vec!["email".to_owned(), "openid".to_owned()],
            roles_claim: "groups".to_owned(),
            roles: [("ops".to_owned(), "operator".to_owned())].into(),
        };
        (shared, Provider::new(options).expect("a provider"))
    }

    fn rotate(&mut self, id: &str) {
        let key = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &SystemRandom::new());
        self.key = key.expect("a key").as_ref().to_vec();
        self.key_id = id.to_owned();
    }

    fn pair(&self) -> EcdsaKeyPair {
        EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &self.key, &SystemRandom::new()).expect("a key")
    }

    fn signed(&self) -> String {
        let seconds = NOW.as_millis() / 1_000;
        let mut claims = json!({
            "iss": self.address, "aud": "tocsin console", "sub": "u-1", "exp": seconds + 300, "iat": seconds,
            "nonce": self.nonce, "preferred_username": "ada", "email": "ada@example.org", "groups": ["ops", "x"],
        });
        let mut header = json!({"alg": "ES256", "kid": self.key_id});
        for (over, under) in [(&self.claims, &mut claims), (&self.header, &mut header)] {
            for (name, value) in over.as_object().into_iter().flatten() {
                under[name] = value.clone();
            }
            under.as_object_mut().expect("an object").retain(|_, value| !value.is_null());
        }
        let encode = |value: &Value| BASE64_URL_SAFE_NO_PAD.encode(value.to_string());
        let signed = format!("{}.{}", encode(&header), encode(&claims));
        let signature = self.pair().sign(&SystemRandom::new(), signed.as_bytes()).expect("signed");
        format!("{signed}.{}", BASE64_URL_SAFE_NO_PAD.encode(signature))
    }
}

async fn document(State(issuer): State<Shared>) -> Json<Value> {
    let issuer = issuer.lock();
    let (address, own) = (&issuer.address, issuer.issuer.as_ref().unwrap_or(&issuer.address));
    Json(json!({
        "issuer": own, "authorization_endpoint": format!("{address}/authorize?tenant=1"),
        "token_endpoint": format!("{address}/token"), "jwks_uri": format!("{address}/keys"),
        "end_session_endpoint": format!("{address}/logout"),
    }))
}

async fn keys(State(issuer): State<Shared>) -> Json<Value> {
    let mut issuer = issuer.lock();
    issuer.key_requests += 1;
    let pair = issuer.pair();
    let point = pair.public_key().as_ref();
    let text = |bytes: &[u8]| BASE64_URL_SAFE_NO_PAD.encode(bytes);
    let key =
        json!({"kty": "EC", "crv": "P-256", "kid": issuer.key_id, "x": text(&point[1..33]), "y": text(&point[33..])});
    Json(json!({"keys": [{"kty": 7}, {"kty": "oct", "k": "AAAA"}, key]}))
}

async fn token(
    State(issuer): State<Shared>,
    headers: HeaderMap,
    form: String,
) -> (axum::http::StatusCode, Json<Value>) {
    let mut issuer = issuer.lock();
    issuer.authorization = headers.get("authorization").map(|text| text.to_str().expect("text").to_owned());
    issuer.form = url::form_urlencoded::parse(form.as_bytes()).into_owned().collect();
    if issuer.form["code"] != "good" || challenge(&issuer.form["code_verifier"]) != issuer.challenge {
        return (axum::http::StatusCode::BAD_REQUEST, Json(json!({"error": "invalid_grant"})));
    }
    (
        axum::http::StatusCode::OK,
        Json(json!({"access_token": "a", "token_type": "Bearer", "id_token": issuer.signed()})),
    )
}

fn request(reauthenticates: bool) -> LoginRequest {
    LoginRequest {
        redirect_uri: "https://tocsin.example/v1/session/oidc/callback".to_owned(),
        return_to: "/console/events?x=1".to_owned(),
        reauthenticates,
    }
}

/// Starts a login, as a browser that follows the address.
async fn start(issuer: &Shared, provider: &Provider, asked: LoginRequest) -> (String, HashMap<String, String>) {
    let started = provider.start(asked, NOW).await.expect("started");
    let url: url::Url = started.url.parse().expect("a URL");
    let query: HashMap<String, String> = url.query_pairs().into_owned().collect();
    let mut issuer = issuer.lock();
    issuer.nonce.clone_from(&query["nonce"]);
    issuer.challenge.clone_from(&query["code_challenge"]);
    (started.state, query)
}

#[tokio::test]
async fn a_login_with_pkce_state_and_nonce_gives_the_identity() {
    let (issuer, provider) = Issuer::start().await;
    let (state, query) = start(&issuer, &provider, request(false)).await;
    let shown = |name: &str| query.get(name).map(String::as_str);
    assert_eq!((shown("response_type"), shown("tenant")), (Some("code"), Some("1")));
    assert_eq!((shown("scope"), shown("code_challenge_method")), (Some("openid email"), Some("S256")));
    assert_eq!((shown("state"), shown("prompt")), (Some(state.as_str()), None));
    let finished = provider.finish(&state, "good", NOW).await.expect("finished");
    assert_eq!(finished.request, request(false));
    assert_eq!((finished.identity.subject.as_str(), finished.identity.name.as_deref()), ("u-1", Some("ada")));
    assert_eq!(finished.identity.roles, ["operator"]);
    {
        let issuer = issuer.lock();
        // Both parts are form-encoded before they are joined.
        let basic = base64::prelude::BASE64_STANDARD.encode("tocsin+console:s3cret%3A%26");
        assert_eq!(issuer.authorization, Some(format!("Basic {basic}")));
        assert_eq!(issuer.form["grant_type"], "authorization_code");
        assert_eq!(issuer.form["redirect_uri"], request(false).redirect_uri);
        assert!(!issuer.form.contains_key("client_secret"));
    }
    let again = provider.finish(&state, "good", NOW).await;
    assert!(matches!(again, Err(OpenidError::UnknownState)), "a state works once");
    let logout = provider.logout_url("https://tocsin.example/console/login").expect("a URL");
    let expected =
        "/logout?client_id=tocsin+console&post_logout_redirect_uri=https%3A%2F%2Ftocsin.example%2Fconsole%2Flogin";
    assert!(logout.ends_with(expected), "{logout}");
}

#[tokio::test]
async fn a_public_client_is_protected_by_pkce_alone() {
    let (issuer, provider) = Issuer::start_with(None).await;
    let (state, _) = start(&issuer, &provider, request(false)).await;
    issuer.lock().challenge = challenge("another");
    let stolen = provider.finish(&state, "good", NOW).await;
    assert!(matches!(&stolen, Err(OpenidError::Rejected(error)) if error == "invalid_grant"), "{stolen:?}");
    let (state, _) = start(&issuer, &provider, request(false)).await;
    provider.finish(&state, "good", NOW).await.expect("finished");
    let issuer = issuer.lock();
    assert_eq!((&issuer.authorization, issuer.form["client_id"].as_str()), (&None, "tocsin console"));
}

#[tokio::test]
async fn a_login_ends_with_its_state_after_ten_minutes() {
    let (issuer, provider) = Issuer::start().await;
    let minutes = |count: i64| Timestamp(NOW.0 + count * 60_000_000);
    let (state, _) = start(&issuer, &provider, request(false)).await;
    for (state, now) in [("unknown", NOW), (state.as_str(), minutes(10))] {
        let finished = provider.finish(state, "good", now).await;
        assert!(matches!(finished, Err(OpenidError::UnknownState)), "{state}");
    }
    let (state, _) = start(&issuer, &provider, request(false)).await;
    let rejected = provider.finish(&state, "bad", NOW).await;
    assert!(matches!(rejected, Err(OpenidError::Rejected(_))));
    let (state, _) = start(&issuer, &provider, request(false)).await;
    assert_eq!(provider.cancel(&state, NOW), Some(request(false)));
    assert_eq!(provider.cancel(&state, NOW), None);
}

#[tokio::test]
async fn each_wrong_claim_and_signature_is_rejected() {
    let (issuer, provider) = Issuer::start().await;
    let seconds = NOW.as_millis() / 1_000;
    let none = Value::Null;
    let cases: [(Value, Value, bool, Option<&str>); 20] = [
        (none.clone(), none.clone(), false, None),
        (json!({"aud": ["tocsin console", "x"], "azp": "tocsin console"}), none.clone(), false, None),
        (json!({"exp": seconds - 30}), none.clone(), false, None),
        (json!({"auth_time": seconds}), none.clone(), true, None),
        (json!({"iss": "https://evil.example"}), none.clone(), false, Some("iss")),
        (json!({"aud": "another"}), none.clone(), false, Some("aud")),
        (json!({"aud": ["tocsin console", "x"]}), none.clone(), false, Some("azp")),
        (json!({"azp": "x"}), none.clone(), false, Some("azp")),
        (json!({"exp": seconds - 61}), none.clone(), false, Some("exp")),
        (json!({"exp": null}), none.clone(), false, Some("exp")),
        (json!({"nbf": seconds + 120}), none.clone(), false, Some("nbf")),
        (json!({"iat": seconds - 3_600}), none.clone(), false, Some("iat")),
        (json!({"nonce": "replayed"}), none.clone(), false, Some("nonce")),
        (json!({"nonce": null}), none.clone(), false, Some("nonce")),
        (json!({"auth_time": seconds - 3_600}), none.clone(), true, Some("auth_time")),
        (none.clone(), none.clone(), true, Some("auth_time")),
        (json!({"sub": null}), none.clone(), false, Some("sub")),
        (none.clone(), json!({"alg": "none"}), false, Some("signature")),
        (none.clone(), json!({"alg": "HS256"}), false, Some("signature")),
        (none.clone(), json!({"crit": ["x"]}), false, Some("signature")),
    ];
    for (claims, header, reauthenticates, expected) in cases {
        let (state, _) = start(&issuer, &provider, request(reauthenticates)).await;
        {
            let mut issuer = issuer.lock();
            (issuer.claims, issuer.header) = (claims.clone(), header.clone());
        }
        let found = match provider.finish(&state, "good", NOW).await {
            Ok(_) => None,
            Err(OpenidError::InvalidToken(part)) => Some(part),
            Err(error) => panic!("{error}"),
        };
        assert_eq!(found, expected, "{claims} {header}");
    }
}

#[tokio::test]
async fn a_rotated_key_is_fetched_at_most_once_a_minute() {
    let (issuer, provider) = Issuer::start().await;
    let seconds = |count: i64| Timestamp(NOW.0 + count * 1_000_000);
    let finish = async |at: Timestamp| {
        let (state, _) = start(&issuer, &provider, request(false)).await;
        provider.finish(&state, "good", at).await.map(drop).map_err(|error| error.to_string())
    };
    assert_eq!(finish(NOW).await, Ok(()));
    issuer.lock().rotate("second");
    let wrong = finish(seconds(30)).await;
    assert!(wrong.is_err_and(|error| error.contains("signature")), "the keys are too young to be fetched again");
    assert_eq!(finish(seconds(61)).await, Ok(()));
    assert_eq!(issuer.lock().key_requests, 2);
    // The same id with another key.
    issuer.lock().rotate("second");
    assert_eq!(finish(seconds(122)).await, Ok(()));
}

#[tokio::test]
async fn the_discovery_document_is_of_the_configured_issuer() {
    let (issuer, provider) = Issuer::start().await;
    issuer.lock().issuer = Some("https://evil.example".to_owned());
    let started = provider.start(request(false), NOW).await;
    let text = started.expect_err("another issuer").to_string();
    assert!(text.contains("https://evil.example"), "{text}");
    assert_eq!(provider.logout_url("https://tocsin.example/"), None);
    // The provider is asked again by the next login.
    issuer.lock().issuer = None;
    start(&issuer, &provider, request(false)).await;
}
