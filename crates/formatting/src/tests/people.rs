//! Locale-aware output for people.

use super::*;

#[track_caller]
fn check_in(template: &str, expected: &[(&str, &str)]) {
    for (locale, expected) in expected {
        let text = render(Part::Text, template, Some(locale), "Kobe").unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(text, *expected, "{locale}");
    }
}

#[test]
fn money_goes_by_currency_and_language() {
    check_in(
        "{{ count|money('EUR') }} {{ (-12.5)|money('usd') }} {{ 99.6|money('JPY') }} {{ 1|money('CHF') }} {{ 0.1|money('KWD') }}",
        &[
            ("en", "€1,234,567.00 -$12.50 ¥100 CHF\u{a0}1.00 KWD\u{a0}0.100"),
            ("de", "1.234.567,00\u{a0}€ -12,50\u{a0}$ 100\u{a0}¥ 1,00\u{a0}CHF 0,100\u{a0}KWD"),
            ("de-CH", "EUR\u{a0}1’234’567.00 -$\u{a0}12.50 ¥\u{a0}100 CHF\u{a0}1.00 KWD\u{a0}0.100"),
            ("ja", "€1,234,567.00 -$12.50 ￥100 CHF\u{a0}1.00 KWD\u{a0}0.100"),
        ],
    );
    check("{{ 1234.5|money('EUR', 0) }} [{{ note|money('EUR') }}]", "en", expect!["€1,234 []"]);
    check(
        "{{ 1|money('Euro') }}",
        "en",
        expect![
            "error: template `base`, text, line 1: invalid operation: `EURO` is not a currency; give an ISO 4217 code, such as `EUR`"
        ],
    );
    check_in("{{ 0.1234|percent(1) }} {{ 1|percent }}", &[("en", "12.3% 100%"), ("de", "12,3\u{a0}% 100\u{a0}%")]);
}

#[test]
fn numbers_have_their_plural() {
    let template = "{% for n in [0, 1, 2, 5, 22, 1.5] %}{{ n|plural(one='trzęsienie', few='trzęsienia', many='trzęsień', \
                    other='trzęsienia ziemi') }} {% endfor %}";
    check_in(template, &[("pl", "trzęsień trzęsienie trzęsienia trzęsień trzęsienia trzęsienia ziemi ")]);
    check_in(
        "{{ 1|plural(one='day', other='days') }} {{ 2|plural(one='day', other='days') }} {{ 3|ordinal(one='st', two='nd', few='rd', other='th') }}",
        &[("en", "day days rd"), ("ja", "days days th")],
    );
    check_problems(
        "{{ 1|plural(one='day') }}",
        expect![
            "1:1: notifications.alert.content.templates.de.text: the template fails: missing argument: `plural` needs the form `other`, which every language has; check the arguments"
        ],
    );
    check_problems(
        "{{ 1|plural(ones='day', other='days') }}",
        expect![
            "1:1: notifications.alert.content.templates.de.text: the template fails: too many arguments: `plural` has no form `ones`; forms are `zero`, `one`, `two`, `few`, `many`, `other`; check the arguments"
        ],
    );
}

#[test]
fn relative_times_count_from_now() {
    // `now` is half an hour after `at`.
    check_in(
        "{{ at|relative }}, {{ '2026-11-21T21:35:12Z'|relative }}, {{ '2026-11-24T21:35:09Z'|relative }}, {{ '2024-01-01T00:00:00Z'|relative }}, {{ at|relative('2026-11-21T20:05:09Z') }}",
        &[
            ("en", "30 minutes ago, in 3 seconds, in 3 days, 2 years ago, in 1 hour"),
            ("de", "vor 30 Minuten, in 3 Sekunden, in 3 Tagen, vor 2 Jahren, in 1 Stunde"),
            ("ru", "30 минут назад, через 3 секунды, через 3 дня, 2 года назад, через 1 час"),
        ],
    );
    check_in(
        "{{ at|date('full') }} | {{ at|date('medium') }}",
        &[
            ("en", "Saturday, November 21, 2026 | Nov 21, 2026"),
            ("fr", "samedi 21 novembre 2026 | 21 nov. 2026"),
            ("zh-TW", "2026年11月21日 星期六 | 2026年11月21日"),
            ("pt-AO", "sábado, 21 de novembro de 2026 | 21/11/2026"),
        ],
    );
}

#[test]
fn texts_are_fitted_to_their_target() {
    check(
        "{{ 'https://a.example/?b=c'|url }} {{ 'JavaScript:alert(1)'|url }} {{ ' java\tscript:x'|url }} {{ 'mailto:a@b.org'|url }} {{ 'data:text/html,x'|url }} {{ '//evil.example'|url }} [{{ note|url }}]",
        "en",
        expect!["https://a.example/?b=c about:invalid about:invalid mailto:a@b.org about:invalid about:invalid []"],
    );
    check(
        "{{ 'Übermäßig lang'|truncate(10) }} {{ 'kurz'|truncate(4) }} {{ 'lang'|truncate(3, '') }}",
        "de",
        expect!["Übermäßig… kurz lan"],
    );
    check(
        "{{ ('Ein Beben – „stark“ '|gsm * 20)|sms }} {{ 'ж' * 71|int }}",
        "de",
        expect![[
            r#"Ein Beben - "stark" Ein Beben - "stark" Ein Beben - "stark" Ein Beben - "stark" Ein Beben - "stark" Ein Beben - "stark" Ein Beben - "stark" Ein Beben - "star... жжжжжжжжжжжжжжжжжжжжжжжжжжжжжжжжжжжжжжжжжжжжжжжжжжжжжжжжжжжжжжжжжжжжжжж"#
        ]],
    );
    let long =
        render(Part::Sms, "{% filter sms(2) %}{{ place * 400 }}{% endfilter %}\t", None, "Kobe ").expect("a text");
    assert_eq!(crate::measure_sms(&long).segments, 2);
    assert!(long.ends_with("..."));
}
