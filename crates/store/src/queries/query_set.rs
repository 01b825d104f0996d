//! The prepared queries of an application: checked, planned, and bound to their rules.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use rusqlite::{Connection, Error};
use tocsin_model::{
    application::{Application, Rule},
    field::{FieldType, Fields},
    id::Name,
    problem::{Code, Problem, closest},
};

use crate::queries::{
    HostFunction, StateTable,
    guard::GuardedConnection,
    plan,
    schema::{self, CHANNEL, CREATED_AT, EVENT, EVENTS, RowKind, SUBSCRIBER, SUBSCRIPTION, Shape, TablePlan},
};

/// Maximum time to prepare one query.
const PREPARING_MAX: Duration = Duration::from_secs(2);

/// The checked queries of one version of an application. Immutable.
#[derive(Debug)]
pub struct QuerySet {
    pub(super) application: Application,
    pub(super) host: &'static [HostFunction],
    pub(super) queries: BTreeMap<Name, Query>,
    /// All tables besides `events` that a query can read.
    pub(super) shapes: BTreeMap<String, Shape>,
    /// The tables that queries read.
    pub(super) tables: BTreeMap<String, TablePlan>,
}

/// The query of a rule.
#[derive(Debug)]
pub(super) struct Query {
    pub(super) sql: String,
    pub(super) on: Name,
    pub(super) subscription: Name,
    pub(super) enabled: bool,
    pub(super) timeout: Duration,
    /// Position of `_event` in the result columns.
    pub(super) event: usize,
    /// Position of `_subscription`.
    pub(super) id: usize,
    /// The notification fields in the result, with their positions.
    pub(super) columns: Vec<(Name, FieldType, usize)>,
    /// The fields of the event class that it reads.
    pub(super) reads: BTreeSet<usize>,
    /// The query plan, as text of SQLite.
    pub(super) plan: Vec<String>,
    pub(super) warnings: Vec<String>,
}

impl QuerySet {
    /// Checks the queries of an application by preparing them against empty tables. Classes may have additional
    /// fields at their ends: their values are passed with each subscription and event batch. `states` are additional
    /// tables, whose entries are stored by [`QueryTables::keep`].
    ///
    /// The set contains the valid queries; the problems describe all errors of the others, with the path of the rule
    /// and the position in the query if SQLite reports it.
    pub fn check(
        application: &Application,
        states: &[StateTable],
        host: &'static [HostFunction],
    ) -> (QuerySet, Vec<Problem>) {
        let mut set = QuerySet {
            application: application.clone(),
            host,
            queries: BTreeMap::new(),
            shapes: Shape::all(application, states),
            tables: BTreeMap::new(),
        };
        let mut problems = Vec::new();
        for (name, rule) in &application.rules {
            let Some(sql) = &rule.sql else { continue };
            let path = format!("rules.{name}.sql");
            match set.add(name, rule, sql) {
                Ok(()) => {}
                Err(found) => {
                    problems.extend(found.into_iter().map(|problem| Problem { path: path.clone(), ..problem }))
                }
            }
        }
        if let Err(error) = set.explain() {
            problems.push(Problem::new(
                Code::Unavailable,
                "rules",
                format!("the query plans are not available: {error}"),
            ));
        }
        (set, problems)
    }

    /// The fields that queries read: event classes, each with a field.
    pub fn reads_of_events(&self) -> impl Iterator<Item = (&Name, &Name)> {
        self.queries.values().flat_map(|query| {
            let fields = &self.application.events[&query.on].fields;
            query.reads.iter().map(move |at| (&query.on, &fields[*at].name))
        })
    }

    /// The fields that queries read: subscription classes, each with a field.
    pub fn reads_of_subscriptions(&self) -> impl Iterator<Item = (&Name, &Name)> {
        self.tables.iter().flat_map(|(table, plan)| {
            let shape = &self.shapes[table];
            let class = match &shape.rows {
                RowKind::Subscriptions(class) => Some(class),
                RowKind::Entries { .. } => None,
            };
            plan.fields.iter().filter_map(move |at| Some((class?, &shape.fields[*at].name)))
        })
    }

