//! The listener: takes connections within bounds, and lets conversations end when it is closed.

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

/// Bounds of all conversations.
#[derive(Debug, Clone)]
pub struct Bounds {
    /// Most connections; one more is told 421.
    pub connections_max: usize,
    /// Most connections from one address; one more is told 421.
    pub connections_per_address_max: usize,
    /// Largest mail, in bytes; a larger one is refused with 552.
    pub mail_bytes_max: usize,
    /// Most recipients of one mail; one more is told 452, and senders send it in another one.
    pub recipients_max: usize,
    /// Most mails of one connection; then it ends with 421, so that others have their turn.
    pub mails_max: u32,
    /// A conversation in which nothing is said for so long ends with 421.
    pub idle: Duration,
    /// How long a mail may take to come, from its first byte to its last.
    pub mail_timeout: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Bounds {
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

/// Who may talk to us, and how.
#[derive(Clone, Default)]
pub struct Access {
    /// Our certificate; without one connections stay plain.
    pub tls: Option<Arc<ServerConfig>>,
    /// Whether mail is taken over encrypted connections only.
    pub require_tls: bool,
    /// The only user who may send, after a login over an encrypted connection; without one everybody may.
    pub login: Option<Login>,
}

/// All that a server of mail needs.
pub struct Setting {
    /// What we call ourselves.
    pub host: String,
    /// Who may talk to us.
    pub access: Access,
    /// Within which bounds.
    pub bounds: Bounds,
    /// Who wants the mail.
    pub handler: Arc<dyn Handler>,
}

/// A server that takes mail until it is closed or dropped. Dropping it breaks off all conversations: their senders will
/// send again.
pub struct Server {
    address: SocketAddr,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Server {
    /// Listens at an address.
    ///
    /// # Errors
    /// It is taken, or not of this machine.
    pub async fn start(address: SocketAddr, setting: Setting) -> io::Result<Server> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let stop = CancellationToken::new();
        let task = tokio::spawn(listen(listener, Arc::new(setting), stop.clone()));
        Ok(Server { address, stop, task })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Takes no more, lets what was begun be answered for so long, and ends.
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

/// How many connections come from where.
#[derive(Default)]
struct Guests(HashMap<IpAddr, usize>);

impl Guests {
    fn come(&mut self, address: IpAddr) {
        *self.0.entry(address).or_default() += 1;
    }

    fn go(&mut self, address: IpAddr) {
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

async fn listen(listener: TcpListener, setting: Arc<Setting>, stop: CancellationToken) {
    // Dropping the set breaks them off.
    let mut sessions: JoinSet<IpAddr> = JoinSet::new();
    let mut guests = Guests::default();
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            Some(ended) = sessions.join_next() => {
                if let Ok(address) = ended {
                    guests.go(address);
                }
                continue;
            }
            accepted = listener.accept() => accepted,
        };
        let Ok((stream, peer)) = accepted else {
            // Out of file descriptors: conversations that end free some.
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let address = peer.ip().to_canonical();
        let bounds = &setting.bounds;
        if sessions.len() >= bounds.connections_max || guests.count(address) >= bounds.connections_per_address_max {
            refuse(&stream);
            continue;
        }
        guests.come(address);
        sessions.spawn(converse_as(address, stream, peer, setting.clone(), stop.clone()));
    }
    drop(listener);
    while sessions.join_next().await.is_some() {}
}

async fn converse_as(
    address: IpAddr,
    stream: TcpStream,
    peer: SocketAddr,
    setting: Arc<Setting>,
    stop: CancellationToken,
) -> IpAddr {
    // A task of its own, so that a conversation that panics still gives its place back.
    let mut talk = Abort(tokio::spawn(async move { session::converse(stream, peer, &setting, &stop).await }));
    match (&mut talk.0).await {
        Ok(Ok(())) => {}
        // A conversation that breaks off is the sender's to repeat.
        Ok(Err(error)) => tracing::debug!(%peer, %error, "a conversation broke off"),
        Err(error) => tracing::error!(%peer, %error, "a conversation ended badly"),
    }
    address
}

/// A task that ends with whoever waits for it.
struct Abort(JoinHandle<io::Result<()>>);

impl Drop for Abort {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Says that there is no room, if the socket takes it at once.
fn refuse(stream: &TcpStream) {
    let _ = stream.try_write(b"421 4.3.2 too many connections, come back later\r\n");
}
