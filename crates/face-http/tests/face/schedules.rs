//! Schedules over HTTP: explanation, due times of subscriptions, and progress of the schedules of an application.

use serde_json::{Value as Json, json};

use crate::platform::Platform;

const JSON: &str = "application/json";
const PREVIEW: &str = "/v1/schedules/preview";

const STOCK: &str = "
application: stock
events: { quote: { fields: { price: number } } }
subscriptions:
  limit: { fields: { price: { type: number, default: 0 } }, schedule: optional }
notifications:
  crossed: { fields: { price: number }, content: { templates: { base: { text: '{{ price }}' } } } }
rules:
  due: { on: quote, subscription: limit, notify: crossed, when: event.price >= sub.price, schedule: subscription, missed: all }
  closing: { on: quote, subscription: limit, notify: crossed, schedule: \"DTSTART;TZID=America/New_York:20270104T173000\\nRRULE:FREQ=DAILY\" }
channels: { mail: { protocol: file, options: { path: out.ndjson } } }
";

async fn platform() -> Platform {
    let platform = Platform::start().await;
    let (status, body) = platform.put("/v1/applications/stock", "application/yaml", STOCK).await;
    assert_eq!(status, 201, "{body}");
    let ann = r#"{"id":"ann","time_zone":"Europe/Vienna","devices":{"mail":{"channel":"mail","address":"ann"}}}"#;
    let (status, body) = platform.post("/v1/subscribers", JSON, ann).await;
    assert_eq!(status, 201, "{body}");
    platform
}

#[tokio::test]
async fn a_schedule_is_shown_before_it_is_used() {
    let platform = platform().await;
    let asked = json!({
        "schedule": {"start": "2027-03-27T02:30", "time_zone": "Europe/Vienna", "rule": "FREQ=DAILY"},
        "from": "2027-03-27T00:00:00Z",
        "count": 2,
    });
    let (status, reply) = platform.post(PREVIEW, JSON, &asked.to_string()).await;
    assert_eq!(status, 200, "{reply}");
    assert_eq!((&reply["time_zone"], reply["policies"].as_array().map(Vec::len)), (&json!("Europe/Vienna"), Some(2)));
    let runs = reply["runs"].as_array().expect("runs");
    assert_eq!(runs[0]["at"], "2027-03-27T01:30:00Z", "{reply}");
    assert_eq!(runs[0].get("note"), None, "{reply}");
    assert_eq!((&runs[1]["at"], runs.len()), (&json!("2027-03-28T01:30:00Z"), 2), "{reply}");
    assert_eq!(runs[1]["local"], "2027-03-28T03:30:00", "C13: the clocks show 03:30, not 02:30: {reply}");
    let note = runs[1]["note"].as_str().expect("a note");
    assert!(note.starts_with("02:30:00 does not exist"), "{reply}");

    // As text, in the time zone of the subscriber.
    let text = "DTSTART:20270104T080000\nRRULE:FREQ=DAILY;COUNT=1";
    let asked = json!({"schedule": text, "time_zone": "Asia/Tokyo", "from": "2026-01-01T00:00:00Z"});
    let (_, reply) = platform.post(PREVIEW, JSON, &asked.to_string()).await;
    assert_eq!(reply["runs"], json!([{"at": "2027-01-03T23:00:00Z", "local": "2027-01-04T08:00:00"}]), "{reply}");
    platform.stop().await;
}

#[tokio::test]
async fn what_is_no_schedule_is_refused_with_its_place() {
    let platform = platform().await;
    let cases = [
        (json!({"schedule": "RRULE:FREQ=DAILY"}), 422, "schedule.DTSTART"),
        (json!({"schedule": "DTSTART:20270104T080000\nRRULE:FREQ=DALY"}), 422, "schedule.RRULE.FREQ"),
        (json!({"schedule": {"start": "2027-01-04T08:00", "time_zone": "Mars/Olympus"}}), 422, "schedule.time_zone"),
        (json!({"schedule": {"start": "soon"}}), 422, "schedule.start"),
        (json!({"schedule": {"start": "2027-01-04", "rule": "FREQ=HOURLY"}}), 422, "schedule.rule"),
        (json!({"schedule": "DTSTART:20270104T080000", "time_zone": "Mars/Olympus"}), 422, "time_zone"),
        (json!({"schedule": "DTSTART:20270104T080000", "count": 0}), 422, "count"),
        (json!({"schedule": "DTSTART:20270104T080000", "count": 101}), 422, "count"),
    ];
    for (asked, expected, path) in cases {
        let (status, problem) = platform.post(PREVIEW, JSON, &asked.to_string()).await;
        assert_eq!((status.as_u16(), &problem["problems"][0]["path"]), (expected, &json!(path)), "{asked}: {problem}");
    }
    for asked in [json!({}), json!({"schedule": 5}), json!({"schedule": "x", "when": 1})] {
        let (status, problem) = platform.post(PREVIEW, JSON, &asked.to_string()).await;
        assert!(status.is_client_error(), "{asked}: {problem}");
    }
    platform.stop().await;
}

#[tokio::test]
async fn a_subscription_says_when_it_is_due_and_an_application_how_far_it_has_come() {
    let platform = platform().await;
    let draft = json!({"application": "stock", "class": "limit", "subscriber": "ann",
        "schedule": {"start": "2027-01-04T08:00", "rule": "FREQ=DAILY;BYDAY=MO,TU,WE,TH,FR"}});
    let (status, stored) = platform.post("/v1/subscriptions", JSON, &draft.to_string()).await;
    assert_eq!(status, 201, "{stored}");
    let path = format!("/v1/subscriptions/{}/schedule", stored["id"].as_str().expect("an id"));
    let (status, reply) = platform.get(&format!("{path}?count=1")).await;
    assert_eq!(status, 200, "{reply}");
    assert_eq!(reply["preview"]["time_zone"], "Europe/Vienna", "it is on the clock of its subscriber: {reply}");
    assert_eq!(reply["preview"]["runs"].as_array().map(Vec::len), Some(1), "{reply}");
    assert_eq!(
        (reply["rules"].as_array().map(Vec::len), &reply["rules"][0]["rule"]),
        (Some(1), &json!("due")),
        "{reply}"
    );
    assert_eq!(reply["rules"][0]["missed"], "all: each is made up for, at most 1000", "{reply}");

    let (status, problem) = platform.get(&format!("{path}?count=1000")).await;
    assert_eq!((status.as_u16(), &problem["problems"][0]["path"]), (422, &json!("count")), "{problem}");
    assert_eq!(platform.get("/v1/subscriptions/s-999/schedule").await.0, 404);
    assert_eq!(platform.get("/v1/subscriptions/15/schedule").await.0, 400);
    let plain = json!({"application": "stock", "class": "limit", "subscriber": "ann", "key": "plain"});
    let (_, plain) = platform.post("/v1/subscriptions", JSON, &plain.to_string()).await;
    let path = format!("/v1/subscriptions/{}/schedule", plain["id"].as_str().expect("an id"));
    assert_eq!(platform.get(&path).await.0, 404, "it has none");

    // Schedules are registered shortly after their creation, so only the required ones are checked.
    let (status, listed) = platform.get("/v1/applications/stock/schedules?limit=1000").await;
    assert_eq!(status, 200, "{listed}");
    for item in listed["items"].as_array().expect("items") {
        assert!(item["stopped"] == false && item["skipped"] == 0, "{listed}");
    }
    for (path, expected) in [
        ("/v1/applications/nothing/schedules", 404),
        ("/v1/applications/stock/schedules?limit=0", 422),
        ("/v1/applications/stock/schedules?after=x", 422),
        ("/v1/applications/stock/schedules?before=x", 400),
    ] {
        assert_eq!(platform.get(path).await.0, expected, "{path}");
    }
    platform.stop().await;
}

#[tokio::test]
async fn nobody_submits_what_is_due() {
    let platform = platform().await;
    let due = r#"{"rule":"closing","due_at":"2027-01-04T22:30:00Z"}"#;
    let (status, problem) = platform.post("/v1/applications/stock/events/due", JSON, due).await;
    assert_eq!((status.as_u16(), &problem["problems"][0]["path"]), (422, &json!("class")), "{problem}");
    let (status, accepted) = platform.post("/v1/applications/stock/events/quote", JSON, r#"{"price":5.0}"#).await;
    assert_eq!(status, 202, "{accepted}");
    platform.stop().await;
}

#[tokio::test]
async fn b39_a_schedule_that_is_over_is_stored_with_a_warning() {
    let platform = platform().await;
    let past = json!({"start": "2020-01-04T08:00", "rule": "FREQ=DAILY;COUNT=3", "time_zone": "UTC"});
    let draft = |schedule: &serde_json::Value| {
        json!({"application": "stock", "class": "limit", "subscriber": "ann", "schedule": schedule}).to_string()
    };
    let (status, made) = platform.post("/v1/subscriptions", JSON, &draft(&past)).await;
    assert_eq!(status, 201, "{made}");
    let warning = made["warnings"][0].as_str().expect("a warning");
    assert!(warning.starts_with("its schedule is over: it has no due time after 20"), "{warning}");
    let coming = json!({"start": "2020-01-04T08:00", "rule": "FREQ=DAILY", "time_zone": "UTC"});
    let (_, made) = platform.post("/v1/subscriptions", JSON, &draft(&coming)).await;
    assert_eq!(made.get("warnings"), None, "{made}");

    let asked = json!({"schedule": past}).to_string();
    let (_, body) = platform.post(PREVIEW, JSON, &asked).await;
    assert_eq!((&body["runs"], body["warnings"].as_array().map(Vec::len)), (&json!([]), Some(1)), "{body}");

    let request = platform.request("POST", "/v1/import/subscriptions").header("content-type", "application/x-ndjson");
    let answer = request.body(draft(&past)).send().await.expect("an answer").text().await.expect("a body");
    assert!(answer.contains("schedule: is over") && answer.contains("\"warned\":1"), "{answer}");

    let over = STOCK
        .replace("RRULE:FREQ=DAILY\"", "RRULE:FREQ=DAILY;UNTIL=20270110T000000Z\"")
        .replace("20270104", "20200104");
    let over = over.replace("UNTIL=2027", "UNTIL=2020");
    let (status, body) = platform.put("/v1/applications/stock", "application/yaml", &over).await;
    assert_eq!(status, 200, "{body}");
    let warnings = body["warnings"].to_string();
    assert!(warnings.contains("rules.closing.schedule") && warnings.contains("is over"), "{warnings}");
    platform.stop().await;
}

#[tokio::test]
async fn b39_a_schedule_that_is_due_too_often_is_refused() {
    let platform = platform().await;
    let draft = |rule: &str| {
        let schedule = json!({"start": "2027-01-04T08:00", "rule": rule, "time_zone": "UTC"});
        json!({"application": "stock", "class": "limit", "subscriber": "ann", "schedule": schedule})
    };
    for rule in ["FREQ=SECONDLY", "FREQ=DAILY;BYSECOND=0,30", "FREQ=MINUTELY;BYSECOND=0,59"] {
        let (status, body) = platform.post("/v1/subscriptions", JSON, &draft(rule).to_string()).await;
        assert_eq!((status.as_u16(), &body["problems"][0]["path"]), (422, &json!("schedule")), "{rule}: {body}");
        let message = body["problems"][0]["message"].as_str().expect("a message");
        assert!(message.contains("should be 1m apart or more"), "{rule}: {message}");
    }
    let asked = json!({"schedule": draft("FREQ=SECONDLY")["schedule"]}).to_string();
    let (_, body) = platform.post(PREVIEW, JSON, &asked).await;
    assert!(body["warnings"][0].as_str().is_some_and(|body| body.contains("apart or more")), "{body}");

    // The definition limits the frequency. Stored schedules stay when a later version lowers the limit.
    let bounded = |least: &str| format!("{STOCK}limits: {{ schedule_interval: {least} }}\n");
    assert_eq!(platform.put("/v1/applications/stock", "application/yaml", &bounded("1s")).await.0, 200);
    let (status, made) = platform.post("/v1/subscriptions", JSON, &draft("FREQ=SECONDLY").to_string()).await;
    assert_eq!(status, 201, "{made}");
    assert_eq!(platform.put("/v1/applications/stock", "application/yaml", &bounded("1h")).await.0, 200);
    let path = format!("/v1/subscriptions/{}", made["id"].as_str().expect("an id"));
    let patch = platform.request("PATCH", &path).header("content-type", "application/merge-patch+json");
    let (status, body) = crate::platform::answer(patch.body(r#"{"enabled": false}"#)).await;
    assert_eq!((status.as_u16(), &body["schedule"]), (200, &made["schedule"]), "{body}");
    let (status, body) = platform.post("/v1/subscriptions", JSON, &draft("FREQ=MINUTELY").to_string()).await;
    assert_eq!(status, 422, "{body}");
    platform.stop().await;
}

#[tokio::test]
async fn an_operator_runs_a_schedule_and_skips_its_next_run() {
    let platform = platform().await;
    let list = async || platform.get("/v1/applications/stock/schedules").await.1["items"].clone();
    // The schedule task installs the application after the apply has returned.
    let installed = async {
        loop {
            let items = list().await;
            if items[0]["schedule"].is_string() {
                return items[0].clone();
            }
        }
    };
    let found = tokio::time::timeout(tocsin_test_peers::wait_timeout(), installed).await.expect("it is followed");
    let text = found["schedule"].as_str().expect("a schedule");
    let encoded: String = text.bytes().map(|byte| format!("%{byte:02X}")).collect();
    let path = |action: &str| format!("/v1/applications/stock/schedules/closing/{encoded}/{action}");
    let (status, moved) = platform.post(&path("run"), "application/json", "").await;
    assert_eq!(status, 202, "{moved}");
    assert!(moved["batch"].as_str().is_some_and(|batch| batch.starts_with("eb-")), "{moved}");
    let (status, skipped) = platform.post(&path("skip"), "application/json", "").await;
    assert_eq!((status.as_u16(), &skipped["due_at"]), (200, &moved["next_run"]), "{skipped}");
    assert_eq!(list().await[0]["skipped"], 1);
    let unknown = "/v1/applications/stock/schedules/closing/none/run";
    assert_eq!(platform.post(unknown, "application/json", "").await.0, 404);
    platform.stop().await;
}

#[tokio::test]
async fn a_mapping_of_a_source_is_tested_on_a_sample() {
    let platform = Platform::with_quakes().await;
    let test = async |definition: Json| {
        let body = json!({"definition": definition, "sample": "place,mag\nKobe,6.1\nLima,much\n"}).to_string();
        platform.post("/v1/applications/quakes/sources/test", "application/json", &body).await
    };
    let fields = json!({"place": "place", "magnitude": "mag"});
    let options = json!({"folder": "in", "format": "csv", "fields": fields});
    let (status, body) = test(json!({"kind": "directory", "events": ["quake"], "options": options})).await;
    assert_eq!((status.as_u16(), &body["accepted"], &body["rejected"]), (200, &json!(1), &json!(1)), "{body}");
    assert_eq!(body["items"][0]["event"], json!({"place": "Kobe", "magnitude": 6.1}));
    let wrong = json!({"folder": "in", "format": "csv", "fields": {"size": "mag"}});
    let (status, body) = test(json!({"kind": "directory", "events": ["quake"], "options": wrong})).await;
    assert_eq!(status, 422, "{body}");
    assert!(body["problems"][0]["path"].as_str().is_some_and(|path| path.starts_with("definition.options")), "{body}");
    for events in [json!(["none"]), json!(["quake", "quake"])] {
        let definition = json!({"kind": "directory", "events": events, "options": {"folder": "in"}});
        let (status, body) = test(definition).await;
        assert_eq!((status.as_u16(), &body["problems"][0]["path"]), (422, &json!("definition.events")), "{body}");
    }
    let (status, body) = platform.get("/v1/applications/quakes/sources/none/rejected").await;
    assert_eq!(status, 404, "{body}");
    platform.stop().await;
}
