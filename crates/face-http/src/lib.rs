//! The REST face: HTTP/1.1 in front of the service.
//!
//! JSON bodies, status codes and headers exist only in this crate. A request passes the connection ([`serve()`]), the
//! middleware (request id, metrics, response headers), the table of access requirements, its route and the service.
//! Errors become problem details (RFC 9457), mapped in one file. The OpenAPI document is generated from the routes.

mod compression; // 1a. response compression
mod credential; // 2d. ends long requests when their key becomes invalid
mod edge; // 2. middleware of every request
mod conditions; // 2f. `If-Match` by route
mod idempotency; // 2c. `Idempotency-Key` by route
mod origins; // 2a. cross-origin requests (CORS)
mod needs; // 2b. access requirements of the routes
mod audit; // 2h. audit context of requests
mod request_metrics; // 2g. metrics of requests
mod rate_limits; // 2e. rate limits of callers
mod body_errors; // errors that end a request body
mod session_cookie; // sessions of users in cookies, and protection against forged requests
mod request; // request extraction: caller, body, path, query, conditions
mod routes; // 3. routes, one file per area
mod responses; // responses that routes share
mod scim; // 3a. SCIM 2.0: provisioning of users and groups
mod serve; // 1. connections: limits, timeouts, drain
mod options; // options of the face
mod app; // shared state of the routes
mod wire; // JSON bodies

#[doc(hidden)]
pub mod fuzzing; // parsers of SCIM for fuzz targets
pub mod metrics; // metrics of this crate
mod openapi; // the OpenAPI document and its explorer
mod error_codes; // codes of problems and their reference page
mod problems; // maps errors to problem details (RFC 9457)
mod status_page; // HTML status page
mod pages; // hosted pages that subscribers see

pub use audit::{audit_page, audited_routes};
pub use error_codes::{error_codes_module, errors_page};
pub use needs::scopes_page;
pub use openapi::document as openapi_document;
pub use options::{HttpOptions, OpenDirectory, OpenidOptions, ScimOptions};
pub use pages::hosted::HostedPages;
pub use serve::serve;
pub use tocsin_http_server::connections::ConnectionOptions;
pub use tocsin_pace::rate_limit::RateLimit;
pub use wire::schedules::SchedulePreviewBody;
