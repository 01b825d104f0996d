//! Switches of roles, applications, event classes, sources and channels; and immediate operator actions: retention,
//! backups.

use tocsin_exchange::intake::IntakeState;
use tocsin_model::{
    id::Name,
    problem::{Code, Problem},
};
use tocsin_pipeline::Pipeline;
pub use tocsin_pipeline::Switched;
use tocsin_store::{
    audit::Image,
    journal::{Component, Role, Switch, SwitchState},
    sqlite::backup::{self, Manifest},
};

use crate::{
    Service,
    error::ServiceError,
    firings::check_reason,
    keys::{Caller, Scope},
};

/// A backup that was taken.
#[derive(Debug, Clone)]
pub struct CreatedBackup {
    /// Folder of the backup.
    pub folder: String,
    /// Manifest of the backup.
    pub manifest: Manifest,
}

/// Intake of the exchanges by the switches `role:accept` and `role:sources`.
pub fn intake(pipeline: &Pipeline) -> IntakeState {
    let switches = pipeline.switches();
    let reason = |role: Role| {
        let found =
            switches.iter().map(|found| &found.switch).find(|switch| switch.component == Component::Role(role))?;
        Some(format!("`{}` is {} by {}: {}", found.component, found.state.word(), found.by, found.reason))
    };
    IntakeState { refusal: reason(Role::Accept), hold: reason(Role::Sources) }
}

impl Service {
    /// Everything that is switched off, by its text.
    ///
    /// # Errors
    /// The scope `operations:read` is missing.
    pub fn switches(&self, caller: &Caller) -> Result<Vec<Switched>, ServiceError> {
        caller.needs(Scope::OperationsRead)?;
        let mut switches = self.pipeline.switches();
        switches.retain(|switched| caller.check_component(&switched.switch.component).is_ok());
        Ok(switches)
    }

    /// Pauses or disables a component, or changes its switch. Work in progress is completed first.
    ///
    /// # Errors
    /// The scope `operations:write` is missing; the component does not exist, or does not support this state.
    pub async fn switch_off(
        &self,
        caller: &Caller,
        component: Component,
        state: SwitchState,
        reason: &str,
    ) -> Result<(), ServiceError> {
        caller.needs(Scope::OperationsWrite)?;
        caller.check_component(&component)?;
        self.check_switch(&component, state)?;
        let reason = check_reason(reason)?;
        let (by, since) = (caller.key().to_owned(), self.clock.now());
        self.pipeline.switch_off(Switch { component, state, by, reason: reason.to_owned(), since }).await?;
        self.update_intake();
        Ok(())
    }

    /// Switches a component on again. Returns whether it was off.
    ///
    /// # Errors
    /// The scope `operations:write` is missing, or the store failed.
    pub async fn switch_on(&self, caller: &Caller, component: &Component) -> Result<bool, ServiceError> {
        caller.needs(Scope::OperationsWrite)?;
        caller.check_component(component)?;
        let was_off = self.pipeline.switch_on(component).await?;
        self.update_intake();
        Ok(was_off)
    }

    /// Closes or opens the intake of the exchanges with that of the applications.
    fn update_intake(&self) {
        if let Some(exchanges) = &self.exchanges {
            exchanges.intake.set_state(intake(&self.pipeline));
        }
    }

    /// Removes data past its retention now, at any hour. Returns the number of batches.
    ///
    /// # Errors
    /// The scope `operations:write` is missing, or the store failed.
    pub async fn run_retention(&self, caller: &Caller) -> Result<u64, ServiceError> {
        caller.needs(Scope::OperationsWrite)?;
        let batches = self.pipeline.prune().await?;
        self.prune_audit().await?;
        tracing::info!(batches, by = caller.key(), "retention was run by hand");
        Ok(batches)
    }

    /// Copies the data folder as of one moment into the folder `backups` in it, under a name.
    ///
    /// # Errors
    /// The scope `admin` is missing; there is one of this name; there is no data folder, or no room in it.
    pub async fn back_up(&self, caller: &Caller, name: &Name) -> Result<CreatedBackup, ServiceError> {
        caller.needs(Scope::Admin)?;
        let Some(space) = &self.free_space else {
            return Err(ServiceError::Missing("a data folder, of which a backup could be taken,".to_owned()));
        };
        let (folder, to) = (space.folder.clone(), space.folder.join("backups").join(name.as_str()));
        let (version, now, shown) = (self.version, self.clock.now(), to.display().to_string());
        let reserve = space.bytes_min;
        self.record_in_audit(Image::of("backup", name, None, None)).await?;
        let taking = tokio::task::spawn_blocking(move || backup::back_up(&folder, &to, version, now, reserve));
        let manifest = taking.await.map_err(|error| ServiceError::Unavailable(error.into()))??;
        tracing::info!(folder = shown, by = caller.key(), "a backup was taken");
        Ok(CreatedBackup { folder: shown, manifest })
    }

    fn check_switch(&self, component: &Component, state: SwitchState) -> Result<(), ServiceError> {
        if let Some(name) = component.application() {
            let compiled = self.running(name)?;
            let application = &compiled.application;
            let is_there = match component {
                Component::EventClass(_, class) => application.events.contains_key(class),
                Component::Source(_, source) => application.sources.contains_key(source),
                Component::Channel(_, channel) => application.channels.contains_key(channel),
                Component::Role(_) | Component::Application(_) => true,
            };
            if !is_there {
                return Err(ServiceError::Missing(format!("`{component}`")));
            }
        }
        let (can_pause, can_disable) = match component {
            Component::Role(Role::Accept) | Component::EventClass(..) => (false, true),
            Component::Application(_) => (true, true),
            Component::Role(_) | Component::Source(..) | Component::Channel(..) => (true, false),
        };
        let (can, other) = match state {
            SwitchState::Paused => (can_pause, "disabled"),
            SwitchState::Disabled => (can_disable, "paused"),
        };
        if can {
            return Ok(());
        }
        let problem = Problem::new(Code::NotApplicable, "state", format!("`{component}` cannot be {}", state.word()))
            .param("value", component.to_string());
        Err(ServiceError::Invalid(vec![problem.hint(format!("it can be {other}"))]))
    }
}
