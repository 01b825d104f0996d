//! Definitions of applications: check, apply, history, remove.

use std::{collections::BTreeSet, sync::Arc};

use tocsin_model::{
    application::Application,
    definition::{self, Difference, secrets},
    id::Name,
    problem::Problem,
};
use tocsin_pipeline::{Compiled, RunError};
use tocsin_store::records::ApplicationVersion;

use crate::{
    Service,
    error::ServiceError,
    keys::{Caller, Scope},
    resources::Resource,
    schedules::schedule_warnings,
};

/// How a rule is answered.
pub use tocsin_matching::rule::RuleExplanation;
/// A version of an application that runs.
pub use tocsin_pipeline::Compiled as Running;

/// What a definition would be.
#[derive(Debug, Clone, Default)]
pub struct Checked {
    /// What is wrong; empty if it can be applied.
    pub problems: Vec<Problem>,
    /// What works but may cost more than its author thinks.
    pub warnings: Vec<Problem>,
    /// How each rule would be answered.
    pub rules: Vec<RuleExplanation>,
}

/// What a caller wants of an apply.
#[derive(Debug, Clone, Default)]
pub struct ApplyOptions {
    /// Only tell what would happen.
    pub dry_run: bool,
    /// Paths whose data may be dropped.
    pub allow_drops: BTreeSet<String>,
    /// What the caller believes to run.
    pub expected: Expected,
}

/// What must run for an apply to go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Expected {
    /// Whatever does.
    #[default]
    Any,
    /// Some version.
    Some,
    /// This version; 0 for none yet.
    Version(u32),
}

impl Expected {
    fn is_met(self, version: u32) -> bool {
        match self {
            Expected::Any => true,
            Expected::Some => version > 0,
            Expected::Version(expected) => expected == version,
        }
    }
}

/// What an apply did, or would do.
#[derive(Debug, Clone)]
pub struct Applied {
    /// The application.
    pub name: Name,
    /// The version that runs now, or ran before a dry run (0 if none).
    pub version: u32,
    /// Whether this version runs.
    pub running: bool,
    /// Whether the application is new.
    pub created: bool,
    /// How it differs from what ran.
    pub differences: Vec<Difference>,
    /// See [`Checked::warnings`].
    pub warnings: Vec<Problem>,
}

impl Service {
    /// The current version of every application, by name.
    ///
    /// # Errors
    /// The scope `applications:read` is missing, or the records do not answer.
    pub async fn applications(
        &self,
        caller: &Caller,
    ) -> Result<Vec<(ApplicationVersion, Option<Arc<Compiled>>)>, ServiceError> {
        caller.needs(Scope::ApplicationsRead)?;
        let stored = self.records.applications().await?.into_iter().map(without_secrets);
        let reached = stored.filter(|version| caller.reaches(&Resource::Application(version.name.clone())));
        Ok(reached.map(|version| (version.clone(), self.pipeline.application(&version.name))).collect())
    }

    /// The current version of an application, without the secrets written in it, and what runs of it.
    ///
    /// # Errors
    /// There is none of this name.
    pub async fn application(
        &self,
        caller: &Caller,
        name: &Name,
    ) -> Result<(ApplicationVersion, Option<Arc<Compiled>>), ServiceError> {
        caller.needs(Scope::ApplicationsRead)?;
        let stored = self.current(name).await?.ok_or_else(|| ServiceError::no_application(name))?;
        Ok((without_secrets(stored), self.pipeline.application(name)))
    }

    /// All versions of an application, newest first, without the secrets written in them, and the one that runs. They stay
    /// when it is removed.
    ///
    /// # Errors
    /// There never was one of this name.
    pub async fn application_history(
        &self,
        caller: &Caller,
        name: &Name,
    ) -> Result<(Vec<ApplicationVersion>, Option<Arc<Compiled>>), ServiceError> {
        caller.needs(Scope::ApplicationsRead)?;
        let history = self.records.application_history(name).await?;
        if history.is_empty() {
            return Err(ServiceError::no_application(name));
        }
        Ok((history.into_iter().map(without_secrets).collect(), self.pipeline.application(name)))
    }

    /// How each rule of the running version is answered.
    ///
    /// # Errors
    /// It does not run.
    pub fn application_rules(&self, caller: &Caller, name: &Name) -> Result<Vec<RuleExplanation>, ServiceError> {
        caller.needs(Scope::ApplicationsRead)?;
        self.running(name)?;
        self.pipeline.explain(name).ok_or_else(|| ServiceError::Missing(format!("the application `{name}`")))
    }

