use std::collections::BTreeMap;

use expect_test::{Expect, expect};
use proptest::prelude::*;
use tocsin_model::{
    application::{ContentTemplates, TemplateEngine, TemplateParts, TemplateText},
    content::{Content, MailField},
    field::{Field, FieldType, Fields},
    id::{Name, NotificationBatchId, NotificationId, SubscriberId},
    subscriber::Profile,
    time::Timestamp,
    value::Value,
};

use crate::{
    DeviceScope, EventScope, FormatError, Formatter, KnownVariables, LinkScope, OUTPUT_BYTES_MAX, Part, Scope,
};

fn name(text: &str) -> Name {
    text.parse().expect("a name")
}

fn fields(fields: &[(&str, FieldType)]) -> Fields {
    let field = |(name, kind): &(&str, FieldType)| Field::new(name.parse().expect("a name"), *kind);
    Fields::new(fields.iter().map(field).collect())
}

fn known() -> KnownVariables {
    KnownVariables {
        digest: false,
        fields: fields(&[
            ("magnitude", FieldType::Number),
            ("place", FieldType::String),
            ("count", FieldType::Integer),
            ("at", FieldType::Timestamp),
            ("tags", FieldType::List),
            ("more", FieldType::Map),
            ("note", FieldType::String),
        ]),
        events: vec![(name("quake"), fields(&[("place", FieldType::String), ("depth", FieldType::Number)]))],
        subscriptions: vec![(name("nearby"), fields(&[("radius_km", FieldType::Number)]))],
        ..KnownVariables::default()
    }
}

/// A notification with values of all kinds.
struct Sample {
    rule: Name,
    row: Vec<Value>,
    event: EventScope,
    subscriber: SubscriberId,
    profile: Profile,
    subscription: (Fields, Vec<Value>),
}

impl Sample {
    fn new(place: &str) -> Self {
        let known = known();
        Sample {
            rule: name("near_me"),
            row: vec![
                Value::Number(5.0),
                Value::from(place),
                Value::Integer(1_234_567),
                Value::Timestamp("2026-11-21T21:05:09Z".parse().expect("a time")),
                Value::List([Value::from("a"), Value::Integer(2), Value::Null].into()),
                Value::Map([("z".into(), Value::from(place)), ("a".into(), Value::Number(1.5))].into()),
                Value::Null,
            ],
            event: EventScope::new(&known.events[0].1, &[Value::from(place), Value::Number(10.25)]),
            subscriber: "alice".parse().expect("an id"),
            profile: Profile {
                locale: Some("de-AT".to_owned()),
                time_zone: Some("Europe/Vienna".to_owned()),
                attributes: BTreeMap::from([("first_name".to_owned(), Value::from("Alice"))]),
                ..Profile::default()
            },
            subscription: (known.subscriptions[0].1.clone(), vec![Value::Number(300.0)]),
        }
    }

    fn scope(&self) -> Scope<'_> {
        Scope {
            id: NotificationId { batch: NotificationBatchId(7), ordinal: 15 },
            rule: &self.rule,
            matched_at: Timestamp::from_millis(1_000),
            accepted_at: Timestamp::from_millis(500),
            now: "2026-11-21T21:35:09Z".parse().expect("a time"),
            fields: &self.row,
            event: &self.event,
            subscriber: &self.subscriber,
            profile: &self.profile,
            subscription: (&self.subscription.0, &self.subscription.1),
            device: DeviceScope { name: "home", channel: "email", address: "alice@example.org" },
            digest: None,
            links: LINKS_OF_TESTS,
        }
    }
}

/// The links of every recipient in these tests.
const LINKS_OF_TESTS: LinkScope<'static> = LinkScope {
    preferences: Some("https://tocsin.example.org/p/alice"),
    confirm: Some("https://tocsin.example.org/confirm/alice"),
    code: Some("271828"),
};

fn templates(templates: &[(&str, Part, &str)]) -> ContentTemplates {
    let mut by_key: BTreeMap<String, TemplateParts> = BTreeMap::new();
    for (key, part, text) in templates {
        let parts = by_key.entry((*key).to_owned()).or_default();
        let (line, text) = (Some((*text).to_owned()), Some(TemplateText::from(*text)));
        match part {
            Part::Subject => parts.subject = line,
            Part::Text => parts.text = text,
            Part::Html => parts.html = text,
            Part::Json => parts.json = text,
            Part::Sms => parts.sms = text,
            Part::Header => parts.headers.extend(line.map(|line| ("X-Test".to_owned(), line))),
            Part::Mail => parts.mail.extend(line.map(|line| (MailField::From, line))),
        }
    }
    ContentTemplates { engine: TemplateEngine::Jinja, templates: by_key }
}

fn compile(all: &[(&str, Part, &str)]) -> Formatter {
    Formatter::compile("notifications.alert", &templates(all), &known())
        .unwrap_or_else(|problems| panic!("{problems:#?}"))
}

