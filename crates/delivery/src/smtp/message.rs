use std::{collections::BTreeMap, sync::Arc};

use base64::{Engine, prelude::BASE64_STANDARD};
use mail_builder::{
    MessageBuilder,
    headers::{Header, HeaderType, address::Address, date::Date, message_id::MessageId, raw::Raw, text::Text},
};
use parking_lot::Mutex;
use tocsin_model::content::{Content, MailField, header_problem};

use super::{
    address::Mailbox,
    dkim::{self, DkimKey},
    header::clean,
    options::Precedence,
};
use crate::channel::{Facts, Message};

/// Value of an unstructured field (RFC 5322, 2.2.1). A text that looks like an encoded word is encoded, so that
/// readers see the text itself and no hidden one.
fn unstructured(text: &str) -> HeaderType<'_> {
    let text = clean(text);
    match text.contains("=?") {
        true => HeaderType::Raw(Raw::new(encoded_words(&text))),
        false => HeaderType::Text(Text::new(text)),
    }
}

/// Value of a structured field, which content gives as it is.
fn structured(text: &str) -> HeaderType<'_> {
    match text.is_ascii() {
        true => HeaderType::Raw(Raw::new(clean(text))),
        false => unstructured(text),
    }
}

/// Value of an address field, which content gives: without a name it is the bare address.
fn plain(mailbox: &Mailbox) -> HeaderType<'_> {
    match mailbox.name {
        Some(_) => mailbox.header().into(),
        None => HeaderType::Raw(Raw::new(mailbox.address.as_str())),
    }
}

/// A text as encoded words (RFC 2047), each with whole characters.
fn encoded_words(text: &str) -> String {
    // 45 bytes become 60 letters; a word has up to 75.
    let (mut words, mut rest) = (Vec::new(), text);
    while !rest.is_empty() {
        let end = (1..=rest.len().min(45)).rev().find(|at| rest.is_char_boundary(*at)).unwrap_or(rest.len());
        words.push(format!("=?utf-8?B?{}?=", BASE64_STANDARD.encode(&rest[..end])));
        rest = &rest[end..];
    }
    words.join(" ")
}

/// Header fields that all mails of a channel share.
pub(super) struct HeaderTemplate {
    pub from: Mailbox,
    pub reply_to: Option<Mailbox>,
    pub headers: BTreeMap<String, String>,
    pub precedence: Precedence,
    pub list_id: bool,
    pub list_unsubscribe: bool,
    /// Whether mails carry a trace header.
    pub trace_header: bool,
    pub keys: Vec<DkimKey>,
    /// The latest pattern, reused for other recipients of the same content.
    pub latest: Mutex<Option<Arc<Pattern>>>,
}

/// A rendered mail without its recipient's fields, in whole lines: the parts before `To`, between `To` and
/// `Message-ID`, and after it.
pub(super) struct Pattern {
    content: Arc<Content>,
    seconds: i64,
    /// Domain of `Message-ID`.
    domain: String,
    before: Vec<u8>,
    between: Vec<u8>,
    behind: Vec<u8>,
    /// Whether a line begins with a dot.
    dotted: bool,
}

/// Header field with the reference that a provider returns with its events.
pub(super) type ReferenceField = (&'static str, String);

/// The recipient of a mail with a single recipient.
pub(super) struct MailRecipient<'a> {
    /// Address in wire form.
    pub address: &'a str,
    pub unsubscribe: Option<&'a str>,
    /// Address to which any mail ends the subscription.
    pub unsubscribe_address: Option<String>,
}

impl HeaderTemplate {
    /// Appends the mail in wire form to `out`: RFC 5322 and MIME, dots stuffed, with the final dot. A mail to several
    /// recipients names none of them in `To`.
    pub fn write(
        &self,
        message: &Message,
        to: Option<MailRecipient<'_>>,
        reference: Option<&ReferenceField>,
        out: &mut Vec<u8>,
    ) {
        let pattern = self.pattern(message);
        // Lines of the recipient begin with a field name, so they never begin with a dot.
        if self.keys.is_empty() && !pattern.dotted {
            self.write_lines(message, to, reference, &pattern, out);
        } else {
            let mut lines = Vec::new();
            self.write_lines(message, to, reference, &pattern, &mut lines);
            let signatures = dkim::sign(&self.keys, &lines, pattern.seconds);
            out.reserve(signatures.len() + lines.len() + lines.len() / 32 + 8);
            out.extend_from_slice(signatures.as_bytes());
            stuff(&lines, out);
        }
        out.extend_from_slice(b".\r\n");
    }

