//! Service errors: why a request failed, by what the caller can do about it.

use std::time::Duration;

use tocsin_model::{
    definition::Difference,
    id::{EventBatchId, IdError, MessageId, Name},
    problem::{Code, CredentialError, Problem},
};
use tocsin_pipeline::AcceptError;
use tocsin_store::error::StoreError;

use crate::{keys::Scope, lines::BoxError};

/// Time after which a request to a definition that does not run may be repeated.
const NOT_RUNNING_RETRY: Duration = Duration::from_secs(30);

/// Reason why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// Authentication failed: the key is missing, unknown or expired.
    #[error("{1}")]
    Unauthenticated(CredentialError, &'static str),
    /// The name or the password is wrong, or the link is not in force.
    #[error("{0}")]
    LoginFailed(&'static str),
    /// The identity is known to the OpenID provider, and has no role here.
    #[error("the user has no role: ask an administrator for one")]
    NoRole,
    /// Too many logins with this name failed from this network.
    #[error("too many failed logins: wait {} minutes", .0.as_secs().div_ceil(60))]
    LoginLocked(Duration),
    /// The operation needs a proof of identity from the last ten minutes.
    #[error("confirm your identity: the last proof is older than ten minutes")]
    ReauthenticationRequired,
    /// It is the last enabled user with the role `admin`.
    #[error("`{0}` is the last enabled user with the role `admin`: give the role to another user first")]
    LastAdminUser(String),
    /// The credential may be valid, but cannot be used with this request.
    #[error("{1}")]
    Misused(CredentialMisuse, &'static str),
    /// The key lacks this scope.
    #[error("this needs the scope `{}`", .0.word())]
    Forbidden(Scope),
    /// The key has the scope, but the resource is outside of its limits.
    #[error("{0}")]
    Limited(String),
    /// The text cannot be parsed.
    #[error("{0}")]
    Malformed(Problem),
    /// The request is invalid, with these problems.
    #[error("{} found", count(.0.len(), "problem"))]
    Invalid(Vec<Problem>),
    /// The thing does not exist.
    #[error("{0} does not exist")]
    Missing(String),
    /// Something of this name exists already.
    #[error("{0} already exists")]
    Taken(String),
    /// Something else depends on it: change that first.
    #[error("{what} is used by {by}")]
    InUse {
        /// The thing.
        what: String,
        /// Its dependent.
        by: String,
    },
    /// Precondition failed: it has changed since the revision that the caller saw. Read it again.
    #[error("{0} has changed in the meantime")]
    Changed(String),
    /// Applying the definition would drop data: allow each path by name, or keep it.
    #[error("applying this would drop {}", count(.0.len(), "thing"))]
    WouldDrop(Vec<Difference>),
    /// It is the last key with the scope `admin`: make another one first.
    #[error("`{0}` is the last key with the scope `admin`: make another one first")]
    LastAdmin(String),
    /// The idempotency key was used for other content, in this batch.
    #[error("the idempotency key came before with other content, which became {0}")]
    KeyReused(EventBatchId),
    /// The idempotency key was used for another body, in this message.
    #[error("the idempotency key came before with another body, which became {0}")]
    MessageKeyReused(MessageId),
    /// A receive port accepts nothing now; nothing was stored. The same message may be accepted later.
    #[error("{reason}")]
    Throttled {
        /// Machine-readable reason.
        code: &'static str,
        /// Reason as text.
        reason: String,
        /// Time after which to try again.
        retry_after: Duration,
    },
    /// A limit is reached; nothing was stored. The same request may succeed later.
    #[error("{reason}")]
    Full {
        /// The exhausted limit.
        reason: String,
        /// Time after which to try again.
        retry_after: Duration,
    },
    /// The caller sends requests faster than allowed.
    #[error("{reason}")]
    RateLimited {
        /// The exceeded rate.
        reason: String,
        /// Time after which to try again.
        retry_after: Duration,
    },
    /// Too many such requests at once.
    #[error("{reason}")]
    TooMany {
        /// Kind of the requests.
        reason: String,
        /// Time after which to try again.
        retry_after: Duration,
    },
    /// The request stream was interrupted.
    #[error("the request broke off")]
    BrokenStream(#[source] BoxError),
    /// Internal failure; details are in the log.
    #[error("the platform cannot do this at the moment")]
    Unavailable(#[source] BoxError),
}

/// Reason why a credential cannot be used with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CredentialMisuse {
    /// The request has a key and a session.
    Several,
    /// The request lacks the token against cross-site request forgery.
    CsrfToken,
    /// The request comes from a page of another origin.
    CrossOrigin,
    /// The transport would reveal the session.
    InsecureTransport,
    /// Users log in through the OpenID provider only.
    PasswordsDisabled,
}

fn count(count: usize, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}

impl ServiceError {
    /// One problem at a path.
    pub fn invalid(code: Code, path: impl Into<String>, message: impl Into<String>) -> Self {
        Problem::new(code, path, message).into()
    }

    pub(crate) fn no_application(name: &Name) -> Self {
        ServiceError::Missing(format!("the application `{name}`"))
    }

    /// A stored definition whose start failed. Its clients repeat their requests until an operator has mended it.
    pub(crate) fn not_running(what: String) -> Self {
        ServiceError::Full { reason: format!("{what} does not run"), retry_after: NOT_RUNNING_RETRY }
    }
}

impl From<Problem> for ServiceError {
    fn from(problem: Problem) -> Self {
        ServiceError::Invalid(vec![problem])
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
        ServiceError::from(Problem::new(Code::InvalidFormat, "", error.to_string()).param("format", "id"))
    }
}

/// Parses a JSON object. A type's reader would also accept a list in member order; this does not.
///
/// # Errors
/// The text is not JSON, not an object, or an object of another shape.
pub fn read_object<'de, T: serde::Deserialize<'de>>(bytes: &'de [u8]) -> Result<T, Problem> {
    let bytes = tocsin_model::json::without_mark(bytes);
    if bytes.trim_ascii_start().starts_with(b"[") {
        return Err(Problem::new(Code::WrongType, "", "should be a JSON object with named members")
            .param("expected", "object")
            .position(1, 1));
    }
    serde_json::from_slice(bytes).map_err(|error| json_problem(&error))
}

/// The problem of a JSON text that does not have the expected shape.
pub fn json_error(error: &serde_json::Error) -> ServiceError {
    let problem = json_problem(error);
    if error.is_data() { ServiceError::Invalid(vec![problem]) } else { ServiceError::Malformed(problem) }
}

/// A JSON error as a problem with line and column.
pub fn json_problem(error: &serde_json::Error) -> Problem {
    let position = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    let mut message = error.to_string();
    // serde_json ends its message with the position, which the problem has itself.
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
                "unknown" => {
                    Problem::new(Code::UnknownMember, name, "is not known here").known(name, words.iter().copied())
                }
                "missing" => Problem::required(name),
                _ => Problem::duplicate(name),
            };
            match tocsin_model::problem::closest(name, words.iter().copied()) {
                Some(meant) => problem.hint(format!("did you mean `{meant}`?")),
                None if words.is_empty() => problem,
                None => problem.hint(format!("known are {}", words.join(", "))),
            }
        }
        // The message names internal types, which mean nothing to the caller.
        None if error.is_data() && message.contains("expected struct ") => {
            Problem::new(Code::WrongType, "", "should be a JSON object with named members").param("expected", "object")
        }
        None if error.is_data() => {
            let code = if message.starts_with("unknown variant") { Code::UnknownValue } else { Code::WrongType };
            Problem::new(code, "", message)
        }
        None => Problem::syntax("json", "", format!("is not JSON: {message}")),
    };
    if error.line() > 0 { problem.position(position(error.line()), position(error.column())) } else { problem }
}

/// Converts the problems of `Fields::row_from_json`: a single one with a position means that the text is not JSON,
/// unless it is JSON of another type than an object.
pub(crate) fn row_error(problems: Vec<Problem>) -> ServiceError {
    match problems.as_slice() {
        [only] if only.path.is_empty() && only.line.is_some() && !only.message.contains("invalid type") => {
            ServiceError::Malformed(only.clone())
        }
        _ => ServiceError::Invalid(problems),
    }
}
