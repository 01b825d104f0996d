use std::net::IpAddr;

/// Longest domain name (RFC 1035, section 2.3.4).
const NAME_MAX: usize = 253;

/// A domain with macros.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DomainSpec {
    parts: Vec<Part>,
    text: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Literal(String),
    Macro { letter: char, is_escaped: bool, labels: Option<usize>, is_reversed: bool, delimiters: String },
}

/// Values of macros.
#[derive(Debug, Clone, Copy)]
pub(super) struct Values<'a> {
    pub address: IpAddr,
    pub domain: &'a str,
    /// Local part and domain of the sender.
    pub local: &'a str,
    pub sender_domain: &'a str,
    pub helo: &'a str,
    /// The validated name of the address (`p`).
    pub validated: &'a str,
}

impl DomainSpec {
    /// Parses a domain; its last part is a top-level domain or a macro.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        let spec = DomainSpec::parse_text(text)?;
        if text.ends_with('}') && matches!(spec.parts.last(), Some(Part::Macro { .. })) {
            return Ok(spec);
        }
        let (before, last) = text.strip_suffix('.').unwrap_or(text).rsplit_once('.').ok_or("a domain has a dot")?;
        let is_label = last.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
            && !last.starts_with('-')
            && !last.ends_with('-')
            && last.bytes().any(|byte| !byte.is_ascii_digit());
        // A dot within a macro is a delimiter.
        let is_outside = before.rfind("%{").is_none_or(|at| before[at..].contains('}'));
        if is_label && is_outside { Ok(spec) } else { Err("the last label is not that of a domain") }
    }

    /// Parses a text with macros.
    pub fn parse_text(text: &str) -> Result<Self, &'static str> {
        let (mut parts, mut literal, mut rest) = (Vec::new(), String::new(), text);
        while let Some(next) = rest.chars().next() {
            if next != '%' {
                literal.push(next);
                rest = &rest[next.len_utf8()..];
                continue;
            }
            let escaped = match rest.as_bytes().get(1) {
                Some(b'%') => Some("%"),
                Some(b'_') => Some(" "),
                Some(b'-') => Some("%20"),
                Some(b'{') => None,
                _ => return Err("`%` begins a macro; write `%%` for the character"),
            };
            if let Some(escaped) = escaped {
                literal.push_str(escaped);
                rest = &rest[2..];
                continue;
            }
            let (body, after) = rest[2..].split_once('}').ok_or("a macro is not closed")?;
            if !literal.is_empty() {
                parts.push(Part::Literal(std::mem::take(&mut literal)));
            }
            parts.push(parse_macro(body)?);
            rest = after;
        }
        if !literal.is_empty() {
            parts.push(Part::Literal(literal));
        }
        Ok(DomainSpec { parts, text: text.to_owned() })
    }

    /// As written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether a value depends on more than the domain.
    pub fn depends_on_mail(&self) -> bool {
        self.parts.iter().any(|part| matches!(part, Part::Macro { letter, .. } if *letter != 'd'))
    }

    /// Whether it has the macro `p`, which needs lookups.
    pub fn has_validated_name(&self) -> bool {
        self.parts.iter().any(|part| matches!(part, Part::Macro { letter: 'p', .. }))
    }

    /// The domain with its macros expanded, cut from the left to the length of a domain name.
    pub fn expanded(&self, values: &Values<'_>) -> String {
        let mut expanded = String::new();
        for part in &self.parts {
            match part {
                Part::Literal(text) => expanded.push_str(text),
                Part::Macro { letter, is_escaped, labels, is_reversed, delimiters } => {
                    let value = values.value(*letter);
                    let mut split: Vec<&str> = value.split(|c| delimiters.contains(c)).collect();
                    if *is_reversed {
                        split.reverse();
                    }
                    let skipped = labels.map_or(0, |labels| split.len().saturating_sub(labels));
                    let value = split[skipped..].join(".");
                    if *is_escaped { expanded.push_str(&escaped(&value)) } else { expanded.push_str(&value) }
                }
            }
        }
        let mut name = expanded.strip_suffix('.').unwrap_or(&expanded);
        while name.len() > NAME_MAX {
            name = name.split_once('.').map_or("", |(_, rest)| rest);
        }
        name.to_owned()
    }
}

