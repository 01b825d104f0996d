//! Mailbox addresses: parsed, checked and compared by RFC 5321, 5322 and 6531.
//!
//! [`Mailbox::parse`] accepts the usual forms of an address: with blanks around it, with a display name, in angle
//! brackets, as a `mailto:` URI (RFC 6068), with comments. [`Mailbox::canonical`] is the form for comparisons.
//!
//! Two mailboxes are the same if their domains and their local parts are. Domains are compared as A-labels (RFC 5891,
//! after the non-transitional mapping of UTS 46), without regard to case and to a final dot. Local parts are compared
//! in NFC and without regard to case: RFC 5321 leaves case to the receiving server, and servers that distinguish it
//! are rarer than lists that mix it. Dots and `+tags` in a local part are significant.

use std::{
    borrow::Cow,
    collections::BTreeSet,
    net::{Ipv4Addr, Ipv6Addr},
};

use icu_normalizer::ComposingNormalizerBorrowed;

use crate::{
    id::Name,
    percent,
    problem::{Code, Problem},
};

/// Most bytes of a local part (RFC 5321, 4.5.3.1.1).
pub const LOCAL_BYTES_MAX: usize = 64;
/// Most bytes of a domain in ASCII (RFC 5321, 4.5.3.1.2).
pub const DOMAIN_BYTES_MAX: usize = 255;
/// Most bytes of a whole address in ASCII (RFC 5321, 4.5.3.1.3, without the angle brackets).
pub const ADDRESS_BYTES_MAX: usize = 254;
/// Longest text that is parsed as a mailbox.
const TEXT_BYTES_MAX: usize = 2_048;
/// Deepest nesting of comments.
const COMMENT_DEPTH_MAX: usize = 8;

/// A mail address, with its display name if one was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mailbox {
    /// The display name.
    pub name: Option<String>,
    local: String,
    domain: String,
    domain_ascii: String,
}

/// The channels whose devices have mailboxes as addresses: those whose protocol is `smtp` in all applications that
/// define them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MailChannels(BTreeSet<Name>);

impl MailChannels {
    /// From channels and their protocols.
    pub fn of<'a>(channels: impl IntoIterator<Item = (&'a Name, &'a Name)>) -> MailChannels {
        let (mut mail, mut others) = (BTreeSet::new(), BTreeSet::new());
        for (channel, protocol) in channels {
            let known = if protocol.as_str() == "smtp" { &mut mail } else { &mut others };
            known.insert(channel.clone());
        }
        mail.retain(|channel| !others.contains(channel));
        MailChannels(mail)
    }

    /// The stored form of a device's address: trimmed, and a mailbox without its display name, angle brackets,
    /// comments and `mailto:`.
    ///
    /// # Errors
    /// The channel sends mail, and the address is not a mailbox.
    pub fn normalize(&self, channel: &Name, address: &str) -> Result<String, Problem> {
        if !self.0.contains(channel) {
            return Ok(address.trim().to_owned());
        }
        Mailbox::parse(address).map(|mailbox| mailbox.address()).map_err(|error| error.problem("address"))
    }
}

