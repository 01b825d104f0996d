//! Command `inbox`: lists and marks the inbox of a subscriber, follows it as a stream, and creates access tokens.

use std::ops::ControlFlow;

use clap::{Subcommand, ValueEnum};
use serde_json::{Value, json};

use super::{
    event_stream::{StreamEvent, follow},
    lists::ItemList,
};
use crate::{
    client::{Client, present_parameters, segment},
    configuration::Period,
    failure::{Failure, Outcome},
    terminal::{Terminal, printable},
};

/// Arguments of `tocsin inbox`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List the items of a feed, newest first
    List {
        /// Subscriber id
        subscriber: String,
        /// State of the items to list
        #[arg(long, value_enum, default_value = "current")]
        state: State,
        #[command(flatten)]
        narrowed: InboxFilter,
        /// Maximum number of rows
        #[arg(long, default_value_t = 100, value_name = "COUNT")]
        limit: usize,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show an item
    Show {
        /// Subscriber id
        subscriber: String,
        /// Item id, such as n-7-15
        item: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Count the unread items
    Unread {
        /// Subscriber id
        subscriber: String,
    },
    /// Mark items as read
    Read(MarkArgs),
    /// Mark items as unread
    Unmark(MarkArgs),
    /// Move items to the archive
    Archive(MarkArgs),
    /// Move items back from the archive
    Unarchive(MarkArgs),
    /// Delete items permanently
    Delete(MarkArgs),
    /// Follow a feed until interrupted
    Watch {
        /// Subscriber id
        subscriber: String,
        /// Event after which to continue
        #[arg(long, value_name = "ID")]
        after: Option<u64>,
        /// Number of events after which to exit
        #[arg(long, value_name = "COUNT")]
        events: Option<usize>,
        /// Print JSON, one event per line
        #[arg(long)]
        json: bool,
    },
    /// Create a token for a page or an app to read the feed
    Token {
        /// Subscriber id
        subscriber: String,
        /// Lifetime, at most 30d
        #[arg(long, default_value = "1h", value_name = "DURATION")]
        expires_in: Period,
        /// Token that can read but not mark items
        #[arg(long)]
        read_only: bool,
    },
}

/// State filter of items.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum State {
    /// Not archived
    Current,
    /// Not archived and not read
    Unread,
    /// Not archived and read
    Read,
    /// Archived
    Archived,
    /// Any state
    All,
}

impl State {
    fn word(self) -> &'static str {
        match self {
            State::Current => "current",
            State::Unread => "unread",
            State::Read => "read",
            State::Archived => "archived",
            State::All => "all",
        }
    }
}

#[derive(Debug, clap::Args)]
struct InboxFilter {
    /// Application to filter by
    #[arg(long)]
    application: Option<String>,
    /// Notification class to filter by
    #[arg(long)]
    class: Option<String>,
    /// Channel to filter by
    #[arg(long)]
    channel: Option<String>,
}

impl InboxFilter {
    fn pairs(&self) -> Vec<(&str, &str)> {
        let named = [("application", &self.application), ("class", &self.class), ("channel", &self.channel)];
        present_parameters(&named)
    }
}

#[derive(Debug, clap::Args)]
struct MarkArgs {
    /// Subscriber id
    subscriber: String,
    /// Item ids, such as n-7-15
    items: Vec<String>,
    /// All current items, or those that --state and the other filters select
    #[arg(long)]
    all: bool,
    /// State to filter by, with --all
    #[arg(long, value_enum)]
    state: Option<State>,
    #[command(flatten)]
    narrowed: InboxFilter,
    /// Newest item to include, with --all
    #[arg(long, value_name = "ITEM")]
    newest: Option<String>,
}

impl MarkArgs {
    async fn mark(self, terminal: &Terminal, client: &Client, mark: &str) -> Outcome {
        let narrowed = self.narrowed.pairs();
        let mut body = json!({ "mark": mark });
        match (self.items.is_empty(), self.all) {
            (true, false) => return Err(Failure::usage("item ids or --all are required")),
            (false, true) => return Err(Failure::usage("--all excludes item ids")),
            (false, false) => {
                if !narrowed.is_empty() || self.state.is_some() || self.newest.is_some() {
                    return Err(Failure::usage("--state and the other filters require --all"));
                }
                body["ids"] = json!(self.items);
            }
            (true, true) => {
                body["all"] = true.into();
                if let Some(state) = self.state {
                    body["state"] = state.word().into();
                }
                if let Some(newest) = self.newest {
                    body["newest"] = newest.into();
                }
                for (name, value) in narrowed {
                    body[name] = value.into();
                }
            }
        }
        let marked_items = client.post(&format!("{}/mark", path(&self.subscriber)), &body).await?;
        let (marked, unread) =
            (marked_items["marked"].as_u64().unwrap_or(0), marked_items["unread"].as_u64().unwrap_or(0));
        let items = if marked == 1 { "1 item".to_owned() } else { format!("{marked} items") };
        Ok(terminal.line(format_args!("{items} marked; {unread} unread"))?)
    }
}

