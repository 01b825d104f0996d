//! Command `exchange`: checks, applies, lists, shows and removes exchanges; sets the state of send ports, throttles and
//! tracking.

use std::path::PathBuf;

use clap::Subcommand;
use reqwest::{Method, StatusCode, header};
use serde_json::{Value, json};
use tocsin_model::definition::{named, named_exchange};

use super::lists::{ItemList, author};
use crate::{
    client::{Client, problem, segment},
    commands::apply::{confirm, difference_line},
    failure::{Failure, Outcome},
    platform,
    problems::compiler_format,
    terminal::{Colour, Terminal, printable},
};

/// Arguments of `tocsin exchange`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Check a definition on the server without applying it
    Check {
        /// Definition, a YAML file
        file: PathBuf,
    },
    /// Show the changes of a definition and apply it
    Apply {
        /// Definition, a YAML file
        file: PathBuf,
        /// Show the changes without applying them; never asks
        #[arg(long)]
        dry_run: bool,
        /// Apply without asking; required without a terminal
        #[arg(long, short)]
        yes: bool,
    },
    /// List the exchanges
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Print the definition of an exchange
    Show {
        /// Exchange
        #[arg(value_name = "EXCHANGE")]
        name: String,
    },
    /// Remove an exchange without open messages
    Remove {
        /// Exchange
        #[arg(value_name = "EXCHANGE")]
        name: String,
    },
    /// Show the send ports of an exchange
    Ports {
        /// Exchange
        #[arg(value_name = "EXCHANGE")]
        name: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show the receive locations of an exchange and their state
    Locations {
        /// Exchange
        #[arg(value_name = "EXCHANGE")]
        name: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Set the state of a send port
    Port {
        /// Exchange
        #[arg(value_name = "EXCHANGE")]
        name: String,
        /// Send port
        port: String,
        /// State: active sends, hold keeps messages, off refuses them, as-defined follows the definition
        #[arg(value_parser = ["off", "hold", "active", "as-defined"])]
        state: String,
    },
    /// Show throttling and the queues of the send ports
    Flow {
        /// Exchange
        #[arg(value_name = "EXCHANGE")]
        name: String,
        /// Show throttling changes instead, newest first
        #[arg(long)]
        changes: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Set rate limits of intake and sending; kept over restarts
    #[command(after_help = "Examples:
  tocsin exchange throttle orders publishing 20/s
  tocsin exchange throttle orders delivery off --port warehouse")]
    Throttle {
        /// Exchange
        #[arg(value_name = "EXCHANGE")]
        name: String,
        /// Direction to limit: publishing (intake) or delivery (sending)
        #[arg(value_parser = ["publishing", "delivery"])]
        side: String,
        /// Maximum rate, such as 20/s, 6/m or 1/h; 0 blocks all messages, off removes the limit
        rate: String,
        /// Receive or send port; default is the sum of all receive ports
        #[arg(long)]
        port: Option<String>,
    },
    /// Show which bodies are tracked and how much is stored
    Tracking {
        /// Exchange
        #[arg(value_name = "EXCHANGE")]
        name: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Set which bodies are tracked; kept over restarts
    #[command(after_help = "Example:
  tocsin exchange track orders received,sent --port warehouse --sample 10")]
    Track {
        /// Exchange
        #[arg(value_name = "EXCHANGE")]
        name: String,
        /// Tracking points: received, sent, replied, returned, comma-separated; or all, none, as-defined
        bodies: String,
        /// Port to set; default is all ports without a setting
        #[arg(long)]
        port: Option<String>,
        /// Route whose messages are tracked in addition to the settings of ports
        #[arg(long, conflicts_with = "port")]
        route: Option<String>,
        /// Percentage of messages to track
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u8).range(0..=100), value_name = "PERCENT")]
        sample: u8,
    },
}

