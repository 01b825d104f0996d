//! The web console as embedded files: the result of `scripts/console`, compressed when the server is built.
//!
//! Without that result the only file is a page which explains how to build it, so that building needs no Node. The
//! crate knows nothing of requests: the HTTP face serves the files. No I/O at run time.

use tocsin_http_server::embedded::{self, EmbeddedFile};

include!(concat!(env!("OUT_DIR"), "/files.rs"));

/// The file with the web components, if it was built.
pub fn web_components() -> Option<&'static EmbeddedFile> {
    embedded::find(FILES, "embed/tocsin.js")
}

#[cfg(test)]
mod tests;
