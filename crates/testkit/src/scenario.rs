//! Scripts and their transcripts.
//!
//! ```text
//! 08:00 subscriber alice email=alice@example.org [locale=de] [zone=Europe/Vienna] [@region=Vienna]
//! 08:00 alice prefers {"quiet_hours": ["22:00-07:00"]}
//! 08:00 segment local (region=Vienna)
//! 08:00 subscribe alice nearby {"magnitude": 5}
//! 08:00 subscribe alice nearby {"magnitude": 5} at DTSTART:20260301T080000|RRULE:FREQ=DAILY
//! 08:00 subscribe alice nearby {} if event.place == 'Kobe'
//! 08:00 reschedule alice DTSTART:20260301T090000|RRULE:FREQ=DAILY
//! 08:00 snooze alice 90                           (all subscriptions of alice, for 90 minutes)
//! 08:00 bob@example.org defers 90 | refuses | gone | unknown | expires | delivers | ponders 30 | rests 300 | waits | panics
//! 08:00 suppress smtp bob@example.org complaint    (or soft_bounce, five of which suppress; `lift` removes it)
//! 08:00 suppressions | endpoints                  (listed in the transcript)
//! 08:00 revive bob hook                           (the device is active again)
//! 08:10 email is down | email is up               (the whole channel)
//! 08:20 damage alice                              (the records of the subscriptions become unreadable)
//! 08:20 damage nb-1                               (this notification batch becomes unreadable)
//! 08:30 event quake {"magnitude": 6.1}            (several events on one line are one batch)
//! 08:31 crash                                     (the process crashes and restarts)
//! 08:31 down 90                                   (the process crashes, and restarts after 90 minutes)
//! 08:31 lose claims                               (all leases expire; the process runs on)
//! 08:31 commits fail 30                           (for 30 seconds; the process runs on)
//! 08:32 drain                                     (SIGTERM, and a new start)
//! 08:40 resume | end                              (all suspensions)
//! 08:40 edit 1 {"fields": {"magnitude": 7}}       (the suspension of this number)
//! 08:40 resend {"channel": "email"}               (refused and suspended notifications)
//! 08:40 suspensions                               (listed in the transcript)
//! 08:40 broadcast {"data": {}}                    (to all subscriptions; the audience is counted first)
//! 08:41 pause bc-1 | resume bc-1 | cancel bc-1 | show bc-1
//! 08:50 switch off channel:quakes/email paused | switch on channel:quakes/email
//! 08:50 stop RULE | let RULE                      (the rule does not fire; it fires again)
//! 08:50 firings | refire | dismiss                (missed firings: list, repeat, remove)
//! 09:00 disable alice | enable alice | unsubscribe alice
//! 09:00 delete alice                             (the subscriber, with its subscriptions)
//! 09:00 change alice {"magnitude": 6}            (the values of all subscriptions of alice)
//! 09:00 delayed | cancel delayed 3                (delayed notifications: list, cancel one)
//! 09:00 apply                                     (the second definition, if the scenario has one)
//! 10:00 attempts                                  (all attempts, listed in the transcript)
//! 10:00 report                                    (backlog and totals, as a line of the transcript)
//! ```

mod broadcasts; // acts on broadcasts
mod delayed; // acts on delayed notifications and on the life of subscriptions

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tocsin_connect::{Clock, networks::Networks, programs::Programs};
use tocsin_delivery::{Context, TokenSigner};
use tocsin_feedback::policy::Evidence;
use tocsin_model::{
    event::EventPacker,
    feedback::Class,
    filter::{Dialect, Filter},
    id::{Name, NotificationBatchId, NotificationId, SubscriberId},
    subscriber::{Device, DeviceState, Profile},
    subscription::SubscriptionParams,
    suppression::{Cause, Suppression, Target},
    value::Value,
};
use tocsin_pipeline::{Parts, Pipeline, PipelineOptions, Submission, compile_text, feedback::FeedbackReport};
use tocsin_store::{
    journal::{
        ActivityLog, FiringFilter, Idempotency, JournalOptions, NotificationLog, OpenWork, OperatorActions, Resolution,
        RuleStop, RuleStore, SuspensionFilter, Switch, SwitchState,
    },
    memory::{inbox::MemoryInbox, journal::MemoryJournal, records::MemoryRecords},
    records::{
        ApplicationStore, CHANGES_KEPT, NewApplicationVersion, NewSegment, NewSubscriber, NewSubscription,
        Precondition, PutDevice, RecipientStore, SegmentStore, SubscriberStore, SubscriptionChange, SubscriptionFilter,
        SubscriptionStore, SuppressionFilter, SuppressionStore, UpdateSubscription,
    },
};

