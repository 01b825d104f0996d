//! The one open channel of all protocols: a queue, its sessions, and what a protocol adds.

use std::{borrow::Cow, future::Future, sync::Arc, time::Duration};

use async_trait::async_trait;
use futures_util::FutureExt;
use tocsin_model::{
    application::{Channel, Rate},
    conduct::Priority,
    content::PartsUsed,
    id::Name,
    receipt::Reason,
};
use tokio::{sync::mpsc, task::JoinSet};

use crate::{
    channel::{Answer, Context, Destination, DestinationState, OpenChannel, Outgoing},
    pending::{Pending, Shared},
    protocol::Opened,
    queue::{LaneOf, Queue},
};

/// How long `close` waits for what is on its way.
const CLOSE_PATIENCE: Duration = Duration::from_secs(30);

/// What a protocol adds to the queue and its sessions.
#[async_trait]
pub(crate) trait FarSide: Send + Sync {
    /// See `OpenChannel::probe`.
    async fn probe(&self) -> Result<String, Reason>;
    /// See `OpenChannel::down`.
    fn down(&self) -> Option<Reason>;
    /// See `OpenChannel::parts_used`.
    fn parts_used(&self) -> PartsUsed;
    /// Whether the messages that its sessions take may have several recipients.
    fn takes_multicasts(&self) -> bool {
        false
    }
    /// See `OpenChannel::successor`.
    fn successor(&self, _name: &Name, _channel: &Channel, _context: &Context) -> Option<Opened> {
        None
    }
}

/// A queue with its sessions: the one open channel of all protocols.
pub(crate) struct Running {
    shared: Arc<Shared>,
    queue: Arc<Queue>,
    lane_of: Box<LaneOf>,
    far_side: Arc<dyn FarSide>,
    sessions: JoinSet<()>,
}

impl Running {
    /// Starts `sessions` sessions; each is the future that `session` makes. One that panics is started anew. Must be
    /// called inside a tokio runtime.
    pub fn start<F, S>(
        shared: Arc<Shared>,
        queue: Arc<Queue>,
        lane_of: impl for<'a> Fn(&'a str) -> Cow<'a, str> + Send + Sync + 'static,
        far_side: Arc<dyn FarSide>,
        session: F,
    ) -> Box<dyn OpenChannel>
    where
        F: Fn() -> S + Clone + Send + 'static,
        S: Future<Output = ()> + Send + 'static,
    {
        let mut sessions = JoinSet::new();
        for _ in 0..queue.sessions {
            let (session, name) = (session.clone(), shared.name.clone());
            sessions.spawn(async move {
                // The message in hand is answered as its session unwinds, so a poison message cannot loop here.
                while std::panic::AssertUnwindSafe(session()).catch_unwind().await.is_err() {
                    tracing::error!(channel = %name, "a session broke off in the middle of our own work and starts anew");
                }
            });
        }
        Box::new(Running { shared, queue, lane_of: Box::new(lane_of), far_side, sessions })
    }
}

#[async_trait]
impl OpenChannel for Running {
    async fn send(&self, outgoing: Outgoing, answers: &mpsc::Sender<Answer>) {
        self.send_all(vec![outgoing], answers).await;
    }

    async fn send_all(&self, outgoing: Vec<Outgoing>, answers: &mpsc::Sender<Answer>) {
        let pending = match self.far_side.takes_multicasts() {
            true => {
                let mut pending = Pending::all(outgoing, &self.shared, answers);
                Pending::gather(&mut pending);
                pending
            }
            false if outgoing.iter().all(|outgoing| outgoing.others.is_empty()) => {
                Pending::all(outgoing, &self.shared, answers)
            }
            false => Pending::all(outgoing.into_iter().flat_map(Outgoing::into_each).collect(), &self.shared, answers),
        };
        self.queue.push_all(pending, &*self.lane_of).await;
    }

    fn parts_used(&self) -> PartsUsed {
        self.far_side.parts_used()
    }

