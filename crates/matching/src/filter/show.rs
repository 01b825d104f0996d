//! Conditions as text, to explain why a filter did not match.

use std::fmt::Write as _;

use tocsin_model::{field::Fields, value::Value};

use crate::{
    chronicle_names::column_path,
    filter::condition::{Case, Condition, Limit, Path, Range, Reach, ValueTest},
};

/// Most values of a set that are written out.
const VALUES_MAX: usize = 5;

/// A condition as text, with the names of the fields: `symbol == "ABC" and price > 10`.
pub fn show(condition: &Condition, fields: &Fields) -> String {
    match condition {
        Condition::All(parts) => join(parts, " and ", fields),
        Condition::Any(parts) if parts.is_empty() => "never".to_owned(),
        Condition::Any(parts) => join(parts, " or ", fields),
        Condition::Test(test) => {
            format!("{}{}", place(&test.path, fields), value_test(&test.value_test, test.path.reach))
        }
        Condition::Always => "always".to_owned(),
        Condition::Unknown => "a condition that only evaluating the filter decides".to_owned(),
    }
}

fn join(parts: &[Condition], word: &str, fields: &Fields) -> String {
    let part = |part: &Condition| match part {
        Condition::All(_) | Condition::Any(_) => format!("({})", show(part, fields)),
        part => show(part, fields),
    };
    parts.iter().map(part).collect::<Vec<String>>().join(word)
}

fn place(path: &Path, fields: &Fields) -> String {
    let mut text = match path.reach {
        Reach::One => String::new(),
        Reach::Items | Reach::Leaves => "one of ".to_owned(),
    };
    let name = fields.iter().nth(path.field).map_or("?", |field| field.name.as_str());
    text.push_str(&column_path(name).unwrap_or_else(|| name.to_owned()));
    for key in &path.keys {
        // Writing to a string cannot fail.
        let _ = write!(text, ".{key}");
    }
    text
}

fn value_test(value_test: &ValueTest, reach: Reach) -> String {
    match value_test {
        ValueTest::In(values) => match values.as_slice() {
            [only] => format!(" == {}", literal(only)),
            values => format!(" in {}", set(values)),
        },
        ValueTest::Range(range) => limits(range),
        ValueTest::Prefix(text, case) => format!(" starts with {text:?}{}", folded(*case)),
        ValueTest::Suffix(text, case) => format!(" ends with {text:?}{}", folded(*case)),
        ValueTest::Contains(text, case) => format!(" contains {text:?}{}", folded(*case)),
        ValueTest::Folded(text) => format!(" == {text:?}{}", folded(Case::Folded)),
        ValueTest::Wildcard(wildcard) => format!(" is like {:?}", wildcard.parts().join("*")),
        ValueTest::Matches(regex) => format!(" matches {:?}", regex.as_str()),
        ValueTest::Cidr(network) => format!(" is an address in {network}"),
        ValueTest::Exists => match reach {
            Reach::One => " has a value".to_owned(),
            Reach::Items | Reach::Leaves => " is there".to_owned(),
        },
        ValueTest::Missing => " has no value".to_owned(),
        ValueTest::But(inner) => match &**inner {
            ValueTest::In(values) => match values.as_slice() {
                [only] => format!(" != {}", literal(only)),
                values => format!(" not in {}", set(values)),
            },
            inner => format!(" is present and it is not the case that it{}", self::value_test(inner, reach)),
        },
    }
}

fn folded(case: Case) -> &'static str {
    match case {
        Case::Sensitive => "",
        Case::Folded => " in any case",
    }
}

fn limits(range: &Range) -> String {
    let end = |limit: &Limit, sign: &str| {
        format!(" {sign}{} {}", if limit.inclusive { "=" } else { "" }, literal(&limit.value))
    };
    match (&range.low, &range.high) {
        (Some(low), Some(high)) => format!("{} and{}", end(low, ">"), end(high, "<")),
        (Some(low), None) => end(low, ">"),
        (None, Some(high)) => end(high, "<"),
        (None, None) => " is of any size".to_owned(),
    }
}

fn set(values: &[Value]) -> String {
    let shown: Vec<String> = values.iter().take(VALUES_MAX).map(literal).collect();
    match values.len().checked_sub(VALUES_MAX).filter(|more| *more > 0) {
        Some(more) => format!("[{}, and {more} more]", shown.join(", ")),
        None => format!("[{}]", shown.join(", ")),
    }
}

fn literal(value: &Value) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use tocsin_model::field::{Field, FieldType};

    use super::*;
    use crate::filter::compile;
    use tocsin_model::filter::{Dialect, Filter};

    #[test]
    fn conditions_are_written_as_text() {
        let field = |(name, kind): (&str, FieldType)| Field::new(name.parse().expect("a name"), kind);
        let fields = [("symbol", FieldType::String), ("price", FieldType::Number), ("tags", FieldType::List)];
        let fields = Fields::new(fields.into_iter().map(field).collect());
        let shown = |text: &str| {
            let filter = compile(&Filter::new(Dialect::Cel, text), &fields).expect("a filter");
            show(filter.condition(), &fields)
        };
        assert_eq!(shown("event.symbol == 'A' && event.price > 10.5"), r#"symbol == "A" and price > 10.5"#);
        assert_eq!(
            shown("event.symbol in ['B', 'A'] || has(event.price)"),
            r#"symbol in ["A", "B"] or price has a value"#
        );
        assert_eq!(shown("event.symbol.contains_ci('Ab')"), r#"symbol contains "ab" in any case"#);
        assert_eq!(shown("'x' in event.tags && event.symbol != 'A'"), r#"symbol != "A" and one of tags == "x""#);
        assert_eq!(shown("event.price >= 1 && event.price < 2"), "price >= 1 and < 2");
        assert_eq!(shown("event.price * 2 > 3"), "a condition that only evaluating the filter decides");
    }
}
