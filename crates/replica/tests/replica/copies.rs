//! Copied and restored replica files, and a restored server.

use std::{fs, path::Path};

use serde_json::{Value as Json, json};
use tocsin_replica::{Replica, ServerCredentials};

use crate::fixture::{Phone, SyncFixture, name, note, notes, object};

/// Copies the replica's file, as a backup program does.
fn copy(phone: &Phone, to: &Path) {
    let to = to.to_str().expect("text");
    phone.run(&format!("VACUUM INTO '{to}'"));
}

/// Restores a copy over the file.
fn restore_copy(phone: Phone, from: &Path) -> Phone {
    let Phone { replica, path, token } = phone;
    drop(replica);
    for end in ["", "-wal", "-shm"] {
        let _ = fs::remove_file(format!("{}{end}", path.display()));
    }
    fs::copy(from, &path).expect("copied");
    Phone { replica: Replica::open(&path).expect("opens"), path, token }
}

async fn shop(more: &str) -> (SyncFixture, Phone) {
    let fixture = SyncFixture::new(&notes(more)).await;
    fixture.subscriber("ann", json!({})).await;
    fixture.put("notes", "a", json!({"owner": "ann", "text": "milk", "count": 1})).await;
    let mut phone = Phone::new(&fixture, "ann").await;
    phone.sync(&fixture).await;
    (fixture, phone)
}

async fn conflicts(fixture: &SyncFixture) -> usize {
    fixture.sync.conflicts(&name("shop"), None, None, 100).await.expect("listed").len()
}

/// The rejected edits of `replica status`.
pub fn refused(phone: &Phone) -> Vec<(String, String)> {
    let refused = phone.replica.status().expect("read").refused;
    refused.into_iter().map(|refused| (refused.row.1, refused.why)).collect()
}

fn assert_same(phone: &Phone, rows: &std::collections::BTreeMap<String, Json>) {
    let mut local = phone.rows("notes");
    for row in local.values_mut() {
        // The table stores booleans as 0 and 1, and lists as text.
        if let Some(done) = row.get_mut("done") {
            *done = json!(*done == 1);
        }
        if let Some(tags) = row.get_mut("tags") {
            *tags = serde_json::from_str(tags.as_str().expect("text")).expect("JSON");
        }
    }
    assert_eq!(&local, rows);
}

#[tokio::test]
async fn b2_an_edit_of_a_restored_file_is_not_lost() {
    let (fixture, mut phone) = shop("").await;
    let backup = fixture.folder.path().join("backup.db");
    phone.run("UPDATE notes SET count = 2");
    phone.sync(&fixture).await;
    copy(&phone, &backup);
    for count in 3..9 {
        phone.run(&format!("UPDATE notes SET count = {count}"));
        phone.sync(&fixture).await;
    }
    let mut phone = restore_copy(phone, &backup);
    phone.run("UPDATE notes SET text = 'bread'; INSERT INTO notes (id, owner, text) VALUES ('b', 'ann', 'new')");
    let summary = phone.sync(&fixture).await;
    assert_eq!((summary.applied, summary.conflicts, summary.refused), (2, 0, 0));
    assert_eq!(fixture.row("notes", "a").await, Some(json!({"owner": "ann", "text": "bread", "count": 8})));
    assert_same(&phone, &fixture.rows("notes").await);
    phone.run("UPDATE notes SET text = 'eggs' WHERE id = 'b'");
    assert_eq!(phone.sync(&fixture).await.applied, 1);
    assert_eq!(fixture.row("notes", "b").await, Some(note("ann", "eggs")));
}

#[tokio::test]
async fn b2_edits_of_a_restored_file_conflict_with_its_own_later_edits() {
    let (fixture, mut phone) = shop("    conflicts: { resolver: server }\n").await;
    let backup = fixture.folder.path().join("backup.db");
    copy(&phone, &backup);
    phone.run("UPDATE notes SET text = 'bread'");
    phone.sync(&fixture).await;
    let mut phone = restore_copy(phone, &backup);
    phone.run("UPDATE notes SET text = 'eggs'");
    assert_eq!(phone.sync(&fixture).await.conflicts, 1);
    assert_eq!(fixture.row("notes", "a").await.expect("there")["text"], "bread");
    assert_same(&phone, &fixture.rows("notes").await);
    // From here on the copy knows its own edits.
    phone.run("UPDATE notes SET text = 'jam'");
    assert_eq!(phone.sync(&fixture).await.applied, 1);
    phone.run("UPDATE notes SET text = 'tea'");
    assert_eq!(phone.sync(&fixture).await.applied, 1);
    assert_eq!(conflicts(&fixture).await, 1);
}