    /// Reads a definition and tells everything about it, without applying it. Who may not apply it is not told what the
    /// environment holds: options that take something from it are not judged then.
    ///
    /// # Errors
    /// Only for want of the scope: what is wrong with the text is the answer.
    pub async fn check_application(&self, caller: &Caller, text: String) -> Result<Checked, ServiceError> {
        caller.needs(Scope::ApplicationsRead)?;
        let named = definition::named(&text);
        caller.check_application(named.as_ref())?;
        let text = match named {
            Some(name) => self.with_secrets(&name, text).await?,
            None => text,
        };
        let compiled = match caller.needs(Scope::ApplicationsWrite) {
            Ok(()) => self.compile(text.clone(), 0).await,
            Err(_) => compile_sealed(text.clone()).await,
        };
        Ok(match compiled {
            Ok(compiled) => match self.missing_audiences(&compiled.application).await? {
                problems if problems.is_empty() => {
                    let warnings = self.warnings(&text, &compiled);
                    Checked { problems, warnings, rules: compiled.explain() }
                }
                problems => Checked { problems, ..Checked::default() },
            },
            Err(problems) => Checked { problems, ..Checked::default() },
        })
    }

    /// What will work but not as its author may think.
    fn warnings(&self, text: &str, compiled: &Compiled) -> Vec<Problem> {
        let mut warnings = compiled.warnings();
        warnings.extend(schedule_warnings(&compiled.application, self.clock.now()));
        warnings.extend(self.pipeline.closed_sources(compiled));
        definition::locate(text, warnings)
    }

    /// Makes a definition the one that runs. The same text again changes nothing. Where it has masks it keeps the secrets
    /// that are stored.
    ///
    /// Subscriptions are never removed by an apply: those of a class that is gone stay stored, are not matched, and
    /// come back with their class. What would so be lost from sight must be allowed by name.
    ///
    /// # Errors
    /// `Invalid` with every problem of the text, `WouldDrop`, `Changed` if another version runs than the expected one.
    pub async fn apply(
        &self,
        caller: &Caller,
        name: &Name,
        text: String,
        options: ApplyOptions,
    ) -> Result<Applied, ServiceError> {
        caller.needs(Scope::ApplicationsWrite)?;
        let _one_at_a_time = self.applying.lock().await;
        let current = self.current(name).await?;
        let version = current.as_ref().map_or(0, |current| current.version);
        if !options.expected.is_met(version) {
            return Err(ServiceError::Changed(format!("the application `{name}`")));
        }
        let newest = match &current {
            Some(current) => current.version,
            None => self.records.application_history(name).await?.first().map_or(0, |newest| newest.version),
        };
        let text = self.with_secrets(name, text).await?;
        let compiled = self.compile(text.clone(), newest + 1).await.map_err(ServiceError::Invalid)?;
        if compiled.application.name != *name {
            let message = format!("is `{}`, but `{name}` is to be applied", compiled.application.name);
            return Err(ServiceError::invalid("application", message));
        }
        let problems = self.missing_audiences(&compiled.application).await?;
        if !problems.is_empty() {
            return Err(ServiceError::Invalid(problems));
        }
        let warnings = self.warnings(&text, &compiled);
        let unchanged = current.as_ref().is_some_and(|current| current.text == text);
        // A version may be stored and not run, if something broke in between; then applying it again runs it.
        let running = self.pipeline.application(name).is_some_and(|running| running.version == version);
        if unchanged && running {
            let differences = Vec::new();
            return Ok(Applied { name: name.clone(), version, running, created: false, differences, warnings });
        }
        let differences = match &current {
            Some(current) => match self.pipeline.version(name, current.version).await? {
                Some(running) => definition::difference(&running.application, &compiled.application),
                // What is stored cannot be read any more, so nothing can be compared.
                None => Vec::new(),
            },
            None => Vec::new(),
        };
        let refused: Vec<Difference> = differences
            .iter()
            .filter(|found| found.drops.as_ref().is_some_and(|path| !options.allow_drops.contains(path)))
            .cloned()
            .collect();
        if options.dry_run {
            let created = current.is_none();
            return Ok(Applied { name: name.clone(), version, running, created, differences, warnings });
        }
        if !refused.is_empty() {
            return Err(ServiceError::WouldDrop(refused));
        }
        // Before the version is stored: one that cannot run must not become the present one.
        let prepared = self.pipeline.prepare(&compiled).map_err(run_error)?;
        let version = self.records.put_application(name, &text, caller.key(), self.clock.now()).await?;
        let compiled = if compiled.version == version {
            compiled
        } else {
            self.compile(text, version).await.map_err(ServiceError::Invalid)?
        };
        self.pipeline.run_prepared(Arc::new(compiled), prepared).await.map_err(run_error)?;
        tracing::info!(application = %name, version, by = caller.key(), "applied a definition");
        let created = current.is_none();
        Ok(Applied { name: name.clone(), version, running: true, created, differences, warnings })
    }

