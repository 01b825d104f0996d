//! Searches of events and notifications, compared with a separate selection.

use tocsin_model::subscriber::{Device, DeviceState};
use tocsin_service::{
    event_search::{EventQuery, FoundEvents},
    notification_search::{FoundNotification, NotificationQuery},
    scanned::{Period, Scanned},
};

use super::*;

fn period(from: i64, to: i64) -> Period {
    Period::new(Some(at(from)), Some(at(to))).expect("a period")
}

/// Ids of all pages of a search.
async fn all_pages(platform: &Platform, query: &NotificationQuery, limit: usize) -> Vec<String> {
    let (mut ids, mut after) = (Vec::new(), None::<String>);
    loop {
        let found = platform.service.search_notifications(&platform.caller, query, after.as_deref(), limit).await;
        let Scanned { items, next, .. } = found.expect("found");
        assert!(items.len() <= limit);
        ids.extend(items.iter().map(|item: &FoundNotification| item.id.to_string()));
        after = next;
        if after.is_none() {
            return ids;
        }
    }
}

/// Ids of all notifications that a test selects, newest first.
fn selected(is_wanted: impl Fn(&Entry, &SentBatch, u32) -> bool) -> Vec<String> {
    let mut ids = Vec::new();
    for (batch, entry, sent_batch) in batches().into_iter().rev() {
        for ordinal in (0..sent_batch.count).rev().filter(|ordinal| is_wanted(entry, sent_batch, *ordinal)) {
            ids.push(format!("n-{}-{ordinal}", batch.0));
        }
    }
    ids
}

fn last_outcome(entry: &Entry, sent_batch: &SentBatch, ordinal: u32) -> Option<Outcome> {
    sent_batch.attempts(entry).into_iter().rfind(|attempt| attempt.0 == ordinal).map(|attempt| attempt.4)
}

#[test]
fn notifications_are_searched_newest_first_by_each_condition() {
    on_each(async |platform| {
        let any = NotificationQuery::default();
        for limit in [1_000, 7, 100] {
            assert_eq!(all_pages(&platform, &any, limit).await, selected(|_, _, _| true), "{limit}");
        }
        let by_class = NotificationQuery { class: Some(name("note")), ..any.clone() };
        let expected = selected(|entry, _, _| entry.class == "quote");
        assert_eq!(all_pages(&platform, &by_class, 2).await, expected);
        let by_channel = NotificationQuery { channel: Some(name("hook")), rule: Some(name("near")), ..any.clone() };
        assert_eq!(all_pages(&platform, &by_channel, 50).await, selected(|_, sent, _| sent.channel == "hook"));
        for outcome in [Outcome::Refused, Outcome::Delivered, Outcome::Deferred] {
            let query = NotificationQuery { outcome: Some(outcome.word().to_owned()), ..any.clone() };
            let expected = selected(|entry, sent, ordinal| last_outcome(entry, sent, ordinal) == Some(outcome));
            assert_eq!(all_pages(&platform, &query, 1).await, expected, "{outcome:?}");
        }
        let by_reason = NotificationQuery { reason: Some("REFUSED 3".to_owned()), ..any.clone() };
        assert_eq!(all_pages(&platform, &by_reason, 5).await, ["n-2-3"]);
        let morning = NotificationQuery { period: period(8 * HOUR, 8 * HOUR + 30_000), ..any.clone() };
        assert_eq!(
            all_pages(&platform, &morning, 3).await,
            selected(|entry, _, _| entry.matched() < 8 * HOUR + 30_000)
        );
        let later = NotificationQuery { period: period(19 * HOUR, 21 * HOUR), ..any.clone() };
        assert_eq!(all_pages(&platform, &later, 60).await, selected(|entry, _, _| entry.at == 20 * HOUR));
    });
}

#[test]
fn notifications_of_a_recipient_are_found() {
    on_each(async |platform| {
        let (channel, address) = (name("mail"), "ann@example.org".to_owned());
        let device = Device { channel, address, state: DeviceState::Active };
        let new = NewSubscriber {
            kept: Default::default(),
            id: "ann".parse().expect("an id"),
            profile: Default::default(),
            devices: Some([(name("main"), device)].into()),
            preferences: None,
        };
        platform.records.put_subscriber(new, Precondition::Any, at(0)).await.expect("stored");
        put_subscription(&platform).await;
        // The first subscription of every batch.
        let expected = selected(|_, _, ordinal| ordinal == 0);
        let by_id = NotificationQuery { subscriber: Some("ann".parse().expect("an id")), ..Default::default() };
        assert_eq!(all_pages(&platform, &by_id, 3).await, expected);
        let by_address = NotificationQuery { address: Some("ann@example.org".to_owned()), ..Default::default() };
        assert_eq!(all_pages(&platform, &by_address, 100).await, expected);
        let elsewhere = NotificationQuery { address: Some("bob@example.org".to_owned()), ..Default::default() };
        assert_eq!(all_pages(&platform, &elsewhere, 100).await, Vec::<String>::new());
        let found = platform.service.search_notifications(&platform.caller, &by_id, None, 1).await.expect("found");
        let recipient = found.items[0].recipient.as_ref().expect("a recipient");
        assert_eq!(recipient.id.to_string(), "ann");
        let absent = NotificationQuery { subscriber: Some("bob".parse().expect("an id")), ..Default::default() };
        let error = platform.service.search_notifications(&platform.caller, &absent, None, 1).await;
        assert!(matches!(error, Err(ServiceError::Missing(_))), "{error:?}");
        let unknown = NotificationQuery { rule: Some(name("neer")), ..Default::default() };
        let error = platform.service.search_notifications(&platform.caller, &unknown, None, 1).await;
        assert!(error.expect_err("unknown").to_string().contains("did you mean `near`?"));
        let wrong = NotificationQuery { outcome: Some("sent".to_owned()), ..Default::default() };
        let error = platform.service.search_notifications(&platform.caller, &wrong, None, 1).await;
        assert!(matches!(error, Err(ServiceError::Invalid(_))), "{error:?}");
    });
}