#[tokio::test]
async fn b2_two_copies_in_use_at_once_lose_no_edit() {
    let (fixture, mut one) = shop("").await;
    one.run("UPDATE notes SET count = 2");
    one.sync(&fixture).await;
    let path = fixture.folder.path().join("second.db");
    copy(&one, &path);
    let mut two = Phone { replica: Replica::open(&path).expect("opens"), path, token: one.token.clone() };
    for turn in 0..5 {
        one.run(&format!("INSERT INTO notes (id, owner, text) VALUES ('one-{turn}', 'ann', 'x')"));
        two.run(&format!("INSERT INTO notes (id, owner, text) VALUES ('two-{turn}', 'ann', 'y')"));
        assert_eq!(one.sync(&fixture).await.applied, 1);
        assert_eq!(two.sync(&fixture).await.applied, 1);
    }
    one.sync(&fixture).await;
    assert_eq!(fixture.rows("notes").await.len(), 11);
    assert_same(&one, &fixture.rows("notes").await);
    assert_same(&two, &fixture.rows("notes").await);
    assert_eq!(conflicts(&fixture).await, 0);
}

#[tokio::test]
async fn b2_a_copy_with_edits_in_flight_sends_them_once() {
    let (fixture, mut one) = shop("    conflicts: { fields: { count: sum } }\n").await;
    one.run("UPDATE notes SET count = 3");
    // The link fails after the server stored the edit, and before the response.
    let link = crate::sessions::LosesAnswer::of(fixture.link(&one.token));
    assert!(one.replica.sync(&link, &mut |_| ()).await.is_err());
    let path = fixture.folder.path().join("second.db");
    copy(&one, &path);
    let mut two = Phone { replica: Replica::open(&path).expect("opens"), path, token: one.token.clone() };
    two.sync(&fixture).await;
    one.sync(&fixture).await;
    assert_eq!(fixture.row("notes", "a").await.expect("there")["count"], 3);
}

/// Two copies that were made before an edit was sent both have the edit. Nothing in it shows that it is the same one:
/// the server takes it for an edit of each, as the guide says.
#[tokio::test]
async fn b2_an_increment_that_was_not_sent_before_the_copy_counts_for_each_copy() {
    let (fixture, mut one) = shop("    conflicts: { fields: { count: sum } }\n").await;
    let path = fixture.folder.path().join("second.db");
    one.run("UPDATE notes SET count = 3");
    copy(&one, &path);
    let mut two = Phone { replica: Replica::open(&path).expect("opens"), path, token: one.token.clone() };
    assert_eq!((one.sync(&fixture).await.conflicts, two.sync(&fixture).await.conflicts), (0, 1));
    assert_eq!(fixture.row("notes", "a").await.expect("there")["count"], 5, "1 + 2 + 2");
    // The second one is kept with the conflicts, with what it added.
    let log = fixture.sync.conflicts(&name("shop"), None, None, 10).await.expect("listed");
    assert_eq!((&*log[0].conflict.base, &*log[0].conflict.client), (r#"{"count":1}"#, r#"{"count":3}"#));
    // An increment that was sent before the copy counts once, and so does one that was on its way.
    let third = fixture.folder.path().join("third.db");
    copy(&one, &third);
    let mut three = Phone { replica: Replica::open(&third).expect("opens"), path: third, token: one.token.clone() };
    three.sync(&fixture).await;
    one.sync(&fixture).await;
    assert_eq!(fixture.row("notes", "a").await.expect("there")["count"], 5);
}

#[tokio::test]
async fn b2_a_new_file_for_a_used_token_starts_empty() {
    let (fixture, mut old) = shop("").await;
    old.run("UPDATE notes SET count = 2");
    old.sync(&fixture).await;
    let path = fixture.folder.path().join("new.db");
    let home = ServerCredentials { url: "http://localhost".to_owned(), token: old.token.clone() };
    let mut new = Phone { replica: Replica::create(&path, &home).expect("made"), path, token: old.token.clone() };
    new.sync(&fixture).await;
    new.run("UPDATE notes SET count = 9");
    assert_eq!(new.sync(&fixture).await.applied, 1);
    assert_eq!(fixture.row("notes", "a").await.expect("there")["count"], 9);
}

/// Restores an earlier state of the server's rows. `later` runs between the backup and the restore.
async fn restored(fixture: SyncFixture, later: impl AsyncFnOnce(&SyncFixture)) -> SyncFixture {
    let backup = tempfile::tempdir().expect("a folder");
    let fixture = fixture.restart().await;
    let save = |from: &Path, to: &Path| {
        for entry in fs::read_dir(from).expect("the folder") {
            let path = entry.expect("an entry").path();
            if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("sync.db")) {
                fs::copy(&path, to.join(path.file_name().expect("a name"))).expect("copied");
            }
        }
    };
    let fixture = fixture.between(|folder| save(folder, backup.path())).await;
    later(&fixture).await;
    fixture
        .between(|folder| {
            for entry in fs::read_dir(folder).expect("the folder") {
                let path = entry.expect("an entry").path();
                if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("sync.db")) {
                    fs::remove_file(path).expect("removed");
                }
            }
            save(backup.path(), folder);
        })
        .await
}

