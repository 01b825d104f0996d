//! Wiring of the receivers of webhooks, and their client for requests to providers.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::json;
use tocsin_connect::{Clock, SystemClock, files::Files, networks::Networks};
use tocsin_delivery::http::call::{Call, Caller, Returned};
use tocsin_service::{
    Service,
    receivers::{Fetch, Receivers},
};

use crate::failure::{Failure, Outcome};

/// Opens the receivers. Requests to providers are subject to the network policy of channels.
pub(super) fn open(
    service: Arc<Service>,
    networks: &Networks,
    files: &Files,
    public_url: Option<String>,
) -> Outcome<Arc<Receivers>> {
    let options = json!({ "url": "{url}", "method": "GET", "reply_bytes": 65_536 });
    let options = options.as_object().expect("an object");
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let caller = Caller::open(options, "", networks, files, clock).map_err(|problems| {
        let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
        Failure::failed(format!("cannot open the client of webhook receivers: {}", problems.join("; ")))
    })?;
    Ok(Arc::new(Receivers::new(service, Arc::new(PolicyClient(caller)), public_url)))
}

/// HTTP client within the network policy. Redirects are not followed.
struct PolicyClient(Caller);

#[async_trait]
impl Fetch for PolicyClient {
    async fn fetch(&self, url: &str) -> Result<Vec<u8>, String> {
        let property = |name: &str| (name == "url").then(|| url.to_owned());
        let call = Call {
            id: "sns",
            content_type: "",
            headers: &[],
            about: &[],
            body: &[],
            property: &property,
            signed: None,
        };
        match self.0.call(&call).await {
            Returned::Taken(reply) => Ok(reply.body),
            Returned::Deferred { reason, .. } | Returned::Refused(reason) => Err(reason.text),
        }
    }
}
