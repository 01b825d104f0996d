//! Section 5: subscriptions, their confirmation, unsubscription and its reversal.

use base64::{Engine, prelude::BASE64_STANDARD};
use reqwest::Method;
use rsa::{Oaep, RsaPublicKey, pkcs8::DecodePublicKey, rand_core::OsRng};
use serde_json::{Value, json};
use tocsin_test_peers::until;

use crate::target::{Caller::*, SWIFT_ACCOUNT, SWIFT_KEY, Target, id, shared, text};

const SUCCESS: &str = "You have been un-subscribed.";
const FAILURE: &str = "Error happened while un-subscribing.";
const CONFIRMED: &str = "You have been subscribed.";
const NOT_CONFIRMED: &str = "Error happened while confirming subscription.";
const UNDONE: &str = "You have been re-subscribed.";
const NOT_UNDONE: &str = "Error happened while re-subscribing.";
/// A code that no generated code equals.
const WRONG: &str = "wrong";

/// Body of a subscription.
fn body(service: &str, channel: &str, address: &str) -> Value {
    json!({"serviceName": service, "channel": channel, "userChannelId": address})
}

/// Path of the unsubscription of a record with its code.
fn unsubscription(record: &Value) -> String {
    format!("/subscriptions/{}/unsubscribe?unsubscriptionCode={}", id(record), text(record, "/unsubscriptionCode"))
}

async fn state(target: &Target, id: &str) -> Value {
    target.subscription(id).await["state"].clone()
}

fn is_five_digits(code: &str) -> bool {
    code.len() == 5 && code.bytes().all(|byte| byte.is_ascii_digit())
}

// 5: fields and their visibility.

#[tokio::test]
async fn s5_defaults_and_hidden_fields() {
    let target = shared().await;
    let mut asked = body("s5.fields", "email", "s5.fields@example.org");
    asked["extra"] = json!({"n": 1});
    let user = target.call(User("fields"), "POST", "/subscriptions", Some(asked.clone())).await.ok();
    assert_eq!(user["state"], "unconfirmed");
    assert_eq!(user["extra"], json!({"n": 1}));
    for hidden in ["confirmationRequest", "unsubscriptionCode", "createdBy", "updatedBy"] {
        assert!(user.get(hidden).is_none(), "{hidden}: {user}");
    }
    let listed = target.call(User("fields"), "GET", "/subscriptions", None).await.ok();
    assert_eq!(listed.as_array().expect("a list").len(), 1);
    for hidden in ["confirmationRequest", "unsubscriptionCode", "createdBy", "updatedBy"] {
        assert!(listed[0].get(hidden).is_none(), "{hidden}: {listed}");
    }
    let stored = target.subscription(&id(&user)).await;
    assert_eq!(stored["createdBy"]["role"], "AuthenticatedUser");
}

#[tokio::test]
async fn s5_channel_defaults_to_email_and_is_confirmed_by_mail() {
    let target = shared().await;
    let asked = json!({"serviceName": "s5.channel", "userChannelId": "s5.channel@example.org"});
    let record = target.call(Anonymous, "POST", "/subscriptions", Some(asked)).await.ok();
    assert_eq!(record["channel"], "email");
    assert_eq!(target.mail_to("s5.channel@example.org").subject(), "Subscription confirmation");
}

// 5.1 POST

#[tokio::test]
async fn s5_1_1_filters_must_be_valid_syntax() {
    let target = shared().await;
    for (filter, status) in [
        (json!("a == 'b'"), 200),
        (json!("unknown_function(a, b, c)"), 200),
        (json!("contains_ci(title,'vancouver')"), 200),
        (json!("length()"), 200),
        (json!("a =="), 400),
        (json!("a]["), 400),
        (json!("'open"), 400),
        (json!(7), 400),
    ] {
        let mut asked = body("s5.1.1", "email", "s5.1.1@example.org");
        asked["broadcastPushNotificationFilter"] = filter.clone();
        asked["confirmationRequest"] = json!({"sendRequest": false});
        let answer = target.call(Admin, "POST", "/subscriptions", Some(asked)).await;
        assert_eq!(answer.status, status, "{filter}: {answer:?}");
        if status == 400 {
            let expected = json!({"statusCode": 400, "message": "invalid broadcastPushNotificationFilter"});
            assert_eq!(answer.json(), expected, "{filter}");
        }
    }
}

#[tokio::test]
async fn s5_1_2_users_set_neither_state_nor_code() {
    let target = shared().await;
    let mut asked = body("s5.1.2", "email", "s5.1.2@example.org");
    asked["state"] = json!("confirmed");
    asked["unsubscriptionCode"] = json!("54321x");
    let record = target.call(Anonymous, "POST", "/subscriptions", Some(asked.clone())).await.ok();
    let stored = target.subscription(&id(&record)).await;
    assert_eq!(stored["state"], "unconfirmed");
    assert!(is_five_digits(&text(&stored, "/unsubscriptionCode")), "{stored}");
    let without = json!({"serviceName": "s5.1.2", "userChannelId": "s5.1.2@example.org", "state": "confirmed"});
    let record = target.call(User("s5.1.2"), "POST", "/subscriptions", Some(without)).await.ok();
    let stored = target.subscription(&id(&record)).await;
    assert_eq!((&stored["userId"], &stored["state"]), (&json!("s5.1.2"), &json!("unconfirmed")));
    assert!(stored.get("unsubscriptionCode").is_none(), "{stored}");
    let record = target.call(Admin, "POST", "/subscriptions", Some(asked)).await.ok();
    assert_eq!((&record["unsubscriptionCode"], &record["state"]), (&json!("54321x"), &json!("confirmed")));
}

