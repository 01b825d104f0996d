use std::{collections::BTreeMap, path::PathBuf};

use schemars::JsonSchema;
use serde::Deserialize;
use tocsin_connect::{
    options::{Options, Wait},
    programs::command,
};
use tocsin_model::{
    field::Fields,
    problem::{Code, Problem},
};

use crate::{description::SourceOptions, mapping::Mapping, source::Context};

/// Options of a source of the kind `process`.
#[derive(Clone, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(extend("required" = ["command"]))]
pub struct ProcessOptions {
    /// The program, by its absolute path, and its arguments, without a shell. The configuration must allow it:
    /// `delivery.allow_programs`.
    pub command: Vec<String>,
    /// Environment variables, besides `PATH` and `TOCSIN_POSITION`; the server's environment is not inherited.
    pub environment: BTreeMap<String, String>,
    /// Path of each field of the event class in a line: `{magnitude: properties.mag}`. Default: the names of the
    /// fields.
    pub fields: BTreeMap<String, String>,
    /// Time for the program to exit after its input is closed; then it is killed.
    pub grace: Wait,
    /// Longest line, in bytes.
    #[schemars(range(min = 1, max = 67108864))]
    pub item_bytes_max: usize,
}

impl Default for ProcessOptions {
    fn default() -> Self {
        ProcessOptions {
            command: Vec::new(),
            environment: BTreeMap::new(),
            fields: BTreeMap::new(),
            grace: Wait::seconds(10),
            item_bytes_max: 1 << 20,
        }
    }
}

impl Options for ProcessOptions {
    fn problems(&self) -> Vec<Problem> {
        command::problems(&self.command, &self.environment, "/usr/local/bin/read-meters, --all")
    }
}

impl ProcessOptions {
    /// The program, if it is allowed.
    pub fn program(&self, context: &Context) -> Result<PathBuf, Problem> {
        context
            .programs
            .resolve_allowed(self.command[0].as_ref())
            .map_err(|text| Problem::new(Code::NotAllowed, "command", text))
    }
}

impl SourceOptions for ProcessOptions {
    fn not_allowed(&self, context: &Context) -> Vec<Problem> {
        self.program(context).err().into_iter().collect()
    }

    fn mapping_problems(&self, fields: &Fields) -> Vec<Problem> {
        Mapping::problems(fields, &self.fields)
    }
}
