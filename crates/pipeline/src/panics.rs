//! Tests of matching that panics: the rule is isolated and listed, its notifications and state changes are dropped,
//! and it can be fired again.

use std::{sync::Arc, time::Duration};

use tocsin_connect::{networks::Networks, programs::Programs};
use tocsin_delivery::{Context, TokenSigner};
use tocsin_model::{
    application::api_source,
    event::EventPacker,
    id::{EventBatchId, Name, SubscriptionId},
    subscriber::{Device, DeviceState, Profile},
    subscription::SubscriptionParams,
    time::Timestamp,
    value::Value,
};
use tocsin_store::{
    journal::{
        Component, EventBatchState, EventLog, Firing, FiringFilter, JournalOptions, NotificationLog, OpenWork,
        OperatorActions, Resolution, Role, RuleStore, SuspensionFilter, Switch, SwitchState,
    },
    memory::{journal::MemoryJournal, records::MemoryRecords},
    records::{
        ApplicationStore, NewApplicationVersion, NewSubscriber, NewSubscription, Precondition, SubscriberStore,
        SubscriptionStore,
    },
};
use tocsin_testkit::{ScriptedChannels, SimulatedClock};

use crate::{
    Parts, Pipeline, PipelineOptions, RefireError, Submission, compile_text, shards::faults, suspects::CRASHES_MAX,
};

const DEFINITION: &str = "
application: NAME
events: { quote: { fields: { symbol: string } } }
subscriptions: { watch: { fields: { symbol: string } } }
notifications: { alert: { fields: { symbol: string }, content: { templates: { base: { text: '{{ symbol }}' } } } } }
rules:
  changes: { on: quote, subscription: watch, notify: alert, changed: event.symbol }
  plain: { on: quote, subscription: watch, notify: alert, when: event.symbol == sub.symbol }
  queried: { on: quote, subscription: watch, notify: alert, sql: 'SELECT _event, _subscription FROM events, watch' }
channels: { log: { protocol: file, options: { path: log } } }
";

pub(crate) struct Platform {
    pub name: Name,
    journal: Arc<MemoryJournal>,
    pub pipeline: Arc<Pipeline>,
    pub records: Arc<MemoryRecords>,
    pub ends: ScriptedChannels,
    clock: SimulatedClock,
}

fn name(text: &str) -> Name {
    text.parse().expect("a name")
}

impl Platform {
    /// Starts with two subscriptions to A, of two subscribers on two shards. Each test has an application of its own,
    /// since faults are planned by application name.
    pub async fn start(application: &str) -> Platform {
        Platform::start_all(&[application]).await.remove(0)
    }

    /// Starts several applications.
    async fn start_all(applications: &[&str]) -> Vec<Platform> {
        let clock = SimulatedClock::midnight();
        let (ends, records) = (ScriptedChannels::new(clock), Arc::new(MemoryRecords::new().expect("records")));
        let journal = Arc::new(MemoryJournal::new(JournalOptions::default()));
        let far_ends = ends.clone();
        for application in applications {
            let text = DEFINITION.replace("NAME", application);
            records
                .put_application(NewApplicationVersion {
                    name: &name(application),
                    text: &text,
                    author: "test",
                    now: Timestamp(0),
                })
                .await
                .expect("stored");
        }
        for id in ["ann", "bob"] {
            let device = Device { channel: name("log"), address: id.to_owned(), state: DeviceState::Active };
            let id: tocsin_model::id::SubscriberId = id.parse().expect("an id");
            let devices = Some([(name("log"), device)].into());
            let new = NewSubscriber {
                kept: Default::default(),
                id: id.clone(),
                profile: Profile::default(),
                preferences: Default::default(),
                devices,
            };
            records.put_subscriber(new, Precondition::Any, Timestamp(0)).await.expect("stored");
            for application in applications {
                let new = NewSubscription {
                    application: name(application),
                    class: name("watch"),
                    subscriber: id.clone(),
                    key: None,
                    device: None,
                    enabled: Some(true),
                    values: r#"{"symbol":"A"}"#.into(),
                    terms: SubscriptionParams::default(),
                };
                records.put_subscription(new, Timestamp(0)).await.expect("stored");
            }
        }
        let parts = Parts {
            journal: journal.clone(),
            records: records.clone(),
            inbox: Arc::new(tocsin_store::memory::inbox::MemoryInbox::default()),
            environment: Arc::new(|_| None),
            context: Context {
                clock: Arc::new(clock),
                installation: "test".to_owned(),
                data_folder: std::path::PathBuf::new(),
                networks: Networks::default(),
                token_signer: Arc::new(TokenSigner::new(&[7; 32])),
                feeds: None,
                provider_days: None,
                public_url: None,
                programs: Programs::default(),
                files: Default::default(),
                application: String::new(),
            },
            opener: Arc::new(move |name, _, _| Ok(far_ends.channel(name.as_str()))),
            options: PipelineOptions { match_shards: 2, ..PipelineOptions::default() },
            seed: 7,
            spans: Default::default(),
        };
        let pipeline = Pipeline::start(parts).await.expect("the pipeline starts");
        let platform = |application: &&str| {
            let (journal, pipeline) = (journal.clone(), pipeline.clone());
            let (records, ends) = (records.clone(), ends.clone());
            Platform { name: name(application), journal, pipeline, records, ends, clock }
        };
        applications.iter().map(platform).collect()
    }

