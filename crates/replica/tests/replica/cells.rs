//! Cells that their fields cannot hold, set by any program that edits the file.

use serde_json::{Value as Json, json};
use tocsin_replica::ReplicaError;

use crate::{
    copies::refused,
    fixture::{Phone, SyncFixture, name, object},
};

const THINGS: &str = "application: shop\ncollections:\n  things:\n    fields: { name: string, qty: integer, price: number, \
                      note: string, at: timestamp, done: boolean, tags: list }\n    partition: everyone\n";

fn things() -> String {
    THINGS.to_owned()
}

async fn shop(definition: &str) -> (SyncFixture, Phone) {
    let fixture = SyncFixture::new(definition).await;
    fixture.subscriber("ann", json!({})).await;
    fixture.put("things", "a", json!({"name": "A", "qty": 1, "price": 2.5, "note": "n"})).await;
    fixture.put("things", "z", json!({"name": "Z"})).await;
    let mut phone = Phone::new(&fixture, "ann").await;
    phone.sync(&fixture).await;
    (fixture, phone)
}

/// Runs SQL in the file and synchronizes twice. Returns what was rejected, without row ids.
async fn refused_of(fixture: &SyncFixture, phone: &mut Phone, sql: &str) -> Vec<String> {
    phone.run(sql);
    phone.sync(fixture).await;
    let found = refused(phone).into_iter().map(|(_, why)| why).collect();
    phone.sync(fixture).await;
    assert_eq!(phone.replica.status().expect("read").edited, 0);
    assert_eq!(phone.rows("things"), fixture.rows("things").await, "{sql}");
    found
}

#[tokio::test]
async fn b4_an_infinite_number_is_refused_by_name_and_empties_nothing() {
    let (fixture, mut phone) = shop(&things()).await;
    for (sql, why) in [
        ("UPDATE things SET price = 9e999 WHERE id = 'a'", "price: is Infinity; a finite number was expected"),
        ("UPDATE things SET price = -9e999 WHERE id = 'a'", "price: is -Infinity; a finite number was expected"),
        ("UPDATE things SET price = 1e308 * 10 WHERE id = 'a'", "price: is Infinity; a finite number was expected"),
        ("UPDATE things SET qty = 9e999 WHERE id = 'a'", "qty: is Infinity; a finite number was expected"),
        ("UPDATE things SET qty = 'many' WHERE id = 'a'", "qty: should be an integer, not a string"),
        (
            "UPDATE things SET qty = 9223372036854775808 WHERE id = 'a'",
            "qty: should be an integer of 64 bits without fraction",
        ),
        ("UPDATE things SET price = 'dear' WHERE id = 'a'", "price: should be a number, not a string"),
        (
            "UPDATE things SET note = x'00ff' WHERE id = 'a'",
            "note: is a BLOB of 2 bytes; a field of type string was expected",
        ),
        (
            "UPDATE things SET note = CAST(x'ff' AS TEXT) WHERE id = 'a'",
            "note: is a BLOB of 1 bytes; a field of type string was expected",
        ),
        ("UPDATE things SET done = 7 WHERE id = 'a'", "done: is 7; 0 (false) or 1 (true) was expected"),
        ("UPDATE things SET tags = '{}' WHERE id = 'a'", "tags: should be a list, not a map"),
    ] {
        let found = refused_of(&fixture, &mut phone, sql).await;
        assert!(found.iter().any(|found| found == why), "{sql}: {found:?}");
        let row = fixture.row("things", "a").await.expect("there");
        assert_eq!(row, json!({"name": "A", "qty": 1, "price": 2.5, "note": "n"}), "{sql}");
    }
    for sql in
        ["UPDATE things SET at = '2026-02-30T00:00:00Z' WHERE id = 'a'", "UPDATE things SET tags = '[1' WHERE id = 'a'"]
    {
        assert!(!refused_of(&fixture, &mut phone, sql).await.is_empty(), "{sql}");
    }
}

