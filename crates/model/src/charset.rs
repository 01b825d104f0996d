//! Character encodings: decodes bytes from outside into text.
//!
//! Every boundary that reads foreign text uses this module: XML, JSON, CSV, lines and feeds, of bodies, files and
//! pages.
//!
//! - A whole body in memory: `charset::decode(bytes, Syntax::Xml, charset::of_media_type(content_type).as_deref())`.
//! - A stream: wrap its reader in [`Utf8Reader`]; it yields UTF-8 without a byte-order mark.
//!
//! The encoding is chosen in the order of RFC 7303, section 3: byte-order mark, `charset` of the media type,
//! declaration of the document (XML 1.0, section 4.3.3 and appendix F; RFC 4627, section 3 for JSON), UTF-8. Names of
//! encodings are the labels of the WHATWG Encoding Standard. An invalid byte sequence is an error and is never
//! replaced.

use std::{
    borrow::Cow,
    io::{self, BufRead, Read},
};

use encoding_rs::{Decoder, DecoderResult, Encoding, UTF_8, UTF_16BE, UTF_16LE};

/// Longest XML declaration in bytes.
const DECLARATION_BYTES_MAX: usize = 1_024;
/// Bytes that [`Utf8Reader`] decodes at once.
const PIECE_BYTES: usize = 16 << 10;
/// Most characters of an unknown name in an error.
const LABEL_CHARS_MAX: usize = 40;

/// Format of a text, which decides where else its encoding may be declared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Syntax {
    /// XML, which may declare its encoding.
    Xml,
    /// JSON, which begins with two ASCII characters.
    Json,
    /// Any other text: CSV, lines, plain text.
    Text,
}

/// A text that cannot be decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CharsetError {
    /// An unknown encoding name.
    #[error("the character encoding `{0}` is not known: use UTF-8, or a name such as `iso-8859-1` or `windows-1252`")]
    Unknown(String),
    /// A recognised encoding that is not supported.
    #[error("the character encoding is {0}, which is not supported: use UTF-8 or UTF-16")]
    Unsupported(&'static str),
    /// A media type names UTF-16 and the bytes are in another encoding.
    #[error("the media type names `{0}`, and the text is not encoded in it: correct its `charset`")]
    Contradiction(String),
    /// A character that an encoding lacks.
    #[error("the character `{character}` is not in {encoding}: use UTF-8, or leave it out")]
    Unmappable {
        /// The first such character.
        character: char,
        /// The name of the encoding.
        encoding: String,
    },
    /// Bytes that are invalid in the encoding.
    #[error("is not {encoding}: byte {at} is not valid; name its character encoding, or send UTF-8")]
    Malformed {
        /// The name of the encoding.
        encoding: &'static str,
        /// Offset of the first invalid byte, from 0.
        at: u64,
    },
}

/// The value of the parameter `charset` of a media type, without quotes. An empty one is none.
///
/// Parameters are read as RFC 9110, section 8.3.1 has them: names without regard to case, values as tokens or quoted.
pub fn of_media_type(content_type: &str) -> Option<String> {
    let mut rest = content_type.split_once(';')?.1;
    loop {
        let (name, after) = rest.split_once('=')?;
        let is_charset = name.trim().trim_start_matches([';', ' ', '\t']).eq_ignore_ascii_case("charset");
        let after = after.trim_start();
        let (value, next) = match after.strip_prefix('"') {
            Some(quoted) => {
                let (mut value, mut end, mut escaped) = (String::new(), quoted.len(), false);
                for (at, c) in quoted.char_indices() {
                    match c {
                        _ if escaped => {
                            value.push(c);
                            escaped = false;
                        }
                        '\\' => escaped = true,
                        '"' => {
                            end = at + 1;
                            break;
                        }
                        c => value.push(c),
                    }
                }
                (value, quoted[end..].split_once(';').map_or("", |(_, next)| next))
            }
            None => match after.split_once(';') {
                Some((value, next)) => (value.to_owned(), next),
                None => (after.to_owned(), ""),
            },
        };
        if is_charset {
            // Single quotes are not quotes in HTTP, but are common.
            let value = value.trim().trim_matches('\'').trim();
            return (!value.is_empty()).then(|| value.to_owned());
        }
        rest = next;
    }
}

