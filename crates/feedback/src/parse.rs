//! The parser of mails: chooses the form of the feedback and collects its reports.

use std::collections::BTreeSet;

use crate::{
    addresses, delivery_status,
    excerpt::{comparable, excerpt},
    feedback::{Class, Feedback, Format, Report},
    feedback_report,
    limits::Limits,
    mime::{Fields, Mail, decoded, with_lf},
    provider::ses,
    reply,
    text_bounce::{self, Block},
};

/// Parses a mail that came back. Real mail often violates the standards, so parsing never fails; input beyond a limit
/// is left out and reported by [`Feedback::is_truncated`].
///
/// The result depends on the bytes only, whether their line ends are CRLF, LF or CR. It proves nothing about the
/// sender: see [`VerifiedOrigin`](crate::return_address::VerifiedOrigin).
pub fn parse(bytes: &[u8], limits: &Limits) -> Feedback {
    let is_cut = bytes.len() > limits.mail_bytes_max;
    let bytes = with_lf(&bytes[..bytes.len().min(limits.mail_bytes_max)]);
    let mail = Mail::parse(&bytes, limits);
    let mut feedback = of_mail(&mail, limits);
    if feedback.format == Format::Text {
        feedback = inner(&mail, &feedback, limits).unwrap_or(feedback);
    }
    feedback.is_truncated |= is_cut || mail.is_truncated;
    feedback
}

/// The feedback of a bounce within a bounce, which has the reason of the failure.
fn inner(mail: &Mail, outer: &Feedback, limits: &Limits) -> Option<Feedback> {
    let notification = text_bounce::embedded(mail, limits).map(|mail| of_mail(&mail, limits));
    let is_notification = |inner: &Feedback| inner.format == Format::DeliveryStatus;
    notification.filter(is_notification).or_else(|| {
        let has_no_cause = outer.reports.iter().all(|report| report.rule == text_bounce::NO_CAUSE);
        let inner = has_no_cause.then(|| text_bounce::forwarded(mail, limits)).flatten()?;
        Some(of_mail(&inner, limits))
    })
}

fn of_mail(mail: &Mail, limits: &Limits) -> Feedback {
    let subject = comparable(&decoded(mail.fields.first("subject").unwrap_or_default()));
    let original = original(mail, limits);
    let mut feedback = Feedback {
        format: Format::Mail,
        reports: Vec::new(),
        reporting_mta: None,
        message_id: original.first("message-id").and_then(|id| message_id(id, limits)),
        senders: Vec::new(),
        feedback_type: None,
        is_truncated: false,
    };
    let complaint = match subject.starts_with("complaint about message from ") {
        // Outlook.com sends the reported mail without a machine-readable part.
        true => Some(Fields::default()),
        false => None,
    };
    if let Some(fields) = feedback_report_fields(mail, limits).or(complaint) {
        feedback.format = Format::FeedbackReport;
        let (reports, kind) = feedback_report::reports(&fields, &original, limits);
        (feedback.reports, feedback.feedback_type) = (reports, Some(kind));
        feedback.senders = feedback_report::senders(&fields, &original);
        feedback.reporting_mta = fields.first("reporting-mta").map(|mta| delivery_status::mta(mta, limits));
        return feedback;
    }
    if delivery_status_reports(mail, &subject, limits, &mut feedback) {
        feedback.format = Format::DeliveryStatus;
        return feedback;
    }
    if let Some(events) = ses::events_of_mail(mail.parts.iter().map(|part| part.text.as_str()), limits) {
        feedback.format = Format::Provider;
        feedback.reports = events.iter().take(limits.recipients_max).map(|event| event.report().clone()).collect();
        feedback.is_truncated |= events.len() > limits.recipients_max;
        return feedback;
    }
    let is_disposition = |kind: &str| kind.ends_with("disposition-notification");
    if mail.report_type.as_deref().is_some_and(is_disposition)
        || mail.parts.iter().any(|part| is_disposition(&part.media_type))
    {
        feedback.format = Format::Disposition;
        return feedback;
    }
    if text_bounce::is_bounce(mail, &subject, limits) {
        feedback.format = Format::Text;
        (feedback.reports, feedback.is_truncated) = text_bounce::reports(mail, &subject, limits);
        return feedback;
    }
    let text = text_bounce::readable(mail, limits);
    let (class, rule) = reply::class(mail, &subject, &comparable(&text));
    feedback.format = match class {
        Class::Challenge | Class::OutOfOffice => Format::AutomaticReply,
        _ => Format::Mail,
    };
    let recipient = mail.fields.first("from").and_then(addresses::of_field);
    let answered = mail.fields.first("in-reply-to").and_then(|id| message_id(id, limits));
    feedback.message_id = answered.or(feedback.message_id);
    feedback.reports.push(Report {
        class,
        rule,
        recipient,
        action: None,
        status: None,
        reply: None,
        diagnostic: excerpt(&format!("{subject}: {text}"), limits.diagnostic_bytes_max),
        remote_mta: None,
    });
    feedback
}

