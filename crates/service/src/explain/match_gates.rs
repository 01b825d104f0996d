//! Gates of the match: rule, subscription, consent, audience, condition, filter, state, delay and notification.

use std::collections::BTreeMap;

use tocsin_matching::{
    oracle::SubscriptionView,
    rule::RuleSet,
    state::{StateTrial, Suppression},
    subscriber::SubscriberView,
    trial::{Trial, Verdict},
};
use tocsin_model::{
    consent::ConsentState,
    definition::write_duration,
    field::Row,
    id::{ChangeSequence, Name, SubscriberNumber, SubscriptionId},
    lifecycle::subscription_of,
    reason_code::ReasonCode,
    time::Timestamp,
};
use tocsin_pipeline::view_subscribers;
use tocsin_store::error::StoreError;

use super::{AsOf, EventState, Gate, GateKind, GateVerdict, Interest, Subject, rules_of};
use crate::{Service, error::ServiceError};

/// The gate of the event itself.
pub(super) fn event_gate(subject: &Subject) -> Gate {
    let kind = GateKind::Event;
    let gate = match subject.state {
        EventState::Given => Gate::passed(kind, AsOf::Now, "the event fits its class; it is not stored"),
        EventState::Accepted => {
            Gate::blocked(kind, AsOf::Recorded, ReasonCode::EventWaiting, "the event is accepted and not matched yet")
        }
        EventState::Failed => {
            let reason = subject.failure.as_deref().unwrap_or_default();
            let text = format!("the event batch could not be matched: {reason}");
            Gate::blocked(kind, AsOf::Recorded, ReasonCode::EventFailed, text)
        }
        EventState::Matched => Gate::passed(kind, AsOf::Recorded, "the event is accepted and matched"),
    };
    let gate = match subject.matched_at {
        Some(at) => gate.value("matched_at", at),
        None => gate,
    };
    match &subject.stored {
        Some((id, ..)) => gate.value("accepted_at", subject.at).object("event", id),
        None => gate,
    }
}

impl Service {
    /// The gates from the rule to the notification.
    pub(super) async fn match_gates(
        &self,
        subject: &Subject,
        rule: &Name,
        interest: &Interest,
        is_requested: bool,
        rows: &mut BTreeMap<Name, Row>,
    ) -> Result<Vec<Gate>, ServiceError> {
        let recorded = subject.recorded.of(rule, interest.id);
        let delayed = subject.recorded.delayed(rule, interest.id);
        let is_proved = recorded.is_some() || delayed.is_some();
        let mut gates = vec![self.rule_gate(subject, rule)];
        gates.extend(self.subscription_gates(subject, rule, interest).await?);
        gates.extend(self.condition_gates(subject, rule, interest, is_requested, rows).await?);
        if is_proved {
            gates = gates.into_iter().map(Gate::proved).collect();
        }
        let is_open = gates.iter().all(|gate| gate.verdict == GateVerdict::Passed);
        gates.push(self.state_gate(subject, rule, interest.id, (is_proved, is_open), rows).await?);
        if let Some(delay) = &subject.compiled.application.rules[rule].delay {
            let text = format!("the rule delays its notifications by {}", write_duration(delay.after));
            gates.push(match delayed {
                Some(found) if recorded.is_none() => {
                    let gate = Gate::blocked(GateKind::Delay, AsOf::Recorded, ReasonCode::Delayed, text);
                    gate.until(Some(found.due_at)).object("delayed", found.id)
                }
                None if recorded.is_none() && subject.state == EventState::Given => {
                    let gate = Gate::blocked(GateKind::Delay, AsOf::Now, ReasonCode::Delayed, text);
                    gate.until(Some(subject.at + delay.after))
                }
                _ => Gate::passed(GateKind::Delay, AsOf::Recorded, text),
            });
        }
        if subject.state == EventState::Given {
            return Ok(gates);
        }
        let kind = GateKind::Notification;
        let is_open = gates.iter().all(|gate| gate.verdict == GateVerdict::Passed);
        gates.push(match recorded {
            Some(found) => {
                let gate = Gate::passed(kind, AsOf::Recorded, "the notification was made");
                gate.value("matched_at", found.head.matched_at).object("notification", found.id)
            }
            None if subject.state != EventState::Matched => {
                Gate::unknown(kind, AsOf::Recorded, ReasonCode::NotEvaluated, "the event is not matched")
            }
            None if subject.recorded.truncated => {
                let text = "the event batch has more notification batches than were searched";
                Gate::unknown(kind, AsOf::Recorded, ReasonCode::NotRecorded, text)
            }
            None if is_open => {
                let text = "every gate is open as evaluated, but no notification is recorded; it was removed, cancelled, \
                    or the subscription or definition has changed";
                Gate::unknown(kind, AsOf::Recorded, ReasonCode::NotRecorded, text)
            }
            None => Gate::blocked(kind, AsOf::Recorded, ReasonCode::NotRecorded, "no notification was made"),
        });
        Ok(gates)
    }

