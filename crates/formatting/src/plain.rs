//! HTML to plain text: paragraphs, lists, tables and links stay readable.
//!
//! Accepts any text. The result is for mail readers without HTML; it is not a filter against malicious HTML. Crates:
//! docs/decisions/0042.

/// The text of a horizontal rule.
const RULE: &str = "----------------------------------------";
/// Deepest list nesting that is indented.
const INDENT_MAX: usize = 8;

/// Converts an HTML document to text.
pub fn text_of(html: &str) -> String {
    let mut writer = Writer::default();
    let mut rest = html;
    while let Some(at) = rest.find('<') {
        writer.text(&rest[..at]);
        rest = &rest[at..];
        let length = if rest.starts_with("<!--") {
            // A conditional comment is a comment for most programs.
            rest.find("-->").map_or(rest.len(), |end| end + 3)
        } else if rest.starts_with("<!") || rest.starts_with("<?") {
            rest.find('>').map_or(rest.len(), |end| end + 1)
        } else if rest[1..].starts_with(|c: char| c.is_ascii_alphabetic() || c == '/') {
            let length = tag_length(rest);
            let tag = Tag::of(&rest[..length]);
            // Elements whose content is not text.
            if !tag.is_end && matches!(tag.name.as_str(), "style" | "script" | "head" | "title" | "template") {
                writer.tag(&tag);
                rest = &rest[length..];
                let end = format!("</{}", tag.name);
                let skipped = find_ignoring_case(rest, &end).unwrap_or(rest.len());
                rest = &rest[skipped..];
                rest = &rest[tag_length(rest).min(rest.len())..];
                continue;
            }
            writer.tag(&tag);
            length
        } else {
            writer.text("<");
            1
        };
        rest = &rest[length..];
    }
    writer.text(rest);
    writer.finish()
}

fn find_ignoring_case(text: &str, requested: &str) -> Option<usize> {
    text.as_bytes().windows(requested.len()).position(|window| window.eq_ignore_ascii_case(requested.as_bytes()))
}

/// The length of a tag, up to the `>` outside of quotes.
fn tag_length(text: &str) -> usize {
    let mut quote = None;
    for (at, byte) in text.bytes().enumerate() {
        match quote {
            Some(open) => quote = (open != byte).then_some(open),
            None if byte == b'>' => return at + 1,
            // A quote opens a value only after `=`.
            None if (byte == b'"' || byte == b'\'') && text[..at].trim_end().ends_with('=') => quote = Some(byte),
            None => {}
        }
    }
    text.len()
}

struct Tag<'a> {
    name: String,
    is_end: bool,
    text: &'a str,
}

