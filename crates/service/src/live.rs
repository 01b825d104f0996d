//! Live summaries of the platform by topic, for streams of the console.
//!
//! One task collects the summaries for all followers; it runs while there are any. It compares counters in memory after
//! wake-ups of the journal, and reads the store only for topics whose counters have changed. A message is the present
//! state of a topic, so a slow follower loses nothing but intermediate states.

mod topics; // topics and the scopes they require
mod collector; // counters of the last collection
pub(crate) mod hub; // messages of all topics
mod collect; // summaries of the topics

use std::{sync::Arc, time::Duration};

use serde_json::Value as Json;
use tocsin_model::{
    id::Name,
    problem::{Code, Problem},
};
use tokio::{
    sync::{OwnedSemaphorePermit, watch},
    time::Instant,
};

pub use self::{
    hub::{STREAMS_MAX, SyncSummary},
    topics::Topic,
};
use crate::{Service, error::ServiceError, keys::Caller};

/// Shortest time between two messages of a topic.
const PACE: Duration = Duration::from_secs(1);
/// Time after which counters without a wake-up are compared.
const QUIET: Duration = Duration::from_secs(5);

/// An event for a follower.
#[derive(Debug, Clone, PartialEq)]
pub enum LiveEvent {
    /// Messages may be missing: the lists should be read again.
    Reset {
        /// Id of the event.
        id: String,
    },
    /// The state of a topic.
    State {
        /// Id of the event.
        id: String,
        /// The topic.
        topic: Topic,
        /// Summary of its state.
        data: Json,
    },
}

/// Follows some topics.
pub struct LiveFollower {
    service: Arc<Service>,
    topics: Vec<Topic>,
    application: Option<Name>,
    newest: watch::Receiver<u64>,
    /// Number of the newest event that was returned.
    seen: u64,
    is_reset: bool,
    sent_at: Option<Instant>,
    _seat: OwnedSemaphorePermit,
}

impl LiveFollower {
    /// Waits for the next events: at once the present states, then at most one a second and topic.
    pub async fn next(&mut self) -> Vec<LiveEvent> {
        if std::mem::take(&mut self.is_reset) {
            return vec![LiveEvent::Reset { id: self.id(0) }];
        }
        loop {
            if let Some(sent_at) = self.sent_at {
                tokio::time::sleep_until(sent_at + PACE).await;
            }
            self.newest.borrow_and_update();
            let newer = self.service.live.after(self.seen, &self.topics, self.application.as_ref());
            if let Some((number, ..)) = newer.last() {
                self.seen = *number;
                self.sent_at = Some(Instant::now());
                let event = |(number, topic, data)| LiveEvent::State { id: self.id(number), topic, data };
                return newer.into_iter().map(event).collect();
            }
            // The sender lives as long as the service.
            let _ = self.newest.changed().await;
        }
    }

    fn id(&self, number: u64) -> String {
        format!("{}-{number}", self.service.live.start)
    }
}

impl Drop for LiveFollower {
    fn drop(&mut self) {
        let mut state = self.service.live.state.lock();
        self.topics.iter().for_each(|topic| state.followers[*topic as usize] -= 1);
        if state.followers.iter().all(|followers| *followers == 0) {
            self.service.live.last_left.notify_one();
        }
    }
}

impl Service {
    /// Sets the function that returns the summary of sync.
    pub fn summarise_sync(&self, summary: SyncSummary) {
        let _ = self.live.sync.set(summary);
    }

    /// Follows topics, by default all that the caller may read. `after` is the id of the last event that the follower
    /// has received.
    ///
    /// # Errors
    /// A topic is unknown, or its scope is missing; a limited key gives no application, or follows a topic of the whole
    /// installation; `TooMany` streams are open.
    pub fn follow_live(
        self: &Arc<Self>,
        caller: &Caller,
        topics: Option<&str>,
        application: Option<Name>,
        after: Option<&str>,
    ) -> Result<LiveFollower, ServiceError> {
        caller.check_application(application.as_ref())?;
        let topics = allowed_topics(caller, topics)?;
        let seat = self.live.streams.clone().try_acquire_owned().map_err(|_| ServiceError::TooMany {
            reason: format!("{STREAMS_MAX} live streams are open"),
            retry_after: Duration::from_secs(30),
        })?;
        let mut state = self.live.state.lock();
        topics.iter().for_each(|topic| state.followers[*topic as usize] += 1);
        let known = after.map(|id| {
            let (start, number) = id.rsplit_once('-').unwrap_or_default();
            let number = number.parse().ok().filter(|number| start == self.live.start && *number <= state.number);
            number.ok_or(())
        });
        if !state.collecting {
            state.collecting = true;
            tokio::spawn(self.clone().collect_live());
        }
        drop(state);
        self.live.follower_joined.notify_one();
        Ok(LiveFollower {
            newest: self.live.newest.subscribe(),
            seen: known.and_then(Result::ok).unwrap_or(0),
            is_reset: known.is_some_and(|known| known.is_err()),
            service: self.clone(),
            topics,
            application,
            sent_at: None,
            _seat: seat,
        })
    }

    /// Collects summaries while a topic is followed.
    async fn collect_live(self: Arc<Self>) {
        let mut arrivals = self.open_work.arrivals();
        let mut collector = self.live.collector.lock().await;
        while !self.live.ends() {
            let topics = self.live.followed();
            let has_changed = collector.collect(&self, &topics).await;
            let pause = async {
                tokio::time::sleep(PACE).await;
                if !has_changed {
                    tokio::select! {
                        _ = arrivals.events.changed() => {}
                        _ = arrivals.work.changed() => {}
                        // A new follower of a topic needs its first state.
                        () = self.live.follower_joined.notified() => {}
                        () = tokio::time::sleep(QUIET - PACE) => {}
                    }
                }
            };
            tokio::select! {
                () = pause => {}
                () = self.live.last_left.notified() => {}
            }
        }
    }
}

/// The topics of a list that a caller may follow.
fn allowed_topics(caller: &Caller, names: Option<&str>) -> Result<Vec<Topic>, ServiceError> {
    let Some(names) = names else {
        let allowed = |topic: &Topic| topic.check(caller).is_ok();
        let topics: Vec<Topic> = Topic::ALL.into_iter().filter(allowed).collect();
        return match topics.is_empty() {
            true => Err(ServiceError::Forbidden(Topic::Status.scope())),
            false => Ok(topics),
        };
    };
    let mut topics = Vec::new();
    for name in names.split(',').map(str::trim).filter(|name| !name.is_empty()) {
        let Some(topic) = Topic::ALL.into_iter().find(|topic| topic.word() == name) else {
            let known = Topic::ALL.map(Topic::word).join(", ");
            let problem = Problem::new(Code::UnknownValue, "topics", format!("`{name}` is not a topic"));
            let problem = problem.param("value", name.to_owned()).hint(format!("topics are {known}"));
            return Err(ServiceError::Invalid(vec![problem]));
        };
        topic.check(caller)?;
        if !topics.contains(&topic) {
            topics.push(topic);
        }
    }
    match topics.is_empty() {
        true => Err(ServiceError::invalid(Code::Empty, "topics", "is empty")),
        false => Ok(topics),
    }
}
