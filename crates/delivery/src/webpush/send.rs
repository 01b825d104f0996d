use std::{borrow::Cow, sync::Arc};

use async_trait::async_trait;
use http::Method;
use rustls::ClientConfig;
use tocsin_connect::Clock;
use tocsin_model::{
    content::{JsonUse, PartsUsed},
    id::Name,
    receipt::{Reason, ReasonKind},
};

use super::{
    classify::classify,
    encrypt::{TEXT_BYTES_MAX, encrypt},
    options::WebPushOptions,
    payload::{payload, topic, urgency},
    subscription::{Subscription, endpoint},
    vapid::Vapid,
};
use crate::{
    channel::Context,
    http::{
        client::{Attempt, origin, send_classified, serve},
        connect::{Connections, Dial, Target},
        request::Request,
        response::Verdict,
    },
    pending::PendingDelivery,
    queue::Queue,
    running::ProtocolSender,
};

/// Parts of a content in a message.
pub(super) const PARTS: PartsUsed =
    PartsUsed { subject: true, text: true, sms: true, json: JsonUse::Always, ..PartsUsed::NONE };

/// State that the sessions of a channel share.
pub(super) struct WebPushSender {
    name: Name,
    options: WebPushOptions,
    vapid: Vapid,
    connections: Connections,
    /// Whether the operator has allowed private networks, so that unencrypted endpoints are accepted.
    allows_plain: bool,
    clock: Arc<dyn Clock>,
    queue: Arc<Queue>,
}

/// The destination of an address: scheme, host and port of its push service.
pub(super) fn lane_of(address: &str) -> Cow<'_, str> {
    match endpoint(address) {
        Cow::Borrowed(url) => origin(url),
        Cow::Owned(url) => origin(&url).into_owned().into(),
    }
}

impl WebPushSender {
    /// The options must be free of problems.
    pub fn new(
        name: &Name,
        options: WebPushOptions,
        dial: Arc<dyn Dial>,
        trust: Arc<ClientConfig>,
        context: &Context,
        queue: Arc<Queue>,
    ) -> Self {
        let vapid = Vapid::new(&options.public_key, &options.private_key, &options.subject);
        let vapid = vapid.unwrap_or_else(|(option, text)| panic!("checked options have good keys: {option}: {text}"));
        let connections = options.client.connections(dial, &trust, context);
        let allows_plain = !options.client.allow_networks.is_empty();
        WebPushSender {
            name: name.clone(),
            options,
            vapid,
            connections,
            allows_plain,
            clock: context.clock.clone(),
            queue,
        }
    }

    /// Sends one request after the other, until the queue is closed.
    pub async fn run(self: Arc<Self>) {
        serve(&*self, &self.name, &self.queue, &self.connections, &self.options.client).await;
    }
}

impl Attempt for WebPushSender {
    async fn attempt(&self, pending: &mut PendingDelivery) -> Verdict {
        if let Some(reason) = pending.too_late() {
            return Verdict::refused(reason.kind, reason.text);
        }
        let (message, now) = (&pending.outgoing.message, self.clock.now());
        let subscription = match Subscription::read(&pending.outgoing.address) {
            Ok(subscription) => subscription,
            Err(text) => return Verdict::refused(ReasonKind::Address, text),
        };
        if subscription.ends_at_millis.is_some_and(|end| end <= now.as_millis() as f64) {
            return Verdict::refused(ReasonKind::Gone, "the browser's subscription is over");
        }
        let target = match Target::parse(&subscription.endpoint) {
            Ok(target) if target.site.secure || self.allows_plain => target,
            Ok(_) => {
                return Verdict::refused(ReasonKind::Address, "the endpoint of a push service starts with `https://`");
            }
            Err(text) => return Verdict::refused(ReasonKind::Address, text),
        };
        let payload = match payload(message, pending.outgoing.unsubscribe.as_deref()) {
            Ok(payload) => payload,
            Err(bytes) => {
                let text = format!("the message has {bytes} bytes; a push service accepts up to {TEXT_BYTES_MAX}");
                return Verdict::refused(ReasonKind::Format, text);
            }
        };
        let body = match encrypt(&payload, &subscription.keys) {
            Ok(body) => body,
            Err(text) => return Verdict::refused(ReasonKind::Address, text),
        };
        let Some(authorization) = self.vapid.authorization(&target.site.origin, now) else {
            return Verdict::deferred(Reason::new(
                ReasonKind::Internal,
                "the token for the push service could not be signed",
            ));
        };
        // A message that has not expired has at least a moment left.
        let left = message.expires_at.map_or(u64::MAX, |end| end.since(now).as_secs().max(1));
        let ttl = u64::from(self.options.ttl_seconds).min(left);
        let mut request = Request::new(&Method::POST, &target, body.len());
        request.field("content-type", "application/octet-stream");
        request.field("content-encoding", "aes128gcm");
        request.field("authorization", authorization);
        request.field("ttl", ttl.to_string());
        request.field("urgency", urgency(message.priority));
        if let Some(topic) = topic(message) {
            request.field("topic", topic);
        }
        let request = request.with_body(&body);
        pending.sent();
        let read = |response| classify(&response, self.clock.now(), self.options.client.retry_after_max.0);
        send_classified(&self.connections, &target, &request, self.options.client.timeout, read).await
    }
}

#[async_trait]
impl ProtocolSender for WebPushSender {
    /// Push services are named by the devices, so there is no server to check.
    async fn probe(&self) -> Result<String, Reason> {
        Ok(format!("messages are signed with the key {}", self.vapid.public()))
    }

    fn down(&self) -> Option<Reason> {
        None
    }

    fn parts_used(&self) -> PartsUsed {
        PARTS
    }
}
