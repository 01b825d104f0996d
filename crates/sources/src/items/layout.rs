//! Options of parsing texts.

use schemars::JsonSchema;
use serde::Deserialize;

/// The format of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// A JSON object per line.
    #[default]
    Ndjson,
    /// A JSON document with one item, or an array of them.
    Json,
    /// Comma-separated values with a header.
    Csv,
    /// XML.
    Xml,
}

/// Options of parsing texts.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Layout {
    pub format: Format,
    /// The path of the items: names with dots for JSON, with slashes for XML; empty: the document itself.
    pub items: String,
    /// The delimiter between cells; `None`: detected from the first line.
    pub delimiter: Option<u8>,
    /// The character encoding; `None`: declared in the text, or UTF-8.
    pub encoding: Option<String>,
    /// The names of the columns for texts without a header.
    pub columns: Vec<String>,
    /// Longest item.
    pub item_bytes_max: usize,
    /// Strictness of the XML parser.
    pub xml: Xml,
    /// Columns that CSV must have. A human-readable error page has none of them.
    pub required: Vec<String>,
}

/// Strictness of the XML parser.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Xml {
    /// Document type declarations and undefined entities are rejected.
    #[default]
    Plain,
    /// For feeds: a document type declaration is skipped. HTML entities are replaced, unknown ones are kept as text.
    Feed,
}
