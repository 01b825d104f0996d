//! Kafka source: messages of topics, from all their partitions. The consumed offsets are marks (checkpoints), stored
//! with the events; afterwards they are committed to a consumer group, for monitoring.
//!
//! Partitions are not divided within a group: one source takes them all, wherever the platform runs it. Brokers are
//! polled concurrently, each by one long-polling request.

mod cluster; // cluster metadata and consumer group
mod connection; // broker connections: handshake, login, requests
mod options; // the options of an operator
mod offset; // the consumed offset of each partition
mod records; // decodes record batches

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
use tocsin_connect::options::read;
use tocsin_model::{
    definition::secrets::SecretShape,
    mark::Mark,
    problem::{Code, Problem},
    time::Timestamp,
    trace_context::TraceContext,
};

use self::{
    cluster::{Cluster, Group, LogEnd},
    connection::{Access, Connection, Login},
    offset::{Partition, PartitionOffset},
    options::Start,
    records::{Batch, Batches},
};
use crate::{
    batch_builder::BatchBuilder,
    description::{KindDescription, LocationDescription, Opened, SourceResource, check_of, not_allowed_of, schema_of},
    items::Item,
    mapping::Mapping,
    source::{
        BATCH_BYTES_MAX, BATCH_EVENTS_MAX, Message, OpenSource, RejectedItem, SourceBatch, SourceError, SourceOutput,
        SourceSettings,
    },
};

/// Age after which the metadata is refreshed, to find new partitions.
const CLUSTER_AGE_MAX: Duration = Duration::from_secs(60);
/// As above, while partitions have no leader.
const BROKEN_CLUSTER_AGE_MAX: Duration = Duration::from_secs(1);
/// Most consecutive metadata refreshes without success before an error, and the pause in between.
const SEARCHES_MAX: u32 = 20;
const SEARCH_PAUSE: Duration = Duration::from_millis(250);

/// Its row in the table of kinds.
pub(crate) static KIND: KindDescription = KindDescription {
    name: "kafka",
    summary: "messages of Kafka topics",
    schema: schema_of::<KafkaOptions>,
    needs: &[SourceResource::NamedServers, SourceResource::ReadableFiles],
    secrets: &[("password", SecretShape::Whole)],
    location: Some(LocationDescription { event_options: &["fields"] }),
    check: check_of::<KafkaOptions>,
    not_allowed: not_allowed_of::<KafkaOptions>,
    open,
};

fn open(setting: SourceSettings, marks: Vec<Mark>) -> Opened {
    let options: KafkaOptions = read(&setting.options, "")?;
    let connection = &options.connection;
    let trust = connection
        .tls
        .is_required
        .then(|| connection.tls.certificates.client_config(&setting.context.files))
        .transpose();
    let trust = trust.map_err(|problem| vec![problem])?;
    let name = match setting.output {
        SourceOutput::Events(_) => format!("tocsin-{}-{}", setting.application, setting.name),
        SourceOutput::Messages { .. } => setting.remote_name.clone(),
    };
    let login = connection.username.clone().zip(connection.password.clone());
    let mechanism = connection.mechanism;
    let access = Access {
        client: connection.client_id.clone().unwrap_or_else(|| name.clone()),
        trust,
        login: login.map(|(username, password)| Login { username, password, mechanism }),
        timeout: connection.timeout.0,
    };
    Ok(Box::new(Topics {
        mapping: Mapping::new(&setting.output.fields(), &options.fields),
        group: Group::new(options.group.clone().unwrap_or(name)),
        stored_offsets: marks.iter().filter_map(PartitionOffset::read).collect::<Result<_, _>>()?,
        access: Arc::new(access),
        setting,
        options,
        offsets: BTreeMap::new(),
        cluster: None,
        searches: 0,
        idle: HashMap::new(),
        fetches: FuturesUnordered::new(),
        busy: HashSet::new(),
        answers: VecDeque::new(),
        batch: None,
        lost_offsets: BTreeMap::new(),
        refused: Vec::new(),
        uncommitted: BTreeMap::new(),
    }))
}