impl Args {
    /// Runs the command.
    ///
    /// # Errors
    /// If the server refuses the request, or the definition is invalid.
    pub async fn run(self, terminal: &Terminal, client: &Client) -> Outcome {
        match self.what {
            Action::Check { file } => {
                let definition = platform::read_definition_text(&file)?;
                let (name, checked) = put(client, &file, &definition, Put::DryRun).await?;
                show_warnings(terminal, &checked)?;
                let fine = format_args!("{}: {} is fine", file.display(), printable(&name)).to_string();
                Ok(terminal.line(terminal.paint(Colour::Green, fine))?)
            }
            Action::Apply { file, dry_run, yes } => {
                // Read once: the definition that is applied is the one whose changes were confirmed.
                let definition = platform::read_definition_text(&file)?;
                let (name, changes) = put(client, &file, &definition, Put::DryRun).await?;
                show_changes(terminal, &name, &changes)?;
                let has_changes = changes["created"] == true || changes["differences"] != json!([]);
                if dry_run {
                    return Ok(());
                }
                if has_changes {
                    confirm(terminal, yes, "apply this?")?;
                }
                // Also without a change: the stored version may not run yet. Optimistic concurrency: the changes shown
                // are those of this version.
                let shown = changes["version"].as_u64().unwrap_or_default();
                let (name, applied) = put(client, &file, &definition, Put::Apply { shown }).await?;
                let runs = format!("{} runs as version {}", printable(&name), applied["version"]);
                Ok(terminal.line(terminal.paint(Colour::Green, runs))?)
            }
            Action::List { json } => {
                let items = client.list("/v1/exchanges", &[], usize::MAX).await?;
                let heads = ["name", "version", "runs", "applied", "by"];
                ItemList { items, limit: usize::MAX, json }.show(terminal, "there are no exchanges", &heads, |item| {
                    let runs = if item["running"] == true { "yes" } else { "no" };
                    vec![
                        text(item, "name"),
                        text(item, "version"),
                        runs.into(),
                        text(item, "applied_at"),
                        author(item, "author"),
                    ]
                })
            }
            Action::Show { name } => {
                let found = client.get(&format!("/v1/exchanges/{}", segment(&name)), &[]).await?;
                Ok(terminal.bytes(found["definition"].as_str().unwrap_or_default().as_bytes())?)
            }
            Action::Remove { name } => {
                let request = client.request(Method::DELETE, &format!("/v1/exchanges/{}", segment(&name)));
                client.send(request).await?;
                Ok(terminal.line(format_args!("{} is removed", printable(&name)))?)
            }
            Action::Ports { name, json } => {
                let items = client.list(&format!("/v1/exchanges/{}/send", segment(&name)), &[], usize::MAX).await?;
                let heads = ["port", "state", "in flight", "ready"];
                ItemList { items, limit: usize::MAX, json }.show(terminal, "there are no send ports", &heads, |item| {
                    let set = if item["is_set"] == true { " (set)" } else { "" };
                    vec![text(item, "port"), text(item, "state") + set, text(item, "under_way"), text(item, "ready")]
                })
            }
            Action::Locations { name, json } => {
                let items =
                    client.list(&format!("/v1/exchanges/{}/locations", segment(&name)), &[], usize::MAX).await?;
                let heads = ["port", "location", "kind", "state", "messages", "last", "lag", "waiting", "reason"];
                let none = "no receive port has receive locations; define them with `locations` of a port";
                ItemList { items, limit: usize::MAX, json }.show(terminal, none, &heads, |item| {
                    let lag = item["lag_seconds"].as_f64().map_or(String::new(), |lag| format!("{lag:.1} s"));
                    let [port, location, kind, state, messages, last, waiting, reason] =
                        ["port", "location", "kind", "state", "messages", "last_at", "waiting", "reason"]
                            .map(|name| text(item, name));
                    vec![port, location, kind, state.replace('_', " "), messages, last, lag, waiting, reason]
                })
            }
            Action::Port { name, port, state } => {
                let path = format!("/v1/exchanges/{}/send/{}/state", segment(&name), segment(&port));
                let setting = if state == "as-defined" { Value::Null } else { state.as_str().into() };
                client.put(&path, &json!({"state": setting})).await?;
                Ok(terminal.line(format_args!("{} of {} is {state}", printable(&port), printable(&name)))?)
            }
            Action::Flow { name, changes: true, json } => {
                let items = client.list(&format!("{}/changes", flow_of(&name)), &[], 1_000).await?;
                let heads = ["at", "change", "side", "port", "reason", "detail"];
                ItemList { items, limit: 1_000, json }.show(terminal, "no throttling so far", &heads, |item| {
                    let word = if item["begins"] == true { "begins" } else { "ends" };
                    let [at, side, port, reason, detail] =
                        ["at", "side", "port", "reason", "detail"].map(|name| text(item, name));
                    vec![at, word.to_owned(), side, port, reason, detail]
                })
            }
            Action::Flow { name, changes: false, json } => {
                let found = client.get(&flow_of(&name), &[]).await?;
                if json { Ok(terminal.json(&found)?) } else { show_flow(terminal, &found) }
            }
            Action::Throttle { name, side, rate, port } => {
                let setting = if rate == "off" { Value::Null } else { rate.as_str().into() };
                client.put(&flow_of(&name), &json!({"side": side, "port": port, "rate": setting})).await?;
                show_flow(terminal, &client.get(&flow_of(&name), &[]).await?)
            }
            Action::Tracking { name, json } => {
                let found = client.get(&tracking_of(&name), &[]).await?;
                if json { Ok(terminal.json(&found)?) } else { show_tracking(terminal, &found) }
            }
            Action::Track { name, bodies, port, route, sample } => {
                let points = match bodies.as_str() {
                    "as-defined" => Value::Null,
                    "none" => json!([]),
                    "all" => json!(["received", "sent", "replied", "returned"]),
                    listed => listed.split(',').map(str::trim).collect(),
                };
                let requested = json!({"port": port, "route": route, "bodies": points, "sample": sample});
                client.put(&tracking_of(&name), &requested).await?;
                show_tracking(terminal, &client.get(&tracking_of(&name), &[]).await?)
            }
        }
    }
}

