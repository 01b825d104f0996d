//! Built-in collections: rows for the platform's data, and edits that change it.

use std::sync::Arc;

use serde_json::{Value as Json, json};
use tocsin_model::{
    id::NotificationId,
    inbox::{InboxContent, NewItem, Wording},
};
use tocsin_store::{
    inbox::{FeedFilter, FeedReader, Inbox, NewBroadcast},
    records::SubscriberStore,
};
use tocsin_sync::{SyncError, rows::RowChange};

use crate::fixture::{Phone, SyncFixture, name, object};

const DEFINITION: &str = "application: shop
collections:
  me: { built_in: profile }
  places: { built_in: devices }
  bell: { built_in: inbox }
";

fn content(application: &str, subject: &str) -> InboxContent {
    let wording = Wording { subject: Some(subject.to_owned()), ..Wording::default() };
    let (application, class) = (name(application), name("told"));
    InboxContent { application, class, channel: None, event: None, wording, translations: Default::default() }
}

pub async fn add_inbox_item(fixture: &SyncFixture, subscriber: &str, id: &str, application: &str) {
    let found = fixture.records.subscriber(&subscriber.parse().expect("an id")).await.expect("read").expect("there");
    let id: NotificationId = id.parse().expect("an id");
    let expires_at = fixture.now() + std::time::Duration::from_secs(86_400);
    let content = Arc::new(content(application, &format!("{id}")));
    let item = NewItem { subscriber: found.number, id, content, expires_at };
    fixture.inbox.put_items(vec![item], 100, fixture.now()).await.expect("stored");
}

/// State of an item on a phone.
fn item(phone: &Phone, id: &str) -> Option<(bool, bool)> {
    let rows = phone.rows("bell");
    let row = rows.get(id)?;
    Some((row["read"] == 1, row["archived"] == 1))
}

#[tokio::test]
async fn notifications_land_in_replicas_and_marks_come_back() {
    let fixture = SyncFixture::new(DEFINITION).await;
    fixture.subscriber("ann", json!({})).await;
    fixture.subscriber("bob", json!({})).await;
    let (mut phone, mut laptop, mut other) =
        (Phone::new(&fixture, "ann").await, Phone::new(&fixture, "ann").await, Phone::new(&fixture, "bob").await);
    add_inbox_item(&fixture, "ann", "n-1-0", "shop").await;
    add_inbox_item(&fixture, "ann", "n-1-1", "shop").await;
    add_inbox_item(&fixture, "ann", "n-1-2", "elsewhere").await;
    add_inbox_item(&fixture, "bob", "n-1-3", "shop").await;
    for phone in [&mut phone, &mut laptop, &mut other] {
        phone.sync(&fixture).await;
    }
    assert_eq!(phone.ids("bell").into_iter().collect::<Vec<_>>(), ["n-1-0", "n-1-1"]);
    assert_eq!(other.ids("bell").into_iter().collect::<Vec<_>>(), ["n-1-3"]);
    phone.run("UPDATE bell SET read = 1 WHERE id = 'n-1-0'; UPDATE bell SET archived = 1 WHERE id = 'n-1-1'");
    assert_eq!(phone.sync(&fixture).await.applied, 2);
    laptop.sync(&fixture).await;
    assert_eq!((item(&laptop, "n-1-0"), item(&laptop, "n-1-1")), (Some((true, false)), Some((false, true))));
    let ann = fixture.records.subscriber(&"ann".parse().expect("an id")).await.expect("read").expect("there");
    let reader = FeedReader { subscriber: ann.number, broadcasts: Vec::new() };
    let kept = fixture
        .inbox
        .item(&reader, "n-1-0".parse().expect("an id"), fixture.now())
        .await
        .expect("read")
        .expect("there");
    assert!(kept.read_at.is_some());
    // Removing a row removes the item, and changes of the server arrive.
    phone.run("DELETE FROM bell WHERE id = 'n-1-1'");
    phone.sync(&fixture).await;
    add_inbox_item(&fixture, "ann", "n-1-4", "shop").await;
    laptop.sync(&fixture).await;
    assert_eq!(laptop.ids("bell").into_iter().collect::<Vec<_>>(), ["n-1-0", "n-1-4"]);
    assert_eq!(
        fixture.inbox.feed(&reader, &FeedFilter::default(), None, 10, fixture.now()).await.expect("read").len(),
        3
    );
}

#[tokio::test]
async fn a_broadcast_is_read_by_each_alone() {
    let fixture = SyncFixture::new(DEFINITION).await;
    fixture.subscriber("ann", json!({})).await;
    fixture.subscriber("bob", json!({})).await;
    let expires_at = fixture.now() + std::time::Duration::from_secs(86_400);
    let new = NewBroadcast { name: name("news"), audience: None, content: content("shop", "News"), expires_at };
    fixture.inbox.put_broadcast(new, fixture.now()).await.expect("stored");
    let (mut ann, mut bob) = (Phone::new(&fixture, "ann").await, Phone::new(&fixture, "bob").await);
    ann.sync(&fixture).await;
    ann.run("UPDATE bell SET read = 1");
    ann.sync(&fixture).await;
    bob.sync(&fixture).await;
    let read = |phone: &Phone| phone.rows("bell").into_values().map(|row| row["read"] == 1).collect::<Vec<_>>();
    assert_eq!((read(&ann), read(&bob)), (vec![true], vec![false]));
    // A device cannot guess the row id of another subscriber.
    let id = bob.ids("bell").into_iter().next().expect("a row");
    ann.run(&format!("INSERT INTO bell (id, read) VALUES ('{id}', 1)"));
    assert_eq!(ann.sync(&fixture).await.refused, 1);
    bob.sync(&fixture).await;
    assert_eq!(read(&bob), [false]);
}

#[tokio::test]
async fn a_profile_is_read_and_edited_and_other_fields_are_not() {
    let fixture = SyncFixture::new(DEFINITION).await;
    fixture.subscriber("ann", json!({"region": "north"})).await;
    let mut phone = Phone::new(&fixture, "ann").await;
    phone.sync(&fixture).await;
    phone.run("UPDATE me SET locale = 'de-AT', time_zone = 'Europe/Vienna'");
    assert_eq!(phone.sync(&fixture).await.applied, 1);
    let ann = fixture.records.subscriber(&"ann".parse().expect("an id")).await.expect("read").expect("there");
    assert_eq!(
        (ann.profile.locale.as_deref(), ann.profile.time_zone.as_deref()),
        (Some("de-AT"), Some("Europe/Vienna"))
    );
    assert_eq!(ann.profile.attributes["region"], "north".into());
    for edit in ["UPDATE me SET locale = 'no language'", "UPDATE me SET attributes = '{}'", "DELETE FROM me"] {
        phone.run(edit);
        assert_eq!(phone.sync(&fixture).await.refused, 1, "{edit}");
        assert_eq!(phone.rows("me").into_values().map(|row| row["locale"].clone()).collect::<Vec<_>>(), ["de-AT"]);
    }
    let row: Json = phone.rows("me").into_values().next().expect("a row");
    assert_eq!(row["subscriber"], "ann");
}

#[tokio::test]
async fn nobody_else_writes_what_is_built_in() {
    let fixture = SyncFixture::new(DEFINITION).await;
    let put = RowChange::Put(object(json!({"subscriber": "ann"})));
    let refused = fixture.sync.change_row(&name("shop"), "bell", "n-1-0", put, None).await;
    assert!(matches!(refused, Err(SyncError::Invalid(_))), "{refused:?}");
}
