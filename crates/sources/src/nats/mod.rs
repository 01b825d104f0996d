//! Messages of a stream of NATS JetStream, by a durable consumer. They are acknowledged when their events are accepted.
//!
//! After a crash the server gives again what was not acknowledged, some of it late and after newer messages. So the
//! sequences of accepted messages are remembered, as ranges, until the server counts them as acknowledged too.

mod options; // what an operator may set
mod taken; // which messages are accepted

#[cfg(test)]
mod tests;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use async_nats::jetstream::{
    self,
    consumer::{AckPolicy, Consumer, DeliverPolicy, FromConsumer, pull},
    message::{Info, Message},
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
    source::{self, OpenSource, PORTION_BYTES_MAX, PORTION_EVENTS_MAX, Portion, Setting, Trouble, stored},
    tray::Tray,
};

/// The part with the sequences of accepted messages.
const TAKEN: &str = "taken";
/// How long the server waits for an acknowledgement before it gives a message again.
const ACK_WAIT: Duration = Duration::from_secs(30);
/// How long a request for a message stands, and one for messages that are there.
const PULL_WAIT: Duration = Duration::from_secs(5);
const REST_WAIT: Duration = Duration::from_secs(1);

pub(crate) fn open(setting: Setting, marks: Vec<Mark>) -> Result<Box<dyn OpenSource>, Vec<Problem>> {
    let options: NatsOptions = read(&setting.options, "")?;
    let trust =
        tls::trust(&setting.context.files, options.ca_file.as_deref(), "ca_file").map_err(|problem| vec![problem])?;
    Ok(Box::new(Stream {
        mapping: Mapping::new(&setting.gives.fields(), &options.fields),
        taken: stored(&marks, TAKEN)?.unwrap_or_default(),
        consumer: None,
        given: Given::default(),
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
    given: Given,
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
        let connect = system
            .connect(&self.setting.context.files, &self.trust, shown)
            .map_err(|problem| Trouble::of(problem.to_string()))?;
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
        let failed = |error: &dyn std::fmt::Display| Trouble::new(format!("the consumer {name}"), error);
        let wanted = filters(&config);
        let mut consumer = stream.get_or_create_consumer(&name, config).await.map_err(|error| failed(&error))?;
        // The server keeps a consumer as it was made, with the subjects of another definition too.
        let kept: pull::Config = pull::Config::try_from_consumer_config(consumer.cached_info().config.clone())
            .map_err(|error| failed(&error))?;
        if filters(&kept) != wanted {
            let subjects = self.options.subjects.clone();
            let config = pull::Config { filter_subject: String::new(), filter_subjects: subjects, ..kept };
            consumer = stream.update_consumer(config).await.map_err(|error| failed(&error))?;
        }
        // A stream or a consumer that was made anew counts anew.
        let made = format!("{:?}", stream.cached_info().created);
        self.taken = std::mem::take(&mut self.taken).of(&made);
        self.taken.forget_to(consumer.cached_info().ack_floor.stream_sequence);
        self.consumer = Some(consumer);
        Ok(())
    }

    /// Messages that are there, or the first that comes; each with the sequence from which on there is none before it. Only what is
    /// there is asked for: a request to which nobody listens any more would be answered too, and what it was given comes late.
    async fn pull(&mut self) -> Result<Vec<(u64, Message)>, Trouble> {
        let mut messages = self.ask(1, PULL_WAIT).await?;
        if let Some(first) = messages.first() {
            let waiting = usize::try_from(info_of(first)?.pending).unwrap_or(usize::MAX);
            let fitting = PORTION_BYTES_MAX / first.payload.len().max(1);
            let more = waiting.min(fitting).min(PORTION_EVENTS_MAX - 1);
            if more > 0 {
                messages.extend(self.ask(more, REST_WAIT).await?);
            }
        }
        let mut fresh = Vec::new();
        for message in messages {
            let info = info_of(&message)?;
            let sequence = info.stream_sequence;
            let first = self.given.next(sequence, info.consumer_sequence, info.delivered == 1);
            if self.taken.contains(sequence) || !self.is_wanted(message.subject.as_str()) {
                // Taken before, or given for a subject that the definition does not have any more.
                acknowledge(&message).await?;
            } else {
                fresh.push((first, message));
            }
        }
        Ok(fresh)
    }

    /// Whether messages of a subject are taken.
    fn is_wanted(&self, subject: &str) -> bool {
        let subjects = &self.options.subjects;
        subjects.is_empty() || subjects.iter().any(|filter| matches(filter, subject))
    }

    /// Asks for so many, and waits for them no longer than this.
    async fn ask(&self, count: usize, wait: Duration) -> Result<Vec<Message>, Trouble> {
        let consumer = self.consumer.as_ref().ok_or_else(|| Trouble::of("there is no connection"))?;
        let batch = consumer.batch().max_messages(count).expires(wait).messages().await;
        let mut batch = batch.map_err(|error| Trouble::new("messages cannot be asked for", error))?;
        let (mut messages, mut bytes) = (Vec::new(), 0);
        while let Some(message) = batch.next().await {
            let message = message.map_err(|error| Trouble::new("messages do not come", error))?;
            bytes += message.payload.len();
            messages.push(message);
            // Where a small one was followed by large ones; what is not read comes again.
            if bytes >= PORTION_BYTES_MAX {
                break;
            }
        }
        Ok(messages)
    }

    fn portion(&mut self, messages: Vec<(u64, Message)>) -> Result<Portion, Trouble> {
        let mut tray = Tray::new(&self.setting.gives);
        for (first, message) in &messages {
            let info = info_of(message)?;
            let since = Timestamp(i64::try_from(info.published.unix_timestamp_nanos() / 1_000).unwrap_or(0));
            let portion = &mut tray.portion;
            portion.since = Some(portion.since.map_or(since, |earlier| earlier.min(since)));
            portion.waiting = Some(info.pending);
            self.taken.add(*first, info.stream_sequence);
            let item = || Item::Json(message.payload.to_vec());
            tray.take(&self.mapping, item, || as_it_is(message), trace_of(message).as_ref());
        }
        let mut portion = tray.finish();
        portion.marks = vec![Mark::set(TAKEN, serde_json::to_vec(&self.taken).expect("it is JSON"))];
        self.held = messages.into_iter().map(|(_, message)| message).collect();
        Ok(portion)
    }
}

/// The subjects that a consumer is for.
fn filters(config: &pull::Config) -> BTreeSet<String> {
    let one = [&config.filter_subject].into_iter().filter(|subject| !subject.is_empty());
    one.chain(&config.filter_subjects).cloned().collect()
}

/// Whether a subject is one of a filter: `*` is one token, `>` one or more at the end.
fn matches(filter: &str, subject: &str) -> bool {
    let (mut filter, mut subject) = (filter.split('.'), subject.split('.'));
    loop {
        match (filter.next(), subject.next()) {
            (Some(">"), Some(_)) | (None, None) => return true,
            (Some("*"), Some(_)) => {}
            (Some(wanted), Some(token)) if wanted == token => {}
            _ => return false,
        }
    }
}

fn info_of(message: &Message) -> Result<Info<'_>, Trouble> {
    message.info().map_err(|error| Trouble::new("a message without a sequence", error))
}

/// What was given of late, by which gaps of the stream are told from messages that went astray.
///
/// Messages are given for the first time in their order, and each time that one is given has a number. So between two that were
/// given for the first time there is none for us, if nothing was given in between that did not come here.
#[derive(Default)]
struct Given {
    /// The sequence of the last that was given for the first time, and the number of the last that was given, if all between the
    /// two came here.
    last: Option<(u64, u64)>,
}

impl Given {
    /// One that came: its sequence, the number of its being given, and whether that was the first time. Gives the sequence from
    /// which on there is none before it.
    fn next(&mut self, sequence: u64, number: u64, is_first: bool) -> u64 {
        let before = self.last.filter(|(_, last)| last + 1 == number).map(|(before, _)| before);
        self.last = if is_first { Some((sequence, number)) } else { before.map(|before| (before, number)) };
        match before.filter(|before| is_first && *before < sequence) {
            Some(before) => before + 1,
            None => sequence,
        }
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
