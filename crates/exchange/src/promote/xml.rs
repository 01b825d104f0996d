//! Extracts the values at several paths of an XML body in one pass.

use std::collections::HashSet;

use quick_xml::{
    Reader,
    events::{BytesRef, BytesStart, Event},
};
use tocsin_model::{
    charset,
    exchange::{XmlEnd, XmlPath},
};

/// Maximum nesting of elements.
const DEPTH_MAX: usize = 256;
/// Maximum attributes of an element that are read.
const ATTRIBUTES_MAX: usize = 1_000;

/// The text at each path, trimmed; a text longer than `bytes_max` is none. `None` if the body is not well-formed, is
/// nested too deeply, or has a document type or entities, which are not supported.
pub(super) fn find(text: &str, paths: &[&XmlPath], bytes_max: usize) -> Option<Vec<Option<String>>> {
    if charset::first_invalid_xml_char(text).is_some() {
        return None;
    }
    let mut reader = Reader::from_str(text);
    reader.config_mut().check_comments = true;
    let mut searches: Vec<Search<'_>> = paths.iter().map(|path| Search::new(path, bytes_max)).collect();
    let (mut depth, mut roots) = (0_usize, 0);
    loop {
        let from = reader.buffer_position();
        match reader.read_event().ok()? {
            Event::Start(start) | Event::Empty(start) if !has_good_attributes(&start) => return None,
            event @ (Event::Start(_) | Event::Empty(_)) if depth == DEPTH_MAX || (depth == 0 && roots > 0) => {
                drop(event);
                return None;
            }
            Event::Start(start) => {
                roots += usize::from(depth == 0);
                searches.iter_mut().try_for_each(|search| search.enter(depth, &start))?;
                depth += 1;
            }
            Event::Empty(start) => {
                roots += usize::from(depth == 0);
                searches.iter_mut().try_for_each(|search| search.enter(depth, &start))?;
                searches.iter_mut().for_each(|search| search.leave(depth));
            }
            Event::End(_) => {
                depth = depth.checked_sub(1)?;
                searches.iter_mut().for_each(|search| search.leave(depth));
            }
            Event::Text(text) if depth == 0 => text.xml10_content().trim().is_empty().then_some(())?,
            Event::Text(text) if text.contains("]]>") => return None,
            Event::Text(text) => take(&mut searches, depth, &text.xml10_content()),
            Event::CData(text) if depth > 0 => take(&mut searches, depth, &text.xml10_content()),
            Event::GeneralRef(reference) if depth > 0 => take(&mut searches, depth, &referred(&reference)?),
            Event::CData(_) | Event::GeneralRef(_) | Event::DocType(_) => return None,
            Event::Eof if depth == 0 && roots == 1 => break,
            Event::Eof => return None,
            Event::Decl(_) if from > 0 => return None,
            Event::Decl(_) | Event::PI(_) | Event::Comment(_) => {}
        }
    }
    Some(searches.into_iter().map(Search::found).collect())
}

fn take(searches: &mut [Search<'_>], depth: usize, text: &str) {
    searches.iter_mut().for_each(|search| search.take(depth, text));
}

/// Progress of the search for one path.
struct Search<'p> {
    path: &'p XmlPath,
    bytes_max: usize,
    /// Number of its elements that are open.
    open: usize,
    /// For each of its elements: how many with that name the open parent has had.
    counts: Vec<usize>,
    found: Option<String>,
    is_done: bool,
}

