//! Mail addresses of senders and recipients.

use std::borrow::Cow;

use mail_builder::headers::address::Address;
use tocsin_model::mailbox;

use super::header::{clean, is_invisible};

/// A mail address with its display name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mailbox {
    pub name: Option<String>,
    pub address: String,
}

impl Mailbox {
    /// Parses `name@domain` or `Shown Name <name@domain>`.
    pub fn parse(text: &str) -> Option<Mailbox> {
        let Ok(found) = mailbox::Mailbox::parse(text) else { return Mailbox::parse_loosely(text) };
        // Some programs decode encoded words even within quotes.
        let name = found.name.as_deref().map(|name| clean(name).replace("=?", "= ?"));
        Some(Mailbox { name: name.filter(|name| !name.is_empty()), address: found.address() })
    }

    /// Parses senders as earlier versions did, with quotes anywhere in the name.
    fn parse_loosely(text: &str) -> Option<Mailbox> {
        let text = text.trim();
        let (name, address) = match text.strip_suffix('>') {
            Some(rest) => {
                let (name, address) = rest.rsplit_once('<')?;
                // Some programs decode encoded words even within quotes.
                let name = clean(name.trim().trim_matches('"')).replace("=?", "= ?");
                (Some(name).filter(|name| !name.is_empty()), address)
            }
            None => (None, text),
        };
        is_address(address).then(|| Mailbox { name, address: address.to_owned() })
    }

    /// The mailbox with its address in wire form.
    pub fn on_wire(self) -> Mailbox {
        Mailbox { address: on_wire(&self.address).into_owned(), name: self.name }
    }

    pub fn domain(&self) -> &str {
        self.address.rsplit_once('@').map_or("localhost", |(_, domain)| domain)
    }

    /// As the value of a header field.
    pub fn header(&self) -> Address<'_> {
        Address::new_address(self.name.as_deref(), self.address.as_str())
    }
}

/// Parts of an address in which an ASCII letter may occur.
const SIDES: [u8; 128] = {
    let (mut sides, mut at) = ([0; 128], 0);
    while at < 128 {
        sides[at] = match at as u8 {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => LOCAL | LABEL,
            b'.' | b'!' | b'#'..=b'\'' | b'*' | b'+' | b'/' | b'=' | b'?' | b'^' | b'`' | b'{'..=b'~' => LOCAL,
            _ => 0,
        };
        at += 1;
    }
    sides
};
/// The local part.
const LOCAL: u8 = 1;
/// A label of the domain.
const LABEL: u8 = 2;

/// Whether this is a mail address (RFC 5321, 4.1.2, with the characters of RFC 6531). Quoted local parts are refused:
/// they are unused in practice and a means of injection.
pub(super) fn is_address(text: &str) -> bool {
    let Some(at) = text.bytes().rposition(|byte| byte == b'@') else { return false };
    let (local, domain) = (&text[..at], &text[at + 1..]);
    let wide = |c: char| !c.is_control() && !c.is_whitespace() && !is_invisible(c);
    // Fast path: nearly all are ASCII, and a multicast has many.
    let fits = |part: &str, side: u8| match part.is_ascii() {
        true => part.bytes().all(|byte| SIDES[usize::from(byte)] & side != 0),
        false => part.chars().all(|c| SIDES.get(c as usize).map_or_else(|| wide(c), |sides| sides & side != 0)),
    };
    let local_fits = fits(local, LOCAL);
    let literal = domain.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let domain_fits = match literal {
        Some(address) => !address.is_empty() && address.chars().all(|c| c.is_ascii_hexdigit() || ".:IPv".contains(c)),
        None => domain
            .split('.')
            .all(|label| (1..=63).contains(&label.len()) && !label.starts_with('-') && fits(label, LABEL)),
    };
    (1..=64).contains(&local.len()) && (1..=255).contains(&domain.len()) && local_fits && domain_fits
}

/// Whether this is a mail address, also in a form that earlier versions stored: with blanks around it, a display name
/// or `mailto:`.
pub(super) fn is_mailbox(text: &str) -> bool {
    is_address(text) || mailbox::Mailbox::parse(text).is_ok()
}

/// Wire form of an address: its domain in ASCII (RFC 5890), so that only the local part may need SMTPUTF8.
pub(super) fn on_wire(address: &str) -> Cow<'_, str> {
    if address.is_ascii() && is_address(address) {
        return address.into();
    }
    mailbox::Mailbox::parse(address).map_or_else(|_| address.into(), |found| found.on_wire().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        for good in
            ["a@b", "a.b+c@example.org", "ü@exämple.org", "a@[127.0.0.1]", "a@[IPv6:::1]", "x'y@sub.example.org"]
        {
            assert!(is_address(good), "{good}");
        }
        let long = format!("{}@example.org", "a".repeat(65));
        for bad in [
            "",
            "a",
            "@b",
            "a@",
            "a b@c",
            "a@b c",
            "a@b\r\nRCPT TO:<x@y>",
            "<a@b>",
            "a@b>",
            "a@b..c",
            "a@b.",
            "a@.b",
            "a@-b",
            "a@b.-c",
            "a(b@c",
            "a@b+c",
            "a\u{7f}@b",
            "\"a\"@b",
            "a@b\0",
            "a,b@c",
            "a@\u{202e}b",
            &long,
        ] {
            assert!(!is_address(bad), "{bad:?}");
        }
        let named = Mailbox::parse("\"Tocsin, bells\" <a@b.example>").expect("a mailbox");
        assert_eq!((named.name.as_deref(), named.domain()), (Some("Tocsin, bells"), "b.example"));
        assert_eq!(Mailbox::parse("a@b"), Some(Mailbox { name: None, address: "a@b".into() }));
        assert_eq!(Mailbox::parse("x <a b@c>"), None);
        let name = Mailbox::parse("=?utf-8?q?x?= <a@b.example>").and_then(|mailbox| mailbox.name);
        assert_eq!(name.as_deref(), Some("= ?utf-8?q?x?="));
    }
}
