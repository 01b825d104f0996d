//! Documents of a `mongoexport` file: MongoDB Extended JSON, versions 1 and 2, one document in each line or a list.
//!
//! The reader holds one document at a time. Sizes and depth are bounded. `{"$oid"}` becomes its text, `{"$date"}` the
//! text of dates in records, and the number types numbers, as in [`bson`](crate::bson).

use std::io::BufRead;

use serde_json::{Map, Value};

use crate::{
    bson::{DEPTH_MAX, date, number},
    dump::{DumpError, DumpErrorKind, Position},
    record::{Document, date_text, parse_date},
};

/// Largest document. Text is longer than BSON.
pub const DOCUMENT_BYTES_MAX: usize = 64 << 20;

/// Iterator over the documents of a file. After a document that cannot be read, it goes on with the next one.
#[derive(Debug)]
pub struct JsonDocuments<R> {
    source: R,
    line: u64,
    buffer: Vec<u8>,
    ended: bool,
}

impl<R: BufRead> JsonDocuments<R> {
    /// Documents of a file.
    pub fn new(source: R) -> Self {
        JsonDocuments { source, line: 1, buffer: Vec::new(), ended: false }
    }

    /// Skips white space and what separates documents. Returns the next byte.
    fn skip(&mut self) -> Result<Option<u8>, DumpErrorKind> {
        loop {
            let available = self.source.fill_buf()?;
            let Some(first) = available.first() else { return Ok(None) };
            // The byte order mark stands at the start only, where it does no harm.
            let is_separator = b" \t\r\n,[]\xef\xbb\xbf".contains(first);
            if !is_separator {
                return Ok(Some(*first));
            }
            self.line += u64::from(*first == b'\n');
            self.source.consume(1);
        }
    }

    /// Reads the text of one document into the buffer: up to the brace that closes it.
    fn read_text(&mut self) -> Result<(), DumpErrorKind> {
        self.buffer.clear();
        let (mut depth, mut in_text, mut escaped) = (0usize, false, false);
        loop {
            let available = self.source.fill_buf()?;
            if available.is_empty() {
                self.ended = true;
                return Err(DumpErrorKind::Malformed("the file ends within a document"));
            }
            let mut used = 0;
            let mut is_complete = false;
            for byte in available {
                used += 1;
                self.line += u64::from(*byte == b'\n');
                match byte {
                    _ if escaped => escaped = false,
                    b'\\' if in_text => escaped = true,
                    b'"' => in_text = !in_text,
                    b'{' if !in_text => depth += 1,
                    b'}' if !in_text => {
                        depth -= 1;
                        is_complete = depth == 0;
                    }
                    _ => {}
                }
                if is_complete {
                    break;
                }
            }
            if self.buffer.len() + used > DOCUMENT_BYTES_MAX {
                self.ended = true;
                return Err(DumpErrorKind::TooLarge { limit: DOCUMENT_BYTES_MAX });
            }
            self.buffer.extend_from_slice(&available[..used]);
            self.source.consume(used);
            if is_complete {
                return Ok(());
            }
        }
    }

    fn skip_line(&mut self) -> Result<(), DumpErrorKind> {
        loop {
            let available = self.source.fill_buf()?;
            if available.is_empty() {
                return Ok(());
            }
            let end = available.iter().position(|byte| *byte == b'\n');
            let used = end.unwrap_or(available.len());
            self.source.consume(used);
            if end.is_some() {
                return Ok(());
            }
        }
    }

    fn read(&mut self, first: u8) -> Result<Document, DumpErrorKind> {
        if first != b'{' {
            self.skip_line()?;
            return Err(DumpErrorKind::Malformed("a document begins with `{`"));
        }
        self.read_text()?;
        let value: Value = serde_json::from_slice(&self.buffer)?;
        match read_value(value, "", 0)? {
            Value::Object(document) => Ok(document),
            _ => Err(DumpErrorKind::Malformed("the document is not an object")),
        }
    }
}

