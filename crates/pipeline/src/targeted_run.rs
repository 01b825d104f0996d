//! Evaluates one rule for given pairs of an event and a subscription: rules on the life of a subscription, and delayed
//! rules when they are due.
//!
//! Each subscription is put into a temporary index, matched with its event and removed. It is read from the records, so
//! a subscription that waits for its confirmation or has ended is reached too, if its event allows it.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::{Duration, Instant},
};

use tocsin_matching::{
    cut::{CutBatch, NotificationCutter, RuleFailure},
    eval_value::EvalError,
    join::join,
    matches::{MatchSink, Run},
    rule::{RuleNumber, RuleSet},
    shard::{MatchOptions, Shard},
    subject::Subject,
    subscriber::SubscriberView,
};
use tocsin_model::{
    event::EventBatch,
    field::Row,
    filter::Filter,
    id::{ChangeSequence, EventId, Name, SubscriberNumber, SubscriptionId},
    lifecycle::LifecycleChange,
    subscriber::{Device, DeviceState},
};
use tocsin_store::{
    error::StoreError,
    records::{IndexedSubscription, MatchStore, Recipient},
};

use crate::{Flow, compile::Compiled, keep_busy, view_subscribers::view_subscribers};

/// Subscriptions read at a time.
const PAGE: usize = 1_000;

/// Why a pair was left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LeftOut {
    /// The subscription or its subscriber is removed.
    Removed,
    /// The subscription or its subscriber is disabled, or waits for its confirmation.
    Inactive,
    /// An ended subscription is active again.
    ActiveAgain,
    /// It belongs to another subscription class.
    OtherClass,
}

impl LeftOut {
    /// Label of metrics.
    pub fn word(self) -> &'static str {
        match self {
            LeftOut::Removed => "removed",
            LeftOut::Inactive => "inactive",
            LeftOut::ActiveAgain => "active_again",
            LeftOut::OtherClass => "other_class",
        }
    }
}

/// The recipients of subscriptions for notifications about a lifecycle change, or about other events. An ended
/// subscription is read as it last was.
///
/// # Errors
/// The records fail.
pub(crate) async fn recipients(
    flow: &Flow,
    subscriptions: &[SubscriptionId],
    change: Option<LifecycleChange>,
) -> Result<Vec<Option<Recipient>>, StoreError> {
    let mut found = flow.recipient_store.recipients(subscriptions).await?;
    if change == Some(LifecycleChange::Ended) {
        let missing: Vec<usize> = (0..found.len()).filter(|at| found[*at].is_none()).collect();
        if !missing.is_empty() {
            let ids: Vec<SubscriptionId> = missing.iter().map(|at| subscriptions[*at]).collect();
            let former = flow.recipient_store.former_recipients(&ids).await?;
            missing.into_iter().zip(former).for_each(|(at, former)| found[at] = former);
        }
    }
    Ok(found)
}

/// Whether a notification about a lifecycle change, or about another event, may be sent to a recipient.
pub(crate) fn admits(recipient: &Recipient, change: Option<LifecycleChange>) -> Result<(), LeftOut> {
    if !recipient.profile.enabled {
        return Err(LeftOut::Inactive);
    }
    match (change, recipient.interest.enabled) {
        (Some(LifecycleChange::Ended), true) => Err(LeftOut::ActiveAgain),
        (Some(LifecycleChange::Ended), false) | (_, true) => Ok(()),
        (Some(LifecycleChange::Requested), false) if recipient.interest.consent_request.is_some() => Ok(()),
        _ => Err(LeftOut::Inactive),
    }
}

/// States of devices that a notification may use. That of a request also reaches a device that waits for its
/// confirmation.
pub(crate) fn device_states(recipient: &Recipient, change: Option<LifecycleChange>) -> &'static [DeviceState] {
    match change == Some(LifecycleChange::Requested) && recipient.interest.consent_request.is_some() {
        true => &[DeviceState::Active, DeviceState::Pending],
        false => &[DeviceState::Active],
    }
}

