//! Operator actions on definitions: check, apply and remove.

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::RwLock;
use tocsin_model::{
    application::Source,
    definition,
    exchange::{Location, PortState},
    id::Name,
    problem::Problem,
};
use tocsin_store::{
    error::StoreError,
    spool::{MessageFilter, MessageStatus, StoredExchange},
};

use crate::{
    compile::{self, CompileAccess, CompiledExchange, blocking},
    error::OperateError,
    flow::Flow,
    meters::ReceiveMeters,
    operate::Operations,
    reply_waiters::ReplyNotice,
    running::RunningExchange,
    send_port::SendPort,
    track::ActiveTracking,
    tracking_queries,
};

/// Messages per step of suspending orphaned legs.
const STEP: usize = 500;

impl Operations {
    /// The stored definitions, each with whether it runs.
    ///
    /// # Errors
    /// The store is unavailable.
    pub async fn stored(&self) -> Result<Vec<(StoredExchange, bool)>, StoreError> {
        let stored = self.core.parts.spool.exchanges().await?;
        let runs = |stored: &StoredExchange| {
            self.core.find(&stored.name).is_some_and(|running| running.version == stored.version)
        };
        Ok(stored.into_iter().map(|stored| (runs(&stored), stored)).map(|(runs, stored)| (stored, runs)).collect())
    }

    /// Stores a definition and activates it. Attempts in progress go on unchanged; waiting messages use the new
    /// definition.
    ///
    /// # Errors
    /// Nothing was changed.
    pub async fn apply(self: &Arc<Self>, text: &str, author: &str) -> Result<StoredExchange, OperateError> {
        self.apply_holding(text, author, ()).await
    }

    /// As [`Operations::apply`]. `guard` is dropped when the definition is active, even if the caller disconnects
    /// before.
    ///
    /// # Errors
    /// Nothing was changed.
    pub async fn apply_holding(
        self: &Arc<Self>,
        text: &str,
        author: &str,
        guard: impl Send + 'static,
    ) -> Result<StoredExchange, OperateError> {
        let compiled = self.compile(text).map_err(OperateError::Invalid)?;
        let (operations, text, author) = (self.clone(), text.to_owned(), author.to_owned());
        self.run_to_completion(async move {
            let _guard = guard;
            let _one = operations.applying.lock().await;
            let (name, now) = (compiled.definition.name.clone(), operations.core.now());
            let stored = operations.core.parts.spool.put_exchange(name, text, author, now).await?;
            operations.run(compiled, stored.version).await?;
            Ok(stored)
        })
        .await
    }

    /// Reads and checks a definition.
    ///
    /// # Errors
    /// Every problem found, with its position in the text.
    pub fn compile(&self, text: &str) -> Result<CompiledExchange, Vec<Problem>> {
        let parts = &self.core.parts;
        blocking(|| compile::compile(text, &*parts.environment, &self.access()))
    }

    /// Checks a definition for a user who may not apply it. Variables are replaced by placeholders, and ports that use
    /// a variable are not checked.
    ///
    /// # Errors
    /// Every problem found, with its position in the text.
    pub fn check_sealed(&self, text: &str) -> Result<(), Vec<Problem>> {
        blocking(|| compile::check_sealed(text, &self.access()))
    }

    /// Locations that the server's configuration does not allow, such as a folder that is not open. The definition can
    /// be applied, but these locations do not run.
    pub fn locations_not_allowed(&self, text: &str, compiled: &CompiledExchange) -> Vec<Problem> {
        let context = self.core.source_context();
        let mut problems = Vec::new();
        for (port, defined) in &compiled.definition.receive {
            for (name, Location { kind, options, .. }) in &defined.locations {
                let source = Source { kind: kind.clone(), events: Vec::new(), options: options.clone() };
                problems.extend(tocsin_sources::not_allowed(
                    &source,
                    &context,
                    &format!("receive.{port}.locations.{name}"),
                ));
            }
        }
        definition::locate(text, problems)
    }

