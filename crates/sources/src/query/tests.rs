use std::ops::Range;

use async_trait::async_trait;
use serde_json::{Value as Json, json};
use tocsin_test_peers::{Peer, missing};

use crate::{
    conformance::{Oversize, Subject, exercise, silent_server},
    items::Cell,
    sql::{
        SqlValue,
        servers::{Server, query_request, untyped},
    },
    testing::Harness,
};

/// Fills a table, and takes its rows over crashes.
async fn rows_are_taken_once(server: Server) {
    let mut database = server.connect().await;
    let table = "CREATE TABLE quakes (nr BIGINT PRIMARY KEY, id VARCHAR(50), magnitude NUMERIC(6, 1), done INTEGER)";
    database.run(table, &[SqlValue::Null]).await.expect("made");
    let numbers = |from: u32, to: u32| (from..=to).map(|number| untyped(&number.to_string())).collect::<Vec<_>>();
    let insert = "INSERT INTO quakes (nr, id, magnitude) VALUES (:mark, 'q', 4.5)";
    database.run(insert, &numbers(1, 1_200)).await.expect("filled");

    let mut harness = Harness::new(
        "query",
        json!({
            "database": server.address, "every": "1ms", "mark": "nr", "start": "0",
            "query": "SELECT nr, id, magnitude, nr AS tag FROM quakes WHERE nr > :mark ORDER BY nr",
            "after": "UPDATE quakes SET done = 1 WHERE nr <= :mark",
            "fields": {"id": "tag", "magnitude": "magnitude"},
        }),
    );
    harness.folders = vec![server.folder()];
    // A crash before the commit, then one after it but before the `after` statement.
    assert_eq!(harness.next().await.events.count(), 1_000);
    harness.crash();
    let batch = harness.next().await;
    let mut events = crate::testing::shown(&batch.events);
    harness.commit(batch.marks);
    harness.crash();
    events.extend(harness.take_events(200).await);
    database.run(insert, &numbers(1_201, 1_203)).await.expect("filled");
    events.extend(harness.take_events(3).await);
    let expected: Vec<String> =
        (1..=1_203).map(|number| format!("{{\"id\":\"{number}\",\"magnitude\":4.5}}")).collect();
    assert_eq!(events, expected);
    let done = database.query(query_request("SELECT count(*) AS n FROM quakes WHERE done = 1")).await.expect("counted");
    assert_eq!(done.rows, [[Cell::Text("1203".to_owned())]]);

    for harm in ["DELETE FROM quakes", "SELECT 1 AS nr WHERE 1 > :mark; DROP TABLE quakes", "SELECT nr FROM nowhere"] {
        assert!(database.query(query_request(harm)).await.is_err(), "{harm}");
    }
    let left = database.query(query_request("SELECT count(*) AS n FROM quakes")).await.expect("it is there");
    assert_eq!(left.rows, [[Cell::Text("1203".to_owned())]]);

    database.run("CREATE TABLE notes (words VARCHAR(60000))", &[SqlValue::Null]).await.expect("made");
    let notes = vec![untyped(&"x".repeat(60_000)); 20];
    database.run("INSERT INTO notes (words) VALUES (:mark)", &notes).await.expect("filled");
    let found = database.query(query_request("SELECT words FROM notes")).await.expect("asked");
    assert_eq!((found.rows.len(), found.more), (18, true), "a batch ends with the row that goes beyond 1 MiB");
}

#[tokio::test]
async fn rows_of_sqlite_are_taken_once() {
    rows_are_taken_once(Server::sqlite()).await;
}

#[tokio::test]
async fn slow_rows_of_postgres_are_taken_once() {
    if missing(&[Peer::Postgres]) {
        return;
    }
    rows_are_taken_once(Server::postgres()).await;
}

#[tokio::test]
async fn slow_rows_of_mariadb_are_taken_once() {
    if missing(&[Peer::Mariadb]) {
        return;
    }
    rows_are_taken_once(Server::mariadb()).await;
}