/// The default device of a recipient for such a notification.
pub(crate) fn device(recipient: &Recipient, change: Option<LifecycleChange>) -> Option<(&Name, &Device)> {
    recipient.device_in(device_states(recipient, change))
}

/// A run of one rule.
pub(crate) struct TargetedRun<'a> {
    flow: &'a Flow,
    compiled: &'a Compiled,
    class: Name,
    /// The change to which the event class of the rule is bound.
    change: Option<LifecycleChange>,
    shard: Shard,
    cutter: NotificationCutter,
    out_of_time: bool,
    /// Pairs that were left out, by reason.
    pub left_out: Vec<LeftOut>,
}

/// A subscription of a run.
struct Member {
    ordinal: u32,
    subscription: SubscriptionId,
    subscriber: SubscriberNumber,
    values: Box<str>,
    channel: Option<Name>,
    filter: Option<Filter>,
}

impl<'a> TargetedRun<'a> {
    /// A run of a rule; `None` if the version has no such rule to run.
    pub fn new(flow: &'a Flow, compiled: &'a Compiled, rule: &Name) -> Option<TargetedRun<'a>> {
        let rules: Arc<RuleSet> = compiled.targeted.get(rule)?.clone();
        let rule = compiled.application.rules.get(rule)?;
        let bound = compiled.application.events.get(&rule.on).and_then(|class| class.lifecycle.as_ref());
        Some(TargetedRun {
            flow,
            compiled,
            class: rule.subscription.clone(),
            change: bound.map(|bound| bound.change),
            shard: Shard::new(rules),
            cutter: NotificationCutter::new(),
            out_of_time: false,
            left_out: Vec::new(),
        })
    }

    /// The rules of the run.
    pub fn rules(&self) -> &Arc<RuleSet> {
        self.shard.rules()
    }

    /// Matches events of a batch, each with one subscription. The rows are those of the run's rules. The inner error
    /// says why the batch cannot be matched.
    ///
    /// # Errors
    /// The records fail.
    pub async fn add(
        &mut self,
        batch: &EventBatch,
        rows: &[Row],
        pairs: &[(u32, SubscriptionId)],
    ) -> Result<Result<(), String>, StoreError> {
        for page in pairs.chunks(PAGE) {
            let members = self.members(page).await?;
            let subscribers: Vec<SubscriberNumber> = members.iter().map(|member| member.subscriber).collect();
            let records: &dyn MatchStore = &*self.flow.match_store;
            let newest = ChangeSequence(u64::MAX);
            let views = view_subscribers(records, self.shard.rules(), &subscribers, newest).await?;
            if let Err(reason) = keep_busy(|| self.match_members(batch, rows, members, views)) {
                return Ok(Err(reason));
            }
        }
        Ok(Ok(()))
    }

    async fn members(&mut self, page: &[(u32, SubscriptionId)]) -> Result<Vec<Member>, StoreError> {
        let ids: Vec<SubscriptionId> = page.iter().map(|(_, subscription)| *subscription).collect();
        let filters = self.filters(&ids).await?;
        let found = recipients(self.flow, &ids, self.change).await?;
        let mut members = Vec::with_capacity(page.len());
        for ((ordinal, subscription), recipient) in page.iter().zip(found) {
            let Some(recipient) = recipient else {
                self.left_out.push(LeftOut::Removed);
                continue;
            };
            if recipient.interest.class != self.class {
                self.left_out.push(LeftOut::OtherClass);
                continue;
            }
            if let Err(reason) = admits(&recipient, self.change) {
                self.left_out.push(reason);
                continue;
            }
            members.push(Member {
                ordinal: *ordinal,
                subscription: *subscription,
                subscriber: recipient.interest.subscriber,
                values: recipient.interest.values.clone(),
                channel: device(&recipient, self.change).map(|(_, device)| device.channel.clone()),
                filter: filters.get(subscription).cloned(),
            });
        }
        Ok(members)
    }

    /// Filters of subscriptions over their events. They do not apply to lifecycle events, which are of no class that
    /// they know.
    async fn filters(
        &self,
        ids: &[SubscriptionId],
    ) -> Result<std::collections::BTreeMap<SubscriptionId, Filter>, StoreError> {
        let takes =
            self.compiled.application.subscriptions.get(&self.class).is_some_and(|class| !class.filter.is_empty());
        if self.change.is_some() || !takes {
            return Ok(Default::default());
        }
        let ranges: Vec<_> = ids.iter().map(|id| *id..=*id).collect();
        let application = &self.compiled.application.name;
        let newest = ChangeSequence(u64::MAX);
        let found: Vec<IndexedSubscription> = self.flow.match_store.indexed_at(application, &ranges, newest).await?;
        Ok(found.into_iter().filter_map(|found| Some((found.id, found.terms.filter?))).collect())
    }

    fn match_members(
        &mut self,
        batch: &EventBatch,
        rows: &[Row],
        members: Vec<Member>,
        views: Vec<SubscriberView>,
    ) -> Result<(), String> {
        let class = self.class.clone();
        for (member, view) in members.into_iter().zip(views) {
            let Some(row) = rows.get(member.ordinal as usize) else { continue };
            let subject = Subject {
                id: member.subscription,
                subscriber: member.subscriber,
                class: &class,
                values: &member.values,
                channel: member.channel.as_ref(),
                filter: member.filter.as_ref(),
            };
            if let Err(problem) = self.shard.put_of(subject, view) {
                let (application, subscription) = (&self.compiled.application.name, member.subscription);
                metrics::counter!("tocsin_match_unusable_subscriptions_total").increment(1);
                tracing::warn!(%application, %subscription, %problem, "a subscription cannot be matched");
                continue;
            }
            let started = Instant::now();
            let clock = move || -> Duration { started.elapsed() };
            let watch = MatchOptions { clock: Some(&clock), ..MatchOptions::default() };
            let mut sink = At { ordinal: member.ordinal, cutter: &mut self.cutter, out_of_time: false };
            let shard = &mut self.shard;
            let at = (batch.id, batch.accepted_at);
            let matched = catch_unwind(AssertUnwindSafe(|| {
                shard.match_rows(at, &batch.class, std::slice::from_ref(row), watch, &mut sink);
            }));
            self.out_of_time |= sink.out_of_time;
            if matched.is_err() {
                return Err("matching it made the matcher panic".to_owned());
            }
            self.shard.remove(member.subscription);
        }
        match self.out_of_time {
            true => Err("the rule took longer for an event than its timeout".to_owned()),
            false => Ok(()),
        }
    }

    /// The notifications, and the evaluations that failed.
    pub fn finish(&mut self) -> (Vec<CutBatch>, Vec<RuleFailure>) {
        let rules = self.shard.rules().clone();
        let (cut, failures) = self.cutter.finish(&rules);
        (join(&rules, vec![cut]), failures)
    }
}

/// A sink that replaces the ordinal of matches by that of their event in the batch.
struct At<'a> {
    ordinal: u32,
    cutter: &'a mut NotificationCutter,
    out_of_time: bool,
}

impl MatchSink for At<'_> {
    fn run(&mut self, mut run: Run<'_>) {
        run.event_ordinal = self.ordinal;
        self.cutter.run(run);
    }

    fn rule_failed(&mut self, rule: RuleNumber, event: EventId, error: EvalError) {
        self.out_of_time |= error == EvalError::Time;
        self.cutter.rule_failed(rule, EventId { ordinal: self.ordinal, ..event }, error);
    }

    fn subscriptions_failed(&mut self, rule: RuleNumber, event: EventId, error: EvalError, count: u32) {
        self.cutter.subscriptions_failed(rule, EventId { ordinal: self.ordinal, ..event }, error, count);
    }
}
