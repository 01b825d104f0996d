//! The contract of every protocol: messages in, exactly one answer for each.

use std::{
    path::PathBuf,
    sync::{Arc, OnceLock},
    time::Duration,
};

use async_trait::async_trait;
use tocsin_connect::{Clock, files::Files, networks::Networks, programs::Programs};
use tocsin_model::{
    application::{Channel, Rate},
    content::{Content, PartsUsed},
    delivery_policy::Priority,
    id::{EventId, Name, NotificationId, SubscriberNumber, SubscriptionId},
    inbox::NewItem,
    mail_provider::ProviderDay,
    problem::Problem,
    receipt::{Disposition, Reason},
    time::Timestamp,
    trace_context::TraceContext,
};
use tokio::sync::mpsc;

use crate::{
    consent_tokens::ConfirmLink, mail_sender::MailSender, page_tokens::PreferencesLink, recall::RecallMark,
    token_signer::TokenSigner, withdrawal::Withdrawal,
};

/// A message to one or more recipients, ready to send: owned, cheap to move.
///
/// With several recipients it is a **multicast**: a protocol that supports it sends the message once, with all
/// addresses, and shows no recipient the address of another. Each recipient still gets its own answer. Messages that
/// share the same [`Message`] and follow each other in one `send_all` are a multicast as well.
#[derive(Debug, Clone, PartialEq)]
pub struct Outgoing {
    /// The notification that it carries.
    pub id: NotificationId,
    /// The subscriber whose feed receives it, if the recipient is a subscriber.
    pub subscriber: Option<SubscriberNumber>,
    /// Address of the recipient: a mail address or a URL; for a file only a field of the record.
    pub address: String,
    /// Returned with the answer, unchanged.
    pub ticket: Ticket,
    /// Link that ends the recipient's subscription, if there is one.
    pub unsubscribe: Option<String>,
    /// The recipient's subscription, if a mail may end it.
    pub subscription: Option<SubscriptionId>,
    /// Mark by which the message is recalled after a change of its recipient; `None`: it is not.
    pub recall: Option<RecallMark>,
    /// The message.
    pub message: Arc<Message>,
    /// The other recipients of a multicast.
    pub others: Vec<Other>,
}

/// Another recipient of a message. Its fields are those of [`Outgoing`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Other {
    /// The notification.
    pub id: NotificationId,
    /// The subscriber.
    pub subscriber: Option<SubscriberNumber>,
    /// The address.
    pub address: String,
    /// Returned with the answer.
    pub ticket: Ticket,
    /// The unsubscribe link of this recipient.
    pub unsubscribe: Option<String>,
    /// The subscription of this recipient.
    pub subscription: Option<SubscriptionId>,
    /// Mark by which the message is recalled.
    pub recall: Option<RecallMark>,
}

impl Outgoing {
    /// Number of recipients.
    pub fn count(&self) -> usize {
        1 + self.others.len()
    }

    /// All addresses.
    pub fn addresses(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&self.address).chain(self.others.iter().map(|other| &other.address)).map(String::as_str)
    }

    /// Whether it was recalled since its recipients were read: one of them changed.
    pub fn is_recalled(&self) -> bool {
        let is_recalled = |mark: &Option<RecallMark>, subscriber, address: &str| {
            mark.as_ref().is_some_and(|mark| mark.is_recalled(subscriber, address))
        };
        is_recalled(&self.recall, self.subscriber, &self.address)
            || self.others.iter().any(|other| is_recalled(&other.recall, other.subscriber, &other.address))
    }

    /// Splits the message into one per recipient, in order.
    pub fn into_each(mut self) -> impl Iterator<Item = Outgoing> {
        let (others, message) = (std::mem::take(&mut self.others), self.message.clone());
        std::iter::once(self).chain(others.into_iter().map(move |other| other.with(message.clone())))
    }

    /// Moves the recipients of `next` into this multicast; `next` must not be used afterwards.
    pub fn join(&mut self, next: &mut Outgoing) {
        let Outgoing { id, subscriber, address, ticket, unsubscribe, subscription, recall, others, message: _ } = next;
        let (address, unsubscribe, recall) = (std::mem::take(address), unsubscribe.take(), recall.take());
        let (id, subscriber, ticket, subscription) = (*id, *subscriber, *ticket, *subscription);
        self.others.push(Other { id, subscriber, address, ticket, unsubscribe, subscription, recall });
        self.others.append(others);
    }

    /// Keeps the first `at` recipients, at least one; returns the rest as another message, if any.
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
        let Other { id, subscriber, address, ticket, unsubscribe, subscription, recall } = self;
        Outgoing { id, subscriber, address, ticket, unsubscribe, subscription, recall, message, others: Vec::new() }
    }
}

