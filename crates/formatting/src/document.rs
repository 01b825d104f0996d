//! Transforms one document into another, by a template or a stylesheet. For messages of exchanges, which have no
//! notification class.
//!
//! | variable in templates | value |
//! |---|---|
//! | `body` | the parsed value of a JSON document; else its text |
//! | `message.<name>` | its promoted properties |
//!
//! A stylesheet reads an XML document in the data model of XPath 1.0: elements and attributes in their namespaces,
//! texts, comments and processing instructions. A JSON document becomes `<document>` with an element for each member,
//! `<item>` for items of a list, and `<entry key="...">` for a member whose name is not an XML name.

use std::{borrow::Cow, collections::BTreeMap};

use minijinja::{
    AutoEscape, Environment, State,
    value::{Serde, Value as Jinja, ValueKind},
};
use tocsin_model::{
    charset::{self, Syntax},
    exact_json::{self, Exact, ExactError, Numbers},
    id::Name,
    media_type,
    problem::{Code, Problem},
    stack::with_large_stack,
    value::Value,
};

use crate::{
    formatter::{BoundedOutput, environment, run},
    limits::OUTPUT_BYTES_MAX,
    parts::message_of,
    sandbox,
    template_depth::SyntaxError,
    tree::Tree,
    xml::{self, Options},
    xslt::{Output, Stylesheet, XsltError},
};

/// The variables of templates.
const ROOTS: [&str; 2] = ["body", "message"];
/// Most elements, attributes and texts of a document for a stylesheet.
const NODES_MAX: usize = 20_000;
const DEPTH_MAX: usize = 64;
const OF_XML: Options =
    Options { nodes_max: NODES_MAX, depth_max: DEPTH_MAX, is_for_schema: false, refuse: |_, _| None };

/// An input document.
#[derive(Debug, Clone, Copy)]
pub struct Document<'a> {
    /// The bytes, in any encoding.
    pub body: &'a [u8],
    /// Media type; empty if it is not known.
    pub content_type: &'a str,
    /// Promoted properties.
    pub properties: &'a [(Name, Value)],
}

/// An output document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FormattedDocument {
    /// The bytes, in the encoding of its media type.
    pub body: Vec<u8>,
    /// Media type.
    pub content_type: String,
}

/// A compiled template or stylesheet for documents. Any number of threads share it.
#[derive(Debug)]
pub struct DocumentFormatter {
    engine: Engine,
    /// Empty if the stylesheet determines it.
    content_type: String,
}

#[derive(Debug)]
enum Engine {
    Template { environment: Box<Environment<'static>>, name: String },
    Stylesheet(Stylesheet),
}

impl DocumentFormatter {
    /// Compiles a Jinja template. `content_type` is the media type of its output, for which values are escaped.
    ///
    /// # Errors
    /// The fault, with line and column.
    pub fn template(source: &str, content_type: &str) -> Result<DocumentFormatter, Problem> {
        with_large_stack(|| DocumentFormatter::compile_template(source, content_type)).unwrap_or_else(|error| {
            let hint = "raise the limit of threads of the process, or try again later";
            Err(Problem::new(
                Code::Internal,
                "",
                format!("the template was not compiled, as no thread could be started: {error}"),
            )
            .hint(hint))
        })
    }

    fn compile_template(source: &str, content_type: &str) -> Result<DocumentFormatter, Problem> {
        let prepared = sandbox::prepare(source, &BTreeMap::new()).map_err(|error| error.in_template(""))?;
        if let Some((message, hint, line, column)) = prepared.objections.first() {
            return Err(Problem::new(Code::Unsupported, "", message.clone()).hint(*hint).position(*line, *column));
        }
        if let Some(reference) = prepared.references.first() {
            let message =
                format!("`{}` names `{}`, but partials are not available here", reference.tag, reference.name);
            let problem = Problem::new(Code::NotApplicable, "", message).hint("write its content into the template");
            return Err(problem.position(reference.line, reference.column));
        }
        let name = format!("document:{}", target(content_type));
        let mut environment = Box::new(environment());
        environment
            .add_template_owned(name.clone(), prepared.source.clone())
            .map_err(|error| SyntaxError::read(source, &error).in_template(""))?;
        check_variables(&environment, &name, &prepared)?;
        check_charset("the media type", charset::of_media_type(content_type).as_deref())?;
        Ok(DocumentFormatter { engine: Engine::Template { environment, name }, content_type: content_type.to_owned() })
    }

