//! Statements of section 5 of the specification.

use serde_json::{Value, json};

use super::*;
use crate::{configuration::Configuration, identity::Strategy, record::parse_date};

const ID: &str = "5f2b6d6c8e7a4a0011c0ffee";

fn document(value: Value) -> Document {
    value.as_object().expect("an object").clone()
}

fn identity(role: Role) -> Identity {
    Identity { security_id: "ann".into(), strategy: Strategy::Ip, role }
}

fn now() -> Timestamp {
    parse_date("2026-11-29T08:00:00Z").expect("a date")
}

fn with<T>(role: Role, dynamic: Value, decrypted: Option<(&str, &str)>, run: impl FnOnce(&Request<'_>) -> T) -> T {
    let configuration = Configuration::default();
    let configuration = configuration.subscription(Some(&dynamic));
    let identity = identity(role);
    let random = || u64::MAX / 2;
    run(&Request { identity: &identity, configuration: &configuration, now: now(), decrypted, random: &random })
}

fn created(role: Role, body: Value) -> Document {
    with(role, json!({}), None, |request| create(document(body), ID, request)).expect("it is valid")
}

fn body(more: Value) -> Value {
    let mut body = json!({"serviceName": "water", "channel": "email", "userChannelId": "x@y.ca"});
    crate::configuration::merge(&mut body, &more);
    body
}

fn is_code(value: &Value) -> bool {
    value.as_str().is_some_and(|code| code.len() == 5 && code.bytes().all(|byte| byte.is_ascii_digit()))
}

#[test]
fn s5_1_1_filters_are_texts() {
    let name = "broadcastPushNotificationFilter";
    let of =
        |value: Value| broadcast_filter(&document(json!({name: value})), name).map(|filter| filter.map(str::to_owned));
    assert_eq!(of(json!("a")), Ok(Some("a".into())));
    assert_eq!((of(json!("")), of(Value::Null)), (Ok(None), Ok(None)));
    let error = of(json!({"a": 1})).expect_err("no text");
    assert_eq!(error.to_string(), "invalid broadcastPushNotificationFilter");
}

#[test]
fn s5_1_2_state_user_and_unsubscription_code() {
    let anonymous = created(
        Role::Anonymous,
        body(json!({"state": "confirmed", "userId": "bob", "unsubscriptionCode": "own",
        "created": "2020-01-01", "unsubscribedAdditionalServices": {"ids": ["1"]}})),
    );
    assert_eq!((&anonymous["state"], anonymous.get("userId")), (&json!("unconfirmed"), None));
    assert!(is_code(&anonymous["unsubscriptionCode"]), "{anonymous:?}");
    assert_eq!(anonymous["created"], "2026-11-29T08:00:00.000Z");
    assert_eq!(anonymous.get("unsubscribedAdditionalServices"), None);
    let user = created(Role::AuthenticatedUser, body(json!({"state": "confirmed"})));
    assert_eq!(
        (&user["state"], &user["userId"], user.get("unsubscriptionCode")),
        (&json!("unconfirmed"), &json!("ann"), None)
    );
    let admin = created(Role::Admin, body(json!({"state": "confirmed", "unsubscriptionCode": "own", "userId": "bob"})));
    assert_eq!(
        (&admin["state"], &admin["unsubscriptionCode"], &admin["userId"]),
        (&json!("confirmed"), &json!("own"), &json!("bob"))
    );
    assert!(is_code(&created(Role::SuperAdmin, body(json!({})))["unsubscriptionCode"]));
    let off = json!({"anonymousUnsubscription": {"code": {"required": false}}});
    let record =
        with(Role::Anonymous, off, None, |request| create(document(body(json!({}))), ID, request)).expect("valid");
    assert_eq!(record.get("unsubscriptionCode"), None);
    assert_eq!(admin["createdBy"], json!({"securityId": "ann", "authnStrategy": "ip", "role": "Admin"}));
}

#[test]
fn s5_1_3_encrypted_codes_name_the_address() {
    let request_of =
        body(json!({"userChannelId": "other@y.ca", "confirmationRequest": {"confirmationCodeEncrypted": "abc",
        "textBody": "mine", "sendRequest": false}}));
    assert_eq!(encrypted_code(&document(request_of.clone())), Some("abc"));
    let run = |request: &Request<'_>| create(document(request_of), ID, request);
    let record = with(Role::Anonymous, json!({}), Some(("x@y.ca", "98765")), run).expect("valid");
    assert_eq!(record["userChannelId"], "x@y.ca");
    let request = &record["confirmationRequest"];
    assert_eq!((&request["confirmationCode"], &request["textBody"]), (&json!("98765"), &json!("mine")));
}

#[test]
fn s5_1_4_users_get_the_configured_request() {
    let own = json!({"confirmationRequest": {"textBody": "mine", "confirmationCode": "1", "from": "me",
        "sendRequest": false}});
    for role in [Role::Anonymous, Role::AuthenticatedUser] {
        let record = created(role, body(own.clone()));
        let request = &record["confirmationRequest"];
        assert_eq!(
            (&request["textBody"], &request["sendRequest"]),
            (&json!("Enter {subscription_confirmation_code} on screen"), &json!(true))
        );
        assert!(is_code(&request["confirmationCode"]));
    }
    let admin = created(Role::Admin, body(own));
    assert_eq!(
        admin["confirmationRequest"],
        json!({"textBody": "mine", "confirmationCode": "1", "from": "me", "sendRequest": false})
    );
    let admin = created(Role::Admin, body(json!({"confirmationRequest": {"confirmationCodeRegex": "a{3}"}})));
    assert_eq!(admin["confirmationRequest"]["confirmationCode"], "aaa");
    assert!(is_code(&created(Role::Admin, body(json!({})))["confirmationRequest"]["confirmationCode"]));
    let sms = created(Role::Anonymous, body(json!({"channel": "sms"})));
    assert_eq!(sms["confirmationRequest"]["textBody"], "Enter {confirmation_code} on screen");
    let mut without = body(json!({}));
    without.as_object_mut().expect("an object").remove("channel");
    assert!(
        is_code(&created(Role::Anonymous, without)["confirmationRequest"]["confirmationCode"]),
        "the default channel applies"
    );
}

#[test]
fn s5_1_5_messages_of_unconfirmed_records() {
    let configuration = Configuration::default();
    let detecting = configuration.subscription(Some(&json!({"detectDuplicatedSubscription": true})));
    let plain = configuration.subscription(None);
    let record = created(Role::Anonymous, body(json!({})));
    let message = confirmation(&plain, &record, true).expect("a message");
    assert_eq!(message.subject.as_deref(), Some("Subscription confirmation"), "duplicates are not detected");
    let message = confirmation(&detecting, &record, true).expect("a message");
    assert_eq!(message.subject.as_deref(), Some("Duplicated Subscription"));
    let message = confirmation(&detecting, &record, false).expect("a message");
    assert_eq!(message.text_body.as_deref(), Some("Enter {subscription_confirmation_code} on screen"));
    for more in [json!({"state": "confirmed"}), json!({"confirmationRequest": {"sendRequest": false}})] {
        assert_eq!(confirmation(&plain, &created(Role::Admin, body(more)), false), None);
    }
}

#[test]
fn s5_1_5_duplicates_have_the_whole_address() {
    let record = document(json!({"id": "1", "serviceName": "a", "channel": "email", "userChannelId": "a@x.ca"}));
    let other = |more: Value| {
        let mut other = document(
            json!({"id": "2", "serviceName": "a", "channel": "email", "userChannelId": "A@X.ca", "state": "confirmed"}),
        );
        other.extend(document(more));
        is_duplicate(&record, &other)
    };
    assert!(other(json!({})));
    assert!(!other(json!({"userChannelId": "ba@x.ca"})));
    assert!(!other(json!({"state": "unconfirmed"})));
    assert!(!other(json!({"serviceName": "b"})));
    assert!(!other(json!({"channel": "sms"})));
    assert!(!other(json!({"id": "1"})));
}

#[test]
fn s5_2_verification_needs_the_code() {
    let record = |state: &str| {
        document(json!({"state": state, "channel": "email", "confirmationRequest": {"confirmationCode": "12345"}}))
    };
    assert!(may_verify(&record("unconfirmed"), Some("12345")));
    assert!(may_verify(&record("confirmed"), Some("12345")), "a second click succeeds");
    assert!(!may_verify(&record("deleted"), Some("12345")));
    assert!(!may_verify(&record("unconfirmed"), Some("1234")) && !may_verify(&record("unconfirmed"), None));
    let number = document(json!({"state": "unconfirmed", "confirmationRequest": {"confirmationCode": 12345}}));
    assert!(may_verify(&number, Some("12345")) && !may_verify(&number, None), "a number is no missing code");
    let confirmed = confirmed(record("unconfirmed"), now(), None);
    assert_eq!((&confirmed["state"], &confirmed["updated"]), (&json!("confirmed"), &json!("2026-11-29T08:00:00.000Z")));
}

#[test]
fn s5_2_answers() {
    let configuration = Configuration::default();
    let record = document(json!({"channel": "email"}));
    let plain = configuration.subscription(None);
    let text = |status, text: &str| Answer::Text { status, text: text.into() };
    assert_eq!(verification_answer(&plain, &record, true), text(200, "You have been subscribed."));
    assert_eq!(verification_answer(&plain, &record, false), text(403, "Error happened while confirming subscription."));
    let redirect =
        configuration.subscription(Some(&json!({"confirmationAcknowledgements": {"redirectUrl": "http://r"}})));
    assert_eq!(verification_answer(&redirect, &record, true), Answer::Redirect("http://r?channel=email".into()));
    assert_eq!(
        verification_answer(&redirect, &record, false),
        Answer::Redirect("http://r?channel=email&err=Forbidden".into())
    );
    let other = document(json!({"channel": "a&err=b\r\n"}));
    let expected = Answer::Redirect("http://r?channel=a%26err%3Db%0D%0A".into());
    assert_eq!(verification_answer(&redirect, &other, true), expected);
    let none = configuration.subscription(Some(&json!({"confirmationAcknowledgements": null})));
    assert_eq!(verification_answer(&none, &record, true), text(200, "OK"));
    assert_eq!(verification_answer(&none, &record, false), Answer::Refused);
    assert_eq!(unsubscription_answer(&plain, &record, true), text(200, "You have been un-subscribed."));
    assert_eq!(unsubscription_answer(&plain, &record, false), text(403, "Error happened while un-subscribing."));
    assert_eq!(undo_answer(&plain, &record, true), text(200, "You have been re-subscribed."));
    assert_eq!(undo_answer(&plain, &record, false), text(403, "Error happened while re-subscribing."));
}

#[test]
fn s5_3_who_may_unsubscribe() {
    let record = document(
        json!({"state": "confirmed", "unsubscriptionCode": "12345", "userChannelId": "X@y.ca", "userId": "ann"}),
    );
    let may = |role, code, address| may_unsubscribe(&record, &identity(role), code, address);
    assert!(may(Role::Anonymous, Some("12345"), None) && may(Role::Anonymous, Some("12345"), Some("x@Y.ca")));
    assert!(!may(Role::Anonymous, None, None) && !may(Role::Anonymous, Some("1"), None));
    assert!(!may(Role::Anonymous, Some("12345"), Some("ax@y.ca")));
    assert!(
        may(Role::Admin, None, None) && may(Role::SuperAdmin, None, None) && may(Role::AuthenticatedUser, None, None)
    );
    let mut other = record.clone();
    other.insert("userId".into(), json!("bob"));
    assert!(!may_unsubscribe(&other, &identity(Role::AuthenticatedUser), Some("12345"), None));
    assert!(!is_visible(&other, &identity(Role::AuthenticatedUser)) && is_visible(&other, &identity(Role::Anonymous)));
    other.insert("state".into(), json!("unconfirmed"));
    assert!(!may_unsubscribe(&other, &identity(Role::SuperAdmin), None, None), "admins too");
    other.remove("unsubscriptionCode");
    other.insert("state".into(), json!("confirmed"));
    assert!(may_unsubscribe(&other, &identity(Role::Anonymous), None, None), "a record without a code needs none");
}

#[test]
fn s5_3_additional_services() {
    let parse = |query: &str| UnsubscribeQuery::of(&Params::parse(query).expect("a query")).additional;
    assert_eq!(parse("a=1"), Additional::None);
    assert_eq!(parse("additionalServices=_all"), Additional::All);
    let both = Additional::Services(vec!["a".into(), "b".into()]);
    for query in [
        "additionalServices=a&additionalServices=b",
        "additionalServices[]=a&additionalServices[]=b",
        "additionalServices[0]=a&additionalServices[1]=b",
        "additionalServices=a,b",
    ] {
        assert_eq!(parse(query), both, "{query}");
    }
    let record = |id: &str, service: &str, state: &str| {
        document(json!({"id": id, "serviceName": service, "state": state, "channel": "email", "userChannelId": "x"}))
    };
    let (own, other) = (record("1", "water", "confirmed"), record("2", "a", "unconfirmed"));
    let anonymous = identity(Role::Anonymous);
    assert!(both.includes(&own, &other, &anonymous) && !Additional::All.includes(&own, &other, &anonymous));
    assert!(Additional::All.includes(&own, &own, &anonymous) && !both.includes(&own, &own, &anonymous));
    let mut moved = other.clone();
    moved.insert("userChannelId".into(), json!("y"));
    assert!(!both.includes(&own, &moved, &anonymous));
    let result = unsubscribed(own.clone(), &both, &[other], now(), None);
    assert_eq!(
        (&result["state"], &result["unsubscribedAdditionalServices"]),
        (&json!("deleted"), &json!({"names": ["a"], "ids": ["2"]}))
    );
    let result = unsubscribed(own.clone(), &Additional::Services(vec!["none".into()]), &[], now(), None);
    assert_eq!(result["unsubscribedAdditionalServices"], json!({"names": [], "ids": []}));
    assert_eq!(unsubscribed(own, &Additional::None, &[], now(), None).get("unsubscribedAdditionalServices"), None);
}

#[test]
fn s5_3_acknowledgements_by_channel() {
    let configuration = Configuration::default();
    let plain = configuration.subscription(None);
    assert!(unsubscription_acknowledgement(&plain, &document(json!({"channel": "email"}))).is_some());
    assert!(unsubscription_acknowledgement(&plain, &document(json!({"channel": "sms"}))).is_none());
    assert!(unsubscription_acknowledgement(&plain, &document(json!({"channel": "fax"}))).is_none());
}

#[test]
fn s5_4_undo() {
    let record = document(json!({"id": "1", "state": "deleted", "unsubscriptionCode": "12345",
        "unsubscribedAdditionalServices": {"names": ["a", "b"], "ids": ["2", "1"]}}));
    let may = |role, code| may_undo(&record, &identity(role), code);
    assert!(may(Role::Anonymous, Some("12345")) && may(Role::Admin, None));
    assert!(!may(Role::Anonymous, None) && !may(Role::AuthenticatedUser, Some("12345")));
    let mut confirmed = record.clone();
    confirmed.insert("state".into(), json!("confirmed"));
    assert!(!may_undo(&confirmed, &identity(Role::Anonymous), Some("12345")));
    assert_eq!(undone_ids(&record), ["2"]);
    let undone = undone(record, now(), None);
    assert_eq!((&undone["state"], undone.get("unsubscribedAdditionalServices")), (&json!("confirmed"), None));
}

#[test]
fn s5_4_patch_takes_address_and_data() {
    let mut record = created(
        Role::Admin,
        body(json!({"state": "confirmed", "data": {"a": 1}, "confirmationRequest":
        {"confirmationCode": "1", "sendRequest": true}})),
    );
    let patched = |role, record: &Document, more: Value| {
        with(role, json!({}), None, |request| patch(record, &document(more), request)).expect("valid")
    };
    let changed = patched(
        Role::Admin,
        &record,
        json!({"userChannelId": "new@y.ca", "data": {"b": 2}, "serviceName": "air", "state": "deleted"}),
    );
    assert_eq!((&changed["userChannelId"], &changed["state"]), (&json!("new@y.ca"), &json!("unconfirmed")));
    assert_eq!((&changed["data"], &changed["serviceName"]), (&json!({"b": 2}), &json!("water")));
    assert_eq!(changed["confirmationRequest"]["confirmationCode"], "1");
    let same = patched(Role::Admin, &record, json!({"userChannelId": "x@y.ca", "state": "deleted"}));
    assert_eq!((&same["state"], &same["data"]), (&json!("confirmed"), &json!({"a": 1})));
    record.insert("userId".into(), json!("ann"));
    let changed = patched(Role::AuthenticatedUser, &record, json!({"userChannelId": "new@y.ca"}));
    assert!(is_code(&changed["confirmationRequest"]["confirmationCode"]), "a fresh request");
    assert_eq!(
        (&changed["createdBy"], &changed["updatedBy"]["role"]),
        (&record["createdBy"], &json!("AuthenticatedUser"))
    );
}

#[test]
fn s5_4_swift() {
    let sms = |document: Value| Configuration::parse(document.as_object().expect("an object")).sms;
    let swift = sms(json!({"sms": {"provider": "swift", "providerSettings": {"swift": {"notifyBCSwiftKey": "k"}}}}));
    let target = |more: Value| swift_target(&swift, &document(more));
    assert_eq!(target(json!({"notifyBCSwiftKey": "x", "Reference": ID})), Ok(None));
    assert_eq!(target(json!({"Reference": ID})), Ok(None));
    assert_eq!(target(json!({"notifyBCSwiftKey": "k"})), Ok(None), "neither given");
    assert!(target(json!({"notifyBCSwiftKey": "k", "Reference": "abc"})).is_err());
    assert_eq!(swift_target(&sms(json!({})), &document(json!({"notifyBCSwiftKey": "k", "Reference": ID}))), Ok(None));
    let record =
        |address: &str| document(json!({"id": ID, "state": "confirmed", "channel": "sms", "userChannelId": address}));
    let by_id = target(json!({"notifyBCSwiftKey": "k", "Reference": ID})).expect("an id").expect("a target");
    assert!(by_id.matches(&record("1")));
    let by_phone =
        target(json!({"notifyBCSwiftKey": "k", "PhoneNumber": "12505550123"})).expect("a number").expect("a target");
    for address in ["12505550123", "250-555-0123", "1-250-555-0123", "+1 2505550123"] {
        assert!(by_phone.matches(&record(address)), "{address}");
    }
    assert!(!by_phone.matches(&record("2505550124")));
    let mut mail = record("12505550123");
    mail.insert("channel".into(), json!("email"));
    assert!(!by_phone.matches(&mail));
}
