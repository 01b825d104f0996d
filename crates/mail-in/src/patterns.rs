//! Address patterns of recipients, with `*` for any characters.

/// A set of case-insensitive address patterns.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Patterns(Vec<String>);

impl Patterns {
    /// Creates the set from texts such as `alarms@example.org`, `*@alarms.example.org`, `meter-*@example.org`, `*`.
    pub fn new(patterns: &[String]) -> Patterns {
        Patterns(patterns.iter().map(|pattern| pattern.to_lowercase()).collect())
    }

    /// Whether one of the patterns matches this address.
    pub fn matches(&self, address: &str) -> bool {
        let address = address.to_lowercase();
        self.0.iter().any(|pattern| matches_pattern(pattern, &address))
    }
}

/// Whether a text matches a pattern. Takes time proportional to both.
fn matches_pattern(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_matches_any_characters() {
        let check = |pattern: &str, address: &str, expected: bool| {
            assert_eq!(Patterns::new(&[pattern.to_owned()]).matches(address), expected, "{pattern} {address}");
        };
        check("alarms@example.org", "Alarms@EXAMPLE.org", true);
        check("alarms@example.org", "alarms@example.org.evil.example", false);
        check("*@example.org", "a@example.org", true);
        check("*@example.org", "a@b.example.org", false);
        check("meter-*@*.example.org", "meter-7@north.example.org", true);
        check("meter-*@*.example.org", "meter-7@example.org", false);
        check("a*a", "a", false);
        check("*", "", true);
        check("Größe@example.org", "GRÖSSE@example.org", false);
        check("grüße@example.org", "GRÜßE@example.org", true);
    }
}
