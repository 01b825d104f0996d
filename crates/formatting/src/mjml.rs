//! MJML: converts a mail template to HTML once, at compile time. Jinja tags stay in place, and the HTML is an ordinary
//! template with escaped values.

use std::collections::HashMap;

use mrml::prelude::{
    parser::{Error, ParserOptions, noop_loader::NoopIncludeLoader},
    render::RenderOptions,
};
use tocsin_model::problem::{Code, Problem, closest};

/// Elements with HTML content, in which Jinja tags can stand unchanged. In others they are wrapped in an `mj-raw`.
const ENDING: [&str; 12] = [
    "mj-text",
    "mj-button",
    "mj-table",
    "mj-raw",
    "mj-navbar-link",
    "mj-accordion-title",
    "mj-accordion-text",
    "mj-social-element",
    "mj-title",
    "mj-preview",
    "mj-style",
    "mj-include",
];
/// All elements.
const KNOWN: [&str; 35] = [
    "mjml",
    "mj-head",
    "mj-body",
    "mj-include",
    "mj-attributes",
    "mj-all",
    "mj-class",
    "mj-breakpoint",
    "mj-font",
    "mj-html-attributes",
    "mj-preview",
    "mj-style",
    "mj-title",
    "mj-accordion",
    "mj-accordion-element",
    "mj-accordion-text",
    "mj-accordion-title",
    "mj-button",
    "mj-carousel",
    "mj-carousel-image",
    "mj-column",
    "mj-divider",
    "mj-group",
    "mj-hero",
    "mj-image",
    "mj-navbar",
    "mj-navbar-link",
    "mj-raw",
    "mj-section",
    "mj-social",
    "mj-social-element",
    "mj-spacer",
    "mj-table",
    "mj-text",
    "mj-wrapper",
];

/// Deepest nesting of MJML elements.
const DEPTH_MAX: usize = 64;
/// Deepest nesting of elements of any kind, including HTML. The library recurses once for each.
const HTML_DEPTH_MAX: usize = 128;
/// Most MJML elements. The library's time and memory are quadratic in their number.
const ELEMENTS_MAX: usize = 1_000;
/// Most elements of any kind.
const HTML_ELEMENTS_MAX: usize = 10_000;
/// HTML elements without content and end tag. The library parses no children of them.
const VOID: [&str; 14] =
    ["area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param", "source", "track", "wbr"];
/// Largest MJML template, in bytes.
const TEXT_BYTES_MAX: usize = 256 << 10;

const HINT: &str = "a mail is `<mjml><mj-body>...</mj-body></mjml>`; see mjml.io/documentation";

/// Placeholder for an unknown language, removed afterwards. The library would write `und`, which makes a screen reader
/// use an arbitrary language.
const NO_LANGUAGE: &str = "x-no-language";

/// Converts an MJML template to HTML, with all Jinja tags unchanged. The language is that of the template, unless the
/// `mjml` element has a `lang`; if neither is known, it has none.
///
/// # Errors
/// The source is not MJML, includes another file, or exceeds a limit. The problem has a position if that is known.
pub fn html(source: &str, language: Option<&str>) -> Result<String, Problem> {
    if source.len() > TEXT_BYTES_MAX {
        return Err(Problem::new(Code::TooLong, "", format!("has {} bytes", source.len()))
            .param("given", source.len())
            .param("limit", TEXT_BYTES_MAX)
            .param("unit", "bytes")
            .hint(format!("a template in MJML has at most {TEXT_BYTES_MAX}; put parts of it into partials")));
    }
    let (text, tags) = extract_tags(source)?;
    check_size(&text)?;
    let options = ParserOptions { include_loader: Box::new(NoopIncludeLoader) };
    let mut parsed = mrml::parse_with_options(&text, &options).map_err(|error| unreadable(&error, &text))?;
    let known = parsed.element.attributes.lang.take().or(language.map(str::to_owned));
    parsed.element.attributes.lang = Some(known.unwrap_or_else(|| NO_LANGUAGE.to_owned()));
    let rendered = parsed
        .element
        // Nothing is fetched that the template does not name itself, not even fonts.
        .render(&RenderOptions { fonts: HashMap::new(), ..RenderOptions::default() })
        .map_err(|error| {
            Problem::syntax("mjml", "", format!("cannot be converted to HTML: {error}"))
                .hint("check the values of attributes")
        })?;
    restore_tags(&rendered.replace(&format!(" lang=\"{NO_LANGUAGE}\""), ""), &tags)
}

