//! Capacity plans over REST: published examples, problems, derived profiles.

use reqwest::StatusCode;
use serde_json::{Value as Json, json};

use crate::platform::{Platform, answer};

const WEEK: &str = "profile: week\nevents: { e: { rate: { count: 1, per: 1s } } }\n";

async fn plan(platform: &Platform, body: &Json) -> (StatusCode, Json) {
    answer(platform.request("POST", "/v1/capacity/plan").json(body)).await
}

#[tokio::test]
async fn a_plan_is_computed_from_texts_objects_and_published_examples() {
    let platform = Platform::start().await;
    let (status, papers) = platform.get("/v1/capacity/papers").await;
    let peak = papers["items"].as_array().expect("items").iter().find(|paper| paper["name"] == "peak").expect("peak");
    assert_eq!(status, 200);
    let what_if = ["events.alerts.rate=1x,2x"];
    let (status, computed) = plan(&platform, &json!({"paper": "peak", "what_if": what_if})).await;
    assert_eq!((status.as_u16(), computed["what_if"].as_array().map(Vec::len)), (200, Some(2)), "{computed}");
    assert!(computed["statements"][0]["verdict"].is_string() && computed["plan"]["day"].is_object(), "{computed}");
    assert!(computed["assumptions"].as_array().expect("a list").iter().any(|one| one["name"] == "events.alerts.rate"));

    let texts = json!({"profile": peak["profile"], "vectors": peak["vectors"], "sensitivities": false});
    let (status, same) = plan(&platform, &texts).await;
    assert_eq!((status.as_u16(), &same["plan"], &same["sensitivities"]), (200, &computed["plan"], &json!([])));
    let profile = json!({"profile": "small", "events": {"e": {"rate": {"count": 1, "per": "1s"}, "channels": {"m": 100}}},
        "channels": {"m": {"operation": "deliver.smtp"}}});
    let (status, object) = plan(&platform, &json!({"profile": profile, "paper": "peak"})).await;
    assert_eq!((status.as_u16(), &object["plan"]["profile"]), (200, &json!("small")), "{object}");
    platform.stop().await;
}

#[tokio::test]
async fn a_wrong_plan_has_problems_with_paths() {
    let platform = Platform::start().await;
    let first = async |body: Json| {
        let (status, document) = plan(&platform, &body).await;
        assert_eq!(status, 422, "{document}");
        document["problems"][0].clone()
    };
    let problem = first(json!({"paper": "peak", "profile": format!("{WEEK}evnts: {{}}\n")})).await;
    assert_eq!((&problem["path"], &problem["line"]), (&json!("profile.evnts"), &json!(3)), "{problem}");
    assert_eq!(first(json!({"profile": 7, "paper": "peak"})).await["path"], "profile");
    let problem = first(json!({"profile": WEEK})).await;
    assert_eq!((&problem["path"], &problem["code"]), (&json!("vectors"), &json!("required")), "none is configured");
    let (status, vectors) = platform.get("/v1/capacity/vectors").await;
    assert_eq!((status.as_u16(), vectors), (200, json!({"configured": false})));
    let (_, key) = platform.make_key(&["events:write"]).await;
    let url = format!("{}/v1/capacity/papers", platform.address);
    assert_eq!(answer(platform.client.get(url).bearer_auth(key)).await.0, 403);
    platform.stop().await;
}

#[tokio::test]
async fn a_profile_is_derived_from_recorded_activity() {
    let platform = Platform::with_quakes().await;
    let events = r#"[{"place": "Kobe", "magnitude": 6.1}, {"place": "Lima", "magnitude": 5.2}]"#;
    let (status, body) = platform.post("/v1/applications/quakes/events/quake", "application/json", events).await;
    assert_eq!(status, 202, "{body}");
    let (status, recorded) = platform.get("/v1/capacity/profile?name=week").await;
    assert_eq!((status.as_u16(), &recorded["events"]), (200, &json!(2)), "{recorded}");
    let yaml = recorded["profile"].as_str().expect("YAML");
    assert!(yaml.contains("\"quake\"") && yaml.starts_with("profile: \"week\""), "{yaml}");
    assert!(yaml.contains("matches: 0\n"), "no subscription: {yaml}");
    let (status, body) = plan(&platform, &json!({"profile": yaml, "paper": "peak"})).await;
    assert!(status == 200 || body["problems"][0]["path"] == "profile.events.quake", "it is well-formed: {body}");
    let (status, _) = platform.get("/v1/capacity/profile?from=2026-01-01T00:00:00Z&to=2026-11-01T00:00:00Z").await;
    assert_eq!(status, 422, "more than 92 days");
    platform.stop().await;
}

#[tokio::test]
async fn profiles_are_saved_with_conditions() {
    let platform = Platform::start().await;
    let path = "/v1/capacity/profiles/week";
    let put = |profile: &str, tag: Option<&str>| {
        let request = platform.request("PUT", path).json(&json!({"profile": profile}));
        answer(match tag {
            Some(tag) => request.header("if-match", tag),
            None => request,
        })
    };
    let (status, body) = put(&format!("{WEEK}evnts: {{}}\n"), None).await;
    assert_eq!((status.as_u16(), &body["problems"][0]["path"]), (422, &json!("profile.evnts")), "{body}");
    let (status, body) = put(WEEK, None).await;
    assert_eq!((status.as_u16(), &body["revision"]), (201, &json!(1)), "{body}");
    let (status, body) = put(&format!("{WEEK}nodes: 2\n"), Some("\"1\"")).await;
    assert_eq!((status.as_u16(), &body["revision"]), (200, &json!(2)), "{body}");
    assert_eq!(put(WEEK, Some("\"1\"")).await.0, 412);
    let (_, list) = platform.get("/v1/capacity/profiles").await;
    assert_eq!((&list["items"][0]["name"], &list["items"][0]["profile"]), (&json!("week"), &Json::Null));
    assert_eq!(platform.get(path).await.1["profile"], format!("{WEEK}nodes: 2\n"));
    assert_eq!(answer(platform.request("DELETE", path)).await.0, 204);
    assert_eq!(platform.get(path).await.0, 404);
    platform.stop().await;
}
