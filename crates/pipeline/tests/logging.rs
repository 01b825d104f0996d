//! Delivery logging: by level, without personal data, and with rate-limited failure alerts.

use std::{
    fmt::{Debug, Write},
    sync::Arc,
};

use expect_test::{Expect, expect};
use parking_lot::Mutex;
use tocsin_testkit::Scenario;
use tracing::{
    Event, Metadata, Subscriber,
    field::{Field, Visit},
    span,
};

/// Collects the log lines about deliveries, without their times.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

struct Line {
    message: String,
    fields: String,
}

impl Visit for Line {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        match field.name() {
            "message" => self.message = format!("{value:?}"),
            "since" => {}
            name => write!(self.fields, " {name}={value:?}").expect("memory"),
        }
    }
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("tocsin_pipeline") && *metadata.level() <= tracing::Level::INFO
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line { message: String::new(), fields: String::new() };
        event.record(&mut line);
        if ["sending", "all attempts of a channel fail", "a channel delivers again"].contains(&line.message.as_str()) {
            self.0.lock().push(format!("{} {}:{}", event.metadata().level(), line.message, line.fields));
        }
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// Log lines of a delivery to alice that succeeds at the third attempt, on a channel with these keys.
async fn check(keys: &str, expected: Expect) {
    let keys = format!("retry: {{ delays: [1m, 5m], jitter: 0% }}\n    {keys}");
    let definition = format!(
        r#"
application: quakes
events: {{ quake: {{ fields: {{ place: string }} }} }}
subscriptions: {{ any: {{}} }}
notifications:
  alert:
    fields: {{ place: string }}
    content: {{ templates: {{ base: {{ subject: "{{{{ place }}}}", text: "Ask eve@example.org or +43 660 1234567 about {{{{ place }}}}" }} }} }}
rules: {{ every: {{ on: quake, subscription: any, notify: alert }} }}
channels:
  email:
    protocol: smtp
    options: {{ host: localhost, from: t@example.org }}
    {keys}
"#
    );
    let lines = Lines::default();
    let logged = tracing::subscriber::set_default(lines.clone());
    let mut scenario = Scenario::new(&[&definition]).await;
    scenario
        .run(
            r#"08:00 subscriber alice email=alice@example.org
               08:00 subscribe alice any
               08:00 alice@example.org defers
               08:10 event quake {"place": "Kobe"}
               08:12 alice@example.org delivers"#,
        )
        .await;
    drop(logged);
    let lines = lines.0.lock().join("\n");
    assert!(!lines.contains("alice@") && !lines.contains("eve@") && !lines.contains("1234567"), "{lines}");
    expected.assert_eq(&lines);
}

#[tokio::test(start_paused = true)]
async fn usually_nothing_is_logged_of_single_deliveries() {
    check("", expect![""]).await;
}

#[tokio::test(start_paused = true)]
async fn attempts_are_logged_with_redacted_addresses() {
    check(
        "log: [attempts]",
        expect![[r#"
            INFO sending: id=n-1-0 channel=email address=a…@example.org
            INFO sending: id=n-1-0 channel=email address=a…@example.org
            INFO sending: id=n-1-0 channel=email address=a…@example.org"#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn texts_are_logged_without_personal_data() {
    check(
        "log: [status, text]",
        expect![[r#"
            INFO sending: id=n-1-0 channel=email address=a…@example.org subject=Kobe body=Ask e…@example.org or +43 660 … about Kobe
            INFO sending: id=n-1-0 channel=email address=a…@example.org subject=Kobe body=Ask e…@example.org or +43 660 … about Kobe
            INFO sending: id=n-1-0 channel=email address=a…@example.org subject=Kobe body=Ask e…@example.org or +43 660 … about Kobe"#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn failures_in_a_row_are_logged_once_and_so_is_their_end() {
    check(
        "log_failures: { after: 2, every: 1h }",
        expect![[r#"
            WARN all attempts of a channel fail: application=quakes channel=email failures=2 reason=not now
            INFO a channel delivers again: application=quakes channel=email failures=2"#]],
    )
    .await;
}
