//! Partials, layouts, MJML and computed fields.

use tocsin_model::application::Application;

use super::*;

fn partial(engine: TemplateEngine, text: &str) -> TemplateText {
    TemplateText { engine, text: text.to_owned() }
}

fn with_partials(partials: &[(&str, TemplateText)]) -> KnownVariables {
    KnownVariables { partials: partials.iter().map(|(key, text)| (name(key), text.clone())).collect(), ..known() }
}

fn format(all: &[(&str, Part, &str)], known: &KnownVariables) -> Content {
    Formatter::compile("notifications.alert", &templates(all), known)
        .unwrap_or_else(|problems| panic!("{problems:#?}"))
        .format(Some("de"), "email", &Sample::new("<Kobe>").scope())
        .expect("content")
        .content
}

#[track_caller]
fn check_partials(partials: &[(&str, &str)], template: &str, expected: Expect) {
    let partials: Vec<(&str, TemplateText)> =
        partials.iter().map(|(key, text)| (*key, TemplateText::from(*text))).collect();
    let found = Formatter::compile("n", &templates(&[("", Part::Html, template)]), &with_partials(&partials));
    let problems = found.err().unwrap_or_default();
    expected.assert_eq(&problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"));
}

#[test]
fn a_partial_is_escaped_for_the_including_part() {
    let known = with_partials(&[
        ("footer", TemplateText::from("-- {{ place }}")),
        (
            "frame",
            TemplateText::from(
                "<h1>{% block title %}none{% endblock %}</h1>{% block body %}{% endblock %}{% include 'footer' %}",
            ),
        ),
        ("parts", TemplateText::from("{% macro strong(x) %}*{{ x }}*{% endmacro %}")),
    ]);
    let content = format(
        &[
            ("", Part::Subject, "{{ place }}"),
            ("", Part::Text, "{% from 'parts' import strong %}{{ strong(place) }} {% include 'footer' %}"),
            (
                "",
                Part::Html,
                "{% extends 'frame' %}{% block body %}{% import 'parts' as p %}{{ p.strong(place) }}{% endblock %}",
            ),
            ("", Part::Json, "[{{ place }}]"),
        ],
        &known,
    );
    assert_eq!(content.text.as_deref(), Some("*<Kobe>* -- <Kobe>"));
    assert_eq!(content.html.as_deref(), Some("<h1>none</h1>*&lt;Kobe&gt;*-- &lt;Kobe&gt;"));
    assert_eq!(content.json.as_deref(), Some("[\"<Kobe>\"]"));
}

#[test]
fn personal_variables_are_found_in_partials_too() {
    let known = with_partials(&[
        ("greeting", TemplateText::from("Dear {{ subscriber.id }}, {{ place }}")),
        ("frame", TemplateText::from("{% block body %}{% endblock %}{% include 'footer' %}")),
        ("footer", TemplateText::from("to {{ device.address }}")),
        ("macros", TemplateText::from("{% macro near() %}{{ sub.radius_km }} km{% endmacro %}")),
        ("harmless", TemplateText::from("{{ place }} {{ notification.rule }}")),
    ]);
    let personal = |template: &str| {
        let formatter = Formatter::compile("n", &templates(&[("", Part::Text, template)]), &known);
        let formatter = formatter.unwrap_or_else(|problems| panic!("{problems:#?}"));
        formatter.personal().into_iter().map(|(_, _, name)| name).collect::<Vec<_>>()
    };
    assert_eq!(personal("{% include 'greeting' %}"), ["subscriber.id"]);
    assert_eq!(personal("{% extends 'frame' %}{% block body %}{{ place }}{% endblock %}"), ["device.address"]);
    assert_eq!(personal("{% from 'macros' import near %}{{ near() }}"), ["sub.radius_km"]);
    assert!(personal("{% include 'harmless' %}").is_empty());
}

#[test]
fn problems_of_partials_are_found_at_compile_time() {
    check_partials(
        &[("footer", "x")],
        "a\n {% include 'foter' %}",
        expect![
            "2:13: n.content.templates.base.html: `include` names the partial `foter`, which does not exist; did you mean `footer`?"
        ],
    );
    check_partials(
        &[("a", "{% include 'b' %}"), ("b", "{% include 'c' %}"), ("c", "{% extends 'a' %}")],
        "{% include 'a' %}",
        expect![[r#"
            partials.a: uses itself: a > b > c > a; take one of these tags out
            partials.b: uses itself: b > c > a > b; take one of these tags out
            partials.c: uses itself: c > a > b > c; take one of these tags out"#]],
    );
    check_partials(
        &[("a", "x{{ plaice }}")],
        "{% include 'a' %}",
        expect!["1:5: partials.a: the template uses `plaice`, which is unknown; did you mean `place`?"],
    );
    // A variable assigned by a template is known in its partials.
    check_partials(&[("a", "{{ title }}")], "{% set title = place %}{% include 'a' %}", expect![""]);
    check_partials(
        &[],
        "{% include place %}",
        expect!["1:12: n.content.templates.base.html: names a partial by an expression; write its name in quotes"],
    );
    check_partials(
        &[],
        "{% for x in tags recursive %}{% endfor %}{% autoescape false %}{% endautoescape %}{{ [(place, 1)] }}{{ f(*tags) }}{{ weighed__(1) }}",
        expect![[r#"
            1:13: n.content.templates.base.html: a loop cannot be `recursive`; use a macro that calls itself
            1:56: n.content.templates.base.html: `autoescape` cannot be switched; values are escaped for their part; `|safe` marks a value that needs no escaping
            1:87: n.content.templates.base.html: a tuple can only hold constants; write a list: `[a, b]`
            1:107: n.content.templates.base.html: arguments cannot be spread; write them one by one
            1:118: n.content.templates.base.html: is not known; use another name
            1:104: n.content.templates.base.html: the template uses `f`, which is unknown; known are magnitude, place, count, at, tags, more, note, event, sub, subscriber, device, notification, preferences_link, confirm_link, confirm_code"#]],
    );
}

#[test]
fn a_partial_with_a_problem_is_compiled_once() {
    // Without that, each level would multiply the work by 60: the compilation would not end.
    let chain = |levels: usize, end: &str| -> Vec<(&str, TemplateText)> {
        const NAMES: [&str; 24] = [
            "a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p", "q", "r", "s", "t", "u",
            "v", "w", "x",
        ];
        let text = |level: usize| match NAMES.get(level + 1).filter(|_| level + 1 < levels) {
            Some(next) => format!("{{% include '{next}' %}}").repeat(60),
            None => end.to_owned(),
        };
        (0..levels).map(|level| (NAMES[level], TemplateText::from(text(level).as_str()))).collect()
    };
    let problems = |partials: &[(&str, TemplateText)]| {
        let all = templates(&[("", Part::Html, "{% include 'a' %}"), ("de", Part::Text, "{% include 'a' %}")]);
        Formatter::compile("n", &all, &with_partials(partials)).err().unwrap_or_default()
    };
    // A partial that cannot be compiled, and partials that nest too deeply.
    let found = problems(&chain(12, "{{ place"));
    assert!(!found.is_empty() && found.iter().all(|problem| problem.path == "partials.l"), "{found:#?}");
    let found = problems(&chain(24, "{{ place }}"));
    let too_deep = |problem: &tocsin_model::problem::Problem| problem.to_string().contains("more than 16 partials");
    assert!(!found.is_empty() && found.len() <= 200 && found.iter().all(too_deep), "{} problems", found.len());
}

#[test]
fn mails_are_written_in_mjml() {
    let mjml = r#"<mjml><mj-head><mj-title>{{ place }}</mj-title></mj-head><mj-body>
      {% if magnitude > 4 and place < "z" %}
      <mj-section><mj-column>
        {% for tag in tags %}<mj-text>Tag {{ tag }}</mj-text>{% endfor %}
        <mj-text color="{% if magnitude > 6 %}red{% else %}black{% endif %}">Near <b>{{ place }}</b> &amp; "so"<br/>on</mj-text>
        <mj-button href="{{ 'https://example.org/?a=' ~ place|urlencode }}">See</mj-button>
      </mj-column></mj-section>
      {% endif %}
      {# a comment > with < signs #}
    </mj-body></mjml>"#;
    let mut known = with_partials(&[(
        "frame",
        partial(
            TemplateEngine::Mjml,
            "<mjml><mj-body><mj-section><mj-column><mj-text>{% block body %}{% endblock %}</mj-text></mj-column></mj-section></mj-body></mjml>",
        ),
    )]);
    known.partials.insert(name("mail"), partial(TemplateEngine::Mjml, mjml));
    let content = format(
        &[
            ("", Part::Html, "{% include 'mail' %}"),
            ("email", Part::Html, "{% extends 'frame' %}{% block body %}<i>{{ place }}</i>{% endblock %}"),
        ],
        &known,
    );
    assert!(content.html.expect("HTML").contains("<i>&lt;Kobe&gt;</i>"));
    let content = format(&[("", Part::Html, "{% include 'mail' %}")], &known);
    let html = content.html.expect("HTML");
    assert!(
        html.contains("Near <b>&lt;Kobe&gt;</b>") && html.contains("color:black") && !html.contains("jinjatag"),
        "{html}"
    );
    assert!(html.contains("href=\"https:&#x2f;&#x2f;example.org") && !html.contains("fonts.googleapis"), "{html}");
    let text = content.text.expect("a text made from it");
    expect![[r#"
        Tag a
        Tag 2
        Tag
        Near <Kobe> & "so"
        on

        See (https://example.org/?a=%3CKobe%3E)
    "#]]
    .assert_eq(&text);
    let mut wrong = |mjml: &str| {
        known.partials.insert(name("mail"), partial(TemplateEngine::Mjml, mjml));
        let found = Formatter::compile("n", &templates(&[("", Part::Html, "{% include 'mail' %}")]), &known);
        found.expect_err("a problem")[0].to_string()
    };
    expect![[r#"1:1: partials.mail.mjml: is not MJML: unable to load included template in root template at position 16:26; `mj-include` reads files, which is not allowed; use `{% include "..." %}` with a partial"#]].assert_eq(&wrong("<mjml><mj-body><mj-include path=\"/etc/passwd\"/></mj-body></mjml>"));
    expect!["2:1: partials.mail.mjml: `mj-secton` is not an MJML element; did you mean `mj-section`?"]
        .assert_eq(&wrong("<mjml>\n<mj-body><mj-secton/></mj-body></mjml>"));
    expect!["1:1: partials.mail.mjml: a Jinja tag has no end; close it with `}}`"]
        .assert_eq(&wrong("<mjml><mj-body>{{ place </mj-body></mjml>"));
    expect!["1:19: partials.mail.mjml: the template uses `plaice`, which is unknown; did you mean `place`?"]
        .assert_eq(&wrong("<mjml><mj-body>{{ plaice }}</mj-body></mjml>"));
    expect!["partials.mail.mjml: has more than 64 elements within each other"]
        .assert_eq(&wrong(&"<mj-section>".repeat(3_000)));
    expect!["1:1: partials.mail.mjml: is not MJML: unexpected token in root template at position 0:2; a mail is `<mjml><mj-body>...</mj-body></mjml>`; see mjml.io/documentation"].assert_eq(&wrong("<p>no mail</p>"));
}

#[test]
fn fields_are_computed_when_formatted() {
    let mut known = known();
    known.computed = [
        (name("severe"), "magnitude >= 5 and place is string".to_owned()),
        (name("miles"), "(event.depth / 1.609)|round(1) # km".trim_end_matches(" # km").to_owned()),
        (name("all"), "{'tags': tags, 'at': at, 'none': note}".to_owned()),
    ]
    .into();
    let all = templates(&[
        ("", Part::Text, "{{ severe }} {{ miles }} {{ all.tags[0] }}"),
        ("", Part::Header, "{% if severe %}high{% endif %}"),
    ]);
    let formatter = Formatter::compile("n", &all, &known).unwrap_or_else(|problems| panic!("{problems:#?}"));
    let formatted = formatter.format(None, "email", &Sample::new("Kobe").scope()).expect("content");
    assert_eq!(formatted.content.text.as_deref(), Some("True 6.4 a"));
    assert_eq!(formatted.content.headers, [("X-Test".to_owned(), "high".to_owned())]);
    expect![[r#"[(Name("all"), Object {"at": String("2026-11-21T21:05:09Z"), "none": Null, "tags": Array [String("a"), Number(2), Null]}), (Name("miles"), Number(6.4)), (Name("severe"), Bool(true))]"#]].assert_eq(&format!("{:?}", formatted.computed));
    known.computed = [
        (name("a"), "plaice".to_owned()),
        (name("b"), "1 +".to_owned()),
        (name("c"), "1 }} {{ 2".to_owned()),
        (name("d"), "a".to_owned()),
    ]
    .into();
    let found = Formatter::compile("n", &all, &known).expect_err("problems");
    expect![[r#"
        1:1: n.computed.a: the template uses `plaice`, which is unknown; did you mean `place`?
        1:1: n.computed.b: syntax error: unexpected end of input, expected expression; give one expression, without braces
        1:1: n.computed.c: syntax error: unexpected input after expression; give one expression, without braces
        1:1: n.computed.d: the template uses `a`, which is unknown; did you mean `at`?
        1:29: n.content.templates.base.text: the template uses `all.tags`, which is unknown; known are magnitude, place, count, at, tags, more, note, a, b, c, d, event, sub, subscriber, device, notification, preferences_link, confirm_link, confirm_code
        1:17: n.content.templates.base.text: the template uses `miles`, which is unknown; known are magnitude, place, count, at, tags, more, note, a, b, c, d, event, sub, subscriber, device, notification, preferences_link, confirm_link, confirm_code
        1:4: n.content.templates.base.text: the template uses `severe`, which is unknown; known are magnitude, place, count, at, tags, more, note, a, b, c, d, event, sub, subscriber, device, notification, preferences_link, confirm_link, confirm_code
        1:7: n.content.templates.base.headers.X-Test: the template uses `severe`, which is unknown; known are magnitude, place, count, at, tags, more, note, a, b, c, d, event, sub, subscriber, device, notification, preferences_link, confirm_link, confirm_code"#]].assert_eq(&found.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"));
    known.computed = [(name("severe"), "10 // (count - count)".to_owned())].into();
    let formatter = Formatter::compile("n", &templates(&[("", Part::Text, "x")]), &known).expect("right");
    let error = formatter.format(None, "email", &Sample::new("Kobe").scope()).expect_err("it cannot");
    expect!["the computed field `severe`: invalid operation: unable to calculate 10 // 0"]
        .assert_eq(&error.to_string());
}

#[test]
fn a_preview_names_the_selected_template() {
    let formatter = compile(&[
        ("", Part::Subject, "base"),
        ("", Part::Html, "<p>{{ place }}</p>"),
        ("de/email", Part::Subject, "de {{ more.missing }}"),
        ("email", Part::Header, "a\r\nBcc: b"),
    ]);
    let preview = formatter.preview(Some("de-AT"), "email", &Sample::new("Kobe").scope());
    assert_eq!(preview.looked_for, ["de-AT/email", "de/email", "de-AT", "de", "email", "base"]);
    let shown: Vec<String> = preview
        .parts
        .iter()
        .map(|part| {
            let content = part.content.clone().unwrap_or_else(|error| error.to_string());
            format!("{} {:?} {content:?}", part.part.name(), part.template)
        })
        .collect();
    expect![[r#"
        subject Some("de/email") "template `de/email`, subject, line 1: undefined value: `more.missing` is undefined"
        text None "Kobe\n"
        html Some("base") "<p>Kobe</p>"
        header Some("email") "a Bcc: b""#]]
    .assert_eq(&shown.join("\n"));
    let preview = formatter.preview(None, "hook", &Sample::new("Kobe").scope());
    assert_eq!(preview.looked_for, ["hook", "base"]);
}

fn application(text: &str) -> Application {
    tocsin_model::definition::read(text, &|_| None).unwrap_or_else(|problems| panic!("{problems:#?}"))
}

#[test]
fn lint_warns_of_gaps_of_an_application() {
    let application = application(
        r#"
application: a
events: { quake: { fields: { place: string, url: string } } }
subscriptions: { near: {} }
notifications:
  one:
    fields: { place: string, url: string }
    content:
      templates:
        base: { subject: "a", html: "<a href=\"{{ url }}\">{{ place }}</a>{% include 'used' %}" }
        de: { subject: "b" }
        fr/email: { subject: "c", text: "d" }
  two:
    fields: { place: string }
    content: { templates: { base: { json: "[]" } } }
partials: { used: "x", unused: "y" }
rules:
  r1: { on: quake, subscription: near, notify: one }
  r2: { on: quake, subscription: near, notify: two }
channels: { email: { protocol: smtp } }
"#,
    );
    let found = crate::lint::application(&application, &|_| &[Part::Text, Part::Html]);
    expect![[r#"
        notifications.one.content.templates.de: has no html: readers of `de` get that of `base`; add it in this language too
        notifications.two.content.templates: has nothing for the locale `de`, which `one` has, and none for `fr`, which `one` has; its readers get another language; add a template for this locale
        notifications.two.content.templates: has no `text` or `html` for the channel `email` (smtp); messages through it would be empty; add a part
        partials.unused: is not used; include or extend it, or remove it"#]].assert_eq(&found.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"));
    let class = &application.notifications["one"];
    let known = KnownVariables::of(&application, &name("one"));
    let formatter = Formatter::compile("notifications.one", &class.content, &known).expect("right");
    expect!["1:4: notifications.one.content.templates.base.html: a value becomes an address, and could be `javascript:`: `{{ url }}`; write `{{ url|url }}`, which lets only web and mail addresses through"].assert_eq(&formatter.warnings().iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"));
}

#[test]
fn e_mails_in_mjml_name_their_language_or_none() {
    let mail = |attributes: &str| {
        format!(
            "<mjml{attributes}><mj-body><mj-section><mj-column><mj-text>x</mj-text></mj-column></mj-section></mj-body></mjml>"
        )
    };
    let html = |attributes: &str, language: Option<&str>| crate::mjml::html(&mail(attributes), language).expect("HTML");
    for (attributes, language, expected) in [
        ("", None, ""),
        ("", Some("de-AT"), " lang=\"de-AT\""),
        (" lang=\"fr\"", Some("de"), " lang=\"fr\""),
        (" lang=\"{{ subscriber.locale }}\"", None, " lang=\"{{ subscriber.locale }}\""),
    ] {
        let html = html(attributes, language);
        assert!(!html.contains("und\"") && !html.contains("x-no-language"), "{html}");
        let languages = html.matches(" lang=").count();
        match expected {
            "" => assert_eq!(languages, 0, "{html}"),
            expected => assert!(languages > 0 && html.matches(expected).count() == languages, "{html}"),
        }
    }
}
