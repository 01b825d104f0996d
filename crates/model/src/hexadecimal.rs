//! Bytes as hexadecimal digits.

/// Two digits for each byte, in lower case.
pub fn digits_of(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    bytes.iter().flat_map(|byte| [byte >> 4, byte & 15].map(|half| char::from(DIGITS[usize::from(half)]))).collect()
}

/// Decodes digits in either case; `None` for an odd number of digits or another character.
pub fn bytes_of(digits: &str) -> Option<Vec<u8>> {
    let half = |digit: u8| char::from(digit).to_digit(16);
    let byte = |pair: &[u8]| Some((half(pair[0])? << 4 | half(*pair.get(1)?)?) as u8);
    digits.as_bytes().chunks(2).map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_and_bytes_are_the_same() {
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(bytes_of(&digits_of(&all)), Some(all.clone()));
        assert_eq!(bytes_of(&digits_of(&all).to_uppercase()), Some(all));
        assert_eq!((digits_of(&[0, 0xA9]), bytes_of("")), ("00a9".to_owned(), Some(Vec::new())));
        for wrong in ["0", "0g", "+1", "é", "abc"] {
            assert_eq!(bytes_of(wrong), None, "{wrong}");
        }
    }
}
