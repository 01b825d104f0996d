//! Conformance: subscriptions with schedules.

use super::*;

/// Subscription with a schedule.
fn scheduled(subscriber: &str, key: &str, schedule: Option<&str>) -> NewSubscription {
    let terms = SubscriptionParams { schedule: schedule.map(Box::from), ..SubscriptionParams::default() };
    NewSubscription { terms, ..interest(subscriber, Some(key)) }
}

const FLOATING: &str = "DTSTART:20270104T080000\nRRULE:FREQ=DAILY";
const VIENNA: &str = "DTSTART;TZID=Europe/Vienna:20270104T080000\nRRULE:FREQ=DAILY";
const WEEKLY: &str = "DTSTART:20270104T080000Z\nRRULE:FREQ=WEEKLY";

async fn members(records: &dyn Records, schedule: &str) -> Vec<(u64, String)> {
    let found = records
        .scheduled_subscriptions(ScheduleMembers {
            application: &name("quakes"),
            class: &name("near"),
            schedule,
            after: None,
            limit: 99,
        })
        .await
        .expect("read");
    found.into_iter().map(|found| (found.subscription.id.0, found.since.to_string())).collect()
}

fn at_time(text: &str) -> Timestamp {
    text.parse().expect("a time")
}

#[test]
fn subscriptions_with_the_same_due_times_are_together() {
    check(async |records| {
        let in_zone = |id: &str, zone: Option<&str>| {
            let profile = Profile { time_zone: zone.map(str::to_owned), ..Profile::default() };
            NewSubscriber { profile, ..person(id, &["post=mail"]) }
        };
        let morning = at_time("2027-01-05T06:30:00Z");
        for (id, zone) in [("ann", Some("Europe/Vienna")), ("bob", None), ("eve", None)] {
            records.put_subscriber(in_zone(id, zone), Precondition::Any, at(1)).await.expect("stored");
        }
        let lines = vec![
            scheduled("ann", "1", Some(FLOATING)),
            scheduled("bob", "1", Some(VIENNA)),
            scheduled("bob", "2", Some(FLOATING)),
            scheduled("eve", "1", None),
            scheduled("eve", "2", Some(WEEKLY)),
        ];
        let ids: Vec<u64> = records
            .put_subscriptions(lines, morning)
            .await
            .expect("stored")
            .into_iter()
            .map(|written| written.expect("stored").0)
            .collect();
        let since = morning.to_string();
        assert_eq!(members(records, VIENNA).await, [(ids[0], since.clone()), (ids[1], since.clone())]);
        let utc = "DTSTART:20270104T080000Z\nRRULE:FREQ=DAILY";
        assert_eq!(members(records, utc).await, [(ids[2], since.clone())]);
        let all = records.schedules(&name("quakes"), 0, 99).await.expect("read");
        assert_eq!(all.iter().map(|found| &*found.schedule).collect::<Vec<_>>(), [VIENNA, utc, WEEKLY]);
        assert!(all.iter().all(|found| found.class == name("near") && found.made_at == morning));
        let later = records.schedules(&name("quakes"), all[0].number, 1).await.expect("read");
        assert_eq!(later, all[1..2]);
        let (application, class, first) = (name("quakes"), name("near"), Some(SubscriptionId(ids[0])));
        let page = records
            .scheduled_subscriptions(ScheduleMembers {
                application: &application,
                class: &class,
                schedule: VIENNA,
                after: first,
                limit: 9,
            })
            .await
            .expect("read");
        assert_eq!(page.iter().map(|found| found.subscription.id.0).collect::<Vec<_>>(), [ids[1]]);
        assert_eq!(page[0].subscription.channel, Some(name("mail")));
        assert!(page[0].joined > ChangeSequence(0) && page[0].joined <= newest(records));
        let of = records.schedule_of(SubscriptionId(ids[0])).await.expect("read");
        assert_eq!(of, Some((VIENNA.into(), morning)));
        assert_eq!(records.schedule_of(SubscriptionId(ids[3])).await.expect("read"), None);

        // A moved subscription keeps its last run: 07:00 UTC is 08:00 in Vienna.
        let noon = at_time("2027-01-05T12:00:00Z");
        records.put_subscription(scheduled("bob", "1", Some(WEEKLY)), noon).await.expect("stored");
        assert_eq!(members(records, VIENNA).await, [(ids[0], since.clone())]);
        assert_eq!(
            members(records, WEEKLY).await,
            [(ids[1], "2027-01-05T07:00:00Z".to_owned()), (ids[4], since.clone())]
        );
        let before = newest(records);
        records.put_subscriber(in_zone("ann", Some("Asia/Tokyo")), Precondition::Any, noon).await.expect("stored");
        assert_eq!(news(records, before).await, ["profile 1", "subscriber 1"], "it matters to her schedule");
        let tokyo = VIENNA.replace("Europe/Vienna", "Asia/Tokyo");
        let moved = records
            .scheduled_subscriptions(ScheduleMembers {
                application: &application,
                class: &class,
                schedule: &tokyo,
                after: None,
                limit: 9,
            })
            .await
            .expect("read");
        assert!(moved[0].joined > before);
        assert_eq!(members(records, &tokyo).await, [(ids[0], "2027-01-05T07:00:00Z".to_owned())]);

        // A disabled subscription is not due; its schedule restarts when it is enabled.
        let disabled =
            SubscriptionChange { terms: scheduled("x", "x", Some(FLOATING)).terms, ..change(None, false, "{}") };
        let enabled = SubscriptionChange { enabled: Some(true), ..disabled.clone() };
        let third = SubscriptionId(ids[2]);
        records
            .update_subscription(UpdateSubscription {
                id: third,
                change: disabled,
                expect: Precondition::Any,
                now: noon,
            })
            .await
            .expect("stored");
        assert!(members(records, utc).await.is_empty());
        assert!(
            !records.delete_schedule(&name("quakes"), &name("near"), utc).await.expect("asked"),
            "it may come back"
        );
        let evening = at_time("2027-01-05T20:00:00Z");
        records
            .update_subscription(UpdateSubscription {
                id: third,
                change: enabled,
                expect: Precondition::Any,
                now: evening,
            })
            .await
            .expect("stored");
        assert_eq!(members(records, utc).await, [(ids[2], evening.to_string())]);

        records.remove_subscriber(&subscriber_id("bob"), Precondition::Any, evening).await.expect("removed");
        assert!(members(records, utc).await.is_empty());
        let newest = records.schedules(&name("quakes"), 0, 99).await.expect("read").pop().expect("some").number;
        assert!(records.delete_schedule(&name("quakes"), &name("near"), utc).await.expect("asked"));
        records.put_subscription(scheduled("eve", "1", Some(utc)), evening).await.expect("stored");
        let back = records.schedules(&name("quakes"), newest, 99).await.expect("read");
        assert_eq!(back.iter().map(|found| &*found.schedule).collect::<Vec<_>>(), [utc], "it is new again");
        records.put_subscription(scheduled("eve", "1", None), evening).await.expect("stored");
        assert!(members(records, utc).await.is_empty());
    });
}

