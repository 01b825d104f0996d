//! Checks a stylesheet for constructs that are not allowed, before the library parses it.

use std::collections::{BTreeMap, BTreeSet};

use quick_xml::{
    Reader,
    events::{BytesStart, Event},
};
use tocsin_model::problem::{Code, Problem, closest};

/// Deepest nesting of elements.
const DEPTH_MAX: usize = 60;
/// The longest expression, in bytes. The library's recursion depth is linear in it.
const EXPRESSION_BYTES_MAX: usize = 2_000;
/// The longest attribute of a literal result element, in bytes: enough for an image in a `data:` URI.
const LITERAL_BYTES_MAX: usize = 1 << 20;
/// Deepest nesting of parentheses and brackets.
const PARENTHESES_MAX: usize = 30;
/// Most stylesheets that one imports, directly or indirectly.
const IMPORTS_MAX: usize = 32;

const XSLT: &str = "http://www.w3.org/1999/XSL/Transform";

/// The partials that a stylesheet imports. Empty if it cannot be parsed.
pub fn imports(source: &str) -> Vec<String> {
    check_one(source).map(|found| found.into_iter().map(|found| found.name).collect()).unwrap_or_default()
}

/// Checks a stylesheet and all its imports; returns the names of the imports.
///
/// # Errors
/// The first fault, with its position; for an imported stylesheet, the position of the import.
pub fn check_all(source: &str, partials: &BTreeMap<&str, &str>) -> Result<Vec<String>, Problem> {
    let mut imported: Vec<String> = Vec::new();
    let mut open = check_one(source)?;
    while let Some(found) = open.pop() {
        if imported.contains(&found.name) {
            continue;
        }
        let at = |problem: Problem| problem.position(found.line, found.column);
        let Some(text) = partials.get(found.name.as_str()) else {
            let hint = match closest(&found.name, partials.keys().copied()) {
                Some(meant) => format!("did you mean `{meant}`?"),
                None if partials.is_empty() => {
                    "stylesheets cannot read files; put the other one into `partials`, as `{ xslt: ... }`".to_owned()
                }
                None => format!(
                    "stylesheets among the partials are {}",
                    partials.keys().copied().collect::<Vec<_>>().join(", ")
                ),
            };
            let name: String = found.name.chars().take(80).collect();
            let problem = Problem::new(
                Code::UnknownReference,
                "",
                format!("imports `{name}`, which is not a stylesheet of the application"),
            )
            .param("value", name.to_string())
            .param("kind", "stylesheet");
            return Err(at(problem.hint(hint)));
        };
        let further = check_one(text).map_err(|problem| {
            let line = problem.line.map(|line| format!(", line {line}")).unwrap_or_default();
            let inner = Problem::syntax("xslt", "", format!("imports `{}`{line}: {}", found.name, problem.message));
            at(match problem.hint {
                Some(hint) => inner.hint(hint),
                None => inner,
            })
        })?;
        imported.push(found.name.clone());
        if imported.len() > IMPORTS_MAX {
            return Err(at(Problem::new(Code::TooMany, "", format!("imports more than {IMPORTS_MAX} stylesheets"))
                .param("limit", IMPORTS_MAX)));
        }
        // Indirect imports are reported at the position of the first tag.
        open.extend(further.into_iter().map(|further| Import { line: found.line, column: found.column, ..further }));
    }
    imported.sort();
    Ok(imported)
}

/// An import of another stylesheet.
struct Import {
    name: String,
    line: u32,
    column: u32,
}

struct StylesheetFault {
    message: String,
    hint: &'static str,
}

fn fault(message: impl Into<String>, hint: &'static str) -> StylesheetFault {
    StylesheetFault { message: message.into(), hint }
}

