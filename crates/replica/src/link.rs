//! The server, as a replica sees it.

use std::{future::Future, time::Duration};

use tocsin_model::replica::{Begin, Begun, Uploaded};

/// Why the server did not answer with what was asked for.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The way to it is broken; try again when there is one.
    #[error("the link broke: {0}")]
    Broken(String),
    /// It has too much to do; come again.
    #[error("the server is busy; it says to come again in {} s", .0.as_secs())]
    Busy(Duration),
    /// The session is over, or what the device may see changed: begin again.
    #[error("the session is over: {0}")]
    Over(String),
    /// The device may not do this.
    #[error("the server refuses: {0}")]
    Refused(String),
}

/// A way to the server. Each call may be made again after it broke: the server does nothing twice.
pub trait Link: Sync {
    /// Begins a session.
    fn begin(&self, begin: &Begin) -> impl Future<Output = Result<Begun, LinkError>> + Send;
    /// Sends edits, a line for each.
    fn upload(&self, session: &str, lines: Vec<u8>) -> impl Future<Output = Result<Uploaded, LinkError>> + Send;
    /// Reads the block behind a cursor: a line for each row, and the line of its end.
    fn download(&self, session: &str, cursor: &str) -> impl Future<Output = Result<Vec<u8>, LinkError>> + Send;
    /// Waits until there may be something new behind a cursor, but no longer than `longest`. Gives whether there may be. A link
    /// that cannot refuses; its replica comes now and then.
    fn wait(&self, _cursor: &str, _longest: Duration) -> impl Future<Output = Result<bool, LinkError>> + Send {
        async { Err(LinkError::Refused("this link does not wait".to_owned())) }
    }
    /// Ends a session.
    fn end(&self, session: &str) -> impl Future<Output = Result<(), LinkError>> + Send;
}
