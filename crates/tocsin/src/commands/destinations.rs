//! Command `destinations`: shows the destinations of an application's channels and their circuit breakers.

use serde_json::Value;

use crate::{
    client::{Client, segment},
    failure::Outcome,
    terminal::{Terminal, printable},
};

/// Arguments of `tocsin destinations`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Application
    application: String,
    /// Show only destinations that are paused, on trial, failing or throttled
    #[arg(long)]
    trouble: bool,
    /// Maximum number of rows of each channel
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=1000), value_name = "COUNT")]
    limit: u16,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Lists the destinations, failing ones first.
    ///
    /// # Errors
    /// If the application is unknown.
    pub async fn run(self, terminal: &Terminal, client: &Client) -> Outcome {
        let path = format!("/v1/applications/{}/destinations", segment(&self.application));
        let answer = client.get(&path, &[("limit", &self.limit.to_string())]).await?;
        let none = Vec::new();
        let mut items = answer["items"].as_array().unwrap_or(&none).clone();
        if self.trouble {
            let troubled =
                |item: &Value| item["failures"] != 0 || item["state"] != "open" || item.get("reason").is_some();
            items.retain(troubled);
        }
        if self.json {
            return Ok(terminal.json(&items)?);
        }
        if items.is_empty() {
            let what = if self.trouble { "all destinations are healthy" } else { "no message was sent yet" };
            return Ok(terminal.line(what)?);
        }
        let rows: Vec<Vec<String>> = items.iter().map(row).collect();
        let head = ["channel", "destination", "state", "limit", "busy", "waiting", "latency", "failures", "reason"];
        Ok(terminal.table(&head, &rows)?)
    }
}

fn row(item: &Value) -> Vec<String> {
    let text = |key: &str| printable(item[key].as_str().unwrap_or_default()).into_owned();
    let state = match item["paused_seconds"].as_u64() {
        Some(seconds) => format!("{} {seconds}s", if item["state"] == "open" { "waits" } else { "paused" }),
        None => text("state"),
    };
    let latency = item["latency_ms"].as_f64().map_or(String::new(), |millis| format!("{millis} ms"));
    vec![
        text("channel"),
        text("destination"),
        state,
        item["concurrency"].to_string(),
        item["busy"].to_string(),
        item["waiting"].to_string(),
        latency,
        item["failures"].to_string(),
        text("reason"),
    ]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::commands::fake_server::FakeServer;

    #[derive(clap::Parser)]
    struct TestCli {
        #[command(flatten)]
        args: Args,
    }

    async fn check(args: &[&str], answer: Value, expected: &[&str]) {
        let server = FakeServer::start(vec![(200, answer)]).await;
        let (terminal, captured) = Terminal::captured();
        let args = <TestCli as clap::Parser>::parse_from([&["destinations"], args].concat()).args;
        args.run(&terminal, &server.client()).await.expect("the command succeeds");
        let said = format!("{}{}", captured.text(), server.requests().join("\n"));
        for piece in expected {
            assert!(said.contains(piece), "`{piece}` is missing in\n{said}");
        }
    }

    #[tokio::test]
    async fn failing_destinations_come_first_or_alone() {
        let open = json!({"channel": "hook", "destination": "https://a.example", "state": "open", "concurrency": 12,
            "busy": 3, "waiting": 9, "latency_ms": 12.5, "failures": 0});
        let paused = json!({"channel": "hook", "destination": "https://b.example", "state": "paused", "concurrency": 2,
            "busy": 0, "waiting": 0, "failures": 20, "paused_seconds": 40, "reason": "no connection"});
        let both = json!({"items": [paused, open]});
        let request = "GET /v1/applications/quakes/destinations?limit=100";
        check(&["quakes"], both.clone(), &["paused 40s", "no connection", "https://a.example", "12.5 ms", request])
            .await;
        let (terminal, captured) = Terminal::captured();
        let server = FakeServer::start(vec![(200, both)]).await;
        let args = <TestCli as clap::Parser>::parse_from(["destinations", "quakes", "--trouble"]).args;
        args.run(&terminal, &server.client()).await.expect("the command succeeds");
        assert!(captured.text().contains("b.example") && !captured.text().contains("a.example"));
        check(&["quakes"], json!({"items": []}), &["no message was sent yet"]).await;
        check(&["quakes", "--trouble"], json!({"items": []}), &["all destinations are healthy"]).await;
    }
}
