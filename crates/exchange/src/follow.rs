//! What follows once something is stored: a message leaves, who waits hears of it, the next of a port has its turn.
//!
//! The writer of the spool hands over what it has committed, and one task does what follows from it, in the order of the
//! commits. So nothing stops half-way because somebody has gone away meanwhile, and a commit of many messages wakes one task
//! and not one for each. What waits here was a write before, and of those only so many may wait.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use bytes::Bytes;
use tocsin_model::{exchange::TrackPoint, field::Row, id::Name, time::Timestamp};
use tocsin_store::{
    error::StoreError,
    spool::{Accepted, Settled, TakenMessage},
};
use tokio::sync::{
    mpsc::{UnboundedReceiver, UnboundedSender},
    oneshot,
};
use tokio_util::{sync::CancellationToken, task::task_tracker::TaskTrackerToken};

use crate::{
    Exchanges, Running,
    callers::{Answer, Callers},
    lane::Announced,
    send::Tried,
    track::Seen,
};

/// Of so many things follows what does before the task lets others have their turn.
const AT_ONCE: usize = 64;

/// Something was stored, or could not be.
pub(crate) enum Stored {
    Taken(Box<Coming>, Result<(Accepted, Option<Timestamp>), StoreError>),
    Tried(Arc<Tried>, Result<Settled, StoreError>),
    /// A message that left before, with what came of that.
    Both(Box<Coming>, Arc<Tried>, Result<Settled, StoreError>),
}

/// Where it is told.
pub(crate) type Tell = UnboundedSender<Stored>;

/// Does what follows, until nothing is stored any more.
pub(crate) async fn run(mut hears: UnboundedReceiver<Stored>, stopped: CancellationToken) {
    let mut told = Vec::with_capacity(AT_ONCE);
    loop {
        let many = tokio::select! {
            biased;
            many = hears.recv_many(&mut told, AT_ONCE) => many,
            () = stopped.cancelled() => 0,
        };
        if many == 0 {
            return;
        }
        for stored in told.drain(..) {
            // What breaks takes nobody else with it.
            let tried = match &stored {
                Stored::Tried(tried, _) | Stored::Both(_, tried, _) => Some(tried.clone()),
                Stored::Taken(..) => None,
            };
            let followed = catch_unwind(AssertUnwindSafe(|| match stored {
                Stored::Taken(coming, stored) => coming.follow(stored),
                Stored::Tried(tried, settled) => tried.follow(settled),
                Stored::Both(coming, tried, Ok(settled)) => {
                    coming.follow(Ok((Accepted::New, None)));
                    tried.follow(Ok(settled));
                }
                Stored::Both(coming, tried, Err(error)) => {
                    tried.forget(&error);
                    coming.follow(Err(error));
                }
            }));
            if followed.is_err() {
                tracing::error!("what follows from a stored message broke; the next start finds the message");
                tried.iter().for_each(|tried| tried.give_up());
            }
        }
        tokio::task::yield_now().await;
    }
}

/// A message on its way into the spool. The writer may be the last to have it, and must not be the one who closes the spool.
pub(crate) struct Coming {
    pub exchanges: Weak<Exchanges>,
    pub callers: Arc<Callers>,
    pub running: Arc<Running>,
    pub port: Name,
    pub taken: Arc<TakenMessage>,
    /// When it came.
    pub since: Timestamp,
    /// The headers that it came with, if it is told of in a trace.
    pub headers: Option<Vec<(String, String)>>,
    /// The media type and the body that it came with, and what routes see of it, if they may be tracked.
    pub seen: Option<(String, Bytes, Option<Row>)>,
    /// Its sender, who asks only if no reply says it.
    pub sender: Option<oneshot::Sender<Result<Accepted, StoreError>>>,
    pub is_new: bool,
    /// Of one whose only leg is under way already: whether it could not be stored.
    pub lost: Option<Arc<AtomicBool>>,
    /// Its legs, which nobody else sends meanwhile.
    pub _announced: Announced,
    /// Whoever stops waits for it.
    pub _under_way: TaskTrackerToken,
}

impl Drop for Coming {
    /// Nobody waits for the reply to a message that is not there, or that was there before.
    fn drop(&mut self) {
        if !self.is_new {
            self.callers.answer(self.taken.whole.id, Answer::None);
        }
    }
}

impl Coming {
    fn follow(mut self: Box<Self>, stored: Result<(Accepted, Option<Timestamp>), StoreError>) {
        let Some(exchanges) = self.exchanges.upgrade() else { return };
        let accepted = stored.map(|(accepted, due_at)| {
            due_at.into_iter().for_each(|at| exchanges.gatherings.expect(at));
            accepted
        });
        if let (Some(lost), Err(_)) = (&self.lost, &accepted) {
            lost.store(true, Ordering::Release);
        }
        self.is_new = matches!(accepted, Ok(Accepted::New));
        if self.is_new {
            self.begin(&exchanges);
        }
        if let Some(sender) = self.sender.take() {
            // One who has gone away has a message that is stored nevertheless.
            let _ = sender.send(accepted);
        }
    }

    /// It is stored, and leaves.
    fn begin(&self, exchanges: &Exchanges) {
        let Coming { running, port, .. } = self;
        let TakenMessage { whole, parts, .. } = &*self.taken;
        if let Some(meters) = running.meters.get(port) {
            meters.new.increment(1);
        }
        for message in std::iter::once(whole).chain(parts.iter().flatten()) {
            exchanges.let_be_found(running, message.id, &message.head, message.accepted_at);
        }
        match parts {
            None if self.lost.is_some() => exchanges.expect_expiry(whole),
            None => exchanges.begin(running, whole),
            Some(parts) => parts.iter().for_each(|part| exchanges.begin(running, part)),
        }
        if let Some(headers) = &self.headers {
            exchanges.spans.received(whole, headers, self.since, exchanges.parts.clock.now());
        }
        if let Some((content_type, body, row)) = &self.seen {
            let (exchange, message, point) = (&running.compiled.definition.name, whole.id, TrackPoint::Received);
            let seen = Seen { exchange, message, point, port, attempt: None, content_type, body };
            exchanges.track(running, &seen, row.as_ref(), self.since);
        }
    }
}
