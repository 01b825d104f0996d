//! Sends messages through exchanges; lists, finds, shows, edits, resumes and ends them.

use std::{fs, io::Read, path::PathBuf, time::Duration};

use base64::{Engine, prelude::BASE64_STANDARD};
use clap::Subcommand;
use reqwest::{Method, StatusCode, header};
use serde::Serialize;
use serde_json::{Map, Value, json, value::RawValue};

use super::{exchange::text, lists::Listed};
use crate::{
    client::{Client, problem, segment},
    failure::{Failure, Outcome},
    terminal::{Terminal, cut, printable, thousands},
};

/// Arguments of `tocsin messages`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Sends a message through a receive port, and prints the reply to a request
    Send {
        /// The exchange
        exchange: String,
        /// The receive port
        port: String,
        /// The file with the body; standard input if none is given
        file: Option<PathBuf>,
        /// The media type of the body
        #[arg(long, default_value = "application/json")]
        content_type: String,
        /// What makes a repetition known as such
        #[arg(long)]
        key_of_message: Option<String>,
        /// A header, as `Name: value`; may be repeated
        #[arg(long)]
        header: Vec<String>,
        /// How many seconds to wait for a reply, at most as long as the port allows
        #[arg(long)]
        wait: Option<u64>,
    },
    /// Lists messages, newest first
    List {
        #[command(flatten)]
        filter: Filter,
        /// Only what is open, suspended or ended
        #[arg(long, value_parser = ["open", "suspended", "ended"])]
        standing: Option<String>,
        /// Most lines
        #[arg(long, default_value_t = 100)]
        limit: usize,
        /// Prints JSON
        #[arg(long)]
        json: bool,
    },
    /// Shows a message: where it goes, and what became of it
    Show {
        /// Its id, such as m-41
        id: String,
        /// Prints JSON
        #[arg(long)]
        json: bool,
    },
    /// Prints the body of a message
    Body {
        /// Its id
        id: String,
    },
    /// Prints the reply to a request
    Reply {
        /// The id of the request
        id: String,
        /// How many seconds to wait for it
        #[arg(long, default_value_t = 0)]
        wait: u64,
    },
    /// Lets suspended messages go on: routed anew, or sent again with a fresh schedule
    Resume {
        #[command(flatten)]
        filter: Filter,
        #[command(flatten)]
        when: When,
        /// All that is suspended
        #[arg(long)]
        all: bool,
    },
    /// Changes suspended messages; with --resume they go on at once
    Edit {
        #[command(flatten)]
        filter: Filter,
        #[command(flatten)]
        when: When,
        /// All that is suspended
        #[arg(long)]
        all: bool,
        /// A file with another body, of the message that --id names
        #[arg(long)]
        body: Option<PathBuf>,
        /// A merge patch (RFC 7396) of bodies of JSON: '{"amount": 12.5}'
        #[arg(long)]
        patch: Option<String>,
        /// Another media type
        #[arg(long)]
        content_type: Option<String>,
        /// Another value of a property, as `name=value`, the value as JSON or text; may be repeated
        #[arg(long, value_name = "NAME=VALUE")]
        property: Vec<String>,
        /// Lets them go on
        #[arg(long)]
        resume: bool,
    },
    /// Finds messages by a property that is declared with `search: true`, newest first
    Find {
        /// The exchange
        exchange: String,
        /// The property and its value: order=4711
        #[arg(value_name = "PROPERTY=VALUE")]
        what: String,
        /// Only those that came not earlier than this, such as 2026-11-21T09:30:00Z
        #[arg(long)]
        since: Option<String>,
        /// Only those that came earlier than this
        #[arg(long)]
        until: Option<String>,
        /// Most lines
        #[arg(long, default_value_t = 100)]
        limit: usize,
        /// Prints JSON
        #[arg(long)]
        json: bool,
    },
    /// Lists the bodies of a message that were kept on its way, or prints one of them
    Tracked {
        /// Its id; of a reply that of its request
        id: String,
        /// The number of the body that is printed
        number: Option<u32>,
        /// Prints JSON
        #[arg(long)]
        json: bool,
    },
    /// Prints the body of a message as it was before it was edited
    Original {
        /// Its id
        id: String,
    },
    /// Closes suspended messages; nothing more of them leaves
    End {
        #[command(flatten)]
        filter: Filter,
        #[command(flatten)]
        when: When,
        /// All of them
        #[arg(long)]
        all: bool,
        /// Those that are open and not suspended as well
        #[arg(long)]
        open: bool,
        /// Does not ask
        #[arg(long, short)]
        yes: bool,
    },
}

