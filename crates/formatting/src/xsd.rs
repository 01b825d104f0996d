//! Documents of XML are compared with a schema (XML Schema 1.0, as libxml2 reads it).
//!
//! No text from outside is read by the library: document and schema are read here and made node by node, in a worker
//! process with bounds of time and memory. Nothing is fetched: a schema stands in one piece, and where a document says that
//! its schema is to be found is not looked at. An error has line and column, names and rules, and no values: it is written
//! into logs.

use tocsin_model::{
    charset::{self, Syntax},
    problem::Problem,
};

use crate::{
    worker::{Answer, Program, WorkerError},
    xml::{self, OF_SCHEMA, Options, Wrong},
};

/// Most elements, attributes, declared namespaces and texts of a document.
const NODES_MAX: usize = 200_000;
const DEPTH_MAX: usize = 256;
/// Differences that an error names.
const OBJECTIONS_MAX: usize = 3;

const OF_DOCUMENTS: Options =
    Options { nodes_max: NODES_MAX, depth_max: DEPTH_MAX, is_for_schema: true, refuse: |_, _| None };
const OF_SCHEMAS: Options = Options { refuse, ..OF_DOCUMENTS };

fn refuse(local: &str, href: &str) -> Option<xml::Trouble> {
    let is_refused = href == OF_SCHEMA && matches!(local, "include" | "import" | "redefine");
    is_refused.then(|| {
        let message = format!("`{local}` asks for another schema, and nothing is fetched here");
        (message, "write the declarations that it needs into this one")
    })
}

/// A schema that a worker has compiled once. Any number of threads share it.
#[derive(Debug)]
pub struct XmlSchema(Program);

impl XmlSchema {
    /// Compiles a schema, in at most two seconds.
    ///
    /// # Errors
    /// The fault, with line and column, or the bound that it exceeds.
    pub fn compile(text: &str) -> Result<XmlSchema, Problem> {
        let document = xml::read(text, &OF_SCHEMAS).map_err(|wrong: Wrong| {
            let problem = Problem::at("", wrong.message).position(wrong.line, wrong.column);
            if wrong.hint.is_empty() { problem } else { problem.hint(wrong.hint) }
        })?;
        let places = document.places;
        let program = Program::schema(&document.tree.into_operations());
        let objections = match program.compile() {
            Ok(Answer::Compiled { .. }) => return Ok(XmlSchema(program)),
            Ok(Answer::Objections { objections, .. }) => objections,
            Ok(answer) => return Err(Problem::at("", format!("cannot be compiled: {}", unexpected(&answer)))),
            Err(error) => return Err(Problem::at("", format!("cannot be compiled: {error}"))),
        };
        let first = objections.into_iter().next();
        let (mark, said) = first.unwrap_or_else(|| (0, "the library does not say why".to_owned()));
        let (line, column) = places.get(mark).copied().unwrap_or((1, 1));
        let message = format!("is no XML Schema: {}", said.replace('\n', " "));
        Err(Problem::at("", message).hint("it is XML Schema 1.0 as libxml2 reads it").position(line, column))
    }

    /// Compares a document with it, in at most two seconds. `charset` is that of its media type, if it names one.
    ///
    /// # Errors
    /// It is no XML, or what does not fit, with line and column, or the bound that it exceeds.
    pub fn check(&self, body: &[u8], charset: Option<&str>) -> Result<(), String> {
        let text = charset::decode(body, Syntax::Xml, charset).map_err(|error| format!("the body {error}"))?;
        let document = xml::read(&text, &OF_DOCUMENTS)
            .map_err(|wrong| format!("the body at line {}, column {} {}", wrong.line, wrong.column, wrong.message))?;
        let places = document.places;
        let (count, objections) = match self.0.apply(&document.tree.into_operations()) {
            Ok(Answer::Done(_)) => return Ok(()),
            Ok(Answer::Objections { count, objections }) => (count, objections),
            Ok(answer) => return Err(format!("the body cannot be checked: {}", unexpected(&answer))),
            Err(error @ WorkerError::Busy) => return Err(format!("the body cannot be checked now: {error}")),
            Err(error) => return Err(format!("the body cannot be checked: {error}")),
        };
        let shown = objections.iter().take(OBJECTIONS_MAX).map(|(mark, said)| {
            let (line, column) = places.get(*mark).copied().unwrap_or((1, 1));
            format!("line {line}, column {column}: {}", without_values(said))
        });
        let shown: Vec<String> = shown.collect();
        let more = if count > OBJECTIONS_MAX { "; and more" } else { "" };
        let shown = if shown.is_empty() { "the library does not say where".to_owned() } else { shown.join("; ") };
        Err(format!("the body does not fit its schema: {shown}{more}"))
    }
}

fn unexpected(answer: &Answer) -> String {
    match answer {
        Answer::Failed(said) => said.clone(),
        other => format!("the worker gave an unexpected answer: {other:?}"),
    }
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
        match (schema.check(body.as_bytes(), None), expected) {
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
    fn no_bomb_goes_off_in_a_schema_or_in_a_document() {
        let outside = crate::tests::outside::Outside::new();
        let schema = XmlSchema::compile(ORDER).expect("a schema");
        for (name, bomb) in outside.bombs() {
            let as_document = schema.check(bomb.as_bytes(), None).expect_err(&name);
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
