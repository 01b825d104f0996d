//! Endpoint supervision: a device whose endpoint has failed for days is disabled, with a warning at half of that
//! time.
//!
//! Applies only where the device address is the endpoint itself, such as the URL of a webhook: failures of a service
//! that serves many devices say nothing about one of them. The time of the first failure is durable, so that the
//! period survives restarts; failure counts are written at most once an hour. An application can receive events about
//! its endpoints. They are accepted before the device is changed: at-least-once, if the process ends in between.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tocsin_delivery::{Answer, redact};
use tocsin_model::{
    application::endpoint_source,
    event::EventPacker,
    field::Field,
    id::{Name, SubscriberId, SubscriptionId},
    receipt::{Disposition, ReasonKind},
    subscriber::{Device, DeviceState},
    time::Timestamp,
    value::Value,
};
use tocsin_store::{
    error::StoreError,
    records::{EndpointKey, FailingEndpoint, PutDevice, RecipientStore},
};

use crate::{
    Flow,
    accept_events::{self, AcceptError, Submission},
    running::Running,
};

/// Maximum number of failing endpoints tracked. Further ones are counted once some of these recover.
const WATCHED_MAX: usize = 200_000;
/// Interval at which failure counts are written.
const WRITTEN_EVERY: Duration = Duration::from_secs(3_600);
/// Endpoints read at a time.
const PAGE: usize = 5_000;

/// All endpoints whose recent attempts have all failed.
#[derive(Default)]
pub(crate) struct Endpoints(Mutex<HashMap<EndpointKey, Watched>>);

struct Watched {
    known: FailingEndpoint,
    /// Time of the last failure that was written.
    written: Timestamp,
}

/// A task about an endpoint, done outside of the delivery path.
pub(crate) enum EndpointUpdate {
    /// The endpoint has answered: remove it.
    Recovered(EndpointKey),
    /// The endpoint failed. The subscription is that of the message.
    Failing(EndpointKey, SubscriptionId),
}

/// Action that a failure requires.
enum Due {
    Nothing,
    Write,
    Warn,
    Disable,
    /// The device was disabled before; it was enabled again, or another device has the same address.
    Again,
}

impl Endpoints {
    /// Loads the failing endpoints from the records.
    pub async fn load(&self, records: &dyn RecipientStore) -> Result<(), StoreError> {
        let mut after: Option<EndpointKey> = None;
        loop {
            let page = records.failing_endpoints(after.as_ref(), PAGE).await?;
            let is_last = page.len() < PAGE;
            after = page.last().map(|last| last.key.clone());
            let mut watched = self.0.lock();
            for known in page {
                watched.insert(known.key.clone(), Watched { written: known.last, known });
            }
            metrics::gauge!("tocsin_deliver_failing_endpoints").set(watched.len() as f64);
            if is_last {
                return Ok(());
            }
        }
    }

