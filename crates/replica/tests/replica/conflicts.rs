use serde_json::{Value as Json, json};
use tocsin_sync::rows::RowChange;

use crate::fixture::{Phone, SyncFixture, name, note, notes, object};

/// Ann edits on two phones in the same state; the API writes in between. Returns the row, and the winners in the log.
async fn conflict(conflicts: &str, first: &str, api: Json, second: &str) -> (Json, Vec<String>) {
    let fixture = SyncFixture::new(&notes(&format!("    conflicts: {conflicts}\n"))).await;
    fixture.subscriber("ann", json!({})).await;
    fixture.put("notes", "a", json!({"owner": "ann", "text": "call ann today", "count": 10})).await;
    let (mut one, mut two) = (Phone::new(&fixture, "ann").await, Phone::new(&fixture, "ann").await);
    one.sync(&fixture).await;
    two.sync(&fixture).await;
    one.run(first);
    two.run(second);
    one.sync(&fixture).await;
    if !api.is_null() {
        fixture.change("notes", "a", RowChange::Patch(object(api))).await;
    }
    two.sync(&fixture).await;
    one.sync(&fixture).await;
    assert_eq!(one.rows("notes"), fixture.rows("notes").await);
    assert_eq!(two.rows("notes"), fixture.rows("notes").await);
    let log = fixture.sync.conflicts(&name("shop"), None, None, 100).await.expect("listed");
    let winners = log.iter().map(|met| met.conflict.winner.to_string()).collect();
    (fixture.row("notes", "a").await.unwrap_or(Json::Null), winners)
}

const BREAD: &str = "UPDATE notes SET text = 'bread'";
const EGGS: &str = "UPDATE notes SET text = 'eggs'";

#[tokio::test]
async fn edits_of_different_fields_are_both_kept_by_column_but_meet_by_row() {
    let count = "UPDATE notes SET count = 11";
    let (row, log) = conflict("{ track: column }", BREAD, Json::Null, count).await;
    assert_eq!((&row["text"], &row["count"], log), (&json!("bread"), &json!(11), vec![]));
    let (row, log) = conflict("{ track: row, resolver: server }", BREAD, Json::Null, count).await;
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
        let (row, log) = conflict(&format!("{{ resolver: {resolver} }}"), BREAD, Json::Null, EGGS).await;
        assert_eq!((&row["text"], log), (&json!(stays), vec![winner.to_owned()]), "{resolver}");
    }
    // The API knew the first phone's edit, and the second phone did not.
    let (row, _) = conflict("{ resolver: last }", BREAD, json!({"text": "from the API"}), EGGS).await;
    assert_eq!(row["text"], "from the API");
    let (row, _) = conflict("{ resolver: first }", BREAD, json!({"text": "from the API"}), EGGS).await;
    assert_eq!(row["text"], "eggs");
}

#[tokio::test]
async fn fields_are_merged() {
    let (five, twelve) = ("UPDATE notes SET count = 5", "UPDATE notes SET count = 12");
    for (combine, expected) in [("max", 12), ("min", 5), ("sum", 7)] {
        let (row, log) = conflict(&format!("{{ fields: {{ count: {combine} }} }}"), five, Json::Null, twelve).await;
        assert_eq!((&row["count"], log), (&json!(expected), vec!["both".to_owned()]), "{combine}");
    }
    let (bob, tomorrow) = ("UPDATE notes SET text = 'call bob today'", "UPDATE notes SET text = 'call ann tomorrow'");
    let (row, log) = conflict("{ fields: { text: merge } }", bob, Json::Null, tomorrow).await;
    assert_eq!((&row["text"], log), (&json!("call bob tomorrow"), vec!["both".to_owned()]));
}

#[tokio::test]
async fn a_removed_row_does_not_come_back() {
    let remove = "DELETE FROM notes";
    for resolver in ["server", "client", "last", "first"] {
        let (row, log) = conflict(&format!("{{ resolver: {resolver} }}"), remove, Json::Null, EGGS).await;
        assert_eq!((row, log), (Json::Null, vec!["server".to_owned()]), "{resolver}");
    }
    let (row, log) = conflict("{ resolver: server }", EGGS, Json::Null, remove).await;
    assert_eq!((&row["text"], log), (&json!("eggs"), vec!["server".to_owned()]));
    let (row, log) = conflict("{ resolver: client }", EGGS, Json::Null, remove).await;
    assert_eq!((row, log), (Json::Null, vec!["client".to_owned()]));
}

