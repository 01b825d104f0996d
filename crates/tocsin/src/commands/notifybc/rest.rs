//! Records of a running NotifyBC, by its REST interface.

use std::time::Duration;

use serde_json::{Value, json};
use tocsin_notifybc::record::{Collection, Document};
use tokio::sync::mpsc::Sender;

use super::Batch;
use crate::{
    client::with_query,
    failure::{Failure, Outcome},
};

/// Records of a page.
const PAGE: usize = 500;
/// Maximum size of a page in bytes.
const PAGE_BYTES_MAX: usize = 256 << 20;
/// Time limit of a page.
const PAGE_TIMEOUT: Duration = Duration::from_secs(120);
/// Collections with a list, and their routes.
const LISTS: [(Collection, &str); 5] = [
    (Collection::Configuration, "configurations"),
    (Collection::Administrator, "administrators"),
    (Collection::Subscription, "subscriptions"),
    (Collection::Bounce, "bounces"),
    (Collection::Notification, "notifications"),
];
/// Parts of an installation that its interface does not show.
const NOTES: [&str; 2] = [
    "passwords of administrators are not readable by REST: take a dump, or set new passwords",
    "histories of feeds are not readable by REST: the first poll sends all items, unless they come from a dump",
];

/// A running installation.
pub(super) struct Installation {
    base: String,
    token: Option<String>,
    http: reqwest::Client,
}

impl Installation {
    /// The installation with this base URL.
    ///
    /// # Errors
    /// No HTTP client can be created.
    pub fn new(base: &str, token: Option<String>) -> Outcome<Installation> {
        let http = reqwest::Client::builder()
            .user_agent(concat!("tocsin/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(Duration::from_secs(10))
            .redirect(reqwest::redirect::Policy::none())
            .timeout(PAGE_TIMEOUT)
            .build()
            .map_err(|error| Failure::failed("cannot create the HTTP client").because(&error))?;
        Ok(Installation { base: base.trim_end_matches('/').to_owned(), token, http })
    }

    /// Reads all records and sends them in batches. Returns remarks on parts that cannot be read.
    ///
    /// # Errors
    /// The installation is unreachable, or refuses a request.
    pub async fn read(&self, batches: &Sender<Batch>) -> Outcome<Vec<String>> {
        for (collection, route) in LISTS {
            let mut after: Option<String> = None;
            loop {
                let mut filter = json!({"order": "_id", "limit": PAGE});
                if let Some(after) = &after {
                    filter["where"] = json!({"id": {"$gt": after}});
                }
                let page = self.page(&with_query(&format!("/{route}"), &[("filter", &filter.to_string())])).await?;
                let is_last = page.len() < PAGE;
                let ids: Vec<String> = page.iter().filter_map(|document| Some(id(document)?.to_owned())).collect();
                let reached = ids.last().cloned();
                if !is_last && reached <= after {
                    return Err(Failure::failed(format!("{}/{route} does not list its records by id", self.base)));
                }
                after = reached;
                if !self.send(collection, page, batches).await {
                    return Ok(Vec::new());
                }
                if collection == Collection::Administrator {
                    for administrator in ids {
                        let route = format!("/administrators/{administrator}/access-tokens");
                        let tokens = self.page(&route).await?;
                        if !self.send(Collection::AccessToken, tokens, batches).await {
                            return Ok(Vec::new());
                        }
                    }
                }
                if is_last {
                    break;
                }
            }
        }
        Ok(NOTES.map(str::to_owned).to_vec())
    }

    async fn send(&self, collection: Collection, documents: Vec<Document>, batches: &Sender<Batch>) -> bool {
        let mut batch = Batch::new(collection);
        documents.into_iter().for_each(|document| batch.put(document));
        batches.send(batch).await.is_ok()
    }

    async fn page(&self, path: &str) -> Outcome<Vec<Document>> {
        let url = format!("{}{path}", self.base);
        let failed = |error: &dyn std::error::Error| {
            Failure::failed(format!("cannot read {} of the NotifyBC at {}", route_of(path), self.base))
                .detail(error.to_string())
        };
        let mut request = self.http.get(&url);
        if let Some(token) = &self.token {
            request = request.header("authorization", token);
        }
        let mut response = request.send().await.map_err(|error| failed(&error.without_url()))?;
        let status = response.status();
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| failed(&error.without_url()))? {
            if body.len() + chunk.len() > PAGE_BYTES_MAX {
                let message = format!("{} sends more than {} MiB", route_of(path), PAGE_BYTES_MAX >> 20);
                return Err(Failure::failed(message));
            }
            body.extend_from_slice(&chunk);
        }
        match status.as_u16() {
            200 => {}
            401 | 403 => {
                let message = format!("NotifyBC refuses {} ({status})", route_of(path));
                return Err(Failure::failed(message).detail(
                    "all records are shown to a super-admin: run the import at an address of `adminIps`; \
                     --token suffices for subscriptions and notifications only",
                ));
            }
            _ => return Err(Failure::failed(format!("NotifyBC answers {} with {status}", route_of(path)))),
        }
        let found: Value = serde_json::from_slice(&body).map_err(|error| failed(&error))?;
        let Value::Array(items) = found else {
            return Err(Failure::failed(format!("NotifyBC answers {} without a list", route_of(path))));
        };
        Ok(items
            .into_iter()
            .filter_map(|item| if let Value::Object(item) = item { Some(item) } else { None })
            .collect())
    }
}

fn id(document: &Document) -> Option<&str> {
    document.get("id")?.as_str()
}

/// The path without its query.
fn route_of(path: &str) -> &str {
    path.split_once('?').map_or(path, |(path, _)| path)
}
