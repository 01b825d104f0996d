//! Double opt-in of subscription classes.

use std::time::Duration;

use expect_test::expect;

use super::check;
use crate::{
    consent::{ConsentPolicy, SkipWay},
    definition::{difference, read},
};

/// A definition with a subscription class with this consent.
fn definition(consent: &str) -> String {
    format!(
        "application: letters
events: {{ issue: {{ fields: {{ title: string }} }} }}
subscriptions:
  weekly: {{ {consent} }}
notifications:
  mail: {{ content: {{ templates: {{ base: {{ text: x }} }} }} }}
rules:
  issued: {{ on: issue, subscription: weekly, notify: mail }}
"
    )
}

fn policy(consent: &str) -> Option<ConsentPolicy> {
    let application = read(&definition(consent), &|_| None).unwrap_or_else(|problems| panic!("{problems:?}"));
    application.subscriptions["weekly"].consent.clone()
}

#[test]
fn a_class_asks_for_consent() {
    assert_eq!(policy("fields: { topic: string }"), None);
    assert_eq!(policy("consent: double_opt_in"), Some(ConsentPolicy::default()));
    let given = policy(
        "consent: { expires_after: 2d, resend_after: 1m, attempts: 3, messages_per_day: 2, text: Yes, version: 'v1',
        skip: [api, import] }",
    );
    let expected = ConsentPolicy {
        expires_after: Duration::from_secs(2 * 86_400),
        resend_after: Duration::from_secs(60),
        attempts: 3,
        messages_per_day: 2,
        text: Some("Yes".to_owned()),
        version: Some("v1".to_owned()),
        skip: vec![SkipWay::Api, SkipWay::Import],
    };
    assert_eq!(given, Some(expected));
    assert_eq!(policy("consent: { skip: [] }").map(|policy| policy.skip), Some(Vec::new()));
}

#[test]
fn a_wrong_consent_is_reported() {
    check(
        &definition("consent: { expires_after: 1h, resend_after: 2h, attempts: 0, skip: [fax] }"),
        expect![[r#"
        4:57: subscriptions.weekly.consent.resend_after: is longer than `expires_after`: a request could never be sent again; give a time below the lifetime of a request
        4:71: subscriptions.weekly.consent.attempts: is 0; give 1 to 20
        4:81: subscriptions.weekly.consent.skip[0]: `fax` is not known here; give `import` or `api`"#]],
    );
    let long = format!("consent: {{ text: '{}' }}", "x".repeat(4_097));
    let found = read(&definition(&long), &|_| None).expect_err("problems");
    assert_eq!(
        found.iter().map(|problem| problem.path.as_str()).collect::<Vec<_>>(),
        ["subscriptions.weekly.consent.text"]
    );
}

#[test]
fn a_new_consent_changes_new_subscriptions_only() {
    let of = |consent: &str| read(&definition(consent), &|_| None).unwrap_or_else(|problems| panic!("{problems:?}"));
    let sentences = |old: &str, new: &str| {
        let found = difference(&of(old), &of(new));
        found.iter().map(|found| format!("{}: {}", found.path, found.sentence)).collect::<Vec<_>>()
    };
    let (none, some) = ("filter: cel", "filter: cel, consent: double_opt_in");
    assert_eq!(
        sentences(none, some),
        ["subscriptions.weekly.consent: new subscriptions need a consent; existing ones stay as they are"]
    );
    assert_eq!(
        sentences(some, none),
        ["subscriptions.weekly.consent: new subscriptions need no consent; pending ones still do"]
    );
    assert_eq!(
        sentences(some, "filter: cel, consent: { attempts: 3 }"),
        ["subscriptions.weekly.consent: the double opt-in changes, for new requests"]
    );
}
