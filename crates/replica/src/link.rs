//! Link to the server.

use std::{future::Future, time::Duration};

use tocsin_model::replica::{Begin, BeginResponse, Uploaded};

/// Error of a request to the server.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The connection failed; retry when there is one.
    #[error("the connection failed: {0}")]
    Broken(String),
    /// The server is overloaded; retry later.
    #[error("the server is busy; retry in {} s", .0.as_secs())]
    Busy(Duration),
    /// The session expired, or the visible rows changed: begin again.
    #[error("the session has expired: {0}")]
    SessionEnded(String),
    /// The device lacks the permission.
    #[error("the server rejects the request: {0}")]
    Refused(String),
}

/// Connection to the server. Each call can be repeated after a failure; the server applies nothing twice.
pub trait Link: Sync {
    /// Begins a session.
    fn begin(&self, begin: &Begin) -> impl Future<Output = Result<BeginResponse, LinkError>> + Send;
    /// Sends edits, one per line.
    fn upload(&self, session: &str, lines: Vec<u8>) -> impl Future<Output = Result<Uploaded, LinkError>> + Send;
    /// Downloads the block after a cursor: one line per row, and an end line.
    fn download(&self, session: &str, cursor: &str) -> impl Future<Output = Result<Vec<u8>, LinkError>> + Send;
    /// Waits for possible changes after a cursor, up to `longest`. Returns whether there may be changes. A link without
    /// long polling fails, and the replica polls instead.
    fn wait(&self, _cursor: &str, _longest: Duration) -> impl Future<Output = Result<bool, LinkError>> + Send {
        async { Err(LinkError::Refused("this link does not support long polling".to_owned())) }
    }
    /// Ends a session.
    fn end(&self, session: &str) -> impl Future<Output = Result<(), LinkError>> + Send;
}
