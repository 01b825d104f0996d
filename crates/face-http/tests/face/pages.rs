//! Hosted pages: the preference page, the actions of the unsubscribe page, and unsubscription in bulk.

use std::time::Duration;

use reqwest::{Client, Response, redirect::Policy};
use serde_json::{Value as Json, json};
use tocsin_delivery::{PreferencesLink, Sealed, TokenSigner};
use tocsin_face_http::{HttpOptions, RateLimit};
use tocsin_model::{
    id::{SubscriberId, SubscriptionId},
    time::Timestamp,
};
use tocsin_store::journal::JournalOptions;

use crate::platform::Platform;

const JSON: &str = "application/json";

const RESCUE: &str = r##"
application: rescue
description: Alerts & news
events:
  quake: {fields: {place: string, magnitude: number}}
subscriptions:
  strong: {fields: {magnitude: number}}
  weekly: {fields: {}}
notifications:
  shaken:
    description: Quakes near you
    fields: {place: string}
    digest: {window: hourly}
    content: {templates: {base: {text: 'Quakes in {{ place }}'}}}
  tsunami:
    critical: true
    fields: {place: string}
    content: {templates: {base: {text: '{{ place }}: leave the coast. {{ preferences_link }}'}}}
rules:
  near: {on: quake, subscription: strong, when: event.magnitude >= sub.magnitude, notify: shaken}
  wave: {on: quake, subscription: strong, when: event.magnitude >= 8, notify: tsunami}
channels:
  mail: {protocol: file, options: {path: mail.ndjson}}
  sms: {protocol: file, options: {path: sms.ndjson}}
pages:
  name: Mountain Rescue
  accent: "#0a7d5a"
  imprint: https://rescue.example.org/imprint
  notifications:
    shaken: {title: {en: Earthquakes, de: Erdbeben}}
  subscriptions:
    strong: {title: Strong quakes}
"##;

/// A platform with a subscriber, her subscriptions, and her links.
struct Pages {
    platform: Platform,
    browser: Client,
    /// Path of her preference page.
    page: String,
}

impl Pages {
    async fn start() -> Pages {
        let platform = Platform::start().await;
        let (status, body) = platform.put("/v1/applications/rescue", "application/yaml", RESCUE).await;
        assert_eq!(status, 201, "{body}");
        let ann = r#"{"id": "ann", "locale": "en-GB", "devices": {"home": {"channel": "mail", "address": "ann@example.org"},
            "phone": {"channel": "sms", "address": "+43123456789"}}}"#;
        let (status, body) = platform.post("/v1/subscribers", JSON, ann).await;
        assert_eq!(status, 201, "{body}");
        for (class, key, values) in
            [("strong", "a", r#"{"magnitude": 5}"#), ("strong", "b", r#"{"magnitude": 7}"#), ("weekly", "c", "{}")]
        {
            let subscription = format!(
                r#"{{"application": "rescue", "class": "{class}", "subscriber": "ann", "key": "{key}", "values": {values}}}"#
            );
            let (status, body) = platform.post("/v1/subscriptions", JSON, &subscription).await;
            assert_eq!(status, 201, "{body}");
        }
        let browser = Client::builder().redirect(Policy::none()).build().expect("a client");
        let mut pages = Pages { platform, browser, page: String::new() };
        pages.page = pages.preferences_of("ann").await;
        pages
    }

    fn signer(&self) -> TokenSigner {
        TokenSigner::new(&self.platform.secret)
    }

    async fn preferences_of(&self, id: &str) -> String {
        let id: SubscriberId = id.parse().expect("an id");
        let found = self.platform.records.subscriber(&id).await.expect("read").expect("a subscriber");
        let link = PreferencesLink::new(found.number, now());
        format!("/p/{}", self.signer().pages().preferences(&link))
    }

    fn unsubscribe_link(&self, number: u64) -> String {
        format!("/unsubscribe/{}", self.signer().token(SubscriptionId(number)))
    }

    async fn send(&self, method: &str, path: &str, fields: &[(&str, &str)], language: &str) -> Response {
        let method = method.parse().expect("a method");
        let request = self.browser.request(method, format!("{}{path}", self.platform.address));
        let body = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish();
        let request = request.header("content-type", "application/x-www-form-urlencoded").body(body);
        request.header("accept-language", language).send().await.expect("an answer")
    }

    /// A page, and its status.
    async fn get(&self, path: &str) -> (u16, String) {
        text(self.send("GET", path, &[], "en").await).await
    }

    /// Submits a form with the token of the page, which must redirect; returns the path of the redirect.
    async fn submit(&self, path: &str, fields: &[(&str, &str)]) -> String {
        let (status, page) = self.get(path).await;
        assert_eq!(status, 200, "{page}");
        let token = field(&page, "form");
        let mut all = vec![("form", token.as_str())];
        all.extend(fields);
        let response = self.send("POST", path.split('?').next().expect("a path"), &all, "en").await;
        let status = response.status().as_u16();
        let location = response.headers().get("location").map(|found| found.to_str().expect("text").to_owned());
        let page = response.text().await.expect("text");
        assert_eq!(status, 303, "{page}");
        location.expect("a location")
    }

    async fn subscriber(&self) -> Json {
        self.platform.get("/v1/subscribers/ann").await.1
    }

    async fn enabled(&self) -> Vec<bool> {
        let mut enabled = Vec::new();
        for number in 1..=3 {
            let (_, body) = self.platform.get(&format!("/v1/subscriptions/s-{number}")).await;
            enabled.push(body["enabled"] == Json::Bool(true));
        }
        enabled
    }

    async fn stop(self) {
        drop(self.browser);
        self.platform.stop().await;
    }
}

