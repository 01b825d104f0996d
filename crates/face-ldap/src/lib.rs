//! LDAP server: protocol version 3 (RFC 4511) over the directory.
//!
//! A connection is one task. Requests answered from the cache run inline; all others run concurrently, bounded in
//! number, and respond with their message id. Clients that send incomplete messages or do not read are disconnected.

pub mod ber; // BER encoding; also used by the load generator
mod message; // LDAP messages: requests and responses
mod show; // encoding of entries
mod certificate; // mapping of client certificates to entries
mod authorities; // trusted authorities and revocation lists

mod rate_limits; // rate limits of requests
mod server; // state shared by all connections: options, operators
mod oids; // object identifiers of controls and extended operations
mod paged_searches; // searches that wait for their next page
mod session; // session of a connection, and the results of its requests
mod response; // final responses of operations
pub mod serve; // listener
mod connection; // connection: reads requests, writes responses
mod running_requests; // set of running requests
mod operations; // one module per operation

mod root; // root DSE and subschema entry
mod measure; // metrics

#[doc(hidden)]
pub mod fuzzing; // parsers for fuzz targets

pub use authorities::authorities;
pub use certificate::CertificateRule;
pub use serve::serve;
pub use server::{LdapOptions, Operators, TlsStart, Validity};
pub use tocsin_pace::rate_limit::RateLimit;
