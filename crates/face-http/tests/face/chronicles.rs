//! Chronicles over HTTP.

use serde_json::json;

use crate::platform::{Platform, QUAKES};

const JSON: &str = "application/json";
const PATH: &str = "/v1/applications/quakes/chronicles";

/// Submits three quakes at two places.
async fn platform() -> Platform {
    let platform = Platform::with_quakes().await;
    let chronicle = "subscriptions:\n";
    let kept = "    chronicles: { here: { by: place, of: event.magnitude, keys: 7 } }\nsubscriptions:\n";
    let seen = QUAKES.replacen(chronicle, kept, 1).replace(
        "event.magnitude >= sub.magnitude",
        "event.magnitude >= sub.magnitude && event.magnitude > chronicle.here.high.before",
    );
    let (status, body) = platform.put("/v1/applications/quakes", "application/yaml", &seen).await;
    assert_eq!(status, 200, "{body}");
    let events = r#"[{"place":"Lima","magnitude":7},{"place":"Kobe","magnitude":5},{"place":"Lima","magnitude":6}]"#;
    let (status, body) = platform.post("/v1/applications/quakes/events/quake", JSON, events).await;
    assert_eq!(status, 202, "{body}");
    // Events are matched after the response, so the result is polled.
    for _ in 0..10_000 {
        let (_, found) = platform.get(PATH).await;
        if found["items"][0]["keys"] == 2 {
            return platform;
        }
    }
    panic!("the events are not matched");
}

#[tokio::test]
async fn chronicles_say_what_they_know_of_a_key() {
    let platform = platform().await;
    let (status, found) = platform.get(PATH).await;
    assert_eq!(status, 200, "{found}");
    let chronicle = json!({
        "class": "quake", "name": "here", "keeps": "follows event.magnitude by place", "key": ["place"],
        "gives": ["last", "previous", "first", "low", "high", "count", "sum", "mean", "last_at"],
        "keys": 2, "keys_max": 7,
    });
    assert_eq!(found["items"], json!([chronicle]), "{found}");
    let (_, lima) = platform.get(&format!("{PATH}/quake/here?key=%7B%22place%22:%22Lima%22%7D")).await;
    assert_eq!(lima["items"][0]["key"], json!({"place": "Lima"}), "{lima}");
    assert_eq!(lima["items"][0]["values"]["high"], 7.0, "{lima}");
    assert_eq!(lima["items"][0]["values"]["last"], 6.0, "{lima}");
    assert_eq!(lima["items"][0]["values"]["count"], 2, "{lima}");
    let (_, nobody) = platform.get(&format!("{PATH}/quake/here?key=%7B%22place%22:%22Oslo%22%7D")).await;
    assert_eq!(nobody["items"], json!([]), "{nobody}");
    // Paginated, each key once.
    let (_, first) = platform.get(&format!("{PATH}/quake/here?limit=1")).await;
    let next = first["next"].as_str().expect("a next page");
    let (_, second) = platform.get(&format!("{PATH}/quake/here?limit=1&after={next}")).await;
    let places = [&first["items"][0]["key"]["place"], &second["items"][0]["key"]["place"]];
    assert_eq!((places, second["next"].is_null()), ([&json!("Kobe"), &json!("Lima")], true), "{first} {second}");
    // A rule is tested on the given events as if they had arrived now.
    let asked = json!({
        "rule": "strong_enough",
        "events": [{"place": "Lima", "magnitude": 7.0}, {"place": "Lima", "magnitude": 7.5}],
        "subscription": {"values": {"magnitude": 1}},
    });
    let (_, tried) = platform.post("/v1/applications/quakes/rules/test", JSON, &asked.to_string()).await;
    let verdicts = [&tried["events"][0]["matches"], &tried["events"][1]["matches"]];
    assert_eq!(verdicts, [&json!(0), &json!(1)], "{tried}");
    let values = &tried["events"][1]["trial"]["conditions"][1]["values"];
    assert_eq!(values[1], json!({"field": "chronicle.here.high.before", "value": "7.0"}), "{tried}");
    platform.stop().await;
}

#[tokio::test]
async fn a_query_that_joins_with_a_chronicle_is_tried_as_if_events_came_now() {
    let platform = platform().await;
    let sql = "SELECT e._event, s._subscription FROM events e JOIN strong s
        JOIN \"quake.here\" h ON h.place = e.place WHERE h._count > 2";
    let joined = json!({"on": "quake", "subscription": "strong", "notify": "shaken", "sql": sql});
    let kept = "    chronicles: { here: { by: place, of: event.magnitude, keys: 7 } }\nsubscriptions:\n";
    let definition = QUAKES.replacen("subscriptions:\n", kept, 1);
    let definition = definition.replace("\nrules:\n", &format!("\nrules:\n  joined: {joined}\n"));
    let (status, body) = platform.put("/v1/applications/quakes", "application/yaml", &definition).await;
    assert_eq!(status, 200, "{body}");
    let subscriber =
        json!({"application": "quakes", "class": "strong", "subscriber": "alice", "values": {"magnitude": 9}});
    let (status, body) = platform.post("/v1/subscriptions", JSON, &subscriber.to_string()).await;
    assert_eq!(status, 201, "{body}");
    let shown = async |asked: serde_json::Value| {
        let (status, found) = platform.post("/v1/applications/quakes/rules/test", JSON, &asked.to_string()).await;
        assert_eq!(status, 200, "{found}");
        let events = found["events"].as_array().expect("events").iter();
        events.map(|event| event["matches"].as_u64().expect("a number") > 0).collect::<Vec<_>>()
    };
    // The chronicle has two events of Lima and none of Oslo.
    let events = json!([{"place": "Lima", "magnitude": 1}, {"place": "Oslo", "magnitude": 1}]);
    assert_eq!(shown(json!({"rule": "joined", "events": events})).await, [true, false]);
    assert_eq!(shown(json!({"rule": "joined", "last": 3})).await, [false, false, false]);
    platform.stop().await;
}

#[tokio::test]
async fn what_is_asked_wrongly_is_said() {
    let platform = platform().await;
    let (status, body) = platform.get(&format!("{PATH}/quake/there")).await;
    assert_eq!(status, 404, "{body}");
    for (query, said) in [
        ("key=Lima", "give its fields as a JSON object"),
        ("key=%7B%22palce%22:1%7D", "did you mean `place`?"),
        ("key=%7B%22place%22:1%7D", "should be a string"),
        ("after=!", "cursor"),
        ("limit=0", "limit"),
    ] {
        let (status, body) = platform.get(&format!("{PATH}/quake/here?{query}")).await;
        assert_eq!(status, 422, "{query}: {body}");
        assert!(body.to_string().contains(said), "{query}: {body}");
    }
    platform.stop().await;
}
