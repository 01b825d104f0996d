//! Computes the fields of a notification at delivery. Fields that depend on the event alone are computed again from the
//! event; fields that depend on the subscription were captured at the match.

use std::sync::Arc;

use tocsin_model::{
    event::EventBatch,
    field::{Damaged, Field, Fields, Row},
    id::Name,
    value::Value,
};

use crate::{
    chronicle_columns::Packed,
    evaluate::{EvalContext, Parameters, value},
    rows::Layout,
    rule::rule_set::{FieldSource, RuleNumber, RuleSet},
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

    /// The notification's row. The event is a row of its class in the rule set's version ([`NotifyFields::reader`]
    /// builds it); `captured` gives the captured fields by name. An expression with an error gives null, and null takes
    /// the field's default.
    ///
    /// # Errors
    /// A required field has no value.
    pub fn row(&self, event: &[Value], captured: impl Fn(&Name) -> Option<Value>) -> Result<Row, FieldMissing> {
        let fill = |(field, fill): &(Field, FieldSource)| {
            let found = match fill {
                FieldSource::Event(expression) => {
                    let context = EvalContext { event, parameters: Parameters::None };
                    value(expression, context).map_or(Value::Null, |eval_value| eval_value.to_value())
                }
                FieldSource::Captured(_) | FieldSource::Queried(_) => captured(&field.name).unwrap_or_default(),
                FieldSource::Default => Value::Null,
            };
            let found = field.kind.accept(found).unwrap_or_default();
            let found = if found.is_null() { field.default.clone() } else { found };
            if field.required && found.is_null() { Err(FieldMissing(field.name.clone())) } else { Ok(found) }
        };
        self.rules.rule(self.rule).fields.iter().map(fill).collect()
    }

    /// As [`NotifyFields::row`], with the captured fields computed now from a row of the rule's subscription class.
    /// Fields of a query are null.
    ///
    /// # Errors
    /// A required field has no value.
    pub fn row_for(&self, event: &[Value], subscription: &[Value]) -> Result<Row, FieldMissing> {
        let fills = &self.rules.rule(self.rule).fields;
        self.row(event, |name| {
            let (_, fill) = fills.iter().find(|(field, _)| field.name == *name)?;
            let FieldSource::Captured(expression) = fill else { return None };
            let context = EvalContext { event, parameters: Parameters::Row(subscription) };
            value(expression, context).ok().map(|eval_value| eval_value.to_value())
        })
    }

    /// Builds rows of the rule set's version from the events of a batch that was packed with these fields.
    ///
    /// # Errors
    /// The chronicle columns of the batch are damaged.
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

/// Builds rows of a rule set's version from the events of a batch.
pub struct RowReader<'a> {
    layout: Layout,
    chronicled: Packed<'a>,
}

impl RowReader<'_> {
    /// An event as a row: its fields by name, missing fields null, followed by the chronicle columns that rules read.
    ///
    /// # Errors
    /// The chronicle columns of the batch are damaged.
    pub fn row(&self, ordinal: u32, row: Row) -> Result<Row, Damaged> {
        let mut row = self.layout.apply(row);
        self.chronicled.append(ordinal as usize, &mut row)?;
        Ok(row)
    }
}