use crate::{
    SimulatedClock,
    crashing_journal::{CrashPoint, CrashingJournal, Process},
    scripted_channels::{ScriptedAnswer, ScriptedChannels},
};

/// A platform in memory that runs scripts.
pub struct Scenario {
    definitions: Vec<String>,
    journal: Arc<MemoryJournal>,
    records: Arc<MemoryRecords>,
    inbox: Arc<MemoryInbox>,
    clock: SimulatedClock,
    scripted: Arc<Mutex<ScriptedChannels>>,
    pipeline: Option<Arc<Pipeline>>,
    options: PipelineOptions,
    process: Arc<Process>,
    /// Number of actions so far, used as idempotency keys of events.
    acts: u64,
}

/// Runs a script on a platform with this definition, and checks the transcript.
pub async fn check(definition: &str, script: &str, expected: expect_test::Expect) {
    let mut scenario = Scenario::new(&[definition]).await;
    expected.assert_eq(&scenario.run(script).await);
}

impl Scenario {
    /// A platform that runs the first of these definitions of one application; `apply` changes to the next.
    ///
    /// Must be called under tokio's paused clock.
    pub async fn new(definitions: &[&str]) -> Scenario {
        // Scripts simulate weeks, most of which would be spent on upkeep every minute.
        Self::with(definitions, PipelineOptions { upkeep_seconds: 900, ..PipelineOptions::default() }).await
    }

    /// Like `new`, with other options.
    pub async fn with(definitions: &[&str], options: PipelineOptions) -> Scenario {
        Self::with_feed(definitions, options, CHANGES_KEPT).await
    }

    /// Like `with`, with another number of changes kept in the change log.
    pub async fn with_feed(definitions: &[&str], options: PipelineOptions, changes_kept: u64) -> Scenario {
        let clock = SimulatedClock::midnight();
        let mut scenario = Scenario {
            definitions: definitions.iter().rev().map(|text| text.to_string()).collect(),
            journal: Arc::new(MemoryJournal::new(JournalOptions::default())),
            records: Arc::new(MemoryRecords::with_changes_kept(changes_kept).expect("records in memory")),
            inbox: Arc::default(),
            clock,
            scripted: Arc::new(Mutex::new(ScriptedChannels::new(clock))),
            pipeline: None,
            options,
            process: Arc::new(Process::default()),
            acts: 0,
        };
        scenario.start().await;
        scenario.apply().await;
        scenario
    }

    /// The feeds of the platform.
    pub fn inbox(&self) -> &Arc<MemoryInbox> {
        &self.inbox
    }

    /// The records of the platform.
    pub fn records(&self) -> &Arc<MemoryRecords> {
        &self.records
    }

