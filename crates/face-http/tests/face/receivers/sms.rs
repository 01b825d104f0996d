//! Callbacks of SMS providers: receipts and keywords, in their captured forms, signed anew.

use std::sync::Arc;

use base64::{
    Engine,
    prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD},
};
use reqwest::Method;
use ring::{digest, hmac};
use serde_json::{Value as Json, json};
use tocsin_service::receivers::{Receivers, Webhook};

use super::{Fetched, PATH, Sent, Shop, assert_refusals, file, json_file, now};

const NUMBER: &str = "+491701234567";
const SECRET: &str = "a secret of the account";
const WHSEC: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const PUBLIC: &str = "https://tocsin.example";

/// Values of a callback.
struct Values<'a> {
    /// The id of our message, for a receipt; the text, for a reply.
    content: &'a str,
    /// The id of the event at the provider.
    event: &'a str,
    at: i64,
}

/// A provider: the option of the channel, and its callbacks.
struct Provider {
    name: &'static str,
    feedback: Json,
    /// A receipt that says that the number does not exist, if the provider says so; else another failure.
    receipt: fn(&Values<'_>) -> Sent,
    reply: fn(&Values<'_>) -> Sent,
    /// The class of the receipt.
    is_hard: bool,
    proof: (&'static str, &'static str),
    has_time: bool,
}

fn mac(algorithm: hmac::Algorithm, secret: &[u8], text: &[u8]) -> String {
    BASE64_STANDARD.encode(hmac::sign(&hmac::Key::new(algorithm, secret), text))
}

fn sha256(bytes: &[u8]) -> String {
    hex::encode(digest::digest(&digest::SHA256, bytes))
}

fn jwt(claims: &Json) -> String {
    let part = |value: &Json| BASE64_URL_SAFE_NO_PAD.encode(value.to_string());
    let signed = format!("{}.{}", part(&json!({"alg": "HS256", "typ": "JWT"})), part(claims));
    let signature = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, SECRET.as_bytes()), signed.as_bytes());
    format!("{signed}.{}", BASE64_URL_SAFE_NO_PAD.encode(signature))
}

/// The parameters of a captured form, with changes.
fn form(name: &str, changes: &[(&str, &str)]) -> Vec<u8> {
    let captured = file(name);
    let pairs = url::form_urlencoded::parse(&captured).map(|(name, value)| {
        let change = changes.iter().find(|(changed, _)| *changed == name);
        (name.into_owned(), change.map_or_else(|| value.into_owned(), |(_, value)| (*value).to_owned()))
    });
    url::form_urlencoded::Serializer::new(String::new()).extend_pairs(pairs).finish().into_bytes()
}

fn object(name: &str, changes: &[(&str, &str)]) -> Vec<u8> {
    let mut object = json_file(name);
    for (pointer, value) in changes {
        *object.pointer_mut(pointer).unwrap_or_else(|| panic!("{pointer} in {name}")) = (*value).into();
    }
    object.to_string().into_bytes()
}

fn twilio(path: String, body: Vec<u8>) -> Sent {
    let mut pairs: Vec<(String, String)> = url::form_urlencoded::parse(&body).into_owned().collect();
    pairs.sort();
    let text = pairs.into_iter().fold(format!("{PUBLIC}{path}"), |text, (name, value)| text + &name + &value);
    let signature = mac(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, SECRET.as_bytes(), text.as_bytes());
    let kind = "application/x-www-form-urlencoded; charset=UTF-8";
    Sent::new(&[("content-type", kind), ("x-twilio-signature", &signature)], body).at(&path)
}

fn vonage(values: &Values<'_>, body: Vec<u8>) -> Sent {
    let claims = json!({
        "iat": values.at, "jti": values.event, "iss": "Vonage", "payload_hash": sha256(&body), "api_key": "abcd1234",
    });
    let authorization = format!("Bearer {}", jwt(&claims));
    Sent::new(&[("content-type", "application/json"), ("authorization", &authorization)], body)
}

fn messagebird(values: &Values<'_>, path: String, body: Vec<u8>) -> Sent {
    let mut claims = json!({
        "iss": "MessageBird", "nbf": values.at, "exp": values.at + 60, "jti": values.event,
        "url_hash": sha256(format!("{PUBLIC}{path}").as_bytes()),
    });
    let method = if body.is_empty() { Method::GET } else { Method::POST };
    if !body.is_empty() {
        claims["payload_hash"] = sha256(&body).into();
    }
    Sent { method, ..Sent::new(&[("messagebird-signature-jwt", &jwt(&claims))], body).at(&path) }
}