/// Content for one recipient, or for several who get exactly the same.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    /// Identity of the message at the receiver, the same at every attempt: webhook id, local part of the
    /// `Message-ID`. Letters, digits, `-`, `_` and `.`, such as `n-7-15.aewo3`.
    pub message_id: String,
    /// The content; messages with equal content may share it.
    pub content: Arc<Content>,
    /// Machine-readable fields.
    pub facts: Facts,
    /// When the content was formatted.
    pub formatted_at: Timestamp,
    /// Priority, for protocols that carry one.
    pub priority: Priority,
    /// After this time it is refused with the reason `Expired`.
    pub expires_at: Option<Timestamp>,
    /// Position in a distributed trace, if its event belongs to one.
    pub place: Option<TracePosition>,
    /// Flag by which the sender can withdraw it while it waits in the channel.
    pub withdrawal: Option<Withdrawal>,
}

impl Message {
    /// Trace headers of the message, if it belongs to a trace.
    pub fn trace_headers(&self) -> impl Iterator<Item = (&'static str, String)> {
        self.place.iter().flat_map(TracePosition::headers)
    }
}

/// Position of a message in a distributed trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TracePosition {
    /// The context that is sent to the receiver.
    pub context: TraceContext,
    /// The parent span; none if the trace is not sampled.
    pub parent: Option<[u8; 8]>,
    /// The notification that the span is named after, if there are several.
    pub of: NotificationId,
    /// Number of the attempt.
    pub attempt: u32,
}

impl TracePosition {
    /// Headers of the message: `traceparent`, and `tracestate` if there is one.
    pub fn headers(&self) -> impl Iterator<Item = (&'static str, String)> {
        self.context.headers()
    }
}

/// Machine-readable fields of a message, for protocols that carry data. Cheap to clone.
#[derive(Debug, Clone, PartialEq)]
pub struct Facts {
    /// The application.
    pub application: Name,
    /// The notification class; Standard Webhooks call it `type`.
    pub class: Name,
    /// The event that caused it, if any.
    pub event: Option<EventId>,
    /// The notification's fields, as a JSON object; Standard Webhooks call it `data`.
    pub fields: Arc<FactFields>,
}

/// Fields of a notification with their JSON text, which is serialized once for all who share them.
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

/// Correlation of an answer with its message, returned unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ticket {
    /// Number chosen by the caller, for example of the work item.
    pub key: u64,
    /// Position in the notification batch.
    pub ordinal: u32,
}

/// Result of one attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The message's ticket.
    pub ticket: Ticket,
    /// The notification.
    pub id: NotificationId,
    /// When the content was formatted.
    pub formatted_at: Timestamp,
    /// When it was handed to the receiver; when it was given up, if it never was.
    pub sent_at: Timestamp,
    /// When the receiver's answer was complete.
    pub answered_at: Timestamp,
    /// The disposition.
    pub disposition: Disposition,
    /// The channel of the attempt.
    pub channel: Name,
    /// The address of the attempt.
    pub address: String,
    /// Position in a distributed trace.
    pub place: Option<TracePosition>,
    /// The other recipients of the same attempt, who share this result.
    pub others: Vec<Other>,
}

impl Answer {
    /// Number of recipients.
    pub fn count(&self) -> usize {
        1 + self.others.len()
    }

    /// The ids and tickets of all of them.
    pub fn tickets(&self) -> impl Iterator<Item = (NotificationId, Ticket)> {
        std::iter::once((self.id, self.ticket)).chain(self.others.iter().map(|other| (other.id, other.ticket)))
    }

