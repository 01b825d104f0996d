//! Policy of the operator of a machine: files and programs that the channels and collections of a definition may use.

use std::path::{Path, PathBuf};

use serde_json::Value;
use tocsin_connect::{files::Files, programs::Programs};
use tocsin_delivery::{file_options::files_not_allowed, folders::Folders};
use tocsin_model::{
    application::{Application, Channel},
    collection::{Collection, Resolver},
    id::Name,
    problem::{Code, Problem},
};

/// Files and programs that the operator of a machine has allowed.
pub struct ResourcePolicy {
    /// The data folder, below which channels may write.
    pub data_folder: PathBuf,
    /// Other folders that channels may write to.
    pub folders: Folders,
    /// Files that channels may read.
    pub files: Files,
    /// Programs that channels and collections may start.
    pub programs: Programs,
}

impl ResourcePolicy {
    /// Problems for files and programs of the channels that `opens` selects, and for programs of all collections.
    /// Opens and creates nothing.
    pub fn not_allowed(&self, application: &Application, opens: impl Fn(&Name, &Channel) -> bool) -> Vec<Problem> {
        let channels = application.channels.iter().filter(|(name, channel)| opens(name, channel));
        let mut problems: Vec<Problem> =
            channels.flat_map(|(name, channel)| self.channel(channel, &format!("channels.{name}.options"))).collect();
        problems.extend(self.collection_programs(application));
        problems
    }

    fn channel(&self, channel: &Channel, path: &str) -> Vec<Problem> {
        let option = |key: &str| channel.options.get(key);
        let mut problems = files_not_allowed(channel, &self.files, path);
        let (key, why) = match channel.protocol.as_str() {
            "file" => {
                let file = option("path").and_then(Value::as_str).map(Path::new);
                ("path", file.and_then(|file| self.folders.resolve_allowed(file, &self.data_folder).err()))
            }
            "process" => {
                let program = option("command").and_then(|command| command.get(0)?.as_str()).map(Path::new);
                ("command", program.and_then(|program| self.programs.resolve_allowed(program).err()))
            }
            _ => return problems,
        };
        problems.extend(why.map(|why| Problem::new(Code::NotAllowed, format!("{path}.{key}"), why)));
        problems
    }

    /// Problems for the merge programs of collections.
    pub(crate) fn collection_programs(&self, application: &Application) -> Vec<Problem> {
        let problem = |(name, collection): (&Name, &Collection)| {
            let Resolver::Process(process) = &collection.conflicts.resolver else { return None };
            let program = process.command.first().map(Path::new)?;
            let why = self.programs.resolve_allowed(program).err()?;
            Some(Problem::new(Code::NotAllowed, format!("collections.{name}.conflicts.resolver.process"), why))
        };
        application.collections.iter().filter_map(problem).collect()
    }
}
