//! Checkpoints of sources.

use tocsin_store::journal::{EventAcceptance, JournalOptions, Mark, NewEventBatch, SourceKey};

use crate::support::*;

fn source() -> SourceKey {
    let batch = events(1, at(0));
    (batch.application, batch.source)
}

fn marked(marks: Vec<Mark>) -> NewEventBatch {
    NewEventBatch { marks, ..events(1, at(0)) }
}

#[test]
fn a_batch_and_the_marks_of_its_source_are_one_commit() {
    on_each(async |journal| {
        let marks = vec![Mark::set("b", &b"2"[..]), Mark::set("a", &b"1"[..]), Mark::set("c", &b""[..])];
        journal.accept(marked(marks)).await.expect("accepted");
        let stored = [Mark::set("a", &b"1"[..]), Mark::set("b", &b"2"[..]), Mark::set("c", &b""[..])];
        assert_eq!(journal.marks(&source(), None, 9).await.expect("read"), stored);
        assert_eq!(journal.marks(&source(), Some("a"), 1).await.expect("read"), stored[1..2]);

        journal.accept(marked(vec![Mark::delete("a"), Mark::set("b", &b"3"[..])])).await.expect("accepted");
        journal.record_marks(&source(), vec![Mark::delete("c"), Mark::delete("d")]).await.expect("recorded");
        assert_eq!(journal.marks(&source(), None, 9).await.expect("read"), [Mark::set("b", &b"3"[..])]);

        let other = (source().0, name("elsewhere"));
        assert!(journal.marks(&other, None, 9).await.expect("read").is_empty());
        journal.record_marks(&other, vec![Mark::set("a", &b"1"[..])]).await.expect("recorded");
        journal.delete_marks(&name("another")).await.expect("forgotten");
        assert_eq!(journal.marks(&other, None, 9).await.expect("read").len(), 1);
        journal.delete_marks(&other.0).await.expect("forgotten");
        assert!(journal.marks(&other, None, 9).await.expect("read").is_empty());
        assert!(journal.marks(&source(), None, 9).await.expect("read").is_empty());
    });
}

#[test]
fn marks_of_refused_batches_are_not_stored() {
    on_each(async |journal| {
        let with = |content, part: &str| NewEventBatch {
            marks: vec![Mark::set(part, &b"1"[..])],
            ..keyed(1, content, at(60), at(0))
        };
        assert!(matches!(journal.accept(with(1, "new")).await, Ok(EventAcceptance::New(_))));
        assert!(matches!(journal.accept(with(1, "known")).await, Ok(EventAcceptance::Duplicate(_))));
        assert!(matches!(journal.accept(with(2, "refused")).await, Ok(EventAcceptance::KeyReused(_))));
        let parts: Vec<_> =
            journal.marks(&source(), None, 9).await.expect("read").into_iter().map(|mark| mark.part).collect();
        assert_eq!(parts, ["known".into(), "new".into()] as [Box<str>; 2]);
    });
    let options = JournalOptions { event_batches_waiting_max: 0, ..JournalOptions::default() };
    on_each_within(options, async |journal| {
        journal.accept(marked(vec![Mark::set("a", &b"1"[..])])).await.expect_err("full");
        assert!(journal.marks(&source(), None, 9).await.expect("read").is_empty());
    });
}