    /// Compiles an XSLT 1.0 stylesheet. `content_type` is the media type of its result; if it is empty, that of
    /// `xsl:output`: `media-type`, or the default of its method.
    ///
    /// # Errors
    /// The fault, with its line.
    pub fn stylesheet(source: &str, content_type: &str) -> Result<DocumentFormatter, Problem> {
        let sheet = Stylesheet::compile(source, &BTreeMap::new(), None)?;
        check_charset("`xsl:output`", Some(sheet.output().encoding.as_str()))?;
        check_charset("the media type", charset::of_media_type(content_type).as_deref())?;
        Ok(DocumentFormatter { engine: Engine::Stylesheet(sheet), content_type: content_type.to_owned() })
    }

    /// Transforms a document. Takes one second at most.
    ///
    /// # Errors
    /// The error, as text.
    pub fn format(&self, document: &Document<'_>) -> Result<FormattedDocument, String> {
        match &self.engine {
            Engine::Template { environment, name } => {
                let text = render(environment, name, document)?;
                encode(text, &self.content_type, &Output::default())
            }
            Engine::Stylesheet(sheet) => {
                let made = tree(document).and_then(|tree| sheet.apply_to(tree));
                let text = made.map_err(|error| match error.line {
                    Some(line) => format!("line {line}: {}", error.message),
                    None => error.message,
                })?;
                encode(text, &self.content_type, sheet.output())
            }
        }
    }
}

fn check_charset(which: &str, label: Option<&str>) -> Result<(), Problem> {
    match charset::encode("", label.unwrap_or_default(), false) {
        Ok(_) => Ok(()),
        Err(error) => {
            Err(Problem::new(Code::Unsupported, "", format!("{which} has an encoding that cannot be written: {error}")))
        }
    }
}

/// Encodes a text for `content_type` and `xsl:output`. The encoding of `xsl:output` takes precedence, because the
/// document names it.
fn encode(text: String, content_type: &str, output: &Output) -> Result<FormattedDocument, String> {
    let is_html = output.method == "html" || (output.method.is_empty() && is_html(&text));
    let usual = match output.method.as_str() {
        "text" => "text/plain",
        _ if is_html => "text/html",
        _ => "application/xml",
    };
    let given = [content_type, &output.media_type].into_iter().find(|given| !given.is_empty());
    let content_type = given.unwrap_or(usual);
    let named = charset::of_media_type(content_type);
    let label = if output.encoding.is_empty() { named.as_deref().unwrap_or_default() } else { &output.encoding };
    if label.is_empty() || label.eq_ignore_ascii_case("utf-8") {
        let content_type =
            if named.is_some() { charset::with_charset(content_type, "utf-8") } else { content_type.into() };
        return Ok(FormattedDocument { body: text.into_bytes(), content_type });
    }
    let is_markup = media_type::is_xml(content_type) || media_type::is_html(content_type);
    let labelled = match is_html {
        // The library writes this element, with its own output encoding.
        true => text.replacen("charset=UTF-8\">", &format!("charset={label}\">"), 1),
        false => charset::xml_for(&text, label).into_owned(),
    };
    let body = charset::encode(&labelled, label, is_markup)
        .map_err(|error| format!("the result cannot be written: {error}"))?;
    Ok(FormattedDocument { body, content_type: charset::with_charset(content_type, label) })
}

/// Whether a result without an output method is HTML, by its root element (XSLT 1.0, section 16).
fn is_html(text: &str) -> bool {
    let text = text.trim_start();
    let begins = |start: &str| text.get(..start.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(start));
    let tag = text.split('>').next().unwrap_or_default();
    (begins("<html") && !tag.contains("xmlns=")) || begins("<!DOCTYPE html")
}

/// The escaping for a media type.
fn target(content_type: &str) -> &'static str {
    match content_type {
        kind if media_type::is_json(kind) || media_type::is_json_lines(kind) => "json",
        kind if media_type::is_xml(kind) || media_type::is_html(kind) => "html",
        _ => "text",
    }
}