/// The problem of a text that is not a mailbox.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MailboxError {
    /// Nothing but white space.
    #[error("is empty")]
    Empty,
    /// More bytes than an address has.
    #[error("takes {0} bytes; a mail address has at most {ADDRESS_BYTES_MAX}")]
    TooLong(usize),
    /// No `@`.
    #[error("has no `@`")]
    NoAt,
    /// Several addresses, or none, in angle brackets; an unclosed comment or quotation.
    #[error("has not the form of one address: {0}")]
    Form(&'static str),
    /// An invalid part before the `@`.
    #[error("has a local part, before the `@`, that {0}")]
    Local(&'static str),
    /// An invalid part after the `@`.
    #[error("has a domain, behind the `@`, that {0}")]
    Domain(&'static str),
}

impl MailboxError {
    /// Converts it into a problem of the field at this path.
    pub fn problem(&self, path: &str) -> Problem {
        Problem::new(Code::InvalidFormat, path, format!("is not a mail address: it {self}"))
            .param("format", "mail_address")
            .hint(self.hint())
    }

    /// The hint.
    pub fn hint(&self) -> &'static str {
        "give one mail address, such as `ann@example.org`"
    }
}

impl Mailbox {
    /// Parses a mailbox.
    ///
    /// # Errors
    /// The problem of the text.
    pub fn parse(text: &str) -> Result<Mailbox, MailboxError> {
        let text = trim(text);
        match text.len() {
            0 => return Err(MailboxError::Empty),
            bytes if bytes > TEXT_BYTES_MAX => return Err(MailboxError::TooLong(bytes)),
            _ => {}
        }
        // Fast path: nearly all are plain, and there are many.
        if let Some(mailbox) = plain(text) {
            return Ok(mailbox);
        }
        let text = match text.get(..7) {
            Some(scheme) if scheme.eq_ignore_ascii_case("mailto:") => Cow::Owned(of_mailto(&text[7..])?),
            _ => Cow::Borrowed(text),
        };
        let text = without_comments(&text)?;
        let text = trim(&text);
        let (name, address) = match in_brackets(text)? {
            Some((name, address)) => (Some(name), address),
            None => (None, text),
        };
        let name = name.map(|name| unquoted(trim(name)).into_owned()).filter(|name| !name.is_empty());
        if name.as_ref().is_some_and(|name| name.contains(['\r', '\n', '\0'])) {
            return Err(MailboxError::Form("its display name has a line break or a NUL"));
        }
        let at = last_at(address).ok_or(MailboxError::NoAt)?;
        let (local, domain) = (address[..at].trim_end(), address[at + 1..].trim_start());
        let local = local_part(local)?;
        let domain = domain.strip_suffix('.').unwrap_or(domain);
        let domain_ascii = ascii_domain(domain)?;
        let bytes = local.len() + 1 + domain_ascii.len();
        if bytes > ADDRESS_BYTES_MAX {
            return Err(MailboxError::TooLong(bytes));
        }
        let domain = if domain.is_ascii() { domain.to_owned() } else { nfc(domain) };
        Ok(Mailbox { name, local, domain, domain_ascii })
    }

    /// `local@domain`, as it was given: letter case is kept, letters are composed (NFC).
    pub fn address(&self) -> String {
        format!("{}@{}", self.local, self.domain)
    }

    /// Wire form: the domain in A-labels, so that only the local part may need SMTPUTF8.
    pub fn on_wire(&self) -> String {
        format!("{}@{}", self.local, self.domain_ascii)
    }

    /// The part before the `@`.
    pub fn local(&self) -> &str {
        &self.local
    }

    /// The domain in A-labels.
    pub fn domain_ascii(&self) -> &str {
        &self.domain_ascii
    }

    /// The form for comparisons.
    pub fn canonical(&self) -> String {
        let local = match self.local.is_ascii() {
            true => self.local.to_ascii_lowercase(),
            false => nfc(&self.local.to_lowercase()),
        };
        format!("{local}@{}", self.domain_ascii.to_ascii_lowercase())
    }
}

/// The form for comparing addresses of unknown protocol: that of a mailbox if the text is one, else the trimmed text.
pub fn comparable(address: &str) -> Cow<'_, str> {
    match Mailbox::parse(address) {
        Ok(mailbox) => mailbox.canonical().into(),
        Err(_) => address.trim().into(),
    }
}

/// The same for an address pattern, in which `*` stands for any text.
pub fn comparable_pattern(pattern: &str) -> String {
    let pattern = trim(pattern);
    let Some((local, domain)) = pattern.rsplit_once('@') else { return pattern.to_lowercase() };
    let label = |label: &str| match label.contains('*') {
        true => label.to_lowercase(),
        false => idna::domain_to_ascii(label).unwrap_or_else(|_| label.to_lowercase()),
    };
    // Label separators of other scripts become a dot.
    let domain = domain.replace(['\u{3002}', '\u{ff0e}', '\u{ff61}'], ".");
    let domain = domain.split('.').map(label).collect::<Vec<_>>().join(".");
    format!("{}@{domain}", nfc(&local.to_lowercase()))
}

