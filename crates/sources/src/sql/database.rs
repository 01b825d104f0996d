//! The interface of all databases.

use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::Notify;

use super::{
    rows::{QueryRequest, Rows},
    value::SqlValue,
};
use crate::source::SourceError;

/// A connection to a database.
#[async_trait]
pub(crate) trait Database: Send {
    /// The first rows of a query, as many as one batch takes.
    async fn query(&mut self, request: QueryRequest<'_>) -> Result<Rows, SourceError>;

    /// Executes a write statement once for each of these values, in one transaction.
    async fn run(&mut self, statement: &str, marks: &[SqlValue]) -> Result<(), SourceError>;

    /// Takes an exclusive lock on this source's data, for the lifetime of the connection.
    async fn lock(&mut self, name: &str) -> Result<(), SourceError>;

    /// Signals the bell on each notification of the channel.
    async fn listen(&mut self, channel: &str, wakeup: Arc<Notify>) -> Result<(), SourceError>;

    /// A quoted identifier.
    fn quoted(&self, name: &str) -> String;
}