    fn rule_gate(&self, subject: &Subject, name: &Name) -> Gate {
        let (kind, rule) = (GateKind::Rule, &subject.compiled.application.rules[name]);
        let stop = self.pipeline.stopped_rules().into_iter().find(|stop| {
            stop.application == subject.compiled.application.name
                && stop.rule == *name
                && subject.matched_at.is_none_or(|at| stop.since <= at)
        });
        let gate = if let Some(firing) = subject.recorded.firing(name) {
            let text = format!("the rule was {} for this event batch: {}", firing.status.name(), firing.reason);
            Gate::blocked(kind, AsOf::Recorded, ReasonCode::RuleSkipped, text)
        } else if !rule.enabled {
            Gate::blocked(kind, AsOf::Event, ReasonCode::RuleDisabled, "the rule is disabled in the definition")
        } else if let Some(stop) = stop {
            let text = format!("the rule was stopped: {}", stop.reason);
            Gate::blocked(kind, AsOf::Now, ReasonCode::RuleStopped, text).value("since", stop.since)
        } else if rule.schedule.is_some() {
            let text = "the rule is evaluated by a schedule, over the events since its last due time";
            Gate::unknown(kind, AsOf::Event, ReasonCode::RuleScheduled, text)
        } else {
            Gate::passed(kind, AsOf::Event, "the rule is enabled and not stopped")
        };
        gate.value("version", subject.compiled.version).object("rule", name)
    }

    /// The gates of the subscription and of its consent.
    async fn subscription_gates(
        &self,
        subject: &Subject,
        rule: &Name,
        interest: &Interest,
    ) -> Result<Vec<Gate>, ServiceError> {
        let (kind, as_of) = (GateKind::Subscription, AsOf::of(subject.snapshot));
        let blocked = |as_of, code, text: &str| Gate::blocked(kind, as_of, code, text);
        let is_lifecycle = subject.compiled.is_lifecycle(rule);
        let consent = interest.now.as_ref().and_then(|now| now.consent);
        let gate = match (&interest.then, &interest.now) {
            // A lifecycle rule also reaches a subscription that is not active.
            (_, Some(_)) if is_lifecycle => Gate::passed(kind, AsOf::Now, "the event is of a subscription's life"),
            (Some(_), _) => Gate::passed(kind, as_of, "the subscription is active"),
            (None, None) => blocked(as_of, ReasonCode::SubscriptionRemoved, "the subscription is removed"),
            (None, Some(now)) if now.created_at > subject.at => {
                let text = "the subscription was created after the event";
                blocked(as_of, ReasonCode::SubscriptionLater, text).value("created_at", now.created_at)
            }
            (None, Some(now)) => {
                let owner = self.subscriber_store.subscriber(&now.subscriber).await?;
                match owner.filter(|owner| !owner.profile.enabled) {
                    Some(_) => blocked(AsOf::Now, ReasonCode::SubscriberDisabled, "the subscriber is disabled")
                        .object("subscriber", &now.subscriber),
                    // The gate of the consent blocks.
                    None if consent.is_some_and(|consent| !consent.permits()) => {
                        Gate::passed(kind, AsOf::Now, "the subscription exists")
                    }
                    None => {
                        let text = "the subscription was disabled or snoozed";
                        let gate = blocked(as_of, ReasonCode::SubscriptionInactive, text);
                        gate.value("enabled", now.enabled).until(now.terms.snoozed_until)
                    }
                }
            }
        };
        let with_object = |gate: Gate| match gate.object {
            Some(_) => gate,
            None => gate.object("subscription", interest.id),
        };
        let consent = match consent {
            Some(ConsentState::Pending) if !is_lifecycle && interest.then.is_none() => {
                let text = "the subscription waits for its confirmation";
                Gate::blocked(GateKind::Consent, AsOf::Now, ReasonCode::ConsentPending, text)
            }
            Some(ConsentState::Withdrawn) if !is_lifecycle && interest.then.is_none() => {
                let text = "the consent of the subscription is withdrawn";
                Gate::blocked(GateKind::Consent, AsOf::Now, ReasonCode::ConsentWithdrawn, text)
            }
            Some(state) => Gate::passed(GateKind::Consent, as_of, format!("the consent is {}", state.word())),
            None => Gate::passed(GateKind::Consent, as_of, "the subscription needs no consent"),
        };
        Ok(vec![with_object(gate), with_object(consent)])
    }

