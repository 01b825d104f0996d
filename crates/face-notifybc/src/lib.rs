//! The NotifyBC interface: HTTP/1.1 in front of the operations of `tocsin-service::notifybc`.
//!
//! Status codes, headers and formats exist only in this crate. A request passes its connection ([`serve()`]), the facts
//! about its sender, the table of endpoints with their permissions, and one operation of the service.

mod answer; // 5. answers, and errors as answers
mod body; // 3. request bodies: JSON and forms
mod endpoints; // 2. the table of endpoints
mod explorer; // OpenAPI document and its page
mod identity; // 2a. identity of a request
mod jwt; // bearer tokens
mod oidc; // keys of the OpenID provider
mod operations; // 4. one operation for each endpoint
mod serve; // 1. connections: limits, TLS, shutdown
mod tls; // TLS of the listener, client certificates

pub use oidc::KeySet;
pub use serve::{NotifybcOptions, serve};
pub use tls::{TlsError, TlsListener};
pub use tocsin_pace::rate_limit::RateLimit;
