//! Surrogate pairs in double-quoted scalars (`\ud83d\ude00`), as JSON writes characters beyond U+FFFF.
//!
//! JSON is a subset of YAML 1.2, but the YAML parser accepts no half of a pair. Each pair is replaced before parsing by
//! an escape of the same length, so that all positions stay: the character (`\U0001F600`), and a marker character that
//! the text does not contain. Afterwards the marker is removed, and outside of double quotes, where the pair is no
//! escape, the text is restored.

use std::borrow::Cow;

/// Length of a pair, and of its replacement.
const PAIR_BYTES: usize = 12;

/// Escapes of one character that can mark a replaced pair, and that character.
const MARKERS: [(char, char); 9] = [
    ('a', '\x07'),
    ('v', '\x0b'),
    ('e', '\x1b'),
    ('b', '\x08'),
    ('P', '\u{2029}'),
    ('L', '\u{2028}'),
    ('N', '\u{85}'),
    ('_', '\u{a0}'),
    ('0', '\0'),
];

/// The replaced pairs of a text, in its order.
pub(super) struct SurrogatePairs<'t> {
    /// Position in characters, and the pair as it is written.
    pairs: Vec<(usize, &'t str)>,
    next: usize,
    marker: (char, char),
}

/// Replaces the pairs of a text. Without a free marker the text stays, and the parser reports the pairs.
pub(super) fn replace(text: &str) -> (Cow<'_, str>, SurrogatePairs<'_>) {
    let mut found = SurrogatePairs { pairs: Vec::new(), next: 0, marker: MARKERS[0] };
    if !(text.contains("\\ud") || text.contains("\\uD")) {
        return (Cow::Borrowed(text), found);
    }
    let Some(marker) = free_marker(text) else { return (Cow::Borrowed(text), found) };
    found.marker = marker;
    let (mut replaced, mut from, mut counted, mut characters) = (String::with_capacity(text.len()), 0, 0, 0);
    for (at, _) in text.match_indices("\\u") {
        let is_escaped = text[..at].bytes().rev().take_while(|byte| *byte == b'\\').count() % 2 == 1;
        let Some(pair) = text.get(at..at + PAIR_BYTES).filter(|pair| !is_escaped && at >= from && code(pair).is_some())
        else {
            continue;
        };
        characters += text[counted..at].chars().count();
        counted = at;
        replaced.push_str(&text[from..at]);
        replaced.push_str(&replacement(pair, marker));
        from = at + PAIR_BYTES;
        found.pairs.push((characters, pair));
    }
    replaced.push_str(&text[from..]);
    (Cow::Owned(replaced), found)
}

impl SurrogatePairs<'_> {
    /// The text of a scalar that was parsed, and that starts at this character. Scalars are given in their order.
    pub fn restore(&mut self, scalar: String, is_double_quoted: bool, start: usize) -> String {
        // Pairs before it are in comments.
        let skipped = self.pairs[self.next..].iter().take_while(|(at, _)| *at < start).count();
        self.next += skipped;
        if self.next == self.pairs.len() {
            return scalar;
        }
        if is_double_quoted {
            self.next += scalar.matches(self.marker.1).count();
            return scalar.replace(self.marker.1, "");
        }
        let (mut restored, mut rest) = (String::with_capacity(scalar.len()), scalar.as_str());
        while let Some((_, pair)) = self.pairs.get(self.next)
            && let Some(at) = rest.find(&replacement(pair, self.marker))
        {
            restored.push_str(&rest[..at]);
            restored.push_str(pair);
            rest = &rest[at + PAIR_BYTES..];
            self.next += 1;
        }
        restored.push_str(rest);
        restored
    }
}

/// The code point of a pair.
fn code(pair: &str) -> Option<u32> {
    let unit = |escape: &str| u32::from_str_radix(escape.strip_prefix("\\u")?, 16).ok();
    let (high, low) = (unit(pair.get(..6)?)?, unit(pair.get(6..)?)?);
    let is_pair = (0xd800..0xdc00).contains(&high) && (0xdc00..0xe000).contains(&low);
    is_pair.then(|| 0x1_0000 + ((high - 0xd800) << 10) + (low - 0xdc00))
}

fn replacement(pair: &str, marker: (char, char)) -> String {
    format!("\\U{:08X}\\{}", code(pair).unwrap_or_default(), marker.0)
}

/// A marker that is in the text neither as a character nor as an escape.
fn free_marker(text: &str) -> Option<(char, char)> {
    let lower = text.to_ascii_lowercase();
    MARKERS.into_iter().find(|(escape, character)| {
        let code = u32::from(*character);
        let is_escaped = || {
            text.contains(&format!("\\{escape}"))
                || code < 0x100 && lower.contains(&format!("\\x{code:02x}"))
                || lower.contains(&format!("\\u{code:04x}"))
                || lower.contains(&format!("\\u{code:08x}"))
        };
        !text.contains(*character) && !is_escaped()
    })
}
