//! Cluster metadata: partition leaders, log offsets, and the consumer group.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use kafka_protocol::{
    error::ResponseError,
    messages::{
        BrokerId, FetchRequest, FindCoordinatorRequest, GroupId, ListOffsetsRequest, MetadataRequest,
        OffsetCommitRequest, TopicName,
        fetch_request::{FetchPartition, FetchTopic},
        fetch_response::FetchableTopicResponse,
        list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic},
        metadata_request::MetadataRequestTopic,
        offset_commit_request::{OffsetCommitRequestPartition, OffsetCommitRequestTopic},
    },
    protocol::StrBytes,
};
use tocsin_connect::kafka::Address;
use uuid::Uuid;

use super::{
    connection::{Access, Connection, check},
    offset::{Partition, PartitionOffset},
};
use crate::source::SourceError;

/// The newest supported request versions. They have all features that we use; brokers from 0.11 on support versions
/// that are not newer.
pub(super) const FETCH_VERSION: i16 = 13;
const METADATA_VERSION: i16 = 12;
const LIST_OFFSETS_VERSION: i16 = 7;
const FIND_COORDINATOR_VERSION: i16 = 3;
const OFFSET_COMMIT_VERSION: i16 = 8;

/// Long-poll time for messages.
pub(super) const FETCH_WAIT: Duration = Duration::from_secs(5);
/// Most bytes of a response, and of a partition in it, unless a single batch is longer.
const FETCH_BYTES_MAX: i32 = 4 << 20;
const PARTITION_BYTES_MAX: i32 = 1 << 20;
/// Most partitions of a source.
const PARTITIONS_MAX: usize = 4_096;
/// Most attempts to commit while the group coordinator is being elected, and the pause in between.
const COMMITS_MAX: u32 = 10;
const COMMIT_PAUSE: Duration = Duration::from_millis(200);

fn topic_name(name: &str) -> TopicName {
    TopicName(StrBytes::from_string(name.to_owned()))
}

/// An end of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LogEnd {
    First,
    Last,
}

/// The relevant part of a cluster's metadata.
pub(super) struct Cluster {
    brokers: BTreeMap<i32, Address>,
    /// The partitions with the id of their topic, their leader and the leader's epoch.
    parts: BTreeMap<Partition, (String, i32, i32)>,
    topics: Vec<(Arc<str>, Uuid)>,
}

/// A connection to the first broker that responds.
async fn connect(addresses: &[Address], access: &Access) -> Result<Connection, SourceError> {
    let mut errors = Vec::new();
    for address in addresses {
        match Connection::open(address, access).await {
            Ok(connection) => return Ok(connection),
            Err(error) => errors.push(error.text),
        }
    }
    Err(SourceError::of(errors.join("; ")))
}

impl Cluster {
    /// Fetches the metadata of these topics.
    pub async fn find(addresses: &[Address], topics: &[String], access: &Access) -> Result<Cluster, SourceError> {
        let mut connection = connect(addresses, access).await?;
        let requested = topics.iter().map(|topic| MetadataRequestTopic::default().with_name(Some(topic_name(topic))));
        let request =
            MetadataRequest::default().with_topics(Some(requested.collect())).with_allow_auto_topic_creation(false);
        let answer = connection.request(request, METADATA_VERSION, Duration::ZERO).await?;
        let mut brokers = BTreeMap::new();
        for broker in answer.brokers {
            let port = u16::try_from(broker.port).map_err(|_| SourceError::of("a broker has an invalid port"))?;
            let address = Address { host: broker.host.to_string(), port };
            brokers.insert(broker.node_id.0, address);
        }
        let (mut parts, mut topics) = (BTreeMap::new(), Vec::new());
        for topic in answer.topics {
            let name = topic.name.map(|name| name.to_string()).unwrap_or_default();
            match ResponseError::try_from_code(topic.error_code) {
                None => {}
                Some(ResponseError::UnknownTopicOrPartition) => {
                    return Err(SourceError::of(format!(
                        "the topic `{name}` does not exist, or the user has no access"
                    )));
                }
                Some(error) => return Err(SourceError::new(format!("the topic `{name}`"), error)),
            }
            let shared: Arc<str> = name.into();
            topics.push((shared.clone(), topic.topic_id));
            for part in topic.partitions {
                let key = Partition { topic: shared.clone(), number: part.partition_index };
                parts.insert(key, (topic.topic_id.to_string(), part.leader_id.0, part.leader_epoch));
            }
        }
        if parts.len() > PARTITIONS_MAX {
            let text = format!("the topics have {} partitions; a source takes from {PARTITIONS_MAX}", parts.len());
            return Err(SourceError::of(text));
        }
        Ok(Cluster { brokers, parts, topics })
    }