/// The state of the source.
struct Topics {
    setting: SourceSettings,
    options: KafkaOptions,
    access: Arc<Access>,
    mapping: Mapping,
    group: Group,
    /// The offsets from the marks at opening.
    stored_offsets: BTreeMap<Partition, PartitionOffset>,
    /// The consumed offset of each existing partition.
    offsets: BTreeMap<Partition, PartitionOffset>,
    /// The metadata and its time; `None`: it must be fetched.
    cluster: Option<(Cluster, Instant)>,
    /// The number of metadata refreshes since a leader responded.
    searches: u32,
    /// Connections without a pending request.
    idle: HashMap<i32, Connection>,
    /// Pending fetch requests. They belong to the source, so dropping `next` loses none.
    fetches: FuturesUnordered<BoxFuture<'static, FetchResult>>,
    /// The brokers with a pending request.
    busy: HashSet<i32>,
    /// Responses that are not decoded yet.
    answers: VecDeque<FetchedPartition>,
    /// The batch that is being taken.
    batch: Option<CurrentBatch>,
    /// Partitions whose log does not contain our offset, each with the end of the common prefix, if known.
    lost_offsets: BTreeMap<Partition, Option<(i64, i32)>>,
    /// Rejected items for the next batch.
    refused: Vec<RejectedItem>,
    /// Offsets that are accepted, or about to be, and not committed to the group.
    uncommitted: BTreeMap<Partition, PartitionOffset>,
}

/// The result of a fetch request.
struct FetchResult {
    broker: i32,
    answer: Result<(Connection, FetchResponse), SourceError>,
}

/// Fetched messages of one partition.
struct FetchedPartition {
    part: Partition,
    batches: Batches,
    /// The offset after its last committed message.
    end: i64,
}

/// A decoded batch, and its remaining records.
struct CurrentBatch {
    part: Partition,
    records: VecDeque<Record>,
    last: i64,
    epoch: i32,
    end: i64,
}

impl Topics {
    /// Fetches partitions and leaders. The start position is a batch of its own, so that a crash cannot change it.
    async fn search(&mut self) -> Result<Option<SourceBatch>, SourceError> {
        if self.searches > SEARCHES_MAX {
            return Err(SourceError::of("partitions are without a leader, or leaders do not answer"));
        }
        if self.searches > 1 {
            tokio::time::sleep(SEARCH_PAUSE).await;
        }
        self.searches += 1;
        let cluster = Cluster::find(&self.options.connection.addresses(), &self.options.topics, &self.access).await?;
        let mut fresh: BTreeMap<Partition, (String, LogEnd)> = BTreeMap::new();
        for (part, topic) in cluster.parts() {
            let known = self.offsets.get(part).or_else(|| self.stored_offsets.get(part));
            match known {
                Some(known) if known.topic == topic => {
                    let known = known.clone();
                    self.offsets.entry(part.clone()).or_insert(known);
                }
                // It was recreated, or is a new partition: all its messages are new.
                _ if self.has_topic(&part.topic) => drop(fresh.insert(part.clone(), (topic.to_owned(), LogEnd::First))),
                _ => {
                    let end = if self.options.start == Start::Latest { LogEnd::Last } else { LogEnd::First };
                    fresh.insert(part.clone(), (topic.to_owned(), end));
                }
            }
        }
        let mut portion = SourceBatch::default();
        for end in [LogEnd::First, LogEnd::Last] {
            let parts: Vec<Partition> =
                fresh.iter().filter(|(_, (_, at))| *at == end).map(|(part, _)| part.clone()).collect();
            for (part, next) in cluster.offsets(&parts, end, &self.access).await? {
                let place = PartitionOffset { topic: fresh[&part].0.clone(), next, epoch: -1 };
                portion.marks.push(place.mark(&part));
                self.lost_offsets.remove(&part);
                self.offsets.insert(part, place);
            }
        }
        if !portion.marks.is_empty() {
            self.drop_pending();
        }
        self.offsets.retain(|part, _| cluster.contains(part));
        self.cluster = Some((cluster, Instant::now()));
        Ok((!portion.marks.is_empty()).then_some(portion))
    }

    /// Drops pending responses: they may be of a topic that no longer exists, or start at another offset.
    fn drop_pending(&mut self) {
        self.fetches = FuturesUnordered::new();
        self.busy.clear();
    }

    /// Whether messages of this topic were taken before.
    fn has_topic(&self, topic: &str) -> bool {
        self.stored_offsets.keys().chain(self.offsets.keys()).any(|part| &*part.topic == topic)
    }

    /// Whether the metadata is fresh enough.
    fn has_fresh_metadata(&self) -> bool {
        self.cluster.as_ref().is_some_and(|(cluster, at)| {
            at.elapsed() < if cluster.is_whole() { CLUSTER_AGE_MAX } else { BROKEN_CLUSTER_AGE_MAX }
        })
    }

