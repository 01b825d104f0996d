//! The listener: takes connections within bounds, and ends them when the server stops.

use std::{
    collections::HashMap,
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

use crate::{certificate::CertificateRule, connection};

/// Bounds of the face.
#[derive(Debug, Clone)]
pub struct LdapOptions {
    /// Most connections; one more is closed at once.
    pub connections_max: usize,
    /// Most connections from one address.
    pub connections_per_address_max: usize,
    /// Longest message of whoever has not proved who they are, in bytes.
    pub anonymous_message_bytes_max: usize,
    /// Longest message, in bytes.
    pub message_bytes_max: usize,
    /// Most requests of one connection that are under way; one more is told `busy`.
    pub pending_max: usize,
    /// How long half a message may take, and how long a client may not read.
    pub patience: Duration,
    /// How long a connection may be idle.
    pub idle_timeout: Duration,
    /// Most entries of one search; operators have no bound.
    pub size_limit: u32,
    /// Most searches of all connections that follow what changes; one more is told `busy`.
    pub followers_max: usize,
    /// Longest time of one search; operators have no bound.
    pub time_limit: Duration,
    /// Whether whoever did not say who they are may ask for more than the server's own entries, as far as access rules
    /// allow.
    pub anonymous: bool,
    /// Certificate and key; without them there is no TLS.
    pub tls: Option<Arc<rustls::ServerConfig>>,
    /// Which entry a client is by its certificate, which `tls` has looked at; the first rule that finds one decides. None:
    /// certificates of clients are not taken.
    pub certificate_rules: Vec<CertificateRule>,
    /// Whether passwords are refused without TLS.
    pub require_tls: bool,
    /// How long the connections of a stopping server may take to end.
    pub drain_patience: Duration,
}

impl Default for LdapOptions {
    fn default() -> Self {
        LdapOptions {
            connections_max: 10_000,
            connections_per_address_max: 1_000,
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

/// Knows the keys of the API, with which operators prove themselves.
pub trait Operators: Send + Sync + 'static {
    /// The validity of a key that may change subscribers; `None`: it may not.
    fn operator(&self, key: &str) -> Option<Validity>;

    /// The containers that a key is limited to; of none: it is unlimited. `None`: it is no operator's.
    fn containers(&self, key: &str) -> Option<Vec<String>> {
        self.operator(key).map(|_| Vec::new())
    }

    /// Notifies when keys were made, removed or changed.
    fn changes(&self) -> watch::Receiver<u64>;
}

/// The validity of an operator's key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Validity {
    /// The time left; `None`: until it is removed.
    pub ends_in: Option<Duration>,
}

/// The least time between two look-ups of a key that has come to its end.
const ASKED_AGAIN: Duration = Duration::from_millis(1);

/// A key by which a connection is bound.
pub(crate) struct BoundKey {
    text: String,
    changes: watch::Receiver<u64>,
    ends_at: Option<Instant>,
}

impl BoundKey {
    /// Reads a key; `None`: it is no operator's.
    pub(crate) fn read(operators: &dyn Operators, text: &str) -> Option<BoundKey> {
        // Before the key is looked up: a change from now on is seen.
        let changes = operators.changes();
        let mut key = BoundKey { text: text.to_owned(), changes, ends_at: None };
        key.holds(operators).then_some(key)
    }

    /// Whether it still is an operator's.
    pub(crate) fn holds(&mut self, operators: &dyn Operators) -> bool {
        self.changes.borrow_and_update();
        let validity = operators.operator(&self.text);
        // The clock of the keys decides. Where it lags behind this one, the key is asked for again after a while.
        let left = |validity: Validity| Instant::now().checked_add(validity.ends_in?.max(ASKED_AGAIN));
        self.ends_at = validity.and_then(left);
        validity.is_some()
    }

    /// Whether it may have changed or ended since it was looked up.
    pub(crate) fn is_stale(&self) -> bool {
        // A sender that is gone belongs to a server that stops.
        self.changes.has_changed().unwrap_or(true) || self.ends_at.is_some_and(|end| Instant::now() >= end)
    }

    /// Waits until keys change.
    pub(crate) async fn changed(&mut self) {
        if self.changes.changed().await.is_err() {
            std::future::pending().await
        }
    }
}

/// What all connections share.
pub(crate) struct Server {
    pub(crate) directory: Directory,
    pub(crate) operators: Arc<dyn Operators>,
    pub(crate) options: LdapOptions,
    pub(crate) stopping: CancellationToken,
    /// Searches that may follow what changes.
    pub(crate) followers: Arc<Semaphore>,
}

impl Server {
    /// Whether clients may prove who they are by certificates.
    pub(crate) fn takes_certificates(&self) -> bool {
        self.options.tls.is_some() && !self.options.certificate_rules.is_empty()
    }

    /// Whether others may read along where they must not.
    pub(crate) fn is_open(&self, is_secure: bool) -> bool {
        self.options.require_tls && !is_secure
    }
}

/// When TLS begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opening {
    /// When the client asks for it.
    Plain,
    /// With the first byte: `ldaps`.
    Tls,
}

/// Serves LDAP at these addresses, if there are any, until `stopping`; then tells every client, and waits for the connections
/// to end. The bounds hold for all addresses together.
pub async fn serve(
    listeners: Vec<(TcpListener, Opening)>,
    directory: Directory,
    operators: Arc<dyn Operators>,
    options: LdapOptions,
    stopping: CancellationToken,
) {
    let seats = Arc::new(Semaphore::new(options.connections_max));
    let house = Arc::new(House { seats, addresses: Arc::default() });
    let followers = Arc::new(Semaphore::new(options.followers_max));
    let server = Arc::new(Server { directory, operators, options, stopping, followers });
    let doors = listeners.into_iter().map(|(listener, opening)| take_in(&server, &house, listener, opening));
    futures_util::future::join_all(doors).await;
    // Where the directory has no address of its own, there was nothing to wait for.
    server.stopping.cancelled().await;
    let all = u32::try_from(server.options.connections_max).unwrap_or(u32::MAX);
    if tokio::time::timeout(server.options.drain_patience, house.seats.acquire_many(all)).await.is_err() {
        tracing::warn!("some LDAP connections did not end in time");
    }
}

/// Takes the connections of one address.
async fn take_in(server: &Arc<Server>, house: &Arc<House>, listener: TcpListener, opening: Opening) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = server.stopping.cancelled() => return,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Too many open files, or a connection that was gone before it was taken: neither ends the server.
                tracing::warn!(%error, "could not take an LDAP connection");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let Some(place) = house.place(peer.ip(), server.options.connections_per_address_max) else {
            metrics::counter!("ldap_connections_refused_total").increment(1);
            continue;
        };
        let _ = stream.set_nodelay(true);
        let server = server.clone();
        tokio::spawn(async move {
            let open = metrics::gauge!("ldap_connections");
            open.increment(1.0);
            connection::run(server, stream, opening, peer).await;
            open.decrement(1.0);
            drop(place);
        });
    }
}

/// What the bounds of connections count.
struct House {
    seats: Arc<Semaphore>,
    addresses: Arc<Addresses>,
}

type Addresses = parking_lot::Mutex<HashMap<IpAddr, usize>>;

impl House {
    /// A seat for a connection from an address, if there is one.
    fn place(&self, address: IpAddr, most: usize) -> Option<Place> {
        let seat = self.seats.clone().try_acquire_owned().ok()?;
        let mut counts = self.addresses.lock();
        let count = counts.entry(address).or_default();
        if *count >= most {
            return None;
        }
        *count += 1;
        Some(Place { _seat: seat, addresses: self.addresses.clone(), address })
    }
}

/// A connection, counted while it lives.
struct Place {
    _seat: OwnedSemaphorePermit,
    addresses: Arc<Addresses>,
    address: IpAddr,
}

impl Drop for Place {
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
