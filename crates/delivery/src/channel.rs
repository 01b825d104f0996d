//! What every protocol promises: messages in, exactly one answer for each.

use std::{
    path::PathBuf,
    sync::{Arc, OnceLock},
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use tocsin_model::{
    application::{Channel, Rate},
    conduct::Priority,
    content::{Content, PartsUsed},
    id::{EventId, Name, NotificationId, SubscriberNumber, SubscriptionId},
    receipt::{Disposition, Reason},
    time::Timestamp,
    trace_context::TraceContext,
};
use tokio::sync::mpsc;

use crate::{files::Files, inbox::Feeds, networks::Networks, programs::Programs, protocol::Opened, signet::Signet};

/// A message to a recipient, or to several, ready to leave: owned, cheap to move.
///
/// One to several is a **multicast**: a protocol that can hands the message over once, with the addresses of all, and shows
/// none of them to another. What becomes of each is told all the same. Several that hold the same [`Message`] and are sent
/// right after each other, in one `send_all`, are a multicast as well.
#[derive(Debug, Clone, PartialEq)]
pub struct Outgoing {
    /// The notification that it carries.
    pub id: NotificationId,
    /// Whom it is for, if there is such a subscriber: whose feed it goes into.
    pub subscriber: Option<SubscriberNumber>,
    /// Where it goes: a mail address, a URL; a file takes it as a field only.
    pub address: String,
    /// What the caller wants back with the answer.
    pub ticket: Ticket,
    /// A link by which the recipient ends the subscription, if there is one.
    pub unsubscribe: Option<String>,
    /// What goes there.
    pub message: Arc<Message>,
    /// Who else is told the same.
    pub others: Vec<Other>,
}

/// Another recipient of a message. Its fields are those of [`Outgoing`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Other {
    /// The notification.
    pub id: NotificationId,
    /// Whom it is for.
    pub subscriber: Option<SubscriberNumber>,
    /// Where it goes.
    pub address: String,
    /// What the caller wants back.
    pub ticket: Ticket,
    /// The link of this recipient.
    pub unsubscribe: Option<String>,
}

impl Outgoing {
    /// How many recipients it has.
    pub fn count(&self) -> usize {
        1 + self.others.len()
    }

    /// Where it goes, all of it.
    pub fn addresses(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&self.address).chain(self.others.iter().map(|other| &other.address)).map(String::as_str)
    }

    /// The same to each recipient alone, in their order.
    pub fn into_each(mut self) -> impl Iterator<Item = Outgoing> {
        let (others, message) = (std::mem::take(&mut self.others), self.message.clone());
        std::iter::once(self).chain(others.into_iter().map(move |other| other.with(message.clone())))
    }

    /// Takes the recipients of another over, who are told the same; what is left of it is of no use.
    pub fn join(&mut self, next: &mut Outgoing) {
        let Outgoing { id, subscriber, address, ticket, unsubscribe, others, message: _ } = next;
        let (address, unsubscribe) = (std::mem::take(address), unsubscribe.take());
        self.others.push(Other { id: *id, subscriber: *subscriber, address, ticket: *ticket, unsubscribe });
        self.others.append(others);
    }

    /// Keeps the first so many recipients, one at least; gives the same to the rest, if there is one.
    pub fn split_off(&mut self, at: usize) -> Option<Outgoing> {
        if self.count() <= at.max(1) {
            return None;
        }
        let mut rest = self.others.split_off(at.max(1) - 1).into_iter();
        let first = rest.next()?.with(self.message.clone());
        Some(Outgoing { others: rest.collect(), ..first })
    }
}

impl Other {
    /// A message to this recipient alone.
    pub(crate) fn with(self, message: Arc<Message>) -> Outgoing {
        let Other { id, subscriber, address, ticket, unsubscribe } = self;
        Outgoing { id, subscriber, address, ticket, unsubscribe, message, others: Vec::new() }
    }
}

/// What is sent, to one recipient or, word for word the same, to several.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    /// Its identity for the far side, the same at every attempt: webhook id, left side of the `Message-ID`. Letters,
    /// digits, `-`, `_` and `.`, such as `n-7-15.aewo3`.
    pub message_id: String,
    /// What it says. Several messages may say the same, and share it.
    pub content: Arc<Content>,
    /// What it is about, for machines.
    pub facts: Facts,
    /// When the content was made.
    pub formatted_at: Timestamp,
    /// How much it matters, for far sides that ask.
    pub priority: Priority,
    /// After this time it is not worth sending; it is then refused with the reason `Expired`.
    pub expires_at: Option<Timestamp>,
    /// Where it stands in a trace, if its event does.
    pub place: Option<Place>,
}

impl Message {
    /// What goes with it as headers of a trace, if it stands in one.
    pub fn trace_headers(&self) -> impl Iterator<Item = (&'static str, String)> {
        self.place.iter().flat_map(Place::headers)
    }
}

