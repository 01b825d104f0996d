//! Messages of topics of Kafka, from all their partitions. How far each is taken is our own mark, stored with the events;
//! afterwards the offsets are committed to a group, for others to see.
//!
//! No group shares out the partitions: one source takes them all, wherever the platform runs it. Brokers are asked at the
//! same time, each by one request that waits there for messages.

mod cluster; // who leads which partition, and what can be asked of them
mod connection; // greeting, login, answers to requests
mod options; // what an operator may set
mod place; // how far we are in each partition
mod records; // batches, unpacked

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use futures_util::{StreamExt, future::BoxFuture, stream::FuturesUnordered};
use kafka_protocol::{
    error::ResponseError,
    messages::{FetchResponse, fetch_response::PartitionData},
    records::Record,
};
pub use options::KafkaOptions;
use tocsin_delivery::{options::read, tls};
use tocsin_model::{mark::Mark, problem::Problem, time::Timestamp, trace_context::TraceContext};

use self::{
    cluster::{Cluster, End, Group},
    connection::{Access, Connection, Login},
    options::Start,
    place::{Part, Place},
    records::{Batch, Batches},
};
use crate::{
    items::Item,
    mapping::Mapping,
    source::{Gives, Message, OpenSource, PORTION_BYTES_MAX, PORTION_EVENTS_MAX, Portion, Refusal, Setting, Trouble},
    tray::Tray,
};

/// Partitions that appear are found after this time.
const CLUSTER_AGE_MAX: Duration = Duration::from_secs(60);
/// The same while some are without a leader.
const BROKEN_CLUSTER_AGE_MAX: Duration = Duration::from_secs(1);
/// How often in a row leaders are asked for anew before it is trouble, and the pause in between.
const SEARCHES_MAX: u32 = 20;
const SEARCH_PAUSE: Duration = Duration::from_millis(250);

pub(crate) fn open(setting: Setting, marks: Vec<Mark>) -> Result<Box<dyn OpenSource>, Vec<Problem>> {
    let options: KafkaOptions = read(&setting.options, "")?;
    let files = &setting.context.files;
    let trust = match (options.tls, &options.certificate_file, &options.key_file) {
        (false, ..) => None,
        (true, Some(certificate), Some(key)) => {
            let proven = tls::trust_and_prove(files, options.ca_file.as_deref(), certificate, key);
            Some(proven.map_err(|problem| vec![problem])?)
        }
        (true, ..) => Some(tls::trust(files, options.ca_file.as_deref(), "ca_file").map_err(|problem| vec![problem])?),
    };
    let name = match setting.gives {
        Gives::Events(_) => format!("tocsin-{}-{}", setting.application, setting.name),
        Gives::Messages { .. } => setting.far_name.clone(),
    };
    let login = options.username.clone().zip(options.password.clone());
    let mechanism = options.mechanism;
    let access = Access {
        client: name.clone(),
        trust,
        login: login.map(|(username, password)| Login { username, password, mechanism }),
        timeout: options.timeout.0,
    };
    Ok(Box::new(Topics {
        mapping: Mapping::new(&setting.gives.fields(), &options.fields),
        group: Group::new(options.group.clone().unwrap_or(name)),
        known: marks.iter().filter_map(Place::read).collect::<Result<_, _>>()?,
        access: Arc::new(access),
        setting,
        options,
        places: BTreeMap::new(),
        cluster: None,
        searches: 0,
        idle: HashMap::new(),
        asked: FuturesUnordered::new(),
        busy: HashSet::new(),
        answers: VecDeque::new(),
        batch: None,
        lost: BTreeMap::new(),
        refused: Vec::new(),
        held: BTreeMap::new(),
    }))
}

/// Topics whose messages are taken.
struct Topics {
    setting: Setting,
    options: KafkaOptions,
    access: Arc<Access>,
    mapping: Mapping,
    group: Group,
    /// What the marks said when the source was opened.
    known: BTreeMap<Part, Place>,
    /// How far we are in each partition that there is.
    places: BTreeMap<Part, Place>,
    /// Who leads them; `None`: that is to be asked.
    cluster: Option<(Cluster, Instant)>,
    /// How often that was asked since a leader answered.
    searches: u32,
    /// Connections to brokers of whom nothing is asked.
    idle: HashMap<i32, Connection>,
    /// Requests for messages that are on their way. They belong to us, so that whoever stops waiting for us loses none.
    asked: FuturesUnordered<BoxFuture<'static, Asked>>,
    /// The brokers that they went to.
    busy: HashSet<i32>,
    /// What they brought, packed.
    answers: VecDeque<Answer>,
    /// The batch that is being taken.
    batch: Option<Unpacked>,
    /// Partitions whose log does not have our place, each with the end of what it shares with what we took, if that is
    /// known.
    lost: BTreeMap<Part, Option<(i64, i32)>>,
    /// What to tell with the next portion.
    refused: Vec<Refusal>,
    /// What is accepted, or about to be, and not committed to the group.
    held: BTreeMap<Part, Place>,
}

