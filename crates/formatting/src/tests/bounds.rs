//! Bounds on the values that a template creates.

use super::*;

#[test]
fn values_are_bounded() {
    let doubled = |from: &str, by: &str| format!("{{% set a = {from} %}}{}{{{{ a|length }}}}", by.repeat(60));
    let fanned =
        format!("{{% set a = [1] %}}{}{{% set b %}}{{{{ a }}}}{{% endset %}}", "{% set a = [a, a] %}".repeat(60));
    let captured =
        format!("{{% set a %}}{{% for x in range(999) %}}{}{{% endfor %}}{{% endset %}}", "y".repeat(100_000));
    let called = format!(
        "{{% macro m(n) %}}{}{{% if n %}}{{{{ m(n - 1) }}}}{{{{ m(n - 1) }}}}{{% endif %}}{{% endmacro %}}{{{{ m(15) }}}}",
        "z".repeat(100_000)
    );
    let bombs = [
        doubled("'AAAAAAAAAAAAAAAA'", "{% set a = a ~ a %}"),
        doubled("'AAAAAAAAAAAAAAAA'", "{% set a = a + a %}"),
        doubled("'AAAAAAAAAAAAAAAA'", "{% set a = (a * 3) %}"),
        doubled("[1, 2]", "{% set a = a + a %}"),
        doubled("'AAAAAAAAAAAAAAAA'", "{% set a = a|replace('A', 'AAAA') %}"),
        doubled("'AAAAAAAAAAAAAAAA'", "{% set a = [a, a, a]|join(a) %}"),
        doubled("'AAAAAAAAAAAAAAAA'", "{% with b = a ~ a %}{% set a = b ~ b %}{% endwith %}{% set a = a ~ a %}"),
        doubled("{'a': 1}", "{% set a = {'a': a, 'b': a} %}"),
        doubled("dict(a=1)", "{% set a = dict(a=a, b=a) %}"),
        doubled("[1]", "{% set a = a|zip(a)|list %}"),
        format!("{{{{ '{}'|replace('', '{}') }}}}", "x".repeat(10_000), "y".repeat(10_000)),
        "{{ ('x\n' * 2000000)|indent(1000) }}".to_owned(),
        "{{ ('x' * 4000000)|list|length }}".to_owned(),
        "{{ ('x ' * 2000000)|split|length }}".to_owned(),
        "{% for c in 'x' * 100000 %}{{ c }}{% endfor %}".to_owned(),
        "{% macro m(x) %}{{ m(x ~ x) }}{% endmacro %}{{ m('A' * 1000000) }}".to_owned(),
        "{{ ('x' ~ 'y' * 4000000) ~ ('x' ~ 'y' * 4000000) ~ ('x' ~ 'y' * 4000000) ~ ('x' ~ 'y' * 4000000)|length }}"
            .to_owned(),
        fanned,
        captured,
        called,
        "{% set a %}{{ 'x' * 1000000 }}{% endset %}{% set b %}{% for x in range(100) %}{{ a }}{% endfor %}{% endset %}"
            .to_owned(),
        "{% filter upper %}{% for x in range(999) %}{{ 'x' * 100000 }}{% endfor %}{% endfilter %}".to_owned(),
    ];
    for bomb in bombs {
        let outcome = Formatter::compile("n", &templates(&[("", Part::Text, &bomb)]), &known())
            .map(|formatter| formatter.format(None, "email", &Sample::new("Kobe").scope()));
        let shown: String = bomb.chars().take(160).collect();
        match outcome {
            Ok(Ok(made)) => panic!("{shown} makes {:?}", made.content.text.map(|text| text.len())),
            Ok(Err(error)) => assert!(!error.to_string().is_empty(), "{shown}"),
            Err(problems) => assert!(!problems.is_empty(), "{shown}"),
        }
    }
}

