//! Random identity and secret of the installation.

use std::time::Duration;

use async_trait::async_trait;

use crate::error::StoreError;

/// Identity of the installation, row counts and the health check.
///
/// Identity, secret and counts are held in memory and cost no I/O.
#[async_trait]
pub trait Installation: Send + Sync + 'static {
    /// Random identity of this installation, created once; part of message ids.
    fn installation(&self) -> &str;

    /// Random secret of this installation, created once. Signing keys of tokens are derived from it. Never shown.
    fn secret(&self) -> &[u8; 32];

    /// Row counts. Cheap: reads counters.
    fn counts(&self) -> RecordCounts;

    /// Writes and syncs a few bytes and returns the time it took.
    async fn probe(&self) -> Result<Duration, StoreError>;
}

/// New installation identity: 96 random bits in hexadecimal.
pub(crate) fn new_installation() -> Result<String, StoreError> {
    Ok(hex::encode(random::<12>()?))
}

/// New random secret.
pub(crate) fn new_secret() -> Result<[u8; 32], StoreError> {
    random()
}

fn random<const N: usize>() -> Result<[u8; N], StoreError> {
    let mut bytes = [0; N];
    ring::rand::SecureRandom::fill(&ring::rand::SystemRandom::new(), &mut bytes)
        .map_err(|_| StoreError::unavailable("the system has no random numbers"))?;
    Ok(bytes)
}

/// Row counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RecordCounts {
    /// Subscribers.
    pub subscribers: u64,
    /// Devices.
    pub devices: u64,
    /// Subscriptions.
    pub subscriptions: u64,
}
