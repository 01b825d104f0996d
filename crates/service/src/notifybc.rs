//! Operations of the NotifyBC interface, on the records, the pipeline and the broadcasts of the platform.
//!
//! [`Notifybc`] has one operation for each route, in a file for each area. The rules are those of `tocsin-notifybc`;
//! this module reads and stores the documents, sends the messages and runs the jobs. A subscription is a document and a
//! native subscription, stored in one commit; a broadcast push is a native broadcast.

pub mod documents; // documents of the collections: read, search, store
pub mod subscriptions; // subscription workflow
pub mod inbound_mail; // unsubscriptions and bounces by mail
pub mod jobs; // scheduled jobs
pub mod rss; // notifications from feeds
pub mod notifications; // notifications: create, change, dispatch
mod dispatch; // broadcasts, and their results as the dispatch record
pub mod sending; // messages to one address
pub mod definition; // the generated definition of the application `notifybc`
pub mod import; // records of another installation
pub mod records; // configurations and bounce records: create, change, remove
pub mod configurations; // dynamic configuration of services, and the RSA key pair
pub mod administrators; // administrators, credentials and access tokens
pub mod guesses; // limit of wrong codes and passwords
pub mod health; // status of the store, the configuration and the queue

use std::{net::IpAddr, sync::Arc};

use tocsin_model::time::Timestamp;
use tocsin_notifybc::{
    configuration::Configuration,
    identity::{Identity, Strategy},
    record::ValidationError,
};
use tocsin_store::{
    audit::{self, ChangeContext},
    error::StoreError,
    records::NotifybcStore,
};

use self::{
    configurations::ConfigurationCache,
    guesses::{Guesses, TooManyAttempts},
};
use crate::{Service, ServiceError};

/// Dependencies of [`Notifybc`].
pub struct NotifybcParts {
    /// The service of the platform.
    pub service: Arc<Service>,
    /// The store of the documents.
    pub store: Arc<dyn NotifybcStore>,
    /// The static configuration.
    pub configuration: Configuration,
}

/// The operations of the NotifyBC interface. One instance per process.
pub struct Notifybc {
    pub(crate) service: Arc<Service>,
    pub(crate) store: Arc<dyn NotifybcStore>,
    pub(crate) configuration: Configuration,
    pub(crate) configuration_cache: ConfigurationCache,
    pub(crate) guesses: Guesses,
}

/// Facts of a request that operations use.
#[derive(Debug, Clone)]
pub struct RequestContext {
    /// The caller.
    pub identity: Identity,
    /// Address of the client.
    pub address: IpAddr,
    /// Protocol and host of the request, with its port: `http://127.0.0.1:3000`.
    pub base_url: String,
}

impl RequestContext {
    /// Whether the caller is an administrator with an access token, who sees the own record only.
    pub fn is_limited_to_own_record(&self) -> bool {
        self.identity.strategy == Strategy::AccessToken
    }
}

/// Reason why a request failed, by its status.
#[derive(Debug, thiserror::Error)]
pub enum NotifybcError {
    /// 400: the request is invalid.
    #[error("{0}")]
    Invalid(String),
    /// 401: the credentials are wrong.
    #[error("{0}")]
    Unauthorized(String),
    /// 403: refused, with a message if there is one.
    #[error("{}", .0.as_deref().unwrap_or("refused"))]
    Refused(Option<String>),
    /// 404: the record does not exist, or the caller cannot see it.
    #[error("the record does not exist")]
    Missing,
    /// 429: too many wrong codes or passwords.
    #[error("Too Many Requests")]
    TooMany,
    /// 500: a component failed. The cause is for the log.
    #[error("{0}")]
    Internal(String),
}

impl From<ValidationError> for NotifybcError {
    fn from(error: ValidationError) -> Self {
        NotifybcError::Invalid(error.to_string())
    }
}

impl From<TooManyAttempts> for NotifybcError {
    fn from(_: TooManyAttempts) -> Self {
        NotifybcError::TooMany
    }
}

impl From<StoreError> for NotifybcError {
    fn from(error: StoreError) -> Self {
        NotifybcError::Internal(error.to_string())
    }
}

impl From<ServiceError> for NotifybcError {
    fn from(error: ServiceError) -> Self {
        NotifybcError::Internal(error.to_string())
    }
}

impl Notifybc {
    /// Creates the operations.
    pub fn new(parts: NotifybcParts) -> Arc<Notifybc> {
        Arc::new(Notifybc {
            service: parts.service,
            store: parts.store,
            configuration: parts.configuration,
            configuration_cache: ConfigurationCache::default(),
            guesses: Guesses::default(),
        })
    }

    /// The static configuration.
    pub fn configuration(&self) -> &Configuration {
        &self.configuration
    }

    /// Runs an operation of a caller. Its changes are in the audit log.
    pub fn audited<F: Future>(
        &self,
        caller: &RequestContext,
        action: &str,
        path: &str,
        operation: F,
    ) -> impl Future<Output = F::Output> + use<F> {
        let service = self.service.clone();
        let actor = format!("notifybc:{}", caller.identity.security_id);
        let context = ChangeContext::new(actor, action.to_owned(), Arc::new(move || service.now()));
        let context = context.at_address(Some(caller.address.to_string())).on_object(path);
        audit::scope(Arc::new(context), operation)
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.service.now()
    }
}
