//! Command `delayed`: lists delayed notifications that wait for their due time, or cancels them.

use clap::Subcommand;
use serde_json::Value;

use super::lists::{ItemList, chosen, texts};
use crate::{
    client::Client,
    failure::{Failure, Outcome},
    terminal::{Terminal, counted},
};

/// Arguments of `tocsin delayed`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List waiting notifications and their due times
    List {
        #[command(flatten)]
        filter: Filter,
        /// Maximum number of rows
        #[arg(long, default_value_t = 1000, value_name = "COUNT")]
        limit: usize,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Cancel waiting notifications
    Cancel {
        /// Number of the notification
        #[arg(long)]
        id: Option<u64>,
        #[command(flatten)]
        filter: Filter,
        /// All waiting notifications; excludes other filters
        #[arg(long)]
        all: bool,
        /// Confirmation; without it the command asks
        #[arg(long, short)]
        yes: bool,
    },
}

#[derive(Debug, clap::Args)]
struct Filter {
    /// Application to filter by
    #[arg(long)]
    application: Option<String>,
    /// Rule to filter by
    #[arg(long)]
    rule: Option<String>,
    /// Subscription to filter by, such as s-15
    #[arg(long)]
    subscription: Option<String>,
    /// Event batch to filter by, such as eb-7
    #[arg(long)]
    batch: Option<String>,
}

impl Filter {
    fn query(&self) -> Vec<(&str, &str)> {
        let named = [
            ("application", self.application.as_deref()),
            ("rule", self.rule.as_deref()),
            ("subscription", self.subscription.as_deref()),
            ("batch", self.batch.as_deref()),
        ];
        named.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
    }
}

impl Args {
    /// Runs the command.
    ///
    /// # Errors
    /// If the server refuses the request, or the user declines.
    pub async fn run(self, terminal: &Terminal, client: &Client) -> Outcome {
        match self.what {
            Action::List { filter, limit, json } => {
                let items = client.list("/v1/delayed-notifications", &filter.query(), limit).await?;
                let heads = ["id", "application", "rule", "subscription", "event", "due", "key"];
                let row = |item: &Value| {
                    texts(item, &["id", "application", "rule", "subscription", "event", "due_at", "key"])
                };
                ItemList { items, limit, json }.show(terminal, "no delayed notifications", &heads, row)
            }
            Action::Cancel { id, filter, all, yes } => {
                let body = chosen(id, &filter.query(), all, "--id, --application, --rule, --subscription, --batch")?;
                if !yes && !terminal.confirm("cancel the selected notifications? they are never sent")? {
                    return Err(Failure::failed("nothing was changed; --yes skips the confirmation"));
                }
                let answer = client.post("/v1/delayed-notifications/cancel", &body).await?;
                let cancelled = answer["cancelled"].as_u64().unwrap_or_default();
                Ok(terminal.line(format_args!("{} cancelled", counted(cancelled, "notification", "notifications")))?)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use serde_json::json;

    use super::*;
    use crate::commands::fake_server;

    async fn check(args: &[&str], answers: Vec<(u16, Value)>, expected: Expect) {
        let run = async |args: Args, terminal: &Terminal, client: &Client| args.run(terminal, client).await;
        fake_server::check("delayed", args, answers, run, expected).await;
    }

    #[tokio::test]
    async fn waiting_notifications_are_listed() {
        let item = json!({"id": 3, "application": "shop", "rule": "reminder", "subscription": "s-1", "event": "e-7-0",
            "due_at": "2026-11-22T08:00:00Z", "key": "17"});
        check(
            &["list", "--rule", "reminder"],
            vec![(200, json!({"items": [item]}))],
            expect![[r#"
            id  application  rule      subscription  event  due                   key
            3   shop         reminder  s-1           e-7-0  2026-11-22T08:00:00Z  17
            GET /v1/delayed-notifications?rule=reminder&limit=1000"#]],
        )
        .await;
    }

    #[tokio::test]
    async fn a_selection_is_cancelled() {
        check(
            &["cancel", "--subscription", "s-1", "--yes"],
            vec![(200, json!({"cancelled": 2}))],
            expect![[r#"
            2 notifications cancelled
            POST /v1/delayed-notifications/cancel [application/json] {"subscription":"s-1"}"#]],
        )
        .await;
        check(
            &["cancel", "--yes"],
            vec![],
            expect![[r#"
            failed: a filter is required: --id, --application, --rule, --subscription, --batch or --all
        "#]],
        )
        .await;
    }
}