    /// The state tables that queries read, by name.
    pub fn reads_of_states(&self) -> impl Iterator<Item = &str> {
        let are_entries = |table: &&String| matches!(self.shapes[*table].rows, RowKind::Entries { .. });
        self.tables.keys().filter(are_entries).map(String::as_str)
    }

    /// Whether there are no queries.
    pub fn is_empty(&self) -> bool {
        self.queries.is_empty()
    }

    /// The notification fields that a rule's query returns, in the order of [`QueryMatch::values`]. `None`: the rule
    /// has no valid query.
    pub fn columns(&self, rule: &Name) -> Option<Vec<Name>> {
        self.queries.get(rule).map(|query| query.columns.iter().map(|(name, ..)| name.clone()).collect())
    }

    /// The plan of a rule's query, as text of SQLite, and warnings for its author.
    pub fn plan(&self, rule: &Name) -> Option<(&[String], &[String])> {
        self.queries.get(rule).map(|query| (&*query.plan, &*query.warnings))
    }

    fn add(&mut self, name: &Name, rule: &Rule, sql: &str) -> Result<(), Vec<Problem>> {
        let one = |problem| vec![problem];
        let application = &self.application;
        let missing = |what: &str, name: &Name| {
            one(Problem::new(Code::UnknownReference, "", format!("there is no {what} class `{name}`"))
                .param("value", name.to_string())
                .param("kind", "class"))
        };
        let event = application.events.get(&rule.on).ok_or_else(|| missing("event", &rule.on))?;
        if !application.subscriptions.contains_key(&rule.subscription) {
            return Err(missing("subscription", &rule.subscription));
        }
        let notification =
            application.notifications.get(&rule.notify).ok_or_else(|| missing("notification", &rule.notify))?;
        if sql.contains('\0') {
            return Err(one(Problem::new(Code::InvalidCharacters, "", "has a character of code 0").hint("remove it")));
        }
        self.check_spelling(&rule.on)?;
        let sql = sql.trim_end().trim_end_matches(';');

        // First with all tables and columns, to find out what it reads.
        let whole = self.shapes.iter().map(|(table, shape)| (table.clone(), TablePlan::whole(&shape.fields))).collect();
        let guarded = self.open(&whole, &event.fields).map_err(|error| one(preparation_problem(&error)))?;
        let names = self.column_names(&guarded, sql, &event.fields).map_err(one)?;
        let reads = Reads::of(&guarded, sql).map_err(|error| one(preparation_problem(&error)))?;
        drop(guarded);
        let (event_at, id_at, columns) = result_columns(&names, &notification.fields, rule)?;

        // Then with every index that might help, to find out which are used.
        let mut tables = BTreeMap::new();
        for (table, shape) in &self.shapes {
            if *table == rule.subscription.as_str() || reads.tables.contains(table) {
                let fields =
                    reads.fields(table, shape.fields.len(), shape.head().len(), |column| shape.position(column));
                let plan = TablePlan { fields: fields.clone(), indexes: BTreeSet::new() };
                tables.insert(table.clone(), plan.with_candidates(shape, &fields));
            }
        }
        let used = self
            .open(&tables, &event.fields)
            .and_then(|guarded| guarded.run_with_deadline(PREPARING_MAX, |connection| plan::of(connection, sql)))
            .map_err(|error| one(preparation_problem(&error)))?;
        let place = |column: &str| event.fields.position(column);
        let events_read = reads.fields(EVENTS, event.fields.len(), schema::COLUMNS_OF_EVENTS, place);
        for (table, mut plan) in tables {
            let shape = &self.shapes[&table];
            plan.indexes.retain(|index| used.indexes.contains(&schema::index_name(&table, shape, index)));
            let kept = self.tables.entry(table).or_default();
            kept.fields.extend(plan.fields);
            kept.indexes.extend(plan.indexes);
        }
        let query = Query {
            sql: sql.to_owned(),
            on: rule.on.clone(),
            subscription: rule.subscription.clone(),
            enabled: rule.enabled,
            timeout: rule.timeout,
            event: event_at,
            id: id_at,
            columns,
            reads: events_read,
            plan: Vec::new(),
            warnings: Vec::new(),
        };
        self.queries.insert(name.clone(), query);
        Ok(())
    }

