//! Receive processing: the pipeline of a receive port, and the routing of its result.

use std::borrow::Cow;

use bytes::Bytes;
use ring::digest;
use tocsin_model::{
    exchange::{MessageKind, Mode, ReceivePort},
    id::Name,
    time::Timestamp,
};
use tocsin_store::{
    error::StoreError,
    spool::{AggregationRule, Head, IdempotencyKey, NewMessage, PartitionAffinity, PartitionNumber, ReceivedMessage},
};

use crate::{
    core::Core,
    groups::WorkerGroup,
    message::{IncomingMessage, PipelineMessage},
    promote,
    reply_correlation::{self, RoutingResult},
    running::RunningExchange,
};

/// Result of the receive pipeline.
pub(crate) enum PipelineOutput {
    /// One message and its routing.
    One(Head, Bytes, RoutingResult),
    /// The parts of a split message, each with its legs.
    Parts(Vec<NewMessage>),
    /// A message that waits for aggregation, with its aggregation rule.
    Gathered(Head, Bytes, AggregationRule),
}

/// Runs the receive pipeline on a message and routes the result.
pub(crate) async fn receive(
    core: &Core,
    running: &RunningExchange,
    partition: PartitionNumber,
    (port, definition): (&Name, &ReceivePort),
    incoming: IncomingMessage,
    now: Timestamp,
) -> ReceivedMessage {
    let kind = match definition.mode {
        Mode::OneWay => MessageKind::OneWay,
        Mode::Request => MessageKind::Request,
    };
    let IncomingMessage { content_type, headers, body, key, sender, .. } = incoming;
    let whole = core.new_message(running, partition, port, kind, body.clone(), now);
    let trace = core.spans.trace_of_received(&headers, whole.id);
    let raw = PipelineMessage { content_type, headers, body, trace, ..PipelineMessage::default() };
    let key = key.map(|key| idempotency_key(key, &raw.body));
    let expires_at = (kind == MessageKind::Request).then(|| now + definition.expires_after);
    let whole = NewMessage { key, sender, expires_at, ..whole };
    match apply(core, running, &whole, &raw).await {
        Ok(PipelineOutput::One(head, body, routed)) => {
            let whole = NewMessage { head, body, ..whole }.answering(routed.answers).routed(routed.legs);
            ReceivedMessage::from(whole)
        }
        Ok(PipelineOutput::Parts(parts)) => {
            let head = promote::head(&running.compiled.schema, &raw);
            ReceivedMessage { whole: NewMessage { head, ..whole }, parts: Some(parts), gather: None }
        }
        Ok(PipelineOutput::Gathered(head, body, gather)) => {
            ReceivedMessage { whole: NewMessage { head, body, ..whole }, parts: None, gather: Some(gather) }
        }
        Err(step_error) => suspended_as_received(running, whole, &raw, step_error),
    }
}

/// Selects the partition for a message: that of related messages, if it can be correlated or aggregated with
/// others.
pub(crate) async fn partition_for(
    core: &Core,
    running: &RunningExchange,
    port: &Name,
    key: Option<&str>,
) -> Result<PartitionNumber, StoreError> {
    let gathers = running.compiled.receive.get(port).is_some_and(|pipeline| pipeline.assembler.is_some());
    let colocated_ports = &running.compiled.colocated_ports;
    let beside = match key {
        _ if !colocated_ports.is_empty() => PartitionAffinity::Ports(colocated_ports),
        _ if gathers => PartitionAffinity::Port,
        Some(key) => PartitionAffinity::Key(key),
        None => PartitionAffinity::Nothing,
    };
    core.parts.spool.partition_for(&running.compiled.definition.name, port, beside).await
}

/// Runs the receive pipeline and routes the result, or returns which step failed and why.
pub(crate) async fn apply(
    core: &Core,
    running: &RunningExchange,
    whole: &NewMessage,
    raw: &PipelineMessage,
) -> Result<PipelineOutput, String> {
    let gone = || format!("the receive port `{}`, whose steps it has not passed, does not exist any more", whole.port);
    let pipeline = running.compiled.receive.get(&whole.port).ok_or_else(gone)?;
    let mut messages = match pipeline.is_empty() {
        true => vec![Cow::Borrowed(raw)],
        false => {
            let (id, workers) = (whole.id.to_string(), core.groups.of(WorkerGroup::Receive));
            let worked = pipeline.apply(raw.clone(), &id, &core.parts.clock, workers).await;
            let messages = worked.map_err(|step_error| {
                let (exchange, port) = (running.name(), whole.port.to_string());
                metrics::counter!("tocsin_exchange_step_failures_total", "exchange" => exchange, "port" => port)
                    .increment(1);
                step_error.to_string()
            })?;
            messages.into_iter().map(Cow::Owned).collect()
        }
    };
    let _worker = core.groups.of(WorkerGroup::Route).enter().await;
    if let Some(assembler) = &pipeline.assembler {
        let message = messages.pop().expect("a pipeline does not split before it aggregates");
        let head = promote::head(&running.compiled.schema, &message);
        let row = promote::row(&running.compiled.schema, &whole.port, whole.kind, &head, message.body.len());
        let gather = assembler.gather(&head, &row);
        return Ok(PipelineOutput::Gathered(head, message.body.clone(), gather));
    }
    let partition = core.parts.spool.partition_of(whole.id);
    let finish = async |message: Cow<'_, PipelineMessage>| {
        let mut head = promote::head(&running.compiled.schema, &message);
        let through = (&whole.port, whole.kind);
        let routed = reply_correlation::route(core, running, through, &mut head, message.body.len(), partition).await;
        // If it is resumed, it is routed again.
        let unknown =
            |error| RoutingResult { legs: Err(format!("the waiting requests cannot be read: {error}")), answers: None };
        let mut routed = routed.unwrap_or_else(unknown);
        if let (Err(reason), Some(unread)) = (&mut routed.legs, promote::unreadable(&running.compiled.schema, &message))
        {
            *reason = format!("its properties cannot be read: {unread}; {reason}");
        }
        (head, message.body.clone(), routed)
    };
    if !pipeline.splits {
        let (head, body, routed) = finish(messages.pop().expect("only a split makes several messages")).await;
        return Ok(PipelineOutput::One(head, body, routed));
    }
    let mut parts = Vec::with_capacity(messages.len());
    for message in messages {
        let (head, body, routed) = finish(message).await;
        let (id, part_of) = (core.parts.spool.next_id(partition), Some(whole.id));
        let part = NewMessage { id, part_of, key: None, head, body, ..whole.clone() };
        parts.push(part.answering(routed.answers).routed(routed.legs));
    }
    Ok(PipelineOutput::Parts(parts))
}

/// A message that is suspended in its received form, before the pipeline.
pub(crate) fn suspended_as_received(
    running: &RunningExchange,
    whole: NewMessage,
    raw: &PipelineMessage,
    reason: String,
) -> ReceivedMessage {
    let head = Head { raw: true, ..promote::head(&running.compiled.schema, raw) };
    ReceivedMessage { whole: NewMessage { head, suspended: Some(reason), ..whole }, parts: None, gather: None }
}

pub(crate) fn idempotency_key(key: String, body: &[u8]) -> IdempotencyKey {
    let digest = digest::digest(&digest::SHA256, body);
    IdempotencyKey { key, digest: digest.as_ref().try_into().expect("SHA-256 has 32 bytes") }
}
