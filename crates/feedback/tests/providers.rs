//! Webhooks of providers: their documented formats, and every way in which a payload is refused.

use std::{fs, path::PathBuf, time::Duration};

use base64::{Engine, prelude::BASE64_STANDARD};
use ring::{
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair},
};
use tocsin_feedback::{
    Action, Class, Limits,
    policy::{Evidence, FeedbackPolicy, SuppressionAction},
    provider::{
        Credential, ProviderError, Request, VerifiedPayload,
        brevo::Brevo,
        mailgun::Mailgun,
        postmark::Postmark,
        sendgrid::{SIGNATURE_HEADER, SendGrid, TIMESTAMP_HEADER},
        ses::{Ses, SnsMessage, certificate_url},
    },
};
use tocsin_model::time::Timestamp;

/// Six seconds after 2026-12-01T10:00:00Z; the payloads are of the seconds before.
const NOW: Timestamp = Timestamp::from_millis(1_796_119_206_000);
const WINDOW: Duration = Duration::from_secs(3_600);
const TOPIC: &str = "arn:aws:sns:eu-central-1:123456789012:ses-feedback";

fn file(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../testdata/feedback/providers").join(name);
    fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn later(seconds: i64) -> Timestamp {
    Timestamp::from_millis(NOW.as_millis() + seconds * 1_000)
}

/// `class recipient status reply` of each event.
fn summary(payload: &VerifiedPayload) -> Vec<String> {
    let text = |event: &tocsin_feedback::provider::ProviderEvent| {
        let report = event.report();
        let recipient = report.recipient.as_ref().map(|recipient| recipient.address()).unwrap_or_default();
        let status = report.status.map(|status| status.to_string()).unwrap_or_default();
        let reply = report.reply.map(|reply| reply.to_string()).unwrap_or_default();
        format!("{} {recipient} {status} {reply}", report.class.word()).trim().to_owned()
    };
    payload.events().iter().map(text).collect()
}

fn replaced(body: &[u8], from: &str, to: &str) -> Vec<u8> {
    let text = String::from_utf8(body.to_vec()).expect("text");
    assert!(text.contains(from), "{from}");
    text.replace(from, to).into_bytes()
}

// Amazon SES by SNS.

fn sns(body: &[u8], now: Timestamp) -> Result<SnsMessage, ProviderError> {
    let request = Request { headers: &[], body };
    Ses::new(TOPIC, WINDOW).verify(&request, &file("sns-certificate.pem"), now, &Limits::default())
}

fn sns_events(name: &str) -> VerifiedPayload {
    match sns(&file(name), NOW).expect(name) {
        SnsMessage::Events(payload) => payload,
        other => panic!("{other:?}"),
    }
}

#[test]
fn ses_events_of_both_signature_versions_are_read() {
    let payload = sns_events("ses-bounce.json");
    assert_eq!(summary(&payload), ["hard ann@example.net 5.1.1 550", "blocked bob@example.net 5.7.1 554"]);
    let first = &payload.events()[0];
    assert_eq!(first.feedback().message_id.as_deref(), Some("n-70000-41@example.org"));
    assert_eq!(first.feedback().reporting_mta.as_deref(), Some("a8-10.smtp-out.amazonses.com"));
    assert_eq!(first.reference(), Some("b+code@example.org"));
    assert_eq!(payload.replay_key(), "sns/11111111-1111-4111-8111-111111111111");
    assert_eq!(summary(&sns_events("ses-bounce-transient.json")), ["soft ann@example.net"]);
    assert_eq!(summary(&sns_events("ses-complaint.json")), ["complaint ann@example.net"]);
    assert_eq!(summary(&sns_events("ses-delivery.json")), ["delivered ann@example.net"]);
}

#[test]
fn a_subscription_of_sns_is_recognized() {
    let confirmation = sns(&file("sns-subscription.json"), NOW).expect("a confirmation");
    let SnsMessage::SubscriptionConfirmation { subscribe_url, .. } = confirmation else { panic!("{confirmation:?}") };
    assert!(subscribe_url.starts_with("https://sns.eu-central-1.amazonaws.com/?Action=ConfirmSubscription"));
    assert!(matches!(sns(&file("sns-subscription-elsewhere.json"), NOW), Err(ProviderError::Format(_))));
}

#[test]
fn changed_old_and_foreign_messages_of_sns_are_refused() {
    let body = file("ses-bounce.json");
    for (from, to) in [
        ("5.1.1", "5.1.2"),
        ("11111111-1111-4111", "11111111-1111-4112"),
        ("Email Event", "Email event"),
        ("10:00:05.123Z", "10:00:05.124Z"),
        ("\"SignatureVersion\": \"2\"", "\"SignatureVersion\": \"1\""),
        ("\"Signature\": \"", "\"Signature\": \"A"),
    ] {
        assert_eq!(sns(&replaced(&body, from, to), NOW), Err(ProviderError::Signature), "{from}");
    }
    let version = replaced(&body, "\"SignatureVersion\": \"2\"", "\"SignatureVersion\": \"3\"");
    assert!(matches!(sns(&version, NOW), Err(ProviderError::Format(_))));
    assert_eq!(sns(&file("sns-other-topic.json"), NOW), Err(ProviderError::Topic));
    assert_eq!(sns(&body, later(3_700)), Err(ProviderError::Stale));
    assert_eq!(sns(&body, later(-400)), Err(ProviderError::Stale));
    assert!(matches!(sns(b"{}", NOW), Err(ProviderError::Format(_))));
    let request = Request { headers: &[], body: &body };
    let verify =
        |certificate: &[u8], now| Ses::new(TOPIC, WINDOW).verify(&request, certificate, now, &Limits::default());
    assert_eq!(verify(&file("sns-certificate-other.pem"), NOW), Err(ProviderError::Signature));
    for wrong in [&b""[..], b"-----BEGIN CERTIFICATE-----", b"\x30\x82"] {
        assert!(matches!(verify(wrong, NOW), Err(ProviderError::Certificate(_))));
    }
    // The certificate of the test is valid from 2026 to 2036.
    let expired = verify(&file("sns-certificate.pem"), later(12 * 365 * 86_400));
    assert!(matches!(expired, Err(ProviderError::Certificate(_))));
    let small = Limits { payload_bytes_max: 100, ..Limits::default() };
    let refused = Ses::new(TOPIC, WINDOW).verify(&request, &file("sns-certificate.pem"), NOW, &small);
    assert_eq!(refused, Err(ProviderError::TooLarge("payload_bytes_max")));
}

#[test]
fn certificates_of_sns_are_at_amazon_only() {
    let body = file("ses-bounce.json");
    let url = "https://sns.eu-central-1.amazonaws.com/SimpleNotificationService-0123456789abcdef0123456789abcdef.pem";
    let check = |other: &str| {
        let body = replaced(&body, url, other);
        certificate_url(&Request { headers: &[], body: &body }, &Limits::default())
    };
    assert_eq!(check(url).as_deref(), Ok(url));
    assert!(check("https://sns.cn-north-1.amazonaws.com.cn/a.pem").is_ok());
    for wrong in [
        "http://sns.eu-central-1.amazonaws.com/a.pem",
        "https://sns.eu-central-1.amazonaws.com.example.net/a.pem",
        "https://example.net/sns.eu-central-1.amazonaws.com/a.pem",
        "https://sns.eu-central-1.amazonaws.com@example.net/a.pem",
        "https://ann:secret@sns.eu-central-1.amazonaws.com/a.pem",
        "https://sns.eu-central-1.amazonaws.com:8443/a.pem",
        "https://s3.eu-central-1.amazonaws.com/a.pem",
        "https://sns.a.b.amazonaws.com/a.pem",
        "https://sns..amazonaws.com/a.pem",
        "https://sns.eu-central-1.amazonaws.com/a.pem?x=.pem",
        "https://sns.eu-central-1.amazonaws.com/../a.pem",
        "https://sns.eu-central-1.amazonaws.com/a.txt",
        "https://sns.EU-central-1.amazonaws.com/a.pem",
        "",
    ] {
        assert!(matches!(check(wrong), Err(ProviderError::Certificate(_))), "{wrong}");
    }
}

// SendGrid.

fn sendgrid_key() -> (EcdsaKeyPair, String) {
    let random = SystemRandom::new();
    let pkcs8 = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &random).expect("a key");
    let key = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, pkcs8.as_ref(), &random).expect("a key");
    // SubjectPublicKeyInfo of a P-256 point (RFC 5480).
    let mut der = hex::decode("3059301306072a8648ce3d020106082a8648ce3d030107034200").expect("digits");
    der.extend_from_slice(key.public_key().as_ref());
    let text = BASE64_STANDARD.encode(der);
    (key, text)
}

