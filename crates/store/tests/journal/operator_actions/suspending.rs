//! Suspensions, failed event batches, switches, removal of an application.

use tocsin_model::{delivery_policy::Priority, receipt::Outcome};
use tocsin_store::{
    error::StoreError,
    journal::{
        Component, Cutoffs, EndedWork, EventBatchState, Resolution, Role, Step, Suspension, SuspensionFilter, Switch,
        SwitchState, WorkState,
    },
};

use crate::support::*;

#[test]
fn suspensions_can_be_resumed() {
    on_each(async |journal| {
        let batch = queue(&*journal, 5, at(0)).await;
        let item = claim_work(&*journal, 1, at(0)).await.remove(0);
        let waits = suspension(batch, vec![1, 3], "mail");
        let step = Step {
            finished: vec![item.claim],
            receipts: vec![
                chunk(batch, attempts([0, 2, 4], 1, Outcome::Delivered, at(1))),
                chunk(batch, attempts([1, 3], 4, Outcome::Suspended, at(1))),
            ],
            suspensions: vec![waits.clone()],
            ..Step::default()
        };
        journal.commit(step).await.expect("committed");
        assert_eq!((journal.backlog().suspended, journal.backlog().work_items), (2, 0));
        let all = SuspensionFilter::default();
        let listed = journal.suspensions(&all, 0, 9).await.expect("read");
        assert_eq!(listed.iter().map(|stored| &stored.suspension).collect::<Vec<_>>(), [&waits]);
        assert!(journal.suspensions(&all, listed[0].id, 9).await.expect("read").is_empty());

        let arrivals = journal.arrivals();
        assert_eq!(journal.resolve(&all, Resolution::Resume, at(50)).await.expect("resolved"), 2);
        assert!(arrivals.work.has_changed().expect("open"));
        assert_eq!(journal.resolve(&all, Resolution::Resume, at(50)).await.expect("resolved"), 0);
        assert_eq!(journal.backlog().suspended, 0);
        let item = claim_work(&*journal, 9, at(50)).await.remove(0);
        assert_eq!(
            (item.batch, item.ordinals.clone(), item.attempts),
            (batch, Some(vec![1, 3]), 0),
            "a new retry schedule"
        );

        // The numbers of its attempts start again, and its progress counts nevertheless.
        let receipts = vec![chunk(batch, attempts([3], 1, Outcome::Delivered, at(51)))];
        let step = Step { held: vec![item.claim], receipts, ..Step::default() };
        journal.commit(step).await.expect("committed");
        assert_eq!(claim_work(&*journal, 9, at(200)).await.remove(0).ordinals, Some(vec![1]));
    });
}

#[test]
fn suspensions_can_be_ended() {
    on_each(async |journal| {
        let batch = queue(&*journal, 3, at(0)).await;
        let item = claim_work(&*journal, 1, at(0)).await.remove(0);
        let step = Step {
            finished: vec![item.claim],
            suspensions: vec![suspension(batch, vec![0, 2], "mail"), suspension(batch, vec![1], "mail")],
            ..Step::default()
        };
        journal.commit(step).await.expect("committed");
        let filter = SuspensionFilter { id: Some(1), ..SuspensionFilter::default() };
        assert_eq!(journal.resolve(&filter, Resolution::End, at(60)).await.expect("resolved"), 2);
        let ended = journal.attempts(batch).await.expect("read");
        let outcomes: Vec<_> = ended.iter().map(|ended| (ended.ordinal, ended.number, ended.outcome)).collect();
        assert_eq!(outcomes, [(0, 5, Outcome::Ended), (2, 5, Outcome::Ended)]);
        assert_eq!(ended[0].answered_at, at(60));
        assert_eq!(journal.totals().attempts[Outcome::Ended as usize], 2);
        assert_eq!(journal.backlog().suspended, 1);
    });
}

