//! Codes: every text matches its expression.

use super::*;

/// A generator with a printed seed.
fn random(seed: u64) -> impl Fn() -> u64 {
    let state = std::cell::RefCell::new(fastrand::Rng::with_seed(seed));
    move || state.borrow_mut().u64(..)
}

#[test]
fn s2_2_codes_match_their_regular_expression() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let random = random(seed);
    let patterns = [
        r"\d{5}",
        "[a-f0-9]{8}",
        "(ab|cd)+x?",
        r"\w{3,5}-[^a-z]",
        "a|b|c",
        "x*y{2,}",
        "(?:[A-Z]{2}){1,3}",
        ".",
        r"\bcode\b",
        "^a$",
        "é{2}[à-ü]",
    ];
    for pattern in patterns {
        let whole = regex::Regex::new(&format!("^(?:{pattern})$")).expect("an expression");
        for _ in 0..200 {
            let code = generate(pattern, &random).unwrap_or_else(|error| panic!("{pattern}: {error}"));
            assert!(whole.is_match(&code), "{pattern}: {code:?}");
        }
    }
}

#[test]
fn codes_vary() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let random = random(seed);
    let codes: std::collections::HashSet<String> =
        (0..1_000).map(|_| generate(r"\d{5}", &random).expect("a code")).collect();
    assert!(codes.len() > 950, "{} codes", codes.len());
    assert!(codes.iter().any(|code| code.starts_with('0')) && codes.iter().any(|code| code.ends_with('9')));
}

#[test]
fn expressions_without_bounded_codes_are_refused() {
    let random = || 7;
    for pattern in
        ["(", r"(?=a)b", r"(a)\1", "[z-a]", "(a{1000}){1000}", "((a?){1000}){1000}", &"a".repeat(PATTERN_BYTES_MAX + 1)]
    {
        assert!(generate(pattern, &random).is_err(), "{}", &pattern[..pattern.len().min(20)]);
    }
}

#[test]
fn s12_codes_are_compared_as_a_whole() {
    assert!(equals("12345", "12345") && equals("", ""));
    assert!(!equals("12345", "1234") && !equals("12345", "12346") && !equals("12345", ""));
}
