//! Results of queries, and operations that are refused.

mod states; // joins with values about earlier events

use std::{sync::Arc, time::Duration};

use expect_test::{Expect, expect};
use tocsin_model::{
    application::{Application, api_source},
    definition,
    event::{EventBatch, EventPacker},
    field::Fields,
    id::{EventBatchId, Name, SubscriberNumber, SubscriptionId},
    problem::Problem,
    subscription::SubscriptionParams,
    time::Timestamp,
    value::Value,
};

use super::*;
use crate::records::IndexedSubscription;

const ACCEPTED: i64 = 1_795_253_400_000_000; // 2026-11-21T09:30:00Z

/// No additional columns.
fn no_columns() -> ExtraColumns<'static> {
    static NONE: std::sync::LazyLock<Fields> = std::sync::LazyLock::new(|| Fields::new(Vec::new()));
    ExtraColumns { columns: &NONE, first: 0, rows: &[] }
}

fn name(text: &str) -> Name {
    text.parse().expect("a name")
}

/// An application with trades, watchers, and this query.
fn application(sql: &str) -> Application {
    let text = r#"
application: shop
events:
  trade: { fields: { symbol: string, price: number, size: integer, at: timestamp, tags: list, late: boolean } }
  other: { fields: { secret: string } }
subscriptions:
  watch: { fields: { symbol: string, limit: number, tags: list, since: timestamp, loud: { type: boolean, default: true } } }
  mute: { fields: { symbol: string } }
notifications:
  alert:
    fields: { symbol: string, total: number, count: integer, since: timestamp, all: list, loud: boolean }
    content: { templates: { base: { text: "{{ symbol }}" } } }
rules:
  sum: { on: trade, subscription: watch, notify: alert, timeout: 1s, sql: SQL }
"#;
    let quoted = serde_json::to_string(sql).expect("JSON");
    definition::read(&text.replace("SQL", &quoted), &|_| None).unwrap_or_else(|problems| panic!("{problems:?}"))
}

const ECHO: HostFunction = HostFunction {
    name: "echo",
    arguments: 1,
    call: |arguments| match &arguments[0] {
        Value::Text(text) if &**text == "bad" => Err("no".to_owned()),
        value => Ok(value.clone()),
    },
};

fn checked(sql: &str) -> Result<Arc<QuerySet>, Vec<Problem>> {
    let (set, problems) = QuerySet::check(&application(sql), &[], &[ECHO]);
    if problems.is_empty() { Ok(Arc::new(set)) } else { Err(problems) }
}