#[tokio::test]
async fn s5_1_2_no_code_is_made_when_none_is_required() {
    let target = shared().await;
    target.configure("s5.1.2.code", json!({"anonymousUnsubscription": {"code": {"required": false}}})).await;
    let record = target.subscribe("s5.1.2.code", "s5.1.2.code@example.org", json!({})).await;
    assert!(record.get("unsubscriptionCode").is_none(), "{record}");
    let path = format!("/subscriptions/{}/unsubscribe", id(&record));
    target.call(Anonymous, "GET", &path, None).await.expect_text(200, SUCCESS);
    let codes = json!({"anonymousUnsubscription": {"code": {"regex": "[a-c]{4}-(x|y)\\d?"}}});
    target.configure("s5.1.2.regex", codes).await;
    let record = target.subscribe("s5.1.2.regex", "s5.1.2.regex@example.org", json!({})).await;
    let code = text(&record, "/unsubscriptionCode");
    let (head, tail) = code.split_once('-').expect("a hyphen");
    assert!(head.len() == 4 && head.bytes().all(|byte| (b'a'..=b'c').contains(&byte)), "{code}");
    assert!(tail.starts_with(['x', 'y']) && tail.len() <= 2, "{code}");
}

/// The public key of the installation.
async fn public_key(target: &Target) -> RsaPublicKey {
    let path = "/configurations?filter={\"where\":{\"name\":\"rsa\"}}";
    until("there is a key pair", async || target.get(path).await[0].is_object()).await;
    let key = target.get(path).await;
    RsaPublicKey::from_public_key_pem(&text(&key[0], "/value/public")).expect("a public key")
}

#[tokio::test]
async fn s5_1_3_an_encrypted_code_counts_and_its_texts_too() {
    let target = shared().await;
    let key = public_key(target).await;
    let encrypted = key.encrypt(&mut OsRng, Oaep::new::<sha1::Sha1>(), b"real@example.org 12345").expect("encrypted");
    let mut asked = body("s5.1.3", "email", "s5.1.3@example.org");
    asked["confirmationRequest"] = json!({
        "confirmationCodeEncrypted": BASE64_STANDARD.encode(encrypted), "sendRequest": true,
        "from": "third@example.org", "subject": "Third party", "textBody": "code {subscription_confirmation_code}",
    });
    let record = target.call(Anonymous, "POST", "/subscriptions", Some(asked.clone())).await.ok();
    assert_eq!(record["userChannelId"], "real@example.org");
    let mail = target.mail_to("real@example.org");
    assert_eq!((mail.subject().as_str(), mail.text().as_deref()), ("Third party", Some("code 12345")));
    let verify = format!("/subscriptions/{}/verify?confirmationCode=12345", id(&record));
    target.call(Anonymous, "GET", &verify, None).await.expect_text(200, CONFIRMED);
    asked["serviceName"] = json!("s5.1.3.broken");
    asked["confirmationRequest"]["confirmationCodeEncrypted"] = json!("bm90IGEgY2lwaGVydGV4dA==");
    let answer = target.call(Anonymous, "POST", "/subscriptions", Some(asked)).await;
    assert!(answer.status.as_u16() >= 400, "{answer:?}");
    let count = target.get("/subscriptions/count?where={\"serviceName\":\"s5.1.3.broken\"}").await;
    assert_eq!(count["count"], 0);
}

#[tokio::test]
async fn s5_1_4_users_get_the_configured_request_with_a_new_code() {
    let target = shared().await;
    let own = json!({
        "confirmationCode": "11111x", "confirmationCodeRegex": "never", "from": "eve@example.org",
        "subject": "own", "textBody": "own {subscription_confirmation_code}", "sendRequest": true,
    });
    let mut asked = body("s5.1.4", "email", "s5.1.4@example.org");
    asked["confirmationRequest"] = own.clone();
    let record = target.call(Anonymous, "POST", "/subscriptions", Some(asked.clone())).await.ok();
    let stored = target.subscription(&id(&record)).await;
    let code = text(&stored, "/confirmationRequest/confirmationCode");
    assert!(is_five_digits(&code), "{stored}");
    let mail = target.mail_to("s5.1.4@example.org");
    assert_eq!(mail.header("from"), "no_reply@invalid.local");
    assert_eq!(mail.text(), Some(format!("Enter {code} on screen")));
    asked["userChannelId"] = json!("s5.1.4.admin@example.org");
    let record = target.call(Admin, "POST", "/subscriptions", Some(asked)).await.ok();
    assert_eq!(record["confirmationRequest"]["confirmationCode"], "11111x");
    assert_eq!(target.mail_to("s5.1.4.admin@example.org").text().as_deref(), Some("own 11111x"));
    let record = target.post("/subscriptions", body("s5.1.4", "email", "s5.1.4.none@example.org")).await;
    assert!(is_five_digits(&text(&record, "/confirmationRequest/confirmationCode")), "{record}");
    assert_eq!(target.mail_to("s5.1.4.none@example.org").subject(), "Subscription confirmation");
    let mut asked = body("s5.1.4", "email", "s5.1.4.regex@example.org");
    asked["confirmationRequest"] = json!({"confirmationCodeRegex": "z{3}", "sendRequest": false});
    let record = target.post("/subscriptions", asked).await;
    assert_eq!(record["confirmationRequest"]["confirmationCode"], "zzz");
}

