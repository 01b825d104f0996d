use expect_test::{Expect, expect};
use tocsin_model::field::{Field, Row};

use super::*;
use crate::eval_value::EvalError;

fn fields() -> Fields {
    use FieldType::*;
    let list = [
        ("source", String),
        ("at", Timestamp),
        ("count", Integer),
        ("price", Number),
        ("urgent", Boolean),
        ("resources", List),
        ("detail", Map),
    ];
    let field = |(name, kind): (&str, FieldType)| Field::new(name.parse().expect("a name"), kind);
    Fields::new(list.map(field).into())
}

fn row(event: &str) -> Row {
    let json: serde_json::Map<String, serde_json::Value> = serde_json::from_str(event).expect("JSON");
    let fields = fields();
    assert!(json.keys().all(|key| fields.position(key).is_some()), "{event}");
    let value = |field: &Field| {
        let value = json.get(field.name.as_str()).cloned().map_or(Value::Null, Value::from);
        field.kind.accept(value).expect("the value fits its field")
    };
    fields.iter().map(value).collect()
}

fn compiled(pattern: &str) -> CompiledFilter {
    compile(pattern, &fields()).unwrap_or_else(|problems| panic!("{pattern}: {problems:?}"))
}

/// The pattern matches the first events and not the others, by evaluation and by its condition.
#[track_caller]
fn check(pattern: &str, yes: &[&str], no: &[&str]) {
    let filter = compiled(pattern);
    for (events, expected) in [(yes, true), (no, false)] {
        for event in events {
            let row = row(event);
            assert_eq!(filter.holds(&row), Ok(expected), "{pattern} {event}");
            let holds = filter.condition().holds(&row);
            assert!(
                if filter.is_exact() { holds == expected } else { holds || !expected },
                "{pattern} {event} condition"
            );
        }
    }
}

