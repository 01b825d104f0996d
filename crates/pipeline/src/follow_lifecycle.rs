//! Makes events of the changes in the life of subscriptions, subscribers and devices (transactional outbox).
//!
//! A change adds an entry to the outbox of the records, in its own commit. One task reads the entries of each
//! application in order and accepts event batches of the bound classes. The journal stores, with each batch, the
//! position of its last entry as the checkpoint of the class: after a crash no entry is lost or accepted twice. A flood
//! of changes waits in the outbox; at most one page is in memory.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use tocsin_model::{
    application::lifecycle_source,
    event::EventPacker,
    id::{ChangeSequence, Name},
    lifecycle::Lifecycle,
};
use tocsin_store::{
    error::StoreError,
    journal::{Mark, NewEventBatch},
    records::{LifecycleEntry, LifecycleFilter, TrimLifecycle},
};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::{Flow, compile::Compiled};

/// Entries read at a time, and most events of a batch.
const PAGE: usize = 1_000;
/// Age of an accepted entry before it is removed: a backup pins the journal before the records, so entries accepted in
/// between must still be there.
const KEPT: Duration = Duration::from_secs(3_600);
/// Delay after the store failed or was full.
const PAUSE: Duration = Duration::from_secs(5);
/// Interval at which old entries are removed while no subscription changes.
const IDLE: Duration = Duration::from_secs(1_800);

/// A command for the task.
pub(crate) enum Command {
    /// Make events for the classes of this version from now on. The reply follows when the records add entries for
    /// them.
    Install(Arc<Compiled>, oneshot::Sender<()>),
    /// Make no events for this application any more.
    Remove(Name),
}

/// The task that makes lifecycle events.
pub(crate) struct LifecycleTask {
    flow: Arc<Flow>,
    commands: mpsc::Receiver<Command>,
    changes: watch::Receiver<ChangeSequence>,
    applications: BTreeMap<Name, Bound>,
}

/// The bound classes of an application.
struct Bound {
    version: u32,
    classes: BTreeMap<Name, Lifecycle>,
    /// Position up to which each class has its events. Empty until read.
    accepted: BTreeMap<Name, u64>,
    /// Whether the filters of the records are those of the classes.
    is_filtered: bool,
}

impl LifecycleTask {
    pub fn new(flow: Arc<Flow>, commands: mpsc::Receiver<Command>) -> Self {
        let changes = flow.change_log.newest_change();
        LifecycleTask { flow, commands, changes, applications: BTreeMap::new() }
    }

    /// Runs until `stop`.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut installing: Vec<oneshot::Sender<()>> = Vec::new();
        loop {
            self.changes.mark_unchanged();
            let pause = match self.turn(&mut installing).await {
                Ok(()) => IDLE,
                Err(error) => {
                    tracing::error!(%error, "lifecycle events cannot be accepted and are tried again");
                    PAUSE
                }
            };
            let flow = self.flow.clone();
            let follows = self.applications.values().any(|bound| !bound.classes.is_empty());
            tokio::select! {
                () = stop.cancelled() => return,
                command = self.commands.recv() => match command {
                    Some(Command::Install(compiled, done)) => {
                        self.install(&compiled);
                        installing.push(done);
                    }
                    Some(Command::Remove(name)) => self.remove(&name),
                    None => return,
                },
                Ok(()) = self.changes.changed(), if follows => {}
                () = flow.lifecycle_switched.notified() => {}
                () = tokio::time::sleep(pause), if follows || pause == PAUSE => {}
            }
        }
    }

    fn install(&mut self, compiled: &Compiled) {
        let classes: BTreeMap<Name, Lifecycle> = compiled
            .application
            .events
            .iter()
            .filter_map(|(name, class)| Some((name.clone(), class.lifecycle.clone()?)))
            .collect();
        let name = compiled.application.name.clone();
        let known = self.applications.remove(&name);
        let is_filtered = known.as_ref().is_some_and(|known| known.is_filtered && known.classes == classes);
        self.applications
            .insert(name, Bound { version: compiled.version, classes, accepted: BTreeMap::new(), is_filtered });
    }

    fn remove(&mut self, name: &Name) {
        if let Some(bound) = self.applications.get_mut(name) {
            (bound.classes, bound.is_filtered) = (BTreeMap::new(), false);
        }
    }

    /// Sets filters and accepts all entries.
    async fn turn(&mut self, installing: &mut Vec<oneshot::Sender<()>>) -> Result<(), StoreError> {
        for (name, bound) in &mut self.applications {
            bound.prepare(&self.flow, name).await?;
        }
        // A caller that stopped waiting needs no reply.
        installing.drain(..).for_each(|done| _ = done.send(()));
        for (name, bound) in &mut self.applications {
            loop {
                match bound.accept_some(&self.flow, name).await {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(error) => {
                        // Whether the batch was stored may be unknown: the positions are read again.
                        bound.accepted.clear();
                        return Err(error);
                    }
                }
            }
        }
        Ok(())
    }
}