impl<'a> Tag<'a> {
    fn of(text: &'a str) -> Tag<'a> {
        let is_end = text.starts_with("</");
        let name = text.trim_start_matches(['<', '/']);
        let end = name.find(|c: char| c.is_whitespace() || c == '>' || c == '/').unwrap_or(name.len());
        Tag { name: name[..end].to_ascii_lowercase(), is_end, text }
    }

    /// The value of an attribute.
    fn attribute(&self, requested: &str) -> Option<String> {
        let mut rest = self.text.get(1 + self.name.len()..)?;
        loop {
            rest = rest.trim_start_matches(|c: char| c.is_whitespace() || c == '/');
            let end = rest.find(|c: char| c.is_whitespace() || matches!(c, '=' | '>' | '/'))?;
            let name = &rest[..end];
            if name.is_empty() {
                return None;
            }
            rest = rest[end..].trim_start();
            let mut value = "";
            if let Some(given) = rest.strip_prefix('=') {
                let given = given.trim_start();
                let quote = given.chars().next().filter(|c| matches!(c, '"' | '\''));
                let (text, after) = match quote {
                    Some(quote) => given[1..].split_once(quote)?,
                    None => {
                        let end = given.find(|c: char| c.is_whitespace() || c == '>').unwrap_or(given.len());
                        (&given[..end], &given[end..])
                    }
                };
                (value, rest) = (text, after);
            }
            if name.eq_ignore_ascii_case(requested) {
                return Some(unescape(value));
            }
        }
    }
}

#[derive(Default)]
struct Writer {
    out: String,
    /// Line ends to write before the next text.
    breaks: usize,
    space: bool,
    /// For each open list the number of items so far, if it is numbered.
    lists: Vec<Option<usize>>,
    /// For each open link the start of its text, and its target.
    links: Vec<(usize, String)>,
    /// Cells of the current row so far.
    cells: usize,
    preformatted: usize,
    hidden: usize,
    quotes: usize,
}

impl Writer {
    fn text(&mut self, text: &str) {
        if self.hidden > 0 || text.is_empty() {
            return;
        }
        let text = unescape(text);
        if self.preformatted > 0 {
            for (at, line) in text.split('\n').enumerate() {
                if at > 0 {
                    self.begin();
                    self.out.push('\n');
                    self.margin();
                }
                if !line.is_empty() {
                    self.begin();
                    self.out.push_str(line);
                }
            }
            return;
        }
        for c in text.chars() {
            // A non-breaking space is kept; other white space only separates words.
            match c {
                ' ' | '\t' | '\n' | '\r' | '\u{c}' => self.space = true,
                '\u{200b}' | '\u{200c}' | '\u{200d}' | '\u{feff}' | '\u{ad}' | '\u{34f}' => {}
                c => {
                    self.begin();
                    self.out.push(if c == '\u{a0}' { ' ' } else { c });
                }
            }
        }
    }

    /// Writes the pending line ends, or a space, before a text.
    fn begin(&mut self) {
        if self.breaks > 0 {
            let at_start = self.out.is_empty();
            while self.out.ends_with(' ') {
                self.out.pop();
            }
            if !at_start {
                self.out.extend(std::iter::repeat_n('\n', self.breaks));
            }
            self.margin();
        } else if self.space && !self.out.is_empty() && !self.out.ends_with([' ', '\n']) {
            self.out.push(' ');
        }
        (self.breaks, self.space) = (0, false);
    }

    fn margin(&mut self) {
        self.out.extend(std::iter::repeat_n("> ", self.quotes.min(INDENT_MAX)));
        self.out.extend(std::iter::repeat_n("  ", self.lists.len().saturating_sub(1).min(INDENT_MAX)));
    }

    fn require_line_breaks(&mut self, lines: usize) {
        self.breaks = self.breaks.max(lines);
    }