#[tokio::test]
async fn statements_cannot_access_other_files_and_settings() {
    let server = Server::sqlite();
    let mut database = server.connect().await;
    for harm in [
        "ATTACH '/tmp/x.db' AS x",
        "PRAGMA writable_schema = 1",
        "SELECT load_extension('x')",
        "SELECT randomblob(1000000000)",
    ] {
        assert!(database.query(query_request(harm)).await.is_err(), "{harm}");
        assert!(database.run(harm, &[SqlValue::Null]).await.is_err(), "{harm}");
    }
}

/// Follows a table by its mark: existing rows, then new rows, with a restart between all batches.
async fn read_in_batches(
    server: &Server,
    column: &str,
    start: Option<&str>,
    before: &[&str],
    after: &[&str],
) -> Vec<String> {
    let mut database = server.connect().await;
    let _ = database.run("DROP TABLE marked", &[SqlValue::Null]).await;
    let table = format!("CREATE TABLE marked (m {column}, v VARCHAR(50))");
    database.run(&table, &[SqlValue::Null]).await.expect("made");
    let mut options = json!({
        "database": server.address, "every": "1ms", "mark": "m", "fields": {"id": "v"},
        "query": "SELECT m, v FROM marked WHERE m > :mark ORDER BY m",
    });
    match start {
        Some(start) => options["start"] = json!(start),
        None => options["query"] = json!("SELECT m, v FROM marked WHERE m > :mark OR :mark IS NULL ORDER BY m"),
    }
    let mut harness = Harness::new("query", options);
    harness.folders = vec![server.folder()];
    let mut events = Vec::new();
    let mut number = 0;
    for rows in [before, after] {
        for value in rows {
            number += 1;
            let insert = format!("INSERT INTO marked VALUES ({value}, 'r{number}')");
            database.run(&insert, &[SqlValue::Null]).await.expect("filled");
        }
        events.extend(harness.take_events(rows.len()).await);
        // The mark is stored in the journal each time.
        harness.crash();
    }
    // The next row is the new one: none was skipped and none is repeated.
    let last = after.last().expect("a row");
    let insert = format!("INSERT INTO marked VALUES ({}, 'end')", next_value(last));
    database.run(&insert, &[SqlValue::Null]).await.expect("filled");
    events.extend(harness.take_events(1).await);
    events
}

/// A value beyond this one, of its type.
fn next_value(value: &str) -> String {
    match value.strip_suffix('\'') {
        Some(bytes) if bytes.starts_with('x') => format!("{bytes}02'"),
        Some(text) => format!("{text}z'"),
        None => format!("{value}9"),
    }
}

fn rows_in_order(count: usize) -> Vec<String> {
    (1..=count).map(|number| format!("{{\"id\":\"r{number}\"}}")).chain(["{\"id\":\"end\"}".to_owned()]).collect()
}

#[tokio::test]
async fn d_a_mark_of_sqlite_keeps_its_type() {
    let server = Server::sqlite();
    for column in ["TEXT", "VARCHAR(20)", "", "CHAR(3) COLLATE NOCASE"] {
        let found = read_in_batches(&server, column, Some("000"), &["'001'", "'002'"], &["'003'", "'004'"]).await;
        assert_eq!(found, rows_in_order(4), "{column:?}");
        let found =
            read_in_batches(&server, column, Some("0"), &["'01E6'", "'1.50'", "'1e5'"], &["'1e6'", "'2'"]).await;
        assert_eq!(found, rows_in_order(5), "{column:?}");
    }
    for column in ["INTEGER", "BIGINT PRIMARY KEY", "NUMERIC", ""] {
        let found =
            read_in_batches(&server, column, Some("0"), &["2", "9007199254740993"], &["9007199254740994"]).await;
        assert_eq!(found, rows_in_order(3), "{column:?}");
        let found = read_in_batches(&server, column, None, &["-5", "2"], &["10"]).await;
        assert_eq!(found, rows_in_order(3), "{column:?}");
    }
    for column in ["REAL", "DOUBLE", ""] {
        let found =
            read_in_batches(&server, column, Some("0.05"), &["0.1", "0.1 + 0.2"], &["0.3000000000000001"]).await;
        assert_eq!(found, rows_in_order(3), "{column:?}");
    }
    for column in ["BLOB", ""] {
        let found = read_in_batches(&server, column, None, &["x'00ff'", "x'fe'"], &["x'ff01'"]).await;
        assert_eq!(found[..3], rows_in_order(3)[..3], "{column:?}");
    }
}

