//! Messages of all topics, and the number of their followers.

use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
};

use parking_lot::Mutex;
use serde_json::Value as Json;
use tocsin_model::id::Name;
use tokio::sync::{Notify, Semaphore, watch};

use super::{collector::Collector, topics::Topic};

/// Maximum number of open streams.
pub const STREAMS_MAX: usize = 256;

/// Function that returns the summary of sync.
pub type SyncSummary = Arc<dyn Fn() -> Json + Send + Sync>;

/// Messages of all topics, and the number of their followers.
pub(crate) struct LiveHub {
    /// Distinguishes the numbers of this process from those of earlier ones.
    pub start: String,
    pub state: Mutex<HubState>,
    /// Number of the newest message.
    pub newest: watch::Sender<u64>,
    pub streams: Arc<Semaphore>,
    pub sync: OnceLock<SyncSummary>,
    /// Signals a new follower to the collecting task.
    pub follower_joined: Notify,
    /// Signals that the last follower has left.
    pub last_left: Notify,
    pub collector: tokio::sync::Mutex<Collector>,
}

#[derive(Default)]
pub(crate) struct HubState {
    pub number: u64,
    /// Whether the collecting task runs.
    pub collecting: bool,
    /// Number of followers by topic.
    pub followers: [usize; Topic::ALL.len()],
    messages: [TopicMessages; Topic::ALL.len()],
}

/// The newest messages of a topic.
#[derive(Default)]
struct TopicMessages {
    whole: Option<NumberedMessage>,
    by_application: BTreeMap<Name, NumberedMessage>,
}

#[derive(Clone)]
struct NumberedMessage {
    number: u64,
    data: Json,
}

impl LiveHub {
    pub fn new(start: String) -> LiveHub {
        LiveHub {
            start,
            state: Mutex::default(),
            newest: watch::Sender::new(0),
            streams: Arc::new(Semaphore::new(STREAMS_MAX)),
            sync: OnceLock::new(),
            follower_joined: Notify::new(),
            last_left: Notify::new(),
            collector: tokio::sync::Mutex::default(),
        }
    }

    /// Topics that are followed.
    pub fn followed(&self) -> Vec<Topic> {
        let state = self.state.lock();
        Topic::ALL.into_iter().filter(|topic| state.followers[*topic as usize] > 0).collect()
    }

    /// Ends the collecting task if nothing is followed. Decided together with new followers.
    pub fn ends(&self) -> bool {
        let mut state = self.state.lock();
        let ends = state.followers.iter().all(|followers| *followers == 0);
        state.collecting &= !ends;
        ends
    }

    /// Publishes a state of a topic, of all applications or of one. Returns whether it differs from the last.
    pub fn publish(&self, topic: Topic, application: Option<&Name>, data: Json) -> bool {
        let mut state = self.state.lock();
        let number = state.number + 1;
        let messages = &mut state.messages[topic as usize];
        let message = NumberedMessage { number, data };
        match application {
            None if messages.whole.as_ref().is_some_and(|last| last.data == message.data) => return false,
            None => messages.whole = Some(message),
            Some(name) => _ = messages.by_application.insert(name.clone(), message),
        }
        state.number = number;
        drop(state);
        self.newest.send_replace(number);
        true
    }

    /// Messages of some topics after a number, oldest first.
    pub fn after(&self, seen: u64, topics: &[Topic], application: Option<&Name>) -> Vec<(u64, Topic, Json)> {
        let state = self.state.lock();
        let newer = topics.iter().filter_map(|topic| {
            let messages = &state.messages[*topic as usize];
            let message = match application.filter(|_| topic.is_by_application()) {
                Some(name) => messages.by_application.get(name),
                None => messages.whole.as_ref(),
            };
            let message = message.filter(|message| message.number > seen)?;
            Some((message.number, *topic, message.data.clone()))
        });
        let mut newer: Vec<_> = newer.collect();
        newer.sort_by_key(|(number, ..)| *number);
        newer
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_follower_gets_the_newest_state_of_its_topics() {
        let hub = LiveHub::new("s".to_owned());
        let (one, two): (Name, Name) = ("one".parse().expect("a name"), "two".parse().expect("a name"));
        assert!(hub.publish(Topic::Status, None, json!(1)));
        assert!(!hub.publish(Topic::Status, None, json!(1)), "an equal state is no message");
        hub.publish(Topic::Batches, None, json!("both"));
        hub.publish(Topic::Batches, Some(&one), json!("one"));
        hub.publish(Topic::Status, None, json!(2));
        let topics = [Topic::Status, Topic::Batches];
        let found = |seen, application| hub.after(seen, &topics, application);
        assert_eq!(found(0, None), [(2, Topic::Batches, json!("both")), (4, Topic::Status, json!(2))]);
        assert_eq!(found(0, Some(&one)), [(3, Topic::Batches, json!("one")), (4, Topic::Status, json!(2))]);
        assert_eq!(found(0, Some(&two)), [(4, Topic::Status, json!(2))]);
        assert_eq!(found(4, None), []);
    }

    #[test]
    fn collecting_ends_with_the_last_follower() {
        let hub = LiveHub::new("s".to_owned());
        {
            let mut state = hub.state.lock();
            state.collecting = true;
            state.followers[Topic::Status as usize] = 1;
        }
        assert_eq!((hub.ends(), hub.followed()), (false, vec![Topic::Status]));
        hub.state.lock().followers[Topic::Status as usize] = 0;
        assert_eq!((hub.ends(), hub.state.lock().collecting), (true, false));
    }
}
