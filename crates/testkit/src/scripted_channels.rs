//! Channels with scripted answers, and the transcript of the messages that they received.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use tocsin_connect::Clock;
use tocsin_delivery::{Answer, OpenChannel, Outgoing};
use tocsin_model::{
    delivery_policy::Priority,
    receipt::{Disposition, Reason, ReasonKind},
};
use tokio::sync::mpsc;

use crate::SimulatedClock;

/// Scripted answer of an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScriptedAnswer {
    /// Accepts every message.
    Delivers,
    /// Defers, optionally with a time to wait.
    Defers(Option<Duration>),
    /// Refuses permanently.
    Refuses,
    /// Refuses permanently and disables the endpoint.
    Gone,
    /// Refuses permanently: the address does not exist.
    Unknown,
    /// Defers: the mailbox is full.
    Full,
    /// Refuses the message as expired.
    Expires,
    /// Accepts, but answers after this delay.
    DeliversAfter(Duration),
    /// Panics in the channel.
    Panics,
    /// Is paused for this time: nothing is sent.
    Rests(Duration),
    /// Has no free session: the message waits in the channel's queue until the channel is closed.
    Waits,
}

/// All scripted channels of a scenario: the answers of each address, and a transcript line for each received message.
#[derive(Clone)]
pub struct ScriptedChannels {
    clock: SimulatedClock,
    answers: Arc<Mutex<BTreeMap<String, ScriptedAnswer>>>,
    seen: Arc<Mutex<Vec<TranscriptLine>>>,
    down: Arc<Mutex<BTreeSet<String>>>,
    /// The ids of the received messages, over all channels.
    messages: Arc<Mutex<BTreeSet<String>>>,
}

/// A line of the transcript, with the time and channel by which it is ordered.
struct TranscriptLine {
    time: String,
    /// `None`: a note of the script, which keeps its position.
    channel: Option<String>,
    line: String,
}

impl ScriptedChannels {
    /// Channels that accept everything.
    pub fn new(clock: SimulatedClock) -> Self {
        ScriptedChannels {
            clock,
            answers: Arc::default(),
            seen: Arc::default(),
            down: Arc::default(),
            messages: Arc::default(),
        }
    }

    /// Sets the answer of an address.
    pub fn set(&self, address: &str, scripted_answer: ScriptedAnswer) {
        self.answers.lock().insert(address.to_owned(), scripted_answer);
    }

    /// Marks a channel as unreachable or reachable. While it is unreachable, each message is deferred after 15
    /// seconds.
    pub fn set_down(&self, channel: &str, down: bool) {
        match down {
            true => self.down.lock().insert(channel.to_owned()),
            false => self.down.lock().remove(channel),
        };
    }

    /// The transcript of received messages. Channels work concurrently, so lines of the same time are ordered by
    /// channel.
    pub fn seen(&self) -> Vec<String> {
        let mut seen = self.seen.lock();
        let together =
            |a: &TranscriptLine, b: &TranscriptLine| a.time == b.time && a.channel.is_some() && b.channel.is_some();
        for group in seen.chunk_by_mut(together) {
            group.sort_by(|a, b| a.channel.cmp(&b.channel));
        }
        seen.iter().map(|seen| seen.line.clone()).collect()
    }

    /// Number of different messages; one message to several recipients counts once.
    pub fn messages(&self) -> usize {
        self.messages.lock().len()
    }

    /// Adds a note of the script to the transcript.
    pub fn note(&self, line: String) {
        self.seen.lock().push(TranscriptLine { time: String::new(), channel: None, line });
    }

    /// Opens a scripted channel with this name.
    pub fn channel(&self, name: &str) -> Box<dyn OpenChannel> {
        Box::new(ScriptedChannel { name: name.to_owned(), scripted: self.clone(), waiting: Mutex::default() })
    }
}

struct ScriptedChannel {
    name: String,
    scripted: ScriptedChannels,
    waiting: Mutex<Vec<(Outgoing, mpsc::Sender<Answer>)>>,
}

/// Time until a message to an unreachable channel is deferred.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);