fn check_variables(
    environment: &Environment<'_>,
    name: &str,
    prepared: &sandbox::PreparedTemplate,
) -> Result<(), Problem> {
    let template = environment.get_template(name).map_err(|error| Problem::syntax("jinja", "", message_of(&error)))?;
    let is_known = |name: &String| {
        let is_global = environment.globals().any(|(global, _)| global == name);
        ROOTS.contains(&name.as_str()) || is_global || sandbox::is_own(name)
    };
    let mut unknown: Vec<String> = template.undeclared_variables(false).into_iter().collect();
    unknown.retain(|name| !is_known(name));
    unknown.sort();
    let Some(name) = unknown.first() else { return Ok(()) };
    let below = format!("{name}.");
    let place = prepared.variables.iter().find(|(path, ..)| path == name || path.starts_with(&below));
    let (line, column) = place.map_or((1, 1), |(_, line, column)| (*line, *column));
    let problem = Problem::new(Code::UnknownName, "", format!("the template uses `{name}`, which is unknown here"))
        .param("value", name.to_string());
    Err(problem.hint("a template can read `body` and the properties in `message`").position(line, column))
}

fn render(environment: &Environment<'static>, name: &str, document: &Document<'_>) -> Result<String, String> {
    let text = text_of(document, false)?;
    let exact = exact_value(text.as_bytes());
    let (json, numbers) = match exact {
        Some((value, numbers)) => (Some(serde_json::Value::from(value)), numbers),
        None => (serde_json::from_str(&text).ok(), Numbers::default()),
    };
    let exactly;
    let environment = match numbers.is_empty() {
        true => environment,
        false => {
            exactly = exact_environment(environment, numbers);
            &exactly
        }
    };
    let body = match &json {
        Some(json) => Jinja::from(Serde(json)),
        None => Jinja::from(&*text),
    };
    let properties: serde_json::Map<String, serde_json::Value> =
        document.properties.iter().map(|(name, value)| (name.to_string(), value.clone().into())).collect();
    let root = Jinja::from(BTreeMap::from([("body", body), ("message", Jinja::from(Serde(&properties)))]));
    let mut output = BoundedOutput { bytes: Vec::new(), full: false, most: OUTPUT_BYTES_MAX };
    match run(environment, name, &root, &mut output) {
        Ok(()) => Ok(String::from_utf8(output.bytes).expect("templates and values are UTF-8")),
        Err(_) if output.full => Err(format!("the output is longer than {OUTPUT_BYTES_MAX} bytes")),
        Err(error) => Err(match error.line() {
            Some(line) => format!("line {line}: {}", message_of(&error)),
            None => message_of(&error),
        }),
    }
}

/// The parsed JSON body, if it has numbers that a double cannot represent exactly.
fn exact_value(body: &[u8]) -> Option<(Value, Numbers)> {
    if !exact_json::has_inexact_numbers(body) {
        return None;
    }
    let mut numbers = Numbers::default();
    let value = Exact::read(body).ok()?.value(&mut numbers).ok()?;
    Some((value, numbers))
}

/// An environment that writes numbers exactly as in the document, alone and within lists and objects of JSON.
fn exact_environment(environment: &Environment<'static>, numbers: Numbers) -> Environment<'static> {
    let mut exact = environment.clone();
    exact.set_formatter(move |out, state: &mut State<'_, '_>, value: &Jinja| {
        let is_json = *state.auto_escape() == AutoEscape::Json;
        let text = match value.kind() {
            ValueKind::Number if !value.is_integer() => {
                f64::try_from(value.clone()).ok().and_then(|number| numbers.text(number)).map(str::to_owned)
            }
            ValueKind::Seq | ValueKind::Map if is_json => {
                let mut text = String::new();
                numbers.write(&Value::from(crate::scope::json(value)), &mut text);
                Some(text)
            }
            _ => None,
        };
        match text {
            Some(text) => {
                sandbox::charge(text.len())?;
                out.write_str(&text).map_err(minijinja::Error::from)
            }
            None => crate::formatter::write_value(out, state, value),
        }
    });
    exact
}

/// The text of a document, decoded by its media type, its declaration or its byte-order mark.
fn text_of<'d>(document: &Document<'d>, is_for_stylesheet: bool) -> Result<Cow<'d, str>, String> {
    let kind = document.content_type;
    let syntax = match () {
        () if media_type::is_json(kind) || media_type::is_json_lines(kind) => Syntax::Json,
        () if media_type::is_xml(kind) || is_for_stylesheet => Syntax::Xml,
        () if kind.is_empty() => Syntax::Json,
        () => Syntax::Text,
    };
    let charset = charset::of_media_type(kind);
    charset::decode(document.body, syntax, charset.as_deref()).map_err(|error| format!("the body {error}"))
}

