//! The REST face: HTTP/1.1 in front of the service.
//!
//! JSON bodies, status codes and headers exist only in this crate. A request passes the connection ([`serve()`]), the
//! middleware (request id, metrics, response headers), the table of access requirements, its route and the service.
//! Errors become problem details (RFC 9457), mapped in one file. The OpenAPI document is generated from the routes.

mod compression; // 1e. response compression
mod credential; // 2d. ends long requests when their key becomes invalid
mod edge; // 2. middleware of every request
mod conditions; // 2f. `If-Match` by route
mod idempotency; // 2c. `Idempotency-Key` by route
mod origins; // 2a. cross-origin requests (CORS)
mod needs; // 2b. access requirements of the routes
mod rate_limits; // 2e. rate limits of callers
mod request; // request extraction: caller, body, path, query, conditions
mod routes; // 3. routes, one file per area
mod framing; // 1d. strict framing, against request smuggling
mod host; // 1a. the `Host` header
mod seats; // 1b. connection limits
mod write_timeout; // 1c. timeout of blocked writes
mod scim; // 3a. SCIM 2.0: provisioning of users and groups
mod serve; // 1. connections: limits, timeouts, drain
mod wire; // JSON bodies

#[doc(hidden)]
pub mod fuzzing; // parsers of SCIM for fuzz targets
pub mod metrics; // metrics of this crate
mod openapi; // the OpenAPI document and its explorer
mod error_codes; // codes of problems and their reference page
mod problems; // maps errors to problem details (RFC 9457)
mod status_page; // HTML status page

use std::sync::Arc;

use metrics_exporter_prometheus::PrometheusHandle;
use tocsin_service::Service;
use tocsin_sync::Replicas;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

pub use error_codes::{error_codes_module, errors_page};
pub use needs::scopes_page;
pub use openapi::document as openapi_document;
pub use rate_limits::RateLimit;
pub use routes::directory::OpenDirectory;
pub use scim::ScimOptions;
pub use serve::{HttpOptions, serve};

/// Shared state of the routes.
pub(crate) struct App {
    service: Arc<Service>,
    metrics: Option<PrometheusHandle>,
    /// The sync service, if enabled.
    sync: Option<Arc<Replicas>>,
    /// Memory for request bodies, in KiB.
    body_room: Arc<Semaphore>,
    /// Maximum pause of a request body.
    body_idle_timeout: std::time::Duration,
    /// The directory for SCIM, if enabled.
    scim: Option<ScimOptions>,
    /// Opens the directory for exports.
    directory: Option<OpenDirectory>,
    rate_limits: rate_limits::RateLimits,
    measures: edge::Measures,
    /// Permits for event streams.
    streams: Arc<Semaphore>,
    /// Origins whose pages may use the browser routes.
    origins: Arc<[String]>,
    /// Interval of heartbeats on event streams.
    heartbeat: std::time::Duration,
    /// Timeout of a blocked write.
    write_timeout: std::time::Duration,
    /// Cancelled at shutdown, which ends the event streams.
    stopping: CancellationToken,
}

type State = axum::extract::State<Arc<App>>;
