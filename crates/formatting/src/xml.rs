//! Bounded XML parser for documents from outside; it produces the operations that build a tree in a worker.
//!
//! Parsing uses quick-xml: libxml2 never parses text from outside. Namespaces, comments, processing instructions and
//! attributes of `xml:` are kept; document type declarations and their entities are rejected.

use quick_xml::{
    Reader,
    events::{BytesPI, BytesRef, BytesStart, Event},
};

use tocsin_model::charset;

use crate::tree::{ATTRIBUTES_MAX, Namespace, Tree};

/// Most prefixes in scope of an element: lookup is linear.
const PREFIXES_MAX: usize = 256;
pub const OF_SCHEMA: &str = "http://www.w3.org/2001/XMLSchema";
const OF_INSTANCE: &str = "http://www.w3.org/2001/XMLSchema-instance";
const OF_XML: &str = "http://www.w3.org/XML/1998/namespace";
const OF_XMLNS: &str = "http://www.w3.org/2000/xmlns/";

/// An error message, and an optional hint.
pub type XmlFault = (String, &'static str);

/// Options of parsing a document.
#[derive(Clone, Copy)]
pub struct Options {
    /// Most elements, attributes, declared namespaces, texts, comments and processing instructions.
    pub nodes_max: usize,
    pub depth_max: usize,
    /// For validation: elements have marks, and irrelevant nodes are dropped: comments, processing instructions, and
    /// schema locations.
    pub is_for_schema: bool,
    /// Rejects an element by its local name and namespace.
    pub refuse: fn(&str, &str) -> Option<XmlFault>,
}

/// A parse error and its position.
#[derive(Debug)]
pub struct XmlError {
    pub line: u32,
    pub column: u32,
    pub message: String,
    pub hint: &'static str,
}

/// A parsed document, and the positions of its elements: line and column from 1, by their marks.
#[derive(Debug)]
pub struct Document {
    pub tree: Tree,
    pub places: Vec<(u32, u32)>,
}

/// Parses a document.
///
/// # Errors
/// The text is not well-formed (XML 1.0, Namespaces in XML 1.0), or exceeds a limit.
pub fn read(text: &str, options: &Options) -> Result<Document, XmlError> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut reader = Reader::from_str(text);
    reader.config_mut().check_comments = true;
    let mut cursor = Cursor { text, at: 0, line: 1, column: 1 };
    if let Some((at, character)) = charset::first_invalid_xml_char(text) {
        let (line, column) = cursor.advance_to(at);
        return Err(XmlError { line, column, message: not_allowed(character), hint: "" });
    }
    let mut writer = Writer {
        document: Document { tree: Tree::default(), places: vec![(1, 1)] },
        scope: Vec::new(),
        depth: 0,
        roots: 0,
        options,
    };
    loop {
        let from = usize::try_from(reader.buffer_position()).unwrap_or(usize::MAX);
        let event = reader.read_event();
        // Positions are computed only for documents with marks; for others, once, at an error.
        let place = if options.is_for_schema { cursor.advance_to(from) } else { (1, 1) };
        let outcome = match event {
            Ok(Event::Eof) => break,
            Ok(Event::Decl(_)) if from > 0 => {
                Err(("is not XML: its declaration `<?xml ...?>` is not at its beginning".to_owned(), ""))
            }
            Ok(event) => writer.take(event, place),
            Err(error) => Err((format!("is not XML: {error}"), "")),
        };
        if let Err((message, hint)) = outcome {
            let (line, column) = cursor.advance_to(from);
            return Err(XmlError { line, column, message, hint });
        }
    }
    let (line, column) = cursor.advance_to(text.len());
    let wrong = |message: &str| XmlError { line, column, message: message.to_owned(), hint: "" };
    match (writer.roots, writer.depth) {
        (0, _) => Err(wrong("is not XML: it has no element")),
        (_, 0) => Ok(writer.document),
        _ => Err(wrong("ends inside of an element")),
    }
}

/// A position in a text.
struct Cursor<'a> {
    text: &'a str,
    at: usize,
    line: u32,
    column: u32,
}

impl Cursor<'_> {
    /// Moves to an offset. Returns its line and column.
    fn advance_to(&mut self, at: usize) -> (u32, u32) {
        for c in self.text.get(self.at..at).unwrap_or_default().chars() {
            if c == '\n' {
                (self.line, self.column) = (self.line + 1, 1);
            } else {
                self.column += 1;
            }
        }
        self.at = at.max(self.at);
        (self.line, self.column)
    }
}

/// A declared prefix, and the depth of its element.
struct PrefixDeclaration {
    depth: usize,
    prefix: String,
    namespace: Option<Namespace>,
    href: String,
}

/// The state of parsing.
struct Writer<'o> {
    document: Document,
    scope: Vec<PrefixDeclaration>,
    depth: usize,
    roots: usize,
    options: &'o Options,
}

