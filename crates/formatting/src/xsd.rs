//! Documents of XML are compared with a schema (XML Schema 1.0, as libxml2 reads it).
//!
//! No text from outside is read by the library: document and schema are read here and made node by node. Nothing is fetched:
//! a schema stands in one piece, and where a document says that its schema is to be found is not looked at. What is wrong is
//! told with line and column, names and rules, and without values: it is written into logs.

use quick_xml::{
    Reader,
    events::{BytesRef, BytesStart, Event},
};
use tocsin_model::problem::Problem;

use crate::xslt::{ATTRIBUTES_MAX, Namespace, OBJECTIONS_MAX, Schema, Tree};

/// Most elements, attributes, declared namespaces and texts of a document.
const NODES_MAX: usize = 200_000;
const DEPTH_MAX: usize = 256;
/// Most prefixes declared around an element: the name of each is looked for among them.
const PREFIXES_MAX: usize = 256;
const OF_SCHEMA: &str = "http://www.w3.org/2001/XMLSchema";
const OF_INSTANCE: &str = "http://www.w3.org/2001/XMLSchema-instance";

/// What no schema here may have, and what to do.
const REFUSED: [(&[&str], &str, &str); 2] = [
    (
        &["include", "import", "redefine"],
        "asks for another schema, and nothing is fetched here",
        "write the declarations that it needs into this one",
    ),
    (
        &["key", "keyref", "unique"],
        "is a constraint over several elements, which is not checked here: documents can be made to harm libraries by it",
        "leave it out, and let a `run` step check it",
    ),
];

/// A compiled schema. Any number of threads share it.
#[derive(Debug)]
pub struct XmlSchema(Schema);

/// A place in a text, and what is wrong there.
struct Wrong {
    line: u32,
    column: u32,
    message: String,
    hint: &'static str,
}

impl XmlSchema {
    /// Compiles a schema.
    ///
    /// # Errors
    /// What is wrong with it, with line and column.
    pub fn compile(text: &str) -> Result<XmlSchema, Problem> {
        let problem = |wrong: Wrong| {
            let problem = Problem::at("", wrong.message).position(wrong.line, wrong.column);
            if wrong.hint.is_empty() { problem } else { problem.hint(wrong.hint) }
        };
        let document = read(text, true).map_err(problem)?;
        let places = document.places;
        Schema::compile(document.tree).map(XmlSchema).map_err(|objections| {
            let told = objections.into_iter().next();
            let (mark, said) = told.unwrap_or_else(|| (0, "the library does not say why".to_owned()));
            let (line, column) = places.get(mark).copied().unwrap_or((1, 1));
            let message = format!("is no XML Schema: {}", said.replace('\n', " "));
            Problem::at("", message).hint("it is XML Schema 1.0 as libxml2 reads it").position(line, column)
        })
    }

    /// Compares a document with it.
    ///
    /// # Errors
    /// It is no XML, or what does not fit, with line and column.
    pub fn check(&self, body: &[u8]) -> Result<(), String> {
        let text = std::str::from_utf8(body).map_err(|_| "the body is not XML in UTF-8")?;
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let document = read(text, false)
            .map_err(|wrong| format!("the body at line {}, column {} {}", wrong.line, wrong.column, wrong.message))?;
        let Err((count, objections)) = self.0.check(&document.tree) else { return Ok(()) };
        let told = objections.iter().take(OBJECTIONS_MAX - 1).map(|(mark, said)| {
            let (line, column) = document.places.get(*mark).copied().unwrap_or((1, 1));
            format!("line {line}, column {column}: {}", without_values(said))
        });
        let told: Vec<String> = told.collect();
        let more = if count >= OBJECTIONS_MAX { "; and more" } else { "" };
        let told = if told.is_empty() { "the library does not say where".to_owned() } else { told.join("; ") };
        Err(format!("the body does not fit its schema: {told}{more}"))
    }
}

/// A document, and where its elements begin: line and column from 1, by their marks.
struct Marked {
    tree: Tree,
    places: Vec<(u32, u32)>,
}

/// How far a text was read.
struct Cursor<'a> {
    text: &'a str,
    at: usize,
    line: u32,
    column: u32,
}