fn signed_by(key: &EcdsaKeyPair, timestamp: &str, body: &[u8]) -> String {
    let text = [timestamp.as_bytes(), body].concat();
    BASE64_STANDARD.encode(key.sign(&SystemRandom::new(), &text).expect("a signature"))
}

#[test]
fn sendgrid_events_are_read() {
    let (key, text) = sendgrid_key();
    let body = file("sendgrid-events.json");
    let signature = signed_by(&key, "1796119205", &body);
    let headers = [(SIGNATURE_HEADER, signature.as_str()), ("x-twilio-email-event-webhook-timestamp", "1796119205")];
    let request = Request { headers: &headers, body: &body };
    let payload =
        SendGrid::new(&text, WINDOW).expect("a key").verify(&request, NOW, &Limits::default()).expect("events");
    let expected = [
        "hard ann@example.net 5.1.1 550",
        "blocked bob@example.net 5.7.1 550",
        "soft carl@example.net 4.2.2 452",
        "complaint dora@example.net",
        "unsubscribe emil@example.net",
        "hard fay@example.net 5.0.0",
        "delivered gus@example.net",
    ];
    assert_eq!(summary(&payload), expected);
    assert_eq!(payload.events()[0].feedback().message_id.as_deref(), Some("n-70000-41@example.org"));
    assert_eq!(payload.events()[0].reference(), Some("b+code@example.org"));
    assert_eq!(payload.events()[0].at(), Some(later(-6)));
    let delayed = payload.events().iter().map(|event| event.report().action == Some(Action::Delayed));
    assert_eq!(delayed.collect::<Vec<_>>(), [false, false, true, false, false, false, false], "`deferred`");
    let few = Limits { events_max: 7, ..Limits::default() };
    let refused = SendGrid::new(&text, WINDOW).expect("a key").verify(&request, NOW, &few);
    assert_eq!(refused, Err(ProviderError::TooLarge("events_max")));
}