#[test]
fn repeated_passes_over_a_long_text_are_stopped() {
    let repeated =
        |work: &str| format!("{{% set a = 'x' * 4000000 %}}{{% for x in range(1000) %}}{work}{{% endfor %}}");
    for work in [
        "{{ a|upper|length }}",
        "{% if a|trim == 'y' %}{% endif %}",
        "{% if (a|title) == 'y' %}{% endif %}",
        "{{ a|length }}",
        "{% if 'y' in a %}{% endif %}",
        "{% if 'y' not in a %}{% endif %}",
        "{% if 'a' < 'y' in a %}{% endif %}",
        "{{ a|replace('y', '')|first }}",
        "{{ a|segments }}",
    ] {
        match render(Part::Text, &repeated(work), None, "Kobe") {
            Err(error) => assert!(error.to_string().contains("of values"), "{work}: {error}"),
            Ok(_) => panic!("{work} comes to an end"),
        }
    }
    check(
        "{{ 'b' in ('a', 'b') }} {{ 'o' in place }} {{ 'x' not in (place|upper) }} {{ not 2 in tags }} {{ 'a' in {'a': 1} }} \
         {{ place is upper }} {{ place in [place] and 'K' in place ~ 'x' }} {{ [1, 2]|sum }} {{ tags|map('string')|join('-') }}",
        "en",
        expect!["True True True False True False True 3 a-2-"],
    );
}

#[test]
fn rewriting_does_not_change_the_meaning() {
    check(
        "{{ (1 + 2) * 3 }} {{ 2 * 3 * 4 + 1 }} {{ 'a' ~ 'b' * 2 ~ ('c' ~ 'd') }} {{ 2.5 * 2 }} {{ 'x' * 3 }} {{ 3 * 'x' }}",
        "en",
        expect!["9 25 abbcd 5.0 xxx xxx"],
    );
    check(
        "{{ ((1 + 2)) * ((3)) }} {{ (tags|length) * 2 }} {{ -magnitude * 2 }} {{ [1] + [2] }} {{ (place ~ '!')|upper }} {{ 2 ** 3 * 2 }}",
        "en",
        expect!["9 6 -10.0 [1, 2] KOBE! 16"],
    );
    check(
        "{% for a in (tags or [])|reject('none') if a != 2 %}{{ a }}{% endfor %}{% for a in (1, 2) %}{{ a }}{% endfor %}{% for k, v in more|items %}{{ k }}{% endfor %}{% for a in [] %}{% else %}none{% endfor %}",
        "en",
        expect!["a12zanone"],
    );
    check(
        "{% macro m(x, y=1 + 1) %}{{ x ~ y }}{% endmacro %}{{ m('a') ~ m('b', y=3) }} {{ range(3)|join(', ') }} {{ dict(a=1).a }} {{ ['x', \"(\" ~ ')'][1] }}",
        "en",
        expect!["a2b3 0, 1, 2 1 ()"],
    );
    check(
        "{% macro m() %}<{{ caller(1) }}>{% endmacro %}{% call(x) m() %}{{ x + 1 }}{% endcall %}",
        "en",
        expect!["<2>"],
    );
    check(
        "{{ 9223372036854775807 * 2 }} {{ 'é' ~ 'ü' * 2 }}{# a comment * with ~ #} {% raw %}{{ 1 * 2 }}{% endraw %}",
        "en",
        expect!["18446744073709551614 éüü {{ 1 * 2 }}"],
    );
    check(
        "{{ place * 1.5 }}",
        "en",
        expect![
            "error: template `base`, text, line 1: invalid operation: tried to use * operator on unsupported types string and number"
        ],
    );
}

fn mjml_templates(mail: &str) -> ContentTemplates {
    let html = TemplateText { engine: TemplateEngine::Mjml, text: mail.to_owned() };
    let parts = TemplateParts { html: Some(html), ..TemplateParts::default() };
    ContentTemplates { engine: TemplateEngine::Jinja, templates: BTreeMap::from([(String::new(), parts)]) }
}

/// Runs on a stack of 512 KiB, less than any thread of the server has.
fn on_a_small_stack<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    with_stack_size(512 << 10, work)
}

fn with_stack_size<T: Send>(bytes: usize, work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(bytes);
        thread.spawn_scoped(scope, work).expect("a thread").join().expect("no panic")
    })
}