#[async_trait]
impl OpenChannel for ScriptedChannel {
    async fn send(&self, outgoing: Outgoing, answers: &mpsc::Sender<Answer>) {
        let sent_at = self.scripted.clock.now();
        let scripted_answer =
            self.scripted.answers.lock().get(&outgoing.address).cloned().unwrap_or(ScriptedAnswer::Delivers);
        if scripted_answer == ScriptedAnswer::Waits {
            return self.waiting.lock().push((outgoing, answers.clone()));
        }
        self.scripted.messages.lock().insert(outgoing.message.message_id.clone());
        let answer = |text: &str| Reason::new(ReasonKind::Answer, text);
        let (disposition, word, delay) = match scripted_answer {
            _ if self.down().is_some() => {
                let reason = Reason::new(ReasonKind::Connection, "nobody is there");
                (Disposition::Deferred { reason, retry_after: None }, "no connection", CONNECT_TIMEOUT)
            }
            ScriptedAnswer::Waits => unreachable!("it returned above"),
            ScriptedAnswer::Rests(_) => unreachable!("held messages are not sent"),
            ScriptedAnswer::Panics => panic!("scripted panic"),
            ScriptedAnswer::Delivers => (Disposition::Delivered { reply: "ok".into() }, "delivered", Duration::ZERO),
            ScriptedAnswer::DeliversAfter(delay) => (Disposition::Delivered { reply: "ok".into() }, "delivered", delay),
            ScriptedAnswer::Defers(retry_after) => {
                (Disposition::Deferred { reason: answer("not now"), retry_after }, "deferred", Duration::ZERO)
            }
            ScriptedAnswer::Gone => {
                let reason = Reason::new(ReasonKind::Gone, "gone for good");
                (Disposition::Refused { reason }, "gone", Duration::ZERO)
            }
            ScriptedAnswer::Unknown => {
                let reason = Reason::new(ReasonKind::Bounced, "550 5.1.1 no such user");
                (Disposition::Refused { reason }, "unknown", Duration::ZERO)
            }
            ScriptedAnswer::Full => {
                let reason = Reason::new(ReasonKind::SoftBounced, "452 4.2.2 mailbox full");
                (Disposition::Deferred { reason, retry_after: None }, "full", Duration::ZERO)
            }
            ScriptedAnswer::Expires => {
                let reason = Reason::new(ReasonKind::Expired, "its time was over before it was sent");
                (Disposition::Refused { reason }, "expired", Duration::ZERO)
            }
            ScriptedAnswer::Refuses => (Disposition::Refused { reason: answer("never") }, "refused", Duration::ZERO),
        };
        let subject = outgoing.message.content.subject.as_deref().unwrap_or_default();
        let time = self.scripted.clock.time_of_day(sent_at);
        let (name, ids) =
            (&self.name, std::iter::once(outgoing.id).chain(outgoing.others.iter().map(|other| other.id)));
        for (id, address) in ids.zip(outgoing.addresses()) {
            let line = format!("{time} {name} {address} {id}: {subject} -> {word}");
            self.scripted.seen.lock().push(TranscriptLine { time: time.clone(), channel: Some(name.clone()), line });
        }
        let (answers, clock) = (answers.clone(), self.scripted.clock);
        let address = outgoing.address.clone();
        let channel = name.parse().expect("the name of a channel");
        tokio::spawn(async move {
            tokio::time::sleep(delay).await;
            let answer = Answer {
                ticket: outgoing.ticket,
                id: outgoing.id,
                formatted_at: outgoing.message.formatted_at,
                sent_at,
                answered_at: clock.now(),
                disposition,
                channel,
                address,
                place: outgoing.message.place.clone(),
                others: outgoing.others,
            };
            // After a simulated crash there is no receiver.
            let _ = answers.send(answer).await;
        });
    }

    /// Recipients of one message with the same scripted answer are answered together.
    async fn send_all(&self, outgoing: Vec<Outgoing>, answers: &mpsc::Sender<Answer>) {
        for outgoing in outgoing {
            let is_one = {
                let answers = self.scripted.answers.lock();
                let first = answers.get(&outgoing.address);
                outgoing.addresses().all(|address| answers.get(address) == first)
            };
            match is_one {
                true => self.send(outgoing, answers).await,
                false => {
                    for one in outgoing.into_each() {
                        self.send(one, answers).await;
                    }
                }
            }
        }
    }

    fn hold(&self, address: &str, _priority: Priority) -> Option<Duration> {
        match self.scripted.answers.lock().get(address)? {
            ScriptedAnswer::Rests(wait) => Some(*wait),
            _ => None,
        }
    }

    async fn wait_until_answered(&self) {}

    async fn probe(&self) -> Result<String, Reason> {
        Ok("scripted".to_owned())
    }

    fn down(&self) -> Option<Reason> {
        let down = self.scripted.down.lock().contains(&self.name);
        down.then(|| Reason::new(ReasonKind::Connection, "nobody is there"))
    }

    fn drain(&self) {
        let now = self.scripted.clock.now();
        for (outgoing, answers) in self.waiting.lock().drain(..) {
            let reason = Reason::new(ReasonKind::Untried, "the channel was closed before it was sent");
            let answer = Answer {
                ticket: outgoing.ticket,
                id: outgoing.id,
                formatted_at: outgoing.message.formatted_at,
                sent_at: now,
                answered_at: now,
                disposition: Disposition::Deferred { reason, retry_after: None },
                channel: self.name.parse().expect("the name of a channel"),
                address: outgoing.address.clone(),
                place: None,
                others: outgoing.others,
            };
            answers.try_send(answer).expect("there is room for the few answers of a scenario");
        }
    }

    async fn close(self: Box<Self>) {}
}
