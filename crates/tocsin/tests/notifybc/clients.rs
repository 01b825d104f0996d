//! Section 10: the calls of known scripts, of the web console and of two public sites.

use futures_util::future::join_all;
use serde_json::{Value, json};
use tocsin_test_peers::until;

use crate::target::{Caller::*, id, shared, sorted, text};

/// Filter of the script `bulk-post-subs`.
const FILTER: &str = "contains_ci(title,'vancouver') || contains_ci(title,'victoria')";

#[tokio::test]
async fn s10_1_the_load_scripts() {
    let target = shared().await;
    let address = "s10.load@example.org";
    // The first script has 100 calls in flight.
    let answers = join_all((0..100).map(async |index: u32| {
        let body = json!({
            "serviceName": "load10", "channel": "email", "state": "confirmed", "index": index,
            "confirmationRequest": {"sendRequest": false}, "userChannelId": address,
            "broadcastPushNotificationFilter": FILTER,
        });
        target.post("/subscriptions", body).await["index"].clone()
    }))
    .await;
    assert_eq!(answers, (0..100).map(|index| json!(index)).collect::<Vec<Value>>());
    // The second one sends its body with the type of a JSON document.
    let body = json!({
        "serviceName": "load10",
        "message": {
            "from": "no_reply@invlid.local", "subject": "{title}", "textBody": "{description}",
            "htmlBody": "{description}<p><a href='{link}'>link</a><a href='{unsubscription_url}'>nsubscription</a></p>",
        },
        "channel": "email", "isBroadcast": true,
        "data": {
            "title": "Despite unpopularity, Victoria fadsasdfasd", "description": "Lorem ipsum dolor sit amet",
            "pubDate": "2017-07-20T16:18:04.000Z", "link": "http://foo.com", "guid": "12356",
        },
    });
    let sent = target.post("/notifications", body).await;
    // All mails are accepted when the call returns.
    assert_eq!(target.mails_to(address).len(), 100);
    assert_eq!(sorted(&sent["dispatch"]["successful"]).len(), 100);
    let mail = &target.mails_to(address)[0];
    assert_eq!(mail.subject(), "Despite unpopularity, Victoria fadsasdfasd");
    assert!(mail.html().is_some_and(|html| html.contains("unsubscribe?unsubscriptionCode=")), "{mail:?}");
}

#[tokio::test]
async fn s10_1_the_import_script_wants_200() {
    let target = shared().await;
    let body = json!({
        "serviceName": "s10.import", "channel": "email", "userChannelId": "s10.import@example.org",
        "state": "confirmed", "confirmationRequest": {"sendRequest": false}, "data": {"a": "1"},
    });
    let answer = target.call(Admin, "POST", "/subscriptions", Some(body.clone())).await;
    assert!(answer.expect(200).header("content-type").starts_with("application/json"));
    let mut wrong = body;
    wrong.as_object_mut().expect("an object").remove("userChannelId");
    target.call(Admin, "POST", "/subscriptions", Some(wrong)).await.expect(400);
}

#[tokio::test]
async fn s10_2_the_console() {
    let target = shared().await;
    let record = target.subscribe("s10.console", "s10.console@example.org", json!({})).await;
    let condition = "{\"serviceName\":\"s10.console\"}";
    for collection in ["subscriptions", "notifications", "configurations", "bounces", "administrators"] {
        let filter = format!("{{\"where\":{condition},\"limit\":10,\"skip\":0,\"order\":[[\"created\",\"desc\"]]}}");
        let expected = usize::from(collection == "subscriptions");
        let answer = target.query(&format!("/{collection}"), "filter", &filter).await;
        assert_eq!(answer.ok().as_array().map(Vec::len), Some(expected), "{collection}");
        let answer = target.query(&format!("/{collection}/count"), "where", condition).await;
        assert_eq!(answer.ok(), json!({"count": expected}), "{collection}");
    }
    // It writes whole records back.
    let path = format!("/subscriptions/{}", id(&record));
    let replaced = target.call(Admin, "PUT", &path, Some(record.clone())).await.ok();
    assert_eq!((&replaced["id"], &replaced["created"]), (&record["id"], &record["created"]));
    let who = target.get("/administrators/whoami").await;
    assert_eq!(who, json!({"securityId": "127.0.0.1", "authnStrategy": "ip", "role": "SuperAdmin"}));
    let administrator = json!({"email": "s10@example.org", "password": "Abcdef_1234", "username": "ten"});
    target.post("/administrators", administrator).await;
    let login =
        json!({"email": "s10@example.org", "password": "Abcdef_1234", "tokenName": "webConsole", "ttl": 43_200});
    let token = target.call(Anonymous, "POST", "/administrators/login", Some(login)).await.ok();
    let token = text(&token, "/token");
    let who = target.call(Token(&token), "GET", "/administrators/whoami", None).await.ok();
    assert_eq!((&who["authnStrategy"], &who["role"]), (&json!("accessToken"), &json!("Admin")));
}

