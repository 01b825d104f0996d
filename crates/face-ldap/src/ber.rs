//! The subset of BER (X.690) that LDAP uses: one-byte tags and definite lengths. Lengths are limited before anything is
//! allocated; docs/decisions/0018 names the crates that do not do so.

/// BER decoding error, or a violation of LDAP's restrictions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecodeError(pub &'static str);

/// Decodes values one after the other.
#[derive(Debug, Clone, Copy)]
pub struct Reader<'a>(pub &'a [u8]);

/// Length of the first value; `None` until enough bytes are available.
///
/// # Errors
/// The bytes are not BER, or the value is longer than `max`.
pub fn first_length(bytes: &[u8], max: usize) -> Result<Option<usize>, DecodeError> {
    let [tag, first, rest @ ..] = bytes else { return Ok(None) };
    if tag & 0x1f == 0x1f {
        return Err(DecodeError("a tag of more than one byte"));
    }
    let (head, length) = match *first {
        short @ 0..0x80 => (2, usize::from(short)),
        0x80 => return Err(DecodeError("an indefinite length")),
        long => {
            let digits = usize::from(long & 0x7f);
            if digits > 4 {
                return Err(DecodeError("a length of more than four bytes"));
            }
            let Some(digits) = rest.get(..digits) else { return Ok(None) };
            (2 + digits.len(), digits.iter().fold(0, |length, digit| length << 8 | usize::from(*digit)))
        }
    };
    if head + length > max {
        return Err(DecodeError("a message that is too long"));
    }
    Ok((bytes.len() >= head + length).then_some(head + length))
}

impl<'a> Reader<'a> {
    /// Whether all bytes are consumed.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The tag of the next value.
    pub fn tag(&self) -> Option<u8> {
        self.0.first().copied()
    }

    /// Tag and content of the next value.
    pub fn value(&mut self) -> Result<(u8, &'a [u8]), DecodeError> {
        let end = first_length(self.0, usize::MAX >> 1)?.ok_or(DecodeError("a value that is cut off"))?;
        let (value, rest) = self.0.split_at(end);
        self.0 = rest;
        let head = match value[1] {
            0..0x80 => 2,
            long => 2 + usize::from(long & 0x7f),
        };
        Ok((value[0], &value[head..]))
    }

    /// The content of the next value, which must have this tag.
    pub fn expect(&mut self, tag: u8) -> Result<&'a [u8], DecodeError> {
        match self.value()? {
            (found, content) if found == tag => Ok(content),
            _ => Err(DecodeError("a value of another kind than expected")),
        }
    }

    /// The content of the next value if it has this tag.
    pub fn optional(&mut self, tag: u8) -> Result<Option<&'a [u8]>, DecodeError> {
        if self.tag() == Some(tag) { self.expect(tag).map(Some) } else { Ok(None) }
    }

    /// An integer from 0 to 2^31 - 1.
    pub fn count(&mut self, tag: u8) -> Result<u32, DecodeError> {
        let content = self.expect(tag)?;
        let fits = !content.is_empty() && content.len() <= 8 && content[0] < 0x80;
        let number = content.iter().fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
        u32::try_from(number)
            .ok()
            .filter(|number| fits && *number <= i32::MAX as u32)
            .ok_or(DecodeError("a number that is below zero or too large"))
    }

    /// A boolean.
    pub fn boolean(&mut self, tag: u8) -> Result<bool, DecodeError> {
        match self.expect(tag)? {
            [value] => Ok(*value != 0),
            _ => Err(DecodeError("a truth value of another length than one")),
        }
    }

    /// UTF-8 text.
    pub fn text(&mut self, tag: u8) -> Result<String, DecodeError> {
        let content = self.expect(tag)?;
        std::str::from_utf8(content).map(str::to_owned).map_err(|_| DecodeError("text that is not UTF-8"))
    }
}

/// Number of bytes of an encoded length.
pub fn length_bytes(length: usize) -> usize {
    match length {
        0..0x80 => 1,
        0x80..0x100 => 2,
        0x100..0x1_0000 => 3,
        0x1_0000..0x100_0000 => 4,
        _ => 5,
    }
}

/// Encodes a tag and a length.
pub fn head(out: &mut Vec<u8>, tag: u8, length: usize) {
    out.push(tag);
    let digits = length_bytes(length) - 1;
    if digits == 0 {
        return out.push(length as u8);
    }
    out.push(0x80 | digits as u8);
    out.extend_from_slice(&(length as u32).to_be_bytes()[4 - digits..]);
}

/// Encodes a value.
pub fn value(out: &mut Vec<u8>, tag: u8, content: &[u8]) {
    head(out, tag, content.len());
    out.extend_from_slice(content);
}

/// Encodes an integer.
pub fn number(out: &mut Vec<u8>, tag: u8, number: u32) {
    let bytes = i64::from(number).to_be_bytes();
    let skip = (0..7).take_while(|at| bytes[*at] == 0 && bytes[at + 1] < 0x80).count();
    value(out, tag, &bytes[skip..]);
}

/// Encodes a value whose content `write` appends.
pub fn nested(out: &mut Vec<u8>, tag: u8, write: impl FnOnce(&mut Vec<u8>)) {
    out.extend_from_slice(&[tag, 0]);
    let start = out.len();
    write(out);
    let length = out.len() - start;
    let more = length_bytes(length) - 1;
    if more == 0 {
        out[start - 1] = length as u8;
        return;
    }
    // Most values are short, so only long ones are moved.
    out.resize(out.len() + more, 0);
    out.copy_within(start..start + length, start + more);
    out[start - 1] = 0x80 | more as u8;
    out[start..start + more].copy_from_slice(&(length as u32).to_be_bytes()[4 - more..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoded_values_can_be_decoded() {
        for length in [0, 1, 127, 128, 255, 256, 65_535, 65_536, 1 << 24] {
            let content = vec![7; length];
            let (mut plain, mut inner) = (Vec::new(), Vec::new());
            value(&mut plain, 0x04, &content);
            nested(&mut inner, 0x04, |out| out.extend_from_slice(&content));
            assert_eq!(plain, inner, "{length}");
            let mut reader = Reader(&plain);
            assert_eq!(reader.expect(0x04), Ok(content.as_slice()));
            assert!(reader.is_empty());
            assert_eq!(first_length(&plain[..plain.len() - 1], usize::MAX >> 1).ok().flatten(), None);
        }
        for count in [0, 1, 127, 128, 255, 256, 30_001, i32::MAX as u32] {
            let mut out = Vec::new();
            number(&mut out, 2, count);
            assert_eq!(Reader(&out).count(2), Ok(count));
        }
    }

    #[test]
    fn what_ldap_forbids_is_rejected() {
        let check = |bytes: &[u8]| assert!(first_length(bytes, 1 << 18).is_err(), "{bytes:?}");
        check(&[0x30, 0x80]);
        check(&[0x30, 0x85, 1, 0, 0, 0, 0]);
        check(&[0x30, 0x84, 0xff, 0xff, 0xff, 0xff]);
        check(&[0x30, 0x83, 0x04, 0, 0]);
        check(&[0x3f, 0x81, 1]);
        assert!(Reader(&[2, 1, 0xff]).count(2).is_err());
        assert!(Reader(&[2, 0]).count(2).is_err());
        assert!(Reader(&[4, 5, 1]).value().is_err());
    }
}