    /// All partitions, with the id of their topic.
    pub fn parts(&self) -> impl Iterator<Item = (&Partition, &str)> {
        self.parts.iter().map(|(part, (topic, ..))| (part, &**topic))
    }

    /// Whether this partition exists.
    pub fn contains(&self, part: &Partition) -> bool {
        self.parts.contains_key(part)
    }

    /// The id of a topic; zeros if brokers do not support ids.
    fn id_of(&self, topic: &str) -> Uuid {
        self.topics.iter().find(|(name, _)| **name == *topic).map_or(Uuid::nil(), |(_, id)| *id)
    }

    /// The name of a topic in a response, identified by name or, by newer brokers, by id.
    pub fn name_of(&self, topic: &FetchableTopicResponse) -> Option<Arc<str>> {
        let is_it = |name: &str, id: &Uuid| *name == **topic.topic || (!id.is_nil() && *id == topic.topic_id);
        self.topics.iter().find(|(name, id)| is_it(name, id)).map(|(name, _)| name.clone())
    }

    /// Whether every partition has a leader with a known address.
    pub fn is_whole(&self) -> bool {
        self.parts.values().all(|(_, leader, _)| self.brokers.contains_key(leader))
    }

    /// All brokers.
    pub fn brokers(&self) -> impl Iterator<Item = (i32, &Address)> {
        self.brokers.iter().map(|(broker, address)| (*broker, address))
    }

    /// The fetch request for the partitions that a broker leads, from these offsets; `None` if it leads none.
    pub fn fetch(&self, broker: i32, places: &BTreeMap<Partition, PartitionOffset>) -> Option<FetchRequest> {
        let mut topics: BTreeMap<&str, Vec<FetchPartition>> = BTreeMap::new();
        for (part, (_, leader, epoch)) in &self.parts {
            let Some(place) = places.get(part).filter(|_| *leader == broker) else { continue };
            let requested = FetchPartition::default()
                .with_partition(part.number)
                .with_current_leader_epoch(*epoch)
                .with_fetch_offset(place.next)
                .with_last_fetched_epoch(place.epoch)
                .with_log_start_offset(-1)
                .with_partition_max_bytes(PARTITION_BYTES_MAX);
            topics.entry(&part.topic).or_default().push(requested);
        }
        let topics = topics.into_iter().map(|(topic, partitions)| {
            FetchTopic::default()
                .with_topic(topic_name(topic))
                .with_topic_id(self.id_of(topic))
                .with_partitions(partitions)
        });
        let topics: Vec<FetchTopic> = topics.collect();
        (!topics.is_empty()).then(|| {
            FetchRequest::default()
                .with_replica_id(BrokerId(-1))
                .with_max_wait_ms(FETCH_WAIT.as_millis() as i32)
                .with_min_bytes(1)
                .with_max_bytes(FETCH_BYTES_MAX)
                // Read committed: only messages of committed transactions.
                .with_isolation_level(1)
                .with_session_epoch(-1)
                .with_topics(topics)
        })
    }

    /// The first or last offsets of these partitions.
    pub async fn offsets(
        &self,
        parts: &[Partition],
        end: LogEnd,
        access: &Access,
    ) -> Result<BTreeMap<Partition, i64>, SourceError> {
        let timestamp = match end {
            LogEnd::First => -2,
            LogEnd::Last => -1,
        };
        let mut requested: BTreeMap<i32, BTreeMap<&str, Vec<ListOffsetsPartition>>> = BTreeMap::new();
        for part in parts {
            let Some((_, leader, epoch)) = self.parts.get(part) else { continue };
            let one = ListOffsetsPartition::default()
                .with_partition_index(part.number)
                .with_current_leader_epoch(*epoch)
                .with_timestamp(timestamp);
            requested.entry(*leader).or_default().entry(&part.topic).or_default().push(one);
        }
        let mut found = BTreeMap::new();
        for (leader, topics) in requested {
            let address = self.brokers.get(&leader);
            let address = address.ok_or_else(|| SourceError::of("a partition has no leader now"))?;
            let topics = topics.into_iter().map(|(topic, partitions)| {
                ListOffsetsTopic::default().with_name(topic_name(topic)).with_partitions(partitions)
            });
            let request = ListOffsetsRequest::default().with_replica_id(BrokerId(-1)).with_topics(topics.collect());
            let mut connection = Connection::open(address, access).await?;
            let answer = connection.request(request, LIST_OFFSETS_VERSION, Duration::ZERO).await?;
            for topic in answer.topics {
                let shared: Arc<str> = topic.name.as_str().into();
                for one in topic.partitions {
                    let part = Partition { topic: shared.clone(), number: one.partition_index };
                    check(one.error_code, || format!("the offsets of {part}"))?;
                    found.insert(part, one.offset);
                }
            }
        }
        Ok(found)
    }
}

