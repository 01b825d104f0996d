//! Malformed and malicious texts.

use proptest::prelude::*;

use super::{QUAKES, environment};
use crate::definition::{inline_files, read};

#[test]
fn naughty_texts_are_only_wrong() {
    let naughty = [
        "\0",
        "\u{feff}",
        "\u{feff}application: a",
        "\r\n",
        "---",
        "...",
        "--- |",
        "%YAML 9.9\n---\na: b",
        "%TAG ! x\n--- !a b",
        "? ",
        ": ",
        "- ",
        "&",
        "*",
        "!",
        "|",
        ">",
        "'",
        "\"",
        "@",
        "`",
        "{",
        "}",
        "[",
        "]",
        ",",
        "#",
        "{{{{{{",
        "}}}}",
        "a: b: c",
        "a:\n\t- b",
        "\u{202e}a: b",
        "application: \"\\ud800\"",
        "application: \"\\U00110000\"",
        "application: 1e999",
        "application: -.inf",
        "<<: {a: b}",
        "application: a\n<<: *b",
        "x: &x [*x]",
        "a: |9\n b",
        "a: >-+\n b",
        "\u{2028}",
        "😀: 😀",
        "application: 😀",
    ];
    for text in naughty {
        let _ = read(text, &environment);
        let _ = inline_files(text, &|_| Err(String::new()));
    }
    for token in
        ["[", "{", "{a: ", "- ", "? ", "a:\n ", "!", "&a ", "'", "\"\\", "|\n", "${", "#\n", "a: {", "*a", "\n\n"]
    {
        let _ = read(&token.repeat(20_000), &environment);
    }
}

/// Each production of YAML that adds a level, many times, on a stack smaller than that of any thread of the server.
#[test]
fn a14_no_definition_overflows_the_stack() {
    let work = || {
        for (open, close) in [
            ("[", "]"),
            ("{a: ", "}"),
            ("[{a: ", "}]"),
            ("- ", ""),
            ("? ", ""),
            ("!!map {a: ", "}"),
            ("&a [", "]"),
            ("!a ", ""),
            ("? [", "]"),
            ("{[", "]: 1}"),
            ("{? ", "}"),
        ] {
            for count in [10, 31, 33, 200, 10_000] {
                let text = format!("{}x{}", open.repeat(count), close.repeat(count));
                let _ = read(&text, &environment);
                let _ = read(&format!("application: a\nevents: {text}\n"), &environment);
                let _ = read(&open.repeat(count), &environment);
                let _ = inline_files(&text, &|_| Ok("x".to_owned()));
            }
        }
        let block: String = (0..2_000).map(|level| format!("{}a:\n", " ".repeat(level))).collect();
        let _ = read(&block, &environment);
        let list: String = (0..2_000).map(|level| format!("{}-\n", " ".repeat(level))).collect();
        let _ = read(&list, &environment);
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(512 << 10);
        thread.spawn_scoped(scope, work).expect("a thread").join().expect("no panic");
    });
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in "\\PC*|[ \n:{}\\[\\],&*!|>'\"#%@`?a-c0-9$-]{0,200}") {
        let _ = read(&text, &environment);
        let _ = inline_files(&text, &|_| Ok("x\ny".to_owned()));
    }

    #[test]
    fn a_damaged_definition_is_read_or_refused(
        at in 0usize..QUAKES.len(),
        length in 0usize..60,
        put in "[ \n:{}\\[\\],&*!|>'\"#a-c0-9$-]{0,8}",
    ) {
        let mut text = QUAKES.to_owned();
        text.replace_range(at..(at + length).min(QUAKES.len()), &put);
        if let Err(problems) = read(&text, &environment) {
            let lines = text.lines().count() as u32 + 1;
            prop_assert!(problems.iter().all(|problem| problem.line.is_none_or(|line| (1..=lines).contains(&line))));
        }
    }

    #[test]
    fn any_file_can_be_put_in(content in any::<String>()) {
        let text = "application: a\nnotifications: { n: { content: { templates: { base: { text: { file: x }, html: y } } } } }\n";
        let inlined = inline_files(text, &|_| Ok(content.clone())).expect("a file");
        let application = read(&inlined, &environment).expect("a definition");
        let parts = &application.notifications.values().next().expect("one").content.templates[""];
        prop_assert_eq!(parts.text.as_ref().map(|text| text.text.as_str()), Some(content.strip_prefix('\u{feff}').unwrap_or(&content)));
        prop_assert_eq!(parts.html.as_ref().map(|html| html.text.as_str()), Some("y"));
    }
}
