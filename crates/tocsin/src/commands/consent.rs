//! Command `consent`: shows the consent of subscriptions and its evidence; requests, confirms and withdraws it.

use clap::Subcommand;
use serde_json::{Map, Value, json};

use super::lists::{ItemList, author};
use crate::{
    client::{Client, segment},
    failure::Outcome,
    terminal::{Terminal, printable},
};

/// Arguments of `tocsin consent`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Show the consent of a subscription, with its evidence
    Show {
        /// Subscription, such as s-15
        subscription: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// List the evidence of a subscriber
    List {
        /// Subscriber
        subscriber: String,
        /// Maximum number of rows
        #[arg(long, default_value_t = 1000, value_name = "COUNT")]
        limit: usize,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Request the consent, or send its message again
    Request {
        /// Subscription, such as s-15
        subscription: String,
    },
    /// Confirm the consent by a code or with a proof
    #[command(after_help = "Examples:
  tocsin consent confirm s-15 --code 271828
  tocsin consent confirm s-15 --proof 'paper form 2026-117'")]
    Confirm {
        /// Subscription, such as s-15
        subscription: String,
        /// Code of the message
        #[arg(long, required_unless_present = "proof", conflicts_with = "proof")]
        code: Option<String>,
        /// Proof of the consent
        #[arg(long)]
        proof: Option<String>,
    },
    /// Withdraw the consent and disable the subscription
    Withdraw {
        /// Subscription, such as s-15
        subscription: String,
        /// Note for the evidence
        #[arg(long)]
        note: Option<String>,
    },
}

impl Args {
    /// Runs the command.
    ///
    /// # Errors
    /// If the server refuses the request.
    pub async fn run(self, terminal: &Terminal, client: &Client) -> Outcome {
        let path = |subscription: &str, act: &str| format!("/v1/subscriptions/{}/consent{act}", segment(subscription));
        match self.what {
            Action::Show { subscription, json } => {
                let found = client.get(&path(&subscription, ""), &[]).await?;
                if json {
                    return Ok(terminal.json(&found)?);
                }
                let state = found["state"].as_str().unwrap_or("no consent needed");
                terminal.line(format_args!("{}: {}", printable(&subscription), printable(state)))?;
                if let Some(request) = found["request"].as_object() {
                    for (name, value) in request {
                        terminal.line(format_args!("{name:>12}  {}", text(value)))?;
                    }
                }
                let items = found["evidence"].as_array().cloned().unwrap_or_default();
                ItemList { limit: items.len() + 1, items, json }.show(terminal, "no evidence", &HEADS, row)
            }
            Action::List { subscriber, limit, json } => {
                let path = format!("/v1/subscribers/{}/consent", segment(&subscriber));
                let items = client.list(&path, &[], limit).await?;
                ItemList { items, limit, json }.show(terminal, "no evidence", &HEADS, row)
            }
            Action::Request { subscription } => {
                let answer = client.post(&path(&subscription, "/request"), &json!({})).await?;
                changed(terminal, &subscription, &answer)
            }
            Action::Confirm { subscription, code, proof } => {
                let given = [("code", code), ("proof", proof)];
                let answer = client.post(&path(&subscription, "/confirm"), &body(given)).await?;
                changed(terminal, &subscription, &answer)
            }
            Action::Withdraw { subscription, note } => {
                let answer = client.post(&path(&subscription, "/withdraw"), &body([("proof", note)])).await?;
                changed(terminal, &subscription, &answer)
            }
        }
    }
}

const HEADS: [&str; 8] = ["at", "subscription", "class", "act", "way", "by", "address", "version"];

fn body(given: impl IntoIterator<Item = (&'static str, Option<String>)>) -> Value {
    let given = given.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?.into())));
    Value::Object(Map::from_iter(given))
}

fn changed(terminal: &Terminal, subscription: &str, answer: &Value) -> Outcome {
    let state = answer["state"].as_str().unwrap_or("disabled; it needs no consent");
    Ok(terminal.line(format_args!("{} is {}", printable(subscription), printable(state)))?)
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => printable(text).into_owned(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

fn row(item: &Value) -> Vec<String> {
    let address = match (item["address"].as_str(), item["address_hash"].as_str()) {
        (Some(address), _) => printable(address).into_owned(),
        (None, Some(hash)) => format!("hash {}", printable(hash)),
        (None, None) => String::new(),
    };
    let class = format!("{}/{}", text(&item["application"]), text(&item["class"]));
    let [at, subscription, act, way, version] =
        ["at", "subscription", "act", "way", "version"].map(|name| text(&item[name]));
    vec![at, subscription, class, act, way, author(item, "by"), address, version]
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;
    use crate::commands::fake_server;

    async fn check(args: &[&str], answers: Vec<(u16, Value)>, expected: Expect) {
        let run = async |args: Args, terminal: &Terminal, client: &Client| args.run(terminal, client).await;
        fake_server::check("consent", args, answers, run, expected).await;
    }

    fn evidence() -> Value {
        json!({"number": 1, "subscriber": "ann", "subscription": "s-15", "application": "shop", "class": "news",
            "act": "requested", "at": "2026-11-21T09:30:00Z", "way": "api", "by": "subscriber",
            "address": "ann@example.org", "version": "v1"})
    }

    #[tokio::test]
    async fn a_consent_is_shown_with_its_evidence() {
        let request = json!({"number": 1, "messages": 1});
        let found = json!({"subscription": "s-15", "state": "pending", "request": request, "evidence": [evidence()]});
        check(
            &["show", "s-15"],
            vec![(200, found)],
            expect![[r#"
                s-15: pending
                      number  1
                    messages  1
                at                    subscription  class      act        way  by          address          version
                2026-11-21T09:30:00Z  s-15          shop/news  requested  api  subscriber  ann@example.org  v1
                GET /v1/subscriptions/s-15/consent"#]],
        )
        .await;
        let mut erased = evidence();
        erased.as_object_mut().expect("an object").remove("address");
        erased["address_hash"] = "1f2e".into();
        check(
            &["list", "ann"],
            vec![(200, json!({"items": [erased]}))],
            expect![[r#"
                at                    subscription  class      act        way  by          address    version
                2026-11-21T09:30:00Z  s-15          shop/news  requested  api  subscriber  hash 1f2e  v1
                GET /v1/subscribers/ann/consent?limit=1000"#]],
        )
        .await;
    }

    #[tokio::test]
    async fn a_consent_is_requested_confirmed_and_withdrawn() {
        let is = |state: &str| vec![(200, json!({"subscription": "s-15", "state": state, "evidence": []}))];
        check(
            &["request", "s-15"],
            is("pending"),
            expect![[r#"
                s-15 is pending
                POST /v1/subscriptions/s-15/consent/request [application/json] {}"#]],
        )
        .await;
        check(
            &["confirm", "s-15", "--code", "271828"],
            is("confirmed"),
            expect![[r#"
                s-15 is confirmed
                POST /v1/subscriptions/s-15/consent/confirm [application/json] {"code":"271828"}"#]],
        )
        .await;
        check(
            &["withdraw", "s-15", "--note", "asked by phone"],
            is("withdrawn"),
            expect![[r#"
                s-15 is withdrawn
                POST /v1/subscriptions/s-15/consent/withdraw [application/json] {"proof":"asked by phone"}"#]],
        )
        .await;
    }
}