#[tokio::test]
async fn s5_1_5_the_request_has_static_tokens_only() {
    let target = shared().await;
    let request = json!({"confirmationRequest": {"email": {
        "subject": "{service_name} {name}", "textBody": "{name} {subscription::name} {subscription_confirmation_url}",
        "htmlBody": "<b>{subscription_id}</b>",
    }}});
    target.configure("s5.1.5", request).await;
    let mut asked = body("s5.1.5", "email", "s5.1.5@example.org");
    asked["data"] = json!({"name": "Eve"});
    let record = target.call(Anonymous, "POST", "/subscriptions", Some(asked)).await.ok();
    let id = id(&record);
    let code = text(&target.subscription(&id).await, "/confirmationRequest/confirmationCode");
    let mail = target.mail_to("s5.1.5@example.org");
    assert_eq!(mail.subject(), "s5.1.5 {name}");
    let link = format!("http://{}/api/subscriptions/{id}/verify?confirmationCode={code}", target.host);
    assert_eq!(mail.text(), Some(format!("{{name}} {{subscription::name}} {link}")));
    assert_eq!(mail.html(), Some(format!("<b>{id}</b>")));
    assert_eq!(mail.header("list-unsubscribe"), "");
    assert_eq!(mail.header("list-id"), "");
}

#[tokio::test]
async fn s5_1_5_nothing_is_sent_when_it_is_confirmed_or_not_asked_for() {
    let target = shared().await;
    let mut asked = body("s5.1.5.none", "email", "s5.1.5.none@example.org");
    asked["state"] = json!("confirmed");
    target.post("/subscriptions", asked.clone()).await;
    asked["state"] = json!("unconfirmed");
    asked["confirmationRequest"] = json!({"sendRequest": false, "textBody": "x"});
    target.post("/subscriptions", asked.clone()).await;
    asked["confirmationRequest"] = json!({"textBody": "x", "from": "a@example.org"});
    target.post("/subscriptions", asked).await;
    assert_eq!(target.mails_to("s5.1.5.none@example.org").len(), 0);
}

#[tokio::test]
async fn s5_1_5_a_duplicate_gets_the_duplicate_texts() {
    let target = shared().await;
    target.configure("s5.1.5.twice", json!({"detectDuplicatedSubscription": true})).await;
    target.subscribe("s5.1.5.twice", "Twice@example.org", json!({})).await;
    let asked = body("s5.1.5.twice", "email", "twice@example.org");
    let record = target.call(Anonymous, "POST", "/subscriptions", Some(asked)).await.ok();
    assert_eq!(record["state"], "unconfirmed");
    assert_eq!(target.mail_to("twice@example.org").subject(), "Duplicated Subscription");
    // The whole address is compared.
    let asked = body("s5.1.5.twice", "email", "wice@example.org");
    target.call(Anonymous, "POST", "/subscriptions", Some(asked)).await.ok();
    assert_eq!(target.mail_to("wice@example.org").subject(), "Subscription confirmation");
}

#[tokio::test]
async fn s5_1_5_sms_requests_go_to_the_gateway() {
    let target = shared().await;
    let asked = body("s5.1.5.sms", "sms", "12505551501");
    let record = target.call(Anonymous, "POST", "/subscriptions", Some(asked)).await.ok();
    let code = text(&target.subscription(&id(&record)).await, "/confirmationRequest/confirmationCode");
    let sent = target.hooks_at(&format!("/swift/{SWIFT_ACCOUNT}/12505551501"));
    assert_eq!(sent.len(), 1);
    assert_eq!(sent[0].1["MessageBody"], format!("Enter {code} on screen"));
}

#[tokio::test]
async fn s5_1_6_a_refused_request_fails_the_call() {
    let target = shared().await;
    target.mails.set_refused("s5.1.6@example.org", true);
    let asked = body("s5.1.6", "email", "s5.1.6@example.org");
    let answer = target.call(Anonymous, "POST", "/subscriptions", Some(asked)).await;
    assert!(answer.status.is_server_error(), "{answer:?}");
    let count = target.get("/subscriptions/count?where={\"serviceName\":\"s5.1.6\"}").await;
    assert_eq!(count["count"], 1);
}

#[tokio::test]
async fn s5_1_7_the_record_is_the_answer() {
    let target = shared().await;
    let asked = json!({
        "serviceName": "s5.1.7", "channel": "email", "userChannelId": "a@invalid.local", "state": "confirmed",
        "confirmationRequest": {"sendRequest": false}, "index": 7, "data": {}, "id": "ignored",
        "broadcastPushNotificationFilter": "contains_ci(title,'vancouver')",
    });
    let record = target.post("/subscriptions", asked).await;
    let mut names: Vec<&String> = record.as_object().expect("an object").keys().collect();
    names.sort();
    let expected = [
        "broadcastPushNotificationFilter",
        "channel",
        "confirmationRequest",
        "created",
        "createdBy",
        "id",
        "index",
        "serviceName",
        "state",
        "unsubscriptionCode",
        "updated",
        "userChannelId",
    ];
    assert_eq!(names, expected);
    assert_eq!(record["index"], 7);
    assert_eq!(record["createdBy"], json!({"securityId": "127.0.0.1", "authnStrategy": "ip", "role": "SuperAdmin"}));
    assert_eq!(target.subscription(&id(&record)).await, record);
}

