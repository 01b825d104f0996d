use std::ops::Range;

use async_trait::async_trait;
use serde_json::{Value as Json, json};
use tocsin_test_peers::{Peer, missing};

use crate::{
    conformance::{Oversize, Subject, exercise, silent_server},
    items::Cell,
    source::SourceOutput,
    sql::{
        SqlValue,
        servers::{Server, query_request, untyped},
    },
    testing::Harness,
};

/// Fills a table, and takes its rows over crashes.
async fn rows_are_taken_once(server: Server, more: Json) {
    let mut database = server.connect().await;
    let table = "CREATE TABLE box (nr BIGINT PRIMARY KEY, id VARCHAR(50), magnitude NUMERIC(6, 1), gone VARCHAR(50))";
    database.run(table, &[SqlValue::Null]).await.expect("made");
    let numbers = |from: u32, to: u32| (from..=to).map(|number| untyped(&number.to_string())).collect::<Vec<_>>();
    let insert = "INSERT INTO box (nr, magnitude) VALUES (:mark, 4.5)";
    database.run(insert, &numbers(1, 1_200)).await.expect("filled");
    let mut options = json!({
        "database": server.address, "table": "box", "key": "nr", "every": "1ms",
        "fields": {"id": "nr", "magnitude": "magnitude"},
    });
    options.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    let mut harness = Harness::new("outbox", options);
    harness.folders = vec![server.folder()];
    assert_eq!(harness.next().await.events.count(), 1_000);
    harness.crash();
    let batch = harness.next().await;
    let mut events = crate::testing::shown(&batch.events);
    harness.commit(batch.marks);
    harness.crash();
    // A row with a smaller key is committed late.
    database.run(insert, &[untyped("0")]).await.expect("filled");
    events.extend(harness.take_events(201).await);
    assert_eq!(events.len(), 1_201);
    events.sort();
    events.dedup();
    assert_eq!(events.len(), 1_201, "none comes twice");
    let left =
        database.query(query_request("SELECT count(*) AS n FROM box WHERE gone IS NULL")).await.expect("counted");
    assert_eq!(left.rows, [[Cell::Text("0".to_owned())]]);
}

#[tokio::test]
async fn rows_of_sqlite_are_taken_once_and_deleted() {
    rows_are_taken_once(Server::sqlite(), json!({})).await;
}

#[tokio::test]
async fn rows_of_sqlite_are_taken_once_and_marked() {
    rows_are_taken_once(Server::sqlite(), json!({"taken": "gone"})).await;
}

#[tokio::test]
async fn slow_rows_of_mariadb_are_taken_once_and_deleted() {
    if missing(&[Peer::Mariadb]) {
        return;
    }
    rows_are_taken_once(Server::mariadb(), json!({})).await;
}