/// The placeholder of a Jinja tag while MJML is parsed. It has no meaning in MJML or HTML.
fn placeholder(number: usize) -> String {
    format!("jinjatag{number:05}x")
}

/// Bounds depth and number of the elements, by the library's tokens. O(length), without recursion.
fn check_size(text: &str) -> Result<(), Problem> {
    use htmlparser::{ElementEnd, Token};
    let (mut depth, mut of_mjml, mut elements, mut is_void) = (0usize, 0, 0, false);
    for token in htmlparser::Tokenizer::from(text) {
        // The library stops at the same error, and reports its position.
        let Ok(token) = token else { return Ok(()) };
        let at = match token {
            Token::ElementStart { local, span, .. } => {
                is_void = VOID.contains(&local.as_str());
                of_mjml += usize::from(local.starts_with("mj"));
                elements += 1;
                span.start()
            }
            Token::ElementEnd { end: ElementEnd::Open, span } => {
                depth += usize::from(!is_void);
                span.start()
            }
            Token::ElementEnd { end: ElementEnd::Close(..), .. } => {
                depth = depth.saturating_sub(1);
                continue;
            }
            _ => continue,
        };
        let (message, hint) = if depth > HTML_DEPTH_MAX {
            let message = format!("has more than {HTML_DEPTH_MAX} elements within each other");
            (message, "close elements where they end, or nest fewer")
        } else if of_mjml > ELEMENTS_MAX {
            (format!("has more than {ELEMENTS_MAX} elements of MJML"), "write repeated parts as HTML within `mj-raw`")
        } else if elements > HTML_ELEMENTS_MAX {
            (format!("has more than {HTML_ELEMENTS_MAX} elements"), "put repeated parts into a loop of Jinja")
        } else {
            continue;
        };
        let line = text[..at].matches('\n').count() as u32 + 1;
        return Err(Problem::new(Code::TooComplex, "", message).hint(hint).position(line, 1));
    }
    Ok(())
}

/// Replaces each Jinja tag by a placeholder.
fn extract_tags(source: &str) -> Result<(String, Vec<&str>), Problem> {
    let (mut text, mut tags) = (String::with_capacity(source.len()), Vec::new());
    let mut open: Vec<&str> = Vec::new();
    let mut rest = source;
    while let Some(at) = rest.find(['{', '<']) {
        text.push_str(&rest[..at]);
        rest = &rest[at..];
        let end = match rest.as_bytes().get(..2) {
            Some(b"{{") => Some("}}"),
            Some(b"{%") => Some("%}"),
            Some(b"{#") => Some("#}"),
            _ => None,
        };
        if let Some(end) = end {
            let line = source[..source.len() - rest.len()].matches('\n').count() + 1;
            let length = closed(rest, end).ok_or_else(|| {
                Problem::syntax("jinja", "", "a Jinja tag has no end")
                    .hint(format!("close it with `{end}`"))
                    .position(line as u32, 1)
            })?;
            let between = open.last().is_some_and(|element| element.starts_with("mj") && !ENDING.contains(element));
            let placeholder = placeholder(tags.len());
            text.push_str(&if between { format!("<mj-raw>{placeholder}</mj-raw>") } else { placeholder });
            tags.push(&rest[..length]);
            rest = &rest[length..];
            continue;
        }
        if rest.starts_with("<!--") {
            let length = rest.find("-->").map_or(rest.len(), |end| end + 3);
            rest = &rest[length..];
            continue;
        }
        let Some(name) = rest.strip_prefix('<') else {
            text.push('{');
            rest = &rest[1..];
            continue;
        };
        let is_close = name.starts_with('/');
        let name = name.trim_start_matches('/');
        let name = &name[..name.find(|c: char| !c.is_ascii_alphanumeric() && c != '-').unwrap_or(name.len())];
        // Attributes may contain Jinja tags, which are placeholders here.
        let (attributes, length) = attributes(rest, &mut tags)?;
        let is_empty = attributes.ends_with("/>");
        text.push_str(&attributes);
        rest = &rest[length..];
        // In the HTML content of an element only MJML's own names matter.
        if name.starts_with("mj") {
            // The library would write it unchanged, and no mail client knows it.
            if !KNOWN.contains(&name) {
                let line = source[..source.len() - rest.len()].matches('\n').count() as u32 + 1;
                let hint = closest(name, KNOWN).map_or(HINT.to_owned(), |meant| format!("did you mean `{meant}`?"));
                let problem = Problem::new(Code::UnknownName, "", format!("`{name}` is not an MJML element"))
                    .param("value", name.to_string());
                return Err(problem.hint(hint).position(line, 1));
            }
            if is_close {
                open.pop();
            } else if !is_empty {
                open.push(name);
                if open.len() > DEPTH_MAX {
                    return Err(Problem::new(
                        Code::TooDeep,
                        "",
                        format!("has more than {DEPTH_MAX} elements within each other"),
                    )
                    .param("limit", DEPTH_MAX));
                }
            }
        }
    }
    text.push_str(rest);
    Ok((text, tags))
}