impl Values<'_> {
    fn value(&self, letter: char) -> String {
        match letter {
            's' => format!("{}@{}", self.local, self.sender_domain),
            'l' => self.local.to_owned(),
            'o' => self.sender_domain.to_owned(),
            'd' => self.domain.to_owned(),
            'h' => self.helo.to_owned(),
            'p' => self.validated.to_owned(),
            'i' => match self.address {
                IpAddr::V4(address) => address.to_string(),
                IpAddr::V6(address) => {
                    let digits = format!("{:032x}", address.to_bits());
                    let digits: Vec<&str> = digits.split("").filter(|digit| !digit.is_empty()).collect();
                    digits.join(".")
                }
            },
            // The only one left in a domain: the family.
            _ => if self.address.is_ipv4() { "in-addr" } else { "ip6" }.to_owned(),
        }
    }
}

/// The part between the braces: letter, number of labels, `r`, delimiters.
fn parse_macro(body: &str) -> Result<Part, &'static str> {
    let mut chars = body.chars();
    let first = chars.next().ok_or("there is no such macro")?;
    let letter = first.to_ascii_lowercase();
    // `c`, `r` and `t` are for explanations only (section 7.2).
    if !"slodiphv".contains(letter) {
        return Err("there is no such macro");
    }
    let rest = chars.as_str();
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let (digits, rest) = rest.split_at(end);
    let labels = match digits {
        "" => None,
        // More labels than a name can have are all labels.
        _ if digits.bytes().any(|digit| digit != b'0') => Some(digits.parse().unwrap_or(usize::MAX)),
        _ => return Err("this is not the number of labels of a macro"),
    };
    let without = rest.strip_prefix(['r', 'R']);
    let (is_reversed, delimiters) = (without.is_some(), without.unwrap_or(rest));
    if !delimiters.chars().all(|c| ".-+,/_=".contains(c)) {
        return Err("this is not a delimiter of a macro");
    }
    let delimiters = if delimiters.is_empty() { "." } else { delimiters }.to_owned();
    Ok(Part::Macro { letter, is_escaped: first.is_ascii_uppercase(), labels, is_reversed, delimiters })
}

/// Percent-encoding of all but unreserved characters (section 7.3).
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => escaped.push(char::from(byte)),
            _ => escaped.push_str(&format!("%{byte:02X}")),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of RFC 7208, section 7.4.
    #[test]
    fn the_examples_of_the_standard_are_expanded() {
        let values = |address: &str| Values {
            address: address.parse().expect("an address"),
            domain: "email.example.com",
            local: "strong-bad",
            sender_domain: "email.example.com",
            helo: "mx.example.org",
            validated: "unknown",
        };
        for (text, expected) in [
            ("%{s}", "strong-bad@email.example.com"),
            ("%{o}", "email.example.com"),
            ("%{d}", "email.example.com"),
            ("%{d4}", "email.example.com"),
            ("%{d3}", "email.example.com"),
            ("%{d2}", "example.com"),
            ("%{d1}", "com"),
            ("%{dr}", "com.example.email"),
            ("%{d2r}", "example.email"),
            ("%{l}", "strong-bad"),
            ("%{l-}", "strong.bad"),
            ("%{lr}", "strong-bad"),
            ("%{lr-}", "bad.strong"),
            ("%{l1r-}", "strong"),
            ("%{ir}.%{v}._spf.%{d2}", "3.2.0.192.in-addr._spf.example.com"),
            ("%{lr-}.lp._spf.%{d2}", "bad.strong.lp._spf.example.com"),
            ("%{lr-}.lp.%{ir}.%{v}._spf.%{d2}", "bad.strong.lp.3.2.0.192.in-addr._spf.example.com"),
            ("%{ir}.%{v}.%{l1r-}.lp._spf.%{d2}", "3.2.0.192.in-addr.strong.lp._spf.example.com"),
            ("%{d2}.trusted-domains.example.net", "example.com.trusted-domains.example.net"),
            ("m%%n%_%_o%-p.%{d}", "m%n  o%20p.email.example.com"),
            ("%{S}.a.%{p}", "strong-bad%40email.example.com.a.unknown"),
        ] {
            let spec = DomainSpec::parse(text).expect("well-formed");
            assert_eq!(spec.expanded(&values("192.0.2.3")), expected, "{text}");
        }
        let spec = DomainSpec::parse("%{ir}.%{v}._spf.%{d2}").expect("well-formed");
        let expected = "1.0.b.c.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6._spf.example.com";
        assert_eq!(spec.expanded(&values("2001:db8::cb01")), expected);
    }

    #[test]
    fn long_names_lose_labels_on_the_left() {
        let label = "a".repeat(63);
        let spec = DomainSpec::parse(&format!("{label}.{label}.{label}.{label}.example.org")).expect("well-formed");
        let values = Values {
            address: [192, 0, 2, 1].into(),
            domain: "",
            local: "",
            sender_domain: "",
            helo: "",
            validated: "",
        };
        assert_eq!(spec.expanded(&values), format!("{label}.{label}.{label}.example.org"));
    }
}
