//! Detects credentials that a server repeats in its answer. Answers go into logs, receipts and traces; credentials
//! must not.

use base64::{Engine, prelude::BASE64_STANDARD};

/// Mask of a secret, as in displayed definitions.
const MASK: &str = "***";
/// Shorter values are not secrets and occur in many texts.
const SECRET_BYTES_MIN: usize = 6;
/// Header fields of a request that contain no secrets.
const HARMLESS: [&str; 16] = [
    "accept",
    "accept-encoding",
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "host",
    "idempotency-key",
    "ttl",
    "topic",
    "traceparent",
    "tracestate",
    "urgency",
    "user-agent",
    "webhook-id",
    "webhook-timestamp",
];

/// Replaces these secrets in a text by the mask.
pub(crate) fn mask<'s>(text: &str, secrets: impl IntoIterator<Item = &'s str>) -> String {
    let mut secrets: Vec<&str> = secrets.into_iter().filter(|secret| secret.len() >= SECRET_BYTES_MIN).collect();
    // A secret that contains another one goes first.
    secrets.sort_unstable_by_key(|secret| std::cmp::Reverse(secret.len()));
    secrets.iter().fold(text.to_owned(), |text, secret| match text.contains(secret) {
        true => text.replace(secret, MASK),
        false => text,
    })
}

/// Credentials of an HTTP request that this text repeats: header values without their scheme, the password of basic
/// authentication, and query values. The beginning of a secret at the end of the text counts, too.
pub(crate) fn repeated(request: &[u8], text: &str) -> Vec<String> {
    let end = request.windows(4).position(|bytes| bytes == b"\r\n\r\n").unwrap_or(request.len());
    let Ok(head) = std::str::from_utf8(&request[..end]) else { return Vec::new() };
    let mut lines = head.split("\r\n");
    let target = lines.next().and_then(|line| line.split(' ').nth(1)).unwrap_or_default();
    let query = target.split_once('?').map_or("", |(_, query)| query);
    let in_query = query.split('&').filter_map(|pair| pair.split_once('=')).map(|(_, value)| value.to_owned());
    let fields = lines.filter_map(|line| line.split_once(':'));
    let fields = fields.filter(|(name, _)| !HARMLESS.iter().any(|known| name.eq_ignore_ascii_case(known)));
    let in_fields = fields.flat_map(|(_, value)| {
        let value = value.trim();
        let credential = value.split_once(' ').map_or(value, |(_, credential)| credential);
        let decoded = BASE64_STANDARD.decode(credential).ok().and_then(|bytes| String::from_utf8(bytes).ok());
        let password = decoded.as_deref().and_then(|pair| Some(pair.split_once(':')?.1.to_owned()));
        [Some(credential.to_owned()), password].into_iter().flatten()
    });
    in_query.chain(in_fields).flat_map(|secret| found_in(secret, text)).collect()
}

/// The secret if the text contains it, or its beginning if the text ends with that.
fn found_in(secret: String, text: &str) -> Option<String> {
    if secret.len() < SECRET_BYTES_MIN {
        return None;
    }
    if text.contains(&secret) {
        return Some(secret);
    }
    let beginnings = (SECRET_BYTES_MIN..secret.len()).rev().filter(|end| secret.is_char_boundary(*end));
    beginnings.map(|end| &secret[..end]).find(|beginning| text.ends_with(beginning)).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn i4_credentials_that_are_repeated_are_found_and_masked() {
        let basic = BASE64_STANDARD.encode("user:a long password");
        let request = format!(
            "POST /x?key=query-secret&a=b HTTP/1.1\r\nhost: far.example\r\nauthorization: Basic {basic}\r\nx-api-key: of-the-header\r\n\
             content-type: application/json\r\n\r\n{{\"not\": \"a secret of the head\"}}"
        );
        let shown = |text: &str| mask(text, repeated(request.as_bytes(), text).iter().map(String::as_str));
        assert_eq!(shown("no of-the-header"), "no ***");
        assert_eq!(shown(&format!("no {basic} for you")), "no *** for you");
        assert_eq!(shown("wrong: user:a long password"), "wrong: user:***");
        assert_eq!(shown("/x?key=query-secret"), "/x?key=***");
        assert_eq!(shown("cut off-the of-the-he"), "cut off-the ***");
        for harmless in ["far.example", "application/json", "a secret of the head", "", "b"] {
            assert_eq!(shown(harmless), harmless);
        }
    }

    #[test]
    fn short_values_stand_in_many_texts() {
        assert_eq!(mask("a b c", ["b", ""]), "a b c");
        assert_eq!(mask("abcdefgh abcdef", ["abcdef", "abcdefgh"]), "*** ***");
    }
}
