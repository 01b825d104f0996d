//! Conformance: feedback to sent messages.

use tocsin_model::{
    feedback::{Class, FeedbackEntry, Stage},
    id::{NotificationBatchId, NotificationId},
};

use super::*;

const BOB: &str = "address/smtp/bob@example.org";
const PHONE: &str = "device/ann/phone";

fn target(text: &str) -> Target {
    text.parse().expect("a target")
}

pub(super) fn entry(to: &str, class: Class, key: &str, seconds: i64) -> FeedbackEntry {
    FeedbackEntry {
        target: target(to),
        class,
        key: key.to_owned(),
        at: at(seconds),
        stage: Stage::Report,
        counts: true,
        effect: "counted 1 of 5".to_owned(),
        origin: "mail".to_owned(),
        detail: "452 4.2.2 full".to_owned(),
        status: Some("4.2.2".to_owned()),
        notification: Some(NotificationId { batch: NotificationBatchId(7), ordinal: 1 }),
        device: Some((subscriber_id("ann"), name("phone"))),
        expires_at: at(seconds + 100),
    }
}

/// A change of the present state.
async fn changed(records: &dyn Records, to: &str, added: Vec<FeedbackEntry>) -> FeedbackChange {
    let before = records.feedback_states(&[target(to)]).await.expect("read").remove(0);
    FeedbackChange { target: target(to), before, added, cleared: Vec::new(), suppression: None }
}

async fn add(records: &dyn Records, to: &str, added: Vec<FeedbackEntry>) {
    let change = changed(records, to, added).await;
    records.change_feedback(vec![change]).await.expect("stored");
}

fn suppressed(to: &str, cause: Cause) -> Suppression {
    Suppression {
        target: target(to),
        address: None,
        cause,
        in_force: true,
        origin: "mail".to_owned(),
        detail: String::new(),
        notification: None,
        bounces: Vec::new(),
        since: at(1),
        updated_at: at(1),
        expires_at: None,
    }
}

async fn keys(records: &dyn Records, to: &str) -> Vec<String> {
    let state = records.feedback_states(&[target(to)]).await.expect("read").remove(0);
    let show = |entry: FeedbackEntry| format!("{} {} {}", entry.class.word(), entry.key, entry.counts);
    state.entries.into_iter().map(show).collect()
}

#[test]
fn feedback_is_stored_once_for_a_class_and_a_key() {
    check(async |records| {
        let before = newest(records);
        let bare =
            FeedbackEntry { status: None, notification: None, device: None, ..entry(BOB, Class::Hard, "m-1", 3) };
        let session = FeedbackEntry { stage: Stage::Session, ..entry(BOB, Class::Soft, "n-7-2", 2) };
        add(records, BOB, vec![entry(BOB, Class::Soft, "n-7-1", 1), session.clone()]).await;
        add(records, BOB, vec![entry(BOB, Class::Soft, "n-7-1", 9), bare.clone()]).await;
        assert_eq!(keys(records, BOB).await, ["soft n-7-1 true", "soft n-7-2 true", "hard m-1 true"]);
        let states = records.feedback_states(&[target(PHONE), target(BOB)]).await.expect("read");
        assert_eq!(states[0], FeedbackState { entries: Vec::new(), suppression: None });
        assert_eq!(states[1].entries, [entry(BOB, Class::Soft, "n-7-1", 1), session, bare]);
        assert_eq!(newest(records), before, "entries are not part of the change log");
        assert_eq!(records.counted_in_sessions().await.expect("read"), [target(BOB)]);
    });
}

#[test]
fn a_change_of_another_state_stores_nothing() {
    check(async |records| {
        let stale = changed(records, BOB, vec![entry(BOB, Class::Soft, "n-7-1", 1)]).await;
        add(records, BOB, vec![entry(BOB, Class::Soft, "n-7-2", 1)]).await;
        let fresh = changed(records, PHONE, vec![entry(PHONE, Class::Soft, "n-7-1", 1)]).await;
        let failed = records.change_feedback(vec![fresh, stale]).await;
        assert!(matches!(failed, Err(StoreError::Changed(_))), "{failed:?}");
        assert_eq!((keys(records, BOB).await.len(), keys(records, PHONE).await.len()), (1, 0));
        let stale = changed(records, BOB, Vec::new()).await;
        records.put_suppressions(vec![suppressed(BOB, Cause::Manual)]).await.expect("stored");
        let failed = records.change_feedback(vec![stale]).await;
        assert!(matches!(failed, Err(StoreError::Changed(_))), "the suppression is a part of the state");
    });
}

