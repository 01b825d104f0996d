//! Sends one mail to one address, through the built-in application `direct-mail`.
//!
//! The message is processed like any event: it is stored, matched, delivered with retries, and can be traced.

use std::io::Read;

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::{
    client::{Client, problem, segment},
    failure::{Failure, Outcome},
    terminal::{Colour, Terminal, printable},
};

/// Name of the built-in application.
const APPLICATION: &str = "direct-mail";
/// Its definition, with variables for the SMTP server and the sender.
const DEFINITION: &str = include_str!("send/direct-mail.yaml");
/// SMTP server of a new application: the one that `tocsin mailbox` starts.
const SMTP_DEFAULT: &str = "127.0.0.1:2525";
/// Sender of a new application.
const FROM_DEFAULT: &str = "tocsin@localhost";
/// Longest text, in bytes. Longer texts belong into an application of their own.
const TEXT_BYTES_MAX: u64 = 200_000;

/// Arguments of `tocsin send`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  tocsin send --to ada@example.org --subject Hello --text 'It works.'")]
pub struct Args {
    /// Address of the recipient
    #[arg(long, value_name = "ADDRESS")]
    to: String,
    /// Subject
    #[arg(long, default_value = "")]
    subject: String,
    /// Text of the message; - reads it from standard input, at most 200,000 bytes
    #[arg(long)]
    text: String,
    /// SMTP server, kept for later messages [default at the first use: 127.0.0.1:2525, where `tocsin mailbox` listens]
    #[arg(long, value_name = "HOST:PORT")]
    smtp: Option<String>,
    /// Sender, kept for later messages [default at the first use: tocsin@localhost]
    #[arg(long, value_name = "ADDRESS")]
    from: Option<String>,
}

impl Args {
    /// Applies the application if needed, stores the recipient as a subscriber, and submits the message as an event.
    ///
    /// # Errors
    /// The text cannot be read, an argument is invalid, or the server refuses a request.
    pub async fn run(self, terminal: &Terminal, client: &Client) -> Outcome {
        let text = self.text()?;
        self.apply(terminal, client).await?;
        let subscriber = format!("direct-mail:{}", self.to);
        let draft = json!({
            "id": subscriber,
            "devices": {"mail": {"channel": "direct_mail", "address": self.to}},
        });
        let stored = client.exchange(client.request(Method::POST, "/v1/subscribers").json(&draft)).await?;
        // 409: an earlier message went to the same address.
        if !stored.status().is_success() && stored.status() != StatusCode::CONFLICT {
            return Err(problem(stored).await.failure());
        }
        let subscription = json!({
            "application": APPLICATION, "class": "recipient", "subscriber": subscriber, "key": "direct",
            "values": {"address": self.to},
        });
        client.post("/v1/subscriptions", &subscription).await?;
        let event = json!({"to": self.to, "subject": self.subject, "text": text});
        let accepted = client.post(&format!("/v1/applications/{APPLICATION}/events/message"), &event).await?;
        let batch = printable(accepted["batch"].as_str().unwrap_or_default()).into_owned();
        terminal.line(terminal.paint(Colour::Green, format_args!("message to {} accepted", printable(&self.to))))?;
        Ok(terminal.line(format_args!("`tocsin trace {batch}` shows its delivery"))?)
    }

    fn text(&self) -> Outcome<String> {
        if self.text != "-" {
            return Ok(self.text.clone());
        }
        let mut text = String::new();
        std::io::stdin()
            .lock()
            .take(TEXT_BYTES_MAX + 1)
            .read_to_string(&mut text)
            .map_err(|error| Failure::failed("cannot read the text from standard input").because(&error))?;
        if text.len() as u64 > TEXT_BYTES_MAX {
            return Err(Failure::usage(format!("the text is longer than {TEXT_BYTES_MAX} bytes; shorten it")));
        }
        Ok(text)
    }

