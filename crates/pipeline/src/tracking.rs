//! Tests of work items in flight: their permits and leases, and what happens to results at the end of an item.

use std::{sync::Arc, time::Duration};

use futures_util::FutureExt;
use tocsin_delivery::Answer;
use tocsin_model::{
    application::{DeliveryLog, FailureLog, RetrySchedule},
    id::{NotificationBatchId, NotificationId, SubscriptionId, WorkItemId},
    receipt::{Disposition, Outcome, Reason, ReasonKind},
    subscriber::DeviceState,
    time::Timestamp,
};
use tocsin_store::{
    journal::{Claim, WorkItem, WorkState},
    records::SubscriberStore,
};
use tokio::sync::{Semaphore, mpsc};

use crate::{
    channel_alerts::ChannelAlerts,
    decide::Unsent,
    delivery_tracker::{DeliveryTracker, ItemDetails},
    disable_devices::Disabler,
    in_flight::InFlight,
    panics::Platform,
    record_receipts::Recorder,
    suspects::Work,
};

/// An item whose dispatch has begun, with permits for three of its notifications.
struct BegunItem {
    platform: Platform,
    in_flight: Arc<InFlight>,
    tracker: Arc<DeliveryTracker>,
    limit: Arc<Semaphore>,
}

impl BegunItem {
    async fn new(application: &str) -> BegunItem {
        let platform = Platform::start(application).await;
        let flow = platform.pipeline.flow.clone();
        let active = platform.pipeline.running.lock()[&platform.name].active.clone();
        let retry = RetrySchedule { delays: Vec::new(), jitter_percent: 0 };
        let channel = "log".parse().expect("a name");
        let in_flight = InFlight::new(flow, active, channel, retry, DeliveryLog::default());
        let id = WorkItemId(1);
        let item = WorkItem {
            claim: Claim { id, token: 1 },
            batch: NotificationBatchId(1),
            ordinals: None,
            attempts: 0,
            due_at: Timestamp(0),
            work_state: WorkState::default(),
        };
        let flow = &in_flight.flow;
        let tracker = in_flight.begin(item, flow.suspects.enter(Work::Item(id), None)).expect("it is not closed");
        let limit = Arc::new(Semaphore::new(3));
        let permit = limit.clone().try_acquire_many_owned(3).expect("they are free");
        let subscriptions = vec![SubscriptionId(1)];
        let details = ItemDetails { subscriptions, ..ItemDetails::unknown(flow.classes.other()) };
        tracker.begin_dispatch(details, Some(permit));
        BegunItem { platform, in_flight, tracker, limit }
    }

    fn expire(&self, ordinal: u32) {
        let unsent = Unsent::closed(Outcome::Expired, ReasonKind::Expired, "too late");
        self.tracker.unsent(ordinal, Timestamp(0), unsent);
    }

    /// Does what the recorder does when it is awake, if it is.
    fn wake_recorder(&self) -> bool {
        let is_awake = self.in_flight.changed().now_or_never().is_some();
        if is_awake {
            self.tracker.release_permits();
        }
        is_awake
    }
}

/// The recorder frees the permits of a queued item, far from a whole chunk and before the delay of the commit.
#[tokio::test(start_paused = true)]
async fn permits_of_decisions_are_released_before_the_commit() {
    let begun = BegunItem::new("permits").await;
    begun.expire(0);
    assert!(begun.wake_recorder());
    assert_eq!(begun.limit.available_permits(), 1);
    begun.tracker.snooze(1, Timestamp(5_000_000));
    assert!(begun.wake_recorder(), "a later decision wakes the recorder too");
    assert_eq!(begun.limit.available_permits(), 2);
    assert!(!begun.wake_recorder(), "nothing has happened since");
    begun.tracker.finish_dispatch(2, vec![2], Timestamp(5_000_000));
    assert!(begun.wake_recorder(), "the rest is not dispatched");
    assert_eq!(begun.limit.available_permits(), 3);
}

