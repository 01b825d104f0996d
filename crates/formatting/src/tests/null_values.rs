//! Fields without a value, in filters, tests, errors and warnings.

use super::*;

#[test]
fn b30_null_is_empty_in_every_filter_and_test() {
    for name in crate::filters::NAMES {
        let arguments = match name {
            "attr" | "groupby" => "('x')",
            "batch" | "slice" => "(2)",
            "map" => "('upper')",
            "selectattr" | "rejectattr" => "('x')",
            "money" => "('EUR')",
            "plural" | "ordinal" => "(one='day', other='days')",
            "replace" => "('a', 'b')",
            "truncate" => "(3)",
            "zip" | "chain" => "(none)",
            "indent" => "(2)",
            _ => "",
        };
        let expected = match name {
            "bool" => "False",
            "count" | "int" | "length" | "segments" | "sum" => "0",
            "float" => "0.0",
            "tojson" => "null",
            "batch" | "chain" | "groupby" | "items" | "lines" | "list" | "map" | "reject" | "rejectattr" | "select"
            | "selectattr" | "slice" | "sort" | "split" | "unique" | "zip" | "dictsort" => "[]",
            _ => "",
        };
        // Some filters return lazy sequences.
        let template = format!("{{{{ note|{name}{arguments} }}}}");
        let made = render(Part::Text, &template, None, "Kobe").unwrap_or_else(|error| panic!("{name}: {error}"));
        let made = made.replace("{}", "[]").replace("<iterator>", "[]");
        assert_eq!(made, expected, "{template}");
        let shown = format!("[{{{{ note|{name}{arguments}|string }}}}]");
        assert!(render(Part::Json, &shown, None, "Kobe").is_ok() || !matches!(name, "upper" | "plural"), "{shown}");
    }
    for test in [
        "boolean",
        "defined",
        "divisibleby(2)",
        "endingwith('x')",
        "eq(1)",
        "even",
        "float",
        "ge(1)",
        "in('x')",
        "in(note)",
        "integer",
        "iterable",
        "lower",
        "lt(1)",
        "mapping",
        "none",
        "number",
        "odd",
        "sequence",
        "startingwith('x')",
        "string",
        "upper",
        "sameas(1)",
    ] {
        let template = format!("{{% if note is {test} %}}{{% endif %}}");
        assert_eq!(
            render(Part::Text, &template, None, "Kobe").map_err(|error| error.to_string()),
            Ok(String::new()),
            "{test}"
        );
    }
    check("{{ 'a' ~ note ~ 'b' ~ 1 }}", "en", expect!["ab1"]);
    check("{{ range(note) }}{{ range(1, note) }}{{ dict(note) }}", "en", expect!["[][]{}"]);
    check("{% for x in note %}{{ x }}{% else %}none{% endfor %}", "en", expect!["none"]);
    check("{{ 'x' in note }}{{ 'x' not in note }}", "en", expect!["FalseTrue"]);
    check(
        "{{ [1, note, 2]|sum }} {{ [1, note]|map('string')|join('-') }} {{ ['a', note]|join(', ') }}",
        "en",
        expect!["3 1- a, "],
    );
    check(
        "{{ 'axa'|replace(note, 'y') }} {{ 'axa'|replace('x', note) }} {{ 1|money(note) }} {{ 'abc'|truncate(note) }}",
        "en",
        expect!["axa aa 1.00 abc"],
    );
    check("{{ note|upper|lower|default('x', true) }} {{ (note|upper) or 'y' }}", "en", expect!["x y"]);
}

#[test]
fn b30_the_field_without_a_value_is_named() {
    check(
        "{{ place }}\n{{ note + 1 }}",
        "en",
        expect![[
            r#"error: template `base`, text, line 2: invalid operation: tried to use + operator on unsupported types none and number (`note` has no value)"#
        ]],
    );
    let mut known = known();
    known.computed.insert("twice".parse().expect("a name"), "note * 2".to_owned());
    let formatter = Formatter::compile("n", &templates(&[("", Part::Text, "{{ twice }}")]), &known).expect("templates");
    let error = formatter.format(None, "email", &Sample::new("Kobe").scope()).expect_err("no value").to_string();
    assert!(error.starts_with("the computed field `twice`") && error.ends_with("(`note` has no value)"), "{error}");
}

#[test]
fn b30_templates_that_need_an_optional_value_are_warned_of() {
    let warnings = |template: &str| {
        let formatter = compile(&[("", Part::Text, template)]);
        formatter.warnings().iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    };
    assert_eq!(warnings("{{ note|upper }} {{ count|plural(one='a', other='b') }}"), "");
    let found = warnings("x\n{{ count + 1 }}");
    assert!(
        found.starts_with(
            "2:1: notifications.alert.content.templates.base.text: fails where optional fields have no value"
        ),
        "{found}"
    );
    assert!(found.contains("(`count` has no value)"), "{found}");
}
