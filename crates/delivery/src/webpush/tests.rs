use std::{collections::BTreeMap, sync::Arc};

use async_trait::async_trait;
use axum::{
    Router,
    body::Bytes,
    extract::{Path, State},
    http::{HeaderMap, StatusCode},
    response::IntoResponse,
    routing::post,
};
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use parking_lot::Mutex;
use ring::signature::{ECDSA_P256_SHA256_FIXED, UnparsedPublicKey};
use serde_json::{Value, json};
use tocsin_model::delivery_policy::Priority;

use super::{
    check_subscription,
    encrypt::{TEXT_BYTES_MAX, seal},
    generate_key,
    payload::{payload, topic},
    send::lane_of,
    subscription::{Keys, Subscription, bytes},
};
use crate::{
    channel::{Context, Message, OpenChannel, Outgoing},
    conformance::{Subject, exercise, silent_server},
    testing::{NOW, channel, content_of, context, deliver, message, outgoing},
};

// RFC 8291, section 5 and appendix A.
const BROWSER: &str = "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4";
const AUTH: &str = "BTBZMqHH6r4Tts7J_aSIgg";
const OURS: &str = "BP4z9KsN6nGRTbVYI_c7VJSPQTBtkgcy27mlmlMoZIIgDll6e3vCYLocInmYWAmS6TlzAC8wEqKK6PBru3jl7A8";
const SHARED: &str = "kyrL1jIIOHEzg3sM2ZWRHDRB62YACZhhSlknJ672kSs";
const SALT: &str = "DGv6ra1nlYgDCS1FRnbzlw";
const BODY: &str = "DGv6ra1nlYgDCS1FRnbzlwAAEABBBP4z9KsN6nGRTbVYI_c7VJSPQTBtkgcy27mlmlMoZIIgDll6e3vCYLocInmYWAmS6Tlz\
     AC8wEqKK6PBru3jl7A_yl95bQpu6cVPTpK4Mqgkf1CXztLVBSt2Ks3oZwbuwXPXLWyouBWLVWGNWQexSgSxsj_Qulcy4a-fN";

fn subscription(endpoint: &str) -> String {
    json!({ "endpoint": endpoint, "expirationTime": null, "keys": { "p256dh": BROWSER, "auth": AUTH } }).to_string()
}

#[test]
fn the_example_of_the_rfc_is_encrypted_as_it_says() {
    let keys = Keys { public: bytes(BROWSER).expect("a key"), auth: bytes(AUTH).expect("a secret") };
    let (ours, shared): ([u8; 65], [u8; 32]) = (bytes(OURS).expect("a key"), bytes(SHARED).expect("a secret"));
    let salt = bytes(SALT).expect("a salt");
    let body = seal(b"When I grow up, I want to be a watermelon", &keys, &ours, &shared, &salt);
    assert_eq!(BASE64_URL_SAFE_NO_PAD.encode(body), BODY);
}

#[test]
fn an_address_is_a_push_subscription() {
    let good = subscription("https://push.example/send/abc?d=e");
    assert_eq!(check_subscription(&good), Ok(()));
    assert_eq!(check_subscription(&good.replace(AUTH, &format!("{AUTH}=="))), Ok(()), "padding does no harm");
    assert_eq!(Subscription::read(&good).expect("read").endpoint, "https://push.example/send/abc?d=e");
    assert_eq!(&*lane_of(&good), "https://push.example");
    assert_eq!(&*lane_of(&subscription("https://a:b@push.example:8443/x")), "https://push.example:8443");
    assert_eq!(&*lane_of("ann@example.org"), "");
    for (wrong, said) in [
        (String::new(), "not the JSON"),
        ("https://push.example/send".into(), "not the JSON"),
        ("{}".into(), "missing field `endpoint`"),
        (json!({ "endpoint": "https://push.example" }).to_string(), "missing field `keys`"),
        (subscription("ftp://push.example"), "`endpoint`"),
        (good.replace(BROWSER, "BCVx"), "`keys.p256dh`"),
        (good.replace(BROWSER, &BROWSER.replacen('B', "C", 1)), "`keys.p256dh`"),
        // 65 bytes that begin as a point does, but are none.
        (good.replace(BROWSER, &BROWSER.replacen("aOzi", "aOzj", 1)), "not a point of the curve P-256"),
        (good.replace(BROWSER, &format!("B{}", "A".repeat(86))), "not a point of the curve P-256"),
        (good.replace(BROWSER, &format!("B{}", "_".repeat(86))), "`keys.p256dh`"),
        (good.replace(AUTH, "AAAA"), "`keys.auth`"),
        (good.replace(AUTH, "BTBZMqHH6r4Tts7J/aSIgg"), "`keys.auth`"),
    ] {
        let error = check_subscription(&wrong).expect_err(&wrong);
        assert!(error.contains(said), "{wrong}: {error}");
    }
}