async fn put_subscription(platform: &Platform) {
    let new = NewSubscription {
        application: name("stock"),
        class: name("wish"),
        subscriber: "ann".parse().expect("an id"),
        key: None,
        device: None,
        enabled: Some(true),
        values: "{}".into(),
        terms: Default::default(),
    };
    let stored = platform.records.put_subscription(new, at(0)).await.expect("stored");
    assert_eq!(stored.id, SubscriptionId(1));
}

/// Ids of all events that a test selects, newest first.
fn events_of(is_wanted: impl Fn(&Entry, u32) -> bool) -> Vec<String> {
    let mut ids = Vec::new();
    for (batch, entry) in (1..).zip(DAY).collect::<Vec<_>>().into_iter().rev() {
        let wanted = (0..entry.events).rev().filter(|ordinal| is_wanted(entry, *ordinal));
        ids.extend(wanted.map(|ordinal| format!("e-{batch}-{ordinal}")));
    }
    ids
}

async fn all_events(platform: &Platform, query: &EventQuery, limit: usize) -> Vec<String> {
    let (mut ids, mut after) = (Vec::new(), None::<String>);
    loop {
        let found = platform.service.search_events(&platform.caller, query.clone(), after.as_deref(), limit).await;
        let FoundEvents { scanned, errors, counts } = found.expect("found");
        assert_eq!((errors, counts), (0, None));
        ids.extend(scanned.items.iter().map(|event| event.id.to_string()));
        after = scanned.next;
        if after.is_none() {
            return ids;
        }
    }
}

#[test]
fn events_are_searched_newest_first_by_a_condition() {
    on_each(async |platform| {
        let any = EventQuery::default();
        for limit in [1_000, 9] {
            assert_eq!(all_events(&platform, &any, limit).await, events_of(|_, _| true), "{limit}");
        }
        let trades = EventQuery { application: Some(name("stock")), class: Some(name("trade")), ..any.clone() };
        let dear = EventQuery { condition: Some("event.price >= 7 && event.price < 9".to_owned()), ..trades.clone() };
        let expected = events_of(|entry, price| entry.class == "trade" && (7..9).contains(&price));
        assert_eq!(all_events(&platform, &dear, 1).await, expected);
        assert_eq!(expected, ["e-4-8", "e-4-7", "e-1-8", "e-1-7"]);
        let by_hand = EventQuery { source: Some(name("hand")), ..any.clone() };
        assert_eq!(all_events(&platform, &by_hand, 10).await, ["e-2-0"]);
        let morning = EventQuery { period: period(7 * HOUR, 8 * HOUR + 1_000), ..any.clone() };
        assert_eq!(all_events(&platform, &morning, 4).await, events_of(|entry, _| entry.accepted() < 8 * HOUR + 1_000));
        let found = platform.service.search_events(&platform.caller, dear.clone(), None, 1).await.expect("found");
        assert_eq!(found.scanned.items[0].fields, [("price".to_owned(), Value::Number(8.0))]);
        assert_eq!(found.scanned.scanned_to, Some(at(DAY[3].accepted())));

        let counted = EventQuery { count_by: Some("price".to_owned()), ..trades.clone() };
        let found = platform.service.search_events(&platform.caller, counted, None, 3).await.expect("counted");
        let counts = found.counts.expect("counts");
        let top: Vec<(Value, u64)> = vec![(Value::Number(0.0), 3), (Value::Number(1.0), 2), (Value::Number(2.0), 2)];
        assert_eq!((counts.values, counts.other), (top, 261 - 7));

        let check = async |query: EventQuery, expected: &str| {
            let error = platform.service.search_events(&platform.caller, query, None, 1).await.expect_err(expected);
            assert!(format!("{error:?}").contains(expected), "{error:?}");
        };
        check(EventQuery { condition: Some("event.prize > 1".to_owned()), ..trades.clone() }, "price").await;
        check(EventQuery { class: None, condition: Some("true".to_owned()), ..trades.clone() }, "is required").await;
        check(EventQuery { count_by: Some("place".to_owned()), ..trades.clone() }, "is not a field").await;
        check(EventQuery { class: Some(name("trades")), ..trades }, "did you mean `trade`").await;
    });
}