#[tokio::test]
async fn b3_edits_that_a_restored_server_lost_are_sent_again() {
    let (fixture, mut phone) = shop("").await;
    phone.run("UPDATE notes SET count = 2");
    phone.sync(&fixture).await;
    let mut other = Phone::new(&fixture, "ann").await;
    other.sync(&fixture).await;
    let fixture = restored(fixture, async |fixture: &SyncFixture| {
        fixture.pass(std::time::Duration::from_secs(60));
        for count in 3..6 {
            phone.run(&format!("UPDATE notes SET count = {count}"));
            phone.sync(fixture).await;
        }
        phone.run("INSERT INTO notes (id, owner, text) VALUES ('b', 'ann', 'lost'), ('c', 'ann', 'gone')");
        phone.sync(fixture).await;
        phone.run("DELETE FROM notes WHERE id = 'c'");
        phone.sync(fixture).await;
        fixture.put("notes", "api", note("ann", "of the lost state")).await;
        phone.sync(fixture).await;
        other.sync(fixture).await;
    })
    .await;
    assert_eq!(fixture.rows("notes").await.len(), 1);
    // Other writers continue, so the phone's cursor is no longer in the future.
    fixture.pass(std::time::Duration::from_secs(3_600));
    fixture.put("notes", "new", note("ann", "after")).await;
    phone.run("UPDATE notes SET text = 'bread' WHERE id = 'a'");
    let summary = phone.sync(&fixture).await;
    assert!(summary.sent_again >= 5 && summary.anew, "{summary:?}");
    assert_eq!(refused(&phone), []);
    let row = fixture.row("notes", "a").await.expect("there");
    assert_eq!(row, json!({"owner": "ann", "text": "bread", "count": 5}));
    assert_eq!(fixture.rows("notes").await.keys().collect::<Vec<_>>(), ["a", "b", "new"]);
    assert_same(&phone, &fixture.rows("notes").await);
    // Another device without edits reads the current state.
    other.sync(&fixture).await;
    assert_same(&other, &fixture.rows("notes").await);
    assert_eq!(phone.sync(&fixture).await.sent_again, 0);
}

#[tokio::test]
async fn b3_edits_whose_rows_were_not_read_yet_are_sent_again() {
    let (fixture, mut phone) = shop("").await;
    let fixture = restored(fixture, async |fixture: &SyncFixture| {
        fixture.pass(std::time::Duration::from_secs(60));
        phone.run("UPDATE notes SET text = 'bread'");
        // The server confirms the edit; the link fails before the download.
        let link = crate::sessions::LosesRows::of(fixture.link(&phone.token));
        assert!(phone.replica.sync(&link, &mut |_| ()).await.is_err());
    })
    .await;
    let summary = phone.sync(&fixture).await;
    assert_eq!((summary.sent_again, summary.applied), (1, 1));
    assert_eq!(fixture.row("notes", "a").await.expect("there")["text"], "bread");
    assert_same(&phone, &fixture.rows("notes").await);
}

#[tokio::test]
async fn b3_a_restart_without_a_backup_reads_nothing_anew() {
    let (fixture, mut phone) = shop("").await;
    phone.run("UPDATE notes SET count = 2");
    phone.sync(&fixture).await;
    let fixture = fixture.restart().await;
    let fixture = fixture.restart().await;
    fixture.put("notes", "b", note("ann", "x")).await;
    phone.run("UPDATE notes SET count = 3");
    let summary = phone.sync(&fixture).await;
    assert_eq!((summary.anew, summary.sent_again, summary.applied), (false, 0, 1));
    assert_same(&phone, &fixture.rows("notes").await);
}

