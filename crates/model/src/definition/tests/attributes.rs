//! Attributes of subscribers in rules, with their types.

use expect_test::expect;

use super::{check, environment};
use crate::definition::{difference, read};

const TEXT: &str = "application: a
attributes:
  region: string
  age: { type: integer, default: 18, description: in years }
";

#[test]
fn attributes_are_declared_with_their_types() {
    let application = read(TEXT, &environment).expect("a definition");
    expect![[r#"
        [
          {
            "name": "region",
            "type": "string",
            "required": false,
            "default": null
          },
          {
            "name": "age",
            "type": "integer",
            "required": false,
            "default": 18,
            "description": "in years"
          }
        ]"#]]
    .assert_eq(&serde_json::to_string_pretty(&application.attributes).expect("JSON"));
    check(
        "application: a
attributes:
  a-b: string
  null: string
  c: text
  d: { type: integer, required: true, default: x }
  e: {}
",
        expect![[r#"
            3:3: attributes.a-b: would read as a subtraction in expressions; call it `a_b`
            4:3: attributes.null: is a reserved word of expressions; choose another name
            5:6: attributes.c: `text` is not known here; give `boolean`, `integer`, `number`, `string`, `timestamp`, `list` or `map`
            6:23: attributes.d.required: is not known here; here you can give `type`, `default` or `description`
            6:48: attributes.d.default: should be an integer, not a string
            7:6: attributes.e.type: is missing; give `boolean`, `integer`, `number`, `string`, `timestamp`, `list` or `map`"#]],
    );
}

#[test]
fn a_difference_lists_changes_of_attributes() {
    let old = read(TEXT, &environment).expect("a definition");
    let other = TEXT.replace("default: 18", "default: 21").replace("region: string", "tier: string");
    let new = read(&other, &environment).expect("a definition");
    let sentences: Vec<String> = difference(&old, &new)
        .iter()
        .map(|found| {
            format!("{}: {}{}", found.path, found.sentence, if found.drops.is_some() { " (drops)" } else { "" })
        })
        .collect();
    expect![[r#"
        attributes.region: the attribute `region` is removed
        attributes.age: the attribute `age` has the default 21 (was 18)
        attributes.tier: the attribute `tier` is added"#]]
    .assert_eq(&sentences.join("\n"));
}