/// An element's tag from `<` to `>` with placeholders for Jinja, and its length.
fn attributes<'a>(rest: &'a str, tags: &mut Vec<&'a str>) -> Result<(String, usize), Problem> {
    let mut text = String::new();
    let mut at = 0;
    while at < rest.len() {
        let end = match rest.as_bytes().get(at..at + 2) {
            Some(b"{{") => Some("}}"),
            Some(b"{%") => Some("%}"),
            Some(b"{#") => Some("#}"),
            _ => None,
        };
        if let Some(end) = end {
            let length = closed(&rest[at..], end).ok_or_else(|| {
                Problem::syntax("jinja", "", "a Jinja tag has no end").hint(format!("close it with `{end}`"))
            })?;
            text.push_str(&placeholder(tags.len()));
            tags.push(&rest[at..at + length]);
            at += length;
            continue;
        }
        let c = rest[at..].chars().next().unwrap_or_default();
        text.push(c);
        at += c.len_utf8();
        if c == '>' {
            break;
        }
    }
    Ok((text, at))
}

/// The length of a Jinja tag; an end mark in quotes does not end it.
fn closed(text: &str, end: &str) -> Option<usize> {
    if end == "#}" {
        return text.find(end).map(|at| at + 2);
    }
    let mut quote = None;
    let mut at = 2;
    while at < text.len() {
        let byte = text.as_bytes()[at];
        match quote {
            Some(_) if byte == b'\\' => at += 1,
            Some(open) => quote = (open != byte).then_some(open),
            None if byte == b'"' || byte == b'\'' => quote = Some(byte),
            None if text.as_bytes()[at..].starts_with(end.as_bytes()) => return Some(at + 2),
            None => {}
        }
        at += 1;
    }
    None
}

/// Restores the tags. A tag that MJML dropped or duplicated was at an invalid place.
fn restore_tags(rendered: &str, tags: &[&str]) -> Result<String, Problem> {
    let mut html = String::with_capacity(rendered.len() + tags.iter().map(|tag| tag.len()).sum::<usize>());
    let mut seen = vec![false; tags.len()];
    let mut rest = rendered;
    while let Some(at) = rest.find("jinjatag") {
        html.push_str(&rest[..at]);
        let number = rest.get(at + 8..at + 13).and_then(|number| number.parse::<usize>().ok());
        match number.and_then(|number| Some((number, tags.get(number)?))) {
            Some((number, tag)) => {
                seen[number] = true;
                html.push_str(tag);
                rest = &rest[at + 14..];
            }
            None => {
                html.push_str("jinjatag");
                rest = &rest[at + 8..];
            }
        }
    }
    html.push_str(rest);
    match seen.iter().zip(tags).find(|(seen, tag)| !**seen && !tag.starts_with("{#")) {
        Some((_, tag)) => {
            let shown: String = tag.chars().take(60).collect();
            Err(Problem::syntax("mjml", "", format!("`{shown}` is at a place where MJML drops text"))
                .hint("put it into `mj-text` or `mj-raw`, or into a known MJML attribute"))
        }
        None => Ok(html),
    }
}

fn unreadable(error: &Error, text: &str) -> Problem {
    let problem = Problem::syntax("mjml", "", format!("is not MJML: {error}"));
    let problem = if text.contains("<mj-include") {
        problem.hint("`mj-include` reads files, which is not allowed; use `{% include \"...\" %}` with a partial")
    } else {
        problem.hint(HINT)
    };
    let at = match error {
        Error::UnexpectedElement { position, .. }
        | Error::UnexpectedToken { position, .. }
        | Error::MissingAttribute { position, .. }
        | Error::InvalidAttribute { position, .. }
        | Error::InvalidFormat { position, .. }
        | Error::IncludeLoaderError { position, .. } => text.get(..position.start),
        _ => None,
    };
    match at {
        Some(before) => problem.position(before.matches('\n').count() as u32 + 1, 1),
        None => problem,
    }
}
