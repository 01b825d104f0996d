//! Waiting devices are woken by their own changes, and not by those of others.

use std::{pin::Pin, time::Duration};

use serde_json::json;
use tocsin_model::{
    id::SubscriptionId,
    replica::{Begin, BeginResponse, Uploaded},
    subscriber::{Device, DeviceState},
    subscription::SubscriptionParams,
};
use tocsin_replica::{Link, LinkError, WakeReason};
use tocsin_store::records::{
    NewSegment, NewSubscription, Precondition, PutDevice, SegmentStore, SubscriberStore, SubscriptionStore,
};
use tocsin_sync::rows::RowChange;

use crate::fixture::{InProcessLink, Phone, SyncFixture, name, note, object};

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
async fn waiting(fixture: &SyncFixture, phone: &Phone) -> Waiting {
    let (link, cursor): (InProcessLink, String) = (fixture.link(&phone.token), cursor(phone));
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

async fn fixture() -> SyncFixture {
    let fixture = SyncFixture::new(DEFINITION).await;
    fixture.subscriber("ann", json!({})).await;
    fixture.subscriber("bob", json!({})).await;
    fixture
}

#[tokio::test]
async fn rows_of_others_wake_no_device() {
    let fixture = fixture().await;
    let (mut ann, mut bob) = (Phone::new(&fixture, "ann").await, Phone::new(&fixture, "bob").await);
    ann.sync(&fixture).await;
    bob.sync(&fixture).await;
    let (mut of_ann, mut of_bob) = (waiting(&fixture, &ann).await, waiting(&fixture, &bob).await);
    fixture.put("notes", "a", note("ann", "one")).await;
    assert!(of_ann.as_mut().await.expect("news"));
    assert!(!is_woken(&mut of_bob).await);
    // Changes from before the wait wake at once; known ones do not.
    assert!(fixture.link(&ann.token).wait(&cursor(&ann), LONG).await.expect("news"));
    ann.sync(&fixture).await;
    let mut of_ann = waiting(&fixture, &ann).await;
    fixture.change("notes", "a", RowChange::Patch(object(json!({"owner": "bob"})))).await;
    assert!(of_ann.as_mut().await.expect("it went"));
    assert!(of_bob.as_mut().await.expect("it came"));
}

#[tokio::test]
async fn each_change_for_a_device_wakes_it() {
    let fixture = fixture().await;
    let mut phone = Phone::new(&fixture, "ann").await;
    let ann = fixture.records.subscriber(&"ann".parse().expect("an id")).await.expect("read").expect("there");
    let subscription = NewSubscription {
        application: name("shop"),
        class: name("watch"),
        subscriber: ann.id.clone(),
        key: Some("one".to_owned()),
        device: None,
        enabled: Some(true),
        values: "{}".into(),
        terms: SubscriptionParams::default(),
    };
    for step in ["profile", "device", "subscription", "unsubscribed", "inbox", "segment", "application"] {
        phone.sync(&fixture).await;
        let mut woken = waiting(&fixture, &phone).await;
        match step {
            "profile" => fixture.subscriber("ann", json!({"team": "red"})).await,
            "device" => {
                let mail = name("mail");
                let device = Device { channel: mail.clone(), address: "ann".to_owned(), state: DeviceState::Active };
                fixture
                    .records
                    .put_device(PutDevice { id: &ann.id, name: &mail, device, keeps_state: false, now: fixture.now() })
                    .await
                    .expect("stored");
            }
            "subscription" => {
                fixture.records.put_subscription(subscription.clone(), fixture.now()).await.expect("stored");
            }
            "unsubscribed" => {
                fixture
                    .records
                    .remove_subscription(SubscriptionId(1), Precondition::Any, fixture.now())
                    .await
                    .expect("removed");
            }
            "inbox" => crate::built_in::add_inbox_item(&fixture, "ann", "n-1-0", "shop").await,
            "segment" => {
                let new = NewSegment { name: name("workers"), filter: "(team=red)".into(), description: None };
                fixture.records.put_segment(new, Precondition::Any, fixture.now()).await.expect("stored");
            }
            _ => fixture.apply(&DEFINITION.replace("text: string", "text: string, more: string")).await,
        }
        let is_news = tokio::time::timeout(Duration::from_secs(20), woken.as_mut()).await;
        assert!(is_news.expect(step).expect(step), "{step}");
    }
    // A second wait of the device, and the expiry of its token, end the wait.
    phone.sync(&fixture).await;
    let (mut before, mut after) = (waiting(&fixture, &phone).await, waiting(&fixture, &phone).await);
    assert!(before.as_mut().await.is_ok());
    let id = fixture.sync.all_devices()[0].id.to_string();
    fixture.sync.wipe_device(&id).await.expect("wiped");
    assert!(after.as_mut().await.expect("news"));
}

#[tokio::test]
async fn a_wait_ends_by_server_changes_and_by_edits() {
    let fixture = fixture().await;
    let mut phone = Phone::new(&fixture, "ann").await;
    phone.sync(&fixture).await;
    let link = fixture.link(&phone.token);
    phone.run("INSERT INTO notes (id, owner) VALUES ('a', 'ann')");
    assert_eq!(phone.replica.wait_for_work(&link, LONG).await.expect("read"), WakeReason::Edited);
    phone.sync(&fixture).await;
    fixture.put("notes", "b", note("ann", "one")).await;
    assert_eq!(phone.replica.wait_for_work(&link, LONG).await.expect("read"), WakeReason::ServerChanges);
    link.faults.lock().expect("not poisoned").chance = 1.0;
    link.faults.lock().expect("not poisoned").random = Some(fastrand::Rng::with_seed(1));
    assert_eq!(phone.replica.wait_for_work(&link, Duration::from_millis(1)).await.expect("read"), WakeReason::Later);
}

#[tokio::test]
async fn more_than_may_are_told_to_come_later() {
    let fixture = fixture().await;
    let mut phones = Vec::new();
    for _ in 0..crate::fixture::WATCHERS {
        let mut phone = Phone::new(&fixture, "ann").await;
        phone.sync(&fixture).await;
        phones.push(phone);
    }
    let mut seats = Vec::new();
    for phone in &phones {
        seats.push(waiting(&fixture, phone).await);
    }
    let mut late = Phone::new(&fixture, "bob").await;
    late.sync(&fixture).await;
    let result = fixture.link(&late.token).wait(&cursor(&late), LONG).await;
    assert!(matches!(result, Err(LinkError::Busy(_))), "{result:?}");
    drop(seats.pop());
    drop(waiting(&fixture, &late).await);
    let foreign = fixture.link(&late.token).wait(&cursor(&phones[0]), LONG).await;
    assert!(matches!(foreign, Err(LinkError::Refused(_))), "{foreign:?}");
}

#[tokio::test]
async fn a_segment_that_cannot_be_read_takes_no_rows_from_a_device() {
    let fixture = SyncFixture::new(DEFINITION).await;
    fixture.subscriber("ann", json!({"team": "red"})).await;
    let put = async |filter: &str| {
        let new = NewSegment { name: name("workers"), filter: filter.into(), description: None };
        fixture.records.put_segment(new, Precondition::Any, fixture.now()).await.expect("stored");
    };
    put("(team=red)").await;
    fixture.put("notes", "a", note("red", "of the team")).await;
    let mut phone = Phone::new(&fixture, "ann").await;
    phone.sync(&fixture).await;
    assert_eq!(phone.rows("notes").len(), 1);
    put("(team=").await;
    assert!(phone.try_sync(&fixture).await.is_err());
    assert_eq!(phone.rows("notes").len(), 1);
    put("(team=blue)").await;
    phone.sync(&fixture).await;
    assert_eq!(phone.rows("notes").len(), 0);
}

/// A link whose long poll ends because the device is gone.
struct RemovedDevice(InProcessLink);

impl Link for RemovedDevice {
    async fn begin(&self, begin: &Begin) -> Result<BeginResponse, LinkError> {
        self.0.begin(begin).await
    }

    async fn upload(&self, session: &str, lines: Vec<u8>) -> Result<Uploaded, LinkError> {
        self.0.upload(session, lines).await
    }

    async fn download(&self, session: &str, cursor: &str) -> Result<Vec<u8>, LinkError> {
        self.0.download(session, cursor).await
    }

    async fn wait(&self, _: &str, _: Duration) -> Result<bool, LinkError> {
        Err(LinkError::SessionEnded("there is no such device".to_owned()))
    }

    async fn end(&self, session: &str) -> Result<(), LinkError> {
        self.0.end(session).await
    }
}

#[tokio::test]
async fn a_removed_device_does_not_wait_for_its_interval() {
    let fixture = fixture().await;
    let mut ann = Phone::new(&fixture, "ann").await;
    ann.sync(&fixture).await;
    let link = RemovedDevice(fixture.link(&ann.token));
    let woken = tokio::time::timeout(Duration::from_secs(60), ann.replica.wait_for_work(&link, LONG)).await;
    assert_eq!(woken.expect("no interval passes").expect("read"), WakeReason::ServerChanges);
}
