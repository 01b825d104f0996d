//! Command `rule backtest`: compares two versions of a rule over stored events.

use std::{io, time::Duration};

use reqwest::Method;
use serde_json::{Map, Value, json};

use crate::{
    client::{Client, segment},
    failure::{Failure, Outcome},
    terminal::{Terminal, counted, printable, thousands},
};

/// Polling interval of the progress.
const PAUSE: Duration = Duration::from_millis(500);

/// Arguments of `tocsin rule backtest`.
#[derive(Debug, clap::Args)]
pub struct Backtest {
    /// Application
    application: String,
    /// Rule
    rule: String,
    /// Condition to test, in CEL, in place of the running one
    #[arg(long, value_name = "EXPRESSION", conflicts_with = "version")]
    when: Option<String>,
    /// Version of the definition to test
    #[arg(long, value_name = "NUMBER")]
    version: Option<u32>,
    /// Version of the definition to compare with [default: the running one]
    #[arg(long, value_name = "NUMBER")]
    baseline: Option<u32>,
    /// Start of the range [default: seven days before its end]
    #[arg(long, value_name = "TIME")]
    from: Option<String>,
    /// End of the range [default: now]
    #[arg(long, value_name = "TIME")]
    to: Option<String>,
    /// Number of events after which it ends [default: 100000]
    #[arg(long, value_name = "COUNT")]
    events: Option<usize>,
    /// Seconds after which it ends [default: 60]
    #[arg(long, value_name = "COUNT")]
    seconds: Option<usize>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Backtest {
    /// Starts the backtest, waits for its end and prints the result.
    ///
    /// # Errors
    /// The rule is unknown or invalid, or the backtest failed.
    pub async fn run(self, terminal: &Terminal, client: &Client) -> Outcome {
        let path = format!("/v1/applications/{}/backtests", segment(&self.application));
        let mut body = Map::from_iter([("rule".to_owned(), json!(self.rule))]);
        let members = [
            ("when", self.when.map(|text| json!(text))),
            ("version", self.version.map(|number| json!(number))),
            ("baseline", self.baseline.map(|number| json!(number))),
            ("from", self.from.map(|text| json!(text))),
            ("to", self.to.map(|text| json!(text))),
            ("events_max", self.events.map(|count| json!(count))),
            ("seconds_max", self.seconds.map(|count| json!(count))),
        ];
        body.extend(members.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
        let mut found = client.post(&path, &Value::Object(body)).await?;
        let one = format!("{path}/{}", segment(found["id"].as_str().unwrap_or_default()));
        while matches!(found["state"].as_str(), Some("queued" | "running")) {
            tokio::time::sleep(PAUSE).await;
            found = client.get(&one, &[]).await?;
        }
        // The result is printed here; the server need not keep it.
        client.send(client.request(Method::DELETE, &one)).await?;
        if found["state"] == "failed" {
            let reason = found["reason"].as_str().unwrap_or_default();
            return Err(Failure::failed(format!("the backtest failed: {}", printable(reason))));
        }
        match self.json {
            true => terminal.json(&found)?,
            false => show(terminal, &found)?,
        }
        Ok(())
    }
}

fn counts(of: &Value) -> String {
    let number = |name: &str| thousands(of[name].as_u64().unwrap_or_default());
    format!("{} gained, {} lost, {} kept", number("gained"), number("lost"), number("kept"))
}

fn show(terminal: &Terminal, found: &Value) -> io::Result<()> {
    let text = |value: &Value| printable(value.as_str().unwrap_or_default()).into_owned();
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let events = found["progress"]["events"].as_u64().unwrap_or_default();
    terminal.line(format_args!("{}: {}", counted(events, "event", "events"), counts(&found["totals"])))?;
    if let Some(limit) = found["stopped_by"].as_str() {
        terminal.line(format_args!("ended at the limit of {}", printable(limit)))?;
    }
    for day in list(&found["days"]) {
        let events = counted(day["events"].as_u64().unwrap_or_default(), "event", "events");
        terminal.line(format_args!("  {}  {events}: {}", text(&day["day"]), counts(&day)))?;
    }
    for subscriber in list(&found["subscribers"]) {
        terminal.line(format_args!("  {}: {}", text(&subscriber["subscriber"]), counts(&subscriber)))?;
    }
    for kind in ["gained", "lost"] {
        for example in list(&found["examples"][kind]) {
            let (event, subscription) = (text(&example["event"]), text(&example["subscription"]));
            terminal.line(format_args!("  {kind}: {event} for {subscription} of {}", text(&example["subscriber"])))?;
        }
    }
    for warning in list(&found["warnings"]) {
        terminal.line(format_args!("  warning: {}", text(&warning)))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;
    use crate::commands::fake_server;

    #[tokio::test]
    async fn a_backtest_is_printed_when_it_has_ended() {
        let counts = json!({"gained": 2, "lost": 0, "kept": 1_500});
        let day = json!({"day": "2026-11-29", "events": 900, "gained": 2, "lost": 0, "kept": 1_500});
        let example = json!({"event": "e-3-1", "subscription": "s-15", "subscriber": "ada"});
        let done = json!({"id": "bt-3", "state": "done", "stopped_by": "events", "progress": {"events": 900},
            "totals": counts, "days": [day], "subscribers": [{"subscriber": "ada", "gained": 2, "lost": 0, "kept": 5}],
            "examples": {"gained": [example], "lost": []}, "warnings": ["the state begins empty"]});
        let run = async |args: Backtest, terminal: &Terminal, client: &Client| args.run(terminal, client).await;
        let args = ["quakes", "near", "--when", "event.m > 5.0", "--events", "900"];
        let expected = expect![[r#"
            900 events: 2 gained, 0 lost, 1,500 kept
            ended at the limit of events
              2026-11-29  900 events: 2 gained, 0 lost, 1,500 kept
              ada: 2 gained, 0 lost, 5 kept
              gained: e-3-1 for s-15 of ada
              warning: the state begins empty
            POST /v1/applications/quakes/backtests [application/json] {"rule":"near","when":"event.m > 5.0","events_max":900}
            DELETE /v1/applications/quakes/backtests/bt-3"#]];
        let answers = vec![(202, done), (204, Value::Null)];
        fake_server::check("backtest", &args, answers, run, expected).await;
    }
}
