//! Connections: limits, timeouts and shutdown.

use std::{convert::Infallible, future::Future, pin::pin, sync::Arc, time::Duration};

use axum::{body::Body, http::Request, response::IntoResponse};
use hyper::body::Incoming;
use hyper_util::rt::{TokioIo, TokioTimer};
use tocsin_http_server::{
    framing::StrictFraming,
    host,
    idle_body::IdleBody,
    seats::{Seat, Seats},
    write_timeout::WriteTimeout,
};
use tocsin_pace::rate_limit::network;
use tocsin_service::Service;
use tokio::{
    io::AsyncWriteExt,
    net::{TcpListener, TcpStream},
    sync::{Semaphore, watch},
};
use tokio_util::sync::CancellationToken;

use crate::{
    app::App,
    compression, openapi,
    options::HttpOptions,
    problems::{Failure, MALFORMED_REQUEST},
    rate_limits::{Peer, RateLimits},
    request_metrics::Measures,
    routes,
};

/// Longest time for the head of a request of a connection beyond the limits.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(2);

/// Serves HTTP/1.1 until `shutdown` completes; then takes no new connection, lets the requests in flight finish for at
/// most `drain_patience`, and returns.
///
/// # Errors
/// The listener failed permanently.
pub async fn serve(
    listener: TcpListener,
    service: Arc<Service>,
    options: HttpOptions,
    shutdown: impl Future<Output = ()> + Send,
) -> std::io::Result<()> {
    let body_room = (options.body_memory_max / 1024).clamp(64 * 1024, Semaphore::MAX_PERMITS);
    let ending = CancellationToken::new();
    let app = Arc::new(App {
        service,
        metrics: options.metrics.clone(),
        sync: options.sync.clone(),
        receivers: options.receivers.clone(),
        scim: options.scim.clone(),
        directory: options.directory.clone(),
        body_room: Arc::new(Semaphore::new(body_room)),
        body_idle_timeout: options.body_idle_timeout,
        rate_limits: RateLimits::new(options.key_rate, options.address_rate),
        measures: Measures::default(),
        origins: options.origins.clone().into(),
        streams: Arc::new(Semaphore::new(options.streams_max)),
        heartbeat: options.stream_heartbeat,
        write_timeout: options.write_timeout,
        openapi: openapi::text,
        pages: options.pages.clone(),
        stopping: ending.clone(),
    });
    let router = routes::router(app);
    let seats = Seats::new(options.connections_max, options.connections_per_address_max, options.health_connections);
    let (stop, stopping) = watch::channel(());
    let mut shutdown = pin!(shutdown);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = &mut shutdown => break,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Too many open files, or a connection that was closed before it was accepted; the server continues.
                tracing::warn!(%error, "could not accept a connection");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        // An answer must not wait for the acknowledgement of the one before.
        let _ = stream.set_nodelay(true);
        let Some(seat) = seats.take(peer.ip()) else {
            metrics::counter!("tocsin_http_connections_refused_total").increment(1);
            reject_connection(stream);
            continue;
        };
        let is_full = matches!(seat, Seat::Full(..));
        let header_timeout = if is_full { options.header_timeout } else { options.header_timeout.min(HEALTH_TIMEOUT) };
        let (router, address) = (router.clone(), Peer(network(peer.ip())));
        let (idle, write_timeout) = (options.body_idle_timeout, options.write_timeout);
        let mut stopping = stopping.clone();
        tokio::spawn(async move {
            let open = metrics::gauge!("tocsin_http_connections");
            open.increment(1.0);
            let handle = hyper::service::service_fn(move |request: Request<Incoming>| {
                let mut request = request.map(|body| Body::new(IdleBody::new(body, idle)));
                request.extensions_mut().insert(address);
                let router = router.clone();
                async move { Ok::<_, Infallible>(answer(router, request, is_full).await) }
            });
            let mut builder = hyper::server::conn::http1::Builder::new();
            builder.timer(TokioTimer::new()).header_read_timeout(header_timeout).max_buf_size(256 * 1024);
            builder.keep_alive(is_full);
            let stream = TokioIo::new(WriteTimeout::new(StrictFraming::new(stream), write_timeout));
            let mut connection = pin!(builder.serve_connection(stream, handle));
            let ended = tokio::select! {
                ended = connection.as_mut() => ended,
                _ = stopping.changed() => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            };
            if let Err(error) = ended {
                tracing::debug!(%error, "a connection broke off");
            }
            open.decrement(1.0);
            drop(seat);
        });
    }
    drop(listener);
    drop(stop);
    ending.cancel();
    // Every seat is free again when every connection has ended.
    if tokio::time::timeout(options.drain_patience, seats.all_free()).await.is_err() {
        tracing::warn!("some connections did not end in time");
    }
    Ok(())
}

/// Answers one request: 400 to a bad `Host`, 503 to all but health checks where the connection is beyond a limit.
async fn answer(router: axum::Router, request: Request<Body>, is_full: bool) -> axum::response::Response {
    if let Err(reason) = host::check(&request) {
        return Failure::new(MALFORMED_REQUEST, reason).into_response();
    }
    if !is_full && !matches!(request.uri().path(), "/livez" | "/readyz") {
        metrics::counter!("tocsin_http_connections_refused_total").increment(1);
        return Failure::no_connection().into_response();
    }
    compression::answer(router, request).await
}

/// Answers 503 to a connection without a seat, and reads nothing from it. Does not wait for a slow reader.
fn reject_connection(mut stream: TcpStream) {
    const BODY: &str = r#"{"type":"/problems/busy","code":"too_many_connections","title":"There is no room just now","status":503,"detail":"too many connections are open"}"#;
    let answer = format!(
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/problem+json\r\nContent-Length: {}\r\n\
         Retry-After: 1\r\nConnection: close\r\n\r\n{BODY}",
        BODY.len()
    );
    tokio::spawn(async move {
        let polite = async {
            stream.write_all(answer.as_bytes()).await?;
            stream.shutdown().await
        };
        let _ = tokio::time::timeout(Duration::from_secs(1), polite).await;
    });
}