    fn plan(&self, fault: Option<(u64, &str)>) {
        let rules = compile_text(&DEFINITION.replace("NAME", "other"), 1, &|_| None).expect("it compiles").rules;
        let fault = fault.map(|(batch, rule)| (EventBatchId(batch), rules.number(rule).expect("a rule")));
        faults::plan(&self.name, fault);
    }

    /// Submits a batch of one event, and waits until it is matched or set aside.
    pub async fn quote(&self, symbol: &str) {
        self.submit(symbol).await;
        self.advance_a_minute().await;
    }

    /// Submits a batch of one event. Returns its id.
    async fn submit(&self, symbol: &str) -> EventBatchId {
        let compiled = self.pipeline.application(&self.name).expect("it runs");
        let mut packer = EventPacker::new(compiled.application.events["quote"].fields.clone());
        packer.push(&[Value::from(symbol)]);
        let submission = Submission {
            application: self.name.clone(),
            version: compiled.version,
            class: name("quote"),
            source: api_source(),
            received_at: Timestamp(0),
            events: packer.finish(),
            idempotency: None,
            marks: Vec::new(),
        };
        self.pipeline.accept(submission).await.expect("accepted").id()
    }

    /// Waits until a batch is matched.
    async fn matched(&self, batch: EventBatchId) {
        let mut work = self.journal.arrivals().work;
        loop {
            let (_, state) = self.journal.event_batch(batch).await.expect("read").expect("it is there");
            if matches!(state, EventBatchState::Matched(_)) {
                return;
            }
            work.changed().await.expect("the journal lives");
        }
    }

    async fn advance_a_minute(&self) {
        tokio::time::sleep(Duration::from_secs(60)).await;
    }

    /// All notifications as rule, event batch and subscription.
    async fn notified(&self) -> Vec<(String, u64, u64)> {
        let mut notified = Vec::new();
        for (id, head, _) in self.journal.notification_batches(None, usize::MAX).await.expect("read") {
            let batch = self.journal.notification_batch(id).await.expect("read").expect("it is there");
            let each = batch.notifications.event_of_each().zip(&batch.notifications.subscriptions);
            notified.extend(each.map(|(event, SubscriptionId(id))| (head.rule.to_string(), event.batch.0, *id)));
        }
        notified.sort();
        notified
    }

    async fn firings(&self) -> Vec<Firing> {
        self.journal.firings(&FiringFilter::default(), 0, 99).await.expect("read")
    }
}

fn of(rule: &str, batch: u64) -> [(String, u64, u64); 2] {
    [1, 2].map(|id| (rule.to_owned(), batch, id))
}