#[derive(Debug, clap::Args)]
struct Filter {
    /// Only this message
    #[arg(long)]
    id: Option<String>,
    /// Only of this exchange
    #[arg(long)]
    exchange: Option<String>,
    /// Only those that came through this port
    #[arg(long)]
    port: Option<String>,
    /// Only the parts of this message, which was split or made of them
    #[arg(long)]
    part_of: Option<String>,
    /// Only those that go to this send port
    #[arg(long)]
    to: Option<String>,
    /// Only those whose reason to be suspended contains this text
    #[arg(long)]
    reason: Option<String>,
}

/// A predicate that chooses among them.
#[derive(Debug, clap::Args)]
struct When {
    /// Only those that meet this predicate over the properties of --exchange: 'message.amount > 100.0'
    #[arg(long = "where")]
    when: Option<String>,
}

impl Filter {
    fn query(&self) -> Vec<(&str, &str)> {
        let named = [
            ("exchange", &self.exchange),
            ("port", &self.port),
            ("part_of", &self.part_of),
            ("to", &self.to),
            ("reason", &self.reason),
        ];
        named.into_iter().filter_map(|(name, value)| Some((name, value.as_deref()?))).collect()
    }

    fn body(&self, all: bool, when: &When) -> Outcome<Map<String, Value>> {
        let mut body: Map<String, Value> =
            self.query().into_iter().map(|(name, value)| (name.to_owned(), Value::from(value))).collect();
        body.extend(self.id.as_ref().map(|id| ("id".to_owned(), Value::from(id.as_str()))));
        body.extend(when.when.as_ref().map(|when| ("when".to_owned(), Value::from(when.as_str()))));
        match (body.is_empty(), all) {
            (true, false) => {
                Err(Failure::usage("say which: --id, --exchange, --port, --part-of, --to, --reason or --all"))
            }
            (false, true) => Err(Failure::usage("--all goes alone")),
            (true, true) => Ok(Map::from_iter([("all".to_owned(), json!(true))])),
            (false, false) => Ok(body),
        }
    }
}

/// What is changed, as the server takes it.
fn edit(
    body: Option<PathBuf>,
    patch: Option<String>,
    content_type: Option<String>,
    properties: &[String],
) -> Outcome<EditAsked> {
    let mut edit = Map::new();
    if let Some(file) = body {
        let (key, text) = match String::from_utf8(read(Some(file))?) {
            Ok(text) => ("body", text),
            Err(bytes) => ("body_base64", BASE64_STANDARD.encode(bytes.into_bytes())),
        };
        edit.insert(key.into(), text.into());
    }
    let read = |patch: String| {
        RawValue::from_string(patch).map_err(|error| Failure::usage(format!("--patch takes JSON: {error}")))
    };
    let patch = patch.map(read).transpose()?;
    edit.extend(content_type.map(|kind| ("content_type".to_owned(), Value::from(kind))));
    let pair = |pair: &String| {
        let wrong = || Failure::usage(format!("--property takes `name=value`, not `{pair}`"));
        let (name, value) = pair.split_once('=').ok_or_else(wrong)?;
        Ok::<_, Failure>((name.to_owned(), serde_json::from_str::<Value>(value).unwrap_or_else(|_| value.into())))
    };
    let properties = properties.iter().map(pair).collect::<Outcome<Map<String, Value>>>()?;
    if !properties.is_empty() {
        edit.insert("properties".into(), properties.into());
    }
    if edit.is_empty() && patch.is_none() {
        return Err(Failure::usage("say what is changed: --body, --patch, --content-type or --property"));
    }
    Ok(EditAsked { rest: edit, patch })
}

/// An edit as the server takes it. The patch is sent as it was given: its numbers may have more digits than a double.
#[derive(Debug, Serialize)]
struct EditAsked {
    #[serde(flatten)]
    rest: Map<String, Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch: Option<Box<RawValue>>,
}

/// Messages with their edit.
#[derive(Debug, Serialize)]
struct EditRequest {
    messages: Map<String, Value>,
    edit: EditAsked,
    resume: bool,
}

