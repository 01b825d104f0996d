//! Stored values under a newer version of their application: they are shown and changed by that version, and values
//! stored earlier are not rejected.

use serde_json::{Value as Json, json};

use crate::platform::{Platform, QUAKES, answer};

const JSON: &str = "application/json";
const NDJSON: &str = "application/x-ndjson";
const STRONG: &str = "/v1/import/subscriptions?application=quakes&class=strong";

/// Without the field `note`, with the required field `region`; the class accepts no filters and requires a schedule.
const NEWER: [(&str, &str); 1] = [(
    "      note: {type: string}\n",
    "      region: {type: string, required: true}\n      depth: {type: integer, default: 7}\n",
)];

impl Platform {
    async fn apply_newer(&self, replaced: &[(&str, &str)], drops: &str) {
        let mut text = QUAKES.to_owned();
        for (old, new) in replaced {
            assert!(text.contains(old), "{old}");
            text = text.replace(old, new);
        }
        let (status, body) =
            self.put(&format!("/v1/applications/quakes?allow_drop={drops}"), "application/yaml", &text).await;
        assert_eq!(status, 200, "{body}");
    }

    async fn patch(&self, path: &str, body: &Json) -> (u16, Json) {
        let request = self.request("PATCH", path).header("content-type", "application/merge-patch+json");
        let (status, body) = answer(request.body(body.to_string())).await;
        (status.as_u16(), body)
    }

    async fn subscribe(&self, body: &Json) -> String {
        let (status, made) = self.post("/v1/subscriptions", JSON, &body.to_string()).await;
        assert_eq!(status, 201, "{made}");
        made["id"].as_str().expect("an id").to_owned()
    }

    async fn lines(&self, path: &str, kind: &str, body: &str) -> Vec<Json> {
        let request = self.request("POST", path).header("content-type", kind).body(body.to_owned());
        let text = request.send().await.expect("an answer").text().await.expect("a body");
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }

    async fn export(&self, path: &str) -> String {
        self.request("GET", path).send().await.expect("an answer").text().await.expect("a body")
    }
}

fn strong(values: &Json) -> Json {
    json!({"application": "quakes", "class": "strong", "subscriber": "alice", "values": values})
}

#[tokio::test]
async fn b8_a_subscription_is_shown_and_changed_as_its_class_is_now() {
    let platform = Platform::with_quakes().await;
    let id = platform.subscribe(&strong(&json!({"magnitude": 5, "note": "n"}))).await;
    let path = format!("/v1/subscriptions/{id}");
    platform.apply_newer(&NEWER, "subscriptions.strong.note").await;

    let now = json!({"magnitude": 5.0, "depth": 7});
    assert_eq!(platform.get(&path).await.1["values"], now);
    assert_eq!(platform.get("/v1/subscriptions").await.1["items"][0]["values"], now);
    let (status, changed) = platform.patch(&path, &json!({"enabled": false})).await;
    assert_eq!((status, &changed["values"], &changed["enabled"]), (200, &now, &json!(false)), "{changed}");
    let (status, changed) = platform.patch(&path, &json!({"values": {"magnitude": 6}})).await;
    assert_eq!((status, &changed["values"]["magnitude"]), (200, &json!(6.0)), "{changed}");
    let (status, changed) = platform.patch(&path, &json!({"values": {"note": null}})).await;
    assert_eq!(status, 200, "{changed}");

    let (_, shown) = platform.get(&path).await;
    let (status, same) = platform.put(&path, JSON, &shown.to_string()).await;
    assert_eq!((status.as_u16(), &same["values"]), (200, &shown["values"]), "what is shown can be written: {same}");

    let refused = async |patch: Json| {
        let (status, body) = platform.patch(&path, &patch).await;
        (status, body["problems"][0]["path"].as_str().unwrap_or_default().to_owned())
    };
    assert_eq!(refused(json!({"values": {"note": "x"}})).await, (422, "values.note".to_owned()));
    assert_eq!(refused(json!({"values": {"magnitude": null}})).await, (422, "values.magnitude".to_owned()));
    let (status, changed) = platform.patch(&path, &json!({"values": {"region": "Kobe"}})).await;
    assert_eq!((status, &changed["values"]["region"]), (200, &json!("Kobe")), "{changed}");
    assert_eq!(refused(json!({"values": {"region": null}})).await, (422, "values.region".to_owned()), "it has it now");
    let (status, body) = platform.post("/v1/subscriptions", JSON, &strong(&json!({"magnitude": 5})).to_string()).await;
    assert_eq!((status.as_u16(), &body["problems"][0]["path"]), (422, &json!("values.region")), "a new one needs it");
    platform.stop().await;
}

