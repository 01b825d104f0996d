//! How entries are written: which of their attributes, and only what may be seen.

use std::sync::Arc;

use tocsin_directory::{
    Rendering, Shown,
    access::{Grant, Level},
    entry::{Attribute, Entry, OWN},
    schema::{AttributeType, Schema},
    tells_of_password,
};

use crate::{ber, message::tag};

/// Which attributes are asked for.
#[derive(Debug, Clone, Default)]
pub struct Selection {
    all: bool,
    operational: bool,
    named: Vec<Arc<AttributeType>>,
    types_only: bool,
    /// Whether the groups of an entry are wanted, which have to be found for it.
    pub(crate) groups: bool,
    /// Whether what is known of its password is.
    pub(crate) password: bool,
    /// Whether it is how long the entry has left.
    pub(crate) time_left: bool,
}

impl Selection {
    /// Reads a list of names: `*` and none are all that users see, `+` what is operational, `1.1` nothing. Names that nobody
    /// knows are passed over.
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
        selection.password = selection.operational || selection.named.iter().any(|kind| tells_of_password(kind));
        selection.time_left = schema.attribute("entryTtl").is_ok_and(|kind| selection.wants(kind));
        selection
    }

    /// Whether something is wanted that does not stand in the entry itself.
    pub(crate) fn looks_further(&self) -> bool {
        self.groups || self.password || self.time_left
    }

    fn wants(&self, kind: &AttributeType) -> bool {
        let generally = if kind.operational { self.operational } else { self.all };
        generally || self.named.iter().any(|named| kind.is(named))
    }

    /// Whether what an entry has is written as it lies there.
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

/// Writes an entry as an answer to a search. `beside`: what else was found of it.
pub fn entry(
    out: &mut Vec<u8>,
    id: u32,
    shown: &Shown,
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

/// Writes an entry as an answer to a search, with a control beside it.
#[expect(clippy::too_many_arguments, reason = "those of an entry, and its control")]
pub fn marked(
    out: &mut Vec<u8>,
    id: u32,
    shown: &Shown,
    grant: &Grant,
    selection: &Selection,
    schema: &Schema,
    beside: &[Attribute],
    mark: (&'static str, Vec<u8>),
) {
    ber::nested(out, 0x30, |out| {
        ber::number(out, 0x02, id);
        body(out, shown, grant, selection, schema, beside);
        crate::message::beside(out, &[mark]);
    });
}

/// An entry without a message around it.
pub fn body(
    out: &mut Vec<u8>,
    shown: &Shown,
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
