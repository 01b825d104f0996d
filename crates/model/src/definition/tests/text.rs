//! Invalid text: YAML errors, unknown keys, variables.

use super::*;

#[test]
fn yaml_errors_have_positions() {
    check("", expect!["is empty; begin with `application: <name>`"]);
    check("# nothing\n", expect!["is empty; begin with `application: <name>`"]);
    check(
        "application: [a",
        expect!["2:1: application[1]: is not YAML: while parsing a flow sequence, expected ',' or ']'"],
    );
    check(
        "application: a\n  events: b: c\n",
        expect!["2:9: is not YAML: mapping values are not allowed in this context"],
    );
    check(
        "application: \"a",
        expect!["1:14: application: is not YAML: while scanning a quoted scalar, found unexpected end of stream"],
    );
    check("\tapplication: a", expect!["fine"]);
    check("application: a\n---\napplication: b", expect!["2:1: has a second document; one file holds one application"]);
    check("- a\n- b", expect!["1:1: should be a mapping, not a list"]);
    check("just text", expect!["1:1: should be a mapping, not text"]);
    check(
        &format!("application: a\ndescription: {}", "x".repeat(TEXT_BYTES_MAX)),
        expect!["is 1048604 bytes long; at most 1048576 are read"],
    );
    check(
        &format!("application: {}", "[".repeat(100)),
        expect![
            "1:45: application[0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0]: is nested too deeply; at most 32 levels are read"
        ],
    );
    check(&format!("application: {}", "\n- ".repeat(100)), expect!["2:3: application: should be a name, not a list"]);
}

#[test]
fn control_characters_are_refused_where_they_stand() {
    // The parser would end at U+0000, and everything below would be ignored without a problem.
    check_with(
        "    batch_size: 500\n",
        "    batch_size: 500\n\0\n",
        expect![
            "24:1: has the character U+0000, which YAML does not allow; take it out, or write `\\x00` within double quotes; definitions are in UTF-8"
        ],
    );
    check(
        "application: a\ndescription: \"b\u{7}\"",
        expect![
            "2:16: has the character U+0007, which YAML does not allow; take it out, or write `\\x07` within double quotes; definitions are in UTF-8"
        ],
    );
    // As UTF-16 without a byte-order mark begins.
    check(
        "\0a\0p",
        expect![
            "1:1: has the character U+0000, which YAML does not allow; take it out, or write `\\x00` within double quotes; definitions are in UTF-8"
        ],
    );
    check("application: a\ndescription: \"\\x07\"", expect!["fine"]);
}

#[test]
fn keys_come_once() {
    check_with(
        "    batch_size: 500\n",
        "    batch_size: 500\n    batch_size: 600\n",
        expect!["24:5: notifications.quake_alert.batch_size: is given twice; the first is in line 23"],
    );
    check_with(
        "      place: string\n",
        "      place: string\n      place: number\n",
        expect!["10:7: events.quake.fields.place: is given twice; the first is in line 9"],
    );
    check_with(
        "  hook: { protocol: http, retry: [] }",
        "  hook: { protocol: http, protocol: smtp }",
        expect!["50:27: channels.hook.protocol: is given twice; the first is in line 50"],
    );
}