#[tokio::test]
async fn b8_filters_and_schedules_that_a_class_does_not_take_any_more_stay() {
    let platform = Platform::start().await;
    let with = [
        ("  strong:\n    fields:", "  strong:\n    filter: cel\n    schedule: optional\n    fields:"),
        ("    on: quake\n", "    on: quake\n    schedule: subscription\n"),
    ];
    let mut text = QUAKES.to_owned();
    for (old, new) in with {
        text = text.replace(old, new);
    }
    let (status, body) = platform.put("/v1/applications/quakes", "application/yaml", &text).await;
    assert_eq!(status, 201, "{body}");
    assert_eq!(platform.post("/v1/subscribers", JSON, r#"{"id":"alice"}"#).await.0, 201);
    let mut draft = strong(&json!({"magnitude": 5}));
    draft["filter"] = "cel:event.magnitude > 2.0".into();
    draft["schedule"] = json!({"start": "2027-01-04T08:00", "rule": "FREQ=DAILY", "time_zone": "Europe/Vienna"});
    let path = format!("/v1/subscriptions/{}", platform.subscribe(&draft).await);
    let (_, before) = platform.get(&path).await;

    platform.apply_newer(&[], "").await;
    let (status, changed) = platform.patch(&path, &json!({"enabled": false, "values": {"magnitude": 4}})).await;
    assert_eq!(status, 200, "{changed}");
    assert_eq!((&changed["filter"], &changed["schedule"]), (&before["filter"], &before["schedule"]));
    let (status, body) = platform.patch(&path, &json!({"filter": "cel:event.magnitude > 3.0"})).await;
    assert_eq!((status, &body["problems"][0]["path"]), (422, &json!("filter")), "another one is checked");

    // The class is removed: its subscriptions can still be enabled, disabled and removed.
    let other = [("  strong:\n    fields:", "  weak:\n    fields:"), ("subscription: strong", "subscription: weak")];
    platform.apply_newer(&other, "subscriptions.strong").await;
    let (status, changed) = platform.patch(&path, &json!({"enabled": true})).await;
    assert_eq!((status, &changed["enabled"], &changed["values"]), (200, &json!(true), &json!({"magnitude": 4.0})));
    let (status, body) = platform.patch(&path, &json!({"values": {"magnitude": 9}})).await;
    assert_eq!((status, &body["problems"][0]["path"]), (422, &json!("class")), "{body}");
    assert_eq!(answer(platform.request("DELETE", &path)).await.0, 204);
    platform.stop().await;
}

#[tokio::test]
async fn b8_exports_come_in_again_across_versions() {
    for (format, kind) in [("ndjson", NDJSON), ("csv", "text/csv")] {
        let from = Platform::with_quakes().await;
        let mut draft = strong(&json!({"magnitude": 5, "note": "n"}));
        draft["key"] = "home".into();
        let id = from.subscribe(&draft).await;
        let interests = format!("/v1/export/subscriptions?format={format}&application=quakes&class=strong");
        let older = from.export(&interests).await;
        assert!(older.contains("note"), "{older}");
        from.apply_newer(&NEWER, "subscriptions.strong.note").await;
        let newer = from.export(&interests).await;
        assert!(!newer.contains("note"), "{newer}");

        for (text, said) in [(&older, "values.note: is not a field"), (&newer, "values.region: is required")] {
            // Once over stored subscriptions, and once into an empty store.
            for _ in 0..2 {
                let answer = from.lines(STRONG, kind, text).await;
                assert_eq!(
                    answer[1],
                    json!({"lines": 1, "stored": 1, "failed": 0, "warned": 1}),
                    "{format}: {answer:?}"
                );
                let warnings = answer[0]["warnings"].to_string();
                assert!(warnings.contains(said) && warnings.contains("values.region"), "{format}: {warnings}");
                let (_, found) = from.get("/v1/subscriptions?key=home").await;
                assert_eq!(found["items"][0]["values"], json!({"magnitude": 5.0, "depth": 7}), "{found}");
                let gone = format!("/v1/subscriptions/{}", found["items"][0]["id"].as_str().expect("an id"));
                assert_eq!(answer_of(&from, &gone).await, 204);
            }
        }
        // Lines that are not from an export are checked completely.
        let typed = from.lines(STRONG, NDJSON, r#"{"subscriber":"alice","values":{"magnitude":5,"note":"n"}}"#).await;
        assert_eq!(typed.last(), Some(&json!({"lines": 1, "stored": 0, "failed": 1})), "{typed:?} {id}");
        from.stop().await;
    }
}

async fn answer_of(platform: &Platform, path: &str) -> u16 {
    answer(platform.request("DELETE", path)).await.0.as_u16()
}

#[tokio::test]
async fn b8_subscribers_keep_attributes_and_addresses_of_another_version() {
    let platform = Platform::with_quakes().await;
    let person = json!({
        "id": "bob", "attributes": {"age": "old", "city": "Wien"},
        "devices": {"post": {"channel": "post", "address": "not a mailbox"}},
    });
    assert_eq!(platform.post("/v1/subscribers", JSON, &person.to_string()).await.0, 201);
    // Now the declared type of an attribute differs from its value, and a channel accepts other addresses.
    let newer = [
        ("application: quakes\n", "application: quakes\nattributes: {age: integer}\n"),
        (
            "channels:\n",
            "channels:\n  post:\n    protocol: smtp\n    options: {host: mail.example.org, from: a@example.org}\n",
        ),
    ];
    platform.apply_newer(&newer, "").await;
    let (_, shown) = platform.get("/v1/subscribers/bob").await;
    assert_eq!(shown["attributes"], person["attributes"], "attributes belong to no application");
    let (status, body) = platform.patch("/v1/subscribers/bob", &json!({"enabled": false})).await;
    assert_eq!(status, 200, "{body}");
    let (status, body) = platform.put("/v1/subscribers/bob", JSON, &shown.to_string()).await;
    assert_eq!(status, 200, "what is shown can be written: {body}");
    for (format, kind) in [("ndjson", NDJSON), ("csv", "text/csv")] {
        let people = platform.export(&format!("/v1/export/subscribers?format={format}&id_prefix=bob")).await;
        let body = platform.lines("/v1/import/subscribers", kind, &people).await;
        assert_eq!(body[1], json!({"lines": 1, "stored": 1, "failed": 0, "warned": 1}), "{format}: {body:?}");
        assert!(body[0]["warnings"].to_string().contains("devices.post.address"), "{body:?}");
        let (_, after) = platform.get("/v1/subscribers/bob").await;
        assert_eq!((&after["attributes"], &after["devices"]), (&shown["attributes"], &shown["devices"]), "{format}");
    }
    let fresh = json!({"id": "cay", "devices": {"post": {"channel": "post", "address": "not a mailbox"}}});
    assert_eq!(platform.post("/v1/subscribers", JSON, &fresh.to_string()).await.0, 422, "a new one is checked");
    platform.stop().await;
}
