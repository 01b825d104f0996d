//! Lists event batches, and shows the events of one.

use clap::Subcommand;

use super::lists::{ItemList, texts};
use crate::{
    client::{Client, segment},
    failure::{Failure, Outcome},
    terminal::Terminal,
};

/// Arguments of `tocsin events`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List event batches, newest first
    List {
        /// Maximum number of batches
        #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=1000), value_name = "COUNT")]
        limit: u64,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Print the events of a batch as NDJSON
    Show {
        /// Event batch, such as eb-17
        batch: String,
    },
}

impl Args {
    /// Runs the command.
    ///
    /// # Errors
    /// If the server refuses the request.
    pub async fn run(self, terminal: &Terminal, client: &Client) -> Outcome {
        match self.action {
            Action::List { limit, json } => {
                let page = client.get("/v1/event-batches", &[("limit", &limit.to_string())]).await?;
                let Some(items) = page["items"].as_array().cloned() else {
                    return Err(Failure::failed("the response to GET /v1/event-batches is not a list"));
                };
                let limit = limit as usize;
                let heads = ["BATCH", "APPLICATION", "CLASS", "EVENTS", "STATE", "ACCEPTED"];
                ItemList { items, limit, json }.show(terminal, "there are no event batches", &heads, |item| {
                    texts(item, &["id", "application", "class", "events", "state", "accepted_at"])
                })
            }
            Action::Show { batch } => {
                let path = format!("/v1/event-batches/{}/events", segment(&batch));
                let mut after = None::<String>;
                loop {
                    let mut query = vec![("limit", "1000")];
                    if let Some(after) = &after {
                        query.push(("after", after));
                    }
                    let page = client.get(&path, &query).await?;
                    for event in page["items"].as_array().into_iter().flatten() {
                        terminal.line(event)?;
                    }
                    after = page["next"].as_str().map(str::to_owned);
                    if after.is_none() {
                        return Ok(());
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use serde_json::{Value, json};

    use super::*;
    use crate::commands::fake_server;

    async fn check(args: &[&str], answers: Vec<(u16, Value)>, expected: Expect) {
        let run = async |args: Args, terminal: &Terminal, client: &Client| args.run(terminal, client).await;
        fake_server::check("events", args, answers, run, expected).await;
    }

    #[tokio::test]
    async fn batches_are_listed_and_their_events_printed_page_by_page() {
        let batch = json!({"id": "eb-2", "application": "doors", "class": "opened", "events": 2, "state": "matched",
            "accepted_at": "2026-11-27T08:00:00Z"});
        check(
            &["list"],
            vec![(200, json!({"items": [batch]}))],
            expect![[r#"
            BATCH  APPLICATION  CLASS   EVENTS  STATE    ACCEPTED
            eb-2   doors        opened  2       matched  2026-11-27T08:00:00Z
            GET /v1/event-batches?limit=20"#]],
        )
        .await;
        let pages = vec![
            (200, json!({"items": [{"door": "front"}], "next": "1"})),
            (200, json!({"items": [{"door": "back"}]})),
        ];
        check(
            &["show", "eb-2"],
            pages,
            expect![[r#"
            {"door":"front"}
            {"door":"back"}
            GET /v1/event-batches/eb-2/events?limit=1000
            GET /v1/event-batches/eb-2/events?limit=1000&after=1"#]],
        )
        .await;
    }
}
