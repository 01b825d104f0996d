//! Sends again what had failed: counts it, asks, and has the server do it.

use reqwest::Method;
use serde_json::{Map, Value};

use crate::{
    client::Client,
    failure::{Failure, Outcome},
    terminal::{Terminal, thousands},
};

/// Arguments of `tocsin resend`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only this notification, such as `n-3-41`
    notification: Option<String>,
    #[command(flatten)]
    range: Range,
    /// Only for this subscriber
    #[arg(long)]
    subscriber: Option<String>,
    /// Only for this device of the subscriber
    #[arg(long, requires = "subscriber")]
    device: Option<String>,
    /// All that failed
    #[arg(long)]
    all: bool,
}

/// Arguments of `tocsin recover`.
#[derive(Debug, clap::Args)]
pub struct Recover {
    /// The subscriber
    subscriber: String,
    /// Its device
    device: String,
    #[command(flatten)]
    range: Range,
}

#[derive(Debug, clap::Args)]
struct Range {
    /// Only what failed at this time of RFC 3339 or later
    #[arg(long)]
    since: Option<String>,
    /// Only what failed before this time
    #[arg(long)]
    until: Option<String>,
    /// Only of this application
    #[arg(long)]
    application: Option<String>,
    /// Only of this channel
    #[arg(long)]
    channel: Option<String>,
    /// Only of this notification class
    #[arg(long)]
    class: Option<String>,
    /// Only what failed with words that contain this text
    #[arg(long)]
    reason: Option<String>,
    /// What has become of it: refused, suspended, expired, ended; may be repeated
    #[arg(long = "outcome")]
    outcomes: Vec<String>,
    /// As other notifications, with ids and a time to live of their own
    #[arg(long)]
    as_new: bool,
    /// The same request twice, by this key, is carried out once
    #[arg(long)]
    idempotency_key: Option<String>,
    /// Only counts
    #[arg(long)]
    dry_run: bool,
    /// Does not ask
    #[arg(long, short)]
    yes: bool,
}

impl Range {
    fn body(&self, named: &[(&str, &Option<String>)]) -> Map<String, Value> {
        let own = [
            ("since", &self.since),
            ("until", &self.until),
            ("application", &self.application),
            ("channel", &self.channel),
            ("class", &self.class),
            ("reason", &self.reason),
        ];
        let texts = named.iter().chain(&own);
        let mut body: Map<String, Value> =
            texts.filter_map(|(name, text)| Some(((*name).to_owned(), text.as_deref()?.into()))).collect();
        if !self.outcomes.is_empty() {
            body.insert("outcomes".into(), self.outcomes.clone().into());
        }
        if self.as_new {
            body.insert("as_new".into(), true.into());
        }
        body
    }

    async fn send(&self, terminal: &Terminal, client: &Client, body: Map<String, Value>) -> Outcome {
        let many = count(client, &body).await?;
        let what = match many {
            0 => return Ok(terminal.line("nothing that failed is meant")?),
            1 => "1 notification".to_owned(),
            many => format!("{} notifications", thousands(many)),
        };
        if self.dry_run {
            return Ok(terminal.line(format_args!("{what} would be sent again"))?);
        }
        if !self.yes && !terminal.confirm(&format!("send {what} again?"))? {
            return Err(Failure::failed("nothing was sent; --yes sends without asking"));
        }
        let mut request = client.request(Method::POST, "/v1/resends").json(&Value::Object(body));
        if let Some(key) = &self.idempotency_key {
            request = request.header("idempotency-key", key);
        }
        let answer = client.json(client.send(request).await?).await?;
        let id = answer["id"].as_u64().unwrap_or_default();
        Ok(terminal.line(format_args!("{what} are sent again, as request {id}"))?)
    }
}