#[tokio::test]
async fn the_losing_version_can_be_restored() {
    let fixture = SyncFixture::new(&notes("    conflicts: { resolver: server }\n")).await;
    fixture.subscriber("ann", json!({})).await;
    fixture.put("notes", "a", json!({"owner": "ann", "text": "milk", "count": 1})).await;
    let (mut one, mut two) = (Phone::new(&fixture, "ann").await, Phone::new(&fixture, "ann").await);
    one.sync(&fixture).await;
    two.sync(&fixture).await;
    one.run(BREAD);
    two.run("UPDATE notes SET text = 'eggs', count = 2");
    one.sync(&fixture).await;
    assert_eq!(two.sync(&fixture).await.conflicts, 1);
    let row = fixture.row("notes", "a").await.expect("there");
    assert_eq!((&row["text"], &row["count"]), (&json!("bread"), &json!(2)));
    let log = fixture.sync.conflicts(&name("shop"), Some("notes"), None, 10).await.expect("listed");
    let number = log[0].conflict.number;
    fixture.sync.revert_conflict(&name("shop"), number).await.expect("reverted");
    assert_eq!(fixture.row("notes", "a").await.expect("there")["text"], "eggs");
    one.sync(&fixture).await;
    assert_eq!(one.rows("notes"), fixture.rows("notes").await);
    let log = fixture.sync.conflicts(&name("shop"), None, None, 10).await.expect("listed");
    assert!(log[0].conflict.reverted_at.is_some());
    assert!(fixture.sync.revert_conflict(&name("shop"), 99).await.is_err());
}

#[tokio::test]
async fn the_clock_of_a_device_decides_nothing() {
    let fixture = SyncFixture::new(&notes("    conflicts: { resolver: last }\n")).await;
    fixture.subscriber("ann", json!({})).await;
    fixture.put("notes", "a", json!({"owner": "ann", "text": "milk"})).await;
    let (mut one, mut two) = (Phone::new(&fixture, "ann").await, Phone::new(&fixture, "ann").await);
    two.sync(&fixture).await;
    fixture.put("notes", "a", json!({"owner": "ann", "text": "soy milk"})).await;
    one.sync(&fixture).await;
    // The first phone knows the newer state; the later arrival of the other edit changes nothing.
    one.run(BREAD);
    two.run(EGGS);
    one.sync(&fixture).await;
    fixture.clock.fetch_sub(365 * 86_400_000, std::sync::atomic::Ordering::Relaxed);
    two.sync(&fixture).await;
    assert_eq!(fixture.row("notes", "a").await.expect("there")["text"], "bread");
    one.sync(&fixture).await;
    assert_eq!((one.rows("notes"), two.rows("notes")), (fixture.rows("notes").await, fixture.rows("notes").await));
}

#[tokio::test]
async fn an_edit_of_a_row_that_left_the_view_is_logged() {
    let fixture = SyncFixture::new(&notes("")).await;
    fixture.subscriber("ann", json!({})).await;
    fixture.subscriber("bob", json!({})).await;
    let mut phone = Phone::new(&fixture, "ann").await;
    fixture.put("notes", "n1", note("ann", "first")).await;
    phone.sync(&fixture).await;
    fixture.put("notes", "n1", note("bob", "first")).await;
    phone.run("UPDATE notes SET text = 'hers'");
    assert_eq!(phone.sync(&fixture).await.refused, 1);
    assert!(phone.rows("notes").is_empty());
    let found = fixture.sync.conflicts(&name("shop"), None, None, 10).await.expect("listed");
    assert_eq!((&*found[0].conflict.resolver, &*found[0].conflict.winner), ("left", "server"));
    fixture.sync.revert_conflict(&name("shop"), found[0].conflict.number).await.expect("put back");
    assert_eq!(fixture.row("notes", "n1").await, Some(note("bob", "hers")));
}

