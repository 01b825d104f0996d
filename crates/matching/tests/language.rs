//! Semantics of expressions, and the problems of invalid ones.

use tocsin_matching::{
    check::{Scope, Subject, compile, compile_predicate},
    eval_value::EvalError,
    evaluate::evaluate,
    user_functions::UserFunctions,
};
use tocsin_model::field::{Field, FieldType, Fields};

fn fields(list: &[(&str, FieldType)]) -> Fields {
    let field = |(name, kind): &(&str, FieldType)| Field::new(name.parse().expect("a name"), *kind);
    Fields::new(list.iter().map(field).collect())
}

fn scope() -> Scope {
    use FieldType::*;
    Scope {
        subject: Subject::Event,
        functions: UserFunctions::default(),
        subscriber: None,
        variables: Vec::new(),
        chronicled: fields(&[("day-high-before", Number), ("day-high-after", Number), ("day-count-before", Integer)]),
        event: fields(&[
            ("place", String),
            ("magnitude", Number),
            ("count", Integer),
            ("at", Timestamp),
            ("tags", List),
            ("data", Map),
            ("felt-by", Integer),
        ]),
        subscription: fields(&[("magnitude", Number), ("place", String), ("since", Timestamp)]),
    }
}

const EVENT: &str = r#"{"place": "Kobe", "magnitude": 6.5, "count": 9007199254740993, "at": "2026-03-29T00:30:00Z",
    "tags": ["sea", 1, 2.5, null], "data": {"depth": 10, "none": null}, "felt-by": 3}"#;

