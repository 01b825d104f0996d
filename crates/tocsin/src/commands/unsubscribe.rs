//! Command `unsubscribe`: ends the subscriptions of many addresses or subscribers, with a result for each, and undoes it.

use std::{
    io::{BufRead, BufReader},
    path::PathBuf,
};

use serde_json::{Map, Value, json};

use crate::{
    client::Client,
    failure::{Failure, Outcome},
    problems::problem_line,
    terminal::{Terminal, printable},
};

/// Items of one request.
const CHUNK: usize = 200;

/// Arguments of `tocsin unsubscribe`.
#[derive(Debug, clap::Args)]
#[command(after_help = "A line of the file is an address, or a JSON object with `address`, `subscriber` or \
`subscription`, and optionally `application`. An undo takes the lines that --json printed.

Examples:
  tocsin unsubscribe ada@example.org
  tocsin unsubscribe --file leavers.txt --json > results.ndjson
  tocsin unsubscribe --undo --file results.ndjson
  tocsin unsubscribe --undo --subscriber ada")]
pub struct Args {
    /// Addresses whose subscriptions end
    addresses: Vec<String>,
    /// Subscriber whose subscriptions end
    #[arg(long, value_name = "ID")]
    subscriber: Vec<String>,
    /// Subscription to end
    #[arg(long, value_name = "ID")]
    subscription: Vec<String>,
    /// File with a line for each; - for standard input
    #[arg(long)]
    file: Option<PathBuf>,
    /// Only subscriptions of this application
    #[arg(long)]
    application: Option<String>,
    /// Enable what was unsubscribed last, or at --at
    #[arg(long)]
    undo: bool,
    /// Time of the unsubscription to undo
    #[arg(long, value_name = "TIME", requires = "undo")]
    at: Option<String>,
    /// Print a JSON object for each
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Runs the command.
    ///
    /// # Errors
    /// The file cannot be read, the server refuses the request, or a line of the input is invalid.
    pub async fn run(self, terminal: &Terminal, client: &Client) -> Outcome {
        let items = self.items()?;
        if items.is_empty() {
            return Err(Failure::usage("an address, --subscriber, --subscription or --file is required"));
        }
        let path = if self.undo { "/v1/unsubscriptions/undo" } else { "/v1/unsubscriptions" };
        let (mut refused, count) = (0, items.len());
        for chunk in items.chunks(CHUNK) {
            let answer = client.post(path, &json!({ "unsubscriptions": chunk })).await?;
            let results = answer["items"].as_array().map(Vec::as_slice).unwrap_or_default();
            for (item, result) in chunk.iter().zip(results) {
                refused += usize::from(result["problems"].is_array());
                if self.json {
                    let mut line = item.clone();
                    line.extend(result.as_object().cloned().unwrap_or_default());
                    terminal.line(Value::Object(line))?;
                } else {
                    terminal.line(shown(item, result))?;
                }
            }
        }
        match refused {
            0 => Ok(()),
            _ => Err(Failure::failed(format!("{refused} of {count} lines are invalid; nothing was changed for them"))),
        }
    }

    fn items(&self) -> Outcome<Vec<Map<String, Value>>> {
        let mut items = Vec::new();
        let named =
            [("address", &self.addresses), ("subscriber", &self.subscriber), ("subscription", &self.subscription)];
        for (name, values) in named {
            items.extend(values.iter().map(|value| self.item(name, value)));
        }
        let Some(path) = &self.file else { return Ok(items) };
        let doing = "read the addresses";
        let input: Box<dyn BufRead> = if path.as_os_str() == "-" {
            Box::new(BufReader::new(std::io::stdin()))
        } else {
            let file = std::fs::File::open(path);
            Box::new(BufReader::new(
                file.map_err(|error| Failure::failed(format!("cannot {doing} of {}", path.display())).because(&error))?,
            ))
        };
        for (at, line) in input.lines().enumerate() {
            let line = line.map_err(|error| Failure::failed(format!("cannot {doing}")).because(&error))?;
            let line = line.trim().trim_start_matches('\u{feff}');
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            if !line.starts_with('{') {
                items.push(self.item("address", line));
                continue;
            }
            let object: Map<String, Value> = serde_json::from_str(line)
                .map_err(|error| Failure::usage(format!("line {} is not a JSON object: {error}", at + 1)))?;
            let mut item: Map<String, Value> = object
                .into_iter()
                .filter(|(name, _)| matches!(name.as_str(), "address" | "subscriber" | "subscription" | "application"))
                .collect();
            if let Some(application) = &self.application {
                item.insert("application".to_owned(), application.as_str().into());
            }
            items.push(self.with_time(item, line));
        }
        Ok(items)
    }

