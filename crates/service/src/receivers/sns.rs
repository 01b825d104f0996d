//! Requests to Amazon SNS: certificates of signatures, and confirmations of subscriptions.

use std::collections::BTreeMap;

use async_trait::async_trait;
use parking_lot::Mutex;
use tocsin_model::time::Timestamp;

/// Most certificates in memory.
const CERTIFICATES_MAX: usize = 16;
/// Time for which a certificate is used without a new request.
const CERTIFICATE_LASTS: std::time::Duration = std::time::Duration::from_secs(86_400);

/// Sends a GET within the network policy of the installation; implemented outside this crate.
#[async_trait]
pub trait Fetch: Send + Sync {
    /// The body of a successful response.
    ///
    /// # Errors
    /// The reason, for the log.
    async fn fetch(&self, url: &str) -> Result<Vec<u8>, String>;
}

/// Certificates by URL, with the time of their request.
#[derive(Default)]
pub(super) struct Certificates(Mutex<BTreeMap<String, (Timestamp, Vec<u8>)>>);

impl Certificates {
    /// The certificate at a URL, which the caller has checked.
    pub async fn at(&self, url: &str, fetch: &dyn Fetch, now: Timestamp) -> Result<Vec<u8>, String> {
        if let Some((at, certificate)) = self.0.lock().get(url)
            && now.since(*at) < CERTIFICATE_LASTS
        {
            return Ok(certificate.clone());
        }
        let certificate = fetch.fetch(url).await?;
        let mut known = self.0.lock();
        if known.len() >= CERTIFICATES_MAX
            && let Some(oldest) = known.iter().min_by_key(|(_, (at, _))| *at).map(|(url, _)| url.clone())
        {
            known.remove(&oldest);
        }
        known.insert(url.to_owned(), (now, certificate.clone()));
        Ok(certificate)
    }

    /// Forgets a certificate that verified nothing.
    pub fn forget(&self, url: &str) {
        self.0.lock().remove(url);
    }
}
