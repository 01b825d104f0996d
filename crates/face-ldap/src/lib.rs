//! LDAP server: protocol version 3 (RFC 4511) over the directory.
//!
//! A connection is one task. Requests answered from the cache run inline; all others run concurrently, bounded in
//! number, and respond with their message id. Clients that send incomplete messages or do not read are disconnected.

pub mod ber; // BER encoding; also used by the load generator
mod message; // LDAP messages: requests and responses
mod show; // encoding of entries
mod certificate; // mapping of client certificates to entries
mod authorities; // trusted authorities and revocation lists

pub mod serve; // listener and its limits
mod rate_limits; // rate limits of requests
mod connection; // connection: reads requests, writes responses
mod running_requests; // set of running requests
mod operations; // one module per operation

mod root; // root DSE and subschema entry
mod measure; // metrics

#[doc(hidden)]
pub mod fuzzing; // parsers for fuzz targets

pub use authorities::authorities;
pub use certificate::CertificateRule;
pub use rate_limits::RateLimit;
pub use serve::{LdapOptions, Operators, TlsStart, Validity, serve};
