//! Conformance suite of the inbox port. Each scenario runs on every backend, and random operations give equal results
//! on both.

use serde_json::Map;
use tocsin_model::{
    id::{EventBatchId, EventId, NotificationBatchId, NotificationId},
    inbox::Wording,
};

use super::*;
use crate::{
    memory::inbox::MemoryInbox,
    sqlite::inbox::{InboxOptions, SqliteInbox},
};

fn check(scenario: impl AsyncFn(&dyn Inbox)) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    println!("in memory");
    runtime.block_on(scenario(&MemoryInbox::default()));
    println!("on SQLite");
    let folder = tempfile::tempdir().expect("a folder");
    runtime.block_on(scenario(&open(folder.path())));
}

fn open(folder: &std::path::Path) -> SqliteInbox {
    SqliteInbox::open(folder, &InboxOptions { reserve_bytes: 0, readers: 1 }).expect("the inbox opens")
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().expect("a runtime").block_on(future)
}

const fn at(seconds: i64) -> Timestamp {
    Timestamp::from_millis(seconds * 1_000)
}

const FAR: Timestamp = at(1_000_000_000);

fn name(text: &str) -> Name {
    text.parse().expect("a name")
}

fn id(batch: u64, ordinal: u32) -> NotificationId {
    NotificationId { batch: NotificationBatchId(batch), ordinal }
}

fn content(text: &str, event: u64) -> InboxContent {
    InboxContent {
        application: name("quakes"),
        class: name("shaken"),
        channel: Some(name("inbox")),
        event: Some(EventId { batch: EventBatchId(event), ordinal: 0 }),
        wording: Wording {
            text: Some(text.to_owned()),
            data: Map::from_iter([("n".into(), 5.into())]),
            ..Wording::default()
        },
        translations: Default::default(),
    }
}

fn item(subscriber: u64, id: NotificationId, text: &str) -> NewItem {
    let (subscriber, content) = (SubscriberNumber(subscriber), Arc::new(content(text, id.batch.0)));
    NewItem { subscriber, id, content, expires_at: FAR }
}

fn reader(subscriber: u64) -> FeedReader {
    FeedReader { subscriber: SubscriberNumber(subscriber), broadcasts: Vec::new() }
}

/// Reader in every audience.
fn all_audiences(inbox: &dyn Inbox, subscriber: u64) -> FeedReader {
    FeedReader {
        subscriber: SubscriberNumber(subscriber),
        broadcasts: inbox.broadcast_heads().iter().map(|head| head.id).collect(),
    }
}

fn announcement(title: &str, text: &str, expires_at: Timestamp) -> NewBroadcast {
    let content = InboxContent { channel: None, event: None, ..content(text, 0) };
    NewBroadcast { name: name(title), audience: None, content, expires_at }
}

async fn texts(inbox: &dyn Inbox, reader: &FeedReader, item_filter: InboxItemFilter, now: Timestamp) -> Vec<String> {
    let found = inbox.feed(reader, &FeedFilter::of_items(item_filter), None, 100, now).await.expect("a feed");
    found.iter().map(|item| item.content.wording.text.clone().unwrap_or_default()).collect()
}

/// Changes, one line each.
fn described(changes: &FeedChanges) -> Vec<String> {
    let change = |(place, change): &(u64, FeedChange)| match change {
        FeedChange::New(item) => format!("{place} new {}", item.id),
        FeedChange::Changed(item) => format!("{place} changed {}", item.id),
        FeedChange::Removed(id) => format!("{place} removed {id}"),
    };
    changes.changes.iter().map(change).collect()
}