    fn item(&self, name: &str, value: &str) -> Map<String, Value> {
        let mut item = Map::from_iter([(name.to_owned(), value.into())]);
        item.extend(self.application.as_ref().map(|name| ("application".to_owned(), name.as_str().into())));
        item.extend(self.at.as_ref().map(|at| ("at".to_owned(), at.as_str().into())));
        item
    }

    /// Adds the time that the line names, for an undo.
    fn with_time(&self, mut item: Map<String, Value>, line: &str) -> Map<String, Value> {
        let given = serde_json::from_str::<Value>(line).ok().and_then(|line| line["at"].as_str().map(str::to_owned));
        if let Some(at) = self.at.clone().or(given).filter(|_| self.undo) {
            item.insert("at".to_owned(), at.into());
        }
        item
    }
}

/// The result of an item as a line.
fn shown(item: &Map<String, Value>, result: &Value) -> String {
    let target = ["address", "subscriber", "subscription"].iter().find_map(|name| item.get(*name)?.as_str());
    let target = printable(target.unwrap_or("?")).into_owned();
    if let Some(problems) = result["problems"].as_array() {
        let lines: Vec<String> = problems.iter().map(problem_line).collect();
        return format!("{target}: {}", lines.join("; "));
    }
    if let Some(restored) = result["restored"].as_u64() {
        return format!("{target}: {restored} enabled");
    }
    let ended: Vec<&str> = result["subscriptions"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    match (result["subscribers"].as_u64(), ended.len()) {
        (Some(0), _) => format!("{target}: not found"),
        (_, 0) => format!("{target}: nothing to end"),
        (_, count) => format!("{target}: {count} ended ({})", ended.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;
    use crate::commands::fake_server;

    async fn check(args: &[&str], answers: Vec<(u16, Value)>, expected: Expect) {
        let run = async |args: Args, terminal: &Terminal, client: &Client| args.run(terminal, client).await;
        fake_server::check("unsubscribe", args, answers, run, expected).await;
    }

    #[tokio::test]
    async fn each_line_has_a_result() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("leavers.txt");
        let text = "\u{feff}ann@example.org\n\n# gone\n {\"subscriber\": \"bob\", \"at\": \"2026-11-29T03:00:00Z\"}\ncarl@example.org\n?\n";
        std::fs::write(&file, text).expect("written");
        let file = file.to_str().expect("a path").to_owned();
        let results = json!({"items": [
            {"subscribers": 1, "subscriptions": ["s-1", "s-2"], "at": "2026-11-29T03:00:00Z"},
            {"subscribers": 1, "subscriptions": [], "at": "2026-11-29T03:00:00Z"},
            {"subscribers": 0, "subscriptions": [], "at": "2026-11-29T03:00:00Z"},
            {"problems": [{"path": "address", "message": "is empty"}]},
        ]});
        check(
            &["--file", &file, "--application", "quakes"],
            vec![(200, results)],
            expect![[r#"
                ann@example.org: 2 ended (s-1, s-2)
                bob: nothing to end
                carl@example.org: not found
                ?: address: is empty
                failed: 1 of 4 lines are invalid; nothing was changed for them
                POST /v1/unsubscriptions [application/json] {"unsubscriptions":[{"address":"ann@example.org","application":"quakes"},{"subscriber":"bob","application":"quakes"},{"address":"carl@example.org","application":"quakes"},{"address":"?","application":"quakes"}]}"#]],
        )
        .await;
    }

    #[tokio::test]
    async fn an_undo_takes_the_printed_results() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("results.ndjson");
        let text =
            r#"{"address":"ann@example.org","subscribers":1,"subscriptions":["s-1"],"at":"2026-11-29T03:00:00Z"}"#;
        std::fs::write(&file, text).expect("written");
        check(
            &["--undo", "--file", file.to_str().expect("a path")],
            vec![(200, json!({"items": [{"restored": 1}]}))],
            expect![[r#"
                ann@example.org: 1 enabled
                POST /v1/unsubscriptions/undo [application/json] {"unsubscriptions":[{"address":"ann@example.org","at":"2026-11-29T03:00:00Z"}]}"#]],
        )
        .await;
        check(
            &["--undo", "--subscriber", "ann", "--json"],
            vec![(200, json!({"items": [{"restored": 2}]}))],
            expect![[r#"
                {"subscriber":"ann","restored":2}
                POST /v1/unsubscriptions/undo [application/json] {"unsubscriptions":[{"subscriber":"ann"}]}"#]],
        )
        .await;
    }
}
