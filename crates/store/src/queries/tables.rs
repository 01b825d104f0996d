//! Applies changes, loads event batches, and returns matches.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};

use rusqlite::{Connection, Error, ErrorCode, Rows, types::Value as Sql};
use tocsin_model::{
    event::EventBatch,
    field::{Damaged, Fields, Row, unpack_row},
    id::{Name, SubscriptionId},
    value::Value,
};

use super::{
    guard::GuardedConnection,
    schema::{self, EVENT, EVENTS, KEY, RowKind, SUBSCRIPTION, quoted},
    values,
};
use crate::{
    error::StoreError,
    queries::query_set::{Query, QuerySet, reason},
    records::IndexedSubscription,
};

/// Maximum number of matches of one query and one event batch; with more the query fails.
pub const MATCHES_MAX: usize = 1_000_000;
/// Maximum number of text bytes in the matches of one query and one event batch.
pub const MATCH_BYTES_MAX: usize = 256 << 20;

/// Result of a rule's query for an event batch.
#[derive(Debug, Clone, PartialEq)]
pub struct QueryFiring {
    /// The rule.
    pub rule: Name,
    /// The matches in order of event, one for each event and subscription; or the reason why the query failed.
    pub outcome: Result<Vec<QueryMatch>, String>,
    /// Duration of the query.
    pub took: Duration,
}

/// One match.
#[derive(Debug, Clone, PartialEq)]
pub struct QueryMatch {
    /// The position of the event in its batch.
    pub event: u32,
    /// The subscription to notify: an enabled subscription of the rule's class.
    pub subscription: SubscriptionId,
    /// The notification fields that the query returned, in the order of [`QuerySet::columns`].
    pub values: Vec<Value>,
}

/// The tables and queries of an application. There is one owner; a batch reads the changes that were applied before
/// it.
pub struct QueryTables {
    set: Arc<QuerySet>,
    guarded: GuardedConnection,
    /// Statements that insert a subscription, by class.
    insert_statements: BTreeMap<Name, String>,
    remove_statements: Vec<String>,
    /// Statements that insert and delete an entry, by table.
    entry_statements: BTreeMap<String, [String; 2]>,
    /// The event class of the table `events`.
    events: Option<Name>,
    /// The reason why the tables are no longer valid.
    invalid_reason: Option<String>,
}

impl std::fmt::Debug for QueryTables {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("QueryTables").field("puts", &self.insert_statements.keys()).finish_non_exhaustive()
    }
}

/// Additional columns for the events of a batch, and the rows that contain their values after `first` other values.
#[derive(Debug, Clone, Copy)]
pub struct ExtraColumns<'a> {
    /// The columns, with their names in queries.
    pub columns: &'a Fields,
    /// Number of values before those of the columns.
    pub first: usize,
    /// A row for each event.
    pub rows: &'a [Row],
}

impl ExtraColumns<'_> {
    fn value(&self, ordinal: usize, column: usize) -> Value {
        self.rows.get(ordinal).and_then(|row| row.get(self.first + column)).cloned().unwrap_or_default()
    }
}

impl QueryTables {
    /// Creates the empty tables. `None` if there are no enabled queries.
    ///
    /// # Errors
    /// SQLite cannot open a database in memory.
    pub fn open(set: Arc<QuerySet>) -> Result<Option<QueryTables>, StoreError> {
        if !set.queries.values().any(|query| query.enabled) {
            return Ok(None);
        }
        let guarded = schema::open(&set.shapes, &set.tables, set.host).map_err(StoreError::unavailable)?;
        let (mut insert_statements, mut remove_statements, mut entry_statements) =
            (BTreeMap::new(), Vec::new(), BTreeMap::new());
        for (name, plan) in &set.tables {
            let shape = &set.shapes[name];
            let table = quoted(name);
            let head = shape.head().iter().map(|(column, _)| (*column).to_owned());
            let columns: Vec<String> = head.chain(plan.fields.iter().map(|at| quoted(&shape.column(*at)))).collect();
            let places: Vec<String> = (1..=columns.len()).map(|place| format!("?{place}")).collect();
            let (names, places) = (columns.join(", "), places.join(", "));
            match &shape.rows {
                RowKind::Subscriptions(class) => {
                    insert_statements
                        .insert(class.clone(), format!("INSERT OR REPLACE INTO {table} ({names}) VALUES ({places})"));
                    remove_statements.push(format!("DELETE FROM {table} WHERE {SUBSCRIPTION} = ?1"));
                }
                RowKind::Entries { .. } => {
                    let updates: Vec<String> =
                        columns[1..].iter().map(|column| format!("{column} = excluded.{column}")).collect();
                    let otherwise = if updates.is_empty() {
                        "NOTHING".to_owned()
                    } else {
                        format!("UPDATE SET {}", updates.join(", "))
                    };
                    let put =
                        format!("INSERT INTO {table} ({names}) VALUES ({places}) ON CONFLICT ({KEY}) DO {otherwise}");
                    entry_statements.insert(name.clone(), [put, format!("DELETE FROM {table} WHERE {KEY} = ?1")]);
                }
            }
        }
        let tables = QueryTables {
            guarded,
            insert_statements,
            remove_statements,
            entry_statements,
            events: None,
            invalid_reason: None,
            set,
        };
        Ok(Some(tables))
    }

