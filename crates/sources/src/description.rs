//! Description of a kind: the row of the table of kinds, with all that the rest of the system asks about it.

use schemars::{JsonSchema, Schema};
use serde_json::{Map, Value};
use tocsin_connect::{
    options::{self, Options},
    secrets::SecretOptions,
};
use tocsin_model::{field::Fields, mark::Mark, problem::Problem};

use crate::source::{Context, OpenSource, SourceSettings};

/// The row of a kind. Every column is given for each kind, so nothing about it is decided elsewhere.
#[derive(Debug)]
pub struct KindDescription {
    /// Its name in definitions.
    pub name: &'static str,
    /// The origin of its items, in one line.
    pub summary: &'static str,
    /// The JSON Schema of its options.
    pub schema: fn() -> Schema,
    /// The resources of the server that it uses: its endpoints, and the files that its options name.
    pub needs: &'static [SourceResource],
    /// Its options that hold secrets.
    pub secrets: SecretOptions,
    /// Use by receive locations of exchanges, if they can use it.
    pub location: Option<LocationDescription>,
    /// Every problem in some options, with paths that start with the given one. No disk or network access.
    pub(crate) check: Check,
    /// Options that the server's configuration does not allow; the options have no problems otherwise.
    pub(crate) not_allowed: NotAllowed,
    /// Opens a source at its marks.
    pub(crate) open: fn(SourceSettings, Vec<Mark>) -> Opened,
}

/// Checks options, with the fields of a class where mappings refer to them.
type Check = fn(&Map<String, Value>, Option<&Fields>, &str) -> Vec<Problem>;
type NotAllowed = fn(&Map<String, Value>, &Context) -> Vec<Problem>;

/// An opened source, or every problem in its options.
pub type Opened = Result<Box<dyn OpenSource>, Vec<Problem>>;

/// A resource of the server that a source uses, within a policy of the operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourceResource {
    /// Connections to servers that its options name.
    NamedServers,
    /// Connections to addresses of its options, within the network policy.
    CheckedAddresses,
    /// An address on which it listens.
    ListenAddresses,
    /// A folder whose files it takes.
    WatchedFolders,
    /// A SQLite file, in a folder whose files it may take.
    DatabaseFiles,
    /// Files that its options name for reading, within the file policy.
    ReadableFiles,
    /// A program that it starts, within the program policy.
    Programs,
}

impl SourceResource {
    /// The resource, in one line.
    pub fn summary(self) -> &'static str {
        match self {
            SourceResource::NamedServers => "connections to the servers in its options",
            SourceResource::CheckedAddresses => "connections to addresses within the network policy",
            SourceResource::ListenAddresses => "an address on which it listens, within `sources.allow_listen`",
            SourceResource::WatchedFolders => {
                "a folder whose files it takes, below `drop` in the data folder or within `sources.allow_folders`"
            }
            SourceResource::DatabaseFiles => "a SQLite file, within `sources.allow_folders`",
            SourceResource::ReadableFiles => "files that it reads, within `delivery.allow_files`",
            SourceResource::Programs => "a program, within `delivery.allow_programs`",
        }
    }
}

/// Use of a kind by receive locations of exchanges, which receive whole messages.
#[derive(Debug)]
pub struct LocationDescription {
    /// Options of parsing items and mapping them to fields, which a location cannot have.
    pub event_options: &'static [&'static str],
}

/// The options of a kind, which may refer to fields of an event class.
pub(crate) trait SourceOptions: Options + JsonSchema {
    /// Mismatches with the fields of the class; paths are relative: `fields.place`.
    fn mapping_problems(&self, fields: &Fields) -> Vec<Problem>;

    /// Options that the server's configuration does not allow; paths are relative: `listen`.
    fn not_allowed(&self, _context: &Context) -> Vec<Problem> {
        Vec::new()
    }
}

/// The column `schema` for options of this type.
pub(crate) fn schema_of<T: JsonSchema>() -> Schema {
    schemars::schema_for!(T)
}

/// The column `check` for options of this type.
pub(crate) fn check_of<T: SourceOptions>(
    given: &Map<String, Value>,
    fields: Option<&Fields>,
    path: &str,
) -> Vec<Problem> {
    match (options::read::<T>(given, path), fields) {
        (Ok(_), None) => Vec::new(),
        (Ok(options), Some(fields)) => {
            let below = |problem: Problem| Problem { path: format!("{path}.{}", problem.path), ..problem };
            options.mapping_problems(fields).into_iter().map(below).collect()
        }
        (Err(problems), _) => problems,
    }
}

/// The column `not_allowed` for options of this type.
pub(crate) fn not_allowed_of<T: SourceOptions>(given: &Map<String, Value>, context: &Context) -> Vec<Problem> {
    options::read::<T>(given, "").map_or_else(|_| Vec::new(), |options| options.not_allowed(context))
}