#[test]
fn a_repeated_delivery_makes_no_second_item() {
    check(async |inbox| {
        let both = || vec![item(1, id(7, 0), "a"), item(2, id(7, 1), "a")];
        let first = inbox.put_items(both(), 10, at(1)).await.expect("stored");
        assert_eq!(first, DeliveryCounts { new: 2, known: 0, evicted: 0 });
        let mut again = both();
        again.push(item(1, id(7, 2), "b"));
        again.push(item(1, id(7, 2), "b"));
        let second = inbox.put_items(again, 10, at(2)).await.expect("stored");
        assert_eq!(second, DeliveryCounts { new: 1, known: 3, evicted: 0 });
        assert_eq!(texts(inbox, &reader(1), InboxItemFilter::All, at(3)).await, ["b", "a"]);
        assert_eq!(texts(inbox, &reader(2), InboxItemFilter::All, at(3)).await, ["a"]);
        // Nor does a repeated delivery of a removed item.
        let gone = vec![ItemId::Notification(id(7, 0))];
        assert_eq!(inbox.mark(&reader(1), gone.clone(), Mark::Deleted, at(4)).await.expect("marked"), gone);
        assert_eq!(inbox.mark(&reader(1), gone.clone(), Mark::Deleted, at(4)).await.expect("marked"), []);
        let third = inbox.put_items(both(), 10, at(5)).await.expect("stored");
        assert_eq!(third, DeliveryCounts { new: 0, known: 2, evicted: 0 });
        assert_eq!(texts(inbox, &reader(1), InboxItemFilter::All, at(6)).await, ["b"]);
    });
}

#[test]
fn equal_contents_are_stored_once() {
    check(async |inbox| {
        let many = (0..500).map(|number| item(u64::from(number), id(7, number), "a")).collect();
        inbox.put_items(many, 10, at(1)).await.expect("stored");
        let more = (500..600).map(|number| item(u64::from(number), id(7, number), "a")).collect();
        inbox.put_items(more, 10, at(1)).await.expect("stored");
        inbox.put_items(vec![item(1, id(8, 0), "of another event")], 10, at(1)).await.expect("stored");
        assert_eq!(inbox.counts(), InboxCounts { items: 601, contents: 2 });
        for subscriber in 0..600 {
            let ids = vec![ItemId::Notification(id(7, subscriber))];
            inbox.mark(&reader(u64::from(subscriber)), ids, Mark::Deleted, at(2)).await.expect("marked");
        }
        assert_eq!(inbox.counts(), InboxCounts { items: 1, contents: 1 });
    });
}

#[test]
fn marks_are_idempotent_and_affect_lists() {
    check(async |inbox| {
        inbox
            .put_items((0..4).map(|number| item(1, id(1, number), &number.to_string())).collect(), 10, at(1))
            .await
            .expect("stored");
        let of = |number: u32| vec![ItemId::Notification(id(1, number))];
        let me = reader(1);
        assert_eq!(inbox.unread(&me, at(2)).await.expect("a count"), 4);
        let before = inbox.newest();
        for _ in 0..2 {
            inbox.mark(&me, of(0), Mark::Read, at(3)).await.expect("marked");
            inbox.mark(&me, of(1), Mark::Archived, at(3)).await.expect("marked");
            inbox.mark(&me, of(2), Mark::Unread, at(3)).await.expect("marked");
        }
        assert_eq!(inbox.newest(), before + 2, "an unchanged item is not logged");
        assert_eq!(texts(inbox, &me, InboxItemFilter::Current, at(4)).await, ["3", "2", "0"]);
        assert_eq!(texts(inbox, &me, InboxItemFilter::Unread, at(4)).await, ["3", "2"]);
        assert_eq!(texts(inbox, &me, InboxItemFilter::Read, at(4)).await, ["0"]);
        assert_eq!(texts(inbox, &me, InboxItemFilter::Archived, at(4)).await, ["1"]);
        assert_eq!(inbox.unread(&me, at(4)).await.expect("a count"), 2);
        let read = inbox.item(&me, of(0)[0], at(4)).await.expect("read").expect("it is there");
        assert_eq!((read.read_at, read.archived_at), (Some(at(3)), None));
        // Other subscribers cannot see or change it.
        assert_eq!(inbox.item(&reader(2), of(0)[0], at(4)).await.expect("read"), None);
        assert_eq!(inbox.mark(&reader(2), of(0), Mark::Deleted, at(4)).await.expect("marked"), []);
        // Items added meanwhile stay unread.
        let seen = inbox.newest();
        inbox.put_items(vec![item(1, id(2, 0), "later")], 10, at(5)).await.expect("stored");
        let all = FeedFilter::of_items(InboxItemFilter::Unread);
        assert_eq!(inbox.mark_all(&me, &all, seen, Mark::Read, at(6)).await.expect("marked"), 2);
        assert_eq!(inbox.mark_all(&me, &all, seen, Mark::Read, at(6)).await.expect("marked"), 0);
        assert_eq!(texts(inbox, &me, InboxItemFilter::Unread, at(7)).await, ["later"]);
        let other = FeedFilter { class: Some(name("other")), ..FeedFilter::default() };
        assert_eq!(inbox.mark_all(&me, &other, u64::MAX, Mark::Deleted, at(7)).await.expect("marked"), 0);
        let own = FeedFilter {
            class: Some(name("shaken")),
            channel: Some(name("inbox")),
            application: Some(name("quakes")),
            item_filter: InboxItemFilter::All,
        };
        assert_eq!(inbox.mark_all(&me, &own, u64::MAX, Mark::Deleted, at(7)).await.expect("marked"), 5);
        assert_eq!(inbox.counts(), InboxCounts::default());
    });
}