#[tokio::test]
async fn b4_other_cells_and_rows_are_kept() {
    let (fixture, mut phone) = shop(&things()).await;
    let sql = "UPDATE things SET price = 9e999, qty = 7, note = 'new' WHERE id = 'a'; \
               INSERT INTO things (id, name, price) VALUES ('b', 'B', -9e999); UPDATE things SET qty = 3 WHERE id = 'z'";
    let found = refused_of(&fixture, &mut phone, sql).await;
    assert_eq!(found.len(), 2);
    assert_eq!(fixture.row("things", "a").await, Some(json!({"name": "A", "qty": 7, "price": 2.5, "note": "new"})));
    assert_eq!(fixture.row("things", "b").await, Some(json!({"name": "B"})));
    assert_eq!(fixture.row("things", "z").await, Some(json!({"name": "Z", "qty": 3})));
}

#[tokio::test]
async fn b4_a_required_field_that_cannot_be_refuses_a_new_row_by_name() {
    let required = things().replace("price: number", "price: { type: number, required: true }");
    let fixture = SyncFixture::new(&required).await;
    fixture.subscriber("ann", json!({})).await;
    fixture.put("things", "a", json!({"name": "A", "price": 1.0})).await;
    let mut phone = Phone::new(&fixture, "ann").await;
    phone.sync(&fixture).await;
    let sql = "INSERT INTO things (id, name, price) VALUES ('b', 'B', 9e999); UPDATE things SET price = 9e999, name = 'A2' WHERE id = 'a'; \
               INSERT INTO things (id, name, price) VALUES ('c', 'C', 3)";
    let found = refused_of(&fixture, &mut phone, sql).await;
    assert!(found.iter().any(|why| why.contains("price: is required")), "{found:?}");
    assert_eq!(fixture.row("things", "a").await, Some(json!({"name": "A2", "price": 1.0})));
    assert_eq!(fixture.row("things", "b").await, None);
    assert_eq!(fixture.row("things", "c").await, Some(json!({"name": "C", "price": 3.0})));
    // A cleared required field keeps its value; the others of the edit are applied.
    let found = refused_of(&fixture, &mut phone, "UPDATE things SET price = NULL, name = 'A3' WHERE id = 'a'").await;
    assert!(found.iter().any(|why| why.contains("price: is required")), "{found:?}");
    assert_eq!(fixture.row("things", "a").await, Some(json!({"name": "A3", "price": 1.0})));
}

#[tokio::test]
async fn b5_what_is_too_long_is_set_aside_and_stops_nothing() {
    let (fixture, mut phone) = shop(&things()).await;
    let sql = "UPDATE things SET note = printf('%.*c', 5000000, 'x'), qty = 2 WHERE id = 'a'; UPDATE things SET qty = 4 WHERE id = 'z'; \
               INSERT INTO things (id, name) VALUES (printf('%.*c', 200, 'k'), 'long'), ('with/slash', 's'), ('', 'none')";
    let found = refused_of(&fixture, &mut phone, sql).await;
    assert!(found.iter().any(|why| why.starts_with("note: has 5000002 bytes as JSON")), "{found:?}");
    assert_eq!(found.iter().filter(|why| why.starts_with("id: must be 1 to 128 characters")).count(), 3, "{found:?}");
    assert_eq!(fixture.row("things", "a").await, Some(json!({"name": "A", "qty": 2, "price": 2.5, "note": "n"})));
    assert_eq!(fixture.row("things", "z").await, Some(json!({"name": "Z", "qty": 4})));
    assert_eq!(fixture.rows("things").await.len(), 2);
    // Rejected values are kept, so that they can be corrected.
    let status = phone.replica.status().expect("read");
    let note = status.refused.iter().find(|refused| refused.fields == ["note"]).expect("there");
    assert_eq!(note.values["note"].as_str().map(str::len), Some(5_000_000));
}

