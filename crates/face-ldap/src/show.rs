//! Encoding of entries: requested attributes that the client may read.

use std::sync::Arc;

use tocsin_directory::{
    CachedEntry, Rendering,
    access::{Grant, Level},
    entry::{Attribute, Entry, OWN},
    is_password_state,
    schema::{AttributeType, Schema},
};

use crate::{ber, message::tag};

/// Requested attributes of a search.
#[derive(Debug, Clone, Default)]
pub struct Selection {
    all: bool,
    operational: bool,
    named: Vec<Arc<AttributeType>>,
    types_only: bool,
    /// Whether `memberOf` is requested, which must be computed.
    pub(crate) groups: bool,
    /// Whether password state is requested.
    pub(crate) password: bool,
    /// Whether the remaining lifetime is requested.
    pub(crate) time_left: bool,
}

impl Selection {
    /// Parses an attribute list: `*` or an empty list means all user attributes, `+` all operational ones, `1.1` none.
    /// Unknown names are ignored.
    pub fn read(names: &[String], types_only: bool, schema: &Schema) -> Selection {
        let mut selection = Selection { all: names.is_empty(), types_only, ..Selection::default() };
        for name in names {
            match name.as_str() {
                "*" => selection.all = true,
                "+" => selection.operational = true,
                "1.1" => {}
                name => selection.named.extend(schema.known_or_named(name)),
            }
        }
        selection.groups = schema.attribute("memberOf").is_ok_and(|kind| selection.wants(kind));
        selection.password = selection.operational || selection.named.iter().any(|kind| is_password_state(kind));
        selection.time_left = schema.attribute("entryTtl").is_ok_and(|kind| selection.wants(kind));
        selection
    }

    /// Whether the selection needs data outside the entry.
    pub(crate) fn needs_other_records(&self) -> bool {
        self.groups || self.password || self.time_left
    }

    fn wants(&self, kind: &AttributeType) -> bool {
        let generally = if kind.operational { self.operational } else { self.all };
        generally || self.named.iter().any(|named| kind.is(named))
    }

    /// Whether the cached encoding of an entry can be sent unchanged.
    fn is_plain(&self) -> bool {
        self.all && !self.operational && self.named.is_empty() && !self.types_only
    }
}

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
            match selection.types_only {
                true => attribute(out, found.kind.name(), &[]),
                false => out.extend_from_slice(&rendering.bytes[start..end]),
            }
        }
        start = end;
    }
    let own = OWN.iter().filter_map(|key| schema.attribute(key).ok()).filter(|kind| may(kind));
    let own = own.filter_map(|kind| Some(Attribute::of(kind, entry.own(&kind.key, schema)?)));
    for found in own.chain(beside.iter().filter(|found| may(&found.kind)).cloned()) {
        let values = if selection.types_only { &[][..] } else { &found.values[..] };
        attribute(out, found.kind.name(), values);
    }
}
