//! Parses YAML text into nodes with positions.
//!
//! YAML 1.2 with the core schema, one document, without anchors and aliases: a definition is read from top to bottom,
//! and nothing in it can grow beyond its own length.

use std::collections::HashSet;

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, Span, Tag};

use super::surrogate_pairs::{self, SurrogatePairs};
use crate::{
    problem::{Code, Problem},
    value::Value,
};

/// Most problems reported for a definition at once; further ones are counted.
pub const PROBLEMS_MAX: usize = 200;
/// Deepest nesting of mappings and lists.
const DEPTH_MAX: usize = 32;
/// Most scalars, lists and mappings in all.
const NODES_MAX: usize = 200_000;

/// One node of the document.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// From 1.
    pub line: u32,
    /// In characters, from 1.
    pub column: u32,
    /// Start in the text, in characters.
    pub start: usize,
    /// End in the text, in characters.
    pub end: usize,
    /// Its content.
    pub kind: Kind,
}

/// Content of a node.
#[derive(Debug, Clone, PartialEq)]
pub enum Kind {
    /// Nothing.
    Null,
    /// `true` or `false`.
    Boolean(bool),
    /// A whole number.
    Integer(i64),
    /// Another number, which is finite.
    Number(f64),
    /// Text.
    Text {
        /// The text.
        text: String,
        /// Whether it was written without quotes.
        plain: bool,
    },
    /// A list.
    List(Vec<Node>),
    /// A mapping, in the order of the text.
    Map(Vec<Entry>),
}

/// One entry of a mapping.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// Its key.
    pub key: String,
    /// Line of the key.
    pub line: u32,
    /// Column of the key.
    pub column: u32,
    /// Its value.
    pub value: Node,
}

impl Node {
    /// A problem at this node.
    pub fn problem(&self, code: Code, path: &str, message: impl Into<String>) -> Problem {
        Problem::new(code, path, message).position(self.line, self.column)
    }

    /// The entries, if it is a mapping.
    pub fn entries(&self) -> &[Entry] {
        match &self.kind {
            Kind::Map(entries) => entries,
            _ => &[],
        }
    }

    /// The entry of this key, if it is a mapping that has one which is not null.
    pub fn entry(&self, key: &str) -> Option<&Entry> {
        self.entries().iter().find(|entry| entry.key == key && entry.value.kind != Kind::Null)
    }

    /// The value of this key.
    pub fn get(&self, key: &str) -> Option<&Node> {
        self.entry(key).map(|entry| &entry.value)
    }

    /// The text, if it is one.
    pub fn text(&self) -> Option<&str> {
        match &self.kind {
            Kind::Text { text, .. } => Some(text),
            _ => None,
        }
    }

    /// The node as a value of the model.
    pub fn value(&self) -> Value {
        match &self.kind {
            Kind::Null => Value::Null,
            Kind::Boolean(value) => Value::Boolean(*value),
            Kind::Integer(value) => Value::Integer(*value),
            Kind::Number(value) => Value::from(*value),
            Kind::Text { text, .. } => Value::from(text.as_str()),
            Kind::List(items) => Value::List(items.iter().map(Node::value).collect()),
            Kind::Map(entries) => {
                Value::Map(entries.iter().map(|entry| (entry.key.as_str().into(), entry.value.value())).collect())
            }
        }
    }

    /// The node as JSON.
    pub fn json(&self) -> serde_json::Value {
        serde_json::to_value(self.value()).expect("a value is always JSON")
    }

    /// The noun for its kind in messages.
    pub fn noun(&self) -> &'static str {
        match &self.kind {
            Kind::Null => "nothing",
            Kind::Boolean(_) => "a boolean",
            Kind::Integer(_) => "an integer",
            Kind::Number(_) => "a number",
            Kind::Text { .. } => "text",
            Kind::List(_) => "a list",
            Kind::Map(_) => "a mapping",
        }
    }
}

/// The path of a key below a path.
pub fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

