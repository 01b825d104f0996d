//! Connects mail channels to the stored mails to mailbox providers by day.

use std::sync::Arc;

use async_trait::async_trait;
use tocsin_delivery::ProviderDays;
use tocsin_model::{
    id::Name,
    mail_provider::ProviderDay,
    receipt::{Reason, ReasonKind},
};
use tocsin_store::{error::StoreError, journal::MailProviders};

/// Numbers of providers for channels, backed by the journal.
pub(crate) struct StoredProviderDays(pub Arc<dyn MailProviders>);

#[async_trait]
impl ProviderDays for StoredProviderDays {
    async fn last_days(&self, application: &str, channel: &Name) -> Result<Vec<(Box<str>, ProviderDay)>, Reason> {
        self.0.last_provider_days(&name(application)?, channel).await.map_err(failed)
    }

    async fn add_days(
        &self,
        application: &str,
        channel: &Name,
        days: Vec<(Box<str>, ProviderDay)>,
    ) -> Result<(), Reason> {
        self.0.add_provider_days(&name(application)?, channel, days).await.map_err(failed)
    }
}

fn name(application: &str) -> Result<Name, Reason> {
    application.parse().map_err(|_| Reason::new(ReasonKind::Internal, "the channel belongs to no application"))
}

fn failed(error: StoreError) -> Reason {
    Reason::new(ReasonKind::Internal, format!("the journal: {error}"))
}

#[cfg(test)]
mod tests {
    use tocsin_store::{journal::JournalOptions, memory::journal::MemoryJournal};

    use super::*;

    #[tokio::test]
    async fn numbers_of_a_channel_are_read_from_the_journal() {
        let days = StoredProviderDays(Arc::new(MemoryJournal::new(JournalOptions::default())));
        let (mail, other) = ("mail".parse().expect("a name"), "other".parse().expect("a name"));
        let day = ProviderDay { day: 20_600, limit: 300, sent: 7, held_back: 1 };
        days.add_days("shop", &mail, vec![("google".into(), day.clone())]).await.expect("stored");
        assert_eq!(days.last_days("shop", &mail).await, Ok(vec![("google".into(), day)]));
        assert_eq!(days.last_days("shop", &other).await, Ok(Vec::new()));
        assert!(days.last_days("", &mail).await.is_err(), "a channel outside of applications has none");
    }
}