#[tokio::test]
async fn b5_correcting_or_removing_the_row_ends_the_refusal() {
    let (fixture, mut phone) = shop(&things()).await;
    let bad = "UPDATE things SET note = x'00' WHERE id = 'a'; UPDATE things SET price = 9e999 WHERE id = 'z'";
    assert_eq!(refused_of(&fixture, &mut phone, bad).await.len(), 2);
    assert_eq!(refused_of(&fixture, &mut phone, "UPDATE things SET qty = 5 WHERE id = 'a'").await.len(), 2);
    assert_eq!(refused_of(&fixture, &mut phone, "UPDATE things SET note = 'good' WHERE id = 'a'").await.len(), 1);
    assert!(refused_of(&fixture, &mut phone, "DELETE FROM things WHERE id = 'z'").await.is_empty());
    // A row corrected or removed before the sync is not rejected.
    let sql = "UPDATE things SET note = x'00' WHERE id = 'a'; UPDATE things SET note = 'again' WHERE id = 'a'; \
               INSERT INTO things (id, note) VALUES ('y', x'ff'); DELETE FROM things WHERE id = 'y'";
    assert!(refused_of(&fixture, &mut phone, sql).await.is_empty());
    assert_eq!(fixture.row("things", "a").await.expect("there")["note"], "again");
}

#[tokio::test]
async fn b5_ids_that_are_not_text_are_refused_where_they_are_made_or_set_aside() {
    let (fixture, mut phone) = shop(&things()).await;
    let error = phone.replica.connection().execute("INSERT INTO things (id) VALUES (x'0102')", ()).expect_err("a BLOB");
    assert!(error.to_string().contains("the id of a row is text"), "{error}");
    let error =
        phone.replica.connection().execute("UPDATE things SET id = 'b' WHERE id = 'a'", ()).expect_err("renamed");
    assert!(error.to_string().contains("the id of a row does not change"), "{error}");
    let sql = "INSERT INTO things (id, name) VALUES (CAST(x'6bff' AS TEXT), 'bad'), (5, 'five')";
    assert_eq!(refused_of(&fixture, &mut phone, sql).await, ["id: is text that is not UTF-8"]);
    assert_eq!(fixture.row("things", "5").await, Some(json!({"name": "five"})));
}

#[tokio::test]
async fn b5_values_of_any_kind_that_fields_hold_go_both_ways_as_they_are() {
    let (fixture, mut phone) = shop(&things()).await;
    let sql = "UPDATE things SET note = 'a' || char(0) || 'b', price = 0.1 + 0.2, qty = -9223372036854775808 WHERE id = 'a'; \
               INSERT INTO things (id, price, at, done, tags) VALUES ('b', 1e308, '2026-01-02T03:04:05+01:00', 1, '[1, \"x\"]')";
    phone.run(sql);
    assert_eq!(phone.sync(&fixture).await.refused, 0);
    let row = fixture.row("things", "a").await.expect("there");
    assert_eq!(row, json!({"name": "A", "qty": i64::MIN, "price": 0.1 + 0.2, "note": "a\0b"}));
    let cells =
        phone.replica.query("SELECT hex(note), price = 0.1 + 0.2, qty FROM things WHERE id = 'a'").expect("read").1;
    assert_eq!(cells, [[json!("610062"), json!(1), json!(i64::MIN)]]);
    let row = fixture.row("things", "b").await.expect("there");
    assert_eq!((&row["price"], &row["done"], &row["tags"]), (&json!(1e308), &json!(true), &json!([1, "x"])));
}

