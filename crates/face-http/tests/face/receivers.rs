//! Webhooks of providers at a running router: only a genuine one has an effect, once.

mod mail; // SES, SendGrid, Mailgun, Postmark, Brevo
mod sms; // Twilio, Vonage, MessageBird, Sinch, Standard Webhooks

use std::{
    fs,
    path::PathBuf,
    sync::{Arc, LazyLock},
};

use parking_lot::Mutex;
use rcgen::{CertificateParams, KeyPair, PKCS_RSA_SHA256};
use reqwest::Method;
use rsa::{RsaPrivateKey, pkcs8::EncodePrivateKey, rand_core::OsRng};
use serde_json::{Value as Json, json};
use tocsin_model::{
    id::{NotificationId, SubscriberNumber},
    time::Timestamp,
};
use tocsin_service::receivers::{BODY_BYTES_MAX, Fetch};

use crate::platform::{Platform, answer, json as body_of};

const JSON: &str = "application/json";
/// The receiver of the application under test.
const PATH: &str = "/v1/feedback/shop/out";

/// Requests of the receivers; the answer to each is the certificate of the tests.
#[derive(Debug, Clone, Default)]
pub struct Fetched(pub Arc<Mutex<Vec<String>>>);

#[async_trait::async_trait]
impl Fetch for Fetched {
    async fn fetch(&self, url: &str) -> Result<Vec<u8>, String> {
        self.0.lock().push(url.to_owned());
        Ok(SNS.certificate.clone())
    }
}

/// Key and certificate that sign the messages of SNS.
struct SnsKey {
    /// PKCS #8.
    key: Vec<u8>,
    /// PEM.
    certificate: Vec<u8>,
}

static SNS: LazyLock<SnsKey> = LazyLock::new(|| {
    let key = RsaPrivateKey::new(&mut OsRng, 2_048).expect("a key").to_pkcs8_der().expect("DER").as_bytes().to_vec();
    let der = rustls::pki_types::PrivatePkcs8KeyDer::from(key.clone());
    let signer = KeyPair::from_pkcs8_der_and_sign_algo(&der, &PKCS_RSA_SHA256).expect("a key for a certificate");
    let certificate =
        CertificateParams::new(vec!["sns.amazonaws.com".to_owned()]).expect("a name").self_signed(&signer);
    SnsKey { key, certificate: certificate.expect("a certificate").pem().into_bytes() }
});