fn flow_of(exchange: &str) -> String {
    format!("/v1/exchanges/{}/flow", segment(exchange))
}

fn show_flow(terminal: &Terminal, found: &Value) -> Outcome {
    let items = |name: &str| found[name].as_array().map(Vec::as_slice).unwrap_or_default();
    let queue = |item: &Value| {
        let wait = item["wait_seconds"].as_f64().map_or("-".to_owned(), |wait| format!("{wait:.1} s"));
        vec![text(item, "port"), text(item, "waiting"), wait]
    };
    terminal
        .table(&["send port", "waiting", "expected wait"], &items("queues").iter().map(queue).collect::<Vec<_>>())?;
    terminal.line(format_args!("{} callers wait for a reply", text(found, "in_flight")))?;
    for set in items("rates") {
        let port = if set["port"].is_null() { String::new() } else { format!(" at {}", text(set, "port")) };
        terminal.line(format_args!("set: {}{port}, {}", text(set, "side"), text(set, "rate")))?;
    }
    for item in items("throttled") {
        let port = if item["port"].is_null() { String::new() } else { format!(" at {}", text(item, "port")) };
        let [side, reason, since, detail] = ["side", "reason", "since", "detail"].map(|name| text(item, name));
        let line = format!("throttled: {side}{port}, {reason} since {since}: {detail}");
        terminal.line(terminal.paint(Colour::Yellow, line))?;
    }
    Ok(())
}

fn tracking_of(exchange: &str) -> String {
    format!("/v1/exchanges/{}/tracking", segment(exchange))
}