    /// The gates of audience, condition and filter.
    async fn condition_gates(
        &self,
        subject: &Subject,
        rule: &Name,
        interest: &Interest,
        is_requested: bool,
        rows: &mut BTreeMap<Name, Row>,
    ) -> Result<Vec<Gate>, ServiceError> {
        let compiled = &subject.compiled;
        let rules = rules_of(compiled, rule).clone();
        let as_of = AsOf::of(subject.snapshot);
        let unusable = || {
            let text = "its values or filter do not fit the version of its class";
            Gate::blocked(GateKind::Condition, as_of, ReasonCode::SubscriptionUnusable, text)
                .object("subscription", interest.id)
        };
        let Some(number) = rules.number(rule.as_str()) else { return Ok(vec![unusable()]) };
        let (values, filter, subscriber) = match (&interest.then, &interest.now) {
            (Some(then), _) => (&then.values, then.terms.filter.as_ref(), then.subscriber),
            (None, Some(now)) => (&now.values, now.terms.filter.as_ref(), now.subscriber_number),
            (None, None) => return Ok(Vec::new()),
        };
        let row = self.explained_row(subject, rule, &rules, rows).await?;
        if compiled.is_lifecycle(rule) && subscription_of(&row) != Some(interest.id) {
            let text = "the event is about another subscription";
            return Ok(vec![Gate::blocked(GateKind::Condition, as_of, ReasonCode::OtherSubscription, text)]);
        }
        let Ok(view) = SubscriptionView::read(&rules, interest.id, &interest.class, values, filter) else {
            return Ok(vec![unusable()]);
        };
        let view = view.of(&rules, self.subscriber_at(subject, &rules, subscriber).await?);
        let trial = match compiled.application.rules[rule].sql.is_some() && is_requested {
            true => {
                let stored = subject.stored.as_ref().map(|(id, batch, packed)| (*id, batch, packed));
                self.try_query_rule(compiled, rule, &row, stored, &view).await?
            }
            false => rules.try_rule(number, &row, &view),
        };
        Ok(trial_gates(subject, rule, trial, interest.id))
    }

