//! Inlines the texts of referenced files into a definition, so that it can be sent alone.

use std::fmt::Write;

use super::{
    document::{self, Node, join},
    in_order,
    shape::shown,
};
use crate::{
    definition::document::TEXT_BYTES_MAX,
    problem::{Code, Problem},
};

/// Replaces each `{ file: <path> }` of a template or a query by the text that `load` returns for the path, relative
/// to the definition. Everything else stays the same to the character, and line numbers do not change.
///
/// # Errors
/// Every problem: a YAML syntax error, absolute paths or paths that lead upwards, files that `load` could not read
/// (its message), a result longer than [`TEXT_BYTES_MAX`].
pub fn inline_files(text: &str, load: &dyn Fn(&str) -> Result<String, String>) -> Result<String, Vec<Problem>> {
    match inline_readable_files(text, load)? {
        (inlined, problems) if problems.is_empty() => Ok(inlined),
        (_, problems) => Err(problems),
    }
}

/// Like [`inline_files`], for a check that continues after problems: files that cannot be read count as empty. Returns
/// their problems too.
///
/// # Errors
/// A YAML syntax error.
pub fn inline_readable_files(
    text: &str,
    load: &dyn Fn(&str) -> Result<String, String>,
) -> Result<(String, Vec<Problem>), Vec<Problem>> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut problems = Vec::new();
    let Some(root) = document::parse(text, &mut problems) else { return Err(in_order(problems)) };
    let mut bytes = text.len();
    let mut texts = Vec::new();
    for (node, path) in references(&root) {
        let Some(file) = node.get("file") else { continue };
        let Some(name) = file.text() else { continue };
        let path = join(&path, "file");
        // Replaced below if the file can be read.
        texts.push((node, String::new()));
        match key_problem(name) {
            Some(message) => {
                let hint = "give a path relative to the definition, below its folder, with `/`";
                problems.push(file.problem(Code::InvalidFormat, &path, message).param("format", "path").hint(hint));
            }
            None => match load(name) {
                Ok(loaded) => {
                    bytes = bytes.saturating_add(loaded.len());
                    texts.pop();
                    texts.push((node, loaded));
                }
                Err(error) => problems.push(file.problem(
                    Code::Unreadable,
                    &path,
                    format!("`{}` cannot be read: {error}", shown(name)),
                )),
            },
        }
        if bytes > TEXT_BYTES_MAX {
            let problem = file
                .problem(Code::TooLong, &path, "makes the definition too long")
                .param("limit", TEXT_BYTES_MAX)
                .param("unit", "bytes");
            problems.push(problem.hint(format!("with the texts of its files it may have {TEXT_BYTES_MAX} bytes")));
            break;
        }
    }
    Ok((splice(text, &texts), in_order(problems)))
}

/// The template parts, partials and queries that are mappings with a `file`, in the order of the text, with their
/// paths.
fn references(root: &Node) -> Vec<(&Node, String)> {
    let mut found = Vec::new();
    // A mapping with other keys as well stays, for `read` to report.
    let is_file = |node: &Node| node.get("file").is_some() && node.entries().len() == 1;
    for partial in root.get("partials").map_or(&[][..], Node::entries) {
        found.extend(within(&partial.value, &format!("partials.{}", partial.key)).filter(|(node, _)| is_file(node)));
    }
    for class in root.get("notifications").map_or(&[][..], Node::entries) {
        let Some(templates) = class.value.get("content").and_then(|content| content.get("templates")) else { continue };
        for template in templates.entries() {
            for part in template.value.entries() {
                let path = format!("notifications.{}.content.templates.{}.{}", class.key, template.key, part.key);
                found.extend(within(&part.value, &path).filter(|(node, _)| is_file(node)));
            }
        }
    }
    for rule in root.get("rules").map_or(&[][..], Node::entries) {
        if let Some(sql) = rule.value.get("sql").filter(|sql| sql.get("file").is_some() && sql.entries().len() == 1) {
            found.push((sql, format!("rules.{}.sql", rule.key)));
        }
    }
    // Sorted, because `rules` may precede `notifications` and the text is built from its beginning.
    found.sort_by_key(|(node, _)| node.start);
    found
}

/// A template, and the text under the name of its language.
fn within<'a>(node: &'a Node, path: &str) -> impl Iterator<Item = (&'a Node, String)> {
    let named = ["jinja", "mjml", "xslt"].into_iter().filter_map(|key| Some((node.get(key)?, join(path, key))));
    std::iter::once((node, path.to_owned())).chain(named.collect::<Vec<_>>())
}

/// The problem of a path that must not be read.
fn key_problem(path: &str) -> Option<&'static str> {
    match path {
        "" => Some("is empty"),
        _ if path.starts_with('/') => Some("is an absolute path"),
        _ if path.contains(['\\', '\0', ':']) => Some("is not a plain path"),
        _ if path.split('/').any(|part| part == "..") => Some("leads upwards"),
        _ => None,
    }
}

/// The text with these nodes, in order, replaced by quoted texts.
fn splice(text: &str, texts: &[(&Node, String)]) -> String {
    let mut spliced = String::with_capacity(text.len() + texts.iter().map(|(_, text)| text.len() + 16).sum::<usize>());
    let mut characters = text.chars();
    let mut at = 0;
    for (node, replacement) in texts {
        spliced.extend(characters.by_ref().take(node.start - at));
        let replaced: String = characters.by_ref().take(node.end - node.start).collect();
        at = node.end;
        quote(replacement.strip_prefix('\u{feff}').unwrap_or(replacement), &mut spliced);
        // Lines of the mapping are kept, so that later problems have the right line numbers.
        let kept = replaced.trim_end();
        spliced.extend(kept.chars().filter(|c| *c == '\n'));
        spliced.push_str(&replaced[kept.len()..]);
    }
    spliced.extend(characters);
    spliced
}

/// Writes a double-quoted scalar of YAML on one line.
fn quote(text: &str, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            c if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}') => {
                let _ = write!(out, "\\u{:04X}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push('"');
}
