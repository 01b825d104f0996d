//! From a mail at a return address to the action for its device.

use std::time::Duration;

use tocsin_feedback::{
    Class, Format, Limits, parse,
    policy::{COUNTED_MAX, Decision, DeviceHistory, Evidence, FeedbackPolicy, Reason, SuppressionAction, Threshold},
    return_address::{DeviceTag, Origin, Position, Purpose, Reference, ReturnAddresses, Target},
};
use tocsin_model::{
    feedback::Stage,
    id::{NotificationBatchId, NotificationId, SubscriberNumber, SubscriptionId},
    suppression::Policy,
    time::Timestamp,
};

const NOW: Timestamp = Timestamp::from_millis(1_796_119_206_000);

fn days(days: u64) -> Duration {
    Duration::from_secs(days * 86_400)
}

fn addresses() -> ReturnAddresses {
    ReturnAddresses::new("b@example.org", Position::Subaddress, &[[7; 32]], days(30)).expect("a configuration")
}

fn mail(text: &str) -> String {
    format!(
        "Return-Path: <>\r\nFrom: MAILER-DAEMON@example.net\r\nTo: b@example.org\r\nSubject: Undelivered Mail\r\n\r\n\
         This message could not be delivered.\r\n\r\n<ann@example.net>: {text}\r\n"
    )
}

const HARD: &str = "550 5.1.1 User unknown (in reply to RCPT TO command)";
const SOFT: &str = "452 4.2.2 Mailbox full";
const BLOCKED: &str = "554 5.7.1 Service unavailable; client blocked using zen.example";

fn origin(purpose: Purpose, ordinal: u32, target: Target) -> Origin {
    let reference = Reference::Notification(NotificationId { batch: NotificationBatchId(7), ordinal });
    Origin { purpose, reference, target }
}

fn device() -> Target {
    Target::Device(SubscriberNumber(3), DeviceTag::of("ann@example.net"))
}

/// The evidence of a mail at the return address of a notification.
fn evidence(ordinal: u32, mail: &str) -> Vec<Evidence> {
    let address = addresses().issue(&origin(Purpose::Bounce, ordinal, device()), NOW).expect("an address");
    let verified = addresses().verify(&address, NOW).expect("our address");
    Evidence::of_mail(&verified, &parse(mail.as_bytes(), &Limits::default()))
}

fn decide(history: &DeviceHistory, ordinal: u32, text: &str, at: Timestamp) -> Decision {
    let evidence = evidence(ordinal, &mail(text));
    assert_eq!(evidence.len(), 1);
    assert_eq!(evidence[0].target(), Some(device()));
    FeedbackPolicy::default().decide(history, &evidence[0], at)
}

#[test]
fn one_hard_bounce_suppresses_and_a_repeated_one_counts_once() {
    let first = decide(&DeviceHistory::default(), 1, HARD, NOW);
    assert_eq!((first.action, first.class), (SuppressionAction::Suppress, Class::Hard));
    assert_eq!(first.reason, Reason::Counted(1, 1));
    let again = decide(&first.history, 1, HARD, NOW + days(0));
    assert_eq!((again.action, again.reason), (SuppressionAction::None, Reason::Repeated));
}

#[test]
fn five_soft_bounces_within_seven_days_suppress_for_thirty() {
    let mut history = DeviceHistory::default();
    for ordinal in 1..=4 {
        let decision = decide(&history, ordinal, SOFT, NOW + days(ordinal.into()));
        assert_eq!(decision.action, SuppressionAction::None);
        history = decision.history;
    }
    let again = decide(&history, 4, SOFT, NOW + days(4));
    assert_eq!(again.reason, Reason::Repeated, "a copy of the fourth");
    let fifth = decide(&history, 5, SOFT, NOW + days(5));
    assert_eq!(fifth.action, SuppressionAction::SuppressUntil(NOW + days(35)));
    let late = decide(&history, 5, SOFT, NOW + days(9));
    assert_eq!(late.reason, Reason::Counted(3, 5), "those of the first two days are too old");
}

