//! Joins the notification batches of several shards. So the notifications of a rule are not scattered over as many
//! small batches as there are shards, and those that become one message stay in one batch.

use std::{collections::BTreeMap, ops::Range};

use tocsin_model::{
    id::{EventId, Name, SubscriberNumber},
    notification::{Column, EventRun, Notifications},
};

use crate::{
    cut::CutBatch,
    rule::rule_set::{BatchUnit, RuleNumber, RuleSet},
};

/// Most notifications of one subscriber in a batch of a class with a digest. Further ones form another digest.
const OF_SUBSCRIBER_MAX: usize = 100_000;

/// Joins the batches of all shards. Full batches come first, shard by shard. The rest of a rule and channel is merged
/// in the order of its events, within one event shard by shard, and cut anew. The same input gives the same batches,
/// whose notifications are in the order of their events.
///
/// Classes whose notifications become one message are cut at other boundaries:
/// - With a digest, a subscriber is in one batch only. A batch may then exceed the size of the class, up to 100,000
///   notifications of one subscriber.
/// - With multicast, an event is in one batch, or in as few as its recipients need, each with whole messages.
pub fn join(rules: &RuleSet, shares: Vec<Vec<CutBatch>>) -> Vec<CutBatch> {
    let is_alone = shares.len() == 1;
    let mut joined = Vec::new();
    let mut parts: BTreeMap<(RuleNumber, Option<Name>), Vec<Part>> = BTreeMap::new();
    for cut in shares.into_iter().flatten() {
        let rule = rules.rule(cut.rule);
        let is_done = is_alone || cut.notifications.count() >= rule.batch_size;
        if rule.unit == BatchUnit::Notification && is_done {
            joined.push(cut);
        } else {
            let part = Part { notifications: cut.notifications, subscribers: cut.subscribers };
            parts.entry((cut.rule, cut.channel)).or_default().push(part);
        }
    }
    for ((rule, channel), parts) in parts {
        let (class, size) = (rules.notification_class(rule), rules.rule(rule).batch_size);
        let cut = match rules.rule(rule).unit {
            BatchUnit::Notification => merge(parts, size).into_iter().map(|part| part.notifications).collect(),
            BatchUnit::Subscriber => cut_by_subscriber(merge(parts, usize::MAX), size),
            BatchUnit::Event(recipient_limit) => cut_by_event(merge(parts, usize::MAX), size, recipient_limit),
        };
        let of_part = |notifications| {
            let (class, channel) = (class.clone(), channel.clone());
            CutBatch { rule, class, channel, notifications, subscribers: Vec::new() }
        };
        joined.extend(cut.into_iter().map(of_part));
    }
    joined
}

/// Notifications in the order of their events, and the subscriber of each, where it is known.
#[derive(Debug, Default)]
struct Part {
    notifications: Notifications,
    subscribers: Vec<SubscriberNumber>,
}

/// Merges sorted parts into one sequence, cut into parts of `size`.
fn merge(mut parts: Vec<Part>, size: usize) -> Vec<Part> {
    if parts.len() == 1 && parts[0].notifications.count() <= size {
        return std::mem::take(&mut parts);
    }
    let mut cursors: Vec<Cursor<'_>> = parts.iter().map(Cursor::new).collect();
    let mut merged = Vec::new();
    let mut open = Part::default();
    // The first of the smallest: within one event, shards keep their order.
    while let Some(next) = cursors.iter_mut().filter(|cursor| cursor.event().is_some()).min_by_key(|c| c.event()) {
        let room = size - open.notifications.count();
        next.move_to(&mut open, room);
        if open.notifications.count() == size {
            merged.push(std::mem::take(&mut open));
        }
    }
    if open.notifications.count() > 0 {
        merged.push(open);
    }
    merged
}

/// Cuts so that each subscriber is in one batch, lower numbers first.
fn cut_by_subscriber(parts: Vec<Part>, size: usize) -> Vec<Notifications> {
    let mut cut = Vec::new();
    for Part { notifications, subscribers } in parts {
        if notifications.count() <= size {
            cut.push(notifications);
            continue;
        }
        // Stable, so that a subscriber's notifications stay in the order of their events.
        let mut order: Vec<u32> = (0..notifications.count() as u32).collect();
        order.sort_by_key(|at| subscribers[*at as usize]);
        let mut batch_of = vec![0; order.len()];
        let (mut batch, mut count) = (0, 0);
        for own in order.chunk_by(|one, next| subscribers[*one as usize] == subscribers[*next as usize]) {
            for own in own.chunks(OF_SUBSCRIBER_MAX) {
                if count > 0 && count + own.len() > size {
                    (batch, count) = (batch + 1, 0);
                }
                count += own.len();
                own.iter().for_each(|at| batch_of[*at as usize] = batch);
            }
        }
        cut.extend(distribute(&notifications, &batch_of, batch + 1));
    }
    cut
}

