//! Every kind of invalid input is rejected with a specific error.

use serde_json::json;

use crate::{
    error_codes::check_codes,
    platform::{Platform, QUAKES, answer},
};

/// Sends a request; the response must be a problem of this status and kind whose text contains each of these.
async fn check(
    platform: &Platform,
    request: (&str, &str),
    kind: &str,
    body: &str,
    expected: (u16, &str),
    said: &[&str],
) {
    let (method, path) = request;
    let sent = platform.request(method, path).header("content-type", kind).body(body.to_owned());
    let response = sent.send().await.expect("an answer");
    let status = response.status().as_u16();
    let media_type = response.headers()["content-type"].to_str().expect("text").to_owned();
    let found = response.text().await.expect("a body");
    assert_eq!(media_type, "application/problem+json", "{method} {path}: {found}");
    let problem: serde_json::Value = serde_json::from_str(&found).expect("JSON");
    let found_kind = problem["type"].as_str().expect("a type").to_owned();
    assert_eq!(
        (status, found_kind.as_str()),
        (expected.0, format!("/problems/{}", expected.1).as_str()),
        "{method} {path}: {found}"
    );
    assert_eq!(problem["status"], status, "{found}");
    check_codes(&problem);
    for text in said {
        assert!(found.contains(text), "{method} {path} should say {text:?}: {found}");
    }
}

const YAML: &str = "application/yaml";
const JSON: &str = "application/json";

