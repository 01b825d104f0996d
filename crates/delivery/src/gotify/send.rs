use std::{borrow::Cow, sync::Arc};

use async_trait::async_trait;
use http::Method;
use rustls::ClientConfig;
use tocsin_connect::Clock;
use tocsin_model::{
    content::{JsonUse, PartsUsed},
    id::Name,
    receipt::{Disposition, Reason, ReasonKind},
};

use super::{
    classify::{TokenOwner, classify},
    message::body,
    options::{GotifyOptions, is_token},
};
use crate::{
    channel::Context,
    http::{
        client::{Attempt, origin, send_classified, serve},
        connect::{Connections, Dial, Target},
        request::Request,
        response::{Load, Response, Verdict},
    },
    pending::PendingDelivery,
    queue::Queue,
    running::ProtocolSender,
};

/// Parts of a content in a message; JSON contains its extras.
pub(super) const PARTS: PartsUsed = PartsUsed { subject: true, text: true, json: JsonUse::Always, ..PartsUsed::NONE };

/// State that the sessions of a channel share.
pub(super) struct GotifySender {
    name: Name,
    options: GotifyOptions,
    /// `/message` of the server.
    target: Target,
    connections: Connections,
    clock: Arc<dyn Clock>,
    queue: Arc<Queue>,
}

impl GotifySender {
    /// The options must be free of problems.
    pub fn new(
        name: &Name,
        options: GotifyOptions,
        dial: Arc<dyn Dial>,
        trust: Arc<ClientConfig>,
        context: &Context,
        queue: Arc<Queue>,
    ) -> Self {
        let target = options.target("/message").expect("checked options have a good URL");
        let connections = options.client.connections(dial, &trust, context);
        GotifySender { name: name.clone(), options, target, connections, clock: context.clock.clone(), queue }
    }

    /// The destination of all messages: scheme, host and port of the server.
    pub fn lane<'a>(&self) -> Cow<'a, str> {
        origin(&self.options.url).into_owned().into()
    }

    /// Sends one request after the other, until the queue is closed.
    pub async fn run(self: Arc<Self>) {
        serve(&*self, &self.name, &self.queue, &self.connections, &self.options.client).await;
    }
}

impl Attempt for GotifySender {
    async fn attempt(&self, pending: &mut PendingDelivery) -> Verdict {
        if let Some(reason) = pending.too_late() {
            return Verdict::refused(reason.kind, reason.text);
        }
        let (token, owner) = match &self.options.token {
            Some(token) => (token.clone(), TokenOwner::Channel),
            None => (pending.outgoing.address.trim().to_owned(), TokenOwner::Device),
        };
        if !is_token(&token) {
            return Verdict::refused(ReasonKind::Address, "the address is not the token of a Gotify application");
        }
        let body = match body(&pending.outgoing.message, &self.options) {
            Ok(body) => body,
            Err(text) => return Verdict::refused(ReasonKind::Format, text),
        };
        let mut request = Request::new(&Method::POST, &self.target, body.len());
        request.field("content-type", "application/json");
        request.field("user-agent", concat!("Tocsin/", env!("CARGO_PKG_VERSION")));
        request.field("x-gotify-key", token);
        for (name, value) in pending.outgoing.message.trace_headers() {
            request.field(name, value);
        }
        let request = request.with_body(&body);
        pending.sent();
        let read = |response| classify(&response, owner, self.clock.now(), self.options.client.retry_after_max.0);
        send_classified(&self.connections, &self.target, &request, self.options.client.timeout, read).await
    }
}

#[async_trait]
impl ProtocolSender for GotifySender {
    /// Requests `/health`, which needs no token.
    async fn probe(&self) -> Result<String, Reason> {
        let target = self.options.target("/health").expect("checked options have a good URL");
        let request = Request::new(&Method::GET, &target, 0).with_body(&[]);
        let read = |response: Response| {
            let health = response.json().and_then(|body| Some(body.get("health")?.as_str()?.to_owned()));
            match health {
                Some(health) if response.status == 200 => {
                    let reply = format!("the health of {} is {health}", self.lane());
                    Verdict { disposition: Disposition::Delivered { reply }, load: Load::Fine }
                }
                _ => Verdict::refused(ReasonKind::Answer, format!("{} is not a healthy Gotify", self.lane())),
            }
        };
        match send_classified(&self.connections, &target, &request, self.options.client.timeout, read).await.disposition
        {
            Disposition::Delivered { reply } => Ok(reply),
            Disposition::Deferred { reason, .. } | Disposition::Refused { reason } => Err(reason),
        }
    }

    fn down(&self) -> Option<Reason> {
        None
    }

    fn parts_used(&self) -> PartsUsed {
        PARTS
    }
}
