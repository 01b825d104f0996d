//! Tests of rendering: every template in every language, hostile names, headers.

use axum::{
    body::to_bytes,
    http::{HeaderMap, StatusCode, header},
};
use minijinja::{Value, context};
use tocsin_model::pages::Branding;

use super::{
    form::Form,
    hosted::HostedPages,
    layout::Page,
    preference_form::{self, Entered, Notice},
};

/// A name that would end a text, an attribute, a style or a comment.
const HOSTILE: &str = "<script>alert(1)</script>\"'--></style>{{ 7 * 7 }}";

fn page(language: &str, branding: &Branding) -> Page {
    let mut headers = HeaderMap::new();
    headers.insert(header::ACCEPT_LANGUAGE, language.parse().expect("a value"));
    Page::with(&HostedPages::default(), &headers, branding)
}

async fn html(page: &Page, template: &str, variables: Value) -> String {
    let response = page.response(StatusCode::OK, template, variables);
    assert_eq!(response.status(), StatusCode::OK, "{template} is rendered");
    let bytes = to_bytes(response.into_body(), 1 << 20).await.expect("a body");
    String::from_utf8(bytes.to_vec()).expect("text")
}

fn view(name: &str) -> tocsin_service::preference_page::PreferenceView {
    use tocsin_model::subscriber::DeviceState;
    use tocsin_service::preference_page::*;
    let text = |text: &str| tocsin_model::pages::LocalizedText([(String::new(), text.to_owned())].into());
    let texts = tocsin_model::pages::ClassTexts { title: text(name), description: text(name) };
    let kind = |class: &str, critical, digest| TypeView {
        class: class.parse().expect("a name"),
        texts: texts.clone(),
        title: class.to_owned(),
        description: Some(name.to_owned()),
        critical,
        enabled: true,
        channels: vec![("mail".parse().expect("a name"), true), ("sms".parse().expect("a name"), false)],
        digest,
    };
    PreferenceView {
        revision: 7,
        locale: Some(name.to_owned()),
        time_zone: Some(name.to_owned()),
        quiet_hours: ["22:00-07:00", "00:00-24:00 sa,su", "12:00-13:00 mo,we"]
            .map(|text| text.parse().expect("hours"))
            .into(),
        only_critical: false,
        paused_until: Some("2026-12-06T10:00:00Z".parse().expect("a time")),
        applications: vec![ApplicationView {
            name: "quakes".parse().expect("a name"),
            title: name.to_owned(),
            description: Some(name.to_owned()),
            types: vec![kind("shaken", false, Some(true)), kind("tsunami", true, None)],
            subscriptions: vec![SubscriptionView {
                id: tocsin_model::id::SubscriptionId(1),
                texts: texts.clone(),
                title: name.to_owned(),
                values: name.to_owned(),
                enabled: true,
            }],
            more: 3,
        }],
        devices: vec![DeviceView {
            name: "home".parse().expect("a name"),
            channel: "email".parse().expect("a name"),
            address: name.to_owned(),
            state: DeviceState::Bounced,
        }],
    }
}

async fn preferences(page: &Page, entered: Option<&Entered>, notice: Notice) -> String {
    let pages = HostedPages::default();
    let variables = preference_form::variables(page, &pages, &view(HOSTILE), entered, &notice, "form-token");
    html(page, "preferences.html", variables).await
}

#[tokio::test]
async fn names_of_others_are_text_on_every_page_in_every_language() {
    let branding = Branding { name: Some(HOSTILE.into()), footer: Some(HOSTILE.into()), ..Branding::default() };
    for language in ["en", "de", "fr"] {
        let page = page(language, &branding);
        let mut pages = Vec::new();
        for notice in [Notice::None, Notice::Done("save".into()), Notice::Expired, Notice::Changed] {
            pages.push(preferences(&page, None, notice).await);
        }
        let form = format!("revision=7&locale={HOSTILE}&time_zone={HOSTILE}&from={HOSTILE}&to=x&days={HOSTILE}");
        let entered = Entered::of(&Form::parse(form.as_bytes()));
        let invalid = ["locale", "time_zone", "quiet.0"].map(str::to_owned).into();
        pages.push(preferences(&page, Some(&entered), Notice::Invalid(invalid)).await);
        for (active, done, undo) in [
            (true, None, None),
            (false, Some("this"), Some("undo-token")),
            (false, Some("application"), Some("undo-token")),
            (true, Some("digest"), Some("undo-token")),
            (true, Some("pause"), None),
            (true, Some("only_critical"), None),
            (true, Some("undo"), None),
        ] {
            let variables = context! {
                title => HOSTILE, description => HOSTILE, application => HOSTILE, active, digest => true,
                only_critical => false, paused_until => None::<String>, done, undo, expired => done.is_none(), form => "form-token",
            };
            pages.push(html(&page, "unsubscribe.html", variables).await);
        }
        pages.push(html(&page, "message.html", context! { title => HOSTILE, message => HOSTILE }).await);
        for found in pages {
            assert!(found.starts_with(&format!("<!doctype html>\n<html lang=\"{language}\">")), "{found}");
            assert!(found.contains("&lt;script&gt;"), "{found}");
            assert!(!found.contains("<script") && !found.contains("alert(1)</script"), "{found}");
            assert!(!found.contains("49"), "a name is no template: {found}");
            // Each style sheet ends once.
            assert_eq!(found.matches("</style>").count(), 1, "{found}");
            assert!(!found.contains("style=") && !found.contains(" onclick"), "{found}");
        }
    }
}

