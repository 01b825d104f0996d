//! State that all steps share: the stores, the clock, and what one step leaves in memory for another.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use tocsin_connect::Clock;
use tocsin_delivery::{Context, OpenChannel};
use tocsin_model::{
    application::Channel,
    id::{ChangeSequence, Name},
    problem::Problem,
    time::Timestamp,
};
use tocsin_store::{
    inbox::Inbox,
    journal::{
        Broadcasts, Checkpoints, Delays, Erasures, EventLog, Maintenance, NotificationLog, OperatorActions, RuleStop,
        RuleStore, Schedules, WorkQueue,
    },
    records::{
        ApplicationStore, ChangeLog, ConsentStore, FeedbackStore, Installation, LifecycleStore, MatchStore,
        RecipientStore, ScheduleStore, SubscriberStore, SubscriptionStore, SuppressionStore,
    },
};
use tokio::sync::{Notify, watch};

use crate::{
    broadcasts::{BroadcastVersions, Signals},
    class_counters::ClassCounters,
    compile::Compiled,
    endpoints::Endpoints,
    feedback::FeedbackApplier,
    latency::Latencies,
    match_events::{IndexStatus, Permits},
    options::PipelineOptions,
    rule_breaker::Stops,
    slow_firings::SlowFirings,
    snapshot_tracker::SnapshotTracker,
    spans::StepSpans,
    suppress::Suppressions,
    suspects::Suspects,
    switches::Switches,
    versions::Versions,
};

/// Opens a channel by its name and definition.
pub type Opener = Arc<dyn Fn(&Name, &Channel, &Context) -> Result<Box<dyn OpenChannel>, Vec<Problem>> + Send + Sync>;

/// A running application, as the steps before its channels see it.
pub(crate) trait RunningApplication: Send + Sync {
    /// The running version.
    fn compiled(&self) -> Arc<Compiled>;

    /// Ensures that a channel has a worker.
    fn serve(&self, channel: Name);
}

/// State shared by all steps, with the facets of the journal and the records: a step uses those it needs.
pub(crate) struct Flow {
    /// Recalls of formatted messages.
    pub recalls: Arc<tocsin_delivery::Recalls>,
    pub event_log: Arc<dyn EventLog>,
    pub work_queue: Arc<dyn WorkQueue>,
    pub notification_log: Arc<dyn NotificationLog>,
    pub rule_store: Arc<dyn RuleStore>,
    pub schedules: Arc<dyn Schedules>,
    pub delays: Arc<dyn Delays>,
    pub checkpoints: Arc<dyn Checkpoints>,
    pub operator_actions: Arc<dyn OperatorActions>,
    pub broadcast_store: Arc<dyn Broadcasts>,
    pub maintenance: Arc<dyn Maintenance>,
    pub erasures: Arc<dyn Erasures>,
    pub installation: Arc<dyn Installation>,
    pub application_store: Arc<dyn ApplicationStore>,
    pub subscriber_store: Arc<dyn SubscriberStore>,
    pub subscription_store: Arc<dyn SubscriptionStore>,
    pub suppression_store: Arc<dyn SuppressionStore>,
    pub consent_store: Arc<dyn ConsentStore>,
    pub feedback_store: Arc<dyn FeedbackStore>,
    pub recipient_store: Arc<dyn RecipientStore>,
    pub lifecycle: Arc<dyn LifecycleStore>,
    pub change_log: Arc<dyn ChangeLog>,
    pub match_store: Arc<dyn MatchStore>,
    pub schedule_store: Arc<dyn ScheduleStore>,
    pub inbox: Arc<dyn Inbox>,
    pub clock: Arc<dyn Clock>,
    pub options: PipelineOptions,
    pub latencies: Latencies,
    pub versions: Versions,
    pub context: Context,
    pub opener: Opener,
    pub snapshots: SnapshotTracker,
    /// Status of each application's index, as its matcher last published it.
    pub indexes: Mutex<BTreeMap<Name, IndexStatus>>,
    /// Throttled applications, with the time until which their events wait.
    pub throttled: Mutex<BTreeMap<Name, Throttled>>,
    /// Change sequences of the indexes of throttled applications at the time the throttle began.
    pub pins: Mutex<BTreeMap<Name, ChangeSequence>>,
    /// Limits how many applications are matched at the same time.
    pub permits: Permits,
    pub suspects: Arc<Suspects>,
    /// Stopped rules.
    pub stops: Mutex<Stops>,
    pub jitter: Mutex<fastrand::Rng>,
    pub suppressions: Suppressions,
    pub feedback: FeedbackApplier,
    pub endpoints: Endpoints,
    pub switches: Switches,
    pub slow_firings: SlowFirings,
    /// Wakes the task of delayed rules: some began, or a rule was resumed.
    pub delays_started: Notify,
    /// Wakes the task of lifecycle events: a component was switched on.
    pub lifecycle_switched: Notify,
    /// Wakes the resend task.
    pub resends: Notify,
    pub broadcasts: Signals,
    pub broadcast_versions: BroadcastVersions,
    /// Wakes the task that starts broadcasts.
    pub broadcasts_changed: Notify,
    /// Count of the commits that may have advanced a broadcast: a part is matched, receipts are recorded, or its state
    /// is changed.
    pub broadcasts_advanced: watch::Sender<u64>,
    /// Serializes changes of the state of broadcasts.
    pub changing_broadcasts: tokio::sync::Mutex<()>,
    pub classes: ClassCounters,
    pub spans: StepSpans,
    /// Running applications. A work item may name a channel that no definition has.
    pub running: Mutex<BTreeMap<Name, Weak<dyn RunningApplication>>>,
}

