//! Binary format of a block: for each entry its head as JSON and its body, each with a length prefix, all compressed
//! together. The head of a body is a JSON array, since field names would cost as much as the rest; older blocks have
//! objects.
//!
//! A message is usually sent as it was received, and its reply returned as it came. So a body that is equal to the
//! previous body of its message in the same direction is not written again: its head refers to the earlier entry by
//! the distance.

use std::{
    borrow::Cow,
    collections::{BTreeSet, HashMap},
    ops::Range,
};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tocsin_model::{exchange::TrackPoint, id::MessageId, time::Timestamp};

use crate::{
    error::StoreError,
    tracking::bodies::{BodyChange, IndexedProperties, TrackedBody},
};

/// Fast, and sufficient for bodies that are similar.
const LEVEL: i32 = 1;
/// Ids that differ only in this number of last bits belong to one stretch. The last four bits are usually the same.
const STRETCH_BITS: u32 = 12;
/// Buffer capacity that is kept for the next bodies.
const BUFFER_BYTES_KEPT: usize = 4 << 20;

/// Bodies that are being collected for a block. Each is written immediately into a reused buffer: freeing and
/// allocating a thousand small buffers for each block would cost more than the compression.
#[derive(Debug, Default)]
pub struct PlainBodies {
    plain: Vec<u8>,
    entries: u32,
    /// The last body of each message that was written, for each direction.
    written: HashMap<(MessageId, Direction), WrittenBody>,
    stretches: BTreeSet<u64>,
}

/// Direction of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Direction {
    Request,
    Response,
}

/// A body that was written to a block.
#[derive(Debug)]
struct WrittenBody {
    /// The number of the entry.
    entry: u32,
    place: Range<usize>,
}

/// Bodies in the format of a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackedBodies {
    pub(crate) packed: Vec<u8>,
    /// The stretches of the ids of their messages.
    pub(crate) stretches: BTreeSet<u64>,
}

/// Compresses blocks with a reused buffer.
pub struct Packer {
    compressor: zstd::bulk::Compressor<'static>,
    out: Vec<u8>,
}

/// The head of a body as it is stored.
#[derive(Serialize, Deserialize)]
struct BodyHead<'a>(
    u64,                           // the message
    TrackPoint,                    // its word
    #[serde(borrow)] Cow<'a, str>, // the port
    Option<(u32, u32)>,            // the number of the leg and of the attempt
    i64,                           // the time, in microseconds since 1970
    #[serde(borrow)] Cow<'a, str>, // the media type
    u64,                           // the original length in bytes
    Option<BodyChange>,            // the reason why the stored body differs
    // Distance to the earlier entry that has the body, if it is not stored here.
    #[serde(default, skip_serializing_if = "Option::is_none")] Option<u32>,
);

impl<'a> BodyHead<'a> {
    fn of(tracked: &'a TrackedBody, before: Option<u32>) -> Self {
        let TrackedBody { message, point, port, attempt, at, content_type, bytes, change, body: _ } = tracked;
        let (port, content_type) = (Cow::from(port.as_str()), Cow::from(content_type));
        BodyHead(message.0, *point, port, *attempt, at.0, content_type, *bytes, *change, before)
    }

    /// `read` are the entries of the block that were read before.
    fn read(self, body: Bytes, read: &[TrackedBody]) -> Option<TrackedBody> {
        let BodyHead(message, point, port, attempt, at, content_type, bytes, change, before) = self;
        let body = match before {
            Some(before) => read.get(read.len().checked_sub(before as usize)?)?.body.clone(),
            None => body,
        };
        Some(TrackedBody {
            message: MessageId(message),
            point,
            port: port.parse().ok()?,
            attempt,
            at: Timestamp(at),
            content_type: content_type.into_owned(),
            bytes,
            change,
            body,
        })
    }
}

impl PlainBodies {
    /// Adds a body. Returns the number of bytes that were added.
    pub fn push(&mut self, tracked: &TrackedBody) -> usize {
        let start = self.plain.len();
        let direction = match tracked.point {
            TrackPoint::Received | TrackPoint::Sent => Direction::Request,
            TrackPoint::Replied | TrackPoint::Returned => Direction::Response,
        };
        let before = self
            .written
            .get(&(tracked.message, direction))
            .filter(|written| self.plain[written.place.clone()] == tracked.body)
            .map(|written| self.entries - written.entry);
        let body: &[u8] = if before.is_some() { &[] } else { &tracked.body };
        write(&mut self.plain, &BodyHead::of(tracked, before), body);
        if !body.is_empty() {
            let end = self.plain.len();
            let written = WrittenBody { entry: self.entries, place: end - body.len()..end };
            self.written.insert((tracked.message, direction), written);
        }
        self.entries += 1;
        self.stretches.insert(stretch(tracked.message));
        self.plain.len() - start
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.plain.is_empty()
    }

