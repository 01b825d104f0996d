use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use axum::{
    Json, Router,
    body::Bytes,
    extract::{Path, State},
    http::{HeaderMap, Method, StatusCode, Uri},
    response::{IntoResponse, Response as HttpResponse},
    routing::{get, post, put},
};
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use tocsin_connect::options::read;
use tocsin_model::{delivery_policy::Priority, receipt::Disposition};

use super::{
    classify::{RoomRefusal, classify},
    message::event_content,
    options::MatrixOptions,
};
use crate::{
    channel::{Context, OpenChannel, Outgoing},
    conformance::{Subject, exercise, silent_server},
    http::response::{Load, Response},
    testing::{NOW, channel, content_of, context, deliver, message, outgoing, show},
};

/// Access token of the account that the homeserver knows.
const TOKEN: &str = "syt_dG9jc2lu_QmfGyqFSkZvTwtYLxAnb_1fUwEz";
/// A room of the account.
const ROOM: &str = "!quakes:example.org";
/// Its alias.
const ALIAS: &str = "#quakes/all:example.org";

/// A homeserver that behaves as version 1.11 of the client-server API documents it.
#[derive(Clone, Default)]
struct Homeserver(Arc<Mutex<Rooms>>);

#[derive(Default)]
struct Rooms {
    /// Rooms that exist.
    existing: BTreeSet<String>,
    /// Rooms that the account is in.
    joined: BTreeSet<String>,
    /// Rooms that have invited the account.
    inviting: BTreeSet<String>,
    aliases: BTreeMap<String, String>,
    /// Event ids by room and transaction id.
    transactions: BTreeMap<(String, String), String>,
    /// Content of the events, with their room, in their order.
    events: Vec<(String, Value)>,
    /// Transaction ids of the events, in their order.
    transaction_ids: Vec<String>,
    /// Method and last part of the path of each request.
    requests: Vec<String>,
    /// Requests that are answered with `M_LIMIT_EXCEEDED`.
    limited: usize,
}

/// An error of the API.
fn error(status: u16, code: &str, text: &str) -> HttpResponse {
    let status = StatusCode::from_u16(status).expect("a status");
    (status, Json(json!({ "errcode": code, "error": text }))).into_response()
}

impl Homeserver {
    /// A homeserver with a room that has the account and an alias.
    fn with_a_room() -> Homeserver {
        let homeserver = Homeserver::default();
        let mut rooms = homeserver.0.lock();
        rooms.existing.insert(ROOM.into());
        rooms.joined.insert(ROOM.into());
        rooms.aliases.insert(ALIAS.into(), ROOM.into());
        drop(rooms);
        homeserver
    }

    /// The error of the checks that precede every request.
    fn refusal(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Option<HttpResponse> {
        let mut rooms = self.0.lock();
        let path = uri.path().strip_prefix("/hs/_matrix/client/v3/").expect("the API");
        rooms.requests.push(format!("{method} {path}"));
        match headers.get("authorization").map(|value| value.to_str().expect("text")) {
            Some(value) if value.strip_prefix("Bearer ") == Some(TOKEN) => {}
            Some(_) => return Some(error(401, "M_UNKNOWN_TOKEN", "Unrecognised access token.")),
            None => return Some(error(401, "M_MISSING_TOKEN", "Missing access token.")),
        }
        rooms.limited = rooms.limited.checked_sub(1)?;
        let text = json!({ "errcode": "M_LIMIT_EXCEEDED", "error": "Too Many Requests", "retry_after_ms": 2000 });
        Some((StatusCode::TOO_MANY_REQUESTS, [("retry-after", "2")], Json(text)).into_response())
    }

    /// Starts it below the path `/hs`; returns its URL.
    async fn start(&self) -> String {
        let path = |rest: &str| format!("/hs/_matrix/client/v3/{rest}");
        let unrecognized = || async { error(404, "M_UNRECOGNIZED", "Unrecognized request") };
        let router = Router::new()
            .route(&path("rooms/{room}/send/{kind}/{transaction}"), put(send))
            .route(&path("directory/room/{alias}"), get(resolve))
            .route(&path("join/{room}"), post(join))
            .route(&path("account/whoami"), get(whoami))
            .fallback(unrecognized)
            .with_state(self.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}/hs/", listener.local_addr().expect("an address"));
        tokio::spawn(async move { axum::serve(listener, router).await });
        url
    }

    /// The requests since the last call: method and path.
    fn requests(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().requests)
    }
}

