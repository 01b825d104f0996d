//! Export and erasure of a person.

mod erase; // erasure from all files
mod stored; // what the journal holds of a person

pub use erase::{ErasureProgress, PersonRows};

use serde::Serialize;
use serde_json::{Value as Json, json};
use tocsin_model::{
    consent::EvidenceRecord,
    feedback::FeedbackEntry,
    id::{Name, SubscriberId},
    inbox::{InboxItemFilter, Item},
    subscriber::Subscriber,
    suppression::{Suppression, Target, bound},
    time::Timestamp,
};
use tocsin_store::{
    inbox::{FeedFilter, FeedReader},
    records::{EvidenceOf, FeedbackFilter, SubscriptionFilter, SuppressionFilter},
};

use crate::{
    Service,
    error::ServiceError,
    keys::{Caller, Scope},
    subscribers, subscriptions, suppressions,
};

/// Page size of reads.
const PAGE: usize = 1_000;

/// All data about a person, as JSON.
#[derive(Debug, Serialize)]
pub struct PersonExport {
    /// The subscriber, with devices, attributes and preferences.
    pub subscriber: subscribers::Document,
    /// Its subscriptions.
    pub subscriptions: Vec<subscriptions::Document>,
    /// Evidence of its consents.
    pub consents: Vec<Json>,
    /// Suppressions of its devices and addresses.
    pub suppressions: Vec<suppressions::Document>,
    /// Reports about messages to its devices and addresses.
    pub feedback: Vec<Json>,
    /// Items of its inbox; absent if the key lacks the scope `inbox:read`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inbox: Option<Vec<Json>>,
    /// Events that name it; absent if the key lacks the scope `operations:read`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub events: Option<Vec<Json>>,
    /// Notifications to it, with their attempts; absent as `events`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub notifications: Option<Vec<Json>>,
    /// Delayed notifications that wait; absent as `events`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delayed: Option<Vec<Json>>,
    /// Rows of collections that it can see by its id, or that name it; absent if the key lacks the scope `sync:read`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rows: Option<Vec<Json>>,
}

impl Service {
    /// Returns all data about a person.
    ///
    /// # Errors
    /// There is no such subscriber.
    pub async fn export_person(&self, caller: &Caller, id: &SubscriberId) -> Result<PersonExport, ServiceError> {
        caller.needs_everywhere(Scope::SubscribersRead)?;
        let person = self.find_subscriber(id).await?;
        let of = SubscriptionFilter { subscriber: Some(id.clone()), ..SubscriptionFilter::default() };
        let owned = self.subscription_store.subscriptions(&of, None, usize::MAX).await?;
        let consents = self.evidence_of(id).await?;
        let (suppressed, reported) = self.reputation(&person).await?;
        let inbox = match caller.needs(Scope::InboxRead) {
            Ok(()) => Some(self.feed_of(&person).await?.iter().map(item).collect()),
            Err(_) => None,
        };
        let names = self.person_to_erase(&person).await?;
        let (mut events, mut notifications, mut delayed, mut rows) = (None, None, None, None);
        if caller.needs(Scope::OperationsRead).is_ok() {
            // The journal is read from its beginning.
            let _place = self.scan_permit()?;
            events = Some(self.events_naming(&names).await?);
            notifications = Some(self.notifications_to(&names).await?);
            delayed = Some(self.delayed_to(&names).await?);
        }
        if let (Ok(()), Some(of)) = (caller.needs(Scope::SyncRead), self.person_rows.get()) {
            let found = of.naming(&names.names).await?;
            rows = Some(found.into_iter().map(row).collect());
        }
        Ok(PersonExport {
            subscriber: person.into(),
            subscriptions: owned.into_iter().map(|found| self.shown(found)).collect(),
            consents: consents.iter().map(evidence).collect(),
            suppressions: suppressed.into_iter().map(suppressions::Document::from).collect(),
            feedback: reported.iter().map(report).collect(),
            inbox,
            events,
            notifications,
            delayed,
            rows,
        })
    }

