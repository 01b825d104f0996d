//! The parser of requests, for fuzz targets.

use crate::message::{self, Unreadable};

/// Reads a message. Gives its number and its request as a debug text.
///
/// # Errors
/// Why it cannot be read.
pub fn read_message(frame: &[u8]) -> Result<(u32, String), String> {
    match message::read(frame) {
        Ok(message) => Ok((message.id, format!("{:?} {:?}", message.request, message.controls))),
        Err(Unreadable::Garbled(reason) | Unreadable::Request(_, _, _, reason)) => Err(reason.to_owned()),
    }
}
