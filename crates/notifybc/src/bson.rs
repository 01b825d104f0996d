//! Documents of a `mongodump` file: BSON, one document after the other.
//!
//! The reader holds one document at a time. Sizes and depth are bounded. An `ObjectId` becomes its hexadecimal text, a
//! date the text of dates in records, and binary data base64. Types that JSON and NotifyBC have no use for are errors.

use std::io::{self, BufRead, Read};

use base64::prelude::{BASE64_STANDARD, Engine};
use serde_json::{Map, Number, Value};
use tocsin_model::time::Timestamp;

use crate::{
    dump::{DumpError, DumpErrorKind, Position},
    record::{Document, date_text},
};

/// Largest document: MongoDB's limit of 16 MiB, and its reserve.
pub const DOCUMENT_BYTES_MAX: usize = (16 << 20) + (16 << 10);
/// Deepest nesting: MongoDB's limit.
pub const DEPTH_MAX: usize = 100;

/// Iterator over the documents of a file. It ends after the first error: without a valid length, the next document
/// cannot be found.
#[derive(Debug)]
pub struct BsonDocuments<R> {
    source: R,
    offset: u64,
    buffer: Vec<u8>,
    ended: bool,
}

impl<R: BufRead> BsonDocuments<R> {
    /// Documents of a file that begins at this position.
    pub fn new(source: R) -> Self {
        BsonDocuments { source, offset: 0, buffer: Vec::new(), ended: false }
    }

    fn read(&mut self) -> Result<Option<Document>, DumpErrorKind> {
        if self.source.fill_buf()?.is_empty() {
            return Ok(None);
        }
        let mut length = [0; 4];
        self.source.read_exact(&mut length).map_err(truncated)?;
        let bytes = usize::try_from(i32::from_le_bytes(length)).unwrap_or_default();
        if bytes < 5 {
            return Err(DumpErrorKind::Malformed("the length of the document is too small"));
        }
        if bytes > DOCUMENT_BYTES_MAX {
            return Err(DumpErrorKind::TooLarge { limit: DOCUMENT_BYTES_MAX });
        }
        // The buffer grows with what is there, not with the claimed length.
        self.buffer.clear();
        let rest = (bytes - 4) as u64;
        if self.source.by_ref().take(rest).read_to_end(&mut self.buffer)? as u64 != rest {
            return Err(DumpErrorKind::Malformed("the file ends within a document"));
        }
        let mut elements = Elements { bytes: &self.buffer, at: 0 };
        let document = elements.document(0)?;
        if elements.at != self.buffer.len() {
            return Err(DumpErrorKind::Malformed("the document ends before its length"));
        }
        self.offset += bytes as u64;
        Ok(Some(document))
    }
}

impl<R: BufRead> Iterator for BsonDocuments<R> {
    type Item = Result<Document, DumpError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let position = Position::Offset(self.offset);
        match self.read() {
            Ok(Some(document)) => Some(Ok(document)),
            Ok(None) => {
                self.ended = true;
                None
            }
            Err(kind) => {
                self.ended = true;
                Some(Err(DumpError { position, kind }))
            }
        }
    }
}

fn truncated(error: io::Error) -> DumpErrorKind {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => DumpErrorKind::Malformed("the file ends within a document"),
        _ => error.into(),
    }
}

