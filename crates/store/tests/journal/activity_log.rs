//! Activity, quanta and totals.

use std::time::Duration;

use tocsin_store::journal::{Count, NewQuantum, QuantumInput, QuantumQuery, Step, Window};

use crate::support::*;

#[test]
fn activity_is_counted_by_the_commits() {
    on_each(async |journal| {
        let events = accept(&*journal, 3, at(60)).await;
        let claimed = claim_events(&*journal, 1, at(61)).await.remove(0);
        let input = QuantumInput {
            id: events,
            application: app(),
            class: name("trade"),
            source: name("api"),
            accepted_at: at(60),
            events: 3,
        };
        let quantum =
            NewQuantum { started_at: at(61), ended_at: at(62), batches: vec![input], scheduled_notifications: 0 };
        let step = Step {
            matched: vec![claimed.claim],
            batches: vec![notifications(&[events], 2, at(62))],
            quantum: Some(quantum),
            ..Step::default()
        };
        journal.commit(step.clone()).await.expect("committed");
        journal.commit(step).await.expect_err("the claim is spent, and nothing is counted twice");

        let totals = journal.totals();
        assert_eq!((totals.event_batches, totals.events, totals.notifications), (1, 3, 2));
        let window = Window { from: at(60), to: at(120), interval: Duration::from_secs(60) };
        let rows = journal.activity(&window, Some(&app())).await.expect("read");
        let count = |counted| rows.iter().map(|row| row.activity.count(counted)).sum::<u64>();
        assert_eq!([count(Count::Events), count(Count::MatchedBatches), count(Count::Notifications)], [3, 1, 2]);
        assert!(journal.activity(&window, Some(&name("other"))).await.expect("read").is_empty());
        let before = Window { from: at(0), to: at(60), ..window };
        assert!(journal.activity(&before, None).await.expect("read").is_empty());
        assert_eq!(journal.latest_activity(None).await.expect("read").len(), rows.len());

        let of = |from, to, before| QuantumQuery { from: at(from), to: at(to), before, limit: 9 };
        let listed = journal.quanta(of(62, 63, None)).await.expect("read");
        assert_eq!(listed.iter().map(|found| (found.events, found.event_notifications)).collect::<Vec<_>>(), [(3, 2)]);
        assert_eq!(journal.quantum(listed[0].id).await.expect("read").as_ref(), Some(&listed[0]));
        assert_eq!(journal.quantum(listed[0].id + 1).await.expect("read"), None);
        assert!(journal.quanta(of(0, 62, None)).await.expect("read").is_empty(), "the end is exclusive");
        assert!(journal.quanta(of(62, 63, Some(listed[0].id))).await.expect("read").is_empty());
    });
}
