//! The fields of a notification, at delivery: what speaks of the event alone is computed again from the event, what
//! speaks of the subscription was captured at the match.

use std::sync::Arc;

use tocsin_model::{
    field::{Field, Fields, Row},
    id::Name,
    value::Value,
};

use crate::{
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

    /// The notification's row. The event is a row of its class in the rule set's version ([`NotifyFields::event_row`]
    /// makes one of another version's row); `captured` gives what the match captured, by field. An expression that
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

    /// As [`NotifyFields::row`], with what a match would capture computed now, from a row of the rule's subscription class.
    /// What a query would give is null.
    ///
    /// # Errors
    /// A required field has no value.
    pub fn row_for(&self, event: &[Value], subscription: &[Value]) -> Result<Row, FieldMissing> {
        let fills = &self.rules.rule(self.rule).fields;
        self.row(event, |name| {
            let (_, fill) = fills.iter().find(|(field, _)| field.name == *name)?;
            let Fill::Captured(expression) = fill else { return None };
            let scene = Scene { event, parameters: Parameters::Row(subscription) };
            value(expression, scene).ok().map(|datum| datum.to_value())
        })
    }

    /// An event of another version of its class as a row of the rule set's version: by name, what is missing is null.
    pub fn event_row(&self, row: Row, fields: &Fields) -> Row {
        match self.rules.events.get(&self.rules.rule(self.rule).on) {
            Some(plan) => Layout::between(fields, &plan.fields).apply(row),
            None => row,
        }
    }
}
