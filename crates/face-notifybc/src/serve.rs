//! Connections: limits, timeouts, TLS and shutdown. Then the way of a request to its operation.

use std::{future::Future, net::IpAddr, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use axum::{
    body::Body,
    http::{HeaderValue, Request, Response, header},
};
use futures_util::FutureExt;
use hyper::body::Incoming;
use tocsin_http_server::{
    connections::{self, Connection, ConnectionOptions},
    host,
    idle_body::IdleBody,
    write_timeout::WriteTimeout,
};
use tocsin_model::time::Timestamp;
use tocsin_notifybc::identity::{Role, permits};
use tocsin_pace::rate_limit::{KeyedRateLimiter, RateLimit, network};
use tocsin_service::notifybc::{Notifybc, NotifybcError};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
};
use tokio_util::sync::CancellationToken;

use crate::{
    answer::{ErrorAnswer, redirect},
    endpoints,
    identity::{self, Peer},
    oidc::KeySet,
    operations::Call,
    tls::TlsListener,
};

/// Longest duration of a TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest wait for the keys of the OpenID provider at the start.
const DISCOVERY_PATIENCE: Duration = Duration::from_secs(5);

/// Options of the interface.
pub struct NotifybcOptions {
    /// TLS of the listener.
    pub tls: Option<TlsListener>,
    /// Keys of the OpenID provider, if there is one.
    pub keys: Option<Arc<KeySet>>,
    /// Current time.
    pub now: fn() -> Timestamp,
    /// Limits and times of connections. One beyond the limits is answered 503.
    pub connections: ConnectionOptions,
    /// Rate of requests from one network, except those of administrators. `None`: without limit.
    pub address_rate: Option<RateLimit>,
}

struct Face {
    notifybc: Arc<Notifybc>,
    options: NotifybcOptions,
    rates: Option<KeyedRateLimiter<IpAddr>>,
}

/// Serves the interface until `shutdown` completes; then takes no new connection, and lets the requests in flight
/// finish for at most `drain_patience`.
pub async fn serve(
    listener: TcpListener,
    notifybc: Arc<Notifybc>,
    options: NotifybcOptions,
    shutdown: impl Future<Output = ()> + Send,
) {
    let ending = CancellationToken::new();
    if let Some(keys) = options.keys.clone() {
        let ending = ending.clone();
        let following = keys.clone();
        tokio::spawn(async move { following.follow(ending).await });
        // The first requests find the keys, but an unavailable provider does not keep the server from starting.
        let _ = tokio::time::timeout(DISCOVERY_PATIENCE, keys.attempted()).await;
    }
    let connections = options.connections;
    let rates = options.address_rate.map(KeyedRateLimiter::new);
    let face = Arc::new(Face { notifybc, options, rates });
    let shutdown = async {
        shutdown.await;
        ending.cancel();
    };
    connections::accept(listener, connections, shutdown, drop, |stream, connection| {
        face.clone().connection(stream, connection)
    })
    .await;
}

impl Face {
    async fn connection(self: Arc<Self>, stream: WriteTimeout<TcpStream>, connection: Connection) {
        let mut peer = Peer { address: connection.peer, certificate_name: None, is_tls: false };
        let Some(tls) = &self.options.tls else {
            return self.requests(stream, peer, connection).await;
        };
        match tokio::time::timeout(HANDSHAKE_TIMEOUT, tls.acceptor.accept(stream)).await {
            Ok(Ok(stream)) => {
                peer.is_tls = true;
                peer.certificate_name = tls.verified_name(stream.get_ref().1.peer_certificates());
                self.requests(stream, peer, connection).await;
            }
            Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
            Err(_) => tracing::debug!("a TLS handshake took too long"),
        }
    }

    async fn requests<S>(&self, stream: S, peer: Peer, connection: Connection)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (peer, is_full) = (&peer, connection.is_full);
        let answer = |request: Request<IdleBody<Incoming>>| self.answer(peer, request.map(Body::new), is_full);
        connection.serve(stream, answer).await;
    }

    /// Answers a request, also when its operation panics.
    async fn answer(&self, peer: &Peer, request: Request<Body>, is_full: bool) -> Response<Body> {
        let began = std::time::Instant::now();
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let answered = AssertUnwindSafe(self.dispatch(peer, request, is_full)).catch_unwind().await;
        let mut answer = match answered {
            Ok(Ok(answer)) => answer,
            Ok(Err(refusal)) => refusal.answer(),
            Err(_) => {
                tracing::error!(%method, path, "a request broke its handler");
                ErrorAnswer::Failed(NotifybcError::Internal("panicked".to_owned())).answer()
            }
        };
        let status = answer.status().as_u16();
        tracing::debug!(%method, path, status, duration = ?began.elapsed(), "request of the NotifyBC interface");
        answer.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        answer
    }

    /// The way of a request: identity, endpoint, permission, operation.
    async fn dispatch(
        &self,
        peer: &Peer,
        request: Request<Body>,
        is_full: bool,
    ) -> Result<Response<Body>, ErrorAnswer> {
        host::check(&request).map_err(ErrorAnswer::Syntax)?;
        if !is_full {
            return Err(ErrorAnswer::Busy);
        }
        let (parts, body) = request.into_parts();
        let keys = self.options.keys.as_deref();
        let now = (self.options.now)();
        let root = &self.notifybc.configuration().rest_api_root;
        let path = parts.uri.path();
        if path == "/" && !root.is_empty() {
            return Ok(redirect(&format!("{root}/explorer/")));
        }
        let found = below(path, root).and_then(|path| endpoints::find(&parts.method, path));
        let Some((endpoint, id)) = found else {
            let target = parts.uri.path_and_query().map_or(path, |target| target.as_str());
            return Err(ErrorAnswer::NoRoute(parts.method.clone(), target.to_owned()));
        };
        let context = identity::context(&self.notifybc, keys, peer, &parts.headers, &parts.uri, now).await?;
        let is_limited = !matches!(context.identity.role, Role::SuperAdmin | Role::Admin);
        if let Some(rates) = self.rates.as_ref().filter(|_| is_limited)
            && let Err(wait) = rates.count(network(context.address))
        {
            return Err(ErrorAnswer::TooFast(wait));
        }
        if !permits(context.identity.role, endpoint.route) {
            return Err(ErrorAnswer::Forbidden);
        }
        let call = Call {
            notifybc: &self.notifybc,
            context: &context,
            id: id.as_deref(),
            uri: &parts.uri,
            headers: &parts.headers,
            authorization_url: keys.and_then(KeySet::authorization_url),
        };
        let action = format!("notifybc.{} {}", parts.method, endpoint.path);
        self.notifybc.audited(&context, &action, path, call.answer(endpoint.operation, body)).await
    }
}

/// The path below the root of the interface; letter case has no meaning.
fn below<'p>(path: &'p str, root: &str) -> Option<&'p str> {
    let (start, rest) = path.split_at_checked(root.len())?;
    (start.eq_ignore_ascii_case(root) && rest.starts_with('/')).then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s2_1_paths_are_below_the_root() {
        assert_eq!(below("/api/health", "/api"), Some("/health"));
        assert_eq!(below("/apis/health", "/api"), None);
        assert_eq!(below("/health", ""), Some("/health"));
        assert_eq!(below("/a", "/api"), None);
    }
}
