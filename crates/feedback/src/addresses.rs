//! Addresses in fields and texts of reports.

use std::sync::LazyLock;

use regex::Regex;
use tocsin_model::mailbox::Mailbox;

/// An address in running text.
static ADDRESS: LazyLock<Regex> = LazyLock::new(|| {
    let local = r#"(?:"[^"\s@<>]{1,62}"|[^\s@<>()\[\]"',;:=|\\{}]{1,64})"#;
    let label = r"[\p{L}\p{N}](?:[\p{L}\p{N}_-]*[\p{L}\p{N}])?";
    Regex::new(&format!(r"{local}@(?:{label}\.)*{label}")).expect("a pattern of this file")
});
/// The path of a URL.
static URL: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"(https?://[^/\s>]*)[^\s>]*").expect("a pattern"));

/// The positions and texts of the addresses in a text.
pub(crate) fn find(text: &str) -> impl Iterator<Item = (usize, &str)> {
    ADDRESS.find_iter(text).map(|found| (found.start(), found.as_str()))
}

/// Replaces addresses by `@` and removes the paths of URLs: neither may contain a phrase of the tables.
pub(crate) fn without_addresses(text: &str) -> String {
    let text = URL.replace_all(text, "$1");
    ADDRESS.replace_all(&text, "@").replace("<@>", "@")
}

/// The mailbox of a field such as `rfc822; <ann@example.org>` or `utf-8; \x{E4}nn@example.org` (RFC 3464, 6533).
pub(crate) fn of_field(value: &str) -> Option<Mailbox> {
    let (kind, address) = match value.split_once(';') {
        Some((kind, address)) => (kind.trim().to_ascii_lowercase(), address),
        None => (String::new(), value),
    };
    let address = address.trim();
    let address = match kind.as_str() {
        "utf-8" => unescaped(address),
        _ => address.to_owned(),
    };
    parse(&address).or_else(|| find(&address).find_map(|(_, found)| parse(found)))
}

/// A mailbox in angle brackets or without.
pub(crate) fn parse(text: &str) -> Option<Mailbox> {
    let mut mailbox = Mailbox::parse(text.trim().trim_matches(['<', '>', ':', ',', ';'])).ok()?;
    mailbox.name = None;
    Some(mailbox)
}

/// Decodes `\x{E4}` (RFC 6533, utf-8-addr-xtext and utf-8-addr-unitext).
fn unescaped(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("\\x{") {
        out.push_str(&rest[..at]);
        let after = &rest[at + 3..];
        let decoded = after.split_once('}').and_then(|(digits, after)| {
            let c = u32::from_str_radix(digits, 16).ok().and_then(char::from_u32)?;
            Some((c, after))
        });
        match decoded {
            Some((c, after)) => {
                out.push(c);
                rest = after;
            }
            None => {
                out.push_str("\\x{");
                rest = after;
            }
        }
    }
    out + rest
}

/// Whether two mailboxes are the same.
pub(crate) fn is_same(one: &Mailbox, other: &Mailbox) -> bool {
    one.canonical() == other.canonical()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_reports_are_mailboxes() {
        for (value, expected) in [
            ("rfc822; ann@example.org", Some("ann@example.org")),
            ("RFC822;<ann@example.org>", Some("ann@example.org")),
            ("ann@example.org", Some("ann@example.org")),
            ("utf-8; \\x{E4}nn@b\\x{FC}cher.example", Some("änn@xn--bcher-kva.example")),
            ("utf-8; änn@bücher.example", Some("änn@xn--bcher-kva.example")),
            ("utf-8; \\x{110000}nn@example.org", Some("nn@example.org")),
            ("X400; c=us", None),
            ("", None),
        ] {
            assert_eq!(of_field(value).map(|mailbox| mailbox.on_wire()).as_deref(), expected, "{value}");
        }
        let same = [parse("Ann@BÜCHER.example"), parse("ann@xn--bcher-kva.example")].map(|one| one.expect("a mailbox"));
        assert!(is_same(&same[0], &same[1]));
    }

    #[test]
    fn phrases_in_addresses_and_paths_are_removed() {
        let text = "550 <user.unknown@spam.example> see https://a.example/mailbox-full?x#y now";
        assert_eq!(without_addresses(text), "550 @ see https://a.example now");
    }
}
