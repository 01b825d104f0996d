//! Combines several messages into one: a JSON list, lines, or elements in a root element.

use std::fmt;

use bytes::Bytes;
use quick_xml::{Reader, events::Event};
use tocsin_matching::filter::{CompiledFilter, compile_for_messages};
use tocsin_model::{
    exact_json,
    exchange::{Assembled, Assembly},
    field::{Fields, Row},
    problem::Problem,
};
use tocsin_store::spool::{AggregationRule, Head};

use crate::promote;

/// Separator of the texts of a key.
const BETWEEN: &str = "\u{1f}";

pub(crate) struct Assembler {
    assembly: Assembly,
    until: Option<CompiledFilter>,
}

impl Assembler {
    pub fn compile(assembly: &Assembly, fields: &Fields) -> Result<Assembler, Vec<Problem>> {
        let until = assembly.until.as_ref().map(|until| compile_for_messages(until, fields)).transpose();
        let until = until.map_err(|problems| {
            let here = |problem: Problem| Problem { path: "until".to_owned(), ..problem };
            problems.into_iter().map(here).collect::<Vec<_>>()
        })?;
        Ok(Assembler { assembly: assembly.clone(), until })
    }

    /// The format of the result.
    pub fn form(&self) -> &Assembled {
        &self.assembly.into
    }

    /// Checks that a body can be part of the result.
    pub fn check(&self, body: &[u8]) -> Result<(), String> {
        match self.assembly.into {
            Assembled::Json => {
                let read = serde_json::from_slice::<serde::de::IgnoredAny>(body);
                read.map(|_| ()).map_err(|error| format!("the body is not JSON: {error}"))
            }
            Assembled::Lines => line(body).map(|_| ()),
            Assembled::Xml(_) => element(body).map(|_| ()),
        }
    }

    /// The aggregation rule of a message: its group and the group's limits. `row` is the row that predicates evaluate.
    pub fn gather(&self, head: &Head, row: &Row) -> AggregationRule {
        let Assembly { by, count, within, bytes, into, .. } = &self.assembly;
        let texts = by.iter().map(|name| promote::text_of(head, name.as_str()).unwrap_or_default());
        AggregationRule {
            key: texts.collect::<Vec<_>>().join(BETWEEN),
            form: Form(into.clone()).to_string(),
            count_max: *count,
            bytes_max: u64::from(*bytes),
            within: *within,
            // A predicate that cannot be evaluated does not hold.
            closes: self.until.as_ref().is_some_and(|until| until.holds(row).unwrap_or(false)),
        }
    }
}

/// The result's format, as stored with the waiting messages.
pub(crate) struct Form(Assembled);

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Assembled::Json => f.write_str("json"),
            Assembled::Lines => f.write_str("lines"),
            Assembled::Xml(root) => write!(f, "xml:{root}"),
        }
    }
}

impl Form {
    pub fn of(text: &str) -> Form {
        match text.split_once(':') {
            Some(("xml", root)) => Form(Assembled::Xml(root.to_owned())),
            _ if text == "lines" => Form(Assembled::Lines),
            _ => Form(Assembled::Json),
        }
    }

    /// Combines the bodies; returns the result and its media type.
    pub fn compose(&self, bodies: &[Bytes]) -> Result<(Bytes, &'static str), String> {
        let mut made = Vec::with_capacity(bodies.iter().map(|body| body.len() + 1).sum::<usize>() + 64);
        let media_type = match &self.0 {
            Assembled::Json => {
                made.push(b'[');
                for (at, body) in bodies.iter().enumerate() {
                    made.extend_from_slice(if at == 0 { b"" } else { b"," });
                    made.extend_from_slice(body.trim_ascii());
                }
                made.push(b']');
                "application/json"
            }
            Assembled::Lines => {
                for body in bodies {
                    made.extend_from_slice(&line(body)?);
                    made.push(b'\n');
                }
                "application/x-ndjson"
            }
            Assembled::Xml(root) => {
                made.extend_from_slice(format!("<{root}>").as_bytes());
                for body in bodies {
                    made.extend_from_slice(element(body)?);
                }
                made.extend_from_slice(format!("</{root}>").as_bytes());
                "application/xml"
            }
        };
        Ok((made.into(), media_type))
    }
}

