//! The fields of a notification, at delivery: what speaks of the event alone is computed again from the event, what
//! speaks of the subscription was captured at the match.

use std::sync::Arc;

use tocsin_model::{
    event::EventBatch,
    field::{Damaged, Field, Fields, Row},
    id::Name,
    value::Value,
};

use crate::{
    chronicle::columns::Packed,
    evaluate::{Parameters, Scene, value},
    rule::{Fill, RuleNumber, RuleSet},
    shard::Layout,
};

/// A required field of a notification has no value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the field `{0}` of the notification is required and has no value")]
pub struct FieldMissing(pub Name);

/// Computes the fields of one rule's notifications.
#[derive(Debug, Clone)]
pub struct NotifyFields {
    rules: Arc<RuleSet>,
    rule: RuleNumber,
    fields: Fields,
}

impl NotifyFields {
    /// For a rule of a rule set.
    pub fn of(rules: &Arc<RuleSet>, rule: RuleNumber) -> NotifyFields {
        let fields: Vec<Field> = rules.rule(rule).fields.iter().map(|(field, _)| field.clone()).collect();
        NotifyFields { rules: Arc::clone(rules), rule, fields: Fields::new(fields) }
    }

    /// The fields of the notification class.
    pub fn fields(&self) -> &Fields {
        &self.fields
    }

    /// The notification's row. The event is a row of its class in the rule set's version
    /// ([`NotifyFields::reader`] makes it); `captured` gives what the match captured, by field. An expression that
    /// ends in an error gives null, and null takes the field's default.
    ///
    /// # Errors
    /// A required field has no value.
    pub fn row(&self, event: &[Value], captured: impl Fn(&Name) -> Option<Value>) -> Result<Row, FieldMissing> {
        let fill = |(field, fill): &(Field, Fill)| {
            let found = match fill {
                Fill::Event(expression) => {
                    let scene = Scene { event, parameters: Parameters::None };
                    value(expression, scene).map_or(Value::Null, |datum| datum.to_value())
                }
                Fill::Captured(_) | Fill::Queried(_) => captured(&field.name).unwrap_or_default(),
                Fill::Default => Value::Null,
            };
            let found = field.kind.accept(found).unwrap_or_default();
            let found = if found.is_null() { field.default.clone() } else { found };
            if field.required && found.is_null() { Err(FieldMissing(field.name.clone())) } else { Ok(found) }
        };
        self.rules.rule(self.rule).fields.iter().map(fill).collect()
    }

    /// Makes rows of the rule set's version out of the events of a batch, which were packed with these fields.
    ///
    /// # Errors
    /// What is kept of chronicles with the batch is damaged.
    pub fn reader<'a>(&self, batch: &'a EventBatch, fields: &Fields) -> Result<RowReader<'a>, Damaged> {
        match self.rules.events.get(&self.rules.rule(self.rule).on) {
            Some(plan) => {
                let chronicled = Packed::read(&batch.chronicled, &plan.columns)?;
                Ok(RowReader { layout: Layout::between(fields, &plan.fields), chronicled })
            }
            None => Ok(RowReader { layout: Layout::Same, chronicled: Packed::default() }),
        }
    }
}

/// Makes rows of a rule set's version out of the events of a batch.
pub struct RowReader<'a> {
    layout: Layout,
    chronicled: Packed<'a>,
}

impl RowReader<'_> {
    /// An event as a row: its fields by name, what is missing is null, and what rules read of chronicles behind them.
    ///
    /// # Errors
    /// What is kept of chronicles with the batch is damaged.
    pub fn row(&self, ordinal: u32, row: Row) -> Result<Row, Damaged> {
        let mut row = self.layout.apply(row);
        self.chronicled.append(ordinal as usize, &mut row)?;
        Ok(row)
    }
}