    /// Splits the answer into one per recipient, in order.
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

/// State of one destination of a channel.
#[derive(Debug, Clone, PartialEq)]
pub struct Destination {
    /// Scheme, host and port of a URL; empty if the channel has a single destination.
    pub name: String,
    /// Whether messages may be sent to it.
    pub state: DestinationState,
    /// Concurrency limit.
    pub concurrency: u32,
    /// Messages in flight.
    pub busy: u32,
    /// Messages queued in the channel.
    pub waiting: u32,
    /// Recent time to an answer.
    pub latency: Option<Duration>,
    /// Consecutive failures; those without an answer are weighted.
    pub failures: u32,
    /// Time since it has only failed.
    pub failing_for: Option<Duration>,
    /// Remaining pause.
    pub paused_for: Option<Duration>,
    /// The latest failure, if any.
    pub reason: Option<String>,
}

/// State of a destination's circuit breaker and queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DestinationState {
    /// Messages are sent.
    Open,
    /// Half-open: after a pause, one message tests whether it works again.
    Trial,
    /// Open circuit: nothing is sent for a while, after consecutive failures.
    Paused,
    /// Messages wait and could be sent, but none is in flight and none has left for a minute.
    Stalled,
}

impl DestinationState {
    /// All states.
    pub const ALL: [DestinationState; 4] =
        [DestinationState::Open, DestinationState::Trial, DestinationState::Paused, DestinationState::Stalled];

    /// Its name in tables, metrics and answers.
    pub fn word(self) -> &'static str {
        match self {
            DestinationState::Open => "open",
            DestinationState::Trial => "trial",
            DestinationState::Paused => "paused",
            DestinationState::Stalled => "stalled",
        }
    }
}

/// A mailbox provider that holds mail of a channel back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldBackMail {
    /// The provider: `google`, `outlook`, or the domain of its mail servers.
    pub provider: String,
    /// Time since it began.
    pub lasted: Duration,
    /// Remaining pause.
    pub paused_for: Option<Duration>,
    /// Interval between mails; `None`: no limit.
    pub interval: Option<Duration>,
    /// Mails queued in the channel.
    pub waiting: u32,
    /// Its last reply that held mail back.
    pub said: String,
}

/// Environment of a channel: clock, policies, keys.
#[derive(Clone)]
pub struct Context {
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// Name of this installation in protocol greetings.
    pub installation: String,
    /// Base of relative file names.
    pub data_folder: PathBuf,
    /// Networks and hosts beyond the public ones that channels may connect to.
    pub networks: Networks,
    /// Programs that channels may start.
    pub programs: Programs,
    /// Files that channels may read.
    pub files: Files,
    /// The application whose channels are opened; empty where there is none.
    pub application: String,
    /// Signs links, return addresses and passes.
    pub token_signer: Arc<TokenSigner>,
    /// Store of inbox items; `None` if this process has none.
    pub feeds: Option<Arc<dyn FeedStore>>,
    /// Store of the mails to mailbox providers by day; `None` if this process has none.
    pub provider_days: Option<Arc<dyn ProviderDays>>,
    /// Public base URL of this installation, without a slash at the end: `https://tocsin.example.org`.
    pub public_url: Option<String>,
}

impl Context {
    /// Link to the preference page of a subscriber, if the installation has a public URL.
    pub fn preferences_link(&self, subscriber: SubscriberNumber, now: Timestamp) -> Option<String> {
        let base = self.public_url.as_deref()?;
        let link = PreferencesLink::new(subscriber, now);
        Some(format!("{base}/p/{}", self.token_signer.pages().preferences(&link)))
    }

    /// Link to the page that confirms a request for consent, if the installation has a public URL.
    pub fn confirm_link(&self, link: ConfirmLink) -> Option<String> {
        let base = self.public_url.as_deref()?;
        Some(format!("{base}/confirm/{}", self.token_signer.consent().link(link)))
    }

    /// Link that ends a subscription, if the installation has a public URL. The link never changes.
    pub fn unsubscribe_link(&self, subscription: SubscriptionId) -> Option<String> {
        let base = self.public_url.as_deref()?;
        Some(format!("{base}/unsubscribe/{}", self.token_signer.token(subscription)))
    }
}

/// Store of inbox items; implemented outside this crate.
#[async_trait]
pub trait FeedStore: Send + Sync {
    /// Adds items to their feeds, in order, in one durable commit. An item whose notification is already stored is
    /// ignored. A feed with more than `items_max` items loses its oldest.
    ///
    /// # Errors
    /// The reason, if nothing was stored.
    async fn put(&self, items: Vec<NewItem>, items_max: u32) -> Result<(), Reason>;
    /// Checks the store: a sentence about it, or the failure.
    async fn probe(&self) -> Result<String, Reason>;
}