fn tables(sql: &str) -> QueryTables {
    let set = checked(sql).unwrap_or_else(|problems| panic!("{problems:?}"));
    let mut tables = QueryTables::open(set).expect("a database").expect("a query");
    for (id, class, values) in [
        (1, "watch", r#"{"symbol": "AB", "limit": 10, "tags": ["x", "y"], "since": "2026-11-21T09:00:00Z"}"#),
        (2, "watch", r#"{"symbol": "AB", "limit": 25.5, "loud": false}"#),
        (3, "watch", r#"{"symbol": "CD", "limit": 1}"#),
        (4, "mute", r#"{"symbol": "CD"}"#),
    ] {
        tables.put(&subscription(id, class, values), &[]);
    }
    tables
}

fn subscription(id: u64, class: &str, values: &str) -> IndexedSubscription {
    IndexedSubscription {
        id: SubscriptionId(id),
        subscriber: SubscriberNumber(id % 2),
        class: name(class),
        values: values.into(),
        terms: SubscriptionParams::default(),
        created_at: Timestamp(0),
        enabled_at: None,
        channel: Some(name("email")),
    }
}

fn batch(application: &Application, class: &str, events: &[&str]) -> (EventBatch, Fields) {
    let fields = application.events[class].fields.clone();
    let mut packer = EventPacker::new(fields.clone());
    for event in events {
        packer.push(&fields.row_from_json(event.as_bytes()).expect("an event"));
    }
    let batch = EventBatch {
        id: EventBatchId(7),
        application: name("shop"),
        version: 1,
        class: name(class),
        source: api_source(),
        received_at: Timestamp(ACCEPTED),
        accepted_at: Timestamp(ACCEPTED),
        snapshot_sequence: None,
        events: packer.finish(),
        chronicled: Default::default(),
    };
    (batch, fields)
}

const TRADES: [&str; 4] = [
    r#"{"symbol": "AB", "price": 12, "size": 2, "at": "2026-11-21T09:29:00Z", "tags": ["x", "z"]}"#,
    r#"{"symbol": "AB", "price": 1, "size": 3, "late": true}"#,
    r#"{"symbol": "CD", "price": 5, "size": 1}"#,
    r#"{"price": 7}"#,
];

fn run(tables: &mut QueryTables) -> Result<Vec<QueryMatch>, String> {
    let (batch, fields) = batch(&tables_application(tables), "trade", &TRADES);
    let mut firings = tables.run(&batch, &fields, &no_columns(), |_| true).expect("a whole batch");
    assert_eq!(firings.len(), 1);
    firings.remove(0).outcome
}

fn tables_application(tables: &QueryTables) -> Application {
    tables.set().application.clone()
}

/// The result of a query for the trades, a line for each match.
fn check(sql: &str, expected: Expect) {
    let shown = match run(&mut tables(sql)) {
        Err(reason) => reason,
        Ok(matches) => {
            let line = |found: &QueryMatch| {
                let values: Vec<String> =
                    found.values.iter().map(|value| serde_json::to_string(value).expect("JSON")).collect();
                format!("{} {} {}", found.event, found.subscription, values.join(" ")).trim_end().to_owned()
            };
            matches.iter().map(line).collect::<Vec<_>>().join("\n")
        }
    };
    expected.assert_eq(&shown);
}

/// The problems of a refused query.
fn check_refused(sql: &str, expected: Expect) {
    let problems = checked(sql).map(|_| ()).expect_err("problems");
    expected.assert_eq(&problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"));
}

#[test]
fn joins() {
    check(
        "SELECT e._event, w._subscription, e.symbol AS symbol, w.loud FROM events e JOIN watch w ON w.symbol = e.symbol
         AND w.\"limit\" <= e.price;",
        expect![[r#"
            0 s-1 "AB" true
            2 s-3 "CD" true"#]],
    );
}

#[test]
fn aggregates_over_the_batch() {
    check(
        "SELECT max(e._event) AS _event, w._subscription, sum(e.price * e.size) AS total, count(*) AS count
         FROM watch w JOIN events e USING (symbol) GROUP BY w._subscription HAVING total > w.\"limit\"",
        expect![[r#"
            1 s-1 27.0 2
            1 s-2 27.0 2
            2 s-3 5.0 1"#]],
    );
}

#[test]
fn other_classes_lists_and_times() {
    check(
        "WITH muted AS (SELECT symbol FROM mute)
         SELECT e._event, w._subscription, w.since, json_group_array(t.value) AS \"all\"
         FROM events e JOIN watch w ON w.symbol = e.symbol JOIN json_each(e.tags) t
         WHERE t.value IN (SELECT value FROM json_each(w.tags)) AND w.symbol NOT IN muted
         AND unixepoch('now') - unixepoch(e.at) = 60 GROUP BY 1, 2",
        expect![[r#"0 s-1 "2026-11-21T09:00:00Z" ["x"]"#]],
    );
}

#[test]
fn now_is_the_time_of_the_batch() {
    for now in ["'now'", "", "'subsec'"] {
        let sql = format!(
            "SELECT 0 AS _event, 1 AS _subscription, unixepoch({now}) AS count, datetime({now}) AS since,
                strftime('%Y-%m-%dT%H:%M:%SZ', current_timestamp) AS symbol"
        );
        check(&sql, expect![[r#"0 s-1 1795253400 "2026-11-21T09:30:00Z" "2026-11-21T09:30:00Z""#]]);
    }
    check(
        "SELECT 0 AS _event, 1 AS _subscription, datetime('now', 'localtime') AS since",
        expect!["datetime: the time zone of this machine is not available to rules; times are in UTC"],
    );
}

#[test]
fn functions_of_the_host() {
    check(
        "SELECT 0 AS _event, 1 AS _subscription, echo('good') AS symbol, echo(NULL) AS total",
        expect![[r#"0 s-1 "good" null"#]],
    );
    check("SELECT 0 AS _event, 1 AS _subscription, echo('bad') AS symbol", expect!["echo: no"]);
}

#[test]
fn mathematics() {
    check(
        "SELECT 0 AS _event, 1 AS _subscription, json_array(sqrt(16), sqrt(-1), pow(2, 10), ln(0), mod(7, 4), ceil(1.2),
            floor('x')) AS \"all\"",
        expect!["0 s-1 [4.0,null,1024.0,null,3.0,2.0,null]"],
    );
}

#[test]
fn joins_by_common_columns() {
    for join in ["JOIN watch USING (symbol)", "NATURAL JOIN (SELECT _subscription, symbol FROM watch)"] {
        check(&format!("SELECT _event, _subscription FROM events {join} WHERE symbol = 'CD'"), expect!["2 s-3"]);
    }
    // Both also have tags.
    check("SELECT _event, _subscription FROM events NATURAL JOIN watch", expect![""]);
}

#[test]
fn only_the_first_row_of_an_event_and_subscription_counts() {
    check(
        "SELECT 1 AS _event, _subscription, n.value AS count FROM watch, json_each('[3, 1, 2]') n WHERE _subscription < 3
         ORDER BY _subscription DESC, n.value",
        expect![[r#"
            1 s-2 1
            1 s-1 1"#]],
    );
}

#[test]
fn invalid_results_are_errors() {
    for (sql, reason) in [
        ("SELECT 4 AS _event, 1 AS _subscription", "`_event` is none of the 4 events of the batch"),
        ("SELECT -1 AS _event, 1 AS _subscription", "`_event` is none of the 4 events of the batch"),
        ("SELECT NULL AS _event, 1 AS _subscription", "`_event` is Null, not an integer"),
        ("SELECT 0 AS _event, 's-1' AS _subscription", "`_subscription` is Text, not an integer"),
        (
            "SELECT 0 AS _event, 4 AS _subscription",
            "`_subscription` is 4, and `s-4` is no enabled subscription of `watch`",
        ),
        ("SELECT 0 AS _event, 1 AS _subscription, 'x' AS total", "`total` gives text where a number is expected"),
        (
            "SELECT 0 AS _event, 1 AS _subscription, 1.5 AS count",
            "`count` gives should be an integer of 64 bits without fraction",
        ),
        ("SELECT 0 AS _event, 1 AS _subscription, json('{') AS symbol", "malformed JSON"),
        (
            "SELECT 0 AS _event, 1 AS _subscription, hex(printf('%3000000d', 1)) AS symbol",
            "creates a value that is too long",
        ),
    ] {
        assert_eq!(run(&mut tables(sql)), Err(reason.to_owned()), "{sql}");
    }
}

#[test]
fn changes_are_seen_by_the_next_batch() {
    let mut tables = tables("SELECT _event, _subscription FROM events JOIN watch USING (symbol)");
    let found_matches = |tables: &mut QueryTables| -> Vec<(u32, u64)> {
        run(tables).expect("matches").iter().map(|found| (found.event, found.subscription.0)).collect()
    };
    assert_eq!(found_matches(&mut tables), [(0, 1), (0, 2), (1, 1), (1, 2), (2, 3)]);
    tables.remove(SubscriptionId(2));
    tables.put(&subscription(1, "watch", r#"{"symbol": "CD"}"#), &[]);
    assert_eq!(found_matches(&mut tables), [(2, 1), (2, 3)]);
    tables.put(&subscription(1, "watch", "not an object"), &[]);
    assert_eq!(found_matches(&mut tables), [(2, 3)]);
}

#[test]
fn columns_besides_the_parameters() {
    check(
        "SELECT 0 AS _event, min(_subscription) AS _subscription, _channel AS symbol, _created_at AS since, count(*) AS count
         FROM watch GROUP BY _subscriber",
        expect![[r#"
            0 s-2 "email" "1970-01-01T00:00:00Z" 1
            0 s-1 "email" "1970-01-01T00:00:00Z" 2"#]],
    );
}

#[test]
fn batches_of_several_classes_take_turns() {
    let text = r#"
application: shop
events:
  trade: { fields: { symbol: string, price: number } }
  news: { fields: { symbol: string, text: string } }
subscriptions: { watch: { fields: { symbol: string } } }
notifications: { alert: { fields: { text: string }, content: { templates: { base: { text: x } } } } }
rules:
  price: { on: trade, subscription: watch, notify: alert, sql: "SELECT _event, _subscription, format('%.1f', price) AS text FROM events JOIN watch USING (symbol)" }
  text: { on: news, subscription: watch, notify: alert, sql: "SELECT _event, _subscription, text FROM events JOIN watch USING (symbol)" }
  off: { on: news, subscription: watch, notify: alert, enabled: false, sql: "SELECT _event, _subscription, text FROM events, watch" }
"#;
    let application = definition::read(text, &|_| None).unwrap_or_else(|problems| panic!("{problems:?}"));
    let (set, problems) = QuerySet::check(&application, &[], &[]);
    assert_eq!(problems, []);
    let mut tables = QueryTables::open(Arc::new(set)).expect("a database").expect("queries");
    tables.put(&subscription(1, "watch", r#"{"symbol": "AB"}"#), &[]);
    let mut found_matches = |class: &str, event: &str| {
        let (batch, fields) = batch(&application, class, &[event]);
        let firings = tables.run(&batch, &fields, &no_columns(), |_| true).expect("a whole batch");
        let first = |firing: &QueryFiring| firing.outcome.as_ref().expect("matches")[0].values[0].clone();
        firings.iter().map(first).collect::<Vec<_>>()
    };
    for _ in 0..2 {
        assert_eq!(found_matches("trade", r#"{"symbol": "AB", "price": 2}"#), [Value::from("2.0")]);
        assert_eq!(found_matches("news", r#"{"symbol": "AB", "text": "up"}"#), [Value::from("up")]);
    }
}

#[test]
fn events_of_an_older_version_and_of_other_classes() {
    let mut tables = tables("SELECT _event, _subscription, price AS total FROM events JOIN watch USING (symbol)");
    let application = tables_application(&tables);
    let (other, fields) = batch(&application, "other", &[r#"{"secret": "x"}"#]);
    assert!(!tables.concerns(&other.class));
    assert_eq!(tables.run(&other, &fields, &no_columns(), |_| true), Ok(Vec::new()));
    // The older version had no price, and sizes were text.
    let older = definition::read(
        "{ application: shop, events: { trade: { fields: { size: string, symbol: string } } } }",
        &|_| None,
    );
    let (old, fields) = batch(&older.expect("a definition"), "trade", &[r#"{"symbol": "CD", "size": "3"}"#]);
    let firings = tables.run(&old, &fields, &no_columns(), |_| true).expect("a whole batch");
    let expected = QueryMatch { event: 0, subscription: SubscriptionId(3), values: vec![Value::Null] };
    assert_eq!(firings[0].outcome, Ok(vec![expected]));
    assert_eq!(tables.run(&old, &fields, &no_columns(), |_| false), Ok(Vec::new()));
}

#[test]
fn slow_queries_are_stopped_and_do_not_affect_others() {
    for sql in [
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT 0 AS _event, max(i) AS _subscription FROM n",
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT 1 FROM n) SELECT 0 AS _event, i AS _subscription FROM n",
        "SELECT 0 AS _event, count(*) AS _subscription FROM json_each(printf('[%.*c1]', 999998, ',')) a",
    ] {
        let Ok(set) = checked(sql) else { panic!("{sql}") };
        let mut tables = QueryTables::open(set).expect("a database").expect("a query");
        let began = std::time::Instant::now();
        let outcome = run(&mut tables).expect_err("stopped");
        let expected = outcome == "took longer than its timeout of 1 s" || outcome == "malformed JSON";
        assert!(expected, "{sql}: {outcome}");
        assert!(began.elapsed() < Duration::from_secs(5), "{sql}");
    }
}

/// Calls that take SQLite minutes without a check of the deadline.
#[test]
fn single_function_calls_are_fast_or_stopped() {
    let text = |letter: &str, bytes: u32| format!("printf('%.*c', {bytes}, '{letter}')");
    let (long, part) = (text("a", 1_900_000), text("a", 900_000));
    let quick = "`_subscription` is 0, and `s-0` is no enabled subscription of `watch`";
    let stopped = "took longer than its timeout of 0.1 s";
    let check = |value: &str, expected: &str| {
        let sql = format!("SELECT 0 AS _event, {value} AS _subscription");
        let mut application = application(&sql);
        application.rules.values_mut().for_each(|rule| rule.timeout = Duration::from_millis(100));
        let (set, problems) = QuerySet::check(&application, &[], &[]);
        assert!(problems.is_empty(), "{problems:?}");
        let mut tables = QueryTables::open(Arc::new(set)).expect("a database").expect("a query");
        let reason = run(&mut tables).expect_err("stopped");
        // A slow machine may also stop the fast ones.
        assert!(reason == expected || reason == stopped, "{value}: {reason}");
    };
    check(&format!("instr({long}, {part} || 'b')"), quick);
    check(&format!("length(replace({long}, {part} || 'b', 'c')) - 1900000"), quick);
    check(&format!("length(trim({long}, {part}))"), quick);
    check(&format!("length(trim({long}, replace({}, 'b', 'bc') || 'a'))", text("b", 900_000)), quick);
    check(&format!("length(replace({long}, 'a', {part}))"), "creates a value that is too long");
    check(&format!("{long} LIKE '%{}b'", "a".repeat(990)), stopped);
    check(&format!("{long} GLOB '*{}c'", "[ab]".repeat(245)), stopped);
    let endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)";
    check(&format!("({endless} SELECT max(i) FROM n)"), stopped);
    check(&format!("({endless} SELECT max(length(upper({long} || i))) FROM n)"), stopped);
}

#[test]
fn slow_too_many_matches_are_an_error() {
    let sql =
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT 0 AS _event, i AS _subscription FROM n";
    let set = {
        let mut application = application(sql);
        application.rules.values_mut().for_each(|rule| rule.timeout = Duration::from_secs(600));
        QuerySet::check(&application, &[], &[]).0
    };
    let mut tables = QueryTables::open(Arc::new(set)).expect("a database").expect("a query");
    assert_eq!(run(&mut tables), Err("gives more than 1000000 matches for one event batch".to_owned()));
}

#[test]
fn a_query_only_reads() {
    for (sql, refused) in [
        ("INSERT INTO watch (_subscription) VALUES (1)", "may not change anything"),
        ("DELETE FROM events RETURNING _event, 1 AS _subscription", "may not change anything"),
        ("UPDATE watch SET symbol = 'x'", "may not change anything"),
        ("WITH x AS (SELECT 1) DELETE FROM watch", "may not change anything"),
        ("DROP TABLE watch", "may not"),
        ("CREATE TABLE x (y)", "may not"),
        ("CREATE TEMP VIEW x AS SELECT 1", "may not"),
        ("ALTER TABLE watch RENAME TO x", "may not"),
        ("PRAGMA query_only = 0", "may not use the pragma `query_only`"),
        ("ATTACH '/tmp/x' AS x", "may not use other databases"),
        ("VACUUM INTO '/tmp/x'", "is not a query"),
        ("BEGIN", "may not begin or end transactions"),
        ("SAVEPOINT x", "may not begin or end transactions"),
        ("ANALYZE", "may not"),
        ("REINDEX", "is not a query"),
        ("SELECT load_extension('x')", "may not call `load_extension`"),
        ("SELECT randomblob(1000000000)", "may not call `randomblob`"),
        ("SELECT random()", "may not call `random`"),
        ("SELECT zeroblob(1000000000)", "may not call `zeroblob`"),
        ("SELECT sqlite_version()", "may not call `sqlite_version`"),
        ("SELECT last_insert_rowid()", "may not call `last_insert_rowid`"),
        ("SELECT sql FROM sqlite_schema", "may not read `sqlite_master`"),
        ("SELECT stat FROM sqlite_stat1", "may not read `sqlite_stat1`"),
        ("SELECT count(*) FROM sqlite_schema", "may not read `sqlite_schema`"),
        ("SELECT name FROM pragma_database_list", "may not"),
        ("SELECT count(*) FROM pragma_table_list", "may not"),
        ("SELECT 1 FROM dbstat", "may not read `dbstat`"),
        ("EXPLAIN SELECT _event, _subscription FROM events, watch", "is not a query"),
        ("", "is not a query"),
        ("-- no_columns", "is not a query"),
    ] {
        let problems = checked(sql).map(|_| ()).expect_err(sql);
        assert!(problems[0].message.starts_with(refused), "{sql}: {}", problems[0]);
    }
}

#[test]
fn errors_have_a_position_and_a_hint() {
    check_refused(
        "SELECT _event, _subscription\nFROM events JOIN wach USING (symbol)",
        expect!["rules.sum.sql: no such table: wach; did you mean `watch`?"],
    );
    check_refused(
        "SELECT _event,\n  _subscription, e.symbl AS symbol FROM events e, watch",
        expect!["2:18: rules.sum.sql: no such column: e.symbl; did you mean `symbol`?"],
    );
    check_refused(
        "SELECT _event _subscription FRM events",
        expect![[r#"1:29: rules.sum.sql: near "FRM": syntax error"#]],
    );
    check_refused(
        "SELECT \"text\" AS symbol, _event, _subscription FROM events, watch",
        expect![[r#"1:8: rules.sum.sql: no such column: "text" - should this be a string literal in single-quotes?"#]],
    );
    check_refused(
        "SELECT symbol FROM watch",
        expect![[r#"
            rules.sum.sql: gives no column `_event`, the position of the event in its batch; select `events._event`
            rules.sum.sql: gives no column `_subscription`, the subscription to notify; select `_subscription` of `watch`"#]],
    );
    check_refused(
        "SELECT _event, _subscription, price, 1 AS totl, 2 AS count, 3 AS count FROM events, watch",
        expect![[r#"
            rules.sum.sql: gives the column `price`, and `alert` has no such field; name columns after the notification's fields by `AS`, or leave them out
            rules.sum.sql: gives the column `totl`, and `alert` has no such field; did you mean `total`?
            rules.sum.sql: gives the column `count` twice; give one of them another name by `AS`, or leave it out"#]],
    );
    check_refused(
        "SELECT _event, _subscription FROM events, watch WHERE price > :price",
        expect![
            "rules.sum.sql: has parameters such as `?1` or `:name`, which have no values; read what you need from `events` and the tables of the subscription classes"
        ],
    );
    check_refused(
        "SELECT _event, _subscription FROM events, watch; SELECT 1",
        expect!["rules.sum.sql: has more than one statement; keep one `SELECT`"],
    );
    check_refused(
        "SELECT _event, _subscription, random() AS count FROM events, watch",
        expect![
            "rules.sum.sql: may not call `random`: the query of a rule can only read; it is a `SELECT` from `events` and the tables `mute`, `watch`, with deterministic functions"
        ],
    );
}

#[test]
fn bombs_are_refused_at_once() {
    let deep = format!("SELECT {}1{} AS _event, 1 AS _subscription", "(".repeat(5_000), ")".repeat(5_000));
    let long = format!("SELECT 1 AS _event, 1 AS _subscription, '{}' AS symbol", "x".repeat(70_000));
    let wide = format!("SELECT 1 AS _event, 1 AS _subscription{}", " UNION SELECT 1, 2".repeat(60));
    let like = format!("SELECT 1 AS _event, 1 AS _subscription WHERE {}1", "1 AND ".repeat(5_000));
    for sql in [deep, long, wide, like] {
        assert!(checked(&sql).is_err(), "{}", &sql[..60]);
    }
}

#[test]
fn plans_name_their_indexes_and_warn_of_scans() {
    let plan = |sql: &str| {
        let set = checked(sql).unwrap_or_else(|problems| panic!("{problems:?}"));
        let (plan, warnings) = set.plan(&name("sum")).expect("a plan");
        let warnings =
            warnings.iter().map(|warning| format!("! {}", warning.split(", about").next().unwrap_or_default()));
        plan.iter().cloned().chain(warnings).collect::<Vec<_>>().join("\n")
    };
    expect![[r#"
        SCAN e
        SEARCH w USING COVERING INDEX watch:symbol,limit (symbol=? AND limit<?)"#]]
    .assert_eq(&plan(
        "SELECT _event, _subscription FROM events e JOIN watch w ON w.symbol = e.symbol AND w.\"limit\" < e.price",
    ));
    expect![[r#"
        SCAN w
        SCAN e
        ! no index answers: the query reads every subscription of `watch` for each event batch"#]]
    .assert_eq(&plan("SELECT _event, _subscription FROM watch w CROSS JOIN events e WHERE w.\"limit\" * 2 < e.price"));
    expect![[r#"
        SCAN e
        SCAN w
        ! no index answers: the query reads every subscription of `watch` repeatedly for each event batch, inside another loop"#]]
    .assert_eq(&plan("SELECT _event, _subscription FROM events e CROSS JOIN watch w WHERE w.\"limit\" * 2 < e.price"));
}

#[test]
fn only_columns_that_are_read_are_stored() {
    let set = checked("SELECT _event, _subscription FROM events e JOIN watch w ON w.symbol = e.symbol").expect("right");
    let plan = &set.tables["watch"];
    assert_eq!((plan.fields.len(), plan.indexes.len()), (1, 1));
    assert!(!set.tables.contains_key("mute"));
    assert_eq!(set.columns(&name("sum")), Some(Vec::new()));
}

#[test]
fn names_that_sql_cannot_distinguish_are_refused() {
    let text = r#"
application: twins
events: { e: { fields: { a: string, A: string } } }
subscriptions: { s: { fields: {} }, S: { fields: {} }, events: { fields: {} } }
notifications: { n: { content: { templates: { base: { text: x } } } } }
rules: { r: { on: e, subscription: s, notify: n, sql: "SELECT _event, _subscription FROM events, s" } }
"#;
    let application = definition::read(text, &|_| None).unwrap_or_else(|problems| panic!("{problems:?}"));
    let (_, problems) = QuerySet::check(&application, &[], &[]);
    expect![[r#"
        rules.r.sql: the subscription classes `S` and `s` differ only in case, which SQL does not distinguish; rename one of them, or write the rule with `when`
        rules.r.sql: the fields of `e`, `a` and `A` differ only in case, which SQL does not distinguish; rename one of them, or write the rule with `when`
        rules.r.sql: the subscription class `events` has a name that means something else in SQL; rename the class, or write the rule with `when`"#]]
    .assert_eq(&problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"));
}
