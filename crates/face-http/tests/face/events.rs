//! Every way of submitting events, and the results.

use crate::platform::{Platform, answer};

const EVENTS: &str = "/v1/applications/quakes/events";
const QUAKE: &str = "/v1/applications/quakes/events/quake";
const KOBE: &str = r#"{"place": "Kobe", "magnitude": 6.1}"#;

#[tokio::test]
async fn one_many_and_lines() {
    let platform = Platform::with_quakes().await;
    let (status, one) = platform.post(QUAKE, "application/json", KOBE).await;
    assert_eq!(
        (status.as_u16(), one["events"].as_u64(), one["duplicate"].as_bool()),
        (202, Some(1), Some(false)),
        "{one}"
    );
    let many = format!("[{}]", vec![KOBE; 2_500].join(","));
    let (status, many) = platform.post(QUAKE, "application/json", &many).await;
    assert_eq!((status.as_u16(), many["events"].as_u64()), (202, Some(2_500)), "{many}");
    let lines = vec![KOBE; 2_500].join("\n");
    let (status, lines) = platform.post(QUAKE, "application/x-ndjson", &lines).await;
    assert_eq!((status.as_u16(), lines["events"].as_u64()), (202, Some(2_500)), "{lines}");
    assert_eq!(lines["batches"].as_array().map(Vec::len), Some(3), "{lines}");
    let id = one["batch"].as_str().expect("an id");
    let (_, batch) = platform.get(&format!("/v1/event-batches/{id}")).await;
    assert_eq!((batch["class"].as_str(), batch["source"].as_str()), (Some("quake"), Some("api")), "{batch}");
    let (_, events) = platform.get(&format!("/v1/event-batches/{id}/events")).await;
    assert_eq!(events["items"][0]["place"], "Kobe", "{events}");
    let (_, newest) = platform.get("/v1/event-batches?limit=2").await;
    let (_, older) =
        platform.get(&format!("/v1/event-batches?before={}", newest["next"].as_str().expect("more"))).await;
    assert_eq!(older["items"].as_array().map(Vec::len), Some(3), "{older}");
    platform.stop().await;
}

#[tokio::test]
async fn a_key_makes_a_submission_repeatable() {
    let platform = Platform::with_quakes().await;
    let send = async |kind: &str, key: &str, body: &str| {
        let request = platform.request("POST", QUAKE).header("content-type", kind).header("idempotency-key", key);
        answer(request.body(body.to_owned())).await
    };
    let (_, first) = send("application/json", "a", KOBE).await;
    let (status, again) = send("application/json", "a", KOBE).await;
    assert_eq!((status.as_u16(), &again["batch"], again["duplicate"].as_bool()), (202, &first["batch"], Some(true)));
    let (status, other) = send("application/json", "a", &KOBE.replace("Kobe", "Lima")).await;
    assert_eq!((status.as_u16(), other["type"].as_str()), (409, Some("/problems/idempotency-key-reused")), "{other}");
    assert_eq!(other["batch"], first["batch"]);
    let (status, _) = send("application/json", &"x".repeat(256), KOBE).await;
    assert_eq!(status, 422);
    // Idempotency keys are scoped by caller.
    let (_, secret) = platform.make_key(&["events:write"]).await;
    let elsewhere = platform.client.post(format!("{}{QUAKE}", platform.address)).bearer_auth(&secret);
    let elsewhere = elsewhere.header("content-type", "application/json");
    let (status, foreign) = answer(elsewhere.header("idempotency-key", "a").body(KOBE)).await;
    assert_eq!((status.as_u16(), foreign["duplicate"].as_bool()), (202, Some(false)), "{foreign}");
    assert_ne!(foreign["batch"], first["batch"]);
    // Each batch of a stream has its own number under the key.
    let lines = vec![KOBE; 1_500].join("\n");
    let (_, first) = send("application/x-ndjson", "lines", &lines).await;
    assert_eq!((first["duplicates"].as_u64(), first["events"].as_u64()), (Some(0), Some(1_500)), "{first}");
    let (_, again) = send("application/x-ndjson", "lines", &lines).await;
    assert_eq!((again["duplicates"].as_u64(), &again["batches"]), (Some(1_500), &first["batches"]), "{again}");
    platform.stop().await;
}

