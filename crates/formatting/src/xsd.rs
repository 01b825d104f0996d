//! Validates XML documents by XML Schema 1.0, with libxml2.
//!
//! The library parses no text from outside: document and schema are parsed here and built node by node, in a worker
//! process with time and memory limits. Nothing is fetched: a schema is self-contained, and schema locations in
//! documents are ignored. Errors contain line and column, names and rules, but no values, since they are logged.

use tocsin_model::{
    charset::{self, Syntax},
    problem::{Code, Problem},
};

use crate::{
    worker::{Program, WorkerError, WorkerResponse},
    xml::{self, OF_SCHEMA, Options, XmlError},
};

/// Most elements, attributes, declared namespaces and texts of a document.
const NODES_MAX: usize = 200_000;
const DEPTH_MAX: usize = 256;
/// Most differences in an error.
const OBJECTIONS_MAX: usize = 3;

const OF_DOCUMENTS: Options =
    Options { nodes_max: NODES_MAX, depth_max: DEPTH_MAX, is_for_schema: true, refuse: |_, _| None };
const OF_SCHEMAS: Options = Options { refuse, ..OF_DOCUMENTS };

fn refuse(local: &str, href: &str) -> Option<xml::XmlFault> {
    let is_refused = href == OF_SCHEMA && matches!(local, "include" | "import" | "redefine");
    is_refused.then(|| {
        let message = format!("`{local}` refers to another schema, and nothing is fetched here");
        (message, "put the required declarations into this schema")
    })
}

/// A schema, compiled once per worker. Any number of threads share it.
#[derive(Debug)]
pub struct XmlSchema(Program);

impl XmlSchema {
    /// Compiles a schema, in at most two seconds.
    ///
    /// # Errors
    /// The fault, with line and column, or the exceeded limit.
    pub fn compile(text: &str) -> Result<XmlSchema, Problem> {
        let document = xml::read(text, &OF_SCHEMAS).map_err(|wrong: XmlError| {
            let problem = Problem::syntax("xsd", "", wrong.message).position(wrong.line, wrong.column);
            if wrong.hint.is_empty() { problem } else { problem.hint(wrong.hint) }
        })?;
        let places = document.places;
        let program = Program::schema(&document.tree.into_operations());
        let objections = match program.compile() {
            Ok(WorkerResponse::Compiled { .. }) => return Ok(XmlSchema(program)),
            Ok(WorkerResponse::ValidationErrors { objections, .. }) => objections,
            Ok(response) => {
                return Err(Problem::new(Code::Internal, "", format!("cannot be compiled: {}", unexpected(&response))));
            }
            Err(error) => return Err(Problem::new(Code::Internal, "", format!("cannot be compiled: {error}"))),
        };
        let first = objections.into_iter().next();
        let (mark, said) = first.unwrap_or_else(|| (0, "the library gave no reason".to_owned()));
        let (line, column) = places.get(mark).copied().unwrap_or((1, 1));
        let message = format!("is no XML Schema: {}", said.replace('\n', " "));
        Err(Problem::syntax("xsd", "", message)
            .hint("the language is XML Schema 1.0, as libxml2 supports it")
            .position(line, column))
    }

    /// Validates a document, in at most two seconds. `charset` is that of its media type, if it names one.
    ///
    /// # Errors
    /// The body is not XML, does not match the schema (differences with line and column), or exceeds a limit.
    pub fn check(&self, body: &[u8], charset: Option<&str>) -> Result<(), String> {
        let text = charset::decode(body, Syntax::Xml, charset).map_err(|error| format!("the body {error}"))?;
        let document = xml::read(&text, &OF_DOCUMENTS)
            .map_err(|wrong| format!("the body at line {}, column {} {}", wrong.line, wrong.column, wrong.message))?;
        let places = document.places;
        let (count, objections) = match self.0.apply(&document.tree.into_operations()) {
            Ok(WorkerResponse::Done(_)) => return Ok(()),
            Ok(WorkerResponse::ValidationErrors { count, objections }) => (count, objections),
            Ok(response) => return Err(format!("the body cannot be checked: {}", unexpected(&response))),
            Err(error @ WorkerError::Busy) => return Err(format!("the body cannot be checked now: {error}")),
            Err(error) => return Err(format!("the body cannot be checked: {error}")),
        };
        let shown = objections.iter().take(OBJECTIONS_MAX).map(|(mark, said)| {
            let (line, column) = places.get(*mark).copied().unwrap_or((1, 1));
            format!("line {line}, column {column}: {}", without_values(said))
        });
        let shown: Vec<String> = shown.collect();
        let more = if count > OBJECTIONS_MAX { "; and more" } else { "" };
        let shown = if shown.is_empty() { "the library gave no position".to_owned() } else { shown.join("; ") };
        Err(format!("the body does not match its schema: {shown}{more}"))
    }
}

fn unexpected(response: &WorkerResponse) -> String {
    match response {
        WorkerResponse::Failed(said) => said.clone(),
        other => format!("the worker gave an unexpected response: {other:?}"),
    }
}