#[tokio::test]
async fn every_bad_input_has_its_error() {
    let platform = Platform::with_quakes().await;
    let quakes = ("PUT", "/v1/applications/quakes");
    let event = ("POST", "/v1/applications/quakes/events/quake");
    let subscribers = ("POST", "/v1/subscribers");
    let subscriptions = ("POST", "/v1/subscriptions");
    let strong =
        |values: &str| format!(r#"{{"application":"quakes","class":"strong","subscriber":"alice","values":{values}}}"#);
    let check = async |request, kind, body: &str, expected, said: &[&str]| {
        check(&platform, request, kind, body, expected, said).await;
    };

    // Definitions.
    check(quakes, YAML, "application: [quakes", (422, "invalid"), &["\"line\":"]).await;
    check(quakes, YAML, &format!("{QUAKES}\nchanels: {{}}"), (422, "invalid"), &["chanels", "channels", "\"line\":"])
        .await;
    check(quakes, YAML, &QUAKES.replace("type: number", "type: nummer"), (422, "invalid"), &["number", "\"line\":"])
        .await;
    check(quakes, YAML, &QUAKES.replace("on: quake", "on: quaek"), (422, "invalid"), &["quake", "rules.strong_enough"])
        .await;
    check(quakes, YAML, &format!("{QUAKES}\nevents: {{}}"), (422, "invalid"), &["events", "\"line\":"]).await;
    check(quakes, YAML, &QUAKES.replace("application: quakes", "application: other"), (422, "invalid"), &["other"])
        .await;
    check(
        quakes,
        YAML,
        &QUAKES.replace("      note: {type: string}\n", ""),
        (409, "would-drop-data"),
        &["subscriptions.strong"],
    )
    .await;
    check(("PUT", "/v1/applications/qu%20akes"), YAML, QUAKES, (400, "malformed"), &["a name"]).await;
    check(quakes, JSON, "{}", (415, "unsupported-media-type"), &["application/yaml"]).await;
    check(("DELETE", "/v1/applications/quakes"), JSON, "", (400, "malformed"), &["confirm=quakes"]).await;
    check(("GET", "/v1/applications/nothing"), JSON, "", (404, "not-found"), &["nothing"]).await;

    // Events.
    check(event, JSON, r#"{"place": "Kobe", "magnitude": }"#, (400, "malformed"), &["\"line\":1", "\"column\":"]).await;
    check(event, JSON, "[1, 2]", (422, "invalid"), &["an object with the fields"]).await;
    check(event, JSON, "5", (422, "invalid"), &["an object with the fields"]).await;
    check(
        event,
        JSON,
        r#"{"place": "Kobe", "magnitud": 6.1}"#,
        (422, "invalid"),
        &["did you mean `magnitude`?", "is required"],
    )
    .await;
    check(
        event,
        JSON,
        r#"{"place": "Kobe", "magnitude": "6.1"}"#,
        (422, "invalid"),
        &["should be a number, not a string"],
    )
    .await;
    check(
        event,
        JSON,
        r#"{"place": "Kobe", "place": "Lima", "magnitude": 6.1}"#,
        (422, "invalid"),
        &["is given twice"],
    )
    .await;
    check(
        event,
        JSON,
        r#"[{"place": "Kobe", "magnitude": 6.1}, {"place": 5}]"#,
        (422, "invalid"),
        &["[1].place", "[1].magnitude"],
    )
    .await;
    check(event, JSON, "[]", (422, "invalid"), &["holds no event"]).await;
    check(event, "text/plain", "hello", (415, "unsupported-media-type"), &["application/x-ndjson"]).await;
    check(("POST", "/v1/applications/quakes/events/quaek"), JSON, "{}", (404, "not-found"), &["did you mean `quake`?"])
        .await;
    check(("POST", "/v1/applications/nothing/events/quake"), JSON, "{}", (404, "not-found"), &["nothing"]).await;
    check(("POST", "/v1/applications/quakes/events/quake?source=me"), JSON, "{}", (422, "invalid"), &["source"]).await;
    let lines = "{\"place\":\"Kobe\",\"magnitude\":6.1}\n\n{\"place\":\"Lima\"}\n{\"place\":\"Rome\",\"magnitude\":1}";
    check(
        event,
        "application/x-ndjson",
        lines,
        (422, "invalid"),
        &["\"line\":3", "\"batches\":[\"eb-", "\"events\":1"],
    )
    .await;
    let structured = "application/cloudevents+json";
    let events = ("POST", "/v1/applications/quakes/events");
    check(
        events,
        structured,
        r#"{"specversion":"1.0","id":"1","source":"/s","type":"flood","data":{}}"#,
        (422, "invalid"),
        &["type", "quake"],
    )
    .await;
    check(
        events,
        structured,
        r#"{"specversion":"0.3","id":"1","source":"/s","type":"quake","data":{}}"#,
        (422, "invalid"),
        &["CloudEvents 1.0"],
    )
    .await;
    check(
        events,
        structured,
        r#"{"specversion":"1.0","source":"/s","type":"quake"}"#,
        (422, "invalid"),
        &["id", "is required"],
    )
    .await;
    check(events, JSON, "{}", (415, "unsupported-media-type"), &["cloudevents"]).await;

    // Subscribers and subscriptions.
    check(subscribers, JSON, r#"{"id": "alice"}"#, (409, "exists"), &["alice"]).await;
    check(subscribers, JSON, r#"{"id": "bob", "lokale": "de"}"#, (422, "invalid"), &["did you mean `locale`?"]).await;
    check(subscribers, JSON, r#"{"id": "bob", "id": "eve"}"#, (422, "invalid"), &["is given twice"]).await;
    check(
        subscribers,
        JSON,
        r#"{"id": "b/b", "time_zone": "Mars/Olympus"}"#,
        (422, "invalid"),
        &["time_zone", "\"path\":\"id\""],
    )
    .await;
    check(subscribers, JSON, r#"{"id": 5}"#, (422, "invalid"), &["\"column\":"]).await;
    check(subscribers, JSON, r#"{"id": "#, (400, "malformed"), &["\"line\":1"]).await;
    check(subscribers, YAML, "id: bob", (415, "unsupported-media-type"), &["application/json"]).await;
    check(subscriptions, JSON, &strong(r#"{"magnitude": "big"}"#), (422, "invalid"), &["values.magnitude"]).await;
    check(subscriptions, JSON, &strong(r#"{"magnitude": 5, "colour": "red"}"#), (422, "invalid"), &["values.colour"])
        .await;
    check(
        subscriptions,
        JSON,
        &strong("{\"magnitude\": 5}").replace("strong", "stong"),
        (422, "invalid"),
        &["did you mean `strong`?"],
    )
    .await;
    check(
        subscriptions,
        JSON,
        &strong("{\"magnitude\": 5}").replace("alice", "nobody"),
        (422, "invalid"),
        &["subscriber", "nobody"],
    )
    .await;
    check(("GET", "/v1/subscribers/nobody"), JSON, "", (404, "not-found"), &["nobody"]).await;
    check(("GET", "/v1/subscriptions/15"), JSON, "", (400, "malformed"), &["s-15"]).await;
    check(("GET", "/v1/subscriptions/s-999999"), JSON, "", (404, "not-found"), &["s-999999"]).await;
    check(("GET", "/v1/subscribers?limit=0"), JSON, "", (422, "invalid"), &["from 1 to 1000"]).await;
    check(("GET", "/v1/subscribers?limt=5"), JSON, "", (400, "malformed"), &["limt"]).await;
    check(("GET", "/v1/subscribers?after=*"), JSON, "", (422, "invalid"), &["cursor"]).await;

    // Segments.
    let segments = ("POST", "/v1/segments");
    check(
        segments,
        JSON,
        r#"{"name": "a b", "filter": "(age>18)"}"#,
        (422, "invalid"),
        &["\"path\":\"name\"", "\"path\":\"filter\",\"line\":1,\"column\":5", "there is no operator `>`"],
    )
    .await;
    check(segments, JSON, r#"{"name": "preview", "filter": "(a=1)"}"#, (422, "invalid"), &["another name"]).await;
    check(segments, JSON, r#"{"name": "a"}"#, (422, "invalid"), &["filter", "is required"]).await;
    check(segments, YAML, "name: a", (415, "unsupported-media-type"), &["application/json"]).await;
    check(("PUT", "/v1/segments/a"), JSON, r#"{"name": "b", "filter": "(a=1)"}"#, (422, "invalid"), &["`b`"]).await;
    check(("PUT", "/v1/segments/1"), JSON, r#"{"filter": "(a=1)"}"#, (400, "malformed"), &["a name"]).await;
    let preview = ("POST", "/v1/segments/preview");
    check(preview, JSON, r#"{"filter": "(a=1)", "sample": 101}"#, (422, "invalid"), &["from 0 to 100"]).await;
    check(preview, JSON, r#"{"filter": "(a=1)", "after": "*"}"#, (422, "invalid"), &["cursor"]).await;
    check(preview, JSON, r#"{"filter": "(a=1", "sample": 1}"#, (422, "invalid"), &["not closed"]).await;
    let bomb = format!(r#"{{"filter": "{}"}}"#, "(!".repeat(5_000));
    check(preview, JSON, &bomb, (422, "invalid"), &["more than 100 deep"]).await;
    check(("GET", "/v1/segments/none/members"), JSON, "", (404, "not-found"), &["none"]).await;
    check(("DELETE", "/v1/segments/none"), JSON, "", (404, "not-found"), &["none"]).await;

    // Operations and keys.
    check(("GET", "/v1/trace/n-7"), JSON, "", (404, "not-found"), &["n-7"]).await;
    check(("GET", "/v1/event-batches/12"), JSON, "", (400, "malformed"), &["eb-12"]).await;
    check(("GET", "/v1/event-batches/eb-999"), JSON, "", (404, "not-found"), &["eb-999"]).await;
    check(("POST", "/v1/suspensions/resume"), JSON, "{}", (422, "invalid"), &["all"]).await;
    check(("POST", "/v1/keys"), JSON, r#"{"scopes": ["fly"]}"#, (422, "invalid"), &["scopes[0]", "events:write"]).await;
    check(("DELETE", "/v1/keys/nothing"), JSON, "", (404, "not-found"), &[]).await;

    // Endpoints and resends.
    check(("GET", "/v1/endpoints?state=broken"), JSON, "", (422, "invalid"), &["broken", "failing, warned, disabled"])
        .await;
    check(("GET", "/v1/endpoints?limit=0"), JSON, "", (422, "invalid"), &["from 1 to 1000"]).await;
    check(("GET", "/v1/endpoints?chanel=mail"), JSON, "", (400, "malformed"), &["chanel"]).await;
    check(("GET", "/v1/endpoints?channel=a%20b"), JSON, "", (400, "malformed"), &["a name"]).await;
    for path in ["/v1/endpoints?after=*", "/v1/endpoints?after=cXVha2Vz"] {
        check(("GET", path), JSON, "", (422, "invalid"), &["cursor"]).await;
    }
    let resends = ("POST", "/v1/resends");
    for (draft, said) in [
        (r#"{}"#, &["names nothing that is to be sent again", r#"{\"all\": true}"#][..]),
        (r#"{"outcomes": []}"#, &["\"path\":\"outcomes\"", "is empty"]),
        (r#"{"outcomes": ["delivered"]}"#, &["`delivered` is nothing that can be sent again"]),
        (r#"{"outcomes": ["expired"], "all": true}"#, &["`expired`", "as_new"]),
        (r#"{"outcomes": ["suspended"], "as_new": true, "all": true}"#, &["goes out under its own id"]),
        (r#"{"since": "2026-02-01T00:00:00Z", "until": "2026-01-01T00:00:00Z"}"#, &["\"path\":\"until\""]),
        (r#"{"device": "mail"}"#, &["\"path\":\"subscriber\"", "is required"]),
        (r#"{"subscriber": "nobody"}"#, &["`nobody` does not exist"]),
        (r#"{"subscriber": "alice", "device": "phone"}"#, &["is no device of the subscriber"]),
        (r#"{"subscriber": "alice", "device": "mail", "channel": "sms"}"#, &["is not that of the device: `mail`"]),
        (r#"{"reason": ""}"#, &["\"path\":\"reason\"", "1 to 256 bytes"]),
        (r#"{"notification": "7"}"#, &["n-"]),
        (r#"{"chanel": "mail"}"#, &["did you mean `channel`?"]),
        (r#"{"all": true, "after": "bmItMQ"}"#, &["is for previews"]),
        ("[]", &["named members"]),
    ] {
        check(resends, JSON, draft, (422, "invalid"), said).await;
    }
    check(resends, JSON, "{", (400, "malformed"), &["\"line\":1"]).await;
    check(resends, YAML, "all: true", (415, "unsupported-media-type"), &["application/json"]).await;
    check(("POST", "/v1/resends/preview"), JSON, r#"{"all": true, "after": "*"}"#, (422, "invalid"), &["cursor"]).await;
    check(("GET", "/v1/resends/first"), JSON, "", (404, "not-found"), &["first"]).await;
    check(("GET", "/v1/resends/7"), JSON, "", (404, "not-found"), &["7"]).await;
    check(("GET", "/v1/resends?after=first"), JSON, "", (400, "malformed"), &["after"]).await;
    check(("GET", "/v1/resends?limit=1001"), JSON, "", (422, "invalid"), &["from 1 to 1000"]).await;

    // Addresses and methods.
    check(("GET", "/v2/everything"), JSON, "", (404, "not-found"), &["/v2/everything"]).await;
    check(("PATCH", "/v1/applications/quakes"), JSON, "", (405, "method-not-allowed"), &[]).await;
    platform.stop().await;
}

#[tokio::test]
async fn bodies_have_bounds() {
    let platform = Platform::with_quakes().await;
    let large = format!(r#"{{"id": "{}"}}"#, "x".repeat(1024 * 1024));
    check(&platform, ("POST", "/v1/subscribers"), JSON, &large, (413, "too-large"), &["1048576"]).await;
    // Without `Content-Length`, the limit is detected while the body is read.
    let chunks = (0..20).map(|_| Ok::<_, std::io::Error>(vec![b' '; 100_000]));
    let body = reqwest::Body::wrap_stream(futures_util::stream::iter(chunks));
    let (status, problem) =
        answer(platform.request("POST", "/v1/subscribers").header("content-type", JSON).body(body)).await;
    assert_eq!((status.as_u16(), problem["bytes_max"].as_u64()), (413, Some(1_048_576)), "{problem}");
    platform.stop().await;
}

#[tokio::test]
async fn keys_open_only_what_they_may() {
    let platform = Platform::with_quakes().await;
    let (status, made) =
        platform.post("/v1/keys", JSON, r#"{"description": "publisher", "scopes": ["events:write"]}"#).await;
    assert_eq!(status, 201, "{made}");
    let (id, key) = (made["id"].as_str().expect("an id"), made["key"].as_str().expect("a key"));
    let with = |key: String, method: &str, path: &str| {
        let method = reqwest::Method::from_bytes(method.as_bytes()).expect("a method");
        let request = platform.client.request(method, format!("{}{path}", platform.address));
        let request = request.header("content-type", JSON).body(r#"{"place": "Kobe", "magnitude": 6.1}"#);
        if key.is_empty() { request } else { request.header("x-api-key", key) }
    };
    let event = "/v1/applications/quakes/events/quake";
    let cases: [(&str, &str, &str, u16, &str); 5] = [
        (key, "POST", event, 202, ""),
        (key, "GET", "/v1/subscribers", 403, "subscribers:read"),
        (key, "POST", "/v1/keys", 403, "keys:write"),
        ("", "POST", event, 401, "no key"),
        ("tocsin_00000000_0000", "POST", event, 401, "not known"),
    ];
    for (key, method, path, expected, said) in cases {
        let (status, body) = answer(with(key.to_owned(), method, path)).await;
        assert_eq!(status, expected, "{method} {path}: {body}");
        assert!(body.to_string().contains(said), "{method} {path}: {body}");
    }
    // A key cannot grant scopes that it does not have.
    let (_, maker) = platform.post("/v1/keys", JSON, r#"{"scopes": ["keys:write"]}"#).await;
    let maker = maker["key"].as_str().expect("a key").to_owned();
    let (status, body) = answer(with(maker, "POST", "/v1/keys").body(r#"{"scopes": ["admin"]}"#)).await;
    assert_eq!((status.as_u16(), body["scope"].as_str()), (403, Some("admin")), "{body}");
    // A removed key is rejected at once.
    let (status, _) = answer(platform.request("DELETE", &format!("/v1/keys/{id}"))).await;
    assert_eq!(status, 204);
    let (status, body) = answer(with(key.to_owned(), "POST", event)).await;
    assert_eq!(status, 401, "{body}");
    let (_, list) = platform.get("/v1/keys").await;
    assert!(!list.to_string().contains("hash") && !list.to_string().contains("\"key\""), "{list}");
    platform.stop().await;
}

#[tokio::test]
async fn b39_a_question_about_what_never_was_is_not_answered_with_nothing() {
    let platform = Platform::with_quakes().await;
    let lists = [
        ("/v1/reports/event-class?application=", "quakes", "quaks"),
        ("/v1/reports/event-batch-list?application=quakes&class=", "quake", "quak"),
        ("/v1/reports/notification-batch-list?application=quakes&rule=", "strong_enough", "strong"),
        ("/v1/reports/channel?application=quakes&channel=", "mail", "mial"),
        ("/v1/reports/source?application=quakes&source=", "api", "apy"),
        ("/v1/reports/snapshot-applications?application=", "quakes", "quaks"),
        ("/v1/suspensions?application=", "quakes", "quaks"),
        ("/v1/suspensions?channel=", "mail", "mial"),
        ("/v1/suspensions?application=quakes&class=", "shaken", "strong"),
        ("/v1/subscriptions?application=", "quakes", "quaks"),
        ("/v1/subscriptions?application=quakes&class=", "strong", "stong"),
        ("/v1/export/subscriptions?application=", "quakes", "quaks"),
        ("/v1/firings?application=", "quakes", "quaks"),
        ("/v1/firings?rule=", "strong_enough", "strong"),
        ("/v1/slow-firings?application=quakes&rule=", "strong_enough", "strong"),
        ("/v1/delayed-notifications?application=", "quakes", "quaks"),
        ("/v1/delayed-notifications?rule=", "strong_enough", "strong"),
        ("/v1/endpoints?application=", "quakes", "quaks"),
        ("/v1/endpoints?channel=", "mail", "mial"),
        ("/v1/subscribers/alice/inbox?application=", "quakes", "quaks"),
    ];
    for (path, known, unknown) in lists {
        let (status, answer) = platform.get(&format!("{path}{known}")).await;
        assert_eq!(status, 200, "{path}{known}: {answer}");
        let (status, answer) = platform.get(&format!("{path}{unknown}")).await;
        let detail = answer["detail"].as_str().unwrap_or_default();
        assert_eq!(status, 404, "{path}{unknown}: {answer}");
        assert!(detail.contains(&format!("`{unknown}`")), "{path}{unknown}: {answer}");
    }
    let acts = [
        ("/v1/suspensions/resume", json!({"application": "quaks"})),
        ("/v1/delayed-notifications/cancel", json!({"application": "quaks"})),
        ("/v1/resends/preview", json!({"application": "quaks"})),
        ("/v1/resends", json!({"application": "quakes", "class": "shakn"})),
    ];
    for (path, body) in acts {
        let (status, answer) = platform.post(path, "application/json", &body.to_string()).await;
        assert_eq!(status, 404, "{path} {body}: {answer}");
    }
    // Removed names can still be used in filters.
    let without = QUAKES.replace("strong_enough", "other_rule");
    assert_eq!(platform.put("/v1/applications/quakes", "application/yaml", &without).await.0, 200);
    assert_eq!(platform.get("/v1/firings?application=quakes&rule=strong_enough").await.0, 200);
    assert_eq!(
        crate::platform::answer(platform.request("DELETE", "/v1/applications/quakes?confirm=quakes")).await.0,
        204
    );
    assert_eq!(platform.get("/v1/reports/event-class?application=quakes").await.0, 200);
    platform.stop().await;
}