fn file(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../testdata/feedback").join(name);
    fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn json_file(name: &str) -> Json {
    serde_json::from_slice(&file(name)).expect("JSON")
}

/// Unix seconds.
fn now() -> i64 {
    Timestamp::from(std::time::SystemTime::now()).as_millis() / 1_000
}

/// A webhook.
#[derive(Clone)]
struct Sent {
    method: Method,
    path: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Sent {
    fn new(headers: &[(&str, &str)], body: Vec<u8>) -> Sent {
        let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Sent { method: Method::POST, path: PATH.to_owned(), headers, body }
    }

    fn without(mut self, header: &str) -> Sent {
        self.headers.retain(|(name, _)| name != header);
        self
    }

    fn at(self, path: &str) -> Sent {
        Sent { path: path.to_owned(), ..self }
    }
}

/// An application with one channel, a subscriber for it, and a notification that was delivered.
struct Shop {
    platform: Platform,
    address: &'static str,
}

impl Shop {
    /// With the applications `shop` and `bank`, whose channels have these options.
    async fn open(protocol: &str, options: Json, address: &'static str) -> Shop {
        let platform = Platform::start().await;
        for application in ["shop", "bank"] {
            let definition = json!({
                "application": application,
                "events": {"offer": {"fields": {"text": {"type": "string", "required": true}}}},
                "subscriptions": {"offers": {"fields": {}}},
                "notifications": {"note": {
                    "fields": {"text": "string"},
                    "content": {"engine": "jinja", "templates": {"base": {"subject": "Offer", "text": "{{ text }}"}}},
                }},
                "rules": {"each": {"on": "offer", "subscription": "offers", "notify": "note"}},
                "channels": {"out": {"protocol": protocol, "options": options}},
            });
            let path = format!("/v1/applications/{application}");
            let (status, body) = platform.put(&path, "application/yaml", &definition.to_string()).await;
            assert_eq!(status, 201, "{body}");
        }
        let alice = json!({"id": "alice", "devices": {"home": {"channel": "out", "address": address}}});
        let (status, body) = platform.post("/v1/subscribers", JSON, &alice.to_string()).await;
        assert_eq!(status, 201, "{body}");
        for application in ["shop", "bank"] {
            let interest = json!({"application": application, "class": "offers", "subscriber": "alice"});
            let (status, body) = platform.post("/v1/subscriptions", JSON, &interest.to_string()).await;
            assert_eq!(status, 201, "{body}");
        }
        Shop { platform, address }
    }

    /// Sends a notification; returns its id and state.
    async fn notify(&self, application: &str, event_batch: u64) -> (NotificationId, String) {
        let path = format!("/v1/applications/{application}/events/offer");
        let (status, body) = self.platform.post(&path, JSON, r#"{"text": "Cheap"}"#).await;
        assert_eq!(status, 202, "{body}");
        let id = format!("n-{event_batch}-0");
        loop {
            let (status, found) = self.platform.get(&format!("/v1/notifications/{id}")).await;
            if status == 200 && found["attempts"].as_array().is_some_and(|attempts| !attempts.is_empty()) {
                return (id.parse().expect("an id"), found["state"].as_str().expect("a state").to_owned());
            }
            tokio::task::yield_now().await;
        }
    }

    /// The id that the messages of a notification carry.
    fn message_id(&self, id: NotificationId) -> String {
        format!("{id}.{}", self.platform.records.installation())
    }

    async fn number(&self) -> SubscriberNumber {
        let found = self.platform.records.subscriber(&"alice".parse().expect("an id")).await.expect("records");
        found.expect("alice").number
    }

    /// Sends a webhook; returns status and body.
    async fn send(&self, sent: &Sent) -> (u16, Json) {
        let url = format!("{}{}", self.platform.address, sent.path);
        let mut request = self.platform.client.request(sent.method.clone(), url).body(sent.body.clone());
        for (name, value) in &sent.headers {
            request = request.header(name, value);
        }
        let response = request.send().await.expect("an answer");
        (response.status().as_u16(), body_of(response).await)
    }

    /// Status and code of a refused webhook.
    async fn refused(&self, sent: &Sent) -> (u16, String) {
        let (status, body) = self.send(sent).await;
        (status, body["code"].as_str().unwrap_or_else(|| panic!("{status} {body}")).to_owned())
    }

    /// The suppression of the address, as `cause origin notification`.
    async fn suppression(&self, protocol: &str) -> Option<String> {
        let path = format!("/v1/suppressions/addresses/{protocol}/{}", self.address);
        let (status, body) = self.platform.get(&path).await;
        let text = |name: &str| body[name].as_str().unwrap_or("-").to_owned();
        (status == 200 && body["in_force"] == true)
            .then(|| format!("{} {} {}", text("cause"), text("origin"), text("notification")))
    }

    async fn lift(&self, path: &str) {
        let (status, body) = answer(self.platform.request("DELETE", path)).await;
        assert_eq!(status, 204, "{body}");
    }

    async fn nothing_is_suppressed(&self) {
        let (status, body) = self.platform.get("/v1/suppressions?in_force=true").await;
        assert_eq!((status.as_u16(), &body["items"]), (200, &json!([])));
    }
}

/// Asserts that a webhook is refused in every wrong form, and that nothing is suppressed by then. `make` makes a
/// genuine webhook of a time; `proof` is the header field with its proof, and the problem without it.
async fn assert_refusals(
    shop: &Shop,
    make: impl Fn(i64) -> Sent,
    forge: impl Fn(Sent) -> Sent,
    proof: Option<(&str, (u16, &str))>,
    has_time: bool,
) {
    let text = |(status, code): (u16, &str)| (status, code.to_owned());
    let genuine = make(now());
    let forged = forge(genuine.clone());
    assert_eq!(shop.refused(&forged).await, text((403, "webhook_signature")));
    if let Some((field, unsigned)) = proof {
        assert_eq!(shop.refused(&genuine.clone().without(field)).await, text(unsigned));
    }
    if has_time {
        assert_eq!(shop.refused(&make(now() - 3 * 86_400)).await, text((403, "webhook_stale")));
        assert_eq!(shop.refused(&make(now() + 86_400)).await, text((403, "webhook_stale")));
    }
    let large = Sent { body: vec![b' '; BODY_BYTES_MAX + 1], method: Method::POST, ..genuine.clone() };
    assert_eq!(shop.refused(&large).await, text((413, "body_too_large")));
    for path in ["/v1/feedback/shop/other", "/v1/feedback/other/out", "/v1/feedback/-/out"] {
        assert_eq!(shop.refused(&genuine.clone().at(path)).await, text((404, "not_found")), "{path}");
    }
    shop.nothing_is_suppressed().await;
}
