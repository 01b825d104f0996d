//! Messages between the server and a worker: a length of four bytes, then a code and its fields.

use std::{
    io::{self, Read, Write},
    time::Duration,
};

use crate::tree::{Fields, write_bytes, write_number, write_text};

/// Most bytes of a message.
pub const MESSAGE_BYTES_MAX: usize = 512 << 20;
/// The first message of a worker.
pub const GREETING: &[u8] = b"tocsin-xml-worker 1";

/// Identifies a stylesheet or schema by its content.
pub type ProgramId = [u8; 16];

/// A request to a worker.
pub mod request {
    /// Compile a stylesheet: id, output method or nothing, source, and names and sources of its imports.
    pub const STYLESHEET: u8 = 1;
    /// Compile a schema: id, and the operations of its document.
    pub const SCHEMA: u8 = 2;
    /// Apply a stylesheet, or validate with a schema: id, and the operations of the document.
    pub const APPLY: u8 = 3;
}

/// The state of a worker after a request; precedes each response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkerState {
    /// Total processor time.
    pub processor_time: Duration,
    /// Whether its library holds so much memory that it should be replaced.
    pub holds_too_much: bool,
}

/// A response of a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkerResponse {
    /// A stylesheet or schema is compiled: the output method, encoding and media type of a stylesheet.
    Compiled { method: String, encoding: String, media_type: String },
    /// The result of a stylesheet, or success of a validation.
    Done(Vec<u8>),
    /// The error message of the library.
    Failed(String),
    /// The number of errors of a document or schema, and the first ones with the marks of elements.
    ValidationErrors { count: usize, objections: Vec<(usize, String)> },
    /// The library reached its memory limit.
    Memory,
    /// The library reached its time limit.
    Time,
    /// The program is not compiled in this worker.
    Unknown,
}

/// Builds a request.
pub fn request(code: u8, id: &ProgramId, parts: &[&[u8]]) -> Vec<u8> {
    let bytes: usize = parts.iter().map(|part| part.len() + 10).sum();
    let mut message = Vec::with_capacity(bytes + 21);
    message.extend_from_slice(&[0; 4]);
    message.push(code);
    message.extend_from_slice(id);
    parts.iter().for_each(|part| write_bytes(&mut message, part));
    set_length(message)
}

/// Writes the length into the four bytes reserved for it.
fn set_length(mut message: Vec<u8>) -> Vec<u8> {
    // A longer message is rejected before it is sent.
    let length = u32::try_from(message.len() - 4).unwrap_or(u32::MAX);
    message[..4].copy_from_slice(&length.to_le_bytes());
    message
}

impl WorkerResponse {
    /// Encodes the response.
    pub fn write(&self, state: WorkerState) -> Vec<u8> {
        let mut message = vec![0; 4];
        write_number(&mut message, usize::try_from(state.processor_time.as_millis()).unwrap_or(usize::MAX));
        message.push(u8::from(state.holds_too_much));
        match self {
            WorkerResponse::Compiled { method, encoding, media_type } => {
                message.push(0);
                [method, encoding, media_type].into_iter().for_each(|text| write_text(&mut message, text));
            }
            WorkerResponse::Done(bytes) => {
                message.push(1);
                message.extend_from_slice(bytes);
            }
            WorkerResponse::Failed(said) => {
                message.push(2);
                write_text(&mut message, said);
            }
            WorkerResponse::ValidationErrors { count, objections } => {
                message.push(3);
                write_number(&mut message, *count);
                for (mark, said) in objections {
                    write_number(&mut message, *mark);
                    write_text(&mut message, said);
                }
            }
            WorkerResponse::Memory => message.push(4),
            WorkerResponse::Time => message.push(5),
            WorkerResponse::Unknown => message.push(6),
        }
        set_length(message)
    }

    /// Decodes a response, and the state of the worker.
    pub fn read(message: &[u8]) -> Option<(WorkerResponse, WorkerState)> {
        let mut fields = Fields(message);
        let processor_time = Duration::from_millis(fields.number()? as u64);
        let state = WorkerState { processor_time, holds_too_much: fields.byte()? != 0 };
        let text = |fields: &mut Fields<'_>| fields.text().map(str::to_owned);
        let response = match fields.byte()? {
            0 => WorkerResponse::Compiled {
                method: text(&mut fields)?,
                encoding: text(&mut fields)?,
                media_type: text(&mut fields)?,
            },
            1 => WorkerResponse::Done(fields.0.to_vec()),
            2 => WorkerResponse::Failed(text(&mut fields)?),
            3 => {
                let count = fields.number()?;
                let mut objections = Vec::new();
                while !fields.0.is_empty() {
                    objections.push((fields.number()?, text(&mut fields)?));
                }
                WorkerResponse::ValidationErrors { count, objections }
            }
            4 => WorkerResponse::Memory,
            5 => WorkerResponse::Time,
            6 => WorkerResponse::Unknown,
            _ => return None,
        };
        Some((response, state))
    }
}

/// Receives a message without its length. `None` at the end of the connection.
pub fn receive(from: &mut impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut first = [0];
    match from.read(&mut first)? {
        0 => Ok(None),
        _ => receive_rest(first[0], from).map(Some),
    }
}

/// Receives a message after its first byte.
pub fn receive_rest(first: u8, from: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut length = [first, 0, 0, 0];
    from.read_exact(&mut length[1..])?;
    let length = u32::from_le_bytes(length) as usize;
    if length > MESSAGE_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a message of a worker is too long"));
    }
    let mut message = vec![0; length];
    from.read_exact(&mut message)?;
    Ok(message)
}

/// Sends bytes as a message.
pub fn send(to: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    let mut message = vec![0; 4];
    message.extend_from_slice(bytes);
    to.write_all(&set_length(message))
}