fn value(source: &str) -> String {
    let scope = scope();
    let expression = compile(source, &scope).unwrap_or_else(|problems| panic!("{source}: {problems:?}"));
    let event = scope.event.row_from_json(EVENT.as_bytes()).expect("an event");
    let subscription = scope.subscription.row_from_json(br#"{"magnitude": 5, "place": "kobe"}"#).expect("a row");
    match evaluate(&expression, &event, &subscription) {
        Ok(value) => serde_json::to_string(&value).expect("JSON"),
        Err(error) => format!("error: {error}"),
    }
}

fn check(cases: &[(&str, &str)]) {
    for (source, expected) in cases {
        assert_eq!(value(source), *expected, "{source}");
    }
}

#[test]
fn operators() {
    check(&[
        ("1 + 2 * 3 - 4 / 2 % 3", "5"),
        ("-7 / 2 == -3 && -7 % 2 == -1", "true"),
        ("1 + 0.5", "1.5"),
        ("'a' + \"b\" + '''c'''", r#""abc""#),
        ("[1] + [2.5] == [1.0, 2.5]", "true"),
        ("9223372036854775807 + 1", "error: the result is out of range"),
        ("-(-9223372036854775808)", "error: the result is out of range"),
        ("-9223372036854775808 / -1", "error: the result is out of range"),
        ("1 / 0", "error: division by zero"),
        ("1.0 / 0.0 > 1e308", "true"),
        ("0.0 / 0.0 == 0.0 / 0.0", "false"),
        ("event.count == 9007199254740992.0", "false"),
        ("event.count > 9007199254740992.0", "true"),
        ("1 == 1.0 && 1 < 1.5 && 2 > 1.5", "true"),
        ("true ? 1 : 2", "1"),
        ("false ? 1 : true ? 2 : 3", "2"),
        ("!(1 > 2) && !!true", "true"),
        ("'a' < 'b' && 'B' < 'a' && false < true", "true"),
        ("2 in [1, 2.0] && !('x' in {'y': 1}) && 'y' in {'y': 1}", "true"),
        ("event['felt-by'] - 1", "2"),
        ("subscription.magnitude == sub.magnitude", "true"),
    ]);
}

#[test]
fn missing_values_are_null_and_errors_are_absorbed() {
    check(&[
        ("has(sub.since)", "false"),
        ("has(event.place) && has(event.data.depth) && !has(event.data.width) && has(event.data.none)", "true"),
        ("sub.since == null && event.place != null", "true"),
        ("sub.since < event.at", "error: a value is missing"),
        ("sub.since < event.at || true", "true"),
        ("true || sub.since < event.at", "true"),
        ("sub.since < event.at && false", "false"),
        ("sub.since < event.at && true", "error: a value is missing"),
        ("event.data.width == 1 || event.magnitude > 6.0", "true"),
        ("event.data.width", "error: there is no such key or place"),
        ("event.data.depth == 10 && event.data['depth'] == 10.0", "true"),
        ("event.data.none == null", "true"),
        ("event.data.depth > 'a'", "error: an operand has the wrong type"),
        ("event.tags[0] == 'sea' && event.tags[3] == null", "true"),
        ("event.tags[4]", "error: there is no such key or place"),
        ("event.tags.exists(tag, tag > 2)", "true"),
        ("event.tags.all(tag, tag > 2)", "false"),
        ("event.tags.exists(tag, tag > 3)", "error: an operand has the wrong type"),
    ]);
}

#[test]
fn macros_and_functions() {
    check(&[
        ("[1, 2, 3].map(x, x * 2)", "[2,4,6]"),
        ("[1, 2, 3].map(x, x > 1, x * 2)", "[4,6]"),
        ("[1, 2, 3].filter(x, x % 2 == 1)", "[1,3]"),
        ("[1, 2, 3].exists_one(x, x > 2) && ![1, 2].exists_one(x, x > 0)", "true"),
        ("[[1], [2, 3]].map(x, x.map(y, y + size(x)))", "[[2],[4,5]]"),
        ("{'a': 1, 'b': 2}.all(key, key < 'c')", "true"),
        ("[1].exists(event, event == 1)", "true"),
        ("size('héé') + size([1, 2]) + {'a': 1}.size()", "6"),
        ("event.place.startsWith('Ko') && event.place.endsWith('be') && event.place.contains('ob')", "true"),
        ("event.place.contains_ci(sub.place) && contains_ci('STRASSE', 'ras') && 'ÉTÉ'.contains_ci('été')", "true"),
        (r"event.place.matches('^K.b') && matches('a1', r'\d')", "true"),
        ("' a '.trim() + 'Ab'.lowerAscii() + 'é'.upperAscii()", r#""aabé""#),
        ("'a,b,c'.split(',') == ['a', 'b', 'c'] && 'a,b,c'.split(',', 2) == ['a', 'b,c']", "true"),
        ("['a', 'b'].join('-') + 'aaa'.replace('a', 'b', 2)", r#""a-bbba""#),
        ("'tacocat'.substring(4) + 'tacocat'.substring(0, 4) + 'ab'.charAt(1) + 'ab'.reverse()", r#""cattacobba""#),
        ("'hello'.indexOf('l') + 'hello'.lastIndexOf('l') + 'hello'.indexOf('z')", "4"),
        ("'abc'.substring(4)", "error: the result is out of range"),
        ("int('42') + int(2.9) + int(timestamp('1970-01-01T00:00:10Z'))", "54"),
        ("double('1.5') + double(2)", "3.5"),
        ("string(1) + string(1.5) + string(true) + string(duration('90s'))", r#""11.5true90s""#),
        ("string(event.at)", r#""2026-03-29T00:30:00Z""#),
        ("bool('true') && !bool('0')", "true"),
        ("event.at + duration('1h30m') == timestamp('2026-03-29T02:00:00Z')", "true"),
        ("event.at - timestamp('2026-03-28T00:30:00Z') == duration('24h')", "true"),
        ("event.at.getFullYear() + event.at.getMonth() + event.at.getDate()", "2057"),
        ("event.at.getDayOfWeek() == 0 && event.at.getHours('Europe/Vienna') == 1", "true"),
        ("(event.at + duration('1h')).getHours('Europe/Vienna')", "3"),
        ("event.at.getHours('+05:30') == 6 && event.at.getMinutes('+05:30') == 0", "true"),
        ("duration('1h30m').getMinutes()", "90"),
        ("timestamp('9999-12-31T23:59:58Z') + duration('1s')", "\"9999-12-31T23:59:59Z\""),
        ("timestamp('9999-12-31T23:59:59Z') + duration('1s')", "error: the result is out of range"),
        ("distance_km(48, 16, 48.0, 16.0) < 0.001", "true"),
        ("distance_km(95, 0, 0, 0)", "error: the result is out of range"),
    ]);
}

#[test]
fn invalid_expressions_have_a_position_and_a_hint() {
    let cases = [
        ("event.magnitud > 5", "1:1: the event class has no field `magnitud`; did you mean `magnitude`?"),
        ("magnitude > 5", "1:1: `magnitude` is not known here; did you mean `event.magnitude`?"),
        (
            "event.magnitude > '5'",
            "1:1: `event.magnitude` is a number and `'5'` is a string; they cannot be compared; write the number without quotes",
        ),
        (
            "event.at > '2026-01-01T00:00:00Z'",
            "1:1: `event.at` is a timestamp and `'2026-01-01T00:00:00Z'` is a string; they cannot be compared; \
             write `timestamp('2026-11-21T09:30:00Z')`",
        ),
        ("event.magnitude + 1", "1:1: the expression gives a number, not a boolean; compare it with something"),
        ("event.place && true", "1:1: `&&` takes booleans, and this is a string; compare it with something"),
        ("event.place.startswith('K')", "1:1: there is no function `startswith`; did you mean `startsWith`?"),
        (
            "event.magnitude.contains('5')",
            "1:1: `contains` does not take a number, a string; write `string.contains(string)`",
        ),
        ("event.place.matches('(')", "1:21: the regular expression is wrong: unclosed group"),
        ("event == sub", "1:1: `event` names a group, not a value; name one of its fields, such as `event.place`"),
        (
            "event.at >\n  timestamp('yesterday')",
            "2:3: `timestamp('yesterday')` has no value: the text cannot be converted; \
             a timestamp is written like '2026-11-21T09:30:00Z'",
        ),
        ("event.count in ['a']", "1:1: each value of the list is a string, which never equals an integer"),
        ("event.tags.map(1, 2) == []", "1:1: `map` takes a variable and an expression; write `list.map(item, ...)`"),
        ("event.place > null", "1:1: null has no order; test for null with `==`, or use `has(...)`"),
    ];
    for (source, expected) in cases {
        let problems = compile_predicate(source, &scope()).expect_err(source);
        assert_eq!(problems[0].to_string(), expected, "{source}");
    }
    let all = compile_predicate("event.a == 1 && event.b == 2 || sub.c", &scope()).expect_err("three problems");
    assert_eq!(all.len(), 3, "every problem at once");
}

#[test]
fn worst_case_filters_are_rejected_or_stopped() {
    let list = format!("[{}]", vec!["1"; 200].join(","));
    let nested = format!("{list}.all(a, {list}.all(b, {list}.all(c, {list}.all(d, a + b + c + d > 0))))");
    let doubled = "['aaaaaaaaaaaaaaaa'].map(a, a + a).map(a, a + a)".to_owned() + &".map(a, a + a)".repeat(30);
    for source in [nested, doubled] {
        let expression = compile(&source, &scope()).expect("an expression");
        assert_eq!(evaluate(&expression, &[], &[]), Err(EvalError::Cost));
    }
    let high = "1".to_owned() + &" + 1".repeat(126);
    assert_eq!(value(&high), "127", "the highest that is allowed fits on the stack");
    let wide = "event.magnitude > 6.0".to_owned() + &" && true".repeat(2_000);
    assert_eq!(value(&wide), "true");
    assert!(compile("'a'.matches('(((a{100}){100}){100}){100}')", &scope()).is_err());
}

#[test]
fn c8_functions_of_the_string_and_encoder_extensions_follow_cel() {
    let check = |source: &str| {
        let scope = tocsin_matching::check::Scope::default();
        let expression =
            tocsin_matching::check::compile(source, &scope).unwrap_or_else(|problems| panic!("{source}: {problems:?}"));
        let value =
            tocsin_matching::evaluate::evaluate_over(&expression, Vec::new()).map(|eval_value| eval_value.to_value());
        assert_eq!(value, Ok(tocsin_model::value::Value::Boolean(true)), "{source}");
    };
    for source in [
        "'aéaé'.lastIndexOf('é', 0) == -1",
        "'aéaé'.lastIndexOf('é', 1) == 1",
        "'aéaé'.lastIndexOf('é', 2) == 1",
        "'aéaé'.lastIndexOf('é', 3) == 3",
        "'日本日本'.lastIndexOf('日本', 1) == 0",
        "'日本日本'.lastIndexOf('日本', 2) == 2",
        "'a😀b😀'.lastIndexOf('b😀', 3) == 2",
        "'a😀b😀'.lastIndexOf('b😀', 1) == -1",
        "'hello mellow'.lastIndexOf('ello', 6) == 1",
        "'日本日本'.indexOf('日', 1) == 2",
        "'日本'.indexOf('', 1) == 1 && '日本'.lastIndexOf('') == 2",
        "'日本語'.substring(1, 2) == '本' && '日本語'.charAt(2) == '語' && '日本語'.charAt(3) == ''",
        "size('a😀e\\u0301') == 4",
        "base64.decode('aGVsbG8=') == b'hello'",
        "base64.decode('aGVsbG8') == b'hello'",
        "base64.decode('aGk') == b'hi' && base64.decode('') == b''",
        "'abc'.split('', 2) == ['a', 'bc'] && 'abc'.split('') == ['a', 'b', 'c'] && 'abc'.split('', 0) == []",
        "'éa'.split('', 1) == ['éa'] && 'a,b,c'.split(',', 2) == ['a', 'b,c'] && 'a'.split('', 5) == ['a']",
        "has({'a': null}.a) && !has({'a': null}.b)",
        "has({'a': {'b': null}}.a.b) && {'a': null}.?a.hasValue()",
        "timestamp('9999-12-31T23:59:59Z').getFullYear() == 9999",
        "timestamp('9999-12-31T23:59:59Z').getHours('-05:00') == 18",
        "timestamp('0001-01-01T00:00:00Z').getDayOfYear() == 0",
        "string(timestamp('9999-12-31T23:59:59Z')) == '9999-12-31T23:59:59Z'",
        "timestamp(253402300799) == timestamp('9999-12-31T23:59:59Z')",
        "timestamp('9999-12-31T00:00:00Z') + duration('23h') == timestamp('9999-12-31T23:00:00Z')",
        "timestamp('2016-12-31t23:59:60z') == timestamp('2016-12-31T23:59:59Z')",
        "int('-9223372036854775808') < 0 && uint('18446744073709551615') > 0u",
    ] {
        check(source);
    }
    for source in [
        "timestamp('9999-12-31T23:59:59Z') + duration('1s')",
        "timestamp(253402300800)",
        "timestamp('0001-01-01T00:00:00Z') - duration('1s')",
        "timestamp('0000-12-31T23:59:59Z')",
        "base64.decode('a')",
        "base64.decode('aGVsbG8==')",
        "int(9223372036854775808.0)",
        "uint(-1)",
        "int('9223372036854775808')",
        "'abc'.charAt(4)",
        "'abc'.substring(2, 1)",
        "'abc'.lastIndexOf('a', -1)",
    ] {
        let scope = tocsin_matching::check::Scope::default();
        let Ok(expression) = tocsin_matching::check::compile(source, &scope) else { continue };
        let value = tocsin_matching::evaluate::evaluate_over(&expression, Vec::new());
        assert!(value.is_err(), "{source}: {value:?}");
    }
}