fn now() -> Timestamp {
    Timestamp::from(std::time::SystemTime::now())
}

async fn text(response: Response) -> (u16, String) {
    (response.status().as_u16(), response.text().await.expect("text"))
}

/// The value of the first hidden field of a name.
fn field(page: &str, name: &str) -> String {
    let start = format!("name=\"{name}\" value=\"");
    let rest = &page[page.find(&start).unwrap_or_else(|| panic!("no {name}: {page}")) + start.len()..];
    rest[..rest.find('"').expect("an end")].replace("&#x2f;", "/")
}

/// The fields of the form as a browser would send them, without changes.
const UNCHANGED: [(&str, &str); 18] = [
    ("action", "save"),
    ("locale", "en-GB"),
    ("time_zone", ""),
    ("type", "rescue/shaken"),
    ("on", "rescue/shaken"),
    ("has_channel", "rescue/shaken/mail"),
    ("channel", "rescue/shaken/mail"),
    ("has_channel", "rescue/shaken/sms"),
    ("channel", "rescue/shaken/sms"),
    ("has_digest", "rescue/shaken"),
    ("subscription", "s-1"),
    ("subscribed", "s-1"),
    ("subscription", "s-2"),
    ("subscribed", "s-2"),
    ("subscription", "s-3"),
    ("subscribed", "s-3"),
    ("from", ""),
    ("to", ""),
];

async fn save(pages: &Pages, changes: &[(&str, &str)], without: &[(&str, &str)]) -> String {
    let (_, page) = pages.get(&pages.page).await;
    let revision = field(&page, "revision");
    let replaced = |name: &str| changes.iter().any(|(known, _)| *known == name);
    let mut fields: Vec<(&str, &str)> = vec![("revision", &revision)];
    fields.extend(UNCHANGED.iter().filter(|pair| !without.contains(pair) && !replaced(pair.0)));
    fields.extend(changes);
    pages.submit(&pages.page, &fields).await
}

#[tokio::test]
async fn the_preference_page_shows_what_a_subscriber_may_choose() {
    let pages = Pages::start().await;
    let response = pages.send("GET", &pages.page, &[], "de-AT, en;q=0.5").await;
    let headers = response.headers().clone();
    let (status, page) = text(response).await;
    assert_eq!(status, 200, "{page}");
    for shown in [
        "<html lang=\"de\">",
        "Mountain Rescue",
        "Alerts &amp; news",
        "Erdbeben",
        "Quakes near you",
        "Strong quakes",
        "magnitude: 5",
        "Kritisch: wird immer gesendet",
        "a…@example.org",
        "+43…89",
        "value=\"rescue&#x2f;shaken&#x2f;sms\" checked",
        "name=\"digest\"",
    ] {
        assert!(page.contains(shown), "{shown}: {page}");
    }
    for hidden in ["ann@example.org", "+43123456789", "<script", "style="] {
        assert!(!page.contains(hidden), "{hidden}: {page}");
    }
    for (name, value) in [
        ("referrer-policy", "no-referrer"),
        ("cache-control", "no-store"),
        ("x-robots-tag", "noindex, nofollow, noarchive"),
        ("content-language", "de"),
    ] {
        assert_eq!(headers[name], value, "{name}");
    }
    assert!(
        headers["content-security-policy"]
            .to_str()
            .expect("text")
            .starts_with("default-src 'none'; style-src 'sha256-")
    );
    assert!(!headers.contains_key("set-cookie"));
    pages.stop().await;
}