impl<'p> Search<'p> {
    fn new(path: &'p XmlPath, bytes_max: usize) -> Search<'p> {
        Search { path, bytes_max, open: 0, counts: vec![0; path.steps.len()], found: None, is_done: false }
    }

    /// Handles the start of an element at this depth. `None` if its attributes cannot be read.
    fn enter(&mut self, depth: usize, start: &BytesStart<'_>) -> Option<()> {
        if self.is_done || self.open != depth {
            return Some(());
        }
        let Some(step) = self.path.steps.get(depth) else { return Some(()) };
        if start.local_name().into_inner() != step.name {
            return Some(());
        }
        self.counts[depth] += 1;
        if step.at.is_some_and(|at| at != self.counts[depth]) {
            return Some(());
        }
        self.open += 1;
        if let Some(count) = self.counts.get_mut(self.open) {
            *count = 0;
            return Some(());
        }
        if let XmlEnd::Attribute(name) = &self.path.end {
            self.found = attribute(start, name)?;
            self.is_done = self.found.is_some();
        } else {
            self.found = Some(String::new());
        }
        Some(())
    }

    /// Handles text at this depth.
    fn take(&mut self, depth: usize, text: &str) {
        let steps = self.path.steps.len();
        let is_wanted = match self.path.end {
            XmlEnd::Element => self.open == steps,
            XmlEnd::Text => self.open == steps && depth == steps,
            XmlEnd::Attribute(_) => false,
        };
        if let Some(found) = self.found.as_mut().filter(|_| is_wanted && !self.is_done) {
            // Leading white space is dropped. Beyond the limit only the fact counts, so little more is kept.
            let text = if found.is_empty() { text.trim_start() } else { text };
            if found.len() <= self.bytes_max {
                let room = text.floor_char_boundary(self.bytes_max + 4 - found.len());
                found.push_str(&text[..room]);
            }
        }
    }

    /// Handles the end of an element at this depth.
    fn leave(&mut self, depth: usize) {
        if self.open <= depth {
            return;
        }
        let was_whole = self.open == self.path.steps.len();
        self.open = depth;
        if was_whole && !self.is_done {
            let is_there = |found: &String| self.path.end == XmlEnd::Element || !found.is_empty();
            self.found = self.found.take().filter(is_there);
            self.is_done = self.found.is_some();
        }
    }

    fn found(self) -> Option<String> {
        let found = self.found.filter(|_| self.is_done)?;
        let trimmed = found.trim();
        (found.len() <= self.bytes_max).then(|| trimmed.to_owned())
    }
}

/// The value of an attribute, by its name without prefix.
fn attribute(start: &BytesStart<'_>, name: &str) -> Option<Option<String>> {
    for attribute in start.attributes().with_checks(false).take(ATTRIBUTES_MAX) {
        let attribute = attribute.ok()?;
        let key: &str = attribute.key.into_inner();
        let is_declaration = key == "xmlns" || key.starts_with("xmlns:");
        if !is_declaration && key.rsplit(':').next() == Some(name) {
            return Some(Some(quick_xml::escape::unescape(&attribute.value).ok()?.into_owned()));
        }
    }
    Some(None)
}

/// Whether the first attributes of an element are well-formed and unique.
fn has_good_attributes(start: &BytesStart<'_>) -> bool {
    let mut names = HashSet::new();
    let mut attributes = start.attributes();
    // The library's own check takes quadratic time.
    attributes.with_checks(false).take(ATTRIBUTES_MAX).all(|attribute| {
        attribute.is_ok_and(|attribute| !attribute.value.contains('<') && names.insert(attribute.key.into_inner()))
    })
}

/// Resolves a reference: a character by its number, or one of the five predefined entities.
fn referred(reference: &BytesRef<'_>) -> Option<String> {
    let name: &str = reference;
    if let Ok(Some(character)) = reference.resolve_char_ref() {
        let is_allowed = charset::first_invalid_xml_char(character.encode_utf8(&mut [0; 4])).is_none();
        return is_allowed.then(|| character.to_string());
    }
    quick_xml::escape::resolve_xml_entity(name).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(body: &str, path: &str, expected: Option<&str>) {
        let read: XmlPath = path.parse().expect(path);
        let found = find(body, &[&read], 20).and_then(|mut found| found.pop().expect("one for each path"));
        assert_eq!(found.as_deref(), expected, "{path} in {body}");
    }

    #[test]
    fn values_are_found_by_path() {
        let body = "<?xml version='1.0'?><!-- c --><o:order xmlns:o='urn:o' xmlns:id='urn:i' o:id='7 &amp; 8'><head/>\
                    <line sku='a'>one</line><x><line sku='z'/></x><line qty='2'> <b>t</b>w&#111;<![CDATA[ & ]]> </line>\
                    </o:order>\n";
        check(body, "/order/@id", Some("7 & 8"));
        check(body, "/any:order/any:line/@sku", Some("a"));
        check(body, "/order/line/@qty", Some("2"));
        check(body, "/order/line[2]/@sku", None);
        check(body, "/order/line", Some("one"));
        check(body, "/order/line[2]", Some("two &"));
        check(body, "/order/line[2]/text()", Some("wo &"));
        check(body, "/order/line[2]/b/text()", Some("t"));
        check(body, "/order/line/b", Some("t"));
        check(body, "/order/head", Some(""));
        check(body, "/order/head/text()", None);
        check(body, "/order/x/line/@sku", Some("z"));
        check(body, "/line", None);
        check(body, "/order/line[3]", None);
        check("<a><b/><b>x</b></a>", "/a/b/text()", Some("x"));
        check("<a>12345678901234567890</a>", "/a", Some("12345678901234567890"));
        check("<a>12345678901234567890<b>1</b></a>", "/a", None);
        check("<a b='123456789012345678901'/>", "/a/@b", None);
        check("<a>ääääääääää<b>ä</b></a>", "/a", None);
    }

    #[test]
    fn malformed_xml_has_no_values() {
        check("<a b='1'>x</a>", "/a/@b", Some("1"));
        let deep = |levels: usize| format!("{}{}", "<a b='1'>".repeat(levels), "</a>".repeat(levels));
        check(&deep(256), "/a/@b", Some("1"));
        for wrong in [
            "",
            "{\"a\": 1}",
            "<a b='1'>",
            "<a b='1'></b>",
            "<a b='1'/><a/>",
            "<a b='1'/>x",
            "<a b='1'>&x;</a>",
            "<a b='&x;'/>",
            "<!DOCTYPE a [<!ENTITY x 'y'>]><a b='1'/>",
            &deep(257),
            // Not well-formed by XML 1.0, sections 2.2, 2.4, 2.5, 2.8, 3.1 and 4.1.
            "<a b='1'>\u{1}</a>",
            "<a b='1'>&#1;</a>",
            "<a b='1'>]]></a>",
            "<a b='1'><!-- a -- b --></a>",
            " <?xml version='1.0'?><a b='1'/>",
            "<a b='1' b='2'/>",
            "<a b='1' c='<'/>",
        ] {
            check(wrong, "/a/@b", None);
        }
    }
}