#[tokio::test(start_paused = true)]
async fn a_rule_that_panics_is_isolated_and_its_state_is_rolled_back() {
    let platform = Platform::start("panics").await;
    platform.quote("A").await;
    assert_eq!(platform.notified().await, [of("changes", 1), of("plain", 1), of("queried", 1)].concat());
    platform.plan(Some((2, "changes")));
    platform.quote("B").await;
    let expected_rules = [of("changes", 1), of("plain", 1), of("queried", 1), of("queried", 2)];
    let mut expected = expected_rules.concat();
    expected.sort();
    assert_eq!(platform.notified().await, expected, "the others match once");
    let firings = platform.firings().await;
    let listed: Vec<_> = firings.iter().map(|firing| (firing.rule.as_str(), firing.first.0, &*firing.reason)).collect();
    assert_eq!(listed, [("changes", 2, "it made the matcher panic")]);

    // Had the panic left B remembered, this would be no change.
    platform.plan(None);
    platform.quote("B").await;
    expected.extend(of("changes", 3));
    expected.extend(of("queried", 3));
    expected.sort();
    assert_eq!(platform.notified().await, expected);

    // Fired again, it fails as long as it panics. Then it matches, but not what its state already contains.
    platform.plan(Some((2, "plain")));
    let fired = platform.pipeline.refire(firings[0].clone()).await;
    assert_eq!(fired.expect("no other rule is asked"), 1);
    assert_eq!(platform.notified().await, expected, "B was already notified");
    assert!(platform.firings().await.is_empty());
    platform.plan(None);
    platform.pipeline.abort().await;
}

#[tokio::test(start_paused = true)]
async fn a_rule_that_panics_again_stays_listed() {
    let platform = Platform::start("panics-again").await;
    platform.plan(Some((1, "plain")));
    platform.quote("A").await;
    let expected = [of("changes", 1), of("queried", 1)].concat();
    assert_eq!(platform.notified().await, expected);
    let firing = platform.firings().await.pop().expect("it is listed");
    let again = platform.pipeline.refire(firing.clone()).await;
    assert!(matches!(again, Err(RefireError::Failed { batch: EventBatchId(1), .. })), "{again:?}");
    assert_eq!((platform.notified().await, platform.firings().await.len()), (expected, 1));
    platform.plan(None);
    assert_eq!(platform.pipeline.refire(firing).await.expect("it fires"), 1);
    assert_eq!(platform.notified().await, [of("changes", 1), of("plain", 1), of("queried", 1)].concat());
    assert!(platform.firings().await.is_empty());
    platform.pipeline.abort().await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_shard_is_rebuilt_and_no_notification_is_repeated() {
    let platform = Platform::start("lost").await;
    platform.quote("A").await;
    faults::plan_end(&platform.name, EventBatchId(2));
    platform.quote("B").await;
    platform.quote("B").await;
    // `changes` remembers over the loss: that B is no A, and that the second B is no change.
    let all =
        [of("changes", 1), of("changes", 2), of("plain", 1), of("queried", 1), of("queried", 2), of("queried", 3)];
    assert_eq!(platform.notified().await, all.concat());
    assert!(!faults::ends(&platform.name, EventBatchId(2)), "the shard was lost");
    assert!(platform.firings().await.is_empty());
    platform.pipeline.abort().await;
}

/// If the failing rule is unknown, the whole batch is set aside, and matched again with the next version.
#[tokio::test(start_paused = true)]
async fn a_panic_of_an_unknown_rule_sets_the_batch_aside() {
    let platform = Platform::start("panics-of-nobody").await;
    platform.plan(Some((1, "queried")));
    platform.quote("A").await;
    platform.quote("A").await;
    // `changes` has no match before the second batch.
    let expected = [of("changes", 2), of("plain", 2), of("queried", 2)].concat();
    assert_eq!(platform.notified().await, expected);
    let (_, state) = platform.journal.event_batch(EventBatchId(1)).await.expect("read").expect("it is there");
    assert!(matches!(&state, EventBatchState::Failed(reason) if reason.contains("panic")), "{state:?}");
    platform.plan(None);
    platform.journal.rematch(&platform.name).await.expect("read");
    platform.advance_a_minute().await;
    let expected = [of("changes", 2), of("plain", 1), of("plain", 2), of("queried", 1), of("queried", 2)].concat();
    assert_eq!(platform.notified().await, expected, "the stateful rule already notified of A");
    platform.pipeline.abort().await;
}

/// A slow match delays no other application and no change of one; its own batches wait in order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b7_a_slow_application_delays_no_other() {
    let platforms = Platform::start_all(&["slow", "fast"]).await;
    let [slow, fast] = &platforms[..] else { panic!("two applications") };
    faults::plan_wait(&slow.name, EventBatchId(1));
    let first = slow.submit("A").await;
    let (waits, batch) = (slow.name.clone(), first);
    tokio::task::spawn_blocking(move || faults::wait_until_begun(&waits, batch)).await.expect("it begins");
    let second = slow.submit("B").await;
    for _ in 0..3 {
        let id = fast.submit("A").await;
        fast.matched(id).await;
    }
    // A new version of another application is installed meanwhile.
    let compiled = compile_text(&DEFINITION.replace("NAME", "fast"), 1, &|_| None).expect("it compiles");
    fast.pipeline.run(Arc::new(compiled)).await.expect("it runs");
    let id = fast.submit("A").await;
    fast.matched(id).await;
    let state = async |id| slow.journal.event_batch(id).await.expect("read").expect("it is there").1;
    for id in [first, second] {
        assert!(matches!(state(id).await, EventBatchState::Accepted), "{id}");
    }
    faults::release(&slow.name, first);
    slow.matched(first).await;
    slow.matched(second).await;
    let found = slow.notified().await;
    let of_slow = |(_, batch, _): &&(String, u64, u64)| [first.0, second.0].contains(batch);
    // `changes` matches B after A.
    let changes: Vec<_> = found.iter().filter(of_slow).filter(|(rule, ..)| rule == "changes").collect();
    assert_eq!(changes.len(), 4, "{found:?}");
    slow.pipeline.drain(Duration::from_secs(60)).await;
}

