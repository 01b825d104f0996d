//! Bounces without a machine-readable part: the texts of qmail, Exim, old versions of Exchange and many others.

use std::{collections::BTreeSet, sync::LazyLock};

use regex::Regex;
use tocsin_model::mailbox::Mailbox;

use crate::{
    addresses,
    classify::{UNKNOWN, classify},
    excerpt::{comparable, excerpt, start},
    feedback::{Class, Report},
    limits::Limits,
    mime::Mail,
    rules::Verdict,
    signals::Signals,
};

/// Id of the row of a bounce without a known cause.
pub(crate) const NO_CAUSE: &str = "bounce";

/// Phrases of a ruled or announcing line that precedes a copy of the original mail, in comparable form.
const COPY_MARKERS: &[&str] = &[
    "below this line is a copy of the message",
    "this is a copy of the message",
    "this is a copy of your message",
    "original message follows",
    "original message",
    "returned message",
    "message header follows",
    "message headers follow",
    "unsent message",
    "undelivered message",
    "message text follows",
    "your message is below",
    "returned mail follows",
    "text of your message",
    "copy of your message",
    "copy of the original message",
    "the header of the original message",
    "the header from the original message",
    "original mail",
    "original email",
    "your original message",
    "-----end of",
    "start of the original",
    "content of the original",
    "mail data",
    "copy of the message header",
];

/// Fields with which a copy of the original mail begins.
const COPY_FIELDS: &[&str] =
    &["received:", "return-path:", "message-id:", "dkim-signature:", "arc-seal:", "x-mailer:", "mime-version:"];

/// Phrases of a text about a failed delivery, in comparable form.
const FAILURES: &[&str] = &[
    "not be delivered",
    "not deliver",
    "undeliverable",
    "delivery failed",
    "delivery fail",
    "was not delivered",
    "rejected",
];

/// Phrases before the list of recipients.
const LISTS: &[&str] = &["following recipient", "following address", "recipients:", "was not delivered to"];

/// Names of the account that sends bounces, at the start of an address.
const SENDERS: &[&str] = &[
    "mailer-daemon",
    "mailer_daemon",
    "mailerdaemon",
    "postmaster",
    "post_master",
    "mail-daemon",
    "mmdf",
    "uucp",
    "mdaemon",
];

/// Phrases of subjects of bounces, in comparable form.
const SUBJECTS: &[&str] = &[
    "failure notice",
    "delivery fail",
    "delivery failure",
    "delivery status",
    "delivery notification",
    "delivery problem",
    "delivery report",
    "delivery has failed",
    "delivery error",
    "delivery not",
    "non-delivery",
    "nondeliverable",
    "non delivery",
    "undeliver",
    "undelivered",
    "unzustellbar",
    "returned mail",
    "returned to sender",
    "returning message to sender",
    "mail system error",
    "mail error",
    "mail failure",
    "mail delivery",
    "mail returned",
    "message could not be delivered",
    "could not be delivered",
    "could not send",
    "cannot be delivered",
    "can't be delivered",
    "not delivered",
    "delayed mail",
    "delivery delayed",
    "message delivery",
    "message delayed",
    "warning: message",
    "warning: could not send",
    "bounce",
    "user unknown",
    "error mail",
    "processing error",
    "nicht zugestellt",
    "unable to deliver",
    "deferred mail",
    "échec",
    "remise impossible",
    "rejected",
    "email not sent",
];

/// Whether a mail without a machine-readable part is a bounce.
pub(crate) fn is_bounce(mail: &Mail, subject: &str, limits: &Limits) -> bool {
    let fields = &mail.fields;
    let is_null = |name: &str| fields.first(name).is_some_and(|path| matches!(path.trim(), "<>" | "< >"));
    let from = fields.first("from").unwrap_or_default().to_lowercase();
    let is_daemon = SENDERS.iter().any(|sender| from.contains(sender)) || from.contains("mail delivery");
    let path = fields.first("return-path").unwrap_or_default().to_lowercase();
    let is_returned = is_null("return-path") || SENDERS.iter().any(|sender| path.contains(sender));
    let has_subject = SUBJECTS.iter().any(|phrase| subject.contains(phrase));
    let is_reply = subject.starts_with("re:") || subject.starts_with("fwd:") || subject.starts_with("fw:");
    fields.has("x-failed-recipients")
        || fields.has("x-ms-embedded-report")
        || (is_daemon
            && (is_returned || has_subject || fields.first("from").is_some_and(|from| from.contains("MAILER-DAEMON"))))
        || (is_returned && has_subject)
        || (has_subject
            && !is_reply
            && (is_daemon || has_embedded_mail(mail) || has_failed_address(mail, is_daemon, has_subject, limits)))
        || ((is_daemon || is_returned || (has_embedded_mail(mail) && !is_reply))
            && has_failed_address(mail, is_daemon, has_subject, limits))
}

fn has_embedded_mail(mail: &Mail) -> bool {
    mail.parts.iter().any(|part| !part.embedded.is_empty())
}

