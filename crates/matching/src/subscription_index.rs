//! The subscriptions of a shard, indexed in each branch of each rule. Removed entries are swept out of the index later,
//! a few at each change.

use std::sync::Arc;

use tocsin_model::{
    field::{FieldType, Row},
    filter::Filter,
    id::{Name, SubscriptionId},
    problem::{Code, Problem},
    value::Value,
};

use crate::{
    eval_value::{EvalValue, write_key},
    evaluate::{EvalContext, Parameters, holds, value},
    filter::filter_table::{FilterNumber, FilterTable},
    index::{
        chunks::Entry,
        groups::{Groups, SweepPosition},
        hasher::Hasher,
        key_table::KeyTable,
        table::Table,
    },
    rule::{
        branches::{Branch, Ordered, Range},
        rule_set::RuleSet,
    },
    subject::Subject,
    subscriber::Memberships,
};

/// Index entries checked per change, for the sweep of removed subscriptions.
const LOOKS_PER_CHANGE: usize = 128;

/// An incremental sweep of one class's index: the current branch, counted over the rules of the class, and the position
/// in it.
#[derive(Debug, Clone, Copy, Default)]
struct Sweep {
    branch: usize,
    sweep_position: SweepPosition,
}

/// The subscriptions of a shard, and the index over them.
pub(crate) struct SubscriptionIndex {
    pub rules: Arc<RuleSet>,
    /// One for each class.
    pub tables: Vec<Table>,
    sweeps: Vec<Option<Sweep>>,
    /// One for each branch of each enabled rule.
    pub groups: Vec<Groups>,
    /// The keys of branches with the same event key, by [`Branch::asks`].
    pub keys: Vec<KeyTable>,
    /// One for each filter plan of the rule set.
    pub filter_tables: Vec<FilterTable>,
    pub channels: Vec<Name>,
    /// Buffer for the key of an entry.
    key: Vec<u8>,
}

impl SubscriptionIndex {
    /// An empty index of these rules.
    pub fn new(rules: Arc<RuleSet>) -> SubscriptionIndex {
        let hasher = Hasher::default();
        let tables = rules.classes.iter().map(|class| {
            let kinds = class.fields.iter().map(|field| field.kind).chain(rules.subscriber.kinds());
            let kinds: Vec<FieldType> = kinds.chain([FieldType::Integer]).collect();
            Table::new(&kinds, &class.used_columns, class.keeps_subscribers, hasher.clone())
        });
        let enabled = rules.rules.iter().filter(|rule| rule.enabled);
        let groups = enabled.flat_map(|rule| &rule.branches).map(|branch| Groups::new(branch.arrangement()));
        SubscriptionIndex {
            tables: tables.collect(),
            sweeps: vec![None; rules.classes.len()],
            groups: groups.collect(),
            filter_tables: rules.filters.iter().map(|_| FilterTable::new()).collect(),
            keys: (0..=rules.asks).map(|_| KeyTable::new(hasher.clone())).collect(),
            channels: Vec::new(),
            key: Vec::new(),
            rules,
        }
    }

    /// The number of subscriptions.
    pub fn len(&self) -> usize {
        self.tables.iter().map(Table::len).sum()
    }

    /// Memory in bytes, as far as it grows with the subscriptions.
    pub fn memory_bytes(&self) -> usize {
        self.tables.iter().map(Table::memory_bytes).sum::<usize>()
            + self.groups.iter().map(Groups::memory_bytes).sum::<usize>()
            + self.filter_tables.iter().map(FilterTable::memory_bytes).sum::<usize>()
            + self.keys.iter().map(KeyTable::memory_bytes).sum::<usize>()
    }

    /// Adds a subscription, or replaces the one with the same id. `row` has its parameters and the columns of its
    /// subscriber. Returns the class and the complete row.
    ///
    /// # Errors
    /// The class is unknown, the filter cannot be compiled for every event class of the class's rules, or the index is
    /// full. The previous subscription of this id, if there was one, is then removed.
    pub fn put(
        &mut self,
        subject: Subject<'_>,
        mut row: Row,
        memberships: Memberships,
    ) -> Result<(usize, Row), Problem> {
        self.remove(subject.id);
        let rules = Arc::clone(&self.rules);
        let Some(class) = rules.classes.iter().position(|class| class.name == *subject.class) else {
            return Err(Problem::new(
                Code::UnknownReference,
                "",
                format!("there is no subscription class `{}`", subject.class),
            )
            .param("kind", "subscription_class"));
        };
        let plan = &rules.classes[class];
        if plan.used_columns[plan.memberships_at()] {
            row.resize(plan.width(), Value::Null);
            row[plan.memberships_at()] = Value::Integer(memberships.0.cast_signed());
        }
        let channel = self.channel(subject.channel)?;
        let of_subscriber = row.get(plan.fields.len()..).unwrap_or_default();
        let filters = self.take_filters(class, subject.filter, of_subscriber)?;
        let Some(slot) = self.tables[class].insert(subject.id, subject.subscriber, channel, &row) else {
            filters.iter().for_each(|(filter_table, number)| self.filter_tables[*filter_table].release_slot(*number));
            return Err(Problem::new(Code::LimitReached, "", "the shard is full"));
        };
        for (filter_table, number) in filters {
            self.filter_tables[filter_table].file(slot, Some(number));
        }
        let context = EvalContext { event: &[], parameters: Parameters::Row(&row) };
        for rule in &rules.classes[class].rules {
            let rule = rules.rule(*rule);
            if !memberships.includes(rule.audience) {
                continue;
            }
            let filter = rule.filters.and_then(|filter_table| self.filter_tables[filter_table].of(slot));
            for (at, branch) in rule.branches.iter().enumerate() {
                let groups = &mut self.groups[rule.first_branch + at];
                let keys = &mut self.keys[branch.asks];
                file(branch, context, slot, filter, groups, keys, &mut self.key);
            }
        }
        Ok((class, row))
    }

