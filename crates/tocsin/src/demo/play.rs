//! Server on a temporary folder, and the steps common to all demos.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use indicatif::ProgressBar;
use reqwest::Method;
use serde_json::{Value, json};
use tocsin_model::plural::plural;

use crate::{
    client::{Client, segment, with_query},
    commands::{import, publish, status::Report},
    configuration::{self, ConfigurationArgs, LogFormat, Period},
    failure::{Failure, Outcome},
    host::Host,
    mailbox,
    platform::{self, RunningServer},
    signals::Signals,
    terminal::{Colour, Terminal, counted, duration, thousands},
};

/// User that the demo creates.
const DEMO_USER: &str = "demo";
/// Time without progress after which a demo fails.
const STALLED: Duration = Duration::from_secs(60);

/// Demo server with its folder and client.
pub(super) struct DemoServer {
    pub client: Client,
    pub key: String,
    running: RunningServer,
    folder: Folder,
}

/// Temporary folder, removed on drop.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        // Leftovers are in the system's temporary folder.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl DemoServer {
    /// Starts a server on a temporary folder, at the configured port or the next free one.
    pub(super) async fn open(args: &ConfigurationArgs) -> Outcome<Self> {
        let layered = configuration::load(args, &[])?;
        let mut configuration = layered.configuration;
        let changed = |key: &str| {
            layered.settings.get(key).is_some_and(|setting| setting.source != configuration::Source::Default)
        };
        let mut random = fastrand::Rng::new();
        let folder =
            Folder(std::env::temp_dir().join(format!("tocsin-demo-{}-{:08x}", std::process::id(), random.u32(..))));
        configuration.data.folder = folder.0.join("data");
        if !changed("log.level") {
            configuration.log.level = "warn".into();
        }
        configuration.log.format = LogFormat::Text;
        configuration.pipeline.drain_patience = Period::seconds(5);
        // Released at once; if another process takes the port, starting fails.
        configuration.http.listen = mailbox::bind(configuration.http.listen)
            .await?
            .local_addr()
            .map_err(|error| Failure::failed("cannot read the address of a socket").because(&error))?;
        crate::logging::start(&configuration.log)?;
        let host = Host::shared(configuration.clone().into());
        let running = platform::start_hosted(configuration, host).await?;
        let key = running.first_key.clone().ok_or_else(|| Failure::failed("the temporary folder was not empty"))?;
        let client = Client::new(format!("http://{}", running.address), Some(key.clone()))?;
        Ok(DemoServer { client, key, running, folder })
    }

    /// Creates a user without a password, and returns a one-time login link for it.
    pub(super) async fn login_link(&self) -> Outcome<String> {
        let user = json!({ "name": DEMO_USER, "display_name": "Demo", "roles": ["admin"] });
        self.client.post("/v1/users", &user).await?;
        let link = self.client.post("/v1/login-links", &json!({ "user": DEMO_USER })).await?;
        Ok(format!("{}{}", self.client.server(), link["path"].as_str().unwrap_or_default()))
    }

    /// Applies a definition.
    pub(super) async fn apply(&self, name: &str, definition: String) -> Outcome {
        let path = format!("/v1/applications/{}", segment(name));
        let request =
            self.client.request(Method::PUT, &path).header("content-type", "application/yaml").body(definition);
        self.client.send(request).await.map(|_| ())
    }

    /// Imports objects, one per line.
    pub(super) async fn import(
        &self,
        what: &str,
        query: &[(&str, &str)],
        objects: impl Iterator<Item = Value>,
        bar: &ProgressBar,
    ) -> Outcome {
        let mut lines = Vec::new();
        for object in objects {
            serde_json::to_writer(&mut lines, &object).expect("JSON values are serializable");
            lines.push(b'\n');
            bar.inc(1);
        }
        let path = with_query(&format!("/v1/import/{what}"), query);
        let request =
            self.client.request(Method::POST, &path).header("content-type", "application/x-ndjson").body(lines);
        let mut first = None;
        let summary = import::upload(&self.client, request, &mut |line, notice| {
            if let import::LineNotice::Refused(error) = notice {
                first.get_or_insert_with(|| format!("line {line}: {error}"));
            }
            Ok(())
        })
        .await?;
        match first {
            None if summary.failed == 0 => Ok(()),
            first => Err(Failure::failed(format!("{} of {} {what} were refused", summary.failed, summary.lines))
                .detail(first.unwrap_or_default())),
        }
    }

    /// Submits a batch of events with an idempotency key.
    pub(super) async fn publish(
        &self,
        application: &str,
        class: &str,
        batch: Vec<Value>,
        key: &str,
        bar: &ProgressBar,
    ) -> Outcome {
        let path = format!("/v1/applications/{}/events/{}", segment(application), segment(class));
        let count = batch.len() as u64;
        publish::submit(&self.client, &path, &Value::Array(batch), Some(key), bar).await?;
        bar.inc(count);
        Ok(())
    }

    /// Waits until everything is delivered, or there is no progress. Returns the last report.
    pub(super) async fn delivered(
        &self,
        expected: u64,
        arrived: &dyn Fn() -> u64,
        bar: &ProgressBar,
    ) -> Outcome<Report> {
        let (mut last, mut moved) = (u64::MAX, Instant::now());
        loop {
            let report = self.report().await?;
            let count = arrived();
            bar.set_position(count);
            if report.is_idle() && (count >= expected || moved.elapsed() > Duration::from_secs(2)) {
                return Ok(report);
            }
            let movement =
                count ^ report.totals.notifications.rotate_left(20) ^ report.backlog.notifications.rotate_left(40);
            if movement != last {
                (last, moved) = (movement, Instant::now());
            }
            if moved.elapsed() > STALLED {
                return Ok(report);
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Status of the server.
    pub(super) async fn report(&self) -> Outcome<Report> {
        Report::read(self.client.get("/v1/status", &[]).await?)
    }

    /// Keeps running until a signal arrives (unless `once`), then stops the server.
    pub(super) async fn close(self, terminal: &Terminal, once: bool, signals: &mut Signals) -> Outcome {
        if !once {
            terminal.line("\nRunning until Ctrl-C.")?;
            let failed = self.running.failed();
            tokio::select! {
                _ = signals.next() => {}
                failure = failed => return Err(failure),
            }
        }
        self.running.stop(Duration::from_secs(5)).await;
        drop(self.folder);
        Ok(())
    }
}

/// Prints the statistics of a demo.
pub(super) fn show_report(terminal: &Terminal, report: &Report, took: Duration) -> std::io::Result<()> {
    terminal.line(terminal.paint(Colour::Bold, "\nResults"))?;
    let rate = |count: u64| thousands((count as f64 / took.as_secs_f64().max(1e-3)).round() as u64);
    let totals = &report.totals;
    terminal.line(format_args!(
        "  {:>10} {} in {}",
        thousands(totals.events),
        plural(totals.events, "event", "events"),
        counted(totals.event_batches, "batch", "batches")
    ))?;
    terminal.line(format_args!(
        "  {:>10} {} in {}",
        thousands(totals.notifications),
        plural(totals.notifications, "notification", "notifications"),
        counted(totals.notification_batches, "batch", "batches")
    ))?;
    let delivered = report.attempts("delivered");
    terminal.line(format_args!(
        "  {:>10} delivered in {}, {} per second",
        thousands(delivered),
        duration(took),
        rate(delivered)
    ))?;
    for outcome in ["deferred", "refused", "expired", "suspended"] {
        match report.attempts(outcome) {
            0 => {}
            count => {
                terminal.line(terminal.paint(Colour::Yellow, format_args!("  {:>10} {outcome}", thousands(count))))?
            }
        }
    }
    for (step, latency) in &report.latencies {
        let show = |value: Option<f64>| {
            value.map_or("-".to_owned(), |value| duration(Duration::from_secs_f64(value.max(0.0) / 1e3)))
        };
        terminal.line(format_args!(
            "  {:>10} p50 {}, p95 {}, p99 {}",
            step.replace('_', " "),
            show(latency.p50_ms),
            show(latency.p95_ms),
            show(latency.p99_ms)
        ))?;
    }
    Ok(())
}

/// Prints one line of the comparison; returns whether it matches.
pub(super) fn compare(terminal: &Terminal, what: &str, expected: u64, found: u64) -> std::io::Result<bool> {
    let (mark, colour) = if expected == found { ("✓", Colour::Green) } else { ("✗", Colour::Red) };
    terminal.line(format_args!(
        "  {} {what}: {} of {}",
        terminal.paint(colour, mark),
        thousands(found),
        thousands(expected)
    ))?;
    Ok(expected == found)
}

/// Prints the addresses to visit.
pub(super) fn show_addresses(terminal: &Terminal, stage: &DemoServer, more: &[(&str, String)]) -> std::io::Result<()> {
    terminal.line(terminal.paint(Colour::Bold, "\nAddresses"))?;
    let server = stage.client.server();
    let ours = [
        ("status page", format!("{server}/status")),
        ("API explorer", format!("{server}/explorer/")),
        ("metrics", format!("{server}/metrics")),
    ];
    for (name, address) in more.iter().chain(&ours) {
        terminal.line(format_args!("  {name:<13} {address}"))?;
    }
    terminal.line(format_args!("  {:<13} {}", "API key", stage.key))?;
    terminal.line(format_args!("  {:<13} TOCSIN_SERVER={server} TOCSIN_KEY=... tocsin status", "live view"))
}