    /// All evidence of a person's consents.
    async fn evidence_of(&self, id: &SubscriberId) -> Result<Vec<EvidenceRecord>, ServiceError> {
        let mut all = Vec::new();
        loop {
            let after = all.last().map(|record: &EvidenceRecord| record.number);
            let found = self.consent_store.evidence(&EvidenceOf::Subscriber(id.clone()), after, PAGE).await?;
            let is_last = found.len() < PAGE;
            all.extend(found);
            if is_last {
                return Ok(all);
            }
        }
    }

    /// Suppressions of a person's devices and addresses, and the reports about them.
    async fn reputation(&self, person: &Subscriber) -> Result<(Vec<Suppression>, Vec<FeedbackEntry>), ServiceError> {
        let mut targets: Vec<Target> = Vec::new();
        for (name, device) in &person.devices {
            targets.push(Target::Device { subscriber: person.id.clone(), device: name.clone() });
            let address = bound(&device.address);
            let filter = SuppressionFilter { contains: Some(address.clone()), ..SuppressionFilter::all(Timestamp(0)) };
            let found = self.suppression_store.suppressions(&filter, None, PAGE).await?;
            let is_it = |target: &Target| {
                !matches!(target, Target::Device { .. }) && target.to_string().ends_with(&format!("/{address}"))
            };
            targets.extend(found.into_iter().map(|found| found.target).filter(is_it));
            let protocol = self.protocol_of(&device.channel);
            targets.extend(protocol.map(|protocol| Target::address(&protocol, &device.address)));
        }
        targets.sort_by_key(Target::to_string);
        targets.dedup();
        let (mut suppressed, mut reported) = (Vec::new(), Vec::new());
        for target in targets {
            suppressed.extend(self.suppression_store.suppression(&target).await?);
            let filter = FeedbackFilter { target: Some(target), class: None, batch: None };
            let found = self.feedback_store.scan_feedback(&filter, None, PAGE).await?;
            reported.extend(found.items.into_iter().map(|(_, entry)| entry));
        }
        Ok((suppressed, reported))
    }

    /// Protocol of a channel, in any running application.
    fn protocol_of(&self, channel: &Name) -> Option<Name> {
        let running = self.pipeline.status();
        running.iter().find_map(|(name, _)| {
            let compiled = self.pipeline.application(name)?;
            Some(compiled.application.channels.get(channel)?.protocol.clone())
        })
    }

    async fn feed_of(&self, person: &Subscriber) -> Result<Vec<Item>, ServiceError> {
        let reader = FeedReader { subscriber: person.number, broadcasts: Vec::new() };
        let filter = FeedFilter { item_filter: InboxItemFilter::All, ..FeedFilter::default() };
        let mut items: Vec<Item> = Vec::new();
        loop {
            let before = items.last().map(|item| item.number);
            let found = self.inbox.feed(&reader, &filter, before, PAGE, self.clock.now()).await?;
            let is_last = found.len() < PAGE;
            items.extend(found);
            if is_last {
                return Ok(items);
            }
        }
    }
}

fn evidence(record: &EvidenceRecord) -> Json {
    json!({
        "number": record.number, "subscription": record.subscription.to_string(),
        "application": record.application, "class": record.class, "act": record.act, "at": record.at,
        "way": record.way, "by": record.by, "channel": record.channel, "address": record.address,
        "text": record.text, "version": record.version, "remote": record.remote, "proof": record.proof,
    })
}

fn report(entry: &FeedbackEntry) -> Json {
    json!({
        "target": entry.target.to_string(), "class": entry.class, "at": entry.at, "effect": entry.effect,
        "origin": entry.origin, "detail": entry.detail, "status": entry.status,
        "notification": entry.notification.map(|id| id.to_string()),
    })
}

fn item(item: &Item) -> Json {
    json!({
        "id": item.id.to_string(), "created_at": item.created_at, "read_at": item.read_at,
        "archived_at": item.archived_at, "expires_at": item.expires_at, "content": *item.content,
    })
}

fn row((application, collection, body): (String, String, String)) -> Json {
    let body = serde_json::from_str::<Json>(&body).unwrap_or_else(|_| body.into());
    json!({"application": application, "collection": collection, "row": body})
}
