//! Waiting devices are woken by their own changes, and not by those of others.

use std::{pin::Pin, time::Duration};

use serde_json::json;
use tocsin_model::{
    id::SubscriptionId,
    subscriber::{Device, DeviceState},
    subscription::SubscriptionParams,
};
use tocsin_replica::{Link, LinkError, Woken};
use tocsin_store::records::{NewSegment, NewSubscription, Precondition, Records};
use tocsin_sync::rows::RowChange;

use crate::bed::{Bed, InProcessLink, Phone, name, note, object};

const DEFINITION: &str = "application: shop
subscriptions: { watch: { fields: { symbol: string } } }
collections:
  notes:
    fields: { owner: { type: string, required: true }, text: string }
    partition:
      - match: { owner: subscriber.id }
      - match: { owner: attributes.team }
        audience: workers
  bell: { built_in: inbox }
  places: { built_in: devices }
  wishes: { built_in: subscriptions }
";
const LONG: Duration = Duration::from_secs(3_600);

type Waiting = Pin<Box<dyn Future<Output = Result<bool, LinkError>> + Send>>;

/// A waiting phone that has found nothing new.
async fn waiting(bed: &Bed, phone: &Phone) -> Waiting {
    let (link, cursor): (InProcessLink, String) = (bed.link(&phone.token), cursor(phone));
    let mut waiting: Waiting = Box::pin(async move { link.wait(&cursor, LONG).await });
    assert!(!is_woken(&mut waiting).await, "there is nothing new yet");
    waiting
}

fn cursor(phone: &Phone) -> String {
    phone.replica.connection().query_row("SELECT cursor FROM _replica", (), |row| row.get(0)).expect("a cursor")
}

/// Whether a waiter is woken once all work is done. The store's threads have no simulated clock, so this polls.
async fn is_woken(waiting: &mut Waiting) -> bool {
    tokio::time::timeout(Duration::from_millis(150), waiting).await.is_ok()
}

async fn bed() -> Bed {
    let bed = Bed::new(DEFINITION).await;
    bed.subscriber("ann", json!({})).await;
    bed.subscriber("bob", json!({})).await;
    bed
}

#[tokio::test]
async fn rows_of_others_wake_no_device() {
    let bed = bed().await;
    let (mut ann, mut bob) = (Phone::new(&bed, "ann").await, Phone::new(&bed, "bob").await);
    ann.sync(&bed).await;
    bob.sync(&bed).await;
    let (mut of_ann, mut of_bob) = (waiting(&bed, &ann).await, waiting(&bed, &bob).await);
    bed.put("notes", "a", note("ann", "one")).await;
    assert!(of_ann.as_mut().await.expect("news"));
    assert!(!is_woken(&mut of_bob).await);
    // Changes from before the wait wake at once; known ones do not.
    assert!(bed.link(&ann.token).wait(&cursor(&ann), LONG).await.expect("news"));
    ann.sync(&bed).await;
    let mut of_ann = waiting(&bed, &ann).await;
    bed.change("notes", "a", RowChange::Patch(object(json!({"owner": "bob"})))).await;
    assert!(of_ann.as_mut().await.expect("it went"));
    assert!(of_bob.as_mut().await.expect("it came"));
}

#[tokio::test]
async fn each_change_for_a_device_wakes_it() {
    let bed = bed().await;
    let mut phone = Phone::new(&bed, "ann").await;
    let ann = bed.records.subscriber(&"ann".parse().expect("an id")).await.expect("read").expect("there");
    let subscription = NewSubscription {
        application: name("shop"),
        class: name("watch"),
        subscriber: ann.id.clone(),
        key: Some("one".to_owned()),
        device: None,
        enabled: true,
        values: "{}".into(),
        terms: SubscriptionParams::default(),
    };
    for step in ["profile", "device", "subscription", "unsubscribed", "inbox", "segment", "application"] {
        phone.sync(&bed).await;
        let mut woken = waiting(&bed, &phone).await;
        match step {
            "profile" => bed.subscriber("ann", json!({"team": "red"})).await,
            "device" => {
                let mail = name("mail");
                let device = Device { channel: mail.clone(), address: "ann".to_owned(), state: DeviceState::Active };
                bed.records.put_device(&ann.id, &mail, device, bed.now()).await.expect("stored");
            }
            "subscription" => {
                bed.records.put_subscription(subscription.clone(), bed.now()).await.expect("stored");
            }
            "unsubscribed" => {
                bed.records
                    .remove_subscription(SubscriptionId(1), Precondition::Any, bed.now())
                    .await
                    .expect("removed");
            }
            "inbox" => crate::built_in::add_inbox_item(&bed, "ann", "n-1-0", "shop").await,
            "segment" => {
                let new = NewSegment { name: name("workers"), filter: "(team=red)".into(), description: None };
                bed.records.put_segment(new, Precondition::Any, bed.now()).await.expect("stored");
            }
            _ => bed.apply(&DEFINITION.replace("text: string", "text: string, more: string")).await,
        }
        let is_news = tokio::time::timeout(Duration::from_secs(20), woken.as_mut()).await;
        assert!(is_news.expect(step).expect(step), "{step}");
    }
    // A second wait of the device, and the expiry of its token, end the wait.
    phone.sync(&bed).await;
    let (mut before, mut after) = (waiting(&bed, &phone).await, waiting(&bed, &phone).await);
    assert!(before.as_mut().await.is_ok());
    let id = bed.sync.all_devices()[0].id.to_string();
    bed.sync.wipe_device(&id).await.expect("wiped");
    assert!(after.as_mut().await.expect("news"));
}

#[tokio::test]
async fn a_wait_ends_by_server_changes_and_by_edits() {
    let bed = bed().await;
    let mut phone = Phone::new(&bed, "ann").await;
    phone.sync(&bed).await;
    let link = bed.link(&phone.token);
    phone.run("INSERT INTO notes (id, owner) VALUES ('a', 'ann')");
    assert_eq!(phone.replica.rest(&link, LONG).await.expect("read"), Woken::Edited);
    phone.sync(&bed).await;
    bed.put("notes", "b", note("ann", "one")).await;
    assert_eq!(phone.replica.rest(&link, LONG).await.expect("read"), Woken::News);
    link.faults.lock().expect("not poisoned").chance = 1.0;
    link.faults.lock().expect("not poisoned").random = Some(fastrand::Rng::with_seed(1));
    assert_eq!(phone.replica.rest(&link, Duration::from_millis(1)).await.expect("read"), Woken::Later);
}

#[tokio::test]
async fn more_than_may_are_told_to_come_later() {
    let bed = bed().await;
    let mut phones = Vec::new();
    for _ in 0..crate::bed::WATCHERS {
        let mut phone = Phone::new(&bed, "ann").await;
        phone.sync(&bed).await;
        phones.push(phone);
    }
    let mut seats = Vec::new();
    for phone in &phones {
        seats.push(waiting(&bed, phone).await);
    }
    let mut late = Phone::new(&bed, "bob").await;
    late.sync(&bed).await;
    let result = bed.link(&late.token).wait(&cursor(&late), LONG).await;
    assert!(matches!(result, Err(LinkError::Busy(_))), "{result:?}");
    drop(seats.pop());
    drop(waiting(&bed, &late).await);
    let foreign = bed.link(&late.token).wait(&cursor(&phones[0]), LONG).await;
    assert!(matches!(foreign, Err(LinkError::Refused(_))), "{foreign:?}");
}
