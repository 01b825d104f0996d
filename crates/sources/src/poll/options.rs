use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;
use tocsin_connect::options::Options;
use tocsin_model::{
    field::Fields,
    problem::{Code, Problem},
};

use crate::{
    description::SourceOptions,
    fetch::FetchOptions,
    items::{Format, Layout, Xml},
    mapping::{Mapping, path_problem},
};

/// Options of a source of the kind `poll`.
#[derive(Clone, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(extend("required" = ["url"]))]
pub struct PollOptions {
    /// Address and time of polling.
    #[serde(flatten)]
    pub fetch: FetchOptions,
    /// Format of the page.
    pub format: Format,
    /// Path of the items in the page. For `json` a path to an array or to one item, such as `features`; default the
    /// document itself. For `xml` the path of the elements, such as `/orders/order`.
    pub items: String,
    /// Delimiter between CSV cells: one ASCII character. Default: that of a first line `sep=;`, else the most frequent
    /// of `,`, `;`, tab and `|` in the header.
    pub delimiter: Option<char>,
    /// Character encoding of the page, such as `windows-1252`. Default: that of a byte-order mark, the `charset` of the
    /// response or the XML declaration, else UTF-8.
    pub encoding: Option<String>,
    /// Path of each field of the event class in an item: `{magnitude: properties.mag}`. Default: the names of the
    /// fields.
    pub fields: BTreeMap<String, String>,
    /// Path of an item's identity, such as `id`. Default: the whole content, so that a changed item is a new one.
    pub key: Option<String>,
    /// Path of a value that differs after a change, such as `properties.updated`. Default: the whole item.
    pub version: Option<String>,
    /// Whether a changed item is an event again.
    pub updates: bool,
    /// Number of polls for which an item removed from the page is remembered.
    pub retention: u32,
    /// Longest item, in bytes.
    #[schemars(range(min = 1, max = 67108864))]
    pub item_bytes_max: usize,
}

impl Default for PollOptions {
    fn default() -> Self {
        PollOptions {
            fetch: FetchOptions::default(),
            format: Format::Json,
            items: String::new(),
            delimiter: None,
            encoding: None,
            fields: BTreeMap::new(),
            key: None,
            version: None,
            updates: true,
            retention: 3,
            item_bytes_max: 1 << 20,
        }
    }
}

impl PollOptions {
    pub(crate) fn layout(&self) -> Layout {
        Layout {
            format: self.format,
            items: self.items.clone(),
            delimiter: self.delimiter.and_then(|delimiter| u8::try_from(delimiter).ok()),
            encoding: self.encoding.clone(),
            columns: Vec::new(),
            item_bytes_max: self.item_bytes_max,
            xml: Xml::default(),
            required: Vec::new(),
        }
    }
}

impl Options for PollOptions {
    fn problems(&self) -> Vec<Problem> {
        let mut problems = self.fetch.problems();
        problems.extend(self.layout().problems());
        if self.delimiter.is_some_and(|c| !c.is_ascii() || matches!(c, '"' | '\n' | '\r' | '\0')) {
            problems.push(
                Problem::new(Code::InvalidFormat, "delimiter", "must be one ASCII character, such as `;`")
                    .param("format", "delimiter"),
            );
        }
        for (option, path) in [("key", &self.key), ("version", &self.version)] {
            problems.extend(path.iter().filter_map(|path| path_problem(option, path)));
        }
        problems
    }
}

impl SourceOptions for PollOptions {
    fn mapping_problems(&self, fields: &Fields) -> Vec<Problem> {
        Mapping::problems(fields, &self.fields)
    }
}
