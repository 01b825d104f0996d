//! Joins what several shards cut from the same event batches, so that a rule's notifications are not scattered over as
//! many small batches as there are shards.

use std::collections::BTreeMap;

use tocsin_model::{
    id::{EventId, Name},
    notification::{Column, EventRun, Notifications},
};

use crate::{
    cut::CutBatch,
    rule::{RuleNumber, RuleSet},
};

/// Joins the shares of all shards. Full batches come first, shard by shard; what is left of a rule and channel is
/// joined in the order of its events, those of one event shard by shard, and cut anew. The same shares give the same
/// batches.
pub fn join(rules: &RuleSet, mut shares: Vec<Vec<CutBatch>>) -> Vec<CutBatch> {
    if shares.len() == 1 {
        return shares.swap_remove(0);
    }
    let mut joined = Vec::new();
    let mut parts: BTreeMap<(RuleNumber, Option<Name>), Vec<Notifications>> = BTreeMap::new();
    for cut in shares.into_iter().flatten() {
        if cut.notifications.count() >= rules.rule(cut.rule).batch_size {
            joined.push(cut);
        } else {
            parts.entry((cut.rule, cut.channel)).or_default().push(cut.notifications);
        }
    }
    for ((rule, channel), parts) in parts {
        let class = rules.notification_class(rule);
        let merged = merge(parts, rules.rule(rule).batch_size);
        let of_part = |notifications| CutBatch { rule, class: class.clone(), channel: channel.clone(), notifications };
        joined.extend(merged.into_iter().map(of_part));
    }
    joined
}

/// Merges parts, each in the order of its events, into one sequence in batches of this size.
fn merge(parts: Vec<Notifications>, size: usize) -> Vec<Notifications> {
    if parts.len() == 1 {
        return parts;
    }
    let mut cursors: Vec<Cursor<'_>> = parts.iter().map(Cursor::new).collect();
    let mut merged = Vec::new();
    let mut open = Notifications::default();
    // The first of the smallest: within one event the shards come in their order.
    while let Some(next) = cursors.iter_mut().filter(|cursor| cursor.event().is_some()).min_by_key(|c| c.event()) {
        let room = size - open.count();
        next.move_to(&mut open, room);
        if open.count() == size {
            merged.push(std::mem::take(&mut open));
        }
    }
    if open.count() > 0 {
        merged.push(open);
    }
    merged
}

/// How far a part has been taken over.
struct Cursor<'a> {
    part: &'a Notifications,
    run: usize,
    /// Notifications of the run that were taken.
    of_run: usize,
    /// Notifications of the part that were taken.
    taken: usize,
}

impl<'a> Cursor<'a> {
    fn new(part: &'a Notifications) -> Cursor<'a> {
        Cursor { part, run: 0, of_run: 0, taken: 0 }
    }

    fn event(&self) -> Option<EventId> {
        self.part.events.get(self.run).map(|run| run.event)
    }

    /// Moves what is left of the run at hand, or as much as there is room for.
    fn move_to(&mut self, out: &mut Notifications, room: usize) {
        let run = self.part.events[self.run];
        let count = room.min(run.count as usize - self.of_run);
        let range = self.taken..self.taken + count;
        match out.events.last_mut() {
            Some(last) if last.event == run.event => last.count += count as u32,
            _ => out.events.push(EventRun { event: run.event, count: count as u32 }),
        }
        out.subscriptions.extend_from_slice(&self.part.subscriptions[range.clone()]);
        for (at, (name, column)) in self.part.captured.iter().enumerate() {
            if out.captured.len() <= at {
                out.captured.push((name.clone(), empty_like(column)));
            }
            out.captured[at].1.append(column, range.clone());
        }
        self.taken += count;
        self.of_run += count;
        if self.of_run == run.count as usize {
            (self.run, self.of_run) = (self.run + 1, 0);
        }
    }
}

fn empty_like(column: &Column) -> Column {
    match column {
        Column::Integers(_) => Column::Integers(Vec::new()),
        Column::Numbers(_) => Column::Numbers(Vec::new()),
        Column::Values(kind, _) => Column::Values(*kind, Vec::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tocsin_model::{
        field::FieldType,
        id::{EventBatchId, SubscriptionId},
        value::Value,
    };

    /// Each letter is a batch and event, each number a subscription.
    fn part(runs: &[(u64, u32, &[u64])], column: impl Fn(Vec<i64>) -> Column) -> Notifications {
        let subscriptions: Vec<u64> = runs.iter().flat_map(|(.., ids)| ids.iter().copied()).collect();
        Notifications {
            events: runs
                .iter()
                .map(|(batch, ordinal, ids)| EventRun {
                    event: EventId { batch: EventBatchId(*batch), ordinal: *ordinal },
                    count: ids.len() as u32,
                })
                .collect(),
            captured: vec![(
                "limit".parse().expect("a name"),
                column(subscriptions.iter().map(|id| *id as i64 * 10).collect()),
            )],
            subscriptions: subscriptions.into_iter().map(SubscriptionId).collect(),
        }
    }

    fn values(integers: Vec<i64>) -> Column {
        Column::Values(FieldType::Integer, integers.into_iter().map(Value::Integer).collect())
    }

    fn told(merged: &[Notifications]) -> Vec<Vec<String>> {
        let lines = |batch: &Notifications| {
            let each = batch.event_of_each().zip(&batch.subscriptions).enumerate();
            each.map(|(at, (event, subscription))| {
                let limit = batch.captured[0].1.value(at).expect("a value for each");
                format!("{}.{} {} {limit:?}", event.batch.0, event.ordinal, subscription.0)
            })
            .collect()
        };
        merged.iter().map(lines).collect()
    }

    #[test]
    fn what_is_left_of_the_shards_is_joined_in_the_order_of_the_events_and_cut_anew() {
        let one = part(&[(1, 0, &[1, 4]), (2, 1, &[1])], Column::Integers);
        let two = part(&[(1, 0, &[2]), (1, 1, &[2, 5])], values);
        let merged = merge(vec![one, two], 4);
        let expected = [
            vec!["1.0 1 Integer(10)", "1.0 4 Integer(40)", "1.0 2 Integer(20)", "1.1 2 Integer(20)"],
            vec!["1.1 5 Integer(50)", "2.1 1 Integer(10)"],
        ];
        assert_eq!(told(&merged), expected);
        let unpacked: Vec<Notifications> =
            merged.iter().map(|batch| Notifications::unpack(&batch.pack()).expect("whole")).collect();
        assert_eq!(unpacked, merged);
    }
}
