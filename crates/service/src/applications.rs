//! Definitions of applications: check, apply, history, remove.

use std::{collections::BTreeSet, sync::Arc};

use tocsin_model::{
    application::Application,
    definition::{self, Difference, secrets},
    id::Name,
    problem::{Code, Problem, closest},
};
use tocsin_pipeline::{Compiled, RunError};
use tocsin_store::{
    audit,
    records::{ApplicationVersion, NewApplicationVersion},
};

use crate::{
    Service,
    error::ServiceError,
    keys::{Caller, Scope},
    resources::Resource,
    schedules::schedule_warnings,
};

/// Explanation of a rule's evaluation.
pub use tocsin_matching::rule::RuleExplanation;
/// A running version of an application.
pub use tocsin_pipeline::Compiled as Running;

/// Result of checking a definition.
#[derive(Debug, Clone, Default)]
pub struct Checked {
    /// Errors; empty if the definition can be applied.
    pub problems: Vec<Problem>,
    /// Warnings about valid but costly definitions.
    pub warnings: Vec<Problem>,
    /// Explanation of each rule's evaluation.
    pub rules: Vec<RuleExplanation>,
}

/// Options of an apply.
#[derive(Debug, Clone, Default)]
pub struct ApplyOptions {
    /// Dry run: report the effect only.
    pub dry_run: bool,
    /// Paths whose data may be dropped.
    pub allow_drops: BTreeSet<String>,
    /// Version that the caller expects to be running.
    pub expected: Expected,
}

/// Precondition of an apply: the running version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Expected {
    /// No condition.
    #[default]
    Any,
    /// Any version.
    Some,
    /// This version; 0 for none yet.
    Version(u32),
}

impl Expected {
    pub(crate) fn matches(self, version: u32) -> bool {
        match self {
            Expected::Any => true,
            Expected::Some => version > 0,
            Expected::Version(expected) => expected == version,
        }
    }
}

/// Result of an apply or dry run.
#[derive(Debug, Clone)]
pub struct Applied {
    /// The application.
    pub name: Name,
    /// Version that runs now, or ran before a dry run (0 if none).
    pub version: u32,
    /// Whether this version is running.
    pub running: bool,
    /// Whether the application is new.
    pub created: bool,
    /// Difference from the running version.
    pub differences: Vec<Difference>,
    /// See [`Checked::warnings`].
    pub warnings: Vec<Problem>,
}

impl Service {
    /// Returns the current version of every application, by name.
    ///
    /// # Errors
    /// The scope `applications:read` is missing, or the records are unavailable.
    pub async fn applications(
        &self,
        caller: &Caller,
    ) -> Result<Vec<(ApplicationVersion, Option<Arc<Compiled>>)>, ServiceError> {
        caller.needs(Scope::ApplicationsRead)?;
        let stored = self.application_store.applications().await?.into_iter().map(without_secrets);
        let reached = stored.filter(|version| caller.reaches(&Resource::Application(version.name.clone())));
        Ok(reached.map(|version| (version.clone(), self.pipeline.application(&version.name))).collect())
    }

    /// Returns the current version of an application with secrets masked, and its status.
    ///
    /// # Errors
    /// The application does not exist.
    pub async fn application(
        &self,
        caller: &Caller,
        name: &Name,
    ) -> Result<(ApplicationVersion, Option<Arc<Compiled>>), ServiceError> {
        caller.needs(Scope::ApplicationsRead)?;
        let stored = self.current(name).await?.ok_or_else(|| ServiceError::no_application(name))?;
        Ok((without_secrets(stored), self.pipeline.application(name)))
    }

    /// Returns the version of an application, for a conditional apply.
    ///
    /// # Errors
    /// The application does not exist.
    pub async fn application_version(&self, caller: &Caller, name: &Name) -> Result<u64, ServiceError> {
        caller.needs(Scope::ApplicationsWrite)?;
        let stored = self.current(name).await?.ok_or_else(|| ServiceError::no_application(name))?;
        Ok(stored.version.into())
    }

    /// Returns all versions of an application, newest first, with secrets masked, and the running one. They are kept
    /// when the application is removed.
    ///
    /// # Errors
    /// No application ever had this name.
    pub async fn application_history(
        &self,
        caller: &Caller,
        name: &Name,
    ) -> Result<(Vec<ApplicationVersion>, Option<Arc<Compiled>>), ServiceError> {
        caller.needs(Scope::ApplicationsRead)?;
        let history = self.application_store.application_history(name).await?;
        if history.is_empty() {
            return Err(ServiceError::no_application(name));
        }
        Ok((history.into_iter().map(without_secrets).collect(), self.pipeline.application(name)))
    }

