//! Statements of section 7.3 of the specification.

use serde_json::{Value, json};

use super::*;

fn document(value: Value) -> Document {
    value.as_object().expect("an object").clone()
}

fn subscription() -> Document {
    document(json!({"id": "5f", "serviceName": "water", "unsubscriptionCode": "12345", "userChannelId": "x@y.ca",
        "confirmationRequest": {"confirmationCode": "54321"}, "unsubscribedAdditionalServices": {"names": ["water",
            "air", "fire"]},
        "data": {"name": "Ann", "only": "S", "title": "of S", "n": 1.0}}))
}

fn notification() -> Document {
    document(
        json!({"serviceName": "water", "data": {"title": "T", "n": 5, "half": 2.5, "zero": 0, "empty": "", "no": false,
        "yes": true, "none": null, "list": ["a", 1, [2, null]], "a": {"b": [{"c": "deep"}], "7": "digit"},
            "x.y": "dotted",
        "tricky": "{service_name} $& \\ <b>"}}),
    )
}

#[track_caller]
fn check(text: &str, expected: &str) {
    let (subscription, notification) = (subscription(), notification());
    let context = Context {
        subscription: Some(&subscription),
        notification: Some(&notification),
        http_host: "http://n.ca",
        rest_api_root: "/api",
        ignores_subscription_data: false,
    };
    let template = Template::parse(text);
    assert_eq!(template.render(&context), expected, "{text}");
    assert_eq!(template.with_notification(&context).render(&context), expected, "bound: {text}");
}

#[test]
fn s7_3_static_tokens_in_any_letter_case() {
    check("{service_name} {SERVICE_NAME} {service_name}", "water water water");
    check("{http_host}{rest_api_root}/{subscription_id}", "http://n.ca/api/5f");
    check("{subscription_confirmation_code} {unsubscription_code}", "54321 12345");
    check("{subscription_confirmation_url}", "http://n.ca/api/subscriptions/5f/verify?confirmationCode=54321");
    check("{unsubscription_url}", "http://n.ca/api/subscriptions/5f/unsubscribe?unsubscriptionCode=12345");
    check(
        "{unsubscription_all_url}",
        "http://n.ca/api/subscriptions/5f/unsubscribe?unsubscriptionCode=12345&additionalServices=_all",
    );
    check(
        "{unsubscription_reversion_url}",
        "http://n.ca/api/subscriptions/5f/unsubscribe/undo?unsubscriptionCode=12345",
    );
    check("{ x {service_name} }", "{ x water }");
}

#[test]
fn s7_3_legacy_names() {
    check(
        "{confirmation_code} {serviceName} {restApiRoot} {subscriptionId} {unsubscriptionCode}",
        "54321 water /api 5f 12345",
    );
}

#[test]
fn s7_3_service_names() {
    check("{unsubscription_service_names}", "services water, air and fire");
    let of =
        |names: Value| service_names(&document(json!({"serviceName": "A", "unsubscribedAdditionalServices": names})));
    assert_eq!(of(Value::Null), "service A");
    assert_eq!(of(json!({"names": ["A"]})), "service A");
    assert_eq!(of(json!({"names": ["B", "A", "B"]})), "services A and B");
}

#[test]
fn s7_3_dynamic_tokens() {
    check("{title} {notification::title} {subscription::title}", "T T of S");
    check("{only} {name}", "S Ann");
    check("{notification::only} {subscription::half}", "{notification::only} {subscription::half}");
    check("{a.b[0].c} {a.b.0.c} {a.7} {x.y}", "deep deep digit dotted");
    check("{n} {subscription::n} {half} {yes} {list}", "5 1 2.5 true a,1,2,");
    check("{zero} {empty} {no} {none} {missing}", "{zero} {empty} {no} {none} {missing}");
    check("{title", "{title");
    check("{}{title}", "{}{title}");
    check("{ti\ntle} {title}", "{ti\ntle} T");
    check("a { color: red } {title}", "a { color: red } T");
}

#[test]
fn s7_3_escaped_braces_are_plain() {
    check("\\{title\\} {title}", "{title} T");
    check("\\{service_name\\}", "{service_name}");
    check("a\\b \\{", "a\\b {");
}

#[test]
fn s7_3_values_are_not_merged_again() {
    check("{tricky}|", "{service_name} $& \\ <b>|");
}

#[test]
fn s5_1_5_confirmation_requests_have_no_data() {
    let subscription = subscription();
    let context = Context { subscription: Some(&subscription), ignores_subscription_data: true, ..Context::default() };
    assert_eq!(merged("{name} {confirmation_code}", &context), "{name} 54321");
}

#[test]
fn s11_without_a_subscription_unknown_tokens_are_empty() {
    let notification = notification();
    let context = Context { notification: Some(&notification), http_host: "http://n.ca", ..Context::default() };
    assert_eq!(
        merged("[{unsubscription_url}{subscription_id}{unsubscription_code}] {service_name} {title}", &context),
        "[] water T"
    );
}

#[test]
fn s7_3_long_tokens_are_texts() {
    let text = "{".repeat(200_000);
    assert_eq!(merged(&text, &Context::default()), text);
    let long = format!("{{{}}}", "a".repeat(2_000));
    assert_eq!(merged(&long, &Context::default()), long);
}

#[test]
fn s7_3_http_host_of_notification_configuration_request() {
    let notification = document(json!({"httpHost": "http://a"}));
    assert_eq!(http_host(Some(&notification), Some("http://b"), "http://c"), "http://a");
    assert_eq!(http_host(None, Some("http://b"), "http://c"), "http://b");
    assert_eq!(http_host(Some(&Document::new()), None, "http://c:3000"), "http://c:3000");
}

#[test]
fn templates_know_whether_they_depend_on_the_subscription() {
    let check = |text: &str, expected: bool| {
        assert_eq!(Template::parse(text).is_independent_of_subscription(), expected, "{text}")
    };
    check("{notification::a} {http_host} b", true);
    check("{a}", false);
    check("{unsubscription_url}", false);
    assert_eq!(uri_component("a b/c&é!~*'()"), "a%20b%2Fc%26%C3%A9!~*'()");
}