fn sinch(values: &Values<'_>, body: Vec<u8>) -> Sent {
    let at = values.at.to_string();
    let signed = [&body, b".".as_slice(), values.event.as_bytes(), b".", at.as_bytes()].concat();
    let signature = mac(hmac::HMAC_SHA256, SECRET.as_bytes(), &signed);
    Sent::new(
        &[
            ("x-sinch-webhook-signature", &signature),
            ("x-sinch-webhook-signature-nonce", values.event),
            ("x-sinch-webhook-signature-timestamp", &at),
        ],
        body,
    )
}

fn standard(values: &Values<'_>, body: Vec<u8>) -> Sent {
    let at = values.at.to_string();
    let secret = BASE64_STANDARD.decode(WHSEC.trim_start_matches("whsec_")).expect("Base64");
    let signed = [values.event.as_bytes(), b".", at.as_bytes(), b".", &body].concat();
    let signature = format!("v1,{}", mac(hmac::HMAC_SHA256, &secret, &signed));
    Sent::new(&[("webhook-id", values.event), ("webhook-timestamp", &at), ("webhook-signature", &signature)], body)
}

fn providers() -> [Provider; 5] {
    let feedback = |provider: &str| json!({"provider": provider, "key": SECRET});
    [
        Provider {
            name: "twilio",
            feedback: json!({"provider": "twilio", "key": SECRET, "help_answer": "Call 1 < 2 & 3"}),
            receipt: |values| {
                let path = format!("{PATH}?message={}", values.content);
                twilio(path, form("sms/twilio-status.form", &[("MessageSid", values.event)]))
            },
            reply: |values| {
                let changes = [("MessageSid", values.event), ("Body", values.content)];
                twilio(PATH.to_owned(), form("sms/twilio-reply.form", &changes))
            },
            is_hard: true,
            proof: ("x-twilio-signature", "webhook_unsigned"),
            has_time: false,
        },
        Provider {
            name: "vonage",
            feedback: feedback("vonage"),
            receipt: |values| {
                let changes = [("/client-ref", values.content), ("/messageId", values.event)];
                vonage(values, object("sms/vonage-receipt.json", &changes))
            },
            reply: |values| {
                let changes = [("/text", values.content), ("/messageId", values.event)];
                vonage(values, object("sms/vonage-reply.json", &changes))
            },
            is_hard: true,
            proof: ("authorization", "webhook_unsigned"),
            has_time: true,
        },
        Provider {
            name: "messagebird",
            feedback: feedback("messagebird"),
            receipt: |values| {
                let changes = [("reference", values.content), ("id", values.event)];
                let query = String::from_utf8(form("sms/messagebird-report.query", &changes)).expect("text");
                messagebird(values, format!("{PATH}?{query}"), Vec::new())
            },
            reply: |values| {
                let changes = [("body", values.content), ("id", values.event)];
                messagebird(values, PATH.to_owned(), form("sms/messagebird-reply.form", &changes))
            },
            is_hard: true,
            proof: ("messagebird-signature-jwt", "webhook_unsigned"),
            has_time: true,
        },
        Provider {
            name: "sinch",
            feedback: feedback("sinch"),
            receipt: |values| {
                let changes =
                    [("/client_reference", values.content), ("/batch_id", values.event), ("/status", "Failed")];
                sinch(values, object("sms/sinch-report.json", &changes))
            },
            reply: |values| {
                let changes = [("/body", values.content), ("/id", values.event)];
                sinch(values, object("sms/sinch-reply.json", &changes))
            },
            is_hard: false,
            proof: ("x-sinch-webhook-signature", "webhook_unsigned"),
            has_time: true,
        },
        Provider {
            name: "webhook",
            feedback: json!({
                "provider": "webhook", "key": WHSEC, "help_answer": "Call us", "stop": ["STOP", "Schluss"],
            }),
            receipt: |values| {
                let changes = [("/data/message", values.content), ("/data/id", values.event), ("/data/status", "hard")];
                standard(values, object("sms/webhook-receipt.json", &changes))
            },
            reply: |values| {
                let changes = [("/data/text", values.content), ("/data/id", values.event)];
                standard(values, object("sms/webhook-reply.json", &changes))
            },
            is_hard: true,
            proof: ("webhook-signature", "webhook_unsigned"),
            has_time: true,
        },
    ]
}

async fn shop(provider: &Provider) -> Shop {
    let options = json!({"url": "https://sms.example/send", "feedback": provider.feedback});
    Shop::open("http", options, NUMBER).await
}

/// Changes the proof of a callback.
fn forged(mut sent: Sent, field: &str) -> Sent {
    let (_, value) = sent.headers.iter_mut().find(|(name, _)| name == field).expect("the field");
    let letter = value.chars().rev().nth(5).expect("a letter");
    let other = if letter == 'A' { 'B' } else { 'A' };
    let at = value.len() - 6;
    value.replace_range(at..=at, &other.to_string());
    sent
}

