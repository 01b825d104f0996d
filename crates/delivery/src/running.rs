//! The open channel of all protocols: a queue, its sessions, and a protocol's sender.

use std::{borrow::Cow, future::Future, sync::Arc, time::Duration};

use async_trait::async_trait;
use futures_util::FutureExt;
use tocsin_model::{
    application::{Channel, Rate},
    content::PartsUsed,
    delivery_policy::Priority,
    id::Name,
    receipt::Reason,
};
use tokio::{sync::mpsc, task::JoinSet};

use crate::{
    channel::{Answer, Context, Destination, DestinationState, HeldBackMail, OpenChannel, Opened, Outgoing},
    mail_sender::MailSender,
    pending::{DeliveryContext, PendingDelivery},
    queue::{LaneOf, Queue},
};

/// Time that `close` waits for messages in flight.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(30);

/// The part of a channel that each protocol implements.
#[async_trait]
pub(crate) trait ProtocolSender: Send + Sync {
    /// See `OpenChannel::probe`.
    async fn probe(&self) -> Result<String, Reason>;
    /// See `OpenChannel::down`.
    fn down(&self) -> Option<Reason>;
    /// See `OpenChannel::parts_used`.
    fn parts_used(&self) -> PartsUsed;
    /// See `OpenChannel::mail_sender`.
    fn mail_sender(&self) -> Option<MailSender> {
        None
    }
    /// Whether its sessions can send to several recipients at once.
    fn takes_multicasts(&self) -> bool {
        false
    }
    /// Finds out what the lanes of these messages depend on, before they are queued.
    async fn prepare(&self, _outgoing: &[Outgoing]) {}
    /// Stores what is not stored yet. Called when all sessions have ended.
    async fn finish(&self) {}
    /// See `OpenChannel::reconfigure`.
    fn reconfigure(&self, _name: &Name, _channel: &Channel, _context: &Context) -> Option<Opened> {
        None
    }
}

/// A queue with its sessions: the one open channel of all protocols.
pub(crate) struct Running {
    shared: Arc<DeliveryContext>,
    queue: Arc<Queue>,
    lane_of: Box<LaneOf>,
    protocol_sender: Arc<dyn ProtocolSender>,
    sessions: JoinSet<()>,
}

impl Running {
    /// Starts `sessions` sessions; each is the future that `session` returns. A session that panics is restarted.
    /// Must be called inside a tokio runtime.
    pub fn start<F, S>(
        shared: Arc<DeliveryContext>,
        queue: Arc<Queue>,
        lane_of: impl for<'a> Fn(&'a str) -> Cow<'a, str> + Send + Sync + 'static,
        protocol_sender: Arc<dyn ProtocolSender>,
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
                    tracing::error!(channel = %name, "a session failed with an internal error and is restarted");
                }
            });
        }
        Box::new(Running { shared, queue, lane_of: Box::new(lane_of), protocol_sender, sessions })
    }
}

#[async_trait]
impl OpenChannel for Running {
    async fn send(&self, outgoing: Outgoing, answers: &mpsc::Sender<Answer>) {
        self.send_all(vec![outgoing], answers).await;
    }

    async fn send_all(&self, outgoing: Vec<Outgoing>, answers: &mpsc::Sender<Answer>) {
        self.protocol_sender.prepare(&outgoing).await;
        // Recipients with a lane each are joined again when their lane has its turn.
        let takes_multicasts = self.protocol_sender.takes_multicasts() && !self.queue.has_lanes();
        let pending = match takes_multicasts {
            true => {
                let mut pending = PendingDelivery::all(outgoing, &self.shared, answers);
                PendingDelivery::gather(&mut pending);
                pending
            }
            false if outgoing.iter().all(|outgoing| outgoing.others.is_empty()) => {
                PendingDelivery::all(outgoing, &self.shared, answers)
            }
            false => PendingDelivery::all(
                outgoing.into_iter().flat_map(Outgoing::into_each).collect(),
                &self.shared,
                answers,
            ),
        };
        self.queue.push_all(pending, &*self.lane_of).await;
    }

