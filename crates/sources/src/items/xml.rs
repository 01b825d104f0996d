use std::{
    io::Read,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use quick_xml::{
    Reader,
    events::{BytesStart, Event},
};
use tocsin_model::problem::Problem;

use super::{Item, Placed, Text, too_long};

/// How deep elements may be nested.
const DEPTH_MAX: usize = 127;
/// What is read from the text at once, beyond what an item needs.
const SLACK_BYTES: usize = 64 << 10;

/// An element with all below it. Names are without their prefixes.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Element {
    pub name: String,
    pub attributes: Vec<(String, String)>,
    /// Its own text, without that of its children.
    pub text: String,
    pub children: Vec<Element>,
}

impl Element {
    /// The value of an attribute.
    pub fn attribute(&self, name: &str) -> Option<&str> {
        self.attributes.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// Its text and that of all below it.
    pub fn whole_text(&self) -> String {
        let below: String = self.children.iter().map(Element::whole_text).collect();
        format!("{}{below}", self.text)
    }

    /// Its attributes, but for declarations of name spaces, and its children with their own texts.
    pub fn leaves(&self) -> impl Iterator<Item = (&str, &str)> {
        let attributes = self.attributes.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        attributes.chain(self.children.iter().map(|child| (child.name.as_str(), child.text.as_str())))
    }
}

/// The elements at a path, such as `/orders/order`, `/orders/*` or `//order`. What a document type would declare is not
/// read: a document that has one is refused.
pub(super) struct Elements {
    reader: Reader<std::io::BufReader<Measured>>,
    /// Bytes that were read since the last item began or ended.
    measured: Arc<AtomicUsize>,
    bytes_max: usize,
    path: Vec<String>,
    anywhere: bool,
    /// The names of the open elements above items.
    open: Vec<String>,
    roots: usize,
    number: u64,
    ended: bool,
}

/// Refuses to read more for one item than it may have.
struct Measured {
    text: Text,
    measured: Arc<AtomicUsize>,
    bytes_max: usize,
}

impl Read for Measured {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let before = self.measured.load(Ordering::Relaxed);
        if before > self.bytes_max.saturating_add(SLACK_BYTES) {
            return Err(std::io::Error::from(std::io::ErrorKind::FileTooLarge));
        }
        let count = self.text.read(buffer)?;
        self.measured.store(before + count, Ordering::Relaxed);
        Ok(count)
    }
}

impl Elements {
    pub fn new(text: Text, path: &str, bytes_max: usize) -> Elements {
        let measured = Arc::new(AtomicUsize::new(0));
        let text = Measured { text, measured: measured.clone(), bytes_max };
        let names = path.split('/').filter(|name| !name.is_empty());
        Elements {
            reader: Reader::from_reader(std::io::BufReader::new(text)),
            measured,
            bytes_max,
            path: names.map(str::to_owned).collect(),
            anywhere: path.starts_with("//"),
            open: Vec::new(),
            roots: 0,
            number: 0,
            ended: false,
        }
    }

    fn element(&mut self) -> Result<Option<Element>, Problem> {
        let mut buffer = Vec::new();
        loop {
            buffer.clear();
            self.measured.store(0, Ordering::Relaxed);
            match self.reader.read_event_into(&mut buffer).map_err(|error| self.broken(&error))? {
                Event::Start(start) => {
                    self.enter(&start)?;
                    if self.is_item() {
                        let element = below(&start)?;
                        let element = self.content(element)?;
                        self.open.pop();
                        return Ok(Some(element));
                    }
                }
                Event::Empty(start) => {
                    self.enter(&start)?;
                    let is_item = self.is_item();
                    self.open.pop();
                    if is_item {
                        return below(&start).map(Some);
                    }
                }
                Event::End(_) => drop(self.open.pop()),
                Event::Text(text) if self.open.is_empty() && !text.xml10_content().trim().is_empty() => {
                    return Err(Problem::at("", "has text outside of its root element"));
                }
                Event::GeneralRef(reference) => drop(self::reference(&reference)?),
                Event::Eof => return self.finish().map(|()| None),
                other => outside(&other)?,
            }
        }
    }

    fn enter(&mut self, start: &BytesStart<'_>) -> Result<(), Problem> {
        self.roots += usize::from(self.open.is_empty());
        self.open.push(name_of(start));
        match (self.roots, self.open.len()) {
            (2.., _) => Err(Problem::at("", "has more than one root element")),
            (_, DEPTH_MAX..) => Err(too_deep()),
            _ => Ok(()),
        }
    }