    async fn start(&mut self) {
        let scripted = self.scripted.clone();
        let parts = Parts {
            journal: Arc::new(CrashingJournal::new(self.journal.clone(), self.process.clone())),
            records: self.records.clone(),
            inbox: self.inbox.clone(),
            environment: Arc::new(|_| None),
            context: Context {
                clock: Arc::new(self.clock),
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
            // Inbox channels are not scripted: their items go into the inbox of the platform.
            opener: Arc::new(move |name, channel, context| match channel.protocol.as_str() {
                "inbox" => tocsin_delivery::open(name, channel, context),
                _ => Ok(scripted.lock().channel(name.as_str())),
            }),
            options: self.options.clone(),
            seed: 7,
            spans: Default::default(),
        };
        self.pipeline = Some(Pipeline::start(parts).await.expect("the pipeline starts"));
    }

    /// The running pipeline.
    pub fn pipeline(&self) -> &Arc<Pipeline> {
        self.pipeline.as_ref().expect("it runs")
    }

    async fn apply(&mut self) {
        let text = self.definitions.pop().expect("a definition is left to apply");
        let name = compile_text(&text, 0, &|_| None).unwrap_or_else(|problems| panic!("{problems:?}")).application.name;
        let version = self
            .records
            .put_application(NewApplicationVersion { name: &name, text: &text, author: "test", now: self.clock.now() })
            .await
            .expect("it can be stored");
        let compiled = compile_text(&text, version, &|_| None).expect("it was compiled before");
        self.pipeline().run(Arc::new(compiled)).await.expect("it runs");
    }

    async fn application(&self) -> Name {
        self.records.applications().await.expect("records answer").remove(0).name
    }

    /// Runs a script, and then one more simulated week, so that all retries are made. Returns the transcript.
    pub async fn run(&mut self, script: &str) -> String {
        self.run_and_wait(script, Duration::from_secs(7 * 86_400)).await
    }

    /// Like `run`, with another time after the end of the script.
    pub async fn run_and_wait(&mut self, script: &str, after: Duration) -> String {
        for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let (time, rest) = line.split_once(' ').unwrap_or_else(|| panic!("`{line}` must be a time and an action"));
            self.sleep_until(self.clock.instant(seconds(time))).await;
            self.acts += 1;
            loop {
                let process = self.process.clone();
                tokio::select! {
                    () = self.act(rest) => break,
                    () = process.crashed() => {}
                }
                // The caller got no answer and repeats the action.
                self.crash().await;
            }
        }
        self.sleep_until(tokio::time::Instant::now() + after).await;
        let mut seen = self.scripted.lock().seen();
        // Channels work concurrently: lines of the same time are ordered by channel.
        for lines in seen.chunk_by_mut(|one, next| moment_and_channel(one).0 == moment_and_channel(next).0) {
            if lines.iter().all(|line| line.contains(" -> ")) {
                lines.sort_by(|one, next| moment_and_channel(one).1.cmp(moment_and_channel(next).1));
            }
        }
        seen.join("\n")
    }

    /// Sleeps. If the process crashes meanwhile, it is restarted.
    async fn sleep_until(&mut self, time: tokio::time::Instant) {
        loop {
            tokio::select! {
                () = tokio::time::sleep_until(time) => return,
                () = self.process.crashed() => {}
            }
            self.crash().await;
        }
    }

    /// Simulates one crash at the n-th write to the journal, before or after the write.
    pub fn crash_at(&self, write: u64, moment: CrashPoint) {
        self.process.crash_at(write, moment);
    }

    /// Whether the crash that `crash_at` planned has happened.
    pub fn has_crashed(&self) -> bool {
        self.process.has_crashed()
    }

    /// Number of commits of work to the journal.
    pub fn commits(&self) -> u64 {
        self.process.commits()
    }

    /// Number of different messages received; one message to several recipients counts once.
    pub fn messages(&self) -> usize {
        self.scripted.lock().messages()
    }

    /// The journal, to inspect its state.
    pub fn journal(&self) -> &Arc<MemoryJournal> {
        &self.journal
    }

