//! Feeds: pages, marks, tokens, broadcasts, and streams without gaps.

use std::{sync::Arc, time::Duration};

use reqwest::{Response, StatusCode};
use serde_json::{Map, Value as Json, json};
use tocsin_face_http::{ConnectionOptions, HttpOptions};
use tocsin_model::{
    id::{NotificationBatchId, NotificationId, SubscriberNumber},
    inbox::{InboxContent, NewItem, Wording},
    time::Timestamp,
};
use tocsin_store::journal::JournalOptions;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::platform::{Platform, answer};

const JSON: &str = "application/json";
const ALICE: &str = "/v1/subscribers/alice/inbox";
const FAR: Timestamp = Timestamp::from_millis(4_000_000_000_000);

impl Platform {
    /// Adds an item to the feed of a subscriber.
    async fn deliver(&self, subscriber: u64, ordinal: u32, text: &str) {
        let content = InboxContent {
            application: "quakes".parse().expect("a name"),
            class: "shaken".parse().expect("a name"),
            channel: Some("inbox".parse().expect("a name")),
            event: None,
            wording: Wording {
                subject: Some(text.to_owned()),
                data: Map::from_iter([("n".to_owned(), ordinal.into())]),
                link: Some("/quakes/5".into()),
                ..Wording::default()
            },
            translations: Default::default(),
        };
        let id = NotificationId { batch: NotificationBatchId(7), ordinal };
        let (subscriber, content) = (SubscriberNumber(subscriber), Arc::new(content));
        let item = NewItem { subscriber, id, content, expires_at: FAR };
        self.inbox.put_items(vec![item], 100, Timestamp::from_millis(1_000)).await.expect("stored");
    }

    async fn subjects(&self, query: &str) -> Vec<String> {
        let (status, body) = self.get(&format!("{ALICE}?{query}")).await;
        assert_eq!(status, 200, "{body}");
        let items = body["items"].as_array().expect("a list");
        items.iter().map(|item| item["subject"].as_str().expect("a subject").to_owned()).collect()
    }

    async fn token(&self, body: &str) -> String {
        let (status, body) = self.post(&format!("{ALICE}/token"), JSON, body).await;
        assert_eq!(status, 201, "{body}");
        body["token"].as_str().expect("a token").to_owned()
    }

    /// A request with another credential, or none.
    async fn as_bearer(&self, method: &str, path: &str, credential: Option<&str>) -> (StatusCode, Json) {
        let method = method.parse().expect("a method");
        let request = self.client.request(method, format!("{}{path}", self.address));
        answer(match credential {
            Some(credential) => request.bearer_auth(credential),
            None => request,
        })
        .await
    }
}

