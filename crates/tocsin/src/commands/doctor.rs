//! Command `doctor`: examines the machine, the data folder and the server, or a mail domain, with advice for each
//! finding.

mod domain; // checks of a mail domain
mod folder; // checks of the data folder: space, inodes, fsync, integrity

use std::{
    path::Path,
    time::{Duration, SystemTime},
};

use reqwest::Method;
use serde::Serialize;
use serde_json::{Value, json};
use tocsin_model::{http_date, plural::plural, time::Timestamp};

use crate::{
    client::{Client, ConnectionArgs, segment},
    configuration::{self, ConfigurationArgs, MergedConfiguration},
    failure::{Failure, Outcome},
    terminal::{Colour, Terminal, duration, printable, thousands},
};

/// Limit of open files below which a busy server may run out.
const OPEN_FILES_MIN: u64 = 4_096;

/// Arguments of `tocsin doctor`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Skip the probe of the channels
    #[arg(long)]
    no_probe: bool,
    #[command(flatten)]
    domain: domain::DomainArgs,
}

/// Severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// Good.
    Ok,
    /// Works, but needs attention.
    Warn,
    /// Does not work.
    Fail,
}

/// Result of a check.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Finding {
    /// Severity.
    pub level: Level,
    /// Checked item.
    pub what: String,
    /// Observation.
    pub text: String,
    /// Advice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
}

impl Finding {
    fn ok(what: &str, text: impl Into<String>) -> Self {
        Finding { level: Level::Ok, what: what.into(), text: text.into(), advice: None }
    }
    fn warn(what: &str, text: impl Into<String>, advice: impl Into<String>) -> Self {
        Finding { level: Level::Warn, what: what.into(), text: text.into(), advice: Some(advice.into()) }
    }
    fn fail(what: &str, text: impl Into<String>, advice: impl Into<String>) -> Self {
        Finding { level: Level::Fail, what: what.into(), text: text.into(), advice: Some(advice.into()) }
    }
}

impl Args {
    /// Prints a line for each check.
    ///
    /// # Errors
    /// If a check fails.
    pub async fn run(
        self,
        terminal: &Terminal,
        configuration: &ConfigurationArgs,
        connection: &ConnectionArgs,
    ) -> Outcome {
        if self.domain.domain().is_some() {
            return self.domain.run(terminal, self.json, configuration, connection).await;
        }
        let mut findings = Vec::new();
        match configuration::load(configuration, &[]) {
            Ok(layered) => {
                let bar = terminal.progress(None, "{spinner} measuring the disk");
                bar.enable_steady_tick(Duration::from_millis(100));
                let examined = examine(&layered).await;
                bar.finish_and_clear();
                findings.extend(examined?);
            }
            Err(failure) => {
                findings.push(Finding::fail(
                    "configuration",
                    failure.details.join("; "),
                    "fix the configuration; without it the data folder is unknown and was not examined",
                ));
                findings.extend(process());
                findings.extend(clock(SystemTime::now()));
            }
        }
        match connection.client(configuration) {
            Ok(client) => findings.extend(server(&client, !self.no_probe).await),
            Err(failure) => findings.push(Finding::fail("server", failure.message, "correct the address or the key")),
        }
        let failed = findings.iter().filter(|finding| finding.level == Level::Fail).count();
        if self.json {
            terminal.json(&json!({"ok": failed == 0, "findings": findings}))?;
        } else {
            show(terminal, &findings)?;
        }
        match failed {
            0 => Ok(()),
            1 => Err(Failure::failed("1 check failed")),
            more => Err(Failure::failed(format!("{more} checks failed"))),
        }
    }
}

/// Checks a valid configuration, the data folder and the machine.
///
/// # Errors
/// If the examination panics.
pub async fn examine(layered: &MergedConfiguration) -> Outcome<Vec<Finding>> {
    let mut findings = vec![Finding::ok("configuration", "is well-formed")];
    let warnings = layered.warnings.iter();
    findings.extend(warnings.map(|warning| Finding::warn("configuration", warning, "remove or rename it")));
    let configuration = layered.configuration.clone();
    let examined = tokio::task::spawn_blocking(move || folder::examine(&configuration)).await;
    findings.extend(examined.map_err(|error| Failure::failed("the examination panicked").because(&error))?);
    findings.extend(process());
    findings.extend(clock(SystemTime::now()));
    Ok(findings)
}

/// Checks the databases of an unused folder for integrity. Blocks.
pub(super) fn stores(folder: &Path) -> Vec<Finding> {
    folder::stores(folder)
}