    /// Whether no endpoint is failing.
    pub fn are_healthy(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// Counts an answer. `limit` is how long the channel lets an endpoint fail; `None`: no limit.
    pub fn record_answer(
        &self,
        application: &Name,
        answer: &Answer,
        subscription: impl FnOnce() -> Option<SubscriptionId>,
        limit: impl FnOnce() -> Option<Duration>,
    ) -> Option<EndpointUpdate> {
        let key = || EndpointKey {
            application: application.clone(),
            channel: answer.channel.clone(),
            address: answer.address.clone(),
        };
        let reason = match &answer.disposition {
            Disposition::Delivered { .. } => {
                let mut watched = self.0.lock();
                if watched.is_empty() {
                    return None;
                }
                let key = key();
                watched.remove(&key)?;
                metrics::gauge!("tocsin_deliver_failing_endpoints").set(watched.len() as f64);
                return Some(EndpointUpdate::Recovered(key));
            }
            Disposition::Deferred { reason, .. } | Disposition::Refused { reason } => reason,
        };
        let is_its = matches!(
            reason.kind,
            ReasonKind::Answer
                | ReasonKind::Connection
                | ReasonKind::Timeout
                | ReasonKind::Tls
                | ReasonKind::Authentication
        );
        let limit = limit().filter(|_| is_its)?;
        let (key, at) = (key(), answer.answered_at);
        let mut watched = self.0.lock();
        let is_full = watched.len() >= WATCHED_MAX;
        let due = match watched.get_mut(&key) {
            Some(endpoint) => endpoint.fail(at, limit, &reason.text),
            None if is_full => {
                tracing::warn!(channel = %key.channel, "more endpoints fail than are watched");
                return None;
            }
            None => {
                let known = FailingEndpoint {
                    key: key.clone(),
                    subscriber: None,
                    device: None,
                    since: at,
                    last: at,
                    failures: 1,
                    reason: reason.text.clone(),
                    warned_at: None,
                    disabled_at: None,
                };
                watched.insert(key.clone(), Watched { known, written: at });
                metrics::gauge!("tocsin_deliver_failing_endpoints").set(watched.len() as f64);
                Due::Write
            }
        };
        match due {
            Due::Nothing => None,
            _ => Some(EndpointUpdate::Failing(key, subscription()?)),
        }
    }

    /// Carries out a task about an endpoint.
    pub async fn apply_update(&self, flow: &Flow, running: &Running, update: EndpointUpdate) -> Result<(), StoreError> {
        let (key, subscription) = match update {
            EndpointUpdate::Recovered(key) => return flow.recipient_store.remove_failing_endpoints(vec![key]).await,
            EndpointUpdate::Failing(key, subscription) => (key, subscription),
        };
        let Some(limit) = running.disable_after(&key.channel) else { return Ok(()) };
        let recipient = flow.recipient_store.recipients(&[subscription]).await?.pop().flatten();
        let is_it = |device: &Device| device.channel == key.channel && device.address == key.address;
        let found = recipient.as_ref().and_then(|recipient| {
            let (name, device) = recipient.devices.iter().find(|(_, device)| is_it(device))?;
            Some((&recipient.id, name, device))
        });
        // The device was removed, or its address changed.
        let Some((subscriber, name, device)) = found else { return self.remove(flow, key).await };
        if device.state != DeviceState::Active {
            // The message was in flight when the device was disabled.
            return Ok(());
        }
        let (due, mut known) = {
            let mut watched = self.0.lock();
            let Some(endpoint) = watched.get_mut(&key) else { return Ok(()) };
            let is_same =
                endpoint.known.subscriber.as_ref() == Some(subscriber) && endpoint.known.device.as_ref() == Some(name);
            let mut due = endpoint.due(endpoint.known.last, limit);
            if matches!(due, Due::Again) {
                // Another device with this address has failed as long. A device that was enabled again gets the full
                // period.
                due = Due::Disable;
                if is_same {
                    endpoint.restart();
                    due = Due::Write;
                }
            }
            (endpoint.known.subscriber, endpoint.known.device) = (Some(subscriber.clone()), Some(name.clone()));
            endpoint.written = endpoint.known.last;
            (due, endpoint.known.clone())
        };
        let (since, failures, reason) = (known.since.to_string(), known.failures, known.reason.clone());
        let channel = &key.channel;
        match due {
            Due::Disable => {
                // Before any change: if the event cannot be accepted, the next failure tries again.
                accept_endpoint_event(flow, running, &known, true, limit).await?;
                known.disabled_at = Some(flow.clock.now());
                let off = Device { state: DeviceState::Failed, ..device.clone() };
                flow.subscriber_store
                    .put_device(PutDevice { id: subscriber, name, device: off, now: flow.clock.now() })
                    .await?;
                metrics::counter!("tocsin_deliver_endpoints_disabled_total").increment(1);
                tracing::warn!(%subscriber, device = %name, %channel, since, failures, reason,
                        "an endpoint has failed for too long and is switched off; `tocsin endpoints` lists it");
            }
            Due::Warn => {
                accept_endpoint_event(flow, running, &known, false, limit).await?;
                known.warned_at = Some(flow.clock.now());
                metrics::counter!("tocsin_deliver_endpoints_warned_total").increment(1);
                tracing::warn!(%subscriber, device = %name, %channel, since, failures, reason,
                    "an endpoint has only failed for half the time after which it is switched off");
            }
            Due::Nothing | Due::Write | Due::Again => {}
        }
        if let Some(endpoint) = self.0.lock().get_mut(&key) {
            (endpoint.known.warned_at, endpoint.known.disabled_at) = (known.warned_at, known.disabled_at);
        }
        flow.recipient_store.put_failing_endpoints(vec![known]).await
    }

    async fn remove(&self, flow: &Flow, key: EndpointKey) -> Result<(), StoreError> {
        self.0.lock().remove(&key);
        flow.recipient_store.remove_failing_endpoints(vec![key]).await
    }

    /// Removes endpoints without attempts since a time: nothing is sent to them any more.
    pub async fn prune(&self, flow: &Flow, before: Timestamp) -> Result<(), StoreError> {
        let old = |endpoint: &Watched| {
            endpoint.known.last < before && endpoint.known.disabled_at.is_none_or(|at| at < before)
        };
        let keys: Vec<EndpointKey> = {
            let watched = self.0.lock();
            watched.values().filter(|endpoint| old(endpoint)).map(|endpoint| endpoint.known.key.clone()).collect()
        };
        if keys.is_empty() {
            return Ok(());
        }
        flow.recipient_store.remove_failing_endpoints(keys.clone()).await?;
        let mut watched = self.0.lock();
        keys.iter().for_each(|key| drop(watched.remove(key)));
        Ok(())
    }
}

impl Watched {
    /// Counts one more failure.
    fn fail(&mut self, at: Timestamp, limit: Duration, reason: &str) -> Due {
        // The time in between is unknown: the endpoint may have worked.
        if at.since(self.known.last) > limit / 2 && self.known.disabled_at.is_none() {
            self.restart();
            self.known.since = at;
        }
        self.known.last = self.known.last.max(at);
        self.known.failures += 1;
        if self.known.reason != reason {
            self.known.reason = reason.to_owned();
        }
        self.due(at, limit)
    }