#[tokio::test]
async fn the_form_changes_what_it_contains() {
    let pages = Pages::start().await;
    let before = pages.subscriber().await;
    let location = save(&pages, &[], &[]).await;
    assert_eq!(location, format!("{}?done=save", pages.page));
    assert!(pages.get(&location).await.1.contains("Your settings were saved."));
    assert_eq!(pages.subscriber().await["preferences"], before["preferences"], "nothing differs");
    let changes = [
        ("locale", "fr"),
        ("time_zone", "Europe/Vienna"),
        ("from", "22:00"),
        ("to", "07:00"),
        ("days", "mo-fr"),
        ("digest", "rescue/shaken"),
    ];
    let without = [("on", "rescue/shaken"), ("channel", "rescue/shaken/sms"), ("subscribed", "s-2")];
    save(&pages, &changes, &without).await;
    let after = pages.subscriber().await;
    assert_eq!((&after["locale"], &after["time_zone"]), (&json!("fr"), &json!("Europe/Vienna")));
    let expected = json!({
        "quiet_hours": ["22:00-07:00 mo-fr"],
        "notifications": {"rescue/shaken": {"enabled": false, "channels": {"sms": false}, "digest": "daily 08:00"}},
    });
    assert_eq!(after["preferences"], expected);
    assert_eq!(pages.enabled().await, [true, false, true]);
    save(&pages, &[("locale", "")], &[]).await;
    let after = pages.subscriber().await;
    assert_eq!((&after["locale"], &after["preferences"]), (&Json::Null, &json!({})));
    assert_eq!(pages.enabled().await, [true, true, true]);
    pages.stop().await;
}

#[tokio::test]
async fn bad_input_is_shown_at_its_field_and_changes_nothing() {
    let pages = Pages::start().await;
    let (_, page) = pages.get(&pages.page).await;
    let (form, revision) = (field(&page, "form"), field(&page, "revision"));
    let before = pages.subscriber().await;
    for (changes, shown) in [
        (vec![("time_zone", "Mars/Olympus")], "There is no such time zone"),
        (vec![("locale", "no language")], "This is not a language"),
        (vec![("from", "22:00"), ("to", ""), ("days", "")], "Give both times"),
    ] {
        let mut fields = vec![("form", form.as_str()), ("revision", &revision)];
        let replaced = |name: &str| changes.iter().any(|(known, _)| *known == name);
        fields.extend(UNCHANGED.iter().filter(|pair| !replaced(pair.0) && pair.1 != "s-2"));
        fields.extend(&changes);
        let (status, page) = text(pages.send("POST", &pages.page, &fields, "en").await).await;
        assert_eq!(status, 422, "{page}");
        assert!(page.contains(shown) && page.contains("aria-invalid=\"true\""), "{shown}: {page}");
        let entered = changes[0].1.replace('/', "&#x2f;");
        assert!(page.contains(&format!("value=\"{entered}\"")), "{entered}: {page}");
    }
    let fields = [("form", form.as_str()), ("revision", "99"), ("action", "save")];
    let (status, page) = text(pages.send("POST", &pages.page, &fields, "en").await).await;
    assert!(status == 409 && page.contains("changed elsewhere"), "{status}: {page}");
    assert_eq!(pages.subscriber().await, before);
    pages.stop().await;
}

