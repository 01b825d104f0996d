//! Listener: accepts connections within the limits, and closes them at shutdown.

use std::{collections::HashMap, net::IpAddr, sync::Arc, time::Duration};

use tocsin_directory::Directory;
use tocsin_pace::rate_limit::network;
use tokio::{
    net::TcpListener,
    sync::{OwnedSemaphorePermit, Semaphore},
};
use tokio_util::sync::CancellationToken;

use crate::{
    connection,
    rate_limits::RateLimits,
    server::{LdapOptions, Operators, Server, TlsStart},
};

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
