//! Time series over HTTP.

use serde_json::{Value as Json, json};

use crate::platform::Platform;

const JSON: &str = "application/json";

#[tokio::test]
async fn sums_come_from_the_journal_and_gauges_from_samples() {
    let platform = Platform::with_quakes().await;
    platform.service.sample_series();
    let events = r#"[{"place": "Kobe", "magnitude": 6.1}, {"place": "Wien", "magnitude": 2.5}]"#;
    assert_eq!(platform.post("/v1/applications/quakes/events/quake", JSON, events).await.0, 202);
    platform.service.sample_series();
    let sum =
        |series: &Json| -> f64 { series["values"].as_array().expect("values").iter().filter_map(Json::as_f64).sum() };
    let path = "/v1/series?names=events,event_batches,collection_p95&application=quakes&class=quake&step=1m";
    let (status, found) = platform.get(path).await;
    assert_eq!(status, 200, "{found}");
    assert_eq!((found["step"].as_u64(), found["series"][0]["name"].as_str()), (Some(60), Some("events")), "{found}");
    assert_eq!((sum(&found["series"][0]), sum(&found["series"][1])), (2.0, 1.0), "{found}");
    let points = found["times"].as_array().expect("times").len();
    assert!((60..=61).contains(&points), "{points}");
    let series = found["series"].as_array().expect("series");
    assert!(series.iter().all(|series| series["values"].as_array().map(Vec::len) == Some(points)), "{found}");
    assert_eq!(series[2]["unit"], "ms");
    let (_, of_others) = platform.get("/v1/series?names=events&class=strong&step=1m").await;
    assert_eq!(sum(&of_others["series"][0]), 0.0, "{of_others}");

    let (status, gauges) = platform.get("/v1/series?names=suspended_notifications,events&step=10s").await;
    assert_eq!((status.as_u16(), gauges["step"].as_u64()), (200, Some(10)), "{gauges}");
    let is_number = |value: &&Json| value.is_number();
    let measured = gauges["series"][0]["values"].as_array().expect("values").iter().filter(is_number).count();
    assert!((1..=2).contains(&measured), "two samples in one or two intervals: {gauges}");
    platform.stop().await;
}

#[tokio::test]
async fn names_are_listed_and_wrong_requests_explained() {
    let platform = Platform::with_quakes().await;
    let (status, names) = platform.get("/v1/series/names").await;
    let events = names["items"].as_array().expect("items").iter().find(|item| item["name"] == "events");
    let events = events.expect("the series of events");
    assert_eq!((status.as_u16(), &events["filters"]), (200, &json!(["application", "class"])), "{events}");
    assert_eq!((&events["kind"], &events["step_min"]), (&json!("sum"), &json!(10)), "{events}");
    for (query, path) in [
        ("names=evnts", "names"),
        ("", "names"),
        ("names=headroom&application=quakes", "names"),
        ("names=answer_p95&step=10s", "step"),
        ("names=events&step=90s", "step"),
        ("names=events&step=1m&from=2020-01-01T00:00:00Z&to=2021-01-01T00:00:00Z", "step"),
        ("names=events&from=2021-01-01T00:00:00Z&to=2020-01-01T00:00:00Z", "from"),
    ] {
        let (status, wrong) = platform.get(&format!("/v1/series?{query}")).await;
        assert_eq!((status.as_u16(), wrong["problems"][0]["path"].as_str()), (422, Some(path)), "{query}: {wrong}");
    }
    platform.stop().await;
}