/// Whether two addresses of one channel are the same.
pub fn is_same(one: &str, other: &str) -> bool {
    one == other || comparable(one) == comparable(other)
}

/// A canonical mailbox with its domain in Unicode, if that differs; earlier versions compared this form.
pub fn unicode_form(canonical: &str) -> Option<String> {
    let (local, domain) = canonical.rsplit_once('@')?;
    let (unicode, read) = idna::domain_to_unicode(domain);
    (read.is_ok() && unicode != domain).then(|| format!("{local}@{unicode}"))
}

/// White space and zero-width characters, which come with copied text.
fn is_blank(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2060}' | '\u{feff}' | '\u{ad}' | '\u{180e}' | '\0')
}

fn trim(text: &str) -> &str {
    text.trim_matches(is_blank)
}

fn nfc(text: &str) -> String {
    ComposingNormalizerBorrowed::new_nfc().normalize(text).into_owned()
}

/// Whether an ASCII character needs no quotes in a local part (`atext` and the dot, RFC 5322, 3.2.3).
const fn is_local_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(byte, b'.' | b'!' | b'#'..=b'\'' | b'*' | b'+' | b'-' | b'/' | b'=' | b'?' | b'^'..=b'`' | b'{'..=b'~')
}

const fn is_label_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')
}

fn has_dots_well(local: &str) -> bool {
    !local.starts_with('.') && !local.ends_with('.') && !local.contains("..")
}

/// A bare ASCII address.
fn plain(text: &str) -> Option<Mailbox> {
    let (local, domain) = text.rsplit_once('@')?;
    let is_plain = text.len() <= ADDRESS_BYTES_MAX
        && (1..=LOCAL_BYTES_MAX).contains(&local.len())
        && local.bytes().all(is_local_byte)
        && has_dots_well(local)
        && domain.bytes().all(|byte| is_label_byte(byte) || byte == b'.')
        && are_labels(domain);
    // A-labels are checked on the general path.
    let has_a_label = domain.as_bytes().windows(4).any(|four| four.eq_ignore_ascii_case(b"xn--"));
    (is_plain && !has_a_label).then(|| Mailbox {
        name: None,
        local: local.to_owned(),
        domain: domain.to_owned(),
        domain_ascii: domain.to_owned(),
    })
}

fn are_labels(domain: &str) -> bool {
    domain.split('.').all(|label| (1..=63).contains(&label.len()) && !label.starts_with('-') && !label.ends_with('-'))
}

/// The address of a `mailto:` URI, which may be followed by header fields.
fn of_mailto(rest: &str) -> Result<String, MailboxError> {
    let address = rest.split(['?', '#']).next().unwrap_or_default();
    let bytes = percent::decoded(address.as_bytes())
        .ok_or(MailboxError::Form("a `%` in `mailto:` is followed by two hexadecimal digits"))?;
    String::from_utf8(bytes).map_err(|_| MailboxError::Form("`mailto:` holds bytes that are not UTF-8"))
}