async fn send(
    State(homeserver): State<Homeserver>,
    Path((room, kind, transaction)): Path<(String, String, String)>,
    (method, uri, headers): (Method, Uri, HeaderMap),
    body: Bytes,
) -> HttpResponse {
    if let Some(refusal) = homeserver.refusal(&method, &uri, &headers) {
        return refusal;
    }
    let mut rooms = homeserver.0.lock();
    if let Some(event_id) = rooms.transactions.get(&(room.clone(), transaction.clone())) {
        return Json(json!({ "event_id": event_id })).into_response();
    }
    if !rooms.existing.contains(&room) {
        return error(404, "M_NOT_FOUND", "Unknown room");
    }
    if !rooms.joined.contains(&room) {
        return error(403, "M_FORBIDDEN", &format!("User @tocsin:example.org not in room {room}"));
    }
    let Ok(Value::Object(content)) = serde_json::from_slice::<Value>(&body) else {
        return error(400, "M_NOT_JSON", "Content not JSON.");
    };
    if kind != "m.room.message" || !content["msgtype"].is_string() || !content["body"].is_string() {
        return error(400, "M_BAD_JSON", "msgtype and body are required");
    }
    if body.len() > 64 * 1024 {
        return error(413, "M_TOO_LARGE", "event too large");
    }
    let event_id = format!("$event{}", rooms.events.len() + 1);
    rooms.events.push((room.clone(), content.into()));
    rooms.transaction_ids.push(transaction.clone());
    rooms.transactions.insert((room, transaction), event_id.clone());
    Json(json!({ "event_id": event_id })).into_response()
}

async fn resolve(
    State(homeserver): State<Homeserver>,
    Path(alias): Path<String>,
    (method, uri, headers): (Method, Uri, HeaderMap),
) -> HttpResponse {
    if let Some(refusal) = homeserver.refusal(&method, &uri, &headers) {
        return refusal;
    }
    match homeserver.0.lock().aliases.get(&alias) {
        Some(room) => Json(json!({ "room_id": room, "servers": ["example.org"] })).into_response(),
        None if !alias.ends_with(":example.org") => error(502, "M_UNKNOWN", "Failed to fetch alias"),
        None => error(404, "M_NOT_FOUND", &format!("Room alias {alias} not found.")),
    }
}

async fn join(
    State(homeserver): State<Homeserver>,
    Path(address): Path<String>,
    (method, uri, headers): (Method, Uri, HeaderMap),
) -> HttpResponse {
    if let Some(refusal) = homeserver.refusal(&method, &uri, &headers) {
        return refusal;
    }
    let mut rooms = homeserver.0.lock();
    let room = rooms.aliases.get(&address).cloned().unwrap_or(address);
    if !rooms.inviting.remove(&room) && !rooms.joined.contains(&room) {
        return error(403, "M_FORBIDDEN", "You are not invited to this room.");
    }
    rooms.joined.insert(room.clone());
    Json(json!({ "room_id": room })).into_response()
}

async fn whoami(
    State(homeserver): State<Homeserver>,
    (method, uri, headers): (Method, Uri, HeaderMap),
) -> HttpResponse {
    let account = json!({ "user_id": "@tocsin:example.org", "device_id": "ABC" });
    homeserver.refusal(&method, &uri, &headers).unwrap_or_else(|| Json(account).into_response())
}

fn all_options(url: &str, options: Value) -> Map<String, Value> {
    let mut all = json!({ "url": url, "access_token": TOKEN, "allow_networks": ["127.0.0.1"] });
    let all = all.as_object_mut().expect("an object");
    all.extend(options.as_object().expect("an object").clone());
    all.clone()
}

fn open(url: &str, options: Value, context: &Context) -> Box<dyn OpenChannel> {
    let name = "rooms".parse().expect("a name");
    let channel = channel("matrix", all_options(url, options).into(), 4);
    crate::open(&name, &channel, context).unwrap_or_else(|problems| panic!("{problems:?}"))
}

#[tokio::test]
async fn a_message_is_an_event_with_text_and_html() {
    let homeserver = Homeserver::with_a_room();
    let url = homeserver.start().await;
    let open = open(&url, json!({}), &context());
    assert_eq!(deliver(&*open, vec![outgoing(0, ROOM)]).await, ["delivered $event1"]);
    let (room, content) = homeserver.0.lock().events.pop().expect("an event");
    let expected = json!({
        "msgtype": "m.text",
        "body": "Magnitude 6.1\n.\nStay safe – 神戸",
        "format": "org.matrix.custom.html",
        "formatted_body": "<p>Magnitude <b>6.1</b></p>",
        "m.mentions": {},
        "tocsin.message": { "id": "n-7-0.test", "type": "quake" },
    });
    assert_eq!((&*room, content), (ROOM, expected));
    let path = "PUT rooms/!quakes:example.org/send/m.room.message/n-7-0.test";
    assert_eq!(homeserver.requests(), [path]);
}

