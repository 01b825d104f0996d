//! What a source has taken and not given yet: items become events of its class, or messages as they are.

use bytes::Bytes;
use tocsin_model::{event::EventPacker, problem::Problem, trace_context::TraceContext};

use crate::{
    items::Item,
    mapping::Mapping,
    source::{Gives, Message, Portion, Refusal},
};

/// A portion that is being filled.
pub(crate) struct Tray {
    /// The rest of it.
    pub portion: Portion,
    packer: Option<EventPacker>,
}

impl Tray {
    /// An empty one.
    pub fn new(gives: &Gives) -> Tray {
        let packer = match gives {
            Gives::Events(fields) => Some(EventPacker::new(fields.clone())),
            Gives::Messages { .. } => None,
        };
        Tray { portion: Portion::default(), packer }
    }

    /// Whether it is filled with messages.
    pub fn gives_messages(&self) -> bool {
        self.packer.is_none()
    }

    /// Sets an item aside that is no event.
    pub fn refuse(&mut self, problems: &[Problem], item: impl Into<Bytes>) {
        self.portion.refused.push(Refusal::new(problems, item));
    }

    /// Takes what came, as an event by its item or as a message.
    pub fn take(
        &mut self,
        mapping: &Mapping,
        item: impl FnOnce() -> Item,
        message: impl FnOnce() -> Message,
        trace: Option<&TraceContext>,
    ) {
        let Some(packer) = &mut self.packer else {
            self.portion.messages.push(message());
            return;
        };
        let item = item();
        match mapping.row(&item) {
            Ok(row) => packer.push_traced(&row, trace),
            Err(problems) => self.portion.refused.push(Refusal::new(&problems, item.shown())),
        }
    }

    /// The portion.
    pub fn finish(self) -> Portion {
        let events = self.packer.map(EventPacker::finish).unwrap_or_default();
        Portion { events, ..self.portion }
    }
}
