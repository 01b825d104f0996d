//! Command `suppressions`: lists, adds and removes suppressed addresses and devices; reports bounces and complaints.

use clap::{Subcommand, ValueEnum};
use reqwest::Method;
use serde_json::{Map, Value, json};

use super::lists::{ItemList, author};
use crate::{
    client::{Client, present_parameters, segment},
    failure::{Failure, Outcome},
    problems::problem_line,
    terminal::{Terminal, printable},
};

/// Arguments of `tocsin suppressions`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List suppressions and bounce counts
    List {
        /// Protocol of addresses to filter by
        #[arg(long)]
        protocol: Option<String>,
        /// Subscriber of devices to filter by
        #[arg(long)]
        subscriber: Option<String>,
        /// Cause to filter by: soft_bounce, manual, hard_bounce, unsubscribed or complaint
        #[arg(long)]
        cause: Option<String>,
        /// Text that the address or the subscriber id must contain
        #[arg(long, value_name = "TEXT")]
        contains: Option<String>,
        /// Show only bounce counts that have not led to a suppression yet
        #[arg(long)]
        counted: bool,
        /// Maximum number of rows
        #[arg(long, default_value_t = 1000, value_name = "COUNT")]
        limit: usize,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show the suppression of an address or a device
    Show {
        #[command(flatten)]
        target: Target,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Suppress an address or a device
    #[command(after_help = "Examples:
  tocsin suppressions add ada@example.org --detail 'asked by phone'
  tocsin suppressions add --subscriber ada --device phone")]
    Add {
        #[command(flatten)]
        target: Target,
        /// Cause: manual, hard_bounce, soft_bounce, unsubscribed or complaint
        #[arg(long, default_value = "manual")]
        cause: String,
        /// Note for other operators
        #[arg(long)]
        detail: Option<String>,
        /// Expiry time of RFC 3339 [default: until removed]
        #[arg(long, value_name = "TIME")]
        until: Option<String>,
    },
    /// Lift a suppression
    Remove {
        #[command(flatten)]
        target: Target,
    },
    /// Report a bounce or a complaint
    Report {
        /// Kind of report
        kind: Kind,
        #[command(flatten)]
        target: Target,
        /// Notification that bounced, such as `n-3-41`, instead of an address
        #[arg(long, value_name = "ID")]
        notification: Option<String>,
        /// Enhanced status code (RFC 3463), such as 5.1.1
        #[arg(long)]
        status: Option<String>,
        /// Permanent failure
        #[arg(long, conflicts_with = "status")]
        permanent: bool,
        /// Temporary failure
        #[arg(long, conflicts_with_all = ["status", "permanent"])]
        temporary: bool,
        /// Count for the device only, not for its address on all devices
        #[arg(long)]
        only_device: bool,
        /// Diagnostic text of the receiver
        #[arg(long)]
        detail: Option<String>,
    },
}

/// Kind of report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// Message not delivered
    Bounce,
    /// Message reported as spam
    Complaint,
    /// Unsubscribed at the provider
    Unsubscribe,
}

#[derive(Debug, clap::Args)]
struct Target {
    /// Address
    address: Option<String>,
    /// Protocol of the address
    #[arg(long, default_value = "smtp")]
    protocol: String,
    /// Application whose channel was answered with STOP; with --channel and an address
    #[arg(long, requires_all = ["channel", "address"], conflicts_with = "subscriber")]
    application: Option<String>,
    /// Channel that was answered with STOP
    #[arg(long, requires = "application")]
    channel: Option<String>,
    /// Subscriber of the device, instead of an address
    #[arg(long, requires = "device", conflicts_with = "address")]
    subscriber: Option<String>,
    /// Device
    #[arg(long, requires = "subscriber")]
    device: Option<String>,
}

impl Target {
    /// Path of the suppression, and its display name.
    fn path(&self) -> Outcome<(String, String)> {
        if let (Some(address), Some(application), Some(channel)) = (&self.address, &self.application, &self.channel) {
            let [application, channel, number] = [application, channel, address].map(|text| segment(text));
            let path = format!("/v1/suppressions/channels/{application}/{channel}/{number}");
            return Ok((path, printable(address).into_owned()));
        }
        match (&self.address, &self.subscriber, &self.device) {
            (Some(address), None, None) => Ok((
                format!("/v1/suppressions/addresses/{}/{}", segment(&self.protocol), segment(address)),
                printable(address).into_owned(),
            )),
            (None, Some(subscriber), Some(device)) => Ok((
                format!("/v1/suppressions/devices/{}/{}", segment(subscriber), segment(device)),
                format!("{} of {}", printable(device), printable(subscriber)),
            )),
            _ => Err(Failure::usage("an address, or --subscriber and --device, is required")),
        }
    }

