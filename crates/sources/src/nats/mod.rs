//! NATS JetStream source, with a durable consumer. Messages are acknowledged after their events are stored.
//!
//! After a crash the server redelivers unacknowledged messages, some of them late and after newer ones. For
//! de-duplication, the sequences of accepted messages are remembered, as ranges, until the server counts them as
//! acknowledged too.

mod options; // the options of an operator
mod accepted; // accepted messages, as ranges of sequences
mod unreadable; // messages that the client library cannot read

#[cfg(test)]
mod tests;

use std::{collections::BTreeSet, time::Duration};

use async_nats::{
    ConnectOptions,
    jetstream::{
        self,
        consumer::{AckPolicy, Consumer, DeliverPolicy, FromConsumer, pull},
        message::{Info, Message},
    },
};
use async_trait::async_trait;
use futures_util::StreamExt;
pub use options::NatsOptions;
use tocsin_connect::{nats::matches, options::read};
use tocsin_model::{
    definition::secrets::SecretShape,
    mark::Mark,
    problem::{Code, Problem},
    time::Timestamp,
    trace_context::TraceContext,
};

use self::{
    accepted::AcceptedSequences,
    unreadable::{LostConnections, Unreadable},
};
use crate::{
    batch_builder::BatchBuilder,
    description::{KindDescription, LocationDescription, Opened, SourceResource, check_of, not_allowed_of, schema_of},
    items::Item,
    mapping::Mapping,
    source::{self, BATCH_BYTES_MAX, BATCH_EVENTS_MAX, OpenSource, SourceBatch, SourceError, SourceSettings, stored},
};

/// The part of the marks with the sequences of accepted messages.
const TAKEN: &str = "taken";
/// Acknowledgement timeout, after which the server redelivers a message.
const ACK_WAIT: Duration = Duration::from_secs(30);
/// Time limit of a request for the next message, and of one for available messages.
const PULL_WAIT: Duration = Duration::from_secs(5);
const REST_WAIT: Duration = Duration::from_secs(1);

/// Its row in the table of kinds.
pub(crate) static KIND: KindDescription = KindDescription {
    name: "nats",
    summary: "messages of a NATS JetStream stream",
    schema: schema_of::<NatsOptions>,
    needs: &[SourceResource::NamedServers, SourceResource::ReadableFiles],
    secrets: &[("token", SecretShape::Whole), ("password", SecretShape::Whole)],
    location: Some(LocationDescription { event_options: &["fields"] }),
    check: check_of::<NatsOptions>,
    not_allowed: not_allowed_of::<NatsOptions>,
    open,
};

fn open(setting: SourceSettings, marks: Vec<Mark>) -> Opened {
    Ok(Box::new(stream(setting, marks)?))
}

fn stream(setting: SourceSettings, marks: Vec<Mark>) -> Result<Stream, Vec<Problem>> {
    let options: NatsOptions = read(&setting.options, "")?;
    let shown = format!("tocsin {} {}", setting.application, setting.name);
    let client = options.connection.client(&setting.context.files, shown).map_err(|problem| vec![problem])?;
    let lost_connections = LostConnections::default();
    let client = lost_connections.watch(client);
    Ok(Stream {
        mapping: Mapping::new(&setting.output.fields(), &options.fields),
        accepted_sequences: stored(&marks, TAKEN)?.unwrap_or_default(),
        context: None,
        consumer: None,
        lost_connections,
        delivery_gaps: DeliveryGaps::default(),
        held: Vec::new(),
        held_unreadable: Vec::new(),
        client,
        setting,
        options,
    })
}

/// The state of the source.
struct Stream {
    setting: SourceSettings,
    options: NatsOptions,
    client: ConnectOptions,
    mapping: Mapping,
    context: Option<jetstream::Context>,
    consumer: Option<Consumer<pull::Config>>,
    lost_connections: LostConnections,
    accepted_sequences: AcceptedSequences,
    delivery_gaps: DeliveryGaps,
    /// Messages of the last batch.
    held: Vec<Message>,
    /// Sequences of the last batch that could not be received.
    held_unreadable: Vec<u64>,
}