/// Whether the text names an address and a failed delivery, of a known cause if the subject announces none.
fn has_failed_address(mail: &Mail, is_daemon: bool, has_subject: bool, limits: &Limits) -> bool {
    let text = readable(mail, limits);
    let found = signals(&text, "");
    let has_failure = FAILURES.iter().any(|phrase| found.text.contains(phrase));
    // A number of three digits is a reply code only in the mail of a server.
    let has_failure = has_failure || ((is_daemon || has_subject) && found.reply.is_some());
    let has_address = addresses::find(&text).next().is_some();
    has_address && has_failure && (has_subject || classify(&found).class != Class::Unknown)
}

/// The readable text of a mail, before the copy of the original one.
pub(crate) fn readable(mail: &Mail, limits: &Limits) -> String {
    let mut text = String::new();
    let is_plain = mail.parts.iter().any(|part| part.media_type == "text/plain" && !part.text.trim().is_empty());
    for part in &mail.parts {
        let is_text = part.media_type == "text/plain" || (!is_plain && part.media_type.starts_with("text/"));
        match (is_text, part.embedded.is_empty()) {
            (true, true) => {
                text.push_str(&part.text);
                text.push('\n');
            }
            (_, false) => break,
            _ => {}
        }
        if text.len() > limits.text_bytes_max {
            break;
        }
    }
    let mut kept = String::new();
    for line in start(&text, limits.text_bytes_max).lines() {
        // A report can be quoted.
        let line = line.trim_start_matches("> ");
        if !kept.trim().is_empty() && is_copy_marker(line) {
            break;
        }
        kept.push_str(line);
        kept.push('\n');
    }
    kept
}

fn is_copy_marker(line: &str) -> bool {
    // Fields of a quoted header are indented.
    let is_indented = line.starts_with([' ', '\t']);
    let line = comparable(line.trim());
    if !is_indented && COPY_FIELDS.iter().any(|field| line.starts_with(field)) {
        return true;
    }
    let is_announcing = line.starts_with(['-', '=', '*', '_', '#', '+'])
        || line.ends_with([':', '-'])
        || ["follow", "is a copy", "below this line"].iter().any(|phrase| line.contains(phrase));
    line.len() < 120 && is_announcing && COPY_MARKERS.iter().any(|marker| line.contains(marker))
}

/// A line that begins a block about one recipient.
static BLOCK: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(concat!(
        r"(?i)^\W{0,8}(?:[45]\d\d\s+)?",
        r"(?:(?:failed|to|recipients?(?: address)?|address(?:ee)?|user|original recipient|final recipient|mailbox",
        r"|unknown user)\s*:?\s*)?\W{0,4}$"
    ))
    .expect("a pattern of this file")
});

/// A notification that a gateway put into another one as embedded mail.
pub(crate) fn embedded(mail: &Mail, limits: &Limits) -> Option<Mail> {
    let is_notification = |kind: &str| kind.to_ascii_lowercase().contains("delivery-status");
    let part = mail.parts.iter().find(|part| part.embedded.first("content-type").is_some_and(is_notification))?;
    Some(Mail::parse(part.text.trim_start().as_bytes(), limits))
}

/// A bounce that an administrator forwarded in the text of another mail, without quotes.
pub(crate) fn forwarded(mail: &Mail, limits: &Limits) -> Option<Mail> {
    let part = mail.parts.iter().find(|part| part.media_type == "text/plain")?;
    let at = part.text.find("\nFrom MAILER-DAEMON ")? + 1;
    let mail = Mail::parse(&part.text.as_bytes()[at..], limits);
    is_bounce(&mail, "", limits).then_some(mail)
}

/// A block of the text about one recipient.
pub(crate) struct Block<'a> {
    /// The recipient.
    pub recipient: Mailbox,
    /// The text about it: from its line to that of the next recipient. In a transcript a line that begins with a reply
    /// code ends the text about its recipient.
    pub text: &'a str,
}

impl<'a> Block<'a> {
    /// The text until the first empty line, if its own phrases and codes decide.
    fn decisive(&self) -> &'a str {
        let end = self
            .text
            .trim_start()
            .find("\n\n")
            .map_or(self.text.len(), |end| end + self.text.len() - self.text.trim_start().len());
        let start = &self.text[..end];
        match classify(&signals(start, "")).is_general {
            true => self.text,
            false => start,
        }
    }
}

/// The reports of a bounce.
pub(crate) fn reports(mail: &Mail, subject: &str, limits: &Limits) -> (Vec<Report>, bool) {
    let text = readable(mail, limits);
    let named: Vec<Mailbox> = named(mail);
    let others = not_recipients(mail);
    let mut blocks = blocks(&text, &named, &others);
    let is_truncated = blocks.len() > limits.recipients_max;
    blocks.truncate(limits.recipients_max);
    let whole = signals(&text, subject);
    let mut reports: Vec<Report> = Vec::new();
    for block in &blocks {
        let text_of_block = block.decisive();
        let own = signals(text_of_block, "");
        let verdict = classify(&own);
        let (found, shown) = match verdict.class == Class::Unknown || (verdict.is_general && blocks.len() == 1) {
            true => (&whole, text.as_str()),
            false => (&own, text_of_block),
        };
        reports.push(report(Some(block.recipient.clone()), found, shown, limits));
    }
    if reports.is_empty() {
        let recipient = named.first().cloned().or_else(|| fallback(mail, &text, &others));
        reports.push(report(recipient, &whole, &text, limits));
    }
    (reports, is_truncated)
}