impl Args {
    /// Does it.
    ///
    /// # Errors
    /// The server does not do it, or the person at the terminal said no.
    pub async fn run(self, terminal: &Terminal, client: &Client) -> Outcome {
        match self.what {
            What::Send { exchange, port, file, content_type, key_of_message, header: headers, wait } => {
                let path = format!("/v1/exchanges/{}/receive/{}", segment(&exchange), segment(&port));
                let mut request = client.request(Method::POST, &path).header(header::CONTENT_TYPE, content_type);
                for given in &headers {
                    let (name, value) = given
                        .split_once(':')
                        .ok_or_else(|| Failure::usage(format!("--header takes `Name: value`, not `{given}`")))?;
                    request = request.header(name.trim(), value.trim());
                }
                if let Some(key) = key_of_message {
                    request = request.header("idempotency-key", key);
                }
                if let Some(wait) = wait {
                    request = request.header("prefer", format!("wait={wait}"));
                }
                print(terminal, client, request.body(read(file)?)).await
            }
            What::List { filter, standing, limit, json } => {
                let mut query = filter.query();
                query.extend(standing.as_deref().map(|standing| ("standing", standing)));
                let mut items = client.list("/v1/messages", &query, limit).await?;
                items.retain(|item| filter.id.as_ref().is_none_or(|id| item["id"] == id.as_str()));
                Listed { items, limit, json }.show(terminal, "there are no messages", &HEADS, row)
            }
            What::Show { id, json } => {
                let found = client.get(&format!("/v1/messages/{}", segment(&id)), &[]).await?;
                if json { Ok(terminal.json(&found)?) } else { show(terminal, &found) }
            }
            What::Body { id } => print_bytes(terminal, client, &id, "body").await,
            What::Reply { id, wait } => {
                let request = client.request(Method::GET, &format!("/v1/messages/{}/reply", segment(&id)));
                print(terminal, client, request.header("prefer", format!("wait={wait}"))).await
            }
            What::Edit { filter, when, all, body, patch, content_type, property, resume } => {
                let edit = edit(body, patch, content_type, &property)?;
                let asked = EditRequest { messages: filter.body(all, &when)?, edit, resume };
                let answer = client.post("/v1/messages/edit", &asked).await?;
                for unchanged in answer["unchanged"].as_array().into_iter().flatten() {
                    terminal.line(format_args!("{}: {}", text(unchanged, "id"), text(unchanged, "reason")))?;
                }
                let resumed = thousands(answer["resumed"].as_u64().unwrap_or_default());
                Ok(terminal.line(format_args!("{} messages edited, {resumed} resumed", count(&answer)))?)
            }
            What::Find { exchange, what, since, until, limit, json } => {
                let wrong = || Failure::usage(format!("give `property=value`, not `{what}`"));
                let (property, value) = what.split_once('=').ok_or_else(wrong)?;
                let mut query = vec![("property", property), ("value", value)];
                query.extend(since.as_deref().map(|since| ("since", since)));
                query.extend(until.as_deref().map(|until| ("until", until)));
                let path = format!("/v1/exchanges/{}/messages", segment(&exchange));
                let items = client.list(&path, &query, limit).await?;
                Listed { items, limit, json }.show(terminal, "there are no such messages", &HEADS, row)
            }
            What::Tracked { id, number: Some(number), .. } => {
                print_bytes(terminal, client, &id, &format!("tracked/{number}")).await
            }
            What::Tracked { id, number: None, json } => {
                let items = client.list(&format!("/v1/messages/{}/tracked", segment(&id)), &[], usize::MAX).await?;
                let heads = ["number", "at", "point", "port", "attempt", "type", "bytes", "change"];
                let cells = ["number", "at", "point", "port", "attempt", "content_type", "bytes", "change"];
                Listed { items, limit: usize::MAX, json }.show(terminal, "no body of it was kept", &heads, |item| {
                    cells.iter().map(|name| text(item, name)).collect()
                })
            }
            What::Original { id } => print_bytes(terminal, client, &id, "original").await,
            What::Resume { filter, when, all } => {
                let answer = client.post("/v1/messages/resume", &Value::Object(filter.body(all, &when)?)).await?;
                Ok(terminal.line(format_args!("{} messages resumed", count(&answer)))?)
            }
            What::End { filter, when, all, open, yes } => {
                let mut body = filter.body(all, &when)?;
                if open {
                    body.insert("standing".into(), "open".into());
                }
                if !yes && !terminal.confirm("close these messages for ever? Nothing more of them leaves")? {
                    return Err(Failure::failed("nothing was changed; --yes ends without asking"));
                }
                let answer = client.post("/v1/messages/end", &Value::Object(body)).await?;
                Ok(terminal.line(format_args!("{} messages ended", count(&answer)))?)
            }
        }
    }
}

fn count(answer: &Value) -> String {
    thousands(answer["messages"].as_u64().unwrap_or_default())
}

fn read(file: Option<PathBuf>) -> Outcome<Vec<u8>> {
    if let Some(file) = file {
        return fs::read(&file).map_err(|error| Failure::file("read the body", &file, &error));
    }
    let mut body = Vec::new();
    let read = std::io::stdin().read_to_end(&mut body);
    read.map_err(|error| Failure::failed("cannot read the body from standard input").because(&error))?;
    Ok(body)
}