fn path(subscriber: &str) -> String {
    format!("/v1/subscribers/{}/inbox", segment(subscriber))
}

impl Args {
    /// Runs the command.
    ///
    /// # Errors
    /// If the server refuses the request.
    pub async fn run(self, terminal: &Terminal, client: &Client) -> Outcome {
        match self.what {
            Action::List { subscriber, state, narrowed, limit, json } => {
                let mut query = narrowed.pairs();
                query.push(("state", state.word()));
                let items = client.list(&path(&subscriber), &query, limit).await?;
                let heads = ["id", "created", "state", "class", "subject"];
                ItemList { items, limit, json }.show(terminal, "the inbox has no such items", &heads, row)
            }
            Action::Show { subscriber, item, json } => {
                let found = client.get(&format!("{}/{}", path(&subscriber), segment(&item)), &[]).await?;
                if json {
                    return Ok(terminal.json(&found)?);
                }
                show(terminal, &found)
            }
            Action::Unread { subscriber } => {
                let counted = client.get(&format!("{}/unread", path(&subscriber)), &[]).await?;
                Ok(terminal.line(&counted["unread"])?)
            }
            Action::Read(marked) => marked.mark(terminal, client, "read").await,
            Action::Unmark(marked) => marked.mark(terminal, client, "unread").await,
            Action::Archive(marked) => marked.mark(terminal, client, "archive").await,
            Action::Unarchive(marked) => marked.mark(terminal, client, "unarchive").await,
            Action::Delete(marked) => marked.mark(terminal, client, "delete").await,
            Action::Watch { subscriber, after, events, json } => {
                let after = after.map(|after| after.to_string()).unwrap_or_default();
                watch(terminal, client, &subscriber, after, events, json).await
            }
            Action::Token { subscriber, expires_in, read_only } => {
                let body = json!({"expires_in": expires_in.0.as_secs(), "read_only": read_only});
                let made = client.post(&format!("{}/token", path(&subscriber)), &body).await?;
                Ok(terminal.line(printable(made["token"].as_str().unwrap_or_default()))?)
            }
        }
    }
}

fn text(item: &Value, name: &str) -> String {
    printable(item[name].as_str().unwrap_or_default()).into_owned()
}

fn state(item: &Value) -> &'static str {
    match (item["archived_at"].is_null(), item["read_at"].is_null()) {
        (false, _) => "archived",
        (true, false) => "read",
        (true, true) => "unread",
    }
}

/// Subject, or the first line of the text.
fn headline(item: &Value) -> String {
    let said = item["subject"].as_str().or(item["text"].as_str()).unwrap_or_default();
    printable(said.lines().next().unwrap_or_default()).into_owned()
}

fn row(item: &Value) -> Vec<String> {
    vec![text(item, "id"), text(item, "created_at"), state(item).to_owned(), text(item, "class"), headline(item)]
}

fn show(terminal: &Terminal, item: &Value) -> Outcome {
    terminal.line(format_args!("{} of {}, {}", text(item, "id"), text(item, "class"), state(item)))?;
    for (name, shown) in [
        ("subject", "subject"),
        ("text", "text"),
        ("link", "link"),
        ("created_at", "created"),
        ("expires_at", "expires"),
    ] {
        if item[name].is_string() {
            terminal.line(format_args!("{shown}: {}", text(item, name)))?;
        }
    }
    for action in item["actions"].as_array().into_iter().flatten() {
        terminal.line(format_args!("action: {} ({})", text(action, "label"), text(action, "link")))?;
    }
    if item["data"].as_object().is_some_and(|data| !data.is_empty()) {
        terminal.line(format_args!("data: {}", printable(&item["data"].to_string())))?;
    }
    Ok(())
}