    async fn act(&mut self, what: &str) {
        let words: Vec<&str> = what.split_whitespace().collect();
        match words[..] {
            ["subscriber", id, ref settings @ ..] => self.put_subscriber(id, settings).await,
            ["segment", name, filter] => self.put_segment(name, filter).await,
            ["subscribe", id, class, ..] => {
                let (what, filter) = and(what, " if ");
                let (values, schedule) = and(what, " at ");
                let values = values.splitn(4, ' ').nth(3).unwrap_or("{}");
                self.subscribe(id, class, values, schedule, filter).await;
            }
            ["reschedule", id, schedule] => self.reschedule(id, schedule).await,
            ["snooze", id, minutes] => self.snooze(id, duration(minutes) * 60).await,
            ["unsubscribe", id] => self.unsubscribe(id).await,
            ["delete", id] => self.delete(id).await,
            ["change", id, ..] => self.change_values(id, what.splitn(3, ' ').nth(2).unwrap_or("{}")).await,
            ["delayed"] => self.list_delayed().await,
            ["cancel", "delayed", id] => self.cancel_delayed(id).await,
            ["disable", id] => self.put_enabled(id, false).await,
            ["enable", id] => self.put_enabled(id, true).await,
            ["event", class, ..] => self.event(class, what.splitn(3, ' ').nth(2).unwrap_or("{}")).await,
            ["crash"] => self.crash().await,
            ["lose", "claims"] => self.journal.drop_claims(),
            ["commits", "fail", time] => self.process.fail(duration(time)),
            ["attempts"] => self.list_attempts().await,
            ["down", minutes] => self.down(duration(minutes) * 60).await,
            ["drain"] => {
                let drained = self.pipeline().drain(Duration::from_secs(30)).await;
                self.scripted.lock().note(format!("{} drained: {drained}", self.now()));
                self.start().await;
            }
            ["apply"] => self.apply().await,
            // A crash can come between the removal and the end of the work.
            ["remove", ref ending @ ..] => {
                let application = self.application().await;
                self.pipeline().stop(&application).await;
                self.records.remove_application(&application, self.clock.now()).await.expect("there is one");
                if *ending == ["application"] {
                    self.pipeline().end_removed(&application).await.expect("its work can be ended");
                }
            }
            ["stop", rule] => self.stop_rule(rule).await,
            ["let", rule] => {
                let application = self.application().await;
                let was = self.pipeline().resume_rule(&application, &name(rule)).await.expect("it can be let");
                self.scripted.lock().note(format!("{} {rule} was stopped: {was}", self.now()));
            }
            ["firings"] => self.list_firings().await,
            ["refire"] => self.refire().await,
            ["dismiss"] => {
                let touched = self.journal.dismiss_firings(&FiringFilter::default()).await.expect("they can be");
                self.scripted.lock().note(format!("{} dismissed {touched}", self.now()));
            }
            ["broadcast", ..] => self.broadcast(what.split_once(' ').map_or("{}", |(_, draft)| draft)).await,
            [change @ ("pause" | "resume" | "cancel"), id] => self.change_broadcast(change, id).await,
            ["show", id] => self.show_broadcast(id).await,
            ["resend", ..] => self.resend(what.split_once(' ').map_or("{}", |(_, request)| request)).await,
            ["resume"] => self.resolve(Resolution::Resume).await,
            ["end"] => self.resolve(Resolution::End).await,
            ["edit", id, ..] => {
                let edit = what.splitn(3, ' ').nth(2).map(Into::into);
                let id = id.parse().expect("the number of a suspension");
                let edited = self.journal.edit_suspension(id, None, edit).await.expect("it can be edited");
                self.scripted.lock().note(format!("{} edited {edited:?}", self.now()));
            }
            ["suspensions"] => {
                let found =
                    self.journal.suspensions(&SuspensionFilter::default(), 0, 100).await.expect("they are listed");
                for stored in found {
                    let (waits, now) = (stored.suspension, self.now());
                    self.scripted
                        .lock()
                        .note(format!("{now} suspended {:?} on {}: {}", waits.ordinals, waits.channel, waits.reason));
                }
            }
            ["switch", "off", component, state] => {
                let (component, since) = (component.parse().expect("something to switch"), self.clock.now());
                let state = if state == "paused" { SwitchState::Paused } else { SwitchState::Disabled };
                let switch = Switch { component, state, by: "ops".to_owned(), reason: "maintenance".to_owned(), since };
                self.pipeline().switch_off(switch).await.expect("it can be switched off");
            }
            ["switch", "on", component] => {
                let component = component.parse().expect("something to switch");
                self.pipeline().switch_on(&component).await.expect("it can be switched on");
            }
            ["report"] => self.report(),
            ["damage", what] => self.damage(what).await,
            [id, "prefers", ..] => self.put_preferences(id, what.splitn(3, ' ').nth(2).unwrap_or("{}")).await,
            [channel, "is", "down"] => self.scripted.lock().set_down(channel, true),
            [channel, "is", "up"] => self.scripted.lock().set_down(channel, false),
            [address, "panics"] => self.scripted.lock().set(address, ScriptedAnswer::Panics),
            [address, "waits"] => self.scripted.lock().set(address, ScriptedAnswer::Waits),
            [address, "delivers"] => self.scripted.lock().set(address, ScriptedAnswer::Delivers),
            ["suppress", protocol, address, cause] => self.suppress(protocol, address, cause).await,
            ["lift", protocol, address] => {
                let target = Target::address(&name(protocol), address);
                self.records.remove_suppression(&target).await.expect("there is one");
            }
            ["endpoints"] => self.list_endpoints().await,
            ["revive", id, device] => self.put_active(id, device).await,
            ["suppressions"] => self.list_suppressions().await,
            [address, "unknown"] => self.scripted.lock().set(address, ScriptedAnswer::Unknown),
            [address, "full"] => self.scripted.lock().set(address, ScriptedAnswer::Full),
            [address, "expires"] => self.scripted.lock().set(address, ScriptedAnswer::Expires),
            [address, "gone"] => self.scripted.lock().set(address, ScriptedAnswer::Gone),
            [address, "refuses"] => self.scripted.lock().set(address, ScriptedAnswer::Refuses),
            [address, "rests", wait] => self.scripted.lock().set(address, ScriptedAnswer::Rests(duration(wait))),
            [address, "defers"] => self.scripted.lock().set(address, ScriptedAnswer::Defers(None)),
            [address, "defers", wait] => {
                self.scripted.lock().set(address, ScriptedAnswer::Defers(Some(duration(wait))))
            }
            [address, "ponders", time] => {
                self.scripted.lock().set(address, ScriptedAnswer::DeliversAfter(duration(time)))
            }
            _ => panic!("`{what}` is not an act of a scenario"),
        }
    }