impl Writer<'_> {
    fn take(&mut self, event: Event<'_>, place: (u32, u32)) -> Result<(), XmlFault> {
        match event {
            Event::Start(start) => self.enter(&start, place)?,
            Event::Empty(start) => {
                self.enter(&start, place)?;
                self.leave_element();
            }
            Event::End(_) => self.leave_element(),
            Event::Text(text) if text.contains("]]>") => {
                return Err(("is not XML: a text has `]]>`, which ends a CDATA section".to_owned(), ""));
            }
            Event::Text(text) => self.text(&text.xml10_content())?,
            Event::CData(text) => self.text(&text.xml10_content())?,
            Event::GeneralRef(reference) => self.text(&referred(&reference)?)?,
            Event::DocType(_) => {
                return Err(("has a document type declaration, which is not supported".to_owned(), ""));
            }
            Event::Comment(text) if !self.options.is_for_schema => self.document.tree.comment(&text.xml10_content()),
            Event::PI(instruction) if !self.options.is_for_schema => self.instruction(&instruction)?,
            Event::Comment(_) | Event::PI(_) | Event::Decl(_) | Event::Eof => {}
        }
        let (nodes_max, depth_max) = (self.options.nodes_max, self.options.depth_max);
        if self.document.tree.nodes() > nodes_max {
            return Err((format!("has more than {nodes_max} elements, attributes and texts"), ""));
        }
        if self.depth > depth_max {
            return Err((format!("is nested deeper than {depth_max} levels"), ""));
        }
        Ok(())
    }

    fn instruction(&mut self, instruction: &BytesPI<'_>) -> Result<(), XmlFault> {
        let target = instruction.target();
        if !is_ncname(target) || target.eq_ignore_ascii_case("xml") {
            return Err((
                format!("has a processing instruction with the target `{}`, which is not an XML name", shown(target)),
                "",
            ));
        }
        self.document.tree.instruction(target, instruction.content().trim_start());
        Ok(())
    }

    fn text(&mut self, text: &str) -> Result<(), XmlFault> {
        if self.depth > 0 {
            self.document.tree.text(text);
        } else if !text.trim().is_empty() {
            return Err(("has text outside of its root element".to_owned(), ""));
        }
        Ok(())
    }

    fn leave_element(&mut self) {
        self.depth = self.depth.saturating_sub(1);
        while self.scope.last().is_some_and(|declared| declared.depth > self.depth) {
            self.scope.pop();
        }
        self.document.tree.close();
    }

    fn enter(&mut self, start: &BytesStart<'_>, place: (u32, u32)) -> Result<(), XmlFault> {
        let (prefix, local) = split_name(start.name().into_inner())?;
        if self.depth == 0 {
            self.roots += 1;
            if self.roots > 1 {
                return Err(("has more than one root element".to_owned(), ""));
            }
        }
        self.document.tree.open(local);
        self.depth += 1;
        if self.options.is_for_schema {
            self.document.tree.mark(self.document.places.len());
            self.document.places.push(place);
        }
        let mut attributes = Vec::new();
        for (count, attribute) in start.attributes().enumerate() {
            if count >= ATTRIBUTES_MAX {
                return Err((format!("has an element of more than {ATTRIBUTES_MAX} attributes"), ""));
            }
            let attribute = attribute.map_err(|error| (format!("is not XML: {error}"), ""))?;
            let value = value_of(&attribute.value)
                .map_err(|error| (format!("has an attribute that cannot be read: {error}"), ""))?;
            if attribute.value.contains('<') {
                return Err(("is not XML: the value of an attribute has `<`".to_owned(), ""));
            }
            if let Some((_, character)) = charset::first_invalid_xml_char(&value) {
                return Err((not_allowed(character), ""));
            }
            match attribute.key.into_inner() {
                "xmlns" => self.declare("", &value)?,
                name => match split_name(name)? {
                    ("xmlns", prefix) => self.declare(prefix, &value)?,
                    (prefix, name) => attributes.push((prefix, name, value)),
                },
            }
        }
        let (namespace, href) = self.find(prefix)?;
        if let Some(refused) = (self.options.refuse)(local, &href) {
            return Err(refused);
        }
        if let Some(namespace) = namespace {
            self.document.tree.put_into(namespace);
        }
        let mut named: Vec<(String, &str)> = Vec::new();
        for (prefix, name, value) in attributes {
            if prefix.is_empty() {
                self.document.tree.attribute(name, &value);
                continue;
            }
            let (namespace, href) = self.find(prefix)?;
            // Two prefixes can have the same namespace (Namespaces in XML 1.0, section 6.3).
            if named.iter().any(|(other, known)| *other == href && *known == name) {
                return Err((
                    format!("is not XML: an element has the attribute `{}` of a namespace twice", shown(name)),
                    "",
                ));
            }
            let names_schema = self.options.is_for_schema && href == OF_INSTANCE && name.ends_with("chemaLocation");
            if let Some(namespace) = namespace.filter(|_| !names_schema) {
                self.document.tree.attribute_in(namespace, name, &value);
            }
            named.push((href, name));
        }
        Ok(())
    }

    fn declare(&mut self, prefix: &str, href: &str) -> Result<(), XmlFault> {
        let wrong = || (format!("declares the prefix `{}` in a way that is not allowed", shown(prefix)), "");
        let namespace = match (prefix, href) {
            ("xml", OF_XML) => return Ok(()),
            ("xml" | "xmlns", _) | (_, OF_XML | OF_XMLNS) => return Err(wrong()),
            // No default namespace.
            ("", "") => {
                if !self.options.is_for_schema {
                    self.document.tree.declare("", "");
                }
                None
            }
            (_, "") => return Err(wrong()),
            _ => Some(self.document.tree.declare(prefix, href)),
        };
        if self.scope.len() >= PREFIXES_MAX {
            return Err((format!("declares more than {PREFIXES_MAX} prefixes within each other"), ""));
        }
        self.scope.push(PrefixDeclaration {
            depth: self.depth,
            prefix: prefix.to_owned(),
            namespace,
            href: href.to_owned(),
        });
        Ok(())
    }

    /// The namespace of a prefixed name, and its local name.
    fn find(&mut self, prefix: &str) -> Result<(Option<Namespace>, String), XmlFault> {
        if let Some(declared) = self.scope.iter().rev().find(|declared| declared.prefix == prefix) {
            return Ok((declared.namespace, declared.href.clone()));
        }
        match prefix {
            "" => Ok((None, String::new())),
            "xml" => Ok((Some(self.document.tree.namespace_of_xml()), OF_XML.to_owned())),
            _ => Err((format!("uses the prefix `{}`, which is not declared", shown(prefix)), "")),
        }
    }
}