// 5.2 verify

/// Path of a verification.
fn verification(record: &Value, code: &str) -> String {
    format!("/subscriptions/{}/verify?confirmationCode={code}", id(record))
}

async fn unconfirmed(target: &Target, service: &str, address: &str, code: &str) -> Value {
    let request = json!({"sendRequest": false, "confirmationCode": code});
    target.subscribe(service, address, json!({"state": "unconfirmed", "confirmationRequest": request})).await
}

#[tokio::test]
async fn s5_2_the_right_code_confirms_also_twice() {
    let target = shared().await;
    let record = unconfirmed(target, "s5.2", "s5.2@example.org", "10001").await;
    target.call(Anonymous, "GET", &verification(&record, WRONG), None).await.expect_text(403, NOT_CONFIRMED);
    let missing = format!("/subscriptions/{}/verify", id(&record));
    target.call(Anonymous, "GET", &missing, None).await.expect_text(403, NOT_CONFIRMED);
    assert_eq!(state(target, &id(&record)).await, "unconfirmed");
    for _ in 0..2 {
        let answer = target.call(Anonymous, "GET", &verification(&record, "10001"), None).await;
        answer.expect_text(200, CONFIRMED);
        assert!(answer.header("content-type").starts_with("text/plain"), "{answer:?}");
        assert_eq!(state(target, &id(&record)).await, "confirmed");
    }
}

#[tokio::test]
async fn s5_2_deleted_foreign_and_unknown_records() {
    let target = shared().await;
    let record = unconfirmed(target, "s5.2.other", "s5.2.other@example.org", "10002").await;
    let foreign = target.call(User("s5.2"), "GET", &verification(&record, "10002"), None).await;
    assert_eq!(foreign.expect(404).json(), json!({"statusCode": 404}));
    let unknown = "/subscriptions/000000000000000000000000/verify?confirmationCode=1";
    target.call(Anonymous, "GET", unknown, None).await.expect(404);
    let mut body = target.subscription(&id(&record)).await;
    body["state"] = json!("deleted");
    target.call(Admin, "PUT", &format!("/subscriptions/{}", id(&record)), Some(body)).await.ok();
    target.call(Anonymous, "GET", &verification(&record, "10002"), None).await.expect_text(403, NOT_CONFIRMED);
}

#[tokio::test]
async fn s5_2_replace_deletes_the_earlier_ones_of_this_address() {
    let target = shared().await;
    let (service, address) = ("s5.2.replace", "Old@example.org");
    let old = target.subscribe(service, address, json!({})).await;
    let other_service = target.subscribe("s5.2.replace.other", address, json!({})).await;
    let longer = target.subscribe(service, "bold@example.org", json!({})).await;
    let kept = unconfirmed(target, service, "old@example.org", "10003").await;
    let path = format!("{}&replace=yes", verification(&kept, "10003"));
    target.call(Anonymous, "GET", &path, None).await.expect_text(200, CONFIRMED);
    assert_eq!(state(target, &id(&old)).await, "confirmed");
    let path = format!("{}&replace=true", verification(&kept, "10003"));
    target.call(Anonymous, "GET", &path, None).await.expect_text(200, CONFIRMED);
    for (record, expected) in
        [(&old, "deleted"), (&other_service, "confirmed"), (&longer, "confirmed"), (&kept, "confirmed")]
    {
        assert_eq!(state(target, &id(record)).await, expected, "{record}");
    }
    assert_eq!(target.mails_to(address).len(), 0);
}

#[tokio::test]
async fn s5_2_redirects_have_the_channel_and_the_error() {
    let target = shared().await;
    let redirect = json!({"confirmationAcknowledgements": {"redirectUrl": "http://site.example/done"}});
    target.configure("s5.2.redirect", redirect).await;
    let record = unconfirmed(target, "s5.2.redirect", "s5.2.redirect@example.org", "10004").await;
    let answer = target.call(Anonymous, "GET", &verification(&record, "10004"), None).await;
    assert_eq!((answer.status.as_u16(), answer.header("location")), (302, "http://site.example/done?channel=email"));
    let answer = target.call(Anonymous, "GET", &verification(&record, WRONG), None).await;
    assert_eq!(answer.status, 302);
    let start = "http://site.example/done?channel=email&err=";
    assert!(answer.header("location").starts_with(start), "{answer:?}");
    assert!(answer.header("location").len() > start.len());
}

#[tokio::test]
async fn s5_2_without_acknowledgement_the_answer_is_ok() {
    let target = shared().await;
    target.configure("s5.2.null", json!({"confirmationAcknowledgements": null})).await;
    let record = unconfirmed(target, "s5.2.null", "s5.2.null@example.org", "10005").await;
    let answer = target.call(Anonymous, "GET", &verification(&record, "10005"), None).await;
    answer.expect_text(200, "OK");
}

// 5.3 unsubscribe

