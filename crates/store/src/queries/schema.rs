//! The tables for queries: `events`; one for each subscription class, with a column for each parameter; and one for
//! each chronicle of an event class, with a column for each key field and each value.

use std::collections::{BTreeMap, BTreeSet};

use tocsin_model::{
    application::Application,
    field::{FieldType, Fields},
    id::Name,
};

use crate::queries::{functions::HostFunction, guard::GuardedConnection, values::column_type};

/// The table of the event batch.
pub(super) const EVENTS: &str = "events";
/// The position of an event in its batch.
pub(super) const EVENT: &str = "_event";
/// The number of a subscription.
pub(super) const SUBSCRIPTION: &str = "_subscription";
/// The number of the subscriber, equal for all of the subscriber's subscriptions.
pub(super) const SUBSCRIBER: &str = "_subscriber";
/// The current channel of a subscription; null if there is none.
pub(super) const CHANNEL: &str = "_channel";
/// The creation time of a subscription.
pub(super) const CREATED_AT: &str = "_created_at";
/// The packed key of an entry; not useful in queries.
pub(super) const KEY: &str = "_key";
/// Number of columns of `events` before the fields.
pub(super) const COLUMNS_OF_EVENTS: usize = 1;
/// Row counts given to the planner. Plans must not depend on the contents of the tables, otherwise the warnings given
/// when a rule was applied would become wrong.
const EVENTS_ASSUMED: u32 = 100;
const SUBSCRIPTIONS_ASSUMED: u32 = 1_000_000;
const ENTRIES_ASSUMED: u32 = 10_000;
/// Numbers of rows that are assumed to have the same value in the first column of an index, and in the first two.
const SUBSCRIPTIONS_SHARING: [u32; 2] = [1_000, 10];
const ENTRIES_SHARING: [u32; 2] = [100, 10];
/// A query that reads more columns of a table gets no indexes of two columns.
const PAIRED_MAX: usize = 8;

/// Kind of the rows of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RowKind {
    /// Subscriptions of this class.
    Subscriptions(Name),
    /// Entries of a chronicle; the first fields are the key.
    Entries { keys: usize },
}

/// The schema of a table besides `events`.
#[derive(Debug, Clone)]
pub(super) struct Shape {
    pub rows: RowKind,
    pub fields: Fields,
}

impl Shape {
    pub fn of_subscriptions(class: &Name, fields: &Fields) -> Shape {
        Shape { rows: RowKind::Subscriptions(class.clone()), fields: fields.clone() }
    }

    pub fn of_entries(table: &StateTable) -> Shape {
        let fields = table.key.iter().chain(table.says.iter()).cloned().collect();
        Shape { rows: RowKind::Entries { keys: table.key.len() }, fields: Fields::new(fields) }
    }

    /// The table of each subscription class and each chronicle, by its name in queries.
    pub fn all(application: &Application, states: &[StateTable]) -> BTreeMap<String, Shape> {
        let classes = application.subscriptions.iter();
        let classes = classes.map(|(name, class)| (name.to_string(), Shape::of_subscriptions(name, &class.fields)));
        let states = states.iter().map(|table| (table.name.clone(), Shape::of_entries(table)));
        classes.chain(states).collect()
    }

    /// The columns of each row before its fields, with their types.
    pub fn head(&self) -> &'static [(&'static str, &'static str)] {
        match self.rows {
            RowKind::Subscriptions(_) => &[
                (SUBSCRIPTION, "INTEGER PRIMARY KEY"),
                (SUBSCRIBER, "INTEGER"),
                (CHANNEL, "TEXT"),
                (CREATED_AT, "TEXT"),
            ],
            RowKind::Entries { .. } => &[(KEY, "BLOB PRIMARY KEY")],
        }
    }

    /// The column name of a field. Values of a chronicle have the prefix `_`, so that they differ from key fields.
    pub fn column(&self, at: usize) -> String {
        let name = &self.fields[at].name;
        if self.is_value(at) { format!("_{name}") } else { name.to_string() }
    }

    pub fn columns(&self) -> impl Iterator<Item = String> + '_ {
        (0..self.fields.len()).map(|at| self.column(at))
    }

    /// The field of a column.
    pub fn position(&self, column: &str) -> Option<usize> {
        let place = |name: &str, is_value: bool| {
            self.fields
                .iter()
                .enumerate()
                .find(|(at, field)| self.is_value(*at) == is_value && field.name.as_str() == name)
        };
        let found = column.strip_prefix('_').and_then(|name| place(name, true)).or_else(|| place(column, false));
        found.map(|(at, _)| at)
    }

    fn is_value(&self, at: usize) -> bool {
        matches!(self.rows, RowKind::Entries { keys } if at >= keys)
    }

    fn rows_assumed(&self) -> u32 {
        match self.rows {
            RowKind::Subscriptions(_) => SUBSCRIPTIONS_ASSUMED,
            RowKind::Entries { .. } => ENTRIES_ASSUMED,
        }
    }

    /// Numbers of rows that are assumed to have the same value in one column of an index, in two of them, and so on.
    fn sharing_assumed(&self, index: &[usize]) -> Vec<u32> {
        let (usual, keys) = match self.rows {
            RowKind::Subscriptions(_) => (SUBSCRIPTIONS_SHARING, usize::MAX),
            RowKind::Entries { keys } => (ENTRIES_SHARING, keys),
        };
        // The complete key identifies one entry.
        let share = |width: usize| {
            let of_key = index[..width].iter().filter(|at| **at < keys).count();
            if of_key == keys { 1 } else { usual[width.min(usual.len()) - 1] }
        };
        (1..=index.len()).map(share).collect()
    }
}

