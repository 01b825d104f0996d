//! Cache of compiled application versions: an old batch is read by the version that packed it.

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::Mutex;
use tocsin_model::{
    broadcast::{broadcast_class, broadcast_fields, broadcast_source},
    definition::{self, Environment},
    event::EventBatch,
    field::Fields,
    id::Name,
    problem::Problem,
};
use tocsin_store::{
    error::StoreError,
    records::{ApplicationStore, ApplicationVersion},
};

use crate::{
    compile::Compiled,
    errors::RunError,
    variables::{VARIABLE_PLACES, has_variables},
};

/// Maximum number of cached versions, beside those in use elsewhere.
const KEPT: usize = 64;

/// Compiled versions by name and number.
pub struct Versions {
    application_store: Arc<dyn ApplicationStore>,
    environment: Environment,
    kept: Mutex<BTreeMap<(Name, u32), Arc<Compiled>>>,
}

impl Versions {
    pub(crate) fn new(application_store: Arc<dyn ApplicationStore>, environment: Environment) -> Self {
        Versions { application_store, environment, kept: Mutex::new(BTreeMap::new()) }
    }

    /// Returns a version; `None` if it does not exist or cannot be compiled any more (which is logged).
    ///
    /// # Errors
    /// The records fail.
    pub async fn get(&self, name: &Name, version: u32) -> Result<Option<Arc<Compiled>>, StoreError> {
        let key = (name.clone(), version);
        if let Some(compiled) = self.kept.lock().get(&key) {
            return Ok(Some(compiled.clone()));
        }
        let Some(stored) = self.application_store.application(name, Some(version)).await? else {
            return Ok(None);
        };
        let compiled = definition::read(&stored.text, &*self.environment)
            .and_then(|application| Compiled::new(application, version));
        match compiled {
            Ok(compiled) => {
                let compiled = Arc::new(compiled);
                self.insert(compiled.clone());
                Ok(Some(compiled))
            }
            Err(_) => {
                for problem in self.problems(&stored) {
                    tracing::error!(application = %name, version, %problem, "a stored definition cannot be compiled");
                }
                Ok(None)
            }
        }
    }

    /// The problems of a stored definition, without values of variables.
    pub(crate) fn problems(&self, stored: &ApplicationVersion) -> Vec<Problem> {
        problems(stored, &*self.environment)
    }

    /// Fields that a batch was packed with. The inner error says why they are unknown.
    pub(crate) async fn event_fields(&self, batch: &EventBatch) -> Result<Result<Fields, String>, StoreError> {
        if batch.source == broadcast_source() && batch.class == broadcast_class() {
            return Ok(Ok(broadcast_fields()));
        }
        let Some(compiled) = self.get(&batch.application, batch.version).await? else {
            return Ok(Err(format!("version {} of the application `{}` is gone", batch.version, batch.application)));
        };
        Ok(match compiled.application.events.get(&batch.class) {
            Some(class) => Ok(class.fields.clone()),
            None => Err(format!("version {} has no event class `{}`", batch.version, batch.class)),
        })
    }

    /// Adds a version that was compiled elsewhere.
    pub(crate) fn insert(&self, compiled: Arc<Compiled>) {
        let mut kept = self.kept.lock();
        let newest = (compiled.application.name.clone(), compiled.version);
        kept.insert(newest.clone(), compiled);
        // Versions in use elsewhere cost nothing extra here, and compiling them for every batch would.
        while kept.len() > KEPT
            && let Some(unused) = kept.iter().find(|(key, held)| **key != newest && Arc::strong_count(held) == 1)
        {
            let unused = unused.0.clone();
            kept.remove(&unused);
        }
    }

    /// Environment in which definitions are read.
    pub fn environment(&self) -> &Environment {
        &self.environment
    }
}

/// The problems of a stored definition, without values of variables.
fn problems(stored: &ApplicationVersion, environment: &dyn Fn(&str) -> Option<String>) -> Vec<Problem> {
    let read = |environment: &dyn Fn(&str) -> Option<String>| {
        definition::read(&stored.text, environment).and_then(|application| Compiled::new(application, stored.version))
    };
    definition::read_redacted(environment, &VARIABLE_PLACES, read).err().unwrap_or_default()
}

/// The reason why a stored definition cannot run, without values of variables.
pub(crate) fn reason(stored: &ApplicationVersion, error: &RunError) -> String {
    let RunError::Problems(problems) = error else { return error.to_string() };
    let sealed = |name: &str| Some(definition::placeholder_value(name));
    let sealed = definition::read(&stored.text, &sealed).ok();
    let may_hold_value = |path: &str| {
        let Some(name) = path.strip_prefix("channels.").and_then(|rest| rest.split('.').next()) else { return false };
        // A definition that is invalid with placeholders may have variables in each of its channels.
        let Some(application) = &sealed else { return true };
        let channel = name.parse::<Name>().ok().and_then(|name| application.channels.get(&name));
        channel.is_none_or(|channel| has_variables(&channel.options))
    };
    let shown = |problem: &Problem| match may_hold_value(&problem.path) {
        true => definition::without_value(problem.clone(), &[]),
        false => problem.clone(),
    };
    RunError::Problems(problems.iter().map(shown).collect()).to_string()
}

#[cfg(test)]
mod tests {
    use tocsin_model::{problem::Code, time::Timestamp};

    use super::*;

    fn stored(text: &str) -> ApplicationVersion {
        let name = "quakes".parse().expect("a name");
        ApplicationVersion {
            name,
            version: 1,
            text: format!("application: quakes\nevents: {{ quake: {{ fields: {{ place: string }} }} }}\n{text}\n"),
            author: String::new(),
            applied_at: Timestamp(0),
        }
    }

    #[test]
    fn reasons_of_definitions_that_do_not_run_hold_no_values_of_variables() {
        let environment = |name: &str| (name == "X").then(|| "hunter2 hunter2".to_owned());
        let source = stored("sources: { s: { kind: '${X}', events: [quake], options: {} } }");
        let found = problems(&source, &environment);
        let shown: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert!(!shown.is_empty() && shown.iter().all(|problem| !problem.contains("hunter2")), "{shown:?}");
        assert!(shown.iter().any(|problem| problem.contains("sources.s.kind")), "{shown:?}");
        // Without a value, the name of the variable is shown.
        let shown = problems(&source, &|_| None).iter().map(ToString::to_string).collect::<String>();
        assert!(shown.contains("`X`"), "{shown}");

        let channels = stored(
            "channels:\n  a: { protocol: file, options: { path: '${X}' } }\n  \
             b: { protocol: file, options: { path: b } }",
        );
        let error = |channel: &str| {
            let path = format!("channels.{channel}.options.path");
            RunError::Problems(vec![Problem::new(Code::Unreadable, path, "`hunter2` cannot be opened")])
        };
        let (with, without) = (reason(&channels, &error("a")), reason(&channels, &error("b")));
        assert!(!with.contains("hunter2") && with.contains("channels.a.options.path"), "{with}");
        assert!(without.contains("`hunter2` cannot be opened"), "{without}");
    }
}