    fn tag(&mut self, tag: &Tag<'_>) {
        let name = tag.name.as_str();
        match (name, tag.is_end) {
            ("style" | "script" | "head" | "title" | "template", _) => {}
            ("br", _) => {
                // Two of them are an empty line.
                self.breaks = (self.breaks + 1).min(2);
            }
            ("hr", _) => {
                self.require_line_breaks(2);
                self.begin();
                self.out.push_str(RULE);
                self.require_line_breaks(2);
            }
            ("p" | "h1" | "h2" | "h3" | "h4" | "h5" | "h6" | "table" | "dl", _) => self.require_line_breaks(2),
            ("div" | "section" | "article" | "header" | "footer" | "main" | "address" | "dt" | "form" | "body", _) => {
                self.require_line_breaks(1);
            }
            ("dd", false) => {
                self.require_line_breaks(1);
                self.begin();
                self.out.push_str("  ");
            }
            ("blockquote", false) => {
                self.quotes += 1;
                self.require_line_breaks(2);
            }
            ("blockquote", true) => {
                self.quotes = self.quotes.saturating_sub(1);
                self.require_line_breaks(2);
            }
            ("pre", is_end) => {
                self.preformatted = if is_end { self.preformatted.saturating_sub(1) } else { self.preformatted + 1 };
                self.require_line_breaks(2);
            }
            ("ul" | "ol", false) => {
                self.require_line_breaks(if self.lists.is_empty() { 2 } else { 1 });
                let start = tag.attribute("start").and_then(|start| start.parse::<usize>().ok()).unwrap_or(1);
                self.lists.push((name == "ol").then(|| start.saturating_sub(1)));
            }
            ("ul" | "ol", true) => {
                self.lists.pop();
                self.require_line_breaks(if self.lists.is_empty() { 2 } else { 1 });
            }
            ("li", false) => {
                self.require_line_breaks(1);
                self.begin();
                let mark = match self.lists.last_mut() {
                    Some(Some(count)) => {
                        *count += 1;
                        format!("{count}. ")
                    }
                    _ => "- ".to_owned(),
                };
                self.out.push_str(&mark);
            }
            ("tr", false) => {
                self.require_line_breaks(1);
                self.cells = 0;
            }
            ("tr" | "li" | "dd", true) => self.require_line_breaks(1),
            ("td" | "th", false) => {
                if self.cells > 0 && self.breaks == 0 && !self.out.is_empty() && !self.out.ends_with('\n') {
                    self.space = false;
                    while self.out.ends_with(' ') {
                        self.out.pop();
                    }
                    self.out.push_str(" | ");
                }
                self.cells += 1;
            }
            ("td" | "th", true) => {
                // A line end at the end of a cell does not end the row.
                if self.cells > 0 && self.breaks < 2 {
                    self.breaks = 0;
                }
                self.space = false;
            }
            ("img", _) => {
                if let Some(alt) = tag.attribute("alt").filter(|alt| !alt.trim().is_empty()) {
                    self.text(&format!(" {} ", escape(alt.trim())));
                }
            }
            ("a", false) => {
                let target = tag.attribute("href").unwrap_or_default();
                if self.space && self.breaks == 0 {
                    self.begin();
                }
                self.links.push((self.out.len(), target));
            }
            ("a", true) => self.end_link(),
            ("input" | "select" | "textarea" | "button", _) => {}
            _ => {}
        }
    }

    /// Adds the target of a link, unless the text equals it or it leads nowhere.
    fn end_link(&mut self) {
        let Some((start, target)) = self.links.pop() else { return };
        let said = self.out.get(start..).unwrap_or_default().trim();
        let shown = target.strip_prefix("mailto:").or(target.strip_prefix("tel:")).unwrap_or(&target).trim();
        let bare = |address: &str| {
            let address = address.trim_start_matches("https://").trim_start_matches("http://");
            address.trim_end_matches('/').to_owned()
        };
        let leads = !shown.is_empty() && !shown.starts_with('#') && !shown.starts_with("about:");
        if !leads || bare(said) == bare(shown) || shown.to_ascii_lowercase().starts_with("javascript:") {
            return;
        }
        let shown: String = shown.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        if said.is_empty() {
            self.begin();
            self.out.push_str(&shown);
        } else {
            while self.out.ends_with(' ') {
                self.out.pop();
            }
            self.out.push_str(&format!(" ({shown})"));
        }
    }