#[tokio::test]
async fn d_a_mark_stored_by_an_older_version_is_continued() {
    let server = Server::sqlite();
    let mut database = server.connect().await;
    for (column, stored, left) in
        [("TEXT", "002", "'003'"), ("", "002", "'003'"), ("INTEGER", "2", "3"), ("", "2", "3"), ("REAL", "2.5", "3.5")]
    {
        let _ = database.run("DROP TABLE kept", &[SqlValue::Null]).await;
        database.run(&format!("CREATE TABLE kept (m {column}, v TEXT)"), &[SqlValue::Null]).await.expect("made");
        let literal = if left.starts_with('\'') { format!("'{stored}'") } else { stored.to_owned() };
        for value in [literal.as_str(), left] {
            let insert = format!("INSERT INTO kept VALUES ({value}, {value})");
            database.run(&insert, &[SqlValue::Null]).await.expect("filled");
        }
        let options = json!({
            "database": server.address, "every": "1ms", "mark": "m", "fields": {"id": "v"},
            "query": "SELECT m, v FROM kept WHERE m > :mark ORDER BY m",
        });
        let mut harness = Harness::new("query", options);
        harness.folders = vec![server.folder()];
        harness.marks = vec![tocsin_model::mark::Mark::set("reached", stored.to_owned())];
        assert_eq!(harness.take_events(1).await, [format!("{{\"id\":\"{}\"}}", left.trim_matches('\''))], "{column}");
        let parts: Vec<&str> = harness.marks.iter().map(|mark| &*mark.part).collect();
        assert!(parts.contains(&"position") && !parts.contains(&"reached"), "{parts:?}");
    }
}

#[tokio::test]
async fn d_rows_of_one_mark_stay_together_and_rows_without_one_are_rejected_once() {
    let server = Server::sqlite();
    let mut database = server.connect().await;
    database.run("CREATE TABLE tied (m INTEGER, v INTEGER)", &[SqlValue::Null]).await.expect("made");
    // The batch limit is within the rows of the mark 2, and the rows of the mark 3 exceed one batch.
    for (mark, count) in [(1, 900), (2, 200), (3, 1_500)] {
        let rows = format!(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count}) INSERT INTO tied SELECT {mark}, i FROM n"
        );
        database.run(&rows, &[SqlValue::Null]).await.expect("filled");
    }
    database.run("INSERT INTO tied VALUES (NULL, 0)", &[SqlValue::Null]).await.expect("filled");
    let options = json!({
        "database": server.address, "every": "1ms", "mark": "m", "start": "0", "fields": {"id": "v"},
        "query": "SELECT m, v FROM tied WHERE m > :mark OR m IS NULL ORDER BY m",
    });
    let mut harness = Harness::new("query", options.clone());
    harness.folders = vec![server.folder()];
    let (mut counts, mut refused) = (Vec::new(), Vec::new());
    while counts.iter().sum::<u32>() < 2_600 {
        let batch = harness.next().await;
        counts.push(batch.events.count());
        refused.extend(batch.refused.into_iter().map(|refusal| refusal.reason));
        harness.commit(batch.marks);
    }
    assert_eq!(counts, [900, 200, 1_500]);
    assert_eq!(refused.len(), 1, "{refused:?}");
    assert!(refused[0].starts_with("m: is NULL, so the row has no mark"), "{refused:?}");
    assert_eq!(harness.next().await.events.count(), 0);

    let rows = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10001) INSERT INTO tied SELECT 4, i FROM n";
    database.run(rows, &[SqlValue::Null]).await.expect("filled");
    let error = harness.try_next().await.expect_err("they cannot be distinguished").text;
    assert!(error.contains("have one value in `m`"), "{error}");
}

