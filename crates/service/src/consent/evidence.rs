//! Evidence of a subscription and of a person.

use tocsin_model::{
    consent::{Consent, EvidenceRecord},
    id::{SubscriberId, SubscriptionId},
};
use tocsin_store::records::EvidenceOf;

use crate::{
    Service,
    error::ServiceError,
    keys::{Caller, Scope},
    page::{Page, key_of},
};

/// Most evidences shown with a subscription.
const SHOWN_MAX: usize = 100;

/// Consent of a subscription, with its newest evidence.
#[derive(Debug, Clone)]
pub struct ConsentStatus {
    /// The subscription.
    pub subscription: SubscriptionId,
    /// Its consent; `None` if it needs none.
    pub consent: Option<Consent>,
    /// Its evidence, oldest first.
    pub evidence: Vec<EvidenceRecord>,
}

impl Service {
    /// Consent of a subscription. Of one that was removed, its evidence is left.
    ///
    /// # Errors
    /// There is neither a subscription nor evidence.
    pub async fn consent_of(&self, caller: &Caller, id: SubscriptionId) -> Result<ConsentStatus, ServiceError> {
        caller.needs(Scope::SubscribersRead).or_else(|_| caller.needs(Scope::SubscribersWrite))?;
        let evidence = self.consent_store.evidence(&EvidenceOf::Subscription(id), None, SHOWN_MAX).await?;
        if evidence.is_empty() {
            self.find_subscription(id).await?;
        }
        let consent = self.consent_store.consent(id).await?;
        Ok(ConsentStatus { subscription: id, consent, evidence })
    }

    /// Evidence of a subscriber over all subscriptions, also removed ones, oldest first.
    ///
    /// # Errors
    /// There is no such subscriber.
    pub async fn evidence_of_subscriber(
        &self,
        caller: &Caller,
        id: &SubscriberId,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page<EvidenceRecord>, ServiceError> {
        caller.needs(Scope::SubscribersRead)?;
        self.find_subscriber(id).await?;
        let after: Option<u64> = key_of(after)?;
        let of = EvidenceOf::Subscriber(id.clone());
        let found = self.consent_store.evidence(&of, after, limit + 1).await?;
        Ok(Page::cut(found, limit, |record| record.number.to_string()))
    }
}
