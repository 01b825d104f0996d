//! Endpoint supervision: which endpoints fail and for how long. A device whose endpoint has failed for days is
//! disabled, with a warning at half of that time.
//!
//! Applies only where the device address is the endpoint itself, such as the URL of a webhook: failures of a service
//! that serves many devices say nothing about one of them. The time of the first failure is durable, so that the
//! period survives restarts; failure counts are written at most once an hour.

use std::{collections::HashMap, time::Duration};

use parking_lot::Mutex;
use tocsin_delivery::Answer;
use tocsin_model::{
    id::{Name, SubscriberId, SubscriptionId},
    receipt::{Disposition, ReasonKind},
    time::Timestamp,
};
use tocsin_store::{
    error::StoreError,
    records::{EndpointKey, FailingEndpoint, RecipientStore},
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
pub(crate) enum Due {
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
                | ReasonKind::SoftBounced
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

    /// The action that the last failure of an endpoint requires, and the endpoint, which is now that of this device.
    /// `None`: it has recovered meanwhile.
    pub fn due_for(
        &self,
        key: &EndpointKey,
        subscriber: &SubscriberId,
        device: &Name,
        limit: Duration,
    ) -> Option<(Due, FailingEndpoint)> {
        let mut watched = self.0.lock();
        let endpoint = watched.get_mut(key)?;
        let is_same =
            endpoint.known.subscriber.as_ref() == Some(subscriber) && endpoint.known.device.as_ref() == Some(device);
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
        (endpoint.known.subscriber, endpoint.known.device) = (Some(subscriber.clone()), Some(device.clone()));
        endpoint.written = endpoint.known.last;
        Some((due, endpoint.known.clone()))
    }

    /// Records that its owner was warned, or its device disabled.
    pub fn set_handled(&self, known: &FailingEndpoint) {
        if let Some(endpoint) = self.0.lock().get_mut(&known.key) {
            (endpoint.known.warned_at, endpoint.known.disabled_at) = (known.warned_at, known.disabled_at);
        }
    }

    /// Removes an endpoint.
    pub async fn remove(&self, records: &dyn RecipientStore, key: EndpointKey) -> Result<(), StoreError> {
        self.0.lock().remove(&key);
        records.remove_failing_endpoints(vec![key]).await
    }

    /// Removes endpoints without attempts since a time: nothing is sent to them any more.
    pub async fn prune(&self, records: &dyn RecipientStore, before: Timestamp) -> Result<(), StoreError> {
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
        records.remove_failing_endpoints(keys.clone()).await?;
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