/// What came of a request for messages.
struct Asked {
    broker: i32,
    answer: Result<(Connection, FetchResponse), Trouble>,
}

/// Messages of one partition.
struct Answer {
    part: Part,
    batches: Batches,
    /// Offset behind its last message that may be read.
    end: i64,
}

/// A batch, and what of it is not taken.
struct Unpacked {
    part: Part,
    records: VecDeque<Record>,
    last: i64,
    epoch: i32,
    end: i64,
}

impl Topics {
    /// Finds the partitions and their leaders. What we begin with is a portion by itself, so that a crash cannot move it.
    async fn search(&mut self) -> Result<Option<Portion>, Trouble> {
        if self.searches > SEARCHES_MAX {
            return Err(Trouble::of("partitions are without a leader, or leaders do not answer"));
        }
        if self.searches > 1 {
            tokio::time::sleep(SEARCH_PAUSE).await;
        }
        self.searches += 1;
        let cluster = Cluster::find(&self.options.addresses(), &self.options.topics, &self.access).await?;
        let mut fresh: BTreeMap<Part, (String, End)> = BTreeMap::new();
        for (part, topic) in cluster.parts() {
            let known = self.places.get(part).or_else(|| self.known.get(part));
            match known {
                Some(known) if known.topic == topic => {
                    let known = known.clone();
                    self.places.entry(part.clone()).or_insert(known);
                }
                // It was made anew, or is a partition more: nothing of it was there before us.
                _ if self.knows(&part.topic) => drop(fresh.insert(part.clone(), (topic.to_owned(), End::First))),
                _ => {
                    let end = if self.options.start == Start::Latest { End::Last } else { End::First };
                    fresh.insert(part.clone(), (topic.to_owned(), end));
                }
            }
        }
        let mut portion = Portion::default();
        for end in [End::First, End::Last] {
            let parts: Vec<Part> =
                fresh.iter().filter(|(_, (_, at))| *at == end).map(|(part, _)| part.clone()).collect();
            for (part, next) in cluster.offsets(&parts, end, &self.access).await? {
                let place = Place { topic: fresh[&part].0.clone(), next, epoch: -1 };
                portion.marks.push(place.mark(&part));
                self.lost.remove(&part);
                self.places.insert(part, place);
            }
        }
        if !portion.marks.is_empty() {
            self.forget_asked();
        }
        self.places.retain(|part, _| cluster.leads(part));
        self.cluster = Some((cluster, Instant::now()));
        Ok((!portion.marks.is_empty()).then_some(portion))
    }

    /// Lets go of answers that are on their way: they may be of a topic that is not there any more, or begin elsewhere.
    fn forget_asked(&mut self) {
        self.asked = FuturesUnordered::new();
        self.busy.clear();
    }

    /// Whether something of this topic was taken before.
    fn knows(&self, topic: &str) -> bool {
        self.known.keys().chain(self.places.keys()).any(|part| &*part.topic == topic)
    }

    /// Whether what we know of the leaders is young enough.
    fn knows_leaders(&self) -> bool {
        self.cluster.as_ref().is_some_and(|(cluster, at)| {
            at.elapsed() < if cluster.is_whole() { CLUSTER_AGE_MAX } else { BROKEN_CLUSTER_AGE_MAX }
        })
    }

    /// Asks each broker of whom nothing is asked for messages of the partitions that it leads.
    fn ask(&mut self) {
        let Some((cluster, _)) = &self.cluster else { return };
        for (broker, address) in cluster.brokers() {
            if self.busy.contains(&broker) {
                continue;
            }
            let Some(request) = cluster.fetch(broker, &self.places) else { continue };
            self.busy.insert(broker);
            let (connection, access, address) = (self.idle.remove(&broker), self.access.clone(), address.clone());
            self.asked.push(Box::pin(async move {
                let answer = async {
                    let mut connection = match connection {
                        Some(connection) => connection,
                        None => Connection::open(&address, &access).await?,
                    };
                    let answer = connection.ask(request, cluster::FETCH_VERSION, cluster::FETCH_WAIT).await?;
                    Ok((connection, answer))
                };
                Asked { broker, answer: answer.await }
            }));
        }
    }

