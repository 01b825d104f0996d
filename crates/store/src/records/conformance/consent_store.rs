//! Consent of subscriptions, with its evidence.

use tocsin_model::{
    consent::{
        ADDRESS_SUBSCRIBER, Confirmation, ConsentAct, ConsentMethod, ConsentPolicy, ConsentRequest, ConsentState,
        Evidence, EvidenceAddress, InitialConsent, Proof, Requested,
    },
    id::SubscriptionId,
};

use super::*;
use crate::records::{ConfirmConsent, EvidenceOf, NewConsented};

fn evidence(way: ConsentMethod, address: &str) -> Evidence {
    let address =
        EvidenceAddress { channel: name("mail"), address: address.to_owned(), hash: format!("hash of {address}") };
    let (remote, text) = (Some("192.0.2.7".to_owned()), Some("Yes, send me news.".to_owned()));
    Evidence { address: Some(address), remote, text, version: Some("v1".to_owned()), ..Evidence::new(way, "test") }
}

fn request(address: &str) -> ConsentRequest {
    let policy = ConsentPolicy { attempts: 2, ..ConsentPolicy::default() };
    ConsentRequest { policy, code: None, repeats: true, evidence: evidence(ConsentMethod::Api, address) }
}

fn requested(subscriber: &str, device: &str) -> NewConsented {
    let subscription = NewSubscription { device: Some(name(device)), ..interest(subscriber, Some("self")) };
    let consent = InitialConsent::Requested(request(&format!("{subscriber}@mail.example")));
    NewConsented { subscription, consent, keeps_confirmed: true, quiet: false }
}

/// Stores one subscription with its consent.
async fn put(records: &dyn Records, new: NewConsented, now: i64) -> (SubscriptionId, Requested) {
    let written = records.put_consented(vec![new], at(now)).await.expect("stored");
    written.into_iter().next().expect("one answer").expect("stored")
}

async fn confirm(records: &dyn Records, id: SubscriptionId, proof: Proof, now: i64) -> Confirmation {
    let evidence = evidence(ConsentMethod::Link, "ann@mail.example");
    records.confirm_consent(ConfirmConsent { id, proof, attempts_max: 2, evidence, now: at(now) }).await.expect("read")
}

/// State of a subscription's consent, whether it is enabled, and the number of its open request for delivery.
async fn state(records: &dyn Records, id: SubscriptionId) -> (Option<ConsentState>, bool, Option<u64>) {
    let found = records.subscription(id).await.expect("read").expect("a subscription");
    let recipient = records.recipients(&[id]).await.expect("read").remove(0).expect("a recipient");
    assert_eq!(recipient.interest.enabled, found.enabled);
    (found.consent, found.enabled, recipient.interest.consent_request)
}

async fn acts(records: &dyn Records, id: SubscriptionId) -> Vec<ConsentAct> {
    let found = records.evidence(&EvidenceOf::Subscription(id), None, 100).await.expect("read");
    found.into_iter().map(|record| record.act).collect()
}

const PENDING: Option<ConsentState> = Some(ConsentState::Pending);
const CONFIRMED: Option<ConsentState> = Some(ConsentState::Confirmed);
const WITHDRAWN: Option<ConsentState> = Some(ConsentState::Withdrawn);

/// A subscriber whose device is pending.
async fn ann(records: &dyn Records) {
    let mut new = person("ann", &["a=mail"]);
    for (_, device) in new.devices.as_mut().expect("given") {
        device.state = DeviceState::Pending;
    }
    records.put_subscriber(new, Precondition::Any, at(0)).await.expect("stored");
}

