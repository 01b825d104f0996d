//! Mail parser for display: decoded headers, and text and HTML parts.
//!
//! Covers everyday mail of RFC 5322 and 2045-2047; anything unparsable is shown unchanged.

use base64::{
    Engine,
    alphabet::STANDARD,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};

/// Maximum nesting depth of parts.
const DEPTH_MAX: usize = 8;

/// Maximum number of parts shown.
const PARTS_MAX: usize = 100;

const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

/// Parsed mail.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ParsedMail {
    /// Headers in order, unfolded and decoded.
    pub headers: Vec<(String, String)>,
    /// Text parts.
    pub parts: Vec<Part>,
}

/// Text part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// Media type, such as `text/html`.
    pub kind: String,
    /// Decoded text.
    pub text: String,
}

impl ParsedMail {
    /// Parses a mail. Never fails.
    pub fn read(bytes: &[u8]) -> Self {
        let (headers, body) = split(bytes);
        let mut parts = Vec::new();
        collect(&headers, body, 0, &mut parts);
        let headers = headers.into_iter().map(|(name, value)| (name, decode_words(&value))).collect();
        ParsedMail { headers, parts }
    }

    /// First header with this name.
    pub fn header(&self, name: &str) -> Option<&str> {
        find(&self.headers, name)
    }

    /// First part with this media type.
    pub fn part(&self, kind: &str) -> Option<&str> {
        self.parts.iter().find(|part| part.kind == kind).map(|part| part.text.as_str())
    }
}

type Headers = Vec<(String, String)>;

fn find<'a>(headers: &'a Headers, name: &str) -> Option<&'a str> {
    headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
}

/// Splits into unfolded headers and the body.
fn split(bytes: &[u8]) -> (Headers, &[u8]) {
    let mut headers: Headers = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let end = rest.iter().position(|byte| *byte == b'\n').map_or(rest.len(), |at| at + 1);
        let (line, after) = rest.split_at(end);
        rest = after;
        let line = String::from_utf8_lossy(line);
        let line = line.trim_end_matches(['\r', '\n']);
        if line.is_empty() {
            break;
        }
        match (line.starts_with([' ', '\t']), line.split_once(':')) {
            (true, _) => {
                if let Some((_, value)) = headers.last_mut() {
                    value.push(' ');
                    value.push_str(line.trim());
                }
            }
            (false, Some((name, value))) => headers.push((name.trim().to_owned(), value.trim().to_owned())),
            (false, None) => {}
        }
    }
    (headers, rest)
}

fn collect(headers: &Headers, body: &[u8], depth: usize, parts: &mut Vec<Part>) {
    let content_type = find(headers, "content-type").unwrap_or("text/plain");
    let kind = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if let Some(boundary) = parameter(content_type, "boundary").filter(|_| kind.starts_with("multipart/")) {
        if depth < DEPTH_MAX {
            for part in pieces(body, &boundary) {
                let (headers, body) = split(part);
                collect(&headers, body, depth + 1, parts);
            }
        }
    } else if kind.starts_with("text/") && parts.len() < PARTS_MAX {
        let encoding = find(headers, "content-transfer-encoding").unwrap_or_default().to_ascii_lowercase();
        let bytes = match encoding.as_str() {
            "quoted-printable" => decode_quoted(body, false),
            "base64" => decode_base64(body),
            _ => body.to_vec(),
        };
        parts.push(Part { kind, text: text(&bytes, &parameter(content_type, "charset").unwrap_or_default()) });
    }
}

/// Value of a header parameter `name=value` or `name="value"`.
fn parameter(header: &str, name: &str) -> Option<String> {
    let value = header.split(';').skip(1).find_map(|part| {
        let (known, value) = part.split_once('=')?;
        known.trim().eq_ignore_ascii_case(name).then(|| value.trim())
    })?;
    Some(value.trim_matches('"').to_owned())
}

/// Parts between the delimiters of a multipart body (RFC 2046, section 5.1.1).
fn pieces<'a>(body: &'a [u8], boundary: &str) -> Vec<&'a [u8]> {
    let delimiter = format!("--{boundary}").into_bytes();
    let mut pieces = Vec::new();
    let (mut start, mut at) = (None, 0);
    while at < body.len() && pieces.len() < PARTS_MAX {
        let end = body[at..].iter().position(|byte| *byte == b'\n').map_or(body.len(), |length| at + length + 1);
        let line = body[at..end].trim_ascii_end();
        if let Some(rest) = line.strip_prefix(delimiter.as_slice())
            && (rest.is_empty() || rest == b"--")
        {
            if let Some(start) = start {
                // The line break before the delimiter is part of it.
                let piece: &[u8] = &body[start..at];
                pieces.push(piece.strip_suffix(b"\r\n").or(piece.strip_suffix(b"\n")).unwrap_or(piece));
            }
            start = rest.is_empty().then_some(end);
        }
        at = end;
    }
    pieces
}

