//! Functions of an application.

use expect_test::expect;

use super::{check, environment};
use crate::definition::{difference, read};

#[test]
fn functions_of_its_own() {
    let text = "application: a
functions:
  urgent: { description: Wants a look, parameters: [text], expression: \"text.contains_ci('urgent')\" }
  seven: { expression: '7' }
";
    let application = read(text, &environment).expect("a definition");
    expect![[r#"
        {
          "seven": {
            "description": null,
            "parameters": [],
            "expression": "7"
          },
          "urgent": {
            "description": "Wants a look",
            "parameters": [
              "text"
            ],
            "expression": "text.contains_ci('urgent')"
          }
        }"#]]
    .assert_eq(&serde_json::to_string_pretty(&application.functions).expect("JSON"));
    check(
        "application: a
functions:
  a-b: { expression: '1' }
  null: { expression: '1' }
  f: { parameters: [x, x, in, 'a-b', '1', 2], expression: 3 }
  g: { parameters: x, expresion: '1' }
",
        expect![[r#"
            3:3: functions.a-b: would read as a subtraction in expressions; call it `a_b`
            4:3: functions.null: is a reserved word of expressions; choose another name
            5:24: functions.f.parameters[1]: `x` is given twice; each parameter has a name of its own
            5:27: functions.f.parameters[2]: `in` is a reserved word of expressions; choose another name
            5:31: functions.f.parameters[3]: `a-b` would read as a subtraction in expressions; call it `a_b`
            5:38: functions.f.parameters[4]: `1` is not a name; a name is a letter, then up to 63 letters, digits, `_` or `-`
            5:43: functions.f.parameters[5]: should be a name, not an integer; put it in quotes if it is meant to be text
            5:59: functions.f.expression: should be text, not an integer; put it in quotes if it is meant to be text
            6:6: functions.g.expression: is missing; give text
            6:20: functions.g.parameters: should be a list, not text
            6:23: functions.g.expresion: is not known here; did you mean `expression`?"#]],
    );
    let old = read(text, &environment).expect("a definition");
    let other = text.replace("[text]", "[text, words]").replace("'urgent'", "words").replace("seven", "eight");
    let new = read(&other, &environment).expect("a definition");
    let sentences: Vec<String> =
        difference(&old, &new).iter().map(|found| format!("{}: {}", found.path, found.sentence)).collect();
    expect![[r#"
        functions.eight: the function `eight` is added
        functions.seven: the function `seven` is removed; filters that call it no longer match
        functions.urgent.parameters: it takes `text`, `words` (was `text`)
        functions.urgent.expression: its expression changes"#]]
    .assert_eq(&sentences.join("\n"));
}