#[tokio::test]
async fn cloud_events_in_three_modes_are_known_by_source_and_id() {
    let platform = Platform::with_quakes().await;
    let event = |id: &str| {
        format!(
            r#"{{"specversion":"1.0","id":"{id}","source":"/usgs","type":"gov.usgs.quake","time":"2026-11-21T00:00:00Z","data":{KOBE}}}"#
        )
    };
    let structured = "application/cloudevents+json; charset=utf-8";
    let (status, one) = platform.post(EVENTS, structured, &event("1")).await;
    assert_eq!((status.as_u16(), one["duplicate"].as_bool()), (202, Some(false)), "{one}");
    let batch = format!("[{},{},{}]", event("1"), event("2"), event("3"));
    let (status, many) = platform.post(EVENTS, "application/cloudevents-batch+json", &batch).await;
    assert_eq!(
        (status.as_u16(), many["events"].as_u64(), many["duplicates"].as_u64()),
        (202, Some(3), Some(1)),
        "{many}"
    );
    let binary = |id: &str| {
        let request = platform.request("POST", EVENTS).header("content-type", "application/json");
        let request = request.header("ce-specversion", "1.0").header("ce-type", "quake").header("ce-source", "%2Fusgs");
        request.header("ce-id", id).body(KOBE)
    };
    let (status, same) = answer(binary("2")).await;
    assert_eq!((status.as_u16(), same["duplicate"].as_bool()), (202, Some(true)), "{same}");
    let (_, new) = answer(binary("4")).await;
    assert_eq!(new["duplicate"], false, "{new}");
    let (_, batch) = platform.get(&format!("/v1/event-batches/{}", new["batch"].as_str().expect("an id"))).await;
    assert_eq!(batch["class"], "quake", "{batch}");
    platform.stop().await;
}

#[tokio::test]
async fn an_event_can_be_followed_to_its_receipt() {
    let platform = Platform::with_quakes().await;
    let subscription = r#"{"application":"quakes","class":"strong","subscriber":"alice","values":{"magnitude":5}}"#;
    let (status, body) = platform.post("/v1/subscriptions", "application/json", subscription).await;
    assert_eq!(status, 201, "{body}");
    // The match index applies the change feed with a delay. Until then an event matches no subscription, so another
    // one is sent.
    let (trace, event) = loop {
        let (_, one) = platform.post(QUAKE, "application/json", KOBE).await;
        let event = format!("e-{}-0", one["batch"].as_str().and_then(|id| id.strip_prefix("eb-")).expect("an id"));
        let matched = loop {
            let (_, trace) = platform.get(&format!("/v1/trace/{event}")).await;
            let points = trace["timeline"].as_array().expect("points").clone();
            if trace["notifications"]["delivered"] == 1 {
                break Some(trace);
            }
            let is_matched = points.iter().any(|point| point["what"] == "matched");
            if is_matched && trace["notifications"].as_object().is_some_and(serde_json::Map::is_empty) {
                break None;
            }
            tokio::task::yield_now().await;
        };
        if let Some(trace) = matched {
            break (trace, event);
        }
    };
    let words: Vec<&str> =
        trace["timeline"].as_array().expect("points").iter().filter_map(|point| point["what"].as_str()).collect();
    for what in ["received", "accepted", "matched", "formatted", "sent", "delivered"] {
        assert!(words.contains(&what), "{event}: {trace}");
    }
    let id = trace["timeline"]
        .as_array()
        .expect("points")
        .iter()
        .rev()
        .find_map(|point| point["id"].as_str())
        .expect("an id");
    let (status, notification) = platform.get(&format!("/v1/notifications/{id}")).await;
    assert_eq!(status, 200, "{notification}");
    assert_eq!(notification["fields"]["place"], "Kobe", "{notification}");
    assert_eq!(notification["recipient"]["subscriber"], "alice", "{notification}");
    assert_eq!(notification["state"], "delivered", "{notification}");
    let (_, of_alice) = platform.get("/v1/trace/alice").await;
    assert_eq!(
        (of_alice["kind"].as_str(), of_alice["notifications"]["delivered"].as_u64()),
        (Some("subscriber"), Some(1))
    );
    // Its notifications are of different events, so their times have no sum.
    let durations = of_alice["latencies"].as_object().expect("an object");
    assert!(durations.values().all(serde_json::Value::is_null), "{durations:?}");
    assert!(trace["latencies"].as_object().expect("an object").values().all(serde_json::Value::is_number), "{trace}");
    let (_, batches) = platform.get("/v1/notification-batches").await;
    let batch = batches["items"][0]["id"].as_str().expect("a batch").to_owned();
    let (_, batch) = platform.get(&format!("/v1/notification-batches/{batch}")).await;
    assert_eq!(batch["outcomes"]["delivered"], 1, "{batch}");
    assert_eq!(platform.far_ends.seen().len(), 1, "{:?}", platform.far_ends.seen());
    platform.stop().await;
}