/// The document as input of a stylesheet.
fn tree(document: &Document<'_>) -> Result<Tree, XsltError> {
    let text = text_of(document, true).map_err(failed)?;
    match Exact::read(text.as_bytes()) {
        Ok(json) => {
            let mut tree = Tree::new("document");
            write_json(&mut tree, &json, 0)?;
            return Ok(tree);
        }
        Err(ExactError::Deep) => return Err(failed(format!("the document is nested deeper than {DEPTH_MAX} levels"))),
        Err(ExactError::Json(_)) => {}
    }
    match xml::read(&text, &OF_XML) {
        Ok(document) => Ok(document.tree),
        Err(wrong) => {
            let xml::XmlError { line, column, message, .. } = wrong;
            Err(failed(format!(
                "the body is not JSON, and as XML it {message} (line {line}, column {column} of the body)"
            )))
        }
    }
}

fn failed(message: impl Into<String>) -> XsltError {
    XsltError::plain(message)
}

fn check_size(tree: &Tree, depth: usize) -> Result<(), XsltError> {
    if tree.nodes() > NODES_MAX {
        return Err(failed(format!("the document has more than {NODES_MAX} elements, attributes and texts")));
    }
    if depth > DEPTH_MAX {
        return Err(failed(format!("the document is nested deeper than {DEPTH_MAX} levels")));
    }
    Ok(())
}

fn write_json(tree: &mut Tree, value: &Exact, depth: usize) -> Result<(), XsltError> {
    check_size(tree, depth)?;
    let decoded = |literal: &str| {
        serde_json::from_str::<String>(literal)
            .map_err(|error| failed(format!("a text of the body cannot be read: {error}")))
    };
    match value {
        Exact::Literal(literal) if **literal == *"null" => {}
        Exact::Literal(literal) if literal.starts_with('"') => tree.text(&decoded(literal)?),
        Exact::Literal(literal) => tree.text(literal),
        Exact::List(items) => {
            for item in items {
                tree.open("item");
                write_json(tree, item, depth + 1)?;
                tree.close();
            }
        }
        Exact::Object(members) => {
            for (name, value) in members {
                let name = decoded(name)?;
                if is_element_name(&name) {
                    tree.open(&name);
                } else {
                    tree.open("entry");
                    tree.attribute("key", &name);
                }
                write_json(tree, value, depth + 1)?;
                tree.close();
            }
        }
    }
    Ok(())
}

