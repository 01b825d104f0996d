//! Varints (LEB128, with zigzag for signed numbers) and length-prefixed bytes.

/// The packed bytes are invalid; they were damaged or written by a newer version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("packed data is damaged")]
pub struct Damaged;

/// Writes a varint.
pub fn write_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Writes a signed varint; small numbers of either sign take few bytes.
pub fn write_signed(out: &mut Vec<u8>, value: i64) {
    write_varint(out, ((value << 1) ^ (value >> 63)) as u64);
}

/// Writes length-prefixed bytes.
pub fn write_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    write_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Reader of packed bytes. Every read checks its bounds.
#[derive(Debug, Clone)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// A reader at the beginning.
    pub fn new(bytes: &'a [u8]) -> Self {
        Reader { rest: bytes }
    }

    /// Whether all bytes were read.
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Number of remaining bytes.
    #[inline]
    pub fn left(&self) -> usize {
        self.rest.len()
    }

    /// One byte.
    ///
    /// # Errors
    /// The bytes end before, or hold something else.
    #[inline]
    pub fn byte(&mut self) -> Result<u8, Damaged> {
        let (first, rest) = self.rest.split_first().ok_or(Damaged)?;
        self.rest = rest;
        Ok(*first)
    }

    /// `count` bytes.
    ///
    /// # Errors
    /// There are fewer bytes left.
    #[inline]
    pub fn take(&mut self, length: usize) -> Result<&'a [u8], Damaged> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or(Damaged)?;
        self.rest = rest;
        Ok(taken)
    }

    /// A number written by `write_varint`.
    ///
    /// # Errors
    /// The bytes end before, or are invalid.
    #[inline]
    pub fn varint(&mut self) -> Result<u64, Damaged> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(Damaged)
    }

    /// A number written by `write_signed`.
    ///
    /// # Errors
    /// The bytes end before, or are invalid.
    #[inline]
    pub fn signed(&mut self) -> Result<i64, Damaged> {
        let value = self.varint()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    /// A count of items that take at least one byte each, so that a damaged count cannot request much memory.
    ///
    /// # Errors
    /// There are fewer bytes left than items.
    #[inline]
    pub fn count(&mut self) -> Result<usize, Damaged> {
        let count = usize::try_from(self.varint()?).map_err(|_| Damaged)?;
        if count <= self.rest.len() { Ok(count) } else { Err(Damaged) }
    }

    /// Bytes written by `write_bytes`.
    ///
    /// # Errors
    /// The bytes end before, or are invalid.
    #[inline]
    pub fn bytes(&mut self) -> Result<&'a [u8], Damaged> {
        let length = self.count()?;
        self.take(length)
    }

    /// A text written by `write_bytes`.
    ///
    /// # Errors
    /// The bytes end before, or are invalid.
    #[inline]
    pub fn text(&mut self) -> Result<&'a str, Damaged> {
        std::str::from_utf8(self.bytes()?).map_err(|_| Damaged)
    }

    /// The eight bytes of a double.
    ///
    /// # Errors
    /// The bytes end before, or hold something else.
    #[inline]
    pub fn float(&mut self) -> Result<f64, Damaged> {
        let bytes = self.take(8)?;
        Ok(f64::from_le_bytes(bytes.try_into().expect("eight bytes were taken")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn numbers_come_back(unsigned: u64, signed: i64, bytes: Vec<u8>) {
            let mut out = Vec::new();
            write_varint(&mut out, unsigned);
            write_signed(&mut out, signed);
            write_bytes(&mut out, &bytes);
            let mut reader = Reader::new(&out);
            prop_assert_eq!(reader.varint(), Ok(unsigned));
            prop_assert_eq!(reader.signed(), Ok(signed));
            prop_assert_eq!(reader.bytes(), Ok(&bytes[..]));
            prop_assert!(reader.is_empty());
        }

        #[test]
        fn damage_is_an_error(bytes: Vec<u8>) {
            let mut reader = Reader::new(&bytes);
            while reader.bytes().is_ok() && !reader.is_empty() {}
        }
    }
}