    fn now(&self) -> String {
        self.clock.time_of_day(self.clock.now())
    }

    async fn put_subscriber(&self, id: &str, settings: &[&str]) {
        let mut profile = Profile::default();
        let mut devices = Vec::new();
        for setting in settings {
            let (key, value) = setting.split_once('=').expect("a setting is key=value");
            match key {
                "locale" => profile.locale = Some(value.to_owned()),
                key if key.starts_with('@') => {
                    profile.attributes.insert(key[1..].to_owned(), Value::from(value));
                }
                "zone" => profile.time_zone = Some(value.to_owned()),
                channel => {
                    let device =
                        Device { channel: name(channel), address: value.to_owned(), state: DeviceState::Active };
                    devices.push((name(channel), device));
                }
            }
        }
        let new = NewSubscriber {
            kept: Default::default(),
            id: subscriber(id),
            profile,
            devices: Some(devices),
            preferences: None,
        };
        self.records.put_subscriber(new, Precondition::Any, self.clock.now()).await.expect("it can be stored");
    }

    async fn put_preferences(&self, id: &str, preferences: &str) {
        let found = self.records.subscriber(&subscriber(id)).await.expect("records answer").expect("a subscriber");
        let preferences = Some(serde_json::from_str(preferences).expect("preferences"));
        let new = NewSubscriber {
            kept: Default::default(),
            id: found.id,
            profile: found.profile,
            devices: None,
            preferences,
        };
        self.records.put_subscriber(new, Precondition::Any, self.clock.now()).await.expect("it can be stored");
    }

    async fn put_segment(&self, segment: &str, filter: &str) {
        let new = NewSegment { name: name(segment), description: None, filter: filter.into() };
        self.records.put_segment(new, Precondition::Any, self.clock.now()).await.expect("it can be stored");
    }

    async fn put_enabled(&self, id: &str, enabled: bool) {
        let found = self.records.subscriber(&subscriber(id)).await.expect("records answer").expect("a subscriber");
        let new = NewSubscriber {
            kept: Default::default(),
            id: found.id,
            profile: Profile { enabled, ..found.profile },
            devices: None,
            preferences: None,
        };
        self.records.put_subscriber(new, Precondition::Any, self.clock.now()).await.expect("it can be stored");
    }