#[tokio::test(start_paused = true)]
async fn permits_of_drained_results_are_released() {
    let begun = BegunItem::new("drains").await;
    begun.expire(0);
    assert!(begun.wake_recorder());
    // The recorder has released permits, and has not drained the item yet.
    begun.expire(1);
    assert!(begun.tracker.drain().is_some());
    assert_eq!(begun.limit.available_permits(), 2);
}

/// The worker panics during a commit, after one more result.
#[tokio::test(start_paused = true)]
async fn results_that_come_during_a_commit_are_recorded_after_a_release() {
    let begun = BegunItem::new("commits").await;
    begun.expire(0);
    let first = begun.tracker.drain().expect("a result");
    begun.expire(1);
    begun.tracker.release();
    assert_eq!(begun.limit.available_permits(), 3, "nothing more is sent");
    begun.tracker.recorded(&first);
    let second = begun.tracker.drain().expect("one more result");
    assert_eq!(second.results.attempts.iter().map(|attempt| attempt.ordinal).collect::<Vec<_>>(), [1]);
    begun.tracker.recorded(&second);
    assert!(begun.in_flight.is_empty(), "it is closed");
}

/// Otherwise another worker claims the item, and sends again what a commit that is retried says was sent.
#[tokio::test(start_paused = true)]
async fn the_lease_of_a_released_item_is_extended_until_the_commit() {
    let begun = BegunItem::new("leases").await;
    begun.expire(0);
    let drained = begun.tracker.drain().expect("a result");
    begun.tracker.release();
    assert!(begun.tracker.is_open());
    assert_eq!(begun.in_flight.items().len(), 1);
    begun.tracker.recorded(&drained);
    assert!(!begun.tracker.is_open());
    assert!(begun.in_flight.is_empty());
}

/// After the end of the recorder no item is begun, and later results hold nothing.
#[tokio::test(start_paused = true)]
async fn nothing_is_begun_without_a_recorder() {
    let begun = BegunItem::new("closes").await;
    begun.in_flight.close();
    begun.expire(0);
    assert!(begun.in_flight.take_changed().is_empty());
    let guard = begun.in_flight.flow.suspects.enter(Work::Item(WorkItemId(2)), None);
    assert!(begun.in_flight.begin(begun.tracker.item().clone(), guard).is_none());
}

/// The worker that owns the item now sends the message again, and gets an answer of its own.
#[tokio::test(start_paused = true)]
async fn an_answer_to_a_lost_digest_disables_no_device() {
    for is_lost in [false, true] {
        let begun = BegunItem::new("loses").await;
        let BegunItem { platform, in_flight, tracker, .. } = &begun;
        let ticket = in_flight.join(vec![(tracker.clone(), 0)]);
        tracker.finish_dispatch(1, Vec::new(), Timestamp(0));
        if is_lost {
            tracker.lose();
        }
        let (answers, answers_in) = mpsc::channel(1);
        let recorder = Recorder {
            in_flight: in_flight.clone(),
            lease: Duration::from_secs(60),
            answers: answers_in,
            disabler: Disabler::new(in_flight.active.clone()),
            alerts: ChannelAlerts::new(FailureLog::default()),
        };
        let answer = Answer {
            ticket,
            id: NotificationId { batch: NotificationBatchId(1), ordinal: 0 },
            formatted_at: Timestamp(0),
            sent_at: Timestamp(0),
            answered_at: Timestamp(0),
            disposition: Disposition::Refused { reason: Reason::new(ReasonKind::Gone, "gone for good") },
            channel: in_flight.channel.clone(),
            address: "ann".to_owned(),
            place: None,
            others: Vec::new(),
        };
        answers.send(answer).await.expect("there is room");
        drop(answers);
        recorder.run().await;
        let ann = "ann".parse().expect("an id");
        let ann = platform.records.subscriber(&ann).await.expect("records answer").expect("she is there");
        let expected = if is_lost { DeviceState::Active } else { DeviceState::Bounced };
        assert_eq!(ann.devices[&in_flight.channel].state, expected, "lost: {is_lost}");
    }
}
