//! Statements of section 2 of the specification.

use serde_json::{Value, json};

use super::*;

fn parse(value: Value) -> Configuration {
    Configuration::parse(value.as_object().expect("an object"))
}

#[test]
fn s2_1_defaults() {
    let configuration = parse(json!({}));
    assert_eq!((configuration.rest_api_root.as_str(), configuration.port), ("/api", 3000));
    assert!(configuration.admin_ips.contains("127.0.0.1".parse().expect("an address")));
    assert!(!configuration.admin_ips.contains("127.0.0.2".parse().expect("an address")));
    assert!(configuration.trusted_proxies.is_empty() && configuration.email.smtp.is_none());
    let (email, sms) = (configuration.email.throttle, configuration.sms.throttle);
    assert_eq!((email.is_enabled, email.max, email.duration_millis), (false, 4, 1000));
    assert_eq!((sms.is_enabled, sms.max, sms.duration_millis), (true, 4, 1000));
    let bounce = &configuration.email.bounce;
    assert!(bounce.is_enabled && bounce.unsubscription_threshold == 5 && bounce.subject.is_none());
    assert!(bounce.status_code.as_ref().is_some_and(|regex| regex.is_match("status 5.1.1")));
    let found = bounce.failed_recipient.as_ref().and_then(|regex| regex.find("to <ann.b@example.ca>:"));
    assert_eq!(found.map(|found| found.as_str()), Some("ann.b@example.ca"));
    assert!(configuration.notification.is_guaranteed && !configuration.notification.logs_skipped);
    assert_eq!(
        (configuration.cron.purge_data.as_str(), configuration.cron.retention.push_notification),
        ("0 0 1 * * *", 30.0)
    );
    assert_eq!(configuration.ignored, Vec::<String>::new());
    assert!(configuration.oidc.is_none());
}

#[test]
fn s2_1_documents_are_merged_deeply_and_lists_replaced() {
    let configuration = parse(json!({
        "adminIps": ["10.0.0.0/8", "::1"], "email": {"throttle": {"enabled": true}, "smtp": {"host": "h",
            "secure": true,
        "auth": {"user": "u", "pass": "p"}}, "inboundSmtpServer": {"domain": "A.ca, b.ca",
            "listeningSmtpPort": "2525"}},
        "rest": {"port": 4000}, "restApiRoot": "v1/", "httpHost": "https://n.ca/", "port": "5000",
        "cron": {"purgeData": {"defaultRetentionDays": 7, "deletedBounceRetentionDays": 1}},
        "subscription": {"detectDuplicatedSubscription": true},
        "tls": {"key": "k", "cert": "c", "ca": "a", "clientCertificateEnabled": false}
    }));
    let contains = |address: &str| configuration.admin_ips.contains(address.parse().expect("an address"));
    assert!(contains("10.1.2.3") && contains("::ffff:10.1.2.3") && contains("::1") && !contains("127.0.0.1"));
    assert_eq!((configuration.port, configuration.rest_api_root.as_str()), (4000, "/v1"));
    assert_eq!(configuration.http_host.as_deref(), Some("https://n.ca"));
    let throttle = configuration.email.throttle;
    assert_eq!((throttle.is_enabled, throttle.max), (true, 4));
    let smtp = configuration.email.smtp.as_ref().expect("a relay");
    assert_eq!((smtp.port, smtp.credentials.clone()), (465, Some(("u".into(), "p".into()))));
    assert_eq!(configuration.email.inbound.domains, ["a.ca", "b.ca"]);
    assert_eq!(configuration.email.inbound.port, Some(2525));
    assert_eq!(configuration.cron.retention.deleted_bounce, 1.0);
    assert!(configuration.subscription(None).detects_duplicates && configuration.subscription(None).code_required);
    assert!(configuration.tls.is_enabled && !configuration.tls.client_certificates);
}

#[test]
fn s2_1_keys_without_effect_are_listed() {
    let configuration = parse(json!({"internalHttpHost": "x", "loggingLevels": [], "colour": 1, "email": {"smpt": {}},
        "queue": {"connection": {}}, "adminIps": ["nonsense"], "sms": {"providerSettings": {"swift": {"any": 1}}},
        "tocsin": {"oidcAdmin": {"claim": "a", "value": 1}}}));
    let keys: Vec<&str> = configuration.ignored.iter().filter_map(|line| line.split(':').next()).collect();
    assert_eq!(keys, ["internalHttpHost", "loggingLevels", "colour", "email.smpt", "queue", "adminIps"]);
}