    /// Explains how each rule of the running version is evaluated.
    ///
    /// # Errors
    /// The application is not running.
    pub fn application_rules(&self, caller: &Caller, name: &Name) -> Result<Vec<RuleExplanation>, ServiceError> {
        caller.needs(Scope::ApplicationsRead)?;
        self.running(name)?;
        self.pipeline.explain(name).ok_or_else(|| ServiceError::Missing(format!("the application `{name}`")))
    }

    /// Checks a definition without applying it, and returns all findings. For callers who may not apply it, values of
    /// environment variables stay hidden: options that contain a variable are not checked.
    ///
    /// # Errors
    /// Only a missing scope is an error; problems of the text are part of the result.
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
            Err(mut problems) => {
                let environment = self.pipeline.environment().clone();
                let read = text.clone();
                let read = move || definition::read_partially(&read, &*environment, Vec::new()).application;
                let missing = match tokio::task::spawn_blocking(read).await.ok().flatten() {
                    Some(application) => self.missing_audiences(&application).await?,
                    None => Vec::new(),
                };
                let is_new = |found: &Problem| !problems.iter().any(|known| known.path == found.path);
                let missing: Vec<Problem> = missing.into_iter().filter(is_new).collect();
                problems.extend(definition::locate(&text, missing));
                Checked { problems: definition::in_order(problems), ..Checked::default() }
            }
        })
    }

    /// Warnings about valid definitions.
    fn warnings(&self, text: &str, compiled: &Compiled) -> Vec<Problem> {
        let mut warnings = compiled.warnings();
        warnings.extend(schedule_warnings(&compiled.application, self.clock.now()));
        warnings.extend(self.pipeline.closed_sources(compiled));
        definition::locate(text, warnings)
    }

    /// Applies a definition: it becomes the running version. Applying the same text again changes nothing. Masked
    /// secrets keep their stored values.
    ///
    /// An apply never removes subscriptions: those of a removed class stay stored, are not matched, and return with
    /// their class. Data that would become invisible must be allowed by name.
    ///
    /// # Errors
    /// `Invalid` with every problem of the text, `WouldDrop`, `Changed` if another version is running than expected.
    pub async fn apply(
        self: &Arc<Self>,
        caller: &Caller,
        name: &Name,
        text: String,
        options: ApplyOptions,
    ) -> Result<Applied, ServiceError> {
        caller.needs(Scope::ApplicationsWrite)?;
        if !options.dry_run && !options.allow_drops.is_empty() {
            caller.needs_recent_login(self.clock.now())?;
        }
        let (service, caller, name) = (self.clone(), caller.clone(), name.clone());
        run_to_completion(async move { service.apply_change(caller.key(), &name, text, options).await }).await
    }

    /// Applies a definition that the platform generates. Data of removed classes is kept.
    pub(crate) async fn apply_own(
        self: &Arc<Self>,
        name: &Name,
        text: String,
        author: &'static str,
    ) -> Result<Applied, ServiceError> {
        let (service, name) = (self.clone(), name.clone());
        let options = ApplyOptions::default();
        run_to_completion(async move { service.apply_change(author, &name, text, options).await }).await
    }

    async fn apply_change(
        &self,
        author: &str,
        name: &Name,
        text: String,
        options: ApplyOptions,
    ) -> Result<Applied, ServiceError> {
        let _one_at_a_time = self.applying.lock().await;
        let current = self.current(name).await?;
        let version = current.as_ref().map_or(0, |current| current.version);
        if !options.expected.matches(version) {
            return Err(ServiceError::Changed(format!("the application `{name}`")));
        }
        let newest = match &current {
            Some(current) => current.version,
            None => self.application_store.application_history(name).await?.first().map_or(0, |newest| newest.version),
        };
        let text = self.with_secrets(name, text).await?;
        let compiled = self.compile(text.clone(), newest + 1).await.map_err(ServiceError::Invalid)?;
        if compiled.application.name != *name {
            let message = format!("is `{}`, but `{name}` is to be applied", compiled.application.name);
            return Err(ServiceError::invalid(Code::Mismatch, "application", message));
        }
        let problems = self.missing_audiences(&compiled.application).await?;
        if !problems.is_empty() {
            return Err(ServiceError::Invalid(problems));
        }
        let mut warnings = self.warnings(&text, &compiled);
        let unchanged = current.as_ref().is_some_and(|current| current.text == text);
        // After a crash a version may be stored and not running; applying it again runs it.
        let running = self.pipeline.application(name).is_some_and(|running| running.version == version);
        if unchanged && running {
            let differences = Vec::new();
            warnings.extend(unused_allowances(&options.allow_drops, &differences));
            return Ok(Applied { name: name.clone(), version, running, created: false, differences, warnings });
        }
        let differences = match &current {
            Some(current) => match self.pipeline.version(name, current.version).await? {
                Some(running) => definition::difference(&running.application, &compiled.application),
                // The stored version cannot be read any more, so there is no difference to show.
                None => Vec::new(),
            },
            None => Vec::new(),
        };
        warnings.extend(unused_allowances(&options.allow_drops, &differences));
        let refused: Vec<Difference> = differences
            .iter()
            .filter(|found| found.drops.as_ref().is_some_and(|path| !options.allow_drops.contains(path)))
            .cloned()
            .collect();
        if options.dry_run {
            let problems = self.pipeline.resources_not_allowed(&compiled);
            if !problems.is_empty() {
                return Err(ServiceError::Invalid(problems));
            }
            let created = current.is_none();
            return Ok(Applied { name: name.clone(), version, running, created, differences, warnings });
        }
        if !refused.is_empty() {
            return Err(ServiceError::WouldDrop(refused));
        }
        // Opened before the version is stored: a version that cannot run must not become current.
        let prepared = self.pipeline.prepare(&compiled).map_err(run_error)?;
        let version = self
            .application_store
            .put_application(NewApplicationVersion { name, text: &text, author, now: self.clock.now() })
            .await?;
        let compiled = if compiled.version == version {
            compiled
        } else {
            self.compile(text, version).await.map_err(ServiceError::Invalid)?
        };
        self.pipeline.run_prepared(Arc::new(compiled), prepared).await.map_err(run_error)?;
        tracing::info!(application = %name, version, by = author, "applied a definition");
        let created = current.is_none();
        Ok(Applied { name: name.clone(), version, running: true, created, differences, warnings })
    }

    /// Removes an application with its subscriptions, and ends its open work. Its version history is kept.
    ///
    /// # Errors
    /// The application does not exist.
    pub async fn remove_application(self: &Arc<Self>, caller: &Caller, name: &Name) -> Result<(), ServiceError> {
        caller.needs(Scope::ApplicationsWrite)?;
        caller.needs_recent_login(self.clock.now())?;
        let (service, caller, name) = (self.clone(), caller.clone(), name.clone());
        run_to_completion(async move { service.remove_change(&caller, &name).await }).await
    }

    async fn remove_change(&self, caller: &Caller, name: &Name) -> Result<(), ServiceError> {
        let _one_at_a_time = self.applying.lock().await;
        if self.current(name).await?.is_none() {
            return Err(ServiceError::no_application(name));
        }
        self.pipeline.stop(name).await;
        self.application_store.remove_application(name, self.clock.now()).await?;
        tracing::info!(application = %name, by = caller.key(), "removed an application");
        if let Err(error) = self.pipeline.end_removed(name).await {
            tracing::error!(application = %name, %error, "its open work is not ended yet; upkeep repeats it");
        }
        Ok(())
    }

    /// Queues failed event batches for matching. Returns how many there were.
    ///
    /// # Errors
    /// The application is not running, or the journal is unavailable.
    pub async fn rematch(&self, caller: &Caller, name: &Name) -> Result<u64, ServiceError> {
        caller.needs(Scope::OperationsWrite)?;
        self.running(name)?;
        Ok(self.pipeline.rematch(name).await?)
    }

    /// Probes every channel. Returns the receiver's reply, or the problem.
    ///
    /// # Errors
    /// The application is not running.
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
        self.pipeline.application(name).ok_or_else(|| self.no_running(name))
    }

    /// The error of an application that does not run: it could not be started, or there is none.
    pub(crate) fn no_running(&self, name: &Name) -> ServiceError {
        let is_failed = self.pipeline.failed_applications().iter().any(|(failed, _)| failed == name);
        match is_failed {
            true => ServiceError::not_running(format!("the application `{name}`")),
            false => ServiceError::no_application(name),
        }
    }

    /// Replaces the masks in a definition by the stored secrets.
    pub(crate) async fn with_secrets(&self, name: &Name, text: String) -> Result<String, ServiceError> {
        if !text.contains(secrets::MASK) {
            return Ok(text);
        }
        let history = self.application_store.application_history(name).await?;
        let stored: Vec<&str> = history.iter().map(|version| version.text.as_str()).collect();
        Ok(secrets::restore(secrets::Language::Application, &text, &stored, tocsin_pipeline::option_secrets()))
    }

    /// Audiences without a segment.
    async fn missing_audiences(&self, application: &Application) -> Result<Vec<Problem>, ServiceError> {
        let mut problems = Vec::new();
        for (rule, segment) in application.rules.iter().filter_map(|(name, rule)| Some((name, rule.audience.as_ref()?)))
        {
            if self.segment_store.segment(segment).await?.is_none() {
                let message = format!("names the segment `{segment}`, which does not exist");
                let hint = format!("store it first: tocsin segments put {segment} FILTER");
                problems.push(
                    Problem::new(Code::UnknownReference, format!("rules.{rule}.audience"), message)
                        .param("kind", "segment")
                        .hint(hint),
                );
            }
        }
        Ok(problems)
    }

    pub(crate) async fn current(&self, name: &Name) -> Result<Option<ApplicationVersion>, ServiceError> {
        Ok(self.application_store.application(name, None).await?)
    }

    /// Compiles on another thread: a large definition takes a while.
    pub(crate) async fn compile(&self, text: String, version: u32) -> Result<Compiled, Vec<Problem>> {
        let environment = self.pipeline.environment().clone();
        compile_on_thread(move || tocsin_pipeline::compile_text(&text, version, &*environment)).await
    }
}