/// Prints what is kept of a message, as it is.
async fn print_bytes(terminal: &Terminal, client: &Client, id: &str, what: &str) -> Outcome {
    let request = client.request(Method::GET, &format!("/v1/messages/{}/{what}", segment(id)));
    let bytes = client.send(request).await?.bytes().await;
    let bytes = bytes.map_err(|error| Failure::failed("the answer broke off").because(&error))?;
    Ok(terminal.bytes(&bytes)?)
}

/// Prints a reply as it came, or says where it will be.
async fn print(terminal: &Terminal, client: &Client, request: reqwest::RequestBuilder) -> Outcome {
    // The server holds the caller open for at most ten minutes.
    let answer = client.exchange(request.timeout(Duration::from_secs(660))).await?;
    match answer.status() {
        StatusCode::ACCEPTED => {
            let told = client.json(answer).await?;
            let (id, state) = (text(&told, "message"), text(&told, "state"));
            let more = match state.as_str() {
                "pending" => format!("; `tocsin messages reply {id} --wait 60` waits for the reply"),
                _ => told["reason"].as_str().map(|why| format!(": {}", printable(why))).unwrap_or_default(),
            };
            Ok(terminal.line(format_args!("{id} is {state}{more}"))?)
        }
        status if status.is_success() => {
            let body = answer.bytes().await;
            Ok(terminal.bytes(&body.map_err(|error| Failure::failed("the answer broke off").because(&error))?)?)
        }
        _ => Err(problem(answer).await.failure()),
    }
}

/// Characters of a reason in a list.
const REASON_CHARS: usize = 80;
const HEADS: [&str; 8] = ["id", "exchange", "port", "kind", "accepted", "state", "legs", "reason"];

fn row(item: &Value) -> Vec<String> {
    let legs = item["legs"].as_array().map(Vec::as_slice).unwrap_or_default();
    let ways: Vec<String> = legs.iter().map(|leg| format!("{} {}", text(leg, "port"), text(leg, "state"))).collect();
    let failed = legs.iter().find(|leg| leg["state"] == "suspended").map(|leg| text(leg, "said"));
    let reason = item["suspended"].as_str().map(|text| printable(text).into_owned()).or(failed);
    let state = match (&reason, item["ending"].as_str()) {
        (Some(_), _) => "suspended",
        (None, Some(ending)) => ending,
        (None, None) => "open",
    };
    let cell = |name| text(item, name);
    let reason = cut(&reason.unwrap_or_default(), REASON_CHARS).into_owned();
    vec![
        cell("id"),
        cell("exchange"),
        cell("port"),
        cell("kind"),
        cell("accepted_at"),
        printable(state).into_owned(),
        ways.join(", "),
        reason,
    ]
}

fn show(terminal: &Terminal, found: &Value) -> Outcome {
    let line = |what: &str, name: &str| match text(found, name) {
        text if text.is_empty() => Ok(()),
        text => terminal.line(format_args!("{what:12} {text}")),
    };
    for (what, name) in [
        ("message", "id"),
        ("exchange", "exchange"),
        ("port", "port"),
        ("kind", "kind"),
        ("answers", "answers"),
        ("part of", "part_of"),
        ("reply", "reply"),
        ("type", "content_type"),
        ("bytes", "bytes"),
        ("properties", "properties"),
        ("accepted", "accepted_at"),
        ("expires", "expires_at"),
        ("ended", "ended_at"),
        ("ending", "ending"),
        ("suspended", "suspended"),
        ("sender", "sender"),
    ] {
        line(what, name)?;
    }
    let legs = found["legs"].as_array().map(Vec::as_slice).unwrap_or_default();
    let cells = |leg: &Value| {
        let backup = if leg["on_backup"] == true { "backup" } else { "" };
        let cell = |name| text(leg, name);
        vec![
            cell("port"),
            cell("state"),
            cell("attempts"),
            backup.into(),
            cell("tried_at"),
            cell("due_at"),
            cell("said"),
        ]
    };
    let rows: Vec<Vec<String>> = legs.iter().map(cells).collect();
    if !rows.is_empty() {
        terminal.table(&["to", "state", "attempts", "way", "tried", "due", "said"], &rows)?;
    }
    let history = found["history"].as_array().map(Vec::as_slice).unwrap_or_default();
    let cells = |entry: &Value| {
        let backup = if entry["on_backup"] == true { "backup" } else { "" };
        let cell = |name| text(entry, name);
        vec![cell("at"), cell("act"), cell("port"), cell("attempt"), backup.into(), cell("by"), cell("text")]
    };
    let rows: Vec<Vec<String>> = history.iter().map(cells).collect();
    if !rows.is_empty() {
        terminal.table(&["at", "history", "to", "attempt", "way", "by", "text"], &rows)?;
    }
    Ok(())
}
