//! Which notifications leave as one message to several: those of a class with multicast that tell the same event with the
//! same values, through the same channel, in the same language and zone.

use std::{collections::HashMap, sync::Arc};

use tocsin_delivery::Message;
use tocsin_model::{
    pack::{write_bytes, write_varint},
    receipt::Reason,
    subscriber::Device,
};
use tocsin_store::records::Recipient;

use crate::load_work::Loaded;

/// The messages of some work that have room for more recipients.
#[derive(Default)]
pub(crate) struct Multicasts {
    messages: HashMap<Box<[u8]>, Multicast>,
    /// The key of the one that is looked for.
    key: Vec<u8>,
}

struct Multicast {
    message: Arc<Message>,
    recipients: u32,
    /// How many messages were full before.
    full: u32,
}

impl Multicasts {
    /// The message for one more recipient; `render` makes it where there is none. A full one is followed by another, which
    /// says the same.
    pub fn message(
        &mut self,
        loaded: &Loaded,
        ordinal: u32,
        recipient: &Recipient,
        device: &Device,
        recipient_limit: u32,
        render: impl FnOnce() -> Result<Message, Reason>,
    ) -> Result<Arc<Message>, Reason> {
        let Multicasts { messages, key } = self;
        write_key(loaded, ordinal, recipient, device, key);
        if let Some(multicast) = messages.get_mut(&**key) {
            if multicast.recipients == recipient_limit {
                multicast.full += 1;
                multicast.recipients = 0;
                let message_id = message_id(loaded, key, multicast.full, &multicast.message);
                multicast.message = Arc::new(Message { message_id, ..(*multicast.message).clone() });
            }
            multicast.recipients += 1;
            return Ok(multicast.message.clone());
        }
        metrics::counter!("deliver_multicasts_total").increment(1);
        let mut message = render()?;
        message.message_id = message_id(loaded, key, 0, &message);
        let message = Arc::new(message);
        messages.insert(key.as_slice().into(), Multicast { message: message.clone(), recipients: 1, full: 0 });
        Ok(message)
    }
}

/// The same at every attempt, whoever is left by then.
fn message_id(loaded: &Loaded, key: &[u8], part: u32, message: &Message) -> String {
    // FNV-1a: it only has to differ within a batch, and to stay the same.
    let hash = key
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3));
    let installation = message.message_id.split_once('.').map_or("", |(_, installation)| installation);
    format!("m-{}-{hash:016x}-{part}.{installation}", loaded.batch.id.0)
}

/// What all have in common who are told by one message.
fn write_key(loaded: &Loaded, ordinal: u32, recipient: &Recipient, device: &Device, key: &mut Vec<u8>) {
    key.clear();
    let event = loaded.event_of[ordinal as usize];
    write_varint(key, event.batch.0);
    write_varint(key, u64::from(event.ordinal));
    write_bytes(key, device.channel.as_str().as_bytes());
    write_bytes(key, recipient.profile.locale.as_deref().unwrap_or_default().as_bytes());
    write_bytes(key, recipient.profile.time_zone.as_deref().unwrap_or_default().as_bytes());
    for (_, column) in &loaded.notifications().captured {
        let value = column.value(ordinal as usize);
        write_bytes(key, &serde_json::to_vec(&value).unwrap_or_default());
    }
}
