//! Stored rows under later versions of their class: one set of rules for subscriptions, rows of collections and
//! exports.
//!
//! 1. **Read.** Values are matched by field name. A removed field is not shown. A new field has its default. A value
//!    of another type counts as missing. No stored row is refused.
//! 2. **Write.** Unchanged values are not checked again. So a field that became required is required of new rows, and
//!    of writes that remove its value. The row is written in the current version: values of removed fields vanish.
//! 3. **Import of an export.** Values that do not fit the class any more are skipped with a warning.

use crate::{
    field::{Check, Damaged, Fields, Row, missing},
    problem::Problem,
    value::Value,
};

impl Fields {
    /// Parses a stored JSON object, which was checked when it was stored: rule 1.
    ///
    /// # Errors
    /// It is not a JSON object.
    pub fn row_from_stored(&self, json: &str) -> Result<Row, Damaged> {
        let values: serde_json::Map<String, serde_json::Value> = serde_json::from_str(json).map_err(|_| Damaged)?;
        let mut row: Row = self.iter().map(|field| field.default.clone()).collect();
        for (name, value) in values {
            if let Some(at) = self.position(&name)
                && let Ok(value) = self[at].kind.accept(Value::from(value))
                && !value.is_null()
            {
                row[at] = value;
            }
        }
        Ok(row)
    }

    /// A stored JSON object in this version of the class.
    ///
    /// # Errors
    /// It is not a JSON object.
    pub fn stored_as_json(&self, json: &str) -> Result<String, Damaged> {
        Ok(self.to_json(&self.row_from_stored(json)?))
    }

    /// Parses a JSON object that replaces a stored row of this class, as returned by [`Fields::row_from_stored`]:
    /// rule 2.
    ///
    /// # Errors
    /// As [`Fields::row_from_json`].
    pub fn row_over_stored(&self, json: &[u8], stored: &[Value]) -> Result<Row, Vec<Problem>> {
        self.checked_row(json, Check::PartialUpdate(stored)).map(|(row, _)| row)
    }

    /// Parses a JSON object of an export, perhaps of an earlier version of the class: rule 3. Also returns the
    /// warnings, [`PROBLEMS_MAX`](crate::problem::PROBLEMS_MAX) of them at most.
    ///
    /// # Errors
    /// It is not a JSON object, is too large, or has a field twice.
    pub fn row_from_export(&self, json: &[u8]) -> Result<(Row, Vec<Problem>), Vec<Problem>> {
        self.checked_row(json, Check::Lenient)
    }

    /// The required fields that a changed row lacks and the stored one had: rule 2.
    pub fn taken_away(&self, row: &[Value], stored: &[Value]) -> Vec<Problem> {
        let is_taken = |at: &usize| self[*at].required && row[*at].is_null() && !stored[*at].is_null();
        (0..self.len()).filter(is_taken).map(|at| missing(&self[at])).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::field::{Field, FieldType};

    fn fields(all: &[(&str, FieldType, bool)]) -> Fields {
        let field = |(name, kind, required): &(&str, FieldType, bool)| {
            let required = *required;
            Field { required, ..Field::new(name.parse().expect("a name"), *kind) }
        };
        Fields::new(all.iter().map(field).collect())
    }

    #[test]
    fn b8_a_stored_row_is_read_and_written_as_its_class_is_now() {
        let stored = r#"{"lost": "x", "turned": "12", "kept": 1}"#;
        let now = fields(&[
            ("kept", FieldType::Integer, true),
            ("turned", FieldType::Integer, false),
            ("new", FieldType::String, true),
        ]);
        assert_eq!(now.stored_as_json(stored), Ok(r#"{"kept":1}"#.to_owned()));
        let row = now.row_from_stored(stored).expect("a row");
        let over = |json: &str| {
            let read = now.row_over_stored(json.as_bytes(), &row).map(|row| now.to_json(&row));
            read.map_err(|problems| problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))
        };
        assert_eq!(over(r#"{"kept": 2}"#), Ok(r#"{"kept":2}"#.to_owned()), "`new` was never there");
        assert_eq!(over("{}"), Err("kept: is required: give an integer".to_owned()), "it was taken away");
        assert!(over(r#"{"kept": 2, "lost": "x"}"#).is_err_and(|problems| problems.contains("lost: is not a field")));
        let with = now.row_from_stored(r#"{"kept": 1, "new": "n"}"#).expect("a row");
        let without = now.row_from_stored(r#"{"kept": 1}"#).expect("a row");
        assert_eq!(now.taken_away(&without, &with)[0].path, "new");
        assert_eq!(now.taken_away(&without, &without), []);
    }

    #[test]
    fn b8_an_export_of_an_older_class_is_read_with_warnings() {
        let now = fields(&[("kept", FieldType::Integer, true), ("new", FieldType::String, true)]);
        let read = |json: &str| {
            let read = now.row_from_export(json.as_bytes());
            read.map(|(row, warnings)| {
                (now.to_json(&row), warnings.iter().map(ToString::to_string).collect::<Vec<_>>())
            })
        };
        let (row, warnings) = read(r#"{"lost": "x", "kept": "one"}"#).expect("a row");
        assert_eq!(row, "{}");
        assert_eq!(
            warnings,
            [
                "lost: is not a field of this class; its fields are kept, new",
                "kept: should be an integer, not a string",
                "new: is required: give a string"
            ]
        );
        assert!(read(r#"{"kept": 1, "kept": 2}"#).is_err());
        assert!(read("[1]").is_err());
    }
}
