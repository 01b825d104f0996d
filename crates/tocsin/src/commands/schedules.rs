//! Command `schedules`: shows the due times and progress of schedules.

use clap::Subcommand;
use serde_json::Value;
use tocsin_face_http::SchedulePreviewBody;
use tocsin_model::{application::Limits, problem::Problem, schedule::Schedule, time::Timestamp};
use tocsin_service::schedules::{RUNS_MAX, preview};

use crate::{
    client::{Client, segment},
    failure::{Failure, Outcome},
    terminal::{Colour, Terminal, printable},
};

/// Arguments of `tocsin schedules`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Compute the next runs of a schedule without a server
    #[command(after_help = "Example:
  tocsin schedules next DTSTART:20270104T080000 RRULE:FREQ=DAILY --zone Europe/Vienna")]
    Next {
        /// Lines of RFC 5545, such as `DTSTART:20270104T080000` and `RRULE:FREQ=DAILY`, one argument each
        #[arg(required = true)]
        lines: Vec<String>,
        /// Time zone of lines that do not name one
        #[arg(long, default_value = "UTC", value_name = "ZONE")]
        zone: String,
        /// Start time, such as 2027-01-04T08:00:00Z; default is now
        #[arg(long, value_name = "TIME")]
        from: Option<Timestamp>,
        /// Maximum number of runs
        #[arg(long, default_value_t = 10, value_name = "COUNT")]
        count: usize,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show the next runs of a subscription and their progress
    Of {
        /// Subscription, such as s-15
        subscription: String,
        /// Maximum number of runs
        #[arg(long, default_value_t = 10, value_name = "COUNT")]
        count: usize,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// List the progress of the schedules of an application
    List {
        /// Application
        application: String,
        /// Maximum number of rows
        #[arg(long, default_value_t = 1000, value_name = "COUNT")]
        limit: usize,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

impl Args {
    /// Runs the command.
    ///
    /// # Errors
    /// If the schedule is invalid, or the subscription or application is unknown.
    pub async fn run(self, terminal: &Terminal, client: impl FnOnce() -> Outcome<Client>) -> Outcome {
        match self.what {
            Action::Next { lines, zone, from, count, json } => {
                let schedule =
                    Schedule::parse_floating(&lines.join("\n")).map_err(|problems| usage_failure(&problems))?;
                let schedule = schedule.in_zone(&zone).ok_or_else(|| {
                    Failure::usage(format!("`{zone}` is not a time zone; expected an IANA name such as Europe/Vienna"))
                })?;
                let from = from.unwrap_or_else(|| std::time::SystemTime::now().into());
                let preview = preview(&schedule, from, count.clamp(1, RUNS_MAX), Limits::default().schedule_interval);
                let preview = SchedulePreviewBody::from(preview);
                if json {
                    return Ok(terminal.json(&preview)?);
                }
                show(terminal, &serde_json::to_value(&preview).expect("a preview is serializable"))
            }
            Action::Of { subscription, count, json } => {
                let path = format!("/v1/subscriptions/{}/schedule", segment(&subscription));
                let found = client()?.get(&path, &[("count", &count.to_string())]).await?;
                if json {
                    return Ok(terminal.json(&found)?);
                }
                show(terminal, &found["preview"])?;
                table(terminal, found["rules"].as_array().map_or(&[], Vec::as_slice))
            }
            Action::List { application, limit, json } => {
                let path = format!("/v1/applications/{}/schedules", segment(&application));
                let items = client()?.list(&path, &[], limit).await?;
                if json {
                    return Ok(terminal.json(&items)?);
                }
                if items.is_empty() {
                    return Ok(terminal.line("no schedules")?);
                }
                table(terminal, &items)
            }
        }
    }
}

fn usage_failure(problems: &[Problem]) -> Failure {
    Failure::usage(problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))
}

fn text(value: &Value) -> String {
    printable(value.as_str().unwrap_or_default()).into_owned()
}

/// Prints the next runs of a schedule, and the rules that determine them.
fn show(terminal: &Terminal, preview: &Value) -> Outcome {
    let none = Vec::new();
    let runs = preview["runs"].as_array().unwrap_or(&none);
    let rows: Vec<Vec<String>> =
        runs.iter().map(|run| vec![text(&run["at"]), text(&run["local"]), text(&run["note"])]).collect();
    if rows.is_empty() {
        terminal.line("the schedule has no further runs")?;
    } else {
        terminal.table(&["at", &text(&preview["time_zone"]), ""], &rows)?;
    }
    for policy in preview["policies"].as_array().unwrap_or(&none) {
        terminal.line(text(policy))?;
    }
    for warning in preview["warnings"].as_array().unwrap_or(&none) {
        terminal.line(terminal.paint(Colour::Yellow, format_args!("warning: it {}", text(warning))))?;
    }
    Ok(())
}

/// Prints the progress of schedules.
fn table(terminal: &Terminal, items: &[Value]) -> Outcome {
    let row = |item: &Value| {
        vec![
            text(&item["rule"]),
            // The lines joined by spaces, in the form of arguments of `next`.
            printable(&item["schedule"].as_str().unwrap_or_default().replace('\n', " ")).into_owned(),
            text(&item["last_run"]),
            if item["stopped"] == true { "stopped".to_owned() } else { text(&item["next_run"]) },
            item["skipped"].to_string(),
            text(&item["missed"]),
        ]
    };
    let rows: Vec<Vec<String>> = items.iter().map(row).collect();
    Ok(terminal.table(&["rule", "schedule", "last run", "next run", "skipped", "missed runs"], &rows)?)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::commands::fake_server::FakeServer;

    #[derive(clap::Parser)]
    struct TestCli {
        #[command(flatten)]
        args: Args,
    }

    /// The output and requests must contain these, in this order.
    async fn check(args: &[&str], answers: Vec<(u16, Value)>, expected: &[&str]) {
        let server = FakeServer::start(answers).await;
        let (terminal, captured) = Terminal::captured();
        let args = <TestCli as clap::Parser>::parse_from([&["schedules"], args].concat()).args;
        let end = args
            .run(&terminal, || Ok(server.client()))
            .await
            .map_or_else(|failure| format!("failed: {failure}\n"), |()| String::new());
        let said = format!("{}{end}{}", captured.text(), server.requests().join("\n"));
        let mut rest = said.as_str();
        for piece in expected {
            let Some(at) = rest.find(piece) else { panic!("`{piece}` is missing in\n{said}") };
            rest = &rest[at + piece.len()..];
        }
    }

    #[tokio::test]
    async fn a_preview_needs_no_server() {
        let lines = ["next", "DTSTART:20270327T023000", "RRULE:FREQ=DAILY;COUNT=3"];
        check(
            &[&lines[..], &["--zone", "Europe/Vienna", "--from", "2027-03-01T00:00:00Z"]].concat(),
            vec![],
            &[
                "Europe/Vienna",
                "2027-03-27T01:30:00Z",
                "2027-03-28T01:30:00Z",
                "does not exist",
                "2027-03-29T00:30:00Z",
            ],
        )
        .await;
        check(&["next", "RRULE:FREQ=DAILI"], vec![], &["failed: ", "DAILI"]).await;
        let wrong = ["next", "DTSTART:20270327T023000", "--zone", "Wien"];
        check(&wrong, vec![], &["failed: `Wien` is not a time zone"]).await;
    }

    #[tokio::test]
    async fn progress_comes_from_the_server() {
        let status = json!({
            "rule": "morning",
            "schedule": "DTSTART:20270104T080000Z\nRRULE:FREQ=DAILY",
            "missed": "once: one run makes up for all",
            "last_run": "2027-01-04T08:00:00Z",
            "next_run": "2027-01-05T08:00:00Z",
            "skipped": 2,
            "stopped": false,
        });
        let run = json!({"at": "2027-01-05T08:00:00Z", "local": "2027-01-05T08:00:00"});
        let preview = json!({"time_zone": "UTC", "policies": ["a policy"], "runs": [run]});
        check(
            &["of", "s-15", "--count", "1"],
            vec![(200, json!({"preview": preview, "rules": [status]}))],
            &[
                "2027-01-05T08:00:00Z",
                "a policy",
                "morning",
                "FREQ=DAILY",
                "GET /v1/subscriptions/s-15/schedule?count=1",
            ],
        )
        .await;
        let listed = vec![(200, json!({"items": [status]}))];
        check(
            &["list", "stock"],
            listed,
            &["morning", "DTSTART:20270104T080000Z RRULE:FREQ=DAILY", "2", "GET /v1/applications/stock/schedules"],
        )
        .await;
        check(&["list", "stock"], vec![(200, json!({"items": []}))], &["no schedules"]).await;
    }
}
