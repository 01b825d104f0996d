//! Closes the intake, waits until what is due has left, and says what is left.

use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    client::Client,
    configuration::Period,
    failure::{Failure, Outcome},
    terminal::{Colour, Terminal, printable, thousands},
};

/// How often the server is asked how far it has come.
const PAUSE: Duration = Duration::from_millis(250);

/// Arguments of `tocsin drain`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Opens the intake again
    #[arg(long, conflicts_with_all = ["timeout", "reason"])]
    end: bool,
    /// How long to wait until what is due has left; 0s only closes the intake
    #[arg(long, value_name = "DURATION", default_value = "5m")]
    timeout: Period,
    /// Why, for others
    #[arg(long, default_value = "drained")]
    reason: String,
    /// Prints JSON
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Drains the server, or ends that.
    ///
    /// # Errors
    /// The key may not, or not all has left in time.
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
                "not all that is due has left within {}; the intake stays closed: run it again, or open it with --end",
                self.timeout
            ))),
        }
    }
}

/// What is left, for people.
fn show(terminal: &Terminal, state: &Value) -> Outcome {
    let count = |name: &str| state[name].as_u64().unwrap_or_default();
    let head = match state["drained"] == true {
        true => terminal.paint(Colour::Green, "drained: nothing comes in, and all that was due has left").to_string(),
        false => terminal.paint(Colour::Yellow, "nothing comes in; not all has left yet").to_string(),
    };
    terminal.line(head)?;
    for (name, what) in [
        ("event_batches", "event batches wait to be matched"),
        ("due", "work items are due or on their way"),
        ("later", "work items wait for a time to come"),
        ("suspended", "notifications wait for an operator: `tocsin suspended list`"),
        ("failed_batches", "event batches are set aside: `tocsin firings list`"),
    ] {
        if count(name) > 0 {
            terminal.line(format_args!("{:>12}  {what}", thousands(count(name))))?;
        }
    }
    if let Some(next) = state["next_due_at"].as_str() {
        terminal.line(format_args!("{:>12}  the next of them is due at {}", "", printable(next)))?;
    }
    let held = state["held"].as_array().map(Vec::as_slice).unwrap_or_default();
    for component in held.iter().filter_map(Value::as_str) {
        terminal.line(format_args!(
            "{:>12}  {} is switched off, so what waits for it stays",
            "",
            printable(component)
        ))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::fake_server::FakeServer;

    #[derive(clap::Parser)]
    struct Wrapped {
        #[command(flatten)]
        args: Args,
    }

    async fn run(words: &[&str], answers: Vec<(u16, Value)>) -> (String, Outcome) {
        let server = FakeServer::start(answers).await;
        let (terminal, captured) = Terminal::captured();
        let args = <Wrapped as clap::Parser>::parse_from([&["drain"], words].concat()).args;
        let outcome = args.run(&terminal, &server.client()).await;
        (captured.text(), outcome)
    }

    #[tokio::test]
    async fn it_waits_until_what_is_due_has_left_and_tells_what_is_left() {
        let state = |drained: bool, due: u64| {
            (
                200,
                json!({"drained": drained, "closed": true, "event_batches": 0, "due": due, "later": 3,
                "next_due_at": "2027-01-04T08:00:00Z", "suspended": 1, "held": ["channel:stock/mail"]}),
            )
        };
        let (told, outcome) = run(&[], vec![state(false, 2), state(false, 1), state(true, 0)]).await;
        outcome.expect("drained");
        for expected in
            ["drained:", "3  work items wait", "2027-01-04T08:00:00Z", "1  notifications", "channel:stock/mail"]
        {
            assert!(told.contains(expected), "{expected}: {told}");
        }
        assert!(!told.contains("are due or on their way"), "{told}");
        let (told, outcome) = run(&["--timeout", "0s"], vec![state(false, 2)]).await;
        outcome.expect("it is only closed");
        assert!(told.contains("2  work items are due"), "{told}");
        let (_, outcome) = run(&["--timeout", "1ms"], vec![state(false, 2); 9]).await;
        assert!(outcome.expect_err("in time").message.contains("--end"));
        let (told, outcome) = run(&["--end"], vec![(200, json!({"was_closed": true}))]).await;
        outcome.expect("opened");
        assert_eq!(told.trim(), "the intake is open again");
    }
}
