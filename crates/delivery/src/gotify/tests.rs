use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use axum::{
    Json, Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response as HttpResponse},
    routing::{get, post},
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tocsin_connect::options::read;
use tocsin_model::delivery_policy::Priority;

use super::{
    classify::{TokenOwner, classify},
    message::body,
    options::GotifyOptions,
};
use crate::{
    channel::{Context, OpenChannel, Outgoing},
    conformance::{Subject, exercise, silent_server},
    http::response::Response,
    testing::{NOW, channel, content_of, context, deliver, message, outgoing, show},
};

/// Token of the application that the server knows.
const TOKEN: &str = "A5K7iMHqkWpUrTb";

/// A server that behaves as the API of Gotify documents it, and keeps the messages.
#[derive(Clone, Default)]
struct Gotify(Arc<Mutex<Vec<Value>>>);

/// An error of the API.
fn error(status: StatusCode, description: &str) -> HttpResponse {
    let name = status.canonical_reason().expect("a known status");
    let body = json!({ "error": name, "errorCode": status.as_u16(), "errorDescription": description });
    (status, Json(body)).into_response()
}

async fn create(State(gotify): State<Gotify>, headers: HeaderMap, body: Bytes) -> HttpResponse {
    if headers.get("x-gotify-key").is_none_or(|token| token != TOKEN) {
        let text = "you need to provide a valid access token or user credentials to access this api";
        return error(StatusCode::UNAUTHORIZED, text);
    }
    let is_json = headers.get("content-type").is_some_and(|kind| kind == "application/json");
    let given: Option<Value> = serde_json::from_slice(&body).ok().filter(|_| is_json);
    let Some(mut message) = given.filter(|given| given["message"].as_str().is_some_and(|text| !text.is_empty())) else {
        return error(StatusCode::BAD_REQUEST, "Field 'message' is required");
    };
    let mut kept = gotify.0.lock();
    message["id"] = (kept.len() + 1).into();
    message["appid"] = 5.into();
    message["date"] = "2018-02-27T19:36:10.5045044+01:00".into();
    kept.push(message.clone());
    Json(message).into_response()
}

impl Gotify {
    /// Starts it below the path `/push`; returns its URL.
    async fn start(&self) -> String {
        let health = || async { Json(json!({ "health": "green", "database": "green" })) };
        let router = Router::new()
            .route("/push/message", post(create))
            .route("/push/health", get(health))
            .fallback(|| async { error(StatusCode::NOT_FOUND, "page not found") })
            .with_state(self.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}/push", listener.local_addr().expect("an address"));
        tokio::spawn(async move { axum::serve(listener, router).await });
        url
    }
}

fn open(url: &str, options: Value, context: &Context) -> Box<dyn OpenChannel> {
    let mut all = json!({ "url": url, "allow_networks": ["127.0.0.1"] });
    all.as_object_mut().expect("an object").extend(options.as_object().expect("an object").clone());
    let name = "push".parse().expect("a name");
    crate::open(&name, &channel("gotify", all, 4), context).unwrap_or_else(|problems| panic!("{problems:?}"))
}

#[tokio::test]
async fn messages_arrive_with_title_priority_and_extras() {
    let gotify = Gotify::default();
    let url = gotify.start().await;
    let open = open(&url, json!({ "markdown": true }), &context());
    let mut sent: Vec<Outgoing> = (0..2).map(|number| outgoing(number, TOKEN)).collect();
    Arc::make_mut(&mut sent[1].message).priority = Priority::Urgent;
    let click = json!({ "client::notification": { "click": { "url": "https://quakes.example.org/7" } } });
    content_of(&mut sent[1]).json = Some(click.to_string());
    content_of(&mut sent[1]).subject = None;
    assert!(deliver(&*open, sent).await.iter().all(|shown| shown.starts_with("delivered message ")));
    let mut kept = gotify.0.lock().clone();
    kept.sort_by_key(|message| message["extras"]["tocsin::message"]["id"].as_str().map(str::to_owned));
    let own = |id: &str| json!({ "id": id, "type": "quake" });
    let markdown = json!({ "contentType": "text/markdown" });
    assert_eq!(kept[0]["title"], "Earthquake near Kobe");
    assert_eq!(kept[0]["message"], "Magnitude 6.1\n.\nStay safe – 神戸\n");
    assert_eq!(kept[0].get("priority"), None, "the application's default applies");
    assert_eq!(kept[0]["extras"], json!({ "client::display": markdown, "tocsin::message": own("n-7-0.test") }));
    assert_eq!((&kept[1]["priority"], kept[1].get("title")), (&json!(10), None));
    assert_eq!(kept[1]["extras"]["client::notification"], click["client::notification"]);
    assert_eq!(kept[1]["extras"]["tocsin::message"], own("n-7-1.test"));
}

