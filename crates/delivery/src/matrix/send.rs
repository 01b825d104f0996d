use std::{borrow::Cow, sync::Arc, time::Duration};

use async_trait::async_trait;
use http::Method;
use quick_cache::sync::Cache;
use rustls::ClientConfig;
use tocsin_connect::Clock;
use tocsin_model::{
    content::PartsUsed,
    id::Name,
    receipt::{Disposition, Reason, ReasonKind},
    time::Timestamp,
};

use super::{
    classify::{ID_BYTES_MAX, RoomRefusal, classify},
    message::event_content,
    options::MatrixOptions,
};
use crate::{
    channel::{Context, Message},
    http::{
        client::{Attempt, origin, send_classified, serve},
        connect::{Connections, Dial},
        request::Request,
        response::{Load, Response, Verdict},
    },
    pending::PendingDelivery,
    queue::Queue,
    running::ProtocolSender,
};

/// Parts of a content in a message.
pub(super) const PARTS: PartsUsed = PartsUsed { subject: true, text: true, html: true, ..PartsUsed::NONE };

/// Most rooms whose alias, and most rooms whose join, is known.
const ROOMS_KNOWN: usize = 10_000;
/// Shortest time between two requests to join a room: homeservers limit them strictly.
const JOIN_PAUSE: Duration = Duration::from_secs(60);

/// State that the sessions of a channel share.
pub(super) struct MatrixSender {
    name: Name,
    options: MatrixOptions,
    connections: Connections,
    clock: Arc<dyn Clock>,
    queue: Arc<Queue>,
    /// Room ids by alias.
    rooms: Cache<String, String>,
    /// Latest joins by room id.
    joins: Cache<String, Join>,
}

/// A decided request to join a room.
#[derive(Debug, Clone)]
struct Join {
    at: Timestamp,
    /// Why the account may not join.
    refusal: Option<Verdict>,
}

impl MatrixSender {
    /// The options must be free of problems.
    pub fn new(
        name: &Name,
        options: MatrixOptions,
        dial: Arc<dyn Dial>,
        trust: Arc<ClientConfig>,
        context: &Context,
        queue: Arc<Queue>,
    ) -> Self {
        let connections = options.client.connections(dial, &trust, context);
        let (rooms, joins) = (Cache::new(ROOMS_KNOWN), Cache::new(ROOMS_KNOWN));
        MatrixSender { name: name.clone(), options, connections, clock: context.clock.clone(), queue, rooms, joins }
    }

    /// The destination of all messages: scheme, host and port of the homeserver, which limits the account.
    pub fn lane<'a>(&self) -> Cow<'a, str> {
        origin(&self.options.url).into_owned().into()
    }

    /// Sends one message after the other, until the queue is closed.
    pub async fn run(self: Arc<Self>) {
        serve(&*self, &self.name, &self.queue, &self.connections, &self.options.client).await;
    }

    /// Sends the content to the room of an address. The error is the verdict of a request before.
    async fn deliver(&self, address: &str, pending: &mut PendingDelivery, content: &[u8]) -> Result<Verdict, Verdict> {
        let is_known = self.rooms.get(address).is_some();
        let mut room = self.room(address).await?;
        pending.sent();
        let message = &pending.outgoing.message;
        let (mut verdict, mut refusal) = self.send(&room, message, content).await;
        // The alias can have a new room, such as after an upgrade of the room.
        if refusal.is_some() && is_known {
            self.rooms.remove_if(address, |known| *known == room);
            let current = self.room(address).await?;
            if current != room {
                room = current;
                (verdict, refusal) = self.send(&room, message, content).await;
            }
        }
        if refusal == Some(RoomRefusal::Forbidden) && self.options.join {
            self.join(address, &room).await?;
            (verdict, _) = self.send(&room, message, content).await;
        }
        Ok(verdict)
    }

    /// The id of a room. An alias is resolved once, even for many messages at the same time.
    async fn room(&self, address: &str) -> Result<String, Verdict> {
        if !address.starts_with('#') {
            return Ok(address.to_owned());
        }
        let resolve = async {
            let (verdict, _) = self.call(&Method::GET, &["directory", "room", address], "room_id", None, &[]).await;
            match verdict.disposition {
                Disposition::Delivered { reply } => Ok(reply),
                _ => Err(verdict),
            }
        };
        self.rooms.get_or_insert_async(address, resolve).await
    }