/// The media type with this charset in place of any other.
pub fn with_charset(content_type: &str, charset: &str) -> String {
    let essence = content_type.split(';').next().unwrap_or_default().trim();
    let others = content_type.split(';').skip(1).filter(|parameter| {
        let name = parameter.split('=').next().unwrap_or_default().trim();
        !name.is_empty() && !name.eq_ignore_ascii_case("charset")
    });
    let others: String = others.map(|parameter| format!("; {}", parameter.trim())).collect();
    format!("{essence}; charset={charset}{others}")
}

/// Encodes a text; UTF-8 where no encoding is named. With `references` a character that the encoding lacks becomes a numeric
/// character reference of XML and HTML. UTF-16 without an order has a byte-order mark.
///
/// # Errors
/// The encoding is unknown, or lacks a character.
pub fn encode(text: &str, charset: &str, references: bool) -> Result<Vec<u8>, CharsetError> {
    let label = charset.trim().to_ascii_lowercase();
    let missing = |c: char| CharsetError::Unmappable { character: c, encoding: shown(charset) };
    // The web's replacements of these two encodings contain more characters.
    let last = match label.as_str() {
        "" | "utf-8" | "utf8" => return Ok(text.as_bytes().to_vec()),
        "us-ascii" | "ascii" => Some('\u{7f}'),
        "iso-8859-1" | "iso8859-1" | "iso_8859-1" | "latin1" | "l1" => Some('\u{ff}'),
        _ => None,
    };
    if let Some(last) = last {
        let mut bytes = Vec::with_capacity(text.len());
        for c in text.chars() {
            match u8::try_from(u32::from(c)) {
                Ok(byte) if c <= last => bytes.push(byte),
                _ if references => bytes.extend_from_slice(format!("&#{};", u32::from(c)).as_bytes()),
                _ => return Err(missing(c)),
            }
        }
        return Ok(bytes);
    }
    let encoding = match encoding_of(charset)? {
        LabelledEncoding::Utf16 => {
            return Ok(format!("\u{feff}{text}").encode_utf16().flat_map(u16::to_le_bytes).collect());
        }
        LabelledEncoding::Encoding(encoding) if encoding == UTF_16LE => {
            return Ok(text.encode_utf16().flat_map(u16::to_le_bytes).collect());
        }
        LabelledEncoding::Encoding(encoding) if encoding == UTF_16BE => {
            return Ok(text.encode_utf16().flat_map(u16::to_be_bytes).collect());
        }
        LabelledEncoding::Encoding(encoding) => encoding,
    };
    let (bytes, _, has_references) = encoding.encode(text);
    if has_references && !references {
        let lacks = |c: &char| encoding.encode(c.encode_utf8(&mut [0; 4])).2;
        return Err(missing(text.chars().find(lacks).unwrap_or(char::REPLACEMENT_CHARACTER)));
    }
    Ok(bytes.into_owned())
}

/// Decodes a whole text. `charset` is that of its media type or configuration, if one is named. The result has no
/// byte-order mark; a text in UTF-8 is not copied.
///
/// # Errors
/// The encoding is unknown, or the bytes are not of it.
pub fn decode<'a>(bytes: &'a [u8], syntax: Syntax, charset: Option<&str>) -> Result<Cow<'a, str>, CharsetError> {
    let (encoding, mark) = detect(bytes, syntax, charset)?;
    let inner = &bytes[mark..];
    if encoding == UTF_8 {
        return match std::str::from_utf8(inner) {
            Ok(text) => Ok(Cow::Borrowed(text)),
            Err(error) => Err(malformed(encoding, mark + error.valid_up_to())),
        };
    }
    let mut decoder = encoding.new_decoder_without_bom_handling();
    let room = decoder.max_utf8_buffer_length_without_replacement(inner.len()).unwrap_or(inner.len());
    let mut text = String::with_capacity(room);
    let (result, read) = decoder.decode_to_string_without_replacement(inner, &mut text, true);
    match result {
        DecoderResult::InputEmpty => {
            text.shrink_to_fit();
            Ok(Cow::Owned(text))
        }
        DecoderResult::Malformed(wrong, after) => {
            Err(malformed(encoding, mark + read.saturating_sub(usize::from(wrong) + usize::from(after))))
        }
        DecoderResult::OutputFull => unreachable!("the buffer holds the longest result"),
    }
}

