//! Unsubscribe links in mails. The link itself authorizes its holder; no key is needed.

use tocsin_model::id::{Name, SubscriptionId};
use tocsin_store::{
    error::StoreError,
    records::{Precondition, SubscriptionChange, UpdateSubscription},
};

use crate::{Service, error::ServiceError};

/// Leave to end one subscription, which only its link gives.
#[derive(Debug)]
pub struct Unsubscribing {
    id: SubscriptionId,
    /// Application and class of the subscription, if it still exists.
    pub of: Option<(Name, Name)>,
}

impl Service {
    /// Returns the target of a link. Changes nothing.
    ///
    /// # Errors
    /// `Missing` for a link that we did not make.
    pub async fn unsubscribing(&self, token: &str) -> Result<Unsubscribing, ServiceError> {
        let id = self.token_signer.subscription(token).ok_or_else(|| ServiceError::Missing("this link".into()))?;
        let found = self.subscription_store.subscription(id).await?;
        Ok(Unsubscribing { id, of: found.map(|found| (found.application, found.class)) })
    }

    /// Switches the subscription off: no notifications are sent any more, including waiting ones. Doing it again, or after the
    /// subscription was removed, changes nothing.
    ///
    /// # Errors
    /// The records are unavailable, or take no change now.
    pub async fn unsubscribe(&self, leave: &Unsubscribing) -> Result<(), ServiceError> {
        let mut turn = self.turns.take(&leave.id).await;
        loop {
            let Some(found) = self.subscription_store.subscription(leave.id).await? else { return Ok(()) };
            if !found.is_active_or_snoozed() {
                return Ok(());
            }
            let change = SubscriptionChange {
                device: found.device,
                enabled: Some(false),
                values: found.values,
                terms: found.terms,
            };
            let expect = Precondition::Revision(found.revision);
            match self
                .subscription_store
                .update_subscription(UpdateSubscription { id: leave.id, change, expect, now: self.clock.now() })
                .await
            {
                Ok(_) => {
                    metrics::counter!("tocsin_unsubscribe_total").increment(1);
                    tracing::info!(subscription = %leave.id, "ended by the link of a mail");
                    return Ok(());
                }
                Err(StoreError::Missing(_)) => return Ok(()),
                Err(StoreError::Changed(_)) => turn.repeat(format_args!("the subscription `{}`", leave.id))?,
                Err(error) => return Err(error.into()),
            }
        }
    }
}