#[test]
fn anchors_and_tags_are_refused() {
    check(
        "application: &a b\ndescription: *a",
        expect![[r#"
        1:17: application: has an anchor; leave `&...` out; aliases and anchors are not supported
        2:14: description: is an alias; write the value out; aliases and anchors are not supported"#]],
    );
    check(
        "application: !!int b\ndescription: !secret x",
        expect![[r#"
        1:20: application: has the tag `tag:yaml.org,2002:!int`; leave the tag out; quotes make text
        2:22: description: has the tag `!secret`; leave the tag out; quotes make text"#]],
    );
    check(
        "application: !!str 5a",
        expect!["1:20: application: `5a` is not a name; a name is a letter, then up to 63 letters, digits, `_` or `-`"],
    );
    check(
        "? [a]\n: b",
        expect![[r#"
            1:1: application: is missing; give a name
            1:3: has a list as a key; keys are text"#]],
    );
}

#[test]
fn unknown_keys_get_suggestions() {
    check_with("rules:", "rule:", expect!["32:1: rule: is not known here; did you mean `rules`?"]);
    check_with(
        "    batch_size: 500",
        "    batchsize: 500",
        expect!["23:5: notifications.quake_alert.batchsize: is not known here; did you mean `batch_size`?"],
    );
    check_with(
        "    lease: 1m",
        "    colour: red",
        expect![
            "49:5: channels.email.colour: is not known here; here you can give `protocol`, `options`, `retry`, `concurrency`, `flow`, `lease`, `disable_after`, `endpoint_event`, `log` or `log_failures`"
        ],
    );
    check_with(
        "place: string\n",
        "place: text\n",
        expect![
            "9:14: events.quake.fields.place: `text` is not known here; give `boolean`, `integer`, `number`, `string`, `timestamp`, `list` or `map`"
        ],
    );
    check_with(
        "kind: http, events: [quake]",
        "kind: directory",
        expect![
            "52:9: sources.feed.events: a source that the platform runs has events of one class; name it: `events: [...]`"
        ],
    );
    check_with(
        "kind: http, ",
        "kind: http, options: {folder: /in}, ",
        expect!["52:32: sources.feed.options: a source of the kind `http` has no options"],
    );
    check_with(
        "{ subject: Beben }",
        "{ subjekt: Beben }",
        expect![
            "29:15: notifications.quake_alert.content.templates.de.subjekt: is not known here; did you mean `subject`?"
        ],
    );
}

#[test]
fn variables_come_from_the_environment() {
    check_with(
        "${SMTP_PASSWORD}",
        "${SMTP_PASWORD}",
        expect![
            "45:17: channels.email.options.password: needs the environment variable `SMTP_PASWORD`, which is not set; set it, or give a default: `${SMTP_PASWORD:-...}`"
        ],
    );
    // A user who may apply a definition could send the server's keys to an address of their own.
    check_with(
        "${SMTP_PASSWORD}",
        "${TOCSIN_RECORDS_KEYS:-x}",
        expect![
            "45:17: channels.email.options.password: names `TOCSIN_RECORDS_KEYS`, which is a setting of the server and not given to definitions; give the value in a variable whose name begins otherwise"
        ],
    );
    check_with(
        "${SMTP_PASSWORD}",
        "${OTEL_EXPORTER_OTLP_HEADERS}",
        expect![
            "45:17: channels.email.options.password: names `OTEL_EXPORTER_OTLP_HEADERS`, which is a setting of the server and not given to definitions; give the value in a variable whose name begins otherwise"
        ],
    );
    check_with(
        "${SMTP_PASSWORD}",
        "${SMTP_PASSWORD",
        expect!["45:17: channels.email.options.password: has `${` without `}`; write `$$` for a dollar sign"],
    );
    check_with(
        "${SMTP_PASSWORD}",
        "${SMTP PASSWORD}",
        expect![
            "45:17: channels.email.options.password: has `${SMTP PASSWORD}`, which is not the name of a variable; give `${NAME}` or `${NAME:-default}`; `$$` is a dollar sign"
        ],
    );
    check_with("${SMTP_PASSWORD}", "${EMPTY}${EMPTY:-x}", expect!["fine"]);
    check_with(
        "kind: http",
        "kind: \"${KIND}\"",
        expect![
            "52:17: sources.feed.kind: needs the environment variable `KIND`, which is not set; set it, or give a default: `${KIND:-...}`"
        ],
    );
    check_with("Notifies people about", "Costs ${MONEY} to", expect!["fine"]);
    let bomb = "${BOMB}".repeat(100);
    let large = |_: &str| Some("x".repeat(1 << 16));
    let found = read(&QUAKES.replace("${SMTP_PASSWORD}", &bomb), &large).expect_err("a bomb");
    expect!["45:17: channels.email.options.password: grows too long with its variables; at most 4194304 bytes in all"]
        .assert_eq(&found[0].to_string());
}

/// The value of a document, or its problems.
fn document(text: &str) -> String {
    let mut problems = Vec::new();
    match document::parse(text, &mut problems) {
        Some(root) if problems.is_empty() => root.json().to_string(),
        _ => problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"),
    }
}

#[test]
fn d_surrogate_pairs_of_json_are_one_character() {
    let check = |text: &str, expected: &str| assert_eq!(document(text), expected, "{text}");
    check(r#"{"a": "\ud83d\ude00", "\uD83D\uDE00": ["x\ud834\udd1ey"]}"#, r#"{"a":"😀","😀":["x𝄞y"]}"#);
    check(r#"{"a": "\ud83d\ude00\ud83d\ude01é\ud83d\ude02", "b": "\u00e9"}"#, r#"{"a":"😀😁é😂","b":"é"}"#);
    // Outside of double quotes it is no escape, and an escaped backslash begins none.
    check(r"a: \uD83d\uDE00", r#"{"a":"\\uD83d\\uDE00"}"#);
    check(r"a: '\ud83d\ude00 \uD83D\uDE00'", r#"{"a":"\\ud83d\\ude00 \\uD83D\\uDE00"}"#);
    check(
        "a: |\n  x \"\\ud83d\\uDE00\"\n  \\a\nb: \"\\ud83d\\ude00\"",
        r#"{"a":"x \"\\ud83d\\uDE00\"\n\\a\n","b":"😀"}"#,
    );
    check("# \\ud83d\\ude01\na: b # \\ud83d\\ude02\nc: \\ud83d\\ude03", r#"{"a":"b","c":"\\ud83d\\ude03"}"#);
    check(r#"{"a": "\\ud83d\\ude00", "b": "\\\ud83d\ude00"}"#, r#"{"a":"\\ud83d\\ude00","b":"\\😀"}"#);
    // Markers that the text itself uses.
    check(r#"{"a": "\ud83d\ude00\a\v\x1B\b\a"}"#, "{\"a\":\"😀\\u0007\\u000b\\u001b\\b\\u0007\"}");
    let mut problems = Vec::new();
    let root = document::parse("a: [\"\\ud83d\\ude00\", b]", &mut problems).expect("a document");
    let document::Kind::List(items) = &root.get("a").expect("a list").kind else { panic!("{root:?}") };
    assert_eq!((items[0].start, items[0].end, items[1].start, items[1].column), (4, 18, 20, 21));
}

#[test]
fn d_half_of_a_surrogate_pair_is_refused_with_its_place() {
    for half in [r"\ud83d", r"\ude00", r"\ud83d\ud83d", r"\ude00\ud83d", r"\ud83dx\ude00", r"\ud83d\\ude00"] {
        let refused = document(&format!("a: 1\nb: [\"ok\", \"{half}\"]"));
        assert!(refused.starts_with("2:11: b[1]: is not YAML") && refused.contains("surrogate pairs"), "{refused}");
    }
    assert_eq!(document(r"a: '\ud83d'"), r#"{"a":"\\ud83d"}"#);
}