    /// Joins a room. Messages that need it at the same time share one request; the pause begins with it.
    async fn join(&self, address: &str, room: &str) -> Result<(), Verdict> {
        let now = self.clock.now();
        self.joins.remove_if(room, |join| now.since(join.at) >= JOIN_PAUSE);
        let request = async {
            // By the alias: the homeserver then knows other servers of the room.
            let (verdict, _) = self.call(&Method::POST, &["join", address], "room_id", None, b"{}").await;
            let refusal = match &verdict.disposition {
                Disposition::Delivered { .. } => None,
                Disposition::Refused { .. } => Some(verdict),
                // The limit for joins says nothing about messages to other rooms.
                Disposition::Deferred { .. } => return Err(Verdict { load: Load::Unknown, ..verdict }),
            };
            Ok(Join { at: now, refusal })
        };
        match self.joins.get_or_insert_async(room, request).await?.refusal {
            Some(refusal) => Err(refusal),
            None => Ok(()),
        }
    }

    /// Sends a message to a room, with its id as transaction id.
    async fn send(&self, room: &str, message: &Message, content: &[u8]) -> (Verdict, Option<RoomRefusal>) {
        let segments = ["rooms", room, "send", "m.room.message", &message.message_id];
        self.call(&Method::PUT, &segments, "event_id", Some(message), content).await
    }

    /// Sends a request, and classifies the response: the id `expected` is the reply.
    async fn call(
        &self,
        method: &Method,
        segments: &[&str],
        expected: &str,
        message: Option<&Message>,
        body: &[u8],
    ) -> (Verdict, Option<RoomRefusal>) {
        let target = match self.options.target(segments) {
            Ok(target) => target,
            // The URL is too long with this address.
            Err(text) => return (Verdict::refused(ReasonKind::Address, text), None),
        };
        let mut request = Request::new(method, &target, body.len());
        if !body.is_empty() {
            request.field("content-type", "application/json");
        }
        request.field("user-agent", concat!("Tocsin/", env!("CARGO_PKG_VERSION")));
        request.field("authorization", format!("Bearer {}", self.options.access_token));
        for (name, value) in message.into_iter().flat_map(Message::trace_headers) {
            request.field(name, value);
        }
        let request = request.with_body(body);
        let mut refusal = None;
        let read = |response: Response| {
            refusal = RoomRefusal::of(&response);
            classify(&response, expected, self.clock.now(), self.options.client.retry_after_max.0)
        };
        let verdict = send_classified(&self.connections, &target, &request, self.options.client.timeout, read).await;
        (verdict, refusal)
    }
}

impl Attempt for MatrixSender {
    async fn attempt(&self, pending: &mut PendingDelivery) -> Verdict {
        if let Some(reason) = pending.too_late() {
            return Verdict::refused(reason.kind, reason.text);
        }
        let address = pending.outgoing.address.trim().to_owned();
        if !is_address(&address) {
            let text = "the address is neither a room id (`!...`) nor an alias (`#name:server`)";
            return Verdict::refused(ReasonKind::Address, text);
        }
        let content = match event_content(&pending.outgoing.message, &self.options) {
            Ok(content) => content,
            Err(text) => return Verdict::refused(ReasonKind::Format, text),
        };
        self.deliver(&address, pending, &content).await.unwrap_or_else(|verdict| verdict)
    }
}

/// Whether a text can be a room id or an alias. The ids of newer rooms name no server.
fn is_address(text: &str) -> bool {
    let is_plain = text.len() <= ID_BYTES_MAX && !text.contains(|c: char| c.is_whitespace() || c.is_control());
    let is_room = text.strip_prefix('!').is_some_and(|id| !id.is_empty());
    let alias = text.strip_prefix('#').and_then(|alias| alias.split_once(':'));
    is_plain && (is_room || alias.is_some_and(|(name, server)| !name.is_empty() && !server.is_empty()))
}

#[async_trait]
impl ProtocolSender for MatrixSender {
    /// Requests the account of the access token.
    async fn probe(&self) -> Result<String, Reason> {
        let (verdict, _) = self.call(&Method::GET, &["account", "whoami"], "user_id", None, &[]).await;
        match verdict.disposition {
            Disposition::Delivered { reply } => Ok(format!("{} knows the account {reply}", self.lane())),
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