#[tokio::test]
async fn d_an_invalid_row_is_rejected_and_others_continue() {
    let server = Server::sqlite();
    let mut database = server.connect().await;
    database.run("CREATE TABLE odd (m INTEGER, v)", &[SqlValue::Null]).await.expect("made");
    for value in ["'a'", "x'ff'", "CAST(x'fe' AS TEXT)", "zeroblob(2000000)", "'b'"] {
        let insert = format!("INSERT INTO odd VALUES ((SELECT count(*) FROM odd), {value})");
        database.run(&insert, &[SqlValue::Null]).await.expect("filled");
    }
    let options = json!({
        "database": server.address, "every": "1ms", "mark": "m", "start": "-1", "fields": {"id": "v"},
        "query": "SELECT m, v FROM odd WHERE m > :mark ORDER BY m",
    });
    let mut harness = Harness::new("query", options);
    harness.folders = vec![server.folder()];
    let (mut events, mut refused) = (Vec::new(), 0);
    while events.len() < 2 {
        let batch = harness.next().await;
        refused += batch.refused.len();
        events.extend(crate::testing::shown(&batch.events));
        harness.commit(batch.marks);
    }
    assert_eq!((events, refused), (vec![r#"{"id":"a"}"#.to_owned(), r#"{"id":"b"}"#.to_owned()], 3));
}

#[tokio::test]
async fn d_the_mark_of_another_column_is_not_used() {
    let server = Server::sqlite();
    let mut database = server.connect().await;
    database.run("CREATE TABLE two (a INTEGER, b INTEGER, id TEXT)", &[SqlValue::Null]).await.expect("made");
    database.run("INSERT INTO two VALUES (1000, 1, 'x')", &[SqlValue::Null]).await.expect("filled");
    let options = |mark: &str| {
        json!({
            "database": server.address, "every": "1ms", "mark": mark, "start": "0", "fields": {"id": "id"},
            "query": format!("SELECT a, b, id FROM two WHERE {mark} > :mark ORDER BY {mark}"),
        })
    };
    let mut harness = Harness::new("query", options("a"));
    harness.folders = vec![server.folder()];
    assert_eq!(harness.take_events(1).await, [r#"{"id":"x"}"#]);
    harness.options = options("b");
    harness.crash();
    assert_eq!(harness.take_events(1).await, [r#"{"id":"x"}"#], "1 is beyond `start`, though not beyond 1000");
    harness.options["mark"] = json!("c");
    harness.crash();
    let error = harness.try_next().await.expect_err("there is no such column").text;
    assert!(error.contains("returns no column `c`, but a, b, id") || error.contains("no such column"), "{error}");
}

#[tokio::test]
async fn slow_d_a_mark_of_postgres_keeps_its_type() {
    if missing(&[Peer::Postgres]) {
        return;
    }
    let server = Server::postgres();
    let mut database = server.connect().await;
    database.run("CREATE EXTENSION IF NOT EXISTS citext", &[SqlValue::Null]).await.expect("made");
    database.run("CREATE TYPE step AS ENUM ('new', 'open', 'shut', 'gone')", &[SqlValue::Null]).await.expect("made");
    let cases: [(&str, &str, &[&str], &[&str]); 10] = [
        ("TEXT", "000", &["'001'", "'002'"], &["'003'"]),
        ("TEXT COLLATE \"C\"", "0", &["'01E6'", "'1.50'", "'1e5'"], &["'1e6'"]),
        ("VARCHAR(20)", "000", &["'001'", "'002'"], &["'003'"]),
        ("CITEXT", "a", &["'B01'", "'b02'"], &["'B03'"]),
        ("NUMERIC(40, 5)", "0", &["1.50", "12345678901234567890.12345"], &["12345678901234567890.12346"]),
        ("DOUBLE PRECISION", "0", &["0.1", "0.1::float8 + 0.2::float8"], &["0.31"]),
        ("BIGINT", "0", &["9007199254740993"], &["9007199254740994"]),
        ("BYTEA", "", &["'\\x00ff'", "'\\xfe'"], &["'\\xff01'"]),
        ("INT[]", "{0}", &["'{1,2}'", "'{1,3}'"], &["'{2}'"]),
        (
            "TIMESTAMPTZ",
            "2020-01-01Z",
            &["'2026-11-22 10:00:00.123456+01'", "'2026-11-22 10:00:00.123457+01'"],
            &["'2026-11-22 10:00:00.123458+01'"],
        ),
    ];
    for (column, start, before, after) in cases {
        let mut harness = table_of(&mut *database, &server, column, start, before).await;
        let mut found = harness.take_events(before.len()).await;
        harness.crash();
        for (at, value) in after.iter().enumerate() {
            insert(&mut *database, value, before.len() + at + 1).await;
        }
        found.extend(harness.take_events(after.len()).await);
        let count = before.len() + after.len();
        assert_eq!(found, rows_in_order(count)[..count], "{column}");
        assert_eq!(harness.next().await.events.count(), 0, "{column}");
    }
    let ids = ["00000000-0000-4000-8000-00000000000a", "00000000-0000-4000-8000-00000000000b"];
    let ids: Vec<String> = ids.iter().map(|id| format!("'{id}'")).collect();
    let mut harness =
        table_of(&mut *database, &server, "UUID", "00000000-0000-0000-0000-000000000000", &[&ids[0]]).await;
    assert_eq!(harness.take_events(1).await, [r#"{"id":"r1"}"#]);
    insert(&mut *database, &ids[1], 2).await;
    assert_eq!(harness.take_events(1).await, [r#"{"id":"r2"}"#]);
    let mut harness = table_of(&mut *database, &server, "step", "new", &["'open'", "'shut'"]).await;
    assert_eq!(harness.take_events(2).await.len(), 2);
    insert(&mut *database, "'gone'", 3).await;
    assert_eq!(harness.take_events(1).await, [r#"{"id":"r3"}"#]);
}

#[tokio::test]
async fn slow_d_a_mark_of_mariadb_keeps_its_type() {
    if missing(&[Peer::Mariadb]) {
        return;
    }
    let server = Server::mariadb();
    let mut database = server.connect().await;
    let cases: [(&str, &str, &[&str], &[&str]); 9] = [
        ("VARCHAR(20)", "000", &["'001'", "'002'"], &["'003'"]),
        ("VARCHAR(20)", "0", &["'01E6'", "'1.50'", "'1e5'"], &["'1e6'"]),
        (
            "VARCHAR(40)",
            "0",
            &["'2026-11-22T10:00:00.000001Z'", "'2026-11-22T10:00:00.000002Z'"],
            &["'2026-11-22T10:00:00.000003Z'"],
        ),
        ("DECIMAL(40, 5)", "0", &["1.50", "12345678901234567890.12345"], &["12345678901234567890.12346"]),
        ("BIGINT UNSIGNED", "0", &["18446744073709551610", "18446744073709551611"], &["18446744073709551612"]),
        ("DOUBLE", "0", &["0.1", "0.1e0 + 0.2e0"], &["0.31"]),
        ("FLOAT", "0", &["1.1", "1.2"], &["1.3"]),
        ("VARBINARY(16)", "", &["x'00ff'", "x'fe'"], &["x'ff01'"]),
        (
            "DATETIME(6)",
            "2020-01-01",
            &["'2026-11-22 10:00:00.123456'", "'2026-11-22 10:00:00.123457'"],
            &["'2026-11-22 10:00:00.123458'"],
        ),
    ];
    for (column, start, before, after) in cases {
        let mut harness = table_of(&mut *database, &server, column, start, before).await;
        let mut found = harness.take_events(before.len()).await;
        harness.crash();
        for (at, value) in after.iter().enumerate() {
            insert(&mut *database, value, before.len() + at + 1).await;
        }
        found.extend(harness.take_events(after.len()).await);
        let count = before.len() + after.len();
        assert_eq!(found, rows_in_order(count)[..count], "{column}");
        assert_eq!(harness.next().await.events.count(), 0, "{column}");
    }
}

/// A table with these marks, and a source that follows it.
async fn table_of(
    database: &mut dyn crate::sql::Database,
    server: &Server,
    column: &str,
    start: &str,
    values: &[&str],
) -> Harness {
    database.run("DROP TABLE IF EXISTS marked", &[SqlValue::Null]).await.expect("gone");
    let table = format!("CREATE TABLE marked (m {column}, v VARCHAR(50))");
    database.run(&table, &[SqlValue::Null]).await.expect("made");
    for (at, value) in values.iter().enumerate() {
        insert(database, value, at + 1).await;
    }
    let options = json!({
        "database": server.address, "every": "1ms", "mark": "m", "start": start, "fields": {"id": "v"},
        "query": "SELECT m, v FROM marked WHERE m > :mark ORDER BY m",
    });
    Harness::new("query", options)
}

async fn insert(database: &mut dyn crate::sql::Database, value: &str, number: usize) {
    let insert = format!("INSERT INTO marked VALUES ({value}, 'r{number}')");
    database.run(&insert, &[SqlValue::Null]).await.expect("filled");
}

/// A database, and the number of the table of the present source.
struct Conforming {
    server: Server,
    number: u32,
}

impl Conforming {
    fn new(server: Server) -> Conforming {
        Conforming { server, number: 0 }
    }

    fn table(&self) -> String {
        format!("quakes{}", self.number)
    }

    async fn run(&self, statement: &str) {
        self.server.connect().await.run(statement, &[SqlValue::Null]).await.expect("done");
    }
}

#[async_trait(?Send)]
impl Subject for Conforming {
    async fn harness(&mut self) -> Harness {
        self.number += 1;
        let table = self.table();
        let text = if self.server.address.starts_with("mysql") { "LONGTEXT" } else { "TEXT" };
        self.run(&format!("CREATE TABLE {table} (nr BIGINT PRIMARY KEY, id {text}, done INTEGER DEFAULT 0)")).await;
        let options = json!({
            "database": self.server.address, "every": "1ms", "mark": "nr", "start": "-1",
            "query": format!("SELECT nr, id FROM {table} WHERE nr > :mark ORDER BY nr"),
            "after": format!("UPDATE {table} SET done = 1 WHERE nr <= :mark"),
            "fields": {"id": "id"},
        });
        let mut harness = Harness::new("query", options);
        harness.folders = vec![self.server.folder()];
        harness
    }

    async fn put(&mut self, numbers: Range<u32>) {
        let rows: Vec<String> = numbers.map(|number| format!("({number}, 'q{number}')")).collect();
        self.run(&format!("INSERT INTO {} (nr, id) VALUES {}", self.table(), rows.join(", "))).await;
    }

    async fn put_oversize(&mut self, number: u32) -> Oversize {
        let text = "x".repeat(1_200_000);
        self.run(&format!("INSERT INTO {} (nr, id) VALUES ({number}, '{text}')", self.table())).await;
        Oversize::Rejected
    }

    async fn unacknowledged(&mut self) -> Option<usize> {
        let statement = format!("SELECT nr FROM {} WHERE done = 0", self.table());
        let rows = self.server.connect().await.query(query_request(&statement)).await.expect("asked");
        Some(rows.rows.len())
    }

    async fn silent(&mut self) -> Option<Json> {
        let database = format!("postgres://tocsin@{}/postgres", silent_server().await);
        Some(json!({
            "database": database, "mark": "nr", "query": "SELECT nr FROM quakes WHERE nr > :mark", "timeout": "300ms",
        }))
    }
}

#[tokio::test]
async fn it_conforms() {
    exercise(&mut Conforming::new(Server::sqlite())).await;
}

#[tokio::test]
async fn slow_it_conforms_with_postgres() {
    if missing(&[Peer::Postgres]) {
        return;
    }
    exercise(&mut Conforming::new(Server::postgres())).await;
}

#[tokio::test]
async fn slow_it_conforms_with_mariadb() {
    if missing(&[Peer::Mariadb]) {
        return;
    }
    exercise(&mut Conforming::new(Server::mariadb())).await;
}
