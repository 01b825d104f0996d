//! Lists event batches, shows the events of one, and searches events by a condition.

use std::collections::BTreeMap;

use clap::Subcommand;
use serde_json::{Value, json};

use super::lists::{ItemList, search, texts};
use crate::{
    client::{Client, present_parameters, segment},
    failure::{Failure, Outcome},
    terminal::{Terminal, counted},
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
    /// Search events, newest first, or count them by a field
    Find(Box<Find>),
}

#[derive(Debug, clap::Args)]
struct Find {
    /// Application to filter by
    #[arg(long)]
    application: Option<String>,
    /// Event class to filter by
    #[arg(long)]
    class: Option<String>,
    /// Source to filter by
    #[arg(long)]
    source: Option<String>,
    /// Start of the period, such as 2027-01-04T08:00:00Z
    #[arg(long, value_name = "TIME")]
    from: Option<String>,
    /// End of the period, exclusive
    #[arg(long, value_name = "TIME")]
    to: Option<String>,
    /// Condition in CEL, such as "event.magnitude > 5"; needs --application and --class
    #[arg(long, value_name = "CEL", requires_all = ["application", "class"])]
    r#where: Option<String>,
    /// Count the events by the values of this field
    #[arg(long, value_name = "FIELD", requires_all = ["application", "class"])]
    count_by: Option<String>,
    /// Maximum number of events or values
    #[arg(long, default_value_t = 100, value_name = "COUNT")]
    limit: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Find {
    async fn run(self, terminal: &Terminal, client: &Client) -> Outcome {
        let named = [
            ("application", &self.application),
            ("class", &self.class),
            ("source", &self.source),
            ("from", &self.from),
            ("to", &self.to),
            ("where", &self.r#where),
            ("count_by", &self.count_by),
        ];
        let query = present_parameters(&named);
        if let Some(field) = &self.count_by {
            return self.count(terminal, client, &query, field).await;
        }
        let items = search(client, "/v1/events", &query, self.limit).await?;
        let heads = ["EVENT", "APPLICATION", "CLASS", "SOURCE", "ACCEPTED", "FIELDS"];
        ItemList { items, limit: self.limit, json: self.json }.show(terminal, "no events", &heads, |item| {
            texts(item, &["id", "application", "class", "source", "accepted_at", "event"])
        })
    }

    /// Adds up the counts of all requests that the period takes.
    async fn count(&self, terminal: &Terminal, client: &Client, query: &[(&str, &str)], field: &str) -> Outcome {
        let (mut counts, mut other) = (BTreeMap::<String, (Value, u64)>::new(), 0);
        let mut after = None::<String>;
        loop {
            let mut query = query.to_vec();
            query.push(("limit", "1000"));
            query.extend(after.as_deref().map(|after| ("after", after)));
            let page = client.get("/v1/events", &query).await?;
            for found in page["counts"]["values"].as_array().into_iter().flatten() {
                let entry = counts.entry(found["value"].to_string()).or_insert((found["value"].clone(), 0));
                entry.1 += found["count"].as_u64().unwrap_or_default();
            }
            other += page["counts"]["other"].as_u64().unwrap_or_default();
            after = page["next"].as_str().map(str::to_owned);
            if after.is_none() {
                break;
            }
        }
        let mut counts: Vec<(Value, u64)> = counts.into_values().collect();
        counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        let items = counts.into_iter().map(|(value, count)| json!({ field: value, "count": count })).collect();
        ItemList { items, limit: self.limit, json: self.json }.show(
            terminal,
            "no events",
            &[field, "count"],
            |item| texts(item, &[field, "count"]),
        )?;
        if other > 0 && !self.json {
            terminal.line(format_args!("{} with other values", counted(other, "event", "events")))?;
        }
        Ok(())
    }
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
            Action::Find(find) => find.run(terminal, client).await,
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

    #[tokio::test]
    async fn events_are_searched_and_counted() {
        let event = json!({"id": "e-2-0", "application": "doors", "class": "opened", "source": "api",
            "accepted_at": "2026-11-27T08:00:00Z", "event": {"door": "front"}});
        let options = ["find", "--application", "doors", "--class", "opened"];
        check(
            &[&options[..], &["--where", "event.door == 'front'"]].concat(),
            vec![(200, json!({"items": [event]}))],
            expect![[r#"
            EVENT  APPLICATION  CLASS   SOURCE  ACCEPTED              FIELDS
            e-2-0  doors        opened  api     2026-11-27T08:00:00Z  {"door":"front"}
            GET /v1/events?application=doors&class=opened&where=event.door%20%3D%3D%20%27front%27&limit=100"#]],
        )
        .await;
        let counts = |front: u64, other: u64| {
            let values = json!([{"value": "front", "count": front}, {"value": "back", "count": 2}]);
            json!({"field": "door", "values": values, "other": other})
        };
        let pages = vec![
            (200, json!({"items": [], "next": "x", "counts": counts(3, 0)})),
            (200, json!({"items": [], "counts": counts(4, 1)})),
        ];
        check(
            &[&options[..], &["--count-by", "door"]].concat(),
            pages,
            expect![[r#"
            door   count
            front  7
            back   4
            1 event with other values
            GET /v1/events?application=doors&class=opened&count_by=door&limit=1000
            GET /v1/events?application=doors&class=opened&count_by=door&limit=1000&after=x"#]],
        )
        .await;
    }
}
