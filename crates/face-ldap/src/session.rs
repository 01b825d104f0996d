//! Session of a connection: its authorization state, and the results of its requests.

use std::{net::IpAddr, sync::Arc};

use futures_util::future::BoxFuture;
use tocsin_directory::access::{AuthzId, Grants};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::{
    certificate::Certificate,
    paged_searches::{PagedSearches, WaitingPage},
    server::BoundKey,
};

/// Authorization state of a connection, with its caches.
pub(crate) struct Session {
    pub(crate) requester: Arc<AuthzId>,
    /// API key of the bind, if it used one.
    pub(crate) key: Option<BoundKey>,
    /// The address that requests without a bind count for.
    pub(crate) address: IpAddr,
    /// The identity that requests count for; `None`: not bound.
    pub(crate) identity: Option<Arc<str>>,
    /// Whether the connection is protected by TLS.
    pub(crate) is_secure: bool,
    /// Client certificate, if there is one.
    pub(crate) certificate: Option<Arc<Certificate>>,
    pub(crate) grants: Grants,
    /// Paged searches that wait for their next page.
    pub(crate) pages: PagedSearches,
}

impl Session {
    /// Whether the bind may have become invalid since the last check.
    pub(crate) fn is_stale(&self) -> bool {
        match &self.key {
            Some(key) => key.is_stale(),
            None => self.requester.bound_identity.as_ref().is_some_and(|bound_identity| bound_identity.is_stale()),
        }
    }

    /// Actor of its changes in the audit log: the API key, or the entry.
    pub(crate) fn actor(&self) -> String {
        match &self.key {
            Some(key) => format!("key:{}", key.id()),
            None => format!("ldap:{}", self.requester.dn),
        }
    }

    /// Waits until the bind may have become invalid.
    pub(crate) async fn changed(&mut self) {
        match (&mut self.key, &self.requester.bound_identity) {
            (Some(key), _) => key.changed().await,
            (None, Some(bound_identity)) => bound_identity.changed().await,
            (None, None) => std::future::pending().await,
        }
    }
}

/// Result of a request.
pub(crate) enum RequestResult {
    /// A response.
    Answer(Vec<u8>),
    /// No response: the request was abandoned.
    NoResponse,
    /// A successful bind, by a key or as an entry, and the response.
    Bound(Box<(AuthzId, Option<BoundKey>)>, Vec<u8>),
    /// The password that had to be changed was changed, and the response.
    PasswordChanged(Vec<u8>),
    /// A response, and a search that waits for the next page.
    Page(Vec<u8>, WaitingPage),
}

/// Channel of a running request to its connection.
#[derive(Clone)]
pub(crate) struct ResponseChannel {
    /// Cancelled when the request is abandoned.
    pub(crate) abandoned: CancellationToken,
    pub(crate) portions: mpsc::Sender<Vec<u8>>,
}

impl ResponseChannel {
    /// Sends part of a response; false if the connection is closed.
    pub(crate) async fn write(&self, portion: Vec<u8>) -> bool {
        self.portions.send(portion).await.is_ok()
    }

    pub(crate) fn is_abandoned(&self) -> bool {
        self.abandoned.is_cancelled()
    }
}

/// Immediate result of starting a request.
pub(crate) enum StartedRequest {
    /// It was answered.
    Answered,
    /// It runs concurrently.
    Runs(BoxFuture<'static, RequestResult>),
    /// It runs, and no other request is read until it is done.
    RunsAlone(BoxFuture<'static, RequestResult>),
    /// TLS starts after the pending output.
    StartsTls,
    /// The client unbinds.
    Ends,
}
