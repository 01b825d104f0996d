//! Masks secrets in definitions for readers, and restores them.
//!
//! A reader sees [`MASK`] in place of each literal secret. A definition that is stored again with masks keeps the
//! secrets at the same places; a mask without a stored secret is a problem ([`masks`]). `${NAME}` is not a secret and stays. The
//! caller gives the secret options of channels and sources, [`OptionSecrets`]; the table of ports is in `secret_paths`.

mod pieces; // the secret parts of a text
mod secret_paths; // table of options that hold secrets

use std::collections::BTreeMap;

pub use self::secret_paths::{HEADERS, OptionSecrets, Row, SecretShape};
use self::{
    pieces::{Piece, pieces},
    secret_paths::SecretPath,
};
use super::document::{self, Kind, Node, join};
use crate::problem::{Code, Problem};

/// Replacement of a secret.
pub const MASK: &str = "***";

/// Shown in place of a text that can no longer be parsed, because its secrets cannot be located.
const WITHHELD: &str = "# this definition cannot be read any more; it is not shown, for it may hold secrets\n";

/// Language of a definition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Language {
    /// That of applications.
    Application,
    /// That of exchanges.
    Exchange,
}

/// The definition with a mask for each literal secret; everything else is unchanged, including comments.
pub fn redact(language: Language, text: &str, options: OptionSecrets) -> String {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let Some(root) = document::parse(text, &mut Vec::new()) else { return WITHHELD.to_owned() };
    let mut edits = Edits::default();
    for (path, node, place) in secret_paths::roots(secret_paths::sections(language, options), &root) {
        visit(node, &path, &place, &mut |_, node, pieces| {
            let shown = replace(&scalar(node).unwrap_or_default(), pieces, |_| Some(MASK));
            edits.put(node, quoted(&shown.unwrap_or_default()));
        });
    }
    edits.apply(text)
}

/// The definition with the stored secrets in place of their masks. `stored` are the versions that may hold them, the
/// newest first. A mask without a stored secret stays, and [`masks`] reports it.
///
/// A secret is identified by the name of its channel, source or port, its protocol and its option. An item of a list
/// is identified by its other values, or by its index if the list has as many items as before.
pub fn restore(language: Language, text: &str, stored: &[&str], options: OptionSecrets) -> String {
    if !text.contains(MASK) {
        return text.to_owned();
    }
    // An unedited definition is stored unchanged.
    if let Some(same) = stored.iter().find(|stored| redact(language, stored, options) == text) {
        return (*same).to_owned();
    }
    let given_text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let Some(given) = document::parse(given_text, &mut Vec::new()) else { return text.to_owned() };
    let (mut edits, sections) = (Edits::default(), secret_paths::sections(language, options));
    for stored in stored {
        let Some(stored) = document::parse(stored, &mut Vec::new()) else { continue };
        let before: BTreeMap<String, (&Node, SecretPath)> =
            secret_paths::roots(sections, &stored).map(|(path, node, place)| (path, (node, place))).collect();
        for (path, node, place) in secret_paths::roots(sections, &given) {
            if let Some((before, _)) = before.get(&path).filter(|(_, before)| before.is_of(&place)) {
                fill_in(node, before, &place, &mut edits);
            }
        }
    }
    edits.apply(given_text)
}

/// A problem for each mask in a definition that is about to be used: no secret is stored in its place.
pub fn masks(language: Language, text: &str, options: OptionSecrets) -> Vec<Problem> {
    let mut problems = Vec::new();
    if let Some(root) = document::parse(text, &mut Vec::new()) {
        find_masks(secret_paths::sections(language, options), &root, &mut problems);
    }
    problems
}

fn find_masks(sections: impl IntoIterator<Item = secret_paths::Section>, root: &Node, problems: &mut Vec<Problem>) {
    for (path, node, place) in secret_paths::roots(sections, root) {
        visit(node, &path, &place, &mut |path, node, pieces| {
            let text = scalar(node).unwrap_or_default();
            if pieces.iter().any(|piece| &text[piece.range.clone()] == MASK) {
                let message = format!("holds `{MASK}`, the mask of a stored secret, but no secret is stored here");
                let hint = "give the secret, or better take it from the environment: `${NAME}`";
                problems.push(node.problem(Code::Required, path, message).hint(hint));
            }
        });
    }
}

/// Calls `found` for each scalar that holds secrets.
fn visit(node: &Node, path: &str, place: &SecretPath, found: &mut dyn FnMut(&str, &Node, &[Piece])) {
    match &node.kind {
        Kind::Map(entries) => {
            for entry in entries {
                visit(&entry.value, &join(path, &entry.key), &place.below(&entry.key, &entry.value), found);
            }
        }
        Kind::List(items) => {
            for (at, item) in items.iter().enumerate() {
                visit(item, &format!("{path}[{at}]"), place, found);
            }
        }
        _ => {
            let pieces = scalar(node).map(|text| pieces(&text, place.form())).unwrap_or_default();
            if !pieces.is_empty() {
                found(path, node, &pieces);
            }
        }
    }
}