/// The body as one line.
fn line(body: &[u8]) -> Result<Bytes, String> {
    let body = body.trim_ascii();
    if !body.contains(&b'\n') {
        return Ok(Bytes::copy_from_slice(body));
    }
    let several = "the body has several lines, and is not JSON";
    let text = std::str::from_utf8(body).map_err(|_| several)?;
    serde_json::from_str::<serde::de::IgnoredAny>(text).map_err(|_| several)?;
    // Removes only white space: numbers, names and order stay as written.
    Ok(exact_json::compact(text).into())
}

/// The root element of a body, in its exact text.
fn element(body: &[u8]) -> Result<&[u8], String> {
    let text = std::str::from_utf8(body).map_err(|_| "the body is not XML in UTF-8")?;
    let mut reader = Reader::from_str(text);
    let (mut depth, mut found) = (0_usize, None);
    loop {
        let from = place(&reader);
        let broken = |why: &dyn fmt::Display| format!("the body is not XML: {why}");
        let event = reader.read_event().map_err(|error| broken(&error))?;
        let to = place(&reader);
        match event {
            Event::Start(_) | Event::Empty(_) if depth == 0 && found.is_some() => {
                return Err(broken(&"it has more than one root element"));
            }
            Event::Start(_) => {
                found = found.or(Some((from, to)));
                depth += 1;
            }
            Event::Empty(_) => found = found.or(Some((from, to))),
            Event::End(_) => {
                depth = depth.saturating_sub(1);
                if let (0, Some((_, end))) = (depth, &mut found) {
                    *end = to;
                }
            }
            Event::Text(text) if depth == 0 && !text.xml10_content().trim().is_empty() => {
                return Err(broken(&"it has text outside of its root element"));
            }
            Event::DocType(_) => return Err("the body has a document type declaration, which is not read".to_owned()),
            Event::Eof if depth > 0 => return Err(broken(&"it ends inside of an element")),
            Event::Eof => {
                let (from, to) = found.ok_or_else(|| broken(&"it has no element"))?;
                return Ok(&body[from..to]);
            }
            _ => {}
        }
    }
}

fn place(reader: &Reader<&[u8]>) -> usize {
    usize::try_from(reader.buffer_position()).expect("it is within the body")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(form: &str, bodies: &[&str], expected: Result<&str, &str>) {
        let bodies: Vec<Bytes> = bodies.iter().map(|body| Bytes::copy_from_slice(body.as_bytes())).collect();
        let form = Form::of(form);
        match (form.compose(&bodies), expected) {
            (Ok((made, _)), Ok(expected)) => assert_eq!(std::str::from_utf8(&made).expect("text"), expected),
            (Err(why), Err(part)) => assert!(why.contains(part), "{why}"),
            (got, _) => panic!("{got:?}, not {expected:?}"),
        }
    }

    #[test]
    fn bodies_are_combined() {
        check("json", &["{\"a\": 1}", " 2\n"], Ok("[{\"a\": 1},2]"));
        check("lines", &["{\"a\": 1}\n", "{\n\"a\": 2}", "x"], Ok("{\"a\": 1}\n{\"a\":2}\nx\n"));
        check("lines", &["{\n \"b\": 1.10, \"a\": 1e400,\n\"b\": -0 }"], Ok("{\"b\":1.10,\"a\":1e400,\"b\":-0}\n"));
        check("lines", &["[1,\n2] x"], Err("several lines"));
        check("lines", &["a\nb"], Err("several lines"));
        check(
            "xml:all",
            &["<?xml version='1.0'?>\n<a><b/></a><!-- c -->", "<a x='1'/>"],
            Ok("<all><a><b/></a><a x='1'/></all>"),
        );
        check("xml:all", &["<a/><a/>"], Err("more than one root"));
        check("xml:all", &["<!DOCTYPE a><a/>"], Err("document type"));
        check("xml:all", &["x"], Err("text outside"));
        check("xml:all", &[""], Err("no element"));
        for form in ["json", "lines", "xml:all"] {
            assert_eq!(Form::of(form).to_string(), form);
        }
    }
}
