//! Messages of a stream of NATS JetStream, by a durable consumer. They are acknowledged when their events are accepted.
//!
//! After a crash the server gives again what was not acknowledged, some of it late and after newer messages. So the
//! sequences of accepted messages are remembered, as ranges, until the server counts them as acknowledged too.

mod options; // what an operator may set
mod taken; // which messages are accepted

#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use async_nats::jetstream::{
    self,
    consumer::{AckPolicy, Consumer, DeliverPolicy, pull},
    message::Message,
};
use async_trait::async_trait;
use futures_util::StreamExt;
pub use options::NatsOptions;
use rustls::ClientConfig;
use tocsin_delivery::{options::read, tls};
use tocsin_model::{mark::Mark, problem::Problem, time::Timestamp, trace_context::TraceContext};

use self::taken::Taken;
use crate::{
    items::Item,
    mapping::Mapping,
    source::{self, OpenSource, PORTION_BYTES_MAX, PORTION_EVENTS_MAX, Portion, Setting, Trouble},
    tray::Tray,
};

/// The part with the sequences of accepted messages.
const TAKEN: &str = "taken";
/// How long the server waits for an acknowledgement before it gives a message again.
const ACK_WAIT: Duration = Duration::from_secs(30);
/// How long a request for messages stands.
const PULL_WAIT: Duration = Duration::from_secs(5);

pub(crate) fn open(setting: Setting, marks: Vec<Mark>) -> Result<Box<dyn OpenSource>, Vec<Problem>> {
    let options: NatsOptions = read(&setting.options, "")?;
    let trust = tls::trust(options.ca_file.as_deref(), "ca_file").map_err(|problem| vec![problem])?;
    let taken = marks.iter().find(|mark| &*mark.part == TAKEN).and_then(|mark| mark.value.clone());
    Ok(Box::new(Stream {
        mapping: Mapping::new(&setting.gives.fields(), &options.fields),
        taken: taken.and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default(),
        consumer: None,
        last: None,
        held: Vec::new(),
        trust,
        setting,
        options,
    }))
}

/// A stream whose messages are taken.
struct Stream {
    setting: Setting,
    options: NatsOptions,
    trust: Arc<ClientConfig>,
    mapping: Mapping,
    consumer: Option<Consumer<pull::Config>>,
    taken: Taken,
    /// The last message that was given for the first time: between it and the next there is none for us.
    last: Option<u64>,
    /// Messages of the last portion.
    held: Vec<Message>,
}

impl Stream {
    async fn connect(&mut self) -> Result<(), Trouble> {
        if self.consumer.is_some() {
            return Ok(());
        }
        let system = self.options.system();
        let shown = format!("tocsin {} {}", self.setting.application, self.setting.name);
        let connect = system.connect(&self.trust, shown).map_err(|problem| Trouble::of(problem.to_string()))?;
        let client = connect.connect(system.addresses()).await.map_err(|error| Trouble::new("no connection", error))?;
        let stream = jetstream::new(client).get_stream(&self.options.stream).await;
        let stream = stream.map_err(|error| Trouble::new(format!("the stream {}", self.options.stream), error))?;
        let name = self.options.consumer.clone();
        let name = name.unwrap_or_else(|| self.setting.far_name.clone());
        let config = pull::Config {
            durable_name: Some(name.clone()),
            deliver_policy: DeliverPolicy::All,
            ack_policy: AckPolicy::Explicit,
            ack_wait: ACK_WAIT,
            filter_subjects: self.options.subjects.clone(),
            max_ack_pending: 4 * PORTION_EVENTS_MAX as i64,
            ..pull::Config::default()
        };
        let consumer = stream.get_or_create_consumer(&name, config).await;
        let consumer = consumer.map_err(|error| Trouble::new(format!("the consumer {name}"), error))?;
        // A stream or a consumer that was made anew counts anew.
        let made = format!("{:?}", stream.cached_info().created);
        self.taken = std::mem::take(&mut self.taken).of(&made);
        self.taken.forget_to(consumer.cached_info().ack_floor.stream_sequence);
        self.consumer = Some(consumer);
        Ok(())
    }