    fn access(&self) -> CompileAccess<'_> {
        let parts = &self.core.parts;
        CompileAccess { networks: &parts.networks, files: &parts.files, programs: &parts.programs, clock: &parts.clock }
    }

    /// Activates a definition in place of the previous one.
    pub(crate) async fn run(self: &Arc<Self>, compiled: CompiledExchange, version: u32) -> Result<(), StoreError> {
        let (core, name) = (&self.core, compiled.definition.name.clone());
        let set = self.operator_states(&name).await?;
        let rates = core.parts.spool.rates().await?;
        let before = core.find(&name);
        let known =
            |port: &Name| before.as_ref().and_then(|it| it.send_ports.get(port).or(it.leaving.get(port)).cloned());
        let mut send_ports = BTreeMap::new();
        for (port, compiled) in &compiled.send_ports {
            let state = set.get(port).copied().unwrap_or(compiled.definition.state);
            let new = || SendPort::new(name.clone(), port.clone(), compiled.clone());
            send_ports.insert(port.clone(), (known(port).unwrap_or_else(new), compiled.clone(), state));
        }
        let leaving = before.iter().flat_map(|before| {
            let still = before.leaving.iter().filter(|(_, port)| port.load().0 > 0);
            before.send_ports.iter().chain(still).filter(|(name, _)| !send_ports.contains_key(*name))
        });
        let running = Arc::new(RunningExchange {
            flow: before.as_ref().map_or_else(|| Flow::new(name.clone()), |before| before.flow.clone()),
            tracks: RwLock::new(Arc::new(ActiveTracking::new(&compiled, &core.tracker.switches.read()))),
            leaving: leaving.map(|(name, port)| (name.clone(), port.clone())).collect(),
            send_ports: send_ports.iter().map(|(name, (port, ..))| (name.clone(), port.clone())).collect(),
            meters: ReceiveMeters::of_all(&compiled.definition),
            compiled: Arc::new(compiled),
            version,
        });
        core.registry.insert(running.clone());
        // Not before: until then every error leaves an exchange that does not run.
        self.failed.lock().remove(&name);
        for set in rates.into_iter().filter(|set| set.exchange == name) {
            self.dispatch.set_rate(&running, set.side, set.port, Some(set.rate));
        }
        core.flow_monitor.wake();
        core.aggregation_alarm.expect(core.now());
        // After the registration: an attempt looks its exchange up.
        for (port, compiled, state) in send_ports.into_values() {
            self.dispatch.configure(&port, compiled, state);
        }
        core.tasks.spawn(tracking_queries::rebuild_index(core.clone(), running.clone()));
        self.locations.change(&self.intake, &running.compiled.definition).await;
        running.leaving.values().for_each(|port| self.dispatch.configure(port, port.compiled(), PortState::Off));
        self.suspend_orphaned_legs(&running).await;
        Ok(())
    }

    /// Suspends legs to removed send ports. Attempts in progress go on.
    async fn suspend_orphaned_legs(&self, running: &RunningExchange) {
        let name = &running.compiled.definition.name;
        let known: Arc<[Name]> = running.send_ports.keys().cloned().collect();
        let in_progress =
            Arc::new(running.leaving.values().flat_map(|port| port.with(|queue| queue.in_progress())).collect());
        loop {
            let (spool, known, now) = (&self.core.parts.spool, known.clone(), self.core.now());
            match spool.suspend_orphaned_legs(name, known, Arc::clone(&in_progress), STEP, now).await {
                Ok(suspended) if suspended.is_empty() => return,
                Ok(suspended) => {
                    let count = suspended.len();
                    tracing::warn!(exchange = %name, count, "messages to send ports that do not exist are suspended");
                    suspended.into_iter().for_each(|id| self.core.reply_waiters.answer(id, ReplyNotice::None));
                }
                Err(error) => {
                    return tracing::error!(exchange = %name, %error, "cannot suspend messages to removed send ports");
                }
            }
        }
    }

    /// Suspends orphaned legs of all exchanges: retries, and messages that were routed before a definition changed and
    /// stored after it.
    pub(crate) async fn suspend_all_orphaned_legs(&self) {
        // Skipped while a definition is applied, which does the same.
        let Ok(_one) = self.applying.try_lock() else { return };
        for running in self.core.registry.all().values() {
            self.suspend_orphaned_legs(running).await;
        }
    }

    /// Removes an exchange that has no open messages.
    ///
    /// # Errors
    /// There is none, or it has open messages.
    pub async fn remove(self: &Arc<Self>, name: &Name) -> Result<(), OperateError> {
        self.remove_holding(name, ()).await
    }

    /// As [`Operations::remove`]. `guard` is dropped when the exchange is removed, even if the caller disconnects before.
    ///
    /// # Errors
    /// As [`Operations::remove`].
    pub async fn remove_holding(self: &Arc<Self>, name: &Name, guard: impl Send + 'static) -> Result<(), OperateError> {
        let (operations, name) = (self.clone(), name.clone());
        self.run_to_completion(async move {
            let _guard = guard;
            operations.remove_now(&name).await
        })
        .await
    }

    async fn remove_now(self: &Arc<Self>, name: &Name) -> Result<(), OperateError> {
        let _one = self.applying.lock().await;
        // Stopped before the check, since they could add open messages.
        self.locations.stop(name).await;
        let open = MessageFilter {
            exchange: Some(name.clone()),
            standing: Some(MessageStatus::Open),
            ..MessageFilter::default()
        };
        if !self.core.parts.spool.messages(open, None, 1).await?.is_empty() {
            if let Some(running) = self.core.find(name) {
                self.locations.change(&self.intake, &running.compiled.definition).await;
            }
            return Err(OperateError::InUse(name.clone()));
        }
        if let Some(running) = self.core.registry.remove(name) {
            running.send_ports.values().for_each(|port| self.dispatch.configure(port, port.compiled(), PortState::Off));
        }
        let set: Vec<_> =
            self.core.tracker.switches.read().keys().filter(|(exchange, _)| exchange == name).cloned().collect();
        for (exchange, place) in set {
            self.core.parts.tracking.set(exchange.clone(), place.clone(), None).await?;
            self.core.tracker.switches.write().remove(&(exchange, place));
        }
        let was_stored = self.core.parts.spool.remove_exchange(name.clone()).await?;
        self.failed.lock().remove(name);
        if was_stored {
            return Ok(());
        }
        Err(OperateError::Missing(format!("the exchange `{name}`")))
    }
}
