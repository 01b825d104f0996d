//! The parts of a text that are secret: all of it, or what proves somebody in the addresses that it holds.

use std::ops::Range;

use super::places::{Form, tells_of_a_secret};

/// Schemes of addresses in which a name alone, without a password, is what proves somebody.
const BY_NAME_ALONE: [&str; 6] = ["http", "https", "nats", "tls", "ws", "wss"];

/// A part of a text that is secret.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// Which of the secrets of a text: by this it is known again when the rest has changed.
    pub label: String,
    /// Where it is, in bytes.
    pub range: Range<usize>,
}

/// The secret parts of a text, in its order. None where it takes all from the environment.
pub(super) fn pieces(text: &str, form: Form) -> Vec<Piece> {
    let is_open = match form {
        Form::Whole => without_variables(text, false).trim().is_empty(),
        Form::Value => is_filled_in(text),
        Form::Addresses | Form::Named | Form::Except(_) => return in_addresses(text),
    };
    // Where a whole is open, a default or an address in it is not.
    if is_open { in_addresses(text) } else { vec![Piece { label: String::new(), range: 0..text.len() }] }
}

/// Whether all but a word in front (`Bearer ${TOKEN}`) is filled in later.
fn is_filled_in(text: &str) -> bool {
    let left = without_variables(text, true);
    let is_scheme = left.len() < text.len()
        && left.ends_with(' ')
        && text.starts_with(&left)
        && left.trim_end().bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    left.trim().is_empty() || is_scheme
}

/// What is left of a text without its variables, and without the places that a message fills in. A variable with a
/// default stays, for the default is written here.
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

/// Passwords in the addresses of a text, and values of their queries whose names tell of a secret.
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
    // Two addresses without a blank between them (`nats://a:x@b,nats://c:y@d`) both look at what is behind the second.
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

/// What stands before the `@` of an address: behind a name its password, or a name that is one.
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

/// Where the first of some characters stands that is not inside `${...}`.
fn outside_variables(text: &str, wanted: &[char]) -> Option<usize> {
    let mut inside = false;
    text.char_indices().find_map(|(at, c)| {
        inside = (inside || c == '{' && text[..at].ends_with('$')) && c != '}';
        (!inside && wanted.contains(&c)).then_some(at)
    })
}

fn in_query(text: &str, whole: Range<usize>) -> Vec<(String, Range<usize>)> {
    let Some(query) = text[whole.clone()].find('?').map(|at| whole.start + at + 1) else { return Vec::new() };
    let end = text[query..whole.end].find('#').map_or(whole.end, |at| query + at);
    let mut found = Vec::new();
    let mut begin = query;
    for parameter in text[query..end].split('&') {
        if let Some((name, value)) = parameter.split_once('=')
            && tells_of_a_secret(name)
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

    /// The secret parts in brackets.
    fn check(form: Form, text: &str, expected: &str) {
        let mut shown = text.to_owned();
        for piece in pieces(text, form).into_iter().rev() {
            shown.insert(piece.range.end, ']');
            shown.insert(piece.range.start, '[');
        }
        assert_eq!(shown, expected, "{text}");
    }

    #[test]
    fn what_is_taken_from_elsewhere_is_no_secret() {
        for open in ["", " ", "${PASSWORD}", "${PASSWORD:-}", "${A}${B}", " ${A} "] {
            check(Form::Whole, open, open);
            check(Form::Value, open, open);
        }
        check(Form::Whole, "hunter2", "[hunter2]");
        check(Form::Whole, "${PASSWORD:-hunter2}", "[${PASSWORD:-hunter2}]");
        check(Form::Whole, "$${PASSWORD}", "[$${PASSWORD}]");
        check(Form::Whole, "${not a name}", "[${not a name}]");
        check(Form::Whole, "${unclosed", "[${unclosed]");
        check(Form::Whole, "whsec_old ${NEW}", "[whsec_old ${NEW}]");
        check(Form::Whole, "{place}", "[{place}]");
        check(Form::Value, "{place}", "{place}");
        check(Form::Value, "Bearer ${TOKEN}", "Bearer ${TOKEN}");
        check(Form::Value, "Bearer {with.token}", "Bearer {with.token}");
        check(Form::Value, "Bearer sk-1 ${TOKEN}", "[Bearer sk-1 ${TOKEN}]");
        check(Form::Value, "Bearer sk-1", "[Bearer sk-1]");
    }

    #[test]
    fn passwords_in_addresses() {
        let check = |text, expected| check(Form::Addresses, text, expected);
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
