use std::{io, sync::Arc};

use async_trait::async_trait;
use parking_lot::Mutex;
use tocsin_model::{
    content::PartsUsed,
    id::Name,
    receipt::{Disposition, Reason, ReasonKind},
};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
    time::{sleep, timeout},
};

use super::{classify::classify, options::LineOptions};
use crate::{
    pending::PendingDelivery,
    queue::Queue,
    record,
    running::{ProtocolSender, pause_after},
};

/// Longest reply; a longer one is a failure.
const REPLY_BYTES_MAX: u64 = 1024;

/// State that the sessions of a channel share.
pub(super) struct Sender {
    name: Name,
    options: LineOptions,
    queue: Arc<Queue>,
    last_failure: Mutex<Option<Reason>>,
}

impl Sender {
    pub fn new(name: &Name, options: LineOptions, queue: Arc<Queue>) -> Self {
        Sender { name: name.clone(), options, queue, last_failure: Mutex::new(None) }
    }

    /// Sends one message after the other, until the queue is closed. It connects when there is something to send.
    pub async fn run(self: Arc<Self>) {
        let (mut connection, mut failures) = (None, 0);
        while let Some(mut pending) = self.queue.pop_multicast(1).await {
            if let Some(reason) = pending.too_late() {
                pending.answer(Disposition::Refused { reason }).await;
                continue;
            }
            // Every conversation has a deadline. A message dropped without an answer is answered automatically.
            let attempt = timeout(self.options.timeout.0, self.attempt(&mut connection, &mut pending)).await;
            let failure = match attempt {
                Ok(Ok(disposition)) => {
                    (failures, *self.last_failure.lock()) = (0, None);
                    pending.answer(disposition).await;
                    continue;
                }
                Ok(Err(error)) => Reason::new(ReasonKind::Connection, format!("no answer: {error}")),
                Err(_) => Reason::new(ReasonKind::Timeout, format!("no answer within {}", self.options.timeout)),
            };
            tracing::warn!(channel = %self.name, "{}", failure.text);
            *self.last_failure.lock() = Some(failure.clone());
            pending.answer(Disposition::Deferred { reason: failure, retry_after: None }).await;
            (connection, failures) = (None, failures + 1);
            sleep(pause_after(failures)).await;
        }
    }

    async fn attempt(
        &self,
        connection: &mut Option<BufReader<TcpStream>>,
        pending: &mut PendingDelivery,
    ) -> io::Result<Disposition> {
        if connection.is_none() {
            let stream = TcpStream::connect((self.options.host.as_str(), self.options.port)).await?;
            *connection = Some(BufReader::new(stream));
        }
        let stream = connection.as_mut().expect("it is open");
        let message = &pending.outgoing.message;
        let line = format!("SEND {} {}\n", message.message_id, record::body(message));
        pending.sent();
        stream.write_all(line.as_bytes()).await?;
        let mut reply = String::new();
        stream.take(REPLY_BYTES_MAX).read_line(&mut reply).await?;
        match reply.strip_suffix('\n') {
            Some(reply) => Ok(classify(reply)),
            None => Err(io::Error::other("the reply is incomplete or too long")),
        }
    }
}

#[async_trait]
impl ProtocolSender for Sender {
    async fn probe(&self) -> Result<String, Reason> {
        let LineOptions { host, port, timeout: patience } = &self.options;
        match timeout(patience.0, TcpStream::connect((host.as_str(), *port))).await {
            Ok(Ok(_)) => Ok(format!("{host}:{port} accepts connections")),
            Ok(Err(error)) => Err(Reason::new(ReasonKind::Connection, format!("{host}:{port}: {error}"))),
            Err(_) => Err(Reason::new(ReasonKind::Timeout, format!("{host}:{port} does not answer"))),
        }
    }

    fn down(&self) -> Option<Reason> {
        self.last_failure.lock().clone()
    }

    fn parts_used(&self) -> PartsUsed {
        record::BODY_PARTS
    }
}
