use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, header};
use http_body_util::Full;
use rustls::ClientConfig;
use serde::Serialize;
use tocsin_model::{
    content::header_objection,
    id::Name,
    receipt::{Disposition, Reason, ReasonKind},
    time::Timestamp,
};
use tokio::time::timeout;

use super::{
    connect::{Connections, Dial, NoResponse, Target, disposition},
    options::HttpOptions,
    sign::Signer,
};
use crate::{
    channel::{Clock, Context, Outgoing},
    flow::lanes::Signal,
    queue::{FarSide, Pending, Queue},
};

/// What the sessions of a channel share.
pub(super) struct Courier {
    name: Name,
    options: HttpOptions,
    signer: Option<Signer>,
    headers: HeaderMap,
    connections: Connections,
    clock: Arc<dyn Clock>,
    queue: Arc<Queue>,
}

/// A destination: scheme, host and port as written.
pub(super) fn lane_of(address: &str) -> Arc<str> {
    let start = address.find("//").map_or(0, |at| at + 2);
    let end = address[start..].find(['/', '?', '#', '\\']).map_or(address.len(), |at| start + at);
    Arc::from(&address[..end])
}

/// The body of Standard Webhooks.
#[derive(Serialize)]
struct Payload<'a> {
    id: &'a str,
    r#type: &'a Name,
    timestamp: Timestamp,
    data: &'a serde_json::Map<String, serde_json::Value>,
}

impl Courier {
    /// The options must be free of problems.
    pub fn new(
        name: &Name,
        options: HttpOptions,
        dial: Arc<dyn Dial>,
        trust: Arc<ClientConfig>,
        context: &Context,
        queue: Arc<Queue>,
    ) -> Self {
        let signer =
            options.secret.as_deref().map(|secret| Signer::new(secret).expect("checked options have good secrets"));
        let mut headers = HeaderMap::from_iter([
            (header::CONTENT_TYPE, HeaderValue::from_static("application/json")),
            (header::USER_AGENT, HeaderValue::from_static(concat!("Tocsin/", env!("CARGO_PKG_VERSION")))),
        ]);
        for (name, value) in &options.headers {
            let (name, value) = (HeaderName::try_from(name.as_str()), HeaderValue::try_from(value.as_str()));
            headers.insert(
                name.expect("checked options have good names"),
                value.expect("checked options have good values"),
            );
        }
        let networks = context.networks.with(&options.allow_networks, &options.allow_hosts);
        let connections = Connections::new(dial, (*trust).clone(), networks, options.idle_timeout.0);
        Courier { name: name.clone(), options, signer, headers, connections, clock: context.clock.clone(), queue }
    }

    /// One request after the other, until the queue is closed.
    pub async fn run(self: Arc<Self>) {
        // Messages to one destination often follow each other.
        let (mut latest, mut next) = (None, None);
        loop {
            let (turn, mut pending) = match next.take() {
                Some(taken) => taken,
                None => match timeout(self.options.idle_timeout.0, self.queue.take()).await {
                    Ok(Some(taken)) => taken,
                    Ok(None) => return,
                    Err(_) => {
                        self.connections.sweep();
                        continue;
                    }
                },
            };
            let disposition = self.attempt(&mut pending, &mut latest).await;
            next = self.queue.done(turn, signal(&disposition), &self.name).await;
            pending.answer(disposition).await;
        }
    }