/// Counts to the end, request by request, since one looks at so many batches only.
async fn count(client: &Client, body: &Map<String, Value>) -> Outcome<u64> {
    let mut body = body.clone();
    let mut many = 0;
    loop {
        let told = client.post("/v1/resends/preview", &Value::Object(body.clone())).await?;
        many += told["notifications"]
            .as_u64()
            .ok_or_else(|| Failure::failed("the answer has no count; is this a Tocsin server?"))?;
        match told["next"].as_str() {
            Some(next) => drop(body.insert("after".into(), next.into())),
            None => return Ok(many),
        }
    }
}

impl Args {
    /// Counts, asks and sends.
    ///
    /// # Errors
    /// The server does not do it, or the person at the terminal said no.
    pub async fn run(self, terminal: &Terminal, client: &Client) -> Outcome {
        let named = [("notification", &self.notification), ("subscriber", &self.subscriber), ("device", &self.device)];
        let mut body = self.range.body(&named);
        if self.all {
            body.insert("all".into(), true.into());
        }
        let narrows = |name: &String| !["until", "outcomes", "as_new"].contains(&name.as_str());
        if !body.keys().any(narrows) {
            return Err(Failure::usage(
                "say what is to be sent again: a notification, or a condition such as --since, or --all",
            ));
        }
        self.range.send(terminal, client, body).await
    }
}

impl Recover {
    /// Counts, asks and sends.
    ///
    /// # Errors
    /// The server does not do it, or the person at the terminal said no.
    pub async fn run(self, terminal: &Terminal, client: &Client) -> Outcome {
        let (subscriber, device) = (Some(self.subscriber), Some(self.device));
        let body = self.range.body(&[("subscriber", &subscriber), ("device", &device)]);
        self.range.send(terminal, client, body).await
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
        fake_server::check("resend", args, answers, run, expected).await;
    }

    #[tokio::test]
    async fn it_is_counted_before_it_is_sent() {
        let counted =
            |many: u64, next: Option<&str>| (200, json!({"notifications": many, "batches": 10, "next": next}));
        check(
            &["--application", "quakes", "--reason", "503", "--since", "2026-11-20T00:00:00Z", "--yes", "--idempotency-key", "k1"],
            vec![counted(1_000, Some("x")), counted(34, None), (202, json!({"id": 3}))],
            expect![[r#"
                1,034 notifications are sent again, as request 3
                POST /v1/resends/preview [application/json] {"since":"2026-11-20T00:00:00Z","application":"quakes","reason":"503"}
                POST /v1/resends/preview [application/json] {"since":"2026-11-20T00:00:00Z","application":"quakes","reason":"503","after":"x"}
                POST /v1/resends [application/json] [k1] {"since":"2026-11-20T00:00:00Z","application":"quakes","reason":"503"}"#]],
        )
        .await;
        check(
            &["n-3-41", "--dry-run"],
            vec![counted(1, None)],
            expect![[r#"
                1 notification would be sent again
                POST /v1/resends/preview [application/json] {"notification":"n-3-41"}"#]],
        )
        .await;
        check(
            &["--outcome", "refused", "--dry-run"],
            vec![],
            expect![[r#"
                failed: say what is to be sent again: a notification, or a condition such as --since, or --all
            "#]],
        )
        .await;
        check(
            &["--all"],
            vec![counted(7, None)],
            expect![[r#"
                failed: nothing was sent; --yes sends without asking
                POST /v1/resends/preview [application/json] {"all":true}"#]],
        )
        .await;
    }

    #[tokio::test]
    async fn an_endpoint_is_recovered() {
        let run = async |args: Recover, terminal: &Terminal, client: &Client| args.run(terminal, client).await;
        let answers = vec![(200, json!({"notifications": 0, "batches": 1}))];
        let expected = expect![[r#"
            nothing that failed is meant
            POST /v1/resends/preview [application/json] {"subscriber":"ann","device":"hook","since":"2026-11-20T00:00:00Z"}"#]];
        let args = ["ann", "hook", "--since", "2026-11-20T00:00:00Z"];
        fake_server::check("recover", &args, answers, run, expected).await;
    }
}
