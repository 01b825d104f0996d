//! Which notifications are told as one: those of a class with equal subscriber, device, locale and grouping
//! fields. What an operator has edited is told alone.

use std::collections::HashMap;

use tocsin_model::{
    conduct::Digest,
    field::{Fields, pack_row},
    id::Name,
    pack::{write_bytes, write_varint},
    receipt::Reason,
    value::Value,
};
use tocsin_store::records::Recipient;

use crate::load_work::Loaded;

/// What those of one digest have in common, packed.
pub(crate) type GroupKey = Box<[u8]>;

/// Digests in the order of their first notification.
pub(crate) struct Groups<T> {
    places: HashMap<GroupKey, usize>,
    groups: Vec<Group<T>>,
}

/// The notifications of one digest, in the order they were added.
pub(crate) struct Group<T> {
    /// Where it goes.
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

    /// Takes all of them out.
    pub fn drain(&mut self) -> impl Iterator<Item = Group<T>> {
        self.places.clear();
        self.groups.drain(..)
    }
}

/// What decides of which digest a notification is.
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
    // An edit is of its own notifications; what others say must not get lost in it, nor change by it.
    if let Some(edit) = &loaded.course.edit {
        write_varint(&mut key, loaded.batch.id.0);
        write_bytes(&mut key, edit.as_bytes());
    }
    if digest.by.is_empty() {
        // Its fields are not needed, but those who cannot be told of stay out of it.
        loaded.event(ordinal)?;
    } else {
        let (fields, row) = (loaded.notify()?.fields(), loaded.fields(ordinal)?);
        for name in &digest.by {
            let Some(at) = fields.position(name.as_str()) else { continue };
            let value = row.get(at).cloned().unwrap_or(Value::Null);
            pack_row(&Fields::new(vec![fields[at].clone()]), &[value], &mut key);
        }
    }
    Ok(key.into())
}