    /// The numbers of a filter in each filter table of a class.
    fn take_filters(
        &mut self,
        class: usize,
        filter: Option<&Filter>,
        subscriber: &[Value],
    ) -> Result<Vec<(usize, FilterNumber)>, Problem> {
        let rules = Arc::clone(&self.rules);
        let Some(filter) = filter else { return Ok(Vec::new()) };
        if !rules.classes[class].takes_filters {
            return Err(Problem::new(Code::NotApplicable, "filter", "its class does not accept filters"));
        }
        let mut taken = Vec::new();
        for filter_table in &rules.classes[class].filters {
            match self.filter_tables[*filter_table].take(filter, &rules.filters[*filter_table].scope, subscriber) {
                Ok(number) => taken.push((*filter_table, number)),
                Err(problems) => {
                    taken.iter().for_each(|(filter_table, number): &(usize, FilterNumber)| {
                        self.filter_tables[*filter_table].release_slot(*number)
                    });
                    let first = problems.into_iter().next();
                    let first = first
                        .unwrap_or_else(|| Problem::new(Code::InvalidExpression, "", "the filter cannot be compiled"));
                    return Err(Problem { path: "filter".to_owned(), ..first });
                }
            }
        }
        Ok(taken)
    }

    /// Removes a subscription, if it is present.
    pub fn remove(&mut self, id: SubscriptionId) {
        for class in 0..self.tables.len() {
            if let Some(slot) = self.tables[class].remove(id) {
                for filter_table in &self.rules.classes[class].filters {
                    self.filter_tables[*filter_table].release_slot(slot);
                }
                self.sweep(class);
                return;
            }
            if self.sweeps[class].is_some() {
                self.sweep(class);
            }
        }
    }

    fn channel(&mut self, channel: Option<&Name>) -> Result<u16, Problem> {
        let Some(channel) = channel else { return Ok(0) };
        let at = match self.channels.iter().position(|known| known == channel) {
            Some(at) => at,
            None => {
                self.channels.push(channel.clone());
                self.channels.len() - 1
            }
        };
        u16::try_from(at + 1)
            .map_err(|_| Problem::new(Code::TooMany, "", "there are more than 65,535 channels").param("limit", 65_535))
    }

    /// Removes entries of deleted subscriptions from the index, a few at each change, so that no change takes long.
    fn sweep(&mut self, class: usize) {
        let table = &mut self.tables[class];
        if self.sweeps[class].is_none() {
            if !table.begin_sweep() {
                return;
            }
            self.sweeps[class] = Some(Sweep::default());
        }
        let rules = Arc::clone(&self.rules);
        let branches = rules.classes[class].rules.iter().flat_map(|rule| {
            let rule = rules.rule(*rule);
            rule.branches.iter().zip(rule.first_branch..)
        });
        let mut looks = LOOKS_PER_CHANGE;
        let mut sweep = self.sweeps[class].take().unwrap_or_default();
        for (branch, at) in branches.skip(sweep.branch) {
            let (groups, keys) = (&mut self.groups[at], &mut self.keys[branch.asks]);
            match groups.sweep(keys, sweep.sweep_position, &mut looks, &|slot| !table.is_dead(slot)) {
                Some(sweep_position) => {
                    sweep.sweep_position = sweep_position;
                    self.sweeps[class] = Some(sweep);
                    return;
                }
                None => sweep = Sweep { branch: sweep.branch + 1, sweep_position: SweepPosition::default() },
            }
        }
        table.end_sweep();
    }
}

/// Indexes a subscription in a branch, unless its guards or values exclude any match there.
fn file(
    branch: &Branch,
    context: EvalContext<'_>,
    slot: u32,
    filter: Option<FilterNumber>,
    groups: &mut Groups,
    keys: &mut KeyTable,
    key: &mut Vec<u8>,
) {
    let holds = |guard| holds(guard, context).unwrap_or(false);
    if !branch.subscription_guards.iter().all(holds) {
        return;
    }
    let end = |ordered: &Ordered| ordered.measure.key(&value(&ordered.subscription, context).ok()?);
    let ends = match &branch.range {
        Range::None => Some((0, 0)),
        Range::One(only) => end(only).map(|key| (key, 0)),
        Range::Two(ends) => end(&ends[0]).zip(end(&ends[1])),
    };
    let Some((low, high)) = ends else { return };
    let entry = Entry { key: low, high, slot };
    key.clear();
    if let (Some(filter), false) = (filter, branch.is_indexed()) {
        key.extend_from_slice(&filter.to_le_bytes());
        let number = keys.number(key);
        return groups.insert(keys, number, entry);
    }
    // The list key is last, since it varies.
    for part in branch.keys.iter().filter(|part| !part.any_of) {
        match value(&part.subscription, context).and_then(|eval_value| write_key(&eval_value, key)) {
            Ok(()) => {}
            Err(_) => return,
        }
    }
    let Some(list) = branch.keys.iter().find(|part| part.any_of) else {
        let number = keys.number(key);
        return groups.insert(keys, number, entry);
    };
    let Ok(EvalValue::List(items)) = value(&list.subscription, context) else { return };
    let start = key.len();
    let mut filed: Vec<Vec<u8>> = Vec::with_capacity(items.len());
    for item in items.iter() {
        key.truncate(start);
        if write_key(&item, key).is_ok() {
            filed.push(key.clone());
        }
    }
    filed.sort_unstable();
    filed.dedup();
    for key in filed {
        let number = keys.number(&key);
        groups.insert(keys, number, entry);
    }
}