/// The fields of the original mail: of an embedded mail, or of a copy behind the text.
fn original(mail: &Mail, limits: &Limits) -> Fields {
    let embedded = mail.parts.iter().find(|part| part.embedded.has("message-id") || part.embedded.has("to"));
    if let Some(part) = embedded {
        return Fields::split(part.text.trim_start().as_bytes(), limits).0;
    }
    // The copy begins with one of these fields.
    let begins = ["received:", "return-path:", "message-id:", "dkim-signature:", "from:", "date:"];
    for part in &mail.parts {
        let mut at = 0;
        for line in part.text.split_inclusive('\n') {
            let begins_with = |name: &&str| line.get(..name.len()).is_some_and(|text| text.eq_ignore_ascii_case(name));
            if begins.iter().any(begins_with) {
                let fields = Fields::split(&part.text.as_bytes()[at..], limits).0;
                if fields.has("message-id") {
                    return fields;
                }
                // The block has no Message-ID: a later one is not searched, so the cost stays linear.
                break;
            }
            at += line.len();
        }
    }
    Fields::default()
}

fn message_id(value: &str, limits: &Limits) -> Option<String> {
    let id = value.split_once('<').map_or(value, |(_, id)| id);
    let id = id.split(['>', ' ']).next().unwrap_or_default();
    (!id.is_empty()).then(|| excerpt(id, limits.diagnostic_bytes_max))
}

fn feedback_report_fields(mail: &Mail, limits: &Limits) -> Option<Fields> {
    let part = mail.parts.iter().find(|part| part.media_type == "message/feedback-report")?;
    Some(Fields::split(part.text.trim_start().as_bytes(), limits).0)
}

/// Adds the reports of all delivery status parts. Returns whether there is one.
fn delivery_status_reports(mail: &Mail, subject: &str, limits: &Limits, feedback: &mut Feedback) -> bool {
    let mut text = None;
    for part in mail.parts.iter().filter(|part| delivery_status::is_part(&part.media_type)) {
        let groups = delivery_status::Groups::of(&part.text, limits);
        feedback.is_truncated |= groups.is_truncated;
        if feedback.reporting_mta.is_none() {
            feedback.reporting_mta = groups.message.first("reporting-mta").map(|mta| delivery_status::mta(mta, limits));
        }
        let text = text.get_or_insert_with(|| text_bounce::readable(mail, limits));
        let recipients: Vec<_> = groups.recipients.iter().filter_map(delivery_status::recipient).collect();
        let blocks = text_bounce::blocks(text, &recipients, &BTreeSet::new());
        for fields in &groups.recipients {
            if feedback.reports.len() >= limits.recipients_max {
                feedback.is_truncated = true;
                break;
            }
            let own = delivery_status::recipient(fields);
            let is_own = |block: &&Block| own.as_ref().is_some_and(|own| addresses::is_same(own, &block.recipient));
            let block = blocks.iter().find(is_own);
            // The text about one recipient, or the whole text if there is only one.
            let readable = match block {
                _ if recipients.len() < 2 => format!("{text}\n{subject}"),
                Some(block) => block.text.to_owned(),
                None => String::new(),
            };
            let readable = comparable(&addresses::without_addresses(&readable));
            feedback.reports.push(delivery_status::report(fields, &readable, limits));
        }
    }
    !feedback.reports.is_empty()
}
