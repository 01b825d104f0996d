//! Unsubscription of many addresses, subscribers or subscriptions in one request, and its undo by an operator.

use tocsin_model::{
    consent::ConsentMethod,
    id::{Name, SubscriberId, SubscriptionId},
    mailbox,
    problem::{Code, Problem},
    subscription::Subscription,
    time::Timestamp,
};
use tocsin_store::records::SubscriberFilter;

use crate::{
    Service,
    error::ServiceError,
    keys::{Caller, Scope},
};

/// Most unsubscriptions of one request.
pub const UNSUBSCRIPTIONS_MAX: usize = 1_000;
/// Most subscribers with one address.
const SUBSCRIBERS_MAX: usize = 1_000;

/// An unsubscription, or the undo of one: of an address, a subscriber or a subscription.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct UnsubscriptionDraft {
    /// Address of devices. Ends the subscriptions that are sent to it.
    pub address: Option<String>,
    /// Id of a subscriber. Ends all its subscriptions.
    pub subscriber: Option<String>,
    /// Id of a subscription.
    pub subscription: Option<String>,
    /// Restriction to an application.
    pub application: Option<String>,
    /// For an undo: time of the unsubscription; the last one if not given.
    pub at: Option<Timestamp>,
}

/// Result of an unsubscription.
#[derive(Debug, Clone, PartialEq)]
pub enum Unsubscribed {
    /// The subscriptions that it ended.
    Ended {
        /// Number of subscribers found.
        subscribers: usize,
        /// The subscriptions.
        subscriptions: Vec<SubscriptionId>,
        /// Time of their change, which an undo names.
        at: Timestamp,
    },
    /// The input is invalid.
    Refused(Vec<Problem>),
}

/// Result of an undo.
#[derive(Debug, Clone, PartialEq)]
pub enum Undone {
    /// Number of subscriptions that were enabled.
    Restored(usize),
    /// The input is invalid.
    Refused(Vec<Problem>),
}

/// A checked draft.
struct Selected {
    target: UnsubscriptionTarget,
    application: Option<Name>,
}

enum UnsubscriptionTarget {
    Address(String),
    Subscriber(SubscriberId),
    Subscription(SubscriptionId),
}

impl Service {
    /// Ends the subscriptions of addresses, subscribers and subscriptions. An invalid item does not stop the others.
    ///
    /// # Errors
    /// The scope `subscribers:write` is missing, or there are too many items; the records are unavailable: then some may
    /// be ended, and a repetition ends the rest.
    pub async fn unsubscribe_many(
        &self,
        caller: &Caller,
        drafts: Vec<UnsubscriptionDraft>,
    ) -> Result<Vec<Unsubscribed>, ServiceError> {
        self.check_bulk(caller, drafts.len())?;
        let mut results = Vec::with_capacity(drafts.len());
        for draft in drafts {
            let mut problems = Vec::new();
            if draft.at.is_some() {
                problems.push(Problem::new(Code::NotApplicable, "at", "is for an undo only"));
            }
            let selected = check(&draft, &mut problems).filter(|_| problems.is_empty());
            let Some(selected) = selected else {
                results.push(Unsubscribed::Refused(problems));
                continue;
            };
            let (subscribers, found) = self.selected(&selected).await?;
            let ids: Vec<SubscriptionId> = found.iter().map(|found| found.id).collect();
            let at = self.clock.now();
            let subscriptions = self.end_subscriptions(&ids, ConsentMethod::Operator, at).await?;
            results.push(Unsubscribed::Ended { subscribers, subscriptions, at });
        }
        Ok(results)
    }