#[tokio::test]
async fn s5_3_anonymous_callers_need_code_and_own_address() {
    let target = shared().await;
    let record = target.subscribe("s5.3", "s5.3@example.org", json!({})).await;
    let (id, code) = (id(&record), text(&record, "/unsubscriptionCode"));
    for query in [
        String::new(),
        format!("?unsubscriptionCode={WRONG}"),
        format!("?unsubscriptionCode={code}&userChannelId=other@example.org"),
        format!("?unsubscriptionCode={code}&userChannelId=5.3@example.org"),
    ] {
        for (method, path) in [
            ("GET", format!("/subscriptions/{id}/unsubscribe{query}")),
            ("DELETE", format!("/subscriptions/{id}{query}")),
        ] {
            target.call(Anonymous, method, &path, None).await.expect_text(403, FAILURE);
        }
    }
    assert_eq!(state(target, &id).await, "confirmed");
    let path = format!("/subscriptions/{id}?unsubscriptionCode={code}&userChannelId=S5.3@EXAMPLE.org");
    let answer = target.call(Anonymous, "DELETE", &path, None).await;
    answer.expect_text(200, SUCCESS);
    assert!(answer.header("content-type").starts_with("text/plain"), "{answer:?}");
    assert_eq!(state(target, &id).await, "deleted");
    target.call(Anonymous, "DELETE", &path, None).await.expect_text(403, FAILURE);
    target.call(Admin, "DELETE", &path, None).await.expect_text(403, FAILURE);
}

#[tokio::test]
async fn s5_3_who_may_unsubscribe() {
    let target = shared().await;
    let record = target.subscribe("s5.3.who", "s5.3.who@example.org", json!({"userId": "s5.3.owner"})).await;
    let path = format!("/subscriptions/{}", id(&record));
    target.call(User("s5.3.other"), "DELETE", &path, None).await.expect(404);
    target.call(User("s5.3.owner"), "DELETE", &path, None).await.expect_text(200, SUCCESS);
    let record = target.subscribe("s5.3.who", "s5.3.admin@example.org", json!({})).await;
    let path = format!("/subscriptions/{}", id(&record));
    target.call(Admin, "DELETE", &path, None).await.expect_text(200, SUCCESS);
    let unknown = "/subscriptions/000000000000000000000000";
    assert_eq!(target.call(Anonymous, "DELETE", unknown, None).await.expect(404).json(), json!({"statusCode": 404}));
    let record = unconfirmed(target, "s5.3.who", "s5.3.unconfirmed@example.org", "10006").await;
    target.call(Admin, "DELETE", &format!("/subscriptions/{}", id(&record)), None).await.expect_text(403, FAILURE);
}

/// Services of one address: the first and three others.
async fn several(target: &Target, prefix: &str, address: &str) -> Vec<Value> {
    let mut records = Vec::new();
    for index in 0..4 {
        records.push(target.subscribe(&format!("{prefix}.{index}"), address, json!({})).await);
    }
    records
}

#[tokio::test]
async fn s5_3_additional_services_in_each_form() {
    let target = shared().await;
    for (index, form) in [
        "additionalServices=P.1&additionalServices=P.2",
        "additionalServices[]=P.1&additionalServices[]=P.2",
        "additionalServices[0]=P.1&additionalServices[1]=P.2",
        "additionalServices=P.1,P.2,unknown.service",
    ]
    .into_iter()
    .enumerate()
    {
        let prefix = format!("s5.3.add{index}");
        let records = several(target, &prefix, &format!("{prefix}@example.org")).await;
        let path = format!("{}&{}", unsubscription(&records[0]), form.replace("P.", &format!("{prefix}.")));
        target.call(Anonymous, "GET", &path, None).await.expect_text(200, SUCCESS);
        for (record, expected) in records.iter().zip(["deleted", "deleted", "deleted", "confirmed"]) {
            assert_eq!(state(target, &id(record)).await, expected, "{form}");
        }
        let additional = &target.subscription(&id(&records[0])).await["unsubscribedAdditionalServices"];
        let ids = additional["ids"].as_array().expect("ids");
        for record in &records[1..3] {
            assert!(ids.contains(&record["id"]), "{form}: {additional}");
        }
        let names = additional["names"].as_array().expect("names");
        assert!(names.contains(&records[1]["serviceName"]) && names.contains(&records[2]["serviceName"]), "{names:?}");
    }
}

#[tokio::test]
async fn s5_3_all_services_of_the_address() {
    let target = shared().await;
    let records = several(target, "s5.3.all", "s5.3.all@example.org").await;
    let other = target.subscribe("s5.3.all.1", "xs5.3.all@example.org", json!({})).await;
    let path = format!("{}&additionalServices=_all", unsubscription(&records[0]));
    target.call(Anonymous, "GET", &path, None).await.expect_text(200, SUCCESS);
    for record in &records {
        assert_eq!(state(target, &id(record)).await, "deleted");
    }
    assert_eq!(state(target, &id(&other)).await, "confirmed");
    let additional = &target.subscription(&id(&records[0])).await["unsubscribedAdditionalServices"];
    let ids = additional["ids"].as_array().expect("ids");
    assert_eq!(ids.len(), 4, "{additional}");
    assert!(ids.contains(&records[0]["id"]), "{additional}");
}