#[tokio::test]
async fn a_retry_is_no_second_event() {
    let homeserver = Homeserver::with_a_room();
    let url = homeserver.start().await;
    let open = open(&url, json!({}), &context());
    for _ in 0..2 {
        assert_eq!(deliver(&*open, vec![outgoing(0, ROOM)]).await, ["delivered $event1"]);
    }
    assert_eq!(homeserver.0.lock().transaction_ids, ["n-7-0.test"]);
    assert_eq!(deliver(&*open, vec![outgoing(1, ROOM)]).await, ["delivered $event2"]);
}

#[tokio::test]
async fn an_alias_is_resolved_once_and_again_after_a_refusal() {
    let homeserver = Homeserver::with_a_room();
    let url = homeserver.start().await;
    let open = open(&url, json!({}), &context());
    let sent = (0..20).map(|number| outgoing(number, ALIAS)).collect();
    assert!(deliver(&*open, sent).await.iter().all(|shown| shown.starts_with("delivered $event")));
    let requests = homeserver.requests();
    let resolved = requests.iter().filter(|request| request.starts_with("GET directory/room/")).count();
    assert_eq!((resolved, requests.len()), (1, 21), "{requests:?}");
    assert!(requests.contains(&"GET directory/room/%23quakes%2Fall:example.org".into()), "{requests:?}");

    // The room is upgraded: the old one takes no messages, and the alias has a new one.
    let after = "!after";
    {
        let mut rooms = homeserver.0.lock();
        rooms.joined = BTreeSet::from([after.into()]);
        rooms.existing.insert(after.into());
        rooms.aliases.insert(ALIAS.into(), after.into());
    }
    for number in 20..22 {
        let shown = deliver(&*open, vec![outgoing(number, ALIAS)]).await;
        assert!(shown[0].starts_with("delivered "), "{shown:?}");
    }
    assert_eq!(homeserver.0.lock().events.last().expect("an event").0, after);
    assert_eq!(homeserver.requests().len(), 4, "refused, resolved, sent; sent");

    homeserver.0.lock().aliases.clear();
    homeserver.0.lock().existing.remove(after);
    let expected = "refused Gone 404 M_NOT_FOUND: Room alias #quakes/all:example.org not found.";
    assert_eq!(deliver(&*open, vec![outgoing(22, ALIAS)]).await, [expected]);
}

#[tokio::test]
async fn a_room_is_joined_only_by_option() {
    let homeserver = Homeserver::with_a_room();
    let url = homeserver.start().await;
    {
        let mut rooms = homeserver.0.lock();
        let room = rooms.joined.pop_first().expect("a room");
        rooms.inviting.insert(room);
    }
    let without = open(&url, json!({}), &context());
    let forbidden = "refused Answer 403 M_FORBIDDEN: User @tocsin:example.org not in room !quakes:example.org";
    assert_eq!(deliver(&*without, vec![outgoing(0, ROOM)]).await, [forbidden]);
    assert_eq!(homeserver.requests().len(), 1);

    // Messages at the same time share the request to join.
    let with = open(&url, json!({ "join": true }), &context());
    let sent = (1..9).map(|number| outgoing(number, ALIAS)).collect();
    let shown = deliver(&*with, sent).await;
    assert!(shown.iter().all(|shown| shown.starts_with("delivered $event")), "{shown:?}");
    let joins = |requests: Vec<String>| requests.iter().filter(|request| request.starts_with("POST join/")).count();
    assert_eq!(joins(homeserver.requests()), 1);

    // Not invited: the request to join is repeated after a pause only.
    homeserver.0.lock().existing.insert("!closed:example.org".into());
    for number in 10..12 {
        let shown = deliver(&*with, vec![outgoing(number, "!closed:example.org")]).await;
        assert_eq!(shown, ["refused Answer 403 M_FORBIDDEN: You are not invited to this room."]);
    }
    assert_eq!(joins(homeserver.requests()), 1);
}

