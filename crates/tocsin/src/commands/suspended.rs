//! Lists, shows, edits, resumes or ends notifications that wait for an operator.

use clap::Subcommand;
use serde_json::{Map, Value, json};

use crate::{
    client::Client,
    failure::{Failure, Outcome},
    terminal::{Terminal, printable, thousands},
};

/// Arguments of `tocsin suspended`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Lists what is suspended, with the reasons
    List {
        #[command(flatten)]
        filter: Filter,
        /// Most lines
        #[arg(long, default_value_t = 1000)]
        limit: usize,
        /// Prints JSON
        #[arg(long)]
        json: bool,
    },
    /// Shows one suspension: its notifications, and what they would say if they were resumed
    Show {
        /// Its number
        id: u64,
        /// Prints JSON
        #[arg(long)]
        json: bool,
    },
    /// Changes what is sent when a suspension is resumed
    Edit(Edit),
    /// Sends again, with a fresh retry schedule
    Resume {
        #[command(flatten)]
        filter: Filter,
        /// All that is suspended
        #[arg(long)]
        all: bool,
    },
    /// Closes without sending
    End {
        #[command(flatten)]
        filter: Filter,
        /// All that is suspended
        #[arg(long)]
        all: bool,
        /// Does not ask
        #[arg(long, short)]
        yes: bool,
    },
}

#[derive(Debug, clap::Args)]
struct Edit {
    /// The number of the suspension
    id: u64,
    /// Only this notification of it, such as `n-3-41`; may be repeated
    #[arg(long)]
    notification: Vec<String>,
    /// Other values of fields, as a JSON object
    #[arg(long)]
    fields: Option<String>,
    /// Another subject
    #[arg(long)]
    subject: Option<String>,
    /// Another text
    #[arg(long)]
    text: Option<String>,
    /// Other HTML
    #[arg(long)]
    html: Option<String>,
    /// Other JSON
    #[arg(long)]
    body: Option<String>,
    /// A header, as `Name: value`; may be repeated
    #[arg(long)]
    header: Vec<String>,
    /// Another address
    #[arg(long)]
    address: Option<String>,
    /// Takes away what was edited before
    #[arg(long)]
    clear: bool,
}

