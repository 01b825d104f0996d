//! Command `preview`: renders a notification without sending it.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use crate::{
    client::{Client, segment},
    failure::{Failure, Outcome},
    platform,
    problems::compiler_format,
    terminal::{Colour, Terminal, printable},
};

/// Sample of a notification, for `preview` and `send-test`.
#[derive(Debug, clap::Args)]
pub struct SampleArgs {
    /// Application
    application: String,
    /// Rule that creates the notification; optional if there is only one
    #[arg(long)]
    rule: Option<String>,
    /// Stored event, such as e-12-0, or a JSON object with the fields of its class
    #[arg(long, value_name = "ID|JSON")]
    event: String,
    /// Subscription, such as s-15, or a JSON object with the fields of its class
    #[arg(long, value_name = "ID|JSON")]
    subscription: Option<String>,
    /// Subscriber id, or a JSON object with locale, time_zone and attributes
    #[arg(long, value_name = "ID|JSON")]
    subscriber: Option<String>,
    /// Device of the subscriber
    #[arg(long)]
    device: Option<String>,
    /// Channel that replaces the device's
    #[arg(long)]
    channel: Option<String>,
    /// Locale that replaces the subscriber's
    #[arg(long)]
    locale: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

impl SampleArgs {
    /// Path of a route of the application.
    pub fn path(&self, route: &str) -> String {
        format!("/v1/applications/{}/{route}", segment(&self.application))
    }

    /// Request body.
    ///
    /// # Errors
    /// If an argument starts like JSON but is invalid.
    pub fn body(&self) -> Outcome<Map<String, Value>> {
        let mut body = Map::new();
        for (key, given) in [
            ("event", Some(&self.event)),
            ("subscription", self.subscription.as_ref()),
            ("subscriber", self.subscriber.as_ref()),
        ] {
            let Some(given) = given else { continue };
            let value = match given.trim_start().starts_with('{') {
                true => serde_json::from_str(given)
                    .map_err(|error| Failure::usage(format!("--{key} is not a JSON object: {error}")))?,
                false => json!(given),
            };
            body.insert(key.to_owned(), value);
        }
        let texts =
            [("rule", &self.rule), ("device", &self.device), ("channel", &self.channel), ("locale", &self.locale)];
        body.extend(texts.into_iter().filter_map(|(key, given)| Some((key.to_owned(), json!(given.as_ref()?)))));
        Ok(body)
    }
}

/// Arguments of `tocsin preview`.
#[derive(Debug, clap::Args)]
#[command(after_help = r#"Example:
  tocsin preview quakes --event '{"magnitude": 6.1, "place": "Kobe"}' --subscriber ada --part text"#)]
pub struct Args {
    #[command(flatten)]
    sample: SampleArgs,
    /// Definition to use instead of the running one; it is not applied
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Part to print verbatim: subject, text, html, json or sms
    #[arg(long, conflicts_with = "json")]
    part: Option<String>,
}

impl Args {
    /// Prints each part with the name of its template.
    ///
    /// # Errors
    /// If an argument is invalid, the server refuses the request, or a template fails.
    pub async fn run(self, terminal: &Terminal, client: &Client) -> Outcome {
        let mut body = self.sample.body()?;
        if let Some(file) = &self.file {
            body.insert("definition".to_owned(), json!(read_definition(file)?));
        }
        let preview = client.post(&self.sample.path("preview"), &Value::Object(body)).await?;
        if self.sample.json {
            terminal.json(&preview)?;
        } else if let Some(requested) = &self.part {
            let parts = preview["parts"].as_array();
            let found = parts.into_iter().flatten().find(|part| part["part"] == **requested);
            match found.and_then(|part| part["content"].as_str()) {
                Some(content) => terminal.line(content.trim_end_matches('\n'))?,
                None => {
                    let why = found.and_then(|part| part["error"].as_str()).unwrap_or("no template has this part");
                    return Err(Failure::failed(format!("the part {requested} is missing: {why}")));
                }
            }
        } else {
            show(terminal, &preview)?;
        }
        let failed = |part: &Value| part["error"].is_string();
        match preview["parts"].as_array().into_iter().flatten().any(failed) || preview["failure"].is_string() {
            true => Err(Failure::failed("the notification cannot be rendered")),
            false => Ok(()),
        }
    }
}

/// Reads a definition and inlines the texts of its files.
fn read_definition(file: &Path) -> Outcome<String> {
    platform::read_definition(file)?.map_err(|problems| {
        let mut failure = Failure::failed("fix these problems");
        failure.details = problems.iter().map(|problem| compiler_format(file, problem)).collect();
        failure
    })
}

/// Prints the source of the notification.
pub fn show_about(terminal: &Terminal, about: &Value) -> std::io::Result<()> {
    let text = |key: &str| printable(about[key].as_str().unwrap_or("-")).into_owned();
    terminal.line(terminal.paint(
        Colour::Bold,
        format_args!("{} by {} for {} ({})", text("class"), text("rule"), text("subscriber"), text("locale")),
    ))?;
    terminal.line(terminal.paint(Colour::Dim, format_args!("through {} to {}", text("channel"), text("address"))))
}

fn show(terminal: &Terminal, preview: &Value) -> std::io::Result<()> {
    show_about(terminal, preview)?;
    let none = Vec::new();
    let list = |key: &str| preview[key].as_array().unwrap_or(&none);
    let order: Vec<&str> = list("looked_for").iter().filter_map(Value::as_str).collect();
    terminal.line(terminal.paint(Colour::Dim, format_args!("template lookup order: {}", order.join(", "))))?;
    for part in list("parts") {
        let text = |key: &str| part[key].as_str();
        let name = match text("header") {
            Some(header) => format!("header {}", printable(header)),
            None => text("part").unwrap_or_default().to_owned(),
        };
        let from = match text("template") {
            Some(template) => format!("from `{template}`"),
            None => "generated from the HTML".to_owned(),
        };
        terminal.line("")?;
        terminal.line(terminal.paint(Colour::Bold, format_args!("{name}, {from}")))?;
        match (text("content"), text("error")) {
            (Some(content), _) => {
                for line in content.lines() {
                    terminal.line(format_args!("  {}", printable(line)))?;
                }
            }
            (_, error) => {
                let error = printable(error.unwrap_or_default()).into_owned();
                terminal.line(terminal.paint(Colour::Red, format_args!("  {error}")))?;
            }
        }
        if part["part"] == "sms" && preview["sms"].is_object() {
            let sms = &preview["sms"];
            let line = format!(
                "{} units of {}, {} segments",
                sms["units"],
                sms["alphabet"].as_str().unwrap_or_default(),
                sms["segments"]
            );
            terminal.line(terminal.paint(Colour::Dim, format_args!("  {line}")))?;
        }
    }
    if let Some(failure) = preview["failure"].as_str() {
        terminal.line(terminal.paint(Colour::Red, printable(failure)))?;
    }
    for warning in list("warnings").iter().filter_map(Value::as_str) {
        terminal.line(terminal.paint(Colour::Yellow, format_args!("warning: {}", printable(warning))))?;
    }
    Ok(())
}
