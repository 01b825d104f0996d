//! One recipient among ten thousand who can never be notified delays no other.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tocsin_connect::{SystemClock, networks::Networks, programs::Programs};
use tocsin_delivery::{Context, TokenSigner};
use tocsin_model::{
    application::api_source,
    event::EventPacker,
    id::Name,
    receipt::Outcome,
    subscriber::{Device, DeviceState, Profile},
    subscription::SubscriptionParams,
    time::Timestamp,
};
use tocsin_pipeline::{Parts, Pipeline, PipelineOptions, Submission, compile_text};
use tocsin_store::{
    journal::{JournalOptions, NotificationLog, OpenWork, OperatorActions, SuspensionFilter},
    memory::records::MemoryRecords,
    records::{
        ApplicationStore, NewApplicationVersion, NewSubscriber, NewSubscription, SubscriberStore, SubscriptionStore,
    },
    sqlite::journal::SqliteJournal,
};
use tocsin_testkit::{ScriptedAnswer, ScriptedChannels, SimulatedClock};

const RECIPIENTS: usize = 10_000;
const POISON: usize = 4_711;
const QUAKES: &str = r#"
application: quakes
events:
  quake: { fields: { place: string } }
subscriptions:
  any: {}
notifications:
  alert:
    fields: { place: string }
    batch_size: 10000
    content: { templates: { base: { subject: "{{ place }}" } } }
rules:
  every: { on: quake, subscription: any, notify: alert }
channels:
  hook: { protocol: http, retry: { delays: [0s, 0s], jitter: 0% } }
"#;

fn name(text: &str) -> Name {
    text.parse().expect("a name")
}

async fn records() -> Arc<MemoryRecords> {
    let records = Arc::new(MemoryRecords::new().expect("random numbers"));
    let id = |at: usize| format!("p{at:05}").parse().expect("an id");
    let person = |at: usize| {
        let device =
            Device { channel: name("hook"), address: format!("https://p{at}.example/"), state: DeviceState::Active };
        NewSubscriber {
            kept: Default::default(),
            id: id(at),
            profile: Profile::default(),
            devices: Some(vec![(name("main"), device)]),
            preferences: None,
        }
    };
    let interest = |at: usize| NewSubscription {
        application: name("quakes"),
        class: name("any"),
        subscriber: id(at),
        key: None,
        device: None,
        enabled: Some(true),
        values: "{}".into(),
        terms: SubscriptionParams::default(),
    };
    records.put_subscribers((0..RECIPIENTS).map(person).collect(), Timestamp(0)).await.expect("stored");
    records.put_subscriptions((0..RECIPIENTS).map(interest).collect(), Timestamp(0)).await.expect("stored");
    records
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_of_ten_thousand_one_is_suspended_and_the_others_are_notified_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let options = JournalOptions { free_bytes_min: 0, ..JournalOptions::default() };
    let journal = Arc::new(SqliteJournal::open(folder.path().join("journal.db"), options).await.expect("it opens"));
    let ends = ScriptedChannels::new(SimulatedClock::midnight());
    ends.set(&format!("https://p{POISON}.example/"), ScriptedAnswer::Defers(None));
    let far_ends = ends.clone();
    let records = records().await;
    records
        .put_application(NewApplicationVersion {
            name: &name("quakes"),
            text: QUAKES,
            author: "test",
            now: Timestamp(0),
        })
        .await
        .expect("stored");
    let parts = Parts {
        journal: journal.clone(),
        inbox: Arc::new(tocsin_store::memory::inbox::MemoryInbox::default()),
        records,
        environment: Arc::new(|_| None),
        context: Context {
            clock: Arc::new(SystemClock),
            installation: "test".to_owned(),
            data_folder: folder.path().to_owned(),
            networks: Networks::default(),
            token_signer: Arc::new(TokenSigner::new(&[7; 32])),
            public_url: None,
            feeds: None,
            provider_days: None,
            programs: Programs::default(),
            files: Default::default(),
            application: String::new(),
        },
        opener: Arc::new(move |name, _, _| Ok(far_ends.channel(name.as_str()))),
        options: PipelineOptions::default(),
        seed: 7,
        spans: Default::default(),
    };
    let pipeline = Pipeline::start(parts).await.expect("the pipeline starts");
    let compiled = compile_text(QUAKES, 1, &|_| None).expect("it compiles");
    let mut packer = EventPacker::new(compiled.application.events["quake"].fields.clone());
    packer.push(&["Kobe".into()]);
    let submission = Submission {
        application: name("quakes"),
        version: 1,
        class: name("quake"),
        source: api_source(),
        received_at: Timestamp(0),
        events: packer.finish(),
        idempotency: None,
        marks: Vec::new(),
    };
    pipeline.accept(submission).await.expect("accepted");
    let mut work = journal.arrivals().work;
    let suspended = loop {
        let found = journal.suspensions(&SuspensionFilter::default(), 0, 10).await.expect("listed");
        if !found.is_empty() && journal.backlog().notifications == 0 {
            break found;
        }
        // Work that becomes due wakes the worker; finished work does not, so the receiver's pace is waited for.
        let _ = tokio::time::timeout(Duration::from_millis(10), work.changed()).await;
    };
    assert_eq!(suspended.len(), 1);
    let suspension = &suspended[0].suspension;
    assert_eq!((suspension.attempts, suspension.ordinals.len()), (3, 1));
    assert_eq!(suspension.reason, "all 3 attempts failed, the last with: not now");
    let batch = journal.notification_batch(suspension.batch).await.expect("read").expect("a batch");
    assert_eq!(batch.notifications.count(), RECIPIENTS);
    let mut attempts: BTreeMap<u32, Vec<Outcome>> = BTreeMap::new();
    for attempt in journal.attempts(suspension.batch).await.expect("read") {
        attempts.entry(attempt.ordinal).or_default().push(attempt.outcome);
    }
    let poison = suspension.ordinals[0];
    let tries = [Outcome::Deferred, Outcome::Deferred, Outcome::Suspended];
    assert_eq!(attempts.remove(&poison).as_deref(), Some(&tries[..]));
    assert_eq!(attempts.len(), RECIPIENTS - 1);
    assert!(attempts.values().all(|outcomes| *outcomes == [Outcome::Delivered]));
    assert_eq!(ends.messages(), RECIPIENTS);
    assert_eq!(ends.seen().len(), RECIPIENTS + 2, "nobody but one is tried twice");
    assert!(pipeline.drain(Duration::from_secs(60)).await);
}
