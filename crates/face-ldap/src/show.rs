//! Encoding of entries: requested attributes that the client may read.

use tocsin_directory::{
    CachedEntry, Rendering, Selection,
    access::{Grant, Level},
    entry::{Attribute, Entry, OWN},
    schema::{AttributeType, Schema},
};

use crate::{ber, message::tag};

fn attribute(out: &mut Vec<u8>, name: &str, values: &[Box<[u8]>]) {
    let of = |length: usize| 1 + ber::length_bytes(length) + length;
    let set: usize = values.iter().map(|value| of(value.len())).sum();
    ber::head(out, 0x30, of(name.len()) + of(set));
    ber::value(out, 0x04, name.as_bytes());
    ber::head(out, 0x31, set);
    for value in values {
        ber::value(out, 0x04, value);
    }
}

fn rendering(entry: &Entry) -> Rendering {
    let mut bytes = Vec::with_capacity(entry.bytes());
    let ends = entry.attributes.iter().map(|found| {
        attribute(&mut bytes, found.kind.name(), &found.values);
        u32::try_from(bytes.len()).unwrap_or(u32::MAX)
    });
    let ends = ends.collect();
    Rendering { bytes: bytes.into(), ends }
}

/// Encodes a search result entry. `beside`: computed attributes.
pub fn entry(
    out: &mut Vec<u8>,
    id: u32,
    shown: &CachedEntry,
    grant: &Grant,
    selection: &Selection,
    schema: &Schema,
    beside: &[Attribute],
) {
    let entry = &shown.entry;
    let rendering = shown.rendering.get_or_init(|| rendering(entry));
    if selection.is_plain() && grant.reads_all() {
        let end = entry.shown.checked_sub(1).map_or(0, |last| rendering.ends[last] as usize);
        let list = &rendering.bytes[..end];
        let of = |length: usize| 1 + ber::length_bytes(length) + length;
        let id_bytes = 2 + id_length(id);
        let inner = of(entry.dn.len()) + of(list.len());
        out.reserve(inner + 24);
        ber::head(out, 0x30, id_bytes + of(inner));
        ber::number(out, 0x02, id);
        ber::head(out, tag::ENTRY, inner);
        ber::value(out, 0x04, entry.dn.as_bytes());
        ber::value(out, 0x30, list);
        return;
    }
    ber::nested(out, 0x30, |out| {
        ber::number(out, 0x02, id);
        body(out, shown, grant, selection, schema, beside);
    });
}

/// Encodes a search result entry with a control.
#[expect(clippy::too_many_arguments, reason = "those of an entry, and its control")]
pub fn entry_with_control(
    out: &mut Vec<u8>,
    id: u32,
    shown: &CachedEntry,
    grant: &Grant,
    selection: &Selection,
    schema: &Schema,
    beside: &[Attribute],
    control: (&'static str, Vec<u8>),
) {
    ber::nested(out, 0x30, |out| {
        ber::number(out, 0x02, id);
        body(out, shown, grant, selection, schema, beside);
        crate::message::response_controls(out, &[control]);
    });
}

/// Encodes an entry without the message envelope.
pub fn body(
    out: &mut Vec<u8>,
    shown: &CachedEntry,
    grant: &Grant,
    selection: &Selection,
    schema: &Schema,
    beside: &[Attribute],
) {
    let entry = &shown.entry;
    let rendering = shown.rendering.get_or_init(|| rendering(entry));
    ber::nested(out, tag::ENTRY, |out| {
        ber::value(out, 0x04, entry.dn.as_bytes());
        ber::nested(out, 0x30, |out| some(out, entry, rendering, grant, selection, schema, beside));
    });
}

fn id_length(id: u32) -> usize {
    (1..4).find(|bytes| id < 1 << (8 * bytes - 1)).unwrap_or(4)
}

fn some(
    out: &mut Vec<u8>,
    entry: &Entry,
    rendering: &Rendering,
    grant: &Grant,
    selection: &Selection,
    schema: &Schema,
    beside: &[Attribute],
) {
    let may = |kind: &AttributeType| selection.wants(kind) && grant.level(Some(kind)) >= Level::Read;
    let mut start = 0;
    for (found, end) in entry.attributes.iter().zip(&rendering.ends) {
        let end = *end as usize;
        if may(&found.kind) {
            match selection.types_only() {
                true => attribute(out, found.kind.name(), &[]),
                false => out.extend_from_slice(&rendering.bytes[start..end]),
            }
        }
        start = end;
    }
    let own = OWN.iter().filter_map(|key| schema.attribute(key).ok()).filter(|kind| may(kind));
    let own = own.filter_map(|kind| Some(Attribute::of(kind, entry.own(&kind.key, schema)?)));
    for found in own.chain(beside.iter().filter(|found| may(&found.kind)).cloned()) {
        let values = if selection.types_only() { &[][..] } else { &found.values[..] };
        attribute(out, found.kind.name(), values);
    }
}
