//! State pages of the journal, restored to the shards that have the subscriptions.

use std::collections::{BTreeSet, HashMap};

use bytes::Bytes;
use tocsin_model::{id::SubscriptionId, state::StatePage};

use super::{
    page::{Page, SubscriptionState, WIDTH},
    rearm_index::StateKey,
};
use crate::{
    chronicle::store::PREFIX,
    rule::rule_set::{RuleNumber, RuleSet},
    state::page::PART_BITS,
};

/// Parsed state pages. Each shard takes the entries of its subscriptions; the remaining entries belong to deleted
/// subscriptions.
#[derive(Debug, Default)]
pub struct RestoredStates {
    /// For each rule, its entries and the page of each.
    pub(super) rules: Vec<HashMap<StateKey, (u64, SubscriptionState)>>,
    /// Pages with outdated entries.
    pub(super) gone: BTreeSet<(usize, u64)>,
    dead: Vec<StatePage>,
    /// The number of unreadable pages.
    pub damaged: usize,
}

impl RestoredStates {
    /// Parses pages. Pages of rules that no longer exist, or have other state clauses, are dropped; those of chronicles
    /// are skipped.
    pub fn read(rules: &RuleSet, pages: impl IntoIterator<Item = StatePage>) -> RestoredStates {
        let mut remembered =
            RestoredStates { rules: rules.rules.iter().map(|_| HashMap::new()).collect(), ..RestoredStates::default() };
        for page in pages.into_iter().filter(|page| !page.name.starts_with(PREFIX)) {
            if !remembered.take(rules, &page) {
                remembered.dead.push(StatePage { body: Bytes::new(), ..page });
            }
        }
        remembered
    }

    fn take(&mut self, rules: &RuleSet, page: &StatePage) -> bool {
        let Some(number) = page.name.strip_prefix("rules.").and_then(|name| rules.number(name)) else { return false };
        let rule = rules.rule(number);
        let Some(state) = rule.state.as_ref().filter(|_| rule.enabled) else { return false };
        let Ok((shape, states)) = Page::unpack(&page.body) else {
            self.damaged += 1;
            return false;
        };
        if shape.per != state.shape.per {
            return false;
        }
        let first = (page.number & ((1 << PART_BITS) - 1)).saturating_mul(WIDTH);
        for ((place, key), memory) in states {
            let armed = memory.armed || state.rearm.is_none();
            let memory =
                SubscriptionState { armed, value: if state.shape.valued { memory.value } else { 0 }, ..memory };
            let waiter = (SubscriptionId(first.saturating_add(u64::from(place))), key);
            self.rules[number.0 as usize].insert(waiter, (page.number, memory));
        }
        true
    }

    /// The outdated pages of the journal, after all shards have taken their entries. The shards must take them over
    /// ([`crate::shard::Shard::take_over_states`]), so that the next commit corrects them.
    pub fn rest(mut self, rules: &RuleSet) -> Vec<StatePage> {
        for (at, left) in self.rules.iter().enumerate() {
            self.gone.extend(left.values().map(|(page, _)| (at, *page)));
        }
        let page = |(at, number): &(usize, u64)| StatePage {
            name: format!("rules.{}", rules.name(RuleNumber(*at as u32))).into(),
            number: *number,
            body: Bytes::new(),
        };
        self.gone.iter().map(page).chain(self.dead).collect()
    }
}
