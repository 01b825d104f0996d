//! Examination of a mail domain: whether receivers can authenticate its mail and return bounces to it.
//!
//! [`examine`] looks up the records of a domain and returns findings, each with its source (RFC) and, if something is
//! to be changed, the DNS records to publish. A lookup that failed is a finding of its own and never counts as an
//! absent record. The crate does not send mail, reads no configuration and knows no channel.

mod subject; // the domain and what is known of its sender
mod finding; // findings, and records to publish
mod tags; // lists of tags and values (RFC 6376, section 3.2)

mod spf; // SPF (RFC 7208): syntax, limits, result for each sending address
mod dkim; // DKIM keys (RFC 6376, 8301, 8463)
mod dmarc; // DMARC policy and alignment (RFC 7489)
mod reverse; // reverse DNS of sending addresses
mod exchangers; // mail exchangers (RFC 5321, 7505)
mod transport; // MTA-STS (RFC 8461) and TLS-RPT (RFC 8460)

mod examine; // the checks in their order

pub mod fuzzing; // parsers without lookups, for fuzz targets

pub use examine::examine;
pub use finding::{Finding, Level, Record};
pub use subject::{DomainError, Selector, Subject, ascii_domain};
