//! The LDAP face: version 3 of the protocol (RFC 4511) over the directory.
//!
//! A connection is one task. What can be answered from what is at hand is answered in place; everything else runs beside
//! the reading, bounded in number, and its answers carry the number of their request. Whoever sends half a message, or does
//! not read, is cut off.

pub mod ber; // bytes that nest; who loads the server for a measurement writes them too
mod message; // requests and answers
mod show; // an entry becomes bytes
mod certificate; // who a client is, as authorities say
mod authorities; // which of them are believed

pub mod serve; // the listener, its bounds
mod connection; // one client: messages in, answers out
mod under_way; // requests that are not answered yet
mod operations; // what is done for each

mod root; // what the server says of itself
mod measure; // how often, how long

#[doc(hidden)]
pub mod fuzzing; // parsers for fuzz targets

pub use authorities::authorities;
pub use certificate::CertificateRule;
pub use serve::{LdapOptions, Opening, Operators, Validity, serve};