#[test]
fn payloads_fit_the_limit() {
    let plain = message(1);
    let json: Value = serde_json::from_slice(&payload(&plain, None).expect("it fits")).expect("JSON");
    let expected = json!({
        "id": "n-7-1.test", "title": "Earthquake near Kobe", "body": "Magnitude 6.1\n.\nStay safe – 神戸",
        "data": { "magnitude": 6.1, "place": "Kobe" },
    });
    assert_eq!(json, expected);
    for letter in ["x", "神", "\"", "\u{1}"] {
        let mut long = message(1);
        Arc::make_mut(&mut long.content).text = Some(letter.repeat(9_000));
        let bytes = payload(&long, None).expect("it is cut");
        assert!(bytes.len() <= TEXT_BYTES_MAX && bytes.len() > TEXT_BYTES_MAX - 60, "{letter:?}: {}", bytes.len());
        let json: Value = serde_json::from_slice(&bytes).expect("JSON");
        assert!(json["body"].as_str().is_some_and(|body| body.starts_with(letter)) && json["data"].is_null());
    }
    let made = |json: String| {
        let mut message = message(1);
        Arc::make_mut(&mut message.content).json = Some(json);
        payload(&message, None)
    };
    assert_eq!(made("{ \"a\": 1 }".into()), Ok(b"{ \"a\": 1 }".to_vec()), "what a template made is not touched");
    assert_eq!(made("x".repeat(TEXT_BYTES_MAX)).map(|bytes| bytes.len()), Ok(TEXT_BYTES_MAX));
    assert_eq!(made("x".repeat(TEXT_BYTES_MAX + 1)), Err(TEXT_BYTES_MAX + 1));
}

#[test]
fn a_topic_is_short_and_plain() {
    let of = |text: &str| {
        let headers = vec![("Topic".to_owned(), text.to_owned())];
        let content = tocsin_model::content::Content { headers, ..Default::default() };
        topic(&Message { content: Arc::new(content), ..message(1) })
    };
    assert_eq!(of("order-5"), Some("order-5".into()));
    assert_eq!(of(""), None);
    assert_eq!(topic(&message(1)), None);
    let (long, other) = (of(&"x".repeat(33)).expect("a topic"), of("Zoë's order").expect("a topic"));
    assert!(long.len() == 32 && other.len() == 32 && long != other, "{long} {other}");
}

/// A push service that answers as its path says, and records requests.
#[derive(Clone, Default)]
struct Service(Arc<Mutex<Vec<(String, HeaderMap, Bytes)>>>);