pub(super) fn show(terminal: &Terminal, findings: &[Finding]) -> std::io::Result<()> {
    for finding in findings {
        let level = match finding.level {
            Level::Ok => terminal.paint(Colour::Green, "ok  "),
            Level::Warn => terminal.paint(Colour::Yellow, "warn"),
            Level::Fail => terminal.paint(Colour::Red, "fail"),
        };
        terminal.line(format_args!("{level}  {}: {}", finding.what, printable(&finding.text)))?;
        if let Some(advice) = &finding.advice {
            terminal.line(format_args!("      {advice}"))?;
        }
    }
    Ok(())
}

/// Checks the resource limits of the process.
fn process() -> Vec<Finding> {
    let limits = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let current = limits.current.unwrap_or(u64::MAX);
    let text = if current == u64::MAX { "no limit".to_owned() } else { thousands(current) };
    vec![if current < OPEN_FILES_MIN {
        Finding::warn(
            "open files",
            text,
            format!("raise the limit to {OPEN_FILES_MIN} or more: `ulimit -n`, or LimitNOFILE of the service"),
        )
    } else {
        Finding::ok("open files", text)
    }]
}

/// Checks that the clock is plausible: not before this program was written.
fn clock(now: SystemTime) -> Vec<Finding> {
    // 2026-01-01 and 2100-01-01.
    const SANE: std::ops::Range<u64> = 1_767_225_600..4_102_444_800;
    let seconds = now.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let shown = tocsin_model::time::Timestamp::from_millis(i64::try_from(seconds).unwrap_or_default() * 1000);
    vec![if SANE.contains(&seconds) {
        Finding::ok("clock", shown.to_string())
    } else {
        Finding::fail("clock", format!("says {shown}"), "set the clock, and run a time service such as chrony")
    }]
}

/// Checks a running server.
async fn server(client: &Client, probe: bool) -> Vec<Finding> {
    let ready = client.request(Method::GET, "/readyz").timeout(Duration::from_secs(10));
    let asked = std::time::Instant::now();
    let ready = match client.exchange(ready).await {
        Ok(answer) => answer,
        Err(failure) => {
            return vec![Finding::warn(
                "server",
                failure.message,
                "the checks that need a running server were skipped",
            )];
        }
    };
    let mut findings = Vec::new();
    let date = ready.headers().get("date").and_then(|date| date.to_str().ok()).map(str::to_owned);
    if ready.status().is_success() {
        findings.push(Finding::ok(
            "server",
            format!("{} is ready, answered in {}", client.server(), duration(asked.elapsed())),
        ));
    } else {
        let response = crate::client::problem(ready).await;
        let text = response.body["detail"].as_str().map_or_else(|| response.body.to_string(), str::to_owned);
        findings.push(Finding::fail(
            "server",
            format!("{} is not ready: {text}", client.server()),
            "wait if it has just started; otherwise see its log",
        ));
    }
    if let Some(skew) = date.and_then(|date| skew_seconds(&date, SystemTime::now()))
        && skew.abs() > 5
    {
        findings.push(Finding::warn(
            "clock",
            format!("the server's clock differs by {skew} s"),
            "run a time service such as chrony on both machines",
        ));
    }
    let status = match client.get("/v1/status", &[]).await {
        Ok(status) => status,
        Err(failure) => {
            findings.push(Finding::warn("server", in_one_line(&failure), "the checks that need a key were skipped"));
            return findings;
        }
    };
    let waiting = |name: &str| status["backlog"][name].as_u64().unwrap_or_default();
    match waiting("failed_batches") {
        0 => {}
        failed => findings.push(Finding::warn(
            "failed event batches",
            thousands(failed),
            "`tocsin trace eb-...` shows the reason; POST /v1/applications/{app}/rematch matches them again",
        )),
    }
    match waiting("suspended") {
        0 => {}
        many => findings.push(Finding::warn(
            "suspended",
            format!("{} {}", thousands(many), plural(many, "notification waits", "notifications wait")),
            "`tocsin suspended list` shows the reasons; `tocsin suspended resume` sends them again",
        )),
    }
    if status["backlog"].get("suspended_messages").is_some_and(Value::is_null) {
        findings.push(Finding::fail(
            "spool",
            "the messages of exchanges are unavailable".to_owned(),
            "examine the disk; the log of the server has the error",
        ));
    }
    match waiting("suspended_messages") {
        0 => {}
        many => findings.push(Finding::warn(
            "suspended messages",
            format!("{} {}", thousands(many), plural(many, "exchange message waits", "exchange messages wait")),
            "`tocsin messages list --state suspended` shows the reasons; `tocsin messages resume` sends them again",
        )),
    }
    if probe {
        for application in status["applications"].as_array().map(Vec::as_slice).unwrap_or_default() {
            let name = application["name"].as_str().unwrap_or_default();
            match client.post(&format!("/v1/applications/{}/channels/probe", segment(name)), &Value::Null).await {
                Ok(answer) => findings.extend(channels(name, &answer)),
                Err(failure) => findings.push(Finding::warn(
                    &format!("channels of {name}"),
                    in_one_line(&failure),
                    "they were not probed",
                )),
            }
        }
    }
    findings
}

