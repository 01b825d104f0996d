//! Components that an operator has switched off: stored in the journal, effective in all steps at once and across
//! restarts.
//!
//! Work in progress is finished first; until then the switch is pending.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use tocsin_model::id::Name;
use tocsin_store::{
    error::StoreError,
    journal::{Component, OperatorActions, Role, Switch, SwitchState},
};
use tokio::sync::watch;

/// A switched-off component.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Switched {
    /// The switch.
    pub switch: Switch,
    /// Whether work begun before is still in progress.
    pub pending: bool,
}

/// All switches.
pub(crate) struct Switches {
    off: Mutex<BTreeMap<Component, Switch>>,
    changes: watch::Sender<u64>,
    /// Number of quanta in progress, by application.
    matching: Mutex<BTreeMap<Name, usize>>,
}

impl Default for Switches {
    fn default() -> Self {
        Switches { off: Mutex::default(), changes: watch::Sender::new(0), matching: Mutex::default() }
    }
}

impl Switches {
    /// Loads the switches from the journal.
    pub async fn load(&self, journal: &dyn OperatorActions) -> Result<(), StoreError> {
        let kept = journal.switches().await?;
        *self.off.lock() = kept.into_iter().map(|switch| (switch.component.clone(), switch)).collect();
        self.notify();
        Ok(())
    }

    /// Switches a component off. The caller has already stored the switch.
    pub fn put(&self, switch: Switch) {
        tracing::warn!(component = %switch.component, state = switch.state.word(), by = switch.by, reason = switch.reason, "a component is switched off");
        self.off.lock().insert(switch.component.clone(), switch);
        self.notify();
    }

    /// Switches a component on.
    pub fn remove(&self, component: &Component) -> bool {
        let was_off = self.off.lock().remove(component).is_some();
        if was_off {
            tracing::info!(%component, "a component is switched on again");
            self.notify();
        }
        was_off
    }

    fn notify(&self) {
        metrics::gauge!("tocsin_pipeline_switched_off").set(self.off.lock().len() as f64);
        self.changes.send_modify(|count| *count += 1);
    }

    /// Subscribes to changes of switches.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// All switches, by text.
    pub fn list(&self) -> Vec<Switch> {
        let mut all: Vec<Switch> = self.off.lock().values().cloned().collect();
        all.sort_by_cached_key(|switch| switch.component.to_string());
        all
    }

    /// Reason why events of a class are not accepted, if they are not.
    pub fn refuse(&self, application: &Name, class: &Name) -> Option<String> {
        let off = self.off.lock();
        if off.is_empty() {
            return None;
        }
        let parts = [
            Component::Role(Role::Accept),
            Component::Application(application.clone()),
            Component::EventClass(application.clone(), class.clone()),
        ];
        let mut found = parts.iter().filter_map(|part| off.get(part));
        let found = found.find(|switch| switch.state == SwitchState::Disabled);
        found.map(|switch| format!("`{}` is disabled by {}: {}", switch.component, switch.by, switch.reason))
    }

    /// Whether matching is switched off.
    pub fn pauses_matching(&self) -> bool {
        self.off.lock().contains_key(&Component::Role(Role::Match))
    }

    /// Applications whose events and notifications are held.
    pub fn held(&self) -> Vec<Name> {
        let off = self.off.lock();
        let application = |component: &Component| match component {
            Component::Application(name) => Some(name.clone()),
            _ => None,
        };
        off.keys().filter_map(application).collect()
    }

    /// Whether work for a channel is held.
    pub fn pauses_delivery(&self, application: &Name, channel: &Name) -> bool {
        self.holds(&[
            Component::Role(Role::Deliver),
            Component::Application(application.clone()),
            Component::Channel(application.clone(), channel.clone()),
        ])
    }

    /// Whether a source is held.
    pub fn pauses_source(&self, application: &Name, source: &Name) -> bool {
        self.holds(&[
            Component::Role(Role::Sources),
            Component::Application(application.clone()),
            Component::Source(application.clone(), source.clone()),
        ])
    }

    fn holds(&self, parts: &[Component]) -> bool {
        let off = self.off.lock();
        !off.is_empty() && parts.iter().any(|part| off.contains_key(part))
    }

    /// Counts a quantum of an application as in progress.
    pub fn begin_matching(&self, application: &Name) {
        *self.matching.lock().entry(application.clone()).or_default() += 1;
    }

    /// Counts a quantum as committed or released.
    pub fn end_matching(&self, application: &Name) {
        let mut matching = self.matching.lock();
        if let Some(count) = matching.get_mut(application) {
            *count -= 1;
            if *count == 0 {
                matching.remove(application);
            }
        }
    }

    /// Resets the count of an application.
    pub fn forget_matching(&self, application: &Name) {
        self.matching.lock().remove(application);
    }

    /// Whether a quantum of an application, or of any, is in progress.
    pub fn is_matching(&self, application: Option<&Name>) -> bool {
        let matching = self.matching.lock();
        application.map_or(!matching.is_empty(), |name| matching.contains_key(name))
    }
}