    fn due(&self, at: Timestamp, limit: Duration) -> Due {
        let failing = at.since(self.known.since);
        match &self.known {
            known if known.disabled_at.is_some() => Due::Again,
            _ if failing >= limit => Due::Disable,
            known if failing >= limit / 2 && known.warned_at.is_none() => Due::Warn,
            _ if at.since(self.written) >= WRITTEN_EVERY => Due::Write,
            _ => Due::Nothing,
        }
    }

    /// Restarts the period at the last failure.
    fn restart(&mut self) {
        self.known.since = self.known.last;
        self.known.failures = 0;
        (self.known.warned_at, self.known.disabled_at) = (None, None);
    }
}

/// Accepts an event about an endpoint, if its channel names an event class for that: it is about to be disabled, or
/// now is.
async fn accept_endpoint_event(
    flow: &Flow,
    running: &Running,
    endpoint: &FailingEndpoint,
    disabled: bool,
    limit: Duration,
) -> Result<(), StoreError> {
    let FailingEndpoint { key: EndpointKey { application, channel, .. }, .. } = endpoint;
    let compiled = running.compiled();
    let definition = &compiled.application;
    let Some(event) = definition.channels.get(channel).and_then(|channel| channel.endpoint_event.clone()) else {
        return Ok(());
    };
    let Some(class) = definition.events.get(&event) else { return Ok(()) };
    let text = |name: Option<&str>| name.map_or(Value::Null, |name| Value::Text(name.into()));
    let value = |field: &Field| match field.name.as_str() {
        "owner" => text(endpoint.subscriber.as_ref().map(SubscriberId::as_str)),
        "endpoint" => text(endpoint.device.as_ref().map(Name::as_str)),
        "via" => text(Some(channel.as_str())),
        "disabled" => Value::Boolean(disabled),
        "since" => Value::Timestamp(endpoint.since),
        "until" => Value::Timestamp(endpoint.since + limit),
        "failures" => Value::Integer(i64::try_from(endpoint.failures).unwrap_or(i64::MAX)),
        "reason" => text(Some(&redact::text(&endpoint.reason))),
        _ => field.default.clone(),
    };
    let row: Vec<Value> = class.fields.iter().map(value).collect();
    let mut events = EventPacker::new(class.fields.clone());
    events.push(&row);
    let submission = Submission {
        application: application.clone(),
        version: compiled.version,
        class: event,
        source: endpoint_source(),
        received_at: flow.clock.now(),
        events: events.finish(),
        idempotency: None,
        marks: Vec::new(),
    };
    match accept_events::accept(flow, submission).await {
        Ok(_) => Ok(()),
        Err(AcceptError::Store(error)) => Err(error),
        Err(error) => Err(StoreError::Full(error.to_string())),
    }
}

/// Handles endpoint tasks of a recorder in order, outside of the delivery path.
pub(crate) async fn apply_endpoint_updates(flow: &Arc<Flow>, running: &Running, updates: Vec<EndpointUpdate>) {
    for update in updates {
        if let Err(error) = flow.endpoints.apply_update(flow, running, update).await {
            tracing::error!(%error, "the state of an endpoint cannot be stored");
        }
    }
}
