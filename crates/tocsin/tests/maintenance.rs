//! Maintenance of a real server: backups, verification, restore drill, configuration, examination, log.

mod support;

use std::time::{Duration, Instant};

use serde_json::json;
use support::Platform;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_is_backed_up_verified_drilled_and_examined() {
    let platform =
        Platform::start(&[("TOCSIN_TELEMETRY_HEADERS", "authorization=abc"), ("TOCSIN_LOG_LEVEL", "info")]).await;
    assert_eq!(platform.get("/v1/backups").await["items"], json!([]));
    let (status, body) = platform.post("/v1/backups", &json!({"name": "monday"})).await;
    assert_eq!(status, 201, "{body}");
    let backups = platform.get("/v1/backups").await;
    assert_eq!((&backups["items"][0]["name"], &backups["items"][0]["state"]), (&json!("monday"), &json!("complete")));
    let (status, verified) = platform.post("/v1/backups/monday/verify", &json!(null)).await;
    assert_eq!(
        (status, &verified["ok"], &verified["bytes"]),
        (
            200,
            &json!(true),
            &backups["items"][0]["files"]
                .as_array()
                .expect("files")
                .iter()
                .map(|file| file["bytes"].as_u64().expect("bytes"))
                .sum::<u64>()
                .into()
        )
    );
    assert_eq!(platform.post("/v1/backups/tuesday/verify", &json!(null)).await.0, 404);

    let (status, drill) = platform.post("/v1/restore-drills", &json!({"backup": "monday"})).await;
    assert_eq!(status, 202, "{drill}");
    let path = format!("/v1/restore-drills/{}", drill["id"].as_str().expect("an id"));
    let began = Instant::now();
    let drill = loop {
        let drill = platform.get(&path).await;
        if drill["state"] != "running" {
            break drill;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "{drill}");
    };
    assert_eq!((&drill["state"], &drill["restored"]["subscribers"]), (&json!("succeeded"), &json!(0)), "{drill}");

    let configuration = platform.get("/v1/configuration").await;
    let setting = |key: &str| {
        let items = configuration["items"].as_array().expect("items");
        items.iter().find(|item| item["key"] == key).unwrap_or_else(|| panic!("no {key}")).clone()
    };
    let headers = setting("telemetry.headers");
    assert_eq!((&headers["value"], &headers["source"]), (&json!("********"), &json!("TOCSIN_TELEMETRY_HEADERS")));
    let findings = platform.get("/v1/doctor").await;
    let named = |what: &str| findings["findings"].as_array().expect("findings").iter().any(|one| one["what"] == what);
    assert!(named("fsync") && named("disk space") && named("server"), "{findings}");
    let log = platform.get("/v1/log?contains=restore%20drill").await;
    let messages: Vec<_> = log["items"].as_array().expect("items").iter().map(|line| line["message"].clone()).collect();
    assert_eq!(messages, [json!("a restore drill began"), json!("a restore drill succeeded")], "{log}");

    // A damaged file is found.
    let file = std::path::Path::new(backups["folder"].as_str().expect("a folder")).join("monday/records.db");
    std::fs::write(&file, "something else").expect("written");
    let (status, verified) = platform.post("/v1/backups/monday/verify", &json!(null)).await;
    assert_eq!((status, &verified["ok"]), (200, &json!(false)), "{verified}");
    assert_eq!(platform.get("/v1/backups").await["items"][0]["state"], "unreadable");
}