/// A process that crashes and restarts on the same store.
struct Machine {
    journal: Arc<MemoryJournal>,
    records: Arc<MemoryRecords>,
    ends: ScriptedChannels,
    clock: SimulatedClock,
    folder: tempfile::TempDir,
}

impl Machine {
    async fn start(&self) -> Arc<Pipeline> {
        let ends = self.ends.clone();
        let parts = Parts {
            journal: self.journal.clone(),
            records: self.records.clone(),
            inbox: Arc::new(tocsin_store::memory::inbox::MemoryInbox::default()),
            environment: Arc::new(|_| None),
            context: Context {
                clock: Arc::new(self.clock),
                installation: "test".to_owned(),
                data_folder: self.folder.path().to_owned(),
                networks: Networks::default(),
                token_signer: Arc::new(TokenSigner::new(&[7; 32])),
                feeds: None,
                provider_days: None,
                public_url: None,
                programs: Programs::default(),
                files: Default::default(),
                application: String::new(),
            },
            opener: Arc::new(move |name, _, _| Ok(ends.channel(name.as_str()))),
            options: PipelineOptions::default(),
            seed: 7,
            spans: Default::default(),
        };
        Pipeline::start(parts).await.expect("the pipeline starts")
    }

    /// Simulates a crash.
    async fn crash(&self, pipeline: &Pipeline) {
        pipeline.flow.suspects.crash();
        pipeline.abort().await;
        self.journal.drop_claims();
    }
}

async fn submit_to(pipeline: &Pipeline, application: &Name, symbol: &str) -> EventBatchId {
    let compiled = pipeline.application(application).expect("it runs");
    let mut packer = EventPacker::new(compiled.application.events["quote"].fields.clone());
    packer.push(&[Value::from(symbol)]);
    let submission = Submission {
        application: application.clone(),
        version: compiled.version,
        class: name("quote"),
        source: api_source(),
        received_at: Timestamp(0),
        events: packer.finish(),
        idempotency: None,
        marks: Vec::new(),
    };
    pipeline.accept(submission).await.expect("accepted").id()
}

async fn state_of(journal: &MemoryJournal, id: EventBatchId) -> EventBatchState {
    journal.event_batch(id).await.expect("read").expect("it is there").1
}

/// Waits until batches reach a state.
async fn until(journal: &MemoryJournal, ids: &[EventBatchId], is: impl Fn(&EventBatchState) -> bool) {
    for id in ids {
        while !is(&state_of(journal, *id).await) {
            tokio::task::yield_now().await;
        }
    }
}

