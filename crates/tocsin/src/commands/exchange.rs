//! Checks, applies, lists, shows and removes exchanges, and sets the state of their send ports.

use std::{fs, path::PathBuf};

use clap::Subcommand;
use reqwest::{Method, header};
use serde_json::{Value, json};

use super::lists::Listed;
use crate::{
    client::{Client, problem, segment},
    commands::check::located,
    failure::{Failure, Outcome},
    terminal::{Colour, Terminal, printable},
};

/// Arguments of `tocsin exchange`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Checks a definition against the server, without applying it
    Check {
        /// The definition, a YAML file
        file: PathBuf,
    },
    /// Makes a definition the one that runs
    Apply {
        /// The definition, a YAML file
        file: PathBuf,
    },
    /// Lists the exchanges
    List {
        /// Prints JSON
        #[arg(long)]
        json: bool,
    },
    /// Prints the definition of an exchange
    Show {
        /// Its name
        name: String,
    },
    /// Removes an exchange that has no open messages
    Remove {
        /// Its name
        name: String,
    },
    /// Shows the send ports of an exchange
    Ports {
        /// The exchange
        name: String,
        /// Prints JSON
        #[arg(long)]
        json: bool,
    },
    /// Shows where the receive ports of an exchange take messages from, and how each of these does
    Locations {
        /// The exchange
        name: String,
        /// Prints JSON
        #[arg(long)]
        json: bool,
    },
    /// Sets the state of a send port: off, hold or active; or as its definition says
    Port {
        /// The exchange
        name: String,
        /// The send port
        port: String,
        /// The state
        #[arg(value_parser = ["off", "hold", "active", "as-defined"])]
        state: String,
    },
    /// Shows what slows the messages of an exchange down, and what waits for its send ports
    Flow {
        /// The exchange
        name: String,
        /// Shows instead when they were slowed down, newest first
        #[arg(long)]
        changes: bool,
        /// Prints JSON
        #[arg(long)]
        json: bool,
    },
    /// Sets how fast messages may come in or leave, for restarts as well
    Throttle {
        /// The exchange
        name: String,
        /// Where they come in, or where they leave
        #[arg(value_parser = ["publishing", "delivery"])]
        side: String,
        /// Such as 20/s, 6/m or 1/h; 0 for none at all, off for as fast as they can
        rate: String,
        /// A receive or send port; otherwise all receive ports together
        #[arg(long)]
        port: Option<String>,
    },
    /// Shows which bodies are kept at the ports of an exchange, and how much is kept
    Tracking {
        /// The exchange
        name: String,
        /// Prints JSON
        #[arg(long)]
        json: bool,
    },
    /// Sets which bodies are kept while messages pass, for restarts as well
    Track {
        /// The exchange
        name: String,
        /// Where: received, sent, replied, returned, with commas between; all, none, or as-defined
        bodies: String,
        /// At the ports of this name; otherwise at all for which nothing is set
        #[arg(long)]
        port: Option<String>,
        /// Of the messages that this route leads, beside what their ports ask for
        #[arg(long, conflicts_with = "port")]
        route: Option<String>,
        /// Of how many messages in a hundred
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u8).range(0..=100))]
        sample: u8,
    },
}

