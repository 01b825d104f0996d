//! Event batches: packed events of one class, the unit of acceptance.

use std::sync::Arc;

use bytes::Bytes;

use crate::{
    field::{Damaged, Fields, Row, pack_row, unpack_row},
    id::{ChangeSequence, EventBatchId, Name},
    pack::{Reader, write_varint},
    time::Timestamp,
    trace_context::{TraceContext, Traces},
    value::Value,
};

/// The events of one batch as packed rows. Cheap to clone.
///
/// Each event is the length of its row as a varint, then the row. An event's own identity and time, if any, are
/// ordinary fields of its class.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PackedEvents {
    count: u32,
    bytes: Bytes,
    traces: Arc<Traces>,
}

impl PackedEvents {
    /// Wraps packed bytes from a store.
    pub fn from_parts(count: u32, bytes: Bytes) -> Self {
        PackedEvents { count, bytes, traces: Arc::default() }
    }

    /// Adds the trace contexts of the events.
    pub fn with_traces(self, traces: Traces) -> Self {
        PackedEvents { traces: Arc::new(traces), ..self }
    }

    /// Trace contexts of the events.
    pub fn traces(&self) -> &Traces {
        &self.traces
    }

    /// Number of events.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The packed bytes.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// The packed rows in order. Stops at the first damaged one with an error.
    pub fn rows(&self) -> impl Iterator<Item = Result<&[u8], Damaged>> {
        let mut reader = Reader::new(&self.bytes);
        let mut left = self.count;
        std::iter::from_fn(move || {
            left = left.checked_sub(1)?;
            let row = reader.bytes();
            if row.is_err() {
                left = 0;
            }
            Some(row)
        })
    }

    /// One event as a row of these fields, which must be those it was packed with. O(ordinal).
    ///
    /// # Errors
    /// The bytes are damaged, or there is no such event.
    pub fn row(&self, fields: &Fields, ordinal: u32) -> Result<Row, Damaged> {
        let row = self.rows().nth(ordinal as usize).ok_or(Damaged)??;
        unpack_row(fields, row)
    }
}

/// Packs rows into a batch.
#[derive(Debug, Clone)]
pub struct EventPacker {
    fields: Fields,
    count: u32,
    row: Vec<u8>,
    bytes: Vec<u8>,
    traces: Traces,
}

impl EventPacker {
    /// An empty batch of events of these fields.
    pub fn new(fields: Fields) -> Self {
        EventPacker { fields, count: 0, row: Vec::new(), bytes: Vec::new(), traces: Traces::default() }
    }

    /// Appends an event. The row must be of the packer's fields.
    pub fn push(&mut self, row: &[Value]) {
        self.row.clear();
        pack_row(&self.fields, row, &mut self.row);
        write_varint(&mut self.bytes, self.row.len() as u64);
        self.bytes.extend_from_slice(&self.row);
        self.count += 1;
    }

    /// Appends an event with its trace context.
    pub fn push_traced(&mut self, row: &[Value], trace: Option<&TraceContext>) {
        self.traces.push(self.count, trace);
        self.push(row);
    }

    /// Number of events so far.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Number of bytes so far.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// The batch.
    pub fn finish(self) -> PackedEvents {
        PackedEvents { count: self.count, bytes: self.bytes.into(), traces: Arc::new(self.traces) }
    }
}

/// An event batch as stored in the journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventBatch {
    /// Its number, in the order of acceptance.
    pub id: EventBatchId,
    /// The application it belongs to.
    pub application: Name,
    /// The version of the application's definition that packed it.
    pub version: u32,
    /// The class of its events.
    pub class: Name,
    /// The source that submitted it.
    pub source: Name,
    /// When the submission arrived.
    pub received_at: Timestamp,
    /// When it was handed to the journal; the answer follows once it is durable.
    pub accepted_at: Timestamp,
    /// Snapshot sequence: it is matched with exactly the subscriptions as of this change of the records. Never less
    /// than that of the previous batch. `None` for a batch accepted by a version without snapshot sequences: it is
    /// matched with the subscriptions at the time of matching.
    pub snapshot_sequence: Option<ChangeSequence>,
    /// The events.
    pub events: PackedEvents,
    /// Chronicle values that rules read for these events at matching; opaque outside of matching. Empty if nothing
    /// was read, or the batch is not matched yet.
    pub chronicled: Bytes,
}
