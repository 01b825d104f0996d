//! Linearizability of filters and audiences: own filters in every dialect, and audiences, take effect exactly at
//! their position among the events, on any number of shards and across crashes at any write. The oracle evaluates
//! every subscription at the moment of each event. A failure prints the seed; `TOCSIN_SEED` repeats it.

use std::{collections::BTreeSet, time::Duration};

use tocsin_matching::filter::{CompiledFilter, compile};
use tocsin_model::{
    field::Fields,
    filter::{Dialect, Filter},
    id::{EventBatchId, EventId, Name, SubscriberId, SubscriptionId},
    ldap::{Entry, LdapFilter},
    subscriber::{Device, DeviceState, Profile},
    subscription::SubscriptionParams,
    value::Value,
};
use tocsin_pipeline::{PipelineOptions, compile_text};
use tocsin_store::{
    journal::{NotificationLog, OpenWork},
    records::{
        MatchStore, NewSegment, NewSubscriber, NewSubscription, Precondition, SegmentStore, SubscriberStore,
        SubscriptionChange, SubscriptionStore, UpdateSubscription,
    },
};
use tocsin_testkit::{CrashPoint, Scenario};

const QUAKES: &str = r#"
application: quakes
events:
  quake: { fields: { magnitude: integer, place: string, tags: list } }
subscriptions:
  own: { filter: [cel, jmespath, event_pattern] }
  idle: {}
notifications:
  alert:
    fields: { magnitude: integer }
    content: { templates: { base: { subject: "{{ magnitude }}" } } }
rules:
  everyone: { on: quake, subscription: own, notify: alert }
  golden: { on: quake, subscription: own, notify: alert, audience: gold, when: event.magnitude >= 3 }
channels:
  web: { protocol: http }
"#;

