//! Section 7.3: tokens of messages.

use serde_json::{Value, json};

use crate::target::{Target, id, logged, shared, text};

/// Sends each template as one line of a mail to one subscription; compares the lines.
async fn check(target: &Target, service: &str, subscription: Value, notification: Value, cases: &[(&str, String)]) {
    let address = format!("{service}@example.org");
    let record = target.subscribe(service, &address, subscription).await;
    let templates: Vec<&str> = cases.iter().map(|(template, _)| *template).collect();
    let mut more = notification;
    more["message"] = json!({"from": "a@example.org", "subject": "s", "textBody": templates.join("\n")});
    target.broadcast(service, more).await;
    let fill = |text: &str| {
        let code = record["unsubscriptionCode"].as_str().unwrap_or_default();
        let request = record["confirmationRequest"]["confirmationCode"].as_str().unwrap_or_default();
        text.replace("ID", &id(&record)).replace("CODE", code).replace("CONFIRM", request)
    };
    let text = target.mail_to(&address).text().expect("a text");
    let lines: Vec<&str> = text.split('\n').collect();
    for (index, (template, expected)) in cases.iter().enumerate() {
        assert_eq!(lines.get(index), Some(&fill(expected).as_str()), "{template}: {text}");
    }
}

#[tokio::test]
async fn s7_3_static_and_legacy_tokens() {
    let target = shared().await;
    let base = format!("http://{}", target.host);
    let links = format!("{base}/api/subscriptions/ID");
    let request = json!({"confirmationRequest": {"confirmationCode": "90210", "sendRequest": false}});
    let cases = [
        ("{service_name}", "s7.3.static".to_owned()),
        ("{SERVICE_NAME} {Service_Name} {service_name}", "s7.3.static s7.3.static s7.3.static".to_owned()),
        ("{http_host}", base.clone()),
        ("{rest_api_root}", "/api".to_owned()),
        ("{subscription_id}", "ID".to_owned()),
        ("{unsubscription_code}", "CODE".to_owned()),
        ("{unsubscription_url}", format!("{links}/unsubscribe?unsubscriptionCode=CODE")),
        ("{unsubscription_all_url}", format!("{links}/unsubscribe?unsubscriptionCode=CODE&additionalServices=_all")),
        ("{unsubscription_reversion_url}", format!("{links}/unsubscribe/undo?unsubscriptionCode=CODE")),
        ("{unsubscription_service_names}", "service s7.3.static".to_owned()),
        ("{subscription_confirmation_url}", format!("{links}/verify?confirmationCode=90210")),
        ("{subscription_confirmation_code} {confirmation_code}", "90210 90210".to_owned()),
        ("{serviceName} {restApiRoot} {subscriptionId} {unsubscriptionCode}", "s7.3.static /api ID CODE".to_owned()),
    ];
    check(target, "s7.3.static", request, json!({}), &cases).await;
}

#[tokio::test]
async fn s7_3_dynamic_tokens() {
    let subscription = json!({"data": {
        "name": "Ann", "both": "subscription", "only": {"there": "deep"}, "list": ["x", {"y": "z"}],
    }});
    let data = json!({
        "title": "Flood", "both": "notification", "n": 4.5, "yes": true, "no": false, "zero": 0, "empty": "",
        "none": null, "tags": ["a", 1, "b"], "deep": {"a": [{"b": "c"}]}, "1": {"2": "digits"},
        "html": "<b>&\"'", "money": "$1 $& \\1", "token": "{service_name}",
    });
    let same = |text: &'static str| (text, text.to_owned());
    let cases = [
        ("{title}", "Flood".to_owned()),
        ("{notification::title} {subscription::name}", "Flood Ann".to_owned()),
        ("{both} {notification::both} {subscription::both}", "notification notification subscription".to_owned()),
        ("{name} {only.there}", "Ann deep".to_owned()),
        ("{deep.a[0].b} {list[0]} {subscription::list[1].y}", "c x z".to_owned()),
        ("{1.2}", "digits".to_owned()),
        ("{n} {yes} {tags}", "4.5 true a,1,b".to_owned()),
        same("{no} {zero} {empty} {none} {missing} {deep.x.y}"),
        same("{notification::name} {subscription::title}"),
        ("\\{title\\} {title}", "{title} Flood".to_owned()),
        ("{html}", "<b>&\"'".to_owned()),
        ("{money}", "$1 $& \\1".to_owned()),
        ("{token}", "{service_name}".to_owned()),
    ];
    check(shared().await, "s7.3.dynamic", subscription, json!({"data": data}), &cases).await;
}