/// Checks one stylesheet.
fn check_one(source: &str) -> Result<Vec<Import>, Problem> {
    let mut reader = Reader::from_str(source);
    reader.config_mut().check_end_names = true;
    let (mut imports, mut depth, mut elements) = (Vec::new(), 0usize, 0usize);
    let mut prefixes = BTreeSet::new();
    loop {
        let start = reader.buffer_position() as usize;
        let place = |at: usize| {
            let before = source.get(..at).unwrap_or_default();
            let line = before.matches('\n').count() as u32 + 1;
            let column = before.rsplit('\n').next().map_or(1, |line| line.chars().count() as u32 + 1);
            (line, column)
        };
        let refused = |at: usize, found: StylesheetFault| {
            let (line, column) = place(at);
            Problem::syntax("xslt", "", found.message).hint(found.hint).position(line, column)
        };
        let event = match reader.read_event() {
            Ok(event) => event,
            Err(error) => {
                let found = fault(format!("is not XML: {error}"), "a stylesheet has exactly one root element");
                return Err(refused(reader.error_position() as usize, found));
            }
        };
        match event {
            Event::Start(element) | Event::Empty(element) if elements > 0 && depth == 0 => {
                let found = fault("has a second element at its end", "a stylesheet has exactly one root element");
                let _ = element;
                return Err(refused(start, found));
            }
            Event::Start(element) => {
                depth += 1;
                elements += 1;
                if depth > DEPTH_MAX {
                    let found = fault(format!("has more than {DEPTH_MAX} elements within each other"), "use templates");
                    return Err(refused(start, found));
                }
                check_element(&element, elements == 1, &mut prefixes).map_err(|found| refused(start, found))?;
                imports.extend(import(&element).map(|name| Import {
                    name,
                    line: place(start).0,
                    column: place(start).1,
                }));
            }
            Event::Empty(element) => {
                elements += 1;
                check_element(&element, elements == 1, &mut prefixes).map_err(|found| refused(start, found))?;
                imports.extend(import(&element).map(|name| Import {
                    name,
                    line: place(start).0,
                    column: place(start).1,
                }));
            }
            Event::End(_) => depth = depth.saturating_sub(1),
            Event::DocType(_) => {
                let found = fault("has a DOCTYPE", "remove it: stylesheets cannot have entities or a DTD");
                return Err(refused(start, found));
            }
            Event::GeneralRef(reference) => {
                let name: &str = &reference;
                let is_known = matches!(name, "amp" | "lt" | "gt" | "quot" | "apos") || name.starts_with('#');
                if !is_known {
                    let found =
                        fault(format!("has the entity `&{name};`"), "write the character, or its number: `&#160;`");
                    return Err(refused(start, found));
                }
            }
            Event::PI(instruction) if instruction.target() == "xml-stylesheet" => {
                let found = fault("has an `xml-stylesheet`", "remove it: this is the stylesheet");
                return Err(refused(start, found));
            }
            Event::Eof => break,
            _ => {}
        }
    }
    if elements == 0 || depth > 0 {
        let problem =
            Problem::syntax("xml", "", if depth > 0 { "ends before its elements do" } else { "has no element" });
        return Err(problem
            .hint("a stylesheet is `<xsl:stylesheet version=\"1.0\" ...>...</xsl:stylesheet>`")
            .position(1, 1));
    }
    Ok(imports)
}

/// `prefixes` are those declared for the XSLT namespace so far, in any element.
fn check_element(
    element: &BytesStart<'_>,
    is_root: bool,
    prefixes: &mut BTreeSet<String>,
) -> Result<(), StylesheetFault> {
    let name = element.name().as_ref().to_owned();
    let (prefix, local) = name.split_once(':').unwrap_or(("", &name));
    let mut is_stylesheet = false;
    let mut attributes = Vec::new();
    for attribute in element.attributes() {
        let attribute = attribute.map_err(|error| fault(format!("is not XML: {error}"), "check the attributes"))?;
        let key: &str = attribute.key.as_ref();
        let value = quick_xml::escape::unescape(&attribute.value)
            .map(|value| value.into_owned())
            .map_err(|_| fault("has an entity in an attribute", "write the character, or its number: `&#160;`"))?;
        if key == "xmlns" || key.starts_with("xmlns:") {
            if value == XSLT {
                is_stylesheet = true;
                prefixes.insert(key.strip_prefix("xmlns:").unwrap_or_default().to_owned());
            }
            if value == "http://www.w3.org/2001/XInclude" {
                return Err(fault("uses XInclude", "import a partial in its place"));
            }
            continue;
        }
        if key.rsplit(':').next() == Some("extension-element-prefixes") && !value.trim().is_empty() {
            return Err(fault(
                "declares extension elements",
                "remove `extension-element-prefixes`: there are no extension elements here",
            ));
        }
        attributes.push((key.to_owned(), value));
    }
    let is_instruction = prefixes.contains(prefix);
    for (key, value) in &attributes {
        let is_of_xslt = key.split_once(':').is_some_and(|(prefix, _)| prefixes.contains(prefix));
        if is_instruction || is_of_xslt {
            expression(key, value)?;
            continue;
        }
        if value.len() > LITERAL_BYTES_MAX {
            let message = format!("has an attribute `{key}` of {} bytes", value.len());
            return Err(fault(message, "none may be longer than 1 MiB: refer to the image in place of a `data:` URI"));
        }
        expressions_within(value).into_iter().try_for_each(|part| expression(key, part))?;
    }
    if is_root && !is_stylesheet {
        return Err(fault(
            format!("is not a stylesheet: its root element is `{}`", name.chars().take(40).collect::<String>()),
            "begin with `<xsl:stylesheet version=\"1.0\" xmlns:xsl=\"http://www.w3.org/1999/XSL/Transform\">`",
        ));
    }
    if local == "document" && name.contains(':') || local == "result-document" {
        return Err(fault(format!("has `{name}`, which writes files"), "a stylesheet has one result; remove it"));
    }
    Ok(())
}