    fn hold(&self, address: &str, priority: Priority) -> Option<Duration> {
        self.queue.lanes(|lanes, now| lanes.hold(&(self.lane_of)(address), priority, now)).flatten()
    }

    fn destinations(&self, limit: usize) -> Vec<Destination> {
        self.queue.lanes(|lanes, now| lanes.destinations(limit, now)).unwrap_or_default()
    }

    fn census(&self) -> [usize; DestinationState::ALL.len()] {
        self.queue.lanes(|lanes, now| lanes.census(now)).unwrap_or_default()
    }

    fn keep_to(&self, rate: Option<Rate>) {
        self.queue.keep_to(rate);
    }

    async fn settle(&self) {
        self.shared.settle().await;
    }

    async fn probe(&self) -> Result<String, Reason> {
        self.far_side.probe().await
    }

    fn wind_down(&self) {
        self.queue.close();
    }

    fn successor(&self, name: &Name, channel: &Channel, context: &Context) -> Option<Opened> {
        let opened = self.far_side.successor(name, channel, context)?;
        Some(opened.inspect(|open| open.keep_to(channel.flow.rate)))
    }

    fn down(&self) -> Option<Reason> {
        self.far_side.down()
    }

    async fn close(mut self: Box<Self>) {
        self.queue.close();
        let finish = async { while self.sessions.join_next().await.is_some() {} };
        if tokio::time::timeout(CLOSE_PATIENCE, finish).await.is_err() {
            self.sessions.shutdown().await;
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The sessions are aborted with the set; what they hold is answered as it drops.
        self.queue.close();
    }
}

/// How long a session lets its only far side be after so many failures in a row, of which there is at least one: a
/// second, doubled with each, up to 16.
pub(crate) fn pause_after(failures: u32) -> Duration {
    Duration::from_secs(1 << failures.saturating_sub(1).min(4))
}

/// The lane of a protocol with a single far side.
pub(crate) fn only_lane(_: &str) -> Cow<'_, str> {
    "".into()
}

#[cfg(test)]
mod tests {
    use tocsin_model::receipt::Disposition;

    use super::*;
    use crate::testing::{context, outgoing, show};

    struct Nobody;

    #[async_trait]
    impl FarSide for Nobody {
        async fn probe(&self) -> Result<String, Reason> {
            Ok(String::new())
        }

        fn down(&self) -> Option<Reason> {
            None
        }

        fn parts_used(&self) -> PartsUsed {
            PartsUsed::ALL
        }
    }

    #[tokio::test]
    async fn a_panic_is_an_answer_too_and_the_session_goes_on() {
        let (queue, shared) = (Queue::single(1), Shared::new(&"c".parse().expect("a name"), &context()));
        let sessions = queue.clone();
        let session = move || {
            let queue = sessions.clone();
            async move {
                while let Some(pending) = queue.pop_many(1).await.and_then(|mut taken| taken.pop()) {
                    assert!(pending.outgoing.address != "poison", "swallowed poison");
                    pending.answer(Disposition::Delivered { reply: "fine".into() }).await;
                }
            }
        };
        let open = Running::start(shared, queue, only_lane, Arc::new(Nobody), session);
        // One place for answers, so that the answer of the panic finds none.
        let (answers, mut answered) = mpsc::channel(1);
        for (number, address) in ["a", "b", "poison", "poison", "c"].into_iter().enumerate() {
            open.send(outgoing(number as u32, address), &answers).await;
        }
        drop(answers);
        let mut shown = Vec::new();
        while let Some(answer) = answered.recv().await {
            shown.push((answer.ticket.ordinal, show(&answer.disposition)));
        }
        shown.sort();
        let broken = "deferred Internal the attempt broke off in the middle of our own work";
        let expected = ["delivered fine", "delivered fine", broken, broken, "delivered fine"];
        assert!(shown.iter().map(|(_, shown)| shown.as_str()).eq(expected), "{shown:?}");
        open.settle().await;
        open.close().await;
    }
}