#[track_caller]
fn rejected(pattern: &str, expected: Expect) {
    let problems = compile(pattern, &fields()).expect_err(pattern);
    expected.assert_eq(&problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"));
}

#[test]
fn values_are_alternatives_and_fields_go_together() {
    check(
        r#"{"source": ["aws.ec2", "aws.s3"], "resources": ["arn:1"], "detail": {"state": ["initializing", "running"]}}"#,
        &[
            r#"{"source": "aws.ec2", "resources": ["arn:0", "arn:1"], "detail": {"state": "running", "more": 1}}"#,
            r#"{"source": "aws.s3", "resources": ["arn:1"], "detail": {"state": ["stopped", "running"]}}"#,
        ],
        &[
            r#"{"source": "aws.ec2", "resources": ["arn:0"], "detail": {"state": "running"}}"#,
            r#"{"source": "aws.EC2", "resources": ["arn:1"], "detail": {"state": "running"}}"#,
            r#"{"source": "aws.ec2", "resources": ["arn:1"]}"#,
            r#"{"source": "aws.ec2", "resources": ["arn:1"], "detail": {"state": {"running": true}}}"#,
            "{}",
        ],
    );
}

#[test]
fn numbers_compare_by_value() {
    check(
        r#"{"count": [300], "detail": {"x": [3.0e2, 9007199254740993]}}"#,
        &[r#"{"count": 300, "detail": {"x": 300.0}}"#, r#"{"count": 300, "detail": {"x": 9007199254740993}}"#],
        &[r#"{"count": 300, "detail": {"x": "300"}}"#, r#"{"count": 300, "detail": {"x": 9007199254740992}}"#],
    );
}

#[test]
fn null_is_a_value_only_below_the_fields_of_the_class() {
    check(
        r#"{"detail": {"x": [null, true]}}"#,
        &[r#"{"detail": {"x": null}}"#, r#"{"detail": {"x": true}}"#, r#"{"detail": {"x": [1, null]}}"#],
        &[r#"{"detail": {}}"#, r#"{"detail": null}"#, r#"{"detail": {"x": "null"}}"#],
    );
    check(
        r#"{"resources": [null]}"#,
        &[r#"{"resources": [null]}"#],
        &[r#"{"resources": null}"#, r#"{"resources": []}"#],
    );
}

#[test]
fn prefixes_and_suffixes_apply_to_text() {
    check(r#"{"source": [{"prefix": "aws."}]}"#, &[r#"{"source": "aws.ec2"}"#], &[r#"{"source": "AWS.ec2"}"#, "{}"]);
    check(r#"{"source": [{"suffix": "ec2"}]}"#, &[r#"{"source": "aws.ec2"}"#], &[r#"{"source": "ec2."}"#]);
    check(
        r#"{"source": [{"prefix": {"equals-ignore-case": "EC2"}}, {"suffix": {"equals-ignore-case": "S3"}}]}"#,
        &[r#"{"source": "eC2.x"}"#, r#"{"source": "aws.s3"}"#],
        &[r#"{"source": "aws.ec2"}"#],
    );
    check(r#"{"detail": {"x": [{"prefix": "1"}]}}"#, &[r#"{"detail": {"x": "12"}}"#], &[r#"{"detail": {"x": 12}}"#]);
}

#[test]
fn case_can_be_ignored() {
    check(r#"{"source": [{"equals-ignore-case": "ÄPFEL"}]}"#, &[r#"{"source": "äpfel"}"#], &[r#"{"source": "apfel"}"#]);
}

#[test]
fn wildcards_escape() {
    check(
        r#"{"source": [{"wildcard": "Simple*Service"}]}"#,
        &[r#"{"source": "SimpleService"}"#, r#"{"source": "Simple Queue Service"}"#],
        &[r#"{"source": "SimpleServices"}"#],
    );
    check(r#"{"source": [{"wildcard": "a\\*b\\\\*"}]}"#, &[r#"{"source": "a*b\\c"}"#], &[r#"{"source": "aXb\\c"}"#]);
    check(r#"{"source": [{"wildcard": "plain"}]}"#, &[r#"{"source": "plain"}"#], &[r#"{"source": "plainer"}"#]);
}

#[test]
fn anything_but_needs_a_value() {
    check(
        r#"{"source": [{"anything-but": ["a", "b"]}]}"#,
        &[r#"{"source": "c"}"#, r#"{"source": ""}"#],
        &[r#"{"source": "a"}"#, r#"{"source": "b"}"#, "{}"],
    );
    check(
        r#"{"detail": {"x": [{"anything-but": 123}]}}"#,
        &[r#"{"detail": {"x": 124}}"#, r#"{"detail": {"x": "123"}}"#, r#"{"detail": {"x": null}}"#],
        &[r#"{"detail": {"x": 123.0}}"#, r#"{"detail": {}}"#, r#"{"detail": {"x": []}}"#],
    );
    // One leaf that is not excluded is enough, as for other tests.
    check(
        r#"{"resources": [{"anything-but": "a"}]}"#,
        &[r#"{"resources": ["a", "b"]}"#],
        &[r#"{"resources": ["a", "a"]}"#, r#"{"resources": []}"#],
    );
    check(
        r#"{"resources": [{"anything-but": {"prefix": ["a", "b"]}}]}"#,
        &[r#"{"resources": ["ax", "cx"]}"#],
        &[r#"{"resources": ["ax", "bx"]}"#],
    );
    check(
        r#"{"source": [{"anything-but": {"suffix": "x"}}]}"#,
        &[r#"{"source": "y"}"#],
        &[r#"{"source": "ax"}"#, "{}"],
    );
    check(
        r#"{"source": [{"anything-but": {"equals-ignore-case": ["Stopped", "Over"]}}]}"#,
        &[r#"{"source": "running"}"#],
        &[r#"{"source": "STOPPED"}"#, r#"{"source": "over"}"#],
    );
    check(
        r#"{"source": [{"anything-but": {"wildcard": "*/bin/*.jar"}}]}"#,
        &[r#"{"source": "/bin/a.class"}"#],
        &[r#"{"source": "/usr/bin/a.jar"}"#],
    );
}

#[test]
fn numbers_lie_in_ranges() {
    check(
        r#"{"count": [{"numeric": [">", 0, "<=", 5]}], "price": [{"numeric": ["<", 10]}]}"#,
        &[r#"{"count": 5, "price": -1}"#],
        &[
            r#"{"count": 0, "price": 9}"#,
            r#"{"count": 6, "price": 9}"#,
            r#"{"count": 1, "price": 10}"#,
            r#"{"count": 1}"#,
        ],
    );
    check(r#"{"price": [{"numeric": ["=", 3.018e2]}]}"#, &[r#"{"price": 301.8}"#], &[r#"{"price": 301.9}"#]);
    check(
        r#"{"detail": {"x": [{"numeric": [">", 1]}]}}"#,
        &[r#"{"detail": {"x": 2}}"#],
        &[r#"{"detail": {"x": "2"}}"#],
    );
    let beyond = r#"{"count": [{"numeric": [">", 9007199254740992]}]}"#;
    check(beyond, &[r#"{"count": 9007199254740993}"#], &[r#"{"count": 9007199254740992}"#]);
}

#[test]
fn addresses_lie_in_networks() {
    let pattern = r#"{"detail": {"source-ip": [{"cidr": "10.0.0.0/24"}, {"cidr": "2001:db8::/32"}]}}"#;
    check(
        pattern,
        &[r#"{"detail": {"source-ip": "10.0.0.255"}}"#, r#"{"detail": {"source-ip": "2001:db8:1::1"}}"#],
        &[r#"{"detail": {"source-ip": "10.0.1.0"}}"#, r#"{"detail": {"source-ip": "ten"}}"#],
    );
}

#[test]
fn leaves_are_tested_for_existence() {
    let there = [r#"{"detail": {"c": 1}}"#, r#"{"detail": {"c": null}}"#, r#"{"detail": {"c": [[2]]}}"#];
    let not = [r#"{"detail": {"c": {"c1": 100}}}"#, r#"{"detail": {"c": []}}"#, r#"{"detail": {}}"#, "{}"];
    check(r#"{"detail": {"c": [{"exists": true}]}}"#, &there, &not);
    check(r#"{"detail": {"c": [{"exists": false}]}}"#, &not, &there);
    check(r#"{"source": [{"exists": false}]}"#, &["{}", r#"{"source": null}"#], &[r#"{"source": ""}"#]);
    check(r#"{"source": [{"exists": false}, "a"]}"#, &["{}", r#"{"source": "a"}"#], &[r#"{"source": "b"}"#]);
}

#[test]
fn instants_are_instants() {
    check(
        r#"{"at": ["2026-03-01T12:00:00Z"]}"#,
        &[r#"{"at": "2026-03-01T13:00:00+01:00"}"#],
        &[r#"{"at": "2026-03-01T12:00:01Z"}"#, "{}"],
    );
    check(
        r#"{"urgent": [true], "at": [{"anything-but": "2026-03-01T12:00:00Z"}]}"#,
        &[r#"{"urgent": true, "at": 0}"#],
        &[r#"{"urgent": true}"#],
    );
}

#[test]
fn alternatives_join_fields() {
    let pattern = r#"{"source": ["aws"], "$or": [{"count": [1]}, {"price": [2], "$or": [{"urgent": [true]}, {"detail": {"x": [0]}}]}]}"#;
    check(
        pattern,
        &[
            r#"{"source": "aws", "count": 1}"#,
            r#"{"source": "aws", "price": 2, "urgent": true}"#,
            r#"{"source": "aws", "price": 2, "detail": {"x": 0}}"#,
        ],
        &[
            r#"{"source": "aws", "price": 2}"#,
            r#"{"source": "gcp", "count": 1}"#,
            r#"{"source": "aws", "urgent": true}"#,
        ],
    );
    check(
        r#"{"detail": {"$or": [{"x": [1]}, {"y": [2]}]}}"#,
        &[r#"{"detail": {"y": 2}}"#],
        &[r#"{"detail": {"x": 2, "y": 1}}"#],
    );
}

#[test]
fn fields_of_one_list_of_objects_meet_in_one_object() {
    let pattern = r#"{"detail": {"employees": {"first": ["Jane"], "last": ["Doe"]}}}"#;
    assert!(!compiled(pattern).is_exact());
    let event = |employees: &str| format!(r#"{{"detail": {{"employees": {employees}}}}}"#);
    let (one, two, deep) = (
        event(r#"[{"first": "Jane", "last": "Doe"}, {"first": "John", "last": "Roe"}]"#),
        event(r#"{"first": "Jane", "last": "Doe"}"#),
        event(r#"[[{"first": "John"}], [{"last": "Doe"}, {"first": ["Jane", "Joan"], "last": "Doe"}]]"#),
    );
    let (apart, deeper) = (
        event(r#"[{"first": "Jane", "last": "Roe"}, {"first": "John", "last": "Doe"}]"#),
        event(r#"[[{"first": "Jane"}, {"last": "Doe"}]]"#),
    );
    check(pattern, &[&one, &two, &deep], &[&apart, &deeper]);
    // An alternative above the list does not change this.
    let or = r#"{"detail": {"$or": [{"e": {"a": [1]}}, {"e": {"a": [2]}}], "e": {"b": [3]}}}"#;
    check(
        or,
        &[r#"{"detail": {"e": [{"a": 1}, {"a": 2, "b": 3}]}}"#],
        &[r#"{"detail": {"e": [{"a": 1}, {"a": 2}, {"b": 3}]}}"#],
    );
    let lists = r#"{"resources": {"a": [1], "b": {"c": [2], "d": [3]}}}"#;
    check(
        lists,
        &[r#"{"resources": [{"a": 0}, {"a": [0, 1], "b": [{"c": 2}, {"c": 2, "d": 3}]}]}"#],
        &[
            r#"{"resources": [{"a": 1, "b": [{"c": 2}, {"d": 3}]}]}"#,
            r#"{"resources": [{"a": 1}, {"b": {"c": 2, "d": 3}}]}"#,
        ],
    );
}

#[test]
fn a_search_is_bounded() {
    let many = vec!["1"; 300].join(",");
    let parts: Vec<String> = (0..8).map(|at| format!(r#""k{at}": [1]"#)).collect();
    let pattern = format!(r#"{{"detail": {{"e": {{{}, "z": [0]}}}}}}"#, parts.join(","));
    let keys: Vec<String> = (0..8).map(|at| format!(r#""k{at}": [{many}]"#)).collect();
    let row = row(&format!(r#"{{"detail": {{"e": [{{{}, "z": 1}}]}}}}"#, keys.join(",")));
    assert!(matches!(compiled(&pattern).holds(&row), Ok(false) | Err(EvalError::Cost)));
}

#[test]
fn equivalent_filters_are_equal() {
    let same = |left: &str, right: &str| assert_eq!(compiled(left).canonical(), compiled(right).canonical());
    same(r#"{"source": ["a", "b"], "count": [1]}"#, r#"{"count":[1.0],"source":["b","a","a"]}"#);
    same(r#"{"detail": {"e": {"b": [1], "a": [2]}}}"#, r#"{"detail":{"e":{"a":[2],"b":[1]}}}"#);
    let cel = crate::filter::compile(
        &tocsin_model::filter::Filter::new(Dialect::Cel, "event.count > 5 && event.source == 'a'"),
        &fields(),
    );
    let pattern = compiled(r#"{"source": ["a"], "count": [{"numeric": [">", 5]}]}"#);
    assert_eq!(cel.expect("a filter").canonical(), pattern.canonical(), "whatever the dialect");
}

#[test]
fn problems_have_a_position_and_a_hint() {
    rejected(r#"{"sorce": ["a"]}"#, expect!["1:2: the event class has no field `sorce`; did you mean `source`?"]);
    rejected(
        "{\n  \"source\": \"a\",\n  \"count\": [\"5\"]\n}",
        expect![[r#"
            2:13: values stand in a list; write ["a"]
            3:13: `count` is an integer, never text; write 5 without quotes"#]],
    );
    rejected(
        r#"{"source": [{"prefx": "a"}, {"prefix": 5}, {"prefix": ""}]}"#,
        expect![[r#"
        1:14: `prefx` is no test; did you mean `prefix`?
        1:40: `prefix` takes text, not a number
        1:55: `prefix` takes a text that is not empty"#]],
    );
    rejected(
        r#"{"count": [{"prefix": "a"}], "at": [{"numeric": [">", 5]}, "noon"], "price": [null]}"#,
        expect![[r#"
            1:13: `prefix` is a test of text, and `count` is an integer
            1:38: `numeric` is a test of numbers, and `at` is a timestamp; write the instant itself, or a filter in CEL for a range
            1:60: `noon` is not a date and time of RFC 3339, such as `2026-11-21T09:30:00Z`; write an instant such as 2026-03-01T12:00:00Z
            1:79: a field of the class that is null counts as missing, so `price` is never null; write {"exists": false}"#]],
    );
    rejected(
        r#"{"count": [{"numeric": [">", 5, "<", 5]}, {"numeric": [">"]}, {"numeric": ["=>", 5]}, {"numeric": [">", 1, ">", 2]}]}"#,
        expect![[r#"
            1:24: no number is in this range
            1:55: `numeric` takes a list of comparisons and numbers; write [">", 0, "<=", 5]
            1:76: a comparison should stand here; write "=", "<", "<=", ">" or ">="
            1:108: this end of the range is given twice"#]],
    );
    rejected(
        r#"{"source": [{"wildcard": "a**b"}, {"wildcard": "a\\b"}, {"cidr": "10.0.0.0/40"}, {"exists": "yes"}]}"#,
        expect![[r#"
            1:26: two `*` in a row say no more than one; write one; `\\*` is a star itself
            1:48: a backslash stands before `*` or another backslash only; write `\\*` for a star and `\\\\` for a backslash
            1:66: `40` is not a number of bits from 0 to 32; write a network such as 10.0.0.0/8
            1:93: `exists` takes true or false"#]],
    );
    rejected(
        r#"{"source": [], "detail": ["a"], "count": {"x": [1]}, "resources": {}}"#,
        expect![[r#"
            1:12: the list of values is empty, so nothing would fit; write at least one value
            1:26: `detail` holds an object, which is no value; name a field of it: {"field": ["value"]}
            1:42: `count` is an integer and has no fields; write a list of values
            1:67: the object is empty; name a field of it, or leave it out"#]],
    );
    rejected(
        r#"{"$or": [{"source": ["a"]}], "source": [["a"]]}"#,
        expect![[r#"
        1:9: `$or` takes a list of at least two objects; write "$or": [{"field": ["value"]}, {"other": ["value"]}]
        1:41: a list within the list of values would fit nothing"#]],
    );
    rejected(
        r#"{"source": [{"anything-but": []}, {"anything-but": [null]}, {"anything-but": {"numeric": [1]}}, {"anything-but": {"prefix": []}}]}"#,
        expect![[r#"
            1:30: the list is empty, so everything would fit; write {"exists": true}
            1:53: `anything-but` takes text and numbers, not null
            1:79: `anything-but` takes values, or one of prefix, suffix, equals-ignore-case, wildcard
            1:125: the list is empty, so everything would fit"#]],
    );
    rejected("{}", expect!["1:1: the pattern is empty; leave the filter out to receive every event"]);
    rejected("[]", expect![[r#"1:1: a pattern is an object, not a list; write {"field": ["value"]}"#]]);
}

#[test]
fn invalid_json_is_rejected_with_its_position() {
    rejected("", expect!["1:1: the pattern ends where a value should begin"]);
    rejected("{\"source\": ['a']}", expect!["1:13: text stands in double quotes"]);
    rejected("{\"source\": [\"a\"],}", expect!["1:18: a key in double quotes should stand here"]);
    rejected("{\"source\": [\"a\"", expect!["1:16: a comma or `]` should stand here"]);
    rejected("{\"source\": [\"a]}", expect!["1:13: the closing quote of this text is missing"]);
    rejected(
        "{\"source\": [\"\\x\"]}",
        expect!["1:13: this text has a line break or an escape that JSON does not have"],
    );
    rejected("{\"count\": [01]}", expect!["1:12: `01` is no number"]);
    rejected("{\"count\": [1e999]}", expect!["1:12: `1e999` is too large"]);
    rejected("{\"source\": [yes]}", expect!["1:13: `yes` is no JSON value; put text in double quotes"]);
    rejected("{\"source\": [\"a\"], \"source\": [\"b\"]}", expect!["1:19: the key `source` is given twice"]);
    rejected("{\"source\": [\"a\"]} {}", expect!["1:19: the pattern should end here"]);
    rejected(
        &format!("{{\"detail\": {}", "{\"x\": ".repeat(40)),
        expect!["1:204: the pattern is nested deeper than 32 levels"],
    );
    rejected(
        &format!("{{\"source\": [\"{}\"]}}", "x".repeat(PATTERN_BYTES_MAX)),
        expect!["the pattern has 65552 bytes, at most 65536 are allowed"],
    );
}

/// A value for a field of a random pattern.
fn random_test(random: &mut fastrand::Rng) -> String {
    let text = ["a", "b", "ab", "A"][random.usize(0..4)];
    match random.u8(0..12) {
        0..=3 => format!("{:?}", text),
        4 => random.u8(0..3).to_string(),
        5 => "null".to_owned(),
        6 => format!(r#"{{"prefix": "{text}"}}"#),
        7 => format!(r#"{{"anything-but": ["{text}", "b"]}}"#),
        8 => format!(r#"{{"anything-but": {{"prefix": ["{text}", "b"]}}}}"#),
        9 => format!(r#"{{"numeric": [">", {}]}}"#, random.u8(0..2)),
        10 => format!(r#"{{"exists": {}}}"#, random.bool()),
        _ => format!(r#"{{"equals-ignore-case": "{text}"}}"#),
    }
}

fn random_object(random: &mut fastrand::Rng, depth: u8) -> String {
    let mut entries = Vec::new();
    for key in ["x", "y", "$or"] {
        if random.bool() && !(entries.is_empty() && key == "$or" && depth > 3) {
            let value = match key {
                "$or" if depth > 0 => {
                    format!("[{}, {}]", random_object(random, depth - 1), random_object(random, depth - 1))
                }
                "$or" => continue,
                _ if depth > 0 && random.bool() => random_object(random, depth - 1),
                _ => format!("[{}, {}]", random_test(random), random_test(random)),
            };
            entries.push(format!("{key:?}: {value}"));
        }
    }
    if entries.is_empty() {
        entries.push(format!(r#""x": [{}]"#, random_test(random)));
    }
    format!("{{{}}}", entries.join(", "))
}

fn random_json(random: &mut fastrand::Rng, depth: u8) -> String {
    match random.u8(0..if depth == 0 { 4 } else { 9 }) {
        0 | 1 => format!("{:?}", ["a", "b", "ab", "A"][random.usize(0..4)]),
        2 => random.u8(0..3).to_string(),
        3 => "null".to_owned(),
        4..=6 => {
            let entry = |random: &mut fastrand::Rng, key: &str| format!("{key:?}: {}", random_json(random, depth - 1));
            match random.u8(0..3) {
                0 => format!("{{{}}}", entry(random, "x")),
                1 => format!("{{{}}}", entry(random, "y")),
                _ => format!("{{{}, {}}}", entry(random, "x"), entry(random, "y")),
            }
        }
        _ => {
            let items: Vec<String> = (0..random.usize(0..3)).map(|_| random_json(random, depth - 1)).collect();
            format!("[{}]", items.join(", "))
        }
    }
}

#[test]
fn conditions_agree_with_evaluation() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let seed = number("TOCSIN_SEED").unwrap_or_else(|| fastrand::u64(..));
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut matches, mut exact) = (0, 0);
    let cases = number("TOCSIN_CASES").unwrap_or(400);
    for _ in 0..cases {
        let field = ["detail", "resources"][random.usize(0..2)];
        let pattern = format!("{{{field:?}: {}}}", random_object(&mut random, 2));
        let filter = compiled(&pattern);
        exact += u32::from(filter.is_exact());
        for _ in 0..8 {
            let value = if field == "detail" {
                format!(r#"{{"x": {}, "y": {}}}"#, random_json(&mut random, 3), random_json(&mut random, 3))
            } else {
                format!("[{}, {}]", random_json(&mut random, 3), random_json(&mut random, 3))
            };
            let row = row(&format!("{{{field:?}: {value}}}"));
            let evaluated = filter.holds(&row).expect("the event is small");
            let holds = filter.condition().holds(&row);
            matches += u32::from(evaluated);
            let agrees = if filter.is_exact() { holds == evaluated } else { holds || !evaluated };
            assert!(agrees, "TOCSIN_SEED={seed}: {pattern} {value}: {evaluated}, by condition {holds}");
        }
    }
    assert!(cases < 400 || matches > 50 && exact > 50, "TOCSIN_SEED={seed}: {matches} matches, {exact} exact");
}
