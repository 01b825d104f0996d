//! Codes of problems in the description of the API, and their reference page.

use std::fmt::Write as _;

use serde_json::Value as Json;
use tocsin_model::{problem::Code, reason_code::ReasonCode};
use tocsin_service::attention;
use utoipa::{
    PartialSchema, ToSchema,
    openapi::{
        RefOr,
        extensions::Extensions,
        schema::{ObjectBuilder, Schema, Type},
    },
};

use crate::problems::codes::{DOCUMENT_CODES, KINDS};

/// Code of a problem document.
pub(crate) struct ProblemCode;

/// Code of one of the `problems` of a document.
pub(crate) struct ProblemItemCode;

/// One thing that is wrong with the content.
#[derive(ToSchema)]
#[allow(dead_code)]
pub(crate) struct ProblemItem {
    /// Machine-readable code, which never changes its meaning.
    code: ProblemItemCode,
    /// Dotted path of the value; empty for the whole body.
    path: String,
    /// Line, from 1.
    line: Option<u32>,
    /// Column, from 1.
    column: Option<u32>,
    /// Error text.
    message: String,
    /// Parameters of the message, such as `limit`.
    params: Option<std::collections::BTreeMap<String, serde_json::Value>>,
    /// Suggested fix.
    hint: Option<String>,
}

impl PartialSchema for ProblemCode {
    fn schema() -> RefOr<Schema> {
        extensible("Code of a problem document", DOCUMENT_CODES.iter().map(|code| code.word))
    }
}

impl ToSchema for ProblemCode {}

impl PartialSchema for ProblemItemCode {
    fn schema() -> RefOr<Schema> {
        extensible("Code of one of the `problems` of a document", Code::ALL.iter().map(|code| code.word()))
    }
}

impl ToSchema for ProblemItemCode {}

/// A word of a list that can grow: not an `enum`, whose generated clients reject words of later versions.
fn extensible<'a>(about: &str, words: impl Iterator<Item = &'a str>) -> RefOr<Schema> {
    let words: Vec<Json> = words.map(Json::from).collect();
    let examples = words.first().cloned();
    let schema = ObjectBuilder::new()
        .schema_type(Type::String)
        .pattern(Some("^[a-z][a-z0-9_]*$"))
        .description(Some(format!("{about}; later versions can add codes (`docs/reference/errors.md`)")))
        .examples(examples)
        .extensions(Some(Extensions::from_iter([("x-extensible-enum", Json::from(words))])));
    RefOr::T(Schema::Object(schema.build()))
}

/// Parameters of problems: name and value.
const PARAMETERS: &[(&str, &str)] = &[
    ("count", "number of the problems that are not listed"),
    ("expected", "expected type or value, as text"),
    ("format", "name of the format, such as `url`, `mail_address`, `time_zone`, `duration`, `cursor`"),
    ("given", "given length or number of entries"),
    ("kind", "kind of the object to which the value refers, such as `channel`, `segment`, `field`"),
    ("known", "list of the known or allowed words, at most 50"),
    (
        "language",
        "language of the text, such as `cel`, `jmespath`, `jinja`, `xslt`, `sql`, `json`, `yaml`, `icalendar`",
    ),
    ("least", "smallest allowed value"),
    ("limit", "largest allowed length or number"),
    ("meant", "the known word closest to `value`"),
    ("most", "largest allowed value"),
    ("unit", "unit of `limit` and `given`: `bytes` or `characters`"),
    ("value", "the given value"),
    ("with", "the other member"),
];