#[tokio::test]
async fn s5_3_the_acknowledgement_has_data_and_a_link_back() {
    let target = shared().await;
    target
        .configure(
            "s5.3.ack",
            json!({"anonymousUnsubscription": {"acknowledgements": {"notification": {"email": {
                "subject": "Bye {name}", "textBody": "{unsubscription_service_names} {unsubscription_reversion_url}",
            }}}}}),
        )
        .await;
    let record = target.subscribe("s5.3.ack", "s5.3.ack@example.org", json!({"data": {"name": "Ann"}})).await;
    target.subscribe("s5.3.ack.b", "s5.3.ack@example.org", json!({})).await;
    let path = format!("{}&additionalServices=s5.3.ack.b", unsubscription(&record));
    target.call(Anonymous, "GET", &path, None).await.expect_text(200, SUCCESS);
    let mail = target.mail_to("s5.3.ack@example.org");
    assert_eq!(mail.subject(), "Bye Ann");
    let (id, code) = (id(&record), text(&record, "/unsubscriptionCode"));
    let link = format!("http://{}/api/subscriptions/{id}/unsubscribe/undo?unsubscriptionCode={code}", target.host);
    assert_eq!(mail.text(), Some(format!("services s5.3.ack and s5.3.ack.b {link}")));
    assert!(mail.html().is_some_and(|html| html.contains(">here</a>")));
}

#[tokio::test]
async fn s5_3_an_acknowledgement_may_be_absent_or_fail() {
    let target = shared().await;
    for (service, value) in
        [("s5.3.none", json!({"notification": null})), ("s5.3.channel", json!({"notification": {"email": null}}))]
    {
        target.configure(service, json!({"anonymousUnsubscription": {"acknowledgements": value}})).await;
        let address = format!("{service}@example.org");
        let record = target.subscribe(service, &address, json!({})).await;
        target.call(Anonymous, "GET", &unsubscription(&record), None).await.expect_text(200, SUCCESS);
        assert_eq!(target.mails_to(&address).len(), 0, "{service}");
    }
    target.mails.set_refused("s5.3.refused@example.org", true);
    let record = target.subscribe("s5.3.refused", "s5.3.refused@example.org", json!({})).await;
    target.call(Anonymous, "GET", &unsubscription(&record), None).await.expect_text(200, SUCCESS);
    // An administrator causes one too.
    let record = target.subscribe("s5.3.admin", "s5.3.byadmin@example.org", json!({})).await;
    target.call(Admin, "DELETE", &format!("/subscriptions/{}", id(&record)), None).await.expect_text(200, SUCCESS);
    assert_eq!(target.mail_to("s5.3.byadmin@example.org").subject(), "Un-subscription acknowledgement");
}

#[tokio::test]
async fn s5_3_the_answer_may_be_a_redirect() {
    let target = shared().await;
    let on_screen = json!({"onScreen": {"redirectUrl": "http://site.example/bye"}});
    target.configure("s5.3.redirect", json!({"anonymousUnsubscription": {"acknowledgements": on_screen}})).await;
    let record = target.subscribe("s5.3.redirect", "s5.3.redirect@example.org", json!({})).await;
    let path = format!("/subscriptions/{}/unsubscribe?unsubscriptionCode={WRONG}", id(&record));
    let answer = target.call(Anonymous, "GET", &path, None).await;
    assert_eq!(answer.status, 302);
    assert!(answer.header("location").starts_with("http://site.example/bye?channel=email&err="), "{answer:?}");
    let answer = target.call(Anonymous, "GET", &unsubscription(&record), None).await;
    assert_eq!((answer.status.as_u16(), answer.header("location")), (302, "http://site.example/bye?channel=email"));
}

// 5.4

#[tokio::test]
async fn s5_4_undo_restores_all() {
    let target = shared().await;
    let records = several(target, "s5.4.undo", "s5.4.undo@example.org").await;
    let undo = unsubscription(&records[0]).replace("/unsubscribe?", "/unsubscribe/undo?");
    target.call(Anonymous, "GET", &undo, None).await.expect_text(403, NOT_UNDONE);
    let path = format!("{}&additionalServices=s5.4.undo.1", unsubscription(&records[0]));
    target.call(Anonymous, "GET", &path, None).await.expect_text(200, SUCCESS);
    let wrong = format!("/subscriptions/{}/unsubscribe/undo?unsubscriptionCode={WRONG}", id(&records[0]));
    target.call(Anonymous, "GET", &wrong, None).await.expect_text(403, NOT_UNDONE);
    target.call(Anonymous, "GET", &undo, None).await.expect_text(200, UNDONE);
    for record in &records {
        let record = target.subscription(&id(record)).await;
        assert_eq!(record["state"], "confirmed");
        assert!(record.get("unsubscribedAdditionalServices").is_none(), "{record}");
    }
    // The native subscriptions are active again.
    let sent = target.broadcast("s5.4.undo.1", json!({})).await;
    assert_eq!(sent["dispatch"]["candidates"], json!([records[1]["id"]]));
}

#[tokio::test]
async fn s5_4_undo_by_users_and_admins() {
    let target = shared().await;
    let record = target.subscribe("s5.4.who", "s5.4.who@example.org", json!({"userId": "s5.4.owner"})).await;
    let undo = unsubscription(&record).replace("/unsubscribe?", "/unsubscribe/undo?");
    target.call(Admin, "DELETE", &format!("/subscriptions/{}", id(&record)), None).await.expect_text(200, SUCCESS);
    target.call(User("s5.4.owner"), "GET", &undo, None).await.expect(403);
    target.call(User("s5.4.other"), "GET", &undo, None).await.expect(404);
    let path = format!("/subscriptions/{}/unsubscribe/undo", id(&record));
    target.call(Admin, "GET", &path, None).await.expect_text(200, UNDONE);
    let unknown = "/subscriptions/000000000000000000000000/unsubscribe/undo?unsubscriptionCode=1";
    target.call(Anonymous, "GET", unknown, None).await.expect(404);
}

