//! Erasure of a person from all files.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use tocsin_model::{
    id::{SubscriberId, SubscriberNumber},
    subscriber::Subscriber,
    suppression::bound,
};
use tocsin_pipeline::JournalErasure;
use tocsin_store::{
    audit,
    error::StoreError,
    journal::{ErasedPerson, Erasure, PersonNames},
    records::{SubscriberFilter, SubscriptionFilter},
};
use tokio_util::sync::CancellationToken;

use crate::{
    Service,
    error::ServiceError,
    keys::{Caller, Scope},
};

/// Attempts of a request until it leaves the rest to the background task, and the pause between them.
const ATTEMPTS: usize = 20;
/// See [`ATTEMPTS`].
const PAUSE: Duration = Duration::from_millis(250);
/// Pause between attempts of the background task.
const RETRY: Duration = Duration::from_secs(5);

/// Result of an erasure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErasureProgress {
    /// No file holds anything of the person.
    Done,
    /// The rest follows when events that were accepted before are matched and messages in delivery are answered.
    Continues,
}

/// Rows of collections that belong to persons.
#[async_trait]
pub trait PersonRows: Send + Sync + 'static {
    /// Erases a person from all rows, after its removal from the records. Can be repeated.
    async fn erase(&self, person: SubscriberNumber, names: &PersonNames) -> Result<(), StoreError>;

    /// The rows that a person can see by its id, or that name it: application, collection and body.
    async fn naming(&self, names: &PersonNames) -> Result<Vec<(String, String, String)>, StoreError>;
}

impl Service {
    /// Sets the rows of collections, once at start.
    pub fn set_person_rows(&self, rows: Arc<dyn PersonRows>) {
        let _ = self.person_rows.set(rows);
    }

    /// Erases a person from the records, the inbox, the rows of collections and the journal, with what the pages of
    /// their files held before. Evidence of consents stays without the person, as long as `consent.evidence_kept`. The
    /// request is stored first: after a crash, [`Service::run_erasures`] continues it.
    ///
    /// # Errors
    /// There is no such subscriber.
    pub async fn erase_person(&self, caller: &Caller, id: &SubscriberId) -> Result<ErasureProgress, ServiceError> {
        caller.needs_everywhere(Scope::SubscribersWrite)?;
        let person = self.find_subscriber(id).await?;
        let number = person.number;
        self.pipeline.begin_erasure(self.person_to_erase(&person).await?).await?;
        tracing::info!(by = caller.key(), "a subscriber is being erased");
        for attempt in 1..=ATTEMPTS {
            match audit::unaudited(self.continue_erasure(number)).await {
                Ok(JournalErasure::Done) => return Ok(ErasureProgress::Done),
                Ok(JournalErasure::Waiting) if attempt < ATTEMPTS => tokio::time::sleep(PAUSE).await,
                Ok(JournalErasure::Waiting) => {}
                Err(error) => {
                    tracing::warn!(%error, "an erasure cannot be completed yet; will retry");
                    break;
                }
            }
        }
        self.erasures_waiting.notify_one();
        Ok(ErasureProgress::Continues)
    }

    /// Continues erasures that a crash, a delivery or a backup interrupted, until `stop`.
    pub async fn run_erasures(self: Arc<Self>, stop: CancellationToken) {
        loop {
            let left = match self.continue_erasures().await {
                Ok(left) => left,
                Err(error) => {
                    tracing::warn!(%error, "an erasure cannot be continued; will retry");
                    1
                }
            };
            metrics::gauge!("tocsin_subscriber_erasures_waiting").set(left as f64);
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.erasures_waiting.notified() => {}
                () = tokio::time::sleep(RETRY), if left > 0 => {}
            }
        }
    }

    /// Continues all erasures. Returns the number of those that are not finished.
    ///
    /// # Errors
    /// A store is unavailable.
    pub async fn continue_erasures(&self) -> Result<usize, ServiceError> {
        let mut left = 0;
        for erasure in self.pipeline.erasures().await? {
            if self.continue_erasure(erasure.number).await? == JournalErasure::Waiting {
                left += 1;
            }
        }
        Ok(left)
    }

    async fn continue_erasure(&self, number: SubscriberNumber) -> Result<JournalErasure, ServiceError> {
        // One at a time: an erasure rewrites what it has read.
        let mut erasing = self.erasing.lock().await;
        let erasures = self.pipeline.erasures().await?;
        let Some(erasure) = erasures.into_iter().find(|erasure| erasure.number == number) else {
            return Ok(JournalErasure::Done);
        };
        if let Some(person) = &erasure.person {
            if erasing.contains(&number) {
                // An item that was delivered meanwhile.
                self.inbox.erase_feed(number).await?;
            } else {
                self.erase_from_stores(&erasure, person).await?;
                // Events of rows and of the outbox may have been accepted meanwhile; from now on there are none.
                self.pipeline.begin_erasure(person.clone()).await?;
                erasing.insert(number);
            }
        }
        let progress = self.pipeline.erase_from_journal(number).await?;
        if progress == JournalErasure::Done {
            erasing.remove(&number);
            metrics::counter!("tocsin_subscriber_erasures_total").increment(1);
            tracing::info!("a subscriber was erased");
        }
        Ok(progress)
    }

    async fn erase_from_stores(&self, erasure: &Erasure, person: &ErasedPerson) -> Result<(), ServiceError> {
        // First: what follows also overwrites the free pages of the files.
        self.erase_from_audit(&person.names).await?;
        self.inbox.erase_feed(person.number).await?;
        // A later subscriber with the same id has another number.
        let found = self.subscriber_store.subscriber(&person.id).await?;
        if found.is_some_and(|found| found.number == person.number) {
            self.consent_store.erase_subscriber(&person.id, erasure.asked_at).await?;
        } else {
            // A crash may have come between the erasure and the truncation of the log.
            self.consent_store.truncate_log().await?;
        }
        if let Some(rows) = self.person_rows.get() {
            rows.erase(person.number, &person.names).await?;
        }
        // An item that was delivered meanwhile.
        self.inbox.erase_feed(person.number).await?;
        Ok(())
    }

    /// The identity of a person in all stores: names that no other subscriber has, and subscriptions.
    pub(super) async fn person_to_erase(&self, person: &Subscriber) -> Result<ErasedPerson, ServiceError> {
        let evidence = self.evidence_of(&person.id).await?;
        let of = SubscriptionFilter { subscriber: Some(person.id.clone()), ..SubscriptionFilter::default() };
        let owned = self.subscription_store.subscriptions(&of, None, usize::MAX).await?;
        let mut subscriptions = self.consent_store.former_subscriptions(person.number).await?;
        subscriptions.extend(owned.iter().map(|found| found.id));
        subscriptions.extend(evidence.iter().map(|record| record.subscription));
        subscriptions.sort_unstable();
        subscriptions.dedup();
        let mut addresses: Vec<String> = person.devices.values().map(|device| device.address.clone()).collect();
        addresses.extend(evidence.into_iter().filter_map(|record| record.address));
        addresses.sort_unstable();
        addresses.dedup();
        let mut names = vec![person.id.to_string()];
        for address in addresses {
            let filter = SubscriberFilter { address: Some(address.clone()), ..SubscriberFilter::default() };
            let holders = self.subscriber_store.subscribers(&filter, None, 2).await?;
            if holders.iter().all(|holder| holder.number == person.number) {
                names.extend([bound(&address), address]);
            }
        }
        Ok(ErasedPerson { number: person.number, id: person.id.clone(), names: PersonNames::new(names), subscriptions })
    }
}