    /// The queries.
    pub fn set(&self) -> &Arc<QuerySet> {
        &self.set
    }

    /// Inserts or replaces an enabled subscription. Takes a few microseconds. `extra` are the values of additional
    /// fields at the end of its class; null if there are none.
    ///
    /// Never fails: if the tables cannot be changed they are marked as broken, and all later queries fail with the
    /// reason.
    pub fn put(&mut self, subscription: &IndexedSubscription, extra: &[Value]) {
        let Some(sql) = self.insert_statements.get(&subscription.class) else { return };
        let plan = &self.set.tables[subscription.class.as_str()];
        let fields = &self.set.application.subscriptions[&subscription.class].fields;
        let Ok(mut row) = fields.row_from_stored(&subscription.values) else {
            // The index refuses it as well and reports the error.
            return self.remove(subscription.id);
        };
        if let Some(first) = row.len().checked_sub(extra.len()) {
            row[first..].clone_from_slice(extra);
        }
        let head = [
            Sql::Integer(subscription.id.0.cast_signed()),
            Sql::Integer(subscription.subscriber.0.cast_signed()),
            subscription.channel.as_ref().map_or(Sql::Null, |channel| Sql::Text(channel.to_string())),
            Sql::Text(values::timestamp_text(subscription.created_at)),
        ];
        let parameters = head.into_iter().chain(plan.fields.iter().map(|at| values::to_sql(&row[*at])));
        let put = self
            .guarded
            .connection
            .prepare_cached(sql)
            .and_then(|mut statement| statement.execute(rusqlite::params_from_iter(parameters)));
        self.record_result(put);
    }

    /// Removes a subscription if it exists.
    pub fn remove(&mut self, id: SubscriptionId) {
        for sql in &self.remove_statements {
            let removed = self
                .guarded
                .connection
                .prepare_cached(sql)
                .and_then(|mut statement| statement.execute([id.0.cast_signed()]));
            if let Err(error) = removed {
                self.invalid_reason.get_or_insert(reason(&error));
            }
        }
    }

    /// Inserts, replaces or removes the entry of a key. The row has the fields of the table's key and then its
    /// values. Tables that no query reads are ignored. Never fails, like [`QueryTables::put`].
    pub fn apply_entry(&mut self, table: &str, key: &[u8], row: Option<&[Value]>) {
        let Some([put, remove]) = self.entry_statements.get(table) else { return };
        let plan = &self.set.tables[table];
        let value = |at: &usize| row.and_then(|row| row.get(*at)).map_or(Sql::Null, values::to_sql);
        let kept = match row {
            Some(_) => self.guarded.connection.prepare_cached(put).and_then(|mut statement| {
                let head = [Sql::Blob(key.to_vec())].into_iter();
                statement.execute(rusqlite::params_from_iter(head.chain(plan.fields.iter().map(value))))
            }),
            None => self.guarded.connection.prepare_cached(remove).and_then(|mut statement| statement.execute([key])),
        };
        self.record_result(kept);
    }

    /// Removes the entries of all state tables.
    pub fn forget_states(&mut self) {
        for table in self.entry_statements.keys() {
            if let Err(error) = self.guarded.connection.execute(&format!("DELETE FROM {}", quoted(table)), []) {
                self.invalid_reason.get_or_insert(reason(&error));
            }
        }
    }

