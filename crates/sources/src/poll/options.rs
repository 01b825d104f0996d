use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;
use tocsin_delivery::options::Options;
use tocsin_model::{field::Fields, problem::Problem};

use crate::{
    fetch::FetchOptions,
    items::{Format, Layout, Xml},
    kind::SourceOptions,
    mapping::{Mapping, path_problem},
};

/// Options of a source of the kind `poll`.
#[derive(Clone, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(extend("required" = ["url"]))]
pub struct PollOptions {
    /// Where the page is, and when it is fetched.
    #[serde(flatten)]
    pub fetch: FetchOptions,
    /// How the page holds its items.
    pub format: Format,
    /// Where in the page the items lie. For `json` a path to an array or to one item, such as `features`; without it the
    /// document itself. For `xml` the path of the elements, such as `/orders/order`.
    pub items: String,
    /// The delimiter between the cells of CSV: one character of ASCII. Without it a first line `sep=;` names it, else it is the
    /// one of `,`, `;`, tab and `|` that stands in the head most often.
    pub delimiter: Option<char>,
    /// The character encoding of the page, such as `windows-1252`. Without it a byte-order mark, the `charset` of the answer
    /// or the declaration of XML names it, and other pages are in UTF-8.
    pub encoding: Option<String>,
    /// Where in an item each field of the event class comes from: `{magnitude: properties.mag}`. Without it items name the
    /// fields themselves.
    pub fields: BTreeMap<String, String>,
    /// Where in an item its identity lies, such as `id`. Without it an item is known by all that it says, and a changed one is
    /// a new one.
    pub key: Option<String>,
    /// Where in an item lies what differs when it has changed, such as `properties.updated`. Without it all of it is looked
    /// at.
    pub version: Option<String>,
    /// Whether an item that has changed is an event again.
    pub updates: bool,
    /// For how many polls an item that is gone from the page is still known.
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
            wanted: Vec::new(),
        }
    }
}

impl Options for PollOptions {
    fn problems(&self) -> Vec<Problem> {
        let mut problems = self.fetch.problems();
        problems.extend(self.layout().problems());
        if self.delimiter.is_some_and(|c| !c.is_ascii() || matches!(c, '"' | '\n' | '\r' | '\0')) {
            problems.push(Problem::at("delimiter", "is one character of ASCII, such as `;`"));
        }
        for (option, path) in [("key", &self.key), ("version", &self.version)] {
            problems.extend(path.iter().filter_map(|path| path_problem(option, path)));
        }
        problems
    }
}

impl SourceOptions for PollOptions {
    fn misfits(&self, fields: &Fields) -> Vec<Problem> {
        Mapping::problems(fields, &self.fields)
    }
}