fn result(body: &Json) -> (bool, u64, u64) {
    (body["repeated"] == true, body["applied"].as_u64().unwrap_or(99), body["ignored"].as_u64().unwrap_or(99))
}

#[tokio::test]
async fn a_receipt_of_each_sms_provider_counts_for_its_notification_once() {
    for provider in providers() {
        let name = provider.name;
        let shop = shop(&provider).await;
        let (ours, state) = shop.notify("shop", 1).await;
        assert_eq!(state, "delivered");
        let (theirs, _) = shop.notify("bank", 2).await;
        let [our_id, their_id] = [ours, theirs].map(|id| shop.message_id(id));
        let receipt = |content: &str, event: &str, at: i64| (provider.receipt)(&Values { content, event, at });
        let (field, code) = provider.proof;
        let forge = |sent| forged(sent, field);
        assert_refusals(&shop, |at| receipt(&our_id, "1", at), forge, Some((field, (403, code))), provider.has_time)
            .await;
        let is_twilio = name == "twilio";
        // No message of ours, one of another application, one of another installation.
        let foreign = format!("{ours}.000000000000000000000000");
        for (content, event) in [("hello", "2"), (their_id.as_str(), "3"), (foreign.as_str(), "4")] {
            let (status, body) = shop.send(&receipt(content, event, now())).await;
            assert!(status == 200 && (is_twilio || result(&body) == (false, 0, 1)), "{name} {event}: {status} {body}");
        }
        shop.nothing_is_suppressed().await;
        let genuine = receipt(&our_id, "5", now());
        let (status, body) = shop.send(&genuine).await;
        assert!(status == 200 && (is_twilio || result(&body) == (false, 1, 0)), "{name}: {status} {body}");
        if provider.is_hard {
            assert_eq!(shop.suppression("http").await, Some(format!("hard_bounce {name} {ours}")));
            let (_, state) = shop.notify("shop", 3).await;
            assert_eq!(state, "refused", "{name}");
            shop.lift(&format!("/v1/suppressions/addresses/http/{NUMBER}")).await;
        }
        let (status, body) = shop.send(&genuine).await;
        assert!(status == 200 && (is_twilio || result(&body) == (true, 0, 0)), "{name}: {status} {body}");
        shop.nothing_is_suppressed().await;
    }
}

#[tokio::test]
async fn stop_ends_messages_of_its_channel_and_start_undoes_only_that() {
    for provider in providers() {
        let name = provider.name;
        let shop = shop(&provider).await;
        let reply = |content: &str, event: &str, at: i64| (provider.reply)(&Values { content, event, at });
        let (field, code) = provider.proof;
        let forge = |sent| forged(sent, field);
        assert_refusals(&shop, |at| reply("STOP", "1", at), forge, Some((field, (403, code))), provider.has_time).await;
        let is_twilio = name == "twilio";
        let (status, body) = shop.send(&reply("do not stop", "2", now())).await;
        assert!(status == 200 && (is_twilio || result(&body) == (false, 0, 0)), "{name}: {status} {body}");
        shop.nothing_is_suppressed().await;

        let stop = reply("Stop.\n", "3", now());
        let (status, body) = shop.send(&stop).await;
        assert!(status == 200 && (is_twilio || body["keyword"] == "stop"), "{name}: {status} {body}");
        let path = format!("/v1/suppressions/channels/shop/out/{NUMBER}");
        let (status, found) = shop.platform.get(&path).await;
        assert_eq!(status, 200, "{name}: {found}");
        let text = |member: &str| found[member].as_str().unwrap_or("-").to_owned();
        assert_eq!([text("cause"), text("origin"), text("address")], ["unsubscribed", name, &NUMBER[1..]]);
        assert!(text("detail").contains("Stop."), "{name}: {found}");
        assert_eq!(shop.notify("shop", 1).await.1, "refused", "{name}");
        assert_eq!(shop.notify("bank", 2).await.1, "delivered", "{name}: the channel of another application");

        // An operator and a bounce suppress the address as well.
        let address = format!("/v1/suppressions/addresses/http/{NUMBER}");
        let (status, body) = shop.platform.put(&address, "application/json", "{}").await;
        assert_eq!(status, 201, "{body}");
        let (status, body) = shop.send(&reply(" start ", "4", now())).await;
        assert!(status == 200 && (is_twilio || body["keyword"] == "start"), "{name}: {status} {body}");
        assert_eq!(shop.platform.get(&path).await.0, 404, "{name}");
        assert_eq!(shop.platform.get(&address).await.0, 200, "{name}: the operator's entry stays");
        assert_eq!(shop.notify("shop", 3).await.1, "refused", "{name}");
        shop.lift(&address).await;
        assert_eq!(shop.notify("shop", 4).await.1, "delivered", "{name}");

        // The first reply again: the recipient has started since.
        let (status, _) = shop.send(&stop).await;
        assert_eq!(status, 200);
        shop.nothing_is_suppressed().await;
        let (status, _) = shop.send(&reply("STOP", "5", now())).await;
        assert!(status == 200 && shop.platform.get(&path).await.0 == 200, "{name}: a new reply stops again");
        shop.lift(&path).await;
    }
}

