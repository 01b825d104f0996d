//! Command `sources`: shows the event sources of an application and their state.

use serde_json::Value;

use crate::{
    client::{Client, segment},
    failure::Outcome,
    terminal::{Terminal, printable},
};

/// Arguments of `tocsin sources`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Application
    application: String,
    /// Show only sources that are not running or refuse events
    #[arg(long)]
    trouble: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Lists the sources by name.
    ///
    /// # Errors
    /// If the application is unknown.
    pub async fn run(self, terminal: &Terminal, client: &Client) -> Outcome {
        let path = format!("/v1/applications/{}/sources", segment(&self.application));
        let answer = client.get(&path, &[]).await?;
        let mut items = answer["items"].as_array().cloned().unwrap_or_default();
        if self.trouble {
            items.retain(|item| item["state"] != "running" || item["refused"] != 0);
        }
        if self.json {
            return Ok(terminal.json(&items)?);
        }
        if items.is_empty() {
            let none = "the application has no sources; define them with `sources` in the definition";
            return Ok(terminal.line(if self.trouble { "all sources are healthy" } else { none })?);
        }
        let rows: Vec<Vec<String>> = items.iter().map(row).collect();
        let head =
            ["source", "kind", "class", "state", "events", "batches", "refused", "last", "lag", "waiting", "reason"];
        Ok(terminal.table(&head, &rows)?)
    }
}

fn row(item: &Value) -> Vec<String> {
    let text = |key: &str| printable(item[key].as_str().unwrap_or_default()).into_owned();
    let number = |key: &str| item[key].as_u64().map_or(String::new(), |number| number.to_string());
    let reason = if item["reason"].is_null() { text("refused_reason") } else { text("reason") };
    let lag = item["lag_seconds"].as_f64().map_or(String::new(), |lag| format!("{lag:.1} s"));
    vec![
        text("source"),
        text("kind"),
        text("class"),
        text("state").replace('_', " "),
        number("events"),
        number("batches"),
        number("refused"),
        text("last_batch"),
        lag,
        number("waiting"),
        reason,
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

    async fn check(args: &[&str], answer: Value, expected: &[&str], absent: &str) {
        let server = FakeServer::start(vec![(200, answer)]).await;
        let (terminal, captured) = Terminal::captured();
        let args = <TestCli as clap::Parser>::parse_from([&["sources"], args].concat()).args;
        args.run(&terminal, &server.client()).await.expect("the command succeeds");
        let said = format!("{}{}", captured.text(), server.requests().join("\n"));
        for piece in expected {
            assert!(said.contains(piece), "`{piece}` is missing in\n{said}");
        }
        assert!(absent.is_empty() || !said.contains(absent), "`{absent}` is in\n{said}");
    }

    #[tokio::test]
    async fn sources_and_their_failures_are_listed() {
        let running = json!({"source": "drop", "kind": "directory", "class": "quake", "state": "running", "failures": 0,
            "events": 1707, "batches": 2, "refused": 0, "last_batch": "eb-7", "lag_seconds": 1.25, "waiting": 3});
        let troubled = json!({"source": "feed", "kind": "directory", "class": "quake", "state": "backing_off",
            "failures": 2, "events": 0, "batches": 0, "refused": 0, "reason": "the folder is gone"});
        let both = json!({"items": [running, troubled]});
        let request = "GET /v1/applications/quakes/sources";
        check(&["quakes"], both.clone(), &["1707", "eb-7", "1.2 s", "backing off", "the folder is gone", request], "")
            .await;
        check(&["quakes", "--trouble"], both, &["feed"], "drop").await;
        check(&["quakes"], json!({"items": []}), &["the application has no sources"], "").await;
        check(&["quakes", "--trouble"], json!({"items": []}), &["all sources are healthy"], "").await;
    }
}