#[test]
fn filters_select_suspensions() {
    on_each(async |journal| {
        let one = queue(&*journal, 3, at(0)).await;
        let two = queue(&*journal, 3, at(0)).await;
        let suspensions = vec![
            suspension(one, vec![0], "mail"),
            suspension(one, vec![1], "sms"),
            suspension(two, vec![0, 1, 2], "mail"),
        ];
        journal.commit(Step { suspensions, ..Step::default() }).await.expect("committed");
        let any = SuspensionFilter::default();
        for (filter, expected) in [
            (SuspensionFilter { batch: Some(one), ..any.clone() }, vec![1, 2]),
            (SuspensionFilter { channel: Some(mail()), ..any.clone() }, vec![1, 3]),
            (SuspensionFilter { channel: Some(name("sms")), batch: Some(two), ..any.clone() }, vec![]),
            (SuspensionFilter { application: Some(app()), ..any.clone() }, vec![1, 2, 3]),
            (SuspensionFilter { application: Some(name("never")), ..any.clone() }, vec![]),
            (SuspensionFilter { id: Some(2), ..any.clone() }, vec![2]),
            (SuspensionFilter { id: Some(u64::MAX), ..any.clone() }, vec![]),
        ] {
            let listed = journal.suspensions(&filter, 0, 9).await.expect("read");
            assert_eq!(listed.iter().map(|stored| stored.id).collect::<Vec<_>>(), expected, "{filter:?}");
        }
        let page = journal.suspensions(&any, 1, 1).await.expect("read");
        assert_eq!(page.iter().map(|stored| stored.id).collect::<Vec<_>>(), [2]);
        let filter = SuspensionFilter { channel: Some(mail()), ..any };
        assert_eq!(journal.resolve(&filter, Resolution::End, at(9)).await.expect("resolved"), 4);
        assert_eq!(journal.backlog().suspended, 1);
    });
}

#[test]
fn many_suspensions_are_resolved_in_one_call() {
    on_each(async |journal| {
        let batch = queue(&*journal, 20_000, at(0)).await;
        let mut suspensions: Vec<_> = (0..600).map(|ordinal| suspension(batch, vec![ordinal], "mail")).collect();
        suspensions.push(suspension(batch, (600..20_000).collect(), "mail"));
        journal.commit(Step { suspensions, ..Step::default() }).await.expect("committed");
        let touched = journal.resolve(&SuspensionFilter::default(), Resolution::Resume, at(9)).await.expect("resolved");
        assert_eq!(touched, 20_000);
        assert_eq!(journal.backlog().suspended, 0);
        assert_eq!(journal.backlog().work_items, 602);
    });
}

#[test]
fn batches_can_be_suspended_from_the_start() {
    on_each(async |journal| {
        let id = accept(&*journal, 1, at(0)).await;
        let claim = claim_events(&*journal, 1, at(1)).await[0].claim;
        let mut new = notifications(&[id], 4, at(2));
        new.suspended = Some("no such channel".to_owned());
        let step = Step { matched: vec![claim], batches: vec![new], ..Step::default() };
        let batch = journal.commit(step).await.expect("committed")[0];
        assert!(claim_work(&*journal, 9, at(9)).await.is_empty());
        let listed = journal.suspensions(&SuspensionFilter::default(), 0, 9).await.expect("read");
        let Suspension { reason, ordinals, attempts, since, .. } = &listed[0].suspension;
        assert_eq!(
            (reason.as_str(), &ordinals[..], *attempts, *since),
            ("no such channel", &[0, 1, 2, 3][..], 0, at(2))
        );
        assert_eq!(listed[0].suspension.batch, batch);
    });
}