#[test]
fn a_feed_is_read_page_by_page_and_has_a_bound() {
    check(async |inbox| {
        for number in 0..20 {
            let delivered =
                inbox.put_items(vec![item(1, id(1, number), &number.to_string())], 12, at(1)).await.expect("stored");
            assert_eq!(delivered.evicted, u64::from(number >= 12));
        }
        let (mut before, mut pages) = (None, Vec::new());
        loop {
            let page = inbox.feed(&reader(1), &FeedFilter::default(), before, 5, at(2)).await.expect("a page");
            let Some(last) = page.last() else { break };
            before = Some(last.number);
            pages.push(
                page.iter().map(|item| item.content.wording.text.clone().expect("text")).collect::<Vec<_>>().join(" "),
            );
        }
        assert_eq!(pages, ["19 18 17 16 15", "14 13 12 11 10", "9 8"]);
        assert_eq!(inbox.counts().items, 12);
    });
}

#[test]
fn changes_since_a_sequence_are_reported() {
    check(async |inbox| {
        let me = reader(1);
        let put = async |number: u32| {
            inbox
                .put_items(vec![item(1, id(1, number), "x"), item(2, id(2, number), "y")], 10, at(1))
                .await
                .expect("stored");
        };
        let changes = async |after: u64, limit: usize| inbox.changes(&me, after, limit, at(9)).await.expect("changes");
        put(0).await;
        put(1).await;
        let seen = inbox.newest();
        assert_eq!(described(&changes(seen, 9).await), [""; 0]);
        put(2).await;
        put(3).await;
        let of = |number: u32| vec![ItemId::Notification(id(1, number))];
        inbox.mark(&me, of(0), Mark::Read, at(2)).await.expect("marked");
        inbox.mark(&me, of(1), Mark::Deleted, at(2)).await.expect("marked");
        inbox.mark(&me, of(2), Mark::Deleted, at(2)).await.expect("marked");
        inbox.mark(&me, of(3), Mark::Read, at(2)).await.expect("marked");
        let all = changes(seen, 9).await;
        assert_eq!(described(&all), ["9 changed n-1-0", "10 removed n-1-1", "12 new n-1-3"]);
        assert_eq!((all.upto, all.more), (12, false));
        // Reading in pages gives the same changes.
        let (mut after, mut lines) = (seen, Vec::new());
        loop {
            let some = changes(after, 1).await;
            lines.extend(described(&some));
            after = some.upto;
            if !some.more {
                break;
            }
        }
        // Items added and changed between pages are reported as changed; the item is complete each time.
        assert_eq!(lines, ["9 changed n-1-0", "10 removed n-1-1", "11 removed n-1-2", "12 changed n-1-3"]);
        assert!(matches!(inbox.changes(&me, 99, 9, at(9)).await, Err(StoreError::Missing(_))), "what never was");
        // Deleted tombstones cannot be reported.
        let later = at(10) + TOMBSTONES_KEPT;
        inbox.expire(later, 100).await.expect("removed");
        assert!(matches!(inbox.changes(&me, seen, 9, later).await, Err(StoreError::Missing(_))));
        assert_eq!(described(&inbox.changes(&me, 11, 9, later).await.expect("changes")), ["12 changed n-1-3"]);
    });
}

