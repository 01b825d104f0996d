//! Acts on broadcasts.

use serde_json::{Map, Value as Json, json};
use tocsin_connect::Clock;
use tocsin_model::{
    broadcast::BroadcastDraft,
    id::{BroadcastId, SubscriptionId},
};
use tocsin_store::journal::{BroadcastChange, Broadcasts, NewBroadcast, RequestedState};

use super::Scenario;

impl Scenario {
    /// Counts the audience of a draft, stores it, and notes both.
    pub(super) async fn broadcast(&self, draft: &str) {
        let application = self.application().await;
        let mut whole = Map::from_iter([("application".to_owned(), json!(application))]);
        let given: Json = serde_json::from_str(draft).expect("a draft is JSON");
        whole.extend(given.as_object().expect("an object").clone());
        let draft: BroadcastDraft = serde_json::from_value(whole.into()).expect("a draft");
        let compiled = self.pipeline().application(&application).expect("it runs");
        let text = serde_json::to_string(&draft).expect("a draft is JSON");
        let starts_at = draft.starts_at.unwrap_or_else(|| self.clock.now());
        let broadcast =
            self.pipeline().compile_broadcast(draft, &compiled).unwrap_or_else(|problems| panic!("{problems:?}"));
        let counted = self.pipeline().count_audience(&broadcast, SubscriptionId(0), u64::MAX, 3).await;
        let counted = counted.expect("records answer").expect("it can be matched");
        let new = NewBroadcast {
            key: self.acts.to_string(),
            application,
            draft: text,
            by: "ann".to_owned(),
            created_at: self.clock.now(),
            starts_at,
        };
        let (stored, is_new) = self.pipeline().put_broadcast(new).await.expect("it can be stored");
        if is_new {
            let recipients: u64 = counted.recipients.values().sum();
            let (now, id, examined) = (self.now(), stored.id, counted.examined);
            self.scripted.lock().note(format!("{now} {id} counts {recipients} of {examined}"));
        }
    }

    /// Pauses, resumes or cancels a broadcast, and notes its state.
    pub(super) async fn change_broadcast(&self, change: &str, id: &str) {
        let to = match change {
            "pause" => RequestedState::Paused,
            "resume" => RequestedState::Resumed,
            "cancel" => RequestedState::Cancelled,
            _ => panic!("`{change}` is no change of a broadcast"),
        };
        let id: BroadcastId = id.parse().expect("the id of a broadcast");
        let change = BroadcastChange { to, by: "ann".to_owned(), reason: None, now: self.clock.now() };
        let changed = self.pipeline().change_broadcast(id, change).await.expect("it can be changed");
        self.scripted.lock().note(format!("{} {id} {}", self.now(), changed.state.word()));
    }

    /// Notes the state and the sums of a broadcast.
    pub(super) async fn show_broadcast(&self, id: &str) {
        let id: BroadcastId = id.parse().expect("the id of a broadcast");
        let found = self.journal.broadcast(id).await.expect("the journal answers").expect("a broadcast");
        let totals = self.journal.broadcast_totals(id).await.expect("the journal answers");
        let (now, state, matched) = (self.now(), found.state.word(), found.matched_at.is_some());
        self.scripted.lock().note(format!(
            "{now} {id} {state} matched {matched} recipients {} open {} delivered {} failed {} ended {}",
            totals.recipients,
            totals.open,
            totals.delivered,
            totals.failed,
            totals.ended()
        ));
    }
}
