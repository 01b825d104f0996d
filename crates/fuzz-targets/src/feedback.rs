//! Feedback to sent mail.

use std::time::Duration;

use base64::{Engine, prelude::BASE64_STANDARD};
use ring::hmac;
use tocsin_feedback::{
    Feedback, Limits, parse,
    provider::{
        Credential, ProviderError, Request,
        brevo::Brevo,
        mailgun::Mailgun,
        messagebird::MessageBird,
        postmark::Postmark,
        ses,
        sinch::Sinch,
        sms::{Callback, Keywords, SmsEvent},
        standard_webhooks::StandardWebhooks,
        twilio::Twilio,
        vonage::Vonage,
    },
    return_address::{Position, ReturnAddresses},
};
use tocsin_model::time::Timestamp;

/// A mail that came back, a return address and the payload of a provider: results stay within their limits, do not
/// depend on line ends, and nothing unsigned is verified.
pub(crate) fn feedback(input: &[u8]) {
    let limits = Limits {
        mail_bytes_max: 64 << 10,
        payload_bytes_max: 64 << 10,
        recipients_max: 5,
        diagnostic_bytes_max: 100,
        ..Limits::default()
    };
    let feedback = parse(input, &limits);
    check(&feedback, &limits);
    let lf = String::from_utf8_lossy(input).into_owned();
    if !lf.contains('\r') && lf.contains('\n') && lf.len() < limits.mail_bytes_max / 2 {
        let crlf = lf.replace('\n', "\r\n");
        assert_eq!(parse(crlf.as_bytes(), &limits), parse(lf.as_bytes(), &limits), "line ends change the result");
    }
    let window = Duration::from_secs(u64::MAX / 4_000_000);
    let addresses =
        ReturnAddresses::new("b@example.org", Position::WholeLocalPart, &[[7; 32]], window).expect("one key");
    let text = String::from_utf8_lossy(input);
    for address in [text.to_string(), format!("{}@example.org", text.trim())] {
        assert!(addresses.verify(&address, Timestamp(0)).is_err(), "a return address was forged: {address:?}");
    }
    let now = Timestamp::from_millis(1_796_119_206_000);
    let request = Request { headers: &[("authorization", "Bearer a")], body: input };
    assert!(Mailgun::new("key", window).verify(&request, now, &limits).is_err(), "an event was forged");
    let _ = ses::certificate_url(&request, &limits);
    let payloads = [
        Postmark::new(Credential::bearer("a"), window).verify(&request, now, &limits),
        Brevo::new(Credential::bearer("a"), window).verify(&request, now, &limits),
    ];
    for event in payloads.iter().flatten().flat_map(|payload| payload.events()) {
        check(event.feedback(), &limits);
    }
    callbacks(input, now, window, &limits);
}

/// A callback of an SMS service: unsigned it is refused, signed its texts stay within their limits.
fn callbacks(input: &[u8], now: Timestamp, window: Duration, limits: &Limits) {
    let text = String::from_utf8_lossy(input);
    let authorization = format!("Bearer {}", text.trim());
    let headers = [
        ("authorization", authorization.as_str()),
        ("x-twilio-signature", text.trim()),
        ("messagebird-signature-jwt", text.trim()),
        ("x-sinch-webhook-signature", text.trim()),
        ("x-sinch-webhook-signature-nonce", "n"),
        ("x-sinch-webhook-signature-timestamp", "1796119206"),
        ("webhook-id", "n"),
        ("webhook-timestamp", "1796119206"),
        ("webhook-signature", text.trim()),
    ];
    let url = format!("https://t.example/?{text}");
    let callback = Callback { url: &url, request: Request { headers: &headers, body: input } };
    let secret = [7; 24];
    let standard = StandardWebhooks::new(&format!("whsec_{}", BASE64_STANDARD.encode(secret)), window);
    let standard = standard.expect("a secret");
    let sinch = Sinch::new("key", window);
    let forged = [
        Twilio::new("key").verify(&callback, limits),
        Vonage::new("key", window).verify(&callback, now, limits),
        MessageBird::new("key", window).verify(&callback, now, limits),
        sinch.verify(&callback, now, limits),
        standard.verify(&callback, now, limits),
    ];
    assert!(forged.iter().all(Result::is_err), "a callback was forged");
    let signature = |secret: &[u8], signed: &[u8]| {
        BASE64_STANDARD.encode(hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), signed))
    };
    let at = b"1796119206".as_slice();
    let of_sinch = signature(b"key", &[input, b".n.", at].concat());
    let of_standard = format!("v1,{}", signature(&secret, &[b"n.", at, b".", input].concat()));
    let headers = headers.map(|(name, value)| match name {
        "x-sinch-webhook-signature" => (name, of_sinch.as_str()),
        "webhook-signature" => (name, of_standard.as_str()),
        _ => (name, value),
    });
    let callback = Callback { url: &url, request: Request { headers: &headers, body: input } };
    let keywords = Keywords { stop: vec!["STOP".into()], start: vec!["START".into()], help: vec!["HELP".into()] };
    for verified in [sinch.verify(&callback, now, limits), standard.verify(&callback, now, limits)] {
        assert_ne!(verified, Err(ProviderError::Signature), "a signature was not recognized");
        let texts = match verified.map(|verified| verified.event) {
            Ok(SmsEvent::Reply(reply)) => {
                let _ = keywords.find(reply.text());
                vec![reply.from().len(), reply.to().len(), reply.text().len(), reply.id().len()]
            }
            Ok(SmsEvent::Receipt(receipt)) => vec![receipt.recipient().len(), receipt.diagnostic().len()],
            Ok(SmsEvent::Progress) | Err(_) => Vec::new(),
        };
        assert!(texts.iter().all(|bytes| *bytes <= limits.diagnostic_bytes_max), "{texts:?} bytes");
    }
}

fn check(feedback: &Feedback, limits: &Limits) {
    assert!(feedback.reports.len() <= limits.recipients_max, "{} reports", feedback.reports.len());
    let texts = feedback.reports.iter().flat_map(|report| [Some(&report.diagnostic), report.remote_mta.as_ref()]);
    let others = [&feedback.reporting_mta, &feedback.message_id, &feedback.feedback_type].map(Option::as_ref);
    for text in texts.chain(others).flatten() {
        assert!(text.len() <= limits.diagnostic_bytes_max, "{} bytes", text.len());
        assert!(!text.contains(char::is_control), "a control character: {text:?}");
    }
}
