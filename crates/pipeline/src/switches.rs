//! What an operator has switched off: kept by the journal, known to all steps at once, and over restarts.
//!
//! Nothing is broken off: what is begun is finished first, and until then the switch is pending.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use tocsin_model::id::Name;
use tocsin_store::{
    error::StoreError,
    journal::{Component, Journal, Role, Switch, SwitchState},
};
use tokio::sync::watch;

/// Something that is switched off, and how far that has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Switched {
    /// The switch.
    pub switch: Switch,
    /// Whether something that was begun before is still under way.
    pub pending: bool,
}

/// All that is switched off.
pub(crate) struct Switches {
    off: Mutex<BTreeMap<Component, Switch>>,
    changes: watch::Sender<u64>,
    /// The count of quanta of an application that are not committed yet.
    matching: Mutex<BTreeMap<Name, usize>>,
}

impl Default for Switches {
    fn default() -> Self {
        Switches { off: Mutex::default(), changes: watch::Sender::new(0), matching: Mutex::default() }
    }
}

impl Switches {
    /// Reads what the journal keeps.
    pub async fn load(&self, journal: &dyn Journal) -> Result<(), StoreError> {
        let kept = journal.switches().await?;
        *self.off.lock() = kept.into_iter().map(|switch| (switch.component.clone(), switch)).collect();
        self.tell();
        Ok(())
    }

    /// Switches something off that the journal keeps as such already.
    pub fn put(&self, switch: Switch) {
        tracing::warn!(component = %switch.component, state = switch.state.word(), by = switch.by, reason = switch.reason, "something is switched off");
        self.off.lock().insert(switch.component.clone(), switch);
        self.tell();
    }

    /// Switches something on.
    pub fn remove(&self, component: &Component) -> bool {
        let was_off = self.off.lock().remove(component).is_some();
        if was_off {
            tracing::info!(%component, "something is switched on again");
            self.tell();
        }
        was_off
    }

    fn tell(&self) {
        metrics::gauge!("pipeline_switched_off").set(self.off.lock().len() as f64);
        self.changes.send_modify(|count| *count += 1);
    }

    /// Each receiver wakes up when something is switched after its last look.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Everything that is off, by its text.
    pub fn list(&self) -> Vec<Switch> {
        let mut all: Vec<Switch> = self.off.lock().values().cloned().collect();
        all.sort_by_cached_key(|switch| switch.component.to_string());
        all
    }

    /// Why events of a class are not accepted, if they are not.
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

    /// Whether nothing is matched.
    pub fn holds_matching(&self) -> bool {
        self.off.lock().contains_key(&Component::Role(Role::Match))
    }

    /// The applications whose events and notifications wait.
    pub fn held(&self) -> Vec<Name> {
        let off = self.off.lock();
        let application = |component: &Component| match component {
            Component::Application(name) => Some(name.clone()),
            _ => None,
        };
        off.keys().filter_map(application).collect()
    }

    /// Whether work for a channel waits.
    pub fn holds_delivery(&self, application: &Name, channel: &Name) -> bool {
        self.holds(&[
            Component::Role(Role::Deliver),
            Component::Application(application.clone()),
            Component::Channel(application.clone(), channel.clone()),
        ])
    }

    /// Whether a source waits.
    pub fn holds_source(&self, application: &Name, source: &Name) -> bool {
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

    /// A quantum of an application is under way.
    pub fn begin_matching(&self, application: &Name) {
        *self.matching.lock().entry(application.clone()).or_default() += 1;
    }

    /// A quantum of it is committed or given back.
    pub fn end_matching(&self, application: &Name) {
        let mut matching = self.matching.lock();
        if let Some(count) = matching.get_mut(application) {
            *count -= 1;
            if *count == 0 {
                matching.remove(application);
            }
        }
    }

    /// None of its quanta is under way.
    pub fn forget_matching(&self, application: &Name) {
        self.matching.lock().remove(application);
    }

    /// Whether events of an application, or of any, are being matched.
    pub fn is_matching(&self, application: Option<&Name>) -> bool {
        let matching = self.matching.lock();
        application.map_or(!matching.is_empty(), |name| matching.contains_key(name))
    }
}
