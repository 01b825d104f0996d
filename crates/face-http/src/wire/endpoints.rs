//! Endpoints of devices whose recent attempts have all failed.

use serde::Serialize;
use tocsin_model::{
    id::{Name, SubscriberId},
    time::Timestamp,
};
use tocsin_service::endpoints::{Document, State};
use utoipa::ToSchema;

/// State of a failing endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = EndpointState)]
pub(crate) enum EndpointStateBody {
    /// Failing, for a short time.
    Failing,
    /// Failing for half the time after which its device is disabled.
    Warned,
    /// Its device was disabled.
    Disabled,
}

/// An endpoint whose recent attempts have all failed.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[schema(as = FailingEndpoint)]
pub(crate) struct FailingEndpointBody {
    /// Application that sends to it.
    #[schema(value_type = String)]
    application: Name,
    /// The channel.
    #[schema(value_type = String)]
    channel: Name,
    /// Owner of the device.
    #[schema(value_type = Option<String>)]
    subscriber: Option<SubscriberId>,
    /// The device.
    #[schema(value_type = Option<String>)]
    device: Option<Name>,
    /// Address.
    address: String,
    /// `failing`, `warned` or `disabled`.
    state: EndpointStateBody,
    /// Time of the first failure.
    #[schema(value_type = String, format = DateTime)]
    failing_since: Timestamp,
    /// Time of the last failure; up to an hour old.
    #[schema(value_type = String, format = DateTime)]
    last_failure: Timestamp,
    /// Number of failures by then.
    failures: u64,
    /// Last failure reason.
    reason: String,
    /// Time of the warning that it will be disabled.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    warned_at: Option<Timestamp>,
    /// Time at which its device was disabled.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    disabled_at: Option<Timestamp>,
}

impl From<Document> for FailingEndpointBody {
    fn from(found: Document) -> Self {
        let state = match found.state {
            State::Failing => EndpointStateBody::Failing,
            State::Warned => EndpointStateBody::Warned,
            State::Disabled => EndpointStateBody::Disabled,
        };
        FailingEndpointBody {
            application: found.application,
            channel: found.channel,
            subscriber: found.subscriber,
            device: found.device,
            address: found.address,
            state,
            failing_since: found.failing_since,
            last_failure: found.last_failure,
            failures: found.failures,
            reason: found.reason,
            warned_at: found.warned_at,
            disabled_at: found.disabled_at,
        }
    }
}