/// Distributes notifications over batches.
fn distribute(notifications: &Notifications, batch_of: &[usize], batches: usize) -> Vec<Notifications> {
    let mut out = vec![Notifications::default(); batches];
    for (at, event) in notifications.event_of_each().enumerate() {
        push(&mut out[batch_of[at]], notifications, event, at..at + 1);
    }
    out
}

/// Cuts between events; an event of more than `size` is cut after as many whole messages as a batch can hold.
fn cut_by_event(parts: Vec<Part>, size: usize, recipient_limit: usize) -> Vec<Notifications> {
    let whole = (size - size % recipient_limit).max(recipient_limit);
    let mut cut = Vec::new();
    for Part { notifications, .. } in parts {
        let mut open = Notifications::default();
        let mut taken = 0;
        for EventRun { event, count } in &notifications.events {
            let mut left = *count as usize;
            if open.count() > 0 && open.count() + left > size {
                cut.push(std::mem::take(&mut open));
            }
            while left > 0 {
                let some = if left > size { whole.min(left) } else { left };
                push(&mut open, &notifications, *event, taken..taken + some);
                (taken, left) = (taken + some, left - some);
                if left > 0 {
                    cut.push(std::mem::take(&mut open));
                }
            }
        }
        if open.count() > 0 {
            cut.push(open);
        }
    }
    cut
}

/// Appends some notifications of an event.
fn push(out: &mut Notifications, from: &Notifications, event: EventId, range: Range<usize>) {
    match out.events.last_mut() {
        Some(last) if last.event == event => last.count += range.len() as u32,
        _ => out.events.push(EventRun { event, count: range.len() as u32 }),
    }
    out.subscriptions.extend_from_slice(&from.subscriptions[range.clone()]);
    for (at, (name, column)) in from.captured.iter().enumerate() {
        if out.captured.len() <= at {
            out.captured.push((name.clone(), empty_like(column)));
        }
        out.captured[at].1.append(column, range.clone());
    }
}

/// The read position in a part.
struct Cursor<'a> {
    part: &'a Part,
    run: usize,
    /// Notifications of the current run that were moved.
    of_run: usize,
    /// Notifications of the part that were moved.
    taken: usize,
}

