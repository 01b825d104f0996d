//! Names of chronicle tables and columns in SQL, and those that queries read.

use std::collections::BTreeSet;

use tocsin_model::{
    field::{Field, FieldType, Fields},
    id::Name,
};

/// Prefix of the names of chronicle columns.
pub(crate) const CHRONICLE: &str = "chronicle-";

/// The names beside fields that the queries of an application read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct QueriesRead {
    /// Whether they read subscriber columns.
    pub subscribers: bool,
    /// The chronicle columns they read: event classes, and names of columns as in rule sets.
    pub chronicles: BTreeSet<(Name, Name)>,
    /// The chronicles they read as tables: event classes, and names of chronicles.
    pub tables: BTreeSet<(Name, Name)>,
}

/// The name of a chronicle's table. No class has a name like this.
pub fn table_name(class: &Name, chronicle: &Name) -> String {
    format!("{class}.{chronicle}")
}

/// The chronicle columns, with their names in queries.
pub(crate) fn chronicle_fields(columns: &Fields) -> Fields {
    // A column whose name is too long cannot be read.
    let named = |column: &Field| field(format!("{CHRONICLE}{}", column.name), column.kind);
    Fields::new(columns.iter().filter_map(named).collect())
}

pub(crate) fn field(name: String, kind: FieldType) -> Option<Field> {
    Some(Field::new(name.parse().ok()?, kind))
}
