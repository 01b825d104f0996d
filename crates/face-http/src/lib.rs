//! The REST face: HTTP/1.1 in front of the service.
//!
//! Only here are JSON bodies, status codes and headers. A request passes the connection ([`serve()`]), the edge (its id,
//! its measurement, the headers of the answer), the table of what routes need, its route, and the service; whatever goes wrong on that way is told as
//! a problem of RFC 9457, translated in one file. The OpenAPI document is made from the routes' own code.

mod compression; // 1e. answers in gzip
mod credential; // 2d. long requests end with their keys
mod edge; // 2. what every request and answer has
mod idempotency; // 2c. routes that take `Idempotency-Key`, and those that refuse it
mod origins; // 2a. pages of other origins
mod needs; // 2b. who is let in where
mod rate_limits; // 2e. requests a second of a caller
mod request; // what routes take from a request: caller, body, path, query, conditions
mod routes; // 3. one file for each area
mod framing; // 1d. requests that can be read in two ways
mod host; // 1a. the header field Host
mod seats; // 1b. connection limits
mod write_timeout; // 1c. clients that read nothing
mod scim; // 3a. users and groups for provisioning
mod serve; // 1. connections: bounds, timeouts, drain
mod wire; // the JSON that goes out

#[doc(hidden)]
pub mod fuzzing; // parsers of SCIM for fuzz targets
pub mod metrics; // what is measured here
mod openapi; // the document and its explorer
mod problems; // service errors become problems: the one translation
mod status_page; // totals for people

use std::sync::Arc;

use metrics_exporter_prometheus::PrometheusHandle;
use tocsin_service::Service;
use tocsin_sync::Replicas;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

pub use needs::scopes_page;
pub use openapi::document as openapi_document;
pub use rate_limits::RateLimit;
pub use scim::ScimOptions;
pub use serve::{HttpOptions, serve};

/// What routes work with.
pub(crate) struct App {
    service: Arc<Service>,
    metrics: Option<PrometheusHandle>,
    /// The rows of devices, if there are any here.
    sync: Option<Arc<Replicas>>,
    /// Bodies in memory, in KiB.
    body_room: Arc<Semaphore>,
    /// Longest pause of a body.
    body_idle_timeout: std::time::Duration,
    /// The directory that provisioning clients see, if there is one.
    scim: Option<ScimOptions>,
    rate_limits: rate_limits::RateLimits,
    measures: edge::Measures,
    /// Streams that may be open.
    streams: Arc<Semaphore>,
    /// Whose pages may use what is made for pages.
    origins: Arc<[String]>,
    /// How often a stream shows that it lives.
    heartbeat: std::time::Duration,
    /// Longest time in which a reader takes nothing.
    write_timeout: std::time::Duration,
    /// Cancelled when the server is asked to end: streams end then, for nothing else would end them.
    stopping: CancellationToken,
}

type State = axum::extract::State<Arc<App>>;