/// Filters in two dialects and in one only, indexed and scanned, and failing ones.
const FILTERS: [(Dialect, &str); 12] = [
    (Dialect::Cel, "event.magnitude > 5"),
    (Dialect::Cel, "event.place >= 'Kobe' && event.place < 'Lima'"),
    (Dialect::Cel, "10 / event.magnitude > 2"),
    (Dialect::Cel, "size(event.tags) == 2"),
    (Dialect::Jmespath, "magnitude > `5`"),
    (Dialect::Jmespath, "contains(tags, 'sea')"),
    (Dialect::Jmespath, "length(place) > `4`"),
    (Dialect::Jmespath, "place && !contains_ci(place, 'k')"),
    (Dialect::EventPattern, r#"{"magnitude": [{"numeric": [">", 5]}]}"#),
    (Dialect::EventPattern, r#"{"place": [{"prefix": "K"}, {"exists": false}]}"#),
    (Dialect::EventPattern, r#"{"tags": [{"anything-but": "sea"}]}"#),
    (Dialect::EventPattern, r#"{"$or": [{"place": ["Oslo"]}, {"tags": ["sea"], "magnitude": [3, 4]}]}"#),
];

const EVENTS: [&str; 7] = [
    r#"{"magnitude": 7, "place": "Kobe", "tags": ["sea"]}"#,
    r#"{"magnitude": 4, "place": "Oslo", "tags": ["sea", "deep"]}"#,
    r#"{"magnitude": 0, "place": "Kyoto"}"#,
    r#"{"magnitude": 3, "tags": []}"#,
    r#"{"place": "Reykjavik", "tags": ["ice", null]}"#,
    r#"{"magnitude": 6}"#,
    "{}",
];

fn name(text: &str) -> Name {
    text.parse().expect("a name")
}

/// Expected notifications: event, subscription and rule.
type Notified = BTreeSet<(EventId, SubscriptionId, Name)>;

/// A random stream of changes, events and crashes, with its expected notifications.
struct Stream {
    scenario: Scenario,
    rng: fastrand::Rng,
    fields: Fields,
    filters: Vec<CompiledFilter>,
    /// The filter of the segment.
    gold: LdapFilter,
    seconds: u64,
    batches: u64,
    expected: Notified,
}

impl Stream {
    async fn new(seed: u64, match_shards: usize, changes_kept: u64) -> Stream {
        let options = PipelineOptions { match_shards, ..PipelineOptions::default() };
        let compiled = compile_text(QUAKES, 1, &|_| None).expect("it compiles");
        let fields = compiled.application.events["quake"].fields.clone();
        let filters = FILTERS.map(|(dialect, text)| compile(&Filter::new(dialect, text), &fields).expect("a filter"));
        let mut stream = Stream {
            scenario: Scenario::with_feed(&[QUAKES], options, changes_kept).await,
            rng: fastrand::Rng::with_seed(seed),
            fields,
            filters: filters.into(),
            gold: LdapFilter::parse("(tier=gold)").expect("a filter"),
            seconds: 0,
            batches: 0,
            expected: Notified::new(),
        };
        stream.put_segment("(tier=gold)").await;
        stream
    }

    async fn act(&mut self) {
        match self.rng.u32(..100) {
            0..18 => self.put_subscriber().await,
            18..20 => {
                let someone = self.someone();
                let _ =
                    self.scenario.records().remove_subscriber(&someone, Precondition::Any, Default::default()).await;
            }
            20..44 => self.subscribe().await,
            44..56 => self.update().await,
            56..61 => {
                let id = self.some_subscription();
                let _ = self.scenario.records().remove_subscription(id, Precondition::Any, Default::default()).await;
            }
            61..64 => {
                let filter = ["(tier=gold)", "(!(tier=tin))", "(tier=*)", "(|)"][self.rng.usize(..4)];
                self.put_segment(filter).await;
            }
            64..86 => self.events().await,
            86..88 => self.script("crash").await,
            88..94 => {
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

    async fn put_segment(&mut self, filter: &str) {
        self.gold = LdapFilter::parse(filter).expect("a filter");
        let segment = NewSegment { name: name("gold"), description: None, filter: filter.into() };
        self.scenario.records().put_segment(segment, Precondition::Any, Default::default()).await.expect("stored");
    }

    async fn put_subscriber(&mut self) {
        let tier = ["gold", "Gold", "tin"].get(self.rng.usize(..4));
        let attributes = tier.map(|tier| ("tier".to_owned(), Value::from(*tier))).into_iter().collect();
        let device = Device { channel: name("web"), address: "someone".to_owned(), state: DeviceState::Active };
        let new = NewSubscriber {
            kept: Default::default(),
            id: self.someone(),
            profile: Profile { enabled: self.rng.u32(..5) > 0, attributes, ..Profile::default() },
            devices: Some([(name("a"), device)].into()),
            preferences: None,
        };
        self.scenario.records().put_subscriber(new, Precondition::Any, Default::default()).await.expect("stored");
    }

    fn terms(&mut self) -> SubscriptionParams {
        let filter = FILTERS.get(self.rng.usize(..FILTERS.len() + 1));
        SubscriptionParams {
            filter: filter.map(|(dialect, text)| Filter::new(*dialect, *text)),
            ..SubscriptionParams::default()
        }
    }

    async fn subscribe(&mut self) {
        let new = (0..self.rng.usize(1..4)).map(|_| NewSubscription {
            application: name("quakes"),
            class: name("own"),
            subscriber: self.someone(),
            key: None,
            device: None,
            enabled: Some(self.rng.u32(..5) > 0),
            values: "{}".into(),
            terms: self.terms(),
        });
        let new = new.collect();
        self.scenario.records().put_subscriptions(new, Default::default()).await.expect("stored");
    }

    async fn update(&mut self) {
        let (id, enabled) = (self.some_subscription(), self.rng.u32(..3) > 0);
        let change =
            SubscriptionChange { device: None, enabled: Some(enabled), values: "{}".into(), terms: self.terms() };
        let _ = self
            .scenario
            .records()
            .update_subscription(UpdateSubscription { id, change, expect: Precondition::Any, now: Default::default() })
            .await;
    }

    /// Makes changes that cause no notification.
    async fn change_filters(&mut self, changes: usize) {
        let idle = |_| NewSubscription {
            application: name("quakes"),
            class: name("idle"),
            subscriber: "p0".parse().expect("an id"),
            key: None,
            device: None,
            enabled: Some(true),
            values: "{}".into(),
            terms: SubscriptionParams::default(),
        };
        let new = (0..changes).map(idle).collect();
        self.scenario.records().put_subscriptions(new, Default::default()).await.expect("stored");
    }

    /// Expected notifications of an event in the current state.
    async fn expected_of(&self, event: EventId, text: &str) -> Notified {
        let json: serde_json::Map<String, serde_json::Value> = serde_json::from_str(text).expect("JSON");
        let row = self.fields.row(json.iter().map(|(key, value)| (key, Value::from(value.clone()))));
        let row = row.expect("an event of the class");
        let magnitude = json.get("magnitude").and_then(serde_json::Value::as_i64);
        let records = self.scenario.records();
        let there = records.indexed_subscriptions(&name("quakes"), None, usize::MAX).await.expect("the records answer");
        let mut notified = Notified::new();
        for subscription in there.into_iter().filter(|subscription| subscription.class == name("own")) {
            let own = subscription.terms.filter.as_ref().map(|filter| {
                let at =
                    FILTERS.iter().position(|(dialect, text)| (filter.dialect, &*filter.text) == (*dialect, *text));
                &self.filters[at.expect("one of these")]
            });
            if own.is_some_and(|filter| !filter.holds(&row).expect("few steps")) {
                continue;
            }
            notified.insert((event, subscription.id, name("everyone")));
            let owner = records.subscription(subscription.id).await.expect("the records answer").expect("it is there");
            let owner = records.subscriber(&owner.subscriber).await.expect("the records answer").expect("it is there");
            if self.gold.matches(&Entry::from(&owner)) && magnitude.is_some_and(|magnitude| magnitude >= 3) {
                notified.insert((event, subscription.id, name("golden")));
            }
        }
        notified
    }

    /// Submits a batch, and records its expected notifications.
    async fn events(&mut self) {
        self.batches += 1;
        let events: Vec<&str> = (0..self.rng.usize(1..4)).map(|_| EVENTS[self.rng.usize(..EVENTS.len())]).collect();
        for (ordinal, text) in (0..).zip(&events) {
            let event = EventId { batch: EventBatchId(self.batches), ordinal };
            let expected_of = self.expected_of(event, text).await;
            self.expected.extend(expected_of);
        }
        self.script(&format!("event quake {}", events.join(" "))).await;
    }

    async fn check(mut self, context: &str) {
        self.seconds += 600;
        self.script("report").await;
        assert_eq!(self.scenario.journal().backlog().event_batches, 0, "{context}");
        let notified = notified(&self.scenario, context).await;
        let wrong: Vec<_> = notified.symmetric_difference(&self.expected).take(5).collect();
        assert!(wrong.is_empty(), "unexpected or missing notifications: {wrong:?}: {context}");
    }
}

/// All notifications made; none may have been made twice.
async fn notified(scenario: &Scenario, context: &str) -> Notified {
    let journal = scenario.journal();
    let mut notified = Notified::new();
    for (id, head, _) in journal.notification_batches(None, usize::MAX).await.expect("the journal answers") {
        let batch = journal.notification_batch(id).await.expect("the journal answers").expect("it is there");
        for (event, subscription) in batch.notifications.event_of_each().zip(&batch.notifications.subscriptions) {
            let is_new = notified.insert((event, *subscription, head.rule.clone()));
            assert!(is_new, "{subscription} was notified of {event} twice: {context}");
        }
    }
    notified
}

async fn streams(seeds: usize, acts: usize) {
    let given = std::env::var("TOCSIN_SEED").ok().and_then(|seed| seed.parse().ok());
    let seeds: Vec<u64> = given.map_or_else(|| (0..seeds).map(|_| fastrand::u64(..)).collect(), |seed| vec![seed]);
    for seed in seeds {
        println!("TOCSIN_SEED={seed}");
        for shards in [1, 4] {
            let mut stream = Stream::new(seed, shards, u64::MAX / 100).await;
            let told_by_both = |stream: &Stream| {
                let rules: BTreeSet<&str> = stream.expected.iter().map(|(.., rule)| rule.as_str()).collect();
                rules.len() == 2
            };
            let mut done = 0;
            // A stream in which a rule never matches proves nothing, so it continues until it does.
            while done < acts || !told_by_both(&stream) {
                assert!(done < 100 * acts, "one of the rules has no matches: TOCSIN_SEED={seed}");
                stream.act().await;
                done += 1;
            }
            stream.check(&format!("TOCSIN_SEED={seed}, {shards} shards")).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn filters_and_audiences_take_effect_exactly_at_their_place() {
    streams(1, 150).await;
}

#[tokio::test(start_paused = true)]
async fn slow_filters_and_audiences_take_effect_exactly_at_their_place_in_many_streams() {
    streams(10, 400).await;
}

/// The feed retains a hundred changes, and ten times as many for followers: the index falls behind, and is rebuilt
/// from the records.
#[tokio::test(start_paused = true)]
async fn an_index_that_falls_behind_the_change_feed_is_rebuilt() {
    for shards in [1, 4] {
        let mut stream = Stream::new(7, shards, 100).await;
        for number in 0..8 {
            for _ in 0..3 {
                stream.put_subscriber().await;
                stream.subscribe().await;
            }
            stream.events().await;
            stream.seconds += 1;
            stream.script("report").await;
            // More than the feed keeps, at once.
            stream.change_filters(if number % 2 == 0 { 1_500 } else { 1 }).await;
            stream.update().await;
        }
        assert!(stream.expected.len() > 10);
        stream.check(&format!("{shards} shards")).await;
    }
}
