//! Backtests over HTTP: two versions of a rule over stored events.

use serde_json::{Value as Json, json};

use crate::platform::{Platform, QUAKES, answer};

const JSON: &str = "application/json";
const BACKTESTS: &str = "/v1/applications/quakes/backtests";

async fn platform() -> Platform {
    let platform = Platform::with_quakes().await;
    for (subscriber, magnitude) in [("alice", 5), ("bob", 6)] {
        if subscriber != "alice" {
            let (status, body) = platform.post("/v1/subscribers", JSON, &json!({"id": subscriber}).to_string()).await;
            assert_eq!(status, 201, "{body}");
        }
        let draft = json!({"application": "quakes", "class": "strong", "subscriber": subscriber,
            "values": {"magnitude": magnitude}});
        let (status, body) = platform.post("/v1/subscriptions", JSON, &draft.to_string()).await;
        assert_eq!(status, 201, "{body}");
    }
    let events =
        r#"[{"place":"Kobe","magnitude":5.5},{"place":"Lima","magnitude":6.5},{"place":"Kobe","magnitude":4.5}]"#;
    let (status, body) = platform.post("/v1/applications/quakes/events/quake", JSON, events).await;
    assert_eq!(status, 202, "{body}");
    platform
}

/// Starts a backtest and waits for its end.
async fn backtest(platform: &Platform, asked: Json) -> Json {
    let (status, started) = platform.post(BACKTESTS, JSON, &asked.to_string()).await;
    assert_eq!(status, 202, "{asked}: {started}");
    let path = format!("{BACKTESTS}/{}", started["id"].as_str().expect("an id"));
    let ended = async {
        loop {
            let (status, found) = platform.get(&path).await;
            assert_eq!(status, 200, "{found}");
            if found["state"] == "done" || found["state"] == "failed" {
                return found;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(tocsin_test_peers::wait_timeout(), ended).await.expect("it ends")
}

#[tokio::test]
async fn a_changed_condition_gains_and_loses_notifications() {
    let platform = platform().await;
    // Running: 5.5 for alice, 6.5 for both. Tested: everything in Kobe.
    let found = backtest(&platform, json!({"rule": "strong_enough", "when": "event.place == 'Kobe'"})).await;
    assert_eq!(found["state"], "done", "{found}");
    assert_eq!(found["totals"], json!({"gained": 3, "lost": 2, "kept": 1}), "{found}");
    assert_eq!((&found["progress"]["events"], &found["progress"]["fraction"]), (&json!(3), &json!(1.0)), "{found}");
    let day = &found["days"][0];
    assert_eq!((&day["events"], &day["gained"], &day["lost"]), (&json!(3), &json!(3), &json!(2)), "{found}");
    let of = |id: &str| {
        let subscribers = found["subscribers"].as_array().expect("subscribers");
        subscribers.iter().find(|found| found["subscriber"] == id).expect("listed").clone()
    };
    assert_eq!(of("alice"), json!({"subscriber": "alice", "gained": 1, "lost": 1, "kept": 1}), "{found}");
    assert_eq!(of("bob"), json!({"subscriber": "bob", "gained": 2, "lost": 1, "kept": 0}), "{found}");
    let examples = found["examples"]["gained"].as_array().expect("examples");
    assert_eq!(examples.len(), 3, "{found}");
    assert!(examples.iter().all(|example| example["event"].as_str().is_some_and(|id| id.starts_with("e-"))));
    // The same rule changes nothing.
    let same = backtest(&platform, json!({"rule": "strong_enough", "version": 1, "baseline": 1})).await;
    assert_eq!(same["totals"], json!({"gained": 0, "lost": 0, "kept": 3}), "{same}");
    assert_eq!(same["examples"], json!({"gained": [], "lost": []}), "{same}");
    let limited = backtest(&platform, json!({"rule": "strong_enough", "events_max": 2})).await;
    assert_eq!((&limited["stopped_by"], &limited["progress"]["events"]), (&json!("events"), &json!(0)), "{limited}");
    platform.stop().await;
}

#[tokio::test]
async fn the_state_of_a_rule_limits_the_notifications_of_both_versions() {
    let platform = platform().await;
    let definition = QUAKES.replace("    notify: shaken\n", "    notify: shaken\n    cooldown: 1h\n");
    let (status, body) = platform.put("/v1/applications/quakes", "application/yaml", &definition).await;
    assert_eq!(status, 200, "{body}");
    let found = backtest(&platform, json!({"rule": "strong_enough", "version": 2, "baseline": 1})).await;
    assert_eq!(found["totals"], json!({"gained": 0, "lost": 1, "kept": 2}), "{found}");
    assert_eq!(found["baseline"], 1, "{found}");
    platform.stop().await;
}

#[tokio::test]
async fn backtests_are_listed_and_removed_and_refuse_invalid_input() {
    let platform = platform().await;
    let found = backtest(&platform, json!({"rule": "strong_enough"})).await;
    let (_, listed) = platform.get(BACKTESTS).await;
    assert_eq!(listed["items"][0]["id"], found["id"], "{listed}");
    assert_eq!(listed["items"][0].get("days"), None, "{listed}");
    let path = format!("{BACKTESTS}/{}", found["id"].as_str().expect("an id"));
    let (status, body) = answer(platform.request("DELETE", &path)).await;
    assert_eq!(status, 204, "{body}");
    for gone in [path.as_str(), "/v1/applications/quakes/backtests/7"] {
        assert_eq!(platform.get(gone).await.0, 404, "{gone}");
    }
    for (asked, path) in [
        (json!({"rule": "strong_enogh"}), "rule"),
        (json!({"rule": "strong_enough", "when": "event.magnitud > 1"}), "when"),
        (json!({"rule": "strong_enough", "when": "true", "version": 1}), "version"),
        (json!({"rule": "strong_enough", "version": 9}), "version"),
        (json!({"rule": "strong_enough", "baseline": 9}), "baseline"),
        (json!({"rule": "strong_enough", "events_max": 0}), "events_max"),
        (json!({"rule": "strong_enough", "from": "2026-01-02T00:00:00Z", "to": "2026-01-01T00:00:00Z"}), "from"),
    ] {
        let (status, problem) = platform.post(BACKTESTS, JSON, &asked.to_string()).await;
        assert_eq!((status.as_u16(), &problem["problems"][0]["path"]), (422, &json!(path)), "{asked}: {problem}");
    }
    platform.stop().await;
}
