//! Explanations over HTTP: why a notification was sent, or was not.

use serde_json::{Value as Json, json};

use crate::platform::{Platform, QUAKES, answer};

const JSON: &str = "application/json";

/// The quakes with filters, a tree of conditions and a rule with a cooldown.
async fn platform() -> Platform {
    let platform = Platform::with_quakes().await;
    let definition = QUAKES.replace("  strong:\n", "  strong:\n    filter: cel\n").replace(
        "    when: event.magnitude >= sub.magnitude\n",
        "    when: event.magnitude >= sub.magnitude && (event.place == 'Kobe' || !(event.magnitude < 7.0))\n    cooldown: 1h\n",
    );
    let (status, body) = platform.put("/v1/applications/quakes", "application/yaml", &definition).await;
    assert_eq!(status, 200, "{body}");
    platform
}

async fn subscribe(platform: &Platform, key: &str, filter: &str) -> String {
    let draft = format!(
        r#"{{"application":"quakes","class":"strong","subscriber":"alice","key":"{key}","values":{{"magnitude":5}},"filter":{filter}}}"#
    );
    let (status, body) = platform.post("/v1/subscriptions", JSON, &draft).await;
    assert_eq!(status, 201, "{body}");
    body["id"].as_str().expect("an id").to_owned()
}