#[tokio::test]
async fn slow_rows_of_postgres_are_taken_once_and_a_notification_wakes() {
    if missing(&[Peer::Postgres]) {
        return;
    }
    let server = Server::postgres();
    let mut database = server.connect().await;
    database.run("CREATE TABLE box (nr BIGINT PRIMARY KEY, id TEXT)", &[SqlValue::Null]).await.expect("made");
    let options = json!({
        "database": server.address, "table": "box", "key": "nr", "every": "1h", "listen": "news",
    });
    let mut harness = Harness::new("outbox", options.clone());
    let insert = "INSERT INTO box (nr, id) VALUES (:mark, 'q')";
    database.run(insert, &[untyped("1")]).await.expect("filled");
    assert_eq!(harness.take().await, [r#"{"id":"q"}"#]);
    // Another source cannot take from the table meanwhile.
    let mut other = Harness::new("outbox", options);
    assert!(other.try_next().await.expect_err("it is locked").text.contains("another source"));
    let (taken, ()) = tokio::join!(harness.take(), async {
        database.run(insert, &[untyped("2")]).await.expect("filled");
        database.run("SELECT pg_notify('news', '')", &[SqlValue::Null]).await.expect("notified");
    });
    assert_eq!(taken, [r#"{"id":"q"}"#]);
}

/// Rows as messages: objects with all columns, numbers as numbers.
async fn rows_become_messages(server: Server) {
    let mut database = server.connect().await;
    let table = "CREATE TABLE box (nr BIGINT PRIMARY KEY, id VARCHAR(50), magnitude DOUBLE PRECISION)";
    database.run(table, &[SqlValue::Null]).await.expect("made");
    let insert = "INSERT INTO box VALUES (:mark, '0815', 4.5)";
    database.run(insert, &[untyped("7")]).await.expect("filled");
    let options = json!({"database": server.address, "table": "box", "key": "nr", "every": "1ms"});
    let mut harness = Harness::new("outbox", options);
    harness.folders = vec![server.folder()];
    harness.output = SourceOutput::Messages { bytes_max: 1 << 20 };
    let messages = harness.take_messages().await;
    let said: Vec<&[u8]> = messages.iter().map(|message| &message.body[..]).collect();
    assert_eq!(said, [br#"{"nr":7,"id":"0815","magnitude":4.5}"#]);
    assert_eq!(messages[0].content_type, "application/json");
}

#[tokio::test]
async fn rows_of_sqlite_become_messages() {
    rows_become_messages(Server::sqlite()).await;
}

#[tokio::test]
async fn slow_rows_of_mariadb_become_messages() {
    if missing(&[Peer::Mariadb]) {
        return;
    }
    rows_become_messages(Server::mariadb()).await;
}

#[tokio::test]
async fn slow_rows_of_postgres_become_messages() {
    if missing(&[Peer::Postgres]) {
        return;
    }
    rows_become_messages(Server::postgres()).await;
}

/// Takes rows with these keys, stored by this or an older version before a crash.
async fn keys_survive_a_crash(server: &Server, column: &str, keys: &[&str]) {
    let mut database = server.connect().await;
    let _ = database.run("DROP TABLE keyed", &[SqlValue::Null]).await;
    database.run(&format!("CREATE TABLE keyed (k {column}, id VARCHAR(50))"), &[SqlValue::Null]).await.expect("made");
    for (at, key) in keys.iter().enumerate() {
        let insert = format!("INSERT INTO keyed VALUES ({key}, 'r{at}')");
        database.run(&insert, &[SqlValue::Null]).await.expect("filled");
    }
    let options =
        json!({"database": server.address, "table": "keyed", "key": "k", "every": "1ms", "fields": {"id": "id"}});
    let mut harness = Harness::new("outbox", options);
    harness.folders = vec![server.folder()];
    // Accepted, and not deleted: the keys are in the journal.
    let batch = harness.next().await;
    assert_eq!(batch.events.count() as usize, keys.len(), "{column} {keys:?}");
    harness.commit(batch.marks);
    harness.crash();
    let batch = harness.next().await;
    assert_eq!(batch.events.count(), 0, "{column} {keys:?}: they are taken away");
    let left = database.query(query_request("SELECT count(*) AS n FROM keyed")).await.expect("counted");
    assert_eq!(left.rows, [[Cell::Text("0".to_owned())]], "{column} {keys:?}");
}

#[tokio::test]
async fn d_a_key_of_sqlite_keeps_its_type() {
    let server = Server::sqlite();
    for column in ["TEXT", ""] {
        keys_survive_a_crash(&server, column, &["'001'", "'1'", "'1e5'", "'1.50'", "'01E6'", "'100000'"]).await;
    }
    keys_survive_a_crash(&server, "", &["1", "'1'", "1.5", "'1.5'", "x'31'", "x'ff00'"]).await;
    keys_survive_a_crash(&server, "INTEGER PRIMARY KEY", &["9007199254740993", "-1"]).await;
    keys_survive_a_crash(&server, "REAL", &["0.1 + 0.2", "1e300"]).await;
    keys_survive_a_crash(&server, "BLOB", &["x'00'", "x'ffffffff'"]).await;
}

#[tokio::test]
async fn slow_d_a_key_of_postgres_keeps_its_type() {
    if missing(&[Peer::Postgres]) {
        return;
    }
    let server = Server::postgres();
    server.connect().await.run("CREATE EXTENSION citext", &[SqlValue::Null]).await.expect("made");
    for (column, keys) in [
        ("TEXT PRIMARY KEY", &["'001'", "'1'", "'1e5'", "'1.50'", "'01E6'"][..]),
        ("CITEXT PRIMARY KEY", &["'Ann'", "'bob'"]),
        ("NUMERIC PRIMARY KEY", &["1.50", "12345678901234567890.123456789"]),
        ("DOUBLE PRECISION", &["0.1::float8 + 0.2::float8", "1e300"]),
        ("BYTEA PRIMARY KEY", &["'\\x00'", "'\\xffff'"]),
        ("UUID PRIMARY KEY", &["'00000000-0000-4000-8000-00000000000a'"]),
        ("TIMESTAMPTZ", &["'2026-11-22 10:00:00.123456+01'"]),
        ("CHAR(5)", &["'ab'"]),
    ] {
        keys_survive_a_crash(&server, column, keys).await;
    }
}

#[tokio::test]
async fn slow_d_a_key_of_mariadb_keeps_its_type() {
    if missing(&[Peer::Mariadb]) {
        return;
    }
    let server = Server::mariadb();
    for (column, keys) in [
        ("VARCHAR(20) PRIMARY KEY", &["'001'", "'1'", "'1e5'", "'1.50'", "'01E6'"][..]),
        ("DECIMAL(40, 10)", &["12345678901234567890.1234567891", "12345678901234567890.1234567892"]),
        ("BIGINT UNSIGNED PRIMARY KEY", &["18446744073709551614", "18446744073709551615"]),
        ("VARBINARY(8) PRIMARY KEY", &["x'00'", "x'ffff'"]),
        ("DATETIME(6)", &["'2026-11-22 10:00:00.123456'"]),
        ("FLOAT", &["1.1"]),
        ("BIT(8)", &["b'101'"]),
    ] {
        keys_survive_a_crash(&server, column, keys).await;
    }
    // Of two keys that are equal as doubles, only the taken one is deleted.
    let mut database = server.connect().await;
    database.run("CREATE TABLE near (k DECIMAL(30), id VARCHAR(5))", &[SqlValue::Null]).await.expect("made");
    database.run("INSERT INTO near VALUES (9007199254740992, 'a')", &[SqlValue::Null]).await.expect("filled");
    let options =
        json!({"database": server.address, "table": "near", "key": "k", "every": "1ms", "fields": {"id": "id"}});
    let mut harness = Harness::new("outbox", options);
    let batch = harness.next().await;
    harness.commit(batch.marks);
    database.run("INSERT INTO near VALUES (9007199254740993, 'b')", &[SqlValue::Null]).await.expect("filled");
    harness.source().accepted().await.expect("taken away");
    assert_eq!(harness.take_events(1).await, [r#"{"id":"b"}"#]);
}

#[tokio::test]
async fn d_keys_stored_by_an_older_version_delete_their_own_rows() {
    let server = Server::sqlite();
    let mut database = server.connect().await;
    for (column, rows, stored, left) in [
        ("TEXT", &["'2'", "'002'"][..], r#"["002"]"#, "2"),
        ("", &["'2'", "'002'"], r#"["002"]"#, "2"),
        ("INTEGER", &["2", "3"], r#"["2"]"#, "3"),
        ("", &["2", "3"], r#"["2"]"#, "3"),
    ] {
        let _ = database.run("DROP TABLE old", &[SqlValue::Null]).await;
        database.run(&format!("CREATE TABLE old (k {column}, id TEXT)"), &[SqlValue::Null]).await.expect("made");
        for row in rows {
            let insert = format!("INSERT INTO old VALUES ({row}, {row})");
            database.run(&insert, &[SqlValue::Null]).await.expect("filled");
        }
        let options =
            json!({"database": server.address, "table": "old", "key": "k", "every": "1ms", "fields": {"id": "id"}});
        let mut harness = Harness::new("outbox", options);
        harness.folders = vec![server.folder()];
        harness.marks = vec![tocsin_model::mark::Mark::set("taken", stored.to_owned())];
        assert_eq!(harness.take_events(1).await, [format!("{{\"id\":\"{left}\"}}")], "{column}");
    }
}

#[tokio::test]
async fn d_a_row_without_a_key_is_kept_and_others_are_taken() {
    let server = Server::sqlite();
    let mut database = server.connect().await;
    database.run("CREATE TABLE loose (k TEXT, id TEXT)", &[SqlValue::Null]).await.expect("made");
    database.run("INSERT INTO loose VALUES (NULL, 'a'), ('1', 'b')", &[SqlValue::Null]).await.expect("filled");
    let options =
        json!({"database": server.address, "table": "loose", "key": "k", "every": "1ms", "fields": {"id": "id"}});
    let mut harness = Harness::new("outbox", options);
    harness.folders = vec![server.folder()];
    let batch = harness.next().await;
    assert_eq!(batch.refused.len(), 1);
    assert!(batch.refused[0].reason.starts_with("k: is NULL"), "{:?}", batch.refused);
    assert_eq!(harness.take_events(1).await, [r#"{"id":"b"}"#]);
    let left = database.query(query_request("SELECT id FROM loose")).await.expect("asked");
    assert_eq!(left.rows, [[Cell::Text("a".to_owned())]]);
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
        let text = if self.server.address.starts_with("mysql") { "LONGTEXT" } else { "TEXT" };
        self.run(&format!("CREATE TABLE {} (nr BIGINT PRIMARY KEY, id {text}, done INTEGER DEFAULT 0)", self.table()))
            .await;
        let options = json!({
            "database": self.server.address, "table": self.table(), "key": "nr", "every": "1ms", "fields": {"id": "id"},
        });
        let mut harness = Harness::new("outbox", options);
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
        Some(json!({"database": database, "table": "quakes", "timeout": "300ms"}))
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
