//! Finds the secret parts of a text: all of it, or the credentials in its URLs.

use std::ops::Range;

use super::secret_paths::{SecretShape, is_secret_name};

/// URL schemes in which a user name without a password is a credential.
const BY_NAME_ALONE: [&str; 6] = ["http", "https", "nats", "tls", "ws", "wss"];

/// A part of a text that is secret.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// Identifies the secret within its text, even if the rest has changed.
    pub label: String,
    /// Its range in bytes.
    pub range: Range<usize>,
}

/// The secret parts of a text, in order. None if all comes from the environment.
pub(super) fn pieces(text: &str, form: SecretShape) -> Vec<Piece> {
    let is_open = match form {
        SecretShape::Whole => without_variables(text, false).trim().is_empty(),
        SecretShape::Value => is_filled_in(text),
        SecretShape::Addresses | SecretShape::Named | SecretShape::Except(_) => return in_addresses(text),
    };
    // If the whole text is secret, a default or URL in it needs no mask of its own.
    if is_open { in_addresses(text) } else { vec![Piece { label: String::new(), range: 0..text.len() }] }
}

/// Whether everything except a leading word (`Bearer ${TOKEN}`) is filled in later.
fn is_filled_in(text: &str) -> bool {
    let left = without_variables(text, true);
    let is_scheme = left.len() < text.len()
        && left.ends_with(' ')
        && text.starts_with(&left)
        && left.trim_end().bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    left.trim().is_empty() || is_scheme
}

/// A text without its variables, and without placeholders for message values. A variable with a default stays,
/// because the default is written here.
fn without_variables(text: &str, places: bool) -> String {
    let (mut left, mut rest) = (String::new(), text);
    while let Some(at) = rest.find(['$', '{']) {
        left.push_str(&rest[..at]);
        rest = &rest[at..];
        let after = match rest.strip_prefix("${") {
            Some(inside) => inside.split_once('}').filter(|(name, _)| is_variable(name)).map(|(_, after)| after),
            None if places => rest.strip_prefix('{').and_then(|inside| inside.split_once('}')).map(|(_, after)| after),
            None => None,
        };
        if let Some(after) = after {
            rest = after;
        } else {
            // `$$` is a dollar sign, so `$${NAME}` is no variable.
            let (taken, after) = rest.split_at(if rest.starts_with("$$") { 2 } else { 1 });
            left.push_str(taken);
            rest = after;
        }
    }
    left + rest
}