/// The first character that XML 1.0 does not allow in a document (section 2.2), such as most control characters, and its
/// offset in bytes.
pub fn first_invalid_xml_char(text: &str) -> Option<(usize, char)> {
    let is_allowed = |c: char| matches!(c, '\t' | '\n' | '\r' | ' '..='\u{d7ff}' | '\u{e000}'..='\u{fffd}' | '\u{10000}'..='\u{10ffff}');
    text.char_indices().find(|(_, c)| !is_allowed(*c))
}

/// XML whose declaration, if it names another encoding, names this one.
pub fn xml_for<'t>(text: &'t str, charset: &str) -> Cow<'t, str> {
    match declared(text.as_bytes()) {
        Some((label, at)) if !label.eq_ignore_ascii_case(charset) => {
            Cow::Owned(format!("{}{charset}{}", &text[..at], &text[at + label.len()..]))
        }
        _ => Cow::Borrowed(text),
    }
}

fn malformed(encoding: &'static Encoding, at: usize) -> CharsetError {
    CharsetError::Malformed { encoding: encoding.name(), at: at as u64 }
}

/// Detects the encoding of a text from its beginning, and the length of its byte-order mark.
fn detect(bytes: &[u8], syntax: Syntax, charset: Option<&str>) -> Result<(&'static Encoding, usize), CharsetError> {
    match bytes {
        [0xef, 0xbb, 0xbf, ..] => return Ok((UTF_8, 3)),
        [0xff, 0xfe, 0, 0, ..] | [0, 0, 0xfe, 0xff, ..] => return Err(CharsetError::Unsupported("UTF-32")),
        [0xfe, 0xff, ..] => return Ok((UTF_16BE, 2)),
        [0xff, 0xfe, ..] => return Ok((UTF_16LE, 2)),
        _ => {}
    }
    let sniffed = match (syntax, bytes) {
        (Syntax::Xml | Syntax::Json, [0, 0, 0, (1..), ..] | [(1..), 0, 0, 0, ..]) => {
            return Err(CharsetError::Unsupported("UTF-32"));
        }
        (Syntax::Xml, [0x4c, 0x6f, 0xa7, 0x94, ..]) => return Err(CharsetError::Unsupported("EBCDIC")),
        (Syntax::Xml | Syntax::Json, [0, (1..), ..]) => Some(UTF_16BE),
        (Syntax::Xml | Syntax::Json, [(1..), 0, ..]) => Some(UTF_16LE),
        _ => None,
    };
    let charset = charset.map(str::trim).filter(|charset| !charset.is_empty());
    if let Some(label) = charset {
        // Without a mark the byte order is guessed from the text, else network order (RFC 2781, section 4.3).
        let encoding = match encoding_of(label)? {
            LabelledEncoding::Encoding(encoding) => encoding,
            LabelledEncoding::Utf16 => match (syntax, bytes) {
                (_, [0, (1..), ..]) => UTF_16BE,
                (_, [(1..), 0, ..]) => UTF_16LE,
                (Syntax::Text, _) | (_, []) => UTF_16BE,
                _ => return Err(CharsetError::Contradiction(shown(label))),
            },
        };
        return Ok((encoding, 0));
    }
    if let Some(encoding) = sniffed {
        return Ok((encoding, 0));
    }
    if syntax == Syntax::Xml
        && let Some((label, _)) = declared(bytes)
    {
        return match encoding_of(label)? {
            // A declaration that can be read byte by byte is not in UTF-16, whatever it says. Programs that write
            // UTF-8 from texts in memory often declare UTF-16.
            LabelledEncoding::Utf16 => Ok((UTF_8, 0)),
            LabelledEncoding::Encoding(encoding) if encoding == UTF_16BE || encoding == UTF_16LE => Ok((UTF_8, 0)),
            LabelledEncoding::Encoding(encoding) => Ok((encoding, 0)),
        };
    }
    Ok((UTF_8, 0))
}