#[tokio::test]
async fn a_limit_and_an_unknown_token_defer_messages() {
    let homeserver = Homeserver::with_a_room();
    let url = homeserver.start().await;
    let limited = open(&url, json!({}), &context());
    homeserver.0.lock().limited = 1;
    let expected = "deferred Answer 429 M_LIMIT_EXCEEDED: Too Many Requests";
    assert_eq!(deliver(&*limited, vec![outgoing(0, ALIAS)]).await, [expected]);
    let other = open(&url, json!({ "access_token": "syt_other" }), &context());
    let expected = "deferred Authentication 401 M_UNKNOWN_TOKEN: Unrecognised access token.";
    for address in [ROOM, ALIAS] {
        assert_eq!(deliver(&*other, vec![outgoing(1, address)]).await, [expected]);
    }
    assert_eq!(other.probe().await.expect_err("no account").text, expected["deferred Authentication ".len()..]);
    let probed = open(&url, json!({}), &context()).probe().await.expect("it is well");
    assert!(probed.ends_with(" knows the account @tocsin:example.org"), "{probed}");
}

#[tokio::test]
async fn an_alias_of_an_unreachable_server_pauses_no_other_room() {
    let homeserver = Homeserver::with_a_room();
    let url = homeserver.start().await;
    let open = open(&url, json!({}), &context());
    let sent = (0..20).map(|number| outgoing(number, "#quakes:unreachable.example")).collect();
    let expected = "deferred Answer 502 M_UNKNOWN: Failed to fetch alias";
    assert!(deliver(&*open, sent).await.iter().all(|shown| shown == expected));
    assert_eq!(open.hold(ROOM, Priority::Normal), None);
    assert_eq!(deliver(&*open, vec![outgoing(20, ROOM)]).await, ["delivered $event1"]);
}

#[tokio::test]
async fn addresses_the_network_policy_and_the_path_are_checked() {
    let homeserver = Homeserver::with_a_room();
    let url = homeserver.start().await;
    let good = open(&url, json!({}), &context());
    let wrong = "refused Address the address is neither a room id (`!...`) nor an alias (`#name:server`)";
    let long = format!("!{}:example.org", "a".repeat(255));
    for address in ["", "!", "#", "#quakes", "#:a", "#a:", "@alice:example.org", "!a b:c", "quakes", &long] {
        assert_eq!(deliver(&*good, vec![outgoing(0, address)]).await, [wrong], "{address:?}");
    }
    assert!(homeserver.requests().is_empty());
    let unknown = "!../../join:example.org";
    assert_eq!(deliver(&*good, vec![outgoing(0, unknown)]).await, ["refused Gone 404 M_NOT_FOUND: Unknown room"]);
    let path = "PUT rooms/!..%2F..%2Fjoin:example.org/send/m.room.message/n-7-0.test";
    assert_eq!(homeserver.requests(), [path]);
    let long = open(&format!("{url}{}", "a".repeat(4_000)), json!({}), &context());
    assert_eq!(deliver(&*long, vec![outgoing(0, ROOM)]).await, ["refused Address the URL is longer than 4096 bytes"]);
    let closed = open(&url, json!({ "allow_networks": [] }), &context());
    let shown = deliver(&*closed, vec![outgoing(0, ROOM)]).await;
    assert!(shown[0].starts_with("refused Address") && shown[0].contains("loopback"), "{shown:?}");
    let elsewhere = open(&url.replace("/hs", "/hs/elsewhere"), json!({}), &context());
    let expected = ["deferred Authentication 404 M_UNRECOGNIZED: Unrecognized request"];
    assert_eq!(deliver(&*elsewhere, vec![outgoing(0, ROOM)]).await, expected);
}

