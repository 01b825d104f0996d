//! The text of a mail after DATA: up to a dot alone in a line, where lines end with CR LF and with nothing else.
//!
//! Servers that find an end where others find none have been led to take one mail for two (smuggling), so this looks more
//! closely than a mail needs.

/// A text that comes in pieces.
#[derive(Debug)]
pub(crate) struct Data {
    place: Place,
    bytes_max: usize,
    /// Whether it is longer; then it is only read to its end.
    pub is_too_long: bool,
    /// Whether a CR or an LF stands alone in it, which RFC 5321, section 2.3.8 forbids: servers that take it for the end of a
    /// line read another text.
    pub has_bare_break: bool,
}

/// What came last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    LineStart,
    Within,
    Cr,
    /// A dot at the start of a line: it stands for itself only if it ends the text.
    Dot,
    DotCr,
}

impl Data {
    pub fn new(bytes_max: usize) -> Data {
        Data { place: Place::LineStart, bytes_max, is_too_long: false, has_bare_break: false }
    }

    /// Takes what belongs to the text out of what came, and says whether its end was there.
    pub fn take(&mut self, bytes: &mut std::slice::Iter<'_, u8>, text: &mut Vec<u8>) -> bool {
        while let Some(byte) = bytes.next() {
            let (place, said): (_, &[u8]) = match (self.place, *byte) {
                (Place::LineStart, b'.') => (Place::Dot, b""),
                (Place::Cr, b'\n') => (Place::LineStart, b"\n"),
                (Place::Dot, b'\r') => (Place::DotCr, b""),
                (Place::DotCr, b'\n') => return true,
                (Place::DotCr, b'\r') => (Place::Cr, b"\r\r"),
                (Place::DotCr, _) => {
                    self.put(b"\r", text);
                    (Place::Within, std::slice::from_ref(byte))
                }
                (_, b'\r') => (Place::Cr, b"\r"),
                (_, _) => (Place::Within, std::slice::from_ref(byte)),
            };
            // An LF that ends no line, and a CR behind which no LF comes.
            let is_after_cr = matches!(self.place, Place::Cr | Place::DotCr);
            self.has_bare_break |= is_after_cr != (*byte == b'\n');
            self.put(said, text);
            self.place = place;
            if place == Place::Within {
                let rest = bytes.as_slice();
                let end = rest.iter().position(|byte| matches!(byte, b'\r' | b'\n')).unwrap_or(rest.len());
                let (plain, rest) = rest.split_at(end);
                self.put(plain, text);
                *bytes = rest.iter();
            }
        }
        false
    }

    fn put(&mut self, said: &[u8], text: &mut Vec<u8>) {
        if text.len() + said.len() > self.bytes_max {
            self.is_too_long = true;
        }
        match self.is_too_long {
            true => *text = Vec::new(),
            false => text.extend_from_slice(said),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_dot_alone_in_a_line_ends_a_text() {
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
    fn a_text_that_is_too_long_is_read_to_its_end() {
        let (mut data, mut text) = (Data::new(3), Vec::new());
        assert!(!data.take(&mut b"abcd\r\n".iter(), &mut text) && data.is_too_long);
        assert!(data.take(&mut b"more\r\n.\r\n".iter(), &mut text) && text.is_empty());
    }

    #[test]
    fn c12_a_bare_line_break_is_found_wherever_it_stands() {
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
