//! Aggregator: combines collected messages into one, which is routed like any other.
//!
//! Each message is stored with its group before its sender is answered. A group is complete when it has enough messages
//! or its time is over. The combined message, its legs and the end of its members are one commit, so after a crash the
//! group is combined later, and no message is in two.

use std::sync::Arc;

use bytes::Bytes;
use tocsin_model::{
    exchange::MessageKind,
    id::{MessageId, Name},
    time::Timestamp,
    trace_context::TraceContext,
};
use tocsin_store::{
    error::StoreError,
    spool::{Head, MessageGroup, NewMessage},
};
use tokio::sync::oneshot;

use crate::{
    commit::{Commit, PendingCombination},
    core::Core,
    message::PipelineMessage,
    pipeline::assemble::Form,
    promote,
    running::RunningExchange,
};

/// Groups that are combined in one step.
const STEP: usize = 100;
/// Delay before a failed step is retried.
const AGAIN: std::time::Duration = std::time::Duration::from_secs(5);

/// Combines due groups until the exchanges stop.
pub(crate) async fn run(core: Arc<Core>) {
    let clock = core.parts.clock.clone();
    loop {
        core.aggregation_alarm.clear();
        if let Some(next) = combine_due(&core).await {
            core.aggregation_alarm.expect(next);
        }
        tokio::select! {
            () = core.aggregation_alarm.ring(&*clock) => {}
            () = core.stopping.cancelled() => return,
        }
    }
}

/// Combines each due group. Returns when to check again.
async fn combine_due(core: &Core) -> Option<Timestamp> {
    let now = core.now();
    let names: Vec<Name> = core.registry.all().keys().cloned().collect();
    let (due, next) = match core.parts.spool.due_groups(&names, now, STEP).await {
        Ok(found) => found,
        Err(error) => {
            tracing::error!(%error, "cannot read the groups of collected messages");
            return Some(now + AGAIN);
        }
    };
    let mut done = 0;
    for group in &due {
        let Some(running) = core.find(&group.exchange) else { continue };
        match combine(core, &running, group).await {
            Ok(()) => done += 1,
            Err(error) => {
                tracing::error!(%error, exchange = %group.exchange, "cannot combine collected messages")
            }
        }
    }
    if done < due.len() {
        return Some(now + AGAIN);
    }
    if due.len() >= STEP { Some(now) } else { next }
}

async fn combine(core: &Core, running: &Arc<RunningExchange>, group: &MessageGroup) -> Result<(), StoreError> {
    let members = core.parts.spool.group_messages(group).await?;
    let ids: Vec<MessageId> = members.iter().map(|(id, ..)| *id).collect();
    let bodies: Vec<Bytes> = members.iter().map(|(.., body)| body.clone()).collect();
    let trace = common_trace(members.iter().map(|(_, head, _)| head));
    let last = members.into_iter().next_back().map(|(_, head, _)| head).unwrap_or_default();
    let form = Form::of(&group.form);
    let composing = tokio::task::spawn_blocking(move || form.compose(&bodies)).await;
    let composed = composing.map_err(StoreError::unavailable)?;
    let (port, kind) = (&group.port, MessageKind::OneWay);
    let (head, body, routed) = match composed {
        Ok((body, content_type)) => {
            let message =
                PipelineMessage { content_type: content_type.to_owned(), body, trace, ..PipelineMessage::default() };
            let mut head = promote::head(&running.compiled.schema, &message);
            promote::inherit(&mut head, &last);
            let head = Head { hops: 0, ..head };
            let routed = running.legs(port, kind, &head, message.body.len());
            (head, message.body, routed)
        }
        // Unlikely: each member was checked at its receipt.
        Err(why) => (last, Bytes::new(), Err(format!("the messages cannot be combined: {why}"))),
    };
    let whole = core.new_message(running, group.partition, port, kind, body, core.now());
    let whole = NewMessage { head, ..whole }.routed(routed);
    let _reservation = core.reserve_legs(running, [&whole]);
    let (done, stored) = oneshot::channel();
    let combination =
        PendingCombination { running: running.clone(), group: group.clone(), members: ids, whole, done, _reservation };
    core.commit(Commit::Combined(Box::new(combination))).await;
    if !stored.await.map_err(StoreError::unavailable)?? {
        // A member was ended in the meantime; combine the others without it.
        core.aggregation_alarm.expect(core.now());
    }
    Ok(())
}

/// Trace context of a combined message: that of the last member, if all are in one trace.
fn common_trace<'h>(mut heads: impl DoubleEndedIterator<Item = &'h Head>) -> Option<Box<TraceContext>> {
    let last = heads.next_back()?.trace.as_ref()?;
    let is_same = |head: &Head| head.trace.as_ref().is_some_and(|other| other.trace == last.trace);
    heads.all(is_same).then(|| last.clone())
}
