//! Command `broadcast`: counts, tests, sends, pauses and cancels broadcasts, and lists their results.

use std::{io::Read, path::PathBuf};

use clap::Subcommand;
use reqwest::Method;
use serde_json::{Map, Value, json};
use tocsin_model::{definition::document, problem::Problem};
use tokio::io::AsyncWriteExt;

use super::lists::{ItemList, texts};
use crate::{
    client::{Client, present_parameters, segment, with_query},
    failure::{Failure, Outcome},
    terminal::{Terminal, printable, thousands},
};

/// Arguments of `tocsin broadcast`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  tocsin broadcast count closed.yaml
  tocsin broadcast test closed.yaml --to ann
  tocsin broadcast send closed.yaml --at 2026-12-01T08:00:00Z")]
pub struct Args {
    #[command(subcommand)]
    what: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Count the recipients of a broadcast and show some
    Count {
        /// File with the broadcast, YAML or JSON; - is standard input
        file: PathBuf,
        /// Number of recipients to show, at most 100
        #[arg(long, default_value_t = 10, value_name = "COUNT")]
        sample: usize,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Render a broadcast for one recipient
    Preview {
        /// File with the broadcast, YAML or JSON; - is standard input
        file: PathBuf,
        #[command(flatten)]
        to: Recipient,
    },
    /// Send a broadcast to one recipient as a test
    Test {
        /// File with the broadcast, YAML or JSON; - is standard input
        file: PathBuf,
        #[command(flatten)]
        to: Recipient,
    },
    /// Send a broadcast, now or at a time
    Send {
        /// File with the broadcast, YAML or JSON; - is standard input
        file: PathBuf,
        /// Start time (RFC 3339)
        #[arg(long, value_name = "TIME")]
        at: Option<String>,
        /// Idempotency key: a repeated request with the same key is executed once
        #[arg(long, value_name = "KEY")]
        idempotency_key: Option<String>,
        /// Confirmation; without it the command asks
        #[arg(long, short)]
        yes: bool,
    },
    /// List broadcasts, newest first
    List {
        /// Application to filter by
        #[arg(long)]
        application: Option<String>,
        /// State to filter by: scheduled, running, paused, cancelled or failed
        #[arg(long)]
        state: Option<String>,
        /// Maximum number of rows
        #[arg(long, default_value_t = 100, value_name = "COUNT")]
        limit: usize,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show a broadcast and its progress
    Show {
        /// Broadcast, such as bc-7
        id: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Pause a broadcast
    Pause(Change),
    /// Let a paused broadcast continue
    Resume(Change),
    /// Cancel a broadcast; what is not sent is ended
    Cancel(Change),
    /// List the results of a broadcast by recipient
    Recipients {
        /// Broadcast, such as bc-7
        id: String,
        /// Outcome to filter by
        #[arg(long)]
        outcome: Option<String>,
        /// Channel to filter by
        #[arg(long)]
        channel: Option<String>,
        /// Subscriber to filter by
        #[arg(long)]
        subscriber: Option<String>,
        /// Maximum number of rows
        #[arg(long, default_value_t = 100, value_name = "COUNT")]
        limit: usize,
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// Print all of them as CSV
        #[arg(long, conflicts_with = "json")]
        csv: bool,
    },
}

#[derive(Debug, clap::Args)]
struct Change {
    /// Broadcast, such as bc-7
    id: String,
    /// Reason, for other operators
    #[arg(long)]
    reason: Option<String>,
}

#[derive(Debug, clap::Args)]
struct Recipient {
    /// Subscriber
    #[arg(long = "to", value_name = "SUBSCRIBER")]
    subscriber: Option<String>,
    /// Subscription whose values templates read, such as s-15
    #[arg(long)]
    subscription: Option<String>,
    /// Device of the subscriber
    #[arg(long)]
    device: Option<String>,
    /// Channel
    #[arg(long)]
    channel: Option<String>,
    /// Address
    #[arg(long)]
    address: Option<String>,
    /// Locale
    #[arg(long)]
    locale: Option<String>,
}

impl Recipient {
    fn body(&self) -> Value {
        let named = [
            ("subscriber", &self.subscriber),
            ("subscription", &self.subscription),
            ("device", &self.device),
            ("channel", &self.channel),
            ("address", &self.address),
            ("locale", &self.locale),
        ];
        let given = present_parameters(&named).into_iter();
        Value::Object(given.map(|(name, text)| (name.to_owned(), text.into())).collect())
    }
}

impl Args {
    /// Runs the command.
    ///
    /// # Errors
    /// If the file cannot be read, the server refuses the request, or the user declines.
    pub async fn run(self, terminal: &Terminal, client: &Client) -> Outcome {
        match self.what {
            Action::Count { file, sample, json } => {
                let counted = count(client, &draft(&file)?, sample).await?;
                if json {
                    return Ok(terminal.json(&counted.json())?);
                }
                terminal.line(counted.sentence())?;
                let rows: Vec<Vec<String>> =
                    counted.sample.iter().map(|item| texts(item, &["subscriber", "subscription", "channel"])).collect();
                match rows.is_empty() {
                    true => Ok(()),
                    false => Ok(terminal.table(&["subscriber", "subscription", "channel"], &rows)?),
                }
            }
            Action::Preview { file, to } => {
                let body = json!({"broadcast": draft(&file)?, "to": to.body()});
                Ok(terminal.json(&client.post("/v1/broadcasts/preview", &body).await?)?)
            }
            Action::Test { file, to } => {
                let body = json!({"broadcast": draft(&file)?, "to": to.body()});
                let sent = client.post("/v1/broadcasts/test", &body).await?;
                let [channel, address, outcome, reply] =
                    ["channel", "address", "outcome", "reason"].map(|name| texts(&sent, &[name]).concat());
                let line = format!("{channel} {address}: {outcome} {reply}");
                Ok(terminal.line(printable(line.trim_end()))?)
            }
            Action::Send { file, at, idempotency_key, yes } => {
                let mut draft = draft(&file)?;
                if let Some(at) = at {
                    draft.insert("starts_at".into(), at.into());
                }
                send(terminal, client, draft, idempotency_key, yes).await
            }
            Action::List { application, state, limit, json } => {
                let query = present_parameters(&[("application", &application), ("state", &state)]);
                let items = client.list("/v1/broadcasts", &query, limit).await?;
                let heads = ["id", "state", "application", "recipients", "delivered", "failed", "waiting", "start"];
                ItemList { items, limit, json }.show(terminal, "there are no broadcasts", &heads, |item| {
                    let mut row = texts(item, &["id", "state"]);
                    row.extend(texts(&item["broadcast"], &["application"]));
                    row.extend(texts(item, &["recipients", "delivered", "failed", "waiting", "starts_at"]));
                    row
                })
            }
            Action::Show { id, json } => {
                let found = client.get(&path(&id, ""), &[]).await?;
                match json {
                    true => Ok(terminal.json(&found)?),
                    false => show(terminal, &found),
                }
            }
            Action::Pause(change) => change.send(terminal, client, "pause").await,
            Action::Resume(change) => change.send(terminal, client, "resume").await,
            Action::Cancel(change) => change.send(terminal, client, "cancel").await,
            Action::Recipients { id, outcome, channel, subscriber, limit, json, csv } => {
                let query =
                    present_parameters(&[("outcome", &outcome), ("channel", &channel), ("subscriber", &subscriber)]);
                if csv {
                    let mut query = query;
                    query.push(("format", "csv"));
                    return export(client, &with_query(&path(&id, "/recipients/export"), &query)).await;
                }
                let items = client.list(&path(&id, "/recipients"), &query, limit).await?;
                let heads = ["notification", "subscriber", "channel", "outcome", "attempts", "answered", "reply"];
                ItemList { items, limit, json }.show(terminal, "there are no recipients", &heads, |item| {
                    let names =
                        ["notification", "subscriber", "channel", "outcome", "attempts", "answered_at", "reply"];
                    texts(item, &names)
                })
            }
        }
    }
}

impl Change {
    async fn send(self, terminal: &Terminal, client: &Client, to: &str) -> Outcome {
        let changed = client.post(&path(&self.id, &format!("/{to}")), &json!({"reason": self.reason})).await?;
        show(terminal, &changed)
    }
}

fn path(id: &str, rest: &str) -> String {
    format!("/v1/broadcasts/{}{rest}", segment(id))
}

/// Reads a draft.
fn draft(file: &PathBuf) -> Outcome<Map<String, Value>> {
    let shown = file.display();
    let text = match file.as_os_str() == "-" {
        true => {
            let mut text = String::new();
            std::io::stdin().lock().read_to_string(&mut text).map(|_| text)
        }
        false => std::fs::read_to_string(file),
    };
    let text = text.map_err(|error| Failure::failed(format!("{shown} cannot be read: {error}")))?;
    let mut problems = Vec::new();
    let read = document::parse(&text, &mut problems).map(|root| root.json());
    match (read, problems.is_empty()) {
        (Some(Value::Object(draft)), true) => Ok(draft),
        (_, false) => {
            let problems: Vec<String> = problems.iter().map(Problem::to_string).collect();
            Err(Failure::failed(format!("{shown} is not YAML: {}", problems.join("; "))))
        }
        _ => Err(Failure::failed(format!("{shown} holds no mapping; it should have the members of a broadcast"))),
    }
}

/// Number of recipients, with a sample.
#[derive(Default)]
struct Count {
    recipients: u64,
    examined: u64,
    unusable: u64,
    channels: std::collections::BTreeMap<String, u64>,
    sample: Vec<Value>,
}

impl Count {
    fn sentence(&self) -> String {
        let channels: Vec<String> =
            self.channels.iter().map(|(name, count)| format!("{} {}", printable(name), thousands(*count))).collect();
        let recipients = match self.recipients {
            1 => "1 recipient".to_owned(),
            many => format!("{} recipients", thousands(many)),
        };
        let mut sentence = format!("{recipients} of {} subscriptions", thousands(self.examined));
        if !channels.is_empty() {
            sentence.push_str(&format!(" ({})", channels.join(", ")));
        }
        if self.unusable > 0 {
            let many = thousands(self.unusable);
            sentence.push_str(&format!("; {many} subscriptions have a filter that does not fit the data"));
        }
        sentence
    }

    fn json(&self) -> Value {
        json!({
            "recipients": self.recipients,
            "examined": self.examined,
            "unusable": self.unusable,
            "channels": self.channels,
            "sample": self.sample,
        })
    }
}

/// Counts page by page, because one request only examines a limited number of subscriptions.
async fn count(client: &Client, draft: &Map<String, Value>, sample: usize) -> Outcome<Count> {
    let mut counted = Count::default();
    let mut after: Option<String> = None;
    loop {
        let body = json!({"broadcast": draft, "sample": sample.saturating_sub(counted.sample.len()), "after": after});
        let page = client.post("/v1/broadcasts/count", &body).await?;
        let number = |name: &str| {
            page[name].as_u64().ok_or_else(|| Failure::failed("the response has no count; is this a Tocsin server?"))
        };
        counted.recipients += number("recipients")?;
        counted.examined += number("examined")?;
        counted.unusable += page["unusable"].as_u64().unwrap_or(0);
        for (name, many) in page["channels"].as_object().into_iter().flatten() {
            *counted.channels.entry(name.clone()).or_default() += many.as_u64().unwrap_or(0);
        }
        counted.sample.extend(page["sample"].as_array().into_iter().flatten().cloned());
        match page["next"].as_str() {
            Some(next) if after.as_deref() != Some(next) => after = Some(next.to_owned()),
            _ => return Ok(counted),
        }
    }
}

/// Counts, asks for confirmation and sends.
async fn send(
    terminal: &Terminal,
    client: &Client,
    draft: Map<String, Value>,
    key: Option<String>,
    yes: bool,
) -> Outcome {
    let counted = count(client, &draft, 0).await?;
    let when = draft.get("starts_at").and_then(Value::as_str).map_or("now".to_owned(), |at| format!("at {at}"));
    if counted.recipients == 0 && when == "now" {
        return Err(Failure::failed(format!("nothing was sent: {}", counted.sentence())));
    }
    if !yes && !terminal.confirm(&format!("send to {} {when}?", counted.sentence()))? {
        return Err(Failure::failed("nothing was sent; --yes skips the confirmation"));
    }
    let mut request = client.request(Method::POST, "/v1/broadcasts").json(&Value::Object(draft));
    if let Some(key) = &key {
        request = request.header("idempotency-key", key);
    }
    let stored = client.json(client.send(request).await?).await?;
    show(terminal, &stored)
}

/// Prints the state and the progress of a broadcast.
fn show(terminal: &Terminal, found: &Value) -> Outcome {
    let [id, state] = ["id", "state"].map(|name| texts(found, &[name]).concat());
    let number = |name: &str| thousands(found[name].as_u64().unwrap_or(0));
    terminal.line(format_args!("{} {}", printable(&id), printable(&state)))?;
    if let Some(reason) = found["reason"].as_str() {
        terminal.line(format_args!("  reason: {}", printable(reason)))?;
    }
    if found["started_at"].is_null() {
        return Ok(terminal.line(format_args!("  starts at {}", texts(found, &["starts_at"]).concat()))?);
    }
    let so_far = if found["matched_at"].is_null() { " so far" } else { "" };
    Ok(terminal.line(format_args!(
        "  {} recipients{so_far}: {} delivered, {} failed, {} ended, {} waiting, {} suspended",
        number("recipients"),
        number("delivered"),
        number("failed"),
        number("ended"),
        number("waiting"),
        number("suspended")
    ))?)
}

/// Copies an export to standard output.
async fn export(client: &Client, path: &str) -> Outcome {
    let mut answer = client.send(client.request(Method::GET, path)).await?;
    let mut output = tokio::io::stdout();
    let broken = |error: &dyn std::fmt::Display| Failure::failed(format!("the export ended early: {error}"));
    while let Some(chunk) = answer.chunk().await.map_err(|error| broken(&error))? {
        output.write_all(&chunk).await.map_err(|error| broken(&error))?;
    }
    output.flush().await.map_err(|error| broken(&error))
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;
    use crate::commands::fake_server;

    const DRAFT: &str = "application: shop\nsubscription: news\ndata: { day: Sunday }\n\
        content: { templates: { base: { text: 'Closed on {{ day }}' } } }\n";

    async fn check(args: &[&str], answers: Vec<(u16, Value)>, expected: Expect) {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("closed.yaml");
        std::fs::write(&file, DRAFT).expect("written");
        let file = file.to_str().expect("a path").to_owned();
        let args: Vec<&str> = args.iter().map(|arg| if *arg == "FILE" { &file } else { *arg }).collect();
        let run = async |args: Args, terminal: &Terminal, client: &Client| args.run(terminal, client).await;
        fake_server::check("broadcast", &args, answers, run, expected).await;
    }

    fn counted(many: u64, next: Option<&str>) -> (u16, Value) {
        let channels = json!({"email": many});
        (200, json!({"recipients": many, "examined": 1_000, "channels": channels, "sample": [], "next": next}))
    }

    fn progress(state: &str) -> (u16, Value) {
        let body = json!({
            "id": "bc-7", "state": state, "started_at": "2026-11-20T00:00:00Z", "recipients": 1_500, "delivered": 1_000,
            "failed": 2, "ended": 0, "waiting": 498, "suspended": 0,
        });
        (202, body)
    }

    #[tokio::test]
    async fn recipients_are_counted_before_a_broadcast_is_sent() {
        check(
            &["send", "FILE", "--yes", "--idempotency-key", "k1"],
            vec![counted(900, Some("x")), counted(600, None), progress("running")],
            expect![[r#"
                bc-7 running
                  1,500 recipients so far: 1,000 delivered, 2 failed, 0 ended, 498 waiting, 0 suspended
                POST /v1/broadcasts/count [application/json] {"broadcast":{"application":"shop","subscription":"news","data":{"day":"Sunday"},"content":{"templates":{"base":{"text":"Closed on {{ day }}"}}}},"sample":0,"after":null}
                POST /v1/broadcasts/count [application/json] {"broadcast":{"application":"shop","subscription":"news","data":{"day":"Sunday"},"content":{"templates":{"base":{"text":"Closed on {{ day }}"}}}},"sample":0,"after":"x"}
                POST /v1/broadcasts [application/json] [k1] {"application":"shop","subscription":"news","data":{"day":"Sunday"},"content":{"templates":{"base":{"text":"Closed on {{ day }}"}}}}"#]],
        )
        .await;
        check(&["send", "FILE"], vec![counted(7, None)], expect![[r#"
            failed: nothing was sent; --yes skips the confirmation
            POST /v1/broadcasts/count [application/json] {"broadcast":{"application":"shop","subscription":"news","data":{"day":"Sunday"},"content":{"templates":{"base":{"text":"Closed on {{ day }}"}}}},"sample":0,"after":null}"#]]).await;
        check(&["send", "FILE", "--yes"], vec![counted(0, None)], expect![[r#"
            failed: nothing was sent: 0 recipients of 1,000 subscriptions (email 0)
            POST /v1/broadcasts/count [application/json] {"broadcast":{"application":"shop","subscription":"news","data":{"day":"Sunday"},"content":{"templates":{"base":{"text":"Closed on {{ day }}"}}}},"sample":0,"after":null}"#]]).await;
    }

    #[tokio::test]
    async fn a_test_goes_to_one_recipient() {
        let answer = json!({"channel": "email", "address": "ann@example.org", "outcome": "delivered"});
        check(&["test", "FILE", "--to", "ann"], vec![(200, answer)], expect![[r#"
            email ann@example.org: delivered
            POST /v1/broadcasts/test [application/json] {"broadcast":{"application":"shop","subscription":"news","data":{"day":"Sunday"},"content":{"templates":{"base":{"text":"Closed on {{ day }}"}}}},"to":{"subscriber":"ann"}}"#]]).await;
    }

    #[tokio::test]
    async fn a_broadcast_is_cancelled_and_its_results_are_listed() {
        check(
            &["cancel", "bc-7", "--reason", "typo"],
            vec![progress("cancelled")],
            expect![[r#"
            bc-7 cancelled
              1,500 recipients so far: 1,000 delivered, 2 failed, 0 ended, 498 waiting, 0 suspended
            POST /v1/broadcasts/bc-7/cancel [application/json] {"reason":"typo"}"#]],
        )
        .await;
        let found = json!({"items": [{
            "notification": "n-3-1", "subscriber": "ann", "channel": "email", "outcome": "refused", "attempts": 1,
            "reply": "550 no such user",
        }]});
        check(
            &["recipients", "bc-7", "--outcome", "refused"],
            vec![(200, found)],
            expect![[r#"
            notification  subscriber  channel  outcome  attempts  answered  reply
            n-3-1         ann         email    refused  1                   550 no such user
            GET /v1/broadcasts/bc-7/recipients?outcome=refused&limit=1000"#]],
        )
        .await;
    }
}