/// Removes the value from a message of the library.
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
        match (schema.check(body.as_bytes(), None), expected) {
            (Ok(()), Ok(())) => {}
            (Err(why), Err(part)) => assert!(why.contains(part) && !why.contains("secret"), "{why}"),
            (got, _) => panic!("{got:?} of {body}"),
        }
    }

    #[test]
    fn differences_are_reported_with_their_position() {
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
    fn documents_that_are_not_plain_xml_are_rejected() {
        check("", Err("it has no element"));
        check("{}", Err("text outside"));
        check("<a><b></a>", Err("is not XML"));
        check("<a>", Err("ends inside"));
        check("<a/><b/>", Err("more than one root"));
        check("<x:a/>", Err("the prefix `x`, which is not declared"));
        check("<!DOCTYPE a [<!ENTITY x 'secret'>]><a>&x;</a>", Err("document type declaration"));
        check("<a>&x;</a>", Err("the entity `&x;`"));
        // XML 1.0, sections 2.2, 2.4, 2.5, 2.8 and 4.1.
        check("<a>\n\u{1}</a>", Err("line 2, column 1 is not XML: has the character U+0001"));
        check("<a b='\u{ffff}'/>", Err("the character U+FFFF"));
        check("<a>&#1;</a>", Err("the character U+0001"));
        check("<a b='&#xB;'/>", Err("the character U+000B"));
        check("<a b='<'/>", Err("is not XML"));
        check("<a>]]></a>", Err("`]]>`"));
        check("<a><!-- a -- b --></a>", Err("is not XML"));
        check(" <?xml version='1.0'?><a/>", Err("not at its beginning"));
        check(&"<a>".repeat(300), Err("nested deeper than 256"));
        check(&format!("<a>{}</a>", "<b/>".repeat(200_001)), Err("more than 200000"));
        let schema = XmlSchema::compile(ORDER).expect("a schema");
        assert!(schema.check(&[0x3c, 0xff], None).is_err());
        let threads: Vec<_> = (0..4).map(|_| ()).collect();
        std::thread::scope(|scope| {
            for () in threads {
                scope.spawn(|| {
                    for _ in 0..200 {
                        assert!(
                            schema
                                .check(
                                    b"<order xmlns='urn:orders'><customer>Ann</customer><line sku='a'/></order>",
                                    None
                                )
                                .is_ok()
                        );
                        assert!(
                            schema.check(b"<order xmlns='urn:orders'><customer>x</customer></order>", None).is_err()
                        );
                    }
                });
            }
        });
    }

    #[test]
    fn xml_bombs_in_schemas_and_documents_are_rejected() {
        let outside = crate::tests::outside::ExternalProbe::new();
        let schema = XmlSchema::compile(ORDER).expect("a schema");
        for (name, bomb) in outside.bombs() {
            let as_document = schema.check(bomb.as_bytes(), None).expect_err(&name);
            let as_schema = XmlSchema::compile(&bomb).expect_err(&name).to_string();
            let (of_document, of_schema) = match name.as_str() {
                _ if bomb.contains("<!DOCTYPE") => ("document type declaration", "document type declaration"),
                "schema-include.xsd" => ("does not match its schema", "nothing is fetched"),
                // They are well-formed XML, but not orders.
                _ => ("does not match its schema", "is no XML Schema"),
            };
            assert!(as_document.contains(of_document), "{name}: {as_document}");
            assert!(as_schema.contains(of_schema), "{name}: {as_schema}");
            assert_eq!(outside.touched(), Vec::<String>::new(), "{name}");
        }
    }

    /// Quadratic algorithms of the library take only a moment, or the input is rejected.
    #[test]
    fn no_cost_is_quadratic_in_the_document() {
        let many = |count: usize, each: fn(usize) -> String| (0..count).map(each).collect::<String>();
        let attributes = |count| many(count, |at| format!(" a{at}=''"));
        let prefixes = |count| many(count, |at| format!(" xmlns:a{at}='u'"));
        check(&format!("<a{}/>", attributes(1_000)), Err("does not match its schema"));
        check(&format!("<a{}/>", attributes(190_000)), Err("an element of more than 1000 attributes"));
        check(&format!("<a{}/>", prefixes(190_000)), Err("more than 256 prefixes"));
        let nested = format!("<a{}>{}</a>", prefixes(256), "<a0:b/>".repeat(100_000));
        check(&nested, Err("does not match its schema"));
        check(&format!("<a{}><b xmlns:z='u'/></a>", prefixes(256)), Err("more than 256 prefixes within each other"));
        let beside = format!("<b{}/>", prefixes(200));
        check(&format!("<a>{}</a>", beside.repeat(1_000)), Err("more than 200000"));
    }

    #[test]
    fn invalid_or_external_schemas_are_rejected() {
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
    }

    #[test]
    fn messages_contain_no_values() {
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