/// Replaces each comment by a blank (RFC 5322, 3.2.2).
fn without_comments(text: &str) -> Result<Cow<'_, str>, MailboxError> {
    if !text.contains(['(', '"']) {
        return Ok(text.into());
    }
    let (mut out, mut depth, mut is_quoted, mut is_escaped) = (String::with_capacity(text.len()), 0, false, false);
    for c in text.chars() {
        if std::mem::take(&mut is_escaped) {
            if depth == 0 {
                out.push(c);
            }
            continue;
        }
        match c {
            '\\' if is_quoted || depth > 0 => {
                is_escaped = true;
                if depth == 0 {
                    out.push(c);
                }
            }
            '"' if depth == 0 => {
                is_quoted = !is_quoted;
                out.push(c);
            }
            '(' if !is_quoted => {
                depth += 1;
                if depth > COMMENT_DEPTH_MAX {
                    return Err(MailboxError::Form("its comments are nested too deeply"));
                }
            }
            ')' if !is_quoted && depth > 0 => {
                depth -= 1;
                out.push(' ');
            }
            _ if depth > 0 => {}
            c => out.push(c),
        }
    }
    if depth > 0 {
        return Err(MailboxError::Form("a comment has no end"));
    }
    if is_quoted {
        return Err(MailboxError::Form("a quotation has no end"));
    }
    Ok(out.into())
}

/// The display name, and the text in angle brackets after it.
fn in_brackets(text: &str) -> Result<Option<(&str, &str)>, MailboxError> {
    let mut is_quoted = false;
    let mut is_escaped = false;
    let mut open = None;
    for (at, c) in text.char_indices() {
        if std::mem::take(&mut is_escaped) {
            continue;
        }
        match c {
            '\\' if is_quoted => is_escaped = true,
            '"' => is_quoted = !is_quoted,
            '<' if !is_quoted && open.is_some() => return Err(MailboxError::Form("it has several `<`")),
            '<' if !is_quoted => open = Some(at),
            '>' if !is_quoted => {
                let Some(open) = open else { return Err(MailboxError::Form("a `>` has no `<`")) };
                if !trim(&text[at + 1..]).is_empty() {
                    return Err(MailboxError::Form("text follows the `>`"));
                }
                return Ok(Some((&text[..open], trim(&text[open + 1..at]))));
            }
            _ => {}
        }
    }
    match open {
        Some(_) => Err(MailboxError::Form("a `<` has no `>`")),
        None => Ok(None),
    }
}

/// A text without the quotes around it.
fn unquoted(text: &str) -> Cow<'_, str> {
    let Some(inner) = text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) else { return text.into() };
    if !inner.contains('\\') {
        return inner.into();
    }
    let mut chars = inner.chars();
    let mut out = String::with_capacity(inner.len());
    while let Some(c) = chars.next() {
        out.extend(if c == '\\' { chars.next() } else { Some(c) });
    }
    out.into()
}

/// The `@` before the domain: the last one.
fn last_at(address: &str) -> Option<usize> {
    address.rfind('@')
}

/// A local part in NFC, without unnecessary quotes. One that needs quotes is refused: it is a means of injection, and
/// SMTP channels do not send to it.
fn local_part(text: &str) -> Result<String, MailboxError> {
    let text = unquoted(text);
    let wrong = |what| Err(MailboxError::Local(what));
    let local = if text.is_ascii() { text.into_owned() } else { nfc(&text) };
    match local.len() {
        0 => return wrong("is empty"),
        bytes if bytes > LOCAL_BYTES_MAX => return wrong("takes more than 64 bytes"),
        _ => {}
    }
    if local.contains([',', ';']) {
        return Err(MailboxError::Form("it lists several"));
    }
    if local.contains('@') {
        return wrong("holds a second `@`");
    }
    let fits = |c: char| match u8::try_from(c) {
        Ok(byte) if byte.is_ascii() => is_local_byte(byte),
        _ => !c.is_control() && !is_blank(c) && !is_invisible(c),
    };
    if !local.chars().all(fits) {
        return wrong("holds a blank, or a character that needs quotes or cannot be seen");
    }
    if !has_dots_well(&local) {
        return wrong("begins or ends with a dot, or has two in a row");
    }
    Ok(local)
}

/// Line separators and bidirectional controls.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2061}'..='\u{206f}' | '\u{fff9}'..='\u{fffb}')
}

