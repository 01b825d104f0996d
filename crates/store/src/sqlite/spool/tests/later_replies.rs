//! Replies that come through a receive port.

use super::*;

/// A request that waits for its reply through `results`, with the correlation key `k`.
fn waiting(spool: &SqliteSpool, kind: MessageKind) -> NewMessage {
    let mut new = message(spool, kind, &["ask"]);
    new.legs[0].awaits = Some(CorrelationKey { through: name("results"), key: "k".into() });
    new
}

fn later_reply(spool: &SqliteSpool, to: MessageId) -> NewMessage {
    NewMessage { port: name("results"), ..message(spool, MessageKind::OneWay, &[]) }.answering(Some((to, 0)))
}

#[test]
fn a_later_reply_settles_its_leg_once_and_further_replies_are_late() {
    let folder = tempfile::tempdir().expect("a folder");
    let spool = open(folder.path());
    block_on(async {
        let request = waiting(&spool, MessageKind::OneWay);
        spool.accept(request.clone()).await.expect("stored");
        let awaits = || vec![CorrelationKey { through: name("results"), key: "k".into() }];
        let found = spool.awaiting(&name("orders"), awaits()).await.expect("read").expect("there");
        assert_eq!((found.message, found.leg, found.waits), (request.id, 0, true));
        let taken = outcome(request.id, 0, 1, LegTransition::Await(at(90)));
        assert_eq!(spool.settle(taken).await.expect("stored"), SettleResult::Stored);
        assert_eq!(spool.expire(at(89), 10).await.expect("looked").next, Some(at(90)));
        let (first, second) = (later_reply(&spool, request.id), later_reply(&spool, request.id));
        spool.accept(first.clone()).await.expect("stored");
        spool.accept(second.clone()).await.expect("stored");
        let stored = async |id| spool.message(id).await.expect("read").expect("there");
        let (asked, received_at) = (stored(request.id).await, stored(first.id).await);
        assert_eq!((asked.ending, asked.reply), (Some(Ending::Delivered), Some(first.id)));
        assert_eq!((received_at.kind, received_at.ending), (MessageKind::Reply, Some(Ending::Delivered)));
        assert_eq!(stored(second.id).await.ending, Some(Ending::Late));
        let found = spool.awaiting(&name("orders"), awaits()).await.expect("read").expect("already answered");
        assert_eq!((found.message, found.waits), (request.id, false));
        assert_eq!(spool.counts().open, 0);
    });
}

#[test]
fn without_a_later_reply_in_time_a_leg_is_suspended_and_can_still_be_answered() {
    let folder = tempfile::tempdir().expect("a folder");
    let spool = open(folder.path());
    block_on(async {
        let request = waiting(&spool, MessageKind::Request);
        let request = NewMessage { expires_at: None, ..request };
        spool.accept(request.clone()).await.expect("stored");
        spool.settle(outcome(request.id, 0, 1, LegTransition::Await(at(90)))).await.expect("stored");
        let over = ExpiredMessages { unanswered: vec![request.id], ..ExpiredMessages::default() };
        assert_eq!(spool.expire(at(90), 10).await.expect("looked"), over);
        let leg = &spool.message(request.id).await.expect("read").expect("there").legs[0];
        assert_eq!(
            (leg.state, leg.said.as_deref()),
            (LegState::Suspended, Some("no reply came through `results` in time"))
        );
        spool.accept(later_reply(&spool, request.id)).await.expect("stored");
        let asked = spool.message(request.id).await.expect("read").expect("there");
        assert_eq!(asked.ending, Some(Ending::Answered));
        assert_eq!(spool.counts().open, 0);
    });
}
