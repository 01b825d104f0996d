//! A block as bytes: of each entry its head as JSON and its body, each behind its length, all of them compressed.

use bytes::Bytes;
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    error::StoreError,
    tracking::{Findable, TrackedBody},
};

/// Fast, and enough for bodies that are alike.
const LEVEL: i32 = 1;

pub(super) fn pack_bodies(bodies: &[TrackedBody]) -> Vec<u8> {
    pack(bodies.iter().map(|tracked| (tracked, &*tracked.body)))
}

pub(super) fn pack_findable(findable: &[Findable]) -> Vec<u8> {
    pack(findable.iter().map(|found| (found, &[][..])))
}

pub(super) fn bodies(packed: &[u8]) -> Result<Vec<TrackedBody>, StoreError> {
    unpack(packed, |head: TrackedBody, body| TrackedBody { body, ..head })
}

pub(super) fn findable(packed: &[u8]) -> Result<Vec<Findable>, StoreError> {
    unpack(packed, |head, _| head)
}

fn pack<'a, T: Serialize + 'a>(entries: impl Iterator<Item = (&'a T, &'a [u8])>) -> Vec<u8> {
    let mut plain = Vec::new();
    for (head, body) in entries {
        let head = serde_json::to_vec(head).expect("a head is always JSON");
        for part in [&head, body] {
            plain.extend(u32::try_from(part.len()).expect("parts are bounded").to_le_bytes());
            plain.extend_from_slice(part);
        }
    }
    zstd::bulk::compress(&plain, LEVEL).expect("memory takes it")
}

fn unpack<T: DeserializeOwned>(packed: &[u8], with: impl Fn(T, Bytes) -> T) -> Result<Vec<T>, StoreError> {
    let damaged = || StoreError::Damaged("a block of tracking".to_owned());
    let mut rest = Bytes::from(zstd::stream::decode_all(packed).map_err(|_| damaged())?);
    let mut take = || {
        let length = rest.first_chunk::<4>().map(|bytes| u32::from_le_bytes(*bytes) as usize)?;
        (rest.len() - 4 >= length).then(|| {
            let _ = rest.split_to(4);
            rest.split_to(length)
        })
    };
    let mut entries = Vec::new();
    while let Some(head) = take() {
        let body = take().ok_or_else(damaged)?;
        entries.push(with(serde_json::from_slice(&head).map_err(|_| damaged())?, body));
    }
    if rest.is_empty() { Ok(entries) } else { Err(damaged()) }
}