#[test]
fn a_pending_subscription_is_matched_only_after_its_confirmation() {
    check(async |records| {
        ann(records).await;
        let (id, answer) = put(records, requested("ann", "a"), 1).await;
        assert_eq!((answer, state(records, id).await), (Requested::Started, (PENDING, false, Some(1))));
        let enable = change(Some(name("a")), true, r#"{"magnitude":5.5}"#);
        let update = UpdateSubscription { id, change: enable, expect: Precondition::Any, now: at(2) };
        records.update_subscription(update).await.expect("stored");
        assert_eq!(state(records, id).await, (PENDING, false, Some(1)), "an update does not skip the consent");
        let indexed = |at| async move {
            let ids = [SubscriptionId(1)..=SubscriptionId(9)];
            records.indexed_at(&name("quakes"), &ids, at).await.expect("read").len()
        };
        assert_eq!(indexed(newest(records)).await, 0);
        let before = newest(records);
        assert_eq!(confirm(records, id, Proof::Link { request: 1 }, 3).await, Confirmation::Confirmed);
        assert_eq!(state(records, id).await, (CONFIRMED, true, None));
        let device =
            records.subscriber(&subscriber_id("ann")).await.expect("read").expect("ann").devices[&name("a")].clone();
        assert_eq!(device.state, DeviceState::Active, "the owner of the address confirmed");
        assert_eq!((indexed(newest(records)).await, indexed(before).await), (1, 0));
        assert_eq!(confirm(records, id, Proof::Link { request: 1 }, 4).await, Confirmation::AlreadyConfirmed);
        assert_eq!(acts(records, id).await, [ConsentAct::Requested, ConsentAct::Confirmed]);
        let record = records.evidence(&EvidenceOf::Subscription(id), Some(1), 9).await.expect("read").remove(0);
        assert_eq!(record.subscriber, Some(subscriber_id("ann")));
        assert_eq!((record.at, record.way, record.by.as_str()), (at(3), ConsentMethod::Link, "test"));
        assert_eq!((record.text.as_deref(), record.version.as_deref()), (Some("Yes, send me news."), Some("v1")));
    });
}

#[test]
fn a_repeated_request_is_limited_and_cannot_change_a_confirmed_subscription() {
    check(async |records| {
        ann(records).await;
        let (id, _) = put(records, requested("ann", "a"), 1).await;
        let other = || {
            let mut new = requested("ann", "a");
            new.subscription.values = "{}".into();
            new
        };
        let values = || async { records.subscription(id).await.expect("read").expect("there").values };
        assert_eq!(put(records, other(), 2).await, (id, Requested::TooSoon(at(301))));
        assert_ne!(&*values().await, "{}", "its link confirms what the message said");
        assert_eq!(put(records, requested("ann", "a"), 301).await, (id, Requested::Resent));
        assert_eq!(put(records, other(), 601).await, (id, Requested::Started));
        assert_eq!((&*values().await, state(records, id).await), ("{}", (PENDING, false, Some(2))));
        assert_eq!(confirm(records, id, Proof::Link { request: 1 }, 602).await, Confirmation::Void);
        assert_eq!(confirm(records, id, Proof::Link { request: 2 }, 603).await, Confirmation::Confirmed);
        assert_eq!(put(records, requested("ann", "a"), 9_000).await, (id, Requested::AlreadyConfirmed));
        assert_eq!((&*values().await, state(records, id).await), ("{}", (CONFIRMED, true, None)));
        let trusted = NewConsented { keeps_confirmed: false, ..requested("ann", "a") };
        assert_eq!(put(records, trusted, 9_001).await, (id, Requested::AlreadyConfirmed));
        assert_eq!(state(records, id).await, (CONFIRMED, true, None));
        assert_ne!(&*values().await, "{}", "a key may change it");
    });
}

#[test]
fn wrong_codes_are_counted_in_the_commit() {
    check(async |records| {
        ann(records).await;
        let (id, _) = put(records, requested("ann", "a"), 1).await;
        let code = |right| Proof::Code { request: 1, right };
        assert_eq!(confirm(records, id, code(false), 2).await, Confirmation::WrongCode);
        assert_eq!(confirm(records, id, code(false), 2).await, Confirmation::WrongCode);
        assert_eq!(confirm(records, id, code(true), 2).await, Confirmation::Exhausted);
        assert_eq!(records.consent(id).await.expect("read").expect("there").attempts, 2);
        assert_eq!(records.request_consent(id, request("ann@mail.example"), at(400)).await.expect("ok"), {
            Requested::Started
        });
        let code = Proof::Code { request: 2, right: true };
        assert_eq!(confirm(records, id, code, 401).await, Confirmation::Confirmed);
        assert_eq!(confirm(records, SubscriptionId(77), code, 401).await, Confirmation::Void);
        assert!(is_missing(records.request_consent(SubscriptionId(77), request("x"), at(1)).await));
    });
}

#[test]
fn a_link_is_void_after_its_address_changed() {
    check(async |records| {
        ann(records).await;
        let (id, _) = put(records, requested("ann", "a"), 1).await;
        let (ann, device) = (subscriber_id("ann"), name("a"));
        let other = PutDevice { id: &ann, name: &device, device: mailbox("x@x"), keeps_state: false, now: at(2) };
        records.put_device(other).await.expect("stored");
        assert_eq!(confirm(records, id, Proof::Link { request: 1 }, 3).await, Confirmation::Void);
        assert_eq!(state(records, id).await, (PENDING, false, Some(1)));
        assert_eq!(confirm(records, id, Proof::Operator, 4).await, Confirmation::Confirmed);
    });
}

#[test]
fn another_address_of_a_device_needs_another_confirmation() {
    check(async |records| {
        ann(records).await;
        let (id, _) = put(records, requested("ann", "a"), 1).await;
        let plain = NewSubscription { device: Some(name("a")), ..interest("ann", Some("plain")) };
        let plain = records.put_subscription(plain, at(1)).await.expect("stored").id;
        confirm(records, id, Proof::Link { request: 1 }, 2).await;
        let (ann, device) = (subscriber_id("ann"), name("a"));
        let put = async |address: &str, now| {
            let device =
                PutDevice { id: &ann, name: &device, device: mailbox(address), keeps_state: false, now: at(now) };
            records.put_device(device).await.expect("stored").devices[&name("a")].state
        };
        assert_eq!(put("ANN@mail.example", 3).await, DeviceState::Active, "another spelling");
        assert_eq!(put("ann@other.example", 4).await, DeviceState::Pending);
        assert_eq!(state(records, id).await, (PENDING, false, Some(2)));
        assert_eq!(state(records, plain).await, (None, true, None));
        assert_eq!(records.expire_consents(at(9_000_000), 9).await.expect("ok"), 0, "it was confirmed once");
        assert_eq!(confirm(records, id, Proof::Link { request: 1 }, 5).await, Confirmation::Void);
        assert_eq!(confirm(records, id, Proof::Link { request: 2 }, 6).await, Confirmation::Confirmed);
        assert_eq!(state(records, id).await, (CONFIRMED, true, None));
        let found = records.subscriber(&ann).await.expect("read").expect("ann");
        assert_eq!(found.devices[&device].state, DeviceState::Active);
        use ConsentAct::{Confirmed, Requested as Request};
        assert_eq!(acts(records, id).await, [Request, Confirmed, Request, Confirmed]);
    });
}

#[test]
fn a_withdrawal_disables_and_can_be_undone() {
    check(async |records| {
        ann(records).await;
        let (id, _) = put(records, requested("ann", "a"), 1).await;
        let proof = || evidence(ConsentMethod::Link, "ann@mail.example");
        assert!(!records.restore_consent(id, proof(), at(2)).await.expect("ok"), "it is pending");
        confirm(records, id, Proof::Link { request: 1 }, 2).await;
        assert!(records.withdraw_consent(id, proof(), at(3)).await.expect("ok"));
        assert!(!records.withdraw_consent(id, proof(), at(4)).await.expect("ok"));
        assert_eq!(state(records, id).await, (WITHDRAWN, false, None));
        assert_eq!(confirm(records, id, Proof::Link { request: 1 }, 5).await, Confirmation::Void);
        assert!(records.restore_consent(id, proof(), at(6)).await.expect("ok"));
        assert_eq!(state(records, id).await, (CONFIRMED, true, None));
        use ConsentAct::{Confirmed, Requested as Request, Restored, Withdrawn};
        assert_eq!(acts(records, id).await, [Request, Confirmed, Withdrawn, Restored]);

        let plain = records.put_subscription(interest("ann", Some("plain")), at(7)).await.expect("stored").id;
        assert!(records.withdraw_consent(plain, proof(), at(8)).await.expect("ok"));
        assert_eq!(state(records, plain).await, (None, false, None), "its class needs no consent");
        assert!(records.restore_consent(plain, proof(), at(9)).await.expect("ok"));
        assert!(!records.restore_consent(plain, proof(), at(9)).await.expect("ok"));
        assert_eq!(state(records, plain).await, (None, true, None));
        assert_eq!(acts(records, plain).await, [Withdrawn, Restored]);
        assert!(!records.withdraw_consent(SubscriptionId(77), proof(), at(9)).await.expect("ok"));
    });
}

#[test]
fn an_undone_withdrawal_of_a_request_confirms_nothing() {
    check(async |records| {
        ann(records).await;
        let (id, _) = put(records, requested("ann", "a"), 1).await;
        let proof = || evidence(ConsentMethod::Operator, "ann@mail.example");
        assert!(records.withdraw_consent(id, proof(), at(2)).await.expect("ok"));
        assert!(records.restore_consent(id, proof(), at(3)).await.expect("ok"));
        assert_eq!(state(records, id).await, (PENDING, false, Some(1)), "it was never confirmed");
        assert_eq!(confirm(records, id, Proof::Link { request: 1 }, 4).await, Confirmation::Confirmed);

        // The device moves while the consent is withdrawn.
        assert!(records.withdraw_consent(id, proof(), at(5)).await.expect("ok"));
        let (ann, device) = (subscriber_id("ann"), name("a"));
        let other =
            PutDevice { id: &ann, name: &device, device: mailbox("x@x.example"), keeps_state: false, now: at(6) };
        records.put_device(other).await.expect("stored");
        assert!(records.restore_consent(id, proof(), at(7)).await.expect("ok"));
        assert_eq!(state(records, id).await, (PENDING, false, Some(2)), "the new address is asked");
        use ConsentAct::{Confirmed, Requested as Request, Restored, Withdrawn};
        assert_eq!(acts(records, id).await, [Request, Withdrawn, Restored, Confirmed, Withdrawn, Request]);
    });
}

#[test]
fn a_consent_does_not_follow_a_subscription_to_another_address() {
    check(async |records| {
        records.put_subscriber(person("ann", &["a=mail", "b=mail"]), Precondition::Any, at(0)).await.expect("stored");
        let (ann, device) = (subscriber_id("ann"), name("a"));
        let put_device = async |device: &str, address: &str, now| {
            let (ann, device) = (subscriber_id("ann"), name(device));
            let put = PutDevice { id: &ann, name: &device, device: mailbox(address), keeps_state: false, now: at(now) };
            records.put_device(put).await.expect("stored").devices[&device].state
        };
        put_device("a", "ann@mail.example", 0).await;
        put_device("b", "bob@mail.example", 0).await;
        let (id, _) = put(records, requested("ann", "a"), 1).await;
        confirm(records, id, Proof::Link { request: 1 }, 2).await;

        // An update and a replacement that name another device.
        let of_b = change(Some(name("b")), true, r#"{"magnitude":5.5}"#);
        let update = UpdateSubscription { id, change: of_b, expect: Precondition::Any, now: at(3) };
        records.update_subscription(update).await.expect("stored");
        assert_eq!(state(records, id).await, (PENDING, false, Some(2)));
        assert_eq!(confirm(records, id, Proof::Link { request: 2 }, 4).await, Confirmation::Confirmed);
        let back = NewConsented { keeps_confirmed: false, ..requested("ann", "a") };
        put(records, back, 1_000).await;
        assert_eq!(state(records, id).await, (PENDING, false, Some(3)));
        assert_eq!(confirm(records, id, Proof::Link { request: 3 }, 1_001).await, Confirmation::Confirmed);

        // A device that is removed, and added again with its address or with another one.
        records.remove_device(&ann, &device, at(1_002)).await.expect("removed");
        assert_eq!(put_device("a", "ANN@mail.example", 1_003).await, DeviceState::Active, "the same mailbox");
        assert_eq!(state(records, id).await, (CONFIRMED, true, None));
        records.remove_device(&ann, &device, at(1_004)).await.expect("removed");
        assert_eq!(put_device("a", "eve@mail.example", 1_005).await, DeviceState::Pending);
        assert_eq!(state(records, id).await, (PENDING, false, Some(4)));
    });
}

#[test]
fn an_imported_consent_is_confirmed_with_its_proof() {
    check(async |records| {
        ann(records).await;
        let proof = Evidence {
            at: Some(at(-9)),
            proof: Some("form 17".to_owned()),
            ..evidence(ConsentMethod::Import, "ann@mail.example")
        };
        let imported =
            NewConsented { consent: InitialConsent::Recorded(ConsentState::Confirmed, proof), ..requested("ann", "a") };
        let (id, _) = put(records, imported.clone(), 1).await;
        assert_eq!(state(records, id).await, (CONFIRMED, true, None));
        put(records, imported, 2).await;
        let found = records.evidence(&EvidenceOf::Subscriber(subscriber_id("ann")), None, 9).await.expect("read");
        let found: Vec<_> = found.iter().map(|record| (record.act, record.at, record.proof.as_deref())).collect();
        assert_eq!(found, [(ConsentAct::Confirmed, at(-9), Some("form 17"))]);
        let gone =
            InitialConsent::Recorded(ConsentState::Withdrawn, evidence(ConsentMethod::Import, "ann@mail.example"));
        put(records, NewConsented { consent: gone, ..requested("ann", "a") }, 3).await;
        assert_eq!(state(records, id).await, (CONFIRMED, true, None), "a confirmed one is kept");
        let missing = NewConsented { subscription: interest("bob", None), ..requested("ann", "a") };
        assert!(is_missing(records.put_consented(vec![missing], at(3)).await.expect("ok").remove(0)));
    });
}

#[test]
fn expired_requests_are_removed_with_subscribers_made_for_them() {
    check(async |records| {
        ann(records).await;
        let made = format!("{ADDRESS_SUBSCRIBER}1");
        for id in [made.as_str(), &format!("{ADDRESS_SUBSCRIBER}2")] {
            records.put_subscriber(person(id, &["a=mail"]), Precondition::Any, at(0)).await.expect("stored");
        }
        let (own, _) = put(records, requested("ann", "a"), 1).await;
        let (other, _) = put(records, requested(&made, "a"), 2).await;
        let (kept, _) = put(records, requested(&format!("{ADDRESS_SUBSCRIBER}2"), "a"), 3).await;
        assert_eq!(confirm(records, kept, Proof::Link { request: 1 }, 4).await, Confirmation::Confirmed);
        let week = 7 * 86_400;
        assert_eq!(records.expire_consents(at(week), 9).await.expect("ok"), 0);
        assert_eq!(records.expire_consents(at(week + 9), 1).await.expect("ok"), 1);
        assert!(records.subscription(own).await.expect("read").is_none());
        assert!(records.subscriber(&subscriber_id("ann")).await.expect("read").is_some(), "it was there before");
        assert_eq!(records.expire_consents(at(week + 9), 9).await.expect("ok"), 1);
        assert!(records.subscription(other).await.expect("read").is_none());
        assert!(records.subscriber(&subscriber_id(&made)).await.expect("read").is_none());
        assert_eq!(state(records, kept).await, (CONFIRMED, true, None));
        assert_eq!(acts(records, own).await, [ConsentAct::Requested, ConsentAct::Expired]);
        assert_eq!(records.consent(own).await.expect("read"), None);
    });
}

#[test]
fn the_evidence_of_an_erased_person_has_no_address() {
    check(async |records| {
        ann(records).await;
        let (id, _) = put(records, requested("ann", "a"), 1).await;
        records.remove_subscriber(&subscriber_id("ann"), Precondition::Any, at(5)).await.expect("removed");
        let record = records.evidence(&EvidenceOf::Subscription(id), None, 9).await.expect("read").remove(0);
        assert_eq!((&record.subscriber, &record.address, &record.remote), (&None, &None, &None));
        assert_eq!(record.address_hash.as_deref(), Some("hash of ann@mail.example"));
        assert_eq!((record.erased_at, record.at), (Some(at(5)), at(1)));
        assert!(records.evidence(&EvidenceOf::Subscriber(subscriber_id("ann")), None, 9).await.expect("ok").is_empty());
        assert_eq!(records.prune_evidence(at(4), 9).await.expect("ok"), 0);
        assert_eq!(records.prune_evidence(at(5), 9).await.expect("ok"), 1);
        assert!(acts(records, id).await.is_empty());
    });
}

#[test]
fn the_evidence_follows_a_merge() {
    check(async |records| {
        ann(records).await;
        records.put_subscriber(person("eve", &["b=mail"]), Precondition::Any, at(0)).await.expect("stored");
        let (id, _) = put(records, requested("ann", "a"), 1).await;
        let merged = records.merge_subscribers(&subscriber_id("ann"), &subscriber_id("eve"), at(2)).await.expect("ok");
        merged.expect("merged");
        assert_eq!(state(records, id).await, (PENDING, false, Some(1)));
        let found = records.evidence(&EvidenceOf::Subscriber(subscriber_id("eve")), None, 9).await.expect("read");
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].address.as_deref(), Some("ann@mail.example"));
    });
}