    fn is_item(&self) -> bool {
        let names = match self.anywhere {
            true => &self.open[self.open.len().saturating_sub(self.path.len())..],
            false => &self.open[..],
        };
        let fits = |(name, wanted): (&String, &String)| wanted == "*" || name == wanted;
        names.len() == self.path.len() && names.iter().zip(&self.path).all(fits)
    }

    /// Reads what is inside an element, to its end.
    fn content(&mut self, element: Element) -> Result<Element, Problem> {
        let mut stack = vec![element];
        let mut buffer = Vec::new();
        loop {
            buffer.clear();
            let event = self.reader.read_event_into(&mut buffer).map_err(|error| self.broken(&error))?;
            let top = stack.last_mut().expect("it returns with the last");
            match event {
                Event::Start(start) => {
                    let element = below(&start)?;
                    stack.push(element);
                    if stack.len() + self.open.len() > DEPTH_MAX {
                        return Err(too_deep());
                    }
                }
                Event::Empty(start) => top.children.push(below(&start)?),
                Event::Text(text) => top.text.push_str(&text.xml10_content()),
                Event::CData(text) => top.text.push_str(&text.xml10_content()),
                Event::GeneralRef(reference) => top.text.push_str(&self::reference(&reference)?),
                Event::End(_) => {
                    let done = stack.pop().expect("it returns with the last");
                    match stack.last_mut() {
                        Some(parent) => parent.children.push(done),
                        None => return Ok(done),
                    }
                }
                Event::Eof => return Err(Problem::at("", "ends inside of an element")),
                other => outside(&other)?,
            }
        }
    }

    fn finish(&self) -> Result<(), Problem> {
        match (self.open.last(), self.roots) {
            (Some(name), _) => Err(Problem::at("", format!("ends before `{name}` does"))),
            (None, 0) => Err(Problem::at("", "has no root element")),
            (None, _) => Ok(()),
        }
    }

    fn broken(&self, error: &quick_xml::Error) -> Problem {
        match error {
            quick_xml::Error::Io(error) if error.kind() == std::io::ErrorKind::FileTooLarge => too_long(self.bytes_max),
            error => {
                let at = self.reader.error_position();
                Problem::at("", format!("is not XML: {error} (byte {at})"))
            }
        }
    }
}

/// What no item is made of. Nothing is looked up that a document type declares.
fn outside(event: &Event<'_>) -> Result<(), Problem> {
    match event {
        Event::DocType(_) => {
            let problem = Problem::at("", "has a document type declaration, which is not read here");
            Err(problem.hint("leave `<!DOCTYPE ...>` and its entities out"))
        }
        Event::Decl(declaration) => match declaration.encoding() {
            Some(Ok(name)) if !name.eq_ignore_ascii_case("utf-8") && !name.eq_ignore_ascii_case("us-ascii") => {
                Err(Problem::at("", format!("is encoded as `{name}`")).hint("write it in UTF-8"))
            }
            _ => Ok(()),
        },
        _ => Ok(()),
    }
}

fn too_deep() -> Problem {
    Problem::at("", format!("is nested deeper than {DEPTH_MAX} levels"))
}

fn name_of(start: &BytesStart<'_>) -> String {
    let name: &str = start.local_name().into_inner();
    name.to_owned()
}

/// An element without what is inside.
fn below(start: &BytesStart<'_>) -> Result<Element, Problem> {
    let mut attributes = Vec::new();
    for attribute in start.attributes() {
        let attribute = attribute.map_err(|error| Problem::at("", format!("is not XML: {error}")))?;
        let key: &str = attribute.key.into_inner();
        if key == "xmlns" || key.starts_with("xmlns:") {
            continue;
        }
        let value = quick_xml::escape::unescape(&attribute.value)
            .map_err(|error| Problem::at("", format!("has an attribute that cannot be read: {error}")))?;
        attributes.push((key.rsplit(':').next().unwrap_or(key).to_owned(), value.into_owned()));
    }
    Ok(Element { name: name_of(start), attributes, ..Element::default() })
}

