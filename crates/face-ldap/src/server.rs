//! State shared by all connections: options, limits and the keys of operators.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
    time::{Duration, Instant},
};

use tocsin_directory::Directory;
use tocsin_pace::rate_limit::RateLimit;
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;

use crate::{certificate::CertificateRule, rate_limits::RateLimits};

/// Configuration and limits of the LDAP server.
#[derive(Debug, Clone)]
pub struct LdapOptions {
    /// Maximum connections; a further one is closed at once.
    pub connections_max: usize,
    /// Maximum connections from one address (IPv6: one /64 network).
    pub connections_per_address_max: usize,
    /// Maximum request rate of a bound identity.
    pub identity_rate: Option<RateLimit>,
    /// Maximum rate of requests without a bind, and of failed binds, from one address (IPv6: one /64 network).
    pub address_rate: Option<RateLimit>,
    /// Maximum message size before a bind, in bytes.
    pub anonymous_message_bytes_max: usize,
    /// Maximum message size, in bytes.
    pub message_bytes_max: usize,
    /// Maximum concurrent requests of one connection; a further one gets `busy`.
    pub pending_max: usize,
    /// Timeout for an incomplete message, and for a client that does not read.
    pub patience: Duration,
    /// Idle timeout of a connection.
    pub idle_timeout: Duration,
    /// Maximum entries of one search; operators are exempt.
    pub size_limit: u32,
    /// Maximum persistent searches (refreshAndPersist) over all connections; a further one gets `busy`.
    pub followers_max: usize,
    /// Maximum duration of one search; operators are exempt.
    pub time_limit: Duration,
    /// Whether anonymous clients may read more than the server's own entries, as far as access rules allow.
    pub anonymous: bool,
    /// TLS configuration; `None`: no TLS.
    pub tls: Option<Arc<rustls::ServerConfig>>,
    /// Rules that map a client certificate verified by `tls` to an entry; the first that selects one applies. Empty:
    /// client certificates are not accepted.
    pub certificate_rules: Vec<CertificateRule>,
    /// Whether passwords are rejected without TLS.
    pub require_tls: bool,
    /// Maximum time that connections may take to end at shutdown.
    pub drain_patience: Duration,
}

impl Default for LdapOptions {
    fn default() -> Self {
        LdapOptions {
            connections_max: 10_000,
            connections_per_address_max: 1_000,
            identity_rate: None,
            address_rate: None,
            anonymous_message_bytes_max: 256 << 10,
            message_bytes_max: 16 << 20,
            pending_max: 64,
            patience: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(900),
            size_limit: 10_000,
            followers_max: 64,
            time_limit: Duration::from_secs(60),
            anonymous: true,
            tls: None,
            certificate_rules: Vec::new(),
            require_tls: false,
            drain_patience: Duration::from_secs(10),
        }
    }
}

/// Lookup of API keys, with which operators bind.
pub trait Operators: Send + Sync + 'static {
    /// Validity of a key that may change subscribers; `None`: the key may not.
    fn operator(&self, key: &str) -> Option<Validity>;

    /// Containers to which a key is limited; empty: unlimited. `None`: not an operator's key.
    fn containers(&self, key: &str) -> Option<Vec<String>> {
        self.operator(key).map(|_| Vec::new())
    }

    /// Notifies when keys are created, removed or changed.
    fn changes(&self) -> watch::Receiver<u64>;
}

/// Validity of an operator's key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Validity {
    /// Remaining time; `None`: until it is removed.
    pub ends_in: Option<Duration>,
}

/// Minimum interval between lookups of an expired key.
pub(crate) const ASKED_AGAIN: Duration = Duration::from_millis(1);

/// API key of a bound connection.
pub(crate) struct BoundKey {
    text: String,
    changes: watch::Receiver<u64>,
    ends_at: Option<Instant>,
}

impl BoundKey {
    /// Looks up a key; `None`: not an operator's key.
    pub(crate) fn read(operators: &dyn Operators, text: &str) -> Option<BoundKey> {
        // Subscribed before the lookup, so that no change is missed.
        let changes = operators.changes();
        let mut key = BoundKey { text: text.to_owned(), changes, ends_at: None };
        key.is_still_valid(operators).then_some(key)
    }

    /// Whether the key is still valid for an operator.
    pub(crate) fn is_still_valid(&mut self, operators: &dyn Operators) -> bool {
        self.changes.borrow_and_update();
        let validity = operators.operator(&self.text);
        // The key store's clock decides. If it lags behind this one, the key is looked up again after a while.
        let left = |validity: Validity| Instant::now().checked_add(validity.ends_in?.max(ASKED_AGAIN));
        self.ends_at = validity.and_then(left);
        validity.is_some()
    }

    /// The public part of the key.
    pub(crate) fn id(&self) -> &str {
        self.text.split('_').nth(1).unwrap_or_default()
    }

    /// The identity that requests of this key count for.
    pub(crate) fn identity(&self) -> Arc<str> {
        let mut hasher = DefaultHasher::new();
        self.text.hash(&mut hasher);
        format!("key {:016x}", hasher.finish()).into()
    }

    /// Whether the key may have changed or expired since the last lookup.
    pub(crate) fn is_stale(&self) -> bool {
        // A dropped sender means that the server is stopping.
        self.changes.has_changed().unwrap_or(true) || self.ends_at.is_some_and(|end| Instant::now() >= end)
    }

    /// Waits until keys change.
    pub(crate) async fn changed(&mut self) {
        if self.changes.changed().await.is_err() {
            std::future::pending().await
        }
    }
}

/// State shared by all connections.
pub(crate) struct Server {
    pub(crate) directory: Directory,
    pub(crate) operators: Arc<dyn Operators>,
    pub(crate) options: LdapOptions,
    pub(crate) stopping: CancellationToken,
    /// Permits of persistent searches.
    pub(crate) followers: Arc<Semaphore>,
    pub(crate) rates: RateLimits,
}

impl Server {
    /// Whether clients can authenticate by certificate.
    pub(crate) fn accepts_certificates(&self) -> bool {
        self.options.tls.is_some() && !self.options.certificate_rules.is_empty()
    }

    /// Whether the connection is unprotected although TLS is required.
    pub(crate) fn lacks_required_tls(&self, is_secure: bool) -> bool {
        self.options.require_tls && !is_secure
    }
}

/// Start of TLS on a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TlsStart {
    /// By StartTLS.
    Plain,
    /// With the first byte (`ldaps`).
    Tls,
}
