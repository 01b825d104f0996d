//! Webhooks of mail providers: their captured forms, signed anew.

use base64::{Engine, prelude::BASE64_STANDARD};
use ring::{
    hmac,
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair, RSA_PKCS1_SHA256, RsaKeyPair},
};
use serde_json::{Value as Json, json};
use tocsin_delivery::TokenSigner;
use tocsin_feedback::return_address::{DeviceTag, Origin, Purpose, Reference, Target};
use tocsin_model::{
    id::{NotificationId, SubscriberNumber},
    time::Timestamp,
};

use super::{SNS, Sent, Shop, assert_refusals, json_file, now};

const ALICE: &str = "alice@example.org";
const TOPIC: &str = "arn:aws:sns:eu-central-1:123456789012:ses-feedback";

/// Values of a mail event: reference of the mail, id of the event, time.
struct Values<'a> {
    reference: &'a str,
    message_id: &'a str,
    event: &'a str,
    at: i64,
}

/// A provider: the option of the channel, and its webhook about a hard bounce.
struct Provider {
    feedback: Json,
    make: Box<dyn Fn(&Values<'_>) -> Sent>,
}

fn rfc3339(seconds: i64) -> String {
    Timestamp::from_millis(seconds * 1_000).to_string()
}

async fn shop(feedback: &Json) -> Shop {
    let options = json!({"host": "mail.example.org", "from": "shop@example.org", "feedback": feedback});
    Shop::open("smtp", options, ALICE).await
}

/// The reference that a mail of this notification carries.
fn reference(shop: &Shop, id: NotificationId, number: SubscriberNumber) -> String {
    let target = Target::Device(number, DeviceTag::of(ALICE));
    let origin = Origin { purpose: Purpose::Bounce, reference: Reference::Notification(id), target };
    let now = Timestamp::from_millis(now() * 1_000);
    TokenSigner::new(&shop.platform.secret).reference(&origin, now).expect("a reference")
}

/// The life of a webhook: refused in each wrong form, without an effect for another application, then genuine, then
/// repeated.
async fn check(provider: Provider, forge: impl Fn(Sent) -> Sent, proof: Option<(&str, (u16, &str))>, name: &str) {
    let Provider { feedback, make } = provider;
    let shop = shop(&feedback).await;
    let number = shop.number().await;
    let (ours, state) = shop.notify("shop", 1).await;
    assert_eq!(state, "delivered");
    let (theirs, _) = shop.notify("bank", 2).await;
    let [our_reference, their_reference] = [ours, theirs].map(|id| reference(&shop, id, number));
    let (our_id, their_id) = (shop.message_id(ours), shop.message_id(theirs));
    let message =
        |reference: &str, message_id: &str, event: &str, at: i64| make(&Values { reference, message_id, event, at });
    assert_refusals(&shop, |at| message(&our_reference, "x@example.org", "1", at), forge, proof, true).await;

    // Nothing of ours; another application's notification; a forged reference.
    let changed = format!("{}a", &our_reference[..our_reference.len() - 1]);
    let changed =
        if changed == our_reference { format!("{}b", &our_reference[..our_reference.len() - 1]) } else { changed };
    for (reference, message_id, event) in [
        ("", "x@example.org", "2"),
        (their_reference.as_str(), "x@example.org", "3"),
        ("", their_id.as_str(), "4"),
        (changed.as_str(), "x@example.org", "5"),
    ] {
        let (status, body) = shop.send(&message(reference, message_id, event, now())).await;
        assert_eq!((status, &body["applied"], &body["ignored"]), (200, &json!(0), &json!(1)), "{event}: {body}");
    }
    shop.nothing_is_suppressed().await;

    let genuine = message(&our_reference, "x@example.org", "6", now());
    let (status, body) = shop.send(&genuine).await;
    let expected = json!({"repeated": false, "applied": 1, "ignored": 0});
    assert_eq!((status, &body), (200, &expected));
    assert_eq!(shop.suppression("smtp").await, Some(format!("hard_bounce {name} {ours}")));
    let (_, state) = shop.notify("shop", 3).await;
    assert_eq!(state, "refused");

    // An operator lifts it; the same webhook has no effect again.
    shop.lift(&format!("/v1/suppressions/addresses/smtp/{ALICE}")).await;
    let (status, body) = shop.send(&genuine).await;
    assert_eq!((status, &body), (200, &json!({"repeated": true, "applied": 0, "ignored": 0})));
    shop.nothing_is_suppressed().await;

    // Without a reference, the Message-ID names the notification.
    let (again, _) = shop.notify("shop", 4).await;
    assert_ne!(shop.message_id(again), our_id);
    let by_id = message("", &format!("{}@example.org", shop.message_id(again)), "7", now());
    let (status, body) = shop.send(&by_id).await;
    assert_eq!((status, &body), (200, &expected));
    assert_eq!(shop.suppression("smtp").await, Some(format!("hard_bounce {name} {again}")));
}

fn body(value: &Json) -> Vec<u8> {
    value.to_string().into_bytes()
}

/// Changes the last letter of a header field.
fn with_other(mut sent: Sent, header: &str, change: impl Fn(&str) -> String) -> Sent {
    let (_, value) = sent.headers.iter_mut().find(|(name, _)| name == header).expect("the field");
    *value = change(value);
    sent
}

#[tokio::test]
async fn feedback_of_sendgrid_suppresses_the_device_of_its_notification() {
    let random = SystemRandom::new();
    let pkcs8 = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &random).expect("a key");
    let key = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, pkcs8.as_ref(), &random).expect("a key");
    // SubjectPublicKeyInfo of a P-256 point (RFC 5480).
    let mut der = hex::decode("3059301306072a8648ce3d020106082a8648ce3d030107034200").expect("digits");
    der.extend_from_slice(key.public_key().as_ref());
    let make = move |values: &Values<'_>| {
        let mut event = json_file("providers/sendgrid-events.json")[0].clone();
        (event["email"], event["tocsin"]) = (ALICE.into(), values.reference.into());
        (event["smtp-id"], event["sg_event_id"]) = (format!("<{}>", values.message_id).into(), values.event.into());
        event["timestamp"] = values.at.into();
        let (body, at) = (body(&json!([event])), values.at.to_string());
        let signed = [at.as_bytes(), &body].concat();
        let signature = BASE64_STANDARD.encode(key.sign(&SystemRandom::new(), &signed).expect("a signature"));
        Sent::new(
            &[("X-Twilio-Email-Event-Webhook-Signature", &signature), ("X-Twilio-Email-Event-Webhook-Timestamp", &at)],
            body,
        )
    };
    let feedback = json!({"provider": "sendgrid", "key": BASE64_STANDARD.encode(der)});
    let forge = |sent: Sent| Sent { body: [&sent.body[..], b" "].concat(), ..sent };
    let proof = Some(("X-Twilio-Email-Event-Webhook-Signature", (403, "webhook_unsigned")));
    check(Provider { feedback, make: Box::new(make) }, forge, proof, "sendgrid").await;
}

