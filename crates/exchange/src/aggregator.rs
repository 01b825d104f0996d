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

use crate::{
    Exchanges, RunningExchange,
    pipeline::{PipelineMessage, assemble::Form},
    promote,
};

/// Groups that are combined in one step.
const STEP: usize = 100;
/// Delay before a failed step is retried.
const AGAIN: std::time::Duration = std::time::Duration::from_secs(5);

/// Combines due groups until the exchanges stop.
pub(crate) async fn run(exchanges: Arc<Exchanges>) {
    let clock = exchanges.parts.clock.clone();
    loop {
        exchanges.aggregation_alarm.set();
        if let Some(next) = exchanges.assemble_due().await {
            exchanges.aggregation_alarm.expect(next);
        }
        tokio::select! {
            () = exchanges.aggregation_alarm.ring(&*clock) => {}
            () = exchanges.stopping.cancelled() => return,
        }
    }
}

impl Exchanges {
    /// Combines each due group. Returns when to check again.
    async fn assemble_due(&self) -> Option<Timestamp> {
        let now = self.parts.clock.now();
        let names: Vec<Name> = self.running.read().keys().cloned().collect();
        let (due, next) = match self.parts.spool.due_groups(&names, now, STEP).await {
            Ok(found) => found,
            Err(error) => {
                tracing::error!(%error, "cannot read the groups of collected messages");
                return Some(now + AGAIN);
            }
        };
        let mut done = 0;
        for gathering in &due {
            let Some(running) = self.find(&gathering.exchange) else { continue };
            match self.assemble(&running, gathering).await {
                Ok(()) => done += 1,
                Err(error) => {
                    tracing::error!(%error, exchange = %gathering.exchange, "cannot combine collected messages")
                }
            }
        }
        if done < due.len() {
            return Some(now + AGAIN);
        }
        if due.len() >= STEP { Some(now) } else { next }
    }

    async fn assemble(&self, running: &RunningExchange, gathering: &MessageGroup) -> Result<(), StoreError> {
        let members = self.parts.spool.group_messages(gathering).await?;
        let ids: Vec<MessageId> = members.iter().map(|(id, ..)| *id).collect();
        let bodies: Vec<Bytes> = members.iter().map(|(.., body)| body.clone()).collect();
        let trace = common_trace(members.iter().map(|(_, head, _)| head));
        let last = members.into_iter().next_back().map(|(_, head, _)| head).unwrap_or_default();
        let form = Form::of(&gathering.form);
        let composing = tokio::task::spawn_blocking(move || form.compose(&bodies)).await;
        let composed = composing.map_err(StoreError::unavailable)?;
        let (port, kind) = (&gathering.port, MessageKind::OneWay);
        let (head, body, routed) = match composed {
            Ok((body, content_type)) => {
                let message = PipelineMessage {
                    content_type: content_type.to_owned(),
                    body,
                    trace,
                    ..PipelineMessage::default()
                };
                let mut head = promote::head(&running.compiled, &message);
                promote::inherit(&mut head, &last);
                let head = Head { hops: 0, ..head };
                let routed = running.legs(port, kind, &head, message.body.len());
                (head, message.body, routed)
            }
            // Unlikely: each member was checked at its receipt.
            Err(why) => (last, Bytes::new(), Err(format!("the messages cannot be combined: {why}"))),
        };
        let whole = self.new_message(running, gathering.partition, port, kind, body, self.parts.clock.now());
        let whole = NewMessage { head, ..whole }.routed(routed);
        let many = ids.len() as u64;
        let _reservation = running.reserve_legs(std::slice::from_ref(&whole));
        if self.parts.spool.assemble(gathering, ids, whole.clone()).await? {
            let labels = [("exchange", running.name()), ("port", port.to_string())];
            metrics::counter!("tocsin_exchange_aggregated_total", &labels).increment(many);
            self.index_properties(running, whole.id, &whole.head, whole.accepted_at);
            self.dispatch(running, &whole);
        } else {
            // A member was ended in the meantime; combine the others without it.
            self.aggregation_alarm.expect(self.parts.clock.now());
        }
        Ok(())
    }
}

/// Trace context of a combined message: that of the last member, if all are in one trace.
fn common_trace<'h>(mut heads: impl DoubleEndedIterator<Item = &'h Head>) -> Option<Box<TraceContext>> {
    let last = heads.next_back()?.trace.as_ref()?;
    let is_same = |head: &Head| head.trace.as_ref().is_some_and(|other| other.trace == last.trace);
    heads.all(is_same).then(|| last.clone())
}
