use std::ops::Range;

use async_trait::async_trait;
use serde_json::{Value as Json, json};

use crate::{
    conformance::{Oversize, Subject, exercise, silent_server},
    page_server::{Page, polled},
    testing::Harness,
};

/// The JSON Feed of the present source, and its items.
#[derive(Default)]
struct Conforming {
    page: Page,
    items: Vec<Json>,
}

impl Conforming {
    async fn publish(&self) {
        let feed = json!({"version": "https://jsonfeed.org/version/1.1", "title": "quakes", "items": self.items});
        *self.page.text.lock().await = feed.to_string();
    }
}

#[async_trait(?Send)]
impl Subject for Conforming {
    async fn harness(&mut self) -> Harness {
        let (page, harness) = polled("feed", json!({"fields": {"id": "id"}, "page_bytes_max": 1 << 20})).await;
        *self = Conforming { page, items: Vec::new() };
        self.publish().await;
        harness
    }

    async fn put(&mut self, numbers: Range<u32>) {
        self.items.extend(numbers.map(|number| json!({"id": format!("q{number}"), "content_text": "It shook."})));
        self.publish().await;
    }

    async fn put_oversize(&mut self, number: u32) -> Oversize {
        self.items.push(json!({"id": format!("q{number}"), "content_text": "x".repeat(2 << 20)}));
        self.publish().await;
        Oversize::Fails
    }

    async fn remove_oversize(&mut self) {
        self.items.pop();
        self.publish().await;
    }

    async fn silent(&mut self) -> Option<Json> {
        let url = format!("http://{}/page", silent_server().await);
        Some(json!({"url": url, "timeout": "200ms", "every": "1ms", "allow_networks": ["127.0.0.1"]}))
    }
}

#[tokio::test]
async fn it_conforms() {
    exercise(&mut Conforming::default()).await;
}
