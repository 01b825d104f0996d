//! A document becomes another: by a template, or by a stylesheet. For messages between systems, which have no class.
//!
//! | a template sees | |
//! |---|---|
//! | `body` | what the document holds, if it is JSON; else its text |
//! | `message.<name>` | its promoted properties |
//!
//! A stylesheet sees the elements of an XML document by their local names: namespaces are left out. Of a JSON document it
//! sees `<document>` with an element for each member, `<item>` for those of a list, and `<entry key="...">` for a member
//! whose name is none of XML.

use std::collections::BTreeMap;

use minijinja::{
    AutoEscape, Environment, State,
    value::{Serde, Value as Jinja, ValueKind},
};
use quick_xml::{
    Reader,
    events::{BytesRef, BytesStart, Event},
};
use tocsin_model::{
    exact_json::{self, Exact, ExactError, Numbers},
    id::Name,
    media_type,
    problem::Problem,
    stack::with_large_stack,
    value::Value,
};

use crate::{
    formatter::{Bounded, OUTPUT_BYTES_MAX, environment, run, said},
    sandbox,
    template_depth::SyntaxError,
    xslt::{ATTRIBUTES_MAX, Stylesheet, Tree, XsltError},
};

/// What templates see.
const ROOTS: [&str; 2] = ["body", "message"];
/// Most elements, attributes and texts that a stylesheet reads of a document.
const NODES_MAX: usize = 20_000;
const DEPTH_MAX: usize = 64;

/// A document as it is before.
#[derive(Debug, Clone, Copy)]
pub struct Document<'a> {
    /// What it holds.
    pub body: &'a [u8],
    /// What is known of it.
    pub properties: &'a [(Name, Value)],
}

/// Makes documents of others. Any number of threads share it.
#[derive(Debug)]
pub struct DocumentFormatter(Engine);

#[derive(Debug)]
enum Engine {
    Template { environment: Box<Environment<'static>>, name: String },
    Stylesheet(Stylesheet),
}

impl DocumentFormatter {
    /// Compiles a template in Jinja; what it makes is of `content_type`, for which values are escaped.
    ///
    /// # Errors
    /// What is wrong with it, with line and column.
    pub fn template(source: &str, content_type: &str) -> Result<DocumentFormatter, Problem> {
        with_large_stack(|| DocumentFormatter::compile_template(source, content_type)).unwrap_or_else(|error| {
            let hint = "raise the limit of threads of the process, or try again later";
            Err(Problem::at("", format!("the template was not compiled, as no thread starts: {error}")).hint(hint))
        })
    }

    fn compile_template(source: &str, content_type: &str) -> Result<DocumentFormatter, Problem> {
        let prepared = sandbox::prepare(source, &BTreeMap::new()).map_err(|error| error.in_template(""))?;
        if let Some((message, hint, line, column)) = prepared.objections.first() {
            return Err(Problem::at("", message.clone()).hint(*hint).position(*line, *column));
        }
        if let Some(reference) = prepared.references.first() {
            let message = format!("`{}` names `{}`, and there are no partials here", reference.tag, reference.name);
            let problem = Problem::at("", message).hint("write what it would give into the template");
            return Err(problem.position(reference.line, reference.column));
        }
        let name = format!("document:{}", target(content_type));
        let mut environment = Box::new(environment());
        environment
            .add_template_owned(name.clone(), prepared.source.clone())
            .map_err(|error| SyntaxError::read(source, &error).in_template(""))?;
        check_variables(&environment, &name, &prepared)?;
        Ok(DocumentFormatter(Engine::Template { environment, name }))
    }

    /// Compiles a stylesheet of XSLT 1.0.
    ///
    /// # Errors
    /// What is wrong with it, with its line.
    pub fn stylesheet(source: &str) -> Result<DocumentFormatter, Problem> {
        Stylesheet::compile(source, &BTreeMap::new(), "xml").map(|sheet| DocumentFormatter(Engine::Stylesheet(sheet)))
    }