    fn parts_used(&self) -> PartsUsed {
        self.protocol_sender.parts_used()
    }

    fn hold(&self, address: &str, priority: Priority) -> Option<Duration> {
        let lane = self.queue.has_lanes().then(|| (self.lane_of)(address))?;
        self.queue.change_lanes(|lanes, now| lanes.book(&lane, priority, now)).flatten()
    }

    fn held_back(&self) -> Vec<HeldBackMail> {
        self.queue.lanes(|lanes, now| lanes.held_back(now)).unwrap_or_default()
    }

    fn note_delay(&self, address: &str, said: &str) {
        if self.queue.has_lanes() {
            let lane = (self.lane_of)(address);
            self.queue.change_lanes(|lanes, now| lanes.delayed(&lane, said, now));
        }
    }

    fn destinations(&self, limit: usize) -> Vec<Destination> {
        self.queue.lanes(|lanes, now| lanes.destinations(limit, now)).unwrap_or_default()
    }

    fn destination_counts(&self) -> [usize; DestinationState::ALL.len()] {
        self.queue.lanes(|lanes, now| lanes.destination_counts(now)).unwrap_or_default()
    }

    fn mail_sender(&self) -> Option<MailSender> {
        self.protocol_sender.mail_sender()
    }

    fn set_rate(&self, rate: Option<Rate>) {
        self.queue.set_rate(rate);
    }

    async fn wait_until_answered(&self) {
        self.shared.wait_until_answered().await;
    }

    async fn probe(&self) -> Result<String, Reason> {
        self.protocol_sender.probe().await
    }

    fn drain(&self) {
        self.queue.close();
    }

    fn reconfigure(&self, name: &Name, channel: &Channel, context: &Context) -> Option<Opened> {
        let opened = self.protocol_sender.reconfigure(name, channel, context)?;
        Some(opened.inspect(|open| open.set_rate(channel.flow.rate)))
    }

    fn down(&self) -> Option<Reason> {
        self.protocol_sender.down()
    }

    async fn close(mut self: Box<Self>) {
        self.queue.close();
        let finish = async { while self.sessions.join_next().await.is_some() {} };
        if tokio::time::timeout(CLOSE_TIMEOUT, finish).await.is_err() {
            self.sessions.shutdown().await;
        }
        self.protocol_sender.finish().await;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The sessions are aborted with the set; messages that they hold are answered on drop.
        self.queue.close();
    }
}

/// Back-off of a session with a single destination after consecutive failures (at least one): one second, doubled
/// with each failure, up to 16.
pub(crate) fn pause_after(failures: u32) -> Duration {
    Duration::from_secs(1 << failures.saturating_sub(1).min(4))
}

/// Lane of a protocol with a single destination.
pub(crate) fn single_lane(_: &str) -> Cow<'_, str> {
    "".into()
}

#[cfg(test)]
mod tests {
    use tocsin_model::receipt::Disposition;

    use super::*;
    use crate::testing::{context, outgoing, show};

    struct Nobody;

    #[async_trait]
    impl ProtocolSender for Nobody {
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
    async fn a_panic_answers_its_message_and_the_session_restarts() {
        let (queue, shared) = (Queue::single(1), DeliveryContext::new(&"c".parse().expect("a name"), &context()));
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
        let open = Running::start(shared, queue, single_lane, Arc::new(Nobody), session);
        // One slot for answers, so that the panic finds the channel full.
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
        let broken = "deferred Internal the attempt failed with an internal error";
        let expected = ["delivered fine", "delivered fine", broken, broken, "delivered fine"];
        assert!(shown.iter().map(|(_, shown)| shown.as_str()).eq(expected), "{shown:?}");
        open.wait_until_answered().await;
        open.close().await;
    }
}