/// What a reference stands for: a character by its number, or one of the five that XML itself has.
fn reference(reference: &quick_xml::events::BytesRef<'_>) -> Result<String, Problem> {
    let name: &str = reference;
    if let Ok(Some(character)) = reference.resolve_char_ref() {
        return Ok(character.to_string());
    }
    let known = [("lt", "<"), ("gt", ">"), ("amp", "&"), ("apos", "'"), ("quot", "\"")];
    match known.into_iter().find(|(known, _)| *known == name) {
        Some((_, text)) => Ok(text.to_owned()),
        None => Err(Problem::at("", format!("has the entity `&{name};`, which is not read here"))),
    }
}

impl Iterator for Elements {
    type Item = Result<Placed, Problem>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let element = self.element().transpose();
        self.ended = !matches!(element, Some(Ok(_)));
        let at = self.number;
        self.number += 1;
        element.map(|found| match found {
            Ok(element) => Ok(Placed { line: None, item: Item::Xml(element) }),
            Err(problem) => Err(Problem { path: format!("[{at}]"), ..problem }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Format, Layout, layout, of_text};
    use super::*;

    fn show(element: &Element) -> String {
        let attributes: Vec<String> =
            element.attributes.iter().map(|(name, value)| format!("@{name}={value}")).collect();
        let children: Vec<String> = element.children.iter().map(show).collect();
        format!("{}({})", element.name, [attributes, vec![element.text.trim().to_owned()], children].concat().join(" "))
    }

    fn check(path: &str, text: &str, expected: &str) {
        let shown: Vec<String> = of_text(&layout(Format::Xml, path), text.as_bytes())
            .into_iter()
            .map(|found| match found {
                Ok(Placed { item: Item::Xml(element), .. }) => show(&element),
                Ok(other) => panic!("{other:?}"),
                Err(problem) => format!("! {problem}"),
            })
            .collect();
        assert_eq!(shown.join(", "), expected, "{text}");
    }

    #[test]
    fn elements_at_a_path_are_items() {
        let text = "<?xml version='1.0'?><o:orders xmlns:o='urn:o'><head><order/></head>\
            <o:order id='1' o:by='A&amp;B'><price>5</price></o:order><order id=\"2\"><![CDATA[<x>]]>&#65;&lt;</order></o:orders>";
        check("/orders/order", text, "order(@id=1 @by=A&B  price(5)), order(@id=2 <x>A<)");
        check("orders/*/order", text, "order()");
        check("//order", text, "order(), order(@id=1 @by=A&B  price(5)), order(@id=2 <x>A<)");
        check("/a/b", "<a/>", "");
    }

    #[test]
    fn what_is_not_xml_is_told() {
        check("/a/b", "", "! [0]: has no root element");
        check("/a/b", "<a><b/>", "b(), ! [1]: ends before `a` does");
        check("/a", "<a/><a/>", "a(), ! [1]: has more than one root element");
        check("/a/b", "<a/>x", "! [0]: has text outside of its root element");
        check("/a", "<a>&nbsp;</a>", "! [0]: has the entity `&nbsp;`, which is not read here");
        check(
            "/a",
            "<!DOCTYPE a [<!ENTITY x 'y'>]><a>&x;</a>",
            "! [0]: has a document type declaration, which is not read here; leave `<!DOCTYPE ...>` and its entities out",
        );
        check(
            "/a",
            "<?xml version='1.0' encoding='latin-1'?><a/>",
            "! [0]: is encoded as `latin-1`; write it in UTF-8",
        );
        for wrong in ["<a", "<a></b>", "<a b></a>", "<a b='1' b='2'/>"] {
            let found = of_text(&layout(Format::Xml, "/a"), wrong.as_bytes());
            assert!(
                matches!(&found[0], Err(problem) if problem.message.starts_with("is not XML")),
                "{wrong}: {found:?}"
            );
        }
        let deep = "<a>".repeat(1_000);
        let found = of_text(&layout(Format::Xml, "/x"), deep.as_bytes());
        assert!(found[0].as_ref().expect_err("deep").message.contains("deeper"), "{found:?}");
    }

    #[test]
    fn an_endless_element_takes_no_memory() {
        let layout = Layout { item_bytes_max: 100, ..layout(Format::Xml, "/a/b") };
        for text in [format!("<a><b>{}", "x".repeat(10 << 20)), format!("<a><!--{}", "x".repeat(10 << 20))] {
            let found = of_text(&layout, text.as_bytes());
            assert!(found[0].as_ref().expect_err("long").message.contains("longer than 100 bytes"), "{found:?}");
        }
    }
}
