//! Listener: accepts connections within the limits, and closes them at shutdown.

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher},
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use tocsin_directory::Directory;
use tokio::{
    net::TcpListener,
    sync::{OwnedSemaphorePermit, Semaphore, watch},
};
use tokio_util::sync::CancellationToken;

use crate::{
    certificate::CertificateRule,
    connection,
    rate_limits::{RateLimit, RateLimits, network},
};

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
const ASKED_AGAIN: Duration = Duration::from_millis(1);

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

/// Serves LDAP at these addresses until `stopping`; then notifies every client, and waits for the connections to end.
/// The limits apply to all addresses together.
pub async fn serve(
    listeners: Vec<(TcpListener, TlsStart)>,
    directory: Directory,
    operators: Arc<dyn Operators>,
    options: LdapOptions,
    stopping: CancellationToken,
) {
    let seats = Arc::new(Semaphore::new(options.connections_max));
    let house = Arc::new(ConnectionCounters { seats, addresses: Arc::default() });
    let followers = Arc::new(Semaphore::new(options.followers_max));
    let rates = RateLimits::new(options.identity_rate, options.address_rate);
    let server = Arc::new(Server { directory, operators, options, stopping, followers, rates });
    let doors = listeners.into_iter().map(|(listener, opening)| take_in(&server, &house, listener, opening));
    futures_util::future::join_all(doors).await;
    // Without an address there is nothing to wait for.
    server.stopping.cancelled().await;
    let all = u32::try_from(server.options.connections_max).unwrap_or(u32::MAX);
    if tokio::time::timeout(server.options.drain_patience, house.seats.acquire_many(all)).await.is_err() {
        tracing::warn!("some LDAP connections did not end in time");
    }
}

/// Accepts the connections of one address.
async fn take_in(server: &Arc<Server>, house: &Arc<ConnectionCounters>, listener: TcpListener, opening: TlsStart) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = server.stopping.cancelled() => return,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Neither exhausted file descriptors nor an aborted connection ends the server.
                tracing::warn!(%error, "could not accept an LDAP connection");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let Some(place) = house.place(network(peer.ip()), server.options.connections_per_address_max) else {
            metrics::counter!("tocsin_ldap_connections_refused_total").increment(1);
            continue;
        };
        let _ = stream.set_nodelay(true);
        let server = server.clone();
        tokio::spawn(async move {
            let open = metrics::gauge!("tocsin_ldap_connections");
            open.increment(1.0);
            connection::run(server, stream, opening, peer).await;
            open.decrement(1.0);
            drop(place);
        });
    }
}

/// Connection counts, for the limits.
struct ConnectionCounters {
    seats: Arc<Semaphore>,
    addresses: Arc<Addresses>,
}

type Addresses = parking_lot::Mutex<HashMap<IpAddr, usize>>;

impl ConnectionCounters {
    /// Reserves a slot for a connection from an address, if one is free.
    fn place(&self, address: IpAddr, most: usize) -> Option<ConnectionSlot> {
        let permit = self.seats.clone().try_acquire_owned().ok()?;
        let mut counts = self.addresses.lock();
        let count = counts.entry(address).or_default();
        if *count >= most {
            return None;
        }
        *count += 1;
        Some(ConnectionSlot { _permit: permit, addresses: self.addresses.clone(), address })
    }
}

/// Slot of a connection, released on drop.
struct ConnectionSlot {
    _permit: OwnedSemaphorePermit,
    addresses: Arc<Addresses>,
    address: IpAddr,
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut counts = self.addresses.lock();
        if let Some(count) = counts.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.address);
            }
        }
    }
}