    async fn subscribe(&self, id: &str, class: &str, values: &str, schedule: Option<&str>, filter: Option<&str>) {
        let application = self.application().await;
        let compiled = self.pipeline().application(&application).expect("it runs");
        let fields = &compiled.application.subscriptions[class].fields;
        let row = fields.row_from_json(values.as_bytes()).unwrap_or_else(|problems| panic!("{problems:?}"));
        let new = NewSubscription {
            application,
            class: name(class),
            subscriber: subscriber(id),
            key: None,
            device: None,
            enabled: Some(true),
            values: fields.to_json(&row).into(),
            terms: SubscriptionParams {
                schedule: schedule.map(lines),
                // `dialect:text`, or CEL.
                filter: filter.map(|text| text.parse().unwrap_or_else(|_| Filter::new(Dialect::Cel, text))),
                ..SubscriptionParams::default()
            },
        };
        self.records.put_subscription(new, self.clock.now()).await.expect("it can be stored");
    }

    /// Changes the schedule of all subscriptions of a subscriber.
    async fn reschedule(&self, id: &str, schedule: &str) {
        self.change_terms(id, |terms| SubscriptionParams { schedule: Some(lines(schedule)), ..terms }).await;
    }

    /// Snoozes all subscriptions of a subscriber.
    async fn snooze(&self, id: &str, time: Duration) {
        let until = self.clock.now() + time;
        self.change_terms(id, |terms| SubscriptionParams { snoozed_until: Some(until), ..terms }).await;
    }

    async fn change_terms(&self, id: &str, changed: impl Fn(SubscriptionParams) -> SubscriptionParams) {
        let filter = SubscriptionFilter { subscriber: Some(subscriber(id)), ..SubscriptionFilter::default() };
        for found in self.records.subscriptions(&filter, None, 1000).await.expect("records answer") {
            let (enabled, terms) = (found.enabled, changed(found.terms));
            let change =
                SubscriptionChange { device: found.device, enabled: Some(enabled), values: found.values, terms };
            let changed = self
                .records
                .update_subscription(UpdateSubscription {
                    id: found.id,
                    change,
                    expect: Precondition::Any,
                    now: self.clock.now(),
                })
                .await;
            changed.expect("it can be changed");
        }
    }

    async fn damage(&self, what: &str) {
        if let Ok(batch) = what.parse() {
            return self.journal.damage(batch);
        }
        let filter = SubscriptionFilter { subscriber: Some(subscriber(what)), ..SubscriptionFilter::default() };
        for found in self.records.subscriptions(&filter, None, 1000).await.expect("records answer") {
            self.records.damage(found.id);
        }
    }

    async fn unsubscribe(&self, id: &str) {
        let filter = SubscriptionFilter { subscriber: Some(subscriber(id)), ..SubscriptionFilter::default() };
        for found in self.records.subscriptions(&filter, None, 1000).await.expect("records answer") {
            self.records
                .remove_subscription(found.id, Precondition::Any, self.clock.now())
                .await
                .expect("it can be removed");
        }
    }

    async fn event(&self, class: &str, events: &str) {
        let application = self.application().await;
        let compiled = self.pipeline().application(&application).expect("it runs");
        let fields = &compiled.application.events[class].fields;
        let mut packer = EventPacker::new(fields.clone());
        for event in
            serde_json::Deserializer::from_str(events).into_iter::<serde_json::Map<String, serde_json::Value>>()
        {
            let event = event.expect("events are JSON objects").into_iter();
            let row = fields.row(event.map(|(name, value)| (name, Value::from(value))));
            packer.push(&row.unwrap_or_else(|problems| panic!("{problems:?}")));
        }
        let submission = Submission {
            application,
            version: compiled.version,
            class: name(class),
            source: tocsin_model::application::api_source(),
            received_at: self.clock.now(),
            events: packer.finish(),
            idempotency: Some(Idempotency {
                key: u128::from(self.acts).to_be_bytes(),
                content: [0; 16],
                until: self.clock.now() + Duration::from_secs(86_400),
            }),
            marks: Vec::new(),
        };
        self.pipeline().accept(submission).await.expect("it is accepted");
    }

    /// Simulates a crash: all tasks stop, all claims become invalid, and answers of channels are lost.
    async fn crash(&mut self) {
        self.down(Duration::ZERO).await;
    }