/// Where a message stands in a trace that runs through many systems.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// What the far side is told.
    pub context: TraceContext,
    /// The span that led to it; none if no spans are told of it.
    pub parent: Option<[u8; 8]>,
    /// The notification whose span it is, if it goes to several.
    pub of: NotificationId,
    /// Which attempt it is.
    pub attempt: u32,
}

impl Place {
    /// What goes with a message as headers: `traceparent`, and `tracestate` if there is one.
    pub fn headers(&self) -> impl Iterator<Item = (&'static str, String)> {
        self.context.headers()
    }
}

/// What a message is about, for protocols that carry data. Cheap to clone.
#[derive(Debug, Clone, PartialEq)]
pub struct Facts {
    /// The application.
    pub application: Name,
    /// The notification class; Standard Webhooks call it `type`.
    pub class: Name,
    /// The event that made it, if one did.
    pub event: Option<EventId>,
    /// The notification's fields, as a JSON object; Standard Webhooks call it `data`.
    pub fields: Arc<FactFields>,
}

/// The fields of a notification, and their text, which is made once for all who share them.
#[derive(Debug, Clone, Default)]
pub struct FactFields {
    map: serde_json::Map<String, serde_json::Value>,
    text: OnceLock<String>,
}

impl FactFields {
    /// As JSON.
    pub fn text(&self) -> &str {
        self.text.get_or_init(|| serde_json::to_string(&self.map).expect("a JSON object becomes JSON"))
    }
}

impl From<serde_json::Map<String, serde_json::Value>> for FactFields {
    fn from(map: serde_json::Map<String, serde_json::Value>) -> Self {
        FactFields { map, text: OnceLock::new() }
    }
}

impl std::ops::Deref for FactFields {
    type Target = serde_json::Map<String, serde_json::Value>;

    fn deref(&self) -> &Self::Target {
        &self.map
    }
}

impl PartialEq for FactFields {
    fn eq(&self, other: &Self) -> bool {
        self.map == other.map
    }
}

/// Comes back with the answer, untouched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ticket {
    /// The caller's own number for what the message belongs to.
    pub key: u64,
    /// Its place in the notification batch.
    pub ordinal: u32,
}

/// How one attempt went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The message's ticket.
    pub ticket: Ticket,
    /// The notification.
    pub id: NotificationId,
    /// When its content was made.
    pub formatted_at: Timestamp,
    /// When it was handed to the far side; when it was given up, if it never was.
    pub sent_at: Timestamp,
    /// When the far side's answer was complete.
    pub answered_at: Timestamp,
    /// What came of it.
    pub disposition: Disposition,
    /// The channel that tried it.
    pub channel: Name,
    /// The address that was tried.
    pub address: String,
    /// The message's place in a trace.
    pub place: Option<Place>,
    /// Who else was told the same by the same attempt, and of whom all this is true as well.
    pub others: Vec<Other>,
}

impl Answer {
    /// How many recipients it is about.
    pub fn count(&self) -> usize {
        1 + self.others.len()
    }

    /// The ids and tickets of all of them.
    pub fn tickets(&self) -> impl Iterator<Item = (NotificationId, Ticket)> {
        std::iter::once((self.id, self.ticket)).chain(self.others.iter().map(|other| (other.id, other.ticket)))
    }

    /// The same for each of them alone, in their order.
    pub fn into_each(mut self) -> impl Iterator<Item = Answer> {
        let others = std::mem::take(&mut self.others);
        let rest = if others.is_empty() { None } else { Some(Answer { address: String::new(), ..self.clone() }) };
        let of = move |Other { id, address, ticket, .. }| {
            let answer = rest.clone().expect("there are others");
            Answer { id, ticket, address, ..answer }
        };
        std::iter::once(self).chain(others.into_iter().map(of))
    }
}

/// Tells the time.
pub trait Clock: Send + Sync {
    /// The present instant.
    fn now(&self) -> Timestamp;
}

/// The machine's clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        SystemTime::now().into()
    }
}

/// A destination of a channel, as it is at this moment.
#[derive(Debug, Clone, PartialEq)]
pub struct Destination {
    /// Scheme, host and port of a URL; empty for the one far side of a channel that has no other.
    pub name: String,
    /// Whether it is served.
    pub state: DestinationState,
    /// How many messages it may get at the same time.
    pub concurrency: u32,
    /// How many are on their way.
    pub busy: u32,
    /// How many wait in the channel.
    pub waiting: u32,
    /// What an answer takes of late.
    pub latency: Option<Duration>,
    /// Failures in a row, those without an answer weighted.
    pub failures: u32,
    /// How long it has only failed.
    pub failing_for: Option<Duration>,
    /// How much longer it is let be.
    pub paused_for: Option<Duration>,
    /// Why, as far as anything is known to be wrong.
    pub reason: Option<String>,
}

