//! Digests of values and texts, the same in every process.

use crate::eval_value::{EvalValue, write_key};

/// A digest of a value, the same in every process and never 0; `None` for a value that equals nothing, such as NaN.
pub(crate) fn digest_of(value: &EvalValue<'_>, buffer: &mut Vec<u8>) -> Option<u64> {
    buffer.clear();
    write_key(value, buffer).ok()?;
    Some(digest(buffer))
}

/// A digest of bytes, the same in every process and never 0. It is stored, so it must never change.
pub(crate) fn digest(bytes: &[u8]) -> u64 {
    // Folded multiplication, as in wyhash: every bit of a word influences every bit of the digest.
    let fold = |left: u64, right: u64| {
        let product = u128::from(left) * u128::from(right);
        (product as u64) ^ (product >> 64) as u64
    };
    let mut state = fold(bytes.len() as u64 ^ 0xa076_1d64_78bd_642f, 0xe703_7ed1_a0b4_28db);
    for word in bytes.chunks(8) {
        let mut padded = [0; 8];
        padded[..word.len()].copy_from_slice(word);
        state = fold(state ^ u64::from_le_bytes(padded), 0x8ebc_6af0_9c88_c6e3) ^ state.rotate_left(23);
    }
    fold(state ^ 0x5899_65cc_7537_4cc3, 0x1d8e_4e27_c47d_124f).max(1)
}
