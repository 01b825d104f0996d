use std::time::Duration;

use serde_json::json;
use tocsin_model::replica::Begin;
use tocsin_replica::{Link, LinkError, Replica, ReplicaError};
use tocsin_sync::rows::RowChange;

use crate::fixture::{Phone, SyncFixture, note, notes, object, rows};

#[tokio::test]
async fn rows_are_downloaded_and_edits_are_uploaded() {
    let fixture = SyncFixture::new(&notes("")).await;
    fixture.subscriber("ann", json!({})).await;
    fixture.put("notes", "a", json!({"owner": "ann", "text": "milk", "done": false, "tags": ["x"]})).await;
    let mut phone = Phone::new(&fixture, "ann").await;
    assert_eq!((phone.sync(&fixture).await.rows, phone.sync(&fixture).await.rows), (1, 0));
    phone.run(
        "UPDATE notes SET done = 1, count = 7 WHERE id = 'a'; INSERT INTO notes (id, owner, text) VALUES ('b', 'ann', 'bread')",
    );
    let summary = phone.sync(&fixture).await;
    assert_eq!((summary.applied, summary.conflicts, summary.refused), (2, 0, 0));
    let expected = rows([
        ("a", json!({"owner": "ann", "text": "milk", "count": 7, "done": true, "tags": ["x"]})),
        ("b", note("ann", "bread")),
    ]);
    assert_eq!(fixture.rows("notes").await, expected);
    assert_eq!(phone.rows("notes")["a"]["tags"], "[\"x\"]", "lists are their JSON");
    phone.run(
        "DELETE FROM notes WHERE id = 'b'; UPDATE notes SET text = 'x' WHERE id = 'a'; UPDATE notes SET text = 'milk'",
    );
    assert_eq!(phone.sync(&fixture).await.applied, 1, "what was put back is no edit");
    assert_eq!(fixture.row("notes", "b").await, None);
    fixture.change("notes", "a", RowChange::Remove).await;
    assert_eq!(phone.sync(&fixture).await.removed, 1);
    assert_eq!(phone.rows("notes"), rows([]));
}

#[tokio::test]
async fn what_a_replica_cannot_hold_is_refused_where_it_is_written() {
    let fixture = SyncFixture::new(&notes("")).await;
    fixture.subscriber("ann", json!({})).await;
    let mut phone = Phone::new(&fixture, "ann").await;
    phone.sync(&fixture).await;
    for (collection, fields, expected) in [
        ("letters", json!({}), "this replica has no collection `letters`; it has notes"),
        ("notes", json!({"colour": "red"}), "`notes` has no field `colour`"),
        ("notes", json!({"count": "many"}), "`count`: should be an integer, not a string"),
    ] {
        let error = phone.replica.put(collection, "a", &object(fields)).expect_err(expected);
        assert_eq!(error.to_string(), expected);
    }
    assert_eq!(phone.rows("notes"), rows([]), "nothing of it is there");
}

#[tokio::test]
async fn a_cut_at_any_call_loses_nothing_and_does_nothing_twice() {
    for cut in 0..12 {
        let fixture = SyncFixture::new(&notes("    conflicts: { fields: { count: sum } }\n")).await;
        fixture.subscriber("ann", json!({})).await;
        fixture.put("notes", "a", json!({"owner": "ann", "count": 1})).await;
        let mut phone = Phone::new(&fixture, "ann").await;
        phone.sync(&fixture).await;
        phone.run("UPDATE notes SET count = count + 10; INSERT INTO notes (id, owner) VALUES ('b', 'ann')");
        let link = CutAt { inner: fixture.link(&phone.token), left: std::sync::atomic::AtomicI32::new(cut) };
        let _ = phone.replica.sync(&link, &mut |_| ()).await;
        drop(phone.replica);
        phone.replica = Replica::open(&phone.path).expect("opens");
        phone.run("UPDATE notes SET count = count + 100 WHERE id = 'a'");
        phone.sync(&fixture).await;
        assert_eq!(fixture.row("notes", "a").await.expect("there")["count"], 111, "cut at {cut}");
        assert_eq!(phone.rows("notes"), fixture.rows("notes").await, "cut at {cut}");
    }
}

/// Fails once, after this many half calls.
pub struct CutAt {
    inner: crate::fixture::InProcessLink,
    left: std::sync::atomic::AtomicI32,
}

/// A link that fails after the response to the first upload.
pub struct LosesAnswer;

impl LosesAnswer {
    pub fn of(inner: crate::fixture::InProcessLink) -> CutAt {
        CutAt { inner, left: 3.into() }
    }
}

/// A link that fails before the first download.
pub struct LosesRows;

impl LosesRows {
    pub fn of(inner: crate::fixture::InProcessLink) -> CutAt {
        CutAt { inner, left: 4.into() }
    }
}

impl CutAt {
    fn half(&self) -> Result<(), LinkError> {
        match self.left.fetch_sub(1, std::sync::atomic::Ordering::Relaxed) {
            0 => Err(LinkError::Broken("on purpose".to_owned())),
            _ => Ok(()),
        }
    }
}