/// The stored part of a table: only what the queries read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct TablePlan {
    /// The fields that have a column.
    pub fields: BTreeSet<usize>,
    /// The indexes, by their fields in order: one, two, or all of a key.
    pub indexes: BTreeSet<Vec<usize>>,
}

impl TablePlan {
    /// All fields, without indexes.
    pub fn whole(fields: &Fields) -> TablePlan {
        TablePlan { fields: (0..fields.len()).collect(), indexes: BTreeSet::new() }
    }

    /// Adds every index that could help a query which reads these fields.
    pub fn with_candidates(mut self, shape: &Shape, read: &BTreeSet<usize>) -> TablePlan {
        if let RowKind::Entries { keys } = shape.rows
            && keys > 0
            && (0..keys).all(|at| read.contains(&at))
        {
            self.indexes.insert((0..keys).collect());
        }
        let keys = |at: &&usize| {
            matches!(
                shape.fields[**at].kind,
                FieldType::Integer | FieldType::Number | FieldType::String | FieldType::Timestamp
            )
        };
        let keys: Vec<usize> = read.iter().filter(keys).copied().collect();
        self.indexes.extend(keys.iter().map(|key| vec![*key]));
        if keys.len() <= PAIRED_MAX {
            let pairs = keys.iter().flat_map(|first| keys.iter().map(move |second| vec![*first, *second]));
            self.indexes.extend(pairs.filter(|pair| pair[0] != pair[1]));
        }
        self
    }
}

/// A quoted SQL name.
pub(super) fn quoted(name: &str) -> String {
    format!("\"{name}\"")
}

/// The name of an index. It cannot be the name of a table.
pub(super) fn index_name(table: &str, shape: &Shape, index: &[usize]) -> String {
    let columns: Vec<String> = index.iter().map(|at| shape.column(*at)).collect();
    format!("{table}:{}", columns.join(","))
}

/// Opens a database with these tables. Queries may read every table that has a shape.
pub(super) fn open(
    shapes: &BTreeMap<String, Shape>,
    plans: &BTreeMap<String, TablePlan>,
    host: &'static [HostFunction],
) -> rusqlite::Result<GuardedConnection> {
    let guarded = GuardedConnection::open(shapes.keys().cloned().chain([EVENTS.to_owned()]), host)?;
    guarded.connection.execute_batch("ANALYZE")?;
    for (table, plan) in plans {
        if let Some(shape) = shapes.get(table) {
            make(&guarded.connection, table, shape, plan)?;
        }
    }
    Ok(guarded)
}

fn make(connection: &rusqlite::Connection, table: &str, shape: &Shape, plan: &TablePlan) -> rusqlite::Result<()> {
    let head = shape.head().iter().map(|(column, kind)| format!("{column} {kind}"));
    let field = |at: &usize| format!("{} {}", quoted(&shape.column(*at)), column_type(shape.fields[*at].kind));
    let columns: Vec<String> = head.chain(plan.fields.iter().map(field)).collect();
    connection.execute_batch(&format!("CREATE TABLE {} ({}) STRICT", quoted(table), columns.join(", ")))?;
    let rows = shape.rows_assumed();
    for index in &plan.indexes {
        let name = index_name(table, shape, index);
        let columns: Vec<String> = index.iter().map(|at| quoted(&shape.column(*at))).collect();
        let columns = columns.join(", ");
        connection.execute_batch(&format!("CREATE INDEX {} ON {} ({columns})", quoted(&name), quoted(table)))?;
        let sharing: Vec<String> = shape.sharing_assumed(index).iter().map(u32::to_string).collect();
        assume(connection, table, Some(&name), &format!("{rows} {}", sharing.join(" ")))?;
    }
    assume(connection, table, None, &rows.to_string())
}

/// Recreates `events` for this event class, empty.
pub(super) fn set_events(guarded: &GuardedConnection, fields: &Fields) -> rusqlite::Result<()> {
    let connection = &guarded.connection;
    let mut columns = format!("{EVENT} INTEGER PRIMARY KEY");
    for field in fields.iter() {
        columns.push_str(&format!(", {} {}", quoted(field.name.as_str()), column_type(field.kind)));
    }
    connection.execute_batch(&format!("DROP TABLE IF EXISTS {EVENTS}; CREATE TABLE {EVENTS} ({columns}) STRICT"))?;
    assume(connection, EVENTS, None, &EVENTS_ASSUMED.to_string())?;
    connection.execute_batch("ANALYZE sqlite_schema")
}

fn assume(connection: &rusqlite::Connection, table: &str, index: Option<&str>, sizes: &str) -> rusqlite::Result<()> {
    connection.execute("DELETE FROM sqlite_stat1 WHERE tbl = ?1 AND idx IS ?2", (table, index))?;
    connection.execute("INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES (?1, ?2, ?3)", (table, index, sizes))?;
    Ok(())
}

/// A table of values about earlier events: an entry for each key.
#[derive(Debug, Clone, PartialEq)]
pub struct StateTable {
    /// The name in queries.
    pub name: String,
    /// The fields of the key.
    pub key: Fields,
    /// The values of a key. Their columns have the prefix `_`.
    pub says: Fields,
}