#[test]
fn expired_items_are_invisible_at_once_and_deleted_in_steps() {
    check(async |inbox| {
        let items =
            (0..10).map(|number| NewItem { expires_at: at(100 + i64::from(number)), ..item(1, id(1, number), "x") });
        inbox.put_items(items.collect(), 100, at(1)).await.expect("stored");
        assert_eq!(inbox.unread(&reader(1), at(104)).await.expect("a count"), 5);
        assert_eq!(texts(inbox, &reader(1), InboxItemFilter::All, at(104)).await.len(), 5);
        assert_eq!(inbox.item(&reader(1), ItemId::Notification(id(1, 0)), at(104)).await.expect("read"), None);
        assert_eq!(inbox.expire(at(104), 3).await.expect("removed"), (3, true));
        assert_eq!(inbox.expire(at(104), 3).await.expect("removed"), (2, false));
        assert_eq!(inbox.counts(), InboxCounts { items: 5, contents: 1 });
        assert_eq!(inbox.expire(at(1000), 30).await.expect("removed"), (5, false));
        assert_eq!(inbox.counts(), InboxCounts::default());
    });
}

#[test]
fn a_broadcast_is_stored_once_with_state_per_reader() {
    check(async |inbox| {
        let (stored, is_new) = inbox.put_broadcast(announcement("news", "v1", FAR), at(1)).await.expect("stored");
        assert!(is_new && stored.readers == 0);
        let (again, is_new) = inbox.put_broadcast(announcement("news", "v1", FAR), at(2)).await.expect("stored");
        assert!(!is_new && again == stored && inbox.newest() == stored.id.0, "the same changes nothing");
        inbox.put_items(vec![item(1, id(1, 0), "own")], 10, at(3)).await.expect("stored");
        inbox.put_broadcast(announcement("more", "second", at(50)), at(4)).await.expect("stored");
        let (one, other) = (all_audiences(inbox, 1), all_audiences(inbox, 2));
        assert_eq!(texts(inbox, &one, InboxItemFilter::Current, at(5)).await, ["second", "own", "v1"]);
        assert_eq!(texts(inbox, &other, InboxItemFilter::Current, at(5)).await, ["second", "v1"]);
        assert_eq!(texts(inbox, &reader(2), InboxItemFilter::Current, at(5)).await, [""; 0], "not in the audience");
        assert_eq!(inbox.item(&reader(2), ItemId::Broadcast(stored.id), at(5)).await.expect("read"), None);
        assert_eq!(inbox.unread(&one, at(5)).await.expect("a count"), 3);
        let seen = inbox.newest();
        let news = vec![ItemId::Broadcast(stored.id)];
        for _ in 0..2 {
            inbox.mark(&one, news.clone(), Mark::Read, at(6)).await.expect("marked");
        }
        assert_eq!(inbox.unread(&one, at(7)).await.expect("a count"), 2);
        assert_eq!(inbox.unread(&other, at(7)).await.expect("a count"), 2, "others have not read it");
        assert_eq!(inbox.broadcasts(&name("quakes"), at(7)).await.expect("a list")[1].readers, 1);
        inbox.mark(&other, news.clone(), Mark::Deleted, at(8)).await.expect("marked");
        assert_eq!(texts(inbox, &other, InboxItemFilter::All, at(9)).await, ["second"]);
        let lines = |changes: FeedChanges| {
            described(&changes).iter().map(|line| line.split_once(' ').expect("two").1.to_owned()).collect::<Vec<_>>()
        };
        let news = stored.id;
        assert_eq!(lines(inbox.changes(&one, seen, 9, at(9)).await.expect("changes")), [format!("changed {news}")]);
        assert_eq!(lines(inbox.changes(&other, seen, 9, at(9)).await.expect("changes")), [format!("removed {news}")]);
        // An edited broadcast keeps its readers.
        let (edited, is_new) = inbox.put_broadcast(announcement("news", "v2", FAR), at(10)).await.expect("stored");
        assert!(!is_new && edited.id == stored.id && edited.readers == 1);
        assert_eq!(texts(inbox, &one, InboxItemFilter::Read, at(11)).await, ["v2"]);
        assert_eq!(texts(inbox, &one, InboxItemFilter::Current, at(51)).await, ["own", "v2"], "the other is expired");
        let seen = inbox.newest();
        inbox.withdraw_broadcast(&name("quakes"), &name("news"), at(52)).await.expect("withdrawn");
        assert!(inbox.withdraw_broadcast(&name("quakes"), &name("news"), at(52)).await.is_err());
        assert_eq!(texts(inbox, &one, InboxItemFilter::All, at(53)).await, ["own"]);
        assert_eq!(lines(inbox.changes(&one, seen, 9, at(53)).await.expect("changes")), [format!("removed {news}")]);
        let later = at(53) + TOMBSTONES_KEPT;
        assert_eq!(inbox.expire(later, 100).await.expect("removed"), (2, false));
        assert_eq!(inbox.counts(), InboxCounts { items: 1, contents: 1 });
        assert!(inbox.broadcast_heads().is_empty());
        let (anew, is_new) = inbox.put_broadcast(announcement("news", "v3", FAR), later).await.expect("stored");
        assert!(is_new && anew.id != stored.id);
    });
}

