//! Rows that violate the schema of their collection are rejected individually, regardless of who writes them.

use serde_json::json;
use tocsin_sync::{
    SyncError,
    rows::{RowChange, WriteMode},
};

use crate::fixture::{Phone, SyncFixture, name, note, notes, object, rows};

const SCHEMA: &str =
    "    schema: { properties: { count: { minimum: 0, maximum: 12 }, tags: { items: { type: string } } }, \
                      dependentRequired: { done: [text] } }
    conflicts: { fields: { count: sum } }
";

async fn fixture() -> SyncFixture {
    let fixture = SyncFixture::new(&notes(SCHEMA)).await;
    fixture.subscriber("ann", json!({})).await;
    fixture
}

#[tokio::test]
async fn an_invalid_edit_is_rejected_with_a_reason_and_stops_no_other() {
    let fixture = fixture().await;
    fixture.put("notes", "a", json!({"owner": "ann", "count": 10})).await;
    let mut phone = Phone::new(&fixture, "ann").await;
    phone.sync(&fixture).await;
    phone.run(
        "INSERT INTO notes (id, owner, count) VALUES ('b', 'ann', 3);
         INSERT INTO notes (id, owner, count) VALUES ('c', 'ann', -3);
         UPDATE notes SET done = 1 WHERE id = 'a';
         INSERT INTO notes (id, owner, tags) VALUES ('d', 'ann', '[\"one\", 2]');
         INSERT INTO notes (id, owner, count) VALUES ('e', 'ann', 4);",
    );
    let summary = phone.sync(&fixture).await;
    assert_eq!((summary.applied, summary.refused), (2, 3));
    let refused = phone.replica.status().expect("read").refused;
    let reasons: Vec<(&str, &str)> = refused.iter().map(|edit| (edit.row.1.as_str(), edit.why.as_str())).collect();
    assert_eq!(
        reasons,
        [
            ("c", "count: value is less than the minimum of 0"),
            ("a", "\"text\" is a required property"),
            ("d", "tags.1: value is not of type \"string\""),
        ]
    );
    // The rejected values are reverted.
    assert_eq!(phone.rows("notes"), fixture.rows("notes").await);
    let note = |count: i64| json!({"owner": "ann", "count": count});
    assert_eq!(fixture.rows("notes").await, rows([("a", note(10)), ("b", note(3)), ("e", note(4))]));
}

#[tokio::test]
async fn what_edits_come_to_together_has_to_fit() {
    let fixture = fixture().await;
    fixture.put("notes", "a", json!({"owner": "ann", "count": 10})).await;
    let (mut phone, mut laptop) = (Phone::new(&fixture, "ann").await, Phone::new(&fixture, "ann").await);
    for phone in [&mut phone, &mut laptop] {
        phone.sync(&fixture).await;
        phone.run("UPDATE notes SET count = count + 2");
    }
    assert_eq!(phone.sync(&fixture).await.refused, 0);
    assert_eq!(laptop.sync(&fixture).await.refused, 1, "each is at most 12, and both are 14");
    assert_eq!(laptop.rows("notes")["a"]["count"], 12);
}

#[tokio::test]
async fn the_api_reports_each_invalid_row() {
    let fixture = fixture().await;
    let shop = name("shop");
    let put = RowChange::Put(object(json!({"owner": "ann", "count": 13})));
    match fixture.sync.change_row(&shop, "notes", "a", put, None).await {
        Err(SyncError::Invalid(problems)) => assert_eq!(problems[0].path, "count"),
        other => panic!("{other:?}"),
    }
    let many = || {
        let row = |id: &str, count: i64| (id.to_owned(), object(json!({"owner": "ann", "count": count})));
        vec![row("a", 1), row("b", -1), row("c", 2), row("d", 13)]
    };
    match fixture.sync.put_rows(&shop, "notes", many(), WriteMode::All).await {
        Err(SyncError::Invalid(problems)) => {
            assert_eq!(problems.iter().map(|problem| &*problem.path).collect::<Vec<_>>(), ["[1].count", "[3].count"]);
        }
        other => panic!("{other:?}"),
    }
    assert!(fixture.rows("notes").await.is_empty(), "none was put");
    let refused = fixture.sync.put_rows(&shop, "notes", many(), WriteMode::Those).await.expect("the others are put");
    assert_eq!(refused.iter().map(|row| (row.at, &*row.id)).collect::<Vec<_>>(), [(1, "b"), (3, "d")]);
    assert_eq!(fixture.rows("notes").await.into_keys().collect::<Vec<_>>(), ["a", "c"]);
}

#[tokio::test]
async fn a_download_has_no_values_that_the_current_version_does_not_show() {
    let fixture = SyncFixture::new(&notes("")).await;
    fixture.subscriber("ann", json!({})).await;
    fixture.put("notes", "a", json!({"owner": "ann", "text": "milk", "count": 9, "done": true})).await;
    fixture.apply(
        "application: shop\ncollections:\n  notes:\n    fields: { owner: { type: string, required: true }, \
         count: string, done: boolean, state: { type: string, default: open } }\n    partition:\n      - match: { owner: \
         subscriber.id }\n",
    )
    .await;
    let token = fixture.device("ann").await;
    let device = fixture.sync.device(&token).expect("known");
    let begun = fixture.sync.begin(&device, Default::default()).await.expect("begun");
    let pack = |lines: Vec<u8>, _| (String::from_utf8(lines).expect("text"), 0);
    let lines = fixture.sync.download(&device, &begun.session, &begun.cursor, pack).await.expect("read");
    let (_, _, _, row): (String, String, String, serde_json::Value) = serde_json::from_str(&lines).expect("one row");
    assert_eq!(row, json!({"owner": "ann", "done": true, "state": "open"}));
    assert_eq!(Some(row), fixture.row("notes", "a").await);
}

#[tokio::test]
async fn a_violation_older_than_the_schema_does_not_block_other_changes() {
    let fixture = SyncFixture::new(&notes("")).await;
    fixture.subscriber("ann", json!({})).await;
    fixture.put("notes", "a", json!({"owner": "ann", "count": 99})).await;
    fixture.apply(&notes(SCHEMA)).await;
    let mut phone = Phone::new(&fixture, "ann").await;
    phone.sync(&fixture).await;
    assert_eq!(phone.rows("notes")["a"]["count"], 99);
    phone.run("UPDATE notes SET text = 'bread'");
    let summary = phone.sync(&fixture).await;
    assert_eq!((summary.applied, summary.refused), (1, 0));
    phone.run("UPDATE notes SET count = 98");
    assert_eq!(phone.sync(&fixture).await.refused, 1);
    phone.run("UPDATE notes SET count = 9");
    assert_eq!(phone.sync(&fixture).await.applied, 1);
    fixture.put("notes", "b", note("ann", "eggs")).await;
}