#[tokio::test]
async fn feedback_of_mailgun_suppresses_the_device_of_its_notification() {
    let make = |values: &Values<'_>| {
        let mut payload = json_file("providers/mailgun-failed.json");
        let event = &mut payload["event-data"];
        (event["recipient"], event["user-variables"]["tocsin"]) = (ALICE.into(), values.reference.into());
        event["message"]["headers"]["message-id"] = values.message_id.into();
        (event["id"], event["timestamp"]) = (values.event.into(), values.at.into());
        let (at, token) = (values.at.to_string(), format!("token-{}", values.event));
        let key = hmac::Key::new(hmac::HMAC_SHA256, b"signing key");
        let signature = hex::encode(hmac::sign(&key, format!("{at}{token}").as_bytes()));
        payload["signature"] = json!({"timestamp": at, "token": token, "signature": signature});
        Sent::new(&[("content-type", "application/json")], body(&payload))
    };
    let forge = |sent: Sent| {
        let text = String::from_utf8(sent.body.clone()).expect("text").replace("token-1", "token-2");
        Sent { body: text.into_bytes(), ..sent }
    };
    let feedback = json!({"provider": "mailgun", "key": "signing key"});
    // The signature is a member of the body.
    let shop = shop(&feedback).await;
    let unsigned = Sent::new(&[], b"{\"event-data\": {\"event\": \"failed\"}}".to_vec());
    assert_eq!(shop.refused(&unsigned).await, (400, "malformed_body".to_owned()));
    check(Provider { feedback, make: Box::new(make) }, forge, None, "mailgun").await;
}

#[tokio::test]
async fn feedback_of_postmark_suppresses_the_device_of_its_notification() {
    let make = |values: &Values<'_>| {
        let mut record = json_file("providers/postmark-bounce.json");
        (record["Email"], record["Metadata"]["tocsin"]) = (ALICE.into(), values.reference.into());
        (record["ID"], record["MessageID"]) = (values.event.into(), values.message_id.into());
        record["BouncedAt"] = rfc3339(values.at).into();
        let credential = format!("Basic {}", BASE64_STANDARD.encode("postmark:secret"));
        Sent::new(&[("authorization", &credential)], body(&record))
    };
    let forge = |sent: Sent| {
        with_other(sent, "authorization", |_| format!("Basic {}", BASE64_STANDARD.encode("postmark:other")))
    };
    let feedback = json!({"provider": "postmark", "key": "postmark:secret"});
    let proof = Some(("authorization", (403, "webhook_unsigned")));
    check(Provider { feedback, make: Box::new(make) }, forge, proof, "postmark").await;
}