    /// Makes a document of another. Takes a second at the most.
    ///
    /// # Errors
    /// Why it cannot, in words.
    pub fn format(&self, document: &Document<'_>) -> Result<String, String> {
        match &self.0 {
            Engine::Template { environment, name } => render(environment, name, document),
            Engine::Stylesheet(sheet) => sheet.apply_to(&|| tree(document)).map_err(|error| match error.line {
                Some(line) => format!("line {line}: {}", error.message),
                None => error.message,
            }),
        }
    }
}

/// For what values are escaped.
fn target(content_type: &str) -> &'static str {
    match content_type {
        kind if media_type::is_json(kind) || media_type::is_json_lines(kind) => "json",
        kind if media_type::is_xml(kind) || media_type::is_html(kind) => "html",
        _ => "text",
    }
}

fn check_variables(environment: &Environment<'_>, name: &str, prepared: &sandbox::Prepared) -> Result<(), Problem> {
    let template = environment.get_template(name).map_err(|error| Problem::at("", said(&error)))?;
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
    let problem = Problem::at("", format!("the template uses `{name}`, which is not known here"));
    Err(problem.hint("a template sees `body` and the properties in `message`").position(line, column))
}

fn render(environment: &Environment<'static>, name: &str, document: &Document<'_>) -> Result<String, String> {
    let exact = exact_value(document.body);
    let (json, numbers) = match exact {
        Some((value, numbers)) => (Some(serde_json::Value::from(value)), numbers),
        None => (serde_json::from_slice(document.body).ok(), Numbers::default()),
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
        None => Jinja::from(std::str::from_utf8(document.body).map_err(|_| "the body is not text")?),
    };
    let properties: serde_json::Map<String, serde_json::Value> =
        document.properties.iter().map(|(name, value)| (name.to_string(), value.clone().into())).collect();
    let root = Jinja::from(BTreeMap::from([("body", body), ("message", Jinja::from(Serde(&properties)))]));
    let mut output = Bounded { bytes: Vec::new(), full: false, most: OUTPUT_BYTES_MAX };
    match run(environment, name, &root, &mut output) {
        Ok(()) => Ok(String::from_utf8(output.bytes).expect("templates and values are UTF-8")),
        Err(_) if output.full => Err(format!("the output is longer than {OUTPUT_BYTES_MAX} bytes")),
        Err(error) => Err(match error.line() {
            Some(line) => format!("line {line}: {}", said(&error)),
            None => said(&error),
        }),
    }
}

/// What a body of JSON holds, if it has numbers that a double does not write as they stand.
fn exact_value(body: &[u8]) -> Option<(Value, Numbers)> {
    if !exact_json::has_inexact_numbers(body) {
        return None;
    }
    let mut numbers = Numbers::default();
    let value = Exact::read(body).ok()?.value(&mut numbers).ok()?;
    Some((value, numbers))
}

/// An environment that writes numbers as they stand in the document, alone and within lists and objects of JSON.
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

/// The document that a stylesheet reads.
fn tree(document: &Document<'_>) -> Result<Tree, XsltError> {
    let text = std::str::from_utf8(document.body).map_err(|_| failed("the body is not text"))?;
    match Exact::read(document.body) {
        Ok(json) => {
            let mut tree = Tree::new("document");
            write_json(&mut tree, &json, 0)?;
            Ok(tree)
        }
        Err(ExactError::Deep) => Err(failed(format!("the document is nested deeper than {DEPTH_MAX} levels"))),
        Err(ExactError::Json(_)) => read_xml(text),
    }
}

