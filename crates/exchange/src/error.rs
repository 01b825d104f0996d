//! Errors of receiving messages and of operator actions.

use std::time::Duration;

use tocsin_model::{
    exchange::ThrottleReason,
    id::{MessageId, Name},
    problem::Problem,
    time::Timestamp,
};
use tocsin_store::error::StoreError;

/// Why a message was refused; nothing was stored.
#[derive(Debug, thiserror::Error)]
pub enum ReceiveError {
    /// The exchange or the receive port does not exist.
    #[error("{0} does not exist")]
    Missing(String),
    /// The receive port is disabled.
    #[error("the receive port `{0}` is switched off")]
    Disabled(Name),
    /// The service window of the port is closed.
    #[error("the receive port `{port}` opens at {opens_at}, by its service window")]
    Closed {
        /// The port.
        port: Name,
        /// When it opens.
        opens_at: Timestamp,
        /// The time until then.
        opens_in: Duration,
    },
    /// An operator closed the intake of the server.
    #[error("messages are not accepted: {0}")]
    IntakeClosed(String),
    /// The body is larger than the port's limit.
    #[error("the body is larger than {0} bytes")]
    TooLarge(usize),
    /// The idempotency key is invalid.
    #[error("an idempotency key has 1 to 255 characters")]
    Key,
    /// The idempotency key was used with another body, for this message.
    #[error("the idempotency key was used before with another body, for message {0}")]
    KeyReused(MessageId),
    /// A limit is reached; the message can be sent again later.
    #[error("{reason}")]
    Full {
        /// The reason as a code.
        code: ThrottleReason,
        /// The reason as text.
        reason: String,
        /// Delay before a retry.
        retry_after: Duration,
    },
    /// The store does not answer.
    #[error(transparent)]
    Store(StoreError),
}

/// Why an operator's action failed.
#[derive(Debug, thiserror::Error)]
pub enum OperateError {
    /// The named object does not exist.
    #[error("{0} does not exist")]
    Missing(String),
    /// The exchange is stored, and could not be started.
    #[error("the exchange `{0}` does not run")]
    NotRunning(Name),
    /// The definition is invalid.
    #[error("the definition has problems")]
    Invalid(Vec<Problem>),
    /// The exchange has open messages: cancel them first, or let them finish.
    #[error("the exchange `{0}` has open messages")]
    InUse(Name),
    /// The store is unavailable.
    #[error(transparent)]
    Store(#[from] StoreError),
}