    /// Returns all bodies in the format of a block and clears the buffer.
    pub fn pack(&mut self, packer: &mut Packer) -> PackedBodies {
        let packed = packer.pack(&self.plain);
        self.plain.clear();
        self.plain.shrink_to(BUFFER_BYTES_KEPT);
        self.written.clear();
        self.entries = 0;
        PackedBodies { packed, stretches: std::mem::take(&mut self.stretches) }
    }
}

impl Packer {
    fn pack(&mut self, plain: &[u8]) -> Vec<u8> {
        self.out.clear();
        self.out.reserve(zstd::zstd_safe::compress_bound(plain.len()));
        self.compressor.compress_to_buffer(plain, &mut self.out).expect("the buffer is large enough");
        let packed = self.out.clone();
        self.out.shrink_to(BUFFER_BYTES_KEPT);
        packed
    }
}

impl Default for Packer {
    fn default() -> Self {
        let compressor = zstd::bulk::Compressor::new(LEVEL).expect("the level is valid");
        Packer { compressor, out: Vec::new() }
    }
}

pub(crate) fn pack_findable(findable: &[IndexedProperties]) -> Vec<u8> {
    let mut plain = Vec::new();
    for found in findable {
        write(&mut plain, found, &[]);
    }
    Packer::default().pack(&plain)
}

pub(crate) fn bodies(packed: &[u8]) -> Result<Vec<TrackedBody>, StoreError> {
    unpack(packed, |head, body, read| match head.first() {
        Some(b'[') => serde_json::from_slice::<BodyHead<'_>>(head).ok()?.read(body, read),
        _ => Some(TrackedBody { body, ..serde_json::from_slice(head).ok()? }),
    })
}

pub(crate) fn findable(packed: &[u8]) -> Result<Vec<IndexedProperties>, StoreError> {
    unpack(packed, |head, _, _| serde_json::from_slice(head).ok())
}

pub(crate) fn stretch(message: MessageId) -> u64 {
    message.0 >> STRETCH_BITS
}

fn write(plain: &mut Vec<u8>, head: &impl Serialize, body: &[u8]) {
    let start = plain.len();
    plain.extend([0; 4]);
    serde_json::to_writer(&mut *plain, head).expect("a head is always JSON");
    let length = length(plain.len() - start - 4);
    plain[start..start + 4].copy_from_slice(&length);
    plain.extend(self::length(body.len()));
    plain.extend_from_slice(body);
}

fn length(bytes: usize) -> [u8; 4] {
    u32::try_from(bytes).expect("parts are bounded").to_le_bytes()
}

/// `read` gets the head and the body of an entry, and all previous entries.
fn unpack<T>(packed: &[u8], read: impl Fn(&[u8], Bytes, &[T]) -> Option<T>) -> Result<Vec<T>, StoreError> {
    let damaged = || StoreError::Damaged("a block of tracking".to_owned());
    let mut rest = Bytes::from(zstd::stream::decode_all(packed).map_err(|_| damaged())?);
    let mut take = || {
        let length = rest.first_chunk::<4>().map(|bytes| u32::from_le_bytes(*bytes) as usize)?;
        (rest.len() - 4 >= length).then(|| {
            let _ = rest.split_to(4);
            rest.split_to(length)
        })
    };
    let mut entries = Vec::new();
    while let Some(head) = take() {
        let body = take().ok_or_else(damaged)?;
        let entry = read(&head, body, &entries).ok_or_else(damaged)?;
        entries.push(entry);
    }
    if rest.is_empty() { Ok(entries) } else { Err(damaged()) }
}

#[cfg(test)]
pub(crate) fn packed_as_objects(bodies: &[TrackedBody]) -> Vec<u8> {
    let mut plain = Vec::new();
    for tracked in bodies {
        write(&mut plain, tracked, &tracked.body);
    }
    Packer::default().pack(&plain)
}

#[cfg(test)]
pub(crate) fn packed_head(head: &str) -> Vec<u8> {
    let mut plain = Vec::new();
    write(&mut plain, &serde_json::from_str::<serde_json::Value>(head).expect("JSON"), &[]);
    Packer::default().pack(&plain)
}