    /// Undoes unsubscriptions, also those by links and pages: enables the subscriptions that were ended at the given
    /// time, or last, and not changed since.
    ///
    /// # Errors
    /// As of [`Self::unsubscribe_many`].
    pub async fn undo_unsubscriptions(
        &self,
        caller: &Caller,
        drafts: Vec<UnsubscriptionDraft>,
    ) -> Result<Vec<Undone>, ServiceError> {
        self.check_bulk(caller, drafts.len())?;
        let mut results = Vec::with_capacity(drafts.len());
        for draft in drafts {
            let mut problems = Vec::new();
            let selected = check(&draft, &mut problems).filter(|_| problems.is_empty());
            let Some(selected) = selected else {
                results.push(Undone::Refused(problems));
                continue;
            };
            let (_, found) = self.selected(&selected).await?;
            let ended: Vec<&Subscription> = found.iter().filter(|found| !found.is_active_or_snoozed()).collect();
            let Some(at) = draft.at.or_else(|| ended.iter().map(|found| found.updated_at).max()) else {
                results.push(Undone::Restored(0));
                continue;
            };
            let ids: Vec<SubscriptionId> = ended.iter().map(|found| found.id).collect();
            results.push(Undone::Restored(self.restore_subscriptions(&ids, at, ConsentMethod::Operator).await?));
        }
        Ok(results)
    }

    fn check_bulk(&self, caller: &Caller, count: usize) -> Result<(), ServiceError> {
        caller.needs(Scope::SubscribersWrite)?;
        if count > UNSUBSCRIPTIONS_MAX {
            return Err(Problem::too_many("unsubscriptions", count, UNSUBSCRIPTIONS_MAX).into());
        }
        Ok(())
    }

    /// Number of subscribers, and their subscriptions.
    async fn selected(&self, selected: &Selected) -> Result<(usize, Vec<Subscription>), ServiceError> {
        let application = selected.application.as_ref();
        match &selected.target {
            UnsubscriptionTarget::Subscription(id) => {
                let found = self.subscription_store.subscription(*id).await?;
                let found = found.filter(|found| application.is_none_or(|named| found.application == *named));
                Ok((usize::from(found.is_some()), found.into_iter().collect()))
            }
            UnsubscriptionTarget::Subscriber(id) => {
                let exists = self.subscriber_store.subscriber(id).await?.is_some();
                Ok((usize::from(exists), self.subscriptions_of(id, application).await?))
            }
            UnsubscriptionTarget::Address(address) => {
                let filter = SubscriberFilter { address: Some(address.clone()), ..SubscriberFilter::default() };
                let owners = self.subscriber_store.subscribers(&filter, None, SUBSCRIBERS_MAX).await?;
                let mut found = Vec::new();
                for owner in &owners {
                    let is_here = |name: &Name| {
                        owner.devices.get(name).is_some_and(|device| mailbox::is_same(&device.address, address))
                    };
                    let all = self.subscriptions_of(&owner.id, application).await?;
                    // One that names another device is not sent to this address.
                    found.extend(all.into_iter().filter(|found| found.device.as_ref().is_none_or(is_here)));
                }
                Ok((owners.len(), found))
            }
        }
    }
}

fn check(draft: &UnsubscriptionDraft, problems: &mut Vec<Problem>) -> Option<Selected> {
    let application = match draft.application.as_deref().map(str::parse::<Name>) {
        Some(Err(error)) => {
            problems.push(Problem::not(Code::InvalidFormat, "application", error.expected).param("format", "name"));
            None
        }
        Some(Ok(name)) => Some(name),
        None => None,
    };
    let target = match (&draft.address, &draft.subscriber, &draft.subscription) {
        (Some(address), None, None) if address.trim().is_empty() => {
            problems.push(Problem::new(Code::Empty, "address", "is empty"));
            None
        }
        (Some(address), None, None) => Some(UnsubscriptionTarget::Address(address.trim().to_owned())),
        (None, Some(id), None) => match id.parse() {
            Ok(id) => Some(UnsubscriptionTarget::Subscriber(id)),
            Err(error) => {
                let error: tocsin_model::id::IdError = error;
                problems.push(Problem::not(Code::InvalidFormat, "subscriber", error.expected).param("format", "id"));
                None
            }
        },
        (None, None, Some(id)) => match id.parse() {
            Ok(id) => Some(UnsubscriptionTarget::Subscription(id)),
            Err(error) => {
                let error: tocsin_model::id::IdError = error;
                problems.push(Problem::not(Code::InvalidFormat, "subscription", error.expected).param("format", "id"));
                None
            }
        },
        _ => {
            let problem = Problem::new(Code::Required, "", "names not exactly one target");
            problems.push(problem.hint("give one of `address`, `subscriber` and `subscription`"));
            None
        }
    };
    Some(Selected { target: target?, application })
}
