//! Callbacks of SMS providers: their documented formats, and every way in which one is refused.

use std::{fs, path::PathBuf, time::Duration};

use base64::{
    Engine,
    prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD},
};
use ring::{digest, hmac};
use serde_json::{Value, json};
use tocsin_feedback::{
    Class, Limits,
    policy::Evidence,
    provider::{
        ProviderError, Request,
        messagebird::MessageBird,
        sinch::Sinch,
        sms::{Callback, SmsEvent, VerifiedCallback},
        standard_webhooks::StandardWebhooks,
        twilio::Twilio,
        vonage::Vonage,
    },
};
use tocsin_model::time::Timestamp;

/// Six seconds after 2026-12-01T10:00:00Z.
const NOW: Timestamp = Timestamp::from_millis(1_796_119_206_000);
const SECONDS: i64 = 1_796_119_205;
const WINDOW: Duration = Duration::from_secs(3_600);
const SECRET: &str = "a secret of the account";
const REFERENCE: &str = "n-70000-41.0123456789abcdef01234567";

fn file(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../testdata/feedback/sms").join(name);
    fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn later(seconds: i64) -> Timestamp {
    Timestamp::from_millis(NOW.as_millis() + seconds * 1_000)
}

fn sha256(bytes: &[u8]) -> String {
    hex::encode(digest::digest(&digest::SHA256, bytes))
}

fn sign(algorithm: hmac::Algorithm, secret: &[u8], text: &[u8]) -> Vec<u8> {
    hmac::sign(&hmac::Key::new(algorithm, secret), text).as_ref().to_vec()
}

fn jwt(header: &Value, claims: &Value) -> String {
    let part = |value: &Value| BASE64_URL_SAFE_NO_PAD.encode(value.to_string());
    let signed = format!("{}.{}", part(header), part(claims));
    let signature = sign(hmac::HMAC_SHA256, SECRET.as_bytes(), signed.as_bytes());
    format!("{signed}.{}", BASE64_URL_SAFE_NO_PAD.encode(signature))
}

/// The event in one line.
fn summary(verified: &Result<VerifiedCallback, ProviderError>) -> String {
    match verified {
        Ok(VerifiedCallback { event: SmsEvent::Receipt(receipt), .. }) => format!(
            "{} {} {} {} {}: {}",
            receipt.class().word(),
            receipt.recipient(),
            receipt.reference().unwrap_or("-"),
            receipt.code().unwrap_or("-"),
            receipt.key(),
            receipt.diagnostic(),
        ),
        Ok(VerifiedCallback { event: SmsEvent::Reply(reply), .. }) => {
            format!("{} to {}: {:?} ({})", reply.from(), reply.to(), reply.text(), reply.id())
        }
        Ok(VerifiedCallback { event: SmsEvent::Progress, .. }) => "progress".to_owned(),
        Err(error) => format!("{error:?}"),
    }
}

// Twilio.

const TWILIO_URL: &str = "https://tocsin.example/v1/feedback/shop/sms?message=n-70000-41.0123456789abcdef01234567";

fn twilio_signature(url: &str, body: &[u8]) -> String {
    let mut pairs: Vec<(String, String)> = url::form_urlencoded::parse(body).into_owned().collect();
    pairs.sort();
    let text: String = pairs.into_iter().fold(url.to_owned(), |text, (name, value)| text + &name + &value);
    BASE64_STANDARD.encode(sign(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, SECRET.as_bytes(), text.as_bytes()))
}

fn twilio(url: &str, body: &[u8], signature: Option<&str>) -> Result<VerifiedCallback, ProviderError> {
    let headers: Vec<_> = signature.iter().map(|value| ("x-twilio-signature", *value)).collect();
    Twilio::new(SECRET).verify(&Callback { url, request: Request { headers: &headers, body } }, &Limits::default())
}

fn twilio_signed(url: &str, body: &[u8]) -> Result<VerifiedCallback, ProviderError> {
    twilio(url, body, Some(&twilio_signature(url, body)))
}

#[test]
fn twilio_receipts_and_replies_are_read() {
    let status = file("twilio-status.form");
    let receipt = twilio_signed(TWILIO_URL, &status);
    let id = "SM00000000000000000000000000000001";
    assert_eq!(summary(&receipt), format!("hard +491701234567 {REFERENCE} 30005 twilio/{id}: undelivered"));
    assert_eq!(receipt.expect("valid").replay_key, format!("twilio/{id}/undelivered"));
    let reply = twilio_signed(TWILIO_URL, &file("twilio-reply.form"));
    let id = "SM00000000000000000000000000000002";
    assert_eq!(summary(&reply), format!("+491701234567 to +4930123456: \"Stop\\n\" ({id})"));
    let changed = |from: &str, to: &str| {
        let text = String::from_utf8(status.clone()).expect("text");
        assert!(text.contains(from), "{from}");
        summary(&twilio_signed(TWILIO_URL, text.replace(from, to).as_bytes()))
    };
    assert_eq!(changed("=undelivered", "=sent"), "progress");
    for (code, class) in
        [("30003", "soft"), ("30006", "hard"), ("30007", "blocked"), ("21610", "unsubscribe"), ("21614", "hard")]
    {
        assert!(changed("30005", code).starts_with(&format!("{class} ")), "{code}");
    }
    assert!(
        changed(
            "MessageSid=SM00000000000000000000000000000001&MessageStatus=undelivered",
            "MessageSid=&MessageStatus=delivered"
        )
        .starts_with("delivered ")
    );
    let opt_out = [&file("twilio-reply.form")[..], b"&OptOutType=STOP"].concat();
    let Ok(VerifiedCallback { event: SmsEvent::Reply(reply), .. }) = twilio_signed(TWILIO_URL, &opt_out) else {
        panic!("a reply")
    };
    assert_eq!(reply.keyword(), Some(tocsin_feedback::provider::sms::Keyword::Stop));
}

#[test]
fn changed_callbacks_of_twilio_are_refused() {
    let body = file("twilio-status.form");
    let signature = twilio_signature(TWILIO_URL, &body);
    assert_eq!(twilio(TWILIO_URL, &body, None), Err(ProviderError::Unsigned("signature")));
    assert_eq!(twilio(TWILIO_URL, &body, Some("%")), Err(ProviderError::Signature));
    let other_url = TWILIO_URL.replace("n-70000-41", "n-70000-42");
    assert_eq!(twilio(&other_url, &body, Some(&signature)), Err(ProviderError::Signature));
    let other_body = String::from_utf8(body).expect("text").replace("30005", "30006");
    assert_eq!(twilio(TWILIO_URL, other_body.as_bytes(), Some(&signature)), Err(ProviderError::Signature));
    let many = "a=b&".repeat(300);
    let refused = twilio_signed(TWILIO_URL, many.as_bytes());
    assert_eq!(refused, Err(ProviderError::TooLarge("the number of parameters")));
    let large = vec![b'a'; Limits::default().payload_bytes_max + 1];
    assert_eq!(twilio_signed(TWILIO_URL, &large), Err(ProviderError::TooLarge("payload_bytes_max")));
}

// Vonage.

fn vonage_claims(body: &[u8]) -> Value {
    json!({
        "iat": SECONDS, "jti": "c9b8a7f6", "iss": "Vonage", "payload_hash": sha256(body), "api_key": "abcd1234",
        "application_id": "aaaaaaaa-bbbb-4ccc-8ddd-0123456789ab",
    })
}

fn vonage(token: &str, body: &[u8], now: Timestamp) -> Result<VerifiedCallback, ProviderError> {
    let authorization = format!("Bearer {token}");
    let headers = [("Authorization", authorization.as_str())];
    let callback = Callback { url: "", request: Request { headers: &headers, body } };
    Vonage::new(SECRET, WINDOW).verify(&callback, now, &Limits::default())
}

fn vonage_signed(body: &[u8]) -> Result<VerifiedCallback, ProviderError> {
    vonage(&jwt(&json!({"alg": "HS256", "typ": "JWT"}), &vonage_claims(body)), body, NOW)
}

#[test]
fn vonage_receipts_and_replies_are_read() {
    let receipt = vonage_signed(&file("vonage-receipt.json"));
    assert_eq!(summary(&receipt), format!("hard 491701234567 {REFERENCE} 3 vonage/0A0000000123ABCD1: failed"));
    assert_eq!(receipt.expect("valid").replay_key, "vonage/c9b8a7f6");
    let reply = vonage_signed(&file("vonage-reply.json"));
    assert_eq!(summary(&reply), "491701234567 to 4930123456: \"ABMELDEN\" (0A0000000123ABCD2)");
    let status = vonage_signed(&file("vonage-message-status.json"));
    let expected =
        format!("delivered 491701234567 {REFERENCE} - vonage/aaaaaaaa-bbbb-4ccc-8ddd-0123456789ab: delivered");
    assert_eq!(summary(&status), expected);
}

#[test]
fn changed_old_and_weakly_signed_callbacks_of_vonage_are_refused() {
    let body = file("vonage-receipt.json");
    let header = json!({"alg": "HS256", "typ": "JWT"});
    let token = jwt(&header, &vonage_claims(&body));
    assert_eq!(vonage(&token, &file("vonage-reply.json"), NOW), Err(ProviderError::Signature));
    assert_eq!(vonage(&token, &body, later(3_700)), Err(ProviderError::Stale));
    assert_eq!(vonage(&token, &body, later(-400)), Err(ProviderError::Stale));
    for algorithm in ["none", "RS256", "hs256"] {
        let token = jwt(&json!({"alg": algorithm}), &vonage_claims(&body));
        assert_eq!(vonage(&token, &body, NOW), Err(ProviderError::Signature), "{algorithm}");
    }
    let (signed, _) = token.rsplit_once('.').expect("a token");
    for wrong in [format!("{signed}."), format!("{token}A"), signed.to_owned(), String::new()] {
        assert_eq!(vonage(&wrong, &body, NOW), Err(ProviderError::Signature), "{wrong}");
    }
    // The hash covers the body only: a query under the hash of an empty body is no proof.
    let url = "https://tocsin.example/v1/feedback/shop/sms?msisdn=491701234567&to=49&messageId=1&text=STOP";
    let authorization = format!("Bearer {}", jwt(&header, &vonage_claims(b"")));
    let headers = [("authorization", authorization.as_str())];
    let callback = Callback { url, request: Request { headers: &headers, body: b"" } };
    let refused = Vonage::new(SECRET, WINDOW).verify(&callback, NOW, &Limits::default());
    assert_eq!(refused, Err(ProviderError::Unsigned("body")));
}

#[test]
fn signed_parameters_of_vonage_are_verified() {
    let values = [("messageId", "0A1"), ("msisdn", "491701234567"), ("text", "a&b=STOP"), ("to", "4930")];
    let verify = |algorithm, at: i64, secret: &str| {
        let timestamp = at.to_string();
        let mut pairs = values.to_vec();
        pairs.extend([("nonce", "aaaaaaaa-bbbb"), ("timestamp", timestamp.as_str())]);
        pairs.sort_unstable();
        let text: String =
            pairs.iter().map(|(name, value)| format!("&{name}={}", value.replace(['&', '='], "_"))).collect();
        let signature = hex::encode_upper(sign(algorithm, secret.as_bytes(), text.as_bytes()));
        pairs.push(("sig", signature.as_str()));
        let body: String = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(pairs).finish();
        let request = Request { headers: &[], body: body.as_bytes() };
        summary(&Vonage::new(SECRET, WINDOW).verify(&Callback { url: "", request }, NOW, &Limits::default()))
    };
    let expected = "491701234567 to 4930: \"a&b=STOP\" (0A1)";
    assert_eq!(verify(hmac::HMAC_SHA256, SECONDS, SECRET), expected);
    assert_eq!(verify(hmac::HMAC_SHA512, SECONDS, SECRET), expected);
    assert_eq!(verify(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, SECONDS, SECRET), "Signature");
    assert_eq!(verify(hmac::HMAC_SHA256, SECONDS - 3_700, SECRET), "Stale");
    assert_eq!(verify(hmac::HMAC_SHA256, SECONDS, "another"), "Signature");
}

// MessageBird.

const MESSAGEBIRD_URL: &str = "https://tocsin.example/v1/feedback/shop/sms";

fn messagebird(url: &str, body: &[u8], claims: &Value, now: Timestamp) -> Result<VerifiedCallback, ProviderError> {
    let token = jwt(&json!({"alg": "HS256", "typ": "JWT"}), claims);
    let headers = [("messagebird-signature-jwt", token.as_str())];
    let callback = Callback { url, request: Request { headers: &headers, body } };
    MessageBird::new(SECRET, WINDOW).verify(&callback, now, &Limits::default())
}

fn messagebird_claims(url: &str, body: &[u8]) -> Value {
    let mut claims = json!({
        "iss": "MessageBird", "nbf": SECONDS, "exp": SECONDS + 60, "jti": "e92e6ed4",
        "url_hash": sha256(url.as_bytes()),
    });
    if !body.is_empty() {
        claims["payload_hash"] = sha256(body).into();
    }
    claims
}

#[test]
fn messagebird_reports_and_replies_are_read() {
    let query = String::from_utf8(file("messagebird-report.query")).expect("text");
    let url = format!("{MESSAGEBIRD_URL}?{query}");
    let report = messagebird(&url, b"", &messagebird_claims(&url, b""), NOW);
    let id = "0123456789abcdef0123456789abcdef";
    assert_eq!(summary(&report), format!("hard 491701234567 {REFERENCE} 1 messagebird/{id}: unknown subscriber"));
    let body = file("messagebird-reply.form");
    let reply = messagebird(MESSAGEBIRD_URL, &body, &messagebird_claims(MESSAGEBIRD_URL, &body), NOW);
    assert_eq!(summary(&reply), "491701234567 to 4930123456: \"Arrêt\" (0123456789abcdef0123456789abcde0)");
}

#[test]
fn changed_and_old_callbacks_of_messagebird_are_refused() {
    let query = String::from_utf8(file("messagebird-report.query")).expect("text");
    let url = format!("{MESSAGEBIRD_URL}?{query}");
    let claims = messagebird_claims(&url, b"");
    let other = url.replace("491701234567", "491701234568");
    assert_eq!(messagebird(&other, b"", &claims, NOW), Err(ProviderError::Signature));
    assert_eq!(messagebird(&url, b"a=b", &claims, NOW), Err(ProviderError::Unsigned("body")));
    assert_eq!(messagebird(&url, b"", &claims, later(400)), Err(ProviderError::Stale), "after `exp`");
    let mut foreign = claims.clone();
    foreign["iss"] = "elsewhere".into();
    assert_eq!(messagebird(&url, b"", &foreign, NOW), Err(ProviderError::Signature));
    let mut long = claims;
    (long["nbf"], long["exp"]) = ((SECONDS - 4_000).into(), (SECONDS + 4_000).into());
    assert_eq!(messagebird(&url, b"", &long, NOW), Err(ProviderError::Stale));
}

// Sinch.

fn sinch(body: &[u8], at: i64, secret: &str) -> Result<VerifiedCallback, ProviderError> {
    let at = at.to_string();
    let signed = [body, b".01HF.", at.as_bytes()].concat();
    let signature = BASE64_STANDARD.encode(sign(hmac::HMAC_SHA256, secret.as_bytes(), &signed));
    let headers = [
        ("x-sinch-webhook-signature", signature.as_str()),
        ("x-sinch-webhook-signature-nonce", "01HF"),
        ("x-sinch-webhook-signature-timestamp", at.as_str()),
        ("x-sinch-webhook-signature-algorithm", "HmacSHA256"),
    ];
    let callback = Callback { url: "", request: Request { headers: &headers, body } };
    Sinch::new(SECRET, WINDOW).verify(&callback, NOW, &Limits::default())
}

#[test]
fn sinch_reports_and_replies_are_verified_and_read() {
    let report = sinch(&file("sinch-report.json"), SECONDS, SECRET);
    let batch = "01HF0000000000000000000001";
    let expected = format!("delivered 491701234567 {REFERENCE} 0 sinch/{batch}/491701234567: Delivered");
    assert_eq!(summary(&report), expected);
    let reply = sinch(&file("sinch-reply.json"), SECONDS, SECRET);
    assert_eq!(summary(&reply), "491701234567 to 4930123456: \"START\" (01HF0000000000000000000002)");
    assert_eq!(sinch(&file("sinch-reply.json"), SECONDS, "another"), Err(ProviderError::Signature));
    assert_eq!(sinch(&file("sinch-reply.json"), SECONDS - 3_700, SECRET), Err(ProviderError::Stale));
    assert!(matches!(sinch(b"{\"type\": \"delivery_report_sms\"}", SECONDS, SECRET), Err(ProviderError::Format(_))));
}

// Standard Webhooks.

const WHSEC: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

fn standard(body: &[u8], at: i64, given: Option<&str>) -> Result<VerifiedCallback, ProviderError> {
    let at = at.to_string();
    let secret = BASE64_STANDARD.decode(WHSEC.trim_start_matches("whsec_")).expect("Base64");
    let signed = [b"msg_1.", at.as_bytes(), b".", body].concat();
    let ours = format!("v1a,xx v1,{}", BASE64_STANDARD.encode(sign(hmac::HMAC_SHA256, &secret, &signed)));
    let headers = [
        ("webhook-id", "msg_1"),
        ("webhook-timestamp", at.as_str()),
        ("webhook-signature", given.unwrap_or(ours.as_str())),
    ];
    let callback = Callback { url: "", request: Request { headers: &headers, body } };
    StandardWebhooks::new(WHSEC, WINDOW).expect("a secret").verify(&callback, NOW, &Limits::default())
}

#[test]
fn standard_webhooks_are_verified_and_read() {
    let receipt = standard(&file("webhook-receipt.json"), SECONDS, None);
    assert_eq!(summary(&receipt), format!("soft +491701234567 {REFERENCE} 17 webhook/77: absent subscriber"));
    let Ok(VerifiedCallback { event: SmsEvent::Receipt(receipt), replay_key }) = receipt else { panic!("a receipt") };
    assert_eq!((Evidence::of_receipt(&receipt).class(), replay_key.as_str()), (Class::Soft, "webhook/msg_1"));
    let reply = standard(&file("webhook-reply.json"), SECONDS, None);
    assert_eq!(summary(&reply), "+491701234567 to +4930123456: \"HELP\" (78)");
    let Ok(VerifiedCallback { event: SmsEvent::Reply(reply), .. }) = reply else { panic!("a reply") };
    assert_eq!(Evidence::of_stop(&reply).class(), Class::Unsubscribe);
    let body = file("webhook-reply.json");
    assert_eq!(standard(&body, SECONDS - 3_700, None), Err(ProviderError::Stale));
    for wrong in ["", "v1,", "v1,AAAA", "v2,AAAA"] {
        assert_eq!(standard(&body, SECONDS, Some(wrong)), Err(ProviderError::Signature), "{wrong}");
    }
    assert!(matches!(
        standard(b"{\"type\": \"x\", \"data\": {\"id\": 1}}", SECONDS, None),
        Err(ProviderError::Format(_))
    ));
    for wrong in ["", "whsec_", "whsec_AAAA", "AAAA"] {
        assert!(StandardWebhooks::new(wrong, WINDOW).is_err(), "{wrong}");
    }
}