#[test]
fn responses_become_dispositions() {
    let coded = |code: &str| json!({ "errcode": code, "error": "a text" }).to_string();
    let cases = [
        (200, json!({ "event_id": "$abc" }).to_string(), "delivered $abc"),
        (200, json!({ "event_id": "a text" }).to_string(), "delivered a text"),
        (200, json!({ "room_id": "!abc" }).to_string(), "deferred Answer 200, which is not an answer of Matrix"),
        (200, json!({ "event_id": 7 }).to_string(), "deferred Answer 200, which is not an answer of Matrix"),
        (
            200,
            json!({ "event_id": "$".repeat(256) }).to_string(),
            "deferred Answer 200, which is not an answer of Matrix",
        ),
        (200, "<html>Log in".into(), "deferred Answer 200, which is not an answer of Matrix"),
        (429, coded("M_LIMIT_EXCEEDED"), "deferred Answer 429 M_LIMIT_EXCEEDED: a text"),
        (429, "slower".into(), "deferred Answer 429 slower"),
        (403, coded("M_FORBIDDEN"), "refused Answer 403 M_FORBIDDEN: a text"),
        (404, coded("M_NOT_FOUND"), "refused Gone 404 M_NOT_FOUND: a text"),
        // The code is more reliable than the status.
        (400, coded("M_NOT_FOUND"), "refused Gone 400 M_NOT_FOUND: a text"),
        (401, coded("M_UNKNOWN_TOKEN"), "deferred Authentication 401 M_UNKNOWN_TOKEN: a text"),
        (401, coded("M_MISSING_TOKEN"), "deferred Authentication 401 M_MISSING_TOKEN: a text"),
        (401, coded("M_USER_LOCKED"), "deferred Authentication 401 M_USER_LOCKED: a text"),
        (403, coded("M_CONSENT_NOT_GIVEN"), "deferred Authentication 403 M_CONSENT_NOT_GIVEN: a text"),
        (403, coded("M_RESOURCE_LIMIT_EXCEEDED"), "deferred Answer 403 M_RESOURCE_LIMIT_EXCEEDED: a text"),
        (400, coded("M_BAD_JSON"), "refused Answer 400 M_BAD_JSON: a text"),
        (400, coded("M_UNKNOWN"), "refused Answer 400 M_UNKNOWN: a text"),
        (404, coded("M_UNKNOWN"), "refused Answer 404 M_UNKNOWN: a text"),
        (413, coded("M_TOO_LARGE"), "refused Answer 413 M_TOO_LARGE: a text"),
        (404, coded("M_UNRECOGNIZED"), "deferred Authentication 404 M_UNRECOGNIZED: a text"),
        (500, coded("M_UNKNOWN"), "deferred Answer 500 "),
        (502, coded("M_UNKNOWN"), "deferred Answer 502 M_UNKNOWN: a text"),
        // A proxy in front of the homeserver.
        (401, "<html>".into(), "deferred Authentication 401, which is not an answer of Matrix"),
        (403, "<html>".into(), "deferred Authentication 403, which is not an answer of Matrix"),
        (404, "<html>".into(), "deferred Authentication 404, which is not an answer of Matrix"),
        (413, "too large".into(), "refused Answer 413 too large"),
        (502, "<html>".into(), "deferred Answer 502 "),
        (302, String::new(), "deferred Authentication 302: redirects are not followed; `url` must be"),
    ];
    let (now, most) = (NOW.parse().expect("a time"), Duration::from_secs(60));
    for (status, body, expected) in cases {
        let response = Response { status, body: body.clone().into_bytes(), whole: true, ..Response::default() };
        let shown = show(&classify(&response, "event_id", now, most).disposition);
        assert!(shown.starts_with(expected), "{status} {body}: {shown}");
        // A repeated credential never gets into a receipt.
        let response = Response { repeated: vec!["a text".into()], ..response };
        assert!(!show(&classify(&response, "event_id", now, most).disposition).contains("a text"));
        let refusal = match body.as_str() {
            body if body.contains("M_FORBIDDEN") => Some(RoomRefusal::Forbidden),
            body if body.contains("M_NOT_FOUND") => Some(RoomRefusal::NotFound),
            _ => None,
        };
        assert_eq!(RoomRefusal::of(&response), refusal, "{body}");
    }
    let cut = Response { status: 200, body: b"{\"event_id\"".to_vec(), cut: true, ..Response::default() };
    let shown = show(&classify(&cut, "event_id", now, most).disposition);
    assert!(shown.starts_with("deferred Answer 200: the body decides"), "{shown}");
}

#[test]
fn a_limit_says_when_to_retry() {
    let (now, most) = (NOW.parse().expect("a time"), Duration::from_secs(60));
    let check = |field: Option<&str>, in_body: Value, expected: Option<Duration>| {
        let body = json!({ "errcode": "M_LIMIT_EXCEEDED", "error": "e", "retry_after_ms": in_body });
        let retry_after = field.map(str::to_owned);
        let body = body.to_string().into_bytes();
        let response = Response { status: 429, retry_after, body, whole: true, ..Response::default() };
        let verdict = classify(&response, "event_id", now, most);
        assert_eq!(verdict.load, Load::Less);
        let Disposition::Deferred { retry_after, .. } = verdict.disposition else { panic!("{verdict:?}") };
        assert_eq!(retry_after, expected, "{field:?} {in_body}");
    };
    check(None, json!(2500), Some(Duration::from_millis(2500)));
    check(Some("7"), json!(2500), Some(Duration::from_secs(7)));
    check(None, json!(u64::MAX), Some(most));
    check(Some("soon"), json!(-1), None);
    check(None, json!("2500"), None);
}