fn show_tracking(terminal: &Terminal, found: &Value) -> Outcome {
    let ports = found["ports"].as_array().map(Vec::as_slice).unwrap_or_default();
    let row = |port: &Value| {
        let points: Vec<&str> = port["bodies"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let points = if points.is_empty() { "none".to_owned() } else { points.join(", ") };
        let set = if port["is_set"] == true { " (set)" } else { "" };
        vec![text(port, "side"), text(port, "port"), points + set, text(port, "sample") + "%"]
    };
    terminal.table(&["side", "port", "bodies", "sample"], &ports.iter().map(row).collect::<Vec<_>>())?;
    let (bytes, dropped) = (text(found, "bytes"), text(found, "dropped"));
    Ok(terminal.line(format_args!("all exchanges: {bytes} bytes stored, {dropped} entries dropped"))?)
}

/// Query of a request that only shows the changes.
#[derive(Debug, Clone, Copy)]
enum Put {
    DryRun,
    /// The stored version whose changes were shown; 0 for none.
    Apply {
        shown: u64,
    },
}

fn show_changes(terminal: &Terminal, name: &str, changes: &Value) -> Outcome {
    let name = printable(name);
    let differences = changes["differences"].as_array().map(Vec::as_slice).unwrap_or_default();
    if changes["created"] == true {
        terminal.line(terminal.paint(Colour::Green, format_args!("+ {name} is new")))?;
    } else if differences.is_empty() {
        terminal.line(format_args!("{name}: nothing to change"))?;
    }
    // The name itself is no part.
    let parts = differences.iter().filter(|difference| difference["path"] != "exchange");
    parts.map(difference_line).try_for_each(|(colour, line)| terminal.line(terminal.paint(colour, line)))?;
    show_warnings(terminal, changes)
}

fn show_warnings(terminal: &Terminal, checked: &Value) -> Outcome {
    for warning in checked["warnings"].as_array().into_iter().flatten() {
        let line = format_args!("warning: {}", crate::problems::problem_line(warning)).to_string();
        terminal.line(terminal.paint(Colour::Yellow, line))?;
    }
    Ok(())
}

/// Sends a definition to be applied. Returns its name and the answer.
async fn put(client: &Client, file: &std::path::Path, definition: &str, way: Put) -> Outcome<(String, Value)> {
    let Some(name) = exchange_name(definition) else {
        if named(definition).is_some() {
            return Err(Failure::failed(format!(
                "{} is an application; use `tocsin check` or `tocsin apply`",
                file.display()
            )));
        }
        return Err(Failure::failed(format!(
            "the exchange name is missing; add `exchange: <name>` at the top of {}",
            file.display()
        )));
    };
    let path = format!("/v1/exchanges/{}", segment(&name));
    let request = match way {
        Put::DryRun => client.request(Method::PUT, &format!("{path}?dry_run=true")),
        Put::Apply { shown: 0 } => client.request(Method::PUT, &path).header(header::IF_NONE_MATCH, "*"),
        Put::Apply { shown } => client.request(Method::PUT, &path).header(header::IF_MATCH, format!("\"{shown}\"")),
    };
    let request = request.header(header::CONTENT_TYPE, "application/yaml").body(definition.to_owned());
    let answer = client.exchange(request).await?;
    if !answer.status().is_success() {
        let response = problem(answer).await;
        if response.status == StatusCode::PRECONDITION_FAILED {
            return Err(super::apply::changed_since_shown(&printable(&name)));
        }
        let mut failure = response.failure();
        let problems = response.body["problems"].as_array().map(Vec::as_slice).unwrap_or_default();
        let read = problems.iter().filter_map(|problem| serde_json::from_value(problem.clone()).ok());
        let compiler_format: Vec<String> = read.map(|problem| compiler_format(file, &problem)).collect();
        if !compiler_format.is_empty() {
            failure.details = compiler_format;
        }
        return Err(failure);
    }
    Ok((name, client.json(answer).await?))
}

/// Name of the exchange in a definition. Of one that cannot be read it is taken from the line that seems to give it, so
/// that the server reports the problems.
fn exchange_name(text: &str) -> Option<String> {
    if let Some(name) = named_exchange(text) {
        return Some(name.to_string());
    }
    let line = text.lines().find_map(|line| line.strip_prefix("exchange:"))?;
    let name = line.split('#').next().unwrap_or_default().trim().trim_matches(['"', '\'']);
    (!name.is_empty()).then(|| name.to_owned())
}

/// Formats a value of an item for a table.
pub(super) fn text(item: &Value, name: &str) -> String {
    match &item[name] {
        Value::Null => String::new(),
        Value::String(text) => printable(text).into_owned(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;
    use crate::commands::fake_server;

    async fn check(args: &[&str], answers: Vec<(u16, Value)>, expected: Expect) {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("shop.yaml");
        std::fs::write(&file, "exchange: shop\n").expect("written");
        let args = [&["apply", file.to_str().expect("a path")], args].concat();
        let run = async |args: Args, terminal: &Terminal, client: &Client| args.run(terminal, client).await;
        fake_server::check("exchange", &args, answers, run, expected).await;
    }

    #[tokio::test]
    async fn the_definition_of_an_application_is_refused_with_the_commands_for_it() {
        let client = Client::new("http://127.0.0.1:9", None).expect("a client");
        let file = std::path::Path::new("doors.yaml");
        let refused = put(&client, file, "application: doors\n", Put::DryRun).await.expect_err("an application");
        assert_eq!(refused.to_string(), "doors.yaml is an application; use `tocsin check` or `tocsin apply`");
        let unnamed = put(&client, file, "send: {}\n", Put::DryRun).await.expect_err("no name").to_string();
        assert!(unnamed.starts_with("the exchange name is missing"), "{unnamed}");
    }

    #[tokio::test]
    async fn changes_of_an_exchange_are_shown_and_confirmed() {
        let part = |kind: &str, path: &str| json!({"kind": kind, "path": path, "text": "", "drops": false});
        let new = json!({"version": 0, "created": true, "differences": [part("added", "exchange"), part("added", "send.erp")]});
        let closed =
            json!([{"path": "receive.in.locations.drop.options.folder", "message": "/in is not open to sources"}]);
        let differences = [part("changed", "send.erp.options.url")];
        let changed = json!({"version": 1, "created": false, "differences": differences, "warnings": closed});
        let same = json!({"version": 1, "created": false, "differences": []});
        check(
            &[],
            vec![(200, new.clone())],
            expect![[r#"
                + shop is new
                + send.erp
                failed: nothing was changed; without a terminal the command cannot ask, so add --yes to apply these changes
                PUT /v1/exchanges/shop?dry_run=true [application/yaml] exchange: shop"#]],
        )
        .await;
        check(
            &["--dry-run"],
            vec![(200, changed)],
            expect![[r#"
                ~ send.erp.options.url
                warning: receive.in.locations.drop.options.folder: /in is not open to sources
                PUT /v1/exchanges/shop?dry_run=true [application/yaml] exchange: shop"#]],
        )
        .await;
        check(
            &["--yes"],
            vec![(200, new.clone()), (200, json!({"version": 1}))],
            expect![[r#"
                + shop is new
                + send.erp
                shop runs as version 1
                PUT /v1/exchanges/shop?dry_run=true [application/yaml] exchange: shop
                PUT /v1/exchanges/shop [application/yaml] [*] exchange: shop"#]],
        )
        .await;
        check(
            &[],
            vec![(200, same), (200, json!({"version": 2}))],
            expect![[r#"
                shop: nothing to change
                shop runs as version 2
                PUT /v1/exchanges/shop?dry_run=true [application/yaml] exchange: shop
                PUT /v1/exchanges/shop [application/yaml] ["1"] exchange: shop"#]],
        )
        .await;
        check(
            &["--yes"],
            vec![(200, new), (412, json!({"title": "it has changed"}))],
            expect![[r#"
                + shop is new
                + send.erp
                failed: nothing was changed: another version of shop was applied after these changes were shown; run the command again to see the changes from it
                PUT /v1/exchanges/shop?dry_run=true [application/yaml] exchange: shop
                PUT /v1/exchanges/shop [application/yaml] [*] exchange: shop"#]],
        )
        .await;
    }
}
