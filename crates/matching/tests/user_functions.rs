//! User-defined functions: rejected definitions, and calls in CEL.

use tocsin_matching::{
    check::{Scope, compile},
    evaluate::evaluate,
    filter,
    user_functions::{UserFunctions, compile_functions},
};
use tocsin_model::{
    application::Function,
    field::{Field, FieldType, Fields},
    filter::{Dialect, Filter},
    problem::Problem,
    value::Value,
};

fn functions(given: &[(&str, &[&str], &str)]) -> Result<UserFunctions, Vec<Problem>> {
    let function = |(name, parameters, expression): &(&str, &[&str], &str)| {
        let parameters = parameters.iter().map(|name| name.parse().expect("a name")).collect();
        (
            name.parse().expect("a name"),
            Function { description: None, parameters, expression: (*expression).to_owned() },
        )
    };
    compile_functions(&given.iter().map(function).collect())
}

fn class() -> Fields {
    let field = |name: &str, kind| Field::new(name.parse().expect("a name"), kind);
    Fields::new(vec![
        field("title", FieldType::String),
        field("depth", FieldType::Number),
        field("tags", FieldType::List),
    ])
}

#[test]
fn a_function_can_read_only_its_parameters() {
    let check = |name: &str, parameters: &[&str], expression: &str, expected: &str| {
        let problems = functions(&[(name, parameters, expression), ("other", &[], "1")]).expect_err(expression);
        let found: Vec<String> = problems.iter().map(ToString::to_string).collect();
        assert_eq!(found.join(" | "), expected, "{name} {expression}");
    };
    let at = "functions.f.expression";
    check("f", &["x"], "x +", &format!("1:4: {at}: a value is expected here, not the end"));
    check("f", &["x"], "y == 1", &format!("1:1: {at}: `y` is not known here; its parameters are x"));
    check(
        "f",
        &["x"],
        "event.a == x",
        &format!("1:1: {at}: a function can read only its parameters; its parameters are x"),
    );
    check(
        "f",
        &[],
        "sub.a == 1",
        &format!(
            "1:1: {at}: a function can read only its parameters; it has no parameters; give them as `parameters: [...]`"
        ),
    );
    check("f", &["x"], "sizze(x)", &format!("1:1: {at}: there is no function `sizze`; did you mean `size`?"));
    let sibling_call = "is a function of the application too, which a function cannot call; write out what it computes";
    check("f", &["x"], "other() + x", &format!("1:1: {at}: `other` {sibling_call}"));
    check("f", &["x"], "f(x)", &format!("1:1: {at}: `f` {sibling_call}"));
    check("size", &["x"], "x", "functions.size: there is a function `size` already; choose another name");
    check("max_by", &["x"], "x", "functions.max_by: there is a function `max_by` already; choose another name");
    check("has", &["x"], "x", "functions.has: there is a function `has` already; choose another name");
    check("while", &["x"], "x", "functions.while: `while` cannot be called; choose another name");
    check("f", &["event"], "event.x", "functions.f.parameters[0]: `event` has another meaning; choose another name");
    check("f", &["true"], "1", "functions.f.parameters[0]: `true` has another meaning; choose another name");
}

#[test]
fn cel_expressions_call_user_functions() {
    let functions = functions(&[
        ("urgent", &["text"], "text.contains_ci('urgent') || text.contains_ci('asap')"),
        ("between", &["value", "low", "high"], "low <= value && value <= high"),
        ("doubled", &["list"], "list.map(item, item + item)"),
        ("seven", &[], "7"),
    ])
    .expect("functions");
    let scope = Scope { event: class(), functions, ..Scope::default() };
    let event = [Value::from("Urgent: read"), Value::from(2.5), Value::List([Value::from(1), Value::from(2)].into())];
    let run = |source: &str| {
        let expression = compile(source, &scope).unwrap_or_else(|problems| panic!("{source}: {problems:?}"));
        evaluate(&expression, &event, &[])
    };
    for source in [
        "urgent(event.title)",
        "event.title.urgent()",
        "event.tags.exists(tag, between(tag, 2, seven()))",
        "event.tags.all(item, doubled([item, item]) == [item + item, 2 * item])",
        "between(event.depth, event.tags[0], 3) && !urgent('later')",
        "cel.bind(list, [1], doubled(list)) == [2]",
    ] {
        assert_eq!(run(source), Ok(Value::Boolean(true)), "{source}");
    }
    let check = |source: &str, expected: &str| {
        let problems = compile(source, &scope).expect_err(source);
        assert_eq!(problems[0].to_string(), expected);
    };
    check("urgnt(event.title)", "1:1: there is no function `urgnt`; did you mean `urgent`?");
    check("between(1)", "1:1: `between` does not take 1 arguments; write `between(value, low, high)`");
    check("urgent(event.titel)", "1:8: the event class has no field `titel`; did you mean `title`?");
    // Nested calls too: time and stack depend on their texts.
    let nested = format!("{}[1]{}", "doubled(".repeat(40), ")".repeat(40));
    assert!(run(&nested).is_ok());
}

#[test]
fn a_cel_filter_with_a_call_equals_the_expanded_filter() {
    let functions = functions(&[
        ("urgent", &["text"], "text.contains_ci('urgent') || text.contains_ci('asap')"),
        ("at_most", &["value", "most"], "value <= most"),
    ])
    .expect("functions");
    let compiled = |dialect: Dialect, text: &str| {
        filter::compile_with(&Filter::new(dialect, text), &class(), &functions).expect("a filter")
    };
    let short = compiled(Dialect::Cel, "urgent(event.title) && at_most(event.depth, 10.0)");
    let long = "(contains_ci(event.title, 'asap') || contains_ci(event.title, 'urgent')) && event.depth <= 10.0";
    assert!(short.is_exact());
    assert_eq!(short.canonical(), compiled(Dialect::Cel, long).canonical());
    let negated = compiled(Dialect::Cel, "!urgent(event.title)");
    assert!(negated.is_exact());
    for title in [Value::Null, Value::from("ASAP"), Value::from("later")] {
        let event = [title, Value::Null, Value::Null];
        assert_eq!(negated.holds(&event), Ok(negated.condition().holds(&event)), "{event:?}");
    }
}