#[tokio::test]
async fn b23_a_row_that_was_seen_to_go_can_be_made_again() {
    for resolver in ["server", "client", "first", "last"] {
        let (fixture, mut phone) = shop(&format!("    conflicts: {{ resolver: {resolver} }}\n")).await;
        fixture.change("notes", "a", tocsin_sync::rows::RowChange::Remove).await;
        phone.sync(&fixture).await;
        phone.run("INSERT INTO notes (id, owner, text) VALUES ('a', 'ann', 'again')");
        let summary = phone.sync(&fixture).await;
        assert_eq!((summary.applied, summary.conflicts), (1, 0), "{resolver}");
        assert_eq!(fixture.row("notes", "a").await, Some(note("ann", "again")));
        assert_same(&phone, &fixture.rows("notes").await);
    }
    // A device that did not know of the removal does not restore the row.
    let (fixture, phone) = shop("").await;
    let mut other = Phone::new(&fixture, "ann").await;
    fixture.change("notes", "x", tocsin_sync::rows::RowChange::Put(object(note("ann", "x")))).await;
    fixture.change("notes", "x", tocsin_sync::rows::RowChange::Remove).await;
    drop(other.replica.status());
    let mut phone = phone;
    phone.run("INSERT INTO notes (id, owner, text) VALUES ('x', 'ann', 'unknowing')");
    assert_eq!(phone.sync(&fixture).await.conflicts, 1);
    other.sync(&fixture).await;
    assert_eq!(fixture.row("notes", "x").await, None);
}

#[tokio::test]
async fn invalid_numbers_and_batches_are_rejected_as_a_block() {
    let (fixture, phone) = shop("").await;
    let device = fixture.sync.device(&phone.token).expect("known");
    let begun = fixture.sync.begin(&device, Default::default()).await.expect("begun");
    let long = "x".repeat(65);
    for (n, batch) in [("0", "a"), ("9223372036854775808", "a"), ("1", ""), ("1", "a b"), ("1", long.as_str())] {
        let line =
            format!("{{\"n\": {n}, \"batch\": \"{batch}\", \"collection\": \"notes\", \"id\": \"a\", \"set\": {{}}}}");
        let read = || tocsin_model::replica::read_edits(line.as_bytes()).map(|edits| (edits, 0));
        let taken = fixture.sync.upload(&device, &begun.session, read).await;
        assert!(matches!(taken, Err(tocsin_sync::SyncError::Invalid(_))), "{line}: {taken:?}");
    }
    // So are those that a session begins with: the server keeps them for as long as the session lasts.
    for edits in [json!({"batch": "x".repeat(65)}), json!({"after": "a b"})] {
        let begin = serde_json::from_value(json!({"edits": edits})).expect("it can be read");
        let begun = fixture.sync.begin(&device, begin).await;
        assert!(matches!(begun, Err(tocsin_sync::SyncError::Invalid(_))), "{begun:?}");
    }
    let begun = fixture.sync.begin(&device, Default::default()).await.expect("begun");
    // A batch has no gaps, and edits received before are skipped.
    let known = fixture.sync.row(&name("shop"), "notes", "a").await.expect("there").version.0;
    let send = async |numbers: &[u64]| {
        let lines: Vec<String> = numbers
            .iter()
            .map(|n| format!("{{\"n\": {n}, \"batch\": \"b\", \"collection\": \"notes\", \"id\": \"a\", \"base\": \"{known}\", \"set\": {{\"count\": {n}}}}}"))
            .collect();
        let lines = lines.join("\n");
        let read = || tocsin_model::replica::read_edits(lines.as_bytes()).map(|edits| (edits, 0));
        fixture.sync.upload(&device, &begun.session, read).await.map(|taken| taken.uploaded)
    };
    assert_eq!(send(&[5, 6]).await.expect("taken in"), 6);
    assert!(matches!(send(&[8]).await, Err(tocsin_sync::SyncError::Invalid(_))));
    assert_eq!(send(&[5, 6, 7]).await.expect("taken in"), 7);
    assert_eq!(fixture.row("notes", "a").await.expect("there")["count"], 7);
}