/// Collects the edits that replace the masks in `given` by secrets of `stored`.
fn fill_in(given: &Node, stored: &Node, place: &SecretPath, edits: &mut Edits) {
    match (&given.kind, &stored.kind) {
        (Kind::Map(entries), Kind::Map(_)) => {
            for entry in entries {
                let below = place.below(&entry.key, &entry.value);
                let stored = stored.get(&entry.key);
                if let Some(stored) = stored.filter(|stored| place.below(&entry.key, stored).is_of(&below)) {
                    fill_in(&entry.value, stored, &below, edits);
                }
            }
        }
        (Kind::List(items), Kind::List(before)) => {
            for (item, stored) in counterparts(items, before, place) {
                fill_in(item, stored, place, edits);
            }
        }
        (Kind::Text { text, .. }, _) if !edits.has(given) => {
            let Some(before) = scalar(stored) else { return };
            let (masked, secrets) = (pieces(text, place.form()), pieces(&before, place.form()));
            if !masked.iter().any(|piece| &text[piece.range.clone()] == MASK) {
                return;
            }
            let secret = |piece: &Piece| {
                if &text[piece.range.clone()] != MASK {
                    return Some(&text[piece.range.clone()]);
                }
                let secret = &before[secrets.iter().find(|secret| secret.label == piece.label)?.range.clone()];
                (secret != MASK).then_some(secret)
            };
            if let Some(whole) = replace(text, &masked, secret) {
                let is_text = matches!(stored.kind, Kind::Text { .. });
                edits.put(given, if is_text { quoted(&whole) } else { whole });
            }
        }
        _ => {}
    }
}

/// Matches the items of a list with the stored items.
fn counterparts<'a>(given: &'a [Node], stored: &'a [Node], place: &SecretPath) -> Vec<(&'a Node, &'a Node)> {
    let shown = |items: &[Node]| -> Vec<serde_json::Value> { items.iter().map(|item| shown(item, place)).collect() };
    let (now, before) = (shown(given), shown(stored));
    let counterpart = |at: usize| {
        if before.get(at) == Some(&now[at]) {
            return Some(at);
        }
        let mut same = (0..before.len()).filter(|other| before[*other] == now[at]);
        match (same.next(), same.next()) {
            (Some(only), None) => Some(only),
            // An item that was edited in place; one that moved would be mistaken for it.
            (None, _) => (now.len() == before.len() && !now.contains(&before[at])).then_some(at),
            _ => None,
        }
    };
    (0..given.len()).filter_map(|at| Some((&given[at], &stored[counterpart(at)?]))).collect()
}

/// A node as it is shown.
fn shown(node: &Node, place: &SecretPath) -> serde_json::Value {
    match &node.kind {
        Kind::Map(entries) => {
            let entry = |entry: &document::Entry| {
                (entry.key.clone(), shown(&entry.value, &place.below(&entry.key, &entry.value)))
            };
            serde_json::Value::Object(entries.iter().map(entry).collect())
        }
        Kind::List(items) => items.iter().map(|item| shown(item, place)).collect(),
        _ => match scalar(node) {
            Some(text) => replace(&text, &pieces(&text, place.form()), |_| Some(MASK)).into(),
            None => node.json(),
        },
    }
}

/// The text of a scalar that may hold a secret.
fn scalar(node: &Node) -> Option<String> {
    match &node.kind {
        Kind::Text { text, .. } => Some(text.clone()),
        Kind::Integer(number) => Some(number.to_string()),
        Kind::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

/// The text with some of its pieces replaced; `None` if there is no replacement.
fn replace<'a>(text: &str, pieces: &[Piece], by: impl Fn(&Piece) -> Option<&'a str>) -> Option<String> {
    let (mut replaced, mut from) = (String::new(), 0);
    for piece in pieces {
        replaced.push_str(&text[from..piece.range.start]);
        replaced.push_str(by(piece)?);
        from = piece.range.end;
    }
    replaced.push_str(&text[from..]);
    Some(replaced)
}

/// A text in double quotes; JSON strings are valid YAML.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// A scalar in one line, or in quotes, without a trailing comment that the parser includes.
fn written(scalar: &str) -> &str {
    let end = match scalar.as_bytes().first() {
        Some(b'"') => {
            let mut is_escaped = false;
            let end = scalar[1..].find(|c: char| {
                let closes = c == '"' && !is_escaped;
                is_escaped = c == '\\' && !is_escaped;
                closes
            });
            end.map(|end| end + 2)
        }
        // Two single quotes stand for one.
        Some(b'\'') => {
            let mut at = 1;
            loop {
                match scalar[at..].find('\'') {
                    Some(found) if scalar[at + found + 1..].starts_with('\'') => at += found + 2,
                    found => break found.map(|found| at + found + 1),
                }
            }
        }
        _ => None,
    };
    end.map_or(scalar.trim_end(), |end| &scalar[..end])
}

/// Start of a block scalar whose content begins at `content`: its `|` or `>` is on an earlier line.
fn head_of_block(text: &str, content: usize) -> Option<usize> {
    let before = text[..content].trim_end();
    if !text[before.len()..content].contains('\n') {
        return None;
    }
    let line = before.rsplit('\n').next().unwrap_or_default();
    let code = line.split(" #").next().unwrap_or_default().trim_end();
    let head = code.trim_end_matches(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-'));
    head.ends_with(['|', '>']).then(|| before.len() - line.len() + head.len() - 1)
}

/// Replacements by their start in the text, in characters.
#[derive(Default)]
struct Edits(BTreeMap<usize, (usize, String)>);

impl Edits {
    fn put(&mut self, node: &Node, text: String) {
        self.0.insert(node.start, (node.end, text));
    }

    fn has(&self, node: &Node) -> bool {
        self.0.contains_key(&node.start)
    }

    fn apply(self, text: &str) -> String {
        if self.0.is_empty() {
            return text.to_owned();
        }
        let at: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
        let byte = |character: usize| at[character.min(at.len() - 1)];
        let (mut edited, mut from) = (String::new(), 0);
        for (start, (end, instead)) in self.0 {
            let (start, end) = (byte(start), byte(end));
            let (start, end) = match head_of_block(text, start) {
                Some(head) => (head, start + text[start..end].trim_end().len()),
                None => (start, start + written(&text[start..end]).len()),
            };
            edited.push_str(&text[from..start]);
            edited.push_str(&instead);
            from = end;
        }
        edited.push_str(&text[from..]);
        edited
    }
}
