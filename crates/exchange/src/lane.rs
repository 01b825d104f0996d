//! What waits for a send port: some of it in memory, ready to leave, and behind that the spool.
//!
//! The spool is the truth: what does not fit into memory, what is to be tried later and what a held port may not send stays
//! there and is read when its turn comes. So a far side that is down for a week costs memory for a thousand messages, not
//! for all of them. What is in memory or under way is never read again meanwhile.

use std::{
    collections::{HashSet, VecDeque},
    sync::{Arc, Weak},
};

use parking_lot::{Mutex, RwLock};
use tocsin_model::{
    exchange::{Mode, PortState},
    id::{MessageId, Name},
    time::Timestamp,
};
use tocsin_store::spool::WaitingLeg;
use tokio::task::AbortHandle;

use crate::{Exchanges, compile::Way, send};

/// Legs of a port that are in memory, ready to leave.
const READY_MAX: usize = 1_024;
/// Bytes of their bodies, about.
const READY_BYTES_MAX: usize = 16 << 20;
/// Legs that are read from the spool at a time.
const REFILL: usize = 256;
/// When the spool is asked again after it did not answer.
const REFILL_AGAIN: std::time::Duration = std::time::Duration::from_secs(1);

/// What waits for one send port.
pub(crate) struct Lane {
    exchange: Name,
    port: Name,
    exchanges: Weak<Exchanges>,
    way: RwLock<(Arc<Way>, PortState)>,
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    ready: VecDeque<WaitingLeg>,
    ready_bytes: usize,
    /// Under way.
    busy: u32,
    /// Ready or under way.
    in_hand: HashSet<(MessageId, u32)>,
    /// Whether more is due in the spool.
    behind: bool,
    refill: Option<Refill>,
    alarm: Option<(Timestamp, AbortHandle)>,
}

/// The spool is being read.
#[derive(Default)]
struct Refill {
    /// Finished since it began: it may still show as waiting.
    finished: HashSet<(MessageId, u32)>,
    /// Whether something came since that it may not show.
    outdated: bool,
}

impl Lane {
    pub fn new(exchange: Name, port: Name, way: Arc<Way>, state: PortState, exchanges: Weak<Exchanges>) -> Arc<Lane> {
        let queue = Mutex::new(Queue { behind: true, ..Queue::default() });
        Arc::new(Lane { exchange, port, exchanges, way: RwLock::new((way, state)), queue })
    }

    pub fn exchange(&self) -> &Name {
        &self.exchange
    }

    pub fn port(&self) -> &Name {
        &self.port
    }

    pub fn way(&self) -> Arc<Way> {
        self.way.read().0.clone()
    }

    pub fn state(&self) -> PortState {
        self.way.read().1
    }

    pub fn replies(&self) -> bool {
        self.way.read().0.definition.mode == Mode::Request
    }

    /// Legs that are under way, and that are ready.
    pub fn load(&self) -> (u32, usize) {
        let queue = self.queue.lock();
        (queue.busy, queue.ready.len())
    }

    /// Takes another way or another state. What is under way goes on as it began.
    pub fn change(self: &Arc<Lane>, way: Arc<Way>, state: PortState) {
        *self.way.write() = (way, state);
        if state != PortState::Active {
            let mut queue = self.queue.lock();
            let Queue { ready, in_hand, .. } = &mut *queue;
            for leg in ready.drain(..) {
                in_hand.remove(&place(&leg));
            }
            (queue.ready_bytes, queue.behind) = (0, true);
        }
        self.pump();
    }

    /// A leg that was stored just now.
    pub fn push(self: &Arc<Lane>, leg: WaitingLeg) {
        let is_active = self.state() == PortState::Active;
        let mut queue = self.queue.lock();
        let has_room = queue.ready.len() < READY_MAX && queue.ready_bytes < READY_BYTES_MAX;
        if !is_active || queue.behind || queue.refill.is_some() || !has_room {
            queue.behind = true;
            if let Some(refill) = &mut queue.refill {
                refill.outdated = true;
            }
        } else {
            queue.take(leg);
        }
        drop(queue);
        self.pump();
    }

    /// More is due in the spool than is known here.
    pub fn look(self: &Arc<Lane>) {
        let mut queue = self.queue.lock();
        queue.behind = true;
        if let Some(refill) = &mut queue.refill {
            refill.outdated = true;
        }
        drop(queue);
        self.pump();
    }

