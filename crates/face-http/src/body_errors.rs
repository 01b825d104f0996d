//! Errors that end a request body before its end.

use tocsin_service::{CredentialEnd, ServiceError};

/// Bytes a second that a body which is read whole must arrive with, once it took longer than the pause it may make.
pub(crate) const BODY_RATE_MIN: u64 = 1024;

/// The key of the request became invalid during the request.
#[derive(Debug, thiserror::Error)]
#[error("{}", ServiceError::from(*.0))]
pub(crate) struct CredentialEnded(pub(crate) CredentialEnd);
