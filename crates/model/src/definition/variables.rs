//! Fills in environment variables `${NAME}` and `${NAME:-default}` in the options of channels and in sources. `$$` is
//! a dollar sign. Elsewhere a dollar sign is literal, because templates and rules use it.

use super::document::{Kind, Node, join, plain};
use crate::problem::{Code, Problem};

/// Most bytes of all values together.
const FILLED_BYTES_MAX: usize = 4 << 20;

/// Prefixes of variables that configure the server.
const SETTINGS: &[&str] = &["TOCSIN_", "OTEL_"];

/// The sections of an exchange whose entries are ports.
const PORTS: &[&str] = &["receive", "send"];

/// Fills in the variables of channel options and of sources.
pub fn fill_in(root: &mut Node, environment: &dyn Fn(&str) -> Option<String>, problems: &mut Vec<Problem>) {
    let mut filler = Filler { environment, bytes: 0, problems };
    let Kind::Map(sections) = &mut root.kind else { return };
    for section in sections {
        match (section.key.as_str(), &mut section.value.kind) {
            ("sources", _) => filler.node(&mut section.value, "sources"),
            ("channels", Kind::Map(channels)) => {
                for channel in channels {
                    let path = join("channels", &channel.key);
                    if let Kind::Map(parts) = &mut channel.value.kind {
                        for part in parts.iter_mut().filter(|part| part.key == "options") {
                            filler.node(&mut part.value, &join(&path, "options"));
                        }
                    }
                }
            }
            _ => {}
        }
    }
}

/// Fills in the variables of an exchange: in its send ports and locations, and in the steps `sign` and `run` of its
/// pipelines. In other steps a dollar sign is literal.
pub fn fill_in_exchange(root: &mut Node, environment: &dyn Fn(&str) -> Option<String>, problems: &mut Vec<Problem>) {
    let mut filler = Filler { environment, bytes: 0, problems };
    for (section, port, node) in below_sections(root, PORTS) {
        let path = join(&join(section, &port), "");
        let Kind::Map(parts) = &mut node.kind else { continue };
        for part in parts {
            let path = format!("{path}{}", part.key);
            match (part.key.as_str(), &mut part.value.kind) {
                ("pipeline" | "reply_pipeline", Kind::List(steps)) => {
                    for (at, step) in steps.iter_mut().enumerate() {
                        let Kind::Map(entries) = &mut step.kind else { continue };
                        for entry in entries.iter_mut().filter(|entry| matches!(entry.key.as_str(), "sign" | "run")) {
                            filler.node(&mut entry.value, &format!("{path}[{at}].{}", entry.key));
                        }
                    }
                }
                ("locations", _) => filler.node(&mut part.value, &path),
                _ if section == "send" => filler.node(&mut part.value, &path),
                _ => {}
            }
        }
    }
}

/// Paths of the ports of an exchange that may contain variables.
pub fn ports_that_take(mut root: Node) -> Vec<String> {
    let ports = below_sections(&mut root, PORTS).filter(|(_, _, port)| holds_variable(port));
    ports.map(|(section, port, _)| join(section, &port)).collect()
}

fn holds_variable(node: &Node) -> bool {
    match &node.kind {
        Kind::Text { text, .. } => text.contains("${"),
        Kind::List(items) => items.iter().any(holds_variable),
        Kind::Map(entries) => entries.iter().any(|entry| holds_variable(&entry.value)),
        _ => false,
    }
}

/// The entries of some sections, each with its section and key.
fn below_sections<'a>(
    root: &'a mut Node,
    sections: &'static [&'static str],
) -> impl Iterator<Item = (&'static str, String, &'a mut Node)> {
    let Kind::Map(found) = &mut root.kind else { return None.into_iter().flatten() };
    let entries = found.iter_mut().filter_map(|section| {
        let name = sections.iter().find(|name| **name == section.key)?;
        let Kind::Map(entries) = &mut section.value.kind else { return None };
        Some(entries.iter_mut().map(move |entry| (*name, entry.key.clone(), &mut entry.value)))
    });
    Some(entries.flatten()).into_iter().flatten()
}

struct Filler<'a> {
    environment: &'a dyn Fn(&str) -> Option<String>,
    bytes: usize,
    problems: &'a mut Vec<Problem>,
}

impl Filler<'_> {
    fn node(&mut self, node: &mut Node, path: &str) {
        let (line, column) = (node.line, node.column);
        match &mut node.kind {
            Kind::Text { text, plain: is_plain } if text.contains('$') => match self.text(text) {
                // An unquoted value is parsed as YAML, so that a port from the environment is a number.
                Ok(filled) if *is_plain => node.kind = plain(filled),
                Ok(filled) => *text = filled,
                Err((message, hint)) => self.problems.push(
                    Problem::new(Code::UnknownReference, path, message)
                        .param("kind", "environment_variable")
                        .hint(hint)
                        .position(line, column),
                ),
            },
            Kind::List(items) => {
                for (at, item) in items.iter_mut().enumerate() {
                    self.node(item, &format!("{path}[{at}]"));
                }
            }
            Kind::Map(entries) => {
                for entry in entries {
                    self.node(&mut entry.value, &join(path, &entry.key));
                }
            }
            _ => {}
        }
    }

    /// The text with its variables filled in; or a message and a hint, which never contain a value.
    fn text(&mut self, text: &str) -> Result<String, (String, String)> {
        let mut filled = String::new();
        let mut rest = text;
        while let Some(at) = rest.find('$') {
            filled.push_str(&rest[..at]);
            rest = &rest[at + 1..];
            if let Some(after) = rest.strip_prefix('$') {
                filled.push('$');
                rest = after;
            } else if let Some(after) = rest.strip_prefix('{') {
                let unclosed = || ("has `${` without `}`".to_owned(), "write `$$` for a dollar sign".to_owned());
                let (inside, after) = after.split_once('}').ok_or_else(unclosed)?;
                filled.push_str(&self.variable(inside)?);
                rest = after;
            } else {
                filled.push('$');
            }
            if self.bytes + filled.len() > FILLED_BYTES_MAX {
                return Err((
                    "grows too long with its variables".to_owned(),
                    format!("at most {FILLED_BYTES_MAX} bytes in all"),
                ));
            }
        }
        filled.push_str(rest);
        self.bytes += filled.len();
        Ok(filled)
    }

    fn variable(&self, inside: &str) -> Result<String, (String, String)> {
        let (name, default) = match inside.split_once(":-") {
            Some((name, default)) => (name, Some(default)),
            None => (inside, None),
        };
        let is_name = name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        if !is_name {
            let message = format!("has `${{{name}}}`, which is not the name of a variable");
            return Err((message, "give `${NAME}` or `${NAME:-default}`; `$$` is a dollar sign".to_owned()));
        }
        // The server's settings contain its secrets: sealing keys, an API key, credentials for its collector.
        if SETTINGS.iter().any(|prefix| name.starts_with(prefix)) {
            let message = format!("names `{name}`, which is a setting of the server and not given to definitions");
            return Err((message, "give the value in a variable whose name begins otherwise".to_owned()));
        }
        // As in a shell, `:-` also replaces an empty variable.
        match ((self.environment)(name), default) {
            (Some(value), None) => Ok(value),
            (Some(value), Some(_)) if !value.is_empty() => Ok(value),
            (_, Some(default)) => Ok(default.to_owned()),
            (None, None) => Err((
                format!("needs the environment variable `{name}`, which is not set"),
                format!("set it, or give a default: `${{{name}:-...}}`"),
            )),
        }
    }
}
