use serde_json::{Value as Json, json};
use tocsin_sync::rows::RowChange;

use crate::bed::{Bed, Phone, name, note, notes, object};

/// Ann edits on two phones in the same state; the API writes in between. Returns the row, and the winners in the log.
async fn meet(conflicts: &str, first: &str, api: Json, second: &str) -> (Json, Vec<String>) {
    let bed = Bed::new(&notes(&format!("    conflicts: {conflicts}\n"))).await;
    bed.subscriber("ann", json!({})).await;
    bed.put("notes", "a", json!({"owner": "ann", "text": "call ann today", "count": 10})).await;
    let (mut one, mut two) = (Phone::new(&bed, "ann").await, Phone::new(&bed, "ann").await);
    one.sync(&bed).await;
    two.sync(&bed).await;
    one.run(first);
    two.run(second);
    one.sync(&bed).await;
    if !api.is_null() {
        bed.change("notes", "a", RowChange::Patch(object(api))).await;
    }
    two.sync(&bed).await;
    one.sync(&bed).await;
    assert_eq!(one.rows("notes"), bed.rows("notes").await);
    assert_eq!(two.rows("notes"), bed.rows("notes").await);
    let log = bed.sync.conflicts(&name("shop"), None, None, 100).await.expect("listed");
    let winners = log.iter().map(|met| met.conflict.winner.to_string()).collect();
    (bed.row("notes", "a").await.unwrap_or(Json::Null), winners)
}

const BREAD: &str = "UPDATE notes SET text = 'bread'";
const EGGS: &str = "UPDATE notes SET text = 'eggs'";

#[tokio::test]
async fn edits_of_different_fields_are_both_kept_by_column_but_meet_by_row() {
    let count = "UPDATE notes SET count = 11";
    let (row, log) = meet("{ track: column }", BREAD, Json::Null, count).await;
    assert_eq!((&row["text"], &row["count"], log), (&json!("bread"), &json!(11), vec![]));
    let (row, log) = meet("{ track: row, resolver: server }", BREAD, Json::Null, count).await;
    assert_eq!((&row["text"], &row["count"]), (&json!("bread"), &json!(10)));
    assert_eq!(log, ["server"]);
}

#[tokio::test]
async fn each_resolver_decides_as_documented() {
    for (resolver, stays, winner) in [
        ("server", "bread", "server"),
        ("client", "eggs", "client"),
        ("last", "eggs", "client"),
        ("first", "bread", "server"),
        ("{ predicate: \"event.client.text < event.server.text\" }", "bread", "server"),
        ("{ predicate: \"event.client.text > event.server.text\" }", "eggs", "client"),
    ] {
        let (row, log) = meet(&format!("{{ resolver: {resolver} }}"), BREAD, Json::Null, EGGS).await;
        assert_eq!((&row["text"], log), (&json!(stays), vec![winner.to_owned()]), "{resolver}");
    }
    // The API knew the first phone's edit, and the second phone did not.
    let (row, _) = meet("{ resolver: last }", BREAD, json!({"text": "from the API"}), EGGS).await;
    assert_eq!(row["text"], "from the API");
    let (row, _) = meet("{ resolver: first }", BREAD, json!({"text": "from the API"}), EGGS).await;
    assert_eq!(row["text"], "eggs");
}

#[tokio::test]
async fn fields_are_merged() {
    let (five, twelve) = ("UPDATE notes SET count = 5", "UPDATE notes SET count = 12");
    for (combine, expected) in [("max", 12), ("min", 5), ("sum", 7)] {
        let (row, log) = meet(&format!("{{ fields: {{ count: {combine} }} }}"), five, Json::Null, twelve).await;
        assert_eq!((&row["count"], log), (&json!(expected), vec!["both".to_owned()]), "{combine}");
    }
    let (bob, tomorrow) = ("UPDATE notes SET text = 'call bob today'", "UPDATE notes SET text = 'call ann tomorrow'");
    let (row, log) = meet("{ fields: { text: merge } }", bob, Json::Null, tomorrow).await;
    assert_eq!((&row["text"], log), (&json!("call bob tomorrow"), vec!["both".to_owned()]));
}

#[tokio::test]
async fn a_removed_row_does_not_come_back() {
    let remove = "DELETE FROM notes";
    for resolver in ["server", "client", "last", "first"] {
        let (row, log) = meet(&format!("{{ resolver: {resolver} }}"), remove, Json::Null, EGGS).await;
        assert_eq!((row, log), (Json::Null, vec!["server".to_owned()]), "{resolver}");
    }
    let (row, log) = meet("{ resolver: server }", EGGS, Json::Null, remove).await;
    assert_eq!((&row["text"], log), (&json!("eggs"), vec!["server".to_owned()]));
    let (row, log) = meet("{ resolver: client }", EGGS, Json::Null, remove).await;
    assert_eq!((row, log), (Json::Null, vec!["client".to_owned()]));
}

#[tokio::test]
async fn the_losing_version_can_be_restored() {
    let bed = Bed::new(&notes("    conflicts: { resolver: server }\n")).await;
    bed.subscriber("ann", json!({})).await;
    bed.put("notes", "a", json!({"owner": "ann", "text": "milk", "count": 1})).await;
    let (mut one, mut two) = (Phone::new(&bed, "ann").await, Phone::new(&bed, "ann").await);
    one.sync(&bed).await;
    two.sync(&bed).await;
    one.run(BREAD);
    two.run("UPDATE notes SET text = 'eggs', count = 2");
    one.sync(&bed).await;
    assert_eq!(two.sync(&bed).await.conflicts, 1);
    let row = bed.row("notes", "a").await.expect("there");
    assert_eq!((&row["text"], &row["count"]), (&json!("bread"), &json!(2)));
    let log = bed.sync.conflicts(&name("shop"), Some("notes"), None, 10).await.expect("listed");
    let number = log[0].conflict.number;
    bed.sync.revert_conflict(&name("shop"), number).await.expect("reverted");
    assert_eq!(bed.row("notes", "a").await.expect("there")["text"], "eggs");
    one.sync(&bed).await;
    assert_eq!(one.rows("notes"), bed.rows("notes").await);
    let log = bed.sync.conflicts(&name("shop"), None, None, 10).await.expect("listed");
    assert!(log[0].conflict.reverted_at.is_some());
    assert!(bed.sync.revert_conflict(&name("shop"), 99).await.is_err());
}