enum LabelledEncoding {
    Encoding(&'static Encoding),
    /// UTF-16 in either order.
    Utf16,
}

fn encoding_of(label: &str) -> Result<LabelledEncoding, CharsetError> {
    let lower = label.trim().to_ascii_lowercase();
    match lower.as_str() {
        // The web's standard decodes ASCII as windows-1252. UTF-8 contains ASCII and reports invalid bytes.
        "us-ascii" | "ascii" | "ansi_x3.4-1968" => return Ok(LabelledEncoding::Encoding(UTF_8)),
        "utf-16" | "utf16" | "iso-10646-ucs-2" | "ucs-2" | "unicode" => return Ok(LabelledEncoding::Utf16),
        _ => {}
    }
    let found = Encoding::for_label_no_replacement(lower.as_bytes());
    found.map(LabelledEncoding::Encoding).ok_or_else(|| CharsetError::Unknown(shown(label)))
}

fn shown(label: &str) -> String {
    label.chars().filter(|c| !c.is_control()).take(LABEL_CHARS_MAX).collect()
}

/// The encoding in an XML declaration, and the offset of its name.
fn declared(bytes: &[u8]) -> Option<(&str, usize)> {
    let head = &bytes[..bytes.len().min(DECLARATION_BYTES_MAX)];
    let inner = head.strip_prefix(b"<?xml")?;
    if !inner.first()?.is_ascii_whitespace() {
        return None;
    }
    let end = head.windows(2).position(|two| two == b"?>")?;
    let text = std::str::from_utf8(&head[..end]).ok()?;
    let mut from = "<?xml".len();
    loop {
        let name = text.get(from..)?.split_once('=')?.0;
        let is_encoding = name.trim() == "encoding";
        let mut at = from + name.len() + 1;
        at += text[at..].len() - text[at..].trim_start().len();
        let quote = text[at..].chars().next().filter(|quote| matches!(quote, '"' | '\''))?;
        let value = text[at + 1..].split_once(quote)?.0;
        if is_encoding {
            return Some((value, at + 1));
        }
        from = at + value.len() + 2;
    }
}

/// Whether more of a text must be read before its encoding can be chosen.
fn needs_more(head: &[u8], syntax: Syntax) -> bool {
    if head.len() < 4 {
        return true;
    }
    syntax == Syntax::Xml
        && head.len() < DECLARATION_BYTES_MAX
        && (head.starts_with(b"<?xml") || b"<?xml".starts_with(head))
        && !head.windows(2).any(|two| two == b"?>")
}

/// A reader that decodes any known encoding to UTF-8 without a byte-order mark.
///
/// UTF-8 passes unchanged and is validated by the consumer, so that one invalid record does not end all others. In
/// other encodings invalid bytes end the text with an error of the kind `InvalidData`, whose source is a
/// [`CharsetError`]; an unknown encoding does so at once.
#[derive(Debug)]
pub struct Utf8Reader<R> {
    inner: R,
    syntax: Syntax,
    charset: Option<String>,
    state: State,
    /// Bytes ready to be returned, and how many were returned.
    ready: Vec<u8>,
    taken: usize,
    /// Bytes of the text that were decoded.
    consumed: u64,
}

enum State {
    Start,
    Utf8,
    Decoding { decoder: Decoder, waiting: Vec<u8> },
    Ended,
    Failed(CharsetError),
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            State::Start => "Start",
            State::Utf8 => "Utf8",
            State::Decoding { .. } => "Decoding",
            State::Ended => "Ended",
            State::Failed(_) => "Failed",
        })
    }
}

impl<R: BufRead> Utf8Reader<R> {
    /// Reads a text; `charset` is that of its media type or configuration, if one is named.
    pub fn new(inner: R, syntax: Syntax, charset: Option<String>) -> Utf8Reader<R> {
        let (ready, taken, consumed) = (Vec::new(), 0, 0);
        Utf8Reader { inner, syntax, charset, state: State::Start, ready, taken, consumed }
    }