    fn open(&self, tables: &BTreeMap<String, TablePlan>, events: &Fields) -> rusqlite::Result<GuardedConnection> {
        let guarded = schema::open(&self.shapes, tables, self.host)?;
        schema::set_events(&guarded, events)?;
        Ok(guarded)
    }

    /// Stores the plan of each query on the final tables.
    fn explain(&mut self) -> rusqlite::Result<()> {
        if self.queries.is_empty() {
            return Ok(());
        }
        let mut plans = Vec::new();
        let guarded = schema::open(&self.shapes, &self.tables, self.host)?;
        for (name, query) in &self.queries {
            schema::set_events(&guarded, &self.application.events[&query.on].fields)?;
            let plan = guarded.run_with_deadline(PREPARING_MAX, |connection| plan::of(connection, &query.sql))?;
            plans.push((name.clone(), plan));
        }
        for (name, plan) in plans {
            let Some(query) = self.queries.get_mut(&name) else { continue };
            query.plan = plan.lines;
            let warning =
                |(table, nested): (&String, &bool)| Some(self.shapes.get(table)?.scan_warning(table, *nested));
            query.warnings = plan.scans.iter().filter_map(warning).collect();
        }
        Ok(())
    }
}

impl Shape {
    fn scan_warning(&self, table: &str, nested: bool) -> String {
        let row = match self.rows {
            RowKind::Subscriptions(_) => "subscription",
            RowKind::Entries { .. } => "key",
        };
        let often =
            if nested { "repeatedly for each event batch, inside another loop" } else { "for each event batch" };
        format!(
            "no index answers: the query reads every {row} of `{table}` {often}, about a second for five million rows; \
             compare a column of `events` with a column of `{table}` by `=` or an order"
        )
    }
}

impl QuerySet {
    /// Checks for names that SQL does not distinguish or cannot express.
    fn check_spelling(&self, on: &Name) -> Result<(), Vec<Problem>> {
        let mut problems = Vec::new();
        let mut check_names = |what: &str, names: &mut dyn Iterator<Item = String>| {
            let mut seen: BTreeMap<String, String> = BTreeMap::new();
            for name in names {
                if let Some(other) = seen.insert(name.to_ascii_lowercase(), name.clone()) {
                    let message =
                        format!("{what} `{other}` and `{name}` differ only in case, which SQL does not distinguish");
                    problems.push(
                        Problem::new(Code::Duplicate, "", message)
                            .hint("rename one of them, or write the rule with `when`"),
                    );
                }
            }
        };
        let is_class = |name: &&String| matches!(self.shapes[*name].rows, RowKind::Subscriptions(_));
        check_names("the subscription classes", &mut self.shapes.keys().filter(is_class).cloned());
        check_names("the chronicles", &mut self.shapes.keys().filter(|name| !is_class(name)).cloned());
        for (table, shape) in &self.shapes {
            check_names(&format!("the fields of `{table}`,"), &mut shape.columns());
        }
        if let Some(class) = self.application.events.get(on) {
            check_names(
                &format!("the fields of `{on}`,"),
                &mut class.fields.iter().map(|field| field.name.to_string()),
            );
        }
        for name in self.application.subscriptions.keys() {
            let lower = name.as_str().to_ascii_lowercase();
            if lower == EVENTS || lower.starts_with("sqlite_") {
                let message = format!("the subscription class `{name}` has a name that means something else in SQL");
                problems.push(
                    Problem::new(Code::ReservedName, "", message)
                        .hint("rename the class, or write the rule with `when`"),
                );
            }
        }
        if problems.is_empty() { Ok(()) } else { Err(problems) }
    }