fn render(part: Part, template: &str, locale: Option<&str>, place: &str) -> Result<String, FormatError> {
    let content = compile(&[("", part, template)]).format(locale, "email", &Sample::new(place).scope())?.content;
    let made = match part {
        Part::Subject => content.subject,
        Part::Text => content.text,
        Part::Html => content.html,
        Part::Json => content.json,
        Part::Sms => content.sms,
        Part::Header => content.headers.into_iter().next().map(|(_, value)| value),
        Part::Mail => content.mail.into_iter().next().map(|(_, value)| value),
    };
    Ok(made.unwrap_or_default())
}

/// Checks the output or error of a text template in a locale.
#[track_caller]
fn check(template: &str, locale: &str, expected: Expect) {
    match render(Part::Text, template, Some(locale), "Kobe") {
        Ok(text) => expected.assert_eq(&text),
        Err(error) => expected.assert_eq(&format!("error: {error}")),
    }
}

/// Checks the compile-time problems of a text template.
#[track_caller]
fn check_problems(template: &str, expected: Expect) {
    let found = Formatter::compile("notifications.alert", &templates(&[("de", Part::Text, template)]), &known());
    let problems = found.err().unwrap_or_default();
    expected.assert_eq(&problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"));
}

#[test]
fn each_part_falls_back_on_its_own() {
    let formatter = compile(&[
        ("", Part::Subject, "base"),
        ("", Part::Text, "base"),
        ("", Part::Html, "base"),
        ("email", Part::Html, "email"),
        ("de", Part::Subject, "de"),
        ("de", Part::Text, "de"),
        ("de/email", Part::Text, "de/email"),
        ("de-AT", Part::Subject, "de-AT"),
        ("de-AT", Part::Text, "de-AT"),
        ("zh-Hant", Part::Text, "zh-Hant"),
        ("fr/email", Part::Subject, "fr/email"),
    ]);
    let sample = Sample::new("Kobe");
    let found = |locale: &str, channel: &str| {
        let locale = Some(locale).filter(|locale| !locale.is_empty());
        let content = formatter.format(locale, channel, &sample.scope()).expect("content").content;
        assert_eq!(content.json, None);
        format!("{} {} {}", content.subject.expect("one"), content.text.expect("one"), content.html.expect("one"))
    };
    for (locale, channel, expected) in [
        ("", "email", "base base email"),
        ("", "hook", "base base base"),
        ("de", "email", "de de/email email"),
        ("de", "hook", "de de base"),
        ("de-AT", "email", "de-AT de/email email"),
        ("de-at", "hook", "de-AT de-AT base"),
        ("DE-AT-1996", "hook", "de-AT de-AT base"),
        ("de-CH", "hook", "de de base"),
        ("de-x-office", "hook", "de de base"),
        ("fr", "email", "fr/email base email"),
        ("zh-Hant-TW", "email", "base zh-Hant email"),
        ("zh", "email", "base base email"),
        ("-", "email", "base base email"),
        ("email", "hook", "base base email"),
    ] {
        assert_eq!(found(locale, channel), expected, "{locale} {channel}");
    }
}

#[test]
fn a_missing_template_is_an_error() {
    let formatter = compile(&[("de/email", Part::Text, "x")]);
    let error =
        |locale| formatter.format(locale, "hook", &Sample::new("").scope()).expect_err("nothing fits").to_string();
    assert_eq!(error(None), "there is no template for the channel `hook`");
    assert_eq!(error(Some("fr")), "there is no template for the channel `hook` and the locale `fr`");
}

#[test]
fn templates_read_their_scope() {
    check(
        "{{ magnitude }} {{ place }} {{ count }} {{ at }} [{{ note }}]",
        "en",
        expect!["5.0 Kobe 1234567 2026-11-21T21:05:09Z []"],
    );
    check("{{ event.place }} {{ event.depth }} {{ sub.radius_km }}", "en", expect!["Kobe 10.25 300.0"]);
    check(
        "{{ subscriber.id }} {{ subscriber.locale }} {{ subscriber.time_zone }} {{ subscriber.attributes.first_name }}",
        "en",
        expect!["alice de-AT Europe/Vienna Alice"],
    );
    check(
        "[{{ subscriber.attributes.last_name }}] {{ subscriber.attributes.last_name or 'friend' }}",
        "en",
        expect!["[] friend"],
    );
    check("{{ device.name }} {{ device.channel }} {{ device.address }}", "en", expect!["home email alice@example.org"]);
    check(
        "{{ notification.id }} {{ notification.rule }} {{ notification.matched_at }} {{ notification.accepted_at }}",
        "en",
        expect!["n-7-15 near_me 1970-01-01T00:00:01Z 1970-01-01T00:00:00.5Z"],
    );
    check(
        "{% for tag in tags %}{{ tag }},{% endfor %} {{ more.z }} {% for key in more %}{{ key }} {% endfor %}",
        "en",
        expect!["a,2,, Kobe z a "],
    );
    check(
        "{% if note %}note{% else %}none{% endif %} {{ note|default('-', true) }} {{ 3 }} {{ 2.50 }}",
        "en",
        expect!["none - 3 2.5"],
    );
    check(
        "{{ notification.matched_at > notification.accepted_at }} {{ 7.25|round(1) }} {{ 7.25|round(precision=1) }}",
        "en",
        expect!["True 7.2 7.2"],
    );
    check("{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m(place) }}{% set a = 1 %}{{ a }}", "en", expect!["<Kobe>1"]);
}

#[test]
fn numbers_are_formatted_by_locale() {
    for (locale, expected) in [
        ("en", "1,234,567 5.0 5 1,234,567.00 12,345.679 -0.5"),
        ("de", "1.234.567 5,0 5 1.234.567,00 12.345,679 -0,5"),
        ("de-AT", "1.234.567 5,0 5 1.234.567,00 12.345,679 -0,5"),
        ("en-IN", "12,34,567 5.0 5 12,34,567.00 12,345.679 -0.5"),
        ("es", "1.234.567 5,0 5 1.234.567,00 12.345,679 -0,5"),
        ("fr", "1\u{202f}234\u{202f}567 5,0 5 1\u{202f}234\u{202f}567,00 12\u{202f}345,679 -0,5"),
        ("de-CH", "1’234’567 5.0 5 1’234’567.00 12’345.679 -0.5"),
        ("fr-CA", "1\u{a0}234\u{a0}567 5,0 5 1\u{a0}234\u{a0}567,00 12\u{a0}345,679 -0,5"),
        ("tlh", "1,234,567 5.0 5 1,234,567.00 12,345.679 -0.5"),
    ] {
        let template = "{{ count|number }} {{ magnitude|number(1) }} {{ magnitude|number }} {{ count|number(2) }} {{ 12345.6789|number }} \
                        {{ (-0.5)|number }}";
        assert_eq!(render(Part::Text, template, Some(locale), "").expect("text"), expected, "{locale}");
    }
    check(
        "[{{ note|number }}] {{ (-0.001)|number(1) }} {{ 999|number }} {{ 1000|number }} {{ 1e300|number(0)|length }}",
        "en",
        expect!["[] 0.0 999 1,000 401"],
    );
    check(
        "{{ 9007199254740993|number(1) }} {{ (-9223372036854775807)|number }}",
        "de",
        expect!["9.007.199.254.740.993,0 -9.223.372.036.854.775.807"],
    );
    check(
        "{{ place|number }}",
        "en",
        expect!["error: template `base`, text, line 1: invalid operation: `number` takes a number, not string"],
    );
    check(
        "{{ magnitude|number(21) }}",
        "en",
        expect![
            "error: template `base`, text, line 1: invalid operation: `number` writes at most 20 digits after the mark"
        ],
    );
}

#[test]
fn a_number_that_is_not_finite_is_no_json() {
    for template in ["{{ 1e308 * 10 }}", "[{{ magnitude * 1e308 }}]"] {
        let error = render(Part::Json, template, None, "Kobe").expect_err(template).to_string();
        assert!(error.contains("not finite"), "{template}: {error}");
    }
    let finite = render(Part::Json, "{{ 1e308 * 1 }}", None, "Kobe").expect("JSON");
    assert_eq!(finite.parse(), Ok(1e308));
}

#[test]
fn dates_and_times_follow_the_reader() {
    // 21:05 in London is 22:05 in Vienna, Alice's time zone.
    for (locale, expected) in [
        ("en", "November 21, 2026 | 11/21/2026 | 10:05 PM"),
        ("en-GB", "21 November 2026 | 21/11/2026 | 22:05"),
        ("de", "21. November 2026 | 21.11.2026 | 22:05"),
        ("fr", "21 novembre 2026 | 21/11/2026 | 22:05"),
        ("sv", "21 november 2026 | 2026-11-21 | 22:05"),
        ("es-AR", "21 de noviembre de 2026 | 21/11/2026 | 10:05 p.m."),
        ("ja", "2026年11月21日 | 2026/11/21 | 22:05"),
        ("ru", "21 ноября 2026 г. | 21.11.2026 | 22:05"),
        ("hu", "2026. november 21. | 2026. 11. 21. | 22:05"),
        ("th", "21 พฤศจิกายน ค.ศ. 2026 | 21/11/2026 | 22:05"),
        ("", "2026-11-21 | 2026-11-21 | 22:05"),
    ] {
        let template = "{{ at|date }} | {{ at|date('short') }} | {{ at|time }}";
        assert_eq!(render(Part::Text, template, Some(locale), "").expect("text"), expected, "{locale}");
    }
    check(
        "{{ at|date('iso') }} {{ at|date('%d.%m.') }} {{ at|time('seconds') }} {{ at|time('zone') }} {{ at|time('%Hh') }}",
        "de",
        expect!["2026-11-21 21.11. 22:05:09 22:05 CET 22h"],
    );
    check(
        "{{ '2026-01-31T23:30:00Z'|date }} {{ 0|date }} [{{ note|date }}{{ note|time }}]",
        "de-AT",
        expect!["1. Februar 2026 1. Jänner 1970 []"],
    );
    check(
        "{{ '2026-07-01T22:30:00Z'|date }} {{ '2026-07-01T22:30:00Z'|time('zone') }}",
        "en",
        expect!["July 2, 2026 12:30 AM CEST"],
    );
    check("{{ '2026-07-01T10:00:00Z'|time }} {{ '2026-07-01T22:00:00Z'|time }}", "en", expect!["12:00 PM 12:00 AM"]);
    // The last instants of RFC 3339, which are beyond those of the library.
    check("{{ '9999-12-31T12:30:00Z'|time('zone') }}", "de", expect!["13:30 CET"]);
    check("{{ '9999-12-31T12:30:00Z'|date('%Y %H:%M %z') }}", "de", expect!["9999 13:30 +0100"]);
    check(
        "{{ place|date }}",
        "en",
        expect![
            "error: template `base`, text, line 1: invalid operation: `Kobe` is not a date and time of RFC 3339, such as `2026-11-21T09:30:00Z`"
        ],
    );
    check(
        "{{ tags|time }}",
        "en",
        expect!["error: template `base`, text, line 1: invalid operation: `time` takes a timestamp, not sequence"],
    );
    check(
        "{{ at|date('middling') }}",
        "en",
        expect![
            "error: template `base`, text, line 1: invalid operation: `middling` is not a form; give `full`, `long`, `medium`, `short`, `iso` or a pattern such as `%d.%m.%Y`"
        ],
    );
    check(
        "{{ at|date('%999999999Y') }}",
        "en",
        expect![
            "error: template `base`, text, line 1: invalid operation: a pattern has at most 100 bytes and no widths"
        ],
    );
    check(
        "{{ at|date('%') }}",
        "en",
        expect![
            "error: template `base`, text, line 1: invalid operation: the pattern `%` is wrong: strftime formatting failed: invalid format string, expected byte after `%`, but found end of format string"
        ],
    );
    check(
        "{{ 9223372036854775807|date }}",
        "en",
        expect!["error: template `base`, text, line 1: invalid operation: the timestamp is beyond the calendar"],
    );
}

#[test]
fn values_are_escaped_for_their_target() {
    let naughty = "<script>alert('\"&\")</script>\r\nBcc: eve@example.org\u{0}\u{2028}\\ {{ place }} 😀";
    let found = |part, template| render(part, template, Some("en"), naughty).expect("content");
    let shown = |part, template| found(part, template).escape_debug().to_string();
    expect![[r#"<p title=\"&lt;script&gt;alert(&#x27;&quot;&amp;&quot;)&lt;&#x2f;script&gt;\r\nBcc: eve@example.org\0\u{2028}\\ {{ place }} 😀\">&lt;script&gt;alert(&#x27;&quot;&amp;&quot;)&lt;&#x2f;script&gt;\r\nBcc: eve@example.org\0\u{2028}\\ {{ place }} 😀</p>"#]].assert_eq(&shown(Part::Html, "<p title=\"{{ place }}\">{{ event.place }}</p>"));
    let json = r#"{"place": {{ place }}, "all": {{ more }}, "at": {{ at }}, "note": {{ note }}, "n": {{ magnitude }}}"#;
    expect![[r#"{\"place\": \"<script>alert(\'\\\"&\\\")</script>\\r\\nBcc: eve@example.org\\u0000\u{2028}\\\\ {{ place }} 😀\", \"all\": {\"z\":\"<script>alert(\'\\\"&\\\")</script>\\r\\nBcc: eve@example.org\\u0000\u{2028}\\\\ {{ place }} 😀\",\"a\":1.5}, \"at\": \"2026-11-21T21:05:09Z\", \"note\": null, \"n\": 5.0}"#]].assert_eq(&shown(Part::Json, json));
    expect![[r#"<script>alert(\'\"&\")</script> Bcc: eve@example.org \\ {{ place }} 😀 end"#]]
        .assert_eq(&shown(Part::Subject, " \n{{ place }}\t\u{85}end "));
    assert_eq!(found(Part::Text, "{{ place }}"), naughty);
    // An author can disable escaping, but invalid JSON is rejected.
    assert!(found(Part::Html, "{{ place|safe }}").contains("<script>"));
    let error = render(Part::Json, r#"{"place": "{{ place }}"}"#, None, "Kobe").expect_err("not JSON");
    expect!["template `base`, json: the output is not JSON: expected `,` or `}` at line 1 column 13"]
        .assert_eq(&error.to_string());
    assert!(render(Part::Json, "{{ place|safe }}", None, "{}, []").is_err());
}

#[test]
fn misspelled_names_are_found_at_compile_time() {
    check_problems(
        "{{ magnitud }}",
        expect![
            "1:4: notifications.alert.content.templates.de.text: the template uses `magnitud`, which is unknown; did you mean `magnitude`?"
        ],
    );
    check_problems(
        "a\n{% if depth > 3 %}{{ event.plaice }}{% endif %}",
        expect![[r#"
            2:7: notifications.alert.content.templates.de.text: the template uses `depth`, which is unknown; did you mean `event.depth`?
            2:22: notifications.alert.content.templates.de.text: the template uses `event.plaice`, but `quake` has no field of this name; did you mean `event.place`?"#]],
    );
    check_problems(
        "{{ sub.radius }} {{ subscriber.name }} {{ device.adress }}",
        expect![[r#"
            1:43: notifications.alert.content.templates.de.text: the template uses `device.adress`, which does not exist; did you mean `device.address`?
            1:4: notifications.alert.content.templates.de.text: the template uses `sub.radius`, but `nearby` has no field of this name; did you mean `sub.radius_km`?
            1:21: notifications.alert.content.templates.de.text: the template uses `subscriber.name`, which does not exist; `subscriber` has id, locale, time_zone, attributes"#]],
    );
    check_problems(
        "{{ notification.magnitude }} {{ notification.ident }}",
        expect![[r#"
            1:33: notifications.alert.content.templates.de.text: the template uses `notification.ident`, which does not exist; `notification` has id, rule, matched_at, accepted_at
            1:4: notifications.alert.content.templates.de.text: the template uses `notification.magnitude`, which does not exist; write fields of the notification without a prefix: `magnitude`"#]],
    );
    check_problems(
        "{{ xyzzy }}",
        expect![
            "1:4: notifications.alert.content.templates.de.text: the template uses `xyzzy`, which is unknown; known are magnitude, place, count, at, tags, more, note, event, sub, subscriber, device, notification, preferences_link, confirm_link, confirm_code"
        ],
    );
    check_problems(
        "{{ magnitude|rund }}",
        expect![
            "1:14: notifications.alert.content.templates.de.text: the template has an unknown filter: `rund`; did you mean `round`?"
        ],
    );
    check_problems(
        "{{ count is prime }} {{ lipsum() }}",
        expect![[r#"
            1:13: notifications.alert.content.templates.de.text: the template has an unknown test: `prime`; tests are boolean, defined, divisibleby, endingwith, eq, equalto, escaped, even, false, filter, float, ge, greaterthan, gt, in, int, integer, iterable, le, lessthan, lower, lt, mapping, ne, none, number, odd, safe, sameas, sequence, startingwith, string, test, true, undefined, upper
            1:25: notifications.alert.content.templates.de.text: the template uses `lipsum`, which is unknown; known are magnitude, place, count, at, tags, more, note, event, sub, subscriber, device, notification, preferences_link, confirm_link, confirm_code"#]],
    );
    check_problems(
        "{{ place.format(1) }}",
        expect![
            "1:1: notifications.alert.content.templates.de.text: the template fails: unknown method: string has no method named format; only `range`, `dict` and your own macros can be called"
        ],
    );
    check_problems(
        "{{ magnitude|number(1, 2) }}",
        expect![
            "1:1: notifications.alert.content.templates.de.text: the template fails: too many arguments; check the arguments"
        ],
    );
    check_problems(
        "{% if %}",
        expect![
            "1:7: notifications.alert.content.templates.de.text: the template has an error: syntax error: unexpected end of block"
        ],
    );
    check_problems(
        "{{ place",
        expect![
            "1:4: notifications.alert.content.templates.de.text: the template has an error: syntax error: unexpected end of input, expected end of variable block"
        ],
    );
    check_problems(
        "line 1\n{%- include 'base:text' %}",
        expect![
            "2:13: notifications.alert.content.templates.de.text: `include` names the partial `base:text`, which does not exist; the definition has no `partials`; templates cannot read files"
        ],
    );
    check_problems("{% for q in range(3) %}{{ loop.index }}{{ q }}{% endfor %}{% set x = count %}{{ x }}", expect![]);
    let two = KnownVariables {
        events: vec![
            (name("quake"), fields(&[("place", FieldType::String)])),
            (name("storm"), fields(&[("wind", FieldType::Number)])),
        ],
        ..known()
    };
    let found =
        Formatter::compile("n", &templates(&[("", Part::Html, "{{ event.place }}")]), &two).expect_err("a problem");
    expect!["1:4: n.content.templates.base.html: the template uses `event.place`, but `storm` has no field of this name; `event` has wind"].assert_eq(&found[0].to_string());
    let all = templates(&[("", Part::Subject, "{{ a }}"), ("", Part::Html, "{{ b }}"), ("de", Part::Text, "{% x %}")]);
    assert_eq!(Formatter::compile("n", &all, &known()).expect_err("problems").len(), 3);
}

#[test]
fn runtime_errors_have_a_position() {
    check(
        "line 1\nline 2\n{{ more.missing }}",
        "en",
        expect!["error: template `base`, text, line 3: undefined value: `more.missing` is undefined"],
    );
    check(
        "{{ place.missing.deeper }}",
        "en",
        expect!["error: template `base`, text, line 1: undefined value: `place.missing` is undefined"],
    );
    check(
        "{{ place + 1 }}",
        "en",
        expect![
            "error: template `base`, text, line 1: invalid operation: tried to use + operator on unsupported types string and number"
        ],
    );
    check(
        "{{ 1 // 0 }}",
        "en",
        expect!["error: template `base`, text, line 1: invalid operation: unable to calculate 1 // 0"],
    );
    let error = render(Part::Text, "{{ more.missing }}", None, "").expect_err("undefined");
    assert_eq!(error.reason().kind, tocsin_model::receipt::ReasonKind::Format);
}

#[test]
fn endless_templates_are_stopped() {
    check(
        "{% for a in range(999) %}{% for b in range(999) %}{{ 1 }}{% endfor %}{% endfor %}",
        "en",
        expect!["error: template `base`, text, line 1: engine ran out of fuel"],
    );
    check(
        "{% for a in range(999) %}{% for b in range(999) %}{% for c in range(999) %}{% endfor %}{% endfor %}{% endfor %}",
        "en",
        expect!["error: template `base`, text, line 1: engine ran out of fuel"],
    );
    check(
        "{{ range(1000000000) }}",
        "en",
        expect!["error: template `base`, text, line 1: invalid operation: a range has at most 1000 elements"],
    );
    check(
        "{{ range(0, 9223372036854775807, 1) }}{{ range(-9223372036854775807, 9223372036854775807) }}",
        "en",
        expect!["error: template `base`, text, line 1: invalid operation: a range has at most 1000 elements"],
    );
    check("{{ range(5, 0, -2) }}{{ range(3, 3) }}{{ range(1, 6, 2) }}", "en", expect!["[5, 3, 1][][1, 3, 5]"]);
    check(
        "{{ range(1, 2, 0) }}",
        "en",
        expect!["error: template `base`, text, line 1: invalid operation: a range cannot have steps of 0"],
    );
    check(
        "{{ 'A' * 200000000 }}",
        "en",
        expect!["error: template `base`, text, line 1: invalid operation: repeated string is too large"],
    );
    check(
        "{{ 'A' * 5000000 }}",
        "en",
        expect!["error: template `base`, text, line 1: invalid operation: repeated string is too large"],
    );
    check(
        "{% for a in range(999) %}{{ 'A' * 10000 }}{% endfor %}",
        "en",
        expect!["error: template `base`, text: the output is longer than 4194304 bytes"],
    );
    check(
        "{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}",
        "en",
        expect!["error: template `base`, text, line 1: invalid operation: recursion limit exceeded"],
    );
    check(
        "{{ place|indent(1000000000) }}",
        "en",
        expect!["error: template `base`, text, line 1: invalid operation: an argument of `indent` is beyond 1000"],
    );
    check(
        "{{ place|indent(width=1000000000) }}",
        "en",
        expect!["error: template `base`, text, line 1: invalid operation: an argument of `indent` is beyond 1000"],
    );
    check(
        "{{ tags|batch(1000000000, 'x') }}",
        "en",
        expect!["error: template `base`, text, line 1: invalid operation: an argument of `batch` is beyond 1000"],
    );
    check(
        "{{ tags|slice(1000000000) }}",
        "en",
        expect!["error: template `base`, text, line 1: invalid operation: an argument of `slice` is beyond 1000"],
    );
    check(
        "{{ magnitude|round(1000000000) }}",
        "en",
        expect!["error: template `base`, text, line 1: invalid operation: an argument of `round` is beyond 1000"],
    );
    check(
        "{{ more|tojson(indent=1000000000) }}",
        "en",
        expect!["error: template `base`, text, line 1: invalid operation: an argument of `tojson` is beyond 1000"],
    );
    check_problems(
        "{{ '%1000000000d'|format(1) }}",
        expect![
            "1:19: notifications.alert.content.templates.de.text: the template has an unknown filter: `format`; filters are abs, attr, batch, bool, capitalize, chain, count, d, date, default, dictsort, e, escape, first, float, groupby, gsm, indent, int, items, join, last, length, lines, list, lower, map, max, min, money, number, ordinal, percent, plural, reject, rejectattr, relative, replace, reverse, round, safe, segments, select, selectattr, slice, sms, sort, split, string, sum, time, title, tojson, trim, truncate, unique, upper, url, urlencode, zip"
        ],
    );
    check_problems(
        "{{ debug() }}{{ namespace() }}",
        expect![[r#"
            1:4: notifications.alert.content.templates.de.text: the template uses `debug`, which is unknown; known are magnitude, place, count, at, tags, more, note, event, sub, subscriber, device, notification, preferences_link, confirm_link, confirm_code
            1:17: notifications.alert.content.templates.de.text: the template uses `namespace`, which is unknown; known are magnitude, place, count, at, tags, more, note, event, sub, subscriber, device, notification, preferences_link, confirm_link, confirm_code"#]],
    );
    check_problems(
        &format!("{{{{ {}1{} }}}}", "(".repeat(6_000), ")".repeat(6_000)),
        expect![
            "1:67: notifications.alert.content.templates.de.text: the template has an error: nests more than 64 brackets and block tags within each other; give parts of it names with `{% set %}`, or put them into partials"
        ],
    );
    check_problems(
        &"{% if 1 %}".repeat(6_000),
        expect![
            "1:634: notifications.alert.content.templates.de.text: the template has an error: nests more than 64 brackets and block tags within each other; give parts of it names with `{% set %}`, or put them into partials"
        ],
    );
}

#[test]
fn the_list_of_filters_is_complete() {
    for filter in crate::filters::NAMES {
        let found =
            Formatter::compile("n", &templates(&[("", Part::Text, &format!("{{{{ tags|{filter} }}}}"))]), &known());
        let unknown = |problems: Vec<tocsin_model::problem::Problem>| {
            problems.iter().any(|found| found.message.contains("unknown filter"))
        };
        assert!(!found.err().is_some_and(unknown), "{filter}");
    }
}

#[test]
fn unknown_names_are_found_in_untaken_branches() {
    check_problems(
        "{% if magnitude > 1000 %}{{ place|uper }}{% endif %}",
        expect![
            "1:35: notifications.alert.content.templates.de.text: the template has an unknown filter: `uper`; did you mean `upper`?"
        ],
    );
    check_problems(
        "{% if magnitude > 1000 and place is defnied %}{% endif %}",
        expect![
            "1:37: notifications.alert.content.templates.de.text: the template has an unknown test: `defnied`; did you mean `defined`?"
        ],
    );
    check_problems(
        "{% macro m(x) %}{% filter lowr %}{{ x }}{% endfilter %}{% endmacro %}",
        expect![
            "1:27: notifications.alert.content.templates.de.text: the template has an unknown filter: `lowr`; did you mean `lower`?"
        ],
    );
    let computed = [(name("loud"), "place|uper if magnitude > 1000 else ''".to_owned())];
    let known = KnownVariables { computed: computed.into(), ..known() };
    let problems = Formatter::compile("n", &templates(&[("", Part::Text, "{{ loud }}")]), &known).expect_err("unknown");
    expect!["1:7: n.computed.loud: the template has an unknown filter: `uper`; did you mean `upper`?"]
        .assert_eq(&problems[0].to_string());
}

#[test]
fn roots_are_built_however_they_are_referenced() {
    check("{% with sub = sub %}{{ sub.radius_km }}{% endwith %}", "en", expect!["300.0"]);
    check("{% set device = device.name %}{{ device }}", "en", expect!["home"]);
    check("{% filter default(subscriber.id, true) %}{% endfilter %}", "en", expect!["alice"]);
    check("{% macro m() %}{{ notification.id }}{% endmacro %}{{ m() }}", "en", expect!["n-7-15"]);
}

#[test]
fn values_give_no_access_to_internals() {
    for template in [
        "{{ ''.__class__ }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ magnitude.__class__ }}",
        "{{ event.__init__ }}",
        "{{ more['__proto__'] }}",
        "{{ self.__init__.__globals__ }}",
        "{{ range.__globals__ }}",
        "{{ subscriber.attributes.__class__.__mro__ }}",
        "{{ lipsum.__globals__['os'].popen('id').read() }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ joiner.__init__.__globals__ }}",
        "{{ config.items() }}",
        "{{ request.application.__globals__ }}",
        "{{ get_flashed_messages.__globals__ }}",
        "{{ url_for.__globals__ }}",
        "{{ self._TemplateReference__context }}",
        "{{ place|attr('__class__') }}",
        "{{ place|attr('\\x5f\\x5fclass\\x5f\\x5f')|attr('__mro__') }}",
        "{{ [].append.__self__.__class__ }}",
        "{{ (1).__class__.__bases__[0] }}",
        "{{ {}.__class__.__subclasses__() }}",
        "{{ place.format(place) }}",
        "{{ '{0.__class__}'.format(place) }}",
        "{{ dict.mro() }}",
        "{{ [place]|map(attribute='__class__')|list|first|length }}",
        "{% import 'os' as os %}{{ os.system('id') }}",
        "{% include '/etc/passwd' %}",
        "{% extends '../../../etc/passwd' %}",
        "{% from 'x' import y %}",
        "{{ get_template('x') }}",
        "{{ include('/etc/passwd') }}",
        "{{ eval('1') }}",
        "{{ exec('id') }}",
        "{{ open('/etc/passwd').read() }}",
        "{{ environ }}",
        "{{ env.PATH }}",
        "{{ loop.__class__ }}",
        "{{ caller.__globals__ }}",
    ] {
        let formatter = Formatter::compile(
            "n",
            &templates(&[("", Part::Text, template)]),
            &KnownVariables { events: vec![], ..known() },
        );
        let output = formatter.map(|formatter| formatter.format(None, "email", &Sample::new("Kobe").scope()));
        assert!(!matches!(output, Ok(Ok(_))), "{template} gives {output:?}");
    }
}

#[test]
fn a_formatter_is_shared_by_threads() {
    fn shared<T: Send + Sync>(_: &T) {}
    let formatter = compile(&[("", Part::Text, "{{ place }}")]);
    shared(&formatter);
    shared(&Sample::new("x").event);
    std::thread::scope(|threads| {
        for place in ["Kobe", "Lima"] {
            let formatter = &formatter;
            threads.spawn(move || {
                let content = formatter.format(None, "email", &Sample::new(place).scope()).expect("content").content;
                assert_eq!(content, Content { text: Some(place.to_owned()), ..Content::default() });
            });
        }
    });
}

#[test]
fn output_of_exactly_the_limit_is_accepted() {
    let template = format!("{{{{ 'A' * {OUTPUT_BYTES_MAX} }}}}");
    assert_eq!(render(Part::Text, &template, None, "").expect("text").len(), OUTPUT_BYTES_MAX);
    assert!(render(Part::Text, &format!("{template}B"), None, "").is_err());
}

proptest! {
    #[test]
    fn any_template_compiles_or_has_problems(template in "\\PC{0,60}|(\\{\\{|\\}\\}|\\{%|%\\}|\\{#|#\\}|[ a-z|.()'\"+*~0-9-]{1,6}|for x in tags|endfor|if|endif|set x = 1|place|at\\|date){0,20}") {
        if let Ok(formatter) = Formatter::compile("n", &templates(&[("", Part::Html, &template)]), &known()) {
            let _ = formatter.format(Some("de"), "email", &Sample::new("Kobe").scope());
        }
    }

    #[test]
    fn no_value_escapes_its_context(place in any::<String>()) {
        let html = render(Part::Html, "{{ place }}", None, &place).expect("HTML");
        prop_assert!(!html.contains(['<', '>', '"', '\'']));
        let json = render(Part::Json, "[{{ place }}]", None, &place).expect("JSON");
        prop_assert_eq!(serde_json::from_str::<Vec<String>>(&json).expect("JSON"), vec![place.clone()]);
        let subject = render(Part::Subject, "{{ place }}", None, &place).expect("a subject");
        prop_assert!(!subject.contains(|c: char| c.is_control()));
    }

    #[test]
    fn any_locale_and_number_can_be_formatted(locale in "[a-zA-Z]{1,8}(-[a-zA-Z0-9]{1,8}){0,3}", number in any::<f64>(), millis in any::<i64>()) {
        let formatter = compile(&[("", Part::Text, "{{ magnitude|number }} {{ magnitude|number(2) }} {{ count|number }} {{ count|date }}")]);
        let mut sample = Sample::new("");
        sample.row[0] = Value::Number(number);
        sample.row[2] = Value::Integer(millis);
        let _ = formatter.format(Some(&locale), "email", &sample.scope());
        sample.row[2] = Value::Integer(millis % 1_000_000_000_000);
        prop_assert!(formatter.format(Some(&locale), "email", &sample.scope()).is_ok());
    }
}

mod bounds;
mod merged; // texts with the tokens of NotifyBC
mod naughty;
mod null_values;
pub(crate) mod outside;
mod partials;
mod people;

#[test]
fn the_stylesheets_of_a_notification_are_applied_together() {
    let sheet = |part: &str| {
        let text = format!(
            "<xsl:stylesheet version=\"1.0\" xmlns:xsl=\"http://www.w3.org/1999/XSL/Transform\">\n<xsl:template match=\"/\">\n<xsl:if test=\"//place = 'no {part}'\"><xsl:message terminate=\"yes\">refused</xsl:message></xsl:if>{part}: <xsl:value-of select=\"//place\"/></xsl:template></xsl:stylesheet>"
        );
        Some(TemplateText { engine: TemplateEngine::Xslt, text })
    };
    let subject = Some("{{ place }}".to_owned());
    let (text, html, sms) = (sheet("text"), sheet("html"), sheet("sms"));
    let parts = TemplateParts { subject, text, html, sms, ..TemplateParts::default() };
    let all = ContentTemplates { engine: TemplateEngine::Jinja, templates: BTreeMap::from([(String::new(), parts)]) };
    let formatter = Formatter::compile("n", &all, &known()).unwrap_or_else(|problems| panic!("{problems:#?}"));
    let format = |place: &str| formatter.format(Some("en"), "email", &Sample::new(place).scope());
    for place in ["Kobe", "Lima"] {
        let content = format(place).expect("it is formatted").content;
        assert_eq!(content.subject.as_deref(), Some(place));
        for (part, output) in [("text", content.text), ("html", content.html), ("sms", content.sms)] {
            assert_eq!(output.expect("a part").trim(), format!("{part}: {place}"));
        }
    }
    // The failing part is named, with its line, and the next notification is formatted.
    for part in ["html", "sms"] {
        let error = format(&format!("no {part}")).expect_err("refused").to_string();
        assert_eq!(error, format!("template `base`, {part}, line 3: refused"));
    }
    assert!(format("Kobe").is_ok());
}

#[test]
fn links_to_hosted_pages_are_personal() {
    let template = "{{ preferences_link }} {{ confirm_link }} {{ confirm_code }}";
    check(
        template,
        "en",
        expect![["https://tocsin.example.org/p/alice https://tocsin.example.org/confirm/alice 271828"]],
    );
    let formatter =
        compile(&[("", Part::Text, "{{ place }} {% if preferences_link %}{{ preferences_link }}{% endif %}")]);
    assert!(formatter.uses_links());
    let sample = Sample::new("Kobe");
    let formatted = formatter.format(None, "email", &sample.scope()).expect("content");
    assert!(formatted.personal, "the render cache must not share it");
    let without = Scope { links: LinkScope::default(), ..sample.scope() };
    let formatted = formatter.format(None, "email", &without).expect("content");
    assert_eq!(formatted.content.text.as_deref().map(str::trim), Some("Kobe"));
    assert!(!compile(&[("", Part::Text, "{{ place }}")]).uses_links());
    let found =
        Formatter::compile("notifications.alert", &templates(&[("", Part::Text, "{{ preference_link }}")]), &known());
    let problems = found.expect_err("it is misspelled");
    assert_eq!(problems[0].hint.as_deref(), Some("did you mean `preferences_link`?"));
}