/// Every recursive production of the grammar, repeated 10,000 times.
fn deep_templates() -> Vec<(&'static str, String)> {
    let many = |text: &str| text.repeat(10_000);
    let expression =
        |before: &str, middle: &str, after: &str| format!("{{{{ {}{middle}{} }}}}", many(before), many(after));
    let tags = |before: &str, after: &str| format!("{}{}", many(before), many(after));
    let mut all = vec![
        ("filter", expression("", "place", "|upper")),
        ("filter with argument", expression("", "place", "|default('x')")),
        ("nested filter argument", expression("place|default(", "1", ")")),
        ("not", expression("not ", "1", "")),
        ("minus", expression("-", "1", "")),
        ("minus apart", expression("- ", "place", "")),
        ("ternary", expression("", "1", " if 1 else 2")),
        ("ternary without else", expression("", "1", " if 1")),
        ("ternary within", expression("1 if ", "1", " else 2")),
        ("attribute", expression("", "place", ".a")),
        ("index by dot", expression("", "place", ".0")),
        ("index", expression("", "place", "[0]")),
        ("slice", expression("", "place", "[1:2]")),
        ("slice step", expression("", "place", "[::1]")),
        ("index within", expression("place[", "0", "]")),
        ("call", expression("", "place", "()")),
        ("call within", expression("range(", "1", ")")),
        ("keyword argument", expression("dict(a=", "1", ")")),
        ("spread", expression("dict(**", "more", ")")),
        ("test", expression("", "place", " is defined")),
        ("negated test", expression("", "place", " is not defined")),
        ("test with argument", expression("", "1", " is divisibleby 2")),
        ("test with bracket", expression("1 is in [", "1", "]")),
        ("parentheses", expression("(", "1", ")")),
        ("tuple", expression("(", "1", ",)")),
        ("list", expression("[", "1", "]")),
        ("dict", expression("{'a': ", "1", "}")),
        ("dict key", expression("{", "1", ": 1}")),
        ("unclosed parentheses", expression("(", "1", "")),
        ("unclosed list", expression("[", "", "")),
        ("unclosed dict", expression("{1:", "", "")),
        ("if", tags("{% if 1 %}", "{% endif %}")),
        ("unclosed if", tags("{% if 1 %}", "")),
        ("if in else", tags("{% if 1 %}{% else %}", "{% endif %}")),
        ("elif", format!("{{% if 1 %}}{}{{% endif %}}", many("{% elif 1 %}"))),
        ("elif without end", format!("{{% if 1 %}}{}", many("{%- elif 1 -%}"))),
        ("for", tags("{% for a in tags %}", "{% endfor %}")),
        ("for in else", tags("{% for a in tags %}{% else %}", "{% endfor %}")),
        ("for target", format!("{{% for {}a{} in tags %}}{{% endfor %}}", many("("), many(")"))),
        ("set target", format!("{{% set {}a{} = 1 %}}", many("("), many(")"))),
        ("set attribute", format!("{{% set a{} = 1 %}}", many(".b"))),
        ("set block", tags("{% set a %}", "{% endset %}")),
        ("set block with filter", tags("{% set a | upper %}", "{% endset %}")),
        ("set filters", format!("{{% set a | upper{} %}}{{% endset %}}", many(" | upper"))),
        ("filter block", tags("{% filter upper %}", "{% endfilter %}")),
        ("filter block chain", format!("{{% filter upper{} %}}{{% endfilter %}}", many("|upper"))),
        ("with", tags("{% with a = 1 %}", "{% endwith %}")),
        ("macro", tags("{% macro m() %}", "{% endmacro %}")),
        ("call block", tags("{% call m() %}", "{% endcall %}")),
        (
            "block",
            format!(
                "{}{}",
                (0..10_000).map(|at| format!("{{% block b{at} %}}")).collect::<String>(),
                many("{% endblock %}")
            ),
        ),
        ("autoescape", tags("{% autoescape false %}", "{% endautoescape %}")),
        ("mixed", expression("(1 + [not ", "1", "|string])[0]")),
    ];
    for operator in
        ["+", "-", "*", "/", "//", "%", "**", "~", "and", "or", "==", "!=", "<", "<=", ">", ">=", "in", "not in"]
    {
        all.push((operator, expression("", "1", &format!(" {operator} 1"))));
        all.push((operator, expression("", "place", &format!(" {operator} count"))));
        all.push((operator, expression("(1 ", &format!("{operator} 1"), ")")));
    }
    all
}

