//! The tables that queries look at: `events`, and one for each subscription class with a column for each parameter.

use std::collections::{BTreeMap, BTreeSet};

use tocsin_model::{
    application::Application,
    field::{FieldType, Fields},
    id::Name,
};

use super::{functions::HostFunction, guard::Guarded, values::column_type};

/// The table of the event batch.
pub(super) const EVENTS: &str = "events";
/// The place of an event in its batch.
pub(super) const EVENT: &str = "_event";
/// The number of a subscription.
pub(super) const SUBSCRIPTION: &str = "_subscription";
/// The number of the subscriber, the same for all subscriptions of one.
pub(super) const SUBSCRIBER: &str = "_subscriber";
/// The channel by which a subscription is told now; null if there is none.
pub(super) const CHANNEL: &str = "_channel";
/// When a subscription was made.
pub(super) const CREATED_AT: &str = "_created_at";

/// Columns of a table before those of the fields.
pub(super) const COLUMNS_OF_EVENTS: usize = 1;
pub(super) const COLUMNS_OF_SUBSCRIPTIONS: usize = 4;

/// What the planner is told of sizes. Plans must not change with what is in the tables, or what was said of a rule when
/// it was applied would not hold later.
const EVENTS_ASSUMED: u32 = 100;
const SUBSCRIPTIONS_ASSUMED: u32 = 1_000_000;
/// Rows that are assumed to share the first column of an index, and both of two.
const SHARING_ASSUMED: [u32; 2] = [1_000, 10];
/// A query that reads more parameters of a class gets no indexes of two columns.
const PAIRED_MAX: usize = 8;

/// What of one class's table is kept: as little as the queries read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct TablePlan {
    /// The fields that have a column.
    pub fields: BTreeSet<usize>,
    /// The indexes, by their fields in order: one or two.
    pub indexes: BTreeSet<Vec<usize>>,
}

impl TablePlan {
    /// Every field that can be, without an index.
    pub fn whole(fields: &Fields) -> TablePlan {
        TablePlan { fields: (0..fields.len()).collect(), indexes: BTreeSet::new() }
    }

    /// Adds every index that could serve a query which reads these fields.
    pub fn with_candidates(mut self, fields: &Fields, read: &BTreeSet<usize>) -> TablePlan {
        let keys = |at: &&usize| {
            matches!(
                fields[**at].kind,
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

/// A name as SQL spells it.
pub(super) fn quoted(name: &str) -> String {
    format!("\"{name}\"")
}

/// The name of an index. No class can be called so.
pub(super) fn index_name(class: &Name, fields: &Fields, index: &[usize]) -> String {
    let columns: Vec<&str> = index.iter().map(|at| fields[*at].name.as_str()).collect();
    format!("{class}:{}", columns.join(","))
}

/// The tables that queries of an application may name.
pub(super) fn table_names(application: &Application) -> impl Iterator<Item = String> + '_ {
    application.subscriptions.keys().map(Name::to_string).chain([EVENTS.to_owned()])
}

/// Opens a database with these tables, and with `events` of one event class.
pub(super) fn open(
    application: &Application,
    plans: &BTreeMap<Name, TablePlan>,
    host: &'static [HostFunction],
) -> rusqlite::Result<Guarded> {
    let guarded = Guarded::open(table_names(application), host)?;
    let connection = &guarded.connection;
    connection.execute_batch("ANALYZE")?;
    for (class, plan) in plans {
        let Some(fields) = application.subscriptions.get(class).map(|class| &class.fields) else { continue };
        let mut columns =
            format!("{SUBSCRIPTION} INTEGER PRIMARY KEY, {SUBSCRIBER} INTEGER, {CHANNEL} TEXT, {CREATED_AT} TEXT");
        for at in &plan.fields {
            let field = &fields[*at];
            columns.push_str(&format!(", {} {}", quoted(field.name.as_str()), column_type(field.kind)));
        }
        connection.execute_batch(&format!("CREATE TABLE {} ({columns}) STRICT", quoted(class.as_str())))?;
        for index in &plan.indexes {
            let name = index_name(class, fields, index);
            let columns: Vec<String> = index.iter().map(|at| quoted(fields[*at].name.as_str())).collect();
            connection.execute_batch(&format!(
                "CREATE INDEX {} ON {} ({})",
                quoted(&name),
                quoted(class.as_str()),
                columns.join(", ")
            ))?;
            let sharing: Vec<String> = SHARING_ASSUMED.iter().take(index.len()).map(u32::to_string).collect();
            assume(connection, class.as_str(), Some(&name), &format!("{SUBSCRIPTIONS_ASSUMED} {}", sharing.join(" ")))?;
        }
        assume(connection, class.as_str(), None, &SUBSCRIPTIONS_ASSUMED.to_string())?;
    }
    Ok(guarded)
}

/// Makes `events` the table of this event class, empty.
pub(super) fn set_events(guarded: &Guarded, fields: &Fields) -> rusqlite::Result<()> {
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