#[tokio::test]
async fn actions_of_the_preference_page_are_applied_once() {
    let pages = Pages::start().await;
    for action in ["pause", "pause"] {
        let location = pages.submit(&pages.page, &[("action", action)]).await;
        assert!(pages.get(&location).await.1.contains("paused for a week"));
    }
    let paused: Timestamp =
        serde_json::from_value(pages.subscriber().await["preferences"]["paused_until"].clone()).expect("a time");
    let left = paused.since(now());
    assert!(left > Duration::from_secs(6 * 86_400) && left <= Duration::from_secs(7 * 86_400), "{left:?}");
    assert!(pages.get(&pages.page).await.1.contains("Paused until"));
    pages.submit(&pages.page, &[("action", "resume")]).await;
    pages.submit(&pages.page, &[("action", "only_critical")]).await;
    assert_eq!(pages.subscriber().await["preferences"], json!({"only_critical": true}));
    pages.submit(&pages.page, &[("action", "all")]).await;
    assert_eq!(pages.subscriber().await["preferences"], json!({}));
    for _ in 0..2 {
        pages.submit(&pages.page, &[("action", "remove_device"), ("device", "phone")]).await;
    }
    let devices = pages.subscriber().await["devices"].clone();
    assert_eq!(devices.as_object().expect("devices").keys().collect::<Vec<_>>(), ["home"]);
    pages.stop().await;
}

#[tokio::test]
async fn links_and_forms_that_are_not_ours_change_nothing() {
    let pages = Pages::start().await;
    let before = pages.subscriber().await;
    let link = pages.page.clone();
    // As scanners and previews do.
    for method in ["GET", "HEAD", "OPTIONS", "GET"] {
        for path in [&link, &pages.unsubscribe_link(1)] {
            pages.send(method, path, &[("action", "pause")], "en").await;
        }
    }
    let signer = pages.signer();
    let own = signer.pages().verify_preferences(&link[3..]).expect("our link");
    let expired = PreferencesLink { expires_at: Timestamp::from_millis(1_000), ..own };
    let foreign = TokenSigner::new(&[1; 32]).pages().preferences(&own);
    for wrong in [
        format!("/p/{}", signer.pages().preferences(&expired)),
        format!("/p/{foreign}"),
        link[..link.len() - 1].to_owned(),
        format!("/p/{}", &pages.unsubscribe_link(1)["/unsubscribe/".len()..]),
    ] {
        for method in ["GET", "POST"] {
            let (status, page) = text(pages.send(method, &wrong, &[("action", "pause")], "fr").await).await;
            assert!(status == 404 && page.contains("Ce lien n’est pas valide"), "{method} {wrong}: {status}");
        }
    }
    let late = now() + Duration::from_secs(60);
    let page = &link[3..];
    let forged = [
        String::new(),
        "form".to_owned(),
        signer.pages().seal(Sealed::Form, page, "form", Timestamp::from_millis(1_000)),
        signer.pages().seal(Sealed::Form, "another page", "form", late),
        signer.pages().seal(Sealed::Undo, page, "form", late),
        TokenSigner::new(&[1; 32]).pages().seal(Sealed::Form, page, "form", late),
    ];
    for form in &forged {
        for action in ["pause", "save", "remove_device"] {
            let fields = [("form", form.as_str()), ("action", action), ("device", "home")];
            let (status, page) = text(pages.send("POST", &link, &fields, "en").await).await;
            assert!(status == 403 && page.contains("open for too long"), "{form} {action}: {status}");
        }
        let fields = [("form", form.as_str()), ("action", "application")];
        let path = pages.unsubscribe_link(1);
        let (status, _) = text(pages.send("POST", &path, &fields, "en").await).await;
        assert_eq!(status, 403, "{form}");
    }
    assert_eq!(pages.subscriber().await, before);
    assert_eq!(pages.enabled().await, [true, true, true]);
    pages.stop().await;
}

