//! Statements of section 3 of the specification.

use serde_json::{Value, json};

use super::*;
use crate::record::{date_text, parse_date};

fn configuration(more: Value) -> Configuration {
    let mut document = json!({"adminIps": ["10.0.0.1"], "siteMinderReverseProxyIps": ["10.0.0.2"],
        "trustedReverseProxyIps": ["10.0.0.0/24"], "oidc": {"discoveryUrl": "http://idp"}});
    crate::configuration::merge(&mut document, &more);
    Configuration::parse(document.as_object().expect("an object"))
}

fn facts(address: &str) -> Facts<'static> {
    Facts::of_address(address.parse().expect("an address"))
}

#[track_caller]
fn check(facts: &Facts<'_>, expected: (&str, &str, &str)) {
    let found = identify(&configuration(json!({})), facts);
    assert_eq!((found.security_id.as_str(), found.strategy.as_str(), found.role.as_str()), expected);
}

#[test]
fn s3_1_certificates_are_super_admins() {
    let facts = Facts { certificate_name: Some("ops"), administrator: Some("1"), ..facts("192.0.2.1") };
    check(&facts, ("ops", "clientCertificate", "SuperAdmin"));
}

#[test]
fn s3_2_tokens_are_admins_until_they_expire() {
    let claims = json!({"email": "a@b.ca"});
    let facts = Facts { administrator: Some("1"), claims: Some(&claims), ..facts("192.0.2.1") };
    check(&facts, ("1", "accessToken", "Admin"));
    let now = parse_date("2026-11-29T08:00:00Z").expect("a date");
    let token = |ttl: Value| {
        let mut token = Document::from_iter([("created".to_owned(), json!("2026-11-29T07:59:00.000Z"))]);
        token.insert("ttl".to_owned(), ttl);
        token
    };
    assert!(is_expired(&token(json!(59)), now) && !is_expired(&token(json!(61)), now));
    assert!(is_expired(&token(json!(0)), now) && !is_expired(&token(Value::Null), now));
    let fresh = Document::from_iter([("created".to_owned(), json!(date_text(now))), ("ttl".to_owned(), json!(0))]);
    assert!(is_expired(&fresh, now), "dead at once");
    assert_eq!(bearer_token("Bearer a.b.c"), Some("a.b.c"));
    assert_eq!((bearer_token("a.b.c"), bearer_token("Basic a.b.c"), bearer_token("Bearer abc")), (None, None, None));
}

#[test]
fn s3_3_claims_decide_the_role() {
    let with =
        |claims: &Value| identify(&configuration(json!({})), &Facts { claims: Some(claims), ..facts("192.0.2.1") });
    let user = with(&json!({"email": "a@b.ca", "preferred_username": "a"}));
    assert_eq!((user.security_id.as_str(), user.role), ("a@b.ca", Role::AuthenticatedUser));
    assert_eq!(user.user(), Some("a@b.ca"));
    assert_eq!(with(&json!({"preferred_username": "a"})).security_id, "a");
    assert_eq!(with(&json!({"email": "a", "roles": ["notifybc-admin"], "blocked": true})).role, Role::Admin);
    assert_eq!(with(&json!({"email": "a", "blocked": true})).role, Role::Anonymous);
    assert_eq!(with(&json!({"sub": "a"})).role, Role::Anonymous, "a token without a name is no identity");
}

#[test]
fn s3_4_site_minder_headers_need_their_proxy() {
    let headers = [None, Some("ann"), Some("bob")];
    check(&Facts { site_minder: headers, ..facts("10.0.0.2") }, ("ann", "siteMinder", "AuthenticatedUser"));
    check(&Facts { site_minder: headers, ..facts("192.0.2.1") }, ("192.0.2.1", "ip", "Anonymous"));
    check(&Facts { site_minder: [Some(""), None, None], ..facts("10.0.0.2") }, ("10.0.0.2", "ip", "Anonymous"));
}

