//! Distinguished names in text form (RFC 4514).

/// A relative distinguished name: one assertion, or several joined by `+`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rdn {
    /// Text without spaces around it, `=` and `+`; output uses this form (RFC 4514, 2).
    pub text: String,
    /// Attribute names with their values.
    pub assertions: Vec<(String, Vec<u8>)>,
}

/// A distinguished name: relative names, the entry's own first. Empty means the root.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Dn(pub Vec<Rdn>);

/// The text is not a distinguished name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("at character {at}: {what}")]
pub struct DnError {
    /// Byte offset, from 0.
    pub at: usize,
    /// The error.
    pub what: &'static str,
}

/// Maximum relative names of one DN.
pub const RDNS_MAX: usize = 64;
/// Maximum length of the text, in bytes.
pub const DN_BYTES_MAX: usize = 8 * 1024;

impl Dn {
    /// Parses a DN. Spaces are allowed around `,`, `+` and `=`, as in RFC 2253.
    ///
    /// # Errors
    /// The text is malformed; the error says where and why.
    pub fn parse(text: &str) -> Result<Dn, DnError> {
        if text.len() > DN_BYTES_MAX {
            return Err(DnError { at: DN_BYTES_MAX, what: "a distinguished name has at most 8 KiB" });
        }
        let mut reader = Reader { text, bytes: text.as_bytes(), at: 0 };
        reader.skip_spaces();
        let mut rdns = Vec::new();
        if reader.is_at_end() {
            return Ok(Dn(rdns));
        }
        loop {
            rdns.push(reader.rdn()?);
            if rdns.len() > RDNS_MAX {
                return reader.fail("a distinguished name has at most 64 parts");
            }
            match reader.next() {
                None => return Ok(Dn(rdns)),
                Some(b',' | b';') => {}
                Some(_) => {
                    reader.at -= 1;
                    return reader.fail("expected `,` or the end");
                }
            }
        }
    }
}

/// Appends a value, escaped for a DN.
pub fn escape(value: &str, out: &mut String) {
    let last = value.len().saturating_sub(1);
    for (at, c) in value.char_indices() {
        match c {
            '"' | '+' | ',' | ';' | '<' | '>' | '\\' | '=' => {
                out.push('\\');
                out.push(c);
            }
            '\0' => out.push_str("\\00"),
            ' ' if at == 0 || at == last => out.push_str("\\ "),
            '#' if at == 0 => out.push_str("\\#"),
            c => out.push(c),
        }
    }
}

struct Reader<'a> {
    text: &'a str,
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn fail<T>(&self, what: &'static str) -> Result<T, DnError> {
        Err(DnError { at: self.at, what })
    }

    fn is_at_end(&self) -> bool {
        self.at >= self.bytes.len()
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn next(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        self.at += 1;
        Some(byte)
    }

    fn skip_spaces(&mut self) {
        while self.peek() == Some(b' ') {
            self.at += 1;
        }
    }

    fn rdn(&mut self) -> Result<Rdn, DnError> {
        self.skip_spaces();
        let mut text = String::new();
        let mut assertions = Vec::new();
        loop {
            let name = self.name()?;
            let start = self.at;
            let value = if self.peek() == Some(b'#') { self.hex_value()? } else { self.value()? };
            text.push_str(&name);
            text.push('=');
            text.push_str(&self.text[start..self.at]);
            self.skip_spaces();
            assertions.push((name, value));
            if self.peek() != Some(b'+') {
                return Ok(Rdn { text, assertions });
            }
            text.push('+');
            self.at += 1;
            self.skip_spaces();
        }
    }

    fn name(&mut self) -> Result<String, DnError> {
        let start = self.at;
        while self.peek().is_some_and(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_')) {
            self.at += 1;
        }
        if self.at == start {
            return self.fail("expected the name of an attribute");
        }
        let name = self.text[start..self.at].to_owned();
        self.skip_spaces();
        if self.next() != Some(b'=') {
            self.at = self.at.saturating_sub(1);
            return self.fail("expected `=`");
        }
        self.skip_spaces();
        Ok(name)
    }

    fn value(&mut self) -> Result<Vec<u8>, DnError> {
        let mut value = Vec::new();
        // Trailing spaces count only if they are escaped.
        let mut kept = 0;
        let mut end = self.at;
        while let Some(byte) = self.peek() {
            match byte {
                b',' | b'+' | b';' => break,
                b'"' | b'<' | b'>' | 0 => return self.fail("this character must be escaped by `\\`"),
                b'\\' => {
                    self.at += 1;
                    value.push(self.escaped()?);
                    (kept, end) = (value.len(), self.at);
                }
                byte => {
                    self.at += 1;
                    value.push(byte);
                    if byte != b' ' {
                        (kept, end) = (value.len(), self.at);
                    }
                }
            }
        }
        value.truncate(kept);
        self.at = end;
        Ok(value)
    }

    fn escaped(&mut self) -> Result<u8, DnError> {
        match self.next() {
            Some(byte) if byte.is_ascii_hexdigit() => {
                let Some(low) = self.next().and_then(digit) else {
                    return self.fail("expected two hexadecimal digits");
                };
                Ok(digit(byte).unwrap_or_default() << 4 | low)
            }
            Some(byte @ (b' ' | b'"' | b'#' | b'+' | b',' | b';' | b'<' | b'=' | b'>' | b'\\')) => Ok(byte),
            _ => self.fail("expected a special character or two hexadecimal digits after `\\`"),
        }
    }

    /// Parses `#` and the BER encoding of a value; for a string, the result is its content.
    fn hex_value(&mut self) -> Result<Vec<u8>, DnError> {
        self.at += 1;
        let mut ber = Vec::new();
        while let Some(high) = self.peek().and_then(digit) {
            self.at += 1;
            let Some(low) = self.next().and_then(digit) else {
                return self.fail("expected an even number of hexadecimal digits");
            };
            ber.push(high << 4 | low);
        }
        match ber.as_slice() {
            [_, length, content @ ..] if *length < 128 && content.len() == usize::from(*length) => Ok(content.to_vec()),
            [_, 0x81, length, content @ ..] if content.len() == usize::from(*length) => Ok(content.to_vec()),
            _ => self.fail("expected the BER encoding of a value in hexadecimal digits after `#`"),
        }
    }
}

