//! What the journal remembers, on its way back to the shards that have the subscriptions.

use std::collections::{BTreeSet, HashMap};

use bytes::Bytes;
use tocsin_model::{id::SubscriptionId, state::StatePage};

use super::{
    book::PART_BITS,
    page::{Memory, Page, WIDTH},
    waiting::Waiter,
};
use crate::{
    chronicle::book::PREFIX,
    rule::{RuleNumber, RuleSet},
};

/// Pages of the journal, taken apart. Each shard takes what is of its subscriptions; what nobody takes is of
/// subscriptions that are no more.
#[derive(Debug, Default)]
pub struct Remembered {
    /// For each rule, what is remembered and on which page it stands.
    pub(super) rules: Vec<HashMap<Waiter, (u64, Memory)>>,
    /// Pages that hold what no longer belongs there.
    pub(super) gone: BTreeSet<(usize, u64)>,
    dead: Vec<StatePage>,
    /// How many pages could not be read.
    pub damaged: usize,
}

impl Remembered {
    /// Takes pages apart. Those of rules that are no more or remember something else now are not taken over; those of
    /// chronicles are passed over.
    pub fn read(rules: &RuleSet, pages: impl IntoIterator<Item = StatePage>) -> Remembered {
        let mut remembered =
            Remembered { rules: rules.rules.iter().map(|_| HashMap::new()).collect(), ..Remembered::default() };
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
        let Ok((shape, memories)) = Page::unpack(&page.body) else {
            self.damaged += 1;
            return false;
        };
        if shape.per != state.shape.per {
            return false;
        }
        let first = (page.number & ((1 << PART_BITS) - 1)).saturating_mul(WIDTH);
        for ((place, key), memory) in memories {
            let armed = memory.armed || state.rearm.is_none();
            let memory = Memory { armed, value: if state.shape.valued { memory.value } else { 0 }, ..memory };
            let waiter = (SubscriptionId(first.saturating_add(u64::from(place))), key);
            self.rules[number.0 as usize].insert(waiter, (page.number, memory));
        }
        true
    }

    /// After all shards have taken theirs: the pages of the journal that are out of date. The shards must take them over
    /// ([`crate::shard::Shard::take_over`]), so that the next commit corrects them.
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
