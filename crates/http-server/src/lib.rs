//! HTTP/1.1 connections of the faces: accepting and serving them, limits, strict framing, time limits.
//!
//! Each part is independent of the routes and of the format of answers.

pub mod connections; // accepts and serves connections
pub mod embedded; // files in the binary, and the choice of their encoding
pub mod framing; // strict framing, against request smuggling
pub mod host; // the `Host` header
pub mod idle_body; // request bodies that pause for too long
pub mod seats; // connection limits
pub mod write_timeout; // timeout of blocked writes