#[test]
fn enabled_subscriptions_name_the_time_at_which_they_were_enabled() {
    check(async |records| {
        let of = async || {
            let found = records.indexed_subscriptions(&name("quakes"), None, 99).await.expect("read");
            found.into_iter().map(|found| (found.id.0, found.enabled_at)).collect::<Vec<_>>()
        };
        let ann = |enabled: bool| {
            let profile = Profile { enabled, ..Profile::default() };
            NewSubscriber { profile, ..person("ann", &["post=mail"]) }
        };
        records.put_subscriber(ann(true), Precondition::Any, at(1)).await.expect("stored");
        let lines = vec![interest("ann", Some("1")), interest("ann", Some("2"))];
        let written = records.put_subscriptions(lines, at(2)).await.expect("stored");
        let ids: Vec<SubscriptionId> = written.into_iter().map(|written| written.expect("stored")).collect();
        assert_eq!(of().await, [(ids[0].0, None), (ids[1].0, None)]);

        // By an update, and by the end of a snooze.
        let snoozed = SubscriptionParams { snoozed_until: Some(at(5)), ..SubscriptionParams::default() };
        let snoozed = SubscriptionChange { terms: snoozed, ..change(None, true, "{}") };
        records
            .update_subscription(UpdateSubscription {
                id: ids[0],
                change: change(None, false, "{}"),
                expect: Precondition::Any,
                now: at(3),
            })
            .await
            .expect("stored");
        records
            .update_subscription(UpdateSubscription {
                id: ids[1],
                change: snoozed,
                expect: Precondition::Any,
                now: at(3),
            })
            .await
            .expect("stored");
        assert!(of().await.is_empty());
        records
            .update_subscription(UpdateSubscription {
                id: ids[0],
                change: change(None, true, "{}"),
                expect: Precondition::Any,
                now: at(4),
            })
            .await
            .expect("stored");
        assert_eq!(records.wake_subscriptions(at(6), 9).await.expect("woken"), 1);
        assert_eq!(of().await, [(ids[0].0, Some(at(4))), (ids[1].0, Some(at(6)))]);
        // A change of an enabled one does not begin anew.
        records
            .update_subscription(UpdateSubscription {
                id: ids[0],
                change: change(None, true, r#"{"a":1}"#),
                expect: Precondition::Any,
                now: at(7),
            })
            .await
            .expect("stored");
        assert_eq!(of().await, [(ids[0].0, Some(at(4))), (ids[1].0, Some(at(6)))]);

        // With their subscriber.
        records.put_subscriber(ann(false), Precondition::Any, at(8)).await.expect("stored");
        assert!(of().await.is_empty());
        records.put_subscriber(ann(true), Precondition::Any, at(9)).await.expect("stored");
        assert_eq!(of().await, [(ids[0].0, Some(at(9))), (ids[1].0, Some(at(9)))]);
    });
}