    /// Sends as much as may be under way, and reads more when there is too little to send.
    pub fn pump(self: &Arc<Lane>) {
        let Some(exchanges) = self.exchanges.upgrade() else { return };
        let (most, state) = {
            let way = self.way.read();
            (way.0.definition.concurrency, way.1)
        };
        if state != PortState::Active || exchanges.stopping.is_cancelled() {
            return;
        }
        let mut queue = self.queue.lock();
        while queue.busy < most
            && let Some(leg) = queue.ready.pop_front()
        {
            queue.busy += 1;
            queue.ready_bytes -= leg.body.len();
            exchanges.tasks.spawn(send::send(exchanges.clone(), self.clone(), leg));
        }
        if queue.behind && queue.refill.is_none() && queue.ready.len() < REFILL {
            queue.refill = Some(Refill::default());
            exchanges.tasks.spawn(refill(exchanges.clone(), self.clone()));
        }
    }

    /// A leg is done with for now; it is tried again at `due_at`, if at all.
    pub fn finished(self: &Arc<Lane>, leg: (MessageId, u32), due_at: Option<Timestamp>) {
        let mut queue = self.queue.lock();
        queue.busy -= 1;
        queue.in_hand.remove(&leg);
        if let Some(refill) = &mut queue.refill {
            refill.finished.insert(leg);
        }
        drop(queue);
        if let Some(due_at) = due_at {
            self.wake_at(due_at);
        }
        self.pump();
    }

    /// Looks into the spool at this time, unless it does so earlier anyway.
    fn wake_at(self: &Arc<Lane>, due_at: Timestamp) {
        let Some(exchanges) = self.exchanges.upgrade() else { return };
        let mut queue = self.queue.lock();
        if queue.alarm.as_ref().is_some_and(|(earlier, _)| *earlier <= due_at) {
            return;
        }
        let (lane, delay) = (self.clone(), due_at.since(exchanges.parts.clock.now()));
        let stopping = exchanges.stopping.clone();
        let alarm = exchanges.tasks.spawn(async move {
            tokio::select! {
                () = tokio::time::sleep(delay) => {}
                () = stopping.cancelled() => return,
            }
            lane.queue.lock().alarm = None;
            lane.look();
        });
        if let Some((_, later)) = queue.alarm.replace((due_at, alarm.abort_handle())) {
            later.abort();
        }
    }
}

impl Queue {
    fn take(&mut self, leg: WaitingLeg) {
        if self.in_hand.insert(place(&leg)) {
            self.ready_bytes += leg.body.len();
            self.ready.push_back(leg);
        }
    }
}

fn place(leg: &WaitingLeg) -> (MessageId, u32) {
    (leg.message, leg.leg.number)
}

/// Reads what is due from the spool, and when the next one is.
async fn refill(exchanges: Arc<Exchanges>, lane: Arc<Lane>) {
    let in_hand = Arc::new(lane.queue.lock().in_hand.clone());
    let (spool, now) = (&exchanges.parts.spool, exchanges.parts.clock.now());
    let read = async {
        let due = spool.due_legs(&lane.exchange, &lane.port, now, in_hand, REFILL, READY_BYTES_MAX).await?;
        Ok::<_, tocsin_store::error::StoreError>((due, spool.next_due(&lane.exchange, &lane.port, now).await?))
    };
    let next = match read.await {
        Ok((due, next)) => {
            let mut queue = lane.queue.lock();
            let refill = queue.refill.take().unwrap_or_default();
            // Fewer than asked for are all, unless their bodies were too large.
            let is_all = due.is_empty() || (due.len() < REFILL && bytes(&due) < READY_BYTES_MAX);
            queue.behind = refill.outdated || !is_all;
            due.into_iter().filter(|leg| !refill.finished.contains(&place(leg))).for_each(|leg| queue.take(leg));
            next
        }
        Err(error) => {
            tracing::error!(%error, exchange = %lane.exchange, port = %lane.port, "the spool does not answer");
            lane.queue.lock().refill = None;
            tokio::time::sleep(REFILL_AGAIN).await;
            None
        }
    };
    if let Some(due_at) = next {
        lane.wake_at(due_at);
    }
    lane.pump();
}

fn bytes(legs: &[WaitingLeg]) -> usize {
    legs.iter().map(|leg| leg.body.len()).sum()
}