impl<R: BufRead> Iterator for JsonDocuments<R> {
    type Item = Result<Document, DumpError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let first = self.skip();
        let position = Position::Line(self.line);
        let result = match first {
            Ok(None) => {
                self.ended = true;
                return None;
            }
            Ok(Some(first)) => self.read(first),
            Err(kind) => Err(kind),
        };
        self.ended |= matches!(result, Err(DumpErrorKind::Io(_)));
        Some(result.map_err(|kind| DumpError { position, kind }))
    }
}

/// A value without the wrappers of extended JSON.
fn read_value(value: Value, name: &str, depth: usize) -> Result<Value, DumpErrorKind> {
    if depth > DEPTH_MAX {
        return Err(DumpErrorKind::TooDeep { limit: DEPTH_MAX });
    }
    Ok(match value {
        Value::Array(items) => {
            Value::Array(items.into_iter().map(|item| read_value(item, name, depth + 1)).collect::<Result<_, _>>()?)
        }
        Value::Object(object) => match wrapped(&object, name)? {
            Some(value) => value,
            None => {
                let mut document = Map::new();
                for (key, value) in object {
                    let value = read_value(value, &key, depth + 1)?;
                    document.insert(key, value);
                }
                Value::Object(document)
            }
        },
        Value::Number(number) => match number.as_i64() {
            Some(integer) => Value::from(integer),
            None => crate::bson::number(number.as_f64().unwrap_or(f64::NAN)),
        },
        other => other,
    })
}

