//! Command `firings`: lists missed rule firings, runs them again, or dismisses them.

use clap::{Subcommand, ValueEnum};
use serde_json::Value;

use super::lists::{DryRun, ItemList, chosen};
use crate::{
    client::Client,
    failure::{Failure, Outcome},
    terminal::{Terminal, counted, printable},
};

/// Arguments of `tocsin firings`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List missed firings and their reasons
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
    /// List slow firings since the start, newest first
    Slow {
        /// Application to filter by
        #[arg(long)]
        application: Option<String>,
        /// Rule to filter by
        #[arg(long)]
        rule: Option<String>,
        /// Maximum number of firings
        #[arg(long, default_value_t = 20, value_name = "COUNT")]
        limit: usize,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Run the rules for the event batches that they missed
    Refire {
        #[command(flatten)]
        filter: Filter,
        /// All listed firings; excludes other filters
        #[arg(long)]
        all: bool,
        #[command(flatten)]
        dry: DryRun,
    },
    /// Dismiss missed firings without running them
    Dismiss {
        #[command(flatten)]
        filter: Filter,
        /// All listed firings; excludes other filters
        #[arg(long)]
        all: bool,
        #[command(flatten)]
        dry: DryRun,
        /// Confirmation; without it the command asks
        #[arg(long, short)]
        yes: bool,
    },
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Status {
    Failed,
    Skipped,
}

#[derive(Debug, clap::Args)]
struct Filter {
    /// Number of the missed firing
    #[arg(long)]
    id: Option<u64>,
    /// Application to filter by
    #[arg(long)]
    application: Option<String>,
    /// Rule to filter by
    #[arg(long)]
    rule: Option<String>,
    /// Status to filter by: failed or skipped
    #[arg(long)]
    status: Option<Status>,
}

impl Filter {
    fn query(&self) -> Vec<(&str, &str)> {
        let status = self.status.map(|status| match status {
            Status::Failed => "failed",
            Status::Skipped => "skipped",
        });
        let named = [("application", self.application.as_deref()), ("rule", self.rule.as_deref()), ("status", status)];
        named.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
    }

    fn body(&self, all: bool) -> Outcome<Value> {
        chosen(self.id, &self.query(), all, "--id, --application, --rule, --status")
    }

    async fn list(&self, client: &Client, limit: usize) -> Outcome<Vec<Value>> {
        let mut items = client.list("/v1/firings", &self.query(), limit).await?;
        items.retain(|item| self.id.is_none_or(|id| item["id"].as_u64() == Some(id)));
        Ok(items)
    }
}

impl Args {
    /// Runs the command.
    ///
    /// # Errors
    /// If the server refuses the request, a rule fails again, or the user declines.
    pub async fn run(self, terminal: &Terminal, client: &Client) -> Outcome {
        match self.what {
            Action::List { filter, limit, json } => {
                let items = filter.list(client, limit).await?;
                let heads = ["id", "status", "application", "rule", "batches", "from", "to", "since", "reason"];
                ItemList { items, limit, json }.show(terminal, "no missed firings", &heads, row)
            }
            Action::Slow { application, rule, limit, json } => {
                let named = [("application", application.as_deref()), ("rule", rule.as_deref())];
                let query: Vec<(&str, &str)> =
                    named.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
                let items = client.list("/v1/slow-firings", &query, limit).await?;
                slow(terminal, &items, json)
            }
            Action::Refire { filter, all, dry } => {
                let answer = client.post(&dry.path("/v1/firings/refire"), &filter.body(all)?).await?;
                let batches = answer["batches"].as_u64().unwrap_or_default();
                let batches = counted(batches, "event batch", "event batches");
                let run = if dry.is_dry() { "rules would be run for" } else { "rules run for" };
                terminal.line(format_args!("{run} {batches}"))?;
                let failed = answer["failed"].as_array().map(Vec::as_slice).unwrap_or_default();
                for again in failed {
                    let reason = printable(again["reason"].as_str().unwrap_or_default());
                    terminal.line(format_args!("{} failed again: {reason}", again["id"]))?;
                }
                match failed.len() {
                    0 => Ok(()),
                    count => Err(Failure::failed(format!("{count} failed again and stay listed"))),
                }
            }
            Action::Dismiss { filter, all, dry, yes } => {
                let body = filter.body(all)?;
                if !yes && !dry.is_dry() {
                    let items = filter.list(client, usize::MAX).await?;
                    let batches: u64 = items.iter().filter_map(|item| item["batches"].as_u64()).sum();
                    let batches = counted(batches, "event batch", "event batches");
                    let question = format!("dismiss {batches} without running the rules?");
                    if !terminal.confirm(&question)? {
                        return Err(Failure::failed("nothing was changed; --yes skips the confirmation"));
                    }
                }
                let answer = client.post(&dry.path("/v1/firings/dismiss"), &body).await?;
                let batches = answer["batches"].as_u64().unwrap_or_default();
                let batches = counted(batches, "event batch", "event batches");
                Ok(terminal.line(format_args!("{batches} {}", dry.done("dismissed")))?)
            }
        }
    }
}

/// Prints slow firings, each with its query plan.
fn slow(terminal: &Terminal, items: &[Value], json: bool) -> Outcome {
    if json {
        return Ok(terminal.json(&items)?);
    }
    if items.is_empty() {
        return Ok(terminal.line("no slow firings")?);
    }
    for item in items {
        let text = |name: &str| printable(item[name].as_str().unwrap_or_default()).into_owned();
        terminal.line(format_args!(
            "{} {}/{} took {} ms of {} for {} of {}",
            text("at"),
            text("application"),
            text("rule"),
            item["took_ms"],
            item["timeout_ms"],
            counted(item["events"].as_u64().unwrap_or_default(), "event", "events"),
            text("batch"),
        ))?;
        for step in item["plan"].as_array().map(Vec::as_slice).unwrap_or_default() {
            terminal.line(format_args!("  {}", printable(step.as_str().unwrap_or_default())))?;
        }
    }
    Ok(())
}

fn row(item: &Value) -> Vec<String> {
    let text = |name: &str| match &item[name] {
        Value::String(text) => printable(text).into_owned(),
        Value::Null => String::new(),
        other => other.to_string(),
    };
    ["id", "status", "application", "rule", "batches", "first", "last", "since", "reason"].map(text).into()
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use serde_json::json;

    use super::*;
    use crate::commands::fake_server;

    async fn check(args: &[&str], answers: Vec<(u16, Value)>, expected: Expect) {
        let run = async |args: Args, terminal: &Terminal, client: &Client| args.run(terminal, client).await;
        fake_server::check("firings", args, answers, run, expected).await;
    }

    #[tokio::test]
    async fn missed_firings_are_listed() {
        let item = json!({"id": 3, "application": "stock", "rule": "limit", "status": "skipped", "reason": "it is stopped: x",
            "first": "eb-1", "last": "eb-9", "batches": 5, "since": "2026-11-22T08:00:00Z"});
        let args = ["list", "--status", "skipped"];
        check(
            &args,
            vec![(200, json!({"items": [item]}))],
            expect![[r#"
            id  status   application  rule   batches  from  to    since                 reason
            3   skipped  stock        limit  5        eb-1  eb-9  2026-11-22T08:00:00Z  it is stopped: x
            GET /v1/firings?status=skipped&limit=1000"#]],
        )
        .await;
        check(
            &["list"],
            vec![(200, json!({"items": []}))],
            expect![[r#"
            no missed firings
            GET /v1/firings?limit=1000"#]],
        )
        .await;
    }

    #[tokio::test]
    async fn slow_firings_are_listed_with_their_plan() {
        let item = json!({"application": "stock", "version": 2, "rule": "sum", "batch": "eb-7", "events": 1000,
            "at": "2026-11-22T08:00:00Z", "took_ms": 1500.25, "timeout_ms": 10000.0, "plan": ["SCAN e", "SCAN w"]});
        check(
            &["slow", "--rule", "sum"],
            vec![(200, json!({"items": [item]}))],
            expect![[r#"
            2026-11-22T08:00:00Z stock/sum took 1500.25 ms of 10000.0 for 1,000 events of eb-7
              SCAN e
              SCAN w
            GET /v1/slow-firings?rule=sum&limit=1000"#]],
        )
        .await;
        check(
            &["slow"],
            vec![(200, json!({"items": []}))],
            expect![[r#"
            no slow firings
            GET /v1/slow-firings?limit=1000"#]],
        )
        .await;
    }

    #[tokio::test]
    async fn repeated_failures_are_reported() {
        let answer = json!({"batches": 4, "failed": [{"id": 7, "reason": "eb-2: too long"}]});
        check(
            &["refire", "--rule", "limit"],
            vec![(200, answer)],
            expect![[r#"
            rules run for 4 event batches
            7 failed again: eb-2: too long
            failed: 1 failed again and stay listed
            POST /v1/firings/refire [application/json] {"rule":"limit"}"#]],
        )
        .await;
        check(
            &["refire"],
            vec![],
            expect![[r#"
            failed: a filter is required: --id, --application, --rule, --status or --all
        "#]],
        )
        .await;
        check(
            &["dismiss", "--all", "--yes"],
            vec![(200, json!({"batches": 4}))],
            expect![[r#"
            4 event batches dismissed
            POST /v1/firings/dismiss [application/json] {"all":true}"#]],
        )
        .await;
    }
}
