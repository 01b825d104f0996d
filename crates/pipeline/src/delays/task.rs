//! The task that accepts due times of delayed rules.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tocsin_model::{
    application::{delay_source, due_class, due_fields},
    event::EventPacker,
    id::Name,
    time::Timestamp,
    value::Value,
};
use tocsin_store::{
    error::StoreError,
    journal::{DelayedFilter, DueDelays, NewEventBatch},
};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::{Flow, compile::Compiled};

/// Most notifications of one due time.
const DUE_AT_ONCE: usize = 1_000;
/// Delay after the store failed or was full.
const PAUSE: Duration = Duration::from_secs(5);
/// Maximum wait for a due time: clocks are adjusted, and machines sleep.
const SLEEP_MAX: Duration = Duration::from_secs(60);

/// A command for the task.
pub(crate) enum Command {
    /// Run the delayed rules of this version from now on.
    Install(Arc<Compiled>),
    /// Run no delayed rules of this application any more.
    Remove(Name),
}

/// The task that accepts due times.
pub(crate) struct DelayTask {
    flow: Arc<Flow>,
    commands: mpsc::Receiver<Command>,
    applications: BTreeMap<Name, Arc<Compiled>>,
}

impl DelayTask {
    pub fn new(flow: Arc<Flow>, commands: mpsc::Receiver<Command>) -> Self {
        DelayTask { flow, commands, applications: BTreeMap::new() }
    }

    /// Runs until `stop`.
    pub async fn run(mut self, stop: CancellationToken) {
        loop {
            let pause = match self.turn().await {
                Ok(next) => next,
                Err(error) => {
                    tracing::error!(%error, "due times of delayed rules cannot be accepted and are tried again");
                    PAUSE
                }
            };
            let flow = self.flow.clone();
            tokio::select! {
                () = stop.cancelled() => return,
                command = self.commands.recv() => match command {
                    Some(Command::Install(compiled)) => {
                        drop(self.applications.insert(compiled.application.name.clone(), compiled));
                    }
                    Some(Command::Remove(name)) => drop(self.applications.remove(&name)),
                    None => return,
                },
                () = flow.delays_started.notified() => {}
                () = tokio::time::sleep(pause.min(SLEEP_MAX)) => {}
            }
        }
    }

    /// Accepts what is due. Returns the time until the next due time.
    async fn turn(&self) -> Result<Duration, StoreError> {
        let (mut next, mut waiting) = (SLEEP_MAX, 0);
        for (name, compiled) in &self.applications {
            next = next.min(self.accept_due(compiled).await?);
            waiting += self.flow.delays.delayed_count(name).await?;
        }
        metrics::gauge!("tocsin_delay_waiting").set(waiting as f64);
        Ok(next)
    }

    async fn accept_due(&self, compiled: &Compiled) -> Result<Duration, StoreError> {
        let (flow, name) = (&self.flow, &compiled.application.name);
        // While a rule is stopped its notifications wait.
        let stopped = |rule: &&Name| flow.stops.lock().contains_key(&(name.clone(), (*rule).clone()));
        let stopped: Vec<Name> = compiled.delays.keys().filter(stopped).cloned().collect();
        loop {
            let now = flow.clock.now();
            let Some((due_at, rule)) = flow.delays.next_delayed(name, &stopped).await? else {
                return Ok(SLEEP_MAX);
            };
            if due_at > now {
                return Ok(due_at.since(now));
            }
            let Some(definition) =
                compiled.application.rules.get(&rule).filter(|_| compiled.delays.contains_key(&rule))
            else {
                self.drop_rule(name, &rule, now).await?;
                continue;
            };
            let mut packer = EventPacker::new(due_fields());
            let mut row = vec![Value::Null; due_fields().len()];
            row[0] = Value::from(rule.as_str());
            row[2] = Value::Timestamp(due_at);
            packer.push(&row);
            let batch = NewEventBatch {
                application: name.clone(),
                version: compiled.version,
                class: due_class(),
                source: delay_source(),
                received_at: now,
                accepted_at: now,
                snapshot_sequence: flow.snapshots.newest(),
                events: packer.finish(),
                idempotency: None,
                marks: Vec::new(),
            };
            let labels = flow.classes.labels(name, &definition.notify);
            let limit = DUE_AT_ONCE;
            if flow.delays.assign_due(DueDelays { batch, rule, now, limit }).await?.is_some() {
                metrics::counter!("tocsin_delay_due_batches_total", &labels).increment(1);
                metrics::histogram!("tocsin_delay_lag_seconds", &labels).record(now.since(due_at));
            }
        }
    }

    /// Drops the due notifications of a rule that is removed, disabled or not delayed any more.
    async fn drop_rule(&self, application: &Name, rule: &Name, now: Timestamp) -> Result<(), StoreError> {
        let filter = DelayedFilter {
            application: Some(application.clone()),
            rule: Some(rule.clone()),
            due_before: Some(Timestamp(now.0.saturating_add(1))),
            ..DelayedFilter::default()
        };
        let count = self.flow.delays.cancel_delayed(&filter, now, DUE_AT_ONCE).await?;
        tracing::info!(%application, %rule, count, "dropped due notifications of a rule that is not delayed any more");
        metrics::counter!("tocsin_delay_dropped_total", "reason" => "rule_removed").increment(count as u64);
        Ok(())
    }
}