fn text(bytes: &[u8], charset: &str) -> String {
    match charset.to_ascii_lowercase().as_str() {
        "iso-8859-1" | "latin1" => bytes.iter().map(|byte| char::from(*byte)).collect(),
        _ => String::from_utf8_lossy(bytes).into_owned(),
    }
}

fn decode_base64(bytes: &[u8]) -> Vec<u8> {
    let dense: Vec<u8> = bytes.iter().copied().filter(|byte| !byte.is_ascii_whitespace()).collect();
    BASE64.decode(&dense).unwrap_or(dense)
}

/// Decodes quoted-printable (RFC 2045, section 6.7); `words` selects the `Q` encoding of headers, where `_` is a space.
fn decode_quoted(bytes: &[u8], words: bool) -> Vec<u8> {
    let hex = |byte: u8| char::from(byte).to_digit(16);
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at..] {
            [b'=', b'\r', b'\n', ..] => at += 3,
            [b'=', b'\n', ..] => at += 2,
            [b'=', high, low, ..] if hex(high).is_some() && hex(low).is_some() => {
                out.push((hex(high).unwrap_or_default() * 16 + hex(low).unwrap_or_default()) as u8);
                at += 3;
            }
            [b'_', ..] if words => {
                out.push(b' ');
                at += 1;
            }
            [byte, ..] => {
                out.push(byte);
                at += 1;
            }
            [] => break,
        }
    }
    out
}

/// Decodes encoded words (RFC 2047); white space between two of them is dropped.
fn decode_words(value: &str) -> String {
    let mut out = String::with_capacity(value.len());
    let (mut rest, mut after_word) = (value, false);
    while let Some(start) = rest.find("=?") {
        let word = rest[start + 2..].splitn(4, '?').collect::<Vec<_>>();
        let decoded = match word[..] {
            [charset, coding, content, tail] if tail.starts_with('=') => {
                let bytes = match coding {
                    "Q" | "q" => Some(decode_quoted(content.as_bytes(), true)),
                    "B" | "b" => Some(decode_base64(content.as_bytes())),
                    _ => None,
                };
                bytes.map(|bytes| (text(&bytes, charset), &tail[1..]))
            }
            _ => None,
        };
        let Some((decoded, tail)) = decoded else {
            out.push_str(&rest[..start + 2]);
            (rest, after_word) = (&rest[start + 2..], false);
            continue;
        };
        if !(after_word && rest[..start].trim().is_empty()) {
            out.push_str(&rest[..start]);
        }
        out.push_str(&decoded);
        (rest, after_word) = (tail, true);
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_everyday_mail_is_parsed() {
        let mail = "From: a@x\r\nSubject: =?utf-8?B?RXJkYmViZW46?= =?utf-8?Q?_St=C3=A4rke?=\r\n 5\r\nContent-Type: multipart/alternative;\r\n boundary=\"b1\"\r\n\r\n\
            preamble\r\n--b1\r\nContent-Type: text/plain; charset=\"utf-8\"\r\nContent-Transfer-Encoding: quoted-printable\r\n\r\nSt=C3=A4rke 5=\r\n.1\r\n--b1\r\n\
            Content-Type: text/html; charset=utf-8\r\nContent-Transfer-Encoding: base64\r\n\r\nPGI+U3TDpHJr\r\nZTwvYj4=\r\n--b1--\r\nepilogue";
        let read = ParsedMail::read(mail.as_bytes());
        assert_eq!(read.header("subject"), Some("Erdbeben: Stärke 5"));
        assert_eq!(read.part("text/plain"), Some("Stärke 5.1"));
        assert_eq!(read.part("text/html"), Some("<b>Stärke</b>"));
        assert_eq!(read.parts.len(), 2);
    }

    #[test]
    fn any_input_can_be_parsed() {
        for odd in [
            "",
            "no headers",
            "Subject: =?x?",
            "Content-Type: multipart/mixed; boundary=b\n\n--b\n--b\n--b--",
            "=?utf-8?Q?=ZZ?=",
        ] {
            ParsedMail::read(odd.as_bytes());
        }
        let nested = "Content-Type: multipart/mixed; boundary=b\r\n\r\n--b\r\n".repeat(50);
        assert_eq!(ParsedMail::read(nested.as_bytes()).parts, []);
        assert_eq!(decode_words("a =?utf-8?Q?b?= c =?bad"), "a b c =?bad");
    }
}
