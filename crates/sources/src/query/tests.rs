use serde_json::json;

use crate::{sql::servers::Server, testing::Harness};

/// Fills a table, and takes it over crashes.
async fn rows_are_taken_once(server: Server) {
    let mut database = server.connect().await;
    let table = "CREATE TABLE quakes (nr BIGINT PRIMARY KEY, id VARCHAR(50), magnitude NUMERIC(6, 1), told INTEGER)";
    database.run(table, &[None]).await.expect("made");
    let numbers = |from: u32, to: u32| (from..=to).map(|number| Some(number.to_string())).collect::<Vec<_>>();
    let insert = "INSERT INTO quakes (nr, id, magnitude) VALUES (:mark, 'q', 4.5)";
    database.run(insert, &numbers(1, 1_200)).await.expect("filled");

    let mut harness = Harness::new(
        "query",
        json!({
            "database": server.address, "every": "1ms", "mark": "nr", "start": "0",
            "query": "SELECT nr, id, magnitude, nr AS tag FROM quakes WHERE nr > :mark ORDER BY nr",
            "after": "UPDATE quakes SET told = 1 WHERE nr <= :mark",
            "fields": {"id": "tag", "magnitude": "magnitude"},
        }),
    );
    harness.folders = vec![server.folder()];
    // A crash before the commit, then one after it but before the statement that follows.
    assert_eq!(harness.next().await.events.count(), 1_000);
    harness.crash();
    let portion = harness.next().await;
    let mut events = crate::testing::shown(&portion.events);
    harness.commit(portion.marks);
    harness.crash();
    events.extend(harness.take_events(200).await);
    database.run(insert, &numbers(1_201, 1_203)).await.expect("filled");
    events.extend(harness.take_events(3).await);
    let expected: Vec<String> =
        (1..=1_203).map(|number| format!("{{\"id\":\"{number}\",\"magnitude\":4.5}}")).collect();
    assert_eq!(events, expected);
    let told = database.query("SELECT count(*) AS n FROM quakes WHERE told = 1", None).await.expect("counted");
    assert_eq!(told.rows, [[Some("1203".to_owned())]]);

    for harm in ["DELETE FROM quakes", "SELECT 1 AS nr WHERE 1 > :mark; DROP TABLE quakes", "SELECT nr FROM nowhere"] {
        assert!(database.query(harm, None).await.is_err(), "{harm}");
    }
    let left = database.query("SELECT count(*) AS n FROM quakes", None).await.expect("it is there");
    assert_eq!(left.rows, [[Some("1203".to_owned())]]);

    database.run("CREATE TABLE notes (words VARCHAR(60000))", &[None]).await.expect("made");
    let notes = vec![Some("x".repeat(60_000)); 20];
    database.run("INSERT INTO notes (words) VALUES (:mark)", &notes).await.expect("filled");
    let found = database.query("SELECT words FROM notes", None).await.expect("asked");
    assert_eq!((found.rows.len(), found.more), (18, true), "a portion ends with the row that goes beyond 1 MiB");
}

#[tokio::test]
async fn rows_of_sqlite_are_taken_once() {
    rows_are_taken_once(Server::sqlite()).await;
}

#[tokio::test]
async fn slow_rows_of_postgres_are_taken_once() {
    rows_are_taken_once(Server::postgres()).await;
}

#[tokio::test]
async fn slow_rows_of_mariadb_are_taken_once() {
    rows_are_taken_once(Server::mariadb()).await;
}

#[tokio::test]
async fn other_files_and_settings_are_closed_to_statements() {
    let server = Server::sqlite();
    let mut database = server.connect().await;
    for harm in [
        "ATTACH '/tmp/x.db' AS x",
        "PRAGMA writable_schema = 1",
        "SELECT load_extension('x')",
        "SELECT randomblob(1000000000)",
    ] {
        assert!(database.query(harm, None).await.is_err(), "{harm}");
        assert!(database.run(harm, &[None]).await.is_err(), "{harm}");
    }
}
