//! A lint over the sources: no secret is compared by `==`, whose duration reveals how much of a guess was right.
//!
//! Keys and tokens are looked up by their SHA-256, and signatures are verified by `ring` or a similar library.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Names of secrets, and of values compared with them.
const WORDS: [&str; 9] =
    ["signature", "digest", "hmac", "secret", "token", "password", "passphrase", "api_key", "credential"];

/// Permitted comparisons, each with the reason.
const ALLOWED: [(&str, &str, &str); 16] = [
    ("model/src/definition/secrets.rs", "secret != MASK", "the mask that stands for all secrets"),
    ("connect/src/nats.rs", "self.password.is_some()", "whether it is given"),
    ("connect/src/nats.rs", "token_pattern == token", "a token of a subject"),
    ("connect/src/kafka.rs", "self.password.is_some()", "whether it is given"),
    ("matching/src/chronicle/aggregate_table.rs", "signature.to_le_bytes()", "the mark of a file format"),
    ("matching/src/filter/jmespath/parse.rs", "signature.takes.len()", "the arguments of a function"),
    ("matching/src/filter/jmespath/parse.rs", "signature.parameter(at)", "a parameter of a function"),
    ("face-notifybc/src/oidc.rs", "token.key_id()", "the public id of a key"),
    ("model/src/definition/difference.rs", "old.digest != new.digest", "the digest of notifications of a rule"),
    ("sync/src/built_in_edits.rs", "token_of(&subscriber.id)", "the id of a row, which proves nothing"),
    ("store/src/sqlite/journal/leases.rs", "lease.token == token", "a fencing token, which is a number"),
    ("store/src/memory/journal/state.rs", "held.token == token", "a fencing token, which is a number"),
    ("pipeline/src/decide.rs", "then_some((digest, window))", "a message made of several"),
    ("service/src/sessions.rs", "user.password == hash", "of two hashes that the server stored"),
    ("service/src/users.rs", "now.password != user.password", "of two hashes that the server stored"),
    ("store/src/sqlite/spool/intake.rs", "digest == key.digest", "of a body that the caller has"),
];

#[test]
fn i5_no_secret_is_compared_by_an_operator() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the folder of crates");
    let mut found = Vec::new();
    for file in sources(crates) {
        let name = file.strip_prefix(crates).expect("below it").to_string_lossy().replace('\\', "/");
        let is_apart = name.contains("/tests") || name.starts_with("bench/") || name.ends_with("tests.rs");
        if is_apart || !name.contains("/src/") {
            continue;
        }
        let text = fs::read_to_string(&file).expect("a source");
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        for (number, line) in code.lines().enumerate() {
            let is_allowed = ALLOWED.iter().any(|(of, part, _)| name == *of && line.contains(part));
            if compares_a_secret(line) && !is_allowed {
                found.push(format!("{name}:{}: {}", number + 1, line.trim()));
            }
        }
    }
    let hint = "compare by `ring::constant_time`, verify by `ring`, look up by a hash, or say in this test why it is no secret";
    assert!(found.is_empty(), "{hint}:\n{}", found.join("\n"));
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        if path.is_dir() && name != "target" && name != "node_modules" {
            found.extend(sources(&path));
        } else if name.ends_with(".rs") {
            found.push(path);
        }
    }
    found
}

/// Whether an operand of `==` or `!=` in a line of code has the name of a secret.
fn compares_a_secret(line: &str) -> bool {
    let line = line.split("//").next().unwrap_or_default();
    let operators = line.match_indices("==").chain(line.match_indices("!="));
    let is_part = |c: char| c.is_ascii_alphanumeric() || "_.&*()?[]:".contains(c);
    operators.into_iter().any(|(at, _)| {
        let left = line[..at].trim_end();
        let left = &left[left.trim_end_matches(is_part).len()..];
        let right = line[at + 2..].trim_start();
        let right = &right[..right.len() - right.trim_start_matches(is_part).len()];
        // A secret is compared with a value: not with a literal, a constant or an enum variant.
        let without_index = |operand: &str| operand.split('[').next().unwrap_or_default().to_owned();
        let (left, right) = (without_index(left), without_index(right));
        let is_value = |operand: &str| {
            let last = operand
                .trim_end_matches("()")
                .rsplit(['.', ':', '&', '*', '('])
                .find(|part| !part.is_empty())
                .unwrap_or_default();
            last.starts_with(|c: char| c.is_ascii_lowercase() || c == '_')
        };
        // A field of a value with such a name is not a secret: `signature.name`. The result of a method is:
        // `secret.as_bytes()`.
        let is_secret = |operand: &str| {
            let parts: Vec<&str> = operand.split(['.', ':', '&', '*']).filter(|part| !part.is_empty()).collect();
            let methods = parts.iter().rev().take_while(|part| part.ends_with(')') && !part.ends_with("len()")).count();
            let named = parts.iter().rev().nth(methods.min(parts.len().saturating_sub(1)));
            named.is_some_and(|name| WORDS.iter().any(|word| name.to_ascii_lowercase().contains(word)))
        };
        is_value(&left) && is_value(&right) && (is_secret(&left) || is_secret(&right))
    })
}

#[test]
fn i5_the_lint_finds_what_it_looks_for() {
    for wrong in [
        "if given.token == self.token {",
        "shown != api_key",
        "return hmac_of(x) == &signature[..];",
        "x.secret.as_bytes() == y",
    ] {
        assert!(compares_a_secret(wrong), "{wrong}");
    }
    for good in [
        "name == \"token\"",
        "token.len() == 32",
        "kind == Kind::Token",
        "// token == token",
        "a == b",
        "let secret = a;",
    ] {
        assert!(!compares_a_secret(good), "{good}");
    }
}
