//! The plan of a query in SQLite: the indexes that it uses, and the tables that it scans.

use std::collections::{BTreeMap, BTreeSet};

use rusqlite::Connection;

/// Properties of a query plan.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// The text of SQLite for people, indented.
    pub lines: Vec<String>,
    /// Names of the indexes that are used.
    pub indexes: BTreeSet<String>,
    /// Columns of tables that are read, by table and position, without those read from an index.
    pub columns: BTreeSet<(String, usize)>,
    /// Tables that are scanned, and whether that happens inside another loop.
    pub scans: BTreeMap<String, bool>,
}

/// One instruction of SQLite's virtual machine.
struct Step {
    opcode: String,
    p1: i64,
    p2: i64,
}

/// Reads the plan of a valid statement.
pub(super) fn of(connection: &Connection, sql: &str) -> rusqlite::Result<Plan> {
    let mut plan = Plan { lines: lines(connection, sql)?, ..Plan::default() };
    let roots = roots(connection)?;
    let mut statement = connection.prepare(&format!("EXPLAIN {sql}"))?;
    let steps: Vec<Step> = statement
        .query_map([], |row| Ok(Step { opcode: row.get(1)?, p1: row.get(2)?, p2: row.get(3)? }))?
        .collect::<Result<_, _>>()?;
    let mut opened: BTreeMap<i64, &(String, String)> = BTreeMap::new();
    for step in steps.iter().filter(|step| matches!(step.opcode.as_str(), "OpenRead" | "ReopenIdx")) {
        if let Some(root) = roots.get(&step.p2) {
            opened.insert(step.p1, root);
        }
    }
    // A loop jumps from its `Next` to the instruction after its head.
    let loops: Vec<(usize, usize, i64)> = steps
        .iter()
        .enumerate()
        .filter(|(_, step)| matches!(step.opcode.as_str(), "Next" | "Prev" | "VNext" | "SorterNext"))
        .filter_map(|(end, step)| Some((usize::try_from(step.p2).ok()?, end, step.p1)))
        .collect();
    for (at, step) in steps.iter().enumerate() {
        let Some((name, table)) = opened.get(&step.p1) else { continue };
        match step.opcode.as_str() {
            "SeekGE" | "SeekGT" | "SeekLE" | "SeekLT" | "NotFound" | "Found" | "NoConflict" if name != table => {
                plan.indexes.insert(name.clone());
            }
            "Column" if name == table => {
                plan.columns.extend(usize::try_from(step.p2).ok().map(|place| (table.clone(), place)));
            }
            "Rewind" | "Last" => {
                let within = loops.iter().any(|(from, to, cursor)| (*from..=*to).contains(&at) && *cursor != step.p1);
                let nested = plan.scans.entry(table.clone()).or_default();
                *nested |= within;
            }
            _ => {}
        }
    }
    Ok(plan)
}

/// The plan text of SQLite, a line for each step, indented by depth.
fn lines(connection: &Connection, sql: &str) -> rusqlite::Result<Vec<String>> {
    let mut statement = connection.prepare(&format!("EXPLAIN QUERY PLAN {sql}"))?;
    let mut depths: BTreeMap<i64, usize> = BTreeMap::new();
    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(3)?)))?;
    rows.map(|row| {
        let (id, parent, detail): (i64, i64, String) = row?;
        let depth = depths.get(&parent).map_or(0, |depth| depth + 1);
        depths.insert(id, depth);
        Ok(format!("{}{detail}", "  ".repeat(depth)))
    })
    .collect()
}

/// Names of tables and indexes with the table of each, by their root page.
fn roots(connection: &Connection) -> rusqlite::Result<BTreeMap<i64, (String, String)>> {
    let mut statement = connection.prepare("SELECT rootpage, name, tbl_name FROM sqlite_schema WHERE rootpage > 0")?;
    let rows = statement.query_map([], |row| Ok((row.get(0)?, (row.get(1)?, row.get(2)?))))?;
    rows.collect()
}