    /// The event as a row of the rule set, with the chronicle columns that it reads.
    async fn explained_row(
        &self,
        subject: &Subject,
        rule: &Name,
        rules: &std::sync::Arc<RuleSet>,
        rows: &mut BTreeMap<Name, Row>,
    ) -> Result<Row, ServiceError> {
        let is_shared = std::sync::Arc::ptr_eq(rules, &subject.compiled.rules);
        // One row serves all rules of the common rule set.
        let key = if is_shared { subject.class.clone() } else { rule.clone() };
        if let Some(row) = rows.get(&key).filter(|_| is_shared) {
            return Ok(row.clone());
        }
        let row = match &subject.stored {
            Some((id, batch, packed)) => {
                let damaged = |error: tocsin_model::field::Damaged| ServiceError::Unavailable(error.into());
                let found = rules.rows(batch, packed).map_err(damaged)?.into_iter().nth(id.ordinal as usize);
                found.unwrap_or_else(|| rules.bare_row(&subject.class, subject.given.clone()))
            }
            None => {
                let mut row = [rules.bare_row(&subject.class, subject.given.clone())];
                if rules.reads_chronicles(&subject.class) {
                    let mut book = self.chronicle_book(&subject.compiled.application.name, rules).await?;
                    book.take(&subject.class, &mut row, subject.at);
                }
                let [row] = row;
                row
            }
        };
        if is_shared {
            rows.insert(key, row.clone());
        }
        Ok(row)
    }

    /// A subscriber as rules see it, as of the event if the change log reaches back.
    async fn subscriber_at(
        &self,
        subject: &Subject,
        rules: &RuleSet,
        subscriber: SubscriberNumber,
    ) -> Result<SubscriberView, ServiceError> {
        let now = ChangeSequence(u64::MAX);
        let at = subject.snapshot.unwrap_or(now);
        let found = match view_subscribers(&*self.match_store, rules, &[subscriber], at).await {
            Err(StoreError::Missing(_)) => view_subscribers(&*self.match_store, rules, &[subscriber], now).await?,
            found => found?,
        };
        Ok(found.into_iter().next().unwrap_or_default())
    }

    /// The gate of the rule's state.
    async fn state_gate(
        &self,
        subject: &Subject,
        rule: &Name,
        id: SubscriptionId,
        (is_proved, is_open): (bool, bool),
        rows: &mut BTreeMap<Name, Row>,
    ) -> Result<Gate, ServiceError> {
        let (kind, rules) = (GateKind::State, &subject.compiled.rules);
        let number = rules.number(rule.as_str());
        let owner =
            number.and_then(|number| rules.state_owner(number)).filter(|_| !subject.compiled.is_lifecycle(rule));
        let (Some(number), Some(owner)) = (number, owner) else {
            return Ok(Gate::passed(kind, AsOf::Event, "the rule keeps no state").object("rule", rule));
        };
        let application = &subject.compiled.application.name;
        let (mut pages, mut last) = (Vec::new(), None);
        while let Some(cursor) = RuleSet::next_state_cursor(&owner, id, last.as_ref()) {
            let found = self.rule_store.state_pages(application, Some(&cursor), 1).await?.pop();
            let Some(found) = found else { break };
            pages.extend((found.name == owner).then(|| found.clone()));
            last = Some(found);
        }
        let row = self.explained_row(subject, rule, rules, rows).await?;
        let trial = rules.try_state(number, &row, subject.at, id, pages);
        let trial = trial.map_err(|error| ServiceError::Unavailable(error.to_string().into()))?;
        let Some(trial) = trial else {
            return Ok(Gate::passed(kind, AsOf::Event, "the rule keeps no state").object("rule", rule));
        };
        let gate = if is_proved {
            Gate::passed(kind, AsOf::Recorded, "passed when the event was matched")
        } else {
            state_verdict(subject, &trial, is_open)
        };
        let gate = gate.value("clauses", &trial.clauses).value("last_notified_at", trial.notified_at);
        Ok(gate.value("armed", trial.armed).object("rule", rule))
    }
}

