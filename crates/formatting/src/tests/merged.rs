//! Texts with the tokens of NotifyBC.

use serde_json::json;
use tocsin_model::{
    application::{ContentTemplates, TemplateEngine, TemplateParts, TemplateText},
    content::MailField,
    field::{Field, FieldType, Fields},
};

use super::*;

fn row(fields: &Fields, json: serde_json::Value) -> Vec<Value> {
    fields.row_from_json(json.to_string().as_bytes()).unwrap_or_else(|problems| panic!("{problems:?}"))
}

fn fields_of(names: &[(&str, FieldType)]) -> Fields {
    Fields::new(names.iter().map(|(name, kind)| Field::new(name.parse().expect("a name"), *kind)).collect())
}

/// Content of a recipient, and whether it is personal.
fn merged(parts: TemplateParts, sub: serde_json::Value) -> (Content, bool) {
    let text = FieldType::String;
    let event = fields_of(&[("service", text), ("http_host", text), ("rest_api_root", text), ("data", FieldType::Map)]);
    let subscription = fields_of(&[("id", text), ("code", text), ("data", FieldType::Map)]);
    let known = KnownVariables {
        events: vec![(name("notification"), event.clone())],
        subscriptions: vec![(name("subscription"), subscription.clone())],
        ..KnownVariables::default()
    };
    let engine = TemplateEngine::Notifybc;
    let templates = ContentTemplates { engine, templates: BTreeMap::from([(String::new(), parts)]) };
    let formatter = Formatter::compile("notifications.message", &templates, &known)
        .unwrap_or_else(|problems| panic!("{problems:#?}"));
    let notification = json!({
        "service": "fires", "http_host": "http://n.example:3000", "rest_api_root": "/api",
        "data": {"title": "Smoke {name}", "n": 3},
    });
    let sample = Sample {
        event: EventScope::new(&event, &row(&event, notification)),
        subscription: (subscription.clone(), row(&subscription, sub)),
        row: Vec::new(),
        ..Sample::new("Kobe")
    };
    let formatted = formatter.format(None, "email", &sample.scope()).expect("content");
    (formatted.content, formatted.personal)
}

fn notifybc(text: &str) -> Option<TemplateText> {
    Some(TemplateText { engine: TemplateEngine::Notifybc, text: text.to_owned() })
}

#[test]
fn s7_3_all_parts_of_a_mail_are_merged_for_each_recipient() {
    let fields = [
        (MailField::From, "News <no_reply@invalid.local>"),
        (MailField::ReturnPath, "bn-{subscription_id}-{unsubscription_code}@in.example"),
        (MailField::ListUnsubscribe, "<{unsubscription_url}>"),
    ];
    let parts = TemplateParts {
        subject: Some("{title}\r\nBcc: x@y.example".to_owned()),
        text: notifybc("Dear {name}: {title} {{ n }} {% if %} {missing}"),
        html: notifybc("<p>{subscription::name} {notification::n}</p>"),
        mail: fields.map(|(field, text)| (field, text.to_owned())).into(),
        ..TemplateParts::default()
    };
    let (content, personal) = merged(parts, json!({"id": "64f0", "code": "123", "data": {"name": "<Ada>"}}));
    assert!(personal);
    assert_eq!(content.subject.as_deref(), Some("Smoke {name} Bcc: x@y.example"));
    assert_eq!(content.text.as_deref(), Some("Dear <Ada>: Smoke {name} {{ n }} {% if %} {missing}"));
    assert_eq!(content.html.as_deref(), Some("<p><Ada> 3</p>"));
    let link = "<http://n.example:3000/api/subscriptions/64f0/unsubscribe?unsubscriptionCode=123>";
    assert_eq!(content.mail_field(MailField::From), Some("News <no_reply@invalid.local>"));
    assert_eq!(content.mail_field(MailField::ReturnPath), Some("bn-64f0-123@in.example"));
    assert_eq!(content.mail_field(MailField::ListUnsubscribe), Some(link));
    assert_eq!(content.mail_field(MailField::ListId), None);
}

#[test]
fn s7_4_html_alone_has_no_text() {
    let parts = TemplateParts { html: notifybc("<p>{title}</p>"), ..TemplateParts::default() };
    let (content, _) = merged(parts, json!({"id": "64f0"}));
    assert_eq!((content.text, content.html.as_deref()), (None, Some("<p>Smoke {name}</p>")));
}

#[test]
fn s7_6_json_is_merged_in_its_texts() {
    let json = json!({"MessageBody": "{title} \"{name}\"", "Reference": "{subscription_id}", "n": [1, true]});
    let parts = TemplateParts { json: notifybc(&json.to_string()), ..TemplateParts::default() };
    let (content, _) = merged(parts, json!({"id": "64f0", "data": {"name": "a\"b\\c\n"}}));
    let made: serde_json::Value = serde_json::from_str(&content.json.expect("JSON")).expect("JSON");
    let expected = json!({"MessageBody": "Smoke {name} \"a\"b\\c\n\"", "Reference": "64f0", "n": [1, true]});
    assert_eq!(made, expected);
}

#[test]
fn a_text_without_tokens_of_the_subscription_is_shared() {
    let parts = TemplateParts { text: notifybc("{notification::title} {http_host}"), ..TemplateParts::default() };
    let (content, personal) = merged(parts, json!({"id": "64f0"}));
    assert_eq!((content.text.as_deref(), personal), (Some("Smoke {name} http://n.example:3000"), false));
}

#[test]
fn json_must_be_json() {
    let parts = TemplateParts { json: notifybc("{\"a\": {title}}"), ..TemplateParts::default() };
    let templates =
        ContentTemplates { engine: TemplateEngine::Notifybc, templates: BTreeMap::from([(String::new(), parts)]) };
    let problems = Formatter::compile("notifications.n", &templates, &KnownVariables::default()).expect_err("no JSON");
    assert_eq!(problems[0].path, "notifications.n.content.templates.base.json");
}