    async fn attempt(&self, pending: &mut Pending, latest: &mut Option<Target>) -> Disposition {
        let refused = |kind, text: String| Disposition::Refused { reason: Reason::new(kind, text) };
        if pending.expired() {
            return refused(ReasonKind::Expired, "its time was over before it was sent".into());
        }
        let address = &pending.outgoing.address;
        let target =
            match latest.take().filter(|target| target.text == *address).map_or_else(|| Target::parse(address), Ok) {
                Ok(target) => &*latest.insert(target),
                Err(text) => return refused(ReasonKind::Address, text),
            };
        let Ok(id) = HeaderValue::try_from(&pending.outgoing.message.message_id) else {
            return refused(ReasonKind::Format, "the message id holds characters that no header field may hold".into());
        };
        pending.sent();
        let body = body(&pending.outgoing);
        let seconds = self.clock.now().as_millis().div_euclid(1000);
        let signature =
            self.signer.as_ref().map(|signer| signer.sign(&pending.outgoing.message.message_id, seconds, &body));
        let content = &pending.outgoing.message.content;
        let request = || {
            let mut request = Request::new(Full::new(body.clone()));
            *request.method_mut() = Method::POST;
            *request.uri_mut() = target.path.clone();
            let headers = request.headers_mut();
            headers.reserve(self.headers.len() + 5);
            headers.insert(header::HOST, target.authority.clone());
            for (name, value) in &self.headers {
                headers.insert(name.clone(), value.clone());
            }
            for (name, value) in &content.headers {
                // What a request cannot hold, templates cannot make; their checker saw to it.
                let name = HeaderName::try_from(name.as_str()).ok().filter(|_| header_objection(name).is_none());
                if let Some((name, value)) = name.zip(HeaderValue::from_bytes(value.as_bytes()).ok()) {
                    headers.insert(name, value);
                }
            }
            headers.insert(HeaderName::from_static("webhook-id"), id.clone());
            headers.insert(HeaderName::from_static("webhook-timestamp"), HeaderValue::from(seconds));
            if let Some(signature) = signature.as_deref().and_then(|signature| HeaderValue::from_str(signature).ok()) {
                headers.insert(HeaderName::from_static("webhook-signature"), signature);
            }
            request
        };
        match timeout(self.options.timeout.0, self.connections.exchange(target, request)).await {
            Ok(Ok(response)) => disposition(&response, self.clock.now(), self.options.retry_after_max.0),
            Ok(Err(NoResponse::Trouble(reason))) => Disposition::Deferred { reason, retry_after: None },
            Ok(Err(NoResponse::Closed(reason))) => Disposition::Refused { reason },
            Err(_) => {
                let text = format!("no complete response within {}", self.options.timeout);
                Disposition::Deferred { reason: Reason::new(ReasonKind::Timeout, text), retry_after: None }
            }
        }
    }
}

/// The template's JSON, or the payload of Standard Webhooks.
fn body(outgoing: &Outgoing) -> Bytes {
    if let Some(json) = &outgoing.message.content.json {
        return Bytes::copy_from_slice(json.as_bytes());
    }
    let payload = Payload {
        id: &outgoing.message.message_id,
        r#type: &outgoing.message.facts.class,
        timestamp: outgoing.message.formatted_at,
        data: &outgoing.message.facts.fields,
    };
    serde_json::to_vec(&payload).expect("text, a time and JSON become JSON").into()
}

/// What a disposition says about its destination.
fn signal(disposition: &Disposition) -> Signal {
    let reason = match disposition {
        Disposition::Delivered { .. } => return Signal::Fine,
        Disposition::Deferred { retry_after: Some(wait), .. } => return Signal::Slower(Some(*wait)),
        Disposition::Deferred { reason, .. } | Disposition::Refused { reason } => reason,
    };
    match (reason.kind, disposition) {
        (ReasonKind::Connection | ReasonKind::Timeout | ReasonKind::Tls, _) => Signal::Silent(reason.text.clone()),
        (ReasonKind::Answer, Disposition::Deferred { .. }) if reason.text.starts_with("429") => Signal::Slower(None),
        (ReasonKind::Answer, Disposition::Deferred { .. }) => Signal::Failed(reason.text.clone()),
        (ReasonKind::Answer, _) => Signal::Fine,
        _ => Signal::Unasked,
    }
}

#[async_trait]
impl FarSide for Courier {
    /// Far sides are the devices' own, so there is none to reach.
    async fn probe(&self) -> Result<String, Reason> {
        let signed = if self.signer.is_some() { "signed" } else { "not signed" };
        Ok(format!("requests are {signed}; their far sides are named by the devices"))
    }

    fn down(&self) -> Option<Reason> {
        None
    }
}
