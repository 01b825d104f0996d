use serde_json::{Value as Json, json};
use tocsin_model::{
    collection::Stamp,
    replica::{Begin, Edit, SentEdit},
};
use tocsin_replica::Link;
use tocsin_sync::{SyncError, rows::RowChange};

use crate::fixture::{Phone, SyncFixture, name, object};

const SHOP: &str = "
application: shop
collections:
  customers:
    fields: { name: string, region: string, owner: string, status: string }
    partition:
      - match: { owner: subscriber.id }
      - match: { region: attributes.regions }
        rows: { status: [open, waiting] }
  orders:
    fields: { customer: string, total: number }
    partition:
      - through: { customer: customers }
  lines:
    fields: { order: string, what: string }
    partition:
      - through: { order: orders }
  news:
    fields: { text: string }
    direction: down
    partition: everyone
  reports:
    fields: { by: string, text: string }
    direction: up
    partition:
      - match: { by: subscriber.id }
";

async fn shop() -> (SyncFixture, Phone) {
    let fixture = SyncFixture::new(SHOP).await;
    fixture.subscriber("ann", json!({"regions": ["north"]})).await;
    fixture.subscriber("bob", json!({"regions": ["south"]})).await;
    for (id, region, owner, status) in [
        ("c1", "north", "bob", "open"),
        ("c2", "south", "bob", "open"),
        ("c3", "south", "ann", "shut"),
        ("c4", "north", "bob", "shut"),
    ] {
        fixture.put("customers", id, json!({"region": region, "owner": owner, "status": status})).await;
        fixture.put("orders", &format!("o{id}"), json!({"customer": id, "total": 1.5})).await;
        fixture.put("lines", &format!("l{id}"), json!({"order": format!("o{id}")})).await;
    }
    fixture.put("news", "n1", json!({"text": "hello"})).await;
    let mut phone = Phone::new(&fixture, "ann").await;
    phone.sync(&fixture).await;
    (fixture, phone)
}

fn check_visible(phone: &Phone, customers: &[&str]) {
    for (collection, prefix) in [("customers", ""), ("orders", "o"), ("lines", "l")] {
        let expected: Vec<String> = customers.iter().map(|id| format!("{prefix}{id}")).collect();
        assert_eq!(phone.ids(collection).into_iter().collect::<Vec<_>>(), expected, "{collection}");
    }
}

#[tokio::test]
async fn a_device_sees_its_partition_and_rows_shared_through_it() {
    let (fixture, mut phone) = shop().await;
    check_visible(&phone, &["c1", "c3"]);
    assert_eq!(phone.ids("news").len(), 1);
    // Rows change their owner, and the rows shared through them follow.
    fixture.change("customers", "c1", RowChange::Patch(object(json!({"region": "south"})))).await;
    fixture.change("customers", "c4", RowChange::Patch(object(json!({"status": "waiting"})))).await;
    let summary = phone.sync(&fixture).await;
    assert_eq!((summary.rows, summary.removed), (3, 3));
    check_visible(&phone, &["c3", "c4"]);
    // The subscriber changes.
    fixture.subscriber("ann", json!({"regions": ["south", "east"]})).await;
    phone.sync(&fixture).await;
    check_visible(&phone, &["c1", "c2", "c3"]);
    fixture.change("customers", "c2", RowChange::Remove).await;
    phone.sync(&fixture).await;
    check_visible(&phone, &["c1", "c3"]);
    assert_eq!(phone.sync(&fixture).await.rows, 0);
    // The partition of the collection changes.
    fixture.apply(&SHOP.replace("[open, waiting]", "[shut]")).await;
    phone.sync(&fixture).await;
    check_visible(&phone, &["c3"]);
}

