//! Scenarios: round trips, holds, later replies, and a crash after each commit.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use expect_test::expect;
use tocsin_model::value::Value;
use tokio::sync::oneshot;

use super::{
    scenario::{Scenario, check, check_later, state_of},
    *,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_round_trip_goes_by_content_and_its_reply_by_the_sender() {
    check(
        "",
        r#"
        receive orders {"type": "order", "order": 7}
        request questions {"type": "order", "order": 8}
        receive orders {"type": "note", "order": 9}
        "#,
        expect![[r#"
            1 stored
            a <- reply to 1-0 at /replies/7: {"confirmed":true,"order":7}
            b <- 1-0: {"type": "order", "order": 7}
            1 is delivered
            reply to 1 is delivered
            2 replied {"confirmed":true,"order":8}
            b <- 2-0: {"type": "order", "order": 8}
            2 is answered
            reply to 2 is delivered
            3 stored
            a <- 3-0 at /replies/9: {"type": "note", "order": 9}
            3 is delivered"#]],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_b_that_is_down_is_tried_again() {
    check(
        "",
        r#"
        b answers 503 500
        request questions {"type": "order", "order": 7}
        "#,
        expect![[r#"
            1 replied {"confirmed":true,"order":7}
            b <- 1-0: {"type": "order", "order": 7}
            b <- 1-0: {"type": "order", "order": 7}
            b <- 1-0: {"type": "order", "order": 7}
            1 is answered
            reply to 1 is delivered"#]],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_b_that_stays_down_suspends_and_a_resumed_message_is_answered() {
    check(
        "",
        r#"
        b answers 503 503 503
        request questions key=k {"type": "order", "order": 7}
        resume
        request questions key=k {"type": "order", "order": 7}
        "#,
        expect![[r#"
            1 suspended: b: 503
            b <- 1-0: {"type": "order", "order": 7}
            b <- 1-0: {"type": "order", "order": 7}
            b <- 1-0: {"type": "order", "order": 7}
            1 is suspended at b: 503
            1 resumed
            b <- 1-0: {"type": "order", "order": 7}
            1 is answered
            reply to 1 is delivered
            1 again replied {"confirmed":true,"order":7}"#]],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_is_not_tried_again() {
    check(
        "",
        r#"
        b answers 400
        request questions {"type": "order", "order": 7}
        "#,
        expect![[r#"
            1 suspended: b: 400
            b <- 1-0: {"type": "order", "order": 7}
            1 is suspended at b: 400"#]],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reply_that_does_not_belong_is_kept_and_suspends() {
    check(
        "",
        r#"
        define /b" => /wrong"
        request questions {"type": "order", "order": 7}
        end
        "#,
        expect![[r#"
            1 suspended: b: the reply does not belong to the request: its `order` is `999`, not `7`
            b <- 1-0 at /wrong: {"type": "order", "order": 7}
            1 is suspended at b: the reply does not belong to the request: its `order` is `999`, not `7`
            reply to 1 is wrong
            1 ended
            1 is ended"#]],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reply_that_goes_nowhere_is_suspended_too() {
    check(
        "",
        r#"
        define message.sender == 'a' => message.sender == 'c'
        receive orders {"type": "order", "order": 7}
        "#,
        expect![[r#"
            1 stored
            b <- 1-0: {"type": "order", "order": 7}
            1 is delivered
            reply to 1 is suspended: no route leads it to a send port that is not off; nearest: `back_to_a` lacks sender == "c"; `only_told` lacks type == "note"; `to_b` lacks kind != "reply""#]],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_no_route_leads_anywhere_is_suspended_with_the_nearest_routes() {
    check(
        "",
        r#"
        receive orders {"type": "ordr", "order": 7}
        request questions {"type": "note", "order": 7}
        define message.type == 'order' => message.type.startsWith('ord')
        resume 1
        "#,
        expect![[r#"
            1 suspended: no route leads it to a send port that is not off; nearest: `back_to_a` lacks kind == "reply"; `only_told` lacks type == "note"; `to_b` lacks type == "order"
            1 is suspended: no route leads it to a send port that is not off; nearest: `back_to_a` lacks kind == "reply"; `only_told` lacks type == "note"; `to_b` lacks type == "order"
            2 suspended: no route leads this request to a send port that replies; nearest: `only_told` matches, and its send port `a` does not reply; `back_to_a` lacks kind == "reply"; `to_b` lacks type == "order"
            2 is suspended: no route leads this request to a send port that replies; nearest: `only_told` matches, and its send port `a` does not reply; `back_to_a` lacks kind == "reply"; `to_b` lacks type == "order"
            1 resumed
            a <- reply to 1-0 at /replies/7: {"confirmed":true,"order":7}
            b <- 1-0: {"type": "ordr", "order": 7}
            1 is delivered
            reply to 1 is delivered"#]],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_held_port_keeps_what_is_routed_to_it_over_a_restart() {
    check(
        "",
        r#"
        hold b
        receive orders {"type": "order", "order": 1}
        receive orders {"type": "order", "order": 2}
        receive orders {"type": "order", "order": 3}
        restart
        activate b
        off b
        receive orders {"type": "order", "order": 4}
        "#,
        expect![[r#"
            1 stored
            1 waits for b
            2 stored
            2 waits for b
            3 stored
            3 waits for b
            a <- reply to 1-0 at /replies/1: {"confirmed":true,"order":1}
            a <- reply to 2-0 at /replies/2: {"confirmed":true,"order":2}
            a <- reply to 3-0 at /replies/3: {"confirmed":true,"order":3}
            b <- 1-0: {"type": "order", "order": 1}
            b <- 2-0: {"type": "order", "order": 2}
            b <- 3-0: {"type": "order", "order": 3}
            1 is delivered
            2 is delivered
            3 is delivered
            reply to 1 is delivered
            reply to 2 is delivered
            reply to 3 is delivered
            4 suspended: no route leads it to a send port that is not off; nearest: `to_b` matches, and its send port `b` is off; `back_to_a` lacks kind == "reply"; `only_told` lacks type == "note"
            4 is suspended: no route leads it to a send port that is not off; nearest: `to_b` matches, and its send port `b` is off; `back_to_a` lacks kind == "reply"; `only_told` lacks type == "note""#]],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_held_port_keeps_its_messages_over_a_crash() {
    check(
        "",
        r#"
        hold b
        receive orders {"type": "order", "order": 1}
        receive orders {"type": "order", "order": 2}
        crash
        ask questions {"type": "order", "order": 3}
        end 2
        activate b
        poll 3
        "#,
        expect![[r#"
            1 stored
            1 waits for b
            2 stored
            2 waits for b
            3 pending
            3 waits for b
            1 ended
            2 is ended
            a <- reply to 1-0 at /replies/1: {"confirmed":true,"order":1}
            b <- 1-0: {"type": "order", "order": 1}
            b <- 3-0: {"type": "order", "order": 3}
            1 is delivered
            3 is answered
            reply to 1 is delivered
            reply to 3 is delivered
            3 replied {"confirmed":true,"order":3}"#]],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_under_way_when_the_process_died_is_sent_again_under_its_id() {
    check(
        "",
        r#"
        b waits
        receive orders {"type": "order", "order": 1}
        ask questions key=k {"type": "order", "order": 2}
        crash
        b continues
        request questions key=k {"type": "order", "order": 2}
        "#,
        expect![[r#"
            1 stored
            b <- 1-0: {"type": "order", "order": 1}
            1 waits for b
            2 pending
            b <- 2-0: {"type": "order", "order": 2}
            2 waits for b
            b <- 1-0: {"type": "order", "order": 1}
            b <- 2-0: {"type": "order", "order": 2}
            a <- reply to 1-0 at /replies/1: {"confirmed":true,"order":1}
            1 is delivered
            2 is answered
            reply to 1 is delivered
            reply to 2 is delivered
            2 again replied {"confirmed":true,"order":2}"#]],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn later_replies_end_the_wait_once_and_over_a_crash() {
    check_later(
        r#"
        receive orders {"type": "order", "order": 7}
        ask questions {"type": "order", "order": 8}
        crash
        reply results {"order": 7, "said": "yes"}
        reply results {"order": 8, "said": "no"}
        poll 2
        reply results {"order": 8, "said": "again"}
        reply results {"order": 9}
        "#,
        expect![[r#"
            1 stored
            b <- 1-0: {"type": "order", "order": 7}
            1 awaits the reply of b
            2 pending
            b <- 2-0: {"type": "order", "order": 8}
            2 awaits the reply of b
            3 stored
            a <- 3-0 at /replies/7: {"order": 7, "said": "yes"}
            1 is delivered
            3 is delivered
            4 stored
            2 is answered
            4 is delivered
            2 replied {"order": 8, "said": "no"}
            5 stored
            5 is late
            6 suspended: no message waits for it as its reply, and no route leads it to a send port that is not off; nearest: `back_to_a` lacks kind == "reply"; `only_told` lacks type == "note"; `to_b` lacks type == "order"
            6 is suspended: no message waits for it as its reply, and no route leads it to a send port that is not off; nearest: `back_to_a` lacks kind == "reply"; `only_told` lacks type == "note"; `to_b` lacks type == "order""#]],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_that_wait_for_the_same_the_first_has_the_first_reply() {
    check_later(
        r#"
        receive orders {"type": "order", "order": 7}
        receive orders {"type": "order", "order": 7}
        reply results {"order": 7, "n": 1}
        reply results {"order": 7, "n": 2}
        "#,
        expect![[r#"
            1 stored
            b <- 1-0: {"type": "order", "order": 7}
            1 awaits the reply of b
            2 stored
            b <- 2-0: {"type": "order", "order": 7}
            2 awaits the reply of b
            3 stored
            a <- 3-0 at /replies/7: {"order": 7, "n": 1}
            1 is delivered
            3 is delivered
            4 stored
            a <- 4-0 at /replies/7: {"order": 7, "n": 2}
            2 is delivered
            4 is delivered"#]],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_whose_reply_could_not_be_known_is_suspended() {
    check_later(
        r#"
        receive orders {"type": "order"}
        "#,
        expect![[r#"
            1 suspended: it has no `order`, by which its reply from `b` would be known
            1 is suspended: it has no `order`, by which its reply from `b` would be known"#]],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reply_under_a_key_that_came_before_is_none_and_a_crash_changes_nothing() {
    check_later(
        r#"
        receive orders {"type": "order", "order": 7}
        reply results key=r {"order": 7, "said": "yes"}
        reply results key=r {"order": 7, "said": "yes"}
        crash
        reply results key=r {"order": 7, "said": "yes"}
        "#,
        expect![[r#"
            1 stored
            b <- 1-0: {"type": "order", "order": 7}
            1 awaits the reply of b
            2 stored
            a <- 2-0 at /replies/7: {"order": 7, "said": "yes"}
            1 is delivered
            2 is delivered
            2 again stored
            2 again stored"#]],
    )
    .await;
}

/// Runs a script, and has the process die after each of its commits: a copy of the spool at that moment is all that the
/// next process has.
async fn check_each_crash(start: impl AsyncFn() -> Scenario, script: &str, more: &str) {
    let mut whole = start().await;
    let commits = Arc::<AtomicUsize>::default();
    let counted = commits.clone();
    *whole.bed.exchanges.core.on_commit.lock() = Some(Box::new(move || _ = counted.fetch_add(1, Ordering::SeqCst)));
    whole.run(script).await;
    // Its answer comes behind the count of all commits so far.
    whole.bed.exchanges.core.parts.spool.probe().await.expect("written");
    let commits = commits.load(Ordering::SeqCst);
    assert!(commits >= 6, "{commits} commits are too few for the scenario");
    whole.run(more).await;
    let expected = whole.outcome().await;
    for number in 1..=commits {
        let mut scenario = start().await;
        let copied = scenario.crash_after(number);
        scenario.run(script).await;
        scenario.die(copied).await;
        scenario.settle().await;
        // What was stored until the crash ends as without it. The calls after it are lost.
        let stored: BTreeSet<i64> = scenario.messages().await.iter().map(order_of).collect();
        assert!(!stored.is_empty(), "no message is stored after commit {number} of {commits}");
        scenario.run(more).await;
        let of_stored = |all: &[(i64, String)]| -> Vec<(i64, String)> {
            all.iter().filter(|(order, _)| stored.contains(order)).cloned().collect()
        };
        let (found, expected) = (of_stored(&scenario.outcome().await), of_stored(&expected));
        assert_eq!(found, expected, "after commit {number} of {commits}");
    }
}

/// The order that a message is about.
fn order_of(message: &StoredMessage) -> i64 {
    let order = message.head.properties.iter().find(|(name, _)| name.as_str() == "order");
    match order {
        Some((_, Value::Integer(order))) => *order,
        _ => panic!("{message:?} is about no order"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_after_each_commit_loses_nothing_and_repeats_ids_only() {
    let script = r#"
        receive orders {"type": "order", "order": 1}
        b answers 503
        receive orders {"type": "order", "order": 2}
        ask questions {"type": "order", "order": 3}
        receive orders {"type": "note", "order": 4}
        b answers 400
        receive orders {"type": "order", "order": 5}
    "#;
    check_each_crash(async || Scenario::new("").await, script, "resume").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_after_each_commit_keeps_the_wait_for_a_later_reply() {
    let script = r#"
        receive orders {"type": "order", "order": 1}
        ask questions {"type": "order", "order": 2}
        receive orders {"type": "note", "order": 3}
    "#;
    let replies = r#"
        reply results {"order": 1, "said": "yes"}
        reply results {"order": 2, "said": "no"}
    "#;
    check_each_crash(Scenario::later, script, replies).await;
}

impl Scenario {
    /// Keeps a copy of the spool as it is after the commit of this number. The copy is complete when the receiver gets
    /// its folder: readers see a commit earlier, while the writer still copies.
    fn crash_after(&mut self, number: usize) -> oneshot::Receiver<PathBuf> {
        let (left, folder) = (AtomicUsize::new(number), self.bed.folder.path().to_owned());
        let (a, b, until_crash) = (self.bed.a.clone(), self.bed.b.clone(), self.until_crash.clone());
        let (complete, copied) = oneshot::channel();
        let mut complete = Some(complete);
        let copy = self.bed.folder.path().join("crash");
        *self.bed.exchanges.core.on_commit.lock() = Some(Box::new(move || {
            if left.load(Ordering::SeqCst) > 0 && left.fetch_sub(1, Ordering::SeqCst) == 1 {
                std::fs::create_dir(&copy).expect("made");
                copy_spool(&folder, &copy);
                *until_crash.lock() = [a.all().len(), b.all().len()];
                complete.take().expect("one commit has this number").send(copy.clone()).expect("the test waits");
            }
        }));
        copied
    }

    /// Goes on with the copy of [`Scenario::crash_after`].
    async fn die(&mut self, copied: oneshot::Receiver<PathBuf>) {
        let folder = tempfile::tempdir().expect("a folder");
        let copied = tokio::time::timeout(wait_timeout(), copied).await.expect("so many commits were made");
        copy_spool(&copied.expect("a copy"), folder.path());
        self.bed.b.failures.lock().clear();
        self.since_crash = [self.bed.a.all().len(), self.bed.b.all().len()];
        self.start_from(folder).await;
    }

    /// The order and the state of each message and reply. Checks that receivers got each of its deliveries, under one
    /// id each.
    async fn outcome(&self) -> Vec<(i64, String)> {
        let (mut outcome, mut bodies) = (Vec::new(), BTreeMap::new());
        for request in self.requests_of_lives() {
            let body = bodies.entry(request.headers["webhook-id"].clone()).or_insert_with(|| request.body.clone());
            assert_eq!(*body, request.body, "one id is one delivery");
        }
        for message in self.messages().await {
            for leg in message.legs.iter().filter(|leg| matches!(leg.state, LegState::Done | LegState::Awaiting)) {
                let id = format!("{}-{}", message.id, leg.number);
                assert!(bodies.contains_key(&id), "{id} was sent");
            }
            outcome.push((order_of(&message), format!("{} {}", message.kind.word(), state_of(&message))));
        }
        outcome.sort();
        outcome
    }

    /// The requests that A and B got until the crash and after it. The script continued in between.
    fn requests_of_lives(&self) -> Vec<Asked> {
        let mut requests = Vec::new();
        let until_crash = *self.until_crash.lock();
        for (at, all) in [self.bed.a.all(), self.bed.b.all()].into_iter().enumerate() {
            requests.extend_from_slice(&all[..until_crash[at]]);
            requests.extend_from_slice(&all[self.since_crash[at]..]);
        }
        requests
    }
}
