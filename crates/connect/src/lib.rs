//! Connections to other systems, for channels, sources and ports alike.
//!
//! Definitions come over the network from any holder of a key. So this crate has both halves of a connection: the
//! options of a definition, all problems reported at once, and the policies of the operator that limit them. It knows
//! no channel and no source. A file uses only files above it.

pub mod clock; // the current time, as a value
pub mod spans; // trace spans, for distributed tracing
pub mod options; // parses untyped options into typed ones and reports every problem
pub mod secrets; // the secret options in a table of protocols or kinds
pub mod reference; // generates the tables of reference pages from the schemas of options

pub mod dns; // DNS resolver (MX, TXT, A, AAAA, PTR) and organizational domains
pub mod networks; // network access policy: addresses that may be connected to
pub mod files; // file policy: files that definitions may read
pub mod programs; // program policy: programs that may be started; running them

pub mod tls; // TLS configuration and trust anchors
pub mod scram; // SCRAM authentication (RFC 5802)
pub mod nats; // NATS: servers and login
pub mod mqtt; // MQTT: broker and login
pub mod kafka; // Kafka: servers and login

pub use clock::{Clock, SystemClock};
