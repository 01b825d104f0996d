//! Test server for commands: sends scripted responses in order and records the requests.

use std::{collections::VecDeque, sync::Arc};

use axum::{
    body::{Body, Bytes},
    extract::{Request, State},
    http::Response,
};
use expect_test::Expect;
use parking_lot::Mutex;
use serde_json::Value;

use crate::{client::Client, failure::Outcome, terminal::Terminal};

#[derive(Default)]
struct Script {
    answers: VecDeque<(u16, Value)>,
    requests: Vec<String>,
}

/// Server with scripted responses.
pub struct FakeServer {
    address: std::net::SocketAddr,
    script: Arc<Mutex<Script>>,
    task: tokio::task::JoinHandle<()>,
}

impl FakeServer {
    /// Sends these responses in order, then 599. Text is sent as is, other values as JSON; a member `retry_after`
    /// becomes the header.
    pub async fn start(answers: Vec<(u16, Value)>) -> Self {
        let script = Arc::new(Mutex::new(Script { answers: answers.into(), requests: Vec::new() }));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let app = axum::Router::new().fallback(answer).with_state(script.clone());
        let task = tokio::spawn(async move { axum::serve(listener, app).await.expect("it serves") });
        FakeServer { address, script, task }
    }

    /// Creates a client of this server.
    pub fn client(&self) -> Client {
        Client::new(format!("http://{}", self.address), Some("tocsin_a_b".into())).expect("a client")
    }

    /// Recorded requests: method, path, relevant headers and body.
    pub fn requests(&self) -> Vec<String> {
        self.script.lock().requests.clone()
    }
}

impl Drop for FakeServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn answer(State(script): State<Arc<Mutex<Script>>>, request: Request) -> Response<Body> {
    // The interface of NotifyBC below `/api` takes administrators by their address.
    if !request.uri().path().starts_with("/api/") {
        assert_eq!(request.headers()["authorization"], "Bearer tocsin_a_b");
    }
    let (parts, body) = request.into_parts();
    let body: Bytes = axum::body::to_bytes(body, 1 << 20).await.expect("a body");
    let mut line = format!("{} {}", parts.method, parts.uri);
    for name in ["content-type", "idempotency-key", "if-match", "if-none-match"] {
        if let Some(value) = parts.headers.get(name) {
            line += &format!(" [{}]", value.to_str().expect("text"));
        }
    }
    if !body.is_empty() {
        line += &format!(" {}", String::from_utf8_lossy(&body).trim_end());
    }
    let (status, value) = {
        let mut script = script.lock();
        script.requests.push(line);
        script.answers.pop_front().unwrap_or((599, Value::Null))
    };
    let body = match &value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let mut answer = Response::builder().status(status);
    if let Some(seconds) = value["retry_after"].as_u64() {
        answer = answer.header("retry-after", seconds);
    }
    answer.body(Body::from(body)).expect("an answer")
}

#[derive(clap::Parser)]
struct Command<A: clap::Args> {
    #[command(flatten)]
    args: A,
}

/// Runs a command against a server with these responses. Compares output, failure and requests with the expectation.
pub async fn check<A: clap::Args>(
    name: &str,
    args: &[&str],
    answers: Vec<(u16, Value)>,
    run: impl AsyncFnOnce(A, &Terminal, &Client) -> Outcome,
    expected: Expect,
) {
    let server = FakeServer::start(answers).await;
    let (terminal, captured) = Terminal::captured();
    let args = <Command<A> as clap::Parser>::parse_from([&[name], args].concat()).args;
    let end = match run(args, &terminal, &server.client()).await {
        Ok(()) => String::new(),
        Err(failure) => format!("failed: {failure}\n"),
    };
    expected.assert_eq(&format!("{}{end}{}", captured.text(), server.requests().join("\n")));
}