impl Stream {
    async fn connect(&mut self) -> Result<(), SourceError> {
        if self.consumer.is_some() {
            return Ok(());
        }
        let client = self.client.clone().connect(self.options.connection.addresses()).await;
        let client = client.map_err(|error| SourceError::new("no connection", error))?;
        let context = jetstream::new(client);
        let stream = context.get_stream(&self.options.stream).await;
        let stream = stream.map_err(|error| SourceError::new(format!("the stream {}", self.options.stream), error))?;
        let name = self.options.consumer.clone();
        let name = name.unwrap_or_else(|| self.setting.remote_name.clone());
        let config = pull::Config {
            durable_name: Some(name.clone()),
            deliver_policy: DeliverPolicy::All,
            ack_policy: AckPolicy::Explicit,
            ack_wait: ACK_WAIT,
            filter_subjects: self.options.subjects.clone(),
            max_ack_pending: 4 * BATCH_EVENTS_MAX as i64,
            ..pull::Config::default()
        };
        let failed = |error: &dyn std::fmt::Display| SourceError::new(format!("the consumer {name}"), error);
        let filters_requested = filters(&config);
        let mut consumer = stream.get_or_create_consumer(&name, config).await.map_err(|error| failed(&error))?;
        // The server keeps a consumer as created, including the subjects of an older definition.
        let kept: pull::Config = pull::Config::try_from_consumer_config(consumer.cached_info().config.clone())
            .map_err(|error| failed(&error))?;
        if filters(&kept) != filters_requested {
            let subjects = self.options.subjects.clone();
            let config = pull::Config { filter_subject: String::new(), filter_subjects: subjects, ..kept };
            consumer = stream.update_consumer(config).await.map_err(|error| failed(&error))?;
        }
        // A recreated stream or consumer restarts its sequences.
        let made = format!("{:?}", stream.cached_info().created);
        self.accepted_sequences = std::mem::take(&mut self.accepted_sequences).of(&made);
        self.accepted_sequences.remove_up_to(consumer.cached_info().ack_floor.stream_sequence);
        (self.context, self.consumer) = (Some(context), Some(consumer));
        Ok(())
    }

    /// Messages whose headers ended the connection, as a batch of rejected items.
    async fn unreadable(&mut self) -> Result<Option<SourceBatch>, SourceError> {
        let (Some(context), Some(consumer)) = (&self.context, &mut self.consumer) else { return Ok(None) };
        let (application, source) = (&self.setting.application, &self.setting.name);
        let info = match consumer.info().await {
            Ok(info) => info,
            Err(error) => {
                // The server may be unreachable: asked again later, and the client reconnects meanwhile.
                tracing::debug!(%application, %source, %error, "the consumer cannot be examined");
                self.lost_connections.set();
                return Ok(None);
            }
        };
        self.accepted_sequences.remove_up_to(info.ack_floor.stream_sequence);
        // Pending ones are redelivered, and end the connection each time.
        for sequence in self.accepted_sequences.unreadable() {
            unreadable::acknowledge(context, info, sequence).await?;
        }
        let found = unreadable::find(context, info, &self.options.subjects, &self.accepted_sequences).await;
        let found = found.unwrap_or_else(|error| {
            // The user may lack the right to read the stream itself.
            tracing::warn!(%application, %source, error = %error.text, "messages cannot be examined");
            Vec::new()
        });
        if found.is_empty() {
            return Ok(None);
        }
        let mut builder = BatchBuilder::new(&self.setting.output);
        for Unreadable { sequence, reason, payload } in found {
            builder.reject(&[Problem::new(Code::Unreadable, "", reason)], payload);
            self.accepted_sequences.add_unreadable(sequence);
            self.held_unreadable.push(sequence);
        }
        let mut batch = builder.finish();
        batch.marks = vec![self.mark()];
        Ok(Some(batch))
    }

    fn mark(&self) -> Mark {
        Mark::set(TAKEN, serde_json::to_vec(&self.accepted_sequences).expect("it is JSON"))
    }

    /// Available messages, or the first that arrives; each with the sequence since which no earlier message is missing.
    /// Only available messages are requested: an abandoned request would still be served, and its messages would be
    /// redelivered late.
    async fn pull(&mut self) -> Result<Vec<(u64, Message)>, SourceError> {
        let mut messages = self.fetch_messages(1, PULL_WAIT).await?;
        if let Some(first) = messages.first() {
            let waiting = usize::try_from(info_of(first)?.pending).unwrap_or(usize::MAX);
            let fitting = BATCH_BYTES_MAX / first.payload.len().max(1);
            let more = waiting.min(fitting).min(BATCH_EVENTS_MAX - 1);
            if more > 0 {
                messages.extend(self.fetch_messages(more, REST_WAIT).await?);
            }
        }
        let mut fresh = Vec::new();
        for message in messages {
            let info = info_of(&message)?;
            let sequence = info.stream_sequence;
            let first = self.delivery_gaps.next(sequence, info.consumer_sequence, info.delivered == 1);
            if self.accepted_sequences.contains(sequence) || !self.should_accept(message.subject.as_str()) {
                // Taken before, or of a subject that is no longer in the definition.
                acknowledge(&message).await?;
            } else {
                fresh.push((first, message));
            }
        }
        Ok(fresh)
    }

    /// Whether messages of a subject are taken.
    fn should_accept(&self, subject: &str) -> bool {
        let subjects = &self.options.subjects;
        subjects.is_empty() || subjects.iter().any(|filter| matches(filter, subject))
    }