/// Approximate time until which a throttle holds events.
#[derive(Debug, Clone, Default)]
pub(crate) struct Throttled {
    /// All events of the application.
    pub all: Option<Timestamp>,
    /// Events of a class.
    pub classes: BTreeMap<Name, Timestamp>,
}

impl Flow {
    /// Ensures that stored work has a worker, by application and channel. A device may name a channel that the
    /// application lacks: the worker then suspends its notifications.
    pub fn serve(&self, channels: BTreeSet<(Name, Name)>) {
        for (application, channel) in channels {
            let running = self.running.lock().get(&application).and_then(Weak::upgrade);
            if let Some(running) = running {
                running.serve(channel);
            }
        }
    }

    /// Returns a random number from 0 to 1, for back-off with jitter.
    pub fn jitter(&self) -> f64 {
        self.jitter.lock().f64()
    }

    /// Wakes callers that wait for the end of a broadcast.
    pub fn broadcast_advanced(&self) {
        self.broadcasts_advanced.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Stops a rule from the next quantum on. The caller has already stored the stop in the journal.
    pub fn stop(&self, stop: RuleStop) {
        tracing::warn!(application = %stop.application, rule = %stop.rule, by = stop.by, reason = stop.reason, "a rule is stopped");
        let mut stops = self.stops.lock();
        stops.entry((stop.application.clone(), stop.rule.clone())).or_insert(stop);
        metrics::gauge!("tocsin_match_stopped_rules").set(stops.len() as f64);
    }

    /// Records the status of an index, or its removal. Asks the records to retain the changes that indexes have not
    /// applied yet, and those that throttled events need.
    pub fn publish(&self, application: &Name, status: Option<IndexStatus>) {
        let mut indexes = self.indexes.lock();
        match status {
            Some(status) => drop(indexes.insert(application.clone(), status)),
            None => drop(indexes.remove(application)),
        }
        metrics::gauge!("tocsin_match_chronicle_keys")
            .set(indexes.values().map(|status| status.chronicle_keys).sum::<usize>() as f64);
        let pins = self.pins.lock();
        let needed = indexes.values().map(|status| status.place).chain(pins.values().copied()).min();
        // Under the lock, so that an older value never replaces a newer one.
        self.change_log.keep_changes_after(needed.unwrap_or(ChangeSequence(u64::MAX)));
    }

    /// Asks the records to retain the changes that throttled events of the application may need.
    pub fn pin(&self, application: &Name) {
        let Some(place) = self.indexes.lock().get(application).map(|status| status.place) else { return };
        self.pins.lock().entry(application.clone()).or_insert(place);
    }

    /// The events of the application are throttled no more.
    pub fn unpin(&self, application: &Name) {
        self.pins.lock().remove(application);
    }
}