/// Whether a destination is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DestinationState {
    /// It is.
    Open,
    /// After a pause, one message finds out whether it is back.
    Trial,
    /// It is let be for a while, after failures in a row.
    Paused,
    /// Messages wait, nothing is under way, and none has left for a minute although none is held back.
    Stalled,
}

impl DestinationState {
    /// All of them.
    pub const ALL: [DestinationState; 4] =
        [DestinationState::Open, DestinationState::Trial, DestinationState::Paused, DestinationState::Stalled];

    /// Its one word, in tables, metrics and answers.
    pub fn word(self) -> &'static str {
        match self {
            DestinationState::Open => "open",
            DestinationState::Trial => "trial",
            DestinationState::Paused => "paused",
            DestinationState::Stalled => "stalled",
        }
    }
}

/// What a channel needs to know about its surroundings.
#[derive(Clone)]
pub struct Context {
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// The name of this installation, as it introduces itself to far sides.
    pub installation: String,
    /// Relative file names start here.
    pub data_folder: PathBuf,
    /// Which non-public networks and hosts every channel of this installation may talk to.
    pub networks: Networks,
    /// Which programs channels may start.
    pub programs: Programs,
    /// Files that channels may read.
    pub files: Files,
    /// The application whose channels are opened; empty where there is none.
    pub application: String,
    /// Its seal.
    pub signet: Arc<Signet>,
    /// Where the items of inboxes go; `None`: this program keeps none.
    pub feeds: Option<Arc<dyn Feeds>>,
    /// Where people reach this installation from outside, without a slash at the end: `https://tocsin.example.org`.
    pub public_url: Option<String>,
}

impl Context {
    /// The link by which a recipient ends a subscription, if people can reach this installation. It stays the same.
    pub fn unsubscribe_link(&self, subscription: SubscriptionId) -> Option<String> {
        let base = self.public_url.as_deref()?;
        Some(format!("{base}/unsubscribe/{}", self.signet.token(subscription)))
    }
}

/// A running channel: persistent sessions that pull from one bounded queue.
///
/// Dropping it answers what is queued or on its way with `Deferred`.
#[async_trait]
pub trait OpenChannel: Send + Sync {
    /// Puts a message into the queue; waits while the queue is full. What becomes of it goes to `answers`: each recipient is
    /// in exactly one answer, several together as long as the same is true of all of them. A message whose destination has
    /// more to do than its share of the queue holds comes back with `Deferred` for the reason `Untried` and a time: it was
    /// no attempt.
    ///
    /// While `answers` is full the sessions wait, so whoever sends must also receive. When the receiver is gone, answers
    /// are dropped.
    async fn send(&self, outgoing: Outgoing, answers: &mpsc::Sender<Answer>);

    /// As `send`, for many messages in order; cheaper than one by one, and the way to send a multicast.
    async fn send_all(&self, outgoing: Vec<Outgoing>, answers: &mpsc::Sender<Answer>) {
        for outgoing in outgoing.into_iter().flat_map(Outgoing::into_each) {
            self.send(outgoing, answers).await;
        }
    }

    /// The parts of a content that it has a use for. What else a class has templates for need not be made.
    fn parts_used(&self) -> PartsUsed {
        PartsUsed::ALL
    }

    /// From now on messages leave no faster than this, all together; the others wait.
    fn keep_to(&self, _rate: Option<Rate>) {}

    /// How long a message to this address is better not even made: its destination is let be, or has enough to do. It
    /// would come back untried.
    fn hold(&self, _address: &str, _priority: Priority) -> Option<Duration> {
        None
    }

    /// The destinations that are known, those with trouble first, then those with most to do; at most `limit`.
    fn destinations(&self, _limit: usize) -> Vec<Destination> {
        Vec::new()
    }

    /// How many destinations there are in each state, in the order of `DestinationState::ALL`.
    fn census(&self) -> [usize; DestinationState::ALL.len()] {
        [0; DestinationState::ALL.len()]
    }

    /// Waits until everything that was sent has been answered.
    async fn settle(&self);

    /// Whether the far side can be reached at this moment: a sentence about it, or why not. Sends nothing.
    async fn probe(&self) -> Result<String, Reason>;

    /// Why the channel as a whole is not working, if so. Work for it may as well wait.
    fn down(&self) -> Option<Reason>;

    /// Opens a channel that is to take the place of this one, with other options; this one goes on until it is closed.
    /// `None`: it is opened like any.
    fn successor(&self, _name: &Name, _channel: &Channel, _context: &Context) -> Option<Opened> {
        None
    }

    /// Takes nothing new from now on, and answers what is still waiting with `Deferred` for the reason `Untried`; what
    /// is on its way goes on.
    fn wind_down(&self) {}

    /// Takes nothing new, finishes what is on its way within 30 seconds, answers the rest with `Deferred` (what was not
    /// begun with the reason `Untried`) and says goodbye to the far side.
    async fn close(self: Box<Self>);
}
