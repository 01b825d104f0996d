//! Texts of others for logs and pages: one line, bounded, with control characters escaped.

/// One line of at most `bytes_max` bytes: white space is one blank, and control characters, format characters and
/// direction marks are escaped as `\u{202e}`.
pub(crate) fn excerpt(text: &str, bytes_max: usize) -> String {
    let mut out = String::new();
    let mut is_blank = false;
    for c in text.trim().chars() {
        if c.is_whitespace() {
            is_blank = true;
            continue;
        }
        let escaped = match is_hidden(c) {
            true => c.escape_unicode().to_string(),
            false => c.to_string(),
        };
        let blank = usize::from(is_blank && !out.is_empty());
        if out.len() + blank + escaped.len() > bytes_max {
            break;
        }
        if blank == 1 {
            out.push(' ');
        }
        is_blank = false;
        out.push_str(&escaped);
    }
    out
}

/// Whether a character is invisible or changes the order of those around it.
fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}')
        || matches!(c, '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// The form in which texts are compared with the phrases of the tables: lower case, white space as one blank,
/// typographic apostrophes as ASCII.
pub(crate) fn comparable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\u{2018}' | '\u{2019}' | '`' => out.push('\''),
            c if c.is_whitespace() => {
                if !out.ends_with(' ') {
                    out.push(' ');
                }
            }
            c => out.extend(c.to_lowercase()),
        }
    }
    out
}

/// The longest start of a text with at most `bytes_max` bytes.
pub(crate) fn start(text: &str, bytes_max: usize) -> &str {
    &text[..(0..=bytes_max.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excerpts_are_one_bounded_line_without_hidden_characters() {
        for (text, bytes_max, expected) in [
            ("  550\r\n\tno  such user ", 100, "550 no such user"),
            ("a\u{1b}[31mb\0c", 100, "a\\u{1b}[31mb\\u{0}c"),
            ("abc \u{202e}def", 100, "abc \\u{202e}def"),
            ("abc \u{202e}def", 10, "abc"),
            ("ää ää", 6, "ää"),
            ("", 10, ""),
        ] {
            assert_eq!(excerpt(text, bytes_max), expected, "{text:?}");
        }
        assert!((0..200).all(|bytes| excerpt(&"\u{7f}ä x".repeat(50), bytes).len() <= bytes));
    }
}