#[tokio::test]
async fn a_refused_form_loses_nothing() {
    let page = page("de", &Branding::default());
    let form = "revision=7&locale=fr&time_zone=Mars%2FOlympus&from=22%3A00&to=&days=mo-fr&type=quakes%2Fshaken\
                &has_channel=quakes%2Fshaken%2Fmail&has_channel=quakes%2Fshaken%2Fsms&channel=quakes%2Fshaken%2Fsms\
                &has_digest=quakes%2Fshaken&subscription=s-1";
    let entered = Entered::of(&Form::parse(form.as_bytes()));
    let invalid = entered.change().expect_err("an end is missing");
    assert_eq!(invalid.iter().collect::<Vec<_>>(), ["quiet.0"]);
    let html = preferences(&page, Some(&entered), Notice::Invalid(invalid)).await;
    for kept in [
        "value=\"Mars&#x2f;Olympus\"",
        "<option value=\"fr\" lang=\"fr\" selected>",
        "name=\"from\" value=\"22:00\" aria-invalid=\"true\" aria-describedby=\"quiet-error\"",
        "<option value=\"mo-fr\" selected>",
        "name=\"channel\" value=\"quakes&#x2f;shaken&#x2f;sms\" checked",
        "name=\"channel\" value=\"quakes&#x2f;shaken&#x2f;mail\">",
        "name=\"on\" value=\"quakes&#x2f;shaken\">",
        "name=\"digest\" value=\"quakes&#x2f;shaken\">",
        "name=\"subscribed\" value=\"s-1\">",
        "id=\"quiet-error\"",
    ] {
        assert!(html.contains(kept), "{kept}: {html}");
    }
}

#[test]
fn a_form_is_read_by_its_boxes() {
    let form = "revision=9&locale=de&time_zone=Europe%2FVienna&from=22%3A00&to=07%3A00%3A00&days=&from=00%3A00&to=00%3A00\
                &days=sa%2Csu&from=&to=&days=&type=quakes%2Fshaken&on=quakes%2Fshaken&type=quakes%2Fother\
                &has_channel=quakes%2Fshaken%2Fmail&subscription=s-1&subscribed=s-1&subscription=s-2&type=hostile";
    let entered = Entered::of(&Form::parse(form.as_bytes()));
    let change = entered.change().expect("a change");
    assert_eq!((entered.revision, change.locale.as_deref()), (9, Some("de")));
    let quiet: Vec<String> = change.quiet_hours.iter().map(ToString::to_string).collect();
    assert_eq!(quiet, ["22:00-07:00", "00:00-24:00 sa,su"]);
    let types: Vec<_> =
        change.types.iter().map(|kind| (kind.class.as_str(), kind.enabled, kind.channels.len())).collect();
    assert_eq!(types, [("other", false, 0), ("shaken", true, 1)]);
    let subscriptions: Vec<bool> = change.subscriptions.values().copied().collect();
    assert_eq!(subscriptions, [true, false]);
}

#[test]
fn the_policy_permits_one_style_and_one_logo() {
    let logo = Some("https://cdn.example.org/logo.svg".parse().expect("a URL"));
    let page = page("fr-CA", &Branding { logo, ..Branding::default() });
    let response = page.unknown_link();
    assert_eq!(response.status(), StatusCode::NOT_FOUND);
    let headers = response.headers();
    let policy = headers[header::CONTENT_SECURITY_POLICY].to_str().expect("text");
    assert!(policy.starts_with("default-src 'none'; style-src 'sha256-"), "{policy}");
    assert!(
        policy.contains("img-src data: https://cdn.example.org;") && policy.contains("form-action 'self'"),
        "{policy}"
    );
    assert!(!policy.contains("unsafe") && !policy.contains("script-src"), "{policy}");
    for (name, value) in [
        ("referrer-policy", "no-referrer"),
        ("cache-control", "no-store"),
        ("x-robots-tag", "noindex, nofollow, noarchive"),
        ("content-language", "fr"),
        ("vary", "accept-language"),
    ] {
        assert_eq!(headers[name], value);
    }
    assert!(!headers.contains_key("set-cookie"));
}
