//! Sections 11 and 12: where the documentation counts, and defects of NotifyBC that are not repeated.

use std::{
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
};

use futures_util::future::join_all;
use serde_json::json;
use standardwebhooks::Webhook;
use tocsin_test_peers::until;

use crate::{
    support::hooks::Hooks,
    target::{CALLBACK_SECRET, Caller::*, INBOUND_DOMAIN, RUNTIME, id, shared, text},
};

#[tokio::test]
async fn s11_an_administrators_address_beats_siteminder_headers() {
    let target = shared().await;
    let request = target.request(Admin, "GET", "/administrators/whoami").header("SM_UNIVERSALID", "ann");
    assert_eq!(target.send(request).await.ok()["role"], "SuperAdmin");
    let answer = target.call(IsAnonymous, "GET", "/administrators/whoami", None).await.ok();
    assert_eq!((&answer["role"], &answer["securityId"]), (&json!("Anonymous"), &json!("127.0.0.1")));
}

#[tokio::test]
async fn s12_a_redirect_after_an_unsubscribing_mail_is_not_followed() {
    let target = shared().await;
    let on_screen = json!({"onScreen": {"redirectUrl": "http://127.0.0.1:1/unreachable"}});
    target.configure("s12.redirect", json!({"anonymousUnsubscription": {"acknowledgements": on_screen}})).await;
    let address = "s12.redirect@example.org";
    let record = target.subscribe("s12.redirect", address, json!({})).await;
    let mut writer = TcpStream::connect(("127.0.0.1", target.inbound)).expect("it listens");
    let mut replies = BufReader::new(writer.try_clone().expect("a socket"));
    let recipient = format!("un-{}-{}@{INBOUND_DOMAIN}", id(&record), text(&record, "/unsubscriptionCode"));
    let lines = [
        "HELO mx.example".to_owned(),
        format!("MAIL FROM:<{address}>"),
        format!("RCPT TO:<{recipient}>"),
        "DATA".to_owned(),
        "Subject: x\r\n\r\nx\r\n.".to_owned(),
    ];
    let mut reply = String::new();
    replies.read_line(&mut reply).expect("a greeting");
    for line in lines {
        writer.write_all(format!("{line}\r\n").as_bytes()).expect("written");
        reply.clear();
        replies.read_line(&mut reply).expect("a reply");
    }
    assert!(reply.starts_with("250"), "{reply}");
    assert_eq!(target.subscription(&id(&record)).await["state"], "deleted");
    target.call(Anonymous, "GET", "/health", None).await.expect(200);
}

#[tokio::test]
async fn s12_one_click_unsubscription_by_post() {
    let target = shared().await;
    let record = target.subscribe("s12.post", "s12.post@example.org", json!({})).await;
    target.broadcast("s12.post", json!({})).await;
    let field = target.mail_to("s12.post@example.org").header("list-unsubscribe");
    let link = field.rsplit('<').next().expect("a link").trim_end_matches('>');
    let path = link.strip_prefix(&format!("http://{}/api", target.host)).expect("a link to the server");
    let request = target.request(Anonymous, "POST", path);
    let request = request.header("content-type", "application/x-www-form-urlencoded");
    let answer = target.send(request.body("List-Unsubscribe=One-Click")).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(target.subscription(&id(&record)).await["state"], "deleted");
}

#[tokio::test]
async fn s12_a_service_may_show_a_page_before_it_unsubscribes() {
    let target = shared().await;
    target.configure("s12.page", json!({"anonymousUnsubscription": {"confirmOnGet": true}})).await;
    let record = target.subscribe("s12.page", "s12.page@example.org", json!({})).await;
    let code = text(&record, "/unsubscriptionCode");
    let path = format!("/subscriptions/{}/unsubscribe?unsubscriptionCode={code}", id(&record));
    let page = target.call(Anonymous, "GET", &path, None).await;
    assert!(page.expect(200).header("content-type").starts_with("text/html"), "{page:?}");
    assert!(page.text.contains("<form"), "{page:?}");
    assert_eq!(target.subscription(&id(&record)).await["state"], "confirmed");
    target.call(Anonymous, "POST", &path, None).await.expect_text(200, "You have been un-subscribed.");
    assert_eq!(target.subscription(&id(&record)).await["state"], "deleted");
}

