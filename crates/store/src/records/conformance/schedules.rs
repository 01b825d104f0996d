//! Subscriptions with schedules.

use super::*;

/// A subscription with a schedule.
fn scheduled(subscriber: &str, key: &str, schedule: Option<&str>) -> NewSubscription {
    let terms = Terms { schedule: schedule.map(Box::from), ..Terms::default() };
    NewSubscription { terms, ..interest(subscriber, Some(key)) }
}

const FLOATING: &str = "DTSTART:20270104T080000\nRRULE:FREQ=DAILY";
const VIENNA: &str = "DTSTART;TZID=Europe/Vienna:20270104T080000\nRRULE:FREQ=DAILY";
const WEEKLY: &str = "DTSTART:20270104T080000Z\nRRULE:FREQ=WEEKLY";

async fn members(records: &dyn Records, schedule: &str) -> Vec<(u64, String)> {
    let found =
        records.scheduled_subscriptions(&name("quakes"), &name("near"), schedule, None, 99).await.expect("read");
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
            records.put_subscriber(in_zone(id, zone), Expect::Any, at(1)).await.expect("stored");
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
        let page = records.scheduled_subscriptions(&application, &class, VIENNA, first, 9).await.expect("read");
        assert_eq!(page.iter().map(|found| found.subscription.id.0).collect::<Vec<_>>(), [ids[1]]);
        assert_eq!(page[0].subscription.channel, Some(name("mail")));
        assert!(page[0].joined > ChangeSequence(0) && page[0].joined <= newest(records));
        let of = records.schedule_of(SubscriptionId(ids[0])).await.expect("read");
        assert_eq!(of, Some((VIENNA.into(), morning)));
        assert_eq!(records.schedule_of(SubscriptionId(ids[3])).await.expect("read"), None);

        // Whoever moves takes along what the last run has told: at 07:00 UTC it is 08:00 in Vienna.
        let noon = at_time("2027-01-05T12:00:00Z");
        records.put_subscription(scheduled("bob", "1", Some(WEEKLY)), noon).await.expect("stored");
        assert_eq!(members(records, VIENNA).await, [(ids[0], since.clone())]);
        assert_eq!(
            members(records, WEEKLY).await,
            [(ids[1], "2027-01-05T07:00:00Z".to_owned()), (ids[4], since.clone())]
        );
        let before = newest(records);
        records.put_subscriber(in_zone("ann", Some("Asia/Tokyo")), Expect::Any, noon).await.expect("stored");
        assert_eq!(news(records, before).await, ["profile 1", "subscriber 1"], "it matters to her schedule");
        let tokyo = VIENNA.replace("Europe/Vienna", "Asia/Tokyo");
        let moved = records.scheduled_subscriptions(&application, &class, &tokyo, None, 9).await.expect("read");
        assert!(moved[0].joined > before);
        assert_eq!(members(records, &tokyo).await, [(ids[0], "2027-01-05T07:00:00Z".to_owned())]);

        // Who is disabled is not due, and begins anew later.
        let disabled =
            SubscriptionChange { terms: scheduled("x", "x", Some(FLOATING)).terms, ..change(None, false, "{}") };
        let enabled = SubscriptionChange { enabled: true, ..disabled.clone() };
        let third = SubscriptionId(ids[2]);
        records.update_subscription(third, disabled, Expect::Any, noon).await.expect("stored");
        assert!(members(records, utc).await.is_empty());
        assert!(
            !records.forget_schedule(&name("quakes"), &name("near"), utc).await.expect("asked"),
            "it may come back"
        );
        let evening = at_time("2027-01-05T20:00:00Z");
        records.update_subscription(third, enabled, Expect::Any, evening).await.expect("stored");
        assert_eq!(members(records, utc).await, [(ids[2], evening.to_string())]);

        records.remove_subscriber(&who("bob"), Expect::Any, evening).await.expect("removed");
        assert!(members(records, utc).await.is_empty());
        let newest = records.schedules(&name("quakes"), 0, 99).await.expect("read").pop().expect("some").number;
        assert!(records.forget_schedule(&name("quakes"), &name("near"), utc).await.expect("asked"));
        records.put_subscription(scheduled("eve", "1", Some(utc)), evening).await.expect("stored");
        let back = records.schedules(&name("quakes"), newest, 99).await.expect("read");
        assert_eq!(back.iter().map(|found| &*found.schedule).collect::<Vec<_>>(), [utc], "it is new again");
        records.put_subscription(scheduled("eve", "1", None), evening).await.expect("stored");
        assert!(members(records, utc).await.is_empty());
    });
}