#[test]
fn s2_2_default_texts() {
    let configuration = parse(json!({}));
    let subscription = configuration.subscription(None);
    let request = subscription.confirmation_request("email").expect("a request");
    assert_eq!(request["textBody"], "Enter {subscription_confirmation_code} on screen");
    assert_eq!((&request["confirmationCodeRegex"], &request["sendRequest"]), (&json!("\\d{5}"), &json!(true)));
    assert_eq!(
        subscription.confirmation_request("sms").expect("a request")["textBody"],
        "Enter {confirmation_code} on screen"
    );
    assert_eq!(subscription.confirmation_request("inApp"), None);
    let acknowledgement = subscription.confirmation_acknowledgements.as_ref().expect("texts");
    assert_eq!(acknowledgement.success_message.as_deref(), Some("You have been subscribed."));
    assert_eq!(
        subscription.unsubscription_on_screen.failure_message.as_deref(),
        Some("Error happened while un-subscribing.")
    );
    assert_eq!(subscription.undo.success_message.as_deref(), Some("You have been re-subscribed."));
    assert!(subscription.unsubscription_message("sms").is_none());
    let message = subscription.unsubscription_message("email").expect("texts");
    assert!(
        message
            .html_body
            .as_deref()
            .is_some_and(|html| html.ends_with("click <a href=\"{unsubscription_reversion_url}\">here</a> to revert."))
    );
    let duplicate = subscription.duplicate_message("sms").expect("texts");
    assert!(duplicate.text_body.as_deref().is_some_and(|text| text.ends_with("pls ignore this msg.")));
    assert_eq!(duplicate.subject.as_deref(), Some("Duplicated Subscription"));
}

#[test]
fn s2_3_dynamic_configuration_is_merged_and_null_switches_off() {
    let configuration = parse(json!({}));
    let merged = |value: Value| configuration.subscription(Some(&value)).into_owned();
    let changed = merged(json!({"confirmationRequest": {"email": {"subject": "S"}}}));
    let request = changed.confirmation_request("email").expect("a request");
    assert_eq!((&request["subject"], &request["from"]), (&json!("S"), &json!("no_reply@invalid.local")));
    assert!(merged(json!({"confirmationAcknowledgements": null})).confirmation_acknowledgements.is_none());
    let off = json!({"anonymousUnsubscription": {"acknowledgements": {"notification": null}}});
    assert!(merged(off).unsubscription_message("email").is_none());
    let off = json!({"anonymousUnsubscription": {"acknowledgements": {"notification": {"email": null}}}});
    assert!(merged(off).unsubscription_message("email").is_none());
    assert!(!merged(json!({"anonymousUnsubscription": {"code": {"required": false}}})).code_required);
    assert_eq!(merged(json!("nonsense")), SubscriptionConfiguration::default());
}

#[test]
fn conditions_on_claims_replace_javascript() {
    let oidc = |more: Value| {
        let mut document = json!({"oidc": {"discoveryUrl": "http://idp", "jwtVerifyOptions": {"audience": "a"}}});
        merge(&mut document, &more);
        parse(document).oidc.expect("configured")
    };
    let default = oidc(json!({}));
    assert!(any_holds(&default.admin, &json!({"roles": ["x", "notifybc-admin"]})));
    assert!(!any_holds(&default.admin, &json!({"roles": ["x"]})) && !any_holds(&default.admin, &json!({})));
    assert!(
        any_holds(&default.refused, &json!({"blocked": true})) && !any_holds(&default.refused, &json!({"blocked": 1}))
    );
    assert_eq!(default.audience, ["a"]);
    let own = oidc(json!({"tocsin": {
        "oidcAdmin": {"claim": "resource_access.client.roles", "operator": "contains", "value": "admin"},
        "oidcRefused": [{"claim": ["a.b"], "operator": "exists"}, {"claim": "c", "operator": "equals",
            "value": "x"}]}}));
    assert!(any_holds(&own.admin, &json!({"resource_access": {"client": {"roles": ["admin"]}}})));
    assert!(any_holds(&own.refused, &json!({"a.b": 0})) && any_holds(&own.refused, &json!({"c": "x"})));
    assert!(!any_holds(&own.refused, &json!({"c": "y", "a.b": null})));
    let flat = oidc(json!({"tocsin.oidcAdmin": {"claim": "admin", "operator": "equals", "value": true}}));
    assert!(any_holds(&flat.admin, &json!({"admin": true})));
}
