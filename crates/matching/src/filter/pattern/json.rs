//! JSON parser that records the position of each value, for problem reports.

use tocsin_model::{
    problem::{Code, Problem},
    value::Value,
};

use crate::dialect::Span;

/// Deepest nesting of objects and lists.
const NESTING_MAX: usize = 32;

/// A value and its position in the text.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    pub span: Span,
    pub kind: NodeKind,
}

/// The kinds of values.
#[derive(Debug, Clone, PartialEq)]
pub enum NodeKind {
    /// Null, a boolean, a number or text.
    Scalar(Value),
    List(Vec<Node>),
    Object(Vec<Entry>),
}

/// A key of an object and its value.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    pub key: String,
    pub span: Span,
    pub value: Node,
}

impl Node {
    /// The kind of value, for messages.
    pub fn describe(&self) -> &'static str {
        match &self.kind {
            NodeKind::Scalar(Value::Null) => "null",
            NodeKind::Scalar(Value::Boolean(_)) => "a truth value",
            NodeKind::Scalar(Value::Text(_)) => "text",
            NodeKind::Scalar(_) => "a number",
            NodeKind::List(_) => "a list",
            NodeKind::Object(_) => "an object",
        }
    }
}

/// Parses one JSON value. A duplicate key in an object is a problem.
///
/// # Errors
/// The first syntax error.
pub fn read(text: &str) -> Result<Node, Problem> {
    let mut reader = Reader { text, at: 0 };
    let node = reader.value(0)?;
    reader.skip_white_space();
    if reader.at < text.len() {
        return Err(reader.wrong("the pattern should end here"));
    }
    Ok(node)
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl Reader<'_> {
    fn skip_white_space(&mut self) {
        let rest = &self.text[self.at..];
        self.at += rest.len() - rest.trim_start_matches([' ', '\t', '\r', '\n']).len();
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn span(&self, start: usize) -> Span {
        Span { start: start as u32, end: self.at as u32 }
    }

    fn wrong(&self, message: impl Into<String>) -> Problem {
        self.span(self.at).problem(Code::InvalidSyntax, self.text, message).param("language", "event_pattern")
    }

    fn expect(&mut self, byte: u8, message: &str) -> Result<(), Problem> {
        self.skip_white_space();
        if self.peek() != Some(byte) {
            return Err(self.wrong(message));
        }
        self.at += 1;
        Ok(())
    }

    fn value(&mut self, depth: usize) -> Result<Node, Problem> {
        self.skip_white_space();
        let start = self.at;
        if depth > NESTING_MAX {
            return Err(self.wrong(format!("the pattern is nested deeper than {NESTING_MAX} levels")));
        }
        let kind = match self.peek() {
            Some(b'{') => self.object(depth)?,
            Some(b'[') => self.list(depth)?,
            Some(b'"') => NodeKind::Scalar(Value::from(&*self.string()?)),
            Some(b'-' | b'0'..=b'9') => NodeKind::Scalar(self.number()?),
            Some(b'a'..=b'z' | b'A'..=b'Z') => {
                let rest = &self.text[self.at..];
                let word = &rest[..rest.find(|letter: char| !letter.is_ascii_alphanumeric()).unwrap_or(rest.len())];
                let value = match word {
                    "null" => Value::Null,
                    "true" => Value::Boolean(true),
                    "false" => Value::Boolean(false),
                    _ => {
                        return Err(self.wrong(format!("`{word}` is no JSON value")).hint("put text in double quotes"));
                    }
                };
                self.at += word.len();
                NodeKind::Scalar(value)
            }
            Some(b'\'') => return Err(self.wrong("text stands in double quotes")),
            Some(_) => return Err(self.wrong("a JSON value should begin here")),
            None => return Err(self.wrong("the pattern ends where a value should begin")),
        };
        Ok(Node { span: self.span(start), kind })
    }

    fn object(&mut self, depth: usize) -> Result<NodeKind, Problem> {
        self.at += 1;
        let mut entries: Vec<Entry> = Vec::new();
        self.skip_white_space();
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(NodeKind::Object(entries));
        }
        loop {
            self.skip_white_space();
            let start = self.at;
            if self.peek() != Some(b'"') {
                return Err(self.wrong("a key in double quotes should stand here"));
            }
            let key = self.string()?;
            let span = self.span(start);
            if entries.iter().any(|entry| entry.key == key) {
                return Err(span.problem(Code::Duplicate, self.text, format!("the key `{key}` is given twice")));
            }
            self.expect(b':', "a colon should follow the key")?;
            let value = self.value(depth + 1)?;
            entries.push(Entry { key, span, value });
            self.skip_white_space();
            match self.peek() {
                Some(b',') => self.at += 1,
                _ => {
                    self.expect(b'}', "a comma or `}` should stand here")?;
                    return Ok(NodeKind::Object(entries));
                }
            }
        }
    }

    fn list(&mut self, depth: usize) -> Result<NodeKind, Problem> {
        self.at += 1;
        let mut items = Vec::new();
        self.skip_white_space();
        if self.peek() == Some(b']') {
            self.at += 1;
            return Ok(NodeKind::List(items));
        }
        loop {
            items.push(self.value(depth + 1)?);
            self.skip_white_space();
            match self.peek() {
                Some(b',') => self.at += 1,
                _ => {
                    self.expect(b']', "a comma or `]` should stand here")?;
                    return Ok(NodeKind::List(items));
                }
            }
        }
    }

    fn string(&mut self) -> Result<String, Problem> {
        let start = self.at;
        let mut escaped = false;
        let end = self.text.bytes().enumerate().skip(start + 1).find(|(_, byte)| {
            let ends = *byte == b'"' && !escaped;
            escaped = *byte == b'\\' && !escaped;
            ends
        });
        let Some((end, _)) = end else { return Err(self.wrong("the closing quote of this text is missing")) };
        let literal = &self.text[start..=end];
        let text = serde_json::from_str(literal)
            .map_err(|_| self.wrong("this text has a line break or an escape that JSON does not have"))?;
        self.at = end + 1;
        Ok(text)
    }

    fn number(&mut self) -> Result<Value, Problem> {
        let rest = &self.text[self.at..];
        let is_part = |letter: char| letter.is_ascii_alphanumeric() || "+-.".contains(letter);
        let word = &rest[..rest.find(|letter| !is_part(letter)).unwrap_or(rest.len())];
        let number: serde_json::Number = serde_json::from_str(word).map_err(|_| {
            let is_large = word.parse::<f64>().is_ok_and(f64::is_infinite);
            self.wrong(format!("`{word}` is {}", if is_large { "too large" } else { "no number" }))
        })?;
        let value = Value::from(serde_json::Value::Number(number));
        self.at += word.len();
        Ok(value)
    }
}