    /// Simulates a crash with a restart after this time.
    async fn down(&mut self, outage: Duration) {
        // If the process crashed during its start, there is no pipeline yet.
        if let Some(pipeline) = self.pipeline.take() {
            pipeline.abort().await;
        }
        self.journal.drop_claims();
        self.process.restart();
        self.scripted.lock().note(format!("{} crash", self.now()));
        tokio::time::sleep(outage).await;
        self.start().await;
    }

    async fn resolve(&self, resolution: Resolution) {
        let now = self.clock.now();
        let touched =
            self.journal.resolve(&SuspensionFilter::default(), resolution, now).await.expect("it can be resolved");
        self.scripted.lock().note(format!("{} {resolution:?} {touched}", self.now()));
    }

    async fn suppress(&self, protocol: &str, address: &str, cause: &str) {
        let (target, now) = (Target::address(&name(protocol), address), self.clock.now());
        let class = match cause.parse().expect("a cause") {
            Cause::Manual => {
                let suppression = Suppression {
                    target,
                    address: None,
                    cause: Cause::Manual,
                    in_force: true,
                    origin: "test".to_owned(),
                    detail: String::new(),
                    notification: None,
                    bounces: Vec::new(),
                    since: now,
                    updated_at: now,
                    expires_at: None,
                };
                return self.records.put_suppressions(vec![suppression]).await.expect("it can be stored");
            }
            Cause::SoftBounce => Class::Soft,
            Cause::HardBounce => Class::Hard,
            Cause::Unsubscribed => Class::Unsubscribe,
            Cause::Complaint => Class::Complaint,
        };
        let report = FeedbackReport {
            evidence: Evidence::of_caller(class, now.to_string()),
            target,
            address: None,
            device: None,
            notification: None,
            origin: "test".to_owned(),
            detail: String::new(),
            status: None,
        };
        let pipeline = self.pipeline.as_ref().expect("it runs");
        pipeline.apply_feedback(&[report]).await.expect("it can be reported");
    }

    async fn list_endpoints(&self) {
        for found in self.records.failing_endpoints(None, 100).await.expect("records answer") {
            let (warned, disabled) = (found.warned_at.is_some(), found.disabled_at.is_some());
            let since = self.clock.time_of_day(found.since);
            let line = format!(
                "{} {} fails since {since}, warned {warned}, disabled {disabled}",
                self.now(),
                found.key.address
            );
            self.scripted.lock().note(line);
        }
    }

    /// Lists the attempts of all notifications, by notification and number.
    async fn list_attempts(&self) {
        for (batch, _, _) in self.journal.notification_batches(None, 1_000).await.expect("they are listed") {
            let mut attempts = self.journal.attempts(batch).await.expect("they are listed");
            attempts.sort_by_key(|attempt| (attempt.ordinal, attempt.number, attempt.answered_at));
            for attempt in attempts {
                let id = NotificationId { batch, ordinal: attempt.ordinal };
                let (at, outcome) = (self.clock.time_of_day(attempt.answered_at), attempt.outcome.word());
                let line = format!("{} {id} attempt {} {at} {outcome}: {}", self.now(), attempt.number, attempt.reply);
                self.scripted.lock().note(line);
            }
        }
    }

    async fn put_active(&self, id: &str, device: &str) {
        let found = self.records.subscriber(&subscriber(id)).await.expect("records answer").expect("a subscriber");
        let changed = Device { state: DeviceState::Active, ..found.devices[&name(device)].clone() };
        let stored = self
            .records
            .put_device(PutDevice {
                id: &found.id,
                name: &name(device),
                device: changed,
                keeps_state: false,
                now: self.clock.now(),
            })
            .await;
        stored.expect("it can be stored");
    }

    async fn list_suppressions(&self) {
        let filter = SuppressionFilter::all(self.clock.now());
        for found in self.records.suppressions(&filter, None, 100).await.expect("records answer") {
            let (now, cause, detail) = (self.now(), found.cause.word(), found.detail);
            let line = format!("{now} {} {cause} in force {} {detail}", found.target, found.in_force);
            self.scripted.lock().note(line.trim_end().to_owned());
        }
    }