impl Bound {
    /// Sets the filters of the records, and reads the position of each class. A new class begins at the newest entry.
    async fn prepare(&mut self, flow: &Flow, name: &Name) -> Result<(), StoreError> {
        if self.is_filtered && self.accepted.len() == self.classes.len() {
            return Ok(());
        }
        let source = (name.clone(), lifecycle_source());
        let mut marks = BTreeMap::new();
        let mut after: Option<Box<str>> = None;
        loop {
            let page = flow.checkpoints.marks(&source, after.as_deref(), PAGE).await?;
            let is_full = page.len() == PAGE;
            after = page.last().map(|mark| mark.part.clone());
            marks.extend(page.into_iter().filter_map(|mark| Some((mark.part, position(&mark.value?)?))));
            if !is_full {
                break;
            }
        }
        if self.classes.is_empty() && marks.is_empty() {
            self.is_filtered = true;
            return Ok(());
        }
        let last = flow.lifecycle.last_lifecycle_position().await?;
        let mut new = Vec::new();
        self.accepted.clear();
        for class in self.classes.keys() {
            let known = marks.remove(class.as_str());
            if known.is_none() {
                new.push(mark(class, Some(last)));
            }
            self.accepted.insert(class.clone(), known.unwrap_or(last));
        }
        // A class that is bound again later begins with the changes after that.
        new.extend(marks.into_keys().filter_map(|part| Some(mark(&part.parse().ok()?, None))));
        if !new.is_empty() {
            flow.checkpoints.record_marks(&source, new).await?;
        }
        let filter = |lifecycle: &Lifecycle| -> Vec<LifecycleFilter> {
            let change = lifecycle.change;
            match lifecycle.of.is_empty() {
                true => vec![LifecycleFilter { change, class: None }],
                false => lifecycle.of.iter().map(|of| LifecycleFilter { change, class: Some(of.clone()) }).collect(),
            }
        };
        let filters = self.classes.values().flat_map(filter).collect();
        flow.lifecycle.set_lifecycle_filters(name, filters).await?;
        self.is_filtered = true;
        Ok(())
    }

    /// Accepts a page of entries. Returns whether there may be more.
    async fn accept_some(&mut self, flow: &Flow, name: &Name) -> Result<bool, StoreError> {
        // Entries of a class that is switched off wait.
        let is_open = |class: &Name| flow.switches.refuse(name, class).is_none();
        let open: Vec<&Name> = self.classes.keys().filter(|class| is_open(class)).collect();
        let accepted = |class: &&Name| self.accepted.get(*class).copied();
        let Some(after) = open.iter().filter_map(accepted).min() else { return Ok(false) };
        let entries = flow.lifecycle.lifecycle_entries(name, after, PAGE).await?;
        let Some(last) = entries.last().map(|entry| entry.position) else {
            let through = self.accepted.values().min().copied().unwrap_or(after);
            let before = flow.clock.now() - KEPT;
            let trim = TrimLifecycle { application: name, through, before, limit: PAGE };
            flow.lifecycle.trim_lifecycle(trim).await?;
            return Ok(false);
        };
        for (class, lifecycle) in self.classes.iter().filter(|(class, _)| open.contains(class)) {
            let accepted = self.accepted.get(class).copied().unwrap_or(0);
            let is_its =
                |entry: &&LifecycleEntry| entry.position > accepted && lifecycle.covers(entry.change, &entry.class);
            let its: Vec<&LifecycleEntry> = entries.iter().filter(is_its).collect();
            if accepted >= last {
                continue;
            }
            if its.is_empty() {
                let source = (name.clone(), lifecycle_source());
                flow.checkpoints.record_marks(&source, vec![mark(class, Some(last))]).await?;
            } else {
                self.accept_batch(flow, name, (class, lifecycle), &its, last).await?;
            }
            self.accepted.insert(class.clone(), last);
        }
        Ok(true)
    }

    async fn accept_batch(
        &self,
        flow: &Flow,
        name: &Name,
        (class, lifecycle): (&Name, &Lifecycle),
        entries: &[&LifecycleEntry],
        last: u64,
    ) -> Result<(), StoreError> {
        let mut packer = EventPacker::new(lifecycle.fields());
        entries.iter().for_each(|entry| packer.push(&entry.row));
        let now = flow.clock.now();
        let stamp = flow.snapshots.stamp();
        let batch = NewEventBatch {
            application: name.clone(),
            version: self.version,
            class: class.clone(),
            source: lifecycle_source(),
            received_at: entries[0].at.min(now),
            accepted_at: now,
            snapshot_sequence: stamp.place,
            events: packer.finish(),
            idempotency: None,
            marks: vec![mark(class, Some(last))],
        };
        flow.event_log.accept(batch).await?;
        let labels = flow.classes.labels(name, class);
        metrics::counter!("tocsin_lifecycle_events_total", &labels).increment(entries.len() as u64);
        metrics::histogram!("tocsin_lifecycle_lag_seconds", &labels).record(now.since(entries[0].at));
        Ok(())
    }
}

/// The checkpoint of a class; without a position it is deleted.
fn mark(class: &Name, position: Option<u64>) -> Mark {
    let value = position.map(|position| Bytes::copy_from_slice(&position.to_be_bytes()));
    Mark { part: class.as_str().into(), value }
}

fn position(value: &Bytes) -> Option<u64> {
    value.as_ref().try_into().ok().map(u64::from_be_bytes)
}