/// The verdict of the state as of now, for a match that is not recorded.
fn state_verdict(subject: &Subject, trial: &StateTrial, is_open: bool) -> Gate {
    let kind = GateKind::State;
    // The stored state of a matched event includes later notifications.
    let is_later = |at: &Timestamp| *at > subject.at;
    let was_changed = subject.state == EventState::Matched && trial.notified_at.as_ref().is_some_and(is_later);
    match &trial.verdict {
        Err(reason) => Gate::blocked(kind, AsOf::Event, ReasonCode::NoStateKey, reason.as_str()),
        Ok(_) if was_changed => {
            let text = "the state of that time is no longer kept: the subscription was notified later";
            Gate::unknown(kind, AsOf::Now, ReasonCode::Pruned, text)
        }
        Ok(Some(suppression)) => {
            let (code, text) = match suppression {
                Suppression::Cooldown => (ReasonCode::Cooldown, "the last notification was too recently"),
                Suppression::Unarmed => {
                    (ReasonCode::Unarmed, "no event has re-armed the subscription since its last notification")
                }
                Suppression::Unchanged => (ReasonCode::Unchanged, "the values equal those of the last notification"),
            };
            let end = trial.notified_at.zip(trial.cooldown).map(|(at, cooldown)| at + cooldown);
            Gate::blocked(kind, AsOf::Now, code, text).until(end.filter(|_| code == ReasonCode::Cooldown))
        }
        Ok(None) if subject.state == EventState::Matched && is_open => {
            let text = "the present state would permit a notification; the state of that time is not kept";
            Gate::unknown(kind, AsOf::Now, ReasonCode::Pruned, text)
        }
        Ok(None) => Gate::passed(kind, AsOf::Now, "the state permits a notification"),
    }
}

/// The gates of audience, condition and filter of an evaluated rule.
fn trial_gates(subject: &Subject, name: &Name, trial: Trial, subscription: SubscriptionId) -> Vec<Gate> {
    let as_of = AsOf::of(subject.snapshot);
    let (mut gates, mut conditions) = (Vec::new(), trial.conditions);
    if let Some(audience) = &subject.compiled.application.rules[name].audience
        && !conditions.is_empty()
    {
        let found = conditions.remove(0);
        let gate = match found.verdict {
            Verdict::Holds => Gate::passed(GateKind::Audience, as_of, "the subscriber is a member of the audience"),
            _ => {
                let text = format!("the subscriber is not a member of the segment `{audience}`");
                Gate::blocked(GateKind::Audience, as_of, ReasonCode::OutsideAudience, text)
            }
        };
        gates.push(gate.object("segment", audience));
    }
    let worst = |verdict| conditions.iter().any(|condition| condition.verdict == verdict);
    let kind = GateKind::Condition;
    let gate = if conditions.is_empty() {
        Gate::passed(kind, as_of, "the rule has no condition")
    } else if worst(Verdict::Fails) {
        Gate::blocked(kind, as_of, ReasonCode::ConditionFails, "the condition of the rule does not hold")
    } else if worst(Verdict::Error) {
        Gate::blocked(kind, as_of, ReasonCode::ConditionError, "the condition of the rule has no value")
    } else if worst(Verdict::Unknown) {
        let text = "the query of the rule was not run; name the rule to run it";
        Gate::unknown(kind, as_of, ReasonCode::ConditionUnknown, text)
    } else {
        Gate::passed(kind, as_of, "the condition of the rule holds")
    };
    gates.push(gate.conditions(conditions).object("rule", name));
    let kind = GateKind::Filter;
    let gate = match trial.filter {
        None => Gate::passed(kind, as_of, "the subscription has no filter of its own"),
        Some(filter) => {
            let gate = match filter.verdict {
                Verdict::Holds => Gate::passed(kind, as_of, "the filter of the subscription matches"),
                Verdict::Error => {
                    Gate::blocked(kind, as_of, ReasonCode::FilterError, "the filter of the subscription has no value")
                }
                Verdict::Fails | Verdict::Unknown => {
                    Gate::blocked(kind, as_of, ReasonCode::FilterFails, "the filter of the subscription does not match")
                }
            };
            gate.conditions(filter.conditions)
        }
    };
    gates.push(gate.object("subscription", subscription));
    gates
}