#[test]
fn a_feed_is_removed_with_its_subscriber() {
    check(async |inbox| {
        inbox
            .put_items(vec![item(1, id(1, 0), "a"), item(1, id(1, 1), "b"), item(2, id(1, 2), "a")], 10, at(1))
            .await
            .expect("stored");
        inbox.mark(&reader(1), vec![ItemId::Notification(id(1, 1))], Mark::Deleted, at(2)).await.expect("marked");
        inbox.remove_feed(SubscriberNumber(1)).await.expect("removed");
        assert_eq!(texts(inbox, &reader(1), InboxItemFilter::All, at(3)).await, [""; 0]);
        assert_eq!(inbox.counts(), InboxCounts { items: 1, contents: 1 });
    });
}

#[test]
fn listeners_wake_after_the_commit() {
    check(async |inbox| {
        let mut mine = inbox.listen(SubscriberNumber(1));
        let mut other = inbox.listen(SubscriberNumber(2));
        inbox.put_items(vec![item(1, id(1, 0), "a")], 10, at(1)).await.expect("stored");
        mine.changed().await;
        assert_eq!(inbox.unread(&reader(1), at(2)).await.expect("a count"), 1);
        assert!(futures_util::FutureExt::now_or_never(other.changed()).is_none());
        inbox.put_broadcast(announcement("news", "v1", FAR), at(3)).await.expect("stored");
        mine.changed().await;
        other.changed().await;
    });
}

#[test]
fn data_survives_a_restart() {
    let folder = tempfile::tempdir().expect("a folder");
    let before = {
        let inbox = open(folder.path());
        block_on(async {
            inbox.put_items(vec![item(1, id(1, 0), "a"), item(1, id(1, 1), "b")], 10, at(1)).await.expect("stored");
            inbox.put_broadcast(announcement("news", "v1", FAR), at(3)).await.expect("stored");
            inbox
                .mark(&all_audiences(&inbox, 1), vec![ItemId::Broadcast(InboxBroadcastId(3))], Mark::Read, at(3))
                .await
                .expect("marked");
            inbox.feed(&all_audiences(&inbox, 1), &FeedFilter::default(), None, 9, at(4)).await.expect("a feed")
        })
    };
    let inbox = open(folder.path());
    assert_eq!((inbox.newest(), inbox.counts()), (4, InboxCounts { items: 2, contents: 3 }));
    let after =
        block_on(inbox.feed(&all_audiences(&inbox, 1), &FeedFilter::default(), None, 9, at(4))).expect("a feed");
    assert_eq!(after, before);
}