#[tokio::test]
async fn the_link_of_a_removed_subscriber_stays_dead() {
    let pages = Pages::start().await;
    let removed = pages.platform.request("DELETE", "/v1/subscribers/ann").send().await.expect("an answer");
    assert_eq!(removed.status().as_u16(), 204);
    let (status, body) = pages.platform.post("/v1/subscribers", JSON, r#"{"id": "ann"}"#).await;
    assert_eq!(status, 201, "{body}");
    assert_eq!(pages.get(&pages.page).await.0, 404);
    assert_eq!(text(pages.send("POST", &pages.page, &[("action", "pause")], "en").await).await.0, 404);
    let own = pages.preferences_of("ann").await;
    assert_eq!(pages.get(&own).await.0, 200);
    pages.stop().await;
}

#[tokio::test]
async fn changes_through_one_link_are_rate_limited() {
    let pages = Pages::start().await;
    let mut limited = 0;
    for _ in 0..60 {
        let response = pages.send("POST", &pages.page, &[("action", "pause")], "en").await;
        if response.status().as_u16() == 429 {
            assert!(response.headers().contains_key("retry-after"));
            assert!(response.text().await.expect("text").contains("Too many changes"));
            limited += 1;
        }
    }
    assert!(limited > 0, "60 changes at once are too many");
    assert_eq!(pages.get(&pages.page).await.0, 200, "reading is not limited by them");
    pages.stop().await;
}

#[tokio::test]
async fn the_errors_of_a_page_are_pages() {
    let options = HttpOptions { address_rate: RateLimit::new(1, 3), ..HttpOptions::default() };
    let platform = Platform::with(options, JournalOptions::default()).await;
    let browser = Client::builder().redirect(Policy::none()).build().expect("a client");
    for path in ["/p/x", "/unsubscribe/x", "/confirm/x"] {
        let url = format!("{}{path}", platform.address);
        let mut refused = None;
        for _ in 0..5 {
            let response = browser.get(&url).header("accept-language", "de").send().await.expect("an answer");
            if response.status().as_u16() == 429 {
                refused = Some(response);
                break;
            }
        }
        let response = refused.unwrap_or_else(|| panic!("{path}: five requests are more than one a second"));
        assert!(response.headers().contains_key("retry-after") && response.headers().contains_key("ratelimit"));
        for (name, value) in [
            ("content-type", "text/html; charset=utf-8"),
            ("cache-control", "no-store"),
            ("referrer-policy", "no-referrer"),
            ("x-robots-tag", "noindex, nofollow, noarchive"),
            ("content-language", "de"),
        ] {
            assert_eq!(response.headers()[name], value, "{path}");
        }
        assert!(response.text().await.expect("text").contains("<html lang=\"de\">"), "{path}");
    }
    drop(browser);
    platform.stop().await;

    // A form beyond the limit of its size.
    let pages = Pages::start().await;
    let large = "x".repeat(300 * 1024);
    for path in [&pages.page, &pages.unsubscribe_link(1)] {
        let response = pages.send("POST", path, &[("action", &large)], "fr").await;
        assert_eq!(
            (response.status().as_u16(), &response.headers()["content-language"]),
            (413, &"fr".parse().expect("a value"))
        );
    }
    pages.stop().await;
}

#[tokio::test]
async fn one_click_is_followed_by_a_choice_and_an_undo() {
    let pages = Pages::start().await;
    let link = pages.unsubscribe_link(1);
    let one_click = [("List-Unsubscribe", "One-Click")];
    let (status, page) = pages.get(&link).await;
    assert!(status == 200 && page.contains("Strong quakes") && page.contains("Mountain Rescue"), "{page}");
    // A repetition, such as a reload, has the same undo.
    for _ in 0..2 {
        let (status, page) = text(pages.send("POST", &link, &one_click, "en").await).await;
        assert!(status == 200 && page.contains("You are unsubscribed from"), "{page}");
        assert_eq!(pages.enabled().await, [false, true, true]);
        let undo = field(&page, "undo");
        assert!(!undo.is_empty(), "{page}");
    }
    let (_, page) = text(pages.send("POST", &link, &one_click, "en").await).await;
    let undo = field(&page, "undo");
    let location = pages.submit(&link, &[("action", "undo"), ("undo", &undo)]).await;
    assert!(pages.get(&location).await.1.contains("The change was undone."));
    assert_eq!(pages.enabled().await, [true, true, true]);
    // The undo of an earlier unsubscription does not undo a later one.
    text(pages.send("POST", &link, &one_click, "en").await).await;
    pages.submit(&link, &[("action", "undo"), ("undo", &undo)]).await;
    assert_eq!(pages.enabled().await, [false, true, true]);
    pages.stop().await;
}

#[tokio::test]
async fn everything_of_an_application_ends_and_is_undone_together() {
    let pages = Pages::start().await;
    let link = pages.unsubscribe_link(1);
    // An operator had ended this one before: the undo must not enable it.
    let patch = pages.platform.request("PATCH", "/v1/subscriptions/s-3").header("content-type", JSON);
    let (status, body) = crate::platform::answer(patch.body(r#"{"enabled": false}"#)).await;
    assert_eq!(status, 200, "{body}");
    let location = pages.submit(&link, &[("action", "application")]).await;
    assert_eq!(pages.enabled().await, [false, false, false]);
    let (_, page) = pages.get(&location).await;
    assert!(page.contains("All your subscriptions at Mountain Rescue have ended."), "{page}");
    let undo = field(&page, "undo");
    // The undo of another link is refused.
    pages.submit(&pages.unsubscribe_link(2), &[("action", "undo"), ("undo", &undo)]).await;
    assert_eq!(pages.enabled().await, [false, false, false]);
    pages.submit(&location, &[("action", "undo"), ("undo", &undo)]).await;
    assert_eq!(pages.enabled().await, [true, true, false]);
    pages.stop().await;
}

#[tokio::test]
async fn a_digest_or_a_pause_replaces_the_unsubscription() {
    let pages = Pages::start().await;
    let link = pages.unsubscribe_link(1);
    for (action, expected) in [
        ("digest", json!({"notifications": {"rescue/shaken": {"digest": "daily 08:00"}}})),
        ("only_critical", json!({"only_critical": true})),
    ] {
        let location = pages.submit(&link, &[("action", action)]).await;
        assert_eq!(pages.subscriber().await["preferences"], expected);
        let (_, page) = pages.get(&location).await;
        pages.submit(&location, &[("action", "undo"), ("undo", &field(&page, "undo"))]).await;
        assert_eq!(pages.subscriber().await["preferences"], json!({}), "{action} is undone");
    }
    for action in ["digest", "pause"] {
        let (_, page) = text(pages.send("POST", &link, &[("List-Unsubscribe", "One-Click")], "en").await).await;
        assert_eq!(pages.enabled().await, [false, true, true]);
        pages.submit(&link, &[("action", action), ("undo", &field(&page, "undo"))]).await;
        assert_eq!(pages.enabled().await, [true, true, true], "{action} keeps the subscription");
    }
    let preferences = pages.subscriber().await["preferences"].clone();
    assert!(preferences["paused_until"].is_string() && preferences["notifications"].is_object(), "{preferences}");
    // A class without digests offers none.
    assert!(!pages.get(&pages.unsubscribe_link(3)).await.1.contains("One summary a day"));
    assert!(pages.get(&link).await.1.contains("One summary a day"));
    pages.stop().await;
}

#[tokio::test]
async fn many_addresses_are_unsubscribed_with_a_result_for_each() {
    let pages = Pages::start().await;
    let body = json!({"unsubscriptions": [
        {"address": "ANN@example.org", "application": "rescue"},
        {"address": "bob@example.org"},
        {"subscriber": "ann", "subscription": "s-1"},
        {"subscription": "s-2"},
        {"subscriber": "no/id"},
    ]});
    let (status, answer) = pages.platform.post("/v1/unsubscriptions", JSON, &body.to_string()).await;
    assert_eq!(status, 200, "{answer}");
    let items = answer["items"].as_array().expect("items").clone();
    assert_eq!(items[0]["subscriptions"], json!(["s-1", "s-2", "s-3"]), "{answer}");
    assert_eq!((&items[1]["subscribers"], &items[1]["subscriptions"]), (&json!(0), &json!([])));
    assert_eq!(items[3]["subscriptions"], json!([]), "it has ended already");
    assert!(items[2]["problems"].is_array() && items[4]["problems"].is_array(), "{answer}");
    assert_eq!(pages.enabled().await, [false, false, false]);
    let undo = json!({"unsubscriptions": [{"subscription": "s-1", "at": items[0]["at"]}, {"subscriber": "ann"}, {}]});
    let (status, answer) = pages.platform.post("/v1/unsubscriptions/undo", JSON, &undo.to_string()).await;
    assert_eq!(status, 200, "{answer}");
    assert_eq!((&answer["items"][0], &answer["items"][1]), (&json!({"restored": 1}), &json!({"restored": 2})));
    assert!(answer["items"][2]["problems"].is_array(), "{answer}");
    assert_eq!(pages.enabled().await, [true, true, true]);
    let (_, limited) = pages.platform.make_key(&["subscribers:read"]).await;
    let request = pages.platform.client.post(format!("{}/v1/unsubscriptions", pages.platform.address));
    let (status, _) =
        crate::platform::answer(request.bearer_auth(limited).header("content-type", JSON).body("{}")).await;
    assert_eq!(status, 403);
    pages.stop().await;
}
