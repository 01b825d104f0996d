//! Command `notifications`: searches notifications by recipient, outcome, reason, time and more; shows their content.

use clap::Subcommand;
use serde_json::Value;

use super::lists::{ItemList, search, texts};
use crate::{
    client::{Client, present_parameters, segment},
    failure::{Failure, Outcome},
    terminal::{Terminal, printable},
};

/// Arguments of `tocsin notifications`.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    search: Search,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Render a sent notification again, and print its parts
    Content {
        /// Notification, such as n-3-41
        notification: String,
        /// Print only this part, such as html
        #[arg(long, conflicts_with = "json")]
        part: Option<String>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, clap::Args)]
struct Search {
    /// Application to filter by
    #[arg(long)]
    application: Option<String>,
    /// Notification class to filter by
    #[arg(long)]
    class: Option<String>,
    /// Rule to filter by
    #[arg(long)]
    rule: Option<String>,
    /// Channel to filter by
    #[arg(long)]
    channel: Option<String>,
    /// Subscriber to filter by
    #[arg(long)]
    subscriber: Option<String>,
    /// Address of a device to filter by
    #[arg(long)]
    address: Option<String>,
    /// Outcomes to filter by, such as refused,expired or waiting
    #[arg(long, value_name = "OUTCOMES")]
    outcome: Option<String>,
    /// Text in the reply of the receiver to filter by
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Start of the period, such as 2027-01-04T08:00:00Z
    #[arg(long, value_name = "TIME")]
    from: Option<String>,
    /// End of the period, exclusive
    #[arg(long, value_name = "TIME")]
    to: Option<String>,
    /// Maximum number of rows
    #[arg(long, default_value_t = 100, value_name = "COUNT")]
    limit: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Lists the notifications, newest first, or shows the content of one.
    ///
    /// # Errors
    /// If the server refuses the request; the notification has no such part.
    pub async fn run(self, terminal: &Terminal, client: &Client) -> Outcome {
        match self.action {
            None => self.search.run(terminal, client).await,
            Some(Action::Content { notification, part, json }) => {
                let path = format!("/v1/notifications/{}/content", segment(&notification));
                let found = client.get(&path, &[]).await?;
                match json {
                    true => Ok(terminal.json(&found)?),
                    false => print_parts(terminal, &found, part.as_deref()),
                }
            }
        }
    }
}

fn print_parts(terminal: &Terminal, found: &Value, wanted: Option<&str>) -> Outcome {
    if let Some(failure) = found["failure"].as_str() {
        return Err(Failure::failed(format!("the notification cannot be rendered: {}", printable(failure))));
    }
    let parts = found["parts"].as_array().map_or(&[][..], Vec::as_slice);
    let text = |part: &Value, name: &str| part[name].as_str().unwrap_or_default().to_owned();
    let lines = |content: &str| content.lines().map(|line| printable(line).into_owned()).collect::<Vec<_>>().join("\n");
    match wanted {
        Some(name) => match parts.iter().find(|part| part["part"] == name) {
            Some(part) => Ok(terminal.line(lines(&text(part, "content")))?),
            None => Err(Failure::failed(format!("the notification has no part `{}`", printable(name)))),
        },
        None => {
            for part in parts {
                terminal.line(format_args!("{}: {}", printable(&text(part, "part")), lines(&text(part, "content"))))?;
            }
            Ok(())
        }
    }
}

impl Search {
    async fn run(self, terminal: &Terminal, client: &Client) -> Outcome {
        let named = [
            ("application", &self.application),
            ("class", &self.class),
            ("rule", &self.rule),
            ("channel", &self.channel),
            ("subscriber", &self.subscriber),
            ("address", &self.address),
            ("outcome", &self.outcome),
            ("reason", &self.reason),
            ("from", &self.from),
            ("to", &self.to),
        ];
        let items = search(client, "/v1/notifications", &present_parameters(&named), self.limit).await?;
        let heads =
            ["NOTIFICATION", "APPLICATION", "CLASS", "CHANNEL", "SUBSCRIBER", "STATE", "TRIES", "MATCHED", "REPLY"];
        ItemList { items, limit: self.limit, json: self.json }.show(terminal, "no notifications", &heads, row)
    }
}

fn row(item: &Value) -> Vec<String> {
    let mut cells = texts(item, &["id", "application", "class", "channel"]);
    cells.push(printable(item["recipient"]["subscriber"].as_str().unwrap_or_default()).into_owned());
    cells.extend(texts(item, &["state", "attempts", "matched_at", "reply"]));
    cells
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use serde_json::json;

    use super::*;
    use crate::commands::fake_server;

    #[tokio::test]
    async fn a_search_continues_where_a_bounded_request_ended() {
        let run = async |args: Args, terminal: &Terminal, client: &Client| args.run(terminal, client).await;
        let item = json!({"id": "n-3-41", "application": "doors", "class": "alarm", "channel": "mail",
            "state": "refused", "attempts": 2, "matched_at": "2026-11-27T08:00:00Z", "reply": "550 unknown user",
            "recipient": {"subscriber": "ann"}});
        let answers = vec![
            (200, json!({"items": [], "next": "bi0x", "scanned_to": "2026-11-28T08:00:00Z"})),
            (200, json!({"items": [item]})),
        ];
        let expected = expect![[r#"
            NOTIFICATION  APPLICATION  CLASS  CHANNEL  SUBSCRIBER  STATE    TRIES  MATCHED               REPLY
            n-3-41        doors        alarm  mail     ann         refused  2      2026-11-27T08:00:00Z  550 unknown user
            GET /v1/notifications?subscriber=ann&outcome=refused&limit=100
            GET /v1/notifications?subscriber=ann&outcome=refused&limit=100&after=bi0x"#]];
        let args = ["--subscriber", "ann", "--outcome", "refused"];
        fake_server::check("notifications", &args, answers, run, expected).await;
    }

    #[tokio::test]
    async fn the_parts_of_a_content_are_printed() {
        let run = async |args: Args, terminal: &Terminal, client: &Client| args.run(terminal, client).await;
        let parts = json!([{"part": "subject", "content": "Kobe"}, {"part": "text", "content": "A quake\nat Kobe"}]);
        let answer = json!({"notification": "n-3-41", "parts": parts});
        let expected = expect![[r#"
            subject: Kobe
            text: A quake
            at Kobe
            GET /v1/notifications/n-3-41/content"#]];
        fake_server::check("notifications", &["content", "n-3-41"], vec![(200, answer.clone())], run, expected).await;
        let expected = expect![[r#"
            failed: the notification has no part `html`
            GET /v1/notifications/n-3-41/content"#]];
        let args = ["content", "n-3-41", "--part", "html"];
        fake_server::check("notifications", &args, vec![(200, answer)], run, expected).await;
    }
}
