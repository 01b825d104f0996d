//! Metrics by application and class.

use std::time::Duration;

use metrics_exporter_prometheus::PrometheusBuilder;
use tocsin_pipeline::PipelineOptions;
use tocsin_testkit::Scenario;

/// A class that is sent at once, an hourly digest, and a class with a broken template.
const STOCK: &str = r#"
application: stock
events: { quote: { fields: { price: number } } }
subscriptions: { limit: {}, hourly: {} }
notifications:
  crossed: { fields: { price: number }, content: { templates: { base: { subject: "{{ price }}" } } } }
  broken: { fields: { price: number }, content: { templates: { base: { subject: "{{ price // 0 }}" } } } }
  hello: { fields: { due_at: timestamp }, content: { templates: { base: { subject: "it is {{ due_at }}" } } } }
rules:
  crosses: { on: quote, subscription: limit, notify: crossed }
  breaks: { on: quote, subscription: limit, when: event.price > 5, notify: broken }
  hours: { subscription: hourly, notify: hello, every: 1h, missed: once }
channels:
  email: { protocol: smtp, options: { host: localhost, from: t@example.org }, retry: [] }
"#;

#[tokio::test(start_paused = true)]
async fn formatting_and_schedules_are_counted_by_class() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let page = recorder.handle();
    let _recording = metrics::set_default_local_recorder(&recorder);
    let mut scenario = Scenario::new(&[STOCK]).await;
    let script = r#"01:10 subscriber alice email=alice@example.org
                    01:10 subscribe alice limit {}
                    01:10 subscribe alice hourly {}
                    01:10 subscriber bob email=bob@example.org
                    01:10 subscribe bob limit {}
                    01:15 unsubscribe bob
                    01:20 event quote {"price": 3} {"price": 6}"#;
    scenario.run_and_wait(script, Duration::from_secs(2 * 3_600)).await;
    let page = page.render();
    for (name, class, more, count) in [
        ("tocsin_format_requests_total", "crossed", ",result=\"ok\"", 2),
        ("tocsin_format_requests_total", "crossed", ",result=\"failed\"", 0),
        ("tocsin_format_requests_total", "broken", ",result=\"failed\"", 1),
        ("tocsin_format_requests_total", "hello", ",result=\"ok\"", 2),
        ("tocsin_records_class_subscriptions", "limit", ",state=\"enabled\"", 1),
        ("tocsin_records_class_subscriptions", "hourly", ",state=\"disabled\"", 0),
        ("tocsin_records_class_subscriptions_added_total", "limit", "", 2),
        ("tocsin_records_class_subscriptions_added_total", "hourly", "", 1),
        ("tocsin_schedule_runs_total", "hello", "", 3),
        ("tocsin_schedule_lag_seconds_count", "hello", "", 3),
        ("tocsin_schedule_run_duration_seconds_count", "hello", "", 3),
    ] {
        let line = format!("{name}{{application=\"stock\",class=\"{class}\"{more}}} {count}\n");
        assert!(page.contains(&line), "{line}{page}");
    }
}

/// An application whose batches are removed after an hour.
const KEPT_SHORT: &str = r#"
application: stock
retention: { finished: 1h }
events: { quote: { fields: { price: number } } }
subscriptions: { limit: {} }
notifications: { crossed: { content: { templates: { base: { text: "now" } } } } }
rules: { above: { on: quote, subscription: limit, notify: crossed } }
channels: { email: { protocol: smtp, options: { host: localhost, from: t@example.org } } }
"#;

/// Data past its retention waits for the hours of retention, and is shown in the gauge until then.
#[tokio::test(start_paused = true)]
async fn data_waiting_for_the_hours_of_retention_is_shown() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let page = recorder.handle();
    let _recording = metrics::set_default_local_recorder(&recorder);
    let options = PipelineOptions {
        retention_hours: vec!["04:00-05:00".parse().expect("hours")],
        prune_batches: 1,
        ..PipelineOptions::default()
    };
    let mut scenario = Scenario::with(&[KEPT_SHORT], options).await;
    let script = r#"01:20 event quote {"price": 3}
                    01:30 event quote {"price": 6}"#;
    scenario.run_and_wait(script, Duration::from_secs(5_400)).await;
    assert!(page.render().contains("\ntocsin_upkeep_remaining_batches 2\n"), "{}", page.render());
    assert!(!page.render().contains("tocsin_upkeep_deleted_batches_total"), "{}", page.render());
    scenario.run_and_wait("04:10 event quote {\"price\": 6}", Duration::from_secs(600)).await;
    let page = page.render();
    assert!(page.contains("\ntocsin_upkeep_remaining_batches 0\n"), "{page}");
    assert!(page.contains("\ntocsin_upkeep_deleted_batches_total 2\n"), "{page}");
    assert!(!page.contains("tocsin_upkeep_timeouts_total 1"), "{page}");
}