#[test]
fn a_full_disk_refuses_items_but_allows_removals() {
    let folder = tempfile::tempdir().expect("a folder");
    block_on(open(folder.path()).put_items(vec![item(1, id(1, 0), "a")], 10, at(1))).expect("stored");
    let full = SqliteInbox::open(folder.path(), &InboxOptions { reserve_bytes: u64::MAX, readers: 1 }).expect("opens");
    block_on(async {
        let refused = full.put_items(vec![item(1, id(1, 1), "b")], 10, at(2)).await;
        assert!(matches!(refused, Err(StoreError::Full(_))), "{refused:?}");
        let refused = full.put_broadcast(announcement("news", "v1", FAR), at(2)).await;
        assert!(matches!(refused, Err(StoreError::Full(_))), "{refused:?}");
        let one = vec![ItemId::Notification(id(1, 0))];
        assert_eq!(full.mark(&reader(1), one.clone(), Mark::Read, at(3)).await.expect("marked"), one);
        assert_eq!(texts(&full, &reader(1), InboxItemFilter::Read, at(3)).await, ["a"]);
        assert_eq!(full.mark(&reader(1), one.clone(), Mark::Deleted, at(3)).await.expect("marked"), one);
        assert_eq!(full.counts(), InboxCounts::default());
    });
}

#[test]
fn slow_broadcasts_have_a_bound() {
    check(async |inbox| {
        for number in 0..BROADCASTS_MAX {
            let new = announcement(&format!("b{number}"), "x", at(if number == 0 { 100 } else { 200 }));
            inbox.put_broadcast(new, at(1)).await.expect("stored");
        }
        let one_more = announcement("more", "x", at(200));
        let refused = inbox.put_broadcast(one_more.clone(), at(2)).await;
        assert!(matches!(refused, Err(StoreError::Full(_))), "{refused:?}");
        assert!(
            inbox.put_broadcast(announcement("b5", "other", at(200)), at(2)).await.is_ok(),
            "an existing one may change"
        );
        assert!(inbox.put_broadcast(one_more, at(101)).await.is_ok(), "one is expired");
        // The number of withdrawn broadcasts kept is bounded; readers behind a deleted one must reload.
        let seen = inbox.newest();
        let rest: Vec<Name> =
            inbox.broadcasts(&name("quakes"), at(102)).await.expect("a list").into_iter().map(|one| one.name).collect();
        for title in &rest {
            inbox.withdraw_broadcast(&name("quakes"), title, at(102)).await.expect("withdrawn");
        }
        assert!(inbox.changes(&all_audiences(inbox, 1), seen, 9, at(103)).await.is_ok());
        inbox.put_broadcast(announcement("last", "x", at(200)), at(103)).await.expect("stored");
        inbox.withdraw_broadcast(&name("quakes"), &name("last"), at(103)).await.expect("withdrawn");
        assert!(matches!(inbox.changes(&all_audiences(inbox, 1), seen, 9, at(104)).await, Err(StoreError::Missing(_))));
        assert!(inbox.broadcast_heads().len() <= BROADCASTS_MAX + 1);
    });
}