#[test]
fn changed_old_and_unsigned_events_of_sendgrid_are_refused() {
    let (key, text) = sendgrid_key();
    let (other, _) = sendgrid_key();
    let sendgrid = SendGrid::new(&text, WINDOW).expect("a key");
    let body = file("sendgrid-events.json");
    let verify = |signature: &str, timestamp: &str, body: &[u8], now| {
        let headers = [(SIGNATURE_HEADER, signature), (TIMESTAMP_HEADER, timestamp)];
        sendgrid.verify(&Request { headers: &headers, body }, now, &Limits::default()).map(drop)
    };
    let signature = signed_by(&key, "1796119205", &body);
    assert_eq!(verify(&signature, "1796119205", &body, NOW), Ok(()));
    assert_eq!(verify(&signature, "1796119206", &body, NOW), Err(ProviderError::Signature));
    assert_eq!(verify(&signature, "1796119205", &replaced(&body, "ann@", "bob@"), NOW), Err(ProviderError::Signature));
    assert_eq!(
        verify(&signed_by(&other, "1796119205", &body), "1796119205", &body, NOW),
        Err(ProviderError::Signature)
    );
    assert_eq!(verify("", "1796119205", &body, NOW), Err(ProviderError::Signature));
    assert_eq!(verify(&signature, "1796119205", &body, later(3_601)), Err(ProviderError::Stale));
    assert_eq!(verify(&signed_by(&key, "now", &body), "now", &body, NOW), Err(ProviderError::Signature));
    let no_events = signed_by(&key, "1796119205", b"{}");
    assert!(matches!(verify(&no_events, "1796119205", b"{}", NOW), Err(ProviderError::Format(_))));
    let headers = [(TIMESTAMP_HEADER, "1796119205")];
    let unsigned = sendgrid.verify(&Request { headers: &headers, body: &body }, NOW, &Limits::default());
    assert_eq!(unsigned, Err(ProviderError::Unsigned("signature")));
    // A second field could be read by another server than the first.
    let twice = [(SIGNATURE_HEADER, signature.as_str()), (SIGNATURE_HEADER, "x"), (TIMESTAMP_HEADER, "1796119205")];
    let twice = sendgrid.verify(&Request { headers: &twice, body: &body }, NOW, &Limits::default());
    assert_eq!(twice, Err(ProviderError::Unsigned("signature")));
    for wrong in ["", "AAAA", &BASE64_STANDARD.encode([48, 89])] {
        assert!(SendGrid::new(wrong, WINDOW).is_err(), "{wrong}");
    }
}