#[test]
fn a14_no_template_overflows_the_stack() {
    on_a_small_stack(|| {
        for (name, template) in deep_templates() {
            let compiled = Formatter::compile("n", &templates(&[("", Part::Text, &template)]), &known());
            if let Ok(formatter) = compiled {
                let made = formatter.format(None, "email", &Sample::new("Kobe").scope());
                assert!(made.is_ok() || made.is_err(), "{name}");
            }
            let _ = crate::document::DocumentFormatter::template(&template, "text/plain");
            let expression = template.trim_start_matches("{{ ").trim_end_matches(" }}").to_owned();
            let mut known = known();
            known.computed.insert("c".parse().expect("a name"), expression);
            let _ = Formatter::compile("n", &templates(&[("", Part::Text, "{{ c }}")]), &known);
        }
    });
}

#[test]
fn a14_deep_templates_name_the_bound_and_its_place() {
    let error = |template: &str| {
        let problems =
            Formatter::compile("n", &templates(&[("", Part::Text, template)]), &known()).expect_err("too deep");
        problems[0].to_string()
    };
    let levels = "1:1: n.content.templates.base.text: the template has an error: is more than 400 levels deep: operators, \
                  filters, members, `elif` and brackets count one each; give parts of it names with `{% set %}`, or put them into partials";
    let chain = error(&format!("{{{{ place{} }}}}", "|upper".repeat(8_000)));
    assert!(chain.ends_with(levels.split_once(' ').expect("a place").1), "{chain}");
    let nested = error(&"{% if 1 %}".repeat(65));
    assert!(nested.contains("nests more than 64 brackets and block tags within each other"), "{nested}");
    let made = error(&format!("{{{{ 'a'{} }}}}", " ~ 'a'".repeat(300)));
    assert!(made.contains("nest deeper than the engine's 150 levels"), "{made}");
}

#[test]
fn a14_long_but_shallow_templates_work() {
    let elif: String = (0..150).map(|at| format!("{{% elif count == {at} %}}{at}")).collect();
    check(&format!("{{% if 1 == 2 %}}{elif}{{% else %}}none{{% endif %}}"), "en", expect!["none"]);
    let or: String = (0..190).map(|at| format!(" or count == {at}")).collect();
    check(&format!("{{{{ count == 1{or} }}}}"), "en", expect!["False"]);
    let items = (0..5_000).map(|at| at.to_string()).collect::<Vec<_>>().join(", ");
    check(&format!("{{{{ [{items}]|length }}}}"), "en", expect!["5000"]);
    check(&format!("{}{{{{ place }}}}", "{% if place|upper == 'x' %}{% endif %}".repeat(500)), "en", expect!["Kobe"]);
}