/// Warnings about allowed drops that this apply does not need: perhaps misspelt names. They are no errors, so that an
/// apply can be repeated with the same arguments.
fn unused_allowances(allowed: &BTreeSet<String>, differences: &[Difference]) -> Vec<Problem> {
    let dropped: Vec<&str> = differences.iter().filter_map(|found| found.drops.as_deref()).collect();
    let unused = allowed.iter().filter(|path| !dropped.contains(&path.as_str()));
    let warning = |path: &String| {
        let message = format!("names `{path}`, of which this definition drops no data");
        let warning = Problem::new(Code::UnknownReference, "allow_drop", message).param("value", path.as_str());
        match closest(path, dropped.iter().copied()) {
            Some(meant) => warning.param("meant", meant).hint(format!("did you mean `{meant}`?")),
            None => warning,
        }
    };
    unused.map(warning).collect()
}

/// As `Service::compile`, without the environment.
pub(crate) async fn compile_sealed(text: String) -> Result<Compiled, Vec<Problem>> {
    compile_on_thread(move || tocsin_pipeline::compile_sealed(&text, 0)).await
}

/// Runs a change to its end, also when the caller stops waiting: a client that disconnects leaves nothing half done.
async fn run_to_completion<T: Send + 'static>(change: impl Future<Output = T> + Send + 'static) -> T {
    match tokio::spawn(audit::inherit(change)).await {
        Ok(done) => done,
        Err(broken) => match broken.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime is shutting down, and this task with it.
            Err(_) => std::future::pending().await,
        },
    }
}

async fn compile_on_thread(
    work: impl FnOnce() -> Result<Compiled, Vec<Problem>> + Send + 'static,
) -> Result<Compiled, Vec<Problem>> {
    match tokio::task::spawn_blocking(work).await {
        Ok(compiled) => compiled,
        Err(_) => Err(vec![Problem::new(
            Code::Internal,
            "",
            "could not be compiled: the compiler broke; please report this definition",
        )]),
    }
}

fn without_secrets(stored: ApplicationVersion) -> ApplicationVersion {
    let text = secrets::redact(secrets::Language::Application, &stored.text, tocsin_pipeline::option_secrets());
    ApplicationVersion { text, ..stored }
}

fn run_error(error: RunError) -> ServiceError {
    match error {
        RunError::Problems(problems) => ServiceError::Invalid(problems),
        RunError::Store(error) => error.into(),
        error @ RunError::Stopped => ServiceError::Unavailable(error.into()),
    }
}