impl<'a> Cursor<'a> {
    fn new(part: &'a Part) -> Cursor<'a> {
        Cursor { part, run: 0, of_run: 0, taken: 0 }
    }

    fn event(&self) -> Option<EventId> {
        self.part.notifications.events.get(self.run).map(|run| run.event)
    }

    /// Moves the rest of the current run, or as much as fits into `room`.
    fn move_to(&mut self, out: &mut Part, room: usize) {
        let Part { notifications, subscribers } = self.part;
        let run = notifications.events[self.run];
        let count = room.min(run.count as usize - self.of_run);
        let range = self.taken..self.taken + count;
        if !subscribers.is_empty() {
            out.subscribers.extend_from_slice(&subscribers[range.clone()]);
        }
        push(&mut out.notifications, notifications, run.event, range);
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

    fn rendered(merged: &[Notifications]) -> Vec<Vec<String>> {
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
    fn remainders_of_the_shards_are_merged_by_event_and_cut_anew() {
        let one = part(&[(1, 0, &[1, 4]), (2, 1, &[1])], Column::Integers);
        let two = part(&[(1, 0, &[2]), (1, 1, &[2, 5])], values);
        let parts = [one, two].map(|notifications| Part { notifications, subscribers: Vec::new() });
        let merged: Vec<Notifications> = merge(parts.into(), 4).into_iter().map(|part| part.notifications).collect();
        let expected = [
            vec!["1.0 1 Integer(10)", "1.0 4 Integer(40)", "1.0 2 Integer(20)", "1.1 2 Integer(20)"],
            vec!["1.1 5 Integer(50)", "2.1 1 Integer(10)"],
        ];
        assert_eq!(rendered(&merged), expected);
        let unpacked: Vec<Notifications> =
            merged.iter().map(|batch| Notifications::unpack(&batch.pack()).expect("whole")).collect();
        assert_eq!(unpacked, merged);
    }

    /// The batches of each subscriber, and the sizes of the batches.
    fn batches_of(cut: &[Notifications]) -> (BTreeMap<u64, Vec<usize>>, Vec<usize>) {
        let mut of_each: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
        for (batch, notifications) in cut.iter().enumerate() {
            for subscription in &notifications.subscriptions {
                let batches = of_each.entry(subscription.0 % 100).or_default();
                if batches.last() != Some(&batch) {
                    batches.push(batch);
                }
            }
        }
        (of_each, cut.iter().map(Notifications::count).collect())
    }

    /// The subscriber of a subscription is its last two digits.
    fn of_subscribers(notifications: Notifications) -> Part {
        let subscribers = notifications.subscriptions.iter().map(|id| SubscriberNumber(id.0 % 100)).collect();
        Part { notifications, subscribers }
    }

    #[test]
    fn b6_no_subscriber_of_a_digest_is_in_two_batches() {
        let everybody = [1, 2, 3, 4, 101];
        let one = part(&[(1, 0, &everybody), (1, 1, &everybody), (2, 0, &[3, 1])], Column::Integers);
        let two = part(&[(1, 0, &[7]), (1, 1, &[7, 8]), (2, 0, &[8])], values);
        let cut = cut_by_subscriber(merge(vec![of_subscribers(one), of_subscribers(two)], usize::MAX), 6);
        let (of_each, sizes) = batches_of(&cut);
        assert!(of_each.values().all(|batches| batches.len() == 1), "{of_each:?}");
        // Subscriber 1 has five, 2 two, 3 three, 4 two, 7 two and 8 two.
        assert_eq!(sizes, [5, 5, 6], "{of_each:?}");
        let expected = [
            vec![
                "1.0 1 Integer(10)",
                "1.0 101 Integer(1010)",
                "1.1 1 Integer(10)",
                "1.1 101 Integer(1010)",
                "2.0 1 Integer(10)",
            ],
            vec![
                "1.0 2 Integer(20)",
                "1.0 3 Integer(30)",
                "1.1 2 Integer(20)",
                "1.1 3 Integer(30)",
                "2.0 3 Integer(30)",
            ],
            vec![
                "1.0 4 Integer(40)",
                "1.0 7 Integer(70)",
                "1.1 4 Integer(40)",
                "1.1 7 Integer(70)",
                "1.1 8 Integer(80)",
                "2.0 8 Integer(80)",
            ],
        ];
        assert_eq!(rendered(&cut), expected, "in the order of their events");
    }

    #[test]
    fn b6_one_subscriber_may_have_more_than_a_batch_but_not_without_bound() {
        let many: Vec<u64> = vec![1; OF_SUBSCRIBER_MAX + 3];
        let cut = cut_by_subscriber(vec![of_subscribers(part(&[(1, 0, &[2]), (1, 1, &many)], Column::Integers))], 2);
        assert_eq!(batches_of(&cut).1, [OF_SUBSCRIBER_MAX, 3, 1]);
    }

    #[test]
    fn b6_an_event_of_a_multicast_is_in_as_few_batches_as_it_needs() {
        let ids = |count: u64| (1..=count).collect::<Vec<u64>>();
        let runs = [(1, 0, ids(5)), (1, 1, ids(4)), (1, 2, ids(23)), (1, 3, ids(2))];
        let runs: Vec<(u64, u32, &[u64])> = runs.iter().map(|(batch, at, ids)| (*batch, *at, ids.as_slice())).collect();
        let sizes = |size, limit| {
            let part = Part { notifications: part(&runs, Column::Integers), subscribers: Vec::new() };
            let cut = cut_by_event(vec![part], size, limit);
            let (count, events) = (cut.iter().map(Notifications::count).sum::<usize>(), |part: &Notifications| {
                part.events.iter().map(|run| (run.event.ordinal, run.count)).collect::<Vec<_>>()
            });
            assert_eq!(count, 34);
            cut.iter().map(events).collect::<Vec<_>>()
        };
        assert_eq!(
            sizes(10, 4),
            [vec![(0, 5), (1, 4)], vec![(2, 8)], vec![(2, 8)], vec![(2, 7), (3, 2)]],
            "8 is two whole messages"
        );
        assert_eq!(sizes(6, 50), [vec![(0, 5)], vec![(1, 4)], vec![(2, 23)], vec![(3, 2)]]);
        assert_eq!(sizes(100, 50), [vec![(0, 5), (1, 4), (2, 23), (3, 2)]]);
    }
}