#[tokio::test]
async fn s10_3_a_site_about_air_quality() {
    let target = shared().await;
    let data = json!({"categories": ["A", "C"], "names": ["Air <b>quality</b>"], "html": "<ul><li>x</li></ul>"});
    let filter = "contains(categories,'A')||contains(categories,'B')";
    let mut body = json!({
        "serviceName": "s10.air", "channel": "email", "userChannelId": "s10.air@example.org", "data": data,
        "broadcastPushNotificationFilter": filter,
    });
    let mut records = Vec::new();
    for (channel, address) in [("email", "s10.air@example.org"), ("sms", "12505551003")] {
        body["channel"] = json!(channel);
        body["userChannelId"] = json!(address);
        let record = target.post("/subscriptions", body.clone()).await;
        let code = text(&record, "/confirmationRequest/confirmationCode");
        let verify = format!("/subscriptions/{}/verify?confirmationCode={code}", id(&record));
        target.call(IsAnonymous, "GET", &verify, None).await.expect(200);
        records.push(record);
    }
    assert!(target.mail_to("s10.air@example.org").text().is_some_and(|text| text.starts_with("Enter ")));
    for (channel, categories, reached) in
        [("email", json!(["B"]), true), ("sms", json!(["A"]), true), ("email", json!(["C"]), false)]
    {
        let sent = target
            .broadcast(
                "s10.air",
                json!({"channel": channel, "asyncBroadcastPushNotification": true, "data": {"categories": categories}}),
            )
            .await;
        until("it is sent", async || target.notification(&id(&sent)).await["state"] == "sent").await;
        let record = target.notification(&id(&sent)).await;
        assert_eq!(record["dispatch"].get("successful").is_some(), reached, "{record}");
    }
    let code = text(&records[0], "/unsubscriptionCode");
    let path = format!("/subscriptions/{}?unsubscriptionCode={code}&additionalServices=_all", id(&records[0]));
    let answer = target.call(IsAnonymous, "DELETE", &path, None).await;
    answer.expect_text(200, "You have been un-subscribed.");
    let path = format!("/subscriptions/{}/unsubscribe/undo?unsubscriptionCode={code}", id(&records[0]));
    let answer = target.call(IsAnonymous, "GET", &path, None).await;
    answer.expect_text(200, "You have been re-subscribed.");
}

#[tokio::test]
async fn s10_4_a_site_about_procurement() {
    let target = shared().await;
    let call = async |method: &str, path: &str, body: Option<Value>| {
        let request = target.request(Admin, method, path).header("accept", "application/json");
        let request = match &body {
            Some(body) => request.json(body),
            None => request,
        };
        target.send(request).await
    };
    let body = json!({
        "serviceName": "s10.bids", "channel": "email", "userChannelId": "s10.bids@example.org", "state": "confirmed",
    });
    let record = call("POST", "/subscriptions/", Some(body)).await.ok();
    assert_eq!(record["state"], "confirmed");
    assert_eq!(target.mails_to("s10.bids@example.org").len(), 0);
    let path = format!("/subscriptions/{}/", id(&record));
    let moved = call("PATCH", &path, Some(json!({"userChannelId": "s10.moved@example.org"}))).await.ok();
    assert_eq!(moved["userChannelId"], "s10.moved@example.org");
    let body = json!({
        "serviceName": "s10.bids", "channel": "email", "userChannelId": "s10.kept@example.org", "state": "confirmed",
    });
    let kept = call("POST", "/subscriptions/", Some(body)).await.ok();
    let message = json!({"from": "a@example.org", "subject": "s", "htmlBody": "<p>h</p>"});
    let body = json!({"serviceName": "s10.bids", "channel": "email", "isBroadcast": true, "message": message});
    let sent = call("POST", "/notifications/", Some(body)).await.ok();
    assert_eq!(sent["dispatch"]["successful"], json!([kept["id"]]), "{sent}");
    let answer = call("DELETE", &format!("/subscriptions/{}/", id(&kept)), None).await;
    answer.expect_text(200, "You have been un-subscribed.");
}
