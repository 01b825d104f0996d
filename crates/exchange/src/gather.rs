//! Messages that were gathered become one, which is routed like every other.
//!
//! Each of them is durable before its sender hears of it, and in which group it waits is stored with it. When they are as
//! many as wanted, or their time has come, the one message with its legs and the end of the others are one commit: a crash
//! before it lets them become one later, and none is in two.

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
    spool::{Gathering, Head, NewMessage},
};

use crate::{
    Exchanges, Running,
    pipeline::{Parcel, assemble::Form},
    promote,
};

/// Groups that are looked at in one step.
const STEP: usize = 100;
/// When what could not be done is tried again.
const AGAIN: std::time::Duration = std::time::Duration::from_secs(5);

/// Runs until the exchanges stop.
pub(crate) async fn run(exchanges: Arc<Exchanges>) {
    let clock = exchanges.parts.clock.clone();
    loop {
        exchanges.gatherings.set();
        if let Some(next) = exchanges.assemble_due().await {
            exchanges.gatherings.expect(next);
        }
        tokio::select! {
            () = exchanges.gatherings.ring(&*clock) => {}
            () = exchanges.stopping.cancelled() => return,
        }
    }
}

impl Exchanges {
    /// Makes one of each group whose time has come. Gives when to look again.
    async fn assemble_due(&self) -> Option<Timestamp> {
        let now = self.parts.clock.now();
        let names: Vec<Name> = self.running.read().keys().cloned().collect();
        let (due, next) = match self.parts.spool.due_gatherings(&names, now, STEP).await {
            Ok(found) => found,
            Err(error) => {
                tracing::error!(%error, "messages cannot be gathered");
                return Some(now + AGAIN);
            }
        };
        let mut done = 0;
        for gathering in &due {
            let Some(running) = self.find(&gathering.exchange) else { continue };
            match self.assemble(&running, gathering).await {
                Ok(()) => done += 1,
                Err(error) => tracing::error!(%error, exchange = %gathering.exchange, "messages cannot become one"),
            }
        }
        if done < due.len() {
            return Some(now + AGAIN);
        }
        if due.len() >= STEP { Some(now) } else { next }
    }

    async fn assemble(&self, running: &Running, gathering: &Gathering) -> Result<(), StoreError> {
        let members = self.parts.spool.gathered(gathering).await?;
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
                let parcel = Parcel { content_type: content_type.to_owned(), body, trace, ..Parcel::default() };
                let mut head = promote::head(&running.compiled, &parcel);
                promote::inherit(&mut head, &last);
                let head = Head { hops: 0, ..head };
                let routed = running.legs(port, kind, &head, parcel.body.len());
                (head, parcel.body, routed)
            }
            // Each was looked at when it came.
            Err(why) => (last, Bytes::new(), Err(format!("they cannot become one message: {why}"))),
        };
        let whole = self.new_message(running, gathering.partition, port, kind, body, self.parts.clock.now());
        let whole = NewMessage { head, ..whole }.routed(routed);
        let many = ids.len() as u64;
        let _announced = running.announce(std::slice::from_ref(&whole));
        if self.parts.spool.assemble(gathering, ids, whole.clone()).await? {
            let labels = [("exchange", running.name()), ("port", port.to_string())];
            metrics::counter!("exchange_assembled_total", &labels).increment(many);
            self.let_be_found(running, whole.id, &whole.head, whole.accepted_at);
            self.begin(running, &whole);
        } else {
            // One of them was ended meanwhile: the others become one without it.
            self.gatherings.expect(self.parts.clock.now());
        }
        Ok(())
    }
}

/// Where a message stands that is made of others: where the last of them does, if all are of one trace.
fn common_trace<'h>(mut heads: impl DoubleEndedIterator<Item = &'h Head>) -> Option<Box<TraceContext>> {
    let last = heads.next_back()?.trace.as_ref()?;
    let is_same = |head: &Head| head.trace.as_ref().is_some_and(|other| other.trace == last.trace);
    heads.all(is_same).then(|| last.clone())
}