fn import(element: &BytesStart<'_>) -> Option<String> {
    let name = element.name().as_ref().to_owned();
    if !matches!(name.rsplit(':').next(), Some("import" | "include")) || !name.contains(':') {
        return None;
    }
    let href = element.try_get_attribute("href").ok().flatten()?;
    Some(href.value.into_owned())
}

/// The expressions between the braces of an attribute value template (XSLT 1.0, section 7.6.2).
fn expressions_within(value: &str) -> Vec<&str> {
    let (mut found, mut rest) = (Vec::new(), value);
    while let Some(at) = rest.find(['{', '}']) {
        let inner = &rest[at + 1..];
        // Double braces are an escaped brace.
        if rest[at..].starts_with('}') || inner.starts_with('{') {
            rest = inner.strip_prefix(['{', '}']).unwrap_or(inner);
            continue;
        }
        let mut quote = None;
        let end = inner.char_indices().find(|(_, c)| match quote {
            Some(open) => {
                quote = (open != *c).then_some(open);
                false
            }
            None if matches!(c, '\'' | '"') => {
                quote = Some(*c);
                false
            }
            None => *c == '}',
        });
        let end = end.map_or(inner.len(), |(end, _)| end);
        found.push(&inner[..end]);
        rest = inner.get(end + 1..).unwrap_or_default();
    }
    found
}

/// Rejects expressions that are not allowed. An attribute of an instruction may be an expression, or contain some
/// between braces.
fn expression(key: &str, value: &str) -> Result<(), StylesheetFault> {
    if value.len() > EXPRESSION_BYTES_MAX {
        let message = format!("has an expression of {} bytes in `{key}`", value.len());
        return Err(fault(message, "divide the expression: the limit is 2,000 bytes"));
    }
    let (mut depth, mut deepest) = (0usize, 0usize);
    let mut quote = None;
    for (at, c) in value.char_indices() {
        match quote {
            Some(open) => quote = (open != c).then_some(open),
            None if c == '\'' || c == '"' => quote = Some(c),
            None if c == '(' || c == '[' => {
                depth += 1;
                deepest = deepest.max(depth);
                if c == '(' {
                    call(&value[..at])?;
                }
            }
            None if c == ')' || c == ']' => depth = depth.saturating_sub(1),
            None => {}
        }
    }
    if deepest > PARENTHESES_MAX {
        let message = format!("has more than {PARENTHESES_MAX} parentheses within each other in `{key}`");
        return Err(fault(message, "assign parts of it to variables"));
    }
    Ok(())
}

/// Checks the function whose name is at the end of a text.
fn call(before: &str) -> Result<(), StylesheetFault> {
    let before = before.trim_end();
    let begin = before
        .rfind(|c: char| !(c.is_alphanumeric() || matches!(c, '-' | '_' | '.' | ':')))
        .map_or(0, |at| at + before[at..].chars().next().map_or(1, char::len_utf8));
    // `child::node()` has an axis, which is not a prefix.
    let name = before[begin..].rsplit("::").next().unwrap_or_default();
    if name == "document" || name == "unparsed-text" {
        return Err(fault(
            format!("calls `{name}()`, which reads files"),
            "a stylesheet can read only the notification",
        ));
    }
    if name.contains(':') {
        let message = format!("calls the extension function `{name}()`");
        return Err(fault(message, "only the functions of XSLT 1.0 and XPath 1.0 are known"));
    }
    Ok(())
}
