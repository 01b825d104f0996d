//! Parts of HTTP/1.1 servers that the faces share: limits of connections, strict framing, time limits.
//!
//! Each part is independent of the routes and of the format of answers.

pub mod framing; // strict framing, against request smuggling
pub mod host; // the `Host` header
pub mod idle_body; // request bodies that pause for too long
pub mod seats; // connection limits
pub mod write_timeout; // timeout of blocked writes