#[tokio::test]
async fn s5_4_undo_may_redirect() {
    let target = shared().await;
    let value = json!({"anonymousUndoUnsubscription": {"redirectUrl": "http://nowhere"}});
    target.configure("s5.4.redirect", value).await;
    let record = target.subscribe("s5.4.redirect", "s5.4.redirect@example.org", json!({})).await;
    target.call(Anonymous, "GET", &unsubscription(&record), None).await.expect_text(200, SUCCESS);
    let undo = unsubscription(&record).replace("/unsubscribe?", "/unsubscribe/undo?");
    let answer = target.call(Anonymous, "GET", &undo, None).await;
    assert_eq!((answer.status.as_u16(), answer.header("location")), (302, "http://nowhere?channel=email"));
    let answer = target.call(Anonymous, "GET", &undo, None).await;
    assert!(answer.header("location").starts_with("http://nowhere?channel=email&err="), "{answer:?}");
}

#[tokio::test]
async fn s5_4_undo_of_records_that_were_stored_as_deleted() {
    let target = shared().await;
    let deleted = json!({"state": "deleted", "unsubscriptionCode": "50032"});
    let first = target.subscribe("s5.4.stored", "s5.4.stored@example.org", deleted.clone()).await;
    let mut second = deleted;
    second["unsubscribedAdditionalServices"] = json!({"names": ["s5.4.stored"], "ids": [first["id"]]});
    let second = target.subscribe("s5.4.stored.2", "s5.4.stored@example.org", second).await;
    let undo = unsubscription(&second).replace("/unsubscribe?", "/unsubscribe/undo?");
    target.call(Anonymous, "GET", &undo, None).await.expect_text(200, UNDONE);
    assert_eq!(state(target, &id(&first)).await, "confirmed");
    assert_eq!(target.subscription(&id(&second)).await.get("unsubscribedAdditionalServices"), None);
}

#[tokio::test]
async fn s5_3_messages_may_be_empty() {
    let target = shared().await;
    let email = json!({"from": "a@example.org", "subject": "", "textBody": "x", "htmlBody": null});
    let value = json!({"onScreen": {"successMessage": ""}, "notification": {"email": email}});
    target.configure("s5.3.empty", json!({"anonymousUnsubscription": {"acknowledgements": value}})).await;
    let record = target.subscribe("s5.3.empty", "s5.3.empty@example.org", json!({})).await;
    target.call(Anonymous, "GET", &unsubscription(&record), None).await.expect_text(200, "");
    assert_eq!(target.mail_to("s5.3.empty@example.org").subject(), "");
}

#[tokio::test]
async fn s5_4_patch_takes_address_and_data_only() {
    let target = shared().await;
    let record = target.subscribe("s5.4.patch", "s5.4.patch@example.org", json!({"data": {"a": 1}})).await;
    let path = format!("/subscriptions/{}", id(&record));
    let change = json!({
        "data": {"b": 2}, "state": "deleted", "serviceName": "other", "channel": "sms", "unsubscriptionCode": "x",
        "userId": "eve", "extra": 1, "userChannelId": "s5.4.patch@example.org",
    });
    let patched = target.call(Admin, "PATCH", &path, Some(change)).await.ok();
    let mut expected = record.clone();
    expected["data"] = json!({"b": 2});
    for name in ["updated", "updatedBy"] {
        assert!(patched.get(name).is_some(), "{name}: {patched}");
        expected[name] = patched[name].clone();
    }
    assert_eq!(patched, expected);
    assert_eq!(target.mails_to("s5.4.patch@example.org").len(), 0);
    let change = json!({"userChannelId": "s5.4.moved@example.org"});
    let patched = target.call(Admin, "PATCH", &path, Some(change)).await.ok();
    assert_eq!((&patched["state"], &patched["data"]), (&json!("unconfirmed"), &json!({"b": 2})));
    target.call(Anonymous, "PATCH", &path, Some(json!({"data": {}}))).await.expect(403);
    let unknown = "/subscriptions/000000000000000000000000";
    target.call(Admin, "PATCH", unknown, Some(json!({"data": {}}))).await.expect(404);
}

#[tokio::test]
async fn s5_4_a_users_new_address_gets_a_new_request() {
    let target = shared().await;
    let record = target
        .subscribe("s5.4.move", "s5.4.before@example.org", json!({"userId": "s5.4.mover", "unsubscriptionCode": "u"}))
        .await;
    let path = format!("/subscriptions/{}", id(&record));
    let change = Some(json!({"userChannelId": "s5.4.after@example.org"}));
    target.call(User("s5.4.other"), "PATCH", &path, change.clone()).await.expect(404);
    let patched = target.call(User("s5.4.mover"), "PATCH", &path, change).await.ok();
    assert_eq!(
        (&patched["userChannelId"], &patched["state"]),
        (&json!("s5.4.after@example.org"), &json!("unconfirmed"))
    );
    let stored = target.subscription(&id(&record)).await;
    let code = text(&stored, "/confirmationRequest/confirmationCode");
    assert_eq!(target.mail_to("s5.4.after@example.org").text(), Some(format!("Enter {code} on screen")));
    let verify = verification(&record, &code);
    target.call(User("s5.4.mover"), "GET", &verify, None).await.expect_text(200, CONFIRMED);
}