impl Link for CutAt {
    async fn begin(&self, begin: &Begin) -> Result<tocsin_model::replica::BeginResponse, LinkError> {
        self.half()?;
        let answer = self.inner.begin(begin).await?;
        self.half().map(|()| answer)
    }
    async fn upload(&self, session: &str, lines: Vec<u8>) -> Result<tocsin_model::replica::Uploaded, LinkError> {
        self.half()?;
        let answer = self.inner.upload(session, lines).await?;
        self.half().map(|()| answer)
    }
    async fn download(&self, session: &str, cursor: &str) -> Result<Vec<u8>, LinkError> {
        self.half()?;
        let answer = self.inner.download(session, cursor).await?;
        self.half().map(|()| answer)
    }
    async fn end(&self, session: &str) -> Result<(), LinkError> {
        self.half()?;
        self.inner.end(session).await
    }
}

#[tokio::test]
async fn a_device_away_for_too_long_uploads_first_and_reads_everything_again() {
    let fixture = SyncFixture::new(&notes("")).await;
    fixture.subscriber("ann", json!({})).await;
    for id in ["a", "b", "c"] {
        fixture.put("notes", id, note("ann", "old")).await;
    }
    let mut phone = Phone::new(&fixture, "ann").await;
    phone.sync(&fixture).await;
    fixture.change("notes", "b", RowChange::Remove).await;
    fixture.change("notes", "c", RowChange::Remove).await;
    phone
        .run("UPDATE notes SET text = 'new' WHERE id IN ('a', 'c'); INSERT INTO notes (id, owner) VALUES ('d', 'ann')");
    fixture.pass(Duration::from_secs(61 * 86_400));
    fixture.sync.prune().await.expect("tidied");
    let summary = phone.sync(&fixture).await;
    assert!(summary.anew);
    assert_eq!((summary.applied, summary.conflicts), (2, 1), "`c` was removed, and does not come back");
    assert_eq!(fixture.rows("notes").await, rows([("a", note("ann", "new")), ("d", json!({"owner": "ann"}))]));
    assert_eq!(phone.rows("notes"), fixture.rows("notes").await);
}

#[tokio::test]
async fn a_changed_collection_is_migrated() {
    let fixture = SyncFixture::new(&notes("")).await;
    fixture.subscriber("ann", json!({})).await;
    fixture.put("notes", "a", note("ann", "milk")).await;
    let mut phone = Phone::new(&fixture, "ann").await;
    phone.sync(&fixture).await;
    phone.run("UPDATE notes SET text = 'bread'");
    fixture
        .apply(
            &notes("")
                .replace("done: boolean", "colour: string")
                .replace("application: shop", "application: shop\ndescription: x"),
        )
        .await;
    fixture.change("notes", "a", RowChange::Patch(object(json!({"colour": "red"})))).await;
    phone.sync(&fixture).await;
    assert_eq!(phone.rows("notes"), rows([("a", json!({"owner": "ann", "text": "bread", "colour": "red"}))]));
    assert_eq!(fixture.rows("notes").await, phone.rows("notes"));
    fixture.apply("application: shop").await;
    phone.sync(&fixture).await;
    assert!(phone.replica.shapes().expect("read").is_empty());
}

#[tokio::test]
async fn a_wiped_device_drops_all_data_and_receives_nothing_more() {
    let fixture = SyncFixture::new(&notes("")).await;
    fixture.subscriber("ann", json!({})).await;
    fixture.put("notes", "a", note("ann", "secret")).await;
    let mut phone = Phone::new(&fixture, "ann").await;
    phone.sync(&fixture).await;
    let id = fixture.sync.device(&phone.token).expect("known").id().to_owned();
    fixture.sync.wipe_device(&id).await.expect("wiped");
    assert!(matches!(phone.try_sync(&fixture).await, Err(ReplicaError::Wiped)));
    assert!(phone.replica.shapes().expect("read").is_empty());
    assert!(matches!(phone.try_sync(&fixture).await, Err(ReplicaError::Link(LinkError::Refused(_)))));
    fixture.sync.remove_device(&id).await.expect("revoked");
    assert!(fixture.sync.device(&phone.token).is_err());
}

#[tokio::test]
async fn an_invalid_edit_is_rejected_with_a_reason_and_reverted() {
    let fixture = SyncFixture::new(&notes("")).await;
    fixture.subscriber("ann", json!({})).await;
    fixture.put("notes", "a", note("ann", "milk")).await;
    let mut phone = Phone::new(&fixture, "ann").await;
    phone.sync(&fixture).await;
    phone.run("UPDATE notes SET owner = NULL; INSERT INTO notes (id, owner) VALUES ('b/c', 'ann'), ('d', 'bob')");
    assert_eq!(phone.sync(&fixture).await.refused, 3);
    let refused = phone.replica.status().expect("read").refused;
    let why: Vec<&str> = refused.iter().map(|refused| refused.why.as_str()).collect();
    assert!(
        why[0].contains("without `/`")
            && why[1].contains("owner: is required")
            && why[2].contains("not visible to this device"),
        "{why:?}"
    );
    assert_eq!(phone.rows("notes"), fixture.rows("notes").await);
    assert_eq!(phone.rows("notes"), rows([("a", note("ann", "milk"))]));
}
