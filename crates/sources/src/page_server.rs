//! A server of one page, for the tests of the kinds that poll.

use std::sync::Arc;

use axum::{
    Router,
    extract::State,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
    routing::get,
};
use serde_json::{Value as Json, json};
use tokio::{net::TcpListener, sync::Mutex};

use crate::testing::Harness;

/// A page, and its requests.
#[derive(Clone, Default)]
pub(crate) struct Page {
    pub text: Arc<Mutex<String>>,
    /// The status of each response.
    pub answers: Arc<Mutex<Vec<u16>>>,
}

async fn answer(State(page): State<Page>, headers: HeaderMap) -> Response {
    let text = page.text.lock().await.clone();
    let etag = format!("\"{}\"", text.len());
    let (status, answer) = match text.as_str() {
        "busy" => (503, (StatusCode::SERVICE_UNAVAILABLE, [("retry-after", "17")]).into_response()),
        wish if wish.starts_with("wish:") => {
            (429, (StatusCode::TOO_MANY_REQUESTS, [("retry-after", wish[5..].to_owned())]).into_response())
        }
        _ if headers.get("if-none-match").is_some_and(|known| known.as_bytes() == etag.as_bytes()) => {
            (304, StatusCode::NOT_MODIFIED.into_response())
        }
        _ => (200, ([("etag", etag)], text).into_response()),
    };
    page.answers.lock().await.push(status);
    answer
}

/// A server of one page, and a source that polls it.
pub(crate) async fn polled(kind: &'static str, mut options: Json) -> (Page, Harness) {
    let page = Page::default();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    let router = Router::new().route("/page", get(answer)).with_state(page.clone());
    tokio::spawn(async move { axum::serve(listener, router).await });
    options["url"] = json!(format!("http://{address}/page"));
    options["every"] = json!("1ms");
    options["allow_networks"] = json!(["127.0.0.1"]);
    (page, Harness::new(kind, options))
}
