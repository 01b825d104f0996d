//! Commands `resend` and `recover`: counts failed notifications, asks for confirmation, and has the server send them
//! again.

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
    /// Notification to resend, such as `n-3-41`
    notification: Option<String>,
    #[command(flatten)]
    range: Range,
    /// Subscriber to filter by
    #[arg(long)]
    subscriber: Option<String>,
    /// Device of the subscriber to filter by
    #[arg(long, requires = "subscriber")]
    device: Option<String>,
    /// All failed notifications
    #[arg(long)]
    all: bool,
}

/// Arguments of `tocsin recover`.
#[derive(Debug, clap::Args)]
pub struct Recover {
    /// Subscriber
    subscriber: String,
    /// Device of the subscriber
    device: String,
    #[command(flatten)]
    range: Range,
}

#[derive(Debug, clap::Args)]
struct Range {
    /// Earliest time of failure (RFC 3339)
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Time before which the notifications failed
    #[arg(long, value_name = "TIME")]
    until: Option<String>,
    /// Application to filter by
    #[arg(long)]
    application: Option<String>,
    /// Channel to filter by
    #[arg(long)]
    channel: Option<String>,
    /// Notification class to filter by
    #[arg(long)]
    class: Option<String>,
    /// Text that the failure reason must contain
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Outcome to filter by: refused, suspended, expired or ended; repeatable
    #[arg(long = "outcome", value_name = "OUTCOME")]
    outcomes: Vec<String>,
    /// Resend as new notifications, with new ids and times to live
    #[arg(long)]
    as_new: bool,
    /// Idempotency key: a repeated request with the same key is executed once
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
    /// Count the notifications without sending them
    #[arg(long)]
    dry_run: bool,
    /// Confirmation; without it the command asks
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
            0 => return Ok(terminal.line("no failed notifications match")?),
            1 => "1 notification".to_owned(),
            many => format!("{} notifications", thousands(many)),
        };
        if self.dry_run {
            return Ok(terminal.line(format_args!("{what} would be resent"))?);
        }
        if !self.yes && !terminal.confirm(&format!("resend {what}?"))? {
            return Err(Failure::failed("nothing was sent; --yes skips the confirmation"));
        }
        let mut request = client.request(Method::POST, "/v1/resends").json(&Value::Object(body));
        if let Some(key) = &self.idempotency_key {
            request = request.header("idempotency-key", key);
        }
        let answer = client.json(client.send(request).await?).await?;
        let id = answer["id"].as_u64().unwrap_or_default();
        Ok(terminal.line(format_args!("{what} are resent as request {id}"))?)
    }
}

/// Counts page by page, because one request only examines a limited number of batches.
async fn count(client: &Client, body: &Map<String, Value>) -> Outcome<u64> {
    let mut body = body.clone();
    let mut many = 0;
    loop {
        let page = client.post("/v1/resends/preview", &Value::Object(body.clone())).await?;
        many += page["notifications"]
            .as_u64()
            .ok_or_else(|| Failure::failed("the response has no count; is this a Tocsin server?"))?;
        match page["next"].as_str() {
            Some(next) => drop(body.insert("after".into(), next.into())),
            None => return Ok(many),
        }
    }
}

impl Args {
    /// Counts, asks for confirmation and resends.
    ///
    /// # Errors
    /// If the server refuses the request, or the user declines.
    pub async fn run(self, terminal: &Terminal, client: &Client) -> Outcome {
        let named = [("notification", &self.notification), ("subscriber", &self.subscriber), ("device", &self.device)];
        let mut body = self.range.body(&named);
        if self.all {
            body.insert("all".into(), true.into());
        }
        let narrows = |name: &String| !["until", "outcomes", "as_new"].contains(&name.as_str());
        if !body.keys().any(narrows) {
            return Err(Failure::usage("a filter is required: a notification, a condition such as --since, or --all"));
        }
        self.range.send(terminal, client, body).await
    }
}

impl Recover {
    /// Counts, asks for confirmation and resends.
    ///
    /// # Errors
    /// If the server refuses the request, or the user declines.
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
    async fn notifications_are_counted_before_they_are_resent() {
        let counted =
            |many: u64, next: Option<&str>| (200, json!({"notifications": many, "batches": 10, "next": next}));
        check(
            &["--application", "quakes", "--reason", "503", "--since", "2026-11-20T00:00:00Z", "--yes", "--idempotency-key", "k1"],
            vec![counted(1_000, Some("x")), counted(34, None), (202, json!({"id": 3}))],
            expect![[r#"
                1,034 notifications are resent as request 3
                POST /v1/resends/preview [application/json] {"since":"2026-11-20T00:00:00Z","application":"quakes","reason":"503"}
                POST /v1/resends/preview [application/json] {"since":"2026-11-20T00:00:00Z","application":"quakes","reason":"503","after":"x"}
                POST /v1/resends [application/json] [k1] {"since":"2026-11-20T00:00:00Z","application":"quakes","reason":"503"}"#]],
        )
        .await;
        check(
            &["n-3-41", "--dry-run"],
            vec![counted(1, None)],
            expect![[r#"
                1 notification would be resent
                POST /v1/resends/preview [application/json] {"notification":"n-3-41"}"#]],
        )
        .await;
        check(
            &["--outcome", "refused", "--dry-run"],
            vec![],
            expect![[r#"
                failed: a filter is required: a notification, a condition such as --since, or --all
            "#]],
        )
        .await;
        check(
            &["--all"],
            vec![counted(7, None)],
            expect![[r#"
                failed: nothing was sent; --yes skips the confirmation
                POST /v1/resends/preview [application/json] {"all":true}"#]],
        )
        .await;
    }

    #[tokio::test]
    async fn an_endpoint_is_recovered() {
        let run = async |args: Recover, terminal: &Terminal, client: &Client| args.run(terminal, client).await;
        let answers = vec![(200, json!({"notifications": 0, "batches": 1}))];
        let expected = expect![[r#"
            no failed notifications match
            POST /v1/resends/preview [application/json] {"subscriber":"ann","device":"hook","since":"2026-11-20T00:00:00Z"}"#]];
        let args = ["ann", "hook", "--since", "2026-11-20T00:00:00Z"];
        fake_server::check("recover", &args, answers, run, expected).await;
    }
}