// Mailgun.

fn mailgun(body: &[u8], now: Timestamp) -> Result<VerifiedPayload, ProviderError> {
    Mailgun::new("key-of-the-test", WINDOW).verify(&Request { headers: &[], body }, now, &Limits::default())
}

#[test]
fn mailgun_events_are_read() {
    let payload = mailgun(&file("mailgun-failed.json"), NOW).expect("events");
    assert_eq!(summary(&payload), ["hard ann@example.net 5.1.1 550"]);
    assert_eq!(payload.events()[0].feedback().message_id.as_deref(), Some("n-70000-41@example.org"));
    assert_eq!(payload.events()[0].reference(), Some("b+code@example.org"));
    let temporary = mailgun(&file("mailgun-failed-temporary.json"), NOW).expect("events");
    assert_eq!(summary(&temporary), ["soft ann@example.net 4.2.2 452"]);
    assert_eq!(temporary.events()[0].report().action, Some(Action::Delayed), "Mailgun tries again");
    assert_eq!(payload.events()[0].report().action, None);
    let complained = mailgun(&file("mailgun-complained.json"), NOW).expect("events");
    assert_eq!(summary(&complained), ["complaint ann@example.net"]);
    assert_ne!(payload.replay_key(), temporary.replay_key());
}

#[test]
fn changed_and_old_events_of_mailgun_are_refused() {
    let body = file("mailgun-failed.json");
    for (from, to) in [
        ("a8ce0edb", "a8ce0edc"),
        ("\"1796119205\"", "\"1796119206\""),
        ("\"signature\": \"", "\"signature\": \"00"),
        // The boundary between timestamp and token.
        ("\"1796119205\",\n    \"token\": \"a", "\"1796119205a\",\n    \"token\": \""),
        ("\"1796119205\",\n    \"token\": \"", "\"179611920\",\n    \"token\": \"5"),
    ] {
        let found = mailgun(&replaced(&body, from, to), NOW).map(drop);
        assert!(matches!(found, Err(ProviderError::Signature | ProviderError::Stale)), "{from}: {found:?}");
    }
    assert_eq!(mailgun(&body, later(3_601)).map(drop), Err(ProviderError::Stale));
    assert!(matches!(mailgun(b"[]", NOW), Err(ProviderError::Format(_))));
    let request = Request { headers: &[], body: &body };
    let other = Mailgun::new("another key", WINDOW).verify(&request, NOW, &Limits::default());
    assert_eq!(other.map(drop), Err(ProviderError::Signature));
}

// Postmark and Brevo: credentials.

fn postmark(authorization: Option<&str>, body: &[u8], now: Timestamp) -> Result<VerifiedPayload, ProviderError> {
    let headers: Vec<(&str, &str)> = authorization.map(|value| ("Authorization", value)).into_iter().collect();
    let postmark = Postmark::new(Credential::basic("tocsin", "secret"), WINDOW);
    postmark.verify(&Request { headers: &headers, body }, now, &Limits::default())
}

const BASIC: Option<&str> = Some("Basic dG9jc2luOnNlY3JldA==");

