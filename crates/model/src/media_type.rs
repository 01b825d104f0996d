//! Media types (RFC 9110, 8.3.1; RFC 6838). Type, subtype and parameter names ignore case, and parameters do not
//! change the type. A structured suffix such as `+json` declares the syntax of the content.

use std::borrow::Cow;

/// Type and subtype in lower case, without parameters: `application/json`. Empty if there is none.
pub fn essence(text: &str) -> String {
    first(text).to_ascii_lowercase()
}

/// The text with type and subtype in lower case, and its parameters as they are written.
pub fn normal(text: &str) -> Cow<'_, str> {
    let text = text.trim();
    let kind = first(text);
    if text.starts_with(kind) && !kind.bytes().any(|byte| byte.is_ascii_uppercase()) {
        return Cow::Borrowed(text);
    }
    let rest = text.find(';').map_or("", |at| &text[at..]);
    Cow::Owned(format!("{}{rest}", kind.to_ascii_lowercase()))
}

fn first(text: &str) -> &str {
    text.split(';').next().unwrap_or_default().trim()
}

/// Whether its syntax is that of RFC 9110, 8.3.1: `type/subtype` of token characters, and parameters of visible
/// characters.
pub fn is_valid(text: &str) -> bool {
    let is_token = |text: &str| {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        !text.is_empty() && text.bytes().all(allowed)
    };
    let is_type = first(text).split_once('/').is_some_and(|(kind, subtype)| is_token(kind) && is_token(subtype));
    is_type && text.bytes().all(|byte| byte == b'\t' || (b' '..=b'~').contains(&byte))
}

/// Whether the content is JSON: `application/json`, its unregistered spellings, or any type with the suffix `+json`.
pub fn is_json(text: &str) -> bool {
    let kind = first(text);
    ["application/json", "text/json", "application/x-json", "text/x-json"]
        .iter()
        .any(|own| kind.eq_ignore_ascii_case(own))
        || has_suffix(kind, "json")
}

/// Whether the content is JSON lines or a JSON sequence, a single one of which is JSON.
pub fn is_json_lines(text: &str) -> bool {
    let kind = first(text);
    let known = ["application/x-ndjson", "application/ndjson", "application/jsonl", "application/x-jsonlines"];
    known.iter().any(|own| kind.eq_ignore_ascii_case(own))
}

/// Whether the content is XML (RFC 7303): `application/xml`, `text/xml`, or any type with the suffix `+xml`.
pub fn is_xml(text: &str) -> bool {
    let kind = first(text);
    ["application/xml", "text/xml"].iter().any(|own| kind.eq_ignore_ascii_case(own)) || has_suffix(kind, "xml")
}

/// Whether the content is markup that browsers show: HTML or XHTML.
pub fn is_html(text: &str) -> bool {
    let kind = first(text);
    ["text/html", "application/xhtml+xml"].iter().any(|own| kind.eq_ignore_ascii_case(own))
}

/// Whether a subtype ends with a structured suffix (RFC 6839), with something before it.
fn has_suffix(kind: &str, suffix: &str) -> bool {
    let Some((_, subtype)) = kind.split_once('/') else { return false };
    subtype.rsplit_once('+').is_some_and(|(name, own)| !name.is_empty() && own.eq_ignore_ascii_case(suffix))
}

/// The value of a parameter, without its quotation marks.
pub fn parameter(text: &str, name: &str) -> Option<String> {
    let mut rest = &text[text.find(';')?..];
    while let Some(after) = rest.trim_start().strip_prefix(';') {
        let end = after.find(['=', ';']).unwrap_or(after.len());
        let (found, tail) = (after[..end].trim(), &after[end..]);
        let Some(value) = tail.strip_prefix('=').map(str::trim_start) else {
            rest = tail;
            continue;
        };
        let (value, tail) = match value.strip_prefix('"') {
            Some(quoted) => unquoted(quoted),
            None => {
                let end = value.find(';').unwrap_or(value.len());
                (value[..end].trim_end().to_owned(), &value[end..])
            }
        };
        if found.eq_ignore_ascii_case(name) {
            return Some(value);
        }
        rest = &tail[tail.find(';').unwrap_or(tail.len())..];
    }
    None
}

/// A quoted string up to its end, and the rest.
fn unquoted(text: &str) -> (String, &str) {
    let mut value = String::new();
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return (value, &text[at + 1..]),
            '\\' => value.extend(characters.next().map(|(_, escaped)| escaped)),
            character => value.push(character),
        }
    }
    (value, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_media_type_has_a_type_a_subtype_and_nothing_that_ends_a_header() {
        for good in ["application/json", "text/plain; charset=utf-8", " TEXT/x.y+z;a=\"b;c\"", "a/b"] {
            assert!(is_valid(good), "{good}");
        }
        for bad in
            ["", "json", "a/", "/b", "a/b/c", "a b/c", "text/plain\r\nX: y", "text/plain; a=\u{7f}", "é/b", "a/b,c/d"]
        {
            assert!(!is_valid(bad), "{bad}");
        }
    }

    #[test]
    fn b21_media_types_are_compared_without_case_parameters_and_false_friends() {
        for json in [
            "application/json",
            "APPLICATION/JSON",
            " Application/Json ; charset=UTF-8",
            "application/vnd.api+JSON",
            "application/problem+json;profile=\"a;b\"",
            "text/json",
        ] {
            assert!(is_json(json) && !is_xml(json), "{json}");
        }
        for xml in
            ["text/XML", "application/soap+xml; action=\"x\"", "application/xml;charset=iso-8859-1", "image/svg+XML"]
        {
            assert!(is_xml(xml) && !is_json(xml), "{xml}");
        }
        for neither in [
            "",
            "json",
            "application/jsonx",
            "application/x-not-json",
            "application/json-seq",
            "application/+json",
            "application/xml-dtd",
            "text/plain; note=application/json",
            "text/plain; x=\"+json\"",
            "application/vnd.openxmlformats-officedocument",
        ] {
            assert!(!is_json(neither) && !is_xml(neither), "{neither}");
        }
        assert!(is_json_lines("Application/X-NDJSON; charset=utf-8"));
        assert!(is_html("Text/HTML; charset=utf-8") && is_html("application/xhtml+xml") && !is_html("text/htmlx"));
    }

    #[test]
    fn b21_parameters_are_read_with_quotes_and_spaces() {
        let check =
            |text: &str, expected: Option<&str>| assert_eq!(parameter(text, "charset").as_deref(), expected, "{text}");
        check("text/xml; charset=utf-8", Some("utf-8"));
        check("text/xml;CHARSET = \"UTF-16\" ; x=1", Some("UTF-16"));
        check("text/xml; a=\"; charset=no\"; charset=yes", Some("yes"));
        check("text/xml; flag; charset=\"a\\\"b\"", Some("a\"b"));
        check("text/xml; xcharset=no", None);
        check("text/xml", None);
        assert_eq!(normal("Application/JSON; Charset=UTF-8"), "application/json; Charset=UTF-8");
        assert_eq!(normal("text/plain"), "text/plain");
        assert_eq!(essence(" Text/Plain;x"), "text/plain");
    }
}
