//! Repairs non-standard headers before the library parses them.
//!
//! - Adjacent encoded words are joined (RFC 2047, section 6.2 ignores the white space between them). Some senders split
//!   words within a character, so that the words cannot be decoded separately.
//! - A line that is not UTF-8 is decoded as windows-1252, the usual encoding of such mail.

use std::borrow::Cow;

use base64::{
    Engine,
    alphabet::STANDARD,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig, general_purpose},
};
use encoding_rs::WINDOWS_1252;

/// Longest header that is repaired; a longer one is parsed unchanged.
const HEAD_BYTES_MAX: usize = 256 << 10;

/// Base64 with or without padding.
const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

/// A mail or part with its header repaired.
pub(super) fn repair_header(part: &[u8]) -> Cow<'_, [u8]> {
    let head = &part[..part.len() - body_of(part).len()];
    let is_plain = head.is_ascii() && !head.windows(2).any(|two| two == b"=?");
    if is_plain || head.len() > HEAD_BYTES_MAX {
        return Cow::Borrowed(part);
    }
    let mut text = String::with_capacity(head.len());
    for line in head.split_inclusive(|byte| *byte == b'\n') {
        match std::str::from_utf8(line) {
            Ok(line) => text.push_str(line),
            Err(_) => text.push_str(&WINDOWS_1252.decode_without_bom_handling(line).0),
        }
    }
    let mut whole = joined(&text).into_bytes();
    whole.extend_from_slice(&part[head.len()..]);
    Cow::Owned(whole)
}

/// The bytes after the first empty line.
pub(super) fn body_of(part: &[u8]) -> &[u8] {
    let mut rest = part;
    while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
        let (line, after) = rest.split_at(end + 1);
        rest = after;
        if line.trim_ascii().is_empty() {
            return rest;
        }
    }
    b""
}

/// An encoded word of RFC 2047.
#[derive(Debug, Clone, Copy)]
struct Word<'a> {
    charset: &'a str,
    is_base64: bool,
    text: &'a str,
}

/// The encoded word at the start of a text, and its length.
fn word_at(text: &str) -> Option<(Word<'_>, usize)> {
    let rest = text.strip_prefix("=?")?;
    let mut parts = rest.splitn(3, '?');
    let (charset, encoding, rest) = (parts.next()?, parts.next()?, parts.next()?);
    let is_base64 = match encoding {
        "B" | "b" => true,
        "Q" | "q" => false,
        _ => return None,
    };
    let end = rest.find("?=")?;
    let inner = &rest[..end];
    let is_word = !charset.is_empty() && !charset.contains(char::is_whitespace) && !inner.contains(['?', '\r', '\n']);
    // A language after the charset (RFC 2231) is not part of its name.
    let charset = charset.split('*').next().unwrap_or(charset);
    is_word.then(|| (Word { charset, is_base64, text: inner }, text.len() - rest.len() + end + 2))
}

/// Joins adjacent words of one charset and encoding.
fn joined(head: &str) -> String {
    let mut out = String::with_capacity(head.len());
    let mut rest = head;
    while let Some(at) = rest.find("=?") {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let Some((first, length)) = word_at(rest) else {
            out.push_str("=?");
            rest = &rest[2..];
            continue;
        };
        let (mut run, mut after) = (vec![first], &rest[length..]);
        loop {
            let next = after.trim_start_matches([' ', '\t', '\r', '\n']);
            // After a line break the next header begins, unless the line starts with white space (folding).
            let gap = &after[..after.len() - next.len()];
            let is_within = !gap.ends_with('\n');
            match word_at(next).filter(|_| is_within) {
                Some((word, length)) if is_same_kind(&first, &word) => {
                    run.push(word);
                    after = &next[length..];
                }
                _ => break,
            }
        }
        match run.len() {
            1 => out.push_str(&rest[..length]),
            _ => out.push_str(&one_word(&run).unwrap_or_else(|| rest[..rest.len() - after.len()].to_owned())),
        }
        rest = after;
    }
    out.push_str(rest);
    out
}

fn is_same_kind(word: &Word, other: &Word) -> bool {
    word.charset.eq_ignore_ascii_case(other.charset) && word.is_base64 == other.is_base64
}

/// Several words as one; `None` if one of them is not valid Base64.
fn one_word(run: &[Word]) -> Option<String> {
    let first = run.first()?;
    if !first.is_base64 {
        let text: String = run.iter().map(|word| word.text).collect();
        return Some(format!("=?{}?Q?{text}?=", first.charset));
    }
    let mut bytes = Vec::new();
    for word in run {
        bytes.extend(LENIENT.decode(word.text.trim()).ok()?);
    }
    Some(format!("=?{}?B?{}?=", first.charset, general_purpose::STANDARD.encode(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(head: &str, expected: &str) {
        let mail = format!("{head}\r\n\r\nbody =?utf-8?Q?a?= =?utf-8?Q?b?=");
        let right = String::from_utf8(repair_header(mail.as_bytes()).into_owned()).expect("text");
        assert_eq!(right, format!("{expected}\r\n\r\nbody =?utf-8?Q?a?= =?utf-8?Q?b?="));
    }

    #[test]
    fn d_adjacent_encoded_words_are_joined() {
        check("Subject: =?utf-8?Q?St=C3?=\r\n =?utf-8?Q?=A4rke?= 5", "Subject: =?utf-8?Q?St=C3=A4rke?= 5");
        check("Subject: =?UTF-8?B?U3TD?= =?utf-8?b?pHJrZQ==?=", "Subject: =?UTF-8?B?U3TDpHJrZQ==?=");
        check("Subject: =?utf-8?B?U3TD?= =?utf-8?Q?=A4?=", "Subject: =?utf-8?B?U3TD?= =?utf-8?Q?=A4?=");
        check("Subject: =?utf-8?Q?a?= and =?utf-8?Q?b?=", "Subject: =?utf-8?Q?a?= and =?utf-8?Q?b?=");
        check(
            "Subject: =?utf-8?Q?a?=\r\nFrom: =?utf-8?Q?b?= <b@x>",
            "Subject: =?utf-8?Q?a?=\r\nFrom: =?utf-8?Q?b?= <b@x>",
        );
        check("Subject: =?utf-8*en?Q?a?= =?utf-8?Q?b?=", "Subject: =?utf-8?Q?ab?=");
        check("Subject: =? =?x =?utf-8?Z?a?= =?utf-8?Q?a b", "Subject: =? =?x =?utf-8?Z?a?= =?utf-8?Q?a b");
    }

    #[test]
    fn d_bytes_that_are_not_utf_8_are_windows_1252() {
        let mail = b"Subject: gr\xfc\xdfe \x80\r\nX-Other: gr\xc3\xbc\xc3\x9fe\r\n\r\n\xfc";
        assert_eq!(
            *repair_header(mail),
            *"Subject: grüße €\r\nX-Other: grüße\r\n\r\n".bytes().chain([0xfc]).collect::<Vec<_>>()
        );
    }
}
