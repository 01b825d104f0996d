//! Conformance suite of channels: the promises of [`OpenChannel`], kept by every protocol against its own receiver.
//!
//! A protocol's tests implement [`Subject`] and call [`exercise`]. Its cases use the contract only.

use std::{
    collections::BTreeMap,
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use tocsin_connect::Clock;
use tocsin_model::{
    receipt::{Disposition, ReasonKind},
    time::Timestamp,
};
use tocsin_test_peers::wait_timeout;
use tokio::sync::mpsc;

use crate::{
    channel::{Answer, Context, OpenChannel, Outgoing},
    queue::QUEUE_LENGTH,
    testing::{NOW, content_of, context, show},
};

/// Bytes of each part of an oversize content: more than most receivers accept.
const OVERSIZE_BYTES: usize = 3 << 20;

/// A protocol under test, with its receiver.
#[async_trait]
pub(crate) trait Subject: Send + Sync {
    /// Opens a channel to a receiver that accepts every message.
    async fn open(&self, context: Context) -> Box<dyn OpenChannel>;

    /// Opens a channel to a receiver that never answers, with timeouts of less than a second. `None`: the protocol
    /// has no receiver that could be silent.
    async fn open_silent(&self, context: Context) -> Option<Box<dyn OpenChannel>>;

    /// A message that the receiver accepts.
    fn outgoing(&self, ordinal: u32) -> Outgoing;

    /// The id of a message as the receiver reads it.
    fn id_of(&self, outgoing: &Outgoing) -> String {
        outgoing.message.message_id.clone()
    }

    /// The ids of all messages that the receiver has read, in their order.
    async fn received_ids(&self) -> Vec<String>;

    /// Most messages that the channel has taken from its queue and not answered.
    fn in_flight_max(&self) -> usize;
}

/// Runs all cases.
pub(crate) async fn exercise(subject: &dyn Subject) {
    every_message_has_one_answer(subject).await;
    a_dropped_channel_answers_every_message(subject).await;
    a_closed_channel_answers_every_message(subject).await;
    answers_without_a_reader_are_discarded(subject).await;
    a_silent_receiver_is_given_up(subject).await;
    an_oversize_content_is_answered(subject).await;
    a_retry_keeps_the_id(subject).await;
    a_panic_is_answered_and_the_session_restarts(subject).await;
    unread_answers_stop_the_sender(subject).await;
}

/// A clock that panics once on demand.
#[derive(Default)]
struct FailingClock {
    fails: AtomicBool,
}

impl Clock for FailingClock {
    fn now(&self) -> Timestamp {
        assert!(!self.fails.swap(false, Ordering::SeqCst), "the clock fails once, on demand");
        NOW.parse().expect("a time")
    }
}

/// Bounds a wait for the channel.
async fn within<T>(case: &str, work: impl Future<Output = T>) -> T {
    let timeout = wait_timeout();
    match tokio::time::timeout(timeout, work).await {
        Ok(result) => result,
        Err(_) => panic!("{case}: not within {timeout:?}"),
    }
}

fn messages(subject: &dyn Subject, ordinals: std::ops::Range<u32>) -> Vec<Outgoing> {
    ordinals.map(|ordinal| subject.outgoing(ordinal)).collect()
}

/// Reads answers until all messages are answered. Each must be answered once.
async fn collect(case: &str, mut answered: mpsc::Receiver<Answer>, count: usize) -> Vec<String> {
    let mut shown: BTreeMap<u32, String> = BTreeMap::new();
    let reading = async {
        while let Some(answer) = answered.recv().await {
            for answer in answer.into_each() {
                let before = shown.insert(answer.ticket.ordinal, show(&answer.disposition));
                assert_eq!(before, None, "{case}: message {} has a second answer", answer.ticket.ordinal);
            }
        }
    };
    within(case, reading).await;
    assert_eq!(shown.len(), count, "{case}: not every message is answered: {shown:?}");
    shown.into_values().collect()
}

async fn deliver(case: &str, open: &dyn OpenChannel, messages: Vec<Outgoing>) -> Vec<String> {
    let (answers, answered) = mpsc::channel(16);
    let count = messages.len();
    let sending = async move { open.send_all(messages, &answers).await };
    tokio::join!(sending, collect(case, answered, count)).1
}

async fn every_message_has_one_answer(subject: &dyn Subject) {
    let case = "one answer each";
    let open = subject.open(context()).await;
    let shown = deliver(case, &*open, messages(subject, 0..100)).await;
    assert!(shown.iter().all(|shown| shown.starts_with("delivered ")), "{case}: {shown:?}");
    within(case, open.wait_until_answered()).await;
    assert_eq!(open.down(), None, "{case}");
    within(case, open.close()).await;
}

async fn a_dropped_channel_answers_every_message(subject: &dyn Subject) {
    let case = "dropped channel";
    let open = subject.open(context()).await;
    let (answers, answered) = mpsc::channel(1);
    within(case, open.send_all(messages(subject, 0..50), &answers)).await;
    drop((open, answers));
    collect(case, answered, 50).await;
}

async fn a_closed_channel_answers_every_message(subject: &dyn Subject) {
    let case = "closed channel";
    let open = subject.open(context()).await;
    let (answers, answered) = mpsc::channel(16);
    within(case, open.send_all(messages(subject, 0..50), &answers)).await;
    drop(answers);
    let (shown, ()) = tokio::join!(collect(case, answered, 50), within(case, open.close()));
    let expected = |shown: &&String| shown.starts_with("delivered ") || shown.starts_with("deferred ");
    assert!(shown.iter().all(|shown| expected(&shown)), "{case}: {shown:?}");

    // After `drain`, a message is returned untried.
    let open = subject.open(context()).await;
    open.drain();
    let shown = deliver(case, &*open, messages(subject, 0..1)).await;
    assert_eq!(shown, ["deferred Untried the channel was closed before it was sent"], "{case}");
    within(case, open.close()).await;
}

async fn answers_without_a_reader_are_discarded(subject: &dyn Subject) {
    let case = "discarded answers";
    let open = subject.open(context()).await;
    let (answers, answered) = mpsc::channel(1);
    drop(answered);
    within(case, open.send_all(messages(subject, 0..50), &answers)).await;
    within(case, open.wait_until_answered()).await;
    let shown = deliver(case, &*open, messages(subject, 50..51)).await;
    assert!(shown[0].starts_with("delivered "), "{case}: {shown:?}");
    within(case, open.close()).await;
}

async fn a_silent_receiver_is_given_up(subject: &dyn Subject) {
    let case = "deadline";
    let Some(open) = subject.open_silent(context()).await else { return };
    let (answers, mut answered) = mpsc::channel(1);
    within(case, open.send(subject.outgoing(0), &answers)).await;
    let answer = within(case, answered.recv()).await.expect("an answer");
    match &answer.disposition {
        Disposition::Deferred { reason, .. } => {
            let expected = [ReasonKind::Timeout, ReasonKind::Connection];
            assert!(expected.contains(&reason.kind), "{case}: {}", show(&answer.disposition));
        }
        other => panic!("{case}: {}", show(other)),
    }
}

async fn an_oversize_content_is_answered(subject: &dyn Subject) {
    let case = "oversize content";
    let open = subject.open(context()).await;
    let mut sent = messages(subject, 0..2);
    let content = content_of(&mut sent[0]);
    let text = "x".repeat(OVERSIZE_BYTES);
    content.json = Some(serde_json::json!({ "text": text }).to_string());
    (content.html, content.sms) = (Some(text.clone()), Some(text.clone()));
    (content.subject, content.text) = (Some(text.clone()), Some(text));
    let last = sent.pop().expect("two messages");
    let shown = deliver(case, &*open, sent).await;
    let is_answer = ["delivered ", "refused "].iter().any(|start| shown[0].starts_with(start));
    assert!(is_answer, "{case}: {:.300}", shown[0]);
    let shown = deliver(case, &*open, vec![last]).await;
    assert!(shown[0].starts_with("delivered "), "{case}: the next message: {:.300}", shown[0]);
    within(case, open.close()).await;
}

async fn a_retry_keeps_the_id(subject: &dyn Subject) {
    let case = "id of a retry";
    let open = subject.open(context()).await;
    let before = subject.received_ids().await.len();
    let outgoing = subject.outgoing(7_000);
    let id = subject.id_of(&outgoing);
    for attempt in 0..2 {
        let shown = deliver(case, &*open, vec![outgoing.clone()]).await;
        assert!(shown[0].starts_with("delivered "), "{case}: attempt {attempt}: {shown:?}");
    }
    within(case, open.close()).await;
    let is_read = async || subject.received_ids().await.len() > before;
    tocsin_test_peers::until("the receiver has read a message", is_read).await;
    let received = subject.received_ids().await;
    assert!(received[before..].iter().all(|received| *received == id), "{case}: {id}: {:?}", &received[before..]);
}

async fn a_panic_is_answered_and_the_session_restarts(subject: &dyn Subject) {
    let case = "panic";
    let clock = Arc::new(FailingClock::default());
    let open = subject.open(Context { clock: clock.clone(), ..context() }).await;
    let mut sent = messages(subject, 0..2);
    let now: Timestamp = NOW.parse().expect("a time");
    // A session reads the clock to see whether the message has expired.
    Arc::make_mut(&mut sent[0].message).expires_at = Some(now + Duration::from_secs(3_600));
    let last = sent.pop().expect("two messages");
    clock.fails.store(true, Ordering::SeqCst);
    let shown = deliver(case, &*open, sent).await;
    assert_eq!(shown, ["deferred Internal the attempt failed with an internal error"], "{case}");
    let shown = deliver(case, &*open, vec![last]).await;
    assert!(shown[0].starts_with("delivered "), "{case}: the next message: {shown:?}");
    within(case, open.close()).await;
}

async fn unread_answers_stop_the_sender(subject: &dyn Subject) {
    let case = "back-pressure";
    let open = subject.open(context()).await;
    let bound = QUEUE_LENGTH + subject.in_flight_max();
    let count = bound + 500;
    let (answers, mut answered) = mpsc::channel(1);
    let read = AtomicUsize::new(0);
    let sending = async {
        open.send_all(messages(subject, 0..count as u32), &answers).await;
        drop(answers);
        read.load(Ordering::SeqCst)
    };
    let reading = async {
        while let Some(answer) = answered.recv().await {
            read.fetch_add(answer.count(), Ordering::SeqCst);
        }
    };
    let (read_before_the_end, ()) = tokio::join!(sending, reading);
    assert_eq!(read.load(Ordering::SeqCst), count, "{case}: one answer each");
    // The sender had to wait until all but the bounded rest were answered.
    assert!(read_before_the_end + bound + 1 >= count, "{case}: {read_before_the_end} of {count}, bound {bound}");
    within(case, open.close()).await;
}

/// The address of a server that accepts connections and never answers.
pub(crate) async fn silent_server() -> std::net::SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        let mut connections = Vec::new();
        while let Ok((connection, _)) = listener.accept().await {
            connections.push(connection);
        }
    });
    address
}
