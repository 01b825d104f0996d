//! Why a request was not done, as far as its caller can do something about it.

use std::time::Duration;

use tocsin_model::{
    definition::Difference,
    id::{EventBatchId, IdError, MessageId, Name},
    problem::Problem,
};
use tocsin_pipeline::AcceptError;
use tocsin_store::error::StoreError;

use crate::{keys::Scope, lines::BoxError};

/// Why a request was not done.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// No key, or none that is known or still holds: give a good one.
    #[error("{0}")]
    Unauthenticated(&'static str),
    /// The key is good but does not hold this scope.
    #[error("this needs the scope `{}`", .0.word())]
    Forbidden(Scope),
    /// The key holds the scope, but is limited to resources that this is not within.
    #[error("{0}")]
    Limited(String),
    /// The text cannot be read at all.
    #[error("{0}")]
    Malformed(Problem),
    /// It can be read, and this is wrong with it.
    #[error("{} found", count(.0.len(), "problem"))]
    Invalid(Vec<Problem>),
    /// There is no such thing.
    #[error("{0} does not exist")]
    Missing(String),
    /// Something of this name exists already.
    #[error("{0} already exists")]
    Taken(String),
    /// Something else needs it: change that first.
    #[error("{what} is used by {by}")]
    InUse {
        /// What.
        what: String,
        /// By what.
        by: String,
    },
    /// It has changed since the revision that the caller saw: read it again.
    #[error("{0} has changed in the meantime")]
    Changed(String),
    /// Applying the definition would drop data: allow each by its name, or keep it.
    #[error("applying this would drop {}", count(.0.len(), "thing"))]
    WouldDrop(Vec<Difference>),
    /// It is the last key that may do everything: make another one first.
    #[error("`{0}` is the last key with the scope `admin`: make another one first")]
    LastAdmin(String),
    /// The idempotency key was used for other content, which became this batch.
    #[error("the idempotency key came before with other content, which became {0}")]
    KeyReused(EventBatchId),
    /// The idempotency key was used for another body, which became this message.
    #[error("the idempotency key came before with another body, which became {0}")]
    MessageKeyReused(MessageId),
    /// A receive port takes nothing at the moment; nothing was stored. The same message may be taken later.
    #[error("{reason}")]
    Throttled {
        /// Why, as one word.
        code: &'static str,
        /// Why, in words.
        reason: String,
        /// When to try again.
        retry_after: Duration,
    },
    /// There is no room just now; nothing was stored. The same request may succeed later.
    #[error("{reason}")]
    Full {
        /// What is full.
        reason: String,
        /// When to try again.
        retry_after: Duration,
    },
    /// Too many such requests at once.
    #[error("{reason}")]
    TooMany {
        /// Of what.
        reason: String,
        /// When to try again.
        retry_after: Duration,
    },
    /// The stream of the request broke off.
    #[error("the request broke off")]
    BrokenStream(#[source] BoxError),
    /// Something of our own does not work; the log says what.
    #[error("the platform cannot do this at the moment")]
    Unavailable(#[source] BoxError),
}

fn count(count: usize, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}

impl ServiceError {
    /// One thing wrong at a path.
    pub fn invalid(path: impl Into<String>, message: impl Into<String>) -> Self {
        ServiceError::Invalid(vec![Problem::at(path, message)])
    }

    pub(crate) fn no_application(name: &Name) -> Self {
        ServiceError::Missing(format!("the application `{name}`"))
    }
}

impl From<StoreError> for ServiceError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Taken(what) => ServiceError::Taken(what),
            StoreError::Missing(what) => ServiceError::Missing(what),
            StoreError::Changed(what) => ServiceError::Changed(what),
            StoreError::Full(reason) => ServiceError::Full {
                reason: format!("there is no room: {reason}"),
                retry_after: Duration::from_secs(5),
            },
            error @ (StoreError::Fenced(_) | StoreError::Unavailable(_) | StoreError::Damaged(_)) => {
                ServiceError::Unavailable(error.into())
            }
        }
    }
}

impl From<AcceptError> for ServiceError {
    fn from(error: AcceptError) -> Self {
        match error {
            AcceptError::NoApplication(name) => ServiceError::no_application(&name),
            AcceptError::Full(reason) => ServiceError::Full { reason, retry_after: Duration::from_secs(1) },
            AcceptError::Store(error) => error.into(),
        }
    }
}

impl From<IdError> for ServiceError {
    fn from(error: IdError) -> Self {
        ServiceError::invalid("", error.to_string())
    }
}

/// Reads a JSON object. A list in the order of the members would do for the reader of a type, but not for us.
///
/// # Errors
/// It is no JSON, no object, or an object of another shape.
pub fn read_object<'de, T: serde::Deserialize<'de>>(bytes: &'de [u8]) -> Result<T, Problem> {
    let bytes = tocsin_model::json::without_mark(bytes);
    if bytes.trim_ascii_start().starts_with(b"[") {
        return Err(Problem::at("", "should be a JSON object with named members").position(1, 1));
    }
    serde_json::from_slice(bytes).map_err(|error| json_problem(&error))
}

/// What is wrong with a JSON text that does not become the expected thing: malformed, or of the wrong shape.
pub fn json_error(error: &serde_json::Error) -> ServiceError {
    let problem = json_problem(error);
    if error.is_data() { ServiceError::Invalid(vec![problem]) } else { ServiceError::Malformed(problem) }
}

/// The same as a problem, with line and column.
pub fn json_problem(error: &serde_json::Error) -> Problem {
    let position = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    let mut message = error.to_string();
    // serde_json ends its message with the position, which the problem carries itself.
    if let Some(at) = message.rfind(" at line ") {
        message.truncate(at);
    }
    // It names the member in backticks where one is unknown, missing or doubled.
    let named = ["unknown field `", "missing field `", "duplicate field `"]
        .iter()
        .find_map(|start| message.strip_prefix(start))
        .and_then(|rest| rest.split_once('`'));
    let problem = match named {
        Some((name, known)) => {
            let what = message.split(' ').next().unwrap_or_default();
            let words: Vec<&str> = known.split('`').skip(1).step_by(2).collect();
            let problem = match what {
                "unknown" => Problem::at(name, "is not known here"),
                "missing" => Problem::at(name, "is required"),
                _ => Problem::at(name, "is given twice"),
            };
            match tocsin_model::problem::closest(name, words.iter().copied()) {
                Some(meant) => problem.hint(format!("did you mean `{meant}`?")),
                None if words.is_empty() => problem,
                None => problem.hint(format!("known are {}", words.join(", "))),
            }
        }
        // It names our own types, which say nothing to the caller.
        None if error.is_data() && message.contains("expected struct ") => {
            Problem::at("", "should be a JSON object with named members")
        }
        None if error.is_data() => Problem::at("", message),
        None => Problem::at("", format!("is not JSON: {message}")),
    };
    if error.line() > 0 { problem.position(position(error.line()), position(error.column())) } else { problem }
}

/// What `Fields::row_from_json` found wrong: one problem of the whole with a position means that it is no JSON, unless it
/// is JSON of another type than an object.
pub(crate) fn row_error(problems: Vec<Problem>) -> ServiceError {
    match problems.as_slice() {
        [only] if only.path.is_empty() && only.line.is_some() && !only.message.contains("invalid type") => {
            ServiceError::Malformed(only.clone())
        }
        _ => ServiceError::Invalid(problems),
    }
}