#[tokio::test]
async fn a_refused_token_is_of_the_device_or_of_the_channel() {
    let gotify = Gotify::default();
    let url = gotify.start().await;
    let said = "401 you need to provide a valid access token or user credentials to access this api";
    let by_device = open(&url, json!({}), &context());
    assert_eq!(deliver(&*by_device, vec![outgoing(0, "Aother")]).await, [format!("refused Gone {said}")]);
    let not_a_token = ["refused Address the address is not the token of a Gotify application"];
    assert_eq!(deliver(&*by_device, vec![outgoing(0, "a b\r\nx: y")]).await, not_a_token);
    let by_channel = open(&url, json!({ "token": "Aother" }), &context());
    let deferred = format!("deferred Authentication {said}");
    assert_eq!(deliver(&*by_channel, vec![outgoing(0, "any")]).await, [deferred]);
    let good = open(&url, json!({ "token": TOKEN }), &context());
    assert_eq!(deliver(&*good, vec![outgoing(0, "any")]).await, ["delivered message 1"]);
    assert_eq!(good.hold(TOKEN, Priority::Normal), None);
}

#[tokio::test]
async fn the_network_policy_and_the_path_of_the_url_are_checked() {
    let gotify = Gotify::default();
    let url = gotify.start().await;
    let closed = open(&url, json!({ "allow_networks": [] }), &context());
    let shown = deliver(&*closed, vec![outgoing(0, TOKEN)]).await;
    assert!(shown[0].starts_with("refused Address") && shown[0].contains("loopback"), "{shown:?}");
    let elsewhere = open(url.strip_suffix("/push").expect("its path"), json!({}), &context());
    let expected = ["deferred Authentication 404 page not found"];
    assert_eq!(deliver(&*elsewhere, vec![outgoing(0, TOKEN)]).await, expected);
    let probed = elsewhere.probe().await.expect_err("no Gotify there");
    assert!(probed.text.ends_with(" is not a healthy Gotify"), "{}", probed.text);
    let probed = open(&url, json!({}), &context()).probe().await.expect("it is well");
    assert!(probed.ends_with(" is green"), "{probed}");
}

#[test]
fn responses_become_dispositions() {
    use TokenOwner::{Channel, Device};
    let described = |text: &str| json!({ "error": "e", "errorCode": 1, "errorDescription": text }).to_string();
    let cases = [
        (200, json!({ "id": 25, "appid": 5, "message": "m" }).to_string(), Device, "delivered message 25"),
        (200, "<html>Log in".into(), Device, "deferred Answer 200, which is not an answer of Gotify"),
        (200, json!({ "id": "x" }).to_string(), Device, "deferred Answer 200, which is not an answer of Gotify"),
        (400, described("appid not found"), Device, "refused Answer 400 appid not found"),
        (400, "bad".into(), Device, "refused Answer 400 bad"),
        (401, described("no"), Device, "refused Gone 401 no"),
        (401, described("no"), Channel, "deferred Authentication 401 no"),
        (403, described("no"), Device, "refused Gone 403 no"),
        // A proxy has refused the request.
        (403, "x".into(), Device, "deferred Authentication 403, which is not an answer of Gotify"),
        (404, described("page not found"), Device, "deferred Authentication 404 page not found"),
        (413, "too large".into(), Device, "refused Answer 413 too large"),
        (429, "slower".into(), Device, "deferred Answer 429 slower"),
        (500, described("database is locked"), Channel, "deferred Answer 500 "),
        (302, String::new(), Channel, "deferred Authentication 302: redirects are not followed; `url` must be"),
    ];
    let now = NOW.parse().expect("a time");
    for (status, body, owner, expected) in cases {
        let response = Response { status, body: body.clone().into_bytes(), whole: true, ..Response::default() };
        let shown = show(&classify(&response, owner, now, Duration::from_secs(60)).disposition);
        assert!(shown.starts_with(expected), "{status} {body}: {shown}");
        // A repeated credential never gets into a receipt.
        let response = Response { repeated: vec!["appid not found".into()], ..response };
        assert!(!show(&classify(&response, owner, now, Duration::from_secs(60)).disposition).contains("appid not"));
    }
    let cut = Response { status: 200, body: b"{\"id\": 2".to_vec(), cut: true, ..Response::default() };
    let shown = show(&classify(&cut, Device, now, Duration::from_secs(60)).disposition);
    assert!(shown.starts_with("deferred Answer 200: the body decides"), "{shown}");
}