    /// Takes in what a broker answered.
    fn hear(&mut self, asked: Asked) -> Result<(), Trouble> {
        self.busy.remove(&asked.broker);
        let (connection, answer) = match asked.answer {
            Ok(answer) => answer,
            // Others may lead its partitions by now.
            Err(trouble) if self.searches < SEARCHES_MAX => {
                tracing::debug!(%trouble, broker = asked.broker, "a broker does not answer");
                self.cluster = None;
                return Ok(());
            }
            Err(trouble) => return Err(trouble),
        };
        self.idle.insert(asked.broker, connection);
        connection::check(answer.error_code, || "messages cannot be asked for".to_owned())?;
        for topic in answer.responses {
            let name = self.cluster.as_ref().and_then(|(cluster, _)| cluster.name_of(&topic)).unwrap_or_default();
            for data in topic.partitions {
                let part = Part { topic: name.clone(), number: data.partition_index };
                self.hear_of(part, data)?;
            }
        }
        Ok(())
    }

    fn hear_of(&mut self, part: Part, data: PartitionData) -> Result<(), Trouble> {
        if !self.places.contains_key(&part) {
            return Ok(());
        }
        match ResponseError::try_from_code(data.error_code) {
            None => {}
            Some(ResponseError::OffsetOutOfRange) => {
                self.lose(part, None);
                return Ok(());
            }
            Some(
                ResponseError::NotLeaderOrFollower
                | ResponseError::UnknownTopicOrPartition
                | ResponseError::UnknownTopicId
                | ResponseError::InconsistentTopicId
                | ResponseError::LeaderNotAvailable
                | ResponseError::ReplicaNotAvailable
                | ResponseError::FencedLeaderEpoch
                | ResponseError::UnknownLeaderEpoch
                | ResponseError::OffsetNotAvailable
                | ResponseError::KafkaStorageError,
            ) => {
                self.cluster = None;
                return Ok(());
            }
            Some(error) => return Err(Trouble::new(format!("messages of {part}"), error)),
        }
        self.searches = 0;
        let diverged = &data.diverging_epoch;
        if diverged.end_offset >= 0 {
            self.lose(part, Some((diverged.end_offset, diverged.epoch)));
            return Ok(());
        }
        let end = if data.last_stable_offset >= 0 { data.last_stable_offset } else { data.high_watermark };
        if let Some(records) = data.records.filter(|records| !records.is_empty()) {
            let batches = Batches::new(records, data.aborted_transactions.unwrap_or_default());
            self.answers.push_back(Answer { part, batches, end });
        }
        Ok(())
    }

    /// A partition does not have our place. Perhaps it is one of another topic by now, so that is looked at first.
    fn lose(&mut self, part: Part, shared: Option<(i64, i32)>) {
        self.lost.insert(part, shared);
        self.cluster = None;
    }

    /// Finds the next place of partitions that do not have ours any more, or do not have it yet.
    async fn find_lost(&mut self) -> Result<(), Trouble> {
        let Some((cluster, _)) = &self.cluster else { return Ok(()) };
        let lost: Vec<Part> = self.lost.keys().filter(|part| cluster.leads(part)).cloned().collect();
        let first = cluster.offsets(&lost, End::First, &self.access).await?;
        let last = cluster.offsets(&lost, End::Last, &self.access).await?;
        for part in lost {
            let shared = self.lost.get(&part).copied().flatten();
            let (Some(place), Some(first), Some(last)) =
                (self.places.get_mut(&part), first.get(&part), last.get(&part))
            else {
                continue;
            };
            if place.next < *first {
                let gone = Problem::at("", format!("messages {} to {} of {part} were deleted", place.next, first - 1));
                self.refused.push(Refusal::new(&[gone.hint("before they were taken")], Vec::new()));
                (place.next, place.epoch) = (*first, -1);
            } else if let Some((next, epoch)) = shared.or((place.next > *last).then_some((*last, -1))) {
                // A leader died before others had all that it gave us. What it had alone is gone there, but we have it.
                tracing::warn!(%part, from = place.next, to = next, "the log of the partition was cut");
                (place.next, place.epoch) = (place.next.min(next), epoch);
            }
        }
        self.lost.clear();
        self.forget_asked();
        Ok(())
    }