#[tokio::test]
async fn s7_3_subject_and_html_are_merged_and_from_is_not() {
    let target = shared().await;
    target.subscribe("s7.3.parts", "s7.3.parts@example.org", json!({})).await;
    let message = json!({
        "from": "\"{title}\" <a@example.org>", "subject": "About {title}", "textBody": "text {title}",
        "htmlBody": "<p>{title}</p>",
    });
    target.broadcast("s7.3.parts", json!({"message": message, "data": {"title": "R&D"}})).await;
    let mail = target.mail_to("s7.3.parts@example.org");
    assert_eq!(mail.subject(), "About R&D");
    assert_eq!((mail.text().as_deref(), mail.html().as_deref()), (Some("text R&D"), Some("<p>R&D</p>")));
    assert!(mail.header("from").contains("{title}"), "{}", mail.header("from"));
}

#[tokio::test]
async fn s7_3_the_host_of_links() {
    let target = logged().await;
    let cases = [("{http_host}", "https://notify.example.ca".to_owned())];
    check(target, "s7.3.host", json!({}), json!({}), &cases).await;
    let cases = [
        ("{http_host}", "https://own.example.org".to_owned()),
        (
            "{unsubscription_url}",
            "https://own.example.org/api/subscriptions/ID/unsubscribe?unsubscriptionCode=CODE".to_owned(),
        ),
    ];
    check(target, "s7.3.own", json!({}), json!({"httpHost": "https://own.example.org"}), &cases).await;
}

#[tokio::test]
async fn s7_3_unicast_merges_its_subscription() {
    let target = shared().await;
    let record = target.subscribe("s7.3.unicast", "s7.3.unicast@example.org", json!({"data": {"name": "Ann"}})).await;
    let mut asked = json!({
        "serviceName": "s7.3.unicast", "channel": "email", "userChannelId": "S7.3.unicast@example.org",
        "data": {"title": "T"}, "message": {"from": "a@example.org", "subject": "{title}",
        "textBody": "{name} {subscription_id} {unsubscription_url}"},
    });
    assert_eq!(target.post("/notifications", asked.clone()).await["state"], "sent");
    let (id, code) = (id(&record), text(&record, "/unsubscriptionCode"));
    let mail = target.mail_to("s7.3.unicast@example.org");
    let link = format!("http://{}/api/subscriptions/{id}/unsubscribe?unsubscriptionCode={code}", target.host);
    assert_eq!((mail.subject(), mail.text()), ("T".to_owned(), Some(format!("Ann {id} {link}"))));
    // Without a subscription, static tokens are empty, except those of the notification.
    asked["skipSubscriptionConfirmationCheck"] = json!(true);
    asked["userChannelId"] = json!("s7.3.stranger@example.org");
    asked["message"]["textBody"] = json!("[{service_name}] [{subscription_id}] [{unsubscription_code}] [{title}]");
    assert_eq!(target.post("/notifications", asked).await["state"], "sent");
    let mail = target.mail_to("s7.3.stranger@example.org");
    assert_eq!(mail.text().as_deref(), Some("[s7.3.unicast] [] [] [T]"));
}

#[tokio::test]
async fn s7_3_service_names_are_listed_once() {
    let target = shared().await;
    let address = "s7.3.names@example.org";
    let mut records = Vec::new();
    for name in ["s7.3.A", "s7.3.B", "s7.3.C"] {
        let value =
            json!({"notification": {"email": {"textBody": "{unsubscription_service_names}", "htmlBody": null}}});
        target.configure(name, json!({"anonymousUnsubscription": {"acknowledgements": value}})).await;
        records.push(target.subscribe(name, address, json!({})).await);
    }
    let (id, code) = (id(&records[0]), text(&records[0], "/unsubscriptionCode"));
    let path = format!("/subscriptions/{id}/unsubscribe?unsubscriptionCode={code}&additionalServices=_all");
    target.call(crate::target::Caller::Anonymous, "GET", &path, None).await.expect(200);
    let mail = target.mail_to(address);
    assert_eq!(mail.text().as_deref(), Some("services s7.3.A, s7.3.B and s7.3.C"));
    assert!(mail.html().is_none());
}
