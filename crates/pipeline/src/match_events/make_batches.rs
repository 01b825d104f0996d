//! Turns cut matches into notification batches with their heads.

use std::collections::BTreeSet;

use tocsin_matching::{cut::CutBatch, rule::RuleSet};
use tocsin_model::{
    delivery_policy::Priority, id::Name, notification::NotificationHead, reason_code::ReasonCode, time::Timestamp,
};
use tocsin_store::journal::{NewNotificationBatch, Step};

use crate::{compile::Compiled, rule_breaker::cap};

/// Channel of notifications whose subscriber had no usable device when they were made.
pub fn unassigned_channel() -> Name {
    "unassigned".parse().expect("`unassigned` is a name")
}

/// Applications and channels of the notifications of a step. Suspended ones may be resumed.
pub(super) fn channels_of(step: &Step) -> BTreeSet<(Name, Name)> {
    step.batches.iter().map(|batch| (batch.head.application.clone(), batch.head.channel.clone())).collect()
}

/// Number of notifications of a step.
pub(super) fn notifications_of(step: &Step) -> u64 {
    step.batches.iter().map(|batch| u64::from(batch.count)).sum()
}

/// Builds notification batches from cut matches and the rule set that made them.
pub(crate) fn new_batches(
    compiled: &Compiled,
    rules: &RuleSet,
    cut: Vec<CutBatch>,
    accepted_at: Timestamp,
    now: Timestamp,
) -> Vec<NewNotificationBatch> {
    let capped = cap(cut, compiled.application.limits.notifications_per_event);
    capped.into_iter().map(|(cut, beyond)| new_batch(compiled, rules, cut, beyond, accepted_at, now)).collect()
}

fn new_batch(
    compiled: &Compiled,
    rules: &RuleSet,
    cut: CutBatch,
    beyond: Option<String>,
    accepted_at: Timestamp,
    now: Timestamp,
) -> NewNotificationBatch {
    let without_device = || cut.channel.is_none().then(|| ReasonCode::NoDeviceAtMatch.text().to_owned());
    let suspended = beyond.or_else(without_device);
    let class = compiled.application.notifications.get(&cut.class);
    NewNotificationBatch {
        priority: class.map_or(Priority::Normal, |class| class.delivery_policy.priority),
        head: NotificationHead {
            application: compiled.application.name.clone(),
            version: compiled.version,
            class: cut.class,
            event_class: rules.event_class(cut.rule).clone(),
            rule: rules.name(cut.rule).clone(),
            channel: cut.channel.unwrap_or_else(unassigned_channel),
            matched_at: now,
            accepted_at,
            expires_at: rules.expires_after(cut.rule).map(|age| now + age),
        },
        count: cut.notifications.count() as u32,
        packed: cut.notifications.pack().into(),
        suspended,
        run: None,
    }
}
