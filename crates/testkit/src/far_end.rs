//! Channels whose answers are scripted, and what they saw.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use tocsin_delivery::{Answer, Clock, OpenChannel, Outgoing};
use tocsin_model::{
    conduct::Priority,
    receipt::{Disposition, Reason, ReasonKind},
};
use tokio::sync::mpsc;

use crate::SimulatedClock;

/// How an address answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Manner {
    /// Takes everything.
    Delivers,
    /// Not now, perhaps with a time to wait.
    Defers(Option<Duration>),
    /// Never.
    Refuses,
    /// Never, and nothing else for this address.
    Gone,
    /// Never: nobody has the address.
    Unknown,
    /// Takes it, but the answer comes so much later.
    Ponders(Duration),
    /// Makes our own work panic.
    Panics,
    /// Is better let be for so long: nothing is sent.
    Rests(Duration),
    /// Has no free session: the message waits in the channel's queue until the channel is closed.
    Waits,
}

/// All far ends of a scenario: how each address answers, and a line for each message that reached one.
#[derive(Clone)]
pub struct FarEnds {
    clock: SimulatedClock,
    manners: Arc<Mutex<BTreeMap<String, Manner>>>,
    seen: Arc<Mutex<Vec<Seen>>>,
    down: Arc<Mutex<BTreeSet<String>>>,
    /// The ids of the messages that came, whoever they were for.
    messages: Arc<Mutex<BTreeSet<String>>>,
}

/// A line of the transcript, and the time and channel by which its place is found.
struct Seen {
    time: String,
    /// `None`: a note of the script's own, which keeps its place.
    channel: Option<String>,
    line: String,
}

impl FarEnds {
    /// Far ends that take everything.
    pub fn new(clock: SimulatedClock) -> Self {
        FarEnds { clock, manners: Arc::default(), seen: Arc::default(), down: Arc::default(), messages: Arc::default() }
    }

    /// From now on, this address answers so.
    pub fn set(&self, address: &str, manner: Manner) {
        self.manners.lock().insert(address.to_owned(), manner);
    }

    /// From now on, this channel as a whole is down, or works again. While it is down each message is deferred after a
    /// patience of 15 seconds.
    pub fn set_down(&self, channel: &str, down: bool) {
        match down {
            true => self.down.lock().insert(channel.to_owned()),
            false => self.down.lock().remove(channel),
        };
    }

    /// What reached the far ends, a line each. Channels work beside each other, so what they did at the same time is told
    /// channel by channel.
    pub fn seen(&self) -> Vec<String> {
        let mut seen = self.seen.lock();
        let together = |a: &Seen, b: &Seen| a.time == b.time && a.channel.is_some() && b.channel.is_some();
        for group in seen.chunk_by_mut(together) {
            group.sort_by(|a, b| a.channel.cmp(&b.channel));
        }
        seen.iter().map(|seen| seen.line.clone()).collect()
    }

    /// How many different messages came; one to several recipients is one.
    pub fn messages(&self) -> usize {
        self.messages.lock().len()
    }

    /// Adds a line of the script's own to what was seen.
    pub fn note(&self, line: String) {
        self.seen.lock().push(Seen { time: String::new(), channel: None, line });
    }

    /// A channel of this name that leads here.
    pub fn channel(&self, name: &str) -> Box<dyn OpenChannel> {
        Box::new(FarEnd { name: name.to_owned(), ends: self.clone(), waiting: Mutex::default() })
    }
}

struct FarEnd {
    name: String,
    ends: FarEnds,
    waiting: Mutex<Vec<(Outgoing, mpsc::Sender<Answer>)>>,
}

/// How long a message waits for a channel that is down.
const PATIENCE: Duration = Duration::from_secs(15);

#[async_trait]
impl OpenChannel for FarEnd {
    async fn send(&self, outgoing: Outgoing, answers: &mpsc::Sender<Answer>) {
        let sent_at = self.ends.clock.now();
        let manner = self.ends.manners.lock().get(&outgoing.address).cloned().unwrap_or(Manner::Delivers);
        if manner == Manner::Waits {
            return self.waiting.lock().push((outgoing, answers.clone()));
        }
        self.ends.messages.lock().insert(outgoing.message.message_id.clone());
        let answer = |text: &str| Reason::new(ReasonKind::Answer, text);
        let (disposition, word, delay) = match manner {
            _ if self.down().is_some() => {
                let reason = Reason::new(ReasonKind::Connection, "nobody is there");
                (Disposition::Deferred { reason, retry_after: None }, "no connection", PATIENCE)
            }
            Manner::Waits => unreachable!("it returned above"),
            Manner::Rests(_) => unreachable!("what is held is not sent"),
            Manner::Panics => panic!("what was to happen"),
            Manner::Delivers => (Disposition::Delivered { reply: "ok".into() }, "delivered", Duration::ZERO),
            Manner::Ponders(delay) => (Disposition::Delivered { reply: "ok".into() }, "delivered", delay),
            Manner::Defers(retry_after) => {
                (Disposition::Deferred { reason: answer("not now"), retry_after }, "deferred", Duration::ZERO)
            }
            Manner::Gone => {
                let reason = Reason::new(ReasonKind::Gone, "gone for good");
                (Disposition::Refused { reason }, "gone", Duration::ZERO)
            }
            Manner::Unknown => {
                let reason = Reason::new(ReasonKind::Bounced, "550 5.1.1 no such user");
                (Disposition::Refused { reason }, "unknown", Duration::ZERO)
            }
            Manner::Refuses => (Disposition::Refused { reason: answer("never") }, "refused", Duration::ZERO),
        };
        let subject = outgoing.message.content.subject.as_deref().unwrap_or_default();
        let time = self.ends.clock.time_of_day(sent_at);
        let (name, ids) =
            (&self.name, std::iter::once(outgoing.id).chain(outgoing.others.iter().map(|other| other.id)));
        for (id, address) in ids.zip(outgoing.addresses()) {
            let line = format!("{time} {name} {address} {id}: {subject} -> {word}");
            self.ends.seen.lock().push(Seen { time: time.clone(), channel: Some(name.clone()), line });
        }
        let (answers, clock) = (answers.clone(), self.ends.clock);
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
            // A crash in between leaves nobody to tell.
            let _ = answers.send(answer).await;
        });
    }

    /// Recipients of one message who have the same manner are answered together.
    async fn send_all(&self, outgoing: Vec<Outgoing>, answers: &mpsc::Sender<Answer>) {
        for outgoing in outgoing {
            let is_one = {
                let manners = self.ends.manners.lock();
                let first = manners.get(&outgoing.address);
                outgoing.addresses().all(|address| manners.get(address) == first)
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
        match self.ends.manners.lock().get(address)? {
            Manner::Rests(wait) => Some(*wait),
            _ => None,
        }
    }

    async fn settle(&self) {}

    async fn probe(&self) -> Result<String, Reason> {
        Ok("scripted".to_owned())
    }

    fn down(&self) -> Option<Reason> {
        let down = self.ends.down.lock().contains(&self.name);
        down.then(|| Reason::new(ReasonKind::Connection, "nobody is there"))
    }

    fn wind_down(&self) {
        let now = self.ends.clock.now();
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
