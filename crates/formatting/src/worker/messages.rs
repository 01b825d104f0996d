//! Messages between the server and a worker: a length of four bytes, then a code and its fields.

use std::{
    io::{self, Read, Write},
    time::Duration,
};

use crate::tree::{Fields, write_bytes, write_number, write_text};

/// Most bytes of a message.
pub const MESSAGE_BYTES_MAX: usize = 512 << 20;
/// The first message of a worker.
pub const GREETING: &[u8] = b"tocsin-xml-worker 2";

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
    pub exceeds_memory: bool,
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
    set_length(&mut message, 0);
    message
}

/// Writes the length of the last message into the four bytes reserved for it, at `start`.
fn set_length(messages: &mut [u8], start: usize) {
    // A longer message is rejected before it is sent.
    let length = u32::try_from(messages.len() - start - 4).unwrap_or(u32::MAX);
    messages[start..start + 4].copy_from_slice(&length.to_le_bytes());
}

impl WorkerResponse {
    /// Appends the encoded response.
    pub fn write(&self, state: WorkerState, message: &mut Vec<u8>) {
        let start = message.len();
        message.extend_from_slice(&[0; 4]);
        write_number(message, usize::try_from(state.processor_time.as_millis()).unwrap_or(usize::MAX));
        message.push(u8::from(state.exceeds_memory));
        match self {
            WorkerResponse::Compiled { method, encoding, media_type } => {
                message.push(0);
                [method, encoding, media_type].into_iter().for_each(|text| write_text(message, text));
            }
            WorkerResponse::Done(bytes) => {
                message.push(1);
                message.extend_from_slice(bytes);
            }
            WorkerResponse::Failed(said) => {
                message.push(2);
                write_text(message, said);
            }
            WorkerResponse::ValidationErrors { count, objections } => {
                message.push(3);
                write_number(message, *count);
                for (mark, said) in objections {
                    write_number(message, *mark);
                    write_text(message, said);
                }
            }
            WorkerResponse::Memory => message.push(4),
            WorkerResponse::Time => message.push(5),
            WorkerResponse::Unknown => message.push(6),
        }
        set_length(message, start);
    }

    /// Decodes a response, and the state of the worker.
    pub fn read(message: &[u8]) -> Option<(WorkerResponse, WorkerState)> {
        let mut fields = Fields(message);
        let processor_time = Duration::from_millis(fields.number()? as u64);
        let state = WorkerState { processor_time, exceeds_memory: fields.byte()? != 0 };
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

/// Received bytes: several messages may arrive in one read, or a part of one.
#[derive(Debug, Default)]
pub struct MessageBuffer {
    bytes: Vec<u8>,
    /// The part that is received and not taken.
    start: usize,
    end: usize,
}

/// Least room for one read.
const ROOM_BYTES: usize = 64 << 10;
/// A larger buffer is freed when it is empty.
const BUFFER_BYTES_MAX: usize = 1 << 20;

impl MessageBuffer {
    /// Takes the next message, without its length. `None` if it is not complete.
    ///
    /// # Errors
    /// It is too long.
    pub fn next(&mut self) -> io::Result<Option<&[u8]>> {
        let Some(length) = self.length()? else { return Ok(None) };
        let start = self.start + 4;
        if self.end - start < length {
            return Ok(None);
        }
        self.start = start + length;
        Ok(Some(&self.bytes[start..start + length]))
    }

    /// The length of the next message, if it has arrived.
    fn length(&self) -> io::Result<Option<usize>> {
        let Some(length) = self.bytes[self.start..self.end].first_chunk::<4>() else { return Ok(None) };
        let length = u32::from_le_bytes(*length) as usize;
        if length > MESSAGE_BYTES_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a message of a worker is too long"));
        }
        Ok(Some(length))
    }

    /// Receives the available bytes, in one read. Returns the number of bytes, 0 at the end.
    ///
    /// # Errors
    /// Reading fails, or the next message is too long.
    pub fn fill(&mut self, from: &mut impl Read) -> io::Result<usize> {
        let begun = self.end - self.start;
        if begun == 0 {
            (self.start, self.end) = (0, 0);
            if self.bytes.len() > BUFFER_BYTES_MAX {
                self.bytes = Vec::new();
            }
        }
        let room = self.length()?.map_or(0, |length| length + 4).max(begun + ROOM_BYTES);
        if self.bytes.len() - self.start < room {
            let mut moved = if self.bytes.len() < room { vec![0; room] } else { Vec::new() };
            match moved.is_empty() {
                true => self.bytes.copy_within(self.start..self.end, 0),
                false => {
                    moved[..begun].copy_from_slice(&self.bytes[self.start..self.end]);
                    self.bytes = moved;
                }
            }
            (self.start, self.end) = (0, begun);
        }
        loop {
            match from.read(&mut self.bytes[self.end..]) {
                Ok(count) => {
                    self.end += count;
                    return Ok(count);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Sends bytes as a message.
pub fn send(to: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    let mut message = vec![0; 4];
    message.extend_from_slice(bytes);
    set_length(&mut message, 0);
    to.write_all(&message)
}
