//! Builds batches: items become events of a class, or messages as they are.

use bytes::Bytes;
use tocsin_model::{event::EventPacker, problem::Problem, trace_context::TraceContext};

use crate::{
    items::Item,
    mapping::Mapping,
    source::{Message, RejectedItem, SourceBatch, SourceOutput},
};

/// A batch that is being filled.
pub(crate) struct BatchBuilder {
    /// The other fields of the batch.
    pub batch: SourceBatch,
    packer: Option<EventPacker>,
}

impl BatchBuilder {
    /// An empty one.
    pub fn new(output: &SourceOutput) -> BatchBuilder {
        let packer = match output {
            SourceOutput::Events(fields) => Some(EventPacker::new(fields.clone())),
            SourceOutput::Messages { .. } => None,
        };
        BatchBuilder { batch: SourceBatch::default(), packer }
    }

    /// Whether it contains messages.
    pub fn gives_messages(&self) -> bool {
        self.packer.is_none()
    }

    /// Rejects an item that is not a valid event.
    pub fn reject(&mut self, problems: &[Problem], item: impl Into<Bytes>) {
        self.batch.refused.push(RejectedItem::new(problems, item));
    }

    /// Adds an input, as an event from its item or as a message.
    pub fn take(
        &mut self,
        mapping: &Mapping,
        item: impl FnOnce() -> Item,
        message: impl FnOnce() -> Message,
        trace: Option<&TraceContext>,
    ) {
        let Some(packer) = &mut self.packer else {
            self.batch.messages.push(message());
            return;
        };
        let item = item();
        match mapping.row(&item) {
            Ok(row) => packer.push_traced(&row, trace),
            Err(problems) => self.batch.refused.push(RejectedItem::new(&problems, item.shown())),
        }
    }

    /// The batch.
    pub fn finish(self) -> SourceBatch {
        let events = self.packer.map(EventPacker::finish).unwrap_or_default();
        SourceBatch { events, ..self.batch }
    }
}
