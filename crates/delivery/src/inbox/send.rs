use std::{collections::HashMap, sync::Arc};

use async_trait::async_trait;
use tocsin_model::{
    content::PartsUsed,
    id::{Name, NotificationId},
    inbox::{InboxContent, NewItem},
    receipt::{Disposition, Reason, ReasonKind},
};

use super::{classify::classify, content::content, options::InboxOptions};
use crate::{
    channel::{FeedStore, Message, Outgoing},
    pending::{PendingDelivery, answer_all},
    queue::Queue,
    record,
    running::ProtocolSender,
};

/// Most items of one commit.
pub(super) const BATCH_ITEMS: usize = 4_096;
/// Approximate bytes of the contents in one commit.
const BATCH_BYTES: usize = 8 << 20;

/// The writer of a channel.
pub(super) struct Writer {
    name: Name,
    options: InboxOptions,
    feeds: Arc<dyn FeedStore>,
    queue: Arc<Queue>,
}

/// One commit.
#[derive(Default)]
struct Batch {
    items: Vec<NewItem>,
    bytes: usize,
    waiting: Vec<PendingDelivery>,
    /// Contents of multicasts by message. The message is kept, so that its address in memory is not reused.
    made: HashMap<usize, (Arc<Message>, Arc<InboxContent>)>,
}

impl Writer {
    pub fn new(name: &Name, options: InboxOptions, feeds: Arc<dyn FeedStore>, queue: Arc<Queue>) -> Self {
        Writer { name: name.clone(), options, feeds, queue }
    }

    /// Writes one commit after the other, until the queue is closed. The next batch is collected while one is written.
    pub async fn run(self: Arc<Self>) {
        while let Some(taken) = self.queue.pop_many(BATCH_ITEMS).await {
            let mut batch = Batch::default();
            for mut pending in taken {
                if let Some(reason) = pending.too_late() {
                    pending.answer(Disposition::Refused { reason }).await;
                    continue;
                }
                let Some(item) = self.item(&pending.outgoing, &mut batch) else {
                    let text = "there is no such subscriber, and so no feed";
                    let reason = Reason::new(ReasonKind::Unreachable, text);
                    pending.answer(Disposition::Refused { reason }).await;
                    continue;
                };
                batch.items.push(item);
                pending.sent();
                batch.waiting.push(pending);
                if batch.bytes >= BATCH_BYTES {
                    self.put(std::mem::take(&mut batch)).await;
                }
            }
            self.put(batch).await;
        }
    }

    fn item(&self, outgoing: &Outgoing, batch: &mut Batch) -> Option<NewItem> {
        let subscriber = outgoing.subscriber?;
        let message = &outgoing.message;
        let content = match batch.made.get(&(Arc::as_ptr(message) as usize)) {
            Some((_, content)) => content.clone(),
            None => {
                let content = Arc::new(content(message, &self.name));
                let said = &message.content;
                let parts = [&said.subject, &said.text, &said.html, &said.json];
                batch.bytes += parts.iter().map(|part| part.as_ref().map_or(0, String::len)).sum::<usize>();
                // The content of a single message is used only once.
                if Arc::strong_count(message) > 1 {
                    batch.made.insert(Arc::as_ptr(message) as usize, (message.clone(), content.clone()));
                }
                content
            }
        };
        let kept = message.formatted_at + self.options.retention.0;
        let expires_at = message.expires_at.map_or(kept, |expires_at| expires_at.min(kept));
        // Tests have no notification; each is a separate item.
        let id = match outgoing.id {
            id if id.batch.0 == 0 => NotificationId { ordinal: message.formatted_at.as_millis() as u32, ..id },
            id => id,
        };
        Some(NewItem { subscriber, id, content, expires_at })
    }

    async fn put(&self, Batch { items, waiting, .. }: Batch) {
        if items.is_empty() {
            return;
        }
        let put = self.feeds.put(items, self.options.items_max).await;
        let disposition = match &put {
            Ok(()) => Disposition::Delivered { reply: "in the feed".into() },
            Err(reason) => classify(reason),
        };
        answer_all(waiting, &disposition).await;
    }
}

#[async_trait]
impl ProtocolSender for Writer {
    async fn probe(&self) -> Result<String, Reason> {
        self.feeds.probe().await
    }

    fn down(&self) -> Option<Reason> {
        None
    }

    fn parts_used(&self) -> PartsUsed {
        record::RECORD_PARTS
    }
}
