//! Lengths of texts in the units of receivers, and truncation to them.
//!
//! A cut falls between grapheme clusters (UAX 29), so no emoji, flag, accented letter or surrogate pair is divided. A
//! single cluster that is longer than the limit is divided between characters.

use std::borrow::Cow;

use unicode_segmentation::UnicodeSegmentation;

/// Longest character reference, such as `&amp;`, in bytes.
const REFERENCE_BYTES_MAX: usize = 12;

/// Unit of a length limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Unicode characters (scalar values).
    Characters,
    /// Code units of UTF-16: an emoji has two or more.
    Utf16,
    /// Bytes of UTF-8.
    Bytes,
}

impl Unit {
    /// The length of a text.
    pub fn measure(self, text: &str) -> usize {
        match self {
            Unit::Characters => text.chars().count(),
            Unit::Utf16 => text.encode_utf16().count(),
            Unit::Bytes => text.len(),
        }
    }
}

/// Truncates a text to at most `most` units. If something is cut off, `end` replaces it, as far as it fits itself.
pub fn cut<'a>(text: &'a str, most: usize, unit: Unit, end: &str) -> Cow<'a, str> {
    cut_by(text, most, end, false, |part| unit.measure(part))
}

/// As `cut`, by any additive measure. `is_markup`: a character reference such as `&amp;` is not divided either.
pub fn cut_by<'a>(
    text: &'a str,
    most: usize,
    end: &str,
    is_markup: bool,
    measure: impl Fn(&str) -> usize,
) -> Cow<'a, str> {
    let end = if measure(end) <= most { end } else { "" };
    let room = most - measure(end);
    let (mut used, mut kept) = (0, 0);
    let mut rest = text;
    while !rest.is_empty() {
        let at = text.len() - rest.len();
        let part = first_part(rest, is_markup);
        used += measure(part);
        if used > most {
            if kept == 0 {
                kept = characters_that_fit(first_part(text, is_markup), room, &measure);
            }
            return if end.is_empty() { text[..kept].into() } else { format!("{}{end}", &text[..kept]).into() };
        }
        if used <= room {
            kept = at + part.len();
        }
        rest = &rest[part.len()..];
    }
    text.into()
}

/// The last cluster boundary at or before an offset.
pub fn floor_boundary(text: &str, at: usize) -> usize {
    if at >= text.len() {
        return text.len();
    }
    let before = text.grapheme_indices(true).map(|(start, _)| start).take_while(|start| *start <= at).last();
    match before {
        // The first cluster is longer than that.
        None | Some(0) => (0..=at).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0),
        Some(start) => start,
    }
}

fn first_part(rest: &str, is_markup: bool) -> &str {
    if is_markup
        && rest.starts_with('&')
        && let Some(end) = rest.bytes().take(REFERENCE_BYTES_MAX).position(|byte| byte == b';')
    {
        return &rest[..=end];
    }
    rest.graphemes(true).next().unwrap_or(rest)
}

fn characters_that_fit(part: &str, room: usize, measure: &impl Fn(&str) -> usize) -> usize {
    let mut used = 0;
    for (at, c) in part.char_indices() {
        used += measure(c.encode_utf8(&mut [0; 4]));
        if used > room {
            // A character reference is kept whole or dropped.
            return if part.starts_with('&') && part.ends_with(';') { 0 } else { at };
        }
    }
    part.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn d_a_text_is_cut_in_the_unit_of_its_receiver() {
        let check = |text: &str, most: usize, unit: Unit, expected: &str| {
            let found = cut(text, most, unit, "…");
            assert_eq!(found, expected, "{text} to {most} {unit:?}");
            assert!(unit.measure(&found) <= most);
        };
        for unit in [Unit::Characters, Unit::Utf16, Unit::Bytes] {
            check("abcdef", 6, unit, "abcdef");
            check("", 0, unit, "");
            check("abc", 0, unit, "");
        }
        check("abcdef", 5, Unit::Utf16, "abcd…");
        check("abcdef", 5, Unit::Bytes, "ab…");
        check("abcdef", 2, Unit::Bytes, "ab");
        check("😀😀😀", 6, Unit::Utf16, "😀😀😀");
        check("😀😀😀", 5, Unit::Utf16, "😀😀…");
        check("😀😀😀", 4, Unit::Utf16, "😀…");
        check("😀😀😀", 2, Unit::Characters, "😀…");
        check("a👨‍👩‍👧‍👦b", 8, Unit::Utf16, "a…");
        check("a🇦🇹🇦🇹", 6, Unit::Utf16, "a🇦🇹…");
        check("e\u{301}e\u{301}", 3, Unit::Characters, "e\u{301}…");
        check("a\r\nb", 3, Unit::Characters, "a…");
        check(&format!("e{}", "\u{301}".repeat(50)), 5, Unit::Characters, &format!("e{}…", "\u{301}".repeat(3)));
        let emoji = "😀".repeat(4_096);
        assert_eq!(Unit::Utf16.measure(&cut(&emoji, 4_096, Unit::Utf16, "…")), 4_095);
        let letters = format!("{}😀", "a".repeat(4_095));
        assert_eq!(cut(&letters, 4_096, Unit::Utf16, "…"), format!("{}…", "a".repeat(4_095)));
        assert_eq!(cut_by("a&amp;b", 6, "…", true, |part| part.chars().count()), "a…");
        assert_eq!(cut_by("a&amp;b", 7, "…", true, |part| part.chars().count()), "a&amp;b");
        assert_eq!(cut_by("&amp;b", 4, "…", true, |part| part.chars().count()), "…");
        assert_eq!((floor_boundary("a😀b", 3), floor_boundary("a😀b", 5), floor_boundary("e\u{301}x", 1)), (1, 5, 1));
    }
}
