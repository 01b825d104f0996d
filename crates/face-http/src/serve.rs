//! Connections: limits, timeouts and shutdown.

use std::{future::Future, sync::Arc, time::Duration};

use axum::{body::Body, http::Request, response::IntoResponse};
use hyper::body::Incoming;
use tocsin_http_server::{connections, host, idle_body::IdleBody};
use tocsin_pace::rate_limit::network;
use tocsin_service::Service;
use tokio::{
    io::AsyncWriteExt,
    net::{TcpListener, TcpStream},
    sync::Semaphore,
};
use tokio_util::sync::CancellationToken;

use crate::{
    app::App,
    compression, openapi,
    options::HttpOptions,
    problems::{Failure, MALFORMED_REQUEST},
    rate_limits::{Peer, RateLimits},
    request_metrics::Measures,
    routes, session_cookie,
};

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
        entries: options.entries.clone(),
        directory_imports: Arc::new(Semaphore::new(1)),
        directory: options.directory.clone(),
        body_room: Arc::new(Semaphore::new(body_room)),
        body_idle_timeout: options.connections.body_idle_timeout,
        rate_limits: RateLimits::new(options.key_rate, options.address_rate),
        measures: Measures::default(),
        origins: options.origins.clone().into(),
        streams: Arc::new(Semaphore::new(options.streams_max)),
        heartbeat: options.stream_heartbeat,
        write_timeout: options.connections.write_timeout,
        openapi: openapi::text,
        console: options.console,
        web_components: options.web_components,
        public_status: options.public_status,
        public_origin: options.public_url.as_deref().and_then(session_cookie::origin_of),
        openid: options.openid.clone(),
        has_notifybc: options.has_notifybc,
        is_https: options.public_url.as_deref().is_some_and(|url| url.starts_with("https://")),
        pages: options.pages.clone(),
        stopping: ending.clone(),
    });
    // Weak, as edits of devices go through the service.
    if let Some(sync) = options.sync.as_ref().map(Arc::downgrade) {
        app.service.summarise_sync(Arc::new(move || {
            let Some(sync) = sync.upgrade() else { return serde_json::Value::Null };
            let counts = sync.counts();
            serde_json::json!({
                "devices": sync.all_devices().len(),
                "sessions": sync.active_sessions().len(),
                "waiting_devices": sync.waiting_devices(),
                "rows": counts.rows,
                "events_waiting": counts.raised,
            })
        }));
    }
    let router = routes::router(app);
    let shutdown = async {
        shutdown.await;
        ending.cancel();
    };
    connections::accept(listener, options.connections, shutdown, reject_connection, |stream, connection| {
        let (router, address, is_full) = (router.clone(), Peer(network(connection.peer)), connection.is_full);
        async move {
            let open = metrics::gauge!("tocsin_http_connections");
            open.increment(1.0);
            let answer = |request: Request<IdleBody<Incoming>>| {
                let mut request = request.map(Body::new);
                request.extensions_mut().insert(address);
                answer(router.clone(), request, is_full)
            };
            connection.serve(stream, answer).await;
            open.decrement(1.0);
        }
    })
    .await;
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
