//! Mails to mailbox providers by day.

use async_trait::async_trait;
use tocsin_model::{id::Name, mail_provider::ProviderDay};

use crate::error::StoreError;

/// Days that are kept before the newest of a channel.
pub(crate) const PROVIDER_DAYS_KEPT: u32 = 90;

/// Mails of a channel to each mailbox provider, by day. Channels with a warm-up plan write them, and read the last day
/// of each provider when they open.
#[async_trait]
pub trait MailProviders: Send + Sync + 'static {
    /// Adds numbers to days of providers, in one commit. The limit of a day becomes the given one. Days long before
    /// the newest given one are deleted.
    async fn add_provider_days(
        &self,
        application: &Name,
        channel: &Name,
        days: Vec<(Box<str>, ProviderDay)>,
    ) -> Result<(), StoreError>;

    /// The last day of each provider of a channel, by provider.
    async fn last_provider_days(
        &self,
        application: &Name,
        channel: &Name,
    ) -> Result<Vec<(Box<str>, ProviderDay)>, StoreError>;
}