/// The elements of one document, after its length.
struct Elements<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Elements<'a> {
    fn document(&mut self, depth: usize) -> Result<Document, DumpErrorKind> {
        let mut document = Map::new();
        self.elements(depth, |name, value| _ = document.insert(name.to_owned(), value))?;
        Ok(document)
    }

    fn elements(&mut self, depth: usize, mut put: impl FnMut(&str, Value)) -> Result<(), DumpErrorKind> {
        if depth > DEPTH_MAX {
            return Err(DumpErrorKind::TooDeep { limit: DEPTH_MAX });
        }
        loop {
            let kind = self.array::<1>()?[0];
            if kind == 0 {
                return Ok(());
            }
            let name = self.name()?;
            let value = self.value(kind, name, depth)?;
            put(name, value);
        }
    }

    fn value(&mut self, kind: u8, name: &str, depth: usize) -> Result<Value, DumpErrorKind> {
        let unsupported = |kind: &'static str| DumpErrorKind::Unsupported { kind, property: name.to_owned() };
        Ok(match kind {
            0x01 => number(f64::from_le_bytes(self.array()?)),
            // Text, code and symbols.
            0x02 | 0x0d | 0x0e => Value::from(self.text()?),
            0x03 => {
                let end = self.nested()?;
                let document = self.document(depth + 1)?;
                self.ends_at(end)?;
                Value::Object(document)
            }
            0x04 => {
                let end = self.nested()?;
                let mut items = Vec::new();
                self.elements(depth + 1, |_, value| items.push(value))?;
                self.ends_at(end)?;
                Value::Array(items)
            }
            0x05 => {
                let length = self.length()?;
                self.array::<1>()?;
                Value::from(BASE64_STANDARD.encode(self.take(length)?))
            }
            0x06 | 0x0a => Value::Null,
            0x07 => Value::from(self.object_id()?),
            0x08 => Value::Bool(self.array::<1>()?[0] != 0),
            0x09 => Value::from(date(i64::from_le_bytes(self.array()?))?),
            0x10 => Value::from(i32::from_le_bytes(self.array()?)),
            0x12 => Value::from(i64::from_le_bytes(self.array()?)),
            0x0b => return Err(unsupported("regular expression")),
            0x0c => return Err(unsupported("pointer")),
            0x0f => return Err(unsupported("code with scope")),
            0x11 => return Err(unsupported("timestamp")),
            0x13 => return Err(unsupported("decimal")),
            0x7f | 0xff => return Err(unsupported("key bound")),
            _ => return Err(DumpErrorKind::Malformed("an element has an unknown type")),
        })
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], DumpErrorKind> {
        let end = self.at.checked_add(count).filter(|end| *end <= self.bytes.len());
        let end = end.ok_or(DumpErrorKind::Malformed("a value reaches beyond its document"))?;
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], DumpErrorKind> {
        Ok(self.take(N)?.try_into().expect("as many bytes as requested"))
    }

    fn length(&mut self) -> Result<usize, DumpErrorKind> {
        usize::try_from(i32::from_le_bytes(self.array()?)).map_err(|_| DumpErrorKind::Malformed("a length is negative"))
    }

    /// The end of a nested document, after its length.
    fn nested(&mut self) -> Result<usize, DumpErrorKind> {
        let start = self.at;
        Ok(start + self.length()?)
    }

    fn ends_at(&self, end: usize) -> Result<(), DumpErrorKind> {
        if self.at == end {
            return Ok(());
        }
        Err(DumpErrorKind::Malformed("the length of a nested document is wrong"))
    }

    fn name(&mut self) -> Result<&'a str, DumpErrorKind> {
        let rest = &self.bytes[self.at..];
        let length = rest.iter().position(|byte| *byte == 0);
        let length = length.ok_or(DumpErrorKind::Malformed("a name has no end"))?;
        self.at += length + 1;
        std::str::from_utf8(&rest[..length]).map_err(|_| DumpErrorKind::Malformed("a name is not UTF-8"))
    }

    fn text(&mut self) -> Result<&'a str, DumpErrorKind> {
        let length = self.length()?;
        match self.take(length)? {
            [text @ .., 0] => std::str::from_utf8(text).map_err(|_| DumpErrorKind::Malformed("a text is not UTF-8")),
            _ => Err(DumpErrorKind::Malformed("a text has no end")),
        }
    }

    fn object_id(&mut self) -> Result<String, DumpErrorKind> {
        Ok(crate::record::RecordId::from(self.array::<12>()?).to_string())
    }
}

/// A number as JavaScript writes it: whole ones without a fraction. JSON has no infinite numbers; they become null.
pub(crate) fn number(value: f64) -> Value {
    /// The integers up to here are doubles of their own.
    const WHOLE_MAX: f64 = 9_007_199_254_740_992.0;
    if value.fract() == 0.0 && value.abs() <= WHOLE_MAX {
        return Value::from(value as i64);
    }
    Number::from_f64(value).map_or(Value::Null, Value::Number)
}

