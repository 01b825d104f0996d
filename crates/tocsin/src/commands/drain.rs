//! Command `drain`: closes the intake and waits until due work is delivered.

use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::{Value, json};
use tocsin_model::plural::plural;

use crate::{
    client::Client,
    configuration::Period,
    failure::{Failure, Outcome},
    terminal::{Colour, Terminal, printable, thousands},
};

/// Polling interval of the drain state.
const PAUSE: Duration = Duration::from_millis(250);

/// Arguments of `tocsin drain`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Open the intake again
    #[arg(long, conflicts_with_all = ["timeout", "reason"])]
    end: bool,
    /// Maximum time to wait for due work; 0s only closes the intake
    #[arg(long, value_name = "DURATION", default_value = "5m")]
    timeout: Period,
    /// Reason, shown to other operators
    #[arg(long, default_value = "drained")]
    reason: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Drains the server, or ends a drain.
    ///
    /// # Errors
    /// If the key has no permission, or due work is not delivered in time.
    pub async fn run(self, terminal: &Terminal, client: &Client) -> Outcome {
        if self.end {
            let answer = client.json(client.send(client.request(Method::DELETE, "/v1/drain")).await?).await?;
            let was = if answer["was_closed"] == true { "is open again" } else { "was open" };
            return Ok(terminal.line(format_args!("the intake {was}"))?);
        }
        let began = Instant::now();
        let mut state = client.put("/v1/drain", &json!({"reason": self.reason})).await?;
        while state["drained"] != true && began.elapsed() < self.timeout.0 {
            tokio::time::sleep(PAUSE.min(self.timeout.0.saturating_sub(began.elapsed()))).await;
            state = client.get("/v1/drain", &[]).await?;
        }
        if self.json {
            terminal.json(&state)?;
        } else {
            show(terminal, &state)?;
        }
        match state["drained"] == true || self.timeout.0.is_zero() {
            true => Ok(()),
            false => Err(Failure::failed(format!(
                "due work was not delivered within {}; the intake stays closed: run the command again, or reopen it with --end",
                self.timeout
            ))),
        }
    }
}

/// Prints the remaining work.
fn show(terminal: &Terminal, state: &Value) -> Outcome {
    let count = |name: &str| state[name].as_u64().unwrap_or_default();
    let head = match state["drained"] == true {
        true => {
            terminal.paint(Colour::Green, "drained: the intake is closed and all due work is delivered").to_string()
        }
        false => terminal.paint(Colour::Yellow, "the intake is closed; due work is not delivered yet").to_string(),
    };
    terminal.line(head)?;
    let batches = ["event batch", "event batches"];
    let items = ["work item", "work items"];
    let deliveries = ["message delivery", "message deliveries"];
    for (name, [one, many], what) in [
        ("event_batches", batches, " to match"),
        ("due", items, " due or in flight"),
        ("later", items, " due later"),
        ("suspended", ["suspended notification", "suspended notifications"], ": `tocsin suspended list`"),
        ("failed_batches", ["failed event batch", "failed event batches"], ": `tocsin firings list`"),
        ("messages_due", deliveries, " due or in flight"),
        ("messages_later", deliveries, " due later"),
        ("messages_held", deliveries, " of send ports on hold or off"),
    ] {
        let found = count(name);
        if found > 0 {
            terminal.line(format_args!("{:>12}  {}{what}", thousands(found), plural(found, one, many)))?;
        }
    }
    if let Some(next) = state["next_due_at"].as_str() {
        terminal.line(format_args!("{:>12}  next due at {}", "", printable(next)))?;
    }
    let held = state["held"].as_array().map(Vec::as_slice).unwrap_or_default();
    for component in held.iter().filter_map(Value::as_str) {
        terminal.line(format_args!("{:>12}  {} is switched off; its work stays queued", "", printable(component)))?;
    }
    Ok(())
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

    async fn run(words: &[&str], answers: Vec<(u16, Value)>) -> (String, Outcome) {
        let server = FakeServer::start(answers).await;
        let (terminal, captured) = Terminal::captured();
        let args = <TestCli as clap::Parser>::parse_from([&["drain"], words].concat()).args;
        let outcome = args.run(&terminal, &server.client()).await;
        (captured.text(), outcome)
    }

    #[tokio::test]
    async fn it_waits_until_due_work_is_delivered_and_prints_the_rest() {
        let state = |drained: bool, due: u64| {
            (
                200,
                json!({"drained": drained, "closed": true, "event_batches": 0, "due": due, "later": 3,
                "next_due_at": "2027-01-04T08:00:00Z", "suspended": 1, "messages_later": 4, "messages_due": due, "held": ["channel:stock/mail"]}),
            )
        };
        let (output, outcome) = run(&[], vec![state(false, 2), state(false, 1), state(true, 0)]).await;
        outcome.expect("drained");
        for expected in [
            "drained:",
            "3  work items due later",
            "4  message deliveries due later",
            "2027-01-04T08:00:00Z",
            "1  suspended notification:",
            "channel:stock/mail",
        ] {
            assert!(output.contains(expected), "{expected}: {output}");
        }
        assert!(!output.contains("due or in flight"), "{output}");
        let (output, outcome) = run(&["--timeout", "0s"], vec![state(false, 2)]).await;
        outcome.expect("the intake is closed");
        assert!(output.contains("2  work items due"), "{output}");
        let (_, outcome) = run(&["--timeout", "1ms"], vec![state(false, 2); 9]).await;
        assert!(outcome.expect_err("in time").message.contains("--end"));
        let (output, outcome) = run(&["--end"], vec![(200, json!({"was_closed": true}))]).await;
        outcome.expect("opened");
        assert_eq!(output.trim(), "the intake is open again");
    }
}