fn digit(byte: u8) -> Option<u8> {
    (byte as char).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_of_rfc_4514_are_parsed() {
        let check = |text: &str, expected: &[&[(&str, &str)]]| {
            let dn = Dn::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            let read: Vec<Vec<(String, String)>> =
                dn.0.iter()
                    .map(|rdn| {
                        let text = |value: &Vec<u8>| String::from_utf8_lossy(value).into_owned();
                        rdn.assertions.iter().map(|(name, value)| (name.clone(), text(value))).collect()
                    })
                    .collect();
            let own = |part: &&[(&str, &str)]| part.iter().map(|(a, b)| (a.to_string(), b.to_string())).collect();
            assert_eq!(read, expected.iter().map(own).collect::<Vec<Vec<_>>>(), "{text}");
        };
        check("", &[]);
        check("UID=jsmith,DC=example,DC=net", &[&[("UID", "jsmith")], &[("DC", "example")], &[("DC", "net")]]);
        check("OU=Sales+CN=J.  Smith,DC=net", &[&[("OU", "Sales"), ("CN", "J.  Smith")], &[("DC", "net")]]);
        check(r#"CN=James \"Jim\" Smith\, III,DC=net"#, &[&[("CN", r#"James "Jim" Smith, III"#)], &[("DC", "net")]]);
        check(r"CN=Before\0dAfter,DC=net", &[&[("CN", "Before\rAfter")], &[("DC", "net")]]);
        check("1.3.6.1.4.1.1466.0=#04024869", &[&[("1.3.6.1.4.1.1466.0", "Hi")]]);
        check(r"CN=Lu\C4\8Di\C4\87", &[&[("CN", "Lučić")]]);
        check(r" cn = a b  , dc = x ", &[&[("cn", "a b")], &[("dc", "x")]]);
        check(r"cn=\ a\ ,o=", &[&[("cn", " a ")], &[("o", "")]]);
    }

    #[test]
    fn a_name_is_shown_without_spaces_around_its_parts() {
        let dn = Dn::parse(r" cn = a b\   + sn= c , dc = x ").expect("a name");
        let texts: Vec<&str> = dn.0.iter().map(|rdn| rdn.text.as_str()).collect();
        assert_eq!(texts, [r"cn=a b\ +sn=c", "dc=x"]);
    }

    #[test]
    fn a_malformed_name_is_rejected() {
        for text in
            ["x", "=a", "cn=a,", "cn=a,,o=b", "cn=a\"b", r"cn=\zz", r"cn=\4", "cn=#0", "cn=#05", "cn=a+", ",", "cn<a"]
        {
            assert!(Dn::parse(text).is_err(), "{text}");
        }
        assert!(Dn::parse(&"a=b,".repeat(100)).is_err());
        assert!(Dn::parse(&format!("cn={}", "x".repeat(DN_BYTES_MAX))).is_err());
    }

    #[test]
    fn an_escaped_value_is_parsed_unchanged() {
        for value in [" a ", "#x", "a,b+c", "\"<>\\;=", "*)(uid=*))(|(uid=*", "\0", " "] {
            let mut text = "cn=".to_owned();
            escape(value, &mut text);
            let dn = Dn::parse(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(dn.0[0].assertions[0].1, value.as_bytes(), "{text}");
        }
    }
}