    /// The next batch that has come, unpacked.
    fn unpack(&mut self) -> Result<bool, Trouble> {
        while let Some(answer) = self.answers.front_mut() {
            let part = answer.part.clone();
            let end = answer.end;
            match answer.batches.next().map_err(|error| Trouble::new(format!("messages of {part}"), error))? {
                None => drop(self.answers.pop_front()),
                Some(Batch { last, epoch, records }) => {
                    let next = self.places.get(&part).map_or(i64::MAX, |place| place.next);
                    if last < next {
                        continue;
                    }
                    let records = records.unwrap_or_else(|error| {
                        let problem = Problem::at("", format!("messages {next} to {last} of {part}: {error}"));
                        self.refused.push(Refusal::new(&[problem], Vec::new()));
                        Vec::new()
                    });
                    // A batch comes whole, even if we have taken some of it.
                    let records = records.into_iter().filter(|record| record.offset >= next).collect();
                    self.batch = Some(Unpacked { part, records, last, epoch, end });
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// What has come, as a portion.
    fn portion(&mut self) -> Result<Option<Portion>, Trouble> {
        let mut tray = Tray::new(&self.setting.gives);
        tray.portion.refused = std::mem::take(&mut self.refused);
        let (mut count, mut bytes) = (0, 0);
        let mut moved: BTreeMap<Part, i64> = BTreeMap::new();
        while count < PORTION_EVENTS_MAX && bytes < PORTION_BYTES_MAX {
            if self.batch.is_none() && !self.unpack()? {
                break;
            }
            let Some(batch) = &mut self.batch else { break };
            let Some(place) = self.places.get_mut(&batch.part) else {
                self.batch = None;
                continue;
            };
            moved.insert(batch.part.clone(), batch.end);
            place.epoch = batch.epoch;
            let Some(record) = batch.records.pop_front() else {
                place.next = batch.last + 1;
                self.batch = None;
                continue;
            };
            place.next = record.offset + 1;
            count += 1;
            bytes += record.value.as_ref().map_or(0, bytes::Bytes::len);
            if record.timestamp >= 0 {
                let since = Timestamp(record.timestamp.saturating_mul(1_000));
                let portion = &mut tray.portion;
                portion.since = Some(portion.since.map_or(since, |earlier| earlier.min(since)));
            }
            let part = &batch.part;
            // As a message it says something all the same: that what its key names is gone.
            if record.value.is_none() && matches!(self.setting.gives, Gives::Events(_)) {
                let problem = Problem::at("", "has a key and no value: it deletes what was said before");
                tray.portion.refused.push(Refusal::new(&[problem], record.key.clone().unwrap_or_default()));
                continue;
            }
            let item = || Item::Json(record.value.as_deref().unwrap_or_default().to_vec());
            tray.take(&self.mapping, item, || as_it_is(part, &record), trace_of(&record).as_ref());
        }
        let mut portion = tray.finish();
        if moved.is_empty() && portion.refused.is_empty() {
            return Ok(None);
        }
        let waiting = moved.iter().map(|(part, end)| end.saturating_sub(self.places[part].next).max(0) as u64);
        portion.waiting = Some(waiting.sum());
        for part in moved.keys() {
            let place = &self.places[part];
            portion.marks.push(place.mark(part));
            self.held.insert(part.clone(), place.clone());
        }
        Ok(Some(portion))
    }
}

/// Where a message stands in a trace, if its headers say it.
fn trace_of(record: &Record) -> Option<TraceContext> {
    let find = |name: &str| std::str::from_utf8(record.headers.get(name.as_bytes())?.as_ref()?).ok();
    TraceContext::read(find("traceparent")?, find("tracestate"))
}

/// A message with its headers, and where it stood. One without a value has an empty body and a header that says so.
fn as_it_is(part: &Part, record: &Record) -> Message {
    let mut headers = vec![
        ("kafka-topic".to_owned(), part.topic.to_string()),
        ("kafka-partition".to_owned(), part.number.to_string()),
        ("kafka-offset".to_owned(), record.offset.to_string()),
    ];
    headers.extend(record.key.iter().map(|key| ("kafka-key".to_owned(), String::from_utf8_lossy(key).into_owned())));
    if record.value.is_none() {
        headers.push(("kafka-deleted".to_owned(), "true".to_owned()));
    }
    for (name, value) in &record.headers {
        let name = name.to_ascii_lowercase();
        if let Some(value) = value.as_ref().filter(|_| !name.starts_with("kafka-")) {
            headers.push((name, String::from_utf8_lossy(value).into_owned()));
        }
    }
    let content_type = headers.iter().find(|(name, _)| name == "content-type").map(|(_, value)| value.clone());
    let body = record.value.clone().unwrap_or_default();
    Message { content_type: content_type.unwrap_or_default(), headers, body }
}

#[async_trait]
impl OpenSource for Topics {
    async fn next(&mut self) -> Result<Portion, Trouble> {
        loop {
            if let Some(portion) = self.portion()? {
                return Ok(portion);
            }
            if !self.knows_leaders()
                && let Some(portion) = self.search().await?
            {
                return Ok(portion);
            }
            if !self.lost.is_empty() {
                self.find_lost().await?;
                continue;
            }
            self.ask();
            match self.asked.next().await {
                Some(asked) => self.hear(asked)?,
                // All partitions are without a leader.
                None => self.cluster = None,
            }
        }
    }

    async fn accepted(&mut self) -> Result<(), Trouble> {
        if self.group.commit(&self.held, &self.options.addresses(), &self.access).await? {
            self.held.clear();
        }
        Ok(())
    }
}
