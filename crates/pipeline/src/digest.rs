//! Digest grouping: notifications of a class with equal subscriber, device, locale and grouping fields become one
//! message. Notifications that an operator edited are sent alone.

use std::collections::HashMap;

use tocsin_model::{
    delivery_policy::Digest,
    field::{Fields, pack_row},
    id::Name,
    pack::{write_bytes, write_varint},
    receipt::Reason,
    value::Value,
};
use tocsin_store::records::Recipient;

use crate::load_work::Loaded;

/// Packed grouping key of a digest.
pub(crate) type GroupKey = Box<[u8]>;

/// Digests in the order of their first notification.
pub(crate) struct Groups<T> {
    places: HashMap<GroupKey, usize>,
    groups: Vec<Group<T>>,
}

/// Notifications of one digest, in the order they were added.
pub(crate) struct Group<T> {
    /// Destination device.
    pub device: Name,
    pub members: Vec<T>,
}

impl<T> Default for Groups<T> {
    fn default() -> Self {
        Groups { places: HashMap::new(), groups: Vec::new() }
    }
}

impl<T> Groups<T> {
    /// Adds a notification to its digest.
    pub fn add(&mut self, key: GroupKey, device: Name, member: T) {
        let next = self.groups.len();
        let place = *self.places.entry(key).or_insert(next);
        if place == next {
            self.groups.push(Group { device, members: Vec::new() });
        }
        self.groups[place].members.push(member);
    }

    /// Removes and returns all digests.
    pub fn drain(&mut self) -> impl Iterator<Item = Group<T>> {
        self.places.clear();
        self.groups.drain(..)
    }
}

/// Computes the grouping key of a notification.
pub(crate) fn group_key(
    loaded: &Loaded,
    digest: &Digest,
    ordinal: u32,
    recipient: &Recipient,
    device: &Name,
) -> Result<GroupKey, Reason> {
    let mut key = Vec::with_capacity(32);
    write_bytes(&mut key, loaded.batch.head.class.as_str().as_bytes());
    write_varint(&mut key, recipient.number.0);
    write_bytes(&mut key, device.as_str().as_bytes());
    write_bytes(&mut key, recipient.profile.locale.as_deref().unwrap_or_default().as_bytes());
    // An edit applies to its own notifications only: it must not mix with others.
    if let Some(edit) = &loaded.work_state.edit {
        write_varint(&mut key, loaded.batch.id.0);
        write_bytes(&mut key, edit.as_bytes());
    }
    if digest.by.is_empty() {
        // Its fields are not needed, but a notification whose event is missing stays out of the digest.
        loaded.event(ordinal)?;
    } else {
        let (fields, row) = (loaded.notify()?.fields(), loaded.fields(ordinal)?);
        for name in &digest.by {
            let Some(at) = fields.position(name.as_str()) else { continue };
            // Positive and negative zero are equal, so they share a group.
            let mut value = row.get(at).cloned().unwrap_or(Value::Null);
            if let Value::Number(number) = &mut value {
                *number += 0.0; // -0.0 + 0.0 is 0.0
            }
            pack_row(&Fields::new(vec![fields[at].clone()]), &[value], &mut key);
        }
    }
    Ok(key.into())
}