    /// Sends a fetch request to each broker without a pending one, for the partitions that it leads.
    fn send_fetches(&mut self) {
        let Some((cluster, _)) = &self.cluster else { return };
        for (broker, address) in cluster.brokers() {
            if self.busy.contains(&broker) {
                continue;
            }
            let Some(request) = cluster.fetch(broker, &self.offsets) else { continue };
            self.busy.insert(broker);
            let (connection, access, address) = (self.idle.remove(&broker), self.access.clone(), address.clone());
            self.fetches.push(Box::pin(async move {
                let answer = async {
                    let mut connection = match connection {
                        Some(connection) => connection,
                        None => Connection::open(&address, &access).await?,
                    };
                    let answer = connection.request(request, cluster::FETCH_VERSION, cluster::FETCH_WAIT).await?;
                    Ok((connection, answer))
                };
                FetchResult { broker, answer: answer.await }
            }));
        }
    }

    /// Handles the response of a broker.
    fn handle_response(&mut self, asked: FetchResult) -> Result<(), SourceError> {
        self.busy.remove(&asked.broker);
        let (connection, answer) = match asked.answer {
            Ok(answer) => answer,
            // Its partitions may have another leader by now.
            Err(error) if self.searches < SEARCHES_MAX => {
                tracing::debug!(%error, broker = asked.broker, "a broker does not answer");
                self.cluster = None;
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        self.idle.insert(asked.broker, connection);
        connection::check(answer.error_code, || "messages cannot be asked for".to_owned())?;
        for topic in answer.responses {
            let name = self.cluster.as_ref().and_then(|(cluster, _)| cluster.name_of(&topic)).unwrap_or_default();
            for data in topic.partitions {
                let part = Partition { topic: name.clone(), number: data.partition_index };
                self.handle_partition(part, data)?;
            }
        }
        Ok(())
    }

    fn handle_partition(&mut self, part: Partition, data: PartitionData) -> Result<(), SourceError> {
        if !self.offsets.contains_key(&part) {
            return Ok(());
        }
        match ResponseError::try_from_code(data.error_code) {
            None => {}
            Some(ResponseError::OffsetOutOfRange) => {
                self.handle_lost_offset(part, None);
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
            Some(error) => return Err(SourceError::new(format!("messages of {part}"), error)),
        }
        self.searches = 0;
        let diverged = &data.diverging_epoch;
        if diverged.end_offset >= 0 {
            self.handle_lost_offset(part, Some((diverged.end_offset, diverged.epoch)));
            return Ok(());
        }
        let end = if data.last_stable_offset >= 0 { data.last_stable_offset } else { data.high_watermark };
        if let Some(records) = data.records.filter(|records| !records.is_empty()) {
            let batches = Batches::new(records, data.aborted_transactions.unwrap_or_default());
            self.answers.push_back(FetchedPartition { part, batches, end });
        }
        Ok(())
    }

    /// Handles a partition that does not contain our offset. It may be of another topic by now, so the metadata is
    /// refreshed first.
    fn handle_lost_offset(&mut self, part: Partition, shared: Option<(i64, i32)>) {
        self.lost_offsets.insert(part, shared);
        self.cluster = None;
    }

    /// Finds the next offset of partitions that do not contain ours.
    async fn resolve_lost_offsets(&mut self) -> Result<(), SourceError> {
        let Some((cluster, _)) = &self.cluster else { return Ok(()) };
        let lost: Vec<Partition> = self.lost_offsets.keys().filter(|part| cluster.contains(part)).cloned().collect();
        let first = cluster.offsets(&lost, LogEnd::First, &self.access).await?;
        let last = cluster.offsets(&lost, LogEnd::Last, &self.access).await?;
        for part in lost {
            let shared = self.lost_offsets.get(&part).copied().flatten();
            let (Some(place), Some(first), Some(last)) =
                (self.offsets.get_mut(&part), first.get(&part), last.get(&part))
            else {
                continue;
            };
            if place.next < *first {
                let gone = Problem::new(
                    Code::DataLost,
                    "",
                    format!("messages {} to {} of {part} were deleted", place.next, first - 1),
                );
                self.refused.push(RejectedItem::new(&[gone.hint("before they were taken")], Vec::new()));
                (place.next, place.epoch) = (*first, -1);
            } else if let Some((next, epoch)) = shared.or((place.next > *last).then_some((*last, -1))) {
                // A leader failed before its followers had all messages that we took. They are lost there, but we have
                // stored them.
                tracing::warn!(%part, from = place.next, to = next, "the log of the partition was cut");
                (place.next, place.epoch) = (place.next.min(next), epoch);
            }
        }
        self.lost_offsets.clear();
        self.drop_pending();
        Ok(())
    }

    /// Decodes the next batch.
    fn unpack(&mut self) -> Result<bool, SourceError> {
        while let Some(answer) = self.answers.front_mut() {
            let part = answer.part.clone();
            let end = answer.end;
            match answer.batches.next().map_err(|error| SourceError::new(format!("messages of {part}"), error))? {
                None => drop(self.answers.pop_front()),
                Some(Batch { last, epoch, records }) => {
                    let next = self.offsets.get(&part).map_or(i64::MAX, |place| place.next);
                    if last < next {
                        continue;
                    }
                    let records = records.unwrap_or_else(|error| {
                        let problem =
                            Problem::new(Code::Unreadable, "", format!("messages {next} to {last} of {part}: {error}"));
                        self.refused.push(RejectedItem::new(&[problem], Vec::new()));
                        Vec::new()
                    });
                    // A batch is delivered completely, even if part of it was taken.
                    let records = records.into_iter().filter(|record| record.offset >= next).collect();
                    self.batch = Some(CurrentBatch { part, records, last, epoch, end });
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// The fetched messages, as a batch.
    fn portion(&mut self) -> Result<Option<SourceBatch>, SourceError> {
        let mut builder = BatchBuilder::new(&self.setting.output);
        builder.batch.refused = std::mem::take(&mut self.refused);
        let (mut count, mut bytes) = (0, 0);
        let mut moved: BTreeMap<Partition, i64> = BTreeMap::new();
        while count < BATCH_EVENTS_MAX && bytes < BATCH_BYTES_MAX {
            if self.batch.is_none() && !self.unpack()? {
                break;
            }
            let Some(batch) = &mut self.batch else { break };
            let Some(place) = self.offsets.get_mut(&batch.part) else {
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
                let portion = &mut builder.batch;
                portion.since = Some(portion.since.map_or(since, |earlier| earlier.min(since)));
            }
            let part = &batch.part;
            // As a message it is still meaningful: a tombstone, which deletes its key.
            if record.value.is_none() && matches!(self.setting.output, SourceOutput::Events(_)) {
                let problem = Problem::new(
                    Code::NotApplicable,
                    "",
                    "has a key and no value: it is a tombstone, which deletes the key",
                );
                builder.batch.refused.push(RejectedItem::new(&[problem], record.key.clone().unwrap_or_default()));
                continue;
            }
            let item = || Item::Json(record.value.as_deref().unwrap_or_default().to_vec());
            builder.take(&self.mapping, item, || raw_message(part, &record), trace_of(&record).as_ref());
        }
        let mut portion = builder.finish();
        if moved.is_empty() && portion.refused.is_empty() {
            return Ok(None);
        }
        let waiting = moved.iter().map(|(part, end)| end.saturating_sub(self.offsets[part].next).max(0) as u64);
        portion.waiting = Some(waiting.sum());
        for part in moved.keys() {
            let place = &self.offsets[part];
            portion.marks.push(place.mark(part));
            self.uncommitted.insert(part.clone(), place.clone());
        }
        Ok(Some(portion))
    }
}

/// The trace context in the headers of a message.
fn trace_of(record: &Record) -> Option<TraceContext> {
    let find = |name: &str| std::str::from_utf8(record.headers.get(name.as_bytes())?.as_ref()?).ok();
    TraceContext::read(find("traceparent")?, find("tracestate"))
}

/// A message with its headers and its position. One without a value has an empty body and a header that says so.
fn raw_message(part: &Partition, record: &Record) -> Message {
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
    async fn next(&mut self) -> Result<SourceBatch, SourceError> {
        loop {
            if let Some(portion) = self.portion()? {
                return Ok(portion);
            }
            if !self.has_fresh_metadata()
                && let Some(portion) = self.search().await?
            {
                return Ok(portion);
            }
            if !self.lost_offsets.is_empty() {
                self.resolve_lost_offsets().await?;
                continue;
            }
            self.send_fetches();
            match self.fetches.next().await {
                Some(asked) => self.handle_response(asked)?,
                // All partitions are without a leader.
                None => self.cluster = None,
            }
        }
    }

    async fn accepted(&mut self) -> Result<(), SourceError> {
        if self.group.commit(&self.uncommitted, &self.options.connection.addresses(), &self.access).await? {
            self.uncommitted.clear();
        }
        Ok(())
    }
}