    fn start(&mut self) -> io::Result<()> {
        let mut head = Vec::new();
        while needs_more(&head, self.syntax) {
            let more = self.inner.fill_buf()?;
            if more.is_empty() {
                break;
            }
            let count = more.len().min(DECLARATION_BYTES_MAX - head.len());
            head.extend_from_slice(&more[..count]);
            self.inner.consume(count);
        }
        let (encoding, mark) = match detect(&head, self.syntax, self.charset.as_deref()) {
            Ok(found) => found,
            Err(error) => return self.fail(error),
        };
        if encoding == UTF_8 {
            (self.ready, self.taken, self.state) = (head, mark, State::Utf8);
        } else {
            self.consumed = mark as u64;
            let waiting = head.split_off(mark);
            self.state = State::Decoding { decoder: encoding.new_decoder_without_bom_handling(), waiting };
        }
        Ok(())
    }

    fn fail(&mut self, error: CharsetError) -> io::Result<()> {
        self.state = State::Failed(error.clone());
        Err(io::Error::new(io::ErrorKind::InvalidData, error))
    }

    /// Decodes one more piece into `ready`.
    fn decode(&mut self) -> io::Result<()> {
        let State::Decoding { decoder, waiting } = &mut self.state else { return Ok(()) };
        let is_head = !waiting.is_empty();
        let piece: &[u8] = if is_head { waiting } else { self.inner.fill_buf()? };
        let piece = &piece[..piece.len().min(PIECE_BYTES)];
        let is_last = piece.is_empty();
        let room = decoder.max_utf8_buffer_length_without_replacement(piece.len()).unwrap_or(PIECE_BYTES * 4);
        self.ready.clear();
        self.ready.resize(room, 0);
        self.taken = 0;
        let (result, read, written) = decoder.decode_to_utf8_without_replacement(piece, &mut self.ready, is_last);
        self.ready.truncate(written);
        self.consumed += read as u64;
        match result {
            DecoderResult::Malformed(wrong, after) => {
                let at = self.consumed.saturating_sub(u64::from(wrong) + u64::from(after));
                // The text before the invalid byte is read first, so that no result depends on the size of pieces.
                self.state = State::Failed(CharsetError::Malformed { encoding: decoder.encoding().name(), at });
            }
            DecoderResult::InputEmpty | DecoderResult::OutputFull if is_head => drop(waiting.drain(..read)),
            DecoderResult::InputEmpty if is_last => self.state = State::Ended,
            DecoderResult::InputEmpty | DecoderResult::OutputFull => self.inner.consume(read),
        }
        Ok(())
    }
}

impl<R: BufRead> BufRead for Utf8Reader<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        while self.taken >= self.ready.len() {
            match &self.state {
                State::Start => self.start()?,
                State::Utf8 => return self.inner.fill_buf(),
                State::Decoding { .. } => self.decode()?,
                State::Ended => return Ok(&[]),
                State::Failed(error) => return Err(io::Error::new(io::ErrorKind::InvalidData, error.clone())),
            }
        }
        Ok(&self.ready[self.taken..])
    }

    fn consume(&mut self, count: usize) {
        if self.taken < self.ready.len() {
            self.taken += count;
        } else {
            self.inner.consume(count);
        }
    }
}

impl<R: BufRead> Read for Utf8Reader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let ready = self.fill_buf()?;
        let count = ready.len().min(buffer.len());
        buffer[..count].copy_from_slice(&ready[..count]);
        self.consume(count);
        Ok(count)
    }
}

/// Push decoder for a text that arrives in chunks, such as the body of a request.
///
/// As [`Utf8Reader`]: UTF-8 passes unchanged except for its byte-order mark, other encodings are decoded.
pub struct Utf8Decoder {
    syntax: Syntax,
    charset: Option<String>,
    /// The beginning, until the encoding can be chosen.
    head: Vec<u8>,
    /// `None`: not chosen yet; `Some(None)`: UTF-8.
    decoder: Option<Option<Decoder>>,
    consumed: u64,
}

impl std::fmt::Debug for Utf8Decoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Utf8Decoder")
            .field("syntax", &self.syntax)
            .field("charset", &self.charset)
            .finish_non_exhaustive()
    }
}

impl Utf8Decoder {
    /// Decodes a text; `charset` is that of its media type or configuration, if one is named.
    pub fn new(syntax: Syntax, charset: Option<String>) -> Utf8Decoder {
        Utf8Decoder { syntax, charset, head: Vec::new(), decoder: None, consumed: 0 }
    }

