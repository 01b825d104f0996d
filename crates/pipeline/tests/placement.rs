//! Linearizability of changes and events: a change takes effect exactly at its position in the stream of events, on
//! any number of shards and across crashes. The oracle evaluates every subscription at the moment of each event.

use std::{collections::BTreeMap, time::Duration};

use tocsin_model::{
    application::api_source,
    event::{EventPacker, PackedEvents},
    id::{ChangeSequence, EventBatchId, EventId, Name, SubscriberId, SubscriptionId},
    subscriber::{Device, DeviceState, Profile},
    subscription::SubscriptionParams,
    value::Value,
};
use tocsin_pipeline::{PipelineOptions, compile_text};
use tocsin_store::{
    journal::{EventBatchState, EventLog, NewEventBatch, NotificationLog, OpenWork},
    records::{
        MatchStore, NewSubscriber, NewSubscription, Precondition, SubscriberStore, SubscriptionChange,
        SubscriptionStore, UpdateSubscription,
    },
};
use tocsin_testkit::{CrashPoint, Scenario};

const QUAKES: &str = r#"
application: quakes
events:
  quake: { fields: { magnitude: integer } }
attributes:
  most: { type: integer, default: 7 }
subscriptions:
  nearby: { fields: { magnitude: integer } }
notifications:
  alert:
    fields: { magnitude: integer, wanted: integer }
    content: { templates: { base: { subject: "{{ magnitude }} (from {{ wanted }})" } } }
rules:
  strong:
    on: quake
    subscription: nearby
    when: event.magnitude >= sub.magnitude && event.magnitude <= subscriber.attributes.most
    notify: alert
    with: { wanted: sub.magnitude }
channels:
  email: { protocol: smtp, options: { host: localhost, from: t@example.org } }
  web: { protocol: http }
"#;

fn name(text: &str) -> Name {
    text.parse().expect("a name")
}

fn options(match_shards: usize) -> PipelineOptions {
    PipelineOptions { match_shards, ..PipelineOptions::default() }
}

/// The channel of each expected notification.
type Notified = BTreeMap<(EventId, SubscriptionId), Name>;

/// A random stream of changes, events, crashes and pauses, with its expected notifications.
struct Stream {
    scenario: Scenario,
    rng: fastrand::Rng,
    seconds: u64,
    batches: u64,
    expected: Notified,
}

impl Stream {
    async fn new(seed: u64, shards: usize) -> Stream {
        let scenario = Scenario::with(&[QUAKES], options(shards)).await;
        Stream { scenario, rng: fastrand::Rng::with_seed(seed), seconds: 0, batches: 0, expected: Notified::new() }
    }

    async fn act(&mut self) {
        match self.rng.u32(..100) {
            0..20 => self.put_subscriber().await,
            20..24 => self.remove_subscriber().await,
            24..27 => self.merge_subscribers().await,
            27..50 => self.subscribe().await,
            50..60 => self.update().await,
            60..66 => self.unsubscribe().await,
            66..88 => self.events().await,
            88..90 => self.script("crash").await,
            90..91 => self.script("drain").await,
            91..93 => {
                let moment = if self.rng.bool() { CrashPoint::BeforeWrite } else { CrashPoint::AfterWrite };
                self.scenario.crash_at(self.rng.u64(1..6), moment);
            }
            _ => {
                // No other task ran until now, so the accepted batch is still pending among the changes.
                self.seconds += 1;
                self.script("report").await;
            }
        }
    }

    async fn script(&mut self, act: &str) {
        let (hours, seconds) = (self.seconds / 3600, self.seconds % 3600);
        let line = format!("{hours:02}:{:02}:{:02} {act}", seconds / 60, seconds % 60);
        self.scenario.run_and_wait(&line, Duration::ZERO).await;
    }

    fn someone(&mut self) -> SubscriberId {
        format!("p{}", self.rng.u32(..8)).parse().expect("an id")
    }

    /// A subscription number, used or unused.
    fn some_subscription(&mut self) -> SubscriptionId {
        SubscriptionId(self.rng.u64(1..40))
    }

    async fn put_subscriber(&mut self) {
        let device = |channel: &str, state| Device { channel: name(channel), address: "someone".to_owned(), state };
        let state = if self.rng.u32(..3) > 0 { DeviceState::Active } else { DeviceState::Bounced };
        let devices = [(name("a"), device("email", state)), (name("b"), device("web", DeviceState::Active))];
        let count = self.rng.usize(..3);
        let most = match self.rng.u32(..4) {
            0 => None,
            1 => Some(Value::from("many")),
            _ => Some(Value::Integer(self.rng.i64(3..10))),
        };
        let attributes = most.into_iter().map(|most| ("most".to_owned(), most)).collect();
        let new = NewSubscriber {
            kept: Default::default(),
            id: self.someone(),
            profile: Profile { enabled: self.rng.u32(..4) > 0, attributes, ..Profile::default() },
            devices: Some(devices.into_iter().take(count).collect()),
            preferences: None,
        };
        self.scenario.records().put_subscriber(new, Precondition::Any, Default::default()).await.expect("stored");
    }

