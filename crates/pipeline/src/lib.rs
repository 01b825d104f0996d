//! Carries batches of events to their receipts, one durable step at a time.
//!
//! Each step takes its input from the journal, does one thing, and commits its result together with the
//! acknowledgement of that input. A crash can repeat a step, so every step is safe to run twice; a repeated delivery
//! keeps its id. Knows nothing of SQL, sockets or templates; those live in the rooms it drives.

pub mod accept_events; // 1. a submission becomes an event batch
pub mod compile; // a definition becomes what the steps run: rules, formatters, channels

use std::{sync::Arc, time::Duration};

use tocsin_model::{id::Name, time::Timestamp};
use tocsin_store::{error::StoreError, journal::Journal, records::Records};

pub use accept_events::{AcceptError, Submission};
pub use compile::Compiled;

/// Tells the time. The one clock of the process is made above; tests bring their own.
pub trait Clock: Send + Sync + 'static {
    /// Now.
    fn now(&self) -> Timestamp;
}

/// The running flow of all applications.
pub struct Pipeline;

/// How one application is doing.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ApplicationStatus {
    /// The version that runs.
    pub version: u32,
    /// Subscriptions in the match index.
    pub indexed: u64,
    /// Bytes that the index takes.
    pub index_bytes: u64,
    /// Whether the index has caught up with the records since the start.
    pub ready: bool,
}

impl Pipeline {
    /// Starts the flow: loads the current version of every application, builds the indexes, opens the channels.
    pub async fn start(
        journal: Arc<dyn Journal>,
        records: Arc<dyn Records>,
        clock: Arc<dyn Clock>,
    ) -> Result<Arc<Pipeline>, StoreError> {
        let _ = (journal, records, clock);
        todo!()
    }

    /// Runs this version of an application in place of the one that runs, without losing anything in flight.
    pub async fn run(&self, compiled: Arc<Compiled>) -> Result<(), StoreError> {
        let _ = compiled;
        todo!()
    }

    /// Stops an application that was removed.
    pub async fn stop(&self, name: &Name) {
        let _ = name;
        todo!()
    }

    /// The running version of an application.
    pub fn application(&self, name: &Name) -> Option<Arc<Compiled>> {
        let _ = name;
        todo!()
    }

    /// Any version of an application, for reading batches that it packed.
    pub async fn version(&self, name: &Name, version: u32) -> Result<Option<Arc<Compiled>>, StoreError> {
        let _ = (name, version);
        todo!()
    }

    /// Stores a submission; durable when it returns.
    ///
    /// # Errors
    /// See [`AcceptError`]. Nothing of the submission was stored.
    pub async fn accept(&self, submission: Submission) -> Result<tocsin_store::journal::Accepted, AcceptError> {
        let _ = submission;
        todo!()
    }

    /// How each application is doing, by name.
    pub fn status(&self) -> Vec<(Name, ApplicationStatus)> {
        todo!()
    }

    /// Asks every channel of an application for a sign of life: the far side's words, or what is wrong.
    pub async fn probe_channels(&self, name: &Name) -> Vec<(Name, Result<String, String>)> {
        let _ = name;
        todo!()
    }

    /// Takes no new work, finishes what is in flight for at most `patience`, and gives the rest back.
    pub async fn drain(&self, patience: Duration) {
        let _ = patience;
        todo!()
    }
}