    fn finish(self) -> String {
        let mut text = self.out.trim_end().to_owned();
        if !text.is_empty() {
            text.push('\n');
        }
        text
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

/// Replaces character references.
fn unescape(text: &str) -> String {
    if !text.contains('&') {
        return text.to_owned();
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('&') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let name = &rest[1..];
        let end = name.bytes().take(32).position(|byte| !byte.is_ascii_alphanumeric() && byte != b'#');
        let end = end.unwrap_or(name.len().min(32));
        let name = name.get(..end).unwrap_or_default();
        match character(name) {
            Some(c) => {
                out.push(c);
                rest = &rest[1 + end..];
                rest = rest.strip_prefix(';').unwrap_or(rest);
            }
            None => {
                out.push('&');
                rest = &rest[1..];
            }
        }
    }
    out.push_str(rest);
    out
}

fn character(name: &str) -> Option<char> {
    if let Some(number) = name.strip_prefix('#') {
        let number = match number.strip_prefix(['x', 'X']) {
            Some(hex) => u32::from_str_radix(hex, 16).ok()?,
            None => number.parse().ok()?,
        };
        return char::from_u32(number).filter(|c| !c.is_control() || matches!(c, '\n' | '\t'));
    }
    Some(match name {
        "amp" => '&',
        "lt" => '<',
        "gt" => '>',
        "quot" => '"',
        "apos" => '\'',
        "nbsp" => '\u{a0}',
        "ndash" => '–',
        "mdash" => '—',
        "hellip" => '…',
        "lsquo" => '‘',
        "rsquo" => '’',
        "ldquo" => '“',
        "rdquo" => '”',
        "bdquo" => '„',
        "laquo" => '«',
        "raquo" => '»',
        "bull" => '•',
        "middot" => '·',
        "copy" => '©',
        "reg" => '®',
        "trade" => '™',
        "euro" => '€',
        "pound" => '£',
        "yen" => '¥',
        "cent" => '¢',
        "sect" => '§',
        "deg" => '°',
        "times" => '×',
        "rarr" => '→',
        "larr" => '←',
        "auml" => 'ä',
        "ouml" => 'ö',
        "uuml" => 'ü',
        "Auml" => 'Ä',
        "Ouml" => 'Ö',
        "Uuml" => 'Ü',
        "szlig" => 'ß',
        "eacute" => 'é',
        "egrave" => 'è',
        "agrave" => 'à',
        "ccedil" => 'ç',
        "ntilde" => 'ñ',
        "shy" => '\u{ad}',
        "zwnj" => '\u{200c}',
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn check(html: &str, expected: Expect) {
        expected.assert_eq(&text_of(html));
    }

    #[test]
    fn readable_content_is_kept() {
        check(
            "<html><head><title>no</title><style>p { color: red }</style></head><body><h1>Quake &amp; co</h1>\n<p>A  <b>strong</b>\n one.</p><p>Second<br>line</p></body></html>",
            expect![[r#"
                Quake & co

                A strong one.

                Second
                line
            "#]],
        );
        check(
            "<ul><li>one</li><li>two<ul><li>deep</li></ul></li></ul><ol start=3><li>c<li>d</ol>after",
            expect![[r#"
                - one
                - two
                  - deep

                3. c
                4. d

                after
            "#]],
        );
        check(
            "<table><tr><th>Place</th><th>M</th></tr><tr><td><p>Kobe</p></td><td> 6.1 </td></tr></table>",
            expect![[r#"
                Place | M

                Kobe

                6.1
            "#]],
        );
        check(
            "See <a href=\"https://example.org/a?b=1&amp;c=2\">the page</a>, <a href='https://example.org/'>example.org</a>, <a href='mailto:a@b.org'>a@b.org</a>, <a href='#top'>top</a>, <a href='javascript:x()'>no</a>.",
            expect![[r#"
                See the page (https://example.org/a?b=1&c=2), example.org, a@b.org, top, no.
            "#]],
        );
        check(
            "<p>a</p><hr><blockquote><p>said</p></blockquote><pre>x\n  y</pre><img alt='A map' src=x>&nbsp;1 &lt; 2 & 3 <3 <!-- no --> &unknown;",
            expect![[r#"
                a

                ----------------------------------------

                > said

                x
                  y

                A map  1 < 2 & 3 <3 &unknown;
            "#]],
        );
        check("", expect![""]);
        check("<script>alert('</p>')</script>x<style>", expect!["x\n"]);
    }

    proptest! {
        #[test]
        fn any_text_is_accepted(html in "(<[a-z/!?-]{0,6}|>|href=|\"|'|&[a-z#0-9]{0,4};?|[a-z ]{0,5}|\n|<li>|<ul>|<a href='x'>|</a>|<pre>|<td>|é){0,30}") {
            let _ = text_of(&html);
        }
    }
}