#[test]
fn a_later_success_clears_soft_counts_and_an_earlier_one_does_not() {
    let policy = FeedbackPolicy::default();
    let once = decide(&DeviceHistory::default(), 1, SOFT, NOW + days(1)).history;
    assert_eq!(policy.after_success(&once, Stage::Report, NOW), once);
    assert_eq!(policy.after_success(&once, Stage::Report, NOW + days(2)), DeviceHistory::default());
    let hard = decide(&DeviceHistory::default(), 1, HARD, NOW).history;
    assert_eq!(policy.after_success(&hard, Stage::Report, NOW + days(1)), hard);
    let report = "From: MAILER-DAEMON@a\n\
                  Content-Type: multipart/report; report-type=delivery-status; boundary=xxxxx\n\n\
                  --xxxxx\nContent-Type: message/delivery-status\n\nReporting-MTA: dns; a\n\n\
                  Final-Recipient: rfc822; ann@example.net\nAction: delivered\nStatus: 2.0.0\n\n--xxxxx--\n";
    let delivered = evidence(2, report);
    assert_eq!(delivered[0].class(), Class::Delivered);
    let decision = policy.decide(&once, &delivered[0], NOW + days(2));
    assert_eq!((decision.reason, decision.history), (Reason::Cleared, DeviceHistory::default()));
}

#[test]
fn a_success_in_the_session_clears_the_counts_of_sessions_only() {
    let policy = FeedbackPolicy::default();
    let notification = |ordinal| NotificationId { batch: NotificationBatchId(7), ordinal };
    let reported = decide(&DeviceHistory::default(), 1, SOFT, NOW).history;
    let refused = policy.decide(&reported, &Evidence::of_session(notification(2), Class::Soft), NOW);
    assert_eq!(refused.reason, Reason::Counted(2, 5), "both stages count together");
    let accepted = Evidence::of_session(notification(3), Class::Delivered);
    let decision = policy.decide(&refused.history, &accepted, NOW + days(1));
    assert_eq!((decision.reason, decision.history), (Reason::Cleared, reported));
}

#[test]
fn the_policy_of_suppressions_is_that_of_feedback() {
    let standard = FeedbackPolicy::from(&Policy::default());
    let fourteen = Threshold { window: days(14), ..FeedbackPolicy::default().soft.expect("soft bounces count") };
    assert_eq!(standard, FeedbackPolicy { soft: Some(fourteen), ..FeedbackPolicy::default() });
    let none = FeedbackPolicy::from(&Policy { hard_bounces: 0, complaints: 0, challenges: 3, ..Policy::default() });
    assert_eq!((none.hard, none.complaint, none.challenge.map(|found| found.count)), (None, None, Some(3)));
}

#[test]
fn blocked_mail_never_suppresses_the_device() {
    let mut history = DeviceHistory::default();
    for ordinal in 0..200 {
        let decision = decide(&history, ordinal, BLOCKED, NOW);
        assert_eq!((decision.action, decision.reason), (SuppressionAction::None, Reason::NotCounted));
        assert_eq!(decision.class, Class::Blocked);
        history = decision.history;
    }
    assert_eq!(history, DeviceHistory::default());
}

#[test]
fn thresholds_are_configured_and_histories_bounded() {
    let policy = FeedbackPolicy {
        hard: Some(Threshold { count: 2, window: days(3), lasts: Some(days(10)) }),
        soft: Some(Threshold { count: 0, window: days(7), lasts: None }),
        ..FeedbackPolicy::default()
    };
    let evidence_of = |ordinal, text: &str| evidence(ordinal, &mail(text)).remove(0);
    let first = policy.decide(&DeviceHistory::default(), &evidence_of(1, HARD), NOW);
    assert_eq!(first.action, SuppressionAction::None);
    let second = policy.decide(&first.history, &evidence_of(2, HARD), NOW + days(2));
    assert_eq!(second.action, SuppressionAction::SuppressUntil(NOW + days(12)));
    assert_eq!(policy.decide(&first.history, &evidence_of(2, HARD), NOW + days(3)).reason, Reason::Counted(1, 2));
    let none = policy.decide(&DeviceHistory::default(), &evidence_of(1, SOFT), NOW);
    assert_eq!(none.reason, Reason::Counted(1, 1), "a threshold of 0 is 1");
    let off = FeedbackPolicy { hard: None, ..policy };
    assert_eq!(off.decide(&DeviceHistory::default(), &evidence_of(1, HARD), NOW).reason, Reason::NotCounted);
    let many = FeedbackPolicy {
        soft: Some(Threshold { count: 1_000, window: days(7), lasts: None }),
        ..FeedbackPolicy::default()
    };
    let mut history = DeviceHistory::default();
    for ordinal in 0..150 {
        history = many.decide(&history, &evidence_of(ordinal, SOFT), NOW).history;
    }
    assert_eq!(history.counted.len(), COUNTED_MAX);
    // A clock that went back: reports of the future do not count.
    assert!(many.decide(&history, &evidence_of(0, HARD), Timestamp::from_millis(0)).history.counted.len() == 1);
    let text = serde_json::to_string(&policy_text()).expect("JSON");
    assert_eq!(serde_json::from_str::<FeedbackPolicy>(&text).expect("a policy"), policy_text());
}

