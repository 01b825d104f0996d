//! Webhook receiver that accepts and records every request.

use std::sync::Arc;

use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, StatusCode, Uri},
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
    refused: Arc<Mutex<Vec<String>>>,
}

impl Hooks {
    /// Starts the receiver on a free port; each request gets 200 with this body.
    pub async fn start(answer: &'static str) -> Hooks {
        let socket = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = socket.local_addr().expect("an address").port();
        let hooks = Hooks { port, answer, received: Arc::default(), refused: Arc::default() };
        let router = Router::new().fallback(receive).with_state(hooks.clone());
        tokio::spawn(async move { axum::serve(socket, router).await });
        hooks
    }

    /// Answers requests whose URI contains this text with 400 from now on.
    pub fn set_refused(&self, part: &str) {
        self.refused.lock().push(part.to_owned());
    }

    /// All requests so far.
    pub fn all(&self) -> Vec<Request> {
        self.received.lock().clone()
    }
}

async fn receive(State(hooks): State<Hooks>, uri: Uri, headers: HeaderMap, body: Bytes) -> (StatusCode, &'static str) {
    let is_refused = hooks.refused.lock().iter().any(|part| uri.to_string().contains(part.as_str()));
    hooks.received.lock().push((uri.to_string(), headers, body));
    (if is_refused { StatusCode::BAD_REQUEST } else { StatusCode::OK }, hooks.answer)
}