#[test]
fn priorities_and_texts_follow_the_content() {
    let made = |options: Value, change: &dyn Fn(&mut crate::Message)| {
        let options: GotifyOptions = read(options.as_object().expect("an object"), "").unwrap_or_else(|_| panic!());
        let mut message = message(1);
        change(&mut message);
        body(&message, &options).map(|body| serde_json::from_slice::<Value>(&body).expect("JSON"))
    };
    let options = |more: Value| {
        let mut all = json!({ "url": "https://gotify.example.org" });
        all.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        all
    };
    for (priority, expected) in [
        (Priority::Urgent, json!(10)),
        (Priority::High, json!(8)),
        (Priority::Normal, json!(4)),
        (Priority::Low, json!(2)),
    ] {
        let body = made(options(json!({ "priority": 4 })), &|message| message.priority = priority).expect("a body");
        assert_eq!(body["priority"], expected);
    }
    let without_text = |message: &mut crate::Message| Arc::make_mut(&mut message.content).text = Some(" \n".into());
    let body = made(options(json!({})), &without_text).expect("a body");
    assert_eq!((&body["title"], &body["message"]), (&json!("Earthquake near Kobe"), &json!("Earthquake near Kobe")));
    let empty = |message: &mut crate::Message| message.content = Arc::default();
    assert_eq!(made(options(json!({})), &empty).map(drop), Err("the content has no text".into()));
    let not_extras = |message: &mut crate::Message| Arc::make_mut(&mut message.content).json = Some("[1]".into());
    let wrong = made(options(json!({})), &not_extras).expect_err("no object");
    assert!(wrong.starts_with("the JSON is not an object with extras: "), "{wrong}");
    let both = json!({ "a::b": 1, "tocsin::message": "forged" });
    let extras = |message: &mut crate::Message| {
        Arc::make_mut(&mut message.content).json = Some(json!({ "a::b": 2 }).to_string());
    };
    let body = made(options(json!({ "extras": both })), &extras).expect("a body");
    assert_eq!((&body["extras"]["a::b"], &body["extras"]["tocsin::message"]["id"]), (&json!(2), &json!("n-7-1.test")));
}

#[test]
fn options_are_checked() {
    let check = |options: Value| {
        let name = "gotify".parse().expect("a name");
        let problems = crate::check(&name, options.as_object().expect("an object"), "o");
        problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    };
    assert_eq!(check(json!({ "url": "https://a.example/push/", "token": TOKEN, "priority": 10 })), "");
    assert_eq!(check(json!({})), "o.url: the server is missing; such as `https://gotify.example.org`");
    let wrong = check(json!({ "url": "ftp://a.example", "token": "a b", "priority": 11, "tokn": "x" }));
    assert_eq!(
        wrong,
        "o.tokn: `tokn` is not an option here; did you mean `token`?\n\
         o.url: a URL starts with `https://` or `http://`, not with `ftp:`; such as `https://gotify.example.org`\n\
         o.token: this is not the token of an application; copy it from the page `Apps` of Gotify; \
         it has letters, digits, `.`, `-` and `_`\n\
         o.priority: should be from 0 to 10"
    );
    assert!(check(json!({ "url": "https://a.example?token=x" })).contains("o.url: the URL of the server has no query"));
}

struct Conforming {
    gotify: Gotify,
    url: String,
}

#[async_trait]
impl Subject for Conforming {
    async fn open(&self, context: Context) -> Box<dyn OpenChannel> {
        open(&self.url, json!({}), &context)
    }

    async fn open_silent(&self, context: Context) -> Option<Box<dyn OpenChannel>> {
        let url = format!("http://{}", silent_server().await);
        Some(open(&url, json!({ "timeout": "100ms" }), &context))
    }

    fn outgoing(&self, ordinal: u32) -> Outgoing {
        outgoing(ordinal, TOKEN)
    }

    async fn received_ids(&self) -> Vec<String> {
        let id = |message: &Value| message["extras"]["tocsin::message"]["id"].as_str().map(str::to_owned);
        self.gotify.0.lock().iter().filter_map(id).collect()
    }

    fn in_flight_max(&self) -> usize {
        4
    }
}

#[tokio::test]
async fn slow_it_conforms() {
    let gotify = Gotify::default();
    let url = gotify.start().await;
    exercise(&Conforming { gotify, url }).await;
}