    async fn remove_subscriber(&mut self) {
        // There may be none.
        let someone = self.someone();
        let _ = self.scenario.records().remove_subscriber(&someone, Precondition::Any, Default::default()).await;
    }

    async fn merge_subscribers(&mut self) {
        // One or both may name no subscriber, and both may name the same one.
        let (from, into) = (self.someone(), self.someone());
        let _ = self.scenario.records().merge_subscribers(&from, &into, Default::default()).await;
    }

    fn values(&mut self) -> Box<str> {
        format!(r#"{{"magnitude":{}}}"#, self.rng.u32(..10)).into()
    }

    async fn subscribe(&mut self) {
        let new = (0..self.rng.usize(1..4)).map(|_| NewSubscription {
            application: name("quakes"),
            class: name("nearby"),
            subscriber: self.someone(),
            key: (self.rng.u32(..3) == 0).then(|| format!("k{}", self.rng.u32(..2))),
            device: (self.rng.u32(..3) == 0).then(|| name(if self.rng.bool() { "a" } else { "b" })),
            enabled: Some(self.rng.u32(..5) > 0),
            values: self.values(),
            terms: SubscriptionParams::default(),
        });
        let new = new.collect();
        self.scenario.records().put_subscriptions(new, Default::default()).await.expect("stored");
    }

    async fn update(&mut self) {
        let change = SubscriptionChange {
            device: None,
            enabled: Some(self.rng.u32(..3) > 0),
            values: self.values(),
            terms: SubscriptionParams::default(),
        };
        let id = self.some_subscription();
        let _ = self
            .scenario
            .records()
            .update_subscription(UpdateSubscription { id, change, expect: Precondition::Any, now: Default::default() })
            .await;
    }

    async fn unsubscribe(&mut self) {
        let id = self.some_subscription();
        let _ = self.scenario.records().remove_subscription(id, Precondition::Any, Default::default()).await;
    }

    /// Submits a batch, and records its expected notifications.
    async fn events(&mut self) {
        self.batches += 1;
        let magnitudes: Vec<i64> = (0..self.rng.usize(1..4)).map(|_| self.rng.i64(0..10)).collect();
        let there = self.scenario.records().indexed_subscriptions(&name("quakes"), None, usize::MAX).await;
        let there = there.expect("the records answer");
        let owners: Vec<_> = there.iter().map(|subscription| subscription.subscriber).collect();
        let owners = self.scenario.records().profiles(&owners, ChangeSequence(u64::MAX)).await;
        for (subscription, owner) in there.into_iter().zip(owners.expect("the records answer")) {
            let values: BTreeMap<String, i64> = serde_json::from_str(&subscription.values).expect("parameters");
            let most = match owner.as_ref().and_then(|owner| owner.profile.attributes.get("most")) {
                Some(Value::Integer(most)) => *most,
                _ => 7,
            };
            for (ordinal, magnitude) in magnitudes.iter().enumerate() {
                if (values["magnitude"]..=most).contains(magnitude) {
                    let event = EventId { batch: EventBatchId(self.batches), ordinal: ordinal as u32 };
                    let channel = subscription.channel.clone().unwrap_or_else(|| name("unassigned"));
                    self.expected.insert((event, subscription.id), channel);
                }
            }
        }
        let events: String = magnitudes.iter().map(|magnitude| format!(r#" {{"magnitude": {magnitude}}}"#)).collect();
        self.script(&format!("event quake{events}")).await;
    }

    async fn check(mut self, context: &str) {
        self.seconds += 600;
        self.script("report").await;
        let notified = notified(&self.scenario, context).await;
        assert_eq!(self.scenario.journal().backlog().event_batches, 0, "{context}");
        for (at, channel) in &self.expected {
            assert_eq!(notified.get(at), Some(channel), "{at:?} should be notified: {context}");
        }
        for at in notified.keys() {
            assert!(self.expected.contains_key(at), "{at:?} should not be notified: {context}");
        }
    }
}

/// All notifications made; none may have been made twice.
async fn notified(scenario: &Scenario, context: &str) -> Notified {
    let journal = scenario.journal();
    let mut notified = Notified::new();
    for (id, head, _) in journal.notification_batches(None, usize::MAX).await.expect("the journal answers") {
        let batch = journal.notification_batch(id).await.expect("the journal answers").expect("it is there");
        for (event, subscription) in batch.notifications.event_of_each().zip(&batch.notifications.subscriptions) {
            let before = notified.insert((event, *subscription), head.channel.clone());
            assert!(before.is_none(), "{subscription} was notified of {event} twice: {context}");
        }
    }
    notified
}

async fn streams(seeds: usize, acts: usize) {
    let given = std::env::var("TOCSIN_SEED").ok().and_then(|seed| seed.parse().ok());
    let seeds: Vec<u64> = given.map_or_else(|| (0..seeds).map(|_| fastrand::u64(..)).collect(), |seed| vec![seed]);
    for seed in seeds {
        println!("TOCSIN_SEED={seed}");
        for shards in [1, 2, 4] {
            let mut stream = Stream::new(seed, shards).await;
            for _ in 0..acts {
                stream.act().await;
            }
            assert!(!stream.expected.is_empty(), "no notifications are expected: TOCSIN_SEED={seed}");
            stream.check(&format!("TOCSIN_SEED={seed}, {shards} shards")).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn changes_take_effect_exactly_at_their_place_among_the_events() {
    streams(2, 200).await;
}

#[tokio::test(start_paused = true)]
async fn slow_changes_take_effect_exactly_at_their_place_in_many_streams() {
    streams(12, 400).await;
}

#[tokio::test(start_paused = true)]
async fn events_that_wait_are_matched_with_the_subscriptions_of_their_time() {
    let mut scenario = Scenario::with(&[QUAKES], options(4)).await;
    // The process dies before the commit of its matches; all notifications come from the next start.
    scenario
        .run_and_wait(
            r#"08:00 subscriber ann email=ann@example.org
               08:00 subscriber bob email=bob@example.org
               08:00 subscribe ann nearby {"magnitude": 5}
               08:01 event quake {"magnitude": 6}"#,
            Duration::from_secs(60),
        )
        .await;
    scenario.crash_at(3, CrashPoint::BeforeWrite);
    scenario
        .run_and_wait(
            r#"08:05 event quake {"magnitude": 6}
               08:05 subscribe bob nearby {"magnitude": 5}
               08:05 unsubscribe ann
               08:05 event quake {"magnitude": 7}
               08:05 crash
               08:05 disable bob
               08:05 event quake {"magnitude": 6}"#,
            Duration::from_secs(600),
        )
        .await;
    let notified: Vec<(u64, u64)> =
        notified(&scenario, "").await.into_keys().map(|(event, id)| (event.batch.0, id.0)).collect();
    assert_eq!(notified, [(1, 1), (2, 1), (3, 2)]);
}

#[tokio::test(start_paused = true)]
async fn a_damaged_batch_makes_no_notifications_and_all_others_do() {
    let mut scenario = Scenario::with(&[QUAKES], options(2)).await;
    let setup = r#"08:00 subscriber ann email=ann@example.org
                   08:00 subscribe ann nearby {"magnitude": 5}"#;
    scenario.run_and_wait(setup, Duration::from_secs(60)).await;
    let compiled = compile_text(QUAKES, 1, &|_| None).expect("it compiles");
    let mut packer = EventPacker::new(compiled.application.events["quake"].fields.clone());
    packer.push(&[Value::Integer(6)]);
    packer.push(&[Value::Integer(7)]);
    let whole = packer.finish();
    let cut_short = PackedEvents::from_parts(2, whole.bytes().slice(..whole.bytes().len() - 1));
    for events in [whole.clone(), cut_short, whole] {
        let new = NewEventBatch {
            application: name("quakes"),
            version: 1,
            class: name("quake"),
            source: api_source(),
            received_at: Default::default(),
            accepted_at: Default::default(),
            snapshot_sequence: ChangeSequence(u64::MAX),
            events,
            idempotency: None,
            marks: Vec::new(),
        };
        scenario.journal().accept(new).await.expect("accepted");
    }
    scenario.run_and_wait("09:00 report", Duration::ZERO).await;
    let notified: Vec<(u64, u32)> =
        notified(&scenario, "").await.into_keys().map(|(event, _)| (event.batch.0, event.ordinal)).collect();
    assert_eq!(notified, [(1, 0), (1, 1), (3, 0), (3, 1)]);
    let (_, state) = scenario.journal().event_batch(EventBatchId(2)).await.expect("read").expect("there");
    assert!(matches!(state, EventBatchState::Failed(_)), "{state:?}");
}