#[tokio::test]
async fn feedback_of_brevo_suppresses_the_device_of_its_notification() {
    let make = |values: &Values<'_>| {
        let mut event = json_file("providers/brevo-hard-bounce.json");
        (event["email"], event["X-Mailin-custom"]) = (ALICE.into(), values.reference.into());
        event["message-id"] = format!("<{}>", values.message_id).into();
        event["ts_event"] = values.at.into();
        // Brevo has no id of an event: events differ by their mail.
        event["reason"] = format!("550 5.1.1 User unknown ({})", values.event).into();
        if !values.message_id.starts_with("n-") {
            event["message-id"] = format!("<{}.{}>", values.event, values.message_id).into();
        }
        Sent::new(&[("authorization", "Bearer brevo-token")], body(&event))
    };
    let forge = |sent: Sent| with_other(sent, "authorization", |_| "Bearer another".to_owned());
    let feedback = json!({"provider": "brevo", "key": "brevo-token"});
    let proof = Some(("authorization", (403, "webhook_unsigned")));
    check(Provider { feedback, make: Box::new(make) }, forge, proof, "brevo").await;
}

/// A message of SNS, signed by the key of the tests.
fn sns(message: &str, kind: &str, id: &str, at: i64, topic: &str) -> Sent {
    let key = RsaKeyPair::from_pkcs8(&SNS.key).expect("a key");
    let at = rfc3339(at);
    let url = "https://sns.eu-central-1.amazonaws.com/?Action=ConfirmSubscription&Token=2336412f37";
    let mut members =
        vec![("Message", message), ("MessageId", id), ("Timestamp", &at), ("TopicArn", topic), ("Type", kind)];
    if kind == "SubscriptionConfirmation" {
        members.extend([("SubscribeURL", url), ("Token", "2336412f37")]);
    }
    members.sort_unstable();
    let text: String = members.iter().map(|(name, value)| format!("{name}\n{value}\n")).collect();
    let mut signature = vec![0; key.public().modulus_len()];
    key.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), text.as_bytes(), &mut signature).expect("a signature");
    let mut envelope = json!({
        "SignatureVersion": "2", "Signature": BASE64_STANDARD.encode(signature),
        "SigningCertURL": "https://sns.eu-central-1.amazonaws.com/SimpleNotificationService-01.pem",
    });
    for (name, value) in members {
        envelope[name] = value.into();
    }
    Sent::new(&[("x-amz-sns-message-type", kind), ("content-type", "text/plain; charset=UTF-8")], body(&envelope))
}

#[tokio::test]
async fn feedback_of_ses_suppresses_the_device_of_its_notification() {
    let make = |values: &Values<'_>| {
        let envelope = json_file("providers/ses-bounce.json");
        let mut event: Json = serde_json::from_str(envelope["Message"].as_str().expect("text")).expect("JSON");
        event["bounce"]["bouncedRecipients"].as_array_mut().expect("a list").truncate(1);
        event["bounce"]["bouncedRecipients"][0]["emailAddress"] = ALICE.into();
        event["bounce"]["feedbackId"] = values.event.into();
        event["bounce"]["timestamp"] = rfc3339(values.at).into();
        event["mail"]["tags"]["tocsin"] = json!([values.reference]);
        event["mail"]["commonHeaders"]["messageId"] = format!("<{}>", values.message_id).into();
        sns(&event.to_string(), "Notification", values.event, values.at, TOPIC)
    };
    let forge = |sent: Sent| {
        let text = String::from_utf8(sent.body.clone()).expect("text").replace(ALICE, "bob@example.org");
        Sent { body: text.into_bytes(), ..sent }
    };
    let feedback = json!({"provider": "ses", "topic": TOPIC});
    check(Provider { feedback, make: Box::new(make) }, forge, None, "ses").await;
}

#[tokio::test]
async fn a_topic_of_sns_is_confirmed_once_and_only_if_it_is_the_configured_one() {
    let shop = shop(&json!({"provider": "ses", "topic": TOPIC})).await;
    let confirmation = |topic: &str| sns("Confirm", "SubscriptionConfirmation", "c-1", now(), topic);
    let foreign = TOPIC.replace("123456789012", "999999999999");
    assert_eq!(shop.refused(&confirmation(&foreign)).await, (403, "webhook_topic".to_owned()));
    assert_eq!(shop.platform.fetched.0.lock().len(), 0, "nothing is requested for another topic");
    let elsewhere = String::from_utf8(confirmation(TOPIC).body).expect("text");
    let elsewhere = elsewhere
        .replace("SigningCertURL\":\"https://sns.eu-central-1.amazonaws.com", "SigningCertURL\":\"https://example.net");
    let elsewhere = Sent::new(&[], elsewhere.into_bytes());
    assert_eq!(shop.refused(&elsewhere).await, (403, "webhook_certificate".to_owned()));
    for expected in
        [json!({"repeated": false, "applied": 1, "ignored": 0}), json!({"repeated": true, "applied": 0, "ignored": 0})]
    {
        assert_eq!(shop.send(&confirmation(TOPIC)).await, (200, expected));
    }
    // The certificate is requested once, and the confirmation once.
    let fetched = shop.platform.fetched.0.lock().clone();
    assert_eq!(
        fetched,
        [
            "https://sns.eu-central-1.amazonaws.com/SimpleNotificationService-01.pem",
            "https://sns.eu-central-1.amazonaws.com/?Action=ConfirmSubscription&Token=2336412f37",
        ]
    );
}
