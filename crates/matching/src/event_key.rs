//! Correlation keys: expressions over an event alone, by which an event cancels delayed notifications.

use tocsin_model::{
    application::{Application, CancelKey},
    field::Fields,
    id::Name,
    problem::{Code, Problem},
    value::Value,
};

use crate::{
    check::{compile, scope::Scope},
    digest::digest,
    evaluate::evaluate,
    expression::{Expression, Type},
    user_functions::compile_functions,
};

/// Longest text of a key; of a longer one, the first half of this and a digest are used.
const KEY_BYTES_MAX: usize = 200;

/// A compiled correlation key.
#[derive(Debug, Clone)]
pub struct EventKey(Expression);

/// Correlation keys of a delayed rule.
#[derive(Debug, Clone, Default)]
pub struct DelayKeys {
    /// Key of the starting event.
    pub key: Option<EventKey>,
    /// Key of each cancelling event class. `None`: it cancels by subscription.
    pub cancel_on: Vec<(Name, Option<EventKey>)>,
}

impl EventKey {
    fn compile(source: &str, scope: &Scope) -> Result<EventKey, Vec<Problem>> {
        let expression = compile(source, scope)?;
        match expression.kind_of_value {
            Type::Boolean | Type::Integer | Type::Number | Type::Text | Type::Timestamp | Type::Dynamic => {
                Ok(EventKey(expression))
            }
            ref other => {
                let message = format!("the expression gives {other}, which cannot be compared as a key");
                let problem = expression.span.problem(Code::TypeMismatch, source, message);
                Err(vec![problem.hint("name a field of `event` with a text or number, such as `event.order`")])
            }
        }
    }

    /// The key of an event, a row of its class; `None` if it has no value. Equal values have equal texts, also an
    /// integer and a number.
    pub fn of(&self, row: &[Value]) -> Option<Box<str>> {
        let value = match evaluate(&self.0, row, &[]).ok()? {
            Value::Null => return None,
            Value::Number(number) if number.fract() == 0.0 && number.abs() < 9e15 => Value::Integer(number as i64),
            value => value,
        };
        let text = serde_json::to_string(&value).ok()?;
        if text.len() <= KEY_BYTES_MAX {
            return Some(text.into());
        }
        let head = &text[..text.floor_char_boundary(KEY_BYTES_MAX / 2)];
        Some(format!("{head}#{:016x}", digest(text.as_bytes())).into())
    }
}

impl DelayKeys {
    /// Compiles the keys of a rule; empty for a rule without delay.
    ///
    /// # Errors
    /// Every problem, with its path.
    pub fn compile(application: &Application, name: &Name) -> Result<DelayKeys, Vec<Problem>> {
        let rule = &application.rules[name];
        let Some(delay) = &rule.delay else { return Ok(DelayKeys::default()) };
        let functions = compile_functions(&application.functions)?;
        let mut problems = Vec::new();
        let mut compile = |source: &str, class: &Name, key: &str| {
            let event = application.events.get(class).map_or_else(Fields::default, |class| class.fields.clone());
            let scope = Scope { event, functions: functions.clone(), ..Scope::default() };
            let placed = |problem| Problem { path: format!("rules.{name}.{key}"), ..problem };
            EventKey::compile(source, &scope).map_err(|found| problems.extend(found.into_iter().map(placed))).ok()
        };
        let key = delay.key.as_deref().and_then(|source| compile(source, &rule.on, "key"));
        let mut cancel_on = Vec::with_capacity(delay.cancel_on.len());
        for (class, correlation) in &delay.cancel_on {
            let key = match correlation {
                CancelKey::Subscription => None,
                CancelKey::Expression(source) => compile(source, class, "cancel_on"),
            };
            cancel_on.push((class.clone(), key));
        }
        if problems.is_empty() { Ok(DelayKeys { key, cancel_on }) } else { Err(problems) }
    }
}

#[cfg(test)]
mod tests {
    use tocsin_model::definition;

    use super::*;

    fn definition(delay: &str) -> Application {
        let text = format!(
            r#"
            application: shop
            events:
              placed: {{ fields: {{ order: integer, note: string, tags: list }} }}
              paid: {{ fields: {{ id: number }} }}
            subscriptions: {{ orders: {{}} }}
            notifications: {{ unpaid: {{ content: {{ templates: {{ base: {{ text: x }} }} }} }} }}
            rules: {{ reminder: {{ on: placed, subscription: orders, notify: unpaid, {delay} }} }}
            channels: {{ log: {{ protocol: file, options: {{ path: log }} }} }}
            "#
        );
        definition::read(&text, &|_| None).expect("a definition")
    }

    #[test]
    fn equal_values_of_two_classes_have_equal_keys() {
        let application = definition("after: 2h, key: event.order, cancel_on: { paid: event.id }");
        let keys = DelayKeys::compile(&application, &"reminder".parse().expect("a name")).expect("keys");
        let of = |key: &Option<EventKey>, row: &[Value]| key.as_ref().and_then(|key| key.of(row));
        let started = of(&keys.key, &[Value::Integer(7), Value::Null, Value::Null]);
        assert_eq!(started.as_deref(), Some("7"));
        let (class, paid) = &keys.cancel_on[0];
        assert_eq!(class.as_str(), "paid");
        assert_eq!(of(paid, &[Value::Number(7.0)]), started);
        assert_ne!(of(paid, &[Value::Number(7.5)]), started);
        assert_eq!(of(paid, &[Value::Null]), None);
    }

    #[test]
    fn a_long_key_is_a_digest_and_a_list_is_refused() {
        let application = definition("after: 2h, key: event.note, cancel_on: { paid: 'string(event.id)' }");
        let keys = DelayKeys::compile(&application, &"reminder".parse().expect("a name")).expect("keys");
        let long = |last: char| {
            let note = format!("{}{last}", "x".repeat(1_000));
            keys.key.as_ref().and_then(|key| key.of(&[Value::Null, Value::from(&*note), Value::Null])).expect("a key")
        };
        assert!(long('a').len() < KEY_BYTES_MAX, "{}", long('a'));
        assert_ne!(long('a'), long('b'));
        let application = definition("after: 2h, key: event.tags, cancel_on: { paid: event.id }");
        let problems = DelayKeys::compile(&application, &"reminder".parse().expect("a name")).expect_err("a list");
        assert_eq!(problems[0].path, "rules.reminder.key");
    }
}