/// Store of the mails to mailbox providers by day; implemented outside this crate.
#[async_trait]
pub trait ProviderDays: Send + Sync {
    /// The last day of each provider of a channel.
    ///
    /// # Errors
    /// The reason, if they cannot be read.
    async fn last_days(&self, application: &str, channel: &Name) -> Result<Vec<(Box<str>, ProviderDay)>, Reason>;

    /// Adds numbers to days, in one durable commit. The limit of a day is the one given last.
    ///
    /// # Errors
    /// The reason, if nothing was stored.
    async fn add_days(
        &self,
        application: &str,
        channel: &Name,
        days: Vec<(Box<str>, ProviderDay)>,
    ) -> Result<(), Reason>;
}

/// An opened channel, or every problem in its options.
pub type Opened = Result<Box<dyn OpenChannel>, Vec<Problem>>;

/// A running channel: persistent sessions that pull from one bounded queue.
///
/// When dropped, it answers everything queued or in flight with `Deferred`.
#[async_trait]
pub trait OpenChannel: Send + Sync {
    /// Queues a message; waits while the queue is full. Results go to `answers`: each recipient is in exactly one
    /// answer; recipients with the same result may share one. If the destination's share of the queue is full, the
    /// message is returned as `Deferred` with the reason `Untried` and a time; that is not an attempt.
    ///
    /// While `answers` is full the sessions wait, so a caller that sends must also receive. When the receiver is
    /// dropped, answers are discarded.
    async fn send(&self, outgoing: Outgoing, answers: &mpsc::Sender<Answer>);

    /// Queues many messages in order; cheaper than `send` for each, and the way to send a multicast.
    async fn send_all(&self, outgoing: Vec<Outgoing>, answers: &mpsc::Sender<Answer>) {
        for outgoing in outgoing.into_iter().flat_map(Outgoing::into_each) {
            self.send(outgoing, answers).await;
        }
    }

    /// The parts of a content that the protocol sends. Other parts need not be rendered.
    fn parts_used(&self) -> PartsUsed {
        PartsUsed::ALL
    }

    /// Sets the rate limit of the whole channel; messages above it wait.
    fn set_rate(&self, _rate: Option<Rate>) {}

    /// Delay before a message to this address should be rendered, if its destination is paused or has a full queue.
    /// A message sent now would be returned untried.
    fn hold(&self, _address: &str, _priority: Priority) -> Option<Duration> {
        None
    }

    /// The known destinations, at most `limit`: those with failures first, then the busiest.
    fn destinations(&self, _limit: usize) -> Vec<Destination> {
        Vec::new()
    }

    /// The mailbox providers that hold mail back, those with the longest pause first.
    fn held_back(&self) -> Vec<HeldBackMail> {
        Vec::new()
    }

    /// Records that a later server reports the mail to this address as delayed, with its reply. The channel lowers the
    /// rate of the address's mailbox provider.
    fn note_delay(&self, _address: &str, _said: &str) {}

    /// Number of destinations in each state, in the order of `DestinationState::ALL`.
    fn destination_counts(&self) -> [usize; DestinationState::ALL.len()] {
        [0; DestinationState::ALL.len()]
    }

    /// Identity of a mail channel, for the examination of its domain.
    fn mail_sender(&self) -> Option<MailSender> {
        None
    }

    /// Waits until every message has been answered.
    async fn wait_until_answered(&self);

    /// Checks whether the server can be reached now, without sending a message: a sentence about it, or the failure.
    async fn probe(&self) -> Result<String, Reason>;

    /// The failure of the channel as a whole, if there is one. Work for it should wait.
    fn down(&self) -> Option<Reason>;

    /// Opens the replacement of this channel with changed options, while this one runs until it is closed. `None`:
    /// open it like a new channel.
    fn reconfigure(&self, _name: &Name, _channel: &Channel, _context: &Context) -> Option<Opened> {
        None
    }

    /// Stops taking messages and answers queued ones with `Deferred` and the reason `Untried`; messages in flight are
    /// completed.
    fn drain(&self) {}

    /// Stops taking messages, completes those in flight within 30 seconds and answers the rest with `Deferred` (those
    /// not begun with the reason `Untried`). Then it closes its connections.
    async fn close(self: Box<Self>);
}