/// The value of an attribute: literal white space becomes spaces, character references stay (XML 1.0, section 3.3.3).
fn value_of(written: &str) -> Result<String, quick_xml::escape::EscapeError> {
    let is_plain = |byte: u8| !matches!(byte, b'\t' | b'\n' | b'\r' | b'&');
    if written.bytes().all(is_plain) {
        return Ok(written.to_owned());
    }
    let spaced = written.replace("\r\n", " ").replace(['\t', '\n', '\r'], " ");
    quick_xml::escape::unescape(&spaced).map(|value| value.into_owned())
}

/// Splits into prefix and local name.
fn split_name(name: &str) -> Result<(&str, &str), XmlFault> {
    let (prefix, local) = name.split_once(':').unwrap_or(("", name));
    let has_prefix = prefix.is_empty() || is_ncname(prefix);
    if has_prefix && is_ncname(local) && !name.starts_with(':') {
        return Ok((prefix, local));
    }
    Err((format!("is not XML: `{}` is not an XML name", shown(name)), ""))
}

fn shown(name: &str) -> String {
    name.chars().filter(|c| !c.is_control()).take(40).collect()
}

/// Whether it is a name without a colon (XML 1.0, section 2.3).
pub fn is_ncname(name: &str) -> bool {
    let begins = |c: char| {
        matches!(c,
            'A'..='Z' | '_' | 'a'..='z' | '\u{c0}'..='\u{d6}' | '\u{d8}'..='\u{f6}' | '\u{f8}'..='\u{2ff}'
            | '\u{370}'..='\u{37d}' | '\u{37f}'..='\u{1fff}' | '\u{200c}'..='\u{200d}' | '\u{2070}'..='\u{218f}'
            | '\u{2c00}'..='\u{2fef}' | '\u{3001}'..='\u{d7ff}' | '\u{f900}'..='\u{fdcf}' | '\u{fdf0}'..='\u{fffd}'
            | '\u{10000}'..='\u{effff}')
    };
    let goes_on = |c: char| {
        begins(c) || matches!(c, '-' | '.' | '0'..='9' | '\u{b7}' | '\u{300}'..='\u{36f}' | '\u{203f}'..='\u{2040}')
    };
    let mut characters = name.chars();
    characters.next().is_some_and(begins) && characters.all(goes_on)
}

fn not_allowed(character: char) -> String {
    format!("is not XML: has the character U+{:04X}, which XML 1.0 does not allow", u32::from(character))
}

/// The text of a reference: a character by its number, or one of XML's five predefined entities.
fn referred(reference: &BytesRef<'_>) -> Result<String, XmlFault> {
    let name: &str = reference;
    match reference.resolve_char_ref() {
        Ok(Some(character)) if charset::first_invalid_xml_char(character.encode_utf8(&mut [0; 4])).is_some() => {
            Err((not_allowed(character), ""))
        }
        Ok(Some(character)) => Ok(character.to_string()),
        Ok(None) => quick_xml::escape::resolve_xml_entity(name)
            .map(str::to_owned)
            .ok_or_else(|| (format!("has the entity `&{};`, which is not supported", shown(name)), "")),
        Err(error) => Err((format!("is not XML: {error}"), "")),
    }
}