async fn take(
    State(service): State<Service>,
    Path(status): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> impl IntoResponse {
    service.0.lock().push((status.clone(), headers, body));
    let (status, wait) = status.split_once('-').unwrap_or((&status, ""));
    let wait = wait.parse::<u64>().ok().map(|wait| [("retry-after", wait.to_string())]);
    let status: StatusCode = status.parse().expect("a status");
    (status, wait.map(axum::response::AppendHeaders), "because")
}

impl Service {
    async fn start(&self) -> String {
        let router = Router::new().route("/{status}", post(take)).with_state(self.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = format!("http://{}", listener.local_addr().expect("an address"));
        tokio::spawn(async move { axum::serve(listener, router).await });
        address
    }
}

fn open(options: Value) -> (Box<dyn OpenChannel>, String) {
    open_in(options, &context())
}

fn open_in(options: Value, context: &Context) -> (Box<dyn OpenChannel>, String) {
    let key = generate_key().expect("a key");
    let mut all = json!({ "public_key": key.public, "private_key": key.private, "subject": "mailto:ops@example.org" });
    all.as_object_mut().expect("an object").extend(options.as_object().expect("an object").clone());
    let name = "push".parse().expect("a name");
    let open = crate::open(&name, &channel("webpush", all, 4), context);
    (open.unwrap_or_else(|problems| panic!("{problems:?}")), key.public)
}

#[tokio::test]
async fn answers_of_push_services_become_dispositions() {
    let service = Service::default();
    let address = service.start().await;
    let (open, _) = open(json!({ "allow_networks": ["127.0.0.1"] }));
    let of = |path: &str| subscription(&format!("{address}/{path}"));
    let off_curve = of("201").replace(BROWSER, &format!("BAAA{}", &BROWSER[4..]));
    let cases = [
        (of("201"), "delivered 201"),
        (of("404"), "refused Gone 404 because; the browser has no such subscription any more"),
        (of("410"), "refused Gone 410 because; the browser has no such subscription any more"),
        (of("413"), "refused Answer 413 because; the push service takes no message of this size"),
        (of("400"), "refused Answer 400 because"),
        (
            of("403"),
            "deferred Authentication 403 because; the push service does not accept our key for this subscription",
        ),
        (of("503"), "deferred Answer 503 because"),
        (of("201").replace("null", "1000"), "refused Gone the browser's subscription is over"),
        (off_curve, "refused Address `keys.p256dh` is not a point of the curve P-256"),
        (
            "ann@example.org".into(),
            "refused Address this is not the JSON of a push subscription: expected value at line 1 column 1",
        ),
        // The last one: the push service is paused.
        (of("429-7"), "deferred Answer 429 because"),
    ];
    for (number, (address, expected)) in cases.into_iter().enumerate() {
        let mut outgoing = outgoing(0, &address);
        outgoing.ticket.ordinal = 0;
        assert_eq!(deliver(&*open, vec![outgoing]).await, [expected], "{number}");
    }
    // No option allows this one's network.
    let (closed, _) = self::open(json!({}));
    let said = deliver(&*closed, vec![outgoing(0, &of("201"))]).await;
    assert_eq!(said, ["refused Address the endpoint of a push service starts with `https://`"]);
    let said = deliver(&*closed, vec![outgoing(0, &of("201").replace("http:", "https:"))]).await;
    assert!(said[0].starts_with("refused Address") && said[0].contains("loopback"), "{}", said[0]);
}

#[tokio::test]
async fn requests_carry_vapid_tokens_ttl_and_urgency() {
    let service = Service::default();
    let address = service.start().await;
    let (open, public) = open(json!({ "allow_networks": ["127.0.0.1"], "ttl_seconds": 600 }));
    let mut messages: Vec<_> =
        (0..3).map(|number| outgoing(number, &subscription(&format!("{address}/201")))).collect();
    let first = Arc::make_mut(&mut messages[0].message);
    (first.priority, first.expires_at) =
        (Priority::High, Some(first.formatted_at + std::time::Duration::from_secs(60)));
    Arc::make_mut(&mut first.content).headers = vec![("Topic".into(), "quake".into())];
    Arc::make_mut(&mut messages[1].message).priority = Priority::Low;
    assert_eq!(deliver(&*open, messages).await, ["delivered 201"; 3]);
    assert!(open.probe().await.expect("well").contains(&public));
    let seen = service.0.lock();
    let header = |headers: &HeaderMap, name: &str| {
        headers.get(name).map(|value| value.to_str().expect("text").to_owned()).unwrap_or_default()
    };
    let mut received: Vec<String> = seen
        .iter()
        .map(|(_, headers, _)| ["ttl", "urgency", "topic"].map(|name| header(headers, name)).join(" "))
        .collect();
    received.sort();
    assert_eq!(received, ["60 high quake", "600 low ", "600 normal "]);
    for (_, headers, body) in seen.iter() {
        assert_eq!(header(headers, "content-encoding"), "aes128gcm");
        assert_eq!((&body[16..21], body.len() <= 4_096), (&[0, 0, 16, 0, 65][..], true));
        let authorization = header(headers, "authorization");
        let parts: BTreeMap<&str, &str> = authorization
            .strip_prefix("vapid ")
            .expect("the scheme")
            .split(", ")
            .filter_map(|part| part.split_once('='))
            .collect();
        assert_eq!(parts["k"], public);
        let (signed, signature) = parts["t"].rsplit_once('.').expect("a token");
        let decode = |text: &str| BASE64_URL_SAFE_NO_PAD.decode(text).expect("base64");
        let key = UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, decode(&public));
        key.verify(signed.as_bytes(), &decode(signature)).expect("a good signature");
        let claims: Value = serde_json::from_slice(&decode(signed.split_once('.').expect("two").1)).expect("JSON");
        let now: tocsin_model::time::Timestamp = NOW.parse().expect("a time");
        assert_eq!(claims["aud"], address, "the origin, and nothing of the path");
        assert_eq!(claims["sub"], "mailto:ops@example.org");
        assert_eq!(claims["exp"].as_i64(), Some(now.as_millis() / 1_000 + 12 * 3_600));
    }
    let bodies: std::collections::BTreeSet<&[u8]> = seen.iter().map(|(_, _, body)| &body[..16]).collect();
    assert_eq!(bodies.len(), 3, "each has a salt of its own");
}

#[test]
fn options_are_checked() {
    let (one, other) = (generate_key().expect("a key"), generate_key().expect("a key"));
    let check = |options: Value| {
        let problems = crate::check(&"webpush".parse().expect("a name"), options.as_object().expect("an object"), "o");
        problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    };
    let good =
        json!({ "public_key": one.public, "private_key": one.private, "subject": "https://example.org/contact" });
    assert_eq!(check(good.clone()), "");
    let with = |name: &str, value: Value| {
        let mut options = good.clone();
        options[name] = value;
        check(options)
    };
    assert!(
        with("private_key", other.private.clone().into())
            .contains("o.private_key: this does not belong to the public key")
    );
    assert!(with("private_key", "x".into()).contains("o.private_key: this is not a private key of 32 bytes"));
    assert!(with("public_key", "x".into()).contains("o.public_key: this is not a public key of 65 bytes"));
    assert!(with("subject", "ops@example.org".into()).contains("o.subject: push services want to know whom to ask"));
    assert!(with("ttl_seconds", 2_419_201.into()).contains("o.ttl_seconds: push services keep nothing"));
    let missing = check(json!({}));
    assert!(
        ["o.public_key: the key is missing", "o.private_key: the key is missing", "o.subject"]
            .iter()
            .all(|said| missing.contains(said)),
        "{missing}"
    );
    assert!(!missing.contains(&one.private));
}

struct Conforming {
    service: Service,
    address: String,
    /// The address of the push service of the next messages.
    endpoint: Mutex<String>,
}

#[async_trait]
impl Subject for Conforming {
    async fn open(&self, context: Context) -> Box<dyn OpenChannel> {
        *self.endpoint.lock() = format!("{}/201", self.address);
        open_in(json!({ "allow_networks": ["127.0.0.1"] }), &context).0
    }

    async fn open_silent(&self, context: Context) -> Option<Box<dyn OpenChannel>> {
        *self.endpoint.lock() = format!("http://{}/201", silent_server().await);
        Some(open_in(json!({ "allow_networks": ["127.0.0.1"], "timeout": "100ms" }), &context).0)
    }

    fn outgoing(&self, ordinal: u32) -> Outgoing {
        let mut outgoing = outgoing(ordinal, &subscription(&self.endpoint.lock()));
        // Only the browser can read the id; the topic is in clear text.
        content_of(&mut outgoing).headers = vec![("Topic".into(), outgoing.id.to_string())];
        outgoing
    }

    fn id_of(&self, outgoing: &Outgoing) -> String {
        outgoing.id.to_string()
    }

    async fn received_ids(&self) -> Vec<String> {
        let topic =
            |(_, headers, _): &(String, HeaderMap, Bytes)| Some(headers.get("topic")?.to_str().ok()?.to_owned());
        self.service.0.lock().iter().filter_map(topic).collect()
    }

    fn in_flight_max(&self) -> usize {
        4
    }
}

#[tokio::test]
async fn slow_it_conforms() {
    let service = Service::default();
    let address = service.start().await;
    exercise(&Conforming { service, address, endpoint: Mutex::default() }).await;
}