/// Three batches are in the quantum that crashes the process. The culprit is set aside after the last crash; the
/// earlier ones are matched before, and later ones continue.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a18_an_event_batch_that_crashes_the_process_is_set_aside() {
    let platform = Platform::start("crashes").await;
    let Platform { name, journal, pipeline, records, ends, clock } = platform;
    let off = Switch {
        component: Component::Role(Role::Match),
        state: SwitchState::Paused,
        by: "test".to_owned(),
        reason: "to gather".to_owned(),
        since: Timestamp(0),
    };
    pipeline.switch_off(off).await.expect("off");
    let mut ids = Vec::new();
    for symbol in ["A", "B", "A"] {
        ids.push(submit_to(&pipeline, &name, symbol).await);
    }
    pipeline.abort().await;
    journal.drop_claims();
    let machine =
        Machine { journal: journal.clone(), records, ends, clock, folder: tempfile::tempdir().expect("a folder") };
    let poison = ids[1];
    for crash in 1..=CRASHES_MAX {
        faults::plan_wait(&name, poison);
        let pipeline = machine.start().await;
        if crash == 1 {
            pipeline.switch_on(&Component::Role(Role::Match)).await.expect("on");
        } else {
            // The batch before it was innocent and has run alone.
            until(&journal, &ids[..1], |state| matches!(state, EventBatchState::Matched(_))).await;
        }
        let waits = name.clone();
        tokio::task::spawn_blocking(move || faults::wait_until_begun(&waits, poison)).await.expect("it begins");
        machine.crash(&pipeline).await;
        faults::release(&name, poison);
        assert!(matches!(state_of(&journal, poison).await, EventBatchState::Accepted), "crash {crash}");
    }
    let pipeline = machine.start().await;
    until(&journal, &[ids[2]], |state| matches!(state, EventBatchState::Matched(_))).await;
    let state = state_of(&journal, poison).await;
    assert!(
        matches!(&state, EventBatchState::Failed(why) if why.contains("crashed 3 times while it was matched")),
        "{state:?}"
    );
    // A restart matches set-aside batches again, but not this one.
    assert!(pipeline.drain(Duration::from_secs(60)).await);
    journal.drop_claims();
    let pipeline = machine.start().await;
    let next = submit_to(&pipeline, &name, "B").await;
    until(&journal, &[next], |state| matches!(state, EventBatchState::Matched(_))).await;
    assert!(matches!(state_of(&journal, poison).await, EventBatchState::Failed(_)));
    // An operator does.
    assert_eq!(pipeline.rematch(&name).await.expect("rematched"), 1);
    until(&journal, &[poison], |state| matches!(state, EventBatchState::Matched(_))).await;
    pipeline.drain(Duration::from_secs(60)).await;
}

/// Two of three work items are innocent and are delivered; the third is suspended with the reason.
#[tokio::test(start_paused = true)]
async fn a18_a_work_item_that_crashes_the_process_is_suspended() {
    let platform = Platform::start("crashing-items").await;
    let Platform { name, journal, pipeline, records, ends, clock } = platform;
    let machine = Machine {
        journal: journal.clone(),
        records,
        ends: ends.clone(),
        clock,
        folder: tempfile::tempdir().expect("a folder"),
    };
    pipeline.abort().await;
    journal.drop_claims();
    let pipeline = machine.start().await;
    // `changes`, `plain` and `queried` match A for both, each with a work item.
    ends.set("ann", tocsin_testkit::ScriptedAnswer::Waits);
    submit_to(&pipeline, &name, "A").await;
    let run_five_seconds = || tokio::time::sleep(Duration::from_secs(5));
    run_five_seconds().await;
    assert!(journal.backlog().work_items > 0, "{:?}", journal.backlog());
    let mut suspended = 0;
    let mut pipeline = pipeline;
    for crash in 1..=4 * CRASHES_MAX {
        machine.crash(&pipeline).await;
        pipeline = machine.start().await;
        run_five_seconds().await;
        suspended = journal.suspensions(&SuspensionFilter::default(), 0, 10).await.expect("listed").len();
        if suspended == 3 {
            assert!(crash >= CRASHES_MAX, "each at its last crash");
            break;
        }
    }
    // All three are for ann, whose delivery never ends: each in turn is in progress at that many crashes.
    let found = journal.suspensions(&SuspensionFilter::default(), 0, 10).await.expect("listed");
    assert_eq!(suspended, 3, "{found:?}");
    for stored in &found {
        assert!(stored.suspension.reason.contains("crashed 3 times while it was delivered"), "{stored:?}");
    }
    // What an operator resumes is tried again.
    ends.set("ann", tocsin_testkit::ScriptedAnswer::Delivers);
    journal.resolve(&SuspensionFilter::default(), Resolution::Resume, Timestamp(0)).await.expect("resumed");
    run_five_seconds().await;
    assert_eq!((journal.backlog().work_items, journal.backlog().suspended), (0, 0));
    assert!(pipeline.drain(Duration::from_secs(60)).await);
}