fn is_variable(inside: &str) -> bool {
    let name = inside.strip_suffix(":-").unwrap_or(inside);
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// Passwords in the URLs of a text, and values of query parameters with secret names.
fn in_addresses(text: &str) -> Vec<Piece> {
    let mut found = Vec::new();
    for (at, _) in text.match_indices("://") {
        let scheme = text[..at].rsplit(|c: char| !c.is_ascii_alphanumeric()).next().unwrap_or_default();
        let begin = at + 3;
        let end = begin + text[begin..].find(|c: char| c.is_whitespace()).unwrap_or(text.len() - begin);
        found.extend(in_user(scheme, text, begin..end));
        found.extend(in_query(text, begin..end));
    }
    found.retain(|range: &(String, Range<usize>)| !without_variables(&text[range.1.clone()], true).trim().is_empty());
    // In two URLs without a blank between them (`nats://a:x@b,nats://c:y@d`) both would include the second.
    found.sort_by_key(|(_, range)| (range.start, range.end));
    found.dedup_by(|later, first| later.1.start < first.1.end);
    let mut pieces: Vec<Piece> = Vec::new();
    for (name, range) in found {
        let earlier = pieces.iter().filter(|piece| piece.label.rsplit_once(' ').is_some_and(|(of, _)| of == name));
        let label = format!("{name} {}", earlier.count());
        pieces.push(Piece { label, range });
    }
    pieces
}

/// The secret before the `@` of a URL: the password, or a user name that is a credential.
fn in_user(scheme: &str, text: &str, whole: Range<usize>) -> Option<(String, Range<usize>)> {
    let address = &text[whole.clone()];
    let authority = &address[..outside_variables(address, &['/', '?', '#']).unwrap_or(address.len())];
    let user = &authority[..authority.rfind('@')?];
    let begin = match outside_variables(user, &[':']) {
        Some(at) => at + 1,
        None if BY_NAME_ALONE.contains(&scheme.to_ascii_lowercase().as_str()) => 0,
        None => return None,
    };
    let range = whole.start + begin..whole.start + user.len();
    (!range.is_empty()).then(|| ("password".to_owned(), range))
}

/// Index of the first of some characters outside of `${...}`.
fn outside_variables(text: &str, requested: &[char]) -> Option<usize> {
    let mut inside = false;
    text.char_indices().find_map(|(at, c)| {
        inside = (inside || c == '{' && text[..at].ends_with('$')) && c != '}';
        (!inside && requested.contains(&c)).then_some(at)
    })
}

fn in_query(text: &str, whole: Range<usize>) -> Vec<(String, Range<usize>)> {
    let Some(query) = text[whole.clone()].find('?').map(|at| whole.start + at + 1) else { return Vec::new() };
    let end = text[query..whole.end].find('#').map_or(whole.end, |at| query + at);
    let mut found = Vec::new();
    let mut begin = query;
    for parameter in text[query..end].split('&') {
        if let Some((name, value)) = parameter.split_once('=')
            && is_secret_name(name)
            && !value.is_empty()
        {
            let from = begin + name.len() + 1;
            found.push((format!("?{name}"), from..from + value.len()));
        }
        begin += parameter.len() + 1;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares a text with its secret parts in brackets.
    fn check(form: SecretShape, text: &str, expected: &str) {
        let mut shown = text.to_owned();
        for piece in pieces(text, form).into_iter().rev() {
            shown.insert(piece.range.end, ']');
            shown.insert(piece.range.start, '[');
        }
        assert_eq!(shown, expected, "{text}");
    }

    #[test]
    fn variables_and_placeholders_are_not_secrets() {
        for open in ["", " ", "${PASSWORD}", "${PASSWORD:-}", "${A}${B}", " ${A} "] {
            check(SecretShape::Whole, open, open);
            check(SecretShape::Value, open, open);
        }
        check(SecretShape::Whole, "hunter2", "[hunter2]");
        check(SecretShape::Whole, "${PASSWORD:-hunter2}", "[${PASSWORD:-hunter2}]");
        check(SecretShape::Whole, "$${PASSWORD}", "[$${PASSWORD}]");
        check(SecretShape::Whole, "${not a name}", "[${not a name}]");
        check(SecretShape::Whole, "${unclosed", "[${unclosed]");
        check(SecretShape::Whole, "whsec_old ${NEW}", "[whsec_old ${NEW}]");
        check(SecretShape::Whole, "{place}", "[{place}]");
        check(SecretShape::Value, "{place}", "{place}");
        check(SecretShape::Value, "Bearer ${TOKEN}", "Bearer ${TOKEN}");
        check(SecretShape::Value, "Bearer {with.token}", "Bearer {with.token}");
        check(SecretShape::Value, "Bearer sk-1 ${TOKEN}", "[Bearer sk-1 ${TOKEN}]");
        check(SecretShape::Value, "Bearer sk-1", "[Bearer sk-1]");
    }

    #[test]
    fn passwords_in_addresses() {
        let check = |text, expected| check(SecretShape::Addresses, text, expected);
        check("postgres://tocsin:pw@db/shop", "postgres://tocsin:[pw]@db/shop");
        check("postgres://tocsin:${PW}@db/shop", "postgres://tocsin:${PW}@db/shop");
        check("postgres://tocsin:${PW:-x}@db/shop", "postgres://tocsin:[${PW:-x}]@db/shop");
        check("postgres://tocsin@db/shop", "postgres://tocsin@db/shop");
        check("postgres://${USER:-me}@db/shop", "postgres://${USER:-me}@db/shop");
        check("postgres://${USER:-me}:${PW:-a/b}@db/shop", "postgres://${USER:-me}:[${PW:-a/b}]@db/shop");
        check("postgres://u:p,w@h1,h2/shop", "postgres://u:[p,w]@h1,h2/shop");
        check("mysql://a:b:c@h", "mysql://a:[b:c]@h");
        check("mysql://a:b@c@h", "mysql://a:[b@c]@h");
        check("https://token@example.org/", "https://[token]@example.org/");
        check("https://example.org/a@b", "https://example.org/a@b");
        check("https://example.org:8443/a", "https://example.org:8443/a");
        check("nats://a:x@b,nats://c:y@d", "nats://a:[x]@b,nats://c:[y]@d");
        check("see https://a:b@c/ and https://d:e@f", "see https://a:[b]@c/ and https://d:[e]@f");
        check("https://h/p?a=1&api_key=2#api_key=3", "https://h/p?a=1&api_key=[2]#api_key=3");
        check("https://h/p?token=${T}&sig=", "https://h/p?token=${T}&sig=");
        check("quakes", "quakes");
        check("://", "://");
        check("größe://ä:ö@ü", "größe://ä:[ö]@ü");
    }
}
