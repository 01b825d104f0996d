use std::{
    borrow::Cow,
    collections::HashSet,
    io::Read,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use quick_xml::{
    NsReader,
    events::{BytesStart, Event},
    name::{Namespace, NamespaceResolver, QName, ResolveResult},
};
use tocsin_model::{
    charset::first_invalid_xml_char,
    problem::{Code, Problem},
};

use super::{
    element::{Element, local},
    item::{Item, PositionedItem},
    layout::{Layout, Xml},
    text::{Text, too_long, unreadable},
};

/// Deepest nesting of elements.
const DEPTH_MAX: usize = 127;
/// Most elements of one item.
const ELEMENTS_MAX: usize = 500_000;
/// Bytes read at once in addition to the size limit of an item.
const SLACK_BYTES: usize = 64 << 10;

/// A text, checked for characters that XML does not allow; in feeds it is not checked.
fn characters(text: Cow<'_, str>, xml: Xml) -> Result<Cow<'_, str>, Problem> {
    match first_invalid_xml_char(&text).filter(|_| xml == Xml::Plain) {
        Some((_, found)) => Err(ill_formed(&format!("the character U+{:04X} is in it", u32::from(found)))),
        None => Ok(text),
    }
}

/// Whether a text is an XML name.
fn is_name(text: &str) -> bool {
    let starts = |c: char| c.is_ascii_alphabetic() || matches!(c, '_' | ':') || !c.is_ascii();
    text.starts_with(starts) && text.chars().all(|c| starts(c) || c.is_ascii_digit() || matches!(c, '-' | '.'))
}

fn ill_formed(what: &str) -> Problem {
    Problem::syntax("xml", "", format!("is not well-formed XML: {what}"))
}

/// A name that is in no namespace although it has a prefix (Namespaces in XML 1.0, section 5).
fn undeclared(name: &str, at: u64) -> Problem {
    let prefix = name.split(':').next().unwrap_or_default();
    let text = format!("has the name `{name}` (byte {at}), whose prefix is not declared");
    let problem = Problem::syntax("xml", "", text);
    problem.hint(format!("declare it: `xmlns:{prefix}=\"...\"`"))
}

/// Checks that the prefixes of an element and its attributes are declared, and that no two attributes have the same
/// local name in the same namespace.
fn check_namespaces(start: &BytesStart<'_>, resolver: &NamespaceResolver, at: u64) -> Result<(), Problem> {
    let name: &str = start.name().into_inner();
    if let ResolveResult::Unknown(_) = resolver.resolve_element(start.name()).0 {
        return Err(undeclared(name, at));
    }
    let mut found: HashSet<(String, String)> = HashSet::new();
    for attribute in start.attributes().flatten() {
        let key: &str = attribute.key.into_inner();
        if !key.contains(':') || key.starts_with("xmlns:") {
            continue;
        }
        match resolver.resolve_attribute(QName(key)).0 {
            ResolveResult::Unknown(_) => return Err(undeclared(key, at)),
            ResolveResult::Bound(Namespace(namespace)) => {
                if !found.insert((namespace.to_owned(), local(key).to_owned())) {
                    return Err(ill_formed(&format!("`{key}` (byte {at}) is the second attribute of this name")));
                }
            }
            ResolveResult::Unbound => {}
        }
    }
    Ok(())
}

/// The elements at a path, such as `/orders/order`, `/orders/*` or `//order`. A document with a document type
/// declaration is rejected.
pub(super) struct Elements {
    reader: NsReader<std::io::BufReader<LimitedReader>>,
    /// Bytes read since the last item began or ended.
    measured: Arc<AtomicUsize>,
    bytes_max: usize,
    path: Vec<String>,
    anywhere: bool,
    xml: Xml,
    /// The namespace of the last element, since the next one often has the same.
    namespace: Arc<str>,
    /// The names of the open elements above items.
    open: Vec<String>,
    roots: usize,
    /// The number of elements in the current item.
    elements: usize,
    /// The position of the current event, in bytes.
    at: u64,
    number: u64,
    ended: bool,
}

/// A reader with a size limit per item.
struct LimitedReader {
    text: Text,
    measured: Arc<AtomicUsize>,
    bytes_max: usize,
}

impl Read for LimitedReader {
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
    pub fn new(text: Text, layout: &Layout) -> Elements {
        let (path, bytes_max) = (layout.items.as_str(), layout.item_bytes_max);
        let measured = Arc::new(AtomicUsize::new(0));
        let text = LimitedReader { text, measured: measured.clone(), bytes_max };
        let names = path.split('/').filter(|name| !name.is_empty());
        let mut reader = NsReader::from_reader(std::io::BufReader::new(text));
        reader.config_mut().check_comments = layout.xml == Xml::Plain;
        Elements {
            reader,
            xml: layout.xml,
            namespace: Arc::from(""),
            measured,
            bytes_max,
            path: names.map(str::to_owned).collect(),
            anywhere: path.starts_with("//"),
            open: Vec::new(),
            roots: 0,
            elements: 0,
            at: 0,
            number: 0,
            ended: false,
        }
    }

    fn element(&mut self) -> Result<Option<Element>, Problem> {
        let mut buffer = Vec::new();
        loop {
            buffer.clear();
            self.measured.store(0, Ordering::Relaxed);
            self.at = self.reader.buffer_position();
            match self.reader.read_event_into(&mut buffer).map_err(|error| self.syntax_problem(&error))? {
                Event::Start(start) => {
                    self.enter(&start)?;
                    if self.is_item() {
                        let element = self.below(&start)?;
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
                        return self.below(&start).map(Some);
                    }
                }
                Event::End(_) => drop(self.open.pop()),
                Event::Text(text) if self.open.is_empty() && !text.xml10_content().trim().is_empty() => {
                    return Err(Problem::syntax("xml", "", "has text outside of its root element"));
                }
                Event::GeneralRef(reference) => drop(self::reference(&reference, self.xml)?),
                Event::Eof => return self.finish().map(|()| None),
                other => outside(&other, self.xml)?,
            }
        }
    }

    /// An element without its content.
    fn below(&mut self, start: &BytesStart<'_>) -> Result<Element, Problem> {
        if self.xml == Xml::Plain {
            check_namespaces(start, self.reader.resolver(), self.at)?;
        }
        let mut attributes = Vec::new();
        for attribute in start.attributes() {
            let attribute = attribute.map_err(|error| Problem::syntax("xml", "", format!("is not XML: {error}")))?;
            let key: &str = attribute.key.into_inner();
            if key == "xmlns" || key.starts_with("xmlns:") {
                continue;
            }
            let value = match self.xml {
                Xml::Plain => quick_xml::escape::unescape_with(&attribute.value, quick_xml::escape::resolve_xml_entity),
                Xml::Feed => quick_xml::escape::unescape_with(&attribute.value, html_entity),
            };
            if self.xml == Xml::Plain && attribute.value.contains('<') {
                return Err(ill_formed("the value of an attribute holds `<`"));
            }
            let value = match (value, self.xml) {
                (Ok(value), xml) => characters(value, xml)?.into_owned(),
                // An undeclared entity is kept as text.
                (Err(_), Xml::Feed) => attribute.value.to_string(),
                (Err(error), Xml::Plain) => {
                    return Err(Problem::syntax("xml", "", format!("has an attribute that cannot be read: {error}")));
                }
            };
            attributes.push((key.to_owned(), value));
        }
        let namespace = match self.reader.resolver().resolve_element(start.name()).0 {
            ResolveResult::Bound(Namespace(namespace)) => namespace,
            _ => "",
        };
        if *self.namespace != *namespace {
            self.namespace = namespace.into();
        }
        let name: &str = start.name().into_inner();
        if self.xml == Xml::Plain && !is_name(name) {
            return Err(ill_formed(&format!("`{name}` is not the name of an element")));
        }
        let (prefix, name) = name.split_once(':').unwrap_or(("", name));
        let (name, prefix) = (name.to_owned(), prefix.to_owned());
        Ok(Element { name, prefix, namespace: self.namespace.clone(), attributes, ..Element::default() })
    }

    /// Counts an element of an item: in memory, elements are many times larger than in the text.
    fn count(&mut self) -> Result<(), Problem> {
        self.elements += 1;
        match self.elements > ELEMENTS_MAX {
            true => Err(Problem::new(Code::TooMany, "", format!("has more than {ELEMENTS_MAX} elements in one item"))
                .param("limit", ELEMENTS_MAX)),
            false => Ok(()),
        }
    }

    fn enter(&mut self, start: &BytesStart<'_>) -> Result<(), Problem> {
        self.roots += usize::from(self.open.is_empty());
        self.open.push(name_of(start));
        if let Some(name) = self.open.last().filter(|name| self.xml == Xml::Plain && !is_name(name)) {
            return Err(ill_formed(&format!("`{name}` is not the name of an element")));
        }
        if self.xml == Xml::Plain {
            check_namespaces(start, self.reader.resolver(), self.at)?;
        }
        // An error page is not a document without items.
        let is_other = |required: &&String| {
            let found = self.open[0].as_str();
            required.as_str() != "*" && required.as_str() != found && required.as_str() != local(found)
        };
        let root = self.path.first().filter(|_| !self.anywhere).filter(is_other);
        if let (1, Some(root)) = (self.open.len(), root) {
            let text =
                format!("has the root element `{}`, and its items are at `/{}`", self.open[0], self.path.join("/"));
            return Err(Problem::new(Code::Mismatch, "", text)
                .hint(format!("the configured root is `{root}`: correct `items`")));
        }
        match (self.roots, self.open.len()) {
            (2.., _) => Err(Problem::syntax("xml", "", "has more than one root element")),
            (_, DEPTH_MAX..) => Err(too_deep()),
            _ => Ok(()),
        }
    }

    fn is_item(&self) -> bool {
        let names = match self.anywhere {
            true => &self.open[self.open.len().saturating_sub(self.path.len())..],
            false => &self.open[..],
        };
        let fits =
            |(name, required): (&String, &String)| required == "*" || name == required || local(name) == required;
        names.len() == self.path.len() && names.iter().zip(&self.path).all(fits)
    }

    /// Reads the content of an element, to its end.
    fn content(&mut self, element: Element) -> Result<Element, Problem> {
        self.elements = 0;
        let mut stack = vec![element];
        let mut buffer = Vec::new();
        loop {
            buffer.clear();
            self.at = self.reader.buffer_position();
            let event = self.reader.read_event_into(&mut buffer).map_err(|error| self.syntax_problem(&error))?;
            let xml = self.xml;
            let top = stack.last_mut().expect("the stack is not empty");
            match event {
                Event::Start(start) => {
                    let element = self.below(&start)?;
                    self.count()?;
                    stack.push(element);
                    if stack.len() + self.open.len() > DEPTH_MAX {
                        return Err(too_deep());
                    }
                }
                Event::Empty(start) => {
                    let child = Element { at: top.text.len(), ..self.below(&start)? };
                    self.count()?;
                    top.children.push(child);
                }
                Event::Text(text) => {
                    let text = characters(text.xml10_content(), xml)?;
                    if xml == Xml::Plain && text.contains("]]>") {
                        return Err(ill_formed("a text holds `]]>`"));
                    }
                    top.text.push_str(&text);
                }
                Event::CData(text) => top.text.push_str(&characters(text.xml10_content(), xml)?),
                Event::GeneralRef(reference) => top.text.push_str(&self::reference(&reference, xml)?),
                Event::End(_) => {
                    let done = stack.pop().expect("the stack is not empty");
                    match stack.last_mut() {
                        Some(parent) => parent.children.push(Element { at: parent.text.len(), ..done }),
                        None => return Ok(done),
                    }
                }
                Event::Eof => {
                    return Err(Problem::syntax("xml", "", "ends inside of an element"));
                }
                other => outside(&other, self.xml)?,
            }
        }
    }

    fn finish(&self) -> Result<(), Problem> {
        match (self.open.last(), self.roots) {
            (Some(name), _) => Err(Problem::syntax("xml", "", format!("ends before `{name}` does"))),
            (None, 0) => Err(Problem::syntax("xml", "", "has no root element")),
            (None, _) => Ok(()),
        }
    }

    fn syntax_problem(&self, error: &quick_xml::Error) -> Problem {
        match error {
            quick_xml::Error::Io(error) => match error.kind() {
                std::io::ErrorKind::FileTooLarge => too_long(self.bytes_max),
                // The encoding error, which contains a hint.
                std::io::ErrorKind::InvalidData => Problem::syntax("xml", "", error.to_string()),
                _ => unreadable(error),
            },
            error => {
                let at = self.reader.error_position();
                Problem::syntax("xml", "", format!("is not XML: {error} (byte {at})"))
            }
        }
    }
}

/// Events outside of items. Document type declarations are not evaluated.
fn outside(event: &Event<'_>, xml: Xml) -> Result<(), Problem> {
    match event {
        Event::DocType(_) if xml == Xml::Plain => {
            let problem =
                Problem::new(Code::Unsupported, "", "has a document type declaration, which is not supported");
            Err(problem.hint("leave `<!DOCTYPE ...>` and its entities out"))
        }
        _ => Ok(()),
    }
}

fn too_deep() -> Problem {
    Problem::new(Code::TooDeep, "", format!("is nested deeper than {DEPTH_MAX} levels")).param("limit", DEPTH_MAX)
}

fn name_of(start: &BytesStart<'_>) -> String {
    let name: &str = start.name().into_inner();
    name.to_owned()
}

/// The character of an HTML entity.
fn html_entity(name: &str) -> Option<&'static str> {
    quick_xml::escape::resolve_html5_entity(name)
}

/// The text of a reference: a character by its number, or one of XML's five predefined entities.
fn reference(reference: &quick_xml::events::BytesRef<'_>, xml: Xml) -> Result<String, Problem> {
    let name: &str = reference;
    if let Ok(Some(character)) = reference.resolve_char_ref() {
        return Ok(characters(character.to_string().into(), xml)?.into_owned());
    }
    match (quick_xml::escape::resolve_xml_entity(name), xml) {
        (Some(text), _) => Ok(text.to_owned()),
        (None, Xml::Feed) => Ok(html_entity(name).map_or_else(|| format!("&{name};"), str::to_owned)),
        (None, Xml::Plain) => {
            Err(Problem::new(Code::Unsupported, "", format!("has the entity `&{name};`, which is not supported")))
        }
    }
}

impl Iterator for Elements {
    type Item = Result<PositionedItem, Problem>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let element = self.element().transpose();
        self.ended = !matches!(element, Some(Ok(_)));
        let at = self.number;
        self.number += 1;
        element.map(|found| match found {
            Ok(element) => Ok(PositionedItem { line: None, item: Item::Xml(element) }),
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
                Ok(PositionedItem { item: Item::Xml(element), .. }) => show(&element),
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
        check("/orders/order", text, "order(@id=1 @o:by=A&B  price(5)), order(@id=2 <x>A<)");
        check("orders/*/order", text, "order()");
        check("//order", text, "order(), order(@id=1 @o:by=A&B  price(5)), order(@id=2 <x>A<)");
        check("/a/b", "<a/>", "");
    }

    #[test]
    fn documents_that_are_not_well_formed_are_refused() {
        for (text, what) in [
            ("<a><b>\u{1}</b></a>", "the character U+0001 is in it"),
            ("<a><b>&#1;</b></a>", "the character U+0001 is in it"),
            ("<a><b c='\0'/></a>", "the character U+0000 is in it"),
            ("<a><b>\u{fffe}</b></a>", "the character U+FFFE is in it"),
            ("<a><b c='x<y'/></a>", "the value of an attribute holds `<`"),
            ("<a><b>x]]>y</b></a>", "a text holds `]]>`"),
            ("<a><1b/></a>", "`1b` is not the name of an element"),
            ("<a><b><-c/></b></a>", "`-c` is not the name of an element"),
        ] {
            check("/a/b", text, &format!("! [0]: is not well-formed XML: {what}"));
        }
        let refused = |text: &str| of_text(&layout(Format::Xml, "/a/b"), text.as_bytes()).iter().any(Result::is_err);
        assert!(refused("<a><!-- x -- y --><b/></a>"));
        assert!(refused("<a><b c='&nbsp;'/></a>"), "XML itself has no such entity");
        check("/a/b", "<a><b c='&gt;&#9;'>\t&lt;ü</b></a>", "b(@c=>\t <ü)");
    }

    #[test]
    fn invalid_xml_is_reported() {
        check("/a/b", "", "! [0]: has no root element");
        check("/a/b", "<a><b/>", "b(), ! [1]: ends before `a` does");
        check(
            "/b/c",
            "<a/>",
            "! [0]: has the root element `a`, and its items are at `/b/c`; the configured root is `b`: correct `items`",
        );
        check("/a", "<a/><a/>", "a(), ! [1]: has more than one root element");
        check("/a/b", "<a/>x", "! [0]: has text outside of its root element");
        check("/a", "<a>&nbsp;</a>", "! [0]: has the entity `&nbsp;`, which is not supported");
        check(
            "/a",
            "<!DOCTYPE a [<!ENTITY x 'y'>]><a>&x;</a>",
            "! [0]: has a document type declaration, which is not supported; leave `<!DOCTYPE ...>` and its entities out",
        );
        check(
            "/a",
            "<?xml version='1.0' encoding='latin-1'?><a/>",
            "! [0]: the character encoding `latin-1` is not known: use UTF-8, or a name such as `iso-8859-1` or `windows-1252`",
        );
        for wrong in ["<a", "<a></b>", "<a b></a>", "<a b='1' b='2'/>"] {
            let found = of_text(&layout(Format::Xml, "/a"), wrong.as_bytes());
            assert!(
                matches!(&found[0], Err(problem) if problem.message.starts_with("is not XML")),
                "{wrong}: {found:?}"
            );
        }
        let deep = "<a>".repeat(1_000);
        let found = of_text(&layout(Format::Xml, "//x"), deep.as_bytes());
        assert!(found[0].as_ref().expect_err("deep").message.contains("deeper"), "{found:?}");
    }

    #[test]
    fn d_undeclared_prefixes_are_refused_with_their_place() {
        let hint = |prefix: &str| format!("whose prefix is not declared; declare it: `xmlns:{prefix}=\"...\"`");
        for (text, name, at, prefix) in [
            ("<a><p:b/></a>", "p:b", 3, "p"),
            ("<p:a><b/></p:a>", "p:a", 0, "p"),
            ("<a><b>x<p:c/></b></a>", "p:c", 7, "p"),
            ("<a><b><c p:d='1'></c></b></a>", "p:d", 6, "p"),
            ("<a><h xmlns:p='urn:p'/><p:b/></a>", "p:b", 23, "p"),
        ] {
            check("/a/b", text, &format!("! [0]: has the name `{name}` (byte {at}), {}", hint(prefix)));
        }
        check(
            "/a/b",
            "<a xmlns:p='urn:x' xmlns:q='urn:x'><b p:c='1' q:c='2'/></a>",
            "! [0]: is not well-formed XML: `q:c` (byte 35) is the second attribute of this name",
        );
        check(
            "/a/b",
            "<a xmlns:p='urn:x' xmlns:q='urn:y'><b p:c='1' q:c='2' c='3' xml:lang='en'/></a>",
            "b(@p:c=1 @q:c=2 @c=3 @xml:lang=en )",
        );
    }

    #[test]
    fn d_prefixes_follow_their_declarations_in_scope() {
        let text = "<a xmlns='urn:d' xmlns:p='urn:1'><b><p:c/><p:c xmlns:p='urn:2'/><c/><c xmlns=''/></b></a>";
        let [Ok(PositionedItem { item: Item::Xml(item), .. })] =
            &of_text(&layout(Format::Xml, "/a/b"), text.as_bytes())[..]
        else {
            panic!("one item")
        };
        let namespaces: Vec<&str> = item.children.iter().map(|child| &*child.namespace).collect();
        assert_eq!(namespaces, ["urn:1", "urn:2", "urn:d", ""]);
        let found = |name| item.children_of(name).map(|child| &*child.namespace).collect::<Vec<_>>();
        assert_eq!(found("c"), ["urn:d"], "the namespace of the parent takes precedence");
        assert_eq!(found("p:c"), ["urn:1", "urn:2"], "a prefix is compared as it is written");
    }

    #[test]
    fn d_documents_of_practice_are_read_by_their_names() {
        let values = |path: &str, text: &str, names: &[&str]| -> Vec<String> {
            let [Ok(PositionedItem { item: Item::Xml(item), .. })] =
                &of_text(&layout(Format::Xml, path), text.as_bytes())[..]
            else {
                panic!("one item of {path}")
            };
            let value = |name: &&str| {
                let mut element = item;
                for step in name.split('/') {
                    match step.strip_prefix('@') {
                        Some(attribute) => return element.attribute(attribute).unwrap_or("-").to_owned(),
                        None => match element.children_of(step).next() {
                            Some(child) => element = child,
                            None => return "-".to_owned(),
                        },
                    }
                }
                element.whole_text().trim().to_owned()
            };
            names.iter().map(value).collect()
        };
        let atom = r#"<?xml version="1.0" encoding="utf-8"?>
            <feed xmlns="http://www.w3.org/2005/Atom" xmlns:georss="http://www.georss.org/georss"
                xmlns:media="http://search.yahoo.com/mrss/">
              <title>M 4.5+</title>
              <entry><media:title>thumbnail</media:title><id>urn:earthquake-usgs-gov:us:7000</id>
                <title>M 5.1 - Kobe</title>
                <link rel="alternate" type="text/html" href="https://example.org/7000"/>
                <georss:point>34.7 135.2</georss:point><media:thumbnail url="https://example.org/7000.png"/></entry>
            </feed>"#;
        assert_eq!(
            values(
                "/feed/entry",
                atom,
                &["title", "media:title", "georss:point", "point", "link/@href", "media:thumbnail/@url"]
            ),
            [
                "M 5.1 - Kobe",
                "thumbnail",
                "34.7 135.2",
                "34.7 135.2",
                "https://example.org/7000",
                "https://example.org/7000.png"
            ]
        );
        let cap = r#"<?xml version="1.0" encoding="UTF-8"?>
            <cap:alert xmlns:cap="urn:oasis:names:tc:emergency:cap:1.2" xmlns:ds="http://www.w3.org/2000/09/xmldsig#">
              <cap:identifier>KSTO1055887203</cap:identifier><cap:status>Actual</cap:status>
              <cap:info><cap:event>SEVERE THUNDERSTORM</cap:event><cap:severity>Severe</cap:severity>
                <cap:parameter><cap:valueName>HSAS</cap:valueName><cap:value>ORANGE</cap:value></cap:parameter>
                <cap:area><cap:areaDesc>EXTREME NORTH CENTRAL TUOLUMNE COUNTY</cap:areaDesc></cap:area></cap:info>
              <ds:Signature><ds:SignedInfo/></ds:Signature>
            </cap:alert>"#;
        assert_eq!(
            values(
                "/alert",
                cap,
                &["identifier", "cap:info/cap:severity", "info/parameter/value", "info/area/areaDesc"]
            ),
            ["KSTO1055887203", "Severe", "ORANGE", "EXTREME NORTH CENTRAL TUOLUMNE COUNTY"]
        );
        assert_eq!(values("/cap:alert/cap:info", cap, &["event"]), ["SEVERE THUNDERSTORM"]);
        let soap = r#"<soapenv:Envelope xmlns:soapenv="http://schemas.xmlsoap.org/soap/envelope/"
                xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xmlns:xsd="http://www.w3.org/2001/XMLSchema">
              <soapenv:Header/>
              <soapenv:Body><ns1:getOrderResponse xmlns:ns1="urn:orders"
                soapenv:encodingStyle="http://schemas.xmlsoap.org/soap/encoding/">
                <ns1:order id="7"><amount xsi:type="xsd:decimal">12.50</amount>
                  <ns2:note xmlns:ns2="urn:n">n</ns2:note></ns1:order>
              </ns1:getOrderResponse></soapenv:Body></soapenv:Envelope>"#;
        assert_eq!(
            values("/Envelope/Body/getOrderResponse/order", soap, &["@id", "amount", "note", "ns1:amount"]),
            ["7", "12.50", "n", "-"]
        );
    }

    #[test]
    fn an_endless_element_takes_no_memory() {
        let layout = Layout { item_bytes_max: 100, ..layout(Format::Xml, "/a/b") };
        for text in [format!("<a><b>{}", "x".repeat(10 << 20)), format!("<a><!--{}", "x".repeat(10 << 20))] {
            let found = of_text(&layout, text.as_bytes());
            assert!(found[0].as_ref().expect_err("long").message.contains("longer than 100 bytes"), "{found:?}");
        }
    }

    #[test]
    fn mixed_content_reads_as_its_string_value() {
        let value = |inner: &str| {
            let text = format!("<orders><order><note>{inner}</note></order></orders>");
            match &of_text(&layout(Format::Xml, "/orders/order"), text.as_bytes())[..] {
                [Ok(PositionedItem { item: Item::Xml(element), .. })] => {
                    element.leaves().next().map(|(name, value)| format!("{name}={value}")).unwrap_or_default()
                }
                other => panic!("{other:?}"),
            }
        };
        for (inner, expected) in [
            ("Ring <b>twice</b>, then <i>wait</i> here", "Ring twice, then wait here"),
            ("<b>a</b>b<c/>c", "abc"),
            ("a<b>b<i>c</i>d</b>e", "abcde"),
            ("a&amp;<b>&lt;</b>&#62;<![CDATA[<&]]><b/>x", "a&<><&x"),
            ("a<!-- no --><?no no?><b>b</b>\n", "ab\n"),
            ("ä<b>ö</b>ü", "äöü"),
        ] {
            assert_eq!(value(inner), format!("note={expected}"), "{inner}");
        }
    }

    #[test]
    fn c3_other_encodings_are_decoded() {
        let text = "<?xml version='1.0' encoding='UTF-16'?><a><b>é€</b></a>";
        let units = |order: fn(u16) -> [u8; 2]| -> Vec<u8> {
            format!("\u{feff}{text}").encode_utf16().flat_map(order).collect()
        };
        let declared = b"<?xml version='1.0' encoding='windows-1252'?><a><b>\xe9\x80</b></a>".to_vec();
        for bytes in [units(u16::to_be_bytes), units(u16::to_le_bytes), declared] {
            let found = of_text(&layout(Format::Xml, "/a/b"), &bytes);
            let [Ok(PositionedItem { item: Item::Xml(element), .. })] = &found[..] else { panic!("{found:?}") };
            assert_eq!(element.text, "é€");
        }
        let open = || -> Text { Box::new(std::io::Cursor::new(b"<a><b>\xe9</b></a>".to_vec())) };
        let layout = layout(Format::Xml, "/a/b");
        let found: Vec<_> = layout.items(open(), Some("iso-8859-1")).collect();
        let [Ok(PositionedItem { item: Item::Xml(element), .. })] = &found[..] else { panic!("{found:?}") };
        assert_eq!(element.text, "é");
        assert!(layout.items(open(), Some("klingon")).next().expect("one").is_err());
        assert!(layout.items(open(), None).next().expect("one").is_err(), "it is not UTF-8");
    }
}
