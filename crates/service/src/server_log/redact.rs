//! Masks secrets in a text: API keys, credentials of headers and URLs, values of secret names, tokens of links.

const MASK: &str = "********";
/// Parts of names whose values are secret.
const SECRET_NAMES: [&str; 7] = ["password", "passwd", "secret", "token", "authorization", "cookie", "api_key"];
/// Path segments that a secret token follows.
const BEFORE_TOKENS: [&str; 4] = ["/p/", "/unsubscribe/", "/confirm/", "/feedback-token/"];

/// Whether the value of a name is secret.
pub(super) fn is_secret_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase().replace('-', "_");
    SECRET_NAMES.iter().any(|secret| name.contains(secret))
}

/// The text with secrets masked.
pub(super) fn masked(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut is_after_scheme = false;
    let is_end = |c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '`' | ',' | ';' | ')' | '>');
    for piece in text.split_inclusive(is_end) {
        let word = piece.trim_end_matches(is_end);
        let rest = &piece[word.len()..];
        if is_after_scheme && !word.is_empty() {
            out.push_str(MASK);
            is_after_scheme = false;
        } else {
            out.push_str(&masked_word(word));
            let scheme = word.rsplit([':', '=']).next().unwrap_or_default();
            is_after_scheme |= ["bearer", "basic"].iter().any(|known| scheme.eq_ignore_ascii_case(known));
        }
        out.push_str(rest);
    }
    out
}

fn masked_word(word: &str) -> String {
    let mut word = without_key(word);
    if let Some(at) = word.find("://").map(|at| at + 3) {
        let end = word[at..].find(['/', '?', '#']).map_or(word.len(), |end| at + end);
        if let Some(host) = word[at..end].rfind('@').map(|host| at + host) {
            let start = word[at..host].find(':').map_or(at, |colon| at + colon + 1);
            word.replace_range(start..host, MASK);
        }
    }
    for before in BEFORE_TOKENS {
        if let Some(start) = word.find(before).map(|at| at + before.len()) {
            let end = word[start..].find(['/', '?', '#']).map_or(word.len(), |end| start + end);
            word.replace_range(start..end, MASK);
        }
    }
    if let Some(at) = word.find("/console/").and_then(|at| Some(at + word[at..].find('#')? + 1)) {
        word.replace_range(at.., MASK);
    }
    if word.contains('=') {
        let parts = word.split_inclusive(['&', '?']).map(|part| {
            let (pair, end) = match part.strip_suffix(['&', '?']) {
                Some(pair) => (pair, &part[pair.len()..]),
                None => (part, ""),
            };
            match pair.split_once('=') {
                Some((name, value)) if is_secret_name(name) && !value.is_empty() => format!("{name}={MASK}{end}"),
                _ => part.to_owned(),
            }
        });
        word = parts.collect();
    }
    word
}

/// Masks the secret of API keys, `tocsin_<id>_<secret>`.
fn without_key(word: &str) -> String {
    const START: &str = "tocsin_";
    let mut out = String::with_capacity(word.len());
    let mut rest = word;
    while let Some(at) = rest.find(START) {
        let after = &rest[at + START.len()..];
        let is_hex = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let id = after.get(..8).filter(|id| is_hex(id) && after[8..].starts_with('_'));
        match id {
            Some(id) => {
                out.push_str(&rest[..at]);
                out.push_str(&format!("{START}{id}_{MASK}"));
                let secret = &after[9..];
                rest = secret.trim_start_matches(|c: char| c.is_ascii_hexdigit());
            }
            None => {
                out.push_str(&rest[..at + START.len()]);
                rest = after;
            }
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_masked_and_other_text_stays() {
        let check = |text: &str, expected: &str| assert_eq!(masked(text), expected);
        check("used tocsin_0a1b2c3d_00ff00ff00ff to log in", "used tocsin_0a1b2c3d_******** to log in");
        check("Authorization: Basic YTpi, then", "Authorization: Basic ********, then");
        check("at smtps://ann:s3cret@mail.example/x?y=1", "at smtps://ann:********@mail.example/x?y=1");
        check("https://s3cret@mail.example", "https://********@mail.example");
        check("password=hunter2 and name=ann", "password=******** and name=ann");
        check("GET /v1/feed?token=abc&limit=7", "GET /v1/feed?token=********&limit=7");
        check("GET /unsubscribe/abc.def?x=1", "GET /unsubscribe/********?x=1");
        check(
            "open http://127.0.0.1:8480/console/setup#abc now",
            "open http://127.0.0.1:8480/console/setup#******** now",
        );
        check("tocsin_delivery: 3 of 7 sent to a@b.example", "tocsin_delivery: 3 of 7 sent to a@b.example");
        check("", "");
    }

    #[test]
    fn names_of_secrets_are_known() {
        assert!(is_secret_name("X-Api-Key") && is_secret_name("smtp_password") && is_secret_name("inboxToken"));
        assert!(!is_secret_name("address") && !is_secret_name("key"));
    }
}