    fn record_result(&mut self, result: rusqlite::Result<usize>) {
        if let Err(error) = result {
            self.invalid_reason.get_or_insert(reason(&error));
        }
    }

    /// Whether a batch of this event class runs any query.
    pub fn concerns(&self, class: &Name) -> bool {
        self.set.queries.values().any(|query| query.enabled && query.on == *class)
    }

    /// Runs the enabled queries of the batch's class that `requested` accepts, in the order of rule names. `fields` are
    /// those with which the batch was packed; fields that the class no longer has are ignored, new ones are null;
    /// `extra` has the additional columns. In queries, `now` is the time when the batch was accepted.
    ///
    /// The same tables and the same batch give the same matches. A failed query does not affect the others.
    ///
    /// # Errors
    /// The batch is damaged.
    pub fn run(
        &mut self,
        batch: &EventBatch,
        fields: &Fields,
        extra: &ExtraColumns<'_>,
        requested: impl Fn(&Name) -> bool,
    ) -> Result<Vec<QueryFiring>, Damaged> {
        let set = self.set.clone();
        let fires = |(name, query): &(&Name, &Query)| query.enabled && query.on == batch.class && requested(name);
        let queries: Vec<(&Name, &Query)> = set.queries.iter().filter(fires).collect();
        if queries.is_empty() {
            return Ok(Vec::new());
        }
        let loaded = match self.invalid_reason.clone() {
            Some(reason) => Err(format!("the tables of queries are broken: {reason}; apply the application again")),
            None => self
                .load(batch, fields, extra)?
                .map_err(|error| format!("the events cannot be loaded: {}", reason(&error))),
        };
        let fire = |(name, query): (&Name, &Query)| {
            let started = Instant::now();
            let outcome = loaded.clone().and_then(|()| self.answer(query, batch.events.count()));
            QueryFiring { rule: name.clone(), outcome, took: started.elapsed() }
        };
        let firings = queries.into_iter().map(fire).collect();
        let _ = self.guarded.connection.execute(&format!("DELETE FROM {EVENTS}"), []);
        Ok(firings)
    }

    /// Loads the batch into `events`.
    fn load(
        &mut self,
        batch: &EventBatch,
        packed: &Fields,
        extra: &ExtraColumns<'_>,
    ) -> Result<rusqlite::Result<()>, Damaged> {
        let rows: Vec<_> =
            batch.events.rows().map(|row| row.and_then(|row| unpack_row(packed, row))).collect::<Result<_, _>>()?;
        let class = &self.set.application.events[&batch.class].fields;
        let fill = || {
            if self.events.as_ref() != Some(&batch.class) {
                schema::set_events(&self.guarded, class)?;
            }
            self.guarded.set_now(batch.accepted_at);
            let connection = &self.guarded.connection;
            connection.execute(&format!("DELETE FROM {EVENTS}"), [])?;
            let read = self.set.queries.values().filter(|query| query.on == batch.class).flat_map(|query| &query.reads);
            let read: std::collections::BTreeSet<usize> = read.copied().collect();
            // The source of each value: the batch, or the additional columns.
            let from: Vec<(usize, [Option<usize>; 2])> = read
                .iter()
                .map(|at| {
                    let name = class[*at].name.as_str();
                    (*at, [packed.position(name), extra.columns.position(name)])
                })
                .collect();
            let names: String = read.iter().map(|at| format!(", {}", quoted(class[*at].name.as_str()))).collect();
            let places: String = (0..read.len()).map(|at| format!(", ?{}", at + 2)).collect();
            let sql = format!("INSERT INTO {EVENTS} ({EVENT}{names}) VALUES (?1{places})");
            let mut statement = connection.prepare_cached(&sql)?;
            for (ordinal, row) in rows.iter().enumerate() {
                let value = |(at, places): &(usize, [Option<usize>; 2])| {
                    let given = match places {
                        [Some(place), _] => row[*place].clone(),
                        [None, Some(place)] => extra.value(ordinal, *place),
                        [None, None] => Value::Null,
                    };
                    values::to_sql(&class[*at].kind.accept(given).unwrap_or_default())
                };
                let parameters = [Sql::Integer(ordinal as i64)].into_iter().chain(from.iter().map(value));
                statement.execute(rusqlite::params_from_iter(parameters))?;
            }
            Ok(())
        };
        let filled = fill();
        self.events = filled.is_ok().then(|| batch.class.clone());
        Ok(filled)
    }