#[tokio::test]
async fn s5_4_put_replaces_and_sends_nothing() {
    let target = shared().await;
    let record = target.subscribe("s5.4.put", "s5.4.put@example.org", json!({"data": {"a": 1}, "extra": 1})).await;
    let path = format!("/subscriptions/{}", id(&record));
    let mut asked = body("s5.4.put", "email", "s5.4.put2@example.org");
    asked["confirmationRequest"] = json!({"sendRequest": true, "textBody": "x", "from": "a@example.org"});
    let replaced = target.call(Admin, "PUT", &path, Some(asked.clone())).await.ok();
    assert_eq!((&replaced["id"], &replaced["created"]), (&record["id"], &record["created"]));
    for gone in ["data", "extra", "unsubscriptionCode"] {
        assert!(replaced.get(gone).is_none(), "{gone}: {replaced}");
    }
    assert_eq!(replaced["userChannelId"], "s5.4.put2@example.org");
    assert_eq!(target.mails_to("s5.4.put2@example.org").len(), 0);
    target.call(User("s5.4.put"), "PUT", &path, Some(asked.clone())).await.expect(403);
    asked["broadcastPushNotificationFilter"] = json!("a ==");
    target.call(Admin, "PUT", &path, Some(asked)).await.expect(400);
}

#[tokio::test]
async fn s5_4_services_are_those_with_confirmed_subscriptions() {
    let target = shared().await;
    target.subscribe("s5.4.services", "s5.4.s1@example.org", json!({})).await;
    target.subscribe("s5.4.services", "s5.4.s2@example.org", json!({})).await;
    unconfirmed(target, "s5.4.services.unconfirmed", "s5.4.s1@example.org", "10007").await;
    for caller in [Admin, User("s5.4.services")] {
        let services = target.call(caller, "GET", "/subscriptions/services", None).await.ok();
        let names = services.as_array().expect("a list");
        let found = names.iter().filter(|name| name.as_str().expect("a text").starts_with("s5.4.services"));
        assert_eq!(found.collect::<Vec<_>>(), ["s5.4.services"]);
    }
    target.call(Anonymous, "GET", "/subscriptions/services", None).await.expect(403);
}

#[tokio::test]
async fn s5_4_swift_unsubscribes_by_reference_and_by_number() {
    let target = shared().await;
    let sms = json!({"channel": "sms"});
    let record = target.subscribe("s5.4.swift", "12505550101", sms.clone()).await;
    let call = async |body: Value| target.call(Anonymous, "POST", "/subscriptions/swift", Some(body)).await;
    call(json!({"Reference": id(&record), "notifyBCSwiftKey": "wrong"})).await.expect(403);
    call(json!({"Reference": id(&record)})).await.expect(403);
    call(json!({"notifyBCSwiftKey": SWIFT_KEY})).await.expect(403);
    call(json!({"notifyBCSwiftKey": SWIFT_KEY, "PhoneNumber": "12505559999"})).await.expect_text(200, "ok");
    let answer = call(json!({"notifyBCSwiftKey": SWIFT_KEY, "Reference": id(&record)})).await;
    answer.expect_text(200, SUCCESS);
    assert_eq!(state(target, &id(&record)).await, "deleted");
    let record = target.subscribe("s5.4.swift", "1-250-555-0102", sms).await;
    let form = [("notifyBCSwiftKey", SWIFT_KEY), ("PhoneNumber", "2505550102"), ("MessageBody", "STOP")];
    let form = form.map(|(name, value)| format!("{name}={value}")).join("&");
    let request = target.request(Anonymous, "POST", "/subscriptions/swift");
    let request = request.header("content-type", "application/x-www-form-urlencoded").body(form);
    target.send(request).await.expect_text(200, SUCCESS);
    assert_eq!(state(target, &id(&record)).await, "deleted");
}

// The native side.

#[tokio::test]
async fn s5_native_changes_and_those_of_notifybc_are_one() {
    let target = shared().await;
    let record = target.subscribe("s5.native", "s5.native@example.org", json!({})).await;
    let subscriber = format!("notifybc-{}", id(&record));
    let native = |method, path: String| {
        // Connections end with the runtime of this test.
        target.platform.request(method, &path).header("connection", "close")
    };
    let found = target.send(native(Method::GET, format!("/v1/subscribers/{subscriber}"))).await.ok();
    assert!(found.to_string().contains("s5.native@example.org"), "{found}");
    let listed = target.send(native(Method::GET, format!("/v1/subscriptions?subscriber={subscriber}"))).await.ok();
    let number = text(&listed, "/items/0/id");
    let answer = target.send(native(Method::DELETE, format!("/v1/subscriptions/{number}"))).await;
    assert!(answer.status.is_success(), "{answer:?}");
    assert_eq!(state(target, &id(&record)).await, "deleted");
    let sent = target.broadcast("s5.native", json!({})).await;
    assert_eq!(sent["dispatch"]["candidates"], json!([]));
}