    /// Messages that are there, or the first that come.
    async fn pull(&mut self) -> Result<Vec<Message>, Trouble> {
        let consumer = self.consumer.as_ref().ok_or_else(|| Trouble::of("there is no connection"))?;
        let pull = consumer.batch().max_messages(PORTION_EVENTS_MAX).expires(PULL_WAIT).messages();
        let mut batch = pull.await.map_err(|error| Trouble::new("messages cannot be asked for", error))?;
        let (mut messages, mut bytes) = (Vec::new(), 0);
        while let Some(message) = batch.next().await {
            let message = message.map_err(|error| Trouble::new("messages do not come", error))?;
            bytes += message.payload.len();
            let info = message.info().map_err(|error| Trouble::new("a message without a sequence", error))?;
            let (pending, sequence) = (info.pending, info.stream_sequence);
            if self.taken.contains(sequence) {
                acknowledge(&message).await?;
                continue;
            }
            messages.push(message);
            // Those that have come need not wait for others that may come.
            if pending == 0 || bytes >= PORTION_BYTES_MAX {
                break;
            }
        }
        Ok(messages)
    }

    fn portion(&mut self, messages: Vec<Message>) -> Result<Portion, Trouble> {
        let mut tray = Tray::new(&self.setting.gives);
        for message in &messages {
            let info = message.info().map_err(|error| Trouble::new("a message without a sequence", error))?;
            let since = Timestamp(i64::try_from(info.published.unix_timestamp_nanos() / 1_000).unwrap_or(0));
            let portion = &mut tray.portion;
            portion.since = Some(portion.since.map_or(since, |earlier| earlier.min(since)));
            portion.waiting = Some(info.pending);
            let first = match self.last.filter(|last| info.delivered == 1 && *last < info.stream_sequence) {
                Some(last) => last + 1,
                None => info.stream_sequence,
            };
            self.taken.add(first, info.stream_sequence);
            if info.delivered == 1 {
                self.last = Some(info.stream_sequence);
            }
            let item = || Item::Json(message.payload.to_vec());
            tray.take(&self.mapping, item, || as_it_is(message), trace_of(message).as_ref());
        }
        let mut portion = tray.finish();
        portion.marks = vec![Mark::set(TAKEN, serde_json::to_vec(&self.taken).expect("it is JSON"))];
        self.held = messages;
        Ok(portion)
    }
}

/// Where a message stands in a trace, if its headers say it.
fn trace_of(message: &Message) -> Option<TraceContext> {
    let headers = message.headers.as_ref()?;
    let state = headers.get("tracestate").map(|state| state.as_str());
    TraceContext::read(headers.get("traceparent")?.as_str(), state)
}

/// A message with its headers and its subject.
fn as_it_is(message: &Message) -> source::Message {
    let mut headers: Vec<(String, String)> = vec![("nats-subject".to_owned(), message.subject.to_string())];
    for (name, values) in message.headers.iter().flat_map(|headers| headers.iter()) {
        let name = name.to_string().to_ascii_lowercase();
        if let Some(value) = values.first().filter(|_| name != "nats-subject") {
            headers.push((name, value.as_str().to_owned()));
        }
    }
    let content_type = headers.iter().find(|(name, _)| name == "content-type").map(|(_, value)| value.clone());
    source::Message { content_type: content_type.unwrap_or_default(), headers, body: message.payload.clone() }
}

async fn acknowledge(message: &Message) -> Result<(), Trouble> {
    message.ack().await.map_err(|error| Trouble::new("a message cannot be acknowledged", error))
}

#[async_trait]
impl OpenSource for Stream {
    async fn next(&mut self) -> Result<Portion, Trouble> {
        self.connect().await?;
        loop {
            let messages = self.pull().await?;
            if !messages.is_empty() {
                return self.portion(messages);
            }
        }
    }

    async fn accepted(&mut self) -> Result<(), Trouble> {
        for message in std::mem::take(&mut self.held) {
            acknowledge(&message).await?;
        }
        Ok(())
    }
}