fn failed(message: impl Into<String>) -> XsltError {
    XsltError { line: None, message: message.into(), is_static: false }
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

/// Whether XML takes a name as it is; of those with other letters than those of ASCII none is tried.
fn is_element_name(name: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
    name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_') && name.bytes().all(inner)
}

fn read_xml(text: &str) -> Result<Tree, XsltError> {
    let mut reader = Reader::from_str(text);
    let mut tree: Option<Tree> = None;
    let mut depth = 0;
    loop {
        let event = reader.read_event().map_err(|error| {
            failed(format!("the body is neither JSON nor XML: {error} (byte {})", reader.error_position()))
        })?;
        match (event, &mut tree) {
            (Event::Start(start), tree) => {
                enter(tree, &start, depth)?;
                depth += 1;
            }
            (Event::Empty(start), tree) => {
                enter(tree, &start, depth)?;
                close(tree, depth);
            }
            (Event::End(_), tree) => {
                depth -= 1;
                close(tree, depth);
            }
            (Event::Text(text), Some(tree)) if depth > 0 => tree.text(&text.xml10_content()),
            (Event::Text(text), _) if !text.xml10_content().trim().is_empty() => {
                return Err(failed("the body is neither JSON nor XML: it has text outside of a root element"));
            }
            (Event::CData(text), Some(tree)) if depth > 0 => tree.text(&text.xml10_content()),
            (Event::GeneralRef(reference), Some(tree)) if depth > 0 => tree.text(&referred(&reference)?),
            (Event::DocType(_), _) => {
                return Err(failed("the document has a document type declaration, which is not read here"));
            }
            (Event::Eof, _) if depth > 0 => return Err(failed("the body ends inside of an element")),
            (Event::Eof, Some(_)) => break,
            (Event::Eof, None) => return Err(failed("the body is empty")),
            _ => {}
        }
        tree.as_ref().map_or(Ok(()), |tree| check_size(tree, depth))?;
    }
    Ok(tree.expect("it left the loop with one"))
}

fn enter(tree: &mut Option<Tree>, start: &BytesStart<'_>, depth: usize) -> Result<(), XsltError> {
    let name: &str = start.local_name().into_inner();
    match tree {
        None => *tree = Some(Tree::new(name)),
        Some(_) if depth == 0 => return Err(failed("the body has more than one root element")),
        Some(tree) => tree.open(name),
    }
    let tree = tree.as_mut().expect("it is there now");
    for (count, attribute) in start.attributes().enumerate() {
        if count >= ATTRIBUTES_MAX {
            return Err(failed(format!("an element has more than {ATTRIBUTES_MAX} attributes")));
        }
        let attribute = attribute.map_err(|error| failed(format!("the body is not XML: {error}")))?;
        let key: &str = attribute.key.into_inner();
        if key == "xmlns" || key.starts_with("xmlns:") {
            continue;
        }
        let value = quick_xml::escape::unescape(&attribute.value)
            .map_err(|error| failed(format!("an attribute cannot be read: {error}")))?;
        tree.attribute(key.rsplit(':').next().unwrap_or(key), &value);
    }
    Ok(())
}

/// The root element stays open: a document is written up to its end.
fn close(tree: &mut Option<Tree>, depth: usize) {
    if let Some(tree) = tree.as_mut().filter(|_| depth > 0) {
        tree.close();
    }
}

/// What a reference stands for: a character by its number, or one of the five that XML itself has.
fn referred(reference: &BytesRef<'_>) -> Result<String, XsltError> {
    let name: &str = reference;
    if let Ok(Some(character)) = reference.resolve_char_ref() {
        return Ok(character.to_string());
    }
    let known = [("lt", "<"), ("gt", ">"), ("amp", "&"), ("apos", "'"), ("quot", "\"")];
    let found = known.into_iter().find(|(known, _)| *known == name);
    found.map(|(_, text)| text.to_owned()).ok_or_else(|| failed(format!("the entity `&{name};` is not read here")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(formatter: Result<DocumentFormatter, Problem>, body: &str, expected: Result<&str, &str>) {
        let properties = [("order".parse().expect("a name"), Value::Integer(7))];
        let formatter = formatter.expect("it compiles");
        let got = formatter.format(&Document { body: body.as_bytes(), properties: &properties });
        match (&got, expected) {
            (Err(got), Err(expected)) => assert!(got.contains(expected), "{got}"),
            (Ok(got), Ok(expected)) => assert_eq!(got, expected),
            _ => panic!("{got:?}, not {expected:?}"),
        }
    }

    #[test]
    fn a_template_makes_json_of_json() {
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
            DocumentFormatter::stylesheet(&format!(
                r#"<xsl:stylesheet version="1.0" xmlns:xsl="http://www.w3.org/1999/XSL/Transform"><xsl:output omit-xml-declaration="yes"/><xsl:template match="/">{inner}</xsl:template></xsl:stylesheet>"#
            ))
        };
        let pick = r#"<id><xsl:value-of select="order/@id"/>:<xsl:value-of select="order/line[2]"/></id>"#;
        let order = r#"<?xml version="1.0"?><o:order xmlns:o="urn:o" id="7&amp;8"><o:line>a</o:line><line>b &lt; <![CDATA[<c>]]></line></o:order>"#;
        check(sheet(pick), order, Ok("<id>7&amp;8:b &lt; &lt;c&gt;</id>\n"));
        let json = r#"<n><xsl:value-of select="document/lines/item[2]/sku"/>/<xsl:value-of select="//entry[@key='a b']"/></n>"#;
        check(sheet(json), r#"{"lines": [{"sku": 1}, {"sku": "z"}], "a b": true}"#, Ok("<n>z/true</n>\n"));
        for (body, why) in [
            ("<a><b></a>", "neither JSON nor XML"),
            ("<a>", "ends inside"),
            ("", "empty"),
            ("hello", "outside of a root"),
            ("<a/><b/>", "more than one root"),
            (r#"<!DOCTYPE a [<!ENTITY x "y">]><a>&x;</a>"#, "document type"),
            ("<a>&x;</a>", "`&x;`"),
        ] {
            check(sheet(pick), body, Err(why));
        }
        check(sheet(pick), &format!("{}{}", "<a>".repeat(100), "</a>".repeat(100)), Err("nested deeper"));
        check(sheet(pick), &format!("<a>{}</a>", "<b/>".repeat(NODES_MAX + 1)), Err("more than"));
        let many: String = (0..=ATTRIBUTES_MAX).map(|at| format!(" a{at}=''")).collect();
        check(sheet(pick), &format!("<a{many}/>"), Err("an element has more than 1000 attributes"));
    }

    #[test]
    fn no_bomb_goes_off_in_what_a_stylesheet_reads() {
        let outside = crate::tests::outside::Outside::new();
        let sheet = r#"<xsl:stylesheet version="1.0" xmlns:xsl="http://www.w3.org/1999/XSL/Transform"><xsl:output method="text"/><xsl:template match="/"><xsl:value-of select="count(//*)"/></xsl:template></xsl:stylesheet>"#;
        let formatter = DocumentFormatter::stylesheet(sheet).expect("it compiles");
        for (name, bomb) in outside.bombs() {
            let made = formatter.format(&Document { body: bomb.as_bytes(), properties: &[] });
            match bomb.contains("<!DOCTYPE") {
                true => assert!(made.expect_err(&name).contains("document type declaration"), "{name}"),
                // What would run, write or load elsewhere is elements like any, and only counted.
                false => assert!(made.expect(&name).parse::<u32>().expect("a number") > 1, "{name}"),
            }
            assert_eq!(outside.touched(), Vec::<String>::new(), "{name}");
        }
    }

    #[test]
    fn what_is_wrong_is_told_with_its_place() {
        let wrong = |source: &str| DocumentFormatter::template(source, "text/plain").expect_err("a problem");
        let problem = wrong("{{ body.a }}\n {{ order }}");
        assert_eq!((problem.line, problem.column), (Some(2), Some(5)), "{problem}");
        assert!(wrong("{% include 'x' %}").message.contains("no partials"));
        assert!(wrong("{{ body.").line.is_some());
        assert!(DocumentFormatter::stylesheet("<a>").is_err());
    }
}
