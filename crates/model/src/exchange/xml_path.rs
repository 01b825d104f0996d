//! XML paths of properties: XPath 1.0 paths from the root over children to an attribute, a text or an element.

use std::{fmt, str::FromStr};

/// Most elements of a path.
const STEPS_MAX: usize = 32;

/// A path to one value: `/order/line[2]/@sku`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct XmlPath {
    /// The elements, from the root.
    pub steps: Vec<XmlStep>,
    /// The selected part of the last element.
    pub end: XmlEnd,
}

/// An element among those of its parent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct XmlStep {
    /// Its name without prefix.
    pub name: String,
    /// Index among siblings of the name, from 1; `None`: any.
    pub at: Option<usize>,
}

/// Selected part of an element.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum XmlEnd {
    /// Its text with that of all elements below it.
    Element,
    /// Its own text, if there is any.
    Text,
    /// The attribute of this name without prefix.
    Attribute(String),
}

/// A text that is not a supported path.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a path to one value: {what}")]
pub struct XmlPathError {
    /// The text.
    pub text: String,
    /// The problem.
    pub what: &'static str,
}

impl FromStr for XmlPath {
    type Err = XmlPathError;

    fn from_str(text: &str) -> Result<XmlPath, XmlPathError> {
        let wrong = |what| XmlPathError { text: text.to_owned(), what };
        let path = text.strip_prefix('/').ok_or_else(|| wrong("it begins with `/` and the root element"))?;
        let mut parts: Vec<&str> = path.split('/').collect();
        let last = parts.last().copied().unwrap_or_default();
        let end = match last.strip_prefix('@') {
            Some(attribute) => XmlEnd::Attribute(read_name(attribute).map_err(wrong)?),
            None if last == "text()" => XmlEnd::Text,
            None => XmlEnd::Element,
        };
        if end != XmlEnd::Element {
            parts.pop();
        }
        match parts.len() {
            0 => return Err(wrong("an attribute or a text is that of an element")),
            many if many > STEPS_MAX => return Err(wrong("it has more than 32 elements")),
            _ => {}
        }
        let steps = parts.into_iter().map(read_step).collect::<Result<_, _>>().map_err(wrong)?;
        Ok(XmlPath { steps, end })
    }
}

fn read_step(part: &str) -> Result<XmlStep, &'static str> {
    let Some((name, at)) = part.split_once('[') else { return Ok(XmlStep { name: read_name(part)?, at: None }) };
    let at = at.strip_suffix(']').and_then(|at| at.parse().ok()).filter(|at| *at > 0);
    let at = at.ok_or("the index in brackets must be a number from 1")?;
    Ok(XmlStep { name: read_name(name)?, at: Some(at) })
}

/// A name without its prefix.
fn read_name(name: &str) -> Result<String, &'static str> {
    const STEPS: &str = "its steps are the names of elements, with `@name` or `text()` at the end";
    let local = name.split_once(':').map_or(Ok(name), |(prefix, local)| match is_name(prefix) {
        true => Ok(local),
        false => Err(STEPS),
    })?;
    if is_name(local) { Ok(local.to_owned()) } else { Err(STEPS) }
}

fn is_name(name: &str) -> bool {
    let begins = |c: char| c.is_alphabetic() || c == '_' || !c.is_ascii();
    name.starts_with(begins) && name.chars().all(|c| begins(c) || c.is_numeric() || matches!(c, '-' | '.'))
}

impl fmt::Display for XmlPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for XmlStep { name, at } in &self.steps {
            write!(f, "/{name}")?;
            at.map_or(Ok(()), |at| write!(f, "[{at}]"))?;
        }
        match &self.end {
            XmlEnd::Element => Ok(()),
            XmlEnd::Text => f.write_str("/text()"),
            XmlEnd::Attribute(name) => write!(f, "/@{name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_read() {
        for (path, expected) in [
            ("/order", "/order"),
            ("/o:order/o:line[2]/@x:sku", "/order/line[2]/@sku"),
            ("/Bestellung/größe/text()", "/Bestellung/größe/text()"),
        ] {
            let read: XmlPath = path.parse().expect(path);
            assert_eq!(read.to_string(), expected);
            assert_eq!(expected.parse(), Ok(read));
        }
        for wrong in [
            "",
            "/",
            "order",
            "//order",
            "/order/",
            "/order//id",
            "/order/*",
            "/order/..",
            "/order[0]",
            "/order[a=1]",
            "/order[1",
            "/@id",
            "/text()",
            "/order/@",
            "/order/@a/b",
            "/a:b:c",
            "/:a",
            "/1a",
            "/order/count()",
        ] {
            assert!(wrong.parse::<XmlPath>().is_err(), "{wrong}");
        }
        assert!("/a".repeat(33).parse::<XmlPath>().is_err());
    }
}
