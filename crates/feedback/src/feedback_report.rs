//! Feedback reports of mail providers (RFC 5965): complaints.

use crate::{
    addresses,
    excerpt::excerpt,
    feedback::{Class, Report},
    limits::Limits,
    mime::Fields,
};
use tocsin_model::mailbox::Mailbox;

/// The reports of the machine-readable part and the type of the feedback. `fallback` has the fields of the reported
/// mail; they name the recipient if the report does not.
pub(crate) fn reports(fields: &Fields, fallback: &Fields, limits: &Limits) -> (Vec<Report>, String) {
    let kind = fields.first("feedback-type").unwrap_or("abuse").trim().to_ascii_lowercase();
    let (class, rule) = class(&kind);
    let named = ["original-rcpt-to", "removal-recipient", "redacted-address"].iter().flat_map(|name| fields.all(name));
    let mut recipients: Vec<_> = named.filter_map(addresses::of_field).take(limits.recipients_max).collect();
    if recipients.is_empty() {
        let fields = ["x-original-to", "delivered-to", "to"];
        recipients.extend(fields.iter().find_map(|name| fallback.first(name).and_then(addresses::of_field)));
    }
    let source = fields.first("source-ip").or(fields.first("user-agent")).unwrap_or_default();
    let report = |recipient| Report {
        class,
        rule,
        recipient,
        action: None,
        status: None,
        reply: None,
        diagnostic: excerpt(&format!("Feedback-Type: {kind}; {source}"), limits.diagnostic_bytes_max),
        remote_mta: None,
    };
    let reports = match recipients.is_empty() {
        true => vec![report(None)],
        false => recipients.into_iter().map(Some).map(report).collect(),
    };
    (reports, excerpt(&kind, limits.diagnostic_bytes_max))
}

/// Addresses that can be return addresses, the best first: those of the report, then those of the reported mail. A
/// provider that hides its user may remove some.
pub(crate) fn senders(fields: &Fields, original: &Fields) -> Vec<Mailbox> {
    let paths = [fields.first("original-mail-from"), original.first("return-path")];
    let paths = paths.into_iter().flatten().filter_map(addresses::of_field);
    let lists = original.first("list-unsubscribe").unwrap_or_default();
    let mailto = lists.split("<mailto:").skip(1).filter_map(|rest| {
        let address = rest.split(['?', '>']).next().unwrap_or_default();
        addresses::parse(address)
    });
    paths.chain(mailto).take(SENDERS_MAX).collect()
}

/// Most addresses of [`senders`].
const SENDERS_MAX: usize = 4;

/// The class of a feedback type.
fn class(kind: &str) -> (Class, &'static str) {
    match kind {
        "opt-out" | "opt-out-list" => (Class::Unsubscribe, "report.opt_out"),
        // RFC 6591 and 6430: about authentication, and the withdrawal of a complaint.
        "auth-failure" | "dkim" | "not-spam" => (Class::Unknown, "report.other"),
        _ => (Class::Complaint, "report.complaint"),
    }
}