    /// Appends the mail in whole lines, without signatures.
    fn write_lines(
        &self,
        message: &Message,
        to: Option<MailRecipient<'_>>,
        reference: Option<&ReferenceField>,
        pattern: &Pattern,
        out: &mut Vec<u8>,
    ) {
        let Pattern { domain, before, between, behind, .. } = pattern;
        out.reserve(before.len() + between.len() + behind.len() + 512);
        out.extend_from_slice(before);
        match &to {
            // As in `From`, an address that content gives without a name has no angle brackets.
            Some(MailRecipient { address, .. }) if message.content.mail_field(MailField::From).is_some() => {
                write_field("To", &Raw::new(*address), out);
            }
            Some(MailRecipient { address, .. }) => {
                write_field("To", &Address::new_address(None::<&str>, *address), out);
            }
            None => write_field("To", &Raw::new("undisclosed-recipients:;"), out),
        }
        out.extend_from_slice(between);
        write_field("Message-ID", &MessageId::new(message_id(&message.message_id, domain)), out);
        let is_given = message.content.mail_field(MailField::ListUnsubscribe).is_some();
        if let Some(to) = to.filter(|_| self.list_unsubscribe && !is_given) {
            let link = to.unsubscribe.map(|link| format!("<{}>", clean(link)));
            let address = to.unsubscribe_address.map(|address| format!("<mailto:{address}?subject=unsubscribe>"));
            match (&link, address) {
                (Some(link), Some(address)) => {
                    write_field("List-Unsubscribe", &Raw::new(format!("{link}, {address}")), out);
                }
                (None, Some(address)) => write_field("List-Unsubscribe", &Raw::new(address), out),
                (Some(link), None) => write_field("List-Unsubscribe", &Raw::new(link.as_str()), out),
                (None, None) => {}
            }
            if link.is_some() {
                write_field("List-Unsubscribe-Post", &Raw::new("List-Unsubscribe=One-Click"), out);
            }
        }
        if let Some((name, value)) = reference {
            write_field(name, &Raw::new(value.as_str()), out);
        }
        if let Some(place) = message.place.as_ref().filter(|_| self.trace_header) {
            write_field("X-Trace-Parent", &Raw::new(place.context.parent_text()), out);
        }
        out.extend_from_slice(behind);
    }

    /// The cached pattern of this mail's content, rendered if necessary.
    fn pattern(&self, message: &Message) -> Arc<Pattern> {
        let seconds = message.formatted_at.as_millis().div_euclid(1000);
        if let Some(latest) = &*self.latest.lock()
            && Arc::ptr_eq(&latest.content, &message.content)
            && latest.seconds == seconds
        {
            return latest.clone();
        }
        let pattern = Arc::new(self.make_pattern(message, seconds));
        *self.latest.lock() = Some(pattern.clone());
        pattern
    }

    fn make_pattern(&self, message: &Message, seconds: i64) -> Pattern {
        let content = &message.content;
        let given = content.mail_field(MailField::From).and_then(Mailbox::parse).map(Mailbox::on_wire);
        let from = given.as_ref().unwrap_or(&self.from);
        let mut mail = MessageBuilder::new()
            .header("From", given.as_ref().map_or_else(|| from.header().into(), plain))
            .header("To", Raw::new(OWN))
            .header("Subject", unstructured(content.subject.as_deref().unwrap_or_default()))
            .date(Date::new(seconds))
            .message_id(MessageId::new(OWN))
            .header("Auto-Submitted", Raw::new("auto-generated"));
        match self.precedence {
            Precedence::Bulk => mail = mail.header("Precedence", Raw::new("bulk")),
            Precedence::List => mail = mail.header("Precedence", Raw::new("list")),
            Precedence::None => {}
        }
        if let Some(mailbox) = &self.reply_to {
            mail = mail.reply_to(mailbox.header());
        }
        let is_own = |name: &str| content.headers.iter().any(|(own, _)| own.eq_ignore_ascii_case(name));
        for (name, value) in self.headers.iter().filter(|(name, _)| !is_own(name)) {
            mail = mail.header(name.as_str(), unstructured(value));
        }
        for (name, value) in content.headers.iter().filter(|(name, _)| header_problem(name).is_none()) {
            mail = mail.header(name.as_str(), unstructured(value));
        }
        let is_given = |name: &str| is_own(name) || self.headers.keys().any(|given| given.eq_ignore_ascii_case(name));
        match content.mail_field(MailField::ListId) {
            Some(given) => mail = mail.header("List-ID", structured(given)),
            None if self.list_id && !is_given("List-Id") => {
                mail = mail.header("List-Id", Raw::new(list_id(&message.facts, from.domain())));
            }
            None => {}
        }
        if let Some(given) = content.mail_field(MailField::ListUnsubscribe) {
            mail = mail.header("List-Unsubscribe", structured(given));
            if given.contains("<https:") || given.contains("<http:") {
                mail = mail.header("List-Unsubscribe-Post", Raw::new("List-Unsubscribe=One-Click"));
            }
        }
        let text = content.text.as_deref().or(content.json.as_deref().filter(|_| content.html.is_none()));
        if let Some(text) = text {
            mail = mail.text_body(text);
        }
        if let Some(html) = &content.html {
            mail = mail.html_body(html.as_str());
        }
        let mut plain = Vec::with_capacity(1024);
        mail.serialize(&mut plain);
        let lines = whole_lines(plain);
        let (before, rest) = cut_line(&lines, "To: ");
        let (between, behind) = cut_line(rest, "Message-ID: ");
        let dotted = lines.starts_with(b".") || lines.windows(2).any(|two| two == b"\n.");
        let [before, between, behind] = [before, between, behind].map(<[u8]>::to_vec);
        let domain = from.domain().to_owned();
        Pattern { content: content.clone(), seconds, domain, before, between, behind, dotted }
    }
}