#[tokio::test]
async fn a_feed_is_listed_and_marked() {
    let platform = Platform::with_quakes().await;
    for number in 0..4 {
        platform.deliver(1, number, &number.to_string()).await;
    }
    let (status, body) = platform.get(&format!("{ALICE}/n-7-0")).await;
    assert_eq!(status, 200);
    let expected = json!({
        "id": "n-7-0", "application": "quakes", "class": "shaken", "channel": "inbox", "subject": "0", "data": {"n": 0},
        "link": "/quakes/5", "actions": [], "created_at": "1970-01-01T00:00:01Z", "read_at": null, "archived_at": null,
        "expires_at": FAR,
    });
    assert_eq!(body, expected);
    assert_eq!(platform.subjects("").await, ["3", "2", "1", "0"]);
    let (_, page) = platform.get(&format!("{ALICE}?limit=3")).await;
    let next = page["next"].as_str().expect("a cursor");
    assert_eq!(platform.subjects(&format!("limit=3&after={next}")).await, ["0"]);
    for _ in 0..2 {
        let read = platform.request("PUT", &format!("{ALICE}/n-7-0/read"));
        let (status, body) = answer(read).await;
        assert!(status == 200 && body["read_at"].is_string(), "{body}");
        let (status, body) = answer(platform.request("PUT", &format!("{ALICE}/n-7-1/archived"))).await;
        assert!(status == 200 && body["archived_at"].is_string(), "{body}");
        assert_eq!(answer(platform.request("DELETE", &format!("{ALICE}/n-7-2"))).await.0, 204);
    }
    assert_eq!(platform.subjects("state=unread").await, ["3"]);
    assert_eq!(platform.subjects("state=archived").await, ["1"]);
    assert_eq!(platform.subjects("state=all&class=shaken&channel=inbox&application=quakes").await, ["3", "1", "0"]);
    assert_eq!(platform.get(&format!("{ALICE}?application=other")).await.0, 404);
    // A mark has the same answer.
    let body = r#"{"mark": "read", "all": true, "application": "other"}"#;
    assert_eq!(platform.post(&format!("{ALICE}/mark"), JSON, body).await.0, 404);
    assert_eq!(platform.get(&format!("{ALICE}/unread")).await.1, json!({"unread": 1}));
    let (_, body) = answer(platform.request("DELETE", &format!("{ALICE}/n-7-0/read"))).await;
    assert_eq!(body["read_at"], Json::Null);
    let (_, body) = answer(platform.request("DELETE", &format!("{ALICE}/n-7-1/archived"))).await;
    assert_eq!(body["archived_at"], Json::Null);
    // Items newer than the given one stay unread.
    platform.deliver(1, 9, "late").await;
    let mark = async |body: Json| platform.post(&format!("{ALICE}/mark"), JSON, &body.to_string()).await;
    let all = json!({"mark": "read", "all": true, "newest": "n-7-3"});
    assert_eq!(mark(all.clone()).await, (StatusCode::OK, json!({"marked": 3, "unread": 1})));
    assert_eq!(mark(all).await.1, json!({"marked": 0, "unread": 1}));
    let twice = json!({"mark": "read", "ids": ["n-7-3", "n-7-3"]});
    assert_eq!(mark(twice).await.1["marked"], 1, "an item that is named twice is one");
    let some = json!({"mark": "delete", "ids": ["n-7-3", "n-7-99"]});
    assert_eq!(mark(some).await.1, json!({"marked": 1, "unread": 1}));
    // Items that were removed with their subscriber do not reappear with a new subscriber of the same id.
    assert_eq!(answer(platform.request("DELETE", "/v1/subscribers/alice")).await.0, 204);
    assert_eq!(platform.get(ALICE).await.0, 404);
    assert_eq!(platform.inbox.counts().items, 0);
    platform.stop().await;
}

#[tokio::test]
async fn what_is_wrong_is_told() {
    let platform = Platform::with_quakes().await;
    for (path, status) in [
        (format!("{ALICE}/n-7-0"), 404),
        (format!("{ALICE}/7"), 400),
        (format!("{ALICE}?state=new"), 422),
        (format!("{ALICE}?limit=0"), 422),
        (format!("{ALICE}?after=x"), 422),
        (format!("{ALICE}?colour=red"), 400),
        ("/v1/subscribers/nobody/inbox".to_owned(), 404),
        (format!("{ALICE}/stream?last_event_id=x"), 422),
    ] {
        let (found, body) = platform.get(&path).await;
        assert_eq!(found.as_u16(), status, "{path}: {body}");
    }
    for (body, said) in [
        (json!({}), "mark"),
        (json!({"mark": "burn", "all": true}), "`burn` is none of read, unread, archive, unarchive, delete"),
        (json!({"mark": "read"}), "ids"),
        (json!({"mark": "read", "ids": ["x"]}), "the id of an item"),
        (json!({"mark": "read", "ids": [], "all": true}), "goes without"),
        (json!({"mark": "read", "ids": vec!["n-1-1"; 1_001]}), "at most 1000 fit"),
        (json!({"mark": "read", "all": true, "state": "new"}), "is none of"),
    ] {
        let (status, answer) = platform.post(&format!("{ALICE}/mark"), JSON, &body.to_string()).await;
        assert!(status == 422 && answer.to_string().contains(said), "{body}: {status} {answer}");
    }
    for body in [json!({"expires_in": 0}), json!({"expires_in": 1u64 << 40}), json!({"forever": true})] {
        let (status, answer) = platform.post(&format!("{ALICE}/token"), JSON, &body.to_string()).await;
        assert_eq!(status, 422, "{answer}");
    }
    platform.stop().await;
}

