//! Files of older versions.

use rusqlite::Connection;
use serde_json::json;
use tocsin_replica::Replica;

use crate::fixture::{Phone, SyncFixture, note, notes};

/// A file of layout 1. Row `a` was edited before and after an interrupted sync, edits of `b` were unreadable, and `c`
/// was created.
fn first_layout(path: &std::path::Path, token: &str, version: u64) {
    let shape = json!({"name": "notes", "direction": "both", "fields": [
        {"name": "owner", "type": "string"}, {"name": "text", "type": "string"}, {"name": "count", "type": "integer"},
        {"name": "done", "type": "boolean"}, {"name": "tags", "type": "list"},
    ]});
    let first = json!({"n": 1, "collection": "notes", "id": "a", "base": version.to_string(), "seen": version.to_string(),
        "set": {"count": 2}, "was": {"count": 1}});
    let connection = Connection::open(path).expect("opens");
    let sql = format!(
        "CREATE TABLE _replica (one INTEGER PRIMARY KEY DEFAULT 1 CHECK (one = 1), url TEXT NOT NULL, token TEXT NOT NULL, cursor TEXT,
             seen INTEGER NOT NULL DEFAULT 0, last INTEGER NOT NULL DEFAULT 0, applying INTEGER NOT NULL DEFAULT 0);
         CREATE TABLE _collections (name TEXT PRIMARY KEY, shape TEXT NOT NULL);
         CREATE TABLE _pending (collection TEXT, row TEXT, was TEXT, base INTEGER NOT NULL, seen INTEGER NOT NULL, PRIMARY KEY (collection, row));
         CREATE TABLE _server (collection TEXT, row TEXT, version INTEGER NOT NULL, body TEXT, PRIMARY KEY (collection, row));
         CREATE TABLE _outbox (n INTEGER PRIMARY KEY, collection TEXT NOT NULL, row TEXT NOT NULL, edit TEXT NOT NULL);
         CREATE INDEX _outbox_by_row ON _outbox (collection, row);
         CREATE TABLE _unseen (collection TEXT, row TEXT, PRIMARY KEY (collection, row));
         CREATE TABLE _refused (n INTEGER PRIMARY KEY, collection TEXT NOT NULL, row TEXT NOT NULL, why TEXT NOT NULL);
         CREATE TABLE notes (id TEXT PRIMARY KEY NOT NULL, owner TEXT, text TEXT, count INTEGER, done INTEGER, tags TEXT, _version INTEGER);
         INSERT INTO _replica (url, token, seen, last) VALUES ('http://localhost', '{token}', {version}, 1);
         INSERT INTO _collections VALUES ('notes', '{shape}');
         INSERT INTO notes VALUES ('a', 'ann', 'new', 2, NULL, NULL, {version}), ('b', 'ann', 'b2', 9e999, NULL, NULL, {version}), ('c', 'ann', 'c', NULL, 1, '[1]', NULL);
         INSERT INTO _outbox VALUES (1, 'notes', 'a', '{first}');
         INSERT INTO _pending VALUES ('notes', 'a', '{{\"owner\":\"ann\",\"text\":\"old\",\"count\":2,\"done\":null,\"tags\":null}}', {version}, {version}),
             ('notes', 'b', '{{\"owner\":\"ann\",\"text\":\"b\",\"count\":Inf}}', {version}, {version}), ('notes', 'c', NULL, 0, {version});
         INSERT INTO _server VALUES ('notes', 'a', {version}, '{{\"owner\":\"ann\",\"text\":\"old\",\"count\":1}}'),
             ('notes', 'b', {version}, '{{\"owner\":\"ann\",\"text\":\"b\"}}'), ('notes', 'c', 0, NULL);
         INSERT INTO _refused VALUES (7, 'notes', 'x', 'was refused before');"
    );
    connection.execute_batch(&sql).expect("made");
}

#[tokio::test]
async fn b2_a_file_of_the_first_layout_keeps_its_edits() {
    let fixture = SyncFixture::new(&notes("")).await;
    fixture.subscriber("ann", json!({})).await;
    fixture.put("notes", "a", json!({"owner": "ann", "text": "old", "count": 1})).await;
    fixture.put("notes", "b", note("ann", "b")).await;
    let version = fixture.sync.row(&crate::fixture::name("shop"), "notes", "b").await.expect("there").version.0;
    let token = fixture.device("ann").await;
    let path = fixture.folder.path().join("old.db");
    first_layout(&path, &token, version);
    let mut phone = Phone { replica: Replica::open(&path).expect("opens"), path: path.clone(), token };
    let summary = phone.sync(&fixture).await;
    assert_eq!((summary.applied, summary.conflicts, summary.refused), (4, 0, 1));
    assert_eq!(fixture.row("notes", "a").await, Some(json!({"owner": "ann", "text": "new", "count": 2})));
    assert_eq!(fixture.row("notes", "b").await, Some(note("ann", "b2")));
    assert_eq!(fixture.row("notes", "c").await, Some(json!({"owner": "ann", "text": "c", "done": true, "tags": [1]})));
    let refused = crate::copies::refused(&phone);
    assert_eq!(refused[0], ("x".to_owned(), "was refused before".to_owned()));
    assert!(refused[1].1.starts_with("count: is Infinity"), "{refused:?}");
    // It is converted once, and then works like any other.
    drop(phone.replica);
    let mut phone = Phone { replica: Replica::open(&path).expect("opens"), path, token: phone.token };
    phone.run("REPLACE INTO notes (id, owner, text) VALUES ('a', 'ann', 'replaced')");
    assert_eq!(phone.sync(&fixture).await.applied, 1);
    assert_eq!(fixture.row("notes", "a").await, Some(note("ann", "replaced")));
}
