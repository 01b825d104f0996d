//! Asynchronous replies: the receiver accepts a message, and its reply comes through a receive port, minutes or days
//! later.
//!
//! Correlation: the leg and its correlation key are stored in one commit, before anything is sent, so no reply can be
//! too early. A message that comes through the reply port with the same properties is the reply, once. The reply, the
//! end of the wait and the result of the request are one commit. For that, all messages of such an exchange are in one
//! partition of the spool.

use tocsin_model::{exchange::MessageKind, id::Name};
use tocsin_store::{
    error::StoreError,
    spool::{CorrelationKey, Head, NewLeg, PartitionNumber},
};

use crate::{core::Core, promote, running::RunningExchange, send_queue::LegId};

/// Result of routing a received message.
pub(crate) struct RoutingResult {
    /// Its legs, or the reason why it has none.
    pub legs: Result<Vec<NewLeg>, String>,
    /// The leg to which it is the reply, if any.
    pub answers: Option<LegId>,
}

/// Routes a received message: as the reply to a waiting leg, or by its own content. Properties that it lacks are
/// copied from the request.
///
/// # Errors
/// The store does not answer.
pub(crate) async fn route(
    core: &Core,
    running: &RunningExchange,
    (port, kind): (&Name, MessageKind),
    head: &mut Head,
    bytes: usize,
    partition: PartitionNumber,
) -> Result<RoutingResult, StoreError> {
    let by_itself = |head: &Head| RoutingResult { legs: running.legs(port, kind, head, bytes), answers: None };
    let known = running.compiled.reply_ports.get(port).filter(|_| kind == MessageKind::OneWay);
    let Some(known) = known else { return Ok(by_itself(head)) };
    let keys = known.iter().filter_map(|properties| promote::correlation_key(head, properties).ok());
    let awaits: Vec<CorrelationKey> = keys.map(|key| CorrelationKey { through: port.clone(), key }).collect();
    let exchange = &running.compiled.definition.name;
    let found = if awaits.is_empty() { None } else { core.parts.spool.awaiting(exchange, awaits).await? };
    let Some(waiting) = found else {
        return Ok(RoutingResult {
            legs: by_itself(head).legs.map_err(|why| format!("no message waits for it as its reply, and {why}")),
            answers: None,
        });
    };
    if !waiting.waits {
        // Not waited for any more: route it as an independent message, or treat it as a late reply.
        let routed = by_itself(head);
        if routed.legs.is_ok() {
            return Ok(routed);
        }
    }
    let answers = Some((waiting.message, waiting.leg));
    if core.parts.spool.partition_of(waiting.message) != partition {
        let why = format!(
            "it is the reply to {}, which is in another partition of the spool since it came before `reply_through` was \
             defined; nothing can be stored in both at once",
            waiting.message
        );
        return Ok(RoutingResult { legs: Err(why), answers: None });
    }
    let Some(request) = core.parts.spool.message(waiting.message).await? else { return Ok(by_itself(head)) };
    promote::inherit(head, &request.head);
    // The reply to a request goes to the waiting caller; any other is routed like every message.
    let legs = match request.kind {
        MessageKind::Request => Ok(Vec::new()),
        MessageKind::OneWay | MessageKind::Reply => running.legs(port, MessageKind::Reply, head, bytes),
    };
    Ok(RoutingResult { legs, answers })
}