impl Edit {
    fn request(&self) -> Outcome<Value> {
        let mut edit = Map::new();
        if let Some(fields) = &self.fields {
            let fields: Map<String, Value> = serde_json::from_str(fields)
                .map_err(|error| Failure::usage(format!("--fields takes a JSON object: {error}")))?;
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
                .ok_or_else(|| Failure::usage(format!("--header takes `Name: value`, not `{header}`")))?;
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
                    "say what is changed: --fields, --subject, --text, --html, --body, --header, --address or --clear",
                ));
            }
            (false, true) => return Err(Failure::usage("--clear goes without other changes")),
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
    /// Only this suspension, by its number
    #[arg(long)]
    id: Option<u64>,
    /// Only of this application
    #[arg(long)]
    application: Option<String>,
    /// Only of this channel
    #[arg(long)]
    channel: Option<String>,
    /// Only of this notification batch
    #[arg(long)]
    batch: Option<String>,
    /// Only of this notification class
    #[arg(long)]
    class: Option<String>,
    /// Only those whose reason contains this text
    #[arg(long)]
    reason: Option<String>,
    /// Only those that were suspended before this time of RFC 3339
    #[arg(long)]
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
        named.into_iter().filter_map(|(name, value)| Some((name, value.as_deref()?))).collect()
    }

    fn body(&self, all: bool) -> Outcome<Value> {
        let mut body: Map<String, Value> =
            self.query().into_iter().map(|(name, value)| (name.to_owned(), Value::from(value))).collect();
        if let Some(id) = self.id {
            body.insert("id".into(), id.into());
        }
        match (body.is_empty(), all) {
            (true, false) => Err(Failure::usage(
                "say which: --id, --application, --channel, --batch, --class, --reason, --before or --all",
            )),
            (false, true) => Err(Failure::usage("--all goes alone")),
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
    /// Lists, shows, edits, resumes or ends.
    ///
    /// # Errors
    /// The server does not do it, or the person at the terminal said no.
    pub async fn run(self, terminal: &Terminal, client: &Client) -> Outcome {
        match self.what {
            What::List { filter, limit, json } => {
                let items = filter.list(client, limit).await?;
                if json {
                    return Ok(terminal.json(&items)?);
                }
                if items.is_empty() {
                    return Ok(terminal.line("nothing is suspended")?);
                }
                let rows: Vec<Vec<String>> = items.iter().map(row).collect();
                terminal
                    .table(&["id", "notifications", "batch", "application", "channel", "since", "reason"], &rows)?;
                if items.len() == limit {
                    terminal.line(format_args!("there may be more than {limit}; --limit shows more"))?;
                }
                Ok(())
            }
            What::Show { id, json } => {
                let found = client.get(&format!("/v1/suspensions/{id}"), &[]).await?;
                if json { Ok(terminal.json(&found)?) } else { show(terminal, &found) }
            }
            What::Edit(edit) => {
                let path = format!("/v1/suspensions/{}/edit", edit.id);
                let answer = client.put(&path, &edit.request()?).await?;
                let id = answer["id"].as_u64().unwrap_or(edit.id);
                Ok(terminal
                    .line(format_args!("suspension {id} is edited; `tocsin suspended resume --id {id}` sends it"))?)
            }
            What::Resume { filter, all } => {
                let answer = client.post("/v1/suspensions/resume", &filter.body(all)?).await?;
                Ok(terminal.line(format_args!(
                    "{} notifications resumed",
                    thousands(answer["notifications"].as_u64().unwrap_or_default())
                ))?)
            }
            What::End { filter, all, yes } => {
                let body = filter.body(all)?;
                if !yes {
                    let items = filter.list(client, usize::MAX).await?;
                    let many: u64 = items.iter().map(|item| count(item).unwrap_or(1)).sum();
                    if !terminal.confirm(&format!("close {} notifications for ever, unsent?", thousands(many)))? {
                        return Err(Failure::failed("nothing was changed; --yes ends without asking"));
                    }
                }
                let answer = client.post("/v1/suspensions/end", &body).await?;
                Ok(terminal.line(format_args!(
                    "{} notifications ended",
                    thousands(answer["notifications"].as_u64().unwrap_or_default())
                ))?)
            }
        }
    }
}

/// A suspension for people: what it is, then each notification with what it would say.
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

/// How many notifications a suspension holds.
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
    struct Wrapped {
        #[command(flatten)]
        args: Args,
    }

    async fn check(args: &[&str], answers: Vec<(u16, Value)>, expected: Expect) {
        let server = FakeServer::start(answers).await;
        let (terminal, captured) = Terminal::captured();
        let args = <Wrapped as clap::Parser>::parse_from([&["suspended"], args].concat()).args;
        let end = args
            .run(&terminal, &server.client())
            .await
            .map_or_else(|failure| format!("failed: {failure}\n"), |()| String::new());
        expected.assert_eq(&format!("{}{end}{}", captured.text(), server.requests().join("\n")));
    }

    #[tokio::test]
    async fn lists_go_on_page_after_page() {
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
            nothing is suspended
            GET /v1/suspensions?limit=1000"#]],
        )
        .await;
    }

    #[tokio::test]
    async fn one_is_shown_with_what_it_would_say() {
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
    async fn one_is_edited() {
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
                suspension 5 is edited; `tocsin suspended resume --id 5` sends it
                PUT /v1/suspensions/4/edit [application/json] {"edit":{"fields":{"place":"Lima"},"content":{"subject":"Mended","headers":{"X-Why":"again: and again"}},"address":"ann@example.com"},"notifications":["n-7-2"]}"#]],
        )
        .await;
        check(
            &["edit", "4", "--clear"],
            vec![(200, json!({"id": 4}))],
            expect![[r#"
                suspension 4 is edited; `tocsin suspended resume --id 4` sends it
                PUT /v1/suspensions/4/edit [application/json] {"edit":null}"#]],
        )
        .await;
        check(
            &["edit", "4"],
            vec![],
            expect![[r#"
            failed: say what is changed: --fields, --subject, --text, --html, --body, --header, --address or --clear
        "#]],
        )
        .await;
        check(
            &["edit", "4", "--clear", "--text", "x"],
            vec![],
            expect![[r#"
            failed: --clear goes without other changes
        "#]],
        )
        .await;
        check(
            &["edit", "4", "--header", "X-Why"],
            vec![],
            expect![[r#"
            failed: --header takes `Name: value`, not `X-Why`
        "#]],
        )
        .await;
    }

    #[tokio::test]
    async fn nothing_is_touched_by_accident() {
        check(
            &["resume"],
            vec![],
            expect![[r#"
            failed: say which: --id, --application, --channel, --batch, --class, --reason, --before or --all
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
            failed: nothing was changed; --yes ends without asking
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
