//! Feedback to sent mail.

use std::time::Duration;

use tocsin_feedback::{
    Feedback, Limits, parse,
    provider::{Credential, Request, brevo::Brevo, mailgun::Mailgun, postmark::Postmark, ses},
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