/// The consumer group to which offsets are committed. It has no members.
pub(super) struct Group {
    name: String,
    /// The connection to its coordinator.
    coordinator: Option<Connection>,
}

impl Group {
    pub fn new(name: String) -> Group {
        Group { name, coordinator: None }
    }

    /// Commits offsets, for monitoring only: a failure is logged, and the commit is repeated later.
    pub async fn commit(
        &mut self,
        places: &BTreeMap<Partition, PartitionOffset>,
        addresses: &[Address],
        access: &Access,
    ) -> Result<bool, SourceError> {
        for tried in 0..COMMITS_MAX {
            if tried > 0 {
                tokio::time::sleep(COMMIT_PAUSE).await;
            }
            let mut connection = match self.coordinator.take() {
                Some(connection) => connection,
                None => match self.find(addresses, access).await? {
                    Some(connection) => connection,
                    None => continue,
                },
            };
            match connection.request(self.request(places), OFFSET_COMMIT_VERSION, Duration::ZERO).await {
                Ok(answer) => {
                    let codes = answer.topics.iter().flat_map(|topic| &topic.partitions).map(|part| part.error_code);
                    match codes.filter_map(ResponseError::try_from_code).next() {
                        None => {
                            self.coordinator = Some(connection);
                            return Ok(true);
                        }
                        Some(error) if is_retriable_with_new_metadata(error) => {}
                        Some(error) => return Err(self.source_error(error)),
                    }
                }
                Err(error) => tracing::debug!(%error, "offsets could not be committed"),
            }
        }
        tracing::warn!(group = self.name, "the group coordinator is unavailable; offsets are committed later");
        Ok(false)
    }

    fn request(&self, places: &BTreeMap<Partition, PartitionOffset>) -> OffsetCommitRequest {
        let mut topics: BTreeMap<&str, Vec<OffsetCommitRequestPartition>> = BTreeMap::new();
        for (part, place) in places {
            let one = OffsetCommitRequestPartition::default()
                .with_partition_index(part.number)
                .with_committed_offset(place.next)
                .with_committed_leader_epoch(place.epoch);
            topics.entry(&part.topic).or_default().push(one);
        }
        let topics = topics.into_iter().map(|(topic, partitions)| {
            OffsetCommitRequestTopic::default().with_name(topic_name(topic)).with_partitions(partitions)
        });
        OffsetCommitRequest::default()
            .with_group_id(GroupId(StrBytes::from_string(self.name.clone())))
            .with_generation_id_or_member_epoch(-1)
            .with_topics(topics.collect())
    }

    /// A connection to the coordinator; `None` if there is none at present.
    async fn find(&self, addresses: &[Address], access: &Access) -> Result<Option<Connection>, SourceError> {
        let mut connection = connect(addresses, access).await?;
        let request = FindCoordinatorRequest::default().with_key(StrBytes::from_string(self.name.clone()));
        let answer = connection.request(request, FIND_COORDINATOR_VERSION, Duration::ZERO).await?;
        match ResponseError::try_from_code(answer.error_code) {
            None => {}
            Some(error) if is_retriable_with_new_metadata(error) => return Ok(None),
            Some(error) => return Err(self.source_error(error)),
        }
        let port = u16::try_from(answer.port).map_err(|_| SourceError::of("a broker has an invalid port"))?;
        let address = Address { host: answer.host.to_string(), port };
        Ok(Connection::open(&address, access).await.ok())
    }

    fn source_error(&self, error: ResponseError) -> SourceError {
        let what = format!("offsets cannot be committed to the group `{}`", self.name);
        match error {
            ResponseError::UnknownMemberId | ResponseError::IllegalGeneration => {
                SourceError::new(what, "it has members; set `group` to a name that is not in use")
            }
            error => SourceError::new(what, error),
        }
    }
}

/// Whether the coordinator of a group is being elected or has moved.
fn is_retriable_with_new_metadata(error: ResponseError) -> bool {
    use ResponseError::{CoordinatorLoadInProgress, CoordinatorNotAvailable, NotCoordinator};
    matches!(error, CoordinatorLoadInProgress | CoordinatorNotAvailable | NotCoordinator)
}
