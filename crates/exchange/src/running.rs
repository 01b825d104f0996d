//! Running exchanges, and the routing of a message to legs.

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::RwLock;
use tocsin_model::{
    exchange::{MessageKind, Mode, PortState, ReceivePort},
    id::Name,
};
use tocsin_store::spool::{Head, NewLeg};

use crate::{
    compile::CompiledExchange, error::ReceiveError, flow::Flow, meters::ReceiveMeters, promote, send_port::SendPort,
    track::ActiveTracking,
};

/// Maximum chain of replies, each of which is routed like a message.
const HOPS_MAX: u32 = 16;

/// A running exchange.
pub struct RunningExchange {
    /// The compiled definition.
    pub compiled: Arc<CompiledExchange>,
    /// The version of its definition.
    pub version: u32,
    /// The send ports. They outlive a change of the definition, with their attempts in progress.
    pub(crate) send_ports: BTreeMap<Name, Arc<SendPort>>,
    /// Removed send ports, until their attempts in progress end.
    pub(crate) leaving: BTreeMap<Name, Arc<SendPort>>,
    /// Flow control. It outlives a change of the definition.
    pub(crate) flow: Arc<Flow>,
    /// Effective tracking of its ports.
    pub(crate) tracks: RwLock<Arc<ActiveTracking>>,
    /// Metrics of its receive ports.
    pub(crate) meters: BTreeMap<Name, ReceiveMeters>,
}

/// All running exchanges, by name.
#[derive(Default)]
pub(crate) struct Registry(RwLock<Arc<BTreeMap<Name, Arc<RunningExchange>>>>);

impl Registry {
    pub fn find(&self, name: &Name) -> Option<Arc<RunningExchange>> {
        self.0.read().get(name).cloned()
    }

    pub fn all(&self) -> Arc<BTreeMap<Name, Arc<RunningExchange>>> {
        self.0.read().clone()
    }

    /// Adds an exchange, or replaces its previous version. Changes are serialized by the caller.
    pub fn insert(&self, running: Arc<RunningExchange>) {
        let mut all = BTreeMap::clone(&self.0.read());
        all.insert(running.compiled.definition.name.clone(), running);
        *self.0.write() = Arc::new(all);
    }

    pub fn remove(&self, name: &Name) -> Option<Arc<RunningExchange>> {
        let mut all = BTreeMap::clone(&self.0.read());
        let removed = all.remove(name);
        *self.0.write() = Arc::new(all);
        removed
    }
}

impl RunningExchange {
    /// An enabled receive port.
    ///
    /// # Errors
    /// The port does not exist or is disabled.
    pub fn receive_port(&self, port: &Name) -> Result<&ReceivePort, ReceiveError> {
        let definition = &self.compiled.definition;
        let missing = || ReceiveError::Missing(format!("the receive port `{port}` of `{}`", definition.name));
        let found = definition.receive.get(port).ok_or_else(missing)?;
        if found.enabled { Ok(found) } else { Err(ReceiveError::Disabled(port.clone())) }
    }

    /// Routes a message to legs, or returns why it has none. A request needs a leg that replies.
    pub(crate) fn legs(
        &self,
        port: &Name,
        kind: MessageKind,
        head: &Head,
        bytes: usize,
    ) -> Result<Vec<NewLeg>, String> {
        if head.hops > HOPS_MAX {
            let hint = "its routes form a loop of replies; add `message.kind != 'reply'` to a route to exclude them";
            return Err(format!("the chain of replies before it is longer than {HOPS_MAX}: {hint}"));
        }
        let row = promote::row(&self.compiled.schema, port, kind, head, bytes);
        let targets = self.compiled.routes.targets(&row).into_iter().filter_map(|target| self.send_ports.get(target));
        let open = targets.filter(|target| target.state() != PortState::Off);
        let legs = open.map(|target| target.new_leg(head)).collect::<Result<Vec<NewLeg>, String>>()?;
        let closed = |port: &Name| match self.send_ports.get(port).map(|port| port.state()) {
            Some(PortState::Off) => Some(format!("its send port `{port}` is off")),
            None => Some(format!("its send port `{port}` does not exist")),
            Some(PortState::Hold | PortState::Active) => {
                let replies = self.compiled.definition.send.get(port).is_some_and(|port| port.mode == Mode::Request);
                (!replies).then(|| format!("its send port `{port}` does not reply"))
            }
        };
        let nearest = || match self.compiled.routes.nearest(&row, &self.compiled.schema.fields, closed) {
            nearest if nearest.is_empty() => "the exchange has no routes".to_owned(),
            nearest => format!("nearest: {}", nearest.join("; ")),
        };
        if legs.is_empty() {
            return Err(format!("no route leads it to a send port that is not off; {}", nearest()));
        }
        if kind == MessageKind::Request && !legs.iter().any(|leg| leg.replies) {
            return Err(format!("no route leads this request to a send port that replies; {}", nearest()));
        }
        Ok(legs)
    }

    /// Effective tracking.
    pub(crate) fn tracks(&self) -> Arc<ActiveTracking> {
        self.tracks.read().clone()
    }

    /// The name of the exchange, as a label of metrics.
    pub(crate) fn name(&self) -> String {
        self.compiled.definition.name.to_string()
    }
}
