//! Files, feeds and mails, as sources and imports read them.

use std::io::{BufReader, Cursor};

use tocsin_directory::ldif;
use tocsin_model::{
    charset::{Syntax, Utf8Decoder, Utf8Reader, decode},
    csv_text::{Scanner, cells, delimiter_of},
};
use tocsin_sources::fuzzing::{FileFormat, read_feed, read_file, read_mail};

/// The items do not depend on the pieces in which a file is read.
fn check(format: FileFormat, input: &[u8]) {
    let whole = read_file(format, input, 64 << 10);
    for piece in [1, 7] {
        assert_eq!(read_file(format, input, piece), whole, "read in pieces of {piece} bytes");
    }
}

/// CSV (RFC 4180): items, records and cells.
pub(crate) fn csv(input: &[u8]) {
    check(FileFormat::Csv, input);
    let delimiter = delimiter_of(input);
    let cut = |piece: usize| {
        let mut scanner = Scanner::new(Some(delimiter));
        let (mut records, mut record) = (Vec::new(), Vec::new());
        for bytes in input.chunks(piece) {
            let mut rest = bytes;
            while let Some(end) = scanner.scan(rest) {
                record.extend_from_slice(&rest[..end]);
                records.push(std::mem::take(&mut record));
                rest = &rest[end..];
            }
            record.extend_from_slice(rest);
        }
        records.push(record);
        records
    };
    let records = cut(input.len().max(1));
    assert_eq!(records.concat(), input, "records are the text");
    assert_eq!(cut(1), records);
    for record in &records {
        assert!(!cells(record, delimiter).is_empty());
    }
}

/// JSON documents and lines of JSON.
pub(crate) fn json(input: &[u8]) {
    check(FileFormat::Json, input);
    check(FileFormat::Ndjson, input);
}

/// XML of sources, and as documents of exchanges.
pub(crate) fn xml(input: &[u8]) {
    check(FileFormat::Xml, input);
    let Ok(text) = decode(input, Syntax::Xml, None) else { return };
    tocsin_formatting::fuzzing::read_xml(&text);
}

/// RSS, Atom and JSON Feed.
pub(crate) fn feed(input: &[u8]) {
    let _ = read_feed(input);
}

/// A mail (RFC 5322, MIME).
pub(crate) fn mail(input: &[u8]) {
    let item = read_mail(input);
    let _: serde_json::Value = serde_json::from_str(&item).expect("an item is JSON");
}

/// LDIF (RFC 2849): records do not depend on the pieces in which a file is read.
pub(crate) fn ldif(input: &[u8]) {
    let read = |piece: usize| {
        let reader = ldif::Reader::new(BufReader::with_capacity(piece, Cursor::new(input)));
        // Each record that cannot be read takes at least a line.
        reader
            .take(10_000)
            .map(|record| match record {
                Ok(record) => format!("{} {} {:?}", record.line, record.dn, record.change),
                Err(error) => error.to_string(),
            })
            .collect::<Vec<_>>()
    };
    assert_eq!(read(1), read(64 << 10));
}

/// Character sets: the three decoders give the same text.
pub(crate) fn charset(input: &[u8]) {
    const CHARSETS: [Option<&str>; 8] = [
        None,
        Some("utf-8"),
        Some("utf-16"),
        Some("utf-16be"),
        Some("iso-8859-1"),
        Some("shift_jis"),
        Some("gb18030"),
        Some("x-none"),
    ];
    const SYNTAXES: [Syntax; 3] = [Syntax::Xml, Syntax::Json, Syntax::Text];
    let Some((choice, bytes)) = input.split_first() else { return };
    let charset = CHARSETS[usize::from(*choice) % CHARSETS.len()];
    let syntax = SYNTAXES[usize::from(*choice) / CHARSETS.len() % SYNTAXES.len()];
    let whole = decode(bytes, syntax, charset).map(|text| text.into_owned().into_bytes());
    // UTF-8 input passes both decoders unchanged, and is validated afterwards.
    let checked = |bytes: Vec<u8>| String::from_utf8(bytes).ok().map(String::into_bytes);
    for piece in [1, 3] {
        let mut read = Vec::new();
        let mut reader =
            Utf8Reader::new(BufReader::with_capacity(piece, Cursor::new(bytes)), syntax, charset.map(str::to_owned));
        let outcome = std::io::Read::read_to_end(&mut reader, &mut read).ok().and_then(|_| checked(read));
        assert_eq!(outcome, whole.as_ref().ok().cloned(), "a reader in pieces of {piece} bytes");

        let mut decoder = Utf8Decoder::new(syntax, charset.map(str::to_owned));
        let pieces = bytes.chunks(piece).map(Some).chain([None]);
        let decoded: Result<Vec<Vec<u8>>, _> = pieces
            .map(|piece| match piece {
                Some(piece) => decoder.push(piece),
                None => decoder.finish(),
            })
            .collect();
        let outcome = decoded.ok().and_then(|pieces| checked(pieces.concat()));
        assert_eq!(outcome, whole.as_ref().ok().cloned(), "a decoder in pieces of {piece} bytes");
    }
}