/// Whether a name is an XML element name; names with non-ASCII letters are treated as if they were not.
fn is_element_name(name: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
    name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_') && name.bytes().all(inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(formatter: Result<DocumentFormatter, Problem>, body: &str, expected: Result<&str, &str>) {
        let properties = [("order".parse().expect("a name"), Value::Integer(7))];
        let formatter = formatter.expect("it compiles");
        let got = formatter.format(&Document { body: body.as_bytes(), content_type: "", properties: &properties });
        let got = got.map(|made| String::from_utf8(made.body).expect("UTF-8"));
        match (&got, expected) {
            (Err(got), Err(expected)) => assert!(got.contains(expected), "{got}"),
            (Ok(got), Ok(expected)) => assert_eq!(got, expected),
            _ => panic!("{got:?}, not {expected:?}"),
        }
    }

    fn stylesheet(inner: &str) -> String {
        format!(
            r#"<xsl:stylesheet version="1.0" xmlns:xsl="http://www.w3.org/1999/XSL/Transform">{inner}</xsl:stylesheet>"#
        )
    }

    #[test]
    fn a_template_transforms_json() {
        let template = r#"{"id": {{ message.order }}, "name": {{ body.name }}, "all": [{% for line in body.lines %}{{ line.sku }}{% if not loop.last %},{% endif %}{% endfor %}]}"#;
        let body = r#"{"name": "a \"b\" é", "lines": [{"sku": "x"}, {"sku": "y"}]}"#;
        let made = r#"{"id": 7, "name": "a \"b\" é", "all": ["x","y"]}"#;
        check(DocumentFormatter::template(template, "application/json"), body, Ok(made));
        check(DocumentFormatter::template("<a>{{ body }}</a>", "text/xml"), "x < y", Ok("<a>x &lt; y</a>"));
        check(DocumentFormatter::template("{{ body.nme }}", "text/plain"), "{}", Err("undefined"));
        let bomb = "{% for a in range(20000) %}{{ body }}{% endfor %}";
        check(DocumentFormatter::template(bomb, "text/plain"), &"x".repeat(10_000), Err(""));
    }

    #[test]
    fn a_stylesheet_reads_xml_and_json() {
        let sheet = |inner: &str| {
            let inner =
                format!(r#"<xsl:output omit-xml-declaration="yes"/><xsl:template match="/">{inner}</xsl:template>"#);
            DocumentFormatter::stylesheet(&stylesheet(&inner), "")
        };
        let pick = r#"<id><xsl:value-of select="order/@id"/>:<xsl:value-of select="order/line[2]"/></id>"#;
        let order =
            r#"<?xml version="1.0"?><order id="7&amp;8"><line>a</line><line>b &lt; <![CDATA[<c>]]></line></order>"#;
        check(sheet(pick), order, Ok("<id>7&amp;8:b &lt; &lt;c&gt;</id>\n"));
        let json = r#"<n><xsl:value-of select="document/lines/item[2]/sku"/>/<xsl:value-of select="//entry[@key='a b']"/></n>"#;
        check(sheet(json), r#"{"lines": [{"sku": 1}, {"sku": "z"}], "a b": true}"#, Ok("<n>z/true</n>\n"));
        for (body, why) in [
            ("<a><b></a>", "as XML it is not XML"),
            ("<a>", "ends inside"),
            ("", "has no element"),
            ("hello", "outside of its root"),
            ("<a/><b/>", "more than one root"),
            (r#"<!DOCTYPE a [<!ENTITY x "y">]><a>&x;</a>"#, "document type"),
            ("<a>&x;</a>", "`&x;`"),
        ] {
            check(sheet(pick), body, Err(why));
        }
        check(sheet(pick), &format!("{}{}", "<a>".repeat(100), "</a>".repeat(100)), Err("nested deeper"));
        check(sheet(pick), &format!("<a>{}</a>", "<b/>".repeat(NODES_MAX + 1)), Err("more than"));
        let many: String = (0..=crate::tree::ATTRIBUTES_MAX).map(|at| format!(" a{at}=''")).collect();
        check(sheet(pick), &format!("<a{many}/>"), Err("an element of more than 1000 attributes"));
    }

    #[test]
    fn xml_bombs_in_documents_are_rejected() {
        let outside = crate::tests::outside::ExternalProbe::new();
        let sheet = r#"<xsl:stylesheet version="1.0" xmlns:xsl="http://www.w3.org/1999/XSL/Transform"><xsl:output method="text"/><xsl:template match="/"><xsl:value-of select="count(//*)"/></xsl:template></xsl:stylesheet>"#;
        let formatter = DocumentFormatter::stylesheet(sheet, "").expect("it compiles");
        for (name, bomb) in outside.bombs() {
            let made = formatter.format(&Document { body: bomb.as_bytes(), content_type: "", properties: &[] });
            let made = made.map(|made| String::from_utf8(made.body).expect("a number"));
            match bomb.contains("<!DOCTYPE") {
                true => assert!(made.expect_err(&name).contains("document type declaration"), "{name}"),
                // Constructs that would run code, write or load files are ordinary elements here, and only counted.
                false => assert!(made.expect(&name).parse::<u32>().expect("a number") > 1, "{name}"),
            }
            assert_eq!(outside.touched(), Vec::<String>::new(), "{name}");
        }
    }

    #[test]
    fn errors_have_a_position() {
        let wrong = |source: &str| DocumentFormatter::template(source, "text/plain").expect_err("a problem");
        let problem = wrong("{{ body.a }}\n {{ order }}");
        assert_eq!((problem.line, problem.column), (Some(2), Some(5)), "{problem}");
        assert!(wrong("{% include 'x' %}").message.contains("partials are not available here"));
        assert!(wrong("{{ body.").line.is_some());
        assert!(DocumentFormatter::stylesheet("<a>", "").is_err());
    }

    /// Copies every node unchanged.
    const IDENTITY: &str = r#"<xsl:template match="@*|node()"><xsl:copy><xsl:apply-templates select="@*|node()"/></xsl:copy></xsl:template>"#;

    fn made(sheet: &str, body: &[u8], content_type: &str) -> Result<FormattedDocument, String> {
        let formatter = DocumentFormatter::stylesheet(&stylesheet(sheet), "").expect("it compiles");
        formatter.format(&Document { body, content_type, properties: &[] })
    }

    fn bare(sheet: &str) -> String {
        format!(r#"<xsl:output omit-xml-declaration="yes"/>{sheet}"#)
    }

    #[test]
    fn c1_namespaces_are_kept() {
        let copies = |body: &str, expected: &str| {
            let made =
                made(&bare(IDENTITY), body.as_bytes(), "text/xml").unwrap_or_else(|error| panic!("{body}: {error}"));
            assert_eq!(String::from_utf8(made.body).expect("UTF-8").trim_end(), expected);
        };
        for same in [
            r#"<a><p:b xmlns:p="v" p:x="1" x="2"/></a>"#,
            r#"<a xmlns="u"><b xmlns=""><c/></b><d/></a>"#,
            r#"<a xmlns:p="u" xmlns:q="v"><p:b q:x="1" p:x="2"/><q:b/></a>"#,
            r#"<p:a xmlns:p="u"><p:a xmlns:p="v"/></p:a>"#,
            r#"<a xml:lang="de" xml:space="preserve"><b xml:id="x"/></a>"#,
            r#"<a b="x&#10;y&#9;z">&lt;&amp;]]&gt;</a>"#,
            r#"<é ü="ö"/>"#,
        ] {
            copies(same, same);
        }
        let select = |select: &str, body: &str| {
            let inner = format!(
                r#"<xsl:output method="text"/><xsl:template match="/"><xsl:value-of xmlns:o="urn:o" select="{select}"/></xsl:template>"#
            );
            made(&inner, body.as_bytes(), "").map(|made| String::from_utf8(made.body).expect("UTF-8"))
        };
        let body = r#"<x:order xmlns:x="urn:o" id="7"><line xmlns="urn:o">a</line><line>b</line></x:order>"#;
        assert_eq!(select("o:order/o:line", body), Ok("a".to_owned()));
        assert_eq!(select("o:order/line", body), Ok("b".to_owned()));
        assert_eq!(select("namespace-uri(/*)", body), Ok("urn:o".to_owned()));
        assert_eq!(select("name(/*)", body), Ok("x:order".to_owned()));
        for (wrong, part) in [
            (r#"<p:a/>"#, "prefix `p`"),
            (r#"<a xmlns:p="u" xmlns:q="u" p:x="1" q:x="2"/>"#, "twice"),
            (r#"<a xmlns:p=""/>"#, "in a way that is not allowed"),
            (r#"<a xmlns:xml="u"/>"#, "in a way that is not allowed"),
            (r#"<a:b:c xmlns:a="u"/>"#, "is not an XML name"),
            (r#"<1/>"#, "is not an XML name"),
        ] {
            assert!(select("/", wrong).expect_err(wrong).contains(part), "{wrong}: {:?}", select("/", wrong));
        }
    }

    #[test]
    fn c2_comments_and_instructions_are_readable() {
        let body = "<?xml version='1.0'?><!-- top --><?page break=\"yes\"?><a>x<!-- in -->y<?go on?></a><!-- end -->";
        let text = |select: &str| {
            let inner = format!(
                r#"<xsl:output method="text"/><xsl:template match="/"><xsl:for-each select="{select}">[<xsl:value-of select="."/>]</xsl:for-each></xsl:template>"#
            );
            String::from_utf8(made(&inner, body.as_bytes(), "").expect(select).body).expect("UTF-8")
        };
        assert_eq!(text("comment()"), "[ top ][ end ]");
        assert_eq!(text("//comment()"), "[ top ][ in ][ end ]");
        assert_eq!(text("processing-instruction('page')"), "[break=&quot;yes&quot;]".replace("&quot;", "\""));
        assert_eq!(text("/a/processing-instruction()"), "[on]");
        assert_eq!(text("/a/text()"), "[x][y]");
        let copy = made(&bare(IDENTITY), body.as_bytes(), "").expect("a copy");
        let copy = String::from_utf8(copy.body).expect("UTF-8");
        assert!(copy.contains("<a>x<!-- in -->y<?go on?></a>") && copy.contains("<!-- top -->"), "{copy}");
        assert!(made(IDENTITY, b"<a><!-- a -- b --></a>", "").is_err());
    }

    #[test]
    fn c3_documents_of_any_encoding_are_read() {
        let expected = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<a>é€</a>\n";
        let text = "<?xml version='1.0' encoding='UTF-16'?><a>é€</a>";
        let units = |order: fn(u16) -> [u8; 2], mark: &str| -> Vec<u8> {
            format!("{mark}{text}").encode_utf16().flat_map(order).collect()
        };
        for (bytes, content_type) in [
            (units(u16::to_be_bytes, "\u{feff}"), ""),
            (units(u16::to_le_bytes, "\u{feff}"), "text/xml"),
            (units(u16::to_le_bytes, ""), "application/xml; charset=UTF-16"),
            (b"<?xml version='1.0' encoding='windows-1252'?><a>\xe9\x80</a>".to_vec(), "application/xml"),
            (b"<a>\xe9\x80</a>".to_vec(), "application/soap+xml; charset=\"windows-1252\""),
            ("\u{feff}<a>é€</a>".as_bytes().to_vec(), "text/xml; charset=iso-8859-1"),
        ] {
            let made = made(IDENTITY, &bytes, content_type).unwrap_or_else(|error| panic!("{content_type}: {error}"));
            assert_eq!(String::from_utf8(made.body).expect("UTF-8"), expected, "{content_type}");
        }
        let error = made(IDENTITY, b"<a/>", "text/xml; charset=klingon").expect_err("unknown");
        assert!(error.contains("`klingon` is not known"), "{error}");
        let json =
            r#"<xsl:output method="text"/><xsl:template match="/"><xsl:value-of select="document/a"/></xsl:template>"#;
        let utf16: Vec<u8> = "\u{feff}{\"a\": \"é\"}".encode_utf16().flat_map(u16::to_le_bytes).collect();
        for body in [utf16, "\u{feff}{\"a\": \"é\"}".as_bytes().to_vec()] {
            assert_eq!(made(json, &body, "application/json").expect("JSON").body, "é".as_bytes());
        }
    }

    #[test]
    fn c5_xsl_output_determines_the_result() {
        let check = |output: &str, result: &str, body: &[u8], content_type: &str| {
            let sheet = format!(r#"{output}<xsl:template match="/">{result}</xsl:template>"#);
            let made = made(&sheet, b"<a/>", "").unwrap_or_else(|error| panic!("{output}: {error}"));
            // Library versions differ in the line ends that they add to HTML.
            let bare = |bytes: &[u8]| bytes.iter().copied().filter(|byte| *byte != b'\n').collect::<Vec<u8>>();
            let (body_made, type_made) = (bare(&made.body), made.content_type);
            let shown = String::from_utf8_lossy(&body_made).into_owned();
            assert_eq!((body_made, type_made.as_str()), (bare(body), content_type), "{output}: {shown}");
        };
        let declared = |rest: &str| format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n{rest}");
        check("", "<a>é</a>", declared("<a>é</a>\n").as_bytes(), "application/xml");
        check("", "<html><br/><p>é</p></html>", "<html><br><p>é</p></html>\n".as_bytes(), "text/html");
        check("", "<x><br/></x>", declared("<x><br/></x>\n").as_bytes(), "application/xml");
        check(r#"<xsl:output method="text"/>"#, "<a>é</a>", "é".as_bytes(), "text/plain");
        check(r#"<xsl:output method="html"/>"#, "<p><br/></p>", b"<p><br></p>\n", "text/html");
        check(
            r#"<xsl:output method="xml"/>"#,
            "<html><br/></html>",
            declared("<html><br/></html>\n").as_bytes(),
            "application/xml",
        );
        check(
            r#"<xsl:output media-type="image/svg+xml"/>"#,
            "<svg/>",
            declared("<svg/>\n").as_bytes(),
            "image/svg+xml",
        );
        check(
            r#"<xsl:output encoding="ISO-8859-1"/>"#,
            "<a b=\"é€\">é€</a>",
            b"<?xml version=\"1.0\" encoding=\"ISO-8859-1\"?>\n<a b=\"\xe9&#8364;\">\xe9&#8364;</a>\n",
            "application/xml; charset=ISO-8859-1",
        );
        check(
            r#"<xsl:output encoding="windows-1252" omit-xml-declaration="yes"/>"#,
            "<a>€</a>",
            b"<a>\x80</a>\n",
            "application/xml; charset=windows-1252",
        );
        check(
            r#"<xsl:output encoding="iso-8859-1"/>"#,
            "<html><head><title>é</title></head></html>",
            b"<html><head>\n<meta http-equiv=\"Content-Type\" content=\"text/html; charset=iso-8859-1\">\n<title>\xe9</title>\n</head></html>\n",
            "text/html; charset=iso-8859-1",
        );
        check(
            r#"<xsl:output doctype-system="a.dtd" doctype-public="-//A" standalone="no" cdata-section-elements="b"/>"#,
            "<a><b>&lt;</b></a>",
            "<?xml version=\"1.0\" encoding=\"UTF-8\" standalone=\"no\"?>\n<!DOCTYPE a PUBLIC \"-//A\" \"a.dtd\">\n<a><b><![CDATA[<]]></b></a>\n".as_bytes(),
            "application/xml",
        );
        let indented = r#"<xsl:output indent="yes"/><xsl:template match="/"><a><b/><c/></a></xsl:template>"#;
        assert!(made(indented, b"<a/>", "").expect("indented").body.ends_with(b"<a>\n  <b/>\n  <c/>\n</a>\n"));
        let utf16 =
            made(r#"<xsl:output encoding="UTF-16"/><xsl:template match="/"><a>é</a></xsl:template>"#, b"<a/>", "")
                .expect("UTF-16");
        assert!(utf16.body.starts_with(b"\xff\xfe<\0?\0") && utf16.content_type == "application/xml; charset=UTF-16");
        let wrong = r#"<xsl:output method="text" encoding="us-ascii"/><xsl:template match="/">é</xsl:template>"#;
        assert!(made(wrong, b"<a/>", "").expect_err("no é").contains("`é` is not in us-ascii"));
        let unknown = stylesheet(r#"<xsl:output encoding="klingon"/><xsl:template match="/"/>"#);
        assert!(DocumentFormatter::stylesheet(&unknown, "").expect_err("unknown").to_string().contains("klingon"));
        // The step's own media type takes precedence over that of the stylesheet, and its charset determines the
        // encoding too.
        let plain = stylesheet(r#"<xsl:template match="/"><a>é</a></xsl:template>"#);
        let formatter = DocumentFormatter::stylesheet(&plain, "text/xml; charset=iso-8859-1").expect("right");
        let made = formatter.format(&Document { body: b"<a/>", content_type: "", properties: &[] }).expect("made");
        assert!(made.body.ends_with(b"<a>\xe9</a>\n") && made.content_type == "text/xml; charset=iso-8859-1");
        let template = DocumentFormatter::template("{{ body }}", "text/csv; charset=windows-1252").expect("right");
        let made = template.format(&Document { body: "€".as_bytes(), content_type: "text/plain", properties: &[] });
        assert_eq!(made.expect("made").body, b"\x80");
    }
}