#[tokio::test]
async fn d_cloud_events_of_every_form_are_read_by_the_specification() {
    let platform = Platform::with_quakes().await;
    let encoded = base64::Engine::encode(&base64::prelude::BASE64_STANDARD, KOBE);
    let unpadded = encoded.trim_end_matches('=').to_owned();
    let mut number = 0;
    let mut event = |more: &str| {
        number += 1;
        format!(r#"{{"specversion":"1.0","id":"n{number}","source":"/usgs","type":"quake"{more}}}"#)
    };
    let mut good = vec![
        format!(r#","datacontenttype":"application/json","data_base64":"{encoded}""#),
        format!(r#","data_base64":"{encoded}""#),
        format!(r#","data_base64":"{unpadded}""#),
        format!(r#","data_base64":null,"data":{KOBE}"#),
        format!(r#","datacontenttype":null,"data":{KOBE}"#),
    ];
    for kind in ["APPLICATION/JSON", "application/json; charset=utf-8", "application/vnd.quake+JSON;v=1", "text/json"] {
        good.push(format!(r#","datacontenttype":"{kind}","data":{KOBE}"#));
        good.push(format!(r#","datacontenttype":"{kind}","data_base64":"{encoded}""#));
    }
    good.push(format!(r#","comexample":"x","a1":7,"b2":true,"data":{KOBE}"#));
    for more in &good {
        let body = event(more);
        let (status, answer) = platform.post(EVENTS, "application/cloudevents+json", &body).await;
        assert_eq!(status.as_u16(), 202, "{body}: {answer}");
        let (status, answer) = platform
            .post(EVENTS, "Application/CloudEvents-Batch+JSON; charset=UTF-8", &format!("\u{feff}[{}]", event(more)))
            .await;
        assert_eq!((status.as_u16(), answer["events"].as_u64()), (202, Some(1)), "{more}: {answer}");
    }
    let (status, none) = platform.post(EVENTS, "application/cloudevents-batch+json", "[]").await;
    assert_eq!((status.as_u16(), none["events"].as_u64()), (202, Some(0)), "{none}");
    for (body, expected) in [
        (event(r#","data_base64":"!!""#), "data_base64"),
        (event(r#","data_base64":7"#), "should be a string"),
        (event(&format!(r#","data_base64":"{encoded}","data":{KOBE}"#)), "stands beside `data`"),
        (event(r#","datacontenttype":"text/plain","data":"x""#), "is not JSON"),
        (event(r#","data":"{\"place\": \"Kobe\"}""#), "an object with the fields"),
        (event(r#","data":[1]"#), "an object with the fields"),
        (event(&format!(r#","data":{KOBE},"id":"again""#)), "is given twice"),
        (event(r#","data":{"place":"\ud800"}"#), "hex escape"),
        (r#"{"id":"1","source":"/s","type":"quake"}"#.to_owned(), "\"path\":\"specversion\""),
        (r#"{"specversion":"0.3","id":"1","source":"/s","type":"quake"}"#.to_owned(), "CloudEvents 1.0"),
        (r#"{"specversion":1.0,"id":"1","source":"/s","type":"quake"}"#.to_owned(), "\"path\":\"specversion\""),
        (r#"{"specversion":"1.0","id":7,"source":"/s","type":"quake"}"#.to_owned(), "\"path\":\"id\""),
        (r#"{"specversion":"1.0","id":"","source":"/s","type":"quake"}"#.to_owned(), "\"path\":\"id\""),
        (r#"{"specversion":"1.0"}"#.to_owned(), "\"path\":\"source\""),
        ("[]".to_owned(), "cloudevents-batch+json"),
        ("7".to_owned(), "problems"),
    ] {
        let (status, answer) = platform.post(EVENTS, "application/cloudevents+json", &body).await;
        assert!(matches!(status.as_u16(), 400 | 422), "{body}: {answer}");
        assert!(answer.to_string().contains(expected), "{body} should say {expected}: {answer}");
    }
    let many = vec!["{}"; 11_000].join(",");
    let (status, listed) = platform.post(EVENTS, "application/cloudevents-batch+json", &format!("[{many}]")).await;
    assert_eq!(status, 422, "{listed}");
    let many = vec!["{}"; 2_000].join(",");
    let (_, listed) = platform.post(EVENTS, "application/cloudevents-batch+json", &format!("[{many}]")).await;
    assert_eq!(listed["problems"].as_array().map(Vec::len), Some(101), "{listed}");
    assert_eq!(listed["problems"][100]["message"], "and 7900 more", "{listed}");
    let binary = |id: &str, kind: Option<&str>| {
        let request = platform.request("POST", EVENTS);
        let request =
            request.header("ce-specversion", "1.0").header("ce-type", "quake").header("ce-source", "\"a \\\"b\\\"\"");
        let request = request.header("ce-id", id);
        if let Some(kind) = kind { request.header("content-type", kind) } else { request }
    };
    for (id, kind) in [("b1", Some("application/json")), ("b2", Some("APPLICATION/vnd.x+json; a=b")), ("b3", None)] {
        let (status, answer) = answer(binary(id, kind).body(format!("\u{feff}{KOBE}"))).await;
        assert_eq!(status, 202, "{id}: {answer}");
    }
    let (status, answer) = answer(binary("b4", Some("application/json")).header("ce-id", "b5").body(KOBE)).await;
    assert!(status == 422 && answer.to_string().contains("more than once"), "{answer}");
    platform.stop().await;
}

#[tokio::test]
async fn d_a_binary_cloud_event_at_the_route_of_a_class_is_refused() {
    let platform = Platform::with_quakes().await;
    for (kind, header) in [
        ("application/json", "ce-id"),
        ("application/x-ndjson", "ce-specversion"),
        ("application/json", "Ce-Type"),
        ("application/json", "ce-source"),
    ] {
        let request = platform.request("POST", QUAKE).header("content-type", kind).header(header, "1.0");
        let (status, refused) = answer(request.body(KOBE)).await;
        assert!(status == 422 && refused["problems"][0]["path"] == header.to_lowercase(), "{refused}");
        assert!(refused.to_string().contains("/v1/applications/quakes/events`"), "{refused}");
    }
    let request = platform.request("POST", QUAKE).header("content-type", "application/json");
    assert_eq!(answer_of(request.header("ce-comexample", "x").body(KOBE)).await, 202, "it is no CloudEvent");
    platform.stop().await;
}

async fn answer_of(request: reqwest::RequestBuilder) -> u16 {
    answer(request).await.0.as_u16()
}

#[tokio::test]
async fn a19_a_body_is_counted_by_the_values_it_holds() {
    let platform = Platform::with_quakes().await;
    let keys: Vec<String> = (0..200_000).map(|at| format!("\"k{at}\":{{}}")).collect();
    let unknown = format!("{{{}}}", keys.join(","));
    for body in [unknown.clone(), format!("[{unknown}]")] {
        let response = platform.request("POST", QUAKE).header("content-type", "application/json").body(body);
        let response = response.send().await.expect("an answer");
        assert_eq!(response.status(), 422);
        let text = response.text().await.expect("text");
        let is_counted = text.contains("and 199902 more") || text.contains("and more: what follows was not read");
        assert!(text.len() < 40_000 && is_counted, "{} bytes", text.len());
    }
    let (status, answer) =
        platform.post(QUAKE, "application/x-ndjson", &format!("{{{}}}", keys[..20_000].join(","))).await;
    assert!(status == 422 && answer["problems"].as_array().is_some_and(|problems| problems.len() == 101), "{answer}");
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let wide = format!("[{}]", vec!["{}"; 300_000].join(","));
    for value in [&deep, &wide] {
        let subscriber = format!(r#"{{"id":"bob","attributes":{{"a":{value}}}}}"#);
        let (status, answer) = platform.post("/v1/subscribers", "application/json", &subscriber).await;
        assert_eq!(status, 422, "{answer}");
        let patch = platform.request("PATCH", "/v1/subscribers/alice");
        let patch = patch.header("content-type", "application/merge-patch+json").body(subscriber.clone());
        assert_eq!(answer_of(patch).await, 422);
        let (_, answer) = platform.post("/v1/import/subscribers", "application/x-ndjson", &subscriber).await;
        let answer = answer.to_string();
        assert!(answer.contains("nested deeper") || answer.contains("holds more than"), "{answer}");
    }
    // A byte-order mark before JSON is ignored.
    let (status, answer) = platform.post("/v1/subscribers", "application/json", "\u{feff}{\"id\":\"bom\"}").await;
    assert_eq!(status, 201, "{answer}");
    let (status, answer) = platform.post(QUAKE, "application/json", &format!("\u{feff}{KOBE}")).await;
    assert_eq!(status, 202, "{answer}");
    let (status, answer) = platform.post(QUAKE, "application/json", &format!("\u{feff}[{KOBE}]")).await;
    assert_eq!(status, 202, "{answer}");
    let (status, answer) = platform.post(QUAKE, "application/x-ndjson", &format!("\u{feff}{KOBE}\n{KOBE}")).await;
    assert_eq!((status.as_u16(), answer["events"].as_u64()), (202, Some(2)), "{answer}");
    platform.stop().await;
}

#[tokio::test]
async fn e4_no_text_of_json_test_suite_is_more_than_refused() {
    let platform = Platform::with_quakes().await;
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../sources/testdata/json-parsing");
    let mut count = 0;
    for entry in std::fs::read_dir(folder).expect("the suite is in the repository") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().and_then(|name| name.to_str()).expect("a name").to_owned();
        let text = std::fs::read(&path).expect("a file");
        for (address, kind) in [
            (QUAKE, "application/json"),
            (QUAKE, "application/x-ndjson"),
            (EVENTS, "application/cloudevents+json"),
            ("/v1/subscribers", "application/json"),
        ] {
            let response = platform.request("POST", address).header("content-type", kind).body(text.clone());
            let status = response.send().await.expect("an answer").status().as_u16();
            // Empty lines are skipped, so a blank body has no lines.
            let is_refused = matches!(status, 400 | 422)
                || kind == "application/x-ndjson" && status == 202 && text.trim_ascii().is_empty();
            assert!(is_refused, "{name} to {address} as {kind}: {status}");
        }
        count += 1;
    }
    assert_eq!(count, 318);
    let (status, answer) = platform.post(QUAKE, "application/json", KOBE).await;
    assert_eq!(status, 202, "{answer}");
    platform.stop().await;
}