#[tokio::test]
async fn s12_codes_cannot_be_guessed_without_limit() {
    let target = shared().await;
    let request = json!({"sendRequest": false, "confirmationCode": "00042"});
    let more = json!({"state": "unconfirmed", "confirmationRequest": request});
    let record = target.subscribe("s12.guess", "s12.guess@example.org", more).await;
    let confirmed = target.subscribe("s12.guess", "s12.guess@example.org", json!({})).await;
    for path in [
        format!("/subscriptions/{}/verify?confirmationCode=x", id(&record)),
        format!("/subscriptions/{}/unsubscribe?unsubscriptionCode=x", id(&confirmed)),
    ] {
        let mut is_limited = false;
        for guess in 0..200 {
            let answer = target.call(IsAnonymous, "GET", &format!("{path}{guess}"), None).await;
            if answer.status == 429 {
                is_limited = true;
                break;
            }
            answer.expect(403);
        }
        assert!(is_limited, "{path}");
    }
    let right = format!("/subscriptions/{}/verify?confirmationCode=00042", id(&record));
    target.call(IsAnonymous, "GET", &right, None).await.expect(429);
}

#[tokio::test]
async fn s12_unicast_needs_the_whole_address() {
    let target = shared().await;
    target.subscribe("s12.whole", "bob@example.org", json!({})).await;
    let asked = json!({
        "serviceName": "s12.whole", "channel": "email", "userChannelId": "ob@example.org",
        "message": {"from": "a@example.org", "subject": "s", "textBody": "t"},
    });
    let answer = target.call(Admin, "POST", "/notifications", Some(asked)).await;
    assert_eq!(answer.expect(403).json(), json!({"statusCode": 403, "message": "invalid user"}));
}

#[tokio::test]
async fn s12_anonymous_callers_set_neither_user_nor_times() {
    let target = shared().await;
    let asked = json!({
        "serviceName": "s12.plant", "channel": "email", "userChannelId": "s12.plant@example.org",
        "userId": "s12.victim", "created": "2001-01-01T00:00:00.000Z", "updated": "2001-01-01T00:00:00.000Z",
    });
    let record = target.call(Anonymous, "POST", "/subscriptions", Some(asked.clone())).await.ok();
    let stored = target.subscription(&id(&record)).await;
    assert!(stored.get("userId").is_none(), "{stored}");
    assert!(text(&stored, "/created").as_str() > "2020", "{stored}");
    assert!(text(&stored, "/updated").as_str() > "2020", "{stored}");
    let listed = target.call(User("s12.victim"), "GET", "/subscriptions", None).await.ok();
    assert_eq!(listed, json!([]));
    let record = target.call(User("s12.other"), "POST", "/subscriptions", Some(asked)).await.ok();
    assert_eq!(record["userId"], "s12.other");
    assert!(text(&record, "/created").as_str() > "2020", "{record}");
}

#[tokio::test]
async fn s12_users_cannot_search_properties_that_they_do_not_see() {
    let target = shared().await;
    let address = "s12.oracle@example.org";
    let asked = json!({"serviceName": "s12.oracle", "channel": "email", "userChannelId": address});
    let record = target.call(User("s12.oracle"), "POST", "/subscriptions", Some(asked)).await.ok();
    let stored = target.subscription(&id(&record)).await;
    let code = text(&stored, "/confirmationRequest/confirmationCode");
    for condition in [
        "[confirmationRequest.confirmationCode][$exists]=true".to_owned(),
        format!("[confirmationRequest.confirmationCode][$regex]=^{}", &code[..1]),
        format!("[$text][$search]={code}"),
        "[createdBy.role]=AuthenticatedUser".to_owned(),
    ] {
        let path = format!("/subscriptions/count?where{condition}");
        let counted = target.call(User("s12.oracle"), "GET", &path, None).await.ok();
        assert_eq!(counted, json!({"count": 0}), "{condition}");
        let path = format!("/subscriptions?filter[where]{condition}");
        assert_eq!(target.call(User("s12.oracle"), "GET", &path, None).await.ok(), json!([]), "{condition}");
    }
    let path = format!("/subscriptions/count?where[userChannelId]={address}");
    assert_eq!(target.call(User("s12.oracle"), "GET", &path, None).await.ok(), json!({"count": 1}));
}

