//! Command `feedback`: passes a mail that came back to the server, and lists the log of feedback.

use std::io::Read;

use clap::Subcommand;
use reqwest::{Method, StatusCode, header};
use serde_json::Value;

use super::lists::ItemList;
use crate::{
    client::{Client, present_parameters, problem, with_query},
    failure::{Exit, Failure, Outcome},
    terminal::{Terminal, printable},
};

/// Arguments of `tocsin feedback`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Pass a mail from standard input to the server
    #[command(after_help = "Exit codes are those of sysexits.h: 67 if the recipient is no return address, 75 if the \
mail server should try again.

Examples:
  tocsin feedback mail --recipient \"$ORIGINAL_RECIPIENT\" < bounce.eml
  In master.cf of Postfix:
  tocsin unix - n n - 4 pipe flags=Rq user=tocsin argv=/usr/bin/tocsin feedback mail --recipient ${recipient}")]
    Mail {
        /// Recipient from the envelope of the mail: a return address [default: a complaint names it]
        #[arg(long, value_name = "ADDRESS")]
        recipient: Option<String>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// List bounces, complaints and other reports
    List {
        /// Class to filter by: challenge, blocked, soft, hard, unsubscribe or complaint
        #[arg(long)]
        class: Option<String>,
        /// Mail address to filter by
        #[arg(long, conflicts_with = "target")]
        address: Option<String>,
        /// Target to filter by, such as device/ada/phone
        #[arg(long)]
        target: Option<String>,
        /// Notification batch to filter by, such as nb-3
        #[arg(long, value_name = "ID")]
        batch: Option<String>,
        /// Maximum number of rows
        #[arg(long, default_value_t = 1000, value_name = "COUNT")]
        limit: usize,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

/// Longest mail that is passed on.
const MAIL_BYTES_MAX: u64 = 10 << 20;

impl Args {
    /// Runs the command.
    ///
    /// # Errors
    /// If the server refuses the request.
    pub async fn run(self, terminal: &Terminal, client: &Client) -> Outcome {
        match self.what {
            Action::Mail { recipient, json } => {
                let mut mail = Vec::new();
                // The rest of a longer mail is read, so that its sender gets no broken pipe, and left out.
                let mut input = std::io::stdin().lock();
                let read = input.by_ref().take(MAIL_BYTES_MAX).read_to_end(&mut mail);
                let read = read.and_then(|_| std::io::copy(&mut input, &mut std::io::sink()));
                read.map_err(|error| later(Failure::failed("cannot read the mail").because(&error)))?;
                pass(terminal, client, recipient, mail, json).await
            }
            Action::List { class, address, target, batch, limit, json } => {
                let target = target.or_else(|| address.map(|address| format!("address/smtp/{address}")));
                let named = [("class", &class), ("target", &target), ("batch", &batch)];
                let items = client.list("/v1/feedback", &present_parameters(&named), limit).await?;
                let heads = ["at", "class", "target", "effect", "origin", "notification", "status", "detail"];
                ItemList { items, limit, json }
                    .show(terminal, "no feedback", &heads, |item| heads.iter().map(|name| text(&item[*name])).collect())
            }
        }
    }
}

/// Passes a mail to the server. Failures have the exit codes that mail servers know.
async fn pass(terminal: &Terminal, client: &Client, recipient: Option<String>, mail: Vec<u8>, json: bool) -> Outcome {
    let path = with_query("/v1/feedback-mails", &present_parameters(&[("recipient", &recipient)]));
    let request = client.request(Method::POST, &path).header(header::CONTENT_TYPE, "message/rfc822").body(mail);
    let answer = request.send().await.map_err(|error| later(client.unreachable(&error)))?;
    if !answer.status().is_success() {
        let is_recipient = answer.status() == StatusCode::UNPROCESSABLE_ENTITY;
        let failure = problem(answer).await.failure();
        return Err(match is_recipient {
            true => Failure { exit: Exit::NoRecipient, ..failure },
            false => later(failure),
        });
    }
    let results = client.json(answer).await.map_err(later)?;
    if json {
        return Ok(terminal.json(&results)?);
    }
    for item in results["items"].as_array().into_iter().flatten() {
        let count = match (item["count"].as_u64(), item["limit"].as_u64()) {
            (Some(count), Some(limit)) => format!(" {count} of {limit}"),
            _ => String::new(),
        };
        let (class, effect) = (text(&item["class"]), text(&item["effect"]));
        terminal.line(format_args!("{class}: {effect}{count} {}", text(&item["target"])))?;
    }
    Ok(())
}

/// A failure after which the mail server tries again.
fn later(failure: Failure) -> Failure {
    Failure { exit: Exit::TryLater, ..failure }
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => printable(text).into_owned(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use serde_json::json;

    use super::*;
    use crate::commands::fake_server;

    async fn check(args: &[&str], answers: Vec<(u16, Value)>, expected: Expect) {
        let run = async |args: Args, terminal: &Terminal, client: &Client| args.run(terminal, client).await;
        fake_server::check("feedback", args, answers, run, expected).await;
    }

    #[tokio::test]
    async fn a_list_shows_what_each_report_did() {
        let items = json!([
            {"class": "hard", "target": "address/smtp/bob@example.org", "at": "2026-11-21T09:30:00Z", "stage": "report",
             "counts": true, "effect": "suppressed", "origin": "mail", "detail": "550 5.1.1 no such user",
             "status": "5.1.1", "notification": "n-3-41", "subscriber": "bob", "device": "home"},
        ]);
        check(
            &["list", "--class", "hard", "--address", "bob@example.org"],
            vec![(200, json!({"items": items}))],
            expect![[r#"
                at                    class  target                        effect      origin  notification  status  detail
                2026-11-21T09:30:00Z  hard   address/smtp/bob@example.org  suppressed  mail    n-3-41        5.1.1   550 5.1.1 no such user
                GET /v1/feedback?class=hard&target=address%2Fsmtp%2Fbob%40example.org&limit=1000"#]],
        )
        .await;
    }
}
