//! Texts in files beside the definition.

use expect_test::expect;

use super::environment;
use crate::definition::{document::TEXT_BYTES_MAX, inline_files, read};

#[test]
fn texts_of_files_are_put_in() {
    let text = "# ä comment ☃\napplication: a # stays\nnotifications:\n  n:\n    content:\n      templates:\n        base:\n          \
                subject: { file: templates/s.txt } # what it is ☃\n          text:\n            file: t.txt\n          html: {\n            \
                file: \"h.html\"\n          }\n          json: '{}'\n";
    let load = |path: &str| match path {
        "templates/s.txt" => Ok("Ünter \"quotes\" ${HOME}".to_owned()),
        "t.txt" => Ok("\u{feff}line 1\nline 2: {{ x }} \\ \u{1F600}\r\n\u{85}\u{2028}\u{0}".to_owned()),
        "h.html" => Ok("<p># not a comment</p>\n".to_owned()),
        other => Err(format!("no such file: {other}")),
    };
    let inlined = inline_files(text, &load).expect("files");
    expect![[r##"
        # ä comment ☃
        application: a # stays
        notifications:
          n:
            content:
              templates:
                base:
                  subject: "Ünter \"quotes\" ${HOME}"
                  text:
                    "line 1\nline 2: {{ x }} \\ 😀\r\n\u0085\u2028\u0000"
                  html: "<p># not a comment</p>\n"


                  json: '{}'
    "##]]
    .assert_eq(&inlined);
    let application = read(&inlined, &environment).expect("a definition");
    let class = application.notifications.values().next().expect("one");
    expect![[r#"
        TemplateParts {
            subject: Some(
                "Ünter \"quotes\" ${HOME}",
            ),
            text: Some(
                TemplateText {
                    engine: Jinja,
                    text: "line 1\nline 2: {{ x }} \\ 😀\r\n\u{85}\u{2028}\0",
                },
            ),
            html: Some(
                TemplateText {
                    engine: Jinja,
                    text: "<p># not a comment</p>\n",
                },
            ),
            json: Some(
                TemplateText {
                    engine: Jinja,
                    text: "{}",
                },
            ),
            sms: None,
            headers: {},
            mail: {},
        }
    "#]]
    .assert_debug_eq(&class.content.templates[""]);

    let wrong = ["/etc/passwd", "../x", "a/../../x", "C:x", "a\\\\b", "", "missing.txt"];
    for path in wrong {
        let text = format!(
            "notifications: {{ n: {{ content: {{ templates: {{ base: {{ text: {{ file: \"{path}\" }} }} }} }} }} }}"
        );
        assert!(inline_files(&text, &load).is_err(), "{path}");
    }
    let text = "notifications: { n: { content: { templates: { base: { text: { file: /etc/passwd }, html: { file: nothing } } } } } }";
    let found = inline_files(text, &load).expect_err("problems");
    expect![[r#"
        1:69: notifications.n.content.templates.base.text.file: is an absolute path; give a path relative to the definition, below its folder, with `/`
        1:98: notifications.n.content.templates.base.html.file: `nothing` cannot be read: no such file: nothing"#]].assert_eq(&found.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"));
    let large = |_: &str| Ok("x".repeat(TEXT_BYTES_MAX));
    let text = "notifications: { n: { content: { templates: { base: { text: { file: x } } } } } }";
    expect!["1:69: notifications.n.content.templates.base.text.file: makes the definition too long; with the texts of its files it may have 1048576 bytes"].assert_eq(&inline_files(text, &large).expect_err("too long")[0].to_string());
}