    /// Applies the definition if the application does not exist, or if a server or a sender is given. The other of the two
    /// stays as it is.
    async fn apply(&self, terminal: &Terminal, client: &Client) -> Outcome {
        let path = format!("/v1/applications/{}", segment(APPLICATION));
        let found = client.exchange(client.request(Method::GET, &path)).await?;
        let applied = match found.status() {
            status if status.is_success() => client.json(found).await?["definition"].as_str().map(str::to_owned),
            StatusCode::NOT_FOUND => None,
            _ => return Err(problem(found).await.failure()),
        };
        if applied.is_some() && self.smtp.is_none() && self.from.is_none() {
            return Ok(());
        }
        let kept = |name: &str| applied.as_deref().and_then(|definition| option(definition, name));
        let smtp = self.smtp.clone().or_else(|| Some(format!("{}:{}", kept("host")?, kept("port")?)));
        let (smtp, from) = (smtp.unwrap_or_else(|| SMTP_DEFAULT.into()), self.from.clone().or_else(|| kept("from")));
        let (smtp, from) = (smtp.as_str(), from.as_deref().unwrap_or(FROM_DEFAULT));
        let (host, port) = smtp
            .rsplit_once(':')
            .filter(|(host, _)| !host.is_empty())
            .and_then(|(host, port)| Some((host.trim_matches(['[', ']']), port.parse::<u16>().ok()?)))
            .ok_or_else(|| {
                Failure::usage(format!("--smtp {} is not HOST:PORT, such as mail.example.org:25", printable(smtp)))
            })?;
        // A JSON string is a YAML string.
        let definition = DEFINITION
            .replace("${HOST}", &Value::from(host).to_string())
            .replace("${PORT}", &port.to_string())
            .replace("${FROM}", &Value::from(from).to_string());
        let request = client.request(Method::PUT, &path).header("content-type", "application/yaml").body(definition);
        client.send(request).await?;
        Ok(terminal.line(format_args!("application {APPLICATION} applied: mail from {from} by {smtp}"))?)
    }
}

/// An option of the channel in a definition that this command applied.
fn option(definition: &str, name: &str) -> Option<String> {
    let value = definition.lines().find_map(|line| line.trim_start().strip_prefix(name)?.strip_prefix(": "))?;
    let value = serde_json::from_str::<Value>(value).ok()?;
    Some(value.as_str().map_or_else(|| value.to_string(), str::to_owned))
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;
    use crate::commands::fake_server;

    async fn check(args: &[&str], answers: Vec<(u16, Value)>, expected: Expect) {
        let run = async |args: Args, terminal: &Terminal, client: &Client| args.run(terminal, client).await;
        fake_server::check("send", args, answers, run, expected).await;
    }

    #[test]
    fn the_definition_is_valid() {
        let text = DEFINITION
            .replace("${HOST}", "\"127.0.0.1\"")
            .replace("${PORT}", "2525")
            .replace("${FROM}", "\"tocsin@localhost\"");
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("direct-mail.yaml");
        std::fs::write(&file, text).expect("written");
        let found = crate::platform::examine(&file, &|_: &str| None, &Default::default()).expect("it can be read");
        assert!(found.problems.is_empty(), "{:?}", found.problems);
    }

    #[tokio::test]
    async fn a_message_is_an_event_of_the_built_in_application() {
        let args = ["--to", "ada@example.org", "--subject", "Hi", "--text", "Hello"];
        let accepted = (202, json!({"batch": "eb-1", "events": 1, "duplicate": false}));
        let applied =
            (200, json!({"definition": "channels:\n  host: \"mail\"\n  port: 25\n  from: \"ops@example.org\"\n"}));
        let later = vec![applied, (409, Value::Null), (200, Value::Null), accepted];
        check(&args, later, expect![[r#"
            message to ada@example.org accepted
            `tocsin trace eb-1` shows its delivery
            GET /v1/applications/direct-mail
            POST /v1/subscribers [application/json] {"id":"direct-mail:ada@example.org","devices":{"mail":{"channel":"direct_mail","address":"ada@example.org"}}}
            POST /v1/subscriptions [application/json] {"application":"direct-mail","class":"recipient","subscriber":"direct-mail:ada@example.org","key":"direct","values":{"address":"ada@example.org"}}
            POST /v1/applications/direct-mail/events/message [application/json] {"to":"ada@example.org","subject":"Hi","text":"Hello"}"#]]).await;
        check(
            &[&args[..], &["--smtp", "mail"]].concat(),
            vec![(404, Value::Null)],
            expect![[r#"
                failed: --smtp mail is not HOST:PORT, such as mail.example.org:25
                GET /v1/applications/direct-mail"#]],
        )
        .await;
    }

    #[test]
    fn the_server_and_the_sender_are_read_back_from_the_definition() {
        let text = DEFINITION
            .replace("${HOST}", "\"mail.example.org\"")
            .replace("${PORT}", "25")
            .replace("${FROM}", "\"Ops <ops@example.org>\"");
        let found = ["host", "port", "from"].map(|name| option(&text, name));
        let expected = ["mail.example.org", "25", "Ops <ops@example.org>"];
        assert_eq!(found, expected.map(|value| Some(value.to_owned())));
    }
}