    /// Decodes a chunk.
    ///
    /// # Errors
    /// The encoding is unknown, or the bytes are not of it.
    pub fn push(&mut self, chunk: &[u8]) -> Result<Vec<u8>, CharsetError> {
        if self.decoder.is_some() {
            return self.decode(chunk, false);
        }
        self.head.extend_from_slice(chunk);
        if needs_more(&self.head, self.syntax) { Ok(Vec::new()) } else { self.start(false) }
    }

    /// Decodes what is left at the end of the text.
    ///
    /// # Errors
    /// As of `push`.
    pub fn finish(&mut self) -> Result<Vec<u8>, CharsetError> {
        if self.decoder.is_none() { self.start(true) } else { self.decode(&[], true) }
    }

    fn start(&mut self, is_last: bool) -> Result<Vec<u8>, CharsetError> {
        let (encoding, mark) = detect(&self.head, self.syntax, self.charset.as_deref())?;
        self.consumed = mark as u64;
        self.decoder = Some(match encoding == UTF_8 {
            true => None,
            false => Some(encoding.new_decoder_without_bom_handling()),
        });
        let head = std::mem::take(&mut self.head);
        self.decode(&head[mark..], is_last)
    }

    fn decode(&mut self, chunk: &[u8], is_last: bool) -> Result<Vec<u8>, CharsetError> {
        let Some(Some(decoder)) = &mut self.decoder else { return Ok(chunk.to_vec()) };
        let room = decoder.max_utf8_buffer_length_without_replacement(chunk.len()).unwrap_or(chunk.len() * 4);
        let mut out = vec![0; room];
        let (result, read, written) = decoder.decode_to_utf8_without_replacement(chunk, &mut out, is_last);
        out.truncate(written);
        self.consumed += read as u64;
        match result {
            DecoderResult::Malformed(wrong, after) => {
                let at = self.consumed.saturating_sub(u64::from(wrong) + u64::from(after));
                Err(CharsetError::Malformed { encoding: decoder.encoding().name(), at })
            }
            DecoderResult::InputEmpty | DecoderResult::OutputFull => Ok(out),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn utf16(text: &str, order: fn(u16) -> [u8; 2], mark: bool) -> Vec<u8> {
        let text = if mark { format!("\u{feff}{text}") } else { text.to_owned() };
        text.encode_utf16().flat_map(order).collect()
    }

    /// Decodes at once, and through a reader with three bytes at a time: both must agree.
    fn check(bytes: &[u8], syntax: Syntax, charset: Option<&str>, expected: Result<&str, &str>) {
        let at_once = decode(bytes, syntax, charset).map(Cow::into_owned).map_err(|error| error.to_string());
        match (&at_once, expected) {
            (Ok(text), Ok(expected)) => assert_eq!(text, expected, "{bytes:x?} {charset:?}"),
            (Err(error), Err(part)) => assert!(error.contains(part), "{error}"),
            _ => panic!("{at_once:?}, not {expected:?}"),
        }
        let slow = io::BufReader::with_capacity(3, bytes);
        let mut read = Vec::new();
        let outcome = Utf8Reader::new(slow, syntax, charset.map(str::to_owned)).read_to_end(&mut read);
        let read = outcome.map_err(|error| error.to_string()).and_then(|_| {
            String::from_utf8(read).map_err(|error| {
                let mark = if bytes.starts_with(&[0xef, 0xbb, 0xbf]) { 3 } else { 0 };
                malformed(UTF_8, error.utf8_error().valid_up_to() + mark).to_string()
            })
        });
        assert_eq!(read, at_once, "{bytes:x?}");
    }

    #[test]
    fn the_text_before_an_invalid_byte_is_read_in_pieces_of_any_size() {
        let mut bytes = utf16("a;b\n1;2\n", u16::to_le_bytes, true);
        bytes.extend_from_slice(&[0x00, 0xdc, b'x', 0]);
        for piece in [1, 3, 1_000] {
            let mut reader = Utf8Reader::new(io::BufReader::with_capacity(piece, &bytes[..]), Syntax::Text, None);
            let mut read = Vec::new();
            let error = reader.read_to_end(&mut read).expect_err("a lone surrogate is invalid");
            assert_eq!(String::from_utf8_lossy(&read), "a;b\n1;2\n", "in pieces of {piece} bytes");
            assert!(error.to_string().contains("byte 18 is not valid"), "{error}");
        }
    }

    #[test]
    fn c3_the_mark_comes_before_the_media_type_and_that_before_the_declaration() {
        let xml = "<?xml version='1.0' encoding=\"UTF-16\"?><a>ä€</a>";
        for order in [u16::to_be_bytes, u16::to_le_bytes] {
            check(&utf16(xml, order, true), Syntax::Xml, None, Ok(xml));
            check(&utf16(xml, order, false), Syntax::Xml, None, Ok(xml));
            check(&utf16(xml, order, false), Syntax::Xml, Some("UTF-16"), Ok(xml));
            check(&utf16(xml, order, true), Syntax::Xml, Some("iso-8859-1"), Ok(xml));
            check(&utf16("<a>ä</a>", order, false), Syntax::Xml, None, Ok("<a>ä</a>"));
            check(&utf16("a;b\nä;1\n", order, true), Syntax::Text, None, Ok("a;b\nä;1\n"));
            check(&utf16("[\"ä\"]", order, false), Syntax::Json, None, Ok("[\"ä\"]"));
        }
        let latin = |text: &str| text.chars().map(|c| u8::try_from(u32::from(c)).expect("Latin")).collect::<Vec<u8>>();
        let declared = "<?xml version='1.0' encoding='ISO-8859-1' standalone='yes'?><a>é</a>";
        check(&latin(declared), Syntax::Xml, None, Ok(declared));
        check(&latin(declared), Syntax::Xml, Some("utf-8"), Err("is not UTF-8: byte 63"));
        check(declared.as_bytes(), Syntax::Xml, Some("UTF-8"), Ok(declared));
        check(&latin("<a>é</a>"), Syntax::Xml, Some("latin1"), Ok("<a>é</a>"));
        check(&latin("<a>é</a>"), Syntax::Xml, None, Err("is not UTF-8: byte 3"));
        let marked = "\u{feff}<?xml version='1.0' encoding='iso-8859-1'?><a>é</a>";
        check(marked.as_bytes(), Syntax::Xml, Some("iso-8859-1"), Ok(&marked[3..]));
        check(b"\x80uro", Syntax::Text, Some("Windows-1252"), Ok("€uro"));
        check(&[0xa4], Syntax::Text, Some("iso-8859-15"), Ok("€"));
        check(&[0x83, 0x65, 0x81], Syntax::Text, Some("shift_jis"), Err("is not Shift_JIS: byte 2"));
        // .NET writes this name into texts that are sent as UTF-8.
        check(xml.as_bytes(), Syntax::Xml, None, Ok(xml));
        check(b"", Syntax::Xml, None, Ok(""));
        check(b"<", Syntax::Xml, None, Ok("<"));
        check(b"\xef\xbb\xbf", Syntax::Json, None, Ok(""));
    }

    #[test]
    fn c3_an_unknown_encoding_is_an_error() {
        check(b"<a/>", Syntax::Xml, Some("klingon"), Err("`klingon` is not known"));
        check(b"<?xml version='1.0' encoding='latin-1'?><a/>", Syntax::Xml, None, Err("`latin-1` is not known"));
        check(b"\xff\xfe\0\0<\0\0\0", Syntax::Xml, None, Err("UTF-32"));
        check(b"\0\0\0<", Syntax::Xml, None, Err("UTF-32"));
        check(&[0x4c, 0x6f, 0xa7, 0x94], Syntax::Xml, None, Err("EBCDIC"));
        check(b"<a/>", Syntax::Xml, Some("utf-16"), Err("correct its `charset`"));
        check(&[0xfe, 0xff, 0xd8, 0, 0, b'a'], Syntax::Text, None, Err("is not UTF-16BE: byte 2"));
        check(&[0xff, 0xfe, b'a'], Syntax::Text, None, Err("is not UTF-16LE: byte 2"));
        check(b"\xef\xbb\xbfa\xff", Syntax::Text, None, Err("byte 4"));
    }

    #[test]
    fn media_types_name_their_charset() {
        for (given, expected) in [
            ("text/xml", None),
            ("text/xml; charset=utf-16", Some("utf-16")),
            ("text/xml;Charset=\"ISO-8859-1\"", Some("ISO-8859-1")),
            ("text/xml; a=\"x;charset=no\"; charset=yes", Some("yes")),
            ("text/xml; charset='utf-8' ; b=1", Some("utf-8")),
            ("text/xml; charset=", None),
            ("text/xml; charset", None),
            ("text/csv ;\tcharset = windows-1252;header=present", Some("windows-1252")),
        ] {
            assert_eq!(of_media_type(given).as_deref(), expected, "{given}");
        }
        assert_eq!(with_charset("text/xml; charset=utf-16; a=b", "utf-8"), "text/xml; charset=utf-8; a=b");
        assert_eq!(with_charset("text/xml", "x"), "text/xml; charset=x");
    }

    #[test]
    fn declarations_name_the_encoding_afterwards() {
        let check = |given: &str, expected: &str| assert_eq!(xml_for(given, "UTF-8"), expected);
        check("<?xml version='1.0' encoding = 'x' ?><a/>", "<?xml version='1.0' encoding = 'UTF-8' ?><a/>");
        check("<?xml version=\"1.0\"?><a/>", "<?xml version=\"1.0\"?><a/>");
        check("<?xml-stylesheet encoding='x'?><a/>", "<?xml-stylesheet encoding='x'?><a/>");
        check("<a/>", "<a/>");
    }

    #[test]
    fn texts_are_encoded() {
        let check = |text: &str, charset: &str, references: bool, expected: &[u8]| {
            assert_eq!(encode(text, charset, references).expect(charset), expected, "{charset}");
        };
        check("ä€", "", false, "ä€".as_bytes());
        check("ä€", "ISO-8859-1", true, b"\xe4&#8364;");
        check("ä€", "windows-1252", false, b"\xe4\x80");
        check("ä€", "us-ascii", true, b"&#228;&#8364;");
        check("ä", "UTF-16", false, b"\xff\xfe\xe4\0");
        check("ä", "utf-16be", false, b"\0\xe4");
        check("ä漢", "iso-8859-15", true, b"\xe4&#28450;");
        for charset in ["iso-8859-1", "iso-8859-15", "us-ascii"] {
            let error = encode("a漢", charset, false).expect_err(charset);
            assert!(error.to_string().contains("`漢` is not in"), "{error}");
        }
        assert!(matches!(encode("", "klingon", true), Err(CharsetError::Unknown(_))));
    }

    #[test]
    fn d_chunks_of_any_size_are_decoded_as_the_whole_is() {
        let utf16: Vec<u8> = "\u{feff}id;größe 😀\r\n".encode_utf16().flat_map(u16::to_le_bytes).collect();
        let (latin, utf8) = (b"gr\xf6\xdfe;\x80".to_vec(), "\u{feff}größe".as_bytes().to_vec());
        for (bytes, charset, expected) in [
            (utf16, None, "id;größe 😀\r\n"),
            (latin, Some("windows-1252"), "größe;€"),
            (utf8, None, "größe"),
            (Vec::new(), None, ""),
        ] {
            for size in 1..=bytes.len().max(1) {
                let mut decoder = Utf8Decoder::new(Syntax::Text, charset.map(str::to_owned));
                let mut text = Vec::new();
                for chunk in bytes.chunks(size) {
                    text.extend(decoder.push(chunk).expect("of the encoding"));
                }
                text.extend(decoder.finish().expect("whole"));
                assert_eq!(String::from_utf8(text).as_deref(), Ok(expected), "{size}");
            }
        }
        let mut decoder = Utf8Decoder::new(Syntax::Text, Some("klingon".to_owned()));
        assert!(matches!(decoder.push(b"abcd"), Err(CharsetError::Unknown(_))));
        let mut cut = Utf8Decoder::new(Syntax::Text, None);
        cut.push(b"\xff\xfea\0b").expect("the half of a letter may follow");
        assert!(matches!(cut.finish(), Err(CharsetError::Malformed { .. })));
    }
}