/// Placeholder of the parts that differ for each mail.
const OWN: &str = "own";

/// The parts before and after the only line with this beginning. We wrote that line ourselves, unfolded.
fn cut_line<'l>(lines: &'l [u8], begins: &str) -> (&'l [u8], &'l [u8]) {
    let mut at = 0;
    for line in lines.split_inclusive(|byte| *byte == b'\n') {
        if line.starts_with(begins.as_bytes()) {
            return (&lines[..at], &lines[at + line.len()..]);
        }
        at += line.len();
    }
    unreachable!("every mail has the field {begins}")
}

/// Appends a header field.
fn write_field(name: &str, value: &impl Header, out: &mut Vec<u8>) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    value.write_header(out, name.len() + 2);
}

/// The message id, restricted to the characters of RFC 5322, 3.6.4.
fn message_id(id: &str, domain: &str) -> String {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let mut text: String = id.chars().map(|c| if fits(c) { c } else { '-' }).collect();
    text.push('@');
    text.push_str(domain);
    text
}

/// The list id (RFC 2919): one list per notification class and application.
fn list_id(facts: &Facts, domain: &str) -> String {
    format!("<{}.{}.{domain}>", facts.class, facts.application)
}

/// Ends every line with CR LF, including the last one, so that no server sees an earlier end of the mail (SMTP
/// smuggling). NUL bytes are removed (RFC 5322, 4.1).
fn whole_lines(plain: Vec<u8>) -> Vec<u8> {
    // Fast path: nearly all are whole already. Without branches this checks many bytes at once.
    let broken = |bad, (byte, next): (&u8, &u8)| bad | (*byte == 0) | ((*byte == b'\r') != (*next == b'\n'));
    if plain.ends_with(b"\r\n") && plain[0] != b'\n' && !plain.iter().zip(&plain[1..]).fold(false, broken) {
        return plain;
    }
    let mut out = Vec::with_capacity(plain.len() + plain.len() / 32 + 2);
    let mut rest = plain.as_slice();
    while !rest.is_empty() {
        let end = rest.iter().position(|byte| matches!(byte, b'\n' | b'\r')).unwrap_or(rest.len());
        rest[..end].split(|byte| *byte == 0).for_each(|part| out.extend_from_slice(part));
        out.extend_from_slice(b"\r\n");
        rest = rest[end..].strip_prefix(b"\r\n").unwrap_or_else(|| rest.get(end + 1..).unwrap_or_default());
    }
    out
}

/// Appends whole lines with dot-stuffing (RFC 5321, 4.5.2).
fn stuff(lines: &[u8], out: &mut Vec<u8>) {
    for line in lines.split_inclusive(|byte| *byte == b'\n') {
        if line[0] == b'.' {
            out.push(b'.');
        }
        out.extend_from_slice(line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_ends_are_normalized_and_dots_stuffed() {
        let mut out = Vec::new();
        stuff(&whole_lines(b"a\0b\r\n.\r\n..b\nc\r\0.d\r\r\n\n.".to_vec()), &mut out);
        assert_eq!(String::from_utf8_lossy(&out), "ab\r\n..\r\n...b\r\nc\r\n..d\r\n\r\n\r\n..\r\n");
    }

    #[test]
    fn a_text_that_looks_encoded_is_shown_as_it_is() {
        let written = |text: &str| {
            let mut out = Vec::new();
            unstructured(text).write_header(&mut out, 9);
            String::from_utf8(out).expect("ASCII")
        };
        assert_eq!(written("plain"), "plain\r\n");
        assert_eq!(written("=?utf-8?q?=0d=0a?="), "=?utf-8?B?PT91dGYtOD9xPz0wZD0wYT89?=\r\n");
        let long = written(&format!("=?{}", "ü".repeat(60)));
        assert!(long.lines().count() > 1 && long.lines().all(|line| line.len() <= 78), "{long}");
    }
}