    fn answer(&self, query: &Query, events: u32) -> Result<Vec<QueryMatch>, String> {
        let read = |connection: &Connection| -> Result<Vec<QueryMatch>, String> {
            let failed = |error: Error| self.failure(query, &error);
            let mut statement = connection.prepare_cached(&query.sql).map_err(failed)?;
            let rows = statement.query([]).map_err(failed)?;
            self.collect(query, rows, events)
        };
        let mut matches = self.guarded.run_untrusted(query.timeout, read)?;
        self.check_subscriptions(query, &matches)?;
        matches.sort_by_key(|found| found.event);
        Ok(matches)
    }

    fn collect(&self, query: &Query, mut rows: Rows<'_>, events: u32) -> Result<Vec<QueryMatch>, String> {
        let mut matches = Vec::new();
        let mut seen = HashSet::new();
        let mut bytes = 0;
        while let Some(row) = rows.next().map_err(|error| self.failure(query, &error))? {
            let number = |at: usize, column: &str| match row.get_ref(at) {
                Ok(rusqlite::types::ValueRef::Integer(number)) => Ok(number),
                Ok(other) => Err(format!("`{column}` is {}, not an integer", other.data_type())),
                Err(error) => Err(error.to_string()),
            };
            let event = number(query.event, EVENT)?;
            let event = u32::try_from(event).ok().filter(|event| *event < events);
            let event = event.ok_or_else(|| format!("`{EVENT}` is none of the {events} events of the batch"))?;
            let subscription = SubscriptionId(number(query.id, SUBSCRIPTION)?.cast_unsigned());
            // A rule notifies a subscription once for each event; of several rows the first counts.
            if !seen.insert((event, subscription)) {
                continue;
            }
            if matches.len() == MATCHES_MAX {
                return Err(format!("gives more than {MATCHES_MAX} matches for one event batch"));
            }
            let mut given = Vec::with_capacity(query.columns.len());
            for (name, kind, at) in &query.columns {
                let value = row.get_ref(*at).map_err(|error| error.to_string())?;
                if let rusqlite::types::ValueRef::Text(text) = value {
                    bytes += text.len();
                }
                given.push(values::from_sql(value, *kind).map_err(|why| format!("`{name}` gives {why}"))?);
            }
            if bytes > MATCH_BYTES_MAX {
                return Err(format!("gives more than {MATCH_BYTES_MAX} bytes of text for one event batch"));
            }
            matches.push(QueryMatch { event, subscription, values: given });
        }
        Ok(matches)
    }

    /// Queries can invent numbers, or take them from another class.
    fn check_subscriptions(&self, query: &Query, matches: &[QueryMatch]) -> Result<(), String> {
        let sql = format!("SELECT 1 FROM {} WHERE {SUBSCRIPTION} = ?1", quoted(query.subscription.as_str()));
        let failed = |error: Error| reason(&error);
        let mut statement = self.guarded.connection.prepare_cached(&sql).map_err(failed)?;
        for found in matches {
            if !statement.exists([found.subscription.0.cast_signed()]).map_err(failed)? {
                let (id, class) = (found.subscription, &query.subscription);
                return Err(format!(
                    "`{SUBSCRIPTION}` is {}, and `{id}` is no enabled subscription of `{class}`",
                    id.0
                ));
            }
        }
        Ok(())
    }

    fn failure(&self, query: &Query, error: &Error) -> String {
        if let Some(refused) = self.guarded.refused() {
            return refused;
        }
        match error.sqlite_error_code() {
            Some(ErrorCode::OperationInterrupted) => {
                format!("took longer than its timeout of {} s", query.timeout.as_secs_f64())
            }
            Some(ErrorCode::TooBig) => "creates a value that is too long".to_owned(),
            _ => reason(error),
        }
    }

    /// Bytes of the tables, in memory or in their temporary file.
    pub fn bytes(&self) -> u64 {
        let size = |pragma| self.guarded.connection.pragma_query_value(None, pragma, |row| row.get::<_, u64>(0));
        size("page_count").unwrap_or(0) * size("page_size").unwrap_or(0)
    }
}
