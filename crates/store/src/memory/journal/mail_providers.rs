//! Mails to mailbox providers by day.

use std::collections::BTreeMap;

use async_trait::async_trait;
use tocsin_model::{id::Name, mail_provider::ProviderDay};

use super::MemoryJournal;
use crate::{
    error::StoreError,
    journal::{MailProviders, PROVIDER_DAYS_KEPT},
};

#[async_trait]
impl MailProviders for MemoryJournal {
    async fn add_provider_days(
        &self,
        application: &Name,
        channel: &Name,
        days: Vec<(Box<str>, ProviderDay)>,
    ) -> Result<(), StoreError> {
        let mut state = self.state.lock();
        let stored = state.provider_days.entry((application.clone(), channel.clone())).or_default();
        let newest = days.iter().map(|(_, day)| day.day).max().unwrap_or(0);
        for (provider, new) in days {
            let none = ProviderDay { sent: 0, held_back: 0, ..new };
            let day = stored.entry((provider, new.day)).or_insert(none);
            day.limit = new.limit;
            day.sent += new.sent;
            day.held_back += new.held_back;
        }
        stored.retain(|(_, day), _| *day >= newest.saturating_sub(PROVIDER_DAYS_KEPT));
        Ok(())
    }

    async fn last_provider_days(
        &self,
        application: &Name,
        channel: &Name,
    ) -> Result<Vec<(Box<str>, ProviderDay)>, StoreError> {
        let state = self.state.lock();
        let stored = state.provider_days.get(&(application.clone(), channel.clone()));
        let days = stored.into_iter().flatten().map(|((provider, _), day)| (provider.clone(), day.clone()));
        // Days follow each other, so the last of a provider replaces the others.
        Ok(days.collect::<BTreeMap<_, _>>().into_iter().collect())
    }
}