#[tokio::test]
async fn a_start_lifts_no_later_stop_when_it_is_repeated_after_a_restart() {
    for provider in providers() {
        let name = provider.name;
        let shop = shop(&provider).await;
        let reply = |content: &str, event: &str| (provider.reply)(&Values { content, event, at: now() });
        let (start, path) = (reply("START", "2"), format!("/v1/suppressions/channels/shop/out/{NUMBER}"));
        for sent in [&reply("STOP", "1"), &start, &reply("STOP", "3")] {
            assert_eq!(shop.send(sent).await.0, 200, "{name}");
        }
        assert_eq!(shop.platform.get(&path).await.0, 200, "{name}");
        // Receivers of a new process remember no keys.
        let service = shop.platform.service.clone();
        let url = Some("https://tocsin.example".to_owned());
        let restarted = Receivers::new(service, Arc::new(Fetched::default()), url);
        let headers: Vec<_> = start.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let query = start.path.split_once('?').map(|(_, query)| query);
        let webhook = Webhook { is_get: start.method == Method::GET, query, headers: &headers, body: &start.body };
        let received =
            restarted.receive("shop", "out", &webhook).await.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(received.is_repeated && received.applied == 0, "{name}: {received:?}");
        assert_eq!(shop.platform.get(&path).await.0, 200, "{name}: the later STOP holds");
    }
}

#[tokio::test]
async fn help_is_answered_if_an_answer_is_configured() {
    let [twilio, vonage, .., webhook] = providers();
    let help = |provider: &Provider| (provider.reply)(&Values { content: "Help?", event: "1", at: now() });
    let (status, body) = shop(&twilio).await.send(&help(&twilio)).await;
    let expected = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
                    <Response><Message>Call 1 &lt; 2 &amp; 3</Message></Response>\n";
    assert_eq!((status, body), (200, Json::String(expected.to_owned())));
    let (status, body) = shop(&webhook).await.send(&help(&webhook)).await;
    let expected = json!({"repeated": false, "applied": 0, "ignored": 0, "keyword": "help", "reply": "Call us"});
    assert_eq!((status, body), (200, expected));
    let (status, body) = shop(&vonage).await.send(&help(&vonage)).await;
    assert_eq!((status, &body["keyword"], &body["reply"]), (200, &json!("help"), &Json::Null));
    let word = (webhook.reply)(&Values { content: "schluss!", event: "2", at: now() });
    let (_, body) = shop(&webhook).await.send(&word).await;
    assert_eq!(body["keyword"], "stop", "a word of the definition");
}

#[tokio::test]
async fn suppressions_of_channels_are_exported_and_imported() {
    let provider = &providers()[4];
    let shop = shop(provider).await;
    let stop = (provider.reply)(&Values { content: "STOP", event: "1", at: now() });
    assert_eq!(shop.send(&stop).await.0, 200);
    let exported = shop.platform.request("GET", "/v1/export/suppressions").send().await.expect("an answer");
    let line = exported.text().await.expect("text");
    let row: Json = serde_json::from_str(&line).expect("one line");
    assert_eq!(
        (&row["application"], &row["channel"], &row["cause"]),
        (&json!("shop"), &json!("out"), &json!("unsubscribed"))
    );
    let path = format!("/v1/suppressions/channels/shop/out/{NUMBER}");
    shop.lift(&path).await;
    let manual = line.replace("unsubscribed", "manual");
    for (lines, stored) in [(manual, 404), (line, 200)] {
        let (status, body) = shop.platform.post("/v1/import/suppressions", "application/x-ndjson", &lines).await;
        assert_eq!(status, 200, "{body}");
        assert_eq!(shop.platform.get(&path).await.0, stored, "{body}");
    }
    // A GET or HEAD of another provider, and its route without a receiver.
    for method in [Method::GET, Method::HEAD] {
        let (status, _) = shop.send(&Sent { method, body: Vec::new(), ..stop.clone() }).await;
        assert_eq!(status, 405);
    }
}