#[test]
fn the_removal_of_an_application_ends_its_open_work() {
    on_each(async |journal| {
        let finished = queue(&*journal, 1, at(0)).await;
        let item = claim_work(&*journal, 1, at(0)).await.remove(0);
        let receipts = vec![chunk(finished, attempts([0], 1, Outcome::Delivered, at(1)))];
        journal.commit(Step { finished: vec![item.claim], receipts, ..Step::default() }).await.expect("committed");
        // One is suspended, one is retried later, one is claimed.
        let batch = queue(&*journal, 3, at(1)).await;
        let item = claim_work(&*journal, 1, at(1)).await.remove(0);
        let step = Step {
            finished: vec![item.claim],
            receipts: vec![chunk(batch, attempts([0], 1, Outcome::Deferred, at(2)))],
            retries: vec![retry(batch, vec![0], 1, 900), retry(batch, vec![1], 0, 3)],
            suspensions: vec![suspension(batch, vec![2], "mail")],
            ..Step::default()
        };
        journal.commit(step).await.expect("committed");
        let claimed = claim_work(&*journal, 1, at(3)).await.remove(0);
        // One event batch waits, one failed.
        let failed = accept(&*journal, 1, at(3)).await;
        let claim = claim_events(&*journal, 1, at(3)).await.remove(0).claim;
        let step = Step { failed: vec![(claim, "too deep".to_owned())], ..Step::default() };
        journal.commit(step).await.expect("committed");
        let waiting = accept(&*journal, 2, at(4)).await;
        assert_eq!(journal.open_applications().await.expect("listed"), [app()]);
        assert_eq!(journal.end_application(&name("other"), at(5)).await.expect("ended"), EndedWork::default());

        let ended = journal.end_application(&app(), at(5)).await.expect("ended");
        assert_eq!(ended, EndedWork { notifications: 3, event_batches: 2 });
        assert_eq!(journal.end_application(&app(), at(6)).await.expect("ended"), EndedWork::default());
        assert!(journal.open_applications().await.expect("listed").is_empty());
        let backlog = journal.backlog();
        assert_eq!((backlog.event_batches, backlog.failed_batches, backlog.events, backlog.event_bytes), (0, 0, 0, 0));
        assert_eq!((backlog.work_items, backlog.notifications, backlog.suspended), (0, 0, 0));
        assert_eq!(backlog.oldest_event, None);
        let closing = journal.attempts(batch).await.expect("read").split_off(1);
        assert!(closing.iter().all(|attempt| attempt.outcome == Outcome::Ended), "{closing:?}");
        assert!(closing.iter().all(|attempt| attempt.reply == "the application was removed"), "{closing:?}");
        let step = Step { finished: vec![claimed.claim], ..Step::default() };
        assert!(matches!(journal.commit(step).await, Err(StoreError::Fenced(_))));
        for id in [failed, waiting] {
            let (_, state) = journal.event_batch(id).await.expect("read").expect("it is there");
            assert_eq!(state, EventBatchState::Matched(at(5)));
        }
        // All of it is finished: retention removes it.
        journal.prune(&Cutoffs::all(at(100)), at(100), 100).await.expect("pruned");
        assert!(journal.event_batches(None, 9).await.expect("listed").is_empty());
        assert!(journal.notification_batches(None, 9).await.expect("listed").is_empty());
    });
}

