//! No text of a language overflows the stack: each recursive production is repeated, on a stack smaller than that of
//! any thread of the server. The text is rejected with its limit, or it works.

use tocsin_matching::{check, filter, schema::Schema};
use tocsin_model::{
    field::{Field, FieldType, Fields},
    filter::{Dialect, Filter},
    ldap::LdapFilter,
    value::Value,
};

const REPEATS: [usize; 8] = [20, 60, 64, 100, 130, 250, 1_000, 10_000];

/// Less than the 1 MiB of a worker, although frames of a test build are several times as large as those of a release.
const STACK_BYTES: usize = 768 << 10;

fn on_a_small_stack<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
        thread.spawn_scoped(scope, work).expect("a thread").join().expect("no panic")
    })
}

fn fields() -> Fields {
    let field = |(name, kind): (&str, FieldType)| Field::new(name.parse().expect("a name"), kind);
    let kinds = [
        ("title", FieldType::String),
        ("count", FieldType::Integer),
        ("tags", FieldType::List),
        ("detail", FieldType::Map),
    ];
    Fields::new(kinds.map(field).into())
}

/// Text before, in the middle and after; the outer two are repeated.
type Production = (&'static str, &'static str, &'static str);

fn each(productions: &[Production], run: impl Fn(&str, &str)) {
    for (before, middle, after) in productions {
        for count in REPEATS {
            run(
                &format!("{}{middle}{}", before.repeat(count), after.repeat(count)),
                &format!("{count} of {before}{middle}{after}"),
            );
        }
    }
}

fn compile_and_evaluate(dialect: Dialect, text: &str) {
    let Ok(compiled) = filter::compile(&Filter::new(dialect, text), &fields()) else { return };
    let nested = (0..90).fold(Value::Null, |inner, _| Value::Map([("a".into(), Value::List([inner].into()))].into()));
    let event = [
        Value::from("x"),
        Value::Integer(1),
        Value::List([nested.clone()].into()),
        Value::Map([("a".into(), nested)].into()),
    ];
    let _ = compiled.holds(&event);
    let mut index = filter::index::FilterIndex::new();
    index.insert(0, &compiled);
    index.matching(&event, &mut filter::index::FilterScratch::new(), &mut Vec::new());
}

#[test]
fn a14_no_expression_in_cel_overflows_the_stack() {
    let productions: Vec<Production> = vec![
        ("", "event.count == 1", " + 1"),
        ("", "1", " + 1 == 2"),
        ("", "1", " - 1"),
        ("", "1", " * 1"),
        ("", "1", " / 1"),
        ("", "1", " % 1"),
        ("", "true", " && true"),
        ("", "true", " || true"),
        ("", "true", " && true || true"),
        ("", "true", " == true"),
        ("", "1", " < 1"),
        ("", "1", " in [1]"),
        ("!", "true", ""),
        ("!(", "true", ")"),
        ("-", "1", ""),
        ("-(", "1", ")"),
        ("(", "true", ")"),
        ("(", "1", " + 1)"),
        ("(true && ", "true", ")"),
        ("(true || (false && ", "true", "))"),
        ("", "event.detail", ".a"),
        ("", "event.detail", "['a']"),
        ("", "event.tags", "[0]"),
        ("", "event.detail", ".?a"),
        ("", "event.tags", "[?0]"),
        ("", "true", " ? true : false"),
        ("true ? true : ", "true", ""),
        ("true ? ", "true", " : true"),
        ("(true ? ", "true", " : true)"),
        ("[", "1", "]"),
        ("{'a': ", "1", "}"),
        ("{", "1", ": 1}"),
        ("size(", "'a'", ")"),
        ("string(", "1", ")"),
        ("has(", "event.title", ")"),
        ("", "event.title", ".trim()"),
        ("", "event.title", ".replace('a', 'b')"),
        ("[1].all(x, ", "true", ")"),
        ("[1].map(x, ", "x", ")"),
        ("[1].filter(x, ", "true", ")"),
        ("", "[1]", ".map(x, x)"),
        ("event.tags[", "0", "]"),
        ("event.title.matches(", "'a'", ")"),
        ("cel.bind(x, ", "1", ", x)"),
        ("cel.bind(x, 1, ", "x", ")"),
        ("optional.of(", "1", ")"),
        ("[?", "1", "]"),
        ("'", "a", "'"),
        ("//", "1", "\n"),
    ];
    on_a_small_stack(|| {
        each(&productions, |text, _| {
            let _ = check::compile(text, &check::Scope::default());
            compile_and_evaluate(Dialect::Cel, text);
            compile_and_evaluate(Dialect::Cel, &format!("({text}) == ({text})"));
        });
    });
}

#[test]
fn a14_no_expression_in_jmespath_overflows_the_stack() {
    let productions: Vec<Production> = vec![
        ("", "detail", ".a"),
        ("", "tags", "[0]"),
        ("", "tags", "[]"),
        ("", "tags", "[*]"),
        ("", "tags", "[0:1]"),
        ("", "detail", ".*"),
        ("!", "title", ""),
        ("!(", "title", ")"),
        ("(", "title", ")"),
        ("", "title", " | title"),
        ("", "title", " && title"),
        ("", "title", " || title"),
        ("", "title", " == title"),
        ("[", "title", "]"),
        ("{a: ", "title", "}"),
        ("", "tags", "[?a]"),
        ("tags[?", "a", "]"),
        ("length(", "title", ")"),
        ("not_null(", "title", ")"),
        ("sort_by(tags, &", "a", ")"),
        ("map(&", "a", ", tags)"),
        ("&", "a", ""),
        ("", "@", ".a"),
        ("`[", "1", "]`"),
        ("(title && ", "title", ")"),
        ("", "detail", ".[a]"),
        ("", "detail", ".{a: a}"),
    ];
    on_a_small_stack(|| each(&productions, |text, _| compile_and_evaluate(Dialect::Jmespath, text)));
}

#[test]
fn a14_no_event_pattern_overflows_the_stack() {
    let productions: Vec<Production> = vec![
        ("{\"detail\": ", "[1]", "}"),
        ("{\"a\": ", "[1]", "}"),
        ("[", "1", "]"),
        ("{\"$or\": [", "{\"title\": [\"a\"]}", "]}"),
        ("{\"title\": [{\"anything-but\": ", "\"a\"", "}]}"),
        ("{\"title\": [{\"anything-but\": {\"prefix\": ", "\"a\"", "}}]}"),
        ("{\"anything-but\": ", "1", "}"),
        ("{\"", "a", "\": [1]}"),
    ];
    on_a_small_stack(|| {
        each(&productions, |text, _| compile_and_evaluate(Dialect::EventPattern, text));
        each(&productions, |text, _| compile_and_evaluate(Dialect::EventPattern, &format!("{{\"detail\": {text}}}")));
        each(&[("{\"anything-but\": ", "[1]", "}")], |text, _| {
            compile_and_evaluate(Dialect::EventPattern, &format!("{{\"title\": [{text}]}}"))
        });
    });
}

#[test]
fn a14_no_ldap_filter_overflows_the_stack() {
    let productions: Vec<Production> = vec![
        ("(!", "(a=b)", ")"),
        ("(&", "(a=b)", ")"),
        ("(|", "(a=b)", ")"),
        ("(&(a=b)", "(a=b)", ")"),
        ("(", "a=b", ")"),
        ("(a=*", "b", "*)"),
        ("", "(a=b)", "(a=b)"),
        ("(!", "", ""),
    ];
    on_a_small_stack(|| {
        each(&productions, |text, _| {
            let _ = LdapFilter::parse(text);
        });
    });
}

#[test]
fn a14_no_regular_expression_overflows_the_stack() {
    let productions: Vec<Production> = vec![
        ("(", "a", ")"),
        ("(?:", "a", ")*"),
        ("", "a", "*"),
        ("", "a", "|a"),
        ("[", "a", "]"),
        ("(?i:", "a", ")"),
        ("", "a", "{2}"),
        ("((", "a", ")+)+"),
        ("[^", "a", "]"),
        ("[a&&", "a", "]"),
    ];
    on_a_small_stack(|| {
        each(&productions, |text, _| {
            compile_and_evaluate(Dialect::Cel, &format!("event.title.matches(r'{text}')"));
            compile_and_evaluate(
                Dialect::EventPattern,
                &format!("{{\"title\": [{{\"wildcard\": \"{}\"}}]}}", text.replace('\\', "")),
            );
        });
    });
}

#[test]
fn a14_no_json_schema_overflows_the_stack() {
    let productions: Vec<Production> = vec![
        ("{\"properties\": {\"a\": ", "{}", "}}"),
        ("{\"items\": ", "{}", "}"),
        ("{\"allOf\": [", "{}", "]}"),
        ("{\"anyOf\": [", "{}", "]}"),
        ("{\"oneOf\": [{}, ", "{}", "]}"),
        ("{\"not\": ", "{}", "}"),
        ("{\"if\": ", "{}", "}"),
        ("{\"$defs\": {\"a\": ", "{}", "}}"),
        ("{\"patternProperties\": {\"a\": ", "{}", "}}"),
        ("{\"dependentSchemas\": {\"a\": ", "{}", "}}"),
        ("{\"contains\": ", "{}", "}"),
        ("{\"unevaluatedProperties\": ", "{}", "}"),
    ];
    let documents = ["1", "{\"a\": {\"a\": [[1]]}}"].map(|text| serde_json::from_str(text).expect("JSON"));
    let deep = (0..100).fold(serde_json::json!(1), |inner, _| serde_json::json!({"a": [inner]}));
    on_a_small_stack(|| {
        each(&productions, |text, _| {
            // Deeper texts cannot be parsed as JSON.
            let Ok(schema) = serde_json::from_str(text) else { return };
            if let Ok(schema) = Schema::compile(&schema) {
                documents.iter().chain([&deep]).for_each(|document| drop(schema.check(document)));
            }
        });
        let text = r##"{"properties": {"a": {"items": {"allOf": [{"$ref": "#"}]}}}}"##;
        let schema = Schema::compile(&serde_json::from_str(text).expect("JSON")).expect("a schema");
        assert_eq!(schema.check(&deep), Ok(()));
        let references: Vec<String> = (0..4_000)
            .map(|at| format!(r##""a{at}": {{"properties": {{"a": {{"$ref": "#/$defs/a{}"}}}}}}"##, at + 1))
            .collect();
        let chain = format!(r##"{{"$ref": "#/$defs/a0", "$defs": {{{}, "a4000": {{}}}}}}"##, references.join(","));
        if let Ok(schema) = Schema::compile(&serde_json::from_str(&chain).expect("JSON")) {
            drop(schema.check(&deep));
        }
    });
}
