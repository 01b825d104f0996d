//! Command `messages`: sends messages through exchanges; lists, finds, shows, edits, resumes and ends them.

use std::{io::Read, path::PathBuf, time::Duration};

use base64::{Engine, prelude::BASE64_STANDARD};
use clap::Subcommand;
use reqwest::{Method, StatusCode, header};
use serde::Serialize;
use serde_json::{Map, Value, json, value::RawValue};

use super::{
    exchange::text,
    lists::{DryRun, ItemList, author},
};
use crate::{
    client::{Client, present_parameters, problem, segment},
    failure::{Failure, Outcome, read_file},
    terminal::{Terminal, counted, cut, printable, thousands},
};

/// Arguments of `tocsin messages`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Send a message through a receive port; print the reply
    Send {
        /// Exchange
        exchange: String,
        /// Receive port
        port: String,
        /// File with the body; default is standard input
        file: Option<PathBuf>,
        /// Media type of the body
        #[arg(long, default_value = "application/json", value_name = "TYPE")]
        content_type: String,
        /// Idempotency key: a repeated message with the same key is accepted once
        #[arg(long, alias = "key-of-message", value_name = "KEY")]
        idempotency_key: Option<String>,
        /// Header, as `Name: value`; repeatable
        #[arg(long, value_name = "NAME: VALUE")]
        header: Vec<String>,
        /// Seconds to wait for a reply, limited by the port
        #[arg(long, value_name = "SECONDS")]
        wait: Option<u64>,
    },
    /// List messages, newest first
    List {
        #[command(flatten)]
        filter: Filter,
        /// State to filter by
        #[arg(long, alias = "standing", value_parser = ["open", "suspended", "ended"])]
        state: Option<String>,
        /// Maximum number of rows
        #[arg(long, default_value_t = 100, value_name = "COUNT")]
        limit: usize,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show a message, its legs and their results
    Show {
        /// Message id, such as m-41
        id: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Print the body of a message
    Body {
        /// Message id
        id: String,
    },
    /// Print the reply to a request
    Reply {
        /// Message id of the request
        id: String,
        /// Seconds to wait for the reply
        #[arg(long, default_value_t = 0, value_name = "SECONDS")]
        wait: u64,
    },
    /// Resume suspended messages: route or send them again
    #[command(after_help = "Examples:
  tocsin messages resume --id m-41
  tocsin messages resume --exchange orders --reason 503")]
    Resume {
        #[command(flatten)]
        filter: Filter,
        #[command(flatten)]
        when: PredicateFilter,
        /// All suspended messages; excludes other filters
        #[arg(long)]
        all: bool,
        #[command(flatten)]
        dry: DryRun,
    },
    /// Edit suspended messages; --resume resumes them
    #[command(after_help = r#"Example:
  tocsin messages edit --id m-41 --patch '{"amount": 12.5}' --resume"#)]
    Edit {
        #[command(flatten)]
        filter: Filter,
        #[command(flatten)]
        when: PredicateFilter,
        /// All suspended messages; excludes other filters
        #[arg(long)]
        all: bool,
        #[command(flatten)]
        dry: DryRun,
        /// File with the new body of the message given by --id
        #[arg(long, value_name = "FILE")]
        body: Option<PathBuf>,
        /// JSON merge patch (RFC 7396) for JSON bodies: '{"amount": 12.5}'
        #[arg(long, value_name = "JSON")]
        patch: Option<String>,
        /// New media type
        #[arg(long, value_name = "TYPE")]
        content_type: Option<String>,
        /// New property value, as `name=value`, the value as JSON or text; repeatable
        #[arg(long, value_name = "NAME=VALUE")]
        property: Vec<String>,
        /// Resume the messages after the edit
        #[arg(long)]
        resume: bool,
    },
    /// Find messages by a searchable property, newest first
    Find {
        /// Exchange
        exchange: String,
        /// Property and value: order=4711
        #[arg(value_name = "PROPERTY=VALUE")]
        what: String,
        /// Earliest acceptance time, such as 2026-11-21T09:30:00Z
        #[arg(long, value_name = "TIME")]
        since: Option<String>,
        /// Time before which the messages were accepted
        #[arg(long, value_name = "TIME")]
        until: Option<String>,
        /// Maximum number of rows
        #[arg(long, default_value_t = 100, value_name = "COUNT")]
        limit: usize,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// List the tracked bodies of a message, or print one
    Tracked {
        /// Message id; for a reply that of its request
        id: String,
        /// Number of the body to print
        number: Option<u32>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Print the body of a message before it was edited
    Original {
        /// Message id
        id: String,
    },
    /// End suspended messages without sending them
    End {
        #[command(flatten)]
        filter: Filter,
        #[command(flatten)]
        when: PredicateFilter,
        /// All suspended messages; excludes other filters
        #[arg(long)]
        all: bool,
        #[command(flatten)]
        dry: DryRun,
        /// Include open messages that are not suspended
        #[arg(long)]
        open: bool,
        /// Confirmation; without it the command asks
        #[arg(long, short)]
        yes: bool,
    },
}

#[derive(Debug, clap::Args)]
struct Filter {
    /// Message id, such as m-41
    #[arg(long)]
    id: Option<String>,
    /// Exchange to filter by
    #[arg(long)]
    exchange: Option<String>,
    /// Receive port to filter by
    #[arg(long)]
    port: Option<String>,
    /// Message whose parts to select: those split or created from it
    #[arg(long, value_name = "MESSAGE")]
    part_of: Option<String>,
    /// Send port to filter by
    #[arg(long, value_name = "PORT")]
    to: Option<String>,
    /// Text that the suspension reason must contain
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

/// Predicate filter.
#[derive(Debug, clap::Args)]
struct PredicateFilter {
    /// Predicate over the properties of --exchange to filter by: 'message.amount > 100.0'
    #[arg(long = "where", value_name = "PREDICATE")]
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
        present_parameters(&named)
    }

    fn body(&self, all: bool, when: &PredicateFilter) -> Outcome<Map<String, Value>> {
        let mut body: Map<String, Value> =
            self.query().into_iter().map(|(name, value)| (name.to_owned(), Value::from(value))).collect();
        body.extend(self.id.as_ref().map(|id| ("id".to_owned(), Value::from(id.as_str()))));
        body.extend(when.when.as_ref().map(|when| ("when".to_owned(), Value::from(when.as_str()))));
        match (body.is_empty(), all) {
            (true, false) => Err(Failure::usage(
                "a filter is required: --id, --exchange, --port, --part-of, --to, --reason or --all",
            )),
            (false, true) => Err(Failure::usage("--all excludes other filters")),
            (true, true) => Ok(Map::from_iter([("all".to_owned(), json!(true))])),
            (false, false) => Ok(body),
        }
    }
}

/// Edit request from the arguments.
fn edit(
    body: Option<PathBuf>,
    patch: Option<String>,
    content_type: Option<String>,
    properties: &[String],
) -> Outcome<MessageEdit> {
    let mut edit = Map::new();
    if let Some(file) = body {
        let (key, text) = match String::from_utf8(read(Some(file))?) {
            Ok(text) => ("body", text),
            Err(bytes) => ("body_base64", BASE64_STANDARD.encode(bytes.into_bytes())),
        };
        edit.insert(key.into(), text.into());
    }
    let read = |patch: String| {
        RawValue::from_string(patch).map_err(|error| Failure::usage(format!("--patch must be JSON: {error}")))
    };
    let patch = patch.map(read).transpose()?;
    edit.extend(content_type.map(|kind| ("content_type".to_owned(), Value::from(kind))));
    let pair = |pair: &String| {
        let wrong = || Failure::usage(format!("--property must be `name=value`; found `{pair}`"));
        let (name, value) = pair.split_once('=').ok_or_else(wrong)?;
        Ok::<_, Failure>((name.to_owned(), serde_json::from_str::<Value>(value).unwrap_or_else(|_| value.into())))
    };
    let properties = properties.iter().map(pair).collect::<Outcome<Map<String, Value>>>()?;
    if !properties.is_empty() {
        edit.insert("properties".into(), properties.into());
    }
    if edit.is_empty() && patch.is_none() {
        return Err(Failure::usage("no change is given; use --body, --patch, --content-type or --property"));
    }
    Ok(MessageEdit { rest: edit, patch })
}

/// Edit as the server expects it. The patch is sent verbatim: its numbers may have more digits than a double.
#[derive(Debug, Serialize)]
struct MessageEdit {
    #[serde(flatten)]
    rest: Map<String, Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch: Option<Box<RawValue>>,
}

/// Messages with their edit.
#[derive(Debug, Serialize)]
struct EditRequest {
    messages: Map<String, Value>,
    edit: MessageEdit,
    resume: bool,
}

impl Args {
    /// Runs the command.
    ///
    /// # Errors
    /// If the server refuses the request, or the user declines.
    pub async fn run(self, terminal: &Terminal, client: &Client) -> Outcome {
        match self.what {
            Action::Send { exchange, port, file, content_type, idempotency_key, header: headers, wait } => {
                let path = format!("/v1/exchanges/{}/receive/{}", segment(&exchange), segment(&port));
                let mut request = client.request(Method::POST, &path).header(header::CONTENT_TYPE, content_type);
                for header in &headers {
                    let (name, value) = header
                        .split_once(':')
                        .ok_or_else(|| Failure::usage(format!("--header must be `Name: value`; found `{header}`")))?;
                    request = request.header(name.trim(), value.trim());
                }
                if let Some(key) = idempotency_key {
                    request = request.header("idempotency-key", key);
                }
                if let Some(wait) = wait {
                    request = request.header("prefer", format!("wait={wait}"));
                }
                print(terminal, client, request.body(read(file)?)).await
            }
            Action::List { filter, state, limit, json } => {
                let mut query = filter.query();
                query.extend(state.as_deref().map(|state| ("standing", state)));
                let mut items = client.list("/v1/messages", &query, limit).await?;
                items.retain(|item| filter.id.as_ref().is_none_or(|id| item["id"] == id.as_str()));
                ItemList { items, limit, json }.show(terminal, "there are no messages", &HEADS, row)
            }
            Action::Show { id, json } => {
                let found = client.get(&format!("/v1/messages/{}", segment(&id)), &[]).await?;
                if json { Ok(terminal.json(&found)?) } else { show(terminal, &found) }
            }
            Action::Body { id } => print_bytes(terminal, client, &id, "body").await,
            Action::Reply { id, wait } => {
                let request = client.request(Method::GET, &format!("/v1/messages/{}/reply", segment(&id)));
                print(terminal, client, request.header("prefer", format!("wait={wait}"))).await
            }
            Action::Edit { filter, when, all, dry, body, patch, content_type, property, resume } => {
                let edit = edit(body, patch, content_type, &property)?;
                let asked = EditRequest { messages: filter.body(all, &when)?, edit, resume };
                let answer = client.post(&dry.path("/v1/messages/edit"), &asked).await?;
                for unchanged in answer["unchanged"].as_array().into_iter().flatten() {
                    terminal.line(format_args!("{}: {}", text(unchanged, "id"), text(unchanged, "reason")))?;
                }
                let resumed = thousands(answer["resumed"].as_u64().unwrap_or_default());
                match dry.is_dry() {
                    true => Ok(terminal.line(format_args!("{} would be edited", count(&answer)))?),
                    false => Ok(terminal.line(format_args!("{} edited, {resumed} resumed", count(&answer)))?),
                }
            }
            Action::Find { exchange, what, since, until, limit, json } => {
                let wrong = || Failure::usage(format!("expected `property=value`; found `{what}`"));
                let (property, value) = what.split_once('=').ok_or_else(wrong)?;
                let mut query = vec![("property", property), ("value", value)];
                query.extend(since.as_deref().map(|since| ("since", since)));
                query.extend(until.as_deref().map(|until| ("until", until)));
                let path = format!("/v1/exchanges/{}/messages", segment(&exchange));
                let items = client.list(&path, &query, limit).await?;
                ItemList { items, limit, json }.show(terminal, "no messages found", &HEADS, row)
            }
            Action::Tracked { id, number: Some(number), .. } => {
                print_bytes(terminal, client, &id, &format!("tracked/{number}")).await
            }
            Action::Tracked { id, number: None, json } => {
                let items = client.list(&format!("/v1/messages/{}/tracked", segment(&id)), &[], usize::MAX).await?;
                let heads = ["number", "at", "point", "port", "attempt", "type", "bytes", "change"];
                let cells = ["number", "at", "point", "port", "attempt", "content_type", "bytes", "change"];
                ItemList { items, limit: usize::MAX, json }.show(terminal, "no body was tracked", &heads, |item| {
                    cells.iter().map(|name| text(item, name)).collect()
                })
            }
            Action::Original { id } => print_bytes(terminal, client, &id, "original").await,
            Action::Resume { filter, when, all, dry } => {
                let body = Value::Object(filter.body(all, &when)?);
                let answer = client.post(&dry.path("/v1/messages/resume"), &body).await?;
                Ok(terminal.line(format_args!("{} {}", count(&answer), dry.done("resumed")))?)
            }
            Action::End { filter, when, all, dry, open, yes } => {
                let mut body = filter.body(all, &when)?;
                if open {
                    body.insert("standing".into(), "open".into());
                }
                let is_sure = yes || dry.is_dry();
                if !is_sure && !terminal.confirm("end these messages permanently? They will not be sent")? {
                    return Err(Failure::failed("nothing was changed; --yes skips the confirmation"));
                }
                let answer = client.post(&dry.path("/v1/messages/end"), &Value::Object(body)).await?;
                Ok(terminal.line(format_args!("{} {}", count(&answer), dry.done("ended")))?)
            }
        }
    }
}

fn count(answer: &Value) -> String {
    counted(answer["messages"].as_u64().unwrap_or_default(), "message", "messages")
}

fn read(file: Option<PathBuf>) -> Outcome<Vec<u8>> {
    if let Some(file) = file {
        return read_file("read the body", &file);
    }
    let mut body = Vec::new();
    let read = std::io::stdin().read_to_end(&mut body);
    read.map_err(|error| Failure::failed("cannot read the body from standard input").because(&error))?;
    Ok(body)
}

/// Prints a stored body unchanged.
async fn print_bytes(terminal: &Terminal, client: &Client, id: &str, what: &str) -> Outcome {
    let request = client.request(Method::GET, &format!("/v1/messages/{}/{what}", segment(id)));
    print_body(terminal, client.send(request).await?).await
}

/// Prints the body of a response. A file or a pipe gets it unchanged; on a terminal its last line is ended.
async fn print_body(terminal: &Terminal, answer: reqwest::Response) -> Outcome {
    let body = answer.bytes().await;
    let body = body.map_err(|error| Failure::failed("the response was interrupted").because(&error))?;
    terminal.bytes(&body)?;
    if terminal.is_interactive() && lacks_line_end(&body) {
        terminal.bytes(b"\n")?;
    }
    Ok(())
}

/// Prints a reply, or how to get it later.
async fn print(terminal: &Terminal, client: &Client, request: reqwest::RequestBuilder) -> Outcome {
    // The server keeps a request open for at most ten minutes.
    let answer = client.exchange(request.timeout(Duration::from_secs(660))).await?;
    match answer.status() {
        StatusCode::ACCEPTED => {
            let pending = client.json(answer).await?;
            let (id, state) = (text(&pending, "message"), text(&pending, "state"));
            let more = match state.as_str() {
                "pending" => format!("; `tocsin messages reply {id} --wait 60` waits for the reply"),
                _ => pending["reason"].as_str().map(|why| format!(": {}", printable(why))).unwrap_or_default(),
            };
            Ok(terminal.line(format_args!("{id} is {state}{more}"))?)
        }
        status if status.is_success() => print_body(terminal, answer).await,
        _ => Err(problem(answer).await.failure()),
    }
}

/// Whether a body leaves the cursor of a terminal within a line.
fn lacks_line_end(body: &[u8]) -> bool {
    body.last().is_some_and(|last| *last != b'\n')
}

/// Maximum characters of a reason in a list.
const REASON_CHARS: usize = 80;
const HEADS: [&str; 8] = ["id", "exchange", "port", "kind", "accepted", "state", "legs", "reason"];

fn row(item: &Value) -> Vec<String> {
    let legs = item["legs"].as_array().map(Vec::as_slice).unwrap_or_default();
    let legs_text: Vec<String> =
        legs.iter().map(|leg| format!("{} {}", text(leg, "port"), text(leg, "state"))).collect();
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
        legs_text.join(", "),
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
        terminal.table(&["to", "state", "attempts", "port", "last attempt", "due", "response"], &rows)?;
    }
    let history = found["history"].as_array().map(Vec::as_slice).unwrap_or_default();
    let cells = |entry: &Value| {
        let backup = if entry["on_backup"] == true { "backup" } else { "" };
        let cell = |name| text(entry, name);
        vec![cell("at"), cell("act"), cell("port"), cell("attempt"), backup.into(), author(entry, "by"), cell("text")]
    };
    let rows: Vec<Vec<String>> = history.iter().map(cells).collect();
    if !rows.is_empty() {
        terminal.table(&["at", "history", "to", "attempt", "port", "by", "text"], &rows)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_on_a_terminal_ends_its_line() {
        assert_eq!(["", "ok", "ok\n"].map(|body| lacks_line_end(body.as_bytes())), [false, true, false]);
    }
}