#[tokio::test]
async fn an_edit_with_stamps_of_the_future_does_not_win() {
    for resolver in ["server", "client", "first", "last"] {
        let fixture = SyncFixture::new(&notes(&format!("    conflicts: {{ resolver: {resolver} }}\n"))).await;
        fixture.subscriber("ann", json!({})).await;
        fixture.put("notes", "a", note("ann", "milk")).await;
        fixture.put("notes", "gone", note("ann", "milk")).await;
        fixture.change("notes", "gone", RowChange::Remove).await;
        let token = fixture.device("ann").await;
        let device = fixture.sync.device(&token).expect("known");
        let begun = fixture.sync.begin(&device, Default::default()).await.expect("begun");
        let ahead = |minutes: i64| {
            let time = fixture.now() + std::time::Duration::from_secs(60 * minutes.unsigned_abs());
            tocsin_model::collection::Stamp::at(time).0
        };
        let send = async |n: u64, id: &str, base: u64, seen: u64| {
            let line = json!({"n": n, "batch": "b", "collection": "notes", "id": id, "base": base.to_string(),
                "seen": seen.to_string(), "set": {"owner": "ann", "text": format!("edit {n}")}, "was": {"text": "x"}});
            let read = || tocsin_model::replica::read_edits(line.to_string().as_bytes()).map(|edits| (edits, 0));
            fixture.sync.upload(&device, &begun.session, read).await.expect("taken in")
        };
        for (n, (id, base, seen, path)) in
            [("a", ahead(6), 0, "base"), ("a", 1, u64::MAX >> 1, "seen"), ("gone", 0, ahead(6), "seen")]
                .into_iter()
                .enumerate()
        {
            let n = n as u64 + 1;
            let taken = send(n, id, base, seen).await;
            assert_eq!((taken.applied, taken.conflicts.len()), (0, 0), "{resolver}");
            let problem = &taken.refused[0].problems[0];
            assert_eq!((taken.refused[0].n, &*problem.path), (n, ""), "{resolver}: the whole edit is refused");
            assert!(problem.message.contains(&format!("`{path}`")), "{resolver}: {problem}");
            // The edit is kept, and can be put in.
            let log = fixture.sync.conflicts(&name("shop"), None, None, 10).await.expect("listed");
            assert_eq!((log.len() as u64, &*log[0].conflict.resolver), (n, "ahead"), "{resolver}");
            assert!(log[0].conflict.client.contains(&format!("edit {n}")), "{resolver}");
        }
        assert_eq!(fixture.row("notes", "a").await, Some(note("ann", "milk")), "{resolver}");
        assert_eq!(fixture.row("notes", "gone").await, None, "{resolver}");
        // A stamp of a history that was lost may be somewhat ahead of the clock.
        assert_eq!(send(4, "a", ahead(4), ahead(4)).await.applied, 1, "{resolver}");
        assert_eq!(fixture.row("notes", "a").await, Some(note("ann", "edit 4")), "{resolver}");
    }
}

#[tokio::test]
async fn a_later_edit_of_a_merged_text_keeps_what_was_merged_into_it() {
    let fixture = SyncFixture::new(&notes("    conflicts: { fields: { text: merge } }\n")).await;
    fixture.subscriber("ann", json!({})).await;
    fixture.put("notes", "a", note("ann", "call ann today")).await;
    let mut phone = Phone::new(&fixture, "ann").await;
    phone.sync(&fixture).await;
    fixture.put("notes", "a", note("ann", "call bob today")).await;
    phone.run("UPDATE notes SET text = 'call ann tomorrow'");
    let link = crate::sessions::LosesRows::of(fixture.link(&phone.token));
    assert!(phone.replica.sync(&link, &mut |_| ()).await.is_err());
    phone.run("UPDATE notes SET text = 'call ann tomorrow at noon'");
    phone.sync(&fixture).await;
    assert_eq!(fixture.row("notes", "a").await, Some(note("ann", "call bob tomorrow at noon")));
    assert_eq!(phone.rows("notes"), fixture.rows("notes").await);
}

#[tokio::test]
async fn a13_many_long_merges_hold_up_no_other_write() {
    let definition = notes("    conflicts: { resolver: server, fields: { text: merge } }\n");
    let fixture = SyncFixture::new(&definition).await;
    fixture.subscriber("ann", json!({})).await;
    let text = |word: &str| (0..300).map(|at| format!("{word}{at} ")).collect::<String>();
    for row in 0..20 {
        fixture.put("notes", &format!("r{row}"), note("ann", &text("a"))).await;
    }
    let mut phone = Phone::new(&fixture, "ann").await;
    phone.sync(&fixture).await;
    for row in 0..20 {
        fixture.put("notes", &format!("r{row}"), note("ann", &text("b"))).await;
    }
    phone.run("UPDATE notes SET text = replace(text, 'a', 'c')");
    // The block is rolled back before its texts are merged, so another write waits for at most one commit.
    let summary = phone.sync(&fixture).await;
    assert_eq!(summary.conflicts, 20);
    assert_eq!(fixture.row("notes", "r0").await.expect("there")["text"], format!("{}{}", text("b"), text("c")));
    assert_eq!(phone.rows("notes"), fixture.rows("notes").await);
    // Texts that are too long go to the resolver.
    let long = |word: &str| (0..3_000).map(|at| format!("{word}{at} ")).collect::<String>();
    fixture.put("notes", "r0", note("ann", &long("x"))).await;
    phone.sync(&fixture).await;
    fixture.put("notes", "r0", note("ann", &long("y"))).await;
    phone.run("UPDATE notes SET text = replace(text, 'x', 'z') WHERE id = 'r0'");
    assert_eq!(phone.sync(&fixture).await.conflicts, 1);
    assert_eq!(fixture.row("notes", "r0").await.expect("there")["text"], long("y"));
}