/// Publishes an event and waits until it is matched and its notifications, if any, are delivered.
async fn publish(platform: &Platform, event: &str) -> String {
    let (status, body) = platform.post("/v1/applications/quakes/events/quake", JSON, event).await;
    assert_eq!(status, 202, "{body}");
    let batch = body["batch"].as_str().expect("a batch").to_owned();
    let settled = async {
        loop {
            let (_, trace) = platform.get(&format!("/v1/trace/{batch}")).await;
            let points = trace["timeline"].as_array().expect("points");
            let counts = trace["notifications"].as_object().expect("counts");
            if points.iter().any(|point| point["what"] == "matched") && !counts.contains_key("waiting") {
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(tocsin_test_peers::wait_timeout(), settled).await.expect("it is matched");
    format!("e-{}-0", batch.trim_start_matches("eb-"))
}

async fn explain(platform: &Platform, asked: Json) -> Json {
    let (status, found) = platform.post("/v1/explain", JSON, &asked.to_string()).await;
    assert_eq!(status, 200, "{asked}: {found}");
    found
}

fn gate<'a>(path: &'a Json, name: &str) -> &'a Json {
    let gates = path["gates"].as_array().expect("gates");
    gates.iter().find(|gate| gate["gate"] == name).unwrap_or_else(|| panic!("no gate `{name}`: {path}"))
}

/// Decision, deciding gate, and the code of that gate.
fn decision(path: &Json) -> (&str, &str, &str) {
    let deciding = path["deciding"].as_str().unwrap_or_default();
    let code = if deciding.is_empty() { "" } else { gate(path, deciding)["code"].as_str().unwrap_or_default() };
    let marked = path["gates"].as_array().expect("gates").iter().filter(|gate| gate["deciding"] == true);
    assert_eq!(marked.count(), usize::from(!deciding.is_empty()), "{path}");
    (path["decision"].as_str().expect("a decision"), deciding, code)
}

#[tokio::test]
async fn a_stored_event_is_explained_as_of_its_snapshot() {
    let platform = platform().await;
    let open = subscribe(&platform, "open", "null").await;
    let filtered = subscribe(&platform, "filtered", r#""event.place == 'Lima'""#).await;
    // The match index applies the change feed with a delay: until then an event matches no subscription.
    let strong = loop {
        let event = publish(&platform, r#"{"place":"Kobe","magnitude":6}"#).await;
        let found = explain(&platform, json!({"event": event, "subscription": open})).await;
        if found["paths"][0]["decision"] == "sent" {
            break event;
        }
    };
    let again = publish(&platform, r#"{"place":"Kobe","magnitude":8}"#).await;
    let weak = publish(&platform, r#"{"place":"Lima","magnitude":6}"#).await;
    let later = subscribe(&platform, "later", "null").await;

    let found = explain(&platform, json!({"event": strong, "subscriber": "alice"})).await;
    assert_eq!((&found["class"], &found["basis"]), (&json!("quake"), &json!("snapshot")), "{found}");
    assert_eq!((&found["event"]["state"], &found["event"]["fields"]["place"]), (&json!("matched"), &json!("Kobe")));
    let paths = found["paths"].as_array().expect("paths");
    let of = |id: &str| paths.iter().find(|path| path["subscription"] == id).expect("a path");
    let sent = of(&open);
    assert_eq!(decision(sent), ("sent", "", ""), "{sent}");
    assert_eq!(sent["outcome"], "delivered", "{sent}");
    assert!(sent["notification"].is_string(), "{sent}");
    assert!(sent["gates"].as_array().expect("gates").iter().all(|gate| gate["verdict"] == "passed"), "{sent}");
    assert_eq!(decision(of(&filtered)), ("not_sent", "filter", "filter_fails"), "{found}");
    assert_eq!(gate(of(&filtered), "filter")["conditions"][0]["decides"], true, "{found}");
    assert_eq!(decision(of(&later)), ("not_sent", "subscription", "subscription_later"), "{found}");

    let found = explain(&platform, json!({"event": again, "subscription": open})).await;
    let path = &found["paths"][0];
    assert_eq!(decision(path), ("not_sent", "state", "cooldown"), "{path}");
    assert!(gate(path, "state")["until"].is_string(), "{path}");
    assert_eq!(gate(path, "state")["object"], json!({"kind": "rule", "id": "strong_enough", "application": "quakes"}));

    // Its conditions are a tree; the values are those of the event.
    let found = explain(&platform, json!({"event": weak, "subscription": open})).await;
    let path = &found["paths"][0];
    assert_eq!(decision(path), ("not_sent", "condition", "condition_fails"), "{path}");
    let any = &gate(path, "condition")["conditions"][1];
    assert_eq!((&any["operator"], &any["verdict"], &any["decides"]), (&json!("any"), &json!("fails"), &Json::Null));
    assert_eq!(any["parts"][0]["decides"], true, "{any}");
    assert_eq!(any["parts"][0]["values"][0], json!({"field": "event.place", "value": "\"Lima\""}), "{any}");
    assert_eq!((&any["parts"][1]["operator"], &any["parts"][1]["parts"][0]["decides"]), (&json!("not"), &json!(true)));

    // A change of the subscription after the event changes no gate as of the event.
    let patch = platform.request("PATCH", &format!("/v1/subscriptions/{open}"));
    let patch = patch.header("content-type", "application/merge-patch+json");
    let (status, body) = answer(patch.body(r#"{"values":{"magnitude":9}}"#)).await;
    assert_eq!(status, 200, "{body}");
    let found = explain(&platform, json!({"event": weak, "subscription": open})).await;
    let first = &gate(&found["paths"][0], "condition")["conditions"][0];
    assert_eq!((&first["verdict"], &first["values"][1]["value"]), (&json!("holds"), &json!("5.0")), "{found}");
    platform.stop().await;
}

#[tokio::test]
async fn an_event_that_is_not_stored_is_explained_as_of_now() {
    let platform = platform().await;
    let open = subscribe(&platform, "open", "null").await;
    let asked = json!({"application": "quakes", "class": "quake", "fields": {"place": "Kobe", "magnitude": 6},
        "subscriber": "alice"});
    let found = explain(&platform, asked.clone()).await;
    assert_eq!((&found["event"]["state"], &found["basis"]), (&json!("given"), &json!("now")), "{found}");
    assert_eq!(decision(&found["paths"][0]), ("would_send", "", ""), "{found}");
    let change = async |method: &str, path: &str, body: &str| {
        let kind = if method == "PATCH" { "application/merge-patch+json" } else { JSON };
        let (status, found) =
            answer(platform.request(method, path).header("content-type", kind).body(body.to_owned())).await;
        assert!(status.is_success(), "{method} {path}: {status} {found}");
    };
    let alice = "/v1/subscribers/alice";
    let preferences = |of: Json| json!({"preferences": of}).to_string();
    let off = preferences(json!({"notifications": {"quakes/shaken": {"enabled": false}}}));
    change("PATCH", alice, &off).await;
    let found = explain(&platform, asked.clone()).await;
    assert_eq!(decision(&found["paths"][0]), ("not_sent", "preferences", "class_off"), "{found}");
    assert_eq!(gate(&found["paths"][0], "preferences")["object"], json!({"kind": "subscriber", "id": "alice"}));
    // Later gates have verdicts of their own.
    assert_eq!(gate(&found["paths"][0], "limits")["verdict"], "passed", "{found}");
    // A stored event is explained by the recorded decision.
    let found = loop {
        let event = publish(&platform, r#"{"place":"Kobe","magnitude":6}"#).await;
        let found = explain(&platform, json!({"event": event, "subscription": open})).await;
        // The match index applies the change feed with a delay.
        if found["paths"][0]["notification"].is_string() {
            break found;
        }
    };
    change("PATCH", alice, r#"{"preferences":null}"#).await;
    let path = &found["paths"][0];
    assert_eq!(decision(path), ("not_sent", "preferences", "class_off"), "{path}");
    assert_eq!(gate(path, "preferences")["as_of"], "recorded", "{path}");
    assert_eq!(
        (&gate(path, "recipient")["verdict"], &gate(path, "device")["verdict"]),
        (&json!("passed"), &json!("unknown"))
    );
    let id = path["notification"].as_str().expect("an id");
    let (_, notification) = platform.get(&format!("/v1/notifications/{id}")).await;
    assert_eq!(notification["attempts"][0]["code"], "class_off", "{notification}");
    change("PATCH", &format!("/v1/subscriptions/{open}"), r#"{"enabled":false}"#).await;
    let found = explain(&platform, asked.clone()).await;
    assert_eq!(decision(&found["paths"][0]), ("not_sent", "subscription", "subscription_inactive"), "{found}");
    change("DELETE", &format!("/v1/subscriptions/{open}"), "").await;
    let found = explain(&platform, asked.clone()).await;
    assert_eq!(found["paths"], json!([]), "{found}");
    assert_eq!(found["gates"][1]["code"], "no_subscription", "{found}");
    platform.stop().await;
}

#[tokio::test]
async fn an_explanation_needs_one_event_and_one_recipient() {
    let platform = platform().await;
    let id = subscribe(&platform, "open", "null").await;
    for (asked, status, path) in [
        (json!({"subscriber": "alice"}), 422, "event"),
        (json!({"event": "e-1-0"}), 422, "subscriber"),
        (json!({"event": "e-1-0", "class": "quake", "subscriber": "alice"}), 422, "class"),
        (json!({"event": "e-1-0", "subscription": id, "subscriber": "alice"}), 422, "subscriber"),
        (json!({"application": "quakes", "class": "quak", "subscriber": "alice"}), 422, "class"),
        (
            json!({"application": "quakes", "class": "quake", "fields": {"magnitude": "x"}, "subscriber": "alice"}),
            422,
            "fields.place",
        ),
        (
            json!({"application": "quakes", "class": "quake", "fields": {"place": "Kobe", "magnitude": 6},
            "subscriber": "alice", "rule": "strong"}),
            422,
            "rule",
        ),
        (json!({"event": "e-99-0", "subscriber": "alice"}), 404, ""),
        (json!({"application": "nowhere", "class": "quake", "subscriber": "alice"}), 404, ""),
        (
            json!({"application": "quakes", "class": "quake", "fields": {"place": "Kobe", "magnitude": 6},
            "subscriber": "bob"}),
            404,
            "",
        ),
    ] {
        let (found, problem) = platform.post("/v1/explain", JSON, &asked.to_string()).await;
        assert_eq!(found, status, "{asked}: {problem}");
        if status == 422 {
            let paths: Vec<&str> = problem["problems"]
                .as_array()
                .expect("problems")
                .iter()
                .filter_map(|problem| problem["path"].as_str())
                .collect();
            assert!(paths.contains(&path), "{asked}: {problem}");
        }
    }
    let (_, key) = platform.make_key(&["operations:read"]).await;
    let request = platform.client.post(format!("{}/v1/explain", platform.address)).bearer_auth(key);
    let asked = json!({"event": "e-1-0", "subscriber": "alice"});
    let (status, body) = answer(request.header("content-type", JSON).body(asked.to_string())).await;
    assert_eq!(status, 403, "{body}");
    platform.stop().await;
}
