//! Decoder of the mail data after DATA: it ends at a line with a single dot, where only CR LF ends a line.
//!
//! Servers that disagree about the end of a mail can be made to see one mail as two (SMTP smuggling), so this decoder
//! is stricter than necessary.

/// A decoder of mail data that arrives in pieces.
#[derive(Debug)]
pub(crate) struct Data {
    state: DataState,
    bytes_max: usize,
    /// Whether the mail is longer than the limit; then the rest is only skipped.
    pub is_too_long: bool,
    /// Whether it contains a CR or an LF alone, which RFC 5321, section 2.3.8 forbids: servers that take it for the
    /// end of a line read another text.
    pub has_bare_break: bool,
}

/// Position in the line, by the last bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DataState {
    LineStart,
    Within,
    Cr,
    /// A dot at the start of a line: it is kept only if it ends the data.
    Dot,
    DotCr,
}

impl Data {
    pub fn new(bytes_max: usize) -> Data {
        Data { state: DataState::LineStart, bytes_max, is_too_long: false, has_bare_break: false }
    }

    /// Decodes data from the received bytes, and returns whether its end was reached.
    pub fn take(&mut self, bytes: &mut std::slice::Iter<'_, u8>, text: &mut Vec<u8>) -> bool {
        while let Some(byte) = bytes.next() {
            let (state, decoded): (_, &[u8]) = match (self.state, *byte) {
                (DataState::LineStart, b'.') => (DataState::Dot, b""),
                (DataState::Cr, b'\n') => (DataState::LineStart, b"\n"),
                (DataState::Dot, b'\r') => (DataState::DotCr, b""),
                (DataState::DotCr, b'\n') => return true,
                (DataState::DotCr, b'\r') => (DataState::Cr, b"\r\r"),
                (DataState::DotCr, _) => {
                    self.put(b"\r", text);
                    (DataState::Within, std::slice::from_ref(byte))
                }
                (_, b'\r') => (DataState::Cr, b"\r"),
                (_, _) => (DataState::Within, std::slice::from_ref(byte)),
            };
            // An LF without a preceding CR, or a CR without a following LF.
            let is_after_cr = matches!(self.state, DataState::Cr | DataState::DotCr);
            self.has_bare_break |= is_after_cr != (*byte == b'\n');
            self.put(decoded, text);
            self.state = state;
            if state == DataState::Within {
                let rest = bytes.as_slice();
                let end = rest.iter().position(|byte| matches!(byte, b'\r' | b'\n')).unwrap_or(rest.len());
                let (plain, rest) = rest.split_at(end);
                self.put(plain, text);
                *bytes = rest.iter();
            }
        }
        false
    }

    fn put(&mut self, decoded: &[u8], text: &mut Vec<u8>) {
        if text.len() + decoded.len() > self.bytes_max {
            self.is_too_long = true;
        }
        match self.is_too_long {
            true => *text = Vec::new(),
            false => text.extend_from_slice(decoded),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_line_with_a_single_dot_ends_the_data() {
        let check = |came: &str, expected: Option<(&str, &str)>| {
            for size in 1..=came.len() {
                let (mut data, mut text, mut rest, mut ended) = (Data::new(100), Vec::new(), Vec::new(), false);
                for piece in came.as_bytes().chunks(size) {
                    let mut bytes = piece.iter();
                    ended = ended || data.take(&mut bytes, &mut text);
                    rest.extend_from_slice(bytes.as_slice());
                }
                let text = String::from_utf8_lossy(&text).into_owned();
                let rest = String::from_utf8_lossy(&rest).into_owned();
                let found = ended.then_some((text.as_str(), rest.as_str()));
                assert_eq!(found, expected, "{came:?} in pieces of {size}");
            }
        };
        check(".\r\nrest", Some(("", "rest")));
        check("a\r\n.\r\nrest", Some(("a\r\n", "rest")));
        check("..\r\n.a\r\n...\r\n.\r\n", Some((".\r\na\r\n..\r\n", "")));
        check(
            "\n.\n\r.\r\n\n.\r\n\r.\r\r\n.\r\r\n.\n\r\n.\r\n",
            Some(("\n.\n\r.\r\n\n.\r\n\r.\r\r\n\r\r\n\n\r\n", "")),
        );
        check("a\r\n.\rb\r\n", None);
    }

    #[test]
    fn data_above_the_limit_is_skipped_to_its_end() {
        let (mut data, mut text) = (Data::new(3), Vec::new());
        assert!(!data.take(&mut b"abcd\r\n".iter(), &mut text) && data.is_too_long);
        assert!(data.take(&mut b"more\r\n.\r\n".iter(), &mut text) && text.is_empty());
    }

    #[test]
    fn c12_bare_line_breaks_are_found_at_any_position() {
        for (came, expected) in [
            ("a\r\nb\r\n.\r\n", false),
            (".\r\n", false),
            ("..\r\n.\r\n", false),
            ("a\nb\r\n.\r\n", true),
            ("a\rb\r\n.\r\n", true),
            ("a\r\n.\n.\r\nb\r\n.\r\n", true),
            ("a\n.\r\nb\r\n.\r\n", true),
            ("a\r\n.\rb\r\n.\r\n", true),
            ("a\r.\r\n\r\n.\r\n", true),
            ("a\r\r\n.\r\n", true),
            ("\n.\r\n\r\n.\r\n", true),
        ] {
            for size in 1..=came.len() {
                let (mut data, mut text, mut ended) = (Data::new(100), Vec::new(), false);
                for piece in came.as_bytes().chunks(size) {
                    ended = ended || data.take(&mut piece.iter(), &mut text);
                }
                assert!(ended, "{came:?}");
                assert_eq!(data.has_bare_break, expected, "{came:?} in pieces of {size}");
            }
        }
    }
}
