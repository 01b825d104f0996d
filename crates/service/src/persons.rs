//! Export and erasure of a person.

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
        let mut consents = Vec::new();
        loop {
            let after = consents.last().map(|record: &EvidenceRecord| record.number);
            let found = self.consent_store.evidence(&EvidenceOf::Subscriber(id.clone()), after, PAGE).await?;
            let is_last = found.len() < PAGE;
            consents.extend(found);
            if is_last {
                break;
            }
        }
        let (suppressed, reported) = self.reputation(&person).await?;
        let inbox = match caller.needs(Scope::InboxRead) {
            Ok(()) => Some(self.feed_of(&person).await?.iter().map(item).collect()),
            Err(_) => None,
        };
        Ok(PersonExport {
            subscriber: person.into(),
            subscriptions: owned.into_iter().map(|found| self.shown(found)).collect(),
            consents: consents.iter().map(evidence).collect(),
            suppressions: suppressed.into_iter().map(suppressions::Document::from).collect(),
            feedback: reported.iter().map(report).collect(),
            inbox,
        })
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

    /// Erases a person: the subscriber with its devices, subscriptions, inbox, suppressions and reports, in all files
    /// of the records and the inbox. Evidence of consents stays without the person, as long as `consent.evidence_kept`.
    /// Events and notifications in the journal are deleted by their retention.
    ///
    /// # Errors
    /// There is no such subscriber; a backup is running.
    pub async fn erase_person(&self, caller: &Caller, id: &SubscriberId) -> Result<(), ServiceError> {
        caller.needs_everywhere(Scope::SubscribersWrite)?;
        let person = self.find_subscriber(id).await?;
        // The feed first: after the subscriber, nothing leads to it.
        self.inbox.erase_feed(person.number).await?;
        self.consent_store.erase_subscriber(id, self.clock.now()).await?;
        self.pipeline.recalls().recall_subscribers([person.number]);
        // An item that was delivered meanwhile.
        self.inbox.erase_feed(person.number).await?;
        metrics::counter!("tocsin_subscriber_erasures_total").increment(1);
        tracing::info!(by = caller.key(), "a subscriber was erased");
        Ok(())
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