#[tokio::test]
async fn uploaded_rows_are_not_downloaded_again() {
    let (fixture, mut phone) = shop().await;
    phone.run("INSERT INTO reports (id, \"by\", text) VALUES ('r1', 'ann', 'all is well'); UPDATE news SET text = 'x'");
    let summary = phone.sync(&fixture).await;
    assert_eq!((summary.applied, summary.refused), (1, 1));
    assert_eq!(fixture.rows("reports").await.len(), 1);
    assert!(phone.ids("reports").is_empty());
    assert_eq!(phone.rows("news")["n1"]["text"], "hello");
}

fn edit(n: u64, collection: &str, id: &str, set: Json) -> SentEdit {
    let set = if set.is_null() { None } else { Some(object(set)) };
    // With full knowledge, except for rows that it creates.
    // A minute after all that was written: the server has issued no such stamp, and its clock is fixed.
    let seen = Stamp::at(tocsin_model::time::Timestamp::from_millis(1_700_000_060_000));
    let base = if matches!(id, "c9" | "new" | "n2") { Stamp(0) } else { seen };
    let (collection, id, was) = (name(collection), id.into(), Default::default());
    SentEdit::Edit(Edit { n, batch: None, collection, id, base, seen, set, was })
}

#[tokio::test]
async fn no_request_of_a_device_widens_its_partition() {
    let (fixture, phone) = shop().await;
    let before = (fixture.rows("customers").await, fixture.rows("orders").await);
    let device = fixture.sync.device(&phone.token).expect("known");
    let state = fixture.sync.begin(&device, Begin::default()).await.expect("begun");
    let first = state.uploaded + 1;
    let tries = [
        ("customers", "c2", json!({"owner": "ann"})),
        ("customers", "c2", Json::Null),
        ("customers", "c9", json!({"owner": "bob"})),
        ("customers", "c1", json!({"region": "south"})),
        ("orders", "oc2", json!({"customer": "c1"})),
        ("orders", "new", json!({"customer": "c2"})),
        ("orders", "oc1", json!({"customer": "c2"})),
        ("news", "n2", json!({"text": "x"})),
        ("nothing", "n2", json!({"text": "x"})),
    ];
    let count = tries.len();
    let edits = tries.into_iter().zip(first..).map(|((collection, id, set), n)| edit(n, collection, id, set)).collect();
    let taken = fixture.sync.upload(&device, &state.session, || Ok((edits, 0))).await.expect("taken in");
    let fates: Vec<u64> = taken.refused.iter().map(|refused| refused.n - first).collect();
    assert_eq!((taken.applied, fates.len()), (0, count), "{fates:?} {:?}", taken.conflicts);
    assert_eq!((fixture.rows("customers").await, fixture.rows("orders").await), before);
}

#[tokio::test]
async fn foreign_forged_and_old_cursors_and_sessions_are_refused() {
    let (fixture, mut ann) = shop().await;
    let mut bob = Phone::new(&fixture, "bob").await;
    bob.sync(&fixture).await;
    let (anns, bobs) =
        (fixture.sync.device(&ann.token).expect("known"), fixture.sync.device(&bob.token).expect("known"));
    let begun = fixture.sync.begin(&anns, Begin::default()).await.expect("begun");
    let theirs = fixture.sync.begin(&bobs, Begin::default()).await.expect("begun");
    let cursor = |cursor: &str| Begin { cursor: Some(cursor.to_owned()), wiped: false, edits: None };
    for forged in [theirs.cursor.as_str(), "x", "", "e30.e30"] {
        assert!(matches!(fixture.sync.begin(&anns, cursor(forged)).await, Err(SyncError::Invalid(_))), "{forged}");
        let read = fixture.sync.download(&anns, &begun.session, forged, |_, _| ((), 0)).await;
        assert!(matches!(read, Err(SyncError::Invalid(_))), "{forged}");
    }
    // A session of another device can be neither used nor ended.
    assert!(matches!(fixture.sync.end(&bobs, &begun.session).await, Err(SyncError::Missing(_))));
    let read = fixture.sync.download(&bobs, &begun.session, &theirs.cursor, |_, _| ((), 0)).await;
    assert!(matches!(read, Err(SyncError::Missing(_))));
    assert_eq!(fixture.sync.active_sessions().len(), 2);
    fixture.sync.end(&anns, &begun.session).await.expect("her own");
    // A revoked token, or one of a removed subscriber, is rejected.
    assert!(fixture.sync.device("tocsin_device_0_0").is_err());
    fixture.records_remove("ann").await;
    assert!(matches!(fixture.sync.begin(&anns, Begin::default()).await, Err(SyncError::Forbidden(_))));
    fixture.subscriber("ann", json!({"regions": ["north"]})).await;
    assert!(fixture.link(&ann.token).begin(&Begin::default()).await.is_err(), "it is another ann");
    assert!(ann.try_sync(&fixture).await.is_err());
}