/// Random operations give the same results on both backends.
#[test]
fn both_backends_agree() {
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(|| fastrand::u64(..));
    println!("SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let folder = tempfile::tempdir().expect("a folder");
    let (memory, file) = (MemoryInbox::default(), open(folder.path()));
    let both: [&dyn Inbox; 2] = [&memory, &file];
    block_on(async {
        let mut now = at(1);
        for _ in 0..400 {
            let pause_max = if random.u8(..) < 10 { 400_000 } else { 60 };
            now = now + Duration::from_secs(random.u64(0..pause_max));
            let (who, kind) = (random.u64(1..4), random.u32(0..12));
            let mark = Mark::ALL[random.usize(..Mark::ALL.len())];
            let item_filter = InboxItemFilter::ALL[random.usize(..InboxItemFilter::ALL.len())];
            let ids: Vec<ItemId> = (0..random.usize(1..4))
                .map(|_| match random.bool() {
                    true => ItemId::Notification(id(random.u64(1..6), random.u32(0..6))),
                    false => ItemId::Broadcast(InboxBroadcastId(random.u64(1..60))),
                })
                .collect();
            let items: Vec<NewItem> = (0..random.usize(1..6))
                .map(|_| {
                    let id = id(random.u64(1..6), random.u32(0..6));
                    // A notification always has the same subscriber.
                    let subscriber = u64::from(id.ordinal) % 3 + 1;
                    NewItem {
                        expires_at: now + Duration::from_secs(random.u64(1..100_000)),
                        ..item(subscriber, id, &random.u8(0..3).to_string())
                    }
                })
                .collect();
            let expires_at = now + Duration::from_secs(random.u64(1..100_000));
            let news = announcement(["a", "b", "c"][random.usize(..3)], &random.u8(0..3).to_string(), expires_at);
            let (after, limit) = (random.u64(0..=memory.newest()), random.usize(1..9));
            let removes = random.u8(..) < 20;
            let mut said = Vec::new();
            for inbox in both {
                let me = all_audiences(inbox, who);
                said.push(match kind {
                    0..4 => format!("{:?}", inbox.put_items(items.clone(), 4, now).await),
                    4..7 => format!("{:?}", inbox.mark(&me, ids.clone(), mark, now).await),
                    7 => {
                        format!("{:?}", inbox.mark_all(&me, &FeedFilter::of_items(item_filter), after, mark, now).await)
                    }
                    8 => format!("{:?}", inbox.put_broadcast(news.clone(), now).await),
                    9 => format!("{:?}", inbox.withdraw_broadcast(&name("quakes"), &news.name, now).await),
                    10 => format!("{:?}", inbox.expire(now, 1_000).await),
                    11 if removes => format!("{:?}", inbox.remove_feed(SubscriberNumber(who)).await),
                    _ => String::new(),
                });
                let last = said.len() - 1;
                said[last] += &format!(
                    "\n{:?}\n{:?}\n{:?}\n{:?}\n{:?} {:?}",
                    inbox.feed(&me, &FeedFilter::of_items(item_filter), Some(after), limit, now).await,
                    inbox.changes(&me, after, limit, now).await,
                    inbox.unread(&me, now).await,
                    inbox.broadcasts(&name("quakes"), now).await,
                    inbox.counts(),
                    inbox.newest(),
                );
            }
            assert_eq!(said[0], said[1]);
        }
    });
}

#[test]
fn a_feed_is_moved_to_another_subscriber() {
    check(async |inbox| {
        let items = vec![item(1, id(1, 0), "one"), item(1, id(2, 0), "two"), item(2, id(3, 0), "three")];
        inbox.put_items(items, 10, at(1)).await.expect("stored");
        inbox.mark(&reader(1), vec![ItemId::Notification(id(1, 0))], Mark::Read, at(2)).await.expect("marked");
        let place = inbox.newest();
        for (round, went) in [(1, 2), (2, 0)] {
            let (from, into) = (SubscriberNumber(1), SubscriberNumber(2));
            assert_eq!(inbox.move_feed(from, into).await.expect("moved"), went, "round {round}");
            assert_eq!(inbox.unread(&reader(2), at(3)).await.expect("read"), 2);
            assert_eq!(inbox.unread(&reader(1), at(3)).await.expect("read"), 0);
        }
        let changes = inbox.changes(&reader(2), place, 9, at(3)).await.expect("the feed");
        assert_eq!(changes.changes.len(), 2, "readers see the items as changed");
        let again = inbox.put_items(vec![item(1, id(1, 0), "one")], 10, at(4)).await.expect("stored");
        assert_eq!(again.new, 0, "a repeated delivery brings nothing back");
    });
}
