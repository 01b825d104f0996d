//! Maintenance over REST: configuration, examination, log, restore drills, with a host of the test.

use std::{path::PathBuf, sync::Arc};

use async_trait::async_trait;
use serde_json::json;
use tocsin_model::time::Timestamp;
use tocsin_service::{
    server_host::{DrillReport, EffectiveConfiguration, EffectiveSetting, Finding, FindingLevel, ServerHost},
    server_log::{LogLevel, ServerLog},
};
use tokio::sync::Notify;

use crate::platform::{Platform, answer};

#[derive(Default)]
struct TestHost {
    log: ServerLog,
    /// Lets a drill end.
    end: Arc<Notify>,
}

fn slow_disk() -> Finding {
    let advice = Some("use another disk".to_owned());
    Finding { level: FindingLevel::Warn, what: "fsync".to_owned(), text: "20 ms".to_owned(), advice }
}

#[async_trait]
impl ServerHost for TestHost {
    fn configuration(&self) -> EffectiveConfiguration {
        let setting = EffectiveSetting {
            key: "records.keys".to_owned(),
            value: "********".into(),
            source: "TOCSIN_RECORDS_KEYS".to_owned(),
            is_default: false,
            secret: true,
            kind: "string".to_owned(),
            description: "Keys.".to_owned(),
        };
        EffectiveConfiguration { settings: vec![setting], warnings: vec!["a warning".to_owned()] }
    }

    async fn examine(&self) -> Vec<Finding> {
        vec![slow_disk()]
    }

    async fn drill(&self, backup: Option<PathBuf>) -> Result<DrillReport, String> {
        assert_eq!(backup, None, "the test has no data folder");
        self.end.notified().await;
        Ok(DrillReport {
            version: "1.0.0".to_owned(),
            taken_at: Timestamp(0),
            bytes: 7,
            applications: 1,
            subscribers: 2,
            subscriptions: 3,
            findings: vec![slow_disk()],
        })
    }

    fn log(&self) -> &ServerLog {
        &self.log
    }
}

#[tokio::test]
async fn configuration_examination_and_log_are_for_their_scopes() {
    let platform = Platform::start().await;
    assert_eq!(platform.get("/v1/configuration").await.0, 404, "no host");
    let host = Arc::new(TestHost::default());
    host.log.push(Timestamp(0), LogLevel::Info, "tocsin", "started", []);
    host.log.push(Timestamp(0), LogLevel::Warn, "tocsin_delivery", "slow", [("channel".to_owned(), "mail".to_owned())]);
    platform.service.set_host(host);
    let (status, body) = platform.get("/v1/configuration").await;
    assert_eq!((status.as_u16(), &body["items"][0]["value"]), (200, &json!("********")));
    assert_eq!(
        (&body["items"][0]["source"], &body["warnings"]),
        (&json!("TOCSIN_RECORDS_KEYS"), &json!(["a warning"]))
    );
    let (status, body) = platform.get("/v1/doctor").await;
    let levels: Vec<_> =
        body["findings"].as_array().expect("findings").iter().map(|one| one["level"].clone()).collect();
    assert_eq!((status.as_u16(), &body["ok"], levels), (200, &json!(true), vec![json!("warn"), json!("ok")]), "{body}");

    let (status, body) = platform.get("/v1/log").await;
    assert_eq!((status.as_u16(), &body["last"], &body["items"][0]["message"]), (200, &json!(2), &json!("started")));
    let (_, body) = platform.get("/v1/log?level=warn&contains=MAIL").await;
    assert_eq!(body["items"].as_array().expect("items").len(), 1);
    assert_eq!(body["items"][0]["fields"], json!({"channel": "mail"}));
    let (_, body) = platform.get("/v1/log?after=2").await;
    assert_eq!((&body["items"], &body["last"]), (&json!([]), &json!(2)));
    assert_eq!(platform.get("/v1/log?level=loud").await.0, 422);

    let (_, viewer) = platform.make_key(&["operations:read", "operations:write"]).await;
    for (path, status) in [("doctor", 200), ("configuration", 403), ("log", 403), ("restore-drills", 403)] {
        let request = platform.client.get(format!("{}/v1/{path}", platform.address)).bearer_auth(&viewer);
        assert_eq!(answer(request).await.0, status, "{path}");
    }
    platform.stop().await;
}

#[tokio::test]
async fn a_restore_drill_runs_alone_and_its_result_is_kept() {
    let platform = Platform::start().await;
    let host = TestHost::default();
    let end = host.end.clone();
    platform.service.set_host(Arc::new(host));
    let start = || answer(platform.request("POST", "/v1/restore-drills").json(&json!({})));
    let (status, body) = start().await;
    assert_eq!((status.as_u16(), &body["id"], &body["state"]), (202, &json!("rd-1"), &json!("running")), "{body}");
    assert_eq!(start().await.0, 429);
    end.notify_one();
    let done = async {
        loop {
            let (status, body) = platform.get("/v1/restore-drills/rd-1").await;
            assert_eq!(status, 200, "{body}");
            if body["state"] != "running" {
                return body;
            }
        }
    };
    let body = tokio::time::timeout(tocsin_test_peers::wait_timeout(), done).await.expect("it ends");
    assert_eq!((&body["state"], &body["restored"]["subscribers"]), (&json!("succeeded"), &json!(2)), "{body}");
    assert_eq!(body["findings"][0]["advice"], "use another disk");
    let (_, list) = platform.get("/v1/restore-drills").await;
    assert_eq!(list["items"][0], body);
    assert_eq!(platform.get("/v1/restore-drills/rd-9").await.0, 404);
    let named = platform.request("POST", "/v1/restore-drills").json(&json!({"backup": "monday"}));
    assert_eq!(answer(named).await.0, 404, "there is no data folder");
    platform.stop().await;
}