/// Parses the text. `None` after a syntax error.
pub fn parse(text: &str, problems: &mut Vec<Problem>) -> Option<Node> {
    if text.len() > TEXT_BYTES_MAX {
        problems.push(
            Problem::new(Code::TooLong, "", format!("is {} bytes long", text.len()))
                .param("given", text.len())
                .param("limit", TEXT_BYTES_MAX)
                .param("unit", "bytes")
                .hint(format!("at most {} are read", TEXT_BYTES_MAX)),
        );
        return None;
    }
    // The parser takes U+0000 for the end of the text and would ignore the rest.
    if let Some((line, column, character)) = forbidden(text) {
        let code = u32::from(character);
        let problem = Problem::new(
            Code::InvalidCharacters,
            "",
            format!("has the character U+{code:04X}, which YAML does not allow"),
        )
        .hint(format!("take it out, or write `\\x{code:02X}` within double quotes; definitions are in UTF-8"));
        problems.push(problem.position(line, column));
        return None;
    }
    let (text, pairs) = surrogate_pairs::replace(text.strip_prefix('\u{feff}').unwrap_or(text));
    let mut tree = Tree { open: Vec::new(), root: None, nodes: 0, pairs, problems };
    let mut documents = 0;
    for event in Parser::new_from_str(&text) {
        let (event, span) = match event {
            Ok(event) => event,
            Err(error) => {
                let mut problem = Problem::syntax("yaml", tree.path(), format!("is not YAML: {}", error.info()));
                if error.info().contains("Unicode character escape") {
                    problem = problem.hint(
                        "`\\ud800` to `\\udfff` are halves of surrogate pairs: write both, such as `\\ud83d\\ude00`, or the \
                         character itself",
                    );
                }
                tree.problems.push(at(problem, error.marker()));
                return None;
            }
        };
        if matches!(event, Event::DocumentStart(_)) {
            documents += 1;
            if documents > 1 {
                tree.problems.push(at(
                    Problem::new(Code::Unsupported, "", "has a second document").hint("one file holds one application"),
                    &span.start,
                ));
                return None;
            }
        }
        tree.take(event, span)?;
    }
    let root = tree.root;
    if root.as_ref().is_none_or(|root| root.kind == Kind::Null) {
        problems.push(Problem::new(Code::Empty, "", "is empty").hint("begin with `application: <name>`"));
        return None;
    }
    root
}

/// The first control character that YAML allows nowhere (YAML 1.2.2, 5.1), with its line and column.
fn forbidden(text: &str) -> Option<(u32, u32, char)> {
    let is_forbidden = |c: char| c < ' ' && !matches!(c, '\t' | '\n' | '\r');
    let at = text.find(is_forbidden)?;
    let before = &text[..at];
    let line = before.matches('\n').count() as u32 + 1;
    let column = before.rsplit('\n').next().map_or(0, |line| line.chars().count()) as u32 + 1;
    Some((line, column, text[at..].chars().next()?))
}

fn at(problem: Problem, mark: &Marker) -> Problem {
    problem.position(mark.line() as u32, mark.col() as u32 + 1)
}

/// A mapping or list that is not complete yet.
struct Open {
    node: Node,
    /// The key that waits for its value, and its position.
    key: Option<(String, u32, u32)>,
    keys: HashSet<String>,
}

/// Builds the tree from parser events. It has its own stack, so that deep nesting cannot overflow ours.
struct Tree<'a> {
    open: Vec<Open>,
    root: Option<Node>,
    nodes: usize,
    pairs: SurrogatePairs<'a>,
    problems: &'a mut Vec<Problem>,
}

