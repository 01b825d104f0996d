//! Ids of records: 24 lower-case hexadecimal digits.

use std::{fmt, str::FromStr};

use tocsin_model::time::Timestamp;

use super::{CastError, Collection};

/// The id of a record, as MongoDB makes them: four bytes of seconds since 1970 and eight random ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordId([u8; 12]);

impl RecordId {
    /// An id of this time.
    pub fn new(now: Timestamp, random: u64) -> RecordId {
        let seconds = u32::try_from(now.as_millis().max(0) / 1_000).unwrap_or(u32::MAX);
        let mut bytes = [0; 12];
        bytes[..4].copy_from_slice(&seconds.to_be_bytes());
        bytes[4..].copy_from_slice(&random.to_be_bytes());
        RecordId(bytes)
    }

    /// The id of this text, or the error of a request to a collection.
    pub fn parse(text: &str, collection: Collection) -> Result<RecordId, CastError> {
        text.parse().map_err(|NotAnId| CastError::id(text, collection))
    }

    /// The time in the id, to the second.
    pub fn time(self) -> Timestamp {
        let [a, b, c, d, ..] = self.0;
        Timestamp::from_millis(i64::from(u32::from_be_bytes([a, b, c, d])) * 1_000)
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8; 12] {
        &self.0
    }
}

impl From<[u8; 12]> for RecordId {
    fn from(bytes: [u8; 12]) -> RecordId {
        RecordId(bytes)
    }
}

impl fmt::Display for RecordId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A text that is not an id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an id has 24 hexadecimal digits")]
pub struct NotAnId;

impl FromStr for RecordId {
    type Err = NotAnId;

    fn from_str(text: &str) -> Result<RecordId, NotAnId> {
        let digits = text.as_bytes();
        if digits.len() != 24 {
            return Err(NotAnId);
        }
        let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8).ok_or(NotAnId);
        let mut bytes = [0; 12];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = digit(pair[0])? << 4 | digit(pair[1])?;
        }
        Ok(RecordId(bytes))
    }
}