#[test]
fn edits_are_kept_when_work_is_resumed() {
    on_each(async |journal| {
        let batch = queue(&*journal, 5, at(0)).await;
        let item = claim_work(&*journal, 1, at(0)).await.remove(0);
        let work_state = WorkState { priority: Priority::Low, fallback: 1, ..WorkState::default() };
        let waits = Suspension {
            batch,
            application: app(),
            channel: mail(),
            ordinals: vec![0, 1, 2, 3, 4],
            attempts: 1,
            reason: "Template `base` failed".to_owned(),
            since: at(1),
            work_state: work_state.clone(),
        };
        let step = Step {
            finished: vec![item.claim],
            receipts: vec![chunk(batch, attempts(0..5, 1, Outcome::Suspended, at(1)))],
            suspensions: vec![waits],
            ..Step::default()
        };
        journal.commit(step).await.expect("committed");
        let edit = async |id, ordinals: Option<&[u32]>, text: &str| {
            journal.edit_suspension(id, ordinals, Some(text.into())).await.expect("edited")
        };
        assert_eq!(edit(7, None, "x").await, None);
        assert_eq!(edit(1, Some(&[9]), "x").await, None);
        assert_eq!(edit(1, None, "all").await, Some(1));
        assert_eq!(edit(1, Some(&[1, 3, 9]), "some").await, Some(2));
        assert_eq!(edit(2, Some(&[1, 3]), "both").await, Some(2), "all of them");
        assert_eq!(journal.edit_suspension(1, None, None).await.expect("edited"), Some(1), "removed again");
        assert_eq!(journal.backlog().suspended, 5);
        let listed = journal.suspensions(&SuspensionFilter::default(), 0, 9).await.expect("read");
        let entries: Vec<_> = listed
            .iter()
            .map(|stored| (stored.id, &stored.suspension.ordinals[..], stored.suspension.work_state.edit.as_deref()))
            .collect();
        assert_eq!(entries, [(1, &[0, 2, 4][..], None), (2, &[1, 3][..], Some("both"))]);

        let any = SuspensionFilter::default();
        let count = async |filter: SuspensionFilter| journal.suspensions(&filter, 0, 9).await.expect("read").len();
        assert_eq!(count(SuspensionFilter { reason: Some("TEMPLATE `b".into()), ..any.clone() }).await, 2);
        assert_eq!(count(SuspensionFilter { reason: Some("%".into()), ..any.clone() }).await, 0);
        assert_eq!(count(SuspensionFilter { class: Some(name("alert")), ..any.clone() }).await, 2);
        assert_eq!(count(SuspensionFilter { class: Some(name("mail")), ..any.clone() }).await, 0);
        assert_eq!(count(SuspensionFilter { before: Some(at(1)), ..any.clone() }).await, 0);
        assert_eq!(count(SuspensionFilter { before: Some(at(2)), ..any.clone() }).await, 2);

        let filter = SuspensionFilter { id: Some(2), ..any };
        assert_eq!(journal.resolve(&filter, Resolution::Resume, at(5)).await.expect("resumed"), 2);
        let item = claim_work(&*journal, 9, at(5)).await.remove(0);
        assert_eq!(item.ordinals, Some(vec![1, 3]));
        assert_eq!(item.work_state, WorkState { edit: Some("both".into()), ..work_state });
        assert_eq!(journal.backlog().suspended, 3);
    });
}

#[test]
fn failed_event_batches_can_be_matched_again() {
    on_each(async |journal| {
        let id = accept(&*journal, 2, at(0)).await;
        accept(&*journal, 3, at(1)).await;
        let claim = claim_events(&*journal, 1, at(2)).await[0].claim;
        let step = Step { failed: vec![(claim, "no such class".to_owned())], ..Step::default() };
        journal.commit(step).await.expect("committed");
        let (_, state) = journal.event_batch(id).await.expect("read").expect("there");
        assert_eq!(state, EventBatchState::Failed("no such class".to_owned()));
        let backlog = journal.backlog();
        assert_eq!((backlog.event_batches, backlog.events, backlog.failed_batches), (1, 3, 1));
        assert_eq!(backlog.oldest_event, Some(at(1)));

        let arrivals = journal.arrivals();
        assert_eq!(journal.rematch(&name("other")).await.expect("answered"), 0);
        assert_eq!(journal.rematch(&app()).await.expect("answered"), 1);
        assert!(arrivals.events.has_changed().expect("open"));
        assert_eq!(journal.backlog().oldest_event, Some(at(0)));
        assert_eq!(claim_events(&*journal, 1, at(3)).await[0].batch.id, id);
    });
}

#[test]
fn a_component_has_one_switch() {
    on_each(async |journal| {
        let switch = |component: &Component, state| Switch {
            component: component.clone(),
            state,
            by: "ann".to_owned(),
            reason: "maintenance".to_owned(),
            since: at(1),
        };
        let (role, channel) = (Component::Role(Role::Deliver), Component::Channel(app(), mail()));
        for (component, state) in
            [(&role, SwitchState::Paused), (&channel, SwitchState::Paused), (&role, SwitchState::Disabled)]
        {
            journal.set_switch(switch(component, state)).await.expect("stored");
        }
        let all = [switch(&channel, SwitchState::Paused), switch(&role, SwitchState::Disabled)];
        assert_eq!(journal.switches().await.expect("read"), all);
        assert!(journal.remove_switch(&role).await.expect("removed"));
        assert!(!journal.remove_switch(&role).await.expect("it is on"));
        assert_eq!(journal.switches().await.expect("read"), all[..1]);
    });
}