#[tokio::test]
async fn b5_a_token_opens_one_feed_and_ends_with_its_subscriber() {
    let platform = Platform::with_quakes().await;
    let (status, _) = platform.post("/v1/subscribers", JSON, r#"{"id": "bob"}"#).await;
    assert_eq!(status, 201);
    platform.deliver(1, 0, "for alice").await;
    let token = platform.token("{}").await;
    let (status, body) = platform.as_bearer("GET", ALICE, Some(&token)).await;
    assert!(status == 200 && body["items"][0]["subject"] == "for alice", "{body}");
    assert_eq!(platform.as_bearer("GET", &format!("{ALICE}/unread?token={token}"), None).await.0, 200);
    assert_eq!(platform.as_bearer("PUT", &format!("{ALICE}/n-7-0/read"), Some(&token)).await.0, 200);
    let looking = platform.token(r#"{"read_only": true}"#).await;
    assert_eq!(platform.as_bearer("GET", ALICE, Some(&looking)).await.0, 200);
    assert_eq!(platform.as_bearer("PUT", &format!("{ALICE}/n-7-0/read"), Some(&looking)).await.0, 403);
    // For other feeds the response does not depend on their existence; the token is not an API key.
    for other in ["bob", "nobody"] {
        assert_eq!(platform.as_bearer("GET", &format!("/v1/subscribers/{other}/inbox"), Some(&token)).await.0, 403);
    }
    assert_eq!(platform.as_bearer("GET", "/v1/subscribers/alice", Some(&token)).await.0, 401);
    assert_eq!(platform.as_bearer("POST", &format!("{ALICE}/token"), Some(&token)).await.0, 401);
    for wrong in ["", "inbox.1.w.4000000000.AAAAAAAAAAAAAAAAAAAAAA", &token[..token.len() - 1], &platform.key[..20]] {
        assert_eq!(platform.as_bearer("GET", ALICE, Some(wrong)).await.0, 401, "{wrong}");
    }
    assert_eq!(platform.as_bearer("GET", ALICE, None).await.0, 401);
    // Keys need the scope.
    let made = async |scope: &str| {
        let (_, body) = platform.post("/v1/keys", JSON, &json!({"scopes": [scope]}).to_string()).await;
        body["key"].as_str().expect("a key").to_owned()
    };
    let (other, reader, writer) = (made("subscribers:read").await, made("inbox:read").await, made("inbox:write").await);
    assert_eq!(platform.as_bearer("GET", ALICE, Some(&other)).await.0, 403);
    assert_eq!(platform.as_bearer("GET", ALICE, Some(&reader)).await.0, 200);
    assert_eq!(platform.as_bearer("PUT", &format!("{ALICE}/n-7-0/read"), Some(&reader)).await.0, 403);
    assert_eq!(platform.as_bearer("PUT", &format!("{ALICE}/n-7-0/read"), Some(&writer)).await.0, 200);
    // A new subscriber with the same id is another subscriber.
    assert_eq!(answer(platform.request("DELETE", "/v1/subscribers/alice")).await.0, 204);
    for path in [ALICE, "/v1/subscribers/bob/inbox"] {
        let (status, body) = platform.as_bearer("GET", path, Some(&token)).await;
        assert_eq!(status, 401, "its subscriber is gone: {body}");
    }
    assert_eq!(platform.post("/v1/subscribers", JSON, r#"{"id": "alice"}"#).await.0, 201);
    assert_eq!(platform.as_bearer("GET", ALICE, Some(&token)).await.0, 401);
    platform.stop().await;
}

#[tokio::test]
async fn a_broadcast_reaches_its_audience() {
    let platform = Platform::with_quakes().await;
    let bob = json!({"id": "bob", "locale": "de-AT", "attributes": {"plan": "gold"}});
    assert_eq!(platform.post("/v1/subscribers", JSON, &bob.to_string()).await.0, 201);
    let segment = json!({"name": "gold", "filter": "(plan=gold)"}).to_string();
    assert_eq!(platform.post("/v1/segments", JSON, &segment).await.0, 201);
    let put = async |name: &str, body: Json| {
        platform.put(&format!("/v1/applications/quakes/broadcasts/{name}"), JSON, &body.to_string()).await
    };
    let news = json!({"subject": "News", "link": "/news", "translations": {"de": {"subject": "Neues"}}});
    let (status, body) = put("news", news.clone()).await;
    assert!(status == 201 && body["readers"] == 0, "{body}");
    assert_eq!(put("news", news).await, (StatusCode::OK, body.clone()), "the same again changes nothing");
    assert_eq!(put("perk", json!({"subject": "Gold", "audience": "gold"})).await.0, 201);
    let feed = async |who: &str| {
        let (_, body) = platform.get(&format!("/v1/subscribers/{who}/inbox")).await;
        let items = body["items"].as_array().expect("a list").clone();
        items.iter().map(|item| item["subject"].as_str().expect("a subject").to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(
        (feed("alice").await, feed("bob").await),
        (vec!["News".into()], vec!["Gold".into(), "Neues".to_owned()])
    );
    let id = body["id"].as_str().expect("an id");
    assert_eq!(answer(platform.request("PUT", &format!("/v1/subscribers/bob/inbox/{id}/read"))).await.0, 200);
    let (_, listed) = platform.get("/v1/applications/quakes/broadcasts").await;
    assert_eq!((&listed["items"][1]["name"], &listed["items"][1]["readers"]), (&json!("news"), &json!(1)));
    assert_eq!(platform.get("/v1/subscribers/alice/inbox/unread").await.1, json!({"unread": 1}));
    let withdrawn = platform.request("DELETE", "/v1/applications/quakes/broadcasts/news");
    assert_eq!(answer(withdrawn).await.0, 204);
    assert_eq!(feed("alice").await, [""; 0]);
    let wrong = json!({
        "subject": "a\nb", "link": "javascript:alert(1)", "actions": [{"label": "", "link": "x"}], "class": "1",
        "audience": "nobodies", "translations": {"d": {}}, "expires_at": "2001-01-01T00:00:00Z",
    });
    let (status, body) = put("wrong", wrong).await;
    assert_eq!(status, 422);
    let paths: Vec<&str> =
        body["problems"].as_array().expect("problems").iter().filter_map(|one| one["path"].as_str()).collect();
    let expected = [
        "class",
        "subject",
        "link",
        "actions[0].label",
        "actions[0].link",
        "translations.d",
        "translations.d",
        "expires_at",
        "audience",
    ];
    assert_eq!(paths, expected, "{body}");
    assert_eq!(platform.put("/v1/applications/none/broadcasts/a", JSON, r#"{"text": "x"}"#).await.0, 404);
    assert_eq!(platform.put("/v1/applications/quakes/broadcasts/a", JSON, "{}").await.0, 422);
    platform.stop().await;
}

#[tokio::test]
async fn a_segment_stays_while_a_broadcast_is_for_it() {
    let platform = Platform::with_quakes().await;
    let news = "/v1/applications/quakes/broadcasts/news";
    assert_eq!(platform.put("/v1/segments/gold", JSON, r#"{"filter": "(id=alice)"}"#).await.0, 201);
    assert_eq!(platform.put(news, JSON, r#"{"text": "x", "audience": "gold"}"#).await.0, 201);
    let remove = async |path: &str| answer(platform.request("DELETE", path)).await;
    let (status, refused) = remove("/v1/segments/gold").await;
    assert_eq!(status, 409, "{refused}");
    assert!(refused["detail"].as_str().expect("a detail").contains("the broadcast b-"), "{refused}");
    assert_eq!(remove(news).await.0, 204);
    assert_eq!(remove("/v1/segments/gold").await.0, 204);
    platform.stop().await;
}

#[tokio::test]
async fn a_change_with_a_condition_that_its_route_ignores_is_refused() {
    let platform = Platform::with_quakes().await;
    let news = "/v1/applications/quakes/broadcasts/news";
    assert_eq!(platform.put(news, JSON, r#"{"text": "first"}"#).await.0, 201);
    let with = async |method: &str, name: &str, value: &str| {
        let request = platform.request(method, news).header(name, value).header("content-type", JSON);
        answer(request.body(r#"{"text": "second"}"#)).await.0.as_u16()
    };
    assert_eq!(with("PUT", "if-match", "\"7\"").await, 400);
    assert_eq!(with("PUT", "if-none-match", "*").await, 400);
    assert_eq!(with("DELETE", "if-match", "\"7\"").await, 400);
    assert_eq!(platform.get(news).await.1["text"], "first");
    platform.stop().await;
}

/// A stream, read event by event.
pub struct Events {
    answer: Response,
    text: String,
}

impl Events {
    async fn open(platform: &Platform, after: Option<&str>) -> Events {
        Events::open_by(platform, &platform.key, after).await
    }

    async fn open_by(platform: &Platform, credential: &str, after: Option<&str>) -> Events {
        let mut request = platform.client.get(format!("{}{ALICE}/stream", platform.address)).bearer_auth(credential);
        if let Some(after) = after {
            request = request.header("last-event-id", after);
        }
        Events::of(request).await
    }

    /// The stream that a request opens.
    pub async fn of(request: reqwest::RequestBuilder) -> Events {
        let answer = request.send().await.expect("an answer");
        assert_eq!(answer.status(), 200);
        assert_eq!(answer.headers()["content-type"], "text/event-stream");
        Events { answer, text: String::new() }
    }

    /// The next event: its id, its name, its data; `None` at the end of the stream.
    pub async fn next(&mut self) -> Option<(String, String, Json)> {
        tokio::time::timeout(tocsin_test_peers::wait_timeout(), self.read()).await.expect("an event in time")
    }

    async fn read(&mut self) -> Option<(String, String, Json)> {
        loop {
            while let Some((block, rest)) = self.text.split_once("\n\n") {
                let (block, rest) = (block.to_owned(), rest.to_owned());
                self.text = rest;
                let field =
                    |name: &str| block.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().to_owned();
                if block.contains("event: ") {
                    let data = serde_json::from_str(&field("data: ")).expect("JSON");
                    return Some((field("id: "), field("event: "), data));
                }
            }
            let chunk = self.answer.chunk().await.expect("it goes on")?;
            self.text.push_str(std::str::from_utf8(&chunk).expect("UTF-8"));
        }
    }

    /// Reason for the end of the stream, from its last event.
    pub async fn end(&mut self) -> String {
        let (id, data) = loop {
            let (id, event, data) = self.next().await.expect("the reason");
            if event == "end" {
                break (id, data);
            }
        };
        assert_eq!(id, "", "a reader comes back behind the last change");
        assert_eq!(self.next().await, None);
        data["reason"].as_str().expect("a word").to_owned()
    }

    /// The next events, one per line.
    async fn lines(&mut self, count: usize) -> Vec<String> {
        let mut lines = Vec::new();
        for _ in 0..count {
            let (_, event, data) = self.next().await.expect("an event");
            lines.push(match event.as_str() {
                "unread" => format!("unread {}", data["unread"]),
                "deleted" => format!("deleted {}", data["id"].as_str().expect("an id")),
                event => format!("{event} {}", data["id"].as_str().unwrap_or_default()),
            });
        }
        lines
    }
}

#[tokio::test]
async fn a_stream_tells_what_changes_and_goes_on_where_it_was() {
    let platform = Platform::with_quakes().await;
    platform.deliver(1, 0, "before").await;
    let mut events = Events::open(&platform, None).await;
    assert_eq!(events.lines(1).await, ["unread 1"]);
    platform.deliver(1, 1, "first").await;
    assert_eq!(events.lines(2).await, ["new n-7-1", "unread 2"]);
    platform.deliver(2, 2, "for somebody else").await;
    assert_eq!(answer(platform.request("PUT", &format!("{ALICE}/n-7-0/read"))).await.0, 200);
    assert_eq!(events.lines(2).await, ["changed n-7-0", "unread 1"]);
    assert_eq!(answer(platform.request("DELETE", &format!("{ALICE}/n-7-0"))).await.0, 204);
    let (last, event, _) = events.next().await.expect("an event");
    assert_eq!(event, "deleted");
    drop(events);
    // Changes in the meantime are not missed, even beyond one page.
    for number in 10..230 {
        platform.deliver(1, number, "meanwhile").await;
    }
    let body = json!({"subject": "News"}).to_string();
    assert_eq!(platform.put("/v1/applications/quakes/broadcasts/news", JSON, &body).await.0, 201);
    let mut events = Events::open(&platform, Some(&last)).await;
    // Meanwhile the feed, with its limit of a hundred items, has evicted its oldest ones.
    let mut received = std::collections::BTreeSet::new();
    let unread = loop {
        let line = events.lines(1).await.remove(0);
        match line.strip_prefix("new ").or(line.strip_prefix("changed ")) {
            Some(id) => assert!(received.insert(id.to_owned()), "{id} is sent twice"),
            None if line.starts_with("unread ") => break line,
            None => {}
        }
    };
    assert_eq!(unread, "unread 101");
    assert!(
        (130..230).all(|number| received.contains(&format!("n-7-{number}"))) && received.len() == 101,
        "{received:?}"
    );
    drop(events);
    // Changes that are no longer stored cannot be replayed.
    let mut events = Events::open(&platform, Some("99999999")).await;
    let (place, event, _) = events.next().await.expect("an event");
    assert_eq!((event.as_str(), place), ("reset", platform.inbox.newest().to_string()));
    assert_eq!(events.next().await.expect("an event").1, "unread");
    // A stopping server ends its streams.
    let (_, ended) = tokio::join!(platform.stop(), events.end());
    assert_eq!(ended, "stopping");
}

#[tokio::test]
async fn no_text_becomes_an_event_of_its_own() {
    let platform = Platform::with_quakes().await;
    let mut events = Events::open(&platform, None).await;
    assert_eq!(events.lines(1).await, ["unread 0"]);
    let naughty = include_str!("../../../../testdata/naughty-strings.json");
    let naughty: Vec<String> = serde_json::from_str(naughty).expect("a list of texts");
    let own = ["a\n\nevent: deleted\ndata: {}\n\n", "\r\nid: 99\r\n\r\n", "\u{2028}data: x", "\0"].map(str::to_owned);
    let texts: Vec<String> = own.into_iter().chain(naughty.into_iter().step_by(7)).collect();
    for (number, text) in texts.iter().enumerate() {
        platform.deliver(1, number as u32, text).await;
        let (_, event, data) = events.next().await.expect("an event");
        assert_eq!((event.as_str(), data["subject"].as_str()), ("new", Some(text.as_str())));
        assert_eq!(events.next().await.expect("an event").1, "unread");
        assert_eq!(platform.get(&format!("{ALICE}/n-7-{number}")).await.1["subject"], text.as_str());
        // This makes the count differ after each.
        assert_eq!(answer(platform.request("DELETE", &format!("{ALICE}/n-7-{number}"))).await.0, 204);
        assert_eq!(events.lines(2).await, [format!("deleted n-7-{number}"), "unread 0".into()]);
    }
    // A stream ends with its subscriber.
    assert_eq!(answer(platform.request("DELETE", "/v1/subscribers/alice")).await.0, 204);
    assert_eq!(events.end().await, "removed");
    platform.stop().await;
}

#[tokio::test]
async fn a9_a_stream_ends_as_soon_as_its_key_does() {
    let platform = Platform::with_quakes().await;
    let mut other = Events::open(&platform, None).await;
    assert_eq!(other.lines(1).await, ["unread 0"]);
    for (number, way) in ["revoked", "changed", "expired"].into_iter().enumerate() {
        let (id, key) = platform.make_key(&["inbox:read"]).await;
        let mut events = Events::open_by(&platform, &key, None).await;
        assert_eq!(events.lines(1).await, [format!("unread {number}")]);
        let stored = platform.records.api_keys().await.expect("keys");
        let mut stored = stored.into_iter().find(|stored| stored.id == id).expect("stored");
        match way {
            "revoked" => platform.revoke(&id).await,
            "changed" => {
                // Another node changed the limits of the key.
                stored.resources = vec!["application:other".to_owned()];
                platform.records.remove_api_key(&id).await.expect("removed");
                platform.records.put_api_key(stored).await.expect("stored");
            }
            _ => {
                drop(events);
                let mut lasts = Duration::from_secs(2);
                events = loop {
                    let end = Timestamp::from(std::time::SystemTime::now()) + lasts;
                    let asked = json!({"scopes": ["inbox:read"], "expires_at": end}).to_string();
                    let (status, made) = platform.post("/v1/keys", JSON, &asked).await;
                    assert_eq!(status, 201, "{made}");
                    let request = platform.client.get(format!("{}{ALICE}/stream", platform.address));
                    let answer = request.bearer_auth(made["key"].as_str().expect("a key")).send().await;
                    let answer = answer.expect("an answer");
                    if answer.status() == 200 {
                        break Events { answer, text: String::new() };
                    }
                    // On a slow machine the key has already expired.
                    lasts *= 2;
                };
            }
        }
        let why = events.end().await;
        // The key was revoked between the two changes of the other node.
        assert!(why == way || (way == "changed" && why == "revoked"), "{way}: {why}");
        if way == "revoked" {
            let again = platform.as_bearer("GET", &format!("{ALICE}/stream"), Some(&key)).await;
            assert_eq!(again.0, 401, "{again:?}");
        }
        platform.deliver(1, number as u32, "for those that are still there").await;
        assert_eq!(other.lines(2).await, [format!("new n-7-{number}"), format!("unread {}", number + 1)]);
    }
    platform.stop().await;
}

#[tokio::test]
async fn e10_a_reader_that_takes_nothing_is_dropped_and_harms_no_other() {
    let connections = ConnectionOptions { write_timeout: Duration::from_secs(2), ..ConnectionOptions::default() };
    let options = HttpOptions { streams_max: 2, connections, ..HttpOptions::default() };
    let platform = Platform::with(options, JournalOptions::default()).await;
    platform.apply_quakes().await;
    let mut quick = Events::open(&platform, None).await;
    assert_eq!(quick.lines(1).await, ["unread 0"]);
    let mut slow = platform.connect().await;
    let head = format!("GET {ALICE}/stream HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {}\r\n\r\n", platform.key);
    slow.write_all(head.as_bytes()).await.expect("written");
    let mut begin = vec![0; 12];
    slow.read_exact(&mut begin).await.expect("an answer");
    assert_eq!(begin, b"HTTP/1.1 200");
    // More than the buffers of both ends of the connection hold.
    let (count, text) = (160, "x".repeat(100_000));
    for number in 0..count {
        platform.deliver(1, number, &text).await;
        let line = loop {
            let line = quick.lines(1).await.remove(0);
            if line.starts_with("new ") {
                break line;
            }
        };
        assert_eq!(line, format!("new n-7-{number}"), "the quick reader misses nothing");
    }
    // The connection slot is free after the stream was dropped.
    let again = async {
        while platform.get("/v1/subscribers/nobody/inbox/stream").await.0 == 429 {
            tokio::task::yield_now().await;
        }
        loop {
            let request = platform.request("GET", &format!("{ALICE}/stream")).header("last-event-id", "0");
            let answer = request.send().await.expect("an answer");
            if answer.status() == 200 {
                return answer;
            }
            assert_eq!(answer.status(), 429);
            tokio::task::yield_now().await;
        }
    };
    let answer =
        tokio::time::timeout(tocsin_test_peers::wait_timeout(), again).await.expect("the slow reader is dropped");
    let got = crate::platform::rest(&mut slow).await;
    assert!(got.len() < count as usize * text.len(), "it was sent {} bytes", got.len());
    // It reconnects at its position and receives the missed items.
    let mut back = Events { answer, text: String::new() };
    assert!(["new", "reset"].contains(&&*back.next().await.expect("an event").1));
    drop((back, quick, slow));
    platform.stop().await;
}

#[tokio::test]
async fn pages_of_named_origins_are_let_in() {
    let origins = vec!["https://shop.example".to_owned()];
    let options = HttpOptions { origins, ..HttpOptions::default() };
    let platform = Platform::with(options, JournalOptions::default()).await;
    platform.apply_quakes().await;
    let allowed = async |method: &str, path: &str, origin: &str| {
        let request = platform.request(method, path).header("origin", origin);
        let answer = request.header("access-control-request-method", "PUT").send().await.expect("an answer");
        let headers = answer.headers();
        assert_eq!(headers.get("access-control-allow-credentials"), None);
        let origin = headers.get("access-control-allow-origin").map(|value| value.to_str().expect("text").to_owned());
        (answer.status().as_u16(), origin)
    };
    let shop = "https://shop.example";
    let read = format!("{ALICE}/n-1-1/read");
    assert_eq!(allowed("OPTIONS", &read, shop).await, (204, Some(shop.to_owned())));
    assert_eq!(allowed("GET", ALICE, shop).await, (200, Some(shop.to_owned())));
    assert_eq!(allowed("PUT", &read, shop).await, (404, Some(shop.to_owned())), "a page sees what is wrong");
    assert_eq!(allowed("GET", ALICE, "https://evil.example").await, (200, None));
    assert_eq!(allowed("OPTIONS", &read, "https://evil.example").await, (405, None));
    assert_eq!(allowed("OPTIONS", "/v1/sync/wait", shop).await, (204, Some(shop.to_owned())), "replicas wait for news");
    for origin in [shop, "https://evil.example"] {
        let read = platform.request("GET", ALICE).header("origin", origin).send().await.expect("an answer");
        let varies = read.headers().get_all("vary").iter().any(|value| value == "origin");
        assert!(varies, "a cache keeps the answers to pages apart: {origin}");
    }
    assert_eq!(allowed("GET", "/v1/subscribers/alice", shop).await, (200, None));
    assert_eq!(allowed("OPTIONS", "/v1/keys", shop).await, (405, None));
    platform.stop().await;
}

#[tokio::test]
async fn streams_have_a_bound_and_show_that_they_live() {
    let options = HttpOptions { streams_max: 2, stream_heartbeat: Duration::from_millis(5), ..HttpOptions::default() };
    let platform = Platform::with(options, JournalOptions::default()).await;
    platform.apply_quakes().await;
    let mut first = Events::open(&platform, None).await;
    let second = Events::open(&platform, None).await;
    let (status, body) = platform.get(&format!("{ALICE}/stream")).await;
    assert_eq!(status, 429, "{body}");
    assert_eq!(first.lines(1).await, ["unread 0"]);
    let beat = first.answer.chunk().await.expect("it goes on").expect("a heartbeat");
    assert_eq!(beat, ":\n\n");
    // A stream ends with its token.
    drop((first, second));
    let token = platform.token(r#"{"expires_in": 1}"#).await;
    let opened = async {
        loop {
            let path = format!("{}{ALICE}/stream?token={token}", platform.address);
            let answer = platform.client.get(path).send().await.expect("an answer");
            // The slots of disconnected streams are free as soon as the server notices.
            if answer.status() != 429 {
                return answer;
            }
            tokio::task::yield_now().await;
        }
    };
    let answer = opened.await;
    assert!(answer.status() == 200 || answer.status() == 401);
    let said =
        tokio::time::timeout(tocsin_test_peers::wait_timeout(), answer.text()).await.expect("it ends").expect("whole");
    assert!(said.contains("expired"), "{said}");
    platform.stop().await;
}