/// `docs/reference/errors.md`: the codes of problem documents and of their problems.
pub fn errors_page() -> String {
    let mut page = "# Error codes\n\n\
        <!-- Generated from crates/face-http/src/problems.rs and crates/model/src/problem/code.rs; `make docs` writes \
        it anew. -->\n\n\
        A failed request is answered with a problem document (RFC 9457). Its member `code` is for programs; `title`, \
        `detail`, `message` and `hint` are for people and can change. A code never changes its meaning and is never \
        removed. Later versions can add codes: a client treats an unknown code by the status of the response.\n\n\
        ```json\n\
        {\"type\": \"/problems/invalid\", \"code\": \"invalid_content\", \
        \"title\": \"The content is not valid\", \"status\": 422,\n \
        \"detail\": \"1 problem found\",\n \
        \"problems\": [{\"code\": \"out_of_range\", \"path\": \"limit\", \
        \"message\": \"should be from 1 to 1000\",\n               \
        \"params\": {\"least\": 1, \"most\": 1000}}]}\n\
        ```\n\n\
        ## Codes of documents\n\n\
        | code | status | type | meaning |\n|---|---|---|---|\n"
        .to_owned();
    for code in DOCUMENT_CODES {
        let (status, slug) = (code.kind.status.as_u16(), code.kind.slug);
        let _ = writeln!(page, "| `{}` | {status} | `/problems/{slug}` | {} |", code.word, code.meaning);
    }
    page.push_str("\n## Types of documents\n\n| type | status | title | what to do |\n|---|---|---|---|\n");
    for kind in KINDS {
        let status = kind.status.as_u16();
        let _ = writeln!(page, "| `/problems/{}` | {status} | {} | {} |", kind.slug, kind.title, kind.help);
    }
    page.push_str(
        "\n## Codes of problems\n\n\
         Each of `problems` has a code, and so has each problem and warning of a definition, an import, a sync edit or \
         `tocsin check --json`. Its parameters are in `params`; a problem has those that are known.\n\n\
         | code | meaning | what to do | parameters |\n|---|---|---|---|\n",
    );
    for code in Code::ALL {
        let params: Vec<String> = code.params().iter().map(|name| format!("`{name}`")).collect();
        let (word, meaning, fix) = (code.word(), code.meaning(), code.fix());
        let _ = writeln!(page, "| `{word}` | {meaning} | {fix} | {} |", params.join(", "));
    }
    page.push_str(
        "\n## Codes of reasons\n\n\
         A suspension, an attempt and a gate of an explanation have the code of their reason. A code with a parameter has \
         it in `parameters`.\n\n\
         | code | meaning | parameter |\n|---|---|---|\n",
    );
    for code in ReasonCode::ALL {
        let param = code.param().map(|name| format!("`{name}`")).unwrap_or_default();
        let _ = writeln!(page, "| `{}` | {} | {param} |", code.word(), code.meaning());
    }
    page.push_str(
        "\n## Codes of the attention list\n\n\
         Each item of `GET /v1/attention` has a `code`, its figures in `parameters`, and a `cause_code` if the cause is \
         known.\n\n| code | meaning |\n|---|---|\n",
    );
    for (kind, meaning) in attention::KINDS {
        let _ = writeln!(page, "| `{}` | {meaning} |", kind.replace('-', "_"));
    }
    page.push_str("\n| cause | meaning |\n|---|---|\n");
    for (code, text) in attention::CAUSES {
        let _ = writeln!(page, "| `{code}` | {text} |");
    }
    page.push_str("\n## Parameters\n\n| parameter | value |\n|---|---|\n");
    for (name, about) in PARAMETERS {
        let _ = writeln!(page, "| `{name}` | {about} |");
    }
    page
}

/// `clients/typescript/src/error_codes.ts`: the codes as types.
pub fn error_codes_module() -> String {
    let list = |words: &mut dyn Iterator<Item = &'static str>| -> String {
        words.fold(String::new(), |mut lines, word| {
            let _ = writeln!(lines, "  \"{word}\",");
            lines
        })
    };
    format!(
        "/** Codes of errors. Generated from crates/face-http/src/error_codes.rs; `make docs` writes it anew. */\n\n\
         /** Codes of problem documents. */\nexport const DOCUMENT_CODES = [\n{}] as const;\n\n\
         /** Codes of the problems of a document. */\nexport const PROBLEM_CODES = [\n{}] as const;\n\n\
         export type DocumentCode = (typeof DOCUMENT_CODES)[number];\n\
         export type ProblemCode = (typeof PROBLEM_CODES)[number];\n",
        list(&mut DOCUMENT_CODES.iter().map(|code| code.word)),
        list(&mut Code::ALL.iter().map(|code| code.word())),
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_document_code_is_unique_and_every_kind_has_one() {
        let words: BTreeSet<&str> = DOCUMENT_CODES.iter().map(|code| code.word).collect();
        assert_eq!(words.len(), DOCUMENT_CODES.len());
        for word in words {
            assert!(word.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{word}");
        }
        for kind in KINDS {
            assert!(DOCUMENT_CODES.iter().any(|code| code.kind.slug == kind.slug), "{} has no code", kind.slug);
        }
    }

    #[test]
    fn every_parameter_is_described_and_used() {
        let described: BTreeSet<&str> = PARAMETERS.iter().map(|(name, _)| *name).collect();
        let used: BTreeSet<&str> = Code::ALL.iter().flat_map(|code| code.params()).copied().collect();
        assert_eq!(described, used);
    }

    /// The codes that were published. A client depends on them.
    #[test]
    fn no_committed_code_is_removed() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/error-codes.txt");
        let now: BTreeSet<&str> =
            DOCUMENT_CODES.iter().map(|code| code.word).chain(Code::ALL.iter().map(|code| code.word())).collect();
        let published = std::fs::read_to_string(path).unwrap_or_default();
        let published: BTreeSet<&str> = published.lines().filter(|line| !line.starts_with('#')).collect();
        let removed: Vec<&&str> = published.difference(&now).collect();
        assert!(
            removed.is_empty(),
            "clients depend on the codes {removed:?}: restore each of them, and add a new code for a new meaning"
        );
        if std::env::var_os("UPDATE").is_some() {
            let mut text = "# Published codes. The tests add lines with UPDATE=1 and remove none.\n".to_owned();
            now.iter().for_each(|word| text.push_str(&format!("{word}\n")));
            std::fs::write(path, text).expect("the file can be written");
        } else {
            let added: Vec<&&str> = now.difference(&published).collect();
            assert!(added.is_empty(), "add the codes {added:?} to {path}: run the tests with UPDATE=1");
        }
    }
}
