//! Redacts addresses and texts for logs: recognisable, but not usable.

/// The longest text that is logged, in characters.
pub const TEXT_CHARACTERS_MAX: usize = 2_048;

/// An address without its personal part: `a…@example.org`, `https://hooks.example/…`, `+43…12`.
pub fn address(address: &str) -> String {
    if let Some((scheme, rest)) = address.split_once("://") {
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let host = authority.rsplit('@').next().unwrap_or_default();
        return format!("{scheme}://{host}/…");
    }
    if let Some((local, domain)) = address.rsplit_once('@') {
        return format!("{}…@{domain}", local.chars().take(1).collect::<String>());
    }
    let characters: Vec<char> = address.chars().collect();
    match characters.len() {
        8.. => characters[..3].iter().chain(&['…']).chain(&characters[characters.len() - 2..]).collect(),
        _ => "…".to_owned(),
    }
}

/// The beginning of a text, with mailboxes and long numbers redacted as by [`address`].
pub fn text(text: &str) -> String {
    let end = text.char_indices().nth(TEXT_CHARACTERS_MAX).map_or(text.len(), |(at, _)| at);
    let ends_word = |c: char| c.is_whitespace() || "<>()[]{}\"',;:".contains(c);
    let mut shown = String::with_capacity(end);
    for piece in text[..end].split_inclusive(ends_word) {
        let word = piece.strip_suffix(ends_word).unwrap_or(piece);
        let digits = word.chars().filter(char::is_ascii_digit).count();
        let is_number = digits >= 7 && word.chars().all(|c| c.is_ascii_digit() || "+-./".contains(c));
        if word.contains('@') || is_number {
            shown.push_str(&address(word));
        } else {
            shown.push_str(word);
        }
        shown.push_str(&piece[word.len()..]);
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redacted_addresses_keep_their_impersonal_part() {
        for (whole, shown) in [
            ("alice@example.org", "a…@example.org"),
            ("https://user:secret@hooks.example/T0/B1?token=x", "https://hooks.example/…"),
            ("+43660123456", "+43…56"),
            ("12345", "…"),
        ] {
            assert_eq!(address(whole), shown);
        }
    }

    #[test]
    fn texts_are_cut_and_shown_without_mailboxes_and_numbers() {
        assert_eq!(
            text("Dear Alice <alice@example.org>, call +43-660-123456 before 2026-11-22 at 12:30"),
            "Dear Alice <a…@example.org>, call +43…56 before 202…22 at 12:30"
        );
        assert_eq!(text(&"ä".repeat(5_000)).chars().count(), TEXT_CHARACTERS_MAX);
    }
}