#[tokio::test]
async fn the_clock_of_a_device_decides_nothing() {
    let bed = Bed::new(&notes("    conflicts: { resolver: last }\n")).await;
    bed.subscriber("ann", json!({})).await;
    bed.put("notes", "a", json!({"owner": "ann", "text": "milk"})).await;
    let (mut one, mut two) = (Phone::new(&bed, "ann").await, Phone::new(&bed, "ann").await);
    two.sync(&bed).await;
    bed.put("notes", "a", json!({"owner": "ann", "text": "soy milk"})).await;
    one.sync(&bed).await;
    // The first phone knows the newer state; the later arrival of the other edit changes nothing.
    one.run(BREAD);
    two.run(EGGS);
    one.sync(&bed).await;
    bed.clock.fetch_sub(365 * 86_400_000, std::sync::atomic::Ordering::Relaxed);
    two.sync(&bed).await;
    assert_eq!(bed.row("notes", "a").await.expect("there")["text"], "bread");
    one.sync(&bed).await;
    assert_eq!((one.rows("notes"), two.rows("notes")), (bed.rows("notes").await, bed.rows("notes").await));
}

#[tokio::test]
async fn an_edit_of_a_row_that_left_the_view_is_logged() {
    let bed = Bed::new(&notes("")).await;
    bed.subscriber("ann", json!({})).await;
    bed.subscriber("bob", json!({})).await;
    let mut phone = Phone::new(&bed, "ann").await;
    bed.put("notes", "n1", note("ann", "first")).await;
    phone.sync(&bed).await;
    bed.put("notes", "n1", note("bob", "first")).await;
    phone.run("UPDATE notes SET text = 'hers'");
    assert_eq!(phone.sync(&bed).await.refused, 1);
    assert!(phone.rows("notes").is_empty());
    let found = bed.sync.conflicts(&name("shop"), None, None, 10).await.expect("listed");
    assert_eq!((&*found[0].conflict.resolver, &*found[0].conflict.winner), ("left", "server"));
    bed.sync.revert_conflict(&name("shop"), found[0].conflict.number).await.expect("put back");
    assert_eq!(bed.row("notes", "n1").await, Some(note("bob", "hers")));
}

#[tokio::test]
async fn a_later_edit_of_a_merged_text_keeps_what_was_merged_into_it() {
    let bed = Bed::new(&notes("    conflicts: { fields: { text: merge } }\n")).await;
    bed.subscriber("ann", json!({})).await;
    bed.put("notes", "a", note("ann", "call ann today")).await;
    let mut phone = Phone::new(&bed, "ann").await;
    phone.sync(&bed).await;
    bed.put("notes", "a", note("ann", "call bob today")).await;
    phone.run("UPDATE notes SET text = 'call ann tomorrow'");
    let link = crate::sessions::LosesRows::of(bed.link(&phone.token));
    assert!(phone.replica.sync(&link, &mut |_| ()).await.is_err());
    phone.run("UPDATE notes SET text = 'call ann tomorrow at noon'");
    phone.sync(&bed).await;
    assert_eq!(bed.row("notes", "a").await, Some(note("ann", "call bob tomorrow at noon")));
    assert_eq!(phone.rows("notes"), bed.rows("notes").await);
}

#[tokio::test]
async fn a13_many_long_merges_hold_up_no_other_write() {
    let definition = notes("    conflicts: { resolver: server, fields: { text: merge } }\n");
    let bed = Bed::new(&definition).await;
    bed.subscriber("ann", json!({})).await;
    let text = |word: &str| (0..300).map(|at| format!("{word}{at} ")).collect::<String>();
    for row in 0..20 {
        bed.put("notes", &format!("r{row}"), note("ann", &text("a"))).await;
    }
    let mut phone = Phone::new(&bed, "ann").await;
    phone.sync(&bed).await;
    for row in 0..20 {
        bed.put("notes", &format!("r{row}"), note("ann", &text("b"))).await;
    }
    phone.run("UPDATE notes SET text = replace(text, 'a', 'c')");
    // The block is rolled back before its texts are merged, so another write waits for at most one commit.
    let summary = phone.sync(&bed).await;
    assert_eq!(summary.conflicts, 20);
    assert_eq!(bed.row("notes", "r0").await.expect("there")["text"], format!("{}{}", text("b"), text("c")));
    assert_eq!(phone.rows("notes"), bed.rows("notes").await);
    // Texts that are too long go to the resolver.
    let long = |word: &str| (0..3_000).map(|at| format!("{word}{at} ")).collect::<String>();
    bed.put("notes", "r0", note("ann", &long("x"))).await;
    phone.sync(&bed).await;
    bed.put("notes", "r0", note("ann", &long("y"))).await;
    phone.run("UPDATE notes SET text = replace(text, 'x', 'z') WHERE id = 'r0'");
    assert_eq!(phone.sync(&bed).await.conflicts, 1);
    assert_eq!(bed.row("notes", "r0").await.expect("there")["text"], long("y"));
}
