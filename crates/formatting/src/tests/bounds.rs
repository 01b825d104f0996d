//! What a template may not make on its way.

use super::*;

#[test]
fn nothing_grows_without_a_bound() {
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
fn a_long_text_is_not_gone_through_for_ever() {
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
            Err(error) => assert!(error.to_string().contains("on its way"), "{work}: {error}"),
            Ok(_) => panic!("{work} comes to an end"),
        }
    }
    check(
        "{{ 'b' in ('a', 'b') }} {{ 'o' in place }} {{ 'x' not in (place|upper) }} {{ not 2 in tags }} {{ 'a' in {'a': 1} }} \
         {{ place is upper }} {{ place in [place] and 'K' in place ~ 'x' }} {{ [1, 2]|sum }} {{ tags|map('string')|join('-') }}",
        "en",
        expect!["True True True False True False True 3 a-2-None"],
    );
}

#[test]
fn what_is_weighed_means_what_it_meant() {
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
