//! Commands `switch` and `retention`: switches components off and on; deletes expired data now.

use clap::Subcommand;
use serde_json::{Value, json};

use super::lists::{ItemList, author};
use crate::{
    client::Client,
    failure::Outcome,
    terminal::{Terminal, counted, printable},
};

/// Arguments of `tocsin switch`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List everything that is switched off
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Pause a component; its work waits
    #[command(after_help = "Example:
  tocsin switch pause channel:shop/mail --reason 'mail server moves'")]
    Pause {
        /// `role:match`, `role:deliver`, `role:sources`, `application:NAME`, `source:APPLICATION/NAME` or
        /// `channel:APPLICATION/NAME`
        component: String,
        /// Reason, shown to other operators
        #[arg(long, default_value = "")]
        reason: String,
    },
    /// Disable a component; its work is refused
    #[command(after_help = "Example:
  tocsin switch disable event-class:shop/order_shipped --reason 'wrong data'")]
    Disable {
        /// `role:accept`, `application:NAME` or `event-class:APPLICATION/NAME`
        component: String,
        /// Reason, shown to other operators
        #[arg(long, default_value = "")]
        reason: String,
    },
    /// Enable a component
    Enable {
        /// Paused or disabled component
        component: String,
    },
}

impl Args {
    /// Runs the command.
    ///
    /// # Errors
    /// If the component is unknown or does not support the state.
    pub async fn run(self, terminal: &Terminal, client: &Client) -> Outcome {
        match self.what {
            Action::List { json } => {
                let found = client.get("/v1/switches", &[]).await?;
                let items = found["items"].as_array().cloned().unwrap_or_default();
                let limit = items.len() + 1;
                let heads = ["component", "state", "since", "by", "reason"];
                ItemList { items, limit, json }.show(terminal, "no component is switched off", &heads, row)
            }
            Action::Pause { component, reason } => off(terminal, client, &component, "paused", &reason).await,
            Action::Disable { component, reason } => off(terminal, client, &component, "disabled", &reason).await,
            Action::Enable { component } => {
                let answer = client.post("/v1/switches/on", &json!({"component": component})).await?;
                let was = if answer["was_off"] == true { "is switched on" } else { "was not switched off" };
                Ok(terminal.line(format_args!("{component} {was}"))?)
            }
        }
    }
}

async fn off(terminal: &Terminal, client: &Client, component: &str, state: &str, reason: &str) -> Outcome {
    let body = json!({"component": component, "state": state, "reason": reason});
    client.post("/v1/switches/off", &body).await?;
    let found = client.get("/v1/switches", &[]).await?;
    let mine = |item: &&Value| item["component"] == component;
    let pending = found["items"].as_array().and_then(|items| items.iter().find(mine)).is_some_and(is_pending);
    let still = if pending { "; work in progress is still being finished" } else { "" };
    Ok(terminal.line(format_args!("{component} is {state}{still}"))?)
}

fn is_pending(item: &Value) -> bool {
    item["pending"] == true
}

fn row(item: &Value) -> Vec<String> {
    let text = |name: &str| printable(item[name].as_str().unwrap_or_default()).into_owned();
    let state = if is_pending(item) { format!("{}, pending", text("state")) } else { text("state") };
    vec![text("component"), state, text("since"), author(item, "by"), text("reason")]
}

/// Arguments of `tocsin retention`.
#[derive(Debug, clap::Args)]
pub struct Retention {}

impl Retention {
    /// Deletes expired data regardless of the scheduled hour.
    ///
    /// # Errors
    /// If the key has no permission, or the store fails.
    pub async fn run(self, terminal: &Terminal, client: &Client) -> Outcome {
        let answer = client.post("/v1/retention/run", &json!({})).await?;
        let batches = answer["batches"].as_u64().unwrap_or_default();
        Ok(terminal.line(format_args!("deleted {}", counted(batches, "batch", "batches")))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::fake_server::FakeServer;

    #[derive(clap::Parser)]
    struct TestCli {
        #[command(flatten)]
        args: Args,
    }

    #[tokio::test]
    async fn pending_work_is_mentioned() {
        let item = json!({"component": "channel:stock/mail", "state": "paused", "pending": true, "by": "a1b2c3d4", "by_name": "ops", "reason": "moving", "since": "2027-01-04T08:00:00Z"});
        let cases = [
            (
                vec!["pause", "channel:stock/mail", "--reason", "moving"],
                vec![(200, json!({})), (200, json!({"items": [item]}))],
                "channel:stock/mail is paused; work in progress is still being finished",
            ),
            (vec!["list"], vec![(200, json!({"items": [item]}))], "paused, pending"),
            (vec!["enable", "role:match"], vec![(200, json!({"was_off": false}))], "role:match was not switched off"),
        ];
        for (words, answers, expected) in cases {
            let server = FakeServer::start(answers).await;
            let (terminal, captured) = Terminal::captured();
            let args = <TestCli as clap::Parser>::parse_from([vec!["switch"], words].concat()).args;
            args.run(&terminal, &server.client()).await.expect("it works");
            assert!(captured.text().contains(expected), "{}", captured.text());
        }
    }
}