#[test]
fn postmark_records_are_read() {
    let payload = postmark(BASIC, &file("postmark-bounce.json"), NOW).expect("a bounce");
    assert_eq!(summary(&payload), ["hard ann@example.net 5.1.1 550"]);
    assert_eq!(payload.events()[0].reference(), Some("b+code@example.org"));
    assert_eq!(payload.replay_key(), "postmark/Bounce/4323372036854775807");
    let complaint = postmark(BASIC, &file("postmark-complaint.json"), NOW).expect("a complaint");
    assert_eq!(summary(&complaint), ["complaint ann@example.net"]);
    let change = postmark(BASIC, &file("postmark-subscription.json"), NOW).expect("a change");
    assert_eq!(summary(&change), ["unsubscribe ann@example.net"]);
    let by_operator =
        replaced(&file("postmark-subscription.json"), "\"Recipient\",\n  \"Supp", "\"Customer\",\n  \"Supp");
    assert!(postmark(BASIC, &by_operator, NOW).expect("a change").events().is_empty());
    for (kind, class) in [
        ("SoftBounce", Class::Soft),
        ("Transient", Class::Soft),
        ("Blocked", Class::Blocked),
        ("DMARCPolicy", Class::Blocked),
        ("ChallengeVerification", Class::Challenge),
        ("AutoResponder", Class::OutOfOffice),
        ("BadEmailAddress", Class::Hard),
        ("Unknown", Class::Unknown),
    ] {
        let body = replaced(&file("postmark-bounce.json"), "HardBounce", kind);
        let payload = postmark(BASIC, &body, NOW).expect("a bounce");
        assert_eq!(payload.events()[0].report().class, class, "{kind}");
    }
}

#[test]
fn requests_without_the_credentials_are_refused() {
    let body = file("postmark-bounce.json");
    assert_eq!(postmark(None, &body, NOW).map(drop), Err(ProviderError::Unsigned("credentials")));
    for wrong in ["", "Basic dG9jc2luOnNlY3JldB==", "Basic dG9jc2luOnNlY3Jl", "Bearer secret"] {
        assert_eq!(postmark(Some(wrong), &body, NOW).map(drop), Err(ProviderError::Signature), "{wrong}");
    }
    assert_eq!(postmark(BASIC, &body, later(3_601)).map(drop), Err(ProviderError::Stale));
    assert_eq!(postmark(BASIC, &body, later(-700)).map(drop), Err(ProviderError::Stale));
    assert!(matches!(postmark(BASIC, b"x", NOW), Err(ProviderError::Format(_))));
    assert!(!format!("{:?}", Credential::bearer("secret")).contains("secret"));
}

fn brevo(token: &str, body: &[u8], now: Timestamp) -> Result<VerifiedPayload, ProviderError> {
    let headers = [("authorization", token)];
    let brevo = Brevo::new(Credential::bearer("secret"), WINDOW);
    brevo.verify(&Request { headers: &headers, body }, now, &Limits::default())
}

#[test]
fn brevo_events_are_read_and_need_the_token() {
    for (name, expected) in [
        ("brevo-hard-bounce.json", "hard ann@example.net 5.1.1 550"),
        ("brevo-soft-bounce.json", "soft ann@example.net 4.2.2 452"),
        ("brevo-blocked.json", "blocked ann@example.net"),
        ("brevo-spam.json", "complaint ann@example.net"),
        ("brevo-unsubscribed.json", "unsubscribe ann@example.net"),
    ] {
        let payload = brevo("Bearer secret", &file(name), NOW).expect(name);
        assert_eq!(summary(&payload), [expected], "{name}");
        assert_eq!(payload.events()[0].reference(), Some("b+code@example.org"));
    }
    let body = file("brevo-hard-bounce.json");
    assert_eq!(brevo("Bearer other", &body, NOW).map(drop), Err(ProviderError::Signature));
    assert_eq!(brevo("Bearer secret", &body, later(3_601)).map(drop), Err(ProviderError::Stale));
    let deferred = replaced(&body, "hard_bounce", "deferred");
    let deferred = brevo("Bearer secret", &deferred, NOW).expect("an event");
    assert_eq!(deferred.events()[0].report().action, Some(Action::Delayed));
    let opened = replaced(&body, "hard_bounce", "opened");
    assert!(brevo("Bearer secret", &opened, NOW).expect("an event").events().is_empty());
}

#[test]
fn verified_events_are_evidence_for_their_recipient() {
    let payload = sns_events("ses-bounce.json");
    let policy = FeedbackPolicy::default();
    let actions = payload.events().iter().map(|event| {
        let evidence = Evidence::of_event(event, None).expect("a recipient");
        policy.decide(&Default::default(), &evidence, NOW).action
    });
    assert_eq!(actions.collect::<Vec<_>>(), [SuppressionAction::Suppress, SuppressionAction::None]);
}