/// A domain in A-labels, or an address literal.
fn ascii_domain(domain: &str) -> Result<String, MailboxError> {
    let wrong = |what| Err(MailboxError::Domain(what));
    if domain.is_empty() {
        return wrong("is empty");
    }
    if let Some(literal) = domain.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        let is_address = match literal.get(..5) {
            Some(tag) if tag.eq_ignore_ascii_case("IPv6:") => literal[5..].parse::<Ipv6Addr>().is_ok(),
            _ => literal.parse::<Ipv4Addr>().is_ok(),
        };
        return if is_address { Ok(domain.to_owned()) } else { wrong("is not an IPv4 address or `IPv6:` address") };
    }
    let fits = |c: char| match u8::try_from(c) {
        Ok(byte) if byte.is_ascii() => is_label_byte(byte) || byte == b'.',
        // Joiners are letters of some scripts; IDNA defines where.
        _ => matches!(c, '\u{200c}' | '\u{200d}') || (!c.is_control() && !is_blank(c) && !is_invisible(c)),
    };
    if !domain.chars().all(fits) {
        return wrong("holds a character that no host name has");
    }
    let Ok(ascii) = idna::domain_to_ascii(domain) else {
        return wrong("is not an internationalized host name (UTS 46)");
    };
    let ascii = ascii.strip_suffix('.').unwrap_or(&ascii);
    // The mapped ASCII form must be valid as well.
    if !are_labels(ascii) || !ascii.bytes().all(|byte| is_label_byte(byte) || byte == b'.') {
        return wrong("has a label that is empty, longer than 63 bytes, or begins or ends with `-`");
    }
    if ascii.len() > DOMAIN_BYTES_MAX {
        return wrong("takes more than 255 bytes");
    }
    Ok(ascii.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: Result<&str, &str>) {
        let found = Mailbox::parse(text).map(|mailbox| mailbox.address()).map_err(|error| error.to_string());
        match expected {
            Ok(address) => assert_eq!(found.as_deref(), Ok(address), "{text:?}"),
            Err(part) => assert!(found.as_ref().is_err_and(|text| text.contains(part)), "{text:?}: {found:?}"),
        }
    }

    #[test]
    fn addresses_are_read_in_all_their_forms() {
        for text in [
            "bob@example.org",
            "bob@example.org ",
            " bob@example.org",
            "\tbob@example.org\r\n",
            "\u{a0}bob@example.org\u{a0}",
            "\u{feff}bob@example.org\u{200b}",
            "<bob@example.org>",
            "< bob@example.org >",
            "Bob <bob@example.org>",
            "Bob<bob@example.org>",
            "\"Bob <x>, B.\" <bob@example.org>",
            "\"Bob \\\" B\" <bob@example.org>",
            "Bob (home) <bob@example.org> (work)",
            "bob@example.org (Bob (the second))",
            "(a)bob(b)@(c)example.org(d)",
            "mailto:bob@example.org",
            "MAILTO:bob%40example.org?subject=x%20y",
            "mailto:bob@example.org?cc=a@b.example",
            "<mailto:bob@example.org>".trim_matches(['<', '>']),
            "\"bob\"@example.org",
            "bob@example.org.",
            "bob @ example.org",
        ] {
            check(text, Ok("bob@example.org"));
        }
        for text in
            ["a@b", "a.b+c@Example.org", "x'y@sub.example.org", "a@[127.0.0.1]", "a@[IPv6:::1]", "ü@exämple.org"]
        {
            check(text, Ok(text));
        }
        assert_eq!(Mailbox::parse("\"Bell, A.\" <a@b.example>").expect("one").name.as_deref(), Some("Bell, A."));
    }

    #[test]
    fn invalid_mailboxes_are_refused_with_a_reason() {
        let long = format!("{}@example.org", "a".repeat(65));
        let long_label = format!("a@{}.org", "b".repeat(64));
        let long_domain = format!("a@{}org", "b".repeat(60).add_dots(5));
        for (text, reason) in [
            ("", "empty"),
            ("\u{200b} ", "empty"),
            ("bob", "no `@`"),
            ("bob@", "domain"),
            ("@example.org", "local"),
            ("bob\u{ff20}example.org", "no `@`"),
            ("bob@example..org", "label"),
            ("bob@.example.org", "label"),
            ("bob@-example.org", "label"),
            ("bob@example-.org", "label"),
            ("bob@exa mple.org", "character"),
            ("bo b@example.org", "blank"),
            ("bo\tb@example.org", "blank"),
            ("bo\nb@example.org", "blank"),
            ("bo\u{200b}b@example.org", "blank"),
            ("bob@exam\u{200b}ple.org", "character"),
            ("bob@exam\u{a0}ple.org", "character"),
            ("a@\u{202e}b", "character"),
            ("\u{202e}a@b", "blank"),
            (".bob@example.org", "dot"),
            ("bob.@example.org", "dot"),
            ("bo..b@example.org", "dot"),
            ("bob@x@example.org", "second"),
            ("\"bob smith\"@example.org", "quotes"),
            ("bob@example.org, ann@example.org", "lists several"),
            ("bob@example.org;ann@example.org", "lists several"),
            ("<bob@example.org> <ann@example.org>", "text follows"),
            ("<bob@example.org", "no `>`"),
            ("bob@example.org>", "no `<`"),
            ("bob@example.org (", "no end"),
            ("\"bob@example.org", "no end"),
            ("bob@b\r\nRCPT TO:<x@y>", "line break"),
            ("bob@[300.0.0.1]", "IPv4"),
            ("bob@xn--a", "internationalized"),
            ("mailto:", "no `@`"),
            ("mailto:bob%4", "hexadecimal"),
            (&long, "64"),
            (&long_label, "label"),
            (&long_domain, "bytes"),
        ] {
            check(text, Err(reason));
        }
    }

    trait Dots {
        fn add_dots(&self, times: usize) -> String;
    }

    impl Dots for String {
        fn add_dots(&self, times: usize) -> String {
            format!("{self}.").repeat(times)
        }
    }

    #[test]
    fn one_mailbox_is_one_however_it_is_spelled() {
        let same = |one: &str, other: &str| {
            let canonical =
                |text: &str| Mailbox::parse(text).unwrap_or_else(|error| panic!("{text}: {error}")).canonical();
            assert_eq!(canonical(one), canonical(other), "{one} {other}");
        };
        same("a@müller.example", "a@xn--mller-kva.example");
        same("a@MÜLLER.example", "A@XN--MLLER-KVA.EXAMPLE");
        same("a@mu\u{308}ller.example", "a@müller.example");
        same("a@straße.example", "a@xn--strae-oqa.example");
        same("a@日本語。jp", "a@日本語.jp");
        same("a@日本語｡jp", "a@xn--wgv71a119e.jp");
        same("a@ｅｘａｍｐｌｅ.org", "a@example.org");
        same("jose\u{301}@example.org", "JOSÉ@example.org");
        same("<i@example.org>", "i@example.org");
        same("i@example.org.", "I@Example.ORG");
        same("\"i\"@example.org", "i@example.org");
        let differ = |one: &str, other: &str| assert!(!is_same(one, other), "{one} {other}");
        differ("a@straße.example", "a@strasse.example");
        differ("a+b@example.org", "a@example.org");
        differ("a.b@example.org", "ab@example.org");
        assert!(is_same("https://x.example/A", " https://x.example/A "));
        differ("https://x.example/A", "https://x.example/a");
        assert_eq!(unicode_form("a@xn--mller-kva.example").as_deref(), Some("a@müller.example"));
        assert_eq!(unicode_form("a@b.example"), None);
        assert_eq!(comparable_pattern("*@Müller.example"), "*@xn--mller-kva.example");
        assert_eq!(comparable_pattern("meter-*@*.日本語。jp"), "meter-*@*.xn--wgv71a119e.jp");
        assert_eq!(comparable_pattern("*"), "*");
        assert_eq!(Mailbox::parse("a@müller.example").expect("one").on_wire(), "a@xn--mller-kva.example");
    }
}