    /// Resends failed notifications, and notes their number.
    async fn resend(&self, request: &str) {
        let mut whole = serde_json::json!({"outcomes": ["refused", "suspended"], "as_new": false});
        let given: serde_json::Value = serde_json::from_str(request).expect("a request is JSON");
        whole.as_object_mut().expect("an object").extend(given.as_object().expect("an object").clone());
        let request = serde_json::from_value(whole).expect("a request");
        let count = self.pipeline().count_resend(&request, NotificationBatchId(0), 1_000).await.expect("counted");
        let (resend, is_new) =
            self.pipeline().resend(&request, self.acts.to_string(), "op".to_owned()).await.expect("asked");
        if is_new {
            self.scripted.lock().note(format!(
                "{} request {} sends {} again",
                self.now(),
                resend.id,
                count.notifications
            ));
        }
    }

    async fn stop_rule(&self, rule: &str) {
        let stop = RuleStop {
            application: self.application().await,
            rule: name(rule),
            by: "op".to_owned(),
            reason: "maintenance".to_owned(),
            since: self.clock.now(),
        };
        self.pipeline().stop_rule(stop).await.expect("it can be stopped");
    }

    async fn list_firings(&self) {
        for firing in self.journal.firings(&FiringFilter::default(), 0, 100).await.expect("they can be listed") {
            self.scripted.lock().note(format!(
                "{} {} {} {}..{} ({}): {}",
                self.now(),
                firing.rule,
                firing.status.name(),
                firing.first,
                firing.last,
                firing.batches,
                firing.reason
            ));
        }
        for stop in self.pipeline().stopped_rules() {
            self.scripted.lock().note(format!("{} {} stopped by {}: {}", self.now(), stop.rule, stop.by, stop.reason));
        }
    }

    async fn refire(&self) {
        for firing in self.journal.firings(&FiringFilter::default(), 0, 100).await.expect("they can be listed") {
            let (rule, fired) = (firing.rule.clone(), self.pipeline().refire(firing).await);
            let outcome =
                fired.map_or_else(|error| error.to_string(), |batches| format!("fired for {batches} batches"));
            self.scripted.lock().note(format!("{} {rule} {outcome}", self.now()));
        }
    }

    fn report(&self) {
        let (backlog, totals) = (self.journal.backlog(), self.journal.totals());
        self.scripted.lock().note(format!(
            "{} events {} notifications {} open {} suspended {}",
            self.now(),
            totals.events,
            totals.notifications,
            backlog.notifications,
            backlog.suspended
        ));
    }
}

/// The text before and after a word.
fn and<'a>(text: &'a str, word: &str) -> (&'a str, Option<&'a str>) {
    text.split_once(word).map_or((text, None), |(before, behind)| (before, Some(behind)))
}

/// The time of day of a line, with its day, and the next word.
fn moment_and_channel(line: &str) -> (&str, &str) {
    let day = if line.starts_with('+') { line.find(' ').map_or(0, |at| at + 1) } else { 0 };
    let end = line[day..].find(' ').map_or(line.len(), |at| day + at);
    (&line[..end], line[end..].split_whitespace().next().unwrap_or_default())
}

fn name(text: &str) -> Name {
    text.parse().expect("a name")
}

fn subscriber(text: &str) -> SubscriberId {
    text.parse().expect("a subscriber id")
}

/// Lines that are written as one, separated by `|`.
fn lines(schedule: &str) -> Box<str> {
    schedule.replace('|', "\n").into()
}

fn duration(seconds: &str) -> Duration {
    Duration::from_secs(seconds.parse().expect("seconds"))
}

/// Seconds after the first midnight of `HH:MM` or `HH:MM:SS`, optionally with days as `+DdHH:MM`.
fn seconds(time: &str) -> u64 {
    let (days, time) = match time.strip_prefix('+').and_then(|rest| rest.split_once('d')) {
        Some((days, time)) => (days.parse().expect("days"), time),
        None => (0, time),
    };
    let parts: Vec<u64> = time.split(':').map(|part| part.parse().expect("a time of day")).collect();
    days * 86_400 + parts.iter().chain(&[0, 0]).take(3).fold(0, |total, part| total * 60 + part)
}