impl Cursor<'_> {
    /// Goes on to a place. Gives its line and column.
    fn go_to(&mut self, at: usize) -> (u32, u32) {
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

/// A document under way.
struct Writer {
    document: Option<Marked>,
    /// Prefix, namespace as the library knows it, and its name; with the depth at which it was declared.
    scope: Vec<(usize, String, Option<Namespace>, String)>,
    depth: usize,
    is_schema: bool,
}

fn read(text: &str, is_schema: bool) -> Result<Marked, Wrong> {
    let mut reader = Reader::from_str(text);
    let mut cursor = Cursor { text, at: 0, line: 1, column: 1 };
    let mut writer = Writer { document: None, scope: Vec::new(), depth: 0, is_schema };
    loop {
        let from = usize::try_from(reader.buffer_position()).unwrap_or(usize::MAX);
        let event = reader.read_event();
        let place = cursor.go_to(from);
        let wrong = |(message, hint): (String, &'static str)| Wrong { line: place.0, column: place.1, message, hint };
        let event = event.map_err(|error| wrong((format!("is not XML: {error}"), "")))?;
        if matches!(event, Event::Eof) {
            break;
        }
        writer.take(event, place).map_err(wrong)?;
    }
    let (line, column) = cursor.go_to(text.len());
    let wrong = |message: &str| Wrong { line, column, message: message.to_owned(), hint: "" };
    match writer.document {
        Some(document) if writer.depth == 0 => Ok(document),
        Some(_) => Err(wrong("ends inside of an element")),
        None => Err(wrong("is not XML: it has no element")),
    }
}

type Trouble = (String, &'static str);

impl Writer {
    fn take(&mut self, event: Event<'_>, place: (u32, u32)) -> Result<(), Trouble> {
        match event {
            Event::Start(start) => self.enter(&start, place)?,
            Event::Empty(start) => {
                self.enter(&start, place)?;
                self.leave();
            }
            Event::End(_) => self.leave(),
            Event::Text(text) => self.text(&text.xml10_content())?,
            Event::CData(text) => self.text(&text.xml10_content())?,
            Event::GeneralRef(reference) => self.text(&referred(&reference)?)?,
            Event::DocType(_) => {
                return Err(("has a document type declaration, which is not read here".to_owned(), ""));
            }
            _ => {}
        }
        match &self.document {
            Some(document) if document.tree.nodes() > NODES_MAX => {
                Err((format!("has more than {NODES_MAX} elements, attributes and texts"), ""))
            }
            _ if self.depth > DEPTH_MAX => Err((format!("is nested deeper than {DEPTH_MAX} levels"), "")),
            _ => Ok(()),
        }
    }

    fn text(&mut self, text: &str) -> Result<(), Trouble> {
        match &mut self.document {
            Some(document) if self.depth > 0 => document.tree.text(text),
            _ if text.trim().is_empty() => {}
            _ => return Err(("has text outside of its root element".to_owned(), "")),
        }
        Ok(())
    }

    fn leave(&mut self) {
        self.depth = self.depth.saturating_sub(1);
        while self.scope.last().is_some_and(|(depth, ..)| *depth > self.depth) {
            self.scope.pop();
        }
        // The root element stays open: a document is written up to its end.
        if let Some(document) = self.document.as_mut().filter(|_| self.depth > 0) {
            document.tree.close();
        }
    }

    fn enter(&mut self, start: &BytesStart<'_>, place: (u32, u32)) -> Result<(), Trouble> {
        let (prefix, local) = split_name(start.name().into_inner());
        match &mut self.document {
            None => self.document = Some(Marked { tree: Tree::new(local), places: vec![(1, 1)] }),
            Some(_) if self.depth == 0 => return Err(("has more than one root element".to_owned(), "")),
            Some(document) => document.tree.open(local),
        }
        self.depth += 1;
        let document = self.document.as_mut().expect("it is there now");
        document.tree.mark(document.places.len());
        document.places.push(place);
        let mut attributes = Vec::new();
        for (count, attribute) in start.attributes().enumerate() {
            if count >= ATTRIBUTES_MAX {
                return Err((format!("has an element of more than {ATTRIBUTES_MAX} attributes"), ""));
            }
            let attribute = attribute.map_err(|error| (format!("is not XML: {error}"), ""))?;
            let value = quick_xml::escape::unescape(&attribute.value)
                .map_err(|error| (format!("has an attribute that cannot be read: {error}"), ""))?;
            // As XML has it (section 3.3.3): what was written as a character by its number stays, and is rare.
            let value = value.replace(['\t', '\n', '\r'], " ");
            match split_name(attribute.key.into_inner()) {
                ("", "xmlns") => self.declare("", &value)?,
                ("xmlns", prefix) => self.declare(prefix, &value)?,
                (prefix, name) => attributes.push((prefix.to_owned(), name.to_owned(), value)),
            }
        }
        let (namespace, href) = self.find(prefix)?;
        if self.is_schema && href == OF_SCHEMA {
            let refused = REFUSED.iter().find(|(names, ..)| names.contains(&local));
            if let Some((_, message, hint)) = refused {
                return Err((format!("`{local}` {message}"), hint));
            }
        }
        let tree = self.tree();
        if let Some(namespace) = namespace {
            tree.put_into(namespace);
        }
        for (prefix, name, value) in attributes {
            if prefix.is_empty() {
                self.tree().attribute(&name, &value);
                continue;
            }
            let (namespace, href) = self.find(&prefix)?;
            let names_schema = href == OF_INSTANCE && name.ends_with("chemaLocation");
            if let Some(namespace) = namespace.filter(|_| !names_schema) {
                self.tree().attribute_in(namespace, &name, &value);
            }
        }
        Ok(())
    }

    fn tree(&mut self) -> &mut Tree {
        &mut self.document.as_mut().expect("an element has been begun").tree
    }

    fn declare(&mut self, prefix: &str, href: &str) -> Result<(), Trouble> {
        let wrong = || (format!("declares the prefix `{prefix}` as none may be declared"), "");
        let namespace = match (prefix, href) {
            ("", "") => None,
            (_, "") => return Err(wrong()),
            _ => Some(self.tree().declare(prefix, href).ok_or_else(wrong)?),
        };
        if self.scope.len() >= PREFIXES_MAX {
            return Err((format!("declares more than {PREFIXES_MAX} prefixes within each other"), ""));
        }
        self.scope.push((self.depth, prefix.to_owned(), namespace, href.to_owned()));
        Ok(())
    }

    /// The namespace of a prefix, and its name.
    fn find(&mut self, prefix: &str) -> Result<(Option<Namespace>, String), Trouble> {
        if let Some((.., namespace, href)) = self.scope.iter().rev().find(|(_, known, ..)| known == prefix) {
            return Ok((*namespace, href.clone()));
        }
        match prefix {
            "" => Ok((None, String::new())),
            "xml" => Ok((self.tree().namespace_of_xml(), String::new())),
            _ => Err((format!("uses the prefix `{prefix}`, which is not declared"), "")),
        }
    }
}

/// Prefix and local name.
fn split_name(name: &str) -> (&str, &str) {
    name.split_once(':').unwrap_or(("", name))
}

/// What a reference stands for: a character by its number, or one of the five that XML itself has.
fn referred(reference: &BytesRef<'_>) -> Result<String, Trouble> {
    let name: &str = reference;
    if let Ok(Some(character)) = reference.resolve_char_ref() {
        return Ok(character.to_string());
    }
    let known = [("lt", "<"), ("gt", ">"), ("amp", "&"), ("apos", "'"), ("quot", "\"")];
    let found = known.into_iter().find(|(known, _)| *known == name);
    found.map(|(_, text)| text.to_owned()).ok_or_else(|| (format!("has the entity `&{name};`, which is not read"), ""))
}

/// What the library says, without the value of which it says it.
fn without_values(said: &str) -> String {
    // `Element 'a', attribute 'b': [facet 'pattern'] The value 'secret' is not accepted by the pattern 'x'.`
    const GOES_ON: [&str; 5] = ["' is ", "' has ", "' does ", "' must ", "' exceeds "];
    let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
    let Some((place, reason)) = said.split_once(": ").filter(|(place, _)| place.starts_with("Element ")) else {
        return said;
    };
    let (facet, reason) = match reason.strip_prefix('[').and_then(|rest| rest.split_once("] ")) {
        Some((facet, rest)) => (format!("[{facet}] "), rest),
        None => (String::new(), reason),
    };
    let begins = ["'", "The value '", "The QName value '", "The character content '"];
    let reason = match begins.into_iter().find(|begin| reason.starts_with(begin)) {
        Some(begin) => {
            let end = GOES_ON.iter().filter_map(|next| reason.rfind(next)).max();
            let rest = end.filter(|end| *end >= begin.len()).map_or("' is wrong", |end| &reason[end..]);
            format!("the value{}", rest.trim_start_matches('\''))
        }
        None => reason.to_owned(),
    };
    format!("{place}: {facet}{reason}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORDER: &str = r#"<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema" targetNamespace="urn:orders" xmlns="urn:orders" elementFormDefault="qualified">
  <xs:element name="order">
    <xs:complexType>
      <xs:sequence>
        <xs:element name="customer" type="Name"/>
        <xs:element name="line" maxOccurs="3">
          <xs:complexType>
            <xs:attribute name="sku" type="xs:string" use="required"/>
            <xs:attribute name="count" type="xs:positiveInteger"/>
          </xs:complexType>
        </xs:element>
      </xs:sequence>
    </xs:complexType>
  </xs:element>
  <xs:simpleType name="Name">
    <xs:restriction base="xs:string"><xs:pattern value="[A-Z][a-z]+"/></xs:restriction>
  </xs:simpleType>
</xs:schema>"#;

    fn check(body: &str, expected: Result<(), &str>) {
        let schema = XmlSchema::compile(ORDER).expect("a schema");
        match (schema.check(body.as_bytes()), expected) {
            (Ok(()), Ok(())) => {}
            (Err(why), Err(part)) => assert!(why.contains(part) && !why.contains("secret"), "{why}"),
            (got, _) => panic!("{got:?} of {body}"),
        }
    }

    #[test]
    fn documents_fit_or_it_is_told_where_they_do_not() {
        check("<order xmlns='urn:orders'><customer>Ann</customer><line sku='a' count='2'/></order>", Ok(()));
        let prefixed = "<?xml version='1.0'?>\n<o:order xmlns:o=\"urn:orders\"><!-- c --><o:customer><![CDATA[Ann]]></o:customer>\n<o:line sku='&#65;&amp;'/></o:order>\n";
        check(prefixed, Ok(()));
        let location = "<order xmlns='urn:orders' xmlns:xsi='http://www.w3.org/2001/XMLSchema-instance' xsi:schemaLocation='urn:orders file:///etc/passwd'><customer>Ann</customer><line sku='a'/></order>";
        check(location, Ok(()));
        check(
            "<order xmlns='urn:orders'>\n  <customer>secret</customer><line sku='a'/></order>",
            Err(
                "line 2, column 3: Element '{urn:orders}customer': [facet 'pattern'] the value is not accepted by the pattern",
            ),
        );
        check(
            "<order xmlns='urn:orders'>\n  <customer>Ann</customer>\n <line sku='a' count='secret'/></order>",
            Err("line 3, column 2"),
        );
        check("<order xmlns='urn:orders'><customer>Ann</customer></order>", Err("Missing child element"));
        check("<order><customer>Ann</customer></order>", Err("line 1, column 1"));
        let many = "<order xmlns='urn:orders'><customer>Ann</customer><line/><line/><line/><line/><line/></order>";
        check(many, Err("; and more"));
    }

    #[test]
    fn what_is_no_plain_xml_is_refused() {
        check("", Err("it has no element"));
        check("{}", Err("text outside"));
        check("<a><b></a>", Err("is not XML"));
        check("<a>", Err("ends inside"));
        check("<a/><b/>", Err("more than one root"));
        check("<x:a/>", Err("the prefix `x`, which is not declared"));
        check("<!DOCTYPE a [<!ENTITY x 'secret'>]><a>&x;</a>", Err("document type declaration"));
        check("<a>&x;</a>", Err("the entity `&x;`"));
        check(&"<a>".repeat(300), Err("nested deeper than 256"));
        check(&format!("<a>{}</a>", "<b/>".repeat(200_001)), Err("more than 200000"));
        let schema = XmlSchema::compile(ORDER).expect("a schema");
        assert!(schema.check(&[0x3c, 0xff]).is_err());
        let threads: Vec<_> = (0..4).map(|_| ()).collect();
        std::thread::scope(|scope| {
            for () in threads {
                scope.spawn(|| {
                    for _ in 0..200 {
                        assert!(
                            schema
                                .check(b"<order xmlns='urn:orders'><customer>Ann</customer><line sku='a'/></order>")
                                .is_ok()
                        );
                        assert!(schema.check(b"<order xmlns='urn:orders'><customer>x</customer></order>").is_err());
                    }
                });
            }
        });
    }

    #[test]
    fn no_bomb_goes_off_in_a_schema_or_in_a_document() {
        let outside = crate::tests::outside::Outside::new();
        let schema = XmlSchema::compile(ORDER).expect("a schema");
        for (name, bomb) in outside.bombs() {
            let as_document = schema.check(bomb.as_bytes()).expect_err(&name);
            let as_schema = XmlSchema::compile(&bomb).expect_err(&name).to_string();
            let (of_document, of_schema) = match name.as_str() {
                _ if bomb.contains("<!DOCTYPE") => ("document type declaration", "document type declaration"),
                "schema-include.xsd" => ("does not fit its schema", "nothing is fetched"),
                // They are XML like any, and no orders.
                _ => ("does not fit its schema", "is no XML Schema"),
            };
            assert!(as_document.contains(of_document), "{name}: {as_document}");
            assert!(as_schema.contains(of_schema), "{name}: {as_schema}");
            assert_eq!(outside.touched(), Vec::<String>::new(), "{name}");
        }
    }

    /// What would be looked for among all of its kind takes no more than a moment, or is refused.
    #[test]
    fn nothing_grows_with_the_square_of_a_document() {
        let many = |count: usize, each: fn(usize) -> String| (0..count).map(each).collect::<String>();
        let attributes = |count| many(count, |at| format!(" a{at}=''"));
        let prefixes = |count| many(count, |at| format!(" xmlns:a{at}='u'"));
        check(&format!("<a{}/>", attributes(1_000)), Err("does not fit"));
        check(&format!("<a{}/>", attributes(190_000)), Err("an element of more than 1000 attributes"));
        check(&format!("<a{}/>", prefixes(190_000)), Err("more than 256 prefixes"));
        let nested = format!("<a{}>{}</a>", prefixes(256), "<a0:b/>".repeat(100_000));
        check(&nested, Err("does not fit"));
        check(&format!("<a{}><b xmlns:z='u'/></a>", prefixes(256)), Err("more than 256 prefixes within each other"));
        let beside = format!("<b{}/>", prefixes(200));
        check(&format!("<a>{}</a>", beside.repeat(1_000)), Err("more than 200000"));
    }

    #[test]
    fn schemas_that_are_wrong_or_reach_out_are_refused() {
        let refused = |text: &str, expected: &str| {
            let problem = XmlSchema::compile(text).expect_err(text);
            assert!(problem.to_string().contains(expected), "{problem}");
        };
        let with =
            |inner: &str| format!("<xs:schema xmlns:xs=\"http://www.w3.org/2001/XMLSchema\">\n{inner}</xs:schema>");
        refused("no schema", "text outside");
        refused("<a/>", "is no XML Schema");
        refused(&with("<xs:include schemaLocation='file:///etc/passwd'/>"), "2:1");
        refused(&with("<xs:import namespace='urn:x' schemaLocation='http://localhost/x.xsd'/>"), "nothing is fetched");
        refused(&with("<xs:element name='a' type='xs:nothing'/>"), "2:1");
        refused(
            &with("<xs:element name='a'><xs:unique name='u'><xs:selector xpath='b'/></xs:unique></xs:element>"),
            "`unique`",
        );
    }

    #[test]
    fn values_are_not_told() {
        for (said, expected) in [
            (
                "Element 'a': 'x' is y' is not a valid value of the atomic type 'xs:integer'.",
                "Element 'a': the value is not a valid value of the atomic type 'xs:integer'.",
            ),
            (
                "Element 'a', attribute 'b': [facet 'maxLength'] The value 'x' has a length of '3'; this exceeds the allowed maximum length of '2'.",
                "Element 'a', attribute 'b': [facet 'maxLength'] the value has a length of '3'; this exceeds the allowed maximum length of '2'.",
            ),
            (
                "Element 'a': This element is not expected. Expected is ( b ).",
                "Element 'a': This element is not expected. Expected is ( b ).",
            ),
        ] {
            assert_eq!(without_values(said), expected);
        }
    }
}