#[tokio::test]
async fn a_session_ends_when_what_it_may_see_changes() {
    let (fixture, phone) = shop().await;
    let device = fixture.sync.device(&phone.token).expect("known");
    let begun = fixture.sync.begin(&device, Begin::default()).await.expect("begun");
    fixture.subscriber("carol", json!({})).await;
    let read = fixture.sync.download(&device, &begun.session, &begun.cursor, |_, _| ((), 0)).await;
    assert!(read.is_ok(), "other changes do not matter");
    fixture.subscriber("ann", json!({"regions": []})).await;
    let read = fixture.sync.download(&device, &begun.session, &begun.cursor, |_, _| ((), 0)).await;
    assert!(matches!(read, Err(SyncError::Expired(_))));
}

#[tokio::test]
async fn edits_come_in_order_and_without_gaps() {
    let (fixture, phone) = shop().await;
    let device = fixture.sync.device(&phone.token).expect("known");
    let begun = fixture.sync.begin(&device, Begin::default()).await.expect("begun");
    let gap =
        fixture.sync.upload(&device, &begun.session, || Ok((vec![edit(7, "customers", "c3", json!({}))], 0))).await;
    assert!(matches!(gap, Err(SyncError::Invalid(_))));
    let send = |n| {
        fixture
            .sync
            .upload(&device, &begun.session, move || Ok((vec![edit(n, "customers", "c3", json!({"name": "x"}))], 0)))
    };
    assert_eq!(send(1).await.expect("taken in").applied, 1);
    let again = send(1).await.expect("passed over");
    assert_eq!((again.applied, again.uploaded), (0, 1));
}

/// The edits before the gap were applied but not recorded, so the corrected block applied them twice.
#[tokio::test]
async fn nothing_of_a_block_with_a_gap_is_applied() {
    let (fixture, phone) = shop().await;
    let device = fixture.sync.device(&phone.token).expect("known");
    let begun = fixture.sync.begin(&device, Begin::default()).await.expect("begun");
    let before = fixture.rows("customers").await;
    for batch in [None, Some("b1")] {
        let block = |numbers: [u64; 2]| {
            let edits = numbers.map(|n| match edit(n, "customers", "c3", json!({"name": "x"})) {
                SentEdit::Edit(edit) => SentEdit::Edit(Edit { batch: batch.map(str::to_owned), ..edit }),
                unreadable => unreadable,
            });
            fixture.sync.upload(&device, &begun.session, || Ok((edits.into(), 0)))
        };
        let refused = block([1, 3]).await;
        assert!(matches!(refused, Err(SyncError::Invalid(_))), "{refused:?}");
        assert_eq!(fixture.rows("customers").await, before, "{batch:?}");
    }
    let sent = fixture.sync.upload(&device, &begun.session, || {
        Ok((
            vec![edit(1, "customers", "c3", json!({"name": "x"})), edit(2, "customers", "c3", json!({"name": "y"}))],
            0,
        ))
    });
    let taken = sent.await.expect("taken in");
    assert_eq!((taken.applied, taken.uploaded), (2, 2));
}
