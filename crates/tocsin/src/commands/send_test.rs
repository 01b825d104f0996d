//! Command `send-test`: sends one test notification and prints the receiver's response.

use serde_json::{Value, json};

use super::preview::{SampleArgs, show_about};
use crate::{
    client::Client,
    failure::{Failure, Outcome},
    terminal::{Colour, Terminal, printable},
};

/// Arguments of `tocsin send-test`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    sample: SampleArgs,
    /// Address that replaces the device's
    #[arg(long, value_name = "ADDRESS")]
    to: Option<String>,
}

impl Args {
    /// Sends the notification and prints the result.
    ///
    /// # Errors
    /// If an argument is invalid, the server refuses the request, or the receiver rejects the message.
    pub async fn run(self, terminal: &Terminal, client: &Client) -> Outcome {
        let mut body = self.sample.body()?;
        if let Some(to) = &self.to {
            body.insert("address".to_owned(), json!(to));
        }
        let sent = client.post(&self.sample.path("send-test"), &Value::Object(body)).await?;
        let outcome = sent["outcome"].as_str().unwrap_or_default();
        let reason = printable(sent["reason"].as_str().unwrap_or("the receiver gave no reason")).into_owned();
        if self.sample.json {
            terminal.json(&sent)?;
        } else {
            show_about(terminal, &sent)?;
            if outcome == "delivered" {
                let said = sent["reason"].as_str().map(|said| format!(": {}", printable(said))).unwrap_or_default();
                terminal.line(terminal.paint(Colour::Green, format_args!("delivered{said}")))?;
            }
        }
        match outcome {
            "delivered" => Ok(()),
            _ => Err(Failure::failed(format!("the test was {outcome}: {reason}"))),
        }
    }
}