impl Tree<'_> {
    fn take(&mut self, event: Event<'_>, span: Span) -> Option<()> {
        let kind = match event {
            Event::Alias(_) => {
                self.refuse(
                    Code::Unsupported,
                    span,
                    "is an alias",
                    "write the value out; aliases and anchors are not supported",
                );
                Kind::Null
            }
            Event::Scalar(text, style, anchor, tag) => {
                self.refuse_anchor(anchor, span);
                let is_double_quoted = style == ScalarStyle::DoubleQuoted;
                let text = self.pairs.restore(text.into_owned(), is_double_quoted, span.start.index());
                self.scalar(text, style, tag.as_deref(), span)
            }
            Event::SequenceStart(anchor, tag) => {
                self.refuse_anchor(anchor, span);
                self.refuse_tag(tag.as_deref(), span);
                return self.open(Kind::List(Vec::new()), span);
            }
            Event::MappingStart(anchor, tag) => {
                self.refuse_anchor(anchor, span);
                self.refuse_tag(tag.as_deref(), span);
                return self.open(Kind::Map(Vec::new()), span);
            }
            Event::SequenceEnd | Event::MappingEnd => {
                let mut closed = self.open.pop().expect("the parser closes what it opened").node;
                // A block mapping ends where the next token begins; its content ends earlier.
                closed.end = match &closed.kind {
                    _ if span.end.index() > span.start.index() => span.end.index(),
                    Kind::Map(entries) => entries.last().map_or(closed.end, |entry| entry.value.end),
                    Kind::List(items) => items.last().map_or(closed.end, |item| item.end),
                    _ => closed.end,
                };
                self.place(closed);
                return Some(());
            }
            _ => return Some(()),
        };
        self.count(span)?;
        let raw = node(kind, span);
        self.place(raw);
        Some(())
    }

    fn scalar(&mut self, text: String, style: ScalarStyle, tag: Option<&Tag>, span: Span) -> Kind {
        let awaits_key =
            self.open.last().is_some_and(|open| matches!(open.node.kind, Kind::Map(_)) && open.key.is_none());
        let forced_text = tag.is_some_and(|tag| tag.is_yaml_core_schema() && tag.suffix == "str");
        if !forced_text {
            self.refuse_tag(tag, span);
        }
        // Keys are always text, including `on`, `no` and `8`.
        if awaits_key || forced_text || style != ScalarStyle::Plain {
            return Kind::Text { text, plain: false };
        }
        let kind = plain(text);
        if matches!(kind, Kind::Number(number) if !number.is_finite()) {
            self.refuse(Code::WrongType, span, "is not a finite number", "put it in quotes if it is meant to be text");
            return Kind::Null;
        }
        kind
    }

    fn open(&mut self, kind: Kind, span: Span) -> Option<()> {
        self.count(span)?;
        if self.open.len() == DEPTH_MAX {
            self.refuse(Code::TooDeep, span, "is nested too deeply", &format!("at most {DEPTH_MAX} levels are read"));
            return None;
        }
        self.open.push(Open { node: node(kind, span), key: None, keys: HashSet::new() });
        Some(())
    }

    fn count(&mut self, span: Span) -> Option<()> {
        self.nodes += 1;
        if self.nodes > NODES_MAX {
            self.refuse(Code::TooMany, span, "is one value too many", &format!("at most {NODES_MAX} are read"));
            return None;
        }
        Some(())
    }

    /// Adds a finished node to its parent.
    fn place(&mut self, node: Node) {
        let path = self.path();
        let Some(open) = self.open.last_mut() else {
            self.root = Some(node);
            return;
        };
        match &mut open.node.kind {
            Kind::List(items) => items.push(node),
            Kind::Map(entries) => match open.key.take() {
                Some((key, line, column)) => {
                    if open.keys.insert(key.clone()) {
                        entries.push(Entry { key, line, column, value: node });
                    } else {
                        let first = entries.iter().find(|entry| entry.key == key).map_or(0, |entry| entry.line);
                        let problem = Problem::duplicate(path).hint(format!("the first is in line {first}"));
                        self.problems.push(problem.position(line, column));
                    }
                }
                None => match node.kind {
                    Kind::Text { text, .. } => open.key = Some((text, node.line, node.column)),
                    _ => {
                        self.problems.push(
                            node.problem(Code::WrongType, &path, format!("has {} as a key", node.noun()))
                                .hint("keys are text"),
                        );
                        open.key = Some((String::new(), node.line, node.column));
                    }
                },
            },
            _ => {}
        }
    }

    /// The path of the next node.
    fn path(&self) -> String {
        self.open.iter().fold(String::new(), |path, open| match (&open.node.kind, &open.key) {
            (Kind::List(items), _) => format!("{path}[{}]", items.len()),
            (_, Some((key, ..))) => join(&path, key),
            _ => path,
        })
    }

    fn refuse(&mut self, code: Code, span: Span, message: &str, hint: &str) {
        let problem = Problem::new(code, self.path(), message).hint(hint);
        self.problems.push(at(problem, &span.start));
    }

    fn refuse_anchor(&mut self, anchor: usize, span: Span) {
        if anchor != 0 {
            self.refuse(
                Code::Unsupported,
                span,
                "has an anchor",
                "leave `&...` out; aliases and anchors are not supported",
            );
        }
    }

    fn refuse_tag(&mut self, tag: Option<&Tag>, span: Span) {
        if let Some(tag) = tag {
            self.refuse(
                Code::Unsupported,
                span,
                &format!("has the tag `{tag}`"),
                "leave the tag out; quotes make text",
            );
        }
    }
}

fn node(kind: Kind, span: Span) -> Node {
    Node {
        line: span.start.line() as u32,
        column: span.start.col() as u32 + 1,
        start: span.start.index(),
        end: span.end.index(),
        kind,
    }
}

/// The kind of a plain scalar in the core schema of YAML 1.2 (section 10.3.2).
pub fn plain(text: String) -> Kind {
    match text.as_str() {
        "" | "~" | "null" | "Null" | "NULL" => return Kind::Null,
        "true" | "True" | "TRUE" => return Kind::Boolean(true),
        "false" | "False" | "FALSE" => return Kind::Boolean(false),
        ".nan" | ".NaN" | ".NAN" => return Kind::Number(f64::NAN),
        _ => {}
    }
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(&text);
    if matches!(unsigned, ".inf" | ".Inf" | ".INF") {
        return Kind::Number(f64::INFINITY);
    }
    let radix =
        |prefix: &str, radix| text.strip_prefix(prefix).and_then(|digits| i64::from_str_radix(digits, radix).ok());
    if let Some(integer) = radix("0x", 16).or_else(|| radix("0o", 8)) {
        return Kind::Integer(integer);
    }
    let numeric = unsigned.starts_with(|first: char| first.is_ascii_digit() || first == '.')
        && unsigned.bytes().any(|byte| byte.is_ascii_digit())
        && unsigned.bytes().all(|byte| byte.is_ascii_digit() || b".eE+-".contains(&byte));
    if numeric {
        if let Ok(integer) = text.parse() {
            return Kind::Integer(integer);
        }
        if let Ok(number) = text.parse() {
            return Kind::Number(number);
        }
    }
    Kind::Text { text, plain: true }
}

/// Longest text of a definition, in bytes. A longer one is refused unread.
pub const TEXT_BYTES_MAX: usize = 1 << 20;
