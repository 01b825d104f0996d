//! Strict percent-decoding (RFC 3986, section 2.1): a `%` without two hexadecimal digits is malformed.

/// Decodes percent-encoding; `None` if it is malformed.
pub fn decoded(text: &[u8]) -> Option<Vec<u8>> {
    let is_octet = |after: &[u8]| after.get(..2).is_some_and(|pair| pair.iter().all(u8::is_ascii_hexdigit));
    let is_well_formed = text.split(|byte| *byte == b'%').skip(1).all(is_octet);
    is_well_formed.then(|| percent_encoding::percent_decode(text).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_encodings_are_rejected() {
        let check =
            |text: &str, expected: Option<&[u8]>| assert_eq!(decoded(text.as_bytes()).as_deref(), expected, "{text}");
        check("", Some(b""));
        check("a%20b%2f%2F%ff", Some(b"a b//\xff"));
        for wrong in ["%", "a%", "%4", "%%41", "%4g", "%+4", "%é"] {
            check(wrong, None);
        }
    }
}