#[test]
fn a14_no_mail_in_mjml_overflows_the_stack() {
    let many = |text: &str| text.repeat(10_000);
    let mail = |body: String| format!("<mjml><mj-body>{body}</mj-body></mjml>");
    let within = |element: &str, body: String| {
        mail(format!("<mj-section><mj-column><{element}>{body}</{element}></mj-column></mj-section>"))
    };
    let nested = |open: &str, close: &str| format!("{}x{}", many(open), many(close));
    let mut mails = vec![
        ("closed before opened", within("mj-text", nested("</b><b>", "</b>"))),
        ("an end in an attribute", within("mj-text", nested("<b title=\"/>\">", "</b>"))),
        ("an end in an attribute in quotes", within("mj-text", nested("<b title='>'>", "</b>"))),
        ("prefix", within("mj-text", nested("<o:p>", "</o:p>"))),
        ("upper case", within("mj-text", nested("<DIV>", "</DIV>"))),
        ("conditional comment", within("mj-raw", nested("<!--[if mso]><b>", "</b><![endif]-->"))),
        ("body", mail(nested("<b>", "</b>"))),
        ("root", nested("<b>", "</b>")),
        ("root mjml", nested("<mjml>", "</mjml>")),
        ("body in body", nested("<mj-body>", "</mj-body>")),
        ("cdata", within("mj-text", many("<![CDATA[<b>]]>"))),
        (
            "head",
            format!(
                "<mjml><mj-head>{}</mj-head><mj-body></mj-body></mjml>",
                nested("<mj-attributes>", "</mj-attributes>")
            ),
        ),
        (
            "preview",
            format!(
                "<mjml><mj-head><mj-preview>{}</mj-preview></mj-head><mj-body></mj-body></mjml>",
                nested("<b>", "</b>")
            ),
        ),
        (
            "style",
            format!(
                "<mjml><mj-head><mj-style>{}</mj-style></mj-head><mj-body></mj-body></mjml>",
                nested("<b>", "</b>")
            ),
        ),
    ];
    for element in
        ["mj-text", "mj-button", "mj-table", "mj-raw", "mj-navbar-link", "mj-accordion-text", "mj-social-element"]
    {
        mails.push((element, within(element, nested("<b>", "</b>"))));
        mails.push((element, within(element, many("<b>"))));
        mails.push((element, within(element, many("<td><tr>"))));
    }
    for element in [
        "mj-section",
        "mj-column",
        "mj-wrapper",
        "mj-group",
        "mj-hero",
        "mj-navbar",
        "mj-accordion",
        "mj-social",
        "mj-carousel",
        "mj-raw",
        "mj-text",
    ] {
        mails.push((element, mail(nested(&format!("<{element}>"), &format!("</{element}>")))));
        mails.push((element, mail(many(&format!("<{element}>")))));
    }
    on_a_small_stack(|| {
        for (name, mail) in mails {
            let templates = mjml_templates(&mail);
            let problems = Formatter::compile("n", &templates, &known()).map(|_| ()).err().unwrap_or_default();
            assert!(!problems.is_empty(), "{name}");
        }
        // Adjacent elements are not deep.
        let mail = within("mj-text", "<b>x</b><br><img src='x'>".repeat(300));
        let made = Formatter::compile("n", &mjml_templates(&mail), &known());
        assert!(made.is_ok(), "{:?}", made.err());
    });
}

#[test]
fn a21_the_number_of_elements_of_a_mail_is_bounded() {
    for (element, expected) in [
        ("<mj-image src='x'/>", "has more than 1000 elements of MJML"),
        ("<mj-spacer/>", "has more than 1000 elements of MJML"),
        ("<mj-raw>{{ place }}</mj-raw>", "has more than 1000 elements of MJML"),
        ("{{ place }}", "has more than 1000 elements of MJML"),
    ] {
        let mail = format!(
            "<mjml><mj-body><mj-section><mj-column>{}</mj-column></mj-section></mj-body></mjml>",
            element.repeat(7_000)
        );
        let problems = Formatter::compile("n", &mjml_templates(&mail), &known()).map(|_| ()).expect_err(element);
        assert!(problems[0].message.contains(expected), "{element}: {}", problems[0]);
    }
}

#[test]
fn a14_deep_values_are_rendered_on_a_small_stack() {
    let deep = (0..tocsin_model::json::DEPTH_MAX).fold(Value::Null, |inner, at| match at % 2 {
        0 => Value::List([inner].into()),
        _ => Value::Map([("a".into(), inner)].into()),
    });
    let field = Field::new("deep".parse().expect("a name"), FieldType::List);
    let known = KnownVariables { fields: Fields::new(vec![field]), ..KnownVariables::default() };
    let works = [
        "{{ deep }}",
        "{{ deep|tojson }}",
        "{{ deep == deep }}",
        "{{ deep|string|length }}",
        "{{ deep ~ '' }}",
        "{{ deep + [] }}",
        "{{ [deep]|sort|unique|list }}",
        "{{ deep in [deep] }}",
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(12) }}{{ deep }}",
    ];
    // The stack of a worker.
    with_stack_size(1 << 20, || {
        for (part, work) in
            [Part::Text, Part::Json, Part::Html].into_iter().flat_map(|part| works.map(|work| (part, work)))
        {
            let formatter = Formatter::compile("n", &templates(&[("", part, work)]), &known).expect("templates");
            let sample = Sample::new("Kobe");
            let fields = [deep.clone()];
            let made = formatter.format(None, "email", &Scope { fields: &fields, ..sample.scope() });
            assert!(made.is_ok() || made.is_err());
        }
        drop(deep);
    });
}