/// Follows the stream.
async fn watch(
    terminal: &Terminal,
    client: &Client,
    subscriber: &str,
    after: String,
    events: Option<usize>,
    json: bool,
) -> Outcome {
    let mut left = events.unwrap_or(usize::MAX);
    let take = |event: &StreamEvent| {
        print(event, terminal, json)?;
        left -= 1;
        Ok(if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    };
    follow(client, &format!("{}/stream", path(subscriber)), &[], after, take).await
}

fn print(StreamEvent { id, name, data }: &StreamEvent, terminal: &Terminal, json: bool) -> Outcome {
    if json {
        return Ok(terminal.line(json!({"id": id, "event": name, "data": data}))?);
    }
    let said = match name.as_str() {
        "unread" => format!("{} unread", data["unread"]),
        "deleted" => format!("deleted {}", text(data, "id")),
        "reset" => "events were lost; list the inbox again".to_owned(),
        name => format!("{} {} {} {}", printable(name), text(data, "id"), state(data), headline(data)),
    };
    Ok(terminal.line(said)?)
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;
    use crate::commands::fake_server;

    async fn check(args: &[&str], answers: Vec<(u16, Value)>, expected: Expect) {
        let run = async |args: Args, terminal: &Terminal, client: &Client| args.run(terminal, client).await;
        fake_server::check("inbox", args, answers, run, expected).await;
    }

    #[tokio::test]
    async fn an_inbox_is_listed_and_marked() {
        let item = json!({"id": "n-7-15", "class": "shaken", "subject": "Kobe\u{1b}[2J", "created_at": "2026-11-21T09:30:00Z",
            "read_at": null, "archived_at": null, "link": "/a", "actions": [{"label": "Pay", "link": "/pay"}], "data": {"n": 1}});
        check(
            &["list", "a/b", "--state", "unread", "--class", "shaken"],
            vec![(200, json!({"items": [item]}))],
            expect![[r#"
                id      created               state   class   subject
                n-7-15  2026-11-21T09:30:00Z  unread  shaken  Kobe\u{1b}[2J
                GET /v1/subscribers/a%2Fb/inbox?class=shaken&state=unread&limit=1000"#]],
        )
        .await;
        check(
            &["show", "alice", "n-7-15"],
            vec![(200, item.clone())],
            expect![[r#"
            n-7-15 of shaken, unread
            subject: Kobe\u{1b}[2J
            link: /a
            created: 2026-11-21T09:30:00Z
            action: Pay (/pay)
            data: {"n":1}
            GET /v1/subscribers/alice/inbox/n-7-15"#]],
        )
        .await;
        check(
            &["read", "alice", "n-7-15"],
            vec![(200, json!({"marked": 1, "unread": 2}))],
            expect![[r#"
            1 item marked; 2 unread
            POST /v1/subscribers/alice/inbox/mark [application/json] {"mark":"read","ids":["n-7-15"]}"#]],
        )
        .await;
        check(
            &["archive", "alice", "--all", "--state", "read", "--newest", "n-7-15"],
            vec![(200, json!({"marked": 5, "unread": 0}))],
            expect![[r#"
                5 items marked; 0 unread
                POST /v1/subscribers/alice/inbox/mark [application/json] {"mark":"archive","all":true,"state":"read","newest":"n-7-15"}"#]],
        )
        .await;
        check(
            &["delete", "alice"],
            vec![],
            expect![[r#"
            failed: item ids or --all are required
        "#]],
        )
        .await;
        check(
            &["read", "alice", "n-7-15", "--all"],
            vec![],
            expect![[r#"
                failed: --all excludes item ids
            "#]],
        )
        .await;
        check(
            &["token", "alice", "--read-only"],
            vec![(201, json!({"token": "inbox.1.r.5.x"}))],
            expect![[r#"
            inbox.1.r.5.x
            POST /v1/subscribers/alice/inbox/token [application/json] {"expires_in":3600,"read_only":true}"#]],
        )
        .await;
    }

    #[tokio::test]
    async fn a_stream_is_printed_line_by_line() {
        let stream = "retry: 2000\n\nid: 5\nevent: unread\ndata: {\"unread\":1}\n\n:\n\nid: 6\nevent: new\ndata: \
             {\"id\":\"n-7-15\",\"subject\":\"Kobe\",\"read_at\":null,\"archived_at\":null}\n\nid: 7\nevent: deleted\ndata: {\"id\":\"n-7-1\"}\n\n";
        check(
            &["watch", "alice", "--after", "4", "--events", "3"],
            vec![(200, stream.into())],
            expect![[r#"
            1 unread
            new n-7-15 unread Kobe
            deleted n-7-1
            GET /v1/subscribers/alice/inbox/stream?last_event_id=4"#]],
        )
        .await;
    }
}