    /// The names of the result columns, if the statement is a single query.
    fn column_names(&self, guarded: &GuardedConnection, sql: &str, event: &Fields) -> Result<Vec<String>, Problem> {
        let inspect = |connection: &Connection| {
            let statement = connection.prepare(sql)?;
            let names = statement.column_names().map(str::to_owned).collect::<Vec<_>>();
            let is_query = statement.readonly() && statement.is_explain() == 0 && !names.is_empty();
            Ok((names, is_query, statement.parameter_count()))
        };
        let inspected: rusqlite::Result<_> = guarded.run_untrusted(PREPARING_MAX, inspect);
        match inspected {
            Err(error) => Err(self.sql_problem(guarded, sql, &error, event)),
            Ok((_, false, _)) => {
                Err(Problem::syntax("sql", "", "is not a query").hint("write a `SELECT`, or `WITH ... SELECT`"))
            }
            Ok((_, _, parameters)) if parameters > 0 => {
                let problem =
                    Problem::new(Code::Unsupported, "", "has parameters such as `?1` or `:name`, which have no values");
                Err(problem
                    .hint(format!("read what you need from `{EVENTS}` and the tables of the subscription classes")))
            }
            Ok((names, ..)) => Ok(names),
        }
    }
}

/// The positions of `_event` and `_subscription`, and the fields of the other columns.
pub(super) type ResultColumns = (usize, usize, Vec<(Name, FieldType, usize)>);

pub(super) fn result_columns(names: &[String], fields: &Fields, rule: &Rule) -> Result<ResultColumns, Vec<Problem>> {
    let mut problems = Vec::new();
    let (mut event, mut id, mut columns) = (None, None, Vec::<(Name, FieldType, usize)>::new());
    let twice = |name: &str| {
        Problem::new(Code::Duplicate, "", format!("gives the column `{name}` twice"))
            .param("value", name.to_string())
            .hint("give one of them another name by `AS`, or leave it out")
    };
    for (at, name) in names.iter().enumerate() {
        let known = match name.as_str() {
            EVENT => Some(&mut event),
            SUBSCRIPTION => Some(&mut id),
            _ => None,
        };
        if let Some(place) = known {
            if place.replace(at).is_some() {
                problems.push(twice(name));
            }
            continue;
        }
        let Some(field) = fields.position(name).map(|at| &fields[at]) else {
            let unknown = fields.unknown(name);
            let problem = Problem::new(
                Code::UnknownReference,
                "",
                format!("gives the column `{name}`, and `{}` has no such field", rule.notify),
            )
            .param("kind", "field");
            let hint = match unknown.hint {
                Some(hint) if hint.starts_with("did") => hint,
                _ => "name columns after the notification's fields by `AS`, or leave them out".to_owned(),
            };
            problems.push(problem.hint(hint));
            continue;
        };
        if columns.iter().any(|(known, ..)| known == &field.name) {
            problems.push(twice(name));
        } else if rule.with.contains_key(&field.name) {
            let problem = Problem::new(
                Code::ConflictingMembers,
                "",
                format!("gives the column `{name}`, which `with` computes as well"),
            );
            problems.push(problem.hint("keep one of them"));
        } else {
            columns.push((field.name.clone(), field.kind, at));
        }
    }
    let mut missing = |column: &str, what: &str, hint: &str| {
        problems.push(
            Problem::new(Code::Required, "", format!("gives no column `{column}`, {what}")).hint(hint.to_owned()),
        );
    };
    if event.is_none() {
        missing(EVENT, "the position of the event in its batch", "select `events._event`");
    }
    if id.is_none() {
        missing(
            SUBSCRIPTION,
            "the subscription to notify",
            &format!("select `_subscription` of `{}`", rule.subscription),
        );
    }
    match (event, id) {
        (Some(event), Some(id)) if problems.is_empty() => Ok((event, id, columns)),
        _ => Err(problems),
    }
}

/// Tables and columns that a query reads.
pub(super) struct Reads {
    tables: BTreeSet<String>,
    /// By table and column name, as written in the query.
    named: BTreeSet<(String, String)>,
    /// By table and column position, as read. `USING` reads one name in two tables.
    placed: BTreeSet<(String, usize)>,
    /// Whether its meaning depends on columns that it does not read.
    all: bool,
}

