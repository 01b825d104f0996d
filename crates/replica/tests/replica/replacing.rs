//! `REPLACE`, upserts, triggers and transactions of programs that edit the file with a connection of their own.

use rusqlite::Connection;
use serde_json::{Value as Json, json};
use tocsin_sync::rows::RowChange;

use crate::fixture::{Phone, SyncFixture, name, object};

async fn shop(conflicts: &str) -> (SyncFixture, Phone) {
    let definition = format!(
        "application: shop\ncollections:\n  things:\n    fields: {{ name: string, qty: integer, price: number, note: string }}\n    \
         partition: everyone\n    conflicts: {conflicts}\n"
    );
    let fixture = SyncFixture::new(&definition).await;
    fixture.subscriber("ann", json!({})).await;
    fixture.put("things", "a", json!({"name": "A", "qty": 1, "price": 2.5, "note": "n"})).await;
    fixture.put("things", "b", json!({"name": "B", "qty": 5, "note": "m"})).await;
    let mut phone = Phone::new(&fixture, "ann").await;
    phone.sync(&fixture).await;
    (fixture, phone)
}

/// Runs SQL as another program does, on a connection of its own, with or without recursive triggers.
fn foreign(phone: &Phone, is_recursive: bool, sql: &str) {
    let connection = Connection::open(&phone.path).expect("opens");
    connection.pragma_update(None, "recursive_triggers", is_recursive).expect("set");
    connection.execute_batch(sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
}

async fn conflicts(fixture: &SyncFixture) -> usize {
    fixture.sync.conflicts(&name("shop"), None, None, 100).await.expect("listed").len()
}

const RULES: [&str; 8] = [
    "{ resolver: server }",
    "{ resolver: client }",
    "{ resolver: first }",
    "{ resolver: last }",
    "{ track: row, resolver: server }",
    "{ track: row, resolver: client }",
    "{ track: row, resolver: first }",
    "{ track: row, resolver: last }",
];

#[tokio::test]
async fn replace_equals_an_update_that_clears_missing_cells() {
    let replaced = [
        "INSERT OR REPLACE INTO things(id, name, qty) VALUES ('a', 'A2', 7)",
        "REPLACE INTO things(id, name, qty) VALUES ('a', 'A2', 7)",
        "BEGIN; DELETE FROM things WHERE id = 'a'; INSERT INTO things(id, name, qty) VALUES ('a', 'A2', 7); COMMIT",
        "INSERT OR REPLACE INTO things(id, name) VALUES ('a', 'x'); REPLACE INTO things(id, name, qty) VALUES ('a', 'A2', 7)",
        "BEGIN; SAVEPOINT s; REPLACE INTO things(id, name) VALUES ('a', 'no'); ROLLBACK TO s; REPLACE INTO things(id, name, qty) VALUES ('a', 'A2', 7); RELEASE s; COMMIT",
        "INSERT INTO things(id, name, qty) VALUES ('a', 'A2', 7) ON CONFLICT(id) DO UPDATE SET name = excluded.name, qty = excluded.qty, price = NULL, note = NULL",
        "UPDATE things SET name = 'A2', qty = 7, price = NULL, note = NULL WHERE id = 'a'",
    ];
    for rules in RULES {
        let (fixture, mut phone) = shop(rules).await;
        for (at, sql) in replaced.iter().enumerate() {
            for is_recursive in [false, true] {
                fixture
                    .change(
                        "things",
                        "a",
                        RowChange::Put(object(json!({"name": "A", "qty": 1, "price": 2.5, "note": "n"}))),
                    )
                    .await;
                phone.sync(&fixture).await;
                foreign(&phone, is_recursive, sql);
                let summary = phone.sync(&fixture).await;
                let what = format!("{rules}, {at}, {is_recursive}");
                assert_eq!((summary.applied, summary.conflicts, summary.refused), (1, 0, 0), "{what}");
                assert_eq!(fixture.row("things", "a").await, Some(json!({"name": "A2", "qty": 7})), "{what}");
                assert_eq!(phone.rows("things"), fixture.rows("things").await, "{what}");
            }
        }
        assert_eq!(conflicts(&fixture).await, 0);
    }
}

#[tokio::test]
async fn replace_meets_what_others_wrote_as_the_update_does() {
    for rules in RULES {
        let mut outcomes = Vec::new();
        for sql in [
            "UPDATE things SET name = 'A2', qty = 7, price = NULL, note = NULL WHERE id = 'a'",
            "REPLACE INTO things(id, name, qty) VALUES ('a', 'A2', 7)",
        ] {
            let (fixture, mut phone) = shop(rules).await;
            foreign(&phone, false, sql);
            fixture.change("things", "a", RowChange::Patch(object(json!({"note": "of the API"})))).await;
            let summary = phone.sync(&fixture).await;
            assert_eq!(phone.rows("things"), fixture.rows("things").await, "{rules}");
            outcomes.push((summary.applied, summary.conflicts, fixture.row("things", "a").await));
        }
        assert_eq!(outcomes[0], outcomes[1], "{rules}");
    }
}

#[tokio::test]
async fn replace_through_a_unique_index_removes_the_other_row() {
    for rules in RULES {
        for sql in [
            "CREATE UNIQUE INDEX own ON things (name); UPDATE OR REPLACE things SET name = 'B' WHERE id = 'a'",
            "CREATE UNIQUE INDEX own ON things (name); REPLACE INTO things(id, name, qty, price, note) VALUES ('a', 'B', 1, 2.5, 'n')",
        ] {
            let (fixture, mut phone) = shop(rules).await;
            foreign(&phone, false, sql);
            let summary = phone.sync(&fixture).await;
            assert_eq!((summary.applied, summary.conflicts), (2, 0), "{rules} {sql}");
            let only = json!({"name": "B", "qty": 1, "price": 2.5, "note": "n"});
            assert_eq!(fixture.rows("things").await, crate::fixture::rows([("a", only)]), "{rules} {sql}");
            assert_eq!(phone.rows("things"), fixture.rows("things").await);
            assert_eq!(phone.sync(&fixture).await.applied, 0);
        }
    }
}

#[tokio::test]
async fn a_change_without_effect_is_not_an_edit() {
    let (fixture, mut phone) = shop("{ resolver: server }").await;
    foreign(
        &phone,
        false,
        "BEGIN; REPLACE INTO things(id, name) VALUES ('a', 'x'); DELETE FROM things; ROLLBACK; \
         INSERT OR IGNORE INTO things(id, name) VALUES ('a', 'ignored'); \
         REPLACE INTO things(id, name, qty, price, note) VALUES ('a', 'A', 1, 2.5, 'n'); \
         INSERT INTO things(id) VALUES ('c'); DELETE FROM things WHERE id = 'c'",
    );
    let summary = phone.sync(&fixture).await;
    assert_eq!((summary.applied, summary.conflicts, summary.refused), (0, 0, 0));
    assert_eq!(phone.rows("things"), fixture.rows("things").await);
}

#[tokio::test]
async fn replace_continues_after_a_broken_link() {
    for rules in RULES {
        let (fixture, mut phone) = shop(rules).await;
        foreign(&phone, false, "REPLACE INTO things(id, name, qty) VALUES ('a', 'A2', 7)");
        let link = crate::sessions::LosesAnswer::of(fixture.link(&phone.token));
        assert!(phone.replica.sync(&link, &mut |_| ()).await.is_err());
        foreign(&phone, false, "REPLACE INTO things(id, name, note) VALUES ('a', 'A3', 'new')");
        assert_eq!(phone.sync(&fixture).await.conflicts, 0, "{rules}");
        assert_eq!(fixture.row("things", "a").await, Some(json!({"name": "A3", "note": "new"})), "{rules}");
        assert_eq!(phone.rows("things"), fixture.rows("things").await);
    }
}

#[tokio::test]
async fn triggers_of_the_application_and_attached_files_are_edits_like_others() {
    let (fixture, mut phone) = shop("{ resolver: server }").await;
    foreign(
        &phone,
        false,
        "CREATE TABLE log (what TEXT); \
         CREATE TRIGGER own_log AFTER UPDATE ON things BEGIN INSERT INTO log VALUES (NEW.name); END; \
         CREATE TRIGGER own_note AFTER UPDATE OF name ON things BEGIN UPDATE things SET note = 'was ' || OLD.name WHERE id = NEW.id; END; \
         CREATE TRIGGER own_insert AFTER INSERT ON things BEGIN UPDATE things SET qty = 100 WHERE id = NEW.id; END; \
         UPDATE things SET name = 'A2' WHERE id = 'a'; INSERT INTO things(id, name) VALUES ('c', 'C')",
    );
    assert_eq!(phone.sync(&fixture).await.applied, 2);
    assert_eq!(fixture.row("things", "a").await, Some(json!({"name": "A2", "qty": 1, "price": 2.5, "note": "was A"})));
    assert_eq!(fixture.row("things", "c").await, Some(json!({"name": "C", "qty": 100})));
    assert_eq!(phone.rows("things"), fixture.rows("things").await);
    foreign(&phone, false, "DROP TRIGGER own_note; DROP TRIGGER own_insert; DROP TRIGGER own_log");
    let other = Connection::open_in_memory().expect("opens");
    let attach = format!(
        "ATTACH '{}' AS phone; REPLACE INTO phone.things(id, name) VALUES ('a', 'attached')",
        phone.path.display()
    );
    other.execute_batch(&attach).expect("runs");
    drop(other);
    assert_eq!(phone.sync(&fixture).await.applied, 1);
    assert_eq!(fixture.row("things", "a").await, Some(json!({"name": "attached"})));
    let _: Json = json!(null);
}