/// The value of an object that is a wrapper.
fn wrapped(object: &Map<String, Value>, name: &str) -> Result<Option<Value>, DumpErrorKind> {
    let Some((key, value)) = object.iter().next().filter(|(key, _)| key.starts_with('$')) else { return Ok(None) };
    let malformed = || DumpErrorKind::Wrapper { wrapper: key.clone(), property: name.to_owned() };
    let unsupported = |kind: &'static str| DumpErrorKind::Unsupported { kind, property: name.to_owned() };
    let text = || value.as_str().ok_or_else(malformed);
    // Version 1 of binary data and regular expressions has a second key.
    if object.len() > 1 && !matches!(key.as_str(), "$binary" | "$type" | "$regex" | "$options" | "$code" | "$scope") {
        return Ok(None);
    }
    Ok(Some(match key.as_str() {
        "$oid" | "$symbol" | "$uuid" => Value::from(text()?),
        "$code" if object.len() == 1 => Value::from(text()?),
        "$date" => Value::from(match value {
            Value::String(text) => date_text(parse_date(text).ok_or_else(malformed)?),
            Value::Number(millis) => date(millis.as_i64().ok_or_else(malformed)?)?,
            Value::Object(long) => {
                let millis = long.get("$numberLong").and_then(Value::as_str).and_then(|text| text.parse().ok());
                date(millis.ok_or_else(malformed)?)?
            }
            _ => return Err(malformed()),
        }),
        "$numberInt" | "$numberLong" => Value::from(match value {
            Value::Number(number) => number.as_i64().ok_or_else(malformed)?,
            _ => text()?.parse().map_err(|_| malformed())?,
        }),
        "$numberDouble" => match value {
            Value::Number(double) => number(double.as_f64().unwrap_or(f64::NAN)),
            _ => match text()? {
                "NaN" | "Infinity" | "-Infinity" => Value::Null,
                digits => number(digits.parse().map_err(|_| malformed())?),
            },
        },
        "$undefined" => Value::Null,
        "$binary" | "$type" if object.contains_key("$binary") => {
            let base64 = match &object["$binary"] {
                Value::Object(binary) => binary.get("base64").and_then(Value::as_str),
                binary => binary.as_str(),
            };
            Value::from(base64.ok_or_else(malformed)?)
        }
        "$numberDecimal" => return Err(unsupported("decimal")),
        "$regex" | "$options" | "$regularExpression" => return Err(unsupported("regular expression")),
        "$code" | "$scope" => return Err(unsupported("code with scope")),
        "$timestamp" => return Err(unsupported("timestamp")),
        "$minKey" | "$maxKey" => return Err(unsupported("key bound")),
        "$dbPointer" => return Err(unsupported("pointer")),
        // A property of a client.
        _ => return Ok(None),
    }))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(text: &str) -> Vec<Result<Value, String>> {
        JsonDocuments::new(text.as_bytes())
            .map(|found| found.map(Value::Object).map_err(|error| error.to_string()))
            .collect()
    }

    #[test]
    fn s14_both_versions_of_extended_json_become_json() {
        let text = r#"
{"_id":{"$oid":"650a00000000000000000001"},"created":{"$date":"2020-09-13T12:26:40.123Z"},"n":{"$numberInt":"-7"}}
{"_id":"x","created":{"$date":{"$numberLong":"1600000000123"}},"n":{"$numberLong":"9007199254740993"},"t":"}\"{"}
{"created":{"$date":1600000000123},"d":{"$numberDouble":"0.5"},"nan":{"$numberDouble":"NaN"},"whole":3.0,
 "b":{"$binary":"AQID","$type":"00"},"c":{"$binary":{"base64":"AQID","subType":"00"}},"u":{"$undefined":true},
 "data":{"$gt":1,"list":[{"$oid":"a"},null]}}"#;
        let date = "2020-09-13T12:26:40.123Z";
        assert_eq!(
            read(text),
            [
                Ok(json!({"_id": "650a00000000000000000001", "created": date, "n": -7})),
                Ok(json!({"_id": "x", "created": date, "n": 9_007_199_254_740_993i64, "t": "}\"{"})),
                Ok(json!({
                    "created": date, "d": 0.5, "nan": null, "whole": 3, "b": "AQID", "c": "AQID", "u": null,
                    "data": {"$gt": 1, "list": ["a", null]},
                })),
            ]
        );
    }

    #[test]
    fn s14_a_list_is_read_as_lines_are() {
        let expected = [Ok(json!({"a": 1})), Ok(json!({"a": [{"b": 2}]}))];
        for text in [
            "[{\"a\":1},\n{\"a\":[{\"b\":2}]}]\n",
            "{\"a\":1}\n{\"a\":[{\"b\":2}]}",
            "\u{feff}[ {\"a\":1} ,{\"a\":[{\"b\":2}]} ]",
        ] {
            assert_eq!(read(text), expected, "{text}");
        }
        assert_eq!(read("[]\n"), []);
        assert_eq!(read(""), []);
    }

    #[test]
    fn s14_wrong_documents_are_reported_with_their_line() {
        let lines = [
            r#"{"a":1}"#,
            r#"{"a":}"#,
            "",
            r#"{"created":{"$date":"soon"}}"#,
            "x",
            r#"{"p":{"$timestamp":{}}}"#,
            r#"{"a":2}"#,
            r#"{"a""#,
        ];
        let text = &lines.join("\n");
        let found = read(text);
        assert_eq!(found[0], Ok(json!({"a": 1})));
        assert!(found[1].as_ref().is_err_and(|error| error.starts_with("in line 2: the document is not JSON: ")));
        let expected = [
            Err("in line 4: the `$date` of `created` cannot be read".to_owned()),
            Err("in line 5: a document begins with `{`".to_owned()),
            Err("in line 6: `p` is a timestamp, which no record has".to_owned()),
            Ok(json!({"a": 2})),
            Err("in line 8: the file ends within a document".to_owned()),
        ];
        assert_eq!(found[2..], expected);
        let deep = format!("{}1{}", "{\"a\":".repeat(110), "}".repeat(110));
        assert_eq!(read(&deep), [Err("in line 1: the document is nested more than 100 deep".to_owned())]);
    }
}