impl Args {
    /// Does it.
    ///
    /// # Errors
    /// The server does not do it, or the definition has problems.
    pub async fn run(self, terminal: &Terminal, client: &Client) -> Outcome {
        match self.what {
            What::Check { file } => {
                let (name, _) = put(client, &file, "?dry_run=true").await?;
                let fine = format_args!("{}: {} is fine", file.display(), printable(&name)).to_string();
                Ok(terminal.line(terminal.paint(Colour::Green, fine))?)
            }
            What::Apply { file } => {
                let (name, version) = put(client, &file, "").await?;
                let runs = format!("{} runs as version {version}", printable(&name));
                Ok(terminal.line(terminal.paint(Colour::Green, runs))?)
            }
            What::List { json } => {
                let items = client.list("/v1/exchanges", &[], usize::MAX).await?;
                let heads = ["name", "version", "runs", "applied", "by"];
                Listed { items, limit: usize::MAX, json }.show(terminal, "there are no exchanges", &heads, |item| {
                    let runs = if item["running"] == true { "yes" } else { "no" };
                    vec![
                        text(item, "name"),
                        text(item, "version"),
                        runs.into(),
                        text(item, "applied_at"),
                        text(item, "author"),
                    ]
                })
            }
            What::Show { name } => {
                let found = client.get(&format!("/v1/exchanges/{}", segment(&name)), &[]).await?;
                Ok(terminal.bytes(found["definition"].as_str().unwrap_or_default().as_bytes())?)
            }
            What::Remove { name } => {
                let request = client.request(Method::DELETE, &format!("/v1/exchanges/{}", segment(&name)));
                client.send(request).await?;
                Ok(terminal.line(format_args!("{} is removed", printable(&name)))?)
            }
            What::Ports { name, json } => {
                let items = client.list(&format!("/v1/exchanges/{}/send", segment(&name)), &[], usize::MAX).await?;
                let heads = ["port", "state", "under way", "ready"];
                Listed { items, limit: usize::MAX, json }.show(terminal, "there are no send ports", &heads, |item| {
                    let set = if item["is_set"] == true { " (set)" } else { "" };
                    vec![text(item, "port"), text(item, "state") + set, text(item, "under_way"), text(item, "ready")]
                })
            }
            What::Locations { name, json } => {
                let items =
                    client.list(&format!("/v1/exchanges/{}/locations", segment(&name)), &[], usize::MAX).await?;
                let heads = ["port", "location", "kind", "state", "messages", "last", "lag", "waiting", "reason"];
                let none = "no receive port takes messages from anywhere; `locations` of a port can say where";
                Listed { items, limit: usize::MAX, json }.show(terminal, none, &heads, |item| {
                    let lag = item["lag_seconds"].as_f64().map_or(String::new(), |lag| format!("{lag:.1} s"));
                    let [port, location, kind, state, messages, last, waiting, reason] =
                        ["port", "location", "kind", "state", "messages", "last_at", "waiting", "reason"]
                            .map(|name| text(item, name));
                    vec![port, location, kind, state.replace('_', " "), messages, last, lag, waiting, reason]
                })
            }
            What::Port { name, port, state } => {
                let path = format!("/v1/exchanges/{}/send/{}/state", segment(&name), segment(&port));
                let given = if state == "as-defined" { Value::Null } else { state.as_str().into() };
                client.put(&path, &json!({"state": given})).await?;
                Ok(terminal.line(format_args!("{} of {} is {state}", printable(&port), printable(&name)))?)
            }
            What::Flow { name, changes: true, json } => {
                let items = client.list(&format!("{}/changes", flow_of(&name)), &[], 1_000).await?;
                let heads = ["at", "", "side", "port", "reason", ""];
                Listed { items, limit: 1_000, json }.show(terminal, "nothing was slowed down", &heads, |item| {
                    let word = if item["begins"] == true { "begins" } else { "ends" };
                    let [at, side, port, reason, detail] =
                        ["at", "side", "port", "reason", "detail"].map(|name| text(item, name));
                    vec![at, word.to_owned(), side, port, reason, detail]
                })
            }
            What::Flow { name, changes: false, json } => {
                let found = client.get(&flow_of(&name), &[]).await?;
                if json { Ok(terminal.json(&found)?) } else { show_flow(terminal, &found) }
            }
            What::Throttle { name, side, rate, port } => {
                let given = if rate == "off" { Value::Null } else { rate.as_str().into() };
                client.put(&flow_of(&name), &json!({"side": side, "port": port, "rate": given})).await?;
                show_flow(terminal, &client.get(&flow_of(&name), &[]).await?)
            }
            What::Tracking { name, json } => {
                let found = client.get(&tracking_of(&name), &[]).await?;
                if json { Ok(terminal.json(&found)?) } else { show_tracking(terminal, &found) }
            }
            What::Track { name, bodies, port, route, sample } => {
                let points = match bodies.as_str() {
                    "as-defined" => Value::Null,
                    "none" => json!([]),
                    "all" => json!(["received", "sent", "replied", "returned"]),
                    listed => listed.split(',').map(str::trim).collect(),
                };
                let wanted = json!({"port": port, "route": route, "bodies": points, "sample": sample});
                client.put(&tracking_of(&name), &wanted).await?;
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
    terminal.table(&["send port", "waiting", "a new one"], &items("queues").iter().map(queue).collect::<Vec<_>>())?;
    terminal.line(format_args!("{} senders wait for an answer", text(found, "in_flight")))?;
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
    Ok(terminal.line(format_args!("of all exchanges: {bytes} bytes are kept, {dropped} entries were dropped"))?)
}

/// Puts a definition. Gives its name and its version.
async fn put(client: &Client, file: &PathBuf, query: &str) -> Outcome<(String, u64)> {
    let definition = fs::read_to_string(file).map_err(|error| Failure::file("read the definition", file, &error))?;
    let Some(name) = exchange_name(&definition) else {
        return Err(Failure::failed(format!("say `exchange: <name>` at the top of {}", file.display())));
    };
    let request = client.request(Method::PUT, &format!("/v1/exchanges/{}{query}", segment(&name)));
    let request = request.header(header::CONTENT_TYPE, "application/yaml").body(definition);
    let answer = client.exchange(request).await?;
    if !answer.status().is_success() {
        let trouble = problem(answer).await;
        let mut failure = trouble.failure();
        let problems = trouble.body["problems"].as_array().map(Vec::as_slice).unwrap_or_default();
        let read = problems.iter().filter_map(|problem| serde_json::from_value(problem.clone()).ok());
        let located: Vec<String> = read.map(|problem| located(file, &problem)).collect();
        if !located.is_empty() {
            failure.details = located;
        }
        return Err(failure);
    }
    let version = client.json(answer).await?["version"].as_u64().unwrap_or_default();
    Ok((name, version))
}

/// The name that a definition gives.
fn exchange_name(text: &str) -> Option<String> {
    let line = text.lines().find_map(|line| line.strip_prefix("exchange:"))?;
    let name = line.split('#').next().unwrap_or_default().trim().trim_matches(['"', '\'']);
    (!name.is_empty()).then(|| name.to_owned())
}

/// A value of an item, for a table.
pub(super) fn text(item: &Value, name: &str) -> String {
    match &item[name] {
        Value::Null => String::new(),
        Value::String(text) => printable(text).into_owned(),
        other => other.to_string(),
    }
}