#[tokio::test]
async fn s12_users_who_read_a_broadcast_at_once_are_all_recorded() {
    const USERS: usize = 40;
    let target = shared().await;
    let asked = json!({"serviceName": "s12.readers", "channel": "inApp", "isBroadcast": true, "message": {"a": 1}});
    let broadcast = target.call(Admin, "POST", "/notifications", Some(asked)).await.ok();
    let path = format!("/notifications/{}", id(&broadcast));
    let names: Vec<String> = (0..USERS).map(|number| format!("s12.reader{number}")).collect();
    let read = |name| target.call(User(name), "PATCH", &path, Some(json!({"state": "read"})));
    for answer in join_all(names.iter().map(|name| read(name.as_str()))).await {
        answer.expect(204);
    }
    let stored = target.notification(&id(&broadcast)).await;
    assert_eq!(stored["readBy"].as_array().map(Vec::len), Some(USERS), "{stored}");
    let asked = format!("/notifications/count?where[readBy]={}&where[serviceName]=s12.readers", names[0]);
    assert_eq!(target.call(User(&names[1]), "GET", &asked, None).await.ok(), json!({"count": 0}));
}

#[tokio::test]
async fn s12_queries_have_only_the_known_operators() {
    let target = shared().await;
    for condition in ["{\"$where\":\"true\"}", "{\"$expr\":{\"$function\":{}}}", "{\"a\":{\"$mod\":[2,0]}}"] {
        let filter = format!("{{\"where\":{condition}}}");
        target.query("/subscriptions", "filter", &filter).await.expect(400);
        target.query("/subscriptions/count", "where", condition).await.expect(400);
    }
}

#[tokio::test]
async fn s12_callbacks_are_signed() {
    let target = shared().await;
    target.subscribe("s12.signed", "s12.signed@example.org", json!({})).await;
    let url = format!("http://127.0.0.1:{}/callback/s12", target.hooks.port);
    target.broadcast("s12.signed", json!({"asyncBroadcastPushNotification": url})).await;
    until("the callback", async || !target.hooks_at("/callback/s12").is_empty()).await;
    let (_, headers, body) =
        target.hooks.all().into_iter().find(|(uri, ..)| uri == "/callback/s12").expect("the callback");
    let webhook = Webhook::new(CALLBACK_SECRET).expect("a secret");
    webhook.verify(&body, &headers).expect("the signature is right");
}

#[tokio::test]
async fn s12_callbacks_to_forbidden_networks_are_not_made() {
    let target = shared().await;
    target.subscribe("s12.forbidden", "s12.forbidden@example.org", json!({})).await;
    // Loopback addresses of IPv4 are allowed here, that of IPv6 is not.
    let forbidden = TcpListener::bind("[::1]:0").expect("IPv6 is available");
    let port = forbidden.local_addr().expect("an address").port();
    let url = format!("http://[::1]:{port}/");
    let first = target.broadcast("s12.forbidden", json!({"asyncBroadcastPushNotification": url})).await;
    until("it is sent", async || target.notification(&id(&first)).await["state"] == "sent").await;
    let allowed = RUNTIME.spawn(Hooks::start("ok")).await.expect("joined");
    let url = format!("http://127.0.0.1:{}/", allowed.port);
    target.broadcast("s12.forbidden", json!({"asyncBroadcastPushNotification": url})).await;
    until("the allowed callback", async || !allowed.all().is_empty()).await;
    // The first connection is that of the test.
    let own = TcpStream::connect(("::1", port)).expect("it listens");
    let (_, first) = forbidden.accept().expect("a connection");
    assert_eq!(first, own.local_addr().expect("an address"));
}

#[tokio::test]
async fn s12_a_deferred_recipient_is_tried_again() {
    let target = shared().await;
    target.mails.set_deferred("s12.later@example.org", 1);
    let record = target.subscribe("s12.later", "s12.later@example.org", json!({})).await;
    let sent = target.broadcast("s12.later", json!({})).await;
    assert_eq!(sent["dispatch"]["successful"], json!([record["id"]]), "{sent}");
    assert_eq!(target.mails_to("s12.later@example.org").len(), 1);
}

#[tokio::test]
async fn s12_lists_of_a_record_can_be_left_out() {
    let target = shared().await;
    target.subscribe("s12.fields", "s12.fields@example.org", json!({})).await;
    let sent = target.broadcast("s12.fields", json!({})).await;
    let filter = format!("{{\"where\":{{\"id\":\"{}\"}},\"fields\":{{\"dispatch\":0}}}}", id(&sent));
    let found = target.query("/notifications", "filter", &filter).await.ok();
    assert_eq!(found[0]["id"], sent["id"]);
    assert!(found[0].get("dispatch").is_none(), "{found}");
    assert!(sent.get("dispatch").is_some());
}
