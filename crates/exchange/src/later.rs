//! Replies that come later: the far side takes a message, and what it has to say comes through a receive port, minutes or
//! days afterwards.
//!
//! The message waits for it from the moment at which it is stored, in the same commit and so before anything of it leaves:
//! no reply is too quick. What comes through the port and has the same properties is the reply, once, and that it is stored,
//! that its request has it and that nothing waits for it any more are one commit. That is why all messages of such an
//! exchange are in one partition of the spool.

use ring::digest;
use tocsin_model::{exchange::MessageKind, id::Name};
use tocsin_store::{
    error::StoreError,
    spool::{Awaits, Head, NewLeg, PartitionNumber},
};

use crate::{Exchanges, Running, lane::Place, promote};

/// Where a message goes that came through a receive port.
pub(crate) struct Routed {
    /// Where it goes, or why nowhere.
    pub legs: Result<Vec<NewLeg>, String>,
    /// The leg that it is the reply to, if it is one.
    pub answers: Option<Place>,
}

/// What a message with these properties is known by; which of them it does not have, if so.
pub(crate) fn key(head: &Head, properties: &[Name]) -> Result<String, Name> {
    let mut hash = digest::Context::new(&digest::SHA256);
    for name in properties {
        let value = promote::text_of(head, name.as_str()).ok_or_else(|| name.clone())?;
        for text in [name.as_str(), &value] {
            hash.update(&(text.len() as u64).to_be_bytes());
            hash.update(text.as_bytes());
        }
    }
    Ok(hash.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect())
}

impl Exchanges {
    /// Routes a message that came through a port: as the reply to one that waits for it, or by itself. What it does not say
    /// it has from what it answers.
    ///
    /// # Errors
    /// The store does not answer.
    pub(crate) async fn route(
        &self,
        running: &Running,
        (port, kind): (&Name, MessageKind),
        head: &mut Head,
        bytes: usize,
        partition: PartitionNumber,
    ) -> Result<Routed, StoreError> {
        let by_itself = |head: &Head| Routed { legs: running.legs(port, kind, head, bytes), answers: None };
        let known = running.compiled.later.get(port).filter(|_| kind == MessageKind::OneWay);
        let Some(known) = known else { return Ok(by_itself(head)) };
        let keys = known.iter().filter_map(|properties| key(head, properties).ok());
        let awaits: Vec<Awaits> = keys.map(|key| Awaits { through: port.clone(), key }).collect();
        let exchange = &running.compiled.definition.name;
        let found = if awaits.is_empty() { None } else { self.parts.spool.awaiting(exchange, awaits).await? };
        let Some(waiting) = found else {
            return Ok(Routed {
                legs: by_itself(head).legs.map_err(|why| format!("no message waits for it as its reply, and {why}")),
                answers: None,
            });
        };
        if !waiting.waits {
            // Another event about the same thing, if a route wants it; or a reply that comes too late.
            let routed = by_itself(head);
            if routed.legs.is_ok() {
                return Ok(routed);
            }
        }
        let answers = Some((waiting.message, waiting.leg));
        if self.parts.spool.partition_of(waiting.message) != partition {
            let why = format!(
                "it is the reply to {}, which is in another partition of the spool since it came before `reply_through` was \
                 defined; nothing can be stored in both at once",
                waiting.message
            );
            return Ok(Routed { legs: Err(why), answers: None });
        }
        let Some(request) = self.parts.spool.message(waiting.message).await? else { return Ok(by_itself(head)) };
        promote::inherit(head, &request.head);
        // The reply to a request goes to who waits for it; any other is routed like every message.
        let legs = match request.kind {
            MessageKind::Request => Ok(Vec::new()),
            MessageKind::OneWay | MessageKind::Reply => running.legs(port, MessageKind::Reply, head, bytes),
        };
        Ok(Routed { legs, answers })
    }
}
