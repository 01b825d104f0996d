//! Compact encodings: bodies compressed where it pays, ascending numbers as runs.

use std::{borrow::Cow, cell::RefCell};

use bytes::Bytes;
use zstd::bulk::{Compressor, Decompressor};

use crate::error::StoreError;

/// Shorter bodies are stored uncompressed.
const COMPRESSED_BYTES_MIN: usize = 256;
/// Maximum size of a body. A damaged length cannot allocate more than this.
const BODY_BYTES_MAX: usize = 1 << 30;

thread_local! {
    // A compression context costs more than most bodies, so each thread reuses its own.
    static COMPRESSOR: RefCell<Option<Compressor<'static>>> = const { RefCell::new(None) };
    static DECOMPRESSOR: RefCell<Option<Decompressor<'static>>> = const { RefCell::new(None) };
}

/// Stored body with its uncompressed length.
pub struct Body {
    pub bytes: usize,
    pub stored: Bytes,
}

/// Compresses a body if that makes it shorter.
pub fn pack_body(body: Bytes) -> Body {
    let bytes = body.len();
    if bytes < COMPRESSED_BYTES_MIN {
        return Body { bytes, stored: body };
    }
    let compressed = COMPRESSOR.with_borrow_mut(|compressor| {
        if compressor.is_none() {
            let mut new = Compressor::new(1).ok()?;
            new.include_checksum(true).ok()?;
            *compressor = Some(new);
        }
        compressor.as_mut()?.compress(&body).ok()
    });
    // If compression fails, the plain body is equally valid, only longer.
    match compressed {
        Some(compressed) if compressed.len() < bytes => Body { bytes, stored: compressed.into() },
        _ => Body { bytes, stored: body },
    }
}

/// Inverse of `pack_body`; `bytes` is the uncompressed length.
pub fn unpack_body(stored: &[u8], bytes: i64) -> Result<Bytes, StoreError> {
    let damaged = || StoreError::Damaged("a compressed body".to_owned());
    let bytes = usize::try_from(bytes).ok().filter(|bytes| *bytes <= BODY_BYTES_MAX).ok_or_else(damaged)?;
    if stored.len() == bytes {
        return Ok(Bytes::copy_from_slice(stored));
    }
    let body = DECOMPRESSOR.with_borrow_mut(|decompressor| {
        if decompressor.is_none() {
            *decompressor = Decompressor::new().ok();
        }
        decompressor.as_mut()?.decompress(stored, bytes).ok()
    });
    body.filter(|body| body.len() == bytes).map(Bytes::from).ok_or_else(damaged)
}

/// Packs ascending, distinct numbers. A run of consecutive numbers takes two varints.
pub fn pack_numbers(numbers: impl IntoIterator<Item = u64>) -> Vec<u8> {
    let mut out = Vec::new();
    let mut end = 0;
    let mut numbers = numbers.into_iter().peekable();
    while let Some(first) = numbers.next() {
        let mut length = 1;
        while numbers.next_if_eq(&(first + length)).is_some() {
            length += 1;
        }
        write_varint(&mut out, ((first - end) << 1) | u64::from(length > 1));
        if length > 1 {
            write_varint(&mut out, length);
        }
        end = first + length;
    }
    out
}

/// Inverse of `pack_numbers`.
pub fn unpack_numbers(mut packed: &[u8]) -> Result<Vec<u64>, StoreError> {
    const NUMBERS_MAX: u64 = 1 << 32;
    let damaged = || StoreError::Damaged("a list of numbers".to_owned());
    let mut numbers = Vec::new();
    let mut end = 0u64;
    while !packed.is_empty() {
        let gap = read_varint(&mut packed).ok_or_else(damaged)?;
        let length = if gap & 1 == 1 { read_varint(&mut packed).ok_or_else(damaged)? } else { 1 };
        let first = end.checked_add(gap >> 1).ok_or_else(damaged)?;
        end = first.checked_add(length).filter(|_| length <= NUMBERS_MAX).ok_or_else(damaged)?;
        numbers.extend(first..end);
    }
    Ok(numbers)
}

/// Packs ascending ordinals.
pub fn pack_ordinals(ordinals: &[u32]) -> Vec<u8> {
    pack_numbers(ordinals.iter().map(|ordinal| u64::from(*ordinal)))
}

/// Inverse of `pack_ordinals`.
pub fn unpack_ordinals(packed: &[u8]) -> Result<Vec<u32>, StoreError> {
    let narrow = |number| u32::try_from(number).map_err(|_| StoreError::Damaged("a list of ordinals".to_owned()));
    unpack_numbers(packed)?.into_iter().map(narrow).collect()
}

/// Sorts and deduplicates ordinals if needed.
pub fn ascending(ordinals: &[u32]) -> Cow<'_, [u32]> {
    if ordinals.is_sorted_by(|a, b| a < b) {
        return Cow::Borrowed(ordinals);
    }
    let mut sorted = ordinals.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    Cow::Owned(sorted)
}

fn write_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn read_varint(packed: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = packed.split_first()?;
        *packed = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if *byte < 0x80 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn packed_ordinals_round_trip(ordinals in proptest::collection::btree_set(0u32..5_000, 0..300), last: bool) {
            let ordinals: Vec<u32> = ordinals.into_iter().chain(last.then_some(u32::MAX)).collect();
            prop_assert_eq!(unpack_ordinals(&pack_ordinals(&ordinals)).expect("whole"), ordinals);
        }

        #[test]
        fn packed_bodies_round_trip(body: Vec<u8>, times in 1usize..200) {
            let body = Bytes::from(body.repeat(times));
            let packed = pack_body(body.clone());
            prop_assert!(packed.stored.len() <= body.len());
            prop_assert_eq!(unpack_body(&packed.stored, packed.bytes as i64).expect("whole"), body);
        }
    }

    #[test]
    fn ordinals_of_a_whole_batch_take_three_bytes() {
        let all: Vec<u32> = (0..2_500).collect();
        assert_eq!(pack_ordinals(&all).len(), 3);
    }

    #[test]
    fn damage_is_an_error() {
        let body = pack_body(Bytes::from(vec![7; 10_000]));
        let mut stored = body.stored.to_vec();
        let middle = stored.len() / 2;
        stored[middle] ^= 0x10;
        assert!(matches!(unpack_body(&stored, 10_000), Err(StoreError::Damaged(_))));
        assert!(matches!(unpack_body(&body.stored, 9_999), Err(StoreError::Damaged(_))));
        assert!(matches!(unpack_numbers(&[0xff]), Err(StoreError::Damaged(_))));
        assert!(matches!(unpack_numbers(&[1, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]), Err(StoreError::Damaged(_))));
    }
}