#[tokio::test]
async fn a_query_of_a_replica_does_not_write() {
    let (_bed, phone) = shop(&things()).await;
    let before = phone.replica.query("SELECT * FROM things").expect("read");
    for sql in [
        "DELETE FROM things",
        "DELETE FROM things RETURNING id",
        "DROP TABLE things",
        "UPDATE things SET qty = 7",
        "PRAGMA user_version = 77",
        "WITH ids AS (SELECT id FROM things) DELETE FROM things WHERE id IN ids",
    ] {
        let error = phone.replica.query(sql).expect_err(sql).to_string();
        assert!(error.contains("a query only reads"), "{sql}: {error}");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("other.db");
    let attach = format!("ATTACH '{}' AS other", path.display());
    let error = phone.replica.query(&attach).expect_err("refused").to_string();
    assert!(error.contains("too many attached databases") && !path.exists(), "{error}");
    assert_eq!(phone.replica.query("SELECT * FROM things").expect("read"), before);
    phone.run("UPDATE things SET qty = 7 WHERE id = 'a'");
}

#[tokio::test]
async fn b5_the_api_of_a_replica_refuses_what_cannot_be_at_once() {
    let (_bed, phone) = shop(&things()).await;
    let put = |id: &str, fields: Json| phone.replica.put("things", id, &object(fields));
    for (id, fields) in [
        ("a", json!({"price": "dear"})),
        ("a", json!({"nothing": 1})),
        ("a", json!({"note": "x".repeat(300_000)})),
        ("a/b", json!({})),
        ("", json!({})),
        (&"k".repeat(129), json!({})),
    ] {
        assert!(matches!(put(id, fields.clone()), Err(ReplicaError::Unfit(_))), "{id}: {fields}");
    }
    assert_eq!(phone.replica.status().expect("read").edited, 0);
}

#[tokio::test]
async fn b4_a_field_that_the_server_has_no_more_is_refused_alone() {
    let (fixture, phone) = shop(&things()).await;
    let device = fixture.sync.device(&phone.token).expect("known");
    let begun = fixture.sync.begin(&device, Default::default()).await.expect("begun");
    let known = fixture.sync.row(&name("shop"), "things", "a").await.expect("there").version.0.to_string();
    let line = r#"{"n": 1, "batch": "x", "collection": "things", "id": "a", "base": "KNOWN", "set": {"gone": 1, "qty": 9, "price": "dear"}}
        {"n": 2, "batch": "x", "collection": "things", "id": "z", "set": {"note": "\ud800"}}
        {"n": 3, "batch": "x", "collection": "things", "id": "new", "set": {"name": "N", "price": []}}"#;
    let line = line.replace("KNOWN", &known);
    let read = || tocsin_model::replica::read_edits(line.as_bytes()).map(|edits| (edits, 0));
    let taken = fixture.sync.upload(&device, &begun.session, read).await.expect("taken in");
    let refused: Vec<(u64, Vec<String>)> = taken
        .refused
        .iter()
        .map(|refused| (refused.n, refused.problems.iter().map(|problem| problem.path.clone()).collect()))
        .collect();
    let paths = |paths: &[&str]| paths.iter().map(|path| (*path).to_owned()).collect::<Vec<_>>();
    assert_eq!(refused, [(1, paths(&["gone", "price"])), (2, paths(&[""])), (3, paths(&["price"]))]);
    assert_eq!((taken.applied, taken.uploaded), (2, 3));
    assert_eq!(fixture.row("things", "a").await.expect("there")["qty"], 9);
    assert_eq!(fixture.row("things", "new").await, Some(json!({"name": "N"})));
}

#[tokio::test]
async fn b5_edits_of_removed_fields_and_collections_are_reported() {
    let (fixture, mut phone) = shop(&things()).await;
    phone.run("UPDATE things SET note = 'unsent', qty = 8 WHERE id = 'a'");
    fixture.apply(&things().replace("note: string, ", "")).await;
    phone.sync(&fixture).await;
    assert_eq!(
        refused(&phone),
        [("a".to_owned(), "note: was removed from `things` or has another type now".to_owned())]
    );
    assert_eq!(phone.replica.status().expect("read").refused[0].values["note"], "unsent");
    assert_eq!(fixture.row("things", "a").await.expect("there")["qty"], 8);
    phone.run("UPDATE things SET qty = 9 WHERE id = 'a'");
    fixture.apply(&things().replace("things:", "others:")).await;
    phone.sync(&fixture).await;
    let status = phone.replica.status().expect("read");
    let last = status.refused.last().expect("there");
    assert_eq!(
        (last.why.as_str(), &last.values["qty"]),
        ("the collection `things` is no longer available to this device", &json!(9))
    );
}

#[tokio::test]
async fn an_unreadable_application_removes_no_rows_of_devices() {
    let (fixture, mut phone) = shop(&things()).await;
    phone.run("UPDATE things SET qty = 8 WHERE id = 'a'");
    fixture.apply("application: shop\nnonsense: {").await;
    assert!(phone.try_sync(&fixture).await.is_err());
    assert_eq!(phone.rows("things").len(), 2);
    fixture.apply(&things()).await;
    assert_eq!(phone.sync(&fixture).await.applied, 1);
}