    /// Removes an application with its subscriptions. Its history stays.
    ///
    /// # Errors
    /// There is none of this name.
    pub async fn remove_application(&self, caller: &Caller, name: &Name) -> Result<(), ServiceError> {
        caller.needs(Scope::ApplicationsWrite)?;
        let _one_at_a_time = self.applying.lock().await;
        if self.current(name).await?.is_none() {
            return Err(ServiceError::no_application(name));
        }
        self.pipeline.stop(name).await;
        self.records.remove_application(name, self.clock.now()).await?;
        tracing::info!(application = %name, by = caller.key(), "removed an application");
        Ok(())
    }

    /// Sends failed event batches to be matched again. Gives how many there were.
    ///
    /// # Errors
    /// The application does not run, or the journal does not answer.
    pub async fn rematch(&self, caller: &Caller, name: &Name) -> Result<u64, ServiceError> {
        caller.needs(Scope::OperationsWrite)?;
        self.running(name)?;
        Ok(self.pipeline.rematch(name).await?)
    }

    /// Asks every channel for a sign of life: the far side's words, or what is wrong.
    ///
    /// # Errors
    /// The application does not run.
    pub async fn probe_channels(
        &self,
        caller: &Caller,
        name: &Name,
    ) -> Result<Vec<(Name, Result<String, String>)>, ServiceError> {
        caller.needs(Scope::OperationsWrite)?;
        self.running(name)?;
        Ok(self.pipeline.probe_channels(name).await)
    }

    pub(crate) fn running(&self, name: &Name) -> Result<Arc<Compiled>, ServiceError> {
        self.pipeline.application(name).ok_or_else(|| ServiceError::no_application(name))
    }

    /// A definition with the secrets that are stored for its masks.
    pub(crate) async fn with_secrets(&self, name: &Name, text: String) -> Result<String, ServiceError> {
        if !text.contains(secrets::MASK) {
            return Ok(text);
        }
        let history = self.records.application_history(name).await?;
        let stored: Vec<&str> = history.iter().map(|version| version.text.as_str()).collect();
        Ok(secrets::restore(secrets::Language::Application, &text, &stored))
    }

    /// Audiences that are no segments.
    async fn missing_audiences(&self, application: &Application) -> Result<Vec<Problem>, ServiceError> {
        let mut problems = Vec::new();
        for (rule, segment) in application.rules.iter().filter_map(|(name, rule)| Some((name, rule.audience.as_ref()?)))
        {
            if self.records.segment(segment).await?.is_none() {
                let message = format!("names the segment `{segment}`, which does not exist");
                let hint = format!("store it first: tocsin segments put {segment} FILTER");
                problems.push(Problem::at(format!("rules.{rule}.audience"), message).hint(hint));
            }
        }
        Ok(problems)
    }

    pub(crate) async fn current(&self, name: &Name) -> Result<Option<ApplicationVersion>, ServiceError> {
        Ok(self.records.application(name, None).await?)
    }

    /// Compiles off the threads that serve connections: a large definition takes a while.
    pub(crate) async fn compile(&self, text: String, version: u32) -> Result<Compiled, Vec<Problem>> {
        let environment = self.pipeline.environment().clone();
        beside(move || tocsin_pipeline::compile_text(&text, version, &*environment)).await
    }
}

/// As `Service::compile`, without the environment.
pub(crate) async fn compile_sealed(text: String) -> Result<Compiled, Vec<Problem>> {
    beside(move || tocsin_pipeline::compile_sealed(&text, 0)).await
}

async fn beside(
    work: impl FnOnce() -> Result<Compiled, Vec<Problem>> + Send + 'static,
) -> Result<Compiled, Vec<Problem>> {
    match tokio::task::spawn_blocking(work).await {
        Ok(compiled) => compiled,
        Err(_) => {
            Err(vec![Problem::at("", "could not be compiled: the compiler broke; please report this definition")])
        }
    }
}

fn without_secrets(stored: ApplicationVersion) -> ApplicationVersion {
    let text = secrets::redact(secrets::Language::Application, &stored.text);
    ApplicationVersion { text, ..stored }
}

fn run_error(error: RunError) -> ServiceError {
    match error {
        RunError::Problems(problems) => ServiceError::Invalid(problems),
        RunError::Store(error) => error.into(),
        error @ RunError::Stopped => ServiceError::Unavailable(error.into()),
    }
}
