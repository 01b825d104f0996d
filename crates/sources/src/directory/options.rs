use std::{collections::BTreeMap, path::PathBuf};

use schemars::JsonSchema;
use serde::Deserialize;
use tocsin_delivery::options::{Options, Wait};
use tocsin_model::{field::Fields, problem::Problem};

use crate::{
    items::{Format, Layout, Schema, Xml},
    kind::SourceOptions,
    mapping::Mapping,
    source::Context,
};

/// Options of a source of the kind `directory`.
#[derive(Clone, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(extend("required" = ["folder"]))]
pub struct DirectoryOptions {
    /// The folder that is watched, without those in it. A relative one lies below `drop` in the data folder and is made; any
    /// other must be opened by the configuration: `sources.allow_folders`.
    pub folder: PathBuf,
    /// Which files are read, by their names: `*` is any text and `?` any character.
    pub pattern: String,
    /// How files hold their items.
    pub format: Format,
    /// Where in a file the items lie. For `json` a path to an array or to one item, such as `features`; without it the
    /// document itself. For `xml` the path of the elements, such as `/orders/order` or `//order`.
    pub items: String,
    /// The text of an XML Schema, in place of `items` and `fields`: its first element that comes many times is the item, and
    /// what it declares in there by the name of a field is the field. What the schema says of types must fit the class.
    pub schema: Option<String>,
    /// Where in an item each field of the event class comes from: `{magnitude: properties.mag, id: '@id'}`. Without it items
    /// name the fields themselves.
    pub fields: BTreeMap<String, String>,
    /// The delimiter between the cells of CSV: one character of ASCII. Without it a first line `sep=;` names it, else it is the
    /// one of `,`, `;`, tab and `|` that stands in the head most often.
    pub delimiter: Option<char>,
    /// The character encoding of files, such as `windows-1252`. Without it a byte-order mark or the declaration of XML names
    /// it, and other files are in UTF-8.
    pub encoding: Option<String>,
    /// The names of the columns of CSV files without a head.
    pub columns: Vec<String>,
    /// Which file is next: the first by its name or the oldest by the time of its last change.
    pub order: Order,
    /// A file is read when it has not changed for this long.
    pub settle: Wait,
    /// How often the folder is looked through, whatever the operating system says of changes.
    pub rescan: Wait,
    /// What becomes of a file whose events are all accepted.
    pub done: Done,
    /// Longest file, in bytes. A longer one is refused unread.
    pub file_bytes_max: u64,
    /// Longest item, in bytes.
    #[schemars(range(min = 1, max = 67108864))]
    pub item_bytes_max: usize,
}

/// Which file is next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// The first by its name.
    #[default]
    Name,
    /// The oldest by the time of its last change, then by name.
    Changed,
}

/// What becomes of a file that was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Done {
    /// It stays in the folder as `NAME.TIME.COUNTER.done`.
    #[default]
    Rename,
    /// It is removed.
    Remove,
}

/// Most bytes of an item that an operator may allow.
const ITEM_BYTES_MAX: usize = 64 << 20;

impl Default for DirectoryOptions {
    fn default() -> Self {
        DirectoryOptions {
            folder: PathBuf::new(),
            pattern: "*".to_owned(),
            format: Format::default(),
            items: String::new(),
            schema: None,
            fields: BTreeMap::new(),
            delimiter: None,
            encoding: None,
            columns: Vec::new(),
            order: Order::default(),
            settle: Wait::seconds(1),
            rescan: Wait::seconds(10),
            done: Done::default(),
            file_bytes_max: 1 << 30,
            item_bytes_max: 1 << 20,
        }
    }
}

impl DirectoryOptions {
    /// How its files are read.
    pub(crate) fn layout(&self) -> Layout {
        let items = match self.schema() {
            Some(Ok(schema)) if self.items.is_empty() => schema.items,
            _ => self.items.clone(),
        };
        Layout {
            format: self.format,
            items,
            delimiter: self.delimiter.and_then(|delimiter| u8::try_from(delimiter).ok()),
            encoding: self.encoding.clone(),
            columns: self.columns.clone(),
            item_bytes_max: self.item_bytes_max,
            xml: Xml::default(),
            wanted: Vec::new(),
        }
    }

    fn schema(&self) -> Option<Result<Schema, Problem>> {
        self.schema.as_deref().map(Schema::read)
    }

    /// Where each field comes from.
    pub(crate) fn paths(&self, fields: &Fields) -> BTreeMap<String, String> {
        match self.schema() {
            Some(Ok(schema)) if self.fields.is_empty() => schema.paths(fields),
            _ => self.fields.clone(),
        }
    }
}

impl Options for DirectoryOptions {
    fn problems(&self) -> Vec<Problem> {
        let mut problems = match self.schema() {
            Some(Err(problem)) => return vec![problem],
            Some(Ok(_)) if self.format != Format::Xml => vec![Problem::at("schema", "is for `xml`")],
            _ => Vec::new(),
        };
        problems.extend(self.layout().problems());
        if self.folder.as_os_str().is_empty() {
            problems.push(Problem::at("folder", "is missing: where are the files dropped?"));
        }
        if self.pattern.is_empty() || self.pattern.contains('/') {
            problems.push(Problem::at("pattern", "is for names of files, such as `*.csv`"));
        }
        let is_wrong = |c: char| !c.is_ascii() || matches!(c, '"' | '\n' | '\r' | '\0');
        if self.delimiter.is_some_and(is_wrong) {
            problems.push(Problem::at("delimiter", "is one character of ASCII, such as `;`"));
        }
        if !(1..=ITEM_BYTES_MAX).contains(&self.item_bytes_max) {
            problems.push(Problem::at("item_bytes_max", format!("is at least 1 and at most {ITEM_BYTES_MAX}")));
        }
        problems
    }
}

impl DirectoryOptions {
    /// The folder, if files may be taken from it.
    pub fn folder(&self, context: &Context) -> Result<PathBuf, Problem> {
        context.folders.judge(&self.folder, &context.data_folder).map_err(|text| Problem::at("folder", text))
    }
}

impl SourceOptions for DirectoryOptions {
    fn closed(&self, context: &Context) -> Vec<Problem> {
        self.folder(context).err().into_iter().collect()
    }

    fn misfits(&self, fields: &Fields) -> Vec<Problem> {
        let mut problems = Mapping::problems(fields, &self.paths(fields));
        if let Some(Ok(schema)) = self.schema() {
            problems.extend(schema.misfits(fields));
        }
        problems
    }
}