#[test]
fn a_suppression_follows_in_the_same_commit_and_its_end_clears_the_counts() {
    check(async |records| {
        let change = changed(records, BOB, vec![entry(BOB, Class::Hard, "n-7-1", 1)]).await;
        let suppression = Some(suppressed(BOB, Cause::HardBounce));
        records.change_feedback(vec![FeedbackChange { suppression, ..change }]).await.expect("stored");
        let cause = async || records.suppression(&target(BOB)).await.expect("read").map(|found| found.cause);
        assert_eq!(cause().await, Some(Cause::HardBounce));
        assert_eq!(records.newest_suppression(), newest(records));
        let change = changed(records, BOB, Vec::new()).await;
        let suppression = Some(suppressed(BOB, Cause::SoftBounce));
        records.change_feedback(vec![FeedbackChange { suppression, ..change }]).await.expect("stored");
        assert_eq!(cause().await, Some(Cause::HardBounce), "a less severe cause does not replace it");
        records.remove_suppression(&target(BOB)).await.expect("lifted");
        assert_eq!(keys(records, BOB).await, ["hard n-7-1 false"], "it is known, and counts no more");
    });
}

#[test]
fn entries_are_cleared_listed_and_pruned() {
    check(async |records| {
        let other = FeedbackEntry { notification: None, ..entry(PHONE, Class::Complaint, "e-9", 4) };
        let session = FeedbackEntry { stage: Stage::Session, ..entry(BOB, Class::Soft, "n-7-2", 2) };
        add(records, BOB, vec![entry(BOB, Class::Soft, "n-7-1", 1), session]).await;
        add(records, PHONE, vec![other]).await;
        let change = changed(records, BOB, Vec::new()).await;
        let cleared = vec![(Class::Soft, "n-7-2".to_owned()), (Class::Soft, "none".to_owned())];
        records.change_feedback(vec![FeedbackChange { cleared, ..change }]).await.expect("stored");
        assert_eq!(keys(records, BOB).await, ["soft n-7-1 true", "soft n-7-2 false"]);
        assert!(records.counted_in_sessions().await.expect("read").is_empty());
        let list = async |filter: FeedbackFilter, before, limit| {
            let page = records.scan_feedback(&filter, before, limit).await.expect("read");
            (page.items.into_iter().map(|(_, entry)| entry.key).collect::<Vec<_>>().join(" "), page.next)
        };
        let all = FeedbackFilter::default();
        assert_eq!(list(all.clone(), None, 9).await, ("e-9 n-7-2 n-7-1".to_owned(), None));
        let (first, next) = list(all.clone(), None, 2).await;
        assert_eq!((first.as_str(), next.is_some()), ("e-9 n-7-2", true));
        assert_eq!(list(all.clone(), next, 2).await, ("n-7-1".to_owned(), None));
        let of_class = FeedbackFilter { class: Some(Class::Complaint), ..all.clone() };
        assert_eq!(list(of_class, None, 9).await.0, "e-9");
        let of_batch = FeedbackFilter { batch: Some(NotificationBatchId(7)), ..all.clone() };
        assert_eq!(list(of_batch, None, 9).await.0, "n-7-2 n-7-1");
        let of_target = FeedbackFilter { target: Some(target(PHONE)), ..all };
        assert_eq!(list(of_target, None, 9).await.0, "e-9");
        assert_eq!(records.prune_feedback(at(101), 9).await.expect("pruned"), 1);
        assert_eq!(records.prune_feedback(at(200), 1).await.expect("pruned"), 1);
        assert_eq!(keys(records, PHONE).await, ["complaint e-9 true"]);
        records.forget_feedback(&target(PHONE)).await.expect("forgotten");
        assert!(keys(records, PHONE).await.is_empty());
    });
}

#[test]
fn a_removed_subscriber_leaves_no_feedback_of_its_devices() {
    check(async |records| {
        records.put_subscriber(person("ann", &["phone=sms"]), Precondition::Any, at(1)).await.expect("stored");
        let ann = records.subscriber(&subscriber_id("ann")).await.expect("read").expect("there");
        let found = records.subscriber_by_number(ann.number).await.expect("read");
        assert_eq!(found.map(|found| found.devices), Some(ann.devices));
        assert_eq!(records.subscriber_by_number(SubscriberNumber(99)).await.expect("read"), None);
        add(records, PHONE, vec![entry(PHONE, Class::Soft, "n-7-1", 1)]).await;
        add(records, BOB, vec![entry(BOB, Class::Soft, "n-7-1", 1)]).await;
        records.remove_subscriber(&subscriber_id("ann"), Precondition::Any, at(2)).await.expect("removed");
        assert!(keys(records, PHONE).await.is_empty());
        let state = records.feedback_states(&[target(BOB)]).await.expect("read").remove(0);
        assert_eq!(state.entries[0].device, None, "the address was another one");
    });
}

#[test]
fn a_merged_number_leads_to_its_account() {
    check(async |records| {
        for id in ["ann", "bob"] {
            records.put_subscriber(person(id, &["phone=sms"]), Precondition::Any, at(1)).await.expect("stored");
        }
        let number = records.subscriber(&subscriber_id("ann")).await.expect("read").expect("there").number;
        let merged = records.merge_subscribers(&subscriber_id("ann"), &subscriber_id("bob"), at(2)).await;
        merged.expect("stored").expect("merged");
        let found = records.subscriber_by_number(number).await.expect("read").expect("there");
        assert_eq!(found.id, subscriber_id("bob"));
    });
}