fn policy_text() -> FeedbackPolicy {
    FeedbackPolicy {
        challenge: Some(Threshold { count: 3, window: days(7), lasts: None }),
        ..FeedbackPolicy::default()
    }
}

#[test]
fn an_address_of_one_purpose_has_no_other_effect() {
    let addresses = addresses();
    let at = |purpose, target, mail: &str| {
        let address = addresses.issue(&origin(purpose, 1, target), NOW).expect("an address");
        let verified = addresses.verify(&address.to_uppercase(), NOW).expect("our address");
        Evidence::of_mail(&verified, &parse(mail.as_bytes(), &Limits::default()))
    };
    let subscription = Target::Subscription(SubscriptionId(15));
    let person = "From: Ann <ann@example.net>\r\nSubject: hello\r\n\r\nplease no more\r\n";
    let program = "From: Ann <ann@example.net>\r\nAuto-Submitted: auto-replied\r\nSubject: Away\r\n\r\nI am away\r\n";
    let withdrawn = at(Purpose::Unsubscribe, subscription, person);
    assert_eq!(withdrawn[0].class(), Class::Unsubscribe);
    assert_eq!(withdrawn[0].target(), Some(subscription));
    assert_eq!(at(Purpose::Unsubscribe, subscription, program), []);
    assert_eq!(at(Purpose::Unsubscribe, subscription, &mail(HARD)), []);
    assert_eq!(at(Purpose::Confirm, device(), &mail(HARD)), []);
    assert_eq!(at(Purpose::Confirm, device(), person), []);
    let decision = FeedbackPolicy::default().decide(&DeviceHistory::default(), &withdrawn[0], NOW);
    assert_eq!(decision.action, SuppressionAction::Suppress);
    // A reply of a person to the envelope sender is kept for an operator and counts nothing.
    let reply = at(Purpose::Bounce, device(), person);
    assert_eq!(FeedbackPolicy::default().decide(&DeviceHistory::default(), &reply[0], NOW).reason, Reason::NotCounted);
}

#[test]
fn a_mail_to_many_names_its_recipients() {
    let addresses = addresses();
    let reference = Reference::Multicast(NotificationBatchId(7));
    let origin = Origin { purpose: Purpose::Bounce, reference, target: Target::Reported };
    let verified = addresses.verify(&addresses.issue(&origin, NOW).expect("an address"), NOW).expect("our address");
    let feedback = parse(mail(HARD).as_bytes(), &Limits::default());
    let evidence = Evidence::of_mail(&verified, &feedback);
    assert_eq!(evidence.len(), 1);
    assert_eq!(evidence[0].recipient().map(|recipient| recipient.address()).as_deref(), Some("ann@example.net"));
    assert_eq!(evidence[0].target(), None);
    // Each recipient knows the address and could forge a bounce of another one.
    assert_eq!(evidence[0].class(), Class::Soft);
    let withdrawal = "From: Bob <bob@example.net>\r\nSubject: unsubscribe\r\n\r\n";
    assert_eq!(Evidence::of_mail(&verified, &parse(withdrawal.as_bytes(), &Limits::default())), []);
    let person = parse(b"Subject: hi\r\n\r\nhello\r\n", &Limits::default());
    assert_eq!(person.format, Format::Mail);
    assert_eq!(Evidence::of_mail(&verified, &person), []);
}
