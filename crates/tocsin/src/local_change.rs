//! Changes of commands on the data folder: their time, and their entry in the audit log.

use std::{future::Future, sync::Arc, time::SystemTime};

use tocsin_model::time::Timestamp;
use tocsin_store::audit::{self, ChangeContext};

/// Current time.
pub fn now() -> Timestamp {
    SystemTime::now().into()
}

/// Runs a change of a command on the data folder, for the audit log.
pub fn local_change<F: Future>(action: &'static str, change: F) -> impl Future<Output = F::Output> {
    audit::scope(Arc::new(ChangeContext::new("local", action, Arc::new(now))), change)
}
