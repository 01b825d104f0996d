//! Command `suspended`: lists, shows, edits, resumes and ends suspended notifications.

use clap::Subcommand;
use serde_json::{Map, Value, json};

use super::lists::DryRun;
use crate::{
    client::{Client, present_parameters},
    failure::{Failure, Outcome},
    terminal::{Terminal, counted, printable, thousands},
};

/// Arguments of `tocsin suspended`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List suspensions and their reasons
    List {
        #[command(flatten)]
        filter: Filter,
        /// Maximum number of rows
        #[arg(long, default_value_t = 1000, value_name = "COUNT")]
        limit: usize,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Count suspended notifications by reason and channel
    Groups {
        /// Members to group by: application, channel, reason
        #[arg(long, default_value = "reason,channel", value_name = "MEMBERS")]
        by: String,
        #[command(flatten)]
        filter: Filter,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show a suspension, its notifications and their content
    Show {
        /// Number of the suspension
        id: u64,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Edit the content of a suspension before it is resumed
    Edit(Edit),
    /// Resume suspensions with a fresh retry schedule
    Resume {
        #[command(flatten)]
        filter: Filter,
        /// All listed suspensions; excludes other filters
        #[arg(long)]
        all: bool,
        #[command(flatten)]
        dry: DryRun,
    },
    /// End suspensions without sending
    End {
        #[command(flatten)]
        filter: Filter,
        /// All listed suspensions; excludes other filters
        #[arg(long)]
        all: bool,
        #[command(flatten)]
        dry: DryRun,
        /// Confirmation; without it the command asks
        #[arg(long, short)]
        yes: bool,
    },
}

#[derive(Debug, clap::Args)]
struct Edit {
    /// Number of the suspension
    id: u64,
    /// Notification of the suspension to edit, such as `n-3-41`; repeatable; default is all
    #[arg(long, value_name = "ID")]
    notification: Vec<String>,
    /// New field values, as a JSON object
    #[arg(long, value_name = "JSON")]
    fields: Option<String>,
    /// New subject
    #[arg(long)]
    subject: Option<String>,
    /// New text
    #[arg(long)]
    text: Option<String>,
    /// New HTML
    #[arg(long)]
    html: Option<String>,
    /// New JSON body
    #[arg(long, value_name = "JSON")]
    body: Option<String>,
    /// New header, as `Name: value`; repeatable
    #[arg(long, value_name = "NAME: VALUE")]
    header: Vec<String>,
    /// New address
    #[arg(long)]
    address: Option<String>,
    /// Discard earlier edits
    #[arg(long)]
    clear: bool,
    #[command(flatten)]
    dry: DryRun,
}

impl Edit {
    fn request(&self) -> Outcome<Value> {
        let mut edit = Map::new();
        if let Some(fields) = &self.fields {
            let fields: Map<String, Value> = serde_json::from_str(fields)
                .map_err(|error| Failure::usage(format!("--fields must be a JSON object: {error}")))?;
            edit.insert("fields".into(), Value::Object(fields));
        }
        let parts = [("subject", &self.subject), ("text", &self.text), ("html", &self.html), ("json", &self.body)];
        let mut content: Map<String, Value> = parts
            .into_iter()
            .filter_map(|(name, part)| Some((name.to_owned(), Value::from(part.as_deref()?))))
            .collect();
        let mut headers = Map::new();
        for header in &self.header {
            let (name, value) = header
                .split_once(':')
                .ok_or_else(|| Failure::usage(format!("--header must be `Name: value`; found `{header}`")))?;
            headers.insert(name.trim().to_owned(), Value::from(value.trim()));
        }
        if !headers.is_empty() {
            content.insert("headers".into(), Value::Object(headers));
        }
        if !content.is_empty() {
            edit.insert("content".into(), Value::Object(content));
        }
        if let Some(address) = &self.address {
            edit.insert("address".into(), Value::from(address.as_str()));
        }
        let edit = match (edit.is_empty(), self.clear) {
            (true, false) => {
                return Err(Failure::usage(
                    "no change is given; use --fields, --subject, --text, --html, --body, --header, --address or --clear",
                ));
            }
            (false, true) => return Err(Failure::usage("--clear excludes other changes")),
            (true, true) => Value::Null,
            (false, false) => Value::Object(edit),
        };
        let mut body = Map::from_iter([("edit".to_owned(), edit)]);
        if !self.notification.is_empty() {
            body.insert("notifications".into(), json!(self.notification));
        }
        Ok(Value::Object(body))
    }
}

#[derive(Debug, clap::Args)]
struct Filter {
    /// Number of the suspension to select
    #[arg(long)]
    id: Option<u64>,
    /// Application to filter by
    #[arg(long)]
    application: Option<String>,
    /// Channel to filter by
    #[arg(long)]
    channel: Option<String>,
    /// Notification batch to filter by
    #[arg(long)]
    batch: Option<String>,
    /// Notification class to filter by
    #[arg(long)]
    class: Option<String>,
    /// Text that the reason must contain
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Time of RFC 3339 before which the notifications were suspended
    #[arg(long, value_name = "TIME")]
    before: Option<String>,
}

impl Filter {
    fn query(&self) -> Vec<(&str, &str)> {
        let named = [
            ("application", &self.application),
            ("channel", &self.channel),
            ("batch", &self.batch),
            ("class", &self.class),
            ("reason", &self.reason),
            ("before", &self.before),
        ];
        present_parameters(&named)
    }

    fn body(&self, all: bool) -> Outcome<Value> {
        let mut body: Map<String, Value> =
            self.query().into_iter().map(|(name, value)| (name.to_owned(), Value::from(value))).collect();
        if let Some(id) = self.id {
            body.insert("id".into(), id.into());
        }
        match (body.is_empty(), all) {
            (true, false) => Err(Failure::usage(
                "a filter is required: --id, --application, --channel, --batch, --class, --reason, --before or --all",
            )),
            (false, true) => Err(Failure::usage("--all excludes other filters")),
            (true, true) => Ok(json!({"all": true})),
            (false, false) => Ok(Value::Object(body)),
        }
    }

    async fn list(&self, client: &Client, limit: usize) -> Outcome<Vec<Value>> {
        let mut items = client.list("/v1/suspensions", &self.query(), limit).await?;
        items.retain(|item| self.id.is_none_or(|id| item["id"].as_u64() == Some(id)));
        items.truncate(limit);
        Ok(items)
    }
}

impl Args {
    /// Runs the command.
    ///
    /// # Errors
    /// If the server refuses the request, or the user declines.
    pub async fn run(self, terminal: &Terminal, client: &Client) -> Outcome {
        match self.what {
            Action::List { filter, limit, json } => {
                let items = filter.list(client, limit).await?;
                if json {
                    return Ok(terminal.json(&items)?);
                }
                if items.is_empty() {
                    return Ok(terminal.line("no suspended notifications")?);
                }
                let rows: Vec<Vec<String>> = items.iter().map(row).collect();
                terminal
                    .table(&["id", "notifications", "batch", "application", "channel", "since", "reason"], &rows)?;
                if items.len() == limit {
                    terminal.line(format_args!("there may be more than {limit}; --limit shows more"))?;
                }
                Ok(())
            }
            Action::Show { id, json } => {
                let found = client.get(&format!("/v1/suspensions/{id}"), &[]).await?;
                if json { Ok(terminal.json(&found)?) } else { show(terminal, &found) }
            }
            Action::Edit(edit) => {
                let path = edit.dry.path(&format!("/v1/suspensions/{}/edit", edit.id));
                let answer = client.put(&path, &edit.request()?).await?;
                let id = answer["id"].as_u64().unwrap_or(edit.id);
                if edit.dry.is_dry() {
                    let many = answer["notifications"].as_u64().unwrap_or_default();
                    let many = counted(many, "notification", "notifications");
                    return Ok(terminal.line(format_args!("{many} of suspension {id} would be edited"))?);
                }
                Ok(terminal
                    .line(format_args!("suspension {id} edited; `tocsin suspended resume --id {id}` sends it"))?)
            }
            Action::Groups { by, filter, json } => {
                let mut query = filter.query();
                query.push(("by", &by));
                let found = client.get("/v1/suspensions/groups", &query).await?;
                if json { Ok(terminal.json(&found)?) } else { groups(terminal, &found) }
            }
            Action::Resume { filter, all, dry } => {
                let answer = client.post(&dry.path("/v1/suspensions/resume"), &filter.body(all)?).await?;
                Ok(terminal.line(format_args!(
                    "{} {}",
                    counted(answer["notifications"].as_u64().unwrap_or_default(), "notification", "notifications"),
                    dry.done("resumed")
                ))?)
            }
            Action::End { filter, all, dry, yes } => {
                let body = filter.body(all)?;
                if !yes && !dry.is_dry() {
                    let items = filter.list(client, usize::MAX).await?;
                    let many: u64 = items.iter().map(|item| count(item).unwrap_or(1)).sum();
                    let many = counted(many, "notification", "notifications");
                    if !terminal.confirm(&format!("end {many} permanently without sending?"))? {
                        return Err(Failure::failed("nothing was changed; --yes skips the confirmation"));
                    }
                }
                let answer = client.post(&dry.path("/v1/suspensions/end"), &body).await?;
                Ok(terminal.line(format_args!(
                    "{} {}",
                    counted(answer["notifications"].as_u64().unwrap_or_default(), "notification", "notifications"),
                    dry.done("ended")
                ))?)
            }
        }
    }
}

/// Prints groups of suspensions.
fn groups(terminal: &Terminal, found: &Value) -> Outcome {
    let items = found["items"].as_array().map(Vec::as_slice).unwrap_or_default();
    if items.is_empty() {
        return Ok(terminal.line("no suspended notifications")?);
    }
    let text = |item: &Value, name: &str| match &item[name] {
        Value::String(text) => printable(text).into_owned(),
        Value::Null => String::new(),
        other => other.to_string(),
    };
    let names = ["notifications", "application", "channel", "since_first", "since_last", "reason"];
    let used: Vec<&str> = names.into_iter().filter(|name| items.iter().any(|item| !item[*name].is_null())).collect();
    let rows: Vec<Vec<String>> = items.iter().map(|item| used.iter().map(|name| text(item, name)).collect()).collect();
    terminal.table(&used, &rows)?;
    if found["exact"] == false {
        terminal.line("not all suspensions are counted, or not all groups are listed")?;
    }
    Ok(())
}

/// Prints a suspension, then the rendered content of each notification.
fn show(terminal: &Terminal, found: &Value) -> Outcome {
    let text = |value: &Value| match value {
        Value::String(text) => printable(text).into_owned(),
        Value::Null => String::new(),
        other => other.to_string(),
    };
    for name in ["id", "notifications", "batch", "application", "channel", "attempts", "since", "reason", "edit"] {
        if !found[name].is_null() {
            terminal.line(format_args!("{name:>13}  {}", text(&found[name])))?;
        }
    }
    for shown in found["shown"].as_array().into_iter().flatten() {
        let notification = &shown["notification"];
        let subscriber = text(&notification["recipient"]["subscriber"]);
        terminal.line(format_args!("\n{} for {subscriber}", text(&notification["id"])))?;
        terminal.line(format_args!("{:>13}  {}", "fields", text(&notification["fields"])))?;
        for name in ["channel", "address", "subject", "text", "html", "json", "problem"] {
            if !shown[name].is_null() {
                terminal.line(format_args!("{name:>13}  {}", text(&shown[name])))?;
            }
        }
    }
    Ok(())
}

/// Number of notifications of a suspension.
fn count(item: &Value) -> Option<u64> {
    item["notifications"]
        .as_u64()
        .or_else(|| item["count"].as_u64())
        .or_else(|| Some(item["ordinals"].as_array()?.len() as u64))
}

fn row(item: &Value) -> Vec<String> {
    let text = |name: &str| match &item[name] {
        Value::String(text) => printable(text).into_owned(),
        Value::Null => String::new(),
        other => other.to_string(),
    };
    let count = count(item).map(thousands).unwrap_or_default();
    vec![text("id"), count, text("batch"), text("application"), text("channel"), text("since"), text("reason")]
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;
    use crate::commands::fake_server::FakeServer;

    #[derive(clap::Parser)]
    struct TestCli {
        #[command(flatten)]
        args: Args,
    }

    async fn check(args: &[&str], answers: Vec<(u16, Value)>, expected: Expect) {
        let server = FakeServer::start(answers).await;
        let (terminal, captured) = Terminal::captured();
        let args = <TestCli as clap::Parser>::parse_from([&["suspended"], args].concat()).args;
        let end = args
            .run(&terminal, &server.client())
            .await
            .map_or_else(|failure| format!("failed: {failure}\n"), |()| String::new());
        expected.assert_eq(&format!("{}{end}{}", captured.text(), server.requests().join("\n")));
    }

    #[tokio::test]
    async fn lists_cover_all_pages() {
        let page = |id: u64| json!({"id": id, "batch": "nb-7", "application": "quakes", "channel": "email", "notifications": 1200, "since": "2026-11-21T09:30:00Z", "reason": "550 no"});
        let answers = vec![(200, json!({"items": [page(1)], "next": "a b"})), (200, json!({"items": [page(2)]}))];
        check(
            &["list", "--channel", "email"],
            answers,
            expect![[r#"
            id  notifications  batch  application  channel  since                 reason
            1   1,200          nb-7   quakes       email    2026-11-21T09:30:00Z  550 no
            2   1,200          nb-7   quakes       email    2026-11-21T09:30:00Z  550 no
            GET /v1/suspensions?channel=email&limit=1000
            GET /v1/suspensions?channel=email&limit=1000&after=a%20b"#]],
        )
        .await;
        check(
            &["list"],
            vec![(200, json!({"items": []}))],
            expect![[r#"
            no suspended notifications
            GET /v1/suspensions?limit=1000"#]],
        )
        .await;
    }

    #[tokio::test]
    async fn a_suspension_is_shown_with_its_content() {
        let shown = json!([{
            "notification": {"id": "n-7-2", "fields": {"place": "Kobe"}, "recipient": {"subscriber": "ann"}},
            "channel": "email", "address": "ann@example.org", "subject": "Kobe", "text": "A quake",
        }, {"notification": {"id": "n-7-3", "fields": {}, "recipient": {"subscriber": "bob"}}, "problem": "it is gone"}]);
        let found = json!({"id": 4, "notifications": 2, "batch": "nb-7", "application": "quakes", "channel": "email",
            "attempts": 3, "since": "2026-11-21T09:30:00Z", "reason": "550 no", "edit": null, "shown": shown});
        check(
            &["show", "4"],
            vec![(200, found)],
            expect![[r#"
                           id  4
                notifications  2
                        batch  nb-7
                  application  quakes
                      channel  email
                     attempts  3
                        since  2026-11-21T09:30:00Z
                       reason  550 no

                n-7-2 for ann
                       fields  {"place":"Kobe"}
                      channel  email
                      address  ann@example.org
                      subject  Kobe
                         text  A quake

                n-7-3 for bob
                       fields  {}
                      problem  it is gone
                GET /v1/suspensions/4"#]],
        )
        .await;
    }

    #[tokio::test]
    async fn a_dry_run_counts_without_a_question() {
        let counted = json!({"notifications": 1_200, "dry_run": true});
        check(
            &["resume", "--channel", "email", "--dry-run"],
            vec![(200, counted.clone())],
            expect![[r#"
            1,200 notifications would be resumed
            POST /v1/suspensions/resume?dry_run=true [application/json] {"channel":"email"}"#]],
        )
        .await;
        check(
            &["end", "--all", "--dry-run"],
            vec![(200, counted)],
            expect![[r#"
            1,200 notifications would be ended
            POST /v1/suspensions/end?dry_run=true [application/json] {"all":true}"#]],
        )
        .await;
        check(
            &["edit", "4", "--subject", "Kobe", "--dry-run"],
            vec![(200, json!({"id": 4, "notifications": 1, "dry_run": true}))],
            expect![[r#"
            1 notification of suspension 4 would be edited
            PUT /v1/suspensions/4/edit?dry_run=true [application/json] {"edit":{"content":{"subject":"Kobe"}}}"#]],
        )
        .await;
    }

    #[tokio::test]
    async fn suspensions_are_counted_by_groups() {
        let group = json!({"channel": "email", "reason": "550 no", "code": "other", "suspensions": 2,
            "notifications": 12, "since_first": "2026-11-21T09:30:00Z", "since_last": "2026-11-22T09:30:00Z"});
        check(
            &["groups", "--application", "quakes"],
            vec![(200, json!({"items": [group], "exact": false}))],
            expect![[r#"
            notifications  channel  since_first           since_last            reason
            12             email    2026-11-21T09:30:00Z  2026-11-22T09:30:00Z  550 no
            not all suspensions are counted, or not all groups are listed
            GET /v1/suspensions/groups?application=quakes&by=reason%2Cchannel"#]],
        )
        .await;
    }

    #[tokio::test]
    async fn a_suspension_is_edited() {
        let args = [
            "edit",
            "4",
            "--notification",
            "n-7-2",
            "--fields",
            r#"{"place": "Lima"}"#,
            "--subject",
            "Mended",
            "--header",
            "X-Why: again: and again",
            "--address",
            "ann@example.com",
        ];
        check(
            &args,
            vec![(200, json!({"id": 5}))],
            expect![[r#"
                suspension 5 edited; `tocsin suspended resume --id 5` sends it
                PUT /v1/suspensions/4/edit [application/json] {"edit":{"fields":{"place":"Lima"},"content":{"subject":"Mended","headers":{"X-Why":"again: and again"}},"address":"ann@example.com"},"notifications":["n-7-2"]}"#]],
        )
        .await;
        check(
            &["edit", "4", "--clear"],
            vec![(200, json!({"id": 4}))],
            expect![[r#"
                suspension 4 edited; `tocsin suspended resume --id 4` sends it
                PUT /v1/suspensions/4/edit [application/json] {"edit":null}"#]],
        )
        .await;
        check(
            &["edit", "4"],
            vec![],
            expect![[r#"
            failed: no change is given; use --fields, --subject, --text, --html, --body, --header, --address or --clear
        "#]],
        )
        .await;
        check(
            &["edit", "4", "--clear", "--text", "x"],
            vec![],
            expect![[r#"
            failed: --clear excludes other changes
        "#]],
        )
        .await;
        check(
            &["edit", "4", "--header", "X-Why"],
            vec![],
            expect![[r#"
            failed: --header must be `Name: value`; found `X-Why`
        "#]],
        )
        .await;
    }

    #[tokio::test]
    async fn a_filter_and_a_confirmation_are_required() {
        check(
            &["resume"],
            vec![],
            expect![[r#"
            failed: a filter is required: --id, --application, --channel, --batch, --class, --reason, --before or --all
        "#]],
        )
        .await;
        check(
            &["resume", "--all"],
            vec![(200, json!({"notifications": 4300}))],
            expect![[r#"
            4,300 notifications resumed
            POST /v1/suspensions/resume [application/json] {"all":true}"#]],
        )
        .await;
        check(
            &["end", "--batch", "nb-7"],
            vec![(200, json!({"items": [{"id": 1, "notifications": 3}]}))],
            expect![[r#"
            failed: nothing was changed; --yes skips the confirmation
            GET /v1/suspensions?batch=nb-7&limit=1000"#]],
        )
        .await;
        check(
            &["end", "--batch", "nb-7", "--yes"],
            vec![(200, json!({"notifications": 3}))],
            expect![[r#"
            3 notifications ended
            POST /v1/suspensions/end [application/json] {"batch":"nb-7"}"#]],
        )
        .await;
    }
}
