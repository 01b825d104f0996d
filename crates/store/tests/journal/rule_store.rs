//! Rule firings, stopped rules and rule state.

use tocsin_model::state::StatePage;
use tocsin_store::journal::{FiringFilter, FiringStatus, Journal, NewFiring, RefiredBatch, RuleStop, Step};

use crate::support::*;

#[test]
fn failed_and_skipped_firings_are_listed_until_they_are_repeated() {
    on_each(async |journal| {
        let mut ids = Vec::new();
        for second in 0..4 {
            ids.push(accept(&*journal, 1, at(second)).await);
        }
        let claims: Vec<_> = claim_events(&*journal, 4, at(5)).await.into_iter().map(|claimed| claimed.claim).collect();
        let firing = |batch: usize, status, run| NewFiring {
            application: app(),
            rule: name("near"),
            batch: ids[batch],
            status,
            reason: "because".to_owned(),
            run,
            at: at(5),
        };
        let skipped = |batch| firing(batch, FiringStatus::Skipped, Some(ids[1]));
        let stop = RuleStop {
            application: app(),
            rule: name("near"),
            by: "tocsin".to_owned(),
            reason: "it failed".to_owned(),
            since: at(5),
        };
        let step = Step {
            matched: claims,
            firings: vec![firing(0, FiringStatus::Failed, None), skipped(1), skipped(2), skipped(3)],
            stops: vec![stop.clone()],
            ..Step::default()
        };
        journal.commit(step).await.expect("committed");
        assert_eq!(journal.rule_stops().await.expect("read"), std::slice::from_ref(&stop));
        journal.stop_rule(RuleStop { reason: "again".to_owned(), ..stop.clone() }).await.expect("stopped already");
        assert_eq!(journal.rule_stops().await.expect("read"), [stop], "the first stop stays");

        let all = FiringFilter::default();
        let listed = journal.firings(&all, 0, 10).await.expect("read");
        let entries: Vec<_> = listed.iter().map(|one| (one.status, one.first, one.last, one.batches)).collect();
        assert_eq!(
            entries,
            [(FiringStatus::Failed, ids[0], ids[0], 1), (FiringStatus::Skipped, ids[1], ids[3], 3)],
            "a run is listed as one"
        );
        let run = listed[1].id;
        let again = |batch| Step { refired: vec![RefiredBatch { id: run, batch }], ..Step::default() };
        journal.commit(again(ids[1])).await.expect("committed");
        let left = journal.firings(&FiringFilter { id: Some(run), ..all.clone() }, 0, 10).await.expect("read");
        assert_eq!((left[0].first.0, left[0].batches), (ids[1].0 + 1, 2), "repeated batches are removed");
        journal.commit(again(ids[3])).await.expect("committed");
        assert_eq!(journal.firings(&all, 0, 10).await.expect("read").len(), 1, "the last batch ends the run");
        let failed = FiringFilter { status: Some(FiringStatus::Failed), ..all.clone() };
        assert_eq!(journal.dismiss_firings(&failed).await.expect("dismissed"), 1);
        assert!(journal.firings(&all, 0, 10).await.expect("read").is_empty());
        assert!(journal.resume_rule(&app(), &name("near")).await.expect("resumed"));
        assert!(!journal.resume_rule(&app(), &name("near")).await.expect("answered"));
    });
}

#[test]
fn rule_state_is_committed_with_the_match() {
    on_each(async |journal| {
        let page = |name: &str, number: u64, body: &'static str| StatePage {
            name: name.into(),
            number,
            body: body.as_bytes().into(),
        };
        let remember = |journal: std::sync::Arc<dyn Journal>, pages: Vec<StatePage>, now| async move {
            accept(&*journal, 1, now).await;
            let claim = claim_events(&*journal, 1, now).await[0].claim;
            let states = pages.into_iter().map(|page| (app(), page)).collect();
            (claim, Step { matched: vec![claim], states, ..Step::default() })
        };
        let pages = vec![page("rules.a", 7, "one"), page("rules.a", u64::MAX, "two"), page("rules.b", 7, "three")];
        let (claim, step) = remember(journal.clone(), pages.clone(), at(0)).await;
        let mut lost = step.clone();
        lost.matched[0].token += 1;
        journal.commit(lost).await.expect_err("the token is wrong");
        assert!(journal.state_pages(&app(), None, 9).await.expect("read").is_empty());
        journal.commit(step).await.expect("committed");
        assert_eq!(claim.id.0, 1);
        assert_eq!(sorted(journal.state_pages(&app(), None, 9).await.expect("read")), pages);
        assert!(journal.state_pages(&name("other"), None, 9).await.expect("read").is_empty());

        let changes = vec![page("rules.a", 7, ""), page("rules.b", 7, "four"), page("rules.c", 1, "")];
        let (_, step) = remember(journal.clone(), changes, at(1)).await;
        journal.commit(step).await.expect("committed");
        let mut listed = Vec::new();
        while let [page] = &journal.state_pages(&app(), listed.last(), 1).await.expect("read")[..] {
            listed.push(page.clone());
        }
        assert_eq!(sorted(listed), [page("rules.a", u64::MAX, "two"), page("rules.b", 7, "four")]);
    });
}

fn sorted(mut pages: Vec<StatePage>) -> Vec<StatePage> {
    pages.sort();
    pages
}

#[test]
fn a_rule_keeps_its_first_stop_until_it_is_resumed() {
    on_each(async |journal| {
        let stop = |rule: &str, reason: &str| RuleStop {
            application: app(),
            rule: name(rule),
            by: "ann".to_owned(),
            reason: reason.to_owned(),
            since: at(1),
        };
        for (rule, reason) in [("near", "first"), ("far", "first"), ("near", "second")] {
            journal.stop_rule(stop(rule, reason)).await.expect("stored");
        }
        let stops = journal.rule_stops().await.expect("read");
        assert_eq!(stops, [stop("far", "first"), stop("near", "first")]);
        assert!(journal.resume_rule(&app(), &name("near")).await.expect("resumed"));
        assert!(!journal.resume_rule(&app(), &name("near")).await.expect("it was not stopped"));
        assert_eq!(journal.rule_stops().await.expect("read"), [stop("far", "first")]);
    });
}