    fn named(&self) -> Map<String, Value> {
        let mut named = Map::new();
        if let Some(address) = &self.address {
            match (&self.application, &self.channel) {
                (Some(application), Some(channel)) => {
                    named.insert("application".into(), application.as_str().into());
                    named.insert("channel".into(), channel.as_str().into());
                }
                _ => drop(named.insert("protocol".into(), self.protocol.as_str().into())),
            }
            named.insert("address".into(), address.as_str().into());
        }
        if let (Some(subscriber), Some(device)) = (&self.subscriber, &self.device) {
            named.insert("subscriber".into(), subscriber.as_str().into());
            named.insert("device".into(), device.as_str().into());
        }
        named
    }
}

impl Args {
    /// Runs the command.
    ///
    /// # Errors
    /// If the server refuses the request.
    pub async fn run(self, terminal: &Terminal, client: &Client) -> Outcome {
        match self.what {
            Action::List { protocol, subscriber, cause, contains, counted, limit, json } => {
                let in_force = counted.then(|| "false".to_owned());
                let named = [
                    ("protocol", &protocol),
                    ("subscriber", &subscriber),
                    ("cause", &cause),
                    ("contains", &contains),
                    ("in_force", &in_force),
                ];
                let items = client.list("/v1/suppressions", &present_parameters(&named), limit).await?;
                let heads =
                    ["protocol", "address", "cause", "in force", "bounces", "since", "until", "origin", "detail"];
                ItemList { items, limit, json }.show(terminal, "no suppressions", &heads, row)
            }
            Action::Show { target, json } => {
                let found = client.get(&target.path()?.0, &[]).await?;
                if json {
                    return Ok(terminal.json(&found)?);
                }
                for (name, value) in found.as_object().into_iter().flatten() {
                    terminal.line(format_args!("{name:>12}  {}", text(value)))?;
                }
                Ok(())
            }
            Action::Add { target, cause, detail, until } => {
                let (path, what) = target.path()?;
                let mut body = Map::from_iter([("cause".to_owned(), Value::from(cause))]);
                body.extend(detail.map(|detail| ("detail".to_owned(), detail.into())));
                body.extend(until.map(|until| ("expires_at".to_owned(), until.into())));
                client.put(&path, &Value::Object(body)).await?;
                Ok(terminal.line(format_args!("{what} is suppressed"))?)
            }
            Action::Remove { target } => {
                let (path, what) = target.path()?;
                client.send(client.request(Method::DELETE, &path)).await?;
                Ok(terminal.line(format_args!("suppression of {what} removed"))?)
            }
            Action::Report { kind, target, notification, status, permanent, temporary, only_device, detail } => {
                let mut report = target.named();
                let kind = kind.to_possible_value().expect("no variant is hidden").get_name().to_owned();
                report.insert("kind".into(), kind.into());
                let texts = [("notification", notification), ("status", status), ("detail", detail)];
                report.extend(texts.into_iter().filter_map(|(name, text)| Some((name.to_owned(), text?.into()))));
                if permanent || temporary {
                    report.insert("permanent".into(), permanent.into());
                }
                if only_device {
                    report.insert("only_device".into(), true.into());
                }
                let answer = client.post("/v1/suppressions/reports", &json!({"reports": [report]})).await?;
                let item = &answer["items"][0];
                if let Some(problems) = item["problems"].as_array() {
                    let lines: Vec<String> = problems.iter().map(problem_line).collect();
                    return Err(Failure::failed(lines.join("; ")));
                }
                let known = &item["suppression"];
                let whom = match known["subscriber"].as_str() {
                    Some(subscriber) => format!("{} of {}", text(&known["device"]), printable(subscriber)),
                    None => text(&known["address"]),
                };
                let text = match known["in_force"].as_bool() {
                    Some(true) => format!("{whom} is suppressed: {}", text(&known["cause"])),
                    _ => format!("{whom} has {} soft bounces; it is not suppressed yet", text(&known["bounces"])),
                };
                Ok(terminal.line(text)?)
            }
        }
    }
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => printable(text).into_owned(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

fn row(item: &Value) -> Vec<String> {
    let (protocol, whose) = match item["subscriber"].as_str() {
        None if item["channel"].is_string() => {
            (format!("{}/{}", text(&item["application"]), text(&item["channel"])), text(&item["address"]))
        }
        Some(subscriber) => ("device".to_owned(), format!("{} of {}", text(&item["device"]), printable(subscriber))),
        None => (text(&item["protocol"]), text(&item["address"])),
    };
    let rest = ["cause", "in_force", "bounces", "since", "expires_at", "origin", "detail"];
    let cell = |name: &&str| match *name {
        "origin" => author(item, name),
        name => text(&item[name]),
    };
    [protocol, whose].into_iter().chain(rest.iter().map(cell)).collect()
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;
    use crate::commands::fake_server;

    async fn check(args: &[&str], answers: Vec<(u16, Value)>, expected: Expect) {
        let run = async |args: Args, terminal: &Terminal, client: &Client| args.run(terminal, client).await;
        fake_server::check("suppressions", args, answers, run, expected).await;
    }

    fn bounce_report() -> Value {
        json!({"protocol": "smtp", "address": "bob@example.org", "cause": "hard_bounce", "in_force": true, "bounces": 0,
            "origin": "postmark", "detail": "5.1.1", "since": "2026-11-21T09:30:00Z", "updated_at": "2026-11-21T09:30:00Z"})
    }

    #[tokio::test]
    async fn a_list_shows_addresses_and_devices() {
        let device = json!({"subscriber": "ann", "device": "home", "cause": "soft_bounce", "in_force": false, "bounces": 2,
            "origin": "smtp", "detail": "full", "since": "2026-11-21T09:30:00Z", "expires_at": "2026-12-05T09:30:00Z"});
        check(
            &["list", "--cause", "hard_bounce"],
            vec![(200, json!({"items": [bounce_report(), device]}))],
            expect![[r#"
                protocol  address          cause        in force  bounces  since                 until                 origin    detail
                smtp      bob@example.org  hard_bounce  true      0        2026-11-21T09:30:00Z                        postmark  5.1.1
                device    home of ann      soft_bounce  false     2        2026-11-21T09:30:00Z  2026-12-05T09:30:00Z  smtp      full
                GET /v1/suppressions?cause=hard_bounce&limit=1000"#]],
        )
        .await;
    }

    #[tokio::test]
    async fn a_suppression_is_added_and_removed() {
        check(
            &["add", "bob+a@example.org", "--detail", "asked by phone", "--until", "2027-01-01T00:00:00Z"],
            vec![(201, bounce_report())],
            expect![[r#"
                bob+a@example.org is suppressed
                PUT /v1/suppressions/addresses/smtp/bob%2Ba%40example.org [application/json] {"cause":"manual","detail":"asked by phone","expires_at":"2027-01-01T00:00:00Z"}"#]],
        )
        .await;
        check(
            &["remove", "--subscriber", "ann", "--device", "home"],
            vec![(204, Value::Null)],
            expect![[r#"
            suppression of home of ann removed
            DELETE /v1/suppressions/devices/ann/home"#]],
        )
        .await;
        check(
            &["remove"],
            vec![],
            expect![[r#"
            failed: an address, or --subscriber and --device, is required
        "#]],
        )
        .await;
    }

    #[tokio::test]
    async fn a_bounce_is_reported() {
        check(
            &["report", "bounce", "--notification", "n-3-41", "--status", "5.1.1"],
            vec![(200, json!({"items": [{"suppression": bounce_report()}]}))],
            expect![[r#"
                bob@example.org is suppressed: hard_bounce
                POST /v1/suppressions/reports [application/json] {"reports":[{"kind":"bounce","notification":"n-3-41","status":"5.1.1"}]}"#]],
        )
        .await;
        check(
            &["report", "complaint", "bob@example.org"],
            vec![(200, json!({"items": [{"problems": [{"path": "address", "message": "is empty"}]}]}))],
            expect![[r#"
                failed: address: is empty
                POST /v1/suppressions/reports [application/json] {"reports":[{"protocol":"smtp","address":"bob@example.org","kind":"complaint"}]}"#]],
        )
        .await;
    }
}
