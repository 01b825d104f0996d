//! Errors of the pipeline that a caller can handle.

use tocsin_model::{
    id::{EventBatchId, Name},
    problem::Problem,
};
use tocsin_store::error::StoreError;

/// Reason why an application cannot run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// Its channels cannot be opened.
    #[error("{} in the definition", problems(.0))]
    Problems(Vec<Problem>),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The pipeline was stopped.
    #[error("the server is shutting down")]
    Stopped,
}

/// Reason why a rule was not fired again.
#[derive(Debug, thiserror::Error)]
pub enum RefireError {
    /// Its application is not running.
    #[error("the application `{0}` does not run")]
    NotRunning(Name),
    /// The rule failed again. Batches that were not fired stay listed.
    #[error("it failed again for {batch}: {reason}")]
    Failed {
        /// Event batch for which the rule failed.
        batch: EventBatchId,
        /// Reason of the failure.
        reason: String,
    },
    /// The store failed, or the server is shutting down.
    #[error(transparent)]
    Store(#[from] StoreError),
}

fn problems(problems: &[Problem]) -> String {
    match problems {
        [one] => one.to_string(),
        many => format!("{} problems", many.len()),
    }
}