#[test]
fn s3_5_addresses_of_admins_override() {
    let facts = Facts { administrator: Some("1"), site_minder: [Some("ann"), None, None], ..facts("10.0.0.1") };
    check(&facts, ("10.0.0.1", "ip", "SuperAdmin"));
}

#[test]
fn s3_6_is_anonymous_overrides_everything() {
    for value in ["true", "false", "0"] {
        let facts = Facts { certificate_name: Some("ops"), is_anonymous: Some(value), ..facts("10.0.0.1") };
        check(&facts, ("10.0.0.1", "ip", "Anonymous"));
    }
    check(&Facts { is_anonymous: Some(""), ..facts("10.0.0.1") }, ("10.0.0.1", "ip", "SuperAdmin"));
    check(&facts("192.0.2.1"), ("192.0.2.1", "ip", "Anonymous"));
    check(&facts("::ffff:10.0.0.1"), ("10.0.0.1", "ip", "SuperAdmin"));
}

#[test]
fn s2_1_the_client_is_the_right_most_untrusted_address() {
    let trusted = configuration(json!({})).trusted_proxies;
    let check = |peer: &str, forwarded: Option<&str>, expected: &str| {
        let found = client_address(&trusted, peer.parse().expect("an address"), forwarded);
        assert_eq!(found.to_string(), expected, "{peer} {forwarded:?}");
    };
    check("10.0.0.9", None, "10.0.0.9");
    check("10.0.0.9", Some("198.51.100.1"), "198.51.100.1");
    check("10.0.0.9", Some("203.0.113.5, 198.51.100.1, 10.0.0.8"), "198.51.100.1");
    check("192.0.2.1", Some("198.51.100.1"), "192.0.2.1");
    check("10.0.0.9", Some("10.0.0.7, 10.0.0.8"), "10.0.0.7");
    // An unknown client behind a proxy does not get the rights of the proxy's address.
    check("10.0.0.9", Some("198.51.100.1, nonsense"), "0.0.0.0");
    check("10.0.0.9", Some("10.0.0.1, fe80::1%eth0"), "0.0.0.0");
    check("10.0.0.9", Some(", "), "10.0.0.9");
    check("10.0.0.9", Some("\u{fffd}, 198.51.100.1"), "198.51.100.1");
    check("10.0.0.9", Some("[2001:db8::1]:5000"), "2001:db8::1");
    let origin = |peer: &str, host: Option<&str>| {
        request_origin(&trusted, peer.parse().expect("an address"), ("http", "own:3000"), Some("https"), host)
    };
    assert_eq!(origin("10.0.0.9", Some("n.ca, other")), "https://n.ca");
    assert_eq!(origin("192.0.2.1", Some("n.ca")), "http://own:3000");
    assert_eq!(origin("10.0.0.9", Some("n.ca\"><a")), "https://own:3000");
}

#[test]
fn s3_permissions() {
    use Role::*;
    let who = |route| [SuperAdmin, Admin, AuthenticatedUser, Anonymous].map(|role| permits(role, route));
    for route in [Route::ReadSubscriptions, Route::ReadNotifications] {
        assert_eq!(who(route), [true, true, true, false]);
    }
    for route in [Route::ReplaceSubscription, Route::SendNotification, Route::Administrators] {
        assert_eq!(who(route), [true, true, false, false]);
    }
    for route in [Route::Configurations, Route::Bounces, Route::Memory, Route::CreateAdministrator] {
        assert_eq!(who(route), [true, false, false, false]);
    }
    for route in [Route::SubscriptionWorkflow, Route::Login, Route::Public] {
        assert_eq!(who(route), [true; 4]);
    }
    let value = Identity { security_id: "a".into(), strategy: Strategy::Ip, role: SuperAdmin }.to_value();
    assert_eq!(value, json!({"securityId": "a", "authnStrategy": "ip", "role": "SuperAdmin"}));
}