/// The advice and the causes of a failure, in one line.
fn in_one_line(failure: &Failure) -> String {
    failure.to_string().replace("\n  ", "; ")
}

fn channels(application: &str, answer: &Value) -> Vec<Finding> {
    let channels = answer.as_array().or_else(|| answer["items"].as_array()).map(Vec::as_slice).unwrap_or_default();
    let each = channels.iter().map(|channel| {
        let what = format!("channel {application}/{}", channel["channel"].as_str().unwrap_or("?"));
        let text = channel["text"].as_str().unwrap_or_default();
        if channel["ok"] == true {
            Finding::ok(&what, text)
        } else {
            Finding::fail(&what, text, "check the channel's options, and whether the receiver is up and accepts us")
        }
    });
    each.collect()
}

/// Seconds by which a `Date` header (RFC 9110, section 5.6.7) is ahead of this machine.
fn skew_seconds(date: &str, now: SystemTime) -> Option<i64> {
    let ours = i64::try_from(now.duration_since(SystemTime::UNIX_EPOCH).ok()?.as_secs()).ok()?;
    let theirs = http_date::parse(date, Timestamp::from_millis(ours.checked_mul(1_000)?))?;
    Some(theirs.as_millis().div_euclid(1_000) - ours)
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;
    use crate::commands::fake_server::FakeServer;

    #[test]
    fn a_clock_of_1970_fails() {
        assert_eq!(clock(SystemTime::UNIX_EPOCH)[0].level, Level::Fail);
        assert_eq!(clock(SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_000_000))[0].level, Level::Ok);
    }

    #[test]
    fn the_clock_of_the_server_is_compared() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        assert_eq!(skew_seconds("Sun, 06 Nov 1994 08:49:37 GMT", now), Some(0));
        assert_eq!(skew_seconds("Sun, 06 Nov 1994 08:49:47 GMT", now), Some(10));
        assert_eq!(skew_seconds("yesterday", now), None);
    }

    #[tokio::test]
    async fn a_key_of_another_server_is_reported_in_one_line() {
        let unknown = json!({"type": "/problems/unauthenticated", "code": "credentials_unknown",
            "title": "A good key is needed", "detail": "the key is not known"});
        let server = FakeServer::start(vec![(200, json!({})), (401, unknown)]).await;
        let findings = super::server(&server.client(), true).await;
        let last = findings.last().expect("a finding");
        assert_eq!(
            last.text,
            "the server does not know this key; check --server, and the key of --key, TOCSIN_KEY, --key-file or \
             --data; the key is not known (HTTP 401)"
        );
    }

    #[tokio::test]
    async fn an_unavailable_spool_is_a_finding() {
        let status = json!({"backlog": {"suspended_messages": null}, "applications": []});
        let server = FakeServer::start(vec![(200, json!({})), (200, status)]).await;
        let findings = super::server(&server.client(), false).await;
        let found: Vec<&str> = findings.iter().map(|finding| finding.what.as_str()).collect();
        assert_eq!(found.last(), Some(&"spool"), "{found:?}");
    }

    #[tokio::test]
    async fn each_problem_of_a_server_has_advice() {
        let answers = vec![
            (503, json!({"title": "not ready", "detail": "the index of quakes is being built"})),
            (
                200,
                json!({"backlog": {"failed_batches": 2, "suspended": 3100, "suspended_messages": 1},
                    "applications": [{"name": "quakes"}]}),
            ),
            (
                200,
                json!([{"channel": "email", "ok": false, "text": "connection refused"}, {"channel": "hook", "ok": true, "text": "200"}]),
            ),
        ];
        let server = FakeServer::start(answers).await;
        let (terminal, captured) = Terminal::captured();
        show(&terminal, &super::server(&server.client(), true).await).expect("writing to memory succeeds");
        expect![[r#"
            fail  server: http://server is not ready: the index of quakes is being built
                  wait if it has just started; otherwise see its log
            warn  failed event batches: 2
                  `tocsin trace eb-...` shows the reason; POST /v1/applications/{app}/rematch matches them again
            warn  suspended: 3,100 notifications wait
                  `tocsin suspended list` shows the reasons; `tocsin suspended resume` sends them again
            warn  suspended messages: 1 exchange message waits
                  `tocsin messages list --state suspended` shows the reasons; `tocsin messages resume` sends them again
            fail  channel quakes/email: connection refused
                  check the channel's options, and whether the receiver is up and accepts us
            ok    channel quakes/hook: 200
        "#]]
        .assert_eq(&captured.text().replace(server.client().server(), "http://server"));
    }
}
