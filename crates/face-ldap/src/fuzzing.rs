//! Request parser, for fuzz targets.

use crate::message::{self, MessageError};

/// Parses a message. Returns its id and the debug text of the request.
///
/// # Errors
/// The message is malformed.
pub fn read_message(frame: &[u8]) -> Result<(u32, String), String> {
    match message::read(frame) {
        Ok(message) => Ok((message.id, format!("{:?} {:?}", message.request, message.controls))),
        Err(MessageError::DecodeError(reason) | MessageError::Request(_, _, _, reason)) => Err(reason.to_owned()),
    }
}
