//! Summaries of the topics. Counters in memory decide which of them are read from a store.

use std::{collections::BTreeMap, time::Duration};

use serde_json::{Map, Value as Json, json};
use tocsin_model::{id::Name, receipt::Outcome};
use tocsin_store::{error::StoreError, journal::FiringFilter};

use super::{
    collector::{BatchCounts, Collector},
    topics::Topic,
};
use crate::{Service, attention::Urgency, error::ServiceError};

/// Missed firings that are counted.
const FIRINGS_MAX: usize = 1_000;
/// Shortest time between two readings of the attention list, which measures the disk.
const ATTENTION_EVERY: Duration = Duration::from_secs(10);
/// Shortest time between two readings of states without a counter.
const READ_EVERY: Duration = Duration::from_secs(5);

impl Collector {
    /// Publishes the states that have changed. Returns whether there were any.
    pub async fn collect(&mut self, service: &Service, topics: &[Topic]) -> bool {
        let mut has_changed = false;
        for topic in topics {
            match self.collect_one(service, *topic).await {
                Ok(changed) => has_changed |= changed,
                Err(error) => tracing::warn!(%error, topic = topic.word(), "a live summary cannot be read"),
            }
        }
        has_changed
    }

    async fn collect_one(&mut self, service: &Service, topic: Topic) -> Result<bool, ServiceError> {
        let data = match topic {
            Topic::Status => status(service),
            Topic::Suspensions => json!({ "suspended": service.open_work.backlog().suspended }),
            Topic::Batches => return Ok(self.event_batches(service).await?),
            Topic::Notifications => return Ok(self.notification_batches(service).await?),
            Topic::Sync => match service.live.sync.get() {
                Some(summary) => summary(),
                None => return Ok(false),
            },
            Topic::Attention if self.is_due(topic, ATTENTION_EVERY) => attention(service).await?,
            Topic::Firings if self.is_due(topic, READ_EVERY) => firings(service).await?,
            Topic::Messages if self.is_due(topic, READ_EVERY) => messages(service).await?,
            Topic::Audit if self.is_due(topic, READ_EVERY) => json!({ "newest": service.newest_audit_entry().await? }),
            Topic::Attention | Topic::Firings | Topic::Messages | Topic::Audit => return Ok(false),
        };
        Ok(service.live.publish(topic, None, data))
    }

    async fn event_batches(&mut self, service: &Service) -> Result<bool, StoreError> {
        let totals = service.activity_log.totals();
        let Some(limit) = self.event_batches.heads_to_read(totals.event_batches) else { return Ok(false) };
        let heads = service.event_log.event_batches(None, limit).await?;
        let newest = heads.first().map(|(batch, _)| batch.id.to_string());
        let found = heads.into_iter().map(|(batch, _)| (batch.application, batch.id.to_string()));
        self.event_batches.publish(service, Topic::Batches, totals.event_batches, found);
        let data = json!({ "event_batches": totals.event_batches, "events": totals.events, "newest": newest });
        Ok(service.live.publish(Topic::Batches, None, data))
    }

    async fn notification_batches(&mut self, service: &Service) -> Result<bool, StoreError> {
        let totals = service.activity_log.totals();
        let total = totals.notification_batches;
        let Some(limit) = self.notification_batches.heads_to_read(total) else { return Ok(false) };
        let heads = service.notification_log.notification_batches(None, limit).await?;
        let newest = heads.first().map(|(id, ..)| id.to_string());
        let found = heads.into_iter().map(|(id, head, _)| (head.application, id.to_string()));
        self.notification_batches.publish(service, Topic::Notifications, total, found);
        let data = json!({ "notification_batches": total, "notifications": totals.notifications, "newest": newest });
        Ok(service.live.publish(Topic::Notifications, None, data))
    }
}

impl BatchCounts {
    /// Counts batches, newest first, and publishes the states of their applications. The first reading counts none.
    fn publish(&mut self, service: &Service, topic: Topic, total: u64, found: impl Iterator<Item = (Name, String)>) {
        let mut touched: BTreeMap<Name, (u64, String)> = BTreeMap::new();
        for (application, id) in found {
            touched.entry(application).or_insert((0, id)).0 += u64::from(self.total.is_some());
        }
        for (application, (new, newest)) in touched {
            let state = self.by_application.entry(application.clone()).or_default();
            *state = (state.0 + new, newest);
            let data = json!({ "batches": state.0, "newest": state.1 });
            service.live.publish(topic, Some(&application), data);
        }
        self.total = Some(total);
    }
}

fn status(service: &Service) -> Json {
    let (backlog, totals) = (service.open_work.backlog(), service.activity_log.totals());
    let attempts: Map<String, Json> = Outcome::ALL
        .iter()
        .zip(totals.attempts)
        .map(|(outcome, count)| (outcome.word().into(), count.into()))
        .collect();
    json!({
        "waiting_events": backlog.events,
        "waiting_event_batches": backlog.event_batches,
        "waiting_notifications": backlog.notifications,
        "work_items": backlog.work_items,
        "suspended": backlog.suspended,
        "failed_event_batches": backlog.failed_batches,
        "oldest_event": backlog.oldest_event,
        "event_batches": totals.event_batches,
        "events": totals.events,
        "notification_batches": totals.notification_batches,
        "notifications": totals.notifications,
        "attempts": attempts,
    })
}

async fn attention(service: &Service) -> Result<Json, ServiceError> {
    let found = service.problems().await?;
    let of = |urgency| found.iter().filter(|problem| problem.urgency == urgency).count();
    let (now, soon, note) = (of(Urgency::Now), of(Urgency::Soon), of(Urgency::Note));
    Ok(json!({ "items": found.len(), "now": now, "soon": soon, "note": note }))
}

async fn firings(service: &Service) -> Result<Json, ServiceError> {
    let found = service.rule_store.firings(&FiringFilter::default(), 0, FIRINGS_MAX).await?;
    Ok(json!({ "missed": found.len(), "stopped_rules": service.pipeline.stopped_rules().len() }))
}

async fn messages(service: &Service) -> Result<Json, ServiceError> {
    let partitions = service.exchanges.as_ref().map(|all| all.partitions()).unwrap_or_default();
    let open: u64 = partitions.iter().map(|partition| partition.open).sum();
    Ok(json!({ "open": open, "suspended": service.suspended_messages().await? }))
}
