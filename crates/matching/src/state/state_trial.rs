//! The suppression state of one subscription, checked for an event, for display.

use std::time::Duration;

use tocsin_model::{id::SubscriptionId, state::StatePage, time::Timestamp, value::Value};

use super::{
    page::{PART_BITS, SubscriptionState, WIDTH},
    restored::RestoredStates,
    state_table::{StateTable, Suppression, check},
};
use crate::{
    eval_value::EvalError,
    rule::rule_set::{RuleNumber, RuleSet},
};

/// The state of one subscription of a rule, checked for an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateTrial {
    /// The state clauses of the rule as text.
    pub clauses: Vec<String>,
    /// The acceptance time of the event of the last notification; `None` if there is no state.
    pub notified_at: Option<Timestamp>,
    /// Whether the subscription is armed.
    pub armed: bool,
    /// The cooldown of the rule.
    pub cooldown: Option<Duration>,
    /// The reason for suppressing a match of the event. `Err`: `per` or `changed` has no value, so nothing matches.
    pub verdict: Result<Option<Suppression>, String>,
}

/// The number of a page with the state of a subscription, in the partition of the page `from` or after it.
fn page_from(from: u64, id: SubscriptionId) -> u64 {
    (from >> PART_BITS) << PART_BITS | (id.0 / WIDTH)
}

impl RuleSet {
    /// The owner of the state pages of a rule; `None` if the rule keeps no state.
    pub fn state_owner(&self, rule: RuleNumber) -> Option<Box<str>> {
        let compiled = self.rule(rule);
        compiled.state.as_ref().map(|_| format!("rules.{}", compiled.name).into())
    }

    /// Finds the state pages of a subscription: the cursor after which the first or next one can be, given the page that
    /// the last cursor led to. Each partition of the subscriptions can have one. `None`: there are no more.
    pub fn next_state_cursor(owner: &str, id: SubscriptionId, found: Option<&StatePage>) -> Option<StatePage> {
        let number = match found {
            None => page_from(0, id),
            // In the partition of the found page, if it is still before the page of the subscription there.
            Some(page) if page.name.as_ref() != owner => return None,
            Some(page) => match page_from(page.number, id) {
                number if number > page.number => number,
                number => number.checked_add(1 << PART_BITS)?,
            },
        };
        match number.checked_sub(1) {
            Some(number) => Some(StatePage { name: owner.into(), number, body: Default::default() }),
            // A text between all other names and the owner: the characters of names sort before `~`.
            None => {
                let (start, last) = owner.split_at(owner.len() - 1);
                let before = format!("{start}{}~", char::from(last.as_bytes()[0] - 1));
                Some(StatePage { name: before.into(), number: 0, body: Default::default() })
            }
        }
    }

    /// Checks the state of a subscription for an event of the class of a rule, accepted at `at`. `pages` has the state
    /// pages of the subscription. `None` if the rule keeps no state.
    ///
    /// # Errors
    /// `Cost`: an expression exceeded the step limit.
    pub fn try_state(
        &self,
        rule: RuleNumber,
        event: &[Value],
        at: Timestamp,
        id: SubscriptionId,
        pages: Vec<StatePage>,
    ) -> Result<Option<StateTrial>, EvalError> {
        let Some(state) = &self.rule(rule).state else { return Ok(None) };
        let restored = RestoredStates::read(self, pages);
        let cooldown = state.cooldown.map(|micros| Duration::from_micros(micros.unsigned_abs()));
        let clauses = state.explained.clone();
        let Some(state_event) = StateTable::state_event(state, event, at)? else {
            let reason = "`per` or `changed` has no value for this event".to_owned();
            return Ok(Some(StateTrial { clauses, notified_at: None, armed: true, cooldown, verdict: Err(reason) }));
        };
        let memory = restored.rules[rule.0 as usize].get(&(id, state_event.key));
        let memory: Option<SubscriptionState> = memory.map(|(_, memory)| *memory);
        let verdict = memory.map_or(Ok(()), |memory| check(state, memory, state_event));
        Ok(Some(StateTrial {
            clauses,
            notified_at: memory.map(|memory| Timestamp(memory.notified_at)),
            armed: memory.is_none_or(|memory| memory.armed),
            cooldown,
            verdict: Ok(verdict.err()),
        }))
    }
}
