use std::path::{Component, PathBuf};

use schemars::JsonSchema;
use serde::Deserialize;
use tocsin_connect::options::Options;
use tocsin_model::problem::{Code, Problem};

use crate::folders::{is_own, own_file};

/// Options of a channel with the protocol `file`.
#[derive(Clone, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub struct FileOptions {
    /// The file. A relative name lies in the data folder; without one, `<channel>.ndjson`, `.txt` or `.csv` there.
    /// The configuration must allow any other folder: `delivery.allow_folders`. The server's own files are refused.
    pub path: Option<PathBuf>,
    /// The record format.
    pub format: RecordFormat,
    /// The columns of CSV: `id`, `message_id`, `timestamp`, `application`, `type`, `event`, `address`, `subject`, `text`,
    /// `html`, `data` (all fields as JSON), or the name of a field of the notification; `data.NAME` where it is called
    /// like one of these. Without them `id`, `timestamp`, `application`, `type`, `address`, `subject`, `text`, `data`.
    pub columns: Vec<String>,
    /// At this size the file is renamed, with the time in its name, and a new one begins.
    #[schemars(range(min = 4096))]
    pub rotate_bytes: Option<u64>,
}

/// The record format.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RecordFormat {
    /// One JSON object a line.
    #[default]
    Ndjson,
    /// The content's text as a line; its line breaks are written as `\n`, its backslashes as `\\`.
    Text,
    /// A row of cells, quoted if necessary (RFC 4180), below a row with the names of the columns. Line breaks are
    /// written as in `text`, so that a row is a line.
    Csv,
}

impl RecordFormat {
    /// Default file extension.
    pub(super) fn extension(self) -> &'static str {
        match self {
            RecordFormat::Ndjson => "ndjson",
            RecordFormat::Text => "txt",
            RecordFormat::Csv => "csv",
        }
    }
}

impl Options for FileOptions {
    fn problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        if let Some(path) = &self.path {
            let text = path.to_string_lossy();
            if path.file_name().is_none() || text.ends_with('/') {
                problems.push(
                    Problem::new(Code::InvalidFormat, "path", "this is not the name of a file")
                        .param("format", "file_name")
                        .hint("such as `notifications.ndjson`"),
                );
            } else if path.is_relative() && path.components().any(|part| part == Component::ParentDir) {
                problems.push(
                    Problem::new(Code::NotAllowed, "path", "a relative name stays in the data folder")
                        .hint("a folder that `delivery.allow_folders` opens is given by its whole path"),
                );
            } else if path.components().any(|part| part == Component::ParentDir) {
                problems.push(
                    Problem::new(Code::InvalidFormat, "path", "a path goes without `..`").param("format", "path"),
                );
            } else if path.is_relative() && is_own(path) {
                problems.push(Problem::new(Code::ReservedName, "path", own_file(path)));
            } else if text.contains('\0') {
                problems.push(Problem::new(Code::InvalidCharacters, "path", "the name holds a NUL"));
            }
        }
        if !self.columns.is_empty() && self.format != RecordFormat::Csv {
            problems.push(
                Problem::new(Code::NotApplicable, "columns", "only CSV has columns")
                    .hint("add `format: csv`, or leave them out"),
            );
        }
        for (number, column) in self.columns.iter().enumerate() {
            if self.columns[..number].contains(column) {
                problems.push(
                    Problem::new(
                        Code::Duplicate,
                        format!("columns[{number}]"),
                        format!("the column `{column}` is there already"),
                    )
                    .param("value", column.to_string()),
                );
            }
        }
        if self.rotate_bytes.is_some_and(|bytes| bytes < 4096) {
            problems.push(
                Problem::new(
                    Code::OutOfRange,
                    "rotate_bytes",
                    "a file is at least 4096 bytes long before it is renamed",
                )
                .param("least", 4096),
            );
        }
        problems
    }
}
