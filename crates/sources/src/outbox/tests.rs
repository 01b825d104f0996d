use serde_json::{Value as Json, json};

use crate::{source::Gives, sql::servers::Server, testing::Harness};

/// Fills a table, and empties it over crashes.
async fn rows_are_taken_once(server: Server, more: Json) {
    let mut database = server.connect().await;
    let table = "CREATE TABLE box (nr BIGINT PRIMARY KEY, id VARCHAR(50), magnitude NUMERIC(6, 1), gone VARCHAR(50))";
    database.run(table, &[None]).await.expect("made");
    let numbers = |from: u32, to: u32| (from..=to).map(|number| Some(number.to_string())).collect::<Vec<_>>();
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
    let portion = harness.next().await;
    let mut events = crate::testing::shown(&portion.events);
    harness.commit(portion.marks);
    harness.crash();
    // One with a smaller number is committed late.
    database.run(insert, &[Some("0".to_owned())]).await.expect("filled");
    events.extend(harness.take_events(201).await);
    assert_eq!(events.len(), 1_201);
    events.sort();
    events.dedup();
    assert_eq!(events.len(), 1_201, "none comes twice");
    let left = database.query("SELECT count(*) AS n FROM box WHERE gone IS NULL", None).await.expect("counted");
    assert_eq!(left.rows, [[Some("0".to_owned())]]);
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
    rows_are_taken_once(Server::mariadb(), json!({})).await;
}

#[tokio::test]
async fn slow_rows_of_postgres_are_taken_once_and_a_notification_wakes() {
    let server = Server::postgres();
    let mut database = server.connect().await;
    database.run("CREATE TABLE box (nr BIGINT PRIMARY KEY, id TEXT)", &[None]).await.expect("made");
    let options = json!({
        "database": server.address, "table": "box", "key": "nr", "every": "1h", "listen": "news",
    });
    let mut harness = Harness::new("outbox", options.clone());
    let insert = "INSERT INTO box (nr, id) VALUES (:mark, 'q')";
    database.run(insert, &[Some("1".to_owned())]).await.expect("filled");
    assert_eq!(harness.take().await, [r#"{"id":"q"}"#]);
    // Nobody else takes from there meanwhile.
    let mut other = Harness::new("outbox", options);
    assert!(other.try_next().await.expect_err("it is locked").text.contains("another source"));
    let (taken, ()) = tokio::join!(harness.take(), async {
        database.run(insert, &[Some("2".to_owned())]).await.expect("filled");
        database.run("SELECT pg_notify('news', '')", &[None]).await.expect("told");
    });
    assert_eq!(taken, [r#"{"id":"q"}"#]);
}

/// Rows as they come: objects with all columns, numbers as numbers.
async fn rows_become_messages(server: Server) {
    let mut database = server.connect().await;
    let table = "CREATE TABLE box (nr BIGINT PRIMARY KEY, id VARCHAR(50), magnitude DOUBLE PRECISION)";
    database.run(table, &[None]).await.expect("made");
    let insert = "INSERT INTO box VALUES (:mark, '0815', 4.5)";
    database.run(insert, &[Some("7".to_owned())]).await.expect("filled");
    let options = json!({"database": server.address, "table": "box", "key": "nr", "every": "1ms"});
    let mut harness = Harness::new("outbox", options);
    harness.folders = vec![server.folder()];
    harness.gives = Gives::Messages { bytes_max: 1 << 20 };
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
    rows_become_messages(Server::mariadb()).await;
}

#[tokio::test]
async fn slow_rows_of_postgres_become_messages() {
    rows_become_messages(Server::postgres()).await;
}
