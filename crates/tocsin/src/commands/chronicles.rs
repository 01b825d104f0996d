//! Command `chronicles`: shows per-key aggregates of events.

use clap::Subcommand;
use serde_json::Value;

use crate::{
    client::{Client, segment},
    failure::Outcome,
    terminal::{Terminal, printable},
};

/// Arguments of `tocsin chronicles`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List the chronicles of an application and their size
    List {
        /// Application
        application: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show the values of a chronicle, for all keys or one
    Show {
        /// Application
        application: String,
        /// Event class
        class: String,
        /// Chronicle
        chronicle: String,
        /// Key to show, as JSON: `{"symbol": "A"}`
        #[arg(long, value_name = "KEY")]
        of: Option<String>,
        /// Maximum number of rows
        #[arg(long, default_value_t = 1000, value_name = "COUNT")]
        limit: usize,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

impl Args {
    /// Runs the command.
    ///
    /// # Errors
    /// If the application or chronicle is unknown, or the key is invalid.
    pub async fn run(self, terminal: &Terminal, client: impl FnOnce() -> Outcome<Client>) -> Outcome {
        match self.what {
            Action::List { application, json } => {
                let path = format!("/v1/applications/{}/chronicles", segment(&application));
                let items = client()?.list(&path, &[], usize::MAX).await?;
                if json {
                    return Ok(terminal.json(&items)?);
                }
                if items.is_empty() {
                    return Ok(terminal.line("the event classes of this application have no chronicles")?);
                }
                let row = |item: &Value| {
                    let name = format!("{}.{}", text(&item["class"]), text(&item["name"]));
                    let keys = format!("{} of {}", item["keys"], item["keys_max"]);
                    vec![name, text(&item["keeps"]), keys, listed(&item["gives"])]
                };
                let rows: Vec<Vec<String>> = items.iter().map(row).collect();
                Ok(terminal.table(&["chronicle", "aggregate", "keys", "values"], &rows)?)
            }
            Action::Show { application, class, chronicle, of, limit, json } => {
                let [application, class, chronicle] = [&application, &class, &chronicle].map(|part| segment(part));
                let path = format!("/v1/applications/{application}/chronicles/{class}/{chronicle}");
                let query: Vec<(&str, &str)> = of.iter().map(|key| ("key", key.as_str())).collect();
                let items = client()?.list(&path, &query, limit).await?;
                if json {
                    return Ok(terminal.json(&items)?);
                }
                let Some(first) = items.first() else {
                    return Ok(terminal.line("the chronicle is empty")?);
                };
                let titles = |part: &str| -> Vec<String> {
                    first[part].as_object().map(|map| map.keys().cloned().collect()).unwrap_or_default()
                };
                let (keys, values) = (titles("key"), titles("values"));
                let row = |item: &Value| {
                    let of_key = keys.iter().map(|name| cell(&item["key"][name]));
                    of_key.chain(values.iter().map(|name| cell(&item["values"][name]))).collect()
                };
                let rows: Vec<Vec<String>> = items.iter().map(row).collect();
                let head: Vec<&str> = keys.iter().chain(&values).map(String::as_str).collect();
                Ok(terminal.table(&head, &rows)?)
            }
        }
    }
}

fn text(value: &Value) -> String {
    printable(value.as_str().unwrap_or_default()).into_owned()
}

fn listed(value: &Value) -> String {
    value.as_array().map_or_else(String::new, |items| items.iter().map(text).collect::<Vec<_>>().join(", "))
}

/// Text as it is, empty for null, other values as JSON.
fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => printable(text).into_owned(),
        other => printable(&other.to_string()).into_owned(),
    }
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

    /// The output and requests must contain these, in this order.
    async fn check(args: &[&str], answer: Value, expected: &[&str]) {
        let server = FakeServer::start(vec![(200, answer)]).await;
        let (terminal, captured) = Terminal::captured();
        let args = <TestCli as clap::Parser>::parse_from([&["chronicles"], args].concat()).args;
        args.run(&terminal, || Ok(server.client())).await.expect("the command succeeds");
        let said = format!("{}{}", captured.text(), server.requests().join("\n"));
        let mut rest = said.as_str();
        for piece in expected {
            let Some(at) = rest.find(piece) else { panic!("`{piece}` is missing in\n{said}") };
            rest = &rest[at + piece.len()..];
        }
    }

    #[tokio::test]
    async fn chronicles_and_their_keys_are_shown() {
        let chronicle = json!({
            "class": "quote", "name": "day", "keeps": "follows event.price by symbol", "key": ["symbol"],
            "gives": ["last", "high"], "keys": 2, "keys_max": 100_000,
        });
        check(
            &["list", "stock"],
            json!({ "items": [chronicle] }),
            &[
                "quote.day",
                "follows event.price by symbol",
                "2 of 100000",
                "last, high",
                "GET /v1/applications/stock/chronicles",
            ],
        )
        .await;
        let entry = json!({ "key": { "symbol": "A" }, "values": { "high": 12.5, "last": null } });
        check(
            &["show", "stock", "quote", "day", "--of", r#"{"symbol":"A"}"#],
            json!({ "items": [entry] }),
            &["symbol", "high", "last", "A", "12.5", "GET /v1/applications/stock/chronicles/quote/day?key=%7B"],
        )
        .await;
        check(
            &["list", "stock"],
            json!({ "items": [] }),
            &["the event classes of this application have no chronicles"],
        )
        .await;
        check(&["show", "stock", "quote", "day"], json!({ "items": [] }), &["the chronicle is empty"]).await;
    }
}
