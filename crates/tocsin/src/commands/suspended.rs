//! Lists, resumes or ends notifications that wait for an operator.

use clap::Subcommand;
use serde_json::Value;

use super::lists::{Listed, chosen};
use crate::{
    client::Client,
    failure::{Failure, Outcome},
    terminal::{Terminal, printable, thousands},
};

/// Arguments of `tocsin suspended`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Lists what is suspended, with the reasons
    List {
        #[command(flatten)]
        filter: Filter,
        /// Most lines
        #[arg(long, default_value_t = 1000)]
        limit: usize,
        /// Prints JSON
        #[arg(long)]
        json: bool,
    },
    /// Sends again, with a fresh retry schedule
    Resume {
        #[command(flatten)]
        filter: Filter,
        /// All that is suspended
        #[arg(long)]
        all: bool,
    },
    /// Closes without sending
    End {
        #[command(flatten)]
        filter: Filter,
        /// All that is suspended
        #[arg(long)]
        all: bool,
        /// Does not ask
        #[arg(long, short)]
        yes: bool,
    },
}

#[derive(Debug, clap::Args)]
struct Filter {
    /// Only this suspension, by its number
    #[arg(long)]
    id: Option<u64>,
    /// Only of this application
    #[arg(long)]
    application: Option<String>,
    /// Only of this channel
    #[arg(long)]
    channel: Option<String>,
    /// Only of this notification batch
    #[arg(long)]
    batch: Option<String>,
}

impl Filter {
    fn query(&self) -> Vec<(&str, &str)> {
        let named = [("application", &self.application), ("channel", &self.channel), ("batch", &self.batch)];
        named.into_iter().filter_map(|(name, value)| Some((name, value.as_deref()?))).collect()
    }

    fn body(&self, all: bool) -> Outcome<Value> {
        chosen(self.id, &self.query(), all, "--id, --application, --channel, --batch")
    }

    async fn list(&self, client: &Client, limit: usize) -> Outcome<Vec<Value>> {
        let mut items = client.list("/v1/suspensions", &self.query(), limit).await?;
        items.retain(|item| self.id.is_none_or(|id| item["id"].as_u64() == Some(id)));
        Ok(items)
    }
}

impl Args {
    /// Lists, resumes or ends.
    ///
    /// # Errors
    /// The server does not do it, or the person at the terminal said no.
    pub async fn run(self, terminal: &Terminal, client: &Client) -> Outcome {
        match self.what {
            What::List { filter, limit, json } => {
                let items = filter.list(client, limit).await?;
                let heads = ["id", "notifications", "batch", "application", "channel", "since", "reason"];
                Listed { items, limit, json }.show(terminal, "nothing is suspended", &heads, row)
            }
            What::Resume { filter, all } => {
                let answer = client.post("/v1/suspensions/resume", &filter.body(all)?).await?;
                Ok(terminal.line(format_args!(
                    "{} notifications resumed",
                    thousands(answer["notifications"].as_u64().unwrap_or_default())
                ))?)
            }
            What::End { filter, all, yes } => {
                let body = filter.body(all)?;
                if !yes {
                    let items = filter.list(client, usize::MAX).await?;
                    let many: u64 = items.iter().map(|item| count(item).unwrap_or(1)).sum();
                    if !terminal.confirm(&format!("close {} notifications for ever, unsent?", thousands(many)))? {
                        return Err(Failure::failed("nothing was changed; --yes ends without asking"));
                    }
                }
                let answer = client.post("/v1/suspensions/end", &body).await?;
                Ok(terminal.line(format_args!(
                    "{} notifications ended",
                    thousands(answer["notifications"].as_u64().unwrap_or_default())
                ))?)
            }
        }
    }
}

/// How many notifications a suspension holds.
fn count(item: &Value) -> Option<u64> {
    item["notifications"]
        .as_u64()
        .or_else(|| item["count"].as_u64())
        .or_else(|| Some(item["ordinals"].as_array()?.len() as u64))
}

fn row(item: &Value) -> Vec<String> {
    let text = |name: &str| match &item[name] {
        Value::String(text) => printable(text).into_owned(),
        Value::Null => String::new(),
        other => other.to_string(),
    };
    let count = count(item).map(thousands).unwrap_or_default();
    vec![text("id"), count, text("batch"), text("application"), text("channel"), text("since"), text("reason")]
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use serde_json::json;

    use super::*;
    use crate::commands::fake_server;

    async fn check(args: &[&str], answers: Vec<(u16, Value)>, expected: Expect) {
        let run = async |args: Args, terminal: &Terminal, client: &Client| args.run(terminal, client).await;
        fake_server::check("suspended", args, answers, run, expected).await;
    }

    #[tokio::test]
    async fn lists_go_on_page_after_page() {
        let page = |id: u64| json!({"id": id, "batch": "nb-7", "application": "quakes", "channel": "email", "notifications": 1200, "since": "2026-11-21T09:30:00Z", "reason": "550 no"});
        let answers = vec![(200, json!({"items": [page(1)], "next": "a b"})), (200, json!({"items": [page(2)]}))];
        check(
            &["list", "--channel", "email"],
            answers,
            expect![[r#"
            id  notifications  batch  application  channel  since                 reason
            1   1,200          nb-7   quakes       email    2026-11-21T09:30:00Z  550 no
            2   1,200          nb-7   quakes       email    2026-11-21T09:30:00Z  550 no
            GET /v1/suspensions?channel=email&limit=1000
            GET /v1/suspensions?channel=email&limit=1000&after=a%20b"#]],
        )
        .await;
        check(
            &["list"],
            vec![(200, json!({"items": []}))],
            expect![[r#"
            nothing is suspended
            GET /v1/suspensions?limit=1000"#]],
        )
        .await;
    }

    #[tokio::test]
    async fn nothing_is_touched_by_accident() {
        check(
            &["resume"],
            vec![],
            expect![[r#"
            failed: say which: --id, --application, --channel, --batch or --all
        "#]],
        )
        .await;
        check(
            &["resume", "--all"],
            vec![(200, json!({"notifications": 4300}))],
            expect![[r#"
            4,300 notifications resumed
            POST /v1/suspensions/resume [application/json] {"all":true}"#]],
        )
        .await;
        check(
            &["end", "--batch", "nb-7"],
            vec![(200, json!({"items": [{"id": 1, "notifications": 3}]}))],
            expect![[r#"
            failed: nothing was changed; --yes ends without asking
            GET /v1/suspensions?batch=nb-7&limit=1000"#]],
        )
        .await;
        check(
            &["end", "--batch", "nb-7", "--yes"],
            vec![(200, json!({"notifications": 3}))],
            expect![[r#"
            3 notifications ended
            POST /v1/suspensions/end [application/json] {"batch":"nb-7"}"#]],
        )
        .await;
    }
}