/// The text of a date in milliseconds.
pub(crate) fn date(millis: i64) -> Result<String, DumpErrorKind> {
    let time = (millis.unsigned_abs() < i64::MAX as u64 / 1_000).then(|| Timestamp::from_millis(millis));
    match time.filter(|time| time.has_text()) {
        Some(time) => Ok(date_text(time)),
        None => Err(DumpErrorKind::Malformed("a date is out of range")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn text(kind: u8, name: &str, text: &str) -> Vec<u8> {
        let mut out = element(kind, name);
        out.extend((text.len() as i32 + 1).to_le_bytes());
        out.extend(text.bytes());
        out.push(0);
        out
    }

    fn element(kind: u8, name: &str) -> Vec<u8> {
        [&[kind], name.as_bytes(), &[0]].concat()
    }

    fn document(elements: &[Vec<u8>]) -> Vec<u8> {
        let body = elements.concat();
        [&(body.len() as i32 + 5).to_le_bytes()[..], &body, &[0]].concat()
    }

    fn with(kind: u8, name: &str, value: &[u8]) -> Vec<u8> {
        [element(kind, name), value.to_vec()].concat()
    }

    fn read(bytes: &[u8]) -> Vec<Result<Document, String>> {
        BsonDocuments::new(bytes).map(|found| found.map_err(|error| error.to_string())).collect()
    }

    #[test]
    fn s14_types_of_a_dump_become_json() {
        let id = [0x65, 0x0a, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
        let one = document(&[
            with(0x07, "_id", &id),
            text(0x02, "userChannelId", "ä@b.ca"),
            with(0x09, "created", &1_600_000_000_123i64.to_le_bytes()),
            with(0x01, "half", &0.5f64.to_le_bytes()),
            with(0x01, "whole", &3f64.to_le_bytes()),
            with(0x01, "nan", &f64::NAN.to_le_bytes()),
            with(0x10, "int", &(-7i32).to_le_bytes()),
            with(0x12, "long", &i64::MAX.to_le_bytes()),
            with(0x08, "flag", &[1]),
            element(0x0a, "nothing"),
            with(0x03, "data", &document(&[with(0x04, "tags", &document(&[text(2, "0", "a"), text(2, "1", "b")]))])),
            with(0x05, "bytes", &[3, 0, 0, 0, 0, 1, 2, 3]),
        ]);
        let two = document(&[]);
        assert_eq!(
            read(&[one, two].concat()),
            [
                Ok(json!({
                    "_id": "650a00000000000000000001", "userChannelId": "ä@b.ca", "created": "2020-09-13T12:26:40.123Z",
                    "half": 0.5, "whole": 3, "nan": null, "int": -7, "long": i64::MAX, "flag": true, "nothing": null,
                    "data": {"tags": ["a", "b"]}, "bytes": "AQID",
                })
                .as_object()
                .expect("an object")
                .clone()),
                Ok(Map::new()),
            ]
        );
    }

    #[test]
    fn s14_damaged_files_are_reported_with_their_offset() {
        let good = document(&[]);
        let check = |bytes: &[u8], expected: &str| {
            let bytes = [&good[..], bytes].concat();
            let found = read(&bytes);
            assert_eq!(found.len(), 2);
            assert_eq!(found[1], Err(format!("at byte 5: {expected}")));
        };
        check(&[1, 0], "the file ends within a document");
        check(&[4, 0, 0, 0, 0], "the length of the document is too small");
        check(&[255; 4], "the length of the document is too small");
        check(&[0, 0, 0, 0x7f], "the document is larger than 16793600 bytes");
        check(&[9, 0, 0, 0, 0], "the file ends within a document");
        check(&[6, 0, 0, 0, 0, 0], "the document ends before its length");
        check(&document(&[element(0x20, "x")]), "an element has an unknown type");
        check(&[7, 0, 0, 0, 1, b'x', b'y'], "a name has no end");
        check(&document(&[with(0x02, "x", &[0xff; 4])]), "a length is negative");
        check(&document(&[with(0x02, "x", &[9, 0, 0, 0])]), "a value reaches beyond its document");
        check(&document(&[with(0x02, "x", &[2, 0, 0, 0, 0xff, 0])]), "a text is not UTF-8");
        check(&document(&[with(0x09, "x", &i64::MAX.to_le_bytes())]), "a date is out of range");
        check(&document(&[with(0x11, "x", &[0; 8])]), "`x` is a timestamp, which no record has");
        let mut deep = document(&[]);
        for _ in 0..200 {
            deep = document(&[with(0x03, "x", &deep)]);
        }
        check(&deep, "the document is nested more than 100 deep");
    }
}
