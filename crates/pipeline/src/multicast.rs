//! Multicast grouping: notifications of a multicast class with the same event, values, channel, locale and time zone
//! leave as one message to several recipients.

use std::{collections::HashMap, sync::Arc};

use tocsin_delivery::Message;
use tocsin_model::{
    id::{EventId, Name},
    pack::{write_bytes, write_varint},
    receipt::Reason,
    subscriber::{Device, Profile},
};
use tocsin_store::records::Recipient;

use crate::load_work::Loaded;

/// Messages with room for more recipients.
#[derive(Default)]
pub(crate) struct Multicasts {
    places: HashMap<Box<[u8]>, usize>,
    all: Vec<Multicast>,
    /// Key of the lookup in progress.
    key: Vec<u8>,
    /// Result of the last lookup: the next recipient mostly has the same key.
    latest: Option<Latest>,
}

struct Multicast {
    message: Arc<Message>,
    recipients: u32,
    /// Number of full messages before this one.
    full: u32,
    /// Hash of its key.
    hash: u64,
}

/// Parts of a multicast key, if no value was captured at the match.
struct Latest {
    event: EventId,
    channel: Name,
    locale: Option<String>,
    time_zone: Option<String>,
    place: usize,
}

impl Multicasts {
    /// Adds one more recipient to its message; `render` makes the message if there is none. A full message is
    /// followed by another with the same content.
    pub fn message(
        &mut self,
        loaded: &Loaded,
        ordinal: u32,
        recipient: &Recipient,
        device: &Device,
        recipient_limit: u32,
        render: impl FnOnce() -> Result<Message, Reason>,
    ) -> Result<Arc<Message>, Reason> {
        let Some(place) = self.find(loaded, ordinal, recipient, device) else {
            metrics::counter!("tocsin_deliver_multicast_messages_total").increment(1);
            let (mut message, hash) = (render()?, hash_of(&self.key));
            message.message_id = message_id(loaded, hash, 0, &message);
            let message = Arc::new(message);
            self.places.insert(self.key.as_slice().into(), self.all.len());
            self.all.push(Multicast { message: message.clone(), recipients: 1, full: 0, hash });
            return Ok(message);
        };
        let multicast = &mut self.all[place];
        if multicast.recipients == recipient_limit {
            multicast.full += 1;
            multicast.recipients = 0;
            let message_id = message_id(loaded, multicast.hash, multicast.full, &multicast.message);
            multicast.message = Arc::new(Message { message_id, ..(*multicast.message).clone() });
        }
        multicast.recipients += 1;
        Ok(multicast.message.clone())
    }

    /// Index of the multicast of a recipient; `None`: there is none yet, and `key` is that of the one to create.
    fn find(&mut self, loaded: &Loaded, ordinal: u32, recipient: &Recipient, device: &Device) -> Option<usize> {
        let (event, profile) = (loaded.event_of[ordinal as usize], &recipient.profile);
        let is_alike = loaded.notifications().captured.is_empty();
        if let Some(latest) = &self.latest
            && is_alike
            && latest.is(event, &device.channel, profile)
        {
            return Some(latest.place);
        }
        write_key(loaded, ordinal, recipient, device, &mut self.key);
        let place = self.places.get(&*self.key).copied()?;
        self.latest = is_alike.then(|| {
            let (locale, time_zone) = (profile.locale.clone(), profile.time_zone.clone());
            Latest { event, channel: device.channel.clone(), locale, time_zone, place }
        });
        Some(place)
    }
}

impl Latest {
    fn is(&self, event: EventId, channel: &Name, profile: &Profile) -> bool {
        self.event == event
            && self.channel == *channel
            && self.locale == profile.locale
            && self.time_zone == profile.time_zone
    }
}

/// Message id: the same at every attempt, whatever recipients are left.
fn message_id(loaded: &Loaded, hash: u64, part: u32, message: &Message) -> String {
    let installation = message.message_id.split_once('.').map_or("", |(_, installation)| installation);
    format!("m-{}-{hash:016x}-{part}.{installation}", loaded.batch.id.0)
}

/// FNV-1a: the hash must be stable, and unique within a batch.
fn hash_of(key: &[u8]) -> u64 {
    key.iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

/// Writes the key that all recipients of one message share.
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