impl Reads {
    /// Reads of the query that was just prepared against complete tables without indexes.
    fn of(guarded: &GuardedConnection, sql: &str) -> rusqlite::Result<Reads> {
        let named = guarded.reads();
        let plan = guarded.run_with_deadline(PREPARING_MAX, |connection| plan::of(connection, sql))?;
        let of_plan = plan.columns.iter().map(|(table, _)| table).chain(plan.scans.keys());
        let tables = named.iter().map(|(table, _)| table).chain(of_plan).cloned().collect();
        let all = sql.to_ascii_lowercase().contains("natural");
        Ok(Reads { tables, named, placed: plan.columns, all })
    }

    /// The fields of a table that are read: of `count` fields, after `before` other columns.
    fn fields(
        &self,
        table: &str,
        count: usize,
        before: usize,
        position: impl Fn(&str) -> Option<usize>,
    ) -> BTreeSet<usize> {
        if self.all {
            return (0..count).collect();
        }
        let named = self.named.iter().filter(|(of, _)| of == table).filter_map(|(_, column)| position(column));
        let placed =
            self.placed.iter().filter(|(of, _)| of == table).filter_map(|(_, place)| place.checked_sub(before));
        named.chain(placed).filter(|at| *at < count).collect()
    }
}

impl QuerySet {
    /// Converts an error of SQLite into a problem with position and hint.
    fn sql_problem(&self, guarded: &GuardedConnection, sql: &str, error: &Error, event: &Fields) -> Problem {
        if let Some(refused) = guarded.refused() {
            let problem = Problem::new(Code::Unsupported, "", format!("{refused}: the query of a rule can only read"));
            return problem.hint(format!(
                "it is a `SELECT` from `{EVENTS}` and the tables {}, with deterministic \
                 functions",
                list(self.shapes.keys().map(String::as_str))
            ));
        }
        match error {
            Error::MultipleStatement => {
                Problem::syntax("sql", "", "has more than one statement").hint("keep one `SELECT`")
            }
            Error::SqlInputError { msg, offset, .. } => {
                let problem = self.with_hint(msg, event);
                match usize::try_from(*offset).ok().and_then(|offset| sql.get(..offset)) {
                    Some(before) => {
                        let line = before.matches('\n').count() + 1;
                        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
                        problem.position(line as u32, column as u32)
                    }
                    None => problem,
                }
            }
            Error::SqliteFailure(_, Some(message)) => self.with_hint(message, event),
            error => preparation_problem(error),
        }
    }

    fn with_hint(&self, message: &str, event: &Fields) -> Problem {
        let problem = Problem::syntax("sql", "", message);
        match self.hint(message, event) {
            Some(hint) => problem.hint(hint),
            None => problem,
        }
    }

    fn hint(&self, message: &str, event: &Fields) -> Option<String> {
        if let Some(table) = message.strip_prefix("no such table: ") {
            let known = || self.shapes.keys().map(String::as_str).chain([EVENTS]);
            return Some(match closest(table, known()) {
                Some(meant) => format!("did you mean `{meant}`?"),
                None => format!("there are {}", list(known())),
            });
        }
        if let Some(column) = message.strip_prefix("no such column: ") {
            let column = column.split(" - ").next().unwrap_or(column);
            let column = column.rsplit('.').next().unwrap_or(column);
            let of_tables: Vec<String> = self.shapes.values().flat_map(Shape::columns).collect();
            let of_events = event.iter().map(|field| field.name.as_str());
            let names = of_tables.iter().map(String::as_str).chain(of_events);
            let known = names.chain([EVENT, SUBSCRIPTION, SUBSCRIBER, CHANNEL, CREATED_AT]);
            return closest(column, known).map(|meant| format!("did you mean `{meant}`?"));
        }
        None
    }
}

pub(super) fn list<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<String> = names.map(|name| format!("`{name}`")).collect();
    names.join(", ")
}

pub(super) fn preparation_problem(error: &Error) -> Problem {
    Problem::syntax("sql", "", format!("cannot be prepared: {}", reason(error)))
}

/// The message of SQLite without the text of the statement.
pub(super) fn reason(error: &Error) -> String {
    match error {
        Error::SqlInputError { msg, .. } => msg.clone(),
        Error::SqliteFailure(_, Some(message)) => message.clone(),
        error => error.to_string(),
    }
}
