//! Subscriptions that the match index rejects, and those whose filter no index supports.

use tocsin_model::{
    filter::Filter,
    id::{Name, SubscriptionId},
    problem::Problem,
};
use tocsin_pipeline::{Compiled, subject};
use tocsin_store::records::IndexedSubscription;

use crate::{
    Service,
    error::ServiceError,
    keys::{Caller, Scope},
    page::{Page, cursor, key_of},
};

/// Maximum number of subscriptions examined per call.
pub const SCANNED_ROWS_MAX: usize = 100_000;
/// Subscriptions read from the records at a time.
const PAGE: usize = 5_000;

/// A stored subscription that cannot be matched.
#[derive(Debug, Clone)]
pub struct Unusable {
    /// Its id.
    pub id: SubscriptionId,
    /// Its class.
    pub class: Name,
    /// Reason, with the position in its filter if that is the problem.
    pub problem: Problem,
}

/// A stored subscription whose filter is scanned for every event.
#[derive(Debug, Clone)]
pub struct Unindexed {
    /// Its id.
    pub id: SubscriptionId,
    /// Its class.
    pub class: Name,
    /// Its filter.
    pub filter: Filter,
    /// Reason why no index supports it.
    pub reason: String,
}

impl Service {
    /// The enabled subscriptions of an application that its running version cannot match, such as those whose filter
    /// names a field that the event class has lost. Each call looks at [`SCANNED_ROWS_MAX`] subscriptions at most, so that a page
    /// may be empty and another follow.
    ///
    /// # Errors
    /// The scope `operations:read` is missing; the application is not running; `after` is no cursor.
    pub async fn unusable_subscriptions(
        &self,
        caller: &Caller,
        application: &Name,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page<Unusable>, ServiceError> {
        let unusable = |compiled: &Compiled, stored: &IndexedSubscription| {
            let problem = compiled.rules.check_subject(subject(stored)).err()?;
            Some(Unusable { id: stored.id, class: stored.class.clone(), problem })
        };
        self.select_subscriptions(caller, application, after, limit, unusable).await
    }

    /// The enabled subscriptions of an application whose filter no index of its running version answers: each event pays
    /// for each distinct one. Pages are those of [`Service::unusable_subscriptions`].
    ///
    /// # Errors
    /// As [`Service::unusable_subscriptions`].
    pub async fn unindexed_subscriptions(
        &self,
        caller: &Caller,
        application: &Name,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page<Unindexed>, ServiceError> {
        let unindexed = |compiled: &Compiled, stored: &IndexedSubscription| {
            let filter = stored.terms.filter.clone()?;
            let mut sets = std::iter::once(&compiled.rules).chain(compiled.scheduled.values());
            // A subscription that the rules reject has no index entry.
            let scanned = sets.find_map(|rules| rules.check_filter(&stored.class, &filter).ok().flatten())?;
            Some(Unindexed { id: stored.id, class: stored.class.clone(), filter, reason: scanned.to_string() })
        };
        self.select_subscriptions(caller, application, after, limit, unindexed).await
    }

    async fn select_subscriptions<T>(
        &self,
        caller: &Caller,
        application: &Name,
        after: Option<&str>,
        limit: usize,
        pick: impl Fn(&Compiled, &IndexedSubscription) -> Option<T>,
    ) -> Result<Page<T>, ServiceError> {
        caller.needs(Scope::OperationsRead)?;
        let compiled = self.running(application)?;
        let mut after: Option<SubscriptionId> = key_of(after)?;
        let (mut items, mut looks) = (Vec::new(), 0);
        loop {
            let page = self.match_store.indexed_subscriptions(application, after, PAGE).await?;
            let is_last = page.len() < PAGE;
            for stored in page {
                after = Some(stored.id);
                items.extend(pick(&compiled, &stored));
                looks += 1;
                if items.len() == limit || looks == SCANNED_ROWS_MAX {
                    return Ok(Page { items, next: after.map(|last| cursor(&last.to_string())) });
                }
            }
            if is_last {
                return Ok(Page { items, next: None });
            }
            tokio::task::yield_now().await;
        }
    }
}