    /// Requests up to `count` messages, waiting at most `wait`.
    async fn fetch_messages(&self, count: usize, wait: Duration) -> Result<Vec<Message>, SourceError> {
        let consumer = self.consumer.as_ref().ok_or_else(|| SourceError::of("there is no connection"))?;
        let batch = consumer.batch().max_messages(count).expires(wait).messages().await;
        let mut batch = batch.map_err(|error| SourceError::new("messages cannot be asked for", error))?;
        let (mut messages, mut bytes) = (Vec::new(), 0);
        while let Some(message) = batch.next().await {
            let message = message.map_err(|error| SourceError::new("messages do not come", error))?;
            bytes += message.payload.len();
            messages.push(message);
            // A small message was followed by large ones; unread ones are redelivered.
            if bytes >= BATCH_BYTES_MAX {
                break;
            }
        }
        Ok(messages)
    }

    fn batch(&mut self, messages: Vec<(u64, Message)>) -> Result<SourceBatch, SourceError> {
        let mut builder = BatchBuilder::new(&self.setting.output);
        for (first, message) in &messages {
            let info = info_of(message)?;
            let since = Timestamp(i64::try_from(info.published.unix_timestamp_nanos() / 1_000).unwrap_or(0));
            let batch = &mut builder.batch;
            batch.since = Some(batch.since.map_or(since, |earlier| earlier.min(since)));
            batch.waiting = Some(info.pending);
            self.accepted_sequences.add(*first, info.stream_sequence);
            let item = || Item::Json(message.payload.to_vec());
            builder.take(&self.mapping, item, || raw_message(message), trace_of(message).as_ref());
        }
        let mut batch = builder.finish();
        batch.marks = vec![self.mark()];
        self.held = messages.into_iter().map(|(_, message)| message).collect();
        Ok(batch)
    }
}

/// The subjects of a consumer.
fn filters(config: &pull::Config) -> BTreeSet<String> {
    let one = [&config.filter_subject].into_iter().filter(|subject| !subject.is_empty());
    one.chain(&config.filter_subjects).cloned().collect()
}

fn info_of(message: &Message) -> Result<Info<'_>, SourceError> {
    message.info().map_err(|error| SourceError::new("a message without a sequence", error))
}

/// Distinguishes gaps in the stream from deliveries that did not arrive.
///
/// Messages are delivered for the first time in order, and each delivery has a number. So between two first deliveries
/// there is no further message for this consumer, if all deliveries in between arrived.
#[derive(Default)]
struct DeliveryGaps {
    /// The sequence of the last first delivery, and the number of the last delivery, if all deliveries between the two
    /// arrived.
    last: Option<(u64, u64)>,
}

impl DeliveryGaps {
    /// Records a delivery: its sequence, its delivery number, and whether it is the first delivery. Returns the
    /// sequence since which no earlier message is missing.
    fn next(&mut self, sequence: u64, number: u64, is_first: bool) -> u64 {
        let before = self.last.filter(|(_, last)| last + 1 == number).map(|(before, _)| before);
        self.last = if is_first { Some((sequence, number)) } else { before.map(|before| (before, number)) };
        match before.filter(|before| is_first && *before < sequence) {
            Some(before) => before + 1,
            None => sequence,
        }
    }
}

/// The trace context in the headers of a message.
fn trace_of(message: &Message) -> Option<TraceContext> {
    let headers = message.headers.as_ref()?;
    let state = headers.get("tracestate").map(|state| state.as_str());
    TraceContext::read(headers.get("traceparent")?.as_str(), state)
}

/// A message with its headers and its subject.
fn raw_message(message: &Message) -> source::Message {
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

async fn acknowledge(message: &Message) -> Result<(), SourceError> {
    message.ack().await.map_err(|error| SourceError::new("a message cannot be acknowledged", error))
}

#[async_trait]
impl OpenSource for Stream {
    async fn next(&mut self) -> Result<SourceBatch, SourceError> {
        self.connect().await?;
        loop {
            if self.lost_connections.take()
                && let Some(batch) = self.unreadable().await?
            {
                return Ok(batch);
            }
            let messages = self.pull().await?;
            if !messages.is_empty() {
                return self.batch(messages);
            }
        }
    }

    async fn accepted(&mut self) -> Result<(), SourceError> {
        for message in std::mem::take(&mut self.held) {
            acknowledge(&message).await?;
        }
        if let (Some(context), Some(consumer)) = (&self.context, &self.consumer) {
            for sequence in std::mem::take(&mut self.held_unreadable) {
                unreadable::acknowledge(context, consumer.cached_info(), sequence).await?;
            }
        }
        Ok(())
    }
}
