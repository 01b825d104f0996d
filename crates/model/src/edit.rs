//! Edits of a suspended notification by an operator.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    content::{Content, header_problem},
    field::Fields,
    id::Name,
    problem::{Code, Problem},
    value::Value,
};

/// Changes to a notification before it is sent. Recorded data is not changed.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Edit {
    /// Replaced field values.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub fields: BTreeMap<Name, serde_json::Value>,
    /// Replaced content, instead of the rendered templates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<EditedContent>,
    /// Replaced address, instead of the device's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
}

/// A content written by an operator.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EditedContent {
    /// One line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// Plain text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// HTML.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub html: Option<String>,
    /// JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub json: Option<String>,
    /// Headers of a mail or a request by name, each one line.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
}

/// The longest part of an edited content, in bytes.
const PART_BYTES_MAX: usize = 256 << 10;
/// Most headers of an edited content.
const HEADERS_MAX: usize = 32;
/// The longest value of one, in bytes.
const HEADER_BYTES_MAX: usize = 1_000;

impl Edit {
    /// Indexes and values of the changed fields.
    ///
    /// # Errors
    /// An unknown field, a value of the wrong type, or a problem of the content or the address.
    pub fn check(&self, fields: &Fields) -> Result<Vec<(usize, Value)>, Vec<Problem>> {
        let mut problems = Vec::new();
        let mut values = Vec::new();
        for (name, value) in &self.fields {
            let path = format!("fields.{name}");
            let Some(at) = fields.position(name.as_str()) else {
                let known: Vec<&str> = fields.iter().map(|field| field.name.as_str()).collect();
                let problem = Problem::new(Code::UnknownReference, path, "is not a field of the notification class")
                    .param("kind", "field");
                problems.push(problem.hint(format!("the fields are {}", known.join(", "))));
                continue;
            };
            let one = Fields::new(vec![fields[at].clone()]);
            let json = serde_json::json!({ name.as_str(): value }).to_string();
            match one.row_from_json(json.as_bytes()) {
                Ok(mut row) => values.push((at, row.swap_remove(0))),
                Err(found) => {
                    problems.extend(found.into_iter().map(|problem| Problem { path: path.clone(), ..problem }));
                }
            }
        }
        if let Some(content) = &self.content {
            let EditedContent { subject, text, html, json, headers } = content;
            check_headers(headers, &mut problems);
            for (name, part) in [("subject", subject), ("text", text), ("html", html), ("json", json)] {
                let Some(part) = part else { continue };
                let path = format!("content.{name}");
                if part.len() > PART_BYTES_MAX {
                    problems.push(
                        Problem::new(Code::TooLong, &path, format!("is longer than {PART_BYTES_MAX} bytes"))
                            .param("given", part.len())
                            .param("limit", PART_BYTES_MAX)
                            .param("unit", "bytes"),
                    );
                }
                if name == "subject" && part.chars().any(char::is_control) {
                    problems.push(
                        Problem::new(Code::InvalidCharacters, &path, "has control characters")
                            .hint("a subject is one line"),
                    );
                }
                if name == "json" && serde_json::from_str::<serde::de::IgnoredAny>(part).is_err() {
                    problems.push(Problem::syntax("json", &path, "is not JSON").hint("give the text of a JSON value"));
                }
            }
            if *content == EditedContent::default() {
                let hint = "give `subject`, `text`, `html`, `json` or `headers`, or leave `content` out";
                problems.push(Problem::new(Code::Empty, "content", "has no parts").hint(hint));
            }
        }
        if let Some(address) = &self.address
            && (address.is_empty() || address.len() > 2_048 || address.chars().any(char::is_control))
        {
            let hint = "give an address of the device's channel, without control characters";
            problems.push(
                Problem::new(Code::InvalidFormat, "address", "is not an address").param("format", "address").hint(hint),
            );
        }
        if problems.is_empty() { Ok(values) } else { Err(problems) }
    }
}

fn check_headers(headers: &BTreeMap<String, String>, problems: &mut Vec<Problem>) {
    if headers.len() > HEADERS_MAX {
        problems.push(Problem::too_many("content.headers", headers.len(), HEADERS_MAX));
    }
    for (at, (name, value)) in headers.iter().enumerate() {
        let path = format!("content.headers.{name}");
        if let Some((wrong, hint)) = header_problem(name) {
            problems.push(Problem::new(Code::ReservedName, &path, wrong).hint(hint));
        }
        if headers.keys().take(at).any(|before| before.eq_ignore_ascii_case(name)) {
            problems.push(Problem::duplicate(&path).hint("names of headers ignore case"));
        }
        if value.len() > HEADER_BYTES_MAX || value.chars().any(char::is_control) {
            let hint = format!("a header is one line of at most {HEADER_BYTES_MAX} bytes");
            problems.push(
                Problem::new(Code::InvalidFormat, &path, "cannot be a header")
                    .param("format", "header_field")
                    .hint(hint),
            );
        }
    }
}

impl From<EditedContent> for Content {
    fn from(edited: EditedContent) -> Content {
        let EditedContent { subject, text, html, json, headers } = edited;
        Content { subject, text, html, json, headers: headers.into_iter().collect(), ..Content::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::field::{Field, FieldType};

    #[test]
    fn an_edit_fits_its_class_or_says_why_not() {
        let field = |name: &str, kind| Field::new(name.parse().expect("a name"), kind);
        let fields = Fields::new(vec![field("place", FieldType::String), field("size", FieldType::Number)]);
        let check = |json: &str| {
            let edit: Edit = serde_json::from_str(json).expect("an edit");
            edit.check(&fields).map_err(|problems| problems.into_iter().map(|problem| problem.path).collect::<Vec<_>>())
        };
        assert_eq!(check(r#"{"fields": {"size": 5}}"#), Ok(vec![(1, Value::Number(5.0))]));
        assert_eq!(check(r#"{"content": {"text": "hello"}, "address": "a@b"}"#), Ok(vec![]));
        assert_eq!(
            check(
                r#"{"fields": {"size": "x", "none": 1}, "content": {"subject": "a\nb", "json": "{"}, "address": "a\r\nb"}"#
            ),
            Err(["fields.none", "fields.size", "content.subject", "content.json", "address"]
                .map(str::to_owned)
                .to_vec())
        );
        assert_eq!(check(r#"{"content": {}}"#), Err(vec!["content".to_owned()]));
        assert_eq!(check(r#"{"content": {"headers": {"X-Why": "again"}}}"#), Ok(vec![]));
        assert_eq!(
            check(
                r#"{"content": {"headers": {"Bcc": "a@b", "X-A": "1", "x-a": "2", "X-B": "a\r\nBcc: c@d", "a b": ""}}}"#
            ),
            Err(["Bcc", "X-B", "a b", "x-a"].map(|name| format!("content.headers.{name}")).to_vec())
        );
    }
}
