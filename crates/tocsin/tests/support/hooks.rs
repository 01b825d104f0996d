//! Webhook receiver that accepts and records every request.

use std::sync::Arc;

use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, Uri},
};
use parking_lot::Mutex;

/// Received request: URI, headers and body.
pub type Request = (String, HeaderMap, Bytes);

/// Recorded requests of all paths.
#[derive(Clone)]
pub struct Hooks {
    pub port: u16,
    answer: &'static str,
    received: Arc<Mutex<Vec<Request>>>,
}

impl Hooks {
    /// Starts the receiver on a free port; each request gets 200 with this body.
    pub async fn start(answer: &'static str) -> Hooks {
        let socket = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = socket.local_addr().expect("an address").port();
        let hooks = Hooks { port, answer, received: Arc::default() };
        let router = Router::new().fallback(receive).with_state(hooks.clone());
        tokio::spawn(async move { axum::serve(socket, router).await });
        hooks
    }

    /// All requests so far.
    pub fn all(&self) -> Vec<Request> {
        self.received.lock().clone()
    }
}

async fn receive(State(hooks): State<Hooks>, uri: Uri, headers: HeaderMap, body: Bytes) -> &'static str {
    hooks.received.lock().push((uri.to_string(), headers, body));
    hooks.answer
}
