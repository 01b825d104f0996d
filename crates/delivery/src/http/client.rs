//! The client of all protocols over HTTP: its options, and the loop of a session that sends one message a request.

use std::{borrow::Cow, sync::Arc, time::Duration};

use rustls::ClientConfig;
use schemars::JsonSchema;
use serde::Deserialize;
use tocsin_connect::{networks::Network, options::Wait, tls::CertificateOptions};
use tocsin_model::{
    id::Name,
    receipt::{Disposition, Reason, ReasonKind},
};
use tokio::time::timeout;

use super::{
    connect::{Connections, Dial, NoResponse, Target},
    response::{Load, Response, Verdict},
};
use crate::{
    channel::Context,
    flow::lanes::Signal,
    pending::PendingDelivery,
    queue::{Queue, Turn},
};

/// Options of requests to addresses within the network policy.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ClientOptions {
    /// Timeout of the whole request: name resolution, connection, encryption and the complete response.
    pub timeout: Wait,
    /// An idle connection is closed after this time.
    pub idle_timeout: Wait,
    /// Longest `Retry-After` of a server that is respected.
    pub retry_after_max: Wait,
    /// Non-public networks that may be connected to: `10.0.0.0/8`, `127.0.0.1`.
    pub allow_networks: Vec<Network>,
    /// Hosts that may be connected to, whatever address they resolve to.
    pub allow_hosts: Vec<String>,
    /// Certificates.
    #[serde(flatten)]
    pub certificates: CertificateOptions,
}

impl Default for ClientOptions {
    fn default() -> Self {
        ClientOptions {
            timeout: Wait::seconds(15),
            idle_timeout: Wait::seconds(30),
            retry_after_max: Wait::seconds(24 * 3600),
            allow_networks: Vec::new(),
            allow_hosts: Vec::new(),
            certificates: CertificateOptions::default(),
        }
    }
}

impl ClientOptions {
    /// The connections of a channel with these options.
    pub(crate) fn connections(&self, dial: Arc<dyn Dial>, trust: &ClientConfig, context: &Context) -> Connections {
        let networks = context.networks.with(&self.allow_networks, &self.allow_hosts);
        Connections::new(dial, trust.clone(), networks, self.idle_timeout.0)
    }
}

/// A sender of requests, each for one message.
pub(crate) trait Attempt {
    /// Sends a message, and classifies the response.
    fn attempt(&self, pending: &mut PendingDelivery) -> impl Future<Output = Verdict> + Send;
}

/// Sends one request after the other, until the queue is closed.
pub(crate) async fn serve(
    sender: &impl Attempt,
    name: &Name,
    queue: &Arc<Queue>,
    connections: &Connections,
    options: &ClientOptions,
) {
    let mut next = None;
    while let Some((turn, mut pending)) = next_of(queue, next.take(), connections, options.idle_timeout.0).await {
        let verdict = sender.attempt(&mut pending).await;
        next = queue.done(turn, signal(&verdict), name).await;
        pending.answer(verdict.disposition).await;
    }
}

/// The next message of a session: `ready`, or the next of the queue. Connections that are idle for `idle` are closed
/// meanwhile. `None` when the queue is closed.
pub(crate) async fn next_of(
    queue: &Arc<Queue>,
    given: Option<(Turn, PendingDelivery)>,
    connections: &Connections,
    idle: Duration,
) -> Option<(Turn, PendingDelivery)> {
    if given.is_some() {
        return given;
    }
    loop {
        match timeout(idle, queue.take()).await {
            Ok(taken) => return taken,
            Err(_) => connections.sweep(),
        }
    }
}

/// Sends a request and classifies its response, or the failure to get one.
pub(crate) async fn send_classified(
    connections: &Connections,
    target: &Target,
    request: &[u8],
    patience: Wait,
    classify: impl FnOnce(Response) -> Verdict,
) -> Verdict {
    match timeout(patience.0, connections.exchange(target, request)).await {
        Ok(Ok(response)) => classify(response),
        Ok(Err(NoResponse::Failed(reason))) => Verdict::deferred(reason),
        Ok(Err(NoResponse::Closed(reason))) => Verdict::refused(reason.kind, reason.text),
        Err(_) => {
            let text = format!("no complete response within {patience}");
            Verdict::deferred(Reason::new(ReasonKind::Timeout, text))
        }
    }
}

/// Scheme, host and port of a URL as written. Everything after the host may be missing.
pub(crate) fn origin(url: &str) -> Cow<'_, str> {
    let start = url.find("//").map_or(0, |at| at + 2);
    let (mut end, mut at) = (url.len(), None);
    for (place, byte) in url.bytes().enumerate().skip(start) {
        match byte {
            b'/' | b'?' | b'#' | b'\\' => {
                end = place;
                break;
            }
            b'@' => at = Some(place),
            _ => {}
        }
    }
    match at {
        // It will be refused; a list of destinations must not show the password.
        Some(at) => format!("{}{}", &url[..start], &url[at + 1..end]).into(),
        None => url[..end].into(),
    }
}

/// The flow-control signal of a verdict.
pub(crate) fn signal(verdict: &Verdict) -> Signal {
    match &verdict.disposition {
        Disposition::Deferred { retry_after, .. } if verdict.load == Load::Less => Signal::Slower(*retry_after),
        Disposition::Deferred { .. } if verdict.load == Load::Unknown => Signal::Unasked,
        Disposition::Delivered { .. } => Signal::Fine,
        Disposition::Refused { reason } => match reason.kind {
            ReasonKind::Answer | ReasonKind::Gone => Signal::Fine,
            _ => Signal::Unasked,
        },
        Disposition::Deferred { reason, .. } => match reason.kind {
            ReasonKind::Answer if verdict.load == Load::Over => Signal::Overloaded(reason.text.clone()),
            ReasonKind::Answer | ReasonKind::Authentication => Signal::Failed(reason.text.clone()),
            _ => Signal::Silent(reason.text.clone()),
        },
    }
}
