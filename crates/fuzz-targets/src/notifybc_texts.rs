//! Texts of NotifyBC requests: queries, form bodies, templates, regular expressions of codes, inbound mail.

use serde_json::{Value, json};
use tocsin_notifybc::{
    bounces::{BounceMail, InboundRecipient},
    codes,
    merge::{Context, Template},
    query::{Filter, Params, form_body},
    record::{Collection, Document},
};

fn record() -> Document {
    let record = json!({"id": "5f2b6d6c8e7a4a0011c0ffee", "serviceName": "a", "channel": "email", "state": "confirmed",
        "created": "2026-01-02T00:00:00.000Z", "data": {"tags": ["a", "b"], "n": 5, "o": {"x": null}},
            "items": [{"v": 1}, 2]});
    record.as_object().expect("an object").clone()
}

/// A filter, as JSON or in bracket form. A record that matches is within the hints, and a page never grows.
pub(crate) fn query(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let filter = match serde_json::from_str::<Value>(text) {
        Ok(value) => Filter::parse(Collection::Subscription, &value),
        Err(_) => Params::parse(text).and_then(|params| Filter::from_params(Collection::Subscription, &params)),
    };
    let Ok(filter) = filter else { return };
    let record = record();
    let hints = filter.where_.index_hints();
    if filter.where_.matches(&record) {
        let permits =
            |list: &Option<Vec<String>>, value: &str| list.as_ref().is_none_or(|list| list.iter().any(|v| v == value));
        assert!(permits(&hints.service_name, "a") && permits(&hints.state, "confirmed"), "the hints exclude a match");
        assert!(
            permits(&hints.id, "5f2b6d6c8e7a4a0011c0ffee") && permits(&hints.user_id, ""),
            "the hints exclude a match"
        );
    }
    assert!(filter.page(vec![record.clone(), record]).len() <= 2);
}

/// A form body, and the recipient and the parts of a mail.
pub(crate) fn form(input: &[u8]) {
    let _ = form_body(input);
    let _ = BounceMail::parse(input);
    if let Ok(text) = std::str::from_utf8(input) {
        let _ = InboundRecipient::parse(text, &[]);
    }
}

/// A template, which renders the same after it was bound to a notification; and a regular expression of codes, whose
/// codes it matches.
pub(crate) fn texts(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let record = record();
    let context = Context {
        subscription: Some(&record),
        notification: Some(&record),
        http_host: "http://n.example",
        rest_api_root: "/api",
        ignores_subscription_data: false,
    };
    let template = Template::parse(text);
    assert_eq!(template.with_notification(&context).render(&context), template.render(&context), "{text:?}");
    let _ = codes::generate(text, &|| 0x5555_5555_5555_5555);
}