#[test]
fn contents_follow_the_notification() {
    let made = |options: Value, change: &dyn Fn(&mut Outgoing)| {
        let options = all_options("https://matrix.example.org", options);
        let options: MatrixOptions = read(&options, "").unwrap_or_else(|problems| panic!("{problems:?}"));
        let mut outgoing = outgoing(1, ROOM);
        change(&mut outgoing);
        let made = event_content(&outgoing.message, &options);
        made.map(|made| serde_json::from_slice::<Value>(&made).expect("JSON"))
    };
    let without_text = |outgoing: &mut Outgoing| content_of(outgoing).text = Some(" \n".into());
    assert_eq!(made(json!({}), &without_text).expect("content")["body"], "Earthquake near Kobe");
    let empty = |outgoing: &mut Outgoing| *content_of(outgoing) = Default::default();
    assert_eq!(made(json!({}), &empty), Err("the content has no text".into()));
    let notice = made(json!({ "message_type": "m.notice" }), &|_| {}).expect("content");
    assert_eq!(notice["msgtype"], "m.notice");

    // Documents of a mail, and HTML that is too large, are left out.
    for html in ["<!DOCTYPE html><html></html>", "\n<HTML lang=en>", "", &"é".repeat(40_000)] {
        let with = |outgoing: &mut Outgoing| content_of(outgoing).html = Some(html.into());
        let content = made(json!({}), &with).expect("content");
        assert_eq!((content.get("format"), content.get("formatted_body")), (None, None), "{html:.20}");
        assert_eq!(content["body"], "Magnitude 6.1\n.\nStay safe – 神戸");
    }
    let long = |outgoing: &mut Outgoing| content_of(outgoing).text = Some("x".repeat(62_000));
    let text = made(json!({}), &long).expect_err("too large");
    assert!(text.starts_with("the message has 62") && text.ends_with(" bytes, an event at most 61440"), "{text}");

    for (option, priority, mentions) in [
        (true, Priority::Urgent, json!({ "room": true })),
        (true, Priority::High, json!({})),
        (false, Priority::Urgent, json!({})),
    ] {
        let set = |outgoing: &mut Outgoing| Arc::make_mut(&mut outgoing.message).priority = priority;
        let content = made(json!({ "mention_room": option }), &set).expect("content");
        assert_eq!(content["m.mentions"], mentions);
    }
    assert_eq!(message(1).message_id, "n-7-1.test");
}

#[test]
fn options_are_checked() {
    let check = |options: Value| {
        let name = "matrix".parse().expect("a name");
        let problems = crate::check(&name, options.as_object().expect("an object"), "o");
        problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    };
    assert_eq!(check(json!({ "url": "https://a.example/hs/", "access_token": TOKEN, "join": true })), "");
    let missing = "o.url: the homeserver is missing; such as `https://matrix.example.org`\n\
                   o.access_token: the access token is missing; take it from the environment: `${MATRIX_TOKEN}`";
    assert_eq!(check(json!({})), missing);
    let wrong = check(json!({ "url": "ftp://a.example", "access_token": "a b", "acess_token": "x" }));
    assert_eq!(
        wrong,
        "o.acess_token: `acess_token` is not an option here; did you mean `access_token`?\n\
         o.url: a URL starts with `https://` or `http://`, not with `ftp:`; such as `https://matrix.example.org`\n\
         o.access_token: this is not an access token; it has no spaces, and only characters of ASCII"
    );
    let query = check(json!({ "url": "https://a.example?access_token=x", "access_token": TOKEN }));
    assert!(query.contains("o.url: the URL of the homeserver has no query"), "{query}");
}

struct Conforming {
    homeserver: Homeserver,
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
        outgoing(ordinal, ALIAS)
    }

    async fn received_ids(&self) -> Vec<String> {
        self.homeserver.0.lock().transaction_ids.clone()
    }

    fn in_flight_max(&self) -> usize {
        4
    }
}

#[tokio::test]
async fn slow_it_conforms() {
    let homeserver = Homeserver::with_a_room();
    let url = homeserver.start().await;
    exercise(&Conforming { homeserver, url }).await;
}
