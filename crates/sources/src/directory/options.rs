use std::{collections::BTreeMap, path::PathBuf};

use schemars::JsonSchema;
use serde::Deserialize;
use tocsin_connect::options::{Options, Wait};
use tocsin_model::{
    field::Fields,
    problem::{Code, Problem},
};

use crate::{
    description::SourceOptions,
    items::{Format, Layout, Xml},
    mapping::Mapping,
    source::Context,
    xsd::Schema,
};

/// Options of a source of the kind `directory`.
#[derive(Clone, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(extend("required" = ["folder"]))]
pub struct DirectoryOptions {
    /// The watched folder, without subfolders. A relative path is below `drop` in the data folder and is created; any
    /// other folder must be allowed by the configuration: `sources.allow_folders`.
    pub folder: PathBuf,
    /// Pattern of file names: `*` is any text and `?` any character.
    pub pattern: String,
    /// Format of the files.
    pub format: Format,
    /// Path of the items in a file. For `json` a path to an array or to one item, such as `features`; default the
    /// document itself. For `xml` the path of the elements, such as `/orders/order` or `//order`.
    pub items: String,
    /// The text of an XML Schema, instead of `items` and `fields`: its first repeated element is the item, and
    /// declarations in it with the name of a field are the field. Types in the schema must match the class.
    pub schema: Option<String>,
    /// Path of each field of the event class in an item: `{magnitude: properties.mag, id: '@id'}`. Default: the names
    /// of the fields.
    pub fields: BTreeMap<String, String>,
    /// Delimiter between CSV cells: one ASCII character. Default: that of a first line `sep=;`, else the most frequent
    /// of `,`, `;`, tab and `|` in the header.
    pub delimiter: Option<char>,
    /// Character encoding of files, such as `windows-1252`. Default: that of a byte-order mark or the XML declaration,
    /// else UTF-8.
    pub encoding: Option<String>,
    /// Names of the columns of CSV files without a header.
    pub columns: Vec<String>,
    /// Order of files: by name, or by the time of the last change.
    pub order: Order,
    /// Time without changes after which a file is read.
    pub settle: Wait,
    /// Interval of scans, in addition to change notifications of the operating system.
    pub rescan: Wait,
    /// Action for a file whose events are all accepted.
    pub done: CompletionAction,
    /// Longest file, in bytes. A longer one is rejected unread.
    pub file_bytes_max: u64,
    /// Longest item, in bytes.
    #[schemars(range(min = 1, max = 67108864))]
    pub item_bytes_max: usize,
}

/// Order of files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// By name.
    #[default]
    Name,
    /// By the time of the last change, then by name.
    Changed,
}

/// Action for a completed file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CompletionAction {
    /// The file is kept in the folder as `NAME.TIME.COUNTER.done`.
    #[default]
    Rename,
    /// The file is removed.
    Remove,
}

/// Highest configurable item size, in bytes.
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
            done: CompletionAction::default(),
            file_bytes_max: 1 << 30,
            item_bytes_max: 1 << 20,
        }
    }
}

impl DirectoryOptions {
    /// The parsing options of its files.
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
            required: Vec::new(),
        }
    }

    fn schema(&self) -> Option<Result<Schema, Problem>> {
        self.schema.as_deref().map(Schema::read)
    }

    /// The path of each field.
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
            Some(Ok(_)) if self.format != Format::Xml => {
                vec![Problem::new(Code::NotApplicable, "schema", "is for `xml`")]
            }
            _ => Vec::new(),
        };
        problems.extend(self.layout().problems());
        if self.folder.as_os_str().is_empty() {
            problems.push(Problem::new(Code::Required, "folder", "is missing: the folder of the files"));
        }
        if self.pattern.is_empty() || self.pattern.contains('/') {
            problems.push(
                Problem::new(Code::InvalidFormat, "pattern", "must be a pattern of file names, such as `*.csv`")
                    .param("format", "pattern"),
            );
        }
        let is_wrong = |c: char| !c.is_ascii() || matches!(c, '"' | '\n' | '\r' | '\0');
        if self.delimiter.is_some_and(is_wrong) {
            problems.push(
                Problem::new(Code::InvalidFormat, "delimiter", "must be one ASCII character, such as `;`")
                    .param("format", "delimiter"),
            );
        }
        if !(1..=ITEM_BYTES_MAX).contains(&self.item_bytes_max) {
            problems.push(Problem::out_of_range("item_bytes_max", 1, ITEM_BYTES_MAX));
        }
        problems
    }
}

impl DirectoryOptions {
    /// The folder, if it is allowed.
    pub fn folder(&self, context: &Context) -> Result<PathBuf, Problem> {
        context
            .folders
            .resolve_allowed(&self.folder, &context.data_folder)
            .map_err(|text| Problem::new(Code::NotAllowed, "folder", text))
    }
}

impl SourceOptions for DirectoryOptions {
    fn not_allowed(&self, context: &Context) -> Vec<Problem> {
        self.folder(context).err().into_iter().collect()
    }

    fn mapping_problems(&self, fields: &Fields) -> Vec<Problem> {
        let mut problems = Mapping::problems(fields, &self.paths(fields));
        if let Some(Ok(schema)) = self.schema() {
            problems.extend(schema.mapping_problems(fields));
        }
        problems
    }
}
