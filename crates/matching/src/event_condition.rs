//! Conditions over stored events: CEL over the fields of an event alone, for searches.

use tocsin_model::{
    application::Application,
    field::{Damaged, Fields, Row, unpack_row},
    filter::{Dialect, Filter},
    id::Name,
    problem::{Code, Problem},
};

use crate::{
    eval_value::EvalError,
    filter::{CompiledFilter, compile_with},
    rows::Layout,
    user_functions::compile_functions,
};

/// Most bytes of a condition's text.
pub const CONDITION_BYTES_MAX: usize = 4_096;

/// A compiled condition over events of one class.
#[derive(Debug, Clone)]
pub struct EventCondition {
    fields: Fields,
    filter: Option<CompiledFilter>,
}

impl EventCondition {
    /// Compiles a condition for a class of an application, with its functions; without a text, all events satisfy it.
    ///
    /// # Errors
    /// Every problem found, at the path `where`, with line and column in the text.
    pub fn compile(application: &Application, class: &Name, text: Option<&str>) -> Result<Self, Vec<Problem>> {
        let fields = application.events.get(class).map_or_else(Fields::default, |class| class.fields.clone());
        let Some(text) = text else { return Ok(EventCondition { fields, filter: None }) };
        if text.len() > CONDITION_BYTES_MAX {
            let message = format!("has more than {CONDITION_BYTES_MAX} bytes");
            let problem = Problem::new(Code::TooLong, "where", message);
            return Err(vec![problem.param("limit", CONDITION_BYTES_MAX).param("unit", "bytes")]);
        }
        let functions = compile_functions(&application.functions)?;
        let placed = |problem| Problem { path: "where".to_owned(), ..problem };
        let filter = compile_with(&Filter::new(Dialect::Cel, text), &fields, &functions)
            .map_err(|problems| problems.into_iter().map(placed).collect::<Vec<_>>())?;
        Ok(EventCondition { fields, filter: Some(filter) })
    }

    /// The fields of the class, in the order of rows.
    pub fn fields(&self) -> &Fields {
        &self.fields
    }

    /// Reader of events that were packed with these fields. Fields are mapped by name; missing ones are null.
    pub fn reader(&self, packed_with: &Fields) -> EventConditionReader<'_> {
        EventConditionReader {
            condition: self,
            layout: Layout::between(packed_with, &self.fields),
            packed_with: packed_with.clone(),
        }
    }
}

/// Reads events of one version of the class.
pub struct EventConditionReader<'c> {
    condition: &'c EventCondition,
    layout: Layout,
    packed_with: Fields,
}

impl EventConditionReader<'_> {
    /// An event as a row of the condition's class; `None`: it does not satisfy the condition, or has an error.
    ///
    /// # Errors
    /// The event is damaged.
    pub fn read(&self, packed: &[u8]) -> Result<Result<Option<Row>, EvalError>, Damaged> {
        let row = self.layout.apply(unpack_row(&self.packed_with, packed)?);
        Ok(match &self.condition.filter {
            None => Ok(Some(row)),
            Some(filter) => filter.holds(&row).map(|holds| holds.then_some(row)),
        })
    }
}

#[cfg(test)]
mod tests {
    use tocsin_model::{definition, event::EventPacker, value::Value};

    use super::*;

    fn application(fields: &str) -> Application {
        let text = format!(
            "application: shop\nevents:\n  placed: {{ fields: {{ {fields} }} }}\n\
             functions: {{ dear: {{ parameters: [price], expression: price > 100 }} }}\n"
        );
        definition::read(&text, &|_| None).expect("a definition")
    }

    fn class() -> Name {
        "placed".parse().expect("a name")
    }

    fn packed(fields: &Fields, row: &[Value]) -> Vec<u8> {
        let mut packer = EventPacker::new(fields.clone());
        packer.push(row);
        packer.finish().rows().next().expect("a row").expect("intact").to_vec()
    }

    #[test]
    fn events_of_an_earlier_version_are_read_by_name() {
        let before = application("price: integer, old: string").events[&class()].fields.clone();
        let now = application("place: string, price: integer");
        let event = packed(&before, &[Value::Integer(120), Value::from("x")]);
        let check = |text: &str, expected: bool| {
            let condition = EventCondition::compile(&now, &class(), Some(text)).expect("a condition");
            let found = condition.reader(&before).read(&event).expect("intact").expect("within the limit");
            assert_eq!(found.is_some(), expected, "{text}");
        };
        check("dear(event.price)", true);
        check("event.place == null && event.price == 120", true);
        check("event.place == 'x'", false);
        check("event.place.size() > 0", false);
    }

    #[test]
    fn a_wrong_condition_has_a_path_and_a_position() {
        let application = application("price: integer");
        let problems = EventCondition::compile(&application, &class(), Some("event.prize > 1")).expect_err("wrong");
        assert_eq!((problems[0].path.as_str(), problems[0].line), ("where", Some(1)), "{problems:?}");
        let long = format!("event.price == 1{}", " || event.price == 1".repeat(300));
        let problems = EventCondition::compile(&application, &class(), Some(&long)).expect_err("too long");
        assert_eq!(problems[0].code, Code::TooLong);
    }

    #[test]
    fn a_condition_has_a_limit_of_steps() {
        let application = application("items: list");
        let fields = application.events[&class()].fields.clone();
        let items = Value::List((0..2_000).map(Value::Integer).collect());
        let event = packed(&fields, &[items]);
        let text = "event.items.all(a, event.items.all(b, a + b >= 0))";
        let condition = EventCondition::compile(&application, &class(), Some(text)).expect("a condition");
        assert_eq!(condition.reader(&fields).read(&event).expect("intact").err(), Some(EvalError::Cost));
    }
}
