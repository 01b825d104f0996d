//! Lists the problems that need an operator now.

use serde_json::Value;

use crate::{
    client::Client,
    failure::Outcome,
    terminal::{Colour, Terminal, printable},
};

/// Arguments of `tocsin attention`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Prints the entries, most urgent first.
    ///
    /// # Errors
    /// If the server does not respond.
    pub async fn run(self, terminal: &Terminal, client: &Client) -> Outcome {
        let found = client.get("/v1/attention", &[]).await?;
        let items = found["items"].as_array().cloned().unwrap_or_default();
        if self.json {
            return Ok(terminal.json(&items)?);
        }
        if items.is_empty() {
            return Ok(terminal.line("nothing needs attention")?);
        }
        for item in &items {
            let text = |name: &str| printable(item[name].as_str().unwrap_or_default()).into_owned();
            let urgency = match item["urgency"].as_str() {
                Some("now") => terminal.paint(Colour::Red, "now "),
                Some("soon") => terminal.paint(Colour::Yellow, "soon"),
                _ => terminal.paint(Colour::Green, "note"),
            };
            terminal.line(format_args!("{urgency}  {}: {}", text("what"), text("text")))?;
            if item["cause"] != Value::Null {
                terminal.line(format_args!("      cause: {}", text("cause")))?;
            }
            terminal.line(format_args!("      {}", text("advice")))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::commands::fake_server::FakeServer;

    #[tokio::test]
    async fn each_thing_has_its_cause_and_its_advice() {
        let item = json!({"urgency": "now", "what": "slow-pickup", "text": "events wait", "cause": "a slow disk", "advice": "another"});
        for (answer, expected) in [
            (json!({"items": [item]}), "slow-pickup: events wait\n      cause: a slow disk\n      another"),
            (json!({"items": []}), "nothing needs attention"),
        ] {
            let server = FakeServer::start(vec![(200, answer)]).await;
            let (terminal, captured) = Terminal::captured();
            Args { json: false }.run(&terminal, &server.client()).await.expect("it works");
            assert!(captured.text().contains(expected), "{}", captured.text());
        }
    }
}