fn report(recipient: Option<Mailbox>, found: &Signals, text: &str, limits: &Limits) -> Report {
    let verdict = match classify(found) {
        // A bounce without a known cause.
        verdict if verdict.class == Class::Unknown => Verdict { class: Class::Soft, rule: NO_CAUSE, ..UNKNOWN },
        verdict => verdict,
    };
    Report {
        class: verdict.class,
        rule: verdict.rule,
        recipient,
        action: None,
        status: found.status,
        reply: found.reply,
        diagnostic: excerpt(text, limits.diagnostic_bytes_max),
        remote_mta: None,
    }
}

fn signals(text: &str, subject: &str) -> Signals {
    Signals::of(comparable(&addresses::without_addresses(&format!("{text}\n{subject}"))))
}

/// The recipients that the header names.
fn named(mail: &Mail) -> Vec<Mailbox> {
    let values = mail.fields.all("x-failed-recipients").flat_map(|value| value.split(','));
    values.filter_map(addresses::parse).collect()
}

/// Addresses that are not failed recipients: sender and receiver of the bounce, and accounts that send bounces.
fn not_recipients(mail: &Mail) -> BTreeSet<String> {
    let names = ["from", "to", "delivered-to", "x-original-to", "envelope-to", "return-path", "reply-to", "sender"];
    let values = names.iter().flat_map(|name| mail.fields.all(name));
    let found = values.flat_map(|value| addresses::find(value).map(|(_, found)| found));
    found.filter_map(addresses::parse).map(|mailbox| mailbox.canonical()).collect()
}

/// Divides the text at the lines that name a recipient: one of `named` if there are any. Lines before an announced list
/// name none.
pub(crate) fn blocks<'a>(text: &'a str, named: &[Mailbox], others: &BTreeSet<String>) -> Vec<Block<'a>> {
    let mut starts: Vec<Start> = Vec::new();
    let mut seen = BTreeSet::new();
    let named: BTreeSet<String> = named.iter().map(Mailbox::canonical).collect();
    let last_address = addresses::find(text).last().map_or(0, |(at, _)| at);
    let announced = text.split_inclusive('\n').scan(0, |end, line| {
        *end += line.len();
        Some((*end, comparable(line)))
    });
    let mut lists = announced.filter(|(_, line)| LISTS.iter().any(|phrase| line.contains(phrase)));
    let list = lists.find(|(end, _)| *end <= last_address).map_or(0, |(end, _)| end);
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        if at >= list
            && let Some((column, found)) = addresses::find(line).next()
            && let Some(mailbox) = addresses::parse(found)
        {
            let canonical = mailbox.canonical();
            let is_named = named.contains(&canonical);
            let is_start = BLOCK.is_match(&line[..column]);
            let is_new = !seen.contains(&canonical) && !is_other(&mailbox, others);
            if (is_named || (named.is_empty() && is_start)) && is_new {
                seen.insert(canonical);
                let is_end = line[..column].trim_start_matches(['<', ' ']).starts_with(|c: char| c.is_ascii_digit());
                starts.push(Start { line: at, end: at + line.len(), is_end, recipient: mailbox });
            }
        }
        at += line.len();
    }
    let range = |index: usize| match &starts[index] {
        start if start.is_end => index.checked_sub(1).map_or(list, |before| starts[before].end)..start.end,
        start => start.line..starts.get(index + 1).map_or(text.len(), |next| next.line),
    };
    let block = |(index, start): (usize, &Start)| Block {
        recipient: start.recipient.clone(),
        text: text.get(range(index)).unwrap_or_default(),
    };
    starts.iter().enumerate().map(block).collect()
}

/// The first line that names a recipient.
struct Start {
    line: usize,
    end: usize,
    is_end: bool,
    recipient: Mailbox,
}

fn is_other(mailbox: &Mailbox, others: &BTreeSet<String>) -> bool {
    let local = mailbox.local().to_ascii_lowercase();
    others.contains(&mailbox.canonical()) || SENDERS.iter().any(|sender| local == *sender)
}

/// The recipient by the text, or by the fields of the embedded mail.
fn fallback(mail: &Mail, text: &str, others: &BTreeSet<String>) -> Option<Mailbox> {
    let mut of_text = addresses::find(text).filter_map(|(_, found)| addresses::parse(found));
    let of_text = of_text.find(|mailbox| !is_other(mailbox, others));
    of_text.or_else(|| {
        let embedded = mail.parts.iter().map(|part| &part.embedded).find(|fields| !fields.is_empty())?;
        ["to", "delivered-to"].iter().find_map(|name| embedded.first(name).and_then(addresses::of_field))
    })
}
