//! Connections of an HTTP/1.1 server: accepting them within the limits, serving one, and the shutdown.

use std::{convert::Infallible, error::Error, future::Future, net::IpAddr, pin::pin, time::Duration};

use hyper::{
    Request, Response,
    body::{Body, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    sync::watch,
};

use crate::{
    framing::StrictFraming,
    idle_body::IdleBody,
    seats::{Seat, Seats},
    write_timeout::WriteTimeout,
};

/// Longest time for the head of a request of a connection beyond the limits.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause after a connection could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Most bytes of the head of a request.
const HEAD_BYTES_MAX: usize = 256 * 1024;

/// Limits of connections, and their times.
#[derive(Debug, Clone, Copy)]
pub struct ConnectionOptions {
    /// Most connections.
    pub connections_max: usize,
    /// Most connections from one address (IPv6: from one /64 network).
    pub connections_per_address_max: usize,
    /// Connections beyond these limits that are read at the same time, for health checks.
    pub health_connections: usize,
    /// Longest time for the head of a request, and longest idle time of a connection.
    pub header_timeout: Duration,
    /// Longest pause of a body.
    pub body_idle_timeout: Duration,
    /// Longest time in which a client reads nothing of an answer.
    pub write_timeout: Duration,
    /// Time for which a server that ends waits for its requests.
    pub drain_patience: Duration,
}

impl Default for ConnectionOptions {
    fn default() -> Self {
        ConnectionOptions {
            connections_max: 10_000,
            connections_per_address_max: 5_000,
            health_connections: 16,
            header_timeout: Duration::from_secs(30),
            body_idle_timeout: Duration::from_secs(30),
            write_timeout: Duration::from_secs(30),
            drain_patience: Duration::from_secs(30),
        }
    }
}

/// An accepted connection.
pub struct Connection {
    /// Address of the peer.
    pub peer: IpAddr,
    /// Whether it is within the limits. Otherwise it has one request, for a health check.
    pub is_full: bool,
    options: ConnectionOptions,
    stopping: watch::Receiver<()>,
}

impl Connection {
    /// Serves the requests of its stream until it ends, or until the request in progress is answered after a shutdown.
    pub async fn serve<S, A, F, B>(mut self, stream: S, answer: A)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        A: Fn(Request<IdleBody<Incoming>>) -> F,
        F: Future<Output = Response<B>>,
        B: Body + 'static,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        let idle = self.options.body_idle_timeout;
        let handle = service_fn(|request: Request<Incoming>| {
            let answered = answer(request.map(|body| IdleBody::new(body, idle)));
            async { Ok::<_, Infallible>(answered.await) }
        });
        let header_timeout = self.options.header_timeout;
        let header_timeout = if self.is_full { header_timeout } else { header_timeout.min(HEALTH_TIMEOUT) };
        let mut builder = http1::Builder::new();
        builder.timer(TokioTimer::new()).header_read_timeout(header_timeout).max_buf_size(HEAD_BYTES_MAX);
        builder.keep_alive(self.is_full);
        let mut connection = pin!(builder.serve_connection(TokioIo::new(StrictFraming::new(stream)), handle));
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            _ = self.stopping.changed() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "a connection broke off");
        }
    }
}

/// Accepts connections until `shutdown` completes; then takes no new one, lets the requests in flight finish for at
/// most `drain_patience`, and returns. Each connection runs `connect` in a task of its own; `refuse` gets those for
/// which even a health check has no room.
pub async fn accept<C, F>(
    listener: TcpListener,
    options: ConnectionOptions,
    shutdown: impl Future<Output = ()> + Send,
    refuse: impl Fn(TcpStream),
    connect: C,
) where
    C: Fn(WriteTimeout<TcpStream>, Connection) -> F,
    F: Future<Output = ()> + Send + 'static,
{
    let seats = Seats::new(options.connections_max, options.connections_per_address_max, options.health_connections);
    let (stop, stopping) = watch::channel(());
    let mut shutdown = pin!(shutdown);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = &mut shutdown => break,
        };
        let (stream, peer) = match accepted {
            Ok((stream, peer)) => (stream, peer.ip()),
            Err(error) => {
                // Too many open files, or a connection that was closed before it was accepted; the server continues.
                tracing::warn!(%error, "could not accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        // An answer must not wait for the acknowledgement of the one before.
        let _ = stream.set_nodelay(true);
        let Some(seat) = seats.take(peer) else {
            metrics::counter!("tocsin_http_connections_refused_total").increment(1);
            refuse(stream);
            continue;
        };
        let is_full = matches!(seat, Seat::Full(..));
        let connection = Connection { peer, is_full, options, stopping: stopping.clone() };
        let served = connect(WriteTimeout::new(stream, options.write_timeout), connection);
        tokio::spawn(async move {
            served.await;
            drop(seat);
        });
    }
    drop(listener);
    drop(stop);
    // Every seat is free again when every connection has ended.
    if tokio::time::timeout(options.drain_patience, seats.all_free()).await.is_err() {
        tracing::warn!("some connections did not end in time");
    }
}
