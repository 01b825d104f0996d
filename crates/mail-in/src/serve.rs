//! The listener: accepts connections within limits, and lets sessions end when it is closed.

use std::{
    collections::HashMap,
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use rustls::ServerConfig;
use tokio::{
    net::{TcpListener, TcpStream},
    task::{JoinHandle, JoinSet},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use crate::{envelope::Handler, login::Login, session};

/// Limits of the server and its sessions.
#[derive(Debug, Clone)]
pub struct ServerLimits {
    /// Maximum number of connections; further ones get 421.
    pub connections_max: usize,
    /// Maximum number of connections from one address; further ones get 421.
    pub connections_per_address_max: usize,
    /// Maximum size of a mail in bytes; larger ones are refused with 552.
    pub mail_bytes_max: usize,
    /// Maximum number of recipients of one mail; further ones get 452, and clients send them another mail.
    pub recipients_max: usize,
    /// Maximum number of mails in one connection; then it ends with 421, so that other clients are served.
    pub mails_max: u32,
    /// A session without a complete command for this time ends with 421.
    pub idle: Duration,
    /// Maximum time for the transfer of one mail.
    pub mail_timeout: Duration,
}

impl Default for ServerLimits {
    fn default() -> Self {
        ServerLimits {
            connections_max: 50,
            connections_per_address_max: 20,
            mail_bytes_max: 10 << 20,
            recipients_max: 100,
            mails_max: 1_000,
            idle: Duration::from_secs(300),
            mail_timeout: Duration::from_secs(600),
        }
    }
}

/// Requirements for clients.
#[derive(Clone, Default)]
pub struct Access {
    /// The certificate of the server; without one there is no encryption.
    pub tls: Option<Arc<ServerConfig>>,
    /// Whether a connection begins with TLS (RFC 8314), instead of by STARTTLS.
    pub implicit_tls: bool,
    /// Whether mail is accepted only over encrypted connections.
    pub require_tls: bool,
    /// The only user who may send, after a login over an encrypted connection; without one a login is not required.
    pub login: Option<Login>,
}

/// Settings of a mail server.
pub struct ServerSettings {
    /// The host name in the greeting.
    pub host: String,
    /// The requirements for clients.
    pub access: Access,
    /// The limits.
    pub limits: ServerLimits,
    /// The handler that accepts mail.
    pub handler: Arc<dyn Handler>,
}

/// A mail server that runs until it is closed or dropped. Dropping it aborts all sessions: their clients will send
/// again.
pub struct Server {
    address: SocketAddr,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Server {
    /// Starts listening at an address.
    ///
    /// # Errors
    /// The address is in use, or does not belong to this machine.
    pub async fn start(address: SocketAddr, setting: ServerSettings) -> io::Result<Server> {
        Server::serve(TcpListener::bind(address).await?, setting)
    }

    /// Starts at a bound address.
    ///
    /// # Errors
    /// The socket has no address any more.
    pub fn serve(listener: TcpListener, setting: ServerSettings) -> io::Result<Server> {
        let address = listener.local_addr()?;
        let stop = CancellationToken::new();
        let task = tokio::spawn(listen(listener, Arc::new(setting), stop.clone()));
        Ok(Server { address, stop, task })
    }

    /// The address at which it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops accepting connections and commands, waits up to `patience` for running mails, and ends.
    pub async fn close(mut self, patience: Duration) {
        self.stop.cancel();
        let _ = timeout(patience, &mut self.task).await;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Number of connections for each client address.
#[derive(Default)]
struct ConnectionCounts(HashMap<IpAddr, usize>);

impl ConnectionCounts {
    fn add(&mut self, address: IpAddr) {
        *self.0.entry(address).or_default() += 1;
    }

    fn remove(&mut self, address: IpAddr) {
        if let Some(count) = self.0.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                self.0.remove(&address);
            }
        }
    }

    fn count(&self, address: IpAddr) -> usize {
        self.0.get(&address).copied().unwrap_or_default()
    }
}

async fn listen(listener: TcpListener, setting: Arc<ServerSettings>, stop: CancellationToken) {
    // Dropping the set aborts the sessions.
    let mut sessions: JoinSet<IpAddr> = JoinSet::new();
    let mut connections = ConnectionCounts::default();
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            Some(ended) = sessions.join_next() => {
                if let Ok(address) = ended {
                    connections.remove(address);
                }
                continue;
            }
            accepted = listener.accept() => accepted,
        };
        let Ok((stream, peer)) = accepted else {
            // Out of file descriptors: sessions that end will free some.
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let address = peer.ip().to_canonical();
        let limits = &setting.limits;
        if sessions.len() >= limits.connections_max || connections.count(address) >= limits.connections_per_address_max
        {
            refuse(&stream);
            continue;
        }
        connections.add(address);
        sessions.spawn(run_session_as(address, stream, peer, setting.clone(), stop.clone()));
    }
    drop(listener);
    while sessions.join_next().await.is_some() {}
}

async fn run_session_as(
    address: IpAddr,
    stream: TcpStream,
    peer: SocketAddr,
    setting: Arc<ServerSettings>,
    stop: CancellationToken,
) -> IpAddr {
    // A separate task, so that a panic in the session does not prevent the cleanup.
    let mut talk = Abort(tokio::spawn(async move { session::run_session(stream, peer, &setting, &stop).await }));
    match (&mut talk.0).await {
        Ok(Ok(())) => {}
        // After a broken connection the client sends again.
        Ok(Err(error)) => tracing::debug!(%peer, %error, "an SMTP session was interrupted"),
        Err(error) => tracing::error!(%peer, %error, "an SMTP session panicked"),
    }
    address
}

/// A task that is aborted when its owner is dropped.
struct Abort(JoinHandle<io::Result<()>>);

impl Drop for Abort {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Replies that there are too many connections, if the socket accepts it immediately.
fn refuse(stream: &TcpStream) {
    let _ = stream.try_write(b"421 4.3.2 too many connections, try again later\r\n");
}
